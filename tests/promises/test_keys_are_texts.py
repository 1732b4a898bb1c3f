"""Keys that are words are `str` for everybody who reads, and keep their bytes for everybody who writes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    CTFDeserializer,
    HTKFeatureDeserializer,
    HTKMLFDeserializer,
    KaldiDeserializer,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    write_ctf,
    write_htk_archive,
    write_mlf,
)
from cntkio.convert import joined, pieces_of, read_kaldi, write_kaldi
from cntkio.formats.contract import Opening
from cntkio.formats.table import Keys

KEYS = ["u1", "ü2"]
FRAMES = [(key, np.full((2, 3), number, np.float32)) for number, key in enumerate(KEYS)]


def htk(folder: Path) -> Any:
    write_htk_archive(folder / "a.ark", folder / "a.scp", FRAMES)
    return HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp=folder / "a.scp", shape=3)))


def kaldi(folder: Path) -> Any:
    lines = [f"{key}  [ {number} 0 0\n 1 1 1 ]\n" for number, key in enumerate(KEYS)]
    (folder / "k.ark").write_text("".join(lines))
    return KaldiDeserializer(folder / "k.ark")


def with_labels(folder: Path) -> Any:
    write_mlf(folder / "a.mlf", [(key, np.array([0, 0])) for key in KEYS], ["a"])
    (folder / "states").write_text("a\n")
    labels = HTKMLFDeserializer(folder / "states", StreamDefs(y=StreamDef(mlf=folder / "a.mlf", shape=1)))
    return [htk(folder), labels]


FORMATS = [htk, kaldi, with_labels]


@pytest.mark.parametrize("make", FORMATS)
def test_each_door_gives_words_as_texts(make: Callable[[Path], Any], tmp_path: Path) -> None:
    made = make(tmp_path)
    first = made[0] if isinstance(made, list) else made
    with MinibatchSource(made, randomize=False, max_sweeps=1) as source:
        plan = source.plan(99)
        assert plan.explain(0).keys.tolist() == KEYS
        assert plan.where("ü2") == plan.where("ü2".encode()) == [0]
        assert source.next_minibatch(99).keys_of_sequences.tolist() == KEYS
        assert source.next_minibatch(99).keys_of_sequences.dtype.kind == "U"
    assert first.open().table.keys[1] == "ü2"
    with pieces_of(first) as pieces:
        assert joined(pieces).keys_of_sequences.tolist() == KEYS


def test_words_of_a_text_are_texts_too(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_text("7 |x 1\n9 |x 2\n")
    corpus = CTFDeserializer(tmp_path / "a.ctf", StreamDefs(x=StreamDef(field="x", shape=1)))
    assert corpus.open(Opening(text_keys=True)).table.keys.tolist() == ["7", "9"]


def test_a_key_of_other_bytes_is_shown_escaped_and_written_exactly(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xe91 0 1\nu2 1 1\n")
    data = read_kaldi(tmp_path / "a.txt")
    assert data.keys_of_sequences.tolist() == ["\\xe91", "u2"]
    corpus = KaldiDeserializer(tmp_path / "a.txt")
    write_kaldi(tmp_path / "b.ark", corpus, text=True)
    write_ctf(tmp_path / "b.ctf", corpus, keys_file=tmp_path / "b.keys")
    assert (tmp_path / "b.ark").read_bytes().startswith(b"\xe91 ")
    assert (tmp_path / "b.keys").read_bytes() == b"\xe91\nu2\n"
    assert Keys(np.array([b"\xe91"])).places_of("\\xe91").tolist() == [0]

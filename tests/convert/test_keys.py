"""Keys are kept, or numbered and listed on request; they are never renumbered silently."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    CorpusError,
    CTFDeserializer,
    HTKFeatureDeserializer,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    write_ctf,
)


@pytest.fixture
def speech(tmp_path: Path) -> HTKFeatureDeserializer:
    frames = np.arange(6, dtype=">f4").reshape(3, 2)
    (tmp_path / "a.htk").write_bytes(struct.pack(">iihh", 3, 100_000, 8, 9) + frames.tobytes())
    (tmp_path / "a.scp").write_text(f"one/b={tmp_path}/a.htk[0,1]\ntwo/ä={tmp_path}/a.htk[2,2]\n", encoding="utf-8")
    return HTKFeatureDeserializer(StreamDefs(f=StreamDef(scp=str(tmp_path / "a.scp"), shape=2)))


def test_refuses_keys_that_are_texts(speech: Any, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="the key 'one/b' is not a whole number from 0.*keys_file='FILE'"):
        write_ctf(tmp_path / "a.ctf", speech)
    assert not (tmp_path / "a.ctf").exists()


def test_lists_the_keys_of_numbered_sequences(speech: Any, tmp_path: Path) -> None:
    write_ctf(tmp_path / "a.ctf", speech, keys_file=tmp_path / "a.keys")
    assert (tmp_path / "a.ctf").read_text() == "0\t|f 0 1\n0\t|f 2 3\n1\t|f 4 5\n"
    assert (tmp_path / "a.keys").read_text(encoding="utf-8") == "one/b\ntwo/ä\n"


def test_numbers_sequences_on_request(speech: Any, tmp_path: Path) -> None:
    write_ctf(tmp_path / "a.ctf", speech, renumber=True)
    assert (tmp_path / "a.ctf").read_text().split("\n")[2] == "1\t|f 4 5"


def test_a_source_lists_the_key_of_each_sequence_of_each_sweep(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_text("7 |x 1\n9 |x 2\n")
    corpus = CTFDeserializer(tmp_path / "a.ctf", StreamDefs(x=StreamDef("x", 1)))
    write_ctf(tmp_path / "b.ctf", MinibatchSource(corpus, max_sweeps=2, randomize=False), keys_file=tmp_path / "keys")
    assert (tmp_path / "b.ctf").read_text() == "0\t|x 1\n1\t|x 2\n2\t|x 1\n3\t|x 2\n"
    assert (tmp_path / "keys").read_text() == "7\n9\n7\n9\n"


def test_arrays_have_no_keys_to_list(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="the sequences have no keys to list"):
        write_ctf(tmp_path / "a.ctf", {"x": np.eye(2)}, keys_file=tmp_path / "keys")
    assert not list(tmp_path.iterdir())


def test_neighbours_with_the_same_key_are_written_if_they_are_numbered(tmp_path: Path) -> None:
    minibatch = MinibatchSource(_repeating(tmp_path), max_sweeps=2, randomize=False).next_minibatch(10)
    with pytest.raises(CorpusError, match="two neighbouring sequences have the same key.*renumber=True"):
        write_ctf(tmp_path / "b.ctf", minibatch)
    write_ctf(tmp_path / "b.ctf", minibatch, renumber=True)
    assert (tmp_path / "b.ctf").read_text() == "0\t|x 1\n1\t|x 1\n"


def _repeating(folder: Path) -> CTFDeserializer:
    (folder / "a.ctf").write_text("7 |x 1\n")
    return CTFDeserializer(folder / "a.ctf", StreamDefs(x=StreamDef("x", 1)))

"""Speech corpora with `compatible=True` as CNTK 2.7 reads them, and the rows of the table of differences.

The expected minibatches were recorded with CNTK 2.7: six utterances of four frames, two sweeps.
"""

from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    CTFDeserializer,
    HTKFeatureDeserializer,
    HTKMLFDeserializer,
    MinibatchSource,
    StreamDef,
    StreamDefs,
)

TWO, ONE, LAST, EMPTY = (2, 8, False), (1, 4, False), (1, 4, True), (0, 0, False)


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cntkio.write_htk_features("u.mfc", np.arange(8, dtype=np.float32).reshape(4, 2))
    Path("states").write_text("a\nb\n")


def features(keys: list[str], **stream: Any) -> HTKFeatureDeserializer:
    Path("f.scp").write_text("".join(f"{key}=u.mfc[0,3]\n" for key in keys))
    return HTKFeatureDeserializer(StreamDefs(f=StreamDef(shape=2, scp="f.scp", **stream)), compatible=True)


def labels(entries: list[tuple[str, str]], **options: Any) -> HTKMLFDeserializer:
    Path("l.mlf").write_text("#!MLF!#\n" + "".join(f'"{key}.lab"\n{rows}.\n' for key, rows in entries))
    streams = StreamDefs(l=StreamDef(shape=2, mlf="l.mlf"))
    return HTKMLFDeserializer("states", streams, compatible=True, **options)


WHOLE, GAP = "0 400000 a\n", "0 100000 a\n300000 400000 b\n"


@pytest.mark.parametrize(
    ("invalid", "size", "randomize", "delivered"),
    [
        ((4, 5), 8, False, [TWO, TWO, EMPTY, TWO, TWO]),
        ((4, 5), 4, False, [ONE, ONE, ONE, ONE, EMPTY, EMPTY, ONE, ONE, ONE, ONE, EMPTY]),
        ((4, 5), 5, False, [ONE, ONE, ONE, ONE, EMPTY, EMPTY, ONE, ONE, ONE, ONE, EMPTY]),
        ((4, 5), 4, True, [ONE, ONE, ONE, ONE, EMPTY, EMPTY, EMPTY, ONE, ONE, EMPTY, ONE, LAST]),
        ((4, 5), 100, False, [(8, 32, True)]),
        ((2, 3), 8, False, [TWO, EMPTY, (2, 8, True), TWO, EMPTY, (2, 8, True)]),
        ((0, 1), 4, True, [ONE, ONE, EMPTY, EMPTY, ONE, LAST, ONE, ONE, EMPTY, ONE, ONE]),
        ((0, 1, 2, 3, 4, 5), 100, False, []),
    ],
)
def test_minibatches_without_a_valid_utterance_are_those_of_cntk(
    invalid: tuple[int, ...], size: int, randomize: bool, delivered: list[Any]
) -> None:
    keys = [f"u{index}" for index in range(6)]
    rows = [(key, GAP if index in invalid else WHOLE) for index, key in enumerate(keys)]
    options = {"max_sweeps": 2, "randomize": randomize, "max_errors": 100, "trace_level": 0}
    source = MinibatchSource([features(keys), labels(rows)], **options)
    found: list[Any] = []
    while minibatch := source.next_minibatch(size):
        data = minibatch["f"]
        found.append((data.num_sequences, data.num_samples, data.end_of_sweep))
    assert found == delivered


@pytest.mark.parametrize("num_utterances", [3, 9, 12, 40])
def test_the_first_entry_of_an_utterance_counts_in_files_of_any_size(num_utterances: int) -> None:
    keys = [f"k{index}" for index in range(num_utterances)]
    entries = [(key, f"0 400000 {state}\n") for state in "ab" for key in keys]
    source = MinibatchSource([features(keys), labels(entries)], max_sweeps=1, randomize=False, trace_level=0)
    assert (source.next_minibatch(1000)["l"].asarray()[..., 0] == 1).all()


@pytest.mark.parametrize("context", [5, "5", (2, 2), "2:2"])
def test_a_context_is_a_pair_or_one_odd_number(context: Any) -> None:
    assert MinibatchSource(features(["u"], context=context)).streams.f.shape == (10,)


def test_a_cache_of_labels_and_of_a_joined_text_is_written() -> None:
    Path("t.ctf").write_text("0 |x 1\n" * 4)
    text = CTFDeserializer("t.ctf", StreamDefs(x=StreamDef(field="x", shape=1)), cache_index=True)
    cached = labels([("0", WHOLE)], stream_options={"l": {"cacheIndex": True}})
    with MinibatchSource([features(["0"]), text, cached], max_sweeps=1) as source:
        assert source.next_minibatch(4)["x"].num_samples == 4
    assert list(Path().glob("l.mlf.*.index"))


def test_a_binary_corpus_is_joined_with_features_by_number() -> None:
    cntkio.write_cbf("x.cbf", {"x": [np.full((4, 1), value, np.float32) for value in (1, 2)]})
    source = MinibatchSource([CBFDeserializer("x.cbf"), features(["1", "0"])], max_sweeps=1, randomize=False)
    assert source.next_minibatch(4)["x"].asarray().ravel().tolist() == [1, 1, 1, 1]
    assert source.num_sequences == 2

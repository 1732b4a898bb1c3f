"""Everything that can be read may be read by several threads: each sample is delivered once, and states are whole."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    BalancedPartition,
    Budget,
    CTFDeserializer,
    GlobalPartition,
    MinibatchSource,
    MinibatchSourceFromData,
    Mixture,
    Partition,
    SequenceMixture,
    SplitRows,
    StreamDef,
    StreamDefs,
)
from cntkio.timeline import FULL_DATA_SWEEP, WHOLE
from support.threads import together

STREAMS = StreamDefs(x=StreamDef(field="x", shape=1))
NUM_THREADS = 4
NUM_SEQUENCES = 40


@pytest.fixture(scope="module")
def two_corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("threads")
    for name, first in (("a", 0), ("b", 1000)):
        keys = range(first, first + NUM_SEQUENCES)
        (folder / name).write_text("".join(f"{key} |x {key}\n" * (1 + key % 3) for key in keys))
    return folder


def deserializer(folder: Path, name: str) -> CTFDeserializer:
    return CTFDeserializer(folder / name, STREAMS, chunk_size_in_bytes=100)


def source(folder: Path, name: str = "a", **options: Any) -> MinibatchSource:
    return MinibatchSource(deserializer(folder, name), **options)


def mixture(folder: Path) -> Mixture:
    return Mixture({name: (source(folder, name), weight) for name, weight in (("a", 2), ("b", 1))}, stop="all")


def sequence_mixture(folder: Path) -> SequenceMixture:
    return SequenceMixture({name: (deserializer(folder, name), 1) for name in "ab"}, stop="all")


def data(_: Path) -> MinibatchSourceFromData:
    return MinibatchSourceFromData({"x": np.arange(NUM_SEQUENCES)}, FULL_DATA_SWEEP)


Reads = Callable[[], Any]


def by(size: Any, partition: Partition = WHOLE) -> Callable[[Any], Reads]:
    return lambda readable: lambda: readable.read(size, partition)


def by_next(size: int) -> Callable[[Any], Reads]:
    return lambda readable: lambda: readable.next_minibatch(size) or None


def by_iterator(begin: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Reads]:
    """Let all threads share one iterator."""

    def reads(readable: Any) -> Reads:
        iterator = begin(readable)
        return lambda: next(iterator, None)

    return reads


def two_sweeps(folder: Path) -> MinibatchSource:
    return source(folder, max_sweeps=2)


def rows_of(make: Callable[[Path], Any]) -> Callable[[Path], SplitRows]:
    return lambda folder: SplitRows(make(folder), 4, rows=2)


READABLE: dict[str, tuple[Callable[[Path], Any], Callable[[Any], Reads]]] = {
    "source": (two_sweeps, by(3)),
    "source by budget": (two_sweeps, by(Budget(padded=12, pool=20))),
    "global partition": (two_sweeps, by(6, GlobalPartition(0, 2))),
    "truncated": (lambda folder: source(folder, max_sweeps=2, truncation_length=2), by_next(6)),
    "mixture": (mixture, by(3)),
    "mixture, balanced": (mixture, by(6, BalancedPartition(0, 2))),
    "mixture of sequences": (sequence_mixture, by(3)),
    "mixture of sequences, partition": (sequence_mixture, by(6, Partition(1, 2))),
    "rows of a source": (rows_of(two_sweeps), lambda rows: rows.read),
    "rows of a mixture": (rows_of(mixture), lambda rows: rows.read),
    "rows of a mixture of sequences": (rows_of(sequence_mixture), lambda rows: rows.read),
    "arrays": (data, by_next(3)),
    "an iterator of a source": (two_sweeps, by_iterator(lambda source: source.minibatches(3))),
    "an iterator of a mixture": (mixture, by_iterator(lambda mixture: mixture.minibatches(3))),
    "an iterator of rows": (rows_of(mixture), by_iterator(iter)),
}


def values_of(result: Any) -> list[float]:
    """Return the samples of a minibatch, or of rows without their empty cells."""
    if hasattr(result, "segment_ids"):
        return list(result.values["x"][result.segment_ids > 0].ravel().tolist())
    return [] if not result else list(np.asarray(result["x"].values).ravel().tolist())


def rest(read: Reads) -> Counter[float]:
    found: Counter[float] = Counter()
    while (result := read()) is not None:
        found.update(values_of(result))
    return found


@pytest.mark.parametrize("name", READABLE)
def test_threads_that_read_one_object_deliver_each_sample_once(name: str, two_corpora: Path) -> None:
    make, reads = READABLE[name]
    expected = rest(reads(make(two_corpora)))
    read = reads(make(two_corpora))
    assert sum(together(NUM_THREADS, lambda _: rest(read)), Counter()) == expected


@pytest.mark.parametrize("name", [name for name in READABLE if "iterator" not in name and name != "arrays"])
def test_a_state_that_a_thread_takes_while_others_read_continues_exactly(name: str, two_corpora: Path) -> None:
    make, reads = READABLE[name]
    # The rest of the data after each state that a single thread passes.
    alone, expected = make(two_corpora), {}
    read, remaining = reads(alone), rest(reads(make(two_corpora)))
    while True:
        expected[repr(alone.state_dict())] = Counter(remaining)
        if (result := read()) is None:
            break
        remaining -= Counter(values_of(result))
    shared = make(two_corpora)
    read = reads(shared)
    states = list[Any]()

    def work(number: int) -> None:
        for _ in range(6):
            states.append(shared.state_dict()) if number == 0 else read()

    together(NUM_THREADS, work)
    for state in states[2::3]:
        again = make(two_corpora)
        again.load_state_dict(state)
        assert rest(reads(again)) == expected[repr(state)]


@pytest.mark.parametrize("make", [mixture, sequence_mixture], ids=["mixture", "mixture of sequences"])
def test_new_weights_of_a_thread_lose_no_sample_of_others(make: Any, two_corpora: Path) -> None:
    # Weights decide the end, but not which samples of a part come first.
    shared = make(two_corpora)
    turns = iter(range(NUM_THREADS * 12))

    def work(number: int) -> Counter[float]:
        found: Counter[float] = Counter()
        for turn in turns if number else range(12):
            if number == 0:
                shared.set_weights({"a": 1 + turn % 3, "b": 2})
            elif (minibatch := shared.read(3)) is not None:
                found.update(values_of(minibatch))
        return found

    with shared:
        found = sum(together(NUM_THREADS, work), Counter())
    for part in (range(NUM_SEQUENCES), range(1000, 1000 + NUM_SEQUENCES)):
        counts = [found[key] // (1 + key % 3) for key in part]
        assert all(found[key] % (1 + key % 3) == 0 for key in part) and max(counts) - min(counts) <= 1


def test_skips_of_threads_lose_and_repeat_no_minibatch(two_corpora: Path) -> None:
    with source(two_corpora, max_sweeps=100) as shared, source(two_corpora, max_sweeps=100) as alone:
        together(NUM_THREADS, lambda number: [shared.skip(1, 3) if number % 2 else shared.read(3) for _ in range(10)])
        alone.skip(NUM_THREADS * 10, 3)
        assert shared.state_dict() == alone.state_dict()

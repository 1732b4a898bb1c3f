"""The timeline of user-defined deserializers: invariants as properties, and comparisons with the slow timeline."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cntkio import CheckpointError, ConfigError, CorpusError, _core
from cntkio.timeline import Partition, Window
from cntkio.timeline.user_timeline import UserTimeline
from hypothesis import assume, given
from hypothesis import strategies as st
from slow.user_timeline import SlowUserTimeline, shuffled
from support.user_formats import CORPORA, PATIENT

Lengths = list[list[int]]

WINDOWS = st.none() | st.builds(Window, st.integers(1, 9), st.sampled_from(["chunks", "samples"]))
SEEDS = st.integers(0, 9) | st.sampled_from([2**32, 2**64 - 1, 2**64 - 2])
LIMITS = st.fixed_dictionaries({"max_sweeps": st.integers(1, 4)}) | st.fixed_dictionaries(
    {"max_samples": st.integers(1, 60)}
)


def timeline_of(lengths: Lengths, window: Window | None, seed: int = 0, **limits: int) -> UserTimeline:
    arrays = [np.array(chunk, np.uint32) for chunk in lengths]
    return UserTimeline(len(arrays), arrays.__getitem__, window=window, seed=seed, **limits)


def make_slow(lengths: Lengths, window: Window | None, seed: int = 0, **limits: int) -> SlowUserTimeline:
    return SlowUserTimeline(lengths, None if window is None else (window.size, window.unit), seed, **limits)


def read(timeline: UserTimeline, size: int, index: int = 0, count: int = 1) -> tuple[list[Any], bool] | None:
    """Return a read in the form of the slow timeline."""
    selection = timeline.read(size, Partition(index, count))
    if selection is None:
        return None
    return list(zip(selection.chunks.tolist(), selection.sequences.tolist(), strict=True)), selection.end_of_sweep


def has_sequences(lengths: Lengths, window: Window | None, index: int) -> bool:
    """Return whether a partition has any sequences. Without them the slow timeline would search forever."""
    return index < (len(lengths) if window else sum(map(len, lengths)))


# Compared with the slow timeline


@PATIENT
@given(CORPORA, WINDOWS, SEEDS, LIMITS, st.integers(1, 12))
def test_the_fast_timeline_agrees_with_the_slow_timeline(
    lengths: Lengths, window: Window | None, seed: int, limits: dict[str, int], size: int
) -> None:
    timeline, slow = timeline_of(lengths, window, seed, **limits), make_slow(lengths, window, seed, **limits)
    while True:
        delivered = read(timeline, size)
        assert delivered == slow.read(size)
        if delivered is None:
            break
        assert timeline.checkpoint() == slow.state()


@PATIENT
@given(CORPORA, WINDOWS, SEEDS, LIMITS, st.integers(1, 12), st.integers(1, 4), st.data())
def test_a_partition_agrees_with_the_slow_timeline(
    lengths: Lengths,
    window: Window | None,
    seed: int,
    limits: dict[str, int],
    size: int,
    count: int,
    data: st.DataObject,
) -> None:
    index = data.draw(st.integers(0, count - 1))
    assume(has_sequences(lengths, window, index))
    timeline, slow = timeline_of(lengths, window, seed, **limits), make_slow(lengths, window, seed, **limits)
    while True:
        delivered = read(timeline, size, index, count)
        assert delivered == slow.read(size, index, count)
        if delivered is None:
            break
        assert timeline.checkpoint() == slow.state()


@PATIENT
@given(CORPORA, WINDOWS, SEEDS, st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), min_size=2, max_size=6))
def test_a_change_of_partition_fills_the_window_again(
    lengths: Lengths, window: Window | None, seed: int, requests: list[tuple[int, int]]
) -> None:
    timeline, slow = timeline_of(lengths, window, seed, max_sweeps=3), make_slow(lengths, window, seed, max_sweeps=3)
    for size, count in requests:
        index = size % count
        assume(has_sequences(lengths, window, index))
        delivered = read(timeline, size, index, count)
        assert delivered == slow.read(size, index, count)
        if delivered is None:
            break


def test_the_core_shuffles_as_the_page_says() -> None:
    for count, seed in ((0, 0), (1, 5), (17, 3), (400, 2**64 - 1)):
        assert _core.shuffled(count, seed).tolist() == shuffled(list(range(count)), seed)
    assert _core.chunk_order(10, 5).tolist() == [3, 6, 2, 1, 5, 7, 8, 9, 0, 4]


# Invariants


@PATIENT
@given(CORPORA, WINDOWS, SEEDS, st.integers(1, 3), st.integers(1, 12), st.integers(1, 5))
def test_partitions_together_deliver_every_sequence_once_per_sweep(
    lengths: Lengths, window: Window | None, seed: int, num_sweeps: int, size: int, count: int
) -> None:
    delivered: Counter[Any] = Counter()
    for index in range(count):
        timeline = timeline_of(lengths, window, seed, max_sweeps=num_sweeps)
        while (one_read := read(timeline, size, index, count)) is not None:
            delivered.update(one_read[0])
    assert delivered == {(c, j): num_sweeps for c, chunk in enumerate(lengths) for j in range(len(chunk))}


@PATIENT
@given(CORPORA, WINDOWS, SEEDS, st.integers(1, 12), st.integers(1, 3), st.integers(0, 12), st.booleans(), st.data())
def test_a_restore_continues_as_if_nothing_had_happened(
    lengths: Lengths,
    window: Window | None,
    seed: int,
    size: int,
    count: int,
    num_reads: int,
    is_new: bool,
    data: st.DataObject,
) -> None:
    index = data.draw(st.integers(0, count - 1))
    timeline = timeline_of(lengths, window, seed, max_sweeps=4)
    for _ in range(num_reads):
        read(timeline, size, index, count)
    checkpoint = json.loads(json.dumps(timeline.checkpoint()))
    bookmark = timeline.bookmark()
    expected = [read(timeline, size, index, count) for _ in range(8)]
    again = timeline_of(lengths, window, seed, max_sweeps=4) if is_new else timeline
    again.restore(checkpoint)
    assert again.checkpoint() == checkpoint
    assert [read(again, size, index, count) for _ in range(8)] == expected
    timeline.go_back(bookmark)
    assert timeline.checkpoint() == checkpoint
    assert [read(timeline, size, index, count) for _ in range(8)] == expected


@PATIENT
@given(CORPORA, WINDOWS, SEEDS, st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_a_change_of_size_loses_and_repeats_nothing(
    lengths: Lengths, window: Window | None, seed: int, sizes: list[int]
) -> None:
    timeline = timeline_of(lengths, window, seed, max_sweeps=2)
    delivered: list[Any] = []
    while (one_read := read(timeline, sizes[len(delivered) % len(sizes)])) is not None:
        delivered += one_read[0]
        sizes = [*sizes[1:], sizes[0]]
    whole = timeline_of(lengths, window, seed, max_sweeps=2)
    assert delivered == [entry for one_read in iter(lambda: read(whole, 5), None) for entry in one_read[0]]


@pytest.mark.parametrize("window", [None, Window(2, "chunks"), Window(5, "samples")], ids=str)
def test_a_partition_without_sequences_is_at_the_end(window: Window | None) -> None:
    timeline = timeline_of([[1], [2]], window)
    assert read(timeline, 5, 2, 3) is None
    assert list(timeline.chunks_ahead(Partition(2, 3))) == []


@PATIENT
@given(CORPORA, WINDOWS, SEEDS, st.integers(1, 5), st.integers(1, 20), st.integers(0, 9))
def test_truncated_minibatches_deliver_every_sample_once_per_sweep(
    lengths: Lengths, window: Window | None, seed: int, steps: int, size: int, num_reads: int
) -> None:
    timeline = timeline_of(lengths, window, seed, max_sweeps=2, truncation_length=steps)
    delivered: Counter[Any] = Counter()
    number = 0
    while (selection := timeline.read(size)) is not None:
        number += 1
        parts = selection.parts
        assert parts is not None
        assert parts.lengths.tolist() == [
            lengths[chunk][index] for chunk, index in zip(selection.chunks, selection.sequences, strict=True)
        ]
        for row in zip(selection.chunks, selection.sequences, parts.first_sample, parts.num_samples, strict=True):
            chunk, sequence, first, count = map(int, row)
            delivered.update((chunk, sequence, sample) for sample in range(first, first + count))
        assert parts.num_slots == max(1, size // steps) and (parts.step + parts.num_samples <= steps).all()
        if number == num_reads:  # a state contains the rest of the slots, so nothing is lost
            state = json.loads(json.dumps(timeline.state()))
            timeline = timeline_of(lengths, window, seed, max_sweeps=2, truncation_length=steps)
            timeline.load_state(state)
            assert timeline.state() == state
    every = {(c, j, s): 2 for c, chunk in enumerate(lengths) for j, length in enumerate(chunk) for s in range(length)}
    assert delivered == every


@pytest.mark.parametrize("limit", [{"max_sweeps": 1}, {"max_samples": 5}])
def test_another_size_after_the_last_sequence_empties_the_slots(limit: dict[str, int]) -> None:
    timeline = timeline_of([[5]], None, truncation_length=1, **limit)
    selections = [timeline.read(size) for size in (2, 4, 2, 2)]
    assert [0 if one is None else len(one.sequences) for one in selections] == [1, 0, 0, 0]
    state = json.loads(json.dumps(timeline.state()))
    timeline = timeline_of([[5]], None, truncation_length=1, **limit)
    timeline.load_state(state)
    assert timeline.read(2) is None


def test_going_back_to_another_size_gives_the_slots_of_that_size() -> None:
    timeline = timeline_of([[3] * 9], None, truncation_length=2, max_sweeps=1)
    timeline.read(4)
    bookmark = timeline.bookmark()
    expected = timeline.read(4)
    timeline.read(8)
    timeline.go_back(bookmark)
    again = timeline.read(4)
    assert expected is not None and expected.parts is not None and again is not None and again.parts is not None
    assert again.parts.num_slots == expected.parts.num_slots == 2
    assert again.parts.slot.tolist() == expected.parts.slot.tolist()


def test_chunks_are_fetched_in_the_order_that_was_announced() -> None:
    fetched: list[int] = []

    def lengths_of(chunk_id: int) -> npt.NDArray[np.uint32]:
        fetched.append(chunk_id)
        return np.ones(3, np.uint32)

    timeline = UserTimeline(6, lengths_of, window=Window(2, "chunks"), seed=3, max_sweeps=2)
    timeline.read(1)
    ahead = [*timeline.needed_chunks().chunks, *timeline.chunks_ahead()]
    while timeline.read(4) is not None:
        pass
    assert fetched == ahead and len(ahead) == 12


@PATIENT
@given(CORPORA, WINDOWS, SEEDS, st.integers(1, 12), st.sampled_from([0, 2]))
def test_a_selection_brings_its_keys_and_its_chunks(
    lengths: Lengths, window: Window | None, seed: int, size: int, steps: int
) -> None:
    timeline = timeline_of(lengths, window, seed, max_sweeps=2, truncation_length=steps)
    while (reads := timeline.read_several(size, Partition(), 9)) is not None:
        selection = reads.selection
        refs, keys = selection.refs, selection.keys
        assert refs is not None and keys is not None
        chunks = [refs.chunk_ids[index] for index in refs.chunk_indices]
        assert chunks == selection.chunks.tolist()
        assert refs.indices_in_chunk.tolist() == selection.sequences.tolist()
        assert [chunks[first] for first in refs.firsts] == refs.chunk_ids == list(dict.fromkeys(chunks))
        assert keys().tolist() == [f"{c}:{j}" for c, j in zip(chunks, selection.sequences.tolist(), strict=True)]
        assert reads.bounds == [0, len(chunks)] and reads.bookmarks == [timeline.bookmark()]


# Refusals


def test_a_failed_fetch_leaves_the_timeline_as_it_was() -> None:
    is_broken = True

    def lengths_of(chunk_id: int) -> npt.NDArray[np.uint32]:
        if is_broken and chunk_id == 1:
            raise OSError("gone")
        return np.array([2, 1], np.uint32)

    for steps in (0, 2):
        timeline = UserTimeline(2, lengths_of, window=None, max_sweeps=1, truncation_length=steps)
        is_broken = True
        with pytest.raises(OSError, match="gone"):
            timeline.read(6)
        before = timeline.checkpoint()
        with pytest.raises(OSError, match="gone"):
            timeline.read(6)
        assert timeline.checkpoint() == before
        is_broken = False
        assert timeline.read(6) is not None


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda timeline: timeline.num_samples, CorpusError, "not known until all chunks have been fetched"),
        (lambda timeline: timeline.num_sequences, CorpusError, "not known until all chunks have been fetched"),
        (lambda timeline: timeline.begin_epoch(0, 1), ConfigError, "no epochs"),
        (lambda timeline: timeline.ends_at(timeline.bookmark()), ConfigError, "no epochs"),
        (lambda timeline: timeline.read(0), ConfigError, "minibatch_size_in_samples is 0"),
        (lambda timeline: timeline.restore({}), CheckpointError, "no 'baseSweepCount'"),
        (
            lambda timeline: timeline.restore({**timeline.checkpoint(), "currentChunkPosition": 7}),
            CheckpointError,
            "continues at chunk 7, but this corpus has 1 chunk",
        ),
        (lambda timeline: timeline.load_state({"minibatch_size": "x"}), CheckpointError, "the state's"),
    ],
)
def test_impossible_calls_are_refused(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call(timeline_of([[1]], None))


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ([[[0, 3, 2, 0, False]]], "sequence 3 of chunk 0, which has changed or is gone"),
        ([[[0, 0, 9, 0, False]]], "sequence 0 of chunk 0, which has changed"),
        ([[[5, 0, 2, 0, False]]], "chunk 5"),
        ([[[0, 0, 2, 2, False]]], "sequence 0 of chunk 0"),
        ([[], []], "holds 2 slots, but there are 1"),
        ([[0]], "the state's 'slots'"),
    ],
)
def test_slots_of_other_data_are_refused(slots: Any, message: str) -> None:
    timeline = timeline_of([[2]], None, truncation_length=2)
    timeline.read(2)
    with pytest.raises(CheckpointError, match=message):
        timeline.load_state({**timeline.state(), "slots": slots})


@pytest.mark.parametrize("window", [None, Window(2, "chunks")])
@pytest.mark.parametrize("index", range(5))
def test_counts_of_a_checkpoint_are_limited(window: Window | None, index: int) -> None:
    timeline = timeline_of([[2], [1, 1]], window)
    timeline.read(2)
    before = timeline.checkpoint()
    key = list(before)[index]
    with pytest.raises(CheckpointError, match=rf"the state's '{key}' is \d+; expected a whole number from 0 to 2\^62"):
        timeline.restore({**before, key: 2**62 + 1})
    assert timeline.checkpoint() == before


@pytest.mark.parametrize("options", [{}, {"truncation_length": 2}])
def test_reads_continue_at_the_largest_count_of_samples(options: dict[str, int]) -> None:
    timeline = timeline_of([[2], [1, 1]], None, **options)
    timeline.restore({**timeline.checkpoint(), "baseSampleCount": 2**62})
    for _ in range(4):
        assert timeline.read(2) is not None
    assert timeline.position >= 2**62 + 8

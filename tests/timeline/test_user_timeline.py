"""The order of user-defined deserializers: its slow twin, partitions, restoring, truncation."""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from cntkio import _core
from cntkio.timeline import Partition, Window
from cntkio.timeline.user_timeline import UserTimeline
from hypothesis import assume, given
from hypothesis import strategies as st
from slow.user_timeline import Twin, shuffled
from support.user_formats import CORPORA, PATIENT

WINDOWS = st.none() | st.builds(Window, st.integers(1, 9), st.sampled_from(["chunks", "samples"]))
SEEDS = st.integers(0, 9) | st.sampled_from([2**32, 2**64 - 1, 2**64 - 2])
LIMITS = st.fixed_dictionaries({"max_sweeps": st.integers(1, 4)}) | st.fixed_dictionaries(
    {"max_samples": st.integers(1, 60)}
)


def timeline_of(lengths: list[list[int]], window: Window | None, seed: int = 0, **limits: int) -> UserTimeline:
    arrays = [np.array(one, np.uint32) for one in lengths]
    return UserTimeline(len(arrays), arrays.__getitem__, window=window, seed=seed, **limits)


def read(timeline: UserTimeline, size: int, r: int = 0, P: int = 1) -> tuple[list[Any], bool] | None:
    found = timeline.read(size, Partition(r, P))
    if found is None:
        return None
    return list(zip(found.chunks.tolist(), found.sequences.tolist(), strict=True)), found.end_of_sweep


@PATIENT
@given(CORPORA, WINDOWS, SEEDS, LIMITS, st.integers(1, 12))
def test_reads_are_equal_to_the_slow_twins(lengths, window, seed, limits, size):
    timeline, twin = timeline_of(lengths, window, seed, **limits), Twin(lengths, window, seed, **limits)
    while True:
        found = read(timeline, size)
        assert found == twin.read(size)
        if found is None:
            break
        assert timeline.checkpoint() == twin.state()


@PATIENT
@given(CORPORA, WINDOWS, SEEDS, LIMITS, st.integers(1, 12), st.integers(1, 4), st.data())
def test_reads_of_partitions_are_equal_to_the_slow_twins(lengths, window, seed, limits, size, P, data):
    r = data.draw(st.integers(0, P - 1))
    # The twin would search the chunks of a partition without chunks forever.
    assume(r < (len(lengths) if window else sum(map(len, lengths))))
    timeline, twin = timeline_of(lengths, window, seed, **limits), Twin(lengths, window, seed, **limits)
    while True:
        found = read(timeline, size, r, P)
        assert found == twin.read(size, r, P)
        if found is None:
            break
        assert timeline.checkpoint() == twin.state()


@PATIENT
@given(CORPORA, WINDOWS, SEEDS, st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), min_size=2, max_size=6))
def test_a_change_of_partition_fills_the_window_anew(lengths, window, seed, requests):
    num_chunks = len(lengths)
    timeline, twin = timeline_of(lengths, window, seed, max_sweeps=3), Twin(lengths, window, seed, max_sweeps=3)
    for size, P in requests:
        r = (size + P) % P
        assume(r < (num_chunks if window else sum(map(len, lengths))))
        found = read(timeline, size, r, P)
        assert found == twin.read(size, r, P)
        if found is None:
            break


@PATIENT
@given(CORPORA, WINDOWS, SEEDS, st.integers(1, 3), st.integers(1, 12), st.integers(1, 5))
def test_partitions_together_deliver_every_sequence_once_per_sweep(lengths, window, seed, num_sweeps, size, P):
    seen: Counter[Any] = Counter()
    for r in range(P):
        timeline = timeline_of(lengths, window, seed, max_sweeps=num_sweeps)
        while (found := read(timeline, size, r, P)) is not None:
            seen.update(found[0])
    assert seen == {(c, j): num_sweeps for c, chunk in enumerate(lengths) for j in range(len(chunk))}


@PATIENT
@given(CORPORA, WINDOWS, SEEDS, st.integers(1, 12), st.integers(1, 3), st.integers(0, 12), st.booleans(), st.data())
def test_a_restored_timeline_continues_unchanged(lengths, window, seed, size, P, num_reads, is_new, data):
    r = data.draw(st.integers(0, P - 1))
    timeline = timeline_of(lengths, window, seed, max_sweeps=4)
    for _ in range(num_reads):
        read(timeline, size, r, P)
    state = json.loads(json.dumps(timeline.checkpoint()))
    expected = [read(timeline, size, r, P) for _ in range(8)]
    again = timeline_of(lengths, window, seed, max_sweeps=4) if is_new else timeline
    again.restore(state)
    assert again.checkpoint() == state
    assert [read(again, size, r, P) for _ in range(8)] == expected


@PATIENT
@given(CORPORA, WINDOWS, SEEDS, st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_a_change_of_size_loses_and_repeats_nothing(lengths, window, seed, sizes):
    timeline = timeline_of(lengths, window, seed, max_sweeps=2)
    found = []
    while (one := read(timeline, sizes[len(found) % len(sizes)])) is not None:
        found += one[0]
        sizes = [*sizes[1:], sizes[0]]
    whole = timeline_of(lengths, window, seed, max_sweeps=2)
    assert found == [entry for one in iter(lambda: read(whole, 5), None) for entry in one[0]]


@pytest.mark.parametrize("window", [None, Window(2, "chunks"), Window(5, "samples")], ids=str)
def test_a_partition_without_chunks_is_at_the_end(window):
    timeline = timeline_of([[1], [2]], window)
    assert read(timeline, 5, 2, 3) is None
    assert list(timeline.chunks_ahead(Partition(2, 3))) == []


@PATIENT
@given(CORPORA, WINDOWS, SEEDS, st.integers(1, 5), st.integers(1, 20), st.integers(0, 9))
def test_truncated_minibatches_deliver_every_sample_once_per_sweep(lengths, window, seed, steps, size, num_reads):
    timeline = timeline_of(lengths, window, seed, max_sweeps=2, truncation_length=steps)
    seen: Counter[Any] = Counter()
    number = 0
    while (found := timeline.read(size)) is not None:
        number += 1
        parts = found.parts
        for row in zip(found.chunks, found.sequences, parts.first_sample, parts.num_samples, strict=True):
            chunk, sequence, first, count = map(int, row)
            seen.update((chunk, sequence, sample) for sample in range(first, first + count))
        assert parts.num_slots == max(1, size // steps) and (parts.step + parts.num_samples <= steps).all()
        if number == num_reads:  # with the unfinished sequences of the slots, a state loses nothing
            state = json.loads(json.dumps(timeline.state()))
            timeline = timeline_of(lengths, window, seed, max_sweeps=2, truncation_length=steps)
            timeline.load_state(state)
            assert timeline.state() == state
    every = {(c, j, s): 2 for c, chunk in enumerate(lengths) for j, length in enumerate(chunk) for s in range(length)}
    assert seen == every


def test_chunks_ahead_are_the_chunks_that_are_read_next():
    fetched = []
    lengths = [np.full(3, 1, np.uint32) for _ in range(6)]

    def lengths_of(number):
        fetched.append(number)
        return lengths[number]

    timeline = UserTimeline(6, lengths_of, window=Window(2, "chunks"), seed=3, max_sweeps=2)
    timeline.read(1)
    ahead = [*timeline.needed_chunks().chunks, *timeline.chunks_ahead()]
    while timeline.read(4) is not None:
        pass
    assert fetched == ahead and len(ahead) == 12


def test_shuffling_in_the_core_is_equal_to_the_slow_twins() -> None:
    for count, seed in ((0, 0), (1, 5), (17, 3), (400, 2**64 - 1)):
        assert _core.shuffled(count, seed).tolist() == shuffled(list(range(count)), seed)
    assert _core.chunk_order(10, 5).tolist() == [3, 6, 2, 1, 5, 7, 8, 9, 0, 4]

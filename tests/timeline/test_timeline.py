"""The timeline: tables of known answers, invariants as properties, and comparisons with the slow timeline."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
from cntkio.errors import CheckpointError, ConfigError, CorpusError
from cntkio.timeline import (
    FULL_DATA_SWEEP,
    INFINITELY_REPEAT,
    WHOLE_DATA,
    GlobalPartition,
    Partition,
    Selection,
    Timeline,
    Window,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from slow.timeline import SlowTimeline, order_of_chunks, windows
from support.forks import in_a_fork
from support.rounds import rounds
from support.twister import draws

Chunks = list[list[int]]
ALL = Partition()


def timeline_of(chunks: Chunks, window: Window | None, **options: Any) -> Timeline:
    lengths = np.array([length for chunk in chunks for length in chunk], np.uint32)
    return Timeline(lengths, np.cumsum([0, *map(len, chunks)]), window=window, **options)


def make_slow(chunks: Chunks, window: Window | None, **options: Any) -> SlowTimeline:
    of_window = None if window is None else (window.size, window.unit)
    return SlowTimeline(chunks, of_window, is_keyed=window is not None and window.order == "keyed", **options)


def content(selection: Selection | None) -> tuple[list[Any], bool] | None:
    """Return a selection in the form of the slow timeline."""
    if selection is None:
        return None
    sequences = selection.sequences.tolist()
    if selection.parts is None:
        return sequences, selection.end_of_sweep
    parts = selection.parts
    columns = (parts.slot, sequences, parts.first_sample, parts.num_samples, parts.step, parts.continues)
    return list(zip(*map(list, columns), strict=True)), selection.end_of_sweep


def deliver(timeline: Timeline, size: int, partition: Partition = ALL, most: int = 10**6) -> list[list[int]]:
    """Return the sequences of each read until the end, or of `most` reads."""
    reads = itertools.islice(iter(lambda: timeline.read(size, partition), None), most)
    return [selection.sequences.tolist() for selection in reads]


def everything(timeline: Timeline, size: int, partition: Partition = ALL) -> list[int]:
    return list(itertools.chain.from_iterable(deliver(timeline, size, partition)))


some_windows = st.one_of(
    st.none(),
    st.builds(Window, st.integers(1, 12), st.just("chunks")),
    st.builds(Window, st.integers(1, 90), st.just("samples")),
    st.builds(Window, st.integers(1, 12), st.just("chunks"), st.just("keyed")),
    st.builds(Window, st.integers(1, 90), st.just("samples"), st.just("keyed")),
)
some_chunks = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=9)
some_seeds = st.one_of(st.integers(0, 5), st.integers(0, 2**64 - 1))
some_sizes = st.integers(1, 60)


# Tables


@settings(max_examples=300, deadline=None)
@given(
    chunks=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=2, max_size=9),
    length=st.one_of(st.none(), st.integers(1, 3)),
    window=some_windows,
    size=st.integers(1, 30),
    most=st.integers(0, 60),
    until=st.integers(0, 200),
    begin=st.integers(0, 3),
    crosses_sweeps=st.booleans(),
    counts_sequences=st.booleans(),
    size_counts=st.sampled_from(["own", "all"]),
    max_samples=st.one_of(st.none(), st.integers(1, 150)),
    partition=st.sampled_from([ALL, Partition(1, 2), GlobalPartition(1, 2)]),
)
def test_reads_that_are_passed_over_are_the_reads_that_are_made(
    chunks: Chunks, length: int | None, window: Window | None, size: int, most: int, until: int, begin: int,
    partition: Partition, **options: Any,
) -> None:  # fmt: skip
    if length is not None:
        chunks = [[length] * len(chunk) for chunk in chunks]
    lengths = np.array([length for chunk in chunks for length in chunk], np.uint32)
    if length is not None:
        lengths = np.broadcast_to(lengths[:1], len(lengths))
    passing, reading = (
        Timeline(lengths, np.cumsum([0, *map(len, chunks)]), window=window, seed=3, **options) for _ in range(2)
    )
    for timeline in (passing, reading):
        for _ in range(begin):
            timeline.read(size, partition)
    num_passed = passing.pass_over(size, partition, most, until)
    positions = [reading.position]
    while len(positions) <= most:
        before = reading.bookmark()
        if reading.read(size, partition) is None or reading.position > until:
            reading.go_back(before)
            break
        positions.append(reading.position)
    assert (num_passed, passing.position) == (len(positions) - 1, positions[-1])
    for _ in range(3):
        assert content(passing.read(size, partition)) == content(reading.read(size, partition))
        assert passing.state() == reading.state()


def test_the_generator_of_the_slow_timeline_is_standard() -> None:
    # The standard's own check value: the 10000th output of the default seed.
    assert next(itertools.islice(draws(5489), 9999, None)) == 9981545732273789042
    assert list(itertools.islice(draws(0), 3)) == [2947667278772165694, 18301848765998365067, 729919693006235833]
    assert list(itertools.islice(draws(1), 3)) == [2469588189546311528, 2516265689700432462, 8323445853463659930]
    assert list(itertools.islice(draws(5), 3)) == [12415856028556828342, 710100233786309728, 4155840352752516200]
    large = [2951362127131544956, 16078022706801350449, 17838830624798902827]
    assert list(itertools.islice(draws(2**40 + 3), 3)) == large


@pytest.mark.parametrize(
    ("seed", "order"),
    [
        (0, [4, 7, 3, 9, 1, 2, 8, 6, 5, 0]),
        (1, [1, 2, 8, 6, 5, 7, 0, 9, 3, 4]),
        (5, [3, 6, 2, 1, 5, 7, 8, 9, 0, 4]),
    ],
)
def test_chunks_come_in_the_known_order(seed: int, order: list[int]) -> None:
    one_each = timeline_of([[1]] * 10, Window(1, "chunks"), seed=seed, max_sweeps=1)
    assert deliver(one_each, 100) == [order]
    assert order_of_chunks(10, seed) == order


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (Window(3, "chunks"), [(0, 3), (0, 3), (1, 4), (2, 5), (3, 6), (3, 6)]),
        (Window(6, "samples"), [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6)]),
        (Window(9, "samples"), [(0, 1), (0, 2), (0, 3), (1, 4), (2, 5), (3, 6)]),
    ],
)
def test_windows_hold_the_known_chunks(window: Window, expected: list[tuple[int, int]]) -> None:
    assert windows([2] * 6, window.size, window.unit) == expected
    timeline = timeline_of([[1, 1]] * 6, window, max_sweeps=1)
    order = order_of_chunks(6, 0)
    for first, end in expected:
        assert timeline.needed_chunks().chunks == order[first:end]
        timeline.read(2)


def test_the_worked_example_of_the_page_is_correct() -> None:
    timeline = timeline_of([[1, 1]] * 6, Window(3, "chunks"), max_sweeps=3)
    #            C0 D1 D0 B1 C1 B0 A1 E1 E0 A0 F0 F1
    assert deliver(timeline, 12) == [
        [4, 7, 6, 3, 5, 2, 1, 9, 8, 0, 10, 11],
        [5, 4, 9, 8, 2, 3, 10, 11, 7, 0, 1, 6],
        [9, 4, 5, 8, 10, 6, 7, 11, 3, 2, 1, 0],
    ]


@pytest.mark.parametrize(
    ("reads", "size", "expected"),
    [
        ("sequences that fit are taken, the first that does not opens the next read", 5, [[0, 1], [2], [3, 4]]),
        ("a size of 1 takes a sequence at a time", 1, [[0], [1], [2], [3], [4]]),
        ("a sweep in one read", 100, [[0, 1, 2, 3, 4]]),
    ],
)
def test_reads_take_whole_sequences(reads: str, size: int, expected: list[list[int]]) -> None:
    assert deliver(timeline_of([[2, 3], [9, 1], [1]], None, max_sweeps=1), size) == expected, reads


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ({"max_samples": 1}, [[0]]),
        ({"max_samples": 2}, [[0, 1]]),
        ({"max_samples": 3}, [[0, 1]]),
        ({"max_samples": 4}, [[0, 1], [2]]),
        ({"max_samples": 6}, [[0, 1], [2, 0]]),
        ({"max_samples": FULL_DATA_SWEEP}, [[0, 1], [2]]),
        ({"max_samples": INFINITELY_REPEAT, "max_sweeps": 1}, [[0, 1], [2]]),
        ({"max_sweeps": 2}, [[0, 1], [2, 0], [1], [2]]),
        ({"max_sweeps": 0}, []),
    ],
)
def test_limits_end_the_data(limit: dict[str, int], expected: list[list[int]]) -> None:
    timeline = timeline_of([[1, 2], [2]], None, **limit)
    assert deliver(timeline, 3) == expected
    assert timeline.read(3) is None


def test_a_limit_of_two_to_the_62_counts_samples() -> None:
    timeline = timeline_of([[1], [1]], None, max_samples=2**62 - 1)
    assert deliver(timeline, 2, most=5) == [[0, 1]] * 5


def test_sizes_above_two_to_the_31_are_not_cut() -> None:
    for window in (None, Window(1, "chunks")):
        timeline = timeline_of([[1], [1]], window, max_sweeps=3)
        assert len(deliver(timeline, 2**32 + 1)[0]) == 6
        assert timeline.position == 6


def test_an_empty_read_is_not_the_end() -> None:
    # The share of partition 1 shrinks when only sequences of other partitions are left. The next sweep begins with a
    # long sequence.
    chunks = [[1, 1], [9, 9], [1, 1], [9, 9]]
    found = 0
    for seed in range(40):
        timeline, slow = (maker(chunks, Window(1, "chunks"), seed=seed) for maker in (timeline_of, make_slow))
        for step, (size, index) in enumerate(itertools.product((20, 2), (0, 1, 1, 0, 1))):
            selection, expected = timeline.read(size, Partition(index, 2)), slow.read(size, index, 2)
            assert content(selection) == expected, (seed, step)
            assert selection is not None
            if not len(selection.sequences):
                found += 1
                assert not selection.end_of_sweep
    assert found


def test_a_partition_beyond_the_chunks_ends_at_once() -> None:
    assert timeline_of([[1, 2]], Window(1, "chunks")).read(4, Partition(1, 2)) is None


@pytest.mark.parametrize(
    ("index", "expected"), [(0, [[0], [2], [1], [0]]), (1, [[1], [0], [2], [1]])], ids=["first", "second"]
)
def test_turns_in_order_continue_in_the_next_sweep(index: int, expected: list[list[int]]) -> None:
    assert deliver(timeline_of([[1, 1, 1]], None), 2, Partition(index, 2), most=4) == expected


def test_turns_in_order_begin_again_after_a_restore() -> None:
    timeline = timeline_of([[1, 1, 1]], None)
    timeline.go_to(3)
    assert deliver(timeline, 2, Partition(0, 2), most=1) == [[0]]


def test_a_restore_within_a_sequence_continues_with_the_next_sequence() -> None:
    timeline = timeline_of([[3, 3], [3]], None)
    timeline.go_to(4)
    assert timeline.position == 6
    assert deliver(timeline, 3, most=1) == [[2]]


def test_classic_reads_stop_at_the_sweep_and_count_all_partitions() -> None:
    timeline = timeline_of([[1, 1, 1], [1, 1]], None, crosses_sweeps=False, size_counts="all")
    assert deliver(timeline, 4, Partition(0, 2), most=3) == [[0, 2], [4], [1, 3]]


def test_a_classic_epoch_begins_after_the_last_sequence_of_the_previous() -> None:
    timeline = timeline_of([[3, 3], [3]], None, crosses_sweeps=False, size_counts="all")
    epochs = []
    for epoch in range(3):
        timeline.begin_epoch(epoch * 4, epoch * 4 + 4)
        epochs.append(deliver(timeline, 3))
    assert epochs == [[[0], [1]], [[2]], [[0]]]


def test_truncated_parts_continue_in_the_same_slot() -> None:
    timeline = timeline_of([[5, 1], [3]], None, truncation_length=2, max_sweeps=1)
    reads = [content(selection) for selection in iter(lambda: timeline.read(4), None)]
    assert reads == [
        ([(0, 0, 0, 2, 0, True), (1, 1, 0, 1, 0, False), (1, 2, 0, 1, 1, True)], False),
        ([(0, 0, 2, 2, 0, True), (1, 2, 1, 2, 0, False)], True),
        ([(0, 0, 4, 1, 0, False)], False),
    ]


def test_a_state_keeps_the_slots_and_a_position_does_not() -> None:
    def truncated() -> Timeline:
        return timeline_of([[5, 5]], None, truncation_length=2)

    timeline = truncated()
    timeline.read(2)
    state, position = timeline.state(), timeline.position
    bare, full = truncated(), truncated()
    bare.go_to(position)
    full.load_state(json.loads(json.dumps(state)))
    assert content(bare.read(2)) == ([(0, 1, 0, 2, 0, True)], False)
    assert content(full.read(2)) == content(timeline.read(2)) == ([(0, 0, 2, 2, 0, True)], False)


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: Partition(2, 2), ConfigError, "partition_index 2 is outside 0..1"),
    (lambda: Partition(-1, 2), ConfigError, "partition_index -1"),
    (lambda: Partition(0, 0), ConfigError, "num_data_partitions is 0"),
    (lambda: timeline_of([[1]], None, max_samples=1, max_sweeps=1), ConfigError, "exclude each other"),
    (lambda: timeline_of([[1]], None, max_samples=-1), ConfigError, "max_samples is -1"),
    (lambda: timeline_of([[1]], None, seed=2**64), ConfigError, "seed is 18446744073709551616"),
    (lambda: timeline_of([], None), CorpusError, "no sequences"),
    (lambda: timeline_of([[1, 0]], None), CorpusError, "sequence number 1 counts for no samples"),
    (lambda: timeline_of([[1]], None).read(0), ConfigError, "minibatch_size_in_samples is 0"),
    (lambda: timeline_of([[1]], None, max_samples=0).read(1), ConfigError, "max_samples is 0"),
    (
        lambda: timeline_of([[1]], Window(1, "chunks"), max_samples=2**63).read(1),
        ConfigError,
        "randomized source counts up to",
    ),
    (lambda: timeline_of([[2]], Window(1, "chunks"), max_sweeps=2**62).read(1), ConfigError, "would end at sample"),
    (
        lambda: timeline_of([[1]], None, truncation_length=4).read(7, Partition(0, 2)),
        ConfigError,
        "2 partitions share 1 slots",
    ),
    (lambda: timeline_of([[1]], None).go_to(-1), CheckpointError, "position -1"),
    (lambda: timeline_of([[1]], None).go_to(2**64), CheckpointError, "is outside"),
    (lambda: timeline_of([[1]], None).load_state({}), CheckpointError, "the state has no 'position'"),
    (lambda: timeline_of([[1]], None).load_state({"position": "3"}), CheckpointError, "the state's"),
    (
        lambda: timeline_of([[1]], None).load_state({"position": 3, "minibatch_size": 1, "partition": [1, 1]}),
        CheckpointError,
        "the state's 'partition'",
    ),
]


def truncated_state(slots: Any) -> dict[str, Any]:
    return {"position": 2, "minibatch_size": 2, "partition": [0, 1], "count": 1, "slots": slots}


for slots, message in (
    ([[[1, 0, False]]], "continues sequences that are not among the 1"),
    ([[[0, 5, False]]], "continues at samples"),
    ([[], []], "holds 2 slots, but there are 1"),
    ([[0]], "the state's 'slots'"),
):
    ERRORS.append(
        (
            lambda slots=slots: timeline_of([[2]], None, truncation_length=2).load_state(truncated_state(slots)),
            CheckpointError,
            message,
        )
    )


@pytest.mark.parametrize(("wrong", "kind", "message"), ERRORS)
def test_errors_name_the_option_or_the_data(wrong: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        wrong()
    assert issubclass(kind, ValueError) or kind is CorpusError


# Invariants


@given(chunks=some_chunks, window=some_windows, seed=some_seeds, size=some_sizes, sweeps=st.integers(1, 4))
def test_every_sweep_delivers_each_sequence_once(
    chunks: Chunks, window: Window | None, seed: int, size: int, sweeps: int
) -> None:
    delivered = everything(timeline_of(chunks, window, seed=seed, max_sweeps=sweeps), size)
    count = sum(map(len, chunks))
    assert len(delivered) == sweeps * count
    for sweep in range(sweeps):
        assert sorted(delivered[sweep * count : (sweep + 1) * count]) == list(range(count))


@given(
    chunks=some_chunks, window=some_windows, seed=some_seeds, size=some_sizes, count=st.integers(1, 5), data=st.data()
)
def test_partitions_together_deliver_every_sequence_once(
    chunks: Chunks, window: Window | None, seed: int, size: int, count: int, data: st.DataObject
) -> None:
    sweeps = data.draw(st.integers(1, 3))
    delivered: Counter[int] = Counter()
    for index in range(count):
        timeline = timeline_of(chunks, window, seed=seed, max_sweeps=sweeps)
        delivered.update(everything(timeline, size, Partition(index, count)))
    assert delivered == dict.fromkeys(range(sum(map(len, chunks))), sweeps)


@given(chunks=some_chunks, window=some_windows, seed=some_seeds, data=st.data())
def test_a_state_continues_as_if_nothing_had_happened(
    chunks: Chunks, window: Window | None, seed: int, data: st.DataObject
) -> None:
    options = {"seed": seed, "truncation_length": data.draw(st.sampled_from([0, 0, 1, 3]))}
    count = data.draw(st.integers(1, 3))
    partition = Partition(data.draw(st.integers(0, count - 1)), count)
    size = data.draw(st.integers(3 * count, 60))
    timeline, other = timeline_of(chunks, window, **options), timeline_of(chunks, window, **options)
    other.read(data.draw(st.integers(9, 60)))
    for _ in range(data.draw(st.integers(0, 12))):
        timeline.read(size, partition)
    state = json.loads(json.dumps(timeline.state()))
    expected = [content(timeline.read(size, partition)) for _ in range(4)]
    for again in (other, timeline_of(chunks, window, **options)):
        again.load_state(state)
        assert [content(again.read(size, partition)) for _ in range(4)] == expected
    timeline.load_state(state)
    bookmark = timeline.bookmark()
    assert [content(timeline.read(size, partition)) for _ in range(4)] == expected
    timeline.go_back(bookmark, in_child=True)
    assert [content(timeline.read(size, partition)) for _ in range(4)] == expected


@given(chunks=some_chunks, window=some_windows, seed=some_seeds, size=some_sizes, num_reads=st.integers(0, 12))
def test_a_position_and_the_settings_are_the_whole_state(
    chunks: Chunks, window: Window | None, seed: int, size: int, num_reads: int
) -> None:
    timeline, again = timeline_of(chunks, window, seed=seed), timeline_of(chunks, window, seed=seed)
    for _ in range(num_reads):
        timeline.read(size)
    again.restore(timeline.checkpoint())
    assert [content(again.read(size)) for _ in range(4)] == [content(timeline.read(size)) for _ in range(4)]


@given(chunks=some_chunks, window=some_windows, seed=some_seeds, sizes=st.lists(some_sizes, min_size=1, max_size=8))
def test_the_order_does_not_depend_on_the_calls_before(
    chunks: Chunks, window: Window | None, seed: int, sizes: list[int]
) -> None:
    at_once = everything(timeline_of(chunks, window, seed=seed, max_sweeps=2), 10**6)
    timeline = timeline_of(chunks, window, seed=seed, max_sweeps=2)
    bit_by_bit: list[int] = []
    for size in itertools.cycle(sizes):
        list(itertools.islice(timeline.chunks_ahead(), size))
        bookmark = timeline.bookmark()
        timeline.read(7 * size)
        timeline.go_back(bookmark)
        selection = timeline.read(size)
        if selection is None:
            break
        bit_by_bit.extend(selection.sequences.tolist())
    assert bit_by_bit == at_once


@given(
    chunks=some_chunks, window=some_windows, seed=some_seeds, size=some_sizes, most=st.integers(1, 9),
    index=st.integers(0, 2), crosses_sweeps=st.booleans(), size_counts=st.sampled_from(["own", "all"]),
)  # fmt: skip
def test_several_reads_at_once_equal_single_reads(
    chunks: Chunks,
    window: Window | None,
    seed: int,
    size: int,
    most: int,
    index: int,
    crosses_sweeps: bool,
    size_counts: str,
) -> None:
    options = {"seed": seed, "max_sweeps": 2, "crosses_sweeps": crosses_sweeps, "size_counts": size_counts}
    one_by_one, at_once = timeline_of(chunks, window, **options), timeline_of(chunks, window, **options)
    partition = Partition(index, 3)
    while (reads := at_once.read_several(size, partition, most)) is not None:
        assert 1 <= len(reads.bookmarks) <= most and len(reads.bounds) == len(reads.bookmarks) + 1
        refs = reads.selection.refs
        assert refs is not None
        each = zip(itertools.pairwise(reads.bounds), reads.ends_of_sweep, reads.bookmarks, strict=True)
        for number, ((first, last), end, bookmark) in enumerate(each, 1):
            needed = one_by_one.needed_chunks(partition)
            selection = one_by_one.read(size, partition)
            assert selection is not None and bookmark == one_by_one.bookmark()
            assert content(selection) == (reads.selection.sequences[first:last].tolist(), end)
            assert [refs.chunk_ids[index] for index in refs.chunk_indices[first:last]] == selection.chunks.tolist()
            if number < len(reads.bookmarks):
                assert one_by_one.needed_chunks(partition) == needed
        assert [refs.chunk_indices.tolist().index(index) for index in range(len(refs.chunk_ids))] == refs.firsts
    assert one_by_one.read(size, partition) is None


@given(
    chunks=some_chunks, window=some_windows, seed=some_seeds, size=some_sizes, count=st.integers(1, 3), data=st.data()
)
def test_chunks_are_planned_before_they_are_needed(
    chunks: Chunks, window: Window | None, seed: int, size: int, count: int, data: st.DataObject
) -> None:
    partition = Partition(data.draw(st.integers(0, count - 1)), count)
    steps = data.draw(st.sampled_from([0, 2]))
    timeline = timeline_of(chunks, window, seed=seed, max_sweeps=3, truncation_length=steps)
    size = max(size, 2 * count)
    owner = np.repeat(np.arange(len(chunks)), [len(chunk) for chunk in chunks])
    while True:
        ahead = [*timeline.needed_chunks(partition).chunks, *timeline.chunks_ahead(partition)]
        sweep = timeline.position // timeline.num_samples
        selection = timeline.read(size, partition)
        if selection is None:
            break
        assert selection.chunks.tolist() == owner[selection.sequences].tolist()
        if timeline.position < (sweep + 2) * timeline.num_samples:
            assert set(selection.chunks.tolist()) <= set(ahead)
    assert timeline.needed_chunks(partition).chunks == list(timeline.chunks_ahead(partition)) == []


def test_no_more_chunks_are_needed_than_the_window_holds() -> None:
    timeline = timeline_of([[1] * 5] * 100, Window(8, "chunks"), max_sweeps=2)
    while timeline.read(3, Partition(1, 3)) is not None:
        assert len(timeline.needed_chunks(Partition(1, 3)).chunks) <= 3


# Compared with the slow timeline


def random_setting(chance: random.Random) -> tuple[Chunks, Window | None, dict[str, Any]]:
    num_chunks = chance.choice([1, 2, 3, 5, 8, 13, 40])
    longest, largest = chance.choice([1, 3, 9]), chance.choice([1, 3, 8])
    chunks = [[chance.randint(1, longest) for _ in range(chance.randint(1, largest))] for _ in range(num_chunks)]
    samples = sum(map(sum, chunks))
    window = chance.choice(
        [
            None,
            Window(chance.randint(1, 2 * num_chunks), "chunks"),
            Window(chance.randint(1, 2 * samples), "samples"),
        ]
    )
    limit = chance.choice([{}, {"max_samples": chance.randint(1, 4 * samples)}, {"max_sweeps": chance.randint(0, 4)}])
    options: dict[str, Any] = {"seed": chance.choice([0, 1, chance.getrandbits(64)]), **limit}
    if chance.random() < 0.3:
        options["truncation_length"] = chance.randint(1, 6)
    elif chance.random() < 0.3:
        options["crosses_sweeps"] = False
        options["size_counts"] = chance.choice(["own", "all"])
    if not options.get("truncation_length"):
        options["counts_sequences"] = chance.random() < 0.3
    return chunks, window, options


def compare(number: int) -> None:
    chance = random.Random(number)
    chunks, window, options = random_setting(chance)
    timeline, slow = timeline_of(chunks, window, **options), make_slow(chunks, window, **options)
    samples, steps = timeline.num_samples, options.get("truncation_length", 0)
    size, partition = chance.randint(1, 3 * samples), Partition()
    positions = [0]
    for step in range(chance.randint(3, 25)):
        if chance.random() < 0.2:
            size = chance.randint(1, chance.choice([3, 20, 3 * samples]))
        if chance.random() < 0.15:
            count = chance.randint(1, 4)
            partition = Partition(chance.randrange(count), count)
        size = max(size, steps * partition.count)
        if chance.random() < 0.1:
            position = chance.choice([*positions, chance.randint(0, 3 * samples)])
            if chance.random() < 0.5:
                timeline = timeline_of(chunks, window, **options)
            timeline.go_to(position)
            slow.restore(position)
            assert timeline.position == slow.position
        if chance.random() < 0.1:
            bookmark = timeline.bookmark()
            timeline.read(chance.randint(1, 9) * max(steps, 1))
            timeline.go_back(bookmark)
        expected = slow.read(size, partition.index, partition.count)
        assert content(timeline.read(size, partition)) == expected, (number, step)
        assert timeline.position == slow.position, (number, step)
        positions.append(slow.position)


@pytest.mark.parametrize("hundred", range(rounds(30)))
def test_the_fast_timeline_agrees_with_the_slow_timeline(hundred: int) -> None:
    for number in range(100 * hundred, 100 * hundred + 100):
        compare(number)


# Size, memory, life


def large_table(num_sequences: int, num_chunks: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    lengths = np.random.default_rng(0).integers(1, 40, num_sequences).astype(np.uint32)
    return lengths, np.linspace(0, num_sequences, num_chunks + 1).astype(np.int64)


def test_memory_depends_on_the_window_and_not_on_sweeps() -> None:
    timeline = Timeline(*large_table(200_000, 400), window=Window(8, "chunks"), max_sweeps=3)
    held = []
    while timeline.read(100_000) is not None:
        held.append(timeline.num_bytes)
    assert max(held) < 200_000
    assert max(held[len(held) // 3 :]) <= 1.05 * max(held[: len(held) // 3])


def test_a_window_over_all_data_needs_four_bytes_a_sequence() -> None:
    timeline = Timeline(*large_table(200_000, 100), window=WHOLE_DATA)
    timeline.read(1)
    assert timeline.num_bytes < 4.2 * 200_000


def test_samples_are_counted_beyond_32_bits() -> None:
    chunks = [[2**32 - 1, 2**32 - 1], [2**32 - 1]]
    for window in (None, Window(1, "chunks"), Window(2**33, "samples")):
        timeline, slow = timeline_of(chunks, window, max_sweeps=3), make_slow(chunks, window, max_sweeps=3)
        assert timeline.num_samples == 3 * (2**32 - 1)
        for _ in range(4):
            assert content(timeline.read(2**33)) == slow.read(2**33, 0, 1)
            assert timeline.position == slow.position


@pytest.mark.usefixtures("interruptible")
def test_a_signal_stops_a_read_and_the_timeline_does_not_move() -> None:
    timeline = Timeline(*large_table(1000, 10), window=Window(3, "chunks"))
    first = content(timeline.read(100))
    position = timeline.position
    expected = content(timeline.read(100))
    timeline.go_to(position)
    timeline.read(1, Partition(1, 2))
    timeline.go_to(position)

    def interrupt() -> None:
        time.sleep(0.2)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        thread.start()
        # Partition 9 of 10 billion samples: practically endless.
        timeline.read(10**15, Partition(9, 10))
    thread.join()
    assert timeline.position == position
    timeline.go_to(position)
    assert first is not None
    assert content(timeline.read(100)) == expected


@pytest.mark.usefixtures("interruptible")
def test_a_signal_handler_that_uses_the_moving_timeline_gets_an_error() -> None:
    # A wait for the end of the interrupted read would block the process forever, so a fork of it waits.
    def read_with_a_handler() -> None:
        timeline = Timeline(*large_table(1000, 10), window=Window(3, "chunks"))
        position = timeline.position
        handler = signal.signal(signal.SIGALRM, lambda *_: timeline.position)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(RuntimeError, match="a signal handler cannot use the timeline"):
                # Partition 9 of 10 billion samples: practically endless.
                timeline.read(10**15, Partition(9, 10))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
        assert timeline.position == position

    assert in_a_fork(read_with_a_handler) == "None"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_continues_while_another_thread_reads() -> None:
    timeline = Timeline(*large_table(2_000_000, 1000), window=Window(300, "chunks"))
    timeline.read(100)
    bookmark = timeline.bookmark()
    expected = content(timeline.read(100))
    timeline.go_back(bookmark)
    thread = threading.Thread(target=timeline.read, args=(3 * 10**7,))  # a few tenths of a second
    thread.start()
    time.sleep(0.05)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        timeline.go_back(bookmark, in_child=True)
        os._exit(0 if content(timeline.read(100)) == expected else 1)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


settings.register_profile("timeline", deadline=None)
settings.load_profile("timeline")


def test_a_jump_into_a_large_window_finds_its_reads_without_the_others() -> None:
    table = np.broadcast_to(np.array([2], np.uint32), 1_200_000), np.array([0, 5, 700_000, 1_200_000])
    jumping, walking = (Timeline(*table, window=Window(9, "chunks"), seed=4) for _ in range(2))
    assert jumping.pass_over(1000, ALL, 1000, 2**40) == 1000
    walking.go_to(1_000_000)
    # More sequences than are found at once, so the rest comes from the whole shuffle.
    for _ in range(40):
        assert content(jumping.read(1000)) == content(walking.read(1000))

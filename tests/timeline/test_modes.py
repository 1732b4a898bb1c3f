"""Modes of reading of the main timeline, and the plan of chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cntkio.errors import ConfigError
from cntkio.timeline import WHOLE, BalancedPartition, Partition, Selection, Timeline, Window
from hypothesis import given, settings
from hypothesis import strategies as st

SOME_CHUNKS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=9)
SOME_WINDOWS = st.none() | st.builds(
    Window, st.integers(1, 12), st.sampled_from(["chunks", "samples"]), st.sampled_from(["cntk", "keyed"])
)
PATIENT = settings(deadline=None)


def timeline_of(chunks: list[list[int]], window: Window | None = None, **options: Any) -> Timeline:
    lengths = np.array([length for chunk in chunks for length in chunk], np.uint32)
    return Timeline(lengths, np.cumsum([0, *map(len, chunks)]), window=window, **options)


def deliver(timeline: Timeline, size: int, partition: Partition = WHOLE) -> list[list[int]]:
    return [selection.sequences.tolist() for selection in iter(lambda: timeline.read(size, partition), None)]


# Only full reads


def test_a_short_read_at_the_end_of_a_sweep_is_skipped() -> None:
    timeline = timeline_of([[1] * 5], max_sweeps=3, crosses_sweeps=False, only_full=True)
    assert deliver(timeline, 2) == [[0, 1], [2, 3]] * 3


def test_a_sweep_shorter_than_the_size_is_delivered() -> None:
    timeline = timeline_of([[1] * 5], max_sweeps=2, crosses_sweeps=False, only_full=True)
    assert deliver(timeline, 6) == [[0, 1, 2, 3, 4]] * 2
    assert timeline_of([[1] * 5], max_sweeps=1, only_full=True).read(5) is not None


@PATIENT
@given(SOME_CHUNKS, SOME_WINDOWS, st.integers(1, 20), st.integers(0, 9))
def test_only_the_full_reads_of_all_reads_are_delivered(
    chunks: list[list[int]], window: Window | None, size: int, num_reads: int
) -> None:
    ones = [[1] * sum(chunk) for chunk in chunks]
    options: dict[str, Any] = {"max_sweeps": 2, "crosses_sweeps": False, "size_counts": "all"}
    every = deliver(timeline_of(ones, window, **options), size)
    timeline = timeline_of(ones, window, only_full=True, **options)
    expected = [read for read in every if len(read) == size] if size <= timeline.num_samples else every
    delivered = []
    for _ in range(num_reads):
        selection = timeline.read(size)
        if selection is not None:
            delivered.append(selection.sequences.tolist())
    state = timeline.state()
    again = timeline_of(ones, window, only_full=True, **options)
    again.load_state(state)
    assert [*delivered, *deliver(again, size)] == expected


# The size gives the truncation length


def test_rows_give_the_truncation_length() -> None:
    timeline = timeline_of([[5, 5, 5]], num_rows=2)
    for size, num_steps in ((6, 3), (4, 2), (1, 1)):
        selection = timeline.read(size)
        assert selection is not None and selection.parts is not None
        assert (selection.parts.num_slots, selection.parts.num_steps) == (max(1, size // num_steps), num_steps)


def test_an_epoch_changes_the_rows_and_going_back_undoes_it() -> None:
    timeline = timeline_of([[5, 5, 5]], num_rows=2)

    def steps() -> int:
        selection = timeline.read(6)
        assert selection is not None and selection.parts is not None
        return selection.parts.num_steps

    assert steps() == 3
    before = timeline.bookmark()
    timeline.begin_epoch(0, 100, num_rows=3)
    assert steps() == 2
    timeline.go_back(before)
    assert steps() == 3


def test_a_refused_size_changes_nothing() -> None:
    timeline = timeline_of([[5, 5, 5]], num_rows=4)
    before = timeline.read(8)
    state = timeline.state()
    with pytest.raises(ConfigError, match="5 partitions share 4 slots"):
        timeline.read(8, Partition(0, 5))
    assert timeline.state() == state
    first, second = timeline.read(8), timeline_of([[5, 5, 5]], num_rows=4)
    second.load_state(state)
    assert before is not None and first is not None
    assert content(first) == content(second.read(8))


def content(selection: Selection | None) -> Any:
    assert selection is not None and selection.parts is not None
    parts = selection.parts
    columns = (selection.sequences, parts.slot, parts.first_sample, parts.num_samples, parts.step, parts.continues)
    return [column.tolist() for column in columns]


def test_parts_carry_the_lengths_of_their_sequences() -> None:
    timeline = timeline_of([[5, 1], [3]], truncation_length=2, max_sweeps=1)
    for selection in iter(lambda: timeline.read(4), None):
        assert selection.parts is not None
        assert selection.parts.lengths.tolist() == [[5, 1, 3][index] for index in selection.sequences]


# Parts of selections


def test_a_part_of_a_selection_keeps_its_columns_together() -> None:
    timeline = timeline_of([[5, 1], [3]], truncation_length=2, max_sweeps=1)
    selection = timeline.read(4)
    assert selection is not None and selection.parts is not None
    mask = np.array([False, True, True])
    rest = selection.where(mask)
    assert rest.parts is not None
    assert rest.sequences.tolist() == [1, 2] and rest.chunks.tolist() == [0, 1]
    assert (rest.position, rest.end_of_sweep, rest.refs) == (selection.position, selection.end_of_sweep, None)
    assert (rest.parts.num_slots, rest.parts.num_steps) == (2, 2)
    assert [column[1:] for column in content(selection)] == content(rest)
    assert rest.parts.lengths.tolist() == [1, 3]


# Plans


@PATIENT
@given(SOME_CHUNKS, SOME_WINDOWS, st.integers(1, 20), st.integers(1, 3), st.sampled_from([0, 2]))
def test_a_plan_has_a_new_version_whenever_its_chunks_change(
    chunks: list[list[int]], window: Window | None, size: int, count: int, steps: int
) -> None:
    timeline = timeline_of(chunks, window, max_sweeps=3, truncation_length=steps)
    partition, size = Partition(0, count), max(size, 2 * count)
    plans = [timeline.needed_chunks(partition)]
    while timeline.read_several(size, partition, 4) is not None:
        plan = timeline.needed_chunks(partition)
        assert plan is timeline.needed_chunks(partition)
        assert plan.version >= plans[-1].version
        if plan.chunks != plans[-1].chunks:
            assert plan.version > plans[-1].version
        plans.append(plan)


def test_a_plan_stays_while_the_window_stays() -> None:
    timeline = timeline_of([[1] * 4] * 3, Window(3, "chunks"), max_sweeps=1)
    plans = [timeline.needed_chunks()]
    for _ in range(3):
        timeline.read(1)
        plans.append(timeline.needed_chunks())
    assert all(plan is plans[0] for plan in plans)


# Balanced rounds


def test_going_back_restores_the_turn_of_a_worker() -> None:
    timeline = timeline_of([[1] * 12], max_sweeps=1)
    partition = BalancedPartition(0, 2, "drop", 1, 2)
    first = timeline.read(2, partition)
    bookmark, state = timeline.bookmark(), timeline.state()
    rest = deliver(timeline, 2, partition)
    timeline.go_back(bookmark)
    assert timeline.state() == state
    assert first is not None and first.sequences.tolist() == [2]
    assert deliver(timeline, 2, partition) == rest == [[6], [10]]


def test_very_many_partitions_share_the_last_sequences() -> None:
    timeline = timeline_of([[1, 1]], max_sweeps=1)
    assert deliver(timeline, 2, BalancedPartition(1, 1000, "repeat")) == [[1]]

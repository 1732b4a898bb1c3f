"""Global partitions that are dealt ahead: the same reads as without, and the parts of chunks that they need."""

import contextlib
from typing import Any

import numpy as np
import pytest
from cntkio import Budget, ConfigError, GlobalPartition
from cntkio.timeline import Partition, Reads, Timeline, Window
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rounds import rounds

properties = settings(max_examples=rounds(150), suppress_health_check=list(HealthCheck))
LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=60)
PARTITIONS = st.builds(
    lambda index, more, deal, remainder, worker, workers: GlobalPartition(
        index, index + more, deal, remainder, worker % workers, workers
    ),
    st.integers(0, 4),
    st.integers(1, 4),
    st.sampled_from(["length", "area"]),
    st.sampled_from(["empty", "merge"]),
    st.integers(0, 2),
    st.integers(1, 3),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(1, 30)),
        st.tuples(st.just("back"), st.integers(0, 9)),
        st.tuples(st.just("hold"), st.integers(0, 9)),
        st.tuples(st.just("state"), st.just(0)),
        st.tuples(st.just("size"), st.integers(1, 40)),
        st.tuples(st.just("pool"), st.integers(1, 15)),
        st.tuples(st.just("epoch"), st.integers(0, 60)),
        st.tuples(st.just("plan"), st.integers(0, 9)),
        st.tuples(st.just("whole"), st.just(0)),
        st.tuples(st.just("refused"), st.just(0)),
    ),
    max_size=40,
)


def starts_of(lengths: list[int], chunk_size: int) -> np.ndarray:
    return np.append(np.arange(0, len(lengths), chunk_size), len(lengths))


def read_of(timeline: Timeline, size: int | Budget, partition: Partition) -> Reads | str | None:
    """Return a read, or why it is refused: a pool may be larger than the window, or not finished."""
    try:
        return timeline.read_several(size, partition, 1)
    except ConfigError as error:
        return str(error)


def sequences_of(timeline: Timeline, reads: Reads, starts: np.ndarray, partition: Partition) -> list[int]:
    """Return the sequences of the parts of a plan."""
    refs = reads.selection.refs
    assert refs is not None
    plan = timeline.needed_chunks(partition)
    found = np.empty(len(refs.chunk_indices), np.int64)
    for number, chunk_id in enumerate(refs.chunk_ids):
        mine = refs.chunk_indices == number
        if plan.parts is None:
            found[mine] = starts[chunk_id] + refs.indices_in_chunk[mine]
        else:
            part = plan.parts.part(chunk_id)
            assert part.sequences.dtype == np.uint32 and (np.diff(part.sequences.astype(np.int64)) > 0).all()
            found[mine] = starts[part.chunk_id] + part.sequences[refs.indices_in_chunk[mine]]
    return found.tolist()  # type: ignore[no-any-return]


@properties
@given(LENGTHS, st.integers(1, 9), st.integers(0, 5), PARTITIONS, st.integers(1, 40), STEPS)
def test_reads_dealt_ahead_are_the_reads_dealt_in_turn(
    lengths: list[int], chunk_size: int, window: int, partition: Any, size: int, steps: list[tuple[str, int]]
) -> None:
    starts = starts_of(lengths, chunk_size)
    options: dict[str, Any] = {"window": Window(window, "chunks") if window else None, "max_sweeps": 3}
    timelines = [
        Timeline(np.array(lengths, np.uint32), starts, loads_parts=loads_parts, **options)
        for loads_parts in (False, True)
    ]
    bookmarks: list[Any] = [[timeline.bookmark() for timeline in timelines]]
    now: Partition = partition
    now_size: int | Budget = size
    for step, number in steps:
        if step == "read":
            both = [read_of(timeline, now_size, now) for timeline in timelines]
            if not isinstance(both[0], Reads) or not isinstance(both[1], Reads):
                assert both[0] == both[1]
            else:
                assert both[1].selection.sequences.tolist() == both[0].selection.sequences.tolist()
                assert sequences_of(timelines[1], both[1], starts, now) == both[0].selection.sequences.tolist()
                assert both[1].ends_of_sweep == both[0].ends_of_sweep
            bookmarks.append([timeline.bookmark() for timeline in timelines])
        elif step == "back":
            bookmarks = bookmarks[: max(len(bookmarks) - number, 1)]
            for timeline, bookmark in zip(timelines, bookmarks[-1], strict=True):
                timeline.go_back(bookmark)
        elif step == "hold":
            bookmarks = bookmarks[min(number, len(bookmarks) - 1) :]
            for timeline, bookmark in zip(timelines, bookmarks[0], strict=True):
                timeline.hold(bookmark)
        elif step == "state":
            assert timelines[0].state() == timelines[1].state()
            state = timelines[0].state()
            for timeline in timelines:
                timeline.load_state(state)
            bookmarks.append([timeline.bookmark() for timeline in timelines])
        elif step == "epoch":
            for timeline in timelines:
                timeline.begin_epoch(number, number + 100)
            bookmarks = [[timeline.bookmark() for timeline in timelines]]
        elif step == "plan":
            plan = timelines[1].needed_chunks(now)
            ahead = [*zip(range(number), timelines[1].chunks_ahead(now), strict=False)]
            assert len(ahead) <= number and len(set(plan.chunks)) == len(plan.chunks)
        elif step == "whole":
            now = partition if now is not partition else Partition()
        elif step == "refused":
            for timeline in timelines:
                with contextlib.suppress(ConfigError):
                    refused = timeline.read(Budget(samples=9), GlobalPartition(0, 2, remainder="merge"))
                    assert refused is None and timeline.position >= timeline.end
        elif step == "pool":
            limits = {"rows": 2, "row_length": 6} if number % 3 == 0 else {"samples": number, "oversize": "alone"}
            now_size = Budget(pool=number, **limits)
        else:
            now_size = number
        assert timelines[0].position == timelines[1].position


@properties
@given(LENGTHS, st.integers(1, 9), st.integers(0, 5), st.integers(2, 5), st.integers(1, 40), st.integers(1, 3))
def test_parts_of_all_ranks_make_up_each_chunk_once_a_sweep(
    lengths: list[int], chunk_size: int, window: int, count: int, size: int, num_workers: int
) -> None:
    starts = starts_of(lengths, chunk_size)
    owned: dict[int, list[int]] = {}
    for index, worker in np.ndindex(count, num_workers):
        partition = GlobalPartition(index, count, worker=worker, num_workers=num_workers)
        order = Window(window, "chunks") if window else None
        timeline = Timeline(np.array(lengths, np.uint32), starts, window=order, max_sweeps=2, loads_parts=True)
        used: set[int] = set()
        while (reads := timeline.read_several(size, partition, 3)) is not None:
            assert reads.selection.refs is not None
            used.update(reads.selection.refs.chunk_ids)
        parts = timeline.needed_chunks(partition).parts
        assert parts is not None
        for chunk_id in used:
            owned.setdefault(chunk_id, []).extend(parts.part(chunk_id).sequences.tolist())
    sizes = np.diff(starts).tolist()
    assert {part: sorted(sequences) for part, sequences in owned.items()} == {
        part: [*range(size)] for part, size in enumerate(2 * sizes)
    }


def test_with_pools_a_rank_loads_its_own_sequences_of_each_chunk() -> None:
    lengths, starts = np.arange(200, dtype=np.uint32) % 9 + 1, np.arange(0, 201, 20)
    for budget in (Budget(padded=60, pool=40), Budget(rows=8, row_length=16, pool=40)):
        found: list[list[int]] = [[] for _ in range(20)]
        for index in range(4):
            timeline = Timeline(lengths, starts, window=Window(4, "chunks"), max_sweeps=2, loads_parts=True)
            used: set[int] = set()
            while (reads := timeline.read_several(budget, GlobalPartition(index, 4), 3)) is not None:
                assert reads.selection.refs is not None
                used.update(reads.selection.refs.chunk_ids)
            parts = timeline.needed_chunks(GlobalPartition(index, 4)).parts
            assert parts is not None
            for number in used:
                found[number] += parts.part(number).sequences.tolist()
        assert [sorted(of_part) for of_part in found] == [[*range(20)]] * 20


def test_a_plan_before_the_first_read_does_not_move_the_timeline() -> None:
    timeline = Timeline(np.array([1], np.uint32), np.array([0, 1]), window=None, max_sweeps=3, loads_parts=True)
    partition = GlobalPartition(0, 1, num_workers=2)
    timeline.read(1, partition)
    timeline.load_state(timeline.state())
    timeline.needed_chunks(partition)
    assert timeline.position == 1


def test_a_refused_request_leaves_the_position_where_it_was() -> None:
    lengths, starts = np.array([1, 2, 3, 4] * 10, np.uint32), np.arange(0, 41, 5)
    timelines = [
        Timeline(lengths, starts, window=Window(4, "chunks"), max_sweeps=2, loads_parts=True) for _ in range(2)
    ]
    partition = GlobalPartition(0, 2)
    for timeline in timelines:
        timeline.read(12, partition)
    # when
    with pytest.raises(ConfigError, match="are longer than the 1 samples"):
        timelines[0].read(Budget(samples=1), partition)
    # then
    for _ in range(4):
        assert timelines[0].state() == timelines[1].state()
        selections = [timeline.read(12, partition) for timeline in timelines]
        assert selections[0] is not None and selections[1] is not None
        assert selections[0].sequences.tolist() == selections[1].sequences.tolist()

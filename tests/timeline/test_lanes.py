"""Lanes: each rank reads its part, and the global minibatches are the same on any number of ranks."""

import itertools
import json
from typing import Any

import numpy as np
import pytest
from cntkio import BalancedPartition, Budget, CheckpointError, ConfigError, GlobalPartition, Partition
from cntkio.timeline import Size, Timeline, Window
from cntkio.timeline.selection import Omissions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow.lanes import sweep_in_lanes
from support.rounds import rounds

properties = settings(max_examples=rounds(100), suppress_health_check=list(HealthCheck), deadline=None)
some_chunks = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=8), min_size=1, max_size=8)
some_windows = st.tuples(st.integers(1, 40), st.sampled_from(["chunks", "samples"]))
RANKS = (1, 2, 3, 4, 8, 16, 64)
Step = tuple[list[list[int]], bool, int]


@st.composite
def some_sizes(draw: st.DrawFn, num_lanes: int) -> Size:
    if draw(st.booleans()):
        return draw(st.integers(1, 120))
    if draw(st.booleans()):
        rows = {"rows": num_lanes * draw(st.integers(1, 3)), "row_length": draw(st.integers(9, 20))}
        return Budget(**rows, pool=draw(st.integers(1, 40)), drop_last=draw(st.booleans()))
    limits: dict[str, Any] = {draw(st.sampled_from(["samples", "padded"])): num_lanes * draw(st.integers(1, 30))}
    if draw(st.booleans()):
        limits |= {"pool": draw(st.integers(1, 30)), "pool_unit": draw(st.sampled_from(["sequences", "samples"]))}
    return Budget(**limits, oversize=draw(st.sampled_from(["alone", "drop"])), drop_last=draw(st.booleans()))


def made(chunks: list[list[int]], window: Any, seed: int = 0, **options: Any) -> Timeline:
    lengths = np.array([length for chunk in chunks for length in chunk], np.uint32)
    starts = np.cumsum([0, *map(len, chunks)])
    return Timeline(lengths, starts, window=None if window is None else Window(*window), seed=seed, **options)


def large(seed: int, num_sequences: int = 3000, num_chunks: int = 200, longest: int = 39) -> Any:
    """A corpus of random lengths, in chunks of random sizes."""
    random = np.random.default_rng(seed)
    bounds = np.sort(random.choice(np.arange(1, num_sequences), num_chunks - 1, replace=False))
    lengths = random.integers(1, longest + 1, num_sequences).astype(np.uint32)
    return lengths, np.array([0, *bounds, num_sequences])


def read(timeline: Timeline, size: Size, partition: Partition, most: int) -> list[tuple[list[int], bool, int]]:
    """Return sequences, flag and position of each of some reads."""
    reads = timeline.read_several(size, partition, most)
    if reads is None:
        return []
    ends = zip(itertools.pairwise(reads.bounds), reads.ends_of_sweep, reads.bookmarks, strict=True)
    found = [(reads.selection.sequences[a:b].tolist(), flag, mark.position) for (a, b), flag, mark in ends]
    assert reads.selection.position == found[-1][2]
    return found


def read_all(timeline: Timeline, size: Size, partition: Partition, most: int = 64) -> list[tuple[list[int], bool, int]]:
    return list(itertools.chain.from_iterable(iter(lambda: read(timeline, size, partition, most), [])))


def steps_of(timelines: list[Timeline], size: Size, num_lanes: int) -> list[Step]:
    """Return for each step the sequences of each rank; all ranks have the same flags and positions."""
    count = len(timelines)
    ranks = [
        read_all(timeline, size, GlobalPartition(rank, count, lanes=num_lanes))
        for rank, timeline in enumerate(timelines)
    ]
    assert len({len(steps) for steps in ranks}) == 1
    assert len({tuple(step[1:] for step in steps) for steps in ranks}) == 1
    return [([step[0] for step in steps], *steps[0][1:]) for steps in zip(*ranks, strict=True)]


def is_possible(chunks: list[list[int]], size: Size, num_lanes: int) -> bool:
    """Return whether the size leaves sequences to deliver."""
    lengths = [length for chunk in chunks for length in chunk]
    return not isinstance(size, Budget) or size.oversize == "alone" or max(lengths) <= size.share(num_lanes).longest


@properties
@given(
    chunks=some_chunks, window=some_windows, seed=st.sampled_from([0, 7, 2**64 - 1]), count=st.integers(1, 5),
    more=st.integers(0, 6), is_keyed=st.booleans(), data=st.data(),
)  # fmt: skip
def test_minibatches_in_lanes_equal_the_slow_ones(
    chunks: list[list[int]], window: Any, seed: int, count: int, more: int, is_keyed: bool, data: st.DataObject
) -> None:
    size = data.draw(some_sizes(count + more))
    if isinstance(size, Budget) and size.pool is not None:
        window = (100, "chunks")
    window = (*window, *["keyed"] * is_keyed)
    if not is_possible(chunks, size, count + more):
        return
    timelines = [made(chunks, window, seed, max_sweeps=2) for _ in range(count)]
    found = [step[0] for step in steps_of(timelines, size, count + more)]
    if isinstance(size, Budget):  # a step that has lost its sequences to `drop` may be the last
        found = [step for step in found if any(step)]

    expected = []
    for sweep in range(2):
        steps = sweep_in_lanes(chunks, window, seed, sweep, count + more, size)
        if not any(map(any, steps)):  # the data end with a sweep of which all is left out
            break
        for step in steps:
            of_ranks: list[list[int]] = [[] for _ in range(count)]
            for lane, sequences in enumerate(step):
                of_ranks[lane * count // (count + more)] += sequences
            expected.append(of_ranks)
    assert found == expected


def test_a_lane_that_leaves_out_a_sweep_waits_for_the_next() -> None:
    # In the second sweep, no pool of the first lane fills three rows.
    chunks = [[1] * 15, [1, 2, 9, 1, 2, 1, 2, 4], [3, 1, 2, 1, 6, 1, 4, 5], [1, 1, 9, 1, 9]]
    window: Any = (100, "chunks")
    size = Budget(rows=9, row_length=9, pool=33, drop_last=True)
    for seed in range(20):
        expected = [step for sweep in range(4) for step in sweep_in_lanes(chunks, window, seed, sweep, 3, size)]
        found = [step for step, *_ in steps_of([made(chunks, window, seed, max_sweeps=4) for _ in range(3)], size, 3)]
        assert found == expected


@pytest.mark.parametrize("seed", range(rounds(30)))
def test_any_number_of_ranks_has_the_same_global_minibatches(seed: int) -> None:
    random = np.random.default_rng([seed, 1])
    lengths, starts = large(seed, 1000, 70)
    num_lanes = int(random.choice([16, 64]))
    window = Window(int(random.integers(1, 100)), "chunks")
    size: Size = int(random.integers(300, 3000))
    if seed % 3 == 1:
        size = Budget(padded=num_lanes * int(random.integers(39, 90)))
    elif seed % 3 == 2:
        window = Window(100, "chunks")
        size = Budget(rows=num_lanes, row_length=int(random.integers(39, 200)), pool=num_lanes * 20)

    def new() -> Timeline:
        return Timeline(lengths, starts, window=window, seed=seed, max_sweeps=2)

    whole = steps_of([new()], size, num_lanes)
    first_sweep = whole[: [step[1] for step in whole].index(True) + 1]
    sweep = [sequence for (step,), _, _ in first_sweep for sequence in step]
    assert sorted(sweep) == list(range(len(lengths)))  # each sequence once
    assert [step[2] for step in whole if step[1]] == [lengths.sum(), 2 * lengths.sum()]
    # With a budget each rank walks through all lanes.
    most = num_lanes if isinstance(size, int) else 8
    for count in random.choice([count for count in RANKS if count <= most], 2, replace=False).tolist():
        found = steps_of([new() for _ in range(count)], size, num_lanes)
        assert [(sum(ranks, []), *rest) for ranks, *rest in found] == [(step, *rest) for (step,), *rest in whole]


@pytest.mark.parametrize("order", ["cntk", "keyed"])
@pytest.mark.parametrize("seed", range(rounds(30)))
def test_a_job_in_lanes_continues_at_any_step_on_any_ranks(seed: int, order: Any) -> None:
    random = np.random.default_rng([seed, 2])
    lengths, starts = large(seed, 600, 40)
    sizes = [300, 700, Budget(samples=1600), Budget(padded=1600, pool=320), Budget(rows=16, row_length=80, pool=200)]
    size: Size = sizes[seed % len(sizes)]

    def new() -> Timeline:
        return Timeline(lengths, starts, window=Window(40, "chunks", order), seed=seed, max_sweeps=2)

    whole = read_all(new(), size, GlobalPartition(lanes=16))
    state, number = None, 0
    while number < len(whole):
        count, num_steps = int(random.choice([1, 2, 3, 4, 8, 16])), int(random.integers(1, 40))
        partitions = [GlobalPartition(rank, count, lanes=16) for rank in range(count)]
        timelines = [new() for _ in partitions]
        for timeline in timelines if state is not None else ():
            timeline.load_state(state)
        pairs = [*zip(timelines, partitions, strict=True)]
        for _ in range(min(num_steps, len(whole) - number)):
            marks = [timeline.bookmark() for timeline in timelines]
            reads = [read(timeline, size, partition, 1)[0] for timeline, partition in pairs]
            assert sum((step[0] for step in reads), []) == whole[number][0]
            assert {step[1:] for step in reads} == {whole[number][1:]}
            if random.random() < 0.2:  # take the step back, and read it again
                for timeline, mark in zip(timelines, marks, strict=True):
                    timeline.go_back(mark, in_child=bool(random.random() < 0.3))
                assert [read(timeline, size, partition, 1)[0] for timeline, partition in pairs] == reads
            number += 1
        (text,) = {json.dumps(timeline.state()) for timeline in timelines}
        state = json.loads(text)
    assert state is not None and not read(timelines[0], size, partitions[0], 1)


@pytest.mark.parametrize("size", [300, Budget(samples=1600)])
def test_ranks_and_workers_of_lanes_may_change_while_they_read(size: Size) -> None:
    lengths, starts = large(5, 600, 40)
    new = [Timeline(lengths, starts, window=Window(9, "chunks"), max_sweeps=1) for _ in range(4)]
    whole = read_all(new[3], size, GlobalPartition(lanes=16))
    for number, (step, _, _) in enumerate(whole):
        count = (1, 2, 3)[number // 3 % 3]
        partitions = [GlobalPartition(rank % count, count, lanes=16) for rank in range(3)]
        reads = [read(timeline, size, part, 1)[0][0] for timeline, part in zip(new[:3], partitions, strict=True)]
        assert sum(reads[:count], []) == step
    workers = [
        read_all(Timeline(lengths, starts, window=Window(9, "chunks"), max_sweeps=1), size, partition)
        for partition in (GlobalPartition(1, 2, worker=worker, num_workers=3, lanes=16) for worker in range(3))
    ]
    rank = read_all(
        Timeline(lengths, starts, window=Window(9, "chunks"), max_sweeps=1), size, GlobalPartition(1, 2, lanes=16)
    )
    assert [workers[number % 3][number // 3] for number in range(len(rank))] == rank


@pytest.mark.parametrize("num_ranks", [2, 4, 8, 16, 64])
@pytest.mark.parametrize("seed", range(rounds(6)))
def test_ranks_of_lanes_lose_at_most_one_percent(num_ranks: int, seed: int) -> None:
    lengths, starts = large(seed, 64 * 60 * num_ranks, 640)
    loads = []
    for rank in range(num_ranks):
        timeline = Timeline(lengths, starts, window=Window(128, "chunks"), seed=seed, max_sweeps=1)
        steps = read_all(timeline, 1024 * num_ranks, GlobalPartition(rank, num_ranks, lanes=64))
        loads.append([int(lengths[sequences].sum()) for sequences, _, _ in steps])
    of_steps = np.array(loads)
    assert 1 - of_steps.mean() / of_steps.max(axis=0).mean() < 0.01
    total = of_steps.sum(axis=0)
    assert total.std() < 0.03 * total.mean()


@pytest.mark.parametrize("num_ranks", [1, 4, 16])
@pytest.mark.parametrize("size", [5000, Budget(padded=8000)])
def test_a_rank_needs_the_chunks_of_its_lanes_once(num_ranks: int, size: Size) -> None:
    lengths, starts = large(1, 20_000)[0], np.arange(0, 20_001, 50)
    timeline = Timeline(lengths, starts, window=Window(64, "chunks"), max_sweeps=1)
    partition = GlobalPartition(num_ranks - 1, num_ranks, lanes=16)
    in_memory: set[int] = set()
    num_loaded, most = 0, 0
    ahead = {*timeline.chunks_ahead(partition)}
    while (selection := timeline.read(size, partition)) is not None:
        needed = {*selection.chunks.tolist(), *timeline.needed_chunks(partition).chunks}
        num_loaded, most = num_loaded + len(needed - in_memory), max(most, len(needed))
        ahead |= {*timeline.chunks_ahead(partition)}
        in_memory = needed
    assert num_loaded <= 400 / num_ranks + 3 * 16 / num_ranks
    assert len(ahead) <= 400 or num_ranks == 1
    assert most <= 2.5 * 64 / num_ranks + 16  # the window, and a block of up to a window


@pytest.mark.parametrize("seed", range(rounds(20)))
@pytest.mark.parametrize("size", [300, Budget(samples=1600)])
def test_two_lanes_load_each_their_piece_of_a_chunk(size: Size, seed: int) -> None:
    lengths, starts = large(seed, 600, 3 + 2 * seed)
    partition, window = GlobalPartition(seed % 3, 3, lanes=16), Window(9, "chunks")
    timelines = [
        Timeline(lengths, starts, window=window, seed=seed, max_sweeps=1, loads_parts=loads_parts)
        for loads_parts in (False, True)
    ]
    loaded: list[set[int]] = [set(), set()]
    while (reads := [timeline.read(size, partition) for timeline in timelines])[0] is not None:
        found = []
        for (timeline, selection), ids in zip(zip(timelines, reads, strict=True), loaded, strict=True):
            assert selection is not None and selection.refs is not None
            plan, refs = timeline.needed_chunks(partition), selection.refs
            ids |= {*refs.chunk_ids}
            assert {*selection.chunks.tolist()} == {*refs.chunk_ids}
            parts = [None if plan.parts is None else plan.parts.part(chunk_id) for chunk_id in refs.chunk_ids]
            firsts = [
                starts[id if part is None else part.chunk_id] + (0 if part is None else part.sequences[0])
                for id, part in zip(refs.chunk_ids, parts, strict=True)
            ]
            found.append((np.array(firsts)[refs.chunk_indices] + refs.indices_in_chunk).tolist())
            assert found[-1] == selection.sequences.tolist()
    pieces = [timelines[1].needed_chunks(partition).parts.part(id) for id in loaded[1]]  # type: ignore[union-attr]
    own = sum(len(piece.sequences) for piece in pieces)
    assert own == len(
        {
            one
            for (step, _, _) in read_all(
                Timeline(lengths, starts, window=window, seed=seed, max_sweeps=1), size, partition
            )
            for one in step
        }
    )


def test_what_is_left_out_is_left_out_from_its_step_on() -> None:
    lengths, starts = large(3, 300, 20)
    whole = read_all(Timeline(lengths, starts, window=Window(9, "chunks"), max_sweeps=2), 200, GlobalPartition(lanes=8))
    at = whole[4][2]
    since = np.zeros(300, np.uint8)
    since[::2] = 1
    omissions = Omissions(since, [at], [])
    timeline = Timeline(lengths, starts, window=Window(9, "chunks"), max_sweeps=2, omissions=omissions)
    found = read_all(timeline, 200, GlobalPartition(lanes=8))
    assert found[:5] == whole[:5]
    assert [step[0] for step in found[5:]] == [[one for one in step[0] if one % 2] for step in whole[5:]]


def test_passing_over_steps_is_reading_them() -> None:
    lengths, starts = large(4, 300, 20)
    partition = GlobalPartition(1, 2, lanes=8)
    for most, until in ((3, 2**64 - 1), (10**6, 2**64 - 1), (10**6, int(lengths.sum()) + 100), (0, 0)):
        timelines = [Timeline(lengths, starts, window=Window(9, "chunks"), max_samples=9000) for _ in range(2)]
        count = timelines[0].pass_over(200, partition, most, until)
        if count:
            assert read_all(timelines[1], 200, partition, 1)[count - 1][2] == timelines[0].position
            rest = read_all(timelines[0], 200, partition)
            other = Timeline(lengths, starts, window=Window(9, "chunks"), max_samples=9000)
            assert rest == read_all(other, 200, partition)[count:]


@pytest.mark.parametrize(
    ("partition", "options", "size", "message"),
    [
        ({"lanes": 4}, {"window": None}, 9, "randomized order"),
        ({"lanes": 4}, {"truncation_length": 4}, 9, "whole sequences"),
        ({"lanes": 4}, {"size_counts": "all"}, 9, "local_timeline=False"),
        ({"lanes": 4}, {}, Budget(samples=3), "samples=3 in a Budget for 4 lanes"),
        ({"lanes": 4}, {}, Budget(padded=90, pool=9, buckets=(9,)), "lanes and buckets"),
        ({"lanes": 4}, {}, Budget(rows=8, row_length=9, pool=9, balance="attention"), "lanes and balance"),
        ({"lanes": 4, "deal": "chunk"}, {}, 9, "lanes=4 and deal='chunk'"),
        ({"lanes": 4, "remainder": "merge"}, {}, 9, "lanes=4 and remainder='merge'"),
        ({"lanes": 4, "count": 5}, {}, 9, "5 partitions share 4 lanes"),
        ({"lanes": -1}, {}, 9, "lanes is -1"),
    ],
)
def test_refuses_what_lanes_cannot_do(partition: Any, options: Any, size: Size, message: str) -> None:
    window = options.pop("window", (9, "chunks"))
    with pytest.raises(ConfigError, match=message):
        made([[3, 2], [4]] * 9, window, **options).read(size, GlobalPartition(**partition))


def test_lanes_begin_and_change_only_where_a_sweep_does() -> None:
    chunks = [[3, 2], [4]] * 9
    timeline = made(chunks, (9, "chunks"))
    timeline.read(9, GlobalPartition(0, 2, lanes=4))
    for size, partition in ((12, GlobalPartition(0, 2, lanes=4)), (9, GlobalPartition(lanes=8)), (9, Partition())):
        with pytest.raises(ConfigError, match="after step 1 of a sweep"):
            timeline.read(size, partition)
    while not timeline.read(9, GlobalPartition(0, 2, lanes=4)).end_of_sweep:
        pass
    assert timeline.read(12, BalancedPartition(0, 2)) is not None
    with pytest.raises(ConfigError, match="begins where a sweep does"):
        timeline.read(9, GlobalPartition(lanes=4))
    timeline = made(chunks, (9, "chunks"))
    timeline.go_to(50)
    with pytest.raises(ConfigError, match="is inside sweep 0"):
        timeline.read(9, GlobalPartition(lanes=4))


@pytest.mark.parametrize("size", [9, Budget(samples=32)])
@pytest.mark.parametrize(
    "change", [{"batch": 3}, {"position": 11}, {"batch": 2**32 - 1}, {"lanes": -1}, {"lanes": "4"}, {"spread": 1}]
)
def test_refuses_damaged_states_of_lanes(size: Size, change: Any) -> None:
    chunks = [[3, 2], [4]] * 9
    timeline = made(chunks, (9, "chunks"))
    for _ in range(2):
        timeline.read(size, GlobalPartition(lanes=4))
    state = timeline.state()
    made(chunks, (9, "chunks")).load_state(state)
    if "spread" in change and isinstance(size, Budget):
        return  # a budget has no such rule
    with pytest.raises(CheckpointError):
        made(chunks, (9, "chunks")).load_state({**state, **change})

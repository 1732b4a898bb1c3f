"""The mixed order in lanes: each part is dealt to lanes, and the weights hold for all lanes together."""

import functools
import itertools
import json
from typing import Any

import numpy as np
import pytest
from cntkio import Budget, CheckpointError, ConfigError, GlobalPartition, Partition
from cntkio.timeline import Size, Timeline, Window
from cntkio.timeline.mixed import MixedTimeline
from cntkio.timeline.weights import Weights
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow.lanes import SlowMixtureInLanes
from support.rounds import rounds

properties = settings(max_examples=rounds(60), suppress_health_check=list(HealthCheck), deadline=None)
Tables = list[list[list[int]]]
Step = tuple[list[int], bool, int]
RANKS = (1, 2, 3, 4, 8, 16, 64)

some_chunks = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=4)
some_tables = st.lists(some_chunks, min_size=1, max_size=3)
some_windows = st.tuples(st.integers(1, 40), st.sampled_from(["chunks", "samples"]))


@st.composite
def some_weights(draw: st.DrawFn, num_parts: int) -> Weights:
    """Return weights as numbers and tables; tables may have zeros."""
    names = [str(part) for part in range(num_parts)]
    zeros = st.dictionaries(st.integers(0, 60), st.integers(0, 9), max_size=3)
    table = st.builds(lambda points, last: {**points, 70: last}, zeros, st.integers(1, 9))
    given = {name: draw(st.integers(1, 9) | table) for name in names}
    given["0"] = draw(st.integers(1, 9))  # not all are 0 anywhere, and with stop="first" the data end
    return Weights.of(given, names, draw(st.sampled_from(["linear", "steps"])))


@st.composite
def some_sizes(draw: st.DrawFn, num_lanes: int) -> Size:
    if draw(st.booleans()):
        return draw(st.integers(1, 60))
    if draw(st.booleans()):
        rows = {"rows": num_lanes * draw(st.integers(1, 3)), "row_length": draw(st.integers(9, 20))}
        return Budget(**rows, pool=draw(st.integers(1, 40)), drop_last=draw(st.booleans()))
    limits: dict[str, Any] = {draw(st.sampled_from(["samples", "padded"])): num_lanes * draw(st.integers(1, 20))}
    if draw(st.booleans()):
        limits |= {"pool": draw(st.integers(1, 30)), "pool_unit": draw(st.sampled_from(["sequences", "samples"]))}
    return Budget(**limits, oversize=draw(st.sampled_from(["alone", "drop"])), drop_last=draw(st.booleans()))


def made(tables: Tables, weights: Weights, windows: Any, stop: str = "first", **options: Any) -> MixedTimeline:
    chunks = [chunk for table in tables for chunk in table]
    timelines = []
    for number, (table, window) in enumerate(zip(tables, windows, strict=True)):
        own = np.array([length for chunk in table for length in chunk], np.uint32)
        rules: dict[str, Any] = {"window": window and Window(*window), "seed": number, "counts_sequences": True}
        timelines.append(functools.partial(Timeline, own, np.cumsum([0, *map(len, table)]), **rules))
    return MixedTimeline(
        timelines,
        np.array([length for chunk in chunks for length in chunk], np.uint32),
        np.cumsum([0, *(sum(map(len, table)) for table in tables)]).tolist(),
        np.cumsum([0, *map(len, tables)]).tolist(),
        np.cumsum([0, *map(len, chunks)]),
        weights,
        stop=stop,
        **options,
    )


def random_tables(seed: int, num_parts: int = 2, num_sequences: int = 400, longest: int = 39) -> Tables:
    random = np.random.default_rng(seed)
    tables = []
    for part in range(num_parts):
        lengths = random.integers(1, longest + 1, num_sequences // (part + 1))
        cuts = np.sort(random.choice(np.arange(1, len(lengths)), 20, replace=False))
        tables.append([chunk.tolist() for chunk in np.split(lengths, cuts)])
    return tables


def read(timeline: MixedTimeline, size: Size, partition: Partition, most: int = 1) -> list[Step]:
    """Return sequences, flag and position of each of some reads."""
    reads = timeline.read_several(size, partition, most)
    if reads is None:
        return []
    ends = zip(itertools.pairwise(reads.bounds), reads.ends_of_sweep, reads.bookmarks, strict=True)
    return [(reads.selection.sequences[a:b].tolist(), flag, mark.position) for (a, b), flag, mark in ends]


def read_all(timeline: MixedTimeline, size: Size, partition: Partition, most: int = 8) -> list[Step]:
    return list(itertools.chain.from_iterable(iter(lambda: read(timeline, size, partition, most), [])))


def on_ranks(new: Any, size: Size, count: int, num_lanes: int) -> list[Step]:
    """Return the steps of all ranks together; all ranks have the same flags and positions."""
    ranks = [read_all(new(), size, GlobalPartition(rank, count, lanes=num_lanes)) for rank in range(count)]
    assert len({tuple(step[1:] for step in steps) for steps in ranks}) == 1
    return [(sum((step[0] for step in steps), []), *steps[0][1:]) for steps in zip(*ranks, strict=True)]


def is_possible(tables: Tables, size: Size, num_lanes: int) -> bool:
    """Return whether the size leaves sequences to deliver."""
    lengths = [length for table in tables for chunk in table for length in chunk]
    return not isinstance(size, Budget) or size.oversize == "alone" or max(lengths) <= size.share(num_lanes).longest


@properties
@given(
    tables=some_tables, stop=st.sampled_from(["first", "all"]), count=st.integers(1, 4), more=st.integers(0, 5),
    is_keyed=st.booleans(), data=st.data(),
)  # fmt: skip
def test_minibatches_in_lanes_equal_the_slow_ones(
    tables: Tables, stop: str, count: int, more: int, is_keyed: bool, data: st.DataObject
) -> None:
    num_lanes = count + more
    weights, size = data.draw(some_weights(len(tables))), data.draw(some_sizes(num_lanes))
    windows = [(*data.draw(some_windows), *["keyed"] * is_keyed) for _ in tables]
    timeline = made(tables, weights, windows, stop)
    if not is_possible(tables, size, num_lanes) or not 0 < timeline.end < 500:
        return
    blocks = [(at, [*weights.counts_at(at)]) for at in range(timeline.end)]
    starts = [0, *(at for at, (one, other) in enumerate(itertools.pairwise(blocks), 1) if one[1] != other[1])]
    slow = SlowMixtureInLanes(
        tables, [blocks[at] for at in starts], [*range(len(tables))], windows=windows, num_lanes=num_lanes
    )
    slow.part_of = weights.component  # type: ignore[method-assign]  # another test compares the turns
    expected = [sum(step, []) for step in slow.steps(slow.in_lanes(timeline.end), size, 0)]
    found = on_ranks(lambda: made(tables, weights, windows, stop), size, count, num_lanes)
    assert [step for step, _, _ in found] == expected
    if not isinstance(size, Budget):
        assert found[-1][2] == timeline.end
        if stop == "first":
            delivered = sum((step for step, _, _ in found), [])
            assert len(delivered) == len(set(delivered))  # none comes twice before a sweep ends


@pytest.mark.parametrize("seed", range(rounds(30)))
def test_any_number_of_ranks_has_the_same_global_minibatches(seed: int) -> None:
    random = np.random.default_rng([seed, 1])
    tables = random_tables(seed)
    num_lanes = int(random.choice([16, 64]))
    windows = [(int(random.integers(1, 30)), "chunks") for _ in tables]
    sizes = [int(random.integers(100, 3000)), Budget(padded=num_lanes * 60), Budget(samples=num_lanes * 50, pool=150)]
    weights = Weights.of({"0": {0: 1, 300: 3}, "1": float(random.integers(1, 4))}, "01")

    def new() -> MixedTimeline:
        return made(tables, weights, windows, "all")

    whole = on_ranks(new, sizes[seed % 3], 1, num_lanes)
    # Each sequence of a part comes once in each of its sweeps.
    order = sum((step for step, _, _ in whole), [])
    first = sum(map(len, tables[0]))
    for sequences in (range(first), range(first, first + sum(map(len, tables[1])))):
        taken = [order.count(sequence) for sequence in sequences]
        assert max(taken) - min(taken) <= 1
    # The weights hold for all lanes together, wherever a block ends.
    for _, _, position in whole:
        delivered = np.bincount(np.array(order[:position]) >= first, minlength=2) if position else np.zeros(2, int)
        assert position == 0 or sum(delivered) == position
    for position in {position for _, _, position in whole}:
        assert np.bincount(np.array(order[:position]) >= first, minlength=2).tolist() == [*weights.taken_at(position)]
    for count in random.choice([count for count in RANKS if count <= num_lanes], 2, replace=False).tolist():
        assert on_ranks(new, sizes[seed % 3], count, num_lanes) == whole


@pytest.mark.parametrize("seed", range(rounds(30)))
def test_a_mixture_in_lanes_continues_at_any_step_on_any_ranks(seed: int) -> None:
    random = np.random.default_rng([seed, 2])
    tables, windows = random_tables(seed, 3, 120, 19), [(9, "chunks", "keyed"), (9, "chunks"), (40, "samples")]
    sizes = [40, 300, Budget(samples=640), Budget(padded=500, pool=70), Budget(rows=16, row_length=40, pool=50)]
    size: Size = sizes[seed % len(sizes)]
    weights = Weights.of({"0": 4, "1": {0: 1, 100: 0, 200: 2}, "2": 2}, "012")

    def new() -> MixedTimeline:
        return made(tables, weights, windows, "all")

    whole = on_ranks(new, size, 1, 16)
    state, number = None, 0
    while number < len(whole):
        count, num_steps = int(random.choice([1, 2, 3, 4, 8, 16])), int(random.integers(1, 12))
        partitions = [GlobalPartition(rank, count, lanes=16) for rank in range(count)]
        timelines = [new() for _ in partitions]
        for timeline in timelines if state is not None else ():
            timeline.load_state(state)
            assert timeline.state() == state
        pairs = [*zip(timelines, partitions, strict=True)]
        for _ in range(min(num_steps, len(whole) - number)):
            marks = [timeline.bookmark() for timeline in timelines]
            reads = [read(timeline, size, partition)[0] for timeline, partition in pairs]
            assert sum((step[0] for step in reads), []) == whole[number][0]
            assert {step[1:] for step in reads} == {whole[number][1:]}
            if random.random() < 0.2:  # take the step back, and read it again
                for timeline, mark in zip(timelines, marks, strict=True):
                    timeline.go_back(mark, in_child=bool(random.random() < 0.3))
                assert [read(timeline, size, partition)[0] for timeline, partition in pairs] == reads
            number += 1
        (text,) = {json.dumps(timeline.state()) for timeline in timelines}
        state = json.loads(text)
    assert not read(timelines[0], size, partitions[0])


@pytest.mark.parametrize("position", [1, 399, 400, 1234, 5000, 100_000])
@pytest.mark.parametrize("order", ["cntk", "keyed"])
def test_a_position_is_entered_where_reading_comes_to(position: int, order: str) -> None:
    tables = random_tables(1, 2, 6000)
    tables[0][3] = [1] * 5000  # short sequences come together, so no place is where the mean length says
    weights, windows = Weights.of({"0": 2, "1": 1}, "01"), [(2, "chunks", order), (30, "chunks", order)]
    partition = GlobalPartition(lanes=4)
    entered, walked = (made(tables, weights, windows, "forever") for _ in range(2))
    entered.begin_epoch(position, position + 50)
    walked.begin_epoch(0, position)
    read_all(walked, 100, partition, 10_000)
    walked.begin_epoch(position, position + 50)
    assert sorted(sum((step for step, _, _ in read_all(entered, 100, partition)), [])) == sorted(
        walked.run(position, 50)[0].sequences.tolist()
    )


def test_ranks_of_a_mixture_in_lanes_lose_at_most_one_percent() -> None:
    random = np.random.default_rng(5)
    # The lengths grow along the first part, so its lanes have different numbers of sequences.
    lengths = [np.sort(random.integers(1, 40, 40_000)), random.integers(1, 40, 20_000)]
    tables: Tables = [[chunk.tolist() for chunk in np.split(of, 200)] for of in lengths]
    bounds = [np.cumsum(of) - of for of in lengths]
    lanes = [
        np.searchsorted(of.sum() * np.arange(8) // 8, at, "right") - 1 for of, at in zip(lengths, bounds, strict=True)
    ]
    timeline = made(tables, Weights.of({"0": 2, "1": 1}, "01"), [(40, "chunks")] * 2)
    steps = read_all(timeline, 1024 * 8, GlobalPartition(lanes=8), 64)
    lane_of, length_of = np.concatenate(lanes), np.concatenate(lengths)
    loads = np.array([np.bincount(lane_of[step], length_of[step], 8) for step, _, _ in steps])
    for loads_of_ranks in (loads, loads.reshape(-1, 4, 2).sum(axis=2)):
        assert 1 - loads_of_ranks.mean() / loads_of_ranks.max(axis=1).mean() < 0.01


@pytest.mark.parametrize("loads_parts", [False, True])
def test_a_rank_needs_the_chunks_of_its_lanes(loads_parts: bool) -> None:
    tables = random_tables(4, 2, 1200)
    weights, windows = Weights.of({"0": 2, "1": 1}, "01"), [(3, "chunks")] * 2
    starts = np.cumsum([0, *(len(chunk) for table in tables for chunk in table)])
    loaded = []
    for rank in range(4):
        timeline = made(tables, weights, windows, "all", loads_parts=loads_parts)
        partition, own = GlobalPartition(rank, 4, lanes=8), set()
        timeline.read(100, partition)
        while True:
            plan = timeline.needed_chunks(partition)
            known = {*plan.chunks, *itertools.islice(timeline.chunks_ahead(partition), 100)}
            selection = timeline.read(100, partition)
            if selection is None:
                break
            assert selection.refs is not None
            assert {*selection.chunks.tolist()} == {*selection.refs.chunk_ids} <= known
            own |= {*selection.chunks.tolist()}
            firsts = []
            for chunk in selection.refs.chunk_ids:
                part = None if plan.parts is None else plan.parts.part(chunk)
                firsts.append(starts[chunk if part is None else part.chunk_id] + (part.sequences[0] if part else 0))
            found = np.array(firsts)[selection.refs.chunk_indices] + selection.refs.indices_in_chunk
            assert found.tolist() == selection.sequences.tolist()
        loaded.append(own)
    assert max(map(len, loaded)) <= (len(starts) + 16) / 3
    if loads_parts:
        assert sum(map(len, loaded)) == len(set().union(*loaded))  # no piece is loaded by two ranks


def test_what_lanes_of_a_mixture_cannot_do_is_refused() -> None:
    tables, weights = random_tables(1, 2, 60), Weights.of({"0": 2, "1": 1}, "01")
    lanes = GlobalPartition(lanes=4)
    for windows, size, message in (
        ([None, (9, "chunks")], 20, "randomized order"),
        ([(9, "chunks")] * 2, Budget(samples=3), "samples=3 in a Budget for 4 lanes"),
        ([(9, "chunks")] * 2, Budget(padded=900, pool=9, buckets=(9,)), "lanes and buckets"),
        ([(9, "chunks")] * 2, Budget(samples={0: 400, 9: 800}), "lanes and a table of samples"),
    ):
        with pytest.raises(ConfigError, match=message):
            made(tables, weights, windows).read(size, lanes)
    timeline = made(tables, weights, [(9, "chunks")] * 2)
    timeline.read(100, lanes)
    with pytest.raises(ConfigError, match="after step 1 of a block"):
        timeline.read(101, lanes)
    state = timeline.state()
    for damage in ({"batch": 99}, {"position": -1}, {"pool_end": -1}, {"lanes": "4"}, {"spread": 1}):
        with pytest.raises(CheckpointError):
            timeline.load_state({**state, **damage})
        assert timeline.state() == state
    small = made(tables, weights, [(9, "chunks")] * 2, "forever")
    while small.at.batch or not small.at.position:
        small.read(1, lanes)
    with pytest.raises(ConfigError, match="lanes change from 4 to 8 at position"):
        small.read(1, GlobalPartition(lanes=8))
    assert small.read(20, lanes) is not None

"""The mixed order of several tables. (docs/mixtures.md)"""

import functools
import itertools
import json
from typing import Any

import numpy as np
import pytest
from cntkio import BalancedPartition, Budget, CheckpointError, ConfigError, GlobalPartition, Partition
from cntkio.timeline import Selection, Timeline, Window
from cntkio.timeline.mixed import MixedTimeline
from cntkio.timeline.weights import Weights
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow.batches import keeps, scheduled_batches, sweep_of_batches
from slow.mixtures import SlowMixture, scheduled
from support.elastic import require_same_minibatches
from support.rounds import rounds

properties = settings(max_examples=rounds(30), suppress_health_check=list(HealthCheck), deadline=None)
Tables = list[list[list[int]]]

some_chunks = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=4)
some_tables = st.lists(some_chunks, min_size=1, max_size=3)


some_between = st.sampled_from(["linear", "steps"])
# Most points are where the small tables end, and some are blocks of a ramp further.
some_points = st.one_of(st.integers(0, 40), st.integers(0, 5000))
some_weights_of_part = st.one_of(
    st.integers(1, 9), st.dictionaries(some_points, st.integers(1, 9), min_size=1, max_size=4)
)


@st.composite
def some_weights(draw: st.DrawFn, num_parts: int) -> Weights:
    """Return weights as numbers and tables, sometimes with other weights from a position on."""
    names = [str(part) for part in range(num_parts)]
    found = Weights.of({name: draw(some_weights_of_part) for name in names}, names, draw(some_between))
    if draw(st.booleans()):
        later = Weights.of({name: draw(some_weights_of_part) for name in names}, names, draw(some_between))
        found = found.changed(draw(some_points), later)
    return found


@st.composite
def some_sizes(draw: st.DrawFn, count: int = 1, can_drop_last: bool = False) -> Budget:
    some_limits = st.integers(1, 40).map(lambda limit: count * limit)
    some_values = some_limits | st.dictionaries(st.integers(0, 60), some_limits, min_size=1, max_size=4)
    limits: dict[str, Any] = {draw(st.sampled_from(["samples", "padded"])): draw(some_values)}
    if draw(st.booleans()):
        limits = {"rows": count * draw(st.integers(1, 3)), "row_length": draw(st.integers(9, 20)), "pool": 30}
    elif draw(st.booleans()):
        limits["pool"] = draw(st.integers(1, 60))
        limits["pool_unit"] = draw(st.sampled_from(["sequences", "samples"]))
    limits["drop_last"] = can_drop_last and draw(st.booleans())
    return Budget(**limits, oversize="drop" if "rows" in limits else draw(st.sampled_from(["alone", "drop"])))


def timeline_of(tables: Tables, weights: Weights, stop: str = "all") -> MixedTimeline:
    timelines, chunks = [], [chunk for table in tables for chunk in table]
    for number, table in enumerate(tables):
        own = np.array([length for chunk in table for length in chunk], np.uint32)
        starts = np.cumsum([0, *map(len, table)])
        options: dict[str, Any] = {"window": Window(len(table), "chunks"), "seed": number, "counts_sequences": True}
        timelines.append(functools.partial(Timeline, own, starts, **options))
    sizes = [sum(map(len, table)) for table in tables]
    return MixedTimeline(
        timelines,
        np.array([length for chunk in chunks for length in chunk], np.uint32),
        np.cumsum([0, *sizes]).tolist(),
        np.cumsum([0, *map(len, tables)]).tolist(),
        np.cumsum([0, *map(len, chunks)]),
        weights,
        stop=stop,
    )


def slow(tables: Tables, weights: Weights) -> SlowMixture:
    blocks: list[tuple[int, list[int]]] = []
    for (first, schedules), following in itertools.zip_longest(weights.stretches, weights.stretches[1:]):
        end = 10_000 if following is None else following.first
        given = [dict(zip(one.points, one.values, strict=True)) for one in schedules]
        firsts = [at for at, _ in scheduled(given, is_linear=schedules[0].between == "linear", end=end, first=first)]
        # Remainders that are equal as fractions may differ as floats; another test compares the turns.
        blocks += [(at, list(weights.counts_at(at))) for at in firsts if at < end]
    return SlowMixture(tables, blocks, list(range(len(tables))))


def read(timeline: MixedTimeline, size: Any, partition: Partition, most: int = 1) -> list[tuple[list[int], bool]]:
    found: list[tuple[list[int], bool]] = []
    while (reads := timeline.read_several(size, partition, most)) is not None:
        found += [
            (reads.selection.sequences[first:last].tolist(), end)
            for (first, last), end in zip(itertools.pairwise(reads.bounds), reads.ends_of_sweep, strict=True)
        ]
    return found


def is_possible(tables: Tables, budget: Budget) -> bool:
    """Return whether the budget leaves something to deliver."""
    longest = budget.longest if budget.oversize == "drop" else 9
    return any(length <= longest for table in tables for chunk in table for length in chunk)


@properties
@given(tables=some_tables, stop=st.sampled_from(["first", "all"]), most=st.integers(1, 5), data=st.data())
def test_minibatches_equal_the_slow_ones(tables: Tables, stop: str, most: int, data: st.DataObject) -> None:
    weights = data.draw(some_weights(len(tables)))
    budget = data.draw(some_sizes(can_drop_last=True))
    if not is_possible(tables, budget):
        return
    expected = slow(tables, weights)
    order, ends = expected.order(expected.end(stop))
    timeline = timeline_of(tables, weights, stop)
    assert timeline.end == len(order)
    found = read(timeline, budget, Partition(), most)
    own = [True] * len(order)
    batches = (
        scheduled_batches(budget.at, expected.lengths, [order], [own], 0, counts_sequences=True)
        if budget.schedules
        else sweep_of_batches(budget, expected.lengths, order, own, 0)
    )
    assert [batch for batch, _ in found] == batches
    of_order = zip(order, ends, strict=True)
    kept = [
        end
        for sequence, end in of_order
        if budget.oversize != "drop" or keeps(budget.extreme(max), [expected.lengths[sequence]])
    ]
    if budget.pool is None and not budget.schedules:
        flags = iter(kept)
        assert [end for _, end in found] == [any(list(itertools.islice(flags, len(batch)))) for batch in batches]


@properties
@given(tables=some_tables, first=st.integers(0, 3000), data=st.data())
def test_every_window_of_a_block_has_the_exact_proportions(tables: Tables, first: int, data: st.DataObject) -> None:
    weights = data.draw(some_weights(len(tables)))
    timeline = timeline_of(tables, weights, "forever")
    timeline.restore({"minibatchSourcePosition": first})
    selection = timeline.read(Budget(sequences=1000), Partition())
    assert selection is not None
    starts = np.cumsum([0, *(sum(map(len, table)) for table in tables)])
    parts = np.searchsorted(starts, selection.sequences, side="right") - 1
    expected = slow(tables, weights)
    assert parts[:50].tolist() == [expected.part_of(position) for position in range(first, first + 50)]
    before, after = weights.taken_at(first), weights.taken_at(first + 1000)
    assert np.bincount(parts, minlength=len(tables)).tolist() == [
        one - other for one, other in zip(after, before, strict=True)
    ]
    # Within a block, each part has its exact share.
    blocks = [at for at, _ in expected.weights if first < at < first + 1000]
    if not blocks:
        assert tuple(np.bincount(parts, minlength=len(tables))) == weights.counts_at(first)


@properties
@given(tables=some_tables, count=st.integers(1, 3), kind=st.sampled_from("cbgw"), data=st.data())
def test_a_state_continues_in_a_new_timeline(tables: Tables, count: int, kind: str, data: st.DataObject) -> None:
    weights, budget = data.draw(some_weights(len(tables))), data.draw(some_sizes(count, can_drop_last=kind != "b"))
    index = data.draw(st.integers(0, count - 1))
    partition: Partition = {
        "c": Partition(index, count),
        "b": BalancedPartition(index, count, data.draw(st.sampled_from(["drop", "repeat"]))),
        "g": GlobalPartition(index, count, data.draw(st.sampled_from(["length", "area"]))),
        "w": GlobalPartition(index, count, "length", "empty", data.draw(st.integers(0, 1)), 2),
    }[kind]
    if not is_possible(tables, budget.share(partition.num_shares)):
        return
    timeline = timeline_of(tables, weights)
    steps: list[Selection] = []
    states, bookmarks = [], []
    while (selection := timeline.read(budget, partition)) is not None:
        steps.append(selection)
        states.append(json.loads(json.dumps(timeline.state())))
        bookmarks.append(timeline.bookmark())
    whole = [(step.sequences.tolist(), step.end_of_sweep) for step in steps]
    for at in data.draw(st.sets(st.integers(0, max(len(states) - 1, 0)), max_size=3)) if states else ():
        again = timeline_of(tables, weights)
        again.load_state(states[at])
        assert again.state() == states[at]
        assert read(again, budget, partition) == whole[at + 1 :]
        timeline.go_back(bookmarks[at], in_child=data.draw(st.booleans()))
        assert read(timeline, budget, partition, 3) == whole[at + 1 :]


@properties
@given(tables=some_tables, ranks=st.lists(st.integers(1, 4), min_size=2, max_size=4), data=st.data())
def test_a_global_state_continues_on_another_number_of_ranks(
    tables: Tables, ranks: list[int], data: st.DataObject
) -> None:
    weights, budget = data.draw(some_weights(len(tables))), data.draw(some_sizes())
    if not is_possible(tables, budget):
        return
    whole = read(timeline_of(tables, weights), budget, Partition())
    require_same_minibatches(lambda: timeline_of(tables, weights), budget, ranks, whole)


@properties
@given(tables=some_tables, count=st.integers(1, 4), data=st.data())
def test_balanced_partitions_have_equally_many_minibatches(tables: Tables, count: int, data: st.DataObject) -> None:
    weights, budget = data.draw(some_weights(len(tables))), data.draw(some_sizes(count))
    share = budget.share(count)
    if not is_possible(tables, share):
        return
    found = [read(timeline_of(tables, weights), budget, BalancedPartition(index, count)) for index in range(count)]
    plain = [read(timeline_of(tables, weights), budget, Partition(index, count)) for index in range(count)]
    assert len({len(of_one) for of_one in found}) == 1
    lengths = [length for table in tables for chunk in table for length in chunk]
    for batch, _ in itertools.chain(*found, *plain):
        assert batch and (len(batch) == 1 or keeps(share.extreme(max), [lengths[sequence] for sequence in batch]))
    single = read(timeline_of(tables, weights), share, Partition())
    assert sorted(batch for of_one in plain for batch, _ in of_one) == sorted(batch for batch, _ in single)


@properties
@given(tables=some_tables, data=st.data())
def test_needed_chunks_hold_what_is_delivered(tables: Tables, data: st.DataObject) -> None:
    weights, budget = data.draw(some_weights(len(tables))), data.draw(some_sizes())
    if not is_possible(tables, budget):
        return
    timeline = timeline_of(tables, weights)
    while True:
        known = {*timeline.needed_chunks().chunks, *itertools.islice(timeline.chunks_ahead(), 100)}
        selection = timeline.read(budget, Partition())
        if selection is None:
            break
        assert set(selection.chunks.tolist()) <= known


def test_what_a_mixture_of_sequences_cannot_do_is_refused() -> None:
    timeline = timeline_of([[[1, 2, 3]], [[4, 5, 6]]], Weights.of({"a": 1, "b": 1}, "ab"))
    with pytest.raises(ConfigError, match="neither deal='chunk'"):
        timeline.read(4, GlobalPartition(0, 2, "chunk"))
    with pytest.raises(ConfigError, match="remainder='merge'"):
        timeline.read(4, GlobalPartition(0, 2, "length", "merge"))
    timeline.read(Budget(sequences=1, pool=4), Partition())
    with pytest.raises(ConfigError, match="after 1 minibatches of a pool"):
        timeline.read(4, Partition())
    state = timeline.state()
    for damage in (
        {"batch": 9}, {"position": -1}, {"weights": []}, {"weights": [[0, [1, 999], [0, 1]]]},
        {"weights": [[0, [1, 1], [0, 0]]]}, {"weights": [[5, [500, 500], [2, 3]]]}, {"weights": [[0, [500, 500]]]},
    ):  # fmt: skip
        with pytest.raises(CheckpointError):
            timeline.load_state({**state, **damage})
        assert timeline.state() == state

"""Budgets whose minibatches cost the same on all ranks. (docs/batches.md, "Equal cost")"""

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cntkio import Budget, ConfigError, GlobalPartition, Partition
from cntkio.timeline import Timeline, Window
from cntkio.timeline.budget import size_from_json, size_to_json
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow.batches import dealt_by_cost, keeps, rows_of_pool, sweep_of_batches
from slow.timeline import sweep_order
from support.elastic import require_same_minibatches
from support.rounds import rounds

properties = settings(max_examples=rounds(60), suppress_health_check=list(HealthCheck))
some_lengths = st.lists(st.integers(1, 12), min_size=1, max_size=40)
some_pools, whole_sweeps = st.integers(1, 40), st.just(40)
some_costs = st.sampled_from([(0, 1), (1, 0), (3.5, 0.25)])


@st.composite
def some_budgets(draw: st.DrawFn, pools: st.SearchStrategy[int] = some_pools) -> Budget:
    options: dict[str, Any] = {"pool": draw(pools), "balance": "attention", "cost": draw(some_costs)}
    if draw(st.integers(0, 3)):
        size = {"rows": draw(st.integers(1, 6)), "row_length": draw(st.integers(12, 30))}
        return Budget(**size, **options, drop_last=draw(st.booleans()))
    return Budget(samples=draw(st.integers(12, 60)), padded=draw(st.none() | st.integers(12, 60)), **options)


def timeline_of(lengths: list[int], seed: int = 0) -> Timeline:
    starts = np.array([*range(0, len(lengths), 5), len(lengths)])
    window = Window(len(starts), "chunks")
    return Timeline(np.array(lengths, np.uint32), starts, window=window, seed=seed, max_sweeps=2)


def read_all(timeline: Timeline, budget: Budget, partition: Partition, most: int = 4) -> list[tuple[list[int], bool]]:
    found: list[tuple[list[int], bool]] = []
    while (reads := timeline.read_several(budget, partition, most)) is not None:
        bounds = itertools.pairwise(reads.bounds)
        parts = [reads.selection.sequences[first:last].tolist() for first, last in bounds]
        found += zip(parts, reads.ends_of_sweep, strict=True)
    return found


def order_of(lengths: list[int], sweep: int) -> list[int]:
    chunks = [lengths[at : at + 5] for at in range(0, len(lengths), 5)]
    return [sequence for _, sequence in sweep_order(chunks, len(chunks) + 1, "chunks", sweep)]


@properties
@given(lengths=some_lengths, most=st.integers(1, 5), budget=some_budgets())
def test_balanced_minibatches_equal_the_slow_ones(lengths: list[int], most: int, budget: Budget) -> None:
    found = read_all(timeline_of(lengths), budget, Partition(), most)
    expected = []
    for sweep in range(2):
        own = [True] * len(lengths)
        expected += sweep_of_batches(budget, lengths, order_of(lengths, sweep), own, sweep)
    assert [minibatch for minibatch, _ in found if minibatch] == expected
    for minibatch in expected:
        if budget.rows is None:
            assert keeps(budget, [lengths[sequence] for sequence in minibatch])
    if not budget.drop_last:
        assert sorted(itertools.chain(*expected)) == sorted([*range(len(lengths))] * 2)


@properties
@given(lengths=some_lengths, count=st.integers(2, 5), budget=some_budgets(whole_sweeps))
def test_ranks_get_the_shares_of_the_slow_deal(lengths: list[int], count: int, budget: Budget) -> None:
    shares = [read_all(timeline_of(lengths), budget, GlobalPartition(index, count), 3) for index in range(count)]
    whole = read_all(timeline_of(lengths), budget, Partition())
    # A pool has all sequences of a sweep.
    in_rows = [] if budget.rows is None else [
        rows for sweep in range(2) for rows in rows_of_pool(budget, lengths, order_of(lengths, sweep))[0]
    ]  # fmt: skip
    for number, (minibatch, _) in enumerate(whole):
        if budget.rows is None:
            expected = dealt_by_cost(budget, lengths, minibatch, count)
        else:
            rows = next(rows for rows in in_rows if sum(rows, []) == minibatch)
            expected = [sum(rows[index::count], []) for index in range(count)]
        assert [share[number][0] for share in shares] == expected


@properties
@given(lengths=some_lengths, counts=st.lists(st.integers(1, 4), min_size=2, max_size=4), budget=some_budgets())
def test_a_state_of_equal_cost_continues_on_any_number_of_ranks(
    lengths: list[int], counts: list[int], budget: Budget
) -> None:
    whole = read_all(timeline_of(lengths), budget, Partition())
    require_same_minibatches(lambda: timeline_of(lengths), budget, counts, whole)


def lost(budget: Budget, lengths: npt.NDArray[np.uint32], count: int) -> float:
    """Return the share of all ranks' time that they wait, if a step takes as long as its dearest rank."""
    starts, window = np.array([0, len(lengths)]), Window(1, "chunks")
    ranks = []
    for index in range(count):
        timeline = Timeline(lengths, starts, window=window, max_sweeps=1)
        steps = iter(lambda: timeline.read(budget, GlobalPartition(index, count)), None)  # noqa: B023
        ranks.append([float((lengths[step.sequences].astype(float) ** 2).sum()) for step in steps])
    costs = np.array(ranks)
    return float(1 - costs.mean(axis=0).sum() / costs.max(axis=0).sum())


@pytest.mark.parametrize("count", [2, 8])
def test_ranks_lose_less_than_a_hundredth_of_their_time(count: int) -> None:
    random = np.random.default_rng(1)
    lengths = np.clip(random.lognormal(np.log(60), 0.6, 4000), 1, 2048).astype(np.uint32)
    size: dict[str, Any] = {"rows": 8, "row_length": 4096, "pool": 2000}
    assert lost(Budget(**size, balance="attention"), lengths, count) < 0.01 < lost(Budget(**size), lengths, count)


def test_a_budget_of_equal_cost_is_the_same_after_json() -> None:
    budget = Budget(rows=2, row_length=9, pool=7, balance="attention", cost=(2, 3))
    assert size_to_json(budget)["cost"] == [2.0, 3.0]
    assert size_from_json(size_to_json(budget)) == budget


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 9, "balance": "attention"}, "balance needs a pool"),
        ({"samples": 9, "pool": 9, "buckets": (3,), "balance": "attention"}, "exclude each other"),
        ({"samples": 9, "pool": 9, "balance": "time"}, "attention"),
        ({"samples": 9, "pool": 9, "cost": (1, 1)}, "of no use without balance"),
        ({"samples": 9, "pool": 9, "balance": "attention", "cost": (0, 0)}, "not both 0"),
        ({"samples": 9, "pool": 9, "balance": "attention", "cost": (-1, 2)}, "at least 0"),
        ({"samples": 9, "pool": 9, "balance": "attention", "cost": (float("nan"), 2)}, "at least 0"),
        ({"samples": 9, "pool": 9, "balance": "attention", "cost": 3}, "two numbers"),
    ],
)
def test_an_impossible_balance_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Budget(**options)


@pytest.mark.parametrize(
    "partition", [Partition(0, 2), GlobalPartition(0, 2, "minibatch"), GlobalPartition(0, 2, "chunk")]
)
def test_partitions_without_equal_costs_refuse_a_balance(partition: Partition) -> None:
    with pytest.raises(ConfigError, match="balance"):
        timeline_of([1] * 20).read(Budget(samples=9, pool=9, balance="attention"), partition)

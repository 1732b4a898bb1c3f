"""Minibatches by budget and from pools. (docs/batches.md)"""

import itertools
import json
import logging
from collections import Counter
from typing import Any

import numpy as np
import pytest
from cntkio import BalancedPartition, Budget, CheckpointError, ConfigError, GlobalPartition, Partition
from cntkio.timeline import Selection, Timeline, Window
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow.batches import filled_rows, keeps, sweep_of_batches
from slow.timeline import sweep_order
from support.elastic import require_same_minibatches
from support.rounds import rounds
from support.timelines import Chunks, is_possible, read_all, timeline_of, window_for
from support.twister import WORD

properties = settings(max_examples=rounds(100), suppress_health_check=list(HealthCheck))

some_chunks = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=8), min_size=1, max_size=8)
some_seeds = st.sampled_from([0, 1, 7, 2**64 - 1])


@st.composite
def some_budgets(draw: st.DrawFn, count: int = 1, oversize: str | None = None, can_drop_last: bool = False) -> Budget:
    limits: dict[str, Any] = {"drop_last": can_drop_last and draw(st.booleans())}
    if oversize is None and draw(st.integers(0, 4)) == 0:
        limits |= {"rows": count * draw(st.integers(1, 3)), "row_length": draw(st.integers(1, 20)), "oversize": "drop"}
        return Budget(pool=draw(st.integers(1, 30)), carry=draw(st.booleans()), **limits)
    if draw(st.booleans()):
        limits["samples"] = count * draw(st.integers(1, 40))
    if draw(st.booleans()):
        limits["sequences"] = count * draw(st.integers(1, 6))
    if draw(st.booleans()) or len(limits) == 1:
        limits["padded"] = count * draw(st.integers(1, 40))
    if "samples" in limits or "padded" in limits:
        limits["quadratic"] = draw(st.none() | st.integers(1, 20))
    if draw(st.booleans()):
        limits["pool"] = draw(st.integers(1, 30))
        limits["pool_unit"] = draw(st.sampled_from(["sequences", "samples"]))
        limits["buckets"] = tuple(draw(st.sets(st.integers(1, 9), max_size=3)))
        limits["carry"] = draw(st.booleans())
    return Budget(**limits, oversize=oversize or draw(st.sampled_from(["alone", "drop"])))


def rows_of(chunks: Chunks, batch: list[int], budget: Budget) -> list[list[int]]:
    """The sequences of each row of a minibatch."""
    lengths = [length for chunk in chunks for length in chunk]
    rest = iter(batch)
    rows = filled_rows([lengths[sequence] for sequence in batch], budget.row_length or 0)
    return [list(itertools.islice(rest, len(row))) for row in rows]


def chunk_of(chunks: Chunks, sequence: int) -> int:
    return int(np.searchsorted(np.cumsum([0, *map(len, chunks)]), sequence, side="right")) - 1


@properties
@given(chunks=some_chunks, seed=some_seeds, is_random=st.booleans(), count=st.integers(1, 3), data=st.data())
def test_minibatches_equal_the_slow_ones(
    chunks: Chunks, seed: int, is_random: bool, count: int, data: st.DataObject
) -> None:
    partition = Partition(data.draw(st.integers(0, count - 1)), count)
    budget = data.draw(some_budgets(count, can_drop_last=True))
    if not is_possible(chunks, budget, count) or partition.index >= len(chunks):
        return
    window = window_for(budget, chunks, is_random or count > 1)
    lengths = [length for chunk in chunks for length in chunk]

    found = read_all(
        timeline_of(chunks, window, seed=seed, max_sweeps=2), budget, partition, data.draw(st.integers(1, 5))
    )

    expected = []
    for sweep in range(2):
        order = [(0, at) for at in range(len(lengths))]
        if window is not None:
            order = sweep_order(chunks, window.size, window.unit, (seed + sweep) % WORD)
        own = [rank % count == partition.index for rank, _ in order]
        sequences = [sequence for _, sequence in order]
        batches = sweep_of_batches(budget.share(count), lengths, sequences, own, (seed + sweep) % WORD)
        expected += [(batch, number == len(batches) - 1) for number, batch in enumerate(batches)]
    assert [(batch, flag) for batch, flag in found if batch] == expected


@pytest.mark.parametrize(("window", "largest"), [(Window(2, "chunks"), 5), (Window(6, "samples"), 3)])
def test_a_pool_is_at_most_the_share_of_sequences_in_the_window(window: Window, largest: int) -> None:
    chunks = [[2, 2], [2, 2], [2, 2, 2], [2, 2, 2]]
    assert read_all(timeline_of(chunks, window, seed=1, max_sweeps=1), Budget(samples=8, pool=largest), Partition())
    larger = timeline_of(chunks, window, seed=1, max_sweeps=1)
    with pytest.raises(
        ConfigError, match=f"larger than the randomization window of .*, which holds about {largest} seq"
    ):
        read_all(larger, Budget(samples=8, pool=largest + 1), Partition())


@properties
@given(chunks=some_chunks, seed=some_seeds, is_random=st.booleans(), size=st.integers(1, 9), data=st.data())
def test_each_sequence_comes_once_in_a_small_window(
    chunks: Chunks, seed: int, is_random: bool, size: int, data: st.DataObject
) -> None:
    budget = data.draw(some_budgets(oversize="alone"))
    lengths = [length for chunk in chunks for length in chunk]
    window = Window(size, "chunks") if is_random or budget.pool else None
    timeline = timeline_of(chunks, window, seed=seed, max_sweeps=2)
    try:
        found = read_all(timeline, budget, Partition(), data.draw(st.integers(1, 5)))
    except ConfigError as error:
        assert "larger than the randomization window" in str(error)
        return
    ends = [number for number, (_, flag) in enumerate(found) if flag]
    assert len(ends) == 2 and ends[-1] == len(found) - 1
    for part in (found[: ends[0] + 1], found[ends[0] + 1 :]):
        assert sorted(sequence for batch, _ in part for sequence in batch) == list(range(len(lengths)))
    for batch, _ in found:
        assert len(batch) == 1 or keeps(budget, [lengths[sequence] for sequence in batch])


@properties
@given(chunks=some_chunks, seed=some_seeds, count=st.integers(1, 3), kind=st.sampled_from("cbgow"), data=st.data())
def test_a_state_continues_in_a_new_timeline(
    chunks: Chunks, seed: int, count: int, kind: str, data: st.DataObject
) -> None:
    budget = data.draw(some_budgets(count, can_drop_last=kind != "b"))
    index = data.draw(st.integers(0, count - 1))
    if not is_possible(chunks, budget, count):
        return
    partition: Partition = {
        "c": Partition(index, count),
        "b": BalancedPartition(index, count, data.draw(st.sampled_from(["drop", "repeat"]))),
        "g": GlobalPartition(index, count, data.draw(st.sampled_from(["length", "area"]))),
        "o": GlobalPartition(index, count, "chunk" if budget.rows is None else "length"),
        "w": GlobalPartition(index, count, "length", "empty", data.draw(st.integers(0, 1)), 2),
    }[kind]
    options: dict[str, Any] = {
        "window": window_for(budget, chunks, kind == "o" or data.draw(st.booleans())),
        "seed": seed,
        "max_sweeps": 2,
        "loads_parts": data.draw(st.booleans()),
    }
    timeline = timeline_of(chunks, **options)
    steps: list[Selection] = []
    states = []
    while (selection := timeline.read(budget, partition)) is not None:
        steps.append(selection)
        states.append(json.loads(json.dumps(timeline.state())))
        assert len(steps) < 1000
    for at in data.draw(st.sets(st.integers(0, max(len(states) - 1, 0)), max_size=3)) if states else ():
        again = timeline_of(chunks, **options)
        again.load_state(states[at])
        if kind in "gow":  # the state of any rank fits
            assert again.state()["position"] == states[at]["position"]
        rest = list(iter(lambda again=again: again.read(budget, partition), None))
        assert [(s.sequences.tolist(), s.end_of_sweep) for s in rest] == [
            (s.sequences.tolist(), s.end_of_sweep) for s in steps[at + 1 :]
        ]


@properties
@given(chunks=some_chunks, seed=some_seeds, is_random=st.booleans(), data=st.data())
def test_going_back_inside_a_pool_repeats_the_minibatches(
    chunks: Chunks, seed: int, is_random: bool, data: st.DataObject
) -> None:
    budget = data.draw(some_budgets(can_drop_last=True))
    if not is_possible(chunks, budget):
        return
    timeline = timeline_of(chunks, window_for(budget, chunks, is_random), seed=seed, max_sweeps=2)
    steps, bookmarks = [], []
    while True:
        bookmarks.append(timeline.bookmark())
        selection = timeline.read(budget)
        if selection is None:
            break
        steps.append(selection.sequences.tolist())
    for at in data.draw(st.lists(st.integers(0, len(steps) - 1), max_size=6)) if steps else ():
        timeline.go_back(bookmarks[at], in_child=data.draw(st.booleans()))
        reads = timeline.read_several(budget, Partition(), 3)
        assert reads is not None
        pairs = itertools.pairwise(reads.bounds)
        assert [reads.selection.sequences[first:last].tolist() for first, last in pairs] == steps[
            at : at + len(reads.bookmarks)
        ]


@properties
@given(chunks=some_chunks, seed=some_seeds, count=st.integers(1, 4), most=st.integers(1, 20), data=st.data())
def test_balanced_partitions_have_equally_many_minibatches_within_their_budget(
    chunks: Chunks, seed: int, count: int, most: int, data: st.DataObject
) -> None:
    budget = data.draw(some_budgets(count))
    lengths = [length for chunk in chunks for length in chunk]
    share = budget.share(count)
    sound = [at for at, length in enumerate(lengths) if budget.oversize != "drop" or length <= share.longest]
    if len(sound) < count:
        return
    window = window_for(budget, chunks, data.draw(st.booleans()))
    found = []
    for index in range(count):
        several = read_all(
            timeline_of(chunks, window, seed=seed, max_sweeps=2), budget, BalancedPartition(index, count), most
        )
        one_by_one = read_all(
            timeline_of(chunks, window, seed=seed, max_sweeps=2), budget, BalancedPartition(index, count)
        )
        assert several == one_by_one
        found.append(several)
    assert len({len(of_one) for of_one in found}) == 1
    assert len({tuple(flag for _, flag in of_one) for of_one in found}) == 1
    assert sum(flag for _, flag in found[0]) == 2 and found[0][-1][1]
    for batch, _ in itertools.chain(*found):
        assert batch
        assert len(batch) == 1 or keeps(share, [lengths[sequence] for sequence in batch])
    times = Counter(sequence for batch, _ in itertools.chain(*found) for sequence in batch)
    assert set(times) <= set(sound) and max(times.values()) <= 2
    assert sum(times.values()) > 2 * (len(sound) - count)


@properties
@given(chunks=some_chunks, seed=some_seeds, count=st.integers(1, 4), data=st.data())
def test_global_partitions_share_the_minibatches_of_a_single_reader(
    chunks: Chunks, seed: int, count: int, data: st.DataObject
) -> None:
    budget = data.draw(some_budgets(can_drop_last=True))
    if not is_possible(chunks, budget):
        return
    options: dict[str, Any] = {
        "window": window_for(budget, chunks, data.draw(st.booleans())),
        "seed": seed,
        "max_sweeps": 2,
        "loads_parts": data.draw(st.booleans()),
    }
    can_deal_chunks = options["window"] is not None and budget.rows is None
    deal: Any = data.draw(st.sampled_from(["length", "area", *["chunk"] * can_deal_chunks]))
    whole = read_all(timeline_of(chunks, **options), budget, Partition())
    shares = [
        read_all(timeline_of(chunks, **options), budget, GlobalPartition(index, count, deal), 3)
        for index in range(count)
    ]
    assert [len(share) for share in shares] == [len(whole)] * count
    for number, (batch, flag) in enumerate(whole):
        assert sorted(sequence for share in shares for sequence in share[number][0]) == sorted(batch)
        assert {share[number][1] for share in shares} == {flag}
        if budget.rows is not None:  # the ranks take whole rows in turn
            rows = [rows_of(chunks, share[number][0], budget) for share in shares]
            dealt = [rows[at % count][at // count] for at in range(sum(map(len, rows)))]
            assert dealt == rows_of(chunks, batch, budget)
            assert max(map(len, rows)) <= -(-budget.rows // count)
    if deal == "chunk":  # no rank has sequences of another's chunks in a sweep
        for first, last in itertools.pairwise([0, *(number + 1 for number, (_, flag) in enumerate(whole) if flag)]):
            chunks_of = [
                {chunk_of(chunks, sequence) for batch, _ in share[first:last] for sequence in batch} for share in shares
            ]
            assert sum(map(len, chunks_of)) == len(set().union(*chunks_of))


@properties
@given(chunks=some_chunks, seed=some_seeds, counts=st.lists(st.integers(1, 4), min_size=2, max_size=4), data=st.data())
def test_a_global_state_continues_on_another_number_of_ranks(
    chunks: Chunks, seed: int, counts: list[int], data: st.DataObject
) -> None:
    budget = data.draw(some_budgets(can_drop_last=True))
    if not is_possible(chunks, budget):
        return
    window = window_for(budget, chunks, data.draw(st.booleans()))
    whole = read_all(timeline_of(chunks, window, seed=seed, max_sweeps=2), budget, Partition())
    require_same_minibatches(lambda: timeline_of(chunks, window, seed=seed, max_sweeps=2), budget, counts, whole)


@properties
@given(chunks=some_chunks, seed=some_seeds, size=st.integers(1, 9), data=st.data())
def test_needed_chunks_hold_the_rest_of_a_pool(chunks: Chunks, seed: int, size: int, data: st.DataObject) -> None:
    budget = data.draw(some_budgets(oversize="alone"))
    timeline = timeline_of(chunks, Window(size, "chunks"), seed=seed, max_sweeps=2)
    try:
        timeline.read(budget)
    except ConfigError:
        return
    while True:
        is_inside_pool = "batch" in timeline.state()
        needed = timeline.needed_chunks().chunks
        all_ahead = {*needed, *timeline.chunks_ahead()}
        selection = timeline.read(budget)
        if selection is None:
            break
        assert set(selection.chunks.tolist()) <= (set(needed) if is_inside_pool else all_ahead)


def test_a_budget_closes_before_any_limit() -> None:
    chunks = [[2, 2, 2, 5, 1, 1, 1, 1]]
    for budget, expected in (
        (Budget(samples=6), [3, 2, 3]),
        (Budget(sequences=3), [3, 3, 2]),
        (Budget(padded=8), [3, 1, 4]),
        (Budget(padded=8, sequences=2), [2, 1, 1, 2, 2]),
        (Budget(samples=8, quadratic=2, oversize="alone"), [2, 1, 1, 4]),
    ):
        found = read_all(timeline_of(chunks, None, max_sweeps=1), budget, Partition())
        assert [len(batch) for batch, _ in found] == expected


def test_a_minibatch_by_budget_ends_with_the_sweep() -> None:
    found = read_all(timeline_of([[1, 1, 1]], None, max_sweeps=2), Budget(samples=2), Partition())
    assert found == [([0, 1], False), ([2], True), ([0, 1], False), ([2], True)]


def test_a_minibatch_of_what_remains_is_left_out() -> None:
    chunks = [[1, 1, 1, 1], [1]]
    for budget, sizes in (
        (Budget(sequences=2, drop_last=True), [2, 2]),
        (Budget(sequences=2, padded=2, drop_last=True), [2, 2]),
        (Budget(sequences=5, drop_last=True), [5]),
        (Budget(samples=4, drop_last=True), [4]),
    ):
        found = read_all(timeline_of(chunks, None, max_sweeps=2), budget, Partition())
        assert [(len(batch), flag) for batch, flag in found] == [
            (size, number == len(sizes) - 1) for _ in range(2) for number, size in enumerate(sizes)
        ]
    # Each pool of three leaves one out, and the last pool leaves out all of its two.
    pooled = timeline_of(chunks, Window(2, "chunks"), max_sweeps=1)
    found = read_all(pooled, Budget(sequences=3, pool=3, drop_last=True), Partition())
    assert [(len(batch), flag) for batch, flag in found] == [(3, True)]


def test_if_no_minibatch_is_full_the_data_end() -> None:
    for max_sweeps in (1, None):
        timeline = timeline_of([[1, 2], [1]], None, max_sweeps=max_sweeps)
        assert timeline.read(Budget(samples=10, drop_last=True)) is None


def test_pools_of_similar_lengths_have_little_padding() -> None:
    lengths = np.random.default_rng(1).integers(1, 200, 5000).astype(np.uint32)
    timeline = Timeline(lengths, np.arange(0, 5001, 50), window=Window(100, "chunks"), max_sweeps=1)

    def padding(budget: Budget) -> float:
        timeline.go_to(0)
        batches = [lengths[batch] for batch, _ in read_all(timeline, budget, Partition(), 99)]
        return 1 - lengths.sum() / sum(len(batch) * int(batch.max()) for batch in batches)

    shares = [padding(Budget(padded=2000, pool=pool)) for pool in (None, 100, 1000)]
    assert shares[0] > 0.3 and shares[1] < 0.2 and shares[2] < 0.05


def test_a_pool_that_leaves_its_rest_to_the_next_wastes_less() -> None:
    lengths = np.random.default_rng(1).integers(1, 200, 5000).astype(np.uint32)
    timeline = Timeline(lengths, np.arange(0, 5001, 50), window=Window(10, "chunks"), max_sweeps=1)

    def read(budget: Budget) -> tuple[int, int]:
        """The cells with padding, and the largest number of chunks that are needed at once."""
        timeline.go_to(0)
        area, num_chunks = 0, 0
        while (selection := timeline.read(budget)) is not None:
            cells = len(selection.sequences) * int(lengths[selection.sequences].max())
            area += cells if budget.rows is None else budget.rows * (budget.row_length or 0)
            num_chunks = max(num_chunks, len(timeline.needed_chunks().chunks))
        return area, num_chunks

    for limits in ({"padded": 2000, "pool": 500}, {"rows": 5, "row_length": 2000, "pool": 500}):
        (area, _), (carried, num_chunks) = read(Budget(**limits)), read(Budget(**limits, carry=True))
        assert carried - lengths.sum() < 0.7 * (area - lengths.sum())
        assert num_chunks <= 50  # of three pools, and half a window before and after them


def test_oversize_sequences_are_an_error_or_alone_or_dropped(caplog: pytest.LogCaptureFixture) -> None:
    chunks = [[1, 9, 1, 1]]
    with pytest.raises(
        ConfigError, match=r"sequence number 1 has 9 samples, and 1 of 4 sequences are longer than the 4"
    ):
        timeline_of(chunks, None).read(Budget(padded=4))
    alone = read_all(timeline_of(chunks, None, max_sweeps=1), Budget(padded=4, oversize="alone"), Partition())
    assert [batch for batch, _ in alone] == [[0], [1], [2, 3]]
    with caplog.at_level(logging.WARNING, "cntkio"):
        timeline = timeline_of(chunks, None, max_sweeps=2)
        dropped = read_all(timeline, Budget(padded=4, oversize="drop"), Partition())
    assert [batch for batch, _ in dropped] == [[0, 2, 3]] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "the budget drops 1 of 4 sequences in each sweep: they are longer than 4 samples"
    ]
    with pytest.raises(ConfigError, match="drops all 4 sequences"):
        timeline_of([[9] * 4], None).read(Budget(samples=4, oversize="drop"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "a Budget needs a limit"),
        ({"samples": 0}, "samples is 0; expected 1"),
        ({"sequences": 3, "quadratic": 9}, "needs samples or padded"),
        ({"samples": 3, "oversize": "wrap"}, "'wrap'"),
        ({"samples": 3, "buckets": (8,)}, "buckets need a pool"),
        ({"samples": 3, "pool": 9, "buckets": (0, 8)}, "expected lengths"),
        ({"samples": 3, "pool": 0}, "pool is 0"),
        ({"rows": 3}, "give both or neither"),
        ({"rows": 3, "row_length": 8}, "rows need a pool"),
        ({"rows": 3, "row_length": 8, "pool": 9, "samples": 3}, "and exclude samples"),
        ({"rows": 3, "row_length": 8, "pool": 9, "oversize": "alone"}, "fits no row"),
        ({"samples": 3, "pool": 3, "pool_unit": "chunks"}, "'chunks'"),
        ({"samples": 3, "drop_last": "yes"}, "drop_last is 'yes'; expected True or False"),
        ({"samples": 3, "pool": 9, "carry": 1}, "carry is 1; expected True or False"),
        ({"samples": 3, "carry": True}, "carry needs a pool"),
        ({"samples": {0: 3, 9: 4}, "pool": 9, "carry": True}, "carry and a table of samples exclude each other"),
        ({"samples": 3, "pool": 9, "carry": True, "balance": "attention"}, "carry and balance exclude each other"),
    ],
)
def test_an_impossible_budget_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Budget(**options)


@pytest.mark.parametrize(
    ("options", "budget", "partition", "text"),
    [
        ({"window": None}, Budget(samples=9, pool=3), Partition(), "needs a randomized order"),
        ({"window": Window(1, "chunks")}, Budget(samples=9, pool=4), Partition(), "holds about 3 sequences"),
        (
            {"window": Window(6, "samples")},
            Budget(samples=9, pool=7, pool_unit="samples"),
            Partition(),
            "about 6 samples",
        ),
        ({"window": None, "truncation_length": 2}, Budget(samples=9), Partition(), "fixed number of steps"),
        (
            {"window": Window(2, "chunks")},
            Budget(rows=2, row_length=9, pool=2),
            GlobalPartition(0, 2, "chunk"),
            "deal='chunk' and rows",
        ),
        ({"window": None}, Budget(samples=9), GlobalPartition(0, 2, "length", "merge"), "remainder='merge'"),
        ({"window": None}, Budget(samples=9, drop_last=True), BalancedPartition(0, 1), "use a GlobalPartition"),
        ({"window": None}, Budget(sequences=7, drop_last=True), Partition(), "a sweep has 6 sequences.* needs 7"),
        (
            {"window": Window(2, "chunks")},
            Budget(sequences=12, pool=5, drop_last=True),
            Partition(0, 2),
            "a pool has 5 sequences.* of a partition needs 6",
        ),
        (
            {"window": Window(2, "chunks")},
            Budget(samples=9, pool=4, carry=True),
            GlobalPartition(0, 2, lanes=2),
            "lanes and carry exclude each other",
        ),
        ({"window": None}, Budget(samples=9, sequences=1), Partition(0, 2), "sequences=1 in a Budget for 2 partitions"),
    ],
)
def test_what_cannot_be_combined_is_refused(
    options: dict[str, Any], budget: Budget, partition: Partition, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        timeline_of([[2, 2, 2], [2, 2, 2]], **options).read(budget, partition)


def test_size_or_partition_do_not_change_inside_a_pool() -> None:
    timeline = timeline_of([[1, 2, 3, 4]], Window(1, "chunks"))
    budget = Budget(sequences=2, pool=4)
    timeline.read(budget)
    with pytest.raises(ConfigError, match="after 1 of the 2 minibatches of a pool"):
        timeline.read(4)
    timeline.read(budget)
    assert timeline.read(4) is not None


def test_a_state_with_an_unknown_minibatch_of_a_pool_is_refused() -> None:
    timeline = timeline_of([[1, 2, 3, 4]], Window(1, "chunks"))
    timeline.read(Budget(sequences=2, pool=4, buckets=(2, 4)))
    state = timeline.state()
    assert (state["batch"], state["position"]) == (1, 0)
    assert state["minibatch_size"] == {"sequences": 2, "pool": 4, "buckets": [2, 4]}
    again = timeline_of([[1, 2, 3, 4]], Window(1, "chunks"))
    for damage in ({"batch": 2}, {"minibatch_size": {"sequences": 2}}, {"minibatch_size": {"size": 2}}, {"batch": -1}):
        with pytest.raises(CheckpointError):
            again.load_state({**state, **damage})
    again.load_state(state)
    assert again.state() == state


@given(
    limit=st.integers(1, 2**40),
    quadratic=st.none() | st.integers(1, 2**20),
    buckets=st.sets(st.integers(1, 9), max_size=2),
)
def test_the_longest_sequence_is_the_last_that_fits(limit: int, quadratic: int | None, buckets: set[int]) -> None:
    budget = Budget(samples=limit, quadratic=quadratic, pool=1, buckets=tuple(buckets))
    longest = budget.longest
    limit_of_core = 2**32 - 1
    assert longest == 0 or keeps(budget, [longest])
    assert longest == limit_of_core or not keeps(budget, [longest + 1])

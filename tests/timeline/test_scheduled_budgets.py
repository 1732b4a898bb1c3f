"""Budgets whose limits change with the position. (docs/schedules.md)"""

import functools
import json
import logging
from typing import Any

import numpy as np
import pytest
from cntkio import BalancedPartition, Budget, CheckpointError, ConfigError, GlobalPartition, Partition
from cntkio.timeline import Window
from cntkio.timeline.budget import check_schedules, size_from_json, size_to_json
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow.batches import budget_at, is_taken, keeps, scheduled_batches
from slow.timeline import sweep_order
from support import timelines
from support.elastic import require_same_minibatches
from support.rounds import rounds
from support.timelines import Chunks, is_possible, read_all, window_for
from support.twister import WORD

timeline_of = functools.partial(timelines.timeline_of, max_sweeps=2)

properties = settings(max_examples=rounds(100), suppress_health_check=list(HealthCheck), deadline=None)

some_chunks = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=8), min_size=1, max_size=8)
some_seeds = st.sampled_from([0, 1, 7, 2**64 - 1])


class Scheduled:
    """A budget, and what its slow twin needs."""

    def __init__(self, limits: dict[str, Any], tables: dict[str, dict[int, int]], between: Any) -> None:
        self.limits, self.tables, self.between = limits, tables, between
        self.budget = Budget(**limits, **tables, between=between)

    def at(self, position: int, count: int = 1) -> Budget:
        """Return the budget of one of `count` partitions at a position."""
        divided = {"samples", "sequences", "padded", "rows"}
        parts = {name: count if name in divided else 1 for name in (*self.limits, *self.tables)}
        tables = {
            name: {at: value // parts[name] for at, value in table.items()} for name, table in self.tables.items()
        }
        limits = {name: value // count if name in divided and value else value for name, value in self.limits.items()}
        return budget_at(limits, tables, self.between, position)

    def __repr__(self) -> str:
        return repr(self.budget)


@st.composite
def some_budgets(draw: st.DrawFn, count: int = 1, can_drop_last: bool = False, oversize: str = "") -> Scheduled:
    limits: dict[str, Any] = {"drop_last": can_drop_last and draw(st.booleans())}
    limits["oversize"] = oversize or draw(st.sampled_from(["alone", "drop"]))
    tables: dict[str, dict[int, int]] = {}

    def some_limit(name: str, least: int, most: int) -> None:
        values = st.integers(least, most).map(lambda value: count * value if name != "max_length" else value)
        if draw(st.integers(0, 2)):
            table = draw(st.dictionaries(st.integers(0, 160), values, min_size=2, max_size=4))
            if len(set(table.values())) > 1:
                tables[name] = table
                return
        limits[name] = draw(values)

    if draw(st.integers(0, 4)) == 0:
        some_limit("rows", 1, 4)
        limits |= {"row_length": draw(st.integers(4, 20)), "oversize": "drop", "pool": draw(st.integers(1, 30))}
    else:
        for name, least, most in (("samples", 1, 40), ("sequences", 1, 6), ("padded", 1, 40)):
            if draw(st.booleans()):
                some_limit(name, least, most)
        if not {"samples", "sequences", "padded"} & {*limits, *tables}:
            some_limit("samples", 1, 40)
        if {"samples", "padded"} & {*limits, *tables}:
            limits["quadratic"] = draw(st.none() | st.integers(1, 20))
        if draw(st.booleans()):
            limits["pool"] = draw(st.integers(1, 30))
            limits["pool_unit"] = draw(st.sampled_from(["sequences", "samples"]))
            limits["buckets"] = tuple(draw(st.sets(st.integers(1, 9), max_size=3)))
    if limits["oversize"] == "drop" and draw(st.booleans()):
        some_limit("max_length", 1, 9)
    return Scheduled(limits, tables, draw(st.sampled_from(["linear", "steps"])) if tables else "linear")


@properties
@given(chunks=some_chunks, seed=some_seeds, is_random=st.booleans(), count=st.integers(1, 3), data=st.data())
def test_minibatches_are_those_of_the_slow_twin(
    chunks: Chunks, seed: int, is_random: bool, count: int, data: st.DataObject
) -> None:
    partition = Partition(data.draw(st.integers(0, count - 1)), count)
    case = data.draw(some_budgets(count, can_drop_last=True))
    if not is_possible(chunks, case.budget, count) or partition.index >= len(chunks):
        return
    window = window_for(case.budget, chunks, is_random or count > 1)
    found = read_all(timeline_of(chunks, window, seed=seed), case.budget, partition, data.draw(st.integers(1, 5)))
    lengths = [length for chunk in chunks for length in chunk]
    orders = [
        [(0, at) for at in range(len(lengths))] if window is None else
        sweep_order(chunks, window.size, window.unit, (seed + sweep) % WORD) for sweep in range(2)
    ]  # fmt: skip
    own = [[rank % count == partition.index for rank, _ in order] for order in orders]
    sequences = [[sequence for _, sequence in order] for order in orders]
    expected = scheduled_batches(lambda at: case.at(at, count), lengths, sequences, own, seed)
    assert [minibatch for minibatch, _ in found if minibatch] == expected


@properties
@given(chunks=some_chunks, seed=some_seeds, count=st.integers(1, 3), kind=st.sampled_from("cbgow"), data=st.data())
def test_a_state_continues_in_a_new_timeline(
    chunks: Chunks, seed: int, count: int, kind: str, data: st.DataObject
) -> None:
    case = data.draw(some_budgets(count, can_drop_last=kind != "b"))
    index = data.draw(st.integers(0, count - 1))
    if not is_possible(chunks, case.budget, count if kind in "cb" else 1):
        return
    partition: Partition = {
        "c": Partition(index, count),
        "b": BalancedPartition(index, count, data.draw(st.sampled_from(["drop", "repeat"]))),
        "g": GlobalPartition(index, count, data.draw(st.sampled_from(["length", "area"]))),
        "o": GlobalPartition(index, count, "chunk" if case.budget.rows is None else "length"),
        "w": GlobalPartition(index, count, "length", "empty", data.draw(st.integers(0, 1)), 2),
    }[kind]
    options: dict[str, Any] = {
        "window": window_for(case.budget, chunks, kind == "o" or data.draw(st.booleans())), "seed": seed,
        "loads_parts": data.draw(st.booleans()),
    }  # fmt: skip
    timeline = timeline_of(chunks, **options)
    steps, states = list[Any](), list[Any]()
    while (selection := timeline.read(case.budget, partition)) is not None:
        steps.append((selection.sequences.tolist(), selection.end_of_sweep))
        states.append(json.loads(json.dumps(timeline.state())))
        assert len(steps) < 1000
    assert read_all(timeline_of(chunks, **options), case.budget, partition, 7) == steps
    for at in range(len(steps)):
        again = timeline_of(chunks, **options)
        again.load_state(states[at])
        assert read_all(again, case.budget, partition) == steps[at + 1 :]
        passed = timeline_of(chunks, **options)
        if passed.pass_over(case.budget, partition, at + 1, 2**64 - 1) == at + 1:
            assert read_all(passed, case.budget, partition) == steps[at + 1 :]


@properties
@given(chunks=some_chunks, seed=some_seeds, counts=st.lists(st.integers(1, 4), min_size=2, max_size=4), data=st.data())
def test_global_minibatches_do_not_depend_on_the_number_of_ranks(
    chunks: Chunks, seed: int, counts: list[int], data: st.DataObject
) -> None:
    case = data.draw(some_budgets(can_drop_last=True))
    if not is_possible(chunks, case.budget):
        return
    window = window_for(case.budget, chunks, data.draw(st.booleans()))
    whole = read_all(timeline_of(chunks, window, seed=seed), case.budget, Partition())
    require_same_minibatches(
        lambda: timeline_of(chunks, window, seed=seed, loads_parts=True), case.budget, counts, whole
    )


@properties
@given(chunks=some_chunks, seed=some_seeds, count=st.integers(1, 3), is_global=st.booleans(), data=st.data())
def test_ranks_deliver_each_sequence_that_is_short_enough_once(
    chunks: Chunks, seed: int, count: int, is_global: bool, data: st.DataObject
) -> None:
    case = data.draw(some_budgets(count))
    if not is_possible(chunks, case.budget, 1 if is_global else count):
        return
    window = window_for(case.budget, chunks, data.draw(st.booleans()))
    lengths = [length for chunk in chunks for length in chunk]
    found = list[int]()
    for index in range(count):
        partition = GlobalPartition(index, count) if is_global else BalancedPartition(index, count, "drop")
        timeline, begin = timeline_of(chunks, window, seed=seed, max_sweeps=1), 0
        while (selection := timeline.read(case.budget, partition)) is not None:
            own = [lengths[sequence] for sequence in selection.sequences.tolist()]
            found += selection.sequences.tolist()
            if is_global and own and case.budget.oversize == "drop":
                assert keeps(case.at(begin), own) and all(is_taken(case.at(begin), length) for length in own)
            begin = timeline.position
    assert len(found) == len(set(found))
    if case.budget.oversize == "alone" and is_global:
        assert sorted(found) == list(range(len(lengths)))
    if is_global:  # every other sequence is too long for the limits somewhere
        assert all(lengths[sequence] > case.budget.longest for sequence in {*range(len(lengths))} - {*found})


RAMP = Budget(samples={0: 10, 100: 30}, pool=8)
LENGTHS = [[1, 2, 3, 4, 5, 6, 7, 8]] * 9


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"samples": {0: 10, 100: 30, 200: 90}}, None),
        ({"samples": {0: 10, 80: 26, 90: 90}}, None),
        ({"samples": {0: 10, 100: 30}, "sequences": 6}, None),
        ({"samples": {0: 10, 100: 31}}, "samples differs from the former reads between positions 0 and"),
        ({"samples": 20}, "between positions 0 and .*: 10 to .. there, 20 to 20 here; .* from position"),
        ({"samples": {0: 10, 100: 30}, "padded": {0: 30, 90: 40}}, "padded is .*, but the former reads had None"),
    ],
)
def test_a_schedule_changes_after_a_state_and_not_before(limits: dict[str, Any], message: str | None) -> None:
    window = Window(9, "chunks")
    for num_reads in (1, 3, 7):
        one, other = timeline_of(LENGTHS, window), timeline_of(LENGTHS, window)
        for _ in range(num_reads):
            one.read(RAMP)
        state = json.loads(json.dumps(one.state()))
        other.load_state(state)
        size = Budget(**limits, pool=8)
        if message is None and (state.get("batch", 0) == 0 or "sequences" not in limits):
            rest = read_all(other, size, Partition())
            assert other.state()["minibatch_size"] == size_to_json(size)
            if set(limits) == {"samples"}:  # the new run is what a run with the new schedule delivers
                assert rest == read_all(timeline_of(LENGTHS, window), size, Partition())[num_reads:]
        else:
            with pytest.raises(ConfigError, match=message or "change after . of"):
                other.read(size)
            assert other.state() == state


def test_steps_are_compared_up_to_the_position() -> None:
    former = Budget(sequences={0: 2, 10: 4}, between="steps")
    check_schedules(former, Budget(sequences={0: 2, 10: 9}, between="steps"), 10)
    with pytest.raises(ConfigError, match="between positions 10 and 11: 4 to 4 there, 9 to 9 here"):
        check_schedules(former, Budget(sequences={0: 2, 10: 9}, between="steps"), 11)
    check_schedules(Budget(samples=5), Budget(samples=9), 11)
    check_schedules(7, former, 11)


def test_a_budget_with_tables_is_the_same_after_json() -> None:
    budget = Budget(rows={np.int64(0): np.int64(2), 9: 4}, row_length=9, pool=7, max_length={0: 4, 90: 9})
    json_of_budget = json.loads(json.dumps(size_to_json(budget)))
    assert json_of_budget["rows"] == [[0, 9], [2, 4], "linear"]
    assert size_from_json(json_of_budget) == budget and hash(budget) == hash(size_from_json(json_of_budget))
    assert Budget(samples={5: 3, 9: 3}) == Budget(samples=3)
    for damage in (
        [[0, 9], [2], "linear"],
        [[9, 0], [2, 4], "linear"],
        [[0, 9], [2, 4], "curve"],
        [[0], [0], "linear"],
    ):
        with pytest.raises(CheckpointError):
            size_from_json({**json_of_budget, "rows": damage})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": {}}, "samples is {}"),
        ({"samples": {-1: 5}}, "samples is {-1: 5}"),
        ({"samples": {0: 0, 9: 5}}, "samples at position 0 is 0"),
        ({"samples": {0: 1.5, 9: 5}}, "samples at position 0 is 1.5"),
        ({"samples": 5, "between": "steps"}, "of no use without a table"),
        ({"samples": {0: 5, 9: 6}, "between": "curve"}, "between"),
        ({"samples": 5, "pool": {0: 5, 9: 6}}, "pool"),
        ({"max_length": 5}, "needs a limit"),
        ({"samples": 9, "max_length": 5, "oversize": "alone"}, "exclude each other"),
    ],
)
def test_an_impossible_table_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Budget(**options)


def test_sequences_that_are_too_long_somewhere_are_an_error_or_counted(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="27 of 72 sequences are longer than the 5 samples"):
        timeline_of(LENGTHS, None).read(Budget(samples=99, max_length={0: 5, 90: 9}))
    with caplog.at_level(logging.WARNING):
        timeline_of(LENGTHS, None).read(Budget(samples=99, max_length={0: 5, 90: 9}, oversize="drop"))
    assert "drops up to 27 of 72 sequences in each sweep: they are longer than 5" in caplog.text
    with pytest.raises(ConfigError, match="drops all 72"):
        timeline_of([[8] * 8] * 9, None).read(Budget(samples=99, max_length={0: 5, 90: 9}, oversize="drop"))


def test_ranks_whose_sequences_come_later_are_not_at_the_end() -> None:
    budget = Budget(samples=18, max_length={0: 1, 60: 9}, oversize="drop")
    chunks = [[1, 5, 5], [6, 6, 6]]  # the second partition has long sequences only
    found = read_all(timeline_of(chunks, Window(1, "chunks"), max_sweeps=4), budget, Partition(1, 2), 3)
    assert sum(len(sequences) for sequences, _ in found) >= 5
    assert all(sequences for sequences, _ in found)

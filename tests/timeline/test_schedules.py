"""Weights that change with the position: turns as the slow twin has them, exact within one. (docs/mixtures.md)"""

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    Budget,
    CheckpointError,
    ConfigError,
    CTFDeserializer,
    GlobalPartition,
    Mixture,
    SequenceMixture,
    StreamDef,
    StreamDefs,
)
from cntkio.timeline.schedule import Schedule
from cntkio.timeline.weights import Weights
from hypothesis import given, settings
from hypothesis import strategies as st
from slow import mixtures as slow
from support.rounds import rounds

STREAMS = StreamDefs(x=StreamDef(field="x", shape=1))
TABLE_OF_ONE = st.dictionaries(st.integers(0, 9000), st.integers(1, 64), min_size=1, max_size=3)
TABLE_WITH_ZEROS = st.dictionaries(st.integers(0, 9000), st.integers(0, 3), min_size=2, max_size=4)
# The first component always has weight, so the weights are never all 0.
TABLES = st.builds(
    lambda first, others: [first, *others],
    TABLE_OF_ONE,
    st.lists(TABLE_OF_ONE | TABLE_WITH_ZEROS, min_size=1, max_size=3),
)


@settings(max_examples=rounds(30))
@given(tables=TABLES, between=st.sampled_from(["linear", "steps"]), later=st.integers(0, 9000))
def test_blocks_are_those_of_the_slow_twin(tables: list[dict[int, int]], between: str, later: int) -> None:
    names = "abcd"[: len(tables)]
    weights = Weights.of(dict(zip(names, tables, strict=True)), names, between)
    expected = slow.scheduled(tables, is_linear=between == "linear", end=10_000)
    for (first, counts), (end, _) in itertools.pairwise([*expected, (10_000, [])]):
        if first < end:
            # Remainders that are equal as fractions may differ as floats.
            assert np.abs(np.array(weights.counts_at(first)) - counts).max() <= 1
    components = weights.components(0, 10_000)
    for position in (0, later, 9_999):
        assert weights.taken_at(position) == tuple(np.bincount(components[:position], minlength=len(names)))
        assert weights.component(position) == components[position]
        part = int(components[position])
        assert weights.position_after(part, weights.taken_at(position)[part] + 1) == position + 1
    rests = np.flatnonzero(np.array([table[max(table)] for table in tables]) == 0).tolist()
    assert all(weights.position_after(part, 10_000_000) == 2**62 for part in rests)
    # The same tables from a later position on: nothing before is lost, and a state has all of it.
    changed = weights.changed(later, weights)
    assert changed.taken_at(later) == weights.taken_at(later)
    assert Weights.from_json(json.loads(json.dumps(changed.to_json())), names) == changed


@settings(max_examples=rounds(30))
@given(
    table=TABLES.map(lambda tables: tables[0]), between=st.sampled_from(["linear", "steps"]), at=st.integers(0, 9999)
)
def test_a_value_is_exact_and_its_normal_form_is_read_again(table: dict[int, int], between: str, at: int) -> None:
    found = Schedule.of("a size", table, between, key="sizes")
    assert found.at(at) == slow.weight(table, at, is_linear=between == "linear")
    assert found.values_at(np.array([at]))[0] == pytest.approx(float(found.at(at)))
    assert Schedule.from_json("sizes", json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize(
    "table", [{}, {-1: 1}, {0.5: 1}, {True: 1}, {2**62: 1}, {0: "1"}, {0: None}, {3: float("nan")}, "1"]
)
def test_an_impossible_table_is_refused_in_arguments_and_states(table: Any) -> None:
    with pytest.raises(ConfigError, match="the size is|the size at position [03] is"):
        Schedule.of("the size", table, key="sizes")
    columns = [list(table), list(table.values())] if isinstance(table, dict) else [table, table]
    with pytest.raises(CheckpointError, match="'sizes'"):
        Schedule.from_json("sizes", [*columns, "linear"])


TABLE: dict[str, Any] = {"a": {0: 0.8, 3000: 0.2}, "b": {0: 0.2, 3000: 0.8}}


def mixture(folder: Path, kind: Any = SequenceMixture, weights: dict[str, Any] = TABLE, **options: Any) -> Any:
    for name in weights:
        if not (folder / name).exists():
            (folder / name).write_text("".join(f"|x {key}\n" * (1 + key % 3) + "\n" for key in range(50)))
    corpora = {name: CTFDeserializer(folder / name, STREAMS) for name in weights}
    return kind({name: (corpora[name], weights[name]) for name in weights}, stop="forever", **options)


# For each kind: its size of a minibatch of which a turn has all, and turns of a step.
KINDS = pytest.mark.parametrize(
    ("kind", "size", "num_turns"), [(Mixture, 3, 1), (SequenceMixture, Budget(sequences=100), 100)]
)


@KINDS
def test_a_block_of_a_table_has_its_exact_shares_in_both_kinds(
    kind: Any, size: Any, num_turns: int, tmp_path: Path
) -> None:
    with mixture(tmp_path, kind) as one:
        assert one.weights == {"a": 0.7, "b": 0.3}
        if kind is Mixture:
            turns = one.plan(size).steps(4000).components["a"] > 0
        else:
            turns = np.concatenate([one.read(size).source_of_sequences == "a" for _ in range(4000 // num_turns)])
    assert turns.reshape(4, 1000).sum(axis=1).tolist() == [700, 500, 300, 200]


@KINDS
def test_tables_may_change_after_the_position_of_a_state(kind: Any, size: Any, num_turns: int, tmp_path: Path) -> None:
    later = {"a": {0: 0.8, 3000: 0.2, 9000: 5}, "b": {0: 0.2, 3000: 0.8}}
    earlier = {"a": {0: 0.8, 2000: 0.2}, "b": TABLE["b"]}
    with (
        mixture(tmp_path, kind) as one,
        mixture(tmp_path, kind, later) as other,
        mixture(tmp_path, kind, earlier) as no,
    ):
        for _ in range(1500 // num_turns):
            one.read(size)
        state = json.loads(json.dumps(one.state_dict()))
        before = no.state_dict()
        with pytest.raises(CheckpointError, match="differ from position 0 on, before position 1500 of the state"):
            no.load_state_dict(state)
        assert no.state_dict() == before
        other.load_state_dict(state)
        # The state names the tables that hold from now on, and needs no more of them than their points.
        ((_, schedules, _),) = other.state_dict()["timeline"]["weights"]
        assert schedules == [[[0, 3000, 9000], [0.8, 0.2, 5], "linear"], [[0, 3000], [0.2, 0.8], "linear"]]
        for _ in range(1500 // num_turns):
            assert one.read(size).keys_of_sequences.tolist() == other.read(size).keys_of_sequences.tolist()
        assert one.weights == {"a": 0.2, "b": 0.8} != other.weights
        # The former tables would say something else about what was delivered.
        with pytest.raises(CheckpointError, match="position 3000"):
            other.read(size)
            one.load_state_dict(json.loads(json.dumps(other.state_dict())))


@KINDS
def test_new_weights_of_a_state_hold_whatever_tables_a_script_has(
    kind: Any, size: Any, num_turns: int, tmp_path: Path
) -> None:
    other_table = {"a": {0: 0.5, 900: 0.9}, "b": 0.1}
    with mixture(tmp_path, kind) as one:
        for weights in (other_table, {"a": 1, "b": 9}, other_table):
            one.set_weights(weights, between="steps")
        for _ in range(200 // num_turns):
            one.read(size)
        one.set_weights({"a": 1, "b": 3})
        state = json.loads(json.dumps(one.state_dict()))
        following = [one.read(size).keys_of_sequences.tolist() for _ in range(5)]
        assert one.weights == {"a": 0.25, "b": 0.75}
        with pickle.loads(pickle.dumps(one)) as copy:
            assert json.loads(json.dumps(copy.state_dict())) == json.loads(json.dumps(one.state_dict()))
            copy.load_state_dict(state)
            assert [copy.read(size).keys_of_sequences.tolist() for _ in range(5)] == following
    for tables, options in ((TABLE, {}), (other_table, {"between": "steps"}), ({"a": 1, "b": 1}, {})):
        with mixture(tmp_path, kind, tables, **options) as again:
            again.load_state_dict(state)
            assert again.state_dict() == state
            assert [again.read(size).keys_of_sequences.tolist() for _ in range(5)] == following


def test_tables_change_inside_a_pool_only_after_it(tmp_path: Path) -> None:
    """A pool of samples is no such place, because what follows decides where it ends."""
    later = {"a": {0: 0.8, 3000: 0.2, 9000: 5}, "b": TABLE["b"]}
    for unit in ("sequences", "samples"):
        size = Budget(sequences=7, pool=30, pool_unit=unit)
        with mixture(tmp_path) as one, mixture(tmp_path, weights=later) as other:
            for _ in range(2):
                one.read(size)
            state = one.state_dict()
            if unit == "samples":
                with pytest.raises(CheckpointError, match="inside a pool of samples"):
                    other.load_state_dict(state)
                continue
            other.load_state_dict(state)
            assert one.read(size).keys_of_sequences.tolist() == other.read(size).keys_of_sequences.tolist()


def test_a_restored_mixture_follows_its_tables_on_any_number_of_ranks(tmp_path: Path) -> None:
    size = Budget(sequences=100)
    with mixture(tmp_path) as one:
        shares = [(one.read(size).source_of_sequences == "a").sum() for _ in range(40)]
        assert [sum(shares[k : k + 10]) for k in (0, 10, 20, 30)] == [700, 500, 300, 200]
        plan = one.plan(size)
        assert plan.steps(40).num_sequences.tolist() == [100] * 40
        state = json.loads(json.dumps(plan.state_at(12)))
        expected = [plan.explain(step).keys.tolist() for step in range(12, 20)]
    for count in (1, 3):
        found: list[list[int]] = [[] for _ in expected]
        for rank in range(count):
            with mixture(tmp_path) as other:
                other.load_state_dict(state)
                for step in found:
                    minibatch = other.read(size, GlobalPartition(rank, count))
                    assert minibatch is not None
                    step += minibatch.keys_of_sequences.tolist()
        assert list(map(sorted, found)) == list(map(sorted, expected))


def test_new_tables_hold_from_the_position_on(tmp_path: Path) -> None:
    size = Budget(sequences=1000)
    with mixture(tmp_path) as one:
        one.read(size)
        one.set_weights({"a": {1000: 0.5, 2000: 0.1}, "b": {0: 0.5, 2000: 0.9}}, between="steps")
        shares = [(one.read(size).source_of_sequences == "a").sum() for _ in range(2)]
        assert shares == [500, 100]
        with pytest.raises(ConfigError, match="expected a number"):
            one.set_weights({"a": {}, "b": 1})
        with pytest.raises(ConfigError, match="between"):
            one.set_weights({"a": 1, "b": 1}, between="curve")
        with pytest.raises(ConfigError, match="thousandth"):
            one.set_weights({"a": {0: 1, 5: 0.0001}, "b": 1})


@KINDS
def test_a_part_whose_weight_becomes_zero_has_no_turn_there(
    kind: Any, size: Any, num_turns: int, tmp_path: Path
) -> None:
    weights = {"a": {0: 1, 2000: 0}, "b": {0: 0, 2000: 1}}
    steps = {"a": {0: 1, 1000: 0, 2000: 1}, "b": 1}
    with mixture(tmp_path, kind, weights) as one, mixture(tmp_path, kind, steps, between="steps") as other:
        for made, expected in ((one, [750, 250, 0, 0]), (other, [500, 0, 500, 500])):
            shares = made.plan(size).steps(4000 // num_turns).components["a"] > 0
            if kind is SequenceMixture:
                shares = np.concatenate([made.read(size).source_of_sequences == "a" for _ in range(40)])
            assert shares.reshape(4, 1000).sum(axis=1).tolist() == expected
            state = json.loads(json.dumps(made.state_dict()))
            made.load_state_dict(state)
            assert made.state_dict() == state
        with pytest.raises(ConfigError, match="components are 0 at position 5"):
            one.set_weights({"a": {0: 1, 5: 0}, "b": {0: 1, 5: 0, 9: 1}})
        damaged = json.loads(json.dumps(state))
        damaged["timeline"]["weights"][0][1] = [[[0, 9], [1, 0], "linear"]] * 2
        with pytest.raises(CheckpointError, match="never all 0"):
            other.load_state_dict(damaged)
    corpora = {name: (CTFDeserializer(tmp_path / name, STREAMS), table) for name, table in weights.items()}
    with pytest.raises(ConfigError, match="stop='all' waits for 'a', but its weight stays 0 from 2000 on"):
        kind(corpora, stop="all")

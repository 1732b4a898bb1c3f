"""Weights that change with the position: turns as the slow twin has them, exact within one. (docs/mixtures.md)"""

import itertools
import json
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
    SequenceMixture,
    StreamDef,
    StreamDefs,
)
from cntkio.timeline.mixed import scheduled
from cntkio.timeline.schedule import Schedule
from hypothesis import given, settings
from hypothesis import strategies as st
from slow import mixtures as slow
from support.rounds import rounds

STREAMS = StreamDefs(x=StreamDef(field="x", shape=1))
TABLES = st.lists(
    st.dictionaries(st.integers(0, 9000), st.integers(1, 64), min_size=1, max_size=3), min_size=2, max_size=4
)


@settings(max_examples=rounds(30))
@given(tables=TABLES, between=st.sampled_from(["linear", "steps"]), later=st.integers(0, 9000))
def test_blocks_are_those_of_the_slow_twin(tables: list[dict[int, int]], between: str, later: int) -> None:
    schedules = [Schedule.of("a weight", table, between, key="weights") for table in tables]
    found = scheduled(schedules)
    expected = slow.scheduled(tables, is_linear=between == "linear", end=10_000)
    ends = [*(first for first, _ in expected[1:]), 10_000]
    for (first, counts), end in zip(expected, ends, strict=True):
        if first == end:
            continue
        weights = next(one for one in reversed(found) if one.first <= first)
        # Remainders that are equal as fractions may differ as floats.
        assert np.abs(np.array(weights.counts) - counts).max() <= 1
        assert sum(weights.counts) == 1000 and sum(weights.taken_at(first)) == first
    for one, other in itertools.pairwise(found):
        assert other.taken == one.taken_at(other.first)
    # From a later position on: each block there has its own weights, and nothing before is lost.
    before = next(one for one in reversed(found) if one.first <= later).taken_at(later)
    assert scheduled(schedules, later, before)[0].taken == before


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


def mixture(folder: Path, **options: Any) -> SequenceMixture:
    parts = {"a": {0: 0.8, 3000: 0.2}, "b": {0: 0.2, 3000: 0.8}}
    for name in parts:
        (folder / name).write_text("".join(f"|x {key}\n" * (1 + key % 3) + "\n" for key in range(50)))
    corpora = {name: CTFDeserializer(folder / name, STREAMS) for name in parts}
    return SequenceMixture({name: (corpora[name], parts[name]) for name in parts}, stop="forever", **options)


def test_a_restored_mixture_follows_its_tables_on_any_number_of_ranks(tmp_path: Path) -> None:
    size = Budget(sequences=100)
    with mixture(tmp_path) as one:
        shares = [(one.read(size).source_of_sequences == "a").sum() for _ in range(40)]  # type: ignore[union-attr]
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
        shares = [(one.read(size).source_of_sequences == "a").sum() for _ in range(2)]  # type: ignore[union-attr]
        assert shares == [500, 100]
        with pytest.raises(ConfigError, match="expected a number"):
            one.set_weights({"a": {}, "b": 1})
        with pytest.raises(ConfigError, match="between"):
            one.set_weights({"a": 1, "b": 1}, between="curve")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="thousandth"):
            one.set_weights({"a": {0: 1, 5: 0.0001}, "b": 1})

"""Sources that are read by budget: minibatches, plans, states and pickles. (docs/batches.md)"""

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    BalancedPartition,
    Budget,
    ConfigError,
    CTFDeserializer,
    GlobalPartition,
    MinibatchSource,
    Partition,
    StreamDef,
    StreamDefs,
    UnsupportedError,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rounds import rounds

properties = settings(max_examples=rounds(40), suppress_health_check=list(HealthCheck))
X = StreamDefs(x=StreamDef(field="x", shape=2))
Y = StreamDefs(y=StreamDef(field="y", shape=1))
PARTITIONS = [
    Partition(),
    Partition(1, 2),
    BalancedPartition(1, 2),
    GlobalPartition(1, 2),
    GlobalPartition(0, 3, "area"),
]
BUDGETS = [
    Budget(padded=24),
    Budget(samples=24, sequences=9),
    Budget(padded=24, pool=20),
    Budget(padded=24, pool=60, pool_unit="samples", buckets=(3, 6)),
    Budget(padded=24, samples=18, quadratic=9, oversize="alone", pool=9),
    Budget(padded=15, oversize="drop", pool=9),
    Budget(rows=4, row_length=7, pool=20),
]

Found = list[tuple[list[int], bool]]


def source_in(folder: Path, is_joined: bool = False, **options: Any) -> MinibatchSource:
    lengths = np.random.default_rng(3).integers(1, 7, 60).tolist()
    x = [f"{key} |x {key} {step}\n" for key, length in enumerate(lengths) for step in range(length)]
    y = [f"{key} |y {key}\n" for key in range(0, 60, 2)]
    (folder / "x.ctf").write_text("".join(x))
    (folder / "y.ctf").write_text("".join(y))
    deserializers = [CTFDeserializer(folder / "x.ctf", X, chunk_size_in_bytes=100)]
    if is_joined:
        deserializers.append(CTFDeserializer(folder / "y.ctf", Y, chunk_size_in_bytes=100))
    return MinibatchSource(deserializers, **{"max_sweeps": 2, **options})


def read_all(source: MinibatchSource, budget: Budget, partition: Partition) -> Found:
    found = []
    while (minibatch := source.read(budget, partition)) is not None:
        keys = minibatch.keys_of_sequences.tolist()
        x = minibatch["x"]
        assert x.values[:, 0].tolist() == np.repeat(keys, x.lengths).tolist()
        found.append((keys, minibatch.end_of_sweep))
    return found


@properties
@given(
    budget=st.sampled_from(BUDGETS), partition=st.sampled_from(PARTITIONS), is_joined=st.booleans(),
    at=st.integers(0, 60), memory=st.sampled_from([{}, {"read_ahead_in_bytes": 0}, {"keep_data_in_memory": True}]),
)  # fmt: skip
def test_a_restored_source_continues_and_its_plan_agrees(
    module_folder: Path, budget: Budget, partition: Partition, is_joined: bool, at: int, memory: dict[str, Any]
) -> None:
    with source_in(module_folder, is_joined) as source:
        whole = read_all(source, budget, partition)
    at = min(at, len(whole) - 1)
    with source_in(module_folder, is_joined, **memory) as source:
        for _ in range(at):
            source.read(budget, partition)
        state = json.loads(json.dumps(source.state_dict()))
        copy = pickle.loads(pickle.dumps(source))
    plan = copy.plan(budget, partition)
    steps = plan.steps(1000)
    assert steps.num_sequences.tolist() == [len(keys) for keys, _ in whole]
    assert steps.ends_of_sweep.tolist() == [flag for _, flag in whole]
    assert plan.explain(at).keys.tolist() == whole[at][0]
    if at:
        assert plan.state_at(at) == state
    assert read_all(copy, budget, partition) == whole[at:]
    copy.close()
    with source_in(module_folder, is_joined) as source:
        source.load_state_dict(state)
        assert read_all(source, budget, partition) == whole[at:]
    with source_in(module_folder, is_joined) as source:
        source.skip(at, budget, partition)
        assert read_all(source, budget, partition) == whole[at:]


def test_minibatches_takes_a_budget(module_folder: Path) -> None:
    with source_in(module_folder, max_sweeps=1) as source:
        areas = [
            minibatch["x"].num_sequences * minibatch["x"].num_steps
            for minibatch in source.minibatches(Budget(padded=24))
        ]
    assert max(areas) <= 24 and len(areas) > 5


def test_a_bare_position_goes_to_the_beginning_of_the_pool(module_folder: Path) -> None:
    budget = Budget(padded=24, pool=20)
    with source_in(module_folder) as source:
        first = read_all(source, budget, Partition())[0]
        source.restore_from_checkpoint({"minibatchSourcePosition": 0})
        source.read(budget)
        source.read(budget)
        assert source.get_checkpoint_state() == {"minibatchSourcePosition": 0}
        source.restore_from_checkpoint(source.get_checkpoint_state())
        assert read_all(source, budget, Partition())[0] == first


def test_epochs_cut_the_last_pool_at_their_end(module_folder: Path) -> None:
    budget = Budget(padded=24, pool=10)
    with source_in(module_folder, max_sweeps=2**64 - 1) as source:
        keys = []
        for begin, end in itertools.pairwise([0, 50, 100, 150, source.num_samples]):
            source.begin_epoch(begin, end)
            keys += [key for batch, _ in read_all(source, budget, Partition()) for key in batch]
            assert source.has_ended
    assert sorted(keys) == list(range(60))


def test_a_budget_is_refused_where_lengths_or_steps_do_not_fit(module_folder: Path) -> None:
    with (
        source_in(module_folder, truncation_length=4) as source,
        pytest.raises(ConfigError, match="fixed number of steps"),
    ):
        source.read(Budget(samples=8))
    with source_in(module_folder) as source, pytest.raises(UnsupportedError, match="or a Budget"):
        source.read("8")  # type: ignore[arg-type]

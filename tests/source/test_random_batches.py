"""Sources of random corpora that are read by random budgets. (docs/batches.md)"""

import contextlib
import dataclasses
import json
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    BalancedPartition,
    Budget,
    CTFDeserializer,
    GlobalPartition,
    MinibatchSource,
    Partition,
    SequenceMixture,
    StreamDef,
    StreamDefs,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow.batches import keeps
from support.rounds import rounds

STREAMS = StreamDefs(x=StreamDef(field="x", shape=2))
KINDS: dict[str, Callable[[int, int], Partition]] = {
    "cntk": Partition,
    "balanced": BalancedPartition,
    "global": GlobalPartition,
    "chunk": lambda index, count: GlobalPartition(index, count, "chunk"),
}
MEMORY: list[dict[str, Any]] = [{}, {"read_ahead_in_bytes": 0}, {"keep_data_in_memory": True}]

Found = list[tuple[list[int], bool]]


@st.composite
def some_budgets(draw: st.DrawFn, count: int, can_drop_last: bool) -> Budget:
    limits: dict[str, Any] = {"drop_last": can_drop_last and draw(st.booleans())}
    if draw(st.integers(0, 3)) == 0:
        return Budget(rows=count * draw(st.integers(1, 3)), row_length=draw(st.integers(9, 20)), pool=20, **limits)
    some_limits = st.integers(9, 60).map(lambda limit: count * limit)
    some_tables = st.dictionaries(st.integers(0, 150), some_limits, min_size=1, max_size=4)
    limits |= {draw(st.sampled_from(["samples", "padded"])): draw(some_limits | some_tables)}
    if draw(st.booleans()):
        limits |= {"pool": draw(st.integers(1, 30)), "pool_unit": draw(st.sampled_from(["sequences", "samples"]))}
    return Budget(**limits)


def write(folder: Path, lengths: list[int], half: int) -> list[CTFDeserializer]:
    """Write a corpus in two files; keys continue."""
    found = []
    for number, part in enumerate((range(half), range(half, len(lengths)))):
        lines = (f"{key} |x {key} {step}\n" for key in part for step in range(lengths[key]))
        (folder / f"{number}.ctf").write_text("".join(lines))
        found.append(CTFDeserializer(folder / f"{number}.ctf", STREAMS, chunk_size_in_bytes=60))
    return found


@contextlib.contextmanager
def source_of(
    deserializers: list[CTFDeserializer], is_mixed: bool, memory: dict[str, Any], num_threads: int = 2
) -> Iterator[MinibatchSource]:
    """Open a source with a number of threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CNTKIO_NUM_THREADS", str(num_threads))
        with opened(deserializers, is_mixed, memory) as source:
            yield source


def opened(deserializers: list[CTFDeserializer], is_mixed: bool, memory: dict[str, Any]) -> MinibatchSource:
    if not is_mixed:
        return MinibatchSource(deserializers[0], max_sweeps=1, **memory)
    parts = {
        str(number): (MinibatchSource(of_one, **memory), 1 + number) for number, of_one in enumerate(deserializers)
    }
    return SequenceMixture(parts, stop="all")


def read_all(source: MinibatchSource, budget: Budget, partition: Partition, lengths: list[int]) -> Found:
    found = []
    while (minibatch := source.read(budget, partition)) is not None:
        keys = minibatch.keys_of_sequences.tolist()
        assert minibatch["x"].lengths.tolist() == [lengths[key] for key in keys]
        assert minibatch["x"].values[:, 0].tolist() == np.repeat(keys, minibatch["x"].lengths).tolist()
        found.append((keys, minibatch.end_of_sweep))
    return found


@settings(max_examples=rounds(30), suppress_health_check=list(HealthCheck), deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=4, max_size=40), is_mixed=st.booleans(), count=st.integers(1, 3),
    kind=st.sampled_from([*KINDS]), memory=st.permutations(MEMORY), threads=st.permutations([1, 2, 5]), data=st.data(),
)  # fmt: skip
def test_minibatches_do_not_depend_on_threads_memory_states_or_ranks(
    module_folder: Path, lengths: list[int], is_mixed: bool, count: int, kind: str, memory: Any, threads: Any,
    data: st.DataObject,
) -> None:  # fmt: skip
    budget = data.draw(some_budgets(count, can_drop_last=kind != "balanced"))
    if kind == "chunk" and (is_mixed or budget.rows is not None):
        kind = "global"
    if kind == "global" and budget.pool is not None and data.draw(st.booleans()):
        budget = dataclasses.replace(budget, balance="attention")
    half = data.draw(st.integers(2, len(lengths) - 2)) if is_mixed else len(lengths)
    deserializers = write(module_folder, lengths, half)
    ranks: list[Found] = []
    states: list[Any] = []
    for index in range(count):
        partition = KINDS[kind](index, count)
        with source_of(deserializers, is_mixed, memory[0], threads[0]) as source:
            if kind == "cntk" and not is_mixed and index >= source.num_chunks:
                return
            plan = source.plan(budget, partition).steps(1000)
            ranks.append(read_all(source, budget, partition, lengths))
        assert plan.num_sequences.tolist() == [len(keys) for keys, _ in ranks[-1]]
        at = data.draw(st.integers(0, len(ranks[-1])))
        with source_of(deserializers, is_mixed, memory[1], threads[1]) as source:
            for _ in range(at):
                source.read(budget, partition)
            states.append(json.loads(json.dumps(source.state_dict())))
        with source_of(deserializers, is_mixed, memory[2], threads[2]) as source:
            source.load_state_dict(states[-1])
            assert read_all(source, budget, partition, lengths) == ranks[-1][at:]
    for keys, _ in (step for of_rank in ranks for step in of_rank):
        limits = (budget if kind in ("global", "chunk") else budget.share(count)).extreme(max)
        assert not keys or keeps(limits, [lengths[key] for key in keys])
    if kind != "cntk":
        assert len({len(of_rank) for of_rank in ranks}) == 1
    if not is_mixed and kind != "balanced" and not budget.drop_last:
        assert sorted(key for of_rank in ranks for keys, _ in of_rank for key in keys) == list(range(len(lengths)))
    if is_mixed and kind == "global" and not budget.drop_last:
        times = Counter(key for of_rank in ranks for keys, _ in of_rank for key in keys)
        assert set(times) == set(range(len(lengths)))
        for part in (range(half), range(half, len(lengths))):  # no sequence is a sweep ahead of another of its part
            assert max(times[key] for key in part) - min(times[key] for key in part) <= 1


PROGRAM = """
import json, pickle, sys
from cntkio import Budget
sources = pickle.load(sys.stdin.buffer)
for source in sources:
    minibatches = iter(lambda: source.read(Budget(rows=3, row_length=10, pool=15, balance="attention")), None)
    print(json.dumps([(minibatch.keys_of_sequences.tolist(), minibatch.end_of_sweep) for minibatch in minibatches]))
"""


def test_a_source_continues_in_a_new_process(tmp_path: Path) -> None:
    lengths = np.random.default_rng(1).integers(1, 9, 40).tolist()
    budget = Budget(rows=3, row_length=10, pool=15, balance="attention")
    sources, rests = [], []
    for is_mixed in (False, True):
        (tmp_path / str(is_mixed)).mkdir()
        deserializers = write(tmp_path / str(is_mixed), lengths, 20 if is_mixed else 40)
        with source_of(deserializers, is_mixed, {}) as source:
            rests.append(read_all(source, budget, Partition(), lengths)[5:])
        sources.append(opened(deserializers, is_mixed, {}))
        for _ in range(5):
            sources[-1].read(budget)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=pickle.dumps(sources), capture_output=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr.decode()
    for source, line, rest in zip(sources, ran.stdout.splitlines(), rests, strict=True):
        source.close()
        assert [(keys, end) for keys, end in json.loads(line)] == rest

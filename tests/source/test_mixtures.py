"""Mixtures of sources. (docs/batches.md)"""

import itertools
import json
import pickle
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from cntkio import (
    BalancedPartition,
    Budget,
    CheckpointError,
    ConfigError,
    CTFDeserializer,
    GlobalPartition,
    MinibatchSource,
    Mixture,
    Partition,
    StreamDef,
    StreamDefs,
)
from cntkio.timeline.state import of_any_worker
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rounds import rounds

STREAMS = StreamDefs(x=StreamDef(field="x", shape=1))
POOLED = Budget(padded=12, pool=10)
WEIGHTS = {"a": 0.6, "b": 0.3, "c": 0.1}

WHOLE = Partition()

Found = list[tuple[str, list[int]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixtures")
    for number, name in enumerate("abc"):
        lines = [f"{key} |x {key}\n" for key in range(10 + 7 * number) for _ in range(1 + key % 4)]
        (folder / name).write_text("".join(lines))
    return folder


def source(folder: Path, name: str, **options: Any) -> MinibatchSource:
    return MinibatchSource(CTFDeserializer(folder / name, STREAMS, chunk_size_in_bytes=50), **options)


def make(folder: Path, weights: dict[str, float] = WEIGHTS, stop: Any = "forever") -> Mixture:
    return Mixture({name: (source(folder, name), weight) for name, weight in weights.items()}, stop=stop)


def read(mixture: Mixture, count: int, size: Any = POOLED, partition: Partition = WHOLE) -> Found:
    minibatches = itertools.islice(mixture.minibatches(size, partition), count)
    return [(minibatch.source or "", minibatch.keys_of_sequences.tolist()) for minibatch in minibatches]


@settings(max_examples=rounds(50), suppress_health_check=list(HealthCheck))
@given(weights=st.lists(st.integers(1, 50), min_size=1, max_size=3), first=st.integers(0, 3000))
def test_every_window_of_a_thousand_steps_has_the_exact_proportions(
    folder: Path, weights: list[int], first: int
) -> None:
    parts = dict(zip("abc", weights, strict=False))
    with make(folder, parts) as mixture:
        names = [mixture.part_of(step) for step in range(first + 1000)]
    counts = Counter(names[first:])
    assert all(abs(counts[name] - Fraction(1000 * weight, sum(weights))) < 1 for name, weight in parts.items())
    for name, weight in parts.items():  # evenly: the turns so far are never far from the weight
        so_far = names[:first].count(name)
        assert abs(so_far - Fraction(first * weight, sum(weights))) < 5 + len(parts)


def test_minibatches_are_those_of_the_parts_in_their_own_order(folder: Path) -> None:
    with make(folder) as mixture:
        found = read(mixture, 60)
        assert [name for name, _ in found] == [mixture.part_of(step) for step in range(60)]
    for name in "abc":
        own = [keys for of_one, keys in found if of_one == name]
        with source(folder, name) as alone:
            assert own == [alone.read(POOLED).keys_of_sequences.tolist() for _ in own]  # type: ignore[union-attr]


@pytest.mark.parametrize("partition", [Partition(), BalancedPartition(1, 2), GlobalPartition(0, 2)])
def test_a_mixture_resumes_exactly(folder: Path, partition: Partition) -> None:
    with make(folder) as mixture:
        whole = read(mixture, 50, POOLED, partition)
    with make(folder) as mixture:
        read(mixture, 17, POOLED, partition)
        state = json.loads(json.dumps(mixture.state_dict()))
        with pickle.loads(pickle.dumps(mixture)) as copy:
            assert read(copy, 33, POOLED, partition) == whole[17:]
    with make(folder, {"a": 1, "b": 1, "c": 1}) as mixture:
        mixture.load_state_dict(state)
        assert mixture.state_dict() == state
        assert read(mixture, 33, POOLED, partition) == whole[17:]


@pytest.mark.parametrize(("stop", "finished"), [("first", 1), ("all", 3)])
def test_a_mixture_stops_when_its_parts_have_finished_a_sweep(folder: Path, stop: str, finished: int) -> None:
    with make(folder, stop=stop) as mixture:
        found = read(mixture, 10_000)
        assert mixture.has_ended and mixture.read(POOLED) is None
        num_sweeps = mixture.state_dict()["timeline"]["num_sweeps"]
    assert sum(count > 0 for count in num_sweeps.values()) == finished
    last = found[-1][0]
    assert num_sweeps[last] == 1
    if stop == "all":
        assert all({keys for of_one, batch in found if of_one == name for keys in batch} for name in "abc")


@pytest.mark.parametrize(
    ("stop", "first"),
    [
        ("first", 0),
        ("forever", 13),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in (("first", 13), ("all", 0), ("all", 13), ("forever", 0))
        ),
    ],
)
def test_the_plan_of_a_mixture_agrees_with_its_minibatches(folder: Path, stop: str, first: int) -> None:
    with make(folder, stop=stop) as mixture:
        read(mixture, first)
        plan = mixture.plan(POOLED)
        steps = plan.steps(100)
        found = [
            (minibatch.source, minibatch.keys_of_sequences.tolist(), minibatch.end_of_sweep)
            for minibatch in itertools.islice(mixture.minibatches(POOLED), 100)
        ]
    assert steps.num_sequences.tolist() == [len(keys) for _, keys, _ in found]
    assert steps.ends_of_sweep.tolist() == [end for *_, end in found]
    for number in {0, min(7, len(found) - 1), len(found) - 1} if found else ():
        assert (plan.part_of(number), plan.explain(number).keys.tolist()) == found[number][:2]
    if stop != "forever":
        with pytest.raises(ConfigError, match="the data end before step"):
            plan.explain(len(found))


@pytest.mark.parametrize("partition", [BalancedPartition, GlobalPartition])
def test_workers_take_steps_in_turn_and_resume_in_any_number(folder: Path, partition: Any) -> None:
    with make(folder, stop="all") as mixture:
        whole = read(mixture, 10_000, POOLED, partition(1, 2))
    of_workers, states = [], []
    for worker in range(3):
        with make(folder, stop="all") as mixture:
            found = read(mixture, 4, POOLED, partition(1, 2, worker=worker, num_workers=3))
            states.append(json.loads(json.dumps(mixture.state_dict())))
            of_workers.append(found + read(mixture, 10_000, POOLED, partition(1, 2, worker=worker, num_workers=3)))
            assert not read(mixture, 1, POOLED, partition(1, 2, worker=worker, num_workers=3))
    assert [of_workers[step % 3][step // 3] for step in range(len(whole))] == whole
    for worker, state in enumerate(states):
        with make(folder, stop="all") as mixture:
            mixture.load_state_dict(state)
            found = read(mixture, 10_000, POOLED, partition(1, 2, worker=worker, num_workers=3))
            assert found == of_workers[worker][4:]
        if partition is GlobalPartition:
            with make(folder, stop="all") as mixture:
                mixture.load_state_dict({**state, "timeline": of_any_worker(state["timeline"])})
                assert read(mixture, 10_000, POOLED, partition(1, 2)) == whole[3 * 3 + worker + 1 :]


def test_weights_change_from_a_step_on(folder: Path) -> None:
    with make(folder, {"a": 1, "b": 1}) as mixture:
        read(mixture, 7)
        mixture.set_weights({"a": 1, "b": 999})
        state = json.loads(json.dumps(mixture.state_dict()))
        names = [mixture.part_of(step) for step in range(7, 1007)]
        assert Counter(names) == {"a": 1, "b": 999}
        following = read(mixture, 20)
        assert [name for name, _ in following] == names[:20]
    with make(folder, {"a": 1, "b": 1}) as mixture:
        mixture.load_state_dict(state)
        assert read(mixture, 20) == following
        with pytest.raises(ConfigError, match="weights changed at step 7"):
            mixture.part_of(6)
        with pytest.raises(ConfigError, match="expected a weight for each of"):
            mixture.set_weights({"a": 1})


def test_an_impossible_mixture_is_refused(folder: Path) -> None:
    a, b = source(folder, "a"), source(folder, "b", max_sweeps=1)
    other = MinibatchSource(CTFDeserializer(folder / "c", StreamDefs(y=StreamDef(field="x", shape=1))))
    for parts, text in (
        ({}, "has no parts"),
        ({"a": (a, 0)}, "weight of 'a' is 0"),
        ({"a": (a, float("nan"))}, "weight of 'a' is nan"),
        ({"a": (a, 10**400)}, "weight of 'a' is 1000"),
        ({"a": a}, "parts are not"),
        ([("a", a, 1)], "parts are not"),
        ({"a": (a, 1e6), "b": (b, 1)}, "less than a thousandth"),
        ({"a": (a, 1), "b": (b, 1)}, "part 'b' of a Mixture ends"),
        ({"a": (a, 1), "c": (other, 1)}, "the same streams"),
        ({"a": (a, 1), "b": (a, 1)}, "are the same source"),
    ):
        with pytest.raises(ConfigError, match=text):
            Mixture(parts)  # type: ignore[arg-type]
    for one in (a, b, other):
        one.close()


def test_a_state_that_does_not_fit_leaves_the_mixture_where_it_was(folder: Path) -> None:
    with make(folder) as mixture, make(folder, {"a": 1, "b": 1}) as other:
        read(mixture, 5)
        state = mixture.state_dict()
        timeline = state["timeline"]
        for damage in (
            other.state_dict(),
            {**state, "settings": {**state["settings"], "stop": "first"}},
            {**state, "version": 2},
            {**state, "data": {**state["data"], "c": ["other"]}},
            {**state, "data": {"a": ["other"]}},
            {**state, "timeline": {**timeline, "position": -1}},
            {**state, "timeline": {**timeline, "position": 2, "first_step": 3}},
            {**state, "timeline": {**timeline, "turns": {"a": 1000, "b": 0, "c": 0}}},
            {**state, "timeline": {**timeline, "turns": {"a": 1, "b": 1, "c": 1}}},
            {**state, "timeline": {**timeline, "num_sweeps": {"a": 1, "b": 0, "c": None}}},
            {**state, "timeline": {**timeline, "parts": {**timeline["parts"], "b": None}}},
            {**state, "timeline": {**timeline, "parts": {**timeline["parts"], "b": {"timeline": 5}}}},
            timeline,
            None,
        ):
            with pytest.raises(CheckpointError):
                mixture.load_state_dict(damage)
            assert mixture.state_dict() == state


def test_only_minibatches_of_mixtures_name_their_source(folder: Path) -> None:
    with source(folder, "a") as alone, pytest.raises(ConfigError, match="does not come from a Mixture"):
        alone.next_minibatch(5).source_of_sequences  # noqa: B018
    with make(folder) as mixture:
        minibatch = pickle.loads(pickle.dumps(mixture.read(POOLED)))
        assert minibatch.source_of_sequences.tolist() == ["a"] * minibatch.num_sequences

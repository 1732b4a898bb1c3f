"""Mixtures of sources. (docs/mixtures.md)"""

import itertools
import json
import pickle
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
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
    SequenceMixture,
    StreamDef,
    StreamDefs,
    StreamInformation,
    UserDeserializer,
)
from cntkio.timeline.state import of_any_worker
from cntkio.timeline.weights import Weights
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow import mixtures as slow
from support.rounds import rounds

STREAMS = StreamDefs(x=StreamDef(field="x", shape=1))
POOLED = Budget(padded=12, pool=10)
WEIGHTS = {"a": 0.6, "b": 0.3, "c": 0.1}

WHOLE = Partition()

Found = list[tuple[str, list[int]]]


@pytest.fixture(scope="module")
def three_corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixtures")
    for number, name in enumerate("abc"):
        lines = [f"{key} |x {key}\n" for key in range(10 + 7 * number) for _ in range(1 + key % 4)]
        (folder / name).write_text("".join(lines))
    return folder


def source(folder: Path, name: str, **options: Any) -> MinibatchSource:
    return MinibatchSource(CTFDeserializer(folder / name, STREAMS, chunk_size_in_bytes=50), **options)


def mixture_in(folder: Path, weights: dict[str, float] = WEIGHTS, stop: Any = "forever") -> Mixture:
    return Mixture({name: (source(folder, name), weight) for name, weight in weights.items()}, stop=stop)


def read(mixture: Mixture, count: int, size: Any = POOLED, partition: Partition = WHOLE) -> Found:
    minibatches = itertools.islice(mixture.minibatches(size, partition), count)
    return [(minibatch.source or "", minibatch.keys_of_sequences.tolist()) for minibatch in minibatches]


@settings(max_examples=rounds(50), suppress_health_check=list(HealthCheck))
@given(weights=st.lists(st.integers(1, 50), min_size=1, max_size=3), first=st.integers(0, 3000))
def test_every_window_of_a_thousand_steps_has_the_exact_proportions(
    three_corpora: Path, weights: list[int], first: int
) -> None:
    parts = dict(zip("abc", weights, strict=False))
    with mixture_in(three_corpora, parts) as mixture:
        names = [mixture.part_of(step) for step in range(first + 1000)]
    counts = Counter(names[first:])
    assert all(abs(counts[name] - Fraction(1000 * weight, sum(weights))) < 1 for name, weight in parts.items())
    for name, weight in parts.items():  # evenly: the turns so far are never far from the weight
        so_far = names[:first].count(name)
        assert abs(so_far - Fraction(first * weight, sum(weights))) < 5 + len(parts)


def test_minibatches_are_those_of_the_parts_in_their_own_order(three_corpora: Path) -> None:
    with mixture_in(three_corpora) as mixture:
        found = read(mixture, 60)
        assert [name for name, _ in found] == [mixture.part_of(step) for step in range(60)]
    for name in "abc":
        own = [keys for of_one, keys in found if of_one == name]
        with source(three_corpora, name) as alone:
            assert own == [alone.read(POOLED).keys_of_sequences.tolist() for _ in own]  # type: ignore[union-attr]


some_weights = st.one_of(
    st.integers(1, 9), st.dictionaries(st.integers(0, 30), st.integers(1, 9), min_size=1, max_size=3)
)


def mixed(folder: Path, weights: dict[str, Any], read_ahead: int, stop: Any, between: Any) -> Mixture:
    sources = {name: source(folder, name, read_ahead_in_bytes=read_ahead) for name in weights}
    parts = {name: (sources[name], weight) for name, weight in weights.items()}
    return Mixture(parts, stop=stop, between=between)


def of_a_part(folder: Path, name: str, size: Any, partition: Partition, count: int) -> list[tuple[list[int], bool]]:
    with source(folder, name) as alone:
        read = [alone.read(size, partition) for _ in range(count)]
    return [(one.keys_of_sequences.tolist(), one.end_of_sweep) for one in read if one is not None]


@settings(max_examples=rounds(10), suppress_health_check=list(HealthCheck))
@given(
    weights=st.fixed_dictionaries(dict.fromkeys("abc", some_weights)),
    between=st.sampled_from(["linear", "steps"]),
    stop=st.sampled_from(["first", "all", "forever"]),
    size=st.sampled_from([5, 9, POOLED]),
    ranks=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    read_aheads=st.sampled_from([(0, 1 << 20), (1 << 20, 0)]),
    at=st.integers(0, 30),
)
def test_tables_by_step_are_those_of_the_twin_on_any_ranks(
    three_corpora: Path, weights: dict[str, Any], between: Any, stop: Any, size: Any, ranks: tuple[int, int],
    read_aheads: tuple[int, int], at: int,
) -> None:  # fmt: skip
    """Delivery, plan and states, whatever is read ahead; restored on another number of ranks."""
    weights = {name: weights[name] for name in "abc"}  # drawn in any order
    of_mixture = Weights.of(weights, "abc", between)
    tables = [of if isinstance(of, dict) else {0: of} for of in weights.values()]
    blocks = slow.scheduled(tables, is_linear=between == "linear", end=50)
    counts = [(first, list(of_mixture.counts_at(first))) for first, _ in blocks]
    whole: list[list[int]] = [[]] * 40
    for rank in range(ranks[0]):
        partition = GlobalPartition(rank, ranks[0])
        parts = [of_a_part(three_corpora, name, size, partition, 40) for name in "abc"]
        expected = [("abc"[part], keys) for part, keys in slow.minibatches(counts, parts, stop, 40)]
        with mixed(three_corpora, weights, read_aheads[0], stop, between) as mixture:
            before = read(mixture, at, size, partition)
            state = json.loads(json.dumps(mixture.state_dict()))
            planned = mixture.plan(size, partition).steps(40 - at) if rank == 0 else None
            assert before + read(mixture, 40 - at, size, partition) == expected
        for name, of_part in ({} if planned is None else planned.components).items():
            assert of_part.tolist() == [len(keys) if one == name else 0 for one, keys in expected[at:]]
        whole = [sorted([*one, *keys]) for one, (_, keys) in zip(whole, expected, strict=False)]
    again: list[list[int]] = [[]] * 40
    for rank in range(ranks[1]):
        with mixed(three_corpora, weights, read_aheads[1], stop, between) as mixture:
            mixture.load_state_dict(state)
            rest = read(mixture, 40 - at, size, GlobalPartition(rank, ranks[1]))
            again = [sorted([*one, *keys]) for one, (_, keys) in zip(again, rest, strict=False)]
    assert again == whole[at:]


@pytest.mark.parametrize("partition", [Partition(), BalancedPartition(1, 2), GlobalPartition(0, 2)])
def test_a_mixture_resumes_exactly(three_corpora: Path, partition: Partition) -> None:
    with mixture_in(three_corpora) as mixture:
        whole = read(mixture, 50, POOLED, partition)
    with mixture_in(three_corpora) as mixture:
        read(mixture, 17, POOLED, partition)
        state = json.loads(json.dumps(mixture.state_dict()))
        with pickle.loads(pickle.dumps(mixture)) as copy:
            assert read(copy, 33, POOLED, partition) == whole[17:]
    with mixture_in(three_corpora, {"a": 1, "b": 1, "c": 1}) as mixture:
        mixture.load_state_dict(state)
        assert mixture.state_dict() == state
        assert read(mixture, 33, POOLED, partition) == whole[17:]


@pytest.mark.parametrize(("stop", "finished"), [("first", 1), ("all", 3)])
def test_a_mixture_stops_when_its_parts_have_finished_a_sweep(three_corpora: Path, stop: str, finished: int) -> None:
    with mixture_in(three_corpora, stop=stop) as mixture:
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
def test_the_plan_of_a_mixture_agrees_with_its_minibatches(three_corpora: Path, stop: str, first: int) -> None:
    with mixture_in(three_corpora, stop=stop) as mixture:
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
def test_workers_take_steps_in_turn_and_resume_in_any_number(three_corpora: Path, partition: Any) -> None:
    with mixture_in(three_corpora, stop="all") as mixture:
        whole = read(mixture, 10_000, POOLED, partition(1, 2))
    of_workers, states = [], []
    for worker in range(3):
        with mixture_in(three_corpora, stop="all") as mixture:
            found = read(mixture, 4, POOLED, partition(1, 2, worker=worker, num_workers=3))
            states.append(json.loads(json.dumps(mixture.state_dict())))
            of_workers.append(found + read(mixture, 10_000, POOLED, partition(1, 2, worker=worker, num_workers=3)))
            assert not read(mixture, 1, POOLED, partition(1, 2, worker=worker, num_workers=3))
    assert [of_workers[step % 3][step // 3] for step in range(len(whole))] == whole
    for worker, state in enumerate(states):
        with mixture_in(three_corpora, stop="all") as mixture:
            mixture.load_state_dict(state)
            found = read(mixture, 10_000, POOLED, partition(1, 2, worker=worker, num_workers=3))
            assert found == of_workers[worker][4:]
        if partition is GlobalPartition:
            with mixture_in(three_corpora, stop="all") as mixture:
                mixture.load_state_dict({**state, "timeline": of_any_worker(state["timeline"])})
                assert read(mixture, 10_000, POOLED, partition(1, 2)) == whole[3 * 3 + worker + 1 :]


@pytest.mark.parametrize("stop", ["first", "all", "forever"])
@pytest.mark.parametrize("partition", [Partition(1, 2), Partition(5, 7), Partition(1, 2**40)])
def test_a_part_without_a_chunk_for_a_partition_is_refused(
    three_corpora: Path, stop: Any, partition: Partition
) -> None:
    small = MinibatchSource(CTFDeserializer(three_corpora / "a", STREAMS))  # of one chunk
    with Mixture({"b": (source(three_corpora, "b"), 9), "a": (small, 1)}, stop=stop) as mixture:
        text = "'a' has 1 chunk, and so nothing" if partition.count < 9 else "so nothing for Partition"
        state = mixture.state_dict()
        for ask in (mixture.read, mixture.plan, lambda *request: list(mixture.minibatches(*request))):
            with pytest.raises(ConfigError, match=text):
                ask(4, partition)
        assert mixture.state_dict() == state
        for possible in (WHOLE, GlobalPartition(1, 2), BalancedPartition(1, 2)):
            assert mixture.read(4, possible) is not None


def test_a_part_that_ends_before_the_mixture_is_named(three_corpora: Path) -> None:
    ended = source(three_corpora, "a")
    ended.begin_epoch(0, 12)
    with Mixture({"a": (ended, 1), "b": (source(three_corpora, "b"), 1)}, stop="all") as mixture:
        plan = mixture.plan(4)
        num_steps = 0
        with pytest.raises(ConfigError, match="part 'a' has no further minibatch"):
            while mixture.read(4) is not None:
                num_steps += 1
        assert len(plan.steps(num_steps)) == num_steps > 3
        with pytest.raises(ConfigError, match="part 'a' has no further minibatch"):
            plan.steps(num_steps + 1)


class TwoStreams(UserDeserializer):
    """Two sequences of two streams, in the order of the names."""

    def __init__(self, names: str) -> None:
        super().__init__(timeline="global")
        self._names = names

    def stream_infos(self) -> list[StreamInformation]:
        forms = {"u": (1,), "v": (2,)}
        return [StreamInformation(name, at, "dense", np.float32, forms[name]) for at, name in enumerate(self._names)]

    def num_chunks(self) -> int:
        return 2

    def get_chunk(self, chunk_id: int) -> dict[str, Any]:
        return {"u": np.full((3, 1), chunk_id, np.float32), "v": np.full((3, 2), -chunk_id, np.float32)}


@pytest.mark.parametrize("kind", [Mixture, SequenceMixture])
def test_parts_may_have_their_streams_in_another_order(kind: Any) -> None:
    parts = {names: (TwoStreams(names), 1) for names in ("uv", "vu")}
    with kind(parts, stop="forever") as mixture:
        first, *infos = mixture.stream_infos()
        found = set()
        for minibatch in itertools.islice(mixture.minibatches(4), 8):
            assert list(minibatch) == ["u", "v"]
            # A stream can be asked for by its description.
            assert minibatch[first].values.shape[1:] == (1,) and minibatch[infos[0]].values.shape[1:] == (2,)
            assert (minibatch["u"].values == -minibatch["v"].values[:, :1]).all()
            found.update(minibatch.source_of_sequences.tolist())
        assert found == {"uv", "vu"}


def test_weights_change_from_a_step_on(three_corpora: Path) -> None:
    with mixture_in(three_corpora, {"a": 1, "b": 1}) as mixture:
        read(mixture, 7)
        mixture.set_weights({"a": 1, "b": 999})
        state = json.loads(json.dumps(mixture.state_dict()))
        names = [mixture.part_of(step) for step in range(7, 1007)]
        assert Counter(names) == {"a": 1, "b": 999}
        following = read(mixture, 20)
        assert [name for name, _ in following] == names[:20]
    with mixture_in(three_corpora, {"a": 1, "b": 1}) as mixture:
        mixture.load_state_dict(state)
        assert read(mixture, 20) == following
        assert [mixture.part_of(step) for step in range(7)] == list("abababa")
        with pytest.raises(ConfigError, match="expected a weight for each of"):
            mixture.set_weights({"a": 1})


def test_an_impossible_mixture_is_refused(three_corpora: Path) -> None:
    a, b = source(three_corpora, "a"), source(three_corpora, "b", max_sweeps=1)
    other = MinibatchSource(CTFDeserializer(three_corpora / "c", StreamDefs(y=StreamDef(field="x", shape=1))))
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


def test_a_state_that_does_not_fit_leaves_the_mixture_where_it_was(three_corpora: Path) -> None:
    with mixture_in(three_corpora) as mixture, mixture_in(three_corpora, {"a": 1, "b": 1}) as other:
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
            {**state, "timeline": {**timeline, "position": 2, "weights": [[3, [1, 1, 998], [0, 0, 0]]]}},
            {**state, "timeline": {**timeline, "weights": [[0, [1000, 0, 0], [0, 0, 0]]]}},
            {**state, "timeline": {**timeline, "weights": [[0, [1, 1, 1], [0, 0, 0]]]}},
            {**state, "timeline": {**timeline, "names": ["a", "b", ["c"]]}},
            {**state, "timeline": {**timeline, "first_step": 0, "turns": {"a": 1000, "b": 0, "c": 0}}},
            {**state, "timeline": {**timeline, "first_step": 6, "turns": {"a": 1, "b": 1, "c": 998}}},
            {**state, "timeline": {**timeline, "num_sweeps": {"a": 1, "b": 0, "c": None}}},
            {**state, "timeline": {**timeline, "parts": {**timeline["parts"], "b": None}}},
            {**state, "timeline": {**timeline, "parts": {**timeline["parts"], "b": {"timeline": 5}}}},
            timeline,
            None,
        ):
            with pytest.raises(CheckpointError):
                mixture.load_state_dict(damage)
            assert mixture.state_dict() == state


def test_a_read_that_is_interrupted_after_it_delivered_counts(
    three_corpora: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mixture_in(three_corpora) as whole:
        expected = read(whole, 12)
    with mixture_in(three_corpora) as mixture:
        read(mixture, 4)
        state = mixture.state_dict()
        source = mixture.sources[mixture.part_of(4)]
        deliver = source.read

        def interrupted(*request: Any) -> None:
            deliver(*request)
            raise KeyboardInterrupt

        monkeypatch.setattr(source, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mixture.read(POOLED)
        monkeypatch.undo()
        assert mixture.state_dict()["timeline"]["position"] == 5
        assert read(mixture, 3) == expected[5:8]
        monkeypatch.setattr(source, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            read(mixture, 10)
        monkeypatch.undo()
        mixture.load_state_dict(state)
        assert mixture.state_dict() == state
        assert read(mixture, 8) == expected[4:]


def test_only_minibatches_of_mixtures_name_their_source(three_corpora: Path) -> None:
    with source(three_corpora, "a") as alone, pytest.raises(ConfigError, match="does not come from a Mixture"):
        alone.next_minibatch(5).source_of_sequences  # noqa: B018
    with mixture_in(three_corpora) as mixture:
        minibatch = pickle.loads(pickle.dumps(mixture.read(POOLED)))
        assert minibatch.source_of_sequences.tolist() == ["a"] * minibatch.num_sequences

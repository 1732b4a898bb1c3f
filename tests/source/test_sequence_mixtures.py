"""Sources that mix the sequences of several others. (docs/mixtures.md)"""

import itertools
import json
import pickle
from collections import Counter
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
    MinibatchSource,
    Mixture,
    Partition,
    SequenceMixture,
    StreamDef,
    StreamDefs,
)

STREAMS = StreamDefs(x=StreamDef(field="x", shape=2))
WEIGHTS = {"a": 0.6, "b": 0.3, "c": 0.1}
BUDGETS = [20, Budget(padded=24), Budget(padded=24, pool=20), Budget(rows=2, row_length=8, pool=30)]

Found = list[tuple[list[str], list[int], bool]]


@pytest.fixture(scope="module")
def three_corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixtures")
    for number, name in enumerate("abc"):
        lines = [f"{key} |x {key} {number}\n" for key in range(10 + 7 * number) for _ in range(1 + key % 4)]
        (folder / name).write_text("".join(lines))
    return folder


def part(folder: Path, name: str, **options: Any) -> MinibatchSource:
    return MinibatchSource(CTFDeserializer(folder / name, STREAMS, chunk_size_in_bytes=50), **options)


def mixture_in(
    folder: Path, weights: dict[str, float] = WEIGHTS, stop: Any = "forever", **options: Any
) -> SequenceMixture:
    return SequenceMixture(
        {name: (part(folder, name, **options), weight) for name, weight in weights.items()}, stop=stop
    )


def read(mixture: MinibatchSource, count: int, size: Any, partition: Any = None) -> Found:
    found: Found = []
    while len(found) < count and (minibatch := mixture.read(size, partition or Partition())) is not None:
        sources, keys, x = minibatch.source_of_sequences, minibatch.keys_of_sequences.tolist(), minibatch["x"]
        numbers = ["abc".index(name) for name in sources.tolist()]
        expected = np.repeat(np.array([keys, numbers]).T, x.lengths, axis=0)
        assert np.array_equal(x.values, expected)
        found.append((sources.tolist(), keys, minibatch.end_of_sweep))
    return found


@pytest.mark.parametrize("size", BUDGETS)
def test_a_mixture_resumes_exactly_and_its_plan_agrees(three_corpora: Path, size: Any) -> None:
    with mixture_in(three_corpora) as mixture:
        whole = read(mixture, 120, size)
    with mixture_in(three_corpora, read_ahead_in_bytes=0) as mixture:
        assert read(mixture, 17, size) == whole[:17]
        state = json.loads(json.dumps(mixture.state_dict()))
        with pickle.loads(pickle.dumps(mixture)) as copy:
            assert read(copy, 103, size) == whole[17:]
    with mixture_in(three_corpora, keep_data_in_memory=True) as mixture:
        mixture.load_state_dict(state)
        assert mixture.state_dict() == state
        plan = mixture.plan(size, from_here=True)
        assert read(mixture, 103, size) == whole[17:]
        step = plan.explain(9)
        assert (step.keys.tolist(), step.end_of_sweep) == whole[26][1:]
        assert {Path(text.split(":")[0]).name for text in step.origins[0].places.texts()} == set(whole[26][0])
    with mixture_in(three_corpora) as mixture:
        mixture.skip(17, size)
        assert read(mixture, 103, size) == whole[17:]


def test_parts_keep_their_own_order(three_corpora: Path) -> None:
    with mixture_in(three_corpora, randomization_seed=5) as mixture:
        found = read(mixture, 100, 20)
    for name in "abc":
        own = [key for sources, keys, _ in found for of_one, key in zip(sources, keys, strict=True) if of_one == name]
        with part(three_corpora, name, randomization_seed=5) as alone:
            batches = (alone.next_minibatch(1).keys_of_sequences.tolist() for _ in own)
            assert own == list(itertools.chain(*batches))


@pytest.mark.parametrize("stop", ["first", "all"])
def test_ranks_share_the_minibatches_until_parts_have_ended(three_corpora: Path, stop: str) -> None:
    size = Budget(padded=24, pool=20)
    with mixture_in(three_corpora, stop=stop) as mixture:
        whole = read(mixture, 1000, size)
        assert mixture.has_ended and mixture.span == (0, sum(len(keys) for _, keys, _ in whole))
    ranks = []
    for index in range(2):
        with mixture_in(three_corpora, stop=stop) as mixture:
            ranks.append(read(mixture, 1000, size, GlobalPartition(index, 2)))
    assert len(ranks[0]) == len(ranks[1]) == len(whole)
    for one, other, (sources, keys, _) in zip(*ranks, whole, strict=True):
        shared = [*zip(one[0], one[1], strict=True), *zip(other[0], other[1], strict=True)]
        assert sorted(shared) == sorted(zip(sources, keys, strict=True))
    finished = [{key for sources, keys, _ in whole for of_one, key in zip(sources, keys, strict=True) if of_one == name}
                for name in "abc"]  # fmt: skip
    sweeps = [len(keys) == 10 + 7 * number for number, keys in enumerate(finished)]
    assert all(sweeps) if stop == "all" else any(sweeps)


def test_weights_change_from_a_sequence_or_a_pool_on(three_corpora: Path) -> None:
    with mixture_in(three_corpora, {"a": 1, "b": 1}) as mixture:
        read(mixture, 3, Budget(sequences=5))
        mixture.set_weights({"a": 1, "b": 999})
        assert mixture.weights == {"a": 0.001, "b": 0.999}
        state = json.loads(json.dumps(mixture.state_dict()))
        mixture.set_weights({"a": 1, "b": 999})
        assert mixture.state_dict() == state
        names = mixture.read(Budget(sequences=1000)).source_of_sequences  # type: ignore[union-attr]
        assert Counter(names.tolist()) == {"a": 1, "b": 999}
    with mixture_in(three_corpora, {"a": 1, "b": 1}) as mixture:
        mixture.load_state_dict(state)
        assert mixture.read(Budget(sequences=1000)).source_of_sequences.tolist() == names.tolist()  # type: ignore[union-attr]
    pooled = Budget(sequences=5, pool=20)
    with mixture_in(three_corpora, {"a": 1, "b": 1}) as mixture:
        whole = read(mixture, 4, pooled)
    with mixture_in(three_corpora, {"a": 1, "b": 1}) as mixture:
        read(mixture, 1, pooled)
        mixture.set_weights({"a": 1, "b": 999})
        found = read(mixture, 7, pooled)
        assert found[:3] == whole[1:]
        assert Counter(name for names, _, _ in found[3:] for name in names) == {"b": 20}
        with pytest.raises(ConfigError, match="expected a weight for each of"):
            mixture.set_weights({"a": 1})
    with mixture_in(three_corpora, {"a": 1, "b": 1}) as mixture:
        read(mixture, 1, Budget(sequences=2, pool=30, pool_unit="samples"))
        with pytest.raises(ConfigError, match="inside a pool of samples"):
            mixture.set_weights({"a": 1, "b": 2})


def test_an_impossible_mixture_is_refused(three_corpora: Path) -> None:
    other = CTFDeserializer(three_corpora / "c", StreamDefs(y=StreamDef(field="x", shape=2)))
    a = CTFDeserializer(three_corpora / "a", STREAMS)
    joined = MinibatchSource([a, other])
    ending = part(three_corpora, "b", max_sweeps=1)
    parts: list[tuple[dict[str, Any], str]] = [
        ({}, "has no parts"),
        ({"a": (a, 0)}, "weight of 'a' is 0"),
        ({"a": (a, 1), "b": (ending, 1)}, "has max_sweeps=1"),
        ({"a": (a, 1), "c": (other, 1)}, "the same streams"),
        ({"a": (a, 1), "c": (joined, 1)}, "joins 2 deserializers"),
        ({"a": (mixture_in(three_corpora), 1)}, "is a SequenceMixture"),
    ]
    for impossible, text in parts:
        with pytest.raises(ConfigError, match=text):
            SequenceMixture(impossible)
    with (
        mixture_in(three_corpora) as mixture,
        mixture_in(three_corpora, {"a": 1, "b": 1}) as fewer,
        pytest.raises(CheckpointError),
    ):
        fewer.load_state_dict(mixture.state_dict())


@pytest.mark.parametrize(
    "size", [Budget(padded=20, pool=10**9), Budget(padded=20, pool=10**12, pool_unit="samples"), 2**31 - 1]
)
def test_a_pool_beyond_memory_is_refused_from_the_numbers(three_corpora: Path, size: Any) -> None:
    with mixture_in(three_corpora) as mixture:
        with pytest.raises(ConfigError, match="are too many; expected at most 67108864"):
            mixture.read(size)
        assert mixture.read(5) is not None
    with mixture_in(three_corpora, stop="all") as mixture:  # it ends before
        assert mixture.read(size) is not None


@pytest.mark.parametrize("kind", [Mixture, SequenceMixture])
def test_a_mixture_that_is_refused_closes_what_it_opened(three_corpora: Path, kind: type[Any]) -> None:
    closed: list[str] = []

    class Watched:
        """A deserializer that notes when its corpus is closed."""

        has_text_keys = False

        def __init__(self, name: str, stream: str) -> None:
            self.name, self.inner = (
                name,
                CTFDeserializer(three_corpora / name, StreamDefs(x=StreamDef(field=stream, shape=2))),
            )

        def parts(self) -> list[Any]:
            return [self]

        def open(self, opening: Any) -> Any:
            corpus = self.inner.open(opening)
            close = corpus.close

            def note() -> None:
                closed.append(self.name)
                close()

            corpus.close = note  # type: ignore[method-assign]
            return corpus

    missing = CTFDeserializer(three_corpora / "missing", STREAMS)
    with pytest.raises(OSError):
        kind({"a": (Watched("a", "x"), 1), "b": (Watched("b", "x"), 1), "c": (missing, 1)})
    assert sorted(closed) == ["a", "b"]

"""A budget with buckets gives arrays of as many shapes as it has buckets; devices have names; any partition is read."""

import functools
from typing import Any

import numpy as np
import pytest
from cntkio import (
    BalancedPartition,
    Budget,
    ConfigError,
    CTFDeserializer,
    GlobalPartition,
    Minibatch,
    MinibatchSource,
    Partition,
    StreamDef,
    StreamDefs,
)
from cntkio.timeline import Timeline
from support import ROOT
from support.rounds import rounds

jax = pytest.importorskip("cntkio.jax")
STREAMS = StreamDefs(words=StreamDef(field="w", shape=1323, is_sparse=True), chapter=StreamDef(field="ch", shape=1))
BOOK = str(ROOT / "examples" / "alice" / "train.ctf")


def minibatches(budget: Any, **options: Any) -> list[Minibatch]:
    return list(MinibatchSource(CTFDeserializer(BOOK, STREAMS), max_sweeps=1).minibatches(budget, **options))


@pytest.mark.parametrize(
    "limits",
    [
        {"padded": 2048}, {"samples": 2048}, {"sequences": 8}, {"padded": 2048, "sequences": 8},
        {"padded": 2048, "quadratic": 256}, {"padded": 64, "oversize": "drop"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("share", [None, GlobalPartition(1, 3), BalancedPartition(0, 2)])
def test_a_budget_has_one_shape_for_each_bucket(limits: dict[str, Any], share: Partition | None) -> None:
    budget = Budget(pool=300, buckets=(16, 64, 256), **limits)
    shapes = set()
    for minibatch in minibatches(budget, partition=share):
        batch = jax.convert(minibatch, budget=budget, layout={"words": "padded_ids"})
        words, chapter = batch["words"], batch["chapter"]
        assert words.lengths.sum() == minibatch["words"].num_samples
        shapes.add((words.values.shape, chapter.values.shape))
    assert len(shapes) == len({words for words, _ in shapes}) <= 3
    assert {steps for (_, steps), _ in shapes} <= {16, 64, 256}


@pytest.mark.parametrize("limits", [{"padded": 2048}, {"samples": 2048}, {"sequences": 40, "samples": 4096}])
@pytest.mark.parametrize(
    "kind",
    [Partition, BalancedPartition, GlobalPartition, functools.partial(GlobalPartition, deal="area")],
)
def test_all_shares_have_one_shape_below_that_of_the_minibatch(limits: dict[str, Any], kind: Any) -> None:
    budget = Budget(pool=300, buckets=(16, 64, 256), **limits)
    shapes = {}
    for share in (kind(index, 3) for index in range(3)):
        for minibatch in minibatches(budget, partition=share):
            whole, part = (jax.convert(minibatch, budget=budget, partition=each)["chapter"] for each in (None, share))
            assert part.lengths.sum() == minibatch["chapter"].num_samples
            steps = part.values.shape[1]
            assert part.values.shape[0] == shapes.setdefault(steps, part.values.shape[0]) < whole.values.shape[0]
    assert set(shapes) == {16, 64, 256}


@pytest.mark.parametrize("deal", ["length", "area"])
def test_no_share_has_more_sequences_than_its_partition_says(deal: Any) -> None:
    generator = np.random.default_rng(5)
    for _ in range(rounds(60)):
        count, least = int(generator.integers(2, 6)), int(generator.integers(1, 30))
        lengths = generator.choice([least, 32], size=generator.integers(1, 60)).astype(np.uint32)
        shares = [GlobalPartition(index, count, deal=deal) for index in range(count)]
        sizes = []
        for share in shares:
            timeline = Timeline(lengths, np.array([0, len(lengths)]), window=None, max_sweeps=1)
            sizes.append(len(timeline.read(int(lengths.sum()), share).sequences))
        most = shares[0].most_sequences(len(lengths), range(least, 33), int(lengths.sum()))
        assert max(sizes) <= most <= len(lengths)


def test_a_sequence_above_all_buckets_comes_alone() -> None:
    budget = Budget(padded=2048, pool=300, buckets=(16, 64), oversize="alone")
    shapes = {jax.convert(each, budget=budget)["chapter"].values.shape[:2] for each in minibatches(budget)}
    assert all(rows == 1 for rows, steps in shapes if steps > 64)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budget": Budget(samples=9)}, "no buckets"),
        ({"budget": Budget(samples=9, pool=9, buckets=(4,)), "pad_to": 4}, "excludes pad_to and num_sequences"),
        ({"device": "cpu:99"}, "expected one of .*'cpu:0'"),
        ({"device": "abacus"}, "expected one of .*'cpu:0'"),
    ],
)
def test_shapes_and_devices_that_are_not_possible_are_errors(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        jax.convert(minibatches(100)[0], **options)


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_a_device_has_a_name(device: str) -> None:
    assert jax.convert(minibatches(100)[0], device)["chapter"].values.device.platform == "cpu"


@pytest.mark.parametrize("kind", [Partition, BalancedPartition, GlobalPartition])
def test_minibatches_of_every_partition_are_delivered(kind: type[Partition]) -> None:
    found = [sum(each.num_sequences for each in minibatches(500, partition=kind(index, 3))) for index in range(3)]
    assert sum(found) == MinibatchSource(CTFDeserializer(BOOK, STREAMS)).num_sequences
    assert kind is not Partition or found[1] == sum(
        each.num_sequences for each in minibatches(500, num_data_partitions=3, partition_index=1)
    )
    with pytest.raises(ConfigError, match="partition excludes num_data_partitions"):
        minibatches(500, num_data_partitions=3, partition=kind(0, 3))

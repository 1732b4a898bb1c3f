"""Data sets that are read by budget. (docs/batches.md)"""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from cntkio import (  # noqa: E402
    Budget,
    CheckpointError,
    ConfigError,
    CTFDeserializer,
    MinibatchSource,
    StreamDef,
    StreamDefs,
)
from cntkio.torch import MinibatchDataset  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

STREAMS = StreamDefs(x=StreamDef(field="x", shape=1))
POOLED = Budget(padded=40, pool=30, buckets=(4, 8))


def make(folder: Path, budget: Any = POOLED, **options: Any) -> MinibatchDataset:
    path = folder / "x.ctf"
    if not path.exists():
        path.write_text("".join(f"{key} |x {key}\n" for key in range(100) for _ in range(1 + key * key % 8)))
    source = MinibatchSource(CTFDeserializer(path, STREAMS, chunk_size_in_bytes=200), max_sweeps=1)
    return MinibatchDataset(source, budget, layout="ragged", **options)


def keys(minibatches: Any) -> list[list[int]]:
    return [minibatch.keys_of_sequences.tolist() for minibatch in minibatches]


@pytest.mark.parametrize("partition", ["global", "balanced"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_have_equally_many_minibatches_and_share_all_sequences(
    tmp_path: Path, partition: Any, num_workers: int
) -> None:
    ranks = [
        keys(DataLoader(make(tmp_path, partition=partition, rank=rank, world_size=2), None, num_workers=num_workers))
        for rank in range(2)
    ]
    assert len(ranks[0]) == len(ranks[1])
    found = sorted(key for batches in ranks for batch in batches for key in batch)
    assert set(found) <= set(range(100)) and len(found) >= 99


def test_a_data_set_resumes_inside_a_pool_on_more_ranks(tmp_path: Path) -> None:
    whole = keys(make(tmp_path))
    datasets = [make(tmp_path, rank=rank, world_size=2) for rank in range(2)]
    iterations = [iter(dataset) for dataset in datasets]
    found = [[next(iteration).keys_of_sequences.tolist() for iteration in iterations] for _ in range(3)]
    states = [json.loads(json.dumps(dataset.state_dict())) for dataset in datasets]
    assert states[0]["source"]["timeline"]["batch"] > 0

    resumed = [make(tmp_path, rank=rank, world_size=3) for rank in range(3)]
    for dataset in resumed:
        dataset.load_state_dict(states[1])
    found += [list(batches) for batches in zip(*map(keys, resumed), strict=True)]

    assert [sorted(sum(batches, [])) for batches in found] == [sorted(batch) for batch in whole]


def test_workers_with_cntk_partitions_each_have_the_whole_budget(tmp_path: Path) -> None:
    dataset = make(tmp_path, Budget(samples=30), partition="cntk")
    sizes = [minibatch["x"].values.shape[0] for minibatch in DataLoader(dataset, None, num_workers=2)]
    assert max(sizes) > 15 and max(sizes) <= 30


def test_a_state_of_another_budget_is_refused(tmp_path: Path) -> None:
    dataset = make(tmp_path)
    next(iter(dataset))
    with pytest.raises(CheckpointError, match="minibatch_size: saved"):
        make(tmp_path, Budget(padded=41, pool=30)).load_state_dict(dataset.state_dict())


def test_joined_minibatches_are_refused_with_a_budget(tmp_path: Path) -> None:
    dataset = make(tmp_path, partition="global", remainder="merge", rank=0, world_size=2)
    with pytest.raises(ConfigError, match="remainder='merge' and a Budget"):
        next(iter(dataset))

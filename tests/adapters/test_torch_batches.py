"""Data sets that are read by budget. (docs/batches.md)"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from cntkio import (  # noqa: E402
    Budget,
    CheckpointError,
    ConfigError,
    CTFDeserializer,
    GlobalPartition,
    MinibatchData,
    MinibatchSource,
    Mixture,
    SequenceMixture,
    StreamDef,
    StreamDefs,
    packed,
)
from cntkio.torch import MinibatchDataset, convert, joined_states  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

STREAMS = StreamDefs(x=StreamDef(field="x", shape=1))
POOLED = Budget(padded=40, pool=30, buckets=(4, 8))


def data_set_in(folder: Path, budget: Any = POOLED, **options: Any) -> MinibatchDataset:
    path = folder / "x.ctf"
    if not path.exists():
        path.write_text("".join(f"{key} |x {key}\n" for key in range(100) for _ in range(1 + key * key % 8)))
    source = MinibatchSource(CTFDeserializer(path, STREAMS, chunk_size_in_bytes=200), max_sweeps=1)
    return MinibatchDataset(source, budget, **{"layout": "ragged", **options})


def keys(minibatches: Any) -> list[list[int]]:
    return [minibatch.keys_of_sequences.tolist() for minibatch in minibatches]


@pytest.mark.parametrize("partition", ["global", "balanced"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_have_equally_many_minibatches_and_share_all_sequences(
    tmp_path: Path, partition: Any, num_workers: int
) -> None:
    ranks = [
        keys(
            DataLoader(
                data_set_in(tmp_path, partition=partition, rank=rank, world_size=2), None, num_workers=num_workers
            )
        )
        for rank in range(2)
    ]
    assert len(ranks[0]) == len(ranks[1])
    found = sorted(key for batches in ranks for batch in batches for key in batch)
    assert set(found) <= set(range(100)) and len(found) >= 99


def test_a_data_set_resumes_inside_a_pool_on_more_ranks(tmp_path: Path) -> None:
    whole = keys(data_set_in(tmp_path))
    datasets = [data_set_in(tmp_path, rank=rank, world_size=2) for rank in range(2)]
    iterations = [iter(dataset) for dataset in datasets]
    found = [[next(iteration).keys_of_sequences.tolist() for iteration in iterations] for _ in range(3)]
    states = [json.loads(json.dumps(dataset.state_dict())) for dataset in datasets]
    assert states[0]["source"]["timeline"]["batch"] > 0

    resumed = [data_set_in(tmp_path, rank=rank, world_size=3) for rank in range(3)]
    for dataset in resumed:
        dataset.load_state_dict(states[1])
    found += [list(batches) for batches in zip(*map(keys, resumed), strict=True)]

    assert [sorted(sum(batches, [])) for batches in found] == [sorted(batch) for batch in whole]


def test_workers_with_cntk_partitions_each_have_the_whole_budget(tmp_path: Path) -> None:
    dataset = data_set_in(tmp_path, Budget(samples=30), partition="cntk")
    sizes = [minibatch["x"].values.shape[0] for minibatch in DataLoader(dataset, None, num_workers=2)]
    assert max(sizes) > 15 and max(sizes) <= 30


def test_a_state_of_another_budget_is_refused(tmp_path: Path) -> None:
    dataset = data_set_in(tmp_path)
    next(iter(dataset))
    with pytest.raises(CheckpointError, match="minibatch_size: saved"):
        data_set_in(tmp_path, Budget(padded=41, pool=30)).load_state_dict(dataset.state_dict())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_takes_a_schedule_that_changes_after_it(tmp_path: Path, num_workers: int) -> None:
    former, later = {0: 20, 100: 40}, {0: 20, 100: 40, 150: 80}
    dataset = data_set_in(tmp_path, Budget(padded=former), partition="global")
    minibatches = iter(DataLoader(dataset, None, num_workers=num_workers))
    for _ in range(3):
        next(minibatches)
    state = json.loads(json.dumps(dataset.state_dict()))
    whole = keys(data_set_in(tmp_path, Budget(padded=later), partition="global"))
    again = data_set_in(tmp_path, Budget(padded=later), partition="global")
    again.load_state_dict(state)
    assert keys(DataLoader(again, None, num_workers=num_workers)) == whole[3:]
    for other in (Budget(padded={0: 30, 100: 40}), Budget(padded=30)):
        with pytest.raises(CheckpointError, match="padded differs from the former reads between positions 0 and"):
            data_set_in(tmp_path, other, partition="global").load_state_dict(state)
    with pytest.raises(CheckpointError, match="minibatch_size: saved"):
        data_set_in(tmp_path, Budget(padded=former, pool=20), partition="global").load_state_dict(state)


def test_joined_minibatches_are_refused_with_a_budget(tmp_path: Path) -> None:
    dataset = data_set_in(tmp_path, partition="global", remainder="merge", rank=0, world_size=2)
    with pytest.raises(ConfigError, match="remainder='merge' and a Budget"):
        next(iter(dataset))


def mixed(
    folder: Path, budget: Any = POOLED, stop: Any = "all", kind: Any = SequenceMixture, **options: Any
) -> MinibatchDataset:
    for name, first in (("a", 0), ("b", 1000)):
        lines = (f"{first + key} |x {key}\n" for key in range(40 + first // 50) for _ in range(1 + key * key % 8))
        if not (folder / name).exists():
            (folder / name).write_text("".join(lines))
    parts = {
        name: (CTFDeserializer(folder / name, STREAMS, chunk_size_in_bytes=200), weight)
        for name, weight in (("a", 2), ("b", 1))
    }
    return MinibatchDataset(kind(parts, stop=stop), budget, layout="ragged", **options)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [SequenceMixture, Mixture])
def test_a_mixture_is_shared_by_ranks_and_workers(tmp_path: Path, num_workers: int, kind: Any) -> None:
    whole = keys(mixed(tmp_path, kind=kind))
    ranks = [
        keys(DataLoader(mixed(tmp_path, kind=kind, rank=rank, world_size=2), None, num_workers=num_workers))
        for rank in range(2)
    ]
    assert [sorted(sum(batches, [])) for batches in zip(*ranks, strict=True)] == [sorted(batch) for batch in whole]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_mixture_by_minibatch_resumes_on_more_ranks_and_other_workers(tmp_path: Path, num_workers: int) -> None:
    whole = keys(mixed(tmp_path, kind=Mixture))
    dataset = mixed(tmp_path, kind=Mixture, rank=1, world_size=2)
    loader = iter(DataLoader(dataset, None, num_workers=num_workers))
    for _ in range(4):
        minibatch = next(loader)
        expected = {"b" if key >= 1000 else "a" for key in minibatch.keys_of_sequences.tolist()}
        assert set(minibatch.source_of_sequences.tolist()) == expected
    state = json.loads(json.dumps(dataset.state_dict()))
    resumed = [mixed(tmp_path, kind=Mixture, rank=rank, world_size=3) for rank in range(3)]
    for of_rank in resumed:
        of_rank.load_state_dict(state)
    loaders = [DataLoader(of_rank, None, num_workers=2 - num_workers) for of_rank in resumed]
    found = [sorted(sum(batches, [])) for batches in zip(*map(keys, loaders), strict=True)]
    assert found == [sorted(batch) for batch in whole[4:]]


@pytest.mark.parametrize("partition", ["cntk", "balanced"])
def test_ranks_of_a_mixture_resume_from_the_states_of_a_job(tmp_path: Path, partition: Any) -> None:
    def of_rank(rank: int) -> MinibatchDataset:
        return mixed(tmp_path, kind=Mixture, partition=partition, rank=rank, world_size=2)

    whole = [keys(DataLoader(of_rank(rank), None, num_workers=2)) for rank in range(2)]
    states = []
    for rank in range(2):
        dataset = of_rank(rank)
        loader = iter(DataLoader(dataset, None, num_workers=2))
        assert [next(loader).keys_of_sequences.tolist() for _ in range(3)] == whole[rank][:3]
        states.append(json.loads(json.dumps(dataset.state_dict())))
    for rank in range(2):
        dataset = of_rank(rank)
        dataset.load_state_dict(joined_states(states) if partition == "cntk" else states[0])
        assert keys(DataLoader(dataset, None, num_workers=2)) == whole[rank][3:]


def test_a_mixture_by_minibatch_has_no_epochs_but_begins_again(tmp_path: Path) -> None:
    dataset = mixed(tmp_path, kind=Mixture)
    assert keys(dataset) == keys(dataset) != []
    with pytest.raises(ConfigError, match="a Mixture has no epochs"):
        dataset.set_epoch(1)
    with mixed(tmp_path, kind=Mixture).source as mixture, pytest.raises(ConfigError, match="leave out num_workers"):
        mixture.plan(POOLED, GlobalPartition(0, 1, worker=0, num_workers=2))


def test_mixed_sequences_resume_on_more_ranks_and_in_the_next_epoch(tmp_path: Path) -> None:
    dataset = mixed(tmp_path, partition="global")
    first = keys(dataset)
    dataset.set_epoch(1)
    second = keys(dataset)
    assert first != second and sum(map(len, first)) == sum(map(len, second))
    minibatch = next(iter(DataLoader(dataset, None, num_workers=1)))
    expected = ["b" if key >= 1000 else "a" for key in minibatch.keys_of_sequences.tolist()]
    assert minibatch.source_of_sequences.tolist() == expected
    dataset.set_epoch(1)
    loader = iter(DataLoader(dataset, None, num_workers=2))
    assert [next(loader).keys_of_sequences.tolist() for _ in range(3)] == second[:3]
    state = json.loads(json.dumps(dataset.state_dict()))
    resumed = [mixed(tmp_path, rank=rank, world_size=3) for rank in range(3)]
    for of_rank in resumed:
        of_rank.load_state_dict(state)
    found = [sorted(sum(batches, [])) for batches in zip(*map(keys, resumed), strict=True)]
    assert found == [sorted(batch) for batch in second[3:]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_layout_of_rows_gives_each_rank_its_rows_in_one_shape(tmp_path: Path, num_workers: int) -> None:
    budget = Budget(rows=4, row_length=16, pool=50)
    whole = [packed(minibatch, 16, rows=4) for minibatch in data_set_in(tmp_path, budget).source.minibatches(budget)]
    for rank in range(2):
        dataset = data_set_in(tmp_path, budget, layout="rows", rank=rank, world_size=2)
        found = list(DataLoader(dataset, None, num_workers=num_workers))
        assert len(found) == len(whole)
        for minibatch, rows in zip(found, whole, strict=True):
            assert list(minibatch) == ["x", "segment_ids", "position_ids", "cu_seqlens"]
            assert minibatch["x"].tolist() == rows.values["x"][rank::2].tolist()
            assert minibatch["position_ids"].tolist() == rows.position_ids[rank::2].tolist()
            assert minibatch["segment_ids"].max() == minibatch.num_sequences
            assert minibatch["cu_seqlens"].dtype == torch.int32 and minibatch["cu_seqlens"][-1] == 2 * 16
    dataset = data_set_in(tmp_path, budget, layout="rows", rank=1, world_size=3, partition="balanced")
    assert all(minibatch["x"].shape[:2] == (1, 16) for minibatch in dataset)


def test_a_table_of_rows_gives_as_many_rows_as_are_filled(tmp_path: Path) -> None:
    budget = Budget(rows={0: 2, 100: 4}, row_length=10, pool=20, between="steps")
    shapes = [[minibatch["segment_ids"].shape for minibatch in data_set_in(tmp_path, budget, layout="rows", rank=rank,
               world_size=2)] for rank in range(2)]  # fmt: skip
    assert {shape[1] for of_rank in shapes for shape in of_rank} == {10}
    assert shapes[0][0] == shapes[1][0] == (1, 10) and max(shapes[0]) == max(shapes[1]) == (2, 10)


def test_the_layout_of_rows_needs_rows_and_free_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a size with rows, but minibatch_size is Budget"):
        data_set_in(tmp_path, layout="rows")
    (tmp_path / "s.ctf").write_text("|segment_ids 1\n")
    streams = StreamDefs(segment_ids=StreamDef(field="segment_ids", shape=1))
    source = MinibatchSource(CTFDeserializer(tmp_path / "s.ctf", streams), max_sweeps=1)
    dataset = MinibatchDataset(source, Budget(rows=1, row_length=9, pool=1), layout="rows")
    with pytest.raises(ConfigError, match="tensors of its own named 'segment_ids'"):
        next(iter(dataset))


def test_rows_and_padded_batches_arrive_without_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(rows=4, row_length=16, pool=50)
    minibatch = data_set_in(tmp_path, budget).source.read(budget)
    rows = packed(minibatch, 16, rows=4)
    arrays = [*rows.values.values(), *rows.of_sequences.values(), rows.segment_ids, rows.position_ids, rows.cu_seqlens]
    arrays += [minibatch["x"].values, minibatch["x"].lengths]
    for array in arrays:
        assert torch.from_numpy(array).data_ptr() == array.__array_interface__["data"][0]
    padded: list[np.ndarray[Any, Any]] = []
    asarray = MinibatchData.asarray

    def noted(data: MinibatchData) -> np.ndarray[Any, Any]:
        padded.append(asarray(data))
        return padded[-1]

    monkeypatch.setattr(MinibatchData, "asarray", noted)
    values = convert(minibatch, layout="padded")["x"].values
    assert values.data_ptr() == padded[0].__array_interface__["data"][0]
    values = convert(minibatch, layout="ragged")["x"].values
    assert values.data_ptr() == minibatch["x"].values.__array_interface__["data"][0]

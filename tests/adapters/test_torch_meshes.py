"""A mesh in place of a rank, and one state of a job for `torch.distributed.checkpoint`. (docs/torch.md)"""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cntkio import (
    Budget,
    CheckpointError,
    ConfigError,
    CTFDeserializer,
    MinibatchSource,
    Mixture,
    SequenceMixture,
    StreamDef,
    StreamDefs,
)

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.distributed.checkpoint as dcp  # noqa: E402
from cntkio.torch import JobState, MinibatchDataset, place_in_mesh  # noqa: E402
from cntkio.torch.ranks import Place  # noqa: E402
from support.gloo import in_ranks, of_all_ranks  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

SIZE = Budget(rows=4, row_length=8, pool=30)
AXES: dict[str, Any] = {"divide": ["dp"], "share": ["tp"], "split": ["cp"]}


@pytest.fixture(scope="module")
def corpus_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("meshes") / "a.ctf"
    path.write_text("".join(f"{key} |x {key}.{step}\n" for key in range(60) for step in range(1 + key % 5)))
    return path


def new(path: Path, **options: Any) -> MinibatchDataset:
    streams = StreamDefs(x=StreamDef(field="x", shape=1))
    source = MinibatchSource(CTFDeserializer(path, streams, chunk_size_in_bytes=200), max_sweeps=1)
    return MinibatchDataset(source, **{"minibatch_size": SIZE, "partition": "global", **options})


def place(dp: int, cp: int, tp: int) -> Any:
    mesh = SimpleNamespace(mesh_dim_names=("dp", "cp", "tp"), shape=(2, 2, 2), get_coordinate=lambda: [dp, cp, tp])
    return place_in_mesh(mesh, **AXES)


def test_a_device_mesh_of_pytorch_has_the_same_place() -> None:
    for rank, (dp, cp, tp) in enumerate(itertools.product(range(2), repeat=3)):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=8)
        try:
            mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
            assert place_in_mesh(mesh, **AXES) == place(dp, cp, tp) == ((dp, 2), (cp, 2))
        finally:
            torch.distributed.destroy_process_group()


def test_ranks_of_a_mesh_share_and_split_the_rows_of_one_rank(corpus_path: Path) -> None:
    for dp in range(2):
        whole = [*new(corpus_path, layout="rows", rank=dp, world_size=2)]
        assert len(whole) > 3
        for tp in range(2):
            parts = zip(*(new(corpus_path, layout="rows", mesh=place(dp, cp, tp)) for cp in range(2)), strict=True)
            for rows, (head, middle) in zip(whole, parts, strict=True):
                for name in ("x", "segment_ids", "position_ids"):
                    # Of 4 slices, rank 0 has the first and the last.
                    joined = torch.cat([head[name][:, :2], middle[name], head[name][:, 2:]], dim=1)
                    assert torch.equal(joined, rows[name])
                assert torch.equal(head["cu_seqlens"], rows["cu_seqlens"])


def split_into(dataset_of: Any, count: int) -> Any:
    """Return the cells of the rows at each step, from data sets of the ranks that share them, and one of the ranks."""
    ranks = [dataset_of(Place((0, 1), (rank, count))) for rank in range(count)]
    steps = []
    for parts in zip(*(DataLoader(rank, batch_size=None, num_workers=rank.num_workers) for rank in ranks), strict=True):
        found = {}
        for name in ("x", "label", "segment_ids", "position_ids"):
            halves = [part[name].chunk(2, dim=1) for part in parts]
            found[name] = torch.cat([head for head, _ in halves] + [tail for _, tail in reversed(halves)], dim=1)
        assert len({(part.num_sequences, *part.keys_of_sequences.tolist()) for part in parts}) == 1
        steps.append((found, parts[0].keys_of_sequences.tolist()))
    return steps


@pytest.mark.parametrize(("kind", "num_workers"), [("source", 0), ("source", 2), ("mixture", 1), ("sequences", 0)])
def test_rows_with_labels_are_split_in_mixtures_and_workers(kind: str, num_workers: int, tmp_path: Path) -> None:
    streams = StreamDefs(x=StreamDef(field="x", shape=1), label=StreamDef(field="l", shape=1))
    for name in "ab":
        lines = [f"{key} |x {key}.{at}" + f" |l {key}" * (at == 0) for key in range(50) for at in range(1 + key % 9)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")

    def source() -> Any:
        a, b = (CTFDeserializer(tmp_path / name, streams, chunk_size_in_bytes=200) for name in "ab")
        if kind == "source":
            return MinibatchSource(a, max_sweeps=1)
        return (Mixture if kind == "mixture" else SequenceMixture)({"a": (a, 2), "b": (b, 1)}, stop="all")

    def dataset_of(place: Any) -> Any:
        dataset = MinibatchDataset(source(), Budget(rows=2, row_length=24, pool=40), layout="rows", mesh=place)
        dataset.num_workers = num_workers
        return dataset

    whole = [*dataset_of(Place((0, 1), (0, 1)))]
    for count in (2,) if num_workers else (2, 3, 4):
        found = split_into(dataset_of, count)
        assert [keys for _, keys in found] == [rows.keys_of_sequences.tolist() for rows in whole]
        for (cells, _), rows in zip(found, whole, strict=True):
            segments = rows["segment_ids"]
            for name in ("x", "segment_ids", "position_ids"):
                assert torch.equal(cells[name], rows[name])
            labels = rows["label"][segments.long() - 1] * (segments > 0)[..., None]
            assert torch.equal(cells["label"], labels)


def test_a_state_of_split_rows_goes_on_with_other_ranks(corpus_path: Path) -> None:
    whole = [rows["x"] for rows in new(corpus_path, layout="rows", rank=0, world_size=1)]
    state, number = None, 0
    for count in (2, 4, 1):
        states, parts = [], []
        for rank in range(count):
            dataset = new(corpus_path, layout="rows", mesh=Place((0, 1), (rank, count)))
            if state is not None:
                dataset.load_state_dict(state)
            running = iter(dataset)
            parts.append([next(running)["x"] for _ in range(2)])
            states.append(json.dumps(dataset.state_dict()))
        assert len(set(states)) == 1
        state = json.loads(states[0])
        for step in zip(*parts, strict=True):
            halves = [cells.chunk(2, dim=1) for cells in step]
            joined = [head for head, _ in halves] + [tail for _, tail in reversed(halves)]
            assert torch.equal(torch.cat(joined, dim=1), whole[number])
            number += 1


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"divide": ["dp"]}, "expected each dimension once"),
        ({**AXES, "share": ["tp", "pp"]}, "expected each dimension once"),
        ({**AXES, "share": ["tp", "dp"]}, "expected each dimension once"),
        ({**AXES, "divide": "dp"}, "divide is 'dp'; expected a list"),
    ],
)
def test_wrong_names_of_a_mesh_are_errors(names: Any, message: str) -> None:
    mesh = SimpleNamespace(mesh_dim_names=("dp", "cp", "tp"), shape=(2, 2, 2), get_coordinate=lambda: [0, 0, 0])
    with pytest.raises(ConfigError, match=message):
        place_in_mesh(mesh, **names)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "rows", "rank": 0, "world_size": 2}, "leave out rank and world_size"),
        ({}, "part is .0, 2., which needs packed rows: use a Budget with rows and, in a data set, layout='rows'"),
        ({"layout": "rows", "minibatch_size": Budget(rows=4, row_length=10, pool=30)}, "a multiple of 4"),
    ],
)
def test_a_mesh_that_does_not_fit_is_an_error(corpus_path: Path, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        new(corpus_path, mesh=place(0, 0, 0), **options)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_one_saved_state_loads_on_any_number_of_ranks(corpus_path: Path, tmp_path: Path) -> None:
    expected = [sorted(one.keys_of_sequences.tolist()) for one in new(corpus_path, rank=0, world_size=1)]
    ranks = [new(corpus_path, rank=rank, world_size=4) for rank in range(4)]
    for _, *_minibatches in zip(range(2), *ranks, strict=False):
        pass
    states = {JobState(rank).state_dict()["data"] for rank in ranks}
    assert len(states) == 1
    dcp.save({"data": JobState(ranks[3])}, checkpoint_id=tmp_path / "step2", no_dist=True)
    for count in (1, 2, 3, 5):
        again = [new(corpus_path, rank=rank, world_size=count) for rank in range(count)]
        for rank in again:
            dcp.load({"data": JobState(rank)}, checkpoint_id=tmp_path / "step2", no_dist=True)
        found = [
            sorted(key for one in ones for key in one.keys_of_sequences.tolist()) for ones in zip(*again, strict=True)
        ]
        assert found == expected[2:]
    for wrong in ({"data": "{"}, {}, {"data": 5}, None, [], "data"):
        with pytest.raises(CheckpointError, match="expected the text of its state_dict"):
            JobState(ranks[0]).load_state_dict(wrong)  # type: ignore[arg-type]


def rows_in_mesh(path: Path, second: str, kind: str) -> list[Any]:
    """Return what all ranks of a mesh of 2 by 2 processes read at each step, with their places."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", second))
    place = place_in_mesh(mesh, **{"divide": ["dp"], kind: [second]})
    found = []
    for rows in new(path, layout="rows", mesh=place):
        cells = {name: rows[name].tolist() for name in ("x", "segment_ids", "position_ids", "cu_seqlens")}
        found.append(of_all_ranks({**cells, "place": mesh.get_coordinate(), "keys": rows.keys_of_sequences.tolist()}))
    return found


@pytest.mark.parametrize(("second", "kind"), [("tp", "share"), ("cp", "split")])
def test_processes_in_a_mesh_read_the_rows_of_one_rank(
    corpus_path: Path, second: str, kind: str, tmp_path: Path
) -> None:
    whole = [[*new(corpus_path, layout="rows", rank=dp, world_size=2)] for dp in range(2)]
    answers = in_ranks(tmp_path, 4, rows_in_mesh, corpus_path, second, kind)
    assert answers == answers[:1] * 4 and len(answers[0]) == len(whole[0])
    for number, ranks in enumerate(answers[0]):
        for rank, found in enumerate(ranks):
            dp, at = found["place"]
            rows = whole[dp][number]
            assert (2 * dp + at, found["keys"]) == (rank, rows.keys_of_sequences.tolist())
            # Of 4 slices, rank 0 has the first and the last.
            cells = slice(None) if kind == "share" else [[0, 1, 6, 7], [2, 3, 4, 5]][at]
            for name in ("x", "segment_ids", "position_ids"):
                assert found[name] == rows[name][:, cells].tolist()
            assert found["cu_seqlens"] == rows["cu_seqlens"].tolist()


def saved_after_two_steps(path: Path, folder: Path) -> None:
    dataset = new(path)
    for _ in zip(range(2), dataset, strict=False):
        pass
    dcp.save({"data": JobState(dataset)}, checkpoint_id=folder)


def keys_after(path: Path, folder: Path) -> list[Any]:
    """Return the keys of all ranks at each step after the saved step."""
    dataset = new(path)
    dcp.load({"data": JobState(dataset)}, checkpoint_id=folder)
    return [sorted(key for share in of_all_ranks(one.keys_of_sequences.tolist()) for key in share) for one in dataset]


def test_the_state_that_four_processes_save_loads_on_other_numbers(corpus_path: Path, tmp_path: Path) -> None:
    expected = [sorted(one.keys_of_sequences.tolist()) for one in new(corpus_path, rank=0, world_size=1)]
    in_ranks(tmp_path, 4, saved_after_two_steps, corpus_path, tmp_path / "step2")
    for count in (1, 2, 3, 5):
        assert in_ranks(tmp_path, count, keys_after, corpus_path, tmp_path / "step2") == [expected[2:]] * count

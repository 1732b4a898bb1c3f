"""The state of a data set in the main process is exact, whatever the workers of its loader do. (docs/torch.md)"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cntkio import CheckpointError, ConfigError
from support import builders

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from cntkio.torch import MinibatchDataset  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

LENGTHS = [1 + key % 4 for key in range(101)]


@pytest.fixture(scope="module")
def corpus_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workers") / "a.ctf"
    path.write_bytes(builders.corpus_text(LENGTHS))
    return path


def new(corpus_path: Path, workers: int = 2, **options: Any) -> tuple[MinibatchDataset, DataLoader[Any]]:
    dataset = MinibatchDataset(
        builders.source_of(corpus_path, 300, max_sweeps=1), 20, partition=options.pop("partition", "cntk")
    )
    return dataset, DataLoader(dataset, batch_size=None, num_workers=workers, **options)


def shown(minibatch: Any) -> Any:
    return minibatch.keys_of_sequences.tolist(), minibatch["x"].values.tolist(), minibatch.end_of_sweep


@pytest.fixture
def pinning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the loader pin memory in its thread, as with a GPU, but in the CPU's own memory."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda _: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, *_: tensor.clone())


@pytest.mark.parametrize(
    "options",
    [
        {"pin_memory": True, "prefetch_factor": 4},
        {"pin_memory": True, "persistent_workers": True},
        {"prefetch_factor": 1},
    ],
)
def test_a_state_is_exact_with_minibatches_that_wait_in_the_loader(
    corpus_path: Path, pinning: None, options: dict[str, Any]
) -> None:
    expected = [shown(minibatch) for minibatch in new(corpus_path, **options)[1]]
    for at in (0, 1, 6, len(expected)):
        dataset, loader = new(corpus_path, **options)
        running = iter(loader)
        seen = [shown(next(running)) for _ in range(at)]
        state = json.loads(json.dumps(dataset.state_dict()))
        assert [*seen, *map(shown, running)] == expected
        again, resumed = new(corpus_path, **options)
        again.load_state_dict(state)
        assert [*seen, *map(shown, resumed)] == expected


def test_every_sequence_comes_once_after_a_delivery_out_of_order(corpus_path: Path) -> None:
    expected = Counter(range(len(LENGTHS)))
    for at in (1, 5, 9):
        dataset, loader = new(corpus_path, in_order=False, prefetch_factor=3)
        running = iter(loader)
        keys = Counter(key for _ in range(at) for key in next(running).keys_of_sequences.tolist())
        again, resumed = new(corpus_path, in_order=False)
        again.load_state_dict(dataset.state_dict())
        assert keys + Counter(key for minibatch in resumed for key in minibatch.keys_of_sequences.tolist()) == expected


@pytest.mark.parametrize("persistent", [False, True])
def test_a_break_in_mid_epoch_leaves_no_trace_in_the_next_iteration(corpus_path: Path, persistent: bool) -> None:
    dataset, loader = new(corpus_path, persistent_workers=persistent)
    dataset.set_epoch(1)
    for _ in zip(range(3), loader, strict=False):
        pass
    broken = dataset.state_dict()
    running = iter(loader)
    fresh = dataset.state_dict()
    expected = [shown(minibatch) for minibatch in running]
    again, resumed = new(corpus_path)
    again.load_state_dict(fresh)
    assert [shown(minibatch) for minibatch in resumed] == expected
    again.load_state_dict(broken)
    assert [shown(minibatch) for minibatch in resumed] == expected[3:]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_state_of_the_second_epoch_contains_that_epoch(corpus_path: Path, persistent: bool) -> None:
    dataset, loader = new(corpus_path, persistent_workers=persistent)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        running = iter(loader)
        for _ in range(4):
            next(running)
        state = dataset.state_dict()
        expected = [shown(minibatch) for minibatch in running]
        assert state["epoch"] == epoch
        again, resumed = new(corpus_path)
        again.load_state_dict(state)
        assert again.epoch == epoch and [shown(minibatch) for minibatch in resumed] == expected


def test_two_loaders_over_a_data_set_do_not_mix_their_positions(corpus_path: Path) -> None:
    dataset, first = new(corpus_path)
    second = DataLoader(dataset, batch_size=None, num_workers=2)
    ahead, behind = iter(first), iter(second)
    for _ in range(5):
        next(ahead)
    next(behind)
    of_behind = dataset.state_dict()
    next(ahead)
    of_ahead = dataset.state_dict()
    for state, running in ((of_behind, behind), (of_ahead, ahead)):
        again, resumed = new(corpus_path)
        again.load_state_dict(state)
        assert [shown(minibatch) for minibatch in resumed] == [shown(minibatch) for minibatch in running]


def test_one_persistent_worker_takes_up_a_state_of_this_process(corpus_path: Path) -> None:
    dataset, loader = new(corpus_path, workers=1, persistent_workers=True)
    expected = [shown(minibatch) for minibatch in loader]
    running = iter(dataset)
    for _ in range(4):
        next(running)
    dataset.load_state_dict(dataset.state_dict())
    assert [shown(minibatch) for minibatch in loader] == expected[4:]
    assert [shown(minibatch) for minibatch in loader] == expected


def test_this_process_continues_from_the_state_of_one_worker(corpus_path: Path) -> None:
    dataset, loader = new(corpus_path, workers=1)
    running = iter(loader)
    for _ in range(4):
        next(running)
    again, _ = new(corpus_path)
    again.load_state_dict(dataset.state_dict())
    assert [shown(minibatch) for minibatch in again] == [shown(minibatch) for minibatch in running]


def test_an_iteration_ends_when_a_state_is_loaded(corpus_path: Path) -> None:
    dataset, loader = new(corpus_path)
    running = iter(loader)
    next(running)
    dataset.load_state_dict(dataset.state_dict())
    with pytest.raises(RuntimeError, match="because a state was loaded"):
        next(running)
    assert sum(1 for _ in loader) > 3


def test_a_state_of_other_workers_stays_loaded_after_the_refusal(corpus_path: Path) -> None:
    dataset, loader = new(corpus_path)
    running = iter(loader)
    next(running)
    state = dataset.state_dict()
    expected = [shown(minibatch) for minibatch in running]
    again, resumed = new(corpus_path)
    again.load_state_dict(state)
    with pytest.raises(CheckpointError, match="num_workers: saved 2, here 1"):
        iter(DataLoader(again, batch_size=None, num_workers=1))
    assert [shown(minibatch) for minibatch in resumed] == expected


class Nested(IterableDataset):  # type: ignore[type-arg, misc]
    """Another data set over a data set."""

    def __init__(self, dataset: MinibatchDataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Any:
        return iter(self.dataset)


def test_a_data_set_inside_another_has_no_wrong_state(corpus_path: Path) -> None:
    dataset, _ = new(corpus_path)
    next(iter(DataLoader(Nested(dataset), batch_size=None, num_workers=2)))
    with pytest.raises(CheckpointError, match="do not tell where all workers stand"):
        dataset.state_dict()


class Plain(IterableDataset):  # type: ignore[type-arg, misc]
    """A program's own data set, which delivers minibatches of arrays."""

    def __init__(self, corpus_path: Path) -> None:
        self.corpus = corpus_path

    def __iter__(self) -> Any:
        with builders.source_of(self.corpus, randomize=False, max_sweeps=1) as source:
            yield from source.minibatches(30)


@pytest.mark.parametrize("workers", [0, 1])
def test_minibatches_of_a_programs_own_data_set_come_from_workers(corpus_path: Path, workers: int) -> None:
    received = list(DataLoader(Plain(corpus_path), batch_size=None, num_workers=workers))
    assert list(map(builders.shown, received)) == list(map(builders.shown, Plain(corpus_path)))
    assert {*received[3].files_of_sequences.tolist()} == {str(corpus_path)}


def test_loaders_of_other_data_sets_iterate_as_before() -> None:
    loader = DataLoader(range(4), batch_size=2, num_workers=1)  # type: ignore[arg-type]
    running = iter(loader)
    assert type(running).__module__ == "torch.utils.data.dataloader"
    assert [batch.tolist() for batch in running] == [[0, 1], [2, 3]]


def test_a_noted_iteration_has_the_attributes_of_pytorchs_iterator(corpus_path: Path) -> None:
    _, loader = new(corpus_path)
    running = iter(loader)
    name = "_num_workers"
    assert iter(running) is running and getattr(running, name) == 2
    with pytest.raises(AttributeError):
        running.banana  # noqa: B018


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_would_stack_minibatches_says_what_to_write(corpus_path: Path, workers: int) -> None:
    dataset = MinibatchDataset(builders.source_of(corpus_path), 20)
    for options in ({}, {"batch_size": 8}):
        loader = DataLoader(dataset, num_workers=workers, **options)
        with pytest.raises(ConfigError, match=r"write DataLoader\(dataset, batch_size=None\)"):
            next(iter(loader))

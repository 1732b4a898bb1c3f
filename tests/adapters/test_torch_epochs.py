"""Each epoch of a loader is whole, however workers start, and whatever was read before. (docs/torch.md)"""

import functools
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import builders

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from cntkio.torch import MinibatchDataset  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

LENGTHS = [1 + key % 4 for key in range(40)]
AT = 2
"""Minibatches after which an iteration is left, or its state is taken."""


@pytest.fixture(scope="module")
def corpus_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("epochs") / "a.ctf"
    path.write_bytes(builders.corpus_text(LENGTHS))
    return path


def keys(minibatch: Any) -> Any:
    return minibatch.keys_of_sequences.tolist()


Made = tuple[MinibatchDataset, Any]
New = Callable[[], Made]


def begin(made: Made, epoch: int) -> Iterator[Any]:
    dataset, loader = made
    dataset.set_epoch(epoch)
    return map(keys, loader)


@functools.cache
def whole_epochs(corpus_path: Path, partition: Any, num_workers: int) -> list[Any]:
    """Return the keys of each epoch, each read by a new loader."""
    epochs = []
    for epoch in range(3):
        dataset = MinibatchDataset(builders.source_of(corpus_path, 300, max_sweeps=1), 12, partition=partition)
        epochs.append(list(begin((dataset, DataLoader(dataset, batch_size=None, num_workers=num_workers)), epoch)))
    assert [sorted(sum(epoch, [])) for epoch in epochs] == [[*range(len(LENGTHS))]] * 3
    return epochs


def state_of(made: Made) -> Any:
    dataset, loader = made
    return loader.state_dict() if hasattr(loader, "state_dict") else dataset.state_dict()


def load(made: Made, state: Any) -> None:
    dataset, loader = made
    state = pickle.loads(pickle.dumps(state))
    (loader if hasattr(loader, "load_state_dict") else dataset).load_state_dict(state)


def three_epochs(new: New, expected: list[Any]) -> None:
    made = new()
    assert [list(begin(made, epoch)) for epoch in range(3)] == expected


def epochs_after_a_break(new: New, expected: list[Any]) -> None:
    made = new()
    for epoch in range(3):
        left = begin(made, epoch)
        assert [next(left) for _ in range(AT)] == expected[epoch][:AT]
        del left
        assert list(begin(made, epoch)) == expected[epoch]


def epochs_after_a_resume(new: New, expected: list[Any]) -> None:
    for epoch in range(2):
        made = new()
        for before in range(epoch):
            list(begin(made, before))
        left = begin(made, epoch)
        assert [next(left) for _ in range(AT)] == expected[epoch][:AT]
        resumed = new()
        load(resumed, state_of(made))
        assert list(begin(resumed, epoch)) == expected[epoch][AT:]
        assert [list(begin(resumed, after)) for after in (1, 2)] == expected[1:]


@pytest.mark.parametrize("course", [three_epochs, epochs_after_a_break, epochs_after_a_resume])
@pytest.mark.parametrize("is_stateful", [False, True])
@pytest.mark.parametrize(
    ("method", "persistent", "partition"),
    [
        (None, False, "cntk"),
        ("fork", False, "cntk"),
        ("fork", True, "cntk"),
        ("fork", False, "global"),
        pytest.param("fork", True, "global", marks=pytest.mark.thorough),
        pytest.param("forkserver", True, "cntk", marks=pytest.mark.thorough),
        pytest.param("spawn", False, "cntk", marks=pytest.mark.thorough),
    ],
)
def test_every_epoch_is_whole_after_epochs_breaks_and_resumes(
    corpus_path: Path, course: Any, is_stateful: bool, method: str | None, persistent: bool, partition: Any
) -> None:
    make = DataLoader
    if is_stateful:
        stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
        make = stateful.StatefulDataLoader
    of_workers = {"num_workers": 2, "multiprocessing_context": method, "persistent_workers": persistent}
    options = {"batch_size": None, **(of_workers if method else {})}

    def new() -> Made:
        dataset = MinibatchDataset(builders.source_of(corpus_path, 300, max_sweeps=1), 12, partition=partition)
        return dataset, make(dataset, **options)

    expected = whole_epochs(corpus_path, partition, options.get("num_workers", 0))

    course(new, expected)


def test_a_forked_worker_has_its_own_state_after_another_loader(corpus_path: Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    options: dict[str, Any] = {"batch_size": None, "num_workers": 2, "multiprocessing_context": "fork"}

    def new() -> MinibatchDataset:
        return MinibatchDataset(builders.source_of(corpus_path, 300, max_sweeps=1), 12)

    expected = [keys(minibatch) for minibatch in DataLoader(new(), **options)]
    for before in (DataLoader, stateful.StatefulDataLoader):
        dataset = new()
        list(before(dataset, **options))
        loader = stateful.StatefulDataLoader(dataset, **options)
        running = map(keys, loader)
        seen = [next(running) for _ in range(AT)]
        resumed = stateful.StatefulDataLoader(new(), **options)
        resumed.load_state_dict(loader.state_dict())
        assert seen + [keys(minibatch) for minibatch in resumed] == expected

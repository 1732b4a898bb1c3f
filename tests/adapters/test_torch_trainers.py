"""A data set in classes that have the names of trainers' classes; tests/trainers/ has the trainers themselves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cntkio import CTFDeserializer, MinibatchSource, StreamDef, StreamDefs
from cntkio.errors import CheckpointError, ConfigError
from support import ROOT
from support.trainers import COLUMNS, TESTED

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from cntkio.torch import MinibatchDataset  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

NUM_SEQUENCES = 40


class Ahead:
    """Reads a minibatch ahead of the step, as Lightning and prepared loaders of Accelerate do."""

    def __init__(self, loader: Any, skip_batches: int = 0) -> None:
        self.loader, self.skip_batches = loader, skip_batches

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        present = next(batches)
        for following in batches:
            yield present
            present = following
        yield present


class Wrapper(torch.utils.data.IterableDataset):
    """Passes on what a data set delivers."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        yield from self.dataset


def named(name: str, kind: type[Any] = Ahead) -> Any:
    """Return a class with the name and module of a trainer's class."""
    module, _, short = name.rpartition(".")
    return type(short, (kind,), {"__module__": module})


AHEAD = [
    "lightning.pytorch.loops.fetchers._PrefetchDataFetcher",
    "pytorch_lightning.loops.fetchers._PrefetchDataFetcher",
    "accelerate.data_loader.DataLoaderShard",
]
DIVIDING = ["accelerate.data_loader.IterableDatasetShard", "transformers.trainer_pt_utils.IterableDatasetShard"]


@pytest.fixture
def corpus(tmp_path: Path) -> CTFDeserializer:
    (tmp_path / "a.ctf").write_text("".join(f"{key} |x {key}\n" * (1 + key % 3) for key in range(NUM_SEQUENCES)))
    return CTFDeserializer(tmp_path / "a.ctf", StreamDefs(x=StreamDef(field="x", shape=1)))


def dataset_of(corpus: CTFDeserializer) -> Any:
    return MinibatchDataset(MinibatchSource(corpus, max_sweeps=1), 8, partition="global")


def keys_of(minibatch: Any) -> list[int]:
    return [int(key) for key in minibatch.keys_of_sequences]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", AHEAD)
def test_each_minibatch_that_is_read_ahead_has_its_state(name: str, num_workers: int, corpus: CTFDeserializer) -> None:
    whole = [keys_of(minibatch) for minibatch in dataset_of(corpus)]
    loader = DataLoader(dataset_of(corpus), batch_size=None, num_workers=num_workers)
    for number, minibatch in enumerate(named(name)(loader), 1):
        if number in (1, 5, len(whole)):
            again = dataset_of(corpus)
            again.load_state_dict(minibatch.to("cpu").state_dict())
            assert [keys_of(following) for following in again] == whole[number:]


@pytest.mark.parametrize("name", AHEAD)
def test_a_data_set_that_is_ahead_of_the_training_has_no_state(name: str, corpus: CTFDeserializer) -> None:
    dataset = dataset_of(corpus)
    before = dataset.state_dict()
    batches = iter(named(name)(DataLoader(dataset, batch_size=None)))
    next(batches)
    short = name.rpartition(".")[2]
    with pytest.raises(CheckpointError, match=rf"{short} reads ahead.*minibatch\.state_dict\(\)"):
        dataset.state_dict()
    dataset.load_state_dict(before)
    assert dataset.state_dict() == before


def test_a_minibatch_of_a_plain_loop_has_no_state_of_its_own(corpus: CTFDeserializer) -> None:
    dataset = dataset_of(corpus)
    minibatch = next(iter(dataset))
    with pytest.raises(CheckpointError, match=r"use the state_dict\(\) of the data set"):
        minibatch.state_dict()
    assert dataset.state_dict()["source"]["timeline"]["position"]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("name", DIVIDING)
def test_a_trainer_that_divides_the_data_again_is_an_error(
    name: str, num_workers: int, corpus: CTFDeserializer
) -> None:
    loader = DataLoader(named(name, Wrapper)(dataset_of(corpus)), batch_size=None, num_workers=num_workers)
    with pytest.raises(ConfigError, match="divides minibatches among ranks"):
        next(iter(loader))


def test_a_trainer_that_reads_on_one_rank_is_an_error(corpus: CTFDeserializer) -> None:
    dispatched = named("accelerate.data_loader.DataLoaderDispatcher")(DataLoader(dataset_of(corpus), batch_size=None))
    with pytest.raises(ConfigError, match=r"without accelerator\.prepare"):
        next(iter(dispatched))


@pytest.mark.parametrize("name", ["SkipDataLoader", "DataLoaderShard"])
def test_skipping_after_a_state_was_loaded_is_an_error(name: str, corpus: CTFDeserializer) -> None:
    dataset = dataset_of(corpus)
    skipping = named(f"accelerate.data_loader.{name}")(DataLoader(dataset, batch_size=None), skip_batches=3)
    next(iter(skipping))
    read = iter(dataset)
    next(read)
    dataset.load_state_dict(dataset.state_dict())
    with pytest.raises(ConfigError, match="skips 3 minibatches, but a state is loaded.*ignore_data_skip=True"):
        next(iter(skipping))


def test_a_first_look_after_a_state_was_loaded_is_an_error(corpus: CTFDeserializer) -> None:
    keras = {"__name__": "keras.src.trainers.trainer"}
    exec("def _symbolic_build(iterator):\n    return next(iter(iterator))\n", keras)
    look: Any = keras["_symbolic_build"]
    dataset = dataset_of(corpus)
    loader = DataLoader(dataset, batch_size=None)
    first = look(loader).keys_of_sequences.tolist()
    assert next(iter(loader)).keys_of_sequences.tolist() == first
    dataset.load_state_dict(dataset.state_dict())
    with pytest.raises(
        ConfigError, match="begins again after it, but a state is loaded: load the state in a callback's on_train_begin"
    ):
        look(loader)
    assert next(iter(loader)).keys_of_sequences.tolist() != first  # the state is still loaded


def test_other_wrappers_may_read_a_data_set(corpus: CTFDeserializer) -> None:
    dataset = dataset_of(corpus)
    batches = iter(named("mine.Wrapper", Wrapper)(dataset))
    next(batches)
    assert dataset.state_dict()["source"]["timeline"]["position"]


def test_the_table_of_the_page_names_what_is_tested() -> None:
    page = (ROOT / "docs" / "trainers.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in page.split("\n\n")[2].splitlines()]
    kinds = [COLUMNS[name] for name in rows[0][1:]]
    found = {
        row[0].partition(",")[0].lower(): {kind for kind, cell in zip(kinds, row[1:], strict=True) if "tested" in cell}
        for row in rows[2:]
    }
    assert found == TESTED

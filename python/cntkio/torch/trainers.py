"""Trainers that read a data set in a way of their own: ahead of their steps, or in shares. (docs/trainers.md)

A trainer wraps a loader in classes of its own, which call the data set, so the callers of an iteration show who reads:

    trainer ── class of the trainer ── DataLoader ── MinibatchDataset
                    `reader` finds it by its name among the callers, once in an iteration

A class that would divide the data again is an error, since the data set gives each rank its share. A class that reads
ahead is allowed: then the data set is ahead of the training, and each minibatch has its own state.
"""

from __future__ import annotations

import inspect
from typing import NamedTuple

from cntkio.errors import ConfigError

_UNPREPARED = "iterate over DataLoader(dataset, batch_size=None), without accelerator.prepare"
_READS_AHEAD = {
    ("lightning", "_PrefetchDataFetcher"),
    ("pytorch_lightning", "_PrefetchDataFetcher"),
    ("accelerate", "DataLoaderShard"),
}
_SKIPS = {("accelerate", "SkipDataLoader"), ("accelerate", "DataLoaderShard")}
_BUILDS = ("keras", "_symbolic_build")
_DIVIDES = {
    ("accelerate", "DataLoaderDispatcher"): f"with Accelerate, {_UNPREPARED}",
    ("accelerate", "IterableDatasetShard"): f"with Accelerate, {_UNPREPARED}",
    ("transformers", "IterableDatasetShard"): (
        "with Transformers, let get_train_dataloader return DataLoader(dataset, batch_size=None)"
    ),
}


class Reader(NamedTuple):
    """The way in which a trainer reads a data set.

    Attributes:
        name: The class of the trainer that reads ahead; empty: none does.
        skips: Minibatches that the trainer drops at the start.
        begins_again: Whether the trainer reads a minibatch to build its model, and then begins again.
    """

    name: str = ""
    skips: int = 0
    begins_again: bool = False

    @property
    def reads_ahead(self) -> bool:
        """True if the trainer reads a minibatch before the step of an earlier one has begun."""
        return bool(self.name)


def reader() -> Reader:
    """Return how the trainer among the callers reads.

    Raises:
        ConfigError: The trainer would divide the data among ranks a second time.
    """
    name, skips, begins_again = "", 0, False
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        key = type(caller).__module__.partition(".")[0], type(caller).__name__
        if key in _DIVIDES:
            what = f"{'.'.join(key)} divides minibatches among ranks, but the data set gives each rank its share"
            raise ConfigError(f"{what}: {_DIVIDES[key]} (docs/trainers.md)", key="trainer")
        if key in _READS_AHEAD:
            name = ".".join(key)
        if key in _SKIPS:
            skips += vars(caller).get("skip_batches", 0)
        place = str(frame.f_globals.get("__name__")).partition(".")[0], frame.f_code.co_name
        begins_again = begins_again or place == _BUILDS
        frame = frame.f_back
    return Reader(name, skips, begins_again)


def check_start(reader: Reader) -> None:
    """Refuse a trainer that drops minibatches, or begins again, although a state was loaded."""
    if reader.begins_again:
        what = "Keras reads a minibatch to build its model, and begins again after it, but a state is loaded"
        advice = "load the state in a callback's on_train_begin"
        raise ConfigError(f"{what}: {advice} (docs/trainers.md)", key="trainer")
    if reader.skips:
        what = f"the trainer skips {reader.skips} minibatches, but a state is loaded, which comes after them"
        advice = "with Transformers, set ignore_data_skip=True; with Accelerate, leave skip_first_batches out"
        raise ConfigError(f"{what}: {advice} (docs/trainers.md)", key="skip_batches")

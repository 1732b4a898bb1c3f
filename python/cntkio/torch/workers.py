"""The workers of a loader: the states from which they resume, and their positions.

::

    load_state_dict ──> Loaded ── shared memory ──> data set of a worker ── minibatch, with Passed ──┐
                                                                                                   loader
    state_dict <── Delivered <── Noted <── what the loader delivers to the program  <────────────────┘

Workers prepare minibatches ahead of need, some workers faster than others. So only the iteration of a loader knows
which minibatches the program has received, and a loader does not tell its data set. This module therefore replaces
`DataLoader.__iter__`: the iteration of a loader with workers over a `WatchedDataset` notes what it delivers. All other
loaders iterate as before. (docs/architecture.md, "Decisions")
"""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.utils.data

from cntkio.errors import CheckpointError, ConfigError
from cntkio.source.checkpoint import changing
from cntkio.timeline.state import has_begun, of_any_worker
from cntkio.torch.tensors import TensorMinibatch
from cntkio.torch.trainers import Reader

_LONGEST_STATE = 1 << 16

_arrived: set[str] = set()
"""Tokens of data sets from whose workers minibatches have arrived in this process."""


class Passed(NamedTuple):
    """Position of a worker's data set after a minibatch.

    Attributes:
        token: Identifier of the data set.
        worker: The worker's share of the data.
        iteration: Number of the iteration in this worker.
        epoch: Epoch of the iteration.
        origin: Number of the loaded state from which the iteration resumed; 0: from the start of the epoch; None: from
            a state that only this worker knows, because the loader kept it.
        position: The changing part of the source's state.
    """

    token: str
    worker: int
    num_workers: int
    iteration: int
    epoch: int
    origin: int | None
    position: dict[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, tuple(self)


def _arrive(token: str, *others: Any) -> Passed:
    """Create a `Passed` that comes from another process."""
    _arrived.add(token)
    return Passed(token, *others)


def shares(state: Mapping[str, Any], num_workers: int) -> tuple[list[Any], int]:
    """Return for each worker the position from which it resumes, and the worker with the next minibatch.

    Args:
        num_workers: Number of workers; 0: this process reads without workers.

    Returns:
        The changing part of the source's state, or None for the start of the epoch, by worker.
    """
    position = changing(state["source"])
    if "workers" in state:
        positions, first = list(state["workers"]), state["next_worker"]
    elif has_begun(position["timeline"]):
        positions, first = [position], 0
    else:  # nothing was read yet, so nothing was shared
        return [position] * max(num_workers, 1), 0
    if state["partition"] == "global":
        return positions * max(num_workers, 1), 0
    if len(positions) != max(num_workers, 1):
        what = f"the state does not fit this data set: num_workers: saved {len(positions)}, here {num_workers}"
        saved, current = {"num_workers": len(positions)}, {"num_workers": num_workers}
        raise CheckpointError(what, saved=saved, current=current)
    return positions, first


class Loaded:
    """A state that was loaded, for the next iteration of this process or of the workers of a loader.

    It is in shared memory as well, for workers that were started before it was loaded.

    Attributes:
        state: The state from which the next iteration resumes; None: it begins at the start of its epoch.
        count: Number of states that were loaded, and of changes of the ranks.
        is_of_this_worker: True in a worker whose loader keeps the states of its workers, as `StatefulDataLoader` does.
    """

    def __init__(self) -> None:
        self.state: Mapping[str, Any] | None = None
        self.count = 0
        self.is_of_this_worker = False
        self._header = torch.zeros(2, dtype=torch.int64).share_memory_()  # number of the state, and its length in bytes
        self._text = torch.zeros(_LONGEST_STATE, dtype=torch.uint8).share_memory_()
        self._ranks = torch.zeros(2, dtype=torch.int64).share_memory_()
        self._taken_up = 0  # number of the last state that this process took up

    @property
    def number(self) -> int:
        """Number of the state for workers."""
        return int(self._header[0])

    @property
    def ranks(self) -> tuple[int, int] | None:
        """The rank and the number of ranks that the program has set; None: it has set none."""
        rank, world_size = self._ranks.tolist()
        return (rank, world_size) if world_size else None

    def set_ranks(self, rank: int, world_size: int) -> None:
        """Set the ranks, also in workers that persist, and end the iterations of loaders."""
        self._ranks.copy_(torch.tensor([rank, world_size]))
        self.count += 1

    def load(self, state: Mapping[str, Any]) -> None:
        """Keep a state for the next iteration."""
        self.state = dict(state)
        self.count += 1
        self.is_of_this_worker = torch.utils.data.get_worker_info() is not None
        if not self.is_of_this_worker:
            self._send(json.dumps(state).encode())

    def withdraw(self) -> None:
        """Let the next iteration begin at the start of its epoch."""
        if self.state is not None or self._header[1]:
            self.state = None
            self._send(b"")

    def _send(self, text: bytes) -> None:
        # Of a longer state only the length is sent, so that `receive` refuses it in a worker; this process can load it.
        if 0 < len(text) <= _LONGEST_STATE:
            self._text[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._header += torch.tensor([1, 0])
        self._header[1] = len(text)

    def take_up(self, number: int) -> None:
        """Note that workers have taken up the state of this number."""
        self._taken_up = number
        self.state = None
        self.is_of_this_worker = False

    def receive(self) -> tuple[int, Mapping[str, Any] | None]:
        """Return the number of the state for workers, and the state if this worker has not taken it up."""
        number, length = self._header.tolist()
        if number == self._taken_up or not length:
            return number, None
        if length > _LONGEST_STATE:
            raise CheckpointError(f"the state has {length} bytes; for workers, expected at most {_LONGEST_STATE}")
        state: Mapping[str, Any] = json.loads(bytes(self._text[:length].numpy()))
        return number, state


class Positions:
    """Positions of the workers of an iteration after the minibatches that the loader has delivered."""

    def __init__(self, epoch: int, positions: list[Any], next_worker: int) -> None:
        self.epoch, self._positions, self._next_worker = epoch, positions, next_worker

    def pass_on(self, passed: Passed) -> None:
        """Note the delivery of a minibatch."""
        self.epoch = passed.epoch
        self._positions[passed.worker] = passed.position
        self._next_worker = (passed.worker + 1) % len(self._positions)

    def state(self, *, is_global: bool) -> dict[str, Any]:
        """Return the part of a data set's state that describes workers.

        Args:
            is_global: For global partitions: the position after the last delivery, for any number of workers.
        """
        workers, next_worker = list(self._positions), self._next_worker
        if is_global:
            # The worker before the next one delivered last; before worker 0 comes the last worker.
            last = workers[next_worker - 1]
            workers, next_worker = [last and {**last, "timeline": of_any_worker(last["timeline"])}], 0
        return {"num_workers": len(workers), "epoch": self.epoch, "workers": workers, "next_worker": next_worker}


class Delivered:
    """Deliveries of a data set by loaders with workers, in the process that has the loader.

    Attributes:
        positions: Positions of the workers; None: this process read the data set itself, or loaded a state.
        num_steps: Minibatches of the current epoch up to here; None: unknown, or the epoch has ended.
    """

    def __init__(self) -> None:
        self.num_steps: int | None = 0
        self.token = uuid.uuid4().hex
        self.positions: Positions | None = None
        self._is_unknown = False  # true after a loader delivered something without a position

    def count(self) -> None:
        """Count a minibatch."""
        if self.num_steps is not None:
            self.num_steps += 1

    def begin_here(self, num_steps: int | None = 0) -> None:
        """Note that this process reads the data set itself, or loads a state, after a number of steps."""
        self.num_steps = num_steps
        self.positions, self._is_unknown = None, False
        _arrived.discard(self.token)

    def note(self, positions: Positions | None) -> None:
        """Note the position of a worker after a delivery; None: it is unknown."""
        self.positions, self._is_unknown = positions, positions is None

    def check(self) -> None:
        """Check that the positions of the workers are known."""
        if self._is_unknown or (self.positions is None and self.token in _arrived):
            raise CheckpointError(
                "the loader's minibatches do not tell where all workers stand (a collate_fn changed them, the data set "
                "is part of another data set, or the loader is a StatefulDataLoader); use DataLoader(dataset, "
                "batch_size=None), or the state_dict() of the StatefulDataLoader"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "positions": None}


class WatchedDataset(torch.utils.data.IterableDataset):
    """A data set that learns what the iterations of a loader with workers deliver.

    Attributes:
        loaded: The state from which the next iteration resumes.
        delivered: Deliveries by loaders with workers.
        reader: How the trainer of the present iteration reads.
    """

    def __init__(self) -> None:
        self.loaded = Loaded()
        self.delivered = Delivered()
        self.reader = Reader()

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers."""
        raise NotImplementedError

    def begin_iteration(self) -> None:
        """Check, in the process that has the loader, that all ranks begin the same iteration."""
        raise NotImplementedError

    def position(self) -> dict[str, Any]:
        """Return the state after the last delivery."""
        raise NotImplementedError


class Noted:
    """An iteration of a loader with workers that notes what it delivers.

    It has all other attributes of PyTorch's own iterator.
    """

    def __init__(self, dataset: WatchedDataset, iterator: Iterator[Any], num_workers: int) -> None:
        state = dataset.loaded.state
        self._dataset, self._iterator = dataset, iterator
        self._count, self._number = dataset.loaded.count, dataset.loaded.number
        self._iteration: int | None = None  # the workers count their iterations themselves
        self._is_known = True
        self._origin = 0 if state is None else self._number
        self._num_steps = 0 if state is None else state.get("steps")
        if state is None:
            dataset.delivered.num_steps = 0
            self._positions = Positions(dataset.epoch, [None] * num_workers, 0)
            dataset.delivered.note(self._positions)
        else:
            self._positions = Positions(state["epoch"], *shares(state, num_workers))

    def __iter__(self) -> Noted:
        return self

    def __len__(self) -> int:
        return len(self._iterator)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":  # a copy looks it up before it is set
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def __next__(self) -> Any:
        if self._dataset.loaded.count != self._count:
            what = "this iteration has ended, because a state was loaded into its data set, or its ranks were set"
            raise RuntimeError(f"{what}: iterate over the loader again")
        try:
            delivered = next(self._iterator)
        except StopIteration:
            if self._iteration is None:
                self._begin()
            self._dataset.delivered.num_steps = None
            raise
        passed = delivered.passed if isinstance(delivered, TensorMinibatch) else None
        if not isinstance(passed, Passed):
            self._is_known = False
        else:
            if self._iteration is None:
                # Only with the first delivery, because until then `state_dict` returns the loaded state.
                self._begin()
                self._iteration = passed.iteration
            self._is_known &= passed.origin == self._origin and passed.iteration == self._iteration
            self._positions.pass_on(passed)
        self._note()
        self._dataset.delivered.count()
        if self._is_known and self._dataset.reader.reads_ahead:
            delivered.state = self._dataset.position()
        return delivered

    def _begin(self) -> None:
        """Note that the workers have taken up the state."""
        self._dataset.loaded.take_up(self._number)
        self._dataset.delivered.num_steps = self._num_steps
        self._note()

    def _note(self) -> None:
        self._dataset.delivered.note(self._positions if self._is_known else None)


_plain_iter: Any = torch.utils.data.DataLoader.__iter__


@functools.wraps(_plain_iter)
def _watched_iter(loader: torch.utils.data.DataLoader[Any]) -> Any:
    if not isinstance(loader.dataset, WatchedDataset):
        return _plain_iter(loader)
    if loader.batch_size is not None and loader.collate_fn is torch.utils.data.default_collate:
        what = f"the loader has batch_size={loader.batch_size}, but a data set delivers whole minibatches"
        raise ConfigError(f"{what}; write DataLoader(dataset, batch_size=None)", key="batch_size")
    if not loader.num_workers:
        return _plain_iter(loader)
    loader.dataset.begin_iteration()
    if loader.dataset.loaded.state is not None:  # refuse a state of another number of workers before workers start
        shares(loader.dataset.loaded.state, loader.num_workers)
    return Noted(loader.dataset, _plain_iter(loader), loader.num_workers)


torch.utils.data.DataLoader.__iter__ = _watched_iter

"""A source as a data set reads it: with epochs; a source written in Python also gets reads of shares, and states."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from cntkio.errors import CheckpointError
from cntkio.minibatch import Minibatch, checked_minibatch
from cntkio.mixture import Mixture
from cntkio.source import MinibatchSource
from cntkio.source.checkpoint import difference
from cntkio.timeline import Partition
from cntkio.user_source import UserMinibatchSource

_STATE_VERSION = 1


def readable(source: MinibatchSource | Mixture | UserMinibatchSource) -> Any:
    """Return a source with the methods that a data set calls."""
    return _UserSource(source) if isinstance(source, UserMinibatchSource) else source


class _UserSource:
    """The part of `MinibatchSource` that a data set needs, for a `UserMinibatchSource`.

    Its timeline is unknown, so it has no epochs, and it divides its minibatches itself.
    """

    span = None
    is_randomized = False
    num_chunks = sys.maxsize  # a worker gets its share of each minibatch, so none is without data

    def __init__(self, source: UserMinibatchSource) -> None:
        self._source = source
        self._size: int | None = None  # the size of the last read

    def is_infinite(self) -> bool:
        return self._source.is_infinite()

    def read(self, size: int, partition: Partition) -> Minibatch | None:
        self._size = size
        return checked_minibatch(self._source.next_minibatch(size, partition.count, partition.index)) or None

    def state_dict(self) -> dict[str, Any]:
        """Return the checkpoint of the source as the state of a timeline."""
        name = type(self._source).__name__
        # As in states of a `MinibatchSource`, a size says that reading has begun.
        begun = {} if self._size is None else {"minibatch_size": self._size}
        return {
            "version": _STATE_VERSION,
            "settings": {"source": name},
            "data": [f"{info.name}: {info.form}" for info in self._source.stream_infos()],
            "order": {"deserializers": [{"name": name}]},
            "timeline": {"position": self._source.get_checkpoint_state(), **begun},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a result of `state_dict`.

        Raises:
            CheckpointError: The state is of another source, or the source cannot resume.
        """
        own = self.state_dict()
        different = {name: own[name] for name in ("settings", "data") if state.get(name) != own[name]}
        if different:
            saved = {name: state.get(name) for name in different}
            texts = [difference(name, saved[name], value) for name, value in different.items()]
            raise CheckpointError(
                f"the state does not fit this source: {'; '.join(texts)}", saved=saved, current=different
            )
        self._source.restore_from_checkpoint(state["timeline"]["position"])
        self._size = state["timeline"].get("minibatch_size")


class Epochs:
    """The epochs of a source. The first begins where the source stands now; each is as long as the source's limit.

    Args:
        source: The source. Nothing else may move it.

    Attributes:
        start: The state of the source at the start of the first epoch.
        current: The epoch in which the source stands; None: it has not been moved yet.
    """

    def __init__(self, source: MinibatchSource) -> None:
        self._source = source
        self.start = source.state_dict()
        self.current: int | None = None
        self._span = source.span
        self._has_moved = False  # true once the source's span may have changed

    @property
    def are_many(self) -> bool:
        """True if the source has an end, after which the next epoch begins."""
        return self._span is not None

    def enter(self, epoch: int) -> None:
        """Move the source to the start of an epoch."""
        if self._span is not None and (epoch or self._has_moved):
            begin, end = self._span
            offset = epoch * (end - begin)
            number = self.start.get("epoch_number", 0) + epoch
            self._source.begin_epoch(begin + offset, end + offset, number=number)
            self._has_moved = True
        if epoch == 0:
            self._source.load_state_dict(self.start)
        self.current = epoch

    def resume(self, epoch: int, state: Mapping[str, Any]) -> None:
        """Move the source to one of its states, in an epoch.

        Raises:
            CheckpointError: The state does not fit the source.
        """
        # A state without an epoch is of the source's own limits, which the first epoch has.
        if "epoch" not in state and self._has_moved:
            self.enter(0)
        self._source.load_state_dict(state)
        self._has_moved |= "epoch" in state
        self.current = epoch

    def has_ended_at(self, state: Mapping[str, Any]) -> bool:
        """Return whether a state of the source is at the end of its epoch."""
        end = state["epoch"][1] if "epoch" in state else self._span[1] if self._span else None
        position = state["timeline"].get("position")
        return (
            end is not None and position is not None and position >= end and not any(state["timeline"].get("slots", ()))
        )

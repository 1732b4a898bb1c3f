"""The epochs of a data set: its source moves to the start of an epoch, or to a state within an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cntkio.source import MinibatchSource


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

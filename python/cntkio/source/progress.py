"""`Progress`: the position of a source: epochs, checkpoints and states.

Invariant: a call that fails, or is interrupted, leaves the source where it was. (`Pipeline.move`)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from cntkio.arguments import whole_number
from cntkio.errors import CheckpointError
from cntkio.source.checkpoint import Checkpoint, epoch_of
from cntkio.source.hand_over import Epoch
from cntkio.source.options import SourceOptions
from cntkio.source.pipeline import Pipeline
from cntkio.source.recipe import Recipe
from cntkio.timeline import AnyTimeline


class Progress:
    """Position of a source, and the ways to move it.

    Args:
        options: The options of the source.
        recipe: Its recipe.
        timeline: Its timeline.
        pipeline: Its minibatches.
        checkpoint: Takes and checks its states.
    """

    def __init__(
        self, options: SourceOptions, recipe: Recipe, timeline: AnyTimeline, pipeline: Pipeline, checkpoint: Checkpoint
    ) -> None:
        self._options = options
        self._recipe = recipe
        self._timeline = timeline
        self._pipeline = pipeline
        self._checkpoint = checkpoint

    @property
    def options(self) -> SourceOptions:
        """The options of the source in this epoch."""
        return self._options_in(self._pipeline.epoch)

    @property
    def span(self) -> tuple[int, int] | None:
        """Positions at which the data, or the epoch, begin and end; None: no end, or a timeline without positions."""
        end = self._timeline.end
        if self._options.is_infinite or end is None:
            return None
        return self._pipeline.epoch.span or (0, end)

    @property
    def has_ended(self) -> bool:
        """True if the data, or the epoch, ended with the minibatch that was delivered last."""
        return self._timeline.ends_at(self._pipeline.delivered.bookmark)

    def begin_epoch(self, begin: int, end: int, truncation_length: int | None, number: int | None) -> None:
        """Deliver an epoch; see `MinibatchSource.begin_epoch`."""
        for name, value in (
            ("begin", begin), ("end", end), ("truncation_length", truncation_length or 0), ("number", number or 0),
        ):  # fmt: skip
            if whole_number(name, value) < 0:
                raise CheckpointError(f"{name} is {value}; expected at least 0", saved=value)
        self._recipe.check_truncation(self._options, truncation_length)
        span = int(begin), int(end)

        def move() -> Epoch:
            epoch = self._pipeline.epoch._replace(span=span)
            if number is not None:
                epoch = epoch._replace(number=number)
            if truncation_length is not None:
                epoch = epoch._replace(truncation_length=truncation_length)
            self._timeline.begin_epoch(*span, truncation_length, self._recipe.num_rows(epoch.number))
            return epoch

        self._pipeline.move(move)

    # -------------------------------------------------------------------------------------------- checkpoints

    def cntk_state(self) -> dict[str, int]:
        """Return CNTK's state: the position alone."""
        return self._timeline.checkpoint(self._pipeline.delivered.bookmark)

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Go to the position of a `cntk_state` or a `state`.

        Raises:
            CheckpointError: The state has no position, or does not fit this source.
        """
        if "version" in _mapping(checkpoint):
            self.load_state(checkpoint)
            return

        def move() -> Epoch:
            self._timeline.restore(checkpoint)
            return self._pipeline.epoch

        self._pipeline.move(move)

    def state(self) -> dict[str, Any]:
        """Return everything that is needed to continue here, and to detect other data or settings."""
        self._pipeline.check_open()  # the fingerprints of the data may be read from the files
        delivered, epoch = self._pipeline.where()
        return self.state_of(self._timeline.state(delivered.bookmark), epoch)

    def state_of(self, timeline: Mapping[str, Any], epoch: Epoch) -> dict[str, Any]:
        """Return the state of a source whose timeline has this state, in an epoch."""
        state = self._checkpoint.take(timeline, self._settings(epoch))
        span = {} if epoch.span is None else {"epoch": list(epoch.span)}
        return {**state, **span, **self._recipe.epoch_state(epoch.number)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a `state`.

        Raises:
            CheckpointError: The state was taken from other data or with other settings; all differences are named.
        """
        _mapping(state)

        def move() -> Epoch:
            epoch = self._pipeline.epoch._replace(number=self._recipe.epoch_number(state))
            self._checkpoint.check(state, self._settings(epoch))
            if "epoch" in state:
                begin, end = epoch_of(state)
                epoch = epoch._replace(span=(begin, end))
                self._timeline.begin_epoch(begin, end)
            self._timeline.load_state(state["timeline"], self._recipe.num_rows(epoch.number))
            return epoch

        self._pipeline.move(move)

    def start(self, *, is_here: bool) -> Callable[[AnyTimeline], None]:
        """Return a function that moves a new timeline to the beginning of the epoch, or to the source's position."""
        delivered, epoch = self._pipeline.where()
        num_rows = self._recipe.num_rows(epoch.number)
        here = self._timeline.state(delivered.bookmark) if is_here else None

        def put(timeline: AnyTimeline) -> None:
            if epoch.span is not None:
                timeline.begin_epoch(*epoch.span, epoch.truncation_length, num_rows)
            if here is not None:
                timeline.load_state(here, num_rows)

        return put

    def _settings(self, epoch: Epoch) -> dict[str, Any]:
        return {**self._recipe.for_checkpoint(self._options_in(epoch)), **self._timeline.checkpoint_settings}

    def _options_in(self, epoch: Epoch) -> SourceOptions:
        if epoch.truncation_length is None:
            return self._options
        return dataclasses.replace(self._options, truncation_length=epoch.truncation_length)


def _mapping(state: Any) -> Mapping[str, Any]:
    if not isinstance(state, Mapping):
        raise CheckpointError(
            f"the state is {state!r:.200}; expected the dict that state_dict() or get_checkpoint_state() returned",
            saved=state,
        )
    return state

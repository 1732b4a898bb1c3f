"""The parameters of CNTK's HTKMLFReader, checked."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from cntkio.arguments import flag
from cntkio.errors import ConfigError
from cntkio.timeline import WHOLE_DATA, Window

ReadMethod = Literal["blockRandomize", "rollingWindow", "none"]
READ_METHODS: tuple[ReadMethod, ...] = get_args(ReadMethod)
_ALL_OR_NONE: tuple[Literal["auto", "none"], ...] = ("auto", "none")
LONGEST_UTTERANCE = 65535
"""Frames of the longest utterance that the reader accepts."""
DEFAULT_MAX_UTTERANCE_LENGTH = 10_000

_Word = TypeVar("_Word", bound=str)


@dataclasses.dataclass(frozen=True)
class HTKMLFOptions:
    """The parameters that `cntkio.htkmlf_reader.HTKMLFReader` has and other sources do not.

    Raises:
        ConfigError: Two parameters exclude each other.
    """

    read_method: ReadMethod
    randomize: int | Literal["auto", "none"]
    only_full: bool
    frame_mode: bool
    truncated: bool
    truncation_length: int
    counts: tuple[int, ...]
    max_utterance_length: int
    page_folder: str | None
    page_limit_in_bytes: int

    @classmethod
    def of(
        cls,
        *,
        read_method: str,
        randomize: int | str,
        minibatch_mode: str,
        frame_mode: bool,
        truncated: bool,
        truncation_length: int,
        counts: int | Sequence[int],
        max_utterance_length: int,
        page_folder: str | os.PathLike[str] | None,
        page_limit_in_bytes: int,
    ) -> HTKMLFOptions:
        """Check the parameters, each by itself. Words may be in upper or lower case.

        Raises:
            ConfigError: A parameter is invalid, or two exclude each other.
        """
        listed = counts if isinstance(counts, Sequence) else [counts]
        return cls(
            read_method=_word("readMethod", read_method, READ_METHODS),
            randomize=_randomize(randomize),
            only_full=_word("minibatchMode", minibatch_mode, ("partial", "full")) == "full",
            frame_mode=flag("frameMode", frame_mode),
            truncated=flag("truncated", truncated),
            truncation_length=_whole_number("truncationLength", truncation_length, 0),
            counts=tuple(_whole_number("nbruttsineachrecurrentiter", count, 1) for count in listed),
            max_utterance_length=_whole_number("maxUtteranceLength", max_utterance_length, 1),
            page_folder=None if page_folder is None else os.fspath(page_folder),
            page_limit_in_bytes=_whole_number("page_limit_in_bytes", page_limit_in_bytes, 0),
        )

    def __post_init__(self) -> None:
        if self.truncated and self.frame_mode:
            raise ConfigError(
                "truncated and frameMode exclude each other; frameMode is true by default", key="truncated"
            )
        if self.truncation_length and not self.truncated:
            raise ConfigError(
                f"truncationLength={self.truncation_length} needs truncated=True as well", key="truncationLength"
            )
        if not self.counts:
            raise ConfigError(
                "nbruttsineachrecurrentiter is empty; expected a number", key="nbruttsineachrecurrentiter"
            )
        if self.frame_mode and max(self.counts) > 1:
            raise ConfigError(
                f"nbruttsineachrecurrentiter={max(self.counts)} and frameMode exclude each other; frameMode is true by "
                f"default",
                key="nbruttsineachrecurrentiter",
            )
        if self.read_method == "rollingWindow" and not self.frame_mode and self.window is not None:
            raise ConfigError(
                "readMethod='rollingWindow' shuffles frames, and frameMode is false; whole utterances are shuffled by "
                "readMethod='blockRandomize'",
                key="readMethod",
            )
        if self.page_folder is None:
            return
        if self.read_method != "rollingWindow":
            raise ConfigError(
                f"pageFilePath={self.page_folder!r} needs readMethod='rollingWindow', but readMethod is "
                f"{self.read_method!r}",
                key="pageFilePath",
            )
        if not Path(self.page_folder).is_dir():
            raise ConfigError(
                f"pageFilePath is {self.page_folder!r}, which is not a folder; expected a folder that exists",
                key="pageFilePath",
            )

    @property
    def window(self) -> Window | None:
        """The distance over which frames or utterances are shuffled; None: they come in order."""
        if self.randomize == "none" or self.read_method == "none":
            return None
        if self.randomize == "auto":
            return WHOLE_DATA
        # In a rolling window of one frame, no frame can move.
        is_still = self.randomize == 0 or (self.randomize == 1 and self.read_method == "rollingWindow")
        return None if is_still else Window(self.randomize, "samples")

    @property
    def steps_by_size(self) -> bool:
        """True if the minibatch size gives the steps of a truncated minibatch."""
        return self.truncated and not self.truncation_length

    @property
    def longest(self) -> int:
        """Frames of the longest utterance that is not skipped."""
        is_limited = not self.frame_mode and not self.truncated
        return min(self.max_utterance_length, LONGEST_UTTERANCE) if is_limited else LONGEST_UTTERANCE

    def count(self, epoch: int) -> int:
        """Return the number of parallel utterances in an epoch."""
        return self.counts[min(epoch, len(self.counts) - 1)]

    def size(self, minibatch_size: int, epoch: int) -> int:
        """Return a minibatch size as the timeline counts it: in frames, utterances, or cells of all rows."""
        if self.frame_mode or minibatch_size < 1:
            return minibatch_size
        count = self.count(epoch)
        return count * (self.truncation_length or minibatch_size) if self.truncated else count

    @property
    def arguments(self) -> dict[str, Any]:
        """The parameters as keywords of `HTKMLFReader`."""
        return {
            "readMethod": self.read_method,
            "randomize": self.randomize,
            "minibatchMode": "full" if self.only_full else "partial",
            "frameMode": self.frame_mode,
            "truncated": self.truncated,
            "truncationLength": self.truncation_length,
            "nbruttsineachrecurrentiter": self.counts,
            "maxUtteranceLength": self.max_utterance_length,
            "pageFilePath": self.page_folder,
            "page_limit_in_bytes": self.page_limit_in_bytes,
        }


def _word(name: str, value: object, words: Sequence[_Word]) -> _Word:
    for word in words:
        if isinstance(value, str) and value.lower() == word.lower():
            return word
    raise ConfigError(f"{name} is {value!r}; expected {' or '.join(map(repr, words))}", key=name)


def _whole_number(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value < 2**63:
        raise ConfigError(f"{name} is {value!r}; expected a whole number from {least}", key=name)
    return int(value)


def _randomize(value: object) -> int | Literal["auto", "none"]:
    if isinstance(value, bool):
        return "auto" if value else "none"
    if isinstance(value, str):
        return _word("randomize", value, _ALL_OR_NONE)
    return _whole_number("randomize", value, 0)

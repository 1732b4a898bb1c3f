"""`SourceOptions`: the arguments of a source, checked; and `Recipe`: the decisions in which kinds of sources differ.

A source is made from its options, its pickle contains them, and a checkpoint compares them. A source lets its recipe
open a deserializer, make the timeline, and turn the arguments of a read into a request. Everything else is the same for
all sources. `Recipe` itself is the recipe of a plain `MinibatchSource`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, get_type_hints

import numpy as np
import numpy.typing as npt

from cntkio.arguments import flag, is_whole
from cntkio.errors import ConfigError, OutOfRangeError
from cntkio.formats.contract import Ahead, Corpus, Deserializer, Opening
from cntkio.formats.corpus import as_deserializer
from cntkio.formats.table import SequenceTable
from cntkio.source.arrangement import Arrangement
from cntkio.source.omissions import checked_omissions, omissions_of
from cntkio.source.pipeline import Request
from cntkio.timeline import INFINITELY_REPEAT, AnyTimeline, Partition, Size, Timeline, Window, python_window
from cntkio.timeline.selection import Omissions
from cntkio.timeline.user_timeline import UserTimeline

# The indexing pass parses chunks before the partition is known, so limit how much it parses.
_MOST_PARSED_AHEAD = 1 << 30


@dataclasses.dataclass(frozen=True, eq=False)
class SourceOptions:
    """The arguments of `cntkio.source.MinibatchSource`, which documents them and their errors."""

    deserializers: Deserializer | Sequence[Deserializer]
    max_samples: int
    max_sweeps: int
    randomization_window_in_chunks: int
    randomization_window_in_samples: int
    randomization_seed: int
    frame_mode: bool
    truncation_length: int
    randomize: bool
    max_errors: int
    strict: bool
    keep_data_in_memory: bool
    read_ahead_in_bytes: int
    right_splice: int
    crosses_sweeps: bool
    local_timeline: bool
    trace_level: int
    leave_out: Any
    repeat: Any
    order: Literal["cntk", "keyed"]

    def __post_init__(self) -> None:
        if not self.described:
            message = "no deserializers: the list is empty; expected a deserializer, or a list of at least one"
            raise ConfigError(message, key="deserializers")
        for name, kind in _KINDS.items():
            if kind is int:
                _check_whole(name, getattr(self, name))
            elif kind is bool:
                flag(name, getattr(self, name))
        if self.frame_mode and self.truncation_length:
            message = f"frame_mode and truncation_length={self.truncation_length} exclude each other"
            raise ConfigError(message, key="truncation_length")
        self.window  # noqa: B018 - checks both windows
        if self.leave_out is not None:
            # An iterator can be read only once, and a worker may not have the file.
            object.__setattr__(self, "leave_out", checked_omissions(self.leave_out))

    @functools.cached_property
    def described(self) -> list[Deserializer]:
        """The deserializers, one for each corpus."""
        given: Any = self.deserializers
        listed = given if isinstance(given, list | tuple) else [given]
        return [part for deserializer in listed for part in as_deserializer(deserializer).parts()]

    @functools.cached_property
    def window(self) -> Window | None:
        """The distance over which sequences are shuffled; None: they come in order."""
        in_chunks, in_samples = self.randomization_window_in_chunks, self.randomization_window_in_samples
        return python_window(in_chunks, in_samples, randomize=self.randomize, order=self.order)

    @property
    def is_infinite(self) -> bool:
        """True if neither samples nor sweeps are limited."""
        return self.max_samples == INFINITELY_REPEAT and self.max_sweeps == INFINITELY_REPEAT

    @property
    def ahead(self) -> Ahead:
        """Data to parse while indexing. In order: the first chunks. Shuffled: all data, if one window spans them."""
        window, num_bytes = self.window, self.read_ahead_in_bytes if len(self.described) == 1 else 0
        if window is None:
            return Ahead(num_bytes)
        if window.unit == "samples":
            return Ahead(0, window_in_samples=window.size, is_shuffled=True)
        # With at most half a window of chunks, every window spans all data, so all chunks are needed at once.
        num_bytes, num_chunks = (_MOST_PARSED_AHEAD, window.size // 2) if num_bytes else (0, None)
        return Ahead(num_bytes, num_chunks, window_in_chunks=window.size, is_shuffled=True)

    @property
    def for_timeline(self) -> dict[str, Any]:
        """The options of the order, by the names of `Timeline`."""
        names = ("window", "max_samples", "max_sweeps", "truncation_length", "right_splice", "crosses_sweeps")
        others = {"seed": self.randomization_seed, "size_counts": "own" if self.local_timeline else "all"}
        return {name: getattr(self, name) for name in names} | others

    @property
    def for_user_timeline(self) -> dict[str, Any]:
        """The options of the order that the timeline of a user-defined deserializer has; other options are refused."""
        refused = "right_splice nor crosses_sweeps=False nor local_timeline=False nor order='keyed'"
        of_tables = {"right_splice": 0, "crosses_sweeps": True, "local_timeline": True, "order": "cntk"}
        for name, default in of_tables.items():
            if getattr(self, name) != default:
                raise ConfigError(f"user-defined deserializers take neither {refused}", key=name)
        own = ("window", "seed", "max_samples", "max_sweeps", "truncation_length")
        return {name: self.for_timeline[name] for name in own}

    @property
    def for_checkpoint(self) -> dict[str, Any]:
        """The settings that decide the contents of minibatches. A checkpoint requires the same settings."""
        window = self.window
        return {
            # States of CNTK's order have no name of an order.
            "randomization_window": window and [window.size, window.unit, *["keyed"] * (window.order == "keyed")],
            # In order, the seed changes nothing.
            "randomization_seed": self.randomization_seed if window else 0,
            "truncation_length": self.truncation_length,
            # NumPy's flags are accepted as well, but a state is JSON.
            "frame_mode": bool(self.frame_mode),
            "right_splice": self.right_splice,
            "crosses_sweeps": bool(self.crosses_sweeps),
            "local_timeline": bool(self.local_timeline),
        }

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> SourceOptions:
        """Take the options out of the arguments of a constructor, by name."""
        return cls(**{field.name: arguments[field.name] for field in dataclasses.fields(cls)})

    @property
    def arguments(self) -> dict[str, Any]:
        """The options as keywords of `MinibatchSource`."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


# Evaluated once, because evaluating annotations takes as long as opening a small file.
_KINDS = get_type_hints(SourceOptions)


def _check_whole(name: str, value: Any) -> None:
    if not is_whole(value):
        # A second deserializer that is not in a list is taken as the next argument, `max_samples`.
        several = "; pass several deserializers as a list: MinibatchSource([first, second])"
        hint = "" if value is None or isinstance(value, str | float | bool | np.bool_) else several
        raise TypeError(f"{name} is {value!r}; expected a whole number{hint}")
    if not 0 <= value <= INFINITELY_REPEAT:
        raise OutOfRangeError(f"{name} is {value}; expected 0 to {INFINITELY_REPEAT} (2^64 - 1)", key=name)


class Recipe:
    """The decisions of a plain source. Another kind of source overrides the methods in which it differs.

    A recipe serves a single source.
    """

    longest_utterance: int | None = None
    """Frames of the longest utterance, if a source skips unusable utterances, as CNTK's old reader did; else None."""
    first_sequences_of_parts: Mapping[str, int] = MappingProxyType({})
    """The first sequence of each part of a mixture of sequences."""

    # ---------------------------------------------------------------------------------------- when it is opened

    def open(self, deserializer: Deserializer, opening: Opening) -> Corpus:
        """Open a deserializer."""
        return deserializer.open(opening)

    def keeps_data_in_memory(self, options: SourceOptions) -> bool:
        """Decide, once all deserializers are open, whether chunks stay in memory."""
        return options.keep_data_in_memory

    def timeline(
        self,
        options: SourceOptions,
        corpora: Sequence[Corpus],
        arrangement: Arrangement,
        lengths_in_chunk: Callable[[int], npt.NDArray[np.uint32]],
        *,
        loads_parts: bool = False,
    ) -> AnyTimeline:
        """Make the timeline. `loads_parts` says whether parts of chunks can be loaded.

        `lengths_in_chunk` gives the lengths of a chunk's sequences, after it has loaded the chunk.
        """
        if corpora[0].index.joins == "alone":
            for name in ("leave_out", "repeat"):
                if getattr(options, name):
                    message = f"user-defined deserializers take no {name}; with timeline='global' they do"
                    raise ConfigError(message, key=name)
            return UserTimeline(corpora[0].table.num_chunks, lengths_in_chunk, **options.for_user_timeline)
        table = arrangement.lengths, arrangement.chunk_starts
        omissions = arrangement.omissions
        return Timeline(*table, **options.for_timeline, loads_parts=loads_parts, omissions=omissions)

    def omissions(self, options: SourceOptions, table: SequenceTable) -> Omissions | None:
        """Return the sequences that are left out of the table."""
        if not options.leave_out:
            return None
        return omissions_of(table, [(range(table.num_sequences), options.leave_out)], options.trace_level)

    def for_checkpoint(self, options: SourceOptions) -> dict[str, Any]:
        return options.for_checkpoint

    def arguments(self, options: SourceOptions) -> dict[str, Any]:
        """Return the keywords with which the constructor makes the same source again."""
        return options.arguments

    # ----------------------------------------------------------------------------------------- when it is read

    def request(self, size: Size, partition: Partition, epoch_number: int) -> Request:
        """Return the request to the timeline for a read in an epoch. The size has been checked."""
        return Request(size, size, partition)

    def check_truncation(self, options: SourceOptions, truncation_length: int | None) -> None:
        """Refuse a truncation length for the next epochs that does not fit the source; None: the length stays as it is.

        A length above 0 does not fit a source of whole sequences, nor 0 a source that truncates.
        """
        # The streams of a truncating source are dense, and cannot change after the source was opened.
        if truncation_length is not None and (not truncation_length) != (not options.truncation_length):
            reads, expected = "reads whole sequences", "None"
            if options.truncation_length:
                reads, expected = f"truncates to {options.truncation_length}", "None or at least 1"
            message = f"truncation_length is {truncation_length}, but the source {reads}; expected {expected}"
            raise ConfigError(message, key="truncation_length")

    def num_rows(self, epoch_number: int) -> int | None:
        """Decide how many rows the truncated minibatches of an epoch have; None: as before."""
        return None

    def epoch_state(self, epoch_number: int) -> dict[str, Any]:
        """Return additional fields of a state: small values for JSON."""
        return {}

    def epoch_number(self, state: Mapping[str, Any]) -> int:
        """Read the number of the epoch from a state, which holds what `epoch_state` returned."""
        return 0

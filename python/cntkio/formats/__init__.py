"""The formats: one module each with its description (a deserializer), its index, its loading and its errors.

What they have in common, and all that the timeline and the source know of them, is on this page::

    Deserializer  ── open() ──>  Corpus   table       which sequences there are, how long, in which chunks
    (frozen options)                      load(k)     chunk k's data, from any thread, in any order
                                          settle(x)   its errors against the budget, in order of need
"""

from __future__ import annotations

import dataclasses
import os
import threading
import weakref
from collections.abc import Mapping
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio._core import Chunk
from cntkio.errors import CntkIoError
from cntkio.index import SequenceTable
from cntkio.streams import StreamInformation


def num_threads() -> int:
    """How many threads parse: ``CNTKIO_NUM_THREADS``, or else the cores that this process may use."""
    asked = os.environ.get("CNTKIO_NUM_THREADS", "")
    return max(1, int(asked)) if asked.isdecimal() else len(os.sched_getaffinity(0))


class ForkLock:
    """A lock that a fork of the process finds open: another thread that held it is not in the fork.

    A thread that holds it may take it once more.

    Example:
        >>> lock = ForkLock()
        >>> with lock, lock:
        ...     pass
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _fork_locks.add(self)

    def open_again(self) -> None:
        """What is done in the fork."""
        if self._lock.acquire(blocking=False):  # free, or held by the thread that forks, which goes on
            self._lock.release()
        else:
            self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_fork_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _begin_in_fork() -> None:
    _core.begin_in_fork()
    for lock in list(_fork_locks):
        lock.open_again()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_fork)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Loaded:
    """A chunk's data and what its format has to say about them."""

    number: int
    chunk: Chunk
    findings: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Ahead:
    """What of a corpus will be needed as soon as it is open: its first chunks can be parsed while they are indexed.

    Chunks of a corpus that was opened with one are packed, and not written, so that they may be of any form.

    Attributes:
        num_bytes: How much parsed data will be needed at once; 0: nothing.
        num_chunks: How many chunks will be needed at once, if not the first ones are: of a corpus of more none is.
    """

    num_bytes: int
    num_chunks: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Utterances:
    """What a source must know of a corpus of utterances. (docs/formats/htk.md, "Joining")

    Attributes:
        can_lead: Whether it may be the first of several.
        is_broadcast: Whether the one frame of an utterance stands for all frames of its partner.
        unequal_lengths: What becomes of an utterance that is not as long as its partner in the first corpus.
        refuses_frame_mode: Why it cannot be cut into frames; None if it can.
        invalid: Which utterances are left out when they are met, each at the cost of one of the source's `max_errors`.
        broken: Which utterances cannot be delivered at all: `complaint` says why.
        is_literal: Whether errors come when an utterance is met, and empty minibatches are delivered, as in CNTK 2.7.
    """

    can_lead: bool = True
    is_broadcast: bool = False
    unequal_lengths: Literal["error", "drop", "keep"] = "error"
    refuses_frame_mode: str | None = None
    invalid: npt.NDArray[np.bool_] | None = None
    broken: npt.NDArray[np.bool_] | None = None
    is_literal: bool = False


class Corpus(Protocol):
    """An opened deserializer."""

    @property
    def name(self) -> str:
        """What messages call it, as a rule its file."""

    @property
    def streams(self) -> tuple[StreamInformation, ...]:
        """The streams, in the order of the chunks' columns."""

    @property
    def table(self) -> SequenceTable:
        """The sequences and chunks."""

    @property
    def error_counts(self) -> Mapping[str, int]:
        """Errors that were forgiven so far, by kind."""

    @property
    def warning_counts(self) -> Mapping[str, int]:
        """What was only warned of so far, by kind."""

    def load(self, number: int) -> Loaded:
        """Read and parse a chunk. Called from worker threads; changes nothing."""

    def settle(self, loaded: Loaded) -> None:
        """Take a chunk into use: count its errors. Called in order of need, once each time it was loaded.

        Raises:
            FormatError: The errors exceed what was allowed.
        """

    def fingerprint(self) -> str:
        """What tells this corpus from another, for checkpoints: a short text."""

    def tell_totals(self) -> None:
        """Log how many errors and warnings there were of each kind that was not told in full."""

    def close(self) -> None:
        """Let go of files; nothing can be loaded any more."""


@runtime_checkable
class UtteranceCorpus(Corpus, Protocol):
    """A corpus whose sequences are utterances: frame mode cuts them into frames, and labels go with their features."""

    @property
    def utterances(self) -> Utterances:
        """How they join, and which of them are not sound."""

    def complaint(self, number: int) -> CntkIoError:
        """What is wrong with an utterance that is invalid or broken, by its number in the table."""


@runtime_checkable
class ParsedAhead(Corpus, Protocol):
    """A corpus that can have parsed chunks while it was opened."""

    def take_parsed(self) -> dict[int, Loaded]:
        """These chunks, by number, to whoever asks first."""


@runtime_checkable
class ParsesAhead(Protocol):
    """A deserializer that can parse chunks while it is opened."""

    @property
    def can_parse_ahead(self) -> bool:
        """Whether it can."""

    def open(self, *, text_keys: bool = False, ahead: Ahead | None = None) -> Corpus:
        """Open it, with words as keys or numbers."""


@runtime_checkable
class TextKeyed(Protocol):
    """A deserializer whose ids can be words. It is asked for words if another one of the source has them."""

    @property
    def has_text_keys(self) -> bool:
        """Whether it cannot but have words."""

    def open(self, *, text_keys: bool = False) -> Corpus:
        """Open it, with words as keys or with its own choice."""


class Deserializer(Protocol):
    """The description of a corpus: where it lies and what is to be read from it.

    One that stands for several has a method ``parts()``, which gives them as a tuple.
    """

    def open(self) -> Corpus:
        """Open the files and make or load the index."""

"""The formats: one module each with its description (a deserializer), its index, its loading and its errors.

What they have in common, and all that the timeline and the source know of them, is on this page::

    Deserializer  ── open() ──>  Corpus   table       which sequences there are, how long, in which chunks
    (frozen options)                      load(k)     chunk k's data, from any thread, in any order
                                          settle(x)   its errors against the budget, in order of need
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from cntkio._core import Chunk
from cntkio.index import SequenceTable
from cntkio.streams import StreamInformation


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Loaded:
    """A chunk's data and what its format has to say about them."""

    number: int
    chunk: Chunk
    findings: Any = None


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
        """Forgiven errors and warnings so far, by kind."""

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


class Deserializer(Protocol):
    """The description of a corpus: where it lies and what is to be read from it."""

    def open(self) -> Corpus:
        """Open the files and make or load the index."""

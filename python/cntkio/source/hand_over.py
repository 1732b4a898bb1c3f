"""Values that the stages of a source hand to each other.

::

    Request ──> Selector ── HandOver: selected minibatches, and orders for the packer ──> Packer ── Prepared ──> caller
                   ^                                                                                            |
                   └──── Standing: where to go back to when prepared minibatches are discarded ─────────────────┘
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio.minibatch import Minibatch
from cntkio.timeline import Bookmark, ChunkRefs, Partition, Parts


class Standing(NamedTuple):
    """A point between two minibatches.

    Attributes:
        bookmark: Position of the timeline.
        num_invalid: Number of invalid utterances up to there.
    """

    bookmark: Bookmark
    num_invalid: int


class Epoch(NamedTuple):
    """The request of the last call of `begin_epoch`.

    Attributes:
        span: Positions at which the epoch begins and ends; None: no epoch has begun.
        number: Number of the epoch, from 0.
        truncation_length: Steps of a truncated minibatch; None: as in the source's options.
    """

    span: tuple[int, int] | None = None
    number: int = 0
    truncation_length: int | None = None


class Request(NamedTuple):
    """The arguments of a read.

    Attributes:
        asked: The size that the caller asked for.
        size: The size as the timeline counts it.
        partition: The share to deliver.
    """

    asked: int
    size: int
    partition: Partition


class Prepared(NamedTuple):
    """The outcome of one read: a minibatch, the end of the data, or an error.

    Attributes:
        minibatch: The minibatch; None at the end and for an error.
        bookmark: Position of the timeline after it.
        num_invalid: Number of invalid utterances up to there.
        error: The error.
    """

    minibatch: Minibatch | None
    bookmark: Bookmark
    num_invalid: int
    error: BaseException | None = None

    @property
    def standing(self) -> Standing:
        """The point after this read."""
        return Standing(self.bookmark, self.num_invalid)


class PackOrder(NamedTuple):
    """The data of one corpus for consecutive minibatches of a hand-over.

    Attributes:
        corpus_index: The corpus.
        first: Index of the first of the minibatches in the hand-over.
        minibatches: The minibatches, which packing fills.
        ends_of_sweep: Whether each reaches or crosses the end of a sweep.
        chunks: The chunks that hold the sequences.
        refs: References to the sequences in the chunks.
        samples: For each sequence its first sample to pack and the number of samples to pack; None: all samples.
        bounds: First sequence of each minibatch and, last, the number of sequences.
        parts: For the only minibatch, if it is truncated: which samples go to which cells.
    """

    corpus_index: int
    first: int
    minibatches: list[Minibatch]
    ends_of_sweep: list[bool]
    chunks: list[_core.Chunk]
    refs: ChunkRefs
    samples: tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]] | None
    bounds: list[int]
    parts: Parts | None = None


class HandOver(NamedTuple):
    """Minibatches that were selected together and are packed together.

    Attributes:
        prepared: Their outcomes, whose minibatches are still empty. Only the last one may be the end or an error.
        orders: Orders for the packer to fill them.
        before: Position of the source before them.
    """

    prepared: list[Prepared]
    orders: list[PackOrder]
    before: Standing

    @property
    def is_last(self) -> bool:
        """True at the end and for an error: nothing can be selected ahead after it."""
        return self.prepared[-1].minibatch is None

    @property
    def num_minibatches(self) -> int:
        """Number of minibatches."""
        return len(self.prepared) - self.is_last


class Packed(NamedTuple):
    """The outcome of packing a hand-over.

    Attributes:
        num_bytes: Bytes of the arrays; None if the minibatches are truncated.
        num_sound: Number of complete minibatches.
        error: The error of the next minibatch; None if all are complete.
    """

    num_bytes: int | None
    num_sound: int
    error: BaseException | None

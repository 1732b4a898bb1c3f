"""The results of a timeline, and the protocol through which the stages of a source use it.

A source asks for several reads at once (`Reads`). Their sequences come as one `Selection`, with the chunks that hold
them (`ChunkRefs`), and with a `Bookmark` after each read. A `Plan` names the chunks to keep in memory for the reads
that follow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio.timeline.budget import Size
from cntkio.timeline.partition import Partition

Bookmark: TypeAlias = Any
"""A point on a timeline. Other rooms may ask for its `position`; only the timeline that made it can read the rest, in
this process or in a fork of it."""


class Bookmarks(Protocol):
    """Bookmarks after several reads. Some sequences create each bookmark on request."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Bookmark: ...
    def __iter__(self) -> Iterator[Bookmark]: ...


# Without `eq`: the comparison of two arrays has no single truth value.
@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The cells of a truncated minibatch: an entry for each part of a sequence, by slot and then by step.

    Attributes:
        slot: Row of the minibatch, int64.
        first_sample: Index of the part's first sample in its sequence, int64. It is above 0 if an earlier minibatch had
            the preceding samples.
        num_samples: Number of samples, int64, at least 1.
        step: Step of the first sample, int64.
        continues: Whether the sequence continues in the next minibatch, at step 0 of the same slot, bool.
        lengths: Number of samples that the whole sequence counts for, uint32.
        num_slots: Rows of the minibatch.
        num_steps: Steps of the minibatch: the truncation length.
    """

    slot: npt.NDArray[np.int64]
    first_sample: npt.NDArray[np.int64]
    num_samples: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    continues: npt.NDArray[np.bool_]
    lengths: npt.NDArray[np.uint32]
    num_slots: int
    num_steps: int

    def where(self, mask: npt.NDArray[np.bool_]) -> Parts:
        """Return the parts for which `mask` is true; the others leave their cells empty."""
        columns: Any = (self.slot, self.first_sample, self.num_samples, self.step, self.continues, self.lengths)
        slot, first_sample, num_samples, step, continues, lengths = (column[mask] for column in columns)
        return Parts(slot, first_sample, num_samples, step, continues, lengths, self.num_slots, self.num_steps)


class ChunkRefs(NamedTuple):
    """The chunks that hold the sequences of a selection, and where in them the sequences are.

    Attributes:
        chunk_ids: The chunks, each once, in the order of their first sequence.
        firsts: For each of these chunks the index of its first sequence in the selection.
        chunk_indices: For each sequence the index of its chunk in `chunk_ids`, uint32.
        indices_in_chunk: For each sequence its index in its chunk, uint32.
    """

    chunk_ids: list[int]
    firsts: list[int]
    chunk_indices: npt.NDArray[np.uint32]
    indices_in_chunk: npt.NDArray[np.uint32]

    @classmethod
    def found(cls, refs: _core.ChunkRefs) -> ChunkRefs:
        """Return the references that the core found."""
        return cls(refs.chunk_ids, refs.firsts, refs.chunk_indices, refs.indices_in_chunk)

    @classmethod
    def of(cls, chunks: npt.NDArray[np.int64], indices_in_chunk: npt.NDArray[np.integer[Any]]) -> ChunkRefs:
        """Make the references from the chunk of each sequence, and its index in the chunk."""
        chunk_ids, firsts, sorted_indices = np.unique(chunks, return_index=True, return_inverse=True)
        # `unique` sorts by chunk, but chunks come in the order in which they are needed.
        order = np.argsort(firsts)
        # The inverse of `order` turns an index among the sorted chunks into an index in `chunk_ids`.
        chunk_indices = np.argsort(order)[sorted_indices].astype(np.uint32)
        return cls(chunk_ids[order].tolist(), firsts[order].tolist(), chunk_indices, indices_in_chunk.astype(np.uint32))

    def chunks_of_reads(self, bounds: Sequence[int]) -> list[list[int]]:
        """Return the chunks of each of several reads, in the order of their first sequence.

        Args:
            bounds: First sequence of each read and, last, the number of sequences.
        """
        reads = _core.chunks_of_reads(self.chunk_indices, list(bounds))
        return [[self.chunk_ids[index] for index in chunk_indices] for chunk_indices in reads]


class RowsOfReads(NamedTuple):
    """All sequences of the rows of several reads, for a selection of the sequences of a rank's slices.

    Attributes:
        sequences: The sequences in delivered order, int64.
        lengths: The samples of each, uint32.
        is_held: Whether the selection has it, bool.
        bounds: Index of the first sequence of each read and, last, the number of sequences.
        part: Index and number of the ranks that share the rows.
        row_length: Samples of a row.
    """

    sequences: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.uint32]
    is_held: npt.NDArray[np.bool_]
    bounds: list[int]
    part: tuple[int, int]
    row_length: int

    def between(self, first: int, last: int) -> RowsOfReads:
        """Return the rows of the reads from `first` to before `last`."""
        bounds = self.bounds[first : last + 1]
        own, begin = slice(bounds[0], bounds[-1]), bounds[0]
        columns = self.sequences[own], self.lengths[own], self.is_held[own]
        return RowsOfReads(*columns, [bound - begin for bound in bounds], self.part, self.row_length)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The sequences of one read, or of several.

    Attributes:
        sequences: The sequences in delivered order, int64: their indices in the table, or in their chunk if the
            timeline learns the sequences from the chunks (`keys`). An empty selection is not the end of the data.
        chunks: The chunk of each sequence, int64.
        end_of_sweep: Whether the read reached or crossed the end of a sweep.
        position: The position after the read.
        parts: In a truncated minibatch, the part of each sequence and its cells; else None.
        refs: The chunks and where the sequences are in them. None: look them up in the table.
        keys: Makes the keys of all sequences, if the timeline names them itself. None: the table has them.
        loads: If sequences are still to be dealt to partitions, the numbers that decide the deal, uint32: the samples
            of each sequence, or of packed rows the row of each in its minibatch; else None.
        rows: If the reads have only the sequences of slices of packed rows, all sequences of these rows; else None.
    """

    sequences: npt.NDArray[np.int64]
    chunks: npt.NDArray[np.int64]
    end_of_sweep: bool
    position: int
    parts: Parts | None = None
    refs: ChunkRefs | None = None
    keys: Callable[[], npt.NDArray[np.str_]] | None = None
    loads: npt.NDArray[np.uint32] | None = None
    rows: RowsOfReads | None = None

    def where(self, mask: npt.NDArray[np.bool_]) -> Selection:
        """Return the sequences of the table for which `mask` is true."""
        parts = None if self.parts is None else self.parts.where(mask)
        refs = None if self.refs is None else ChunkRefs.of(self.chunks[mask], self.refs.indices_in_chunk[mask])
        # `keys` come from timelines without a table, and `loads` are not needed after a deal.
        return Selection(self.sequences[mask], self.chunks[mask], self.end_of_sweep, self.position, parts, refs)


class Reads(NamedTuple):
    """The result of several reads, one after the other.

    Attributes:
        selection: All their sequences, with `end_of_sweep` and `position` of the last read.
        bounds: Index of the first sequence of each read in the selection and, last, the number of sequences.
        ends_of_sweep: For each read, whether it reached or crossed the end of a sweep.
        bookmarks: Position of the timeline after each read. The modes of reading have the reader's cursors here.
    """

    selection: Selection
    bounds: list[int]
    ends_of_sweep: list[bool]
    bookmarks: Bookmarks

    @classmethod
    def of(cls, selection: Selection, bookmark: Bookmark) -> Reads:
        """Return the result of a single read."""
        return cls(selection, [0, len(selection.sequences)], [selection.end_of_sweep], [bookmark])


MOST_OMISSIONS = 255
"""Largest number of positions from which on sequences are left out: the core counts them in 8 bits."""


class Omissions(NamedTuple):
    """Sequences that are left out from some positions on. They keep their places in the order.

    Attributes:
        since: For each sequence of the table 1 + the index of the position from which on it is left out; 0: never.
        positions: The positions, ascending.
        sums: For each position a row of a state: the position, the number of sequences, and a checksum of them.
    """

    since: npt.NDArray[np.uint8]
    positions: list[int]
    sums: list[list[Any]]

    def keep(self, sequences: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which sequences are delivered, each at its position."""
        begins = np.array([2**63 - 1, *self.positions])[self.since[sequences]]
        kept: npt.NDArray[np.bool_] = positions < begins
        return kept


class ChunkPart(NamedTuple):
    """The sequences of a chunk that a reader needs if it loads only its own share.

    Attributes:
        chunk_id: The chunk.
        sequences: Their indices in the chunk, which ascend, uint32.
        sweep: The sweep in which they are needed; None: ids of parts are the same in all sweeps.
    """

    chunk_id: int
    sequences: npt.NDArray[np.uint32]
    sweep: int | None = None


class PartsOfChunks(Protocol):
    """Parts of chunks, which take the place of chunks wherever a timeline names chunks."""

    def part(self, chunk_id: int) -> ChunkPart:
        """Return the part with an id."""


class Plan(NamedTuple):
    """The chunks from which the next sequences can come.

    Attributes:
        chunks: The chunks, in order of need.
        version: Changes whenever the chunks change, so that a source need not compare them.
        parts: If chunks are loaded in part, knows the parts. The ids of chunks, in the plan and in selections, are then
            ids of parts, and indices in chunks are indices in parts. None: chunks are loaded as a whole.
        is_last: True if no further sequence begins: the data end, except for sequences that slots continue.
    """

    chunks: list[int]
    version: int
    parts: PartsOfChunks | None = None
    is_last: bool = False


class SequenceOrder(Protocol):
    """The reads of a timeline: all that the stages of a source know of it.

    Threads may use a timeline in turn, but not at the same time.
    """

    def read_several(self, minibatch_size_in_samples: Size, partition: Partition, most: int) -> Reads | None:
        """Deliver the sequences of up to `most` reads.

        The plan does not change before the last of these reads.

        Args:
            minibatch_size_in_samples: Samples of all partitions together, at least 1; or a budget. It may change
                between reads, except inside a pool.
            partition: The share to deliver. It may change between reads.
            most: At least 1. A timeline may make fewer reads.

        Returns:
            At least one read, or None when the data have ended.

        Raises:
            ConfigError: The size or the limit is not possible, or changes inside a pool, or there are more partitions
                than slots.
        """

    def pass_over(self, minibatch_size_in_samples: Size, partition: Partition, most: int, until: int) -> int:
        """Pass over reads without delivering them, and without a step of Python for each.

        Args:
            minibatch_size_in_samples: As for `read_several`.
            partition: As for `read_several`.
            most: Largest number of reads.
            until: Position at which, or before which, all of them end.

        Returns:
            The number of reads; 0 if only `read_several` can make the next.
        """

    def needed_chunks(self, partition: Partition = ...) -> Plan:
        """Return the chunks from which the next sequences can come."""

    def chunks_ahead(self, partition: Partition = ...) -> Iterator[int]:
        """Yield the chunks needed after `needed_chunks`, in order of need, to the end of the next sweep or of the data.

        They are computed on demand. A chunk may come twice: once in each sweep.
        """

    def bookmark(self) -> Bookmark:
        """Return the position of the timeline, as a bookmark. This is cheap."""

    def go_back(self, bookmark: Bookmark, *, in_child: bool = False) -> None:
        """Go back to a bookmark of this timeline.

        With `in_child`, the process was forked since the last use, perhaps while another thread was in a read.
        """

    def hold(self, bookmark: Bookmark) -> None:
        """Keep the data that make going back to this bookmark cheap, over any number of reads in the same sweep."""

"""Modes of reading: whole sequences, and the turns of workers. Other modules of this room have further modes.

The timeline chooses a mode for a size and a partition. Each mode makes one call into the core for a read;
`WholeSequences` makes one call for several reads.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Protocol

from cntkio._core import Budget, Cursor, TimelineReader
from cntkio.timeline.partition import WHOLE, BalancedPartition, GlobalPartition, Partition
from cntkio.timeline.selection import ChunkRefs, Selection
from cntkio.timeline.window import LARGEST_WORD


class Delivery(NamedTuple):
    """The result of one or more reads: the fields of `Reads`, with cursors in place of bookmarks."""

    selection: Selection
    bounds: list[int]
    ends_of_sweep: list[bool]
    cursors: list[Cursor]

    @classmethod
    def of(cls, selection: Selection, cursor: Cursor) -> Delivery:
        """Wrap the result of a single read."""
        return cls(selection, [0, len(selection.sequences)], [selection.end_of_sweep], [cursor])


class ReadMode(Protocol):
    """A way of reading."""

    def read(self, most: int) -> Delivery | None:
        """Deliver at least one and at most `most` reads; None: the data have ended."""

    def pass_over(self, most: int, until: int) -> int:
        """Pass over reads without delivering them; 0: only `read` can do that, or the data have ended.

        Returns:
            The number of reads, at most `most`. All of them end at position `until` or before.
        """
        return 0


class InTurn(ReadMode):
    """Deliver the reads of this worker, which are every n-th: the workers of a partition take them in turn.

    Args:
        mode: Makes the reads of all workers.
        partition: The partition, and the worker in it.
        rounds_to_pass: As below, where the turns of the worker continue; None: they begin.

    Attributes:
        rounds_to_pass: Reads of other workers before the next of this worker.
    """

    def __init__(
        self, mode: ReadMode, partition: BalancedPartition | GlobalPartition, rounds_to_pass: int | None = None
    ) -> None:
        self._mode, self._num_workers = mode, partition.num_workers
        self.rounds_to_pass = partition.worker if rounds_to_pass is None else rounds_to_pass

    def read(self, most: int) -> Delivery | None:
        if self._num_workers == 1:
            return self._mode.read(most)
        while (delivery := self._mode.read(1)) is not None:
            if not self.rounds_to_pass:
                self.rounds_to_pass = self._num_workers - 1
                break
            self.rounds_to_pass -= 1
        return delivery

    def pass_over(self, most: int, until: int) -> int:
        return self._mode.pass_over(most, until) if self._num_workers == 1 else 0


@dataclasses.dataclass(frozen=True, slots=True)
class WholeSequences:
    """Deliver whole sequences, in as many reads as one call makes.

    Attributes:
        reader: The core's reader, at any position.
        share: Samples that a read delivers at most, or sequences if those are counted.
        partition: The share of the data to deliver.
        passed: Samples of all partitions that a read passes at most.
        crosses_sweeps: Whether a read continues in the next sweep.
        counts_sequences: Whether `share` counts sequences.
        is_global: Whether `share` counts the sequences of all partitions, in randomized order only.
        is_dealt: Whether the sequences are dealt afterwards: selections have lengths in place of references to chunks.
        budget: Further limits of a read.
    """

    reader: TimelineReader
    share: int
    partition: Partition = WHOLE
    passed: int = LARGEST_WORD
    crosses_sweeps: bool = False
    counts_sequences: bool = False
    is_global: bool = False
    is_dealt: bool = False
    budget: Budget | None = None

    def read(self, most: int) -> Delivery | None:
        reads = self.reader.read_several(self, most)
        if reads is None:
            return None
        ends_of_sweep, cursors, found = reads.ends_of_sweep, reads.cursors, reads.refs
        refs = None if found is None else ChunkRefs.found(found)
        end, position = ends_of_sweep[-1], cursors[-1].position
        selection = Selection(reads.sequences, reads.chunks, end, position, None, refs, lengths=reads.lengths)
        return Delivery(selection, reads.bounds, ends_of_sweep, cursors)

    def pass_over(self, most: int, until: int) -> int:
        return self.reader.pass_reads(self, most, until)

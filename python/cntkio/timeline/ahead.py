"""Global partitions dealt ahead of need, so that a rank loads only its own sequences of a chunk.

::

    reads of all ranks   |--|--|--|--|--|--|--|--|--|--|       one reader makes them, and deals them
                            ^ delivered    ^ dealt
    ranks of chunks       complete    | the window there       no later read has a sequence of a complete chunk

A *part* is a partition's share of a chunk in one sweep. It can be loaded once its chunk is complete, that is, once the
dealt reads reach so far that the window has passed the chunk. Until they are delivered, dealt reads take about 20 bytes
for each sequence of this partition.

Invariant: which sequences a read delivers does not depend on how far reads were dealt.
"""

from __future__ import annotations

import dataclasses
from collections import deque

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio._core import TimelineReader
from cntkio.timeline.modes import Cursor, Delivery, ReadMode
from cntkio.timeline.partition import GlobalPartition
from cntkio.timeline.selection import ChunkPart, ChunkRefs, Selection

_READS_AT_ONCE = 256
_END = (2**64, 0)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """A partition's share of some reads that were dealt at once.

    Attributes:
        before: Position of the reader before them.
        sequences: The sequences of all reads.
        parts: The part of each sequence.
        indices: The index of each sequence in its chunk.
        bounds: First sequence of each read and, last, the number of sequences.
        ends_of_sweep: For each read whether it reached or crossed the end of a sweep.
        cursors: Position of the reader after each read.
    """

    before: Cursor
    sequences: npt.NDArray[np.int64]
    parts: npt.NDArray[np.int64]
    indices: npt.NDArray[np.uint32]
    bounds: list[int]
    ends_of_sweep: list[bool]
    cursors: list[Cursor]


class DealtAhead:
    """Deliver a partition's share of global minibatches, and know its share of a chunk before the chunk is needed.

    Args:
        mode: Reads global minibatches.
        reader: The core's reader, over the whole data. Nothing else moves it while this object is in use.
        partition: The partition, and the worker in it.

    Attributes:
        rounds_to_pass: Global minibatches of other workers between the last delivered one and the next of this worker.
    """

    def __init__(self, mode: ReadMode, reader: TimelineReader, partition: GlobalPartition) -> None:
        self._mode, self._reader, self._partition = mode, reader, partition
        self._num_chunks = len(reader.chunk_starts) - 1
        self.rounds_to_pass = partition.worker
        self._turns: int | None = None  # as `rounds_to_pass`, but after the last dealt minibatch
        self._shares = _core.Shares(reader.num_samples, self._num_chunks)
        self._groups: deque[_Group] = deque()
        self._next = (0, 0)  # the group and the read to deliver
        self._cursor: Cursor | None = None
        self._complete = (0, 0)  # all chunks before this sweep and rank are complete
        self._forgotten = (0, 0)
        self._held: tuple[int, int] | None = None
        self._is_sound = True

    # ---------------------------------------------------------------------------------------------- delivering

    @property
    def cursor(self) -> Cursor:
        """The state of the reader after the last delivered read."""
        return self._reader.cursor if self._cursor is None else self._cursor

    def read(self, most: int) -> Delivery | None:
        number, first = self._next
        if number == len(self._groups) and not self._deal():
            self._cursor, self.rounds_to_pass = self._reader.cursor, self._turns or 0
            return None
        group = self._groups[number]
        last = min(first + most, len(group.cursors))
        begin, end = group.bounds[first], group.bounds[last]
        cursor = group.cursors[last - 1]
        self._complete_window(cursor)
        parts = group.parts[begin:end]
        refs = ChunkRefs(*self._shares.refs(parts, group.indices[begin:end]))
        ends_of_sweep = group.ends_of_sweep[first:last]
        selection = Selection(group.sequences[begin:end], parts, ends_of_sweep[-1], cursor[0], None, refs)
        bounds = [bound - begin for bound in group.bounds[first : last + 1]]
        self._next = (number + 1, 0) if last == len(group.cursors) else (number, last)
        self._cursor, self.rounds_to_pass = cursor, self._partition.num_workers - 1
        return Delivery(selection, bounds, ends_of_sweep, group.cursors[first:last])

    def go_back(self, cursor: Cursor, rounds_to_pass: int) -> bool:
        """Go back to where a delivered read began or ended; return False if that is no longer known."""
        for number, group in enumerate(self._groups if self._is_sound else ()):
            if cursor == group.before:
                self._next = (number, 0)
            elif cursor in group.cursors:
                self._next = (number, group.cursors.index(cursor) + 1)
                if self._next[1] == len(group.cursors):
                    self._next = (number + 1, 0)
            else:
                continue
            self._cursor, self.rounds_to_pass = cursor, rounds_to_pass
            return True
        return False

    def hold(self, cursor: Cursor) -> None:
        """Forget what is no longer needed to go back to this cursor or to a later cursor."""
        while self._next[0] and self._groups[0].cursors[-1][0] < cursor[0]:
            self._groups.popleft()
            self._next = (self._next[0] - 1, self._next[1])
        where = self._reader.rank_at(cursor)
        if where is None or where == self._held:
            return
        self._held = where
        sweep, rank = self._window_begin(where)
        first = self._forgotten[1] if self._forgotten[0] == sweep else 0
        if rank > first or sweep > self._forgotten[0]:
            chunks, _ = self._reader.chunks_from(sweep, first, rank - first, 0, 1)
            self._shares.forget(sweep, self._parts(sweep, chunks))
            self._forgotten = (sweep, rank)

    # ------------------------------------------------------------------------------------------- dealing ahead

    def part(self, chunk_id: int) -> ChunkPart:
        """Return the part with an id that `filled` returned."""
        return ChunkPart(chunk_id % self._num_chunks, self._shares.part(chunk_id))

    def num_complete(self, sweep: int, rank: int, most: int) -> int:
        """Return for how many of the next `most` ranks all reads were dealt."""
        if self._complete[0] != sweep:
            return most if self._complete[0] > sweep else 0
        return min(max(self._complete[1] - rank, 0), most)

    def filled(self, sweep: int, next_rank: int, chunks: list[int]) -> list[int]:
        """Return the ids of the parts that chunks have in a sweep, without empty parts.

        Args:
            sweep: The sweep.
            next_rank: The rank in the sweep after the ranks of the chunks.
            chunks: The chunks.
        """
        while self._complete < (sweep, next_rank) and self._deal():
            pass
        return self._shares.filled(self._parts(sweep, chunks))

    def _parts(self, sweep: int, chunks: list[int]) -> list[int]:
        return [sweep * self._num_chunks + chunk for chunk in chunks]

    def _complete_window(self, cursor: Cursor) -> None:
        """Deal until no later read has a sequence of the chunks that were in the window before a cursor."""
        where = self._reader.rank_at(cursor) or _END
        if where is not _END:
            where = (where[0], self._reader.chunks_at(*where, 0, 1)[1])
        while self._complete < where and self._deal():
            pass

    def _window_begin(self, where: tuple[int, int]) -> tuple[int, int]:
        if where[1] == 0:
            return where
        chunks, next_rank = self._reader.chunks_at(*where, 0, 1)
        return where[0], next_rank - len(chunks)

    def _deal(self) -> bool:
        """Deal further reads; return False if there are none."""
        if self._complete == _END:
            return False
        self._is_sound = False  # in case an exception comes before the end
        before, num_workers = self._reader.cursor, self._partition.num_workers
        self._cursor = self._cursor or before  # a plan may deal before the first read
        turns = self.rounds_to_pass if self._turns is None else self._turns
        delivery = self._mode.read(1 if num_workers > 1 else _READS_AT_ONCE)
        while delivery is not None and turns:
            delivery, turns = self._mode.read(1), turns - 1
        self._turns = turns if delivery is None else num_workers - 1
        if delivery is not None:
            self._groups.append(self._dealt(before, delivery))
        where = None if delivery is None else self._reader.rank
        self._complete = _END if where is None else self._window_begin(where)
        self._is_sound = True
        return delivery is not None

    def _dealt(self, before: Cursor, delivery: Delivery) -> _Group:
        selection, bounds, ends_of_sweep, cursors = delivery
        assert selection.lengths is not None
        kept, parts, indices, kept_bounds = self._shares.deal(
            self._reader.chunk_starts, selection.sequences, selection.chunks, selection.lengths, bounds,
            [cursor[0] for cursor in cursors],
            self._partition.count, self._partition.index, self._partition.deal == "area",
        )  # fmt: skip
        return _Group(before, kept, parts, indices, kept_bounds, ends_of_sweep, cursors)

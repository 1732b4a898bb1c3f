"""The windows of the user timeline: filled with whole chunks, and shuffled segment by segment.

::

    chunks in the sweep's order   4 1 0 3 | 2 0 1 4 ...
    windows                      (. . .)(.   . .)            filled with whole chunks, one after the other
    segments                     (. . .)(.) (. .)            the part of a window in one sweep; each is shuffled

`Windows` keeps no position. It computes the segment at a cursor, and the cursor after entries of a segment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio.timeline.options import LARGEST_WORD
from cntkio.timeline.partition import Partition
from cntkio.timeline.window import Window


class Start(NamedTuple):
    """The beginning of a window or a segment.

    Attributes:
        rank: Rank of its first chunk in the order of the sweep.
        sweep: The sweep.
        running_count: Number of sequences before it in the sweep. In order, it chooses the partition of a sequence.
    """

    rank: int
    sweep: int
    running_count: int = 0


class Segment(NamedTuple):
    """The part of a window in one sweep.

    Its entries are its sequences and, if the sweep ends with it, the mark of the sweep's end.

    Attributes:
        chunks: The chunks that were fetched for it.
        chunk_of: The chunk of each sequence.
        indices: Index of each sequence in its chunk.
        lengths: Samples of each sequence.
        ends: Samples before each sequence and, last, all.
        ends_sweep: Whether the mark of the sweep's end is the last entry.
        after: Beginning of the next segment.
        left: Room that is left in the window; 0 or less: the window ends with this segment.
    """

    chunks: list[int]
    chunk_of: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.uint32]
    ends: npt.NDArray[np.int64]
    ends_sweep: bool
    after: Start
    left: int

    @property
    def num_entries(self) -> int:
        """Number of sequences and marks."""
        return len(self.indices) + self.ends_sweep


class Cursor(NamedTuple):
    """A position in the windows.

    Attributes:
        sweeps: Marks of a sweep's end that were passed.
        samples: Samples of this partition that were delivered.
        origin: Beginning of the window.
        passed: Entries of the window before the segment.
        start: Beginning of the segment.
        left: Room that is left in the window from there on.
        offset: Entries of the segment that were passed. After a restore it may go past the segment's end, to entries
            that follow in the window.
        segment: The segment; None: not computed yet.
    """

    sweeps: int
    samples: int
    origin: Start
    passed: int
    start: Start
    left: int
    offset: int
    segment: Segment | None


class Windows:
    """The windows of a user timeline.

    Args:
        num_chunks: Number of chunks.
        lengths_of: Returns the lengths of a chunk's sequences, uint32, usually by fetching the chunk.
        window: Amount of data that is shuffled together; None: in order.
        seed: Sweep number k is shuffled with ``seed + k``, modulo 2**64.
    """

    def __init__(
        self,
        num_chunks: int,
        lengths_of: Callable[[int], npt.NDArray[np.uint32]],
        window: Window | None,
        seed: int,
    ) -> None:
        self._num_chunks = num_chunks
        self._lengths_of = lengths_of
        self._window = window
        self._seed = seed
        self._orders: dict[int, npt.NDArray[np.uint32]] = {}

    def window_at(self, origin: Start, offset: int = 0, sweeps: int = 0, samples: int = 0) -> Cursor:
        """Return the cursor after `offset` entries of the window that begins at `origin`."""
        left = 1 if self._window is None else self._window.size
        return Cursor(sweeps, samples, origin, 0, origin, left, offset, None)

    def order(self, sweep: int) -> npt.NDArray[np.uint32]:
        """Return the chunks of a sweep in shuffled order. The orders of neighboring sweeps are kept."""
        order = self._orders.get(sweep)
        if order is None:
            order = _core.chunk_order(self._num_chunks, self._seed_of(sweep))
            self._orders = {other: kept for other, kept in self._orders.items() if abs(other - sweep) <= 1}
            self._orders[sweep] = order
        return order

    def _seed_of(self, sweep: int) -> int:
        return (self._seed + sweep) & LARGEST_WORD

    def _segment(self, start: Start, left: int, partition: Partition) -> Segment:
        if self._window is None:
            return self._segment_in_order(start, partition)
        order = self.order(start.sweep)
        chunks: list[int] = []
        lengths: list[npt.NDArray[np.uint32]] = []
        rank = start.rank + (partition.index - start.rank) % partition.count
        next_rank = self._num_chunks
        while left > 0 and rank < self._num_chunks:
            chunk_id = int(order[rank])
            chunk_lengths = self._lengths_of(chunk_id)
            chunks.append(chunk_id)
            lengths.append(chunk_lengths)
            left -= 1 if self._window.unit == "chunks" else int(chunk_lengths.sum(dtype=np.int64))
            if left <= 0:
                next_rank = rank + 1  # the window ends before chunks of other partitions
            rank += partition.count
        sizes = [len(chunk_lengths) for chunk_lengths in lengths]
        chunk_of = np.repeat(np.array(chunks, np.int64), sizes)
        indices = np.concatenate([np.zeros(0, np.int64), *(np.arange(size) for size in sizes)])
        # The seeds of the segments of a sweep differ by the rank at which each begins.
        shuffled = _core.shuffled(len(indices), self._seed_of(start.sweep + start.rank))
        ends_sweep = next_rank == self._num_chunks
        after = Start(0, start.sweep + 1) if ends_sweep else Start(next_rank, start.sweep)
        all_lengths = np.concatenate([np.zeros(0, np.uint32), *lengths])[shuffled]
        ends = _ends(all_lengths)
        return Segment(chunks, chunk_of[shuffled], indices[shuffled], all_lengths, ends, ends_sweep, after, left)

    def _segment_in_order(self, start: Start, partition: Partition) -> Segment:
        """Return the segment of one chunk, which is a window without randomization."""
        lengths = self._lengths_of(start.rank)
        first = (partition.index - start.running_count) % partition.count
        indices = np.arange(first, len(lengths), partition.count, dtype=np.int64)
        ends_sweep = start.rank + 1 == self._num_chunks
        if ends_sweep:
            after = Start(0, start.sweep + 1)
        else:
            running_count = start.running_count + len(lengths) if partition.count > 1 else 0
            after = Start(start.rank + 1, start.sweep, running_count)
        chunk_of = np.full(len(indices), start.rank, np.int64)
        lengths = lengths[indices]
        return Segment([start.rank], chunk_of, indices, lengths, _ends(lengths), ends_sweep, after, 0)

    def _after(self, cursor: Cursor, segment: Segment) -> Cursor:
        """Return the cursor after a segment: in the same window, or at the start of the next."""
        if segment.left <= 0:
            return self.window_at(segment.after, 0, cursor.sweeps, cursor.samples)
        passed = cursor.passed + segment.num_entries
        offset = cursor.offset - segment.num_entries
        return cursor._replace(passed=passed, start=segment.after, left=segment.left, offset=offset, segment=None)

    def in_segment(self, cursor: Cursor, partition: Partition) -> tuple[Cursor, Segment]:
        """Compute the segment of the next entry; return the same position as a cursor in that segment."""
        while True:
            segment = cursor.segment or self._segment(cursor.start, cursor.left, partition)
            if cursor.offset < segment.num_entries:
                return cursor._replace(segment=segment), segment
            cursor = self._after(cursor, segment)

    def past(self, cursor: Cursor, segment: Segment, num_entries: int) -> Cursor:
        """Return the cursor after further entries of its segment."""
        cursor = cursor._replace(offset=cursor.offset + num_entries, segment=segment)
        return self._after(cursor, segment) if cursor.offset == segment.num_entries else cursor


def _ends(lengths: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """Return the samples before each sequence and, last, all."""
    return np.append(0, np.cumsum(lengths, dtype=np.int64))

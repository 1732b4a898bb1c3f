"""`Needs`: the chunks from which the next sequences of a timeline over tables can come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cntkio._core import TimelineReader
from cntkio.timeline.ahead import DealtAhead
from cntkio.timeline.partition import Partition
from cntkio.timeline.selection import Plan

_NUM_CHUNKS_AT_ONCE = 64


class Needs:
    """The chunks of the window, and those after it.

    Args:
        reader: The core's reader.
        num_chunks: Number of chunks.
    """

    def __init__(self, reader: TimelineReader, num_chunks: int) -> None:
        self._reader = reader
        self._num_chunks = num_chunks
        # The window's chunks at a position in the order, and the rank after them; kept until the position changes.
        self._window_key: object = None
        self._window_chunks: list[int] = []
        self._next_rank = 0
        self._plan_key: object = None
        self._plan = Plan([], 0)

    def plan(
        self, where: tuple[int, int] | None, partition: Partition, dealt: DealtAhead | None, of_slots: Sequence[int]
    ) -> Plan:
        """Return the chunks that are needed now.

        Args:
            where: Sweep and rank of the next sequence; None: the data have ended.
            partition: The partition whose chunks they are.
            dealt: Knows the parts to load of the chunks; None: they are loaded as a whole.
            of_slots: Chunks whose sequences slots continue.
        """
        needed = self._window(where, partition, dealt)
        key = (self._window_key, tuple(of_slots))
        if key != self._plan_key:
            self._plan_key = key
            chunks = list(dict.fromkeys([*of_slots, *needed])) if of_slots else needed
            self._plan = Plan(chunks, self._plan.version + 1, dealt)
        return self._plan

    def _window(self, where: tuple[int, int] | None, partition: Partition, dealt: DealtAhead | None) -> list[int]:
        key = (where, partition, dealt)
        if key != self._window_key:
            chunks, next_rank = (
                ([], 0) if where is None else self._reader.chunks_at(*where, partition.index, partition.count)
            )
            if where is not None and dealt is not None:
                chunks = dealt.filled(where[0], next_rank, chunks)
            self._window_key, self._window_chunks, self._next_rank = key, chunks, next_rank
        return self._window_chunks

    def ahead(
        self, where: tuple[int, int] | None, partition: Partition, dealt: DealtAhead | None, end: int
    ) -> Iterator[int]:
        """Yield the chunks that are needed afterwards, up to the end of the next sweep or of the data.

        Args:
            where: As for `plan`.
            partition: As for `plan`.
            dealt: As for `plan`.
            end: Position at which the data end.
        """
        self._window(where, partition, dealt)
        if where is None:
            return
        current, rank = where[0], self._next_rank
        for sweep in (current, current + 1):
            if sweep * self._reader.num_samples >= end:
                return
            while rank < self._num_chunks:
                chunks, next_rank = self._reader.chunks_from(
                    sweep, rank, _NUM_CHUNKS_AT_ONCE, partition.index, partition.count
                )
                if dealt is None:
                    yield from chunks
                else:
                    num_complete = dealt.num_complete(sweep, rank, len(chunks))
                    yield from dealt.filled(sweep, rank + num_complete, chunks[:num_complete])
                    for number in range(num_complete, len(chunks)):  # deal no further than the caller iterates
                        yield from dealt.filled(sweep, rank + number + 1, chunks[number : number + 1])
                rank = next_rank
            rank = 0

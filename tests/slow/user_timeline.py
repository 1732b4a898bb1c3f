"""The timeline of user-defined deserializers, slow and obvious: a whole window at a time, computed afresh.

The rules are in docs/timeline.md, "User-defined deserializers in CNTK's order". Tests compare the fast
timeline with this timeline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from support.twister import draws

from slow.timeline import order_of_chunks

MARK = None
"""The entry of a window where a sweep ends. The other entries are pairs of a chunk and an index in it."""


def shuffled(items: list[Any], seed: int) -> list[Any]:
    """Return items after a Fisher-Yates shuffle from the front."""
    items = list(items)
    for i, draw in zip(range(len(items)), draws(seed), strict=False):
        j = i + draw % (len(items) - i)
        items[i], items[j] = items[j], items[i]
    return items


@dataclass
class SlowUserTimeline:
    lengths: list[list[int]]
    window: tuple[int, str] | None
    seed: int
    max_sweeps: float = math.inf
    max_samples: float = math.inf
    sweeps: int = 0
    samples: int = 0
    index: int = 0
    # Beginning of the current window.
    rank: int = 0
    sweep: int = 0
    count: int = 0

    def order(self, sweep: int) -> list[int]:
        return order_of_chunks(len(self.lengths), self.seed + sweep)

    def filled(self, index: int, count: int) -> tuple[list[Any], tuple[int, int, int]]:
        """Return the entries of the current window, and the beginning of the next window."""
        num_chunks = len(self.lengths)
        if self.window is None:
            lengths = self.lengths[self.rank]
            entries = [(self.rank, j) for j in range(len(lengths)) if (self.count + j) % count == index]
            is_last = self.rank == num_chunks - 1
            running_count = 0 if is_last or count == 1 else self.count + len(lengths)
            return entries + [MARK] * is_last, ((self.rank + 1) % num_chunks, self.sweep, running_count)
        (left, unit), rank, sweep, begin = self.window, self.rank, self.sweep, self.rank
        entries, segment = [], []
        while left > 0:
            if rank % count == index:
                chunk = self.order(sweep)[rank]
                segment += [(chunk, j) for j in range(len(self.lengths[chunk]))]
                left -= 1 if unit == "chunks" else sum(self.lengths[chunk])
            if rank == num_chunks - 1:
                entries += [*shuffled(segment, self.seed + sweep + begin), MARK]
                segment = []
                sweep, begin = sweep + 1, 0
            rank = (rank + 1) % num_chunks
        return entries + shuffled(segment, self.seed + sweep + begin), (rank, sweep, 0)

    def at_end(self, index: int, count: int) -> bool:
        if self.max_sweeps < math.inf:
            return self.sweeps >= self.max_sweeps
        share = self.max_samples
        if share < math.inf:
            share = self.max_samples // count + (index < self.max_samples % count)
        return self.samples >= share

    def read(self, size: int, index: int = 0, count: int = 1) -> tuple[list[Any], bool] | None:
        """Return the sequences of the next read, and whether it passed the end of a sweep; None at the end."""
        share = max(1, size // count + (index < size % count))
        delivered: list[Any] = []
        num_samples, end_of_sweep = 0, False
        entries, following = self.filled(index, count)
        while num_samples < share and not self.at_end(index, count):
            if self.index < len(entries):  # otherwise: no entry for this partition, or another partition
                entry = entries[self.index]
                if entry is MARK:
                    self.sweeps += 1
                    end_of_sweep = True
                else:
                    length = self.lengths[entry[0]][entry[1]]
                    if delivered and num_samples + length > share:
                        break
                    delivered.append(entry)
                    num_samples += length
                    self.samples += length
            self.index += 1
            if self.index >= len(entries):
                self.index = 0
                self.rank, self.sweep, self.count = following
                entries, following = self.filled(index, count)
        return (delivered, end_of_sweep) if delivered else None

    def state(self) -> dict[str, int]:
        """Return CNTK's checkpoint."""
        common = {
            "baseSweepCount": self.sweeps,
            "baseSampleCount": self.samples,
            "baseCurrentSequencePositionInWindow": self.index,
        }
        if self.window is None:
            return {**common, "currentChunkPosition": self.rank, "currentSequencePosition": self.count}
        return {**common, "chunkPosition": self.rank, "sweepIndex": self.sweep}

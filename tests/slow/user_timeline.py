"""The order of user-defined deserializers, slow and obvious.

The rules are those of docs/timeline.md, in its section on user-defined deserializers.
"""

import dataclasses
import math
from typing import Any

from cntkio.timeline import Window

from slow.timeline import draws, order_of_chunks

MARK = None


def shuffled(entries: list[Any], seed: int) -> list[Any]:
    """Return the entries in the order that CNTK's shuffle gives them."""
    order = list(entries)
    for i, draw in zip(range(len(order)), draws(seed), strict=False):
        j = i + draw % (len(order) - i)
        order[i], order[j] = order[j], order[i]
    return order


@dataclasses.dataclass
class Twin:
    """The order of user-defined deserializers as its page describes it, a whole window at a time.

    An entry is (chunk, index of the sequence in it), or the mark at the end of a sweep.
    """

    lengths: list[list[int]]
    window: Window | None
    seed: int
    max_sweeps: float = math.inf
    max_samples: float = math.inf
    sweeps = samples = index = 0
    place = sweep = count = 0  # where the window in use begins

    def window_at(self, r: int, P: int) -> tuple[list[Any], tuple[int, int, int]]:
        """Return the window that begins here, and where the next window begins."""
        n = len(self.lengths)
        if self.window is None:
            inside = [(self.place, j) for j in range(len(self.lengths[self.place])) if (self.count + j) % P == r]
            last = self.place == n - 1
            count = 0 if last or P == 1 else self.count + len(self.lengths[self.place])
            return inside + [MARK] * last, ((self.place + 1) % n, self.sweep, count)
        entries: list[Any] = []
        left, place, v, first, w = self.window.size, self.place, self.sweep, 0, self.place

        while left > 0:
            if place % P == r:
                chunk = order_of_chunks(n, self.seed + v)[place]
                entries += [(chunk, j) for j in range(len(self.lengths[chunk]))]
                left -= 1 if self.window.unit == "chunks" else sum(self.lengths[chunk])
            if place == n - 1:
                entries[first:] = shuffled(entries[first:], self.seed + v + w)
                v, w = v + 1, 0
                entries.append(MARK)
                first = len(entries)
            place = (place + 1) % n
        entries[first:] = shuffled(entries[first:], self.seed + v + w)
        return entries, (place, v, 0)

    def at_end(self, r: int, P: int) -> bool:
        if self.max_sweeps < math.inf:
            return self.sweeps >= self.max_sweeps
        share = self.max_samples if self.max_samples == math.inf else self.max_samples // P + (r < self.max_samples % P)
        return self.samples >= share

    def read(self, size: int, r: int = 0, P: int = 1) -> tuple[list[Any], bool] | None:
        share = max(1, size // P + (r < size % P))
        out: list[Any] = []
        taken, flag = 0, False
        entries, following = self.window_at(r, P)

        def step() -> None:
            nonlocal entries, following
            self.index += 1
            if self.index >= len(entries):
                self.index = 0
                self.place, self.sweep, self.count = following
                entries, following = self.window_at(r, P)

        while taken < share and not self.at_end(r, P):
            if self.index >= len(entries):  # nothing for this partition, or another partition read before
                step()
                continue
            entry = entries[self.index]
            if entry is MARK:
                self.sweeps += 1
                flag = True
                step()
                continue
            length = self.lengths[entry[0]][entry[1]]
            if out and taken + length > share:
                break
            out.append(entry)
            taken += length
            self.samples += length
            step()
        return (out, flag) if out else None

    def state(self) -> dict[str, int]:
        common = {
            "baseSweepCount": self.sweeps,
            "baseSampleCount": self.samples,
            "baseCurrentSequencePositionInWindow": self.index,
        }
        if self.window is None:
            return {**common, "currentChunkPosition": self.place, "currentSequencePosition": self.count}
        return {**common, "chunkPosition": self.place, "sweepIndex": self.sweep}

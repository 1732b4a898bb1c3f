"""The HTKMLFReader in frame mode, slow and obvious: lists and loops, with every result computed afresh.

Utterances are lists of frames, a frame is a list of numbers. docs/formats/htk.md, "The HTKMLFReader", states the
rules. Tests compare the deliveries of the fast reader with this reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from support.twister import draws

from slow.timeline import sweep_order

Frame = list[float]
EVERYTHING = 2**62 - 1


def rolling_order(num_frames: int, window: int, seed: int) -> list[int]:
    order, half, numbers = list(range(num_frames)), window // 2, draws(seed)
    if half == 0:
        return order
    for t in range(num_frames):
        for _ in range(5):
            low = max(t - half, 0)
            j = low + next(numbers) % (min(t + half, num_frames) - low)
            may_go = j <= order[t] + half and order[t] < j + half
            may_come = t <= order[j] + half and order[j] < t + half
            if may_go and may_come:
                order[t], order[j] = order[j], order[t]
                break
    return order


@dataclass
class SlowReader:
    """The slow reader. A chunk is full when it has more than `chunk_frames` frames."""

    utterances: list[list[Frame]]
    read_method: str
    randomize: int | str
    seed: int = 0
    context: tuple[int, int] = (0, 0)
    only_full: bool = False
    chunk_frames: int = 90_000

    def chunks(self) -> list[list[int]]:
        """Return the lengths of each chunk's sequences: 1 for each frame."""
        found: list[list[int]] = [[]]
        for utterance in self.utterances:
            if len(found[-1]) > self.chunk_frames:
                found.append([])
            found[-1] += [1] * len(utterance)
        return found

    def order(self, sweep: int) -> list[int]:
        num_frames = sum(map(len, self.utterances))
        window = {"auto": EVERYTHING, "none": 0}.get(str(self.randomize), self.randomize)
        assert isinstance(window, int)
        if self.read_method == "rollingWindow":
            return rolling_order(num_frames, window, self.seed + sweep)
        if self.read_method == "none" or window == 0:
            return list(range(num_frames))
        return [frame for _, frame in sweep_order(self.chunks(), window, "samples", self.seed + sweep)]

    def windows(self) -> list[Frame]:
        """Return each frame with its neighbours in its utterance; the first and the last frame repeat."""
        left, right = self.context
        found = []
        for utterance in self.utterances:
            for t in range(len(utterance)):
                near = [min(max(u, 0), len(utterance) - 1) for u in range(t - left, t + right + 1)]
                found.append([value for u in near for value in utterance[u]])
        return found

    def minibatches(self, size: int, num_sweeps: int) -> Iterator[list[Frame]]:
        windows = self.windows()
        for sweep in range(num_sweeps):
            frames = [windows[frame] for frame in self.order(sweep)]
            for begin in range(0, len(frames), size):
                minibatch = frames[begin : begin + size]
                if self.only_full and len(minibatch) < size <= len(frames):
                    continue
                yield minibatch

"""Lanes and CNTK's order: how well they shuffle, how even ranks are, and how much a rank reads. All of it is simulated.

    python bench/lanes.py [--sequences 2000000] [--chunks 1024] [--window 128] [--lanes 64] [--ranks 1,2,8,64]

The corpus is made up: sequences of 1 to 39 samples in chunks of equal numbers of sequences. The figures come from its
index, with 1,024 samples a rank (the first table: 8,192 of all ranks).

- Displacement: the mean distance of a sequence's place in the sweep from its place in the file, as a share of the
  corpus; 1/3 if all orders are equally likely.
- Neighbors kept: of two sequences that follow each other in the file, the share that comes in the same minibatch.
- Chunks: in a minibatch, on average.
- Idle: 1 - mean / largest number of samples of the ranks, averaged over the steps.
- Chunks read: by the rank that reads the most in a sweep, as a share of the corpus, if chunks stay in memory as long as
  the plan needs them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from cntkio import GlobalPartition, Partition
from cntkio.timeline import Timeline, Window
from harness.engines import line


def steps_of(timeline: Timeline, size: int, partition: Partition) -> tuple[list[Any], int]:
    """Return the sequences of each step of a sweep, and the number of chunks that were loaded for them."""
    steps, num_loads, version = [], 0, -1
    in_memory: set[int] = set()
    while (selection := timeline.read(size, partition)) is not None:
        steps.append(selection.sequences)
        plan = timeline.needed_chunks(partition)
        if plan.version != version:
            now, version = {*plan.chunks, *np.unique(selection.chunks).tolist()}, plan.version
            num_loads, in_memory = num_loads + len(now - in_memory), now
    return steps, num_loads


def quality(steps: list[Any], chunk_starts: Any) -> tuple[float, float, float]:
    """Return the displacement, the share of neighbors kept, and the chunks of a minibatch."""
    order = np.concatenate(steps)
    step_of = np.empty(len(order), np.int64)
    step_of[order] = np.repeat(np.arange(len(steps)), list(map(len, steps)))
    displacement = np.abs(order - np.arange(len(order))).mean() / len(order)
    chunks = [len(np.unique(np.searchsorted(chunk_starts, step, side="right"))) for step in steps]
    return displacement, float((step_of[1:] == step_of[:-1]).mean()), float(np.mean(chunks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=2_000_000)
    parser.add_argument("--chunks", type=int, default=1024)
    parser.add_argument("--window", type=int, default=128, help="chunks")
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--ranks", default="1,2,8,64")
    options = parser.parse_args()
    lengths = np.random.default_rng(1).integers(1, 40, options.sequences).astype(np.uint32)
    starts = np.linspace(0, options.sequences, options.chunks + 1).astype(np.int64)
    kinds: dict[str, Callable[[int, int], Partition]] = {
        "CNTK's order": GlobalPartition,
        "the same, deal='chunk'": lambda rank, count: GlobalPartition(rank, count, "chunk"),
        f"{options.lanes} lanes": lambda rank, count: GlobalPartition(rank, count, lanes=options.lanes),
    }

    def new() -> Timeline:
        return Timeline(lengths, starts, window=Window(options.window, "chunks"), max_sweeps=1)

    line("order", "displacement", "neighbors kept", "chunks of a minibatch")
    for name in (next(iter(kinds)), f"{options.lanes} lanes"):
        moved, kept, chunks = quality(steps_of(new(), 8192, kinds[name](0, 1))[0], starts)
        line(name, f"{moved:.3f}", f"{kept:.2%}", f"{chunks:.0f}")
    print()
    line("ranks, order", "idle", "chunks read", "steps")
    for count in map(int, options.ranks.split(",")):
        for name, partition in kinds.items():
            ranks = [steps_of(new(), 1024 * count, partition(rank, count)) for rank in range(count)]
            loads = np.array([[int(lengths[step].sum()) for step in steps] for steps, _ in ranks], np.float64)
            idle = (1 - loads.mean(axis=0) / loads.max(axis=0)).mean()
            # Without `loads_parts`, the plan of CNTK's order names the chunks of all ranks.
            read = max(num_loads for _, num_loads in ranks) / options.chunks
            line(f"{count}, {name}", f"{idle:.2%}", f"{read:.3f}", str(loads.shape[1]))


if __name__ == "__main__":
    main()

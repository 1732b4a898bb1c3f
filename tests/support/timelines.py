"""Timelines of made-up tables, and all their minibatches by a budget."""

import itertools
from typing import Any, TypeAlias

import numpy as np
from cntkio import Budget, Partition
from cntkio.timeline import Timeline, Window

Chunks: TypeAlias = list[list[int]]
"""For each chunk the samples of its sequences."""
Found: TypeAlias = list[tuple[list[int], bool]]
"""For each minibatch its sequences, and whether it ends a sweep."""


def timeline_of(chunks: Chunks, window: Window | None, **options: Any) -> Timeline:
    lengths = np.array([length for chunk in chunks for length in chunk], np.uint32)
    return Timeline(lengths, np.cumsum([0, *map(len, chunks)]), window=window, **options)


def read_all(timeline: Timeline, budget: Budget, partition: Partition, most: int = 1) -> Found:
    found: Found = []
    while (reads := timeline.read_several(budget, partition, most)) is not None:
        found += [
            (reads.selection.sequences[first:last].tolist(), end)
            for (first, last), end in zip(itertools.pairwise(reads.bounds), reads.ends_of_sweep, strict=True)
        ]
        assert len(found) < 1000
    return found


def window_for(budget: Budget, chunks: Chunks, is_random: bool) -> Window | None:
    """Return a window that the budget allows."""
    return Window(len(chunks), "chunks") if is_random or budget.pool else None


def is_possible(chunks: Chunks, budget: Budget, count: int = 1) -> bool:
    """Return whether each partition surely has a sequence to deliver in each sweep, at the smallest limits."""
    share = budget.share(count)
    num_sequences, [_, sequences, *_] = sum(map(len, chunks)), share.numbers()
    if share.drop_last and share.sequences is not None and share.samples is None and share.padded is None:
        if share.pool is not None and share.pool_unit == "sequences":
            num_sequences = min(num_sequences, share.pool)
        if num_sequences < (sequences or 0):
            return False
    longest = share.longest if share.oversize == "drop" else 9
    return sum(length <= longest for chunk in chunks for length in chunk) >= count

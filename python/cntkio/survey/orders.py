"""Figures of the order in which data are delivered: steps, padding, ranks, and how well a sweep is shuffled.

All come from the plan of each rank, whose arrays have a step of each rank at the same index.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio.source import PlannedSweep
from cntkio.survey.figures import Histogram

_NUM_COLUMNS, _NUM_ROWS = 60, 30
_BLOCK = 1 << 16


class OrderFigures(NamedTuple):
    """Figures of a sweep of all ranks.

    Attributes:
        num_steps: Number of steps of the rank with the most steps.
        sequences_of_a_step: Mean number of sequences of a step of a rank.
        samples_of_a_step: Mean number of samples of a step of a rank.
        padding: Share of all padded arrays that is padding.
        waiting: Share of the time in which a rank waits, if a step takes as long as its largest padded array.
        most_chunks: Chunks in memory of the rank with the most chunks.
        num_loads: Number of chunks that all ranks load.
        shuffling: Mean distance in the data of neighbours in the order, as a share of the mean of a full shuffle.
        sizes: Histogram of the samples of a step.
        map: Number of sequences in each part of the data (rows) and of the sweep (columns), for the first rank.
    """

    num_steps: int
    sequences_of_a_step: float
    samples_of_a_step: float
    padding: float
    waiting: float
    most_chunks: int
    num_loads: int
    shuffling: float
    sizes: Histogram | None
    map: npt.NDArray[np.int64]


def order_figures(ranks: Sequence[PlannedSweep], num_sequences: int) -> OrderFigures:
    """Return the figures of a sweep.

    Args:
        ranks: The sweep of each rank.
        num_sequences: Sequences of the corpus.

    Example:
        >>> from cntkio import CTFDeserializer, MinibatchSource, infer_streams
        >>> path = "examples/iris/iris.ctf"
        >>> with MinibatchSource(CTFDeserializer(path, infer_streams(path)), max_sweeps=1, randomize=False) as source:
        ...     figures = order_figures([source.plan(64).sweep()], 150)
        >>> figures.num_steps, figures.padding, figures.waiting, round(figures.shuffling, 2)
        (3, 0.0, 0.0, 0.02)
    """
    steps = [rank.steps for rank in ranks]
    num_samples = np.concatenate([one.num_samples for one in steps])
    areas = np.concatenate([one.padded_areas for one in steps])
    sequences = np.concatenate([one.num_sequences for one in steps])
    num_steps = max(map(len, steps))
    return OrderFigures(
        num_steps,
        float(sequences.mean()) if len(sequences) else 0.0,
        float(num_samples.mean()) if len(num_samples) else 0.0,
        1 - int(num_samples.sum()) / max(int(areas.sum()), 1),
        _waiting([one.padded_areas for one in steps], num_steps),
        max(int(one.num_chunks.max(initial=0)) for one in steps),
        sum(rank.num_loads for rank in ranks),
        _shuffling(ranks, num_sequences),
        Histogram.of(num_samples),
        _map(ranks[0].sequences, num_sequences),
    )


def _waiting(areas: Sequence[npt.NDArray[np.int64]], num_steps: int) -> float:
    table = np.zeros((len(areas), num_steps), np.int64)
    for row, of_rank in zip(table, areas, strict=True):
        row[: len(of_rank)] = of_rank
    longest = int(table.max(axis=0, initial=0).sum())
    return 1 - int(table.sum()) / (longest * len(areas)) if longest else 0.0


def _shuffling(ranks: Sequence[PlannedSweep], num_sequences: int) -> float:
    num_pairs = sum(max(len(rank.sequences) - 1, 0) for rank in ranks)
    if not num_pairs:
        return 1.0
    # Blocks fit the cache.
    blocks = (rank.sequences[at : at + _BLOCK + 1] for rank in ranks for at in range(0, len(rank.sequences), _BLOCK))
    distance = sum(int(np.abs(np.diff(block)).sum()) for block in blocks)
    # The mean distance of two different numbers below n is (n + 1) / 3.
    return min(distance / num_pairs / ((num_sequences + 1) / 3), 1.0)


def _map(sequences: npt.NDArray[np.int64], num_sequences: int) -> npt.NDArray[Any]:
    bounds = -(-np.arange(_NUM_COLUMNS + 1) * len(sequences) // _NUM_COLUMNS)
    columns = (sequences[first:last] for first, last in itertools.pairwise(bounds.tolist()))
    rows = (column * _NUM_ROWS // max(num_sequences, 1) for column in columns)
    return np.stack([np.bincount(of_column, minlength=_NUM_ROWS) for of_column in rows], axis=1)

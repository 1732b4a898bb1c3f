"""Figures of a corpus, and of the order in which its data are delivered; and the blocks that they are made of.

A block is a chunk as arrays. Blocks come in order, loaded ahead of need.

Figures of a corpus are ranges, quantiles, frequencies of labels, lengths, and the padding of minibatches. Everything is
exact except for quantiles and histograms of values, which come from a sample if a stream has more than some 100,000
values. Figures of an order come from the plan of each rank, whose arrays have a step of each rank at the same index.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio.formats.contract import Corpus, Loaded
from cntkio.formats.pieces import Mend, Progress, chunks_in_order, in_arrays
from cntkio.formats.table import Keys
from cntkio.minibatch import MinibatchData
from cntkio.source import PlannedSweep
from cntkio.streams import StreamInformation

QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
_MOST_SAMPLED = 1 << 17
_MOST_CLASSES = 1 << 20
_NUM_BINS = 32
_NUM_TRIED = 512
_PADDED_SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
_MOST_COMPONENTS = 16
_MOST_ROWS = 1 << 14
_NUM_BUCKETS, _BUCKETED_SIZE = 4, 32


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """The sequences of a chunk, or some of them.

    Attributes:
        infos: The streams.
        sequences: The index of each sequence in the corpus, int64.
        keys: Key of each sequence.
        loaded: The chunk as it was loaded, with the findings of its format.
    """

    infos: Sequence[StreamInformation]
    sequences: npt.NDArray[np.int64]
    keys: Keys
    loaded: Loaded

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.keys)

    @cached_property
    def streams(self) -> dict[str, MinibatchData]:
        """The data of each stream, by name. The arrays are made on first use."""
        return in_arrays(self.infos, self.num_sequences, [self.loaded.chunk], end_of_sweep=False)

    @cached_property
    def longest(self) -> npt.NDArray[np.uint32]:
        """The number of samples of each sequence in its longest stream."""
        return reduce(np.maximum, self.lengths)

    @cached_property
    def lengths(self) -> list[npt.NDArray[np.uint32]]:
        """The number of samples of each sequence, for each stream."""
        return [self.loaded.chunk.lengths(index) for index in range(len(self.infos))]


def blocks(corpus: Corpus, mend: Mend | None = None, progress: Progress | None = None) -> Iterator[Block]:
    """Yield all chunks of an opened corpus as arrays, and count their errors.

    Args:
        corpus: The corpus.
        mend: Called with each chunk that cannot be loaded; the other chunks follow. None: the error is raised.
        progress: Called after each block.

    Raises:
        FormatError: A chunk breaks the format, and `mend` is None.
        OSError: The file cannot be read, and `mend` is None.

    Example:
        >>> from cntkio import CTFDeserializer, infer_streams
        >>> path = "examples/iris/iris.ctf"
        >>> [block.num_sequences for block in blocks(CTFDeserializer(path, infer_streams(path)).open())]
        [150]
    """
    num_done = 0
    for loaded in chunks_in_order(corpus, mend=mend):
        if corpus.index.joins == "alone":  # the table has no sequences, and the findings are their lengths
            sequences = np.arange(num_done, num_done + len(loaded.findings))
            keys = Keys(range(num_done, num_done + len(sequences)))
        else:
            first, last = corpus.table.bounds_of(loaded.chunk_id)
            sequences, keys = np.arange(first, last), corpus.table.keys.part(first, last)
            if loaded.sequences is not None:
                sequences, keys = sequences[loaded.sequences], keys.only(loaded.sequences)
        num_done += len(sequences)
        block = Block(corpus.streams, sequences, keys, loaded)
        del loaded  # the caller decides how long the chunk is in memory
        yield block
        del block
        if progress is not None:
            progress(num_done, max(num_done, corpus.table.num_sequences))


class Histogram(NamedTuple):
    """Counts of values in bins of the same width, from the lowest value to the highest."""

    lowest: float
    highest: float
    counts: list[int]

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> Histogram | None:
        """Return the histogram of values; None if there are none."""
        if not len(values):
            return None
        lowest, highest = float(values.min()), float(values.max())
        is_whole = values.dtype.kind in "ui" or bool((values == np.floor(values)).all())
        # A bin for each whole number: bins of another width would hold different numbers of them, and look uneven.
        if is_whole and highest - lowest < _NUM_BINS:
            counts = np.bincount((values - lowest).astype(np.int64), minlength=int(highest - lowest) + 1)
            return cls(lowest, highest, counts.tolist())
        counts, _ = np.histogram(values, _NUM_BINS, (lowest, highest))
        return cls(lowest, highest, counts.tolist())


class StreamFigures(NamedTuple):
    """Figures of a stream.

    Attributes:
        longest: Samples of its longest sequence.
        num_values: Values that the file has: all of a dense stream, the entries of a sparse one.
        density: Share of the values that are not zero, among all values that the dimension allows for.
        lowest: The smallest value; NaN if there is none.
        num_strange: Values that are NaN or infinite; the range, the mean and the standard deviation leave them out.
        quantiles: Of `QUANTILES`; empty for a stream without values.
        frequencies: Frequency of each index, or of each class of a dense one-hot stream; None: it has no classes.
        components: Histogram of each component of a dense stream with few components, in the same order.
    """

    info: StreamInformation
    num_samples: int
    longest: int
    num_values: int
    density: float
    lowest: float
    highest: float
    mean: float
    deviation: float
    num_strange: int
    quantiles: list[float]
    values: Histogram | None
    frequencies: npt.NDArray[np.int64] | None
    components: list[Histogram]

    def most_frequent(self, most: int) -> list[tuple[int, int]]:
        """Return the most frequent classes and how often each occurs."""
        if self.frequencies is None:
            return []
        order = np.argsort(-self.frequencies, kind="stable")[:most]
        return [(int(label), int(self.frequencies[label])) for label in order if self.frequencies[label]]


class Padding(NamedTuple):
    """Share of padding in minibatches of `size` sequences, in the order of the file and in a random order."""

    size: int
    in_order: float
    shuffled: float


class Buckets(NamedTuple):
    """Padding of minibatches of `size` sequences that have similar lengths.

    Attributes:
        longest: Length of the longest sequence of each bucket, ascending.
        padding: Share of the padded array that is padding, with sequences of one bucket in each minibatch.
        without: The same without buckets, in a random order.
    """

    size: int
    longest: list[int]
    padding: float
    without: float


class Figures(NamedTuple):
    """Figures of a corpus.

    Attributes:
        num_samples: Samples that the sequences count for.
        length_quantiles: Of `QUANTILES`; empty without sequences.
        padding: Padding of minibatches of several sizes; empty if all sequences have the same length.
        buckets: Padding with buckets; None: there are too few sequences, or all have the same length.
    """

    num_sequences: int
    num_samples: int
    lengths: Histogram | None
    length_quantiles: list[float]
    streams: list[StreamFigures]
    padding: list[Padding]
    buckets: Buckets | None


def figures(corpus: Corpus, surveyed: Iterable[Block]) -> Figures:
    """Return the figures of an opened corpus.

    Example:
        >>> from cntkio import CTFDeserializer, infer_streams
        >>> from cntkio.survey import blocks
        >>> path = "examples/iris/iris.ctf"
        >>> corpus = CTFDeserializer(path, infer_streams(path)).open()
        >>> species = figures(corpus, blocks(corpus)).streams[1]
        >>> species.info.name, species.frequencies
        ('species', array([50, 50, 50]))
    """
    sums = {info.name: _Sums(info) for info in corpus.streams}
    for block in surveyed:
        for name, data in block.streams.items():
            sums[name].add(data)
    # Areas are products of lengths, which may need more than 32 bits.
    lengths = np.asarray(corpus.table.lengths[:]).astype(np.int64)
    streams, histogram = [found.figures() for found in sums.values()], Histogram.of(lengths)
    about_lengths = (len(lengths), int(lengths.sum()), histogram, _quantiles(lengths))
    return Figures(*about_lengths, streams, _padding(lengths), _buckets(lengths))


def _quantiles(values: npt.NDArray[Any]) -> list[float]:
    return np.quantile(values, QUANTILES).tolist() if len(values) else []


def _buckets(lengths: npt.NDArray[np.int64]) -> Buckets | None:
    if len(lengths) < _NUM_BUCKETS * _BUCKETED_SIZE:
        return None
    # `higher` gives lengths that occur, not means of two lengths.
    longest = np.unique(np.quantile(lengths, np.arange(1, _NUM_BUCKETS + 1) / _NUM_BUCKETS, method="higher"))
    if len(longest) < 2:
        return None
    shuffled = np.random.default_rng(0).permutation(lengths)
    # Stable, so that the order within a bucket stays random.
    bucketed = shuffled[np.argsort(np.searchsorted(longest, shuffled), kind="stable")]
    padding, without = (_padded_share(order, _BUCKETED_SIZE) for order in (bucketed, shuffled))
    return Buckets(_BUCKETED_SIZE, longest.tolist(), padding, without)


def _padding(lengths: npt.NDArray[np.int64]) -> list[Padding]:
    # A format that is written in Python may have no sequences.
    if not len(lengths) or lengths.min() == lengths.max():
        return []
    shuffled = np.random.default_rng(0).permutation(lengths)
    sizes = [size for size in _PADDED_SIZES if size <= len(lengths)]
    return [Padding(size, _padded_share(lengths, size), _padded_share(shuffled, size)) for size in sizes]


def _padded_share(lengths: npt.NDArray[np.int64], size: int) -> float:
    starts = np.arange(0, len(lengths), size)
    counts = np.diff(np.append(starts, len(lengths)))
    return 1 - float(lengths.sum() / (np.maximum.reduceat(lengths, starts) * counts).sum())


class _Sums:
    """Sums over the blocks of a stream."""

    def __init__(self, info: StreamInformation) -> None:
        self._info = info
        self._num_samples = self._longest = self._num_values = self._num_strange = self._num_not_zero = 0
        self._lowest, self._highest = math.inf, -math.inf
        self._mean = self._squares = 0.0
        self._sampled: list[npt.NDArray[Any]] = []
        self._step = 1
        self._generator = np.random.default_rng(0)
        has_classes = info.dim <= _MOST_CLASSES and info.shape != ()
        self._frequencies = np.zeros(info.dim, np.int64) if has_classes else None
        self._rows: list[npt.NDArray[Any]] = []
        self._has_components = 1 < info.dim <= _MOST_COMPONENTS and not info.is_sparse

    def add(self, data: MinibatchData) -> None:
        self._num_samples += data.num_samples
        self._longest = max(self._longest, data.num_steps)
        self._add_frequencies(data)
        if self._has_components and data.num_samples:
            rows = data.values.reshape(data.num_samples, -1)
            # A copy, because a view would keep the whole block in memory.
            self._rows.append(rows[:: -(-len(rows) // _MOST_ROWS)].copy())
            if sum(map(len, self._rows)) > 2 * _MOST_ROWS:
                self._rows = [np.concatenate(self._rows)[::2]]
        values = data.values.reshape(-1)
        # NaN and infinities show in the smallest or the largest value, so most blocks need no mask.
        if not np.isfinite([values.min(initial=0), values.max(initial=0)]).all():
            finite = values[np.isfinite(values)]
            self._num_strange += len(values) - len(finite)
            values = finite
        if not len(values):
            return
        self._num_not_zero += int(np.count_nonzero(values))
        self._lowest = min(self._lowest, float(values.min()))
        self._highest = max(self._highest, float(values.max()))
        # In float64, because sums of many values in float32 lose digits.
        count, mean, variance = len(values), float(values.mean(dtype=np.float64)), float(values.var(dtype=np.float64))
        # Chan's formula merges the mean and the squared deviations of all values.
        total, difference = self._num_values + count, mean - self._mean
        self._squares += variance * count + difference**2 * self._num_values * count / total
        self._mean += difference * count / total
        self._num_values = total
        # A step that shares a factor with the dimension would take the same components of all samples.
        step = next(step for step in range(self._step, 2 * self._step + 64) if math.gcd(step, self._info.dim) == 1)
        self._sampled.append(values[::step].copy())
        if sum(map(len, self._sampled)) > _MOST_SAMPLED:
            together = np.concatenate(self._sampled)
            # At random: every second value could again be the same components of all samples.
            self._sampled = [together[self._generator.random(len(together)) < 0.5]]
            self._step *= 2

    def _add_frequencies(self, data: MinibatchData) -> None:
        if self._frequencies is None or not data.num_samples:
            return
        classes = data.indices
        if classes is None:
            rows = data.values.reshape(data.num_samples, -1)
            # The first rows show for most streams that they are not one-hot, which saves a pass over the block.
            if self._info.dim == 1 or not (_are_one_hot(rows[:_NUM_TRIED]) and _are_one_hot(rows)):
                self._frequencies = None
                return
            classes = rows.argmax(axis=1)
        self._frequencies += np.bincount(classes, minlength=len(self._frequencies))

    def figures(self) -> StreamFigures:
        sampled = np.concatenate(self._sampled) if self._sampled else np.empty(0)
        num_possible, num_values = self._num_samples * self._info.dim, self._num_values + self._num_strange
        density = self._num_not_zero / num_possible if num_possible else 0.0
        about_values = (math.nan,) * 4
        if self._num_values:
            deviation = math.sqrt(self._squares / self._num_values)
            about_values = (self._lowest, self._highest, self._mean, deviation)
        columns = np.concatenate(self._rows).T if self._rows and self._frequencies is None else ()
        components = (Histogram.of(column[np.isfinite(column)]) for column in columns)
        return StreamFigures(
            self._info, self._num_samples, self._longest, num_values, density, *about_values, self._num_strange,
            _quantiles(sampled), Histogram.of(sampled), self._frequencies, [*filter(None, components)],
        )  # fmt: skip


def _are_one_hot(rows: npt.NDArray[Any]) -> bool:
    return bool((np.count_nonzero(rows, axis=1) == 1).all() and (rows.max(axis=1) == 1).all())


# ------------------------------------------------------------------------------------------------ figures of an order

_NUM_COLUMNS, _NUM_ROWS = 60, 30
_BLOCK = 1 << 16


class CourseFigures(NamedTuple):
    """Figures of consecutive parts of a sweep, each of about as many steps, as means of a step.

    Attributes:
        filled: Share of the arrays of all ranks that has samples.
        mean_cost: Cost of a rank.
        most_cost: Cost of the rank with the highest cost.
        shares: Share of the sequences of each part of a mixture, by its name.
    """

    filled: npt.NDArray[np.float64]
    mean_cost: npt.NDArray[np.float64]
    most_cost: npt.NDArray[np.float64]
    shares: Mapping[str, npt.NDArray[np.float64]]


class OrderFigures(NamedTuple):
    """Figures of a sweep of all ranks.

    Attributes:
        num_steps: Number of steps of the rank with the most steps.
        sequences_of_a_step: Mean number of sequences of a step of a rank.
        samples_of_a_step: Mean number of samples of a step of a rank.
        padding: Share of all padded arrays, or of the cells of packed rows, that is padding.
        waiting: Share of the time in which a rank waits, if a step takes as long as its largest array.
        lost: The same, if a step takes as long as its highest cost (`cntkio.PlannedSteps.costs`).
        most_chunks: Chunks in memory of the rank with the most chunks.
        num_loads: Number of chunks that all ranks load.
        shuffling: Mean distance in the data of neighbours in the order, as a share of the mean of a full shuffle.
        num_left_out: Sequences that no rank delivers.
        components: Delivered sequences of each part of a mixture, by its name.
        sizes: Histogram of the samples of a step.
        map: Number of sequences in each part of the data (rows) and of the sweep (columns), for the first rank.
        course: Figures of the parts of the sweep.
        limits: The value of each limit that changes, by its name, at the first step of consecutive parts of the run.
    """

    num_steps: int
    sequences_of_a_step: float
    samples_of_a_step: float
    padding: float
    waiting: float
    lost: float
    most_chunks: int
    num_loads: int
    shuffling: float
    num_left_out: int
    components: Mapping[str, int]
    sizes: Histogram | None
    map: npt.NDArray[np.int64]
    course: CourseFigures
    limits: Mapping[str, npt.NDArray[np.int64]]


def order_figures(
    ranks: Sequence[PlannedSweep],
    num_sequences: int,
    num_cells: int | npt.NDArray[np.int64] = 0,
    limits: Mapping[str, npt.NDArray[np.int64]] = MappingProxyType({}),
    num_sweeps: int = 1,
) -> OrderFigures:
    """Return the figures of a sweep, which consists of the sweeps of the ranks.

    Args:
        num_cells: Cells of the packed rows of a step of all ranks, or of each step; 0: minibatches are padded.
        limits: The limits of a run that change, as in `cntkio.PlannedSteps`.
        num_sweeps: Sweeps that the steps go through.

    Example:
        >>> from cntkio import CTFDeserializer, MinibatchSource, infer_streams
        >>> path = "examples/iris/iris.ctf"
        >>> with MinibatchSource(CTFDeserializer(path, infer_streams(path)), max_sweeps=1, randomize=False) as source:
        ...     figures = order_figures([source.plan(64).sweep()], 150)
        >>> figures.num_steps, figures.padding, figures.waiting, figures.lost, round(figures.shuffling, 2)
        (3, 0.0, 0.0, 0.0, 0.02)
    """
    steps = [rank.steps for rank in ranks]
    num_samples = np.concatenate([one.num_samples for one in steps])
    sequences = np.concatenate([one.num_sequences for one in steps])
    means = [float(counts.mean()) if len(counts) else 0.0 for counts in (sequences, num_samples)]
    areas, samples, costs = (
        _by_rank([getattr(one, name) for one in steps]) for name in ("padded_areas", "num_samples", "costs")
    )
    if np.any(num_cells):
        areas[:] = num_cells / len(steps)
    most_chunks = max(int(one.num_chunks.max(initial=0)) for one in steps)
    parts = {name: _by_rank([one.components[name] for one in steps]).sum(axis=0) for name in steps[0].components}
    return OrderFigures(
        areas.shape[1], means[0], means[1], 1 - int(num_samples.sum()) / max(float(areas.sum()), 1), _waiting(areas),
        _waiting(costs), most_chunks, sum(rank.num_loads for rank in ranks), _shuffling(ranks, num_sequences),
        max(num_sequences * num_sweeps - int(sequences.sum()), 0),
        {name: int(counts.sum()) for name, counts in parts.items()}, Histogram.of(num_samples),
        _map(ranks[0].sequences, num_sequences), _course(areas, samples, costs, parts),
        {name: values[_starts(len(values))] for name, values in limits.items()},
    )  # fmt: skip


def _by_rank(columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
    """Return numbers by rank and step; 0 in steps that a rank does not have."""
    found = np.zeros((len(columns), max(map(len, columns))))
    for row, column in zip(found, columns, strict=True):
        row[: len(column)] = column
    return found


def _waiting(times: npt.NDArray[np.float64]) -> float:
    """Return the share of the time in which a rank waits for the slowest rank of the step."""
    longest = float(times.max(axis=0, initial=0).sum()) * len(times)
    return 1 - float(times.sum()) / longest if longest else 0.0


def _starts(num_steps: int) -> npt.NDArray[np.int64]:
    """Return the first step of consecutive parts, each of about as many steps."""
    return np.unique(np.arange(_NUM_COLUMNS if num_steps else 0) * num_steps // _NUM_COLUMNS)


def _course(
    areas: npt.NDArray[np.float64], samples: npt.NDArray[np.float64], costs: npt.NDArray[np.float64],
    parts: Mapping[str, npt.NDArray[np.float64]],
) -> CourseFigures:  # fmt: skip
    num_steps = areas.shape[1]
    if not num_steps:
        return CourseFigures(np.zeros(0), np.zeros(0), np.zeros(0), {})
    starts = _starts(num_steps)
    counts = np.diff(np.append(starts, num_steps))

    def means(of_steps: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        found: npt.NDArray[np.float64] = np.add.reduceat(of_steps, starts) / counts
        return found

    filled = means(samples.sum(axis=0)) / np.maximum(means(areas.sum(axis=0)), 1)
    all_parts = np.maximum(means(np.sum([*parts.values()], axis=0)), 1e-9) if parts else 1
    shares = {name: means(counts) / all_parts for name, counts in parts.items()}
    return CourseFigures(filled, means(costs.mean(axis=0)), means(costs.max(axis=0)), shares)


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

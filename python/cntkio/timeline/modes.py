"""Modes of reading: whole sequences, the turns of workers, minibatches that are dealt to all partitions, budgets.

The timeline chooses a mode for a size and a partition. Each mode makes one call into the core for a read;
`WholeSequences` makes one call for several reads. Other modules of this room have further modes.

With global partitions, the sequences of each global minibatch are dealt to all partitions. (docs/timeline.md, "Global
partitions") With a budget, the core cuts the order into minibatches (`crates/core/src/timeline/batches.rs`), and this
module checks the budget against the data and the partition. (docs/batches.md)
"""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._core import Cursor, TimelineReader
from cntkio.errors import ConfigError
from cntkio.timeline.budget import NO_LIMIT, Budget, Size, check_schedules, row_length_of, size_at
from cntkio.timeline.fields import damaged
from cntkio.timeline.partition import WHOLE, WHOLE_ROWS, GlobalPartition, Partition
from cntkio.timeline.selection import ChunkPart, ChunkRefs, Parts, Plan, Reads, RowsOfReads, Selection
from cntkio.timeline.window import LARGEST_WORD, Window

logger = logging.getLogger("cntkio")


class ReadMode:
    """A way of reading for one size and one partition. The bookmarks of its reads are cursors of the reader."""

    __slots__ = ()

    def read(self, most: int) -> Reads | None:
        """Deliver at least one and at most `most` reads; None: the data have ended."""
        raise NotImplementedError

    def pass_over(self, most: int, until: int) -> int:
        """Pass over at most `most` reads that end at position `until` or before, and return their number.

        0: only `read` can make the next, or the data have ended.
        """
        return 0


class InTurn(ReadMode):
    """Deliver the reads of this worker, which are every n-th: the workers of a partition take them in turn.

    Args:
        mode: Makes the reads of all workers.
        rounds_to_pass: Reads of other workers before the next of this worker, also an attribute; None: turns begin.
    """

    def __init__(self, mode: ReadMode, partition: GlobalPartition, rounds_to_pass: int | None = None) -> None:
        self._mode, self._num_workers = mode, partition.num_workers
        self.rounds_to_pass = partition.worker if rounds_to_pass is None else rounds_to_pass

    def read(self, most: int) -> Reads | None:
        if self._num_workers == 1:
            return self._mode.read(most)
        # Several reads at once would belong to several workers.
        while (delivery := self._mode.read(1)) is not None:
            if not self.rounds_to_pass:
                self.rounds_to_pass = self._num_workers - 1
                break
            self.rounds_to_pass -= 1
        return delivery

    def pass_over(self, most: int, until: int) -> int:
        return self._mode.pass_over(most, until) if self._num_workers == 1 else 0


@dataclasses.dataclass(frozen=True, slots=True)
class WholeSequences(ReadMode):
    """Deliver whole sequences, in as many reads as one call makes.

    Attributes:
        share: Samples that a read delivers at most, or sequences if those are counted.
        partition: The share of the data to deliver.
        passed: Samples of all partitions that a read passes at most.
        crosses_sweeps: Whether a read continues in the next sweep.
        counts_sequences: Whether `share` counts sequences.
        is_global: Whether `share` counts the sequences of all partitions, in randomized order only.
        is_dealt: Whether the sequences are dealt afterwards: selections have lengths in place of references to chunks.
        budget: Further limits of a read.
    """

    reader: TimelineReader
    # The core takes the rules by the names of these fields (`ReadRules` in crates/python/src/order.rs).
    share: int
    partition: Partition = WHOLE
    passed: int = LARGEST_WORD
    crosses_sweeps: bool = False
    counts_sequences: bool = False
    is_global: bool = False
    is_dealt: bool = False
    budget: _core.Budget | None = None

    @classmethod
    def of(cls, reader: TimelineReader, share: int, partition: Partition, **rules: Any) -> WholeSequences:
        """Make the mode of a partition; `rules` are further fields."""
        # True for deal='chunk': reads of the whole data, of which the core delivers the partition's own chunks.
        is_global = partition.of_reads is not partition.of_chunks
        return cls(reader, share, partition.of_chunks, is_global=is_global, is_dealt=partition.is_dealt, **rules)

    def read(self, most: int) -> Reads | None:
        reads = self.reader.read_several(self, most)
        if reads is None:
            return None
        ends_of_sweep, cursors, found = reads.ends_of_sweep, reads.cursors, reads.refs
        refs = None if found is None else ChunkRefs.found(found)
        end, position = ends_of_sweep[-1], cursors[-1].position
        selection = Selection(reads.sequences, reads.chunks, end, position, None, refs, loads=reads.loads)
        return Reads(selection, reads.bounds, ends_of_sweep, cursors)

    def pass_over(self, most: int, until: int) -> int:
        return self.reader.pass_reads(self, most, until)


class DealtMinibatches(ReadMode):
    """Deliver a partition's share of each global minibatch.

    Args:
        mode: Reads global minibatches.
        chunk_starts: First sequence of each chunk and, last, the number of sequences.
        size: Size of the global minibatches, which says whether rows are dealt, and what is kept even.
    """

    def __init__(
        self, mode: ReadMode, chunk_starts: npt.NDArray[np.int64], partition: GlobalPartition, size: Size
    ) -> None:
        self._mode, self._chunk_starts, self._partition = mode, chunk_starts, partition
        self._budget = size.for_core() if isinstance(size, Budget) else None

    def pass_over(self, most: int, until: int) -> int:
        return self._mode.pass_over(most, until)  # a deal drops sequences, but no read

    def read(self, most: int) -> Reads | None:
        delivery = self._mode.read(most)
        if delivery is None:
            return None
        selection, bounds, _, _ = delivery
        if selection.parts is not None:
            own = self._slots(selection, selection.parts)
            return delivery._replace(selection=own, bounds=[0, len(own.sequences)])
        assert selection.loads is not None
        index, count, by_area = self._partition.index, self._partition.count, self._partition.deal == "area"
        kept, kept_bounds = _core.deal(selection.loads, bounds, count, index, by_area, self._budget)
        sequences, chunks = selection.sequences[kept], selection.chunks[kept]
        # The core looked up no chunks for these reads, because the deal leaves many sequences out.
        refs = ChunkRefs.found(_core.find_chunks(sequences, None, self._chunk_starts))
        own = dataclasses.replace(selection, sequences=sequences, chunks=chunks, refs=refs, loads=None)
        return delivery._replace(selection=own, bounds=kept_bounds)

    def _slots(self, selection: Selection, parts: Parts) -> Selection:
        """Return the slots of this partition: the partitions take slots in turn."""
        count, num_slots = self._partition.count, self._partition.share(parts.num_slots)
        mask = parts.slot % count == self._partition.index
        own = parts.where(mask)
        own = dataclasses.replace(own, slot=own.slot // count, num_slots=num_slots)
        sequences, chunks = selection.sequences[mask], selection.chunks[mask]
        return dataclasses.replace(selection, sequences=sequences, chunks=chunks, parts=own)


@dataclasses.dataclass(frozen=True, slots=True)
class MergedMinibatches(ReadMode):
    """Join minibatches of fewer than `least` sequences with the minibatch before them, or the first with the second.

    Consecutive small minibatches that together have enough sequences become a minibatch of their own, so that a read
    of an endless source returns.
    """

    mode: ReadMode
    reader: TimelineReader
    least: int

    def read(self, most: int) -> Reads | None:
        delivery = self.mode.read(1)
        while delivery is not None and not self._are_enough(delivery):
            following = self.mode.read(1)
            if following is None:
                return delivery
            delivery = _joined(delivery, following)
        if delivery is None:
            return None
        before = end = self.reader.cursor
        small: Reads | None = None
        while (following := self.mode.read(1)) is not None and not self._are_enough(following):
            small = following if small is None else _joined(small, following)
            if self._are_enough(small):
                # Together they have enough sequences: the next call reads them again, as a minibatch of their own.
                small, end = None, before
                break
            end = self.reader.cursor
        # Unless the data ended, the last read has enough sequences by itself, and belongs to the next call.
        self.reader.rewind(end)
        return delivery if small is None else _joined(delivery, small)

    def _are_enough(self, delivery: Reads) -> bool:
        return len(delivery.selection.sequences) >= self.least


def _joined(first: Reads, second: Reads) -> Reads:
    """Return two reads as one, without references to chunks: the table has them."""
    one, other = first.selection, second.selection
    sequences = np.concatenate([one.sequences, other.sequences])
    chunks = np.concatenate([one.chunks, other.chunks])
    loads = None if one.loads is None or other.loads is None else np.concatenate([one.loads, other.loads])
    end_of_sweep = one.end_of_sweep or other.end_of_sweep
    selection = Selection(sequences, chunks, end_of_sweep, other.position, loads=loads)
    return Reads(selection, [0, len(sequences)], [end_of_sweep], second.bookmarks)


def check_deal(partition: GlobalPartition, size: Size, *, is_randomized: bool, is_truncated: bool) -> None:
    """Refuse a deal that is not possible for a timeline, or with a size."""
    if partition.remainder == "merge" and isinstance(size, Budget):
        why = "joined minibatches could exceed the budget; use remainder='empty'"
        raise ConfigError(f"remainder='merge' and a Budget exclude each other: {why}", key="remainder")
    if is_truncated and not partition.num_lanes and (partition.deal != "length" or partition.remainder != "empty"):
        option, value = ("deal", partition.deal) if partition.deal != "length" else ("remainder", partition.remainder)
        why = "partitions take the slots of truncated minibatches in turn"
        raise ConfigError(f"{option}={value!r} needs whole sequences; {why}", key=option)
    if partition.num_lanes and (is_truncated or not is_randomized):
        option = "truncation_length" if is_truncated else "randomize=False"
        advice = "leave lanes out, or leave it out"
        raise ConfigError(f"lanes need whole sequences in randomized order, but {option} is set: {advice}", key="lanes")
    if partition.deal == "chunk" and not is_randomized:
        why = "in file order a minibatch has sequences of only a few chunks, so most partitions would get nothing"
        raise ConfigError(f"deal='chunk' needs a randomized order: {why}; use deal='length'", key="deal")


def is_same_deal(settings: tuple[Size, Partition] | None, size: Size, partition: Partition, position: int) -> bool:
    """Return True if global minibatches stay the same as with former settings, perhaps dealt in another way.

    Limits may change after the position, where the next minibatch begins.
    """
    if settings is None or not (size == settings[0] or size_at(size, position) == size_at(settings[0], position)):
        return False
    # Only global partitions have `of_workers`; the reads of all others depend on their index and count.
    if None in (partition.of_workers, settings[1].of_workers):
        return partition == settings[1]
    return (partition.rounds, partition.num_lanes) == (settings[1].rounds, settings[1].num_lanes)


def check_change(
    settings: tuple[Size, Partition] | None,
    size: Size,
    partition: Partition,
    cursor: Cursor,
    of_pool: str = "",
    span: str = "sweep",
) -> None:
    """Refuse a change of size or partition inside a pool, and of what a schedule says about former reads.

    Args:
        settings: Size and partition of the last read; None: the timeline has moved since.
        cursor: Where the next read begins.
        of_pool: How many minibatches the pool has, in words.
        span: In lanes, what has steps that depend on each other.
    """
    if settings is None:
        return
    batch = cursor.batch
    # A pool that has begun has the values at its beginning.
    check_schedules(settings[0], size, cursor.position + (batch > 0))
    if batch and not is_same_deal(settings, size, partition, cursor.position):
        if settings[1].num_lanes:
            why = f"the other global minibatches of the {span} depend on the size and on the lanes"
            message = f"size or lanes change after step {batch} of a {span}: {why}; change them where a {span} ends"
            raise ConfigError(message, key="lanes")
        when = f"after {batch}{of_pool} minibatches of a pool, which have no position of their own"
        advice = "change them where a pool ends, or go to a position first"
        raise ConfigError(f"size or partition change {when}; {advice}", key="pool")


_LARGEST_SHARE = 2**63 - 1
_POOLS_OF_A_SERIES = 16  # as in the core's reader


class Rounds(ReadMode):
    """Deliver a partition's minibatch of each round, which has a minibatch of `mode` for each partition.

    The last round ends with the data.
    """

    def __init__(self, mode: ReadMode, partition: Partition) -> None:
        self._mode, self._partition = mode, partition

    def read(self, most: int) -> Reads | None:
        deliveries: list[Reads] = []
        num_left = self._partition.count
        while num_left and (delivery := self._mode.read(num_left)) is not None:
            deliveries.append(delivery)
            num_left -= len(delivery.bookmarks)
        if not deliveries:
            return None
        cursor, end_of_sweep = deliveries[-1].bookmarks[-1], any(True in reads.ends_of_sweep for reads in deliveries)
        own = _own_of_round(deliveries, self._partition, end_of_sweep, cursor.position)
        return None if own is None else Reads.of(own, cursor)


@dataclasses.dataclass(eq=False)
class RoundsOfSweeps(ReadMode):
    """Deliver a partition's minibatch of each round; no round crosses the end of a sweep. (docs/timeline.md)

    Attributes:
        larger: Reads of a larger minibatch, over the whole data.
        smaller: Reads of a smaller minibatch.
        num_larger: Number of partitions that get a larger minibatch.
        num_dropped: Number of sequences that are not delivered.
        num_in_pool: Largest number of sequences in a pool of the order; 0: the order has no pools.
    """

    larger: WholeSequences
    smaller: WholeSequences
    num_larger: int
    partition: Partition
    num_dropped: int = 0
    num_in_pool: int = 0

    def __post_init__(self) -> None:
        self._reader = self.smaller.reader
        num_sequences, count = len(self._reader.lengths) - self.num_dropped, self.partition.count
        self._drops = self.partition.rounds == (count, "drop")
        if count > num_sequences and self._drops:
            why = "with remainder='drop' nothing would be delivered; remainder='repeat' gives a sequence to each"
            raise ConfigError(f"{count} partitions share {num_sequences} sequences: {why}", key="remainder")
        # A read passes more than its share if sequences are not delivered, and a budget has no share.
        self._goes_back = self.smaller.budget is not None or self.num_dropped > 0
        self._longest = 1 if self.larger.counts_sequences else int(self._reader.lengths.max(initial=1))
        # With at least this many sequences left in the sweep, enough for another round are left.
        self._num_certain = count + self.num_dropped + self.num_in_pool

    def read(self, most: int) -> Reads | None:
        begun: list[Reads] = []
        # The same number of reads as without partitions, so that no more chunks are needed at the same time.
        num_rounds = min(most // self.partition.count, self._num_reads_in_the_sweep() // self.partition.count - 1)
        # A call makes reads of a single size, but with larger shares a round has two sizes.
        if num_rounds > 1 and not self.num_larger:
            before = self._reader.cursor
            delivery = self.smaller.read(num_rounds * self.partition.count)
            is_near_end = delivery is None or delivery.selection.end_of_sweep or self._num_left < self._num_certain
            if self._goes_back and is_near_end:
                self._reader.rewind(before)
            elif delivery is not None and len(delivery.bookmarks) >= self.partition.count:
                return self._own_of_rounds(delivery)
            elif delivery is not None:
                begun = [delivery]
        selection = self._round(begun)
        return None if selection is None else Reads.of(selection, self._reader.cursor)

    def _own_of_rounds(self, delivery: Reads) -> Reads:
        """Return this partition's minibatches of the whole rounds of a delivery, and go back to the end of the last."""
        selection, bounds = delivery.selection, delivery.bounds
        index, count, cursors = self.partition.index, self.partition.count, [*delivery.bookmarks]
        ends = cursors[count - 1 :: count]
        if len(cursors) % count:
            self._reader.rewind(ends[-1])
        begins = np.array(bounds[:-1][index::count][: len(ends)])
        sizes = np.array(bounds[1:][index::count][: len(ends)]) - begins
        own_bounds = np.cumsum([0, *sizes])
        rows = np.arange(own_bounds[-1]) + np.repeat(begins - own_bounds[:-1], sizes)
        own = Selection(selection.sequences[rows], selection.chunks[rows], False, ends[-1].position)
        return Reads(own, own_bounds.tolist(), [False] * len(ends), ends)

    def _round(self, deliveries: list[Reads]) -> Selection | None:
        """Read the rest of the next round, and return this partition's minibatch; None: the data have ended."""
        while True:
            end_of_sweep = self._fill(deliveries)
            if _num_reads(deliveries) == self.partition.count and self._drops:
                end_of_sweep = end_of_sweep or self._pass_remainder()
            own = _own_of_round(deliveries, self.partition, end_of_sweep, self._reader.cursor.position)
            # If the remainder is dropped, the next sweep follows, unless the data have ended.
            if own is not None or not end_of_sweep:
                return own
            deliveries = []

    def _fill(self, deliveries: list[Reads]) -> bool:
        """Read a minibatch for each partition that has none, until the sweep ends; return whether it ended."""
        num_read, count = _num_reads(deliveries), self.partition.count
        while num_read < count:
            mode, end = (self.larger, self.num_larger) if num_read < self.num_larger else (self.smaller, count)
            delivery = mode.read(min(end - num_read, self._num_reads_in_the_sweep()))
            if delivery is None:
                break
            deliveries.append(delivery)
            num_read += len(delivery.bookmarks)
            if delivery.selection.end_of_sweep:
                return True
        return False

    def _num_reads_in_the_sweep(self) -> int:
        """Return a number of reads that cannot reach the end of the sweep; 1 if even the next read may reach it."""
        if self._goes_back:
            return _LARGEST_SHARE  # `read` goes back if it comes too close to the end of the sweep
        num_samples, position = self._reader.num_samples, self._reader.cursor.position
        left = self._num_left if self.larger.counts_sequences else num_samples - position % num_samples
        # A read passes at most its share or, if it is longer, a single sequence.
        return max((left - 1) // max(self.larger.share, self._longest), 1)

    @property
    def _num_left(self) -> int:
        """Number of sequences in the sweep from the reader's position, or from the beginning of its pool."""
        return len(self._reader.lengths) - self._reader.cursor.index

    def _pass_remainder(self) -> bool:
        """Skip the remainder of the sweep, if nothing else is left; return whether this ended the sweep."""
        if self._num_left >= self._num_certain:
            return False
        before, num_left = self._reader.cursor, 0
        while num_left < self.partition.count and (rest := self.smaller.read(1)) is not None:
            num_left += len(rest.selection.sequences)
            if rest.selection.end_of_sweep and num_left < self.partition.count:
                return True
        self._reader.rewind(before)
        return False


def _num_reads(deliveries: list[Reads]) -> int:
    return sum(len(delivery.bookmarks) for delivery in deliveries)


def _own_of_round(deliveries: list[Reads], partition: Partition, end_of_sweep: bool, position: int) -> Selection | None:
    """Return the minibatch of a partition in the reads of a round; None: the partition gets nothing.

    If a round ends early, its first partitions get the minibatches, or balanced partitions divide them.
    """
    index, num_read = partition.index, _num_reads(deliveries)
    if num_read < partition.count and partition.rounds is not None:
        return _cut(deliveries, partition, end_of_sweep, position)
    for selection, bounds, *_ in deliveries:
        if index < len(bounds) - 1:
            if len(bounds) == 2:
                return dataclasses.replace(selection, end_of_sweep=end_of_sweep, position=position)
            part = slice(bounds[index], bounds[index + 1])
            return Selection(selection.sequences[part], selection.chunks[part], end_of_sweep, position)
        index -= len(bounds) - 1
    return None


def _cut(deliveries: list[Reads], partition: Partition, end_of_sweep: bool, position: int) -> Selection | None:
    """Cut the last minibatches of a sweep so that each partition gets one, and return it; None: nothing to deliver."""
    minibatches: list[npt.NDArray[np.int64]] = []
    for selection, bounds, *_ in deliveries:
        minibatches += np.split(np.stack([selection.sequences, selection.chunks]), bounds[1:-1], axis=1)
    num_left = sum(minibatch.shape[1] for minibatch in minibatches)
    if num_left < partition.count and (not num_left or partition.rounds == (partition.count, "drop")):
        return None
    if num_left < partition.count:
        # With remainder='repeat', several partitions get the same sequence.
        sequences, chunks = np.concatenate(minibatches, axis=1)[:, [partition.index % num_left]]
        return Selection(sequences, chunks, end_of_sweep, position)
    while len(minibatches) < partition.count:
        longest = max(range(len(minibatches)), key=lambda index: minibatches[index].shape[1])
        half = (minibatches[longest].shape[1] + 1) // 2
        minibatches[longest : longest + 1] = [minibatches[longest][:, :half], minibatches[longest][:, half:]]
    sequences, chunks = minibatches[partition.index]
    return Selection(sequences, chunks, end_of_sweep, position)


class Budgets:
    """The modes of reading by budget of one timeline with a window; None: in order."""

    def __init__(self, window: Window | None) -> None:
        self._window = window
        self._warned: set[int] = set()  # each change of size checks again, but the same warning comes once

    def mode(self, reader: TimelineReader, budget: Budget, partition: Partition) -> WholeSequences:
        """Return the mode of reading by the budget of all partitions, and refuse what these data do not allow."""
        if budget.pool is not None:
            self.check_pool(reader, budget, budget.pool)
            if partition.is_balanced and partition.of_chunks.count > 1 and (budget.rows or budget.balance):
                name, why = ("rows", "rows mix chunks") if budget.rows else ("balance", "whole chunks are dealt")
                message = f"deal='chunk' and {name} exclude each other: {why}; use deal='length'"
                raise ConfigError(message, key="deal")
        share = budget.share(partition.num_shares)
        self.check(reader.lengths, share, partition)
        return WholeSequences.of(reader, NO_LIMIT, partition, budget=share.for_core())

    def rounds(
        self, reader: TimelineReader, budget: Budget, partition: Partition, num_left_out: int = 0
    ) -> RoundsOfSweeps:
        """Return the mode of reading by a budget in rounds. It raises the same errors as `mode`."""
        mode, share = self.mode(reader, budget, partition), budget.share(partition.num_shares)
        num_dropped = int(np.count_nonzero(reader.lengths > share.longest)) if share.oversize == "drop" else 0
        # Shares of a budget are rounded down, so no partition gets a larger minibatch than another.
        num_in_pool = (budget.pool or 0) * (_POOLS_OF_A_SERIES if budget.carry else 1)
        return RoundsOfSweeps(mode, mode, 0, partition, num_dropped + num_left_out, num_in_pool)

    def go_to_batch(self, reader: TimelineReader, settings: tuple[Size, Partition], batch: int) -> None:
        """Go to a minibatch of the pool or series of pools that begins at the reader's position, if it is there."""
        if not batch:
            return
        size, partition = settings
        if not isinstance(size, Budget) or size.pool is None:
            raise damaged("batch", batch, "no number, because the minibatches come from no pool")
        # The read cuts the pools up to there. If they end earlier, it goes to their end.
        reader.set_batch(batch - 1)
        self.mode(reader, size, partition).read(1)
        if reader.cursor.batch != batch:
            raise damaged("batch", batch, "the number of a minibatch of the pool")

    def check_pool(self, reader: TimelineReader, budget: Budget, pool: int) -> None:
        """Refuse a pool in file order, and a pool that is larger than the window."""
        if self._window is None:
            why = "because it changes the order of sequences: leave out randomize=False, or leave out pool"
            raise ConfigError(f"pool={pool} needs a randomized order, {why}", key="pool")
        whole = reader.num_samples if self._window.unit == "samples" else len(reader.chunk_starts) - 1
        # The window spans all data, so a pool needs no further chunks.
        if self._window.size >= whole:
            return
        total = reader.num_samples if budget.pool_unit == "samples" else len(reader.lengths)
        # About one window of data, so that a pool and its window need at most two windows of chunks in memory.
        largest = max(total * self._window.size // whole, 1)
        if pool > largest:
            unit, window = budget.pool_unit, f"the randomization window of {self._window.size} {self._window.unit}"
            advice = "make the pool smaller or the window larger"
            message = f"pool={pool} {unit} is larger than {window}, which holds about {largest} {unit}: {advice}"
            raise ConfigError(message, key="pool")

    def check(self, lengths: npt.NDArray[np.unsignedinteger[Any]], share: Budget, partition: Partition) -> None:
        """Refuse data of which a budget would deliver nothing, and sequences that exceed it by themselves.

        It warns about these sequences if the budget drops them.
        """
        if share.drop_last:
            self._check_full(len(lengths), share, partition)
        longest = share.longest
        if share.oversize == "alone" or int(lengths.max()) <= longest:
            return
        oversize = lengths > longest
        num_oversize = int(np.count_nonzero(oversize))
        if share.oversize == "error":
            first = int(oversize.argmax())
            found = f"sequence number {first} has {lengths[first]} samples, and {num_oversize} of {len(lengths)}"
            limit = f"the {longest} samples that fit the budget of a partition"
            advice = "increase the budget, or choose oversize='alone' or oversize='drop'"
            raise ConfigError(f"{found} sequences are longer than {limit}; {advice}", key="oversize")
        if num_oversize == len(lengths):
            message = f"oversize='drop' drops all {num_oversize} sequences: each is longer than {longest} samples"
            raise ConfigError(message, key="oversize")
        if longest not in self._warned:
            self._warned.add(longest)
            drops = "drops up to" if share.schedules else "drops"
            message = "the budget %s %d of %d sequences in each sweep: they are longer than %d samples"
            logger.warning(message, drops, num_oversize, len(lengths), longest)

    @staticmethod
    def _check_full(num_in_sweep: int, share: Budget, partition: Partition) -> None:
        """Refuse a number of sequences that no minibatch can have, and minibatches that are cut after the plan."""
        if partition.rounds is not None:
            why = "the last round of a sweep is cut so that each partition gets a minibatch; use a GlobalPartition"
            raise ConfigError(f"drop_last and balanced partitions exclude each other: {why}", key="drop_last")
        # With other limits, the order of the sequences decides whether a minibatch is full.
        samples, sequences, padded, *_ = share.numbers()
        if sequences is None or samples is not None or padded is not None:
            return
        where, num_sequences = "sweep", num_in_sweep
        if share.pool is not None and share.pool_unit == "sequences" and share.pool < num_in_sweep:
            where, num_sequences = "pool", share.pool
        if num_sequences < sequences:
            why = f"a {where} has {num_sequences} sequences, and a minibatch of a partition needs {sequences}"
            advice = "make the minibatches smaller, or leave out drop_last"
            raise ConfigError(f"drop_last leaves out all minibatches: {why}; {advice}", key="drop_last")


# Global partitions dealt ahead of need, so that a rank loads only its own sequences of a chunk.
#
# ::
#
#     reads of all ranks   |--|--|--|--|--|--|--|--|--|--|       one reader makes them, and deals them
#                             ^ delivered    ^ dealt
#     ranks of chunks       complete    | the window there       no later read has a sequence of a complete chunk
#
# A *part* is a partition's share of a chunk in one sweep. It can be loaded once its chunk is complete, that is, once
# the dealt reads reach so far that the window has passed the chunk. The minibatches of a pool have sequences of all its
# chunks, so the whole pool is dealt before its first minibatch is delivered. Until they are delivered, dealt reads take
# about 20 bytes for each sequence of this partition.
#
# Ranks that share packed rows are dealt the same rows, and each keeps the sequences that overlap its slices. The order
# has the lengths of all, so a rank knows the cells of its sequences without the others' samples.
#
# Invariant: which sequences a read delivers does not depend on how far reads were dealt.

_READS_AT_ONCE = 256
# After the last sweep: when the data have ended, all chunks are complete.
_END = (2**64, 0)


class _Group(NamedTuple):
    """A partition's share of some reads that were dealt at once.

    Attributes:
        before: Position of the reader before them.
        dealt: The sequences of all reads, the part of each, and its index in its chunk.
        bounds: First sequence of each read and, last, the number of sequences.
        ends_of_sweep: For each read whether it reached or crossed the end of a sweep.
        cursors: Position of the reader after each read.
        rows: All sequences of the rows, if the partition has slices of them.
    """

    before: Cursor
    dealt: _core.Dealt
    bounds: list[int]
    ends_of_sweep: list[bool]
    cursors: list[Cursor]
    rows: RowsOfReads | None


class DealtAhead(ReadMode):
    """Deliver a partition's share of global minibatches, and know its share of a chunk before the chunk is needed.

    Args:
        mode: Reads the global minibatches of this worker.
        reader: The core's reader, over the whole data. Nothing else moves it while this object is in use.
        size: As for `DealtMinibatches`.

    Attributes:
        rounds_to_pass: Global minibatches of other workers between the last delivered one and the next of this worker.
    """

    def __init__(self, mode: InTurn, reader: TimelineReader, partition: GlobalPartition, size: Size) -> None:
        self._mode, self._reader, self._partition = mode, reader, partition
        self._num_chunks = len(reader.chunk_starts) - 1
        self.rounds_to_pass = mode.rounds_to_pass
        self._budget = size.for_core() if isinstance(size, Budget) else None
        self._row_length = row_length_of(size)
        self._shares = _core.Shares(reader.num_samples, reader.chunk_starts, self._budget)
        self._groups: deque[_Group] = deque()
        self._next = (0, 0)  # the group and the read to deliver
        self._cursor: Cursor | None = None
        self._complete = (0, 0)  # all chunks before this sweep and rank are complete
        self._forgotten = (0, 0)
        self._held: tuple[int, int] | None = None
        self._pool = (-1, 0)  # where the last pool begins that has begun, and its last rank
        self._is_sound = True

    @property
    def cursor(self) -> Cursor:
        """The state of the reader after the last delivered read."""
        return self._reader.cursor if self._cursor is None else self._cursor

    @property
    def ranks(self) -> tuple[int, int, int] | None:
        """The sweep of the next sequence, its rank, and the last rank of a pool that has begun; None: data have ended.

        The last rank may be that of a later sequence. It is known because the whole pool is dealt.
        """
        return self._ranks_at(self.cursor, self._next)

    def _ranks_at(self, cursor: Cursor, following: tuple[int, int]) -> tuple[int, int, int] | None:
        """Return `ranks` at a cursor, which is followed by a group and a read of it."""
        where = self._reader.rank_at(cursor)
        if where is None or not cursor.batch:
            return None if where is None else (*where, where[1])
        if self._pool[0] != cursor.position:
            later = self._after_pool(cursor, *following)
            after = None if later is None else self._reader.rank_at(later)
            last = after[1] if after is not None and after[0] == where[0] else self._num_chunks - 1
            self._pool = cursor.position, last
        return *where, self._pool[1]

    def _after_pool(self, cursor: Cursor, number: int, first: int) -> Cursor | None:
        """Return where the first read from these ends that is not inside a pool; None: no read is.

        All minibatches of a pool but the last end at its beginning, and the last may be a read of another worker.
        """
        while number < len(self._groups) or self._deal():
            for later in self._groups[number].cursors[first:]:
                if later.position > cursor.position:
                    return later
            number, first = number + 1, 0
        return None

    def read(self, most: int) -> Reads | None:
        number, first = self._next
        if number == len(self._groups) and not self._deal():
            self._cursor, self.rounds_to_pass = self._reader.cursor, self._mode.rounds_to_pass
            return None
        group = self._groups[number]
        last = min(first + most, len(group.cursors))
        begin, end = group.bounds[first], group.bounds[last]
        cursor, dealt = group.cursors[last - 1], group.dealt
        following = (number + 1, 0) if last == len(group.cursors) else (number, last)
        # The index of a sequence in its part is known only once all sequences of the part are known. Of the chunks that
        # were in the window before the cursor, or are of its pool, no later read may have a sequence.
        where = self._ranks_at(cursor, following)
        self._deal_until(_END if where is None else (where[0], self._reader.chunks_at(*where, 0, 1)[1]))
        parts = dealt.parts[begin:end]
        refs = ChunkRefs.found(self._shares.refs(parts, dealt.indices[begin:end]))
        ends_of_sweep = group.ends_of_sweep[first:last]
        rows = None if group.rows is None else group.rows.between(first, last)
        selection = Selection(
            dealt.sequences[begin:end], parts, ends_of_sweep[-1], cursor.position, None, refs, rows=rows
        )
        bounds = [bound - begin for bound in group.bounds[first : last + 1]]
        self._next, self._cursor, self.rounds_to_pass = following, cursor, self._partition.num_workers - 1
        return Reads(selection, bounds, ends_of_sweep, group.cursors[first:last])

    def pass_over(self, most: int, until: int) -> int:
        # The reader has run ahead as soon as anything is dealt.
        return self._mode.pass_over(most, until) if not self._groups and self._cursor is None else 0

    def go_back(self, cursor: Cursor, rounds_to_pass: int) -> bool:
        """Go back to where a delivered read began or ended; return False if that is no longer known."""
        for number, group in enumerate(self._groups if self._is_sound else ()):
            points = [group.before, *group.cursors]
            if cursor in points:
                read = points.index(cursor)
                self._next = (number, read) if read < len(group.cursors) else (number + 1, 0)
                self._cursor, self.rounds_to_pass = cursor, rounds_to_pass
                return True
        return False

    def hold(self, cursor: Cursor) -> None:
        """Forget what is no longer needed to go back to this cursor or to a later cursor."""
        while self._next[0] and self._groups[0].cursors[-1].position < cursor.position:
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
            # This also forgets all parts of earlier sweeps.
            self._shares.forget(sweep, self._parts(sweep, chunks))
            self._forgotten = (sweep, rank)

    def part(self, chunk_id: int) -> ChunkPart:
        """Return the part with an id that `filled` returned."""
        sweep, own_id = divmod(chunk_id, self._num_chunks)
        return ChunkPart(own_id, self._shares.part(chunk_id), sweep)

    def ahead(self, sweep: int, rank: int, chunks: list[int]) -> Iterator[int]:
        """Yield the ids of the parts of chunks from a rank of a sweep on; deal no further than the caller iterates."""
        num_complete = min(max(self._complete[1] - rank, 0), len(chunks))
        if self._complete[0] != sweep:
            num_complete = len(chunks) if self._complete[0] > sweep else 0
        yield from self.filled(sweep, rank + num_complete, chunks[:num_complete])
        for number in range(num_complete, len(chunks)):
            yield from self.filled(sweep, rank + number + 1, chunks[number : number + 1])

    def filled(self, sweep: int, next_rank: int, chunks: list[int]) -> list[int]:
        """Return the ids of the parts of chunks before the rank `next_rank` of a sweep, without empty parts."""
        self._deal_until((sweep, next_rank))
        return self._shares.filled(self._parts(sweep, chunks))

    def _parts(self, sweep: int, chunks: list[int]) -> list[int]:
        return [sweep * self._num_chunks + chunk for chunk in chunks]

    def _deal_until(self, where: tuple[int, int]) -> None:
        while self._complete < where and self._deal():
            pass

    def _window_begin(self, where: tuple[int, int]) -> tuple[int, int]:
        if where[1] == 0:
            return where
        chunks, next_rank = self._reader.chunks_at(*where, where[1], 0, 1)
        return where[0], next_rank - len(chunks)

    def _deal(self) -> bool:
        if self._complete == _END:
            return False
        self._is_sound = False  # in case an exception comes before the end
        before = self._reader.cursor
        self._cursor = self._cursor or before  # a plan may deal before the first read
        delivery = self._mode.read(_READS_AT_ONCE)
        where = None
        if delivery is not None:
            selection, bounds, ends_of_sweep, cursors = delivery
            # A minibatch of a pool, except for the last, ends where the pool begins, which may be where its sweep does.
            ends = [cursor.position + (cursor.batch > 0) for cursor in cursors]
            partition, rows = self._partition, None
            if partition.part != WHOLE_ROWS:
                selection, bounds, rows = self._slices(selection, bounds)
                partition = GlobalPartition()  # keeps all of them
            dealt = self._shares.deal(selection, bounds, ends, partition, partition.deal == "area")
            self._groups.append(_Group(before, dealt, dealt.bounds, ends_of_sweep, [*cursors], rows))
            where = self._reader.rank
        self._complete = _END if where is None else self._window_begin(where)
        self._is_sound = True
        return delivery is not None

    def _slices(self, selection: Selection, bounds: list[int]) -> tuple[Selection, list[int], RowsOfReads]:
        """Deal rows, and return the sequences in this rank's slices of them, their bounds, and all sequences."""
        assert selection.loads is not None
        count, index, part = self._partition.count, self._partition.index, self._partition.part
        of_rows, row_bounds = _core.deal(selection.loads, bounds, count, index, False, self._budget)
        sequences = selection.sequences[of_rows]
        lengths = self._reader.lengths[sequences].astype(np.uint32)
        held, own_bounds = _core.deal_slices(lengths, row_bounds, part[1], part[0], self._row_length)
        is_held = np.zeros(len(sequences), np.bool_)
        is_held[held] = True
        kept = of_rows[held]
        columns = selection.sequences[kept], selection.chunks[kept]
        own = Selection(*columns, selection.end_of_sweep, selection.position, loads=selection.loads[kept])
        return own, own_bounds, RowsOfReads(sequences, lengths, is_held, row_bounds, part, self._row_length)


# A source stops asking once its room is full, so the core lists only some chunks in a call.
_NUM_CHUNKS_AT_ONCE = 64

_Where: TypeAlias = tuple[int, int, int] | None
"""Sweep and rank of the next sequence, and the last rank of its pool; None: the data have ended."""


class Needs:
    """Chunks of a partition from which the next sequences can come: in the window, and after it.

    If reads are `dealt` ahead, they are the parts to load of these chunks.
    """

    def __init__(self, reader: TimelineReader) -> None:
        self._reader = reader
        # The window's chunks at a position in the order, and the rank after them; kept until the position changes.
        self._window_key: object = None
        self._window_chunks: list[int] = []
        self._next_rank = 0
        self._plan_key: object = None
        self._plan = Plan([], 0)

    def plan(self, partition: Partition, dealt: DealtAhead | None, of_slots: Sequence[int]) -> Plan:
        """Return the chunks that are needed now; slots continue sequences of the chunks `of_slots`."""
        where, needed = self._window(partition, dealt)
        key = (self._window_key, tuple(of_slots))
        if key != self._plan_key:
            self._plan_key = key
            # Slots come first, because the next minibatch continues their sequences.
            chunks = list(dict.fromkeys([*of_slots, *needed])) if of_slots else needed
            self._plan = Plan(chunks, self._plan.version + 1, dealt, where is None)
        return self._plan

    def _window(self, partition: Partition, dealt: DealtAhead | None) -> tuple[_Where, list[int]]:
        """Return where the next sequence is, and the chunks in the window there."""
        where = self._reader.ranks if dealt is None else dealt.ranks
        key = (where, partition, dealt)
        if key != self._window_key:
            chunks: list[int] = []
            next_rank = 0
            if where is not None:
                chunks, next_rank = self._reader.chunks_at(*where, partition.index, partition.count)
                chunks = chunks if dealt is None else dealt.filled(where[0], next_rank, chunks)
            self._window_key, self._window_chunks, self._next_rank = key, chunks, next_rank
        return where, self._window_chunks

    def ahead(self, partition: Partition, dealt: DealtAhead | None, end: int) -> Iterator[int]:
        """Yield the chunks that are needed afterwards, up to the end of the next sweep or of the data, `end`."""
        # This also sets the rank after the window.
        where, _ = self._window(partition, dealt)
        if where is None:
            return
        current, rank, share = where[0], self._next_rank, (partition.index, partition.count)
        num_chunks = len(self._reader.chunk_starts) - 1
        for sweep in (current, current + 1):
            if sweep * self._reader.num_samples >= end:
                return
            while rank < num_chunks:
                chunks, next_rank = self._reader.chunks_from(sweep, rank, _NUM_CHUNKS_AT_ONCE, *share)
                yield from chunks if dealt is None else dealt.ahead(sweep, rank, chunks)
                rank = next_rank
            rank = 0

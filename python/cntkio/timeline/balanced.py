"""Rounds of balanced partitions: minibatches of the whole data, one dealt to each partition.

(docs/timeline.md, "Balanced partitions")
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from cntkio._core import TimelineReader
from cntkio.errors import ConfigError
from cntkio.timeline.modes import Delivery, WholeSequences
from cntkio.timeline.partition import BalancedPartition
from cntkio.timeline.selection import Selection

_LARGEST_SHARE = 2**63 - 1


class BalancedRounds:
    """Deliver a partition's minibatch of each round that falls to this worker.

    Args:
        reader: The core's reader, over the whole data.
        num_sequences: Sequences in a sweep.
        size: Samples of a round, or sequences if those are counted.
        partition: The partition, and the worker in it.
        counts_sequences: Whether `size` counts sequences, not samples.

    Raises:
        ConfigError: Remainders are dropped, and the whole sweep is a remainder.

    Attributes:
        rounds_to_pass: Rounds of other workers before the next round of this worker.
    """

    def __init__(
        self,
        reader: TimelineReader,
        num_sequences: int,
        size: int,
        partition: BalancedPartition,
        *,
        counts_sequences: bool,
    ) -> None:
        if partition.count > num_sequences and partition.remainder == "drop":
            raise ConfigError(
                f"{partition.count} partitions share {num_sequences} sequences: with remainder='drop' nothing would be "
                f"delivered; remainder='repeat' gives a sequence to each",
                key="remainder",
            )
        self._reader = reader
        self._num_sequences = num_sequences
        self._counts_sequences = counts_sequences
        self._longest = 1 if counts_sequences else int(reader.lengths.max(initial=1))
        self._partition = partition
        self._num_larger = size % partition.count
        self._larger, self._smaller = (
            WholeSequences(reader, max(1, share), counts_sequences=counts_sequences)
            for share in (size // partition.count + 1, size // partition.count)
        )
        self.rounds_to_pass = partition.worker

    def read(self, most: int) -> Delivery | None:
        begun: list[Delivery] = []
        # The same number of reads as without partitions, so that no more chunks are needed at the same time.
        num_rounds = min(most // self._partition.count, self._num_reads_in_the_sweep() // self._partition.count - 1)
        if num_rounds > 1 and not self._num_larger and self._partition.num_workers == 1:
            delivery = self._smaller.read(num_rounds * self._partition.count)
            if delivery is not None and len(delivery.cursors) >= self._partition.count:
                return self._own_of_rounds(delivery)
            begun = [] if delivery is None else [delivery]
        while True:
            selection = self._round(begun)
            begun = []
            if selection is None:
                return None
            if not self.rounds_to_pass:
                self.rounds_to_pass = self._partition.num_workers - 1
                return Delivery(
                    selection, [0, len(selection.sequences)], [selection.end_of_sweep], [self._reader.cursor]
                )
            self.rounds_to_pass -= 1

    def _own_of_rounds(self, delivery: Delivery) -> Delivery:
        """Return this partition's minibatches of the whole rounds of a delivery, and go back to the end of the last."""
        selection, bounds, _, cursors = delivery
        index, count = self._partition.index, self._partition.count
        ends = cursors[count - 1 :: count]
        if len(cursors) % count:
            self._reader.rewind(ends[-1])
        begins = np.array(bounds[:-1][index::count][: len(ends)])
        sizes = np.array(bounds[1:][index::count][: len(ends)]) - begins
        own_bounds = np.cumsum([0, *sizes])
        rows = np.arange(own_bounds[-1]) + np.repeat(begins - own_bounds[:-1], sizes)
        own = Selection(selection.sequences[rows], selection.chunks[rows], False, ends[-1][0])
        return Delivery(own, own_bounds.tolist(), [False] * len(ends), ends)

    def _round(self, begun: list[Delivery]) -> Selection | None:
        """Read the rest of the next round, and return this partition's minibatch.

        None: the data have ended.
        """
        index, count, drops = self._partition.index, self._partition.count, self._partition.remainder == "drop"
        while True:
            deliveries, end_of_sweep = self._dealt(begun)
            begun = []
            if sum(len(delivery.ends_of_sweep) for delivery in deliveries) == count:
                if drops and not end_of_sweep:
                    end_of_sweep = self._pass_remainder()
                return _part(deliveries, index, end_of_sweep, self._reader.cursor[0])
            num_left = sum(len(delivery.selection.sequences) for delivery in deliveries)
            if num_left >= count or (num_left and not drops):
                sequences, chunks = self._cut(deliveries)[index]
                return Selection(sequences, chunks, end_of_sweep, self._reader.cursor[0])
            if not end_of_sweep:
                return None

    def _dealt(self, begun: list[Delivery]) -> tuple[list[Delivery], bool]:
        """Read a minibatch for each partition until the sweep ends; return them, and whether the sweep ended."""
        deliveries = list(begun)
        num_read, count = sum(len(delivery.cursors) for delivery in begun), self._partition.count
        while num_read < count:
            mode, end = (self._larger, self._num_larger) if num_read < self._num_larger else (self._smaller, count)
            delivery = mode.read(min(end - num_read, self._num_reads_in_the_sweep()))
            if delivery is None:
                break
            deliveries.append(delivery)
            num_read += len(delivery.ends_of_sweep)
            if delivery.selection.end_of_sweep:
                return deliveries, True
        return deliveries, False

    def _num_reads_in_the_sweep(self) -> int:
        """Return a number of reads that cannot reach the end of the sweep; 1 if even the next read may reach it."""
        position, _, index, _, _ = self._reader.cursor
        num_samples = self._reader.num_samples
        left = self._num_sequences - index if self._counts_sequences else num_samples - position % num_samples
        return max((left - 1) // max(self._larger.share, self._longest), 1)

    def _cut(self, deliveries: list[Delivery]) -> list[npt.NDArray[np.int64]]:
        """Cut the last minibatches of a sweep so that each partition gets one: rows of sequences and their chunks."""
        count = self._partition.count
        minibatches: list[npt.NDArray[np.int64]] = []
        for selection, bounds, *_ in deliveries:
            minibatches += np.split(np.stack([selection.sequences, selection.chunks]), bounds[1:-1], axis=1)
        num_left = sum(minibatch.shape[1] for minibatch in minibatches)
        if num_left < count:
            left = np.concatenate(minibatches, axis=1)
            return [left[:, [index % num_left]] for index in range(count)]
        while len(minibatches) < count:
            longest = max(range(len(minibatches)), key=lambda index: minibatches[index].shape[1])
            half = (minibatches[longest].shape[1] + 1) // 2
            minibatches[longest : longest + 1] = [minibatches[longest][:, :half], minibatches[longest][:, half:]]
        return minibatches

    def _pass_remainder(self) -> bool:
        """Skip the remainder of the sweep, if nothing else is left; return whether this ended the sweep."""
        index = self._reader.cursor[2]
        if self._num_sequences - index >= self._partition.count:
            return False
        rest = WholeSequences(self._reader, _LARGEST_SHARE).read(1)
        return rest is not None and rest.selection.end_of_sweep


def _part(deliveries: list[Delivery], index: int, end_of_sweep: bool, position: int) -> Selection:
    """Return one of the minibatches of several deliveries."""
    for selection, bounds, *_ in deliveries:
        if index >= len(bounds) - 1:
            index -= len(bounds) - 1
        elif len(bounds) == 2:
            return dataclasses.replace(selection, end_of_sweep=end_of_sweep, position=position)
        else:
            part = slice(bounds[index], bounds[index + 1])
            return Selection(selection.sequences[part], selection.chunks[part], end_of_sweep, position)
    raise IndexError(index)

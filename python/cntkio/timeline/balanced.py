"""Rounds of balanced partitions: minibatches of the whole data, dealt one to each.

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
        counts_sequences: Whether `size` counts sequences.

    Raises:
        ConfigError: The remainder is dropped, and it is everything.

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
                f"delivered; remainder='repeat' gives one to each",
                key="remainder",
            )
        self._reader = reader
        self._num_sequences = num_sequences
        self._partition = partition
        self._num_larger = size % partition.count
        self._larger, self._smaller = (
            WholeSequences(reader, max(1, share), counts_sequences=counts_sequences)
            for share in (size // partition.count + 1, size // partition.count)
        )
        self.rounds_to_pass = partition.worker

    def read(self, most: int) -> Delivery | None:
        while True:
            selection = self._round()
            if selection is None:
                return None
            if not self.rounds_to_pass:
                self.rounds_to_pass = self._partition.num_workers - 1
                return Delivery(
                    selection, [0, len(selection.sequences)], [selection.end_of_sweep], [self._reader.cursor]
                )
            self.rounds_to_pass -= 1

    def _round(self) -> Selection | None:
        """Read the next round, and return this partition's minibatch; None: the data have ended."""
        index, count, drops = self._partition.index, self._partition.count, self._partition.remainder == "drop"
        while True:
            dealt, end_of_sweep = self._dealt()
            if len(dealt) == count:
                if drops and not end_of_sweep:
                    end_of_sweep = self._pass_remainder()
                return dataclasses.replace(dealt[index], end_of_sweep=end_of_sweep, position=self._reader.cursor[0])
            num_left = sum(len(selection.sequences) for selection in dealt)
            if num_left >= count or (num_left and not drops):
                sequences, chunks = self._cut(dealt)[index]
                return Selection(sequences, chunks, end_of_sweep, self._reader.cursor[0])
            if not end_of_sweep:
                return None

    def _dealt(self) -> tuple[list[Selection], bool]:
        """Read a minibatch for each partition, as long as the sweep lasts; return them, and whether the sweep ended."""
        dealt: list[Selection] = []
        for index in range(self._partition.count):
            delivery = (self._larger if index < self._num_larger else self._smaller).read(1)
            if delivery is None:
                break
            dealt.append(delivery.selection)
            if delivery.selection.end_of_sweep:
                return dealt, True
        return dealt, False

    def _cut(self, dealt: list[Selection]) -> list[npt.NDArray[np.int64]]:
        """Cut the last minibatches of a sweep so that each partition gets one of them: rows of sequences and chunks."""
        count = self._partition.count
        minibatches = [np.stack([selection.sequences, selection.chunks]) for selection in dealt]
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
        """Skip the remainder of the sweep, if that is all that is left; return whether this ended the sweep."""
        index = self._reader.cursor[2]
        if self._num_sequences - index >= self._partition.count:
            return False
        rest = WholeSequences(self._reader, _LARGEST_SHARE).read(1)
        return rest is not None and rest.selection.end_of_sweep

"""Global partitions: the sequences of each global minibatch are dealt to all partitions.

(docs/timeline.md, "Global partitions")
"""

from __future__ import annotations

import dataclasses

import numpy as np

from cntkio import _core
from cntkio._core import TimelineReader
from cntkio.errors import ConfigError
from cntkio.timeline.modes import Delivery, ReadMode
from cntkio.timeline.partition import GlobalPartition, Partition
from cntkio.timeline.selection import ChunkRefs, Selection


class DealtMinibatches:
    """Deliver a partition's share of each global minibatch that falls to this worker.

    Args:
        mode: Reads global minibatches; with ``deal="chunk"`` the partition's share of them.
        reader: The core's reader, over the whole data.
        partition: The partition, and the worker in it.

    Attributes:
        rounds_to_pass: Global minibatches of other workers before the next of this worker.
    """

    def __init__(self, mode: ReadMode, reader: TimelineReader, partition: GlobalPartition) -> None:
        self._mode = mode
        self._chunk_starts = reader.chunk_starts
        self._partition = partition
        self._is_shared = partition.count > 1 and partition.deal != "chunk"  # the core's reader gives the chunks' share
        self.rounds_to_pass = partition.worker

    def read(self, most: int) -> Delivery | None:
        while True:
            delivery = self._mode.read(most if self._partition.num_workers == 1 else 1)
            if delivery is None:
                return None
            if not self.rounds_to_pass:
                self.rounds_to_pass = self._partition.num_workers - 1
                return self._share(delivery) if self._is_shared else delivery
            self.rounds_to_pass -= 1

    def _share(self, delivery: Delivery) -> Delivery:
        selection, bounds, _, _ = delivery
        index, count = self._partition.index, self._partition.count
        if selection.parts is not None:
            own = self._slots(selection)
            return delivery._replace(selection=own, bounds=[0, len(own.sequences)])
        assert selection.lengths is not None
        kept, kept_bounds = _core.deal(selection.lengths, bounds, count, index, self._partition.deal == "area")
        sequences = selection.sequences[kept]
        refs = ChunkRefs(*_core.find_chunks(sequences, None, self._chunk_starts))
        own = dataclasses.replace(
            selection, sequences=sequences, chunks=selection.chunks[kept], refs=refs, lengths=None
        )
        return delivery._replace(selection=own, bounds=kept_bounds)

    def _slots(self, selection: Selection) -> Selection:
        """Return the slots of this partition: the partitions take slots in turn."""
        assert selection.parts is not None
        index, count = self._partition.index, self._partition.count
        own = selection.where(selection.parts.slot % count == index)
        assert own.parts is not None
        num_slots = self._partition.share(selection.parts.num_slots)
        parts = dataclasses.replace(own.parts, slot=own.parts.slot // count, num_slots=num_slots)
        return dataclasses.replace(own, parts=parts)


class MergedMinibatches:
    """Join minibatches that have too few sequences with the minibatch before them, or the first with the second.

    Consecutive small minibatches that together have enough sequences become a minibatch of their own, so that a read
    of an endless source returns.

    Args:
        mode: Reads minibatches of whole sequences.
        reader: The core's reader.
        least: Smallest number of sequences of a minibatch.
    """

    def __init__(self, mode: ReadMode, reader: TimelineReader, least: int) -> None:
        self._mode = mode
        self._reader = reader
        self._least = least

    def read(self, most: int) -> Delivery | None:
        delivery = self._mode.read(1)
        while delivery is not None and not self._are_enough(delivery):
            following = self._mode.read(1)
            if following is None:
                return delivery
            delivery = _joined(delivery, following)
        if delivery is None:
            return None
        before = end = self._reader.cursor
        small: Delivery | None = None
        while (following := self._mode.read(1)) is not None and not self._are_enough(following):
            small = following if small is None else _joined(small, following)
            if self._are_enough(small):
                small, end = None, before
                break
            end = self._reader.cursor
        self._reader.rewind(end)
        return delivery if small is None else _joined(delivery, small)

    def _are_enough(self, delivery: Delivery) -> bool:
        return len(delivery.selection.sequences) >= self._least


def _joined(first: Delivery, second: Delivery) -> Delivery:
    """Return two reads as one, without references to chunks: the table has them."""
    one, other = first.selection, second.selection
    sequences = np.concatenate([one.sequences, other.sequences])
    chunks = np.concatenate([one.chunks, other.chunks])
    of_both = [lengths for lengths in (one.lengths, other.lengths) if lengths is not None]
    lengths = np.concatenate(of_both) if len(of_both) == 2 else None
    end_of_sweep = one.end_of_sweep or other.end_of_sweep
    selection = Selection(sequences, chunks, end_of_sweep, other.position, lengths=lengths)
    return Delivery(selection, [0, len(sequences)], [end_of_sweep], second.cursors)


def check_deal(partition: GlobalPartition, *, is_randomized: bool, is_truncated: bool) -> None:
    """Refuse a deal that is not possible for a timeline.

    Raises:
        ConfigError: The deal needs whole sequences, or a randomized order.
    """
    if is_truncated and (partition.deal != "length" or partition.remainder != "empty"):
        option, value = ("deal", partition.deal) if partition.deal != "length" else ("remainder", partition.remainder)
        raise ConfigError(
            f"{option}={value!r} needs whole sequences; partitions take the slots of truncated minibatches in turn",
            key=option,
        )
    if partition.deal == "chunk" and not is_randomized:
        raise ConfigError(
            "deal='chunk' needs a randomized order: in file order a minibatch has sequences of only a few chunks, so "
            "most partitions would get nothing; use deal='length'",
            key="deal",
        )


def is_same_deal(settings: tuple[int, Partition] | None, size: int, partition: Partition) -> bool:
    """Return True if global minibatches stay the same as with former settings, perhaps dealt in another way."""
    if settings is None or partition.of_workers is None or settings[1].of_workers is None:
        return False
    return size == settings[0]

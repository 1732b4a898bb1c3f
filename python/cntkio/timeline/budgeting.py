"""`Budgets`: how a timeline reads by budget. (docs/batches.md)

The core cuts the order into minibatches (`crates/core/src/timeline/batches.rs`). This module checks a budget against
the data and the partition, and makes the mode of reading.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio._core import TimelineReader
from cntkio.errors import ConfigError
from cntkio.timeline.budget import NO_LIMIT, Budget, Size
from cntkio.timeline.modes import BalancedRounds, WholeSequences
from cntkio.timeline.partition import BalancedPartition, Partition
from cntkio.timeline.state import below
from cntkio.timeline.window import Window

logger = logging.getLogger("cntkio")


class Budgets:
    """The modes of reading by budget of one timeline.

    Args:
        window: Window of the timeline; None: in order.
    """

    def __init__(self, window: Window | None) -> None:
        self._window = window
        self._warned: set[int] = set()  # each change of size checks again, but the same warning comes once

    def mode(self, reader: TimelineReader, budget: Budget, partition: Partition) -> WholeSequences:
        """Return the mode of reading by the budget of all partitions.

        Raises:
            ConfigError: The budget is not possible for these data or this partition.
        """
        if budget.pool is not None:
            self._check_pool(reader, budget, budget.pool)
            if budget.rows is not None and partition.is_balanced and partition.of_chunks.count > 1:
                message = "deal='chunk' and rows exclude each other: rows mix chunks; use deal='length'"
                raise ConfigError(message, key="deal")
        share = budget.share(partition.num_shares)
        self.check(reader.lengths, share, partition)
        return WholeSequences.of(reader, NO_LIMIT, partition, budget=share.for_core())

    def rounds(self, reader: TimelineReader, budget: Budget, partition: BalancedPartition) -> BalancedRounds:
        """Return the mode of reading by a budget in rounds. It raises the same errors as `mode`."""
        mode, share = self.mode(reader, budget, partition), budget.share(partition.num_shares)
        num_dropped = int(np.count_nonzero(reader.lengths > share.longest)) if share.oversize == "drop" else 0
        # Shares of a budget are rounded down, so no partition gets a larger minibatch than another.
        return BalancedRounds(reader, (mode, mode), 0, partition, num_dropped=num_dropped, num_in_pool=budget.pool or 0)

    def go_to_batch(self, reader: TimelineReader, settings: tuple[Size, Partition], batch: int) -> None:
        """Go to a minibatch of the pool that begins at the reader's position.

        Raises:
            CheckpointError: The pool does not have that minibatch.
        """
        if not batch:
            return
        size, partition = settings
        num_batches, cursor = 0, reader.cursor
        if isinstance(size, Budget) and size.pool is not None:
            # A read cuts the whole pool, which shows how many minibatches it has.
            self.mode(reader, size, partition).read(1)
            num_batches = reader.num_batches
            reader.rewind(cursor)
        below("batch", batch, num_batches)
        reader.set_batch(batch)

    def _check_pool(self, reader: TimelineReader, budget: Budget, pool: int) -> None:
        if self._window is None:
            why = "because it changes the order of sequences: leave out randomize=False, or leave out pool"
            raise ConfigError(f"pool={pool} needs a randomized order, {why}", key="pool")
        num_chunks, in_samples = len(reader.chunk_starts) - 1, self._window.unit == "samples"
        whole = reader.num_samples if in_samples else num_chunks
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

        Raises:
            ConfigError: Such sequences are an error, or nothing would be left to deliver; or the budget leaves out
                minibatches, and the partition is balanced.
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
            raise ConfigError(
                f"sequence number {first} has {lengths[first]} samples, and {num_oversize} of {len(lengths)} sequences "
                f"are longer than the {longest} samples that fit the budget of a partition; increase the budget, or "
                "choose oversize='alone' or oversize='drop'",
                key="oversize",
            )
        if num_oversize == len(lengths):
            message = f"oversize='drop' drops all {num_oversize} sequences: each is longer than {longest} samples"
            raise ConfigError(message, key="oversize")
        if longest not in self._warned:
            self._warned.add(longest)
            message = "the budget drops %d of %d sequences in each sweep: they are longer than %d samples"
            logger.warning(message, num_oversize, len(lengths), longest)

    @staticmethod
    def _check_full(num_in_sweep: int, share: Budget, partition: Partition) -> None:
        """Refuse a number of sequences that no minibatch can have, and minibatches that are cut after the plan."""
        if isinstance(partition, BalancedPartition):
            why = "the last round of a sweep is cut so that each partition gets a minibatch; use a GlobalPartition"
            raise ConfigError(f"drop_last and balanced partitions exclude each other: {why}", key="drop_last")
        # With other limits, the order of the sequences decides whether a minibatch is full.
        if share.sequences is None or share.samples is not None or share.padded is not None:
            return
        where, num_sequences = "sweep", num_in_sweep
        if share.pool is not None and share.pool_unit == "sequences" and share.pool < num_in_sweep:
            where, num_sequences = "pool", share.pool
        if num_sequences < share.sequences:
            why = f"a {where} has {num_sequences} sequences, and a minibatch of a partition needs {share.sequences}"
            advice = "make the minibatches smaller, or leave out drop_last"
            raise ConfigError(f"drop_last leaves out all minibatches: {why}; {advice}", key="drop_last")

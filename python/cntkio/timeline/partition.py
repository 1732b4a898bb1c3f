"""Partitions: the shares of several readers of the same data. (docs/timeline.md, "Partitions")"""

from __future__ import annotations

import bisect
import dataclasses
from typing import Any, ClassVar, Literal

from cntkio.arguments import check_word, suggests_keywords, whole_number
from cntkio.errors import ConfigError

WHOLE_ROWS = (0, 1)
"""The part of packed rows that a single rank has."""
# The core adds an index and a count as unsigned 64-bit numbers.
_LARGEST_COUNT = 2**63 - 1
LARGEST_NUM_WORKERS = 2**16
"""Largest number of workers of a partition: each passes over the reads of all others."""
LARGEST_NUM_LANES = 2**16
"""Largest number of lanes: each takes a call of the core for some steps."""


@suggests_keywords
@dataclasses.dataclass(frozen=True, slots=True)
class Partition:
    """Share `index` of the data, out of `count` shares.

    Raises:
        ConfigError: `index` is outside ``0 .. count - 1``.

    Example:
        >>> Partition(2, 2)
        Traceback (most recent call last):
        cntkio.errors.ConfigError: partition_index 2 is outside 0..1: there are 2 partitions
    """

    index: int = 0
    count: int = 1

    is_balanced: ClassVar[bool] = False
    """True if all partitions get the same number of minibatches, so that no minibatch may be skipped."""

    def __post_init__(self) -> None:
        # `next_minibatch` makes a partition for each read, so plain ints are accepted with one comparison.
        if type(self.index) is not int or type(self.count) is not int:
            object.__setattr__(self, "index", whole_number("partition_index", self.index))
            object.__setattr__(self, "count", whole_number("num_data_partitions", self.count))
        if not 1 <= self.count <= _LARGEST_COUNT:
            raise ConfigError(f"num_data_partitions is {self.count}; expected at least 1", key="num_data_partitions")
        if not 0 <= self.index < self.count:
            message = f"partition_index {self.index} is outside 0..{self.count - 1}: there are {self.count} partitions"
            raise ConfigError(message, key="partition_index")

    def share(self, whole: int) -> int:
        """Return this partition's part of `whole`; the first partitions take the remainder.

        Example:
            >>> [Partition(index, 3).share(5) for index in range(3)]
            [2, 2, 1]
        """
        return whole // self.count + (self.index < whole % self.count)

    @property
    def of_chunks(self) -> Partition:
        """The partition whose chunks the sequences come from in randomized order: this partition."""
        return self

    @property
    def of_reads(self) -> Partition:
        """The partition whose sequences the timeline delivers: this partition."""
        return self

    @property
    def part(self) -> tuple[int, int]:
        """Index and number of the ranks that share each packed row: this rank has all of its rows."""
        return WHOLE_ROWS

    @property
    def of_whole_rows(self) -> Partition:
        """The partition that delivers all sequences of its rows: this partition."""
        return self

    @property
    def num_shares(self) -> int:
        """Number of partitions that divide the size of a minibatch."""
        return self.count

    def most_sequences(self, whole: int, lengths: range, samples: int) -> int:
        """Return the most sequences that this partition gets of a minibatch of `whole` sequences and `samples` samples.

        Args:
            lengths: The lengths that a sequence may have.
        """
        return whole

    @property
    def of_workers(self) -> tuple[int, int] | None:
        """The worker and the number of workers of a global partition; None for other partitions."""
        return None

    @property
    def rounds(self) -> tuple[int, str] | None:
        """The number of partitions and the remainder, if whole minibatches are dealt in rounds; else None."""
        return None

    @property
    def is_dealt(self) -> bool:
        """True if the sequences of each read are dealt to partitions after it."""
        return False

    @property
    def num_lanes(self) -> int:
        """Number of lanes of the order; 0: the order has none."""
        return 0


def checked_part(part: Any, length: int | None = None) -> tuple[int, int]:
    """Return the index and the number of the ranks that share rows; refuse rows that they cannot share.

    Args:
        length: Cells of a row; 0: the size has no rows; None: the size is not known.

    Example:
        >>> checked_part((1, 2), 10)
        Traceback (most recent call last):
        cntkio.errors.ConfigError: part is (1, 2), but a row of 10 cells has no 4 equal slices; use a row_length that \
is a multiple of 4
    """
    index, count = (whole_number("part", number) for number in part)
    if not 0 <= index < count:
        raise ConfigError(f"part is {part}; expected an index below the number of ranks", key="part")
    if count > 1 and length == 0:
        needed = "a Budget with rows and, in a data set, layout='rows'"
        raise ConfigError(f"part is {part}, which needs packed rows: use {needed}", key="part")
    if count > 1 and length and length % (2 * count):
        what = f"part is {part}, but a row of {length} cells has no {2 * count} equal slices"
        raise ConfigError(f"{what}; use a row_length that is a multiple of {2 * count}", key="part")
    return index, count


def checked_partition(partition: Any) -> Partition:
    """Return an argument that is a partition.

    Raises:
        ConfigError: The argument has the wrong type.
    """
    if isinstance(partition, Partition):
        return partition
    expected = "Partition(index, count), BalancedPartition(index, count) or GlobalPartition(index, count)"
    raise ConfigError(f"partition is {partition!r}; expected {expected}", key="partition")


# `of_reads` and `of_chunks` return this object itself, because modes of reading compare them by identity.
WHOLE = Partition()
"""The only partition: all data."""


@suggests_keywords
@dataclasses.dataclass(frozen=True, slots=True)
class GlobalPartition(Partition):
    """Share `index` out of `count` of each global minibatch. (docs/timeline.md, "Global partitions")

    A global minibatch is the minibatch that a single reader would deliver. Its sequences are dealt to all partitions,
    so the partitions have the same number of minibatches. The position is the same for all of them, and a state that
    was taken with any number of partitions and workers continues with any other number.

    Attributes:
        deal: ``"length"``: the longest sequence goes to the partition with the fewest samples, then the next longest.
            ``"area"``: the same with the padded area that the share would have with one more sequence, in place of the
            samples. ``"chunk"``: a sequence goes to the partition that owns its chunk in this sweep, so that no
            partition reads the chunks of another. ``"minibatch"``: whole minibatches, each with a partition's share of
            the size, are dealt in rounds; a state continues with the same number of partitions. `BalancedPartition`
            documents this deal.
        remainder: For a global minibatch with fewer sequences than partitions: ``"empty"`` (the default): some
            partitions get an empty minibatch. ``"merge"``: it is joined with the minibatch before it, or at the start
            of the data with the next, so that the global minibatches depend on the number of partitions. With
            ``deal="minibatch"``: ``"drop"`` (the default) or ``"repeat"``.
        worker: Index of this worker among the workers of the partition. They take global minibatches in turn.
        num_workers: Number of workers of the partition.
        lanes: Read the corpus in this many lanes, each in an order of its own, in place of CNTK's order and of a deal;
            0: do not. A partition reads only its own lanes, and the global minibatches do not depend on the number of
            partitions, which is at most `lanes` and best divides it. (docs/timeline.md, "Lanes")
        part: Index and number of the ranks that share each row of a `Budget` with rows, as for `cntkio.packed`. A
            minibatch may then hold only the sequences with a sample in this rank's slices: its keys, lengths and values
            are theirs, and `packed` with this `part` knows where they are in the rows. Where ranks load whole chunks,
            it holds all sequences of the rows.

    Raises:
        ConfigError: `index`, `deal`, `remainder`, `worker` or `lanes` is not possible; or `part`, also at a read
            without rows that can be shared.

    Example:
        >>> import numpy as np
        >>> from cntkio.timeline import Timeline
        >>> lengths, chunk_starts = np.array([4, 1, 3, 2], np.uint32), np.array([0, 4])
        >>> timelines = [Timeline(lengths, chunk_starts, window=None, max_sweeps=1) for _ in range(2)]
        >>> [timelines[index].read(10, GlobalPartition(index, 2)).sequences.tolist() for index in range(2)]
        [[0, 1], [2, 3]]
    """

    deal: Literal["length", "area", "chunk", "minibatch"] = "length"
    remainder: Literal["empty", "merge", "drop", "repeat"] | None = None
    worker: int = 0
    num_workers: int = 1
    lanes: int = 0
    part: tuple[int, int] = WHOLE_ROWS

    is_balanced: ClassVar[bool] = True

    def __post_init__(self) -> None:
        # A dataclass with slots is a copy of the written class, in which `super()` fails.
        Partition.__post_init__(self)
        check_word("deal", self.deal, "length", "area", "chunk", "minibatch")
        remainders = ("drop", "repeat") if self.deal == "minibatch" else ("empty", "merge")
        if self.remainder is None:
            object.__setattr__(self, "remainder", remainders[0])
        check_word("remainder", self.remainder, *remainders)
        if self.deal == "chunk" and self.remainder == "merge":
            why = "any minibatch may lack chunks of a partition"
            raise ConfigError(f"remainder='merge' and deal='chunk' exclude each other: {why}", key="remainder")
        for name in ("worker", "num_workers", "lanes"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        object.__setattr__(self, "part", checked_part(self.part))
        if self.num_workers > LARGEST_NUM_WORKERS:
            message = f"num_workers is {self.num_workers}; expected at most {LARGEST_NUM_WORKERS}"
            raise ConfigError(message, key="num_workers")
        if not 0 <= self.worker < self.num_workers:
            raise ConfigError(f"worker {self.worker} is outside 0..{self.num_workers - 1}", key="worker")
        if self.lanes:
            self._check_lanes()

    def _check_lanes(self) -> None:
        if not 1 <= self.lanes <= LARGEST_NUM_LANES:
            raise ConfigError(f"lanes is {self.lanes}; expected 0 to {LARGEST_NUM_LANES}", key="lanes")
        if self.count > self.lanes:
            why = f"{self.count} partitions share {self.lanes} lanes, so some would get nothing"
            raise ConfigError(f"{why}; use at least as many lanes, best a multiple", key="lanes")
        for name, default in (("deal", "length"), ("remainder", "empty")):
            if (value := getattr(self, name)) != default:
                why = "the lane of a sequence decides its partition"
                raise ConfigError(f"lanes={self.lanes} and {name}={value!r} exclude each other: {why}", key="lanes")

    @property
    def of_chunks(self) -> Partition:
        """The partition of the chunks that sequences come from: its own with ``deal="chunk"``, else the whole data."""
        # Chunks are dealt by rank, as CNTK's randomized partitions share them.
        return Partition(self.index, self.count) if self.deal == "chunk" else WHOLE

    @property
    def of_reads(self) -> Partition:
        """The partition whose sequences the timeline delivers: the whole data, before each read is divided."""
        return WHOLE

    @property
    def of_whole_rows(self) -> Partition:
        """The partition that delivers all sequences of its rows."""
        return dataclasses.replace(self, part=WHOLE_ROWS)

    @property
    def num_shares(self) -> int:
        """1: the size belongs to the global minibatch. With ``deal="minibatch"`` each partition fills its share."""
        return self.count if self.deal == "minibatch" else 1

    def most_sequences(self, whole: int, lengths: range, samples: int) -> int:
        """Return the most sequences that a partition gets of a global minibatch: more than its part if lengths differ.

        Example:
            >>> [GlobalPartition(0, 4).most_sequences(64, range(least, 33), 64 * 32) for least in (1, 17, 32)]
            [58, 25, 16]
        """
        if self.deal not in ("length", "area") or self.count == 1 or self.lanes:
            return whole
        shortest, longest, others = lengths[0], lengths[-1], self.count - 1

        def fewest(count: int) -> int:
            """Return the fewest sequences of a minibatch of which a partition gets `count`, more than one."""
            # When a partition gets a sequence, no other partition has a smaller load, in samples or in padded area.
            load = (count - 1) * shortest if self.deal == "length" else count * shortest - longest
            return count + others * max(1, -(-load // longest))

        most = bisect.bisect_right(range(2, whole + 1), whole, key=fewest) + 1
        # By samples: this partition has `most` of the shortest sequences, each other partition has `most - 1`.
        return min(most, (samples // shortest + others) // self.count) if self.deal == "length" else most

    @property
    def rounds(self) -> tuple[int, str] | None:
        """With ``deal="minibatch"``: all that the partitions of a round have in common; else None."""
        return (self.count, str(self.remainder)) if self.deal == "minibatch" else None

    @property
    def is_dealt(self) -> bool:
        """True if sequences are dealt: not lanes, chunks or minibatches, nor to one partition without workers."""
        is_shared = self.count > 1 or self.num_workers > 1 or self.part != WHOLE_ROWS
        return not self.lanes and self.deal in ("length", "area") and is_shared

    @property
    def num_lanes(self) -> int:
        """Number of lanes of the order; 0: the order has none."""
        return self.lanes

    @property
    def own_lanes(self) -> range:
        """The lanes that this partition delivers.

        Example:
            >>> [*GlobalPartition(1, 3, lanes=8).own_lanes]
            [3, 4, 5]
        """
        first, end = (-(-index * self.lanes // self.count) for index in (self.index, self.index + 1))
        return range(first, end)

    @property
    def of_workers(self) -> tuple[int, int]:
        """The worker and the number of workers."""
        return self.worker, self.num_workers


@suggests_keywords
@dataclasses.dataclass(frozen=True, slots=True)
class BalancedPartition(GlobalPartition):
    """Share `index` out of `count` with ``deal="minibatch"``. (docs/timeline.md, "Balanced partitions")

    Minibatches of the whole data are dealt in rounds, one to each partition, and no round crosses the end of a sweep.
    The last round of a sweep is cut so that each partition gets a minibatch. If fewer sequences are left than there are
    partitions, these sequences are the remainder.

    Attributes:
        remainder: ``"drop"``: skip the remainder. ``"repeat"``: deliver it, some of its sequences to several
            partitions.
        worker: As for `GlobalPartition`: workers take rounds in turn.
        num_workers: Number of workers of the partition.

    Raises:
        ConfigError: `index`, `remainder` or `worker` is not possible.

    Example:
        >>> import numpy as np
        >>> from cntkio.timeline import Timeline
        >>> timeline = Timeline(np.ones(7, np.uint32), np.array([0, 7]), window=None, max_sweeps=1)
        >>> second = BalancedPartition(1, 2)
        >>> [selection.sequences.tolist() for selection in iter(lambda: timeline.read(4, second), None)]
        [[2, 3], [6]]
    """

    deal: Literal["minibatch"] = dataclasses.field(default="minibatch", init=False, repr=False)

    # A pickle has the arguments, as in earlier versions.
    def __getstate__(self) -> list[Any]:
        return [self.index, self.count, self.remainder, *self.of_workers]

    def __setstate__(self, state: list[Any]) -> None:
        BalancedPartition.__init__(self, *state)

"""`Budget`: minibatches that end before a limit is exceeded, and pools by length. (docs/batches.md)

This module has the options, and checks them. `cntkio.timeline.modes` applies them to a timeline.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import cntkio._core as _core
from cntkio.arguments import check_word, is_whole, sizes, suggests_keywords, whole_number
from cntkio.errors import CheckpointError, ConfigError, UnsupportedError

NO_LIMIT = 2**64 - 1
_LARGEST_LIMIT = 2**63 - 1
_LARGEST_SIZE = 2**31 - 1  # CNTK cut larger sizes to 32 bits
_DEAREST = 1e100  # the cost of 2^32 sequences of 2^32 samples is still a number
_LONGEST_SEQUENCE = 2**32 - 1  # tables keep lengths in at most 32 bits
ATTENTION = (0.0, 1.0)
"""The cost of a sample and of the square of a length, in attention."""
_LIMITS = ("samples", "sequences", "padded", "rows")


@suggests_keywords
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The size of minibatches, as limits that no minibatch exceeds. (docs/batches.md)

    It takes the place of the number of samples wherever a source is read. A minibatch ends before the sequence that
    would exceed a limit, and at the end of a sweep. As with a number of samples, limits count for all partitions
    together: a `Partition` or `BalancedPartition` fills its minibatches with its share of each limit, and a
    `GlobalPartition` deals minibatches that keep the whole limits.

    Attributes:
        samples: Largest number of samples.
        sequences: Largest number of sequences.
        padded: Largest number of samples after padding: the length of the longest sequence times the number of
            sequences.
        quadratic: Let a sequence of n samples count as ``n + n * n // quadratic`` samples in `samples` and `padded`,
            since attention takes time that grows with the square of the length. A sequence of
            `quadratic` samples counts twice.
        oversize: What happens to a sequence that exceeds a limit by itself. ``"error"``: the first read raises a
            `ConfigError`. ``"alone"``: it comes as a minibatch of its own. ``"drop"``: it is left out, and a warning
            counts these sequences.
        pool: Cut the randomized order into pools of this size, arrange the sequences of a pool by length, and deliver
            the pool's minibatches in random order; None: keep the order. A pool is at most as large as the
            randomization window.
        pool_unit: Unit of `pool`.
        buckets: Lengths to which sequences will be padded. The sequences of a minibatch have the same length after
            padding, and `padded` counts that length. Sequences above the largest bucket are oversize. Needs a pool.
        drop_last: Leave out the minibatch of what remains at the end of a sweep, of a pool or of a bucket of a pool,
            unless another sequence as long as its longest would exceed a limit.
        rows: Pack the sequences of each pool into rows, and give each minibatch this many of them, in place of other
            limits. `cntkio.packed` makes the rows. Needs `row_length` and a pool.
        row_length: Samples of a row.
        balance: ``"attention"``: the ranks of a global minibatch get sequences of about equal cost, where a sequence
            costs the square of its length. Needs a pool and a `GlobalPartition`.
        cost: With `balance`, ``(a, b)``: a sequence of n samples costs ``a * n + b * n * n``.

    Raises:
        ConfigError: No limit is given, or a value is not possible, or two exclude each other.

    Example:
        >>> import numpy as np
        >>> from cntkio.timeline import Timeline
        >>> lengths = np.array([2, 9, 3, 3, 1], np.uint32)
        >>> timeline = Timeline(lengths, np.array([0, 5]), window=None, max_sweeps=1)
        >>> [read.sequences.tolist() for read in iter(lambda: timeline.read(Budget(padded=9)), None)]
        [[0], [1], [2, 3, 4]]
    """

    samples: int | None = None
    sequences: int | None = None
    padded: int | None = None
    quadratic: int | None = None
    oversize: Literal["error", "alone", "drop"] = "error"
    pool: int | None = None
    pool_unit: Literal["sequences", "samples"] = "sequences"
    buckets: tuple[int, ...] = ()
    drop_last: bool = False
    rows: int | None = None
    row_length: int | None = None
    balance: Literal["attention"] | None = None
    cost: tuple[float, float] = ATTENTION

    def __post_init__(self) -> None:
        for name in (*_LIMITS, "quadratic", "pool", "row_length"):
            value = getattr(self, name)
            if value is not None:
                # A number of NumPy becomes an int, because states are JSON.
                object.__setattr__(self, name, whole_number(name, value))
                if not 1 <= value <= _LARGEST_LIMIT:
                    raise ConfigError(f"{name} is {value}; expected 1 to 2^63 - 1", key=name)
        if not self._limits():
            raise ConfigError("a Budget needs a limit: give samples, sequences, padded or rows", key="samples")
        if (self.rows is None) != (self.row_length is None):
            message = f"rows={self.rows}, but row_length={self.row_length}; give both or neither"
            raise ConfigError(message, key="row_length")
        if self.rows is not None and self.row_length is not None:
            others = (self.samples, self.sequences, self.padded, self.quadratic)
            if self.pool is None or self.buckets != () or others != (None, None, None, None):
                excluded = "samples, sequences, padded, quadratic and buckets"
                raise ConfigError(f"rows need a pool, for instance pool=10_000, and exclude {excluded}", key="rows")
            if self.oversize == "alone":
                why = "a sequence longer than a row fits no row; use oversize='drop'"
                raise ConfigError(f"rows and oversize='alone' exclude each other: {why}", key="oversize")
            if max(self.rows, self.row_length) > _LONGEST_SEQUENCE:
                raise ConfigError("rows and row_length are at most 2^32 - 1", key="rows")
        if self.quadratic is not None and self.samples is None and self.padded is None:
            message = f"quadratic={self.quadratic} changes how samples are counted, so it needs samples or padded"
            raise ConfigError(message, key="quadratic")
        if not isinstance(self.drop_last, bool):
            raise ConfigError(f"drop_last is {self.drop_last!r}; expected True or False", key="drop_last")
        check_word("oversize", self.oversize, "error", "alone", "drop")
        check_word("pool_unit", self.pool_unit, "sequences", "samples")
        # The core looks for the bucket of a length in ascending buckets.
        buckets = tuple(sorted(sizes("buckets", self.buckets))) if self.buckets != () else ()
        if buckets and not 1 <= buckets[0] <= buckets[-1] <= _LONGEST_SEQUENCE:
            raise ConfigError(f"buckets is {self.buckets!r}; expected lengths, each 1 to 2^32 - 1", key="buckets")
        if buckets and self.pool is None:
            why = "without a pool, minibatches have consecutive sequences of any length"
            raise ConfigError(f"buckets need a pool, for instance pool=10_000: {why}", key="buckets")
        object.__setattr__(self, "buckets", buckets)
        object.__setattr__(self, "cost", self._checked_cost())

    def _checked_cost(self) -> tuple[float, float]:
        if self.balance is not None:
            check_word("balance", self.balance, "attention")
            if self.pool is None:
                why = "without a pool, a minibatch has the next sequences, whatever they cost"
                raise ConfigError(f"balance needs a pool, for instance pool=10_000: {why}", key="balance")
            if self.buckets:
                why = "the sequences of a bucket cost the same, because they are padded to one length"
                raise ConfigError(f"balance and buckets exclude each other: {why}", key="balance")
        try:
            linear, square = map(float, self.cost)
        except (TypeError, ValueError):
            linear = square = math.nan
        # Written so that it also refuses NaN, for which every comparison is false.
        if not (0 <= linear <= _DEAREST and 0 <= square <= _DEAREST and linear + square > 0):
            expected = "two numbers of at least 0, of a sample and of the square of a length, not both 0"
            raise ConfigError(f"cost is {self.cost!r}; expected {expected}", key="cost")
        if self.balance is None and (linear, square) != ATTENTION:
            raise ConfigError(f"cost={self.cost!r} is of no use without balance='attention'", key="cost")
        return linear, square

    def _limits(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _LIMITS if getattr(self, name) is not None}

    def share(self, count: int) -> Budget:
        """Return the part of each limit for one of `count` partitions, rounded down.

        Raises:
            ConfigError: A limit is smaller than the number of partitions, or they would not have equal costs.

        Example:
            >>> Budget(padded=100, sequences=9).share(2)
            Budget(samples=None, sequences=4, padded=50, quadratic=None, oversize='error', pool=None, \
pool_unit='sequences', buckets=(), drop_last=False, rows=None, row_length=None, balance=None, cost=(0.0, 1.0))
        """
        if self.balance is not None and count > 1:
            why = "the minibatches of different partitions have different costs; use GlobalPartition(index, count)"
            raise ConfigError(f"balance={self.balance!r} in a Budget for {count} partitions: {why}", key="balance")
        limits = self._limits()
        for name, limit in limits.items():
            if limit < count:
                why = "a limit counts for all partitions together, so it must be at least their number"
                raise ConfigError(f"{name}={limit} in a Budget for {count} partitions: {why}", key=name)
        # A pool keeps its size, because each partition has pools of its own sequences.
        return dataclasses.replace(self, **{name: limit // count for name, limit in limits.items()})

    @property
    def longest(self) -> int:
        """Largest number of samples of a sequence that does not exceed a limit by itself.

        Example:
            >>> Budget(padded=150, quadratic=200).longest, Budget(padded=150, pool=9, buckets=(64, 128, 256)).longest
            (100, 128)
        """
        by_samples = self._heaviest(self.samples if self.row_length is None else self.row_length)
        by_area = self._heaviest(self.padded)
        if self.buckets:
            by_area = max((bound for bound in self.buckets if bound <= by_area), default=0)
        return min(by_samples, by_area)

    def _heaviest(self, limit: int | None) -> int:
        """Return the largest length that counts as at most `limit` samples."""
        if limit is None:
            return _LONGEST_SEQUENCE
        if self.quadratic is None:
            return min(limit, _LONGEST_SEQUENCE)
        # At or above the solution of n + n * n / quadratic = limit + 1, which is too long; the loop shortens it.
        length = (math.isqrt(self.quadratic * (self.quadratic + 4 * limit + 4)) - self.quadratic) // 2 + 1
        while length + length * length // self.quadratic > limit:
            length -= 1
        return min(length, _LONGEST_SEQUENCE)

    def for_core(self) -> _core.Budget:
        """Return the budget for the core's reader."""
        samples, sequences, padded = (limit or NO_LIMIT for limit in (self.samples, self.sequences, self.padded))
        # The core delivers longer sequences alone; with 'error' there are none (`Budgets.check`).
        longest = self.longest if self.oversize == "drop" else _LONGEST_SEQUENCE
        limits = Limits(samples, sequences, padded, self.quadratic or 0, longest, self.drop_last)
        if self.pool is None:
            return _core.Budget(limits, None)
        in_sequences, balance = self.pool_unit == "sequences", None if self.balance is None else self.cost
        rows = self.rows or 0, self.row_length or 0
        return _core.Budget(limits, Pool(self.pool, in_sequences, *rows, self.buckets, balance))


class Limits(NamedTuple):
    """The limits of a minibatch as the core takes them: `LimitsOfBatch` in crates/python/src/budget.rs."""

    samples: int
    sequences: int
    padded: int
    quadratic: int
    longest: int
    only_full: bool


class Pool(NamedTuple):
    """The pools of a budget as the core takes them: `PoolOfBatches` in crates/python/src/budget.rs."""

    size: int
    counts_sequences: bool
    rows: int
    row_length: int
    buckets: Sequence[int]
    balance: tuple[float, float] | None


Size: TypeAlias = int | Budget
"""Size of a minibatch: a number of samples, or a budget."""


def checked_size(size: Any) -> Size:
    """Return an argument that is the size of a minibatch, and refuse a wrong type and a negative number."""
    if isinstance(size, Budget):
        return size
    # CNTK raises NotImplementedError for these sizes. For 0 it has another error, which comes from the timeline.
    if not is_whole(size) or size < 0:
        message = f"minibatch_size_in_samples is {size!r}; expected a whole number, at least 1, or a Budget"
        raise UnsupportedError(message, key="minibatch_size_in_samples")
    return int(size)


def check_largest(size: Size) -> None:
    """Refuse a number of samples that CNTK could not count: above 2^31 - 1."""
    if not isinstance(size, Budget) and size > _LARGEST_SIZE:
        message = f"minibatch_size_in_samples is {size}; expected at most {_LARGEST_SIZE}"
        raise ConfigError(message, key="minibatch_size_in_samples")


def times(size: Size, count: int) -> Size:
    """Return `count` times a size, so that each of `count` partitions has that size.

    Example:
        >>> times(5, 3), times(Budget(padded=7), 2).padded
        (15, 14)
    """
    if isinstance(size, Budget):
        return dataclasses.replace(size, **{name: min(n * count, _LARGEST_LIMIT) for name, n in size._limits().items()})
    # `check_largest` refuses a larger number.
    return min(size * count, _LARGEST_SIZE)


def has_pool(size: Size) -> bool:
    """Return whether minibatches of this size come from pools."""
    return isinstance(size, Budget) and size.pool is not None


def row_length_of(size: Size) -> int:
    """Return the length of the rows into which minibatches of this size are packed; 0: they are not packed."""
    return size.row_length or 0 if isinstance(size, Budget) else 0


def cost_of(size: Size) -> tuple[float, float]:
    """Return the cost of a sample and of the square of a length; of sizes without `cost`, that of attention."""
    return size.cost if isinstance(size, Budget) else ATTENTION


def whole_size(size: Size, why: str) -> int:
    """Return a size that is a number of samples, and refuse a budget."""
    if isinstance(size, Budget):
        raise ConfigError(f"minibatch_size_in_samples is a Budget; {why}", key="minibatch_size_in_samples")
    return size


def about_samples(size: Size) -> int:
    """Return about how many samples a minibatch of this size has, at least 1.

    Example:
        >>> about_samples(5), about_samples(Budget(padded=7)), about_samples(Budget(sequences=3))
        (5, 7, 3)
    """
    if isinstance(size, Budget):
        cells = None if size.rows is None or size.row_length is None else size.rows * size.row_length
        return next(limit for limit in (size.samples, size.padded, cells, size.sequences) if limit is not None)
    return size


def size_text(size: Size) -> str:
    """Describe a size.

    Example:
        >>> size_text(5), size_text(Budget(padded=7, pool=90))
        ('5 samples', 'Budget(padded=7, pool=90)')
    """
    if isinstance(size, Budget):
        given = [f"{name}={value!r}" for name, value in size_to_json(size).items()]
        return f"Budget({', '.join(given)})"
    return f"{size:,} sample{'s' * (size != 1)}"


def size_to_json(size: Size) -> Any:
    """Return a size for a state: a number, or the fields of a budget that differ from their defaults."""
    if not isinstance(size, Budget):
        return size
    fields = ((field.name, getattr(size, field.name), field.default) for field in dataclasses.fields(size))
    given = {name: value for name, value, default in fields if value != default}
    return {name: [*value] if isinstance(value, tuple) else value for name, value in given.items()}


def size_from_json(json: Mapping[str, Any]) -> Budget:
    """Return the budget of a state, and refuse fields that are not possible."""
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in json.items()}
    try:
        return Budget(**fields)
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"the state's 'minibatch_size' is {dict(json)!r:.200}: {error}", saved=json) from error

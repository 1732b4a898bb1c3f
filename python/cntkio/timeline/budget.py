"""`Budget`: minibatches that end before a limit is exceeded, and pools by length. (docs/batches.md)

This module has the options, and checks them. `cntkio.timeline.modes` applies them to a timeline.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio.arguments import check_word, is_whole, sizes, suggests_keywords, whole_number
from cntkio.errors import CheckpointError, ConfigError, UnsupportedError
from cntkio.timeline.schedule import Between, Schedule

NO_LIMIT = 2**64 - 1
_LARGEST_LIMIT = 2**63 - 1
_LARGEST_SIZE = 2**31 - 1  # CNTK cut larger sizes to 32 bits
_DEAREST = 1e100  # the cost of 2^32 sequences of 2^32 samples is still a number
_LONGEST_SEQUENCE = 2**32 - 1  # tables keep lengths in at most 32 bits
ATTENTION = (0.0, 1.0)
"""The cost of a sample and of the square of a length, in attention."""
_LIMITS = ("samples", "sequences", "padded", "rows")
_SCHEDULED = (*_LIMITS, "max_length")
Limit: TypeAlias = int | Mapping[int, int] | Schedule | None
"""A limit, or a table of its values by position; None: no limit."""


@suggests_keywords
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The size of minibatches, as limits that no minibatch exceeds. (docs/batches.md)

    It takes the place of the number of samples wherever a source is read. A minibatch ends before the sequence that
    would exceed a limit, and at the end of a sweep. As with a number of samples, limits count for all partitions
    together: a `Partition` or `BalancedPartition` fills its minibatches with its share of each limit, and a
    `GlobalPartition` deals minibatches that keep the whole limits.

    In place of a number, `samples`, `sequences`, `padded`, `rows` and `max_length` may be a table by position, such as
    ``{0: 4096, 1_000_000: 8192}``: a minibatch, or a pool, has the values of the position where it begins.
    (docs/schedules.md)

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
        max_length: Samples of the longest sequence. Longer sequences are oversize.
        between: Between two positions of a table, ``"linear"``: a value is on the line between the two, rounded down;
            ``"steps"``: the former value holds.
        balance: ``"attention"``: the ranks of a global minibatch get sequences of about equal cost, where a sequence
            costs the square of its length. Needs a pool and a `GlobalPartition`.
        cost: With `balance`, ``(a, b)``: a sequence of n samples costs ``a * n + b * n * n``.
        carry: Let what would waste cells at the end of a pool go into the next pool, in a series of up to 16. The
            position moves where such a series ends. Needs a pool.

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

    samples: Limit = None
    sequences: Limit = None
    padded: Limit = None
    quadratic: int | None = None
    oversize: Literal["error", "alone", "drop"] = "error"
    pool: int | None = None
    pool_unit: Literal["sequences", "samples"] = "sequences"
    buckets: tuple[int, ...] = ()
    drop_last: bool = False
    rows: Limit = None
    row_length: int | None = None
    max_length: Limit = None
    between: Between = "linear"
    balance: Literal["attention"] | None = None
    cost: tuple[float, float] = ATTENTION
    carry: bool = False

    def __post_init__(self) -> None:
        check_word("between", self.between, "linear", "steps")
        for name in (*_SCHEDULED, "quadratic", "pool", "row_length"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _checked_limit(name, value, self.between))
        if self.between != "linear" and not self.schedules:
            raise ConfigError(f"between={self.between!r} is of no use without a table by position", key="between")
        if not self._limits():
            raise ConfigError("a Budget needs a limit: give samples, sequences, padded or rows", key="samples")
        if (self.rows is None) != (self.row_length is None):
            message = f"rows={self.rows}, but row_length={self.row_length}; give both or neither"
            raise ConfigError(message, key="row_length")
        if self.max_length is not None and self.oversize == "alone":
            why = "a minibatch of a sequence that is too long would be too long; use oversize='drop'"
            raise ConfigError(f"max_length and oversize='alone' exclude each other: {why}", key="oversize")
        if self.rows is not None and self.row_length is not None:
            others = (self.samples, self.sequences, self.padded, self.quadratic)
            if self.pool is None or self.buckets != () or others != (None, None, None, None):
                excluded = "samples, sequences, padded, quadratic and buckets"
                raise ConfigError(f"rows need a pool, for instance pool=10_000, and exclude {excluded}", key="rows")
            if self.oversize == "alone":
                why = "a sequence longer than a row fits no row; use oversize='drop'"
                raise ConfigError(f"rows and oversize='alone' exclude each other: {why}", key="oversize")
            if max(*_values(self.rows), self.row_length) > _LONGEST_SEQUENCE:
                raise ConfigError("rows and row_length are at most 2^32 - 1", key="rows")
        if self.quadratic is not None and self.samples is None and self.padded is None:
            message = f"quadratic={self.quadratic} changes how samples are counted, so it needs samples or padded"
            raise ConfigError(message, key="quadratic")
        for name in ("drop_last", "carry"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected True or False", key=name)
        if self.carry:
            self._check_carry()
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

    def _check_carry(self) -> None:
        if self.pool is None:
            raise ConfigError("carry needs a pool, for instance pool=10_000", key="carry")
        others = {f"a table of {name}": "all pools of a series have the same limits" for name in self.schedules}
        if self.balance is not None:
            others["balance"] = "equal costs need the empty cells"
        for other, why in others.items():
            raise ConfigError(f"carry and {other} exclude each other: {why}; leave out one of them", key="carry")

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

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The limits that change with the position, by name."""
        return {name: limit for name in _SCHEDULED if isinstance(limit := getattr(self, name), Schedule)}

    def share(self, count: int) -> Budget:
        """Return the part of each limit for one of `count` partitions, rounded down.

        Raises:
            ConfigError: A limit is smaller than the number of partitions, or they would not have equal costs.

        Example:
            >>> size_text(Budget(padded=100, sequences={0: 9, 100: 11}, quadratic=8).share(2))
            'Budget(sequences={0: 4, 100: 5}, padded=50, quadratic=8)'
        """
        if self.balance is not None and count > 1:
            why = "the minibatches of different partitions have different costs; use GlobalPartition(index, count)"
            raise ConfigError(f"balance={self.balance!r} in a Budget for {count} partitions: {why}", key="balance")
        limits = self._limits()
        for name, limit in limits.items():
            if (least := min(_values(limit))) < count:
                why = "a limit counts for all partitions together, so it must be at least their number"
                raise ConfigError(f"{name}={least} in a Budget for {count} partitions: {why}", key=name)
        # A pool keeps its size, because each partition has pools of its own sequences.
        return self._replaced({name: _each(limit, lambda value: value // count) for name, limit in limits.items()})

    def at(self, position: int) -> Budget:
        """Return the budget of minibatches that begin at a position: its limits are numbers.

        Example:
            >>> size_text(Budget(samples={0: 64, 1000: 128}, pool=90).at(505))
            'Budget(samples=96, pool=90)'
        """
        schedules = self.schedules
        return self._replaced({name: math.floor(of_one.at(position)) for name, of_one in schedules.items()})

    def extreme(self, choose: Callable[[Sequence[int]], int]) -> Budget:
        """Return the budget with the value of each table that a function chooses, such as `min` or `max`."""
        return self._replaced({name: choose(_values(of_one)) for name, of_one in self.schedules.items()})

    def numbers(self, choose: Callable[[Sequence[int]], int] = max) -> list[int | None]:
        """Return `samples`, `sequences`, `padded`, `rows` and `max_length`; of tables the value that is chosen."""
        return [None if (of := getattr(self, name)) is None else choose(_values(of)) for name in _SCHEDULED]

    def _replaced(self, limits: Mapping[str, Limit]) -> Budget:
        if not limits:
            return self
        between: Between = self.between if any(isinstance(of_one, Schedule) for of_one in limits.values()) else "linear"
        return dataclasses.replace(self, **limits, between=between)  # type: ignore[arg-type]

    @property
    def longest(self) -> int:
        """Largest number of samples of a sequence that exceeds no limit by itself, at no position.

        Example:
            >>> Budget(padded=150, quadratic=200).longest, Budget(padded=150, pool=9, buckets=(64, 128, 256)).longest
            (100, 128)
        """
        return self.extreme(min)._for_core(drops=True).longest_at(0)

    def for_core(self) -> _core.Budget:
        """Return the budget for the core's reader."""
        # The core delivers longer sequences alone; with 'error' there are none (`Budgets.check`).
        return self._for_core(drops=self.oversize == "drop")

    def _for_core(self, *, drops: bool) -> _core.Budget:
        # The core replaces the first value of a table, except for the longest, of which it takes the smaller.
        samples, sequences, padded, rows, _ = self.numbers(itemgetter(0))
        max_length = self.max_length if isinstance(self.max_length, int) else _LONGEST_SEQUENCE
        longest = min(max_length, self.row_length or _LONGEST_SEQUENCE)
        of_all = samples or NO_LIMIT, sequences or NO_LIMIT, padded or NO_LIMIT
        limits = Limits(*of_all, self.quadratic or 0, longest, drops, self.drop_last)
        pool = None
        if self.pool is not None:
            in_sequences, balance = self.pool_unit == "sequences", None if self.balance is None else self.cost
            pool = Pool(self.pool, in_sequences, rows or 0, self.row_length or 0, self.buckets, balance, self.carry)
        schedules = self.schedules
        return _core.Budget(limits, pool, Schedules(*map(schedules.get, _SCHEDULED)) if schedules else None)


def _checked_limit(name: str, value: Any, between: Between) -> int | Schedule:
    """Return a limit with whole numbers from 1 to 2^63 - 1; one that never changes as a number."""
    if not isinstance(value, Mapping | Schedule) or name not in _SCHEDULED:
        # A number of NumPy becomes an int, because states are JSON.
        number = whole_number(name, value)
        if not 1 <= number <= _LARGEST_LIMIT:
            raise ConfigError(f"{name} is {value}; expected 1 to 2^63 - 1", key=name)
        return number
    found = value if isinstance(value, Schedule) else Schedule.of(name, value, between, key=name)
    for position, limit in zip(found.points, found.values, strict=True):
        if not is_whole(limit) or not 1 <= limit <= _LARGEST_LIMIT:
            message = f"{name} at position {position} is {limit}; expected a whole number from 1 to 2^63 - 1"
            raise ConfigError(message, key=name)
    return found if len(set(found.values)) > 1 else int(found.values[0])


def _values(limit: Any) -> Sequence[int]:
    """Return all values of a limit."""
    values: Sequence[Any] = limit.values if isinstance(limit, Schedule) else (limit,)
    return values


def _each(limit: Any, change: Callable[[int], int]) -> Any:
    """Return a limit with each of its values changed."""
    if isinstance(limit, Schedule):
        return limit._replace(values=tuple(map(change, map(int, limit.values))))
    return change(limit)


class Limits(NamedTuple):
    """The limits of a minibatch as the core takes them: `LimitsOfBatch` in crates/python/src/budget.rs."""

    samples: int
    sequences: int
    padded: int
    quadratic: int
    longest: int
    drops: bool
    only_full: bool


class Pool(NamedTuple):
    """The pools of a budget as the core takes them: `PoolOfBatches` in crates/python/src/budget.rs."""

    size: int
    counts_sequences: bool
    rows: int
    row_length: int
    buckets: Sequence[int]
    balance: tuple[float, float] | None
    carries: bool


class Schedules(NamedTuple):
    """The limits of a budget that change with the position: `SchedulesOfBatch` in crates/python/src/budget.rs."""

    samples: Schedule | None
    sequences: Schedule | None
    padded: Schedule | None
    rows: Schedule | None
    longest: Schedule | None


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
        limits = size._limits().items()
        return size._replaced(
            {name: _each(of, lambda value: min(value * count, _LARGEST_LIMIT)) for name, of in limits}
        )
    # `check_largest` refuses a larger number.
    return min(size * count, _LARGEST_SIZE)


def has_pool(size: Size) -> bool:
    """Return whether minibatches of this size come from pools."""
    return isinstance(size, Budget) and size.pool is not None


def carries(size: Size) -> bool:
    """Return whether a pool leaves sequences to the next."""
    return isinstance(size, Budget) and size.carry


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
    """Return about how many samples a minibatch of this size has at most, at least 1.

    Example:
        >>> about_samples(5), about_samples(Budget(padded=7)), about_samples(Budget(sequences=3))
        (5, 7, 3)
    """
    if isinstance(size, Budget):
        samples, sequences, padded, rows, _ = size.numbers()
        cells = None if rows is None or size.row_length is None else rows * size.row_length
        return next(limit for limit in (samples, padded, cells, sequences) if limit is not None)
    return size


def size_text(size: Size) -> str:
    """Describe a size.

    Example:
        >>> size_text(5), size_text(Budget(padded=7, pool=90))
        ('5 samples', 'Budget(padded=7, pool=90)')
    """
    if isinstance(size, Budget):
        return f"Budget({', '.join(f'{name}={_limit_text(value)}' for name, value in _given(size).items())})"
    return f"{size:,} sample{'s' * (size != 1)}"


def _limit_text(value: Any) -> str:
    return repr(dict(zip(value.points, value.values, strict=True)) if isinstance(value, Schedule) else value)


def _given(size: Budget) -> dict[str, Any]:
    """Return the fields of a budget that differ from their defaults."""
    fields = ((field.name, getattr(size, field.name), field.default) for field in dataclasses.fields(size))
    return {name: value for name, value, default in fields if value != default}


def size_to_json(size: Size) -> Any:
    """Return a size for a state: a number, or the fields of a budget that differ from their defaults."""
    if not isinstance(size, Budget):
        return size
    lists = {name: [*value] for name, value in _given(size).items() if isinstance(value, tuple)}
    return {**_given(size), **lists, **{name: of_one.to_json() for name, of_one in size.schedules.items()}}


def size_from_json(json: Mapping[str, Any]) -> Budget:
    """Return the budget of a state, and refuse fields that are not possible."""

    def field(name: str, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return Schedule.from_json(name, value) if name in _SCHEDULED else tuple(value)

    try:
        return Budget(**{name: field(name, value) for name, value in json.items()})
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"the state's 'minibatch_size' is {dict(json)!r:.200}: {error}", saved=json) from error


# Limits that change with the position.


def size_at(size: Size, position: int) -> Size:
    """Return the size of minibatches that begin at a position."""
    return size.at(position) if isinstance(size, Budget) else size


def scheduled_limits(size: Size, positions: npt.NDArray[np.uint64]) -> dict[str, npt.NDArray[np.int64]]:
    """Return the value at each position of each limit that changes.

    Example:
        >>> scheduled_limits(Budget(samples={0: 64, 1000: 128}), np.array([0, 500], np.uint64))
        {'samples': array([64, 96])}
    """
    schedules = size.schedules if isinstance(size, Budget) else {}
    return {name: _core.scheduled(of_one, positions).astype(np.int64) for name, of_one in schedules.items()}


def check_schedules(former: Size, size: Size, position: int) -> None:
    """Refuse a schedule that differs before a position from that of the former reads.

    Example:
        >>> ramp = Budget(samples={0: 64, 1000: 128})
        >>> check_schedules(ramp, Budget(samples={0: 64, 1000: 128, 2000: 64}), 1000)
        >>> check_schedules(ramp, Budget(samples=96), 1500)
        Traceback (most recent call last):
        cntkio.errors.ConfigError: samples differs from the former reads between positions 0 and 1000: \
64 to 128 there, 96 to 96 here; a schedule can change from position 1500 on
    """
    if not isinstance(former, Budget) or not isinstance(size, Budget):
        return
    for name in {**former.schedules, **size.schedules}:
        of_both = [getattr(of_one, name) for of_one in (former, size)]
        if None in of_both:
            raise ConfigError(f"{name} is {of_both[1]}, but the former reads had {of_both[0]}", key=name)
        both = [of if isinstance(of, Schedule) else Schedule((0,), (of,)) for of in of_both]
        inner = {point for of in both for point in of.points if 0 < point < position}
        for begin, end in itertools.pairwise(sorted({0, *inner, position})):
            # A line is known by two values. With steps, the end may have the next value.
            last = end - 1 if "steps" in (both[0].between, both[1].between) else end
            was, now = ([of.at(begin), of.at(last)] for of in both)
            if was != now:
                texts = [f"{math.floor(of[0])} to {math.floor(of[1])}" for of in (was, now)]
                where = f"between positions {begin} and {end}: {texts[0]} there, {texts[1]} here"
                advice = f"a schedule can change from position {position} on"
                raise ConfigError(f"{name} differs from the former reads {where}; {advice}", key=name)

"""`Schedule`: a number that changes with the position, as a table of points. (docs/mixtures.md)

::

    {0: 0.8, 10_000: 0.5}    "linear"   0.8 at 0, 0.65 at 5,000, 0.5 from 10,000 on
                             "steps"    0.8 up to 9,999, 0.5 from 10,000 on

Before the first point and after the last, their values hold. What a value counts, and whether it is possible, is known
to the caller.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio.arguments import check_word, is_whole
from cntkio.errors import ConfigError
from cntkio.timeline.fields import damaged, items, whole

Between = Literal["linear", "steps"]
# Positions of all timelines are below.
_LARGEST_POSITION = 2**62


class Schedule(NamedTuple):
    """A number at each position.

    Attributes:
        points: Positions, in ascending order; at least one.
        values: The value at each.
        between: Between two points ``"linear"``: the value is on the line between theirs; ``"steps"``: the value of the
            former holds.
    """

    points: tuple[int, ...]
    values: tuple[float, ...]
    between: Between = "linear"

    @classmethod
    def of(cls, name: str, value: Any, between: Any = "linear", *, key: str) -> Schedule:
        """Return the schedule of an argument: a number, which never changes, or a mapping from positions to numbers.

        Args:
            name: What has the value, for messages.
            key: The argument, for errors.

        Raises:
            ConfigError: The argument is not a number or such a mapping, or a value is not a finite number.

        Example:
            >>> Schedule.of("the weight of 'a'", {100: 1, 0: 3}, "steps", key="weights")
            Schedule(points=(0, 100), values=(3, 1), between='steps')
            >>> Schedule.of("the weight of 'a'", {-1: 1}, key="weights")
            Traceback (most recent call last):
            cntkio.errors.ConfigError: the weight of 'a' is {-1: 1}; expected a number, or {position: number}
        """
        check_word("between", between, "linear", "steps")
        table = value if isinstance(value, Mapping) else {0: value}
        if not table or not all(is_whole(point) and 0 <= point < _LARGEST_POSITION for point in table):
            raise ConfigError(f"{name} is {value!r:.200}; expected a number, or {{position: number}}", key=key)
        for position, number in table.items():
            is_number = isinstance(number, int | float | np.integer | np.floating) and not isinstance(number, bool)
            if not is_number or not -np.inf < number < np.inf:
                at = f" at position {position}" if isinstance(value, Mapping) else ""
                raise ConfigError(f"{name}{at} is {number!r:.200}; expected a number", key=key)
        points = sorted(table)
        # Numbers of NumPy would not be in JSON.
        plain = (int(table[point]) if is_whole(table[point]) else float(table[point]) for point in points)
        return cls(tuple(map(int, points)), tuple(plain), between)

    def at(self, position: int) -> Fraction:
        """Return the value at a position, exactly.

        Example:
            >>> Schedule((0, 10_000), (64, 128)).at(5_001)
            Fraction(60004, 625)
        """
        after = bisect_right(self.points, position)
        before = max(after - 1, 0)
        value = Fraction(self.values[before])
        if self.between == "steps" or after in (0, len(self.points)):
            return value
        share = Fraction(position - self.points[before], self.points[after] - self.points[before])
        return value + share * (Fraction(self.values[after]) - value)

    def values_at(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the value at each position, as floats.

        Example:
            >>> Schedule((0, 10_000), (0.8, 0.5)).values_at(np.array([0, 5_000, 20_000])).tolist()
            [0.8, 0.65, 0.5]
        """
        values = np.array(self.values, np.float64)
        if self.between == "linear":
            return np.interp(positions, self.points, values)
        return values[np.maximum(np.searchsorted(self.points, positions, side="right") - 1, 0)]

    def to_json(self) -> list[Any]:
        """Return the normal form, for states: two schedules are equal if these are."""
        return [list(self.points), list(self.values), self.between]

    @classmethod
    def from_json(cls, name: str, json: Any) -> Schedule:
        """Read the field `name` of a state, a result of `to_json`; a damaged one is a `CheckpointError`."""
        points, values, between, *_ = (*items(name, json), None, None, None)
        points = [whole(name, point, _LARGEST_POSITION) for point in items(name, points)]
        values = items(name, values)
        is_ascending = all(one < other for one, other in itertools.pairwise(points))
        if not points or not is_ascending or len(values) != len(points):
            raise damaged(name, json, "positions in ascending order, and a number for each")
        try:
            return cls.of(name, dict(zip(points, values, strict=True)), between, key=name)
        except ConfigError as error:
            raise damaged(name, json, "positions, numbers, and 'linear' or 'steps'") from error

"""`Weights`: which component of a mixture has the turn at each position, in exact proportions. (docs/mixtures.md)

::

    weights      a: 2, b: 1                  numbers, or schedules by position
    counts       a: 667, b: 333              turns of each component in a block of 1,000
    turns        a b a a b a a b a ...       the turns of a block, evenly spread

A position counts sequences, or minibatches: both kinds of mixtures take their turns from here. Everything follows from
the weights and the position, so a state has the weights as they were given, and nothing for each block.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio.errors import CheckpointError, ConfigError
from cntkio.timeline.fields import damaged, items, whole, wholes
from cntkio.timeline.schedule import Schedule

NUM_TURNS = 1000
"""Number of consecutive turns in which each component has exactly its share."""
# Longer ramps have longer blocks.
_MOST_BLOCKS = 2**20
# Sums of weights, and their products with `NUM_TURNS`, stay finite.
_LARGEST_WEIGHT = 1e300
# Positions of all timelines are below.
_NEVER = 2**62
_Integers = npt.NDArray[np.int64]


@functools.lru_cache(maxsize=64)
def turns_of(counts: tuple[int, ...]) -> _Integers:
    """Return the component of each turn, if each component has a number of turns that are spread evenly.

    Turn number k of n is due at (k + 1/2) / n; earlier components come first.

    Example:
        >>> turns_of((2, 1)).tolist()
        [0, 1, 0]
    """
    due: npt.NDArray[np.float64] = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    turns: _Integers = np.repeat(np.arange(len(counts)), counts)[np.argsort(due, kind="stable")]
    # All callers share the array in the cache.
    turns.flags.writeable = False
    return turns


def end_of_components(ends: Sequence[int], stop: str) -> int:
    """Return where the data of a mixture end, if each component ends its first sweep at one of these positions."""
    return min(ends) if stop == "first" else max(ends)


class _Stretch(NamedTuple):
    """The schedules of all components from a position on."""

    first: int
    schedules: tuple[Schedule, ...]

    @property
    def is_constant(self) -> bool:
        # Any other point begins a block.
        return all(schedule.points == (0,) for schedule in self.schedules)

    def blocks(self, end: int | None) -> tuple[_Integers, npt.NDArray[np.float64]]:
        """Return the first position of each block up to an end, and the weights of its middle."""
        points = {point for schedule in self.schedules for point in schedule.points if point > self.first}
        starts = [self.first, *sorted(points)]
        # A stretch that another replaced at once has no block.
        begins, middles = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for start, following in itertools.zip_longest(starts, starts[1:]):
            if end is not None and start >= end:
                break
            # After the last point, all weights stay as they are.
            size, until, is_ramp = NUM_TURNS, start + 1, False
            if following is not None and self.schedules[0].between == "linear":
                size *= 1 + (following - start) // (NUM_TURNS * _MOST_BLOCKS)
                until, is_ramp = following if end is None else min(following, end), True
            begins.append(np.arange(start, until, size))
            middles.append(begins[-1] + (size // 2 if is_ramp else 0))
        at = np.concatenate(middles)
        return np.concatenate(begins), np.stack([schedule.values_at(at) for schedule in self.schedules], axis=1)


@dataclasses.dataclass(frozen=True)
class Weights:
    """The weights of the components at each position.

    Attributes:
        names: The components.
        stretches: The schedules that hold from some positions on. `set_weights` begins another stretch.
    """

    names: tuple[str, ...]
    stretches: tuple[_Stretch, ...]

    @classmethod
    def of(
        cls, weights: Mapping[str, Any], names: Sequence[str], between: str = "linear", stop: str = "first"
    ) -> Weights:
        """Check the weights of all components, each a number above 0, or a table by position, which may have zeros.

        Args:
            stop: When the data end; with ``"all"`` no weight stays 0, because its component would never end.

        Raises:
            ConfigError: A component has no weight, there is no such component, or a weight is not possible.

        Example:
            >>> weights = Weights.of({"a": {0: 1, 2000: 3}, "b": 1}, ["a", "b"])
            >>> [weights.counts_at(position) for position in (0, 1000, 2000)]
            [(600, 400), (714, 286), (750, 250)]
        """
        if set(weights) != set(names):
            message = f"weights are for {sorted(weights)}; expected a weight for each of {sorted(names)}"
            raise ConfigError(message, key="weights")
        found = {name: Schedule.of(f"the weight of {name!r}", weights[name], between, key="weights") for name in names}
        for name, schedule in found.items():
            for value in schedule.values:
                if not 0 <= value < _LARGEST_WEIGHT or (value == 0 and schedule.points == (0,)):
                    expected = "expected a number above 0, below 1e300; a table of weights may have zeros"
                    raise ConfigError(f"the weight of {name!r} is {value!r}; {expected}", key="weights")
            if stop == "all" and schedule.values[-1] == 0:
                message = f"stop='all' waits for {name!r}, but its weight stays 0 from {schedule.points[-1]} on"
                raise ConfigError(f"{message}; choose stop='first' or stop='forever'", key="weights")
        schedules = tuple(found.values())
        for position in _without_weight(schedules):
            raise ConfigError(f"the weights of all components are 0 at position {position}", key="weights")
        made = cls(tuple(names), (_Stretch(0, schedules),))
        firsts, counts, _ = made._blocks
        has_zeros = np.array([0 in schedule.values for schedule in schedules])
        for block, component in np.argwhere((counts == 0) & ~has_zeros)[:1].tolist():
            name, schedule = list(found.items())[component]
            value = float(schedule.at(int(firsts[block])))
            at = f" at position {firsts[block]}" if len(counts) > 1 else ""
            message = f"the weight of {name!r} is {value!r}{at}, less than a thousandth of all weights"
            raise ConfigError(message, key="weights")
        # Numbers are kept as the turns that follow from them, as a state has them.
        is_constant = made.stretches[0].is_constant
        return cls(made.names, (_Stretch(0, _numbers(counts[0].tolist())),)) if is_constant else made

    @functools.cached_property
    def _blocks(self) -> tuple[_Integers, _Integers, _Integers]:
        """For each block its first position, the turns of each component in 1,000, and those before the block."""
        ends = [stretch.first for stretch in self.stretches[1:]]
        found = [one.blocks(end) for one, end in itertools.zip_longest(self.stretches, ends)]
        firsts, values = map(np.concatenate, zip(*found, strict=True))
        # Sorted, so that the total does not depend on the order of the components.
        exact = NUM_TURNS * values / np.sort(values, axis=1).sum(axis=1, keepdims=True)
        counts = np.floor(exact).astype(np.int64)
        # The components with the largest remainders are rounded up.
        ranks = np.argsort(np.argsort(counts - exact, axis=1, kind="stable"), axis=1)
        counts += ranks < NUM_TURNS - counts.sum(axis=1, keepdims=True)
        rounds, rests = np.divmod(np.diff(firsts), NUM_TURNS)
        taken = np.zeros_like(counts)
        taken[1:] = counts[:-1] * rounds[:, None]
        for block in np.flatnonzero(rests).tolist():
            turns = turns_of(tuple(counts[block].tolist()))[: rests[block]]
            taken[block + 1] += np.bincount(turns, minlength=counts.shape[1])
        return firsts, counts, np.cumsum(taken, axis=0)

    def _block_at(self, position: int) -> int:
        # Before the first position, which only old states do not know, the first block holds.
        return max(int(np.searchsorted(self._blocks[0], position, side="right")) - 1, 0)

    @property
    def first(self) -> int:
        """The first position at which the weights are known."""
        return self.stretches[0].first

    def counts_at(self, position: int) -> tuple[int, ...]:
        """Return the turns of each component in 1,000, at a position."""
        return tuple(self._blocks[1][self._block_at(position)].tolist())

    def shares_at(self, position: int) -> dict[str, float]:
        """Return the share of each component at a position, in thousandths."""
        return {name: count / NUM_TURNS for name, count in zip(self.names, self.counts_at(position), strict=True)}

    def component(self, position: int) -> int:
        """Return the component that has the turn at a position."""
        first = int(self._blocks[0][self._block_at(position)])
        return int(turns_of(self.counts_at(position))[(position - first) % NUM_TURNS])

    def name_at(self, position: int) -> str:
        """Return the name of the component that has the turn at a position."""
        return self.names[self.component(position)]

    def components(self, begin: int, end: int) -> _Integers:
        """Return the component at each position from `begin` to before `end`."""
        firsts = self._blocks[0]
        starts = [begin, *firsts[(firsts > begin) & (firsts < end)].tolist(), max(begin, end)]
        found = [
            turns_of(self.counts_at(start))[(np.arange(start, until) - firsts[self._block_at(start)]) % NUM_TURNS]
            for start, until in itertools.pairwise(starts)
        ]
        return np.concatenate(found)

    def taken_at(self, position: int) -> tuple[int, ...]:
        """Return how many turns each component has had before a position."""
        firsts, counts, taken = (column[self._block_at(position)] for column in self._blocks)
        rounds, rest = divmod(position - int(firsts), NUM_TURNS)
        of_rest = np.bincount(turns_of(tuple(counts.tolist()))[:rest], minlength=len(counts))
        return tuple((taken + rounds * counts + of_rest).tolist())

    def position_after(self, component: int, count: int) -> int:
        """Return the position after turn number `count` of a component, counted from 1; 2^62: it never comes."""
        firsts, counts, taken = self._blocks
        block = int(np.searchsorted(taken[:, component], count)) - 1
        of_block = tuple(counts[block].tolist())
        if of_block[component] == 0:  # only of the last block
            return _NEVER
        rounds, rest = divmod(count - int(taken[block, component]) - 1, of_block[component])
        begin, turn = int(firsts[block]), int(np.flatnonzero(turns_of(of_block) == component)[rest])
        return begin + int(rounds) * NUM_TURNS + turn + 1

    # ------------------------------------------------------------------------------------------ changes, and states

    def changed(self, first: int, following: Weights) -> Weights:
        """Return these weights before a position, and the schedules of others from there on."""
        # Tables stay in the state, also if nothing was delivered by them: `resumed` looks for them.
        kept = [one for one in self.stretches if one.first < first or (one.first == first and not one.is_constant)]
        return Weights(self.names, (*kept, _Stretch(first, following.stretches[-1].schedules)))

    def resumed(self, saved: Weights, position: int) -> Weights:
        """Return the weights with which a mixture of these weights continues a state of others at a position.

        Numbers, and tables that the state has, change nothing: the weights of the state hold. Other tables hold from
        the position on, if they say the same before it.

        Raises:
            CheckpointError: The tables differ before the position.
        """
        schedules = self.stretches[0].schedules
        if self.stretches[0].is_constant or any(schedules == stretch.schedules for stretch in saved.stretches):
            return saved
        first = max(one.first for one in saved.stretches if one.first <= max(position, saved.first))
        kept = [one for one in saved.stretches if one.first < first]
        made = Weights(self.names, (*kept, _Stretch(first, schedules)))
        starts = np.union1d(saved._blocks[0], made._blocks[0])
        differ = starts[(saved._course(starts) != made._course(starts)).any(axis=1)][:1].tolist()
        for start in differ:
            if start >= position:
                return made
            was, now = (of.shares_at(start) for of in (saved, made))
            what = f"the weights differ from position {start} on, before position {position} of the state"
            advice = "open the mixture with the weights of the state, and change them there with set_weights"
            raise CheckpointError(f"{what}: saved {was}, here {now}; {advice}", saved=was, current=now)
        return saved

    def _course(self, positions: _Integers) -> _Integers:
        """Return for each position all that decides the turns from there on: their counts, and the next turn."""
        firsts, counts, _ = self._blocks
        at = np.maximum(np.searchsorted(firsts, positions, side="right") - 1, 0)
        return np.column_stack([counts[at], (positions - firsts[at]) % NUM_TURNS])

    def ordered(self, names: Sequence[str]) -> Weights:
        """Return the weights of the same components in another order."""
        places = [self.names.index(name) for name in names]
        stretches = (_Stretch(one.first, tuple(one.schedules[place] for place in places)) for one in self.stretches)
        return Weights(tuple(names), tuple(stretches))

    def to_json(self) -> list[list[Any]]:
        """Return the weights for a state: for each stretch its first position, its weights, and the turns before."""
        found = []
        for stretch in self.stretches:
            is_constant = stretch.is_constant
            weights = [of_one.values[0] if is_constant else of_one.to_json() for of_one in stretch.schedules]
            found.append([stretch.first, weights, list(self.taken_at(stretch.first))])
        return found

    @classmethod
    def from_json(cls, json: Any, names: Sequence[str]) -> Weights:
        """Read the field `weights` of a state; a damaged one is a `CheckpointError`."""
        entries = [(*items("weights", entry), None, None, None)[:3] for entry in items("weights", json)]
        stretches = [_Stretch(whole("weights", first, 2**62), _saved(of, len(names))) for first, of, _ in entries]
        firsts = [stretch.first for stretch in stretches]
        if not firsts or any(one > other for one, other in itertools.pairwise(firsts)):
            raise damaged("weights", json, "weights from some positions on, in ascending order")
        made = cls(tuple(names), tuple(stretches))
        for (first, _, taken), entry in zip(entries, items("weights", json), strict=True):
            if wholes("weights", taken, [0] * len(names)) != list(made.taken_at(first)):
                raise damaged("weights", entry, "the turns of each component before the position")
        return made


def _numbers(values: Sequence[float]) -> tuple[Schedule, ...]:
    return tuple(Schedule((0,), (value,)) for value in values)


def _without_weight(schedules: Sequence[Schedule]) -> list[int]:
    """Return the first of the points at which all weights are 0, if there is one."""
    points = np.array(sorted({point for schedule in schedules for point in schedule.points}), np.int64)
    sums = np.sum([schedule.values_at(points) for schedule in schedules], axis=0)
    found: list[int] = points[sums == 0][:1].tolist()
    return found


def _saved(json: Any, num_components: int) -> tuple[Schedule, ...]:
    """Read the weights of a stretch: turns, which are 1,000 together, or schedules."""
    if not any(isinstance(of_one, list | tuple) for of_one in items("weights", json)):
        counts = wholes("weights", json, [1] * num_components)
        if sum(counts) != NUM_TURNS:
            raise damaged("weights", json, f"{NUM_TURNS} turns")
        return _numbers(counts)
    schedules = tuple(Schedule.from_json("weights", of_one) for of_one in json)
    are_possible = all(0 <= value < _LARGEST_WEIGHT for schedule in schedules for value in schedule.values)
    is_damaged = len(schedules) != num_components or not are_possible or len({one.between for one in schedules}) > 1
    if is_damaged or _without_weight(schedules):
        raise damaged("weights", json, f"{num_components} tables of weights, all 'linear' or all 'steps', never all 0")
    return schedules

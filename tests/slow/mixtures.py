"""Mixtures, slow and obvious: one sequence, or one minibatch, at a time. (docs/mixtures.md)"""

from __future__ import annotations

import functools
from fractions import Fraction

from slow.timeline import sweep_order

NUM_TURNS = 1000


@functools.lru_cache(maxsize=256)
def turns(counts: tuple[int, ...]) -> list[int]:
    """Spread the turns of each part evenly: number k of n is due at (k + 1/2) / n, and earlier parts come first."""
    due = [(Fraction(2 * k + 1, 2 * count), part) for part, count in enumerate(counts) for k in range(count)]
    return [part for _, part in sorted(due)]


def scheduled(
    tables: list[dict[int, float]], *, is_linear: bool, end: int, first: int = 0
) -> list[tuple[int, list[int]]]:
    """Return the position and the turns of each block of tables of weights, from a position up to another."""
    points = sorted({first, *(point for table in tables for point in table if first < point < end)})
    last = max((point for table in tables for point in table), default=0)
    found = []
    for start, until in zip(points, [*points[1:], end], strict=True):
        is_ramp = is_linear and start < last
        for begin in range(start, max(until, start + 1), NUM_TURNS) if is_ramp else [start]:
            at = begin + NUM_TURNS // 2 if is_ramp else begin
            weights = [weight(table, at, is_linear=is_linear) for table in tables]
            exact = [NUM_TURNS * one / sum(weights) for one in weights]
            counts = [int(one) for one in exact]
            by_remainder = sorted(range(len(tables)), key=lambda part: counts[part] - exact[part])
            for part in by_remainder[: NUM_TURNS - sum(counts)]:
                counts[part] += 1
            found.append((begin, counts))
    return found


def weight(table: dict[int, float], at: int, *, is_linear: bool) -> Fraction:
    """Return the weight at a position."""
    before = [point for point in sorted(table) if point <= at] or [min(table)]
    after = [point for point in sorted(table) if point > at]
    first, value = before[-1], Fraction(table[before[-1]])
    if not is_linear or not after or first > at:
        return value
    return value + (Fraction(table[after[0]]) - value) * Fraction(at - first, after[0] - first)


def minibatches(
    weights: list[tuple[int, list[int]]], parts: list[list[tuple[list[int], bool]]], stop: str, end: int
) -> list[tuple[int, list[int]]]:
    """Return the part and the keys of each step of a mixture by minibatch, at most `end` steps.

    Each of `parts` has the minibatches of a part: their keys, and whether a sweep ends with them.
    """
    found: list[tuple[int, list[int]]] = []
    finished, passed = [False] * len(parts), [0] * len(parts)
    while len(found) < end:
        if stop != "forever" and (any(finished) if stop == "first" else all(finished)):
            break
        first, counts = [of_time for of_time in weights if of_time[0] <= len(found)][-1]
        part = turns(tuple(counts))[(len(found) - first) % NUM_TURNS]
        keys, ends_sweep = parts[part][passed[part]]
        passed[part] += 1
        finished[part] |= ends_sweep
        found.append((part, keys))
    return found


class SlowMixture:
    """The mixed order of tables, which are lists of chunks of lengths. Sequences are numbered over all tables.

    `weights` are pairs: a position, and the turns of each part from there on.
    """

    def __init__(self, tables: list[list[list[int]]], weights: list[tuple[int, list[int]]], seeds: list[int]) -> None:
        self.tables, self.weights, self.seeds = tables, weights, seeds
        self.sizes = [sum(map(len, table)) for table in tables]
        self.lengths = [length for table in tables for chunk in table for length in chunk]

    def part_of(self, position: int) -> int:
        first, counts = [of_time for of_time in self.weights if of_time[0] <= position][-1]
        return turns(tuple(counts))[(position - first) % NUM_TURNS]

    def order(self, end: int) -> tuple[list[int], list[bool]]:
        """Return the sequences up to a position, and whether a part ends a sweep with them."""
        taken = [0] * len(self.tables)
        sequences, ends = [], []
        for position in range(end):
            part = self.part_of(position)
            sweep, number = divmod(taken[part], self.sizes[part])
            chunks = self.tables[part]
            order = sweep_order(chunks, len(chunks), "chunks", self.seeds[part] + sweep)
            sequences.append(sum(self.sizes[:part]) + order[number][1])
            ends.append(number == self.sizes[part] - 1)
            taken[part] += 1
        return sequences, ends

    def end(self, stop: str) -> int:
        """Return the position at which the first part, or the last, has delivered a sweep."""
        taken = [0] * len(self.tables)
        position = 0
        while True:
            taken[self.part_of(position)] += 1
            position += 1
            finished = [count >= size for count, size in zip(taken, self.sizes, strict=True)]
            if any(finished) if stop == "first" else all(finished):
                return position

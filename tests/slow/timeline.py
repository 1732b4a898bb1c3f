"""The timeline, slow and obvious: lists and loops, one sequence at a time, with every result computed afresh.

A table is a list of chunks, each a list of lengths; a sequence is its number in file order. The code follows
docs/timeline.md, in its order. Tests compare the deliveries of the fast timeline with this timeline.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from support.twister import WORD, draws


def order_of_chunks(num_chunks: int, seed: int) -> list[int]:
    order = list(range(num_chunks))
    for i, draw in zip(range(num_chunks), draws(seed), strict=False):
        j = draw % num_chunks
        order[i], order[j] = order[j], order[i]
    return order


def windows(samples: list[int], size: int, unit: str) -> list[tuple[int, int]]:
    """Return the window [first, end) of each rank; `samples` are the numbers of samples of the chunks by rank."""
    n, half = len(samples), max(size, 1) // 2
    bounds = []
    if unit == "chunks":
        for rank in range(n):
            first = max(rank - half, 0)
            end = first + max(size, 1)
            bounds.append((first, end) if end <= n else (max(n - max(size, 1), 0), n))
        return bounds
    end = 1
    for rank in range(n):
        first = next(a for a in range(rank + 1) if sum(samples[a:rank]) <= half)
        end = max(end, rank + 1)
        while end < n and sum(samples[rank : end + 1]) < half:
            end += 1
        bounds.append((first, end))
    return bounds


def sweep_order(chunks: list[list[int]], size: int, unit: str, seed: int) -> list[tuple[int, int]]:
    """Return (home rank, sequence) for each sequence, in the order of a sweep with this seed."""
    order = order_of_chunks(len(chunks), seed)
    window = windows([sum(chunks[chunk]) for chunk in order], size, unit)
    before = [sum(len(chunk) for chunk in chunks[:k]) for k in range(len(chunks))]
    slots = [(rank, before[chunk] + k) for rank, chunk in enumerate(order) for k in range(len(chunks[chunk]))]
    rank_of = [rank for rank, _ in slots]
    generator = draws(seed)
    for t, rank in enumerate(rank_of):
        first, end = window[rank]
        inside = [position for position, owner in enumerate(rank_of) if first <= owner < end]
        while True:
            j = inside[next(generator) % len(inside)]
            may_come = first <= slots[j][0] < end
            may_go = window[rank_of[j]][0] <= slots[t][0] < window[rank_of[j]][1]
            if may_come and may_go:
                break
        slots[t], slots[j] = slots[j], slots[t]
    return slots


def mixed(number: int) -> int:
    """Return the bits of a number, spread over all bits."""
    number = (number + 0x9E3779B97F4A7C15) % WORD
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % WORD
    number = (number ^ number >> 27) * 0x94D049BB133111EB % WORD
    return number ^ number >> 31


def permutation(count: int, key: int) -> list[int]:
    """Return the numbers below `count` in the order of a key."""
    bits = max((count - 1).bit_length(), 8)
    left_bits, right_bits = bits // 2, bits - bits // 2

    def function(half: int, number: int) -> int:
        product = (half ^ mixed(key + number * 0x0A0761D6478BD642 % WORD)) * 0x9E3779B97F4A7C15 % WORD
        return (product ^ product >> 32) * 0xD6E8FEB86659FD93 % WORD >> 32

    def network(number: int) -> int:
        left, right = number >> right_bits, number % 2**right_bits
        for first in (1, 3, 5, 7):
            left ^= function(right, first) % 2**left_bits
            right ^= function(left, first + 1) % 2**right_bits
        return (left << right_bits) + right

    order = []
    for number in range(count):
        number = network(number)
        while number >= count:
            number = network(number)
        order.append(number)
    return order


def keyed_order(chunks: list[list[int]], size: int, unit: str, seed: int, sweep: int) -> list[tuple[int, int]]:
    """Return (home rank, sequence) for each sequence, in the keyed order of a sweep."""
    key = mixed(mixed(seed) ^ sweep)
    order = permutation(len(chunks), mixed(key))
    sizes = [1 if unit == "chunks" else sum(chunks[chunk]) for chunk in order]
    num_windows = -(-sum(sizes) // size)
    window_of = [sum(sizes[:rank]) * num_windows // sum(sizes) for rank in range(len(order))]
    before = [sum(len(chunk) for chunk in chunks[:k]) for k in range(len(chunks))]
    slots: list[tuple[int, int]] = []
    for first, window in enumerate(window_of):
        if first and window == window_of[first - 1]:
            continue
        ranks = [rank for rank, of_rank in enumerate(window_of) if of_rank == window]
        here = [(rank, before[order[rank]] + k) for rank in ranks for k in range(len(chunks[order[rank]]))]
        slots += [here[place] for place in permutation(len(here), mixed(key ^ (1 + first)))]
    return slots


@dataclass
class SlowTimeline:
    """The slow timeline. `window` is a size and a unit, or None."""

    chunks: list[list[int]]
    window: tuple[int, str] | None
    seed: int = 0
    max_samples: int | None = None
    max_sweeps: int | None = None
    truncation_length: int = 0
    crosses_sweeps: bool = True
    size_counts: str = "own"
    counts_sequences: bool = False
    position: int = 0
    settings: tuple[int, int, int] | None = None
    turn: int = 0
    slots: list[list[list[Any]]] = field(default_factory=list)
    ended: bool = False
    is_keyed: bool = False

    def __post_init__(self) -> None:
        self.lengths = [length for chunk in self.chunks for length in chunk]
        self.sweep_samples = sum(self.lengths)
        self.end = 2**63 - 1 if self.max_samples is None else self.max_samples
        if self.max_samples == 2**64 - 2:
            self.end = self.sweep_samples
        if self.max_sweeps is not None:
            self.end = self.max_sweeps * self.sweep_samples
        self.orders: dict[int, list[tuple[int, int]]] = {}

    def order(self, sweep: int) -> list[tuple[int, int]]:
        if self.window is None:
            return [(0, sequence) for sequence in range(len(self.lengths))]
        if sweep not in self.orders:
            of_seed = (self.seed, sweep) if self.is_keyed else ((self.seed + sweep) % WORD,)
            self.orders[sweep] = (keyed_order if self.is_keyed else sweep_order)(self.chunks, *self.window, *of_seed)
        return self.orders[sweep]

    def index(self) -> int:
        """Return the number of sequences of the sweep before the position."""
        samples = 0
        for index, (_, sequence) in enumerate(self.order(self.position // self.sweep_samples)):
            if samples >= self.position % self.sweep_samples:
                return index
            samples += self.lengths[sequence]
        return len(self.lengths)

    def restore(self, position: int) -> None:
        self.position = position
        order = self.order(position // self.sweep_samples)
        passed = sum(self.lengths[sequence] for _, sequence in order[: self.index()])
        self.position += passed - position % self.sweep_samples
        self.settings, self.ended = None, False

    def read(self, size: int, index: int, count: int) -> tuple[list[Any], bool] | None:
        """Return sequences, or (slot, sequence, first sample, num_samples, step, continues); and the sweep flag."""
        if self.ended:
            return None
        if (size, index, count) != self.settings:
            self.settings = (size, index, count)
            self.turn = self.index() % len(self.lengths)
            if self.window is not None and index >= len(self.chunks):
                self.position = self.end
            num_slots = max(1, size // self.truncation_length) if self.truncation_length else 0
            self.slots = [[] for _ in range(num_slots // count + (index < num_slots % count))]
        share = max(1, size // count + (index < size % count))
        if self.truncation_length:
            found, flag, self.ended = self.truncated()
        elif self.size_counts == "own":
            found, flag, self.ended = self.whole(share, WORD)
        else:
            found, flag, self.ended = self.whole(size, size)
        if not found:
            return None if self.ended else ([], flag and not self.crosses_sweeps)
        return found, flag

    def whole(self, share: int, passed: int) -> tuple[list[int], bool, bool]:
        return (self.in_order if self.window is None else self.randomized)(share, passed)

    def randomized(self, share: int, most_passed: int) -> tuple[list[int], bool, bool]:
        _, index, count = self.settings or (0, 0, 1)
        out: list[int] = []
        taken, passed, flag = 0, 0, False
        for number in range(10**9):
            start = self.position
            if start >= self.end:
                return out, flag or (start >= self.sweep_samples and start % self.sweep_samples == 0), True
            must_take = number == 0
            for rank, sequence in self.order(start // self.sweep_samples)[self.index() :]:
                length = self.lengths[sequence]
                counted = 1 if self.counts_sequences else length
                is_local = rank % count == index
                if not must_take and is_local and taken + counted > share:
                    break
                if not must_take and passed + counted > most_passed:
                    break
                if self.position >= self.end:
                    break
                if is_local:
                    out.append(sequence)
                    taken += counted
                    must_take = False
                self.position += length
                passed += counted
            flag |= self.position // self.sweep_samples != start // self.sweep_samples
            stuck = number > 0 and self.position == start
            if stuck or not flag or self.position >= self.end or taken >= share or not self.crosses_sweeps:
                break
        return out, flag, self.position >= self.end

    def in_order(self, share: int, most_passed: int) -> tuple[list[int], bool, bool]:
        _, index, count = self.settings or (0, 0, 1)
        sweep = self.position // self.sweep_samples
        out: list[int] = []
        taken = passed = 0
        at = self.index()
        while self.position < self.end and taken < share and passed < most_passed:
            length = self.lengths[at]
            counted = 1 if self.counts_sequences else length
            is_local = self.turn % count == index
            if out and ((is_local and taken + counted > share) or passed + counted > most_passed):
                break
            if is_local:
                out.append(at)
                taken += counted
            self.position += length
            passed += counted
            self.turn += 1
            at = (at + 1) % len(self.lengths)
            if at == 0 and not self.crosses_sweeps:
                break
        return out, self.position // self.sweep_samples != sweep, self.position >= self.end

    def truncated(self) -> tuple[list[Any], bool, bool]:
        steps = self.truncation_length
        for slot in self.slots:
            while sum(self.lengths[sequence] - cursor for sequence, cursor, _ in slot) <= steps:
                found, flag, ended = self.whole(1, WORD)
                slot.extend([sequence, 0, flag] for sequence in found)
                if ended:
                    break
        parts = []
        end_of_sweep = False
        for number, slot in enumerate(self.slots):
            for step in range(steps):
                if not slot:
                    break
                sequence, cursor, flag = slot[0]
                if cursor == 0 or step == 0:
                    parts.append([number, sequence, cursor, 0, step, True])
                parts[-1][3] += 1
                slot[0][1] += 1
                if slot[0][1] == self.lengths[sequence]:
                    parts[-1][5] = False
                    end_of_sweep |= flag
                    del slot[0]
        return [tuple(part) for part in parts], end_of_sweep, not any(self.slots)


def slow_join(
    tables: list[tuple[list[Any], list[int], list[int]]], defining: int | None
) -> tuple[list[list[int]], list[list[int]]]:
    """Join tables of keys, lengths and sizes of chunks; return chunks of lengths, and partners of each sequence."""
    chunks, partners = [], []
    sequence = 0
    for size in tables[0][2]:
        chunk = []
        for number in range(sequence, sequence + size):
            key = tables[0][0][number]
            if all(key in keys for keys, _, _ in tables):
                found = [number, *(keys.index(key) for keys, _, _ in tables[1:])]
                counts = [lengths[at] for at, (_, lengths, _) in zip(found, tables, strict=True)]
                chunk.append(max(counts) if defining is None else counts[defining])
                partners.append(found)
        sequence += size
        if chunk:
            chunks.append(chunk)
    return chunks, partners

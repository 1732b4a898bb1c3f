"""Lanes, slow and obvious: lists and loops, one sequence at a time. (docs/timeline.md, "Lanes")"""

from __future__ import annotations

import dataclasses
from typing import Any

from cntkio import Budget
from support.twister import WORD

from slow.batches import is_taken, shuffled, sweep_of_batches
from slow.mixtures import SlowMixture
from slow.timeline import keyed_order, sweep_order

GOLDEN = 0x9E3779B97F4A7C15


def lanes_of(chunks: list[list[int]], num_lanes: int) -> list[list[list[int]]]:
    """Return the chunks of each lane, each a list of sequences."""
    total = sum(map(sum, chunks))
    lanes: list[list[list[int]]] = [[] for _ in range(num_lanes)]
    sequence = before = 0
    for chunk in chunks:
        pieces: dict[int, list[int]] = {}
        for length in chunk:
            # The lane is the last whose part of the samples begins at or before the sequence.
            lane = max(number for number in range(num_lanes) if total * number // num_lanes <= before)
            pieces.setdefault(lane, []).append(sequence)
            sequence, before = sequence + 1, before + length
        for lane, piece in pieces.items():
            lanes[lane].append(piece)
    return lanes


def lane_order(
    lengths: list[int], lane: list[list[int]], window: tuple[Any, ...], num_lanes: int, seed: int, sweep: int
) -> list[int]:
    """Return the sequences of a lane in the order of a sweep; `window` has `"keyed"` after its size and unit."""
    size, unit, *keyed = window
    own = [sequence for piece in lane for sequence in piece]
    chunks = [[lengths[sequence] for sequence in piece] for piece in lane]
    size = -(-size // num_lanes)
    if keyed and own:
        return [own[index] for _, index in keyed_order(chunks, size, unit, seed, sweep)]
    return [own[index] for _, index in sweep_order(chunks, size, unit, (seed + sweep) % WORD)]


def merged_order(
    chunks: list[list[int]], window: tuple[Any, ...], num_lanes: int, seed: int, sweep: int
) -> list[tuple[int, int]]:
    """Return the lane and the sequence of each place of a sweep: what starts first in its lane comes first."""
    lengths = [length for chunk in chunks for length in chunk]
    found = []
    for number, lane in enumerate(lanes_of(chunks, num_lanes)):
        before = 0
        for sequence in lane_order(lengths, lane, window, num_lanes, (seed + (number + 1) * GOLDEN) % WORD, sweep):
            found.append((before, number, sequence))
            before += lengths[sequence]
    return [(lane, sequence) for _, lane, sequence in sorted(found)]


def spread(lengths: list[int], sequences: list[int], lane: int, num_steps: int, seed: int) -> list[list[int]]:
    """Return the sequences of each step: the longest goes to the bin with the fewest samples."""
    bins: list[list[int]] = [[] for _ in range(num_steps)]

    def load(number: int) -> int:
        return sum(lengths[sequence] for sequence in bins[number])

    for sequence in sorted(sequences, key=lambda sequence: -lengths[sequence]):
        bins[min(range(num_steps), key=load)].append(sequence)
    steps: list[list[int]] = [[] for _ in range(num_steps)]
    numbers = shuffled(num_steps, seed)
    begin = int(f"{lane:064b}"[::-1], 2) * num_steps // WORD
    # From the fullest bin to the emptiest.
    for at, number in enumerate(sorted(range(num_steps), key=lambda number: (-load(number), -number))):
        side = 1 if at % 2 else -1
        steps[numbers[(begin + side * ((at + 1) // 2)) % num_steps]] = [one for one in sequences if one in bins[number]]
    return steps


def sweep_in_lanes(
    chunks: list[list[int]], window: tuple[Any, ...], seed: int, sweep: int, num_lanes: int, size: int | Budget
) -> list[list[list[int]]]:
    """Return for each step of a sweep the sequences of each lane."""
    lengths = [length for chunk in chunks for length in chunk]
    total, lanes = sum(lengths), lanes_of(chunks, num_lanes)
    if isinstance(size, Budget):
        share = size.share(num_lanes)
        if size.pool is not None:
            share = dataclasses.replace(share, pool=-(-size.pool // num_lanes))
        of_lanes = []
        for number, lane in enumerate(lanes):
            of_lane = (seed + (number + 1) * GOLDEN) % WORD
            order = lane_order(lengths, lane, window, num_lanes, of_lane, sweep)
            own = [True] * len(order)
            of_lanes.append(sweep_of_batches(share, lengths, order, own, (of_lane + sweep) % WORD) if order else [])
        most = max(map(len, of_lanes))
        return [[batches[step] if step < len(batches) else [] for batches in of_lanes] for step in range(most)]
    num_steps = -(-total // size)
    num_samples = window[0] if window[1] == "samples" else window[0] * total // len(chunks)
    num_blocks = -(-num_steps // min(max(num_samples // size, 8), 64))
    steps: list[list[list[int]]] = [[[] for _ in lanes] for _ in range(num_steps)]
    for number, lane in enumerate(lanes):
        order = lane_order(lengths, lane, window, num_lanes, (seed + (number + 1) * GOLDEN) % WORD, sweep)
        of_lane, starts = sum(lengths[sequence] for sequence in order), [0]
        for sequence in order:
            starts.append(starts[-1] + lengths[sequence])
        for block in range(num_blocks):
            first, last = num_steps * block // num_blocks, num_steps * (block + 1) // num_blocks
            begin, end = of_lane * first // num_steps, of_lane * last // num_steps
            own = [one for one, start in zip(order, starts, strict=False) if begin <= start < end]
            for step, of_step in enumerate(spread(lengths, own, number, last - first, (seed + sweep + first) % WORD)):
                steps[first + step][number] = of_step
    return steps


class SlowMixtureInLanes(SlowMixture):
    """The mixed order of tables, each in lanes. Each table has its own of the `windows`."""

    def __init__(self, *arguments: Any, windows: list[tuple[Any, ...]], num_lanes: int) -> None:
        super().__init__(*arguments)
        self.windows, self.num_lanes = windows, num_lanes

    def in_lanes(self, end: int) -> list[tuple[int, int]]:
        """Return the lane and the sequence of each position up to another."""
        taken = [0] * len(self.tables)
        orders: dict[tuple[int, int], list[tuple[int, int]]] = {}
        found = []
        for position in range(end):
            part = self.part_of(position)
            sweep, number = divmod(taken[part], self.sizes[part])
            if (part, sweep) not in orders:
                rules = self.windows[part], self.num_lanes, self.seeds[part], sweep
                orders[part, sweep] = merged_order(self.tables[part], *rules)
            lane, sequence = orders[part, sweep][number]
            found.append((lane, sum(self.sizes[:part]) + sequence))
            taken[part] += 1
        return found

    def blocks(self, order: list[tuple[int, int]], size: int | Budget) -> list[tuple[int, int]]:
        """Return the first position of each block of an order, and the position after its last."""
        found, begin = list[tuple[int, int]](), 0
        while begin < len(order):
            if isinstance(size, Budget) and size.pool is not None:
                end = self.end_of_pool(order, begin, size, size.pool)
            else:
                samples = size if isinstance(size, int) else size.samples or size.padded or 0
                num_sequences = samples * 128 * len(self.lengths) // sum(self.lengths)
                end = min(begin + max(num_sequences, self.num_lanes), len(order))
            found.append((begin, end))
            begin = end
        return found

    def end_of_pool(self, order: list[tuple[int, int]], begin: int, size: Budget, pool: int) -> int:
        """Return the position of the sequence that would exceed a pool."""
        amount = count = 0
        for position in range(begin, len(order)):
            length = self.lengths[order[position][1]]
            if is_taken(size.share(self.num_lanes), length):
                amount += length if size.pool_unit == "samples" else 1
                if count and amount > pool:
                    return position
                count += 1
        return len(order)

    def steps(self, order: list[tuple[int, int]], size: int | Budget, seed: int) -> list[list[list[int]]]:
        """Return for each step of an order the sequences of each lane."""
        found: list[list[list[int]]] = []
        for begin, end in self.blocks(order, size):
            of_lanes = []
            for number in range(self.num_lanes):
                own = [sequence for lane, sequence in order[begin:end] if lane == number]
                if isinstance(size, int):
                    num_samples = sum(self.lengths[sequence] for _, sequence in order[begin:end])
                    num_steps = min(-(-num_samples // size), end - begin)
                    # By places, because a sequence may come twice, in two sweeps.
                    lengths = [self.lengths[sequence] for sequence in own]
                    steps = spread(lengths, [*range(len(own))], number, num_steps, (seed + begin) % WORD)
                    of_lanes.append([[own[place] for place in step] for step in steps])
                else:
                    seed_of_lane = (seed + begin + (number + 1) * GOLDEN) % WORD
                    of_lanes.append(self.minibatches(own, size, seed_of_lane))
            num_steps = max(map(len, of_lanes))
            together = [[of_lane[at] if at < len(of_lane) else [] for of_lane in of_lanes] for at in range(num_steps)]
            found += [step for step in together if any(step)]
        return found

    def minibatches(self, sequences: list[int], size: Budget, seed: int) -> list[list[int]]:
        """Cut the sequences of a lane in a block, which is a single pool."""
        share = size.share(self.num_lanes)
        if size.pool is not None:
            share = dataclasses.replace(share, pool=len(sequences) + 1, pool_unit="sequences")
        return sweep_of_batches(share, self.lengths, sequences, [True] * len(sequences), seed) if sequences else []

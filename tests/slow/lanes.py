"""Lanes, slow and obvious: lists and loops, one sequence at a time. (docs/timeline.md, "Lanes")"""

from __future__ import annotations

import dataclasses
from typing import Any

from cntkio import Budget
from support.twister import WORD

from slow.batches import shuffled, sweep_of_batches
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


def spread(lengths: list[int], sequences: list[int], lane: int, num_steps: int, seed: int) -> list[list[int]]:
    """Return the sequences of each step: the longest goes to the bin with the fewest samples."""
    bins: list[list[int]] = [[] for _ in range(num_steps)]

    def load(number: int) -> int:
        return sum(lengths[sequence] for sequence in bins[number])

    for sequence in sorted(sequences, key=lambda sequence: -lengths[sequence]):
        bins[min(range(num_steps), key=load)].append(sequence)
    steps: list[list[int]] = [[] for _ in range(num_steps)]
    numbers = shuffled(num_steps, seed)
    begin = lane * GOLDEN % WORD * num_steps // WORD
    # From the fullest bin to the emptiest.
    for at, number in enumerate(sorted(range(num_steps), key=lambda number: (-load(number), -number))):
        steps[numbers[(begin + at) % num_steps]] = [one for one in sequences if one in bins[number]]
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
    num_blocks = -(-num_steps // min(max(num_samples // size, 1), 64))
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

"""Sequences that are left out, slow and obvious: one sequence at a time. (docs/ledger.md)"""

from __future__ import annotations

from slow.timeline import sweep_order


def order(chunks: list[list[int]], window: int, seed: int, num_sweeps: int) -> list[tuple[int, int, int, int]]:
    """Return (sequence, samples, position, sweep) for each place in the order; a window of 0 is the order of the file.

    The order has all sequences. A sequence that is left out keeps its place and its samples.
    """
    lengths = [length for chunk in chunks for length in chunk]
    places, position = [], 0
    for sweep in range(num_sweeps):
        shuffled = (
            sweep_order(chunks, window, "chunks", seed + sweep) if window else list(enumerate(range(len(lengths))))
        )
        for _, sequence in shuffled:
            places.append((sequence, lengths[sequence], position, sweep))
            position += lengths[sequence]
    return places


def kept(places: list[tuple[int, int, int, int]], left_out: dict[int, set[int]]) -> list[tuple[int, int, int, int]]:
    """Leave out each place at or after a position whose sequence is left out from that position on."""
    return [
        place
        for place in places
        if not any(place[0] in gone and place[2] >= position for position, gone in left_out.items())
    ]


def minibatches(
    places: list[tuple[int, int, int, int]], *, samples: int, padded: int, sequences: int, crosses_sweeps: bool
) -> list[list[int]]:
    """Cut places greedily. A sequence that exceeds a limit comes alone."""
    cut: list[list[tuple[int, int, int, int]]] = []
    for place in places:
        more = [*(cut[-1] if cut else []), place]
        lengths = [length for _, length, _, _ in more]
        fits = sum(lengths) <= samples and max(lengths) * len(lengths) <= padded and len(lengths) <= sequences
        if cut and fits and (crosses_sweeps or cut[-1][0][3] == place[3]):
            cut[-1].append(place)
        else:
            cut.append([place])
    return [[sequence for sequence, _, _, _ in of] for of in cut]

"""Attention time that ranks lose by waiting for each other, and how fast the batches are planned.

    python bench/balance.py [--sequences 64000] [--lengths FILE] [--row-length 4096] [--minibatches]

Each step of a job takes as long as its slowest rank, and a rank takes the sum of the squares of its lengths. The table
shows the share of all ranks' time that is lost, 1 - mean / maximum over ranks, summed over the steps; the share of
cells that are filled; and planned sequences a second of processor time. Each rank has one or several rows in a step, of
`--row-length` samples.

| planner | |
|---|---|
| first fit | each sequence, in random order, into the first row in which it fits, of at most 1,000 open rows |
| sorted pool | a pool is sorted by length; each row takes the next sequences that fit |
| cntkio, packed | `Budget(rows=..., row_length=..., pool=...)`: best fit, the longest first |
| cntkio, equal cost | the same with `balance="attention"` |
| Transformers | `LengthGroupedSampler`; its minibatches have as many sequences as a mean minibatch of the others |
| Megatron | `first_fit_decreasing` of Megatron-Bridge's packing, a pool at a time |
| no better | a bound: no rows have less, since a row costs at least the square of its longest sequence |

With `--minibatches` nothing is packed: a minibatch of all ranks has two times `--row-length` samples for each rank,
with padding (`padded`) or without (`ragged`), and its sequences are dealt to the ranks.

| planner | |
|---|---|
| arrival order | sequences as they come, dealt in turn |
| sorted pool | a pool is sorted by length, cut, and dealt in turn |
| cntkio, by length | `Budget(padded=..., pool=...)` or `Budget(samples=..., pool=...)`, dealt by length |
| cntkio, equal cost | the same with `balance="attention"` |
| no better | a bound for these minibatches: no deal of their sequences loses less |

The bound: the rank with the longest sequence costs at least its square; and of any k times `ranks` + 1 sequences, one
rank has k + 1. `in arrays` is the time lost if a rank pads its sequences to their longest: it costs their number
times the square.

The lengths are log-normal, or of FILE: a text with a length on each line, or a corpus that cntkio reads. No data are
read otherwise. Without transformers or Megatron their rows are left out.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import itertools
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cntkio import Budget, CTFDeserializer, MinibatchSource, _core, infer_streams

OPEN_rowS = 1000
Lengths = npt.NDArray[np.uint32]
Steps = Iterator[list[Lengths]]  # for each step, the lengths of each row
Planner = Callable[[Lengths, int, int, int], Steps]


def log_normal(median: int, sigma: float, count: int) -> Lengths:
    """Draw lengths of at most a row."""
    return np.clip(np.random.default_rng(1).lognormal(np.log(median), sigma, count), 1, 4096).astype(np.uint32)


def grouped(rows: list[list[int]], count: int) -> Steps:
    """Yield minibatches of consecutive rows."""
    for at in range(0, len(rows), count):
        yield [np.array(row, np.uint32) for row in rows[at : at + count]]


def first_fit(lengths: Lengths, count: int, row: int, pool: int) -> Steps:
    """Pack in order of arrival."""
    closed: list[list[int]] = []
    rows: list[list[int]] = []
    rooms: list[int] = []
    for length in lengths.tolist():
        at = next((at for at, room in enumerate(rooms) if room >= length), len(rows))
        if at == len(rows):
            rows.append([])
            rooms.append(row)
        rows[at].append(length)
        rooms[at] -= length
        if rooms[at] == 0 or len(rows) > OPEN_rowS:
            fullest = min(range(len(rows)), key=rooms.__getitem__)
            closed.append(rows.pop(fullest))
            rooms.pop(fullest)
    yield from grouped(closed + rows, count)


def sorted_pool(lengths: Lengths, count: int, row: int, pool: int) -> Steps:
    """Sort each pool, and fill row after row."""
    for first in range(0, len(lengths), pool):
        rows: list[list[int]] = [[]]
        for length in sorted(lengths[first : first + pool].tolist(), reverse=True):
            if sum(rows[-1]) + length > row:
                rows.append([])
            rows[-1].append(length)
        yield from grouped(rows, count)


def cntkio(balance: bool) -> Planner:
    """Pack with budgets: the functions of the core that sources and plans call."""

    def plan(lengths: Lengths, count: int, row: int, pool: int) -> Steps:
        core = Budget(rows=count, row_length=row, pool=pool, balance="attention" if balance else None).for_core()
        for first in range(0, len(lengths), pool):
            own = lengths[first : first + pool]
            cut = core.batches(own, first, first)
            arranged = own[cut.order]
            for begin, end in itertools.pairwise(cut.bounds):
                # A row ends where the number of the row changes.
                cuts = np.flatnonzero(np.diff(cut.loads[begin:end])) + 1
                yield np.split(arranged[begin:end], cuts)

    return plan


def transformers(lengths: Lengths, count: int, row: int, pool: int) -> Steps:
    """Deal the sampler's minibatches to ranks in turn, as its Trainer does."""
    from transformers.trainer_pt_utils import LengthGroupedSampler

    size = max(int(count * row / lengths.mean()), count)
    order = list(LengthGroupedSampler(size, lengths=lengths.tolist()))
    for first in range(0, len(order), size):
        batch = lengths[order[first : first + size]]
        yield [batch[rank::count] for rank in range(count)]


@functools.cache
def packing_of_megatron() -> Any:
    """Load the file by itself: the package needs CUDA."""
    package = importlib.util.find_spec("megatron")
    folders = [] if package is None else package.submodule_search_locations or []
    for folder in folders:
        file = Path(folder) / "bridge" / "data" / "datasets" / "packing_utils.py"
        if file.exists() and (spec := importlib.util.spec_from_file_location("packing_utils", file)) and spec.loader:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise ImportError("no megatron-bridge")


def megatron(lengths: Lengths, count: int, row: int, pool: int) -> Steps:
    """Pack each pool with first fit decreasing, and shuffle its rows, as Megatron-Bridge does."""
    pack = packing_of_megatron().first_fit_decreasing
    for first in range(0, len(lengths), pool):
        rows = pack(lengths[first : first + pool].tolist(), row)
        random.Random(first).shuffle(rows)
        yield from grouped(rows, count)


def bound(lengths: Lengths, count: int, row: int, pool: int) -> float:
    """Return a share of lost time below which no rows of these pools can be."""
    total = least = 0.0
    for first in range(0, len(lengths), pool):
        own = np.sort(lengths[first : first + pool].astype(float))[::-1]
        squares = float((own**2).sum())
        # Sequences above half a row are in different rows, and a minibatch has `count` rows.
        alone = own[own > row / 2][::count]
        total, least = total + squares, least + max(squares / count, float((alone**2).sum()))
    return 1 - total / (count * least)


PLANNERS: dict[str, Planner] = {
    "first fit": first_fit,
    "sorted pool": sorted_pool,
    "Transformers": transformers,
    "Megatron": megatron,
    "cntkio, packed": cntkio(False),
    "cntkio, equal cost": cntkio(True),
}


def measure(plan: Planner, lengths: Lengths, ranks: int, rows: int, row: int, pool: int) -> tuple[float, float, float]:
    """Return the share of lost time, the share of filled cells, and sequences a second."""
    start = time.process_time()
    steps = list(plan(lengths, ranks * rows, row, pool))
    seconds = time.process_time() - start
    means = maxima = 0.0
    for step in steps:
        costs = np.zeros(ranks)
        for number, packed in enumerate(step):
            costs[number % ranks] += float((packed.astype(float) ** 2).sum())
        means, maxima = means + costs.mean(), maxima + costs.max()
    filled = float(lengths.sum()) / (len(steps) * ranks * rows * row)
    return 1 - means / maxima, filled, len(lengths) / max(seconds, 1e-9)


# ------------------------------------------------------------------------------------------ without packed rows


def cut(lengths: Lengths, limit: int, ranks: int, *, is_padded: bool) -> Steps:
    """Cut consecutive sequences into minibatches, and deal each in turn."""
    first = longest = total = 0
    for at, length in enumerate(lengths.tolist()):
        longest, total = max(longest, length), total + length
        if (longest * (at - first + 1) if is_padded else total) > limit and at > first:
            yield [lengths[first:at][rank::ranks] for rank in range(ranks)]
            first, longest, total = at, length, length
    yield [lengths[first:][rank::ranks] for rank in range(ranks)]


def dealt(lengths: Lengths, limit: int, ranks: int, pool: int, *, is_padded: bool, balance: bool) -> Steps:
    """Cut pools and deal minibatches with the functions of the core that sources and plans call."""
    limits: dict[str, int] = {"padded" if is_padded else "samples": limit}
    core = Budget(**limits, pool=pool, balance="attention" if balance else None).for_core()
    for first in range(0, len(lengths), pool):
        own = lengths[first : first + pool]
        cut = core.batches(own, first, first)
        arranged, parts = own[cut.order], []
        for rank in range(ranks):
            kept, cuts = _core.deal(arranged, cut.bounds, ranks, rank, False, core)
            parts.append(np.split(arranged[kept], cuts[1:-1]))
        yield from map(list, zip(*parts, strict=True))


def least_cost(sequences: Lengths, ranks: int) -> float:
    """Return a cost that one of the ranks has at least, however a minibatch is dealt."""
    squares = np.sort(sequences.astype(float) ** 2)[::-1]
    # Of the longest k * ranks + 1 sequences, one rank has k + 1, which cost at least as much as the shortest of them.
    together = [squares[k * ranks - k : k * ranks + 1].sum() for k in range((len(squares) - 1) // ranks + 1)]
    return max(*map(float, together), float(squares.sum()) / ranks)


def measure_minibatches(steps: list[list[Lengths]], ranks: int) -> tuple[float, float, float]:
    """Return the share of lost time, that of arrays of each rank, and a bound of the first."""
    squares = np.array([[float((own.astype(float) ** 2).sum()) for own in step] for step in steps])
    arrays = np.array([[len(own) * float(own.max(initial=0)) ** 2 for own in step] for step in steps])
    least = sum(least_cost(np.concatenate(step), ranks) for step in steps)
    lost = [1 - float(costs.mean(axis=1).sum() / costs.max(axis=1).sum()) for costs in (squares, arrays)]
    return lost[0], lost[1], 1 - float(squares.mean(axis=1).sum()) / least


def print_minibatches(lengths: Lengths, row: int) -> None:
    """Print a line for each way to cut, number of ranks and planner."""
    for is_padded, (ranks, pool) in itertools.product(
        (True, False), ((8, 2000), (64, 2000), (256, 2000), (8, 4000), (64, 32_000), (256, 128_000))
    ):
        limit, kind = 2 * row * ranks, {"is_padded": is_padded}
        whole = [np.sort(lengths[at : at + pool])[::-1] for at in range(0, len(lengths), pool)]
        found: dict[str, list[list[Lengths]]] = {
            "arrival order": list(cut(lengths, limit, ranks, **kind)),
            "sorted pool": [step for own in whole for step in cut(own, limit, ranks, **kind)],
            "cntkio, by length": list(dealt(lengths, limit, ranks, pool, balance=False, **kind)),
            "cntkio, equal cost": list(dealt(lengths, limit, ranks, pool, balance=True, **kind)),
        }
        print(f"  {'padded' if is_padded else 'ragged'}, {ranks} ranks, pool {pool:,}, {len(whole)} pools")
        for name, steps in found.items():
            lost, in_arrays, least = measure_minibatches(steps, ranks)
            text = f"lost {lost:6.2%}  no better {least:6.2%}  in arrays {in_arrays:6.2%}  {len(steps)} minibatches"
            print(f"    {name:<20} {text}", flush=True)


def lengths_of(path: Path) -> Lengths:
    """Return the lengths of a file: of a corpus, or a number on each line."""
    if path.suffix == ".ctf":
        with MinibatchSource(CTFDeserializer(str(path), infer_streams(str(path))), max_sweeps=1) as source:
            return source.plan(1).steps(source.num_sequences).num_samples.astype(np.uint32)
    lengths = np.loadtxt(path, np.uint32)
    return np.random.default_rng(1).permutation(lengths)


def main() -> None:
    """Measure, and print a table for each kind of lengths and number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=64_000)
    parser.add_argument("--lengths", type=Path, help="a file with lengths, in place of log-normal lengths")
    parser.add_argument("--row-length", type=int, default=4096, help="samples of a row")
    parser.add_argument("--minibatches", action="store_true", help="padded and ragged minibatches, without rows")
    options = parser.parse_args()
    kinds = {
        f"log-normal, median {median}, sigma {sigma}": log_normal(median, sigma, options.sequences)
        for median, sigma in ((60, 0.6), (150, 0.6), (400, 0.8), (400, 1.0))
    }
    if options.lengths is not None:
        kinds = {options.lengths.name: np.minimum(lengths_of(options.lengths), options.row_length)}
    for kind, lengths in kinds.items():
        if options.minibatches:
            print(kind)
            print_minibatches(lengths, options.row_length)
            continue
        # A pool of 2,000 for all ranks, and one of 250 sequences for each row.
        for ranks, rows, pool in ((8, 1, 2000), (64, 1, 2000), (256, 1, 2000), (8, 2, 4000), (64, 2, 32_000)):
            least = bound(lengths, ranks * rows, options.row_length, pool) if rows == 1 else 0.0
            print(f"{kind}; {ranks} ranks of {rows} rows, pool {pool:,}; no better than {least:.1%}")
            for name, plan in PLANNERS.items():
                try:
                    lost, filled, speed = measure(plan, lengths, ranks, rows, options.row_length, pool)
                except ImportError as error:
                    print(f"  {name:<20} left out: {error}")
                    continue
                print(f"  {name:<20} lost {lost:6.2%}  filled {filled:6.1%}  {speed:12,.0f} sequences/s", flush=True)


if __name__ == "__main__":
    main()

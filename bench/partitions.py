"""Compare the partitions of a job: how even the ranks' loads are, and what a minibatch costs.

    python bench/partitions.py CORPUS [--ranks 2,8,64,1024] [--per-rank 1024] [--steps 8] [--chunk-size 65536]

CORPUS is a CTF file, for instance seqs.ctf of corpora.py. Nothing but its index is read for the balance. Each rank's
share of a step is its number of samples (padded: its number of sequences times the longest). Ranks that wait for each
other wait for the largest share, so the idle share is 1 - mean / largest, averaged over the steps. With CNTK's
partitions the ranks end at different steps, too; the last column shows their least and largest number of steps in a
sweep.

The second table shows the processor time of a minibatch of one rank in one process, data included, in microseconds.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator

import cntkio
import numpy as np
from cntkio import BalancedPartition, GlobalPartition, Partition
from cntkio.timeline import DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS, Timeline, Window
from engines import line, machine

KINDS: dict[str, Callable[[int, int], Partition]] = {
    "cntk": Partition,
    "balanced": BalancedPartition,
    'global, "length"': lambda rank, count: GlobalPartition(rank, count, "length"),
    'global, "area"': lambda rank, count: GlobalPartition(rank, count, "area"),
    'global, "chunk"': lambda rank, count: GlobalPartition(rank, count, "chunk"),
}


def deserializer(path: str, chunk_size: int) -> cntkio.CTFDeserializer:
    streams = cntkio.infer_streams(path)
    return cntkio.CTFDeserializer(path, streams, chunk_size_in_bytes=chunk_size, cache_index=True)


def shares(
    table: tuple[np.ndarray, np.ndarray], partition: Partition, size: int, steps: int | None
) -> Iterator[tuple[int, int]]:
    """Samples and padded area of a rank's minibatches."""
    lengths = table[0]
    window = Window(DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS, "chunks")
    timeline = Timeline(*table, window=window, max_sweeps=1)
    for _ in itertools.count() if steps is None else range(steps):
        selection = timeline.read(size, partition)
        if selection is None:
            return
        own = lengths[selection.sequences].astype(np.int64)
        yield int(own.sum()), int(own.max(initial=0)) * len(own)


def balance(table: tuple[np.ndarray, np.ndarray], counts: list[int], per_rank: int, steps: int) -> None:
    line("ranks, partition", "samples idle", "padded idle", "steps of a sweep")
    for count in counts:
        for kind, partition in KINDS.items():
            ranks = [[*shares(table, partition(rank, count), per_rank * count, steps)] for rank in range(count)]
            whole = min(map(len, ranks))
            if not whole:
                line(f"{count}, {kind}", "-", "-", "some ranks get nothing")
                continue
            loads = np.array([rank[:whole] for rank in ranks], np.float64)
            idle = (1 - loads.mean(axis=0) / loads.max(axis=0)).mean(axis=0)
            ends = "the same"
            if kind == "cntk":
                numbers = [
                    sum(1 for _ in shares(table, partition(rank, count), per_rank * count, None))
                    for rank in range(min(count, 8))
                ]
                ends = f"{min(numbers)} to {max(numbers)}"
            line(f"{count}, {kind}", *(f"{share * 100:.1f} %" for share in idle), ends)


def cost(path: str, chunk_size: int, counts: list[int], per_rank: int) -> None:
    print()
    line("ranks", *KINDS)
    for count in counts:
        cells = []
        for partition in KINDS.values():
            with cntkio.MinibatchSource(deserializer(path, chunk_size), max_sweeps=1) as source:
                own, number = partition(0, count), 0
                begin = time.process_time()
                while source.read(per_rank * count, own) is not None:
                    number += 1
                cells.append(f"{(time.process_time() - begin) / max(number, 1) * 1e6:.0f}")
        line(f"{count}", *cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--ranks", default="2,8,64,1024")
    parser.add_argument("--per-rank", type=int, default=1024, help="samples of a rank's minibatch on average")
    parser.add_argument("--steps", type=int, default=8, help="steps that the balance is measured over")
    parser.add_argument("--chunk-size", type=int, default=65_536, help="bytes")
    parser.add_argument("--cost", default="1,8,64", help="numbers of ranks for the second table; empty: none")
    options = parser.parse_args()
    corpus = deserializer(options.corpus, options.chunk_size).open()
    table = np.asarray(corpus.table.lengths[:]), corpus.table.chunk_starts
    print(f"{machine()}\n{options.corpus}: {len(table[0]):,} sequences, {len(table[1]) - 1:,} chunks\n")
    balance(table, [int(count) for count in options.ranks.split(",")], options.per_rank, options.steps)
    if options.cost:
        cost(options.corpus, options.chunk_size, [int(count) for count in options.cost.split(",")], options.per_rank)


if __name__ == "__main__":
    main()

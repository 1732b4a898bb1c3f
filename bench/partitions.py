"""Compare the partitions of a job: how even the ranks' loads are, and what a minibatch costs.

    python bench/partitions.py CORPUS [--ranks 2,8,64,1024] [--per-rank 1024] [--steps 8] [--chunk-size 65536] [--fresh]

CORPUS is a CTF file, for instance seqs.ctf of corpora.py. The balance is computed from its index alone. Each rank's
share of a step is its number of samples (padded: its number of sequences times the longest). Ranks that wait for each
other wait for the largest share, so the idle share is 1 - mean / largest, averaged over the steps. With CNTK's
partitions the ranks end at different steps, too; the last column shows their least and largest number of steps in a
sweep.

The second table shows the processor time of a minibatch of one rank, data included, in microseconds: a sweep of a
process of its own, the least of five. In brackets: a sweep compared with CNTK's partitions. Chunks are so small that
each rank has two of them; with fewer chunks, the first ranks would have more than their share with CNTK's partitions.

The third table compares a rank with a single process that reads the same global minibatches in one sweep, each in a
process of its own: processor time of the sweep (the least of five), and bytes of the chunks that it parses, as they
lie in memory.

The last two tables exclude the start of a process: the index is in its cache, the source is open before timing begins,
and NumPy's own threads, which spin for a moment, are left out. The corpus should be large (1 GB), and the machine idle,
because other work changes the processor's caches. The corpus is read from the page cache. With --fresh it is first
dropped from the page cache and read from the disk, as after a start of the machine. A file that was only written is in
the page cache in smaller pages, and reading it may take twice as long.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cntkio
import numpy as np
from cntkio import BalancedPartition, GlobalPartition, Partition
from cntkio.timeline import DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS, Timeline, Window
from harness.engines import line, machine

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
            try:
                ranks = [[*shares(table, partition(rank, count), per_rank * count, steps)] for rank in range(count)]
            except cntkio.ConfigError:  # fewer sequences than ranks
                ranks = [[]]
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


class Counting(cntkio.CTFDeserializer):
    """A corpus that counts the bytes of the chunks that it loads."""

    def open(self, **options: Any) -> Any:
        corpus, self.num_bytes = super().open(**options), 0

        def counting(load: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*arguments: Any) -> Any:
                loaded = load(*arguments)
                self.num_bytes += loaded.chunk.num_bytes
                return loaded

            return counted

        corpus.load = counting(corpus.load)
        return corpus


class Sweep(NamedTuple):
    """Measure a rank's work in a sweep: seconds of processor time, and minibatches."""

    seconds: float
    num_minibatches: int


def one_sweep(corpus: cntkio.CTFDeserializer, kind: str, count: int, size: int) -> Sweep:
    with cntkio.MinibatchSource(corpus, max_sweeps=1) as source:
        begin, own, number = time.process_time(), KINDS[kind](0, count), 0
        while source.read(size, own) is not None:
            number += 1
        return Sweep(time.process_time() - begin, number)


def bytes_of_chunks(path: str, chunk_size: int, kind: str, count: int, size: int) -> int:
    plain = deserializer(path, chunk_size)
    corpus = Counting(plain.filename, plain.streams, chunk_size_in_bytes=chunk_size, cache_index=True)
    one_sweep(corpus, kind, count, size)
    return corpus.num_bytes


def best_sweep(path: str, chunk_size: int, *request: Any) -> Sweep:
    corpus = deserializer(path, chunk_size)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return min(pool.starmap(one_sweep, 5 * [(corpus, *request)], chunksize=1))


def cost(path: str, chunk_size: int, counts: list[int], per_rank: int) -> None:
    chunk_size = min(chunk_size, Path(path).stat().st_size // (2 * max(counts)))
    deserializer(path, chunk_size).open().close()  # from now on, the index is in its cache
    print()
    line("ranks", *KINDS)
    for count in counts:
        sweeps = [best_sweep(path, chunk_size, kind, count, per_rank * count) for kind in KINDS]
        times = [sweep.seconds / max(sweep.num_minibatches, 1) * 1e6 for sweep in sweeps]
        # The ranks have different numbers of minibatches with CNTK's partitions, but the same data.
        line(
            f"{count}", *(f"{t:.0f} ({s.seconds / sweeps[0].seconds:.2f})" for t, s in zip(times, sweeps, strict=True))
        )


def shares_of_work(path: str, chunk_size: int, count: int, size: int) -> None:
    deserializer(path, chunk_size).open().close()
    print()
    line(f"a rank of {count}", "processor time", "share", "chunks in memory", "share")
    whole: tuple[float, int] | None = None
    for kind, ranks in [("cntk", 1), *((kind, count) for kind in KINDS)]:
        # Count in a run of its own, because counting makes loading slower.
        request = (path, chunk_size, kind, ranks, size)
        seconds, num_bytes = best_sweep(*request).seconds, bytes_of_chunks(*request)
        whole = whole or (seconds, num_bytes)
        line(
            "a single process" if ranks == 1 else kind, f"{seconds:.3f} s", f"{seconds / whole[0]:.2f}",
            f"{num_bytes / 1e6:.0f} MB", f"{num_bytes / whole[1]:.2f}",
        )  # fmt: skip


def read_again(path: str) -> None:
    """Let the system drop a file from its page cache, and read the file once."""
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while file.read(1 << 20):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--ranks", default="2,8,64,1024", help="for the first table; empty: none")
    parser.add_argument("--per-rank", type=int, default=1024, help="samples of a rank's minibatch on average")
    parser.add_argument("--steps", type=int, default=8, help="steps over which the balance is averaged")
    parser.add_argument("--chunk-size", type=int, default=65_536, help="bytes")
    parser.add_argument("--cost", default="1,8,64", help="numbers of ranks for the second table; empty: none")
    parser.add_argument("--share", type=int, default=8, help="ranks for the third table; 0: no table")
    parser.add_argument("--large-chunk-size", type=int, default=32 << 20, help="bytes, for the last two tables")
    parser.add_argument("--size", type=int, default=65_536, help="samples of a global minibatch for the third table")
    parser.add_argument("--fresh", action="store_true", help="read the corpus from the disk first")
    options = parser.parse_args()
    corpus = deserializer(options.corpus, options.chunk_size).open()
    table = np.asarray(corpus.table.lengths[:]), corpus.table.chunk_starts
    print(f"{machine()}\n{options.corpus}: {len(table[0]):,} sequences, {len(table[1]) - 1:,} chunks\n")
    if options.ranks:
        balance(table, [int(count) for count in options.ranks.split(",")], options.per_rank, options.steps)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if options.fresh:
        read_again(options.corpus)
    if options.cost:
        cost(
            options.corpus,
            options.large_chunk_size,
            [int(count) for count in options.cost.split(",")],
            options.per_rank,
        )
    if options.share:
        shares_of_work(options.corpus, options.large_chunk_size, options.share, options.size)


if __name__ == "__main__":
    main()

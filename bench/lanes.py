"""Lanes, CNTK's order and MosaicML's: how well they shuffle, how even ranks are, and how much a rank reads.

    python bench/lanes.py [--sequences 2000000] [--chunks 1024] [--window 128] [--longest 39] [--lanes 64]
        [--ranks 1,2,8,64] [--measured MB]

The figures are simulated, except with `--measured`: then a job of 4 processes reads a sweep of a text of MB from a
server on this machine, which counts the bytes that each process requests after its opening (with a cached index).

The corpus is made up: sequences of 1 to 39 samples in chunks of equal numbers of sequences. The figures come from its
index, with 1,024 samples a rank (the first table: 8,192 of all ranks).

- Displacement: the mean distance of a sequence's place in the sweep from its place in the file, as a share of the
  corpus; 1/3 if all orders are equally likely.
- Neighbors kept: of two sequences that follow each other in the file, the share that comes in the same minibatch.
- Chunks: in a minibatch, on average.
- Idle: 1 - mean / largest number of samples of the ranks, averaged over the steps.
- Chunks read: by the rank that reads the most in a sweep, as a share of the corpus, if chunks stay in memory as long as
  the plan needs them.

MosaicML's order needs its package (`pip install mosaicml-streaming`) and is left out without it. Each lane is
a canonical node of it, and its minibatches have equal numbers of sequences. `py1e` is shown with the block that
it has by default, which is all of a node here, and with a block as large as the window; `py1s` has no block.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cntkio import CTFDeserializer, GlobalPartition, MinibatchSource, Partition, StreamDef, StreamDefs
from cntkio.timeline import Timeline, Window
from harness import corpora
from harness.engines import STREAMS, line

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from support.range_server import range_server

JOB = 4  # processes of the measured job


def steps_of(timeline: Timeline, size: int, partition: Partition) -> tuple[list[Any], int]:
    """Return the sequences of each step of a sweep, and the number of chunks that were loaded for them."""
    steps, num_loads, version = [], 0, -1
    in_memory: set[int] = set()
    while (selection := timeline.read(size, partition)) is not None:
        steps.append(selection.sequences)
        plan = timeline.needed_chunks(partition)
        if plan.version != version:
            now, version = {*plan.chunks, *np.unique(selection.chunks).tolist()}, plan.version
            num_loads, in_memory = num_loads + len(now - in_memory), now
    return steps, num_loads


def quality(steps: list[Any], chunk_starts: Any) -> tuple[float, float, float]:
    """Return the displacement, the share of neighbors kept, and the chunks of a minibatch."""
    order = np.concatenate(steps)
    step_of = np.empty(len(order), np.int64)
    step_of[order] = np.repeat(np.arange(len(steps)), list(map(len, steps)))
    displacement = np.abs(order - np.arange(len(order))).mean() / len(order)
    chunks = [len(np.unique(np.searchsorted(chunk_starts, step, side="right"))) for step in steps]
    return displacement, float((step_of[1:] == step_of[:-1]).mean()), float(np.mean(chunks))


def mosaic(name: str) -> Any:
    """Return a module of MosaicML's package; None if it is not installed.

    The package itself imports PyTorch and clients of stores, which its orders do not need.
    """
    for parent in ("streaming", "streaming.base"):
        if parent not in sys.modules:
            spec = importlib.util.find_spec(parent)
            if spec is None:
                return None
            sys.modules[parent] = types.ModuleType(parent)
            sys.modules[parent].__path__ = list(spec.submodule_search_locations or ())
    return importlib.import_module(f"streaming.base.{name}")


def mosaic_steps(algorithm: str, block: int, starts: Any, nodes: int, count: int, size: int) -> list[list[Any]]:
    """Return for each rank the sequences of its steps of `size` sequences; each rank is a physical node."""
    total = int(starts[-1])
    shuffled = mosaic("shuffle").get_shuffle(algorithm, np.diff(starts), nodes, 9176, 0, block)
    ranks = mosaic("partition").get_partitions("relaxed", total, nodes, count, 1, 1, size)
    return [[shuffled[step[step >= 0]] for step in rank.reshape(-1, size)] for rank in ranks]


def read_rank(url: str, kind: str, chunk: int, window: int, partition: Partition, size: int, answers: Any) -> None:
    """Open a text, then say so and wait, then read a sweep."""
    streams = StreamDefs({name: StreamDef(name, dim, is_sparse) for name, (dim, is_sparse) in STREAMS[kind].items()})
    deserializer = CTFDeserializer(url, streams, cache_index=True, chunk_size_in_bytes=chunk)
    # The default room would hold the whole of a small text.
    order = {"randomization_window_in_chunks": window, "read_ahead_in_bytes": 8 * chunk}
    with MinibatchSource(deserializer, max_sweeps=1, **order) as source:
        answers.send((source.num_samples, source.num_chunks))
        answers.recv()
        steps = 0
        while source.read(size, partition) is not None:
            steps += 1
    answers.send(steps)


def measure(megabytes: int, kinds: dict[str, Callable[[int, int], Partition]]) -> None:
    """Print the bytes that each process of a job requests in a sweep."""
    kind, context = "seqs", multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        content = corpora.write(Path(folder, "a.ctf"), kind, megabytes * 10**6).read_bytes()
        line("measured, 4 processes", "steps", "bytes by each, of the file")
        # Each process has its own name of the text, so that the server can tell them apart.
        with range_server(**{f"a{rank}.ctf": content for rank in range(JOB)}) as server:
            for name, partition in kinds.items():
                pipes, processes = [], []
                for rank in range(JOB):
                    ours, theirs = context.Pipe()
                    chunk = len(content) // 1024
                    arguments = (f"{server.url}/a{rank}.ctf", kind, chunk, 128, partition(rank, JOB), 4096, theirs)
                    process = context.Process(target=read_rank, args=arguments)
                    process.start()
                    processes.append(process)
                    pipes.append(ours)
                for pipe in pipes:
                    pipe.recv()
                server.requests.clear()
                for pipe in pipes:
                    pipe.send(True)
                steps = {pipe.recv() for pipe in pipes}
                for process in processes:
                    process.join()
                read = [
                    sum(one.end - one.begin for one in server.requests if one.path == f"/a{rank}.ctf" and one.end)
                    for rank in range(JOB)
                ]
                shares = ", ".join(f"{num_bytes / len(content):.3f}" for num_bytes in read)
                line(name, ", ".join(map(str, sorted(steps))), shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=2_000_000)
    parser.add_argument("--chunks", type=int, default=1024)
    parser.add_argument("--window", type=int, default=128, help="chunks")
    parser.add_argument("--longest", type=int, default=39, help="samples")
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--ranks", default="1,2,8,64")
    parser.add_argument("--measured", metavar="MB", type=int, default=0)
    options = parser.parse_args()
    lengths = np.random.default_rng(1).integers(1, options.longest + 1, options.sequences).astype(np.uint32)
    starts = np.linspace(0, options.sequences, options.chunks + 1).astype(np.int64)
    kinds: dict[str, Callable[[int, int], Partition]] = {
        "CNTK's order": GlobalPartition,
        "the same, deal='chunk'": lambda rank, count: GlobalPartition(rank, count, "chunk"),
        f"{options.lanes} lanes": lambda rank, count: GlobalPartition(rank, count, lanes=options.lanes),
    }

    if options.measured:
        measure(options.measured, kinds)
        return

    def new() -> Timeline:
        return Timeline(lengths, starts, window=Window(options.window, "chunks"), max_sweeps=1)

    line("order", "displacement", "neighbors kept", "chunks of a minibatch")
    for name in (next(iter(kinds)), f"{options.lanes} lanes"):
        moved, kept, chunks = quality(steps_of(new(), 8192, kinds[name](0, 1))[0], starts)
        line(name, f"{moved:.3f}", f"{kept:.2%}", f"{chunks:.0f}")
    of_window = options.sequences * options.window // (options.chunks * options.lanes)
    orders = {"MosaicML's py1e": 2**18, "py1e, block of the window": of_window, "MosaicML's py1s": 2**18}
    if mosaic("shuffle") is None:
        print("MosaicML's order is left out: pip install mosaicml-streaming")
        orders = {}
    mean = float(lengths.mean())
    for name, block in orders.items():
        algorithm = "py1s" if name.endswith("py1s") else "py1e"
        (steps,) = mosaic_steps(algorithm, block, starts, options.lanes, 1, round(8192 / mean))
        moved, kept, chunks = quality(steps, starts)
        line(name, f"{moved:.3f}", f"{kept:.2%}", f"{chunks:.0f}")
    print()
    line("ranks, order", "idle", "chunks read", "steps")
    for count in map(int, options.ranks.split(",")):
        for name, partition in kinds.items():
            ranks = [steps_of(new(), 1024 * count, partition(rank, count)) for rank in range(count)]
            loads = np.array([[int(lengths[step].sum()) for step in steps] for steps, _ in ranks], np.float64)
            idle = (1 - loads.mean(axis=0) / loads.max(axis=0)).mean()
            # Without `loads_parts`, the plan of CNTK's order names the chunks of all ranks.
            read = max(num_loads for _, num_loads in ranks) / options.chunks
            line(f"{count}, {name}", f"{idle:.2%}", f"{read:.3f}", str(loads.shape[1]))
        if orders and options.lanes % count == 0:
            of_ranks = mosaic_steps("py1e", 2**18, starts, options.lanes, count, round(1024 / mean))
            loads = np.array([[int(lengths[step].sum()) for step in rank] for rank in of_ranks], np.float64)
            idle = (1 - loads.mean(axis=0) / loads.max(axis=0)).mean()
            needed = [np.unique(np.searchsorted(starts, np.concatenate(rank), side="right")) for rank in of_ranks]
            read = max(map(len, needed)) / options.chunks
            line(f"{count}, MosaicML's py1e", f"{idle:.2%}", f"{read:.3f}", str(loads.shape[1]))


if __name__ == "__main__":
    main()

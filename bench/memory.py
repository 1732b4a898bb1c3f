"""Memory of processes that read one text in random order: by the end of a sweep, for each sequence.

    python bench/memory.py [--lines 1000000 10000000] [--processes 1 2] [--no-cache]

The sequences have one to three short lines and ids with gaps, so that lengths and keys are stored. The index is cached,
and made before. Each process reads a sweep, asks for the keys of some minibatches, and takes a state. Then all measure
at the same time: the memory of their own, and their share of what they have together (`Pss`). The last columns are the
bytes that a sequence more takes, between two numbers of lines. What the allocators keep for later is returned before.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import multiprocessing
import tempfile
from pathlib import Path
from typing import Any

import cntkio._core as _core
import numpy as np
from cntkio import CTFDeserializer, MinibatchSource, StreamDef, StreamDefs

STREAMS = StreamDefs(x=StreamDef(field="x", shape=1))


def write(path: Path, num_lines: int) -> int:
    """Write a text, and return the number of its sequences."""
    lengths = np.random.default_rng(1).integers(1, 4, num_lines // 2)
    with path.open("w") as file:
        for first in range(0, len(lengths), 100_000):
            part = lengths[first : first + 100_000]
            ids = np.repeat(np.arange(first, first + len(part)) * 2, part)
            file.write("".join(f"{number} |x 1\n" for number in ids.tolist()))
    return len(lengths)


def memory() -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the bytes of this process alone, and its share of all that it uses."""
    gc.collect()
    _core.release_kept_memory()
    ctypes.CDLL(None).malloc_trim(0)
    found = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, size, *_ = line.split()
        found[name] = 1024 * int(size)
    return np.array([found["Private_Dirty:"] + found["Private_Clean:"], found["Pss:"]], np.int64)


def source_of(path: str, *, is_cached: bool) -> MinibatchSource:
    """Return a source with a window of a few chunks."""
    text = CTFDeserializer(path, STREAMS, chunk_size_in_bytes=1 << 20, cache_index=is_cached)
    return MinibatchSource(text, randomization_window_in_chunks=4, max_sweeps=1)


def read(path: str, is_cached: bool, barrier: Any, results: Any) -> None:
    """Read a sweep, and measure when all processes have done so."""
    before = memory()
    with source_of(path, is_cached=is_cached) as source:
        number = 0
        while (minibatch := source.next_minibatch(1024)) and len(minibatch):
            number += 1
            if number % 500 == 0:
                assert len(minibatch.keys_of_sequences)
        source.state_dict()
        barrier.wait()
        results.put(memory() - before)
        barrier.wait()


def measure(path: Path, num_processes: int, *, is_cached: bool) -> Any:
    """Return the mean of what the processes take."""
    spawned = multiprocessing.get_context("spawn")
    barrier, results = spawned.Barrier(num_processes), spawned.Queue()
    arguments = (str(path), is_cached, barrier, results)
    processes = [spawned.Process(target=read, args=arguments) for _ in range(num_processes)]
    for process in processes:
        process.start()
    found = np.mean([results.get() for _ in processes], axis=0)
    for process in processes:
        process.join()
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, nargs="*", default=[1_000_000, 10_000_000])
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--no-cache", action="store_true")
    options = parser.parse_args()
    print("processes  sequences   alone MB   share MB   alone B/sequence   share B/sequence")
    with tempfile.TemporaryDirectory() as folder:
        former: dict[int, tuple[int, Any]] = {}
        for num_lines in options.lines:
            path = Path(folder, f"{num_lines}.ctf")
            count = write(path, num_lines)
            if not options.no_cache:
                source_of(str(path), is_cached=True).close()
            for num_processes in options.processes:
                found = measure(path, num_processes, is_cached=not options.no_cache)
                before, taken = former.get(num_processes, (0, np.zeros(2)))
                slope = (found - taken) / (count - before) if before else (np.nan, np.nan)
                sizes = f"{found[0] / 1e6:11.1f}{found[1] / 1e6:11.1f}"
                print(f"{num_processes:9}{count:11}{sizes}{slope[0]:19.2f}{slope[1]:19.2f}", flush=True)
                former[num_processes] = (count, found)
            path.unlink()


if __name__ == "__main__":
    main()

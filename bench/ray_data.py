"""Compare Ray Data with reading in the process: megabytes of text a second.

    python bench/ray_data.py CORPUS [--chunk-size 4194304] [--cpus 2] [--repeat 3]

CORPUS is a CTF file, for instance seqs.ctf of corpora.py. Every way reads all of it, with the index in its cache. Ray's
processes are started before timing begins. `--cpus` is what Ray may use; the other ways use all cores.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import cntkio
import cntkio.ray
import ray
from cntkio import arrow
from harness.engines import line, machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--chunk-size", type=int, default=4 << 20, help="bytes of a chunk: a block of Ray")
    parser.add_argument("--cpus", type=int, default=2, help="processors for Ray")
    parser.add_argument("--repeat", type=int, default=3, help="take the best of N runs")
    options = parser.parse_args()
    path, size = options.corpus, Path(options.corpus).stat().st_size
    streams = cntkio.infer_streams(path)
    corpus = cntkio.CTFDeserializer(path, streams, chunk_size_in_bytes=options.chunk_size, cache_index=True)
    chunks = cntkio.convert.corpus_chunks(corpus)
    ray.init(num_cpus=options.cpus, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False

    def minibatches() -> None:
        with cntkio.MinibatchSource(corpus, max_sweeps=1) as source:
            while source.read(65_536) is not None:
                pass

    def tables() -> None:
        for _ in arrow.RecordBatches(chunks).tables():
            pass

    def dataset() -> ray.data.Dataset:
        return cntkio.ray.read_ctf(path, streams, chunk_size_in_bytes=options.chunk_size)

    def blocks() -> None:
        for _ in dataset().iter_batches(batch_size=None, batch_format="pyarrow"):
            pass

    ways: dict[str, Callable[[], object]] = {
        "MinibatchSource, in the process": minibatches,
        "Arrow tables, in the process": tables,
        "Ray Data, blocks to this process": blocks,
        "Ray Data, blocks stay in its store": lambda: dataset().materialize(),
    }
    print(f"{machine()}, {options.cpus} for Ray\n{path}: {size / 1e6:.0f} MB\n")
    line("", "MB/s", "share of the first")
    first = 0.0
    for name, way in ways.items():
        seconds = []
        for _ in range(options.repeat + 1):  # the first is a warm-up
            begin = time.perf_counter()
            way()
            seconds.append(time.perf_counter() - begin)
        speed = size / min(seconds[1:]) / 1e6
        first = first or speed
        line(name, f"{speed:.0f}", f"{speed / first:.2f}")
    ray.shutdown()


if __name__ == "__main__":
    main()

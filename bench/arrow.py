"""Shuffled sweeps over a Parquet file: cntkio, Hugging Face datasets, pyarrow, Ray Data and MosaicML streaming.

Each row has a list of tokens (int64) and a label. Each reader delivers the same rows in a random order, in batches of
64 rows whose tokens are one NumPy array with offsets. A reader runs in a process of its own, so that its memory can be
compared. The time is that of a whole sweep after opening. The last column says whether a state continues with exactly
the rows that are left. Ray Data and MosaicML streaming are measured if they are installed (`ray[data]`,
`mosaicml-streaming`).

    python bench/arrow.py [NUM_ROWS]
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import dataset, parquet

BATCH = 64
ROUNDS = 5
ROW_GROUP = 2000
Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]
"""Tokens, their offsets, and labels of a batch."""


def write(path: Path, num_rows: int) -> None:
    generator = np.random.default_rng(0)
    lengths = generator.integers(8, 120, num_rows)
    offsets = np.append(0, np.cumsum(lengths))
    tokens = pa.array(generator.integers(0, 50_000, offsets[-1]))
    columns = {
        "tokens": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), tokens),
        "label": generator.integers(0, 10, num_rows),
    }
    parquet.write_table(pa.table(columns), path, row_group_size=ROW_GROUP, compression="zstd")


def by_cntkio(path: Path, **window: int) -> Iterator[Arrays]:
    from cntkio import Budget, MinibatchSource
    from cntkio.arrow import ArrowDeserializer

    with MinibatchSource(ArrowDeserializer(path), max_sweeps=1, **window) as source:
        budget = Budget(sequences=BATCH)
        yield from _ready()
        while (minibatch := source.read(budget)) is not None:
            tokens = minibatch["tokens"]
            yield tokens.values.reshape(-1), tokens.offsets, minibatch["label"].values.reshape(-1)


def by_datasets(path: Path) -> Iterator[Arrays]:
    """A data set on the disk, with an order of all rows: it resumes with the number of rows that were delivered."""
    import datasets

    data = datasets.Dataset.from_parquet(str(path), cache_dir=str(path.parent / "cache")).shuffle(seed=0)
    yield from _ready()
    for table in data.with_format("arrow").iter(batch_size=BATCH):
        yield _arrays(table.combine_chunks().to_batches()[0])


def by_streamed_datasets(path: Path) -> Iterator[Arrays]:
    """Rows through a buffer. A state forgets the buffer."""
    import datasets

    data = datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True)
    yield from _ready()
    for batch in data.shuffle(seed=0, buffer_size=10_000).with_format("arrow").iter(batch_size=BATCH):
        yield _arrays(batch.combine_chunks().to_batches()[0])


def by_pyarrow(path: Path) -> Iterator[Arrays]:
    """Row groups in a random order, and the rows of each in a random order. There are no states."""
    generator = np.random.default_rng(0)
    groups = [group for fragment in dataset.dataset(path).get_fragments() for group in fragment.split_by_row_group()]
    generator.shuffle(groups)
    yield from _ready()
    for group in groups:
        table = group.to_table().combine_chunks()
        table = table.take(generator.permutation(table.num_rows))
        for batch in table.to_batches(BATCH):
            yield _arrays(batch)


def by_ray(path: Path) -> Iterator[Arrays]:
    """All rows are shuffled by worker processes, whose memory is not part of the figure. Ray Data has no states."""
    import ray

    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False, logging_level="error")
    data = ray.data.read_parquet(str(path)).random_shuffle(seed=0)
    yield from _ready()
    for table in data.iter_batches(batch_size=BATCH, batch_format="pyarrow"):
        yield _arrays(table.combine_chunks().to_batches()[0])


def by_mosaic(path: Path) -> Iterator[Arrays]:
    """A copy in MosaicML's own format, which opening writes. A state names the samples that were delivered."""
    from streaming import MDSWriter, StreamingDataset

    copy = str(path.parent / "mosaic")
    with MDSWriter(out=copy, columns={"tokens": "ndarray:int64", "label": "int"}, exist_ok=True) as writer:
        for batch in parquet.ParquetFile(path).iter_batches(ROW_GROUP):
            for tokens, label in zip(batch.column("tokens"), batch.column("label").to_pylist(), strict=True):
                writer.write({"tokens": tokens.values.to_numpy(), "label": label})
    data = StreamingDataset(local=copy, shuffle=True, batch_size=BATCH, shuffle_seed=0)
    rows = iter(data)
    yield from _ready()
    while batch := list(itertools.islice(rows, BATCH)):
        offsets = np.append(0, np.cumsum([len(row["tokens"]) for row in batch]))
        yield np.concatenate([row["tokens"] for row in batch]), offsets, np.array([row["label"] for row in batch])


def _arrays(batch: pa.RecordBatch) -> Arrays:
    tokens = batch.column("tokens")
    offsets = tokens.offsets.to_numpy()
    return tokens.flatten().to_numpy(), offsets - offsets[0], batch.column("label").to_numpy()


def _ready() -> Iterator[Any]:
    """Yield nothing; mark the end of opening."""
    global _begin
    _begin = (time.perf_counter(), time.process_time())
    yield from ()


_begin = (0.0, 0.0)
READERS: dict[str, tuple[Callable[[Path], Iterator[Arrays]], str]] = {
    "cntkio": (by_cntkio, "yes"),
    "cntkio, window of 32 chunks": (functools.partial(by_cntkio, randomization_window_in_chunks=32), "yes"),
    "datasets, on the disk": (by_datasets, "yes"),
    "datasets, streamed": (by_streamed_datasets, "no: loses the buffer"),
    "pyarrow.dataset": (by_pyarrow, "no"),
    "Ray Data": (by_ray, "no"),
    "MosaicML streaming": (by_mosaic, "yes"),
}
PACKAGES = {"Ray Data": "ray", "MosaicML streaming": "streaming"}
"""Packages of readers that need not be installed."""


def measure(name: str, path: Path) -> dict[str, float]:
    """Sweep once."""
    opening = time.perf_counter()
    num_rows = num_tokens = check = 0
    for tokens, offsets, labels in READERS[name][0](path):
        num_rows += len(offsets) - 1
        num_tokens += len(tokens)
        check += int(tokens[0]) + int(labels[0])
    wall, processor = time.perf_counter() - _begin[0], time.process_time() - _begin[1]
    return {
        "rows": num_rows,
        "tokens": num_tokens,
        "opening": _begin[0] - opening,
        "wall": wall,
        "processor": processor,
        "memory": _peak(),
    }


def _peak() -> float:
    """Return the peak of this process's memory in MB. The figure of `getrusage` begins with the peak of the parent."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


def main() -> None:
    if len(sys.argv) > 2:
        print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]))))
        return
    num_rows = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.parquet")
        write(path, num_rows)
        print(f"{num_rows:,} rows, {path.stat().st_size / 1e6:.0f} MB of Parquet, best of {ROUNDS} sweeps in turn")
        print("| reader | rows/s | rows/s of CPU time | opening s | peak MB | resumes exactly |")
        print("|---|---|---|---|---|---|")
        names = [name for name in READERS if importlib.util.find_spec(PACKAGES.get(name, "numpy")) is not None]
        rounds = [{name: _in_process(name, path) for name in names} for _ in range(ROUNDS)]
        for name in names:
            best = {key: min(runs[name][key] for runs in rounds) for key in rounds[0][name]}
            assert best["rows"] == num_rows, (name, best)
            speeds = f"{num_rows / best['wall']:,.0f} | {num_rows / best['processor']:,.0f}"
            print(f"| {name} | {speeds} | {best['opening']:.2f} | {best['memory']:.0f} | {READERS[name][1]} |")


def _in_process(name: str, path: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, name, str(path)], check=True, capture_output=True, text=True, env={**os.environ}
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()

"""Random access to single sequences and to batches: a text and a table in memory with cntkio, the table with datasets.

    python bench/random_access.py [--sequences 50000] [--seconds 1]

The sequences have 1 to 20 samples of 16 values and a class for each sample. The first three rows are warm: all data are
in memory, as numbers. The last two rows keep nothing, so that each access parses a part of a text with chunks of 32 MB.
The table has the microseconds for one sequence and for a batch of 256 random sequences, as a minibatch and as a list:
the least of several runs, in turn. datasets (Hugging Face), in NumPy format, is left out if it is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from cntkio import CTFDeserializer, Sequences, StreamDef, StreamDefs
from cntkio.arrow import ArrowDeserializer

DIM, CLASSES, BATCH = 16, 50, 256
STREAMS = StreamDefs(x=StreamDef(field="x", shape=DIM), y=StreamDef(field="y", shape=CLASSES, is_sparse=True))
Run = Callable[[], object]


def table_of(num_sequences: int) -> pa.Table:
    """Draw sequences."""
    random = np.random.default_rng(1)
    lengths = random.integers(1, 21, num_sequences)
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
    x = pa.FixedSizeListArray.from_arrays(random.random(offsets[-1] * DIM, np.float32).round(4), DIM)
    y = pa.array(random.integers(0, CLASSES, offsets[-1]), pa.int32())
    columns = [pa.ListArray.from_arrays(offsets, values) for values in (x, y)]
    return pa.table({"key": pa.array(range(num_sequences)), "x": columns[0], "y": columns[1]})


def write(path: Path, table: pa.Table) -> None:
    """Write the table as a text."""
    with path.open("w") as text:
        for row in table.to_pylist():
            for x, y in zip(row["x"], row["y"], strict=True):
                text.write(f"{row['key']} |x {' '.join(f'{value:.4f}' for value in x)} |y {y}:1\n")


def least(runs: Mapping[str, Run], seconds: float) -> dict[str, float]:
    """Return the least microseconds of each run, which take turns."""
    fastest = dict.fromkeys(runs, float("inf"))
    end = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < end:
        for name, run in runs.items():
            count, begin = 0, time.perf_counter()
            while count < 3 or time.perf_counter() - begin < 0.01:
                run()
                count += 1
            fastest[name] = min(fastest[name], (time.perf_counter() - begin) / count * 1e6)
    return fastest


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=1)
    arguments = parser.parse_args()
    table, random = table_of(arguments.sequences), np.random.default_rng(2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.ctf")
        write(path, table)
        text = CTFDeserializer(path, STREAMS)
        readers: dict[str, Any] = {
            "text": Sequences(text, layout={"y": "ids"}),
            "table in memory": Sequences(ArrowDeserializer(table, shapes={"x": DIM})),
        }
        if importlib.util.find_spec("datasets") is not None:
            import datasets

            readers["datasets"] = datasets.Dataset(table.drop_columns("key")).with_format("numpy")
        for reader in readers.values():
            for first in range(0, len(reader), BATCH):
                reader[[*range(first, min(first + BATCH, len(reader)))]]
        readers["text, nothing kept"] = Sequences(text, layout={"y": "ids"}, cache_in_bytes=0)
        single = itertools.cycle(random.integers(len(table), size=10_000).tolist())
        several = itertools.cycle(random.integers(len(table), size=(100, BATCH)).tolist())
        runs: dict[str, Run] = {}
        for name, reader in readers.items():
            runs[f"{name}: one"] = lambda reader=reader: reader[next(single)]
            runs[f"{name}: batch"] = lambda reader=reader: reader[next(several)]
            runs[f"{name}: list"] = lambda reader=reader: reader.__getitems__(next(several))
        found = least(runs, arguments.seconds)
    print(f"{path.name}: {arguments.sequences:,} sequences; microseconds")
    print(f"{'':<20}{'one':>10}{'batch':>10}{'list':>10}")
    for name in readers:
        print(f"{name:<20}" + "".join(f"{found[f'{name}: {what}']:>10,.0f}" for what in ("one", "batch", "list")))
    if "datasets" in readers:
        ratios = [found[f"datasets: {what}"] / found[f"text: {what}"] for what in ("one", "batch", "list")]
        print(f"{'datasets / text':<20}" + "".join(f"{ratio:>10.0f}" for ratio in ratios))


if __name__ == "__main__":
    main()

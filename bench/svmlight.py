"""Speed of reading svmlight texts with cntkio and scikit-learn, in one run.

    python bench/svmlight.py [--mb 64] [--repeat 3] [--folder FOLDER]

Each reader gets the whole file as arrays, in float32 and in float64, and finds the dimension and the first index by
itself. Figures are the best of --repeat turns in this process; MB are 10^6 bytes of text. The values are compared bit
for bit. A sweep is in minibatches of 1024 samples in random order. Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cntkio import MinibatchSource, SvmlightDeserializer, read_svmlight
from harness import corpora
from harness.engines import Answer, best, line, machine, rate, timed
from sklearn import __version__
from sklearn.datasets import load_svmlight_file

HERE = Path(__file__).parent


def swept(path: Path, dtype: type) -> int:
    count = 0
    with MinibatchSource(SvmlightDeserializer(path, dtype=dtype), max_sweeps=1) as source:
        for minibatch in source.minibatches(1024):
            count += minibatch.num_sequences
    return count


def require_equal(path: Path, dtype: type) -> None:
    """Compare all values, bit for bit."""
    (theirs, labels), ours = load_svmlight_file(str(path), dtype=dtype), read_svmlight(path, dtype=dtype)
    features = ours["features"]
    pairs = [
        (features.values, theirs.data), (features.indices, theirs.indices), (features.indptr, theirs.indptr),
        (ours["label"].values.ravel(), labels.astype(dtype)),
    ]  # fmt: skip
    for one, other in pairs:
        if one is None or not np.array_equal(one, other) or one.dtype.kind != other.dtype.kind:
            raise RuntimeError(f"{path}: the readers disagree")


def cpu_of(run: Callable[[], Any]) -> float:
    before = os.times()
    run()
    after = os.times()
    return after.user + after.system - before.user - before.system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=64, help="size of the file")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=HERE.parent / ".cache" / "bench")
    arguments = parser.parse_args()
    source = corpora.write(arguments.folder / "svmlight" / "sparse.ctf", "sparse", arguments.mb * 10**6)
    path = corpora.svmlight(source, source.with_suffix(".svmlight"))
    size = path.stat().st_size
    print(f"{machine()}; scikit-learn {__version__}; {size / 1e6:.0f} MB, best of {arguments.repeat}; MB/s\n")
    line("", "read_svmlight", "scikit-learn", "times", "times less cpu", "sweep")
    for dtype in (np.float32, np.float64):
        require_equal(path, dtype)
        runs: dict[str, Callable[[], Any]] = {
            "ours": partial(read_svmlight, path, dtype=dtype),
            "theirs": partial(load_svmlight_file, str(path), dtype=dtype),
            "sweep": partial(swept, path, dtype),
        }
        answers: dict[str, Answer] = best(
            arguments.repeat, {name: partial(timed, run, bytes=size) for name, run in runs.items()}
        )
        rates = {name: rate(size, answer) for name, answer in answers.items()}
        cpu = cpu_of(runs["theirs"]) / cpu_of(runs["ours"])
        cells = f"{rates['ours']:.0f}", f"{rates['theirs']:.1f}", f"{rates['ours'] / rates['theirs']:.1f}", f"{cpu:.1f}"
        line(np.dtype(dtype).name, *cells, f"{rates['sweep']:.0f}")


if __name__ == "__main__":
    main()

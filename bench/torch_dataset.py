"""Cost of reading through `cntkio.torch.MinibatchDataset` as a multiple of the bare loop's, measured in one run.

    python bench/torch_dataset.py [FILE] [--seconds 10]

Loops read the same sweep in this process, in turn:

    read       the bare loop, `for minibatch in source.minibatches(size)`
    arrays     the bare loop, with the samples of each minibatch as arrays, `minibatch["x"].values`
    by hand    the bare loop, with a tensor by `torch.from_numpy` for each array
    dataset    the loop over a data set, without use of its minibatches, or with the samples as tensors

Times are processor time of all threads together, which other work on the machine disturbs least. A ratio compares the
best run of each loop in --seconds. Reading may cost 1.1 times the bare loop, and tensors may cost 1.1 times the tensors
by hand; the exit status is 1 if either costs more. The bench also prints the cost of tensors compared with arrays.

Without FILE the bench writes a text file of pixels and labels, 128 MB of dense samples, to a temporary folder.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import torch
from cntkio.torch import MinibatchDataset

ALLOWED = 1.1
SIZES = (1024, 256, 32)


def write(path: Path, megabytes: int) -> None:
    generator = np.random.default_rng(1)
    pixels = generator.integers(0, 256, (1000, 784)) * (generator.random((1000, 784)) < 0.2)
    labels = np.eye(10, dtype=int)[generator.integers(0, 10, 1000)]
    lines = "".join(
        f"|labels {' '.join(map(str, label))} |features {' '.join(map(str, row))}\n"
        for label, row in zip(labels.tolist(), pixels.tolist(), strict=True)
    ).encode()
    with path.open("wb") as file:
        for _ in range(max(megabytes * 1_000_000 // len(lines), 1)):
            file.write(lines)


def opened(path: Path) -> cntkio.MinibatchSource:
    corpus = cntkio.CTFDeserializer(path, cntkio.infer_streams(path))
    return cntkio.MinibatchSource(corpus, max_sweeps=1)


def read(minibatches: Iterable[Any]) -> int:
    num_sequences = 0
    for minibatch in minibatches:
        num_sequences += minibatch.num_sequences
    return num_sequences


def touch(minibatches: Iterable[Any], names: list[str]) -> int:
    num_sequences = 0
    for minibatch in minibatches:
        num_sequences += minibatch.num_sequences
        for name in names:
            minibatch[name].values  # noqa: B018
    return num_sequences


def touch_by_hand(minibatches: Iterable[Any], names: list[str]) -> int:
    num_sequences = 0
    for minibatch in minibatches:
        num_sequences += minibatch.num_sequences
        for name in names:
            torch.from_numpy(minibatch[name].values)
    return num_sequences


def compare(path: Path, size: int, budget: float) -> bool:
    """Print a line for a size; return true if the ratios are within the bounds."""
    with opened(path) as source:
        names = [stream.name for stream in source.stream_infos()]
        start = source.state_dict()
        dataset = MinibatchDataset(source, size)  # the same source, so that memory is equally warm

        def bare() -> Iterable[Any]:
            source.load_state_dict(start)  # as the data set does when an iteration begins
            return source.minibatches(size)

        runs: dict[str, Callable[[], int]] = {
            "read": lambda: read(bare()),
            "dataset, read": lambda: read(dataset),
            "arrays": lambda: touch(bare(), names),
            "by hand": lambda: touch_by_hand(bare(), names),
            "dataset, tensors": lambda: touch(dataset, names),
        }
        best = dict.fromkeys(runs, float("inf"))
        began = time.perf_counter()
        number = 0
        while number < 4 or time.perf_counter() - began < budget:
            for name in list(runs) if number % 2 else reversed(runs):  # alternate the order
                before = time.process_time()
                num_sequences = runs[name]()
                taken = time.process_time() - before
                assert num_sequences == source.num_sequences, f"{name}: {num_sequences} sequences"
                if number:  # the first round is a warm-up
                    best[name] = min(best[name], taken)
            number += 1
        minibatches = -(-source.num_samples // size)
    reading = best["dataset, read"] / best["read"]
    tensors = best["dataset, tensors"] / best["by hand"]
    over_arrays = best["dataset, tensors"] / best["arrays"]
    shown = "  ".join(f"{name} {taken / minibatches * 1e6:.1f}" for name, taken in best.items())
    print(f"minibatches of {size}, us each: {shown}")
    print(f"    reading {reading:.3f}, tensors {tensors:.3f} (over arrays {over_arrays:.3f}) times the bare loop")
    return max(reading, tensors) <= ALLOWED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--seconds", type=float, default=10, help="duration of the measurement of each size")
    parser.add_argument("--megabytes", type=int, default=128, help="size of the file that is written without FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.file
        if path is None:
            path = Path(folder, "pixels.ctf")
            write(path, arguments.megabytes)
        is_fine = [compare(path, size, arguments.seconds) for size in SIZES]
    print(f"at most {ALLOWED} times: {'yes' if all(is_fine) else 'no'}")
    return 0 if all(is_fine) else 1


if __name__ == "__main__":
    sys.exit(main())

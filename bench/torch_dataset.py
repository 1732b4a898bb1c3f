"""What reading through `cntkio.torch.MinibatchDataset` costs over the bare loop: a ratio, measured in one run.

    python bench/torch_dataset.py [FILE]

Both loops read the same sweep in this process, in turn, and touch the samples of each stream of each minibatch: the
bare one as arrays (`minibatch["x"].values`), the other as tensors (`minibatch["x"].values`, of `convert`). Once more
with streams that nobody touches. The ratio is of the best of --rounds runs. Exits with 1 if one is above 1.1.

Without FILE it writes a text file of pixels and labels, 128 MB of dense samples, to a temporary folder.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cntkio
import numpy as np
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


def bare(source: cntkio.MinibatchSource, size: int, names: list[str]) -> int:
    num_sequences = 0
    for minibatch in source.minibatches(size):
        num_sequences += minibatch.num_sequences
        for name in names:
            minibatch[name].values  # noqa: B018
    return num_sequences


def through_dataset(dataset: MinibatchDataset, names: list[str]) -> int:
    num_sequences = 0
    for minibatch in dataset:
        num_sequences += minibatch.num_sequences
        for name in names:
            minibatch[name].values  # noqa: B018
    return num_sequences


def seconds(work: Callable[[], int], expected: int) -> float:
    start = time.perf_counter()
    num_sequences = work()
    taken = time.perf_counter() - start
    assert num_sequences == expected, f"{num_sequences} sequences, and {expected} were expected"
    return taken


def compare(path: Path, size: int, names: list[str], rounds: int) -> float:
    with opened(path) as source, opened(path) as other:
        start = source.state_dict()
        dataset = MinibatchDataset(other, size)
        expected = source.num_sequences
        times: tuple[list[float], list[float]] = ([], [])
        for number in range(rounds + 1):
            source.load_state_dict(start)
            # In turn, and each of them first as often as the other.
            runs = [(0, lambda: bare(source, size, names)), (1, lambda: through_dataset(dataset, names))]
            for which, work in runs if number % 2 else reversed(runs):
                taken = seconds(work, expected)
                if number:  # the first round only warms up
                    times[which].append(taken)
    best = [min(one) for one in times]
    ratio = best[1] / best[0]
    minibatches = -(-source.num_samples // size)
    per_minibatch = (best[1] - best[0]) / minibatches * 1e6
    touched = " ".join(names) or "nothing"
    print(
        f"minibatches of {size:5}, touching {touched:16} bare {best[0]:7.3f} s  dataset {best[1]:7.3f} s  "
        f"ratio {ratio:5.3f}  ({per_minibatch:+.1f} us a minibatch, {minibatches} of them)"
    )
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=128, help="size of the file that is written without FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.file
        if path is None:
            path = Path(folder, "pixels.ctf")
            write(path, arguments.megabytes)
        names = list(cntkio.infer_streams(path))
        ratios = [compare(path, size, touched, arguments.rounds) for size in SIZES for touched in (names, [])]
    worst = max(ratios)
    print(f"the most: {worst:.3f} (allowed: {ALLOWED})")
    return 0 if worst <= ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())

"""Write the corpora of the benches: four typical kinds of text in the CNTK text format.

    python bench/harness/corpora.py FOLDER [--mb 512] [--only floats,mnist,sparse,seqs]

    floats.ctf   |x 200 normal decimals of 6 places |y one of 4
    mnist.ctf    |labels 10 digits, one of them 1 |features 784 integers 0 to 255, 150 of them not 0
    sparse.ctf   |src 5 to 59 and |tgt 3 to 19 pairs index:count, indices below 50000, counts 1 to 4
    seqs.ctf     1 to 39 lines a sequence: id |word i:1 |tag j:1, and |class k:1 on its first line

A file has about --mb times 10^6 bytes. The content does not depend on the time or the machine. Files floats, mnist and
sparse repeat a block of lines; seqs has new sequences throughout. Each file is read before it is measured. `csv` and
`svmlight` convert some of the files to formats of other programs.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

BLOCK_BYTES = 60_000_000
Random = np.random.Generator


def floats(random: Random) -> Iterator[str]:
    line = "|x" + 200 * " %.6f" + " |y %.4f\n"
    while True:
        for row in random.standard_normal((1000, 201)).tolist():
            yield line % tuple(row)


def mnist(random: Random) -> Iterator[str]:
    one_hot = [" ".join("1" if digit == label else "0" for digit in range(10)) for label in range(10)]
    while True:
        pixels = np.zeros((1000, 784), np.int64)
        inked = random.permuted(np.tile(np.arange(784), (1000, 1)), axis=1)[:, :150]
        np.put_along_axis(pixels, inked, random.integers(1, 256, (1000, 150)), axis=1)
        for label, picture in zip(random.integers(0, 10, 1000).tolist(), pixels.tolist(), strict=True):
            yield f"|labels {one_hot[label]} |features {' '.join(map(str, picture))}\n"


def sparse(random: Random) -> Iterator[str]:
    def pairs(most: int) -> str:
        indices = np.unique(random.integers(0, 50_000, most)).tolist()
        counts = random.integers(1, 5, len(indices)).tolist()
        return " ".join(f"{index}:{count}" for index, count in zip(indices, counts, strict=True))

    while True:
        yield f"|src {pairs(random.integers(5, 60))}\t|tgt {pairs(random.integers(3, 20))}\n"


def seqs(random: Random) -> Iterator[str]:
    key = 0
    while True:
        lengths = random.integers(1, 40, 1000)
        words = iter(random.integers(0, 10_000, lengths.sum()).tolist())
        tags = iter(random.integers(0, 50, lengths.sum()).tolist())
        for length, label in zip(lengths.tolist(), random.integers(0, 5, 1000).tolist(), strict=True):
            lines = [f"{key} |word {next(words)}:1 |tag {next(tags)}:1\n" for _ in range(length)]
            lines[0] = f"{lines[0][:-1]} |class {label}:1\n"
            yield "".join(lines)
            key += 1


KINDS: dict[str, Callable[[Random], Iterator[str]]] = {"floats": floats, "mnist": mnist, "sparse": sparse, "seqs": seqs}


def write(path: Path, kind: str, size: int, block: int = BLOCK_BYTES) -> Path:
    """Write a corpus of about `size` bytes, unless it exists. A file repeats its first `block` bytes."""
    if path.exists() and abs(path.stat().st_size - size) < 100_000:
        return read_anew(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = KINDS[kind](np.random.default_rng(20_250_101 + list(KINDS).index(kind)))
    unfinished = path.with_suffix(".part")
    with unfinished.open("w", newline="\n") as file:
        lines, written = [], 0
        while written < (size if kind == "seqs" else min(size, block)):
            lines.append(next(texts))
            written += len(lines[-1])
            if kind == "seqs":
                file.write(lines.pop())
        while lines and file.tell() + written <= size:
            file.writelines(lines)
        while lines and file.tell() < size:
            file.write(lines.pop())
    unfinished.rename(path)
    return read_anew(path)


def read_anew(path: Path) -> Path:
    """Drop a file from the page cache, and read it.

    Linux then keeps its pages in larger pieces than the pages of a file that was just written, and maps them faster.
    """
    with path.open("rb") as file:
        if sys.platform == "linux":
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while file.read(1 << 20):
            pass
    return path


def _by_line(source: Path, target: Path, change: Callable[[str], str]) -> Path:
    if not target.exists() or target.stat().st_mtime_ns < source.stat().st_mtime_ns:
        with source.open() as lines, target.open("w") as file:
            file.writelines(map(change, lines))
    return target


def csv(source: Path, target: Path) -> Path:
    """Convert a corpus of dense streams to comma-separated values without a header: the same numbers, line by line."""
    names = re.compile(r"\|\w+ ")
    return _by_line(source, target, lambda line: names.sub("", line).replace(" ", ","))


def svmlight(source: Path, target: Path) -> Path:
    """Convert the sparse corpus to the format of svmlight: label 0, with indices of tgt from 50000 on."""

    def change(line: str) -> str:
        first, second = (part.split()[1:] for part in line.split("|")[1:])
        moved = (f"{int(index) + 50_000}:{count}" for index, count in (pair.split(":") for pair in second))
        return f"0 {' '.join(first)} {' '.join(moved)}\n"

    return _by_line(source, target, change)


def speech(folder: Path, size: int) -> Path:
    """
    Write HTK features with labels, unless they exist, and return the path of the features: all.scp, all.mlf and
    states.list are in the same folder. The utterances have 100 to 899 frames of 40 values; labels, 2 to 19 frames.
    """
    from cntkio import write_htk_archive, write_label_mapping, write_mlf

    if (folder / "states.list").exists():
        return read_anew(folder / "feat.ark")
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(20_250_105)
    lengths = random.integers(100, 900, size // (4 * 40 * 500))
    names = [f"s{state}" for state in range(500)]

    def labels(length: int) -> np.ndarray:
        return np.repeat(random.integers(0, 500, length), random.integers(2, 20, length))[:length]

    frames = (
        (f"utt{number:06}", random.standard_normal((length, 40), np.float32)) for number, length in enumerate(lengths)
    )
    write_htk_archive(folder / "feat.ark", folder / "all.scp", frames, extension=".mfc")
    write_mlf(folder / "all.mlf", ((f"utt{number:06}", labels(length)) for number, length in enumerate(lengths)), names)
    write_label_mapping(folder / "states.list", names)
    return read_anew(folder / "feat.ark")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mb", type=int, default=512)
    parser.add_argument("--only", default=",".join(KINDS))
    arguments = parser.parse_args()
    for kind in arguments.only.split(","):
        print(write(arguments.folder / f"{kind}.ctf", kind, arguments.mb * 10**6))


if __name__ == "__main__":
    main()

"""Work of a rank of a global partition in each format, compared with a single process.

    python bench/shares.py [FOLDER] [--mb 512] [--ranks 8] [--size 65536] [--repeat 3] [--split]

FOLDER gets corpora of about --mb times 10^6 bytes, unless they exist: sequences of words (seqs.ctf of corpora.py),
lines of sparse values (sparse.ctf), both as binary files, and HTK features with labels as htk.py writes them, in an
archive and in a file for each utterance. "Joined texts" reads two streams of a text as two corpora.

A rank delivers its share of the global minibatches of a sweep; a single process delivers all of them. Each sweep runs
in a process of its own. The table shows the least processor time of a sweep after the corpus was opened (share: divided
by that of the single process), and the bytes of the chunks that were loaded, as they lie in memory. Chunks of mapped
files count, although they take no memory of the process.

With --split, ranks share packed rows of a text of long sequences (200 to 4,000 words, a quarter of --mb) instead. The
table compares the first of them with a rank that loads all sequences of the rows and packs the same cells.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
from cntkio import Budget, GlobalPartition, StreamDef, StreamDefs, packed
from harness.corpora import speech
from harness.engines import line, machine

Corpora = Callable[[Path], list[Any]]


def text(name: str, *streams: str) -> Corpora:
    def open_text(folder: Path) -> list[Any]:
        inferred = cntkio.infer_streams(folder / name)
        divided = [inferred] if not streams else [StreamDefs(**{stream: inferred[stream]}) for stream in streams]
        return [cntkio.CTFDeserializer(folder / name, part, cache_index=True) for part in divided]

    return open_text


def features(folder: Path, name: str) -> Any:
    return cntkio.HTKFeatureDeserializer(StreamDefs(features=StreamDef(scp=folder / name, shape=40)))


def labels(folder: Path) -> Any:
    streams = StreamDefs(labels=StreamDef(mlf=folder / "all.mlf", shape=500))
    return cntkio.HTKMLFDeserializer(folder / "states.list", streams, cache_index=True)


CORPORA: dict[str, Corpora] = {
    "text of words": text("seqs.ctf"),
    "joined texts of words": text("seqs.ctf", "word", "tag"),
    "text of sparse lines": text("sparse.ctf"),
    "joined texts of sparse lines": text("sparse.ctf", "src", "tgt"),
    "binary, words": lambda folder: [cntkio.CBFDeserializer(folder / "seqs.cbf")],
    "binary, sparse lines": lambda folder: [cntkio.CBFDeserializer(folder / "sparse.cbf")],
    "the same, copied": lambda folder: [cntkio.CBFDeserializer(folder / "sparse.cbf", memory_map=False)],
    "HTK archive": lambda folder: [features(folder, "all.scp")],
    "HTK files": lambda folder: [features(folder, "files.scp")],
    "HTK files and labels": lambda folder: [features(folder, "files.scp"), labels(folder)],
}


def prepare(folder: Path, megabytes: int) -> None:
    """Write the corpora that do not exist."""
    for name in ("seqs", "sparse"):
        if not (folder / f"{name}.cbf").exists():
            command = [sys.executable, str(Path(__file__).with_name("harness") / "corpora.py"), str(folder)]
            subprocess.run([*command, "--mb", str(megabytes), "--only", name], check=True)
            cntkio.write_cbf(folder / f"{name}.cbf", *text(f"{name}.ctf")(folder))
    speech(folder, megabytes * 1_000_000)
    if not (folder / "files.scp").exists():
        (folder / "files").mkdir(exist_ok=True)
        listed = []
        with cntkio.MinibatchSource([features(folder, "all.scp")], randomize=False, max_sweeps=1) as source:
            for minibatch in source.minibatches(100_000):
                utterances = minibatch["features"].as_sequences()
                for key, frames in zip(minibatch.keys_of_sequences.tolist(), utterances, strict=True):
                    path = folder / "files" / f"{key}.mfc"
                    cntkio.write_htk_features(path, frames)
                    listed.append(f"{key}={path}[0,{len(frames) - 1}]\n")
        (folder / "files.scp").write_text("".join(listed))


class Counting:
    """A deserializer whose corpus counts the bytes of the chunks that it loads, and their sequences."""

    def __init__(self, deserializer: Any) -> None:
        self._deserializer, self.num_bytes, self.num_sequences = deserializer, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._deserializer, name)

    def parts(self) -> list[Any]:
        return [self]

    def open(self, **options: Any) -> Any:
        return CountingCorpus(self, self._deserializer.open(**options))

    def counted(self, load: Callable[..., Any]) -> Callable[..., Any]:
        def load_and_count(*arguments: Any) -> Any:
            loaded = load(*arguments)
            self.num_bytes += loaded.chunk.num_bytes
            self.num_sequences += loaded.chunk.num_sequences
            return loaded

        return load_and_count


class CountingCorpus:
    """The corpus of a `Counting`."""

    def __init__(self, counting: Counting, corpus: Any) -> None:
        self._corpus = corpus
        self.load = counting.counted(corpus.load)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._corpus, name)


def sweep(corpora: list[Any], own: GlobalPartition, size: Any, part: tuple[int, int] = (0, 1)) -> float:
    """Read a rank's share of a sweep, pack its `part` of rows, and return the seconds of processor time."""
    with cntkio.MinibatchSource(corpora, max_sweeps=1) as source:
        begin = time.process_time()
        while (minibatch := source.read(size, own)) is not None:
            if isinstance(size, Budget):
                packed(minibatch, size.row_length or 0, part=part)
        return time.process_time() - begin


def measured(corpora: list[Any], repeat: int, *reads: Any) -> tuple[float, int, int]:
    """Return the least processor time of a `sweep`, and the bytes and the sequences of the chunks that it loads."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        seconds = min(pool.starmap(sweep, repeat * [(corpora, *reads)], chunksize=1))
    counting = [Counting(corpus) for corpus in corpora]
    sweep(counting, *reads)  # type: ignore[arg-type]
    return seconds, sum(corpus.num_bytes for corpus in counting), sum(corpus.num_sequences for corpus in counting)


def long_text(folder: Path, megabytes: int) -> list[Any]:
    """Return a text of long sequences, and write it if it does not exist."""
    path, draw = folder / "long.ctf", np.random.default_rng(1)
    if not path.exists():
        with path.open("w") as file:
            for key in range(megabytes * 10**6 // (2100 * 16)):
                words = draw.integers(0, 50_000, draw.integers(200, 4001))
                file.writelines(f"{key}\t|w {word}:1\n" for word in words.tolist())
    streams = StreamDefs(w=StreamDef(field="w", shape=50_000, is_sparse=True))
    return [cntkio.CTFDeserializer(path, streams, cache_index=True)]


def split(folder: Path, megabytes: int, repeat: int) -> None:
    """Print the costs of ranks that share packed rows, and of ranks that load all sequences of the rows."""
    corpora = long_text(folder, megabytes)
    line("cells of a row", "ranks", "sequences", "bytes", "time of all", "of a part", "share")
    for length in (16_384, 65_536):
        size = Budget(rows=1, row_length=length, pool=400)
        for count in (2, 4, 8):
            part = (0, count)
            whole, own = (
                measured(corpora, repeat, share, size, part)
                for share in (GlobalPartition(), GlobalPartition(part=part))
            )
            line(
                f"{length:,}", f"{count}", f"{own[2] / whole[2]:.2f}", f"{own[1] / whole[1]:.2f}",
                f"{whole[0]:.3f} s", f"{own[0]:.3f} s", f"{own[0] / whole[0]:.2f}",
            )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--mb", type=int, default=512)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--size", type=int, default=65_536, help="samples of a global minibatch")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--split", action="store_true", help="let ranks share packed rows")
    options = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        print(machine())
        if options.split:
            split(folder, options.mb // 4, options.repeat)
            return
        prepare(folder, options.mb)
        line(f"a rank of {options.ranks}", "alone", "rank", "share", "chunks alone", "rank", "share")
        for name, corpora in CORPORA.items():
            whole, own = (
                measured(corpora(folder), options.repeat, GlobalPartition(0, ranks), options.size)
                for ranks in (1, options.ranks)
            )
            line(
                name, f"{whole[0]:.3f} s", f"{own[0]:.3f} s", f"{own[0] / whole[0]:.2f}",
                f"{whole[1] / 1e6:.0f} MB", f"{own[1] / 1e6:.0f} MB", f"{own[1] / whole[1]:.2f}",
            )  # fmt: skip


if __name__ == "__main__":
    main()

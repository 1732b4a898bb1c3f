"""Speed of cntkio and of other loaders of PyTorch users, on the same data, in one run.

    python bench/loaders.py [--mb 512] [--repeat 3] [--seconds 10] [--only NAME,...] [--folder FOLDER]

rows    samples with 201 numbers, as shuffled batches of 1,024 tensors; 1,000 samples a second
words   sentences of 1 to 39 words, as padded batches of some 4,096 class ids; 1,000,000 words a second

Each loader reads its own format, which is written beforehand, and is used as its documentation recommends; `LOADERS`
says how. The time includes opening, making the index, starting workers, and one epoch, or as much of it as --seconds
allow, after an epoch that is not counted. Each run is a process of its own, and the loaders take turns: the table shows
the slowest and the fastest run. A loader that is not installed is named at the end.

The environment needs cntkio, torch, datasets, grain, litdata and webdataset; `make loaders` makes it.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cntkio import CBFDeserializer, CTFDeserializer, MinibatchSource, StreamDef, StreamDefs, read_ctf, write_cbf
from cntkio.torch import MinibatchDataset
from harness import corpora, engines
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset

BATCH = 1024
WORDS = 4096
SENTENCES = WORDS // 20  # a sentence has 20 words on average
SHUFFLE_BUFFER = 10_000
SHARDS = 8
SKIPPED = 77  # exit status
Tensors = Iterator[tuple[torch.Tensor, ...]]


class Data:
    """Files of one folder: the texts of `corpora`, and the same data as each loader wants them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def made(self, name: str, write: Callable[[Path], object]) -> Path:
        """Return a file or folder, which is written first if it is not there."""
        path = self.folder / name
        if not path.exists():
            unfinished = self.folder / f"unfinished-{name}"
            write(unfinished)
            unfinished.rename(path)
        return path

    @functools.cached_property
    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Features `[rows, 200]` and targets `[rows, 1]`, float32, mapped from files."""

        def write(path: Path) -> None:
            read = read_ctf(self.folder / "floats.ctf")
            path.mkdir()
            np.save(path / "x.npy", read["x"].values)
            np.save(path / "y.npy", read["y"].values)

        path = self.made("rows", write)
        return np.load(path / "x.npy", mmap_mode="r"), np.load(path / "y.npy", mmap_mode="r")

    @functools.cached_property
    def sentences(self) -> tuple[np.ndarray, np.ndarray]:
        """The classes of all words, int64, and where each sentence begins and the last one ends."""

        def write(path: Path) -> None:
            word = StreamDefs(word=StreamDef(field="word", shape=10_000, is_sparse=True))
            read = read_ctf(self.folder / "seqs.ctf", word)["word"]
            path.mkdir()
            np.save(path / "words.npy", read.indices.astype(np.int64))
            np.save(path / "offsets.npy", read.offsets)

        path = self.made("sentences", write)
        return np.load(path / "words.npy"), np.load(path / "offsets.npy")


def loader(dataset: Any, workers: int, **options: Any) -> Iterable[Any]:
    return DataLoader(dataset, num_workers=workers, persistent_workers=False, **options)


# -- cntkio ------------------------------------------------------------------------------------------------------------


def of_cntkio(corpus: Any, size: int, layout: Any) -> Iterator[Any]:
    return iter(MinibatchDataset(MinibatchSource(corpus, max_sweeps=1), size, layout=layout))


def cntkio_rows(data: Data, is_binary: bool) -> Tensors:
    streams = StreamDefs(x=StreamDef(field="x", shape=200), y=StreamDef(field="y", shape=1))
    corpus: Any = CTFDeserializer(data.folder / "floats.ctf", streams)
    if is_binary:
        corpus = CBFDeserializer(data.made("floats.cbf", lambda path: write_cbf(path, corpus)))
    yield ()  # the files are written
    for minibatch in of_cntkio(corpus, BATCH, None):
        yield minibatch["x"].values, minibatch["y"].values


def cntkio_words(data: Data, is_binary: bool) -> Tensors:
    streams = StreamDefs(word=StreamDef(field="word", shape=10_000, is_sparse=True))
    corpus: Any = CTFDeserializer(data.folder / "seqs.ctf", streams)
    if is_binary:
        corpus = CBFDeserializer(data.made("seqs.cbf", lambda path: write_cbf(path, corpus)))
    yield ()
    for minibatch in of_cntkio(corpus, WORDS, "padded_ids"):
        padded = minibatch["word"]
        yield padded.values, padded.lengths


# -- tensors in memory -------------------------------------------------------------------------------------------------


def tensor_rows(data: Data, workers: int, by_batch: bool) -> Tensors:
    dataset = TensorDataset(*(torch.from_numpy(np.array(rows)) for rows in data.rows))
    yield ()
    if by_batch:
        batches = BatchSampler(RandomSampler(dataset), BATCH, drop_last=False)
        yield from loader(dataset, workers, sampler=batches, batch_size=None)
    else:
        yield from loader(dataset, workers, shuffle=True, batch_size=BATCH)


def pad(sentences: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    return torch.nn.utils.rnn.pad_sequence(sentences, batch_first=True), lengths


class Sentences(Dataset[torch.Tensor]):
    """A list of tensors."""

    def __init__(self, sentences: list[torch.Tensor]) -> None:
        self.sentences = sentences

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.sentences[number]


def tensor_words(data: Data, workers: int) -> Tensors:
    words, offsets = data.sentences
    sentences = list(torch.from_numpy(words).split(np.diff(offsets).tolist()))
    yield ()
    yield from loader(Sentences(sentences), workers, shuffle=True, batch_size=SENTENCES, collate_fn=pad)


# -- Hugging Face datasets ---------------------------------------------------------------------------------------------


def arrow_rows(data: Data, workers: int) -> Tensors:
    from datasets import Dataset as ArrowDataset
    from datasets import load_from_disk
    from pyarrow import FixedSizeListArray, Table

    def write(path: Path) -> None:
        lists = {name: FixedSizeListArray.from_arrays(np.array(rows).ravel(), rows.shape[1])
                 for name, rows in zip("xy", data.rows, strict=True)}  # fmt: skip
        ArrowDataset(Table.from_pydict(lists)).save_to_disk(path)

    dataset = load_from_disk(data.made("rows.datasets", write))
    yield ()
    for batch in loader(dataset.with_format("torch"), workers, shuffle=True, batch_size=BATCH):
        yield batch["x"], batch["y"]


def pad_dictionaries(rows: list[dict[str, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    return pad([row["word"] for row in rows])


def arrow_words(data: Data, workers: int) -> Tensors:
    from datasets import Dataset as ArrowDataset
    from datasets import load_from_disk
    from pyarrow import ListArray, Table

    def write(path: Path) -> None:
        words, offsets = data.sentences
        lists = ListArray.from_arrays(offsets.astype(np.int32), words)
        ArrowDataset(Table.from_pydict({"word": lists})).save_to_disk(path)

    dataset = load_from_disk(data.made("sentences.datasets", write))
    yield ()
    options = {"shuffle": True, "batch_size": SENTENCES, "collate_fn": pad_dictionaries}
    yield from loader(dataset.with_format("torch"), workers, **options)


# -- Grain, LitData, WebDataset ----------------------------------------------------------------------------------------


class RowsByNumber:
    """Rows of arrays that are mapped from files, as a random access source; workers map the files themselves."""

    def __init__(self, *paths: Path) -> None:
        self.paths = paths
        self.arrays = [np.load(path, mmap_mode="r") for path in paths]

    def __reduce__(self) -> tuple[Any, ...]:
        return RowsByNumber, self.paths

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, number: int) -> tuple[np.ndarray, ...]:
        return tuple(array[number] for array in self.arrays)


def grain_rows(data: Data, workers: int) -> Tensors:
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    source = RowsByNumber(*(data.folder / "rows" / f"{name}.npy" for name in "xy"))
    yield ()
    dataset = grain.MapDataset.source(source).shuffle(seed=1).batch(BATCH).to_iter_dataset()
    if workers:
        dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    for batch in dataset:
        yield tuple(map(torch.from_numpy, batch))


def one_row(number: int, rows: tuple[np.ndarray, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.array(values[number]) for name, values in zip("xy", rows, strict=True)}


def litdata_rows(data: Data, workers: int) -> Tensors:
    import litdata

    def write(path: Path) -> None:
        make = functools.partial(one_row, rows=data.rows)
        numbers = list(range(len(data.rows[0])))
        litdata.optimize(make, numbers, str(path), chunk_bytes="64MB", num_workers=1)

    path = data.made("rows.litdata", write)
    yield ()
    dataset = litdata.StreamingDataset(str(path), shuffle=True, drop_last=False)
    for batch in litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers):
        yield batch["x"], batch["y"]


def webdataset_rows(data: Data, workers: int) -> Tensors:
    import webdataset

    def write(path: Path) -> None:
        path.mkdir()
        count = -(-len(data.rows[0]) // SHARDS)
        with webdataset.ShardWriter(f"{path}/%02d.tar", maxcount=count, maxsize=1e12, verbose=0) as shards:
            for number in range(len(data.rows[0])):
                row = one_row(number, data.rows)
                shards.write({"__key__": f"{number:09}", "x.npy": row["x"], "y.npy": row["y"]})

    shards = sorted(map(str, data.made("rows.tar", write).glob("*.tar")))
    yield ()
    dataset = webdataset.WebDataset(shards, shardshuffle=SHARDS, seed=1).shuffle(SHUFFLE_BUFFER).decode()
    batches = dataset.to_tuple("x.npy", "y.npy").batched(BATCH)
    for batch in webdataset.WebLoader(batches, batch_size=None, num_workers=workers):
        yield tuple(map(torch.as_tensor, batch))


# -- the run -----------------------------------------------------------------------------------------------------------

Loader = Callable[[Data], Tensors]
LOADERS: dict[str, dict[str, Loader]] = {
    "rows": {
        "cntkio, text": lambda data: cntkio_rows(data, False),
        "cntkio, binary": lambda data: cntkio_rows(data, True),
        "TensorDataset": lambda data: tensor_rows(data, 0, False),
        "TensorDataset, 2 workers": lambda data: tensor_rows(data, 2, False),
        "TensorDataset, batch sampler": lambda data: tensor_rows(data, 0, True),
        "Hugging Face datasets": lambda data: arrow_rows(data, 0),
        "Hugging Face datasets, 2 workers": lambda data: arrow_rows(data, 2),
        "Grain": lambda data: grain_rows(data, 0),
        "Grain, 2 workers": lambda data: grain_rows(data, 2),
        "LitData": lambda data: litdata_rows(data, 0),
        "LitData, 2 workers": lambda data: litdata_rows(data, 2),
        "WebDataset": lambda data: webdataset_rows(data, 0),
        "WebDataset, 2 workers": lambda data: webdataset_rows(data, 2),
    },
    "words": {
        "cntkio, text": lambda data: cntkio_words(data, False),
        "cntkio, binary": lambda data: cntkio_words(data, True),
        "list of tensors": lambda data: tensor_words(data, 0),
        "list of tensors, 2 workers": lambda data: tensor_words(data, 2),
        "Hugging Face datasets": lambda data: arrow_words(data, 0),
        "Hugging Face datasets, 2 workers": lambda data: arrow_words(data, 2),
    },
}
UNITS = {"rows": (1e3, "1,000 samples a second"), "words": (1e6, "1,000,000 words a second")}


def measured(task: str, name: str, data: Data, seconds: float) -> float:
    """Return samples or words in a second of one epoch, or of its first `seconds`."""
    batches = LOADERS[task][name](data)
    next(batches)  # the data are written, and loaded into memory if the loader needs them there
    begin, num_read = time.perf_counter(), 0
    for first, second in batches:
        if task == "rows":
            assert first.shape[1:] == (200,) and second.shape == (len(first), 1) and first.dtype == torch.float32
            num_read += len(first)
        else:
            assert first.shape == (len(second), int(second.max()))
            num_read += int(second.sum())
        if time.perf_counter() - begin > seconds:
            break
    taken = time.perf_counter() - begin
    expected = len(data.rows[0]) if task == "rows" else len(data.sentences[0])
    assert num_read == expected or taken > seconds, f"{name}: {num_read} of {expected}"
    return num_read / taken


def in_a_process(task: str, name: str, folder: Path, seconds: float) -> float | None:
    """Return the speed of one run; None: a package is missing."""
    command = [sys.executable, __file__, "--folder", str(folder), "--seconds", str(seconds), "--run", task, name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode == SKIPPED:
        return None
    if done.returncode:
        raise SystemExit(f"{task}, {name}: the process ended with {done.returncode}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{package} not installed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=512, help="size of each text")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10, help="longest duration of a measurement")
    parser.add_argument("--only", default="", help="measure only loaders whose names contain one of these texts")
    parser.add_argument("--folder", type=Path, default=Path(".cache/bench/loaders"))
    parser.add_argument("--run", nargs=2, metavar=("TASK", "LOADER"), help="one run, in this process")
    arguments = parser.parse_args()
    if arguments.run:
        try:
            for seconds in (arguments.seconds / 4, arguments.seconds):  # the first epoch is a warm-up
                speed = measured(*arguments.run, Data(arguments.folder), seconds)
            print(json.dumps(speed), flush=True)
        except ModuleNotFoundError as error:
            print(error, file=sys.stderr)
            os._exit(SKIPPED)
        os._exit(0)  # some loaders leave threads and processes that would be waited for
    folder = arguments.folder / f"{arguments.mb} MB"
    for kind in ("floats", "seqs"):
        corpora.write(folder / f"{kind}.ctf", kind, arguments.mb * 10**6)
    packages = ("torch", "datasets", "grain", "litdata", "webdataset")
    print(f"{engines.machine()}, {', '.join(map(version, packages))}; texts of {arguments.mb} MB")
    chosen = [part.strip() for part in arguments.only.split(",")]
    for task, loaders in LOADERS.items():
        names = [name for name in loaders if any(part in name for part in chosen)]
        speeds: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(arguments.repeat):
            for name in list(speeds):
                speed = in_a_process(task, name, folder, arguments.seconds)
                if speed is None:
                    del speeds[name]
                else:
                    speeds[name].append(speed)
        unit, text = UNITS[task]
        engines.line(f"{task}, {text}", "from", "to")
        for name, each in speeds.items():
            engines.line(name, *(f"{speed / unit:,.1f}" for speed in (min(each), max(each))))
        for name in names:
            if name not in speeds:
                engines.line(name, "not installed")


if __name__ == "__main__":
    main()

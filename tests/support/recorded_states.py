"""Records of an earlier version: pickles and checkpoints, each with the minibatches that follow it.

`tests/data/recorded_states/record.py` writes the records, and the tests read them. Both create their objects here, with
relative paths: the current directory must be the folder of the corpora while an object is made, pickled or loaded.

A pickle names modules and attributes of its objects. So these tests fail when a class that users pickle moves to
another import path, or when an attribute is renamed without a way to read the old one.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cntkio import (
    CBFDeserializer,
    CTFDeserializer,
    HTKFeatureDeserializer,
    HTKMLFBinaryDeserializer,
    HTKMLFDeserializer,
    HTKMLFReader,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    StreamInformation,
    UserDeserializer,
)
from cntkio.timeline import BalancedPartition, Partition

FOLDER = Path(__file__).parents[1] / "data" / "recorded_states"
CORPORA = FOLDER / "corpus"
RECORDS = FOLDER / "records.json"


def records() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(RECORDS.read_text(encoding="utf-8"))
    return recorded


@contextlib.contextmanager
def beside_corpora() -> Iterator[None]:
    with contextlib.chdir(CORPORA):
        yield


def in_recorded_form(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state in the form of the recorded version, which has no checksums of the tables and of the content."""
    return {name: value for name, value in state.items() if name not in ("order", "content")}


def in_current_form(state: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded state as it is written now: without the index of a balanced partition."""
    timeline = state["timeline"]
    if "balanced" not in timeline:
        return state
    others = {name: value for name, value in timeline.items() if name not in ("balanced", "partition")}
    (_, count), (remainder, *turns) = timeline["partition"], timeline["balanced"]
    return {**state, "timeline": {**others, "global": turns, "rounds": [count, remainder]}}


# -- deserializers -----------------------------------------------------------------------------------------------------


def ctf(**options: Any) -> CTFDeserializer:
    streams = StreamDefs(x=StreamDef(field="x", shape=(1, 2)), s=StreamDef(field="s", shape=50, is_sparse=True))
    return CTFDeserializer("first.ctf", streams, chunk_size_in_bytes=150, **options)


def second_ctf() -> CTFDeserializer:
    return CTFDeserializer("second.ctf", StreamDefs(y=StreamDef(field="label", shape=1)), chunk_size_in_bytes=90)


def definer() -> CTFDeserializer:
    streams = StreamDefs(x=StreamDef(field="x", shape=2, defines_mb_size=True), s=StreamDef(field="s", shape=5))
    deserializer = CTFDeserializer("definer.ctf", streams, dtype=np.float64)
    deserializer["chunkSizeInBytes"] = 200
    return deserializer


def cbf() -> CBFDeserializer:
    return CBFDeserializer("first.cbf", StreamDefs(renamed=StreamDef(field="x", shape=(2,))), dtype=np.float64)


def features(**stream: Any) -> HTKFeatureDeserializer:
    return HTKFeatureDeserializer(
        StreamDefs(F=StreamDef(scp="features.scp", shape=2, **stream)), max_sequence_length=90, memory_map=False
    )


def labels(**options: Any) -> HTKMLFDeserializer:
    return HTKMLFDeserializer("states.list", StreamDefs(L=StreamDef(mlf="labels.mlf", shape=3)), **options)


def binary_labels() -> HTKMLFBinaryDeserializer:
    return HTKMLFBinaryDeserializer(StreamDefs(B=StreamDef(mlf="labels.bmlf", shape=3)), as_class_ids=True)


class Counted(UserDeserializer):
    """A corpus: chunk k has k % 3 + 1 sequences, and its sequence i has i + 1 samples."""

    def stream_infos(self) -> list[StreamInformation]:
        return [StreamInformation("u", 0, "dense", np.float32, (2,))]

    def num_chunks(self) -> int:
        return 7

    def get_chunk(self, chunk_id: int) -> dict[str, Any]:
        lengths = range(1, chunk_id % 3 + 2)
        return {"u": [np.full((length, 2), 10 * chunk_id + length, np.float32) for length in lengths]}


DESERIALIZERS: dict[str, Callable[[], Any]] = {
    "ctf": ctf,
    "ctf with a stream that defines the size": definer,
    "cbf": cbf,
    "features": lambda: features(context=(1, 1)),
    "labels": lambda: labels(phoneBoundaries=True),
    "binary labels": binary_labels,
    "user-defined": lambda: Counted(timeline="global"),
}


def beside_features(name: str, deserializer: Any) -> list[Any]:
    """Return the deserializers of a source: labels are read with features, all others alone."""
    return [features(), deserializer] if name.endswith("labels") else [deserializer]


# -- sources: how each is made, its request, and what happens to it before its state is taken --------------------------

SMALL = {"randomization_window_in_chunks": 3}


def in_epoch(source: MinibatchSource) -> None:
    source.begin_epoch(30, 75)


def in_numbered_epoch(reader: HTKMLFReader) -> None:
    reader.begin_epoch(40, 90, number=1)


Made = tuple[Callable[[], MinibatchSource], tuple[int, Partition], int, Callable[[Any], None] | None]
WHOLE = Partition()
SOURCES: dict[str, Made] = {
    "in order": (lambda: MinibatchSource(ctf(), max_sweeps=2, randomize=False), (7, WHOLE), 3, None),
    "before the first read": (lambda: MinibatchSource(ctf(), max_sweeps=1, **SMALL), (9, WHOLE), 0, None),
    "randomized in chunks": (
        lambda: MinibatchSource(ctf(), max_sweeps=3, randomization_seed=5, **SMALL), (8, WHOLE), 4, None,
    ),
    "randomized in samples, in a later sweep": (
        lambda: MinibatchSource(
            ctf(), max_sweeps=4, randomization_window_in_chunks=0, randomization_window_in_samples=25,
            randomization_seed=2**64 - 2,
        ),
        (11, WHOLE), 13, None,
    ),
    "a partition": (
        lambda: MinibatchSource(ctf(), max_sweeps=3, keep_data_in_memory=True, **SMALL), (12, Partition(1, 3)), 5, None,
    ),
    "a balanced partition": (
        lambda: MinibatchSource(ctf(), max_sweeps=3, **SMALL), (6, BalancedPartition(1, 2, "repeat", 1, 2)), 2, None,
    ),
    "truncated": (
        lambda: MinibatchSource(ctf(), max_sweeps=2, truncation_length=2, **SMALL), (6, WHOLE), 5, None,
    ),
    "truncated, with splicing, in order": (
        lambda: MinibatchSource(ctf(), max_sweeps=2, truncation_length=3, right_splice=1, randomize=False),
        (9, Partition(1, 2)), 3, None,
    ),
    "joined": (lambda: MinibatchSource([ctf(), second_ctf()], max_sweeps=2, **SMALL), (8, WHOLE), 4, None),
    "limited in samples": (lambda: MinibatchSource(ctf(), max_samples=100, **SMALL), (8, WHOLE), 9, None),
    "at the end": (lambda: MinibatchSource(ctf(), max_sweeps=1, **SMALL), (200, WHOLE), 1, None),
    "epoch begun": (lambda: MinibatchSource(ctf(), randomization_seed=3, **SMALL), (8, WHOLE), 0, in_epoch),
    "within an epoch": (
        lambda: MinibatchSource(ctf(), crosses_sweeps=False, local_timeline=False, **SMALL), (8, WHOLE), 3, in_epoch,
    ),
    "a stream defines the size": (lambda: MinibatchSource([definer()], max_sweeps=2, **SMALL), (5, WHOLE), 3, None),
    "binary": (lambda: MinibatchSource(cbf(), max_sweeps=2, randomization_seed=1), (9, WHOLE), 3, None),
    "frames": (
        lambda: MinibatchSource([features(context=(1, 2)), labels()], max_sweeps=2, frame_mode=True), (9, WHOLE), 3,
        None,
    ),
    "utterances": (
        lambda: MinibatchSource([features(), labels(), binary_labels()], max_sweeps=2), (12, WHOLE), 2, None,
    ),
    "user-defined": (lambda: MinibatchSource(Counted(), max_sweeps=3), (4, Partition(1, 2)), 3, None),
    "user-defined, truncated": (
        lambda: MinibatchSource(Counted(), max_sweeps=2, truncation_length=2), (4, WHOLE), 3, None,
    ),
    "user-defined, on the global timeline": (
        lambda: MinibatchSource(Counted(timeline="global"), max_sweeps=3, **SMALL), (4, WHOLE), 3, None,
    ),
    "reader of frames": (
        lambda: HTKMLFReader([features(), labels()], randomize=20, minibatchMode="full", max_sweeps=2), (7, WHOLE), 2,
        None,
    ),
    "reader of rolling frames": (
        lambda: HTKMLFReader(
            [features(context=(1, 1)), labels()], readMethod="rollingWindow", randomize=12, page_limit_in_bytes=0,
            randomization_seed=7, max_sweeps=3,
        ),
        (8, Partition(0, 2)), 4, None,
    ),
    "reader of utterances": (
        lambda: HTKMLFReader(features(), frameMode=False, nbruttsineachrecurrentiter=[1, 3]), (5, WHOLE), 1,
        in_numbered_epoch,
    ),
    "reader of truncated utterances": (
        lambda: HTKMLFReader(
            [features(), labels()], frameMode=False, truncated=True, nbruttsineachrecurrentiter=2, randomize="none",
            max_sweeps=2,
        ),
        (3, WHOLE), 4, None,
    ),
}  # fmt: skip


# -- data sets of PyTorch: the source, options, the epoch, and how many minibatches are read first ---------------------

Dataset = tuple[Callable[[], MinibatchSource], dict[str, Any], int, int]
ONE_SWEEP: Callable[[], MinibatchSource] = lambda: MinibatchSource(ctf(), max_sweeps=1, **SMALL)  # noqa: E731
DATASETS: dict[str, Dataset] = {
    "of the whole": (ONE_SWEEP, {}, 0, 3),
    "in a later epoch": (ONE_SWEEP, {}, 2, 4),
    "of a rank": (ONE_SWEEP, {"rank": 1, "world_size": 2}, 1, 2),
    "balanced": (ONE_SWEEP, {"rank": 1, "world_size": 2, "partition": "balanced", "remainder": "repeat"}, 1, 2),
    "not begun": (ONE_SWEEP, {}, 1, 0),
    "of a reader of frames": (SOURCES["reader of frames"][0], {}, 0, 3),
}


def objects() -> dict[str, Any]:
    """Small objects, whose recorded pickles must stay readable and be equal to them."""
    return {
        "Partition": Partition(2, 5),
        "BalancedPartition": BalancedPartition(1, 4, "repeat", 2, 3),
        "StreamDef": StreamDef(field="x", shape=(3, 4), is_sparse=True, defines_mb_size=True),
        "StreamDef of features": StreamDef(scp=["a.scp", "b.scp"], shape=40, context=(5, 6), broadcast=True),
        "StreamDef of labels": StreamDef(mlf="a.mlf", shape=132),
        "StreamDefs": StreamDefs(x=StreamDef(field="x", shape=2), y=StreamDef(field="y", shape=1)),
        "StreamInformation": StreamInformation("x", 3, "sparse", np.float64, (5, 2), True),
    }


# -- what is compared --------------------------------------------------------------------------------------------------


def next_minibatch(source: Any, size: int, partition: Partition) -> Any:
    """Read with the method that takes this partition. Readers translate the size in `next_minibatch`."""
    if isinstance(partition, BalancedPartition):
        return source.read(size, partition)
    return source.next_minibatch(size, None, None, partition.count, partition.index)


def read_on(source: Any, size: int, partition: Partition, most: int = 8) -> list[Any]:
    """Return the next minibatches as data for JSON; fewer if the source ends."""
    delivered = []
    for _ in range(most):
        minibatch = next_minibatch(source, size, partition)
        if not minibatch:
            break
        delivered.append(shown(minibatch))
    return delivered


def shown(minibatch: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"keys": [_text(key) for key in np.asarray(minibatch.keys_of_sequences).tolist()]}
    for name, data in minibatch.items():
        found[name] = shown_data(data)
    return found


def shown_data(data: Any) -> dict[str, Any]:
    names = ["values", "mask", "parts"]
    if not hasattr(data, "parts"):
        names = ["values", "offsets", "indptr", "indices"] if data.is_sparse else ["values", "offsets"]
    arrays = {name: getattr(data, name) for name in names}
    return {
        "dtype": str(data.values.dtype),
        "end_of_sweep": bool(data.end_of_sweep),
        **{name: np.asarray(array).tolist() for name, array in arrays.items()},
    }


def shown_tensors(minibatch: Any) -> dict[str, Any]:
    """Return a minibatch of a data set as data for JSON: keys, and per stream the samples of each sequence."""
    found: dict[str, Any] = {"keys": [_text(key) for key in np.asarray(minibatch.keys_of_sequences).tolist()]}
    for name in minibatch:
        data = minibatch[name]
        values = data.values.to_dense() if data.values.is_sparse_csr else data.values
        found[name] = [values.tolist() if values.shape[-1] < 50 else values.sum(1).tolist(), data.offsets.tolist()]
    return found


def shown_streams(source: Any) -> list[Any]:
    return [
        [info.name, info.stream_id, info.storage_format, str(info.dtype), list(info.shape), info.defines_mb_size]
        for info in source.stream_infos()
    ]


def _text(key: Any) -> Any:
    return key.decode() if isinstance(key, bytes) else key

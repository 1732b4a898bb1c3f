"""Tables, svmlight and Kaldi give the same budgets, pools, rows and mixtures as a text with the same data."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cntkio import (
    Budget,
    CTFDeserializer,
    KaldiDeserializer,
    MinibatchSource,
    SequenceMixture,
    StreamDef,
    StreamDefs,
    SvmlightDeserializer,
    packed,
    write_kaldi,
    write_svmlight,
)

DIM = 3
FRAMES = [np.arange(1, 1 + DIM * length, dtype=np.float32).reshape(-1, DIM) + 10 * number
          for number, length in enumerate([3, 1, 5, 2, 4, 1, 7, 2, 2, 6, 1, 3])]  # fmt: skip


def text(path: Path) -> CTFDeserializer:
    lines = [f"{key} |f {' '.join(map(str, row))}\n" for key, frames in enumerate(FRAMES) for row in frames.tolist()]
    path.write_text("".join(lines))
    return CTFDeserializer(path, StreamDefs(features=StreamDef(field="f", shape=DIM)))


def table(path: Path) -> Any:
    pa = pytest.importorskip("pyarrow")
    rows = pa.array([frames.tolist() for frames in FRAMES], pa.list_(pa.list_(pa.float32(), DIM)))
    pytest.importorskip("pyarrow.parquet").write_table(pa.table({"features": rows}), path)
    return pytest.importorskip("cntkio.arrow").ArrowDeserializer(path)


def svmlight(path: Path) -> SvmlightDeserializer:
    labels = [np.zeros(len(frames), np.float32) for frames in FRAMES]
    queries = [np.full(len(frames), number, np.float32) for number, frames in enumerate(FRAMES)]
    write_svmlight(path, {"features": FRAMES, "label": labels, "qid": queries})
    return SvmlightDeserializer(path, by_query=True, zero_based=False)


def archive(path: Path) -> KaldiDeserializer:
    write_kaldi(path, {"features": FRAMES})
    return KaldiDeserializer(path)


def frames_of(minibatch: Any) -> list[npt.NDArray[Any]]:
    data = minibatch["features"]
    return [whole[:length] for whole, length in zip(data.asarray(), data.lengths.tolist(), strict=True)]


def batches(deserializer: Any, size: Any) -> Iterator[Any]:
    with MinibatchSource(deserializer, max_sweeps=3, randomization_window_in_chunks=4) as source:
        for minibatch in source.minibatches(size):
            yield [minibatch.end_of_sweep, *map(np.ndarray.tolist, frames_of(minibatch))]


def in_packed_rows(deserializer: Any) -> Iterator[Any]:
    with MinibatchSource(deserializer, max_sweeps=2) as source:
        for minibatch in source.minibatches(Budget(rows=2, row_length=9, pool=8)):
            rows = packed(minibatch, 9, rows=2)
            yield rows.segment_ids.tolist(), rows.cu_seqlens.tolist(), rows.position_ids.tolist()
            yield [frames.tolist() for frames in frames_of(minibatch)]


def mixed(deserializer: Any) -> Iterator[Any]:
    first, second = (MinibatchSource(deserializer, randomization_seed=seed) for seed in (1, 2))
    with SequenceMixture({"a": (first, 3), "b": (second, 1)}, stop="forever") as mixture:
        for _ in range(20):
            minibatch = mixture.read(Budget(padded=20, pool=12))
            yield minibatch.source_of_sequences.tolist(), *(frames.tolist() for frames in frames_of(minibatch))


WAYS: dict[str, Callable[[Any], Iterator[Any]]] = {
    "samples": lambda deserializer: batches(deserializer, 9),
    "budget": lambda deserializer: batches(deserializer, Budget(padded=16)),
    "pool": lambda deserializer: batches(deserializer, Budget(samples=12, pool=6)),
    "buckets": lambda deserializer: batches(deserializer, Budget(padded=24, buckets=[2, 4, 8], pool=6)),
    "rows": lambda deserializer: batches(deserializer, Budget(rows=2, row_length=9, pool=8)),
    "packed": in_packed_rows,
    "mixture": mixed,
}


# Packed rows have room for dense and one-hot samples only, not for the sparse samples of svmlight.
PAIRS = [(make, way) for make in (table, svmlight, archive) for way in WAYS if (make, way) != (svmlight, "packed")]


@pytest.mark.parametrize(("make", "way"), PAIRS)
def test_minibatches_are_those_of_the_same_data_as_text(make: Callable[[Path], Any], way: str, tmp_path: Path) -> None:
    found = list(WAYS[way](make(tmp_path / "a.parquet")))
    assert found == list(WAYS[way](text(tmp_path / "a.ctf")))
    assert len(found) > 3

"""Corpora that are converted from each format to each other format, and read back. (docs/convert.md)"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import StreamDef, StreamDefs
from cntkio.convert import convert_file, corpus_of, joined, pieces_of, write_file
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rounds import rounds

pytest.importorskip("pyarrow")
sparse = pytest.importorskip("scipy.sparse")

TABLES = ["parquet", "arrow"]
FRAMES, LINES = ["ctf", "cbf", "ark", *TABLES], ["ctf", "cbf", "svm", *TABLES]
numbers = st.floats(-1e6, 1e6, allow_nan=False, width=32) | st.sampled_from([0.1, -0.0, 1e-30, 2.0**60])


def contents(path: Path, streams: StreamDefs, dtype: Any) -> tuple[dict[str, Any], list[str]]:
    reading = {"dtype": dtype} if path.suffix in (".ctf", ".svm", ".ark") else {}
    defined = streams if path.suffix in (".ctf", ".cbf") else StreamDefs()
    with pieces_of(corpus_of(path, defined, **reading)) as pieces:  # type: ignore[arg-type]
        found = joined(pieces)
    data = {
        name: (one.values.dtype, one.lengths.tolist(), one.values.tobytes(), one.stream.shape, one.is_sparse,
               None if one.indices is None or one.indptr is None else (one.indices.tolist(), one.indptr.tolist()))
        for name, one in found.items()
    }  # fmt: skip
    return data, found.keys_of_sequences.astype(np.str_).tolist()


def require_round_trip(
    folder: Path, data: dict[str, Any], streams: StreamDefs, dtype: Any, first: str, second: str
) -> None:
    one, other, last = (folder / f"{name}.{kind}" for name, kind in (("a", first), ("b", second), ("c", first)))
    write_file(one, data)
    for source, target in ((one, other), (other, last)):
        reading: dict[str, Any] = {"dtype": dtype} if source.suffix in (".ctf", ".svm", ".ark") else {}
        if source.suffix in (".ctf", ".cbf"):
            reading["streams"] = streams
        convert_file(source, target, renumber=target.suffix == ".ctf" and source.suffix == ".ark", **reading)
    with pieces_of(data, dtype) as pieces:
        expected = joined(pieces)
    for path in (one, other, last):
        found, keys = contents(path, streams, dtype)
        assert list(found) == list(expected)
        for name, of_stream in expected.items():
            value_type, lengths, values, shape, is_sparse, entries = found[name]
            assert (value_type, lengths, values) == (dtype, of_stream.lengths.tolist(), of_stream.values.tobytes())
            assert (shape, is_sparse) == (of_stream.stream.shape, of_stream.is_sparse)
            if of_stream.indices is not None and of_stream.indptr is not None:
                assert entries == (of_stream.indices.tolist(), of_stream.indptr.tolist())
        assert keys == [str(number) for number in range(len(keys))]


@settings(max_examples=rounds(60), suppress_health_check=list(HealthCheck), deadline=None)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=12), first=st.sampled_from(FRAMES),
    second=st.sampled_from(FRAMES), dtype=st.sampled_from([np.float32, np.float64]), data=st.data(),
)  # fmt: skip
def test_frames_keep_values_lengths_and_keys_between_all_formats(
    module_folder: Path, lengths: list[int], first: str, second: str, dtype: Any, data: st.DataObject
) -> None:
    width = data.draw(st.integers(2, 4))
    frames = [
        np.array(data.draw(st.lists(numbers, min_size=width * length, max_size=width * length)), dtype).reshape(
            -1, width
        )
        for length in lengths
    ]
    streams = StreamDefs(features=StreamDef(field="features", shape=width))  # Kaldi has no other name
    require_round_trip(module_folder, {"features": frames}, streams, dtype, first, second)


@settings(max_examples=rounds(60), suppress_health_check=list(HealthCheck), deadline=None)
@given(
    labels=st.lists(st.integers(-3, 3), min_size=1, max_size=12), first=st.sampled_from(LINES),
    second=st.sampled_from(LINES), dtype=st.sampled_from([np.float32, np.float64]), data=st.data(),
)  # fmt: skip
def test_sparse_lines_keep_values_lengths_and_keys_between_all_formats(
    module_folder: Path, labels: list[int], first: str, second: str, dtype: Any, data: st.DataObject
) -> None:
    count = len(labels)
    entries = [
        {**data.draw(st.dictionaries(st.integers(0, 7), numbers.filter(bool), max_size=4)), 8: 1.0}
        for _ in range(count)
    ]
    indptr = np.cumsum([0, *map(len, entries)]).astype(np.int64)
    ordered = [sorted(entry.items()) for entry in entries]
    indices = np.array([index for entry in ordered for index, _ in entry], np.int32)
    values = np.array([value for entry in ordered for _, value in entry], dtype)
    features = sparse.csr_matrix((values, indices, indptr), (count, 9))
    streams = StreamDefs(
        features=StreamDef(field="features", shape=9, is_sparse=True), label=StreamDef(field="label", shape=1)
    )
    arrays = {"features": features, "label": np.array(labels, dtype)}
    require_round_trip(module_folder, arrays, streams, dtype, first, second)

"""Files, and parts of a mixture, with the same streams in another order are one corpus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import CBFDeserializer, ConfigError, MinibatchSource, SequenceMixture, StreamInformation, write_cbf
from cntkio.formats.user import UserDeserializer
from scipy.sparse import csr_array

pa = pytest.importorskip("pyarrow", reason="PyArrow is not installed")

from cntkio.arrow import ArrowDeserializer  # noqa: E402
from pyarrow import parquet  # noqa: E402

NAMES = ["a", "b", "c"]


def columns(number: int, order: Sequence[str]) -> dict[str, Any]:
    """Return the streams of a part: numbers that tell the stream, the part and the sequence."""
    numbers = np.arange(4, dtype=np.float32) + 10 * number
    streams = {"a": numbers + 100, "b": np.stack([numbers, numbers + 200], 1), "c": csr_array(np.diag(numbers + 300))}
    return {name: streams[name] for name in order}


class InPython(UserDeserializer):
    """A part that a program has in its memory."""

    timeline = "global"

    def __init__(self, number: int, order: Sequence[str]) -> None:
        super().__init__()
        self._data = columns(number, order)

    def stream_infos(self) -> list[StreamInformation]:
        forms = {"a": ("dense", 1), "b": ("dense", 2), "c": ("sparse", 4)}
        return [StreamInformation(name, 0, forms[name][0], np.float32, forms[name][1]) for name in self._data]  # type: ignore[arg-type]

    def num_chunks(self) -> int:
        return 1

    def get_chunk(self, chunk_id: int) -> dict[str, Any]:
        shapes = {"a": (1, 1), "b": (1, 2)}
        return {
            name: [one.reshape(shapes[name]) for one in data] if name in shapes else [data[[row]] for row in range(4)]
            for name, data in self._data.items()
        }


def table(number: int, order: Sequence[str]) -> pa.Table:
    a, b, _ = columns(number, NAMES).values()
    of_c = [{"indices": [row], "values": [float(300 + row + 10 * number)]} for row in range(4)]
    kind = pa.struct({"indices": pa.list_(pa.int32()), "values": pa.list_(pa.float32())})
    rows = {"a": pa.array(a), "b": pa.array(b.tolist(), pa.list_(pa.float32(), 2)), "c": pa.array(of_c, kind)}
    return pa.table({name: rows[name] for name in order})


def write_batches(rows: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path, rows.schema) as file:
        file.write_table(rows, max_chunksize=3)


Read = Callable[[Path, list[Sequence[str]]], Any]


def tables(write: Callable[[pa.Table, Path], None]) -> Read:
    def read(folder: Path, orders: list[Sequence[str]]) -> Any:
        for number, order in enumerate(orders):
            write(table(number, order), folder / f"part-{number}")
        paths = [folder / f"part-{number}" for number in range(len(orders))]
        return ArrowDeserializer(paths, shapes={"c": 4})

    return read


def binary(layout: Any = "2.x", **options: Any) -> Read:
    def read(folder: Path, orders: list[Sequence[str]]) -> Any:
        for number, order in enumerate(orders):
            write_cbf(folder / f"part-{number}", columns(number, order), order=order, layout=layout)
        return CBFDeserializer([folder / f"part-{number}" for number in range(len(orders))], **options)

    return read


def mixture(folder: Path, orders: list[Sequence[str]]) -> Any:
    return SequenceMixture({str(number): (InPython(number, order), 1) for number, order in enumerate(orders)})


FORMATS: dict[str, Read] = {
    "parquet": tables(lambda rows, path: parquet.write_table(rows, path, row_group_size=3)),
    "arrow": tables(write_batches),
    "cbf": binary(),
    "cbf without maps": binary(memory_map=False),
    "cbf in memory": binary(keep_data_in_memory=True),
    "documented cbf": binary(layout="documented"),
    "a mixture": mixture,
}


def everything(corpus: Any, **options: Any) -> list[Any]:
    source = corpus if isinstance(corpus, MinibatchSource) else MinibatchSource(corpus, max_sweeps=2, **options)
    with source:
        return [
            (minibatch.keys_of_sequences.tolist(), {name: data.asarray().tolist() for name, data in minibatch.items()})
            for minibatch in source.minibatches(3)
        ]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("options", [{}, {"randomize": False}, {"truncation_length": 2}])
def test_the_order_of_streams_may_differ(tmp_path: Path, form: str, options: dict[str, Any]) -> None:
    expected = everything(FORMATS[form](tmp_path, [NAMES] * 3), **options)
    assert len(expected) > 2
    for orders in ([NAMES, "cba", "bca"], [NAMES, NAMES, "bac"]):
        assert everything(FORMATS[form](tmp_path, [list(order) for order in orders]), **options) == expected


@pytest.mark.parametrize("form", FORMATS)
def test_the_order_is_of_the_first_file(tmp_path: Path, form: str) -> None:
    corpus = FORMATS[form](tmp_path, [list("cab"), NAMES])
    with corpus if isinstance(corpus, MinibatchSource) else MinibatchSource(corpus) as source:
        assert [(info.name, info.stream_id) for info in source.stream_infos()] == [("c", 0), ("a", 1), ("b", 2)]


@pytest.mark.parametrize("form", FORMATS)
def test_files_with_other_streams_are_refused(tmp_path: Path, form: str) -> None:
    with pytest.raises(ConfigError, match="expected the same streams|no column 'c'"):
        everything(FORMATS[form](tmp_path, [NAMES, ["a", "b"]]))

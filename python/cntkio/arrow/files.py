"""Parquet and Arrow files of a corpus."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pyarrow import ipc, parquet

from cntkio.arrow.batches import RecordBatches
from cntkio.arrow.fields import KEY
from cntkio.convert import AnyPath, Progress
from cntkio.errors import CorpusError
from cntkio.formats.output_file import written_whole


def write_parquet(
    path: AnyPath,
    data: Any,
    *,
    key: str | None = KEY,
    flat: Collection[str] | bool = False,
    ids: Collection[str] = (),
    compression: str = "zstd",
    progress: Progress | None = None,
) -> None:
    """Write a corpus to a Parquet file, with bounded memory; the file appears when it is complete.

    Args:
        path: The file.
        data: As for `RecordBatches`.
        key: As for `RecordBatches`.
        flat: As for `RecordBatches`.
        ids: As for `RecordBatches`.
        compression: Compression of the columns, by pyarrow's name: ``"zstd"``, ``"snappy"``, ``"none"``, …
        progress: Called with the number of pieces done and the number of all pieces (0: unknown).

    Raises:
        ConfigError: An option is invalid.
        CorpusError: No sequence, a sequence of a flat stream does not have exactly one sample, or a sample of a stream
            in `ids` is not a single entry of 1.
        FormatError: The input breaks its format.
        OSError: A file cannot be read or written.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.parquet")
        >>> write_parquet(path, {"x": [np.float32([[1, 2]]), np.float32([[3, 4], [5, 6]])]})
        >>> parquet.read_table(path).to_pylist()
        [{'key': 0, 'x': [[1.0, 2.0]]}, {'key': 1, 'x': [[3.0, 4.0], [5.0, 6.0]]}]
    """
    batches = RecordBatches(data, key=key, flat=flat, ids=ids)
    with (
        written_whole(path) as file,
        parquet.ParquetWriter(file, batches.schema, compression=compression, write_page_checksum=True) as writer,
    ):
        _write(writer, batches, progress)


def write_arrow(
    path: AnyPath,
    data: Any,
    *,
    key: str | None = KEY,
    flat: Collection[str] | bool = False,
    ids: Collection[str] = (),
    progress: Progress | None = None,
) -> None:
    """Write a corpus to an Arrow file with random access, not compressed, so that it can be memory-mapped.

    Arguments and exceptions as for `write_parquet`.

    Example:
        >>> import cntkio, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "iris.arrow")
        >>> write_arrow(path, cntkio.read_ctf("examples/iris/iris.ctf"))
        >>> path.stat().st_size > 0
        True
    """
    batches = RecordBatches(data, key=key, flat=flat, ids=ids)
    with written_whole(path) as file, ipc.new_file(file, batches.schema) as writer:
        _write(writer, batches, progress)


def _write(writer: Any, batches: RecordBatches, progress: Progress | None) -> None:
    count = 0
    for batch in batches.batches(progress):
        writer.write_batch(batch)
        count += batch.num_rows
    if count == 0:
        raise CorpusError("no sequence to write")

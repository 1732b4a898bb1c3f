"""Record batches from files, data frames, data sets and mappings of columns, checked before anything uses them.

A damaged file raises a `FormatError` that names the file and its batch or row group, whatever pyarrow raises.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import ipc, parquet

from cntkio.convert.tables import ArrayLike, ArrowArray, ArrowStream, DataSet
from cntkio.errors import ConfigError, FormatError
from cntkio.formats.detect import detect, other_than
from cntkio.formats.input_file import open_to_read

_ROWS_AT_ONCE = 4096
_BYTES_AT_ONCE = 16 << 20
_DAMAGE = (pa.ArrowException, UnicodeDecodeError, OverflowError, EOFError, OSError, ValueError, TypeError, KeyError)


class Table(NamedTuple):
    """Record batches of one schema.

    Attributes:
        name: Name used in messages: the file, or the type of the object.
        schema: The columns.
        batches: The batches, of any size, read one by one on request.
        total: Number of batches; 0: unknown.
    """

    name: str
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    total: int = 0


def can_be_read_again(data: Any) -> bool:
    """Return whether each opening reads the same batches; a reader of batches delivers them once."""
    return not isinstance(data, pa.RecordBatchReader)


@contextlib.contextmanager
def opened(data: Any) -> Iterator[Table]:
    """Open a file, or an object that has record batches.

    Raises:
        ConfigError: The object has no record batches.
        FormatError: The file is neither Parquet nor Arrow, or is damaged.
        OSError: The file cannot be read.
    """
    if isinstance(data, str | os.PathLike):
        with _opened_file(os.fspath(data)) as table:
            yield table
    elif isinstance(data, pa.RecordBatchReader):
        yield Table("RecordBatchReader", data.schema, iter(data))
    elif isinstance(data, ArrowStream):
        with _reader(data) as reader:
            yield Table(type(data).__name__, reader.schema, iter(reader))
    elif isinstance(data, DataSet) and data.features is not None:
        tables = data.with_format("arrow").iter(batch_size=_ROWS_AT_ONCE)
        batches = (batch for table in tables for batch in pa.table(table).to_batches())
        yield Table(type(data).__name__, data.features.arrow_schema, batches)
    elif isinstance(data, Sequence) and len(data) and all(isinstance(part, pa.Table) for part in data):
        batches = (batch for table in data for batch in table.to_batches())
        yield Table("tables", data[0].schema, batches)
    elif isinstance(data, Mapping):
        table = pa.table([_column(name, value) for name, value in data.items()], names=list(map(str, data)))
        yield Table("columns", table.schema, iter(table.to_batches()))
    else:
        raise ConfigError(
            f"got a {type(data).__name__}; expected a path, a data frame, a data set, any object with "
            "__arrow_c_stream__, or a mapping of names to columns, such as {'x': data}",
            key="data",
        )


def _reader(data: ArrowStream) -> pa.RecordBatchReader:
    """Return the batches of a table; a series is a table of one column."""
    try:
        return pa.RecordBatchReader.from_stream(data)
    except pa.ArrowInvalid:  # not a table
        column, name = pa.chunked_array(data), getattr(data, "name", None)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"a {type(data).__name__} without a name; expected {{'x': data}}", key="data")
    return pa.table({name: column}).to_reader()


def _column(name: Any, value: Any) -> pa.Array | pa.ChunkedArray:
    """Return a column of a mapping: an array or a tensor with one sample per row, a series, or lists."""
    try:
        if isinstance(value, ArrowStream):
            return pa.chunked_array(value)
        array = np.asarray(value) if isinstance(value, ArrayLike) and not isinstance(value, ArrowArray) else None
        if array is None or array.ndim < 2:
            return pa.array(value if array is None else array)
        flat = pa.array(array.reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, int(np.prod(array.shape[1:])))
    except (pa.ArrowException, TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"column {name!r}: {error}; expected numbers, or lists of them", key=str(name)) from None


@contextlib.contextmanager
def _opened_file(path: str) -> Iterator[Table]:
    os.close(open_to_read(path))
    kind = detect(path).form
    if kind == "parquet":
        with _reading(path, "footer"):
            file = parquet.ParquetFile(path, page_checksum_verification=True)
            rows = int(file.metadata.num_rows)
        with file:
            with _reading(path, "schema"):
                schema = _checked_schema(file.schema_arrow)
            yield Table(path, schema, _parquet_batches(path, file), -(-rows // _ROWS_AT_ONCE))
    elif kind == "arrow stream":
        with pa.memory_map(path) as memory:
            with _reading(path, "schema"):
                stream = ipc.open_stream(memory)
                schema = _checked_schema(stream.schema)
            yield Table(path, schema, _validated(path, stream))
    elif kind == "arrow":
        with pa.memory_map(path) as memory:
            with _reading(path, "footer"):
                file = ipc.open_file(memory)
                total = int(file.num_record_batches)
            with _reading(path, "schema"):
                schema = _checked_schema(file.schema)
            yield Table(path, schema, _validated(path, map(file.get_batch, range(total))), total)
    else:
        what = "this is neither a Parquet nor an Arrow file" + other_than("parquet", path)
        raise FormatError(what, path=path, byte=0)


def _parquet_batches(path: str, file: parquet.ParquetFile) -> Iterator[pa.RecordBatch]:
    for group in range(file.num_row_groups):
        where = f"row group {group}"
        with _reading(path, where):
            batches = file.iter_batches(_ROWS_AT_ONCE, row_groups=[group])
            expected = int(file.metadata.row_group(group).num_rows)
        count = 0
        for batch in _validated(path, batches, where):
            count += batch.num_rows
            yield batch
        if count != expected:
            raise FormatError(f"{where} is damaged: {count} rows, but the footer says {expected}", path=path)


def _validated(path: str, batches: Iterator[pa.RecordBatch], where: str | None = None) -> Iterator[pa.RecordBatch]:
    """Read and check batches one by one. `where` is what contains them; None: each batch stands alone in the file."""
    for index in itertools.count():
        with _reading(path, where or f"batch {index}"):
            batch = next(batches, None)
            if batch is None:
                return
            batch.validate(full=True)
        yield batch


@contextlib.contextmanager
def _reading(path: str, where: str) -> Iterator[None]:
    """Turn an error of pyarrow in the block into an error that says where the file is damaged."""
    try:
        yield
    except _DAMAGE as error:
        if isinstance(error, FormatError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        raise FormatError(f"{where} is damaged: {(str(error) or repr(error)).splitlines()[0]}", path=path) from None


def _checked_schema(schema: pa.Schema) -> pa.Schema:
    """Read all names of a schema once; names that are not UTF-8 fail."""
    fields = list(schema)
    while fields:
        field = fields.pop()
        str(field.name)
        if pa.types.is_nested(field.type):
            fields.extend(field.type.field(index) for index in range(field.type.num_fields))
    return schema


def small(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut large batches, so that memory stays bounded."""
    for batch in batches:
        rows = max(batch.num_rows * _BYTES_AT_ONCE // max(batch.nbytes, 1), 1)
        for first in range(0, batch.num_rows, rows):
            yield batch.slice(first, rows)

"""Tables in memory: data frames, series, tables, data sets, mappings of columns, and readers of record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from cntkio.arrow.files import ROWS_AT_ONCE, Table
from cntkio.arrow.types import in_plain_types, plain_schema
from cntkio.errors import ConfigError
from cntkio.formats.pieces import ArrayLike, ArrowArray, ArrowStream, DataSet, refuse_parts

_BYTES_AT_ONCE = 16 << 20


def pieces_in(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut large batches, so that memory stays bounded."""
    for batch in batches:
        # A row may be larger than a piece, and an empty batch has no bytes.
        rows = max(batch.num_rows * _BYTES_AT_ONCE // max(batch.nbytes, 1), 1)
        for first in range(0, batch.num_rows, rows):
            yield batch.slice(first, rows)


class _Batches(Table):
    """The record batches of an object.

    Args:
        path: Name in messages.
        read: Returns the batches; each call begins anew, unless the object delivers them once.
    """

    def __init__(self, path: str, schema: pa.Schema, read: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        super().__init__()
        self.path, self.schema, self._read = path, plain_schema(schema), read
        self._rows: pa.Table | None = None
        self._rows_of_batch = 1

    def in_order(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return (in_plain_types(batch.select(list(columns))) for batch in self._read())

    def _table(self) -> pa.Table:
        """Return all rows, which are kept from the first call on."""
        if self._rows is None:
            rows = pa.Table.from_batches(map(in_plain_types, self._read()), self.schema)
            most = min(ROWS_AT_ONCE, rows.num_rows * _BYTES_AT_ONCE // max(rows.nbytes, 1))
            # A power of two, so that the same rows have the same chunks in the types of another library.
            self._rows, self._rows_of_batch = rows, 1 << max(most.bit_length() - 1, 0)
        return self._rows

    @property
    def num_batches(self) -> int:
        return -(-int(self._table().num_rows) // self._rows_of_batch)

    def num_rows(self, index: int) -> int:
        return min(self._rows_of_batch, int(self._table().num_rows) - index * self._rows_of_batch)

    def read(self, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        rows = self._table().slice(index * self._rows_of_batch, self._rows_of_batch).select(list(columns))
        (batch,) = rows.combine_chunks().to_batches()
        return batch


class _DataSet(Table):
    """The rows of a data set of Hugging Face, which reads them from its own files."""

    num_batches = 0

    def __init__(self, data: Any) -> None:
        super().__init__()
        # A format that the caller set, such as tensors, has no effect here.
        self.path, self._rows, self._num_rows = type(data).__name__, data.with_format("arrow"), len(data)
        self.schema = plain_schema(data.features.arrow_schema)
        self.num_batches = self.num_pieces = -(-len(data) // ROWS_AT_ONCE)

    def num_rows(self, index: int) -> int:
        return min(ROWS_AT_ONCE, self._num_rows - index * ROWS_AT_ONCE)

    def read(self, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        rows = pa.table(self._rows[index * ROWS_AT_ONCE : (index + 1) * ROWS_AT_ONCE])
        (batch,) = rows.select(list(columns)).combine_chunks().to_batches()
        return in_plain_types(batch)


def name_of(data: Any) -> str:
    """Return the name of a table in messages."""
    kind = type(data).__name__
    return "columns" if isinstance(data, Mapping) else "tables" if isinstance(data, list | tuple) else kind


def table_in_memory(data: Any) -> Table:
    """Return an object that has record batches as a table. Exceptions as for `cntkio.arrow.read`."""
    refuse_parts(data)
    name = name_of(data)
    if isinstance(data, pa.RecordBatchReader):
        return _Batches(name, data.schema, partial(iter, data))
    if isinstance(data, DataSet) and data.features is not None:
        schema = data.features.arrow_schema
        return _DataSet(data) if isinstance(data, Sized) else _Batches(name, schema, partial(_batches, data))
    if isinstance(data, ArrowStream):
        return _Batches(name, _reader(data).schema, partial(_reader, data))
    if isinstance(data, Sequence) and len(data) and all(isinstance(part, pa.Table) for part in data):
        return _Batches(name, data[0].schema, lambda: (batch for table in data for batch in table.to_batches()))
    if isinstance(data, Mapping):
        table = pa.table([_column(name, value) for name, value in data.items()], names=list(map(str, data)))
        return _Batches(name, table.schema, lambda: iter(table.to_batches()))
    kinds = "a path, a data frame, a data set, any object with __arrow_c_stream__, or a mapping of names to columns"
    raise ConfigError(f"got a {type(data).__name__}; expected {kinds}, such as {{'x': data}}", key="data")


def _batches(data: DataSet) -> Iterator[pa.RecordBatch]:
    tables = data.with_format("arrow").iter(batch_size=ROWS_AT_ONCE)
    return (batch for table in tables for batch in pa.table(table).to_batches())


def _reader(data: ArrowStream) -> pa.RecordBatchReader:
    """Return the batches of a table; a series is a table of one column."""
    try:
        return pa.RecordBatchReader.from_stream(data)
    except pa.ArrowInvalid as error:  # not a table
        try:
            column, name = pa.chunked_array(data), getattr(data, "name", None)
        except pa.ArrowException:
            what = f"a {type(data).__name__} that pyarrow does not read: {'; '.join(map(str, error.args))}"
            cast = "cast such columns to numbers of at most 64 bits, texts, or lists of these"
            raise ConfigError(f"{what}; {cast}", key="data") from None
    if not isinstance(name, str) or not name:
        raise ConfigError(f"a {type(data).__name__} without a name; expected {{'x': data}}", key="data")
    return pa.table({name: column}).to_reader()


def _column(name: Any, value: Any) -> pa.Array | pa.ChunkedArray:
    """Return a column of a mapping: an array or a tensor with one sample per row, a series, or lists."""
    try:
        if isinstance(value, ArrowStream):
            return pa.chunked_array(value)
        # An array of Arrow is array-like, too, but NumPy would turn its lists into objects.
        array = np.asarray(value) if isinstance(value, ArrayLike) and not isinstance(value, ArrowArray) else None
        if array is None or array.ndim < 2:
            return pa.array(value if array is None else array)
        flat = pa.array(array.reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, int(np.prod(array.shape[1:])))
    # PyTorch raises a RuntimeError for a tensor that cannot become an array, such as one that needs a gradient.
    except (pa.ArrowException, TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"column {name!r}: {error}; expected numbers, or lists of them", key=str(name)) from None

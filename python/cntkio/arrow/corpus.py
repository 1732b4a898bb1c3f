"""Tables as corpora: `read`."""

from __future__ import annotations

import bisect
import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cntkio import _core
from cntkio.arrow.columns import Shape, StreamColumn, in_float64, stream_column
from cntkio.arrow.fields import KEY, facts_of
from cntkio.arrow.tables import Table, can_be_read_again, opened, small
from cntkio.convert import Piece, Pieces
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats.user import Column
from cntkio.hints import there_are
from cntkio.streams import num_values

_LARGEST_IN_FLOAT32 = 1 << 24
_PANDAS_INDEX = "__index_level_"


def read(
    data: Any,
    *,
    key: str | None = None,
    shapes: Mapping[str, Shape] | pa.Schema | None = None,
    one_hot: Mapping[str, int] | None = None,
) -> ArrowCorpus:
    """Read a table as a corpus, for `cntkio.write_ctf` and `cntkio.write_cbf`.

    Whole numbers become float32, or float64 if the column has one beyond 2^24.

    Args:
        data: A Parquet or Arrow file; a data frame of pandas or polars, a table, or anything else with
            ``__arrow_c_stream__``; a data set of Hugging Face; a list of tables of pyarrow; or a mapping of names to
            columns: arrays and tensors with one sample per row, series, or lists.
        key: The column of keys, whole numbers from 0 or texts; None: the column that was written as keys, or else the
            column named ``key``.
        shapes: For columns that cntkio did not write: the shape of a dense sample, or the dimension of a sparse stream,
            which is required. Or the schema of a table that cntkio wrote (`RecordBatches.schema`), if a library dropped
            the metadata of its columns.
        one_hot: Columns of class ids, which become one-hot streams, and their numbers of classes.

    Raises:
        ConfigError: A column is not a stream, its shape is unknown, or keys are neither whole numbers nor texts.
        FormatError: The file is neither Parquet nor Arrow, or is damaged. While the corpus is written: a column has
            nulls, samples of different sizes, an index beyond the dimension, or a number that would be rounded.
        CorpusError: While the corpus is written: the same faults in a table that is not in a file.
        OSError: The file cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> from cntkio import write_ctf
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.ctf")
        >>> table = pa.table({"x": [[1.0], [2.0, 3.0]], "word": [[5], [6, 7]], "key": [7, 9]})
        >>> write_ctf(path, read(table, one_hot={"word": 943}))
        >>> path.read_text().splitlines()
        ['7\\t|x 1 |word 5:1', '9\\t|x 2 |word 6:1', '9\\t|x 3 |word 7:1']
    """
    return ArrowCorpus(data, key, shapes, dict(one_hot or {}))


class ArrowCorpus:
    """A table that can be written as a corpus. Made by `read`.

    Attributes:
        name: The file, or the type of the object.
        streams: The streams: `cntkio.StreamInformation`.
    """

    def __init__(
        self, data: Any, key: str | None, shapes: Mapping[str, Shape] | pa.Schema | None, one_hot: dict[str, int]
    ) -> None:
        self._data = data
        with opened(data) as table:
            self.name, schema = table.name, table.schema
        if isinstance(shapes, pa.Schema):
            schema, shapes = _with_metadata(schema, shapes), None
        try:
            _refuse_common_names(schema)
            self._key = _key_of(schema, key)
            self._has_text_keys = self._key is not None and _is_text(schema.field(self._key))
            columns = _columns_of(schema, self._key, dict(shapes or {}), one_hot)
        except FormatError as error:
            raise FormatError(str(error), path=self.name) from None
        self._wide = self._in_float64(columns)
        self._columns = [in_float64(column) if column.info.name in self._wide else column for column in columns]
        self.streams = [column.info for column in self._columns]

    def _in_float64(self, columns: list[StreamColumn]) -> frozenset[str]:
        """Return the columns of whole numbers that need float64, which a pass over these columns finds."""
        wide = {column.info.name: column for column in columns if column.is_wide}
        if not wide or not can_be_read_again(self._data):
            return frozenset(wide)
        needed: set[str] = set()
        with opened(self._data) as table:
            for batch in table.batches:
                needed |= {name for name, column in wide.items() if column.largest(batch) > _LARGEST_IN_FLOAT32}
                if len(needed) == len(wide):
                    break
        return frozenset(needed)

    @contextlib.contextmanager
    def pieces(self) -> Iterator[Pieces]:
        """The sequences, piece by piece."""
        with opened(self._data) as table:
            yield Pieces(self.name, self.streams, self._each(table), table.total, self._has_text_keys, wide=self._wide)

    def _each(self, table: Table) -> Iterator[Piece]:
        count = 0
        for batch in small(table.batches):
            try:
                columns, keys = self._taken(batch)
            except CorpusError as error:
                row = self._first_wrong_row(batch)
                what = f"row {count + row}, {self._error_of(batch.slice(row, 1)) or error}"
                if isinstance(self._data, str | os.PathLike):
                    raise FormatError(what, path=self._data) from None
                raise CorpusError(f"{self.name}, {what}") from None
            count += batch.num_rows
            yield Piece(_core.Chunk.from_columns(batch.num_rows, list(columns)), keys)

    def _taken(self, batch: pa.RecordBatch) -> tuple[list[Column], npt.NDArray[Any] | None]:
        columns = [column.taken(batch) for column in self._columns]
        return columns, None if self._key is None else self._keys(batch.column(self._key))

    def _first_wrong_row(self, batch: pa.RecordBatch) -> int:
        """Return the first row, from 0, of a batch that cannot be taken."""
        return bisect.bisect_left(
            range(batch.num_rows), True, key=lambda row: self._error_of(batch.slice(0, row + 1)) is not None
        )

    def _error_of(self, batch: pa.RecordBatch) -> CorpusError | None:
        try:
            self._taken(batch)
        except CorpusError as error:
            return error
        return None

    def _keys(self, column: pa.Array) -> npt.NDArray[Any]:
        where = f"column {self._key!r}"
        if column.null_count:
            raise CorpusError(f"{where} has nulls; expected a key for each sequence")
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        keys: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        if self._has_text_keys:
            return keys.astype(np.str_)
        if (keys < 0).any():
            raise CorpusError(f"{where} has the key {keys[keys < 0][0]}; expected whole numbers from 0, or texts")
        return keys.astype(np.uint64)


def _with_metadata(schema: pa.Schema, described: pa.Schema) -> pa.Schema:
    """Return a schema with the metadata of another schema's columns."""
    fields = [
        field.with_metadata(described.field(field.name).metadata) if field.name in described.names else field
        for field in schema
    ]
    return pa.schema(fields, schema.metadata)


def _refuse_common_names(schema: pa.Schema) -> None:
    name, count = max(Counter(schema.names).items(), key=lambda item: item[1], default=("", 0))
    if count > 1:
        raise ConfigError(f"{count} columns are named {name!r}; expected a different name for each", key="data")


def _key_of(schema: pa.Schema, key: str | None) -> str | None:
    if key is not None:
        if key not in schema.names:
            raise ConfigError(f"no column {key!r}{there_are(key, schema.names)}", key="key")
        return key
    facts = {field.name: facts_of(field) for field in schema}
    marked = [name for name, fact in facts.items() if fact is not None and fact.role == "key"]
    return marked[0] if marked else KEY if KEY in schema.names else None


def _is_text(field: pa.Field) -> bool:
    """Return whether a column of keys has texts, not whole numbers.

    Raises:
        ConfigError: The column has the wrong type.
    """
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return True
    if pa.types.is_integer(kind):
        return False
    raise ConfigError(
        f"column {field.name!r}, the keys, is {field.type}; expected whole numbers from 0, or texts: convert the "
        "column, or give key=... another column",
        key="key",
    )


def _columns_of(
    schema: pa.Schema, key: str | None, shapes: dict[str, Shape], one_hot: dict[str, int]
) -> list[StreamColumn]:
    fields = [field for field in schema if field.name != key and not _is_index(schema, field.name)]
    names = [field.name for field in fields]
    for option, given in (("shapes", shapes), ("one_hot", one_hot)):
        for name, shape in given.items():
            if name not in names:
                raise ConfigError(f"{option}: no column {name!r}{there_are(name, names)}", key=option)
            if num_values(shape) < 1:
                raise ConfigError(f"{option}: column {name!r} has {shape!r}; expected at least 1", key=option)
    if not fields:
        raise ConfigError("no column except for the keys; expected a column for each stream", key="data")
    return [
        stream_column(field, number, shapes.get(field.name), one_hot.get(field.name))
        for number, field in enumerate(fields)
    ]


def _is_index(schema: pa.Schema, name: str) -> bool:
    """Return whether a column is the unnamed index of a data frame of pandas, which is not part of the data."""
    return name.startswith(_PANDAS_INDEX) and b"pandas" in (schema.metadata or {})

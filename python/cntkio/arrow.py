"""Corpora as Arrow record batches, for pandas, polars, DuckDB, Hugging Face datasets; and back. (docs/arrow.md)

::

    deserializer, source, arrays ──> pieces ──> record batches ──> __arrow_c_stream__, Parquet, Arrow files
    Parquet, Arrow files, any __arrow_c_stream__ ──> record batches ──> pieces ──> write_ctf, write_cbf

A row is a sequence: its key, and for each stream a list of its samples. Invariants: memory is bounded by a few
chunks, values are not copied, and reading returns the bits that were written. Only this module imports pyarrow.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio._threads import num_threads
from cntkio.convert import AnyPath, Piece, Pieces, Progress, format_of, pieces_of
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats.detect import other_than
from cntkio.formats.input_file import open_to_read
from cntkio.formats.output_file import written_whole
from cntkio.hints import did_you_mean
from cntkio.minibatch import Minibatch, MinibatchData
from cntkio.streams import StreamInformation, packed_columns

try:
    import pyarrow as pa
    from pyarrow import ipc, parquet
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"cntkio.arrow needs {error.name}, which is not installed: pip install 'cntkio[arrow]'", name=error.name
    ) from None

KEY = "key"
_METADATA = b"cntkio"
_ROWS_AT_ONCE = 4096
_LARGEST_OFFSET = 2**31 - 1


# ------------------------------------------------------------------------------------------------ to batches


class RecordBatches:
    """A corpus as a stream of record batches, for consumers of the Arrow PyCapsule interface.

    Each consumer reads the corpus anew, only as far as it asks for batches.

    The columns are the key (``uint64``, or ``string``; without keys the row number) and one for each stream, in which a
    row is a list of samples. A dense sample is a number if its dimension is 1, otherwise a list of fixed size. A sparse
    sample is a struct of two lists, ``indices`` (``int32``) and ``values``. The metadata of a column contain the
    dimension of a sparse stream and the shape of a sample.

    Args:
        data: As for `cntkio.write_ctf`: a deserializer, a `MinibatchSource` with an end, a `Minibatch`, a mapping
            of names to arrays.
        key: Name of the column of keys; None: no such column.
        flat: Streams in which each sequence has one sample, to write without the list around the sample; True: all.

    Raises:
        ConfigError: A stream has the name of the column of keys, or `flat` names an unknown stream.

    Example:
        >>> from cntkio import CTFDeserializer, infer_streams
        >>> path = "examples/iris/iris.ctf"
        >>> flowers = RecordBatches(CTFDeserializer(path, infer_streams(path)), flat=True)
        >>> pa.table(flowers).column_names
        ['key', 'lengths', 'species']
        >>> pa.table(flowers)["lengths"][0].as_py()
        [5.099999904632568, 3.5, 1.399999976158142, 0.20000000298023224]
    """

    def __init__(self, data: Any, *, key: str | None = KEY, flat: Collection[str] | bool = False) -> None:
        self._data = data
        self._key = key
        self._flat = flat
        with pieces_of(data) as pieces:
            self._schema = self._schema_of(pieces)

    @property
    def schema(self) -> pa.Schema:
        """The columns, as a ``pyarrow.Schema``."""
        return self._schema

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches(None)

    def reader(self, progress: Progress | None = None) -> pa.RecordBatchReader:
        """The batches as a ``pyarrow.RecordBatchReader``."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches(progress))

    def _batches(self, progress: Progress | None) -> Iterator[pa.RecordBatch]:
        count = 0
        with pieces_of(self._data) as pieces:
            flat = _flat_names(self._flat, pieces.streams)
            for index, piece in enumerate(pieces.pieces):
                yield _batch_of(piece, pieces, self._schema, self._key, flat, count)
                count += piece.chunk.num_sequences
                if progress is not None:
                    progress(index + 1, pieces.total)

    def _schema_of(self, pieces: Pieces) -> pa.Schema:
        flat = _flat_names(self._flat, pieces.streams)
        fields = [_field(info, info.name in flat) for info in pieces.streams]
        if self._key is not None:
            if any(info.name == self._key for info in pieces.streams):
                raise ConfigError(
                    f"the column of keys and a stream are both named {self._key!r}; give key=... another name, or None",
                    key="key",
                )
            kind = pa.string() if pieces.has_text_keys else pa.uint64()
            fields.insert(0, pa.field(self._key, kind, nullable=False, metadata={_METADATA: b'{"role": "key"}'}))
        return pa.schema(fields)


def _flat_names(flat: Collection[str] | bool, streams: list[StreamInformation]) -> frozenset[str]:
    names = [info.name for info in streams]
    if isinstance(flat, bool):
        return frozenset(names if flat else ())
    for name in flat:
        if name not in names:
            raise ConfigError(f"flat: no stream {name!r}; there are: {names}{did_you_mean(name, names)}", key="flat")
    return frozenset(flat)


def _field(info: StreamInformation, is_flat: bool) -> pa.Field:
    number = pa.from_numpy_dtype(info.dtype)
    if info.is_sparse:
        sample = pa.struct(_entries(number))
    else:
        sample = number if info.dim == 1 else pa.list_(pa.field("item", number, False), info.dim)
    facts = {"role": info.storage_format, "shape": list(info.shape), "flat": is_flat}
    metadata = {_METADATA: json.dumps(facts).encode()}
    return pa.field(info.name, sample if is_flat else pa.list_(pa.field("item", sample, False)), False, metadata)


def _entries(number: pa.DataType) -> list[pa.Field]:
    return [pa.field("indices", pa.list_(pa.int32()), False), pa.field("values", pa.list_(number), False)]


def _batch_of(
    piece: Piece, pieces: Pieces, schema: pa.Schema, key: str | None, flat: frozenset[str], count: int
) -> pa.RecordBatch:
    num_rows = piece.chunk.num_sequences
    layout = packed_columns(pieces.streams)
    chunk_indices, rows = np.zeros(num_rows, np.uint32), np.arange(num_rows, dtype=np.uint32)
    keys = np.arange(count, count + num_rows, dtype=np.uint64) if piece.keys is None else piece.keys
    (packed,) = _core.pack([([piece.chunk], chunk_indices, rows, layout, None, [0, len(rows)])], num_threads())
    columns: list[pa.Array] = [] if key is None else [_keys(keys)]
    for stream_index, info in enumerate(pieces.streams):
        columns.append(_column(MinibatchData.of(info, packed, stream_index, False), info.name in flat, keys))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _keys(keys: npt.NDArray[Any]) -> pa.Array:
    if keys.dtype.kind == "S":  # as UTF-8, invalid bytes escaped
        keys = np.strings.decode(keys, "utf-8", "backslashreplace")
    return pa.array(keys, pa.string() if keys.dtype.kind == "U" else pa.uint64())


def _column(data: MinibatchData, is_flat: bool, keys: npt.NDArray[Any]) -> pa.Array:
    """Return a stream's column over the packer's arrays; only offsets are copied."""
    info, values, offsets, indptr, indices = data.stream, data.values, data.offsets, data.indptr, data.indices
    flat_values = pa.array(np.ascontiguousarray(values).reshape(-1))
    if indptr is None or indices is None:
        samples = flat_values if info.dim == 1 else _fixed(flat_values, info.dim)
    else:
        bounds = _offsets(indptr, info)
        lists = [pa.ListArray.from_arrays(bounds, pa.array(indices)), pa.ListArray.from_arrays(bounds, flat_values)]
        samples = pa.StructArray.from_arrays(lists, fields=_entries(flat_values.type))
    if is_flat:
        counts = np.diff(offsets)
        if (counts != 1).any():
            which = int(np.flatnonzero(counts != 1)[0])
            raise CorpusError(
                f"sequence {keys[which]}, stream {info.name!r}: {counts[which]} samples, but a flat column has one for "
                f"each sequence; leave the stream out of flat"
            )
        return samples
    kind = pa.list_(pa.field("item", samples.type, False))
    return pa.ListArray.from_arrays(_offsets(offsets, info), samples, type=kind)


def _fixed(values: pa.Array, dim: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(values, type=pa.list_(pa.field("item", values.type, False), dim))


def _offsets(offsets: npt.NDArray[np.int64], info: StreamInformation) -> pa.Array:
    if offsets[-1] > _LARGEST_OFFSET:
        raise CorpusError(f"stream {info.name!r}: {offsets[-1]} in a batch; a list takes up to {_LARGEST_OFFSET}")
    return pa.array(offsets.astype(np.int32))


def convert(minibatch: Minibatch, *, key: str | None = KEY, flat: Collection[str] | bool = False) -> pa.RecordBatch:
    """Convert a minibatch to a record batch; values are not copied. Arguments and columns as for `RecordBatches`.

    Raises:
        ConfigError: The minibatch is truncated: it does not contain whole sequences.
        CorpusError: A sequence of a flat stream does not have exactly one sample.

    Example:
        >>> import cntkio
        >>> book = cntkio.read_ctf("examples/iris/iris.ctf")
        >>> convert(book).num_rows
        150
    """
    streams = [data.stream for data in minibatch.values()]
    for data in minibatch.values():
        if not isinstance(data, MinibatchData):
            raise ConfigError("a truncated minibatch has no whole sequences to be rows", key="truncation_length")
    names = _flat_names(flat, streams)
    keys = minibatch.keys_of_sequences
    fields, columns = [], []
    if key is not None:
        columns.append(_keys(keys))
        fields.append(pa.field(key, columns[0].type, nullable=False, metadata={_METADATA: b'{"role": "key"}'}))
    for info, data in zip(streams, minibatch.values(), strict=True):
        is_flat = info.name in names
        fields.append(_field(info, is_flat))
        columns.append(_column(data, is_flat, keys))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


# -------------------------------------------------------------------------------------------------- to files


def write_parquet(
    path: AnyPath,
    data: Any,
    *,
    key: str | None = KEY,
    flat: Collection[str] | bool = False,
    compression: str = "zstd",
    progress: Progress | None = None,
) -> None:
    """Write a corpus to a Parquet file, with bounded memory; the file appears when it is complete.

    Args:
        path: The file.
        data: As for `RecordBatches`.
        key: As for `RecordBatches`.
        flat: As for `RecordBatches`.
        compression: Compression of the columns, by pyarrow's name: ``"zstd"``, ``"snappy"``, ``"none"``, …
        progress: Called with the number of pieces done and the number of all pieces (0: unknown).

    Raises:
        ConfigError: An option is not possible.
        CorpusError: No sequence, or a sequence of a flat stream does not have exactly one sample.
        FormatError: The input breaks its format.
        OSError: A file cannot be read or written.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.parquet")
        >>> write_parquet(path, {"x": [np.float32([[1, 2]]), np.float32([[3, 4], [5, 6]])]})
        >>> parquet.read_table(path).to_pylist()
        [{'key': 0, 'x': [[1.0, 2.0]]}, {'key': 1, 'x': [[3.0, 4.0], [5.0, 6.0]]}]
    """
    batches = RecordBatches(data, key=key, flat=flat)
    with written_whole(path) as file, parquet.ParquetWriter(file, batches.schema, compression=compression) as writer:
        _write(writer, batches, progress)


def write_arrow(
    path: AnyPath,
    data: Any,
    *,
    key: str | None = KEY,
    flat: Collection[str] | bool = False,
    progress: Progress | None = None,
) -> None:
    """Write a corpus to an Arrow file with random access, not compressed, so that it can be memory-mapped.

    Arguments and exceptions as for `write_parquet`.
    """
    batches = RecordBatches(data, key=key, flat=flat)
    with written_whole(path) as file, ipc.new_file(file, batches.schema) as writer:
        _write(writer, batches, progress)


def _write(writer: Any, batches: RecordBatches, progress: Progress | None) -> None:
    count = 0
    for batch in batches._batches(progress):
        writer.write_batch(batch)
        count += batch.num_rows
    if count == 0:
        raise CorpusError("no sequence to write")


# ---------------------------------------------------------------------------------------------- from batches


def read(
    data: Any, *, key: str | None = None, shapes: Mapping[str, int | tuple[int, ...]] | None = None
) -> ArrowCorpus:
    """Read record batches as a corpus, for `cntkio.write_ctf` and `cntkio.write_cbf`.

    Args:
        data: A Parquet or Arrow file, or anything with ``__arrow_c_stream__``: a table or data frame.
        key: The column of keys; None: the column that was written as keys, or else the column named ``key``.
        shapes: For columns that cntkio did not write: the shape of a dense sample, or the dimension of a sparse stream,
            which is required.

    Raises:
        ConfigError: A column is not a stream, or its shape is unknown.
        FormatError: The file is neither Parquet nor Arrow.
        OSError: The file cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> from cntkio import write_ctf
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.ctf")
        >>> write_ctf(path, read(pa.table({"x": [[1.0], [2.0, 3.0]], "key": [7, 9]})))
        >>> path.read_text().splitlines()
        ['7\\t|x 1', '9\\t|x 2', '9\\t|x 3']
    """
    return ArrowCorpus(data, key, dict(shapes or {}))


class ArrowCorpus:
    """Record batches that can be written as a corpus. Made by `read`."""

    def __init__(self, data: Any, key: str | None, shapes: dict[str, int | tuple[int, ...]]) -> None:
        self._data = data
        with _opened(data) as (self.name, schema, _, _):
            self._columns = _streams_of(schema, key, shapes)
            self._key = _key_of(schema, key)
            self._has_text_keys = self._key is not None and not pa.types.is_integer(schema.field(self._key).type)
        self.streams = [column.info for column in self._columns]

    @contextlib.contextmanager
    def pieces(self) -> Iterator[Pieces]:
        """The sequences, piece by piece."""
        with _opened(self._data) as (name, _, batches, total):
            yield Pieces(
                name, self.streams, (self._piece(name, batch) for batch in batches), total, self._has_text_keys
            )

    def _piece(self, name: str, batch: pa.RecordBatch) -> Piece:
        columns = [column.taken(name, batch) for column in self._columns]
        keys = None
        if self._key is not None:
            column = batch.column(self._key)
            if column.null_count:
                raise CorpusError(f"{name}: column {self._key!r} has nulls; expected a key for each sequence")
            keys = column.to_numpy(zero_copy_only=False)
            keys = keys.astype(np.str_) if self._has_text_keys else keys
        return Piece(_core.Chunk.from_columns(batch.num_rows, columns), keys)


@contextlib.contextmanager
def _opened(data: Any) -> Iterator[tuple[str, pa.Schema, Iterator[pa.RecordBatch], int]]:
    """Yield a name for messages, the schema, the batches, and the number of batches (0: unknown)."""
    if not isinstance(data, str | os.PathLike):
        if not hasattr(data, "__arrow_c_stream__"):
            raise ConfigError(
                f"got a {type(data).__name__}; expected a path or an object with __arrow_c_stream__",
                key="data",
            )
        reader = pa.RecordBatchReader.from_stream(data)
        yield type(data).__name__, reader.schema, iter(reader), 0
        return
    path = os.fspath(data)
    os.close(open_to_read(path))
    kind = format_of(path)
    if kind == "parquet":
        with parquet.ParquetFile(path) as file:
            rows = file.iter_batches(_ROWS_AT_ONCE)
            yield path, file.schema_arrow, rows, -(-file.metadata.num_rows // _ROWS_AT_ONCE)
    elif kind == "arrow":
        with pa.memory_map(path) as memory, ipc.open_file(memory) as file:
            count = file.num_record_batches
            yield path, file.schema, (file.get_batch(number) for number in range(count)), count
    else:
        what = "this is neither a Parquet nor an Arrow file" + other_than("parquet", path)
        raise FormatError(what, path=path, byte=0)


class _Source:
    """A column that is a stream. It converts the column's batches to the packer's arrays."""

    def __init__(self, info: StreamInformation, is_flat: bool) -> None:
        self.info = info
        self._is_flat = is_flat

    def taken(self, name: str, batch: pa.RecordBatch) -> Any:
        """Return the column for `Chunk.from_columns`."""
        array = batch.column(self.info.name)
        self._refuse_nulls(name, array)
        if self._is_flat:
            offsets = np.arange(len(array) + 1, dtype=np.uint32)
        else:
            offsets, array = self._unlisted(name, array)
        if not self.info.is_sparse:
            return *self._dense(name, offsets, array), self.info.dim, None
        fields = {array.type.field(index).name: field for index, field in enumerate(array.flatten())}
        indices, values = fields["indices"], fields["values"]
        bounds, indices = self._unlisted(name, indices)
        bounds_of_values, values = self._unlisted(name, values)
        if not np.array_equal(bounds, bounds_of_values):
            raise CorpusError(f"{name}, column {self.info.name!r}: a sample has more indices than values, or fewer")
        numbers = self._values(name, values)
        places = indices.to_numpy(zero_copy_only=False)
        if len(places) and not 0 <= places.min() <= places.max() < self.info.dim:
            raise CorpusError(
                f"{name}, column {self.info.name!r}: indices from {places.min()} to {places.max()}, but the dimension "
                f"is {self.info.dim}"
            )
        return offsets, numbers, self.info.dim, (bounds, places.astype(np.int32, copy=False))

    def _dense(
        self, name: str, offsets: npt.NDArray[np.uint32], array: pa.Array
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[Any]]:
        """Return the start of each sequence's samples, and the values of all samples."""
        dim = self.info.dim
        sizes = np.empty(0, np.uint32)
        if pa.types.is_primitive(array.type) and dim > 1:  # all samples of a sequence in one list of numbers
            sizes, offsets = offsets[1:] % dim + dim, offsets // dim
        depth = 0
        while not pa.types.is_primitive(array.type):
            bounds, array = self._unlisted(name, array)
            sizes, depth = np.diff(bounds), depth + 1
        values = self._values(name, array)
        if (depth < 2 and (sizes != dim).any()) or len(values) != int(offsets[-1]) * dim:
            raise CorpusError(
                f"{name}, column {self.info.name!r}: not all samples have {dim} values; for another number give "
                f"shapes={{{self.info.name!r}: ...}}"
            )
        return offsets, values

    def _values(self, name: str, array: pa.Array) -> npt.NDArray[Any]:
        self._refuse_nulls(name, array)
        return np.ascontiguousarray(array.to_numpy(zero_copy_only=False), self.info.dtype)

    def _unlisted(self, name: str, array: pa.Array) -> tuple[npt.NDArray[np.uint32], pa.Array]:
        """Return the offsets of lists, and their concatenated items."""
        self._refuse_nulls(name, array)
        if pa.types.is_fixed_size_list(array.type):
            return (np.arange(len(array) + 1) * array.type.list_size).astype(np.uint32), array.flatten()
        offsets = array.offsets.to_numpy()
        return (offsets - offsets[0]).astype(np.uint32), array.flatten()

    def _refuse_nulls(self, name: str, array: pa.Array) -> None:
        if array.null_count:
            raise CorpusError(f"{name}, column {self.info.name!r}: {array.null_count} nulls; expected values")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _facts(field: pa.Field) -> dict[str, Any]:
    """Return the metadata that cntkio wrote for a column."""
    metadata = (field.metadata or {}).get(_METADATA)
    facts: dict[str, Any] = {} if metadata is None else json.loads(metadata)
    return facts


def _key_of(schema: pa.Schema, key: str | None) -> str | None:
    if key is not None:
        if key not in schema.names:
            raise ConfigError(
                f"no column {key!r}; there are: {schema.names}{did_you_mean(key, schema.names)}", key="key"
            )
        return key
    marked = [field.name for field in schema if _facts(field).get("role") == "key"]
    return marked[0] if marked else KEY if KEY in schema.names else None


def _streams_of(schema: pa.Schema, key: str | None, shapes: dict[str, int | tuple[int, ...]]) -> list[_Source]:
    key = _key_of(schema, key)
    for name in shapes:
        if name not in schema.names:
            hint = did_you_mean(name, schema.names)
            raise ConfigError(f"shapes: no column {name!r}; there are: {schema.names}{hint}", key="shapes")
    fields = [field for field in schema if field.name != key]
    if not fields:
        raise ConfigError("no column except for the keys; expected a column for each stream", key="data")
    return [_source(field, number, shapes.get(field.name)) for number, field in enumerate(fields)]


def _source(field: pa.Field, number: int, shape: int | tuple[int, ...] | None) -> _Source:
    facts = _facts(field)
    kinds = [field.type]  # of the column, then of the items of its lists
    while _is_list(kinds[-1]):
        kinds.append(kinds[-1].value_type)
    innermost = kinds[-1]
    if pa.types.is_struct(innermost):
        names = {innermost.field(index).name for index in range(innermost.num_fields)}
        if names != {"indices", "values"} or len(kinds) > 2:
            raise ConfigError(
                f"column {field.name!r} is {field.type}; expected structs of indices and values", key=field.name
            )
        if shape is None and "shape" not in facts:
            raise ConfigError(
                f"column {field.name!r}: the dimension is unknown; add shapes={{{field.name!r}: ...}}",
                key="shapes",
            )
        number_type, is_sparse = innermost.field("values").type.value_type, True
        is_flat = len(kinds) == 1
    elif pa.types.is_integer(innermost) or pa.types.is_floating(innermost) or pa.types.is_boolean(innermost):
        number_type, is_sparse = innermost, False
        is_flat = bool(
            facts.get("flat", len(kinds) == 1 or (len(kinds) == 2 and pa.types.is_fixed_size_list(kinds[0])))
        )
    else:
        raise ConfigError(f"column {field.name!r} is {field.type}; expected numbers, or lists of them", key=field.name)
    found = facts.get("shape") if shape is None else shape
    if found is None:
        sizes = [kind.list_size for kind in kinds[:-1] if pa.types.is_fixed_size_list(kind)]
        if len(sizes) < len(kinds) - (1 if is_flat else 2):
            raise ConfigError(
                f"column {field.name!r} is {field.type}, which does not tell the number of values of a sample; add "
                f"shapes={{{field.name!r}: ...}}",
                key="shapes",
            )
        found = sizes or [1]
    dtype = np.float64 if pa.types.is_float64(number_type) else np.float32
    form: Literal["dense", "sparse"] = "sparse" if is_sparse else "dense"
    return _Source(StreamInformation(field.name, number, form, dtype, found), is_flat)

"""Tables as corpora: `read`."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute

import cntkio._core as _core
from cntkio.arguments import caller, there_are
from cntkio.arrow.batches import KEY, Facts, facts_of, unlisted
from cntkio.arrow.files import ROWS_AT_ONCE, open_table
from cntkio.displays import Description, Displayed, counted
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats.table import Column, in_precision
from cntkio.minibatch import Minibatch
from cntkio.pieces import Piece, Pieces, joined
from cntkio.pieces.contract import ArrayLike, ArrowArray, ArrowStream, Classes, DataSet, refuse_parts
from cntkio.storage.names import as_url
from cntkio.streams import StorageFormat, StreamInformation, num_values

# --------------------------------------------------------------------------------------------------------------
# Record batches from files, data frames, data sets and mappings of columns, checked before anything uses them.

_BYTES_AT_ONCE = 16 << 20


class Table(NamedTuple):
    """Record batches of one schema.

    Attributes:
        name: Name used in messages: the file, or the type of the object.
        batches: The batches, of any size, read one by one on request.
        total: Number of batches; 0: unknown.
    """

    name: str
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    total: int = 0


@contextlib.contextmanager
def opened(data: Any) -> Iterator[Table]:
    """Open a file, or an object that has record batches. Exceptions as for `read`."""
    refuse_parts(data)
    if isinstance(data, str | os.PathLike):
        with contextlib.closing(open_table(as_url(os.fspath(data)), is_mapped=True)) as file:
            yield Table(file.path, file.schema, file.in_order(), file.num_pieces)
    elif isinstance(data, pa.RecordBatchReader):
        yield Table("RecordBatchReader", data.schema, iter(data))
    elif isinstance(data, ArrowStream):
        with _reader(data) as reader:
            yield Table(type(data).__name__, reader.schema, iter(reader))
    elif isinstance(data, DataSet) and data.features is not None:
        # A format that the caller set, such as tensors, has no effect here.
        tables = data.with_format("arrow").iter(batch_size=ROWS_AT_ONCE)
        batches = (batch for table in tables for batch in pa.table(table).to_batches())
        yield Table(type(data).__name__, data.features.arrow_schema, batches)
    elif isinstance(data, Sequence) and len(data) and all(isinstance(part, pa.Table) for part in data):
        batches = (batch for table in data for batch in table.to_batches())
        yield Table("tables", data[0].schema, batches)
    elif isinstance(data, Mapping):
        table = pa.table([_column(name, value) for name, value in data.items()], names=list(map(str, data)))
        yield Table("columns", table.schema, iter(table.to_batches()))
    else:
        kinds = "a path, a data frame, a data set, any object with __arrow_c_stream__, or a mapping of names to columns"
        raise ConfigError(f"got a {type(data).__name__}; expected {kinds}, such as {{'x': data}}", key="data")


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
        # An array of Arrow is array-like, too, but NumPy would turn its lists into objects.
        array = np.asarray(value) if isinstance(value, ArrayLike) and not isinstance(value, ArrowArray) else None
        if array is None or array.ndim < 2:
            return pa.array(value if array is None else array)
        flat = pa.array(array.reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, int(np.prod(array.shape[1:])))
    # PyTorch raises a RuntimeError for a tensor that cannot become an array, such as one that needs a gradient.
    except (pa.ArrowException, TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"column {name!r}: {error}; expected numbers, or lists of them", key=str(name)) from None


def small(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut large batches, so that memory stays bounded."""
    for batch in batches:
        # A row may be larger than a piece, and an empty batch has no bytes.
        rows = max(batch.num_rows * _BYTES_AT_ONCE // max(batch.nbytes, 1), 1)
        for first in range(0, batch.num_rows, rows):
            yield batch.slice(first, rows)


_T = TypeVar("_T")
Shape = int | tuple[int, ...]
Shapes: TypeAlias = Mapping[str, Shape] | pa.Schema | None
"""Shapes of samples by column, or the schema of a table that cntkio wrote."""
_WIDE_BITS = 32


@dataclasses.dataclass(frozen=True)
class StreamColumn:
    """A column that is a stream.

    Attributes:
        is_flat: A row is a sample, not a list of samples.
        is_ids: The column has the class of each sample, and the samples are one-hot.
        is_wide: The column has whole numbers of 32 bits or more, which float32 may round.
        names: The names of the classes, in order, if the column has texts.
    """

    info: StreamInformation
    is_flat: bool
    is_ids: bool
    is_wide: bool
    names: Sequence[str] = ()

    @property
    def where(self) -> str:
        """Name used in messages."""
        return f"column {self.info.name!r}"

    def taken(self, batch: pa.RecordBatch) -> Column:
        """Convert this column of a batch to a column of a chunk; refuse values that do not fit the stream."""
        array = _without_nulls(self.where, batch.column(self.info.name))
        if self.is_flat:
            offsets = np.arange(len(array) + 1, dtype=np.uint32)
        else:
            offsets, array = _items(self.where, array)
        if self.is_ids:
            classes = self._indices(self._places_of(array) if self.names else array)
            ones, sample_offsets = np.ones(len(classes), self.info.dtype), np.arange(len(classes) + 1, dtype=np.uint32)
            return Column(offsets, ones, self.info.dim, (sample_offsets, classes))
        return self._sparse(offsets, array) if self.info.is_sparse else self._dense(offsets, array)

    def lengths(self, batch: pa.RecordBatch) -> npt.NDArray[np.uint32]:
        """Return the number of samples of each row of a batch; refuse nulls."""
        offsets, items = _items(self.where, _without_nulls(self.where, batch.column(self.info.name)))
        lengths = np.diff(offsets)
        return lengths // self.info.dim if self._has_long_lists(items) else lengths

    def _has_long_lists(self, items: pa.Array) -> bool:
        """Return whether all values of the samples of a sequence are in one list."""
        return not self.info.is_sparse and pa.types.is_primitive(items.type) and self.info.dim > 1

    def largest(self, batch: pa.RecordBatch) -> int:
        """Return the largest magnitude in a column of whole numbers."""
        array = _innermost(batch.column(self.info.name))
        found = compute.min_max(array.field("values").flatten() if pa.types.is_struct(array.type) else array).as_py()
        # A column without rows has neither a minimum nor a maximum.
        return max(-(found["min"] or 0), found["max"] or 0)

    def _places_of(self, texts: pa.Array) -> pa.Array:
        texts = _without_nulls(self.where, texts).cast(pa.large_string())
        places = compute.index_in(texts, value_set=pa.array(self.names, pa.large_string()))
        if places.null_count:
            found = texts.filter(places.is_null())[0].as_py()
            what = f"{found!r} is not one of the {len(self.names)} classes{there_are(found, self.names)}"
            raise CorpusError(f"{self.where}: {what}")
        return places

    def _sparse(self, offsets: npt.NDArray[np.uint32], array: pa.Array) -> Column:
        fields = {array.type.field(index).name: field for index, field in enumerate(array.flatten())}
        bounds, indices = _items(self.where, fields["indices"])
        bounds_of_values, values = _items(self.where, fields["values"])
        if not np.array_equal(bounds, bounds_of_values):
            what = "a sample's indices and values differ in number; expected an index for each value"
            raise CorpusError(f"{self.where}: {what}")
        numbers = in_precision(self.where, _numbers(self.where, values), self.info.dtype)
        return Column(offsets, numbers, self.info.dim, (bounds, self._indices(indices)))

    def _indices(self, array: pa.Array) -> npt.NDArray[np.int32]:
        places = _numbers(self.where, array)
        # Before the conversion, which would wrap larger indices.
        if len(places) and not 0 <= places.min() <= places.max() < self.info.dim:
            what = f"indices from {places.min()} to {places.max()}, but the dimension is {self.info.dim}"
            raise CorpusError(f"{self.where}: {what}")
        return places.astype(np.int32, copy=False)

    def _dense(self, offsets: npt.NDArray[np.uint32], array: pa.Array) -> Column:
        dim = self.info.dim
        sizes = np.empty(0, np.uint32)
        if self._has_long_lists(array):
            # A list that ends within a sample gets a size other than `dim`, which the check below refuses.
            sizes, offsets = offsets[1:] % dim + dim, offsets // dim
        levels: list[npt.NDArray[np.uint32]] = []
        while not pa.types.is_primitive(array.type):
            bounds, array = _items(self.where, array)
            levels.append(bounds)
        values = in_precision(self.where, _numbers(self.where, array), self.info.dtype)
        if levels:
            # A sample ends where the last list of its last list ends.
            sizes = np.diff(functools.reduce(lambda ends, bounds: bounds[ends], levels))
        shapes = caller().words.number_of("shapes", self.info.name)
        if (sizes != dim).any() or len(values) != int(offsets[-1]) * dim:
            raise CorpusError(f"{self.where}: not all samples have {dim} values; for another number give {shapes}")
        shape = self.info.shape
        # A shape with another number of dimensions gives only the number of values: 6 for lists of 2 lists of 3.
        if len(levels) == len(shape):
            for level, (bounds, size) in enumerate(zip(levels, shape, strict=True)):
                others = np.diff(bounds)
                others = others[others != size]
                if len(others):
                    what = f"a sample has {others[0]} items in dimension {level}, but the shape is {shape}"
                    raise CorpusError(f"{self.where}: {what}; for another shape give {shapes}")
        return Column(offsets, values, dim, None)


def _innermost(array: pa.Array) -> pa.Array:
    """Return the items of an array that are not lists."""
    while unlisted(array.type)[1:]:
        # `flatten` keeps to the rows of a slice, in contrast to `values`.
        array = array.flatten()
    return array


def _without_nulls(where: str, array: pa.Array) -> pa.Array:
    if array.null_count:
        nulls = f"{array.null_count} null{'s' * (array.null_count != 1)}"
        raise CorpusError(f"{where}: {nulls}; expected no nulls")
    return _decoded(array)


def _decoded(array: pa.Array) -> pa.Array:
    if not pa.types.is_dictionary(array.type):
        return array
    words = array.dictionary
    if pa.types.is_string_view(words.type):  # Arrow cannot select among these
        words = words.cast(pa.large_string())
    return words.take(array.indices)


def _items(where: str, array: pa.Array) -> tuple[npt.NDArray[np.uint32], pa.Array]:
    """Return the offsets of lists, and their concatenated items."""
    _without_nulls(where, array)
    if pa.types.is_fixed_size_list(array.type):
        return (np.arange(len(array) + 1) * array.type.list_size).astype(np.uint32), array.flatten()
    offsets = array.offsets.to_numpy()
    # A slice keeps the offsets of the whole array, but its items begin with its first row.
    return (offsets - offsets[0]).astype(np.uint32), array.flatten()


def _numbers(where: str, array: pa.Array) -> npt.NDArray[Any]:
    numbers: npt.NDArray[Any] = _without_nulls(where, array).to_numpy(zero_copy_only=False)
    # The buffers of a file may begin anywhere.
    return np.require(numbers, requirements=["ALIGNED"])


def stream_column(field: pa.Field, index: int, shape: Shape | None, classes: Any) -> StreamColumn:
    """Return the stream that a column becomes.

    Args:
        shape: Shape of a dense sample, or dimension of a sparse stream; None: as the metadata or the type say.
        classes: Number of classes of a column of class ids, or the names of the classes of a column of texts; None: the
            column has other numbers, or cntkio wrote it.
    """
    facts = facts_of(field)
    known = facts or Facts("dense")
    kinds = unlisted(field.type)
    innermost, depth = kinds[-1], len(kinds) - 1
    if pa.types.is_dictionary(innermost):
        innermost = innermost.value_type
    if is_text(innermost):
        return _column_of_texts(field, index, depth, classes)
    storage_format: StorageFormat
    if pa.types.is_struct(innermost):
        number, storage_format, is_flat = _number_of_entries(field, innermost), "sparse", depth == 0
        found = known.shape if shape is None else shape
        if found is None:
            add = caller().words.number_of("shapes", field.name)
            raise ConfigError(f"column {field.name!r}: the dimension is unknown; add {add}", key="shapes")
    elif not (pa.types.is_integer(innermost) or pa.types.is_floating(innermost) or pa.types.is_boolean(innermost)):
        raise ConfigError(f"column {field.name!r} is {field.type}; expected numbers, or lists of them", key=field.name)
    elif classes is not None or (known.role == "ids" and known.shape is not None and shape is None):
        dim = classes or known.shape or ()
        if not pa.types.is_integer(innermost) or depth > 1 or _names_in(dim) is not None:
            expected = f"whole numbers, or lists of them, in {caller().words.flag('one_hot')}"
            raise ConfigError(f"column {field.name!r} is {field.type}; expected {expected}", key="one_hot")
        return StreamColumn(StreamInformation(field.name, index, "sparse", known.dtype, dim), depth == 0, True, False)
    else:
        # Without metadata of cntkio, a list of a fixed size is a sample of several values, and any other list is a
        # sequence.
        is_row = depth == 1 and pa.types.is_fixed_size_list(kinds[0])
        number, storage_format, is_flat = innermost, "dense", depth == 0 or (is_row if facts is None else facts.flat)
        found = shape or known.shape or _shape_of_lists(field, kinds, is_flat)
    # Whole numbers are float32 here; callers widen the columns whose numbers float32 would round (`in_type`).
    dtype = np.float64 if pa.types.is_float64(number) else np.float32
    info = StreamInformation(field.name, index, storage_format, dtype, found)
    is_wide = pa.types.is_integer(number) and number.bit_width >= _WIDE_BITS
    return StreamColumn(info, is_flat, False, is_wide)


def _column_of_texts(field: pa.Field, index: int, depth: int, classes: Any) -> StreamColumn:
    names = _names_in(classes)
    if not names or len(set(names)) < len(names) or depth > 1:
        example = f"one_hot={{{field.name!r}: ['a', 'b']}}"
        expected = f"numbers, or lists of them; if texts are classes, a program gives their names, each once: {example}"
        raise ConfigError(f"column {field.name!r} is {field.type}; expected {expected}", key=field.name)
    info = StreamInformation(field.name, index, "sparse", np.float32, len(names))
    return StreamColumn(info, depth == 0, True, False, tuple(names))


def _names_in(classes: Any) -> list[str] | None:
    """Return the names of classes; None: the classes are not given by name."""
    if isinstance(classes, int | str | None) or not all(isinstance(name, str) for name in classes):
        return None
    return list(map(str, classes))


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is a text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _number_of_entries(field: pa.Field, innermost: pa.StructType) -> pa.DataType:
    entries = {entry.name: unlisted(entry.type) for entry in innermost}
    is_sparse = entries.keys() == {"indices", "values"} and all(len(kinds) == 2 for kinds in entries.values())
    if not is_sparse or len(unlisted(field.type)) > 2 or not pa.types.is_integer(entries["indices"][1]):
        what = f"column {field.name!r} is {field.type}; expected structs of indices and values"
        raise ConfigError(what, key=field.name)
    return entries["values"][1]


def _shape_of_lists(field: pa.Field, kinds: list[pa.DataType], is_flat: bool) -> tuple[int, ...]:
    """Return the shape of a sample, if its lists have fixed sizes."""
    sizes = tuple(kind.list_size for kind in kinds[:-1] if pa.types.is_fixed_size_list(kind))
    # `kinds` ends with the number, and the outermost list of a column that is not flat is the sequence, of any length.
    if len(sizes) < len(kinds) - (1 if is_flat else 2):
        what = f"column {field.name!r} is {field.type}, which does not give the number of values of a sample"
        raise ConfigError(f"{what}; add {caller().words.number_of('shapes', field.name)}", key="shapes")
    return sizes or (1,)


def in_type(column: StreamColumn, dtype: npt.DTypeLike) -> StreamColumn:
    """Return the same column as a stream of another type."""
    return dataclasses.replace(column, info=dataclasses.replace(column.info, dtype=np.dtype(dtype)))


# float32 has all whole numbers up to 2^24.
_LARGEST_IN_FLOAT32 = 1 << 24
_PANDAS_INDEX = "__index_level_"


def read(
    data: Any, *, key: str | None = None, shapes: Shapes = None, one_hot: Mapping[str, Classes] | None = None
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
        one_hot: Columns of class ids or texts, which become one-hot streams, and their numbers of classes, or the names
            of the classes in order. Columns of categories (of pandas, polars and Arrow) and of a `ClassLabel` of
            Hugging Face become one-hot streams by themselves.

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


def read_minibatch(
    data: Any, *, key: str | None = None, shapes: Shapes = None, one_hot: Mapping[str, int] | None = None
) -> Minibatch:
    """Read a whole table into arrays. Arguments and exceptions as for `read`.

    Args:
        data: As for `read`; the columns of a mapping may also be arrays of objects, as in batches of Ray and pandas.

    Example:
        >>> read_minibatch({"x": [[1.0], [2.0, 3.0]], "key": [7, 9]})["x"].offsets.tolist()
        [0, 1, 3]
    """
    if isinstance(data, Mapping) and isinstance(shapes, pa.Schema):
        data = dict(data)
        for field in shapes:  # empty sequences do not show their type
            if isinstance(column := data.get(field.name), np.ndarray) and column.dtype == object:
                data[field.name] = pa.array(column, field.type)
    with read(data, key=key, shapes=shapes, one_hot=one_hot).pieces() as pieces:
        return joined(pieces)


class Rows(NamedTuple):
    """The columns of a table: its streams, and the column of keys (None: there is none)."""

    columns: Sequence[StreamColumn]
    key: str | None
    has_text_keys: bool

    @property
    def streams(self) -> list[StreamInformation]:
        """The streams."""
        return [column.info for column in self.columns]

    def taken(self, batch: pa.RecordBatch) -> tuple[list[Column], npt.NDArray[Any] | None]:
        """Convert a batch to columns of a chunk, and its keys."""
        columns = [column.taken(batch) for column in self.columns]
        return columns, None if self.key is None else self.own_keys(batch)

    def own_keys(self, batch: pa.RecordBatch) -> npt.NDArray[Any]:
        """Convert the column of keys of a batch: to uint64, or to texts; refuse nulls and negative numbers."""
        where, column = f"column {self.key!r}", batch.column(self.key)
        if column.null_count:
            raise CorpusError(f"{where} has nulls; expected a key for each sequence")
        keys: npt.NDArray[Any] = _decoded(column).to_numpy(zero_copy_only=False)
        if self.has_text_keys:
            return keys.astype(np.str_)
        # The conversion below would turn a negative key into a large number.
        if (keys < 0).any():
            raise CorpusError(f"{where} has the key {keys[keys < 0][0]}; expected whole numbers from 0, or texts")
        return keys.astype(np.uint64)


def converted(convert: Callable[[Any], _T], batch: pa.RecordBatch, row_of: Callable[[int], object]) -> _T:
    """Return what a function makes of a batch.

    Raises:
        CorpusError: A row cannot be converted; the message has the number that `row_of` gives it.
    """

    def error_of(part: pa.RecordBatch) -> CorpusError | None:
        try:
            convert(part)
        except CorpusError as error:
            return error
        return None

    try:
        return convert(batch)
    except CorpusError as error:
        # The first rows of a batch fail together as soon as a wrong row is among them, so a binary search finds this
        # row.
        firsts = range(batch.num_rows)
        row = bisect.bisect_left(firsts, True, key=lambda last: error_of(batch.slice(0, last + 1)) is not None)
        raise CorpusError(f"row {row_of(row)}, {error_of(batch.slice(row, 1)) or error}") from None


def rows_of(
    schema: pa.Schema, key: str | None, shapes: Shapes, one_hot: Mapping[str, Classes], ids: Collection[str] = ()
) -> Rows:
    """Return the columns of a table, with whole numbers as floats. Arguments and exceptions as for `read`.

    Args:
        key: The column of keys; None: there is none.
        one_hot: As for `read`, with the columns of categories.
        ids: Columns of a `ClassLabel` that are numbers.
    """
    if isinstance(shapes, pa.Schema):
        described = {field.name: field.metadata for field in shapes}
        fields = [field.with_metadata(described.get(field.name, field.metadata)) for field in schema]
        schema, shapes = pa.schema(fields, schema.metadata), None
    for name, count in Counter(schema.names).most_common(1):
        if count > 1:
            raise ConfigError(f"{count} columns are named {name!r}; expected a different name for each", key="data")
    are_texts = has_text_keys(schema, key)
    shapes = dict(shapes or {})
    classes = {**_class_labels(schema, (key, *ids, *shapes)), **one_hot}
    # The unnamed index of a data frame of pandas is not part of the data.
    unnamed = _PANDAS_INDEX if b"pandas" in (schema.metadata or {}) else ()
    streams = {field.name: field for field in schema if field.name != key and not field.name.startswith(unnamed)}
    options: dict[str, Mapping[str, Any]] = {"shapes": shapes, "one_hot": classes}
    for option, given in options.items():
        for name, shape in given.items():
            what = caller().words.flag(option)
            if name not in streams:
                raise ConfigError(f"{what}: no column {name!r}{there_are(name, streams)}", key=option)
            if _names_in(shape) is None and num_values(shape) < 1:
                raise ConfigError(f"{what}: column {name!r} has {shape!r}; expected at least 1", key=option)
    if not streams:
        raise ConfigError("no column except for the keys; expected a column for each stream", key="data")
    columns = [
        stream_column(field, index, shapes.get(name), classes.get(name))
        for index, (name, field) in enumerate(streams.items())
    ]
    return Rows(columns, key, are_texts)


class ArrowCorpus(Displayed):
    """A table that can be written as a corpus. Made by `read`.

    Attributes:
        name: The file, or the type of the object.
        streams: The streams: `cntkio.StreamInformation`.
    """

    def __init__(self, data: Any, key: str | None, shapes: Shapes, one_hot: dict[str, Classes]) -> None:
        self._data = data
        # A reader of batches delivers them once; each opening of other data reads the same batches.
        self._repeats = not isinstance(data, pa.RecordBatchReader)
        with opened(data) as table:
            self.name, schema = table.name, table.schema
        try:
            key = key_of(schema, key)
            # Each batch has a dictionary of its own, so the classes are known only after a pass over the data.
            if self._repeats and (names := columns_of_categories(schema, (*one_hot, key))):
                with opened(data) as table:
                    one_hot = {**categories(table.batches, names), **one_hot}
            rows = rows_of(schema, key, shapes, one_hot)
        except FormatError as error:
            raise FormatError(str(error), path=self.name) from None
        self._wide = self._in_float64(rows.columns)
        columns = [in_type(column, np.float64) if column.info.name in self._wide else column for column in rows.columns]
        self._rows = rows._replace(columns=columns)
        self.streams = self._rows.streams

    def _description(self) -> Description:
        title = f"ArrowCorpus: {self.name}; {counted(len(self.streams), 'stream')}"
        return Description(title, ("stream", "samples are"), [(info.name, info.form) for info in self.streams])

    def _in_float64(self, columns: Sequence[StreamColumn]) -> frozenset[str]:
        """Return the columns of whole numbers that need float64, which a pass over these columns finds."""
        wide = {column.info.name: column for column in columns if column.is_wide}
        # Data that are delivered once cannot be examined before they are written, so all their wide columns get
        # float64.
        if not wide or not self._repeats:
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
            pieces, are_texts = self._each(table), self._rows.has_text_keys
            yield Pieces(self.name, self.streams, pieces, table.total, are_texts, wide=self._wide)

    def _each(self, table: Table) -> Iterator[Piece]:
        count = 0
        for batch in small(table.batches):
            try:
                columns, keys = converted(self._rows.taken, batch, count.__add__)
            except CorpusError as error:
                if isinstance(self._data, str | os.PathLike):
                    raise FormatError(str(error), path=self._data) from None
                raise CorpusError(f"{self.name}, {error}") from None
            count += batch.num_rows
            yield Piece(_core.Chunk.from_columns(batch.num_rows, list(columns)), keys)


def columns_of_categories(schema: pa.Schema, without: Collection[str | None]) -> list[str]:
    """Return the columns of categories: texts in dictionaries, or lists of these."""
    kinds = {field.name: unlisted(field.type)[-1] for field in schema if field.name not in without}
    return [name for name, kind in kinds.items() if pa.types.is_dictionary(kind) and is_text(kind.value_type)]


def categories(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of the classes of columns of categories, in the order of their dictionaries."""
    found: dict[str, dict[str, None]] = {name: {} for name in names}
    last: dict[str, pa.Array] = {}
    for batch in batches:
        for name, known in found.items():
            dictionary = _innermost(batch.column(name)).dictionary
            # Usually all batches have the same dictionary, and comparing it is faster than converting it to Python.
            if name not in last or not dictionary.equals(last[name]):
                known.update(dict.fromkeys(dictionary.drop_null().to_pylist()))
                last[name] = dictionary
    return {name: list(known) for name, known in found.items()}


def _class_labels(schema: pa.Schema, without: Collection[str | None]) -> dict[str, Classes]:
    """Return the columns that are a `ClassLabel` of Hugging Face, or lists of it, and their numbers of classes."""
    found: dict[str, Classes] = {}
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):  # metadata of other programs
        for name, feature in json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"].items():
            # A list of labels describes its items in `feature`.
            label = feature.get("feature", feature)
            if label["_type"] == "ClassLabel" and name in schema.names and name not in without:
                found[name] = len(label["names"])
    return found


def key_of(schema: pa.Schema, key: str | None) -> str | None:
    """Return the column of keys, as `read` chooses it; None: there is none."""
    if key is not None:
        if key not in schema.names:
            raise ConfigError(f"no column {key!r}{there_are(key, schema.names)}", key="key")
        return key
    facts = {field.name: facts_of(field) for field in schema}
    marked = [name for name, fact in facts.items() if fact is not None and fact.role == "key"]
    return marked[0] if marked else KEY if KEY in schema.names else None


def has_text_keys(schema: pa.Schema, key: str | None) -> bool:
    """Return whether the column of keys has texts, not whole numbers; refuse other types."""
    if key is None:
        return False
    kind = schema.field(key).type
    stored = kind.value_type if pa.types.is_dictionary(kind) else kind
    if is_text(stored) or pa.types.is_integer(stored):
        return is_text(stored)
    expected = f"whole numbers from 0, or texts: convert the column, or give {caller().words.setting('key', 'COLUMN')}"
    raise ConfigError(f"column {key!r}, the keys, is {kind}; expected {expected}", key="key")

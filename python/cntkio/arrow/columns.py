"""From columns of a table to columns of a chunk."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute

from cntkio.arguments import caller, there_are
from cntkio.arrow.types import Facts, facts_of, is_text, unlisted
from cntkio.arrow.writer import KEY
from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.losses import Rounded
from cntkio.formats.pieces import Classes
from cntkio.formats.table import Column, in_precision
from cntkio.streams import StreamInformation, num_values

_DROP = "ArrowDeserializer(..., nulls='drop') leaves out the rows with nulls"
Shape = int | tuple[int, ...]
Shapes: TypeAlias = Mapping[str, Shape] | pa.Schema | None
"""Shapes of samples by column, or the schema of a table that cntkio wrote."""


@dataclasses.dataclass(frozen=True)
class StreamColumn:
    """A column that is a stream.

    Attributes:
        is_flat: A row is a sample, not a list of samples.
        is_ids: The column has the class of each sample, and the samples are one-hot.
        names: The names of the classes, in order, if the column has texts.
        rounded: Counts the floats that the type of the stream rounds; None: they are not counted.
    """

    info: StreamInformation
    is_flat: bool
    is_ids: bool
    names: Sequence[str] = ()
    rounded: Rounded | None = None

    @property
    def may_be_samples(self) -> bool:
        """True if its lists of numbers may be samples of several values: the numbers are not whole."""
        return self.info.dim == 1 and not self.info.is_sparse and self.info.dtype.kind == "f"

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
        numbers = self._values(values)
        return Column(offsets, numbers, self.info.dim, (bounds, self._indices(indices)))

    def _values(self, array: pa.Array) -> npt.NDArray[Any]:
        numbers = _numbers(self.where, array)
        if self.rounded is not None:
            self.rounded.add(numbers)
        return in_precision(self.where, numbers, self.info.dtype)

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
        values = self._values(array)
        if levels:
            # A sample ends where the last list of its last list ends.
            sizes = np.diff(functools.reduce(lambda ends, bounds: bounds[ends], levels))
        if (sizes != dim).any() or len(values) != int(offsets[-1]) * dim:
            what = f"{self.where}: not all samples have {dim} values; for another number give"
            raise CorpusError(f"{what} {caller().words.number_of('shapes', self.info.name)}")
        shape = self.info.shape
        # A shape with another number of dimensions gives only the number of values: 6 for lists of 2 lists of 3.
        if len(levels) == len(shape):
            for level, (bounds, size) in enumerate(zip(levels, shape, strict=True)):
                others = np.diff(bounds)
                others = others[others != size]
                if len(others):
                    what = f"a sample has {others[0]} items in dimension {level}, but the shape is {shape}"
                    shapes = caller().words.number_of("shapes", self.info.name)
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
        raise CorpusError(f"{where}: {nulls}; expected no nulls; {_DROP}")
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
    """Return the stream that a column becomes, with values in the type of the column's, or a wider one.

    Args:
        shape: Shape of a dense sample, or dimension of a sparse stream; None: as the metadata or the type say.
        classes: Number of classes of a column of class ids, or the names of the classes of a column of texts; None: the
            column has other numbers, or cntkio wrote it.
    """
    facts, where = facts_of(field), f"column {field.name!r} is {field.type}"
    if facts and facts.shape and shape is not None and num_values(shape) != num_values(facts.shape):
        facts = None  # the caller reads the rows in samples of another size
    known = facts or Facts("dense")
    kinds = unlisted(field.type)
    innermost, depth = kinds[-1], len(kinds) - 1
    if pa.types.is_dictionary(innermost) or is_text(innermost):
        return _column_of_texts(field, index, depth, classes)
    if pa.types.is_struct(innermost):
        number, is_flat = _number_of_entries(field, innermost), depth == 0
        found = known.shape if shape is None else shape
        if found is None:
            add = caller().words.number_of("shapes", field.name)
            raise ConfigError(f"column {field.name!r}: the dimension is unknown; add {add}", key="shapes")
        return StreamColumn(StreamInformation(field.name, index, "sparse", _own_type(number), found), is_flat, False)
    if not (pa.types.is_integer(innermost) or pa.types.is_floating(innermost) or pa.types.is_boolean(innermost)):
        is_number = pa.types.is_decimal(innermost) or pa.types.is_temporal(innermost)
        cast = "; cast the column to int64 or float64" if is_number else ""
        raise ConfigError(f"{where}; expected numbers, or lists of them{cast}", key=field.name)
    if classes is not None or (known.role == "ids" and known.shape is not None and shape is None):
        dim = classes or known.shape or ()
        if not pa.types.is_integer(innermost) or depth > 1 or _names_in(dim) is not None:
            expected = f"whole numbers, or lists of them, in {caller().words.flag('one_hot')}"
            raise ConfigError(f"{where}; expected {expected}", key="one_hot")
        return StreamColumn(StreamInformation(field.name, index, "sparse", known.dtype, dim), depth == 0, True)
    # Without facts, a list of a fixed size is a sample of several values, and any other list is a sequence.
    is_row = depth == 1 and pa.types.is_fixed_size_list(kinds[0])
    is_flat = depth == 0 or (is_row if facts is None else facts.flat)
    found = shape or known.shape or _shape_of_lists(field, kinds, is_flat)
    return StreamColumn(StreamInformation(field.name, index, "dense", _own_type(innermost), found), is_flat, False)


def _own_type(number: pa.DataType) -> npt.DTypeLike:
    """Return the type of streams that has all numbers of a type, except for some of uint64."""
    if pa.types.is_floating(number):
        return np.float64 if pa.types.is_float64(number) else np.float32
    # int32 has no room for all numbers of uint32.
    most_bits = 32 if pa.types.is_signed_integer(number) else 16
    return np.int64 if pa.types.is_integer(number) and number.bit_width > most_bits else np.int32


def _column_of_texts(field: pa.Field, index: int, depth: int, classes: Any) -> StreamColumn:
    names = _names_in(classes)
    if not names or len(set(names)) < len(names) or depth > 1:
        example = f"one_hot={{{field.name!r}: ['a', 'b']}}"
        advice = f"a program names the column as the key, or, if its texts are classes, gives each name once: {example}"
        expected = f"numbers, or lists of them; leave out a column that is no input; {advice}"
        raise ConfigError(f"column {field.name!r} is {field.type}; expected {expected}", key=field.name)
    info = StreamInformation(field.name, index, "sparse", np.float32, len(names))
    return StreamColumn(info, depth == 0, True, tuple(names))


def _names_in(classes: Any) -> list[str] | None:
    """Return the names of classes; None: the classes are not given by name."""
    if isinstance(classes, int | str | None) or not all(isinstance(name, str) for name in classes):
        return None
    return list(map(str, classes))


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
    if 0 in sizes:
        what = f"column {field.name!r} is {field.type}, lists without values; expected at least 1"
        raise ConfigError(what, key=field.name)
    # `kinds` ends with the number, and the outermost list of a column that is not flat is the sequence, of any length.
    if len(sizes) < len(kinds) - (1 if is_flat else 2):
        what = f"column {field.name!r} is {field.type}, which does not give the number of values of a sample"
        raise ConfigError(f"{what}; add {caller().words.number_of('shapes', field.name)}", key="shapes")
    return sizes or (1,)


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
            raise CorpusError(f"{where} has nulls; expected a key for each sequence; {_DROP}")
        keys: npt.NDArray[Any] = _decoded(column).to_numpy(zero_copy_only=False)
        if self.has_text_keys:
            return keys.astype(np.str_)
        # The conversion below would turn a negative key into a large number.
        if (keys < 0).any():
            raise CorpusError(f"{where} has the key {keys[keys < 0][0]}; expected whole numbers from 0, or texts")
        return keys.astype(np.uint64)


def rows_of(
    schema: pa.Schema, key: str | None, names: Sequence[str], shapes: Shapes, one_hot: Mapping[str, Classes],
    ids: Collection[str],
) -> Rows:  # fmt: skip
    """Return the columns of a table that are read. Exceptions as for `cntkio.arrow.read`.

    Args:
        key: The column of keys; None: there is none.
        names: The columns that are streams.
        one_hot: As for `read`, with the columns of categories.
        ids: Columns of a `ClassLabel` that are numbers.
    """
    streams = {name: field_of(schema, name, "columns") for name in names}
    if isinstance(shapes, pa.Schema):
        described = {field.name: field.metadata for field in shapes}
        streams = {name: each.with_metadata(described.get(name, each.metadata)) for name, each in streams.items()}
        shapes = None
    shapes = dict(shapes or {})
    labels = _class_labels(schema, (key, *ids, *shapes))
    classes = {**{name: labels[name] for name in labels if name in streams}, **one_hot}
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
    return Rows(columns, key, has_text_keys(schema, key))


def field_of(schema: pa.Schema, name: str, option: str) -> pa.Field:
    """Return the only column of a name, which an option gives."""
    indices = schema.get_all_field_indices(name)
    if len(indices) > 1:
        raise ConfigError(f"{len(indices)} columns are named {name!r}; expected a different name for each", key="data")
    if not indices:
        raise ConfigError(f"no column {name!r}{there_are(name, schema.names)}", key=option)
    return schema.field(indices[0])


def columns_of_streams(schema: pa.Schema, key: str | None) -> list[str]:
    """Return the columns that are streams if the caller chooses none: all except for the keys."""
    # The unnamed index of a data frame of pandas is not part of the data.
    unnamed = "__index_level_" if b"pandas" in (schema.metadata or {}) else ()
    return [name for name in schema.names if name != key and not name.startswith(unnamed)]


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
        return str(field_of(schema, key, "key").name)
    facts = {field.name: facts_of(field) for field in schema}
    marked = [name for name, fact in facts.items() if fact is not None and fact.role == "key"]
    return marked[0] if marked else KEY if KEY in schema.names else None


def has_text_keys(schema: pa.Schema, key: str | None) -> bool:
    """Return whether the column of keys has texts, not whole numbers; refuse other types."""
    if key is None:
        return False
    kind = field_of(schema, key, "key").type
    stored = kind.value_type if pa.types.is_dictionary(kind) else kind
    if is_text(stored) or pa.types.is_integer(stored):
        return is_text(stored)
    expected = f"whole numbers from 0, or texts: convert the column, or give {caller().words.setting('key', 'COLUMN')}"
    raise ConfigError(f"column {key!r}, the keys, is {kind}; expected {expected}", key="key")

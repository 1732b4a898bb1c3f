"""From columns of record batches to columns of chunks."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute

from cntkio.arrow.fields import Facts, facts_of, unlisted
from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.numbers import in_precision
from cntkio.formats.user import Column
from cntkio.streams import StorageFormat, StreamInformation

Shape = int | tuple[int, ...]
_WIDE_BITS = 32


@dataclasses.dataclass(frozen=True)
class StreamColumn:
    """A column that is a stream.

    Attributes:
        info: The stream.
        is_flat: A row is a sample, not a list of samples.
        is_ids: The column has the class of each sample, and the samples are one-hot.
        is_wide: The column has whole numbers of 32 bits or more, which float32 may round.
    """

    info: StreamInformation
    is_flat: bool
    is_ids: bool
    is_wide: bool

    def taken(self, batch: pa.RecordBatch) -> Column:
        """Convert this column of a batch to a column of a chunk.

        Raises:
            CorpusError: The batch has nulls, samples of another size, indices beyond the dimension, or whole numbers
                that are not exact in the stream's precision.
        """
        where = f"column {self.info.name!r}"
        array = _without_nulls(where, batch.column(self.info.name))
        if self.is_flat:
            offsets = np.arange(len(array) + 1, dtype=np.uint32)
        else:
            offsets, array = _items(where, array)
        if self.is_ids:
            return self._one_hot(where, offsets, array)
        if self.info.is_sparse:
            return self._sparse(where, offsets, array)
        return self._dense(where, offsets, array)

    def largest(self, batch: pa.RecordBatch) -> int:
        """Return the largest magnitude in a column of whole numbers."""
        array = batch.column(self.info.name)
        while unlisted(array.type)[1:]:
            array = array.flatten()
        found = compute.min_max(array.field("values").flatten() if pa.types.is_struct(array.type) else array).as_py()
        return max(-(found["min"] or 0), found["max"] or 0)

    def _one_hot(self, where: str, offsets: npt.NDArray[np.uint32], array: pa.Array) -> Column:
        classes = _numbers(where, array)
        self._check_indices(where, classes)
        sample_offsets = np.arange(len(classes) + 1, dtype=np.uint32)
        ones = np.ones(len(classes), self.info.dtype)
        return Column(offsets, ones, self.info.dim, (sample_offsets, classes.astype(np.int32)))

    def _sparse(self, where: str, offsets: npt.NDArray[np.uint32], array: pa.Array) -> Column:
        fields = {array.type.field(index).name: field for index, field in enumerate(array.flatten())}
        bounds, indices = _items(where, fields["indices"])
        bounds_of_values, values = _items(where, fields["values"])
        if not np.array_equal(bounds, bounds_of_values):
            raise CorpusError(
                f"{where}: a sample's indices and values differ in number; expected an index for each value"
            )
        numbers, places = in_precision(where, _numbers(where, values), self.info.dtype), _numbers(where, indices)
        self._check_indices(where, places)
        return Column(offsets, numbers, self.info.dim, (bounds, places.astype(np.int32, copy=False)))

    def _check_indices(self, where: str, places: npt.NDArray[Any]) -> None:
        if len(places) and not 0 <= places.min() <= places.max() < self.info.dim:
            raise CorpusError(
                f"{where}: indices from {places.min()} to {places.max()}, but the dimension is {self.info.dim}"
            )

    def _dense(self, where: str, offsets: npt.NDArray[np.uint32], array: pa.Array) -> Column:
        dim = self.info.dim
        sizes = np.empty(0, np.uint32)
        if pa.types.is_primitive(array.type) and dim > 1:  # all samples of a sequence in one list of numbers
            sizes, offsets = offsets[1:] % dim + dim, offsets // dim
        depth = 0
        while not pa.types.is_primitive(array.type):
            bounds, array = _items(where, array)
            sizes, depth = np.diff(bounds), depth + 1
        values = in_precision(where, _numbers(where, array), self.info.dtype)
        if (depth < 2 and (sizes != dim).any()) or len(values) != int(offsets[-1]) * dim:
            raise CorpusError(
                f"{where}: not all samples have {dim} values; for another number give "
                f"shapes={{{self.info.name!r}: ...}}"
            )
        return Column(offsets, values, dim, None)


def _without_nulls(where: str, array: pa.Array) -> pa.Array:
    if array.null_count:
        nulls = f"{array.null_count} null{'s' * (array.null_count != 1)}"
        raise CorpusError(f"{where}: {nulls}; expected no nulls")
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _items(where: str, array: pa.Array) -> tuple[npt.NDArray[np.uint32], pa.Array]:
    """Return the offsets of lists, and their concatenated items."""
    _without_nulls(where, array)
    if pa.types.is_fixed_size_list(array.type):
        return (np.arange(len(array) + 1) * array.type.list_size).astype(np.uint32), array.flatten()
    offsets = array.offsets.to_numpy()
    return (offsets - offsets[0]).astype(np.uint32), array.flatten()


def _numbers(where: str, array: pa.Array) -> npt.NDArray[Any]:
    numbers: npt.NDArray[Any] = _without_nulls(where, array).to_numpy(zero_copy_only=False)
    return numbers


def stream_column(field: pa.Field, index: int, shape: Shape | None, classes: Shape | None) -> StreamColumn:
    """Return the stream that a column becomes.

    Args:
        field: The column.
        index: The stream's index.
        shape: Shape of a dense sample, or dimension of a sparse stream; None: as the metadata or the type say.
        classes: Number of classes of a column of class ids; None: the column has other numbers, or cntkio wrote it.

    Raises:
        ConfigError: The column is not a stream, or its shape is unknown.
        FormatError: The metadata of the column are damaged.
    """
    facts = facts_of(field)
    known = facts or Facts("dense")
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    kinds = unlisted(kind)
    innermost, depth = kinds[-1], len(kinds) - 1
    storage_format: StorageFormat
    if pa.types.is_struct(innermost):
        number, storage_format, is_flat = _number_of_entries(field, innermost), "sparse", depth == 0
        found = known.shape if shape is None else shape
        if found is None:
            raise ConfigError(
                f"column {field.name!r}: the dimension is unknown; add shapes={{{field.name!r}: ...}}", key="shapes"
            )
    elif not (pa.types.is_integer(innermost) or pa.types.is_floating(innermost) or pa.types.is_boolean(innermost)):
        raise ConfigError(f"column {field.name!r} is {field.type}; expected numbers, or lists of them", key=field.name)
    elif classes is not None or (known.role == "ids" and known.shape is not None and shape is None):
        return _column_of_ids(field, index, innermost, depth, classes or known.shape or (), known.dtype)
    else:
        is_row = depth == 1 and pa.types.is_fixed_size_list(kinds[0])
        number, storage_format, is_flat = innermost, "dense", depth == 0 or (is_row if facts is None else facts.flat)
        found = shape or known.shape or _shape_of_lists(field, kinds, is_flat)
    dtype = np.float64 if pa.types.is_float64(number) else np.float32
    info = StreamInformation(field.name, index, storage_format, dtype, found)
    is_wide = pa.types.is_integer(number) and number.bit_width >= _WIDE_BITS
    return StreamColumn(info, is_flat, False, is_wide)


def _column_of_ids(
    field: pa.Field, index: int, number: pa.DataType, depth: int, classes: Shape, dtype: str
) -> StreamColumn:
    if not pa.types.is_integer(number) or depth > 1:
        raise ConfigError(
            f"column {field.name!r} is {field.type}; expected whole numbers, or lists of them, in one_hot",
            key="one_hot",
        )
    info = StreamInformation(field.name, index, "sparse", dtype, classes)
    return StreamColumn(info, depth == 0, True, False)


def _number_of_entries(field: pa.Field, innermost: pa.StructType) -> pa.DataType:
    """Return the type of the values of sparse samples."""
    entries = {entry.name: unlisted(entry.type) for entry in innermost}
    is_sparse = entries.keys() == {"indices", "values"} and all(len(kinds) == 2 for kinds in entries.values())
    if not is_sparse or len(unlisted(field.type)) > 2 or not pa.types.is_integer(entries["indices"][1]):
        raise ConfigError(
            f"column {field.name!r} is {field.type}; expected structs of indices and values", key=field.name
        )
    return entries["values"][1]


def _shape_of_lists(field: pa.Field, kinds: list[pa.DataType], is_flat: bool) -> tuple[int, ...]:
    """Return the shape of a sample, if its lists have fixed sizes."""
    sizes = tuple(kind.list_size for kind in kinds[:-1] if pa.types.is_fixed_size_list(kind))
    if len(sizes) < len(kinds) - (1 if is_flat else 2):
        raise ConfigError(
            f"column {field.name!r} is {field.type}, which does not give the number of values of a sample; add "
            f"shapes={{{field.name!r}: ...}}",
            key="shapes",
        )
    return sizes or (1,)


def in_float64(column: StreamColumn) -> StreamColumn:
    """Return the same column as a stream in float64."""
    info = column.info
    return dataclasses.replace(
        column, info=StreamInformation(info.name, info.stream_id, info.storage_format, np.float64, info.shape)
    )

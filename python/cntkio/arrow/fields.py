"""The columns of a stream, and the metadata that keep what their Arrow types cannot express.

The metadata of a field are a JSON text under the name `cntkio`. Parquet and Arrow files keep them; most
libraries do not.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal, get_args

import pyarrow as pa

from cntkio.errors import FormatError
from cntkio.streams import LARGEST_DIM, StreamInformation

_SIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.int64()}
KEY = "key"
_METADATA = b"cntkio"
Role = Literal["key", "dense", "sparse", "ids"]


@dataclasses.dataclass(frozen=True)
class Facts:
    """Facts that cntkio wrote about a column.

    Attributes:
        role: Content of the column: keys, samples, or the classes of one-hot samples.
        shape: Shape of a sample; of one-hot samples the number of classes; None: unknown.
        flat: Whether a row is a sample, not a list of samples.
        dtype: Precision of one-hot samples.
    """

    role: Role
    shape: tuple[int, ...] | None = None
    flat: bool = False
    dtype: str = "float32"

    def metadata(self) -> dict[bytes, bytes]:
        """Return the metadata of the field."""
        facts = {key: value for key, value in dataclasses.asdict(self).items() if value is not None}
        if self.role == "key":
            facts = {"role": "key"}
        elif self.role != "ids":
            del facts["dtype"]
        return {_METADATA: json.dumps(facts).encode()}


def facts_of(field: pa.Field) -> Facts | None:
    """Return the facts that cntkio wrote about a column; None: another program wrote the column.

    Raises:
        FormatError: The metadata are damaged.
    """
    metadata = (field.metadata or {}).get(_METADATA)
    if metadata is None:
        return None
    try:
        facts = json.loads(metadata)
        shape = facts.get("shape")
        shape = None if shape is None else tuple(shape)
        found = Facts(facts["role"], shape, facts.get("flat", False), facts.get("dtype", "float32"))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _damaged(field, metadata) from None
    is_shape = all(type(size) is int and 0 < size <= LARGEST_DIM for size in found.shape or ())
    is_known = found.role in get_args(Role) and found.dtype in ("float32", "float64")
    if not is_shape or not is_known or not isinstance(found.flat, bool):
        raise _damaged(field, metadata)
    return found


def _damaged(field: pa.Field, metadata: bytes) -> FormatError:
    return FormatError(f"column {field.name!r}: its metadata are damaged: {metadata!r:.200}")


def key_field(name: str, kind: pa.DataType) -> pa.Field:
    """Return the field of the column of keys."""
    return pa.field(name, kind, nullable=False, metadata=Facts("key").metadata())


def stream_field(info: StreamInformation, is_flat: bool, as_ids: bool) -> pa.Field:
    """Return the field of a stream.

    Args:
        info: The stream.
        is_flat: Omit the list around the samples of a sequence.
        as_ids: The stream is one-hot, and the column has the class of each sample.
    """
    number = pa.from_numpy_dtype(info.dtype)
    role: Role = "ids" if as_ids or info.dtype == "int32" else info.storage_format
    sample: pa.DataType
    if role == "ids":
        sample = pa.int32()
    elif info.is_sparse:
        sample = pa.struct(entry_fields(number))
    else:
        sample = number if info.dim == 1 else list_of(number, info.dim)
    shape = None if info.dtype == "int32" else info.shape
    facts = Facts(role, shape, is_flat, "float64" if info.dtype == "float64" else "float32")
    return pa.field(info.name, sample if is_flat else list_of(sample), False, facts.metadata())


def list_of(item: pa.DataType, size: int = -1) -> pa.DataType:
    """Return the type of lists without nulls, of any size (-1) or of a fixed size."""
    return pa.list_(pa.field("item", item, False), size)


def entry_fields(number: pa.DataType) -> list[pa.Field]:
    """Return the fields of a sparse sample."""
    return [pa.field("indices", pa.list_(pa.int32()), False), pa.field("values", pa.list_(number), False)]


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def unlisted(kind: pa.DataType) -> list[pa.DataType]:
    """Return a type, and the types of the items of its lists, from the outside in."""
    kinds: list[Any] = [kind]
    while _is_list(kinds[-1]):
        kinds.append(kinds[-1].value_type)
    return kinds


def signed(schema: pa.Schema) -> pa.Schema:
    """Return a schema of types that Spark and Java have: without unsigned numbers and lists of a fixed size.

    A table is cast to it; a key of 2^63 or more does not fit.

    Args:
        schema: The schema of a corpus, such as `RecordBatches.schema`.

    Example:
        >>> signed(pa.schema([("key", pa.uint64()), ("x", pa.list_(pa.list_(pa.float32(), 2)))])).types
        [DataType(int64), ListType(list<item: list<item: float>>)]
    """

    def type_of(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(kind):
            return pa.struct([pa.field(field.name, type_of(field.type)) for field in kind])
        if _is_list(kind):
            return pa.list_(type_of(kind.value_type))
        return _SIGNED.get(kind, kind)

    return pa.schema([pa.field(field.name, type_of(field.type)) for field in schema])

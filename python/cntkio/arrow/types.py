"""Types of Arrow that are other forms of plain types, and the plain types.

::

    extension types                                   their storage; the shape of tensors stays as facts of the field
    list_view, large_list_view, run-end encoded       lists and values
    dictionaries, except for texts                    values

All other code of this folder knows only numbers, texts, texts in dictionaries, and lists and structs of these.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute

from cntkio.errors import ConfigError, FormatError
from cntkio.streams import LARGEST_DIM

_METADATA = b"cntkio"
Role = Literal["key", "dense", "sparse", "ids"]
# Names of extension types that have a shape. Without the library that registers it, a type is known by its name alone.
_TENSORS = ("arrow.fixed_shape_tensor", "datasets.features.features.Array", "ray.data.arrow_tensor")


@dataclasses.dataclass(frozen=True)
class Facts:
    """Facts that cntkio wrote about a column, or that its type shows.

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
        """Return the facts as metadata of a field."""
        names = {"key": ["role"], "ids": ["role", "shape", "flat", "dtype"]}.get(self.role, ["role", "shape", "flat"])
        facts = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return {_METADATA: json.dumps(facts).encode()}


def facts_of(field: pa.Field) -> Facts | None:
    """Return the facts that cntkio wrote about a column; None: another program wrote the column."""
    metadata = (field.metadata or {}).get(_METADATA)
    if metadata is None:
        return None
    # Besides broken JSON: JSON that is not an object, or that is nested too deeply.
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        facts = json.loads(metadata)
        shape = facts.get("shape")
        shape = None if shape is None else tuple(shape)
        found = Facts(facts["role"], shape, facts.get("flat", False), facts.get("dtype", "float32"))
        # `type`, since True is an instance of int, too.
        is_shape = all(type(size) is int and 0 < size <= LARGEST_DIM for size in shape or ())
        is_known = found.role in get_args(Role) and found.dtype in ("float32", "float64")
        if is_shape and is_known and isinstance(found.flat, bool):
            return found
    raise FormatError(f"column {field.name!r}: its metadata are damaged: {metadata!r:.200}")


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is of lists."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind) or _is_view(kind)
    )


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is a text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def unlisted(kind: pa.DataType) -> list[pa.DataType]:
    """Return a type, and the types of the items of its lists, from the outside in."""
    kinds: list[Any] = [kind]
    while is_list(kinds[-1]):
        kinds.append(kinds[-1].value_type)
    return kinds


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema in plain types, with the shapes of its tensors. Names that are not UTF-8 fail."""
    return pa.schema([_plain_field(field) for field in schema], schema.metadata)


def _plain_field(field: pa.Field) -> pa.Field:
    plain, metadata = pa.field(field.name, _plain(field.type), field.nullable), dict(field.metadata or {})
    if _METADATA not in metadata and (shape := _shape_of(field)) and 0 not in shape:
        is_flat = not is_list(field.type) or _TENSOR_NAME in metadata
        # A tensor whose first axis has no size is a sequence.
        sizes = tuple(size for size in shape if size is not None)
        facts = Facts("dense", sizes, is_flat and len(sizes) == len(shape))
        metadata |= facts.metadata()
    return plain.with_metadata(metadata)


def _plain(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    if pa.types.is_string_view(kind):  # Arrow cannot select among these
        return pa.large_string()
    if pa.types.is_run_end_encoded(kind) or (pa.types.is_dictionary(kind) and not is_text(kind.value_type)):
        return _plain(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type), field.nullable) for field in kind])
    if not is_list(kind) or (_plain(kind.value_type) == kind.value_type and not _is_view(kind)):
        return kind
    item = pa.field(kind.value_field.name, _plain(kind.value_type), kind.value_field.nullable)
    return pa.list_(item, kind.list_size) if pa.types.is_fixed_size_list(kind) else pa.large_list(item)


@runtime_checkable
class _Shaped(Protocol):
    shape: Any


_TENSOR_NAME, _TENSOR_FACTS = b"ARROW:extension:name", b"ARROW:extension:metadata"


def _shape_of(field: pa.Field) -> tuple[int | None, ...] | None:
    """Return the shape of the tensors of a column, or of its lists; None: its type has no shape."""
    kind = field.type
    while is_list(kind):
        field, kind = kind.value_field if _TENSOR_NAME not in (field.metadata or {}) else field, kind.value_type
    found: Any = None
    if isinstance(kind, pa.FixedShapeTensorType) and list(kind.permutation or ()) != sorted(kind.permutation or ()):
        what = f"{kind}, whose axes are permuted; expected tensors in the order of their axes"
        raise ConfigError(f"column {field.name!r} is {what}", key=field.name)
    if isinstance(kind, pa.BaseExtensionType) and isinstance(kind, _Shaped):
        found = kind.shape
    elif (field.metadata or {}).get(_TENSOR_NAME, b"").decode(errors="replace").startswith(_TENSORS):
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(field.metadata.get(_TENSOR_FACTS, b""))
        found = found.get("shape") if isinstance(found, Mapping) else found
        # Hugging Face writes the shape and the type.
        found = found[0] if isinstance(found, list) and found and isinstance(found[0], list) else found
    if not isinstance(found, list | tuple) or not found or any(type(size) is not int for size in found[1:]):
        return None
    return tuple(found) if found[0] is None or type(found[0]) is int else None


def in_plain_types(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch in plain types; see `plain_schema`."""
    if all(_plain(kind) == kind for kind in batch.schema.types):
        return batch
    return pa.RecordBatch.from_arrays(list(map(_in_plain_type, batch.columns)), batch.schema.names)


def _in_plain_type(array: pa.Array) -> pa.Array:
    kind, plain = array.type, _plain(array.type)
    if plain == kind:
        return array
    if isinstance(kind, pa.BaseExtensionType):
        return _in_plain_type(array.storage)
    if pa.types.is_string_view(kind):
        return array.cast(plain)
    if pa.types.is_run_end_encoded(kind):
        return _in_plain_type(compute.run_end_decode(array))
    if pa.types.is_dictionary(kind):
        return _in_plain_type(array.dictionary_decode())
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        fields = [_in_plain_type(array.field(index)) for index in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(plain), mask=mask)
    if pa.types.is_fixed_size_list(kind):
        # In contrast to `flatten`, this keeps the items of nulls.
        items = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        return pa.FixedSizeListArray.from_arrays(_in_plain_type(items), type=plain, mask=mask)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths_of(array), dtype=np.int64)]), pa.int64())
    return pa.LargeListArray.from_arrays(offsets, _in_plain_type(array.flatten()), type=plain, mask=mask)


def lengths_of(array: pa.Array) -> npt.NDArray[Any]:
    """Return the number of items of each list; 0 for a null, which has no items in the flattened array."""
    lengths: npt.NDArray[Any] = compute.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    return lengths

"""Tables: objects that yield Arrow record batches. This module needs no library for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeGuard, runtime_checkable


@runtime_checkable
class ArrowStream(Protocol):
    """Data frames, tables and series, by the Arrow PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


@runtime_checkable
class ArrowArray(Protocol):
    """Arrays in the memory format of Arrow, by the Arrow PyCapsule interface."""

    def __arrow_c_array__(self, requested_schema: object = None) -> object: ...


@runtime_checkable
class DataSet(Protocol):
    """A data set of Hugging Face: a table in the format `arrow`."""

    features: Any

    def with_format(self, type: str) -> Any: ...

    def iter(self, batch_size: int) -> Iterator[Any]: ...


@runtime_checkable
class ArrayLike(Protocol):
    """Tensors, and everything else that NumPy can convert to an array."""

    def __array__(self) -> Any: ...


def is_table(data: object) -> TypeGuard[ArrowStream | DataSet]:
    """Return whether an object is a data frame, a table, a series or a data set.

    Args:
        data: Any object.

    Example:
        >>> is_table({"x": [1, 2]})
        False
    """
    return isinstance(data, ArrowStream | DataSet)

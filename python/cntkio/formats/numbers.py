"""The precision that preserves numbers: whole numbers are never rounded silently.

float32 keeps all whole numbers up to 2^24, float64 up to 2^53. Other numbers become the nearest number of the
precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio.errors import CorpusError

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_BITS = {FLOAT32: 24, FLOAT64: 53}


def least_precision(arrays: Sequence[npt.NDArray[Any]]) -> np.dtype[Any]:
    """Return float64 if one of the arrays has doubles, or a whole number beyond 2^24; otherwise float32.

    Example:
        >>> least_precision([np.array([1, 2])]), least_precision([np.array([1, 2**24 + 1])])
        (dtype('float32'), dtype('float64'))
    """
    dtypes = {array.dtype for array in arrays}
    if any(dtype.kind == "f" and dtype.itemsize > 4 for dtype in dtypes):
        return FLOAT64
    whole = (array for array in arrays if array.dtype.kind in "iu")
    return FLOAT32 if all(_are_within(array, _BITS[FLOAT32]) for array in whole) else FLOAT64


def in_precision(where: str, values: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return numbers in float32 or float64, in contiguous memory.

    Args:
        where: Beginning of a message.
        values: Numbers of any type.
        dtype: float32 or float64.

    Raises:
        CorpusError: The precision would round a whole number.

    Example:
        >>> in_precision("stream 'x'", np.array([5, 2**24 + 1]), np.float32)
        Traceback (most recent call last):
        cntkio.errors.CorpusError: stream 'x': the whole number 16777217 is not exact in float32; write float64 instead
    """
    target = np.dtype(dtype)
    if values.dtype.kind in "iu" and not _are_within(values, _BITS[target]):
        inexact = values[_is_rounded(values, _BITS[target])]
        if inexact.size:
            raise CorpusError(f"{where}: {rounded_text(int(inexact.flat[0]), target)}")
    return np.ascontiguousarray(values, target)


def rounded_text(value: int, dtype: np.dtype[Any]) -> str:
    """Return the message that a precision would round a whole number, with advice."""
    advice = (
        "write float64 instead"
        if dtype == FLOAT32
        else "no format keeps larger whole numbers; if they name classes, number the classes from 0"
    )
    return f"the whole number {value} is not exact in {dtype}; {advice}"


def as_numbers(where: str, sequence: Any) -> npt.NDArray[Any]:
    """Return nested lists, or anything else that NumPy understands, as an array.

    Raises:
        CorpusError: Lists mix a whole number with others, so that NumPy would round it to a double.
    """
    array = np.asarray(sequence)
    if array.dtype == FLOAT64 and not hasattr(sequence, "dtype") and (np.abs(array) >= 2.0**53).any():
        for number in np.asarray(sequence, object).flat:  # numbers of this size are rare
            if isinstance(number, int) and int(float(number)) != number:
                raise CorpusError(f"{where}: {rounded_text(number, FLOAT64)}")
    return array


def _are_within(values: npt.NDArray[Any], bits: int) -> bool:
    """Return whether all whole numbers are at most 2^bits."""
    narrow = 8 * values.dtype.itemsize <= bits
    return narrow or values.size == 0 or (int(values.max()) <= 1 << bits and int(values.min()) >= -(1 << bits))


def _is_rounded(values: npt.NDArray[Any], bits: int) -> npt.NDArray[np.bool_]:
    """Return which whole numbers have more significant bits than a precision."""
    magnitudes = values.astype(np.uint64)
    magnitudes[values < 0] = ~magnitudes[values < 0] + np.uint64(1)
    lowest_bits = np.maximum(magnitudes & (~magnitudes + np.uint64(1)), np.uint64(1))
    rounded: npt.NDArray[np.bool_] = magnitudes // lowest_bits >= np.uint64(1 << bits)
    return rounded

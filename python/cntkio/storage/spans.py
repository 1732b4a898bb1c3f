"""Columns of numbers that are read in slices, and the span of a position."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class SlicedNumbers(Protocol):
    """Numbers that are read in slices."""

    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> npt.NDArray[Any]: ...


def span_at(starts: npt.NDArray[Any], positions: Any) -> Any:
    """Return the index of the span that contains a position, or of each span if `positions` is an array.

    Args:
        starts: Position at which each span begins, ascending.
        positions: One position, or an array of them. Before the first start, the result is -1.

    Example:
        >>> span_at(np.array([0, 2, 5]), 4), span_at(np.array([0, 2, 5]), np.array([1, 2, 9]))
        (np.int64(1), array([0, 1, 2]))
    """
    return np.searchsorted(starts, positions, side="right") - 1

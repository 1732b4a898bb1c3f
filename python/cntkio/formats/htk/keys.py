"""Keys of utterances as arrays of text."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cntkio import _core


def text_rows(rows: tuple[npt.NDArray[np.uint8], int]) -> npt.NDArray[np.bytes_]:
    """Turn the core's rows of padded bytes into an array of texts."""
    data, width = rows
    return data.view(f"S{width}")


def first_same(keys: npt.NDArray[np.bytes_]) -> npt.NDArray[np.uint32]:
    """Return for each key the index of the first equal key."""
    return _core.first_same(np.ascontiguousarray(keys).view(np.uint8), keys.dtype.itemsize)


def shown(text: bytes) -> str:
    """Return a text from a file, such as a key, for a message."""
    return bytes(text).decode(errors="replace")

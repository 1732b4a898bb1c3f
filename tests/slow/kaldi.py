"""A slow reader of Kaldi's binary archives: one object after the other, one value at a time."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt


def read(archive: bytes) -> dict[str, npt.NDArray[Any]]:
    """Return the object of each key: a matrix, a vector, or whole numbers."""
    found: dict[str, npt.NDArray[Any]] = {}
    at = 0
    while at < len(archive):
        end = archive.index(b" ", at)
        key, at = archive[at:end].decode(), end + 3
        assert archive[end + 1 : at] == b"\0B"
        if archive[at : at + 1] == b"\4":  # no name of a type: a vector of whole numbers
            (count,) = struct.unpack_from("<i", archive, at + 1)
            at += 5
            found[key] = np.array(
                [struct.unpack_from("<i", archive, at + 5 * k + 1)[0] for k in range(count)], np.int32
            )
            at += 5 * count
            continue
        kind, _, _ = archive[at : at + 4].partition(b" ")
        at += len(kind) + 1
        found[key], at = _READERS[kind.decode()](archive, at)
    return found


def _plain(archive: bytes, at: int, num_axes: int, code: str) -> tuple[npt.NDArray[Any], int]:
    shape = [struct.unpack_from("<i", archive, at + 5 * axis + 1)[0] for axis in range(num_axes)]
    at += 5 * num_axes
    count, size = int(np.prod(shape)), struct.calcsize(code)
    values = [struct.unpack_from(f"<{code}", archive, at + size * number)[0] for number in range(count)]
    return np.array(values, np.float32 if code == "f" else np.float64).reshape(shape), at + size * count


def _by_columns(archive: bytes, at: int) -> tuple[npt.NDArray[Any], int]:
    """Read a matrix in bytes, with four percentiles for each column."""
    least, scope, rows, columns = struct.unpack_from("<ffii", archive, at)
    at += 16
    unit = np.float32(scope) * np.float32(1 / 65535)
    values = np.zeros((rows, columns), np.float32)
    data = at + 8 * columns
    for column in range(columns):
        codes = struct.unpack_from("<4H", archive, at + 8 * column)
        marks = [np.float32(least) + unit * np.float32(code) for code in codes]
        for row in range(rows):
            code = archive[data + column * rows + row]
            first, begin, width = (0, 0, 64) if code <= 64 else (1, 64, 128) if code <= 192 else (2, 192, 63)
            share = (marks[first + 1] - marks[first]) * np.float32(code - begin)
            values[row, column] = float(marks[first]) + float(share) * (1 / width)  # Kaldi's constant is a double
    return values, data + rows * columns


def _by_matrix(archive: bytes, at: int, code: str, largest: int) -> tuple[npt.NDArray[Any], int]:
    """Read a matrix in whole numbers from the least value to the largest."""
    least, scope, rows, columns = struct.unpack_from("<ffii", archive, at)
    numbers = struct.unpack_from(f"<{rows * columns}{code}", archive, at + 16)
    unit = np.float32(scope * (1.0 / largest))
    values = [np.float32(least) + np.float32(number) * unit for number in numbers]
    return np.array(values, np.float32).reshape(rows, columns), at + 16 + rows * columns * struct.calcsize(code)


_READERS = {
    "FM": lambda archive, at: _plain(archive, at, 2, "f"),
    "DM": lambda archive, at: _plain(archive, at, 2, "d"),
    "FV": lambda archive, at: _plain(archive, at, 1, "f"),
    "DV": lambda archive, at: _plain(archive, at, 1, "d"),
    "CM": _by_columns,
    "CM2": lambda archive, at: _by_matrix(archive, at, "H", 65535),
    "CM3": lambda archive, at: _by_matrix(archive, at, "B", 255),
}

"""Keys of sequences, in as few bytes as possible.

::

    Keys(range(5, 8))           numbers that count up by one take no memory
    Keys(column)                numbers of 32 or 64 bits; an index cache reads them on first use
    Keys(np.array([b"u1"]))     words, as bytes of UTF-8 or as texts

Whoever asks for a key gets a whole number or a `str`. Comparisons and writers use the bytes of words.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._threads import num_threads
from cntkio.storage.spans import SlicedNumbers, joined_and_freed

_LARGEST = 2**64 - 1


class Keys:
    """The keys of sequences: whole numbers from 0, or words.

    An index gives an ``int`` or a ``str``. A slice, an array of indices or a mask gives an array of uint64 or of texts.

    Args:
        column: A range, or unsigned numbers, or words as bytes or texts.

    Attributes:
        are_words: Whether the keys are words.
        first: The first key, if the keys count up by one; None: they are stored one by one.

    Raises:
        ValueError: A key of a range does not fit 64 bits.

    Example:
        >>> keys = Keys(range(5, 8))
        >>> keys[-1], keys[1:], keys[np.array([True, False, True])]
        (7, array([6, 7], dtype=uint64), array([5, 7], dtype=uint64))
        >>> Keys(np.array([b"u1", b"u2"]))[1]
        'u2'
    """

    def __init__(self, column: range | SlicedNumbers) -> None:
        self.first: int | None = None
        self._column: SlicedNumbers | None = None
        # A range treats negative indices, slices and indices beyond the end as a list does.
        self._positions = range(len(column))
        if isinstance(column, range):
            self.first, self.are_words = column.start, False
            if len(column) and not 0 <= column[0] <= column[-1] <= _LARGEST:
                raise ValueError(f"{len(column)} keys from {column[0]} on; expected keys of 0 to 2^64 - 1")
        else:
            self._column, self.are_words = column, column.dtype.kind not in "ui"

    @classmethod
    def of(cls, keys: npt.ArrayLike | Keys) -> Keys:
        """Return keys of any other type: an array, also of objects, or a list.

        Raises:
            ValueError: A key is negative.

        Example:
            >>> Keys.of([7, 9])[:], Keys.of(np.array(["a", "b"], object)).words()
            (array([7, 9], dtype=uint64), array([b'a', b'b'], dtype='|S1'))
        """
        if isinstance(keys, Keys):
            return keys
        values = keys.tolist() if isinstance(keys, np.ndarray) and keys.dtype.kind not in "SUiu" else keys
        array = np.asarray(values)
        if array.dtype.kind in "SU":
            return cls(array)
        if array.dtype.kind not in "iu":  # none, or numbers of which some need 64 bits
            return cls(np.array(values, np.uint64))
        if len(array) and int(array.min()) < 0:
            raise ValueError(f"the key {array.min()}; expected keys of 0 to 2^64 - 1")
        return cls(array.astype(np.uint64))

    @classmethod
    def compact(cls, keys: npt.NDArray[np.unsignedinteger[Any]]) -> Keys:
        """Return numbers in as few bytes as possible.

        Example:
            >>> Keys.compact(np.array([7, 5], np.uint64)).stored()
            array([7, 5], dtype=uint32)
        """
        # The first comparison costs nothing.
        if len(keys) and int(keys[-1]) - int(keys[0]) == len(keys) - 1 and (keys[1:] > keys[:-1]).all():
            return cls(range(int(keys[0]), int(keys[-1]) + 1))
        return cls(keys.astype(np.uint32 if not len(keys) or keys.max() < 2**32 else np.uint64, copy=False))

    @classmethod
    def joined(cls, columns: list[Keys]) -> Keys:
        """Return the keys of several columns, one after the other. If only some are words, all become words.

        The list is emptied, so that its columns are in memory once.

        Example:
            >>> Keys.joined([Keys(range(2)), Keys(range(2, 5))]).stored()
            array([0, 5], dtype=uint64)
        """
        # An empty column may have any type, which must not decide the type of all keys.
        filled = [column for column in columns if len(column)]
        columns.clear()
        counts = [(column.first, len(column)) for column in filled if column.first is not None]
        if filled and len(counts) == len(filled) and all(a + n == b for (a, n), (b, _) in pairwise(counts)):
            return cls(range(filled[0][0], filled[-1][-1] + 1))
        if any(column.are_words for column in filled):
            are_texts = all(column.stored().dtype.kind == "U" for column in filled)
            return cls(np.concatenate([column.stored() if are_texts else column.words() for column in filled]))
        is_small = all(column.bounds()[1] < 2**32 for column in filled)
        numbers: list[Any] = [column.stored() if column.first is None else column for column in filled]
        filled.clear()
        return cls(joined_and_freed(numbers, np.uint32 if is_small else np.uint64))

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: Any) -> Any:
        found = self._numbers(index) if self._column is None else self.stored()[index]
        if np.ndim(found) == 0:
            key = found.item()
            return key.decode(errors="backslashreplace") if isinstance(key, bytes) else key
        if not self.are_words:
            return found.astype(np.uint64, copy=False)
        return found if found.dtype.kind == "U" else np.strings.decode(found, "utf-8", "backslashreplace")

    def _numbers(self, index: Any) -> Any:
        if isinstance(index, slice):
            part = self._positions[index]
            positions = np.arange(part.start, part.stop, part.step)
        elif np.ndim(index) == 0:
            positions = np.array(self._positions[index])
        else:
            positions = np.asarray(index)
            positions = np.flatnonzero(positions) if positions.dtype == np.bool_ else positions
        # Added as uint64, because keys up to 2^64 - 1 do not fit the int64 of `arange`.
        return positions.astype(np.uint64) + np.uint64(self.first or 0)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        keys: npt.NDArray[Any] = self[:]
        return np.array(keys, dtype, copy=copy)

    def tolist(self) -> list[Any]:
        """Return a list of int or str."""
        keys: list[Any] = self[:].tolist()
        return keys

    def stored(self) -> npt.NDArray[Any]:
        """Return an array that determines the keys: in the type in which they are kept; of a range two numbers."""
        if self._column is None:
            return np.array([self.first, len(self)], np.uint64)
        if not isinstance(self._column, np.ndarray):
            self._column = self._column[:]
        column: npt.NDArray[Any] = self._column
        return column

    def words(self) -> npt.NDArray[np.bytes_]:
        """Return all keys as bytes of words; numbers in decimal digits."""
        if not self.are_words:
            return np.asarray(self[:]).astype("S20")  # the largest 64-bit number has 20 digits
        stored = self.stored()
        return stored if stored.dtype.kind == "S" else np.strings.encode(stored, "utf-8")

    def bounds(self) -> tuple[int, int]:
        """Return the smallest and the largest of numbers; there is at least one."""
        if self.first is not None:
            return self.first, self.first + len(self) - 1
        return int(self.stored().min()), int(self.stored().max())

    def part(self, first: int, last: int) -> Keys:
        """Return consecutive keys, without a copy."""
        if self.first is not None:
            return Keys(range(self.first + first, self.first + last))
        return Keys(self.stored()[first:last])

    def only(self, which: npt.NDArray[Any]) -> Keys:
        """Return some of the keys, by their indices or a mask."""
        return Keys(self.stored()[which] if self.are_words else self[which])

    def moved(self, by: int) -> Keys:
        """Return numbers with `by` added to each.

        Raises:
            ValueError: A number does not fit 64 bits.
        """
        if self.first is not None or not len(self):
            first = by + (self.first or 0)
            return Keys(range(first, first + len(self)))
        # The addition below would wrap.
        if (largest := self.bounds()[1] + by) > _LARGEST:
            raise ValueError(f"the key {largest}; expected keys of 0 to 2^64 - 1")
        return Keys.compact(self[:] + np.uint64(by))

    def places_of(self, key: int | str | bytes) -> npt.NDArray[np.int64]:
        """Return the indices of a key; a number may be given in digits.

        Example:
            >>> Keys(range(5, 8)).places_of("6"), Keys(np.array([b"u1"])).places_of(7)
            (array([1]), array([], dtype=int64))
        """
        text = key if isinstance(key, bytes) else str(key).encode()
        if self.are_words:
            found = np.flatnonzero(self.words() == text)
            # The bytes of a key may be no UTF-8, and the caller has the key as it is shown.
            return (
                found if len(found) or b"\\" not in text else np.flatnonzero(self[:] == text.decode(errors="replace"))
            )
        number = int(text) if text.isdigit() else -1
        return np.flatnonzero(self[:] == np.uint64(number)) if 0 <= number <= _LARGEST else np.zeros(0, np.int64)

    def repeated(self) -> npt.NDArray[np.int64]:
        """Return the indices of the keys that are also earlier.

        Example:
            >>> Keys.of([7, 9, 7]).repeated()
            array([2])
        """
        keys = np.zeros(0) if self.first is not None else self.stored()
        # As usual there is none, and the order of all keys takes much memory.
        if (keys[1:] > keys[:-1]).all() or (keys.dtype.kind == "u" and _core.ctf_are_distinct(keys, num_threads())):
            return np.empty(0, np.int64)
        order = np.argsort(keys, kind="stable")
        return np.sort(order[1:][keys[order][1:] == keys[order][:-1]])


def comparable(columns: Sequence[Keys]) -> list[npt.NDArray[Any]]:
    """Return keys as numbers, if all are numbers; otherwise as the bytes of words."""
    return [column.words() if any(one.are_words for one in columns) else column[:] for column in columns]


def in_several(columns: Sequence[Keys]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return each place whose key an earlier column has, too, and the place there. Places count through all columns.

    Example:
        >>> in_several([Keys.of([1, 2, 2]), Keys.of([4]), Keys.of([5, 2])])
        (array([5]), array([2]))
    """
    keys = np.concatenate([np.empty(0, np.uint64), *comparable(columns)] if not columns else comparable(columns))
    column_of = np.repeat(np.arange(len(columns), dtype=np.uint32), [len(column) for column in columns])
    # Stable, so that of equal keys the column that comes first stays first.
    order = np.argsort(keys, kind="stable")
    is_again = (keys[order][1:] == keys[order][:-1]) & (column_of[order][1:] != column_of[order][:-1])
    return order[1:][is_again], order[:-1][is_again]

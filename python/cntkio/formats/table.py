"""Tables of sequences and chunks, and the columns that they consist of: keys, and lengths in as few bytes as possible.

A column of lengths is a NumPy array of 8, 16 or 32 bits; if all lengths are the same, its stride is 0, and it takes no
memory. Keys that count up by one take no memory; others are numbers of 32 or 64 bits, which an index cache reads
on first use, or words. The index of a sequence gives its key as a whole number or a `str`. Comparisons and writers use
the bytes of words.

Numbers keep their values: whole numbers are never rounded silently. float32 keeps all whole numbers up to 2^24, float64
up to 2^53. Other numbers become the nearest number of the precision.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._threads import num_threads
from cntkio.errors import CorpusError
from cntkio.storage.shared import shared
from cntkio.storage.spans import SlicedNumbers

Lengths: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]


class Column(NamedTuple):
    """The samples of one stream, sequence after sequence, as `Chunk.from_columns` takes them."""

    sequence_offsets: npt.NDArray[np.uint32]  # sample at which each sequence begins and, last, the number of samples
    values: npt.NDArray[Any]
    dim: int  # values of a sample, or the bound of its indices
    # The entry at which each sample begins and, last, the number of entries; and the index of each entry. None:
    # the stream is dense.
    sparse: tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32]] | None


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
            ValueError: A key is negative, has a fraction, or needs more than 64 bits.

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
        if array.dtype.kind == "f" and (array % 1 != 0).any():
            raise ValueError(f"the key {array[array % 1 != 0][0]}; expected whole numbers or texts")
        if array.dtype.kind not in "iu":  # none, or numbers of which some need 64 bits
            try:
                return cls(np.array(values, np.uint64))
            except OverflowError as error:
                raise ValueError("a key is below 0 or above 2^64 - 1") from error
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

    def column(self) -> SlicedNumbers:
        """Return numbers or words that determine the keys, in the type in which they are kept, of a range two."""
        return np.array([self.first, len(self)], np.uint64) if self._column is None else self._column

    def stored(self) -> npt.NDArray[Any]:
        """Return `column` as an array."""
        if self._column is None:
            return np.array([self.first, len(self)], np.uint64)
        if not isinstance(self._column, np.ndarray):
            self._column = shared(self._column[:])
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
        if self.first is not None:
            return np.array([number - self.first] if 0 <= number - self.first < len(self) else [], np.int64)
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


def joined_lengths(columns: Sequence[Lengths]) -> Lengths:
    """Return the lengths of several columns, one after the other, in as few bytes as possible.

    Example:
        >>> joined_lengths([same_lengths(2, 3), np.array([2], np.uint8)]).strides
        (0,)
        >>> joined_lengths([same_lengths(2, 1), np.array([1, 3], np.uint8)])
        array([2, 1, 3], dtype=uint8)
    """
    filled = [column for column in columns if len(column)]
    # A column that keeps a single number yields a single number.
    known = [column[:1] if are_all_the_same(column) else column for column in filled]
    extremes = {int(extreme) for column in known for extreme in (column.min(), column.max())}
    if len(extremes) == 1:
        return same_lengths(max(extremes), sum(map(len, filled)))
    return _joined(filled, np.min_scalar_type(max(extremes, default=0)))


def _joined(columns: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    # The empty array is for no columns at all. The cast is safe, since the callers derive the type from the values.
    return np.concatenate([np.empty(0, dtype), *columns], dtype=dtype, casting="unsafe")


def joined_and_freed(columns: list[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Join columns, and remove each from the list once it is copied, so that only one is in memory twice."""
    if len(columns) == 1:
        return np.asarray(columns.pop(), dtype)
    joined = np.empty(sum(map(len, columns)), dtype)
    end = len(joined)
    while columns:
        column = columns.pop()
        joined[end - len(column) : end] = column
        end -= len(column)
    return joined


def compact_lengths(lengths: npt.NDArray[np.uint32]) -> Lengths:
    """Return lengths in as few bytes as possible.

    Example:
        >>> compact_lengths(np.array([3, 3, 3], np.uint32)).strides
        (0,)
        >>> compact_lengths(np.array([3, 2**16 - 1], np.uint32)).dtype
        dtype('uint16')
    """
    least, largest = (int(lengths.min()), int(lengths.max())) if len(lengths) else (0, 0)
    if least == largest:
        return same_lengths(largest, len(lengths))
    return lengths.astype(np.min_scalar_type(largest), copy=False)


def same_lengths(length: int, count: int) -> Lengths:
    """Return `count` lengths that are all the same. They take no memory."""
    return np.broadcast_to(np.array(length, np.uint32), count)


def are_all_the_same(lengths: Lengths) -> bool:
    """Return whether the column keeps a single number for all lengths."""
    return lengths.strides == (0,)


NamedFiles: TypeAlias = tuple[npt.NDArray[np.str_], npt.NDArray[np.int64]]
"""The files of some sequences: their names, and the index of each sequence's file among these names."""


FilesOf: TypeAlias = Callable[[npt.NDArray[np.int64]], NamedFiles]
"""Finds the files of some sequences."""


def file_finder(paths: Sequence[str | bytes], file_of: Callable[[npt.NDArray[np.int64]], npt.NDArray[Any]]) -> FilesOf:
    """Return the function that finds files, which can be pickled.

    Args:
        file_of: Returns the index of each sequence's file in `paths`.

    Example:
        >>> names, which = file_finder(["a.ctf", "b.ctf"], np.array([0, 0, 1]).__getitem__)(np.array([1, 2, 0]))
        >>> names[which].tolist()
        ['a.ctf', 'b.ctf', 'a.ctf']
    """
    return partial(_files_found, paths, file_of)


def _files_found(
    paths: Sequence[str | bytes], file_of: Callable[[npt.NDArray[np.int64]], npt.NDArray[Any]],
    sequences: npt.NDArray[np.int64],
) -> NamedFiles:  # fmt: skip
    files, which = np.unique(file_of(sequences), return_inverse=True)
    return np.array([os.fsdecode(paths[file]) for file in files.tolist()], np.str_), which


@dataclasses.dataclass(frozen=True, eq=False)
class SequenceTable:
    """The sequences of a corpus in the order of its chunks."""

    keys: Keys  # key of each sequence
    lengths: Lengths  # number of samples that each sequence counts for: uint32, or fewer bits if all lengths fit
    chunk_starts: npt.NDArray[np.int64]  # first sequence of each chunk and, last, the number of sequences, int64
    # The deserializer's options that the table depends on, for the messages of checkpoints; JSON-able.
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict, kw_only=True)
    files: FilesOf | None = dataclasses.field(default=None, kw_only=True)  # the files, if there are several

    @property
    def num_sequences(self) -> int:
        return len(self.lengths)

    @property
    def num_chunks(self) -> int:
        return len(self.chunk_starts) - 1

    def bounds_of(self, chunk_id: int) -> tuple[int, int]:
        """Return the first sequence of a chunk, and the sequence after its last."""
        first, last = self.chunk_starts[chunk_id : chunk_id + 2].tolist()
        return first, last

    def content(self) -> list[SlicedNumbers]:
        """Return columns that determine the table, for checksums. Keys of an index cache are not read yet."""
        lengths = self.lengths
        if are_all_the_same(lengths) and len(lengths):  # a single length and their number determine all
            lengths = np.array([lengths[0], len(lengths)], np.uint64)
        return [self.keys.column(), lengths, self.chunk_starts]


NO_SEQUENCES = SequenceTable(Keys.of([]), np.empty(0, np.uint8), np.zeros(1, np.int64))
"""A table without sequences."""


FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_BITS = {FLOAT32: 24, FLOAT64: 53}


def least_precision(arrays: Sequence[npt.NDArray[Any]]) -> np.dtype[Any]:
    """Return the least type that keeps all whole numbers of some arrays, and float64 for doubles.

    Example:
        >>> [str(least_precision([np.array([1, number])])) for number in (2, 2**24 + 1, 2**53 + 1)]
        ['float32', 'float64', 'int64']
    """
    dtypes = {array.dtype for array in arrays}
    if any(dtype.kind == "f" and dtype.itemsize > 4 for dtype in dtypes):
        return FLOAT64
    whole = [array for array in arrays if array.dtype.kind in "iu"]
    for dtype in (FLOAT32, FLOAT64):
        if all(_are_within(array, _BITS[dtype]) for array in whole):
            return dtype
    is_exact = not any(_is_rounded(array, _BITS[FLOAT64]).any() for array in whole)
    return FLOAT64 if is_exact or len(whole) < len(arrays) else np.dtype(np.int64)


def in_precision(where: str, values: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return numbers in another type, in contiguous memory.

    Args:
        where: Beginning of a message.
        values: Numbers of any type.
        dtype: float32, float64, int32 or int64.

    Raises:
        CorpusError: The type would round a whole number, has no room for it, or is of whole numbers, and the values are
            not.

    Example:
        >>> in_precision("stream 'x'", np.array([5, 2**24 + 1]), np.float32)
        Traceback (most recent call last):
        cntkio.errors.CorpusError: stream 'x': the whole number 16777217 is not exact in float32; write float64 instead
    """
    target = np.dtype(dtype)
    if target.kind == "i":
        if values.dtype.kind not in "iub":
            found = f"values of type {values.dtype}"
            raise CorpusError(f"{where}: {found}; expected whole numbers, as the stream's {target}")
        bounds = np.iinfo(target)
        # Values of a narrower type always fit, so they need no pass over the array.
        if not np.can_cast(values.dtype, target) and values.size:
            least, most = int(values.min()), int(values.max())
            if least < bounds.min or most > bounds.max:
                wrong = least if least < bounds.min else most
                found = f"the whole number {wrong} does not fit {target}"
                raise CorpusError(f"{where}: {found}; expected at most {bounds.max}")
        return np.ascontiguousarray(values, target)
    if values.dtype.kind in "iu" and not _are_within(values, _BITS[target]):
        # Beyond the bound some numbers are exact, too: multiples of large powers of two.
        inexact = values[_is_rounded(values, _BITS[target])]
        if inexact.size:
            raise CorpusError(f"{where}: {rounded_text(int(inexact.flat[0]), target)}")
    return np.ascontiguousarray(values, target)


def digest_of(columns: Iterable[npt.NDArray[Any]], start: bytes = b"") -> str:
    """Return a checksum of some bytes and of columns, for fingerprints."""
    digest = hashlib.blake2b(start, digest_size=16)
    for column in columns:
        digest.update(np.ascontiguousarray(column).data.cast("B"))
    return digest.hexdigest()


def rounded_text(value: int, dtype: np.dtype[Any]) -> str:
    """Return the message that a precision would round a whole number, with advice."""
    advice = "Parquet, Arrow and texts keep it; if it names a class, number the classes from 0"
    advice = "write float64 instead" if dtype == FLOAT32 else advice
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
    narrow = 8 * values.dtype.itemsize <= bits
    return narrow or values.size == 0 or (int(values.max()) <= 1 << bits and int(values.min()) >= -(1 << bits))


def _is_rounded(values: npt.NDArray[Any], bits: int) -> npt.NDArray[np.bool_]:
    magnitudes = values.astype(np.uint64)
    # Two's complement in uint64: the least int64 has no positive counterpart in int64.
    magnitudes[values < 0] = ~magnitudes[values < 0] + np.uint64(1)
    # At least 1, so that 0 is not divided by 0.
    lowest_bits = np.maximum(magnitudes & (~magnitudes + np.uint64(1)), np.uint64(1))
    # A number is exact if its bits from the highest to the lowest 1 fit the precision.
    rounded: npt.NDArray[np.bool_] = magnitudes // lowest_bits >= np.uint64(1 << bits)
    return rounded

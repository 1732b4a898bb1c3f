"""Tables of sequences and chunks, and the columns that they consist of: keys and lengths in as few bytes as possible.

A column of lengths is a NumPy array of 8, 16 or 32 bits; if all lengths are the same, its stride is 0, and it takes no
memory. Keys are a NumPy array, or an object of one of the classes below, which are indexed like an array.

Numbers keep their values: whole numbers are never rounded silently. float32 keeps all whole numbers up to 2^24, float64
up to 2^53. Other numbers become the nearest number of the precision.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from cntkio.errors import CorpusError
from cntkio.storage.spans import SlicedNumbers, span_at

Lengths: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]


class Column(NamedTuple):
    """The samples of one stream, sequence after sequence, as `Chunk.from_columns` takes them."""

    sequence_offsets: npt.NDArray[np.uint32]  # sample at which each sequence begins and, last, the number of samples
    values: npt.NDArray[Any]
    dim: int  # values of a sample, or the bound of its indices
    # The entry at which each sample begins and, last, the number of entries; and the index of each entry. None:
    # the stream is dense.
    sparse: tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32]] | None


class _Numbers:
    """Keys that are numbers, as an array and as a list."""

    dtype = np.dtype(np.uint64)

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        # A slice is a new array in both subclasses, so `copy` needs no attention.
        keys: npt.NDArray[Any] = self[:]
        return keys.astype(dtype or np.uint64, copy=False)

    def tolist(self) -> list[int]:
        keys: list[int] = self[:].tolist()
        return keys


class CountedKeys(_Numbers):
    """Keys that count up by one. They take no memory.

    Raises:
        ValueError: A key is negative or does not fit 64 bits.

    Example:
        >>> keys = CountedKeys(5, 3)
        >>> keys[-1], keys[1:], keys[np.array([True, False, True])]
        (np.uint64(7), array([6, 7], dtype=uint64), array([5, 7], dtype=uint64))
    """

    def __init__(self, first: int, count: int) -> None:
        if not 0 <= first <= 2**64 - count:
            raise ValueError(f"{count} keys from {first} on; expected keys of 0 to 2^64 - 1")
        self.first = first
        # A range treats negative indices, slices and indices beyond the end as a list does.
        self._positions = range(count)

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            part = self._positions[index]
            # Added as uint64, because keys up to 2^64 - 1 do not fit the int64 of `arange`.
            return np.arange(part.start, part.stop, part.step).astype(np.uint64) + np.uint64(self.first)
        if np.ndim(index) == 0:
            return np.uint64(self.first + self._positions[index])
        positions = np.asarray(index)
        positions = np.flatnonzero(positions) if positions.dtype == np.bool_ else positions
        return positions.astype(np.uint64) + np.uint64(self.first)

    def stored(self) -> npt.NDArray[np.uint64]:
        """Return an array that determines the keys: the first key, and their number."""
        return np.array([self.first, len(self)], np.uint64)


class NumberKeys(_Numbers):
    """Keys that are numbers, kept in 32 bits if all fit: a column of 32 or 64 bits, which is read on first use."""

    def __init__(self, column: SlicedNumbers) -> None:
        self._column = column
        self._array: npt.NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, index: Any) -> Any:
        return self.stored()[index].astype(np.uint64)

    def stored(self) -> npt.NDArray[Any]:
        """Return the keys as an array of the precision in which they are kept."""
        if self._array is None:
            self._array = self._column[:]
        return self._array


Keys: TypeAlias = npt.NDArray[Any] | CountedKeys | NumberKeys
"""Keys of sequences: uint64, or text."""


def compact_keys(keys: npt.NDArray[np.uint64], *, are_ascending: bool) -> Keys:
    """Return keys that are numbers, at least one, in as few bytes as possible.

    If `are_ascending`, each key is larger than the key before it.
    """
    if are_ascending and int(keys[-1]) - int(keys[0]) == len(keys) - 1:
        return CountedKeys(int(keys[0]), len(keys))
    return NumberKeys(keys.astype(np.uint32) if keys.max() < 2**32 else keys)


def key_texts(keys: npt.NDArray[Any]) -> npt.NDArray[np.bytes_]:
    """Return keys as texts in UTF-8."""
    return keys if keys.dtype.kind == "S" else np.strings.encode(keys.astype(np.str_), "utf-8")


def common_keys(columns: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return each place whose key an earlier column has, too, and the place there. Places count through all columns.

    Example:
        >>> common_keys([np.array([1, 2, 2]), np.array([4]), np.array([5, 2])])
        (array([5]), array([2]))
    """
    keys = np.concatenate(columns or [np.empty(0)])
    column_of = np.repeat(np.arange(len(columns), dtype=np.uint32), [len(column) for column in columns])
    # Stable, so that of equal keys the column that comes first stays first.
    order = np.argsort(keys, kind="stable")
    is_again = (keys[order][1:] == keys[order][:-1]) & (column_of[order][1:] != column_of[order][:-1])
    return order[1:][is_again], order[:-1][is_again]


def joined_keys(columns: Sequence[Keys]) -> Keys:
    """Return the keys of several columns, one after the other, in as few bytes as possible.

    If only some columns are texts, all become texts.

    Example:
        >>> joined_keys([CountedKeys(0, 2), CountedKeys(2, 3)]).stored()
        array([0, 5], dtype=uint64)
    """
    # An empty column may have any type, which must not decide the type of all keys.
    filled = [column for column in columns if len(column)]
    counted = [column for column in filled if isinstance(column, CountedKeys)]
    count_on = all(column.first + len(column) == following.first for column, following in pairwise(counted))
    if filled and len(counted) == len(filled) and count_on:
        return CountedKeys(counted[0].first, sum(map(len, counted)))
    if any(column.dtype != np.uint64 for column in filled):
        texts = [np.asarray(column) for column in filled]
        are_alike = len({column.dtype.kind for column in texts}) == 1
        return np.concatenate(texts if are_alike else [key_texts(column) for column in texts])
    arrays = [column.stored() if isinstance(column, NumberKeys) else np.asarray(column) for column in filled]
    is_small = all(array.dtype == np.uint32 or int(array.max()) < 2**32 for array in arrays)
    return NumberKeys(_joined(arrays, np.uint32 if is_small else np.uint64))


def range_of_keys(keys: Keys) -> tuple[int, int]:
    """Return the smallest and the largest of keys that are numbers; there is at least one."""
    if isinstance(keys, CountedKeys):
        return keys.first, keys.first + len(keys) - 1
    array = stored_keys(keys)
    return int(array.min()), int(array.max())


def part_of_keys(keys: Keys, first: int, last: int) -> Keys:
    """Return some of the keys, without a copy."""
    if isinstance(keys, CountedKeys):
        return CountedKeys(keys.first + first, last - first)
    return NumberKeys(keys.stored()[first:last]) if isinstance(keys, NumberKeys) else keys[first:last]


def moved_keys(keys: Keys, first: int) -> Keys:
    """Return keys that are numbers, with `first` added to each. If one does not fit 64 bits, raise `ValueError`."""
    if isinstance(keys, CountedKeys):
        return CountedKeys(first + keys.first, len(keys))
    # The addition below would wrap.
    if len(keys) and (largest := range_of_keys(keys)[1] + first) >= 2**64:
        raise ValueError(f"the key {largest}; expected keys of 0 to 2^64 - 1")
    moved = np.asarray(keys) + np.uint64(first)
    return compact_keys(moved, are_ascending=bool(np.all(moved[1:] > moved[:-1]))) if len(moved) else moved


def joined_lengths(columns: Sequence[Lengths]) -> Lengths:
    """Return the lengths of several columns, one after the other, in as few bytes as possible.

    Example:
        >>> joined_lengths([same_lengths(2, 3), same_lengths(2, 1)]).strides
        (0,)
        >>> joined_lengths([same_lengths(2, 1), np.array([1, 3], np.uint8)])
        array([2, 1, 3], dtype=uint8)
    """
    filled = [column for column in columns if len(column)]
    # A column that keeps a single number yields a single number.
    largest = [int((column[:1] if are_all_the_same(column) else column).max()) for column in filled]
    if len(set(largest)) == 1 and all(map(are_all_the_same, filled)):
        return same_lengths(largest[0], sum(map(len, filled)))
    return _joined(filled, np.min_scalar_type(max(largest, default=0)))


def _joined(columns: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    # The empty array is for no columns at all. The cast is safe, since the callers derive the type from the values.
    return np.concatenate([np.empty(0, dtype), *columns], dtype=dtype, casting="unsafe")


def joined_and_freed(columns: list[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Join columns, and remove each from the list once it is copied, so that only one is in memory twice."""
    if len(columns) == 1:
        return columns.pop().astype(dtype, copy=False)
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


def stored_keys(keys: Keys) -> npt.NDArray[Any]:
    """Return an array that determines the keys."""
    return keys if isinstance(keys, np.ndarray) else keys.stored()


NamedFiles: TypeAlias = tuple[npt.NDArray[np.str_], npt.NDArray[np.int64]]
"""The files of some sequences: their names, and the index of each sequence's file among these names."""


def key_value(key: Any) -> int | str:
    """Return a key of a table as the number or the text that messages show.

    Example:
        >>> key_value(np.bytes_(b"u1")), key_value(np.uint64(7))
        ('u1', 7)
    """
    if isinstance(key, bytes):
        return key.decode(errors="replace")
    return key if isinstance(key, str) else int(key)


def key_text(key: Any) -> str:
    """Return a key of a table as text."""
    return str(key_value(key))


class FilesOfSequences(Protocol):
    """The files of a corpus that has several."""

    def of(self, sequences: npt.NDArray[np.int64]) -> NamedFiles: ...


class ListedFiles:
    """Files in any order: `files` has the index of each sequence's file in `paths`."""

    def __init__(self, paths: Sequence[str | bytes], files: npt.NDArray[np.integer[Any]]) -> None:
        self._paths, self._files = paths, files

    def of(self, sequences: npt.NDArray[np.int64]) -> NamedFiles:
        files, which = np.unique(self._files[sequences], return_inverse=True)
        return np.array([os.fsdecode(self._paths[file]) for file in files.tolist()], np.str_), which


class FileSpans:
    """Files whose sequences come one after the other.

    Args:
        starts: First sequence of each file and, last, the number of sequences.

    Example:
        >>> names, which = FileSpans(["a.ctf", "b.ctf"], np.array([0, 2, 5])).of(np.array([1, 4, 0]))
        >>> names[which].tolist()
        ['a.ctf', 'b.ctf', 'a.ctf']
    """

    def __init__(self, paths: Sequence[str], starts: npt.NDArray[np.int64]) -> None:
        self._paths, self._starts = paths, starts

    def of(self, sequences: npt.NDArray[np.int64]) -> NamedFiles:
        return ListedFiles(self._paths, span_at(self._starts, sequences)).of(np.arange(len(sequences)))


@dataclasses.dataclass(frozen=True, eq=False)
class SequenceTable:
    """The sequences of a corpus in the order of its chunks."""

    keys: Keys  # key of each sequence: uint64, or text
    lengths: Lengths  # number of samples that each sequence counts for: uint32, or fewer bits if all lengths fit
    chunk_starts: npt.NDArray[np.int64]  # first sequence of each chunk and, last, the number of sequences, int64
    # The deserializer's options that the table depends on, for the messages of checkpoints; JSON-able.
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict, kw_only=True)
    files: FilesOfSequences | None = dataclasses.field(default=None, kw_only=True)  # the files, if there are several

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

    def content(self) -> list[npt.NDArray[Any]]:
        """Return arrays that determine the table, for checksums."""
        lengths = self.lengths
        if are_all_the_same(lengths) and len(lengths):  # a single length and their number determine all
            lengths = np.array([lengths[0], len(lengths)], np.uint64)
        return [stored_keys(self.keys), lengths, self.chunk_starts]


NO_SEQUENCES = SequenceTable(np.empty(0, np.uint64), np.empty(0, np.uint8), np.zeros(1, np.int64))
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

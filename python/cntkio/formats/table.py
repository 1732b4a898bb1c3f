"""Tables of sequences and chunks, and the columns that they consist of: keys, and lengths in as few bytes as possible.

A column of lengths is a NumPy array of 8, 16 or 32 bits; if all lengths are the same, its stride is 0, and it takes no
memory.

Numbers keep their values: whole numbers are never rounded silently. float32 keeps all whole numbers up to 2^24, float64
up to 2^53. Other numbers become the nearest number of the precision.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from cntkio.errors import CorpusError
from cntkio.formats.keys import Keys
from cntkio.storage.spans import span_at

Lengths: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]


class Column(NamedTuple):
    """The samples of one stream, sequence after sequence, as `Chunk.from_columns` takes them."""

    sequence_offsets: npt.NDArray[np.uint32]  # sample at which each sequence begins and, last, the number of samples
    values: npt.NDArray[Any]
    dim: int  # values of a sample, or the bound of its indices
    # The entry at which each sample begins and, last, the number of entries; and the index of each entry. None:
    # the stream is dense.
    sparse: tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32]] | None


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

    keys: Keys  # key of each sequence
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
        return [self.keys.stored(), lengths, self.chunk_starts]


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

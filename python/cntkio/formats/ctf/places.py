"""Places of sequences in a text, in as few bytes as they take."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio.formats.index_cache import DamagedCacheError, Remaking, StoredArrays, StoredColumn
from cntkio.formats.table import SlicedNumbers, joined_and_freed, span_at


class ChunkPlaces(NamedTuple):
    """Places of a chunk's sequences.

    Attributes:
        begin: First byte of the first sequence.
        end: The byte after the last sequence.
        starts: First byte of each sequence, counted from `begin`; uint32 or uint64.
        sizes: Bytes of each sequence; None: each ends where the next sequence starts.
    """

    begin: int
    end: int
    starts: npt.NDArray[Any]
    sizes: npt.NDArray[np.uint32] | None

    def sequence(self, number: int) -> tuple[int, int]:
        """Return the first byte of the chunk's sequence with this number, and the byte after it."""
        start = int(self.starts[number])
        if self.sizes is not None:
            return self.begin + start, self.begin + start + int(self.sizes[number])
        is_last = number + 1 == len(self.starts)
        return self.begin + start, self.end if is_last else self.begin + int(self.starts[number + 1])

    def only(self, sequences: npt.NDArray[np.uint32]) -> ChunkPlaces:
        """Return the places of some of the chunk's sequences: their indices in the chunk, ascending."""
        starts = self.starts[sequences]
        if self.sizes is not None:
            sizes = self.sizes[sequences]
        else:
            last = len(self.starts) - 1
            ends = self.starts[np.minimum(sequences + np.uint32(1), last)]
            if len(sequences) and sequences[-1] == last:
                ends[-1] = self.end - self.begin
            sizes = (ends - starts).astype(np.uint32)
        if not len(starts):
            return ChunkPlaces(self.begin, self.begin, starts, sizes)
        first, end = int(starts[0]), int((starts.astype(np.int64) + sizes).max())
        return ChunkPlaces(self.begin + first, self.begin + end, starts - starts[0], sizes)

    def ranges(self, least_gap: int) -> list[tuple[int, int]]:
        """Return ranges of bytes, counted from `begin`, that contain all sequences but no gap of `least_gap` bytes.

        Call it only on the result of `only`.
        """
        assert self.sizes is not None
        if not len(self.starts):
            return []
        starts = self.starts.astype(np.int64)
        ends = np.maximum.accumulate(starts + self.sizes)
        cuts = np.flatnonzero(starts[1:] - ends[:-1] >= least_gap)
        firsts, lasts = np.append(0, cuts + 1), np.append(cuts, len(starts) - 1)
        return list(zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True))

    @property
    def num_bytes(self) -> int:
        """Bytes of the sequences."""
        return max(self.end - self.begin, 0) if self.sizes is None else int(self.sizes.sum(dtype=np.int64))


class Block(NamedTuple):
    """Some sequences of a text, one after the other.

    Attributes:
        begin: Offset from which `starts` count.
        starts: First byte of each sequence.
        sizes: Bytes of each sequence; None: each ends where the next starts. All blocks have sizes, or none.
    """

    begin: int
    starts: npt.NDArray[np.uint32]
    sizes: npt.NDArray[np.uint32] | None


class Places:
    """Places of all sequences. The columns may be arrays of an index cache, which are read chunk by chunk.

    Args:
        begins: First byte of each chunk.
        ends: The byte after each chunk.
        starts: First byte of each sequence, counted from the beginning of its chunk.
        sizes: Bytes of each sequence; None: each ends where the next sequence of its chunk starts.
    """

    def __init__(
        self,
        begins: npt.NDArray[np.uint64],
        ends: npt.NDArray[np.uint64],
        starts: SlicedNumbers,
        sizes: SlicedNumbers | None,
    ) -> None:
        self._begins, self._ends, self._starts, self._sizes = begins, ends, starts, sizes

    @classmethod
    def of(cls, blocks: list[Block], ends: list[int], limit: int) -> tuple[Places, npt.NDArray[np.int64]]:
        """Group sequences into chunks of at most `limit` bytes, and make their places.

        Args:
            blocks: The sequences, block by block. The list is emptied.
            ends: The byte after the last sequence of each block.
            limit: Bytes of a chunk.

        Returns:
            The places; and the first sequence of each chunk and, last, the number of sequences.
        """
        dtype = np.uint32 if min(limit, ends[-1]) < 2**32 else np.uint64
        sizes = None if blocks[0].sizes is None else np.concatenate([block.sizes for block in blocks])
        starts: list[npt.NDArray[Any]] = []
        firsts: list[npt.NDArray[np.int64]] = []
        begins: list[npt.NDArray[np.uint64]] = []
        chunk_ends: list[npt.NDArray[np.uint64]] = []
        num_sequences, last = 0, None
        blocks.reverse()
        for end in ends:
            block = blocks.pop()
            starts.append(block.starts.astype(dtype, copy=False))
            of_block, begins_of_block, ends_of_block, last = _core.ctf_place(
                block.begin, starts[-1], block.sizes, end, limit, last
            )
            firsts.append(of_block + num_sequences)
            begins.append(begins_of_block)
            chunk_ends.append(ends_of_block)
            num_sequences += len(block.starts)
        firsts.append(np.array([num_sequences]))
        chunk_ends.append(np.array([] if last is None else [last[1]], np.uint64))
        places = cls(np.concatenate(begins), np.concatenate(chunk_ends), joined_and_freed(starts, dtype), sizes)
        return places, np.concatenate(firsts)

    @classmethod
    def from_cache(cls, arrays: StoredArrays, remake: Remaking) -> Places:
        """Make the places from an index cache.

        Raises:
            DamagedCacheError: The arrays do not belong together.
        """
        sizes = StoredColumn(arrays, "sizes", remake) if "sizes" in arrays else None
        places = cls(arrays.read("begins"), arrays.read("ends"), StoredColumn(arrays, "starts", remake), sizes)
        if len(places._begins) != len(places._ends) or (sizes is not None and len(sizes) != len(places)):
            raise DamagedCacheError("its arrays do not belong together")
        return places

    def stored(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays that an index cache keeps."""
        arrays = {"begins": self._begins, "ends": self._ends, "starts": self._starts[:]}
        return arrays if self._sizes is None else {**arrays, "sizes": self._sizes[:]}

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return len(self._begins)

    def first_bytes(
        self, sequences: npt.NDArray[np.int64], chunk_starts: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return the first byte of each of these sequences in the file."""
        order = np.argsort(sequences)
        ascending = sequences[order]
        chunk_ids = span_at(chunk_starts, ascending)
        found = np.empty(len(sequences), np.int64)
        bounds = np.flatnonzero(np.diff(chunk_ids, prepend=-1, append=-1)).tolist()
        for begin, end in itertools.pairwise(bounds):
            mine = ascending[begin:end]
            starts = self._starts[int(mine[0]) : int(mine[-1]) + 1][mine - mine[0]]
            found[order[begin:end]] = int(self._begins[chunk_ids[begin]]) + starts.astype(np.int64)
        return found

    def of_chunk(self, chunk_id: int, first: int, last: int) -> ChunkPlaces:
        """Return the places of a chunk, which has the sequences from `first` up to `last`."""
        sizes = None if self._sizes is None else self._sizes[first:last]
        return ChunkPlaces(int(self._begins[chunk_id]), int(self._ends[chunk_id]), self._starts[first:last], sizes)

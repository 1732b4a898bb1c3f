"""`Pieces`: the parts of the chunks of joined corpora that a rank loads if each rank loads only its own sequences.

::

    a part of a chunk of the table    the sequences that this rank delivers      t2   t4   t7   t8
    their partners in a corpus        in any order, in any of its chunks         s14  s3   s1   s15
    pieces of the corpus's chunks     loaded in place of whole chunks            chunk 0: s1 s3     chunk 2: s14 s15

A piece belongs to one part of the table. So each sequence is loaded once per sweep, however the chunks of the corpora
overlap.

Invariant: pieces follow from the parts and the partners. This module keeps them only to save time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio.formats.contract import Corpus
from cntkio.source.arrangement import Arrangement
from cntkio.timeline import ChunkPart, ChunkRefs, PartsOfChunks

_NUM_LOOKED_AT = 8


class _OfPart(NamedTuple):
    """The pieces of a corpus that a part of the table needs.

    Attributes:
        chunk_ids: The chunk of each piece, ascending.
        bounds: First sequence of each piece and, last, the number of sequences of all pieces, int64.
        indices: The sequences of all pieces: their indices in their chunks, which ascend within a piece, uint32.
        places: For each sequence of the part the position of its partner in `indices`, uint32; None: all partners are
            in the order of the part.
    """

    chunk_ids: list[int]
    bounds: npt.NDArray[np.int64]
    indices: npt.NDArray[np.uint32]
    places: npt.NDArray[np.uint32] | None


class Pieces:
    """The pieces of one corpus. Ids of pieces take the place of ids of chunks wherever the corpus's chunks are named.

    Args:
        parts: The parts of the table's chunks.
        table_starts: First sequence of each chunk of the table.
        partners: The corpus's sequence for each of the table.
        chunk_starts: First sequence of each chunk of the corpus and, last, the number of sequences.
    """

    def __init__(
        self,
        parts: PartsOfChunks,
        table_starts: npt.NDArray[np.int64],
        partners: npt.NDArray[np.uint32],
        chunk_starts: npt.NDArray[np.int64],
    ) -> None:
        self._parts = parts
        self._table_starts, self._partners, self._chunk_starts = table_starts, partners, chunk_starts
        self._known: dict[int, _OfPart] = {}

    def ids(self, part_id: int) -> list[int]:
        """Return the pieces that a part of the table needs."""
        first = part_id * len(self._chunk_starts)
        return [first + chunk_id for chunk_id in self._of(part_id).chunk_ids]

    def part(self, chunk_id: int) -> ChunkPart:
        """Return the piece with an id that `ids` returned."""
        part_id, own_id = divmod(chunk_id, len(self._chunk_starts))
        pieces = self._of(part_id)
        at = pieces.chunk_ids.index(own_id)
        return ChunkPart(own_id, pieces.indices[pieces.bounds[at] : pieces.bounds[at + 1]])

    def refs(self, refs: ChunkRefs) -> ChunkRefs:
        """Return references to the partners of sequences in the pieces, from references to the parts of the table."""
        of_parts = [self._of(part_id) for part_id in refs.chunk_ids]
        indices = refs.indices_in_chunk.astype(np.int64)
        if any(pieces.places is not None for pieces in of_parts):
            places = [
                np.arange(len(pieces.indices), dtype=np.uint32) if pieces.places is None else pieces.places
                for pieces in of_parts
            ]
            starts = np.cumsum([0, *map(len, places)])
            indices = np.concatenate(places)[starts[refs.chunk_indices] + indices].astype(np.int64)
        ends = np.cumsum([0, *(pieces.bounds[-1] for pieces in of_parts)])
        bounds = [
            np.zeros(1, np.int64),
            *(pieces.bounds[1:] + end for pieces, end in zip(of_parts, ends, strict=False)),
        ]
        found = ChunkRefs(*_core.find_chunks(ends[refs.chunk_indices] + indices, None, np.concatenate(bounds)))
        ids = [piece_id for part_id in refs.chunk_ids for piece_id in self.ids(part_id)]
        return found._replace(chunk_ids=[ids[number] for number in found.chunk_ids])

    def keep_only(self, part_ids: Collection[int]) -> None:
        """Forget the pieces of all other parts."""
        self._known = {part_id: pieces for part_id, pieces in self._known.items() if part_id in part_ids}

    def _of(self, part_id: int) -> _OfPart:
        pieces = self._known.get(part_id)
        if pieces is None:
            pieces = self._known[part_id] = self._divided(self._parts.part(part_id))
        return pieces

    def _divided(self, part: ChunkPart) -> _OfPart:
        """Divide the partners of a part's sequences among the chunks of the corpus."""
        partners = self._partners[self._table_starts[part.chunk_id] + part.sequences.astype(np.int64)]
        places = None
        if not (partners[1:] > partners[:-1]).all():
            partners, inverse = np.unique(partners, return_inverse=True)
            places = inverse.astype(np.uint32)
        starts = self._chunk_starts
        first, last = np.searchsorted(starts, partners[[0, -1]].astype(np.int64), side="right") - 1
        bounds = np.searchsorted(partners, starts[first : last + 2])
        sizes = np.diff(bounds)
        filled = np.flatnonzero(sizes)
        chunk_ids = first + filled
        indices = (partners - np.repeat(starts[chunk_ids], sizes[filled])).astype(np.uint32)
        return _OfPart(chunk_ids.tolist(), np.append(0, np.cumsum(sizes[filled])), indices, places)


def pieces_of_corpora(parts: PartsOfChunks, corpora: Sequence[Corpus], arrangement: Arrangement) -> list[Pieces | None]:
    """Return the pieces of each joined corpus; None for a corpus whose chunks are loaded as a whole.

    Whole chunks are loaded of corpora that cannot load parts of chunks, and of corpora in another order than the first:
    a chunk of the table has sequences in many of their chunks, and loading a piece of each again and again would take
    longer.
    """
    assert arrangement.partners is not None
    num_chunks = arrangement.table.num_chunks
    looked_at = np.unique(np.linspace(0, num_chunks - 1, _NUM_LOOKED_AT).astype(np.int64)).tolist()
    counts = [[len(chunk_ids) for chunk_ids in arrangement.chunks_of(chunk)] for chunk in looked_at]
    most = [2 * (1 + table.num_chunks / num_chunks) for table in arrangement.tables]
    return [
        Pieces(parts, arrangement.table.chunk_starts, partners, table.chunk_starts)
        if corpus.load_part is not None and mean <= most_of_corpus
        else None
        for corpus, partners, table, mean, most_of_corpus in zip(
            corpora, arrangement.partners, arrangement.tables, np.mean(counts, axis=0), most, strict=True
        )
    ]

"""`ChunkStore`: the chunks of all corpora of a source, loaded before they are needed and dropped afterwards.

::

    chunk of the table     needed now (the window)    needed next                      later
    in memory              yes                        as far as there is room          no
    chunks of corpora      one chunk of the table needs the chunks of its partners: one or several of each corpus

A plan may name parts of chunks in place of chunks. Then the store loads these parts of the only corpus, and pieces of
the chunks of joined corpora (`cntkio.source.pieces`).

Invariant: the store changes time and memory only. The timeline decides which chunks are needed, and in which order.
Which of their errors count, and when, does not depend on the chunks in memory.

Only the selecting thread uses the store.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio.formats.contract import Corpus
from cntkio.source.arrangement import Arrangement
from cntkio.source.loading import CorpusChunks, Loaders
from cntkio.source.pieces import Pieces, pieces_of_corpora
from cntkio.timeline import ChunkRefs, PartsOfChunks, Plan

_LEAST_READ_AHEAD = 32 << 20
_LEAST_CHUNKS_AHEAD, _MOST_CHUNKS_AHEAD = 64, 4096
_NUM_RECENT = 4  # recent chunks predict the size of the next chunks


class Taken(NamedTuple):
    """Chunks taken into use for the minibatches of one hand-over.

    Attributes:
        chunks: For each corpus its chunks, in the order of first use; after an error, up to the last that was loaded.
        num_sound: Number of minibatches that have all their chunks.
        error: The error of a chunk of the next minibatch; None if all are sound.
    """

    chunks: list[list[_core.Chunk]]
    num_sound: int
    error: BaseException | None


class ChunkStore:
    """The chunks of all corpora of a source.

    Args:
        corpora: The corpora.
        arrangement: Knows which chunks of the corpora each chunk of the table needs.
        window_stays_in_use: Whether all chunks of the window stay in use, because sequences are shuffled within it.
        keeps_all: Whether chunks stay in memory, and in use, once they have been used.
        loads_window: Whether the whole window is loaded at once, so that an error in any of its chunks is raised.
        read_ahead_in_bytes: Approximate bytes that may be loaded beyond the window.
    """

    def __init__(
        self,
        corpora: Sequence[Corpus],
        arrangement: Arrangement,
        *,
        window_stays_in_use: bool,
        keeps_all: bool,
        loads_window: bool,
        read_ahead_in_bytes: int,
    ) -> None:
        self._chunks = [
            CorpusChunks(corpus, keeps_all=keeps_all, window_stays_in_use=window_stays_in_use) for corpus in corpora
        ]
        self._arrangement = arrangement
        self._loads_window = loads_window
        self._read_ahead_in_bytes = read_ahead_in_bytes
        self._parts: PartsOfChunks | None = None
        self._pieces: list[Pieces | None] = [None] * len(corpora)
        self._begin()

    def _begin(self) -> None:
        self._loaders = Loaders(max(chunks.corpus.loads_at_once for chunks in self._chunks))
        self.planned: int | None = None  # version of the timeline's plan
        self._partners: dict[int, list[list[int]]] = {}
        # Fresh memory costs as much as reading, and a plan takes time for each chunk: read further ahead only after a
        # chunk came late.
        self._room_ahead = _LEAST_READ_AHEAD
        self._num_ahead = _LEAST_CHUNKS_AHEAD
        self._num_waits = 0
        for chunks in self._chunks:
            chunks.set_window(set(), set(), is_first=True)

    def begin_in_child(self) -> None:
        """In a fork of the process, forget what the parent's threads were loading: they do not exist here."""
        for chunks in self._chunks:
            chunks.loading.clear()
            chunks.num_waits = 0
        self._begin()

    def close(self) -> None:
        """Cancel all loads that have not begun, and end the worker threads."""
        for chunks in self._chunks:
            chunks.keep_only(set())
        self._loaders.close()

    def in_memory(self, corpus_index: int) -> list[int]:
        """Return the chunks of a corpus that are in memory."""
        return list(self._chunks[corpus_index].in_memory)

    def lengths_in_chunk(self, chunk_id: int) -> npt.NDArray[np.uint32]:
        """Return the lengths of a chunk's sequences, for a timeline that learns them from the only corpus's chunks."""
        lengths: npt.NDArray[np.uint32] = self._chunks[0].get(chunk_id).findings
        return lengths

    def pieces(self, corpus_index: int) -> Pieces | None:
        """Return the pieces that are loaded in place of the chunks of a joined corpus; None: chunks are loaded."""
        return self._pieces[corpus_index]

    # ------------------------------------------------------------------------------------------- loading ahead

    def plan(self, needed: Plan, used: Sequence[int], ahead: Iterator[int]) -> None:
        """Drop the chunks that are no longer needed, and start to load the chunks that will be needed.

        All arguments name chunks of the source's table.

        Args:
            needed: Chunks from which the next sequences can come, in the order of need.
            used: Chunks that the current selection uses.
            ahead: Chunks that are needed afterwards, in the order of need; read until the room is full.
        """
        is_first, self.planned = self.planned is None, needed.version
        self._set_parts(needed.parts)
        window = list(dict.fromkeys([*used, *needed.chunks]))
        wanted = list(dict.fromkeys([*window, *self._that_fit(ahead)]))
        if self._arrangement.partners is None:
            (chunks,) = self._chunks
            chunks.set_window(set(window), set(needed.chunks), is_first=is_first)
            chunks.keep_only(set(wanted))
            self._loaders.want((chunks, chunk_id) for chunk_id in wanted)
            return
        self._partners = {table_chunk: self._chunks_of(table_chunk) for table_chunk in wanted}
        for pieces in self._pieces:
            if pieces is not None:
                pieces.keep_only(self._partners)
        wishes = dict.fromkeys(
            (chunks, chunk_id)
            for of_corpora in self._partners.values()
            for chunks, chunk_ids in zip(self._chunks, of_corpora, strict=True)
            for chunk_id in chunk_ids
        )
        for corpus_index, chunks in enumerate(self._chunks):
            own = self._partners_in(corpus_index, window), self._partners_in(corpus_index, needed.chunks)
            chunks.set_window(*own, is_first=is_first)
            chunks.keep_only({chunk_id for owner, chunk_id in wishes if owner is chunks})
        self._loaders.want(wishes)

    def stand(self, needed: Plan) -> None:
        """Note which chunks are needed before the next minibatches, after the source went back."""
        if needed.parts is not self._parts:
            return  # other parts: what is in use will be forgotten
        for corpus_index, chunks in enumerate(self._chunks):
            is_joined = self._arrangement.partners is not None
            own = self._partners_in(corpus_index, needed.chunks) if is_joined else set(needed.chunks)
            chunks.set_window(chunks.window, own, is_first=True)

    def _partners_in(self, corpus_index: int, table_chunks: Iterable[int]) -> set[int]:
        return {chunk_id for chunk in table_chunks for chunk_id in self._chunks_of(chunk)[corpus_index]}

    def _set_parts(self, parts: PartsOfChunks | None) -> None:
        """Let ids of the table's chunks mean parts of chunks, or whole chunks (None)."""
        if parts is self._parts:
            return
        self._parts, self._partners = parts, {}
        if self._arrangement.partners is None:
            self._chunks[0].set_parts(parts)
            return
        corpora = [chunks.corpus for chunks in self._chunks]
        self._pieces = [None] * len(corpora) if parts is None else pieces_of_corpora(parts, corpora, self._arrangement)
        for chunks, pieces in zip(self._chunks, self._pieces, strict=True):
            chunks.set_parts(pieces)

    def _that_fit(self, ahead: Iterator[int]) -> Iterator[int]:
        """Yield the chunks that are needed next, until the room for them is full."""
        num_waits = sum(chunks.num_waits for chunks in self._chunks)
        if num_waits > self._num_waits:
            self._room_ahead *= 2
            self._num_ahead = min(2 * self._num_ahead, _MOST_CHUNKS_AHEAD)
        self._num_waits = num_waits
        room, room_to_load = self._read_ahead_in_bytes, self._room_ahead
        size = self._expected_bytes()
        for table_chunk in itertools.islice(ahead, self._num_ahead):
            room -= size
            if not self._is_in_memory(table_chunk):  # a chunk that was parsed with the index is in memory already
                room_to_load -= size
            if min(room, room_to_load) < 0:
                return
            yield table_chunk

    def _is_in_memory(self, table_chunk: int) -> bool:
        if self._arrangement.partners is None:
            return table_chunk in self._chunks[0].in_memory
        return all(
            chunk_id in chunks.in_memory
            for chunks, chunk_ids in zip(self._chunks, self._chunks_of(table_chunk), strict=True)
            for chunk_id in chunk_ids
        )

    def _expected_bytes(self) -> int:
        """Return the expected bytes of memory for a chunk of the table, estimated from recent chunks."""
        sizes = [
            loaded.chunk.num_bytes
            for chunks in self._chunks
            for loaded in list(chunks.in_memory.values())[-_NUM_RECENT:]
        ]
        return max(1, sum(sizes) // len(sizes) * len(self._chunks)) if sizes else self._read_ahead_in_bytes // 4

    def _chunks_of(self, table_chunk: int) -> list[list[int]]:
        """Return for each corpus the chunks, or pieces of chunks, that hold sequences of a chunk of the table."""
        chunk_ids = self._partners.get(table_chunk)
        if chunk_ids is None and self._parts is not None:
            whole_chunk = self._parts.part(table_chunk).chunk_id
            chunk_ids = [
                self._arrangement.chunks_of(whole_chunk)[corpus_index] if pieces is None else pieces.ids(table_chunk)
                for corpus_index, pieces in enumerate(self._pieces)
            ]
        elif chunk_ids is None:
            chunk_ids = self._arrangement.chunks_of(table_chunk)
        self._partners[table_chunk] = chunk_ids
        return chunk_ids

    # ------------------------------------------------------------------------------------------------- in use

    def take(self, refs: Sequence[ChunkRefs], bounds: Sequence[int]) -> Taken:
        """Take chunks into use in the order in which the minibatches need them.

        Args:
            refs: For each corpus, the chunks of the sequences of all minibatches.
            bounds: First sequence of each minibatch and, last, the number of sequences.
        """
        are_together = not self._loads_window and all(
            chunks.stay_in_use(own_refs.chunk_ids) for chunks, own_refs in zip(self._chunks, refs, strict=True)
        )
        if len(bounds) > 2:
            for chunks in self._chunks:
                chunks.release_passed()
        taken = self._take_together(refs, bounds) if are_together else self._take_in_turn(refs, bounds)
        for chunks in self._chunks:
            chunks.end_taking()
        return taken

    def _take_together(self, refs: Sequence[ChunkRefs], bounds: Sequence[int]) -> Taken:
        """Take chunks that stay in use: only the few chunks that are not in use yet matter."""
        new = sorted(
            (bisect.bisect_right(bounds, first) - 1, corpus_index, first, chunk_id)
            for corpus_index, (chunks, own_refs) in enumerate(zip(self._chunks, refs, strict=True))
            for first, chunk_id in chunks.to_be_used(own_refs)
        )
        num_sound, error = len(bounds) - 1, None
        for minibatch, corpus_index, _, chunk_id in new:
            try:
                self._chunks[corpus_index].use(chunk_id)
            except BaseException as raised:
                num_sound, error = minibatch, raised
                break
        sound = [own_refs.chunk_ids for own_refs in refs]
        if error is not None:
            # Later chunks were not loaded, and no request refers to them.
            end = bounds[num_sound]
            sound = [
                chunk_ids[: bisect.bisect_left(own.firsts, end)] for chunk_ids, own in zip(sound, refs, strict=True)
            ]
        if error is None or num_sound == len(bounds) - 2:
            for chunks, own in zip(self._chunks, refs, strict=True):
                last = own.chunk_ids if len(bounds) == 2 else own.chunks_of(bounds[-2], bounds[-1])
                chunks.release_others(last, is_last=True)
        return Taken(
            [
                [chunks.in_memory[chunk_id].chunk for chunk_id in chunk_ids]
                for chunks, chunk_ids in zip(self._chunks, sound, strict=True)
            ],
            num_sound,
            error,
        )

    def _take_in_turn(self, refs: Sequence[ChunkRefs], bounds: Sequence[int]) -> Taken:
        """Take the chunks minibatch by minibatch, and release the chunks that the next minibatch does not need."""
        taken: list[dict[int, _core.Chunk]] = [{} for _ in refs]
        error: BaseException | None = None
        num_sound = 0
        for first, last in itertools.pairwise(bounds):
            is_last = num_sound == len(bounds) - 2
            needed = [own_refs.chunks_of(first, last) for own_refs in refs]
            try:
                for chunks, chunk_ids, own_chunks in zip(self._chunks, needed, taken, strict=True):
                    for chunk_id in chunk_ids:
                        own_chunks[chunk_id] = chunks.use(chunk_id).chunk
                    if self._loads_window:
                        for chunk_id in chunks.window:
                            chunks.get(chunk_id)
            except BaseException as raised:
                error = raised
            for chunks, chunk_ids in zip(self._chunks, needed, strict=True):
                chunks.release_others(chunk_ids, is_last=is_last)
            if error is not None:
                break
            num_sound += 1
        # After an error, later chunks were not loaded, and no request refers to them.
        return Taken(
            [
                [own_chunks[chunk_id] for chunk_id in own_refs.chunk_ids if chunk_id in own_chunks]
                for own_chunks, own_refs in zip(taken, refs, strict=True)
            ],
            num_sound,
            error,
        )

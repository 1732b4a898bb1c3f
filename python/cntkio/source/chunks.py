"""`ChunkStore`: the chunks of all corpora of a source, loaded before they are needed and dropped afterwards.

::

    chunk of the table     needed now (the window)    needed next                      later
    in memory              yes                        as far as there is room          no
    chunks of corpora      one chunk of the table needs the chunks of its partners: one or several of each corpus

A plan may name parts of chunks in place of chunks. Then the store loads these parts of the only corpus, and pieces of
the chunks of joined corpora.

Invariant: the store changes time and memory only. The timeline decides which chunks are needed, and in which order.
Which of their errors count, and when, does not depend on the chunks in memory, nor on minibatches that are discarded.

Only the selecting thread uses the store.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._threads import Job, Workers
from cntkio.formats.contract import Corpus, Loaded
from cntkio.source.arrangement import Arrangement
from cntkio.source.pipeline import Account, Accounts, PaidSequences
from cntkio.timeline import ChunkPart, ChunkRefs, PartsOfChunks, Plan

# --------------------------------------------------------------------------------------------------------------
# `PiecesOfCorpus`: the parts of the chunks of joined corpora that a rank loads if it loads only its own sequences.
#
# ::
#
#     a part of a chunk of the table    the sequences that this rank delivers      t2   t4   t7   t8
#     their partners in a corpus        in any order, in any of its chunks         s14  s3   s1   s15
#     pieces of the corpus's chunks     loaded in place of whole chunks            chunk 0: s1 s3     chunk 2: s14 s15
#
# A piece belongs to one part of the table. So each sequence is loaded once per sweep, however the chunks of the corpora
# overlap.
#
# Invariant: pieces follow from the parts and the partners. This module keeps them only to save time.

_NUM_LOOKED_AT = 8


class _OfPart(NamedTuple):
    """The pieces of a corpus that a part of the table needs."""

    chunk_ids: list[int]  # the chunk of each piece, ascending
    # First sequence of each piece and, last, the number of sequences of all pieces, int64.
    bounds: npt.NDArray[np.int64]
    # The sequences of all pieces: their indices in their chunks, which ascend within a piece, uint32.
    indices: npt.NDArray[np.uint32]
    # For each sequence of the part the position of its partner in `indices`, uint32; None: all partners are in
    # the order of the part.
    places: npt.NDArray[np.uint32] | None


class PiecesOfCorpus:
    """The pieces of one corpus. Their ids take the place of ids of chunks wherever the corpus's chunks are named."""

    def __init__(self, parts: PartsOfChunks, arrangement: Arrangement, corpus_index: int) -> None:
        assert arrangement.partners is not None
        self._parts, self._table_starts = parts, arrangement.table.chunk_starts
        self._partners = arrangement.partners[corpus_index]
        self._chunk_starts = arrangement.tables[corpus_index].chunk_starts
        self._known: dict[int, _OfPart] = {}

    def ids(self, part_id: int) -> list[int]:
        """Return the pieces that a part of the table needs."""
        # There is one start more than chunks, so the numbers are unique.
        first = part_id * len(self._chunk_starts)
        return [first + chunk_id for chunk_id in self._of(part_id).chunk_ids]

    def part(self, chunk_id: int) -> ChunkPart:
        """Return the piece with an id that `ids` returned."""
        part_id, own_id = divmod(chunk_id, len(self._chunk_starts))
        pieces = self._of(part_id)
        at = pieces.chunk_ids.index(own_id)
        sweep = part_id // (len(self._table_starts) - 1)
        return ChunkPart(own_id, pieces.indices[pieces.bounds[at] : pieces.bounds[at + 1]], sweep)

    def refs(self, refs: ChunkRefs) -> ChunkRefs:
        """Return references to the partners of sequences in the pieces, from references to the parts of the table."""
        of_parts = [self._of(part_id) for part_id in refs.chunk_ids]
        indices = refs.indices_in_chunk.astype(np.int64)
        # Otherwise the index in a part is the index in its pieces as well, as in corpora of one order.
        if any(pieces.places is not None for pieces in of_parts):
            order = np.arange(max(len(own.indices) for own in of_parts), dtype=np.uint32)
            places = [order[: len(own.indices)] if own.places is None else own.places for own in of_parts]
            starts = np.cumsum([0, *map(len, places)])
            indices = np.concatenate(places)[starts[refs.chunk_indices] + indices].astype(np.int64)
        ends = np.cumsum([0, *(pieces.bounds[-1] for pieces in of_parts)])
        bounds = [np.zeros(1, np.int64), *(own.bounds[1:] + end for own, end in zip(of_parts, ends, strict=False))]
        found = ChunkRefs.found(_core.find_chunks(ends[refs.chunk_indices] + indices, None, np.concatenate(bounds)))
        ids = [piece_id for part_id in refs.chunk_ids for piece_id in self.ids(part_id)]
        return found._replace(chunk_ids=[ids[number] for number in found.chunk_ids])

    def keep_only(self, part_ids: Collection[int]) -> None:
        """Forget the pieces of all other parts."""
        self._known = {part_id: pieces for part_id, pieces in self._known.items() if part_id in part_ids}

    def _of(self, part_id: int) -> _OfPart:
        """Divide the partners of a part's sequences among the chunks of the corpus."""
        if part_id in self._known:
            return self._known[part_id]
        part = self._parts.part(part_id)
        partners = self._partners[self._table_starts[part.chunk_id] + part.sequences.astype(np.int64)]
        places = None
        # A key that the first corpus repeats has one partner, which is loaded once: equal partners do not ascend.
        if not (partners[1:] > partners[:-1]).all():
            partners, inverse = np.unique(partners, return_inverse=True)
            places = inverse.astype(np.uint32)
        starts = self._chunk_starts
        # A part has at least one sequence, because a timeline names no empty parts.
        first, last = np.searchsorted(starts, partners[[0, -1]].astype(np.int64), side="right") - 1
        bounds = np.searchsorted(partners, starts[first : last + 2])
        sizes = np.diff(bounds)
        filled = np.flatnonzero(sizes)
        chunk_ids = first + filled
        indices = (partners - np.repeat(starts[chunk_ids], sizes[filled])).astype(np.uint32)
        pieces = _OfPart(chunk_ids.tolist(), np.append(0, np.cumsum(sizes[filled])), indices, places)
        self._known[part_id] = pieces
        return pieces


def pieces_of_corpora(
    parts: PartsOfChunks, corpora: Sequence[Corpus], arrangement: Arrangement
) -> list[PiecesOfCorpus | None]:
    """Return the pieces of each joined corpus; None for a corpus whose chunks are loaded as a whole.

    These are corpora that cannot load parts of chunks, and corpora in another order than the first: a chunk of the
    table has sequences in many of their chunks, and loading a piece of each again and again would take longer.
    """
    num_chunks = arrangement.table.num_chunks
    looked_at = np.unique(np.linspace(0, num_chunks - 1, _NUM_LOOKED_AT).astype(np.int64)).tolist()
    counts = [[len(chunk_ids) for chunk_ids in arrangement.chunks_of(chunk)] for chunk in looked_at]
    # In the same order, a chunk of the table spans about this ratio of chunks and one more; allow twice as many.
    most = [2 * (1 + table.num_chunks / num_chunks) for table in arrangement.tables]
    have_few = np.mean(counts, axis=0) <= most
    return [
        PiecesOfCorpus(parts, arrangement, corpus_index) if corpus.index.loads_parts and has_few else None
        for corpus_index, (corpus, has_few) in enumerate(zip(corpora, have_few, strict=True))
    ]


class ChunksInMemory:
    """The chunks of one corpus that are in memory, being loaded, or in use.

    The errors of a chunk count when the chunk is first used, not when it happens to be loaded: so neither memory nor
    read-ahead changes which error exceeds the budget. A chunk stays in use as long as each minibatch, or the window
    after it, needs the chunk; the errors of a chunk that is used again count again. A refused chunk is not in use, so
    each minibatch that needs it raises its error. If the minibatches that used a chunk are discarded before they are
    delivered, `go_back` takes back what they cost. After another deal, parts of chunks have other sequences:
    sequences that were paid for in this sweep cost nothing again.

    Args:
        keeps_all: Whether chunks stay in memory, and in use, once they have been used.
        window_stays_in_use: Whether all used chunks of the window stay in use, not only the chunks of one minibatch.

    Attributes:
        in_memory: The chunks that are loaded.
        loading: The chunks that a worker loads or will load.
        window: The chunks of the current minibatches, and the chunks from which the next sequences can come.
        num_waits: Number of times that a read waited for a chunk that was being loaded.
    """

    def __init__(self, corpus: Corpus, *, keeps_all: bool, window_stays_in_use: bool) -> None:
        self.corpus = corpus
        self.in_memory: dict[int, Loaded] = corpus.take_parsed()
        self.loading: dict[int, Job[Loaded]] = {}
        self.window: set[int] = set()
        self.num_waits = 0
        self._in_use: set[int] = set()
        self._keeps_all, self._window_stays_in_use = keeps_all, window_stays_in_use
        self._needed: set[int] = set()  # the part of the window from which the next sequences can come
        self._needed_before: set[int] | None = None  # the same before the current minibatches, if it was different
        self._only_needed_in_use = False  # true if every chunk in use is still needed: nothing to release
        self._parts: PartsOfChunks | None = None
        self._paid: Mapping[int, ChunkPart | None] = {}  # the chunks in use that have findings
        self._formerly: Mapping[int, PaidSequences] = {}
        self._account: Account | None = None  # None: to be made, because it has changed

    def account(self) -> Account:
        """Return what data have cost so far: the same object until that, or the chunks that were paid for, change."""
        if self._account is None:
            self._account = Account(self.corpus.report.costs(), self._paid, self._parts, self._formerly)
        return self._account

    def go_back(self, account: Account) -> None:
        """Let data have cost, and chunks be paid for, as `account` says."""
        if account is self._account:
            return
        self.corpus.report.go_back(account.costs)
        # After another deal, ids have another meaning, and the window is loaded again.
        is_same = account.parts is self._parts
        paid = account.paid if is_same else {}
        self._in_use = self._in_use - self._paid.keys() | paid.keys()
        self._paid, self._account, self._only_needed_in_use = paid, None, False
        self._formerly = account.formerly if is_same else self._all_paid(account)

    def _keep_in_use(self, chunk_ids: set[int]) -> None:
        self._in_use &= chunk_ids
        if not self._paid.keys() <= self._in_use:
            self._paid = {chunk_id: part for chunk_id, part in self._paid.items() if chunk_id in self._in_use}
            self._account = None

    def set_parts(self, parts: PartsOfChunks | None) -> None:
        """Let ids of chunks mean parts of chunks, or whole chunks (None). If that changes, drop all data in memory."""
        if parts is not self._parts:
            self.keep_only(set())
            self._formerly = self._all_paid(self.account())
            self._parts = parts
            self._in_use, self.window, self._needed, self._paid = set(), set(), set(), {}
            self._only_needed_in_use, self._account = False, None

    def how_to_load(self, chunk_id: int) -> Callable[[], Loaded]:
        """Return a function that loads a chunk, or the part of a chunk that has the id. Any thread may call it."""
        part = self._part(chunk_id)
        if part is None:
            return partial(self.corpus.load, chunk_id)
        first, end = self.corpus.table.bounds_of(part.chunk_id)
        is_whole = len(part.sequences) == end - first
        return partial(self.corpus.load, part.chunk_id, None if is_whole else part.sequences)

    def _part(self, chunk_id: int) -> ChunkPart | None:
        """Return the part of a chunk that has the id; None: it is the id of a whole chunk."""
        return None if self._parts is None or not self.corpus.index.loads_parts else self._parts.part(chunk_id)

    @staticmethod
    def _all_paid(account: Account) -> Mapping[int, PaidSequences]:
        """Return the sequences of each chunk that were paid for, whatever ids mean next."""
        found = dict(account.formerly)
        for chunk_id, part in account.paid.items():
            if part is None:
                found[chunk_id] = PaidSequences(None, None)
                continue
            sequences, sweep = found.get(part.chunk_id, PaidSequences(part.sequences, part.sweep))
            if None not in (sweep, part.sweep) and sweep != part.sweep:
                sequences = part.sequences
            elif sequences is not None:
                sequences = np.union1d(sequences, part.sequences)
            found[part.chunk_id] = PaidSequences(sequences, sweep if part.sweep is None else part.sweep)
        return found

    def _unpaid(self, chunk_id: int, loaded: Loaded) -> Loaded:
        """Return data with only the findings that were not paid for in this sweep when ids meant other parts."""
        part = self._part(chunk_id)
        own_id, all_sequences, sweep = (chunk_id, np.arange(loaded.chunk.num_sequences), None) if part is None else part
        paid = self._formerly.get(own_id)
        if paid is None or (sweep is not None and sweep != paid.sweep):
            return loaded
        rest = all_sequences[:0] if paid.sequences is None else np.setdiff1d(all_sequences, paid.sequences)
        if not len(rest):
            return dataclasses.replace(loaded, findings=None)
        return self.corpus.load(own_id, rest.astype(np.uint32))

    def get(self, chunk_id: int) -> Loaded:
        """Return a chunk. Wait for it if it is being loaded; load it if it is not."""
        loaded = self.in_memory.get(chunk_id)
        if loaded is None:
            job = self.loading.pop(chunk_id, None)
            # No thread has begun the job: this thread loads the chunk at once, whatever waits before it.
            if job is None or job.withdraw():
                loaded = self.how_to_load(chunk_id)()
            else:
                self.num_waits += not job.is_done
                loaded = job.result()
            self.in_memory[chunk_id] = loaded
        return loaded

    def use(self, chunk_id: int) -> Loaded:
        """Return a chunk, and count its errors if it was not in use."""
        loaded = self.get(chunk_id)
        if chunk_id not in self._in_use:
            if loaded.findings is not None:
                self._account = None  # before an error, which uses up the budget
            self.corpus.account_for(self._unpaid(chunk_id, loaded) if loaded.findings is not None else loaded)
            if loaded.findings is not None:
                self._paid = {**self._paid, chunk_id: self._part(chunk_id)}
            self._in_use.add(chunk_id)
            self._only_needed_in_use = False
        return loaded

    def set_window(self, window: set[int], needed: set[int], *, is_first: bool) -> None:
        # If no other sequence begins, CNTK keeps the last window in use: a restore may need it again.
        needed = needed or set(self._in_use)
        self._needed_before = None if is_first else self._needed
        self._needed, self.window = needed, window
        self._only_needed_in_use = False

    def forget_other_sweeps(self) -> None:
        """Forget what was paid for in other sweeps: of whole chunks, outside the window of a new plan."""
        if not self._formerly or not self.window:
            return
        first = self._part(min(self.window))
        if first is None or first.sweep is None:
            parts = {chunk_id: self._part(chunk_id) for chunk_id in self.window | self._in_use}
            kept = {chunk_id if part is None else part.chunk_id for chunk_id, part in parts.items()}
            left = {chunk_id: paid for chunk_id, paid in self._formerly.items() if chunk_id in kept}
        else:
            # The first part that is needed tells the sweep in which whole chunks were paid for.
            sweep = first.sweep
            now = {
                chunk_id: paid._replace(sweep=sweep) if paid.sweep is None else paid
                for chunk_id, paid in self._formerly.items()
            }
            left = {chunk_id: paid for chunk_id, paid in now.items() if paid.sweep is None or paid.sweep >= sweep}
        self._formerly, self._account = left, None

    def stay_in_use(self, chunk_ids: Sequence[int]) -> bool:
        """Return whether these chunks, once in use, stay in use for all minibatches of a hand-over."""
        if self._keeps_all or (self._window_stays_in_use and self.window.issuperset(chunk_ids)):
            return True
        # No minibatch has a sequence of another chunk, for which it would release this chunk.
        return len(chunk_ids) == 1 and self.is_ready(chunk_ids[0])

    def is_ready(self, chunk_id: int) -> bool:
        return chunk_id in self._in_use and chunk_id in self.in_memory

    def begin_taking(self, *, several: bool) -> None:
        """Before several minibatches are taken, release the chunks that none of them needs, except for the last."""
        if several and self._window_stays_in_use and not self._keeps_all and not self._only_needed_in_use:
            self._keep_in_use(self._needed if self._needed_before is None else self._needed_before)
        self._needed_before = None

    def release_others(self, chunk_ids: Iterable[int], *, is_last: bool) -> None:
        """Release all chunks except for the chunks of a minibatch, taken or refused, and a window that stays in use.

        The data stay in memory. The window changes only after the last of the minibatches that are taken together.
        """
        if self._keeps_all or self._only_needed_in_use:
            return
        if not self._window_stays_in_use:
            # A minibatch without sequences, such as a rank's share of a global minibatch, needs no other chunk. So it
            # releases none: the next minibatch often continues the chunk, whose errors would count again.
            self._keep_in_use(set(chunk_ids) or self._in_use)
        elif is_last:
            self._keep_in_use(self._needed.union(chunk_ids))
            self._only_needed_in_use = self._in_use <= self._needed

    def keep_only(self, chunk_ids: set[int]) -> None:
        """Withdraw the loads of all other chunks, and drop these chunks from memory unless all stay."""
        for chunk_id in self.loading.keys() - chunk_ids:
            self.loading.pop(chunk_id).withdraw()
        if not self._keeps_all:
            self.in_memory = {chunk_id: loaded for chunk_id, loaded in self.in_memory.items() if chunk_id in chunk_ids}


_LEAST_READ_AHEAD = 32 << 20
_LEAST_CHUNKS_AHEAD, _MOST_CHUNKS_AHEAD = 64, 4096
_NUM_RECENT = 4  # recent chunks predict the size of the next chunks


class Taken(NamedTuple):
    """Chunks taken into use for the minibatches of one hand-over."""

    chunks: list[list[_core.Chunk]]  # for each corpus the chunks of sound minibatches, in the order of first use
    num_sound: int  # number of minibatches that have all their chunks
    error: BaseException | None  # the error of a chunk of the next minibatch; None if all are sound
    accounts: list[tuple[int, Accounts]]  # each with the minibatch after which it is right


class ChunkStore:
    """The chunks of all corpora of a source.

    Args:
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
        options = {"keeps_all": keeps_all, "window_stays_in_use": window_stays_in_use}
        self._chunks = [ChunksInMemory(corpus, **options) for corpus in corpora]
        self._arrangement = arrangement
        self._loads_window, self._read_ahead_in_bytes = loads_window, read_ahead_in_bytes
        self._parts: PartsOfChunks | None = None
        self._pieces: list[PiecesOfCorpus | None] = [None] * len(corpora)
        self._begin()

    def _begin(self) -> None:
        self._workers: Workers | None = None  # the threads that load chunks, in the order of the requests
        self.planned: int | None = None  # version of the timeline's plan
        self._partners: dict[int, list[list[int]]] = {}
        # Fresh memory costs as much as reading, and a plan takes time for each chunk: read further ahead only after a
        # chunk came late.
        self._room_ahead, self._num_ahead = _LEAST_READ_AHEAD, _LEAST_CHUNKS_AHEAD
        self._num_waits = 0

    def begin_in_child(self) -> None:
        """In a fork of the process, forget what the parent's threads were loading: they do not exist here."""
        for chunks in self._chunks:
            chunks.loading.clear()
            chunks.num_waits = 0
            chunks.set_window(set(), set(), is_first=True)
        self._begin()

    def close(self) -> None:
        """Cancel all loads that have not begun, and end the worker threads."""
        for chunks in self._chunks:
            chunks.keep_only(set())
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def accounts(self) -> Accounts:
        """Return the accounts of all corpora."""
        return tuple(chunks.account() for chunks in self._chunks)

    def in_memory(self, corpus_index: int) -> list[int]:
        return list(self._chunks[corpus_index].in_memory)

    def lengths_in_chunk(self, chunk_id: int) -> Any:
        """Return the lengths of a chunk's sequences, for a timeline that learns them from the only corpus's chunks."""
        return self._chunks[0].get(chunk_id).findings

    def pieces(self, corpus_index: int) -> PiecesOfCorpus | None:
        """Return the pieces that are loaded in place of the chunks of a joined corpus; None: chunks are loaded."""
        return self._pieces[corpus_index]

    # ------------------------------------------------------------------------------------------- loading ahead

    def plan(self, needed: Plan, used: Sequence[int], ahead: Iterator[int]) -> None:
        """Drop the chunks that are no longer needed, and start to load the chunks that will be needed.

        Args:
            needed: Chunks of the source's table from which the next sequences can come, in the order of need.
            used: Chunks that the current selection uses.
            ahead: Chunks that are needed afterwards, in the order of need; read until the room is full.
        """
        is_first, self.planned = self.planned is None, needed.version
        self._set_parts(needed.parts)
        window, next_chunks = list(dict.fromkeys([*used, *needed.chunks])), [] if needed.is_last else needed.chunks
        wanted = list(dict.fromkeys([*window, *self._that_fit(ahead)]))
        if self._arrangement.partners is None:
            (chunks,) = self._chunks
            chunks.set_window(set(window), set(next_chunks), is_first=is_first)
            chunks.forget_other_sweeps()
            chunks.keep_only(set(wanted))
            self._load((chunks, chunk_id) for chunk_id in wanted)
            return
        self._partners = {table_chunk: self._chunks_of(table_chunk) for table_chunk in wanted}
        for pieces in self._pieces:
            if pieces is not None:
                pieces.keep_only(self._partners)
        # Each once: neighboring chunks of the table share partners.
        pairs = [pair for own in self._partners.values() for pair in zip(self._chunks, own, strict=True)]
        wishes = dict.fromkeys((chunks, chunk_id) for chunks, chunk_ids in pairs for chunk_id in chunk_ids)
        for corpus_index, chunks in enumerate(self._chunks):
            own = self._partners_in(corpus_index, window), self._partners_in(corpus_index, next_chunks)
            chunks.set_window(*own, is_first=is_first)
            chunks.forget_other_sweeps()
            chunks.keep_only({chunk_id for owner, chunk_id in wishes if owner is chunks})
        self._load(wishes)

    def _load(self, wishes: Iterable[tuple[ChunksInMemory, int]]) -> None:
        """Let the threads load these chunks, unless they are in memory or being loaded."""
        for chunks, chunk_id in wishes:
            if chunk_id not in chunks.in_memory and chunk_id not in chunks.loading:
                # No thread exists before the first read.
                if self._workers is None:
                    num_threads = max(chunks.corpus.index.loads_at_once for chunks in self._chunks)
                    self._workers = Workers(num_threads, "cntkio-load")
                chunks.loading[chunk_id] = self._workers.do(chunks.how_to_load(chunk_id))

    def stand(self, needed: Plan, accounts: Accounts) -> None:
        """After the source went back, note which chunks are needed next; take back what data have cost since then."""
        for chunks, account in zip(self._chunks, accounts, strict=True):
            chunks.go_back(account)
        if needed.parts is not self._parts:
            return  # other parts: what is in use will be forgotten
        for corpus_index, chunks in enumerate(self._chunks):
            chunks.set_window(chunks.window, self._partners_in(corpus_index, needed.chunks), is_first=True)

    def _partners_in(self, corpus_index: int, table_chunks: Iterable[int]) -> set[int]:
        if self._arrangement.partners is None:
            return set(table_chunks)
        return {chunk_id for chunk in table_chunks for chunk_id in self._chunks_of(chunk)[corpus_index]}

    def _set_parts(self, parts: PartsOfChunks | None) -> None:
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
        size, room_to_load = self._expected_bytes(), self._room_ahead
        for table_chunk in itertools.islice(ahead, min(self._num_ahead, self._read_ahead_in_bytes // size)):
            if not self._is_in_memory(table_chunk):  # a chunk that was parsed with the index is in memory already
                # The first chunk may be larger than the room: otherwise no such chunk would be loaded ahead, no read
                # would wait for one, and the room would never grow.
                if room_to_load < size and room_to_load < self._room_ahead:
                    return
                room_to_load -= size
            yield table_chunk

    def _is_in_memory(self, table_chunk: int) -> bool:
        if self._arrangement.partners is None:
            return table_chunk in self._chunks[0].in_memory
        each = zip(self._chunks, self._chunks_of(table_chunk), strict=True)
        return all(chunk_id in chunks.in_memory for chunks, chunk_ids in each for chunk_id in chunk_ids)

    def _expected_bytes(self) -> int:
        """Return the expected bytes of memory for a chunk of the table, estimated from recent chunks."""
        recent = [loaded for chunks in self._chunks for loaded in list(chunks.in_memory.values())[-_NUM_RECENT:]]
        sizes = [loaded.chunk.num_bytes for loaded in recent]
        # Before the first chunk is loaded, expect large chunks, so that few are loaded ahead.
        return max(1, sum(sizes) // len(sizes) * len(self._chunks) if sizes else self._read_ahead_in_bytes // 4)

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
        each = zip(self._chunks, refs, strict=True)
        stay_in_use = all(chunks.stay_in_use(own_refs.chunk_ids) for chunks, own_refs in each)
        are_together = stay_in_use and not self._loads_window
        for chunks in self._chunks:
            chunks.begin_taking(several=len(bounds) > 2)
        history = [(0, self.accounts())]
        num_sound, error = (self._take_together if are_together else self._take_in_turn)(refs, bounds, history)
        # After an error, later chunks were not loaded, and no request refers to them.
        end = bounds[num_sound]
        sound = [own_refs.chunk_ids[: bisect.bisect_left(own_refs.firsts, end)] for own_refs in refs]
        pairs = zip(self._chunks, sound, strict=True)
        taken = [[chunks.in_memory[chunk_id].chunk for chunk_id in chunk_ids] for chunks, chunk_ids in pairs]
        return Taken(taken, num_sound, error, history)

    def _take_together(
        self, refs: Sequence[ChunkRefs], bounds: Sequence[int], history: list[tuple[int, Accounts]]
    ) -> tuple[int, BaseException | None]:
        """Take chunks that stay in use: only the few chunks that are not in use yet matter."""
        # In the order of `_take_in_turn`, so that the same error comes first.
        new = sorted(
            (bisect.bisect_right(bounds, first) - 1, corpus_index, first, chunk_id)
            for corpus_index, (chunks, own_refs) in enumerate(zip(self._chunks, refs, strict=True))
            for first, chunk_id in zip(own_refs.firsts, own_refs.chunk_ids, strict=True)
            if not chunks.is_ready(chunk_id)
        )
        num_sound, error = len(bounds) - 1, None
        for minibatch, corpus_index, _, chunk_id in new:
            try:
                self._chunks[corpus_index].use(chunk_id)
            except BaseException as raised:
                num_sound, error = minibatch, raised
                break
            history.append((minibatch, self.accounts()))
        # The window changes only after the last minibatch, whether it is taken or refused.
        if error is None or num_sound == len(bounds) - 2:
            for chunks, own in zip(self._chunks, refs, strict=True):
                last = own.chunk_ids if len(bounds) == 2 else own.chunks_of_reads(bounds[-2:])[0]
                chunks.release_others(last, is_last=True)
        if error is None:
            history.append((num_sound - 1, self.accounts()))
        return num_sound, error

    def _take_in_turn(
        self, refs: Sequence[ChunkRefs], bounds: Sequence[int], history: list[tuple[int, Accounts]]
    ) -> tuple[int, BaseException | None]:
        """Take the chunks minibatch by minibatch, and release the chunks that the next minibatch does not need."""
        error: BaseException | None = None
        before: tuple[list[int], ...] = ()
        for number, needed in enumerate(zip(*(own_refs.chunks_of_reads(bounds) for own_refs in refs), strict=True)):
            if needed == before and number < len(bounds) - 2:
                continue  # these chunks are in use, and no others are
            before = needed
            try:
                for chunks, chunk_ids in zip(self._chunks, needed, strict=True):
                    for chunk_id in chunk_ids:
                        chunks.use(chunk_id)
                    for chunk_id in chunks.window if self._loads_window else ():
                        chunks.get(chunk_id)
            except BaseException as raised:
                error = raised
            for chunks, chunk_ids in zip(self._chunks, needed, strict=True):
                chunks.release_others(chunk_ids, is_last=number == len(bounds) - 2)
            if error is not None:
                return number, error
            history.append((number, self.accounts()))
        return len(bounds) - 1, None

"""Chunks of one corpus in memory, and the worker threads that load them.

::

    wanted, in the order of need    (corpus 0, chunk 4) (corpus 1, chunk 2) (corpus 0, chunk 5) ...
    worker threads                  load the first of these; the other loads can still be canceled
    the thread that selects         takes a loaded chunk, waits for one that is being loaded, or loads it itself

Invariants: an error of a load is raised where the chunk is needed, not where the load was requested. After
an interrupted wait the chunk is loaded again. No thread exists before the first request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from cntkio._threads import Job, Workers
from cntkio.formats.contract import Corpus, Loaded
from cntkio.timeline import ChunkRefs, PartsOfChunks


class CorpusChunks:
    """The chunks of one corpus that are in memory, being loaded, or in use.

    The errors of a chunk count when the chunk is first used, not when it happens to be loaded: so neither memory nor
    read-ahead changes which error exceeds the budget. A chunk stays in use as long as each minibatch, or the window
    after it, needs the chunk; the errors of a chunk that is used again count again. A refused chunk is not in use, so
    each minibatch that needs it raises its error.

    Args:
        corpus: The corpus.
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
        self._keeps_all = keeps_all
        self._window_stays_in_use = window_stays_in_use
        self._needed: set[int] = set()  # the part of the window from which the next sequences can come
        self._needed_before: set[int] | None = None  # the same before the current minibatches, if it was different
        self._only_needed_in_use = False  # so that there is nothing to release
        self._parts: PartsOfChunks | None = None

    def set_parts(self, parts: PartsOfChunks | None) -> None:
        """Let ids of chunks mean parts of chunks, or whole chunks (None). If that changes, drop all data in memory."""
        if parts is not self._parts:
            self.keep_only(set())
            self._parts = parts
            self._in_use, self.window, self._needed = set(), set(), set()
            self._only_needed_in_use = False

    def how_to_load(self, chunk_id: int) -> Callable[[], Loaded]:
        """Return a function that loads a chunk, or the part of a chunk that has the id. Any thread may call it."""
        if self._parts is None or self.corpus.load_part is None:
            return partial(self.corpus.load, chunk_id)
        return partial(self.corpus.load_part, *self._parts.part(chunk_id))

    def get(self, chunk_id: int) -> Loaded:
        """Return a chunk. Wait for it if it is being loaded; load it if it is not."""
        loaded = self.in_memory.get(chunk_id)
        if loaded is None:
            job = self.loading.pop(chunk_id, None)
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
            self.corpus.account_for(loaded)
            self._in_use.add(chunk_id)
            self._only_needed_in_use = False
        return loaded

    def set_window(self, window: set[int], needed: set[int], *, is_first: bool) -> None:
        """Replace the window: the chunks of the current minibatches, and those that are needed after the last."""
        self._needed_before = None if is_first else self._needed
        self._needed, self.window = needed, window
        self._only_needed_in_use = False

    def stay_in_use(self, chunk_ids: Sequence[int]) -> bool:
        """Return whether these chunks, once in use, stay in use for all minibatches of a hand-over."""
        if self._keeps_all or (self._window_stays_in_use and self.window.issuperset(chunk_ids)):
            return True
        return len(chunk_ids) == 1 and self._is_ready(chunk_ids[0])

    def to_be_used(self, refs: ChunkRefs) -> list[tuple[int, int]]:
        """Return the first sequence and the id of each chunk that is not in use or not in memory."""
        return [
            (first, chunk_id)
            for chunk_id, first in zip(refs.chunk_ids, refs.firsts, strict=True)
            if not self._is_ready(chunk_id)
        ]

    def _is_ready(self, chunk_id: int) -> bool:
        return chunk_id in self._in_use and chunk_id in self.in_memory

    def release_passed(self) -> None:
        """Before several minibatches are taken, release the chunks that none of them needs, except for the last."""
        if self._window_stays_in_use and not self._keeps_all and not self._only_needed_in_use:
            self._in_use &= self._needed if self._needed_before is None else self._needed_before

    def release_others(self, chunk_ids: Iterable[int], *, is_last: bool) -> None:
        """Release all chunks except for the chunks of a minibatch, taken or refused, and a window that stays in use.

        The data stay in memory. The window changes only after the last of the minibatches that are taken together.
        """
        if self._keeps_all or self._only_needed_in_use:
            return
        if not self._window_stays_in_use:
            self._in_use &= set(chunk_ids)
        elif is_last:
            self._in_use &= self._needed.union(chunk_ids)
            self._only_needed_in_use = self._in_use <= self._needed

    def end_taking(self) -> None:
        """Note that the current minibatches have been taken."""
        self._needed_before = None

    def keep_only(self, chunk_ids: set[int]) -> None:
        """Withdraw the loads of all other chunks, and drop these chunks from memory unless all stay."""
        for chunk_id in [chunk_id for chunk_id in self.loading if chunk_id not in chunk_ids]:
            self.loading.pop(chunk_id).withdraw()
        if not self._keeps_all:
            self.in_memory = {chunk_id: loaded for chunk_id, loaded in self.in_memory.items() if chunk_id in chunk_ids}


class Loaders:
    """Worker threads that load requested chunks, in the order of the requests.

    Args:
        number: Number of threads.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._workers: Workers | None = None

    def want(self, wishes: Iterable[tuple[CorpusChunks, int]]) -> None:
        """Load these chunks, unless they are in memory or being loaded."""
        for chunks, chunk_id in wishes:
            if chunk_id not in chunks.in_memory and chunk_id not in chunks.loading:
                if self._workers is None:
                    self._workers = Workers(self._number, "cntkio-load")
                chunks.loading[chunk_id] = self._workers.do(chunks.how_to_load(chunk_id))

    def close(self) -> None:
        """Wait for the loads that have begun, and end the threads."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

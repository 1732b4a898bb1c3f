"""`Pipeline`: two threads that prepare minibatches while the caller works on earlier minibatches.

::

    selecting thread    | select 1 | select 2      | select 3      | ...
    packing thread                 | pack 1        | pack 2        | ...
    caller                                         | reads 1       | reads 2 ...

Minibatches are selected several at a time, because handing a small minibatch over to another thread takes longer than
making it: at first one, then twice as many each time, as long as the caller repeats the same request. Small minibatches
are packed together before the caller gets them. The caller takes a larger minibatch while later minibatches are being
packed, a few megabytes ahead of the caller, so that their memory is reused while it is in the cache.

Invariants:

- Preparing ahead changes time only. Prepared minibatches can be discarded at any moment before delivery; then the
  selector goes back to where the last delivered minibatch ended, and the errors of their chunks cost nothing.
- An error is raised in the read that it belongs to, and nothing is prepared beyond it before it was raised.
- An interrupt (Ctrl-C) at any moment loses nothing. What a read does before it delivers can be done again: after an
  exception in a read, the next one waits until the threads are idle, discards what was prepared, and goes back to
  where the last delivered minibatch ended.
- A lock is held only by ``with`` statements on a lock of the interpreter, and the state of the source changes in
  consecutive assignments without a call between them. An interrupt cannot come between these.
- Threads start with the first read. A fork of the process has none of them: it starts its own, from where the last
  minibatch was delivered.

Only this module knows of the two threads. Public methods may be called from several threads.
"""

from __future__ import annotations

import bisect
import operator
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._threads import ForkLock, Job, Workers
from cntkio.errors import CorpusError
from cntkio.formats.report import Costs
from cntkio.minibatch import Minibatch
from cntkio.timeline import Bookmark, Bookmarks, ChunkPart, ChunkRefs, Partition, Parts, PartsOfChunks, Size

# --------------------------------------------------------------------------------------------------------------
# Values that the stages of a source hand to each other.
#
# ::
#
#     Request ──> Selector ── HandOver: selected minibatches, and orders for the packer ─> Packer ─ Prepared ─> caller
#                    ^                                                                                            |
#                    └──── Standing: where to go back to when prepared minibatches are discarded ─────────────────┘


class PaidSequences(NamedTuple):
    """The sequences of a chunk that were paid for; None: all. They cost again in another sweep; None: it is unknown."""

    sequences: npt.NDArray[np.uint32] | None
    sweep: int | None


class Account(NamedTuple):
    """Costs of the data of a corpus up to a point, and the chunks that were paid for."""

    costs: tuple[Costs, ...]
    paid: Mapping[int, ChunkPart | None]  # the ids of chunks in use, and what they mean; None: the whole chunk
    parts: PartsOfChunks | None  # the meaning of ids of chunks
    formerly: Mapping[int, PaidSequences]  # by the number of the chunk, what was paid for when ids meant other parts


Accounts: TypeAlias = tuple[Account, ...]
"""The account of each corpus of a source."""


class Standing(NamedTuple):
    """A point between two minibatches: position of the timeline, and what data and utterances have cost up to there."""

    bookmark: Bookmark
    num_invalid: int  # number of invalid utterances
    accounts: Accounts = ()

    def error_counts(self) -> dict[str, int]:
        """Return the errors so far, by kind."""
        counts = sum((costs.errors for account in self.accounts for costs in account.costs), Counter[str]())
        counts["invalid utterance"] += self.num_invalid
        return dict(+counts)  # without counts of 0

    def warning_counts(self) -> dict[str, int]:
        """Return the warnings so far, by kind."""
        return dict(sum((costs.warnings for account in self.accounts for costs in account.costs), Counter[str]()))


class DeliveredCounts(NamedTuple):
    """The delivered minibatches of a pipeline's life, and how many of them ended a sweep. No restore changes them."""

    num_minibatches: int
    num_sweeps: int


class Epoch(NamedTuple):
    """The request of the last call of `begin_epoch`."""

    span: tuple[int, int] | None = None  # positions at which the epoch begins and ends; None: no epoch has begun
    number: int = 0  # number of the epoch, from 0
    truncation_length: int | None = None  # steps of a truncated minibatch; None: as in the source's options


class Request(NamedTuple):
    """A read: the size that the caller asked for, the size as the timeline counts it, and the share to deliver."""

    asked: Size
    size: Size
    partition: Partition


class Prepared(NamedTuple):
    """The outcomes of consecutive reads: minibatches, or a single end of the data, or a single error.

    There is one object for many minibatches, because an object for each would take longer than a small minibatch.
    """

    minibatches: list[Minibatch]  # empty at the end and for an error
    # Whether each minibatch reaches or crosses the end of a sweep. The minibatch would look into each of its streams
    # for the answer.
    ends_of_sweep: list[bool]
    bookmarks: Bookmarks  # position of the timeline after each, and possibly after further reads
    num_invalid: int  # number of invalid utterances up to there
    error: BaseException | None = None
    first: int = 0  # index of the first minibatch in the hand-over
    num_before: int = 0  # number of bookmarks before that of the first minibatch
    counts_before: DeliveredCounts = DeliveredCounts(0, 0)  # known when their delivery begins
    # The accounts, each with the index in `bookmarks` from which on they are right. Few chunks change them.
    accounts: Sequence[tuple[int, Accounts]] = ((0, ()),)

    @classmethod
    def end(cls, standing: Standing, error: BaseException | None = None) -> Prepared:
        """Return the end of the data, or an error, after which the timeline is at a standing."""
        return cls([], [], [standing.bookmark], standing.num_invalid, error, accounts=((0, standing.accounts),))

    def standing(self, num_left: int) -> Standing:
        """Return the point at which so many of the minibatches are left; 0: after all, the end or the error."""
        index = max(self.num_before + len(self.ends_of_sweep) - num_left - 1, 0)
        at = bisect.bisect_right(self.accounts, index, key=operator.itemgetter(0)) - 1
        return Standing(self.bookmarks[index], self.num_invalid, self.accounts[at][1])

    def counts(self, num_left: int) -> DeliveredCounts:
        """Return the counts when so many of the minibatches are left."""
        ends = self.ends_of_sweep[: len(self.ends_of_sweep) - num_left]
        return DeliveredCounts(self.counts_before[0] + len(ends), self.counts_before[1] + sum(ends))


class PackOrder(NamedTuple):
    """The data of one corpus for consecutive minibatches of a hand-over."""

    corpus_index: int
    first: int  # index of the first of the minibatches in the hand-over
    minibatches: list[Minibatch]  # packing fills them
    ends_of_sweep: list[bool]  # whether each reaches or crosses the end of a sweep
    chunks: list[_core.Chunk]  # the chunks that hold the sequences
    refs: ChunkRefs  # the sequences in the chunks
    # For each sequence its first sample to pack and the number of samples to pack; None: all samples.
    samples: tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]] | None
    bounds: list[int]  # first sequence of each minibatch and, last, the number of sequences
    parts: Parts | None = None  # for the only minibatch, if it is truncated: which samples go to which cells


class HandOver(NamedTuple):
    """Minibatches that were selected together and are packed together."""

    # Their outcomes, whose minibatches are still empty. Only the last one may be the end or an error.
    prepared: list[Prepared]
    orders: list[PackOrder]  # tell the packer how to fill them
    before: Standing  # position of the source before them

    @property
    def num_minibatches(self) -> int:
        return self.prepared[-1].first + len(self.prepared[-1].ends_of_sweep) if self.prepared else 0

    @property
    def goes_on(self) -> bool:
        """Return whether further minibatches may follow: neither the end nor an error has come."""
        return not self.prepared or bool(self.prepared[-1].ends_of_sweep)

    def add(self, outcomes: Prepared) -> None:
        self.prepared.append(outcomes._replace(first=self.num_minibatches))

    def standing(self, index: int) -> Standing:
        """Return the point after a minibatch."""
        prepared = self.prepared[bisect.bisect_right(self.prepared, index, key=lambda own: own.first) - 1]
        return prepared.standing(prepared.first + len(prepared.ends_of_sweep) - index - 1)

    def take(self, num_minibatches: int) -> list[Prepared]:
        """Remove the next minibatches; return their outcomes and, with the last, also the end or the error after it."""
        outcomes = []
        for own in self.prepared:
            taken, before = own.minibatches[:num_minibatches], len(own.ends_of_sweep) - len(own.minibatches)
            if taken:
                ends_of_sweep = own.ends_of_sweep[before:][: len(taken)]
                del own.minibatches[: len(taken)]
                num_minibatches -= len(taken)
                outcomes.append(own._replace(minibatches=taken, ends_of_sweep=ends_of_sweep, num_before=before))
        if not self.goes_on and not any(own.minibatches for own in self.prepared):
            outcomes.append(self.prepared[-1])
        return outcomes

    def sound(self, num_sound: int, error: BaseException) -> list[Prepared]:
        """Return the outcomes if packing the minibatch after the first `num_sound` raises an error."""
        outcomes = []
        for own in self.prepared:
            if own.first < num_sound:
                ends_of_sweep = own.ends_of_sweep[: num_sound - own.first]
                minibatches = own.minibatches[: len(ends_of_sweep)]
                outcomes.append(own._replace(minibatches=minibatches, ends_of_sweep=ends_of_sweep))
        return [*outcomes, Prepared.end(self.standing(num_sound), error)]


class Packed(NamedTuple):
    """The outcome of packing a hand-over."""

    num_bytes: int | None  # bytes of the arrays; None if the minibatches are truncated
    num_sound: int  # number of complete minibatches
    error: BaseException | None  # the error of the next minibatch; None if all are complete


# A hand-over costs as much time as a hundred small minibatches. So it has more than `_MOST_UNLESS_SMALL` minibatches if
# they take little memory.
MOST_IN_HAND_OVER = 1024
_MOST_UNLESS_SMALL = 256
_HAND_OVER_BYTES_IF_SMALL = 4 << 20
_HAND_OVER_BYTES = 16 << 20
_HAND_OVER_BYTES_IN_TURN = 64 << 20  # of a hand-over that is packed in turn
_LEAST_IN_TURN = 4  # minibatches of such a hand-over
_WORTH_TAKING = 64 << 10  # bytes from which on a minibatch is worth the time to take it by itself
_LARGE_MINIBATCH = 16 << 20


class Selects(Protocol):
    """The first stage, run by one thread at a time; `cntkio.source.selecting.Selector` documents the methods."""

    @property
    def standing(self) -> Standing: ...
    def select(self, request: Request, most: int, hold: Any) -> HandOver: ...
    def go_back(self, standing: Standing) -> None: ...
    def begin_in_child(self, standing: Standing) -> None: ...
    def close(self) -> None: ...


class Packing(Protocol):
    """Minibatches of a hand-over that the caller takes; `cntkio.source.packing.PackedInTurn` documents the methods."""

    def run(self) -> None: ...
    def resume(self) -> bool: ...
    def stop(self) -> None: ...
    def take(self) -> list[Prepared]: ...
    @property
    def is_taken(self) -> bool: ...
    @property
    def lets_follow(self) -> bool: ...


class Packs(Protocol):
    """The second stage, run by one thread at a time; `cntkio.source.packing.Packer` documents the methods."""

    def pack(self, hand_over: HandOver) -> Packed: ...
    def pack_in_turn(self, hand_over: HandOver) -> tuple[Packing, int] | None: ...


class _Begun(NamedTuple):
    """The next minibatches: packed together, or being packed while the caller takes them."""

    prepared: list[Prepared]
    packing: Packing | None = None
    following: Job[_Begun] | None = None  # packs the minibatches of `packing`, then prepares the next


_NOTHING = _Begun([])


class Pipeline:
    """Prepares minibatches ahead of the reads that deliver them.

    Attributes:
        request: The request of the last read; None: the next request has to be checked again.
        epoch: The epoch that the source delivers.
        lock: The lock of all calls. Only a ``with`` statement may take it.
    """

    def __init__(self, selector: Selects, packer: Packs, name: str = "") -> None:
        self._selector, self._packer, self._name = selector, packer, name
        self._is_closed, self.lock = False, ForkLock()
        # The outcomes that contain the last delivery, and the number of their minibatches that are still to come.
        self._last, self._num_left = Prepared.end(selector.standing), 0
        self.epoch = Epoch()
        self._begin()

    def _begin(self) -> None:
        """Set up what belongs to this process."""
        self._threads: tuple[Workers, ...] = ()  # the packing and the selecting thread
        self.request: Request | None = None
        self._prepared_for: Request | None = None  # None: prepared minibatches, if any, have to be discarded
        self._is_ahead = False  # whether the selector may be elsewhere than after the last delivered minibatch
        self._drop()
        self._num_at_once = 1
        self._size = 0  # bytes of a minibatch of the last hand-over
        self.lock.is_inherited = False

    def _drop(self) -> None:
        """Drop prepared minibatches."""
        self._ready = Prepared([], [], [], 0)  # its minibatches in reverse order, so that the next is the last of them
        self._after_ready: deque[Prepared] = deque()
        self._packing: Packing | None = None  # minibatches of it were taken, and others will be
        self._preparing: Job[_Begun] | None = None  # of the next; with `_NOTHING`, something else comes first
        self._selecting: Job[HandOver] | None = None  # changed by the packing thread, or while it is idle

    @property
    def delivered(self) -> Standing:
        """The point after the last minibatch that was delivered; its count includes errors raised since."""
        return self._last.standing(self._num_left)

    @property
    def counts(self) -> DeliveredCounts:
        return self._last.counts(self._num_left)

    # ----------------------------------------------------------------------------------------------- the caller

    def next(self, request: Request) -> Minibatch | None:
        """Return the next minibatch, or None at the end."""
        with self.lock.inner:
            try:
                if self.lock.is_inherited:
                    self._begin_in_child()
                if request is not self.request:
                    self.check_open()
                    if request != self._prepared_for:
                        self._discard()
                        self._prepared_for, self._num_at_once = request, 1
                    self.request = request
                ready = self._ready
                if not ready.minibatches:
                    ready = self._begin_ready(request)
                minibatch = ready.minibatches.pop() if ready.minibatches else None
                num_left = len(ready.minibatches)
            except BaseException:
                self.request = self._prepared_for = None
                raise
            # Neither an interrupt nor another thread comes between these assignments.
            self._last, self._num_left = ready, num_left
            if minibatch is None and ready.error is not None:
                raise ready.error
            return minibatch

    def _begin_ready(self, request: Request) -> Prepared:
        """Wait for the next outcomes, begin to deliver them, and let the threads prepare those after them.

        An error moves no bookmark.
        """
        while not self._after_ready:
            if self._packing is not None:
                self._take_in_turn(self._packing, request)
                continue
            self._preparing = self._preparing or self._prepare_ahead(request)
            prepared, self._packing, self._preparing = self._preparing.result()
            self._after_ready.extend(prepared)
            if prepared and prepared[-1].ends_of_sweep:  # neither the end nor an error
                self._preparing = self._prepare_ahead(request)
        ready = self._after_ready.popleft()
        ready.minibatches.reverse()
        bookmarks = ready.bookmarks if ready.error is None else [self.delivered.bookmark]
        self._ready = ready._replace(bookmarks=bookmarks, counts_before=self._last.counts(self._num_left))
        return self._ready

    def move(self, move: Callable[[], Epoch]) -> None:
        """Discard prepared minibatches, and move the source. An exception moves it back.

        `move` moves the timeline, and returns the epoch that the source then delivers.
        """
        with self.lock.inner:
            self.check_open()
            self._discard()
            self._is_ahead = True
            try:
                epoch = move()
                moved = Prepared.end(self._selector.standing)._replace(counts_before=self.counts)
            except BaseException:
                self._discard()
                raise
            self._last, self._num_left = moved, 0
            self.epoch = epoch
            self._is_ahead = False

    def where(self) -> tuple[Standing, Epoch]:
        with self.lock.inner:
            return self.delivered, self.epoch

    def close(self) -> None:
        """End all threads, and drop prepared minibatches. The method may be called again, also after an interrupt."""
        with self.lock.inner:
            self._is_closed = True
            if self.lock.is_inherited:
                return  # the threads are the parent's
            self.request = self._prepared_for = None
            for thread in self._threads:
                thread.close()
            self._drop()
            self._selector.close()

    def _begin_in_child(self) -> None:
        self._selector.begin_in_child(self.delivered)
        self._begin()

    def check_open(self) -> None:
        """Refuse reads after `close`."""
        if self._is_closed:
            raise CorpusError(
                f"the source of {self._name} is closed; make a new source. To continue where this source stopped, call "
                f"load_state_dict with the state that state_dict returned before close"
            )

    def _take_in_turn(self, packing: Packing, request: Request) -> None:
        self._after_ready.extend(packing.take())
        if packing.resume():
            self._preparing = self._threads[0].do(self._pack_in_turn, packing, self._threads[1], request)
        elif self._preparing is None or (self._preparing.is_done and self._preparing.result() is _NOTHING):
            self._preparing = self._prepare_ahead(request) if packing.lets_follow else None
        if packing.is_taken:
            self._packing = None

    def _prepare_ahead(self, request: Request) -> Job[_Begun]:
        self._is_ahead = True
        if not self._threads:
            self._threads = Workers(1, "cntkio-pack"), Workers(1, "cntkio-select")
        packing, selecting = self._threads
        return packing.do(self._prepare, selecting, request)

    def _discard(self) -> None:
        """Discard prepared minibatches, and go back to the end of the last delivered minibatch."""
        if self.lock.is_inherited:
            self._begin_in_child()
        self.request = self._prepared_for = None
        if not self._is_ahead:
            return
        if self._packing is not None:
            self._packing.stop()
        for thread in self._threads:
            thread.finish()
        self._drop()
        self._selector.go_back(self.delivered)
        self._is_ahead = False

    # --------------------------------------------------------------------------------------- the packing thread

    def _prepare(self, thread: Workers, request: Request, before: Packing | None = None) -> _Begun:
        """Pack the next minibatches, while the selecting thread selects those after them."""
        selecting, self._selecting = self._selecting, None
        hand_over = (selecting or self._select_ahead(thread, request)).result()
        # At the end and after an error, nothing can be selected ahead.
        if hand_over.goes_on:
            self._selecting = self._select_ahead(thread, request, before)
        try:
            if self._size >= _WORTH_TAKING and hand_over.num_minibatches >= _LEAST_IN_TURN:
                in_turn = self._packer.pack_in_turn(hand_over)
                if in_turn is not None:
                    packing, num_bytes = in_turn
                    self._plan(num_bytes, hand_over.num_minibatches, _HAND_OVER_BYTES_IN_TURN)
                    return _Begun([], packing, self._threads[0].do(self._pack_in_turn, packing, thread, request))
            packed = self._packer.pack(hand_over)
        except BaseException as error:
            self._go_back(thread, hand_over.before)
            return _Begun([Prepared.end(hand_over.before, error)])
        if packed.error is not None:
            # Reading again would not repair the data, so, like CNTK, the next read continues after this minibatch.
            self._go_back(thread, hand_over.standing(packed.num_sound))
            return _Begun(hand_over.sound(packed.num_sound, packed.error))
        if packed.num_bytes is not None and hand_over.orders:
            self._plan(packed.num_bytes, hand_over.num_minibatches, _HAND_OVER_BYTES)
        return _Begun(hand_over.prepared)

    def _pack_in_turn(self, packing: Packing, thread: Workers, request: Request) -> _Begun:
        """Pack minibatches while the caller takes them; then prepare those after them."""
        packing.run()
        return self._prepare(thread, request, packing) if packing.lets_follow else _NOTHING

    def _plan(self, num_bytes: int, num_minibatches: int, most_bytes: int) -> None:
        """Choose the number of minibatches that are selected together."""
        self._size = size = max(num_bytes // num_minibatches, 1)
        most = min(max(_MOST_UNLESS_SMALL, _HAND_OVER_BYTES_IF_SMALL // size), MOST_IN_HAND_OVER)
        several = min(max(most_bytes // size, 2), most, 2 * self._num_at_once)
        self._num_at_once = 1 if size > _LARGE_MINIBATCH else several

    def _select_ahead(self, thread: Workers, request: Request, before: Packing | None = None) -> Job[HandOver]:
        """Let the thread select. If the caller has taken all of `before`, the thread then unmaps its chunks."""
        return thread.do(self._select, request, self._num_at_once, self.delivered.bookmark, before)

    def _select(self, request: Request, most: int, hold: Bookmark, _before: Packing | None) -> HandOver:
        return self._selector.select(request, most, hold)

    def _go_back(self, thread: Workers, standing: Standing) -> None:
        """Discard minibatches that were selected beyond a standing."""
        thread.finish()
        self._selecting = None
        self._selector.go_back(standing)

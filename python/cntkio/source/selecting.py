"""`Selector`: chooses the sequences of the next minibatches, and locates them in the chunks.

::

    timeline          reads: the items of several minibatches
    arrangement       their sequences, and in frame mode their frames; invalid utterances are removed
    chunk store       the chunks, taken into use in the order of need; later chunks are loaded ahead
    hand-over         empty minibatches, and orders that say what to pack into them

Invariant: which minibatches are selected together changes time only. An error in the middle of a hand-over belongs to
the minibatch that meets it: those before it are delivered, and nothing after it was selected.

Only one thread may use a selector at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from cntkio.arguments import caller
from cntkio.displays import counted
from cntkio.errors import CntkIoError, CorpusError
from cntkio.formats.contract import Corpus
from cntkio.minibatch import Minibatch, Origin, SliceOfRows
from cntkio.source.arrangement import BROKEN, INVALID, Arrangement, Located, complaint_of
from cntkio.source.chunks import PiecesOfCorpus, Taken
from cntkio.source.pipeline import Accounts, HandOver, PackOrder, Prepared, Request, Standing
from cntkio.timeline import Bookmark, Bookmarks, ChunkRefs, Plan, Reads, Selection, SequenceOrder
from cntkio.timeline.selection import RowsOfReads

_T = TypeVar("_T")


class Chunks(Protocol):
    """The chunks that a selector takes into use; `cntkio.source.chunks.ChunkStore` documents the methods."""

    planned: int | None
    """Version of the timeline's plan."""

    def plan(self, needed: Plan, used: Sequence[int], ahead: Iterator[int]) -> None: ...
    def stand(self, needed: Plan, accounts: Accounts) -> None: ...
    def take(self, refs: Sequence[ChunkRefs], bounds: Sequence[int]) -> Taken: ...
    def pieces(self, corpus_index: int) -> PiecesOfCorpus | None: ...
    def accounts(self) -> Accounts: ...
    def begin_in_child(self) -> None: ...
    def close(self) -> None: ...


class Selector:
    """Selects minibatches.

    Args:
        timeline: The items that each read delivers.
        arrangement: The sequences of items.
        max_errors: Number of utterances that may be invalid.
    """

    def __init__(
        self,
        timeline: SequenceOrder,
        corpora: Sequence[Corpus],
        arrangement: Arrangement,
        chunks: Chunks,
        max_errors: int,
    ) -> None:
        self._timeline, self._corpora, self._arrangement, self._chunks = timeline, corpora, arrangement, chunks
        self._max_errors = max_errors
        # Whether a minibatch depends on which of its utterances are valid.
        self._is_judged = arrangement.flags is not None or arrangement.is_literal
        # Messages come later and from other threads, which have another caller or none.
        self._wording = caller().words
        self._num_invalid = self._last_invalid = 0
        self._went_back_to: Accounts | None = None  # since the last read
        self._ones = np.ones(0, np.uint32)

    @property
    def standing(self) -> Standing:
        """The point up to which the selector has selected."""
        accounts = self._chunks.accounts() if self._went_back_to is None else self._went_back_to
        return Standing(self._timeline.bookmark(), self._num_invalid, accounts)

    def go_back(self, standing: Standing) -> None:
        """Go back to an earlier standing. Later minibatches will be selected again."""
        self._timeline.go_back(standing.bookmark)
        self._num_invalid, self._went_back_to = standing.num_invalid, standing.accounts

    def begin_in_child(self, standing: Standing) -> None:
        """Continue from the parent's `standing` in a fork of the process, which lacks the thread that was selecting."""
        self._chunks.begin_in_child()
        self._timeline.go_back(standing.bookmark, in_child=True)
        self._num_invalid, self._went_back_to = standing.num_invalid, standing.accounts

    def close(self) -> None:
        self._chunks.close()

    def select(self, request: Request, most: int, hold: Bookmark) -> HandOver:
        """Select the next minibatches, 1 to `most`. The selector may later have to go back to the bookmark `hold`."""
        self._timeline.hold(hold)
        hand_over = HandOver([], [], self.standing)
        while hand_over.num_minibatches < most and hand_over.goes_on:
            try:
                self._select_some(request, most - hand_over.num_minibatches, hand_over)
            except CntkIoError as error:
                # Reading again would not repair the data, so, like CNTK, the next read continues after this minibatch.
                hand_over.add(Prepared.end(self.standing, error))
            except BaseException as error:
                # Another failure may be temporary: the next read asks for this minibatch again.
                last = hand_over.num_minibatches - 1
                self.go_back(hand_over.before if last < 0 else hand_over.standing(last))
                hand_over.add(Prepared.end(self.standing, error))
        return hand_over

    def jump(self, request: Request, most: int, until: int) -> int:
        """Move the timeline over at most `most` minibatches that end at position `until` or before, in one step.

        Return their number; 0 if only `pass_over` or `select` can tell what follows.
        """
        return self._moved(self._timeline.pass_over, request.size, request.partition, most, until) or 0

    def pass_over(self, request: Request, most: int) -> Bookmarks:
        """Move the timeline without selecting, if that is possible; arguments as for `select`.

        Return the bookmark after each minibatch; none if only `select` can tell what follows.
        """
        self._timeline.hold(self._timeline.bookmark())
        reads = self._moved(self._timeline.read_several, request.size, request.partition, most)
        return () if reads is None else reads.bookmarks

    def _moved(self, move: Callable[..., _T], *arguments: Any) -> _T | None:
        """Move the timeline, if its minibatches do not depend on their utterances."""
        if self._is_judged:
            return None
        before = self._timeline.bookmark()
        try:
            return move(*arguments)
        except CntkIoError:
            # `select` meets the error again, in the step that has it.
            self._timeline.go_back(before)
            return None

    def _select_some(self, request: Request, most: int, hand_over: HandOver) -> None:
        """Add the reads of a single call of the timeline to a hand-over."""
        # A read of which nothing remains is skipped, so reads that lose utterances are made one by one.
        most_here = 1 if self._is_judged else most
        if self._went_back_to is not None:
            self._chunks.stand(self._timeline.needed_chunks(request.partition), self._went_back_to)
            self._went_back_to = None
        while True:
            reads = self._timeline.read_several(request.size, request.partition, most_here)
            if reads is None:
                self._tell_totals()
                hand_over.add(Prepared.end(self.standing))
                return
            selection, needed = reads.selection, self._timeline.needed_chunks(request.partition)
            if needed.version != self._chunks.planned:
                used = selection.chunks.tolist() if selection.refs is None else selection.refs.chunk_ids
                self._chunks.plan(needed, used, self._timeline.chunks_ahead(request.partition))
            located = self._arrangement.locate(selection.sequences)
            if self._arrangement.flags is None:
                break
            sound = self._without_invalid(selection, located, request)
            if sound is not None:
                reads, located = Reads.of(sound[0], reads.bookmarks[-1]), sound[1]
                break
        self._add(reads, located, hand_over)
        if reads.selection.end_of_sweep:
            self._tell_totals()

    def _tell_totals(self) -> None:
        for corpus in self._corpora:
            corpus.report.log_totals()

    # -------------------------------------------------------------------------------------- invalid utterances

    def _without_invalid(
        self, selection: Selection, located: Located, request: Request
    ) -> tuple[Selection, Located] | None:
        """Remove invalid utterances from a selection, and count them.

        Return what remains; None if nothing remains and the read is skipped. Balanced partitions skip no read.
        """
        assert self._arrangement.flags is not None
        flags = self._arrangement.flags[located.sequences]
        if (flags == BROKEN).any():
            raise complaint_of(self._corpora, self._arrangement, int(located.sequences[flags == BROKEN][0]), BROKEN)
        is_sound = flags != INVALID
        parts = selection.parts
        # A truncated utterance counts once, with its first part.
        is_counted = ~is_sound if parts is None else ~is_sound & (parts.first_sample == 0)
        if is_counted.any():
            self._num_invalid += int(is_counted.sum())
            self._last_invalid = int(located.sequences[~is_sound][-1])
        # CNTK 2.7 compares the numbers only if something remains of the minibatch.
        if self._num_invalid > self._max_errors and (is_sound.any() or not self._arrangement.is_literal):
            item = "frame" if located.frames is not None else "utterance"
            last = complaint_of(self._corpora, self._arrangement, self._last_invalid, INVALID)
            so_far, option = counted(self._num_invalid, f"invalid {item}"), self._wording.option("max_errors")
            raise CorpusError(f"{so_far} so far, and {option} is {self._max_errors}; the last was {last}")
        if is_sound.all():
            return selection, located
        is_left = parts is not None or request.partition.is_balanced or bool(is_sound.any())
        if not is_left and not self._arrangement.is_literal:
            return None
        # CNTK 2.7 delivers an empty minibatch without a flag, but none at the end of the data.
        if not is_left and self._ends(request):
            return None
        if not is_left:
            selection = dataclasses.replace(selection, end_of_sweep=False)
        frames = None if located.frames is None else located.frames[is_sound]
        return selection.where(is_sound), Located(located.sequences[is_sound], frames)

    def _ends(self, request: Request) -> bool:
        """Return whether the data have ended."""
        here = self._timeline.bookmark()
        reads = self._timeline.read_several(request.size, request.partition, 1)
        self._timeline.go_back(here)
        return reads is None

    # ------------------------------------------------------------------------------------- what is to be packed

    def _add(self, reads: Reads, located: Located, hand_over: HandOver) -> None:
        """Add the minibatches of several reads to a hand-over, and the orders that fill them.

        If a chunk cannot be loaded or used, add the minibatches before it, and raise the error.
        """
        selection = reads.selection
        refs = [self._refs_of(corpus_index, selection, located) for corpus_index in range(len(self._corpora))]
        taken = self._chunks.take(refs, reads.bounds)
        bounds = reads.bounds[: taken.num_sound + 1]
        ends_of_sweep = reads.ends_of_sweep[: taken.num_sound]
        keys = selection.keys
        if keys is None:
            origin = Origin(self._arrangement.table.keys.__getitem__, located.sequences, self._arrangement.files_of)
        else:  # the timeline names the sequences itself
            origin = Origin(lambda _: keys(), located.sequences, None)
        minibatches = Minibatch.several(origin, bounds)
        if selection.rows is not None:
            _know_rows(minibatches, selection.rows, origin)
        parts = selection.parts
        for corpus_index, chunks in enumerate(taken.chunks if minibatches else ()):
            samples = None if parts is not None else self._samples_of(corpus_index, located)
            first, own_refs = hand_over.num_minibatches, refs[corpus_index]
            order = PackOrder(corpus_index, first, minibatches, ends_of_sweep, chunks, own_refs, samples, bounds, parts)
            hand_over.orders.append(order)
        if minibatches:
            accounts = taken.accounts
            hand_over.add(Prepared(minibatches, ends_of_sweep, reads.bookmarks, self._num_invalid, accounts=accounts))
        if taken.error is not None:
            if taken.num_sound + 1 < len(reads.bookmarks):
                self._timeline.go_back(reads.bookmarks[taken.num_sound])  # to after the minibatch that has the error
                self._went_back_to = self._chunks.accounts()
            raise taken.error

    def _refs_of(self, corpus_index: int, selection: Selection, located: Located) -> ChunkRefs:
        """Return references to the sequences in the chunks of a corpus, looked up in the tables if necessary."""
        if located.refs is not None:
            return located.refs[corpus_index]
        if self._arrangement.partners is None and located.frames is None and selection.refs is not None:
            return selection.refs
        pieces = self._chunks.pieces(corpus_index)
        if pieces is not None and selection.refs is not None:
            return pieces.refs(selection.refs)
        return self._arrangement.refs_of(corpus_index, located.sequences)

    def _samples_of(
        self, corpus_index: int, located: Located
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]] | None:
        """Return the first sample and the number of samples to pack of each sequence; None: all samples."""
        if located.frames is not None:
            if len(self._ones) < len(located.frames):
                # All minibatches share the array, because each item is a single frame.
                self._ones = np.ones(len(located.frames), np.uint32)
            return located.frames, self._ones[: len(located.frames)]
        return self._arrangement.repeated(corpus_index, located.sequences)


def _know_rows(minibatches: Sequence[Minibatch], rows: RowsOfReads, origin: Origin) -> None:
    """Tell minibatches of slices of rows what all sequences of their rows are."""
    wholes = Minibatch.several(origin._replace(sequences=rows.sequences), rows.bounds)
    for number, (minibatch, whole) in enumerate(zip(minibatches, wholes, strict=False)):
        own = rows.between(number, number + 1)
        minibatch.slice = SliceOfRows(whole, own.lengths, own.is_held, own.part, own.row_length)

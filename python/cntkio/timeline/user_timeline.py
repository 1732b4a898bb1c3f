"""The order of user-defined deserializers, as CNTK 2.7 has it. (docs/user-defined.md, "The two timelines")

Windows are filled with whole chunks, and shuffled. Reads take sequences from them.

Invariant: the result of a read depends on the chunks' lengths, the settings, the partition and the state alone. The
state says how a window is made and how many of its entries were taken. Only one segment is in memory at a time.

The main timeline knows all lengths. This timeline learns the lengths of a chunk when the chunk is fetched, and it
fills a window by fetching. It does so through a function that the source provides; it does not pack or read ahead.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio.errors import CheckpointError, ConfigError, CorpusError
from cntkio.timeline.budget import Size, whole_size
from cntkio.timeline.fields import whole
from cntkio.timeline.partition import WHOLE, Partition
from cntkio.timeline.selection import ChunkRefs, Parts, Plan, Reads, Selection
from cntkio.timeline.state import (
    check_num_slots,
    check_request,
    num_slots,
    num_slots_of,
    plain_partition,
    refused,
    slots_of,
    slots_to_json,
)
from cntkio.timeline.window import LARGEST_WORD, Window, checked_limits

_Integers: TypeAlias = npt.NDArray[np.int64]

# The windows of the user timeline: filled with whole chunks, and shuffled segment by segment.
#
# ::
#
#     chunks in the sweep's order   4 1 0 3 | 2 0 1 4 ...
#     windows                      (. . .)(.   . .)            filled with whole chunks, one after the other
#     segments                     (. . .)(.) (. .)            the part of a window in one sweep; each is shuffled
#
# `Windows` keeps no position. It computes the segment at a cursor, and the cursor after entries of a segment.


class Start(NamedTuple):
    """The beginning of a window or a segment, by the rank of its first chunk in the order of the sweep.

    The `running_count` of sequences before it in the sweep chooses, in order, the partition of a sequence.
    """

    rank: int
    sweep: int
    running_count: int = 0


class Segment(NamedTuple):
    """The part of a window in one sweep.

    Its entries are its sequences and, if the sweep ends with it, the mark of the sweep's end.

    Attributes:
        chunks: The chunks that were fetched for it.
        chunk_of: The chunk of each sequence.
        indices: Index of each sequence in its chunk.
        ends: Samples before each sequence and, last, all.
        ends_sweep: Whether the mark of the sweep's end is the last entry.
        after: Beginning of the next segment.
        left: Room that is left in the window; 0 or less: the window ends with this segment.
    """

    chunks: list[int]
    chunk_of: _Integers
    indices: _Integers
    lengths: npt.NDArray[np.uint32]
    ends: _Integers
    ends_sweep: bool
    after: Start
    left: int

    @property
    def num_entries(self) -> int:
        """Number of sequences and marks."""
        return len(self.indices) + self.ends_sweep


class Cursor(NamedTuple):
    """A position in the windows.

    Attributes:
        sweeps: Marks of a sweep's end that were passed.
        samples: Samples of this partition that were delivered.
        origin: Beginning of the window.
        passed: Entries of the window before the segment.
        start: Beginning of the segment.
        left: Room that is left in the window from there on.
        offset: Entries of the segment that were passed. After a restore it may go past the segment's end, to entries
            that follow in the window.
        segment: The segment; None: not computed yet.
    """

    sweeps: int
    samples: int
    origin: Start
    passed: int
    start: Start
    left: int
    offset: int
    segment: Segment | None


LengthsOf: TypeAlias = Callable[[int], npt.NDArray[np.uint32]]
"""Returns the lengths of a chunk's sequences, usually by fetching the chunk."""


class Windows:
    """The windows of a user timeline; `UserTimeline` documents the arguments."""

    def __init__(self, num_chunks: int, lengths_of: LengthsOf, window: Window | None, seed: int) -> None:
        self._num_chunks, self._lengths_of, self._window, self._seed = num_chunks, lengths_of, window, seed
        self._orders: dict[int, npt.NDArray[np.uint32]] = {}

    def window_at(self, origin: Start, offset: int = 0, sweeps: int = 0, samples: int = 0) -> Cursor:
        """Return the cursor after `offset` entries of the window that begins at `origin`."""
        # In order, a segment is a whole window, and nothing reads the room.
        left = 1 if self._window is None else self._window.size
        return Cursor(sweeps, samples, origin, 0, origin, left, offset, None)

    def order(self, sweep: int) -> npt.NDArray[np.uint32]:
        """Return the chunks of a sweep in shuffled order. The orders of neighboring sweeps are kept."""
        if sweep not in self._orders:
            order = _core.chunk_order(self._num_chunks, self._seed_of(sweep))
            # A window may span any number of sweeps. Reading ahead needs the next order, and going back the last order.
            neighbors = {other: kept for other, kept in self._orders.items() if abs(other - sweep) <= 1}
            self._orders = {**neighbors, sweep: order}
        return self._orders[sweep]

    def _seed_of(self, sweep: int) -> int:
        return (self._seed + sweep) & LARGEST_WORD

    def _segment(self, start: Start, left: int, partition: Partition) -> Segment:
        if self._window is None:
            return self._segment_in_order(start, partition)
        order = self.order(start.sweep)
        chunks: list[int] = []
        lengths: list[npt.NDArray[np.uint32]] = []
        # As in CNTK, chunks of other partitions take no room in the window.
        rank = start.rank + (partition.index - start.rank) % partition.count
        next_rank = self._num_chunks
        while left > 0 and rank < self._num_chunks:
            chunks.append(int(order[rank]))
            lengths.append(self._lengths_of(chunks[-1]))
            left -= 1 if self._window.unit == "chunks" else int(lengths[-1].sum(dtype=np.int64))
            if left <= 0:
                next_rank = rank + 1  # the window ends before chunks of other partitions
            rank += partition.count
        sizes = [len(chunk_lengths) for chunk_lengths in lengths]
        chunk_of = np.repeat(np.array(chunks, np.int64), sizes)
        # This partition may have no chunk in the segment, and `concatenate` needs at least one array.
        indices = np.concatenate([np.zeros(0, np.int64), *(np.arange(size) for size in sizes)])
        # The seeds of the segments of a sweep differ by the rank at which each begins.
        shuffled = _core.shuffled(len(indices), self._seed_of(start.sweep + start.rank))
        # As in CNTK, the mark belongs to the window even if the last chunk of the sweep fills the window.
        ends_sweep = next_rank == self._num_chunks
        after = Start(0, start.sweep + 1) if ends_sweep else Start(next_rank, start.sweep)
        all_lengths = np.concatenate([np.zeros(0, np.uint32), *lengths])[shuffled]
        columns = chunk_of[shuffled], indices[shuffled], all_lengths, _ends(all_lengths)
        return Segment(chunks, *columns, ends_sweep, after, left)

    def _segment_in_order(self, start: Start, partition: Partition) -> Segment:
        """Return the segment of one chunk, which is a window without randomization."""
        lengths = self._lengths_of(start.rank)
        first = (partition.index - start.running_count) % partition.count
        indices = np.arange(first, len(lengths), partition.count, dtype=np.int64)
        ends_sweep = start.rank + 1 == self._num_chunks
        # CNTK's checkpoint has 0 here for a single partition.
        running_count = start.running_count + len(lengths) if partition.count > 1 else 0
        after = Start(0, start.sweep + 1) if ends_sweep else Start(start.rank + 1, start.sweep, running_count)
        chunk_of = np.full(len(indices), start.rank, np.int64)
        lengths = lengths[indices]
        return Segment([start.rank], chunk_of, indices, lengths, _ends(lengths), ends_sweep, after, 0)

    def _after(self, cursor: Cursor, segment: Segment) -> Cursor:
        """Return the cursor after a segment: in the same window, or at the start of the next."""
        if segment.left <= 0:
            # An index beyond the window's end, as after a change of partition, begins the next window.
            return self.window_at(segment.after, 0, cursor.sweeps, cursor.samples)
        passed, offset = cursor.passed + segment.num_entries, cursor.offset - segment.num_entries
        return cursor._replace(passed=passed, start=segment.after, left=segment.left, offset=offset, segment=None)

    def in_segment(self, cursor: Cursor, partition: Partition) -> tuple[Cursor, Segment]:
        """Return the segment of the next entry, and the same position as a cursor in that segment."""
        while True:
            segment = cursor.segment or self._segment(cursor.start, cursor.left, partition)
            if cursor.offset < segment.num_entries:
                return cursor._replace(segment=segment), segment
            cursor = self._after(cursor, segment)

    def past(self, cursor: Cursor, segment: Segment, num_entries: int) -> Cursor:
        """Return the cursor after further entries of its segment."""
        cursor = cursor._replace(offset=cursor.offset + num_entries, segment=segment)
        # As in CNTK, a checkpoint after the last entry of a window names the next window.
        return self._after(cursor, segment) if cursor.offset == segment.num_entries else cursor


def _ends(lengths: npt.NDArray[np.uint32]) -> _Integers:
    """Return the samples before each sequence and, last, all."""
    return np.append(0, np.cumsum(lengths, dtype=np.int64))


class InSlot(NamedTuple):
    """A sequence in a slot.

    Attributes:
        length: Samples that it counts for.
        next: The first sample that is not delivered yet.
        end_of_sweep: Whether the read that put it there met the end of a sweep.
    """

    chunk: int
    index_in_chunk: int
    length: int
    next: int
    end_of_sweep: bool


Slots: TypeAlias = tuple[tuple[InSlot, ...], ...]


def _require_room(num_slots: int) -> None:
    """Check, before further slots are filled, that there is memory for this number of them, with a sequence in each."""
    size = num_slots * 200  # bytes of a list with one sequence
    try:
        # The array is reserved, but not touched. For a size beyond all arrays NumPy raises a ValueError.
        np.empty(size, np.uint8)
    except (MemoryError, ValueError):
        raise MemoryError(f"no memory for {num_slots} slots of a truncated minibatch ({size} bytes)") from None


def _take_cells(slots: list[list[InSlot]], num_steps: int) -> tuple[list[tuple[int, ...]], bool]:
    """Take up to `num_steps` samples from each slot, and remove sequences that end.

    Return for each part of a sequence its slot, chunk, index in the chunk, length, first sample, number of samples,
    step, and whether it continues; and whether a sequence ends that was read with the end of a sweep.
    """
    rows: list[tuple[int, ...]] = []
    end_of_sweep = False
    for slot_index, slot in enumerate(slots):
        step = 0
        while step < num_steps and slot:
            chunk, index, length, first, met_end = slot[0]
            num_samples = min(num_steps - step, length - first)
            continues = first + num_samples < length
            rows.append((slot_index, chunk, index, length, first, num_samples, step, continues))
            step += num_samples
            if continues:
                slot[0] = slot[0]._replace(next=first + num_samples)
            else:
                end_of_sweep |= met_end
                del slot[0]
    return rows, end_of_sweep


# No size or limit counts beyond this number, so that sums with the ends of a segment fit int64.
_LARGEST_COUNT = 2**62
_COMMON_KEYS = ("baseSweepCount", "baseSampleCount", "baseCurrentSequencePositionInWindow")
_KEYS_IN_ORDER = (*_COMMON_KEYS, "currentChunkPosition", "currentSequencePosition")
_RANDOMIZED_KEYS = (*_COMMON_KEYS, "chunkPosition", "sweepIndex")

_NO_EPOCHS = "a source of a user-defined deserializer has no epochs"

_Piece = tuple[_Integers, _Integers, npt.NDArray[np.uint32]]
"""Sequences that follow each other: chunk, index in the chunk, and length of each."""


class _Bookmark(NamedTuple):
    settings: tuple[int, Partition] | None
    cursor: Cursor
    slots: Slots
    has_ended: bool

    @property
    def position(self) -> int:
        return self.cursor.samples


class UserTimeline:
    """The order of user-defined deserializers.

    A selection gives sequences by their index in their chunk, and `position` counts this partition's samples. Threads
    may use a timeline in turn, but not at the same time. It holds about 24 bytes for each sequence of a segment, that
    is, of at most one sweep and one window.

    Args:
        lengths_of: Returns the lengths of a chunk's sequences, uint32, usually by fetching the chunk.
        window: Amount of data that is shuffled together; None: in order. This and the others as for `Timeline`.
        max_samples: The data end when this partition has delivered its share of them. `FULL_DATA_SWEEP`: one sweep.

    Example:
        >>> lengths = [np.array([3, 1], np.uint32), np.array([2], np.uint32)]
        >>> timeline = UserTimeline(2, lengths.__getitem__, window=None, max_sweeps=1)
        >>> [(s.chunks.tolist(), s.sequences.tolist()) for s in iter(lambda: timeline.read(4), None)]
        [([0, 0], [0, 1]), ([1], [0])]
    """

    # A source with the main timeline refuses a state that has this setting.
    checkpoint_settings: Mapping[str, Any] = {"timeline": "local"}
    end: int | None = None

    def __init__(
        self,
        num_chunks: int,
        lengths_of: LengthsOf,
        *,
        window: Window | None,
        seed: int = 0,
        max_samples: int | None = None,
        max_sweeps: int | None = None,
        truncation_length: int = 0,
    ) -> None:
        self._limits = checked_limits(seed, max_samples, max_sweeps, truncation_length)
        self.num_chunks, self._lengths_of, self._truncation_length = num_chunks, lengths_of, truncation_length
        self._is_randomized = window is not None
        self._keys = _RANDOMIZED_KEYS if self._is_randomized else _KEYS_IN_ORDER
        self._windows = Windows(num_chunks, lengths_of, window, seed)
        self._settings: tuple[int, Partition] | None = None
        self._slots: Slots = ()
        self._cursor, self._has_ended = self._windows.window_at(Start(0, 0)), False
        self._plan_key: object = None
        self._plan = Plan([], 0)

    @property
    def num_samples(self) -> int:
        message = "the size of a sweep is not known until all chunks have been fetched"
        raise CorpusError(f"{message}; with timeline='global' it is known at once")

    @property
    def num_sequences(self) -> int:
        return self.num_samples

    @property
    def position(self) -> int:
        """Samples of this partition delivered up to the end of the last read."""
        return self._cursor.samples

    def read(self, minibatch_size_in_samples: int, partition: Partition = WHOLE) -> Selection | None:
        """Deliver the next sequences, or None when the data have ended.

        When the partition changes, the current window is filled again for it, from where the window began. After the
        exception of a failed fetch, the timeline has not moved.
        """
        if (minibatch_size_in_samples, partition) != self._settings:
            if self._settings is not None and self._has_ended:
                # Like CNTK, empty the slots, although no other data follow.
                self._slots = ()
                return None
            self._take_up(minibatch_size_in_samples, partition)
        if self._truncation_length:
            count = num_slots(minibatch_size_in_samples, partition, self._truncation_length)
            return self._read_truncated(count, partition)
        if self._has_ended:
            return None
        pieces, end_of_sweep = self._take(partition.share(minibatch_size_in_samples), partition)
        # Only marks of a sweep's end were left, so the data have ended.
        if not pieces:
            return None
        chunks = np.concatenate([piece[0] for piece in pieces])
        indices = np.concatenate([piece[1] for piece in pieces])
        return self._selection(indices, chunks, end_of_sweep, None)

    def read_several(self, minibatch_size_in_samples: Size, partition: Partition, most: int) -> Reads | None:
        """Deliver a single `read`, whatever `most` is: the next read may fetch chunks."""
        size = whole_size(minibatch_size_in_samples, "a Budget needs timeline='global', where all lengths are known")
        selection = self.read(size, partition)
        return None if selection is None else Reads.of(selection, self.bookmark())

    def pass_over(self, minibatch_size_in_samples: Size, partition: Partition, most: int, until: int) -> int:
        return 0  # the lengths of later sequences are not known yet

    def _selection(self, indices: _Integers, chunks: _Integers, end_of_sweep: bool, parts: Parts | None) -> Selection:
        refs = ChunkRefs.of(chunks, indices)
        return Selection(indices, chunks, end_of_sweep, self.position, parts, refs, lambda: _keys_of(chunks, indices))

    def _take_up(self, size: int, partition: Partition) -> None:
        """Adopt a size and a partition: at the first read, after a restore, and when they change."""
        # All checks come before the first assignment, so that a refused request changes nothing.
        check_request(size, self._limits)
        if partition.is_balanced:
            message = "a user-defined deserializer on its own timeline has neither balanced nor global partitions"
            advice = "set timeline='global' to use them, or partition='cntk' for a data set"
            raise ConfigError(f"{message}; {advice}", key="timeline")
        if self._truncation_length:
            num_slots(size, partition, self._truncation_length)  # refuses a size with too many
        if self._settings is not None and self._settings[1] != partition:
            # The segment has chunks of the former partition, so fill the window again; the index in it stays.
            sweeps, samples, origin, passed, _, _, offset, _ = self._cursor
            self._cursor = self._windows.window_at(origin, passed + offset, sweeps, samples)
        self._slots, self._has_ended = (), False
        self._settings = (size, partition)

    def _is_at_end(self, cursor: Cursor, partition: Partition) -> bool:
        max_samples, max_sweeps = self._limits
        if max_sweeps is not None:
            return cursor.sweeps >= max_sweeps
        return max_samples is not None and cursor.samples >= partition.share(max_samples)

    def _take(self, share: int, partition: Partition) -> tuple[list[_Piece], bool]:
        """Take whole sequences as long as they fit into `share` samples, but at least one.

        They come in pieces, each from one segment, with whether a mark of a sweep's end was passed.
        """
        share = max(1, min(share, _LARGEST_COUNT))
        # Samples before the end of the data. The position itself may be any number.
        left = _LARGEST_COUNT
        if self._limits.max_samples is not None:
            left = min(partition.share(self._limits.max_samples) - self._cursor.samples, _LARGEST_COUNT)
        pieces: list[_Piece] = []
        num_samples = num_marks = 0
        end_of_sweep = False
        cursor = self._cursor
        while num_samples < share and not self._is_at_end(cursor, partition):
            cursor, segment = self._windows.in_segment(cursor, partition)
            begin = cursor.offset
            if begin == len(segment.indices):
                cursor = self._windows.past(cursor._replace(sweeps=cursor.sweeps + 1), segment, 1)
                end_of_sweep = True
                num_marks += 1
                if num_marks == 2:
                    break  # a whole sweep had no sequence for this partition, so no other sweep will
                continue
            before = segment.ends[begin]
            end = int(np.searchsorted(segment.ends, before + (share - num_samples), side="right")) - 1
            if not pieces:
                end = max(end, begin + 1)
            # A sequence that begins before the limit is delivered whole.
            end = min(end, int(np.searchsorted(segment.ends[:-1], before + (left - num_samples), side="left")))
            if end == begin:
                break
            pieces.append((segment.chunk_of[begin:end], segment.indices[begin:end], segment.lengths[begin:end]))
            taken = int(segment.ends[end] - before)
            num_samples += taken
            num_marks = 0
            cursor = self._windows.past(cursor._replace(samples=cursor.samples + taken), segment, end - begin)
        self._cursor = cursor
        self._has_ended = num_marks == 2 or self._is_at_end(cursor, partition)
        return pieces, end_of_sweep

    def _read_truncated(self, count: int, partition: Partition) -> Selection | None:
        """Fill each of `count` slots, and take a truncation length of samples from each."""
        # Filling slots moves the cursor sequence by sequence: after a failed fetch, go back to before the first.
        before = self.bookmark()
        try:
            slots = [self._filled(slot, partition) for slot in self._slots]
            if self._limits == (None, None):
                _require_room(count - len(slots))
            # Others follow while there are data: the rest need no memory.
            while len(slots) < count and not self._has_ended:
                slots.append(self._filled((), partition))
        except BaseException:
            self.go_back(before)
            raise
        rows, end_of_sweep = _take_cells(slots, self._truncation_length)
        self._slots = tuple(tuple(slot) for slot in slots)
        if not rows:
            return None
        slot, chunks, indices, lengths, first, num_samples, step, continues = np.array(rows, np.int64).T.copy()
        kinds = continues.astype(np.bool_), lengths.astype(np.uint32)
        parts = Parts(slot, first, num_samples, step, *kinds, count, self._truncation_length)
        return self._selection(indices, chunks, end_of_sweep, parts)

    def _filled(self, slot: tuple[InSlot, ...], partition: Partition) -> list[InSlot]:
        filled = list(slot)
        num_samples = sum(sequence.length - sequence.next for sequence in filled)
        # As in CNTK, a slot that holds exactly one minibatch reads one more sequence.
        while num_samples <= self._truncation_length and not self._has_ended:
            pieces, end_of_sweep = self._take(1, partition)
            for chunks, indices, lengths in pieces:
                filled.append(InSlot(int(chunks[0]), int(indices[0]), int(lengths[0]), 0, end_of_sweep))
                num_samples += int(lengths[0])
        return filled

    def bookmark(self) -> _Bookmark:
        return _Bookmark(self._settings, self._cursor, self._slots, self._has_ended)

    def go_back(self, bookmark: _Bookmark, *, in_child: bool = False) -> None:
        """Go back to a bookmark of this timeline, in a child too: an interrupted read leaves nothing half done."""
        self._settings, self._cursor, self._slots, self._has_ended = bookmark

    def hold(self, bookmark: _Bookmark) -> None:
        """Do nothing: going back is cheap from anywhere."""

    def begin_epoch(
        self, begin: int, end: int, truncation_length: int | None = None, num_rows: int | None = None
    ) -> None:
        raise ConfigError(_NO_EPOCHS, key="deserializers")

    def ends_at(self, bookmark: _Bookmark) -> bool:
        raise ConfigError(_NO_EPOCHS, key="deserializers")

    def checkpoint(self, bookmark: _Bookmark | None = None) -> dict[str, int]:
        """Return CNTK's state: sweeps, samples, the index in the window, and the beginning of that window."""
        cursor = self._cursor if bookmark is None else bookmark.cursor
        origin = cursor.origin
        last = origin.sweep if self._is_randomized else origin.running_count
        values = (cursor.sweeps, cursor.samples, cursor.passed + cursor.offset, origin.rank, last)
        return dict(zip(self._keys, values, strict=True))

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Go where a `checkpoint` was taken: the next read fetches the chunks of the window up to the index in it."""
        kind = "randomized" if self._is_randomized else "in order"
        try:
            # No source gets as far as the largest count, and the counts that follow it must fit a state, too.
            values = [whole(key, checkpoint.get(key), _LARGEST_COUNT) for key in self._keys]
        except CheckpointError as error:
            message = f"{error} (this source has a user-defined deserializer with timeline='local', {kind})"
            raise CheckpointError(message, saved=error.saved) from None
        sweeps, samples, offset, rank, last = values
        if rank >= self.num_chunks:
            chunks = f"{self.num_chunks} chunk{'s' * (self.num_chunks != 1)}"
            message = f"the state continues at chunk {rank}, but this corpus has {chunks}"
            raise CheckpointError(message, saved=rank, current=self.num_chunks)
        origin = Start(rank, last) if self._is_randomized else Start(rank, sweeps, last)
        self.go_back(_Bookmark(None, self._windows.window_at(origin, offset, sweeps, samples), (), False))

    def state(self, bookmark: _Bookmark | None = None) -> dict[str, Any]:
        """Return all that is needed to continue from a bookmark, or from here: a small dict for JSON.

        Returns:
            The keys of `checkpoint`; and after a first read ``minibatch_size``, ``partition`` (index and count) and,
            truncated, ``slots`` (for each slot a list of chunk, index in the chunk, length, first sample not delivered,
            and whether its read met the end of a sweep) and ``num_slots`` (if further slots are empty).
        """
        bookmark = bookmark or self.bookmark()
        state: dict[str, Any] = dict(self.checkpoint(bookmark))
        if bookmark.settings is not None:
            size, partition = bookmark.settings
            state.update(minibatch_size=size, partition=[partition.index, partition.count])
            if self._truncation_length:
                state |= slots_to_json(bookmark.slots, num_slots(*bookmark.settings, self._truncation_length))
        return state

    def load_state(self, state: Mapping[str, Any], num_rows: int | None = None) -> None:
        """Continue where a `state` was taken. The chunks of slots are fetched, to check that they are the same."""
        settings = None
        if "minibatch_size" in state:
            size = whole("minibatch_size", state["minibatch_size"], _LARGEST_COUNT, least=1)
            settings = (size, plain_partition(state))
        slots = tuple(tuple(InSlot(*sequence) for sequence in slot) for slot in slots_of(state, 4, 2**63 - 1))
        self._check_slots(slots)
        self.restore(state)
        if settings is None:
            return
        try:
            if self._truncation_length:
                # Check the number before memory is allocated for the slots.
                check_num_slots(num_slots_of(state), num_slots(*settings, self._truncation_length))
            self._take_up(*settings)
        except ConfigError as error:
            raise refused(state, error) from error
        if self._truncation_length:
            self._slots = slots
        self._has_ended = self._is_at_end(self._cursor, settings[1])

    def _check_slots(self, slots: Slots) -> None:
        lengths_of = functools.cache(self._lengths_of)
        for sequence in itertools.chain(*slots):
            chunk, index, length, first, _ = sequence
            lengths = lengths_of(chunk) if chunk < self.num_chunks else np.zeros(0, np.uint32)
            if index >= len(lengths) or lengths[index] != length or first >= length:
                message = f"the state continues sequence {index} of chunk {chunk}, which has changed or is gone"
                raise CheckpointError(message, saved=list(sequence))

    def needed_chunks(self, partition: Partition = WHOLE) -> Plan:
        """Return the chunks of the computed segment, after those whose sequences slots continue."""
        cursor = self._cursor
        of_slots = tuple(sequence.chunk for slot in self._slots for sequence in slot)
        key = (cursor.origin, cursor.start, cursor.sweeps, cursor.segment is None, of_slots)
        if self._plan_key != key:
            of_segment = cursor.segment.chunks if cursor.segment is not None else []
            self._plan_key = key
            self._plan = Plan(list(dict.fromkeys([*of_slots, *of_segment])), self._plan.version + 1)
        return self._plan

    def chunks_ahead(self, partition: Partition = WHOLE) -> Iterator[int]:
        if self._has_ended:
            return
        cursor = self._cursor
        start = cursor.start if cursor.segment is None else cursor.segment.after
        for sweep, rank in ((start.sweep, start.rank), (start.sweep + 1, 0)):
            num_before = cursor.sweeps + sweep - cursor.start.sweep
            if self._limits.max_sweeps is not None and num_before >= self._limits.max_sweeps:
                return
            if self._is_randomized:
                first = rank + (partition.index - rank) % partition.count
                yield from self._windows.order(sweep)[first :: partition.count].tolist()
            else:
                # In order, partitions take sequences in turn, so each needs all chunks.
                yield from range(rank, self.num_chunks)


def _keys_of(chunks: _Integers, indices: _Integers) -> npt.NDArray[np.str_]:
    """Return the keys of sequences: chunk and index in the chunk, as ``"3:17"``."""
    return np.strings.add(np.strings.add(chunks.astype(np.str_), ":"), indices.astype(np.str_))

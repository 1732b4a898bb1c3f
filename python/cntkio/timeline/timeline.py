"""The main timeline: the order of a table of sequences whose lengths are known.

The loops over sequences, and the object that keeps the position, are in the core (`TimelineReader`). This module
checks settings, chooses the mode of reading, and makes bookmarks and checkpoints.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio._core import Cursor, TimelineReader
from cntkio.errors import CheckpointError, ConfigError, CorpusError
from cntkio.timeline.budget import Budget, Size, about_samples, carries, whole_size
from cntkio.timeline.fields import whole
from cntkio.timeline.lanes import LaneReads, LanesOfTable, OrderInLanes, share_of_lane
from cntkio.timeline.modes import (
    Budgets,
    DealtAhead,
    DealtMinibatches,
    InTurn,
    MergedMinibatches,
    Needs,
    ReadMode,
    RoundsOfSweeps,
    WholeSequences,
    check_change,
    check_deal,
    is_same_deal,
)
from cntkio.timeline.partition import WHOLE, GlobalPartition, Partition
from cntkio.timeline.selection import Bookmarks, Omissions, Parts, Plan, Reads, Selection
from cntkio.timeline.state import Slots, State, check_num_slots, check_request, check_slots, num_slots, refused
from cntkio.timeline.window import LARGEST_WORD, Limits, Window, checked_limits


@dataclasses.dataclass(frozen=True, slots=True)
class TruncatedSequences(ReadMode):
    """Deliver the cells of a truncated minibatch, one minibatch a call; `Timeline` documents lengths and rules."""

    reader: TimelineReader
    lengths: npt.NDArray[np.unsignedinteger[Any]]
    # The core takes the rules by the names of these fields (`TruncatedRules` in crates/python/src/order.rs).
    partition: Partition
    num_slots: int
    num_steps: int
    right_splice: int
    crosses_sweeps: bool

    def read(self, most: int) -> Reads | None:
        read = self.reader.read_truncated(self)
        if read is None:
            return None
        lengths = self.lengths[read.sequences].astype(np.uint32)
        own = read.slot, read.first_sample, read.num_samples, read.step, read.continues
        parts = Parts(*own, lengths, self.num_slots, self.num_steps)
        selection = Selection(read.sequences, read.chunks, read.end_of_sweep, read.position, parts)
        return Reads.of(selection, self.reader.cursor)

    def pass_over(self, most: int, until: int) -> int:
        # The core passes over a number of truncated minibatches, but does not stop at a position.
        return self.reader.pass_truncated(self, most) if until == LARGEST_WORD else 0


@dataclasses.dataclass(frozen=True, slots=True)
class OnlyFull(ReadMode):
    """Skip reads that pass fewer samples than `size`: the reads at the end of a sweep."""

    reader: TimelineReader
    mode: ReadMode
    size: int

    def read(self, most: int) -> Reads | None:
        while True:
            before = self.reader.cursor.position
            delivery = self.mode.read(1)
            if delivery is None or delivery.selection.position - before >= self.size:
                return delivery


# CNTK's end of data without limits.
_LARGEST_POSITION = 2**63 - 1
POSITION = "minibatchSourcePosition"
"""The key of the position in a state, as in a checkpoint of CNTK."""


class _Course(NamedTuple):
    """The state that `begin_epoch` changes: the arguments of `Timeline`, which in an epoch has no limits."""

    end: int
    limits: Limits
    truncation_length: int
    num_rows: int

    def steps(self, size: Size) -> int:
        """Return the steps of a truncated minibatch of a size."""
        return max(about_samples(size) // self.num_rows, 1) if self.num_rows else self.truncation_length


class _Bookmark(NamedTuple):
    """Position of the timeline, and the other values that the next read needs."""

    settings: tuple[Size, Partition] | None
    cursor: Cursor
    slots: Slots
    rounds_to_pass: int
    course: _Course

    @property
    def position(self) -> int:
        return self.cursor.position


class _Bookmarks:
    """Bookmarks after several reads, each created on request, because few are used."""

    def __init__(self, last: _Bookmark, cursors: Bookmarks) -> None:
        self._last, self._cursors = last, cursors

    def __len__(self) -> int:
        return len(self._cursors)

    def __getitem__(self, index: int, /) -> _Bookmark:
        return self._last._replace(cursor=self._cursors[index])

    def __iter__(self) -> Iterator[_Bookmark]:
        return (self._last._replace(cursor=cursor) for cursor in self._cursors)


@dataclasses.dataclass(frozen=True)
class _Rules:
    """The options of a `Timeline` that never change, and the modes of reading that follow from them.

    Attributes:
        make: Makes the core's reader, from the table, the window and the seed.
        is_truncated: Whether sequences are delivered in parts.
    """

    make: functools.partial[TimelineReader]
    lengths: npt.NDArray[np.unsignedinteger[Any]]
    omissions: Omissions | None
    window: Window | None
    is_truncated: bool
    right_splice: int
    crosses_sweeps: bool
    size_counts: str
    counts_sequences: bool
    only_full: bool
    loads_parts: bool

    @property
    def is_randomized(self) -> bool:
        return self.window is not None

    @functools.cached_property
    def budgets(self) -> Budgets:
        return Budgets(self.window)

    def new_reader(self) -> TimelineReader:
        reader = self.make(end=0)
        if self.omissions is not None:
            reader.leave_out(self.omissions.since, self.omissions.positions)
        return reader

    def place_of(self, reader: TimelineReader, cursor: Cursor) -> tuple[int, int] | None:
        """Return the place of a state: how many sequences of the sweep are before a cursor, and a checksum of that.

        None: a restore finds it as fast without.
        """
        window, position = self.window, cursor.position
        # A cursor in lanes, or at the end of a sweep, is before no sequence of this sweep.
        is_inside = cursor.index > 0 and cursor.sweep == position // reader.num_samples
        if window is None or window.order != "keyed" or not is_inside:
            return None
        # All but the lengths that decides which sequence starts there.
        table = reader.num_samples, len(self.lengths), len(reader.chunk_starts)
        facts = position, cursor.index, *table, window.size, window.unit, self.make.keywords["seed"]
        check_sum = hashlib.blake2b(" ".join(map(str, facts)).encode(), digest_size=6).digest()
        return cursor.index, int.from_bytes(check_sum, "little")

    def known_index(self, reader: TimelineReader, position: int, place: tuple[int, int] | None) -> int | None:
        """Return how many sequences are before a position, if it has this place; of any other it alone is believed."""
        if place is None or not place[0] < len(self.lengths):
            return None
        cursor = Cursor(position, sweep=position // reader.num_samples, index=place[0])
        return place[0] if self.place_of(reader, cursor) == place else None

    def lanes(self, reader: TimelineReader, size: Size, partition: GlobalPartition, end: int) -> LaneReads:
        """Return the mode of reading in lanes."""
        check_deal(partition, size, is_randomized=self.is_randomized, is_truncated=self.is_truncated)
        if self.only_full or self.counts_sequences or self.size_counts != "own":
            why = "lanes count the samples of whole global minibatches"
            raise ConfigError(f"classic readers and local_timeline=False take no lanes: {why}", key="lanes")
        budget = None
        if isinstance(size, Budget):
            budget = share_of_lane(size, partition.lanes)
            if size.pool is not None:
                self.budgets.check_pool(reader, size, size.pool)
            self.budgets.check(self.lengths, budget, partition)
        table = LanesOfTable(self.lengths, reader.chunk_starts, self.make.keywords, self.omissions, self.loads_parts)
        return LaneReads(table, size, partition, budget, reader.num_samples, end)

    def whole(self, reader: TimelineReader, size: Size, partition: Partition) -> WholeSequences:
        if isinstance(size, Budget):
            return self.budgets.mode(reader, size, partition)
        share = passed = min(size, _LARGEST_POSITION)
        if self.size_counts == "own":
            # As in CNTK, a share is at least one sample.
            share, passed = max(1, partition.of_reads.share(share)), LARGEST_WORD
        rules = {"crosses_sweeps": self.crosses_sweeps, "counts_sequences": self.counts_sequences}
        return WholeSequences.of(reader, share, partition, passed=passed, **rules)

    def truncated(
        self, reader: TimelineReader, size: Size, partition: Partition, course: _Course
    ) -> TruncatedSequences:
        size = whole_size(size, "a truncated minibatch has a fixed number of steps: give a number of samples")
        steps = course.steps(size)
        rules = num_slots(size, partition, steps), steps, self.right_splice, self.crosses_sweeps
        return TruncatedSequences(reader, self.lengths, partition.of_reads, *rules)

    def rounds(self, reader: TimelineReader, size: Size, partition: Partition, course: _Course) -> RoundsOfSweeps:
        if self.is_truncated:
            option = f"truncation_length={course.truncation_length}"
            why = "the slots of truncated minibatches are shared out evenly anyway"
            message = f"{option} and balanced partitions exclude each other: {why}"
            raise ConfigError(message, key="truncation_length")
        num_left_out = 0 if self.omissions is None else int(np.count_nonzero(self.omissions.since))
        if isinstance(size, Budget):
            return self.budgets.rounds(reader, size, partition, num_left_out)
        share, num_larger = divmod(min(size, _LARGEST_POSITION), partition.count)
        smaller = WholeSequences(reader, max(1, share), counts_sequences=self.counts_sequences)
        larger = dataclasses.replace(smaller, share=share + 1)
        return RoundsOfSweeps(larger, smaller, num_larger, partition, num_left_out)


class Timeline:
    """The order of a table of sequences: CNTK's timeline.

    Threads may use it in turn, but not at the same time. Apart from the table, it holds 4 bytes for each sequence of a
    window, and about 50 for each chunk.

    Args:
        lengths: Samples that each sequence counts for, in file order, each at least 1: uint8, uint16 or uint32, or one
            uint32 broadcast to all sequences.
        chunk_starts: First sequence of each chunk and, last, the number of sequences, int64; no chunk is empty.
        window: Distance within which sequences are shuffled; None: in order.
        seed: Sweep number k is shuffled with ``seed + k``, modulo 2**64.
        max_samples: The data end before the first sequence that starts here or later. `FULL_DATA_SWEEP`: one sweep.
        max_sweeps: Number of sweeps after which the data end.
        truncation_length: Steps of a truncated minibatch; 0: whole sequences.
        right_splice: Samples that a full row of a truncated minibatch and the next part of its sequence have in common.
        crosses_sweeps: Whether a read continues in the next sweep. Classic readers stop at the end of a sweep.
        size_counts: ``"own"``: the size of a read limits the samples of this partition, to its share. ``"all"``: the
            size limits the samples of all partitions that the read passes, as in classic readers.
        counts_sequences: Whether the size of a read is a number of sequences. Positions still count samples.
        num_rows: Rows of a truncated minibatch, over all partitions. The minibatch size then gives the truncation
            length: the size divided by the rows. 0: the size and the truncation length give the rows.
        only_full: Whether to skip reads that pass fewer samples than the size. If a sweep is shorter than the size,
            nothing is skipped.
        loads_parts: Whether global partitions may name parts of chunks to load, in place of chunks.
        omissions: Sequences that are left out from some positions on.

    Attributes:
        num_samples: Samples in a sweep.
        num_sequences: Sequences in a sweep.
        num_chunks: Chunks in a sweep.

    Raises:
        ConfigError: A setting is out of range, or two exclude each other.
        CorpusError: The table is empty, or a sequence counts for no samples.

    Example:
        >>> lengths = np.array([3, 1, 2, 4], np.uint32)
        >>> timeline = Timeline(lengths, np.array([0, 2, 4]), window=None, max_sweeps=1)
        >>> [selection.sequences.tolist() for selection in iter(lambda: timeline.read(4), None)]
        [[0, 1], [2], [3]]
        >>> timeline.position
        10
    """

    checkpoint_settings: Mapping[str, Any] = {}
    """Settings that a checkpoint of the source needs in order to recognize this kind of timeline."""

    def __init__(
        self,
        lengths: npt.NDArray[np.unsignedinteger[Any]],
        chunk_starts: npt.NDArray[np.int64],
        *,
        window: Window | None,
        seed: int = 0,
        max_samples: int | None = None,
        max_sweeps: int | None = None,
        truncation_length: int = 0,
        right_splice: int = 0,
        crosses_sweeps: bool = True,
        size_counts: Literal["own", "all"] = "own",
        counts_sequences: bool = False,
        num_rows: int = 0,
        only_full: bool = False,
        loads_parts: bool = False,
        omissions: Omissions | None = None,
    ) -> None:
        limits = checked_limits(seed, max_samples, max_sweeps, truncation_length)
        if right_splice and not 0 < right_splice < truncation_length:
            message = f"right_splice={right_splice} is not below truncation_length={truncation_length}"
            raise ConfigError(message, key="right_splice")
        self.num_sequences, self.num_chunks = len(lengths), len(chunk_starts) - 1
        if not self.num_sequences:
            raise CorpusError("the corpus has no sequences")
        if self.num_sequences >= 2**32:
            raise CorpusError(f"{self.num_sequences} sequences are more than one source can hold (2^32 - 1)")
        # Equal lengths are one number that is broadcast to all sequences.
        if not (least := lengths[:1] if lengths.strides == (0,) else lengths).min():
            raise CorpusError(f"sequence number {int(least.argmin())} counts for no samples")
        if window is not None and window.size > LARGEST_WORD:
            window = dataclasses.replace(window, size=LARGEST_WORD)
        starts = np.ascontiguousarray(chunk_starts, np.int64)
        self._rules = _Rules(
            functools.partial(TimelineReader, lengths, starts, window=window, seed=seed),
            lengths, omissions, window,
            is_truncated=truncation_length > 0 or num_rows > 0,
            right_splice=right_splice, crosses_sweeps=crosses_sweeps, size_counts=size_counts,
            counts_sequences=counts_sequences, only_full=only_full, loads_parts=loads_parts,
        )  # fmt: skip
        # The end follows below, because it needs the number of samples.
        self._reader = self._rules.new_reader()
        self.num_samples: int = self._reader.num_samples
        end = _LARGEST_POSITION if limits.max_samples is None else limits.max_samples
        if limits.max_sweeps is not None:
            end = limits.max_sweeps * self.num_samples
        self._set_course(_Course(end, limits, truncation_length, num_rows))
        # The current size and partition, and the mode of reading for them.
        self._settings: tuple[Size, Partition] | None = None
        self._mode: ReadMode | None = None
        self._turns: InTurn | DealtAhead | None = None  # the part of the mode that knows the turns of workers
        self._ahead: DealtAhead | None = None  # the mode of reading, if it makes the core's reader run ahead
        self._lanes: LaneReads | None = None  # the mode of reading, if it has readers of its own
        self._has_pending = self._rules.is_truncated  # whether chunks are needed for more than what is read next

    @property
    def end(self) -> int:
        """Position at which the data end."""
        return self._course.end

    def _set_course(self, course: _Course) -> None:
        self._course = course
        # A state may have any whole number as the end of its epoch, and the core takes 64 bits.
        self._reader.set_end(min(max(course.end, 0), LARGEST_WORD))

    @property
    def position(self) -> int:
        """Samples of all partitions passed up to the end of the last read: all that CNTK's checkpoint keeps."""
        return self._cursor.position

    @property
    def _cursor(self) -> Cursor:
        mode = self._lanes or self._ahead
        return self._reader.cursor if mode is None else mode.cursor

    @property
    def num_bytes(self) -> int:
        """Bytes held apart from the table."""
        return self._reader.num_bytes

    def read(self, minibatch_size_in_samples: Size, partition: Partition = WHOLE) -> Selection | None:
        """Deliver the next sequences: a single read of `read_several`."""
        reads = self.read_several(minibatch_size_in_samples, partition, 1)
        return None if reads is None else reads.selection

    def read_several(self, minibatch_size_in_samples: Size, partition: Partition, most: int) -> Reads | None:
        mode = self._mode_for(minibatch_size_in_samples, partition)
        delivery = None if mode is None else mode.read(most)
        if delivery is None:
            return None
        selection, bounds, ends_of_sweep, cursors = delivery
        return Reads(selection, bounds, ends_of_sweep, _Bookmarks(self.bookmark(), cursors))

    def pass_over(self, minibatch_size_in_samples: Size, partition: Partition, most: int, until: int) -> int:
        mode = self._mode_for(minibatch_size_in_samples, partition)
        return 0 if mode is None else mode.pass_over(most, until)

    def _mode_for(self, size: Size, partition: Partition) -> ReadMode | None:
        """Return the mode of reading for a size and a partition; None: they are new, and the data have ended."""
        if (size, partition) != self._settings:
            # As in CNTK, a source that has ended does not begin again with another size or partition.
            if self._settings is not None and self.position >= self.end and not any(self._reader.pending):
                return None
            self._take_up(size, partition)
        return self._mode

    def _take_up(self, size: Size, partition: Partition, rounds_to_pass: int | None = None) -> None:
        """Choose the mode of reading for a size and a partition: at the first read, and after a restore or a change.

        `rounds_to_pass` is of a bookmark or a state; None: the turns of the same worker continue, or begin.
        """
        # All checks come before the first change, so that a refused request changes nothing.
        check_request(about_samples(size), self._course.limits)
        cursor = self._cursor
        # A reader that runs ahead may be in a later pool.
        of_pool = f" of the {self._reader.num_batches}" if self._ahead is None else ""
        check_change(self._settings, size, partition, cursor, of_pool)
        if self._rules.is_randomized and self.end > _LARGEST_POSITION:
            key = "max_sweeps" if self._course.limits.max_samples is None else "max_samples"
            message = f"the data would end at sample {self.end}, but a randomized source counts up to 2^63 - 1"
            raise ConfigError(message, key=key)
        rows = 0
        turns: InTurn | None = None
        ahead: DealtAhead | None = None
        lanes: LaneReads | None = None
        mode: ReadMode
        if isinstance(partition, GlobalPartition) and partition.lanes:
            mode = lanes = self._rules.lanes(self._reader, size, partition, self.end)
            if rounds_to_pass is None:
                self._place(lanes, size, partition)
        elif partition.rounds is not None:
            mode = self._rules.rounds(self._reader, size, partition, self._course)
        elif self._rules.is_truncated:
            mode = truncated = self._rules.truncated(self._reader, size, partition, self._course)
            rows = truncated.num_slots
        else:
            mode = self._rules.whole(self._reader, size, partition)
        if self._rules.only_full and about_samples(size) <= self.num_samples:
            mode = OnlyFull(self._reader, mode, about_samples(size))
        if isinstance(partition, GlobalPartition):
            if not partition.lanes:
                check_deal(
                    partition, size, is_randomized=self._rules.is_randomized, is_truncated=self._rules.is_truncated
                )
            if partition.remainder == "merge":
                mode = MergedMinibatches(mode, self._reader, partition.count)
            if rounds_to_pass is None and self._settings and self._settings[1].of_workers == partition.of_workers:
                rounds_to_pass = self.bookmark().rounds_to_pass
            mode = turns = InTurn(mode, partition, rounds_to_pass)
            # Sequences that are carried over or continue in a slot are still needed after their window.
            ends_with_window = not self._rules.is_truncated and not carries(size)
            if self._rules.loads_parts and partition.is_dealt and ends_with_window:
                mode = ahead = DealtAhead(turns, self._reader, partition, size)
            elif partition.count > 1 and partition.is_dealt:
                mode = DealtMinibatches(mode, self._reader.chunk_starts, partition, size)
        self._leave_ahead()
        # The call would empty the slots and restart the count, but the same global minibatches continue.
        if not is_same_deal(self._settings, size, partition, cursor.position):
            self._reader.change_partition(partition.of_reads.index, partition.of_reads.count, rows)
        self._settings, self._mode, self._turns, self._ahead = (size, partition), mode, ahead or turns, ahead
        self._lanes, self._has_pending = lanes, self._rules.is_truncated or carries(size)

    def _place(self, lanes: LaneReads, size: Size, partition: Partition) -> None:
        """Let reads in lanes begin at the position of the timeline."""
        if self._lanes is not None and is_same_deal(self._settings, size, partition, self.position):
            lanes.go_to(self._cursor)
        elif self._settings is not None and self.position % self.num_samples:
            why = "an order in lanes begins where a sweep does"
            raise ConfigError(f"lanes={partition.num_lanes} inside a sweep that began without: {why}", key="lanes")
        else:
            lanes.go_to(lanes.at_position(self.position))

    def _leave_ahead(self) -> None:
        """Bring the core's reader back to where the last read ended."""
        if self._ahead is not None:
            self._reader.rewind(self._ahead.cursor)
            self._ahead = None
        elif self._lanes is not None:
            # Other reads begin only where a sweep does.
            self._reader.set_position(self._lanes.cursor.position // self.num_samples * self.num_samples)
            self._lanes = None

    def in_lanes(self, partition: GlobalPartition, first_sequence: int) -> OrderInLanes:
        """Return the order of the lanes of a partition, which has a position of its own.

        `first_sequence` is the number of the first sequence of this table.
        """
        check_deal(partition, 1, is_randomized=self._rules.is_randomized, is_truncated=self._rules.is_truncated)
        starts = self._reader.chunk_starts
        # The caller cuts chunks, since it knows the other tables.
        table = LanesOfTable(self._rules.lengths, starts, self._rules.make.keywords, None, loads_parts=False)
        return OrderInLanes(table, partition.lanes, first_sequence)

    def bookmark(self) -> _Bookmark:
        slots = self._reader.pending if self._rules.is_truncated else []
        rounds_to_pass = 0 if self._turns is None else self._turns.rounds_to_pass
        return _Bookmark(self._settings, self._cursor, slots, rounds_to_pass, self._course)

    def go_back(self, bookmark: _Bookmark, *, in_child: bool = False) -> None:
        """Go back to a bookmark: cheap over one read; from further on, the order of the sweep is computed again."""
        # The thread of the parent that may have been in a read is not in the child.
        if in_child:
            self._reader, self._ahead, self._lanes = self._rules.new_reader(), None, None
            self.__dict__.pop("_needs", None)
        is_same = (bookmark.settings, bookmark.course) == (self._settings, self._course)
        if self._lanes is not None and self._turns is not None and is_same:
            self._lanes.go_to(bookmark.cursor)
            self._turns.rounds_to_pass = bookmark.rounds_to_pass
            return
        # Dealt reads stay valid while the size, the partition and the end are the same.
        if self._ahead is not None and is_same and self._ahead.go_back(bookmark.cursor, bookmark.rounds_to_pass):
            return
        self._leave_ahead()
        self._set_course(bookmark.course)
        self._settings = self._turns = None
        if bookmark.settings is not None:
            self._take_up(*bookmark.settings, bookmark.rounds_to_pass)
        # Last, because `_take_up` restarts the count, and moves a partition without chunks to the end.
        move = self._reader.rewind if self._lanes is None else self._lanes.go_to
        move(bookmark.cursor)
        if bookmark.settings is not None and self._rules.is_truncated:
            self._reader.restore_pending(bookmark.slots)

    def hold(self, bookmark: _Bookmark) -> None:
        if self._lanes is not None:
            self._lanes.hold(bookmark.cursor)
            return
        self._reader.hold(bookmark.cursor)
        if self._ahead is not None:
            self._ahead.hold(bookmark.cursor)

    def begin_epoch(
        self, begin: int, end: int, truncation_length: int | None = None, num_rows: int | None = None
    ) -> None:
        """Go to the position `begin`, and let the data end at `end`; going back to an earlier bookmark undoes this.

        `truncation_length` sets the steps of minibatches from now on, and `num_rows` their rows, if the minibatch size
        gives the steps. A timeline without epochs raises a `ConfigError`, as in `ends_at`.

        Raises:
            CheckpointError: `begin` is not in ``0 .. 2**64 - 1``.
        """
        steps = self._course.truncation_length if truncation_length is None else truncation_length
        self._set_course(_Course(end, Limits(), steps, self._course.num_rows if num_rows is None else num_rows))
        self.go_to(begin)

    def ends_at(self, bookmark: _Bookmark) -> bool:
        """Return whether the data end at a bookmark of this timeline."""
        return bookmark.cursor.position >= bookmark.course.end and not any(bookmark.slots)

    def go_to(self, position: int, place: tuple[int, int] | None = None) -> None:
        """Go to the first sequence that starts at or after `position`, with empty slots, as CNTK does.

        It costs as much as computing the order of the sweep up to there, but with the `place` of a state nothing.

        Raises:
            CheckpointError: `position` is not in ``0 .. 2**64 - 1``.
        """
        if not 0 <= position <= LARGEST_WORD:
            raise CheckpointError(f"position {position} is outside 0..2^64 - 1", saved=position)
        self._leave_ahead()
        self._reader.set_position(position, self._rules.known_index(self._reader, position, place))
        self._settings = self._turns = None

    def checkpoint(self, bookmark: _Bookmark | None = None) -> dict[str, int]:
        """Return CNTK's state at a bookmark, or at the current position, with CNTK's keys."""
        return {POSITION: self.position if bookmark is None else bookmark.cursor.position}

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Go where a `checkpoint` was taken, with empty slots, as CNTK does. Other keys are ignored.

        Raises:
            CheckpointError: A key is missing, or its value is not possible.
        """
        self.go_to(whole(POSITION, checkpoint.get(POSITION)))

    def state(self, bookmark: _Bookmark | None = None) -> dict[str, Any]:
        """Return all that is needed to continue from a bookmark, or from here: a small dict for JSON.

        Returns:
            ``position``; in a keyed order ``place`` (sequences of the sweep before it, a checksum); and after a first
            read ``minibatch_size`` (of a budget: its fields), ``partition`` (index and count), ``count`` (in order: the
            running count of sequences), ``slots`` (truncated: for each slot a list of sequence, first sample not
            delivered, and whether its read met the end of a sweep), ``num_slots`` (if further slots are empty), and
            ``batch`` (in a pool: minibatches delivered). Global partitions have in place of ``partition``: ``global``
            (worker, number of workers, reads of other workers before the next) and, with ``deal="minibatch"``,
            ``rounds`` (number of partitions, remainder).

        Example:
            >>> timeline = Timeline(np.array([3, 1, 5], np.uint32), np.array([0, 3]), window=None)
            >>> timeline.read(4).sequences.tolist()
            [0, 1]
            >>> state = timeline.state()
            >>> state
            {'position': 4, 'minibatch_size': 4, 'partition': [0, 1], 'count': 2}
            >>> again = Timeline(np.array([3, 1, 5], np.uint32), np.array([0, 3]), window=None)
            >>> again.load_state(state)
            >>> again.read(4).sequences.tolist()
            [2]
        """
        settings, cursor, slots, rounds_to_pass, _ = bookmark or self.bookmark()
        count = None if self._rules.is_randomized else cursor.count
        place = self._rules.place_of(self._reader, cursor)
        own_slots = slots if self._rules.is_truncated else None
        # Of empty slots at the end, the reader keeps only the number.
        num_rows = num_slots(*settings, self._course.steps(settings[0])) if settings and own_slots is not None else 0
        last = rounds_to_pass, num_rows, cursor.batch, place
        return State(cursor.position, settings, count, own_slots, *last).to_json()

    def load_state(self, state: Mapping[str, Any], num_rows: int | None = None) -> None:
        """Continue where a `state` was taken. A later read may ask for another size or partition.

        `num_rows` as for `begin_epoch`.

        Raises:
            CheckpointError: The state does not fit this timeline.
        """
        position, settings, count, slots, rounds_to_pass, saved_slots, batch, place = State.from_json(state)
        check_slots(slots or [], self._rules.lengths)
        if num_rows is not None:
            self._course = self._course._replace(num_rows=num_rows)
        try:
            if settings is not None and self._rules.is_truncated:
                # Check the number before memory is allocated for the slots.
                check_num_slots(saved_slots, num_slots(*settings, self._course.steps(settings[0])))
            num_lanes = 0 if settings is None else settings[1].num_lanes
            self.go_to(position // self.num_samples * self.num_samples if num_lanes else position, place)
            if position >= self.end and self._rules.is_randomized:
                # A partition without chunks is at the end, and a sequence need not start there.
                self._reader.rewind(Cursor(position, sweep=LARGEST_WORD))
            if settings is not None:
                self._take_up(*settings, rounds_to_pass)
                if self._lanes is not None:
                    self._lanes.restore(position, batch)
                else:
                    self._rules.budgets.go_to_batch(self._reader, settings, batch)
        except ConfigError as error:
            raise refused(state, error) from error
        if settings is not None and not self._rules.is_randomized:
            self._reader.set_count(count or 0)
        if settings is not None and self._rules.is_truncated:
            self._reader.restore_pending(slots or [])

    def needed_chunks(self, partition: Partition = WHOLE) -> Plan:
        """Return the chunks from which the next sequences can come, after those whose sequences slots continue.

        In randomized order these are the partition's chunks in the window at this position; in order, the chunk at this
        position. After the end, only the chunks of the slots remain.
        """
        if self._lanes is not None:
            return self._lanes.needed()
        of_slots = self._reader.pending_chunks if self._has_pending else ()
        return self._needs.plan(partition.of_chunks, self._ahead, of_slots)

    def chunks_ahead(self, partition: Partition = WHOLE) -> Iterator[int]:
        if self._lanes is not None:
            return self._lanes.ahead()
        return self._needs.ahead(partition.of_chunks, self._ahead, self.end)

    @functools.cached_property
    def _needs(self) -> Needs:
        return Needs(self._reader)

"""The order of user-defined deserializers, as CNTK 2.7 has it. (docs/user-defined.md, "The two timelines")

::

    chunks in the sweep's order   4 1 0 3 | 2 0 1 4 ...
    windows                      (. . .)(.   . .)            filled with whole chunks, one after the other
    segments                     (. . .)(.) (. .)            the part of a window in one sweep; each is shuffled

Its law: what a read delivers follows from the chunks' lengths, the settings, the partition and the state alone, where
the state is how a window is made and how many of its entries were taken. Only one segment of it is ever worked out.

The main timeline knows all lengths; here a chunk's are known when it was fetched, and a window is filled by fetching.
That is done through the function that the source gives; nothing here loads, packs or reads ahead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio.errors import CheckpointError, ConfigError, CorpusError
from cntkio.timeline import (
    FULL_DATA_SWEEP,
    INFINITELY_REPEAT,
    BalancedPartition,
    Partition,
    Parts,
    Reads,
    Selection,
    Window,
)

_ALL = Partition()
_LARGEST_WORD = 2**64 - 1
_LARGEST_COUNT = 2**62
_COMMON_KEYS = ("baseSweepCount", "baseSampleCount", "baseCurrentSequencePositionInWindow")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LocalSelection(Selection):
    """What one read delivers; `sequences` are numbers in their chunks, and `position` counts this partition's samples.

    Attributes:
        lengths: Samples that each sequence counts for, uint32.
    """

    lengths: npt.NDArray[np.uint32] = dataclasses.field(default_factory=lambda: np.zeros(0, np.uint32))


def chunk_and_number(selection: LocalSelection) -> npt.NDArray[np.str_]:
    """What the sequences of a selection are called: chunk and number in it, as ``"3:17"``."""
    parts = np.strings.add(selection.chunks.astype(np.str_), ":")
    return np.strings.add(parts, selection.sequences.astype(np.str_))


class _Place(NamedTuple):
    """Where a window or a segment begins.

    `place` counts chunks in the order of the sweep; by `running_count`, a number of sequences, partitions are chosen
    where there is no randomization.
    """

    place: int
    sweep: int
    running_count: int = 0


class _Segment(NamedTuple):
    """The part of a window in one sweep. Its entries are its sequences and, last, the mark of the sweep's end."""

    chunks: list[int]
    chunk_of: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.uint32]
    ends: npt.NDArray[np.int64]
    """Samples before each sequence and, last, all."""
    has_mark: bool
    behind: _Place
    left: int
    """What the window still takes; none: it ends here."""

    @property
    def num_entries(self) -> int:
        return len(self.numbers) + self.has_mark


class _Cursor(NamedTuple):
    sweeps: int
    samples: int
    origin: _Place
    """Where the window begins."""
    passed: int
    """Entries of the window before the segment."""
    start: _Place
    """Where the segment begins."""
    left: int
    """What the window takes from there on."""
    at: int
    """Entries of the segment that were passed; beyond its end: of what follows in the window."""
    segment: _Segment | None
    """None: not worked out yet."""


class _Owed(NamedTuple):
    """A sequence in a slot of truncated minibatches."""

    chunk: int
    number: int
    length: int
    next: int
    end_of_sweep: bool


_Slots = tuple[tuple[_Owed, ...], ...]


class LocalMark(NamedTuple):
    """Where a local timeline stands, for `LocalTimeline.rewind` of the same timeline."""

    settings: tuple[int, Partition] | None
    cursor: _Cursor
    slots: _Slots
    has_ended: bool


class LocalTimeline:
    """Which sequences each read delivers; the methods are those of `cntkio.timeline.Timeline`.

    One thread at a time may use it. It holds some 24 bytes for each sequence of a segment, that is of at most one sweep
    and one window.

    Args:
        num_chunks: How many chunks there are.
        lengths_of: Gives the lengths of a chunk's sequences, uint32; as a rule by fetching it.
        window: How much is shuffled at once; None: in order.
        seed: Sweep number k is shuffled with ``seed + k``, modulo 2**64.
        max_samples: The data end when this partition has had its share of them. `FULL_DATA_SWEEP`: one sweep.
        max_sweeps: The data end after so many sweeps.
        truncation_length: Steps of a truncated minibatch; 0: whole sequences.

    Raises:
        ConfigError: A setting is out of range, or two exclude each other.

    Example:
        >>> lengths = [np.array([3, 1], np.uint32), np.array([2], np.uint32)]
        >>> timeline = LocalTimeline(2, lengths.__getitem__, window=None, max_sweeps=1)
        >>> [(s.chunks.tolist(), s.sequences.tolist()) for s in iter(lambda: timeline.read(4), None)]
        [([0, 0], [0, 1]), ([1], [0])]
    """

    def __init__(
        self,
        num_chunks: int,
        lengths_of: Callable[[int], npt.NDArray[np.uint32]],
        *,
        window: Window | None,
        seed: int = 0,
        max_samples: int | None = None,
        max_sweeps: int | None = None,
        truncation_length: int = 0,
    ) -> None:
        max_samples = None if max_samples == INFINITELY_REPEAT else max_samples
        max_sweeps = None if max_sweeps == INFINITELY_REPEAT else max_sweeps
        if max_samples is not None and max_sweeps is not None:
            raise ConfigError(
                f"max_samples={max_samples} and max_sweeps={max_sweeps} exclude each other", key="max_samples"
            )
        for name, value in (
            ("seed", seed),
            ("max_samples", max_samples),
            ("max_sweeps", max_sweeps),
            ("truncation_length", truncation_length),
        ):
            most = 2**32 - 1 if name == "truncation_length" else _LARGEST_WORD
            if value is not None and not 0 <= value <= most:
                raise ConfigError(f"{name} is {value}, but it is in 0..{most}", key=name)
        if max_samples == FULL_DATA_SWEEP:
            max_samples, max_sweeps = None, 1
        self.num_chunks = num_chunks
        self._lengths_of = lengths_of
        self._window = window
        self._seed = seed
        self._max_samples = max_samples
        self._max_sweeps = max_sweeps
        self._truncation_length = truncation_length
        self._orders: dict[int, npt.NDArray[np.uint32]] = {}
        self._settings: tuple[int, Partition] | None = None
        self._has_ended = False
        self._slots: _Slots = ()
        self._cursor = self._window_at(_Place(0, 0))
        self._needed: tuple[object, list[int]] = (None, [])

    @property
    def num_samples(self) -> int:
        """Not known.

        Raises:
            CorpusError: Always.
        """
        raise CorpusError(
            "the size of a sweep is not known before all chunks were fetched; with timeline='global' it is"
        )

    num_sequences = num_samples

    @property
    def position(self) -> int:
        """Samples of this partition delivered up to and with the last read."""
        return self._cursor.samples

    # ---------------------------------------------------------------------------------------------- windows

    def _window_at(self, origin: _Place, index: int = 0, sweeps: int = 0, samples: int = 0) -> _Cursor:
        left = 1 if self._window is None else self._window.size
        return _Cursor(sweeps, samples, origin, 0, origin, left, index, None)

    def _order(self, sweep: int) -> npt.NDArray[np.uint32]:
        order = self._orders.get(sweep)
        if order is None:
            order = _core.chunk_order(self.num_chunks, self._seed_of(sweep))
            self._orders = {number: kept for number, kept in self._orders.items() if abs(number - sweep) <= 1}
            self._orders[sweep] = order
        return order

    def _seed_of(self, sweep: int) -> int:
        return (self._seed + sweep) & _LARGEST_WORD

    def _segment(self, start: _Place, left: int, partition: Partition) -> _Segment:
        if self._window is None:
            return self._segment_in_order(start, partition)
        order = self._order(start.sweep)
        chunks: list[int] = []
        lengths: list[npt.NDArray[np.uint32]] = []
        place = start.place + (partition.index - start.place) % partition.count
        behind = self.num_chunks
        while left > 0 and place < self.num_chunks:
            chunk = int(order[place])
            lengths_of_chunk = self._lengths_of(chunk)
            chunks.append(chunk)
            lengths.append(lengths_of_chunk)
            left -= 1 if self._window.unit == "chunks" else int(lengths_of_chunk.sum(dtype=np.int64))
            if left <= 0:
                behind = place + 1  # the window ends before chunks of other partitions
            place += partition.count
        sizes = [len(one) for one in lengths]
        chunk_of = np.repeat(np.array(chunks, np.int64), sizes)
        numbers = np.concatenate([np.zeros(0, np.int64), *(np.arange(size) for size in sizes)])
        all_lengths = np.concatenate([np.zeros(0, np.uint32), *lengths])
        # A window that begins within a sweep is told from others of that sweep by where it begins.
        shuffled = _core.shuffled(len(numbers), self._seed_of(start.sweep + start.place))
        has_mark = behind == self.num_chunks
        after = _Place(0, start.sweep + 1) if has_mark else _Place(behind, start.sweep)
        return _made(chunks, chunk_of[shuffled], numbers[shuffled], all_lengths[shuffled], has_mark, after, left)

    def _segment_in_order(self, start: _Place, partition: Partition) -> _Segment:
        """One chunk: without randomization that is a window."""
        lengths = self._lengths_of(start.place)
        first = (partition.index - start.running_count) % partition.count
        numbers = np.arange(first, len(lengths), partition.count, dtype=np.int64)
        has_mark = start.place + 1 == self.num_chunks
        if has_mark:
            behind = _Place(0, start.sweep + 1)
        else:
            behind = _Place(
                start.place + 1, start.sweep, start.running_count + len(lengths) if partition.count > 1 else 0
            )
        chunk_of = np.full(len(numbers), start.place, np.int64)
        return _made([start.place], chunk_of, numbers, lengths[numbers], has_mark, behind, 0)

    def _behind(self, cursor: _Cursor, segment: _Segment) -> _Cursor:
        """The place after a segment: in the same window, or at the start of the next."""
        if segment.left <= 0:
            return self._window_at(segment.behind, 0, cursor.sweeps, cursor.samples)
        passed = cursor.passed + segment.num_entries
        at = cursor.at - segment.num_entries
        return cursor._replace(passed=passed, start=segment.behind, left=segment.left, at=at, segment=None)

    def _worked_out(self, cursor: _Cursor, partition: Partition) -> tuple[_Cursor, _Segment]:
        """The same place, in a segment that holds it."""
        while True:
            segment = cursor.segment or self._segment(cursor.start, cursor.left, partition)
            if cursor.at < segment.num_entries:
                return cursor._replace(segment=segment), segment
            cursor = self._behind(cursor, segment)

    def _passed(self, cursor: _Cursor, segment: _Segment, num_entries: int) -> _Cursor:
        cursor = cursor._replace(at=cursor.at + num_entries, segment=segment)
        return self._behind(cursor, segment) if cursor.at == segment.num_entries else cursor

    # ---------------------------------------------------------------------------------------------- reading

    def read(self, minibatch_size_in_samples: int, partition: Partition = _ALL) -> LocalSelection | None:
        """Deliver the next sequences.

        Args:
            minibatch_size_in_samples: Samples of all partitions together, at least 1. It may change between reads.
            partition: The share to deliver. When it changes, the window is filled anew for it, from where it began.

        Returns:
            The selection, or None when the data have ended.

        Raises:
            ConfigError: The size or the limit is 0, or there are more partitions than slots.
            Exception: What fetching a chunk raised; the timeline then stands where it stood.
        """
        if (minibatch_size_in_samples, partition) != self._settings:
            if self._settings is not None and self._has_ended:
                return None
            self._settle(minibatch_size_in_samples, partition)
        if self._truncation_length:
            return self._read_truncated(partition)
        if self._has_ended:
            return None
        pieces, end_of_sweep = self._take(partition.share(minibatch_size_in_samples), partition)
        if not pieces:
            return None
        chunks, numbers, lengths = (np.concatenate(column) for column in zip(*pieces, strict=True))
        return LocalSelection(numbers, chunks, end_of_sweep, self.position, lengths=lengths)

    def read_several(self, minibatch_size_in_samples: int, partition: Partition, most: int) -> Reads | None:
        """A single `read`."""
        selection = self.read(minibatch_size_in_samples, partition)
        return None if selection is None else Reads.of(selection, self.mark())

    def _settle(self, size: int, partition: Partition) -> None:
        if size < 1:
            raise ConfigError(
                f"minibatch_size_in_samples is {size}, but it is at least 1", key="minibatch_size_in_samples"
            )
        if self._max_samples == 0:
            raise ConfigError("max_samples is 0, but it is at least 1", key="max_samples")
        if isinstance(partition, BalancedPartition):
            raise ConfigError(
                "a user-defined deserializer on its own timeline has no balanced partitions; with timeline='global' it "
                "has",
                key="timeline",
            )
        num_slots = 0
        if self._truncation_length:
            num_slots = max(1, size // self._truncation_length)
            if partition.count > num_slots:
                raise ConfigError(
                    f"{partition.count} partitions share {num_slots} slots (minibatch_size_in_samples={size}, "
                    f"truncation_length={self._truncation_length}): increase the minibatch size or decrease the "
                    f"number of partitions",
                    key="num_data_partitions",
                )
            num_slots = partition.share(num_slots)
        if self._settings is not None and self._settings[1] != partition:
            cursor = self._cursor
            self._cursor = self._window_at(cursor.origin, cursor.passed + cursor.at, cursor.sweeps, cursor.samples)
        self._slots = ((),) * num_slots
        self._has_ended = False
        self._settings = (size, partition)

    def _is_at_end(self, cursor: _Cursor, partition: Partition) -> bool:
        if self._max_sweeps is not None:
            return cursor.sweeps >= self._max_sweeps
        return self._max_samples is not None and cursor.samples >= partition.share(self._max_samples)

    def _take(self, share: int, partition: Partition) -> tuple[list[tuple[npt.NDArray[Any], ...]], bool]:
        """Whole sequences while they fit into `share` samples, at least one; and whether a sweep's mark was passed."""
        share = max(1, min(share, _LARGEST_COUNT))
        most = _LARGEST_COUNT if self._max_samples is None else min(partition.share(self._max_samples), _LARGEST_COUNT)
        pieces: list[tuple[npt.NDArray[Any], ...]] = []
        num_samples = num_marks = 0
        end_of_sweep = False
        cursor = self._cursor
        while num_samples < share and not self._is_at_end(cursor, partition):
            cursor, segment = self._worked_out(cursor, partition)
            begin = cursor.at
            if begin == len(segment.numbers):
                cursor = self._passed(cursor._replace(sweeps=cursor.sweeps + 1), segment, 1)
                end_of_sweep = True
                num_marks += 1
                if num_marks == 2:
                    break  # a whole sweep held nothing for this partition, and no other will
                continue
            before = segment.ends[begin]
            end = int(np.searchsorted(segment.ends, before + (share - num_samples), side="right")) - 1
            if not pieces:
                end = max(end, begin + 1)
            # A sequence that begins before the limit is delivered whole.
            end = min(end, int(np.searchsorted(segment.ends[:-1], before + (most - cursor.samples), side="left")))
            if end == begin:
                break
            pieces.append((segment.chunk_of[begin:end], segment.numbers[begin:end], segment.lengths[begin:end]))
            taken = int(segment.ends[end] - before)
            num_samples += taken
            num_marks = 0
            cursor = self._passed(cursor._replace(samples=cursor.samples + taken), segment, end - begin)
        self._cursor = cursor
        self._has_ended = num_marks == 2 or self._is_at_end(cursor, partition)
        return pieces, end_of_sweep

    def _read_truncated(self, partition: Partition) -> LocalSelection | None:
        """Fill each slot, and take a truncation length of samples from each. The loops are over the sequences taken."""
        steps = self._truncation_length
        before = self.mark()
        try:
            slots = [self._filled(slot, partition) for slot in self._slots]
        except BaseException:
            self.rewind(before)
            raise
        rows: list[tuple[int, int, int, int, int, int, int, bool]] = []
        end_of_sweep = False
        for number, slot in enumerate(slots):
            step = 0
            while step < steps and slot:
                owed = slot[0]
                num_samples = min(steps - step, owed.length - owed.next)
                goes_on = owed.next + num_samples < owed.length
                rows.append((number, owed.chunk, owed.number, owed.length, owed.next, num_samples, step, goes_on))
                step += num_samples
                if goes_on:
                    slot[0] = owed._replace(next=owed.next + num_samples)
                else:
                    end_of_sweep |= owed.end_of_sweep
                    del slot[0]
        self._slots = tuple(tuple(slot) for slot in slots)
        if not rows:
            return None
        table = np.array(rows, np.int64)
        slot_of, chunks, numbers, lengths, first_samples, num_samples_of, steps_of, goes_on_of = table.T.copy()
        parts = Parts(slot_of, first_samples, num_samples_of, steps_of, goes_on_of.astype(np.bool_), len(slots), steps)
        return LocalSelection(numbers, chunks, end_of_sweep, self.position, parts, lengths=lengths.astype(np.uint32))

    def _filled(self, slot: tuple[_Owed, ...], partition: Partition) -> list[_Owed]:
        filled = list(slot)
        unread = sum(owed.length - owed.next for owed in filled)
        while unread <= self._truncation_length and not self._has_ended:
            pieces, end_of_sweep = self._take(1, partition)
            for chunks, numbers, lengths in pieces:
                filled.append(_Owed(int(chunks[0]), int(numbers[0]), int(lengths[0]), 0, end_of_sweep))
                unread += int(lengths[0])
        return filled

    # -------------------------------------------------------------------------------------------- where it is

    def mark(self) -> LocalMark:
        """Where the timeline stands, for `rewind`. Cheap."""
        return LocalMark(self._settings, self._cursor, self._slots, self._has_ended)

    def rewind(self, mark: LocalMark) -> None:
        """Go back to a mark of this timeline. Cheap."""
        self._settings, self._cursor, self._slots, self._has_ended = mark

    def rewind_in_fork(self, mark: LocalMark) -> None:
        """Go back to a mark in a fork of the process. What a thread was just doing there leaves nothing half done."""
        self.rewind(mark)

    def hold(self, mark: LocalMark) -> None:
        """Nothing has to be kept: going back is cheap from anywhere."""

    def _keys(self) -> tuple[str, str]:
        if self._window is None:
            return ("currentChunkPosition", "currentSequencePosition")
        return ("chunkPosition", "sweepIndex")

    def checkpoint(self, mark: LocalMark | None = None) -> dict[str, int]:
        """CNTK's state: sweeps, samples, the index in the window, and how that window is made."""
        cursor = self._cursor if mark is None else mark.cursor
        origin = cursor.origin
        of_window = (origin.place, origin.running_count if self._window is None else origin.sweep)
        values = (cursor.sweeps, cursor.samples, cursor.passed + cursor.at, *of_window)
        return dict(zip((*_COMMON_KEYS, *self._keys()), values, strict=True))

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Go where a `checkpoint` was taken, with empty slots, as CNTK does. Other keys are ignored.

        It costs nothing; the next read works out, and fetches the chunks of, the part of the window before that place.

        Raises:
            CheckpointError: A key is missing, or its value is not possible.
        """
        values = []
        for key in (*_COMMON_KEYS, *self._keys()):
            value = checkpoint.get(key)
            if not isinstance(value, int | np.integer) or not 0 <= value <= _LARGEST_WORD:
                raise CheckpointError(
                    f"the checkpoint has no {key!r} that is a whole number from 0; it has: {dict(checkpoint)} "
                    f"(this source has a user-defined deserializer with timeline='local' "
                    f"{'in order' if self._window is None else 'randomized'})",
                    saved=value,
                )
            values.append(int(value))
        sweeps, samples, index, place, last = values
        if place >= self.num_chunks:
            raise CheckpointError(
                f"the checkpoint stands at chunk {place}, but there are {self.num_chunks}",
                saved=place,
                current=self.num_chunks,
            )
        origin = _Place(place, sweeps, last) if self._window is None else _Place(place, last)
        self._cursor = self._window_at(origin, index, sweeps, samples)
        self._settings = None
        self._slots = ()
        self._has_ended = False

    def state(self, mark: LocalMark | None = None) -> dict[str, Any]:
        """All that is needed to go on just here, or at a mark of this timeline: a small dict for JSON.

        Returns:
            The keys of `checkpoint`; and after a first read ``minibatch_size``, ``partition`` (index and count) and,
            truncated, ``slots`` (for each a list of chunk, number in the chunk, length, first sample not delivered, and
            whether its read met the end of a sweep).
        """
        mark = self.mark() if mark is None else mark
        state: dict[str, Any] = dict(self.checkpoint(mark))
        if mark.settings is not None:
            size, partition = mark.settings
            state.update(minibatch_size=size, partition=[partition.index, partition.count])
            if self._truncation_length:
                state["slots"] = [[list(owed) for owed in slot] for slot in mark.slots]
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where a `state` was taken. Chunks that slots owe are fetched, to see that they are the same.

        Raises:
            CheckpointError: The state is not one of such a timeline over such data.
        """
        try:
            settings = None
            if "minibatch_size" in state:
                settings = (int(state["minibatch_size"]), Partition(*(int(number) for number in state["partition"])))
            slots = tuple(
                tuple(_Owed(int(c), int(n), int(length), int(at), bool(flag)) for c, n, length, at, flag in slot)
                for slot in state.get("slots", [])
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"not a state of a timeline: {error!r}", saved=dict(state)) from error
        self._check_slots(slots)
        self.restore(state)
        if settings is None:
            return
        self._settle(*settings)
        if self._truncation_length:
            if len(slots) != len(self._slots):
                raise CheckpointError(
                    f"the state holds {len(slots)} slots, but there are {len(self._slots)} here",
                    saved=len(slots),
                    current=len(self._slots),
                )
            self._slots = slots
        self._has_ended = self._is_at_end(self._cursor, settings[1])

    def _check_slots(self, slots: _Slots) -> None:
        lengths: dict[int, npt.NDArray[np.uint32]] = {}
        for owed in (owed for slot in slots for owed in slot):
            if 0 <= owed.chunk < self.num_chunks and owed.chunk not in lengths:
                lengths[owed.chunk] = self._lengths_of(owed.chunk)
            there = lengths.get(owed.chunk, np.zeros(0, np.uint32))
            is_there = 0 <= owed.number < len(there) and there[owed.number] == owed.length
            if not is_there or not 0 <= owed.next < owed.length:
                raise CheckpointError(
                    f"the state owes sequence {owed.number} of chunk {owed.chunk}, which is not as it was",
                    saved=list(owed),
                )

    # ------------------------------------------------------------------------------------------------- chunks

    def needed_chunks(self, partition: Partition = _ALL) -> list[int]:
        """The chunks of the segment worked out, after those that slots owe; the same list until that changes."""
        cursor = self._cursor
        owed = [one.chunk for slot in self._slots for one in slot]
        key = (cursor.origin, cursor.start, cursor.sweeps, cursor.segment is None, owed)
        if self._needed[0] != key:
            chunks = cursor.segment.chunks if cursor.segment is not None else []
            self._needed = (key, list(dict.fromkeys([*owed, *chunks])))
        return self._needed[1]

    def chunks_ahead(self, partition: Partition = _ALL) -> Iterator[int]:
        """The chunks needed after `needed_chunks`, in order of need, to the end of the next sweep or of the data."""
        if self._has_ended:
            return
        cursor = self._cursor
        start = cursor.start if cursor.segment is None else cursor.segment.behind
        for sweep, first in ((start.sweep, start.place), (start.sweep + 1, 0)):
            num_before = cursor.sweeps + sweep - cursor.start.sweep
            if self._max_sweeps is not None and num_before >= self._max_sweeps:
                return
            if self._window is None:
                yield from range(first, self.num_chunks)
            else:
                first += (partition.index - first) % partition.count
                yield from self._order(sweep)[first :: partition.count].tolist()


def _made(
    chunks: list[int],
    chunk_of: npt.NDArray[np.int64],
    numbers: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.uint32],
    has_mark: bool,
    behind: _Place,
    left: int,
) -> _Segment:
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    return _Segment(chunks, chunk_of, numbers, lengths, ends, has_mark, behind, left)

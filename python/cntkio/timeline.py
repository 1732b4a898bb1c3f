"""Which sequences each read delivers, in CNTK 2.7's order, without touching data. (docs/timeline.md)

::

    position  0 ············· N ············ 2N ············ 3N ···     N: samples in a sweep
    sweep     |      0        |      1        |      2        |         each in its own order: seed + sweep
    reads     |--|--|--|--|--|--|--|--|--|                              whole sequences, over sweeps' ends too

Its law: what a read delivers follows from the table of lengths, the settings and the position alone. It does not
depend on how far the order was worked out before, on threads, or on what else was read.

Settings are judged here; the loops over sequences, and the place where a reader stands, are in the compiled reader.
It does not load chunks, pack, or read ahead: it only says which chunks it will need.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio._core import TimelineReader
from cntkio.errors import CheckpointError, ConfigError, CorpusError

INFINITELY_REPEAT = 2**64 - 1
"""As `max_samples` or `max_sweeps`: no limit."""
FULL_DATA_SWEEP = 2**64 - 2
"""As `max_samples`: one sweep."""
DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS = 128
"""The window of the Python interface, however large a chunk is."""

_WHOLE_DATA_IN_SAMPLES = 2**62 - 1
_DEFAULT_WINDOW_IN_BYTES = 2**32
_DEFAULT_CHUNK_SIZE_IN_BYTES = 2**25
_LARGEST_POSITION = 2**63 - 1
_LARGEST_WORD = 2**64 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """How far a sequence may stray from the place of its chunk.

    Attributes:
        size: At least 1; 0 is taken as 1.
        unit: What is counted. Windows end at chunks also where samples are counted.

    Example:
        >>> Window(0, "chunks")
        Window(size=1, unit='chunks')
    """

    size: int
    unit: Literal["chunks", "samples"]

    def __post_init__(self) -> None:
        if self.size < 0 or self.unit not in ("chunks", "samples"):
            raise ConfigError(f"a randomization window is a number of chunks or samples, not {self.size} {self.unit}")
        object.__setattr__(self, "size", max(self.size, 1))


WHOLE_DATA = Window(_WHOLE_DATA_IN_SAMPLES, "samples")
"""The window over all data, as CNTK writes it."""


def python_window(
    in_chunks: int = DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS, in_samples: int = 0, *, randomize: bool = True
) -> Window | None:
    """The window of the Python interface; None is no randomization. (docs/timeline.md, "Default windows")

    Raises:
        ConfigError: Both windows are given.

    Example:
        >>> python_window()
        Window(size=128, unit='chunks')
        >>> python_window(0, 1000)
        Window(size=1000, unit='samples')
        >>> python_window(0, 0) is None
        True
    """
    if not randomize:
        return None
    if in_chunks and in_samples:
        raise ConfigError(
            f"randomization_window_in_chunks={in_chunks} and randomization_window_in_samples={in_samples} exclude each "
            f"other: a window in samples needs randomization_window_in_chunks=0 as well",
            key="randomization_window_in_samples",
        )
    if in_chunks:
        return Window(in_chunks, "chunks")
    return Window(in_samples, "samples") if in_samples else None


def composite_window(
    size: int | None = None,
    *,
    is_sample_based: bool | None = None,
    chunk_size_in_bytes: int = _DEFAULT_CHUNK_SIZE_IN_BYTES,
    has_text_format: bool = True,
) -> Window | None:
    """The window of a configured reader with a list of deserializers. (docs/timeline.md, "Default windows")

    Args:
        size: ``randomizationWindow``, if given; 0 is no randomization.
        is_sample_based: ``sampleBasedRandomizationWindow``, if given.
        chunk_size_in_bytes: ``chunkSizeInBytes`` of the reader's own section, not of a deserializer's.
        has_text_format: Whether a CTF deserializer is in the list.

    Raises:
        ConfigError: A window in samples is asked for, but not its size.

    Example:
        >>> composite_window()
        Window(size=128, unit='chunks')
        >>> composite_window(500)
        Window(size=500, unit='samples')
    """
    if size == 0:
        return None
    if size is not None:
        return Window(size, "chunks" if is_sample_based is False else "samples")
    if is_sample_based:
        raise ConfigError(
            "sampleBasedRandomizationWindow = true needs a randomizationWindow beside it", key="randomizationWindow"
        )
    return Window(_DEFAULT_WINDOW_IN_BYTES // chunk_size_in_bytes, "chunks") if has_text_format else WHOLE_DATA


def classic_text_window(
    size: int | None = None,
    *,
    is_sample_based: bool = False,
    chunk_size_in_bytes: int = _DEFAULT_CHUNK_SIZE_IN_BYTES,
) -> Window | None:
    """The window of ``readerType = "CNTKTextFormatReader"``. (docs/timeline.md, "Default windows")

    Example:
        >>> classic_text_window(chunk_size_in_bytes=2**31)
        Window(size=2, unit='chunks')
        >>> classic_text_window(is_sample_based=True) == WHOLE_DATA
        True
    """
    if size == 0:
        return None
    if size is not None:
        return Window(size, "samples" if is_sample_based else "chunks")
    return WHOLE_DATA if is_sample_based else Window(_DEFAULT_WINDOW_IN_BYTES // chunk_size_in_bytes, "chunks")


def classic_binary_window(size: int | None = None, *, is_sample_based: bool = False) -> Window | None:
    """The window of ``readerType = "CNTKBinaryReader"``. (docs/timeline.md, "Default windows")

    Example:
        >>> classic_binary_window()
        Window(size=128, unit='chunks')
    """
    if size is None and not is_sample_based:
        return Window(DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS, "chunks")
    return classic_text_window(size, is_sample_based=is_sample_based)


def classic_htk_window(randomize: int | Literal["auto", "none"] = "auto") -> Window | None:
    """The window of the classic HTK reader, from its ``randomize``. (docs/timeline.md, "Default windows")

    Example:
        >>> classic_htk_window() == WHOLE_DATA, classic_htk_window("none"), classic_htk_window(300)
        (True, None, Window(size=300, unit='samples'))
    """
    if randomize == "none":
        return None
    return WHOLE_DATA if randomize == "auto" else Window(randomize, "samples")


@dataclasses.dataclass(frozen=True, slots=True)
class Partition:
    """One share of the data: number `index` of `count`.

    Raises:
        ConfigError: `index` is outside ``0 .. count - 1``.

    Example:
        >>> Partition(2, 2)
        Traceback (most recent call last):
        cntkio.errors.ConfigError: partition_index 2 is outside 0..1: there are 2 partitions
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.count <= _LARGEST_POSITION:
            raise ConfigError(f"num_data_partitions is {self.count}, but it is at least 1", key="num_data_partitions")
        if not 0 <= self.index < self.count:
            raise ConfigError(
                f"partition_index {self.index} is outside 0..{self.count - 1}: there are {self.count} partitions",
                key="partition_index",
            )

    def share(self, whole: int) -> int:
        """The part of `whole` that falls to it, the first partitions taking what is left over.

        Example:
            >>> [Partition(index, 3).share(5) for index in range(3)]
            [2, 2, 1]
        """
        return whole // self.count + (self.index < whole % self.count)

    @property
    def of_chunks(self) -> Partition:
        """Whose chunks its sequences come from: where there is randomization, its own."""
        return self


@dataclasses.dataclass(frozen=True, slots=True)
class BalancedPartition(Partition):
    """One share of equally many minibatches: number `index` of `count`. (docs/timeline.md, "Balanced partitions")

    Minibatches of the whole data are dealt out in rounds, one to each partition, and no round goes past the end of a
    sweep. The last round of a sweep is cut so that each partition gets one; where fewer sequences are left than there
    are partitions, these are the remainder.

    Attributes:
        remainder: ``"drop"``: the remainder is not delivered. ``"repeat"``: it is delivered, some of its sequences to
            several partitions.
        worker: Which of the workers of this partition this is. They take rounds in turn.
        num_workers: How many workers this partition has.

    Raises:
        ConfigError: `index`, `remainder` or `worker` is not possible.

    Example:
        >>> timeline = Timeline(np.ones(7, np.uint32), np.array([0, 7]), window=None, max_sweeps=1)
        >>> one = BalancedPartition(1, 2)
        >>> [selection.sequences.tolist() for selection in iter(lambda: timeline.read(4, one), None)]
        [[2, 3], [6]]
    """

    remainder: Literal["drop", "repeat"] = "drop"
    worker: int = 0
    num_workers: int = 1

    def __post_init__(self) -> None:
        Partition.__post_init__(self)
        if self.remainder not in ("drop", "repeat"):
            raise ConfigError(f"remainder is {self.remainder!r}; expected 'drop' or 'repeat'", key="remainder")
        if not 0 <= self.worker < self.num_workers:
            raise ConfigError(f"worker {self.worker} is outside 0..{self.num_workers - 1}", key="worker")

    @property
    def of_chunks(self) -> Partition:
        """Sequences of any chunk may come."""
        return Partition()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The cells of a truncated minibatch: one entry per part of a sequence, by slot and then by step.

    Attributes:
        slot: The row, int64.
        first_sample: Which sample of its sequence comes first, int64; above 0 if an earlier minibatch held others.
        num_samples: How many samples come, int64, at least 1.
        step: The step of the first of them, int64.
        goes_on: Whether the sequence goes on in the next minibatch, at step 0 of the same slot, bool.
        num_slots: Rows of the minibatch.
        num_steps: Steps of the minibatch: the truncation length.
    """

    slot: npt.NDArray[np.int64]
    first_sample: npt.NDArray[np.int64]
    num_samples: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    goes_on: npt.NDArray[np.bool_]
    num_slots: int
    num_steps: int


class Places(NamedTuple):
    """Where sequences are.

    Attributes:
        chunks: The chunks, each once, in the order of their first sequence.
        firsts: Which sequence that is.
        places: For each sequence the place of its chunk among them, uint32.
        numbers: For each sequence its number in its chunk, uint32.
    """

    chunks: list[int]
    firsts: list[int]
    places: npt.NDArray[np.uint32]
    numbers: npt.NDArray[np.uint32]

    def chunks_of(self, first: int, last: int) -> list[int]:
        """The chunks of the sequences from `first` to before `last`, in the order of the first of them in each."""
        which, at = np.unique(self.places[first:last], return_index=True)
        return [self.chunks[place] for place in which[np.argsort(at)].tolist()]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """What one read delivers.

    Attributes:
        sequences: Their numbers in file order, int64, in delivered order. Empty: no data, but not the end either.
        chunks: The chunk of each, int64.
        end_of_sweep: Whether the read reached or crossed the end of a sweep.
        position: The position after it.
        parts: In a truncated minibatch, which part of each sequence goes where; else None.
        places: Where the sequences are. None where that was not worked out.
    """

    sequences: npt.NDArray[np.int64]
    chunks: npt.NDArray[np.int64]
    end_of_sweep: bool
    position: int
    parts: Parts | None = None
    places: Places | None = None


class Mark(NamedTuple):
    """Where a timeline stands, for `Timeline.rewind` of the same timeline. To be kept in a file: `Timeline.state`."""

    settings: tuple[int, Partition] | None
    cursor: tuple[int, int, int, int, int]
    owed: list[list[tuple[int, int, bool]]]
    rounds_to_pass: int = 0


class Reads(NamedTuple):
    """What several reads deliver, one after the other.

    Attributes:
        selection: All together; its end of a sweep and its position are those of the last read.
        bounds: Where the sequences of each begin in it and, last, their number.
        ends_of_sweep: Whether each reached or crossed the end of a sweep.
        marks: Where the timeline stood behind each.
    """

    selection: Selection
    bounds: list[int]
    ends_of_sweep: list[bool]
    marks: list[Any]

    @classmethod
    def of(cls, selection: Selection, mark: Any) -> Reads:
        """A single one."""
        return cls(selection, [0, len(selection.sequences)], [selection.end_of_sweep], [mark])


class Timeline:
    """Which sequences each read delivers.

    One thread at a time may use it. It holds, beside the table, 4 bytes for each sequence of a window, and some 50
    for each chunk.

    Args:
        lengths: Samples that each sequence counts for, in file order, uint32, each at least 1.
        chunk_starts: First sequence of each chunk and, last, the number of sequences, int64; no chunk is empty.
        window: How far sequences are shuffled; None: in order.
        seed: Sweep number k is shuffled with ``seed + k``, modulo 2**64.
        max_samples: The data end before the first sequence that starts here or later. `FULL_DATA_SWEEP`: one sweep.
        max_sweeps: The data end after so many sweeps.
        truncation_length: Steps of a truncated minibatch; 0: whole sequences.
        right_splice: How many samples a full row of a truncated minibatch and the next part of its sequence share.
        crosses_sweeps: Whether a read goes on into the next sweep. Classic readers do not.
        local_timeline: Whether the size counts this partition's samples only. In classic readers samples of all
            partitions count, also those that are only passed.
        counts_sequences: Whether the size of a read is a number of sequences. Positions count samples all the same.

    Attributes:
        num_samples: Samples in a sweep.
        num_sequences: Sequences in a sweep.
        num_chunks: Chunks in a sweep.

    Raises:
        ConfigError: A setting is out of range, or two exclude each other.
        CorpusError: There are no sequences, or one counts for no samples.

    Example:
        >>> lengths = np.array([3, 1, 2, 4], np.uint32)
        >>> timeline = Timeline(lengths, np.array([0, 2, 4]), window=None, max_sweeps=1)
        >>> [selection.sequences.tolist() for selection in iter(lambda: timeline.read(4), None)]
        [[0, 1], [2], [3]]
        >>> timeline.position
        10
    """

    def __init__(
        self,
        lengths: npt.NDArray[np.uint32],
        chunk_starts: npt.NDArray[np.int64],
        *,
        window: Window | None,
        seed: int = 0,
        max_samples: int | None = None,
        max_sweeps: int | None = None,
        truncation_length: int = 0,
        right_splice: int = 0,
        crosses_sweeps: bool = True,
        local_timeline: bool = True,
        counts_sequences: bool = False,
    ) -> None:
        max_samples = None if max_samples == INFINITELY_REPEAT else max_samples
        max_sweeps = None if max_sweeps == INFINITELY_REPEAT else max_sweeps
        for name, value in (
            ("seed", seed),
            ("max_samples", max_samples),
            ("max_sweeps", max_sweeps),
            ("truncation_length", truncation_length),
        ):
            most = 2**32 - 1 if name == "truncation_length" else _LARGEST_WORD
            if value is not None and not 0 <= value <= most:
                raise ConfigError(f"{name} is {value}, but it is in 0..{most}", key=name)
        if max_samples is not None and max_sweeps is not None:
            raise ConfigError(
                f"max_samples={max_samples} and max_sweeps={max_sweeps} exclude each other", key="max_samples"
            )
        if right_splice and not 0 < right_splice < truncation_length:
            raise ConfigError(
                f"right_splice={right_splice} is not below truncation_length={truncation_length}", key="right_splice"
            )
        self.num_sequences = len(lengths)
        self.num_chunks = len(chunk_starts) - 1
        if not self.num_sequences:
            raise CorpusError("there are no sequences to read")
        if self.num_sequences >= 2**32:
            raise CorpusError(f"{self.num_sequences} sequences are more than one source can hold (2^32 - 1)")
        if not lengths.min():
            raise CorpusError(f"sequence number {int(lengths.argmin())} counts for no samples")
        size = 0 if window is None else min(window.size, _LARGEST_WORD)
        self._new_reader = functools.partial(
            TimelineReader,
            np.ascontiguousarray(lengths, np.uint32),
            np.ascontiguousarray(chunk_starts, np.int64),
            window_in_chunks=size if window is not None and window.unit == "chunks" else 0,
            window_in_samples=size if window is not None and window.unit == "samples" else 0,
            seed=seed,
        )
        self._reader = self._new_reader(end=0)
        self.num_samples: int = self._reader.num_samples
        self._is_randomized = window is not None
        self._max_samples = max_samples
        if max_sweeps is not None:
            self._end = max_sweeps * self.num_samples
        elif max_samples is not None:
            self._end = self.num_samples if max_samples == FULL_DATA_SWEEP else max_samples
        else:
            self._end = _LARGEST_POSITION
        self._reader.set_end(min(self._end, _LARGEST_WORD))
        self._truncation_length = truncation_length
        self._right_splice = right_splice
        self._crosses_sweeps = crosses_sweeps
        self._local_timeline = local_timeline
        self._counts_sequences = counts_sequences
        self._settings: tuple[int, Partition] | None = None
        self._share = 0
        self._passed = 0
        self._num_slots = 0
        self._rounds_to_pass = 0
        self._needed: tuple[object, list[int], int] = (None, [], 0)

    @property
    def end(self) -> int:
        """Position at which the data end."""
        return self._end

    @property
    def position(self) -> int:
        """Samples of all partitions passed up to and with the last read: all that CNTK's checkpoint keeps."""
        return self._reader.cursor[0]

    @property
    def num_bytes(self) -> int:
        """Bytes held beside the table."""
        return self._reader.num_bytes

    def read(self, minibatch_size_in_samples: int, partition: Partition = Partition()) -> Selection | None:
        """Deliver the next sequences.

        Args:
            minibatch_size_in_samples: Samples of all partitions together, at least 1. It may change between reads.
            partition: The share to deliver. It may change between reads.

        Returns:
            The selection, or None when the data have ended. A selection without sequences is not the end.

        Raises:
            ConfigError: The size is 0, the limit is 0 or too large, or there are more partitions than slots.
        """
        # Not that of a timeline which makes several reads of this one.
        reads = Timeline.read_several(self, minibatch_size_in_samples, partition, 1)
        return None if reads is None else reads.selection

    def read_several(self, minibatch_size_in_samples: int, partition: Partition, most: int) -> Reads | None:
        """Up to `most` reads at once, and no further than to one behind which other chunks are needed.

        Truncated minibatches, and those of balanced partitions, come one at a time. See `read` for the rest.
        """
        size = minibatch_size_in_samples
        if (size, partition) != self._settings:
            if self._settings is not None and self._has_ended():
                return None
            self._settle(size, partition)
        if self._truncation_length:
            truncated = self._read_truncated(partition)
            return None if truncated is None else Reads.of(truncated, self.mark())
        if isinstance(partition, BalancedPartition):
            dealt = self._read_balanced(size, partition)
            return None if dealt is None else Reads.of(dealt, self.mark())
        found = self._reader.read_several(
            self._share, self._passed, self._crosses_sweeps, self._counts_sequences, partition.index, partition.count,
            most,
        )  # fmt: skip
        if found is None:
            return None
        sequences, chunks, bounds, ends, cursors, places = found
        selection = Selection(sequences, chunks, ends[-1], cursors[-1][0], None, Places(*places))
        settings, nothing_owed = self._settings, list[list[tuple[int, int, bool]]]()
        marks = [Mark(settings, cursor, nothing_owed, self._rounds_to_pass) for cursor in cursors]
        return Reads(selection, bounds, ends, marks)

    def _read_balanced(self, size: int, partition: BalancedPartition) -> Selection | None:
        while True:
            dealt = self._round(size, partition)
            if dealt is None:
                return None
            if not self._rounds_to_pass:
                self._rounds_to_pass = partition.num_workers - 1
                return dealt
            self._rounds_to_pass -= 1

    def _round(self, size: int, partition: BalancedPartition) -> Selection | None:
        """What the next round has for this partition; None when there is no further round."""
        runs: list[npt.NDArray[np.int64]] = []  # of pairs of sequence and chunk
        found = None
        end_of_sweep = False
        for index in range(partition.count):
            share = max(1, Partition(index, partition.count).share(min(size, _LARGEST_POSITION)))
            found = self._reader.read_several(share, _LARGEST_WORD, False, self._counts_sequences, 0, 1, 1)
            if found is None:
                break
            sequences, chunks, _, (end_of_sweep,), (cursor,), places = found
            if index == partition.index:
                own = Selection(sequences, chunks, end_of_sweep, cursor[0], None, Places(*places))
            runs.append(np.stack([sequences, chunks]))
            if end_of_sweep:
                break
        if len(runs) == partition.count:
            if not end_of_sweep and partition.remainder == "drop":
                end_of_sweep = self._pass_remainder(partition.count)
            return dataclasses.replace(own, end_of_sweep=end_of_sweep, position=self.position)
        num_left = sum(run.shape[1] for run in runs)
        if not num_left or (num_left < partition.count and partition.remainder == "drop"):
            return self._round(size, partition) if end_of_sweep else None
        if num_left < partition.count:
            left = np.concatenate(runs, axis=1)
            runs = [left[:, [index % num_left]] for index in range(partition.count)]
        while len(runs) < partition.count:
            longest = max(range(len(runs)), key=lambda number: runs[number].shape[1])
            half = (runs[longest].shape[1] + 1) // 2
            runs[longest : longest + 1] = [runs[longest][:, :half], runs[longest][:, half:]]
        sequences, chunks = runs[partition.index]
        return Selection(sequences, chunks, end_of_sweep, self.position)

    def _pass_remainder(self, count: int) -> bool:
        """Go past what is left of the sweep if it is less than a sequence for each; whether that is its end."""
        index = self._reader.cursor[2]
        if self.num_sequences - index >= count:
            return False
        found = self._reader.read_several(_LARGEST_POSITION, _LARGEST_WORD, False, False, 0, 1, 1)
        return found is not None and found[3][0]

    def _has_ended(self) -> bool:
        return self.position >= self._end and not any(self._reader.owed)

    def ends_at(self, mark: Mark) -> bool:
        """Whether a mark of this timeline stands where the data end."""
        return mark.cursor[0] >= self._end and not any(mark.owed)

    def _read_truncated(self, partition: Partition) -> Selection | None:
        steps = self._truncation_length
        found = self._reader.read_truncated(
            steps, self._right_splice, self._crosses_sweeps, partition.index, partition.count
        )
        if found is None:
            return None
        slot, sequences, chunks, first_sample, num_samples, step, goes_on, end_of_sweep, position = found
        parts = Parts(slot, first_sample, num_samples, step, goes_on, self._num_slots, steps)
        return Selection(sequences, chunks, end_of_sweep, position, parts)

    def _settle(self, size: int, partition: Partition) -> None:
        """Take up a size and a partition, as at the first read, after a restore, and when they change."""
        self._check_and_share(size, partition)
        self._rounds_to_pass = partition.worker if isinstance(partition, BalancedPartition) else 0
        of_chunks = partition.of_chunks
        self._reader.settle(of_chunks.index, of_chunks.count, self._num_slots)

    def _check_and_share(self, size: int, partition: Partition) -> None:
        if size < 1:
            raise ConfigError(
                f"minibatch_size_in_samples is {size}, but it is at least 1", key="minibatch_size_in_samples"
            )
        if self._max_samples == 0:
            raise ConfigError("max_samples is 0, but it is at least 1", key="max_samples")
        if self._is_randomized and self._end > _LARGEST_POSITION:
            raise ConfigError(
                f"the data would end at sample {self._end}, but a randomized source counts up to 2^63 - 1",
                key="max_samples" if self._max_samples is not None else "max_sweeps",
            )
        if isinstance(partition, BalancedPartition):
            if self._truncation_length:
                raise ConfigError(
                    f"truncation_length={self._truncation_length} and balanced partitions exclude each other: the "
                    f"slots of truncated minibatches are shared out evenly as it is",
                    key="truncation_length",
                )
            if partition.count > self.num_sequences and partition.remainder == "drop":
                raise ConfigError(
                    f"{partition.count} partitions share {self.num_sequences} sequences: with remainder='drop' nothing "
                    f"would be delivered; remainder='repeat' gives one to each",
                    key="remainder",
                )
        if self._truncation_length:
            num_slots = max(1, size // self._truncation_length)
            if partition.count > num_slots:
                raise ConfigError(
                    f"{partition.count} partitions share {num_slots} slots (minibatch_size_in_samples={size}, "
                    f"truncation_length={self._truncation_length}): increase the minibatch size or decrease the "
                    f"number of partitions",
                    key="num_data_partitions",
                )
            self._num_slots = partition.share(num_slots)
        size = min(size, _LARGEST_POSITION)
        self._share = max(1, partition.share(size)) if self._local_timeline else size
        self._passed = _LARGEST_WORD if self._local_timeline else size
        self._settings = (size, partition)

    def restore(self, position: int) -> None:
        """Go to the first sequence that starts at or after `position`, with empty slots, as CNTK does.

        It costs as much as working the sweep's order out up to there.

        Raises:
            CheckpointError: `position` is not in ``0 .. 2**64 - 1``.
        """
        if not 0 <= position <= _LARGEST_WORD:
            raise CheckpointError(f"position {position} is outside 0..2^64 - 1", saved=position)
        self._reader.set_position(position)
        self._settings = None

    def begin_epoch(self, begin: int, end: int, truncation_length: int | None = None) -> None:
        """Start a classic epoch: go to the position `begin`, and let the data end at `end`.

        With `truncation_length`, minibatches have so many steps from now on.

        Raises:
            CheckpointError: `begin` is not in ``0 .. 2**64 - 1``.
        """
        if truncation_length is not None:
            self._truncation_length = truncation_length
        self._end = end
        self._max_samples = None
        self._reader.set_end(min(end, _LARGEST_WORD))
        self.restore(begin)

    def state(self, mark: Mark | None = None) -> dict[str, Any]:
        """All that is needed to go on just here, or at a mark of this timeline: a small dict for JSON.

        Returns:
            ``position``; and after a first read ``minibatch_size``, ``partition`` (index and count), ``count`` (the
            running count of sequences, in order), ``slots`` (truncated: for each slot a list of sequence, first
            sample not delivered, and whether its read met the end of a sweep) and ``balanced`` (of balanced partitions:
            remainder, worker, number of workers, and how many rounds are for other workers before the next).

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
        mark = self.mark() if mark is None else mark
        position, _, _, _, count = mark.cursor
        state: dict[str, Any] = {"position": position}
        if mark.settings is not None:
            size, partition = mark.settings
            state.update(minibatch_size=size, partition=[partition.index, partition.count])
            if not self._is_randomized:
                state["count"] = count
            if self._truncation_length:
                state["slots"] = [[list(owed) for owed in slot] for slot in mark.owed]
            if isinstance(partition, BalancedPartition):
                turns = [partition.worker, partition.num_workers, mark.rounds_to_pass]
                state["balanced"] = [partition.remainder, *turns]
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where a `state` was taken. A later read with another size or partition is a change like any other.

        Raises:
            CheckpointError: The state is not one of a timeline over such data.
        """
        try:
            position = state["position"]
            settings = None
            rounds_to_pass = 0
            if "minibatch_size" in state:
                index, partition_count = (int(number) for number in state["partition"])
                settings = (int(state["minibatch_size"]), Partition(index, partition_count))
            if settings is not None and "balanced" in state:
                remainder, *turns = state["balanced"]
                worker, num_workers, rounds_to_pass = (int(number) for number in turns)
                share = BalancedPartition(index, partition_count, remainder, worker, num_workers)
                settings = (settings[0], share)
            count = int(state.get("count", 0))
            slots = [[(int(s), int(n), bool(f)) for s, n, f in slot] for slot in state.get("slots", [])]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"not a state of a timeline: {error!r}", saved=dict(state)) from error
        if type(position) is not int or not 0 <= count <= _LARGEST_POSITION:
            raise CheckpointError("not a state of a timeline: position or count is no number", saved=dict(state))
        self._check_slots(slots)
        self.restore(position)
        if position >= self._end and self._is_randomized:
            # A partition without chunks stands at the end, which need not be where a sequence starts.
            self._reader.rewind((position, _LARGEST_WORD, 0, 0, 0))
        if settings is None:
            return
        self._settle(*settings)
        self._rounds_to_pass = rounds_to_pass
        if not self._is_randomized:
            self._reader.set_count(count)
        if self._truncation_length:
            if len(slots) != self._num_slots:
                raise CheckpointError(
                    f"the state holds {len(slots)} slots, but there are {self._num_slots} here",
                    saved=len(slots),
                    current=self._num_slots,
                )
            self._reader.owe(slots)

    def _check_slots(self, slots: list[list[tuple[int, int, bool]]]) -> None:
        owed = np.array([(s, n) for slot in slots for s, n, _ in slot], np.int64).reshape(-1, 2)
        if not len(owed):
            return
        sequences, firsts = owed.T
        if (sequences < 0).any() or (sequences >= self.num_sequences).any():
            raise CheckpointError(
                f"the state owes sequences that are not among the {self.num_sequences} of this source",
                saved=int(sequences.max()),
                current=self.num_sequences,
            )
        lengths = self._reader.lengths[sequences]
        if (firsts < 0).any() or (firsts >= lengths).any():
            raise CheckpointError(
                "the state owes samples that this source's sequences do not have", saved=firsts.tolist()
            )

    def mark(self) -> Mark:
        """Where the timeline stands, for `rewind`. Cheap."""
        owed = self._reader.owed if self._truncation_length else []
        return Mark(self._settings, self._reader.cursor, owed, self._rounds_to_pass)

    def rewind(self, mark: Mark) -> None:
        """Go back to a mark of this timeline. Cheap over one read; from farther back the order is worked out again."""
        self._settings = None
        if mark.settings is not None:
            self._settle(*mark.settings)
            self._rounds_to_pass = mark.rounds_to_pass
        self._reader.rewind(mark.cursor)
        if mark.settings is not None and self._truncation_length:
            self._reader.owe(mark.owed)

    def rewind_in_fork(self, mark: Mark) -> None:
        """Go back to a mark in a fork of the process, where the thread that was just reading, if any, is not."""
        self._reader = self._new_reader(end=min(self._end, _LARGEST_WORD))
        self.rewind(mark)

    def hold(self, mark: Mark) -> None:
        """Keep what `rewind` needs to come back to that mark cheaply, over any number of reads in the same sweep."""
        self._reader.hold(mark.cursor)

    def needed_chunks(self, partition: Partition = Partition()) -> list[int]:
        """The chunks from which the next sequences can come, with those that slots still owe, in order of need.

        No other chunk is needed until the reader moves on. In randomized order they are this partition's chunks in the
        window of the place where the reader is; in order, the chunk where it is. After the end there are only those
        that slots owe.
        """
        partition = partition.of_chunks
        place = self._reader.place
        key = (place, partition)
        if self._needed[0] != key:
            chunks, behind = (
                ([], 0) if place is None else self._reader.chunks_at(*place, partition.index, partition.count)
            )
            self._needed = (key, chunks, behind)
        needed = self._needed[1]
        if self._truncation_length:
            return list(dict.fromkeys([*self._reader.owed_chunks, *needed]))
        return needed

    def chunks_ahead(self, partition: Partition = Partition()) -> Iterator[int]:
        """The chunks needed after `needed_chunks`, in order of need, to the end of the next sweep or of the data.

        Worked out as far as it is asked for. A chunk may come twice: once in each sweep.
        """
        partition = partition.of_chunks
        self.needed_chunks(partition)
        place = self._reader.place
        if place is None:
            return
        sweep, behind = place[0], self._needed[2]
        for number in (sweep, sweep + 1):
            if number * self.num_samples >= self._end:
                return
            while behind < self.num_chunks:
                chunks, behind = self._reader.chunks_from(number, behind, 64, partition.index, partition.count)
                yield from chunks
            behind = 0

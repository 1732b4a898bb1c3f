"""`packed` and `SplitRows`: sequences in rows of a fixed length, without padding between them. (docs/batches.md)

::

    rows of 6   a a a b · ·      segments  1 1 1 2 0 0      positions  0 1 2 0 0 1      cu_seqlens  0 3 4 6 10 12
                c c c c d d                3 3 3 3 4 4                 0 1 2 3 0 1

A `cntkio.Budget` with `rows` chooses the sequences of a minibatch so that they fit. This module only changes the form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._threads import ForkLock
from cntkio.arguments import flag, suggests_keywords, whole_number
from cntkio.displays import counted
from cntkio.errors import CheckpointError, ConfigError
from cntkio.layouts import are_whole, class_ids
from cntkio.minibatch import Minibatch, MinibatchData, Results, SliceOfRows
from cntkio.timeline import WHOLE, Budget, GlobalPartition, Partition, Size
from cntkio.timeline.fields import is_same
from cntkio.timeline.partition import WHOLE_ROWS, checked_part, checked_partition

_STATE_VERSION = 1
_MOST_CELLS = 1 << 28


@dataclasses.dataclass(frozen=True, eq=False)
class PackedRows:
    """The sequences of a minibatch in rows. All arrays are contiguous, so `torch.from_numpy` shares their memory.

    Attributes:
        values: For each stream with the lengths of the sequences: `[rows, length, *sample shape]`, 0 in empty cells;
            class ids of one-hot streams, int32, `[rows, length]`. A rank's part of rows also has the streams with one
            sample for each sequence here: the sample is in each cell of its sequence.
        of_sequences: For each stream with one sample for each sequence: `[num_sequences, *sample shape]`, or class
            ids, int32, `[num_sequences]`. If all sequences have one sample, streams are in both mappings. Empty if the
            minibatch holds only the sequences of a rank's part of the rows.
        segment_ids: 1 + the index of the sequence in the minibatch, 0 in empty cells; int32, `[rows, length]`.
        position_ids: Index of the sample in its sequence; in empty cells their index in their segment; int32,
            `[rows, length]`.
        cu_seqlens: First cell of each segment of the concatenated rows and, last, the number of cells; int32. A segment
            is a sequence, its part in a row, or the empty cells at the end of a row.
    """

    values: dict[str, npt.NDArray[Any]]
    of_sequences: dict[str, npt.NDArray[Any]]
    segment_ids: npt.NDArray[np.int32]
    position_ids: npt.NDArray[np.int32]
    cu_seqlens: npt.NDArray[np.int32]


@suggests_keywords
def packed(
    minibatch: Minibatch,
    length: int,
    *,
    rows: int | None = None,
    split: bool = False,
    part: tuple[int, int] = (0, 1),
) -> PackedRows:
    """Fill rows with the sequences of a minibatch, in their order.

    Args:
        minibatch: Minibatch of whole sequences. The stream that defines the minibatch size gives their lengths, or else
            the stream with the most samples.
        length: Cells of a row.
        rows: Number of rows; None: as many as needed.
        split: Let a sequence that does not fit in the rest of its row continue in the next row, so that only the end of
            the last row is empty. Otherwise it begins the next row.
        part: Index and number of the ranks that share each row, as for context parallelism. Rank r of n gets slices r
            and 2n-1-r of 2n equal slices, so that causal attention costs all ranks the same; `cu_seqlens` is of the
            whole rows. The minibatch may be of a `GlobalPartition` with this `part`.

    Raises:
        ConfigError: The minibatch is empty or does not fit; or a stream has other lengths, or is sparse and not
            one-hot; or ranks cannot have equal slices of a row; or the minibatch holds only the sequences of another
            part, or of rows of another length.

    Example:
        >>> from cntkio import Budget, CTFDeserializer, MinibatchSource, infer_streams
        >>> path = "examples/alice/train.ctf"
        >>> source = MinibatchSource(CTFDeserializer(path, infer_streams(path)))
        >>> minibatch = source.read(Budget(rows=4, row_length=512, pool=400))
        >>> found = packed(minibatch, 512, rows=4)
        >>> found.values["w"].shape, int(found.cu_seqlens[-1]), float((found.segment_ids > 0).mean()) > 0.95
        ((4, 512), 2048, True)
    """
    length = whole_number("length", length, least=1)
    _require_room(1, length)
    flag("split", split)
    part = checked_part(part, length)
    held = minibatch.slice
    if held is not None and (split or (held.part, held.row_length) != (part, length)):
        what = f"the minibatch holds only the sequences of part={held.part} of rows of {held.row_length} cells"
        advice = "pack it as these, without split, or read it with a GlobalPartition without part"
        raise ConfigError(f"{what}; {advice}", key="part")
    samples = _samples_of(minibatch, is_part=part[1] > 1)
    lengths = samples.lengths
    begins = np.cumsum(lengths) - lengths
    if not split:
        if len(lengths) and lengths.max() > length:
            longest, advice = int(lengths.max()), "use split=True, or a Budget with rows and oversize='drop'"
            message = f"a sequence has {counted(longest, 'sample')}, but a row has {length}; {advice}"
            raise ConfigError(message, key="length")
        begins = _core.cells_in_rows(lengths.astype(np.uint32), length)
    needed = -(-int((begins + lengths).max(initial=0)) // length)
    rows = needed if rows is None else whole_number("rows", rows, least=1)
    if needed > rows:
        advice = f"read it with Budget(rows={rows}, row_length={length}, pool=...)"
        message = f"the minibatch needs {counted(needed, 'row')} of {length}, but rows is {rows}; {advice}"
        raise ConfigError(message, key="rows")
    _require_room(rows, length)
    return _filled(samples, begins, rows, length, columns=_columns_of(part, length))


def _columns_of(part: tuple[int, int], length: int) -> npt.NDArray[np.int64] | None:
    """Return the columns of a rank's two slices of each row; None: all columns."""
    index, count = part
    if count == 1:
        return None
    size = length // (2 * count)
    return np.concatenate([np.arange(begin, begin + size) for begin in (index * size, length - (index + 1) * size)])


def _require_room(rows: int, length: int) -> None:
    """Refuse a result whose arrays would take several gigabytes; int32 also counts no more than 2^31 cells."""
    if length > _MOST_CELLS:
        raise ConfigError(f"length is {length}; expected at most {_MOST_CELLS}", key="length")
    if rows * length > _MOST_CELLS:
        message = f"{counted(rows, 'row')} of {length} have {rows * length} cells; expected at most {_MOST_CELLS}"
        raise ConfigError(f"{message}: use fewer rows, or a smaller length", key="rows")


class _Samples(NamedTuple):
    """Consecutive samples of sequences.

    Attributes:
        lengths: Number of samples of each sequence.
        first: Samples of the first sequence before these.
        values: For each stream with these lengths, its samples.
        of_sequences: For each stream with one sample for each sequence, these samples.
        is_held: Whether `values` has the samples of each sequence, bool; None: it has all.
    """

    lengths: npt.NDArray[np.int64]
    first: int
    values: dict[str, npt.NDArray[Any]]
    of_sequences: dict[str, npt.NDArray[Any]]
    is_held: npt.NDArray[np.bool_] | None = None

    def cut(self, count: int) -> tuple[_Samples, _Samples]:
        """Return the first samples, and the others. A sequence of which samples are in both is in both."""
        ends = np.cumsum(self.lengths)
        at = int(np.searchsorted(ends, count))  # the sequence with the last of the first samples
        rest = int(ends[at]) - count
        begun = np.append(self.lengths[:at], self.lengths[at] - rest)
        lengths, first, begin = self.lengths[at + 1 :], 0, at + 1
        if rest:
            # The others begin inside a sequence. If it was cut before, its earlier samples count as well.
            lengths, begin = np.append(rest, lengths), at
            first = int(self.lengths[at]) - rest + self.first * (at == 0)
        others = self._with(lengths, first, slice(count, None), slice(begin, None))
        return self._with(begun, self.first, slice(count), slice(at + 1)), others

    def _with(self, lengths: npt.NDArray[np.int64], first: int, samples: slice, sequences: slice) -> _Samples:
        values = {name: value[samples] for name, value in self.values.items()}
        return _Samples(lengths, first, values, {name: value[sequences] for name, value in self.of_sequences.items()})

    @classmethod
    def joined(cls, parts: Sequence[_Samples]) -> _Samples:
        """Return the samples of several parts, of the streams that are in all of them."""
        columns: list[dict[str, npt.NDArray[Any]]] = []
        for mappings in ([part.values for part in parts], [part.of_sequences for part in parts]):
            names = [name for name in mappings[0] if all(name in mapping for mapping in mappings)]
            columns.append({name: np.concatenate([mapping[name] for mapping in mappings]) for name in names})
        # Only the first part may begin inside a sequence: the others are whole minibatches.
        return cls(np.concatenate([part.lengths for part in parts]), parts[0].first, columns[0], columns[1])


class _InCells(dict[str, npt.NDArray[Any]]):
    """The samples of sequences, of which a rank has not all."""

    def __missing__(self, name: str) -> NoReturn:
        why = "this rank has only the sequences of its part of the rows"
        raise KeyError(f"{name!r}: {why}; `values` has the samples of sequences in each of their cells")


def _samples_of(minibatch: Minibatch, *, is_part: bool = False) -> _Samples:
    """Return the samples of a minibatch; for a part of rows, samples of sequences are in `values` as well."""
    if not minibatch:
        raise ConfigError("the minibatch is empty; expected a minibatch with streams", key="minibatch")
    # A budget counts the samples of the same stream.
    longest = max(minibatch.values(), key=lambda data: (data.stream.defines_mb_size, data.num_samples, data.num_steps))
    lengths, held = longest.lengths, minibatch.slice
    if held is not None:
        _require_planned(longest, held, minibatch)
    found = _Samples(lengths, 0, {}, {})
    for name, data in minibatch.items():
        samples = class_ids(data) if data.is_sparse or are_whole(data.stream) else data.values
        if np.array_equal(data.lengths, lengths):
            found.values[name] = samples
        if (data.lengths == 1).all():
            found.of_sequences[name] = samples
            if is_part:
                found.values[name] = np.repeat(samples, lengths, axis=0)
        elif name not in found.values:
            why = "which defines the minibatch size" if longest.stream.defines_mb_size else "which has the most samples"
            message = f"stream {name!r} has neither the lengths of {longest.stream.name!r}, {why},"
            advice = "read only one of the two streams"
            raise ConfigError(f"{message} nor one sample for each sequence; {advice}", key="minibatch")
    if held is None:
        return found
    return found._replace(lengths=held.lengths.astype(np.int64), of_sequences=_InCells(), is_held=held.is_held)


def _require_planned(data: MinibatchData, held: SliceOfRows, minibatch: Minibatch) -> None:
    """Refuse lengths that are not in the index, by which other ranks place the sequences that they do not hold."""
    planned = held.lengths[held.is_held]
    wrong = np.flatnonzero(data.lengths != planned)
    if len(wrong):
        at = wrong[0]
        where = f"sequence {minibatch.keys_of_sequences[at]}, stream {data.stream.name!r}"
        found = f"{counted(int(data.lengths[at]), 'sample')}, but the index counts {planned[at]}"
        why = "ranks that hold only their part of the rows place the other sequences by the index"
        advice = "correct the file, or read whole rows: a GlobalPartition without part, or a mesh with share"
        raise ConfigError(f"{where}: {found}; {why}: {advice}", key="part")


def _filled(
    samples: _Samples,
    begins: npt.NDArray[np.int64],
    rows: int,
    length: int,
    own: slice = slice(None),
    columns: npt.NDArray[np.int64] | None = None,
) -> PackedRows:
    """Put each sequence into the cells from its `begins` on, and return the `own` rows, and in them the `columns`."""
    lengths = samples.lengths
    num_cells = rows * length
    # A cell more, because the last sequence may end where the rows end.
    begins_segment = np.zeros(num_cells + 1, np.bool_)
    # Attention must not cross rows, so a sequence that continues in the next row is two segments.
    begins_segment[::length] = True
    begins_segment[begins] = True
    begins_segment[begins + lengths] = True
    numbers = np.arange(1, len(lengths) + 1)
    if samples.is_held is not None:  # the other sequences have no samples in the columns
        lengths, begins, numbers = (of_all[samples.is_held] for of_all in (lengths, begins, numbers))
    in_sequence = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    cells = np.repeat(begins, lengths) + in_sequence
    # After `cells`, since the first sequence may have begun in an earlier result.
    in_sequence[: lengths[:1].sum()] += samples.first
    segment_ids, position_ids = np.zeros(num_cells, np.int32), np.zeros(num_cells, np.int32)
    segment_ids[cells] = np.repeat(numbers, lengths)
    position_ids[cells] = in_sequence
    # Programs that derive segments from positions find the same segments, because empty cells count as well.
    empty = np.flatnonzero(segment_ids == 0)
    position_ids[empty] = empty - np.maximum.accumulate(np.where(begins_segment[empty], empty, 0))

    def in_rows(of_cells: npt.NDArray[Any]) -> npt.NDArray[Any]:
        of_rows = of_cells.reshape(rows, length)[own]
        return np.ascontiguousarray(of_rows if columns is None else of_rows[:, columns])

    # Only samples of own cells are copied.
    shape: tuple[int, ...] = (rows, length)
    kept: Any = slice(None)
    if columns is not None or own != slice(None):
        own_cells = in_rows(np.arange(num_cells))
        shape, places = own_cells.shape, np.full(num_cells, -1)
        places[own_cells] = np.arange(own_cells.size).reshape(shape)
        kept = np.flatnonzero(places[cells] >= 0)
        cells = places[cells[kept]]
    values = {}
    for name, of_stream in samples.values.items():
        filled = np.zeros((shape[0] * shape[1], *of_stream.shape[1:]), of_stream.dtype)
        filled[cells] = of_stream[kept]
        values[name] = filled.reshape(*shape, *of_stream.shape[1:])
    of_whole_rows = begins_segment[:-1].reshape(rows, length)[own]
    cu_seqlens = np.flatnonzero(np.append(of_whole_rows, True)).astype(np.int32)
    return PackedRows(values, samples.of_sequences, in_rows(segment_ids), in_rows(position_ids), cu_seqlens)


class Readable(Protocol):
    """A source, or a mixture of sources."""

    def read(self, minibatch_size_in_samples: Size, partition: Partition = ..., /) -> Minibatch | None:
        """Return the next minibatch, or None when the data have ended."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue after the last minibatch."""

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Continue where a state was taken."""


class _Held(NamedTuple):
    """Samples that a `SplitRows` has read and not delivered.

    Attributes:
        parts: The samples of each minibatch.
        before: The source's state before the last of these minibatches; without parts, where reading continues.
        num_delivered: Samples of that minibatch that were delivered.
    """

    parts: tuple[_Samples, ...]
    before: dict[str, Any]
    num_delivered: int = 0


@suggests_keywords
class SplitRows:
    """Rows without empty cells: a sequence continues in the next row, also in the next rows that are read.

    Several threads may read them.

    In rows that begin inside a sequence, `position_ids` begin above 0, and `of_sequences` has that sequence again.

    Args:
        source: Source or mixture to read. From now on only this object may read it.
        length: Cells of a row.
        rows: Number of rows of each result; with a global partition, of all partitions together.
        size: Size of the minibatches that are read; None: the samples of the rows. A pool or an order of any kind can
            be asked for with a `Budget`.
        partition: The share to read. Of `count` global partitions, partition `i` takes the rows ``i``, ``i + count``,
            ... of a single reader. All of them read all data, have the same number of results and the same state, which
            continues on any number of ranks. Other partitions fill rows with their own sequences, perhaps different
            numbers of rows.

    Raises:
        ConfigError: `length` or `rows` is not possible, or there are more global partitions than rows.

    Example:
        >>> from cntkio import CTFDeserializer, MinibatchSource, infer_streams
        >>> path = "examples/alice/train.ctf"
        >>> source = MinibatchSource(CTFDeserializer(path, infer_streams(path)), max_sweeps=1)
        >>> rows = SplitRows(source, 512, rows=4)
        >>> found = list(rows)
        >>> sum(int((of_one.segment_ids > 0).sum()) for of_one in found) == source.num_samples
        True
        >>> bool((found[0].segment_ids > 0).all()), int(found[1].position_ids[0, 0]) > 0
        (True, True)
    """

    def __init__(
        self, source: Readable, length: int, *, rows: int, size: Size | None = None, partition: Partition = WHOLE
    ) -> None:
        self.length, self.rows = whole_number("length", length, least=1), whole_number("rows", rows, least=1)
        # A sequence longer than all rows is possible here, because it continues in the next result.
        self.size: Size = Budget(samples=rows * length, oversize="alone") if size is None else size
        self._source = source
        self._partition, self._own = self._shares(partition)
        _require_room(self.rows, self.length)
        self._delivered = self._held = _Held((), source.state_dict())
        # The source's state before a read that is under way, or failed; None: `_held` has all that was read.
        self._reading: dict[str, Any] | None = None
        self._lock = ForkLock()

    def _shares(self, partition: Partition) -> tuple[Partition, slice]:
        """Return the share of the source that is read, and the share of the rows."""
        if not isinstance(partition, GlobalPartition) or partition.rounds is not None:
            return partition, slice(None)
        if partition.lanes:
            why = "each lane would leave another amount to the next rows, and a rank knows only its own lanes"
            advice = "use a Budget with rows, whose rows are packed in each lane"
            raise ConfigError(f"SplitRows take no lanes: {why}; {advice}", key="lanes")
        if partition.num_workers > 1 or self.rows < partition.count or partition.part != WHOLE_ROWS:
            expected = "expected a row for each partition, without workers and part"
            raise ConfigError(f"{partition} of {counted(self.rows, 'row')}: {expected}", key="partition")
        return WHOLE, slice(partition.index, None, partition.count)

    def set_partition(self, partition: Partition) -> None:
        """Take another share of the rows from the next result on: any `GlobalPartition`, or all rows.

        All ranks call it between the same two results.

        Raises:
            ConfigError: The rows are not of global partitions before and after, or there are too few rows.
        """
        with self._lock.inner:
            read, own = self._shares(checked_partition(partition))
            if read != self._partition:
                what = f"rows of {self._partition} are under way, so they cannot continue with {partition}"
                raise ConfigError(f"{what}: use global partitions from the beginning", key="partition")
            self._own = own

    def read(self) -> PackedRows | None:
        """Return the next rows, or None when the data have ended. The last rows may have empty cells at their end.

        After an error of the source, the next call continues as the source does, with all samples that were read.
        """
        with self._lock.inner:
            return self._next()

    def _next(self) -> PackedRows | None:
        if self._reading is not None and self._source.state_dict() != self._reading:
            # An interrupted call has lost a minibatch that the source had delivered.
            self.load_state_dict(self.state_dict())
        num_cells = self.rows * self.length
        held = self._held
        num_samples = sum(int(part.lengths.sum()) for part in held.parts)
        while num_samples < num_cells:
            # Noted before the read, so that the next call can tell whether an interrupted read delivered.
            state = self._reading = self._source.state_dict()
            minibatch = self._source.read(self.size, self._partition)
            if minibatch is None:
                delivered = _Held((), state)
                break
            if minibatch.num_sequences:
                held = _Held((*held.parts, _samples_of(minibatch)), state)
                num_samples += int(held.parts[-1].lengths.sum())
            # No interrupt comes between these assignments.
            self._held, self._reading = held, None
        parts = [*held.parts]
        if num_samples > num_cells:
            # Only the last part can have samples left, since reading stops with the first minibatch that is enough.
            kept = int(parts[-1].lengths.sum()) - (num_samples - num_cells)
            parts[-1], rest = parts[-1].cut(kept)
            delivered = _Held((rest,), held.before, held.num_delivered + kept)
        elif num_samples == num_cells:
            delivered = _Held((), self._source.state_dict())
        found = None
        if parts:
            samples = _Samples.joined(parts)
            begins = np.cumsum(samples.lengths) - samples.lengths
            found = _filled(samples, begins, self.rows, self.length, self._own)
        # No interrupt comes between these assignments.
        self._delivered, self._held, self._reading = delivered, delivered, None
        return found

    def __iter__(self) -> Iterator[PackedRows]:
        return Results(self.read)

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue here: a small dict for JSON."""
        delivered = self._delivered
        return {"version": _STATE_VERSION, "num_delivered": delivered.num_delivered, "source": delivered.before}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a `state_dict` was taken, also with other rows, but with the same size and partition.

        Global partitions continue from the state of any number of global partitions. After an error, the rows continue
        where they were.

        Raises:
            CheckpointError: The state does not fit the source, or is damaged.
        """
        if not isinstance(state, Mapping) or not is_same(state.get("version"), _STATE_VERSION) or "source" not in state:
            raise CheckpointError("not the state of SplitRows; expected a result of its state_dict()", saved=state)
        num_delivered = state.get("num_delivered")
        if type(num_delivered) is not int or num_delivered < 0:
            raise CheckpointError(f"the state's 'num_delivered' is {num_delivered!r}", saved=num_delivered)
        with self._lock.inner:
            # No source has this state, so if this call fails, the next read goes back to the last result.
            self._reading = {}
            self._source.load_state_dict(state["source"])
            held = _Held((), self._source.state_dict())
            if num_delivered:
                # The minibatch with the next sample is read again, and the samples that were delivered are cut off.
                minibatch = self._source.read(self.size, self._partition)
                while minibatch is not None and not minibatch.num_sequences:
                    minibatch = self._source.read(self.size, self._partition)
                samples = None if minibatch is None else _samples_of(minibatch)
                if samples is None or int(samples.lengths.sum()) <= num_delivered:
                    message = (
                        f"the state's 'num_delivered' is {num_delivered}, but the next minibatch has fewer samples"
                    )
                    advice = "was it read with another size or partition?"
                    raise CheckpointError(f"{message}; {advice}", saved=num_delivered)
                held = _Held((samples.cut(num_delivered)[1],), held.before, num_delivered)
            # No interrupt comes between these assignments.
            self._delivered, self._held, self._reading = held, held, None

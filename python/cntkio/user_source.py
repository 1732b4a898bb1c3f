"""Minibatch sources written in Python, and one over arrays in memory. (docs/user-defined.md)

They share only the interface of `cntkio.source.MinibatchSource`: names of methods, and the kind of minibatches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

import cntkio._core as _core
from cntkio._threads import ForkLock
from cntkio.arguments import is_whole, suggests_keywords, whole_number
from cntkio.displays import Description, Displayed, counted
from cntkio.errors import CheckpointError, ConfigError, CorpusError
from cntkio.formats.arrays import ArrayStream, pieces_of
from cntkio.formats.pieces import is_table, joined, refuse_parts
from cntkio.formats.table import Column, as_numbers, in_precision, least_precision
from cntkio.formats.user import column, joined_columns
from cntkio.minibatch import Minibatch, MinibatchData
from cntkio.streams import StorageFormat, StreamInformation, StreamsByName, packed_columns
from cntkio.timeline import DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS, FULL_DATA_SWEEP, INFINITELY_REPEAT, Partition


class UserMinibatchSource(StreamsByName):
    """Base class of a source written in Python, for code that takes any source.

    A subclass implements `stream_infos` and `next_minibatch`. It also implements `get_checkpoint_state` and
    `restore_from_checkpoint` if it can resume from a checkpoint, and `is_infinite` if its data may have no end.

    Example:
        >>> import numpy as np
        >>> class Ones(UserMinibatchSource):
        ...     def stream_infos(self):
        ...         return [StreamInformation("x", 0, "dense", np.float32, (2,))]
        ...     def next_minibatch(self, num_samples, number_of_workers=1, worker_rank=0, device=None):
        ...         data = MinibatchData(self["x"], np.ones((1, 2), np.float32), np.array([0, 1]))
        ...         return {self["x"]: data}
        >>> Ones().next_minibatch(1)[Ones().streams.x].shape
        (1, 1, 2)
    """

    # CNTK's class has these attributes as well.
    infinitely_repeat = INFINITELY_REPEAT
    full_data_sweep = FULL_DATA_SWEEP
    default_randomization_window_in_chunks = DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS

    def next_minibatch(
        self, num_samples: int, number_of_workers: int = 1, worker_rank: int = 0, device: object = None
    ) -> Mapping[Any, Any]:
        """Return the next minibatch, `MinibatchData` by `StreamInformation`; empty when the data have ended.

        Args:
            num_samples: Samples of all workers together, at least 1.
            number_of_workers: Number of readers that share the data.
            worker_rank: Index of this reader.
            device: Not used.
        """
        raise NotImplementedError(f"{type(self).__name__}.next_minibatch")

    def get_checkpoint_state(self) -> dict[str, Any]:
        """Return the state from which to resume; here it is empty."""
        return {}

    def restore_from_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Resume from a result of `get_checkpoint_state`.

        Raises:
            NotImplementedError: The state is not empty, and the subclass does not implement this method.
        """
        if state:
            raise NotImplementedError(f"{type(self).__name__}.restore_from_checkpoint")

    @property
    def current_position(self) -> dict[str, Any]:
        """State of the source, as from `get_checkpoint_state`. Setting it restores the source."""
        return self.get_checkpoint_state()

    @current_position.setter
    def current_position(self, checkpoint: Mapping[str, Any]) -> None:
        self.restore_from_checkpoint(checkpoint)

    def is_infinite(self) -> bool:
        """Return whether the data never end."""
        return False


@suggests_keywords
class MinibatchSourceFromData(Displayed, UserMinibatchSource):
    """Minibatches from arrays in memory, in order, repeatedly.

    A minibatch never crosses the end of the data. It takes at least one sequence, and more while in every stream the
    number of samples is within the size and the limit. A worker gets every `number_of_workers`-th sequence, from its
    rank on: ``[begin + rank : end + rank : number_of_workers]``. This is CNTK's rule: if the number of workers does not
    divide a minibatch, a sequence may be delivered twice.

    Args:
        data_streams: A data frame, a table or a data set, as for `cntkio.arrow.read`; or a mapping of names to data:
            an array, a tensor or a CSR matrix, in which each row is a sequence of one sample; a series; a list of
            arrays or matrices, in which each item is a sequence; or a pair of any of these and its type. A type is any
            object with some of the attributes ``shape``, ``dtype`` and ``is_sequence``, such as a `StreamInformation`.
            With ``is_sequence``, an array holds sequences of equal length, ``[sequences, samples, *shape]``. float64
            stays float64; other numbers become float32.
        max_samples: Number of samples until the end; `FULL_DATA_SWEEP`: each sample once.

    Raises:
        ConfigError: `data_streams` is empty, or the limit is out of range.
        CorpusError: A stream's data do not fit its type or are empty, a whole number is not exact in the precision, or
            streams have different numbers of sequences.

    Example:
        >>> import numpy as np
        >>> from cntkio.timeline import FULL_DATA_SWEEP
        >>> source = MinibatchSourceFromData({"x": np.arange(6).reshape(3, 2), "y": np.arange(3)}, FULL_DATA_SWEEP)
        >>> source.next_minibatch(2)["x"].values.tolist()
        [[0.0, 1.0], [2.0, 3.0]]
        >>> minibatch = source.next_minibatch(2)
        >>> minibatch["y"].values.tolist(), minibatch["y"].end_of_sweep
        ([[2.0]], True)
        >>> source.next_minibatch(2)
        Minibatch: empty
    """

    def __init__(self, data_streams: Any, max_samples: int = INFINITELY_REPEAT) -> None:
        refuse_parts(data_streams)
        if is_table(data_streams):
            with pieces_of(data_streams) as pieces:
                data_streams = joined(pieces)
        if not isinstance(data_streams, Mapping) or not data_streams:
            given = "empty" if isinstance(data_streams, Mapping) else f"a {type(data_streams).__name__}"
            expected = "a mapping such as {'x': data} with at least one stream, or a data frame"
            raise ConfigError(f"data_streams is {given}; expected {expected}", key="data_streams")
        max_samples = whole_number("max_samples", max_samples)
        if not 0 <= max_samples <= INFINITELY_REPEAT:
            raise ConfigError(f"max_samples is {max_samples}; expected 0 to 2^64 - 1", key="max_samples")
        streams = [_stream(name, index, value) for index, (name, value) in enumerate(data_streams.items())]
        self._streams = [info for info, _ in streams]
        columns = [column for _, column in streams]
        self._chunk, _ = joined_columns("data_streams", columns, self._streams, None)
        self._num_sequences = self._chunk.num_sequences
        if not self._num_sequences:
            raise CorpusError("data_streams: no sequences to read")
        self._starts = [column.sequence_offsets.astype(np.int64) for column in columns]
        self._layout, self._max_samples = packed_columns(self._streams), max_samples
        self._cursor = self._total_num_samples = 0
        self._lock = ForkLock()

    def stream_infos(self) -> list[StreamInformation]:
        """Return the streams in the order of the arguments."""
        return list(self._streams)

    def _description(self) -> Description:
        each = zip(self._streams, self._starts, strict=True)
        counts = ", ".join(f"{info.name} {int(starts[-1]):,}" for info, starts in each)
        title = f"MinibatchSourceFromData: {counted(self._num_sequences, 'sequence')}; samples: {counts}"
        return Description(title, ("stream", "samples are"), [(info.name, info.form) for info in self._streams])

    def is_infinite(self) -> bool:
        """Return whether the data never end: no limit was set."""
        return self._max_samples == INFINITELY_REPEAT

    def _has_ended(self) -> bool:
        if self._max_samples == FULL_DATA_SWEEP:
            return self._cursor == 0 and self._total_num_samples > 0
        return self._total_num_samples >= self._max_samples

    def next_minibatch(
        self, num_samples: int, number_of_workers: int = 1, worker_rank: int = 0, device: object = None
    ) -> Minibatch:
        """Return the next minibatch, or an empty mapping when the data have ended.

        `end_of_sweep` is true at the end of the data and at the limit. Arguments as in the base class.

        Raises:
            ConfigError: The size is below 1, or the worker does not exist.
        """
        num_samples = whole_number("num_samples", num_samples, least=1)
        partition = Partition(worker_rank, number_of_workers)
        with self._lock.inner:
            if self._has_ended():
                return Minibatch({}, lambda: np.empty(0, np.uint64))
            begin = self._cursor
            # Below, room is added to positions of int64, which must not overflow.
            room = min(num_samples, 2**62)
            # The two largest numbers are `FULL_DATA_SWEEP` and `INFINITELY_REPEAT`, which are not limits of samples.
            if self._max_samples < FULL_DATA_SWEEP:
                room = min(room, self._max_samples - self._total_num_samples)
            fits = min(int(np.searchsorted(starts, starts[begin] + room, side="right")) - 1 for starts in self._starts)
            end = max(fits, begin + 1)
            samples = max(int(starts[end] - starts[begin]) for starts in self._starts)
            # An interrupt (Ctrl-C) cannot come between two values of one assignment.
            self._total_num_samples, self._cursor = self._total_num_samples + samples, end % self._num_sequences
            end_of_sweep = self._cursor == 0 or self._has_ended()
        last = min(end + partition.index, self._num_sequences)
        sequences = np.arange(begin + partition.index, last, partition.count, dtype=np.uint32)
        chunk_indices, bounds = np.zeros(len(sequences), np.uint32), [0, len(sequences)]
        request = _core.PackRequest([self._chunk], chunk_indices, sequences, self._layout, bounds)
        ((packed,),), _ = _core.pack([request], 1)
        infos = enumerate(self._streams)
        data = {info.name: MinibatchData.of(info, packed, index, end_of_sweep) for index, info in infos}
        return Minibatch(data, lambda: sequences.astype(np.uint64))

    def get_checkpoint_state(self) -> dict[str, int]:
        """Return the first sequence of the next minibatch (``cursor``) and the samples so far (`total_num_samples`)."""
        return {"cursor": self._cursor, "total_num_samples": self._total_num_samples}

    def restore_from_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """Resume from a result of `get_checkpoint_state`.

        Raises:
            CheckpointError: A key is missing, or does not fit these data.
        """
        if not isinstance(checkpoint, Mapping):
            raise CheckpointError(f"the checkpoint is {checkpoint!r}; expected a result of get_checkpoint_state()")
        values: dict[str, Any] = {key: checkpoint.get(key) for key in ("cursor", "total_num_samples")}
        for key, value in values.items():
            if not is_whole(value) or value < 0:
                message = f"the checkpoint's {key!r} is {value!r}; expected a whole number, at least 0"
                raise CheckpointError(message, saved=value)
        cursor, total_num_samples = map(int, values.values())
        if cursor >= self._num_sequences:
            message = f"the checkpoint is at sequence {cursor}; expected 0 to {self._num_sequences - 1}"
            raise CheckpointError(message, saved=cursor, current=self._num_sequences)
        # After all checks, so that a refused checkpoint leaves the source where it was.
        self._cursor, self._total_num_samples = cursor, total_num_samples


def _is_matrix(value: Any) -> bool:
    return hasattr(value, "indptr") and hasattr(value, "nnz")


def _stream(name: str, stream_index: int, argument: Any) -> tuple[StreamInformation, Column]:
    if isinstance(argument, tuple) and len(argument) != 2:
        message = f"stream {name!r} is a tuple of {len(argument)}; expected data, or a pair of data and type"
        raise ConfigError(message, key=name)
    where = f"data_streams, stream {name!r}"
    value, kind = argument if isinstance(argument, tuple) else (argument, None)
    # A number of NumPy looks like an array without axes.
    if isinstance(value, np.generic):
        raise ConfigError(f"stream {name!r} is the number {value}; expected an array", key=name)
    if isinstance(value, list) and not all(isinstance(item, np.ndarray) or _is_matrix(item) for item in value):
        value = _from_list(where, value)
    if not isinstance(value, list | np.ndarray) and not _is_matrix(value):
        dtype = getattr(kind, "dtype", None)
        stream = ArrayStream(name, value, dtype)
        if dtype is None and stream.info(0).dtype.kind == "i" and not stream.info(0).are_class_ids:
            stream = ArrayStream(name, value, least_precision([stream.column(0, stream.num_sequences).values]))
        return stream.info(stream_index), stream.column(0, stream.num_sequences)
    items = value if isinstance(value, list) else [value]
    if not items:
        raise CorpusError(f"{where}: no sequences to read")
    dtype = np.dtype(getattr(kind, "dtype", None) or (np.float64 if items[0].dtype == np.float64 else np.float32))
    items = [_as_numbers(where, item, dtype) for item in items]
    shape = getattr(kind, "shape", None)
    if isinstance(value, np.ndarray) and getattr(kind, "is_sequence", False):
        items, value = list(items[0]), []  # each item is a sequence
    form = items[0].shape[1:]
    storage_format: StorageFormat = "sparse" if _is_matrix(items[0]) else "dense"
    info = StreamInformation(name, stream_index, storage_format, dtype, (form or (1,)) if shape is None else shape)
    return info, column("data_streams", items if isinstance(value, list) else items[0], info)


def _from_list(where: str, items: list[Any]) -> Any:
    """Return an array of numbers in lists of equal lengths, or a list with an array for each sequence."""
    if not any(getattr(item, "ndim", 0) for item in items):  # tensors are sequences, as arrays are
        with contextlib.suppress(ValueError):
            return as_numbers(where, items)
    try:
        return [as_numbers(where, item) for item in items]
    except (RuntimeError, TypeError, ValueError) as error:
        raise CorpusError(f"{where}: {error}") from None


def _as_numbers(where: str, item: Any, dtype: np.dtype[Any]) -> Any:
    if item.dtype.kind not in "fiub":
        raise CorpusError(f"{where}: values of type {item.dtype}; expected numbers")
    if not _is_matrix(item):
        return in_precision(where, item, dtype)
    # Only for its check: the matrix converts its values itself.
    in_precision(where, item.data, dtype)
    return item.astype(dtype, copy=False)

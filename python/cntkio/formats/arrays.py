"""Streams whose samples are in memory: arrays, tensors, series, SciPy matrices, lists of these, minibatches.

A stream is cut into columns of consecutive sequences, so that large arrays are converted piece by piece.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from cntkio._core import Chunk
from cntkio.arguments import PYTHON, WRITERS, caller, calling, there_are
from cntkio.errors import CntkIoError, ConfigError, CorpusError
from cntkio.formats.detect import function_named
from cntkio.formats.losses import Rounded
from cntkio.formats.pieces import (
    ArrayLike,
    ArrowArray,
    ArrowStream,
    Classes,
    Piece,
    Pieces,
    Writable,
    is_table,
    joined,
    pieces_of_one,
    refuse_parts,
)
from cntkio.formats.table import Column, Keys, as_numbers, in_precision, least_precision
from cntkio.minibatch import Arrays, Minibatch, MinibatchData
from cntkio.streams import StreamInformation, storage_format

# Sizes by which data are divided. They change memory and time, never a result.
PIECE_BYTES = 16 << 20
"""Bytes of arrays in a piece."""
SAMPLES_AT_ONCE = 1 << 16
"""Minibatch size when a source is written."""


class ArrayStream:
    """A stream of a mapping of names to arrays.

    Args:
        name: Its name.
        data: Its samples, as for `cntkio.write_cbf`.
        dtype: float32 or float64; None: float64 if the data have it or a whole number beyond 2^24, or else float32.
        classes: The classes if the data are class ids or texts, for a one-hot stream; None: the data are samples.

    Attributes:
        name: Its name.
        num_sequences: Number of sequences.
        num_bytes: Approximate size in memory.

    Raises:
        ConfigError: The data do not form a stream.
    """

    def __init__(self, name: str, data: Any, dtype: npt.DTypeLike | None, classes: Classes | None = None) -> None:
        if classes is None or isinstance(classes, int):
            samples = _samples_of(name, data)
            if classes is not None:
                samples = _ClassSamples(name, samples, classes)
        else:
            samples = _in_table(name, data, {name: classes})
        if samples.dtype.kind not in "fiub":
            raise ConfigError(f"stream {name!r} has the dtype {samples.dtype}; expected real numbers", key=name)
        self.name, self._samples = name, samples
        self.num_sequences, self.num_bytes = samples.num_sequences, samples.num_bytes
        self._dtype = samples.precision(dtype)
        self._dim = self.info(0).dim

    def log_rounded(self) -> None:
        """Log how many floats the precision rounds."""
        rounded = Rounded(self._dtype)
        for values in self._samples.floats:
            rounded.add(values)
        rounded.log(f"stream {self.name!r}")

    def info(self, stream_id: int) -> StreamInformation:
        """Return the stream's description."""
        samples = self._samples
        return StreamInformation(self.name, stream_id, storage_format(samples.is_sparse), self._dtype, samples.shape)

    def column(self, first: int, last: int) -> Column:
        """Return the column of the sequences from `first` up to, but not including, `last`.

        Raises:
            ConfigError: An index is outside the dimension.
            CorpusError: The precision would round a whole number.
        """
        cut = self._samples.cut(first, last, self._dtype)
        offsets = cut.offsets.astype(np.uint32)
        values = in_precision(f"stream {self.name!r}", cut.values, self._dtype).reshape(-1)
        if cut.indptr is None or cut.indices is None:
            return Column(offsets, values, self._dim, None)
        if len(cut.indices) and not 0 <= int(cut.indices.min()) <= int(cut.indices.max()) < self._dim:
            wrong = int(cut.indices.min()) if int(cut.indices.min()) < 0 else int(cut.indices.max())
            what = f"index {wrong}, but the dimension is {self._dim}; expected 0 to {self._dim - 1}"
            raise ConfigError(f"stream {self.name!r}: {what}", key=self.name)
        sample_offsets = (cut.indptr - cut.indptr[0]).astype(np.uint32)
        return Column(offsets, values, self._dim, (sample_offsets, np.ascontiguousarray(cut.indices, np.int32)))


@runtime_checkable
class _Matrix(Protocol):
    """A sparse matrix of SciPy, of any class. SciPy need not be installed."""

    nnz: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def tocsr(self) -> Any: ...


class _Samples(Protocol):
    """The samples of a stream, in one of the forms below."""

    num_sequences: int
    num_bytes: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_sparse: bool = False
    floats: Sequence[npt.NDArray[Any]] = ()  # all values; none if they are only classes

    def precision(self, asked: npt.DTypeLike | None) -> np.dtype[Any]: ...

    def cut(self, first: int, last: int, dtype: np.dtype[Any]) -> Arrays:
        """Return consecutive sequences. The bounds of sparse samples, `indptr`, do not always count from 0."""


def _samples_of(name: str, data: Any) -> _Samples:
    if isinstance(data, MinibatchData):
        return _FlatSamples.of(data)
    if isinstance(data, _Matrix):
        rows = data.tocsr()
        return _FlatSamples(Arrays(rows.data, np.arange(rows.shape[0] + 1), rows.indptr, rows.indices), rows.shape[1:])
    if isinstance(data, ArrowStream | ArrowArray):
        return _in_table(name, data, {})
    try:
        if isinstance(data, ArrayLike):
            data = np.asarray(data)
            if data.dtype != object:
                return _array_samples(data)
            if len(data):
                return _ListSamples(name, _as_arrays(name, list(data)))
        elif isinstance(data, list | tuple) and len(data):
            if isinstance(data[0], _Matrix):
                return _ListSamples(name, _as_matrices(name, data))
            if isinstance(data[0], int | float | np.number | np.bool_):
                return _array_samples(as_numbers(f"stream {name!r}", data))
            return _ListSamples(name, _as_arrays(name, data))
    # Our exceptions already say what is wrong, and they are instances of the types below.
    except CntkIoError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:  # a tensor that cannot be an array; lists of unequal depth
        raise ConfigError(f"stream {name!r}: {error}; expected numbers in lists of equal lengths", key=name) from None
    raise ConfigError(
        f"stream {name!r} is a {type(data).__name__}; expected an array or a tensor of one sample per sequence, a "
        "series, a list of arrays of samples, or SciPy matrices; a data frame is passed by itself, without a name",
        key=name,
    )


def _array_samples(array: npt.NDArray[Any]) -> _Samples:
    num_sequences = len(array) if array.ndim else 0
    return _FlatSamples(Arrays(array, np.arange(num_sequences + 1)), array.shape[1:] or (1,))


def _in_table(name: str, data: Any, one_hot: Mapping[str, Classes]) -> _Samples:
    with _table({name: data}, one_hot).pieces() as pieces:
        return _FlatSamples.of(joined(pieces)[name])


def _table(data: Any, one_hot: Mapping[str, Classes]) -> Writable:
    """Return the rows of a table as a corpus. Arrow is optional, so it is named as in the table of formats."""
    table: Writable = function_named("cntkio.arrow:read")(data, one_hot=one_hot)
    return table


class _FlatSamples(_Samples):
    """The samples of all sequences, one after the other, in one array."""

    def __init__(self, samples: Arrays, shape: tuple[int, ...], stream: StreamInformation | None = None) -> None:
        self._all, self._stream, self.shape, self.dtype = samples, stream, shape, samples.values.dtype
        self.num_sequences, self.is_sparse = len(samples.offsets) - 1, samples.indices is not None
        self.floats = [samples.values]
        # For pieces of about equal size; the indices of a sparse stream take about as much as its values.
        self.num_bytes = samples.values.nbytes * (2 if self.is_sparse else 1) + samples.offsets.nbytes

    @classmethod
    def of(cls, data: MinibatchData) -> _FlatSamples:
        return cls(data.arrays, data.stream.shape, data.stream)

    def precision(self, asked: npt.DTypeLike | None) -> np.dtype[Any]:
        stream = self._stream
        if asked is not None and (stream is None or not stream.are_class_ids):
            return np.dtype(asked)
        return stream.dtype if stream is not None and stream.dtype.kind == "i" else least_precision([self._all.values])

    def cut(self, first: int, last: int, dtype: np.dtype[Any]) -> Arrays:
        values, offsets, indptr, indices = self._all
        begin, end = int(offsets[first]), int(offsets[last])
        offsets = offsets[first : last + 1] - begin
        if indptr is None or indices is None:
            return Arrays(values[begin:end], offsets)
        indptr = indptr[begin : end + 1]
        entries = slice(int(indptr[0]), int(indptr[-1]))
        return Arrays(values[entries], offsets, indptr, indices[entries])


def _as_matrices(name: str, sequences: Sequence[Any]) -> list[Any]:
    for index, matrix in enumerate(sequences):
        if not isinstance(matrix, _Matrix):
            what = f"of the type {type(matrix).__name__}, but sequence 0 is a matrix"
            raise ConfigError(f"stream {name!r}, sequence {index}: {what}; expected a matrix for each", key=name)
    return [matrix.tocsr() for matrix in sequences]


def _as_arrays(name: str, sequences: Sequence[Any]) -> list[npt.NDArray[Any]]:
    arrays = [as_numbers(f"stream {name!r}, sequence {index}", each) for index, each in enumerate(sequences)]
    for index, array in enumerate(arrays):
        if array.ndim == 0:
            kind = type(sequences[index]).__name__
            what = f"a {kind}" if array.dtype == object else "a number" if array.dtype.kind in "fiub" else "a text"
            raise ConfigError(f"stream {name!r}, sequence {index}: {what}; expected an array of samples", key=name)
    return arrays


class _ListSamples(_Samples):
    """The samples of each sequence in an array or a matrix of its own."""

    def __init__(self, name: str, sequences: Sequence[Any]) -> None:
        expected: tuple[int, ...] = sequences[0].shape[1:]
        for index, sequence in enumerate(sequences):
            if sequence.shape[1:] != expected:
                what = f"samples of shape {sequence.shape[1:]}, but the samples of sequence 0 have the shape {expected}"
                raise ConfigError(f"stream {name!r}, sequence {index}: {what}", key=name)
        self.is_sparse = isinstance(sequences[0], _Matrix)
        self._name, self._sequences = name, sequences
        self.floats = [matrix.data for matrix in sequences] if self.is_sparse else sequences
        dtypes = {array.dtype for array in self.floats}
        # Arrays of one type can be joined first and converted once.
        self._have_one_type = len(dtypes) == 1
        self.num_sequences, self.shape, self.dtype = len(sequences), expected or (1,), np.result_type(*dtypes)
        self.num_bytes = 8 * (sum(array.size for array in self.floats) + len(sequences))

    def precision(self, asked: npt.DTypeLike | None) -> np.dtype[Any]:
        return least_precision(self.floats) if asked is None else np.dtype(asked)

    def cut(self, first: int, last: int, dtype: np.dtype[Any]) -> Arrays:
        sequences, arrays = self._sequences[first:last], self.floats[first:last]
        offsets = np.cumsum([0, *(sequence.shape[0] for sequence in sequences)], dtype=np.int64)
        # NumPy would round whole numbers of several types when it joins them.
        if not self._have_one_type:
            where = f"stream {self._name!r}, sequence"
            arrays = [in_precision(f"{where} {first + index}", array, dtype) for index, array in enumerate(arrays)]
        values = np.concatenate([array.reshape(-1) for array in arrays])
        if not self.is_sparse:
            return Arrays(values, offsets)
        from scipy import sparse  # late: SciPy need not be installed, but a caller with matrices has it

        rows = sparse.vstack(sequences, format="csr")
        return Arrays(values, offsets, rows.indptr, rows.indices)


class _ClassSamples(_Samples):
    """Class ids, as samples of a one-hot stream."""

    is_sparse = True

    def __init__(self, name: str, classes: _Samples, num_classes: int) -> None:
        steps = classes.shape[0] if classes.shape else 1  # an array [sequences, samples]
        if classes.dtype.kind not in "iu" or classes.is_sparse or len(classes.shape) > 1:
            what = "sparse samples" if classes.is_sparse else f"samples of shape {classes.shape} in {classes.dtype}"
            cast = "; write .astype(int) if they are whole" if classes.dtype.kind == "f" else ""
            what = f"{what}; expected class ids, whole numbers{cast}"
            raise ConfigError(f"one_hot: stream {name!r} has {what}", key="one_hot")
        self._classes, self._steps, self.shape = classes, steps, (num_classes,)
        self.num_sequences, self.num_bytes, self.dtype = classes.num_sequences, 4 * classes.num_bytes, classes.dtype

    def precision(self, asked: npt.DTypeLike | None) -> np.dtype[Any]:
        return np.dtype(np.float32 if asked is None else asked)

    def cut(self, first: int, last: int, dtype: np.dtype[Any]) -> Arrays:
        # float64, because float32 would not have all class ids if lists of several types are joined.
        cut = self._classes.cut(first, last, np.dtype(np.float64))
        classes: npt.NDArray[Any] = cut.values.reshape(-1).astype(np.int64)
        return Arrays(np.ones(len(classes), dtype), cut.offsets * self._steps, np.arange(len(classes) + 1), classes)


# ---- Pieces of any argument of a writer: a deserializer, a source, a mapping of arrays, record batches.


@contextmanager
def _pieces_of_table(data: Any, one_hot: Mapping[str, Classes]) -> Iterator[Pieces]:
    words = caller().words
    with calling(words=WRITERS if words is PYTHON else words), _table(data, one_hot).pieces() as pieces:
        yield pieces


def pieces_of(
    data: Any, dtype: npt.DTypeLike | None = None, one_hot: Mapping[str, Classes] | None = None
) -> AbstractContextManager[Pieces]:
    """Open the data to write, piece by piece.

    Args:
        data: As for `write_cbf`; or any `Writable`.
        dtype: float32 or float64, for arrays; None: their own.
        one_hot: As for `write_cbf`.

    Raises:
        ConfigError: It cannot be written.

    Example:
        >>> with pieces_of({"x": [[1, 2], [3, 4]]}) as pieces:
        ...     [info.name for info in pieces.streams]
        ['x']
    """
    if one_hot is not None and not isinstance(one_hot, Mapping):
        raise ConfigError(f"one_hot is {one_hot!r}; expected the number of classes by name: {{'y': 10}}", key="one_hot")
    one_hot = one_hot or {}
    refuse_parts(data)
    if isinstance(data, Mapping):
        return nullcontext(_pieces_of_arrays(data, dtype, one_hot))
    if is_table(data):
        return _pieces_of_table(data, one_hot)
    if one_hot:
        what = f"not for a {type(data).__name__}, which knows its streams"
        raise ConfigError(f"one_hot is for arrays, minibatches and tables, {what}", key="one_hot")
    if isinstance(data, Writable | str | os.PathLike) or callable(getattr(data, "open", None)):
        return pieces_of_one(data)
    raise ConfigError(
        f"cannot write data of the type {type(data).__name__}; expected a deserializer, a MinibatchSource with an end, "
        "a data frame, the result of cntkio.arrow.read, or a mapping of names to arrays, such as {'x': data}"
    )


def piece_of(minibatch: Minibatch, streams: Sequence[StreamInformation], keys: Keys) -> Piece:
    """Return the sequences of a minibatch as a piece."""
    return Piece(Chunk.from_columns(minibatch.num_sequences, [_column(minibatch[info]) for info in streams]), keys)


def _column(data: Any) -> Column:
    if not isinstance(data, MinibatchData):
        what = "truncated minibatches cannot be written; expected whole sequences, read without truncation_length"
        raise ConfigError(what, key="truncation_length")
    offsets = data.offsets.astype(np.uint32)
    if data.indptr is None or data.indices is None:
        return Column(offsets, np.ascontiguousarray(data.values).reshape(-1), data.stream.dim, None)
    return Column(offsets, data.values, data.stream.dim, (data.indptr.astype(np.uint32), data.indices))


def _pieces_of_arrays(data: Mapping[Any, Any], dtype: npt.DTypeLike | None, one_hot: Mapping[str, Classes]) -> Pieces:
    """Return the pieces of a minibatch, or of a mapping of names to arrays."""
    named = {key.name if isinstance(key, StreamInformation) else str(key): value for key, value in data.items()}
    if not named:
        raise ConfigError("no stream to write; expected at least one", key="streams")
    for name in one_hot:
        if name not in named:
            raise ConfigError(f"one_hot: no stream {name!r}{there_are(name, named)}", key="one_hot")
    streams = [ArrayStream(name, value, dtype, one_hot.get(name)) for name, value in named.items()]
    counts = {stream.name: stream.num_sequences for stream in streams}
    if len(set(counts.values())) > 1:
        raise CorpusError(f"streams with different numbers of sequences: {counts}; expected the same")
    num_sequences, num_bytes = streams[0].num_sequences, sum(stream.num_bytes for stream in streams)
    # Small data are one piece, and a sequence that is larger than a piece is a piece of its own.
    step = max(num_sequences * PIECE_BYTES // max(num_bytes, PIECE_BYTES), 1)
    own = data.keys_of_sequences if isinstance(data, Minibatch) else np.zeros((0, 0))
    keys = Keys.of(own) if own.ndim == 1 else None

    def pieces() -> Iterator[Piece]:
        for first in range(0, num_sequences, step):
            last = min(first + step, num_sequences)
            chunk = Chunk.from_columns(last - first, [stream.column(first, last) for stream in streams])
            yield Piece(chunk, None if keys is None else keys.part(first, last))

    infos, total = [stream.info(index) for index, stream in enumerate(streams)], -(-num_sequences // step)
    has_words = keys is not None and keys.are_words
    made = Pieces("arrays", infos, pieces(), total, has_words, num_sequences=num_sequences)
    return made._replace(counts_keys=keys is None, log_rounded=[stream.log_rounded for stream in streams])

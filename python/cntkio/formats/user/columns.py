"""Checked copies of the arrays and matrices that a user's `get_chunk` returns, as the columns of a chunk.

::

    {"x": array | CSR matrix | list of either}  ──>  Column for each stream  ──>  Chunk

If a value does not fit its stream, an error names the chunk, the stream and, in a list, the sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio.errors import CorpusError
from cntkio.formats.table import span_at
from cntkio.streams import StreamInformation

_LARGEST_OFFSET = 2**32 - 1


class Column(NamedTuple):
    """The samples of one stream, sequence after sequence, as `Chunk.from_columns` takes them.

    Attributes:
        sequence_offsets: Sample at which each sequence begins and, last, the number of samples.
        values: Values of all samples.
        dim: Values of a sample, or the bound of its indices.
        sparse: The entry at which each sample begins and, last, the number of entries; and the index of each entry.
            None: the stream is dense.
    """

    sequence_offsets: npt.NDArray[np.uint32]
    values: npt.NDArray[Any]
    dim: int
    sparse: tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32]] | None


def column(where: str, data: Any, info: StreamInformation) -> Column:
    """Check and copy the data of one stream.

    Args:
        where: Beginning of a message.
        data: An array or a CSR matrix, in which each sample is a sequence; or a list of sequences, each an array or a
            matrix.
        info: The stream.

    Raises:
        CorpusError: The data do not fit the stream.
    """
    where = f"{where}, stream {info.name!r}"
    is_list = isinstance(data, list | tuple)
    items = list(data) if is_list else [data]
    misfit = _misfit_of_sparse if info.is_sparse else _misfit_of_dense
    # A list of sequences consists of Python objects, so these loops have to be in Python. A single array, in which each
    # sample is a sequence, needs no loop.
    for index, item in enumerate(items):
        why = misfit(item, info)
        if why is not None:
            raise CorpusError(f"{where}, sequence {index}: {why}" if is_list else f"{where}: {why}")
    counts = np.array([item.shape[0] for item in items], np.int64)
    offsets = np.append(0, np.cumsum(counts)) if is_list else np.arange(counts[0] + 1)
    sparse = None
    if info.is_sparse:
        sample_offsets, indices, values = _join_matrices(items, info)
        outside = np.flatnonzero((indices < 0) | (indices >= info.dim))
        if len(outside):
            sequence = span_at(offsets, span_at(sample_offsets, outside[0]))
            index = indices[outside[0]]
            raise CorpusError(f"{where}, sequence {sequence}: index {index}, but the dimension is {info.dim}")
        sparse = (_offsets(where, sample_offsets), indices.astype(np.int32, copy=False))
    else:
        flat = [item.reshape(-1) for item in items]
        values = (flat[0] if len(flat) == 1 else np.concatenate(flat)) if flat else np.zeros(0, info.dtype)
    with np.errstate(over="ignore"):  # float64 values beyond float32 become infinite, as in a text file
        values = np.ascontiguousarray(values, info.dtype)
    return Column(_offsets(where, offsets), values, info.dim, sparse)


def _offsets(where: str, offsets: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    if offsets[-1] > _LARGEST_OFFSET:
        raise CorpusError(f"{where}: {offsets[-1]} samples or entries are more than a chunk can hold (2^32 - 1)")
    return offsets.astype(np.uint32)


def _misfit_of_dense(item: Any, info: StreamInformation) -> str | None:
    if not isinstance(item, np.ndarray):
        return f"got {_kind_of(item)}; a dense stream takes NumPy arrays [samples, *{info.shape}]"
    fits = item.shape[1:] in (info.shape, (info.dim,)) or (item.ndim == 1 and info.dim == 1)
    if item.ndim == 0 or not fits:
        return f"an array of shape {item.shape}, but samples have the shape {info.shape} (expected samples first)"
    return _misfit_of_type(item.dtype)


def _misfit_of_sparse(item: Any, info: StreamInformation) -> str | None:
    if getattr(item, "format", None) != "csr" or not hasattr(item, "indptr"):
        return f"got {_kind_of(item)}; a sparse stream takes SciPy CSR matrices [samples, {info.dim}]"
    if len(item.shape) != 2 or item.shape[1] != info.dim:
        return f"a matrix of shape {item.shape}, but the dimension is {info.dim}: expected [samples, {info.dim}]"
    return _misfit_of_type(item.dtype)


def _misfit_of_type(dtype: np.dtype[Any]) -> str | None:
    if dtype in (np.float32, np.float64):
        return None
    return f"values of type {dtype}; expected float32 (.astype(np.float32))"


def _kind_of(item: Any) -> str:
    """Return the format of a sparse matrix, or the type of another object."""
    return str(getattr(item, "format", type(item).__name__))


def _join_matrices(
    matrices: list[Any], info: StreamInformation
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the entry at which each sample begins, and the indices and values, over all matrices."""
    counts, indices, values = [np.zeros(1, np.int64)], [np.zeros(0, np.int32)], [np.zeros(0, info.dtype)]
    for matrix in matrices:
        in_use = slice(matrix.indptr[0], matrix.indptr[-1])
        counts.append(np.diff(matrix.indptr))
        indices.append(matrix.indices[in_use])
        values.append(matrix.data[in_use])
    return np.cumsum(np.concatenate(counts)), np.concatenate(indices), np.concatenate(values)


def chunk_of(
    where: str, data: Any, streams: Sequence[StreamInformation], defining: int | None
) -> tuple[_core.Chunk, npt.NDArray[np.uint32]]:
    """Make a chunk from the result of `get_chunk`.

    Returns:
        The chunk, and the number of samples that each of its sequences counts for.

    Raises:
        CorpusError: The data do not fit the streams.
    """
    if not isinstance(data, Mapping):
        raise CorpusError(
            f"{where}: get_chunk() returned {_kind_of(data)}; expected a dict with an entry for each stream"
        )
    names = [info.name for info in streams]
    for name in names:
        if name not in data:
            raise CorpusError(f"{where}: no stream {name!r}; there are: {', '.join(map(repr, data)) or 'none'}")
    for name in data:
        if name not in names:
            raise CorpusError(f"{where}: {name!r} is not one of the streams {', '.join(map(repr, names))}")
    columns = [column(where, data[info.name], info) for info in streams]
    return joined_columns(where, columns, streams, defining)


def joined_columns(
    where: str, columns: Sequence[Column], streams: Sequence[StreamInformation], defining: int | None
) -> tuple[_core.Chunk, npt.NDArray[np.uint32]]:
    """Make a chunk from columns.

    Args:
        where: Beginning of a message.
        columns: A column for each stream.
        streams: The streams.
        defining: Index of the stream that defines the minibatch size; None: the stream with the most samples counts.

    Returns:
        The chunk, and the number of samples that each of its sequences counts for.

    Raises:
        CorpusError: The streams have different numbers of sequences.
    """
    num_sequences = len(columns[0].sequence_offsets) - 1
    for info, other in zip(streams, columns, strict=True):
        if len(other.sequence_offsets) - 1 != num_sequences:
            raise CorpusError(
                f"{where}: stream {streams[0].name!r} has {num_sequences} sequences, but stream {info.name!r} has "
                f"{len(other.sequence_offsets) - 1}"
            )
    counted = columns if defining is None else [columns[defining]]
    lengths = np.ones(num_sequences, np.uint32)
    for counting in counted:
        np.maximum(lengths, np.diff(counting.sequence_offsets), out=lengths)
    return _core.Chunk.from_columns(num_sequences, list(columns)), lengths

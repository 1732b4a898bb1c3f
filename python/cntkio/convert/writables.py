"""A `Writable` from any argument of a writer: a deserializer, a source, a mapping of arrays, record batches."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio._core import Chunk
from cntkio.convert import tuning
from cntkio.convert.array_streams import ArrayStream
from cntkio.convert.chunks import has_text_keys, pieces_of_chunks, refuse_unknown_sequences
from cntkio.convert.pieces import Piece, Pieces, Writable
from cntkio.convert.tables import is_table
from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.contract import Deserializer
from cntkio.formats.foreign import as_deserializer, can_be_opened
from cntkio.formats.user import Column
from cntkio.hints import there_are
from cntkio.minibatch import Minibatch, MinibatchData
from cntkio.source import MinibatchSource
from cntkio.streams import LARGEST_DIM, StreamInformation


def pieces_of(
    data: Any, dtype: npt.DTypeLike | None = None, one_hot: Mapping[str, int] | None = None
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
    return _writable(data, dtype, one_hot or {}).pieces()


def _writable(data: Any, dtype: npt.DTypeLike | None, one_hot: Mapping[str, int]) -> Writable:
    if isinstance(data, Mapping):
        return _WritableArrays(data, dtype, one_hot)
    if is_table(data):
        from cntkio import arrow  # late: Arrow is optional, and its module imports this module

        return arrow.read(data, one_hot=one_hot)
    if one_hot:
        raise ConfigError(
            f"one_hot is for arrays, minibatches and tables, not for a {type(data).__name__}, which knows its streams",
            key="one_hot",
        )
    if isinstance(data, Writable):
        return data
    if isinstance(data, MinibatchSource):
        return _WritableSource(data)
    if isinstance(data, str | os.PathLike) or can_be_opened(data):
        return _WritableCorpus(as_deserializer(data))
    raise ConfigError(
        f"cannot write data of the type {type(data).__name__}; expected a deserializer, a MinibatchSource with an end, "
        "a data frame, the result of cntkio.arrow.read, or a mapping of names to arrays, such as {'x': data}"
    )


class _WritableCorpus:
    """The `Writable` of a deserializer, which it opens."""

    def __init__(self, deserializer: Deserializer) -> None:
        self._deserializer = deserializer

    @contextlib.contextmanager
    def pieces(self) -> Iterator[Pieces]:
        with contextlib.closing(self._deserializer.open()) as corpus:
            refuse_unknown_sequences(corpus)
            num_chunks = corpus.table.num_chunks
            pieces = pieces_of_chunks(corpus, range(num_chunks))
            yield Pieces(corpus.name, list(corpus.streams), pieces, num_chunks, has_text_keys(corpus))


class _WritableSource:
    """The `Writable` of a source, which it reads to the end."""

    def __init__(self, source: MinibatchSource) -> None:
        if source.is_infinite():
            raise ConfigError(
                "a source without an end cannot be written; expected max_sweeps or max_samples", key="max_sweeps"
            )
        self._source = source

    @contextlib.contextmanager
    def pieces(self) -> Iterator[Pieces]:
        source, streams = self._source, self._source.stream_infos()
        yield Pieces("source", streams, self._each(streams), 0, source.has_text_keys, repeats_keys=True)

    def _each(self, streams: list[StreamInformation]) -> Iterator[Piece]:
        for minibatch in self._source.minibatches(tuning.SAMPLES_AT_ONCE):
            columns = [_column(minibatch[info]) for info in streams]
            keys = minibatch.keys_of_sequences
            chunk = Chunk.from_columns(minibatch.num_sequences, list(columns))
            yield Piece(chunk, keys if keys.ndim == 1 else None)


def _column(data: Any) -> Column:
    if not isinstance(data, MinibatchData):
        raise ConfigError(
            "truncated minibatches cannot be written; expected whole sequences, read without truncation_length",
            key="truncation_length",
        )
    offsets = data.offsets.astype(np.uint32)
    if data.stream.dtype == np.int32:  # classes; a chunk holds each as an entry of value 1
        entries = np.arange(data.num_samples + 1, dtype=np.uint32), np.ascontiguousarray(data.values)
        return Column(offsets, np.ones(data.num_samples, np.float32), LARGEST_DIM, entries)
    if data.indptr is None or data.indices is None:
        return Column(offsets, np.ascontiguousarray(data.values).reshape(-1), data.stream.dim, None)
    return Column(offsets, data.values, data.stream.dim, (data.indptr.astype(np.uint32), data.indices))


class _WritableArrays:
    """The `Writable` of a minibatch, or of a mapping of names to arrays."""

    def __init__(self, data: Mapping[Any, Any], dtype: npt.DTypeLike | None, one_hot: Mapping[str, int]) -> None:
        named = {key.name if isinstance(key, StreamInformation) else str(key): value for key, value in data.items()}
        if not named:
            raise ConfigError("no stream to write; expected at least one", key="streams")
        for name in one_hot:
            if name not in named:
                raise ConfigError(f"one_hot: no stream {name!r}{there_are(name, named)}", key="one_hot")
        self._streams = [ArrayStream(name, value, dtype, one_hot.get(name)) for name, value in named.items()]
        counts = {stream.name: stream.num_sequences for stream in self._streams}
        if len(set(counts.values())) > 1:
            raise CorpusError(f"streams with different numbers of sequences: {counts}; expected the same")
        self._num_sequences = self._streams[0].num_sequences
        keys = data.keys_of_sequences if isinstance(data, Minibatch) else None
        self._keys = keys if keys is not None and keys.ndim == 1 else None

    @contextlib.contextmanager
    def pieces(self) -> Iterator[Pieces]:
        streams = [stream.info(index) for index, stream in enumerate(self._streams)]
        step = self._sequences_of_a_piece()
        has_text_keys = self._keys is not None and self._keys.dtype.kind not in "ui"
        total, wide = -(-self._num_sequences // step), [stream.name for stream in self._streams if stream.is_wide]
        yield Pieces("arrays", streams, self._each(step), total, has_text_keys, wide=wide)

    def _sequences_of_a_piece(self) -> int:
        num_bytes = sum(stream.num_bytes for stream in self._streams)
        if num_bytes <= tuning.PIECE_BYTES:
            return max(self._num_sequences, 1)
        return max(self._num_sequences * tuning.PIECE_BYTES // num_bytes, 1)

    def _each(self, step: int) -> Iterator[Piece]:
        for first in range(0, self._num_sequences, step):
            last = min(first + step, self._num_sequences)
            chunk = Chunk.from_columns(last - first, [stream.column(first, last) for stream in self._streams])
            yield Piece(chunk, None if self._keys is None else self._keys[first:last])

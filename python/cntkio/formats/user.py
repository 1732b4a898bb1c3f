"""Formats written in Python: the base class, and the corpora that a source reads. (docs/user-defined.md)

::

    UserDeserializer  ── open() ──>  UserTimelineCorpus   timeline="local": has no table, joins alone
                                     MainTimelineCorpus   timeline="global": has a table like any other corpus

Invariant: only one thread at a time calls `get_chunk`, and `get_chunk` returns the same data each time. An exception of
`get_chunk` reaches the reader unchanged. If data do not fit the streams, an error names the chunk, the stream and, in a
list, the sequence.

Nothing here concerns the order: see `cntkio.timeline.user_timeline`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._threads import ForkLock
from cntkio.arguments import is_whole
from cntkio.displays import counted
from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.contract import OPENING, Corpus, Index, Loaded, Opening
from cntkio.formats.table import NO_SEQUENCES, Column, Keys, SequenceTable, in_precision
from cntkio.storage.spans import SlicedNumbers, span_at
from cntkio.streams import LARGEST_DIM, NUMBER_TYPES, StreamInformation, check_definers

_LARGEST_OFFSET = 2**32 - 1


def column(where: str, data: Any, info: StreamInformation) -> Column:
    """Check and copy the data of one stream.

    Args:
        where: Beginning of a message.
        data: An array or a CSR matrix, in which each sample is a sequence; or a list of sequences, each an array or a
            matrix.

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
        # Before the conversion to int32, which could turn a large index of 64 bits into a valid one.
        outside = np.flatnonzero((indices < 0) | (indices >= info.dim))
        if len(outside):
            sequence = span_at(offsets, span_at(sample_offsets, outside[0]))
            index = indices[outside[0]]
            raise CorpusError(f"{where}, sequence {sequence}: index {index}, but the dimension is {info.dim}")
        sparse = (_offsets(where, sample_offsets), indices.astype(np.int32, copy=False))
    else:
        flat = [item.reshape(-1) for item in items]
        # A chunk without sequences may be an empty list.
        values = (flat[0] if len(flat) == 1 else np.concatenate(flat)) if flat else np.zeros(0, info.dtype)
    if info.dtype.kind == "i":
        values = in_precision(where, values, info.dtype)
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
    return _misfit_of_type(item.dtype, info)


def _misfit_of_sparse(item: Any, info: StreamInformation) -> str | None:
    # SciPy is optional, so its matrices are known by their attributes.
    if getattr(item, "format", None) != "csr" or not hasattr(item, "indptr"):
        return f"got {_kind_of(item)}; a sparse stream takes SciPy CSR matrices [samples, {info.dim}]"
    if len(item.shape) != 2 or item.shape[1] != info.dim:
        return f"a matrix of shape {item.shape}, but the dimension is {info.dim}: expected [samples, {info.dim}]"
    return _misfit_of_type(item.dtype, info)


def _misfit_of_type(dtype: np.dtype[Any], info: StreamInformation) -> str | None:
    if dtype.kind in "iub" if info.dtype.kind == "i" else dtype in (np.float32, np.float64):
        return None
    return f"values of type {dtype}; expected {info.dtype} (.astype(np.{info.dtype}))"


def _kind_of(item: Any) -> str:
    """Return the format of a sparse matrix, or the type of another object."""
    return str(getattr(item, "format", type(item).__name__))


def _join_matrices(
    matrices: list[Any], info: StreamInformation
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the entry at which each sample begins, and the indices and values, over all matrices."""
    # The empty arrays are for a list without matrices, which `np.concatenate` refuses.
    counts, indices, values = [np.zeros(1, np.int64)], [np.zeros(0, np.int32)], [np.zeros(0, info.dtype)]
    for matrix in matrices:
        # The arrays of a matrix may have entries that no row uses.
        in_use = slice(matrix.indptr[0], matrix.indptr[-1])
        counts.append(np.diff(matrix.indptr))
        indices.append(matrix.indices[in_use])
        values.append(matrix.data[in_use])
    return np.cumsum(np.concatenate(counts)), np.concatenate(indices), np.concatenate(values)


def chunk_of(
    where: str, data: Any, streams: Sequence[StreamInformation], defining: int | None
) -> tuple[_core.Chunk, npt.NDArray[np.uint32]]:
    """Make a chunk from the result of `get_chunk`; see `joined_columns`."""
    if not isinstance(data, Mapping):
        found = _kind_of(data)
        raise CorpusError(f"{where}: get_chunk() returned {found}; expected a dict with an entry for each stream")
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
    """Make a chunk from columns. Return it, and the number of samples that each of its sequences counts for.

    Args:
        where: Beginning of a message.
        defining: Index of the stream that defines the minibatch size; None: the stream with the most samples counts.

    Raises:
        CorpusError: The streams have different numbers of sequences.
    """
    num_sequences, *others = (len(column.sequence_offsets) - 1 for column in columns)
    for info, other in zip(streams[1:], others, strict=True):
        if other != num_sequences:
            first = f"stream {streams[0].name!r} has {num_sequences} sequences"
            raise CorpusError(f"{where}: {first}, but stream {info.name!r} has {other}")
    # A sequence counts for at least 1 sample, even if it has none.
    lengths = np.ones(num_sequences, np.uint32)
    for counting in columns if defining is None else [columns[defining]]:
        np.maximum(lengths, np.diff(counting.sequence_offsets), out=lengths)
    return _core.Chunk.from_columns(num_sequences, list(columns)), lengths


class UserDeserializer:
    """Base class of a format written in Python.

    A subclass returns the streams, the number of chunks, and the data of each chunk; the class below is complete. Pass
    an object of it to `cntkio.MinibatchSource` like any deserializer.

    Attributes:
        timeline: The order and the checkpoints of the source. ``"local"`` is CNTK 2.7's order for user-defined
            deserializers: each partition counts its own samples, the content of a chunk is unknown until the chunk is
            fetched, and the deserializer cannot be joined with others. ``"global"`` is the order of all other formats.
            A subclass may set the attribute, or the caller may pass it to the constructor.

    Raises:
        ConfigError: `timeline` is neither ``"local"`` nor ``"global"``; `MinibatchSource` raises it.

    Example:
        >>> import numpy as np
        >>> from cntkio.streams import LARGEST_DIM, NUMBER_TYPES, StreamInformation, check_definers
        >>> class Squares(UserDeserializer):
        ...     def stream_infos(self):
        ...         return [StreamInformation("x", 0, "dense", np.float32, (1,))]
        ...     def num_chunks(self):
        ...         return 2
        ...     def get_chunk(self, chunk_id):
        ...         return {"x": np.arange(3 * chunk_id, 3 * chunk_id + 3, dtype=np.float32).reshape(3, 1) ** 2}
        >>> from cntkio.source import MinibatchSource
        >>> with MinibatchSource(Squares(), randomize=False, max_sweeps=1) as source:
        ...     [minibatch["x"].values.ravel().tolist() for minibatch in source.minibatches(4)]
        [[0.0, 1.0, 4.0, 9.0], [16.0, 25.0]]
    """

    timeline: Literal["local", "global"] = "local"
    has_text_keys = False

    def __init__(self, *, timeline: Literal["local", "global"] | None = None) -> None:
        if timeline is not None:
            self.timeline = timeline

    def stream_infos(self) -> Sequence[StreamInformation]:
        """Return the streams: float32, float64, int32 or int64. Called once for each source."""
        raise NotImplementedError(f"{type(self).__name__}.stream_infos")

    def num_chunks(self) -> int:
        """Return the number of chunks, at least 1. Called once for each source."""
        raise NotImplementedError(f"{type(self).__name__}.num_chunks")

    def get_chunk(self, chunk_id: int) -> Mapping[str, Any]:
        """Return the data of a chunk.

        Worker threads call this method with the keyword `chunk_id`, one thread at a time, and again whenever the chunk
        is needed but no longer in memory. It must return the same data each time.

        Args:
            chunk_id: 0 to ``num_chunks() - 1``.

        Returns:
            For each stream, by name, an array ``[samples, *shape]`` (dense) or a SciPy CSR matrix ``[samples, dim]``
            (sparse), in which each sample is a sequence; or a list of arrays or matrices, each of which is a sequence.
            All streams have the same number of sequences. A stream of int32 or int64 takes whole
            numbers of any type, other streams float32 or float64.
        """
        raise NotImplementedError(f"{type(self).__name__}.get_chunk")

    def chunk_lengths(self, chunk_id: int) -> Iterable[int] | None:
        """Return the number of samples that each sequence of a chunk counts for, or None to let the source find out.

        A source on the global timeline calls this method for all chunks when it is created. If the result is None,
        which is the default, it fetches the chunk. A length is the number of samples of the stream that defines the
        minibatch size, or else of the stream with the most samples; at least 1.
        """
        return None

    def get_keys(self, chunk_id: int) -> Iterable[int] | Iterable[str] | None:
        """Return the keys of a chunk's sequences, numbers or texts, by which corpora are joined.

        A source on the global timeline calls this method for all chunks when it is created. If the result for the first
        chunk is None, which is the default, the sequences are numbered from 0.
        """
        return None

    def parts(self) -> Sequence[UserDeserializer]:
        """Return this deserializer alone: it describes one corpus."""
        return (self,)

    def open(self, opening: Opening = OPENING) -> UserTimelineCorpus | MainTimelineCorpus:
        """Get the streams and the number of chunks and, on the global timeline, lengths and keys.

        Raises:
            ConfigError: The timeline, a stream or the number of chunks is not possible.
            CorpusError: No chunk has a sequence, or chunks, lengths and keys contradict each other.
        """
        if self.timeline not in ("local", "global"):
            raise ConfigError(f"timeline={self.timeline!r}: expected 'local' or 'global'", key="timeline")
        return (UserTimelineCorpus if self.timeline == "local" else MainTimelineCorpus)(self, opening)


class UserTimelineCorpus(Corpus):
    """A user-defined deserializer in CNTK 2.7's order, in which a chunk's content is unknown until it is fetched.

    Its table has chunks without sequences. In each chunk, indices of sequences begin at 0.
    """

    def __init__(self, deserializer: UserDeserializer, opening: Opening) -> None:
        self._deserializer = deserializer
        name = type(deserializer).__name__
        self.report = opening.report(name)
        streams = _checked_streams(deserializer)
        self._defining = next((info.stream_id for info in streams if info.defines_mb_size), None)
        count = deserializer.num_chunks()
        if not is_whole(count) or not 0 < count < 2**32:
            raise ConfigError(f"{name}: num_chunks() returned {count!r}; expected a whole number, at least 1")
        # Each chunk is fetched whole, so no part of a chunk can be loaded alone.
        table = dataclasses.replace(NO_SEQUENCES, chunk_starts=np.zeros(int(count) + 1, np.int64))
        self.index = Index(streams, table, name=name, joins="alone", loads_parts=False)
        self.index = self.index._replace(fingerprint=f"user-defined, {int(count)} chunks, {self._digest()}")
        self._lock = ForkLock()

    def load(self, chunk_id: int, sequences: npt.NDArray[np.uint32] | None = None) -> Loaded:
        """Fetch a chunk. Its findings are the lengths of its sequences, uint32."""
        with self._lock.inner:
            data = self._deserializer.get_chunk(chunk_id=chunk_id)
        # Outside the lock: another thread may fetch a chunk while this chunk is checked and copied.
        chunk, lengths = chunk_of(f"{self.name}, chunk {chunk_id}", data, self.streams, self._defining)
        return Loaded(chunk_id, chunk, lengths)

    def _error(self, chunk_id: int, what: str) -> CorpusError:
        return CorpusError(f"{self.name}, chunk {chunk_id}: {what}")

    def _digest(self, *arrays: SlicedNumbers) -> str:
        digest = hashlib.blake2b(repr((self.streams, self.table.num_chunks)).encode(), digest_size=16)
        for array in arrays:
            # With the types, because arrays of different types may have the same bytes.
            digest.update(array.dtype.str.encode() + np.ascontiguousarray(array[:]).tobytes())
        return digest.hexdigest()


class MainTimelineCorpus(UserTimelineCorpus):
    """A user-defined deserializer in the order of all other formats. Chunks without a sequence are left out."""

    def __init__(self, deserializer: UserDeserializer, opening: Opening) -> None:
        super().__init__(deserializer, opening)
        all_lengths = list(self._lengths())
        sizes = np.array([len(lengths) for lengths in all_lengths], np.int64)
        self._chunk_ids = np.flatnonzero(sizes)
        if not len(self._chunk_ids):
            raise CorpusError(f"{self.name}: no chunk contains a sequence, so there is nothing to read")
        chunk_starts = np.append(0, np.cumsum(sizes[self._chunk_ids]))
        table = SequenceTable(Keys(self._keys(sizes)), np.concatenate(all_lengths), chunk_starts)
        counts = f"{len(sizes)} chunks, {table.num_sequences} sequences"
        fingerprint = f"user-defined, {counts}, {self._digest(*table.content())}"
        self.index = self.index._replace(table=table, fingerprint=fingerprint, joins="anywhere")

    def _lengths(self) -> Iterator[npt.NDArray[np.uint32]]:
        for chunk_id in range(self.table.num_chunks):
            stated = self._deserializer.chunk_lengths(chunk_id)
            if stated is None:
                yield super().load(chunk_id).findings
                continue
            lengths = _as_array(stated)
            # NumPy makes an empty list an array of doubles.
            are_whole = lengths.dtype.kind in "iu" or not len(lengths)
            if lengths.ndim != 1 or not are_whole or not ((lengths >= 1) & (lengths < 2**32)).all():
                what = f"chunk_lengths() returned {stated!r:.200}; expected whole numbers, each at least 1"
                raise self._error(chunk_id, what)
            yield lengths.astype(np.uint32)

    def _keys(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        first = self._deserializer.get_keys(0)
        if first is None:
            return np.arange(sizes.sum(), dtype=np.uint64)
        keys = []
        for chunk_id, size in enumerate(sizes.tolist()):
            # Chunk 0 was already asked for above.
            stated = first if chunk_id == 0 else self._deserializer.get_keys(chunk_id)
            array = _as_array(() if stated is None else stated)
            if array.shape != (size,):
                what = f"{size} sequences, but get_keys() returned {stated!r:.200}; expected a key for each"
                raise self._error(chunk_id, what)
            # The array of a chunk without sequences has no meaningful type.
            if not size:
                continue
            if array.dtype.kind not in "iuU" or (array.dtype.kind == "i" and array.min() < 0):
                what = f"get_keys() returned {stated!r:.200}; expected whole numbers from 0, or texts"
                raise self._error(chunk_id, what)
            keys.append(array if array.dtype.kind == "U" else array.astype(np.uint64))
        if len({array.dtype.kind for array in keys}) > 1:
            raise CorpusError(f"{self.name}: get_keys() returned numbers for some chunks and texts for others")
        return np.concatenate(keys)

    def load(self, chunk_id: int, sequences: npt.NDArray[np.uint32] | None = None) -> Loaded:
        """Fetch a chunk, and check that it has the same sequences as before."""
        users_id = int(self._chunk_ids[chunk_id])
        loaded = super().load(users_id)
        expected, lengths = self.table.lengths[slice(*self.table.bounds_of(chunk_id))], loaded.findings
        if len(lengths) != len(expected):
            what = f"{len(lengths)} sequences, but {len(expected)} were announced or returned before"
            raise self._error(users_id, what)
        different = np.flatnonzero(lengths != expected)
        if len(different):
            index = int(different[0])
            what = f"{counted(lengths[index], 'sample')}, but {expected[index]} were announced or returned before"
            raise CorpusError(f"{self.name}, chunk {users_id}, sequence {index}: it counts for {what}")
        return Loaded(chunk_id, loaded.chunk, lengths)


def _as_array(items: Iterable[Any]) -> npt.NDArray[Any]:
    return np.asarray(items if isinstance(items, np.ndarray) else list(items))


def _checked_streams(deserializer: UserDeserializer) -> tuple[StreamInformation, ...]:
    """Return the streams that a deserializer names, with their indices."""
    name = type(deserializer).__name__
    infos = list(deserializer.stream_infos())
    if not infos:
        raise ConfigError(f"{name}: stream_infos() returned no streams; expected at least one")
    streams: list[StreamInformation] = []
    for info in infos:
        if not isinstance(info, StreamInformation):
            raise ConfigError(f"{name}: stream_infos() returned {info!r:.200}; expected StreamInformation objects")
        if any(info.name == other.name for other in streams):
            raise ConfigError(f"{name}: two streams have the name {info.name!r}", key=info.name)
        where = f"{name}, stream {info.name!r}"
        if info.dtype not in NUMBER_TYPES:
            types = ", ".join(map(str, NUMBER_TYPES))
            raise ConfigError(f"{where}: dtype {info.dtype}; expected {types}", key="dtype")
        if not 0 < info.dim <= LARGEST_DIM:
            raise ConfigError(f"{where}: shape {info.shape}; expected 1 to 2^31 - 1 values", key="shape")
        # The order of the list counts, whatever indices its objects have.
        streams.append(dataclasses.replace(info, stream_id=len(streams)))
    check_definers([info.name for info in streams if info.defines_mb_size], f"{name}: ")
    return tuple(streams)

"""Formats written in Python: a base class, and how what it gives becomes chunks. (docs/user-defined.md)

::

    get_chunk(chunk_id=k)  ──>  {"x": array | CSR matrix | list of either}  ──>  checked, copied  ──>  Chunk

Its law: a chunk is asked for by one thread at a time, and whoever is asked twice answers the same. What does not fit
the streams is an error that names chunk, stream and, where there is one, the sequence; what `get_chunk` raises is
raised as it is.

It says nothing about order: a corpus on the main timeline has a table, one on its own timeline has none
(`cntkio.timeline.user_timeline`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio._threads import ForkLock
from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.contract import NOTHING_AHEAD, Ahead, Deserializer, Joins, Loaded
from cntkio.formats.report import Report
from cntkio.formats.table import SequenceTable
from cntkio.streams import StreamInformation

_LARGEST_DIM = 2**31 - 1
_LARGEST_OFFSET = 2**32 - 1


class UserDeserializer:
    """Base class of a format written in Python.

    A subclass says what streams there are, how many chunks, and what is in each; the class below is complete. It is
    passed to `cntkio.MinibatchSource` as any deserializer.

    Attributes:
        timeline: Which order and which checkpoints a source has. ``"local"`` is CNTK 2.7's for user-defined
            deserializers: each partition counts its own samples, nothing is known of a chunk before it is fetched,
            and it cannot be joined with others. ``"global"`` is that of all other formats. A subclass may set it, and
            so may whoever makes an instance.

    Raises:
        ConfigError: `timeline` is neither.

    Example:
        >>> import numpy as np
        >>> from cntkio.streams import StreamInformation
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
        """The streams: float32, or float64 where values shall stay so. Asked once for each source."""
        raise NotImplementedError(f"{type(self).__name__}.stream_infos")

    def num_chunks(self) -> int:
        """How many chunks there are, at least 1. Asked once for each source."""
        raise NotImplementedError(f"{type(self).__name__}.num_chunks")

    def get_chunk(self, chunk_id: int) -> Mapping[str, Any]:
        """The data of a chunk.

        It is called with the keyword `chunk_id`, from worker threads, but never by two at a time; again whenever the
        chunk is needed and not in memory any more. It must give the same each time.

        Args:
            chunk_id: 0 to ``num_chunks() - 1``.

        Returns:
            For each stream, by name, an array ``[samples, *shape]`` (dense) or a SciPy CSR matrix ``[samples, dim]``
            (sparse), of which each sample is a sequence; or a list of such, of which each item is a sequence. All
            streams have equally many sequences. Values are float32 or float64.
        """
        raise NotImplementedError(f"{type(self).__name__}.get_chunk")

    def chunk_lengths(self, chunk_id: int) -> Iterable[int] | None:
        """How many samples each sequence of a chunk counts for, if that is known without fetching the chunk.

        It is asked for all chunks when a source on the global timeline is made. Where it gives None, as it does here,
        the chunk itself is asked for then. A length is the number of samples of the stream that defines the minibatch
        size, or else of the stream that has the most; at least 1.
        """
        return None

    def get_keys(self, chunk_id: int) -> Iterable[int] | Iterable[str] | None:
        """The keys of a chunk's sequences, numbers or texts, by which they are joined with those of others.

        It is asked for all chunks when a source on the global timeline is made. Where it gives None for the first
        chunk, as it does here, the keys are the sequences' running numbers from 0.
        """
        return None

    def parts(self) -> Sequence[Deserializer]:
        return (self,)

    def open(self, *, text_keys: bool = False, ahead: Ahead = NOTHING_AHEAD) -> LocalUserCorpus | GlobalUserCorpus:
        """Ask for streams and number of chunks and, on the global timeline, for lengths and keys.

        Both arguments change nothing: the methods of this class give the keys, and nothing is parsed ahead.

        Raises:
            ConfigError: The timeline, a stream or the number of chunks is not possible.
            CorpusError: There are no sequences, or chunks, lengths and keys do not fit together.
        """
        if self.timeline not in ("local", "global"):
            raise ConfigError(f"timeline={self.timeline!r}: expected 'local' or 'global'", key="timeline")
        return LocalUserCorpus(self) if self.timeline == "local" else GlobalUserCorpus(self)


# --------------------------------------------------------------------------------------------------- corpora


class _UserCorpus:
    """What both corpora share: streams, fetching and checking chunks."""

    utterances = None

    def __init__(self, deserializer: UserDeserializer) -> None:
        self._deserializer = deserializer
        self.name = type(deserializer).__name__
        self.report = Report(self.name)
        self.streams = _checked_streams(deserializer)
        self._defining = next((info.stream_id for info in self.streams if info.defines_mb_size), None)
        num_chunks = deserializer.num_chunks()
        if not isinstance(num_chunks, int | np.integer) or not 0 < num_chunks < 2**32:
            raise ConfigError(f"{self.name}: num_chunks() gave {num_chunks!r}; expected a whole number, at least 1")
        self.num_chunks = int(num_chunks)
        self._lock = ForkLock()

    def fetch(self, chunk_id: int) -> Loaded:
        """Ask for a chunk. Its findings are its sequences' lengths, uint32."""
        with self._lock:
            given = self._deserializer.get_chunk(chunk_id=chunk_id)
        chunk, lengths = _chunk(f"{self.name}, chunk {chunk_id}", given, self.streams, self._defining)
        return Loaded(chunk_id, chunk, lengths)

    def take_parsed(self) -> dict[int, Loaded]:
        return {}

    def account_for(self, loaded: Loaded) -> None:
        """Do nothing: no error of a chunk is forgiven."""

    def close(self) -> None:
        """There is nothing to close."""

    def _digest(self, *arrays: npt.NDArray[Any]) -> str:
        digest = hashlib.blake2b(repr((self.streams, self.num_chunks)).encode(), digest_size=16)
        for array in arrays:
            digest.update(array.dtype.str.encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


class LocalUserCorpus(_UserCorpus):
    """A user-defined deserializer on its own timeline: what a chunk holds is known only when it was fetched.

    Attributes:
        table: Holds no sequences; numbers of sequences begin at 0 in each chunk.
    """

    joins: Joins = "alone"

    def __init__(self, deserializer: UserDeserializer) -> None:
        super().__init__(deserializer)
        nothing = np.zeros(0, np.uint32)
        self.table = SequenceTable(nothing.astype(np.uint64), nothing, np.zeros(self.num_chunks + 1, np.int64))

    def load(self, chunk_id: int) -> Loaded:
        return self.fetch(chunk_id)

    def fingerprint(self) -> str:
        """Of the streams and the number of chunks: more is not known."""
        return f"user-defined, {self.num_chunks} chunks, {self._digest()}"


class GlobalUserCorpus(_UserCorpus):
    """A user-defined deserializer on the main timeline.

    Attributes:
        table: Keys and lengths of all sequences. Chunks without a sequence are left out.
    """

    joins: Joins = "anywhere"

    def __init__(self, deserializer: UserDeserializer) -> None:
        super().__init__(deserializer)
        all_lengths = list(self._lengths())
        sizes = np.array([len(lengths) for lengths in all_lengths], np.int64)
        self._chunk_ids = np.flatnonzero(sizes)
        if not len(self._chunk_ids):
            raise CorpusError(f"{self.name}: no chunk holds a sequence: there is nothing to read")
        lengths = np.concatenate(all_lengths)
        chunk_starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[self._chunk_ids])])
        self.table = SequenceTable(self._keys(sizes), lengths, chunk_starts)

    def _lengths(self) -> Iterator[npt.NDArray[np.uint32]]:
        for chunk_id in range(self.num_chunks):
            given = self._deserializer.chunk_lengths(chunk_id)
            if given is None:
                yield self.fetch(chunk_id).findings
                continue
            lengths = np.asarray(given if isinstance(given, np.ndarray) else list(given))
            if not len(lengths):
                lengths = lengths.astype(np.uint32)
            if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 1).any() or (lengths >= 2**32).any():
                raise CorpusError(
                    f"{self.name}, chunk {chunk_id}: chunk_lengths() gave {given!r:.200}; expected whole "
                    f"numbers, each at least 1"
                )
            yield lengths.astype(np.uint32)

    def _keys(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        first = self._deserializer.get_keys(0)
        if first is None:
            return np.arange(sizes.sum(), dtype=np.uint64)
        keys = []
        for chunk_id, size in enumerate(sizes.tolist()):
            given = first if chunk_id == 0 else self._deserializer.get_keys(chunk_id)
            array = np.asarray(given if isinstance(given, np.ndarray) else list(given if given is not None else ()))
            if array.shape != (size,):
                raise CorpusError(
                    f"{self.name}, chunk {chunk_id}: {size} sequences, but get_keys() gave {given!r:.200}; "
                    f"expected a key for each"
                )
            if size and (array.dtype.kind not in "iuU" or (array.dtype.kind == "i" and (array < 0).any())):
                raise CorpusError(
                    f"{self.name}, chunk {chunk_id}: get_keys() gave {given!r:.200}; expected whole numbers from 0, "
                    f"or texts"
                )
            if size:
                keys.append(array if array.dtype.kind == "U" else array.astype(np.uint64))
        if len({array.dtype.kind for array in keys}) > 1:
            raise CorpusError(f"{self.name}: get_keys() gave numbers for some chunks and texts for others")
        return np.concatenate(keys)

    def load(self, number: int) -> Loaded:
        """Fetch a chunk, and see to it that it is the one that the table was made from."""
        chunk_id = int(self._chunk_ids[number])
        loaded = self.fetch(chunk_id)
        begin, end = self.table.chunk_starts[number : number + 2]
        expected, lengths = self.table.lengths[begin:end], loaded.findings
        if len(lengths) != len(expected):
            raise CorpusError(
                f"{self.name}, chunk {chunk_id}: {len(lengths)} sequences, but {len(expected)} were announced or "
                f"given before"
            )
        different = np.flatnonzero(lengths != expected)
        if len(different):
            which = int(different[0])
            raise CorpusError(
                f"{self.name}, chunk {chunk_id}, sequence {which}: it counts for {lengths[which]} samples, but "
                f"{expected[which]} were announced or given before"
            )
        return Loaded(number, loaded.chunk, lengths)

    def fingerprint(self) -> str:
        """Of the streams, chunks, keys and lengths."""
        digest = self._digest(self.table.keys, self.table.lengths, self.table.chunk_starts)
        return f"user-defined, {self.num_chunks} chunks, {self.table.num_sequences} sequences, {digest}"


def _checked_streams(deserializer: UserDeserializer) -> tuple[StreamInformation, ...]:
    name = type(deserializer).__name__
    given = list(deserializer.stream_infos())
    if not given:
        raise ConfigError(f"{name}: stream_infos() gave no streams; expected at least one")
    streams: list[StreamInformation] = []
    for info in given:
        if not isinstance(info, StreamInformation):
            raise ConfigError(f"{name}: stream_infos() gave {info!r:.200}; expected StreamInformation objects")
        if any(info.name == other.name for other in streams):
            raise ConfigError(f"{name}: two streams have the name {info.name!r}", key=info.name)
        if info.dtype not in (np.float32, np.float64):
            raise ConfigError(
                f"{name}, stream {info.name!r}: dtype {info.dtype}; expected float32 or float64", key="dtype"
            )
        if not 0 < info.dim <= _LARGEST_DIM:
            raise ConfigError(
                f"{name}, stream {info.name!r}: shape {info.shape}; expected 1 to 2^31 - 1 values", key="shape"
            )
        streams.append(
            StreamInformation(
                info.name, len(streams), info.storage_format, info.dtype, info.shape, info.defines_mb_size
            )
        )
    defining = [repr(info.name) for info in streams if info.defines_mb_size]
    if len(defining) > 1:
        raise ConfigError(
            f"{name}: only a single stream may define the minibatch size, but {', '.join(defining)} do",
            key="defines_mb_size",
        )
    return tuple(streams)


# --------------------------------------------------------------------------------------------------- columns


class Column(NamedTuple):
    """The samples of one stream, sequence after sequence, as `Chunk.from_columns` takes them."""

    sequence_offsets: npt.NDArray[np.uint32]
    values: npt.NDArray[Any]
    dim: int
    sparse: tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32]] | None


def column(where: str, given: Any, info: StreamInformation) -> Column:
    """Check and copy what was given for one stream.

    Args:
        where: How a message begins.
        given: An array or a CSR matrix, of which each sample is a sequence, or a list of such sequences.
        info: The stream.

    Raises:
        CorpusError: It does not fit the stream.
    """
    where = f"{where}, stream {info.name!r}"
    is_list = isinstance(given, list | tuple)
    items = list(given) if is_list else [given]
    for number, item in enumerate(items):
        why = (_why_not_sparse if info.is_sparse else _why_not_dense)(item, info)
        if why is not None:
            raise CorpusError(f"{where}, sequence {number}: {why}" if is_list else f"{where}: {why}")
    counts = np.array([item.shape[0] for item in items], np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]) if is_list else np.arange(counts[0] + 1)
    sparse = None
    if info.is_sparse:
        in_samples, indices, values = _entries(items, info)
        outside = np.flatnonzero((indices < 0) | (indices >= info.dim))
        if len(outside):
            which = _sequence_of(int(np.searchsorted(in_samples, outside[0], side="right")) - 1, offsets)
            index = indices[outside[0]]
            raise CorpusError(f"{where}, sequence {which}: index {index}, but the dimension is {info.dim}")
        sparse = (_offsets(where, in_samples), indices.astype(np.int32, copy=False))
    else:
        flat = [item.reshape(-1) for item in items]
        values = (flat[0] if len(flat) == 1 else np.concatenate(flat)) if flat else np.zeros(0, info.dtype)
    with np.errstate(over="ignore"):  # float64 that float32 cannot hold becomes infinite, as in a text
        values = np.ascontiguousarray(values, info.dtype)
    return Column(_offsets(where, offsets), values, info.dim, sparse)


def _sequence_of(sample: int, offsets: npt.NDArray[np.int64]) -> int:
    return int(np.searchsorted(offsets, sample, side="right")) - 1


def _offsets(where: str, offsets: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    if offsets[-1] > _LARGEST_OFFSET:
        raise CorpusError(f"{where}: {offsets[-1]} samples or entries are more than a chunk can hold (2^32 - 1)")
    return offsets.astype(np.uint32)


def _why_not_dense(item: Any, info: StreamInformation) -> str | None:
    if not isinstance(item, np.ndarray):
        return f"{_kind(item)}; the stream is dense, which takes NumPy arrays [samples, *{info.shape}]"
    fits = item.shape[1:] in (info.shape, (info.dim,)) or (item.ndim == 1 and info.dim == 1)
    if item.ndim == 0 or not fits:
        return f"an array of shape {item.shape}, but samples have the shape {info.shape} (expected samples first)"
    return _why_not_numbers(item.dtype)


def _why_not_sparse(item: Any, info: StreamInformation) -> str | None:
    if getattr(item, "format", None) != "csr" or not hasattr(item, "indptr"):
        return f"{_kind(item)}; the stream is sparse, which takes SciPy CSR matrices [samples, {info.dim}]"
    if len(item.shape) != 2 or item.shape[1] != info.dim:
        return f"a matrix of shape {item.shape}, but the dimension is {info.dim}: expected [samples, {info.dim}]"
    return _why_not_numbers(item.dtype)


def _why_not_numbers(dtype: np.dtype[Any]) -> str | None:
    if dtype in (np.float32, np.float64):
        return None
    return f"values of type {dtype}; expected float32 (.astype(np.float32))"


def _kind(item: Any) -> str:
    return f"{getattr(item, 'format', type(item).__name__)} is not possible"


def _entries(
    matrices: list[Any], info: StreamInformation
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any], npt.NDArray[Any]]:
    """Where each sample's entries begin, and the indices and values, over all matrices."""
    counts = [np.diff(matrix.indptr).astype(np.int64) for matrix in matrices]
    in_use = [slice(matrix.indptr[0], matrix.indptr[-1]) for matrix in matrices]
    if not matrices:
        return np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, info.dtype)
    in_samples = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(counts))])
    indices = np.concatenate([matrix.indices[used] for matrix, used in zip(matrices, in_use, strict=True)])
    values = np.concatenate([matrix.data[used] for matrix, used in zip(matrices, in_use, strict=True)])
    return in_samples, indices, values


def _chunk(
    where: str, given: Any, streams: Sequence[StreamInformation], defining: int | None
) -> tuple[_core.Chunk, npt.NDArray[np.uint32]]:
    """A chunk and its sequences' lengths."""
    if not isinstance(given, Mapping):
        raise CorpusError(f"{where}: get_chunk() gave {_kind(given)}; expected a dict with an entry for each stream")
    names = [info.name for info in streams]
    for name in names:
        if name not in given:
            raise CorpusError(f"{where}: no stream {name!r}; there are: {', '.join(map(repr, given)) or 'none'}")
    for name in given:
        if name not in names:
            raise CorpusError(f"{where}: {name!r} is none of the streams {', '.join(map(repr, names))}")
    columns = [column(where, given[info.name], info) for info in streams]
    return joined_columns(where, columns, streams, defining)


def joined_columns(
    where: str, columns: Sequence[Column], streams: Sequence[StreamInformation], defining: int | None
) -> tuple[_core.Chunk, npt.NDArray[np.uint32]]:
    """A chunk of these columns, and its sequences' lengths.

    Raises:
        CorpusError: The streams do not have equally many sequences.
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
    for one in counted:
        np.maximum(lengths, np.diff(one.sequence_offsets), out=lengths)
    arrays = [(one.sequence_offsets, one.values, one.dim, one.sparse) for one in columns]
    return _core.Chunk.from_columns(num_sequences, arrays), lengths

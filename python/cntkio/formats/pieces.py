"""The seam between writers and what they write: sequences, piece by piece; and some chunks of a corpus as a value."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypedDict, TypeGuard, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._core import Chunk
from cntkio._threads import Job, Workers, num_threads
from cntkio.arguments import there_are
from cntkio.displays import counted
from cntkio.errors import CntkIoError, ConfigError, CorpusError
from cntkio.formats.contract import Ahead, Corpus, Deserializer, Loaded, Opening, PlacesInFiles
from cntkio.formats.corpus import as_deserializer
from cntkio.formats.table import Keys
from cntkio.minibatch import Minibatch, MinibatchData
from cntkio.streams import StreamInformation, packed_columns

Progress = Callable[[int, int], None]
"""Function that is called with how much is done and the total; the total is 0 if it is not known."""
NUM_LOADERS = 2
"""Threads that load chunks ahead. This number, and the next, change memory and time, never a result."""
SEQUENCES_PER_CORE = 2048
"""Sequences that a thread turns into text at a time, in the writers of texts."""

Classes = int | Sequence[str]
"""The classes of a column: their number for class ids, or their names for texts."""


class Piece(NamedTuple):
    """Consecutive sequences.

    Attributes:
        chunk: Their data.
        keys: Their keys; None: they have none.
        lengths: Number of samples that each sequence counts for; None: the samples of its longest stream.
    """

    chunk: Chunk
    keys: Keys | None = None
    lengths: npt.NDArray[np.uint32] | None = None


def some_of(piece: Piece, indices: npt.NDArray[np.uint32]) -> Piece:
    """Return some of the sequences of a piece."""
    keys = None if piece.keys is None else piece.keys.only(indices)
    return Piece(piece.chunk.only(indices), keys, None if piece.lengths is None else piece.lengths[indices])


class Pieces(NamedTuple):
    """All sequences of a corpus.

    Attributes:
        name: Name used in messages, usually the file.
        streams: The streams, in the order of the chunks' columns.
        pieces: The pieces, each made on request.
        total: Number of pieces; 0 if it is not known.
        has_text_keys: Whether keys are texts, not numbers.
        repeats_keys: Whether keys may repeat (several sweeps), so that they cannot separate sequences in a file.
        num_sequences: Number of all sequences; None: it is not known.
        first: Number of the first sequence, if sequences without keys are numbered.
        counts_keys: Whether the sequences have no keys, or the keys only count the sequences or the lines of a file.
        places: Function from numbers of sequences to their places. The pieces must not be closed yet.
        log_rounded: Functions that log how many numbers are rounded when they are read.
    """

    name: str
    streams: list[StreamInformation]
    pieces: Iterator[Piece]
    total: int
    has_text_keys: bool = False
    repeats_keys: bool = False
    num_sequences: int | None = None
    first: int = 0
    counts_keys: bool = False
    places: Callable[[npt.NDArray[np.int64]], PlacesInFiles] = lambda numbers: PlacesInFiles.nowhere(len(numbers))
    log_rounded: Sequence[Callable[[], None]] = ()

    def reported(self, progress: Progress | None) -> Iterator[Piece]:
        """Yield the pieces, and report each piece when the next one is requested."""
        for num_done, piece in enumerate(self.pieces, 1):
            yield piece
            if progress is not None:
                progress(num_done, self.total)

    def written(self, progress: Progress | None) -> Iterator[tuple[int, Piece]]:
        """Yield the pieces as `reported` does, each with the number of sequences before it.

        Raises:
            CorpusError: The pieces have no sequence.
        """
        number = self.first
        for piece in self.reported(progress):
            yield number, piece
            number += piece.chunk.num_sequences
        if number == self.first:
            raise CorpusError(f"{self.name}: no sequence to write")

    def column(self, stream: str, key: str) -> int:
        """Return the column of a stream.

        Raises:
            ConfigError: No stream has this name; `key` is the option that gave it.
        """
        names = [info.name for info in self.streams]
        if stream not in names:
            raise ConfigError(f"{self.name} has no stream {stream!r}{there_are(stream, names)}", key=key)
        return names.index(stream)

    def columns(self, order: Sequence[str] | None) -> list[int]:
        """Return the columns of these streams; None: of all.

        Raises:
            ConfigError: No stream has one of these names.
        """
        return [*range(len(self.streams))] if order is None else [self.column(name, "order") for name in order]


@runtime_checkable
class Writable(Protocol):
    """Anything that can be written as a corpus."""

    def pieces(self) -> AbstractContextManager[Pieces]:
        """Open the sequences. Each call begins anew."""


def in_arrays(
    streams: Sequence[StreamInformation], num_sequences: int, chunks: Iterable[Chunk], *, end_of_sweep: bool = True
) -> dict[str, MinibatchData]:
    """Return the sequences of chunks as arrays, by stream name. Release each chunk before the next one is requested."""
    whole = _core.Whole(packed_columns(streams), num_sequences)
    for chunk in chunks:
        whole.append(chunk, num_threads())
        # Without this, the name would keep the chunk while the next one is loaded.
        del chunk
    packed = whole.finish()
    return {info.name: MinibatchData.of(info, packed, index, end_of_sweep) for index, info in enumerate(streams)}


def joined(pieces: Pieces) -> Minibatch:
    """Return all sequences as arrays, in memory.

    Args:
        pieces: Open pieces, as of `pieces_of`.

    Example:
        >>> from cntkio.convert import pieces_of
        >>> with pieces_of({"x": [[1, 2], [3, 4]]}) as pieces:
        ...     joined(pieces)["x"].values.tolist()
        [[1.0], [2.0], [3.0], [4.0]]
    """
    each = list(pieces.pieces)
    num_sequences = sum(piece.chunk.num_sequences for piece in each)
    data = in_arrays(pieces.streams, num_sequences, (piece.chunk for piece in each))
    keys = [piece.keys for piece in each if piece.keys is not None]
    all_keys = Keys.joined(keys) if keys else Keys(range(num_sequences))
    return Minibatch(data, lambda: np.asarray(all_keys))


# ---- All chunks of a corpus in order, loaded by threads ahead of need.


Mend = Callable[[int, Exception], Iterable[Loaded]]
"""Takes a chunk that cannot be loaded and the error, and returns the parts of the chunk that can be loaded."""


def chunks_in_order(corpus: Corpus, chunk_ids: range | None = None, mend: Mend | None = None) -> Iterator[Loaded]:
    """Yield the chunks with these ids (None: all), and count their errors. Load the next few while the caller works.

    Drop each chunk before you request the next: its memory is used again.

    Args:
        corpus: The corpus.
        chunk_ids: The chunks.
        mend: Called with each chunk that cannot be loaded; the other chunks follow. None: the error is raised.

    Raises:
        FormatError: A chunk breaks the format, and `mend` is None.
        OSError: The file cannot be read, and `mend` is None.
    """
    parsed = corpus.take_parsed()

    def load(chunk_id: int) -> Loaded:
        # Taken out, so that `parsed` does not keep the chunk after its use.
        return parsed.pop(chunk_id, None) or corpus.load(chunk_id)

    def accounted(chunk_id: int, job: Job[Loaded]) -> Iterator[Loaded]:
        try:
            loaded = job.result()
            # Here and not in `load`: errors count in the order of the chunks, whichever is loaded first.
            corpus.account_for(loaded)
        except (CntkIoError, OSError) as error:
            if mend is None:
                raise
            yield from mend(chunk_id, error)
        else:
            yield loaded

    coming: deque[tuple[int, Job[Loaded]]] = deque()
    with Workers(NUM_LOADERS, "cntkio-load") as loaders:
        for chunk_id in range(corpus.table.num_chunks) if chunk_ids is None else chunk_ids:
            coming.append((chunk_id, loaders.do(load, chunk_id)))
            # A job more than there are threads, so that no thread waits while the caller works on a chunk.
            if len(coming) > NUM_LOADERS:
                yield from accounted(*coming.popleft())
        while coming:
            yield from accounted(*coming.popleft())


def read_corpus(corpus: Corpus) -> Minibatch:
    """Read an opened corpus into arrays, chunk by chunk, with few chunks in memory at a time.

    Raises:
        FormatError: A chunk breaks the format.
        OSError: The file cannot be read.
    """
    # `map` keeps no chunk, so that the next chunk can use its memory.
    chunks = map(attrgetter("chunk"), chunks_in_order(corpus))
    data, keys = in_arrays(corpus.streams, corpus.table.num_sequences, chunks), corpus.table.keys
    return Minibatch(data, lambda: np.asarray(keys))


# ---- Some chunks of a corpus, as a small value that other processes and machines can read.


def _working_folder() -> str:
    """Return the working directory; empty if it was deleted."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


@dataclasses.dataclass(frozen=True, repr=False)
class CorpusChunks:
    """Consecutive chunks of a corpus: a small value, which can be pickled and written, and refuses a changed corpus.

    `corpus_chunks` returns all chunks of a corpus; `split` and slices return parts. Every writer and `RecordBatches`
    accept them.
    A process that reads a part of a text makes the index again, unless the deserializer has ``cache_index=True`` and
    the process finds the cache. An error budget (`max_errors`) counts for each part.

    Attributes:
        deserializer: The corpus.
        chunk_ids: The chunks.
        num_sequences: Number of sequences of each chunk.
        name: Name of the corpus in messages, usually its file.
        streams: The streams of the corpus.
        has_text_keys: Whether keys are texts.
        fingerprint: A text that tells this corpus from others.
        folder: The working directory in which the chunks were listed.

    Example:
        >>> from cntkio import CTFDeserializer, infer_streams
        >>> path = "examples/alice/train.ctf"
        >>> chunks = corpus_chunks(CTFDeserializer(path, infer_streams(path), chunk_size_in_bytes=100_000))
        >>> len(chunks), [part.num_sequences for part in chunks.split(2)]
        (8, [(36, 61, 51, 93, 109), (98, 102, 96)])
        >>> chunks[4:].read().num_sequences
        405
    """

    deserializer: Deserializer
    chunk_ids: range
    num_sequences: tuple[int, ...]
    name: str
    streams: tuple[StreamInformation, ...]
    has_text_keys: bool
    fingerprint: str
    # For messages alone, so the same chunks are equal in any folder.
    folder: str = dataclasses.field(default_factory=_working_folder, compare=False)

    def __repr__(self) -> str:
        ids = self.chunk_ids
        shown = f"chunks {ids.start} to {ids.stop - 1}" if len(ids) else "no chunks"
        return f"<CorpusChunks of {self.name}: {shown}, {counted(sum(self.num_sequences), 'sequence')}>"

    def __len__(self) -> int:
        return len(self.chunk_ids)

    def __getitem__(self, which: slice) -> CorpusChunks:
        """Return some of the chunks: a slice without a step."""
        if not isinstance(which, slice) or which.step not in (None, 1):
            raise ConfigError(f"chunks[{which!r}]; expected a slice without a step, such as chunks[0:1]", key="chunks")
        return dataclasses.replace(self, chunk_ids=self.chunk_ids[which], num_sequences=self.num_sequences[which])

    def split(self, num_parts: int) -> list[CorpusChunks]:
        """Return consecutive parts with about equal numbers of sequences; fewer parts if there are fewer chunks.

        Raises:
            ConfigError: The number is below 1.
        """
        if num_parts < 1:
            raise ConfigError(f"num_parts is {num_parts}; expected at least 1", key="num_parts")
        ends = np.cumsum(self.num_sequences)
        wanted = ends[-1] * np.arange(1, num_parts) / num_parts if len(ends) else np.zeros(0)
        # With few chunks, some cuts are the same, and their empty parts disappear.
        cuts = np.unique([0, *(np.searchsorted(ends, wanted) + 1).tolist(), len(self)])
        return [self[begin:end] for begin, end in pairwise(cuts.tolist())]

    def read(self) -> Minibatch:
        """Read the chunks into arrays.

        Raises:
            CorpusError: The corpus was changed.
            FormatError: A chunk breaks its format.
            OSError: A file cannot be read.
        """
        with self.pieces() as pieces:
            return joined(pieces)

    @contextlib.contextmanager
    def pieces(self) -> Iterator[Pieces]:
        """The sequences, a piece for each chunk. The corpus is opened for the first piece."""
        count, streams = sum(self.num_sequences), list(self.streams)
        made = Pieces(self.name, streams, self._each(), len(self), self.has_text_keys, num_sequences=count)
        yield made._replace(log_rounded=[self._log_rounded])

    def _log_rounded(self) -> None:
        with contextlib.closing(self.deserializer.open()) as corpus:
            corpus.log_rounded()

    def _each(self) -> Iterator[Piece]:
        try:
            # The file is opened here and not in `pieces`, so that a caller gets the streams without opening it.
            opened = self.deserializer.open()
        except FileNotFoundError as error:
            here = _working_folder()
            advice = "it existed when its chunks were listed: every machine that reads them needs it at this path"
            if here != self.folder:
                moved = f"its chunks were listed in the folder {self.folder!r}, but this process works in {here!r}"
                advice = f"{moved}: use absolute paths, which every machine can read"
            raise FileNotFoundError(error.errno, f"{error.strerror}; {advice}", error.filename) from error
        with contextlib.closing(opened) as corpus:
            # Another corpus could have other chunks under the same numbers.
            if _fingerprint(corpus) != self.fingerprint:
                raise CorpusError(f"{self.name} has changed since its chunks were listed; list them again")
            yield from pieces_of_chunks(corpus, self.chunk_ids)


def corpus_chunks(deserializer: Deserializer) -> CorpusChunks:
    """Open a corpus, and return all its chunks as a small value. See `CorpusChunks`.

    Args:
        deserializer: The corpus.

    Raises:
        ConfigError: The corpus has an order of its own, so its sequences are not known before they are read.
        FormatError: The corpus breaks its format.
        OSError: A file cannot be read.

    Example:
        >>> import cntkio
        >>> iris = cntkio.CTFDeserializer("examples/iris/iris.ctf", cntkio.infer_streams("examples/iris/iris.ctf"))
        >>> chunks = corpus_chunks(iris)
    """
    deserializer = as_deserializer(deserializer)
    with contextlib.closing(deserializer.open()) as corpus:
        refuse_unknown_sequences(corpus)
        chunk_ids, counts = range(corpus.table.num_chunks), tuple(np.diff(corpus.table.chunk_starts).tolist())
        about = (corpus.name, tuple(corpus.streams), corpus.table.keys.are_words, _fingerprint(corpus))
        return CorpusChunks(deserializer, chunk_ids, counts, *about)


def _fingerprint(corpus: Corpus) -> str:
    return f"{corpus.fingerprint()}\n{corpus.content_sum()}"


def refuse_unknown_sequences(corpus: Corpus) -> None:
    """Refuse a corpus with an order of its own, whose sequences are not known before they are read."""
    if corpus.index.joins == "alone":
        what = "to write it as files, pass MinibatchSource(deserializer, max_sweeps=1) to write_ctf or write_cbf"
        unknown = "has its own order, and its sequences are not known before they are read"
        raise ConfigError(f"{corpus.name} {unknown}; {what}", key="data")


def pieces_of_chunks(corpus: Corpus, chunk_ids: range) -> Iterator[Piece]:
    """Yield a piece for each of some chunks of an opened corpus."""
    table = corpus.table
    for loaded in chunks_in_order(corpus, chunk_ids):
        first, last = table.bounds_of(loaded.chunk_id)
        # Writers take only columns in full width.
        yield Piece(
            loaded.chunk.in_full_width(), table.keys.part(first, last), table.lengths[first:last].astype(np.uint32)
        )
    corpus.report.log_totals()


# The pass that makes the index of a text also parses these bytes, so that they are read only once.
_TO_WRITE = Opening(ahead=Ahead(64 << 20, is_packed=False))


@contextlib.contextmanager
def pieces_of_corpus(deserializer: Deserializer) -> Iterator[Pieces]:
    """Open a corpus, and yield its sequences, a piece for each chunk."""
    with contextlib.closing(deserializer.open(_TO_WRITE)) as corpus:
        refuse_unknown_sequences(corpus)
        table, counts_keys = corpus.table, corpus.index.num_lines is not None
        pieces, num_chunks = pieces_of_chunks(corpus, range(table.num_chunks)), table.num_chunks
        made = Pieces(corpus.name, list(corpus.streams), pieces, num_chunks, table.keys.are_words)
        made = made._replace(num_sequences=table.num_sequences, counts_keys=counts_keys, places=corpus.places)
        yield made._replace(log_rounded=[corpus.log_rounded])


def pieces_of_one(data: Any) -> AbstractContextManager[Pieces]:
    """Open a `Writable`, or else a deserializer, piece by piece."""
    return data.pieces() if isinstance(data, Writable) else pieces_of_corpus(as_deserializer(data))


# ---- Tables: objects that yield Arrow record batches. This module needs no library for it.


@runtime_checkable
class ArrowStream(Protocol):
    """Data frames, tables and series, by the Arrow PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


@runtime_checkable
class ArrowArray(Protocol):
    """Arrays in the memory format of Arrow, by the Arrow PyCapsule interface."""

    def __arrow_c_array__(self, requested_schema: object = None) -> object: ...


@runtime_checkable
class DataSet(Protocol):
    """A data set of Hugging Face: a table in the format `arrow`."""

    features: Any

    def with_format(self, type: str) -> Any: ...
    def iter(self, batch_size: int) -> Iterator[Any]: ...


@runtime_checkable
class ArrayLike(Protocol):
    """Tensors, and everything else that NumPy can convert to an array."""

    def __array__(self) -> Any: ...


_ADVICE = {"LazyFrame": "call its method collect()", "DatasetDict": "choose a part, data[...]"}


def refuse_parts(data: object) -> None:
    """Refuse objects of which a method or a part is a table: a `LazyFrame` of polars, a `DatasetDict` of Hugging Face.

    Example:
        >>> refuse_parts({"x": [1, 2]})
    """
    kind = type(data).__name__
    if kind in _ADVICE:
        parts = f", of {', '.join(map(repr, data))}" if isinstance(data, Mapping) else ""
        raise ConfigError(f"got a {kind}; expected a table: {_ADVICE[kind]}{parts}", key="data")


def is_table(data: object) -> TypeGuard[ArrowStream | DataSet]:
    """Return whether an object is a data frame, a table, a series or a data set.

    Args:
        data: Any object.

    Example:
        >>> is_table({"x": [1, 2]})
        False
    """
    return isinstance(data, ArrowStream | DataSet)


class Files(TypedDict, total=False):
    """Keywords of the writers that divide the sequences among several files. The path has a ``*`` for their numbers.

    Attributes:
        num_files: Number of files. They have equally many sequences, or one more.
        max_file_size: Bytes of the samples of a file, as they are in memory, about the size of a binary file. A file
            ends before the sequence that would exceed this. A larger sequence has a file of its own.

    Example:
        >>> import pathlib, tempfile
        >>> from cntkio import write_ctf
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> files: Files = {"num_files": 2}
        >>> write_ctf(folder / "a-*.ctf", {"x": [[1], [2], [3]]}, **files)
        >>> [path.read_text().split() for path in sorted(folder.iterdir())]
        [['0', '|x', '1', '1', '|x', '2'], ['2', '|x', '3']]
    """

    num_files: int
    max_file_size: int


def files_of(num_files: int | None, max_file_size: int | None) -> Files:
    """Return the keywords that are given."""
    given = {"num_files": num_files, "max_file_size": max_file_size}
    return cast(Files, {name: value for name, value in given.items() if value is not None})

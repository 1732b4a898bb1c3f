"""The seam between writers and what they write: sequences, piece by piece."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypedDict, TypeGuard, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._core import Chunk
from cntkio._threads import Job, Workers, num_threads
from cntkio.arguments import there_are
from cntkio.errors import CntkIoError, ConfigError, CorpusError
from cntkio.formats.contract import Corpus, Loaded, PlacesInFiles
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

"""Some chunks of a corpus, as a small value that other processes and machines can read."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from cntkio.displays import counted
from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.contract import Corpus, Deserializer
from cntkio.formats.corpus import as_deserializer
from cntkio.formats.pieces import Piece, Pieces, chunks_in_order, joined
from cntkio.minibatch import Minibatch
from cntkio.streams import StreamInformation


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
        yield Pieces(self.name, streams, self._each(), len(self), self.has_text_keys, num_sequences=count)

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
        about = (corpus.name, tuple(corpus.streams), has_text_keys(corpus), _fingerprint(corpus))
        return CorpusChunks(deserializer, chunk_ids, counts, *about)


def _fingerprint(corpus: Corpus) -> str:
    return f"{corpus.index.fingerprint}\n{corpus.content_sum()}"


def has_text_keys(corpus: Corpus) -> bool:
    """Return whether the keys of a corpus are texts."""
    return corpus.table.keys.are_words


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


@contextlib.contextmanager
def pieces_of_corpus(deserializer: Deserializer) -> Iterator[Pieces]:
    """Open a corpus, and yield its sequences, a piece for each chunk."""
    with contextlib.closing(deserializer.open()) as corpus:
        refuse_unknown_sequences(corpus)
        num_chunks, count = corpus.table.num_chunks, corpus.table.num_sequences
        pieces = pieces_of_chunks(corpus, range(num_chunks))
        made = Pieces(corpus.name, list(corpus.streams), pieces, num_chunks, has_text_keys(corpus), num_sequences=count)
        yield made._replace(counts_keys=corpus.index.num_lines is not None, places=corpus.places)

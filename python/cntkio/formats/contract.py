"""The contract between the formats and the corpus: all that anything else knows about a format.

::

    Deserializer    ── open() ──>  Corpus    its index, its chunks, its report (cntkio.formats.corpus)
    (plain options)                  │
                                   Format    open(path)             the file
                                             index(file)            all that is known without its data: an `Index`
                                             parse(file, index, k)  the data of chunk k, from any thread, in any order
                                             account(...)           its errors against the budget, in the order of use
                                             remark(...)            warnings of the index
                                             place(...)             the places of sequences

A format keeps no file and no state of reading: those belong to the corpus.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple, Protocol, TypedDict, cast

import numpy as np
import numpy.typing as npt

from cntkio._core import Chunk
from cntkio.errors import CntkIoError
from cntkio.formats.report import Observer, Report
from cntkio.formats.table import SequenceTable
from cntkio.storage.index_cache import CacheFiles
from cntkio.storage.names import FileNames
from cntkio.storage.text_input import LOADS_AT_ONCE, Locator, Storage, TextInput, file_fingerprint, whole_sum
from cntkio.streams import StreamInformation

Joins = Literal["anywhere", "first", "alone"]
KeysOf = Literal["unique", "per_file"]


# eq=False, because the comparison of two arrays is an array, not a truth value.
@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Loaded:
    """A chunk's data, and the findings of the format.

    Attributes:
        chunk_id: The chunk.
        chunk: Its data.
        findings: For `Format.account`; each format has its own kind. None: nothing has to be counted.
        sequences: Indices in the chunk of the sequences that were loaded, uint32; None: all.
    """

    chunk_id: int
    chunk: Chunk
    findings: Any = None
    sequences: npt.NDArray[np.uint32] | None = None


class PlacesInFiles(NamedTuple):
    """Places of sequences.

    Attributes:
        paths: The files; empty if the sequences are not in files.
        path_indices: Index of each sequence's file in `paths`, int64.
        bytes: First byte of each sequence, from 0, int64; in a binary corpus, the first byte of the sequence's chunk.
            None: the sequences are not in files.
        lines: The line of that byte, from 1, int64. None: the files have no lines.
    """

    paths: Sequence[str]
    path_indices: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64] | None = None
    lines: npt.NDArray[np.int64] | None = None

    @classmethod
    def nowhere(cls, num_sequences: int) -> PlacesInFiles:
        """Return the places of sequences that are not in files."""
        return cls((), np.zeros(num_sequences, np.int64))

    def of_error(self) -> dict[str, Any]:
        """Return the place of the only sequence as arguments of `FormatError`; empty if it is not in a file."""
        if not self.paths:
            return {}
        byte, line = (None if column is None else int(column[0]) for column in (self.bytes, self.lines))
        column = None if byte is None or line is None else 1
        return {"path": self.paths[int(self.path_indices[0])], "byte": byte, "line": line, "column": column}

    def texts(self) -> list[str]:
        """Return each place in the notation of compilers: `file:line`, or `file: byte n`; empty if there is no file."""
        paths = [self.paths[index] for index in self.path_indices.tolist()] if self.paths else []
        if self.lines is not None:
            return [f"{path}:{line}" for path, line in zip(paths, self.lines.tolist(), strict=True)]
        if self.bytes is not None:
            return [f"{path}: byte {byte}" for path, byte in zip(paths, self.bytes.tolist(), strict=True)]
        return paths or [""] * len(self.path_indices)


@dataclasses.dataclass(frozen=True, slots=True)
class Ahead:
    """Chunks that are needed immediately after opening. A format may parse them while it makes the index.

    Attributes:
        num_bytes: Bytes of parsed data to prepare; 0: none.
        num_chunks: Prepare all chunks if the corpus has at most this many, and otherwise none; None: as many as fit.
        is_packed: Whether all chunks will only be packed into minibatches. Such chunks may keep values in fewer bytes.
        window_in_chunks: Number of chunks among which sequences are shuffled. A cache must have room for them.
        window_in_samples: The same in samples; 0: the window is counted in chunks.
        is_shuffled: Whether the chunks will be read in an order other than that of the corpus.
    """

    num_bytes: int
    num_chunks: int | None = None
    is_packed: bool = True
    window_in_chunks: int = 1
    window_in_samples: int = 0
    is_shuffled: bool = False

    def chunks_in_window(self, table: SequenceTable) -> int:
        """Return the number of chunks in the window, for a corpus with this table."""
        num_chunks = self.window_in_chunks
        if self.window_in_samples:
            samples_of_chunk = int(table.lengths.sum(dtype=np.int64)) / max(table.num_chunks, 1)
            num_chunks = int(self.window_in_samples / max(samples_of_chunk, 1)) + 1
        return min(num_chunks, table.num_chunks)

    def shared(self, sizes: Sequence[int], chunk_size: int) -> list[Ahead]:
        """Divide this among files that are read one after the other.

        Args:
            sizes: Size of each file in bytes. If one is unknown (0), nothing is prepared.
            chunk_size: Approximate size of a chunk in bytes.
        """
        nothing = dataclasses.replace(self, num_bytes=0, num_chunks=None)
        # No chunk spans files, so each file rounds up.
        num_chunks = sum(-(-size // chunk_size) for size in sizes)
        if not self.num_bytes or not all(sizes) or (self.num_chunks is not None and num_chunks > self.num_chunks):
            return [nothing] * len(sizes)
        # The files are read in this order, so the first files get all that they can use.
        left = [self.num_bytes - before for before in itertools.accumulate(sizes, initial=0)][:-1]
        return [dataclasses.replace(self, num_bytes=num_bytes) if num_bytes > 0 else nothing for num_bytes in left]


NOTHING_AHEAD: Ahead = Ahead(0, is_packed=False)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Opening:
    """Wishes of the caller who opens a corpus; the deserializer describes the corpus itself.

    Attributes:
        text_keys: Whether keys are read as words, if the format allows both numbers and words.
        ahead: The chunks that are needed immediately.
        trace_level: What reports log: 0: nothing; 1: ten of each kind; 2: everything.
        observer: A function that gets all errors and warnings one by one; nothing is logged then.
        asked: Kinds that the observer gets only on request, such as `UNKNOWN_NAME`.
    """

    text_keys: bool = False
    ahead: Ahead = NOTHING_AHEAD
    trace_level: int = 1
    observer: Observer | None = None
    asked: Collection[str] = ()

    def report(self, name: str, max_errors: int = 0) -> Report:
        """Return the report of a corpus."""
        return Report(name, max_errors, trace_level=self.trace_level, observer=self.observer, asked=self.asked)


OPENING: Opening = Opening()


def _no_complaint(sequence_index: int) -> CntkIoError:
    # A corpus that names such utterances passes a `complaint` of its own.
    raise AssertionError(f"utterance {sequence_index} is neither invalid nor broken")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Utterances:
    """Facts about a corpus of utterances that the source needs. (docs/formats/htk.md, "Joining")

    Frame mode cuts utterances into frames, and labels are joined with features of the same length.

    Attributes:
        can_lead: Whether the corpus may be the first of several.
        is_broadcast: Whether an utterance has a single frame, which is repeated for all frames of its partner.
        unequal_lengths: The treatment of an utterance that is not as long as its partner in the first corpus.
        refuses_frame_mode: The reason why the corpus cannot be cut into frames; None: it can be cut.
        invalid: Utterances to leave out, each of which costs one of the source's `max_errors` when it is reached.
        broken: Utterances that cannot be delivered at all.
        is_literal: Whether errors are raised when an utterance is reached, and empty minibatches are delivered, as in
            CNTK 2.7.
        is_pattern: Utterances whose key also matches all keys that end with a slash and this key; None: no utterance
            has such a key.
        complaint: Makes the error that says what is wrong with an invalid or broken utterance.
    """

    can_lead: bool = True
    is_broadcast: bool = False
    unequal_lengths: Literal["error", "drop", "keep"] = "error"
    refuses_frame_mode: str | None = None
    invalid: npt.NDArray[np.bool_] | None = None
    broken: npt.NDArray[np.bool_] | None = None
    is_literal: bool = False
    is_pattern: npt.NDArray[np.bool_] | None = None
    complaint: Callable[[int], CntkIoError] = _no_complaint


class Index(NamedTuple):
    """All that is known about a file, or about the files of a corpus, without the data."""

    streams: tuple[StreamInformation, ...]  # the streams, in the order of the chunks' columns
    # The sequences and chunks. A corpus that joins alone knows the number of chunks, and no sequences.
    table: SequenceTable
    layout: Any = None  # the format's own facts, such as the places of sequences in the file
    # These four are the file's, unless the format gives them: the name used in messages, usually the file; a short text
    # that differs from corpus to corpus, for checkpoints; the bytes; and `Storage.stamp` when the index was made.
    name: str = ""
    fingerprint: str = ""
    num_bytes: int = 0
    stamp: object = None
    num_lines: int | None = None  # number of keys in the file, if keys are counted across files; None: keys are ids
    why_empty: str = "no sequence to read"  # what is wrong with a file without a sequence
    caches: tuple[CacheFiles, ...] = ()  # the index caches of each file: of its sequences, and of its access points
    # Where the corpus may stand in a join: anywhere, only first, or not at all. A corpus that joins alone has an
    # order of its own, and the findings of its chunks are the lengths of their sequences.
    joins: Joins = "anywhere"
    loads_parts: bool = True  # whether some sequences of a chunk can be loaded without the others
    # Least bytes of a part that is worth loading alone: smaller parts take about as long. 0: the whole chunk does.
    part_in_bytes: int = 64 << 10
    # Number of chunks to load at the same time: `LOADS_AT_ONCE`, or more if loading waits for a network.
    loads_at_once: int = LOADS_AT_ONCE
    utterances: Utterances | None = None  # facts about utterances; None if the sequences are not utterances
    # No code changes this mapping, so all indexes can share it.
    # The number that the file writes for the index 0 of a sparse stream, where it is not 0.
    first_indices: Mapping[str, int] = {}


_NO_STORAGE = Storage("")


class OpenedFile:
    """A file that a format has opened.

    Args:
        text: Its bytes; None: the format keeps no file open.
        storage: The storage of a format that keeps no file open; it can find files that have changed.

    Attributes:
        name: Its name in messages; empty: the corpus has the name.
        storage: Facts about the storage of its bytes. Without a text they have no stamp, so the corpus never takes the
            file for changed.
    """

    def __init__(self, text: TextInput | None = None, storage: Storage = _NO_STORAGE) -> None:
        self.text, self.storage = text, storage if text is None else text.storage
        self.name, self.size = ("", 0) if text is None else (text.path, text.size)

    def close(self) -> None:
        """Close the file. Nothing can be read afterwards."""
        if self.text is not None:
            self.text.close()


class OpenText(OpenedFile):
    """A text that is open, and the locator of its lines."""

    text: TextInput

    @functools.cached_property
    def locator(self) -> Locator:
        return Locator(self.text)


class Format(Protocol):
    """Reads files of one kind with one set of options. Any thread may call its functions. All files have one report.

    Attributes:
        report: Gets the errors and the warnings.
        is_strict: Whether warnings are errors.
    """

    report: Report
    is_strict: bool = False

    def open(self, path: str, index: Index | None) -> Any:
        """Open a file. By default, files are not kept open: the index needs all of a file, or each chunk opens its own.

        The result is an `OpenedFile`. `index` is the index of the file if it was open before.
        """
        return OpenedFile()

    def index(self, file: Any, ahead: Ahead) -> tuple[Index, list[Chunk]]:
        """Make or load the index of a file. Return it, and the first chunks of the file, if the same pass parsed them.

        Raises:
            OSError, FormatError, ConfigError: The file cannot be read, breaks the format, or does not fit the options.
        """

    def agreed(self, indexes: list[Index]) -> list[Index]:
        """Return the indexes of all files, if only together they show the streams; by default as they are."""
        return indexes

    def parse(self, file: Any, index: Index, chunk_id: int, sequences: npt.NDArray[np.uint32] | None) -> Loaded:
        """Read and parse a chunk, or some of its sequences: their indices in it, ascending."""

    def account(self, file: Any, index: Index, loaded: Loaded) -> None:
        """Count the errors and warnings of a chunk that has findings; by default no chunk has.

        It raises a `FormatError` if the errors exceed the budget.
        """
        return

    def remark(self, file: Any, index: Index) -> None:
        """Warn of what the index shows; by default of nothing."""
        return

    def fingerprint(self, file: Any, index: Index) -> str:
        """Return the fingerprint of a file whose index has none. Of a file in a store, making it takes requests."""
        return file_fingerprint(file.text, index.table.num_sequences)

    def content_sum(self, file: Any, index: Index) -> str:
        """Return a checksum of the content of a file that the fingerprint lacks; see `Corpus.content_sum`."""
        return whole_sum(file.size, file.storage)

    def place(self, file: Any, index: Index, sequences: npt.NDArray[np.int64]) -> PlacesInFiles:
        """Return the places of sequences of the index; see `Corpus.places`."""

    def log_rounded(self, path: str, index: Index) -> None:
        """Log how many numbers of a file are rounded; see `Corpus.log_rounded`. By default none are."""
        return


class Corpus(Protocol):
    """An opened deserializer: its index, and what needs its files.

    Attributes:
        index: All that is known without the data.
        report: Errors and warnings so far.
    """

    index: Index
    report: Report

    @property
    def name(self) -> str:
        """Name used in messages, usually the file."""
        return self.index.name

    @property
    def streams(self) -> tuple[StreamInformation, ...]:
        """The streams, in the order of the chunks' columns."""
        return self.index.streams

    @property
    def table(self) -> SequenceTable:
        """The sequences and chunks. A corpus that joins alone knows the number of chunks, and no sequences."""
        return self.index.table

    def load(self, chunk_id: int, sequences: npt.NDArray[np.uint32] | None = None) -> Loaded:
        """Read and parse a chunk. Worker threads call this; it changes nothing.

        Args:
            chunk_id: The chunk.
            sequences: Load only these sequences: their indices in the chunk, ascending. None: load all. If
                `Index.loads_parts` is false, all are loaded.
        """

    def account_for(self, loaded: Loaded) -> None:
        """Count the errors of a chunk before its first use. Called in the order of use, once each time it was loaded.

        By default a chunk has none.

        Raises:
            FormatError: The errors exceed the budget.
        """
        return

    def take_parsed(self) -> dict[int, Loaded]:
        """Return the chunks that were parsed while the corpus was opened; by default none, as a second call does."""
        return {}

    def places(self, sequences: npt.NDArray[np.int64]) -> PlacesInFiles:
        """Return the places of sequences of the table; by default they are not in files.

        Counts the lines of a text up to the last of these sequences.

        Raises:
            OSError: A file cannot be read.
            FormatError: The header of a file breaks its format.
        """
        return PlacesInFiles.nowhere(len(sequences))

    def fingerprint(self) -> str:
        """Return the fingerprint of the index, or make it."""
        return self.index.fingerprint

    def content_sum(self) -> str:
        """Return a checksum of the content, for states; empty if making it takes long."""
        return ""

    def log_rounded(self) -> None:
        """Log how many numbers of the files the types of the streams round. Writers call this. By default none are."""
        return

    def close(self) -> None:
        """Log totals and close files. Nothing can be loaded afterwards."""
        return


class Deserializer(Protocol):
    """The description of a corpus: its files, and what to read from them."""

    @property
    def has_text_keys(self) -> bool:
        """True if the keys are always words. If one deserializer of a source has words, all read keys as words."""

    def parts(self) -> Sequence[Deserializer]:
        """The deserializer itself, or one for each corpus that it describes."""
        return (self,)

    def open(self, opening: Opening = OPENING) -> Corpus:
        """Open the files, and make or load the index."""


CHUNK_SIZE = 32 << 20
"""Bytes of a chunk of a text."""


class Reading(TypedDict, total=False):
    """Options of reading a file: keywords of `check`, `convert_file` and `corpus_of`, and options of the command.

    Each keyword is only for some formats. None, and a keyword that is missing, stand for the default.

    Attributes:
        max_errors: Number of errors to tolerate in a text; -1: all.
        skip_sequence_ids: Read each line of a text as a sequence, and ignore ids.
        strict: Turn warnings about a text, a binary corpus or features into errors.
        dtype: float32 or float64, of the values of a text, of Kaldi or of a table.
        prefix: Text to put before each path of a list of features.
        labels: The label file that is joined with a list of features.
        mapping: The file with the names of these labels; by default the names are the labels.
        one_hot: Columns of classes in Parquet and Arrow, and these classes, as for `cntkio.arrow.read`.
        key: The column of keys in Parquet and Arrow, read and written.
        keys: Keys of several texts, as for `CTFDeserializer`.
        chunk_size_in_bytes: Chunk size of a text, as for `CTFDeserializer`; about as much memory is in use.

    Example:
        >>> import pathlib, tempfile
        >>> from cntkio.convert import convert_file
        >>> reading: Reading = {"skip_sequence_ids": True, "max_errors": 3}
        >>> convert_file("examples/iris/iris.ctf", pathlib.Path(tempfile.mkdtemp(), "iris.cbf"), **reading)
    """

    max_errors: int | None
    skip_sequence_ids: bool
    strict: bool
    dtype: npt.DTypeLike | None
    prefix: str | None
    labels: FileNames | None
    mapping: str | os.PathLike[str] | None
    one_hot: Mapping[str, int | Sequence[str]] | None
    key: str | None
    keys: KeysOf | None
    chunk_size_in_bytes: int | None


class ReadingOptions(Reading, total=False):
    """All options of reading files. Formats get the options that have a value.

    Attributes:
        streams: The streams to read; missing: as the files show them.
        cache_index: Whether to keep the index of a text in a file.
        written: For converters, the format to write: numbers are read in a type that keeps them.
    """

    streams: Mapping[str, Any]
    cache_index: bool
    written: str


def with_defaults(options: ReadingOptions, **defaults: Any) -> ReadingOptions:
    """Return the options that have a value, with defaults in place of options that have none.

    Example:
        >>> with_defaults({"max_errors": None, "prefix": "a/"}, max_errors=3)
        {'max_errors': 3, 'chunk_size_in_bytes': 33554432, 'prefix': 'a/'}
    """
    given = {name: value for name, value in options.items() if value is not None}
    return cast(ReadingOptions, {"max_errors": 0, "chunk_size_in_bytes": CHUNK_SIZE, **defaults, **given})


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusInFiles:
    """Facts that the verbs need about a corpus in files.

    The row of a format in `cntkio.formats.detect.KINDS` names its deserializer, or else the function that returns the
    corpora for files and options: one, or several if a configuration has several readers.
    """

    deserializers: Sequence[Any] = ()  # the deserializers that read it; empty for a label file
    written: Sequence[Any] = ()  # the deserializers that a written configuration describes; empty: the same
    chunk_sizes: str = ""  # words about the size of chunks, which end the fact about chunks
    facts: Callable[[], Mapping[str, Any]] = dict  # returns facts that only corpora of this kind have
    order: Sequence[str] = ()  # the streams in the order in which they are printed; empty: in the order of the source
    forgives_errors: bool = False  # whether errors are counted instead of ending the call
    # Opens a label file, once: without features, a source cannot read it; None: not a label file.
    open_labels: Callable[[Opening], Any] | None = None
    label_names: Sequence[bytes] | None = None  # names of the classes of labels that are joined with features
    section: str = ""  # the section of the configuration that describes it; empty: no configuration does
    # Completes errors about missing files by the configuration that names them.
    located: Callable[[], AbstractContextManager[None]] = nullcontext

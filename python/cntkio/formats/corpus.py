"""An opened deserializer: one file, or several corpora that are one. (docs/where-corpora-can-be.md)

::

    files    a.ctf      b.ctf    c.ctf        each with an index of its own, and a cache of its own
    chunks   0  1  2    3  4     5            no chunk spans files
    keys     0 .. 99    100 ..   170 ..       keys that count lines or sequences continue; ids stay as they are

A corpus is its index: it keeps the index, the open file and the report, and nothing else. A concatenation puts corpora
in a row: the files of a corpus, or the components of a mixture. Their streams are the same, in any order. A
join (`cntkio.source`) puts corpora next to each other, by key. Files are opened in parallel, and few stay open: the
others are opened again when their next chunk is loaded, and refused if they have changed. Files without a sequence are
left out.
"""

from __future__ import annotations

import contextvars
import dataclasses
import hashlib
import inspect
import os
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from cntkio._core import Chunk
from cntkio._threads import ForkLock, Job, Workers, num_threads
from cntkio.arguments import caller, check_fields
from cntkio.errors import CntkIoError, ConfigError, CorpusError, FormatError
from cntkio.formats.contract import (
    NOTHING_AHEAD,
    OPENING,
    Ahead,
    Corpus,
    Deserializer,
    Format,
    Index,
    KeysOf,
    Loaded,
    Opening,
    PlacesInFiles,
)
from cntkio.formats.detect import KINDS, detect
from cntkio.formats.report import EMPTY_FILE, Costs, Report
from cntkio.formats.table import (
    NO_SEQUENCES,
    Keys,
    NamedFiles,
    SequenceTable,
    digest_of,
    file_finder,
    in_several,
    joined_lengths,
)
from cntkio.storage import compressed
from cntkio.storage.index_cache import CacheFiles
from cntkio.storage.names import FileNames, located, shown_files
from cntkio.storage.remote import Remote
from cntkio.storage.spans import span_at
from cntkio.storage.text_input import MOST_SUMMED, changed_in_use
from cntkio.streams import StreamInformation, places_among

KEYS_OF_A_FILE = 10**12
"""With keys per file, the keys of each file begin at a multiple of this number."""
_NUM_SHOWN = 3


def _overlapping(ranges: Sequence[tuple[int, int]], indices: Sequence[int]) -> list[int]:
    """Return the files that may have an id in common, because the range of their ids overlaps another file's range."""
    found: set[int] = set()
    largest, owner = -1, -1
    for (low, high), index in sorted(zip(ranges, indices, strict=True)):
        if low <= largest:
            found |= {owner, index}
        if high > largest:
            largest, owner = high, index
    return sorted(found)


def fingerprint_of_files(paths: Sequence[str], fingerprints: Sequence[str]) -> str:
    """Return a fingerprint: a line for all files, and a line for each file with its name and a checksum.

    Names leave out the endings of compressed files: compression does not change a text, so a state of the plain text
    continues with the compressed text.
    """
    lines = []
    for path, fingerprint in zip(paths, fingerprints, strict=True):
        name = PurePath(path).name
        stem, ending = os.path.splitext(name)  # noqa: PTH122 - a `Path` takes ten times as long
        check_sum = hashlib.blake2b(fingerprint.encode(), digest_size=6).hexdigest()
        lines.append(f"{stem if ending.lower() in compressed.ENDINGS else name} {check_sum}")
    whole = hashlib.blake2b("\n".join(fingerprints).encode(), digest_size=16)
    return "\n".join([f"{len(lines)} files {whole.hexdigest()}", *lines])


def differences_of_files(saved: str, current: str) -> str:
    """Name the files that differ between two fingerprints; empty if a fingerprint is of a single file.

    Example:
        >>> differences_of_files("2 files 0\\na.ctf 1\\nb.ctf 2", "2 files 1\\na.ctf 1\\nb.ctf 3")
        'b.ctf has other content'
    """
    # Counted, because files in different folders may have the same name. A name may contain blanks.
    before, now = (Counter(line.rpartition(" ")[::2] for line in text.split("\n")[1:]) for text in (saved, current))
    if not before or not now:
        return ""
    gone, come = ([name for name, *_ in files] for files in (before - now, now - before))
    kinds = {
        "has other content": [name for name in come if name in gone],
        "is new": [name for name in come if name not in gone],
        "is missing": [name for name in gone if name not in come],
    }
    facts = []
    for what, names in kinds.items():
        if names:
            others = " and others" * (len(names) > _NUM_SHOWN)
            facts.append(f"{', '.join(names[:_NUM_SHOWN])}{others} {what}")
    return ", ".join(facts) or "the same files in another order"


_LEAST_THREADS = 4  # reading waits for the disk
MOST_OPEN = 64
"""Number of files of a corpus that stay open when no thread uses them."""


_T = TypeVar("_T")
_File = TypeVar("_File")
_Opened: TypeAlias = tuple[Any, Index, list[Chunk]]  # a file, its index, and its first chunks


class FileCorpus(Corpus):
    """An opened file, or several that the format treats as one. `cntkio.formats.Corpus` documents its methods.

    Args:
        path: The file.
        opened: The file as the format has opened it, its index, and its first chunks, if they are parsed already.
        files: The open files of the corpus that the file belongs to.
        keeps_data: Whether all chunks that have been loaded stay in memory.

    Raises:
        FormatError: The warnings of the index are errors.
        CorpusError: The file has no sequence; the kind of the error is `EMPTY_FILE`.
    """

    def __init__(self, path: str, opened: _Opened, files: _OpenFiles, *, keeps_data: bool) -> None:
        file, index, chunks = opened
        # A kept chunk serves all later reads, so it must have all its sequences.
        self.index = index._replace(loads_parts=False) if keeps_data else index
        self.path, self.report = path, files.form.report
        self._files, self._kept = files, dict[int, Loaded]() if keeps_data else None
        self.file = _OpenFile(index.caches, file)
        self._parsed = {chunk_id: Loaded(chunk_id, chunk) for chunk_id, chunk in enumerate(chunks)}
        files.add(self.file)
        try:
            files.form.remark(file, index)
            if not index.table.num_sequences:
                raise CorpusError(f"{index.name}: {index.why_empty}", kind=EMPTY_FILE)
        except BaseException:
            files.close(self.file)
            raise

    def load(self, chunk_id: int, sequences: npt.NDArray[np.uint32] | None = None) -> Loaded:
        kept = None if self._kept is None else self._kept.get(chunk_id)
        if kept is not None:
            return kept
        with self._files.use(self.file, self) as file:
            try:
                loaded = self._files.form.parse(file, self.index, chunk_id, sequences)
            finally:
                # After the read, to find a change during the read; and a change explains more than any other error.
                file.storage.require_unchanged()
        if self._kept is not None:
            self._kept[chunk_id] = loaded
        return loaded

    def account_for(self, loaded: Loaded) -> None:
        # Most chunks have no findings. To name the lines of findings, the format reads the file again.
        if loaded.findings is not None:
            with self._files.use(self.file, self) as file:
                self._files.form.account(file, self.index, loaded)

    def take_parsed(self) -> dict[int, Loaded]:
        parsed, self._parsed = self._parsed, {}
        return parsed

    def places(self, sequences: npt.NDArray[np.int64]) -> PlacesInFiles:
        with self._files.use(self.file, self) as file:
            return self._files.form.place(file, self.index, sequences)

    def fingerprint(self) -> str:
        if not self.index.fingerprint:
            with self._files.use(self.file, self) as file:
                self.index = self.index._replace(fingerprint=self._files.form.fingerprint(file, self.index))
        return self.index.fingerprint

    def content_sum(self) -> str:
        try:
            with self._files.use(self.file, self) as file:
                return self._files.form.content_sum(file, self.index)
        except (OSError, CorpusError):
            return ""  # a state can be saved although the next read raises this error

    def log_rounded(self) -> None:
        self._files.form.log_rounded(self.path, self.index)

    def close(self) -> None:
        self.report.log_totals()
        self._files.close(self.file)
        if self._kept is not None:
            self._kept.clear()


@dataclasses.dataclass(eq=False, slots=True)
class _OpenFile:
    """A file of a corpus, the index caches that are being written for it, and the number of threads that use it.

    It has no reference to its corpus. So a corpus is freed with the last reference of a source, not by the collector.
    """

    caches: Sequence[CacheFiles]
    file: Any = None
    lock: ForkLock = dataclasses.field(default_factory=ForkLock)
    num_users: int = 0


class _OpenFiles:
    """The open files of a corpus. When no thread uses them, only a few stay open; the others are opened again."""

    def __init__(self, form: Format) -> None:
        self.form = form
        self.context = contextvars.copy_context()  # of the caller; other threads may open files again
        self._files: OrderedDict[_OpenFile, None] = OrderedDict()  # used longest ago first
        self._lock = ForkLock()

    def first_opened(self, path: str, ahead: Ahead) -> _Opened:
        """Open a file for the first time, and return it with its index and its first chunks. Any thread may do this."""
        file = self.form.open(path, None)
        try:
            index, chunks = self.form.index(file, ahead)
            num_bytes = index.num_bytes or file.size
            index = index._replace(name=file.name or path, stamp=file.storage.stamp, num_bytes=num_bytes)
            # A fingerprint that takes requests to a store waits for the first state.
            if not index.fingerprint and not file.storage.num_requests:
                index = index._replace(fingerprint=self.form.fingerprint(file, index))
            return file, index, chunks
        except BaseException:
            file.close()
            raise

    def add(self, opened: _OpenFile) -> None:
        """Take over an open file."""
        with self._lock.inner:
            self._files[opened] = None

    @contextmanager
    def use(self, opened: _OpenFile, corpus: FileCorpus) -> Iterator[Any]:
        """Open a file if it is not open, and keep it open while the block uses it."""
        with self._lock.inner:
            self._files[opened] = None
            self._files.move_to_end(opened)
            # From here on, `close_others` leaves the file alone, also while it is being opened.
            opened.num_users += 1
        try:
            # A lock of the file, so that opening it stops only the threads that need this file.
            with opened.lock.inner:
                if opened.file is None:
                    opened.file = self._open_again(corpus)
            yield opened.file
        finally:
            with self._lock.inner:
                opened.num_users -= 1
            self.close_others()

    def _open_again(self, corpus: FileCorpus) -> Any:
        index = corpus.index
        file = self.context.copy().run(self.form.open, corpus.path, index)
        # The index belongs to the content that was there at first.
        if file.storage.stamp != index.stamp:
            file.close()
            raise changed_in_use(index.name, index.num_bytes, file.size)
        return file

    def close_others(self) -> None:
        """Close the files that were not used for longest, if more than a few are open."""
        if len(self._files) <= MOST_OPEN:
            return
        with self._lock.inner:
            unused = (opened for opened in self._files if not opened.num_users)
            others = [*islice(unused, len(self._files) - MOST_OPEN)]
        for opened in others:
            self.close(opened, keep_used=True)

    def close(self, opened: _OpenFile, *, keep_used: bool = False) -> None:
        """Close a file; if `keep_used`, unless a thread has begun to use it."""
        with self._lock.inner:
            if keep_used and opened.num_users:
                return
            self._files.pop(opened, None)
            file, opened.file = opened.file, None
        if file is not None:
            for caches in opened.caches:
                for writer in caches.writers:
                    writer.wait()  # it reads facts of the file
            file.close()


# -------------------------------------------------------------------------------------------------------- concatenation


class _Reports(Report):
    """The reports of several corpora together."""

    def __init__(self, name: str, reports: Sequence[Report]) -> None:
        super().__init__(name, sum(report.budget for report in reports))
        self._reports = reports

    def costs(self) -> tuple[Costs, ...]:
        return tuple(costs for report in self._reports for costs in report.costs())

    def go_back(self, costs: tuple[Costs, ...]) -> None:
        for report in self._reports:
            own, costs = costs[: len(report.costs())], costs[len(report.costs()) :]
            report.go_back(own)

    def log_totals(self) -> None:
        for report in self._reports:
            report.log_totals()


class Concatenation(Corpus):
    """Corpora with the same streams as one corpus, one after the other: files, or the components of a mixture.

    The streams are in the order of the first corpus; in the others they may have any order.

    Args:
        name: Name used in messages.
        names: Name of each corpus in fingerprints.
        corpora: The corpora. The concatenation closes them; they share the memory of its keys and lengths.
        options: Options that the table depends on, for the messages of checkpoints.
        keys: The keys of all sequences; None: the keys of the corpora.

    Raises:
        ConfigError: The corpora have different streams.

    Attributes:
        corpora: The corpora.
        first_sequences: First sequence of each corpus and, last, the number of sequences, int64.
        first_chunks: First chunk of each corpus and, last, the number of chunks, int64.
    """

    def __init__(
        self,
        name: str,
        names: Sequence[str],
        corpora: Sequence[Corpus],
        options: Mapping[str, Any],
        keys: Keys | None = None,
    ) -> None:
        self.corpora, self._names = corpora, names
        indexes = [corpus.index for corpus in corpora]
        tables = [index.table for index in indexes]
        named = [(index.name, index.streams) for index in indexes]
        self._orders = [order_of_streams(named[0], of_corpus) for of_corpus in named]
        self.first_sequences = np.cumsum([0, *(table.num_sequences for table in tables)])
        self.first_chunks = np.cumsum([0, *(table.num_chunks for table in tables)])
        # The first start of a corpus is the last start of the corpus before, so it is left out.
        starts = [first + table.chunk_starts[1:] for first, table in zip(self.first_sequences, tables, strict=False)]
        have_files = any(table.files is not None for table in tables)
        spans = file_finder([corpus.name for corpus in corpora], partial(span_at, self.first_sequences))
        table = SequenceTable(
            Keys.joined([table.keys for table in tables]) if keys is None else keys,
            joined_lengths([table.lengths for table in tables]),
            np.concatenate([np.zeros(1, np.int64), *starts]),
            options=options,
            files=self._files_of if have_files else spans,
        )
        self.index = Index(
            indexes[0].streams,
            table,
            name=name,
            fingerprint=self._fingerprint_of([index.fingerprint for index in indexes]),
            num_bytes=sum(index.num_bytes for index in indexes),
            num_lines=indexes[0].num_lines,
            caches=tuple(chain.from_iterable(index.caches for index in indexes)),
            joins=indexes[0].joins,
            loads_parts=all(index.loads_parts for index in indexes),
            part_in_bytes=max(index.part_in_bytes for index in indexes),
            loads_at_once=max(index.loads_at_once for index in indexes),
            first_indices=indexes[0].first_indices,
        )
        reports = list(dict.fromkeys(corpus.report for corpus in corpora))
        self.report = reports[0] if len(reports) == 1 else _Reports(name, reports)
        self._share_columns()

    def _share_columns(self) -> None:
        """Let the corpora use slices of the arrays, and so name sequences by their keys among all."""
        bounds, table = self.first_sequences.tolist(), self.table
        for corpus, first, last in zip(self.corpora, bounds, bounds[1:], strict=False):
            keys = table.keys.part(first, last)
            own = dataclasses.replace(corpus.table, keys=keys, lengths=table.lengths[first:last])
            corpus.index = corpus.index._replace(table=own)

    def load(self, chunk_id: int, sequences: npt.NDArray[np.uint32] | None = None) -> Loaded:
        number, own_id = self._chunk_at(chunk_id)
        return self._among_all(number, self.corpora[number].load(own_id, sequences))

    def _chunk_at(self, chunk_id: int) -> tuple[int, int]:
        """Return the number of a chunk's corpus, and the chunk's number in that corpus."""
        number = int(span_at(self.first_chunks, chunk_id))
        return number, chunk_id - int(self.first_chunks[number])

    def _among_all(self, number: int, loaded: Loaded) -> Loaded:
        """Return a chunk of a corpus with its number among all chunks, and its columns in the order of the streams."""
        order, chunk_id = self._orders[number], int(self.first_chunks[number]) + loaded.chunk_id
        chunk = loaded.chunk if order is None else loaded.chunk.in_order(order)
        return dataclasses.replace(loaded, chunk_id=chunk_id, chunk=chunk)

    def _fingerprint_of(self, fingerprints: Sequence[str]) -> str:
        return fingerprint_of_files(self._names, fingerprints) if all(fingerprints) else ""

    def fingerprint(self) -> str:
        if not self.index.fingerprint:
            found = self._fingerprint_of([corpus.fingerprint() for corpus in self.corpora])
            self.index = self.index._replace(fingerprint=found)
        return self.index.fingerprint

    def content_sum(self) -> str:
        # The fingerprint has samples of each of several files.
        if sum(corpus.index.num_bytes for corpus in self.corpora) > MOST_SUMMED:
            return ""
        sums = [corpus.content_sum() for corpus in self.corpora]
        return digest_of([], "\n".join(sums).encode()) if all(sums) else ""

    def log_rounded(self) -> None:
        for corpus in self.corpora:
            corpus.log_rounded()

    def account_for(self, loaded: Loaded) -> None:
        number, own_id = self._chunk_at(loaded.chunk_id)
        self.corpora[number].account_for(dataclasses.replace(loaded, chunk_id=own_id))

    def take_parsed(self) -> dict[int, Loaded]:
        all_parsed = [corpus.take_parsed() for corpus in self.corpora]
        of_all = [self._among_all(number, one) for number, parsed in enumerate(all_parsed) for one in parsed.values()]
        return {loaded.chunk_id: loaded for loaded in of_all}

    def _by_corpus(
        self, sequences: npt.NDArray[np.int64]
    ) -> Iterator[tuple[Corpus, npt.NDArray[np.bool_], npt.NDArray[np.int64]]]:
        """Yield each corpus of some sequences, which of the sequences are its own, and their indices in its table."""
        # A corpus without a sequence has the start of the next corpus, and is passed over.
        corpus_of = span_at(self.first_sequences, sequences)
        for number in np.unique(corpus_of).tolist():
            own = corpus_of == number
            yield self.corpora[number], own, sequences[own] - self.first_sequences[number]

    def places(self, sequences: npt.NDArray[np.int64]) -> PlacesInFiles:
        paths: list[str] = []
        path_indices, begins, lines = np.zeros((3, len(sequences)), np.int64)
        has_bytes = has_lines = True
        for corpus, own, in_corpus in self._by_corpus(sequences):
            found = corpus.places(in_corpus)
            path_indices[own] = len(paths) + found.path_indices
            # A corpus that is not in files has one entry, its name.
            paths += found.paths or [corpus.name]
            has_bytes, has_lines = has_bytes and found.bytes is not None, has_lines and found.lines is not None
            begins[own] = 0 if found.bytes is None else found.bytes
            lines[own] = 0 if found.lines is None else found.lines
        return PlacesInFiles(paths, path_indices, begins if has_bytes else None, lines if has_lines else None)

    def _files_of(self, sequences: npt.NDArray[np.int64]) -> NamedFiles:
        names: list[str] = []
        which = np.zeros(len(sequences), np.int64)
        for corpus, own, in_corpus in self._by_corpus(sequences):
            of_corpus: NamedFiles = (np.array([corpus.name]), np.zeros(len(in_corpus), np.int64))
            if corpus.table.files is not None:
                of_corpus = corpus.table.files(in_corpus)
            which[own] = len(names) + of_corpus[1]
            names += of_corpus[0].tolist()
        return np.array(names, np.str_), which

    def close(self) -> None:
        for corpus in self.corpora:
            corpus.close()


NamedStreams: TypeAlias = tuple[str, Sequence[StreamInformation]]
"""The name of a corpus or of a source, and its streams."""


def order_of_streams(first: NamedStreams, other: NamedStreams) -> list[int] | None:
    """Return where the streams of the first corpus are in another corpus; None: in the same places.

    Raises:
        ConfigError: The corpora have different streams.
    """
    if other[1] == first[1]:
        return None
    places = places_among(first[1], other[1])
    if places is not None:
        return places
    own, others = (", ".join(f"{info.name!r}: {info.form}" for info in streams) for _, streams in (other, first))
    found = f"its streams are {own}, but the streams of {first[0]} are {others}"
    raise ConfigError(f"{other[0]}: {found}; expected the same streams", key="streams")


# -------------------------------------------------------------------------------------------------------- several files


def without_empty(
    files: Iterable[_File],
    read: Callable[[_File], _T],
    leave_out: Callable[[CntkIoError], object] = lambda error: None,
    *,
    is_strict: bool = False,
) -> Iterator[_T]:
    """Yield what `read` returns for each file of a corpus that is not empty; if all are empty, raise the first error.

    Args:
        read: Raises an error of the kind `EMPTY_FILE` for an empty file.
        leave_out: Called at the end with the error of each empty file.
        is_strict: Whether warnings are errors: no file is left out.

    Example:
        >>> def read(path):
        ...     if path == "b.ctf":
        ...         raise FormatError("the file is empty", path=path, kind=EMPTY_FILE)
        ...     return path
        >>> list(without_empty(["a.ctf", "b.ctf"], read, lambda error: print("without", error.path)))
        without b.ctf
        ['a.ctf']
    """
    errors: list[CntkIoError] = []
    are_all_empty = True
    for file in files:
        try:
            found = read(file)
        except CntkIoError as error:
            if is_strict or error.kind != EMPTY_FILE:
                raise
            errors.append(error)
        else:
            are_all_empty = False
            yield found
    if errors and are_all_empty:
        raise errors[0]
    for empty in errors:
        leave_out(empty)


def filled_files(form: Format, paths: Sequence[str], read: Callable[[str], _T]) -> dict[str, _T]:
    """Read the files that a format treats as one, without empty files. Return for each path what `read` returns."""

    def named(path: str) -> tuple[str, _T]:
        return path, read(path)

    return dict(without_empty(paths, named, form.report.leave_out, is_strict=form.is_strict))


def opened_corpus(
    form: Format,
    paths: Sequence[str] = (),
    aheads: Sequence[Ahead] | None = None,
    *,
    keys: KeysOf = "unique",
    keeps_data: bool = False,
) -> FileCorpus | Concatenation:
    """Open the files of a corpus.

    Args:
        form: Opens and reads the files. The name of its report is the name of several files.
        paths: The files. Empty: the format treats all files as one, and opens them itself.
        aheads: For each file, which of its chunks are needed immediately; None: none is.
        keys: Whether ids must be unique, or keys are file and id.
        keeps_data: Whether all chunks that have been loaded stay in memory.

    Raises:
        OSError: A file cannot be read.
        FormatError: A file breaks the format, or has an id of another file.
        CorpusError: No sequence is left to read.
        ConfigError: The files do not belong together.
    """
    paths, files = paths or (form.report.name,), _OpenFiles(form)
    aheads = aheads or [NOTHING_AHEAD] * len(paths)
    corpora: list[FileCorpus] = []
    try:
        if len(paths) == 1:
            opened = files.first_opened(paths[0], aheads[0])
            corpora.append(FileCorpus(paths[0], opened, files, keeps_data=keeps_data))
            (corpora[0].index,) = form.agreed([corpora[0].index])
            return corpora[0]

        def opened_file(numbered: tuple[int, Job[_Opened]]) -> int:
            number, job = numbered
            corpora.append(FileCorpus(paths[number], job.result(), files, keeps_data=keeps_data))
            order_of_streams(*((corpus.name, corpus.streams) for corpus in (corpora[0], corpora[-1])))
            files.close_others()
            return number

        # Taken in the order of the files, so that the first error does not depend on which thread was faster.
        jobs = enumerate(_opening(files, paths, aheads))
        numbers = list(without_empty(jobs, opened_file, form.report.leave_out, is_strict=form.is_strict))
        for corpus, index in zip(corpora, form.agreed([corpus.index for corpus in corpora]), strict=True):
            corpus.index = index
        options = corpora[0].table.options
        _refuse_mixed_keys([corpus.index for corpus in corpora])
        if keys == "unique":
            joined = _ids_of_files(corpora)
        else:
            joined, options = _joined_keys(corpora, map(_keys_of_a_file, numbers, corpora)), {**options, "keys": keys}
        return Concatenation(form.report.name, [corpus.name for corpus in corpora], corpora, options, joined)
    except BaseException:
        for corpus in corpora:
            files.close(corpus.file)
        raise


def _opening(files: _OpenFiles, paths: Sequence[str], aheads: Sequence[Ahead]) -> Iterator[Job[_Opened]]:
    """Open files on several threads, and yield the jobs in order. Few files are opened ahead of the caller."""
    count = min(max(num_threads(), _LEAST_THREADS), len(paths))
    coming: deque[Job[_Opened]] = deque()
    with Workers(count, "cntkio-open") as workers:
        for path, ahead in zip(paths, aheads, strict=True):
            # Only one thread at a time can be in a context, so each file gets a copy.
            coming.append(workers.do(files.context.copy().run, files.first_opened, path, ahead))
            # Opened files wait here for the caller, and each holds a descriptor and its index.
            if len(coming) > 2 * count:
                yield coming.popleft()
        yield from coming


def _ids_of_files(corpora: Sequence[FileCorpus]) -> Keys:
    """Return the keys of files in which each id is unique, or whose lines are counted on."""
    if corpora[0].index.num_lines is not None:
        before = np.cumsum([0, *(corpus.index.num_lines or 0 for corpus in corpora)]).tolist()
        moved = (corpus.table.keys.moved(first) for first, corpus in zip(before, corpora, strict=False))
        return _joined_keys(corpora, moved)
    joined = _joined_keys(corpora, (corpus.table.keys for corpus in corpora))
    # Keys that count up through all files cannot repeat.
    if joined.first is None:
        _refuse_common_ids(corpora)
    return joined


def _joined_keys(corpora: Sequence[FileCorpus], columns: Iterable[Keys]) -> Keys:
    """Return the keys of all files, of which each file gets its part, so that no key is in memory twice.

    Args:
        columns: The keys of each file among all. A file's own keys are freed when the next file's keys are wanted.
    """
    found: list[Keys] = []
    for corpus, column in zip(corpora, columns, strict=True):
        found.append(column)
        _replace_keys(corpus, NO_SEQUENCES.keys)
        del column
    joined = Keys.joined(found)
    ends = np.cumsum([corpus.table.num_sequences for corpus in corpora]).tolist()
    for corpus, end in zip(corpora, ends, strict=True):
        _replace_keys(corpus, joined.part(end - corpus.table.num_sequences, end))
    return joined


def _replace_keys(corpus: FileCorpus, keys: Keys) -> None:
    corpus.index = corpus.index._replace(table=dataclasses.replace(corpus.table, keys=keys))


def _refuse_mixed_keys(indexes: Sequence[Index]) -> None:
    counts = [index.num_lines is not None for index in indexes]
    if len(set(counts)) > 1:
        with_ids, without = indexes[counts.index(False)].name, indexes[counts.index(True)].name
        found = f"the lines of {without} have no ids, but the lines of {with_ids} have ids"
        advice = caller().words.setting("skip_sequence_ids", True)
        raise CorpusError(f"{found}; expected ids in all files or in none, or {advice}")


def _keys_of_a_file(number: int, corpus: FileCorpus) -> Keys:
    keys = corpus.table.keys
    # Ids are words if another deserializer of the source has words; then the key is the text `file/id`.
    if keys.are_words:
        return Keys(np.strings.add(f"{number}/".encode(), keys.words()))
    is_large = np.asarray(keys) >= KEYS_OF_A_FILE
    if is_large.any():
        what = f"with {caller().words.setting('keys', 'per_file')}, ids are below {KEYS_OF_A_FILE:,}"
        raise _error_at(corpus, int(np.argmax(is_large)), what)
    return keys.moved(number * KEYS_OF_A_FILE)


def _refuse_common_ids(corpora: Sequence[FileCorpus]) -> None:
    """Refuse an id that is in two files. Only files whose ranges of ids overlap are compared."""
    keys = [corpus.table.keys for corpus in corpora]
    # A file without sequences has no range of keys.
    candidates = [number for number, of_file in enumerate(keys) if len(of_file)]
    if not keys[0].are_words:
        candidates = _overlapping([keys[number].bounds() for number in candidates], candidates)
    found = [(corpora[number].name, keys[number], corpora[number].places) for number in candidates]
    refuse_common_keys(found, caller().words.setting("keys", "per_file"))


PlacesOf: TypeAlias = Callable[[npt.NDArray[np.int64]], PlacesInFiles]


def refuse_common_keys(corpora: Sequence[tuple[str, Keys, PlacesOf]], advice: str) -> None:
    """Refuse a key that two of some corpora have: each a name, the keys, and a function that finds their places.

    Raises:
        FormatError: The message names both places, and ends with the advice.
    """
    # A key that repeats within its corpus is a matter of the format: the text format only warns of it.
    again, before = in_several([keys for _, keys, _ in corpora])
    if not len(again):
        return
    starts, first = np.cumsum([0, *(len(keys) for _, keys, _ in corpora)]), np.argmin(again)
    at = [int(places[first]) for places in (again, before)]
    (name, keys, later), (other, _, earlier) = (corpora[span_at(starts, place)] for place in at)
    number, known = (np.array([place - starts[span_at(starts, place)]]) for place in at)
    found = f"{earlier(known).texts()[0] or other} has this id, too (ids in several files: {len(again)})"
    place = {"path": name} | later(number).of_error()
    raise FormatError(f"{found}; expected ids that differ, or {advice}", sequence=keys[int(number[0])], **place)


def _error_at(corpus: FileCorpus, sequence_index: int, what: str) -> FormatError:
    place = {"path": corpus.name} | corpus.places(np.array([sequence_index])).of_error()
    return FormatError(what, sequence=corpus.table.keys[sequence_index], **place)


# -------------------------------------------------------------------------------------------------------- deserializers


class FilesDeserializer(Deserializer):
    """Base of the deserializers of one corpus in files, which are dataclasses with these fields."""

    filename: FileNames
    remote: Remote | None

    def check_files(self, words: Mapping[str, str] = MappingProxyType({})) -> None:
        """Check the files, and the fields whose types show what they may be. For `words` see `check_fields`."""
        self.filename, self.remote = located("filename", self.filename, self.remote)
        check_fields(self, words)

    @property
    def label(self) -> str:
        """Name of the files in messages."""
        return shown_files(self.filename)


def as_deserializer(described: Any) -> Deserializer:
    """Return a deserializer as it is, or wrap an object that has only `open`.

    Raises:
        ConfigError: The object is a path, or has no method `open`.

    Example:
        >>> from cntkio.formats.ctf import CTFDeserializer
        >>> from cntkio.streams import StreamDef, StreamDefs
        >>> deserializer = CTFDeserializer("a.ctf", StreamDefs(x=StreamDef(field="x", shape=2)))
        >>> as_deserializer(deserializer) is deserializer
        True
        >>> as_deserializer("a.ctf")
        Traceback (most recent call last):
        cntkio.errors.ConfigError: 'a.ctf' is a path; expected a deserializer, such as CTFDeserializer('a.ctf', ...
    """
    if isinstance(described, str | os.PathLike):
        raise ConfigError(f"{described!r} is a path; expected {_advice(os.fspath(described))}", key="deserializers")
    # A class has the method `open`, too, but only its objects are deserializers.
    if not callable(getattr(described, "open", None)) or isinstance(described, type):
        text = repr(described)
        shown = text if len(text) <= 100 and "\n" not in text else f"an object of {type(described)}"
        message = f"{shown} is not a deserializer; expected one such as CTFDeserializer(path, StreamDefs(...))"
        raise ConfigError(message, key="deserializers")
    # An object with only some of the methods, or with an `open` that takes less, gets the others from a wrapper.
    # Static, because some deserializers open a file to know the type of its keys.
    is_complete = all(inspect.getattr_static(described, name, None) is not None for name in ("parts", "has_text_keys"))
    is_complete = is_complete and "opening" in inspect.signature(described.open).parameters
    deserializer: Deserializer = described if is_complete else _ForeignDeserializer(described)
    return deserializer


def _advice(path: str) -> str:
    try:
        kind = detect(path)
    except OSError:
        kind = KINDS["ctf"]
    if kind.deserializer is None:
        return f"a deserializer; this is {kind.noun}: {kind.use(path)}"
    return f"a deserializer, such as {kind.call.format(path=path)}"


class _ForeignDeserializer:
    """The whole contract for an object with `open` and perhaps some of the other methods."""

    def __init__(self, described: Any) -> None:
        self._described = described
        self.has_text_keys = bool(getattr(described, "has_text_keys", False))

    def parts(self) -> Sequence[Deserializer]:
        parts = getattr(self._described, "parts", None)
        return (self,) if parts is None else tuple(as_deserializer(part) for part in parts())

    def open(self, opening: Opening = OPENING) -> Corpus:
        # A deserializer gets only the wishes that its parameters name.
        known = inspect.signature(self._described.open).parameters
        options = {"opening": opening, "text_keys": opening.text_keys, "ahead": opening.ahead}
        corpus: Corpus = self._described.open(**{key: value for key, value in options.items() if key in known})
        return corpus

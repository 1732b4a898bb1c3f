"""Several files as one corpus: a concatenation. (docs/where-corpora-can-be.md)

::

    files    a.ctf      b.ctf    c.ctf        each with an index of its own, and a cache of its own
    chunks   0  1  2    3  4     5            no chunk spans files
    keys     0 .. 99    100 ..   170 ..       keys that count lines or sequences continue; ids stay as they are

A concatenation puts files one after the other. A join (`cntkio.source`) puts corpora next to each other, by key; each
corpus may be a concatenation. The files are opened in parallel, and few stay open: the others are opened again when
their next chunk is loaded, and refused if they have changed.
"""

from __future__ import annotations

import contextvars
import dataclasses
import hashlib
import os
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import PurePath
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
import numpy.typing as npt

from cntkio._threads import ForkLock, Job, Workers, num_threads
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats import compressed
from cntkio.formats.columns import (
    CountedKeys,
    Keys,
    joined_keys,
    joined_lengths,
    moved_keys,
    part_of_keys,
    range_of_keys,
    span_at,
)
from cntkio.formats.contract import Ahead, Corpus, Joins, Loaded, PlacesInFiles
from cntkio.formats.index_cache import CacheFiles
from cntkio.formats.report import Report
from cntkio.formats.table import FileSpans, SequenceTable
from cntkio.hints import wording
from cntkio.streams import StreamInformation

KeysOf = Literal["unique", "per_file"]
KEYS_OF_A_FILE = 10**12
"""With keys per file, the keys of each file begin at a multiple of this number."""
_LEAST_THREADS = 4  # reading waits for the disk
MOST_OPEN = 64
"""Number of files of a concatenation that stay open when no thread uses them."""
_NUM_SHOWN = 3


def check_keys_of(keys: KeysOf) -> None:
    """Check the option `keys`.

    Raises:
        ConfigError: The value is not possible.
    """
    if keys not in get_args(KeysOf):
        raise ConfigError(f"keys is {keys!r}; expected 'unique' or 'per_file'", key="keys")


class FileCorpus(Corpus, Protocol):
    """A corpus of one file, as a part of a concatenation. All parts share a report."""

    @property
    def num_lines(self) -> int | None:
        """Number of keys in the file, if keys are counted across files; None: keys are ids."""

    @property
    def index_caches(self) -> CacheFiles:
        """The index caches of the file: of its sequences, and of its access points."""

    def publish_index(self) -> str | None:
        """Write the index cache of a file in a remote store next to it, and return its name; None: nothing to write.

        Raises:
            OSError: The store does not accept it.
        """

    @property
    def memory(self) -> Any:
        """The facts with which to open the file again without a pass over it, such as its index."""

    def log_remarks(self) -> None:
        """Log the remarks of the index; raise an error if warnings are errors."""

    def require_sequences(self) -> None:
        """Refuse a file that has no sequence."""

    def is_sound(self, loaded: Loaded) -> bool:
        """Return whether `account_for` has nothing to do for a chunk."""

    def error_at(self, sequence_index: int, what: str) -> FormatError:
        """Return the error that says what is wrong with a sequence."""

    def use_table(self, table: SequenceTable) -> None:
        """Use a table with the same sequences, whose arrays are slices of the arrays of the whole corpus."""

    def release(self) -> None:
        """Close the file, and log nothing."""


class FileFormat(Protocol):
    """Opens the files of a concatenation, on several threads."""

    @property
    def report(self) -> Report:
        """Errors and warnings of all files."""

    def open(self, path: str, ahead: Ahead) -> FileCorpus:
        """Open a file, and make or load its index."""

    def open_again(self, path: str, memory: Any) -> FileCorpus:
        """Open a file that was open before, and refuse it if it has changed."""


class _Part(NamedTuple):
    """A file, whether it is open or not.

    Attributes:
        path: The file.
        name: Its name in messages: a URL without passwords and signatures.
        table: Its sequences.
        num_lines: See `FileCorpus`.
        memory: See `FileCorpus`.
        fingerprint: Its fingerprint.
        index_caches: Its index caches.
    """

    path: str
    name: str
    table: SequenceTable
    num_lines: int | None
    memory: Any
    fingerprint: str
    index_caches: CacheFiles


def concatenated(
    paths: Sequence[str], form: FileFormat, name: str, aheads: Sequence[Ahead], *, keys: KeysOf = "unique"
) -> Concatenation:
    """Open files as one corpus.

    Args:
        paths: The files, at least two.
        form: Opens them.
        name: Name of the corpus in messages.
        aheads: For each file, which of its chunks are needed immediately.
        keys: Whether ids must be unique, or keys are file and id.

    Raises:
        OSError: A file cannot be read.
        FormatError: A file breaks the format, or has an id of another file.
        CorpusError: No sequence is left to read.
        ConfigError: The files do not belong together.
    """
    parts: list[_Part] = []

    def open_again(index: int) -> FileCorpus:
        part = parts[index]
        corpus = form.open_again(part.path, part.memory)
        corpus.use_table(part.table)
        return corpus

    open_files = OpenFiles(open_again)
    parsed: dict[int, Loaded] = {}
    num_chunks = 0
    try:
        for corpus in _opened(paths, form, aheads):
            index = len(parts)
            if not index:
                first = corpus
            elif corpus.streams != first.streams:
                raise ConfigError(
                    f"{corpus.name}: {_differences(corpus.streams, first.streams, first.name)}", key="streams"
                )
            open_files.add(index, corpus)
            corpus.log_remarks()
            for chunk_id, loaded in corpus.take_parsed().items():
                parsed[num_chunks + chunk_id] = loaded
            num_chunks += corpus.table.num_chunks
            parts.append(
                _Part(
                    paths[index],
                    corpus.name,
                    corpus.table,
                    corpus.num_lines,
                    corpus.memory,
                    corpus.fingerprint(),
                    corpus.index_caches,
                )
            )
        return Concatenation(name, form.report, first, parts, open_files, parsed, keys)
    except BaseException:
        open_files.close()
        raise


def _opened(paths: Sequence[str], form: FileFormat, aheads: Sequence[Ahead]) -> Iterator[FileCorpus]:
    """Open files on several threads, and yield them in order. Only a few files are opened ahead of the caller."""
    count = min(max(num_threads(), _LEAST_THREADS), len(paths))
    coming: deque[Job[FileCorpus]] = deque()
    with Workers(count, "cntkio-open") as workers:
        for path, ahead in zip(paths, aheads, strict=True):
            coming.append(workers.do(contextvars.copy_context().run, form.open, path, ahead))
            if len(coming) > 2 * count:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def _differences(streams: Sequence[StreamInformation], expected: Sequence[StreamInformation], first: str) -> str:
    def text(of_file: Sequence[StreamInformation]) -> str:
        return ", ".join(f"{info.name!r} ({info.storage_format}, {info.dim} wide, {info.dtype})" for info in of_file)

    return f"its streams are {text(streams)}, but the streams of {first} are {text(expected)}; expected the same"


class OpenFiles:
    """The open files of a concatenation: a few, and all files that a thread is using.

    Args:
        open_again: Opens a file, by its index.
    """

    def __init__(self, open_again: Callable[[int], FileCorpus]) -> None:
        self._open_again = open_again
        self._files: OrderedDict[int, _Open] = OrderedDict()
        self._lock = ForkLock()

    def add(self, index: int, corpus: FileCorpus) -> None:
        """Add a file that was opened."""
        with self._lock.inner:
            self._files[index] = _Open(corpus)
        self._close_others()

    def change(self, index: int, table: SequenceTable) -> None:
        """Let an open file use another table."""
        file = self._files.get(index)
        if file is not None and file.corpus is not None:
            file.corpus.use_table(table)

    @contextmanager
    def use(self, index: int) -> Iterator[FileCorpus]:
        """Open a file if it is not open, and keep it open while the block uses it."""
        with self._lock.inner:
            file = self._files.setdefault(index, _Open(None))
            self._files.move_to_end(index)
            file.num_users += 1
        try:
            with file.lock.inner:
                if file.corpus is None:
                    file.corpus = self._open_again(index)
            yield file.corpus
        finally:
            with self._lock.inner:
                file.num_users -= 1
            self._close_others()

    def _close_others(self) -> None:
        """Close the least recently used files until few are open."""
        with self._lock.inner:
            num_closed = max(len(self._files) - MOST_OPEN, 0)
            unused = (index for index, file in self._files.items() if not file.num_users)
            closed = [self._files.pop(index) for index in [*islice(unused, num_closed)]]
        for file in closed:
            file.close()

    def close(self) -> None:
        """Close all files."""
        with self._lock.inner:
            files, self._files = self._files, OrderedDict()
        for file in files.values():
            file.close()


class _Open:
    """A file that is open or being opened, and the number of threads that use it."""

    __slots__ = ("corpus", "lock", "num_users")

    def __init__(self, corpus: FileCorpus | None) -> None:
        self.corpus = corpus
        self.lock = ForkLock()
        self.num_users = 0

    def close(self) -> None:
        if self.corpus is not None:
            self.corpus.release()


class Concatenation:
    """Opened files that are one corpus. `cntkio.formats.Corpus` documents its methods."""

    utterances = None

    def __init__(
        self,
        name: str,
        report: Report,
        first: FileCorpus,
        parts: list[_Part],
        open_files: OpenFiles,
        parsed: dict[int, Loaded],
        keys: KeysOf,
    ) -> None:
        self.name, self.report, self.streams = name, report, first.streams
        self.joins: Joins = first.joins
        self.loads_at_once = first.loads_at_once
        self._parts, self._open_files, self._parsed = parts, open_files, parsed
        self._first_chunks = np.cumsum([0, *(part.table.num_chunks for part in parts)])
        self._first_sequences = np.cumsum([0, *(part.table.num_sequences for part in parts)])
        with open_files.use(0) as corpus:
            self._loads_parts = corpus.load_part is not None
            if not self._first_sequences[-1]:
                corpus.require_sequences()
        self._refuse_mixed_keys()
        starts = zip(self._first_sequences.tolist(), parts, strict=False)
        self.table = SequenceTable(
            self._keys(keys),
            joined_lengths([part.table.lengths for part in parts]),
            np.concatenate([np.zeros(1, np.int64), *(first + part.table.chunk_starts[1:] for first, part in starts)]),
            options=parts[0].table.options if keys == "unique" else {**parts[0].table.options, "keys": keys},
            files=FileSpans([part.name for part in parts], self._first_sequences),
        )

        self._keep_one_copy()

    def _keep_one_copy(self) -> None:
        """Let the files use slices of the corpus's arrays, and so name sequences by their keys in the corpus."""
        bounds = self._first_sequences.tolist()
        for index, part in enumerate(self._parts):
            first, last = bounds[index : index + 2]
            keys = part_of_keys(self.table.keys, first, last)
            table = dataclasses.replace(part.table, keys=keys, lengths=self.table.lengths[first:last])
            self._parts[index] = part._replace(table=table)
            self._open_files.change(index, table)

    # ------------------------------------------------------------------------------------------------------- keys

    def _refuse_mixed_keys(self) -> None:
        counts = [part.num_lines is not None for part in self._parts]
        if len(set(counts)) > 1:
            first, other = self._parts[0].name, self._parts[counts.index(not counts[0])].name
            with_ids, without = (other, first) if counts[0] else (first, other)
            raise CorpusError(
                f"the lines of {without} have no ids, but the lines of {with_ids} have ids; expected ids in all "
                f"files or in none, or {wording().setting('skip_sequence_ids', True)}"
            )

    def _keys(self, keys: KeysOf) -> Keys:
        tables = [part.table for part in self._parts]
        if keys == "per_file":
            return joined_keys([self._keys_of_a_file(index, table.keys) for index, table in enumerate(tables)])
        if self._parts[0].num_lines is not None:
            before = np.cumsum([0, *(part.num_lines or 0 for part in self._parts)]).tolist()
            return joined_keys([moved_keys(table.keys, first) for first, table in zip(before, tables, strict=False)])
        joined = joined_keys([table.keys for table in tables])
        if not isinstance(joined, CountedKeys):
            self._refuse_common_ids([table.keys for table in tables])
        return joined

    def _keys_of_a_file(self, index: int, keys: Keys) -> Keys:
        if isinstance(keys, np.ndarray) and keys.dtype.kind == "S":
            return np.strings.add(f"{index}/".encode(), keys)
        array = np.asarray(keys)
        is_large = array >= KEYS_OF_A_FILE
        if is_large.any():
            with self._open_files.use(index) as corpus:
                what = f"with {wording().setting('keys', 'per_file')}, ids are below {KEYS_OF_A_FILE:,}"
                raise corpus.error_at(int(np.argmax(is_large)), what)
        return moved_keys(keys, index * KEYS_OF_A_FILE)

    def _refuse_common_ids(self, keys: Sequence[Keys]) -> None:
        """Refuse an id that is in two files. Only files whose ranges of ids overlap are compared."""
        candidates = [index for index, of_file in enumerate(keys) if len(of_file)]
        if keys[0].dtype == np.uint64:
            candidates = _overlapping([range_of_keys(keys[index]) for index in candidates], candidates)
        if not candidates:
            return
        ids = np.concatenate([np.asarray(keys[index]) for index in candidates])
        file_of = np.repeat(np.array(candidates, np.uint32), [len(keys[index]) for index in candidates])
        order = np.argsort(ids, kind="stable")
        is_again = (ids[order][1:] == ids[order][:-1]) & (file_of[order][1:] != file_of[order][:-1])
        if not is_again.any():
            return
        again = order[1:][is_again]
        sequence = int(again.min())
        file = int(file_of[sequence])
        earlier = order[:-1][is_again][int(np.argmin(again))]
        with self._open_files.use(file) as corpus:
            raise corpus.error_at(
                sequence - int(np.argmax(file_of == file)),
                f"{self._parts[int(file_of[earlier])].name} has this id, too (ids in several files: {len(again)}); "
                f"expected ids that differ, or {wording().setting('keys', 'per_file')}",
            )

    # ------------------------------------------------------------------------------------------------------- data

    def _place(self, chunk_id: int) -> tuple[int, int]:
        """Return the index of a chunk's file, and the chunk's number in that file."""
        index = int(span_at(self._first_chunks, chunk_id))
        return index, chunk_id - int(self._first_chunks[index])

    def load(self, chunk_id: int) -> Loaded:
        return self._load(chunk_id, None)

    @property
    def load_part(self) -> Callable[[int, npt.NDArray[np.uint32]], Loaded] | None:
        return self._load if self._loads_parts else None

    def _load(self, chunk_id: int, sequences: npt.NDArray[np.uint32] | None) -> Loaded:
        """Load a chunk, or some of its sequences, under its number here, without findings if it is sound."""
        index, own_id = self._place(chunk_id)
        with self._open_files.use(index) as corpus:
            if sequences is None:
                loaded = corpus.load(own_id)
            else:
                assert corpus.load_part is not None
                loaded = corpus.load_part(own_id, sequences)
            findings = None if corpus.is_sound(loaded) else loaded.findings
        return Loaded(chunk_id, loaded.chunk, findings, sequences)

    def account_for(self, loaded: Loaded) -> None:
        if loaded.findings is not None:
            index, own_id = self._place(loaded.chunk_id)
            with self._open_files.use(index) as corpus:
                corpus.account_for(dataclasses.replace(loaded, chunk_id=own_id))

    def take_parsed(self) -> dict[int, Loaded]:
        parsed, self._parsed = self._parsed, {}
        return {chunk_id: Loaded(chunk_id, loaded.chunk) for chunk_id, loaded in parsed.items()}

    def places(self, sequences: npt.NDArray[np.int64]) -> PlacesInFiles:
        file_of = span_at(self._first_sequences, sequences)
        columns = np.zeros((2, len(sequences)), np.int64)
        has_columns = [False, False]
        for index in np.unique(file_of).tolist():
            mine = file_of == index
            with self._open_files.use(index) as corpus:
                _, _, *found = corpus.places(sequences[mine] - self._first_sequences[index])
            for number, column in enumerate(found):
                has_columns[number] = column is not None
                columns[number, mine] = 0 if column is None else column
        begins, lines = (column if has else None for column, has in zip(columns, has_columns, strict=True))
        return PlacesInFiles([part.name for part in self._parts], file_of, begins, lines)

    def fingerprint(self) -> str:
        parts = self._parts
        return fingerprint_of_files([part.name for part in parts], [part.fingerprint for part in parts])

    @property
    def index_caches(self) -> CacheFiles:
        """The index caches of all files."""
        of_files = [part.index_caches for part in self._parts]
        return CacheFiles(*(tuple(chain.from_iterable(each)) for each in zip(*of_files, strict=True)))

    def publish_indexes(self) -> list[str | None]:
        """Return `FileCorpus.publish_index` of each file."""
        names = []
        for index in range(len(self._parts)):
            with self._open_files.use(index) as corpus:
                names.append(corpus.publish_index())
        return names

    def close(self) -> None:
        self.report.log_totals()
        self._open_files.close()


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
    sums = (hashlib.blake2b(fingerprint.encode(), digest_size=6).hexdigest() for fingerprint in fingerprints)
    names = (_without_ending(PurePath(path).name) for path in paths)
    lines = [f"{name} {check_sum}" for name, check_sum in zip(names, sums, strict=True)]
    whole = hashlib.blake2b("\n".join(fingerprints).encode(), digest_size=16)
    return "\n".join([f"{len(lines)} files {whole.hexdigest()}", *lines])


def _without_ending(name: str) -> str:
    stem, ending = os.path.splitext(name)  # noqa: PTH122 - a `Path` takes ten times as long
    return stem if ending.lower() in compressed.ENDINGS else name


def differences_of_files(saved: str, current: str) -> str:
    """Name the files that differ between two fingerprints; empty if a fingerprint is of a single file.

    Example:
        >>> differences_of_files("2 files 0\\na.ctf 1\\nb.ctf 2", "2 files 1\\na.ctf 1\\nb.ctf 3")
        'b.ctf has other content'
    """
    before, now = (Counter(line.rpartition(" ")[::2] for line in text.split("\n")[1:]) for text in (saved, current))
    if not before or not now:
        return ""
    gone, come = ([name for name, *_ in files] for files in (before - now, now - before))
    kinds = {
        "has other content": [name for name in come if name in gone],
        "is new": [name for name in come if name not in gone],
        "is missing": [name for name in gone if name not in come],
    }
    facts = [
        f"{', '.join(names[:_NUM_SHOWN])}{' and others' * (len(names) > _NUM_SHOWN)} {what}"
        for what, names in kinds.items()
        if names
    ]
    return ", ".join(facts) or "the same files in another order"

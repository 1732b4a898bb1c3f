"""An opened deserializer: one file, or several files that are one corpus. (docs/where-corpora-can-be.md)

::

    files    a.ctf      b.ctf    c.ctf        each with an index of its own, and a cache of its own
    chunks   0  1  2    3  4     5            no chunk spans files
    keys     0 .. 99    100 ..   170 ..       keys that count lines or sequences continue; ids stay as they are

A corpus is its index: it keeps the indexes of its files, the open files and the report, and nothing else. Several
files stand one after the other. A join (`cntkio.source`) puts corpora next to each other, by key; each of them may have
several files. The files are opened in parallel, and few stay open: the others are opened again when their next chunk is
loaded, and refused if they have changed.
"""

from __future__ import annotations

import contextvars
import dataclasses
import hashlib
import inspect
import os
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import PurePath
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from cntkio._core import Chunk
from cntkio._threads import ForkLock, Job, Workers, num_threads
from cntkio.arguments import caller, check_word
from cntkio.errors import ConfigError, CorpusError, FormatError
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
from cntkio.formats.table import (
    CountedKeys,
    FileSpans,
    Keys,
    SequenceTable,
    joined_keys,
    joined_lengths,
    key_value,
    moved_keys,
    part_of_keys,
    range_of_keys,
)
from cntkio.storage import compressed
from cntkio.storage.index_cache import CacheFiles, publish
from cntkio.storage.spans import span_at
from cntkio.storage.text_input import changed_in_use

KEYS_OF_A_FILE = 10**12
"""With keys per file, the keys of each file begin at a multiple of this number."""
_NUM_SHOWN = 3


def check_keys_of(keys: KeysOf) -> None:
    """Refuse an impossible value of the option `keys` with a `ConfigError`."""
    check_word("keys", keys, *get_args(KeysOf))


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


class FileCorpus(Corpus):
    """An opened deserializer of files. `cntkio.formats.Corpus` documents its methods.

    Args:
        form: Opens and reads its files. The name of its report is the name of several files.
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

    def __init__(
        self,
        form: Format,
        paths: Sequence[str] = (),
        aheads: Sequence[Ahead] | None = None,
        *,
        keys: KeysOf = "unique",
        keeps_data: bool = False,
    ) -> None:
        self.report = form.report
        self._format, self._paths = form, paths or (form.report.name,)
        self._context = contextvars.copy_context()  # of the caller; other threads may open files again
        self._indexes: list[Index] = []
        self._files: OrderedDict[int, _OpenFile] = OrderedDict()
        self._lock = ForkLock()
        self._kept: dict[int, Loaded] | None = {} if keeps_data else None
        self._parsed: dict[int, Loaded] = {}
        num_chunks = 0
        try:
            for file, index, chunks in self._opened(aheads or [NOTHING_AHEAD] * len(self._paths)):
                number = len(self._indexes)
                self._files[number] = _OpenFile(file)
                self._indexes.append(index)
                self._refuse_other_streams(index)
                # Counted in the order of the files, so that the first error does not depend on which thread was faster.
                form.account(file, index, None)
                self._parsed |= {id: Loaded(id, chunk) for id, chunk in enumerate(chunks, num_chunks)}
                num_chunks += index.table.num_chunks
                self._close_others()
            if not any(index.table.num_sequences for index in self._indexes) and self._indexes[0].why_empty:
                raise CorpusError(self._indexes[0].why_empty)
            self._indexes = form.agreed(self._indexes)
            self._first_chunks = np.cumsum([0, *(index.table.num_chunks for index in self._indexes)])
            self._first_sequences = np.cumsum([0, *(index.table.num_sequences for index in self._indexes)])
            self.index = self._indexes[0]
            if len(paths) > 1:
                self.index = self._index_of_files(keys)
                self._keep_one_copy()
            # A kept chunk serves all later reads, so it must have all its sequences.
            if keeps_data:
                self.index = self.index._replace(loads_parts=False)
        except BaseException:
            self._close_files()
            raise

    def _opened(self, aheads: Sequence[Ahead]) -> Iterator[tuple[Any, Index, list[Chunk]]]:
        """Open files on several threads, and yield them in order. Only a few files are opened ahead of the caller."""
        if len(self._paths) == 1:
            yield self._open(self._paths[0], aheads[0])
            return
        count = min(max(num_threads(), _LEAST_THREADS), len(self._paths))
        coming: deque[Job[tuple[Any, Index, list[Chunk]]]] = deque()
        with Workers(count, "cntkio-open") as workers:
            for path, ahead in zip(self._paths, aheads, strict=True):
                # Only one thread at a time can be in a context, so each file gets a copy.
                coming.append(workers.do(self._context.copy().run, self._open, path, ahead))
                # Opened files wait here for the caller, and each holds a descriptor and its index.
                if len(coming) > 2 * count:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()

    def _open(self, path: str, ahead: Ahead) -> tuple[Any, Index, list[Chunk]]:
        file = self._format.open(path, None)
        try:
            return file, *self._format.index(file, ahead)
        except BaseException:
            file.close()
            raise

    # -------------------------------------------------------------------------------------------------- several files

    def _refuse_other_streams(self, index: Index) -> None:
        first = self._indexes[0]
        if index.streams != first.streams:
            own, others = (
                ", ".join(f"{info.name!r} ({info.storage_format}, {info.dim} wide, {info.dtype})" for info in streams)
                for streams in (index.streams, first.streams)
            )
            found = f"its streams are {own}, but the streams of {first.name} are {others}"
            raise ConfigError(f"{index.name}: {found}; expected the same", key="streams")

    def _index_of_files(self, keys: KeysOf) -> Index:
        """Return the index of the corpus that has the sequences of the files, one file after the other."""
        tables, names = [index.table for index in self._indexes], [index.name for index in self._indexes]
        # The first start of a file is the last start of the file before, so it is left out.
        starts = [first + table.chunk_starts[1:] for first, table in zip(self._first_sequences, tables, strict=False)]
        table = SequenceTable(
            self._joined_keys(keys),
            joined_lengths([table.lengths for table in tables]),
            np.concatenate([np.zeros(1, np.int64), *starts]),
            options=tables[0].options if keys == "unique" else {**tables[0].options, "keys": keys},
            files=FileSpans(names, self._first_sequences),
        )
        fingerprint = fingerprint_of_files(names, [index.fingerprint for index in self._indexes])
        return self._indexes[0]._replace(name=self.report.name, table=table, fingerprint=fingerprint)

    def _keep_one_copy(self) -> None:
        """Let the files use slices of the corpus's arrays, and so name sequences by their keys in the corpus."""
        bounds, lengths = self._first_sequences.tolist(), self.table.lengths
        for number, index in enumerate(self._indexes):
            first, last = bounds[number : number + 2]
            keys = part_of_keys(self.table.keys, first, last)
            table = dataclasses.replace(index.table, keys=keys, lengths=lengths[first:last])
            self._indexes[number] = index._replace(table=table)

    def _joined_keys(self, keys: KeysOf) -> Keys:
        self._refuse_mixed_keys()
        columns = [index.table.keys for index in self._indexes]
        if keys == "per_file":
            return joined_keys([self._keys_of_a_file(number) for number in range(len(columns))])
        if self._indexes[0].num_lines is not None:
            before = np.cumsum([0, *(index.num_lines or 0 for index in self._indexes)]).tolist()
            return joined_keys([moved_keys(column, first) for first, column in zip(before, columns, strict=False)])
        joined = joined_keys(columns)
        # Keys that count up through all files cannot repeat.
        if not isinstance(joined, CountedKeys):
            self._refuse_common_ids()
        return joined

    def _refuse_mixed_keys(self) -> None:
        counts = [index.num_lines is not None for index in self._indexes]
        if len(set(counts)) > 1:
            with_ids, without = self._indexes[counts.index(False)].name, self._indexes[counts.index(True)].name
            found = f"the lines of {without} have no ids, but the lines of {with_ids} have ids"
            advice = caller().words.setting("skip_sequence_ids", True)
            raise CorpusError(f"{found}; expected ids in all files or in none, or {advice}")

    def _keys_of_a_file(self, number: int) -> Keys:
        keys = self._indexes[number].table.keys
        # Ids are words if another deserializer of the source has words; then the key is the text `file/id`.
        if isinstance(keys, np.ndarray) and keys.dtype.kind == "S":
            return np.strings.add(f"{number}/".encode(), keys)
        is_large = np.asarray(keys) >= KEYS_OF_A_FILE
        if is_large.any():
            what = f"with {caller().words.setting('keys', 'per_file')}, ids are below {KEYS_OF_A_FILE:,}"
            raise self._error_at(number, int(np.argmax(is_large)), what)
        return moved_keys(keys, number * KEYS_OF_A_FILE)

    def _refuse_common_ids(self) -> None:
        """Refuse an id that is in two files. Only files whose ranges of ids overlap are compared."""
        keys = [index.table.keys for index in self._indexes]
        # An empty file has no range of keys.
        candidates = [number for number, of_file in enumerate(keys) if len(of_file)]
        if keys[0].dtype == np.uint64:
            candidates = _overlapping([range_of_keys(keys[number]) for number in candidates], candidates)
        if not candidates:
            return
        ids = np.concatenate([np.asarray(keys[number]) for number in candidates])
        file_of = np.repeat(np.array(candidates, np.uint32), [len(keys[number]) for number in candidates])
        # Stable, so that of equal ids the file that comes first stays first, and the error names the later file.
        order = np.argsort(ids, kind="stable")
        # An id that repeats within its file is a matter of the format: the text format only warns of it.
        is_again = (ids[order][1:] == ids[order][:-1]) & (file_of[order][1:] != file_of[order][:-1])
        if not is_again.any():
            return
        again = order[1:][is_again]
        sequence = int(again.min())
        file = int(file_of[sequence])
        earlier = self._indexes[int(file_of[order[:-1][is_again][int(np.argmin(again))]])].name
        found = f"{earlier} has this id, too (ids in several files: {len(again)})"
        what = f"{found}; expected ids that differ, or {caller().words.setting('keys', 'per_file')}"
        raise self._error_at(file, sequence - int(np.argmax(file_of == file)), what)

    def _error_at(self, number: int, sequence_index: int, what: str) -> FormatError:
        index, places = self._indexes[number], self._place_of(number, np.array([sequence_index]))
        byte, line = (None if column is None else int(column[0]) for column in (places.bytes, places.lines))
        column, key = None if line is None else 1, key_value(index.table.keys[sequence_index])
        return FormatError(what, path=index.name, byte=byte, line=line, column=column, sequence=key)

    # ------------------------------------------------------------------------------------------------------------- data

    def load(self, chunk_id: int, sequences: npt.NDArray[np.uint32] | None = None) -> Loaded:
        kept = None if self._kept is None else self._kept.get(chunk_id)
        if kept is not None:
            return kept
        number, own_id = self._chunk_at(chunk_id)
        with self._use(number) as file:
            loaded = self._format.parse(file, self._indexes[number], own_id, sequences)
        if own_id != chunk_id:
            loaded = dataclasses.replace(loaded, chunk_id=chunk_id)
        if self._kept is not None:
            self._kept[chunk_id] = loaded
        return loaded

    def _chunk_at(self, chunk_id: int) -> tuple[int, int]:
        """Return the number of a chunk's file, and the chunk's number in that file."""
        number = int(span_at(self._first_chunks, chunk_id))
        return number, chunk_id - int(self._first_chunks[number])

    def account_for(self, loaded: Loaded) -> None:
        # Most chunks have no findings. To name the lines of findings, the format reads the file again.
        if loaded.findings is not None:
            number, own_id = self._chunk_at(loaded.chunk_id)
            with self._use(number) as file:
                self._format.account(file, self._indexes[number], dataclasses.replace(loaded, chunk_id=own_id))

    def take_parsed(self) -> dict[int, Loaded]:
        parsed, self._parsed = self._parsed, {}
        return parsed

    def places(self, sequences: npt.NDArray[np.int64]) -> PlacesInFiles:
        if len(self._paths) == 1:
            return self._place_of(0, sequences)
        # A file without a sequence has the start of the next file, and is passed over.
        file_of = span_at(self._first_sequences, sequences)
        columns = np.zeros((2, len(sequences)), np.int64)
        has_columns = [False, False]
        for number in np.unique(file_of).tolist():
            mine = file_of == number
            _, _, *found = self._place_of(number, sequences[mine] - self._first_sequences[number])
            for column, values in enumerate(found):
                has_columns[column] = values is not None
                columns[column, mine] = 0 if values is None else values
        begins, lines = (column if has else None for column, has in zip(columns, has_columns, strict=True))
        return PlacesInFiles([index.name for index in self._indexes], file_of, begins, lines)

    def _place_of(self, number: int, sequences: npt.NDArray[np.int64]) -> PlacesInFiles:
        with self._use(number) as file:
            return self._format.place(file, self._indexes[number], sequences)

    # ----------------------------------------------------------------------------------------------------- index caches

    @property
    def index_caches(self) -> CacheFiles:
        """The index caches of all files."""
        of_files = zip(*(index.caches for index in self._indexes), strict=True)
        return CacheFiles(*(tuple(chain.from_iterable(each)) for each in of_files))

    def publish_indexes(self) -> list[str | None]:
        """Write the index caches of files in a remote store next to them.

        Return for each file the name of its index cache; None: it has none. If the store does not accept it: `OSError`.
        """
        names: list[str | None] = []
        for number, index in enumerate(self._indexes):
            with self._use(number) as file:
                # The access points of a compressed text may have a cache although the index has none.
                caches, store = [*index.caches.indexes, *index.caches.points], file.companions
                published = [os.fspath(cache) if store is None else publish(store, cache) for cache in caches]
            names.append(published[0] if index.caches.indexes else None)
        return names

    # ------------------------------------------------------------------------------------------------------- open files

    @contextmanager
    def _use(self, number: int) -> Iterator[Any]:
        """Open a file if it is not open, and keep it open while the block uses it."""
        with self._lock.inner:
            opened = self._files.setdefault(number, _OpenFile())
            self._files.move_to_end(number)
            # From here on, `_close_others` leaves the file alone, also while it is being opened.
            opened.num_users += 1
        try:
            # A lock of the file, so that opening it stops only the threads that need this file.
            with opened.lock.inner:
                if opened.file is None:
                    opened.file = self._open_again(number)
            yield opened.file
        finally:
            with self._lock.inner:
                opened.num_users -= 1
            self._close_others()

    def _open_again(self, number: int) -> Any:
        index = self._indexes[number]
        file = self._context.copy().run(self._format.open, self._paths[number], index)
        # The index belongs to the content that was there at first.
        if file.stamp != index.stamp:
            file.close()
            raise changed_in_use(index.name, index.num_bytes, file.size)
        return file

    def _close_others(self) -> None:
        if len(self._files) <= MOST_OPEN:
            return
        with self._lock.inner:
            # Files in use move to the end, so the least recently used files come first.
            unused = (number for number, opened in self._files.items() if not opened.num_users)
            closed = {number: self._files.pop(number) for number in [*islice(unused, len(self._files) - MOST_OPEN)]}
        self._close_all(closed)

    def _close_all(self, files: Mapping[int, _OpenFile]) -> None:
        for number, opened in files.items():
            # After an interrupt in the constructor, the last file may be without its index.
            for writer in self._indexes[number].caches.writers if number < len(self._indexes) else ():
                writer.wait()  # it reads facts of the file
            if opened.file is not None:
                opened.file.close()

    def _close_files(self) -> None:
        with self._lock.inner:
            files, self._files = self._files, OrderedDict()
        self._close_all(files)

    def close(self) -> None:
        self.report.log_totals()
        self._close_files()
        if self._kept is not None:
            self._kept.clear()


@dataclasses.dataclass(eq=False, slots=True)
class _OpenFile:
    """A file that is open or being opened, and the number of threads that use it."""

    file: Any = None
    lock: ForkLock = dataclasses.field(default_factory=ForkLock)
    num_users: int = 0


# -------------------------------------------------------------------------------------------------------- deserializers


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
    if not can_be_opened(described) or isinstance(described, type):
        text = repr(described)
        shown = text if len(text) <= 100 and "\n" not in text else f"an object of {type(described)}"
        message = f"{shown} is not a deserializer; expected one such as CTFDeserializer(path, StreamDefs(...))"
        raise ConfigError(message, key="deserializers")
    # An object with only some of the methods, or with an `open` that takes less, gets the others from a wrapper.
    is_complete = hasattr(described, "parts") and hasattr(described, "has_text_keys")
    is_complete = is_complete and "opening" in inspect.signature(described.open).parameters
    deserializer: Deserializer = described if is_complete else _ForeignDeserializer(described)
    return deserializer


def can_be_opened(described: Any) -> bool:
    """Return whether an object has a method `open`, as deserializers have, and also paths."""
    return callable(getattr(described, "open", None))


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

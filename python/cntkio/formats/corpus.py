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
import os
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio._core import Chunk
from cntkio._threads import ForkLock, Job, Workers, num_threads
from cntkio.errors import CorpusError
from cntkio.formats.contract import NOTHING_AHEAD, Ahead, Corpus, Format, Index, Loaded, PlacesInFiles
from cntkio.formats.index_cache import CacheFiles, publish
from cntkio.formats.joined_index import KeysOf, joined_index, refuse_other_streams
from cntkio.formats.table import part_of_keys, span_at
from cntkio.formats.text_input import changed_in_use

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

    Attributes:
        index: All that is known about the corpus without its data.
        report: Errors and warnings so far.

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
                if number:
                    refuse_other_streams(index, self._indexes[0])
                form.account(file, index, None)
                self._parsed.update(
                    (num_chunks + id, Loaded(num_chunks + id, chunk)) for id, chunk in enumerate(chunks)
                )
                num_chunks += index.table.num_chunks
                self._close_others()
            if not any(index.table.num_sequences for index in self._indexes) and self._indexes[0].why_empty:
                raise CorpusError(self._indexes[0].why_empty)
            self._first_chunks = np.cumsum([0, *(index.table.num_chunks for index in self._indexes)])
            self._first_sequences = np.cumsum([0, *(index.table.num_sequences for index in self._indexes)])
            self.index = self._indexes[0]
            if len(paths) > 1:
                self.index = joined_index(form.report.name, self._indexes, keys, self._place_of)
                self._keep_one_copy()
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
                coming.append(workers.do(self._context.copy().run, self._open, path, ahead))
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

    def _keep_one_copy(self) -> None:
        """Let the files use slices of the corpus's arrays, and so name sequences by their keys in the corpus."""
        bounds = self._first_sequences.tolist()
        for number, index in enumerate(self._indexes):
            first, last = bounds[number : number + 2]
            table = dataclasses.replace(
                index.table, keys=part_of_keys(self.table.keys, first, last), lengths=self.table.lengths[first:last]
            )
            self._indexes[number] = index._replace(table=table)

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
        of_files = [index.caches for index in self._indexes]
        return CacheFiles(*(tuple(chain.from_iterable(each)) for each in zip(*of_files, strict=True)))

    def publish_indexes(self) -> list[str | None]:
        """Write the index caches of files in a remote store next to them.

        Returns:
            For each file the name of its index cache; None: it has none.

        Raises:
            OSError: The store does not accept a cache.
        """
        names: list[str | None] = []
        for number, index in enumerate(self._indexes):
            with self._use(number) as file:
                caches = [
                    os.fspath(cache) if file.companions is None else publish(file.companions, cache)
                    for cache in index.caches.known
                ]
            names.append(caches[0] if caches else None)
        return names

    # ------------------------------------------------------------------------------------------------------- open files

    @contextmanager
    def _use(self, number: int) -> Iterator[Any]:
        """Open a file if it is not open, and keep it open while the block uses it."""
        with self._lock.inner:
            opened = self._files.setdefault(number, _OpenFile())
            self._files.move_to_end(number)
            opened.num_users += 1
        try:
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
        if file.stamp != index.stamp:
            file.close()
            raise changed_in_use(index.name, index.num_bytes, file.size)
        return file

    def _close_others(self) -> None:
        """Close the least recently used files until few are open."""
        if len(self._files) <= MOST_OPEN:
            return
        with self._lock.inner:
            unused = (number for number, opened in self._files.items() if not opened.num_users)
            closed = {number: self._files.pop(number) for number in [*islice(unused, len(self._files) - MOST_OPEN)]}
        self._close_all(closed)

    def _close_all(self, files: Mapping[int, _OpenFile]) -> None:
        for number, opened in files.items():
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


class _OpenFile:
    """A file that is open or being opened, and the number of threads that use it."""

    __slots__ = ("file", "lock", "num_users")

    def __init__(self, file: Any = None) -> None:
        self.file = file
        self.lock = ForkLock()
        self.num_users = 0

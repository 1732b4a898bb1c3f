"""Files of tables: their rows in any order from any thread, and one after the other.

::

    Parquet       row groups    footer, then the needed columns of a row group    ┐
    Arrow file    batch         footer, then a batch                              ├ read by any thread
    Arrow stream  batch         one pass finds the places of the batches          ┘

Each thread reads with a reader of its own, without threads of pyarrow, so that a process may fork. The exception is the
footer of an Arrow file, which pyarrow reads in a thread of its own, whatever the options; in Python 3.11, a fork at
just that moment may hang. A damaged file raises a `FormatError` that names the file and its batch or row group,
whatever pyarrow raises.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from pyarrow import ipc, parquet

from cntkio.arrow.kept import KeptIndex, TableIndex
from cntkio.arrow.types import in_plain_types, plain_schema
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats.contract import OpenedFile
from cntkio.formats.detect import KINDS, other_in
from cntkio.formats.report import EMPTY_FILE
from cntkio.storage.compressed import StoredReader
from cntkio.storage.index_cache import CacheWriter, IndexCache
from cntkio.storage.names import is_remote
from cntkio.storage.open_input import open_stored
from cntkio.storage.remote import Remote
from cntkio.storage.text_input import TextInput, file_fingerprint

ROWS_AT_ONCE = 4096
"""Rows of a piece of a Parquet file that is read in order, and most rows of a chunk of a table in memory."""
# Consecutive row groups of one row are one batch, up to these numbers: each costs as much to read as many rows.
_MOST_SINGLE_ROWS, _MOST_BYTES_OF_SINGLE_ROWS = 64, 1 << 20
# Only to decompress; pyarrow's default is True.
_NO_THREADS = ipc.IpcReadOptions(use_threads=False)
# pyarrow answers damaged bytes with any of these.
_DAMAGE = (
    pa.ArrowException, UnicodeDecodeError, OverflowError, EOFError, StopIteration, OSError, ValueError, TypeError,
    KeyError,
)  # fmt: skip
_Reader = TypeVar("_Reader")


class Access(NamedTuple):
    """Options of opening a file; see `cntkio.arrow.ArrowDeserializer`.

    Attributes:
        settings: The settings on which the index depends, if it has a cache; JSON-able.
        verifies_cache: As for `IndexCache`.
        facts: Facts about an object of a store that another opening has just asked for.
    """

    remote: Remote | None = None
    memory_map: bool = False
    decryption_properties: Any = None
    settings: dict[str, Any] | None = None
    verifies_cache: bool = False
    facts: object = None


OPENED_AS_IT_IS = Access()


@contextlib.contextmanager
def reading(path: str, where: str) -> Iterator[None]:
    """Turn an error of pyarrow in the block into an error that says what is wrong with the file."""
    try:
        yield
    except _DAMAGE as error:
        # An OSError of the system has a number; pyarrow raises one without a number for damaged bytes.
        if isinstance(error, FormatError | CorpusError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        if isinstance(error, ConfigError):
            raise ConfigError(f"{path}: {error}", key=error.key) from None
        said = (str(error) or repr(error)).splitlines()[0]
        what = f"{where} is damaged: {said}"
        if isinstance(error, pa.ArrowNotImplementedError):
            what = f"{where}: pyarrow does not read this: {said}"
        elif "crypt" in said:
            what = f"{where} is encrypted: give the keys, decryption_properties=... ({said})"
        raise FormatError(what, path=path) from None


class Table(OpenedFile):
    """Rows in batches, of plain types (`cntkio.arrow.types`). Any thread reads any batch.

    Attributes:
        path: Name in messages: the file, or the type of the object.
        schema: The columns.
        is_file: Whether it is a file, whose bytes have a checksum.
        is_mapped: Whether batches share the bytes of a file, which other processes may change.
        num_pieces: Number of the pieces of `in_order`; 0: unknown.
        is_empty: Whether it is known to have no rows.
        kept: Its index from a cache; None: it has none.
    """

    path: str
    schema: pa.Schema
    kept: KeptIndex | None = None
    is_file = is_mapped = is_empty = False
    num_pieces = 0

    @property
    def num_batches(self) -> int:
        """Number of batches."""
        raise NotImplementedError

    def num_rows(self, index: int) -> int:
        """Return the number of rows of a batch."""
        raise NotImplementedError

    def read(self, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        """Read columns of a batch, and check them."""
        raise NotImplementedError

    def runs(self) -> Iterator[range]:
        """Yield runs of consecutive batches: small batches are read together."""
        return (range(index, index + 1) for index in range(self.num_batches))

    def read_run(self, run: range, columns: Sequence[str]) -> pa.RecordBatch:
        """Read columns of consecutive batches as one."""
        return self.read(run[0], columns)

    def in_order(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield columns of all rows, in pieces that are checked."""
        return (self.read(index, columns) for index in range(self.num_batches))

    def keep(self, index: TableIndex, classes: dict[str, list[str]]) -> tuple[CacheWriter, ...]:
        """Write the index, and the classes of columns of categories, to the index cache, if there is one."""
        return ()

    def error(self, what: str) -> CorpusError | FormatError:
        """Return the error about a row."""
        return CorpusError(f"{self.path}, {what}")

    def fingerprint(self, num_sequences: int, content: str) -> str:
        """Return the fingerprint of the corpus; `content` is a checksum of some of its rows."""
        return f"{num_sequences}:{content}"


class TableFile(Table):
    """A file that is open.

    Args:
        stored: Its bytes.
        access: How it is opened.
        kept: Its index from a cache, with which nothing is read before a batch is; None: there is none.

    Attributes:
        head: Its first bytes, which show its kind.
        cache: Its index cache; None: it has none.
    """

    head = b""
    cache: IndexCache | None = None

    def __init__(self, stored: TextInput, access: Access, kept: KeptIndex | None = None) -> None:
        super().__init__(stored)
        self.stored, self.path, self.access, self.kept = stored, stored.path, access, kept
        self.is_file, self.is_mapped = True, access.memory_map
        # Mapped once, so that no reader sees a file that got the name later.
        self._map = pa.memory_map(self.path).read_buffer() if self.is_mapped else None
        # Readers that no thread uses. Making one reads the footer, which grows with the number of batches.
        self._idle: dict[Hashable, list[Any]] = {}

    def close(self) -> None:
        self._idle.clear()
        super().close()

    def places_of_batches(self) -> list[int]:
        """Return where each batch begins, as the format counts, and where the last one ends."""
        raise NotImplementedError

    def sizes_of_batches(self) -> list[int]:
        """Return the rows of each batch, if the file lists them."""
        return []

    def source(self) -> pa.NativeFile:
        """Return the bytes for pyarrow. Each source has a position of its own."""
        return pa.PythonFile(StoredReader(self.stored), "r") if self._map is None else pa.BufferReader(self._map)

    @contextlib.contextmanager
    def reader(self, key: Hashable, make: Callable[[], _Reader]) -> Iterator[_Reader]:
        """Lend a reader of a kind to this thread; make one if all are in use."""
        idle = self._idle.setdefault(key, [])
        try:
            found: _Reader = idle.pop()
        except IndexError:
            found = make()
        yield found
        # After an error, the reader is not used again.
        idle.append(found)

    def num_rows(self, index: int) -> int:
        # Arrow files do not list the rows of batches, so a column is read.
        return int(self._batch(index, self.schema.names[:1]).num_rows)

    def read(self, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        with self._unchanged():
            batch = self._batch(index, columns)
        return self._plain(batch)

    def _plain(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch in plain types; refuse columns that an index cache does not promise."""
        plain = in_plain_types(batch)
        if self.kept is not None and any(field.type != self._type_of(field.name) for field in plain.schema):
            raise self.kept.error(self.path)
        return plain

    def _type_of(self, column: str) -> pa.DataType | None:
        index = self.schema.get_field_index(column)
        return None if index < 0 else self.schema.field(index).type

    @contextlib.contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Require after the block, which reads, that the file is still the same."""
        try:
            yield
        except FormatError:
            self.storage.require_unchanged()  # a change explains more than damage
            raise
        self.storage.require_unchanged()

    def keep(self, index: TableIndex, classes: dict[str, list[str]]) -> tuple[CacheWriter, ...]:
        cache = self.cache
        if cache is None:
            return ()
        places, sizes = self.places_of_batches(), self.sizes_of_batches()
        kept = KeptIndex((), self.head, self.schema, places, sizes, classes, index)
        return (CacheWriter(lambda: cache.write(*kept.stored())),)

    def error(self, what: str) -> FormatError:
        return FormatError(what, path=self.path)

    def fingerprint(self, num_sequences: int, content: str) -> str:
        return file_fingerprint(self.stored, num_sequences)

    def _batch(self, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        raise NotImplementedError

    def _validated(self, batches: Iterator[pa.RecordBatch], where: str | None = None) -> Iterator[pa.RecordBatch]:
        """Read and check batches one by one. `where` is what contains them; None: each batch stands alone."""
        for index in itertools.count():
            with self._unchanged(), reading(self.path, where or f"batch {index}"):
                batch = next(batches, None)
                if batch is None:
                    return
                # Arrow trusts the offsets in a batch, so later code would read outside of the buffers of a damaged one.
                batch.validate(full=True)
            yield self._plain(batch)


class _Parquet(TableFile):
    """Row groups of a Parquet file. A batch is a row group, or several of one row."""

    num_batches = 0

    def __init__(self, stored: TextInput, access: Access, kept: KeptIndex | None = None) -> None:
        super().__init__(stored, access, kept)
        self._metadata: parquet.FileMetaData = None
        if kept is None:
            self._read_footer()
        else:
            self.schema, self._sizes = kept.schema, kept.sizes_of_batches
            self._groups = list(itertools.starmap(range, itertools.pairwise(kept.places_of_batches)))
        self.num_batches = len(self._groups)
        self.num_pieces = -(-sum(self._sizes) // ROWS_AT_ONCE)
        self.is_empty = self.num_pieces == 0

    def _read_footer(self) -> None:
        with reading(self.path, "footer"), self.reader(None, self._opened) as opened:
            groups = [opened.metadata.row_group(index) for index in range(opened.num_row_groups)]
            self._groups = _batches_of_groups([(int(one.num_rows), int(one.total_byte_size)) for one in groups])
            self._sizes = [sum(int(groups[index].num_rows) for index in batch) for batch in self._groups]
        with reading(self.path, "schema"):
            self.schema = plain_schema(opened.schema_arrow)

    def _opened(self) -> parquet.ParquetFile:
        # Buffering ahead would start threads of pyarrow.
        opened = parquet.ParquetFile(
            self.source(),
            metadata=self._metadata,
            pre_buffer=False,
            page_checksum_verification=True,
            decryption_properties=self.access.decryption_properties,
        )
        self._metadata = opened.metadata  # other readers need not read it again
        # Sorted, so that with the last place all are places of row groups.
        if self.kept is not None and opened.num_row_groups != self.kept.places_of_batches[-1]:
            raise self.kept.error(self.path)
        return opened

    def places_of_batches(self) -> list[int]:
        return [0, *(groups.stop for groups in self._groups)]

    def sizes_of_batches(self) -> list[int]:
        return self._sizes

    def num_rows(self, index: int) -> int:
        return self._sizes[index]

    def _batch(self, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        return self._read(range(index, index + 1), columns)

    def runs(self) -> Iterator[range]:
        first = count = 0
        for index, num_rows in enumerate(self._sizes):
            if index > first and count + num_rows > ROWS_AT_ONCE:
                yield range(first, index)
                first, count = index, 0
            count += num_rows
        if self.num_batches:
            yield range(first, self.num_batches)

    def read_run(self, run: range, columns: Sequence[str]) -> pa.RecordBatch:
        try:
            with self._unchanged():
                batch = self._read(run, columns)
        except FormatError:
            for index in run:  # the damaged row group raises the error that names it
                self.read(index, columns)
            raise
        return self._plain(batch)

    def _read(self, run: range, columns: Sequence[str]) -> pa.RecordBatch:
        groups = range(self._groups[run[0]].start, self._groups[run[-1]].stop)
        where = f"row group {groups[0]}"
        with reading(self.path, where):
            with self.reader(None, self._opened) as opened:
                table = opened.read_row_groups(groups, columns=list(columns), use_threads=False)
            # Then the table is one batch, unless its lists have more items than 32-bit offsets can count.
            table = table.combine_chunks()
            table.validate(full=True)
            batches = table.to_batches()
        self._require(run, table.num_rows)
        if len(batches) > 1:
            raise FormatError(f"{where} has lists of more than 2^31 items; write smaller row groups", path=self.path)
        return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)

    def in_order(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for index in range(self.num_batches):
            where = f"row group {self._groups[index][0]}"
            with reading(self.path, where):
                opened = self._opened()
                options = {"row_groups": list(self._groups[index]), "columns": list(columns), "use_threads": False}
                batches = opened.iter_batches(ROWS_AT_ONCE, **options)
            count = 0
            for batch in self._validated(batches, where):
                count += batch.num_rows
                yield batch
            with self._unchanged():
                self._require(range(index, index + 1), count)

    def _require(self, run: range, count: int) -> None:
        with reading(self.path, f"row group {self._groups[run[0]][0]}"):
            expected = sum(map(self.num_rows, run))
            if count != expected:
                raise ValueError(f"{count} rows, but the footer says {expected}")


def _batches_of_groups(sizes: Sequence[tuple[int, int]]) -> list[range]:
    """Return the row groups of each batch, from the rows and bytes of each row group.

    Example:
        >>> _batches_of_groups([(1, 10), (1, 10), (5, 50), (1, 10), (1, 2**20)])
        [range(0, 2), range(2, 3), range(3, 4), range(4, 5)]
    """
    batches: list[range] = []
    room = num_bytes = 0
    for index, (num_rows, size) in enumerate(sizes):
        if num_rows == 1 and room > 0 and num_bytes + size <= _MOST_BYTES_OF_SINGLE_ROWS:
            batches[-1] = range(batches[-1].start, index + 1)
            room, num_bytes = room - 1, num_bytes + size
        else:
            batches.append(range(index, index + 1))
            room, num_bytes = _MOST_SINGLE_ROWS - 1 if num_rows == 1 else 0, size
    return batches


class _ArrowFile(TableFile):
    """Batches of an Arrow file."""

    num_batches = 0

    def __init__(self, stored: TextInput, access: Access, kept: KeptIndex | None = None) -> None:
        super().__init__(stored, access, kept)
        if kept is None:
            with reading(self.path, "footer"):
                opened = self._opened(None)
                self.num_batches = int(opened.num_record_batches)
            with reading(self.path, "schema"):
                self.schema = plain_schema(opened.schema)
        else:
            self.schema, self.num_batches = kept.schema, kept.num_batches
        self.num_pieces, self.is_empty = self.num_batches, self.num_batches == 0

    def places_of_batches(self) -> list[int]:
        return list(range(self.num_batches + 1))

    def _opened(self, columns: Sequence[str] | None) -> ipc.RecordBatchFileReader:
        fields = None if columns is None else sorted(self.schema.get_field_index(name) for name in columns)
        return ipc.open_file(self.source(), options=ipc.IpcReadOptions(included_fields=fields, use_threads=False))

    def _batch(self, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        with (
            reading(self.path, f"batch {index}"),
            self.reader(tuple(columns), partial(self._opened, columns)) as opened,
        ):
            batch = opened.get_batch(index)
            batch.validate(full=True)
        return batch


class StreamFile(TableFile):
    """Batches of an Arrow stream, whose places a pass over the messages finds when they are read in any order."""

    def __init__(self, stored: TextInput, access: Access, kept: KeptIndex | None = None) -> None:
        super().__init__(stored, access, kept)
        self._places: list[int] | None = None
        if kept is not None:
            self.schema, self._places = kept.schema, kept.places_of_batches
            return
        with reading(self.path, "schema"):
            first = ipc.MessageReader.open_stream(self.source()).read_next_message()
            if first.type != "schema":  # pyarrow takes the bytes of any message for a schema
                what = f"it begins with a message of the type {first.type}; expected a schema"
                raise FormatError(what, path=self.path)
            self.schema = plain_schema(ipc.read_schema(first))

    @property
    def num_batches(self) -> int:
        # Found on first use, since a pass in order needs no places.
        return len(self.places_of_batches()) - 1

    def places_of_batches(self) -> list[int]:
        # Not a `cached_property`, whose lock in Python 3.11 would stay taken in a fork during the pass.
        if self._places is None:
            source, places = self.source(), list[int]()
            with reading(self.path, "batch 0"):
                messages = ipc.MessageReader.open_stream(source)
                messages.read_next_message()
                places.append(source.tell())
                # It raises StopIteration at the end, and never returns None.
                for message in iter(messages.read_next_message, None):
                    if message.type != "record batch":
                        what = "a stream with dictionaries cannot be read in any order; write a Parquet file"
                        raise FormatError(what, path=self.path)
                    places.append(source.tell())
            self._places = places
        return self._places

    def _batch(self, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        with reading(self.path, f"batch {index}"):
            source = self.source()
            # This reads the schema, and the reader continues where the source then is. `ipc.read_record_batch` would
            # need no reader, but decompresses with threads.
            opened = ipc.open_stream(source, options=_NO_THREADS)
            source.seek(self.places_of_batches()[index])
            batch = opened.read_next_batch().select(list(columns))
            batch.validate(full=True)
        return batch

    def in_order(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with reading(self.path, "schema"):
            opened = ipc.open_stream(self.source(), options=_NO_THREADS)
        return (batch.select(list(columns)) for batch in self._validated(opened))


_HEAD = 8
_TABLES: dict[str, type[TableFile]] = {"parquet": _Parquet, "arrow": _ArrowFile, "arrow stream": StreamFile}


def open_table(path: str, access: Access = OPENED_AS_IT_IS) -> TableFile:
    """Open a file, or a URL, which is never mapped. Refuse a file that is neither Parquet nor Arrow."""
    stored = open_stored(path, access.remote, access.facts)
    try:
        # Before anything is read, so that an index in a cache saves all requests except for the facts.
        cache = None if access.settings is None else IndexCache(stored, access.settings, verify=access.verifies_cache)
        kept = None if cache is None else cache.read(KeptIndex.of)
        head = stored.read(0, _HEAD) if kept is None else kept.head
        for form, kind in _TABLES.items():
            if head.startswith(KINDS[form].magic):
                is_local = not is_remote(path, access.remote)
                table = kind(stored, access._replace(memory_map=access.memory_map and is_local), kept)
                table.head, table.cache = head, cache
                if table.is_empty:  # it may have any columns, also of unknown types
                    raise FormatError("no row to read", path=stored.path, kind=EMPTY_FILE)
                return table
        if not head:
            raise FormatError("the file is empty", path=stored.path, byte=0, kind=EMPTY_FILE)
        what = "this is neither a Parquet nor an Arrow file" + other_in("parquet", stored)
        raise FormatError(what, path=stored.path, byte=0)
    except BaseException:
        stored.close()
        raise

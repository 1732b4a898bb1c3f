"""Files of tables: their rows in any order from any thread, and one after the other.

::

    Parquet       row group     footer, then the needed columns of a row group    ┐
    Arrow file    batch         footer, then a batch                              ├ read by any thread
    Arrow stream  batch         one pass finds the places of the batches          ┘

Each read makes a reader of its own, without threads of pyarrow, so that a process may fork. The exception is the footer
of an Arrow file, which pyarrow reads in a thread of its own, whatever the options; in Python 3.11, a fork at just that
moment may hang. A damaged file raises a `FormatError` that names the file and its batch or row group, whatever pyarrow
raises.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyarrow import ipc, parquet

from cntkio.errors import FormatError
from cntkio.formats.contract import OpenedFile
from cntkio.formats.detect import other_in
from cntkio.storage.names import is_remote
from cntkio.storage.open_input import open_stored
from cntkio.storage.remote import Remote
from cntkio.storage.text_input import TextInput

ROWS_AT_ONCE = 4096
"""Rows of a piece of a Parquet file that is read in order."""
# Only to decompress; pyarrow's default is True.
_NO_THREADS = ipc.IpcReadOptions(use_threads=False)
# pyarrow answers damaged bytes with any of these.
_DAMAGE = (
    pa.ArrowException, UnicodeDecodeError, OverflowError, EOFError, StopIteration, OSError, ValueError, TypeError,
    KeyError,
)  # fmt: skip


class StoredReader(io.RawIOBase):
    """A stored file for pyarrow. Each reader has a position of its own."""

    def __init__(self, stored: TextInput) -> None:
        self._stored, self._at = stored, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._stored.size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        data = self._stored.read(self._at, self._stored.size - self._at if size < 0 else size)
        self._at += len(data)
        return data


def validated(path: str, batches: Iterator[pa.RecordBatch], where: str | None = None) -> Iterator[pa.RecordBatch]:
    """Read and check batches one by one. `where` is what contains them; None: each batch stands alone in the file."""
    for index in itertools.count():
        with reading(path, where or f"batch {index}"):
            batch = next(batches, None)
            if batch is None:
                return
            # Arrow trusts the offsets in a batch, so later code would read outside of the buffers of a damaged one.
            batch.validate(full=True)
        yield batch


@contextlib.contextmanager
def reading(path: str, where: str) -> Iterator[None]:
    """Turn an error of pyarrow in the block into an error that says where the file is damaged."""
    try:
        yield
    except _DAMAGE as error:
        # An OSError of the system has a number; pyarrow raises one without a number for damaged bytes.
        if isinstance(error, FormatError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        raise FormatError(f"{where} is damaged: {(str(error) or repr(error)).splitlines()[0]}", path=path) from None


def checked_schema(schema: pa.Schema) -> pa.Schema:
    """Read all names of a schema once; names that are not UTF-8 fail."""
    fields = list(schema)
    while fields:
        field = fields.pop()
        str(field.name)
        if pa.types.is_nested(field.type):
            fields.extend(field.type.field(index) for index in range(field.type.num_fields))
    return schema


class TableFile(OpenedFile):
    """A file that is open.

    Args:
        stored: Its bytes.
        is_mapped: Map the file, which is local, so that of a large batch only the parts in use are in memory. If
            another process truncates the file at that time, the operating system kills this process (SIGBUS).

    Attributes:
        path: Its name in messages.
        num_pieces: Number of the pieces of `in_order`; 0: unknown.
    """

    schema: pa.Schema
    num_pieces = 0

    def __init__(self, stored: TextInput, is_mapped: bool) -> None:
        super().__init__(stored)
        self.stored, self.path, self._is_mapped = stored, stored.path, is_mapped

    @property
    def num_batches(self) -> int:
        """Number of batches."""
        raise NotImplementedError

    def source(self) -> pa.NativeFile:
        """Return the bytes for pyarrow. Each source has a position of its own."""
        return pa.memory_map(self.path) if self._is_mapped else pa.PythonFile(StoredReader(self.stored), "r")

    def num_rows(self, index: int) -> int:
        """Return the number of rows of a batch."""
        # Arrow files do not list the rows of batches, so a column is read.
        return int(self._batch(index, self.schema.names[:1]).num_rows)

    def read(self, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        """Read columns of a batch, and check them, and that the file is still the same."""
        batch = self._batch(index, columns)
        # After the read, so that a change during the read is found, too.
        self.stored.require_unchanged()
        return batch

    def _batch(self, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        raise NotImplementedError

    def in_order(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows, in pieces that are checked."""
        raise NotImplementedError


class _Parquet(TableFile):
    """Row groups of a Parquet file."""

    num_batches = 0

    def __init__(self, stored: TextInput, is_mapped: bool) -> None:
        super().__init__(stored, is_mapped)
        with reading(self.path, "footer"):
            # Buffering ahead would start threads of pyarrow.
            opened = parquet.ParquetFile(self.source(), pre_buffer=False)
        self._metadata, self.num_batches = opened.metadata, int(opened.num_row_groups)
        self.num_pieces = -(-int(opened.metadata.num_rows) // ROWS_AT_ONCE)
        with reading(self.path, "schema"):
            self.schema = checked_schema(opened.schema_arrow)

    def num_rows(self, index: int) -> int:
        return int(self._metadata.row_group(index).num_rows)

    def _batch(self, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        where = f"row group {index}"
        with reading(self.path, where):
            table = self._opened().read_row_group(index, columns=list(columns), use_threads=False)
            # Then the table is one batch, unless its lists have more items than 32-bit offsets can count.
            table = table.combine_chunks()
            table.validate(full=True)
            batches = table.to_batches()
        self._require(index, table.num_rows)
        if len(batches) > 1:
            raise FormatError(f"{where} has lists of more than 2^31 items; write smaller row groups", path=self.path)
        return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)

    def in_order(self) -> Iterator[pa.RecordBatch]:
        for index in range(self.num_batches):
            where = f"row group {index}"
            with reading(self.path, where):
                batches = self._opened().iter_batches(ROWS_AT_ONCE, row_groups=[index], use_threads=False)
            count = 0
            for batch in validated(self.path, batches, where):
                count += batch.num_rows
                yield batch
            self._require(index, count)

    def _opened(self) -> parquet.ParquetFile:
        options = {"metadata": self._metadata, "pre_buffer": False, "page_checksum_verification": True}
        return parquet.ParquetFile(self.source(), **options)

    def _require(self, index: int, count: int) -> None:
        with reading(self.path, f"row group {index}"):
            expected = self.num_rows(index)
            if count != expected:
                raise ValueError(f"{count} rows, but the footer says {expected}")


class _ArrowFile(TableFile):
    """Batches of an Arrow file."""

    num_batches = 0

    def __init__(self, stored: TextInput, is_mapped: bool) -> None:
        super().__init__(stored, is_mapped)
        opened = self._opened()
        with reading(self.path, "footer"):
            self.num_batches = self.num_pieces = int(opened.num_record_batches)
        with reading(self.path, "schema"):
            self.schema = checked_schema(opened.schema)

    def _opened(self) -> ipc.RecordBatchFileReader:
        with reading(self.path, "footer"):
            return ipc.open_file(self.source(), options=_NO_THREADS)

    def _batch(self, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        with reading(self.path, f"batch {index}"):
            fields = sorted(self.schema.get_field_index(name) for name in columns)
            options = ipc.IpcReadOptions(included_fields=fields, use_threads=False)
            batch = ipc.open_file(self.source(), options=options).get_batch(index)
            batch.validate(full=True)
        return batch

    def in_order(self) -> Iterator[pa.RecordBatch]:
        return validated(self.path, map(self._opened().get_batch, range(self.num_batches)))


class StreamFile(TableFile):
    """Batches of an Arrow stream, whose places a pass over the messages finds when they are read in any order."""

    def __init__(self, stored: TextInput, is_mapped: bool) -> None:
        super().__init__(stored, is_mapped)
        self._places: list[int] | None = None
        with reading(self.path, "schema"):
            first = ipc.MessageReader.open_stream(self.source()).read_next_message()
            if first.type != "schema":  # pyarrow takes the bytes of any message for a schema
                what = f"it begins with a message of the type {first.type}; expected a schema"
                raise FormatError(what, path=self.path)
            self.schema = checked_schema(ipc.read_schema(first))

    @property
    def num_batches(self) -> int:
        # Found on first use, since a pass in order needs no places.
        return len(self._found_places())

    def _found_places(self) -> list[int]:
        # Not a `cached_property`, whose lock in Python 3.11 would stay taken in a fork during the pass.
        if self._places is None:
            source, places = self.source(), list[int]()
            with reading(self.path, "batch 0"):
                messages = ipc.MessageReader.open_stream(source)
                messages.read_next_message()
                place = source.tell()
                # It raises StopIteration at the end, and never returns None.
                for message in iter(messages.read_next_message, None):
                    if message.type != "record batch":
                        what = "a stream with dictionaries cannot be read in any order; write a Parquet file"
                        raise FormatError(what, path=self.path)
                    places.append(place)
                    place = source.tell()
            self._places = places
        return self._places

    def _batch(self, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        with reading(self.path, f"batch {index}"):
            source = self.source()
            # This reads the schema, and the reader continues where the source then is. `ipc.read_record_batch` would
            # need no reader, but decompresses with threads.
            opened = ipc.open_stream(source, options=_NO_THREADS)
            source.seek(self._found_places()[index])
            batch = opened.read_next_batch().select(list(columns))
            batch.validate(full=True)
        return batch

    def in_order(self) -> Iterator[pa.RecordBatch]:
        with reading(self.path, "schema"):
            opened = ipc.open_stream(self.source(), options=_NO_THREADS)
        return validated(self.path, opened)


_HEAD = 8
_KINDS: dict[bytes, type[TableFile]] = {
    b"PAR1": _Parquet,
    b"ARROW1": _ArrowFile,
    # A stream has no magic number; this marker is the beginning of every message.
    b"\xff\xff\xff\xff": StreamFile,
}


def open_table(path: str, remote: Remote | None = None, *, is_mapped: bool = False) -> TableFile:
    """Open a file, or a URL; `is_mapped` has no effect on a URL. Refuse a file that is neither Parquet nor Arrow."""
    stored = open_stored(path, remote)
    try:
        head = stored.read(0, _HEAD)
        for magic, kind in _KINDS.items():
            if head.startswith(magic):
                return kind(stored, is_mapped and not is_remote(path, remote))
        what = "this is neither a Parquet nor an Arrow file" + other_in("parquet", stored)
        raise FormatError(what, path=stored.path, byte=0)
    except BaseException:
        stored.close()
        raise

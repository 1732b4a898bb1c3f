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
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import ipc, parquet

from cntkio.errors import FormatError
from cntkio.formats.detect import other_in
from cntkio.formats.names import is_remote
from cntkio.formats.open_input import open_stored
from cntkio.formats.remote import Remote
from cntkio.formats.text_input import TextInput

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
        super().__init__()
        self._stored, self._at = stored, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

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


class Rows(Protocol):
    """The rows of a file, in batches.

    Attributes:
        num_pieces: Number of the pieces of `in_order`; 0: unknown.
    """

    schema: pa.Schema

    @property
    def num_batches(self) -> int: ...
    @property
    def num_pieces(self) -> int: ...

    def num_rows(self, file: TableFile, index: int) -> int:
        """Return the number of rows of a batch."""

    def read(self, file: TableFile, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        """Read columns of a batch, and check them."""

    def in_order(self, file: TableFile) -> Iterator[pa.RecordBatch]:
        """Yield all rows, in pieces that are checked."""


class _Parquet:
    """Row groups of a Parquet file."""

    def __init__(self, file: TableFile) -> None:
        with reading(file.path, "footer"):
            # Buffering ahead would start threads of pyarrow.
            opened = parquet.ParquetFile(file.source(), pre_buffer=False)
        self._metadata, self.num_batches = opened.metadata, int(opened.num_row_groups)
        self.num_pieces = -(-int(opened.metadata.num_rows) // ROWS_AT_ONCE)
        with reading(file.path, "schema"):
            self.schema = checked_schema(opened.schema_arrow)

    def num_rows(self, file: TableFile, index: int) -> int:
        return int(self._metadata.row_group(index).num_rows)

    def read(self, file: TableFile, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        where = f"row group {index}"
        with reading(file.path, where):
            table = self._opened(file).read_row_group(index, columns=list(columns), use_threads=False)
            # Then the table is one batch, unless its lists have more items than 32-bit offsets can count.
            table = table.combine_chunks()
            table.validate(full=True)
            batches = table.to_batches()
        self._require(file, index, table.num_rows)
        if len(batches) > 1:
            raise FormatError(f"{where} has lists of more than 2^31 items; write smaller row groups", path=file.path)
        return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)

    def in_order(self, file: TableFile) -> Iterator[pa.RecordBatch]:
        for index in range(self.num_batches):
            where = f"row group {index}"
            with reading(file.path, where):
                batches = self._opened(file).iter_batches(ROWS_AT_ONCE, row_groups=[index], use_threads=False)
            count = 0
            for batch in validated(file.path, batches, where):
                count += batch.num_rows
                yield batch
            self._require(file, index, count)

    def _opened(self, file: TableFile) -> parquet.ParquetFile:
        return parquet.ParquetFile(
            file.source(), metadata=self._metadata, pre_buffer=False, page_checksum_verification=True
        )

    def _require(self, file: TableFile, index: int, count: int) -> None:
        with reading(file.path, f"row group {index}"):
            expected = self.num_rows(file, index)
        if count != expected:
            what = f"row group {index} is damaged: {count} rows, but the footer says {expected}"
            raise FormatError(what, path=file.path)


class _ArrowFile:
    """Batches of an Arrow file."""

    def __init__(self, file: TableFile) -> None:
        with reading(file.path, "footer"):
            opened = ipc.open_file(file.source(), options=_NO_THREADS)
            self.num_batches = self.num_pieces = int(opened.num_record_batches)
        with reading(file.path, "schema"):
            self.schema = checked_schema(opened.schema)

    def num_rows(self, file: TableFile, index: int) -> int:
        # The footer does not list the rows of batches, so a column is read.
        return int(self.read(file, index, self.schema.names[:1]).num_rows)

    def read(self, file: TableFile, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        def batches() -> Iterator[pa.RecordBatch]:
            fields = sorted(self.schema.get_field_index(name) for name in columns)
            options = ipc.IpcReadOptions(included_fields=fields, use_threads=False)
            yield ipc.open_file(file.source(), options=options).get_batch(index)

        return next(validated(file.path, batches(), f"batch {index}"))

    def in_order(self, file: TableFile) -> Iterator[pa.RecordBatch]:
        with reading(file.path, "footer"):
            opened = ipc.open_file(file.source(), options=_NO_THREADS)
        return validated(file.path, map(opened.get_batch, range(self.num_batches)))


class _ArrowStream:
    """Batches of an Arrow stream, whose places a pass over the messages finds when they are read in any order."""

    num_pieces = 0

    def __init__(self, file: TableFile) -> None:
        self._path, self._source = file.path, file.source
        self._found: list[int] | None = None
        with reading(file.path, "schema"):
            first = ipc.MessageReader.open_stream(_native(file.source())).read_next_message()
            if first.type != "schema":  # pyarrow takes the bytes of any message for a schema
                what = f"it begins with a message of the type {first.type}; expected a schema"
                raise FormatError(what, path=file.path)
            self.schema = checked_schema(ipc.read_schema(first))

    @property
    def num_batches(self) -> int:
        # Found on first use, since a pass in order needs no places.
        return len(self._places())

    def _places(self) -> list[int]:
        # Not a `cached_property`, whose lock in Python 3.11 would stay taken in a fork during the pass.
        if self._found is None:
            self._found = self._all_places()
        return self._found

    def _all_places(self) -> list[int]:
        source, places = self._source(), list[int]()
        with reading(self._path, "batch 0"):
            messages = ipc.MessageReader.open_stream(_native(source))
            messages.read_next_message()
            while True:
                place = source.tell()
                try:
                    message = messages.read_next_message()
                except StopIteration:
                    return places
                if message.type != "record batch":
                    raise FormatError(
                        "a stream with dictionaries cannot be read in any order; write a Parquet file", path=self._path
                    )
                places.append(place)

    def num_rows(self, file: TableFile, index: int) -> int:
        # A stream has no list of its batches, so a column is read.
        return int(self.read(file, index, self.schema.names[:1]).num_rows)

    def read(self, file: TableFile, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        def batches() -> Iterator[pa.RecordBatch]:
            source = file.source()
            # This reads the schema, and the reader continues where the source then is. `ipc.read_record_batch` would
            # need no reader, but decompresses with threads.
            opened = ipc.open_stream(_native(source), options=_NO_THREADS)
            source.seek(self._places()[index])
            yield opened.read_next_batch().select(list(columns))

        return next(validated(file.path, batches(), f"batch {index}"))

    def in_order(self, file: TableFile) -> Iterator[pa.RecordBatch]:
        with reading(file.path, "schema"):
            opened = ipc.open_stream(file.source(), options=_NO_THREADS)
        return validated(file.path, opened)


def _native(source: StoredReader | pa.NativeFile) -> pa.NativeFile:
    return pa.PythonFile(source, "r") if isinstance(source, StoredReader) else source


_HEAD = 8
_KINDS: dict[bytes, type[_Parquet | _ArrowFile | _ArrowStream]] = {
    b"PAR1": _Parquet,
    b"ARROW1": _ArrowFile,
    # A stream has no magic number; this marker is the beginning of every message.
    b"\xff\xff\xff\xff": _ArrowStream,
}


class TableFile:
    """A file that is open; an `OpenedFile`.

    Args:
        path: The file, or a URL.
        is_mapped: Map a local file, so that of a large batch only the parts in use are in memory. If another process
            truncates the file meanwhile, the operating system kills this process (SIGBUS).

    Attributes:
        path: Its name in messages.

    Raises:
        FormatError: The file is neither Parquet nor Arrow, or is damaged.
        OSError: The file cannot be read.
    """

    def __init__(self, path: str, remote: Remote | None = None, *, is_mapped: bool = False) -> None:
        self.stored = open_stored(path, remote)
        self.path, self.size, self.close = self.stored.path, self.stored.size, self.stored.close
        self.stamp, self.companions = self.stored.storage.stamp, self.stored.storage.companions
        self._is_mapped = is_mapped and not is_remote(path, remote)
        try:
            head = self.stored.read(0, _HEAD)
            kind = next((kind for magic, kind in _KINDS.items() if head.startswith(magic)), None)
            if kind is None:
                what = "this is neither a Parquet nor an Arrow file" + other_in("parquet", self.stored)
                raise FormatError(what, path=self.path, byte=0)
            self.rows: Rows = kind(self)
        except BaseException:
            self.close()
            raise

    def source(self) -> Any:
        """Return the bytes for pyarrow. Each source has a position of its own."""
        return pa.memory_map(self.path) if self._is_mapped else StoredReader(self.stored)

    def read(self, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        """Read columns of a batch, and check that the file is still the same."""
        batch = self.rows.read(self, index, columns)
        # After the read, so that a change during the read is found, too.
        self.stored.require_unchanged()
        return batch

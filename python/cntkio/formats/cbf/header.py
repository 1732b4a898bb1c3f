"""Reading and checking of headers of the binary format, in both layouts."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio.errors import FormatError
from cntkio.formats.detect import CBF_DOCUMENTED, CBF_MAGIC, cbf_version, other_than
from cntkio.formats.report import EMPTY_FILE
from cntkio.storage.text_input import TextInput
from cntkio.streams import LARGEST_DIM

LayoutName = Literal["2.x", "documented"]

VERSION = 1
FIRST_CHUNK = 12
"""Offset of the first chunk in the 2.x layout."""
# The start of the file, a header without streams and chunks, and the offset of the header: 12 + 16 + 8 bytes.
_SMALLEST_FILE = 36
# Bytes of the documented layout that are read first, because the header is a small part of a large file.
_FIRST_READ = 1 << 16

CHUNK_ROW = {
    layout: np.dtype([("offset", "<i8"), ("sequences", count), ("samples", count)])
    for layout, count in (("2.x", "<u4"), ("documented", "<i4"))
}
"""A row of the table of chunks."""
_FIELD_OFFSETS = {"offset": 0, "sequences": 8, "samples": 12}

_FORMS = {0: "dense", 1: "sparse"}
_ELEMENTS = {0: "float32", 1: "float64"}


class StreamHeader(NamedTuple):
    """A stream as the file describes it, and as the parser sees it.

    Attributes:
        dim: Values of a sample, or the bound of its indices.
        is_double: Whether its values are float64 in the file.
        offset: Offset of its description in the file.
        becomes_double: Whether its values are delivered as float64.
    """

    name: str
    is_sparse: bool
    dim: int
    is_double: bool
    offset: int
    becomes_double: bool = False


class CBFHeader(NamedTuple):
    """The content of a header. Chunks without a sequence are left out.

    Attributes:
        streams: The streams, in the order of the file.
        begins: First byte of each chunk.
        ends: The byte after each chunk.
        num_samples: Samples of each chunk; in the documented layout the table may count more than the chunk has.
    """

    layout: LayoutName
    streams: list[StreamHeader]
    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    num_sequences: npt.NDArray[np.int64]
    num_samples: npt.NDArray[np.int64]


class _Fields:
    """Reads a part of the file field by field, and checks each field against the end of the part."""

    def __init__(self, path: str, content: bytes, begin: int) -> None:
        self._path, self._content, self._begin = path, content, begin
        self._num_read, self._last = 0, begin

    @property
    def offset(self) -> int:
        return self._begin + self._num_read

    @property
    def num_left(self) -> int:
        return len(self._content) - self._num_read

    def error(self, what: str, distance: int = 0, kind: str | None = None) -> FormatError:
        """Return an error about the last field, or about a byte at a distance from its beginning."""
        return FormatError(what, path=self._path, byte=self._last + distance, kind=kind)

    def bytes(self, size: int, what: str) -> bytes:
        self._last = self.offset  # before the check, whose error is about this field
        if size > self.num_left:
            raise self.error(f"{what} takes {size} bytes, but {self.num_left} are left for the header")
        self._num_read += size
        return self._content[self._num_read - size : self._num_read]

    def number(self, form: str, what: str) -> int:
        return int(struct.unpack("<" + form, self.bytes(struct.calcsize(form), what))[0])

    def one_of(self, form: str, what: str, names: Mapping[int, str]) -> int:
        value = self.number(form, what)
        if value not in names:
            expected = " or ".join(f"{number} ({name})" if name else str(number) for number, name in names.items())
            raise self.error(f"{what} {value}; expected {expected}")
        return value

    def count(self, form: str, what: str, item_size: int) -> int:
        """Read the number of the items that follow: at least one, each of at least `item_size` bytes."""
        value = self.number(form, what)
        if value <= 0:
            raise self.error(f"{what} is {value}; expected at least 1")
        # Memory is never reserved for a count that the file cannot hold.
        size = value * item_size
        if size > self.num_left:
            raise self.error(f"{what} is {value}, at least {size} bytes, but {self.num_left} are left for the header")
        return value

    def name(self, form: str) -> str:
        size = self.number(form, "the length of a name")
        if not 0 <= size <= self.num_left:
            raise self.error(f"a name of {size} bytes, but {self.num_left} are left for the header")
        # CNTK, too, ends a name at its first zero byte.
        return self.bytes(size, "a name").split(b"\0", 1)[0].decode("utf-8", "backslashreplace")

    def dimension(self, form: str, what: str, stream: str, largest: int) -> int:
        dim = self.number(form, f"a {what}")
        if not 1 <= dim <= largest:
            raise self.error(f"{stream} has the {what} {dim}; expected 1 to {largest}")
        return dim


def read_header(file: TextInput) -> CBFHeader:
    """Read the header of a file; a `FormatError` says what is wrong with it, or that it is of another format."""
    head = file.read(0, FIRST_CHUNK)
    if head[:8] == CBF_MAGIC:
        return _read_2x_header(file, head)
    if head[:8] == CBF_DOCUMENTED:
        return _read_documented_header(file)
    version = cbf_version(file.read(0, _FIRST_READ))
    if version is not None:
        raise FormatError(f"version {version}; expected 1", path=file.path, byte=0)
    begin = f"begins with {repr(head[:8])[1:]}" if head else "is empty"
    expected = f"'{CBF_MAGIC.decode()}', or the number 1 in 8 bytes{other_than('cbf', file.path)}"
    what = f"this is not a file in the CNTK binary format: it {begin}; expected {expected}"
    raise FormatError(what, path=file.path, byte=0, kind=None if head else EMPTY_FILE)


def _read_2x_header(file: TextInput, head: bytes) -> CBFHeader:
    def error(what: str, offset: int) -> FormatError:
        return FormatError(what, path=file.path, byte=offset)

    if file.size < _SMALLEST_FILE:
        raise error(f"the file has {file.size} bytes; the smallest possible has {_SMALLEST_FILE}", file.size)
    version = int.from_bytes(head[8:], "little")
    if version != VERSION:
        raise error(f"version {version}; expected {VERSION}", 8)
    trailer = file.size - 8
    begin = int.from_bytes(file.read(trailer, 8), "little", signed=True)
    # The least header has 16 bytes, and 8 bytes follow it.
    last = file.size - 24
    if not FIRST_CHUNK <= begin <= last:
        what = f"the header is said to be at byte {begin}; expected {FIRST_CHUNK} to {last}"
        raise error(f"{what}. Was the file cut short, or were bytes appended?", trailer)
    fields = _Fields(file.path, file.read(begin, trailer - begin), begin)
    magic = fields.bytes(8, "the magic number")
    if magic != CBF_MAGIC:
        what = "the last 8 bytes of the file place the header here"
        raise error(f"{what}, but it begins with {magic!r}; expected {CBF_MAGIC!r}", begin)
    # The last arguments are the sizes of a row of the table, and of the description of a stream without a name.
    num_chunks = fields.count("I", "the number of chunks", 16)
    num_streams = fields.count("I", "the number of streams", 10)
    streams = []
    for _ in range(num_streams):
        offset = fields.offset
        is_sparse = fields.one_of("B", "encoding", _FORMS) == 1
        name = fields.name("I")
        is_double = fields.one_of("B", "element type", _ELEMENTS) == 1
        dim = fields.dimension("I", "dimension", f"stream {name!r}", LARGEST_DIM if is_sparse else 2**32 - 1)
        streams.append(StreamHeader(name, is_sparse, dim, is_double, offset))
    return _chunk_table(fields, "2.x", streams, num_chunks, FIRST_CHUNK, begin)


def _read_documented_header(file: TextInput) -> CBFHeader:
    size = min(file.size, _FIRST_READ)
    while True:
        fields = _Fields(file.path, file.read(8, size - 8), 8)
        try:
            # The file does not store the size of its header, so only an error in the whole file is final.
            return _documented_header(fields, file.size)
        except FormatError:
            if size == file.size:
                raise
            size = min(file.size, 16 * size)


def _documented_header(fields: _Fields, file_size: int) -> CBFHeader:
    num_chunks = fields.count("q", "the number of chunks", 16)
    num_streams = fields.count("i", "the number of inputs", 16)
    streams = []
    for _ in range(num_streams):
        offset = fields.offset
        name = fields.name("i")
        is_sparse = fields.one_of("i", "deserializer", _FORMS) == 1
        if is_sparse:
            fields.one_of("i", "storage type", {0: "compressed columns"})
        is_double = fields.one_of("i", "element type", _ELEMENTS) == 1
        if is_sparse:
            fields.one_of("i", "the flag isSequence is", {0: "", 1: ""})
        dim = fields.dimension("i", "sample size", f"input {name!r}", LARGEST_DIM)
        streams.append(StreamHeader(name, is_sparse, dim, is_double, offset))
    begin = fields.offset + 16 * num_chunks
    return _chunk_table(fields, "documented", streams, num_chunks, begin, file_size)


def _chunk_table(
    fields: _Fields, layout: LayoutName, streams: list[StreamHeader], num_chunks: int, first_byte: int, last_byte: int
) -> CBFHeader:
    """Read and check the table of chunks, which fill the bytes from `first_byte` to `last_byte` without gaps."""
    rows = np.frombuffer(fields.bytes(16 * num_chunks, f"the table of {num_chunks} chunks"), CHUNK_ROW[layout])
    offsets, sequences, samples = (rows[column].astype(np.int64) for column in _FIELD_OFFSETS)
    # In the documented layout, offsets count from the end of the table.
    origin = first_byte if layout == "documented" else 0
    first, last = first_byte - origin, last_byte - origin
    # A wrong offset may overflow here; the first of the checks refuses it.
    begins = offsets + origin
    ends = np.append(begins[1:], last_byte)
    is_before = np.append(False, offsets[1:] < offsets[:-1])
    # A sequence takes at least 4 bytes: its length, or one value.
    are_many = (ends - begins) // 4 < sequences
    checks = (
        ((offsets < first) | (offsets > last), "offset", "be at byte {offset}; expected {first} to {last}"),
        (is_before, "offset", "be at byte {offset}, before the chunk before it at {before}"),
        (sequences < 0, "sequences", "have {sequences} sequences; expected 0 or more"),
        ((sequences == 0) & (samples != 0), "sequences", "have no sequence, but {samples} samples"),
        ((sequences > 0) & (samples <= 0), "samples", "have {sequences} sequences, but {samples} samples"),
        (are_many, "sequences", "have {sequences} sequences, more than its bytes can hold"),
    )
    for is_bad, field, what in checks:
        if is_bad.any():
            chunk = int(np.argmax(is_bad))
            values = {column: rows[column][chunk] for column in _FIELD_OFFSETS}
            words = what.format(first=first, last=last, before=offsets[chunk - 1], **values)
            raise fields.error(f"chunk {chunk} is said to {words}", 16 * chunk + _FIELD_OFFSETS[field])
    # Chunks without sequences are removed last, because their offsets end the chunks before them.
    is_kept = sequences > 0
    if not is_kept.any():
        raise fields.error("no chunk has a sequence", kind=EMPTY_FILE)
    return CBFHeader(layout, streams, begins[is_kept], ends[is_kept], sequences[is_kept], samples[is_kept])


FAULTS = {
    "length list beyond the chunk":
        "the length list of {sequences} sequences takes {found} bytes, but {limit} are left of the chunk",
    "count beyond the chunk": "a count takes {found} bytes, but {limit} are left of the chunk",
    "dense samples beyond the chunk":
        "dense samples of {dim} values take {found} bytes, but {limit} are left of the chunk",
    "sparse samples beyond the chunk":
        "values, indices and counts take {found} bytes, but {limit} are left of the chunk",
    "negative count": "{found} values; expected 0 or more",
    "negative sample size": "a sample of {found} values; expected 0 or more",
    "wrong sum of values": "the samples have {found} values together, but the sequence has {limit}",
    "index out of range": "index {found}, but the dimension is {limit}; expected 0 to {last}",
    "columns begin late": "the first column starts at value {found}; expected 0",
    "descending columns": "a column ends at value {found}, before it starts, at {limit}",
    "column beyond the values": "a column ends at value {found}, but the chunk has {limit}",
    "negative row": "row {found}; expected 0 or more",
    "descending samples": "a value of sample {found} after one of sample {limit}; expected ascending samples",
    "more samples than the table says":
        "at least {found} samples, but the table of chunks and the size of the file allow for {limit}",
    "several samples in a dense sequence":
        "{found} samples; the documented layout has room for exactly 1 in a dense sequence",
    "row too large":
        "row {found} (sample number times dimension plus index); the documented layout ends at {limit}",
    "too many values together": "{found} values together; the format has room for {limit}",
}  # fmt: skip
"""The names and the messages of faults in chunks, in the order of the core's `Kind`."""


def fault_text(fault: _core.CBFFault, dim: int = 0, num_sequences: int = 0) -> str:
    """Return the message; `dim` is the stream's dimension, `num_sequences` the chunk's number of sequences."""
    words = list(FAULTS.values())[fault.kind]
    return words.format(found=fault.found, limit=fault.limit, last=fault.limit - 1, dim=dim, sequences=num_sequences)

"""The CNTK binary format: description, both layouts' headers, loading, errors, writing. (docs/formats/cbf.md)

::

    2.x layout          magic, version | chunk | chunk | … | header: streams, chunk table | position of the header
    documented layout   header: streams, chunk table       | chunk | chunk | …

Headers are read and checked here, chunks by the compiled core, which finds what is wrong in them and where; the words
for it stand here. Its law: no count is believed before it was held against the bytes that are there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio._threads import num_threads
from cntkio.errors import ConfigError, CorpusError, FormatError, suggests_keywords
from cntkio.formats.cntk_options import BINARY, CntkOptions
from cntkio.formats.contract import NOTHING_AHEAD, Ahead, Deserializer, Joins, Loaded
from cntkio.formats.input_file import InputFile
from cntkio.formats.output_file import scratch_beside, written_whole
from cntkio.formats.report import Report
from cntkio.formats.table import SequenceTable, fingerprint
from cntkio.streams import StreamDefs, StreamInformation, checked_streams, named, num_values

logger = logging.getLogger("cntkio")

Layout = Literal["2.x", "documented"]

MAGIC = b"nib_ktnc"
DOCUMENTED = struct.pack("<q", 1)
_VERSION = 1
_FIRST_CHUNK = 12
_SMALLEST_FILE = 36
_LARGEST_DIM = 2**31 - 1
# Bytes of a chunk for one core at a time.
_PIECE = 1 << 20
# Memory of chunks that are gone is kept for others, up to so many chunks' bytes.
_SPARE_CHUNKS = 4
_MOST_SPARE = 256 << 20
# Nothing in a file accounts for the empty samples that the documented layout leaves out; more than this are refused.
_MOST_SAMPLES_PER_BYTE = 2

_CHUNK_ROW = {
    "2.x": np.dtype([("offset", "<i8"), ("sequences", "<u4"), ("samples", "<u4")]),
    "documented": np.dtype([("offset", "<i8"), ("sequences", "<i4"), ("samples", "<i4")]),
}


# ----------------------------------------------------------------------------------------------- description


@suggests_keywords
@dataclasses.dataclass(eq=False, repr=False)
class CBFDeserializer(CntkOptions):
    """A corpus in the CNTK binary format, in either of its two layouts.

    All streams of the file are delivered; `streams` renames them. Options of CNTK can be set by their own names, too:
    ``deserializer["precision"] = "float"`` refuses a file of another precision, as CNTK does.

    Args:
        filename: The file.
        streams: For each stream to be renamed its new name and, as its field, its name in the file. A shape must have
            as many values as the file says; it is then what samples are shaped to.
        dtype: float32 or float64, of the values that are delivered; None: each stream in its own precision.
        convert: Whether a stream of another precision than `dtype` is converted, or else refused.
        keep_data_in_memory: Keep every chunk that was read.
        strict: Take what is only warned of as an error.
        memory_map: Look at the file's bytes where the system has them. A file that another process makes shorter in
            just that moment ends this one; without, its bytes are copied first, which takes more time and memory.

    Raises:
        ConfigError: An option is not possible.

    Example:
        >>> from cntkio.streams import StreamDef
        >>> CBFDeserializer("train.cbf", StreamDefs(features=StreamDef(field="x", shape=(28, 28))))
        CBFDeserializer('train.cbf', StreamDefs(features=StreamDef(field='x', shape=(28, 28))))
    """

    filename: str
    streams: StreamDefs = dataclasses.field(default_factory=StreamDefs)
    _: dataclasses.KW_ONLY
    dtype: npt.DTypeLike | None = None
    convert: bool = True
    keep_data_in_memory: bool = False
    strict: bool = False
    memory_map: bool = True
    has_text_keys = False
    cntk_type = "CNTKBinaryFormatDeserializer"
    cntk_options = BINARY

    def __post_init__(self) -> None:
        """Check what can be checked without the file."""
        self.filename = os.fspath(self.filename)
        self.streams = checked_streams(self.streams)
        if self.dtype is not None:
            self.dtype = np.dtype(self.dtype)
            if self.dtype not in (np.float32, np.float64):
                raise ConfigError(f"dtype is {self.dtype}; expected float32, float64 or None", key="dtype")

    @property
    def label(self) -> str:
        return self.filename

    def parts(self) -> Sequence[Deserializer]:
        return (self,)

    def open(self, *, text_keys: bool = False, ahead: Ahead = NOTHING_AHEAD) -> CBFCorpus:
        """Open the file and read its header and the lengths of its sequences.

        Both arguments change nothing: keys are numbers, and there is no index to make.

        Raises:
            OSError: The file cannot be read.
            FormatError: The file breaks the format.
            ConfigError: A renaming or a precision does not fit the file.
        """
        return CBFCorpus(self)


# ---------------------------------------------------------------------------------------------------- header


class _Stream(NamedTuple):
    """A stream as the file describes it, and where it does so."""

    name: str
    is_sparse: bool
    dim: int
    is_double: bool
    at: int


class _Header(NamedTuple):
    layout: Layout
    streams: list[_Stream]
    # Of the chunks that have sequences: where they begin and end in the file, how many sequences and samples.
    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    num_sequences: npt.NDArray[np.int64]
    num_samples: npt.NDArray[np.int64]


class _Fields:
    """A part of the file that is read field by field, each checked against the end of the part."""

    def __init__(self, path: str, content: bytes, begin: int) -> None:
        self._path = path
        self._content = content
        self._begin = begin
        self._at = 0

    @property
    def at(self) -> int:
        """Position in the file of what comes next."""
        return self._begin + self._at

    @property
    def left(self) -> int:
        """Bytes that are left."""
        return len(self._content) - self._at

    def error(self, what: str, at: int | None = None) -> FormatError:
        return FormatError(what, path=self._path, byte=self.at if at is None else at)

    def take(self, size: int, what: str) -> bytes:
        if size > self.left:
            raise self.error(f"{what} takes {size} bytes, but {self.left} are left for the header")
        self._at += size
        return self._content[self._at - size : self._at]

    def number(self, form: str, what: str) -> int:
        value: int = struct.unpack("<" + form, self.take(struct.calcsize(form), what))[0]
        return value

    def one_of(self, form: str, what: str, names: Mapping[int, str]) -> int:
        at = self.at
        value = self.number(form, what)
        if value not in names:
            expected = " or ".join(f"{number} ({name})" if name else str(number) for number, name in names.items())
            raise self.error(f"{what} {value}; expected {expected}", at)
        return value

    def count(self, form: str, what: str, item_size: int) -> int:
        """How many items follow, each of at least so many bytes; at least 1."""
        at = self.at
        value = self.number(form, what)
        if value <= 0:
            raise self.error(f"{what} is {value}; expected at least 1", at)
        if value * item_size > self.left:
            raise self.error(
                f"{what} is {value}, at least {value * item_size} bytes, but {self.left} are left for the header",
                at,
            )
        return value

    def name(self, form: str) -> str:
        at = self.at
        size = self.number(form, "the length of a name")
        if not 0 <= size <= self.left:
            raise self.error(f"a name of {size} bytes, but {self.left} are left for the header", at)
        return self.take(size, "a name").split(b"\0", 1)[0].decode("utf-8", "backslashreplace")


_KINDS = {0: "dense", 1: "sparse"}
_ELEMENTS = {0: "float32", 1: "float64"}


def is_binary(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as one in the binary format does, in either layout.

    Raises:
        OSError: It cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.ctf")
        >>> _ = path.write_text("|x 1")
        >>> is_binary(path)
        False
    """
    with open(path, "rb") as file:
        return file.read(8) in (MAGIC, DOCUMENTED)


def _read_header(file: InputFile) -> _Header:
    head = file.read(0, _FIRST_CHUNK)
    if head[:8] == MAGIC:
        return _read_2x_header(file, head)
    if head[:8] == DOCUMENTED:
        return _read_documented_header(file)
    raise FormatError(
        f"this is not a file in the CNTK binary format: it begins with {_shown(head[:8])}; "
        f"expected {MAGIC!r}, or the number 1 in 8 bytes{_advice(head)}",
        path=file.path,
        byte=0,
    )


def _shown(head: bytes) -> str:
    return repr(head) if head else "nothing, it is empty"


def _advice(head: bytes) -> str:
    is_text = bool(head) and all(byte in b"\t\n\r" or 0x20 <= byte < 0x7F for byte in head)
    return ". Is it in the CNTK text format?" if is_text else ""


def _read_2x_header(file: InputFile, head: bytes) -> _Header:
    def error(what: str, at: int) -> FormatError:
        return FormatError(what, path=file.path, byte=at)

    if file.size < _SMALLEST_FILE:
        raise error(f"the file has {file.size} bytes; the smallest possible has {_SMALLEST_FILE}", file.size)
    (version,) = struct.unpack("<I", head[8:])
    if version != _VERSION:
        raise error(f"version {version}; expected {_VERSION}", 8)
    trailer = file.size - 8
    (begin,) = struct.unpack("<q", file.read(trailer, 8))
    if not _FIRST_CHUNK <= begin <= file.size - 24:
        raise error(
            f"the header is said to be at byte {begin}; expected {_FIRST_CHUNK} to {file.size - 24}. "
            "Was the file cut short, or were bytes appended?",
            trailer,
        )
    fields = _Fields(file.path, file.read(begin, trailer - begin), begin)
    magic = fields.take(8, "the magic number")
    if magic != MAGIC:
        raise error(f"no header here, where the last 8 bytes say: {magic!r}; expected {MAGIC!r}", begin)
    num_chunks = fields.count("I", "the number of chunks", 16)
    num_streams = fields.count("I", "the number of streams", 10)
    streams = []
    for _ in range(num_streams):
        at = fields.at
        is_sparse = fields.one_of("B", "encoding", _KINDS) == 1
        name = fields.name("I")
        is_double = fields.one_of("B", "element type", _ELEMENTS) == 1
        dim = _checked_dim(fields, is_sparse, name)
        streams.append(_Stream(name, is_sparse, dim, is_double, at))
    return _chunk_table(fields, "2.x", streams, num_chunks, _FIRST_CHUNK, begin)


def _checked_dim(fields: _Fields, is_sparse: bool, name: str) -> int:
    at = fields.at
    dim = fields.number("I", "a dimension")
    largest = _LARGEST_DIM if is_sparse else 2**32 - 1
    if not 1 <= dim <= largest:
        raise fields.error(f"stream {name!r} has the dimension {dim}; expected 1 to {largest}", at)
    return dim


def _read_documented_header(file: InputFile) -> _Header:
    # As much as can be header; of a large file not all of it is needed.
    size = min(file.size, 1 << 16)
    while True:
        fields = _Fields(file.path, file.read(8, size - 8), 8)
        try:
            return _documented_header(fields, file.size)
        except FormatError:
            if size == file.size:
                raise
            size = min(file.size, 16 * size)


def _documented_header(fields: _Fields, file_size: int) -> _Header:
    num_chunks = fields.count("q", "the number of chunks", 16)
    num_streams = fields.count("i", "the number of inputs", 16)
    streams = []
    for _ in range(num_streams):
        at = fields.at
        name = fields.name("i")
        is_sparse = fields.one_of("i", "deserializer", _KINDS) == 1
        if is_sparse:
            fields.one_of("i", "storage type", {0: "compressed columns"})
        is_double = fields.one_of("i", "element type", _ELEMENTS) == 1
        if is_sparse:
            fields.one_of("i", "the flag isSequence is", {0: "", 1: ""})
        dim_at = fields.at
        dim = fields.number("i", "a sample size")
        if dim < 1:
            raise fields.error(f"input {name!r} has the sample size {dim}; expected 1 to {_LARGEST_DIM}", dim_at)
        streams.append(_Stream(name, is_sparse, dim, is_double, at))
    begin = fields.at + 16 * num_chunks
    return _chunk_table(fields, "documented", streams, num_chunks, begin, file_size)


def _chunk_table(
    fields: _Fields, layout: Layout, streams: list[_Stream], num_chunks: int, first_byte: int, last_byte: int
) -> _Header:
    """Read and check the table of chunks, which lie from `first_byte` to `last_byte` one behind the other."""
    at = fields.at
    rows = np.frombuffer(fields.take(16 * num_chunks, f"the table of {num_chunks} chunks"), _CHUNK_ROW[layout])
    offsets = rows["offset"].astype(np.int64)
    sequences, samples = (rows[column].astype(np.int64) for column in ("sequences", "samples"))
    origin = first_byte if layout == "documented" else 0

    def refuse(bad: npt.NDArray[np.bool_], field: int, what: str) -> None:
        if bad.any():
            chunk = int(np.argmax(bad))
            before = int(offsets[chunk - 1]) if chunk else first_byte - origin
            words = what.format(
                chunk=chunk,
                offset=offsets[chunk],
                sequences=sequences[chunk],
                samples=samples[chunk],
                first=first_byte - origin,
                last=last_byte - origin,
                before=before,
            )
            raise fields.error(words, at + 16 * chunk + field)

    outside = (offsets < first_byte - origin) | (offsets > last_byte - origin)
    refuse(outside, 0, "chunk {chunk} is said to be at byte {offset}; expected {first} to {last}")
    descending = np.concatenate([[False], offsets[1:] < offsets[:-1]])
    refuse(descending, 0, "chunk {chunk} is said to be at byte {offset}, before the chunk before it at {before}")
    refuse(sequences < 0, 8, "chunk {chunk} is said to have {sequences} sequences; expected 0 or more")
    refuse((sequences == 0) & (samples != 0), 8, "chunk {chunk} is said to have no sequence, but {samples} samples")
    refuse((sequences > 0) & (samples <= 0), 12, "chunk {chunk} has {sequences} sequences, but {samples} samples")
    if not sequences.any():
        raise fields.error("no chunk has a sequence", at)
    begins = offsets + origin
    ends = np.append(begins[1:], last_byte)
    # The least that a sequence takes: its length, or one value.
    refuse(
        (ends - begins) // 4 < sequences,
        8,
        "chunk {chunk} is said to have {sequences} sequences, more than its bytes can hold",
    )
    kept = sequences > 0
    return _Header(layout, streams, begins[kept], ends[kept], sequences[kept], samples[kept])


# ---------------------------------------------------------------------------------------------------- corpus


# The words for what the core finds, in the order of its `Kind`.
_WORDS = (
    "the length list of {sequences} sequences takes {found} bytes, but {limit} are left of the chunk",
    "a count takes {found} bytes, but {limit} are left of the chunk",
    "dense samples of {dim} values take {found} bytes, but {limit} are left of the chunk",
    "values, indices and counts take {found} bytes, but {limit} are left of the chunk",
    "{found} values; expected 0 or more",
    "a sample of {found} values; expected 0 or more",
    "the samples have {found} values together, but the sequence has {limit}",
    "index {found}, but the dimension is {limit}; expected 0 to {last}",
    "the first column starts at value {found}; expected 0",
    "a column ends at value {found}, before it starts, at {limit}",
    "a column ends at value {found}, but the chunk has {limit}",
    "row {found}; expected 0 or more",
    "a value of sample {found} behind one of sample {limit}; expected ascending samples",
    "at least {found} samples, but the table of chunks and the size of the file allow for {limit}",
    "{found} samples; the documented layout has room for exactly 1 in a dense sequence",
    "row {found} (sample number times dimension plus index); the documented layout ends at {limit}",
    "{found} values together; the format has room for {limit}",
)


class CBFCorpus:
    """An opened corpus in the CNTK binary format.

    Made by `CBFDeserializer.open`; see `cntkio.formats.Corpus` for what its methods owe.

    Attributes:
        layout: ``"2.x"`` or ``"documented"``.
    """

    utterances = None
    # The keys are ordinal numbers, so, like CNTK, accept this corpus in the first place only.
    joins: Joins = "first"

    def __init__(self, options: CBFDeserializer) -> None:
        self._options = options
        self._file = InputFile(options.filename)
        self.name = self._file.path
        self.report = Report(self.name)
        self._kept: dict[int, Loaded] = {}
        try:
            self._header = _read_header(self._file)
            self.layout = self._header.layout
            self.streams = self._named_streams()
            self._schema = [
                (stream.is_sparse, stream.dim, stream.is_double, info.dtype == np.float64)
                for stream, info in zip(self._header.streams, self.streams, strict=True)
            ]
            largest = int((self._header.ends - self._header.begins).max())
            self._binary = _core.BinaryFile(self._file.descriptor, self._file.path)
            self._spare = _core.Spare(_SPARE_CHUNKS * min(largest, _MOST_SPARE))
            self.table = self._read_table()
        except BaseException:
            self._file.close()
            raise

    def _named_streams(self) -> tuple[StreamInformation, ...]:
        path, options = self._file.path, self._options
        in_file: dict[str, _Stream] = {}
        for stream in self._header.streams:
            if stream.name in in_file:
                raise FormatError(f"two streams have the name {stream.name!r}", path=path, byte=stream.at)
            in_file[stream.name] = stream
        renamed: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for name, definition in named(options.streams):
            alias = definition["stream_alias"] or name
            if alias in renamed:
                self._remark(
                    f"{path}: streams {renamed[alias][0]!r} and {name!r} are both {alias!r} there; the last is used"
                )
            renamed[alias] = (name, definition)
        for alias, (name, _) in renamed.items():
            if alias not in in_file:
                names = ", ".join(map(repr, in_file))
                self._remark(f"{path}: the file has no stream {alias!r} to be named {name!r}; it has: {names}")
        infos: list[StreamInformation] = []
        for stream in self._header.streams:
            name, definition = renamed.get(stream.name, (stream.name, {}))
            if any(info.name == name for info in infos):
                raise ConfigError(f"{path}: two streams would have the name {name!r}; rename one of them", key=name)
            shape = definition.get("dim", stream.dim)
            if num_values(shape) != stream.dim or definition.get("is_sparse", stream.is_sparse) != stream.is_sparse:
                kind = "sparse" if stream.is_sparse else "dense"
                asked = ("sparse" if definition["is_sparse"] else "dense") if definition else kind
                self._remark(
                    f"{path}: stream {name!r} is {kind} with {stream.dim} values a sample, not {asked} with "
                    f"{num_values(shape)} as was asked for; it is read as it is"
                )
                shape = stream.dim
            own = np.dtype(np.float64 if stream.is_double else np.float32)
            dtype = own if options.dtype is None else np.dtype(options.dtype)
            if dtype != own and not options.convert:
                raise ConfigError(
                    f"{path}: stream {name!r} is in {own}, and {dtype} is asked for; expected the same "
                    "(or convert=True, or no precision)",
                    key="precision",
                )
            infos.append(StreamInformation(name, len(infos), "sparse" if stream.is_sparse else "dense", dtype, shape))
        return tuple(infos)

    def _remark(self, text: str) -> None:
        if self._options.strict:
            raise ConfigError(text, key="streams")
        logger.warning("%s", text)

    def _read_table(self) -> SequenceTable:
        header = self._header
        chunk_starts = np.concatenate([[0], np.cumsum(header.num_sequences)])
        # As many as the chunks have bytes for, so this is smaller than the file.
        lengths = np.ones(chunk_starts[-1], "<u4")
        for chunk, (first, last) in enumerate(zip(chunk_starts[:-1].tolist(), chunk_starts[1:].tolist(), strict=True)):
            if header.layout == "2.x":
                self._file.read_into(lengths[first:last].view(np.uint8), int(header.begins[chunk]))
            elif header.num_samples[chunk] != header.num_sequences[chunk] and any(
                it.is_sparse for it in header.streams
            ):
                lengths[first:last] = self._parse(chunk)[1]
        if header.layout == "2.x":
            sums = np.add.reduceat(lengths, chunk_starts[:-1], dtype=np.int64)
            wrong = np.flatnonzero(sums != header.num_samples)
            if len(wrong):
                chunk = int(wrong[0])
                raise FormatError(
                    f"the length list of chunk {chunk} adds up to {sums[chunk]} samples, but the table of chunks says "
                    f"{header.num_samples[chunk]}",
                    path=self._file.path,
                    byte=int(header.begins[chunk]),
                )
        if not lengths.all():
            sequence = int(np.argmin(lengths))
            chunk = int(np.searchsorted(chunk_starts, sequence, "right")) - 1
            at = int(header.begins[chunk]) + 4 * (sequence - int(chunk_starts[chunk]))
            what = "the length list says 0 samples; expected at least 1"
            raise FormatError(what, path=self._file.path, byte=at, sequence=sequence)
        keys = np.arange(len(lengths), dtype=np.uint64)
        return SequenceTable(keys, lengths.astype(np.uint32, copy=False), chunk_starts.astype(np.int64))

    def fingerprint(self) -> str:
        """Size and content samples of the file."""
        lengths = self.table.lengths
        return f"{self._file.size}:{len(lengths)}:{fingerprint(Path(self._file.path))['content']}"

    def load(self, chunk_id: int) -> Loaded:
        kept = self._kept.get(chunk_id)
        if kept is not None:
            return kept
        chunk, lengths, unused = self._parse(chunk_id)
        if lengths is not None:
            first, last = self.table.chunk_starts[chunk_id : chunk_id + 2]
            if not np.array_equal(lengths, self.table.lengths[first:last]):
                raise self._samples_error(chunk_id, lengths)
        loaded = Loaded(chunk_id, chunk, unused)
        if self._options.keep_data_in_memory:
            self._kept[chunk_id] = loaded
        return loaded

    def take_parsed(self) -> dict[int, Loaded]:
        return {}

    def _parse(self, number: int) -> tuple[_core.Chunk, npt.NDArray[np.uint32] | None, int]:
        """A chunk, the lengths of its sequences (documented layout only), and how many bytes of it are not used."""
        header = self._header
        begin, end = int(header.begins[number]), int(header.ends[number])
        is_documented = header.layout == "documented"
        num_samples = int(header.num_samples[number])
        most_samples = min(num_samples, _MOST_SAMPLES_PER_BYTE * self._file.size) if is_documented else None
        size = end - begin
        threads = num_threads()
        # One piece for each core, and not a small one more for what is left over.
        piece = max(_PIECE, size // threads + size // 64 + 1)
        try:
            chunk, num_used, lengths, fault = _core.cbf_read(
                self._binary,
                begin,
                size,
                self._options.memory_map,
                int(header.num_sequences[number]),
                self._schema,
                most_samples,
                threads,
                piece,
                self._spare,
            )
        finally:
            self._file.require_unchanged()  # that, if so, is what is wrong
        if fault is not None:
            raise self._error(number, *fault)
        assert chunk is not None
        if not is_documented:
            return chunk, None, size - num_used
        if int(lengths.sum(dtype=np.int64)) > num_samples:
            raise self._samples_error(number, lengths)
        return chunk, lengths, size - num_used

    def _samples_error(self, number: int, lengths: npt.NDArray[np.uint32]) -> FormatError:
        return FormatError(
            f"chunk {number} has {lengths.sum(dtype=np.int64)} samples, but the table of chunks says "
            f"{self._header.num_samples[number]}",
            path=self._file.path,
            byte=int(self._header.begins[number]),
        )

    def _error(
        self, number: int, kind: int, at: int, stream: int | None, sequence: int | None, found: int, limit: int
    ) -> FormatError:
        header = self._header
        before = int(header.num_sequences[:number].sum())
        dim = 0 if stream is None else header.streams[stream].dim
        words = _WORDS[kind].format(
            found=found, limit=limit, dim=dim, last=limit - 1, sequences=header.num_sequences[number]
        )
        return FormatError(
            words,
            path=self._file.path,
            byte=int(header.begins[number]) + at,
            sequence=None if sequence is None else before + sequence,
            stream=None if stream is None else self.streams[stream].name,
        )

    def account_for(self, loaded: Loaded) -> None:
        unused: int = loaded.findings
        if not unused:
            return
        error = FormatError(
            f"the last {unused} bytes of chunk {loaded.chunk_id} are not used by any stream",
            path=self._file.path,
            byte=int(self._header.ends[loaded.chunk_id]) - unused,
        )
        if self._options.strict:
            raise error
        self.report.count("chunk with unused bytes")
        self.report.log("chunk with unused bytes", str(error))

    def close(self) -> None:
        self.report.log_totals()
        self._file.close()
        self._kept.clear()


# --------------------------------------------------------------------------------------------------- writing

_LARGEST_COUNT = {"2.x": 2**32 - 1, "documented": 2**31 - 1}


class CBFWriter:
    """Writes a file in the CNTK binary format, sequence after sequence, in chunks of a given size.

    A chunk ends with the sequence that makes it `chunk_size_in_bytes` or larger. The file appears under its name when
    the block ends; when an exception leaves the block, nothing does.

    Args:
        path: The file.
        streams: What is in it. Names, forms, dimensions and precisions are written as they are here.
        chunk_size_in_bytes: Bytes of a chunk in the file, at least.
        layout: ``"2.x"``, or ``"documented"``, which CNTK 2.7 does not read and which has room for one dense sample
            a sequence only.

    Raises:
        ConfigError: The format cannot express a stream, or an option is not possible.

    Example:
        >>> import pathlib, tempfile
        >>> from cntkio import _core
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.cbf")
        >>> two = _core.Chunk.from_columns(2, [(np.array([0, 1, 2], np.uint32), np.ones(6, np.float32), 3, None)])
        >>> with CBFWriter(path, [StreamInformation("x", 0, "dense", np.float32, 3)]) as writer:
        ...     writer.add(two)
        >>> CBFDeserializer(path).open().table.lengths
        array([1, 1], dtype=uint32)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        streams: Sequence[StreamInformation],
        *,
        chunk_size_in_bytes: int = 32 << 20,
        layout: Layout = "2.x",
    ) -> None:
        if layout not in ("2.x", "documented"):
            raise ConfigError(f"layout {layout!r}; expected '2.x' or 'documented'", key="layout")
        if chunk_size_in_bytes < 1:
            raise ConfigError(
                f"chunk_size_in_bytes is {chunk_size_in_bytes}; expected at least 1", key="chunk_size_in_bytes"
            )
        _check_writable(streams, layout)
        self._path = os.fspath(path)
        self._streams = list(streams)
        self._chunk_size = chunk_size_in_bytes
        self._layout = layout
        self._is_documented = layout == "documented"
        # What every matrix of the documented layout takes beside its sequences: a count and the first column.
        self._extra = 8 * sum(info.is_sparse for info in streams) if self._is_documented else 0
        self._pending: list[tuple[_core.Chunk, int, int]] = []
        self._pending_lengths: list[npt.NDArray[np.uint32]] = []
        self._pending_size = self._extra
        self._rows: list[tuple[int, int, int]] = []
        self._position = 0 if self._is_documented else _FIRST_CHUNK
        self._num_sequences = 0
        self._columns: list[tuple[int, bool]] = []
        # One chunk is made while the one before is written.
        self._buffers = [np.empty(0, np.uint8), np.empty(0, np.uint8)]
        self._written: Future[int] | None = None
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> CBFWriter:
        """Begin the file."""
        with contextlib.ExitStack() as exits:
            self._file = exits.enter_context(written_whole(self._path))
            # The documented layout begins with the table of chunks, which is known at the end.
            self._data = exits.enter_context(scratch_beside(self._path)) if self._is_documented else self._file
            if not self._is_documented:
                self._data.write(MAGIC + struct.pack("<I", _VERSION))
            # It ends before the files do.
            self._worker = exits.enter_context(ThreadPoolExecutor(1, "cntkio-write"))
            self._exits = exits.pop_all()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Write what is left and the header, or abandon the file."""
        # What is thrown into the files' own blocks, from outside or by the last writes, makes the files go.
        if error is not None:
            self._exits.__exit__(kind, error, trace)
            return
        with self._exits:
            self._finish()

    def add(
        self,
        chunk: _core.Chunk,
        lengths: npt.NDArray[np.uint32] | None = None,
        columns: Sequence[int] | None = None,
    ) -> None:
        """Write all sequences of a chunk.

        Args:
            chunk: The sequences.
            lengths: What each counts for, at least 1; None: the samples of its longest stream. The documented layout
                does not store it.
            columns: For each stream the number of its column in the chunk; None: in order.

        Raises:
            FormatError: The format cannot express a sequence.
            OSError: The file cannot be written.
        """
        numbers = range(len(self._streams)) if columns is None else columns
        selected = [(number, info.dtype == np.float64) for number, info in zip(numbers, self._streams, strict=True)]
        if selected != self._columns:
            self._flush()
            self._columns = selected
        count = chunk.num_sequences
        sizes, longest = _core.cbf_sizes([(chunk, 0, count)], selected, self._is_documented)
        counted = longest if lengths is None or self._is_documented else np.maximum(lengths, 1).astype(np.uint32)
        ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        first = 0
        while first < count:
            wanted = int(ends[first]) + self._chunk_size - self._pending_size
            last = min(int(np.searchsorted(ends[first + 1 :], wanted)) + first + 1, count)
            self._pending.append((chunk, first, last))
            self._pending_lengths.append(counted[first:last])
            self._pending_size += int(ends[last] - ends[first])
            if self._pending_size >= self._chunk_size:
                self._flush()
            first = last

    def _flush(self) -> None:
        if not self._pending:
            return
        lengths = np.concatenate(self._pending_lengths)
        num_samples = int(lengths.sum(dtype=np.int64))
        largest = _LARGEST_COUNT[self._layout]
        if max(num_samples, len(lengths)) > largest:
            raise FormatError(
                f"a chunk of {len(lengths)} sequences and {num_samples} samples; the format has room for {largest}: "
                "expected a smaller chunk_size_in_bytes", path=self._path,
            )  # fmt: skip
        self._buffers.reverse()
        if len(self._buffers[0]) < self._pending_size:
            self._buffers[0] = np.empty(self._pending_size, np.uint8)
        content = self._buffers[0][: self._pending_size]
        fault = _core.cbf_write(self._pending, self._columns, lengths, self._is_documented, content)
        if fault is not None:
            kind, _, stream, sequence, found, limit = fault
            raise FormatError(
                _WORDS[kind].format(found=found, limit=limit), path=self._path,
                sequence=None if sequence is None else self._num_sequences + sequence,
                stream=None if stream is None else self._streams[stream].name,
            )  # fmt: skip
        self._wait()
        self._written = self._worker.submit(self._data.write, content.data)
        self._rows.append((self._position, len(lengths), num_samples))
        self._position += len(content)
        self._num_sequences += len(lengths)
        self._pending, self._pending_lengths, self._pending_size = [], [], self._extra

    def _wait(self) -> None:
        """Wait for what is being written; what went wrong with it surfaces here."""
        if self._written is not None:
            self._written.result()

    def _finish(self) -> None:
        self._flush()
        self._wait()
        if not self._rows:
            raise CorpusError(f"{self._path}: no sequence to write; a binary file needs at least one")
        table = np.array(self._rows, _CHUNK_ROW[self._layout]).tobytes()
        if not self._is_documented:
            header = [MAGIC, struct.pack("<II", len(self._rows), len(self._streams))]
            for info in self._streams:
                name = info.name.encode()
                header.append(struct.pack("<BI", info.is_sparse, len(name)) + name)
                header.append(struct.pack("<BI", info.dtype == np.float64, info.dim))
            self._file.write(b"".join(header) + table + struct.pack("<q", self._position))
            return
        header = [struct.pack("<qqi", _VERSION, len(self._rows), len(self._streams))]
        for info in self._streams:
            name, is_double = info.name.encode(), info.dtype == np.float64
            header.append(struct.pack("<i", len(name)) + name)
            numbers = (1, 0, is_double, 1, info.dim) if info.is_sparse else (0, is_double, info.dim)
            header.append(struct.pack(f"<{len(numbers)}i", *numbers))
        self._file.write(b"".join(header) + table)
        self._data.seek(0)
        shutil.copyfileobj(self._data, self._file, 1 << 20)


def _check_writable(streams: Sequence[StreamInformation], layout: Layout) -> None:
    if not streams:
        raise ConfigError("no stream to write; expected at least one", key="streams")
    seen = set()
    for info in streams:
        if info.name in seen:
            raise ConfigError(f"two streams have the name {info.name!r}", key=info.name)
        seen.add(info.name)
        if "\0" in info.name:
            raise ConfigError(f"stream {info.name!r}: a name ends at a zero byte, which this one holds", key=info.name)
        largest = _LARGEST_DIM if info.is_sparse or layout == "documented" else 2**32 - 1
        if not 1 <= info.dim <= largest:
            raise ConfigError(
                f"stream {info.name!r} has the dimension {info.dim}; expected 1 to {largest}", key=info.name
            )
        if info.dtype not in (np.float32, np.float64):
            raise ConfigError(f"stream {info.name!r} is in {info.dtype}; expected float32 or float64", key=info.name)

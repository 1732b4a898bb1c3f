"""Options of a binary file, and the opened corpus."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._threads import num_threads, piece_size
from cntkio.arguments import caller, did_you_mean, float_type, suggests_keywords
from cntkio.errors import ConfigError, FormatError
from cntkio.formats.cbf.header import FAULTS, CBFHeader, StreamHeader, fault_text, read_header
from cntkio.formats.cntk_options import BINARY, CntkOptions
from cntkio.formats.contract import (
    OPENING,
    Ahead,
    Corpus,
    Format,
    Index,
    Loaded,
    Opening,
    OpenText,
    PlacesInFiles,
)
from cntkio.formats.corpus import FilesDeserializer, opened_corpus
from cntkio.formats.table import NO_SEQUENCES, Keys, SequenceTable
from cntkio.storage.file_lists import listed_files
from cntkio.storage.names import FileNames
from cntkio.storage.open_input import loads_at_once, open_stored, read_ranges
from cntkio.storage.progress import warn
from cntkio.storage.remote import Remote
from cntkio.storage.spans import span_at
from cntkio.storage.text_input import CoreText, TextInput, explained, in_utf8
from cntkio.streams import StreamDef, StreamDefs, StreamInformation, named, num_values, storage_format

# Least bytes of a chunk that a thread parses at a time.
_PIECE = 1 << 20
# Memory of released chunks is kept for later chunks, up to the size of this many chunks.
_SPARE_CHUNKS = 4
_MOST_SPARE = 256 << 20
# In the documented layout, empty samples take no bytes, so refuse a file that claims more samples than this.
_MOST_SAMPLES_PER_BYTE = 2


@suggests_keywords
@dataclasses.dataclass(eq=False, repr=False)
class CBFDeserializer(FilesDeserializer, CntkOptions):
    """A corpus in the CNTK binary format, in either of its two layouts.

    All streams of the file are delivered; `streams` renames them. CNTK's names of options work, too:
    ``deserializer["precision"] = "float"`` refuses a file of another precision, as CNTK does.

    Args:
        filename: The file; or several files that are one corpus: a pattern or a list; also URLs in a remote store
            (docs/where-corpora-can-be.md).
        streams: New names for streams: the field is the name in the file. A shape is optional; it must have as many
            values as the samples in the file.
        dtype: Type of the delivered values, float32 or float64; None: each stream keeps its own precision.
        convert: Whether to convert a stream whose precision is not `dtype`; otherwise it is refused.
        keep_data_in_memory: Keep every chunk that has been read.
        strict: Turn warnings into errors.
        memory_map: Map a local file into memory instead of copying its bytes, which saves time and memory. If another
            process truncates the file during a read, the operating system kills this process (SIGBUS).
        compatible: If a name or a shape in `streams` differs from the file, warn and read the file as it is, like CNTK
            2.7. By default, a difference is an error.
        remote: As for `CTFDeserializer`.

    Raises:
        ConfigError: An option is not possible.

    Example:
        >>> from cntkio.streams import StreamDef
        >>> CBFDeserializer("train.cbf", StreamDefs(features=StreamDef(field="x", shape=(28, 28))))
        CBFDeserializer('train.cbf', StreamDefs(features=StreamDef(field='x', shape=(28, 28))))
    """

    filename: FileNames
    streams: StreamDefs = dataclasses.field(default_factory=StreamDefs)
    _: dataclasses.KW_ONLY
    dtype: npt.DTypeLike | None = None
    convert: bool = True
    keep_data_in_memory: bool = False
    strict: bool = False
    memory_map: bool = True
    compatible: bool = False
    remote: Remote | None = None
    has_text_keys = False
    cntk_type = "CNTKBinaryFormatDeserializer"
    cntk_options = BINARY

    def __post_init__(self) -> None:
        self.check_files()
        self.streams = StreamDefs(self.streams)
        if self.dtype is not None:
            self.dtype = float_type("dtype", self.dtype)

    def open(self, opening: Opening = OPENING) -> Corpus:
        """Open the files and read their headers and the lengths of their sequences.

        Keys are numbers, and nothing is parsed ahead, because the files need no index.

        Raises:
            OSError: A file cannot be read, or no file matches a pattern.
            FormatError: A file breaks the format.
            ConfigError: A renaming or a precision does not fit a file, or files have different streams.
        """
        paths = listed_files(self.filename, remote=self.remote)
        return opened_corpus(CBFFormat(self, opening), paths, keeps_data=self.keep_data_in_memory)


class ChunkInFile(NamedTuple):
    """The place of a chunk in a file.

    Attributes:
        source: The open file, or the bytes of the chunk in memory.
        most_samples: The most samples that a stream may have in the documented layout; None: it is the 2.x layout.
        piece_size: Bytes that a thread parses at a time.
    """

    source: CoreText
    begin: int
    size: int
    num_sequences: int
    most_samples: int | None
    piece_size: int


class _OpenFile(OpenText):
    def __init__(self, path: str, remote: Remote | None, *, memory_map: bool) -> None:
        super().__init__(open_stored(path, remote))
        self.is_local = self.text.storage.local_path is not None
        self.is_mapped = memory_map and self.is_local
        try:
            self.binary = _core.BinaryFile(self.text.source(0, 0), in_utf8(path), memory_map)
        except BaseException:
            self.close()  # no caller has the object yet
            raise


class CBFFormat(Format):
    """Reads binary files; a `Format`."""

    def __init__(self, options: CBFDeserializer, opening: Opening) -> None:
        self._options, self._trace_level = options, opening.trace_level
        self.report, self.is_strict = opening.report(options.label), options.strict
        self._wording = caller().words
        self._remarks: set[str] = set()
        self._spare = _core.Spare(0)
        self._has_spare = False

    def open(self, path: str, index: Index | None) -> _OpenFile:
        return _OpenFile(path, self._options.remote, memory_map=self._options.memory_map)

    def _remark(self, path: str, what: str) -> None:
        """Warn of a definition that does not fit a file, once for all files; raise it if warnings are errors."""
        if self._options.strict:
            raise ConfigError(f"{path}: {what}", key="streams")
        if what not in self._remarks:
            self._remarks.add(what)
            warn(self._trace_level, "%s: %s", path, what)

    def index(self, file: _OpenFile, ahead: Ahead) -> tuple[Index, list[_core.Chunk]]:
        text = file.text
        header = read_header(text)
        streams = self._streams(text.path, header)
        pairs = zip(header.streams, streams, strict=True)
        schema = [stream._replace(becomes_double=info.dtype == np.float64) for stream, info in pairs]
        if not self._has_spare:  # the files share the memory for their chunks
            largest_chunk = int((header.ends - header.begins).max())
            self._spare = _core.Spare(_SPARE_CHUNKS * min(largest_chunk, _MOST_SPARE))
            self._has_spare = True
        # The keys are ordinal numbers, so, like CNTK, accept this corpus in the first place only.
        index = Index(
            streams, NO_SEQUENCES, header._replace(streams=schema), text.path, joins="first", part_in_bytes=0,
            num_lines=int(header.num_sequences.sum()),
            loads_at_once=loads_at_once(text.storage.num_requests, int((header.ends - header.begins).mean())),
        )  # fmt: skip
        return index._replace(table=self._table(file, index)), []

    # ---------------------------------------------------------------------------------------------------- streams

    def _streams(self, path: str, header: CBFHeader) -> tuple[StreamInformation, ...]:
        in_file: dict[str, StreamHeader] = {}
        for stream in header.streams:
            if stream.name in in_file:
                raise FormatError(f"two streams have the name {stream.name!r}", path=path, byte=stream.offset)
            in_file[stream.name] = stream
        renamed = self._renamed(path, in_file)
        infos: dict[str, StreamInformation] = {}
        for stream in header.streams:
            name, definition = renamed.get(stream.name, (stream.name, None))
            if name in infos:
                raise ConfigError(f"{path}: two streams would have the name {name!r}; rename one of them", key=name)
            shape = stream.dim if definition is None else self._shape_of(path, name, stream, definition)
            dtype = self._dtype_of(path, name, stream)
            infos[name] = StreamInformation(name, len(infos), storage_format(stream.is_sparse), dtype, shape)
        return tuple(infos.values())

    def _renamed(self, path: str, in_file: Mapping[str, StreamHeader]) -> dict[str, tuple[str, StreamDef]]:
        """Return the new name and the definition of each renamed stream, by its name in the file."""
        renamed: dict[str, tuple[str, StreamDef]] = {}
        for name, definition in named(self._options.streams):
            alias = definition.stream_alias or name
            if alias in renamed:
                both = f"streams {renamed[alias][0]!r} and {name!r} both rename {alias!r}"
                self._remark(path, f"{both}; the last one is used")
            renamed[alias] = (name, definition)
        for alias, (name, definition) in list(renamed.items()):
            if alias in in_file:
                continue
            what = f"the file has no stream {alias!r} to be named {name!r}"
            if name in in_file and name not in renamed:  # such as after a conversion, which writes the new names
                self._remark(path, f"{what}; its own stream {name!r} is read")
                renamed[name] = (name, definition)
            else:
                names = ", ".join(map(repr, in_file))
                self._refuse(path, f"{what}; it has: {names}{did_you_mean(alias, in_file)}", name)
        return renamed

    def _dtype_of(self, path: str, name: str, stream: StreamHeader) -> np.dtype[Any]:
        own = np.dtype(np.float64 if stream.is_double else np.float32)
        dtype = own if self._options.dtype is None else np.dtype(self._options.dtype)
        if dtype != own and not self._options.convert:
            expected = self._wording.setting("dtype", str(own))
            what = f"{path}: stream {name!r} is in {own}, not in the requested {dtype}; expected {expected}"
            raise ConfigError(what, key="precision")
        return dtype

    def _shape_of(self, path: str, name: str, stream: StreamHeader, definition: StreamDef) -> Any:
        """Return the shape of the definition; the file's shape if it has none, or one of another size."""
        shape, is_sparse, dim = definition.dim, definition.is_sparse, stream.dim
        if shape is not None and num_values(shape) != dim:
            what = f"stream {name!r} has {dim} values a sample, not the requested {num_values(shape)}"
            expected = f"{self._wording.setting('shape', dim)}, another shape of {dim} values, or none"
            self._refuse(path, f"{what}; expected {expected}", name)
            shape = None
        # The dense form is the default of `StreamDef`, so without a shape it is not the user's choice.
        if is_sparse != stream.is_sparse and (is_sparse or definition.dim is not None):
            what = (
                f"stream {name!r} is {storage_format(stream.is_sparse)}, not {storage_format(is_sparse)} as requested"
            )
            self._remark(path, f"{what}; it is read as it is")
        return dim if shape is None else shape

    def _refuse(self, path: str, what: str, name: str) -> None:
        """Raise an error about a definition, or only warn, as CNTK 2.7 does."""
        if not self._options.compatible:
            raise ConfigError(f"{path}: {what}", key=name)
        self._remark(path, what)

    # ------------------------------------------------------------------------------------------------------ table

    def _table(self, file: _OpenFile, index: Index) -> SequenceTable:
        header: CBFHeader = index.layout
        chunk_starts = np.concatenate([[0], np.cumsum(header.num_sequences)])
        # The check of the header has shown that the file has enough bytes for all these sequences.
        lengths = np.ones(chunk_starts[-1], "<u4")
        if header.layout == "2.x":
            _read_lengths(file.text, header, lengths, chunk_starts)
        elif any(stream.is_sparse for stream in header.streams):
            # Chunks with more samples than sequences must be parsed.
            for chunk_id in np.flatnonzero(header.num_samples != header.num_sequences).tolist():
                with explained(file.text):
                    _, parsed, _ = self._parse(file, index, chunk_id)
                lengths[chunk_starts[chunk_id] : chunk_starts[chunk_id + 1]] = parsed
        if not lengths.all():
            sequence = int(np.argmin(lengths))
            chunk_id = int(span_at(chunk_starts, sequence))
            byte = int(header.begins[chunk_id]) + 4 * (sequence - int(chunk_starts[chunk_id]))
            what = "the length list says 0 samples; expected at least 1"
            raise FormatError(what, path=index.name, byte=byte, sequence=sequence)
        keys = Keys(np.arange(len(lengths), dtype=np.uint64))
        return SequenceTable(keys, lengths.astype(np.uint32, copy=False), chunk_starts.astype(np.int64))

    # ------------------------------------------------------------------------------------------------------- data

    def place(self, file: _OpenFile, index: Index, sequences: npt.NDArray[np.int64]) -> PlacesInFiles:
        begins = index.layout.begins[span_at(index.table.chunk_starts, sequences)].astype(np.int64)
        return PlacesInFiles([index.name], np.zeros(len(begins), np.int64), begins)

    def parse(self, file: _OpenFile, index: Index, chunk_id: int, sequences: npt.NDArray[np.uint32] | None) -> Loaded:
        """Load a chunk, or some of its sequences. Its findings are the number of unused bytes."""
        chunk, _, num_unused = self._parse(file, index, chunk_id, sequences)
        return Loaded(chunk_id, chunk, num_unused or None, sequences)

    def _parse(
        self, file: _OpenFile, index: Index, chunk_id: int, sequences: npt.NDArray[np.uint32] | None = None
    ) -> tuple[_core.Chunk, npt.NDArray[np.uint32], int]:
        """Parse a chunk, or some of its sequences: their indices in it.

        The bytes of a mapped chunk stay where they are; a copied chunk keeps only these sequences. Returns also the
        lengths of all sequences of the chunk (in the documented layout), and the number of unused bytes.
        """
        header: CBFHeader = index.layout
        begin, num_samples = int(header.begins[chunk_id]), int(header.num_samples[chunk_id])
        is_documented = header.layout == "documented"
        size = int(header.ends[chunk_id]) - begin
        most_samples = min(num_samples, _MOST_SAMPLES_PER_BYTE * file.size) if is_documented else None
        num_sequences = int(header.num_sequences[chunk_id])
        source = file.text.source(begin, begin + size)
        place = ChunkInFile(source, begin, size, num_sequences, most_samples, piece_size(size, _PIECE))
        # A matrix of the documented layout has all sequences, so all are decoded before some are selected.
        own = None if is_documented else sequences
        read = file.binary.read(place, header.streams, own, self._spare, num_threads())
        if read.fault is not None:
            raise _error(index, chunk_id, read.fault)
        chunk, lengths = read.chunk, read.lengths
        assert chunk is not None
        if not file.is_local and not is_documented and num_samples == num_sequences:
            _require_single_samples(index, chunk_id, np.asarray(source[0])[: 4 * num_sequences].view("<u4"))
        if is_documented:
            # The table may count more samples: empty samples at the end of a sequence are lost in this layout.
            is_wrong = int(lengths.sum(dtype=np.int64)) > num_samples
            if index.table.num_sequences:  # otherwise the file is being opened, and the lengths are for the table
                first, last = index.table.bounds_of(chunk_id)
                is_wrong = not np.array_equal(lengths, index.table.lengths[first:last])
            if is_wrong:
                found = f"chunk {chunk_id} has {lengths.sum(dtype=np.int64)} samples"
                what = f"{found}, but the table of chunks says {num_samples}"
                raise FormatError(what, path=index.name, byte=begin)
        if sequences is not None and is_documented:
            chunk = chunk.only(sequences)
        elif sequences is not None and not file.is_mapped:
            chunk = chunk.in_full_width()  # a copy, which frees the bytes of the other sequences
        return chunk, lengths, size - read.num_used

    def account(self, file: _OpenFile, index: Index, loaded: Loaded) -> None:
        num_unused, kind = loaded.findings, "chunk with unused bytes"
        what = f"the last {num_unused} bytes of chunk {loaded.chunk_id} are not used by any stream"
        byte = int(index.layout.ends[loaded.chunk_id]) - num_unused
        error = partial(FormatError, what, path=index.name, byte=byte)
        self.report.remark(kind, 1, [error], is_strict=self._options.strict)


def _read_lengths(
    text: TextInput, header: CBFHeader, lengths: npt.NDArray[np.uint32], chunk_starts: npt.NDArray[np.int64]
) -> None:
    lists = [lengths[first:last].view(np.uint8) for first, last in itertools.pairwise(chunk_starts.tolist())]
    # Where the samples are as many as the sequences, each has one; a request to a store would tell no more.
    is_needed = header.num_samples != header.num_sequences
    wanted = np.flatnonzero(is_needed if text.storage.num_requests else np.ones_like(is_needed)).tolist()
    read_ranges(text, [(int(header.begins[chunk_id]), lists[chunk_id]) for chunk_id in wanted])
    sums = np.add.reduceat(lengths, chunk_starts[:-1], dtype=np.int64)
    wrong = np.flatnonzero(sums != header.num_samples)
    if len(wrong):
        chunk_id = int(wrong[0])
        said = f"the table of chunks says {header.num_samples[chunk_id]} samples"
        what = f"the lengths of chunk {chunk_id} sum up to {sums[chunk_id]}, but {said}"
        raise FormatError(what, path=text.path, byte=int(header.begins[chunk_id]))


def _require_single_samples(index: Index, chunk_id: int, lengths: npt.NDArray[np.uint32]) -> None:
    """Refuse a list of lengths that was not read when the file was opened, if it contradicts the table of chunks."""
    if (lengths != 1).any():
        sequence = int(np.argmax(lengths != 1))
        what = f"the length list says {lengths[sequence]} samples, but the table of chunks says 1 for each sequence"
        byte = int(index.layout.begins[chunk_id]) + 4 * sequence
        key = index.table.keys[sequence + index.table.bounds_of(chunk_id)[0]]
        raise FormatError(what, path=index.name, byte=byte, sequence=key)


def _error(index: Index, chunk_id: int, fault: _core.CBFFault) -> FormatError:
    header, keys, sequence = index.layout, index.table.keys, None
    if fault.sequence is not None:
        sequence = int(header.num_sequences[:chunk_id].sum()) + fault.sequence
        if len(keys):  # otherwise the file is being opened, and the sequence has only its number in the file
            sequence = keys[sequence]
    stream, name, dim = fault.stream, None, 0
    if stream is not None:
        name, dim = index.streams[stream].name, header.streams[stream].dim
    what = fault_text(fault, dim, int(header.num_sequences[chunk_id]))
    byte = int(header.begins[chunk_id]) + fault.offset
    return FormatError(what, path=index.name, byte=byte, sequence=sequence, stream=name, kind=list(FAULTS)[fault.kind])

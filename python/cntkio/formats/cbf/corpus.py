"""Options of a binary file, and the opened corpus."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio._threads import num_threads, piece_size
from cntkio.arguments import check_fields, float_type, path_texts
from cntkio.errors import ConfigError, FormatError
from cntkio.formats.cbf.faults import Fault
from cntkio.formats.cbf.header import Header, StreamHeader, read_header
from cntkio.formats.cntk_options import BINARY, CntkOptions
from cntkio.formats.columns import span_at
from cntkio.formats.concatenation import Concatenation, concatenated
from cntkio.formats.contract import LOADS_AT_ONCE, NOTHING_AHEAD, Ahead, Deserializer, Joins, Loaded, PlacesInFiles
from cntkio.formats.file_lists import FileNames, listed_files, shown_files
from cntkio.formats.index_cache import CacheFiles, file_fingerprint
from cntkio.formats.input_file import InputFile, changed_in_use, in_utf8
from cntkio.formats.report import Report, warn
from cntkio.formats.table import NO_SEQUENCES, SequenceTable
from cntkio.hints import did_you_mean, suggests_keywords, wording
from cntkio.streams import StreamDefs, StreamInformation, named, num_values

# Least bytes of a chunk that a thread parses at a time.
_PIECE = 1 << 20
# Memory of released chunks is kept for later chunks, up to the size of this many chunks.
_SPARE_CHUNKS = 4
_MOST_SPARE = 256 << 20
# In the documented layout, empty samples take no bytes, so refuse a file that claims more samples than this.
_MOST_SAMPLES_PER_BYTE = 2


@suggests_keywords
@dataclasses.dataclass(eq=False, repr=False)
class CBFDeserializer(CntkOptions):
    """A corpus in the CNTK binary format, in either of its two layouts.

    All streams of the file are delivered; `streams` renames them. CNTK's names of options work, too:
    ``deserializer["precision"] = "float"`` refuses a file of another precision, as CNTK does.

    Args:
        filename: The file; or several files that are one corpus: a pattern or a list (docs/where-corpora-can-be.md).
        streams: New names for streams: the field is the name in the file. A shape is optional; it must have as many
            values as the samples in the file.
        dtype: Type of the delivered values, float32 or float64; None: each stream keeps its own precision.
        convert: Whether to convert a stream whose precision is not `dtype`; otherwise it is refused.
        keep_data_in_memory: Keep every chunk that has been read.
        strict: Turn warnings into errors.
        memory_map: Map the file into memory instead of copying its bytes, which saves time and memory. If another
            process truncates the file during a read, the operating system kills this process (SIGBUS).
        compatible: If a name or a shape in `streams` differs from the file, warn and read the file as it is, like CNTK
            2.7. By default, a difference is an error.

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
    has_text_keys = False
    cntk_type = "CNTKBinaryFormatDeserializer"
    cntk_options = BINARY

    def __post_init__(self) -> None:
        """Check all options that can be checked without the file."""
        self.filename = path_texts("filename", self.filename)
        check_fields(self)
        self.streams = StreamDefs(self.streams)
        if self.dtype is not None:
            self.dtype = float_type("dtype", self.dtype)

    @property
    def label(self) -> str:
        return shown_files(self.filename)

    def parts(self) -> Sequence[Deserializer]:
        return (self,)

    def open(self, *, text_keys: bool = False, ahead: Ahead = NOTHING_AHEAD) -> CBFCorpus | Concatenation:
        """Open the files and read their headers and the lengths of their sequences.

        Neither argument has an effect, because keys are numbers, and the files need no index.

        Raises:
            OSError: A file cannot be read, or no file matches a pattern.
            FormatError: A file breaks the format.
            ConfigError: A renaming or a precision does not fit a file, or files have different streams.
        """
        paths, reading = listed_files(self.filename), BinaryReading(self)
        if len(paths) > 1:
            return concatenated(paths, reading, self.label, [ahead] * len(paths))
        return reading.open(paths[0], ahead)


class BinaryReading:
    """Settings that all files of a corpus share, to open them.

    Args:
        options: The deserializer.

    Attributes:
        options: The deserializer.
        report: Errors and warnings of all files.
        wording: The form in which the caller writes options.
    """

    def __init__(self, options: CBFDeserializer) -> None:
        self.options = options
        self.report = Report(options.label)
        self.wording = wording()
        self._remarks: set[str] = set()
        self._spare: _core.Spare | None = None

    def open(self, path: str, ahead: Ahead) -> CBFCorpus:
        """Open a file.

        Raises:
            OSError, FormatError, ConfigError: See `CBFDeserializer.open`.
        """
        return CBFCorpus(self, path)

    def open_again(self, path: str, memory: BinaryMemory) -> CBFCorpus:
        """Open a file that was open before. `CBFCorpus.use_table` sets its table.

        Raises:
            OSError: The file cannot be read any more.
            CorpusError: The file was changed.
        """
        return CBFCorpus(self, path, memory)

    def remark(self, path: str, what: str) -> None:
        """Warn of a definition that does not fit a file, but only once for all files.

        Raises:
            ConfigError: Warnings are errors.
        """
        if self.options.strict:
            raise ConfigError(f"{path}: {what}", key="streams")
        if what not in self._remarks:
            self._remarks.add(what)
            warn("%s: %s", path, what)

    def spare(self, largest_chunk: int) -> _core.Spare:
        """Return the memory that the files share for their chunks.

        Args:
            largest_chunk: Bytes of the largest chunk of the first file.
        """
        if self._spare is None:
            self._spare = _core.Spare(_SPARE_CHUNKS * min(largest_chunk, _MOST_SPARE))
        return self._spare


class StreamSchema(NamedTuple):
    """A stream as the parser sees it.

    Attributes:
        is_sparse: Whether its samples are lists of index and value.
        dim: Values of a sample, or the bound of its indices.
        is_double: Whether its values are float64 in the file.
        becomes_double: Whether they are delivered as float64.
    """

    is_sparse: bool
    dim: int
    is_double: bool
    becomes_double: bool


class BinaryMemory(NamedTuple):
    """The facts with which to open a file again, except for its table.

    Attributes:
        header: Its header.
        streams: Its streams.
        kept: The chunks that stay in memory.
        fingerprint: Its fingerprint.
        size: Its bytes.
        stamp: See `TextInput`.
    """

    header: Header
    streams: tuple[StreamInformation, ...]
    kept: dict[int, Loaded]
    fingerprint: str
    size: int
    stamp: object


class CBFCorpus:
    """An opened file in the CNTK binary format.

    Made by `CBFDeserializer.open`; `cntkio.formats.Corpus` documents its methods.

    Attributes:
        header: The file's header.
        layout: ``"2.x"`` or ``"documented"``.
    """

    utterances = None
    # The keys are ordinal numbers, so, like CNTK, accept this corpus in the first place only.
    joins: Joins = "first"
    loads_at_once = LOADS_AT_ONCE
    index_caches = CacheFiles()

    def publish_index(self) -> None:
        """Return None: a binary file has its own index."""

    def __init__(self, reading: BinaryReading, path: str, memory: BinaryMemory | None = None) -> None:
        self._reading, self._options = reading, reading.options
        self._file = InputFile(path)
        self.name = self._file.path
        self.report = reading.report
        self.table = NO_SEQUENCES
        self._kept: dict[int, Loaded] = {}
        try:
            if memory is None:
                self.header = read_header(self._file)
                self.streams = self._stream_infos()
            elif memory.stamp == self._file.stamp:
                self.header, self.streams, self._kept, self._fingerprint, *_ = memory
            else:
                raise changed_in_use(path, memory.size, self._file.size)
            self.layout = self.header.layout
            self._schema = [
                StreamSchema(stream.is_sparse, stream.dim, stream.is_double, info.dtype == np.float64)
                for stream, info in zip(self.header.streams, self.streams, strict=True)
            ]
            self._binary = _core.BinaryFile(self._file.number, in_utf8(self.name))
            self._spare = reading.spare(int((self.header.ends - self.header.begins).max()))
            if memory is None:
                self.table = self._read_table()
                self._fingerprint = file_fingerprint(self._file, self.table)
        except BaseException:
            self._file.close()
            raise

    # ---------------------------------------------------------------------------------------------------- streams

    def _stream_infos(self) -> tuple[StreamInformation, ...]:
        in_file: dict[str, StreamHeader] = {}
        for stream in self.header.streams:
            if stream.name in in_file:
                raise FormatError(f"two streams have the name {stream.name!r}", path=self.name, byte=stream.offset)
            in_file[stream.name] = stream
        renamed = self._renamed(in_file)
        infos: dict[str, StreamInformation] = {}
        for stream in self.header.streams:
            name, definition = renamed.get(stream.name, (stream.name, None))
            if name in infos:
                raise ConfigError(
                    f"{self.name}: two streams would have the name {name!r}; rename one of them", key=name
                )
            shape = stream.dim if definition is None else self._shape_of(name, stream, definition)
            dtype = self._dtype_of(name, stream)
            infos[name] = StreamInformation(name, len(infos), _form(stream.is_sparse), dtype, shape)
        return tuple(infos.values())

    def _renamed(self, in_file: Mapping[str, StreamHeader]) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """Return the new name and the definition of each renamed stream, by its name in the file."""
        renamed: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for name, definition in named(self._options.streams):
            alias = definition["stream_alias"] or name
            if alias in renamed:
                self._reading.remark(
                    self.name, f"streams {renamed[alias][0]!r} and {name!r} both rename {alias!r}; the last one is used"
                )
            renamed[alias] = (name, definition)
        for alias, (name, definition) in list(renamed.items()):
            if alias in in_file:
                continue
            what = f"the file has no stream {alias!r} to be named {name!r}"
            if name in in_file and name not in renamed:  # such as after a conversion, which writes the new names
                self._reading.remark(self.name, f"{what}; its own stream {name!r} is read")
                renamed[name] = (name, definition)
            else:
                names = ", ".join(map(repr, in_file))
                self._refuse(f"{what}; it has: {names}{did_you_mean(alias, in_file)}", name)
        return renamed

    def _dtype_of(self, name: str, stream: StreamHeader) -> np.dtype[Any]:
        own = np.dtype(np.float64 if stream.is_double else np.float32)
        if self._options.dtype is None:
            return own
        dtype = np.dtype(self._options.dtype)
        if dtype != own and not self._options.convert:
            raise ConfigError(
                f"{self.name}: stream {name!r} is in {own}, not in the requested {dtype}; expected "
                + self._reading.wording.setting("dtype", str(own)),
                key="precision",
            )
        return dtype

    def _shape_of(self, name: str, stream: StreamHeader, definition: Mapping[str, Any]) -> Any:
        """Return the shape of the definition; the file's shape if it has none, or one of another size."""
        shape, is_sparse = definition.get("dim"), definition.get("is_sparse", False)
        if shape is not None and num_values(shape) != stream.dim:
            self._refuse(
                f"stream {name!r} has {stream.dim} values a sample, not the requested {num_values(shape)}; expected "
                f"{self._reading.wording.setting('shape', stream.dim)}, another shape of {stream.dim} values, or none",
                name,
            )
            shape = None
        # The dense form is the default of `StreamDef`, so without a shape it is not the user's choice.
        if is_sparse != stream.is_sparse and (is_sparse or "dim" in definition):
            self._reading.remark(
                self.name,
                f"stream {name!r} is {_form(stream.is_sparse)}, not {_form(is_sparse)} as requested; "
                "it is read as it is",
            )
        return stream.dim if shape is None else shape

    def _refuse(self, what: str, name: str) -> None:
        """Raise an error about a definition, or only warn, as CNTK 2.7 does."""
        if not self._options.compatible:
            raise ConfigError(f"{self.name}: {what}", key=name)
        self._reading.remark(self.name, what)

    # ------------------------------------------------------------------------------------------------------ table

    def _read_table(self) -> SequenceTable:
        chunk_starts = np.concatenate([[0], np.cumsum(self.header.num_sequences)])
        # The check of the header has shown that the file has enough bytes for all these sequences.
        lengths = np.ones(chunk_starts[-1], "<u4")
        if self.layout == "2.x":
            self._read_lengths(lengths, chunk_starts)
        else:
            self._parse_lengths(lengths, chunk_starts)
        if not lengths.all():
            sequence = int(np.argmin(lengths))
            chunk_id = int(span_at(chunk_starts, sequence))
            raise FormatError(
                "the length list says 0 samples; expected at least 1",
                path=self.name,
                byte=int(self.header.begins[chunk_id]) + 4 * (sequence - int(chunk_starts[chunk_id])),
                sequence=sequence,
            )
        keys = np.arange(len(lengths), dtype=np.uint64)
        return SequenceTable(keys, lengths.astype(np.uint32, copy=False), chunk_starts.astype(np.int64))

    def _read_lengths(self, lengths: npt.NDArray[np.uint32], chunk_starts: npt.NDArray[np.int64]) -> None:
        """Read the lengths of sequences, which are at the beginning of each chunk of the 2.x layout."""
        header = self.header
        parts = itertools.pairwise(chunk_starts.tolist())
        for (first, last), begin in zip(parts, header.begins.tolist(), strict=True):
            self._file.read_into(lengths[first:last].view(np.uint8), begin)
        sums = np.add.reduceat(lengths, chunk_starts[:-1], dtype=np.int64)
        wrong = np.flatnonzero(sums != header.num_samples)
        if len(wrong):
            chunk_id = int(wrong[0])
            raise FormatError(
                f"the lengths of chunk {chunk_id} sum up to {sums[chunk_id]}, but the table of chunks says "
                f"{header.num_samples[chunk_id]} samples",
                path=self.name,
                byte=int(header.begins[chunk_id]),
            )

    def _parse_lengths(self, lengths: npt.NDArray[np.uint32], chunk_starts: npt.NDArray[np.int64]) -> None:
        """Find the lengths of sequences in the documented layout: parse the chunks with more samples than sequences."""
        header = self.header
        if any(stream.is_sparse for stream in header.streams):
            for chunk_id in np.flatnonzero(header.num_samples != header.num_sequences).tolist():
                _, parsed, _ = self._parse(chunk_id)
                lengths[chunk_starts[chunk_id] : chunk_starts[chunk_id + 1]] = parsed

    # ------------------------------------------------------------------------------------------------------- data

    def places(self, sequences: npt.NDArray[np.int64]) -> PlacesInFiles:
        begins = self.header.begins[span_at(self.table.chunk_starts, sequences)].astype(np.int64)
        return PlacesInFiles([self.name], np.zeros(len(begins), np.int64), begins)

    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def num_lines(self) -> int:
        return self.table.num_sequences

    @property
    def memory(self) -> BinaryMemory:
        file = self._file
        return BinaryMemory(self.header, self.streams, self._kept, self._fingerprint, file.size, file.stamp)

    def use_table(self, table: SequenceTable) -> None:
        self.table = table

    def log_remarks(self) -> None:
        """Do nothing: the header is checked when the file is opened."""

    def require_sequences(self) -> None:
        """Do nothing: every header has chunks, and every chunk has sequences."""

    def is_sound(self, loaded: Loaded) -> bool:
        return not loaded.findings

    def error_at(self, sequence_index: int, what: str) -> FormatError:
        return FormatError(what, path=self.name, sequence=self._key(sequence_index))

    def load(self, chunk_id: int) -> Loaded:
        kept = self._kept.get(chunk_id)
        if kept is not None:
            return kept
        loaded = self._load(chunk_id, None)
        if self._options.keep_data_in_memory:
            self._kept[chunk_id] = loaded
        return loaded

    @property
    def load_part(self) -> Callable[[int, npt.NDArray[np.uint32]], Loaded] | None:
        return None if self._options.keep_data_in_memory else self._load

    def _load(self, chunk_id: int, sequences: npt.NDArray[np.uint32] | None) -> Loaded:
        """Load a chunk, or some of its sequences: their indices in it."""
        chunk, lengths, num_unused = self._parse(chunk_id, sequences)
        first, last = self.table.bounds_of(chunk_id)
        if self.layout == "documented" and not np.array_equal(lengths, self.table.lengths[first:last]):
            raise self._samples_error(chunk_id, lengths)
        return Loaded(chunk_id, chunk, num_unused, sequences)

    def take_parsed(self) -> dict[int, Loaded]:
        return {}

    def _parse(
        self, chunk_id: int, sequences: npt.NDArray[np.uint32] | None = None
    ) -> tuple[_core.Chunk, npt.NDArray[np.uint32], int]:
        """Parse a chunk, or some of its sequences: their indices in it.

        The bytes of a mapped chunk stay where they are; a copied chunk keeps only these sequences.

        Returns:
            The sequences; in the documented layout, the lengths of all sequences of the chunk; and the number of unused
            bytes.
        """
        header = self.header
        begin, num_samples = int(header.begins[chunk_id]), int(header.num_samples[chunk_id])
        is_documented = self.layout == "documented"
        size = int(header.ends[chunk_id]) - begin
        try:
            chunk, num_used, lengths, fault = _core.cbf_read(
                self._binary,
                begin,
                size,
                memory_map=self._options.memory_map,
                num_sequences=int(header.num_sequences[chunk_id]),
                streams=self._schema,
                most_samples=min(num_samples, _MOST_SAMPLES_PER_BYTE * self._file.size) if is_documented else None,
                num_threads=num_threads(),
                piece_size=piece_size(size, _PIECE),
                spare=self._spare,
                own=None if is_documented else sequences,
            )
        finally:
            # If the file has changed, that explains more than any fault.
            self._file.require_unchanged()
        if fault is not None:
            raise self._error(chunk_id, Fault(*fault))
        assert chunk is not None
        if is_documented and lengths.sum(dtype=np.int64) > num_samples:
            raise self._samples_error(chunk_id, lengths)
        if sequences is not None and is_documented:
            chunk = chunk.only(sequences)
        elif sequences is not None and not self._options.memory_map:
            chunk = chunk.in_full_width()
        return chunk, lengths, size - num_used

    def _samples_error(self, chunk_id: int, lengths: npt.NDArray[np.uint32]) -> FormatError:
        return FormatError(
            f"chunk {chunk_id} has {lengths.sum(dtype=np.int64)} samples, but the table of chunks says "
            f"{self.header.num_samples[chunk_id]}",
            path=self.name,
            byte=int(self.header.begins[chunk_id]),
        )

    def _key(self, sequence_index: int) -> int:
        """Return the key of a sequence: its number in the corpus, or in its file while the corpus is being opened."""
        return int(self.table.keys[sequence_index]) if self.table.num_sequences else sequence_index

    def _error(self, chunk_id: int, fault: Fault) -> FormatError:
        header = self.header
        num_before = int(header.num_sequences[:chunk_id].sum())
        dim = 0 if fault.stream is None else header.streams[fault.stream].dim
        return FormatError(
            fault.text(dim, int(header.num_sequences[chunk_id])),
            path=self.name,
            byte=int(header.begins[chunk_id]) + fault.offset,
            sequence=None if fault.sequence is None else self._key(num_before + fault.sequence),
            stream=None if fault.stream is None else self.streams[fault.stream].name,
            kind=fault.name,
        )

    def account_for(self, loaded: Loaded) -> None:
        num_unused, kind = loaded.findings, "chunk with unused bytes"
        if num_unused:
            error = FormatError(
                f"the last {num_unused} bytes of chunk {loaded.chunk_id} are not used by any stream",
                path=self.name,
                byte=int(self.header.ends[loaded.chunk_id]) - num_unused,
            )
            if self._options.strict:
                raise error
            self.report.count(kind)
            self.report.log(kind, lambda: error)

    def release(self) -> None:
        self._file.close()

    def close(self) -> None:
        self.report.log_totals()
        self.release()
        self._kept.clear()


def _form(is_sparse: bool) -> Literal["dense", "sparse"]:
    return "sparse" if is_sparse else "dense"

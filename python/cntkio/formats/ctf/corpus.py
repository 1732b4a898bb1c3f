"""The options of a text, the opened corpus, and the treatment of its errors."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio._threads import num_threads, piece_size
from cntkio.arguments import check_fields, float_type
from cntkio.displays import counted
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats.block_cache import require_room
from cntkio.formats.cntk_options import TEXT, CntkOptions
from cntkio.formats.columns import span_at
from cntkio.formats.compressed import explained
from cntkio.formats.concatenation import Concatenation, KeysOf, check_keys_of, concatenated
from cntkio.formats.contract import NOTHING_AHEAD, Ahead, Corpus, Deserializer, Joins, Loaded, PlacesInFiles
from cntkio.formats.ctf import tuning
from cntkio.formats.ctf.findings import (
    KINDS,
    KINDS_OF_GAPS,
    KINDS_OF_MISFITS,
    KINDS_OF_VALUES,
    NO_FINDINGS,
    REMARKS,
    Finding,
    Findings,
    byte_text,
)
from cntkio.formats.ctf.index import (
    NO_PASS,
    FirstPass,
    IndexSettings,
    StreamSchema,
    TextIndex,
    cached_index,
    key_text,
    make_index,
)
from cntkio.formats.ctf.infer import advice_on_streams, streams_at_the_start, streams_between
from cntkio.formats.ctf.places import ChunkPlaces
from cntkio.formats.detect import other_in
from cntkio.formats.file_lists import FileNames, listed_files, shown_files
from cntkio.formats.index_cache import LEAST_CACHED, CacheFiles, Written, file_fingerprint, publish
from cntkio.formats.input_file import Locator, changed_in_use
from cntkio.formats.open_input import open_input, presumed_sizes, text_sizes
from cntkio.formats.passes import announced_together
from cntkio.formats.remote import Remote, default_remote, is_remote, located
from cntkio.formats.report import UNKNOWN_NAME, Report
from cntkio.formats.table import NO_SEQUENCES, SequenceTable
from cntkio.formats.text_input import CoreText, PackedText, TextInput
from cntkio.hints import did_you_mean, suggests_keywords, wording
from cntkio.streams import LARGEST_DIM, StreamDefs, StreamInformation, check_definers, named, num_values

# A stream's name in a text.
_ALIAS = re.compile(r"(?!#)[!-{}-\ud7ff\ue000-\U0010ffff]+")
# Memory of released chunks is kept for later chunks, up to the size of the text of this many chunks.
_SPARE_CHUNKS = 2


@suggests_keywords
@dataclasses.dataclass(eq=False, repr=False)
class CTFDeserializer(CntkOptions):
    """A corpus in the CNTK text format.

    CNTK's names of options work, too: ``deserializer["chunkSizeInBytes"] = 1 << 20`` has the effect of
    ``chunk_size_in_bytes=1 << 20``.

    Args:
        filename: The file; or several files that are one corpus: a pattern such as ``"train-*.ctf"`` or
            ``"train-{000..127}.ctf"``, or a list; also URLs in a remote store, such as ``"s3://bucket/train-*.ctf"``
            (docs/where-corpora-can-be.md).
        streams: The streams to read, each with its name in the file, its dimension and its form.
        skip_sequence_ids: Read each line as a sequence, and ignore ids.
        max_errors: Number of errors that are forgiven in all; a negative number forgives any number.
        chunk_size_in_bytes: Bytes of text that are read and parsed together.
        cache_index: Keep the index in a file next to the corpus, or else in the user's cache folder; "verify": also
            compare the whole corpus with a checksum before the cache is used.
        dtype: Type of the delivered values, float32 or float64.
        strict: Turn warnings into errors.
        subset: Do not count lines and sequences without any of the streams as errors: the file has other streams, too.
        keys: ``"unique"``: an id that is in two files is an error; ``"per_file"``: keys are file and id, as the number
            ``file * 10**12 + id`` (with words as ids, ``file/id``), where files count from 0.
        remote: How to read a remote store: credentials, a cache on a local disk, requests.

    Raises:
        ConfigError: An option is not possible.

    Example:
        >>> from cntkio.streams import StreamDef, StreamDefs
        >>> CTFDeserializer("train.ctf", StreamDefs(x=StreamDef(field="features", shape=784)), max_errors=5)
        CTFDeserializer('train.ctf', StreamDefs(x=StreamDef(field='features', shape=784)), max_errors=5)
    """

    filename: FileNames
    streams: Mapping[str, Any]
    _: dataclasses.KW_ONLY
    skip_sequence_ids: bool = False
    max_errors: int = 0
    chunk_size_in_bytes: int = 32 << 20
    cache_index: bool | Literal["verify"] = False
    dtype: npt.DTypeLike = np.float32
    strict: bool = False
    subset: bool = False
    keys: KeysOf = "unique"
    remote: Remote | None = None
    has_text_keys = False
    cntk_type = "CNTKTextFormatDeserializer"
    cntk_options = TEXT

    def __post_init__(self) -> None:
        """Check all options that can be checked without the file."""
        self.filename, self.remote = located("filename", self.filename, self.remote)
        check_keys_of(self.keys)
        check_fields(self, words={"cache_index": "verify"})
        self.streams = StreamDefs(self.streams)
        if not self.streams:
            raise ConfigError("CTFDeserializer: no streams; expected at least one StreamDef", key="streams")
        self.dtype = float_type("dtype", self.dtype)
        if self.chunk_size_in_bytes < 1:
            raise ConfigError(
                f"chunk_size_in_bytes is {self.chunk_size_in_bytes}; expected at least 1", key="chunk_size_in_bytes"
            )
        seen: dict[str, str] = {}
        for name, stream in self.streams.items():
            self._check_stream(name, stream)
            other = seen.setdefault(stream["stream_alias"], name)
            if other != name:
                raise ConfigError(
                    f"streams {other!r} and {name!r} have the same name {stream['stream_alias']!r} in the file",
                    key=name,
                )
        check_definers([name for name, stream in self.streams.items() if stream["defines_mb_size"]])

    def _check_stream(self, name: str, stream: Mapping[str, Any]) -> None:
        alias = stream.get("stream_alias")
        if not alias:
            raise ConfigError(
                f"CTFDeserializer: stream name for key {name} must be specified (StreamDef(field=...))", key=name
            )
        if not _ALIAS.fullmatch(alias):
            raise ConfigError(
                f"stream {name!r}: no text has a stream named {alias!r}; expected a name without white space, pipes "
                "and control characters, not beginning with '#' (StreamDef(field=...))",
                key=name,
            )
        if "dim" not in stream:
            raise ConfigError(f"CTFDeserializer: stream {name!r} has no shape (StreamDef(shape=...))", key=name)
        dim = num_values(stream["dim"])
        if not 1 <= dim <= LARGEST_DIM:
            raise ConfigError(f"stream {name!r}: dimension {dim}; expected 1 to {LARGEST_DIM}", key=name)

    @property
    def label(self) -> str:
        return shown_files(self.filename)

    def parts(self) -> Sequence[Deserializer]:
        return (self,)

    def open(self, *, text_keys: bool = False, ahead: Ahead = NOTHING_AHEAD) -> CTFCorpus | Concatenation:
        """Open the files and index them, or load the indexes.

        Args:
            text_keys: Whether ids are words, as with HTK features and labels. An index with words is not cached.
            ahead: The chunks that are needed immediately. The pass that makes the index parses them, so that they are
                read only once. If the index comes from its cache, nothing is parsed.

        Raises:
            OSError: A file cannot be read, or no file matches a pattern.
            FormatError: The beginning of a file breaks the format, an id does not fit 64 bits, or two files have the
                same id.
            CorpusError: No sequence is left to read.
        """
        paths = listed_files(self.filename, remote=self.remote)
        are_several = len(paths) > 1
        sizes = (presumed_sizes if are_several else text_sizes)(paths, self.remote)  # opens no file of several
        largest = max(sizes) if all(sizes) else self.chunk_size_in_bytes
        reading = TextReading(self, text_keys, is_packed=ahead.is_packed, largest=largest, are_several=are_several)
        if are_several:
            shares = ahead.shared(sizes, self.chunk_size_in_bytes)
            with announced_together("indexing", sizes):
                files = concatenated(paths, reading, self.label, shares, keys=self.keys)
            with closed_after_errors(files):
                self._require_room(paths, ahead, files.table, None)
            return files
        corpus = reading.open(paths[0], ahead)
        with closed_after_errors(corpus):
            corpus.log_remarks()
            corpus.require_sequences()
            self._require_room(paths, ahead, corpus.table, corpus.num_bytes)
        return corpus

    def index_caches(self) -> list[Path]:
        """Make the missing index caches, of sequences and of access points, and return all of them. (docs/ray.md)

        Another machine with copies of these files does not have to make the index again.

        Returns:
            The files; empty without `cache_index`, or where no cache can be written.

        Raises:
            OSError, FormatError, CorpusError: As for `open`.

        Example:
            >>> from cntkio.streams import StreamDef, StreamDefs
            >>> streams = StreamDefs(x=StreamDef(field="lengths", shape=4))
            >>> len(CTFDeserializer("examples/iris/iris.ctf", streams, cache_index=True).index_caches())
            1
        """
        with contextlib.closing(self.open()) as corpus:
            return corpus.index_caches.paths()

    def _require_room(self, paths: Sequence[str], ahead: Ahead, table: SequenceTable, num_bytes: int | None) -> None:
        if any(is_remote(path, self.remote) for path in paths):
            limit = (self.remote or default_remote()).cache_limit
            require_room(limit, ahead, table, self.chunk_size_in_bytes, num_bytes)


@contextlib.contextmanager
def closed_after_errors(corpus: Corpus) -> Iterator[None]:
    """Close a corpus if the block raises an exception."""
    try:
        yield
    except BaseException:
        corpus.close()
        raise


class TextReading:
    """Settings that all texts of a corpus share. Opens the texts.

    Args:
        options: The deserializer.
        text_keys: Whether ids are words.
        is_packed: Whether all chunks will only be packed into minibatches.
        largest: Bytes of the largest file.
        are_several: Whether there are several files. If so, small uncompressed local files have no index cache.

    Attributes:
        options: The deserializer.
        text_keys: Whether ids are words.
        streams: The streams.
        schema: Facts about the streams that the parser needs.
        names: Names of the streams, by their names in the text.
        defining: Index of the stream that defines the minibatch size; None: no stream defines it.
        core_schema: The schema for the core.
        spare: Memory of released chunks.
        report: Errors and warnings of all files.
        wording: The form in which the caller writes options.
        num_error_kinds: Number of kinds of findings that are errors; they are the first kinds.
    """

    def __init__(
        self, options: CTFDeserializer, text_keys: bool, *, is_packed: bool, largest: int, are_several: bool
    ) -> None:
        self.options = options
        # Threads of their own, which do not have the default of this thread, open files again.
        self._remote = options.remote or default_remote()
        self.text_keys = text_keys
        self._are_several = are_several
        streams = named(options.streams)
        self.streams = tuple(
            StreamInformation(
                name,
                stream_index,
                "sparse" if stream["is_sparse"] else "dense",
                options.dtype,
                stream["dim"],
                stream["defines_mb_size"],
            )
            for stream_index, (name, stream) in enumerate(streams)
        )
        self.schema = [
            StreamSchema(
                stream["stream_alias"].encode(),
                stream["is_sparse"],
                num_values(stream["dim"]),
                options.dtype == np.float64,
            )
            for _, stream in streams
        ]
        self.names = {stream["stream_alias"].encode(): name for name, stream in streams}
        self.defining = next((info.stream_id for info in self.streams if info.defines_mb_size), None)
        self.report = Report(options.label, options.max_errors)
        self.core_schema = _core.CTFSchema(
            self.schema,
            defining=self.defining,
            has_words=text_keys,
            is_compact=is_packed,
            is_subset=options.subset,
            keeps_findings=self.report.is_observed,
            notes_unknown_names=self.report.asks_for(UNKNOWN_NAME),
        )
        self.spare = _core.Spare(_SPARE_CHUNKS * min(options.chunk_size_in_bytes, largest))
        self.wording = wording()
        self.num_error_kinds = len(KINDS) if options.strict else _core.CTF_NUM_ERROR_KINDS

    def open(self, path: str, ahead: Ahead) -> CTFCorpus:
        """Open a file, and index it or load its index.

        Raises:
            OSError, FormatError: See `CTFDeserializer.open`.
        """

        def index(file: TextInput) -> TextIndex:
            if ahead.is_shuffled and file.only_in_order is not None:
                raise CorpusError(
                    f"{file.path}: cannot be randomized: it has {file.only_in_order}{self._ways_out(file)}"
                )
            names = self.report.asks_for(UNKNOWN_NAME)
            # Several files share `ahead` by their sizes, which say nothing about compressed texts.
            wanted = NOTHING_AHEAD if self._are_several and file.compression is not None else ahead
            return self._index(file, FirstPass(wanted, self.schema, self.spare, notes_unknown_names=names))

        return CTFCorpus(self, self._opened(path), index)

    def _ways_out(self, file: TextInput) -> str:
        """Return advice about a text that can only be read in order."""
        in_order, cache = (self.wording.setting(*option) for option in (("randomize", False), ("cache", "FOLDER")))
        convert = f"cntkio convert --compress zstd {shlex.quote(file.path)} NEW.ctf.zst"
        return (
            f". Read it in order ({in_order}); or keep its text, {file.size:,} bytes, in a folder on a local disk "
            f"({cache}); or write frames of 4 MB ({convert})"
        )

    def open_again(self, path: str, memory: TextMemory) -> CTFCorpus:
        """Open a file that was open before. `CTFCorpus.use_table` sets its table.

        Raises:
            OSError: The file cannot be read any more.
            CorpusError: The file was changed.
        """

        def index(file: TextInput) -> TextIndex:
            if file.stamp != memory.stamp:
                raise changed_in_use(path, memory.size, file.size)
            return memory.known or self._index(file, NO_PASS)

        return CTFCorpus(self, self._opened(path, memory.guide), index, memory.fingerprint)

    def _opened(self, path: str, guide: object = None) -> TextInput:
        return open_input(path, self._remote, cache_index=self.options.cache_index, guide=guide)

    def _index(self, file: TextInput, first_pass: FirstPass) -> TextIndex:
        options = self.options
        settings = IndexSettings(
            options.skip_sequence_ids,
            None if self.defining is None else self.schema[self.defining].alias,
            options.chunk_size_in_bytes,
            self.text_keys,
        )
        is_small = file.size < LEAST_CACHED and file.local_path is not None and file.compression is None
        if options.cache_index and not self.text_keys and not (is_small and self._are_several):
            index = cached_index(file, settings, first_pass, verify=options.cache_index == "verify")
        else:
            index = make_index(file, settings, first_pass)
        if index.parsed:
            file.require_unchanged()
        return index


class TextMemory(NamedTuple):
    """Facts about a closed text with which to open it again.

    Attributes:
        known: Its index; None: the index is in the cache, whose file need not stay open.
        fingerprint: Its fingerprint.
        size: Its size in bytes.
        stamp: `TextInput.stamp`.
        guide: `TextInput.guide`.
    """

    known: TextIndex | None
    fingerprint: str
    size: int
    stamp: object
    guide: object


class CTFCorpus:
    """An opened file in the CNTK text format.

    Created by `CTFDeserializer.open`; `cntkio.formats.Corpus` documents its methods.

    Attributes:
        index: The index.
    """

    utterances = None
    joins: Joins = "anywhere"

    def __init__(
        self,
        reading: TextReading,
        file: TextInput,
        index: Callable[[TextInput], TextIndex],
        fingerprint: str | None = None,
    ) -> None:
        self._reading, self._options = reading, reading.options
        self._schema, self._spare = reading.schema, reading.spare
        self.streams, self.report = reading.streams, reading.report
        self._file = file
        self.name = self._file.path
        self._locator = Locator(self._file)
        try:
            self.index = index(self._file)
            self._fingerprint = fingerprint or file_fingerprint(self._file, self.table, self.index.content)
        except BaseException:
            self._file.close()
            raise

    def log_remarks(self) -> None:
        """Log the remarks of the index.

        Raises:
            FormatError: Warnings are errors.
        """
        for kind, remark in self.index.remarks.items():
            self.report.count(kind, remark.total)
            for left, example in zip(range(remark.total, 0, -1), remark.examples, strict=False):
                error = partial(self._locator.error, example.offset, REMARKS[kind], sequence=example.key)
                if self._options.strict:
                    raise error()
                is_last = example is remark.examples[-1]
                self.report.log(kind, error, stands_for=left if is_last else 1)

    def require_sequences(self) -> None:
        """Refuse a text without a sequence.

        Raises:
            CorpusError: No sequence is left.
        """
        if self.table.num_sequences:
            return
        defining = self._reading.defining
        alias = "" if defining is None else self._schema[defining].alias.decode()
        raise CorpusError(
            f"{self.name}: no sequence contains {alias!r}, which defines the minibatch size; nothing is left"
            + did_you_mean(alias, [name.decode() for name in streams_at_the_start(self._file)])
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of the text."""
        return self._file.size

    @property
    def loads_at_once(self) -> int:
        return self._file.loads_at_once(self._options.chunk_size_in_bytes)

    @property
    def table(self) -> SequenceTable:
        return self.index.table

    @property
    def num_lines(self) -> int | None:
        return self.index.num_lines

    @property
    def index_caches(self) -> CacheFiles:
        """The index caches of the file: of its sequences, and of its access points."""
        return CacheFiles.of((self.index.cache, self._file.points_cache), self.index.writer)

    @property
    def memory(self) -> TextMemory:
        index = self.index._replace(table=NO_SEQUENCES, remarks={}, parsed=[], writer=None)
        known = None if index.cache is not None else index
        return TextMemory(known, self._fingerprint, self._file.size, self._file.stamp, self._file.guide)

    def use_table(self, table: SequenceTable) -> None:
        if table.num_sequences != self.table.num_sequences and self.table is not NO_SEQUENCES:
            raise self._mismatch()
        self.index = self.index._replace(table=table)

    def is_sound(self, loaded: Loaded) -> bool:
        return not any(loaded.findings.counts)

    def error_at(self, sequence_index: int, what: str) -> FormatError:
        key = key_text(self.table.keys[sequence_index])
        return self._locator.error(self.bounds_of(sequence_index)[0], what, sequence=key)

    def fingerprint(self) -> str:
        return self._fingerprint

    def load(self, chunk_id: int) -> Loaded:
        return self.load_part(chunk_id, None)

    def load_part(self, chunk_id: int, sequences: npt.NDArray[np.uint32] | None) -> Loaded:
        chunk, findings = self._parse(chunk_id, self.report.budget, sequences)
        return Loaded(chunk_id, chunk, findings, sequences)

    def take_parsed(self) -> dict[int, Loaded]:
        parsed, self.index = self.index.parsed, self.index._replace(parsed=[])
        return {chunk_id: Loaded(chunk_id, chunk, NO_FINDINGS) for chunk_id, chunk in enumerate(parsed)}

    def _parse(
        self,
        chunk_id: int,
        budget: int,
        sequences: npt.NDArray[np.uint32] | None = None,
        schema: _core.CTFSchema | None = None,
    ) -> tuple[_core.Chunk, Findings]:
        """Parse all sequences of a chunk, or some: their indices in it."""
        first, last = self.table.bounds_of(chunk_id)
        places, lengths = self._places_of(chunk_id), self.table.lengths[first:last]
        if sequences is not None:
            places, lengths = places.only(sequences), lengths[sequences]
        num_bytes, least = places.num_bytes, tuning.PIECE
        if sequences is not None:
            least = num_bytes // max(num_bytes // tuning.PIECE_OF_SOME, 1) + num_bytes // 64
        source = self._source(places, is_part=sequences is not None)
        with explained(self._file):
            try:
                chunk, counts, findings, last_straw = _core.ctf_parse(
                    source,
                    places.begin,
                    places.end,
                    places.starts,
                    places.sizes,
                    lengths,
                    schema or self._reading.core_schema,
                    budget=budget,
                    is_strict=self._options.strict,
                    num_threads=num_threads(),
                    piece_size=piece_size(num_bytes, least),
                    gap_size=tuning.GAP,
                    spare=self._spare,
                )
            except ValueError as error:
                raise self._mismatch() from error
            self._file.require_unchanged()
        straw = None if last_straw is None else Finding(*last_straw)
        first_findings = [Finding(*finding) for finding in findings]
        return chunk, Findings(counts, first_findings, straw, places.begin, first, sequences)

    def _source(self, places: ChunkPlaces, *, is_part: bool) -> CoreText | PackedText:
        """Return the source from which the core reads sequences. Large gaps in a part are left as zeros, not read."""
        size, least_gap = places.end - places.begin, self._file.least_gap if is_part else None
        ranges = [] if least_gap is None else places.ranges(least_gap)
        if least_gap is None or sum(end - begin for begin, end in ranges) > size - least_gap:
            return self._file.source_to_parse(places.begin, places.end)
        text = np.zeros(size, np.uint8)
        for begin, end in ranges:
            self._file.read_into(text[begin:end], places.begin + begin)
        return text, places.begin

    def _mismatch(self) -> CorpusError:
        cache = self.index.cache
        advice = "open it again" if cache is None else f"delete the index cache {str(cache)!r}"
        return CorpusError(f"{self.name}: the index does not match the file; {advice}")

    def account_for(self, loaded: Loaded) -> None:
        findings: Findings = loaded.findings
        if not any(findings.counts):
            return
        num_errors = sum(findings.counts[: self._reading.num_error_kinds])
        if findings.last_straw is not None or not self.report.forgive(num_errors):
            left = self.report.exhaust()
            if left < self.report.budget:
                # The chunk was parsed with the whole budget. Parse it with the rest to find the first error beyond it.
                _, findings = self._parse(loaded.chunk_id, left, loaded.sequences)
            assert findings.last_straw is not None
            raise self._last_error(findings, findings.last_straw)
        for index, (kind, count) in enumerate(zip(KINDS, findings.counts, strict=True)):
            if count:
                self.report.count(kind.name, count, is_error=index < self._reading.num_error_kinds)
        for finding in findings.first:
            self.report.log(KINDS[finding.kind].name, partial(self._error, findings, finding))

    def _last_error(self, findings: Findings, finding: Finding) -> FormatError:
        """Return the error that exceeds the budget, with advice."""
        budget = self.report.budget
        more = f" (error {budget + 1}, and {self._reading.wording.option('max_errors')} is {budget})" if budget else ""
        more += (other := other_in("ctf", self._file))
        if not other and KINDS[finding.kind].name in KINDS_OF_MISFITS:
            asked = self._schema if finding.stream is None else [self._schema[finding.stream]]
            more += self._advice_on_gap(findings, finding) or advice_on_streams(
                self._file, asked, self._fits, self._reading.names, self._reading.wording
            )
        return self._error(findings, finding, more)

    def _advice_on_gap(self, findings: Findings, finding: Finding) -> str:
        """Return advice about a line or a sequence that has only other streams."""
        kind = KINDS[finding.kind].name
        if kind not in KINDS_OF_GAPS:
            return ""
        begin = findings.first_byte + finding.offset
        end = self.bounds_of(findings.sequence_index(finding))[1]
        is_line = kind == "line without a sample"
        asked = {schema.alias.decode() for schema in self._schema}
        known = {name.decode() for name in streams_at_the_start(self._file)}
        there = streams_between(self._file, begin, end, is_line=is_line)
        others = [name for name in there if name not in asked]
        is_unknown = finding.stream is not None and self._schema[finding.stream].alias.decode() not in known
        if not others or is_unknown or not asked & {*known, *there}:
            return ""
        return (
            f"; the {'line' if is_line else 'sequence'} has {', '.join(map(repr, others))}; "
            f"ask for these streams, too, or forgive such errors ({self._reading.wording.setting('subset', True)})"
        )

    def places(self, sequences: npt.NDArray[np.int64]) -> PlacesInFiles:
        begins = self.index.places.first_bytes(sequences, self.table.chunk_starts)
        return PlacesInFiles([self.name], np.zeros(len(begins), np.int64), begins, self._locator.lines_of(begins))

    def bounds_of(self, sequence_index: int) -> tuple[int, int]:
        """Return the first byte of a sequence, and the byte after it."""
        chunk_id = int(span_at(self.table.chunk_starts, sequence_index))
        return self._places_of(chunk_id).sequence(sequence_index - int(self.table.chunk_starts[chunk_id]))

    def bounds_at(self, byte: int) -> tuple[int, int]:
        """Return the first byte of the sequence that contains a byte, and the byte after the sequence."""
        return self._places_of(self.index.places.chunk_at(byte)).at(byte)

    def _places_of(self, chunk_id: int) -> ChunkPlaces:
        return self.index.places.of_chunk(chunk_id, *self.table.bounds_of(chunk_id))

    def _fits(self, definition: StreamSchema) -> bool:
        """Return whether this definition can read all values of its stream."""
        schema = _core.CTFSchema([definition], has_words=self._reading.text_keys)
        for chunk_id in range(self.table.num_chunks):
            _, findings = self._parse(chunk_id, 2**64 - 1, schema=schema)
            counts = zip(KINDS, findings.counts, strict=True)
            if any(count for kind, count in counts if kind.name in KINDS_OF_VALUES):
                return False
        return True

    def _error(self, findings: Findings, finding: Finding, more: str = "") -> FormatError:
        sequence_index = findings.sequence_index(finding)
        offset = findings.first_byte + finding.offset
        dim = 0 if finding.stream is None else self._schema[finding.stream].dim
        what = KINDS[finding.kind].words.format(
            byte=byte_text(self._file.read(offset, 1)),
            found=finding.found,
            dim=dim,
            last=dim - 1,
            values=counted(finding.found, "value"),
            samples=counted(finding.found, "sample"),
            lines=counted(int(self.table.lengths[sequence_index]), "line"),
        )
        return self._locator.error(
            offset,
            what + more,
            sequence=key_text(self.table.keys[sequence_index]),
            stream=None if finding.stream is None else self.streams[finding.stream].name,
            kind=KINDS[finding.kind].name,
        )

    def publish_index(self) -> str | None:
        """Write the index cache of a text in a remote store next to it, and return its name; None: nothing to write.

        Raises:
            OSError: The store does not accept it.
        """
        if self._file.companions is None or self.index.cache is None:
            return None if self.index.cache is None else os.fspath(self.index.cache)
        if self._file.points_cache is not None:
            publish(self._file, self._file.points_cache)
        return publish(self._file, self.index.cache)

    def written_cache(self) -> Written | None:
        """Wait for the index cache and return the result; None: it existed before, or no cache was requested."""
        return None if self.index.writer is None else self.index.writer.wait()

    def release(self) -> None:
        self.written_cache()
        self._file.close()

    def close(self) -> None:
        self.report.log_totals()
        self.release()

"""The options of a text, the opened corpus, and the treatment of its errors."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import errno
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args, overload

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._core import CTFFinding
from cntkio._threads import num_threads, piece_size
from cntkio.arguments import caller, check_word, did_you_mean, float_type, suggests_keywords, there_are, whole_number
from cntkio.displays import counted
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats.cntk_options import TEXT, CntkOptions
from cntkio.formats.contract import (
    NOTHING_AHEAD,
    OPENING,
    Ahead,
    Corpus,
    CorpusInFiles,
    Format,
    Index,
    KeysOf,
    Loaded,
    Opening,
    OpenText,
    PlacesInFiles,
    ReadingOptions,
)
from cntkio.formats.corpus import FilesDeserializer, opened_corpus
from cntkio.formats.ctf.findings import (
    KINDS_OF_FINDINGS,
    KINDS_OF_GAPS,
    KINDS_OF_MISFITS,
    KINDS_OF_VALUES,
    LONGEST_WORD,
    REMARKS,
    WORDS,
    ParserFindings,
    advice_at,
    byte_text,
)
from cntkio.formats.ctf.index import (
    ChunkPlaces,
    FirstPass,
    IndexSettings,
    Notes,
    PartOfText,
    StreamSchema,
    TextIndex,
    joined_parts,
    kept_index,
    make_index,
)
from cntkio.formats.ctf.infer import (
    Vocabulary,
    advice_on_streams,
    infer_streams,
    names_at_the_start,
    read_vocabularies,
    streams_at_the_start,
    streams_between,
)
from cntkio.formats.detect import old_line_ends, other_in
from cntkio.formats.losses import log_rounded, precision_that_keeps
from cntkio.formats.pieces import corpus_chunks, read_corpus
from cntkio.formats.report import UNKNOWN_NAME
from cntkio.formats.table import NO_SEQUENCES
from cntkio.layouts import classes_of, no_class
from cntkio.minibatch import Minibatch, MinibatchData
from cntkio.storage.block_cache import require_room_in_cache
from cntkio.storage.file_lists import listed_files
from cntkio.storage.index_cache import LEAST_CACHED, CacheFiles, Written
from cntkio.storage.names import FileNames, is_remote
from cntkio.storage.open_input import loads_at_once, one_file, open_input, presumed_sizes
from cntkio.storage.progress import announced_together
from cntkio.storage.remote import Remote, default_remote
from cntkio.storage.spans import span_at
from cntkio.storage.text_input import MARK_INSIDE, CoreText, PackedText, TextInput, explained, file_fingerprint
from cntkio.streams import (
    LARGEST_DIM,
    NUMBER_TYPES,
    StorageFormat,
    StreamDef,
    StreamDefs,
    StreamInformation,
    check_definers,
    named,
    num_values,
)

# Indices of sequences in their chunk, ascending; None: all.
_Sequences: TypeAlias = npt.NDArray[np.uint32] | None
# A stream's name in a text. Surrogates are excluded, because UTF-8 cannot encode them.
_ALIAS = re.compile(r"(?!#)[!-{}-\ud7ff\ue000-\U0010ffff]+")
# Sizes by which a chunk is divided among threads. They change only the time, never a result.
PIECE = 1 << 20
"""Least bytes of a chunk that a thread parses at a time."""
PIECE_OF_SOME = 4 << 20
"""The same for a part of a chunk's sequences: larger arrays get larger memory pages, and two chunks are parsed at the
same time anyway."""
GAP = 8 << 10
"""Most bytes between two wanted sequences that are read along with them, because skipping bytes takes another call."""
# Memory of released chunks is kept for later chunks, up to the size of the text of this many chunks.
_SPARE_CHUNKS = 2


@suggests_keywords
@dataclasses.dataclass(eq=False, repr=False)
class CTFDeserializer(FilesDeserializer, CntkOptions):
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
        self.check_files({"cache_index": "verify"})
        check_word("keys", self.keys, *get_args(KeysOf))
        self.streams = StreamDefs(self.streams)
        if not self.streams:
            raise ConfigError("CTFDeserializer: no streams; expected at least one StreamDef", key="streams")
        self.dtype = float_type("dtype", self.dtype)
        whole_number("chunk_size_in_bytes", self.chunk_size_in_bytes, least=1)
        seen: dict[str, str] = {}
        for name, stream in self.streams.items():
            _check_stream(name, stream)
            other = seen.setdefault(stream.stream_alias, name)
            if other != name:
                what = f"streams {other!r} and {name!r} have the same name {stream.stream_alias!r} in the file"
                raise ConfigError(what, key=name)
        check_definers([name for name, stream in self.streams.items() if stream.defines_mb_size])

    def open(self, opening: Opening = OPENING) -> Corpus:
        """Open the files and index them, or load the indexes.

        The pass that makes the index parses the chunks that are needed immediately, so that they are read only once. If
        the index comes from its cache, nothing is parsed. An index with ids that are words, as with HTK features and
        labels, is not cached.

        Raises:
            OSError: A file cannot be read, or no file matches a pattern.
            FormatError: The beginning of a file breaks the format, an id does not fit 64 bits, or two files have the
                same id.
            CorpusError: No sequence is left to read.
        """
        return opened_texts(self, partial(CTFFormat, self, opening), opening.ahead)

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
            return [path for caches in corpus.index.caches for path in caches.paths()]


def _check_stream(name: str, stream: StreamDef) -> None:
    alias, what = stream.stream_alias, None
    if not alias:
        what = f"CTFDeserializer: stream name for key {name} must be specified (StreamDef(field=...))"
    elif not _ALIAS.fullmatch(alias):
        what = (
            f"stream {name!r}: no text has a stream named {alias!r}; expected a name without white space, pipes and "
            "control characters, not beginning with '#' (StreamDef(field=...))"
        )
    elif stream.dim is None:
        what = f"CTFDeserializer: stream {name!r} has no shape (StreamDef(shape=...))"
    elif not 1 <= num_values(stream.dim) <= LARGEST_DIM:
        what = f"stream {name!r}: dimension {num_values(stream.dim)}; expected 1 to {LARGEST_DIM}"
    if what is not None:
        raise ConfigError(what, key=name)


def opened_texts(options: CTFDeserializer, make: Callable[[str, bool], CTFFormat], ahead: Ahead) -> Corpus:
    """Open the files of a text. `make` makes the format, from a name and whether there are several files."""
    # A single local file, the usual case, does not enter the modules about patterns and remote stores.
    remote, path = options.remote, one_file(options.filename, options.remote)
    if path is not None:
        return opened_corpus(make(path, False), [path], [ahead])
    paths = listed_files(options.filename, remote=remote)
    are_several = len(paths) > 1
    sizes = presumed_sizes(paths, remote)  # opens no file
    aheads = ahead.shared(sizes, options.chunk_size_in_bytes) if are_several else [ahead]
    with announced_together("indexing", sizes):
        corpus = opened_corpus(make(options.label, are_several), paths, aheads, keys=options.keys)
    try:
        # Only the table shows how many chunks a window of samples has, so the check comes after opening.
        if any(is_remote(path, remote) for path in paths):
            limit = (remote or default_remote()).cache_limit
            num_bytes = None if are_several else corpus.index.num_bytes
            require_room_in_cache(limit, ahead.chunks_in_window(corpus.table), options.chunk_size_in_bytes, num_bytes)
    except BaseException:
        corpus.close()
        raise
    return corpus


class ParseRules(NamedTuple):
    """The rules for parsing a chunk.

    Attributes:
        budget: The most errors that are forgiven.
        piece_size: Bytes that a thread parses at a time.
        gap_size: Text between sequences is read if it is at most this long.
    """

    budget: int
    is_strict: bool
    num_threads: int
    piece_size: int
    gap_size: int


class CTFFormat(Format):
    """Reads texts; a `Format`. If there are several files, small uncompressed local files have no index cache.

    Attributes:
        defining: Name in the text of the stream that defines the minibatch size; None: no stream defines it.
        spare: Memory of released chunks.
        wording: The form in which the caller writes options.
        num_error_kinds: Number of kinds of findings that are errors; they are the first kinds.
    """

    form: Literal["ctf", "svmlight"] = "ctf"

    def __init__(self, options: CTFDeserializer, opening: Opening, name: str, are_several: bool) -> None:
        self.options, self.opening, self._are_several = options, opening, are_several
        self.report, self.is_strict = opening.report(name, options.max_errors), options.strict
        # The core has room for this number, and no memory is larger.
        self.spare = _core.Spare(min(_SPARE_CHUNKS * options.chunk_size_in_bytes, sys.maxsize))
        # Errors are made later, when the caller's words may no longer be set.
        self.wording = caller().words
        self.num_error_kinds = _core.CTF_NUM_COSTLY_KINDS if options.strict else _core.CTF_NUM_ERROR_KINDS
        self.define(options.streams, [options.dtype] * len(options.streams))

    def define(
        self,
        definitions: Mapping[str, Any],
        dtypes: Sequence[npt.DTypeLike],
        svmlight: _core.SvmlightLayout | None = None,
    ) -> None:
        """Set the streams, whose types are in the order by name, and the schema for the core."""
        # The order by name is also the order in which errors about a sequence count.
        infos, self.schema = [], list[StreamSchema]()
        for stream_id, ((name, stream), dtype) in enumerate(zip(named(definitions), dtypes, strict=True)):
            form: StorageFormat = "sparse" if stream.is_sparse else "dense"
            info = StreamInformation(name, stream_id, form, dtype, stream.dim, stream.defines_mb_size)
            alias, number = stream.stream_alias.encode(), NUMBER_TYPES.index(info.dtype)
            infos.append(info)
            self.schema.append(StreamSchema(alias, info.is_sparse, info.dim, number))
        self.streams = tuple(infos)
        defining = next((info.stream_id for info in infos if info.defines_mb_size), None)
        self.defining = None if defining is None else self.schema[defining].alias
        lines, size = self.options.skip_sequence_ids, self.options.chunk_size_in_bytes
        self.index_settings = IndexSettings(lines, self.defining, size, self.opening.text_keys)
        opening, notes = self.opening, Notes(self.report.is_observed, self.report.asks_for(UNKNOWN_NAME))
        self.core_schema = _core.CTFSchema(
            self.schema, defining=defining, has_words=opening.text_keys, is_compact=opening.ahead.is_packed,
            is_subset=self.options.subset, notes=notes, svmlight=svmlight,
        )  # fmt: skip

    def open(self, path: str, index: Index | None) -> OpenText:
        options, guide = self.options, None if index is None else index.layout.guide
        settings = self.kept_as() if index is None and options.cache_index and not self.opening.text_keys else None
        text = open_input(path, options.remote, cache_index=options.cache_index, guide=guide, indexed_as=settings)
        return OpenText(text)

    def kept_as(self) -> dict[str, Any]:
        """Return the format and the settings on which the index depends, for its cache."""
        # JSON has no bytes; latin-1 turns any bytes into text, and different bytes into different texts.
        defining = None if self.defining is None else self.defining.decode("latin-1")
        return {
            "format": "ctf", "skip_sequence_ids": self.options.skip_sequence_ids, "defining": defining,
            "chunk_size_in_bytes": self.options.chunk_size_in_bytes,
        }  # fmt: skip

    def index(self, file: OpenText, ahead: Ahead) -> tuple[Index, list[_core.Chunk]]:
        text, storage = file.text, file.text.storage
        if ahead.is_shuffled and storage.only_in_order is not None:
            what = f"{text.path}: cannot be randomized: it has {storage.only_in_order}"
            raise CorpusError(what + self._ways_out(text))
        # Several files share `ahead` by their sizes, which say nothing about compressed texts.
        wanted = NOTHING_AHEAD if self._are_several and storage.compression is not None else ahead
        notes = Notes(unknown_names=self.report.asks_for(UNKNOWN_NAME))
        schema = _core.CTFSchema(self.schema, is_compact=True, notes=notes)
        # Observers want to know whether lines end with CR LF, which the index does not count.
        excluded = ord("\r") if self.report.is_observed else None
        made = self.make_index(text, FirstPass(wanted, schema, self.spare, excluded))
        table = dataclasses.replace(made.table, options=self.table_options())
        fingerprint = file_fingerprint(text, table.num_sequences, made.content)
        # The corpus has the table, and may replace it, so the layout must not keep its arrays.
        layout = made._replace(table=NO_SEQUENCES, parsed=(), guide=storage.guide)
        why_empty = "" if table.num_sequences else self._why_empty(text)
        points = () if storage.points_cache is None else (storage.points_cache,)
        caches = made.caches._replace(points=points, companions=storage.companions)
        index = Index(
            self.streams, table, layout, fingerprint=fingerprint, num_lines=made.num_lines, why_empty=why_empty,
            caches=(caches,), part_in_bytes=storage.part_in_bytes,
            loads_at_once=loads_at_once(storage.num_requests, min(self.options.chunk_size_in_bytes, text.size)),
        )  # fmt: skip
        return index, list(made.parsed)

    def _why_empty(self, text: TextInput) -> str:
        alias = (self.defining or b"").decode()
        hint = did_you_mean(alias, [name.decode() for name in streams_at_the_start(text)])
        return f"no sequence contains {alias!r}, which defines the minibatch size; nothing is left{hint}"

    def _ways_out(self, file: TextInput) -> str:
        in_order, cache = (self.wording.setting(*option) for option in (("randomize", False), ("cache", "FOLDER")))
        keep = f"keep its text, {file.size:,} bytes, in a folder on a local disk ({cache})"
        convert = f"cntkio convert --compress zstd {shlex.quote(file.path)} NEW.ctf.zst"
        return f". Read it in order ({in_order}); or {keep}; or write frames of 4 MB ({convert})"

    def table_options(self) -> dict[str, Any]:
        """Return the options of the deserializer on which the table depends, for the messages of checkpoints."""
        return {
            "chunk_size_in_bytes": self.options.chunk_size_in_bytes,
            "skip_sequence_ids": self.options.skip_sequence_ids,
            "defines_mb_size": None if self.defining is None else self.defining.decode(),
        }

    def make_index(self, file: TextInput, first_pass: FirstPass) -> TextIndex:
        """Make or load the index of a text, and parse the first chunks in the same pass."""
        cached, storage = self.options.cache_index, file.storage
        is_small = file.size < LEAST_CACHED and storage.local_path is not None and storage.compression is None
        # Opening the caches of many small files takes longer than making their indexes again.
        if cached and not self.opening.text_keys and not (is_small and self._are_several):
            # Only a damaged cache makes the index again, and then the chunks are not needed.
            make = partial(self.scan, file)
            index = kept_index(
                file, self.kept_as(), lambda again: make(None if again else first_pass), cached == "verify"
            )
        else:
            index = self.scan(file, first_pass)
        # The corpus checks other chunks after it has read them; for these chunks, this is the check.
        if index.parsed:
            file.storage.require_unchanged()
        return index

    def scan(self, file: TextInput, first_pass: FirstPass | None) -> TextIndex:
        """Make the index in a pass over the text, and parse the first chunks, if they are wanted."""
        return make_index(file, self.index_settings, first_pass)

    # ------------------------------------------------------------------------------------------------------------- data

    def parse(self, file: OpenText, index: Index, chunk_id: int, sequences: _Sequences) -> Loaded:
        chunk, findings = self._parse(file, index, chunk_id, self.report.budget, sequences, self.core_schema)
        return Loaded(chunk_id, chunk, findings if any(findings.counts) else None, sequences)

    def _parse(
        self, file: OpenText, index: Index, chunk_id: int, budget: int, sequences: _Sequences, schema: _core.CTFSchema
    ) -> tuple[_core.Chunk, ParserFindings]:
        text, table = file.text, index.table
        first, last = table.bounds_of(chunk_id)
        places, lengths = index.layout.places.of_chunk(chunk_id, first, last), table.lengths[first:last]
        if sequences is not None:
            places, lengths = places.only(sequences), lengths[sequences]
        num_bytes = places.num_bytes
        # Equal pieces of some sequences, each a little larger, so that no small remainder is left.
        least = PIECE if sequences is None else num_bytes // max(num_bytes // PIECE_OF_SOME, 1) + num_bytes // 64
        rules = ParseRules(budget, self.options.strict, num_threads(), piece_size(num_bytes, least), GAP)
        source = _source(text, places, is_part=sequences is not None)
        with explained(text):
            try:
                parsed = _core.ctf_parse(source, places, lengths, schema, rules, self.spare)
            except ValueError as error:
                # The core refuses places outside the text: of a damaged cache, or of a file that has become shorter.
                caches = [cache for of_file in index.caches for cache in of_file.indexes]
                advice = f"delete the index cache {str(caches[0])!r}" if caches else "open it again"
                raise CorpusError(f"{index.name}: the index does not match the file; {advice}") from error
        findings = ParserFindings(parsed.counts, parsed.first, parsed.last_straw, places.begin, first, sequences)
        return parsed.chunk, findings

    def log_rounded(self, path: str, index: Index) -> None:
        for dtype in {info.dtype for info in self.streams}:
            fields = [self.schema[info.stream_id].alias for info in self.streams if info.dtype == dtype]
            log_rounded(path, self.form, dtype, fields, self.options.remote)

    def account(self, file: OpenText, index: Index, loaded: Loaded) -> None:
        findings: ParserFindings = loaded.findings
        num_errors = sum(findings.counts[: self.num_error_kinds])
        if findings.last_straw is not None or not self.report.forgive(num_errors):
            left, budget = self.report.exhaust(), self.report.budget
            if left < budget:
                # The chunk was parsed with the whole budget. Parse it with the rest to find the first error beyond it.
                _, findings = self._parse(file, index, loaded.chunk_id, left, loaded.sequences, self.core_schema)
            straw = findings.last_straw
            assert straw is not None
            more = f" (error {budget + 1}, and {self.wording.option('max_errors')} is {budget})" if budget else ""
            other = other_in(self.form, file.text) or old_line_ends(file.text)
            more += other or self.advice(file, index, findings, straw)
            raise self._error(file, index, findings, straw, more)
        for number, (kind, count) in enumerate(zip(KINDS_OF_FINDINGS, findings.counts, strict=True)):
            if count:
                self.report.count(kind, count, is_error=number < self.num_error_kinds)
        for finding in findings.first:
            kind = KINDS_OF_FINDINGS[finding.kind]
            # A missing sample stands for missing samples of later sequences, which may be more than the text has bytes.
            num_cases = 1 + finding.found if kind == "stream without a sample" else 1
            self.report.log(kind, partial(self._error, file, index, findings, finding), stands_for=num_cases)

    def remark(self, file: OpenText, index: Index) -> None:
        for kind, remark in index.layout.remarks.items():
            error = partial(file.locator.error, what=REMARKS[kind])
            errors = [partial(error, offset, sequence=key) for offset, key in remark.examples]
            self.report.remark(kind, remark.total, errors, is_strict=self.options.strict)

    def words(self, kind: str, stream: int | None) -> str:
        """Return the template of the message about a kind of finding, as in `WORDS`."""
        return WORDS[kind]

    def advice_on_word(self, kind: str, text: bytes, before: bytes) -> str:
        """Return advice on what is at the place of a finding, as `advice_at` does."""
        return advice_at(kind, text, before)

    def advice(self, file: OpenText, index: Index, findings: ParserFindings, finding: CTFFinding) -> str:
        """Return advice about the last error, as the end of its message."""
        if KINDS_OF_FINDINGS[finding.kind] not in KINDS_OF_MISFITS:
            return ""
        streams = zip(self.streams, self.schema, strict=True)
        asked = {info.name: stream for info, stream in streams if finding.stream in (None, info.stream_id)}
        fits = partial(self._fits, file, index)
        gap = self._advice_on_gap(file, index, findings, finding)
        return gap or advice_on_streams(file.text, asked, fits, self.wording)

    def _advice_on_gap(self, file: OpenText, index: Index, findings: ParserFindings, finding: CTFFinding) -> str:
        """Return advice about a line or a sequence that has only other streams."""
        kind = KINDS_OF_FINDINGS[finding.kind]
        if kind not in KINDS_OF_GAPS:
            return ""
        begin = findings.first_byte + finding.offset
        end = bounds_of(index, findings.sequence_index(finding))[1]
        is_line = kind == "line without a sample"
        asked = [schema.alias.decode() for schema in self.schema]
        known = {name.decode() for name in streams_at_the_start(file.text)}
        there = streams_between(file.text, begin, end, is_line=is_line)
        others = ", ".join(repr(name) for name in there if name not in asked)
        # A requested stream that the first lines lack may have a wrong name: `advice_on_streams` says so.
        is_unknown = finding.stream is not None and asked[finding.stream] not in known
        if not others or is_unknown or known.union(there).isdisjoint(asked):
            return ""
        advice = f"ask for these streams, too, or forgive such errors ({self.wording.setting('subset', True)})"
        return f"; the {'line' if is_line else 'sequence'} has {others}; {advice}"

    def _fits(self, file: OpenText, index: Index, definition: StreamSchema) -> bool:
        """Return whether this definition can read all values of its stream."""
        schema = _core.CTFSchema([definition], has_words=self.opening.text_keys)
        for chunk_id in range(index.table.num_chunks):
            # A smaller budget could end the parse before the values of this stream are all read.
            _, findings = self._parse(file, index, chunk_id, 2**64 - 1, None, schema)
            if any(findings.counts[KINDS_OF_FINDINGS.index(kind)] for kind in KINDS_OF_VALUES):
                return False
        return True

    def _error(
        self, file: OpenText, index: Index, findings: ParserFindings, finding: CTFFinding, more: str = ""
    ) -> FormatError:
        kind, sequence_index = KINDS_OF_FINDINGS[finding.kind], findings.sequence_index(finding)
        offset = findings.first_byte + finding.offset
        dim = 0 if finding.stream is None else self.schema[finding.stream].dim
        what = self.words(kind, finding.stream).format(
            byte=byte_text(file.text.read(offset, 1)), found=finding.found, dim=dim, last=dim - 1,
            values=counted(finding.found, "value"), samples=counted(finding.found, "sample"),
            lines=counted(int(index.table.lengths[sequence_index]), "line"),
        )  # fmt: skip
        # A mark at the head is skipped. CNTK takes a second mark for blanks, so an id after it does not begin its line.
        begin = max(offset - LONGEST_WORD, 0)
        around = file.text.read(begin, offset - begin + LONGEST_WORD)
        before, word = around[: offset - begin], around[offset - begin :]
        if codecs.BOM_UTF8 in (word[:3], before[-3:] if offset > len(codecs.BOM_UTF8) else b""):
            more = f"; here is {MARK_INSIDE}"
        # Without ids, what stands before a line's first pipe is not an id.
        before = b"" if index.num_lines is not None else before if begin else b"\n" + before
        what += self.advice_on_word(kind, word, before) + more
        key = index.table.keys[sequence_index]
        stream = None if finding.stream is None else self.streams[finding.stream].name
        return file.locator.error(offset, what, sequence=key, stream=stream, kind=kind)

    def place(self, file: OpenText, index: Index, sequences: npt.NDArray[np.int64]) -> PlacesInFiles:
        begins = index.layout.places.first_bytes(sequences, index.table.chunk_starts)
        return PlacesInFiles([index.name], np.zeros(len(begins), np.int64), begins, file.locator.lines_of(begins))


def index_part(options: CTFDeserializer, part: PartOfText) -> CacheFiles:
    """Index a part of a text, and keep what is found in an index cache of its own.

    Raises:
        ConfigError: The options name several files, or a compressed one.
        OSError, FormatError, CorpusError: As for `CTFDeserializer.open`, or no place for the cache can be written.
    """
    with _undivided(options) as (text, kept, settings):
        return _kept(text, part.write(text, kept, settings))


def join_parts(options: CTFDeserializer, count: int) -> CacheFiles:
    """Join the parts of the index of a text, and write its index cache, which says the same as that of a single pass.

    Raises:
        CorpusError: A part is missing, of another state of the text, or damaged.
        ConfigError, OSError: As for `index_part`.
    """
    with _undivided(options) as (text, kept, settings):
        return _kept(text, joined_parts(text, kept, settings, count))


@contextlib.contextmanager
def _undivided(options: CTFDeserializer) -> Iterator[tuple[TextInput, dict[str, Any], IndexSettings]]:
    """Open the text of some options, and yield it with the settings of its index cache and of its index."""
    paths = listed_files(options.filename, remote=options.remote)
    if len(paths) > 1:
        raise ConfigError(f"{options.label}: {len(paths)} files; expected one text to index in parts", key="part")
    form = CTFFormat(options, OPENING, paths[0], are_several=False)
    with closing(form.open(paths[0], None)) as file:
        if file.storage.compression is not None:
            what = (
                f"{file.name}: is compressed with {file.storage.compression}, so its lines have no places of their own"
            )
            raise ConfigError(f"{what}; unpack it to index it in parts, or index it whole", key="part")
        yield file.text, form.kept_as(), form.index_settings


def _kept(text: TextInput, written: Written) -> CacheFiles:
    if written.path is None:
        raise OSError(errno.EACCES, f"The index cache cannot be written: {'; '.join(written.failures)}", text.path)
    return CacheFiles(indexes=(written.path,), companions=text.storage.companions)


def bounds_of(index: Index, sequence_index: int) -> tuple[int, int]:
    """Return the first byte of a sequence of a text, and the byte after it."""
    chunk_id = int(span_at(index.table.chunk_starts, sequence_index))
    first, last = index.table.bounds_of(chunk_id)
    layout: TextIndex = index.layout
    place = layout.places.of_chunk(chunk_id, first, last).only(np.array([sequence_index - first], np.uint32))
    return place.begin, place.end


def _source(text: TextInput, places: ChunkPlaces, *, is_part: bool) -> CoreText | PackedText:
    """Return the source from which the core reads sequences. Large gaps in a part are left as zeros, not read."""
    least_gap = text.storage.least_gap
    if is_part and least_gap is not None:
        ranges, size = places.ranges(least_gap), places.end - places.begin
        # Without a gap that is worth it, all bytes are read at once.
        if sum(end - begin for begin, end in ranges) <= size - least_gap:
            wanted = np.zeros(size, np.uint8)
            for begin, end in ranges:
                text.read_into(wanted[begin:end], places.begin + begin)
            return wanted, places.begin
    packed = text.storage.packed
    if packed is None or places.begin >= places.end:
        return text.source(places.begin, places.end)
    return packed(places.begin, places.end)


def options_of_texts(
    names: FileNames, options: ReadingOptions, form: Literal["ctf", "svmlight"], fields: Sequence[bytes] = ()
) -> dict[str, Any]:
    """Return the arguments of a deserializer of texts. `fields`: the fields that are read; empty: all."""
    taken = ("max_errors", "strict", "dtype", "chunk_size_in_bytes", "keys", "cache_index")
    arguments = {name: value for name, value in options.items() if name in taken}
    if "written" in options:
        dtype = options.get("dtype")
        arguments["dtype"] = precision_that_keeps(names, form, dtype, options["written"], fields)
    return arguments


def in_files(names: FileNames, options: ReadingOptions) -> list[CorpusInFiles]:
    """Return texts as the verbs read them (see `cntkio.formats.contract`)."""
    streams = StreamDefs(options.get("streams") or infer_streams(names))
    arguments = options_of_texts(names, options, "ctf", [stream.stream_alias.encode() for _, stream in named(streams)])
    read = CTFDeserializer(names, streams, skip_sequence_ids=options.get("skip_sequence_ids", False), **arguments)
    written = dataclasses.replace(read, max_errors=max(read.max_errors, 0), cache_index=False)
    corpus = CorpusInFiles(
        deserializers=[read],
        written=[written],
        chunk_sizes=f" of at most {written.chunk_size_in_bytes:,} bytes",
        order=list(written.streams),
        forgives_errors=read.max_errors != 0,
    )
    return [corpus]


# ---- Whole texts as arrays.

PARSED_AHEAD = 128 << 20
"""Most bytes of chunks that the pass over a text may parse for `read_ctf`, so that they are not read again. The number
changes memory and time, never a result."""


class CommentedMinibatch(Minibatch):
    """All sequences of a text, and the words of its comments.

    Attributes:
        vocabularies: For each stream whose one-hot samples are followed by comments, the word of each index.

    Example:
        >>> corpus = read_ctf("examples/alice/train.ctf", comments=True)
        >>> indices = corpus["w"].indices[corpus["w"].indptr[:5]]
        >>> [corpus.vocabularies["w"][index] for index in indices.tolist()]
        ['Alice', 'was', 'beginning', 'to', 'get']
    """

    __slots__ = ("vocabularies",)

    def __init__(self, minibatch: Minibatch, vocabularies: Mapping[str, Vocabulary]) -> None:
        keys = minibatch.keys_of_sequences
        super().__init__(minibatch, lambda: keys)
        self.vocabularies = dict(vocabularies)


@overload
def read_ctf(
    path: FileNames, streams: StreamDefs | Mapping[str, Any] | None = None, *, ids: Collection[str] = (),
    chunks: slice | None = None, comments: Literal[False] = False, **options: Any,
) -> Minibatch: ...  # fmt: skip
@overload
def read_ctf(
    path: FileNames, streams: StreamDefs | Mapping[str, Any] | None = None, *, ids: Collection[str] = (),
    chunks: slice | None = None, comments: Literal[True], **options: Any,
) -> CommentedMinibatch: ...  # fmt: skip
def read_ctf(
    path: FileNames, streams: StreamDefs | Mapping[str, Any] | None = None, *, ids: Collection[str] = (),
    chunks: slice | None = None, comments: bool = False, **options: Any,
) -> Minibatch:  # fmt: skip
    """Read a text in the CNTK text format into arrays, in its order.

    Args:
        path: The file; or several, a pattern or a list, as for `CTFDeserializer`.
        streams: The streams to read; None: all that `infer_streams` finds, which reads the file once more. If the file
            also has other streams, a sequence may lack the streams to read, and is empty.
        ids: Streams whose samples are one-hot, to read as the class of each sample: `values` are int32,
            ``[num_samples]``.
        chunks: The chunks to read, as a slice without a step; None: all. For more, see `cntkio.convert.corpus_chunks`.
        comments: Whether to also read the words in comments after one-hot samples, such as ``|S0 178:1 |# BOS``. The
            result is then a `CommentedMinibatch`, whose `vocabularies` have the word of each index.
        options: As for `CTFDeserializer`.

    Returns:
        A `Minibatch` of all sequences: by stream name `values`, `offsets` and, for sparse streams, `indices` and
        `indptr`; and `keys_of_sequences`. (docs/formats/ctf.md)

    Raises:
        OSError: The file cannot be read.
        FormatError: The file breaks the format.
        ConfigError: `ids` names an unknown stream.
        CorpusError: No sequence is left to read, or a sample of a stream in `ids` is not a single entry of 1.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.ctf")
        >>> _ = path.write_text("7 |word 3:1 |tag 1 0\\n7 |word 5:1 |tag 0 1\\n9 |word 3:1 |tag 1 0\\n")
        >>> corpus = read_ctf(path)
        >>> corpus.keys_of_sequences, corpus["word"].offsets, corpus["word"].indices
        (array([7, 9], dtype=uint64), array([0, 2, 3]), array([3, 5, 3], dtype=int32))
    """
    remote = options.get("remote")
    defined = infer_streams(path, remote=remote) if streams is None else StreamDefs(streams)
    # Sequences may lack the streams to read if the text has others. An option of the caller wins.
    has_others = {stream.stream_alias for stream in defined.values()} < names_at_the_start(path, remote)
    deserializer = CTFDeserializer(path, defined, **{"subset": has_others, **options})
    if chunks is not None:
        minibatch = corpus_chunks(deserializer)[chunks].read()
    else:
        with closing(deserializer.open(Opening(ahead=Ahead(PARSED_AHEAD)))) as corpus:
            minibatch = read_corpus(corpus)
    minibatch = _as_class_ids(minibatch, ids) if ids else minibatch
    if not comments:
        return minibatch
    words = read_vocabularies(path, remote=remote)
    # Comments follow a stream by its name in the text.
    aliases = {name: stream.stream_alias for name, stream in deserializer.streams.items()}
    return CommentedMinibatch(minibatch, {name: words[alias] for name, alias in aliases.items() if alias in words})


def _as_class_ids(minibatch: Minibatch, ids: Collection[str]) -> Minibatch:
    """Return a minibatch with class ids for some streams, whose samples are one-hot vectors."""
    data, keys = dict(minibatch), minibatch.keys_of_sequences
    for name in ids:
        if name not in data:
            raise ConfigError(f"ids: no stream {name!r}{there_are(name, data)}", key="ids")
        one_hot = data[name]
        classes, wrong = classes_of(one_hot.stream, one_hot.arrays)
        if wrong is not None:
            raise CorpusError(f"{no_class(one_hot, wrong, keys)}; leave the stream out of ids")
        # The shape () tells class ids from dense samples of one value, which have the shape (1,).
        info = StreamInformation(name, one_hot.stream.stream_id, "dense", np.int32, ())
        data[name] = MinibatchData(info, classes, one_hot.offsets, end_of_sweep=one_hot.end_of_sweep)
    return Minibatch(data, lambda: keys)

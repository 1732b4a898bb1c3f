"""Options of a text, the opened corpus, and the treatment of its errors."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio._threads import num_threads, piece_size
from cntkio.arguments import check_fields, float_type, path_text
from cntkio.displays import counted
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats.cntk_options import TEXT, CntkOptions
from cntkio.formats.contract import NOTHING_AHEAD, Ahead, Deserializer, Joins, Loaded
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
    FirstPass,
    IndexSettings,
    StreamSchema,
    TextIndex,
    cached_index,
    key_text,
    make_index,
)
from cntkio.formats.ctf.infer import advice_on_streams, streams_at_the_start, streams_between
from cntkio.formats.detect import other_than
from cntkio.formats.index_cache import Written, file_fingerprint
from cntkio.formats.input_file import Locator
from cntkio.formats.open_input import open_input
from cntkio.formats.report import Report
from cntkio.formats.table import SequenceTable
from cntkio.hints import did_you_mean, suggests_keywords, wording
from cntkio.streams import LARGEST_DIM, StreamInformation, check_definers, checked_streams, named, num_values

# What can be a stream's name in a text.
_ALIAS = re.compile(r"(?!#)[!-{}-\ud7ff\ue000-\U0010ffff]+")
# Keep the memory of released chunks for later chunks, up to the text of this many chunks.
_SPARE_CHUNKS = 2


@suggests_keywords
@dataclasses.dataclass(eq=False, repr=False)
class CTFDeserializer(CntkOptions):
    """A corpus in the CNTK text format.

    CNTK's names of options work, too: ``deserializer["chunkSizeInBytes"] = 1 << 20`` has the effect of
    ``chunk_size_in_bytes=1 << 20``.

    Args:
        filename: The file.
        streams: The streams to read, each with its name in the file, its dimension and its form.
        skip_sequence_ids: Read each line as a sequence, and ignore ids.
        max_errors: Number of errors that are forgiven in all; a negative number forgives any number.
        chunk_size_in_bytes: Bytes of text that are read and parsed together.
        cache_index: Keep the index in a file next to the corpus, or else in the user's cache folder; "verify": and hold
            the whole corpus against a check sum before the cache is used.
        dtype: Type of the delivered values, float32 or float64.
        strict: Turn warnings into errors.
        subset: Lines and sequences without any of the streams cost no errors: the file has other streams, too.

    Raises:
        ConfigError: An option is not possible.

    Example:
        >>> from cntkio.streams import StreamDef, StreamDefs
        >>> CTFDeserializer("train.ctf", StreamDefs(x=StreamDef(field="features", shape=784)), max_errors=5)
        CTFDeserializer('train.ctf', StreamDefs(x=StreamDef(field='features', shape=784)), max_errors=5)
    """

    filename: str | os.PathLike[str]
    streams: Mapping[str, Any]
    _: dataclasses.KW_ONLY
    skip_sequence_ids: bool = False
    max_errors: int = 0
    chunk_size_in_bytes: int = 32 << 20
    cache_index: bool | Literal["verify"] = False
    dtype: npt.DTypeLike = np.float32
    strict: bool = False
    subset: bool = False
    has_text_keys = False
    cntk_type = "CNTKTextFormatDeserializer"
    cntk_options = TEXT

    def __post_init__(self) -> None:
        """Check all options that can be checked without the file."""
        self.filename = path_text("filename", self.filename)
        check_fields(self, words={"cache_index": "verify"})
        self.streams = checked_streams(self.streams)
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
        return os.fspath(self.filename)

    def parts(self) -> Sequence[Deserializer]:
        return (self,)

    def open(self, *, text_keys: bool = False, ahead: Ahead = NOTHING_AHEAD) -> CTFCorpus:
        """Open the file and index it, or load the index.

        Args:
            text_keys: Whether ids are words, as with HTK features and labels. Such an index is not cached.
            ahead: Which chunks are needed immediately. The pass that makes the index parses them, so that they are
                read only once. If the index comes from its cache, nothing is parsed.

        Raises:
            OSError: The file cannot be read.
            FormatError: The file does not begin as the format asks, or an id does not fit 64 bits.
            CorpusError: No sequence is left to read.
        """
        return CTFCorpus(self, text_keys, ahead)


class CTFCorpus:
    """An opened corpus in the CNTK text format.

    Made by `CTFDeserializer.open`; `cntkio.formats.Corpus` documents its methods.

    Attributes:
        index: The index.
    """

    utterances = None
    joins: Joins = "anywhere"

    def __init__(self, options: CTFDeserializer, text_keys: bool, ahead: Ahead) -> None:
        self._options = options
        self._text_keys = text_keys
        self._file = open_input(options.label)
        self.name = self._file.path
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
        self._schema = [
            StreamSchema(
                stream["stream_alias"].encode(),
                stream["is_sparse"],
                num_values(stream["dim"]),
                options.dtype == np.float64,
            )
            for _, stream in streams
        ]
        self._defining = next((info.stream_id for info in self.streams if info.defines_mb_size), None)
        self._core_schema = _core.CTFSchema(
            self._schema,
            defining=self._defining,
            has_words=text_keys,
            is_compact=ahead.is_packed,
            is_subset=options.subset,
        )
        self._spare = _core.Spare(_SPARE_CHUNKS * min(options.chunk_size_in_bytes, self._file.size))
        self.report = Report(self.name, options.max_errors)
        self._wording = wording()
        self._names = {stream["stream_alias"].encode(): name for name, stream in streams}
        self._num_error_kinds = len(KINDS) if options.strict else _core.CTF_NUM_ERROR_KINDS
        self._locator = Locator(self._file)
        try:
            self.index = self._open_index(FirstPass(ahead, self._schema, self._spare))
            self._log_remarks()
            self._require_sequences()
            self._fingerprint = file_fingerprint(self._file, self.table, self.index.content)
        except BaseException:
            self._file.close()
            raise

    def _open_index(self, first_pass: FirstPass) -> TextIndex:
        options = self._options
        settings = IndexSettings(
            options.skip_sequence_ids,
            None if self._defining is None else self._schema[self._defining].alias,
            options.chunk_size_in_bytes,
            self._text_keys,
        )
        if options.cache_index and not self._text_keys:
            index = cached_index(self._file, settings, first_pass, verify=options.cache_index == "verify")
        else:
            index = make_index(self._file, settings, first_pass)
        if index.parsed:
            self._file.require_unchanged()
        return index

    def _log_remarks(self) -> None:
        for kind, remark in self.index.remarks.items():
            self.report.count(kind, remark.total)
            for example in remark.examples:
                error = partial(self._locator.error, example.offset, REMARKS[kind], sequence=example.key)
                if self._options.strict:
                    raise error()
                self.report.log(kind, error)

    def _require_sequences(self) -> None:
        if self.table.num_sequences:
            return
        alias = "" if self._defining is None else self._schema[self._defining].alias.decode()
        raise CorpusError(
            f"{self.name}: no sequence holds {alias!r}, which defines the minibatch size; nothing is left"
            + did_you_mean(alias, [name.decode() for name in streams_at_the_start(self._file)])
        )

    @property
    def table(self) -> SequenceTable:
        return self.index.table

    def fingerprint(self) -> str:
        return self._fingerprint

    def load(self, chunk_id: int) -> Loaded:
        chunk, findings = self._parse(chunk_id, self.report.budget)
        return Loaded(chunk_id, chunk, findings)

    def take_parsed(self) -> dict[int, Loaded]:
        parsed, self.index = self.index.parsed, self.index._replace(parsed=[])
        return {chunk_id: Loaded(chunk_id, chunk, NO_FINDINGS) for chunk_id, chunk in enumerate(parsed)}

    def _parse(
        self,
        chunk_id: int,
        budget: int,
        schema: _core.CTFSchema | None = None,
        part: tuple[int, int] | None = None,
    ) -> tuple[_core.Chunk, Findings]:
        first, last = (int(index) for index in self.table.chunk_starts[chunk_id : chunk_id + 2])
        places = self.index.places.of_chunk(chunk_id, first, last)
        if part is not None:
            places = places.part(part[0] - first, part[1] - first)
            first, last = part
        try:
            chunk, counts, findings, last_straw = _core.ctf_parse(
                self._file.source(places.begin, places.end),
                places.begin,
                places.end,
                places.starts,
                places.sizes,
                self.table.lengths[first:last],
                schema or self._core_schema,
                budget=budget,
                is_strict=self._options.strict,
                num_threads=num_threads(),
                piece_size=piece_size(max(places.end - places.begin, 0), tuning.PIECE),
                spare=self._spare,
            )
            self._file.require_unchanged()
        except ValueError as error:
            raise self._mismatch() from error
        except (OSError, EOFError):
            self._file.require_unchanged()
            raise
        straw = None if last_straw is None else Finding(*last_straw)
        return chunk, Findings(counts, [Finding(*finding) for finding in findings], straw, places.begin, first)

    def _mismatch(self) -> CorpusError:
        cache = self.index.cache
        advice = "open it again" if cache is None else f"delete the index cache {str(cache)!r}"
        return CorpusError(f"{self.name}: the index does not match the file; {advice}")

    def account_for(self, loaded: Loaded) -> None:
        findings: Findings = loaded.findings
        if not any(findings.counts):
            return
        num_errors = sum(findings.counts[: self._num_error_kinds])
        if findings.last_straw is not None or not self.report.forgive(num_errors):
            left = self.report.exhaust()
            if left < self.report.budget:
                # The chunk was parsed with the whole budget. Parse it again with what is left of it, to find the first
                # error beyond that.
                _, findings = self._parse(loaded.chunk_id, left)
            assert findings.last_straw is not None
            raise self._last_error(findings, findings.last_straw)
        for index, (kind, count) in enumerate(zip(KINDS, findings.counts, strict=True)):
            if count:
                self.report.count(kind.name, count, is_error=index < self._num_error_kinds)
        is_observed = self.report.is_observed
        for part in self._in_full(loaded.chunk_id, findings, None) if is_observed else [findings]:
            for finding in part.first:
                self.report.log(KINDS[finding.kind].name, partial(self._error, part, finding))

    def _in_full(self, chunk_id: int, findings: Findings, part: tuple[int, int] | None) -> Iterator[Findings]:
        """Yield the findings of a chunk, or of a part of it, in parts that list all of them.

        The core lists the first few of each kind, so parse half of the sequences again where it has found more. Of a
        single sequence only those are listed.
        """
        first, last = part or self.table.chunk_starts[chunk_id : chunk_id + 2].tolist()
        if sum(findings.counts) == len(findings.first) or last - first == 1:
            yield findings
            return
        middle = (first + last) // 2
        for half in ((first, middle), (middle, last)):
            yield from self._in_full(chunk_id, self._parse(chunk_id, self.report.budget, part=half)[1], half)

    def _last_error(self, findings: Findings, finding: Finding) -> FormatError:
        """The error that exceeds the budget, with advice."""
        budget = self.report.budget
        more = f" (error {budget + 1}, and {self._wording.option('max_errors')} is {budget})" if budget else ""
        more += (other := other_than("ctf", self._file.path))
        if not other and KINDS[finding.kind].name in KINDS_OF_MISFITS:
            asked = self._schema if finding.stream is None else [self._schema[finding.stream]]
            more += self._advice_on_gap(findings, finding) or advice_on_streams(
                self._file, asked, self._fits, self._names, self._wording
            )
        return self._error(findings, finding, more)

    def _advice_on_gap(self, findings: Findings, finding: Finding) -> str:
        """Return advice about a line or sequence that has other streams only."""
        kind = KINDS[finding.kind].name
        if kind not in KINDS_OF_GAPS:
            return ""
        begin = findings.first_byte + finding.offset
        end = self.bounds_of(findings.first_sequence + finding.sequence)[1]
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
            f"ask for these streams, too, or forgive such errors ({self._wording.setting('subset', True)})"
        )

    def bounds_of(self, sequence_index: int) -> tuple[int, int]:
        """Return the first byte of a sequence, and the byte after it."""
        chunk_starts = self.table.chunk_starts
        chunk_id = int(np.searchsorted(chunk_starts, sequence_index, side="right")) - 1
        first, last = chunk_starts[chunk_id : chunk_id + 2].tolist()
        return self.index.places.of_chunk(chunk_id, first, last).sequence(sequence_index - first)

    def bounds_at(self, byte: int) -> tuple[int, int]:
        """Return the first byte of the sequence that has a byte, and the byte after the sequence."""
        chunk_id = self.index.places.chunk_at(byte)
        first, last = self.table.chunk_starts[chunk_id : chunk_id + 2].tolist()
        return self.index.places.of_chunk(chunk_id, first, last).at(byte)

    def _fits(self, definition: StreamSchema) -> bool:
        """Return true if another definition can read all values of a stream."""
        schema = _core.CTFSchema([definition], has_words=self._text_keys)
        for chunk_id in range(self.table.num_chunks):
            _, findings = self._parse(chunk_id, 2**64 - 1, schema)
            counts = zip(KINDS, findings.counts, strict=True)
            if any(count for kind, count in counts if kind.name in KINDS_OF_VALUES):
                return False
        return True

    def _error(self, findings: Findings, finding: Finding, more: str = "") -> FormatError:
        sequence_index = findings.first_sequence + finding.sequence
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
        )

    def written_cache(self) -> Written | None:
        """Wait for the index cache to be written, and return where it is; None: it was there, or none was wanted."""
        return None if self.index.writer is None else self.index.writer.wait()

    def close(self) -> None:
        self.report.log_totals()
        self.written_cache()
        self._file.close()

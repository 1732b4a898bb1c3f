"""The check of corpora: it reads them as a source does, and collects what a source would say. (docs/check.md)

::

    files ──> deserializers ──> corpora ──> blocks ──> events of the format, folded ──┐
                                   │           └─────> contents: the rules over them ─┼──> Findings
                                   └──> join, arrangement: what a source leaves out ──┘

Errors do not end the check: a chunk that cannot be loaded is divided until only the broken sequences are left.
Invariant: if nothing was found, a source of these deserializers opens and reads to its end.
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, Unpack, cast

import numpy as np
import numpy.typing as npt

from cntkio.arguments import caller, calling, suggests_keywords, there_are
from cntkio.corpora import IN_ORDER, SURVEYED_AT_ONCE, Described, Input, described, inputs, require_takers
from cntkio.displays import counted
from cntkio.errors import CntkIoError, ConfigError, CorpusError, FormatError
from cntkio.formats.contract import Corpus, Deserializer, Loaded, Opening, Reading, ReadingOptions, with_defaults
from cntkio.formats.corpus import without_empty
from cntkio.formats.ctf import KINDS_OF_BAD_SAMPLES, KINDS_OF_GAPS, bounds_of, guessed_streams, infer_usual_streams
from cntkio.formats.detect import old_line_ends
from cntkio.formats.pieces import Progress
from cntkio.formats.report import EMPTY_FILE, UNKNOWN_NAME, first_few
from cntkio.source.arrangement import arrange, check_names
from cntkio.source.join import join
from cntkio.storage.names import FileNames, as_url, shown
from cntkio.storage.open_input import open_input
from cntkio.storage.remote import Remote
from cntkio.storage.text_input import Locator, TextInput
from cntkio.streams import LARGEST_DIM, StreamDef, StreamDefs
from cntkio.survey.contents import Contents, SequenceContents, are_few, pairs_in_common, report_ids
from cntkio.survey.figures import blocks
from cntkio.survey.findings import Finding, Findings

_ANY_NUMBER_OF_ERRORS = -1
# A name that fewer than 1 of this number of sequences have is not a stream.
_SEQUENCES_FOR_A_NAME, _ENOUGH_FOR_A_NAME = 100, 20
_MOST_DIVISIONS = 2000  # a corpus with many broken chunks would be divided forever
_READ = 4 << 20

_OF_MISFITS = ("bad-number", "bad-index", "index-too-large", "too-many-values", "too-few-values")


@suggests_keywords
def check(
    *corpora: FileNames | Deserializer, join: bool = False, streams: StreamDefs | Mapping[str, Any] | None = None,
    remote: Remote | None = None, ignore: Iterable[str] = (), max_findings: int = 100,
    progress: Progress | None = None, **reading: Unpack[Reading],
) -> Findings:  # fmt: skip
    """Find errors and suspicious data in corpora. (docs/check.md) The command is `cntkio check`.

    Args:
        corpora: The corpora: a file of any format, also compressed or at a URL; a pattern or a list of files, which
            are one corpus; or a deserializer, which has its own options.
        join: Whether the corpora belong together, and a source joins them by key. The sequences that it would leave out
            are findings. Otherwise, sequences that two of the corpora have in common are findings.
        streams: The streams that the files should have; None: as the files show them.
        remote: How to read remote stores.
        ignore: Codes of rules to leave out.
        max_findings: Number of findings to list; all cases are counted.
        progress: Called with the number of sequences of a corpus that are checked, and the number of all its sequences.
        reading: How to read files: the keywords of `cntkio.convert.Reading`. By default all errors of a text are found;
            in a chunk that has more than `max_errors`, only the first further error of each sequence is found. Chunks
            of a text have 16 MiB.

    Returns:
        The findings, in the order of files and places. They are false if there are none.

    Raises:
        ConfigError: No deserializer reads a file, or an option does not apply to the files.
        OSError: A file cannot be opened.

    Example:
        >>> import cntkio, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.ctf")
        >>> _ = path.write_text("|x 1 2\\n|x 3 four\\n|x 5 6\\n")
        >>> findings = cntkio.check(path)
        >>> findings.counts, findings.num_sequences
        (Counter({'bad-number': 1}), 3)
        >>> [(finding.code, finding.line, finding.column) for finding in findings]
        [('bad-number', 2, 6)]
        >>> bool(cntkio.check("examples/iris/iris.ctf"))
        False
    """
    if not corpora:
        raise ConfigError("check has no corpora; expected at least one file or deserializer")
    options = cast(ReadingOptions, {"streams": StreamDefs(streams or {}), **reading})
    named = [corpus for corpus in corpora if isinstance(corpus, str | os.PathLike | Sequence)]
    given: list[Any] = [corpus for corpus in corpora if not isinstance(corpus, str | os.PathLike | Sequence)]
    findings = Findings(max_findings, [ignore] if isinstance(ignore, str) else ignore)
    with calling(remote=remote), inputs(named, refuse=findings.add_damaged) as files:
        if files:
            require_takers(options, files)
        elif any(options.values()):
            raise ConfigError("options of files are only for files; a deserializer has its own options")
        return check_all(files, given, options, findings, joins=join, progress=progress)


def check_all(
    files: Sequence[Input], deserializers: Sequence[Deserializer], reading: ReadingOptions, findings: Findings, *,
    joins: bool, progress: Progress | None,
) -> Findings:  # fmt: skip
    """Check files and deserializers, add what is wrong to the findings, and return them. See `check`."""
    usual = with_defaults(reading, max_errors=_ANY_NUMBER_OF_ERRORS, chunk_size_in_bytes=SURVEYED_AT_ONCE)
    has_words = [file.kind.has_text_keys for file in files] + [one.has_text_keys for one in deserializers]
    with ExitStack() as stack:
        # A join compares keys of one type, so if a corpus has words as keys, all of them must read keys as words.
        call = _Call(usual, findings, stack, progress, joins and any(has_words))
        found = [source for file in files for source in _check_input(call, file)]
        for one in deserializers:
            findings.corpus = name = type(one).__name__
            found.append([_check_part(call, name, part.open) for part in one.parts()])
        if joins:
            found = [[checked for source in found for checked in source]]
        found = [source for source in found if source]
        all_sequences = [_check_source(call, source) for source in found]
        for later, earlier in pairs_in_common(all_sequences):
            name, findings.corpus = found[earlier][0].name, f"{found[later][0].name}, {found[earlier][0].name}"
            all_sequences[later].report_overlap(all_sequences[earlier], name, findings)
        # A file that was copied for reading has the name that the call gave it.
        findings.finish({str(file.path): file.name for file in files if not file.files})
    return findings


# ---------------------------------------------------------------------------------------------------- places


class _Text:
    """Places of samples in a text, which is opened when the first place is requested. Aliases are names in the text."""

    def __init__(self, path: str, index: Any, aliases: Mapping[str, str]) -> None:
        self._path, self._index = path, index
        self._patterns = {
            # A name ends at a blank, a control character, a pipe or a byte above 0x7F.
            name: re.compile(rb"\|" + re.escape(alias.encode()) + rb"(?![^\x00-\x20|\x80-\xff])")
            for name, alias in aliases.items()
        }

    @cached_property
    def _opened(self) -> tuple[TextInput, Locator]:
        file = open_input(self._path)
        return file, Locator(file)

    def close(self) -> None:
        """Close the file. The next request opens it again."""
        if (opened := vars(self).pop("_opened", None)) is not None:
            opened[0].close()

    def place(self, sequence_index: int, stream: str | None, sample: int | None) -> dict[str, Any]:
        file, locator = self._opened
        offset, end = bounds_of(self._index, sequence_index)
        if stream is not None:
            text = file.read(offset, end - offset)
            found = [match.start() for match in self._patterns[stream].finditer(text)]
            offset += found[sample or 0] if (sample or 0) < len(found) else 0
        return locator.locate(offset)

    def line_ends(self) -> Finding | None:
        """Return a finding if some lines end with CR LF and others do not: the first line with the rarer end."""
        file, locator = self._opened
        counts, offset = {"CR LF": 0, "LF": 0}, 0
        first: dict[str, int] = {}
        while block := file.read(offset, _READ):
            # Most texts have no CR, and a search for one byte is faster than a search for two.
            num_crlf = block.count(b"\r\n") if b"\r" in block else 0
            num_lf = block.count(b"\n") - num_crlf
            for end, count, pattern in (("CR LF", num_crlf, rb"\r\n"), ("LF", num_lf, rb"(?<!\r)\n")):
                counts[end] += count
                if count and end not in first:
                    match = re.search(pattern, block)
                    first[end] = offset + (match.start() if match else 0)
            # A CR at the end of a block is read again, because LF may follow it. A CR alone is the end of the text.
            offset += len(block) - (1 if block.endswith(b"\r") and len(block) > 1 else 0)
        if not all(counts.values()):
            return None
        rare, usual = sorted(counts, key=lambda end: counts[end])
        message = f"{rare} ends {counted(counts[rare], 'line')}, but {usual} ends {counted(counts[usual], 'line')}"
        return Finding("mixed-line-ends", message, num_cases=counts[rare], **locator.locate(first[rare]))


class _Opened(NamedTuple):
    """An opened corpus that is checked: a text with samples, a table whose rows are the sequences, or any other."""

    path: str
    corpus: Any
    text: _Text | None = None
    is_table: bool = False

    def first_index(self, stream: str) -> int:
        return int(self.corpus.index.first_indices.get(stream, 0))

    def place(self, sequence_index: int, stream: str | None = None, sample: int | None = None) -> dict[str, Any]:
        if self.text is not None:
            return self.text.place(sequence_index, stream, sample)
        if self.is_table:
            return {"path": self.path, "row": sequence_index}
        # A check must not end because a place is unknown: the finding still names the file.
        place: dict[str, Any] = {"path": self.path}
        with suppress(CntkIoError, OSError):
            place |= self.corpus.places(np.array([sequence_index], np.int64)).of_error()
        return place


# ---------------------------------------------------------------------------------------------------- events


class _Events:
    """Errors and warnings of a format, folded so that each cause is a single finding."""

    def __init__(self, path: str, findings: Findings) -> None:
        self._path, self._findings = path, findings
        self._noted: list[tuple[str, Finding]] = []
        self._left = _MOST_DIVISIONS
        self.num_noted = 0
        self.unsound: set[int | str | None] = set()  # the keys of the last sequences with errors

    def note(self, kind: str | None, error: str | Exception, count: int = 1) -> None:
        """Note an error or a warning; an `Observer`."""
        self.num_noted += 1
        error = error() if callable(error) else error
        kind = kind or (error.kind if isinstance(error, FormatError) else None) or ""
        self._noted.append((kind, Finding.of(kind, error, self._path)._replace(num_cases=count)))

    def fold(self) -> None:
        """Make findings of the errors and warnings that were noted since the last call."""
        noted, self._noted = self._noted, []
        self.unsound = {finding.sequence for _, finding in noted if finding.rule.severity == "error"}
        for finding in _folded(noted):
            self._findings.add(finding)

    def mend(
        self, corpus: Corpus, chunk_id: int, error: Exception, sequences: npt.NDArray[np.uint32] | None = None
    ) -> Iterator[Loaded]:
        """Yield the parts of a chunk, or of some of its sequences, that can be loaded; note the other errors."""
        if sequences is None:
            first, last = corpus.table.bounds_of(chunk_id)
            sequences = np.arange(last - first, dtype=np.uint32)
        self._left -= 1
        if len(sequences) < 2 or not corpus.index.loads_parts or self._left < 0:
            self.note(None, error)
            return
        failed: list[tuple[npt.NDArray[np.uint32], Exception]] = []
        for half in np.array_split(sequences, 2):
            try:
                loaded = corpus.load(chunk_id, half)
                corpus.account_for(loaded)
            except (CntkIoError, OSError) as refusal:
                failed.append((half, refusal))
            else:
                yield loaded
        if len(failed) == 2 and all(str(other) == str(error) for _, other in failed):
            self.note(None, error)  # the chunk itself is broken
            return
        for half, other in failed:
            yield from self.mend(corpus, chunk_id, other, half)


_ENDED = "byte above 0x7F"
_BARE, _TOO_FEW, _TOO_MANY = "line without a sample", "too few samples", "too many samples"
_OF_LINES = {"junk", "pipe without a name", "name at the end", "no value at the end"} | KINDS_OF_BAD_SAMPLES
# For a kind, the kinds of findings of the same sequence that explain it, so that it is left out.
_EXPLAINED_BY: dict[str, set[str]] = {
    # A byte above 0x7F ends the values of a sample: the rest is junk.
    "junk": {_ENDED},
    # A misspelled name is the cause of a missing sample, and the missing sample is the finding.
    UNKNOWN_NAME: KINDS_OF_GAPS,
    # An error drops its line, so a gap there is not a second error. The parser does the same for missing samples.
    _BARE: _OF_LINES,
    _TOO_FEW: _OF_LINES | {_BARE},
    # These two errors have the same cause: `too many samples` stays, at the place of the other error.
    "stream twice on a line": {_TOO_MANY},
}


def _folded(noted: Sequence[tuple[str, Finding]]) -> Iterator[Finding]:
    """Leave out findings that another finding of the same sequence explains."""
    # Reversed, so that the first finding of a sequence stays, not the last.
    first = {(kind, found.sequence): found for kind, found in reversed(noted)}
    ended = {(found.sequence, found.stream) for kind, found in noted if kind == _ENDED}
    for kind, found in noted:
        sequence = found.sequence
        if any((cause, sequence) in first for cause in _EXPLAINED_BY.get(kind, ())):
            continue
        # The values after a byte above 0x7F are missing.
        if kind == "short dense sample" and (sequence, found.stream) in ended:
            continue
        if kind == _TOO_MANY and (twice := first.get(("stream twice on a line", sequence))):
            found = found.moved_to(twice)._replace(stream=twice.stream)
        if kind == "stream without a sample" and (unknown := first.get((UNKNOWN_NAME, sequence))):
            message, advice = f"{found.message}; is its name misspelled here?", f"correct the name to {found.stream}"
            found = found.moved_to(unknown)._replace(message=message, advice=advice)
        yield found


# ------------------------------------------------------------------------------------------- files, deserializers


class _Call(NamedTuple):
    """Arguments that all parts of a check need.

    Attributes:
        has_words: Whether keys are words in all corpora that are joined.
        is_guess: Whether the streams of a text are a guess.
    """

    reading: ReadingOptions
    findings: Findings
    stack: ExitStack
    progress: Progress | None
    has_words: bool
    is_guess: bool = False

    def with_guess(self, streams: Mapping[str, Any]) -> _Call:
        """Return the call with a guess of the streams."""
        reading: ReadingOptions = {**self.reading, "streams": StreamDefs(streams)}
        return self._replace(reading=reading, is_guess=True)


class _Checked(NamedTuple):
    """A corpus that was checked, from one file or from several; without `opened`, it could not be opened."""

    name: str
    opened: _Opened | None
    contents: Contents
    num_noted: int
    located: Callable[[], AbstractContextManager[None]] = nullcontext


def _check_input(call: _Call, file: Input) -> list[list[_Checked]]:
    """Check a file, or several; a text that has errors and lines as on old Macs has no other finding."""
    if file.files or "max_errors" not in file.kind.options:
        return _check_kind(call, file)
    findings, path, advice = call.findings.empty(), str(file.path), ""
    found = _check_kind(call._replace(findings=findings), file)
    if findings.num_of("error"):
        with suppress(CntkIoError, OSError), closing(open_input(path)) as text:
            what, _, advice = old_line_ends(text).removeprefix("; ").partition(": ")
    if not advice:
        call.findings.add_all(findings)
        return found
    call.findings.corpus = file.name
    call.findings.add(Finding("broken-file", what, path, 0, 1, 1, advice=advice))
    call.findings.num_sequences += findings.num_sequences
    return []


def _check_kind(call: _Call, file: Input) -> list[list[_Checked]]:
    """Check a file of a kind, or several; return the corpora of each source that reads them.

    The streams of a text are guessed from its first lines. If the format has anything to say about the text, the whole
    text is searched for streams, and checked again.
    """
    call.findings.corpus = file.name
    is_text, asked = file.kind.names_streams, call.reading.get("streams")
    try:
        guess = guessed_streams(file.names) if is_text and not asked else StreamDefs()
        if not guess:
            num_before = call.findings.num_sequences
            found = _check_as_asked(call, file)
            if is_text and asked and any(checked.num_noted for source in found for checked in source):
                _explain_streams(call, file, call.findings.num_sequences - num_before)
            return found
        # Findings of a guess are kept apart, because they are dropped if the guess is wrong.
        findings = call.findings.empty()
        findings.corpus = file.name
        with ExitStack() as stack:
            found = _check_as_asked(call.with_guess(guess)._replace(findings=findings, stack=stack), file)
            if found and not any(checked.num_noted for source in found for checked in source):
                call.findings.add_all(findings)
                # The guess is right, so its corpora stay open until the end of the check.
                call.stack.push(stack.pop_all())
                return found
        num_sequences = findings.num_sequences
        least = num_sequences // _SEQUENCES_FOR_A_NAME
        usual = infer_usual_streams(file.names, max(least, 2) if num_sequences >= _ENOUGH_FOR_A_NAME else least)
        # A dimension that is inferred here is no reason to blame an index.
        wide = {
            name: StreamDef(field=name, shape=LARGEST_DIM, is_sparse=True) for name in usual if usual[name].is_sparse
        }
        return _check_as_asked(call.with_guess({**usual, **wide}), file)
    except (FormatError, CorpusError, OSError) as error:
        # No feature file has a header, so the dimension is unknown; the corpus reports each file.
        if file.kind.is_list and not asked:
            return _check_kind(call.with_guess({"features": StreamDef(shape=1)}), file)
        if _is_wrong_call(error) or (isinstance(error, OSError) and not file.kind.has_text_keys):
            raise  # the file itself was opened before
        call.findings.add(Finding.of(None, error, str(file.path)))
    except ConfigError as error:
        # An error without a file is about the call, not about a configuration.
        if error.path is None:
            raise
        call.findings.add(Finding.of_configuration(error))
    return []


def _is_wrong_call(error: Exception) -> bool:
    """Return whether a file cannot be read where it is, such as a binary corpus at a URL."""
    return isinstance(error, OSError) and error.errno == errno.EINVAL


def _explain_streams(call: _Call, file: Input, num_sequences: int) -> None:
    """Let one finding show which definition of a stream fits a text, if most sequences contradict the definition."""
    usual = infer_usual_streams(file.names, 0)
    for name, asked in call.reading["streams"].items():
        alias = asked.stream_alias
        if (seen := usual.get(alias)) is None:
            explained = [one for stream in ("", name) for one in call.findings.of("missing-sample", stream)]
            what = f"no line has a stream {alias!r}{there_are(alias, usual)}"
            fitting = first_few((_written(other, other, usual[other]) for other in usual), len(usual))
            advice = f"the text has {fitting}"
        elif (seen.is_sparse, seen.dim) != (asked.is_sparse, asked.dim):
            explained = [one for code in _OF_MISFITS for one in call.findings.of(code, name)]
            values = f"indices up to {seen.dim - 1}" if seen.is_sparse else counted(seen.dim, "value")
            what = f"the text does not fit {_written(name, alias, asked)}: its samples have {values}"
            advice = f"write {_written(name, alias, seen)}"
        else:
            continue
        if 2 * sum(one.num_cases for one in explained) > num_sequences:
            for one in explained:
                code = one.code if one.rule.severity == "warning" else "wrong-stream"
                # Without cases: `replace` adds the cases of the finding that is replaced.
                new = one._replace(code=code, message=what, stream=name, advice=advice, num_cases=0, others=())
                call.findings.replace(one.code, one.stream or "", new)


def _written(name: str, alias: str, stream: Any) -> str:
    return caller().words.stream(name, alias, stream.dim, is_sparse=stream.is_sparse)


def _check_as_asked(call: _Call, file: Input) -> list[list[_Checked]]:
    """Check a file, or several files and whether they belong together."""
    if not file.files:
        return [_check_described(call, one) for one in described(file, call.reading)]
    contents, num_noted, can_be_opened = Contents(), 0, True

    def check(path: str) -> list[_Checked]:
        # A pattern may have thousands of files, so each is closed before the next.
        with ExitStack() as stack:
            one = file._replace(name=path, path=Path(path), files=())
            (describes,) = described(one, call.reading)
            return _check_described(call._replace(stack=stack), describes, contents)

    def leave_out(error: CntkIoError) -> None:
        call.findings.add(Finding.of(None, error, file.name)._replace(code="empty-file"))

    for each in without_empty(file.files, check, leave_out, is_strict=call.reading.get("strict", False)):
        num_noted += sum(checked.num_noted for checked in each)
        can_be_opened = can_be_opened and all(checked.opened is not None for checked in each)
    contents.report(call.findings)
    together = None
    if can_be_opened:
        try:
            (describes,) = described(file, call.reading)
            (open_part,) = describes.parts()
            # All warnings were noted when each file was checked by itself.
            silently = dataclasses.replace(IN_ORDER, trace_level=0)
            corpus = call.stack.enter_context(closing(open_part(silently)))
            together = _Opened(file.name, corpus)
        except (CntkIoError, OSError) as error:
            call.findings.add(Finding.of("repeated id", error, file.name))
            num_noted += 1
    return [[_Checked(file.name, together, contents, num_noted)]]


def _check_described(call: _Call, one: Described, contents: Contents | None = None) -> list[_Checked]:
    path, kind, aliases = str(one.input.path), one.input.kind, None
    if kind.names_streams:
        aliases = {name: stream.stream_alias for name, stream in one.deserializers[0].streams.items()}
    call = call._replace(has_words=call.has_words or any(each.has_text_keys for each in one.deserializers))

    def open_located(open_part: Callable[[Opening], Corpus], opening: Opening) -> Corpus:
        with one.located():
            return open_part(opening)

    with one.located():
        parts = [partial(open_located, part) for part in one.parts()]
    checked = [_check_part(call, path, part, contents, aliases, is_table=kind.is_table) for part in parts]
    return [each._replace(located=one.located) for each in checked]


def _check_part(
    call: _Call, path: str, open_part: Callable[[Opening], Corpus], shared: Contents | None = None,
    aliases: Mapping[str, str] | None = None, *, is_table: bool = False,
) -> _Checked:  # fmt: skip
    """Check a corpus; `shared` are the contents of the files that belong together, which the caller reports."""
    events, contents, opened, ends = _Events(path, call.findings), shared or Contents(), None, None
    try:
        # If the call names the streams, other names in the text are left out on purpose.
        asked = (UNKNOWN_NAME,) if call.is_guess else ()
        opening = dataclasses.replace(IN_ORDER, text_keys=call.has_words, observer=events.note, asked=asked)
        corpus: Any = call.stack.enter_context(closing(open_part(opening)))
        text = None if aliases is None else call.stack.enter_context(closing(_Text(path, corpus.index, aliases)))
        opened = _Opened(path, corpus, text, is_table)
        contents.begin(corpus.streams, opened)
        num_seen = 0
        for block in blocks(corpus, partial(events.mend, corpus), call.progress):
            events.fold()
            # After folding, which finds out which sequences have errors.
            contents.add(block, events.unsound)
            num_seen += block.num_sequences
            del block  # the next chunk uses its memory
        # The table of a corpus that joins alone has no sequences.
        num_sequences = corpus.table.num_sequences or num_seen
        contents.end(num_sequences)
        call.findings.num_sequences += num_sequences
        _note_utterances(corpus, events)
        # Counting line ends needs a further pass, so only a text in which a CR was found is read again.
        ends = text.line_ends() if text is not None and corpus.report.warnings.get("carriage return") else None
    except (CntkIoError, OSError) as error:
        # A corpus of several files leaves out empty files, unless warnings are errors.
        is_empty = isinstance(error, CntkIoError) and error.kind == EMPTY_FILE
        is_left_out = is_empty and shared is not None and not call.reading.get("strict")
        if opened is None and (is_left_out or _is_wrong_call(error)):
            raise
        opened = None
        if isinstance(error, ConfigError) and error.path is not None:  # at a line of a configuration
            raise
        events.note(None, error)
    events.fold()
    if shared is None and opened is not None:
        contents.report(call.findings)
    if ends is not None:
        call.findings.add(ends)
    return _Checked(path, opened, contents, events.num_noted)


def _note_utterances(corpus: Corpus, events: _Events) -> None:
    """Note the utterances that are invalid or broken, in their order."""
    if (utterances := corpus.index.utterances) is not None:
        masks = [mask for mask in (utterances.invalid, utterances.broken) if mask is not None]
        for index in sorted({int(index) for mask in masks for index in np.flatnonzero(mask)}):
            events.note(None, utterances.complaint(index))


# ---------------------------------------------------------------------------------------------------- sources


def _check_source(call: _Call, source: Sequence[_Checked]) -> SequenceContents:
    """Check what a source of these corpora leaves out or refuses; return the contents of its sequences."""
    findings, opened = call.findings, [checked.opened for checked in source if checked.opened is not None]
    findings.corpus = ", ".join(checked.name for checked in source)
    sequences = source[0].contents.sequences()
    if len(opened) < len(source):
        return sequences
    (first, *others), num_before = opened, sum(findings.counts.values())
    if others and all(one.corpus.index.joins != "alone" for one in opened):
        for other, checked in zip(others, source[1:], strict=True):
            try:
                partners = _compare(first, other, findings)
            except CorpusError as error:
                findings.add(Finding("cannot-join", str(error), first.path))
                return sequences
            sequences = sequences.joined(partners[0], checked.contents.sequences(), partners[1])
    sequences.report(findings)
    # A part of a join, and a file with repeated ids, has other findings about its ids.
    has_ids = not others and first.text is not None and first.corpus.index.num_lines is None
    if has_ids and not findings.of("repeated-id", ""):
        report_ids(first.corpus.table.keys, first, findings)
    has_findings = sum(findings.counts.values()) > num_before or any(checked.num_noted for checked in source)
    traits = first.corpus.index.utterances
    # Labels may be checked without the features that a source needs.
    is_source = len(opened) > 1 or traits is None or traits.can_lead
    # After other findings, a source may fail for the same reason, so it is not asked.
    if is_source and not has_findings:
        try:
            with source[0].located():
                arrange([one.corpus for one in opened], trace_level=0)
                check_names([one.corpus for one in opened])
        except CntkIoError as error:
            findings.add(Finding("cannot-join", str(error), first.path))
    return sequences


def _compare(first: _Opened, other: _Opened, findings: Findings) -> Sequence[npt.NDArray[np.uint32]]:
    """Compare the keys and lengths of two corpora that are joined; return the indices of the joined sequences."""
    pair, traits = (first, other), [one.corpus.index.utterances for one in (first, other)]
    patterns = [None if trait is None else trait.is_pattern for trait in traits]
    joined = join([one.corpus.table for one in pair], patterns=patterns)
    for one, another, partners in zip(pair, reversed(pair), joined.partners, strict=True):
        is_missing = np.ones(one.corpus.table.num_sequences, np.bool_)
        is_missing[partners] = False
        missing = Finding("missing-key", f"{shown(as_url(another.path))} has no sequence with this key", "")
        _add_all(findings, one, np.flatnonzero(is_missing), itertools.repeat(missing))
    lengths = [one.corpus.table.lengths[partners] for one, partners in zip(pair, joined.partners, strict=True)]
    is_unequal = lengths[0] != lengths[1]
    for trait, partners in zip(traits, joined.partners, strict=True):
        # Utterances that are invalid or broken have findings of their own.
        for mask in (None, None) if trait is None else (trait.invalid, trait.broken):
            if mask is not None:
                is_unequal &= ~mask[partners]
    is_broadcast = any(trait is not None and trait.is_broadcast for trait in traits)
    unequal = np.flatnonzero(is_unequal)
    # Utterances must have equal lengths. In other corpora lengths may differ, so only a few exceptions are suspicious.
    if not is_broadcast and (None not in traits or are_few(len(unequal), len(is_unequal))):
        pairs = zip(lengths[0][unequal], lengths[1][unequal], strict=True)
        messages = (f"{own} samples here, but {theirs} in {first.path}" for theirs, own in pairs)
        found = (Finding("unequal-lengths", message, "") for message in messages)
        _add_all(findings, other, joined.partners[1][unequal], found)
    return joined.partners


def _add_all(findings: Findings, opened: _Opened, sequences: npt.NDArray[Any], found: Iterable[Finding]) -> None:
    """Add a finding for each of some sequences of a corpus, with its key and its place."""
    cases = (
        one._replace(sequence=opened.corpus.table.keys[index], **opened.place(index))
        for one, index in zip(found, map(int, sequences), strict=False)
    )
    findings.add_cases(cases, len(sequences))

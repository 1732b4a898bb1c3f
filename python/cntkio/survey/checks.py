"""The check of the corpora of a call: files of every format, several files, corpora that are joined. (docs/check.md)

::

    check ──> inputs ──> each file: its streams, or a guess ──> checking.check_corpus ──┐
                         several files together, keys of corpora that are joined ───────┴──> Findings

The streams of a text are guessed from its first lines. The first finding raises a doubt: the whole text is searched for
streams, and if they differ from the guess, the check begins again with them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cntkio.convert import Progress
from cntkio.corpora import SURVEYED_AT_ONCE, Described, Input, Reading, described, inputs
from cntkio.corpora.reading import openers
from cntkio.errors import ConfigError, FormatError
from cntkio.formats.contract import Corpus, Deserializer
from cntkio.formats.ctf import CTFDeserializer, bounds_at, bounds_of, guessed_streams, infer_usual_streams
from cntkio.formats.file_lists import FileNames
from cntkio.formats.joined_index import KeysOf
from cntkio.formats.open_input import open_input
from cntkio.formats.output_file import written_whole
from cntkio.formats.passes import announced, passed
from cntkio.formats.remote import Remote, remote_by_default
from cntkio.formats.report import traced
from cntkio.hints import did_you_mean, wording
from cntkio.streams import StreamDefs, num_values
from cntkio.survey.blocks import Block, blocks
from cntkio.survey.checking import Opened, Text, ValueChecks, check_corpus, check_keys
from cntkio.survey.findings import Finding, Findings
from cntkio.survey.rules import RULES

_ANY_NUMBER_OF_ERRORS = -1
_COPIED_AT_ONCE = 4 << 20
# A name that fewer than 1 of this number of sequences have is not a stream.
_SEQUENCES_FOR_A_NAME = 100


def check(
    *corpora: FileNames | Deserializer,
    streams: StreamDefs | Mapping[str, Any] | None = None,
    skip_sequence_ids: bool = False,
    strict: bool = False,
    max_errors: int | None = None,
    chunk_size_in_bytes: int | None = None,
    keys: KeysOf | None = None,
    prefix: str | None = None,
    mapping: str | os.PathLike[str] | None = None,
    remote: Remote | None = None,
    ignore: Iterable[str] = (),
    max_findings: int = 100,
    output: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Findings:
    """Find errors and suspicious data in corpora. (docs/check.md) The command is `cntkio check`.

    Args:
        corpora: The corpora: a file of any format, also compressed or at a URL; a pattern or a list of files, which
            are one corpus; or a deserializer, which has its own options. Several corpora are joined by key, as a source
            joins them: the keys that only some of them have are findings.
        streams: The streams that the files should have; None: as the files show them.
        skip_sequence_ids: Read each line of a text as a sequence, and ignore ids.
        strict: Turn warnings about a text, a binary corpus or features into errors.
        max_errors: Errors of a text to find one by one; in a chunk that exceeds this number, only the first further
            error is found. None: find all.
        chunk_size_in_bytes: Chunk size of a text; about as much memory is in use. None: 4 MiB.
        keys: Keys of several texts, as for `CTFDeserializer`.
        prefix: Text to put before each path of a list of features.
        mapping: For a label file: the file with the names of its labels; None: the names in the label file.
        remote: How to read remote stores.
        ignore: Codes of rules to leave out.
        max_findings: Number of findings to list; all are counted.
        output: A file for a copy of a text without the sequences that are errors; None: none is written.
        progress: Called with the number of sequences of a corpus that are checked, and the number of all its sequences.

    Returns:
        The findings, in the order of files and places. They are false if there are none.

    Raises:
        ConfigError: No deserializer reads a file, or an option does not apply to the files.
        CorpusError: The data of a deserializer that is written in Python do not fit its streams.
        OSError: A file cannot be read, or the copy cannot be written.

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
    reading = Reading(
        StreamDefs(streams or {}), max_errors, skip_sequence_ids, strict, chunk_size_in_bytes, keys, prefix,
        None if mapping is None else Path(mapping),
    )  # fmt: skip
    named = [corpus for corpus in corpora if isinstance(corpus, str | os.PathLike | Sequence)]
    given: list[Any] = [corpus for corpus in corpora if not isinstance(corpus, str | os.PathLike | Sequence)]
    with nullcontext() if remote is None else remote_by_default(remote), inputs(named) as files:
        if files:
            reading.require_takers(files)
        elif reading != Reading():
            raise ConfigError("options of files are only for files; a deserializer has its own options")
        limits = Limits([ignore] if isinstance(ignore, str) else ignore, max_findings)
        return check_all(files, given, reading, limits, output=output, progress=progress)


class Limits(NamedTuple):
    """The findings to list.

    Attributes:
        ignore: Codes of rules to leave out.
        max_findings: Number of findings to list.
    """

    ignore: Iterable[str] = ()
    max_findings: int = 100

    def findings(self) -> Findings:
        """Return an empty list of findings with these limits.

        Raises:
            ConfigError: No rule has a code.
        """
        ignored = frozenset(self.ignore)
        for code in sorted(ignored - RULES.keys()):
            raise ConfigError(
                f"{wording().flag('ignore')} {code}: no rule has this code{did_you_mean(code, RULES)}", key="ignore"
            )
        return Findings(self.max_findings, ignored)


def check_all(
    files: Sequence[Input],
    deserializers: Sequence[Deserializer],
    reading: Reading,
    limits: Limits,
    *,
    output: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Findings:
    """Check files and deserializers, which are joined. See `check`."""
    findings = limits.findings()
    num_corpora = len(files) + len(deserializers)
    if output is not None:
        _require_copy(Path(output), files, num_corpora)
    usual = reading.usually(max_errors=_ANY_NUMBER_OF_ERRORS, chunk_size_in_bytes=SURVEYED_AT_ONCE)
    with ExitStack() as stack:
        call = _Call(usual, findings, stack, progress)
        checked = [_check_input(call, file) for file in files] + [_check_given(call, one) for one in deserializers]
        if num_corpora > 1 and all(checked):
            check_keys([opened for found in checked for opened in found], findings)
        findings.finish({str(file.path): file.name for file in files if not file.files})
        if output is not None and checked[0]:
            findings.num_left_out = _write_sound(Path(output), files[0], checked[0][0].corpus, findings)
    return findings


def _require_copy(output: Path, files: Sequence[Input], num_corpora: int) -> None:
    flag = wording().flag("output")
    if num_corpora > 1 or not files or files[0].files or files[0].kind.form != "ctf":
        raise ConfigError(f"{flag} applies only to a single text", key="output")
    if files[0].has(output):
        raise ConfigError(f"{flag} is the file itself; check never changes a corpus", key="output")


class _Call(NamedTuple):
    """Arguments that all parts of a check need.

    Attributes:
        reading: Options for reading files.
        findings: The list to which findings are added.
        stack: Closes what is opened.
        progress: Called with how far a corpus is checked.
        doubt: See `check_corpus`.
        values: See `check_corpus`.
    """

    reading: Reading
    findings: Findings
    stack: ExitStack
    progress: Progress | None
    doubt: Callable[[Corpus], None] | None = None
    values: ValueChecks | None = None

    def with_streams(self, streams: StreamDefs, doubt: Callable[[Corpus], None]) -> _Call:
        return self._replace(reading=self.reading._replace(streams=streams), doubt=doubt)

    def blocks(self, corpus: Corpus, refuse: Callable[[FormatError], None]) -> Iterator[Block]:
        return blocks(corpus, refuse, self.progress)


# ------------------------------------------------------------------------------------------------ streams of texts


class _OtherStreamsError(Exception):
    """A text has other streams than its first lines."""

    def __init__(self, streams: StreamDefs) -> None:
        super().__init__()
        self.streams = streams


class _Doubt:
    """Searches texts for their streams, once, and refuses a guess that differs from them."""

    def __init__(self, file: Input, guess: StreamDefs, reading: Reading) -> None:
        self._file, self._guess, self._reading = file, guess, reading
        self._has_searched = False

    def __call__(self, corpus: Corpus) -> None:
        """Read all texts, unless that was done before.

        Raises:
            _OtherStreamsError: They have other streams.
        """
        if self._has_searched:
            return
        self._has_searched = True
        num_sequences = sum(map(self._num_sequences, self._file.files)) or corpus.table.num_sequences
        streams = infer_usual_streams(self._file.names, num_sequences // _SEQUENCES_FOR_A_NAME)
        if _forms(streams) != _forms(self._guess):
            raise _OtherStreamsError(streams)

    def _num_sequences(self, path: str) -> int:
        by_line = self._reading.skip_sequence_ids
        text = CTFDeserializer(path, self._guess, skip_sequence_ids=by_line, max_errors=_ANY_NUMBER_OF_ERRORS)
        try:
            with traced(0), closing(text.open()) as corpus:
                return corpus.table.num_sequences
        except FormatError:
            return 0


def _forms(streams: StreamDefs) -> list[tuple[str, bool, int]]:
    """Return facts about streams, without the dimensions of sparse streams."""
    return [(name, of.is_sparse, 0 if of.is_sparse else num_values(of.dim)) for name, of in streams.items()]


def _check_input(call: _Call, file: Input) -> list[Opened]:
    """Check a file, or several. A text is checked again if its streams differ from the guess."""
    guess = guessed_streams(file.names) if file.kind.form == "ctf" and not call.reading.streams else StreamDefs()
    if not guess:
        return _check_as_asked(call, file)
    findings = call.findings.empty()
    try:
        with ExitStack() as stack:
            trial = call._replace(findings=findings, stack=stack)
            found = _check_as_asked(trial.with_streams(guess, _Doubt(file, guess, call.reading)), file)
            call.stack.push(stack.pop_all())
    except _OtherStreamsError as other:
        return _check_as_asked(call.with_streams(other.streams, lambda corpus: None), file)
    call.findings.add_all(findings)
    return found


# --------------------------------------------------------------------------------------------- files, deserializers


def _check_as_asked(call: _Call, file: Input) -> list[Opened]:
    """Check a file, or several files and whether they belong together; return the corpora that can be opened."""
    if not file.files:
        return _check_file(call, file)
    is_sound = True
    values, texts = ValueChecks(file.name), list[Text]()
    for path in file.files:
        with ExitStack() as stack:
            one = file._replace(name=path, path=Path(path), files=())
            found = _check_file(call._replace(stack=stack, values=values), one)
        is_sound = bool(found) and is_sound
        # A place opens a text again.
        texts += [opened.text for opened in found if opened.text is not None]
    with ExitStack() as stack:
        for text in texts:
            stack.callback(text.close)
        values.report(call.findings)
    if not is_sound:
        return []
    try:
        with traced(0):
            (together,) = described(file, call.reading)
            corpora = call.stack.enter_context(together.opened())
    except FormatError as error:
        call.findings.add(Finding.of(error.kind or "repeated id", error, file.name))
        return []
    return [Opened(file.name, corpus, None) for corpus in corpora]


def _check_file(call: _Call, file: Input) -> list[Opened]:
    try:
        found = described(file, call.reading)
    except FormatError as error:
        call.findings.add(Finding.of(error.kind, error, str(file.path)))
        return []
    return [opened for one in found for opened in _check_described(call, one)]


def _check_described(call: _Call, one: Described) -> list[Opened]:
    aliases: Mapping[str, str] | None = None
    if one.input.kind.form == "ctf":
        aliases = {name: stream["stream_alias"] for name, stream in one.deserializers[0].streams.items()}
    return _check_parts(call, str(one.input.path), one.parts(), aliases)


def _check_given(call: _Call, deserializer: Any) -> list[Opened]:
    return _check_parts(call, type(deserializer).__name__, openers(deserializer), None)


def _check_parts(
    call: _Call, path: str, parts: Sequence[Callable[[], Corpus]], aliases: Mapping[str, str] | None
) -> list[Opened]:
    """Check the corpora of a description, which are joined; return them if all could be opened."""
    found = [_check_part(call, path, open_part, aliases) for open_part in parts]
    checked = [opened for opened in found if opened is not None]
    if len(checked) < len(parts):
        return []
    check_keys(checked, call.findings)
    return checked


def _check_part(
    call: _Call, path: str, open_part: Callable[[], Corpus], aliases: Mapping[str, str] | None
) -> Opened | None:
    def opened() -> Opened:
        corpus: Any = call.stack.enter_context(closing(open_part()))
        text = None
        if aliases is not None:
            text = call.stack.enter_context(closing(Text(path, partial(bounds_of, corpus.index), aliases)))
        return Opened(path, corpus, text)

    return check_corpus(path, opened, call.blocks, call.findings, call.doubt, call.values)


# ---------------------------------------------------------------------------------------------------- a sound copy


def _write_sound(target: Path, file: Input, corpus: Any, findings: Findings) -> int:
    """Write a copy without the sequences that break the format, and return their number."""
    unsound = sorted({bounds_at(corpus.index, byte) for byte in findings.unsound.get(str(file.path), [])})
    with closing(open_input(str(file.path))) as text, written_whole(target) as copy:
        begin = 0
        with announced("copying", text.size):
            for end, following in (*unsound, (text.size, text.size)):
                for at in range(begin, end, _COPIED_AT_ONCE):
                    passed(copy.write(text.read(at, min(_COPIED_AT_ONCE, end - at))))
                begin = following
    return len(unsound)

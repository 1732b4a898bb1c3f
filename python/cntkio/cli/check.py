"""The verbs `check` and `rule`: what is wrong with corpora, as linters report it. (docs/check.md)"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cntkio.cli.corpora import SURVEYED_AT_ONCE, Described, Usual, described, opened, surveyed
from cntkio.cli.show import BAD_DATA, FINE, coloured, complain, show, show_json, wrapped
from cntkio.cli.spooling import Input, inputs
from cntkio.displays import counted
from cntkio.errors import ConfigError, FormatError, printable
from cntkio.formats.contract import Corpus
from cntkio.formats.ctf import guessed_streams, infer_streams, infer_usual_streams
from cntkio.formats.open_input import open_input
from cntkio.formats.output_file import written_whole
from cntkio.formats.report import traced
from cntkio.hints import did_you_mean
from cntkio.streams import StreamDefs, num_values
from cntkio.survey import checking
from cntkio.survey.findings import Finding, Findings
from cntkio.survey.rules import RULES

_ANY_NUMBER_OF_ERRORS = -1
_COPIED_AT_ONCE = 4 << 20


def check(options: Namespace) -> int:
    """Check corpora, and print what is wrong.

    Raises:
        CntkIoError: The call is bad.
        OSError: A file cannot be read, or the cleaned copy cannot be written.
    """
    ignored = frozenset(code for codes in options.ignore or () for code in codes.split(","))
    for code in ignored - RULES.keys():
        raise ConfigError(f"--ignore {code}: no rule has this code{did_you_mean(code, RULES)}", key="ignore")
    most = options.max_findings if options.output is None else 2**63
    findings = Findings(most, ignored)
    num_sequences = 0
    with inputs(options.file) as files, ExitStack() as stack:
        if options.output is not None and (len(files) > 1 or files[0].files or files[0].kind.form != "ctf"):
            raise ConfigError("--output goes with one text", key="output")
        checked = []
        for file in files:
            if file.files:
                num_sequences += _check_several(options, file, findings)
                continue
            for found in _check_file(options, stack, file, findings):
                checked.append(found)
                num_sequences += found.corpus.table.num_sequences
        if len(files) > 1 and len(checked) == len(files):
            checking.check_keys(checked, findings)
        shown = [_shown(finding, files) for finding in findings.in_order()][: options.max_findings]
        form = "json" if options.json else options.output_format
        _REPORTS[form](options, findings, shown, num_sequences)
        if options.output is not None and checked:
            _write_sound(options, files[0], checked[0].corpus, findings)
    return BAD_DATA if findings.counts and not options.exit_zero else FINE


def _check_several(options: Namespace, file: Input, findings: Findings) -> int:
    """Check each file of a concatenation, and whether they belong together; return the number of sequences."""
    if file.kind.form == "ctf" and not options.stream:
        with suppress(FormatError):  # the file with the error will be reported
            options = _with_streams(options, infer_streams(file.names))
    num_sequences = 0
    is_sound = True
    for path in file.files:
        with ExitStack() as stack:
            one = file._replace(name=path, path=Path(path), files=())
            corpora = [found.corpus for found in _check_file(options, stack, one, findings)]
            num_sequences += sum(corpus.table.num_sequences for corpus in corpora)
            is_sound = is_sound and bool(corpora)
    if is_sound:
        (together,) = described(options, file, Usual(max_errors=_ANY_NUMBER_OF_ERRORS))
        try:
            with traced(0), opened(together):
                pass
        except FormatError as error:
            findings.add(Finding.of(error.kind or "repeated id", error, file.name))
    return num_sequences


class _OtherStreamsError(Exception):
    """A text has other streams than its first lines."""

    def __init__(self, streams: StreamDefs) -> None:
        super().__init__()
        self.streams = streams


def _check_file(options: Namespace, stack: ExitStack, file: Input, findings: Findings) -> Iterable[checking.Opened]:
    """Check a file. The streams of a text are guessed from its first lines, until something contradicts."""
    guess = guessed_streams(file.names) if file.kind.form == "ctf" and not options.stream else StreamDefs()
    if not guess:
        return _check_as_asked(options, stack, file, findings)

    def doubt(corpus: Corpus) -> None:
        """Read the whole text."""
        streams = infer_usual_streams(file.names, corpus.table.num_sequences // 100)
        if _forms(streams) != _forms(guess):
            raise _OtherStreamsError(streams)

    try:
        with ExitStack() as trial:
            found = list(_check_as_asked(_with_streams(options, guess), trial, file, findings, doubt))
            stack.push(trial.pop_all())
    except _OtherStreamsError as other:
        return list(_check_as_asked(_with_streams(options, other.streams), stack, file, findings, lambda corpus: None))
    return found


def _with_streams(options: Namespace, streams: StreamDefs) -> Namespace:
    return Namespace(**{**vars(options), "stream": list(streams.items())})


def _forms(streams: StreamDefs) -> list[tuple[str, bool, int]]:
    """Return facts about streams, without the dimensions of sparse streams."""
    return [(name, of.is_sparse, 0 if of.is_sparse else num_values(of.dim)) for name, of in streams.items()]


def _check_as_asked(
    options: Namespace,
    stack: ExitStack,
    file: Input,
    findings: Findings,
    doubt: Callable[[Corpus], None] | None = None,
) -> Iterator[checking.Opened]:
    try:
        corpora = described(options, file, Usual(max_errors=_ANY_NUMBER_OF_ERRORS, chunk_size=SURVEYED_AT_ONCE))
    except FormatError as error:
        findings.add(Finding.of(error.kind, error, str(file.path)))
        return
    for one in corpora:
        yield from _check(options, stack, one, findings, doubt)


def _check(
    options: Namespace,
    stack: ExitStack,
    one: Described,
    findings: Findings,
    doubt: Callable[[Corpus], None] | None,
) -> Iterator[checking.Opened]:
    path = str(one.input.path)

    def open_first() -> checking.Opened:
        (corpus, *_) = stack.enter_context(opened(one))
        text = None
        if one.input.kind.form == "ctf":
            aliases = {name: stream["stream_alias"] for name, stream in one.deserializers[0].streams.items()}
            in_text: Any = corpus
            text = checking.Text(path, in_text.bounds_of, aliases)
            stack.enter_context(closing(text))
        return checking.Opened(path, corpus, text)

    found = checking.check(path, open_first, lambda corpus, refuse: surveyed(options, corpus, refuse), findings, doubt)
    if found is not None:
        yield found


def _shown(finding: Finding, files: list[Input]) -> Finding:
    """Return a finding with the name of its file as the call has it."""
    names = {str(file.path): file.name for file in files if not file.files}
    return finding._replace(path=names.get(finding.path, finding.path))


# ---------------------------------------------------------------------------------------------------- reports


def _full(options: Namespace, findings: Findings, shown: list[Finding], num_sequences: int) -> None:
    if options.statistics:
        _statistics(findings)
    else:
        for finding in shown:
            _show_in_full(finding)
    _summary(findings, shown, num_sequences, options)


def _show_in_full(finding: Finding) -> None:
    colour = "red" if finding.rule.severity == "error" else "magenta"
    message = wrapped(f"{finding.code}: {printable(finding.message)}", 2)
    print(f"{coloured(finding.code, colour, 'bold')}{message.removeprefix(finding.code)}")
    print(f"{coloured(' -->', 'blue', 'bold')} {printable(finding.place)}")
    excerpt = finding.excerpt()
    if excerpt is not None:
        margin = len(str(finding.line))
        bar = coloured("|", "blue", "bold")
        before, after = printable(excerpt.text[: excerpt.caret]), printable(excerpt.text[excerpt.caret :])
        print(f"{'':{margin}} {bar}")
        print(f"{coloured(str(finding.line), 'blue', 'bold')} {bar} {before}{after}")
        caret = coloured("^", colour, "bold")
        print(f"{'':{margin}} {bar} {'':{len(before)}}{caret} {printable(finding.context)}".rstrip())
    elif finding.context:
        print(f"  {coloured('=', 'blue', 'bold')} {printable(finding.context)}")
    print(f"{coloured('help', 'bold')}{wrapped(f'help: {finding.rule.help}', 2).removeprefix('help')}\n")


def _concise(options: Namespace, findings: Findings, shown: list[Finding], num_sequences: int) -> None:
    if options.statistics:
        _statistics(findings)
    for finding in shown if not options.statistics else ():
        context = f" ({finding.context})" if finding.context else ""
        show(f"{finding.place}: {finding.code} {finding.message}{context}")
    _summary(findings, shown, num_sequences, options)


def _statistics(findings: Findings) -> None:
    width = max((len(f"{number:,}") for number in findings.counts.values()), default=0)
    for code, number in findings.counts.most_common():
        show(f"{number:{width},}  {code}")


def _summary(findings: Findings, shown: list[Finding], num_sequences: int, options: Namespace) -> None:
    errors, warnings = findings.num_of("error"), findings.num_of("warning")
    if not findings.counts:
        show(f"No findings in {counted(num_sequences, 'sequence')}.")
        return
    kinds = ", ".join(f"{number:,} {code}" for code, number in findings.counts.most_common())
    rest = sum(findings.counts.values()) - len(shown)
    why = " (--max-findings)" if len(shown) == options.max_findings else ", only counted"
    more = f" {rest:,} more are not shown{why}." if rest and not options.statistics else ""
    print(wrapped(f"Found {counted(errors, 'error')}, {counted(warnings, 'warning')} ({kinds}).{more}", 0))


def _json(options: Namespace, findings: Findings, shown: list[Finding], num_sequences: int) -> None:
    items = [
        {
            "code": finding.code,
            "severity": finding.rule.severity,
            "message": finding.message,
            "help": finding.rule.help,
            "filename": finding.path,
            "location": None if finding.line is None else {"row": finding.line, "column": finding.column or 1},
            "byte": finding.byte,
            "sequence": finding.sequence,
            "stream": finding.stream,
        }
        for finding in shown
    ]
    counts = dict(findings.counts.most_common())
    show_json({"findings": [] if options.statistics else items, "counts": counts, "sequences": num_sequences})


def _github(options: Namespace, findings: Findings, shown: list[Finding], num_sequences: int) -> None:
    for finding in shown:
        place = f",line={finding.line},col={finding.column or 1}" if finding.line is not None else ""
        head = f"::{finding.rule.severity} title=cntkio ({finding.code}),file={_escaped(finding.path)}{place}"
        context = f" ({finding.context})" if finding.context else ""
        show(f"{head}::{_escaped(finding.message + context)}")


def _escaped(text: str) -> str:
    """Return a text for a workflow command."""
    return printable(text).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")


def _sarif(options: Namespace, findings: Findings, shown: list[Finding], num_sequences: int) -> None:
    rules = [
        {"id": code, "shortDescription": {"text": RULES[code].meaning}, "help": {"text": RULES[code].help}}
        for code in sorted({finding.code for finding in shown})
    ]
    results = []
    for finding in shown:
        region: dict[str, int] = {}
        if finding.line is not None:
            region = {"startLine": finding.line, "startColumn": finding.column or 1}
        elif finding.byte is not None:
            region = {"byteOffset": finding.byte}
        place: dict[str, Any] = {"artifactLocation": {"uri": finding.path}, **({"region": region} if region else {})}
        results.append(
            {
                "ruleId": finding.code,
                "level": finding.rule.severity,
                "message": {"text": finding.message},
                "locations": [{"physicalLocation": place}],
            }
        )
    driver = {"name": "cntkio", "version": version("cntkio"), "rules": rules}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    show_json({"version": "2.1.0", "$schema": schema, "runs": [{"tool": {"driver": driver}, "results": results}]})


_Report = Callable[[Namespace, Findings, list[Finding], int], None]
_REPORTS: dict[str, _Report] = {
    "full": _full,
    "concise": _concise,
    "json": _json,
    "github": _github,
    "sarif": _sarif,
}
OUTPUT_FORMATS = tuple(_REPORTS)
"""Names of the forms of a report."""


# ----------------------------------------------------------------------------------------------- a sound copy


def _write_sound(options: Namespace, file: Input, corpus: Any, findings: Findings) -> None:
    """Write a copy without the sequences that break the format."""
    if options.output.exists() and options.output.samefile(file.path):
        raise ConfigError("--output is the file itself; check never changes a corpus", key="output")
    unsound = sorted({corpus.bounds_at(byte) for byte in findings.unsound.get(str(file.path), [])})
    text = open_input(str(file.path))
    try:
        with written_whole(options.output) as target:
            begin = 0
            for end, following in (*unsound, (text.size, text.size)):
                for at in range(begin, end, _COPIED_AT_ONCE):
                    target.write(text.read(at, min(_COPIED_AT_ONCE, end - at)))
                begin = following
    finally:
        text.close()
    if not options.quiet:
        left_out = counted(len(unsound), "sequence")
        complain(
            f"{options.output}: {corpus.table.num_sequences - len(unsound):,} sound sequences; {left_out} left out"
        )


# ------------------------------------------------------------------------------------------------------- rule


def rule(options: Namespace) -> int:
    """Print what a rule of `check` means, or the codes of all rules.

    Raises:
        ConfigError: No rule has the code.
    """
    if options.code is None:
        if options.json:
            show_json([found._asdict() for found in RULES.values()])
            return FINE
        width = max(map(len, RULES))
        for found in RULES.values():
            show(f"{found.code:{width}}  {found.severity:7}  {found.formats}")
        return FINE
    if options.code not in RULES:
        raise ConfigError(f"no rule has the code {options.code!r}{did_you_mean(options.code, RULES)}", key="code")
    found = RULES[options.code]
    if options.json:
        show_json(found._asdict())
    else:
        print(coloured(found.code, "bold"))
        print(f"\n{found.meaning}\n\nseverity  {found.severity}\nfound in  {found.formats}\nhelp      {found.help}")
    return FINE

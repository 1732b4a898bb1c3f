"""The verbs `check` and `rule`: what is wrong with corpora, as linters report it. (docs/check.md)"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

from cntkio.arguments import did_you_mean
from cntkio.cli.show import (
    BAD_DATA,
    FINE,
    coloured,
    inputs_of,
    line_width,
    progress_bar,
    reading_of,
    show,
    show_json,
    wrapped,
)
from cntkio.displays import columns_of, counted
from cntkio.errors import ConfigError, printable
from cntkio.survey.checks import check_all
from cntkio.survey.findings import Finding, Findings
from cntkio.survey.rules import RULES


def check(options: Namespace) -> int:
    """Check corpora, and print what is wrong."""
    ignore = [code for codes in options.ignore or () for code in codes.split(",")]
    findings = Findings(options.max_findings, ignore)
    with (
        # A damaged file becomes a finding, and the other files are still checked.
        inputs_of(options, refuse=findings.add_damaged) as files,
        progress_bar(options, "sequences") as progress,
    ):
        check_all(files, [], reading_of(options), findings, joins=options.join, progress=progress)
    print_report(options, findings)
    return BAD_DATA if findings and not options.exit_zero else FINE


def print_report(options: Namespace, findings: Findings) -> None:
    """Print findings in the form that the options ask for."""
    # All verbs have `--json`; here it is another spelling of `--output-format json`.
    _REPORTS["json" if options.json else options.output_format](options, findings)


def _for_people(show_one: Callable[[Finding], None], options: Namespace, findings: Findings) -> None:
    counts = findings.counts.most_common()
    if options.statistics:
        for code, number in counts:
            # The first number is the largest.
            show(f"{number:{len(f'{counts[0][1]:,}')},}  {code}")
    else:
        for finding in findings:
            show_one(finding)
    if not counts:
        show(f"No findings in {counted(findings.num_sequences, 'sequence')}.")
        return
    rest = sum(findings.counts.values()) - sum(finding.num_cases for finding in findings)
    more = f" {rest:,} more are not shown (--max-findings)." if rest and not options.statistics else ""
    errors, warnings = (counted(findings.num_of(severity), severity) for severity in ("error", "warning"))
    kinds = ", ".join(f"{number:,} {code}" for code, number in counts)
    in_all = f"in {counted(findings.num_sequences, 'sequence')} ({kinds})"
    print(wrapped(f"Found {errors}, {warnings} {in_all}.{more}", 0))


def _show_in_full(finding: Finding) -> None:
    colour = "red" if finding.rule.severity == "error" else "magenta"
    # Wrapped before it is coloured, because escape sequences would count as characters.
    message = wrapped(f"{finding.code}: {printable(finding.message)}", 2)
    print(f"{coloured(finding.code, colour, 'bold')}{message.removeprefix(finding.code)}")
    print(f"{coloured(' -->', 'blue', 'bold')} {printable(finding.place)}")
    excerpt = finding.excerpt
    if excerpt is not None:
        margin = len(str(finding.line))
        bar = coloured("|", "blue", "bold")
        excerpt = excerpt.cut(max(line_width() - margin - 4, 20))
        before, word = printable(excerpt.text[: excerpt.caret]), printable(excerpt.word)
        after = printable(excerpt.text[excerpt.caret + excerpt.width :])
        # At the end of a line the word at the place is empty, but a caret must mark it.
        caret = coloured("^" * max(columns_of(word), 1), colour, "bold")
        print(f"{'':{margin}} {bar}")
        print(f"{coloured(str(finding.line), 'blue', 'bold')} {bar} {before}{word}{after}")
        # Counted in columns of the terminal: some characters are two columns wide, or none.
        print(f"{'':{margin}} {bar} {'':{columns_of(before)}}{caret}")
    if finding.context:
        print(f"  {coloured('=', 'blue', 'bold')} {printable(finding.context)}")
    if finding.num_cases > 1:
        print(f"  {coloured('=', 'blue', 'bold')} {wrapped(printable(_cases(finding)), 4)}")
    print(f"{coloured('help', 'bold')}{wrapped(f'help: {printable(finding.help)}', 2).removeprefix('help')}\n")


def _cases(finding: Finding) -> str:
    """Return the number of cases, and the second and the third place."""
    if not finding.others:
        return counted(finding.num_cases, "case")
    places = []
    for other in finding.others:
        in_context = ", ".join(filter(None, (other.place, other.context)))
        places.append(in_context if other.line is None else other.place.removeprefix(f"{finding.path}:"))
    rest = finding.num_cases - len(places) - 1
    more = f" and {rest:,} more" if rest > 0 else ""
    return f"{counted(finding.num_cases, 'case')}: also at {', '.join(places)}{more}"


def _message(finding: Finding) -> str:
    """Return the message of a finding with its stream, its sequence and its number of cases."""
    notes = (finding.context, _cases(finding) if finding.num_cases > 1 else "")
    return finding.message + "".join(f" ({note})" for note in notes if note)


def _json(options: Namespace, findings: Findings) -> None:
    items = [
        {
            "code": finding.code, "severity": finding.rule.severity, "message": finding.message, "help": finding.help,
            "stream": finding.stream, "count": finding.num_cases, **_place(finding),
            "others": [_place(other) for other in finding.others],
        }
        for finding in findings
    ]  # fmt: skip
    counts = dict(findings.counts.most_common())
    show_json({"findings": [] if options.statistics else items, "counts": counts, "sequences": findings.num_sequences})


def _place(finding: Finding) -> dict[str, Any]:
    location = None if finding.line is None else {"row": finding.line, "column": finding.column or 1}
    return {
        "filename": finding.path, "location": location, "byte": finding.byte, "sequence": finding.sequence,
        "sample": finding.sample, "table_row": finding.row,
    }  # fmt: skip


def _github(options: Namespace, findings: Findings) -> None:
    for finding in findings:
        place = f",line={finding.line},col={finding.column or 1}" if finding.line is not None else ""
        head = f"::{finding.rule.severity} title=cntkio ({finding.code}),file={_escaped(finding.path)}{place}"
        show(f"{head}::{_escaped(f'{_message(finding)}; {finding.help}', '%')}")


def _escaped(text: str, special: str = "%:,") -> str:
    """Escape a text for a property of a workflow command. In the message of a command, only `%` is special."""
    return "".join(f"%{ord(char):02X}" if char in special else char for char in printable(text))


_REPORTS: dict[str, Callable[[Namespace, Findings], None]] = {
    "full": partial(_for_people, _show_in_full),
    "concise": partial(_for_people, lambda found: show(f"{found.place}: {found.code} {_message(found)}")),
    "json": _json,
    "github": _github,
}
OUTPUT_FORMATS = tuple(_REPORTS)
"""Names of the forms of a report."""


def rule(options: Namespace) -> int:
    """Print what a rule of `check` means, or the codes of all rules."""
    found = None if options.code is None else RULES.get(options.code)
    if found is None and options.code is not None:
        raise ConfigError(f"no rule has the code {options.code!r}{did_you_mean(options.code, RULES)}", key="code")
    if options.json:
        show_json(found._asdict() if found else [each._asdict() for each in RULES.values()])
    elif found:
        print(f"{coloured(found.code, 'bold')} ({found.severity})\n")
        print(f"{wrapped(found.meaning, 0)}\n\n{wrapped(f'help: {found.help}', 2)}")
    else:
        width = max(map(len, RULES))
        for each in RULES.values():
            show(f"{each.code:{width}}  {each.severity:7}  {each.meaning.partition('. ')[0].removesuffix('.')}")
    return FINE

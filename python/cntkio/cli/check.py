"""The verbs `check` and `rule`: what is wrong with corpora, as linters report it. (docs/check.md)"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import quote

from cntkio._core import __version__
from cntkio.cli.corpora import inputs_of, reading_of
from cntkio.cli.show import BAD_DATA, FINE, coloured, complain, progress_bar, show, show_json, wrapped
from cntkio.displays import columns_of, counted
from cntkio.errors import ConfigError, printable
from cntkio.formats.remote import is_remote
from cntkio.hints import did_you_mean
from cntkio.survey import checks
from cntkio.survey.findings import Finding, Findings
from cntkio.survey.rules import RULES


def check(options: Namespace) -> int:
    """Check corpora, and print what is wrong.

    Raises:
        CntkIoError: The call is bad.
        OSError: A file cannot be read, or the cleaned copy cannot be written.
    """
    ignore = [code for codes in options.ignore or () for code in codes.split(",")]
    limits = checks.Limits(ignore, options.max_findings)
    with inputs_of(options) as files, progress_bar(options, "sequences") as progress:
        findings = checks.check_all(files, [], reading_of(options), limits, output=options.output, progress=progress)
    _REPORTS["json" if options.json else options.output_format](options, findings)
    if options.output is not None and not options.quiet:
        num_sound = counted(findings.num_sequences - findings.num_left_out, "sound sequence")
        complain(f"{options.output}: {num_sound}; {counted(findings.num_left_out, 'sequence')} left out")
    return BAD_DATA if findings and not options.exit_zero else FINE


# ---------------------------------------------------------------------------------------------------- reports


def _for_people(show_one: Callable[[Finding], None], options: Namespace, findings: Findings) -> None:
    if options.statistics:
        width = max((len(f"{number:,}") for number in findings.counts.values()), default=0)
        for code, number in findings.counts.most_common():
            show(f"{number:{width},}  {code}")
    else:
        for finding in findings:
            show_one(finding)
    _summary(options, findings)


def _show_in_full(finding: Finding) -> None:
    colour = "red" if finding.rule.severity == "error" else "magenta"
    message = wrapped(f"{finding.code}: {printable(finding.message)}", 2)
    print(f"{coloured(finding.code, colour, 'bold')}{message.removeprefix(finding.code)}")
    print(f"{coloured(' -->', 'blue', 'bold')} {printable(finding.place)}")
    excerpt = finding.excerpt
    if excerpt is not None:
        margin = len(str(finding.line))
        bar = coloured("|", "blue", "bold")
        before, after = printable(excerpt.text[: excerpt.caret]), printable(excerpt.text[excerpt.caret :])
        print(f"{'':{margin}} {bar}")
        print(f"{coloured(str(finding.line), 'blue', 'bold')} {bar} {before}{after}")
        caret = coloured("^", colour, "bold")
        print(f"{'':{margin}} {bar} {'':{columns_of(before)}}{caret} {printable(finding.context)}".rstrip())
    elif finding.context:
        print(f"  {coloured('=', 'blue', 'bold')} {printable(finding.context)}")
    print(f"{coloured('help', 'bold')}{wrapped(f'help: {finding.rule.help}', 2).removeprefix('help')}\n")


def _show_on_a_line(finding: Finding) -> None:
    show(f"{finding.place}: {finding.code} {_message(finding)}")


def _message(finding: Finding) -> str:
    """Return the message of a finding with its stream and its sequence."""
    return finding.message + (f" ({finding.context})" if finding.context else "")


def _summary(options: Namespace, findings: Findings) -> None:
    errors, warnings = findings.num_of("error"), findings.num_of("warning")
    if not findings.counts:
        show(f"No findings in {counted(findings.num_sequences, 'sequence')}.")
        return
    kinds = ", ".join(f"{number:,} {code}" for code, number in findings.counts.most_common())
    rest = sum(findings.counts.values()) - len(findings)
    why = " (--max-findings)" if len(findings) == options.max_findings else ", only counted"
    more = f" {rest:,} more are not shown{why}." if rest and not options.statistics else ""
    print(wrapped(f"Found {counted(errors, 'error')}, {counted(warnings, 'warning')} ({kinds}).{more}", 0))


def _json(options: Namespace, findings: Findings) -> None:
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
        for finding in findings
    ]
    counts = dict(findings.counts.most_common())
    show_json({"findings": [] if options.statistics else items, "counts": counts, "sequences": findings.num_sequences})


def _github(options: Namespace, findings: Findings) -> None:
    for finding in findings:
        place = f",line={finding.line},col={finding.column or 1}" if finding.line is not None else ""
        head = f"::{finding.rule.severity} title=cntkio ({finding.code}),file={_escaped(finding.path)}{place}"
        show(f"{head}::{_escaped(_message(finding), '%')}")


def _escaped(text: str, special: str = "%:,") -> str:
    """Escape a text for a property of a workflow command. In the message of a command, only `%` is special."""
    return "".join(f"%{ord(char):02X}" if char in special else char for char in printable(text))


def _sarif(options: Namespace, findings: Findings) -> None:
    rules = [
        {"id": code, "shortDescription": {"text": RULES[code].meaning}, "help": {"text": RULES[code].help}}
        for code in sorted({finding.code for finding in findings})
    ]
    results = []
    for finding in findings:
        place: dict[str, Any] = {"artifactLocation": {"uri": _uri(finding.path)}}
        if finding.line is not None:
            place["region"] = {"startLine": finding.line, "startColumn": finding.column or 1}
        elif finding.byte is not None:
            place["region"] = {"byteOffset": finding.byte}
        results.append(
            {
                "ruleId": finding.code,
                "level": finding.rule.severity,
                "message": {"text": finding.message},
                "locations": [{"physicalLocation": place}],
            }
        )
    driver = {"name": "cntkio", "version": __version__, "rules": rules}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    show_json({"version": "2.1.0", "$schema": schema, "runs": [{"tool": {"driver": driver}, "results": results}]})


def _uri(path: str) -> str:
    """Return a path as a relative reference of a URI; return a URL unchanged."""
    return path if is_remote(path) else quote(os.fsencode(path.replace(os.sep, "/")))


_Report = Callable[[Namespace, Findings], None]
_REPORTS: dict[str, _Report] = {
    "full": partial(_for_people, _show_in_full),
    "concise": partial(_for_people, _show_on_a_line),
    "json": _json,
    "github": _github,
    "sarif": _sarif,
}
OUTPUT_FORMATS = tuple(_REPORTS)
"""Names of the forms of a report."""


# ------------------------------------------------------------------------------------------------------- rule


def rule(options: Namespace) -> int:
    """Print what a rule of `check` means, or the codes of all rules.

    Raises:
        ConfigError: No rule has the code.
    """
    found = None if options.code is None else RULES.get(options.code)
    if found is None and options.code is not None:
        raise ConfigError(f"no rule has the code {options.code!r}{did_you_mean(options.code, RULES)}", key="code")
    if options.json:
        show_json(found._asdict() if found else [each._asdict() for each in RULES.values()])
    elif found:
        print(coloured(found.code, "bold"))
        print(f"\n{found.meaning}\n\nseverity  {found.severity}\nfound in  {found.formats}\nhelp      {found.help}")
    else:
        width = max(map(len, RULES))
        for each in RULES.values():
            show(f"{each.code:{width}}  {each.severity:7}  {each.formats}")
    return FINE

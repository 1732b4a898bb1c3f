"""Findings of a check: each with its rule and its place, counted for the whole file, listed up to a limit."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from cntkio.displays import Description, counted
from cntkio.errors import FormatError
from cntkio.survey.rules import RULES, Rule, code_of

_WINDOW = 100


class Excerpt(NamedTuple):
    """A line of a text, or a part of it that has the place of a finding.

    Attributes:
        text: The characters; `…` stands for what is left out.
        caret: Position of the place in them.
    """

    text: str
    caret: int


class Finding(NamedTuple):
    """Something that is wrong, or looks wrong.

    Attributes:
        code: Its rule.
        message: The found and the expected content.
        path: The file.
        byte: Position in the file, from 0.
        line: Line of a text, from 1.
        column: Byte in the line, from 1.
        sequence: Key of the sequence.
        stream: Name of the stream.
    """

    code: str
    message: str
    path: str
    byte: int | None = None
    line: int | None = None
    column: int | None = None
    sequence: int | str | None = None
    stream: str | None = None

    @property
    def rule(self) -> Rule:
        """Its rule."""
        return RULES[self.code]

    @property
    def place(self) -> str:
        """The file, and line and column or else the byte, as compilers write them."""
        if self.line is not None:
            return f"{self.path}:{self.line}:{self.column or 1}"
        return self.path if self.byte is None else f"{self.path}: byte {self.byte}"

    @property
    def context(self) -> str:
        """The stream and the sequence."""
        parts = [f"stream {self.stream!r}"] if self.stream is not None else []
        return ", ".join([*parts, *([f"sequence {self.sequence}"] if self.sequence is not None else [])])

    @classmethod
    def of(cls, kind: str | None, error: str | Exception, path: str) -> Finding:
        """Return the finding for an error or a warning of a format."""
        if not isinstance(error, FormatError):
            return cls(code_of(kind or ""), str(error).removeprefix(f"{path}: "), path)
        return cls(
            code_of(kind or error.kind or ""),
            error.what,
            error.path or path,
            error.byte,
            error.line,
            error.column,
            error.sequence,
            error.stream,
        )

    def moved_to(self, other: Finding) -> Finding:
        """Return this finding at the place of another."""
        return self._replace(byte=other.byte, line=other.line, column=other.column)

    def excerpt(self) -> Excerpt | None:
        """Return the line of a text around the place; None if the file cannot be read or the place has no line."""
        if self.line is None or self.byte is None or self.column is None:
            return None
        try:
            with open(self.path, "rb") as file:
                first = max(self.byte - self.column + 1, self.byte - _WINDOW // 2)
                is_cut = first > self.byte - self.column + 1
                file.seek(first)
                content = file.readline(_WINDOW + 1)
        except OSError:
            return None
        is_long = len(content) > _WINDOW and not content.endswith(b"\n")
        before = content[: self.byte - first].decode(errors="replace")
        line = content[:_WINDOW].rstrip(b"\r\n").decode(errors="replace").expandtabs(1)
        return Excerpt(f"{'…' * is_cut}{line}{'…' * is_long}", len(before) + is_cut)


class Findings:
    """The findings of a check.

    Args:
        most: How many to keep; all are counted.
        ignored: Codes that do not count.

    Attributes:
        listed: The findings that were kept, in the order in which they were found.
        counts: How many there are of each code.
        unsound: For each file the bytes at which a sequence breaks the format, for `--output`.
    """

    def __init__(self, most: int, ignored: frozenset[str] = frozenset()) -> None:
        self._most = most
        self._ignored = ignored
        self.listed: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self.unsound: dict[str, list[int]] = {}

    def add(self, finding: Finding, count: int = 1) -> None:
        """Add a finding, which stands for several."""
        if finding.code in self._ignored:
            return
        self.counts[finding.code] += count
        if self.has_room:
            self.listed.append(finding)
        if finding.rule.severity == "error" and finding.byte is not None:
            self.unsound.setdefault(os.fspath(finding.path), []).append(finding.byte)

    def add_each(self, code: str, count: int, make: Callable[[int], Finding], num_made: int) -> None:
        """Add findings of a code, of which `make` makes each that is kept, at most the first `num_made`."""
        if code in self._ignored or not count:
            return
        num_kept = min(count, num_made, max(self._most - len(self.listed), 0))
        self.counts[code] += count
        self.listed.extend(make(index) for index in range(num_kept))

    def __repr__(self) -> str:
        return self._description().text()

    def _repr_html_(self) -> str:
        return self._description().html()

    def _description(self) -> Description:
        severities = [counted(self.num_of("error"), "error"), counted(self.num_of("warning"), "warning")]
        rows = [(found.code, found.place, found.message, found.context) for found in self.in_order()]
        return Description(f"Findings: {', '.join(severities)}", ("rule", "place", "message", "where"), rows)

    @property
    def has_room(self) -> bool:
        """True if the next finding is kept."""
        return len(self.listed) < self._most

    def in_order(self) -> Iterator[Finding]:
        """Yield the findings that were kept, by file and place."""
        paths = {finding.path: index for index, finding in reversed(list(enumerate(self.listed)))}
        yield from sorted(self.listed, key=lambda found: (paths[found.path], found.byte is None, found.byte or 0))

    def num_of(self, severity: str) -> int:
        """Return the number of findings of a severity."""
        return sum(count for code, count in self.counts.items() if RULES[code].severity == severity)

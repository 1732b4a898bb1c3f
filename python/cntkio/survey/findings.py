"""Findings of a check: each with its rule and its place, counted for the whole file, listed up to a limit."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import cache
from typing import NamedTuple

from cntkio.displays import Description, Displayed, counted
from cntkio.errors import CntkIoError, FormatError
from cntkio.formats.open_input import open_input
from cntkio.formats.text_input import TextInput
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
        message: What was found and what was expected.
        path: The file.
        byte: Position in the file, from 0.
        line: Line of a text, from 1.
        column: Byte in the line, from 1.
        sequence: Key of the sequence.
        stream: Name of the stream.
        excerpt: The line of a text around the place; None: the place has no line.
    """

    code: str
    message: str
    path: str
    byte: int | None = None
    line: int | None = None
    column: int | None = None
    sequence: int | str | None = None
    stream: str | None = None
    excerpt: Excerpt | None = None

    @property
    def rule(self) -> Rule:
        """The rule of the finding."""
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
        stream = "" if self.stream is None else f"stream {self.stream!r}"
        sequence = "" if self.sequence is None else f"sequence {self.sequence}"
        return ", ".join(filter(None, (stream, sequence)))

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

    def with_excerpt(self, text: TextInput) -> Finding:
        """Return this finding with the line of the text around its place."""
        if self.line is None or self.byte is None or self.column is None:
            return self
        first = max(self.byte - self.column + 1, self.byte - _WINDOW // 2)
        is_cut = first > self.byte - self.column + 1
        content = text.read(first, _WINDOW + 1)
        content = content[: content.find(b"\n") + 1] or content
        is_long = len(content) > _WINDOW and not content.endswith(b"\n")
        before = content[: self.byte - first].decode(errors="replace")
        line = content[:_WINDOW].rstrip(b"\r\n").decode(errors="replace").expandtabs(1)
        return self._replace(excerpt=Excerpt(f"{'…' * is_cut}{line}{'…' * is_long}", len(before) + is_cut))


class Findings(Displayed):
    """The findings of a check, in the order of files and places. True if there are any.

    Args:
        most: Number of findings to keep; all are counted.
        ignored: Codes that do not count.

    Attributes:
        listed: The findings that were kept, in the order in which they were found.
        counts: Number of findings of each code.
        num_sequences: The sequences that were checked.
        num_left_out: The sequences that a copy lacks.
        unsound: For each file, the bytes at which sequences break the format.
    """

    def __init__(self, most: int, ignored: frozenset[str] = frozenset()) -> None:
        self._most = most
        self._ignored = ignored
        self.listed: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self.num_sequences = 0
        self.num_left_out = 0
        self.unsound: dict[str, list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __len__(self) -> int:
        return len(self.listed)

    def __iter__(self) -> Iterator[Finding]:
        paths = {finding.path: index for index, finding in reversed(list(enumerate(self.listed)))}
        yield from sorted(self.listed, key=lambda found: (paths[found.path], found.byte is None, found.byte or 0))

    def empty(self) -> Findings:
        """Return findings that have as much room as is left here, and ignore the same codes."""
        return Findings(self._most - len(self.listed), self._ignored)

    def add_all(self, other: Findings) -> None:
        """Add the findings of a part of the check."""
        self.listed += other.listed
        self.counts += other.counts
        self.num_sequences += other.num_sequences
        for path, places in other.unsound.items():
            self.unsound.setdefault(path, []).extend(places)

    def finish(self, names: Mapping[str, str]) -> None:
        """Add excerpts while all files can be read, and replace the names of files by names for people.

        Args:
            names: The name for people of each file that has one.
        """
        with ExitStack() as stack:

            @cache
            def opened(path: str) -> TextInput | None:
                try:
                    return stack.enter_context(closing(open_input(path)))
                except (OSError, CntkIoError):
                    return None

            for index, finding in enumerate(self.listed):
                text = None if finding.line is None else opened(finding.path)
                found = finding if text is None else finding.with_excerpt(text)
                self.listed[index] = found._replace(path=names.get(finding.path, finding.path))

    def add(self, finding: Finding, count: int = 1) -> None:
        """Add a finding, which stands for `count` findings."""
        if finding.code in self._ignored:
            return
        self.counts[finding.code] += count
        if len(self.listed) < self._most:
            self.listed.append(finding)
        if finding.rule.severity == "error" and finding.byte is not None:
            self.unsound.setdefault(os.fspath(finding.path), []).append(finding.byte)

    def add_each(self, code: str, count: int, make: Callable[[int], Finding], num_made: int) -> None:
        """Add `count` findings of a code. `make` returns each finding to keep, at most the first `num_made`."""
        if code in self._ignored or not count:
            return
        num_kept = min(count, num_made, max(self._most - len(self.listed), 0))
        self.counts[code] += count
        self.listed.extend(make(index) for index in range(num_kept))

    def _description(self) -> Description:
        severities = [counted(self.num_of("error"), "error"), counted(self.num_of("warning"), "warning")]
        rows = [(found.code, found.place, found.message, found.context) for found in self]
        return Description(f"Findings: {', '.join(severities)}", ("rule", "place", "message", "where"), rows)

    def num_of(self, severity: str) -> int:
        """Return the number of findings of a severity."""
        return sum(count for code, count in self.counts.items() if RULES[code].severity == severity)

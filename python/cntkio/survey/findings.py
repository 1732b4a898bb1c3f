"""Findings of a check: one for each cause, with the number of cases and the first three places."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from functools import cache
from itertools import islice
from typing import NamedTuple

from cntkio.arguments import caller, did_you_mean
from cntkio.displays import Description, Displayed, counted
from cntkio.errors import CntkIoError, ConfigError, FormatError
from cntkio.formats.detect import function_named, kind_in
from cntkio.formats.report import WrongWord
from cntkio.storage.names import shown
from cntkio.storage.open_input import open_input
from cntkio.storage.text_input import TextInput
from cntkio.survey.rules import RULES, Rule, code_of

_NUM_PLACES = 3
_AROUND = 400  # bytes of a line to keep on each side of a place
# Parts of a message that differ from case to case of one cause: numbers, the utterance, and the row or the line at the
# end. An unknown label is the cause itself.
_OF_A_CASE = re.compile(r"\d+(\.\d+)?( (value|sample|line)s?)?|: ['\"].*|(?<=\(utterance )\S+")
_IN_A_TABLE = re.compile(r"(row (?P<row>\d+), )?column '(?P<column>[^']*)'(: )?")
_IN_A_CONFIGURATION = re.compile(r".*, line \d+, column (?P<column>\d+): ")
_TIMES = re.compile(r"'\d\S*\s+\d\S*\s")
_TOKEN = re.compile(r"\|?[^\s|]+")


class Excerpt(NamedTuple):
    """A line of a text, or its part near a finding; `width` is that of the word at the caret, at least 1."""

    text: str
    caret: int
    width: int = 1

    @property
    def word(self) -> str:
        """The word at the place."""
        return self.text[self.caret : self.caret + self.width]

    def cut(self, most: int) -> Excerpt:
        """Return the part around the place that has at most this number of characters; `…` stands for the rest."""
        if len(self.text) <= most:
            return self
        width = min(self.width, most // 2)
        begin = max(min(self.caret - (most - width) // 2, len(self.text) - most), 0)
        end = begin + most
        text = f"{'…' * (begin > 0)}{self.text[begin + (begin > 0) : end - (end < len(self.text))]}"
        return Excerpt(f"{text}{'…' * (end < len(self.text))}", self.caret - begin, width)


class Finding(NamedTuple):
    """Something that is wrong, or looks wrong: a cause, with all of its cases.

    Attributes:
        code: Its rule.
        message: What was found and what was expected.
        path: The file.
        byte: Position in the file, from 0.
        line: Line of a text, from 1.
        column: Character in the line, from 1.
        sequence: Key of the sequence.
        stream: Name of the stream; in a table, of the column.
        excerpt: The line of a text around the place; None: the place has no line.
        sample: Sample in the sequence, such as a frame, from 0; None: the whole sequence.
        row: Row of a table, from 0; None: the file is not a table.
        num_cases: Number of cases.
        others: The second and the third place.
        advice: What to change, if the case shows it.
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
    sample: int | None = None
    row: int | None = None
    num_cases: int = 1
    others: tuple[Finding, ...] = ()
    advice: str = ""

    @property
    def rule(self) -> Rule:
        """The rule of the finding."""
        return RULES[self.code]

    @property
    def help(self) -> str:
        """Advice: what to change."""
        return self.advice or self.rule.help

    @property
    def place(self) -> str:
        """The file, and line and column, the row or the byte, as compilers write them."""
        if self.line is not None:
            return f"{self.path}:{self.line}:{self.column or 1}"
        if self.row is not None:
            return f"{self.path}: row {self.row}"
        return self.path if self.byte is None else f"{self.path}: byte {self.byte}"

    @property
    def context(self) -> str:
        """The stream, the sequence, and the sample if the place has no line."""
        stream = "" if self.stream is None else f"{'column' if self.row is not None else 'stream'} {self.stream!r}"
        sequence = "" if self.sequence is None or self.row is not None else f"sequence {self.sequence}"
        sample = "" if self.sample is None or self.line is not None else f"frame {self.sample}"
        return ", ".join(filter(None, (stream, sequence, sample)))

    @classmethod
    def of(cls, kind: str | None, error: str | Exception, path: str) -> Finding:
        """Return the finding for an error or a warning of a format."""
        what = error.what if isinstance(error, FormatError) else str(error).removeprefix(f"{path}: ")
        # An error of a table has its row and its column only in the message.
        if not isinstance(error, OSError) and (at := _IN_A_TABLE.match(what)):
            row = None if at["row"] is None else int(at["row"])
            message = what if row is None else what[at.end() :]
            return cls("bad-column", message, path, row=row, stream=at["column"])
        if isinstance(error, FormatError):
            code = code_of(kind or error.kind or "")
            place = (error.path or path, error.byte, error.line, error.column, error.sequence, error.stream)
            return cls(code, what, *place)
        if isinstance(error, OSError):
            return cls("missing-file", str(error.strerror or error), str(error.filename or path))
        return cls(code_of(kind or ""), what, path)

    @classmethod
    def of_configuration(cls, error: ConfigError) -> Finding:
        """Return the finding for an error in a configuration."""
        path, line, what = error.path or "", error.line, str(error)
        if (place := _IN_A_CONFIGURATION.match(what)) is None or line is None:
            return cls("bad-configuration", what.removeprefix(f"{path}: "), path, line=line, column=line and 1)
        with closing(open_input(path)) as text:
            # Errors of configurations have no byte, which excerpts need.
            lines = text.read(0, text.size).split(b"\n")
        # Configurations count characters after a byte order mark, but findings count bytes until they have excerpts.
        begin = sum(len(before) + 1 for before in lines[: line - 1])
        of_line = b"".join(lines[line - 1 : line])  # empty if the file is shorter by now
        characters = of_line.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")
        column = len(characters[: int(place["column"]) - 1].encode("utf-8", "surrogateescape")) + 1
        byte = begin + len(codecs.BOM_UTF8) * of_line.startswith(codecs.BOM_UTF8) + column - 1
        return cls("bad-configuration", what[place.end() :], path, byte, line, column)

    def moved_to(self, other: Finding) -> Finding:
        """Return this finding at the place of another."""
        return self._replace(byte=other.byte, line=other.line, column=other.column)

    def with_excerpt(self, text: TextInput) -> Finding:
        """Return this finding with the line of the text around its place, its column in characters, and advice."""
        if self.line == 1 and self.column is None:  # an error of the whole first line
            return self._replace(byte=0, column=1).with_excerpt(text)
        if self.line is None or self.byte is None or self.column is None:
            return self
        begin = self.byte - self.column + 1
        before = text.read(begin, self.column - 1).decode(errors="replace")
        # Formats count bytes, but editors count characters.
        column = len(before) + 1
        after = re.split(r"[\r\n]", text.read(self.byte, _AROUND).decode(errors="replace"), maxsplit=1)[0]
        # A tab becomes a single blank, so that the caret stays below its place.
        before = before[-_AROUND:].expandtabs(1)
        word = next((word for word in _TOKEN.finditer(before + after) if word.end() > len(before)), None)
        excerpt = Excerpt((before + after).expandtabs(1), len(before))
        if word is not None and word.start() <= len(before):
            excerpt = excerpt._replace(caret=word.start(), width=len(word[0]))
        advice, name = self.advice, kind_in(text).advice_on_words
        if not advice and name:
            place = (self.line, self.stream, excerpt.text, excerpt.caret, excerpt.word)
            advice = function_named(name)(WrongWord(self.code, self.message, *place))
        return self._replace(column=column, excerpt=excerpt, advice=advice)


class Findings(Displayed):
    """The findings of a check, in the order of files and places. True if there are any.

    Args:
        most: Number of findings to keep; all are counted.
        ignored: Codes of rules that do not count.

    Raises:
        ConfigError: No rule has one of the codes.

    Attributes:
        counts: Number of cases of each code.
        num_sequences: The sequences that were checked.
        corpus: The corpus that is being checked. Cases in different corpora are different findings.
    """

    def __init__(self, most: int, ignored: Iterable[str] = ()) -> None:
        self._most = most
        self._ignored = frozenset(ignored)
        for code in sorted(self._ignored - RULES.keys()):
            what = f"no rule has this code{did_you_mean(code, RULES)}"
            raise ConfigError(f"{caller().words.flag('ignore')} {code}: {what}", key="ignore")
        self._found: dict[tuple[str, ...], Finding] = {}
        self.counts: Counter[str] = Counter()
        self.num_sequences = 0
        self.corpus = ""

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Finding]:
        # Files keep the order in which they were checked; within a file, findings without a byte come last.
        found = self._found.values()
        paths = {path: index for index, path in enumerate(dict.fromkeys(one.path for one in found))}
        yield from sorted(found, key=lambda one: (paths[one.path], one.byte is None, one.byte or 0))

    def __getitem__(self, index: int) -> Finding:
        return list(self)[index]

    def empty(self) -> Findings:
        """Return findings with the same limits."""
        return Findings(self._most, self._ignored)

    def add_all(self, other: Findings) -> None:
        """Add the findings of a part of the check."""
        for key, finding in other._found.items():
            # All cases are counted, but only so many findings are kept.
            if len(self) < self._most:
                self._found[key] = finding
        self.counts += other.counts
        self.num_sequences += other.num_sequences

    def add(self, finding: Finding) -> None:
        """Add a finding. If its cause was found before, add its cases and its place to that finding."""
        if finding.code in self._ignored:
            return
        self.counts[finding.code] += finding.num_cases
        # Without the parts that vary, all cases of a cause have the same text.
        varying = _TIMES if finding.code == "unknown-label" else _OF_A_CASE
        shape = varying.sub("#", finding.message)
        key = (self.corpus, finding.code, finding.stream or "", shape)
        known = self._found.get(key)
        if known is not None:
            others = (*known.others, finding, *finding.others)[: _NUM_PLACES - 1]
            self._found[key] = known._replace(num_cases=known.num_cases + finding.num_cases, others=others)
        elif len(self) < self._most:
            self._found[key] = finding

    def add_damaged(self, name: str, error: Exception) -> None:
        """Add the error of a file that cannot be opened."""
        self.add(Finding.of(None, error, name))

    def add_cases(self, first: Iterable[Finding], num_cases: int) -> None:
        """Add a number of cases of a cause, of which the first are given."""
        for index, finding in enumerate(islice(first, _NUM_PLACES)):
            # The first finding stands for all cases that are not given.
            count = 1 if index else num_cases - min(num_cases, _NUM_PLACES) + 1
            self.add(finding._replace(num_cases=count))

    def replace(self, code: str, stream: str, new: Finding) -> None:
        """Replace the findings of a code and a stream of the corpus by a finding that explains them."""
        for key in [key for key in self._found if key[:3] == (self.corpus, code, stream)]:
            old = self._found.pop(key)
            self.counts[code] -= old.num_cases
            new = new._replace(num_cases=new.num_cases + old.num_cases, path=old.path).moved_to(old)
        # `+` drops the codes that no longer have cases, so that `bool` and reports do not see them.
        self.counts = +self.counts
        self.add(new)

    def of(self, code: str, stream: str) -> list[Finding]:
        """Return the findings of a code and a stream of the corpus."""
        return [found for key, found in self._found.items() if key[:3] == (self.corpus, code, stream)]

    def finish(self, names: Mapping[str, str]) -> None:
        """Add excerpts while all files can be read, and replace the names of files that have a name for people."""
        with ExitStack() as stack:

            @cache
            def opened(path: str) -> TextInput | None:
                # The file may be gone by now; its findings have no excerpts then.
                with suppress(OSError, CntkIoError):
                    return stack.enter_context(closing(open_input(path)))
                return None

            def finished(finding: Finding) -> Finding:
                text = None if finding.line is None else opened(finding.path)
                found = finding if text is None else finding.with_excerpt(text)
                path, others = names.get(finding.path) or shown(finding.path), tuple(map(finished, finding.others))
                return found._replace(path=path, others=others)

            self._found = {key: finished(finding) for key, finding in self._found.items()}

    def num_of(self, severity: str) -> int:
        """Return the number of cases of a severity."""
        return sum(count for code, count in self.counts.items() if RULES[code].severity == severity)

    def _description(self) -> Description:
        severities = [counted(self.num_of("error"), "error"), counted(self.num_of("warning"), "warning")]
        rows = [(found.code, f"{found.num_cases:,}", found.place, found.message, found.context) for found in self]
        return Description(f"Findings: {', '.join(severities)}", ("rule", "cases", "place", "message", "where"), rows)

"""Text that keeps the origin of each character, and its division into entries. (docs/configuration.md)

::

    Text      "a = [ b = 1:2 ]"            joined from lines of files, arguments, and values of variables
    Value         [ b = 1:2 ]              a part of a text
    tokens          b = 1:2                the entries of a section, or the elements of an array

Invariant: every character of a `Text` knows its file, line and column, so each error message names them. The time to
split a text is linear in its length.

This module does not know what a key means.
"""

from __future__ import annotations

import functools
import itertools
import logging
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cntkio.errors import ConfigError

logger = logging.getLogger("cntkio")

BLANKS = " \t"
CLOSING = {"[": "]", "{": "}", "(": ")"}
OPENING = '[{("'
DEEPEST = 100  # levels of brackets; a network description has about ten
INTEGER = re.compile(r"[+-]?[0-9]{1,1000}")

_BRACKET = re.compile(r'"[^"]*"?|[\[\](){}]')
# One of these characters right after an opening bracket is the separator inside the brackets, unless a relative path
# begins with it.
_SEPARATORS = "`~!@$%^&*_-+|:;,?."
_RELATIVE = ("..", ".\\", "./")
_MOST_ELEMENTS = 1 << 20

Origin = tuple[str | None, int, int]
"""File (None for an argument), line (for an argument its number), column."""


class Position(NamedTuple):
    """Position of a character: in a file or, without a path, in an argument.

    Attributes:
        path: The file; None: an argument.
        line: The line in the file, or the number of the argument, from 1.
        column: The column, from 1.

    Example:
        >>> str(Position("train.cntk", 12, 5)), str(Position(None, 2, 1))
        ('train.cntk, line 12, column 5', 'argument 2, column 1')
    """

    path: str | None
    line: int
    column: int

    def __str__(self) -> str:
        where = f"argument {self.line}" if self.path is None else f"{self.path}, line {self.line}"
        return f"{where}, column {self.column}"

    def error(self, message: str, key: str | None = None) -> ConfigError:
        """Return the error to raise about this position."""
        line = None if self.path is None else self.line
        return ConfigError(f"{self}: {message}", key=key, path=self.path, line=line)


class Text:
    """A text whose every character knows its origin.

    Args:
        pieces: The strings that it consists of, each with the origin of its first character.

    Attributes:
        string: All its characters.
    """

    def __init__(self, pieces: Iterable[tuple[str, Origin]]) -> None:
        listed = list(pieces)
        self.string = "".join(string for string, _ in listed)
        self._origins = [origin for _, origin in listed]
        # Offset of the first character of each piece and, last, the length.
        self._starts = list(itertools.accumulate((len(string) for string, _ in listed), initial=0))

    def _piece(self, offset: int) -> int:
        """Return the index of the last piece that begins at or before an offset."""
        return bisect_right(self._starts, offset, hi=len(self._origins)) - 1

    def position(self, offset: int) -> Position:
        """Return where the character at this offset came from."""
        if not self._origins:
            return Position(None, 1, 1)
        piece = self._piece(offset)
        path, line, column = self._origins[piece]
        return Position(path, line, column + offset - self._starts[piece])

    def pieces(self, begin: int, end: int) -> Iterator[tuple[str, Origin]]:
        """Yield a part of the text, to build another text from."""
        piece = self._piece(begin)
        while begin < end:
            stop = min(end, self._starts[piece + 1])
            path, line, column = self._origins[piece]
            yield self.string[begin:stop], (path, line, column + begin - self._starts[piece])
            begin, piece = stop, piece + 1

    @functools.cached_property
    def closing(self) -> dict[int, int]:
        """For each opening bracket or quote, the offset of the character that closes it.

        Raises:
            ConfigError: A bracket is not closed, or is closed by a bracket of another kind.
        """
        string = self.string
        closing: dict[int, int] = {}
        open_brackets: list[int] = []
        for match in _BRACKET.finditer(string):
            offset, end = match.span()
            character = string[offset]
            if character == '"':
                if end == offset + 1 or string[end - 1] != '"':
                    raise self.position(offset).error('no closing " found for the quote that opens here')
                closing[offset] = end - 1
            elif character in CLOSING:
                open_brackets.append(offset)
                if len(open_brackets) > DEEPEST:
                    raise self.position(offset).error(f"brackets are nested more than {DEEPEST} deep")
            elif not open_brackets:
                # CNTK reads it as text.
                logger.warning("%s: %r closes no bracket, and counts as text", self.position(offset), character)
            elif CLOSING[string[open_brackets[-1]]] != character:
                raise self._unmatched(open_brackets[-1], offset)
            else:
                closing[open_brackets.pop()] = offset
        if open_brackets:
            bracket = string[open_brackets[-1]]
            raise self.position(open_brackets[-1]).error(
                f"no closing {CLOSING[bracket]} found for the {bracket!r} that opens here"
            )
        return closing

    def _unmatched(self, opening: int, closing: int) -> ConfigError:
        bracket = self.string[opening]
        return self.position(closing).error(
            f"unmatched bracket: {self.string[closing]!r} here, but {CLOSING[bracket]!r} is expected for the "
            f"{bracket!r} of {self.position(opening)}"
        )


class Value(NamedTuple):
    """A part of a text: the right side of an entry, or an element of an array."""

    text: Text
    begin: int
    end: int
    was_quoted: bool = False

    @property
    def string(self) -> str:
        """The characters of the value."""
        return self.text.string[self.begin : self.end]

    @property
    def position(self) -> Position:
        """Position of its first character."""
        return self.text.position(self.begin)

    @property
    def is_section(self) -> bool:
        """True if the value is in brackets, which can hold entries."""
        return self.begin < self.end and self.text.string[self.begin] in CLOSING

    def trimmed(self) -> Value:
        """Remove the blanks around it."""
        begin = self.end - len(self.string.lstrip(BLANKS))
        return self._replace(begin=begin, end=begin + len(self.string.strip(BLANKS)))

    def as_own_text(self) -> Value:
        """Copy the value into a text of its own, in which brackets count that were in quotes."""
        text = Text(self.text.pieces(self.begin, self.end))
        return Value(text, 0, len(text.string))


# ------------------------------------------------------------------------------------------------------- splitting


@functools.cache
def _patterns(separator: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Compile the pattern of the gap between tokens, and the pattern that ends a word."""
    characters = ",\r\n" + re.escape(separator)
    return re.compile(f"[{characters}{BLANKS}]*"), re.compile(f'[{characters}\\[({{"]')


def tokens(value: Value, separator: str) -> Iterator[Value]:
    """Split a value into tokens. One level of brackets or quotes around tokens is removed.

    Args:
        value: The text to split.
        separator: Separator of tokens, in addition to commas and line ends: ``";"`` for the entries of a section,
            ``":"`` for the elements of an array. Brackets can name their own.

    Example:
        >>> text = Text([('a = 1 ; [ b = (2) "c d" ] [|e;f|g]', (None, 1, 1))])
        >>> [token.string for token in tokens(Value(text, 0, len(text.string)), ";")]
        ['a = 1 ', 'b = (2)', 'c d', 'e;f', 'g']
    """
    text, offset, end, _ = value.as_own_text() if value.was_quoted else value
    string, closing = text.string, text.closing
    between, word_end = _patterns(separator)
    while (offset := _skip(between, string, offset, end)) < end:
        if string[offset] not in OPENING:
            stop = _stop_of_word(word_end, text, offset, end)
            yield Value(text, offset, stop)
            offset = stop
            continue
        close = closing[offset]
        if close > offset + 1:
            yield from _tokens_inside(text, offset, close, separator)
        offset = close + 1


def _tokens_inside(text: Text, opening: int, close: int, separator: str) -> Iterator[Value]:
    """Split the text between brackets or quotes. Deeper brackets stay as they are."""
    offset, end = opening + 1, close
    if text.string[opening] == '"':
        text, offset, end, _ = Value(text, offset, end).as_own_text()
    elif text.string[offset] in _SEPARATORS and not text.string.startswith(_RELATIVE, offset):
        separator = text.string[offset]
        offset += 1
    string, closing = text.string, text.closing
    between, word_end = _patterns(separator)
    while (offset := _skip(between, string, offset, end)) < end:
        character = string[offset]
        if character == '"':
            stop = closing[offset] + 1
            yield Value(text, offset + 1, stop - 1, was_quoted=True)
        else:
            stop = closing[offset] + 1 if character in OPENING else _stop_of_word(word_end, text, offset, end)
            yield Value(text, offset, stop)
        offset = stop


def _skip(between: re.Pattern[str], string: str, offset: int, end: int) -> int:
    """Return the offset after separators and blanks."""
    match = between.match(string, offset, end)
    assert match is not None  # the pattern matches the empty text, too
    return match.end()


def _stop_of_word(word_end: re.Pattern[str], text: Text, offset: int, end: int) -> int:
    """Return where a word ends: at the next separator, or after the brackets or quotes that it runs into."""
    match = word_end.search(text.string, offset, end)
    if match is None:
        return end
    stop = match.start()
    return text.closing[stop] + 1 if text.string[stop] in OPENING else stop


def elements(value: Value) -> list[Value]:
    """Return the elements of an array, repetitions (``x*3``) written out.

    Raises:
        ConfigError: A repetition is not a whole number, or there are too many elements.
    """
    array: list[Value] = []
    for token in tokens(value, ":"):
        array += _repeated(token)
        if len(array) >= _MOST_ELEMENTS:
            raise token.position.error(f"an array has {_MOST_ELEMENTS} elements or more")
    return array


def _repeated(token: Value) -> list[Value]:
    string = token.string
    star = string.find("*")
    if string[:1] in CLOSING or star < 0:
        return [token.trimmed()]
    count = string[star + 1 :].strip()
    if not INTEGER.fullmatch(count):
        raise token.position.error(f"{string!r} in an array: expected a whole number after the '*'")
    return [token._replace(end=token.begin + star).trimmed()] * min(int(count), _MOST_ELEMENTS)

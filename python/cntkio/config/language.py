"""CNTK's configuration language: sections, their entries, and typed values. (docs/configuration.md, "The language")

::

    Text      "a = [ b = 1:2 ]"            joined from lines of files, arguments, and values of variables
    Value         [ b = 1:2 ]              a part of a text
    tokens          b = 1:2                the entries of a section, or the elements of an array

    text ──tokens──> entries ──resolve──> values: texts, numbers, arrays, sections
                              variables and comments are replaced here, when a value is looked up

Invariants: text that CNTK accepts has CNTK's meaning; a value is not examined before it is looked up; every character
knows its file, line and column, so each error has a position. The time to split a text is linear in its length. The
result is a value or a `ConfigError` whatever the input is: depth, cycles and growth have limits.

A reader "in BrainScript form" is a record in curly braces, which is this language with other brackets. Expressions
never worked there; `_why_not_a_section` recognises them and says what to write instead.

This module does not know readers or their keys, and opens no files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from cntkio.arguments import either, near_names
from cntkio.errors import ConfigError
from cntkio.formats.cntk_options import truth
from cntkio.storage.file_lists import in_one_text
from cntkio.storage.names import is_remote
from cntkio.storage.progress import warn

logger = logging.getLogger("cntkio")

BLANKS = " \t"
CLOSING = {"[": "]", "{": "}", "(": ")"}
OPENING_BRACKETS = '[{("'
DEEPEST = 100  # levels of brackets; a network description has about ten
# Limited, because `int` raises an error of its own for a text of more than 4,300 digits.
INTEGER = re.compile(r"[+-]?[0-9]{1,1000}")

# The closing quote is optional, so that a quote that nothing closes is found, too, and refused at its position.
_BRACKET = re.compile(r'"[^"]*"?|[\[\](){}]')
# If one of these characters follows an opening bracket, it is the separator inside the brackets, unless a relative path
# begins with it.
_SEPARATORS = "`~!@$%^&*_-+|:;,?."
_MOST_ELEMENTS = 1 << 20


class Position(NamedTuple):
    """Position of a character: in a file or, without a path, in an argument.

    Attributes:
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

    def moved(self, num_columns: int) -> Position:
        """Return the position of a later character in the same line."""
        return self._replace(column=self.column + num_columns)

    def error(self, message: str, key: str | None = None) -> ConfigError:
        """Return the error to raise about this position."""
        line = None if self.path is None else self.line
        return ConfigError(f"{self}: {message}", key=key, path=self.path, line=line)


class Text:
    """A text whose every character knows its origin: strings, each with the position of its first character."""

    def __init__(self, pieces: Iterable[tuple[str, Position]]) -> None:
        # A configuration without text is possible, and its section asks for its position.
        listed = list(pieces) or [("", Position(None, 1, 1))]
        self.string = "".join(string for string, _ in listed)
        self._origins = [origin for _, origin in listed]
        # Offset of the first character of each piece and, last, the length.
        self._starts = list(itertools.accumulate((len(string) for string, _ in listed), initial=0))

    def _piece(self, offset: int) -> int:
        """Return the index of the last piece that begins at or before an offset."""
        # The last start is the length: without `hi`, the end of the text would belong to a piece that does not exist.
        return bisect_right(self._starts, offset, hi=len(self._origins)) - 1

    def position(self, offset: int) -> Position:
        """Return where the character at this offset came from."""
        piece = self._piece(offset)
        return self._origins[piece].moved(offset - self._starts[piece])

    def pieces(self, begin: int, end: int) -> Iterator[tuple[str, Position]]:
        """Yield a part of the text, to build another text from."""
        piece = self._piece(begin)
        while begin < end:
            stop = min(end, self._starts[piece + 1])
            yield self.string[begin:stop], self._origins[piece].moved(begin - self._starts[piece])
            begin, piece = stop, piece + 1

    @functools.cached_property
    def closing(self) -> dict[int, int]:
        """For each opening bracket or quote, the offset of the character that closes it; an error if there is none."""
        string = self.string
        closing: dict[int, int] = {}
        open_brackets: list[int] = []
        for match in _BRACKET.finditer(string):
            offset, end = match.span()
            character = string[offset]
            if character == '"':
                # An opening quote at the end of the text is also the last character of its match.
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
            else:
                opening = open_brackets.pop()
                closing[opening] = offset
                expected = CLOSING[string[opening]]
                if expected != character:
                    what = f"{expected!r} is expected for the {string[opening]!r} of {self.position(opening)}"
                    raise self.position(offset).error(f"unmatched bracket: {character!r} here, but {what}")
        if open_brackets:
            bracket, position = string[open_brackets[-1]], self.position(open_brackets[-1])
            raise position.error(f"no closing {CLOSING[bracket]} found for the {bracket!r} that opens here")
        return closing


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
    """Compile the pattern of the first character of a token, and the pattern that ends a word."""
    characters = ",\r\n" + re.escape(separator)
    return re.compile(f"[^{characters}{BLANKS}]"), re.compile(f'[{characters}\\[({{"]')


def tokens(value: Value, separator: str) -> Iterator[Value]:
    """Split a value into tokens. One level of brackets or quotes around tokens is removed.

    Args:
        separator: Separator of tokens, in addition to commas and line ends: ``";"`` for the entries of a section,
            ``":"`` for the elements of an array. Brackets can name their own.

    Example:
        >>> text = Text([('a = 1 ; [ b = (2) "c d" ] [|e;f|g]', Position(None, 1, 1))])
        >>> [token.string for token in tokens(Value(text, 0, len(text.string)), ";")]
        ['a = 1 ', 'b = (2)', 'c d', 'e;f', 'g']
    """
    text, begin, end, _ = value.as_own_text() if value.was_quoted else value
    for part in _parts(text, begin, end, separator):
        if text.string[part.begin] in OPENING_BRACKETS:
            yield from _tokens_inside(part, separator)
        else:
            yield part


def _tokens_inside(part: Value, separator: str) -> Iterator[Value]:
    """Split the text between brackets or quotes. Deeper brackets stay as they are."""
    text, begin, end = part.text, part.begin + 1, part.end - 1
    if text.string[part.begin] == '"':
        # `closing` leaves out brackets in quotes; here the quotes are removed, so these brackets count.
        text, begin, end, _ = Value(text, begin, end).as_own_text()
    elif text.string[begin] in _SEPARATORS and not text.string.startswith(("..", ".\\", "./"), begin):
        separator = text.string[begin]
        begin += 1
    for inner in _parts(text, begin, end, separator):
        is_quoted = text.string[inner.begin] == '"'
        yield Value(text, inner.begin + 1, inner.end - 1, was_quoted=True) if is_quoted else inner


def _parts(text: Text, begin: int, end: int, separator: str) -> Iterator[Value]:
    """Yield words, each up to a separator or to the end of the brackets or quotes that it runs into or consists of."""
    string, closing = text.string, text.closing
    first_character, word_end = _patterns(separator)
    while first := first_character.search(string, begin, end):
        match = word_end.search(string, first.start(), end)
        stop = match.start() if match else end
        begin = closing[stop] + 1 if match and string[stop] in OPENING_BRACKETS else stop
        yield Value(text, first.start(), begin)


def elements(value: Value) -> list[Value]:
    """Return the elements of an array, repetitions (``x*3``) written out."""
    array: list[Value] = []
    for token in tokens(value, ":"):
        array += _repeated(token)
        # Checked after each token: one token adds at most `_MOST_ELEMENTS`, so memory is limited.
        if len(array) >= _MOST_ELEMENTS:
            raise token.position.error(f"an array has {_MOST_ELEMENTS} elements or more")
    return array


def _repeated(token: Value) -> list[Value]:
    string = token.string
    star = string.find("*")
    # CNTK repeats words only: in an element that begins with a bracket, a '*' is text.
    if string[:1] in CLOSING or star < 0:
        return [token.trimmed()]
    count = string[star + 1 :].strip()
    if not INTEGER.fullmatch(count):
        raise token.position.error(f"{string!r} in an array: expected a whole number after the '*'")
    # As in CNTK, a count below 1 removes the element. The limit applies before the list takes memory.
    return [token._replace(end=token.begin + star).trimmed()] * min(int(count), _MOST_ELEMENTS)


_T = TypeVar("_T")
_Word = TypeVar("_Word", bound=str)

# CNTK's rule for names: after a letter or '_', all characters except for blanks and this punctuation. Any other '$' is
# text.
VARIABLE = re.compile(r"\$([A-Za-z_][^\s,/<>?;':\"\[\]{}\\|!@#%^&*()+=~`$]*)\$")

# `$name` and `${name}` as in shells, which CNTK reads as text.
_HALF_A_VARIABLE = re.compile(r"\$\{?[A-Za-z_]")
# Between key and value. Before a bracket the '=' may be missing, as in `reader [ ... ]`.
_KEY_END = re.compile(r'(=|(?=[\[({"]))[ \t]*')
_COMMENT_OR_VARIABLE = re.compile(r"[#$]")
_PLUGIN = re.compile(r"new\s+\w+\s*[\[{]")
# What a required value counts as while variables without a value are collected; as a number, it is in every range.
_PLACEHOLDER = Value(Text([("1", Position(None, 0, 0))]), 0, 1)
_LONGEST_CHAIN = 100  # variables in variables
_MOST_GROWTH = 64 << 20  # characters that variables may add to a text


def folded_key(name: str) -> str:
    """Return a key as CNTK compares it: ASCII letters in lower case.

    Example:
        >>> folded_key("RandomizationSeed")
        'randomizationseed'
    """
    return name.lower() if name.isascii() else "".join(c.lower() if c.isascii() else c for c in name)


def by_name(name: str) -> bytes:
    """Return the sort key of CNTK's order of names: by bytes, ASCII letters in lower case."""
    return folded_key(name).encode("utf-8", "surrogateescape")


# Numbers such as 1k or 2M.
_SUFFIXES = re.compile(r"\d[kKmM]\b")


def _integer(text: str) -> int:
    """Read a whole number of 32 bits as CNTK does; raise ValueError for any other text."""
    if not INTEGER.fullmatch(text) or not -(2**31) <= int(text) < 2**31:
        raise ValueError(text)
    return int(text)


def _integers(array: Value) -> tuple[int, ...]:
    return tuple(_integer(element.string) for element in elements(array))


def _size(text: str) -> int:
    """Read a whole number from 0 on, larger numbers as 2**64 - 1; raise ValueError for any other text."""
    # CNTK reads -1 as 2**64 - 1 without an error; here it is an error.
    if not INTEGER.fullmatch(text) or int(text) < 0:
        raise ValueError(text)
    return min(int(text), 2**64 - 1)


def without_comment(line: str) -> str:
    """Return a line without its comment; blank lines become empty.

    A comment begins at the first '#' of a line, if this '#' follows a blank or begins the line.

    Example:
        >>> without_comment("a = 1 # x"), without_comment("a = 1#2 # x"), without_comment("  # x")
        ('a = 1 ', 'a = 1#2 # x', '')
    """
    start = line.lstrip(BLANKS)
    if start[:1] in ("", "#", "\n", "\r"):
        return ""
    hash_sign = line.find("#")
    return line[:hash_sign] if hash_sign > 0 and line[hash_sign - 1] in BLANKS else line


# For each variable without a value: its first position, and the key and the section that need it.
_Missing = dict[str, tuple[Position, str, str]]


class MissingVariablesError(ConfigError):
    """Variables have no value."""

    def __init__(self, found: _Missing) -> None:
        self.found = found
        (first, (position, key, path)), *others = found.items()
        names = ", ".join([first, *(f"{name} ({other})" for name, (other, _, _) in others)])
        give = " ".join(f"{name}=..." for name in found)
        if others:
            what = f"no variables found with the names {names}: give {give} as arguments, or define each in its section"
        else:
            define = f"or define it in the section of {key!r}"
            what = f"no variable found with the name {names}: give {give} as an argument, {define}"
        what = f"{what} or a section around it{f' (section {path})' if path else ''}"
        line = None if position.path is None else position.line
        super().__init__(f"{position}: {what}", key=key, path=position.path, line=line)


@dataclasses.dataclass
class Shared:
    """State that all sections of a configuration share while it is read.

    Attributes:
        used: Positions of the entries of arguments that were looked up.
        places: Positions of entries that were read: of files by path, of streams and options by folded key, and of the
            reader by the empty text.
        trace_level: Warnings about sections are logged, unless this is 0.
        missing: Variables without a value, to be reported together. None: the first one is an error.
    """

    used: set[Position] = dataclasses.field(default_factory=set)
    places: dict[str, Position] = dataclasses.field(default_factory=dict)
    trace_level: int = 1
    missing: _Missing | None = None

    @contextlib.contextmanager
    def reading(self, trace_level: int) -> Iterator[None]:
        """Let typed values that need missing variables count as defaults in the block; one error names all of them."""
        found: _Missing = {}
        self.trace_level, self.missing = trace_level, found
        try:
            yield
        except MissingVariablesError as error:
            found.update(error.found)
        except ConfigError:
            # The error may come from a placeholder, so report the missing variables instead.
            if not found:
                raise
        finally:
            self.trace_level, self.missing = 1, None
        if found:
            raise MissingVariablesError(found) from None


@dataclasses.dataclass(eq=False)
class Entry:
    """A key and its value; several values where sections of the same name are merged.

    Attributes:
        key: The key, in the spelling of its first entry.
        values: The values as they are written, variables not replaced.
        resolved: The value with variables replaced, after the first look-up.
    """

    key: str
    section: Section
    position: Position
    values: list[Value]
    resolved: Value | None = None

    @property
    def is_flag(self) -> bool:
        """True for a key alone, which means ``key = true``."""
        return self.values[0] is _FLAG


_FLAG = Value(Text([("true", Position(None, 0, 0))]), 0, 4)


# -------------------------------------------------------------------------------------------------------- sections


class Section:
    """The entries of a section, and the outer sections in which to look for missing keys.

    The parent of a section is the section in which the look-up began: if ``train`` has no ``reader`` of its own, but
    the top level has one, the parent of that ``reader`` is ``train``. (docs/configuration.md, "Looking things up")

    All methods raise `ConfigError` for what they cannot read: a missing key, a value of another type, a variable that
    has no value or needs itself, brackets that do not match.

    Args:
        value: The section's text, in brackets; for the global section, everything.
        depth: The number of sections around it.

    Attributes:
        directory: The directory that an argument ``currentDirectory=`` named; empty without this argument.

    Example:
        >>> from cntkio.config.files import configuration
        >>> top = configuration(["Dir = data ; train = [ reader = [ file = $Dir$/a.ctf ] ] ; frameMode = T"])
        >>> reader = top.section("train").section("READER")
        >>> reader.text("file"), reader.boolean("frameMode", False), reader.integer("maxErrors", 7)
        ('data/a.ctf', True, 7)
    """

    def __init__(self, name: str, value: Value, parent: Section | None = None, depth: int = 0) -> None:
        self.name = name
        self.parent = parent
        self.position = value.position
        self.directory: str = "" if parent is None else parent.directory
        self.shared: Shared = Shared() if parent is None else parent.shared
        self._depth = depth
        if depth > DEEPEST:
            raise self.position.error(f"sections are nested more than {DEEPEST} deep", name)
        self._entries: dict[str, Entry] = {}
        for token in tokens(value, ";"):
            self._enter(token)

    def _enter(self, token: Value) -> None:
        text, begin, end, _ = token.as_own_text() if token.was_quoted else token
        string = text.string
        position = text.position(begin)
        match = _KEY_END.search(string, begin, end)
        if match is None:
            self._add(string[begin:end].strip(BLANKS), position, _FLAG)
            return
        key, offset = string[begin : match.start()].strip(BLANKS), match.end()
        if offset == end:
            what = f"no value given for {key!r}{self._in_section()}"
            rule = 'a bracket or value must begin on the same line, and an empty value is written ""'
            raise position.error(f"{what}; {rule}", self.name or None)
        if string[offset] not in OPENING_BRACKETS:
            self._add(key, position, Value(text, offset, end).trimmed())
            return
        close = text.closing[offset]
        value = Value(text, offset, close + 1)
        if string[offset] == '"':
            value = Value(text, offset + 1, close, was_quoted=True).trimmed()
        self._add(key, position, value)
        # Only an entry in quotes has text after its bracket; like CNTK, read it as further entries.
        for rest in tokens(Value(text, close + 1, end), ";"):
            self._enter(rest)

    def _add(self, key: str, position: Position, value: Value) -> None:
        """Enter a value: sections in [ ] are merged with an earlier entry of that key; anything else replaces it."""
        # CNTK drops an entry without a key, such as `= 5`.
        if not key:
            return
        name = folded_key(key)
        earlier = self._entries.get(name)
        bracket = value.string[:1]
        # CNTK joins the texts of both values, unless the earlier one is empty; in the result, later entries win.
        if earlier is not None and bracket == "[" and earlier.values[-1].begin < earlier.values[-1].end:
            if earlier.key != key:
                logger.warning("%s: section %r is merged with %r of %s", position, key, earlier.key, earlier.position)
            earlier.values.append(value)
            return
        if earlier is not None and bracket == "{":
            message = "%s: this %r replaces the entry at %s; sections in [ ] are merged"
            logger.warning(message, position, key, earlier.position)
        self._entries[name] = Entry(key if earlier is None else earlier.key, self, position, [value])

    # ------------------------------------------------------------------------------------------------- looking up

    @property
    def keys(self) -> list[str]:
        """The keys of its own entries, in the order of names."""
        return [entry.key for entry in self.entries]

    @property
    def path(self) -> str:
        """The names of the sections around it and its own, from the outermost on, with slashes."""
        around = "" if self.parent is None else self.parent.path
        return "/".join(filter(None, (around, self.name)))

    def _in_section(self) -> str:
        return f" (section {self.path})" if self.path else ""

    def _use(self, entry: Entry) -> None:
        # Only arguments are checked for entries that no reader uses (`warn_of_unused`), not files.
        if entry.position.path is None:
            self.shared.used.add(entry.position)

    def use_all(self) -> None:
        """Mark all its own entries as looked up: the reader of the section warns of the entries without effect."""
        for entry in self._entries.values():
            self._use(entry)

    @property
    def entries(self) -> list[Entry]:
        """The own entries of the section, in the order of names."""
        # CNTK numbers streams in the order of their names, not of the file.
        return sorted(self._entries.values(), key=lambda entry: by_name(entry.key))

    def entry(self, key: str, *, own: bool = False) -> Entry | None:
        """Return the entry of a key in this section or, unless `own`, in the nearest section around that has it."""
        section: Section | None = self
        name = folded_key(key)
        while section is not None:
            if entry := section._entries.get(name):
                self._use(entry)
                return entry
            section = None if own else section.parent
        return None

    def has(self, key: str, *, own: bool = False) -> bool:
        """Return whether a key has an entry."""
        return self.entry(key, own=own) is not None

    def value(self, key: str, *, own: bool = False) -> Value | None:
        """Return the value of a key with variables replaced; None if the key has no entry."""
        entry = self.entry(key, own=own)
        return None if entry is None else entry.section._resolve(entry, ())

    def error(self, key: str, message: str, *, own: bool = False) -> ConfigError:
        """Return the error to raise about a key: at its entry, or at the section that lacks it."""
        return self._position_of(key, own).error(f"{message}{self._in_section()}", key)

    def _position_of(self, key: str, own: bool) -> Position:
        """Return the position of the entry of a key, or of the section that lacks it."""
        entry = self.entry(key, own=own)
        return self.position if entry is None else entry.position

    def _how_to_give(self, key: str) -> str:
        """Return the argument that sets a key of this section; empty for sections that no argument reaches."""
        if not re.fullmatch(r"\w+(/\w+)*", self.path):
            return ""
        names = self.path.split("/")
        argument = f"{''.join(f'{name}=[' for name in names)}{key}=...{']' * len(names)}"
        return f"; write it there, or give {argument} as an argument"

    def misspelled(self, key: str) -> str:
        """Return the end of a message about a key that is missing: the keys of the section that are near to it."""
        near = near_names(key, [name for name in self.keys if folded_key(name) != folded_key(key)])
        return f"; it may be misspelled here as {either(near)}" if near else ""

    def warn(self, key: str, message: str, *, own: bool = False) -> None:
        """Log a warning about a key, at its entry or at the section that lacks it, unless the trace level is 0."""
        warn(self.shared.trace_level, "%s: %s (section %s)", self._position_of(key, own), message, self.path)

    # ---------------------------------------------------------------------------------------------- variables

    def _resolve(self, entry: Entry, chain: tuple[Entry, ...]) -> Value:
        """Return the value of an own entry with variables replaced. `chain` are the entries that need it."""
        if entry.resolved is not None:
            return entry.resolved
        if entry in chain:
            names = " > ".join(each.key for each in (*chain, entry))
            raise entry.position.error(f"variables need each other: {names}", entry.key)
        if len(chain) > _LONGEST_CHAIN:
            raise entry.position.error(f"more than {_LONGEST_CHAIN} variables need each other in a row", entry.key)
        value = entry.values[0] if len(entry.values) == 1 else _merged(entry)
        entry.resolved = self._replace_variables(value, (*chain, entry)).trimmed()
        return entry.resolved

    def _replace_variables(self, value: Value, chain: tuple[Entry, ...]) -> Value:
        text, begin, end, _ = value
        pieces: list[tuple[str, Position]] = []
        room = _MOST_GROWTH
        # The loop continues after a missing variable, so that a single error names all of them.
        missing: _Missing = {}
        copied = begin  # everything before this offset is in `pieces`
        for start, line in _lines_with_comment_or_variable(text.string, begin, end):
            kept = without_comment(line)
            for match in VARIABLE.finditer(kept):
                offset = start + match.start()
                if value.is_section and not self.has(match[1]):
                    continue  # reading the entry inside that needs the variable raises the error
                try:
                    replacement = self._variable(match[1], text.position(offset), chain)
                except MissingVariablesError as error:
                    missing |= error.found
                    continue
                pieces += text.pieces(copied, offset)
                copied = start + match.end()
                room -= len(replacement)
                # A chain of variables, each of which contains the next one twice, doubles the text at every step.
                if room < 0:
                    key = chain[-1].key
                    what = f"variables add more than {_MOST_GROWTH:,} characters to {key!r}; expected fewer"
                    raise chain[-1].position.error(what, key)
                pieces.append((replacement, text.position(offset)))
            # CNTK removes comments here, too. The lines of files no longer have any, but arguments do.
            if len(kept) < len(line):
                pieces += text.pieces(copied, start + len(kept))
                copied = start + len(line)
        if missing and not value.is_section:
            raise MissingVariablesError(missing)
        if copied == begin:
            return value
        pieces += text.pieces(copied, end)
        # If nothing is left, an empty piece keeps the position for errors.
        replaced = Text(pieces or [("", value.position)])
        return Value(replaced, 0, len(replaced.string), value.was_quoted)

    def _variable(self, name: str, position: Position, chain: tuple[Entry, ...]) -> str:
        found, key = self.entry(name), chain[-1].key
        if found is chain[-1]:  # such as deviceId = $DeviceId$, which an argument has to give
            found = None if self.parent is None else self.parent.entry(name)
        if found is None:
            raise MissingVariablesError({name: (position, key, self.path)})
        replacement = found.section._resolve(found, chain).string
        # CNTK refuses this, too: a section can be a variable only if it stands on one line.
        if "\n" in replacement:
            raise position.error(f"the variable {name} has a value of several lines", key)
        return replacement

    # ------------------------------------------------------------------------------------------------ typed values

    def _read(self, key: str, default: _T | None, convert: Callable[[Value], _T], kind: str, own: bool) -> _T:
        try:
            value = self._noted(key, own)
            if value is not None and value.is_section:
                _require_variables(value, key, self.path)
        except MissingVariablesError as error:
            found = self.shared.missing
            if found is None:
                raise
            found |= {name: where for name, where in error.found.items() if name not in found}
            value = _PLACEHOLDER if default is None else None
        if default is None:
            if value is None or value.begin == value.end:
                what = f"{key!r} is required, but missing or empty{self.misspelled(key)}{self._how_to_give(key)}"
                raise self.error(key, what, own=own)
        # In CNTK the word 'default' has this meaning only for keys that have a default.
        elif value is None or value.string == "default":
            return default
        try:
            return convert(value)
        # ConfigError is a ValueError, but the error of an element already has its own, exact position.
        except ConfigError:
            raise
        except ValueError:
            shown = value.string if len(value.string) <= 60 else value.string[:57] + "..."
            several = "; separate entries on one line with ';'" if "=" in value.string and not value.is_section else ""
            suffix = "; CNTK has no suffixes of numbers, so write all digits" if _SUFFIXES.search(value.string) else ""
            raise self.error(key, f"{key} = {shown!r} is not {kind}{several}{suffix}", own=own) from None

    def _noted(self, key: str, own: bool = False) -> Value | None:
        """Return the value of a key, and note where it stands, for an error that comes when the source opens."""
        value = self.value(key, own=own)
        if value is not None:
            self.shared.places[folded_key(key)] = self._position_of(key, own)
        return value

    def text(self, key: str, default: str | None = None, *, own: bool = False) -> str:
        """Return a text. Without a default the key is required and must not be empty, here and below."""
        return self._read(key, default, lambda value: value.string, "a text", own)

    def boolean(self, key: str, default: bool | None = None, *, own: bool = False) -> bool:
        """Return a truth value."""
        return self._read(key, default, lambda value: truth(value.string), "a boolean (true or false)", own)

    def integer(self, key: str, default: int | None = None, *, own: bool = False) -> int:
        """Return a whole number of 32 bits."""
        return self._read(key, default, lambda value: _integer(value.string), "an integer of 32 bits", own)

    def size(self, key: str, default: int | None = None, *, own: bool = False) -> int:
        """Return a whole number from 0 up to 64 bits."""
        return self._read(key, default, lambda value: _size(value.string), "an integer of 0 or more", own)

    def word(self, key: str, default: _Word, words: Sequence[_Word]) -> _Word:
        """Return one of a few words, which are compared without regard to case."""
        text = self.text(key, default)
        for word in words:
            if word.lower() == text.lower():
                return word
        raise self.error(key, f"{key} = {text!r}; expected {' or '.join(words)}")

    def file_name(self, key: str, default: str | None = None, *, own: bool = False) -> str:
        """Return a path as it is written."""
        path = self.text(key, default, own=own)
        # `open` and `os.stat` raise a ValueError for it, which has no position.
        if "\0" in path:
            raise self.error(key, f"{key} = {path!r} cannot be a path", own=own)
        if _HALF_A_VARIABLE.search(path):
            self.warn(key, f"the '$' in {path!r} begins no variable; a variable is written $name$", own=own)
        return path

    def file(self, key: str, *, own: bool = False) -> str:
        """Return a path, in the directory that an argument ``currentDirectory=`` named."""
        return self.in_directory(self.file_name(key, own=own), key, own=own)

    def files(self, key: str, *, own: bool = False) -> str | list[str]:
        """Return a path or a pattern as `file` does, or a list of them: an extension of CNTK's language.

        A list is an array, or a text with semicolons.
        """
        # The directory comes first: a file whose whole name contains ';' is one path, and only its full path finds it.
        path = self.file_name(key, own=own)  # once, because it may warn
        whole = self.in_directory(path, key, own=own)
        if path.startswith("(") and not os.path.exists(whole):  # noqa: PTH110
            names: str | list[str] = list(self.texts(key, own=own))
        else:
            names = path if isinstance(in_one_text(whole), str) else in_one_text(path)
        return whole if isinstance(names, str) else [self.in_directory(name, key, own=own) for name in names]

    def optional_file(self, key: str, default: str | None = None) -> str | None:
        """Return a path as `file` does; the default if the key is missing or its value is empty."""
        return self.file(key) if self.text(key, "") else default

    def in_directory(self, path: str, key: str, *, own: bool = False) -> str:
        """Put a path of a key into the directory that an argument ``currentDirectory=`` named.

        If no file has the path, but a file has the path with slashes in place of backslashes, that file is meant. A
        URL stays as it is.
        """
        if is_remote(path):
            return path
        given = os.path.join(self.directory, path) if self.directory else path  # noqa: PTH118 - any bytes
        slashed = os.path.join(self.directory, path.replace("\\", "/"))  # noqa: PTH118
        if "\\" in path and not os.path.exists(given) and os.path.exists(slashed):  # noqa: PTH110
            warn(self.shared.trace_level, "%s: no such file; %s is read%s", given, slashed, self._in_section())
            given = slashed
        self.shared.places[given] = self._position_of(key, own)
        return given

    def texts(self, key: str, default: tuple[str, ...] | None = None, *, own: bool = False) -> tuple[str, ...]:
        """Return an array of texts; a single value is an array of one."""
        return self._read(key, default, lambda value: tuple(each.string for each in elements(value)), "an array", own)

    def integers(self, key: str, default: tuple[int, ...] | None = None, *, own: bool = False) -> tuple[int, ...]:
        """Return an array of whole numbers of 32 bits."""
        return self._read(key, default, _integers, "an array of integers", own)

    def section(self, key: str, *, own: bool = False) -> Section:
        """Return the section of a key. Its parent is this section."""
        entry, value = self.entry(key, own=own), self._noted(key, own)
        if value is None or entry is None:
            raise self.error(key, f"there is no section {key!r}{self.misspelled(key)}", own=own)
        if not value.is_section:
            raise self.error(key, f"{key!r} is not a section: {_why_not_a_section(value.string)}", own=own)
        return Section(entry.key, value, self, self._depth + 1)

    def sections(self, key: str) -> list[Section]:
        """Return an array of sections. They have no parent."""
        value = self._noted(key)
        if value is None:
            raise self.error(key, f"{key!r} is required, but missing{self.misspelled(key)}")
        array = []
        for index, element in enumerate(elements(value)):
            if not element.is_section:
                what = f"{key!r} is not an array of sections: element {index} is {element.string[:40]!r}"
                form = f"{key} = ( [ ... ] : [ ... ] ), with the outer brackets even around a single section"
                raise element.position.error(f"{what}; expected {form}", key)
            section = Section(f"{key}[{index}]", element.as_own_text(), None, self._depth + 1)
            # As in CNTK, the elements inherit no keys, so they have no parent. Paths and messages need these two.
            section.directory, section.shared = self.directory, self.shared
            array.append(section)
        return array


def _require_variables(value: Value, key: str, path: str) -> None:
    """Refuse a value in brackets, such as an array, that contains variables without a value."""
    matches = VARIABLE.finditer(value.text.string, value.begin, value.end)
    found = {match[1]: (value.text.position(match.start()), key, path) for match in matches}
    if found:
        raise MissingVariablesError(found)


def _merged(entry: Entry) -> Value:
    first = entry.values[0]
    # CNTK joins both to a text such as `1 [b=3]`, which no reader can use.
    if not first.is_section:
        what = f"{entry.key!r} is {first.string!r} at {first.position}"
        raise entry.position.error(f"{what}, which cannot be merged with a section", entry.key)
    pieces: list[tuple[str, Position]] = []
    for value in entry.values:
        pieces += value.text.pieces(value.begin, value.end)
        pieces.append((" ", pieces[-1][1]))
    text = Text(pieces)
    return Value(text, 0, len(text.string) - 1)


def _lines_with_comment_or_variable(string: str, begin: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield the lines in which '#' or '$' occurs, each with the offset of its beginning."""
    offset = begin
    while match := _COMMENT_OR_VARIABLE.search(string, offset, end):
        start = max(begin, string.rfind("\n", begin, match.start()) + 1)
        stop = string.find("\n", match.start(), end)
        stop = end if stop < 0 else stop
        yield start, string[start:stop]
        offset = stop


def _why_not_a_section(value: str) -> str:
    """Explain what is wrong with a value that should be a section.

    Example:
        >>> _why_not_a_section("true")
        'the bracket must open on the line of its name'
    """
    if _PLUGIN.match(value):
        name = " ".join(re.split(r"[\s\[{]+", value)[:2])
        what = f"{name!r} makes a reader in pure BrainScript, which only the oldest readers of CNTK supported"
        return f"{what}; write [ readerType = ... ] instead"
    if value == "true":
        return "the bracket must open on the line of its name"
    return f"it is {value[:40]!r}; expected [ ... ]"

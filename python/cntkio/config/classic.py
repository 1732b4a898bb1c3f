"""CNTK's configuration language, the classic form: from files and arguments to sections. (docs/configuration.md)

::

    files, arguments ──lines──> one text ──split──> entries ──taken out──> texts, numbers, arrays, sections
                                               variables and comments are replaced here ^

Its law: what CNTK accepts has CNTK's meaning, nothing is looked at before it is asked for, and every complaint says
where. Whatever the input is, the result is a value or a `ConfigError`: depth, cycles and growth have limits.

It does not know readers or their keys, and it opens nothing but configuration files.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from cntkio.config import brainscript
from cntkio.errors import ConfigError

logger = logging.getLogger("cntkio")
_T = TypeVar("_T")

_CLOSING = {"[": "]", "{": "}", "(": ")"}
_BRACKET = re.compile(r'"[^"]*"?|[\[\](){}]')
_OPENING = '[{("'
_BLANKS = " \t"
_KEY_END = re.compile(r'[=\[({"]')
VARIABLE = re.compile(r"\$([A-Za-z_][^\s,/<>?;':\"\[\]{}\\|!@#%^&*()+=~`$]*)\$")
_REMARKABLE = re.compile(r"[#$]")
_INTEGER = re.compile(r"[+-]?[0-9]{1,1000}")
_ARRAY_OF_SECTIONS = re.compile(r"[\[{][\s,:;]*[\[{(]")
# An opening bracket followed by one of these has it as separator, but not where a relative path begins.
_SEPARATORS = "`~!@$%^&*_-+|:;,?."
_RELATIVE = ("..", ".\\", "./")

_DEEPEST = 100  # brackets in brackets; a network description has ten
_LONGEST_CHAIN = 100  # variables in variables
_MOST_GROWTH = 64 << 20  # characters that variables may add to a text
_MOST_SECTIONS = 10_000  # beside one for each character
_MOST_REPEATED = 1 << 20  # elements of an array

_Origin = tuple[str | None, int, int]


def folded(name: str) -> str:
    """A key as CNTK compares it: ASCII letters taken as small.

    Example:
        >>> folded("RandomizationSeed")
        'randomizationseed'
    """
    return name.lower() if name.isascii() else "".join(c.lower() if c.isascii() else c for c in name)


def by_name(name: str) -> bytes:
    """The sort key of CNTK's order of names: by bytes, ASCII letters taken as small."""
    return folded(name).encode("utf-8", "surrogateescape")


# --------------------------------------------------------------------------------------------------- places, texts


class Place(NamedTuple):
    """Where something stands: in a file, or, without a path, in the argument of that number.

    Example:
        >>> str(Place("train.cntk", 12, 5)), str(Place(None, 2, 1))
        ('train.cntk, line 12, column 5', 'argument 2, column 1')
    """

    path: str | None
    line: int
    column: int

    def __str__(self) -> str:
        where = f"argument {self.line}" if self.path is None else f"{self.path}, line {self.line}"
        return f"{where}, column {self.column}"

    def error(self, message: str, key: str | None = None) -> ConfigError:
        """The error to raise for something that stands here."""
        line = None if self.path is None else self.line
        return ConfigError(f"{self}: {message}", key=key, path=self.path, line=line)


class Text:
    """A text whose every character knows where it came from."""

    __slots__ = ("_closing", "_origins", "_starts", "string")

    def __init__(self, pieces: Iterable[tuple[str, _Origin]]) -> None:
        strings: list[str] = []
        self._starts: list[int] = []
        self._origins: list[_Origin] = []
        length = 0
        for string, origin in pieces:
            strings.append(string)
            self._starts.append(length)
            self._origins.append(origin)
            length += len(string)
        self.string = "".join(strings)
        self._closing: dict[int, int] | None = None

    def place(self, at: int) -> Place:
        """Where the character at this position came from."""
        if not self._starts:
            return Place(None, 1, 1)
        number = bisect_right(self._starts, at) - 1
        path, line, column = self._origins[number]
        return Place(path, line, column + at - self._starts[number])

    def pieces(self, begin: int, end: int) -> Iterator[tuple[str, _Origin]]:
        """A part of the text, to be made part of another one."""
        number = bisect_right(self._starts, begin) - 1
        while begin < end:
            stop = min(end, self._starts[number + 1]) if number + 1 < len(self._starts) else end
            path, line, column = self._origins[number]
            yield self.string[begin:stop], (path, line, column + begin - self._starts[number])
            begin, number = stop, number + 1

    @property
    def closing(self) -> dict[int, int]:
        """For each opening bracket or quote where it is closed.

        Raises:
            ConfigError: A bracket is not closed, or by another kind.
        """
        if self._closing is None:
            self._closing = self._matched()
        return self._closing

    def _matched(self) -> dict[int, int]:
        string = self.string
        closing: dict[int, int] = {}
        open_at: list[int] = []
        for found in _BRACKET.finditer(string):
            at, end = found.span()
            character = string[at]
            if character == '"':
                if end == at + 1 or string[end - 1] != '"':
                    raise self.place(at).error('no closing " found for the quote that opens here')
                closing[at] = end - 1
            elif character in _CLOSING:
                open_at.append(at)
                if len(open_at) > _DEEPEST:
                    raise self.place(at).error(f"brackets are nested more than {_DEEPEST} deep")
            elif not open_at:
                # CNTK takes it as text.
                logger.warning("%s: %r closes nothing, and is taken as text", self.place(at), character)
            elif _CLOSING[string[open_at[-1]]] != character:
                opened = self.place(open_at[-1])
                raise self.place(at).error(
                    f"unmatched bracket: {character!r} here, but {_CLOSING[string[open_at[-1]]]!r} is expected for the "
                    f"{string[open_at[-1]]!r} of {opened}"
                )
            else:
                closing[open_at.pop()] = at
        if open_at:
            bracket = string[open_at[-1]]
            raise self.place(open_at[-1]).error(
                f"no closing {_CLOSING[bracket]} found for the {bracket!r} that opens here"
            )
        return closing


class Value(NamedTuple):
    """A part of a text: what stands on the right of an entry, or an element of an array."""

    text: Text
    begin: int
    end: int
    was_quoted: bool = False

    @property
    def string(self) -> str:
        """Its characters."""
        return self.text.string[self.begin : self.end]

    @property
    def place(self) -> Place:
        """Where it begins."""
        return self.text.place(self.begin)

    @property
    def is_section(self) -> bool:
        """Whether it stands in brackets that can hold entries."""
        return self.begin < self.end and self.text.string[self.begin] in _CLOSING

    def trimmed(self) -> Value:
        """Without the blanks around it."""
        text, begin, end, was_quoted = self
        string = text.string
        while begin < end and string[begin] in _BLANKS:
            begin += 1
        while begin < end and string[end - 1] in _BLANKS:
            end -= 1
        return Value(text, begin, end, was_quoted)

    def apart(self) -> Value:
        """The same as a text of its own, where brackets that stood in quotes count."""
        text = Text(self.text.pieces(self.begin, self.end))
        return Value(text, 0, len(text.string))


# ------------------------------------------------------------------------------------------------------- splitting


@functools.cache
def _patterns(separator: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What is skipped between tokens, and what ends one."""
    characters = ",\r\n" + re.escape(separator)
    return re.compile(f"[{characters}{_BLANKS}]*"), re.compile(f'[{characters}\\[({{"]')


def _tokens(value: Value, extra: str, is_inside: bool = False) -> Iterator[Value]:
    """Split a text into the tokens of entries (`extra` is ';') or elements (':')."""
    text, position, end, _ = value.apart() if value.was_quoted else value
    string, closing = text.string, text.closing
    stop, separator = end, extra
    skip, ends = _patterns(separator)
    while True:
        blank = skip.match(string, position, stop)
        assert blank is not None  # it matches nothing as well
        position = blank.end()
        if position >= stop:
            if stop == end:
                return
            position, stop, is_inside, separator = stop + 1, end, False, extra
            skip, ends = _patterns(separator)
            continue
        character = string[position]
        if character in _OPENING:
            close = closing[position]
            if is_inside:
                token = Value(text, position, close + 1)
                yield Value(text, position + 1, close, was_quoted=True) if character == '"' else token
                position = close + 1
            elif character == '"':
                if close > position + 1:
                    yield from _tokens(Value(text, position + 1, close, was_quoted=True), extra, is_inside=True)
                position = close + 1
            else:
                # A level of brackets around everything is taken off.
                position, stop, is_inside = position + 1, close, True
                if string[position] in _SEPARATORS and not string.startswith(_RELATIVE, position):
                    separator = string[position]
                    position += 1
                    skip, ends = _patterns(separator)
            continue
        found = ends.search(string, position, stop)
        if found is None:
            until = stop
        else:
            until = found.start()
            if string[until] in _OPENING:
                until = closing[until] + 1
        yield Value(text, position, until)
        position = until


def elements(value: Value) -> list[Value]:
    """The elements of an array, repetitions written out.

    Raises:
        ConfigError: A repetition is not a number, or there are too many elements.
    """
    found: list[Value] = []
    for token in _tokens(value, ":"):
        string = token.string
        star = string.find("*")
        if string[:1] in _CLOSING or star < 0:
            found.append(token.trimmed())
        else:
            count = string[star + 1 :].strip()
            if not _INTEGER.fullmatch(count):
                raise token.place.error(f"{string!r} in an array: expected a whole number behind the '*'")
            found += [Value(token.text, token.begin, token.begin + star, token.was_quoted).trimmed()] * min(
                int(count), _MOST_REPEATED
            )
        if len(found) >= _MOST_REPEATED:
            raise token.place.error(f"an array has {_MOST_REPEATED} elements or more")
    return found


# ------------------------------------------------------------------------------------------------------- sections


class Entry:
    """A key and what was said of it; several values where sections of one name are merged."""

    __slots__ = ("_at", "is_being_taken", "key", "taken", "values")

    def __init__(self, key: str, text: Text, at: int, value: Value) -> None:
        self.key = key
        self.replace(text, at, value)

    def replace(self, text: Text, at: int, value: Value) -> None:
        """Say something else of it, at another place."""
        self._at = (text, at)
        self.values = [value]
        self.taken: Value | None = None
        self.is_being_taken = False

    @property
    def place(self) -> Place:
        """Where the key stands."""
        text, at = self._at
        return text.place(at)

    @property
    def is_flag(self) -> bool:
        """Whether it has no value of its own, but is true by standing there."""
        return self.values[0] is _FLAG


_FLAG = Value(Text([("true", (None, 0, 0))]), 0, 4)
_TRUE = ("true", "True", "TRUE", "t", "T", "1")
_FALSE = ("false", "False", "FALSE", "f", "F", "0", "")


class Section:
    """The entries of a section, and the sections in which to look for what it lacks.

    The chain of sections is that of asking: a section found at the top level while another one was asked for it has
    that other one as its parent. (docs/configuration.md, "Looking things up")

    Args:
        name: Its name, for messages.
        value: Its text, in brackets; for the global section, everything.
        parent: Where to look for what it lacks.
        depth: How many sections it stands in.

    Attributes:
        name: Its name.
        parent: Where to look for what it lacks.
        place: Where it begins.
        directory: In the global section the directory that ``currentDirectory=`` named, if an argument did.

    Raises:
        ConfigError: An entry has no value, or brackets do not match.

    Example:
        >>> top = configuration(["Dir = data ; train = [ reader = [ file = $Dir$/a.ctf ] ] ; frameMode = T"])
        >>> reader = top.section("train").section("READER")
        >>> reader.text("file"), reader.boolean("frameMode", False), reader.integer("maxErrors", 7)
        ('data/a.ctf', True, 7)
    """

    def __init__(self, name: str, value: Value, parent: Section | None = None, depth: int = 0) -> None:
        self.name = name
        self.parent = parent
        self.place = value.place
        self.directory: str = "" if parent is None else parent.directory
        self._depth = depth
        if depth > _DEEPEST:
            raise self.place.error(f"sections are nested more than {_DEEPEST} deep", name)
        self._entries: dict[str, Entry] = {}
        for token in _tokens(value, ";"):
            self._enter(token)

    def _enter(self, token: Value) -> None:
        text, begin, end, _ = token.apart() if token.was_quoted else token
        string = text.string
        found = _KEY_END.search(string, begin, end)
        if found is None:
            self._add(string[begin:end].strip(_BLANKS), text, begin, _FLAG)
            return
        at = found.start()
        key = string[begin:at].strip(_BLANKS)
        if string[at] == "=":
            at += 1
        while at < end and string[at] in _BLANKS:
            at += 1
        if at >= end:
            raise text.place(begin).error(
                f"no value given for {key!r}{self._in_section()}; a bracket or value must begin on the same line, "
                f'and an empty value is written ""',
                self.name or None,
            )
        if string[at] not in _OPENING:
            self._add(key, text, begin, Value(text, at, end).trimmed())
            return
        close = text.closing[at]
        if string[at] == '"':
            self._add(key, text, begin, Value(text, at + 1, close, was_quoted=True).trimmed())
        else:
            self._add(key, text, begin, Value(text, at, close + 1))
        if close + 1 < end:
            for left in _tokens(Value(text, close + 1, end), ";"):
                self._enter(left)

    def _add(self, key: str, text: Text, at: int, value: Value) -> None:
        if not key:
            return
        old = self._entries.get(folded(key))
        if old is None:
            self._entries[folded(key)] = Entry(key, text, at, value)
            return
        first = value.text.string[value.begin] if value.begin < value.end else ""
        if first == "[" and old.values[-1].begin < old.values[-1].end:
            if old.key != key:
                logger.warning("%s: section %r is merged with %r of %s", text.place(at), key, old.key, old.place)
            old.values.append(value)
            return
        if first == "{":
            logger.warning("%s: %r replaces that of %s; sections in [ ] are merged", text.place(at), key, old.place)
        old.replace(text, at, value)

    # ------------------------------------------------------------------------------------------------- looking up

    @property
    def keys(self) -> list[str]:
        """The keys of its own entries, in the order of names."""
        return sorted((entry.key for entry in self._entries.values()), key=by_name)

    @property
    def path(self) -> str:
        """The names of the sections that were asked, one after another."""
        names = []
        section: Section | None = self
        while section is not None:
            names.append(section.name)
            section = section.parent
        return "/".join(name for name in reversed(names) if name)

    def _in_section(self) -> str:
        return f" (section {self.path})" if self.path else ""

    def find(self, key: str, *, own: bool = False) -> tuple[Entry, Section] | None:
        """The entry of that key, here or (unless `own`) in the nearest section above, and the section that has it."""
        section: Section | None = self
        name = folded(key)
        while section is not None:
            entry = section._entries.get(name)
            if entry is not None:
                return entry, section
            section = None if own else section.parent
        return None

    def value(self, key: str, *, own: bool = False) -> Value | None:
        """What stands for a key, variables replaced; None where there is no entry.

        Raises:
            ConfigError: A variable has no value, or needs itself.
        """
        found = self.find(key, own=own)
        return None if found is None else found[1]._taken(found[0], ())

    def _taken(self, entry: Entry, chain: tuple[str, ...]) -> Value:
        if entry.taken is not None:
            return entry.taken
        if entry.is_being_taken:
            raise entry.place.error(f"variables need each other: {' > '.join([*chain, entry.key])}", entry.key)
        if len(chain) > _LONGEST_CHAIN:
            raise entry.place.error(f"more than {_LONGEST_CHAIN} variables need each other, one the next", entry.key)
        entry.is_being_taken = True
        try:
            value = entry.values[0]
            if len(entry.values) > 1:
                value = self._joined(entry)
            entry.taken = self._replaced(value, entry, chain).trimmed()
        finally:
            entry.is_being_taken = False
        return entry.taken

    def _joined(self, entry: Entry) -> Value:
        first = entry.values[0]
        if not first.is_section:
            raise entry.place.error(
                f"{entry.key!r} is {first.string!r} at {first.place}, which cannot be merged with a section", entry.key
            )
        pieces: list[tuple[str, _Origin]] = []
        for value in entry.values:
            pieces += value.text.pieces(value.begin, value.end)
            pieces.append((" ", pieces[-1][1]))
        text = Text(pieces)
        return Value(text, 0, len(text.string) - 1)

    def _replaced(self, value: Value, entry: Entry, chain: tuple[str, ...]) -> Value:
        """Take comments away, and put the values of variables in their places."""
        text, begin, end, _ = value
        if text.string.find("#", begin, end) < 0 and text.string.find("$", begin, end) < 0:
            return value
        pieces: list[tuple[str, _Origin]] = []
        room = _MOST_GROWTH
        kept_from = begin  # up to here everything stands in `pieces`
        for start, line in _remarkable_lines(text.string, begin, end):
            kept = without_comment(line)
            for found in VARIABLE.finditer(kept):
                at = start + found.start()
                pieces += text.pieces(kept_from, at)
                kept_from = start + found.end()
                replacement = self._variable(found[1], text.place(at), entry, chain)
                room -= len(replacement)
                if room < 0:
                    raise entry.place.error(f"{entry.key!r} grows beyond all measure by its variables", entry.key)
                pieces.append((replacement, text.place(at)))
            if len(kept) < len(line):
                pieces += text.pieces(kept_from, start + len(kept))
                kept_from = start + len(line)
        if kept_from == begin:
            return value
        pieces += text.pieces(kept_from, end)
        replaced = Text(pieces or [("", value.place)])
        return Value(replaced, 0, len(replaced.string), value.was_quoted)

    def _variable(self, name: str, place: Place, entry: Entry, chain: tuple[str, ...]) -> str:
        found = self.find(name)
        if found is None:
            raise place.error(
                f"no variable found with the name {name}: it is looked for from the section that holds "
                f"{entry.key!r} outwards{self._in_section()}",
                entry.key,
            )
        replacement = found[1]._taken(found[0], (*chain, entry.key)).string
        if "\n" in replacement:
            raise place.error(f"the variable {name} has a value of several lines", entry.key)
        return replacement

    def error(self, key: str, message: str, *, own: bool = False) -> ConfigError:
        """The error to raise for a key: at its entry, or at the section where it is missing."""
        found = self.find(key, own=own)
        place = self.place if found is None else found[0].place
        return place.error(f"{message}{self._in_section()}", key)

    # ------------------------------------------------------------------------------------------------ typed values

    def has(self, key: str, *, own: bool = False) -> bool:
        """Whether there is an entry."""
        return self.find(key, own=own) is not None

    def _read(self, key: str, default: _T | None, convert: Callable[[Value], _T], what: str, own: bool) -> _T:
        value = self.value(key, own=own)
        if default is None:
            if value is None or value.begin == value.end:
                raise self.error(key, f"{key!r} is required, but missing or empty", own=own)
        elif value is None or value.string == "default":
            return default
        try:
            return convert(value)
        except ConfigError:
            raise
        except ValueError:
            raise self.error(key, f"{key} = {_shown(value.string)} is not {what}", own=own) from None

    def text(self, key: str, default: str | None = None, *, own: bool = False) -> str:
        """A text. Without a default it is required and must not be empty, here and below."""
        return self._read(key, default, lambda value: value.string, "a text", own)

    def boolean(self, key: str, default: bool | None = None, *, own: bool = False) -> bool:
        """A truth value."""
        return self._read(key, default, lambda value: truth(value.string), "a boolean (true or false)", own)

    def integer(self, key: str, default: int | None = None, *, own: bool = False) -> int:
        """A whole number of 32 bits."""
        return self._read(key, default, lambda value: integer(value.string), "an integer of 32 bits", own)

    def size(self, key: str, default: int | None = None, *, own: bool = False) -> int:
        """A whole number from 0 up to 64 bits."""
        return self._read(key, default, lambda value: size(value.string), "an integer of 0 or more", own)

    def texts(self, key: str, default: tuple[str, ...] | None = None, *, own: bool = False) -> tuple[str, ...]:
        """An array of texts; a single value is an array of one."""
        return self._read(key, default, lambda value: tuple(one.string for one in elements(value)), "an array", own)

    def integers(self, key: str, default: tuple[int, ...] | None = None, *, own: bool = False) -> tuple[int, ...]:
        """An array of whole numbers of 32 bits."""
        return self._read(
            key,
            default,
            lambda value: tuple(integer(one.string) for one in elements(value)),
            "an array of integers",
            own,
        )

    def section(self, key: str, *, own: bool = False) -> Section:
        """The section of that key, which has this one as its parent.

        Raises:
            ConfigError: There is none, what stands there is no section, or its entries cannot be read.
        """
        found = self.find(key, own=own)
        value = self.value(key, own=own)
        if value is None or found is None:
            raise self.error(key, f"section {key!r} is missing", own=own)
        if not value.is_section:
            raise self.error(key, f"{key!r} is no section: {brainscript.explained(value.string)}", own=own)
        return Section(found[0].key, value, self, self._depth + 1)

    def sections(self, key: str) -> list[Section]:
        """An array of sections. They have no parent.

        Raises:
            ConfigError: There is none, or an element is no section.
        """
        value = self.value(key)
        if value is None:
            raise self.error(key, f"{key!r} is required, but missing")
        found = []
        for number, element in enumerate(elements(value)):
            if not element.is_section:
                raise element.place.error(
                    f"{key!r} is no array of sections: element {number} is {element.string[:40]!r}; expected "
                    f"{key} = ( [ ... ] : [ ... ] ), with a bracket outside even around one section",
                    key,
                )
            section = Section(f"{key}[{number}]", element.apart(), None, self._depth + 1)
            section.directory = self.directory
            found.append(section)
        return found

    def tree(self) -> dict[str, Any]:
        """Everything in it: texts, lists of what stands in parentheses, and the trees of its sections.

        Example:
            >>> configuration(["a = [ b = 1:2 ; c = (1:2*2) ; d = { e } ]"]).tree()
            {'a': {'b': '1:2', 'c': ['1', '2', '2'], 'd': {'e': 'true'}}}
        """
        # Variables can make sections out of little; CNTK's own files have far fewer than characters.
        return self._tree(
            [_MOST_SECTIONS + sum(one.end - one.begin for e in self._entries.values() for one in e.values)]
        )

    def _tree(self, room: list[int]) -> dict[str, Any]:
        room[0] -= 1
        if room[0] < 0:
            raise self.place.error("sections grow beyond all measure by their variables", self.name)
        return {key: self._tree_of(key, room) for key in self.keys}

    def _tree_of(self, key: str, room: list[int]) -> Any:
        value = self.value(key, own=True)
        assert value is not None
        if not value.is_section:
            return value.string
        if value.text.string[value.begin] != "(" and not _ARRAY_OF_SECTIONS.match(value.text.string, value.begin):
            return self.section(key, own=True)._tree(room)
        return [
            Section("", one, None, self._depth + 1)._tree(room) if one.is_section else one.string
            for one in elements(value)
        ]


def _remarkable_lines(string: str, begin: int, end: int) -> Iterator[tuple[int, str]]:
    """Where the lines begin that can hold a comment or a variable, and what they are."""
    at = begin
    while found := _REMARKABLE.search(string, at, end):
        start = max(begin, string.rfind("\n", begin, found.start()) + 1)
        stop = string.find("\n", found.start(), end)
        stop = end if stop < 0 else stop
        yield start, string[start:stop]
        at = stop


def truth(text: str) -> bool:
    """A truth value as CNTK reads it.

    Raises:
        ValueError: It is none.
    """
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(text)


def integer(text: str) -> int:
    """A whole number of 32 bits as CNTK reads it.

    Raises:
        ValueError: It is none.
    """
    if not _INTEGER.fullmatch(text) or not -(2**31) <= int(text) < 2**31:
        raise ValueError(text)
    return int(text)


def size(text: str) -> int:
    """A whole number from 0 to 2**64 - 1; what is larger is that.

    Raises:
        ValueError: It is none.
    """
    if not _INTEGER.fullmatch(text) or int(text) < 0:
        raise ValueError(text)
    return min(int(text), 2**64 - 1)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


# ------------------------------------------------------------------------------------------- files and arguments


def without_comment(line: str) -> str:
    """A line without its comment: from the first '#', if it follows a blank or begins the line; blank: nothing.

    Example:
        >>> without_comment("a = 1 # one"), without_comment("a = 1#x # one"), without_comment("  # one")
        ('a = 1 ', 'a = 1#x # one', '')
    """
    start = line.lstrip(_BLANKS)
    if start[:1] in ("", "#", "\n", "\r"):
        return ""
    at = line.find("#")
    return line[:at] if at > 0 and line[at - 1] in _BLANKS else line


def configuration(arguments: Iterable[str]) -> Section:
    """The global section of a configuration, from arguments as the program ``cntk`` takes them.

    Later arguments override earlier ones. Paths of configuration files are relative to the working directory, or to
    the ``currentDirectory=`` given before.

    Args:
        arguments: ``configFile=a.cntk+b.cntk``, ``currentDirectory=dir``, or any text with entries.

    Raises:
        ConfigError: A text cannot be read as a configuration, files include each other, or one is named twice.
        OSError: A configuration file cannot be read.

    Example:
        >>> configuration(["a = 1 ; b = [ c = $a$ ]", "a=2"]).section("b").text("c")
        '2'
    """
    pieces: list[tuple[str, _Origin]] = []
    directory = ""
    named: set[str] = set()
    known: set[str] = set()
    for number, argument in enumerate(arguments, 1):
        key, equals, rest = argument.partition("=")
        key = folded(key.strip(_BLANKS)) if equals else ""
        if key == "configfile":
            for path in rest.split("+"):
                place = Place(None, number, 1)
                file = os.path.join(directory, path)  # noqa: PTH118 - texts with any bytes
                if _identity(file, place) in named:
                    raise place.error(f"the file {path!r} is named twice", "configFile")
                named.add(_identity(file, place))
                known.add(_identity(file, place))
                pieces += _file_lines(file, directory, known)
            continue
        if key == "currentdirectory":
            directory = os.path.join(directory, rest.strip(_BLANKS).strip('"'))  # noqa: PTH118
        pieces.append((argument + "\n", (None, number, 1)))
    text = Text(pieces)
    text.closing  # noqa: B018 - brackets must match everywhere, also where nobody looks
    section = Section("", Value(text, 0, len(text.string)))
    section.directory = directory
    return section


def _identity(path: str, place: Place) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError) as error:
        raise place.error(f"{path!r} cannot be a path: {error}", "include") from None


def _file_lines(path: str, directory: str, known: set[str]) -> Iterator[tuple[str, _Origin]]:
    """The lines of a configuration file that are not empty without comments, those of included files in between."""
    reading = [(path, _lines(path))]
    while reading:
        path, lines = reading[-1]
        line = next(lines, None)
        if line is None:
            reading.pop()
            continue
        number, string = line
        if not string.startswith("include="):
            yield string + "\n", (path, number, 1)
            continue
        place = Place(path, number, 1)
        if "$" in string:
            raise place.error("include= takes names of files as they are, not variables", "include")
        chain = [_identity(file, place) for file, _ in reading]
        opened = []
        for name in string[len("include=") :].split("+"):
            file = os.path.join(directory, name)  # noqa: PTH118
            identity = _identity(file, place)
            if identity in chain:
                loop = [file for file, _ in reading[chain.index(identity) :]]
                raise place.error(f"files include each other: {' > '.join([*loop, file])}", "include")
            if identity in known:
                logger.warning("%s: %s was read before, and is skipped", place, file)
                continue
            known.add(identity)
            try:
                opened.append((file, _lines(file)))
            except OSError as error:
                raise place.error(f"cannot include {file!r}: {error.strerror or error}", "include") from None
        reading += reversed(opened)


def _lines(path: str) -> Iterator[tuple[int, str]]:
    if not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path):  # noqa: PTH112, PTH116 - any bytes
        raise ConfigError(f"{path} is not a regular file", path=path)
    with open(path, "rb") as file:
        content = file.read()
    return _numbered(path, content.decode("utf-8", "surrogateescape"))


def _numbered(path: str, content: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(content.split("\n"), 1):
        line = line.removesuffix("\r").removeprefix("\ufeff")
        if "\r" in line:
            raise Place(path, number, line.index("\r") + 1).error("a line ends with CR alone; expected LF or CR LF")
        kept = without_comment(line)
        if "#" in line:
            _warn_of_hash(Place(path, number, line.index("#") + 1), line, kept)
        if kept:
            yield number, kept


def _warn_of_hash(place: Place, line: str, kept: str) -> None:
    if kept == line and re.search(r"[ \t]#", line):
        logger.warning("%s: this '#' follows no blank; what looks like a comment behind it is part of the value", place)
    elif len(kept) < len(line) and kept.count('"') % 2:
        logger.warning("%s: a blank and '#' begin a comment within quotes, too; the quote stays open", place)

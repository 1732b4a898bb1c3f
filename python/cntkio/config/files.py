"""Configuration files and arguments: from their lines to the global section. (docs/configuration.md, "The language")

::

    configFile=a.cntk+b.cntk ──lines, comments removed, included files inserted──┐
    currentDirectory=dir, key=value ─────────────────────────────────────────────┴──one text──> global section

Invariants: later arguments override earlier arguments; a file is read once; files that include each other are an
error, and so is a bracket without a partner anywhere in the text.

This module opens no file except for configuration files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from cntkio.arguments import did_you_mean
from cntkio.config.language import BLANKS, Position, Section, Text, Value, folded_key, logger, without_comment
from cntkio.errors import ConfigError
from cntkio.storage.names import is_remote, path_in_list
from cntkio.storage.open_input import open_stored

_MOST_CHARACTERS = 4 << 20
_TOO_LONG = f"more than {_MOST_CHARACTERS} characters in all files of a configuration; expected fewer"
_LOOKS_LIKE_INCLUDE = re.compile(r"[ \t]*include[ \t]*=", re.IGNORECASE)

_Line: TypeAlias = tuple[str, Position]
_Numbered: TypeAlias = Iterator[tuple[int, str]]
_Part: TypeAlias = "_Line | Iterator[_Part]"


def configuration(arguments: Iterable[str]) -> Section:
    """Return the global section of a configuration, from arguments as the program ``cntk`` takes them.

    Later arguments override earlier arguments. Paths of configuration files are relative to the working directory, or
    to the directory of an earlier ``currentDirectory=``.

    Args:
        arguments: ``configFile=a.cntk+b.cntk``, ``currentDirectory=dir``, or any text with entries.

    Raises:
        ConfigError: A text cannot be read as a configuration, files include each other, or a file is named twice.
        OSError: A configuration file cannot be read.

    Example:
        >>> configuration(["a = 1 ; b = [ c = $a$ ]", "a=2"]).section("b").text("c")
        '2'
    """
    pieces: list[tuple[str, Position]] = []
    room = _MOST_CHARACTERS
    directory = ""
    named: set[str] = set()
    known: set[str] = set()
    for index, argument in enumerate(arguments, 1):
        key, rest = _key_of(argument)
        position = Position(None, index, 1)
        for path in rest.split("+") if key == "configfile" else ():
            file = _within(directory, path)
            identity = _identity(file, position)
            if identity in named:
                raise position.error(f"the file {path!r} is named twice", "configFile")
            named.add(identity)
            known.add(identity)
            for line, origin in _file_lines(file, identity, directory, known):
                room -= len(line)
                if room < 0:
                    raise origin.error(_TOO_LONG, "configFile")
                pieces.append((line, origin))
        if key == "configfile":
            continue
        # CNTK changes its working directory here, and keeps the entry. cntkio is a library, so it joins paths instead.
        if key == "currentdirectory":
            directory = os.path.join(directory, rest.strip(BLANKS).strip('"'))  # noqa: PTH118
        room -= len(argument)
        if room < 0:
            raise position.error(_TOO_LONG)
        pieces.append((argument + "\n", position))
    text = Text(pieces)
    text.closing  # noqa: B018 - brackets must match everywhere, even in parts that are never read
    section = Section("", Value(text, 0, len(text.string)))
    section.directory = directory
    return section


def _key_of(argument: str) -> tuple[str, str]:
    """Return the folded key with which an argument begins, and the text after it; without a key, "" and any text."""
    key, equals, rest = argument.partition("=")
    return (folded_key(key.strip(BLANKS)) if equals else ""), rest


def warn_of_unused(top: Section, arguments: Sequence[str]) -> None:
    """Warn of entries in the arguments of a `configuration` that were not looked up when readers were read."""
    # The arguments are split again without the files: in the whole configuration, sections of both are merged.
    numbered = [(f"{text}\n", Position(None, index, 1)) for index, text in enumerate(arguments, 1)]
    text = Text(piece for piece in numbered if _key_of(piece[0])[0] not in ("configfile", "currentdirectory"))
    overrides = Section("", Value(text, 0, len(text.string)))
    others = [entry.key for entry in top.entries if entry.position.path is not None]
    # The texts have the same positions as in `configuration`, which `used` holds.
    for path, position in _unused(overrides, top.shared.used):
        key = path.partition("/")[0]
        hint = "" if folded_key(key) in map(folded_key, others) else did_you_mean(key, others)
        logger.warning("%s: no reader that was read uses %r, so it has no effect%s", position, path, hint)


def _unused(section: Section, used: set[Position], depth: int = 1) -> Iterator[tuple[str, Position]]:
    """Yield paths and positions of the entries that were not looked up; variables in them stay as they are."""
    for entry in section.entries:
        inner = [value for value in entry.values if value.string.startswith("[")]
        for value in inner:
            with contextlib.suppress(ConfigError):  # a part that no reader has read may be invalid
                for path, position in _unused(Section(entry.key, value, section, depth), used, depth + 1):
                    yield f"{entry.key}/{path}", position
        if not inner and entry.position not in used:
            yield entry.key, entry.position


def _within(directory: str, path: str) -> str:
    # The texts may have any bytes.
    return path if is_remote(path) else os.path.join(directory, path)  # noqa: PTH118


def _identity(path: str, position: Position) -> str:
    """Return the same text for all paths of the same file."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError) as error:
        raise position.error(f"{path!r} cannot be a path: {error}", "include") from None


def _file_lines(path: str, identity: str, directory: str, known: set[str]) -> Iterator[_Line]:
    """Yield the lines of a configuration file without comments and empty lines, included files inserted."""
    # Each file that is being read, by its identity, beginning with the outermost file. Kept, because finding all
    # identities again for each included file takes a time that grows with the square of their number.
    chain: dict[str, str] = {}
    # A stack in place of recursion: chains of includes may be longer than Python's limit on nested calls.
    reading = [_parts(path, identity, _lines(path), directory, chain, known)]
    while reading:
        part = next(reading[-1], None)
        if part is None:
            reading.pop()
        elif isinstance(part, tuple):
            yield part
        else:
            reading.append(part)


def _parts(
    path: str, identity: str, lines: _Numbered, directory: str, chain: dict[str, str], known: set[str]
) -> Iterator[_Part]:
    """Yield the lines of a file, and in place of an ``include=`` line the parts of each file that it includes."""
    chain[identity] = path
    for number, line in lines:
        position = Position(path, number, 1)
        if line.startswith("include="):
            yield from _included(line, position, directory, chain, known)
            continue
        if _LOOKS_LIKE_INCLUDE.match(line):
            rule = "'include=' must begin the line, in lower case and without a blank"
            logger.warning("%s: this line includes no file, as in CNTK; %s", position, rule)
        yield line + "\n", position
    del chain[identity]


def _included(
    line: str, position: Position, directory: str, chain: dict[str, str], known: set[str]
) -> Iterator[Iterator[_Part]]:
    """Open the files of an ``include=`` line that were not read before, each when the files before it have been read.

    As in CNTK, one of these may already include the next, which is then skipped here.

    Args:
        chain: The files that lead to this line, by identity, beginning with the outermost file.
        known: The files that were read before; the files of this line are added.
    """
    if "$" in line:
        raise position.error("include= takes names of files as they are, not variables", "include")
    for name in line[len("include=") :].split("+"):
        file = _within(directory, path_in_list(position.path or "", name))
        # CNTK takes the name as it is, up to the end of the line. A blank there counts only if a file has that name.
        if name.endswith(tuple(BLANKS)) and "\0" not in name and not os.path.exists(file):  # noqa: PTH110
            file = file.rstrip(BLANKS)
        identity = _identity(file, position)
        if identity in chain:
            names = [*list(chain.values())[list(chain).index(identity) :], file]
            raise position.error(f"files include each other: {' > '.join(names)}", "include")
        if identity in known:
            logger.warning("%s: %s was already read, and is skipped", position, file)
            continue
        known.add(identity)
        try:
            lines = _lines(file)
        except OSError as error:
            raise position.error(f"cannot include {file!r}: {error.strerror or error}", "include") from None
        yield _parts(file, identity, lines, directory, chain, known)


def _lines(path: str) -> _Numbered:
    try:
        stored = open_stored(path)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise ConfigError(f"{path} is not a regular file: {error.strerror}", path=path) from None
    with contextlib.closing(stored):
        # A further byte shows that the file is too long; the rest is never read, so memory stays limited.
        return _numbered(path, _decoded(path, stored.read(0, _MOST_CHARACTERS + 1)))


def _decoded(path: str, content: bytes) -> str:
    if len(content) > _MOST_CHARACTERS:
        raise ConfigError(f"{path}: {_TOO_LONG}. Is it a configuration?", path=path)
    # Paths may contain any bytes; with surrogates, the operating system gets the same bytes back.
    return content.decode("utf-8", "surrogateescape")


def _numbered(path: str, content: str) -> _Numbered:
    # Not `splitlines`, which also ends lines at a CR alone, a form feed and other characters.
    for number, whole_line in enumerate(content.split("\n"), 1):
        # CNTK removes a byte order mark from each line, not only from the first.
        line = whole_line.removesuffix("\r").removeprefix("\ufeff")
        if "\r" in line:
            raise Position(path, number, line.index("\r") + 1).error("a line ends with CR alone; expected LF or CR LF")
        kept, position = without_comment(line), Position(path, number, line.find("#") + 1)
        if kept == line and re.search(r"[ \t]#", line):
            what = "so it begins no comment; the text after it is part of the value"
            logger.warning("%s: no blank precedes this '#', %s", position, what)
        elif len(kept) < len(line) and kept.count('"') % 2:
            logger.warning("%s: a blank and '#' begin a comment within quotes, too; the quote stays open", position)
        if kept:
            yield number, kept

"""The files that a path, a pattern or a list of them names. (docs/where-corpora-can-be.md)

::

    "a.ctf"                   a file
    "train-{000..127}.ctf"    braces are a short form of a list: the names are known without a look at the disk
    "data/**/*.ctf"           wildcards: the files of folders, in the order of the bytes of their names
    ["b.ctf", "a.ctf"]        a list of any of these, in its order

If a file's name is the pattern itself, the pattern means that file. The names of folders and files come from a
`Lister`, so that patterns mean the same wherever files are.
"""

from __future__ import annotations

import errno
import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from cntkio.arguments import near_names
from cntkio.errors import ConfigError
from cntkio.storage.manifest import manifest_of
from cntkio.storage.names import FileNames, as_url, hint_on_name, is_remote, shown, shown_pattern
from cntkio.storage.remote import Remote
from cntkio.storage.stores import RemoteFiles, hint_on_memory
from cntkio.storage.text_input import hint_on_missing

_WILDCARDS = re.compile(r"[*?\[]")
_NUMBERS = re.compile(r"(\d+)\.\.(\d+)(?:\.\.(\d+))?")
_LETTERS = re.compile(r"([a-z])\.\.([a-z])|([A-Z])\.\.([A-Z])")
# The end of the name of an index cache, which is next to its corpus.
_INDEX_CACHE = re.compile(r"\.[0-9a-f]{8}\.index")
_MOST_FILES = 1_000_000
_NUM_SHOWN = 3


class LocalFiles:
    """Lists files of local disks. Wildcards match no name that begins with a dot."""

    def is_file(self, path: str) -> bool:
        return Path(path).is_file()

    def is_folder(self, path: str) -> bool:
        """Return whether a path is a folder, if that is known without opening it, or ends with a slash."""
        return Path(path).is_dir()

    def size(self, path: str) -> int:
        """Return the size of a file in bytes; 0 if that is not known without opening it."""
        try:
            return os.stat(path).st_size  # noqa: PTH116 - many paths
        except (OSError, ValueError):  # ValueError: a zero byte
            return 0

    def names(self, folder: str) -> list[str]:
        """Return the names of the files and folders in a folder, in any order; none if the folder does not exist."""
        try:
            return os.listdir(folder)  # noqa: PTH208 - `Path.iterdir` makes an object of each name
        except OSError:
            return []

    def matching(self, pattern: str) -> Iterable[str]:
        """Return the files that match wildcards, in any order, as paths that begin like the pattern."""
        # With ten thousand files, `Path` takes twice as long.
        return filter(os.path.isfile, glob.iglob(_with_literal_folders(pattern), recursive=True))  # noqa: PTH207


def _with_literal_folders(pattern: str) -> str:
    """Return a pattern for `glob` that takes the names of existing folders literally, even with wildcards in them."""
    folders, name = os.path.split(pattern)
    head: list[str] = []
    rest = list(Path(folders).parts)
    while rest and Path(*head, rest[0]).is_dir():
        head.append(rest.pop(0))
    return os.path.join(glob.escape(os.path.join(*head)) if head else "", *rest, name)  # noqa: PTH118


LOCAL = LocalFiles()
Lister: TypeAlias = LocalFiles | RemoteFiles
"""Lists the files of a place."""


def lister_of(path: str, remote: Remote | None = None) -> Lister:
    """Return the lister of the place of a path or a URL."""
    return RemoteFiles(remote) if is_remote(path, remote) else LOCAL


def listed_files(names: FileNames, *, option: str = "filename", remote: Remote | None = None) -> tuple[str, ...]:
    """Return the files that a path, a pattern or a sequence of them names.

    A file that is named by its path alone need not exist; opening it raises the error.

    Args:
        option: The option that contains the names, for messages.

    Raises:
        ConfigError: A file is named twice, or the sequence is empty.
        FileNotFoundError: No file matches a pattern.
        IsADirectoryError: A path is a folder.

    Example:
        >>> listed_files("part-{08..11}.ctf")
        ('part-08.ctf', 'part-09.ctf', 'part-10.ctf', 'part-11.ctf')
        >>> listed_files("examples/{alice,digits}/t*.ctf")
        ('examples/alice/test.ctf', 'examples/alice/train.ctf', 'examples/digits/test.ctf', 'examples/digits/train.ctf')
    """
    given = [names] if isinstance(names, str | os.PathLike) else list(names)
    if not given:
        raise ConfigError(f"{option} is an empty list; expected at least one file", key=option)
    patterns = [as_url(os.fspath(name)) for name in given]
    found = [(path, pattern) for pattern in patterns for path in _files_of(pattern, remote)]
    if len(found) > 1:
        _refuse_repeated(found, option)
    return tuple(path for path, _ in found)


def absolute_names(names: FileNames, remote: Remote | None = None) -> str | list[str]:
    """Return paths and patterns that mean the same in any working folder. Names in a remote store stay as they are.

    Example:
        >>> absolute_names(["s3://bucket/a-*.ctf", "/data/a.ctf"])
        ['s3://bucket/a-*.ctf', '/data/a.ctf']
    """
    if isinstance(names, str | os.PathLike):
        name = os.fspath(names)
        return name if is_remote(name, remote) else str(Path(name).absolute())
    return [str(absolute_names(name, remote)) for name in names]


def in_one_text(text: str) -> str | list[str]:
    """Return a path or a pattern, or the list of them that a text with semicolons contains.

    If a file has the whole text as its name, the text means that file.

    Example:
        >>> in_one_text("a.ctf; b-*.ctf"), in_one_text("a.ctf")
        (['a.ctf', 'b-*.ctf'], 'a.ctf')
    """
    if ";" not in text or lister_of(text).is_file(text):
        return text
    return [name.strip() for name in text.split(";") if name.strip()]


def sizes_of(paths: Sequence[str]) -> list[int]:
    """Return the size of each file in bytes; 0 for a file that cannot be read, or whose size only a request tells."""
    return [lister_of(path).size(path) for path in paths]


def _files_of(pattern: str, remote: Remote | None) -> list[str]:
    lister, manifest = lister_of(pattern, remote), manifest_of(remote) if is_remote(pattern, remote) else None
    is_plain = not _WILDCARDS.search(pattern) and "{" not in pattern
    # A plain name is not looked up: opening it raises the error about a missing file, and a store needs no request.
    if not is_plain and (lister.is_file(pattern) if manifest is None else manifest.lists(pattern)):
        return [pattern]
    if lister.is_folder(pattern):
        example = shown_pattern(_pattern_for(pattern, lister))
        what = f"Is a folder; expected a file, or a pattern such as {example!r}"
        raise IsADirectoryError(errno.EISDIR, what, shown_pattern(pattern))
    if is_plain:
        return [pattern]
    found: list[str] = []
    for name in expanded_braces(pattern):
        if not _WILDCARDS.search(name) or lister.is_file(name):
            found.append(name)
            continue
        # The ending `.0123abcd.index` of an index cache has 15 characters.
        matches = [path for path in lister.matching(name) if not _INDEX_CACHE.fullmatch(path[-15:])]
        if not matches:
            hints = hint_on_name(name) or _near_names(name, lister) + hint_on_memory(name)
            raise FileNotFoundError(errno.ENOENT, f"No file matches the pattern{hints}", shown_pattern(name))
        # By bytes, so that names that are not UTF-8 have a fixed order, too.
        found.extend(sorted(matches, key=os.fsencode))
    return found


def _refuse_repeated(found: Sequence[tuple[str, str]], option: str) -> None:
    """Refuse a file that is named twice, even if its path is written in two ways."""
    earlier: dict[str, str] = {}
    for path, pattern in found:
        # `a.ctf` and `./a.ctf` are one file.
        identity = path if "://" in path else os.path.abspath(path)  # noqa: PTH100 - the quickest for many paths
        if identity in earlier:
            patterns = dict.fromkeys((shown_pattern(earlier[identity]), shown_pattern(pattern)))
            by = " and ".join(map(repr, patterns))
            what = f"{shown_pattern(path)} is named twice, by {by}"
            raise ConfigError(f"{option}: {what}; expected each file once", key=option)
        earlier[identity] = pattern


def _pattern_for(folder: str, lister: Lister) -> str:
    """Return a pattern for the files of a folder: the most frequent ending of their names."""
    names = [name for name in lister.names(folder) if not name.startswith(".") and not _INDEX_CACHE.search(name)]
    endings = Counter(filter(None, (Path(name).suffix for name in names)))
    ending = max(endings, key=endings.__getitem__, default="")
    separator = "" if folder.endswith(("/", os.sep)) else "/"
    return f"{folder}{separator}*{ending}"


def _near_names(pattern: str, lister: Lister) -> str:
    """Return advice on a pattern that no file matches: names some files of its folder, or says that it is missing."""
    parts = re.split(r"(?<=[/\\])", pattern)
    index = next(index for index, part in enumerate(parts) if _WILDCARDS.search(part))
    folder, part = "".join(parts[:index]), parts[index].rstrip("/\\")
    if folder and not lister.is_folder(folder):
        if folder.startswith(("http://", "https://")):
            return f"; the server does not list {shown(folder)!r}: name the files, for instance with {{000..127}}"
        return f"; there is no folder {shown(folder)!r}" if "://" in folder else hint_on_missing(Path(folder))
    names = sorted(lister.names(folder or os.curdir))
    near = near_names(part, names) or names
    some = [*map(repr, near[:_NUM_SHOWN]), *["..."] * (len(near) > _NUM_SHOWN)]
    where = repr(shown(folder) or os.getcwd())  # noqa: PTH109
    return f"; the folder {where} has {', '.join(some) or 'no files'}"


# --------------------------------------------------------------------------------------------------------------- braces


def expanded_braces(pattern: str) -> list[str]:
    """Return the names that braces stand for, in their order, as in a shell; other braces are literal.

    Raises:
        ConfigError: They stand for more than a million names.

    Example:
        >>> expanded_braces("{b,a}-{8..10}"), expanded_braces("{098..100}"), expanded_braces("{x}{")
        (['b-8', 'b-9', 'b-10', 'a-8', 'a-9', 'a-10'], ['098', '099', '100'], ['{x}{'])
    """
    for begin, letter in enumerate(pattern):
        group = _group(pattern, begin) if letter == "{" else None
        if group is None:
            continue
        end, alternatives = group
        head, rests = pattern[:begin], expanded_braces(pattern[end:])
        middles = [middle for alternative in alternatives for middle in expanded_braces(alternative)]
        # Before the list is made, because a few nested braces can stand for more names than fit the memory.
        if len(middles) * len(rests) > _MOST_FILES:
            _refuse_too_many(pattern)
        return [f"{head}{middle}{rest}" for middle in middles for rest in rests]
    return [pattern]


def _group(pattern: str, begin: int) -> tuple[int, Iterable[str]] | None:
    """Return the end of the braces that begin at an offset, and their alternatives; None: the braces are literal."""
    depth, parts, start = 0, [], begin + 1
    for at, letter in enumerate(pattern[begin:], begin):
        depth += (letter == "{") - (letter == "}")
        if (letter == "," and depth == 1) or not depth:
            parts.append(pattern[start:at])
            start = at + 1
        if not depth:
            alternatives = parts if len(parts) > 1 else _range(parts[0])
            return None if alternatives is None else (at + 1, alternatives)
    return None


def _range(text: str) -> Iterator[str] | None:
    """Return the numbers or letters of a range such as ``000..127``; None: it is not a range."""
    if letters := _LETTERS.fullmatch(text):
        first, last = (ord(letter) for letter in letters.groups() if letter)
        return map(chr, _from_to(first, last, 1))
    numbers = _NUMBERS.fullmatch(text)
    if numbers is None:
        return None
    first, last, step = (int(number or 1) for number in numbers.groups())
    step = max(step, 1)
    if abs(last - first) // step >= _MOST_FILES:
        _refuse_too_many(text)
    bounds = numbers.groups()[:2]
    is_padded = any(len(bound) > 1 and bound.startswith("0") for bound in bounds)
    width = max(map(len, bounds)) if is_padded else 0
    return (f"{number:0{width}}" for number in _from_to(first, last, step))


def _from_to(first: int, last: int, step: int) -> range:
    return range(first, last + 1, step) if first <= last else range(first, last - 1, -step)


def _refuse_too_many(pattern: str) -> None:
    raise ConfigError(f"{pattern!r} stands for more than {_MOST_FILES:,} files", key="filename")

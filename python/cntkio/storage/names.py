"""Names of files: paths and URLs, and how messages show them."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence
from typing import Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from cntkio.arguments import path_texts
from cntkio.errors import ConfigError
from cntkio.storage.remote import Remote

FileNames: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, a pattern, or a sequence of them."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)")
# A `pathlib.Path` turns two slashes into a single slash.
_SCHEME_OF_PATH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?=[^/])")
_SPECIFIER = re.compile(r"((?:ark|scp)(?:,[a-z]+)*:)(.*)")
_NUM_SHOWN = 3


def is_remote(path: str, remote: Remote | None = None) -> bool:
    """Return whether a path names a file of a remote store: it has a scheme, or the options have a store.

    Example:
        >>> is_remote("s3://bucket/a.ctf"), is_remote("C:/a.ctf")
        (True, False)
    """
    return (remote is not None and remote.store is not None) or _SCHEME.match(as_url(path)) is not None


def located(name: str, paths: Any, remote: Remote | None) -> tuple[str | list[str], Remote | None]:
    """Return a path, or several, as text, and the options with which to read them.

    Args:
        name: The argument, for messages.
        paths: A text, bytes, an object of `os.PathLike`, a path of universal-pathlib, or a sequence of these.
        remote: Options from the caller; they take precedence over the options that a path of universal-pathlib has.

    Raises:
        ConfigError: An item is not a path, the options are not `Remote`, or the paths have different options.

    Example:
        >>> located("filename", [b"a.ctf", "b.ctf"], None)
        (['a.ctf', 'b.ctf'], None)
    """
    if not isinstance(remote, Remote | None):
        raise ConfigError(f"remote is of the type {type(remote).__name__}; expected a cntkio.Remote", key="remote")
    is_list = isinstance(paths, Sequence) and not isinstance(paths, str | bytes)
    found: list[Any] = []
    of_paths: list[dict[str, Any]] = []
    for path in paths if is_list else [paths]:
        options = getattr(path, "storage_options", None)
        # Paths of universal-pathlib are known by these attributes, because the library is optional.
        is_universal = options is not None and bool(getattr(path, "protocol", None))
        found.append(str(path) if is_universal else path)
        if is_universal and options and options not in of_paths:
            of_paths.append(dict(options))
    if remote is None and of_paths:
        if len(of_paths) > 1:
            raise ConfigError(f"{name}: the paths have different storage_options; pass one set as remote", key=name)
        remote = Remote(storage_options=of_paths[0])
    return path_texts(name, found if is_list else found[0]), remote


def located_file(name: str, path: str | os.PathLike[str], remote: Remote | None) -> tuple[str, Remote | None]:
    """Return a single path as text, and the options with which to read or write it, as `located` does.

    Example:
        >>> located_file("path", "a.ctf", None)
        ('a.ctf', None)
    """
    texts, remote = located(name, [path], remote)
    return texts[0], remote


def path_in_list(listed: str, path: str) -> str:
    """Return a path that a list of files names: in a list at a URL, a relative path begins in the list's folder.

    Example:
        >>> path_in_list("s3://bucket/lists/a.scp", "../x.ark"), path_in_list("s3://bucket/a.scp", "/data/x.ark")
        ('s3://bucket/x.ark', '/data/x.ark')
        >>> path_in_list("lists/a.scp", "x.ark")
        'x.ark'
    """
    scheme, mark, place = as_url(listed).partition("://")
    if not mark or not _SCHEME.match(as_url(listed)) or path.startswith("/") or is_remote(path):
        return path
    return f"{scheme}{mark}{posixpath.normpath(posixpath.join(posixpath.dirname(place.partition('?')[0]), path))}"


def as_url(path: str) -> str:
    """Return the URL from which a `pathlib.Path` was made; other paths, and names of existing files, stay as they are.

    Example:
        >>> as_url("s3:/bucket/a.ctf"), as_url("file:/data/a.ctf"), as_url("C:/a.ctf")
        ('s3://bucket/a.ctf', 'file:///data/a.ctf', 'C:/a.ctf')
    """
    found = _SCHEME_OF_PATH.match(path)
    if not found or os.path.lexists(path):
        return path
    # The paths of local files begin with the third slash.
    return f"{found[1]}://{'/' * (found[1] in ('file', 'local'))}{path[found.end() :]}"


def shown(url: str) -> str:
    """Return a URL without passwords and signatures, for messages.

    Example:
        >>> shown("https://me:secret@host/a.ctf?signature=3f")
        'https://host/a.ctf'
    """
    if "?" not in url and "@" not in url:
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    # Without a host it is a path, in which `?` and `@` are ordinary characters.
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")) if parts.netloc else url


def shown_pattern(pattern: str) -> str:
    """Return a path, a URL or a pattern of them without passwords and signatures, for messages.

    A question mark may be a wildcard, so only text that looks like a query of a URL is left out.

    Example:
        >>> shown_pattern("s3://me:secret@bucket/part-?.ctf"), shown_pattern("https://host/a.ctf?signature=3f")
        ('s3://bucket/part-?.ctf', 'https://host/a.ctf')
    """
    head, mark, query = pattern.partition("?")
    return shown(pattern) if "=" in query else shown(head) + mark + query


def shown_files(names: FileNames) -> str:
    """Return a path, a pattern or a list of them for messages.

    Example:
        >>> shown_files("train-*.ctf"), shown_files(["a.ctf", "b.ctf"]), shown_files([f"{i}.ctf" for i in range(99)])
        ('train-*.ctf', 'a.ctf, b.ctf', '0.ctf, 1.ctf, 2.ctf, ... (99 in all)')
    """
    if isinstance(names, str | os.PathLike):
        return shown_pattern(os.fspath(names))
    shown = ", ".join(shown_pattern(os.fspath(name)) for name in names[:_NUM_SHOWN])
    return shown if len(names) <= _NUM_SHOWN else f"{shown}, ... ({len(names)} in all)"


def hint_on_name(path: str | os.PathLike[str]) -> str:
    """Return advice for a path that begins as no path does: with "~", or as Kaldi's specifiers; empty for other paths.

    Example:
        >>> hint_on_name("scp:feats.scp"), hint_on_name("a.ctf")
        ("; 'scp:' is a prefix of Kaldi, and no part of a path: write 'feats.scp'", '')
    """
    name = os.fspath(path)
    if name.startswith("~"):
        better = os.path.expanduser(name)  # noqa: PTH111 - may be unknown
        return f"; '~' is expanded by shells only: write {better!r}"
    if (specifier := _SPECIFIER.fullmatch(name)) is None:
        return ""
    return f"; {_about_prefix(specifier, 'let copy-feats of Kaldi write an archive, and name that file')}"


def refuse_prefix(path: str | os.PathLike[str]) -> None:
    """Refuse a file to write whose name begins as Kaldi's specifiers; an existing file of such a name can be read."""
    if (specifier := _SPECIFIER.fullmatch(os.fspath(path))) is not None:
        raise ConfigError(f"{os.fspath(path)}: {_about_prefix(specifier, 'write the path of a file')}", key="path")


def _about_prefix(specifier: re.Match[str], otherwise: str) -> str:
    prefix, what = specifier.groups()
    what = what.partition(",")[0] if {"ark", "scp"} <= {*re.split("[,:]", prefix)} else what  # an archive and its list
    is_file = what.strip() not in ("", "-") and "|" not in what
    return f"{prefix!r} is a prefix of Kaldi, and no part of a path: {f'write {what!r}' if is_file else otherwise}"

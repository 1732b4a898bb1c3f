"""Names of files: paths and URLs, and how messages show them."""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit, urlunsplit

from cntkio.formats.remote import Remote

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)")
# A `pathlib.Path` turns two slashes into a single slash.
_SCHEME_OF_PATH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?=[^/])")


def is_remote(path: str, remote: Remote | None = None) -> bool:
    """Return whether a path names a file of a remote store: it has a scheme, or the options have a store.

    Example:
        >>> is_remote("s3://bucket/a.ctf"), is_remote("C:/a.ctf")
        (True, False)
    """
    return (remote is not None and remote.store is not None) or _SCHEME.match(as_url(path)) is not None


def as_url(path: str) -> str:
    """Return the URL from which a `pathlib.Path` was made; other paths, and names of existing files, stay as they are.

    Example:
        >>> as_url("s3:/bucket/a.ctf"), as_url("folder/a.ctf"), as_url("C:/a.ctf")
        ('s3://bucket/a.ctf', 'folder/a.ctf', 'C:/a.ctf')
    """
    found = _SCHEME_OF_PATH.match(path)
    return f"{found[1]}://{path[found.end() :]}" if found and not os.path.lexists(path) else path


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


def hint_on_home(path: str | os.PathLike[str]) -> str:
    """Return advice for a path that begins with "~", as the end of a message; empty for other paths."""
    name = os.fspath(path)
    if not name.startswith("~"):
        return ""
    return f"; '~' is expanded by shells only: write {os.path.expanduser(name)!r}"  # noqa: PTH111 - may be unknown

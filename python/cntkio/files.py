"""Files that come into being whole, written beside their name and renamed; and what to say of one that is missing.

Its law: under the name there is the old file or the whole new one, whatever interrupts the writing. What is no file
(a pipe, a terminal) is written as it comes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from cntkio.errors import near_name


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name when the block ends without an exception.

    Args:
        path: The file; one that is there already is replaced. A link is followed.

    Raises:
        OSError: It cannot be written.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.txt")
        >>> with written_whole(path) as file:
        ...     _ = file.write(b"all of it")
        ...     path.exists()
        False
        >>> path.read_bytes()
        b'all of it'
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    with _scratch(target) as (temporary, file):
        yield file
        file.close()
        temporary.replace(target)


@contextlib.contextmanager
def scratch_beside(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file on the same disk as another one, to be written and read back; gone when the block ends."""
    with _scratch(Path(os.path.realpath(path))) as (_, file):
        yield file


@contextlib.contextmanager
def _scratch(target: Path) -> Iterator[tuple[Path, BinaryIO]]:
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    with temporary.open("x+b") as file:
        try:
            yield temporary, file
        finally:
            file.close()
            temporary.unlink(missing_ok=True)


def open_to_read(path: str | os.PathLike[str]) -> int:
    """Open a file and give its descriptor.

    Raises:
        FileNotFoundError: It is not there; the message says which folder was looked in, and which file is near.
        OSError: It cannot be read.

    Example:
        >>> open_to_read("examples/iris/iris.cft")
        Traceback (most recent call last):
        FileNotFoundError: [Errno 2] No such file or directory; did you mean 'examples/iris/iris.ctf'?: ...
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise IsADirectoryError(errno.EISDIR, "Is a folder; expected a file", os.fspath(path))
        return descriptor
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, f"{error.strerror}{_hint(Path(path))}", os.fspath(path)) from None


def _hint(path: Path) -> str:
    """What to do about a path that is not there."""
    missing = path
    while not missing.parent.exists():
        missing = missing.parent
    try:
        near = near_name(missing.name, [entry.name for entry in missing.parent.iterdir()])
    except OSError:
        near = None
    if near is not None:
        rest = path.parts[len(missing.parts) :]
        return f"; did you mean {str(missing.parent.joinpath(near, *rest))!r}?"
    place = "" if path.is_absolute() else f" from the folder {str(Path.cwd())!r}"
    folder = "" if missing == path else f": there is no {str(missing)!r}"
    return f"{place}{folder}"

"""Write files atomically: under a name there is always the old file or the whole new one.

A file is written next to its final place and then renamed. What is not a regular file, such as a pipe, is written
directly.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name when the block ends without an exception.

    Args:
        path: The file. An older one is replaced; a link is followed.

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
    """Open a temporary file on the same disk as `path`, to write and read back."""
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


def write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file piece by piece, as `written_whole` does. Missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        for piece in pieces:
            file.write(piece)

"""The content of compressed files of any format, from the beginning to the end.

A text in the CNTK text format that is compressed with gzip or zstd is read where it is, in any order (`compressed`).
Everything else is unpacked once, from the beginning to the end. The first bytes, not the name of a file, show its
compression.
"""

from __future__ import annotations

import bz2
import io
import lzma
from collections.abc import Callable, Generator
from typing import Any, Literal, cast, get_args

import numpy as np

from cntkio.errors import FormatError
from cntkio.formats import compressed
from cntkio.formats.open_input import open_stored
from cntkio.formats.remote import Remote
from cntkio.formats.text_input import Compression, TextInput, compression_of

Packing = Literal["gzip", "zstd", "bzip2", "xz"]
PACKINGS: tuple[str, ...] = get_args(Packing)
MAGIC: dict[bytes, Packing] = {b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}
"""First bytes of the compressions that have to be unpacked."""
ENDINGS = (*compressed.ENDINGS, ".bz2", ".xz")
"""Usual extensions of compressed files."""

_MAGIC_SIZE = 6
_BUFFER = 1 << 20
_OPENERS: dict[Packing, Callable[[Any], Any]] = {"bzip2": bz2.open, "xz": lzma.open}


def content_of(path: str, remote: Remote | None = None, *, size: int = 1 << 20) -> Generator[bytes]:
    """Yield the content of a file in pieces, unpacked if it is compressed with gzip, zstd, bzip2 or xz.

    Args:
        path: A path, or the URL of an object in a remote store.
        remote: How to read a remote store.
        size: Bytes of the largest piece.

    Raises:
        OSError: The file cannot be read.
        ConfigError: The remote store is of an unknown kind.
        FormatError: The compressed data are damaged.

    Example:
        >>> b"".join(content_of("examples/iris/iris.ctf"))[:10]
        b'|species 1'
    """
    stored = open_stored(path, remote)
    try:
        packing = packing_of(stored)
        if packing is None:
            for begin in range(0, stored.size, size):
                yield stored.read(begin, size)
        elif packing in _OPENERS:
            yield from _unpacked(stored, packing, size)
        else:
            yield from compressed.pieces_of(stored, cast(Compression, packing), size)
    finally:
        stored.close()


def packing_of(stored: TextInput) -> Packing | None:
    """Return the compression of a file; None: it is not compressed."""
    head = stored.read(0, _MAGIC_SIZE)
    return compression_of(head) or next((name for magic, name in MAGIC.items() if head.startswith(magic)), None)


def _unpacked(stored: TextInput, packing: Packing, size: int) -> Generator[bytes]:
    file = _OPENERS[packing](io.BufferedReader(_Stored(stored), _BUFFER))
    try:
        while piece := file.read(size):
            yield piece
    except (EOFError, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
            raise  # only bz2 raises a bare `OSError` without a number, for damaged data
        stored.require_unchanged()
        raise FormatError(
            f"the {packing} data are damaged: {error}; make the file again, or test it with the tool that made it",
            path=stored.path,
        ) from None


class _Stored(io.RawIOBase):
    """The bytes of a file as it is stored, as a Python file object."""

    def __init__(self, stored: TextInput) -> None:
        self._stored, self._position = stored, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._stored.read_into(np.frombuffer(buffer, np.uint8), self._position)
        self._position += count
        return count

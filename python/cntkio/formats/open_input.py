"""Choice of the class that reads the bytes of a text, and the content of compressed files of any format.

A text that is compressed with gzip or zstd is read where it is, in any order (`compressed`). Everything else is
unpacked once, from the beginning to the end. The first bytes, not the name of a file, show its compression.
"""

from __future__ import annotations

import bz2
import io
import lzma
import os
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np

from cntkio.errors import FormatError
from cntkio.formats import compressed
from cntkio.formats.block_cache import cache_folder
from cntkio.formats.compressed import ENDINGS, first_text, open_compressed
from cntkio.formats.file_lists import sizes_of
from cntkio.formats.names import as_url, is_remote
from cntkio.formats.remote import Remote, default_remote
from cntkio.formats.remote_input import RemoteInput
from cntkio.formats.text_input import Compression, InputFile, TextInput, compression_of, open_to_read

_MAGIC_SIZE = 4


def open_input(
    path: str, remote: Remote | None = None, *, cache_index: bool | str = False, guide: object = None
) -> TextInput:
    """Open a text where it is. Its first bytes, not its name, decide whether it is compressed.

    Args:
        path: A path, or the URL of an object in a remote store.
        remote: How to read a remote store.
        cache_index: Whether to keep the access points of a compressed file in a cache, as for `CTFDeserializer`.
        guide: `Storage.guide` of the same text when it was last open.

    Raises:
        OSError: The text cannot be read, as for `open_to_read`.
        ConfigError: The remote store is of an unknown kind.
        FormatError: The text is compressed, and the data are damaged.

    Example:
        >>> open_input("examples/iris/iris.ctf").read(0, 10)
        b'|species 1'
    """
    stored = open_stored(path, remote)
    try:
        compression = compression_of(stored.read(0, _MAGIC_SIZE))
        if compression is None:
            return stored
        text = open_compressed(stored, compression, cache_index, guide)
        remote = remote or default_remote()
        if remote.cache is not None:
            text.keep_in(cache_folder(str(remote.cache), remote.cache_limit))
        return text
    except BaseException:
        stored.close()
        raise


def open_stored(path: str, remote: Remote | None = None) -> TextInput:
    """Open a file as it is stored, compressed or not. Arguments and exceptions as for `open_input`."""
    return RemoteInput(as_url(path), remote) if is_remote(path, remote) else InputFile(path)


def presumed_sizes(paths: Sequence[str], remote: Remote | None = None) -> list[int]:
    """Return the size of each text in bytes, without opening any; 0 if it is in a store, or has a compressed name."""
    return [
        0 if path.lower().endswith(ENDINGS) else size for path, size in zip(paths, sizes_of(paths, remote), strict=True)
    ]


def text_sizes(paths: Sequence[str], remote: Remote | None = None) -> list[int]:
    """Return the size of each text in bytes; 0 if only opening would show it: the text is compressed, or in a store."""
    return [
        0 if not size or is_compressed(path) else size
        for path, size in zip(paths, sizes_of(paths, remote), strict=True)
    ]


def is_compressed(path: str) -> bool:
    """Return whether a local file is compressed with gzip or zstd; False if it cannot be read."""
    try:
        descriptor = open_to_read(path)
    except OSError:  # `open_input` will say why
        return False
    try:
        return compression_of(os.read(descriptor, _MAGIC_SIZE)) is not None
    finally:
        os.close(descriptor)


class Beginning(NamedTuple):
    """The first bytes of a file.

    Attributes:
        head: The first bytes of the text, decompressed if necessary.
        size: Size of the file in bytes.
        compression: Its compression; None: it is not compressed.
    """

    head: bytes
    size: int
    compression: str | None

    @classmethod
    def of(cls, stored: TextInput, size: int) -> Beginning:
        """Return up to `size` bytes from the beginning of a file as it is stored."""
        head = stored.read(0, size)
        compression: Compression | None = compression_of(head)
        if compression is not None:
            head = first_text(stored, compression, size)
        return cls(head, stored.size, compression)


Packing = Literal["gzip", "zstd", "bzip2", "xz"]
PACKINGS: tuple[str, ...] = get_args(Packing)
PACKED_MAGIC: dict[bytes, Packing] = {b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}
"""First bytes of the compressions that have to be unpacked."""
PACKED_ENDINGS = (*ENDINGS, ".bz2", ".xz")
"""Usual extensions of compressed files."""

_PACKED_MAGIC_SIZE = 6
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
    head = stored.read(0, _PACKED_MAGIC_SIZE)
    return compression_of(head) or next((name for magic, name in PACKED_MAGIC.items() if head.startswith(magic)), None)


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

"""Opening of texts and other files, wherever and however they are stored.

A text that is compressed with gzip or zstd is read where it is, in any order. Everything else is unpacked once, from
the beginning to the end. The first bytes, not the name of a file, show its compression.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import NamedTuple

from cntkio.formats.block_cache import cache_folder
from cntkio.formats.compressed import ENDINGS, first_text, open_compressed, packing_of, text_pieces, unpacked
from cntkio.formats.file_lists import lister_of
from cntkio.formats.names import as_url, is_remote
from cntkio.formats.remote import Remote, default_remote
from cntkio.formats.remote_input import RemoteInput
from cntkio.formats.stores import PART
from cntkio.formats.text_input import LOADS_AT_ONCE, InputFile, TextInput, compression_in, open_to_read


def loads_at_once(text: TextInput, chunk_size: int) -> int:
    """Return how many chunks to load at once, so that all requests are under way while other chunks are parsed."""
    return LOADS_AT_ONCE + 2 * text.storage.num_requests // max(min(chunk_size, text.size) // PART, 1)


_MAGIC_SIZE = 4


def open_input(
    path: str, remote: Remote | None = None, *, cache_index: bool | str = False, guide: object = None
) -> TextInput:
    """Open a text where it is. Its first bytes, not its name, decide whether it is compressed.

    Args:
        path: A path, or the URL of an object in a remote store.
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
        compression = compression_in(stored.read(0, _MAGIC_SIZE))
        if compression is None:
            return stored
        text = open_compressed(stored, compression, cache_index, guide)
        remote = remote or default_remote()
        # Also for a local file: the cache keeps the text of frames that are too large to be read in any order.
        if remote.cache is not None:
            text.keep_in(cache_folder(remote))
        return text
    except BaseException:
        stored.close()
        raise


def open_stored(path: str, remote: Remote | None = None) -> TextInput:
    """Open a file as it is stored, compressed or not. Arguments and exceptions as for `open_input`."""
    return RemoteInput(as_url(path), remote) if is_remote(path, remote) else InputFile(path)


def presumed_sizes(paths: Sequence[str], remote: Remote | None) -> list[int]:
    """Return the size of each text in bytes, without opening any; 0 if it is in a store, or has a compressed name."""
    return [0 if path.lower().endswith(ENDINGS) else lister_of(path, remote).size(path) for path in paths]


def text_sizes(paths: Sequence[str]) -> list[int]:
    """Return the size of each text in bytes; 0 if only opening would show it: the text is compressed, or in a store."""
    sizes = [lister_of(path).size(path) for path in paths]
    return [0 if not size or is_compressed(path) else size for path, size in zip(paths, sizes, strict=True)]


def is_compressed(path: str) -> bool:
    """Return whether a local file is compressed with gzip or zstd; False if it cannot be read."""
    try:
        descriptor = open_to_read(path)
    except OSError:  # `open_input` will say why
        return False
    with os.fdopen(descriptor, "rb") as file:
        return compression_in(file.read(_MAGIC_SIZE)) is not None


class Beginning(NamedTuple):
    """The first bytes of a file.

    Attributes:
        head: The first bytes of the text, decompressed if necessary.
        size: Size of the file in bytes, as it is stored.
        compression: None: it is not compressed.
    """

    head: bytes
    size: int
    compression: str | None

    @classmethod
    def of(cls, stored: TextInput, size: int) -> Beginning:
        """Return up to `size` bytes from the beginning of a file as it is stored."""
        head = stored.read(0, size)
        compression = compression_in(head)
        if compression is not None:
            head = first_text(stored, compression, size)
        return cls(head, stored.size, compression)


def content_of(path: str, remote: Remote | None = None, *, size: int = 1 << 20) -> Generator[bytes]:
    """Yield the content of a file in pieces, unpacked if it is compressed with gzip, zstd, bzip2 or xz.

    Args:
        path: A path, or the URL of an object in a remote store.
        size: Bytes of the largest piece.

    Raises:
        OSError: The file cannot be read.
        ConfigError: The remote store is of an unknown kind.
        FormatError: The compressed data are damaged.

    Example:
        >>> b"".join(content_of("examples/iris/iris.ctf"))[:10]
        b'|species 1'
    """
    with closing(open_stored(path, remote)) as stored:
        packing = packing_of(stored)
        if packing is None:
            for begin in range(0, stored.size, size):
                yield stored.read(begin, size)
        elif packing not in ("gzip", "zstd"):
            yield from unpacked(stored, packing, size)
        else:
            # The core decompresses these, in one pass and without access points.
            yield from text_pieces(stored, packing, size)

"""The single place that decides how the bytes of a text are read."""

from __future__ import annotations

from typing import NamedTuple

from cntkio.formats.compressed import Compression, compression_of, first_text, open_compressed
from cntkio.formats.input_file import InputFile
from cntkio.formats.remote import Remote, as_url, is_remote
from cntkio.formats.remote_input import RemoteInput
from cntkio.formats.text_input import TextInput

_MAGIC_SIZE = 4


def open_input(
    path: str, remote: Remote | None = None, *, cache_index: bool | str = False, guide: object = None
) -> TextInput:
    """Open a text where it is. The first bytes decide whether it is compressed, whatever its name is.

    Args:
        path: A path, or the URL of an object in a remote store.
        remote: How to read a remote store.
        cache_index: Whether to keep what a pass over a compressed file finds, as for `CTFDeserializer`.
        guide: `TextInput.guide` of the same text, which was open before.

    Raises:
        OSError: It cannot be read, as for `open_to_read`.
        ConfigError: The remote store is not known.
        FormatError: It is compressed, and damaged.

    Example:
        >>> open_input("examples/iris/iris.ctf").read(0, 10)
        b'|species 1'
    """
    stored = open_stored(path, remote)
    try:
        compression = compression_of(stored.read(0, _MAGIC_SIZE))
        return stored if compression is None else open_compressed(stored, compression, cache_index, guide)
    except BaseException:
        stored.close()
        raise


def open_stored(path: str, remote: Remote | None = None) -> TextInput:
    """Open a file as it is stored, compressed or not. Arguments and exceptions as for `open_input`."""
    return RemoteInput(as_url(path), remote) if is_remote(path, remote) else InputFile(path)


class Beginning(NamedTuple):
    """The first bytes of a file.

    Attributes:
        head: The first bytes of the text, decompressed if need be.
        size: Size of the file.
        compression: How it is compressed; None: it is not.
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

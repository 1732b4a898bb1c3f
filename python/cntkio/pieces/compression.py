"""Text that is compressed while it is written: gzip, or zstd in frames with a seek table.

Each frame of zstd holds 4 MB of text, and the table at the end lists the offsets of the frames (the seekable format of
zstd), so that a reader can begin anywhere. Every tool that unpacks zstd unpacks the file.
"""

from __future__ import annotations

import contextlib
import gzip
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, Protocol, get_args

from cntkio import _core
from cntkio.errors import ConfigError
from cntkio.formats.output_file import AnyPath

Compression = Literal["none", "gzip", "zstd"]
FRAME = 4 << 20
"""Bytes of text in a frame of zstd."""
COMPRESSED: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}
"""Extensions of names that ask for compression."""
_SKIPPABLE_FRAME, _SEEK_TABLE = 0x184D2A5E, 0x8F92EAB1
_LEVEL_OF_GZIP, _LEVEL_OF_ZSTD = 6, 3


class Sink(Protocol):
    """An object that accepts bytes."""

    def write(self, data: memoryview, /) -> object:
        """Write some bytes."""


def compression_of(path: AnyPath, compress: Compression | None) -> Compression:
    """Return the compression of a file to write; None: the compression of its name (`.gz`, `.zst`).

    Raises:
        ConfigError: There is no such compression.

    Example:
        >>> compression_of("a.ctf.zst", None), compression_of("a.ctf", None)
        ('zstd', 'none')
    """
    if compress is None:
        return COMPRESSED.get(Path(path).suffix.lower(), "none")
    if compress not in get_args(Compression):
        raise ConfigError(f"compress is {compress!r}; expected 'none', 'gzip' or 'zstd'", key="compress")
    return compress


@contextlib.contextmanager
def compressed(file: BinaryIO, compression: Compression) -> Iterator[Sink]:
    """Return a sink that compresses bytes, and writes them to a file. The end is written if no exception occurs."""
    if compression == "gzip":
        packed = gzip.GzipFile("", "wb", _LEVEL_OF_GZIP, file, mtime=0)
        yield packed
        packed.close()
    elif compression == "zstd":
        frames = _Frames(file)
        yield frames
        frames.finish()
    else:
        yield file


class _Frames:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._text = bytearray()
        self._sizes: list[tuple[int, int]] = []

    def write(self, data: memoryview, /) -> None:
        self._text += data
        begin = 0
        while len(self._text) - begin >= FRAME:
            self._frame(bytes(self._text[begin : begin + FRAME]))
            begin += FRAME
        del self._text[:begin]

    def _frame(self, text: bytes) -> None:
        packed = _core.zstd_frame(text, _LEVEL_OF_ZSTD)
        self._file.write(packed)
        self._sizes.append((len(packed), len(text)))

    def finish(self) -> None:
        if self._text:
            self._frame(bytes(self._text))
        entries = b"".join(struct.pack("<II", *sizes) for sizes in self._sizes)
        table = entries + struct.pack("<IBI", len(self._sizes), 0, _SEEK_TABLE)
        self._file.write(struct.pack("<II", _SKIPPABLE_FRAME, len(table)) + table)

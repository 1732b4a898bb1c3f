"""Input and output of the script converters: blocks of whole lines, from files that may be packed."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from cntkio._core import Dictionary
from cntkio.convert import tuning
from cntkio.convert.compression import Compression, Sink, compressed, compression_of
from cntkio.convert.pieces import AnyPath, Progress
from cntkio.errors import FormatError
from cntkio.formats.input_file import all_bytes, open_to_read
from cntkio.formats.output_file import written_whole

_UNPACKED_BY: dict[str, Callable[[AnyPath], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


class Inputs:
    """Files that are read one after the other.

    Args:
        sources: Files, unpacked if they end in ``.gz``, ``.bz2`` or ``.xz``; or an open file of bytes.
        progress: Function that is called with the number of bytes done, and their total.
    """

    def __init__(self, sources: AnyPath | Sequence[AnyPath] | BinaryIO, progress: Progress | None) -> None:
        self._paths: list[AnyPath] = []
        self._open_file: BinaryIO | None = None
        if isinstance(sources, str | os.PathLike):
            self._paths = [sources]
        elif isinstance(sources, Sequence):
            self._paths = list(sources)
        else:
            self._open_file = sources
        self._progress = progress
        self._done = 0
        self._total = 0 if progress is None else sum(map(_known_size, self._paths))

    def files(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield each file: its name for messages, and its blocks of whole lines.

        Raises:
            FormatError: When blocks are read: a line is longer than `tuning.LONGEST_LINE`, or a packed file is damaged.
            OSError: A file cannot be read.
        """
        if self._open_file is not None:
            yield "standard input", self._blocks("standard input", self._open_file)
        for path in self._paths:
            with _open(path) as file:
                yield os.fspath(path), self._blocks(os.fspath(path), file)

    def _blocks(self, name: str, file: BinaryIO) -> Iterator[bytes]:
        rest: list[bytes] = []  # of a line whose end is not read yet
        size = 0
        while block := _read(name, file):
            end = block.rfind(b"\n") + 1
            if end:
                lines = b"".join([*rest, block[:end]])
                yield lines
                self._count(len(lines))
                rest, size = [], 0
            rest.append(block[end:])
            size += len(rest[-1])
            if size > tuning.LONGEST_LINE:
                raise FormatError(
                    f"a line of more than {tuning.LONGEST_LINE:,} bytes, which is the limit; is this a text?", path=name
                )
        if size:
            yield b"".join(rest)
            self._count(size)

    def _count(self, num_bytes: int) -> None:
        self._done += num_bytes
        if self._progress is not None:
            self._progress(self._done, self._total)


def _read(name: str, file: BinaryIO) -> bytes:
    try:
        return file.read(tuning.BLOCK)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise FormatError(f"the packed file is damaged: {error}", path=name) from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise FormatError(f"the packed file is damaged: {error}", path=name) from None  # of bz2


def _open(path: AnyPath) -> BinaryIO:
    unpacked_by = _UNPACKED_BY.get(Path(path).suffix)
    if unpacked_by is None:
        return open(open_to_read(path), "rb")
    opened: BinaryIO = unpacked_by(path)
    return opened


def _known_size(path: AnyPath) -> int:
    """Return the number of bytes that will be read; 0 if it is not known."""
    is_known = Path(path).is_file() and Path(path).suffix not in _UNPACKED_BY
    return Path(path).stat().st_size if is_known else 0


@contextlib.contextmanager
def output(target: AnyPath | BinaryIO, compress: Compression | None) -> Iterator[Sink]:
    """Open a file that appears under its name when it is whole, or flush an open file at the end.

    Args:
        target: The file.
        compress: As for `write_ctf`; None for an open file: it is not compressed.

    Raises:
        ConfigError: There is no such compression.
        OSError: The file cannot be written.
    """
    if isinstance(target, str | os.PathLike):
        compression = compression_of(target, compress)
        with written_whole(target) as file, compressed(file, compression) as sink:
            yield sink
    else:
        with compressed(target, compression_of("", compress)) as sink:
            yield sink
        target.flush()


def read_dictionary(path: AnyPath) -> Dictionary:
    """Read a file with one token per line.

    Raises:
        FormatError: The file is not UTF-8.
        OSError: The file cannot be read.
    """
    try:
        return Dictionary(all_bytes(path).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise FormatError("bytes that are not UTF-8", path=path, byte=error.start) from None

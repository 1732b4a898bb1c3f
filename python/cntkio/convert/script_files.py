"""Input and output of the script converters: blocks of whole lines, from files that may be packed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from cntkio._core import Dictionary
from cntkio.convert import tuning
from cntkio.convert.compression import Compression, Sink, compressed, compression_of
from cntkio.convert.pieces import AnyPath, Progress
from cntkio.errors import FormatError
from cntkio.formats.open_input import open_stored
from cntkio.formats.output_file import written_whole
from cntkio.formats.remote import as_url
from cntkio.formats.unpacking import content_of, packing_of


class Inputs:
    """Files that are read one after the other.

    Args:
        sources: Files, unpacked if they are compressed; or an open file of bytes.
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
            file = self._open_file
            yield "standard input", self._blocks("standard input", iter(lambda: file.read(tuning.BLOCK), b""))
        for path in self._paths:
            name = as_url(os.fspath(path))
            with contextlib.closing(content_of(name, size=tuning.BLOCK)) as pieces:
                yield name, self._blocks(name, pieces)

    def _blocks(self, name: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
        rest: list[bytes] = []  # of a line whose end is not read yet
        size = 0
        for block in pieces:
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


def _known_size(path: AnyPath) -> int:
    """Return the number of bytes that will be read; 0 if it is not known."""
    with contextlib.closing(open_stored(os.fspath(path))) as file:
        return file.size if packing_of(file) is None else 0


@contextlib.contextmanager
def output(target: AnyPath | BinaryIO, compress: Compression | None) -> Iterator[Sink]:
    """Open a file that appears under its name when it is complete, or flush an open file at the end.

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
        return Dictionary(b"".join(content_of(as_url(os.fspath(path)))).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise FormatError("bytes that are not UTF-8", path=path, byte=error.start) from None

"""Files that are read by position, and the line and column of an error in a text.

The error about a missing file suggests the nearest name.
"""

from __future__ import annotations

import bisect
import errno
import hashlib
import os
import stat
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio._threads import num_threads
from cntkio.errors import CorpusError, FormatError
from cntkio.formats.names import is_remote, shown
from cntkio.formats.text_input import LOADS_AT_ONCE, CoreText, ReadableText, Storage, Window
from cntkio.hints import near_name

_BLOCK = 1 << 20
# An interrupt (Ctrl-C) waits until the core has finished a window.
WINDOW = 1 << 30
_NUM_SAMPLES = 64
SAMPLE_SIZE = 4096
"""Bytes of each sample of a text's content."""
# Without O_BINARY, Windows converts line ends. Without O_NONBLOCK, opening a pipe would wait for its writer.
_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


def open_to_read(path: str | bytes | os.PathLike[str]) -> int:
    """Open a file and return its descriptor.

    Raises:
        FileNotFoundError: There is no such file; the message names the nearest file, or the folder that was searched.
        OSError: The file cannot be read.

    Example:
        >>> open_to_read("examples/iris/iris.cft")
        Traceback (most recent call last):
        FileNotFoundError: [Errno 2] No such file or directory; did you mean 'examples/iris/iris.ctf'?: ...
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    except PermissionError:
        # Windows does not open folders.
        if Path(os.fsdecode(path)).is_dir():
            raise IsADirectoryError(errno.EISDIR, "Is a folder; expected a file", os.fspath(path)) from None
        raise
    except FileNotFoundError as error:
        if is_remote(os.fsdecode(path)):
            advice = "only texts (CTF) are read in remote stores: copy the file to a local disk"
            raise OSError(errno.EINVAL, f"Is a URL; {advice}", shown(os.fsdecode(path))) from None
        hint = hint_on_missing(Path(os.fsdecode(path)))
        raise FileNotFoundError(error.errno, f"{error.strerror}{hint}", os.fspath(path)) from None
    except ValueError as error:  # a zero byte
        raise OSError(errno.EINVAL, f"Cannot be a path ({error})", os.fspath(path)) from None
    try:
        _require_regular(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(descriptor: int, path: str | bytes | os.PathLike[str]) -> None:
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a folder; expected a file", os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        kind = "pipe" if stat.S_ISFIFO(status.st_mode) else "device or a socket"
        raise OSError(errno.EINVAL, f"Is a {kind}; expected a file that can be read at any offset", os.fspath(path))
    if not status.st_size and os.read(descriptor, 1):
        raise OSError(
            errno.EINVAL, "Has no size, like the files in /proc; copy its content to a regular file", os.fspath(path)
        )


def in_utf8(path: str | bytes) -> str:
    """Return a path for messages of the compiled core, which accepts only UTF-8: other bytes are escaped.

    Example:
        >>> in_utf8(b"a\\xff.cbf")
        'a\\\\xff.cbf'
    """
    return os.fsencode(path).decode(errors="backslashreplace")


def system_number(descriptor: int) -> int:
    """Return the number by which the operating system, and so the compiled core, identifies an open file.

    On Windows, descriptors belong to Python's C library, and the system itself uses handles.
    """
    if sys.platform == "win32":
        import msvcrt

        return msvcrt.get_osfhandle(descriptor)
    return descriptor


def hint_on_missing(path: Path) -> str:
    """Return advice for a path that does not exist, as the end of a message."""
    if path.is_symlink():
        return f"; it is a link to {str(path.readlink())!r}, which does not exist"
    if str(path).startswith("~"):
        return f"; '~' is expanded by shells only: write {os.path.expanduser(path)!r}"  # noqa: PTH111 - may be unknown
    missing = path
    while not missing.parent.exists():
        missing = missing.parent
    try:
        names = [entry.name for entry in missing.parent.iterdir()]
        # Most names with the same ending mean other files, so the part before the ending must be similar.
        near = near_name(missing.name, [name for name in names if near_name(missing.stem, [Path(name).stem])])
    except OSError:
        near = None
    if near is not None:
        rest = path.parts[len(missing.parts) :]
        return f"; did you mean {str(missing.parent.joinpath(near, *rest))!r}?"
    start = "" if path.is_absolute() else f" from the folder {str(Path.cwd())!r}"
    folder = "" if missing == path else f": there is no {str(missing)!r}"
    return f"{start}{folder}"


def all_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the whole content of a file.

    Raises:
        OSError: The file cannot be read, as for `open_to_read`.
    """
    with open(open_to_read(path), "rb") as file:
        return file.read()


def changed_in_use(path: str, size: int, size_now: int) -> CorpusError:
    """Return the error about a file that has changed since it was opened."""
    now = f"{size_now} now" if size_now != size else "as now, but with another content or time"
    return CorpusError(f"{path}: changed while in use ({size} bytes when opened, {now}); open it again")


class InputFile:
    """A file that any thread reads by position; a `TextInput`. It is closed when nothing refers to it any more.

    Attributes:
        path: The file.
        number: The number by which the compiled core identifies it.
        size: Its size in bytes when it was opened.

    Raises:
        OSError: The file cannot be read, as for `open_to_read`.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.storage = Storage(os.path.abspath(path), Path(path))  # noqa: PTH100 - no links
        self._descriptor = open_to_read(path)
        self.close = weakref.finalize(self, os.close, self._descriptor)
        self.number = system_number(self._descriptor)
        status = os.fstat(self._descriptor)
        self.size = status.st_size
        self._time_ns = status.st_mtime_ns

    # The core reads the file itself, in small parts, and skips gaps.
    reach = sys.maxsize
    least_gap = None

    def facts(self, *, verify: bool = False) -> dict[str, Any]:
        """Return size, times of change and a checksum of samples of the content."""
        status = os.fstat(self._descriptor)
        found = {
            "size": status.st_size,
            "time_ns": status.st_mtime_ns,
            "change_time_ns": status.st_ctime_ns,
            "content": content_sum(self),
        }
        if verify:
            found["whole"] = _core.file_check_sum((self.number, status.st_size), num_threads())
        return found

    def loads_at_once(self, chunk_size: int) -> int:
        return LOADS_AT_ONCE

    @property
    def stamp(self) -> tuple[int, int]:
        """Size and time of the last change when the file was opened."""
        return self.size, self._time_ns

    @property
    def handle(self) -> tuple[int, int]:
        """Number and size, as the compiled core takes them."""
        return self.number, self.size

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file."""
        return _core.file_read(self.number, offset, size)

    def read_into(self, buffer: npt.NDArray[np.uint8], offset: int) -> int:
        """Fill a buffer, and return the number of bytes read."""
        return _core.file_read_into(self.number, offset, buffer)

    def source(self, begin: int, end: int) -> CoreText:
        return self.handle

    source_to_parse = source

    def windows(self, first: int) -> Iterator[Window]:
        for begin in range(first, self.size, WINDOW):
            yield Window(self, first, begin, min(begin + WINDOW, self.size))

    def require_unchanged(self) -> None:
        """Refuse a file that was changed since it was opened: its index no longer matches.

        Raises:
            CorpusError: The file was changed.
        """
        now = os.fstat(self._descriptor)
        if (now.st_size, now.st_mtime_ns) != (self.size, self._time_ns):
            raise changed_in_use(self.path, self.size, now.st_size)


def has_byte(text: ReadableText, byte: bytes, first: int = 0) -> bool:
    """Return whether a text contains a byte, from an offset on. All threads search."""
    window = min(WINDOW, text.reach)
    for begin in range(first, text.size, window):
        end = min(begin + window, text.size)
        if _core.text_has_byte(text.source(begin, end), begin, end, byte[0], num_threads()):
            return True
    return False


def sample_offsets(size: int) -> list[int]:
    """Return the offsets of the samples of a text that `content_sum` covers."""
    last = max(size - SAMPLE_SIZE, 0)
    return [last * number // (_NUM_SAMPLES - 1) for number in range(_NUM_SAMPLES)]


def content_sum(text: ReadableText) -> str:
    """Return a checksum of samples of a text's content."""
    offsets = sample_offsets(text.size)
    if text.size <= _NUM_SAMPLES * SAMPLE_SIZE:  # a single read takes less time
        whole = text.read(0, text.size)
        samples = [whole[offset : offset + SAMPLE_SIZE] for offset in offsets]
    else:
        samples = [text.read(offset, SAMPLE_SIZE) for offset in offsets]
    return hashlib.blake2b(b"".join(samples), digest_size=16).hexdigest()


class _KnownLine(NamedTuple):
    offset: int
    number: int


class Locator:
    """Finds the line and column of a byte in a text file. It counts line ends only when an error needs them."""

    def __init__(self, file: ReadableText) -> None:
        self._file = file
        self._known = [_KnownLine(0, 1)]

    def locate(self, byte: int) -> dict[str, Any]:
        """Return the place of a byte as keyword arguments of `FormatError`."""
        index = bisect.bisect_right(self._known, byte, key=lambda known: known.offset) - 1
        line = self._known[index]
        offset = line.offset
        while offset < byte:
            block = self._file.read(offset, min(byte - offset, _BLOCK))
            if not block:
                break
            num_ends = block.count(b"\n")
            if num_ends:
                line = _KnownLine(offset + block.rfind(b"\n") + 1, line.number + num_ends)
            offset += len(block)
        if line != self._known[index]:
            self._known.insert(index + 1, line)
        return {"path": self._file.path, "byte": byte, "line": line.number, "column": byte - line.offset + 1}

    def lines_of(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the line of the byte at each offset, from 1. All threads count."""
        order = np.argsort(offsets)
        ascending = offsets[order].astype(np.uint64)
        lines = np.empty(len(offsets), np.int64)
        before, last = 1, int(ascending[-1]) if len(offsets) else -1
        window = min(WINDOW, self._file.reach)
        for begin in range(0, last + 1, window):
            end = min(begin + window, last)
            first, stop = np.searchsorted(ascending, np.array([begin, begin + window], np.uint64))
            bounds = np.append(ascending[first:stop], np.uint64(end))
            counts = _core.text_line_ends(self._file.source(begin, end), begin, bounds, num_threads())
            lines[order[first:stop]] = counts[:-1].astype(np.int64) + before
            before += int(counts[-1])
        return lines

    def error(self, byte: int, what: str, **details: Any) -> FormatError:
        """Return the error about a byte; `details` are further keyword arguments of `FormatError`."""
        return FormatError(what, **self.locate(byte), **details)

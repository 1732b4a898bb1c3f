"""The contract for texts, whether they are in a local file, in a compressed file or in an object of a remote store.

::

    ReadableText     read, read_into      bytes, from any thread, in any order
    │                source               the same for the compiled core, which reads a local file by itself
    └─ TextInput     storage              where the text is stored, and whether the stored bytes are still the same

    a local file (InputFile)  ──┐
    an object (RemoteInput)   ──┴─ as it is, or under a CompressedText with its access points

All offsets and sizes count bytes of the text; if the file is compressed, of the decompressed text. So the index, the
chunks, the order and the places of errors are the same, however a text is stored.
"""

from __future__ import annotations

import bisect
import codecs
import contextlib
import dataclasses
import errno
import functools
import hashlib
import os
import re
import stat
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._threads import Workers, num_threads
from cntkio.arguments import caller, either, near_names
from cntkio.errors import CorpusError, FormatError
from cntkio.storage.names import as_url, hint_on_name, is_remote, shown
from cntkio.storage.progress import announced, passed

if sys.platform == "win32":
    from msvcrt import get_osfhandle as _number_of
else:
    from operator import index as _number_of

system_number: Callable[[int], int] = _number_of
"""The number by which the operating system, and so the compiled core, identifies an open file. On Windows, descriptors
belong to Python's C library, and the system itself uses handles."""
Bytes: TypeAlias = npt.NDArray[np.uint8]
CoreText: TypeAlias = tuple[int, int] | tuple[Bytes, int]
"""A text as the compiled core takes it: the number and the size of an open file, or bytes in memory and the offset of
their first byte."""
TextCompression = Literal["gzip", "zstd"]
MEND_DATA = "make the file again, or test it with the tool that made it"
LOADS_AT_ONCE = 2
"""Chunks of a corpus of local files that are loaded at the same time: one is parsed, and the next one is read."""
BLOCK = 4 << 20
"""Bytes of text that a thread works on at a time: few enough to share the work, many enough to be worth a job."""
WINDOW = 32 << 20
"""Bytes of a window of a text that the core cannot read by itself."""
_MAGIC: dict[TextCompression, re.Pattern[bytes]] = {
    "gzip": re.compile(rb"\x1f\x8b\x08"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),  # a frame, or a skippable frame
}
# Most lines are shorter, so their beginnings fit before the next window, which then need not be copied.
_ROOM = 64 << 10
_LONGEST_LINE = 2**32 - 1
# Enough bytes for the rest of most lines.
_REST_OF_LINE = 1 << 14
_T = TypeVar("_T")


class PackedText(NamedTuple):
    """A compressed text as the parser takes it.

    Attributes:
        texts: The offset of each access point in the text and, last, the end of the text.
        places: The place of each access point in the compressed data and, last, their end.
        window_bounds: First byte of the window of each access point and, last, the number of bytes.
        windows: The windows: the text before each access point that it needs.
        decoders: Decoders whose memory is used again.
    """

    compression: TextCompression
    source: CoreText
    texts: npt.NDArray[np.uint64]
    places: npt.NDArray[np.uint64]
    window_bounds: npt.NDArray[np.uint64]
    windows: npt.NDArray[np.uint8]
    decoders: _core.Decoders


class ReadableText(Protocol):
    """A text, or a part of a text, that any thread reads by position."""

    @property
    def path(self) -> str:
        """Name for messages: the path, or the URL."""

    @property
    def size(self) -> int:
        """Offset of the end."""

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end."""

    def read_into(self, buffer: Bytes, offset: int) -> int:
        """Fill a buffer, and return the number of bytes read; fewer than requested only at the end."""

    def source(self, begin: int, end: int) -> CoreText:
        """Return the source from which the core reads the bytes from `begin` up to `end`."""

    @property
    def reach(self) -> int:
        """Most bytes to request from `source` at once, to bound memory. Chunks of any size are requested whole."""


class TextWindow(NamedTuple):
    """A part of a text for the pass that makes the index: the lines that begin from `begin` up to `end`.

    Attributes:
        first: Offset in `text` of a line that begins at `begin` or before.
    """

    text: ReadableText
    first: int
    begin: int
    end: int


class ListedText(NamedTuple):
    """A text of a store in a manifest; see `cntkio.storage.manifest`.

    Attributes:
        key: A checksum of its name.
        size: Its size in bytes, as it is stored.
        version: A text that changes when its content does.
        head: Its first bytes, which show its kind and its compression.
    """

    key: str
    size: int
    version: str
    head: bytes


class Companions(Protocol):
    """The objects of a store whose names begin with the name of a text, such as its index."""

    def listing(self) -> ListedText:
        """Return the entry of the text in a manifest."""

    def read(self, ending: str) -> bytes | None:
        """Return the content of the object whose name has this ending; None: it cannot be read."""

    def write(self, ending: str, content: bytes) -> str:
        """Write the object whose name has this ending, and return its name. `OSError`: the store does not accept it."""

    def known(self, request: str) -> bytes | None:
        """Return the bytes of the text itself that a manifest has for a request of the opening; None: it has none."""

    def note(self, request: str, content: Bytes | bytes) -> None:
        """Keep the answer to a request of the opening, if a manifest is being made."""


class Storage(NamedTuple):
    """Facts about the storage of a text.

    Attributes:
        identity: The text for caches: the absolute path of a local file; see `cntkio.storage.remote` for others.
        local_path: The file, whose index cache may be next to it; None: it is not in the local file system.
        companions: The objects next to the text, which may contain its index; None: the text is a local file.
        compression: The kind of compression; None: the text is stored as it is.
        only_in_order: The part of the text, such as "a frame with 9 bytes of text", that requires one order; None: any
            order.
        guide: Value with which `open_input` opens the text again without another pass over it; None: it needs none.
        points_cache: The index cache with the access points of a compressed text; None: there is none.
        stamp: Facts about the stored bytes when they were opened: quick to get, and different after a change.
        least_gap: Least bytes of a gap between two wanted ranges that is worth a `read_into` for each range. None:
            `source` is best, because the core skips gaps by itself, or because a cache keeps all bytes.
        part_in_bytes: Least bytes of a part that is worth reading alone, because fewer bytes take about as long.
        num_requests: Number of requests to a store to keep under way; 0: reading waits for no network.
        packed: Returns the compressed data of a part of the text, from `begin` up to `end`, from which the parser reads
            it; None: it reads from `source`.
        require_unchanged: Raises a `CorpusError` if the bytes were changed since they were opened: their index no
            longer matches.
        facts: Returns facts that identify the stored bytes, as they are now: size and times, or an ETag; JSON-able.
            An index cache is used only if its facts equal these facts. ``time_ns`` and ``change_time_ns``, if present,
            are the times of the last change. With True, a checksum of all bytes is added where other facts are less
            reliable.
    """

    identity: str
    local_path: Path | None = None
    companions: Companions | None = None
    compression: TextCompression | None = None
    only_in_order: str | None = None
    guide: object = None
    points_cache: Path | None = None
    stamp: object = None
    least_gap: int | None = None
    part_in_bytes: int = 64 << 10
    num_requests: int = 0
    packed: Callable[[int, int], PackedText] | None = None
    require_unchanged: Callable[[], None] = lambda: None
    facts: Callable[[bool], dict[str, Any]] = lambda verify: {}


class TextInput(ReadableText, Protocol):
    """An opened text."""

    def close(self) -> object:
        """Close files and release memory. Nothing can be read afterwards."""

    @property
    def storage(self) -> Storage:
        """Facts about the storage of the text."""


def compression_in(head: bytes) -> TextCompression | None:
    """Return the compression of a file with these first bytes; None: it is not compressed.

    Example:
        >>> compression_in(b"\\x1f\\x8b\\x08\\0"), compression_in(b"|x 1")
        ('gzip', None)
    """
    return next((name for name, magic in _MAGIC.items() if magic.match(head)), None)


@contextlib.contextmanager
def explained(text: TextInput) -> Iterator[None]:
    """Explain errors of reads: a change of the file (`CorpusError`) explains more than damaged data (`FormatError`)."""
    try:
        yield
    except (OSError, EOFError, FormatError, ValueError):  # ValueError: the core met places outside the text
        text.storage.require_unchanged()
        raise
    except _core.DamagedDataError as error:
        raise_damage(text, text.storage.compression, error.args)


def raise_damage(text: TextInput, compression: str | None, fault: tuple[int, int, str]) -> NoReturn:
    """Raise the error about damaged data. `fault`: offset in the compressed file, offset in the text, what is wrong."""
    text.storage.require_unchanged()
    packed, offset, what = fault
    message = f"the {compression} data are damaged near byte {packed} of the compressed file: {what}; {MEND_DATA}"
    raise FormatError(message, path=text.path, byte=offset) from None


def filled(read_into: Callable[[Bytes, int], object], begin: int, end: int) -> Bytes:
    """Return the bytes from `begin` up to `end`, read by a function that fills a buffer from an offset on."""
    buffer = np.empty(end - begin, np.uint8)
    read_into(buffer, begin)
    return buffer


class TextInMemory:
    """The bytes of a text from the offset `begin` on, in memory. `path` is the name for messages."""

    reach = sys.maxsize

    def __init__(self, path: str, content: Bytes, begin: int = 0) -> None:
        self.path = path
        self.size = begin + len(content)
        self._content, self._begin = content, begin

    def _part(self, offset: int, size: int) -> Bytes:
        offset -= self._begin
        return self._content[offset : offset + size]

    def read(self, offset: int, size: int) -> bytes:
        return self._part(offset, size).tobytes()

    def read_into(self, buffer: Bytes, offset: int) -> int:
        part = self._part(offset, len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def source(self, begin: int, end: int) -> CoreText:
        return self._part(begin, end - begin), begin


def windows_of(text: ReadableText, first: int, last: int | None = None) -> Iterator[TextWindow]:
    """Yield windows of a text, in order and without gaps, from the line at an offset to the line at `last`, or the end.

    Example:
        >>> text = TextInMemory("a.ctf", np.frombuffer(b"|x 1\\n|x 2\\n", np.uint8))
        >>> [(window.begin, window.end) for window in windows_of(text, 0, 5)]
        [(0, 5)]
    """
    last = text.size if last is None else last
    if text.reach < sys.maxsize:
        yield from windows_of_lines(text, first, text.reach, last)
        return
    for begin in range(first, last, WINDOW_OF_FILE):
        yield TextWindow(text, first, begin, min(begin + WINDOW_OF_FILE, last))


def line_from(text: ReadableText, offset: int) -> int:
    """Return where the first line begins that begins at an offset or after it; the end of the text if none does."""
    at = max(offset - 1, 0)
    while block := text.read(at, _ROOM):
        feed = block.find(b"\n")
        if feed >= 0:
            return at + feed + 1
        at += len(block)
    return text.size


def windows_of_lines(text: ReadableText, first: int, size: int, last: int | None = None) -> Iterator[TextWindow]:
    """Yield windows in memory, each of about `size` bytes and of whole lines; the next window is read ahead.

    Args:
        last: Offset of a line, where the windows end; None: at the end of the text.

    Raises:
        EOFError: The text ends before its size.
        FormatError: A line has 4 GiB or more.
    """

    def read(begin: int) -> Bytes:
        """Read up to `size` bytes, and leave room before them for the beginning of their first line."""
        wanted = min(size, end - begin)
        buffer = np.empty(_ROOM + wanted, np.uint8)
        if text.read_into(buffer[_ROOM:], begin) < wanted:
            raise EOFError(f"{text.path}: ends before byte {begin + wanted}; expected {text.size} bytes")
        return buffer

    begin, end = first, text.size if last is None else last
    rest: list[Bytes] = []  # the beginning of a line whose end has not been read yet
    num_left = 0  # its bytes
    with Workers(1, "cntkio-windows") as workers:
        job = workers.do(read, first)
        for offset in range(first, end, size):
            buffer = job.result()
            is_last = offset + size >= end
            if not is_last:
                job = workers.do(read, offset + size)
            # The last line of a text may have no line feed.
            num_whole = num_left + (len(buffer) - _ROOM if is_last else _end_of_lines(buffer[_ROOM:]))
            if num_whole == num_left and not is_last:
                # A long line continues. Its parts are joined once, when its end has been read.
                rest.append(buffer[_ROOM:])
                num_left += len(buffer) - _ROOM
                if num_left > _LONGEST_LINE:
                    raise long_line_error(text.path, begin)
                continue
            if num_left <= _ROOM:
                buffer = buffer[_ROOM - num_left :]
            else:
                later = buffer[_ROOM:]
                buffer = np.empty(num_left + len(later), np.uint8)
                buffer[num_left:] = later
                del later
            # Each part is freed at once, so that both together take the memory only once.
            while rest:
                part = rest.pop()
                buffer[num_left - len(part) : num_left] = part
                num_left -= len(part)
                del part
            yield TextWindow(TextInMemory(text.path, buffer[:num_whole], begin), begin, begin, begin + num_whole)
            begin += num_whole
            # A copy, because a view would keep the whole window in memory until the next window is complete.
            rest, num_left = [buffer[num_whole:].copy()], len(buffer) - num_whole
            del buffer


def long_line_error(path: str, byte: int) -> FormatError:
    """Return the error about a line whose offsets would not fit 32 bits."""
    return FormatError("a line of 4 GiB or more; expected a shorter line", path=path, byte=byte)


def _end_of_lines(content: Bytes) -> int:
    """Return the offset after the last line feed, or 0. Copies few bytes, because lines are short."""
    end, step = len(content), 4096
    while end > 0:
        begin = max(end - step, 0)
        position = content[begin:end].tobytes().rfind(b"\n")
        if position >= 0:
            return begin + position + 1
        end, step = begin, 2 * step
    return 0


def map_lines(file: ReadableText, first: int, work: Callable[[Bytes], _T], doing: str) -> list[tuple[int, _T]]:
    """Apply a function to blocks of whole lines, on all cores.

    Args:
        first: Offset of the first line.
        work: Called with the bytes of each block: the lines that begin in the block's share of a window. The result
            must not refer to them, because their buffer is used again.
        doing: Name of the pass, for progress bars.

    Returns:
        The offset of each block and its result, in order.
    """
    spare: list[Bytes] = []  # buffers are reused, because fresh memory is expensive

    def work_on(window: TextWindow, begin: int) -> tuple[int, _T] | None:
        try:
            # A test of the length would not help: another thread may take the last buffer after it.
            buffer = spare.pop()
        except IndexError:
            buffer = np.empty(0, np.uint8)
        end = min(begin + BLOCK, window.end)
        offset, lines, buffer = _read_lines(window.text, begin, end, buffer, is_first=begin == window.first)
        try:
            return (offset, work(lines)) if len(lines) else None
        finally:
            spare.append(buffer)

    results = []
    with announced(doing, file.size - first):
        if file.size - first <= BLOCK:
            results = [work_on(window, window.begin) for window in windows_of(file, first)]
            passed(file.size - first)
        else:
            with Workers(num_threads(), "cntkio-lines") as workers:
                for window in windows_of(file, first):
                    begins = range(window.begin, window.end, BLOCK)
                    for begin, job in [(at, workers.do(work_on, window, at)) for at in begins]:
                        results.append(job.result())
                        passed(min(BLOCK, window.end - begin))
    return [result for result in results if result is not None]


def _read_lines(file: ReadableText, begin: int, end: int, buffer: Bytes, *, is_first: bool) -> tuple[int, Bytes, Bytes]:
    """Read the lines that begin in a share of the text; return their offset, their bytes, and the buffer with them."""
    begin -= not is_first  # a line begins at `begin` if the byte before it is a line feed
    if len(buffer) < end - begin:
        buffer = np.empty(BLOCK + 1, np.uint8)  # the share, and the byte before it
    size = file.read_into(buffer[: end - begin], begin)
    start = 0 if is_first else _find_line_feed(buffer[:size]) + 1
    if start >= size or not (is_first or start):
        return begin, buffer[:0], buffer  # no line begins in this share
    step = _REST_OF_LINE
    while begin + size < file.size and buffer[size - 1] != ord("\n"):
        rest = file.read(begin + size, step)
        if not rest:
            break
        step = size  # so that a long line takes few reads
        # Without a line feed `find` returns -1, and the line continues after all of `rest`.
        rest = rest[: rest.find(b"\n") + 1 or len(rest)]
        if size + len(rest) > len(buffer):
            if size > _LONGEST_LINE:
                raise long_line_error(file.path, begin + start)
            grown = np.empty(2 * (size + len(rest)), np.uint8)
            grown[:size] = buffer[:size]
            buffer = grown
        buffer[size : size + len(rest)] = np.frombuffer(rest, np.uint8)
        size += len(rest)
    return begin + start, buffer[start:size], buffer


def _find_line_feed(buffer: Bytes) -> int:
    """Return the position of the first line feed, or -1. Copies few bytes, because most lines are short."""
    for begin in range(0, len(buffer), 4096):
        position = buffer[begin : begin + 4096].tobytes().find(b"\n")
        if position >= 0:
            return begin + position
    return -1


_BLOCK = 1 << 20
# An interrupt (Ctrl-C) waits until the core has finished a window.
WINDOW_OF_FILE = 1 << 30
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
            advice = "files of this kind are read only from a local disk: copy the file there"
            raise OSError(errno.EINVAL, f"Is a URL; {advice}", shown(as_url(os.fsdecode(path)))) from None
        hint = hint_on_missing(Path(os.fsdecode(path)))
        raise FileNotFoundError(error.errno, f"{error.strerror}{hint}", os.fspath(path)) from None
    except ValueError as error:  # a zero byte
        raise OSError(errno.EINVAL, f"Cannot be a path ({error})", os.fspath(path)) from None
    try:
        # Checked on the open descriptor: another file could take the name between a check of the path and the opening.
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "Is a folder; expected a file", os.fspath(path))
        if not stat.S_ISREG(status.st_mode):
            kind = "pipe" if stat.S_ISFIFO(status.st_mode) else "device or a socket"
            raise OSError(errno.EINVAL, f"Is a {kind}; expected a file that can be read at any offset", os.fspath(path))
        # An empty file has no size either, but delivers no byte.
        if not status.st_size and os.read(descriptor, 1):
            what = "Has no size, like the files in /proc; copy its content to a regular file"
            raise OSError(errno.EINVAL, what, os.fspath(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def in_utf8(path: str | bytes) -> str:
    """Return a path for messages of the compiled core, which accepts only UTF-8: other bytes are escaped.

    Example:
        >>> in_utf8(b"a\\xff.cbf")
        'a\\\\xff.cbf'
    """
    return os.fsencode(path).decode(errors="backslashreplace")


def hint_on_missing(path: Path) -> str:
    """Return advice for a path that does not exist, as the end of a message."""
    # The link itself exists, so the search for a near name would suggest the same name again.
    if path.is_symlink():
        return f"; it is a link to {str(path.readlink())!r}, which does not exist"
    if hint := hint_on_name(path):
        return hint
    missing = path
    while not missing.parent.exists():
        missing = missing.parent
    try:
        names = sorted(entry.name for entry in missing.parent.iterdir())
        # Most names with the same ending mean other files, so the part before the ending must be similar.
        similar = [name for name in names if near_names(missing.stem, [Path(name).stem])]
        near = near_names(missing.name, similar) or similar
    except OSError:
        near = []
    if near:
        rest = path.parts[len(missing.parts) :]
        return f"; did you mean {either([str(missing.parent.joinpath(name, *rest)) for name in near])}?"
    start = "" if path.is_absolute() else f" from the folder {str(Path.cwd())!r}"
    folder = "" if missing == path else f": there is no {str(missing)!r}"
    return f"{start}{folder}"


UTF_16_ADVICE = "expected bytes of ASCII or UTF-8; convert it: iconv -f UTF-16 -t UTF-8 {path}"
MARK_INSIDE = "a byte order mark in the middle of the text, as between two files that were joined; remove these bytes"


def unmarked(name: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield blocks of whole lines of a text, without a byte order mark. `name` is the name of the text in messages.

    Raises:
        FormatError: The text has a byte order mark after its beginning, or is in UTF-16.

    Example:
        >>> list(unmarked("words", [codecs.BOM_UTF8 + b"the\\n", b"cat"]))
        [b'the\\n', b'cat']
    """
    num_lines = 0
    for number, block in enumerate(blocks):
        if number == 0 and block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise FormatError(f"this is a text in UTF-16; {UTF_16_ADVICE.format(path=name)}", path=name, byte=0)
        text = block if number else block.removeprefix(codecs.BOM_UTF8)
        refuse_mark(name, text, num_lines)
        yield text
        num_lines += text.count(b"\n")


def refuse_mark(name: str, text: bytes, num_lines: int = 0) -> None:
    """Refuse a part of a text, after `num_lines` lines, that has a byte order mark: readers would take it for text."""
    if codecs.BOM_UTF8 in text:
        line = num_lines + text.count(b"\n", 0, text.index(codecs.BOM_UTF8)) + 1
        raise FormatError(MARK_INSIDE, path=name, line=line)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Stamp:
    """Size, times and inode of a local file. Two stamps of a file are equal if its content is the same.

    The size and the time of the last change of the content decide. `chmod`, a link or a new name change only the time
    of the last change of the properties, and some network file systems number a file anew each time they open it: only
    both together show another file with the same size and time. All times are in nanoseconds.
    """

    size: int
    modified: int
    properties_changed: int
    inode: int

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stamp):
            return NotImplemented
        is_one_file = self.inode == other.inode or self.properties_changed == other.properties_changed
        return is_one_file and (self.size, self.modified) == (other.size, other.modified)

    __hash__ = None  # type: ignore[assignment]  # equality is not transitive


class FileStamps:
    """The stamps of many local files when a corpus was opened, in 32 bytes for each file."""

    def __init__(self, paths: Sequence[bytes]) -> None:
        self._rows = _core.file_stamps(list(paths), num_threads()).reshape(-1, 4)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """The size of each file in bytes; -1: it could not be looked at."""
        return self._rows[:, 0]

    def __getitem__(self, file: int) -> Stamp:
        return Stamp(*self._rows[file].tolist())

    def require(self, file: int, path: str, now: Stamp) -> None:
        """Raise a `CorpusError` if a file has another stamp now, unless it could not be looked at."""
        then = self[file]
        if then.size >= 0 and then != now:
            raise changed_in_use(path, then.size, now.size)


def require_stamp(number: int, path: str, stamp: Stamp) -> None:
    """Raise a `CorpusError` if an open file, by its number in the system, has another stamp than when it was opened."""
    # The descriptor, not the path: if another file got the name, the open file still has the old content.
    now = Stamp(*_core.file_stamp(number))
    if now != stamp:
        raise changed_in_use(path, stamp.size, now.size)


def _facts_now(descriptor: int, number: int, verify: bool) -> dict[str, Any]:
    """Return size, times of change and a checksum of samples of the content of an open file."""
    status = os.fstat(descriptor)
    size = status.st_size
    found: dict[str, Any] = {"size": size, "time_ns": status.st_mtime_ns, "change_time_ns": status.st_ctime_ns}
    found["content"] = content_sum(size, functools.partial(_core.file_read, number))
    if verify:
        found["whole"] = _core.file_check_sum((number, size), num_threads())
    return found


def changed_in_use(path: str, size: int, size_now: int) -> CorpusError:
    """Return the error about a file that has changed since it was opened."""
    now = f"{size_now} now" if size_now != size else "as now, but with another content or time"
    return CorpusError(f"{path}: changed while in use ({size} bytes when opened, {now}); open it again")


class InputFile:
    """A file that any thread reads by position; a `TextInput`. It is closed when nothing refers to it any more.

    Attributes:
        descriptor: The number by which Python identifies it.
        number: The number by which the compiled core identifies it.
        size: Its size in bytes when it was opened.
        handle: Number and size, as the compiled core takes them.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        # Reads are by position, so that a descriptor of the same open file does not move in it.
        kept = caller().opened.get(path)
        self.descriptor = open_to_read(path) if kept is None else os.dup(kept)
        self.close = weakref.finalize(self, os.close, self.descriptor)
        self.number = system_number(self.descriptor)
        stamp = Stamp(*_core.file_stamp(self.number))
        self.size = stamp.size
        self.handle = self.number, self.size
        self.storage = Storage(
            os.path.abspath(path), Path(path), stamp=stamp,  # noqa: PTH100 - no links
            require_unchanged=functools.partial(require_stamp, self.number, path, stamp),
            facts=functools.partial(_facts_now, self.descriptor, self.number),
        )  # fmt: skip

    # The core reads the file itself, in small parts, and skips gaps.
    reach = sys.maxsize

    def read(self, offset: int, size: int) -> bytes:
        return _core.file_read(self.number, offset, size)

    def read_into(self, buffer: npt.NDArray[np.uint8], offset: int) -> int:
        return _core.file_read_into(self.number, offset, buffer)

    def source(self, begin: int, end: int) -> CoreText:
        return self.handle


def sample_offsets(size: int) -> list[int]:
    """Return the offsets of the samples of a text that `content_sum` covers."""
    last = max(size - SAMPLE_SIZE, 0)
    return [last * number // (_NUM_SAMPLES - 1) for number in range(_NUM_SAMPLES)]


def content_sum(size: int, read: Callable[[int, int], bytes], num_requests: int = 0) -> str:
    """Return a checksum of samples of a text's content."""
    offsets = sample_offsets(size)
    if size <= _NUM_SAMPLES * SAMPLE_SIZE:  # a single read takes less time
        whole = read(0, size)
        samples = [whole[offset : offset + SAMPLE_SIZE] for offset in offsets]
    elif num_requests:  # each sample may take a request
        with Workers(num_requests, "cntkio-samples") as workers:
            samples = [job.result() for job in [workers.do(read, offset, SAMPLE_SIZE) for offset in offsets]]
    else:
        samples = [read(offset, SAMPLE_SIZE) for offset in offsets]
    return hashlib.blake2b(b"".join(samples), digest_size=16).hexdigest()


def file_fingerprint(file: TextInput, num_sequences: int, content: str | None = None) -> str:
    """Return the fingerprint of a corpus that is one file, for checkpoints. `content` is its `content_sum` if known."""
    return f"{file.size}:{num_sequences}:{content or content_sum(file.size, file.read, file.storage.num_requests)}"


MOST_SUMMED = 64 << 20
"""Bytes of a corpus up to which states have a checksum of all bytes."""
_MOST_FILES_SUMMED = 1024


def whole_sum(size: int, storage: Storage) -> str:
    """Return a checksum of all bytes of a text; empty if that takes long: it is large, in a store, or compressed."""
    if size > MOST_SUMMED or storage.local_path is None or storage.compression is not None:
        return ""
    found = storage.facts(True)["whole"]
    storage.require_unchanged()
    return f"{found:x}"


def sum_of_files(open_file: Callable[[int], TextInput], sizes: npt.NDArray[np.int64]) -> str:
    """Return a checksum of files one after the other: of their sizes, and of all bytes or, if there are many, samples.

    Args:
        open_file: Opens a file by its number; it refuses a file that has changed.
    """
    total, ends = int(sizes.sum()), np.cumsum(sizes)
    if total <= MOST_SUMMED and len(sizes) <= _MOST_FILES_SUMMED:
        wanted = [(file, 0, size) for file, size in enumerate(sizes.tolist()) if size]
    else:
        offsets = np.array(sample_offsets(total))
        files = np.searchsorted(ends, offsets, side="right")
        begins = offsets - (ends - sizes)[files]
        wanted = [(file, begin, SAMPLE_SIZE) for file, begin in zip(files.tolist(), begins.tolist(), strict=True)]
    found = hashlib.blake2b(np.ascontiguousarray(sizes, "<i8").tobytes(), digest_size=16)
    for file, begin, size in wanted:
        with contextlib.closing(open_file(file)) as text:
            found.update(text.read(begin, size))
            text.storage.require_unchanged()
    return found.hexdigest()


class Locator:
    """Finds the line and column of a byte in a text file. It counts line ends only when an error needs them.

    `known` has the first bytes of some lines, ascending, and the numbers of these lines. It grows with each error, and
    is given if the text was closed since the last error.
    """

    def __init__(self, file: ReadableText, known: list[tuple[int, int]] | None = None) -> None:
        self._file = file
        self._known = [(0, 1)] if known is None else known

    def locate(self, byte: int) -> dict[str, Any]:
        """Return the place of a byte as keyword arguments of `FormatError`."""
        index = bisect.bisect_right(self._known, byte, key=itemgetter(0)) - 1
        offset, line = known = self._known[index]
        begin = offset
        while offset < byte:
            block = self._file.read(offset, min(byte - offset, _BLOCK))
            # The file was cut off after it was opened, so the error names the last line that was found.
            if not block:
                break
            if b"\n" in block:
                begin, line = offset + block.rfind(b"\n") + 1, line + block.count(b"\n")
            offset += len(block)
        if (begin, line) != known:
            # The next error counts from here. The list stays ascending, as `bisect_right` needs it.
            self._known.insert(index + 1, (begin, line))
        return {"path": self._file.path, "byte": byte, "line": line, "column": byte - begin + 1}

    def lines_of(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the line of the byte at each offset, from 1. All threads count."""
        # Sorted offsets need only one pass over the text, in windows.
        order = np.argsort(offsets)
        ascending = offsets[order].astype(np.uint64)
        lines = np.empty(len(offsets), np.int64)
        before, last = 1, int(ascending[-1]) if len(offsets) else -1
        window = min(WINDOW_OF_FILE, self._file.reach)
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

"""Beginning of a text, and its lines in blocks for threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from cntkio._threads import Workers, num_threads
from cntkio.errors import FormatError
from cntkio.formats.ctf import tuning
from cntkio.formats.detect import other_in
from cntkio.formats.report import announced, passed
from cntkio.formats.text_input import ReadableText, TextInput, Window, long_line_error, windows_of

_T = TypeVar("_T")
_Bytes = npt.NDArray[np.uint8]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WHITE_SPACE = b" \t\n\v\f\r"
_LINE_FEED = 0x0A
_READ = 1 << 16
# Enough bytes for the rest of most lines.
_REST_OF_LINE = 1 << 14
_LONGEST_LINE = 2**32 - 1


class Start(NamedTuple):
    """Beginning of a text.

    Attributes:
        offset: The first byte that is not white space.
        num_lines: Lines before it.
    """

    offset: int
    num_lines: int


def find_start(file: TextInput) -> Start:
    """Skip a byte order mark, or a part of one, and white space.

    Raises:
        FormatError: The file is empty, contains nothing else, or is in UTF-16.
    """
    mark = file.read(0, len(_BYTE_ORDER_MARK))
    if mark[:2] == b"\xff\xfe":
        raise FormatError(other_in("ctf", file, before=""), path=file.path, byte=0)
    if not mark:
        raise FormatError("the file is empty", path=file.path, byte=0)
    offset = next((size for size in (3, 2, 1) if mark[:size] == _BYTE_ORDER_MARK[:size]), 0)
    if offset == file.size:
        raise FormatError("the file is empty except for a byte order mark", path=file.path, byte=0)
    num_lines = 0
    while offset < file.size:
        block = file.read(offset, _READ)
        text = block.lstrip(_WHITE_SPACE)
        white = block[: len(block) - len(text)]
        num_lines += white.count(b"\n")
        offset += len(white)
        if text or not block:
            break
    if offset >= file.size:
        raise FormatError("the file contains only white space", path=file.path, byte=0)
    return Start(offset, num_lines)


def map_lines(file: TextInput, first: int, work: Callable[[_Bytes], _T], doing: str) -> list[tuple[int, _T]]:
    """Apply a function to blocks of whole lines, on all cores.

    Args:
        file: The text.
        first: Offset of the first line.
        work: Called with the bytes of each block: the lines that begin in the block's share of a window.
        doing: Name of the pass, for progress bars.

    Returns:
        The offset of each block and its result, in order.
    """
    spare: list[_Bytes] = []  # buffers are reused, because fresh memory is expensive

    def work_on(window: Window, begin: int) -> tuple[int, _T] | None:
        try:
            buffer = spare.pop()
        except IndexError:
            buffer = np.empty(0, np.uint8)
        end = min(begin + tuning.BLOCK, window.end)
        offset, lines, buffer = _read_lines(window.text, begin, end, buffer, is_first=begin == window.first)
        try:
            return (offset, work(lines)) if len(lines) else None
        finally:
            spare.append(buffer)

    results = []
    with announced(doing, file.size - first):
        if file.size - first <= tuning.BLOCK:
            results = [work_on(window, window.begin) for window in windows_of(file, first)]
            passed(file.size - first)
        else:
            with Workers(num_threads(), "cntkio-lines") as workers:
                for window in windows_of(file, first):
                    begins = range(window.begin, window.end, tuning.BLOCK)
                    for begin, job in [(at, workers.do(work_on, window, at)) for at in begins]:
                        results.append(job.result())
                        passed(min(tuning.BLOCK, window.end - begin))
    return [result for result in results if result is not None]


def _read_lines(
    file: ReadableText, begin: int, end: int, buffer: _Bytes, *, is_first: bool
) -> tuple[int, _Bytes, _Bytes]:
    """Read the lines that begin in a share of the text.

    Returns:
        Their offset, their bytes, and the buffer that holds them.
    """
    begin -= not is_first  # a line begins at `begin` if the byte before it is a line feed
    if len(buffer) < end - begin:
        buffer = np.empty(tuning.BLOCK + 1, np.uint8)
    size = file.read_into(buffer[: end - begin], begin)
    start = 0 if is_first else _find_line_feed(buffer[:size]) + 1
    if start >= size or not (is_first or start):
        return begin, buffer[:0], buffer  # no line begins in this share
    step = _REST_OF_LINE
    while begin + size < file.size and buffer[size - 1] != _LINE_FEED:
        rest = file.read(begin + size, step)
        if not rest:
            break
        step = size  # so that a long line takes few reads
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


def _find_line_feed(buffer: _Bytes) -> int:
    """Return the position of the first line feed, or -1. Copies few bytes, because most lines are short."""
    for begin in range(0, len(buffer), 4096):
        position = buffer[begin : begin + 4096].tobytes().find(b"\n")
        if position >= 0:
            return begin + position
    return -1

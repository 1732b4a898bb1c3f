"""Losses of a conversion of a text: digits that a precision does not keep, and comments. (docs/convert.md)"""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._threads import num_threads
from cntkio.arguments import caller
from cntkio.formats.table import FLOAT32, FLOAT64
from cntkio.storage.file_lists import listed_files
from cntkio.storage.names import FileNames, located, one_file
from cntkio.storage.open_input import open_input
from cntkio.storage.progress import logger
from cntkio.storage.remote import Remote
from cntkio.storage.text_input import Locator, filled, windows_of_lines

BLOCK = 8 << 20
"""Bytes of a text that are searched at a time. The number changes memory and time, never a result."""
_NUMBER = re.compile(rb"[-+]?[0-9.]+([eE][-+]?[0-9]+)?")


class _Losses(NamedTuple):
    """The losses of a text: how many numbers a precision changes, with the place of the first; and its comments."""

    name: str
    changed: dict[np.dtype[Any], tuple[int, int]]
    num_comments: int


def precision_that_keeps(
    names: FileNames, form: Literal["ctf", "svmlight", "kaldi"], asked: npt.DTypeLike | None, written: str
) -> npt.DTypeLike:
    """Return the least precision that keeps all digits of some texts; float64 if none does. Log what is lost.

    Args:
        names: The texts.
        form: Their format.
        asked: The type of numbers that the caller asks for; it is returned.
        written: The format to write. Only the same format could have the comments.
    """
    names, remote = located("path", names, None)
    file = one_file(names, remote)
    paths = listed_files(names, option="path", remote=remote) if file is None else [file]
    losses = [_losses(path, form, remote) for path in paths]
    changes_any = any(one.changed[FLOAT32][0] for one in losses)
    dtype: np.dtype[Any] = np.dtype(asked if asked is not None else FLOAT64 if changes_any else FLOAT32)
    for path, one in zip(paths, losses, strict=True):
        # In whole numbers, another number is an error when the text is read.
        count, first = one.changed.get(dtype, (0, 0))
        if count:
            keeps = dtype == FLOAT32 and not one.changed[FLOAT64][0]
            advice = f"; {caller().words.setting('dtype', 'float64')} keeps them" if keeps else ""
            with closing(open_input(path, remote)) as text:
                number = _NUMBER.match(text.read(first, 100))
                shown = "" if number is None else f", such as {number[0].decode()}"
                what = f"numbers that {dtype} rounds: {count}{shown}{advice}"
                logger.warning("%s", Locator(text).error(first, what))
        # Other formats have no comments, so the user of another format expects none.
        if one.num_comments and form == written:
            logger.warning("%s: comments that are left out: %d", one.name, one.num_comments)
    return dtype


def _losses(path: str, form: str, remote: Remote | None) -> _Losses:
    changed: dict[np.dtype[Any], tuple[int, int]] = {FLOAT32: (0, 0), FLOAT64: (0, 0)}
    num_comments = 0
    with closing(open_input(path, remote)) as file:
        for window in windows_of_lines(file, 0, BLOCK):
            lines = filled(window.text.read_into, window.begin, window.end)
            *of_types, more = _core.text_losses(lines, form, num_threads())
            num_comments += more
            for dtype, (count, first) in zip(changed, of_types, strict=True):
                before, place = changed[dtype]
                changed[dtype] = before + count, place if before or not count else window.begin + first
    return _Losses(file.path, changed, num_comments)

"""Losses of what is written from a text: digits that a precision does not keep, and comments. (docs/convert.md)"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio.arguments import caller
from cntkio.formats.table import FLOAT32, FLOAT64
from cntkio.storage.names import FileNames
from cntkio.storage.open_input import files_named, open_input
from cntkio.storage.progress import logger
from cntkio.storage.remote import Remote
from cntkio.storage.text_input import Locator, TextInput, map_lines

TextForm: TypeAlias = Literal["ctf", "svmlight", "kaldi"]
_NUMBER = re.compile(rb"[-+]?[0-9.]+([eE][-+]?[0-9]+)?")


class _Losses(NamedTuple):
    """The losses of a text: how many numbers a precision changes, with the place of the first; and its comments."""

    name: str
    changed: dict[np.dtype[Any], tuple[int, int]]
    num_comments: int


def precision_that_keeps(
    names: FileNames, form: TextForm, asked: npt.DTypeLike | None, written: str, fields: Sequence[bytes] = ()
) -> npt.DTypeLike:
    """Return the least precision that keeps all digits of some texts; float64 if none does. Count their comments.

    Args:
        names: The texts.
        form: Their format.
        asked: The type of numbers that the caller asks for; it is returned.
        written: The format to write. Only the same format could have the comments.
        fields: The fields of CNTK's text format that are read; empty: all.
    """
    files, remote = files_named(names)
    losses = [_losses(path, form, fields, remote) for path in files]
    for one in losses:
        # Other formats have no comments, so the user of another format expects none.
        if one.num_comments and form == written:
            logger.warning("%s: comments that are left out: %d", one.name, one.num_comments)
    changes_any = any(one.changed[FLOAT32][0] for one in losses)
    return asked if asked is not None else FLOAT64 if changes_any else FLOAT32


def log_rounded(
    path: str, form: TextForm, dtype: npt.DTypeLike, fields: Sequence[bytes] = (), remote: Remote | None = None
) -> None:
    """Log how many numbers of a text a precision rounds. Arguments as for `precision_that_keeps`."""
    losses = _losses(path, form, fields, remote)
    # In whole numbers, another number is an error when the text is read.
    count, first = losses.changed.get(np.dtype(dtype), (0, 0))
    if count:
        with closing(open_input(path, remote)) as text:
            number = _NUMBER.match(text.read(first, 100))
            shown = None if number is None else number[0].decode()
            what = _what_is_rounded(count, shown, dtype, not losses.changed[FLOAT64][0])
            logger.warning("%s", Locator(text).error(first, what))


class Rounded:
    """Counts the floats that a type rounds.

    Example:
        >>> rounded = Rounded(np.float32)
        >>> rounded.add(np.array([0.5, 0.1, np.nan]))
        >>> rounded.count
        1
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype, self.count, self._example = np.dtype(dtype), 0, ""

    def add(self, values: npt.NDArray[Any]) -> None:
        """Count some numbers. Whole numbers are left out: where they are not exact, an error says so."""
        if values.dtype.kind == "f" and values.dtype.itemsize > self._dtype.itemsize:
            with np.errstate(over="ignore"):
                rounded = values[(values != values.astype(self._dtype)) & ~np.isnan(values)]
            if len(rounded) and not self.count:
                self._example = str(rounded[0])
            self.count += len(rounded)

    def log(self, name: str, *, is_kept: bool = True) -> None:
        """Log the count, if it is not 0. `is_kept`: an option of the caller would keep the numbers."""
        if self.count:
            logger.warning("%s: %s", name, _what_is_rounded(self.count, self._example, self._dtype, is_kept))


def _what_is_rounded(count: int, example: object, dtype: npt.DTypeLike, is_kept: bool) -> str:
    keeps = is_kept and np.dtype(dtype) == FLOAT32
    advice = f"; {caller().words.setting('dtype', 'float64')} keeps them" if keeps else ""
    shown = "" if example is None else f", such as {example}"
    return f"numbers that {np.dtype(dtype)} rounds: {count}{shown}{advice}"


# By path, store, format, fields and facts of the file. A conversion needs the losses twice: to choose a precision, and
# to log.
_known: dict[tuple[object, ...], _Losses] = {}
_MOST_KNOWN = 1000


def _losses(path: str, form: TextForm, fields: Sequence[bytes], remote: Remote | None) -> _Losses:
    with closing(open_input(path, remote)) as file:
        known_by = path, file.storage.identity, form, *fields, str(file.storage.facts(False))
        if (known := _known.get(known_by)) is None:
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            known = _known[known_by] = _losses_in(file, form, fields)
    return known


def _losses_in(file: TextInput, form: TextForm, fields: Sequence[bytes]) -> _Losses:
    changed: dict[np.dtype[Any], tuple[int, int]] = {FLOAT32: (0, 0), FLOAT64: (0, 0)}
    num_comments = 0
    counted = map_lines(file, 0, lambda lines: _core.text_losses(lines, form, fields, 1), "comparing numbers")
    for begin, found in counted:
        num_comments += found.num_comments
        of_types = (found.num_single, found.first_single), (found.num_double, found.first_double)
        for dtype, (count, first) in zip(changed, of_types, strict=True):
            before, place = changed[dtype]
            changed[dtype] = before + count, place if before or not count else begin + first
    return _Losses(file.path, changed, num_comments)

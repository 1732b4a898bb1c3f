"""The exceptions of cntkio, on one page.

::

    CntkIoError          (RuntimeError)
    ├── ConfigError      (ValueError)   an option or a configuration text is wrong
    ├── FormatError      (ValueError)   bytes break their format
    ├── CorpusError                     inputs fine alone, not together or not any more
    └── CheckpointError  (ValueError)   a state does not fit this source

CNTK raised ``ValueError`` for an invalid argument and ``RuntimeError`` for the rest: a program that catches them goes
on to do so. Where it raised ``OverflowError`` or ``NotImplementedError`` for a number out of range, a `ConfigError` is
one of these, too. Failures of the operating system stay ``OSError``. A message says where, what was found, what was
expected, and which of the names there are is near to the one that was asked for. (docs/errors.md)
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

_C = TypeVar("_C", bound=Callable[..., Any])


class CntkIoError(RuntimeError):
    """The root of all exceptions that cntkio raises by itself."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the attributes when an exception crosses from one process to another."""
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(kind: type[CntkIoError], args: tuple[Any, ...], attributes: dict[str, Any]) -> CntkIoError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class ConfigError(CntkIoError, ValueError):
    """An option or a configuration text is wrong.

    Attributes:
        key: The option or key at fault, if one is.
        path: The configuration file, if there is one.
        line: Its line, from 1.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        path: str | os.PathLike[str] | None = None,
        line: int | None = None,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.path = None if path is None else os.fspath(path)
        self.line = line


class OutOfRangeError(ConfigError, OverflowError):
    """A number that is none of 64 bits without a sign, where CNTK raised ``OverflowError``."""


class UnsupportedError(ConfigError, NotImplementedError):
    """What there is not: a part of CNTK that cntkio does without, or an argument that no method takes."""


class FormatError(CntkIoError, ValueError):
    """Bytes break their format.

    The message begins with the place, as far as it is known.

    Attributes:
        path: The file.
        byte: Position in the file, from 0.
        line: Line, from 1.
        column: Byte in the line, from 1.
        sequence: Key of the sequence.
        stream: Name of the stream.

    Example:
        >>> str(FormatError("3 values, but the dimension is 2", path="a.ctf", line=7, column=4, byte=80, stream="x"))
        "a.ctf, line 7, column 4 (byte 80), stream 'x': 3 values, but the dimension is 2"
    """

    def __init__(
        self,
        what: str,
        *,
        path: str | os.PathLike[str] | None = None,
        byte: int | None = None,
        line: int | None = None,
        column: int | None = None,
        sequence: int | str | None = None,
        stream: str | None = None,
    ) -> None:
        self.path = None if path is None else os.fspath(path)
        self.byte = byte
        self.line = line
        self.column = column
        self.sequence = sequence
        self.stream = stream
        place = [] if self.path is None else [self.path]
        if line is not None:
            place.append(f"line {line}")
        if column is not None:
            place.append(f"column {column} (byte {byte})")
        elif byte is not None:
            place.append(f"byte {byte}")
        if sequence is not None:
            place.append(f"sequence {sequence}")
        if stream is not None:
            place.append(f"stream {stream!r}")
        super().__init__(", ".join(place) + ": " + what if place else what)


class CorpusError(CntkIoError):
    """Inputs that are fine alone, but not together or not any more: missing keys, lengths, a file that changed."""


class CheckpointError(CntkIoError, ValueError):
    """A checkpoint state does not fit this source.

    Attributes:
        saved: What the state says.
        current: What the source says.
    """

    def __init__(self, message: str, *, saved: object = None, current: object = None) -> None:
        super().__init__(message)
        self.saved = saved
        self.current = current


# ------------------------------------------------------------------------------------------------ near names


def near_name(name: object, known: Iterable[str]) -> str | None:
    """The known name that is nearest to one that is not known, if any is near; upper and lower case are the same.

    Example:
        >>> near_name("lenghts", ["lengths", "species"])
        'lengths'
        >>> near_name("x", ["lengths", "species"])
    """
    folded = {_folded(one): one for one in known}
    found = difflib.get_close_matches(_folded(str(name)), folded, n=1)
    return folded[found[0]] if found else None


def _folded(name: str) -> str:
    return name.lower().replace("_", "")


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of a message about a name that is not known: the near one, if there is one.

    Example:
        >>> "no stream 'lenghts'" + did_you_mean("lenghts", ["lengths", "species"])
        "no stream 'lenghts'; did you mean 'lengths'?"
    """
    near = near_name(name, known)
    return f"; did you mean {near!r}?" if near else ""


def suggests_keywords(called: _C) -> _C:
    """Make a class or a function tell the near name when it is called with a keyword that it does not have.

    Example:
        >>> @suggests_keywords
        ... class Source:
        ...     def __init__(self, max_sweeps=1): ...
        >>> Source(max_sweep=2)
        Traceback (most recent call last):
        TypeError: Source has no keyword 'max_sweep'; did you mean 'max_sweeps'?
    """
    plain: Any = called.__init__ if isinstance(called, type) else called  # type: ignore[misc]
    name = called.__name__
    known = [parameter for parameter in inspect.signature(plain).parameters if parameter != "self"]

    @functools.wraps(plain)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        for keyword in keywords:
            if keyword not in known:
                hint = did_you_mean(keyword, known) or f"; it has: {', '.join(known)}"
                raise TypeError(f"{name} has no keyword {keyword!r}{hint}")
        return plain(*arguments, **keywords)

    if not isinstance(called, type):
        return checked  # type: ignore[return-value]
    called.__init__ = checked  # type: ignore[misc]
    return called

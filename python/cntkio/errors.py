"""The exceptions of cntkio, on one page.

::

    CntkIoError          (RuntimeError)
    ├── ConfigError      (ValueError)   an option or a configuration text is wrong
    ├── FormatError      (ValueError)   bytes break their format
    ├── CorpusError                     inputs that do not fit together, or that changed
    └── CheckpointError  (ValueError)   a state does not fit this source

CNTK raised ``ValueError`` for an invalid argument and ``RuntimeError`` for other errors, so programs that catch these
also catch ours. Where CNTK raised ``OverflowError`` or ``NotImplementedError`` for a number out of range, cntkio raises
a `ConfigError` that is such an error as well. Failures of the operating system stay ``OSError``. A message says where
the error is, the value found and the value expected; for an unknown name it suggests the nearest. (docs/errors.md)
"""

from __future__ import annotations

import os
import re
from typing import Any


def printable(text: str) -> str:
    """Return a text in which every character can be seen and none changes other lines of a terminal or a log.

    Keys, names of streams and paths come from files that anybody may have written. Their control characters, and
    characters without a shape, such as a byte order mark, are escaped as in a string of Python.

    Example:
        >>> print(printable("u1" + chr(27) + "[2J " + chr(0xFEFF) + "ü"))
        u1\\x1b[2J \\ufeffü
    """
    # Nearly all texts are, and need no loop over their characters.
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


# `pathlib.Path` turns the two slashes of a URL into a single slash. A query has a `=`, in contrast to the `?` in a
# pattern of files.
_QUERY = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]+:/[^\s?'\"]*)\?[^\s'\")=]*=[^\s'\")]*")
_USER = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]+:/{1,2})[^\s/?'\"@]*@")


def without_secrets(text: str) -> str:
    """Return a text without the users, passwords and queries of the URLs in it, which may be signatures.

    Example:
        >>> without_secrets("no http://me:secret@host/a?signature=3f, and no s3://bucket/part-?.ctf")
        'no http://host/a and no s3://bucket/part-?.ctf'
    """
    return _USER.sub(r"\1", _QUERY.sub(r"\1", text))


class CntkIoError(RuntimeError):
    """Base class of all exceptions of cntkio. Every character of a message can be seen, and none is of a password.

    Attributes:
        kind: Name of the kind of error, if it has one.
    """

    kind: str | None = None

    def __init__(self, message: str = "") -> None:
        # Here, since many messages quote URLs, paths and keys, and a single place cannot be forgotten.
        super().__init__(printable(without_secrets(message)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the attributes when an exception is sent to another process."""
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(kind: type[CntkIoError], args: tuple[Any, ...], attributes: dict[str, Any]) -> CntkIoError:
    # Not by the constructors: they take other arguments than `args`, and would add the location a second time.
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class ConfigError(CntkIoError, ValueError):
    """An option or a configuration text is wrong.

    Attributes:
        key: The option or key at fault, if known.
        path: The configuration file, if any.
        line: Its line, from 1.
    """

    def __init__(
        self, message: str, *, key: str | None = None, path: str | os.PathLike[str] | None = None,
        line: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.key = key
        self.path = None if path is None else os.fspath(path)
        self.line = line


class OutOfRangeError(ConfigError, OverflowError):
    """A number that is not an unsigned number of 64 bits, where CNTK raised ``OverflowError``."""


class UnsupportedError(ConfigError, NotImplementedError):
    """Not supported: a part of CNTK that cntkio leaves out, or a value that no method accepts."""


class FormatError(CntkIoError, ValueError):
    """Bytes break their format.

    The message begins with the location, as far as it is known.

    Attributes:
        path: The file.
        byte: Position in the file, from 0.
        line: Line, from 1.
        column: Byte in the line, from 1.
        sequence: Key of the sequence.
        stream: Name of the stream.
        what: The message without the location.

    Example:
        >>> str(FormatError("3 values, but the dimension is 2", path="a.ctf", line=7, column=4, byte=80, stream="x"))
        "a.ctf, line 7, column 4 (byte 80), stream 'x': 3 values, but the dimension is 2"
    """

    def __init__(
        self, what: str, *, path: str | os.PathLike[str] | None = None, byte: int | None = None,
        line: int | None = None, column: int | None = None, sequence: int | str | None = None,
        stream: str | None = None, kind: str | None = None,
    ) -> None:  # fmt: skip
        self.path, self.what, self.kind = None if path is None else os.fspath(path), what, kind
        self.byte, self.line, self.column, self.sequence, self.stream = byte, line, column, sequence, stream
        place = None if byte is None else f"byte {byte}"
        location = (
            self.path,
            None if line is None else f"line {line}",
            place if column is None else f"column {column} (byte {byte})",
            None if sequence is None else f"sequence {sequence}",
            None if stream is None else f"stream {stream!r}",
        )
        known = [part for part in location if part is not None]
        super().__init__(f"{', '.join(known)}: {what}" if known else what)


class CorpusError(CntkIoError):
    """Inputs that do not fit together, or changed: missing keys, unequal lengths, a file that was written to."""

    def __init__(self, message: str = "", *, kind: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind


class CheckpointError(CntkIoError, ValueError):
    """A checkpoint state does not fit this source.

    Attributes:
        saved: The value in the state.
        current: The value of the source.
    """

    def __init__(self, message: str, *, saved: object = None, current: object = None) -> None:
        super().__init__(message)
        self.saved = saved
        self.current = current

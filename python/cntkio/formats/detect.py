"""Detection of the kind of a file, by its first bytes or else by its name, and of the deserializer that reads it.

No other module of cntkio guesses what a file is.
"""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import NamedTuple

from cntkio.errors import ConfigError
from cntkio.formats.input_file import InputFile

CBF_MAGIC = b"nib_ktnc"
"""First bytes of the binary format in its 2.x layout."""
CBF_DOCUMENTED = struct.pack("<q", 1)
"""First bytes of the binary format in its documented layout: its version."""

_HEAD = 4096
_CONFIGURATION_NAMES = (".cntk", ".config", ".bs")
_LISTED = re.compile(rb"\S.*\[\d+,\d+\]\s*")
_ASSIGNMENT = re.compile(rb"[A-Za-z_][\w.]*\s*=|[A-Za-z_][\w.]*\s*\[")
_MOST_HTK_KIND = 12
_HTK_KIND_BITS = 0o77


class FileKind(NamedTuple):
    """A kind of file.

    Attributes:
        form: Short name.
        title: Name for people.
        call: The call of the deserializer that reads it, with `{path}` for the file; empty: no deserializer does.
        advice: What to do with a file that no deserializer reads.
    """

    form: str
    title: str
    call: str = ""
    advice: str = ""

    @property
    def deserializer(self) -> str | None:
        """Class that reads it; None: no deserializer does."""
        return self.call.split("(")[0] or None

    def require_deserializer(self, path: str | os.PathLike[str]) -> str:
        """Return the name of the deserializer.

        Raises:
            ConfigError: No deserializer reads such a file; the message gives advice.

        Example:
            >>> KINDS["gzip"].require_deserializer("a.ctf.gz")
            Traceback (most recent call last):
            cntkio.errors.ConfigError: a.ctf.gz is a file compressed with gzip, which no deserializer reads; unpack it
        """
        if self.deserializer is None:
            raise ConfigError(f"{os.fspath(path)} is a {self.title}, which no deserializer reads; {self.advice}")
        return self.deserializer


def _packed(form: str) -> FileKind:
    return FileKind(form, f"file compressed with {form}", advice="unpack it")


_TABLE_ADVICE = "cntkio convert --to ctf, or cntkio.arrow.read, takes it"
KINDS = {
    kind.form: kind
    for kind in (
        FileKind("ctf", "CNTK text format (CTF)", "CTFDeserializer({path!r}, StreamDefs(...))"),
        FileKind("cbf", "CNTK binary format (CBF)", "CBFDeserializer({path!r})"),
        FileKind(
            "scp",
            "list of HTK features (scp)",
            "HTKFeatureDeserializer(StreamDefs(features=StreamDef(scp={path!r}, shape=...)))",
        ),
        FileKind("htk", "HTK feature file", advice="name it in a list (scp), which HTKFeatureDeserializer reads"),
        FileKind(
            "mlf",
            "HTK label file (MLF)",
            "HTKMLFDeserializer(mapping, StreamDefs(labels=StreamDef(mlf={path!r}, shape=...)))",
        ),
        FileKind(
            "binary mlf",
            "binary HTK label file (MLF)",
            "HTKMLFBinaryDeserializer(StreamDefs(labels=StreamDef(mlf={path!r}, shape=...)))",
        ),
        FileKind("configuration", "CNTK configuration", advice="MinibatchSource.from_config opens its reader"),
        FileKind("parquet", "Parquet file", advice=_TABLE_ADVICE),
        FileKind("arrow", "Arrow file", advice=_TABLE_ADVICE),
        *map(_packed, ("gzip", "bzip2", "xz", "zstd", "zip")),
    )
}
"""The kinds, by form."""

_MAGIC = (
    (CBF_MAGIC, "cbf"),
    (CBF_DOCUMENTED, "cbf"),
    (b"PAR1", "parquet"),
    (b"ARROW1", "arrow"),
    (b"MLF\1\0", "binary mlf"),
    (b"MLF\2\0", "binary mlf"),
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"PK\3\4", "zip"),
)


def detect(path: str | os.PathLike[str]) -> FileKind:
    """Find out what a file is. A file of no known kind counts as text in CNTK's format, whose errors tell more.

    Raises:
        OSError: The file cannot be read.

    Example:
        >>> detect("examples/iris/iris.ctf").deserializer
        'CTFDeserializer'
        >>> detect("examples/digits/digits.cntk").title
        'CNTK configuration'
    """
    return _detected(path, Path(path).suffix.lower())[0]


def other_than_ctf(path: str | os.PathLike[str]) -> str:
    """Say what a file is, and what reads it, if its bytes show that it is not text in CNTK's format; else nothing.

    The name of the file decides nothing here.

    Raises:
        OSError: The file cannot be read.

    Example:
        >>> other_than_ctf("examples/iris/iris.ctf")
        ''
        >>> other_than_ctf("examples/digits/digits.cntk")
        'this is a CNTK configuration; MinibatchSource.from_config opens its reader'
    """
    kind, head = _detected(path, "")
    if kind.form == "ctf":
        return "this is not a text, for it has zero bytes; expected |name values" if b"\0" in head else ""
    use = kind.advice or "use " + kind.call.format(path=os.fspath(path))
    article = "an" if kind.title.startswith(("HTK", "Arrow")) else "a"
    return f"this is {article} {kind.title}; {use}"


def _detected(path: str | os.PathLike[str], suffix: str) -> tuple[FileKind, bytes]:
    """Return the kind of a file, and its first bytes."""
    file = InputFile(os.fspath(path))
    try:
        head, size = file.read(0, _HEAD), file.size
    finally:
        file.close()
    return KINDS[_form(head, size, suffix)], head


def _form(head: bytes, size: int, suffix: str) -> str:
    for magic, form in _MAGIC:
        if head.startswith(magic):
            return form
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"#!MLF!#"):
        return "mlf"
    if suffix == ".scp":
        return "scp"
    if suffix in _CONFIGURATION_NAMES:
        return "configuration"
    if _is_htk(head, size):
        return "htk"
    first_line = _first_line(text)
    if b"|" not in first_line and b"\0" not in head:
        if _LISTED.fullmatch(first_line):
            return "scp"
        if _ASSIGNMENT.match(first_line):
            return "configuration"
    return "ctf"


def _first_line(text: bytes) -> bytes:
    """Return the first line that is neither empty nor a comment of a configuration."""
    lines = (line.strip() for line in text.split(b"\n"))
    return next((line for line in lines if line and not line.startswith((b"#", b"//"))), b"")


def _is_htk(head: bytes, size: int) -> bool:
    """Return whether a header of HTK fits the size of the file, in either byte order."""
    if len(head) < struct.calcsize(">iIHH"):
        return False
    for order in "><":
        num_frames, period, frame_size, kind = struct.unpack_from(f"{order}iIHH", head)
        is_kind = kind & _HTK_KIND_BITS <= _MOST_HTK_KIND and period > 0 and num_frames > 0 and frame_size > 0
        # A check sum takes two bytes more.
        if is_kind and size - 12 - num_frames * frame_size in (0, 2):
            return True
    return False

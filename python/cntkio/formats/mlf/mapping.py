"""Names of classes: label mapping files, target files, and the labels in a label file. (docs/formats/htk.md)"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

from cntkio import _core
from cntkio.displays import counted
from cntkio.errors import FormatError
from cntkio.formats.detect import other_than
from cntkio.formats.htk.keys import shown
from cntkio.formats.input_file import InputFile, all_bytes

_BITS = bytes.maketrans(b"01", b"\0\1")
_LINE_END = re.compile(rb"\r\n?|\n")


def read_mapping(path: str | os.PathLike[str]) -> list[bytes]:
    """Read a label mapping file: a name on each line, in the order of the classes; empty lines are skipped.

    Raises:
        OSError: The file cannot be read.
        FormatError: Two lines have the same name.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp(), "states.list")
        >>> _ = path.write_text("sil\\naa\\n")
        >>> read_mapping(path)
        [b'sil', b'aa']
    """
    data = all_bytes(path)
    if b"\0" in data:
        raise FormatError(
            other_than("mapping", path, before="") or "a zero byte; expected a name on each line", path=path
        )
    line_of: dict[bytes, int] = {}
    for line, name in enumerate(_LINE_END.split(data), 1):
        if line_of.setdefault(name, line) != line and name:
            what = f"the name {shown(name)!r} is already on line {line_of[name]}; expected each name once"
            raise FormatError(what, path=path, line=line)
    return [*filter(None, line_of)]


class Targets(NamedTuple):
    """A dense vector of 0s and 1s for each class.

    Attributes:
        dim: Values of a vector.
        rows: The vectors, class after class, a byte for each value.
    """

    dim: int
    rows: bytes


def read_targets(
    path: str | os.PathLike[str], num_classes: int, names: Sequence[bytes] | None = None, dim: int | None = None
) -> Targets:
    """Read a file of vectors that replace one-hot vectors: on each line a name, a blank, and 0s and 1s.

    Args:
        path: The file, with lines in the order of the classes. Empty lines are skipped.
        num_classes: Number of classes; the vectors of classes without a name contain zeros.
        names: Names of the classes; None: accept any names, and require a line for every class.
        dim: Number of 0s and 1s on a line; None: as many as on the first line.

    Raises:
        OSError: The file cannot be read.
        FormatError: A line has the wrong form, name or length, or there are too few or too many lines.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp(), "targets.txt")
        >>> _ = path.write_text("sil 100\\naa 011\\n")
        >>> read_targets(path, 2, [b"sil", b"aa"])
        Targets(dim=3, rows=b'\\x01\\x00\\x00\\x00\\x01\\x01')
    """
    lines = _LINE_END.split(all_bytes(path).replace(b"\t", b" "))
    expected = num_classes if names is None else len(names)
    rows: list[bytes] = []
    for line, text in enumerate(lines, 1):
        name, _, bits = text.strip(b" ").rpartition(b" ")
        if not bits:
            continue
        dim = len(bits) if dim is None else dim
        if not name or bits.strip(b"01"):
            raise FormatError(
                f"{shown(text)!r}; expected a name, a blank, and a text of 0s and 1s", path=path, line=line
            )
        if len(bits) != dim:
            raise FormatError(f"{counted(len(bits), 'value')}; expected {dim}", path=path, line=line)
        if names is not None and len(rows) < expected and name.strip() != names[len(rows)]:
            what = f"the label {shown(name)!r}; the mapping file has {shown(names[len(rows)])!r} here"
            raise FormatError(what, path=path, line=line)
        rows.append(bits)
    if len(rows) != expected:
        raise FormatError(f"{counted(len(rows), 'target')}; expected {expected}", path=path, line=len(lines))
    missing = b"0" * (max(num_classes - expected, 0) * (dim or 0))
    return Targets(dim or 0, (b"".join(rows) + missing).translate(_BITS))


def infer_labels(path: str | os.PathLike[str]) -> list[bytes]:
    """Return the labels in a label file, sorted by their bytes: class names for use without a mapping file.

    Raises:
        OSError: The file cannot be read.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp(), "a.mlf")
        >>> _ = path.write_text('#!MLF!#\\n"u1"\\n0 3 sil\\n3 5 aa\\n.\\n')
        >>> infer_labels(path)
        [b'aa', b'sil']
    """
    with closing(InputFile(os.fspath(path))) as file:
        return _core.mlf_names(*file.handle)

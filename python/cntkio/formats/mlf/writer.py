"""Writing of label files, text and binary, and of mapping files. (docs/formats/htk.md, "Writing")"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio.errors import ConfigError
from cntkio.formats.mlf.entries import FRAME_PERIOD
from cntkio.storage.output_file import AnyPath, write_whole
from cntkio.streams import LARGEST_DIM

_LARGEST_WORD = 65535  # of the binary format's 16-bit fields
# CNTK reads no longer key of a binary file.
_LONGEST_ID = 256


def _runs_of(key: str, classes: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the first frame of each run of equal classes and, last, the number of frames; and each run's class."""
    ids = np.asarray(classes)
    if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu" or not 0 <= ids.min() <= ids.max() <= LARGEST_DIM:
        what = f"utterance {key}: expected the class of each frame, whole numbers from 0 to {LARGEST_DIM}"
        raise ConfigError(what, key="utterances")
    starts = np.concatenate([[0], np.flatnonzero(ids[1:] != ids[:-1]) + 1])
    return np.append(starts, len(ids)), ids[starts].astype(np.int64)


def write_mlf(
    path: AnyPath, utterances: Iterable[tuple[str, npt.NDArray[Any]]], names: Sequence[str], *, extension: str = ".lab"
) -> None:
    """Write a label file: runs of equal classes as rows, times in units of 100 ns, 10 ms per frame.

    Args:
        path: The file.
        utterances: Ids and the class of each frame, whole numbers `[frames]`.
        names: The name of each class.
        extension: Text appended to each id.

    Raises:
        ConfigError: A class has no name, or an id or a name cannot be written in a label file.
        OSError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp(), "a.mlf")
        >>> write_mlf(path, [("u1", np.array([0, 0, 1]))], ["sil", "aa"])
        >>> print(path.read_text(), end="")
        #!MLF!#
        "u1.lab"
        0 200000 sil
        200000 300000 aa
        .
    """
    for name in names:
        if not name or set(name) & set(" \t\r\n\"'") or name == ".":
            what = f"the name {name!r} cannot be written in a label file; expected neither blanks nor quotes"
            raise ConfigError(what, key="names")

    def pieces() -> Iterator[bytes]:
        yield b"#!MLF!#\n"
        for key, classes in utterances:
            if not key or set(key) & set('"*?\r\n'):
                what = f"the id {key!r} cannot be written in a label file; expected none of '\"*?' and line ends"
                raise ConfigError(what, key="utterances")
            bounds, ids = _runs_of(key, classes)
            if ids.max() >= len(names):
                expected = f"at least {ids.max() + 1} names, not {len(names)}"
                what = f"utterance {key}: class {ids.max()} has no name; expected {expected}"
                raise ConfigError(what, key="utterances")
            times = (bounds * FRAME_PERIOD).tolist()
            rows = (f"{a} {b} {names[c]}\n" for a, b, c in zip(times, times[1:], ids.tolist(), strict=False))
            yield f'"{key}{extension}"\n{"".join(rows)}.\n'.encode()

    write_whole(path, pieces())


def write_binary_mlf(path: AnyPath, utterances: Iterable[tuple[str, npt.NDArray[Any]]]) -> None:
    """Write a binary label file, version 2.

    Args:
        path: The file.
        utterances: Ids and the class of each frame, whole numbers `[frames]` below 65536.

    Raises:
        ConfigError: A class or an id is too large, or there are too many runs.
        OSError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp(), "a.bmlf")
        >>> write_binary_mlf(path, [("u1", np.array([0, 0, 1]))])
        >>> path.stat().st_size
        23
    """

    def pieces() -> Iterator[bytes]:
        yield b"MLF" + struct.pack("<h", 2)
        for key, classes in utterances:
            bounds, ids = _runs_of(key, classes)
            # Split runs whose number of frames does not fit 16 bits.
            num_splits = -(-np.diff(bounds) // _LARGEST_WORD)
            counts = np.full(int(num_splits.sum()), _LARGEST_WORD)
            counts[np.cumsum(num_splits) - 1] = np.diff(bounds) - (num_splits - 1) * _LARGEST_WORD
            name = key.encode()
            if ids.max() > _LARGEST_WORD or len(name) > _LONGEST_ID or len(counts) > _LARGEST_WORD:
                expected = f"classes and runs below 65536, and an id of at most {_LONGEST_ID} bytes"
                what = f"utterance {key}: class {ids.max()}, {len(counts)} runs; expected {expected}"
                raise ConfigError(what, key="utterances")
            runs = np.stack([np.repeat(ids, num_splits), counts], axis=1).astype("<u2")
            yield struct.pack("<H", len(name)) + name + struct.pack("<IH", int(bounds[-1]), len(runs)) + runs.tobytes()

    write_whole(path, pieces())


def write_mapping(path: AnyPath, names: Sequence[str]) -> None:
    """Write a label mapping file.

    Args:
        path: The file.
        names: The labels, in the order of their classes.

    Raises:
        ConfigError: A name is empty, contains a line end, or occurs twice.
        OSError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp(), "states.list")
        >>> write_mapping(path, ["sil", "aa"])
        >>> path.read_text()
        'sil\\naa\\n'
    """
    if len(set(names)) < len(names) or any(not name or set(name) & set("\r\n") for name in names):
        raise ConfigError("names must be different, not empty, and without line ends", key="names")
    write_whole(path, [f"{name}\n".encode() for name in names])

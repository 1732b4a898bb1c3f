"""Entries of label files: the compiled core finds them; they are kept as runs. (docs/formats/htk.md, "Label files")

::

    "u1"                          entry: key, then a row for each run of frames
    0 300000 sil                  row: start, end, label
    300000 500000 aa              a run of 2 frames: its first frame is 3, its class that of "aa"

A run takes 4 bytes, or up to 8 if frames or classes exceed 16 bits. An entry that breaks the format is kept with its
fault, which is an error only if the entry is needed.
"""

from __future__ import annotations

import codecs
import dataclasses
import hashlib
import itertools
import os
import re
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._threads import num_threads
from cntkio.arguments import check_word, is_whole
from cntkio.displays import counted
from cntkio.errors import ConfigError, FormatError
from cntkio.formats.detect import other_than
from cntkio.formats.htk.lists import decoded, text_rows
from cntkio.formats.htk.options import UtteranceOptions
from cntkio.formats.report import EMPTY_FILE, WrongWord
from cntkio.storage.index_cache import IndexCache
from cntkio.storage.open_input import all_bytes, open_stored, whole_text
from cntkio.storage.output_file import AnyPath
from cntkio.storage.remote import Remote
from cntkio.storage.text_input import Locator, TextInput, explained
from cntkio.streams import LARGEST_DIM

FRAME_PERIOD = 100_000
"""A frame's duration in units of 100 ns: 10 ms."""
Times = Literal["auto", "100ns", "frames"]
Names: TypeAlias = list[bytes] | None
"""Names of the classes; None: the fourth column is the class."""

# The words for the core's faults of entries, by name.
FAULT_WORDS = {
    "none": "",
    "out of order": "the row does not begin where the previous row ended",
    "late start": "the first row does not begin at frame 0",
    "columns": "too few columns, or not exactly four where no mapping file names the labels; "
    "expected start, end and label",
    "bad time": "a time that is not a number, or not the beginning of a frame",
    "reversed": "the row ends before it begins",
    "unknown label": "the label is not in the mapping file",
    "bad class": "the fourth column is not a class; expected a whole number",
    "large class": "the class is beyond the dimension",
    "no frames": "the utterance has no frames; expected times in units of 100 ns, or frame numbers",
    "wrong sum": "the runs do not add up to the number of frames",
}
# In the core's order of faults: an utterance with a fault up to "late start" is invalid, with a later fault broken.
LAST_INVALID = _core.MLF_FAULTS.index("late start")
# The words for the parts that the core skips, by name.
_REMARK_WORDS = {
    "unquoted key": "a line between entries that is not in quotes; its entry is left out",
    "empty entry": "an entry without rows, which is left out",
    "entry cut off": "the file ends within this entry, which is left out",
    "pattern": "a wildcard after the beginning of a key; it matches no utterance",
}
REMARKS_ON_LABELS = tuple((name, _REMARK_WORDS[name]) for name in _core.MLF_REMARKS)
# The words for the reasons that end a scan, by name.
_STOP_WORDS = {
    "no header": "expected #!MLF!# at the beginning",
    "no times": "the last row of the entry has no times; expected start, end and label",
    "no frames": "the entry has no frames",
    "long key": "a key of more than 4096 bytes",
    "not binary": "expected the letters MLF at the beginning of a binary label file",
    "version": "a binary label file of an unknown version; expected 1 or 2",
    "truncated": "the file ends within an entry",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelSettings:
    """Settings of one stream of labels.

    Attributes:
        dim: Number of classes.
        is_text: Whether the files are text, or else binary.
        mapping_file: File with the names of the classes; None: the fourth column is the class.
        target_file: File with the vector that is delivered for each class; None: one-hot vectors, or class ids.
        target_dim: Values of these vectors; None: as many as on the file's first line.
        as_class_ids: Whether to deliver the class of each frame instead of a vector.
        marks_starts: Whether the first frame of each row has the value 2 instead of 1.
        times: Unit of the first two columns.
        frame_period: Duration of a frame in units of 100 ns.
        cache_index: Whether to keep the entries in an index cache.
        options: Options that features have, too.
    """

    name: str
    paths: tuple[str, ...]
    dim: int
    is_text: bool = False
    mapping_file: AnyPath | None
    target_file: AnyPath | None
    target_dim: int | None
    as_class_ids: bool
    marks_starts: bool
    defines_mb_size: bool
    times: Times = "auto"
    frame_period: float = FRAME_PERIOD
    cache_index: bool
    options: UtteranceOptions

    def __post_init__(self) -> None:
        check_word("times", self.times, "100ns", "frames", "auto")
        if not self.frame_period > 0:  # refuses NaN, too
            raise ConfigError(f"frame_period is {self.frame_period}; expected more than 0", key="frame_period")
        dim: Any = self.target_dim
        if dim is not None and not self.target_file:
            raise ConfigError(f"targetDim={dim} is possible only with a labelToTargetMappingFile", key="targetDim")
        if dim is not None and not (is_whole(dim) and 1 <= dim <= LARGEST_DIM):
            raise ConfigError(f"targetDim is {dim!r}; expected 1 to {LARGEST_DIM} values", key="targetDim")
        forms = "as_class_ids", "phoneBoundaries", "labelToTargetMappingFile"
        chosen = [*itertools.compress(forms, (self.as_class_ids, self.marks_starts, self.target_file))]
        if len(chosen) > 1:
            key = "labelToTargetMappingFile" if self.target_file else "as_class_ids"
            raise ConfigError(f"{chosen[0]} and {chosen[1]} exclude each other", key=key)


class CompactIntegers(NamedTuple):
    """32-bit integers, kept in 16 bits if all are small.

    Attributes:
        low: Their lower halves.
        high: Their upper halves; empty if all are zero.
    """

    low: npt.NDArray[np.uint16]
    high: npt.NDArray[np.uint16]

    def only(self, which: slice | npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """Return the integers that a slice or indices select."""
        low = self.low[which].astype(np.uint32)
        return low | self.high[which].astype(np.uint32) << np.uint32(16) if len(self.high) else low

    @classmethod
    def joined(cls, parts: Sequence[CompactIntegers]) -> CompactIntegers:
        """Join several columns, in their order."""
        if len(parts) == 1:
            return parts[0]
        low = np.concatenate([part.low for part in parts])
        if not any(len(part.high) for part in parts):
            return cls(low, np.zeros(0, np.uint16))
        return cls(low, np.concatenate([part.high if len(part.high) else np.zeros_like(part.low) for part in parts]))


class Entries(NamedTuple):
    """Entries of one file, or of several.

    Attributes:
        is_pattern: Whether each key also matches all keys that end with a slash and this key (``*/`` before it).
        offsets: Byte at which each entry begins.
        frames: Number of frames of each entry.
        faults: Index of each entry's fault in the core's `MLF_FAULTS`; 0: the entry is sound.
        fault_offsets: Byte of the row with the fault.
        run_ends: End of each entry's runs in `starts` and `classes`.
        starts: First frame of each run.
        classes: Class of each run.
        remarks: For each of `REMARKS_ON_LABELS`, the number of cases and the bytes of the first cases.
    """

    keys: npt.NDArray[np.bytes_]
    is_pattern: npt.NDArray[np.bool_]
    offsets: npt.NDArray[np.uint64]
    frames: npt.NDArray[np.uint32]
    faults: npt.NDArray[np.uint8]
    fault_offsets: npt.NDArray[np.uint64]
    run_ends: npt.NDArray[np.uint64]
    starts: CompactIntegers
    classes: CompactIntegers
    remarks: list[tuple[int, list[int]]]

    @classmethod
    def joined(cls, files: Sequence[Entries]) -> Entries:
        """Put the entries of files one after the other, without their remarks."""
        if len(files) == 1:
            return files[0]
        # The runs of each file count from 0.
        num_runs = np.cumsum([0, *(len(file.starts.low) for file in files)]).astype(np.uint64)
        moved = [file._replace(run_ends=file.run_ends + before) for file, before in zip(files, num_runs, strict=False)]
        columns: list[Any] = [*zip(*moved, strict=True)]
        of_all: list[Any] = [*map(np.concatenate, columns[:7]), *map(CompactIntegers.joined, columns[7:9])]
        return cls._make([*of_all, []])

    def to_cache(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return the facts and arrays that an index cache keeps."""
        # A cache keeps numbers only, so keys are padded to a multiple of 8 bytes.
        width = -(-self.keys.dtype.itemsize // 8) * 8
        arrays: dict[str, npt.NDArray[Any]] = {
            "keys": self.keys.astype(f"S{width}").view(np.uint64), "at": self.offsets, "frames": self.frames,
            "faults": self.faults.astype(np.uint32), "fault_at": self.fault_offsets, "run_ends": self.run_ends,
            "starts": self.starts.low, "high_starts": self.starts.high,
            "classes": self.classes.low, "high_classes": self.classes.high,
            "patterns": np.flatnonzero(self.is_pattern).astype(np.uint64),
        }  # fmt: skip
        return {"width": width, "remarks": self.remarks}, arrays

    @classmethod
    def from_cache(cls, facts: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Entries:
        """Make entries from the facts and arrays of an index cache.

        Raises:
            IndexError, KeyError, TypeError, ValueError: The cache is damaged.
        """
        width = int(facts["width"])
        keys = arrays["keys"].view(np.uint8).view(f"S{width}")
        count, num_runs = len(keys), len(arrays["starts"])
        ends = arrays["run_ends"]
        if any(len(arrays[name]) != count for name in ("at", "frames", "faults", "fault_at", "run_ends")):
            raise ValueError("its arrays do not fit each other")
        starts, classes = (CompactIntegers(arrays[name], arrays[f"high_{name}"]) for name in ("starts", "classes"))
        sizes = {len(classes.low), len(starts.high) or num_runs, len(classes.high) or num_runs}
        if sizes != {num_runs} or (count and (int(ends[-1]) != num_runs or np.any(ends[1:] < ends[:-1]))):
            raise ValueError("its runs do not fit each other")
        remarks = [(int(times), [int(byte) for byte in offsets]) for times, offsets in facts["remarks"]]
        if len(remarks) != len(REMARKS_ON_LABELS):
            raise ValueError("its remarks are damaged")
        is_pattern = np.zeros(count, np.bool_)
        is_pattern[arrays["patterns"]] = True
        at, frames, fault_at = arrays["at"], arrays["frames"], arrays["fault_at"]
        faults = arrays["faults"].astype(np.uint8)
        return cls(keys, is_pattern, at, frames, faults, fault_at, ends, starts, classes, remarks)


def read_entries(path: str, names: Names, settings: LabelSettings) -> Entries:
    """Read the entries of a text label file, or load them from its index cache."""
    # A cache keeps classes, so it depends on the names; its header has only their checksum.
    digest = None if names is None else hashlib.blake2b(b"\n".join(names), digest_size=16).hexdigest()
    facts = {
        # 100000 and 100000.0 are the same period, but JSON writes them differently.
        "format": "mlf", "compatible": settings.options.compatible, "times": settings.times, "dim": settings.dim,
        "frame_period": float(settings.frame_period), "names": digest,
    }  # fmt: skip
    with closing(open_stored(path, settings.options.remote)) as text:
        if not settings.cache_index:
            return scan_text(text, path, names, settings)
        cache = IndexCache(text, facts)
        entries = cache.read(lambda arrays: Entries.from_cache(arrays.facts, arrays.read_all()))
        if entries is None:
            entries = scan_text(text, path, names, settings)
            cache.write(*entries.to_cache())
        return entries


def scan_text(text: TextInput, path: str, names: Names, settings: LabelSettings) -> Entries:
    """Scan an opened text label file. Faults that affect more than one entry are errors."""
    units = {"auto": None, "100ns": True, "frames": False}
    with explained(text):  # a file that was truncated while it was read ends too early
        times = units[settings.times], float(settings.frame_period)
        source = text.source(0, text.size)
        scanned = _core.mlf_scan(source, settings.options.compatible, times, names, settings.dim, num_threads())
        if scanned.stop is not None:
            kind, what, byte = _stopped(scanned.stop, "mlf", path, settings.options.remote)
            raise Locator(text).error(min(byte, text.size), what, kind=kind)
        text.storage.require_unchanged()
    return _entries_of(scanned)


def scan_binary(path: str, dim: int, remote: Remote | None = None) -> Entries:
    """Scan a binary label file."""
    scanned = _core.mlf_scan_binary(all_bytes(path, remote), dim)
    if scanned.stop is not None:
        kind, what, byte = _stopped(scanned.stop, "binary mlf", path, remote)
        raise FormatError(what, path=path, byte=byte, kind=kind)
    return _entries_of(scanned)


def _stopped(stop: tuple[int, int], form: str, path: str, remote: Remote | None) -> tuple[str, str, int]:
    """Return the kind of the error that ended a scan, its message, and the byte."""
    kind = _core.MLF_STOPS[stop[0]]
    is_unknown = kind in ("no header", "not binary")
    if is_unknown and not all_bytes(path, remote).removeprefix(codecs.BOM_UTF8).strip():
        return EMPTY_FILE, f"the file is empty; {_STOP_WORDS[kind]}", stop[1]
    return kind, _STOP_WORDS[kind] + other_than(form, path), stop[1]


def _entries_of(scanned: _core.MLFLabels) -> Entries:
    return Entries(
        text_rows(scanned.keys), scanned.is_pattern, scanned.offsets, scanned.frames, scanned.faults,
        scanned.fault_offsets, scanned.run_ends, CompactIntegers(*scanned.starts), CompactIntegers(*scanned.classes),
        scanned.remarks,
    )  # fmt: skip


_BITS = bytes.maketrans(b"01", b"\0\1")
_LINE_END = re.compile(rb"\r\n?|\n")


def read_mapping(path: AnyPath, remote: Remote | None = None) -> list[bytes]:
    """Read a label mapping file: a name on each line, in the order of the classes; empty lines are skipped.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp(), "states.list")
        >>> _ = path.write_text("sil\\naa\\n")
        >>> read_mapping(path)
        [b'sil', b'aa']
    """
    data = whole_text(path, remote)
    if b"\0" in data:
        what = other_than("mapping", path, before="") or "a zero byte; expected a name on each line"
        raise FormatError(what, path=path)
    line_of: dict[bytes, int] = {}
    for line, name in enumerate(_LINE_END.split(data), 1):
        # Empty lines are not names, and do not count.
        if line_of.setdefault(name, line) != line and name:
            what = f"the name {decoded(name)!r} is already on line {line_of[name]}; expected each name once"
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
    path: AnyPath, num_classes: int, names: Sequence[bytes] | None = None, dim: int | None = None,
    remote: Remote | None = None,
) -> Targets:  # fmt: skip
    """Read a file of vectors that replace one-hot vectors: on each line a name, a blank, and 0s and 1s.

    Args:
        path: The file, with lines in the order of the classes. Empty lines are skipped.
        num_classes: Number of classes; the vectors of classes without a name contain zeros.
        names: Names of the classes; None: accept any names, and require a line for every class.
        dim: Number of 0s and 1s on a line; None: as many as on the first line.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp(), "targets.txt")
        >>> _ = path.write_text("sil 100\\naa 011\\n")
        >>> read_targets(path, 2, [b"sil", b"aa"])
        Targets(dim=3, rows=b'\\x01\\x00\\x00\\x00\\x01\\x01')
    """
    lines = _LINE_END.split(whole_text(path, remote).replace(b"\t", b" "))
    expected = num_classes if names is None else len(names)
    rows: list[bytes] = []
    for line, text in enumerate(lines, 1):
        name, _, bits = text.strip(b" ").rpartition(b" ")
        if not bits:
            continue
        dim = len(bits) if dim is None else dim
        if not name or bits.strip(b"01"):
            what = f"{decoded(text)!r}; expected a name, a blank, and a text of 0s and 1s"
            raise FormatError(what, path=path, line=line)
        if len(bits) != dim:
            raise FormatError(f"{counted(len(bits), 'value')}; expected {dim}", path=path, line=line)
        if names is not None and len(rows) < expected and name.strip() != names[len(rows)]:
            what = f"the label {decoded(name)!r}; the mapping file has {decoded(names[len(rows)])!r} here"
            raise FormatError(what, path=path, line=line)
        rows.append(bits)
    if len(rows) != expected:
        raise FormatError(f"{counted(len(rows), 'target')}; expected {expected}", path=path, line=len(lines))
    missing = b"0" * (max(num_classes - expected, 0) * (dim or 0))
    return Targets(dim or 0, (b"".join(rows) + missing).translate(_BITS))


def infer_labels(path: AnyPath) -> list[bytes]:
    """Return the labels in a label file, sorted by their bytes: class names for use without a mapping file.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp(), "a.mlf")
        >>> _ = path.write_text('#!MLF!#\\n"u1"\\n0 3 sil\\n3 5 aa\\n.\\n')
        >>> infer_labels(path)
        [b'aa', b'sil']
    """
    with closing(open_stored(os.fspath(path))) as text:
        return _core.mlf_names(text.source(0, text.size))


def advice_on_row(wrong: WrongWord) -> str:
    """Return the change of a word that mends a label file; see `FileKind.advice_on_words`."""
    if wrong.code == "bad-times" and wrong.word.startswith('"'):
        return "write a dot on a line before this name, to end the entry above it"
    if wrong.code == "broken-file" and "#!MLF!#" in wrong.message:
        return "write #!MLF!# on a line above this line"
    if wrong.code == "bad-range":
        return "write the earlier time first"
    if wrong.code == "empty-utterance" and re.fullmatch(r"\d*\.\d+", wrong.word):
        return "write times in units of 100 ns, such as 2000000 for 0.2 s"
    return ""

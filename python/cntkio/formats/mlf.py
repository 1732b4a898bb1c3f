"""HTK labels: master label files (MLF), text and binary, and mapping files. (docs/formats/htk.md)

::

    states.list   one name a line, its class is the number of the line from 0
    a.mlf         entry: key, rows of start, end, label  ── the compiled core ──>  runs: first frame, class
    a.bmlf        the same in binary, with classes instead of labels

A whole file is read when it is opened, and kept as runs: 4 bytes for each row, or up to 8. Its law: what is wrong with
an entry is an error only if that entry is wanted, and then it names the file, the line, the utterance and the label.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio._threads import num_threads
from cntkio.errors import CntkIoError, ConfigError, CorpusError, FormatError
from cntkio.formats.contract import NOTHING_AHEAD, Ahead, Deserializer, Joins, Loaded, Utterances
from cntkio.formats.htk import (
    _DEFAULT_LONGEST,
    Unequal,
    check_streams,
    first_same,
    paths_of,
    set_option,
    stream_of,
    text_rows,
    values_of,
)
from cntkio.formats.input_file import InputFile, Locator
from cntkio.formats.output_file import write_whole
from cntkio.formats.report import Report
from cntkio.formats.table import IndexCache, SequenceTable, fingerprint
from cntkio.streams import Record, StreamDefs, StreamInformation

logger = logging.getLogger("cntkio")

FRAME_PERIOD = 100_000
"""A frame's duration in units of 100 ns: 10 ms."""
_CHUNK_FRAMES = 1 << 20
_LARGEST_RUN = 65535
_LARGEST_LITERAL_DIM = 65535
_LARGEST_DIM = 2**31 - 1
_STREAM_KEYS = {
    "mlffile": "mlf", "mlffilelist": "mlf_list", "labelmappingfile": "label_mapping_file", "dim": "dim",
    "labeldim": "dim", "phoneboundaries": "phone_boundaries", "definesmbsize": "defines_mb_size", "type": "",
    "labeltype": "", "cacheindex": "cache_index", "labeltotargetmappingfile": "target_file", "targetdim": "target_dim",
}  # fmt: skip

# In the order of the core's `Fault`; up to _LAST_INVALID an utterance is invalid, beyond it is broken.
_FAULTS = (
    "",
    "the row does not begin where the one before ended",
    "the first row does not begin at frame 0",
    "too few columns, or not exactly four where no mapping file names the labels; expected start, end and label",
    "a time that is no number, or that is no frame",
    "the row ends before it begins",
    "the label is not in the mapping file",
    "the fourth column is not a class; expected a whole number",
    "the class is beyond the dimension",
    "the utterance has no frames",
    "the runs do not sum up to the number of frames",
)
_LAST_INVALID = 2
_NO_FRAMES = 9
# In the order of the core's `Remark`.
_REMARKS = (
    ("unquoted key", "a line between entries that is not in quotes; its entry is left out"),
    ("empty entry", "an entry without rows, which is left out"),
    ("entry cut off", "the file ends within this entry, which is left out"),
    ("pattern", "a wildcard behind the beginning of a key; it matches no utterance"),
)
# In the order of the core's `Stop`.
_STOPS = (
    "expected #!MLF!# at the beginning",
    "the last row of the entry has no times; expected start, end and label",
    "the entry has no frames",
    "a key of more than 4096 bytes",
    "expected the letters MLF at the beginning of a binary label file",
    "a binary label file of this version is not known; expected 1 or 2",
    "the file ends within an entry",
)


def read_mapping(path: str | os.PathLike[str]) -> list[bytes]:
    """The names of a label mapping file: one a line, in the order of their classes; empty lines do not count.

    Raises:
        OSError: The file cannot be read.
        FormatError: A name stands there twice.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "states.list")
        >>> _ = path.write_text("sil\\naa\\n")
        >>> read_mapping(path)
        [b'sil', b'aa']
    """
    data = Path(path).read_bytes()
    names = [name for name in data.replace(b"\r", b"\n").split(b"\n") if name]
    if len(set(names)) < len(names):
        seen: set[bytes] = set()
        again = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise FormatError(f"the name {again.decode(errors='replace')!r} stands there twice", path=path)
    return names


class Targets(NamedTuple):
    """A dense vector of zeros and ones for each class.

    Attributes:
        dim: Values of a vector.
        rows: The vectors, class after class, a byte for each value.
    """

    dim: int
    rows: bytes


def read_targets(
    path: str | os.PathLike[str], num_classes: int, names: Sequence[bytes] | None = None, dim: int | None = None
) -> Targets:
    """Read what is delivered in place of one-hot vectors: for each class a line with its name, blanks, and 0s and 1s.

    Args:
        path: The file, its lines in the order of the classes. Empty ones do not count.
        num_classes: How many classes there are; those without a name have zeros.
        names: The names of the classes; None: any, and a line for every class.
        dim: How many 0s and 1s a line has; None: as many as the first.

    Raises:
        OSError: The file cannot be read.
        FormatError: A line is not of that form, has another name or length, or there are too few or too many.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "targets.txt")
        >>> _ = path.write_text("sil 100\\naa 011\\n")
        >>> read_targets(path, 2, [b"sil", b"aa"])
        Targets(dim=3, rows=b'\\x01\\x00\\x00\\x00\\x01\\x01')
    """
    lines = Path(path).read_bytes().replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    given = [(number, *line.rpartition(b" ")[::2]) for number, line in enumerate(map(_blanked, lines), 1) if line]
    expected = num_classes if names is None else len(names)
    rows = []
    for at, (line, name, bits) in enumerate(given):
        dim = len(bits) if dim is None else dim
        if not name or bits.strip(b"01"):
            raise FormatError("expected a name, a blank, and a text of 0s and 1s", path=path, line=line)
        if len(bits) != dim:
            raise FormatError(f"{len(bits)} values; expected {dim}", path=path, line=line)
        if names is not None and at < len(names) and name.strip() != names[at]:
            wanted = names[at].decode(errors="replace")
            raise FormatError(
                f"the label {name.decode(errors='replace')!r}; the mapping file has {wanted!r} here",
                path=path,
                line=line,
            )
        rows.append(bits)
    if len(rows) != expected:
        raise FormatError(f"targets of {len(rows)} labels; expected {expected}", path=path, line=len(lines))
    missing = b"0" * (max(num_classes - expected, 0) * (dim or 0))
    return Targets(dim or 0, (b"".join(rows) + missing).translate(_BITS))


_BITS = bytes.maketrans(b"01", b"\0\1")


def _blanked(line: bytes) -> bytes:
    return line.replace(b"\t", b" ").strip(b" ")


def infer_labels(path: str | os.PathLike[str]) -> list[bytes]:
    """The labels in a label file, in the order of their bytes: names for who has no mapping file.

    Raises:
        OSError: The file cannot be read.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.mlf")
        >>> _ = path.write_text('#!MLF!#\\n"u1"\\n0 3 sil\\n3 5 aa\\n.\\n')
        >>> infer_labels(path)
        [b'aa', b'sil']
    """
    with Path(path).open("rb") as file:
        return _core.mlf_names(file.fileno(), os.fstat(file.fileno()).st_size)


class _Numbers(NamedTuple):
    """Numbers of 32 bits, kept in 16 while all are small.

    Attributes:
        low: Their lower halves.
        high: Their upper halves; none while all are zero.
    """

    low: npt.NDArray[np.uint16]
    high: npt.NDArray[np.uint16]

    def part(self, begin: int, end: int) -> npt.NDArray[np.uint32]:
        """Some of them."""
        low = self.low[begin:end].astype(np.uint32)
        return low | self.high[begin:end].astype(np.uint32) << np.uint32(16) if len(self.high) else low

    @classmethod
    def joined(cls, parts: Sequence[_Numbers]) -> _Numbers:
        """All of several, one after the other."""
        if len(parts) == 1:
            return parts[0]
        are_small = not any(len(part.high) for part in parts)
        highs = [part.high if len(part.high) else np.zeros_like(part.low) for part in parts]
        return cls(
            np.concatenate([part.low for part in parts]), np.zeros(0, np.uint16) if are_small else np.concatenate(highs)
        )


class _Entries(NamedTuple):
    """The entries of one file."""

    path: str
    keys: npt.NDArray[np.bytes_]
    at: npt.NDArray[np.uint64]
    frames: npt.NDArray[np.uint32]
    faults: npt.NDArray[np.uint8]
    fault_at: npt.NDArray[np.uint64]
    run_ends: npt.NDArray[np.uint64]
    starts: _Numbers
    classes: _Numbers
    remarks: list[tuple[int, list[int]]]


# ------------------------------------------------------------------------------------------------ description


@dataclasses.dataclass(frozen=True, eq=False)
class HTKMLFDeserializer:
    """Labels in master label files of HTK.

    Args:
        label_mapping_file: The names of the labels in the order of their classes; None: the fourth column is the class.
        streams: One stream, ``StreamDef(mlf=..., shape=number of classes)``; `mlf` is a file, or several.
        phoneBoundaries: Whether the first frame of each row has the value 2 instead of 1.
        times: What the rows count: ``"100ns"``, ``"frames"``, or ``"auto"``, which is what each entry tells.
        frame_period: Duration of a frame in units of 100 ns.
        as_class_ids: Deliver the class of each frame (int32, shape ``()``) instead of a sparse vector.
        labelToTargetMappingFile: Deliver a dense vector of zeros and ones for each class instead: a file with a line
            for each, in the order of the classes, of its name, a blank, and 0s and 1s (docs/formats/htk.md).
        targetDim: How many of them there are; None: as many as the file's first line has.
        unequal_lengths: What becomes of an utterance that is not as long as its features: ``"error"``, ``"drop"`` it,
            or ``"keep"`` it as it is.
        cache_index: Keep what was read in a file beside each label file, or in the user's cache folder.
        compatible: Read as CNTK 2.7 does, to the letter (docs/formats/htk.md, "Compatible").
        strict: Take what is only warned of as an error.
        stream_options: For the stream further keys by CNTK's names, such as ``{"L": {"labelMappingFile": None}}``.

    Raises:
        ConfigError: An option is not possible.

    Example:
        >>> from cntkio import StreamDef
        >>> HTKMLFDeserializer("states.list", StreamDefs(L=StreamDef(mlf="train.mlf", shape=132))).streams.L.mlf
        'train.mlf'
    """

    label_mapping_file: str | None
    streams: StreamDefs
    phoneBoundaries: bool = False  # noqa: N815 - CNTK's name
    _: dataclasses.KW_ONLY
    times: Literal["auto", "100ns", "frames"] = "auto"
    frame_period: float = FRAME_PERIOD
    as_class_ids: bool = False
    labelToTargetMappingFile: str | os.PathLike[str] | None = None  # noqa: N815 - CNTK's name
    targetDim: int | None = None  # noqa: N815 - CNTK's name
    unequal_lengths: Unequal | None = None
    cache_index: bool = False
    compatible: bool = False
    strict: bool = False
    stream_options: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    has_text_keys = True

    def __post_init__(self) -> None:
        """Check what can be checked without the files."""
        if self.times not in ("auto", "100ns", "frames"):
            raise ConfigError(f"times is {self.times!r}; expected '100ns', 'frames' or 'auto'", key="times")
        if not self.frame_period > 0:
            raise ConfigError(f"frame_period is {self.frame_period}; expected more than 0", key="frame_period")
        _check(self, "HTKMLFDeserializer")
        settings = _settings(self, self.label_mapping_file)
        if self.as_class_ids and settings["phone_boundaries"]:
            raise ConfigError("as_class_ids and phoneBoundaries exclude each other", key="as_class_ids")
        _check_targets(self, settings)

    def __setitem__(self, key: str, value: Any) -> None:
        """Set an option by CNTK's name for it, upper or lower case."""
        set_option(self, key, value)

    def parts(self) -> Sequence[Deserializer]:
        return (self,)

    def open(self, *, text_keys: bool = True, ahead: Ahead = NOTHING_AHEAD) -> MLFCorpus:
        """Read the files, or the index caches beside them.

        Raises:
            OSError: A file cannot be read.
            FormatError: A label file or the mapping file breaks its format.
        """
        settings = _settings(self, self.label_mapping_file)
        mapping = settings.get("label_mapping_file")
        return self.open_with(read_mapping(mapping) if mapping else None)

    def open_with(self, names: list[bytes] | None) -> MLFCorpus:
        """As `open`, with these names in place of those of the mapping file."""
        settings = _settings(self, self.label_mapping_file)
        if settings["target_file"]:
            settings["targets"] = read_targets(
                settings["target_file"], settings["dim"], None if names is None else names[: settings["dim"]],
                settings["target_dim"],
            )  # fmt: skip
        return MLFCorpus(self, settings, [self._entries(path, names, settings) for path in settings["mlf"]])

    def _entries(self, path: str, names: list[bytes] | None, settings: Mapping[str, Any]) -> _Entries:
        what = {
            "format": "mlf", "compatible": self.compatible, "times": self.times,
            "frame_period": float(self.frame_period), "dim": settings["dim"],
            "names": None if names is None else hashlib.blake2b(b"\n".join(names), digest_size=16).hexdigest(),
        }  # fmt: skip
        cache = IndexCache(Path(path), what) if self.cache_index or settings.get("cache_index") else None
        found = None if cache is None else cache.read()
        if found is not None:
            try:
                return _from_cache(path, found.facts, found.arrays)
            except (KeyError, ValueError, TypeError) as error:
                logger.info("%s: index cache not used: %s", path, error)
        before = fingerprint(Path(path)) if cache is not None else {}
        made = self._scan(path, names, settings["dim"])
        if cache is not None:
            width = -(-made.keys.dtype.itemsize // 8) * 8
            arrays: dict[str, npt.NDArray[Any]] = {
                "keys": made.keys.astype(f"S{width}").view(np.uint64), "at": made.at, "frames": made.frames,
                "faults": made.faults.astype(np.uint32), "fault_at": made.fault_at, "run_ends": made.run_ends,
                "starts": made.starts.low, "high_starts": made.starts.high,
                "classes": made.classes.low, "high_classes": made.classes.high,
            }  # fmt: skip
            cache.write(before, {"width": width, "remarks": made.remarks}, arrays)
        return made

    def _scan(self, path: str, names: list[bytes] | None, dim: int) -> _Entries:
        text = InputFile(path)
        try:
            counts_time = {"auto": None, "100ns": True, "frames": False}[self.times]
            part = _core.mlf_scan(
                text.handle, self.compatible, counts_time, float(self.frame_period), names, dim, num_threads()
            )
            _refuse(part[-1], text)
            text.require_unchanged()
        except OSError:
            text.require_unchanged()  # one that has become shorter ends too early
            raise
        finally:
            text.close()
        return _made(path, part)


@dataclasses.dataclass(frozen=True, eq=False)
class HTKMLFBinaryDeserializer:
    """Labels in binary master label files.

    Args:
        streams: One stream, ``StreamDef(mlf=..., shape=number of classes)``; `mlf` is a file, or several.
        as_class_ids: Deliver the class of each frame (int32, shape ``()``) instead of a sparse vector.
        unequal_lengths: As for `HTKMLFDeserializer`.
        compatible: As for `HTKMLFDeserializer`.
        strict: Take what is only warned of as an error.
        stream_options: For the stream further keys by CNTK's names.

    Raises:
        ConfigError: An option is not possible.

    Example:
        >>> from cntkio import StreamDef
        >>> HTKMLFBinaryDeserializer(StreamDefs(L=StreamDef(mlf="train.bmlf", shape=132))).streams.L.dim
        132
    """

    streams: StreamDefs
    _: dataclasses.KW_ONLY
    as_class_ids: bool = False
    unequal_lengths: Unequal | None = None
    compatible: bool = False
    strict: bool = False
    stream_options: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    phoneBoundaries = False  # noqa: N815 - CNTK's name
    has_text_keys = True

    def __post_init__(self) -> None:
        """Check what can be checked without the files."""
        _check(self, "HTKMLFBinaryDeserializer")
        _settings(self, None)

    def __setitem__(self, key: str, value: Any) -> None:
        """Set an option by CNTK's name for it, upper or lower case."""
        set_option(self, key, value)

    def parts(self) -> Sequence[Deserializer]:
        return (self,)

    def open(self, *, text_keys: bool = True, ahead: Ahead = NOTHING_AHEAD) -> MLFCorpus:
        """Read the files.

        Raises:
            OSError: A file cannot be read.
            FormatError: A file breaks the format.
        """
        settings = _settings(self, None)
        return MLFCorpus(self, settings, [self._entries(path, settings["dim"]) for path in settings["mlf"]])

    @staticmethod
    def _entries(path: str, dim: int) -> _Entries:
        part = _core.mlf_scan_binary(Path(path).read_bytes(), dim)
        if part[-1] is not None:
            stop, byte = part[-1]
            raise FormatError(_STOPS[stop], path=path, byte=byte)
        return _made(path, part)


_Described = HTKMLFDeserializer | HTKMLFBinaryDeserializer


def _check(options: _Described, kind: str) -> None:
    check_streams(options, kind)
    if len(options.streams) != 1:
        raise ConfigError(f"{kind} only accepts a single stream; it has {len(options.streams)}", key="streams")


def _settings(options: _Described, mapping: str | None) -> dict[str, Any]:
    ((name, stream),) = options.streams.items()
    with_own = Record(
        {
            **stream,
            "label_mapping_file": mapping,
            "phone_boundaries": options.phoneBoundaries,
            "target_file": getattr(options, "labelToTargetMappingFile", None),
            "target_dim": getattr(options, "targetDim", None),
        }
    )
    settings = stream_of(name, with_own, options.stream_options, _STREAM_KEYS)
    files = paths_of(settings.get("mlf") or [])
    listed = settings.get("mlf_list") or []
    if isinstance(listed, str):
        lines = os.fsdecode(Path(listed).read_bytes()).split("\n")
        listed = [line.strip() for line in lines if line.strip()]
    settings["mlf"] = [*files, *listed]
    if not settings["mlf"]:
        raise ConfigError("no master label files specified: StreamDef(mlf=...) is missing", key=name)
    most = _LARGEST_LITERAL_DIM if options.compatible else _LARGEST_DIM
    settings["dim"] = values_of(name, settings.get("dim"), most, "classes")
    settings["defines_mb_size"] = bool(settings["defines_mb_size"] or getattr(options, "_defines_mb_size", False))
    limit = settings.get("max_sequence_length")
    settings["max_sequence_length"] = None if options.compatible or limit == _DEFAULT_LONGEST else limit
    return settings


def _check_targets(options: HTKMLFDeserializer, settings: Mapping[str, Any]) -> None:
    dim = settings["target_dim"]
    if not settings["target_file"]:
        if dim is not None:
            raise ConfigError(f"targetDim={dim} goes with a labelToTargetMappingFile", key="targetDim")
        return
    if isinstance(dim, bool) or not (dim is None or (isinstance(dim, int | np.integer) and 1 <= dim <= _LARGEST_DIM)):
        raise ConfigError(f"targetDim is {dim!r}; expected 1 to {_LARGEST_DIM} values", key="targetDim")
    for name, other in (("as_class_ids", options.as_class_ids), ("phoneBoundaries", settings["phone_boundaries"])):
        if other:
            raise ConfigError(f"{name} and labelToTargetMappingFile exclude each other", key="labelToTargetMappingFile")


def _refuse(stop: tuple[int, int] | None, text: InputFile) -> None:
    if stop is not None:
        kind, byte = stop
        raise Locator(text).error(min(byte, text.size), _STOPS[kind])


def _made(path: str, found: Any) -> _Entries:
    rows, at, frames, faults, fault_at, run_ends, starts, classes, remarks, _ = found
    numbers = _Numbers(*starts), _Numbers(*classes)
    return _Entries(path, text_rows(rows), at, frames, faults, fault_at, run_ends, *numbers, remarks)


def _from_cache(path: str, facts: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> _Entries:
    width = int(facts["width"])
    keys = arrays["keys"].view(np.uint8).view(f"S{width}")
    count, num_runs = len(keys), len(arrays["starts"])
    ends = arrays["run_ends"]
    if any(len(arrays[name]) != count for name in ("at", "frames", "faults", "fault_at", "run_ends")):
        raise ValueError("its arrays do not belong together")
    starts, classes = (_Numbers(arrays[name], arrays[f"high_{name}"]) for name in ("starts", "classes"))
    sizes = {len(classes.low), len(starts.high) or num_runs, len(classes.high) or num_runs}
    if sizes != {num_runs} or (count and (int(ends[-1]) != num_runs or np.any(ends[1:] < ends[:-1]))):
        raise ValueError("its runs do not belong together")
    remarks = [(int(number), [int(at) for at in places]) for number, places in facts["remarks"]]
    if len(remarks) != len(_REMARKS):
        raise ValueError("its remarks are damaged")
    return _Entries(
        path, keys, arrays["at"], arrays["frames"], arrays["faults"].astype(np.uint8), arrays["fault_at"], ends,
        starts, classes, remarks,
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------- corpus


class MLFCorpus:
    """Opened label files.

    Made by `HTKMLFDeserializer.open`; see `cntkio.formats.Corpus` for what its methods owe.
    """

    joins: Joins = "anywhere"

    def __init__(self, options: _Described, settings: Mapping[str, Any], files: list[_Entries]) -> None:
        self._options, self._files = options, files
        self._dim: int = settings["dim"]
        self._marks_starts = bool(settings["phone_boundaries"])
        self.name = ", ".join(entries.path for entries in files)
        self.report = Report(self.name)
        ((name, _),) = options.streams.items()
        self._targets: Targets | None = settings.get("targets")
        if self._targets is not None:
            info = StreamInformation(name, 0, "dense", np.float32, self._targets.dim, settings["defines_mb_size"])
        elif options.as_class_ids:
            info = StreamInformation(name, 0, "dense", np.int32, (), settings["defines_mb_size"])
        else:
            info = StreamInformation(name, 0, "sparse", np.float32, self._dim, settings["defines_mb_size"])
        self.streams = (info,)
        self._log_remarks()
        keys = np.concatenate([one.keys for one in files])
        self._first_of_file = np.cumsum([0, *(len(one.keys) for one in files)])
        self._faults = np.concatenate([one.faults for one in files])
        num_runs = np.cumsum([0, *(len(one.starts.low) for one in files)]).astype(np.uint64)
        run_ends = [one.run_ends + before for one, before in zip(files, num_runs, strict=False)]
        self._run_bounds = np.concatenate([np.zeros(1, np.uint64), *run_ends]).astype(np.int64)
        self._starts = _Numbers.joined([one.starts for one in files])
        self._classes = _Numbers.joined([one.classes for one in files])
        frames = np.concatenate([one.frames for one in files])
        # A broken utterance may have no frames, but counts for one: it is never delivered.
        lengths = np.where(self._faults > _LAST_INVALID, np.maximum(frames, 1), frames).astype(np.uint32)
        self.table = SequenceTable(keys, lengths, _core.htk_chunk_starts(lengths, _CHUNK_FRAMES))
        self._refuse_repeated(keys)
        if not len(keys):
            raise CorpusError(f"{self.name}: no entry is left to read")
        is_invalid = (self._faults > 0) & (self._faults <= _LAST_INVALID)
        is_broken = self._faults > _LAST_INVALID
        longest = settings["max_sequence_length"]
        if longest is not None:
            raise ConfigError("max_sequence_length is the features'; set it there", key=name)
        self.utterances = Utterances(
            can_lead=False,
            unequal_lengths=options.unequal_lengths or ("keep" if options.compatible else "error"),
            refuses_frame_mode="phoneBoundaries and frame mode exclude each other" if self._marks_starts else None,
            invalid=is_invalid if is_invalid.any() else None,
            broken=is_broken if is_broken.any() else None,
            is_literal=options.compatible,
            complaint=self._complaint,
        )

    def _refuse_repeated(self, keys: npt.NDArray[np.bytes_]) -> None:
        first = first_same(keys)
        again = np.flatnonzero(first != np.arange(len(first)))
        if not len(again):
            return
        number = int(again[0])
        error = self._error(number, int(self._at(number)), f"a second entry of this utterance ({len(again)} in all)")
        if not self._options.compatible:
            raise error
        self.report.log_together("repeated utterance", len(again), f"{error}; the first counts")

    def _log_remarks(self) -> None:
        for entries in self._files:
            for (kind, words), (count, places) in zip(_REMARKS, entries.remarks, strict=True):
                if count:
                    self.report.count(kind, count)
                for byte in places:
                    error = partial(_located, entries.path, byte, words)
                    if self._options.strict:
                        raise error()
                    self.report.log(kind, error)

    def _file_of(self, number: int) -> tuple[_Entries, int]:
        which = int(np.searchsorted(self._first_of_file, number, side="right")) - 1
        return self._files[which], number - int(self._first_of_file[which])

    def _at(self, number: int) -> int:
        file, place = self._file_of(number)
        return int(file.at[place])

    def _error(self, number: int, byte: int, what: str) -> FormatError:
        file, _ = self._file_of(number)
        key = bytes(self.table.keys[number]).decode(errors="replace")
        is_text = isinstance(self._options, HTKMLFDeserializer)
        return _located(file.path, byte, what, sequence=key, stream=self.streams[0].name, is_text=is_text)

    @property
    def num_rows(self) -> int:
        """Rows of all entries; empty ones do not count."""
        return len(self._starts.low)

    def rows(self, number: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
        """The frames and the class of each row of an entry."""
        begin, end = (int(at) for at in self._run_bounds[number : number + 2])
        bounds = np.append(self._starts.part(begin, end), self.table.lengths[number]).astype(np.int64)
        return bounds[1:] - bounds[:-1], self._classes.part(begin, end)

    def _complaint(self, number: int) -> CntkIoError:
        file, place = self._file_of(number)
        fault, byte = int(self._faults[number]), int(file.fault_at[place])
        what = _FAULTS[fault]
        if fault == _FAULTS.index("the class is beyond the dimension"):
            what += f", which is {self._dim}"
        if isinstance(self._options, HTKMLFDeserializer) and fault != _NO_FRAMES:
            with Path(file.path).open("rb") as text:
                text.seek(byte)
                row = text.readline(200).rstrip(b"\r\n").decode(errors="replace")
            what += f": {row!r}"
        return self._error(number, byte, what)

    def fingerprint(self) -> str:
        """What the entries are."""
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.table.keys, self.table.lengths, *self._classes, *self._starts):
            digest.update(np.ascontiguousarray(part).data.cast("B"))
        if self._targets is not None:
            digest.update(self._targets.rows)
        return f"{self.table.num_sequences}:{digest.hexdigest()}"

    def load(self, chunk_id: int) -> Loaded:
        begin, end = (int(at) for at in self.table.chunk_starts[chunk_id : chunk_id + 2])
        first, last = int(self._run_bounds[begin]), int(self._run_bounds[end])
        offsets = (self._run_bounds[begin : end + 1] - first).astype(np.uint32)
        chunk = _core.runs_chunk(
            self.table.lengths[begin:end], offsets, self._starts.part(first, last), self._classes.part(first, last),
            self._dim, self._marks_starts, self._targets,
        )  # fmt: skip
        return Loaded(chunk_id, chunk)

    def take_parsed(self) -> dict[int, Loaded]:
        return {}

    def account_for(self, loaded: Loaded) -> None:
        """Do nothing: all errors of a chunk were found when the files were read."""

    def close(self) -> None:
        self.report.log_totals()


def _located(
    path: str, byte: int, what: str, *, sequence: str | None = None, stream: str | None = None, is_text: bool = True
) -> FormatError:
    if not is_text:
        return FormatError(what, path=path, byte=byte, sequence=sequence, stream=stream)
    text = InputFile(path)
    try:
        return Locator(text).error(byte, what, sequence=sequence, stream=stream)
    finally:
        text.close()


# ---------------------------------------------------------------------------------------------------- writing


def _runs_of(key: str, classes: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where runs of equal classes begin and, last, where they end; and their classes."""
    ids = np.asarray(classes)
    if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu" or ids.min() < 0:
        raise ConfigError(f"utterance {key}: expected the class of each frame, whole numbers from 0", key="utterances")
    starts = np.concatenate([[0], np.flatnonzero(ids[1:] != ids[:-1]) + 1])
    return np.append(starts, len(ids)), ids[starts].astype(np.int64)


def write_mlf(
    path: str | os.PathLike[str],
    utterances: Iterable[tuple[str, npt.NDArray[Any]]],
    names: Sequence[str],
    *,
    extension: str = ".lab",
) -> None:
    """Write a label file: runs of equal classes as rows, times in units of 100 ns, 10 ms a frame.

    Args:
        path: The file.
        utterances: Ids and the class of each frame, whole numbers `[frames]`.
        names: The name of each class.
        extension: Put behind each id.

    Raises:
        ConfigError: A class has no name, or an id or a name cannot stand in a label file.
        OSError: The file cannot be written.

    Example:
        >>> import tempfile
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
            raise ConfigError(f"the name {name!r} cannot stand in a label file", key="names")

    def parts() -> Iterator[bytes]:
        yield b"#!MLF!#\n"
        for key, classes in utterances:
            if not key or set(key) & set('"*?\r\n'):
                raise ConfigError(f"the id {key!r} cannot stand in a label file", key="utterances")
            bounds, ids = _runs_of(key, classes)
            if ids.max() >= len(names):
                raise ConfigError(
                    f"utterance {key}: class {ids.max()}, but there are {len(names)} names", key="utterances"
                )
            times = (bounds * FRAME_PERIOD).tolist()
            rows = (f"{a} {b} {names[c]}\n" for a, b, c in zip(times, times[1:], ids.tolist(), strict=False))
            yield f'"{key}{extension}"\n{"".join(rows)}.\n'.encode()

    write_whole(Path(path), parts())


def write_binary_mlf(path: str | os.PathLike[str], utterances: Iterable[tuple[str, npt.NDArray[Any]]]) -> None:
    """Write a binary label file, version 2.

    Args:
        path: The file.
        utterances: Ids and the class of each frame, whole numbers `[frames]` below 65536.

    Raises:
        ConfigError: A class or an id is too large, or there are too many runs.
        OSError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.bmlf")
        >>> write_binary_mlf(path, [("u1", np.array([0, 0, 1]))])
        >>> path.stat().st_size
        23
    """

    def parts() -> Iterator[bytes]:
        yield b"MLF" + struct.pack("<h", 2)
        for key, classes in utterances:
            bounds, ids = _runs_of(key, classes)
            # A run of more frames than 16 bits can count is several.
            pieces = -(-np.diff(bounds) // _LARGEST_RUN)
            counts = np.full(int(pieces.sum()), _LARGEST_RUN)
            counts[np.cumsum(pieces) - 1] = np.diff(bounds) - (pieces - 1) * _LARGEST_RUN
            name = key.encode()
            if ids.max() > _LARGEST_RUN or len(name) > 256 or len(counts) > _LARGEST_RUN:
                raise ConfigError(
                    f"utterance {key}: class {ids.max()}, {len(counts)} runs; expected classes and runs below 65536, "
                    f"and an id of at most 256 bytes",
                    key="utterances",
                )
            runs = np.stack([np.repeat(ids, pieces), counts], axis=1).astype("<u2")
            yield struct.pack("<H", len(name)) + name + struct.pack("<IH", int(bounds[-1]), len(runs)) + runs.tobytes()

    write_whole(Path(path), parts())


def write_mapping(path: str | os.PathLike[str], names: Sequence[str]) -> None:
    """Write a label mapping file.

    Raises:
        ConfigError: A name is empty, has a line end in it, or stands there twice.
        OSError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "states.list")
        >>> write_mapping(path, ["sil", "aa"])
        >>> read_mapping(path)
        [b'sil', b'aa']
    """
    if len(set(names)) < len(names) or any(not name or set(name) & set("\r\n") for name in names):
        raise ConfigError("names must be different, not empty, and without line ends", key="names")
    write_whole(Path(path), [f"{name}\n".encode() for name in names])

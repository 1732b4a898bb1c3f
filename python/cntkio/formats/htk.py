"""HTK features: feature files and lists of utterances (scp). (docs/formats/htk.md)

::

    a.scp   u1=x.ark[0,299]     line -> key, file, first and last frame        the compiled core
            u2=x.ark[300,420]   file -> header: byte order, kind, dimension    here
                                frames stay as they were read; the packer makes values and windows of them

Its law: the defaults forgive what can only be meant one way; `compatible=True` reads to the letter as CNTK 2.7 does.
A file is opened here and nowhere else. Nothing here loops over frames; files are read one by one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import struct
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats.contract import NOTHING_AHEAD, Ahead, Joins, Loaded, Utterances
from cntkio.formats.input_file import open_to_read
from cntkio.formats.output_file import write_whole
from cntkio.formats.report import Report, first_few
from cntkio.formats.table import SequenceTable
from cntkio.streams import StreamDefs, StreamInformation, named

logger = logging.getLogger("cntkio")

CHUNK_FRAMES = 90_000
"""A chunk of utterances is full when it has more frames than these: 15 minutes at 10 ms."""
_DEFAULT_LONGEST = 65535  # StreamDef's default, which CNTK 2.7 ignored: no limit
_WHOLE_FILE = 2**32 - 1
_LARGEST_DIM = 2**31 - 1
_MOST_EXPECTED = 1 << 28  # bytes of a chunk; lists may promise what no file has
_LEAST_SHOWN = 4 << 20  # shorter runs of frames are copied: each map is looked after for every minibatch
_LEAST_SPAN = 2e-34  # below it the scales of compressed values overflow
_MOST_OPEN_FILES = 32

KINDS = {
    "WAVEFORM": 0, "LPC": 1, "LPREFC": 2, "LPCEPSTRA": 3, "LPDELCEP": 4, "IREFC": 5, "MFCC": 6, "FBANK": 7,
    "MELSPEC": 8, "USER": 9, "DISCRETE": 10, "PLP": 11,
}  # fmt: skip
"""Codes of HTK's base kinds."""
QUALIFIERS = {
    "E": 0o100, "N": 0o200, "D": 0o400, "A": 0o1000, "C": 0o2000, "Z": 0o4000, "K": 0o10000, "0": 0o20000,
    "V": 0o40000, "T": 0o100000,
}  # fmt: skip
"""Bits of HTK's qualifiers."""
_NAMES = {code: name for name, code in KINDS.items()}
_COMPRESSED, _CHECKED, _QUANTIZED = QUALIFIERS["C"], QUALIFIERS["K"], QUALIFIERS["V"]
_ANON = 12
_OF_16_BITS = {KINDS["WAVEFORM"], KINDS["IREFC"], KINDS["DISCRETE"]}
_READ_BY_CNTK = {KINDS["MFCC"], KINDS["FBANK"], KINDS["USER"], KINDS["PLP"], _ANON}


# ---------------------------------------------------------------------------------------------------- headers


class Header(NamedTuple):
    """What the first bytes of a feature file say."""

    is_big_endian: bool
    num_frames: int
    period: int
    kind: int
    qualifiers: int
    guid: bytes
    dim: int
    is_compressed: bool
    data_at: int

    @property
    def frame_size(self) -> int:
        """Bytes of a frame."""
        return self.dim * (2 if self.is_compressed else 4)

    @property
    def frames_at(self) -> int:
        """Where the first frame begins."""
        return self.data_at + (8 * self.dim if self.is_compressed else 0)

    @property
    def kind_name(self) -> str:
        """The kind in HTK's words, such as MFCC_E_D_A."""
        bits = self.qualifiers | (_COMPRESSED if self.is_compressed else 0)
        return "_".join(
            [_NAMES.get(self.kind, str(self.kind)), *(name for name, bit in QUALIFIERS.items() if bits & bit)]
        )


class _BadHeaderError(Exception):
    """What is wrong with a header."""


def _fields(data: bytes, is_big_endian: bool) -> tuple[int, int, int, int]:
    fields = struct.unpack(">iIHH" if is_big_endian else "<iIHH", data[:12])
    return int(fields[0]), int(fields[1]), int(fields[2]), int(fields[3])


def _is_plausible(data: bytes, is_big_endian: bool, file_size: int) -> bool:
    num_samples, _, size, kind = _fields(data, is_big_endian)
    width = 2 if kind & _COMPRESSED or kind & 0o77 in _OF_16_BITS else 4
    return kind & 0o77 <= _ANON and size > 0 and size % width == 0 and 0 <= num_samples * size <= file_size


def parse_header(data: bytes, file_size: int, *, compatible: bool = False) -> Header:
    """Take a header apart: `data` are the first 28 bytes of the file, or all if it has fewer.

    Raises:
        _BadHeaderError: It cannot be one, or is of a kind that does not hold numbers of 32 or compressed 16 bits.
    """
    if len(data) < 12:
        raise _BadHeaderError(f"{len(data)} bytes, but a header has 12")
    is_big_endian = _fields(data, True)[1] < _fields(data, False)[1]
    if not compatible:
        plausible = [order for order in (True, False) if _is_plausible(data, order, file_size)]
        if len(plausible) == 1:
            is_big_endian = plausible[0]
        elif plausible and _fields(data, True)[1] == _fields(data, False)[1]:
            is_big_endian = True
    num_frames, period, size, parm_kind = _fields(data, is_big_endian)
    kind = parm_kind & 0o77
    if kind in _OF_16_BITS or kind > _ANON or (compatible and kind not in _READ_BY_CNTK):
        raise _BadHeaderError(
            f"kind {kind} ({_NAMES.get(kind, 'unknown')}); expected one of float vectors, such as MFCC or USER"
        )
    if parm_kind & _QUANTIZED:
        raise _BadHeaderError("qualifier _V (an index of a vector quantizer); expected float vectors")
    is_compressed = bool(parm_kind & _COMPRESSED)
    width = 2 if is_compressed else 4
    if size == 0 or size % width:
        raise _BadHeaderError(f"frames of {size} bytes; expected a multiple of {width}")
    guid = data[12:28] if parm_kind == _ANON else b""
    if num_frames < 0:
        if not compatible:
            raise _BadHeaderError(f"{num_frames} frames; expected a number that is not negative")
        num_frames += 2**32
    num_frames -= 4 if is_compressed else 0
    kept = parm_kind & ~(0o77 | _COMPRESSED | _CHECKED)
    return Header(
        is_big_endian,
        max(num_frames, 0),
        period,
        KINDS["USER"] if kind == _ANON else kind,
        kept,
        guid,
        size // width,
        is_compressed,
        28 if guid else 12,
    )


class _Files:
    """Feature files that are open, few at a time."""

    def __init__(self, compatible: bool) -> None:
        self._compatible = compatible
        self._open: dict[bytes, tuple[int, int, Header]] = {}

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        for file, _size, _header in self._open.values():
            os.close(file)
        self._open.clear()

    def open(self, path: bytes) -> tuple[int, int, Header]:
        """A file, its size and its header.

        Raises:
            OSError: It cannot be opened or read.
            FormatError: Its header is wrong.
        """
        found = self._open.get(path)
        if found is None:
            if len(self._open) >= _MOST_OPEN_FILES:
                self.__exit__()
            file = open_to_read(path)
            try:
                size = os.fstat(file).st_size
                header = parse_header(os.pread(file, 28, 0), size, compatible=self._compatible)
            except _BadHeaderError as error:
                os.close(file)
                raise FormatError(str(error), path=os.fsdecode(path), byte=0) from None
            except BaseException:
                os.close(file)
                raise
            found = self._open[path] = (file, size, header)
        return found


# ------------------------------------------------------------------------------------------------------ lists

_LIST_FAULTS = (
    "no '='; expected id=path[first,last]",
    "no range; expected id=path[first,last]",
    "the range is not two numbers; expected [first,last]",
    "the range ends before it begins; expected [first,last] with first <= last",
    "no path",
    "no id, or one of more than 4096 bytes",
    "a quote is not closed",
)


class Listed(NamedTuple):
    """The utterances of one or several lists."""

    keys: npt.NDArray[np.bytes_]
    paths: list[bytes]
    files: npt.NDArray[np.uint32]
    first: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.uint32]

    def only(self, kept: npt.NDArray[np.bool_]) -> Listed:
        """Some of them."""
        return Listed(self.keys[kept], self.paths, self.files[kept], self.first[kept], self.lengths[kept])


def text_rows(rows: tuple[npt.NDArray[np.uint8], int]) -> npt.NDArray[np.bytes_]:
    """The core's rows of padded bytes as an array of texts."""
    data, width = rows
    return data.view(f"S{width}")


def first_same(keys: npt.NDArray[np.bytes_]) -> npt.NDArray[np.uint32]:
    """For each key the number of the first that is the same."""
    return _core.first_same(np.ascontiguousarray(keys).view(np.uint8), keys.dtype.itemsize)


def _separator(path: bytes) -> bytes | None:
    at = max(path.rfind(b"/"), path.rfind(b"\\"))
    return path[:at] if at >= 0 else None


def read_list(path: str | os.PathLike[str], *, prefix: str = "", compatible: bool = False) -> Listed:
    """Read a list of utterances (scp). Lengths of whole files come from their headers.

    Args:
        path: The list.
        prefix: What is put before each path of the list.
        compatible: Take lines as CNTK 2.7 does, to the letter.

    Returns:
        Keys, files, first frames and lengths, in the order of the list.

    Raises:
        OSError: The list, or a file whose length is wanted, cannot be read.
        FormatError: A line cannot be understood.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.scp")
        >>> _ = path.write_text("u1.mfc = all.ark[0,299]\\nu2.mfc = all.ark[300,420]\\n")
        >>> listed = read_list(path)
        >>> listed.keys.tolist(), listed.lengths.tolist()
        ([b'u1', b'u2'], [300, 121])
    """
    name = os.fsencode(path)
    text = Path(os.fsdecode(name)).read_bytes()
    before = prefix.encode().replace(b"\\", b"/").rstrip(b"/")
    found, error = _core.htk_scan_list(text, compatible, _separator(name), before, sys.platform != "win32")
    if error is not None:
        line, at, fault = error
        raise FormatError(_LIST_FAULTS[fault], path=path, line=line, column=1, byte=at)
    assert found is not None
    rows, paths, files, first, last, lines = found
    if not len(files):
        raise FormatError("no utterance; expected a line such as id=path[first,last]", path=path, byte=0)
    lengths = last - first + np.uint32(1)
    with _Files(compatible) as opened:
        for number in np.flatnonzero(last == _WHOLE_FILE).tolist():
            _, _, header = opened.open(paths[files[number]])
            if not header.num_frames:
                raise FormatError("no frames", path=os.fsdecode(paths[files[number]]), byte=0)
            lengths[number] = header.num_frames
    del lines
    return Listed(text_rows(rows), paths, files, first, lengths)


def first_header(path: str | os.PathLike[str]) -> Header:
    """What the file of a list's first utterance says of itself.

    Raises:
        OSError, FormatError: The list, or the file, cannot be read.
    """
    listed = read_list(path)
    with _Files(compatible=False) as opened:
        return opened.open(listed.paths[int(listed.files[0])])[2]


def _joined_lists(lists: Sequence[Listed]) -> Listed:
    if len(lists) == 1:
        return lists[0]
    shifts = np.cumsum([0, *(len(one.paths) for one in lists)])
    return Listed(
        np.concatenate([one.keys for one in lists]),
        [path for one in lists for path in one.paths],
        np.concatenate([one.files + np.uint32(shift) for one, shift in zip(lists, shifts, strict=False)]),
        np.concatenate([one.first for one in lists]),
        np.concatenate([one.lengths for one in lists]),
    )


# ------------------------------------------------------------------------------------------------------ order


def rolling_order(
    num_frames: int, randomize: int | Literal["auto", "none"] = "auto", seed: int = 0
) -> npt.NDArray[np.uint32]:
    """The order of a sweep of the old reader's ``readMethod = rollingWindow``: which frame comes at each place.

    A pure function of its arguments. A frame strays by at most half of the window from its place.

    Args:
        num_frames: Frames of a sweep, in the order of the list.
        randomize: The window in frames; ``"auto"``: all of them; ``"none"``, 0 and 1: in order.
        seed: Sweep number k of a reader takes ``seed + k``.

    Returns:
        A permutation of ``0 .. num_frames - 1``, uint32.

    Raises:
        ConfigError: The window, or the number of frames, is not possible.

    Example:
        >>> rolling_order(8, randomize="none").tolist()
        [0, 1, 2, 3, 4, 5, 6, 7]
        >>> rolling_order(8, randomize=4).tolist() == rolling_order(8, randomize=4).tolist()
        True
    """
    window = {"auto": 2**64 - 1, "none": 0}.get(randomize, randomize) if isinstance(randomize, str) else randomize
    if isinstance(window, str) or not 0 <= window < 2**64:
        raise ConfigError(f"randomize is {randomize!r}; expected 'auto', 'none' or a number of frames", key="randomize")
    if not 0 <= num_frames < 2**32:
        raise ConfigError(f"{num_frames} frames; expected fewer than 2^32", key="num_frames")
    return _core.rolling_order(num_frames, window, seed % 2**64)


# ------------------------------------------------------------------------------------------------ description

Unequal = Literal["error", "drop", "keep"]
_UNEQUAL = ("error", "drop", "keep")
# CNTK's keys of a stream's section, in lower case.
_STREAM_KEYS = {
    "scpfile": "scp", "dim": "dim", "contextwindow": "context", "expandtoutterance": "broadcast",
    "prefixpathinscp": "prefix", "definesmbsize": "defines_mb_size", "type": "",
}  # fmt: skip


def stream_of(
    name: str, stream: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]], keys: Mapping[str, str]
) -> dict[str, Any]:
    """A stream's record with CNTK's own keys laid over it; None takes a key away."""
    merged = dict(stream)
    for key, value in options.get(name, {}).items():
        known = keys.get(key.lower())
        if known is None:
            raise ConfigError(f"stream {name!r}: key {key!r} is unknown; known are {', '.join(sorted(keys))}", key=key)
        if value is None:
            merged.pop(known, None)
        elif known:
            merged[known] = value
    return merged


def values_of(name: str, shape: Any, most: int, what: str) -> int:
    """How many values a shape has.

    Raises:
        ConfigError: None, or too many.
    """
    sizes = [shape] if isinstance(shape, int | np.integer) else [] if shape is None else list(shape)
    total = int(np.prod([int(size) for size in sizes], dtype=np.int64)) if sizes else 0
    if not 1 <= total <= most:
        raise ConfigError(f"stream {name!r}: shape {shape!r}; expected 1 to {most} {what}", key=name)
    return total


def paths_of(given: Any) -> list[str]:
    """One path or several."""
    return [os.fspath(given)] if isinstance(given, str | os.PathLike) else [os.fspath(one) for one in given]


def check_streams(options: Any, kind: str) -> None:
    """What all deserializers of HTK's formats check of their streams and take up.

    Raises:
        ConfigError: A stream has a name in the file, or an option is not possible.
    """
    object.__setattr__(options, "streams", StreamDefs(options.streams))
    for name, stream in options.streams.items():
        if stream.get("stream_alias"):
            raise ConfigError(f"{kind} does not support stream names: stream {name!r} has a field", key=name)
    if options.unequal_lengths not in (None, *_UNEQUAL):
        raise ConfigError(
            f"unequal_lengths is {options.unequal_lengths!r}; expected one of {_UNEQUAL}", key="unequal_lengths"
        )
    object.__setattr__(options, "_defines_mb_size", False)


def set_option(options: Any, key: str, value: Any) -> None:
    """Set an option of a deserializer by CNTK's name for it, upper or lower case."""
    if key.lower() == "definesmbsize":
        object.__setattr__(options, "_defines_mb_size", str(value).lower() in ("true", "1", "t"))
    elif key.lower() not in ("chunksizeinbytes", "framemode", "cacheindex", "precision", "type", "module"):
        logger.warning("%s: option %r is unknown and ignored", type(options).__name__, key)


def window_of(context: Any) -> tuple[int, int]:
    """Frames to the left and to the right, from a pair, an odd total, or the text of either.

    Example:
        >>> window_of((1, 2)), window_of(5), window_of("1:2")
        ((1, 2), (2, 2), (1, 2))
    """
    given = context
    if isinstance(context, str):
        context = [part.strip() for part in context.split(":")]
    counts: list[int] = []
    with contextlib.suppress(TypeError, ValueError):
        counts = [int(count) for count in ([context] if isinstance(context, int | np.integer) else context)]
    if len(counts) == 1 and counts[0] > 0 and counts[0] % 2:
        return counts[0] // 2, counts[0] // 2
    if len(counts) == 2 and min(counts) >= 0:
        return counts[0], counts[1]
    raise ConfigError(f"context is {given!r}; expected (left, right), or one odd total number of frames", key="context")


@dataclasses.dataclass(frozen=True, eq=False)
class HTKFeatureDeserializer:
    """Features in HTK files, by lists of utterances (scp). Each stream is a corpus of its own, joined by key.

    Options of CNTK can be set by their own names, too: ``deserializer["maxSequenceSize"] = 1000``.

    Args:
        streams: For each stream ``StreamDef(scp=..., shape=..., context=(left, right), broadcast=...)``. `scp` is a
            list of utterances, or several; `shape` the values of a frame, or a multiple of them that says the window.
        prefix: What is put before each path of the lists.
        unequal_lengths: What becomes of an utterance that is not as long as in the first corpus of the source:
            ``"error"``, ``"drop"`` it, or ``"keep"`` it as it is, which is what None means. Frame mode needs as many
            frames at least.
        max_sequence_length: Longer utterances are left out; None: none are. Streams may have their own.
        compatible: Read as CNTK 2.7 does, to the letter (docs/formats/htk.md, "Compatible").
        strict: Take what is only warned of as an error.
        memory_map: Look at long runs of frames where the system has them. A file that another process makes shorter in
            just that moment ends this one; without, frames are copied first, which takes more time and memory.
        stream_options: For each stream further keys by CNTK's names, such as ``{"F": {"contextWindow": 11}}``.

    Raises:
        ConfigError: An option is not possible.

    Example:
        >>> from cntkio import StreamDef
        >>> HTKFeatureDeserializer(StreamDefs(F=StreamDef(scp="train.scp", shape=40, context=(5, 5)))).streams.F.context
        (5, 5)
    """

    streams: StreamDefs
    _: dataclasses.KW_ONLY
    prefix: str = ""
    unequal_lengths: Unequal | None = None
    max_sequence_length: int | None = None
    compatible: bool = False
    strict: bool = False
    memory_map: bool = True
    stream_options: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    has_text_keys = True

    def __post_init__(self) -> None:
        """Check what can be checked without the files."""
        check_streams(self, "HTKFeatureDeserializer")
        if not self.streams:
            raise ConfigError("HTKFeatureDeserializer: no feature streams found", key="streams")
        for name in self.streams:
            self._settings(name)

    def _settings(self, name: str) -> dict[str, Any]:
        stream = stream_of(name, self.streams[name], self.stream_options, _STREAM_KEYS)
        if not stream.get("scp"):
            raise ConfigError(f"no scp files specified for HTKFeatureDeserializer: stream {name!r}", key=name)
        stream["dim"] = values_of(name, stream.get("dim"), _LARGEST_DIM, "values")
        stream["context"] = window_of(stream.get("context", (0, 0)))
        stream["prefix"] = str(stream.get("prefix", self.prefix))
        stream["scp"] = paths_of(stream["scp"])
        limit = stream.get("max_sequence_length")
        limits = [self.max_sequence_length, None if self.compatible or limit == _DEFAULT_LONGEST else limit]
        stream["max_sequence_length"] = min((limit for limit in limits if limit is not None), default=None)
        stream["defines_mb_size"] = bool(not self.compatible and stream["defines_mb_size"])
        return stream

    def __setitem__(self, key: str, value: Any) -> None:
        """Set an option by CNTK's name for it, upper or lower case."""
        if key.lower() == "maxsequencesize":
            object.__setattr__(self, "max_sequence_length", int(value))
        else:
            set_option(self, key, value)

    def parts(self) -> tuple[HTKFeatureStream, ...]:
        """One deserializer for each stream, in the order in which streams are numbered."""
        defines = bool(getattr(self, "_defines_mb_size", False))
        return tuple(HTKFeatureStream(name, self._settings(name), self, defines) for name, _ in named(self.streams))

    def open(self, *, text_keys: bool = True, ahead: Ahead = NOTHING_AHEAD) -> HTKFeatureCorpus:
        """Open the corpus of the only stream; a source opens `parts`, one after the other.

        Raises:
            ConfigError: There are several streams.
            OSError, FormatError, CorpusError: See `HTKFeatureStream.open`.
        """
        parts = self.parts()
        if len(parts) > 1:
            raise ConfigError("several streams are several corpora: open each of parts()", key="streams")
        return parts[0].open()


@dataclasses.dataclass(frozen=True, eq=False)
class HTKFeatureStream:
    """One stream of an `HTKFeatureDeserializer`."""

    name: str
    settings: Mapping[str, Any]
    options: HTKFeatureDeserializer
    defines_mb_size: bool
    has_text_keys = True

    def parts(self) -> tuple[HTKFeatureStream, ...]:
        return (self,)

    def open(self, *, text_keys: bool = True, ahead: Ahead = NOTHING_AHEAD) -> HTKFeatureCorpus:
        """Read the lists and look at the first utterance's file.

        Raises:
            OSError: A list, or the first file, cannot be read.
            FormatError: A list, or the first file, breaks the format.
            ConfigError: The shape does not fit the files.
            CorpusError: No utterance is left.
        """
        return HTKFeatureCorpus(self)


# ----------------------------------------------------------------------------------------------------- corpus

_Encoding = tuple[bool, tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None]


class Frames(NamedTuple):
    """The frames of a chunk as they stand in the files.

    Attributes:
        bytes: What was read or is shown.
        block_of: Where each utterance is in that: 0, what was read, or the number of what is shown.
        encodings: How values are stored: byte order and, where they are compressed, the scales.
        encoding_of: The encoding of each utterance.
        at: The first byte of each utterance there.
        mixes: Where files are not like the first one.
    """

    bytes: _core.FileBytes
    block_of: npt.NDArray[np.uint32]
    encodings: list[_Encoding]
    encoding_of: npt.NDArray[np.uint32]
    at: npt.NDArray[np.uint64]
    mixes: Counter[str]


class HTKFeatureCorpus:
    """An opened stream of features.

    Made by `HTKFeatureStream.open`; see `cntkio.formats.Corpus` for what its methods owe.
    """

    joins: Joins = "anywhere"

    def __init__(self, stream: HTKFeatureStream) -> None:
        self._name, self._settings, self._options = stream.name, stream.settings, stream.options
        self._compatible = self._options.compatible
        self._lists: list[str] = self._settings["scp"]
        self.name = ", ".join(self._lists)
        self.report = Report(self.name)
        lists = [read_list(path, prefix=self._settings["prefix"], compatible=self._compatible) for path in self._lists]
        self._listed = self._without_unwanted(_joined_lists(lists))
        with _Files(self._compatible) as files:
            _, _, self._model = files.open(self._path_of(0))
            self._check_range(self._model, 0, 1)
        self._left, self._right = self._window()
        dim = self._model.dim * (1 + self._left + self._right)
        info = StreamInformation(
            self._name, 0, "dense", np.float32, dim, stream.defines_mb_size or self._settings["defines_mb_size"]
        )
        self.streams = (info,)
        lengths = self._listed.lengths
        is_broadcast = bool(self._settings.get("broadcast"))
        if is_broadcast and (lengths != 1).any():
            number = int(np.argmax(lengths != 1))
            raise CorpusError(
                f"{self.name}: utterance {self._key(number)} has {lengths[number]} frames; "
                f"a broadcast stream has one in each"
            )
        unequal = self._options.unequal_lengths or "keep"
        self.utterances = Utterances(
            can_lead=not is_broadcast, is_broadcast=is_broadcast, unequal_lengths=unequal, is_literal=self._compatible
        )
        chunk_starts = _core.htk_chunk_starts(lengths, CHUNK_FRAMES)
        self.table = SequenceTable(self._listed.keys, lengths, chunk_starts)

    def _without_unwanted(self, listed: Listed) -> Listed:
        longest = self._settings["max_sequence_length"]
        if longest is not None:
            too_long = listed.lengths > longest
            self._remark("utterance too long", listed.keys[too_long], f"longer than {longest} frames, and left out")
            listed = listed.only(~too_long)
        first = first_same(listed.keys)
        is_again = first != np.arange(len(first))
        if is_again.any():
            is_repeated = is_again.copy()
            is_repeated[first[is_again]] = True
            self._remark("repeated utterance", listed.keys[is_again], "listed several times, and left out altogether")
            listed = listed.only(~is_repeated)
        if not len(listed.keys):
            raise CorpusError(f"{self.name}: no utterance is left to read")
        return listed

    def _remark(self, kind: str, keys: npt.NDArray[np.bytes_], what: str) -> None:
        if not len(keys):
            return
        shown = first_few((bytes(key).decode(errors="replace") for key in keys), len(keys))
        message = f"{self.name}: {len(keys)} utterances are {what}: {shown}"
        if self._options.strict:
            raise CorpusError(message)
        self.report.log_together(kind, len(keys), message)

    def _window(self) -> tuple[int, int]:
        dim, frame_dim = self._settings["dim"], self._model.dim
        left, right = self._settings["context"]
        if left or right:
            if dim != frame_dim:
                raise ConfigError(
                    f"stream {self._name!r}: shape {dim}, but the files' frames have {frame_dim} values; with a "
                    f"context it is that of one frame",
                    key=self._name,
                )
            return left, right
        if dim % frame_dim or dim // frame_dim % 2 == 0:
            raise ConfigError(
                f"stream {self._name!r}: shape {dim}, but the files' frames have {frame_dim} values; expected as many, "
                f"or an odd number of times as many for a window",
                key=self._name,
            )
        return dim // frame_dim // 2, dim // frame_dim // 2

    def _path_of(self, number: int) -> bytes:
        return self._listed.paths[int(self._listed.files[number])]

    def _key(self, number: int) -> str:
        key = self._listed.keys[number]
        return bytes(key).decode(errors="replace")

    def _check_range(self, header: Header, first: int, last: int) -> None:
        """Refuse utterances that reach beyond their file."""
        ends = self._listed.first[first:last].astype(np.int64) + self._listed.lengths[first:last]
        if ends.max() > header.num_frames:
            at = first + int(ends.argmax())
            begin = int(self._listed.first[at])
            raise FormatError(
                f"frames {begin} to {ends[at - first] - 1} are wanted, but the file has {header.num_frames}",
                path=os.fsdecode(self._path_of(at)), sequence=self._key(at), stream=self._name,
            )  # fmt: skip

    @property
    def num_files(self) -> int:
        """Feature files in the lists, each counted once."""
        return len(np.unique(self._listed.files))

    def fingerprint(self) -> str:
        """What the lists say."""
        table = self.table
        digest = hashlib.blake2b(digest_size=16)
        for part in (table.keys, self._listed.first, self._listed.lengths, self._listed.files):
            digest.update(np.ascontiguousarray(part).data.cast("B"))
        return f"{table.num_sequences}:{digest.hexdigest()}"

    def load(self, chunk_id: int) -> Loaded:
        return self.made(chunk_id, self.read(chunk_id, memory_map=self._options.memory_map))

    def take_parsed(self) -> dict[int, Loaded]:
        return {}

    def read(self, number: int, *, memory_map: bool) -> Frames:
        """A chunk's frames as they stand in the files: copied, or shown where runs are long."""
        begin, end = (int(at) for at in self.table.chunk_starts[number : number + 2])
        files, first = self._listed.files[begin:end], self._listed.first[begin:end].astype(np.int64)
        lengths = self._listed.lengths[begin:end]
        follows = (files[1:] == files[:-1]) & (first[1:] == first[:-1] + lengths[:-1])
        cuts = np.concatenate([[0], np.flatnonzero(~follows) + 1, [end - begin]])
        sizes = np.add.reduceat(lengths, cuts[:-1], dtype=np.int64) * self._model.frame_size
        to_read = sizes[sizes < _LEAST_SHOWN] if memory_map else sizes
        bytes_of_all = _core.FileBytes(min(int(to_read.sum()), _MOST_EXPECTED))
        block_of: list[int] = []
        begins: list[int] = []
        encodings: list[_Encoding] = []
        mixes = Counter[str]()
        encoding_numbers: dict[bytes, int] = {}
        encoding_of, frame_sizes = [], []
        total = 0
        with _Files(self._compatible) as opened:
            for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
                path = self._path_of(begin + low)
                try:
                    file, file_size, header = opened.open(path)
                except FormatError as error:
                    raise self._of_utterance(error, begin + low) from None
                if header != self._model:
                    mixes.update(self._differences(header, path, begin + low))
                self._check_range(header, begin + low, begin + high)
                start = header.frames_at + int(first[low]) * header.frame_size
                size = int(first[high - 1] + lengths[high - 1] - first[low]) * header.frame_size
                if memory_map and size >= _LEAST_SHOWN and start + size <= file_size:
                    block_of.append(bytes_of_all.show(file, os.fsdecode(path), start, size))
                    begins.append(0)
                else:
                    num_read = bytes_of_all.read(file, start, min(size, max(file_size - start, 0)))
                    if num_read < size:
                        raise self._truncated(begin, low, high, num_read // header.frame_size, start + num_read)
                    block_of.append(0)
                    begins.append(total)
                    total += size
                which = path if header.is_compressed else (b"big" if header.is_big_endian else b"little")
                if which not in encoding_numbers:
                    encoding_numbers[which] = len(encodings)
                    encodings.append((header.is_big_endian, self._scales(file, header, path)))
                encoding_of.append(encoding_numbers[which])
                frame_sizes.append(header.frame_size)
        counts = np.diff(cuts)
        at = (first - np.repeat(first[cuts[:-1]], counts)) * np.repeat(np.array(frame_sizes, np.int64), counts)
        at += np.repeat(np.array(begins, np.int64), counts)
        blocks_of = np.repeat(np.array(block_of, np.uint32), counts)
        encodings_of = np.repeat(np.array(encoding_of, np.uint32), counts)
        return Frames(bytes_of_all, blocks_of, encodings, encodings_of, at.astype(np.uint64), mixes)

    def made(self, number: int, frames: Frames) -> Loaded:
        """A chunk of frames that were read; it takes their bytes."""
        begin, end = (int(at) for at in self.table.chunk_starts[number : number + 2])
        chunk = _core.frames_chunk(
            frames.bytes, frames.block_of, frames.encodings, frames.encoding_of, frames.at,
            self._listed.lengths[begin:end], self._model.dim, self._left, self._right, self.utterances.is_broadcast,
        )  # fmt: skip
        return Loaded(number, chunk, frames.mixes)

    @property
    def num_bytes(self) -> int:
        """Bytes of all frames, if all files are stored as the first one is."""
        return int(self.table.lengths.sum(dtype=np.int64)) * self._model.frame_size

    def _of_utterance(self, error: FormatError, number: int) -> FormatError:
        text = str(error).removeprefix(f"{error.path}, byte {error.byte}: ")
        return FormatError(text, path=error.path, byte=error.byte, sequence=self._key(number), stream=self._name)

    def _truncated(self, begin: int, low: int, high: int, num_frames: int, byte: int) -> FormatError:
        """The file ends within a run of utterances: name the first that is not whole."""
        ends = np.cumsum(self._listed.lengths[begin + low : begin + high], dtype=np.int64)
        number = begin + low + min(int(np.searchsorted(ends, num_frames, side="right")), high - low - 1)
        return FormatError(
            f"the file ends within frames {self._listed.first[number]} to "
            f"{int(self._listed.first[number]) + int(self._listed.lengths[number]) - 1}, which its header promises",
            path=os.fsdecode(self._path_of(number)), byte=byte, sequence=self._key(number), stream=self._name,
        )  # fmt: skip

    def _scales(
        self, file: int, header: Header, path: bytes
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None:
        if not header.is_compressed:
            return None
        data = os.pread(file, 8 * header.dim, header.data_at)
        if len(data) < 8 * header.dim:
            raise FormatError(
                "the file ends within the scales of its compressed values", path=os.fsdecode(path), byte=len(data)
            )
        both = np.frombuffer(data, ">f4" if header.is_big_endian else "<f4").astype(np.float32)
        return both[: header.dim], both[header.dim :]

    def _differences(self, header: Header, path: bytes, number: int) -> Iterator[str]:
        """How a file differs from the first one: warned of, but for what makes it another stream."""
        model = self._model

        def refused(what: str) -> FormatError:
            return FormatError(what, path=os.fsdecode(path), byte=0, sequence=self._key(number), stream=self._name)

        if header.dim != model.dim:
            raise refused(f"frames of {header.dim} values, but those of the first file have {model.dim}")
        kinds = [(one.kind, one.qualifiers, one.guid) for one in (header, model)]
        for is_mixed, what in (
            (kinds[0] != kinds[1], f"kind {header.kind_name}, but the first file's is {model.kind_name}"),
            (
                header.period != model.period,
                f"a frame shift of {header.period} (100 ns), but the first file's is {model.period}",
            ),
        ):
            if is_mixed:
                if self._compatible or self._options.strict:
                    raise refused(what)
                yield f"mixed files: {what}"

    def account_for(self, loaded: Loaded) -> None:
        mixes: Counter[str] = loaded.findings
        for kind, count in mixes.items():
            self.report.count(kind, count)
            self.report.log(kind, f"{self.name}: {kind}", most=1)

    def close(self) -> None:
        self.report.log_totals()


# ---------------------------------------------------------------------------------------------------- writing


def parse_kind(text: str) -> int:
    """The code of a kind in HTK's words.

    Raises:
        ConfigError: There is no such kind, or no such qualifier.

    Example:
        >>> parse_kind("MFCC_E_D_A")
        838
    """
    base, *qualifiers = text.upper().split("_")
    if base not in KINDS or any(name not in QUALIFIERS for name in qualifiers):
        known = f"{', '.join(KINDS)}, with qualifiers {', '.join('_' + name for name in QUALIFIERS)}"
        raise ConfigError(f"kind {text!r} is unknown; known are {known}", key="kind")
    return KINDS[base] | sum({QUALIFIERS[name] for name in qualifiers})


_CHECK_BASE, _CHECK_MODULUS, _CHECK_ROW = 65536, 36897, 4096


def check_sum(data: bytes, *, big_endian: bool = True) -> int:
    """HTK's check sum of what stands behind a header: its 16-bit words as one number, remainder by 36897.

    Example:
        >>> check_sum(b"\\x00\\x01\\x00\\x02"), (1 * 65536 + 2) % 36897
        (28641, 28641)
    """
    words = np.frombuffer(data, ">u2" if big_endian else "<u2").astype(np.uint64)
    base = _CHECK_BASE % _CHECK_MODULUS
    while len(words) > 1:
        # Many digits become one of a larger base; zeros in front change nothing.
        row = min(_CHECK_ROW, len(words))
        powers = np.array([pow(base, power, _CHECK_MODULUS) for power in range(row)[::-1]], np.uint64)
        rows = np.concatenate([np.zeros(-len(words) % row, np.uint64), words]).reshape(-1, row)
        words = rows @ powers % _CHECK_MODULUS
        base = pow(base, row, _CHECK_MODULUS)
    return int(words[0]) % _CHECK_MODULUS if len(words) else 0


def encode_features(
    frames: npt.NDArray[Any],
    *,
    kind: str = "USER",
    period: int = 100_000,
    big_endian: bool = True,
    compressed: bool = False,
) -> bytes:
    """The bytes of a feature file.

    Compressed values come back within (largest - smallest) / 65534 of each component, and float32's rounding; a
    component whose values differ by less than 2e-34 counts as constant.

    Args:
        frames: `[frames, values]`, at least one of each; written as float32.
        kind: HTK's name, such as ``"MFCC_E_D_A"``; `_C` is added where it belongs. With `_K` a check sum comes last.
        period: Frame shift in units of 100 ns.
        big_endian: HTK's own byte order, or the other.
        compressed: Write 16-bit numbers and two vectors of scales.

    Raises:
        ConfigError: A frame does not fit the header, or the values cannot be compressed since they are not finite.

    Example:
        >>> len(encode_features(np.zeros((2, 3), np.float32)))
        36
    """
    values = np.asarray(frames, np.float32)
    if values.ndim != 2 or not values.size:
        raise ConfigError(
            f"frames of shape {values.shape}; expected [frames, values], at least one of each", key="frames"
        )
    order = ">" if big_endian else "<"
    num_frames, dim = values.shape
    code = parse_kind(kind)
    if code & 0o77 in _OF_16_BITS or code & _QUANTIZED:
        raise ConfigError(f"kind {kind!r} cannot be written; expected one of float vectors, without _V", key="kind")
    compressed = compressed or bool(code & _COMPRESSED)
    size = dim * (2 if compressed else 4)
    count = num_frames + (4 if compressed else 0)
    if size > 65535 or count > 2**31 - 1 or not 0 <= period < 2**31:
        raise ConfigError(
            f"{num_frames} frames of {size} bytes, period {period}: the header cannot hold that", key="frames"
        )
    header = struct.pack(f"{order}iIHH", count, period, size, code | (_COMPRESSED if compressed else 0))
    data = _compressed(values, order) if compressed else values.astype(f"{order}f4").tobytes()
    check = struct.pack(f"{order}H", check_sum(data, big_endian=big_endian)) if code & _CHECKED else b""
    return header + data + check


def _compressed(values: npt.NDArray[np.float32], order: str) -> bytes:
    """Two vectors of scales, and 16-bit numbers."""
    if not np.isfinite(values).all():
        raise ConfigError("values that are not finite cannot be compressed", key="compressed")
    least, most = values.min(axis=0).astype(np.float64), values.max(axis=0).astype(np.float64)
    span = most - least
    is_constant = span < _LEAST_SPAN
    span[is_constant] = 1
    a = np.where(is_constant, 1, 2 * 32767 / span).astype(np.float32)
    b = np.where(is_constant, least, (most + least) * 32767 / span).astype(np.float32)
    whole = np.where(is_constant, 0, np.rint(a.astype(np.float64) * values - b))
    whole = np.clip(whole, -32767, 32767).astype(f"{order}i2")
    return b"".join([a.astype(f"{order}f4").tobytes(), b.astype(f"{order}f4").tobytes(), whole.tobytes()])


def write_features(path: str | os.PathLike[str], frames: npt.NDArray[Any], **options: Any) -> None:
    """Write a feature file; missing folders are made, and the file appears as a whole or not at all.

    Args:
        path: The file.
        frames: `[frames, values]`.
        options: As for `encode_features`.

    Raises:
        ConfigError: See `encode_features`.
        OSError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "u1.fea")
        >>> write_features(path, np.zeros((2, 3)), kind="MFCC")
        >>> path.stat().st_size
        36
    """
    write_whole(Path(path), [encode_features(frames, **options)])


def write_archive(
    archive: str | os.PathLike[str],
    scp: str | os.PathLike[str],
    utterances: Iterable[tuple[str, npt.NDArray[Any]]],
    *,
    kind: str = "USER",
    period: int = 100_000,
    big_endian: bool = True,
    extension: str = "",
) -> list[tuple[str, int, int]]:
    """Write many utterances into one feature file, uncompressed, and the list that says which frames are whose.

    Args:
        archive: The feature file.
        scp: The list; its paths are the archive's, as given.
        utterances: Ids and frames `[frames, values]`, taken one after the other.
        kind: As for `encode_features`.
        period: As for `encode_features`.
        big_endian: As for `encode_features`.
        extension: Put behind each id in the list, such as ``".mfc"``; needed where ids have dots.

    Returns:
        Id, first and last frame of each utterance.

    Raises:
        ConfigError: An utterance has other dimensions than the first, or an id cannot stand in a list.
        OSError: A file cannot be written.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_archive(folder / "a.ark", folder / "a.scp", [("u1", np.zeros((2, 3))), ("u2", np.ones((1, 3)))])
        [('u1', 0, 1), ('u2', 2, 2)]
    """
    ranges: list[tuple[str, int, int]] = []
    shape: list[int] = []

    def parts() -> Iterator[bytes]:
        begin = 0
        for key, frames in utterances:
            if not key or set(key) & set('=[]"\n\r') or key != key.strip():
                raise ConfigError(f"the id {key!r} cannot stand in a list", key="utterances")
            if shape and frames.shape[1:] != (shape[0],):
                raise ConfigError(
                    f"utterance {key}: frames {frames.shape}, expected {shape[0]} values each", key="utterances"
                )
            data = encode_features(frames, kind=kind, period=period, big_endian=big_endian)
            yield data if not shape else data[12:]
            shape[:] = frames.shape[1:]
            ranges.append((key, begin, begin + len(frames) - 1))
            begin += len(frames)

    target, path = Path(archive), os.fspath(archive)
    if parse_kind(kind) & (_COMPRESSED | _CHECKED):
        raise ConfigError("an archive is written uncompressed, and without a check sum", key="kind")
    write_whole(target, parts())
    if not ranges:
        target.unlink()
        raise ConfigError("no utterances to write", key="utterances")
    with target.open("r+b") as file:
        file.write(struct.pack(">i" if big_endian else "<i", ranges[-1][2] + 1))
    lines = (f"{key}{extension}={path}[{first},{last}]\n".encode() for key, first, last in ranges)
    write_whole(Path(scp), lines)
    return ranges

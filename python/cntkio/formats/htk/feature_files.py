"""HTK feature files: their headers, and the few files that are open at a time.

The functions for headers read at most the first 28 bytes of a file. `cntkio.formats.htk.lists` reads frames.
(docs/formats/htk.md, "Feature files")
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple, TypeAlias

import cntkio._core as _core
from cntkio.errors import ConfigError, FormatError
from cntkio.formats.detect import other_than
from cntkio.storage.open_input import KeptObjects
from cntkio.storage.text_input import (
    CoreText,
    FileStamps,
    Stamp,
    TextInput,
    open_to_read,
    require_stamp,
    system_number,
)

_BASE_KINDS = "WAVEFORM LPC LPREFC LPCEPSTRA LPDELCEP IREFC MFCC FBANK MELSPEC USER DISCRETE PLP"
KINDS = {name: code for code, name in enumerate(_BASE_KINDS.split())}
QUALIFIERS = {letter: 0o100 << index for index, letter in enumerate("ENDACZK0VT")}  # bits after the base kind
COMPRESSED, CHECKED, QUANTIZED = QUALIFIERS["C"], QUALIFIERS["K"], QUALIFIERS["V"]
BASE_KIND = 0o77  # bits of a kind that hold the base kind
KINDS_OF_16_BITS = {KINDS["WAVEFORM"], KINDS["IREFC"], KINDS["DISCRETE"]}  # their values are integers, not features
_KIND_NAMES = dict(enumerate(KINDS))
_ANON = 12  # a kind that only CNTK has: USER with a GUID after the header
_KINDS_OF_CNTK = {KINDS["MFCC"], KINDS["FBANK"], KINDS["USER"], KINDS["PLP"], _ANON}
HEADER_SIZE = 12  # bytes
MOST_FRAMES = 2**31 - 1  # the largest number that a header can hold
_HEADER_AND_GUID_SIZE = 28
_MOST_OPEN_FILES = 32


def parse_kind(text: str) -> int:
    """Return the code of a kind in HTK's notation.

    Example:
        >>> parse_kind("MFCC_E_D_A")
        838
    """
    base, *qualifiers = text.upper().split("_")
    if base not in KINDS or any(name not in QUALIFIERS for name in qualifiers):
        known = f"{', '.join(KINDS)}, with qualifiers {', '.join('_' + name for name in QUALIFIERS)}"
        raise ConfigError(f"kind {text!r} is unknown; known are {known}", key="kind")
    # A set, so that a repeated qualifier counts once.
    return KINDS[base] | sum({QUALIFIERS[name] for name in qualifiers})


class HTKHeader(NamedTuple):
    """Header of a feature file; `num_frames` is without the four that stand for the scales of compressed values."""

    is_big_endian: bool
    num_frames: int
    period: int
    kind: int
    qualifiers: int
    guid: bytes
    dim: int
    is_compressed: bool
    data_offset: int
    other_kind: str = ""

    @property
    def frame_size(self) -> int:
        return self.dim * (2 if self.is_compressed else 4)

    @property
    def frames_offset(self) -> int:
        """Byte at which the first frame begins: after the scales, if the values are compressed."""
        return self.data_offset + (8 * self.dim if self.is_compressed else 0)

    @property
    def kind_name(self) -> str:
        """Kind in HTK's notation, such as MFCC_E_D_A."""
        bits = self.qualifiers | (COMPRESSED if self.is_compressed else 0)
        names = [name for name, bit in QUALIFIERS.items() if bits & bit]
        return "_".join([_KIND_NAMES.get(self.kind, str(self.kind)), *names])


def _fields(data: bytes, is_big_endian: bool) -> tuple[int, int, int, int]:
    """Return the number of frames, the period, the bytes of a frame, and the kind with its qualifiers."""
    fields: tuple[int, int, int, int] = struct.unpack_from(">iIHH" if is_big_endian else "<iIHH", data)
    return fields


def _is_plausible(data: bytes, is_big_endian: bool, file_size: int) -> bool:
    num_frames, _, size, kind = _fields(data, is_big_endian)
    width = 2 if kind & COMPRESSED or kind & BASE_KIND in KINDS_OF_16_BITS else 4
    is_known = kind & BASE_KIND <= _ANON and size > 0 and size % width == 0 and 0 <= num_frames * size <= file_size
    return is_known or _fits_float_vectors(num_frames, size, kind, file_size)


def _fits_float_vectors(num_frames: int, size: int, kind: int, file_size: int) -> bool:
    """Return whether a file of any kind has the size of float32 vectors, with or without a checksum."""
    num_left = file_size - HEADER_SIZE - num_frames * size
    return num_frames > 0 and size > 0 and size % 4 == 0 and not kind & COMPRESSED and num_left in (0, 2)


def _is_big_endian(data: bytes, file_size: int, compatible: bool) -> bool:
    """Return whether a header is big-endian: the plausible byte order; if both are, that with the smaller period."""
    periods = _fields(data, True)[1], _fields(data, False)[1]
    if not compatible:
        plausible = [order for order in (True, False) if _is_plausible(data, order, file_size)]
        if len(plausible) == 1:
            return plausible[0]
        # HTK writes big-endian files; CNTK takes equal periods, such as 0, for little-endian.
        if plausible and periods[0] == periods[1]:
            return True
    return periods[0] < periods[1]


def parse_header(data: bytes, file_size: int, *, compatible: bool) -> HTKHeader:
    """Parse a header: the first 28 bytes of a file, or fewer if the file is shorter. Its size shows the byte order.

    Raises:
        ValueError: The bytes are not a header (with `compatible`, for CNTK 2.7), or its kind does not hold float32 or
            compressed 16-bit values, and the size of the file does not fit such values either.
    """
    if len(data) < HEADER_SIZE:
        raise ValueError(f"{len(data)} bytes, but a header has {HEADER_SIZE}")
    is_big_endian = _is_big_endian(data, file_size, compatible)
    num_frames, period, size, parm_kind = _fields(data, is_big_endian)
    kind = parm_kind & BASE_KIND
    other = ""
    if kind in KINDS_OF_16_BITS or kind > _ANON or (compatible and kind not in _KINDS_OF_CNTK):
        other = f"kind {kind} ({_KIND_NAMES.get(kind, 'unknown')})"
    elif parm_kind & QUANTIZED:
        other = "qualifier _V (an index of a vector quantizer)"
    if other and (compatible or not _fits_float_vectors(num_frames, size, parm_kind, file_size)):
        raise ValueError(f"{other}; expected a kind of float vectors, such as MFCC or USER")
    is_compressed = bool(parm_kind & COMPRESSED)
    width = 2 if is_compressed else 4
    if size == 0 or size % width:
        raise ValueError(f"frames of {size} bytes; expected a multiple of {width}")
    if num_frames < 0:
        if not compatible:
            raise ValueError(f"{num_frames} frames; expected a number that is not negative")
        # CNTK takes a negative number for a huge one.
        num_frames += 2**32
    num_frames -= 4 if is_compressed else 0  # HTK counts the scales as four frames
    # As in CNTK, a file of this kind has a GUID only without qualifiers.
    guid = data[HEADER_SIZE:_HEADER_AND_GUID_SIZE] if parm_kind == _ANON else b""
    kind = KINDS["USER"] if kind == _ANON else kind
    # Compression may differ between the files of a stream.
    qualifiers = parm_kind & ~(BASE_KIND | COMPRESSED | CHECKED)
    frames, offset, dim = max(num_frames, 0), _HEADER_AND_GUID_SIZE if guid else HEADER_SIZE, size // width
    return HTKHeader(is_big_endian, frames, period, kind, qualifiers, guid, dim, is_compressed, offset, other)


class OpenFile(NamedTuple):
    """A feature file on a local disk that is open; `number` is the number by which the compiled core knows it."""

    path: bytes
    descriptor: int
    number: int
    stamp: Stamp
    header: HTKHeader

    @property
    def size(self) -> int:
        """Size in bytes when it was opened."""
        return self.stamp.size

    def read(self, begin: int, size: int) -> bytes:
        return _core.file_read(self.number, begin, size)

    def source(self, begin: int, size: int) -> CoreText:
        return self.number, self.size

    def with_frames(self, first: int, end: int) -> OpenFile:
        return self  # the core reads or maps the frames itself

    def require_unchanged(self) -> None:
        """Raise a `CorpusError` if the file was changed since it was opened."""
        require_stamp(self.number, os.fsdecode(self.path), self.stamp)


class StoredFile(NamedTuple):
    """A feature file in a store. It has the methods of `OpenFile`.

    Attributes:
        part: Bytes that were read already, and the offset of the first of them; None: no bytes were.
        number: None, because the compiled core cannot read it.
    """

    path: bytes
    text: TextInput
    header: HTKHeader
    part: CoreText | None = None
    number: None = None

    @property
    def size(self) -> int:
        return self.text.size

    def read(self, begin: int, size: int) -> bytes:
        return self.text.read(begin, size)

    def source(self, begin: int, size: int) -> CoreText:
        return self.text.source(begin, begin + size) if self.part is None else self.part

    def require_unchanged(self) -> None:
        self.text.storage.require_unchanged()

    def with_frames(self, first: int, end: int) -> StoredFile:
        """Return the file with the bytes of some frames, as far as the file has them."""
        header = self.header
        begin, after = (header.frames_offset + frame * header.frame_size for frame in (first, end))
        found = self._replace(part=self.text.source(begin, after))
        self.require_unchanged()
        return found


FeatureFile: TypeAlias = OpenFile | StoredFile


class FeatureFiles:
    """Open feature files, a few at a time; with `stamps`, a file that has changed since then is refused.

    Files in stores are kept open elsewhere, and any thread may open them.
    """

    def __init__(self, compatible: bool, stored: KeptObjects, stamps: FileStamps | None = None) -> None:
        self._compatible, self._stored, self._stamps = compatible, stored, stamps
        self._open: dict[bytes, OpenFile] = {}

    def close(self) -> None:
        for file in self._open.values():
            os.close(file.descriptor)
        self._open.clear()

    def open(self, path: bytes, index: int) -> FeatureFile:
        """Open a file and read its header, or return the file if it is open. `index` is its place in the stamps."""
        if path in self._open:
            return self._open[path]
        name = os.fsdecode(path)
        if self._stored.has(name):
            text = self._stored.open(name)
            return StoredFile(path, text, self._header(text.read(0, _HEADER_AND_GUID_SIZE), text.size, text.path))
        if len(self._open) >= _MOST_OPEN_FILES:
            self.close()
        descriptor = open_to_read(name)
        try:
            number = system_number(descriptor)
            stamp = Stamp(*_core.file_stamp(number))
            if self._stamps is not None:
                self._stamps.require(index, name, stamp)
            header = self._header(_core.file_read(number, 0, _HEADER_AND_GUID_SIZE), stamp.size, name)
        except BaseException:
            os.close(descriptor)
            raise
        self._open[path] = file = OpenFile(path, descriptor, number, stamp, header)
        return file

    def _header(self, data: bytes, size: int, name: str) -> HTKHeader:
        try:
            return parse_header(data, size, compatible=self._compatible)
        except ValueError as error:
            what = f"{error}{other_than('htk', name)}"
            raise FormatError(what, path=name, byte=0, kind="bad header") from None

"""HTK feature files: their headers, the few files that are open at a time, and how files are written.

The functions for headers read at most the first 28 bytes of a file. `cntkio.formats.htk.lists` reads frames.
(docs/formats/htk.md, "Feature files" and "Writing")
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio.errors import ConfigError, FormatError
from cntkio.formats.detect import other_than
from cntkio.formats.table import as_numbers, in_precision
from cntkio.storage.output_file import AnyPath, make_folder_of, write_whole, written_whole
from cntkio.storage.text_input import FileStamps, Stamp, changed_in_use, open_to_read, system_number

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
_CHECK_SIZE = 2
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
    return num_frames > 0 and size > 0 and size % 4 == 0 and not kind & COMPRESSED and num_left in (0, _CHECK_SIZE)


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
    """A feature file that is open; `number` is the number by which the compiled core knows it."""

    path: bytes
    descriptor: int
    number: int
    stamp: Stamp
    header: HTKHeader

    @property
    def size(self) -> int:
        """Size in bytes when it was opened."""
        return self.stamp.size

    def require_unchanged(self) -> None:
        """Raise a `CorpusError` if the file was changed since it was opened."""
        now = Stamp(*_core.file_stamp(self.number))
        if now != self.stamp:
            raise changed_in_use(os.fsdecode(self.path), self.size, now.size)


class FeatureFiles:
    """Open feature files, a few at a time; with `stamps`, a file that has changed since then is refused."""

    def __init__(self, compatible: bool, stamps: FileStamps | None = None) -> None:
        self._compatible, self._stamps = compatible, stamps
        self._open: dict[bytes, OpenFile] = {}

    def close(self) -> None:
        for file in self._open.values():
            os.close(file.descriptor)
        self._open.clear()

    def open(self, path: bytes, index: int) -> OpenFile:
        """Open a file and read its header, or return the file if it is open. `index` is its place in the stamps."""
        if path in self._open:
            return self._open[path]
        if len(self._open) >= _MOST_OPEN_FILES:
            self.close()
        name = os.fsdecode(path)
        descriptor = open_to_read(name)
        try:
            number = system_number(descriptor)
            stamp = Stamp(*_core.file_stamp(number))
            if self._stamps is not None:
                self._stamps.require(index, name, stamp)
            data = _core.file_read(number, 0, _HEADER_AND_GUID_SIZE)
            try:
                header = parse_header(data, stamp.size, compatible=self._compatible)
            except ValueError as error:
                what = f"{error}{other_than('htk', name)}"
                raise FormatError(what, path=name, byte=0, kind="bad header") from None
        except BaseException:
            os.close(descriptor)
            raise
        self._open[path] = file = OpenFile(path, descriptor, number, stamp, header)
        return file


# --------------------------------------------------------------------------------------------------------------
# Written files: features, archives and their lists.

_SMALLEST_SPAN = 2e-34  # the scales of a smaller range of values overflow
_CHECK_MODULUS = 36897


def check_sum(data: bytes, *, big_endian: bool = True) -> int:
    """Return HTK's checksum: all 16-bit words after a header read as a single number, modulo 36897.

    Example:
        >>> check_sum(b"\\x00\\x01\\x00\\x02"), (1 * 65536 + 2) % 36897
        (28641, 28641)
    """
    # The checksum is about words, so the byte order of the file must not change it.
    words = np.frombuffer(data, ">u2" if big_endian else "<u2").astype(">u2")
    return int.from_bytes(words.tobytes(), "big") % _CHECK_MODULUS


def encode_features(
    frames: npt.NDArray[Any],
    *,
    kind: str = "USER",
    period: int = 100_000,
    big_endian: bool = True,
    compressed: bool = False,
) -> bytes:
    """Return the bytes of a feature file.

    Compression changes the values of a component by at most (largest - smallest) / 65534, plus the rounding of float32.
    A component whose values differ by less than 2e-34 is written as a constant.

    Args:
        frames: `[frames, values]`, at least one of each; written as float32.
        kind: HTK's name, such as ``"MFCC_E_D_A"``; `_C` is added to compressed features. `_K` appends a checksum.
        period: Frame shift in units of 100 ns.
        big_endian: Write big-endian numbers, as HTK does; otherwise little-endian.
        compressed: Write 16-bit integers and two vectors of scales.

    Raises:
        ConfigError: The header cannot hold the frames, or values that are not finite are to be compressed.
        CorpusError: A whole number is not exact in float32.

    Example:
        >>> len(encode_features(np.zeros((2, 3), np.float32)))
        36
    """
    values = in_precision("frames", as_numbers("frames", frames), np.float32)
    if values.ndim != 2 or not values.size:
        what = f"frames of shape {values.shape}; expected [frames, values], at least one of each"
        raise ConfigError(what, key="frames")
    order = ">" if big_endian else "<"
    num_frames, dim = values.shape
    code = parse_kind(kind)
    if code & BASE_KIND in KINDS_OF_16_BITS or code & QUANTIZED:
        raise ConfigError(f"kind {kind!r} cannot be written; expected a kind of float vectors, without _V", key="kind")
    compressed = compressed or bool(code & COMPRESSED)
    size = dim * (2 if compressed else 4)
    count = num_frames + (4 if compressed else 0)  # HTK counts the scales as four frames
    if size > 65535 or count > MOST_FRAMES or not 0 <= period < 2**31:
        what = f"{num_frames} frames of {size} bytes, period {period}; the header has room for frames of 65535 bytes, "
        raise ConfigError(f"{what}and for a number of frames and a period below 2^31", key="frames")
    header = struct.pack(f"{order}iIHH", count, period, size, code | (COMPRESSED if compressed else 0))
    data = _compressed(values, order) if compressed else values.astype(f"{order}f4").tobytes()
    check = struct.pack(f"{order}H", check_sum(data, big_endian=big_endian)) if code & CHECKED else b""
    return header + data + check


def _compressed(values: npt.NDArray[np.float32], order: str) -> bytes:
    """Return two vectors of scales, and the values as 16-bit integers."""
    if not np.isfinite(values).all():
        what = "values that are not finite cannot be compressed; replace them, or write uncompressed (compressed=False)"
        raise ConfigError(what, key="compressed")
    # In float32 the difference could overflow.
    least, most = values.min(axis=0).astype(np.float64), values.max(axis=0).astype(np.float64)
    span = most - least
    is_constant = span < _SMALLEST_SPAN
    span[is_constant] = 1
    a = np.where(is_constant, 1, 2 * 32767 / span).astype(np.float32)
    b = np.where(is_constant, least, (most + least) * 32767 / span).astype(np.float32)
    # With the rounded scales, because readers compute with them.
    whole = np.where(is_constant, 0, np.rint(a.astype(np.float64) * values - b))
    whole = np.clip(whole, -32767, 32767).astype(f"{order}i2")
    return b"".join([a.astype(f"{order}f4").tobytes(), b.astype(f"{order}f4").tobytes(), whole.tobytes()])


def write_features(path: AnyPath, frames: npt.NDArray[Any], **options: Any) -> None:
    """Write a feature file. Missing folders are created, and the file appears when it is complete.

    A corpus has many such files, so this function does not wait for the disk: call `os.sync()` after the last file.

    Args:
        path: The file.
        frames: `[frames, values]`.
        options: Options of `encode_features`.

    Raises:
        ConfigError: See `encode_features`.
        OSError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp(), "u1.fea")
        >>> write_features(path, np.zeros((2, 3)), kind="MFCC")
        >>> path.stat().st_size
        36
    """
    write_whole(path, [encode_features(frames, **options)], is_durable=False)


def write_archive(
    archive: AnyPath,
    scp: AnyPath,
    utterances: Iterable[tuple[str, npt.NDArray[Any]]],
    *,
    kind: str = "USER",
    period: int = 100_000,
    big_endian: bool = True,
    extension: str = "",
) -> list[tuple[str, int, int]]:
    """Write many utterances into one feature file, uncompressed, and a list with the frames of each utterance.

    Args:
        archive: The feature file.
        scp: The list; it names the archive by the path passed here.
        utterances: Ids and frames `[frames, values]`, read once.
        kind: As for `encode_features`.
        period: As for `encode_features`.
        big_endian: As for `encode_features`.
        extension: Text appended to each id in the list, such as ``".mfc"``; needed if ids contain dots.

    Returns:
        Id, first and last frame of each utterance.

    Raises:
        ConfigError: An utterance has another dimension than the first, an id cannot be written in a list, or the
            header cannot hold the number of all frames.
        OSError: A file cannot be written.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_archive(folder / "a.ark", folder / "a.scp", [("u1", np.zeros((2, 3))), ("u2", np.zeros((1, 3)))])
        [('u1', 0, 1), ('u2', 2, 2)]
    """
    ranges: list[tuple[str, int, int]] = []
    begin, dim = 0, None
    if parse_kind(kind) & (COMPRESSED | CHECKED):
        what = f"kind={kind!r}: archives have neither compression nor checksums; remove the qualifiers _C and _K"
        raise ConfigError(what, key="kind")
    make_folder_of(archive)
    with written_whole(archive) as file:
        for key, frames in utterances:
            if not key or set(key) & set('=[]"\n\r') or key != key.strip():
                what = f"the id {key!r} cannot be written in a list; expected none of '=[]\"', line ends "
                raise ConfigError(f"{what}and outer blanks", key="utterances")
            if dim is not None and frames.shape[1:] != (dim,):
                what = f"utterance {key}: frames {frames.shape}, expected {dim} values each"
                raise ConfigError(what, key="utterances")
            data, end = encode_features(frames, kind=kind, period=period, big_endian=big_endian), begin + len(frames)
            if end > MOST_FRAMES:
                what = f"utterance {key}: {end} frames with those before it; the header of an archive has room for "
                raise ConfigError(f"{what}{MOST_FRAMES}: write several archives", key="utterances")
            # The first utterance brings the header, which gets the number of all frames at the end.
            file.write(data[HEADER_SIZE:] if ranges else data)
            dim = frames.shape[1]
            ranges.append((key, begin, end - 1))
            begin = end
        if not ranges:
            raise ConfigError("no utterances to write", key="utterances")
        file.seek(0)
        file.write(struct.pack(">i" if big_endian else "<i", begin))
    path = os.fspath(archive)
    write_whole(scp, (os.fsencode(f"{key}{extension}={path}[{first},{last}]\n") for key, first, last in ranges))
    return ranges

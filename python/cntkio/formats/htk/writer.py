"""Writing of HTK feature files, archives and their lists. (docs/formats/htk.md, "Writing")"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio.errors import ConfigError
from cntkio.formats.htk.feature_files import (
    BASE_KIND,
    CHECKED,
    COMPRESSED,
    HEADER_SIZE,
    KINDS_OF_16_BITS,
    MOST_FRAMES,
    QUANTIZED,
    parse_kind,
)
from cntkio.formats.losses import Rounded
from cntkio.formats.table import as_numbers, in_precision
from cntkio.storage.output_file import AnyPath, make_folder_of, write_whole, written_whole

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
    rounded = Rounded(np.float32)
    rounded.add(np.asarray(frames))
    rounded.log(os.fspath(path), is_kept=False)
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
    rounded = Rounded(np.float32)
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
            rounded.add(np.asarray(frames))
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
    rounded.log(path, is_kept=False)
    write_whole(scp, (os.fsencode(f"{key}{extension}={path}[{first},{last}]\n") for key, first, last in ranges))
    return ranges

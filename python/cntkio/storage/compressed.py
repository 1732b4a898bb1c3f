"""Texts that are compressed with gzip or zstd, read where they are; files that are unpacked once, from the beginning.

(docs/where-corpora-can-be.md)

::

    seek table of zstd ──┐
    headers of zstd ─────┤
    index cache ─────────┼──> Points ──> CompressedText     decompresses the segments that a read needs, on all cores
    pass over the file ──┘                 InOrder          for frames that are too large: one after another

An access point is a place from which data can be decompressed: a gzip member, a zstd frame, or a block of gzip data
with the 32 KB of text before it. The text between two points is a segment.
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import os
import struct
from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, cast

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._threads import ForkLock, num_threads
from cntkio.errors import FormatError
from cntkio.storage.block_cache import CachedObject, CacheFolder, num_bytes_in_cache
from cntkio.storage.index_cache import DamagedCacheError, IndexCache, Remaking, StoredArrays, StoredColumn
from cntkio.storage.progress import announced, passed
from cntkio.storage.spans import SlicedNumbers, span_at
from cntkio.storage.text_input import (
    MEND_DATA,
    WINDOW,
    Bytes,
    CoreText,
    PackedText,
    TextCompression,
    TextInput,
    compression_in,
    explained,
    filled,
    raise_damage,
)

ENDINGS: tuple[str, ...] = (".gz", ".bgz", ".zst")
"""Usual extensions of compressed files."""
SPACING = 4 << 20
"""Least bytes of text between two access points that the pass over a file records."""
FRAMES = 1 << 20
"""Bytes of a part of the text: all zstd frames that begin in the same part are one segment."""
LARGEST_SEGMENT = 64 << 20
"""Most bytes of text in a zstd frame that is read in any order; larger frames are read in order only."""
PIECE = 4 << 20
"""Bytes of text that are decompressed at once in order."""
FileCompression = Literal["gzip", "zstd", "bzip2", "xz"]
PACKED_MAGIC: dict[bytes, FileCompression] = {b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}
"""First bytes of the compressions that have to be unpacked."""
PACKED_ENDINGS = (*ENDINGS, ".bz2", ".xz")
"""Usual extensions of compressed files."""

_OPENERS: dict[FileCompression, Callable[[Any], Any]] = {"bzip2": bz2.open, "xz": lzma.open}
_PASS = 4 << 20
_MOST_KEPT = 64 << 20  # bytes of windows that stay in memory after a text is closed
_WHOLE = 2**63
_FOOTER, _SEEK_TABLE = struct.Struct("<IBI"), 0x8F92EAB1
_SKIPPABLE, _SKIPPABLE_FRAME = struct.Struct("<II"), 0x184D2A5E
# Bits of the table's descriptor: each frame has a checksum; bits that the format keeps for later versions.
_HAS_SUMS, _RESERVED = 0x80, 0x7C
_CACHED_ARRAYS = ("texts", "places", "window_bounds", "windows")  # of `Points`


class Points(NamedTuple):
    """Access points, as in `PackedText`. The places are as `cntkio_compressed::Points` defines them.

    Attributes:
        sums: Checksums of frames of zstd, if a seek table has them; None: only the frames themselves have checksums.
    """

    texts: npt.NDArray[np.uint64]
    places: npt.NDArray[np.uint64]
    window_bounds: npt.NDArray[np.uint64]
    windows: SlicedNumbers
    sums: _core.FrameSums | None = None


class CompressedText:
    """A compressed text; a `TextInput` whose offsets count in the decompressed text.

    Args:
        guide: The access points, unless they are in a file that need not stay open.
        cache: The index cache that contains the access points.
    """

    reach = WINDOW

    def __init__(
        self, stored: TextInput, compression: TextCompression, points: Points, guide: Points | None, cache: Path | None
    ) -> None:
        self.path, self.size, self.close = stored.path, int(points.texts[-1]), stored.close
        self._stored, self._points = stored, points
        decoders = _core.Decoders(num_threads(), points.sums)
        self._segments = partial(_segments, stored, compression, points, decoders)
        # A tuple changes in one step, so no thread sees the segment of one read and the text of another.
        self._recent: tuple[int, Bytes] = (-1, np.empty(0, np.uint8))
        self.storage = stored.storage._replace(
            compression=compression, guide=guide, points_cache=cache, packed=self._segments,
            facts=lambda verify: {**stored.storage.facts(verify), "compression": compression},
        )  # fmt: skip
        self._reader: InOrder | CachedObject | None = None  # for texts with a too large frame
        largest = int(np.diff(points.texts).max(initial=0))
        self.storage = self.storage._replace(part_in_bytes=max(largest, stored.storage.part_in_bytes))
        if largest > LARGEST_SEGMENT:
            self._reader = InOrder(stored, compression, points)
            reason = f"a frame with {largest:,} bytes of text"
            self.storage = self.storage._replace(only_in_order=reason, least_gap=None, packed=None)
        elif self.storage.least_gap is not None:
            # Only a gap of two segments is sure to contain a whole segment that need not be read.
            self.storage = self.storage._replace(least_gap=max(2 * largest, self.storage.least_gap))

    def read(self, offset: int, size: int) -> bytes:
        return self._text(offset, offset + size).tobytes()

    def read_into(self, buffer: Bytes, offset: int) -> int:
        count = max(min(len(buffer), self.size - offset), 0)
        # Several small reads share the segment that `_text` keeps; a large read is decompressed into the buffer itself.
        if count < FRAMES and self._reader is None:
            buffer[:count] = self._text(offset, offset + count)
        else:
            self._fill(buffer[:count], offset)
        return count

    def source(self, begin: int, end: int) -> CoreText:
        return self._text(begin, end), begin

    def _text(self, begin: int, end: int) -> Bytes:
        """Return the text from `begin` up to `end`, or up to the end of the text. Raises the errors of `explained`."""
        end = min(end, self.size)
        if begin >= end:
            return np.empty(0, np.uint8)
        segment = int(span_at(self._points.texts, np.uint64(begin)))
        first, last = map(int, self._points.texts[segment : segment + 2])
        if self._reader is not None or end > last or end - begin >= (last - first) // 2:
            return filled(self._fill, begin, end)
        # Small reads often follow each other.
        recent, text = self._recent
        if recent != segment:
            text = filled(self._fill, first, last)
            self._recent = segment, text
        return text[begin - first : end - first]

    def keep_in(self, folder: CacheFolder) -> None:
        """Keep the text of too large frames in a folder, so that it can be read in any order.

        A folder whose limit is too low is not used; `storage.only_in_order` says so.
        """
        if self._reader is None:
            return
        least = num_bytes_in_cache(self.size)
        if folder.limit is not None and folder.limit < least:
            limit = f"a cache_limit of {folder.limit:,} bytes is too low for the text (it needs {least:,})"
            self.storage = self.storage._replace(only_in_order=f"{self.storage.only_in_order}, and {limit}")
            return
        version = json.dumps(["text", self._stored.storage.facts(False)], sort_keys=True)
        identity, fill = self.storage.identity, self._reader.read_into
        self._reader = CachedObject(folder, identity, version, self.size, fill, self.storage.require_unchanged)
        self.storage = self.storage._replace(only_in_order=None)

    def _fill(self, buffer: Bytes, begin: int) -> None:
        with explained(self):
            if self._reader is not None:
                self._reader.read_into(buffer, begin)
            else:
                _core.decompress(self._segments(begin, begin + len(buffer)), begin, buffer, num_threads())


def _segments(
    stored: TextInput, compression: TextCompression, points: Points, decoders: _core.Decoders, begin: int, end: int
) -> PackedText:
    """Return the compressed data of a part of a text; each thread decompresses the part that it parses next."""
    last = int(np.searchsorted(points.texts, np.uint64(end), side="left"))
    part = slice(int(span_at(points.texts, np.uint64(begin))), last + 1)
    texts, places, bounds = points.texts[part], points.places[part], points.window_bounds[part]
    windows = points.windows[int(bounds[0]) : int(bounds[-1])]
    with explained(stored):
        # A point may need the last bits of the byte before it.
        source = stored.source(max((int(places[0]) >> 4) - 1, 0), int(places[-1]) >> 4)
    return PackedText(compression, source, texts, places, bounds - bounds[0], windows, decoders)


class InOrder:
    """Decompression in order. It keeps the most recent text for readers that come a little later."""

    def __init__(self, stored: TextInput, compression: TextCompression, points: Points) -> None:
        self._stored, self._compression, self._points = stored, compression, points
        # A stream begins at a member or a frame, which bit 3 marks: it has no window for a block of gzip.
        is_begin = points.places & np.uint64(8) != 0
        self._texts, self._places = points.texts[is_begin], points.places[is_begin]
        self._lock = ForkLock()
        self._process = -1  # the process whose stream is at `_position`; -1: none, so reading begins at an access point
        self._begin = self._position = 0
        # The text from `_begin` up to `_position`. Each piece but the last one of the text has `PIECE` bytes. Their
        # memory is used again, because clearing fresh memory takes about a third of the time of the decompression.
        self._pieces: deque[Bytes] = deque()

    def read_into(self, buffer: Bytes, begin: int) -> None:
        """Fill a buffer with the text from `begin` on. The text does not end before the end of the buffer."""
        count = 0
        with self._lock.inner:
            if self._process != os.getpid() or not self._begin <= begin <= self._position + LARGEST_SEGMENT:
                self._go_to_point_before(begin)
            # Another reader may request the text before these bytes soon, or parts of them again.
            first = min(begin, self._position - LARGEST_SEGMENT)
            while count < len(buffer):
                if begin + count >= self._position:
                    self._process = -1  # until the pieces have caught up with the stream
                    self._add_piece(max(begin - self._position - LARGEST_SEGMENT, 0), first)
                    self._process = os.getpid()
                    continue
                number, offset = divmod(begin + count - self._begin, PIECE)
                part = self._pieces[number][offset : offset + len(buffer) - count]
                buffer[count : count + len(part)] = part
                count += len(part)

    def _go_to_point_before(self, begin: int) -> None:
        """Go to the last member or frame that begins before an offset, unless the stream's position is nearer."""
        point = int(span_at(self._texts, np.uint64(begin)))
        first = int(self._texts[point])
        if self._process != os.getpid() or not first <= self._position <= begin:
            self._process = -1
            place = int(self._places[point]) >> 4
            self._stream = _core.CompressedStream(self._compression, place, first, sums=self._points.sums)
            self._pieces.clear()
            self._begin = self._position = first
            self._process = os.getpid()

    def _add_piece(self, skip: int, first: int) -> None:
        """Decompress the next piece, after `skip` bytes of text that no reader needs. Keep the text from `first` on."""
        if skip:
            self._pieces.clear()
            self._begin = self._position = self._position + skip
        if self._pieces and self._begin + PIECE <= first:
            piece = self._pieces.popleft()
            self._begin += PIECE
        else:
            piece = np.empty(PIECE, np.uint8)
        piece = piece[: int(self._points.texts[-1]) - self._position]
        written = 0
        while written < len(piece):
            skipped, count = self._feed(skip, piece[written:])
            skip -= skipped
            written += count
        if self._position + len(piece) == int(self._points.texts[-1]):
            self._require_end()
        self._pieces.append(piece)
        self._position += len(piece)

    def _require_end(self) -> None:
        """Read the checksum after the text, and require that no other text follows."""
        end = int(self._points.places[-1]) >> 4
        while not self._stream.is_between or self._stream.position[0] < end:
            if self._feed(0, np.empty(1, np.uint8))[1]:
                self._raise_damage("the data hold more text than their table says")

    def _feed(self, skip: int, out: Bytes) -> tuple[int, int]:
        skipped, count, is_at_end = _feed(self._stored, self._compression, self._stream, skip, out)
        if is_at_end and not skipped and not count:
            self._raise_damage("the data end early")
        return skipped, count

    def _raise_damage(self, what: str) -> NoReturn:
        raise_damage(self._stored, self._compression, (*self._stream.position, what))


def _feed(
    stored: TextInput, compression: TextCompression, stream: _core.CompressedStream, skip: int, out: Bytes
) -> tuple[int, int, bool]:
    """Decompress the next data. Return how many bytes were skipped and written, and whether no data were left."""
    begin = stream.position[0]
    end = min(begin + _PASS, stored.size)
    fed = stream.feed(stored.source(begin, end), end, skip, out)
    if fed.damage is not None:
        raise_damage(stored, compression, fed.damage.args)
    return fed.num_skipped, fed.num_written, begin == end


def open_compressed(
    stored: TextInput, compression: TextCompression, cache_index: bool | str, guide: object = None
) -> CompressedText:
    """Find the access points of a compressed file: from the seek table or other headers, the cache, or a pass over it.

    Args:
        cache_index: Whether to keep the points that a pass finds in an index cache; "verify": as for `IndexCache`.
        guide: `Storage.guide` of the same file.
    """
    points = cast("Points | None", guide)
    if points is None and compression == "zstd":
        points = _points_of_seek_table(stored) or _points_of_headers(stored)
    if points is None and cache_index:
        points, path = _cached(stored, compression, cache_index == "verify")
        return CompressedText(stored, compression, points, None, path)
    points = points or _recent_points(stored, compression)
    return CompressedText(stored, compression, points, points, None)


def first_text(stored: TextInput, compression: TextCompression, size: int) -> bytes:
    """Return up to `size` bytes from the beginning of a compressed text; fewer if the data after them are damaged."""
    out = np.empty(size, np.uint8)
    end = min(_PASS, stored.size)
    fed = _core.CompressedStream(compression).feed(stored.source(0, end), end, 0, out)
    return out[: fed.num_written].tobytes()


def text_pieces(stored: TextInput, compression: TextCompression, size: int) -> Iterator[bytes]:
    """Yield the whole text of a compressed file, in pieces of at most `size` bytes."""
    stream = _core.CompressedStream(compression)
    out = np.empty(size, np.uint8)
    while True:
        with explained(stored):
            _, count, is_at_end = _feed(stored, compression, stream, 0, out)
        if is_at_end and not count:
            break
        yield out[:count].tobytes()
    _require_end(stored, compression, stream)


def _points_of_headers(stored: TextInput) -> Points | None:
    """Return the access points of zstd frames that state the size of their text; None: the headers do not show them.

    Headers that are far apart would be requests to a store, so a remote file is passed over, which reads it anyway.
    """
    if stored.storage.local_path is None:
        return None
    with explained(stored):
        found = _core.zstd_points(stored.source(0, stored.size), SPACING)
    return None if found is None else _up_to_end(found[0], stored.size, found[1])


def _up_to_end(points: _core.AccessPoints, num_packed: int, num_text: int) -> Points:
    """Return access points, and after them the end of the file and of the text."""
    return Points(
        np.append(points.texts, np.uint64(num_text)),
        # Bit 3 marks the beginning of a member or a frame, which needs no window.
        np.append(points.places, np.uint64(num_packed << 4 | 8)),
        np.concatenate([np.zeros(1, np.uint64), points.window_ends]),
        points.windows,
    )


def _require_end(stored: TextInput, compression: TextCompression, stream: _core.CompressedStream) -> None:
    if not stream.is_between or stream.position[0] != stored.size:
        raise_damage(stored, compression, (*stream.position, "the file ends early; it was cut off"))


def _cached(stored: TextInput, compression: TextCompression, verify: bool) -> tuple[Points, Path | None]:
    """Return the access points and their cache. A pass over the file makes a missing cache."""
    cache = IndexCache(stored, {"format": f"access points of {compression}", "spacing": SPACING}, verify=verify)

    def made_again() -> tuple[Points, Path | None]:
        stored.storage.require_unchanged()
        points = pass_over(stored, compression)
        return points, cache.write({}, {name: getattr(points, name) for name in _CACHED_ARRAYS}).path

    def build(arrays: StoredArrays) -> tuple[Points, Path | None]:
        texts, places, bounds = map(arrays.read, _CACHED_ARRAYS[:3])
        windows = StoredColumn(arrays, "windows", Remaking(arrays.path, lambda: made_again()[0]._asdict()))
        if (
            # These arrays direct the decoder, so arrays that contradict each other count as damage.
            not len(texts) == len(places) == len(bounds) > 1
            or texts[0] != 0
            or bounds[-1] != len(windows)
            or any(np.any(array[:-1] > array[1:]) for array in (texts, places, bounds))
            or int(places[-1]) >> 4 != stored.size
        ):
            raise DamagedCacheError("its arrays do not belong together")
        return Points(texts, places, bounds, windows), arrays.path

    return cache.read(build) or made_again()


def pass_over(stored: TextInput, compression: TextCompression) -> Points:
    """Decompress the whole file once, record access points, and verify all checksums."""
    stream = _core.CompressedStream(compression, spacing=SPACING)
    nothing = np.empty(0, np.uint8)
    with explained(stored), announced("decompressing", stored.size):
        for begin in range(0, stored.size, _PASS):
            # The pass wants no text: it skips more bytes than any text has.
            _feed(stored, compression, stream, _WHOLE, nothing)
            passed(min(_PASS, stored.size - begin))
    _require_end(stored, compression, stream)
    return _up_to_end(stream.take_points(), stored.size, stream.position[1])


# The access points of the file that was passed over last, because a file whose streams are inferred is opened again.
_recent: list[tuple[tuple[str, TextCompression, int], dict[str, Any], Points]] = []


def _recent_points(stored: TextInput, compression: TextCompression) -> Points:
    """Return the points of the last pass if it was over this file, unchanged; otherwise pass over the file."""
    key = stored.storage.identity, compression, SPACING
    for kept, facts, points in _recent:
        if kept == key and facts == stored.storage.facts(False):
            return points
    points = pass_over(stored, compression)
    # Facts about a remote text come from the bytes that the pass has read.
    stored.storage.require_unchanged()
    _recent[:] = [(key, stored.storage.facts(False), points)] if len(points.windows) <= _MOST_KEPT else []
    return points


def _points_of_seek_table(stored: TextInput) -> Points | None:
    """Return the frames in the seek table at the end of a zstd file; None: there is no such table."""
    footer = stored.read(max(stored.size - _FOOTER.size, 0), _FOOTER.size)
    if len(footer) < _FOOTER.size:
        return None
    num_frames, descriptor, magic = _FOOTER.unpack(footer)
    width = 12 if descriptor & _HAS_SUMS else 8
    content = num_frames * width + _FOOTER.size
    begin = stored.size - content - _SKIPPABLE.size
    if magic != _SEEK_TABLE or descriptor & _RESERVED or num_frames == 0 or begin < 0:
        return None
    if _SKIPPABLE.unpack(stored.read(begin, _SKIPPABLE.size)) != (_SKIPPABLE_FRAME, content):
        return None
    entries = np.frombuffer(stored.read(begin + _SKIPPABLE.size, num_frames * width), "<u4").reshape(num_frames, -1)
    ends = np.cumsum(entries[:, :2], axis=0, dtype=np.uint64)
    packed, texts = (np.append(np.uint64(0), ends[:, column]) for column in (0, 1))
    if packed[-1] != begin:
        return None  # the table belongs to other data: the pass over the file finds the frames
    parts = texts[:-1] // np.uint64(FRAMES)
    # Small frames form one segment, so that the arrays stay small.
    is_first = np.concatenate([[True], parts[1:] != parts[:-1], [True]])
    places = (packed << np.uint64(4) | np.uint64(8))[is_first]
    sums = None
    if descriptor & _HAS_SUMS:
        has_text = entries[:, 1] > 0
        sums = _core.FrameSums(texts[1:][has_text], np.ascontiguousarray(entries[has_text, 2]))
    return Points(texts[is_first], places, np.zeros_like(places), np.empty(0, np.uint8), sums)


# --------------------------------------------------------------------------------------------------------------
# Files that are unpacked once, from the beginning to the end.


def packing_of(stored: TextInput) -> FileCompression | None:
    """Return the compression of a file; None: it is not compressed."""
    head = stored.read(0, max(map(len, PACKED_MAGIC)))
    return compression_in(head) or next((name for magic, name in PACKED_MAGIC.items() if head.startswith(magic)), None)


def unpacked(stored: TextInput, packing: FileCompression, size: int) -> Generator[bytes]:
    """Yield the content of a file that is compressed with bzip2 or xz, in pieces of at most `size` bytes."""
    file = _OPENERS[packing](io.BufferedReader(StoredReader(stored), 1 << 20))
    try:
        while piece := file.read(size):
            yield piece
    except (EOFError, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
            raise  # only bz2 raises a bare `OSError` without a number, for damaged data
        stored.storage.require_unchanged()
        raise FormatError(f"the {packing} data are damaged: {error}; {MEND_DATA}", path=stored.path) from None


class StoredReader(io.RawIOBase):
    """The bytes of a file as it is stored, as a Python file object. Each reader has a position of its own."""

    def __init__(self, stored: TextInput) -> None:
        self._stored, self._at = stored, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._stored.size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        data = self._stored.read(self._at, self._stored.size - self._at if size < 0 else size)
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        count = self._stored.read_into(np.frombuffer(buffer, np.uint8), self._at)
        self._at += count
        return count

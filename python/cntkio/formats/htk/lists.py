"""Lists of utterances (scp): the file and the frames of each utterance. (docs/formats/htk.md, "Lists of utterances")

::

    u1=x.ark[0,299]       key, file, first and last frame
    u2=y.mfc              a whole file: the header of y.mfc has its length

The compiled core scans the lines. Files are opened here only if the list names them without a range, each once.
"""

from __future__ import annotations

import codecs
import dataclasses
import functools
import itertools
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio.errors import FormatError
from cntkio.formats.detect import other_than
from cntkio.formats.htk.feature_files import FeatureFile, FeatureFiles, HTKHeader
from cntkio.formats.report import EMPTY_FILE, first_few
from cntkio.storage.names import is_remote, path_in_list
from cntkio.storage.open_input import KeptObjects, ahead, all_bytes
from cntkio.storage.output_file import AnyPath
from cntkio.storage.progress import announced, passed
from cntkio.storage.text_input import in_utf8, refuse_mark


def text_rows(rows: tuple[npt.NDArray[np.uint8], int]) -> npt.NDArray[np.bytes_]:
    """Turn the core's rows of padded bytes into an array of texts."""
    data, width = rows
    return data.view(f"S{width}")


def repeated(keys: npt.NDArray[np.bytes_]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return for each key the index of the first equal key, and the indices of all keys that are not the first."""
    first = _core.first_same(np.ascontiguousarray(keys).view(np.uint8), keys.dtype.itemsize)
    return first, np.flatnonzero(first != np.arange(len(first)))


def decoded(text: bytes) -> str:
    """Return a text from a file, such as a key, for a message."""
    return bytes(text).decode(errors="replace")


def words_for_utterances(keys: npt.NDArray[np.bytes_], what: str) -> str:
    """Return a warning about utterances, of which `what` is true, with the first of their keys."""
    utterances = "1 utterance is" if len(keys) == 1 else f"{len(keys)} utterances are"
    return f"{utterances} {what}: {first_few(map(decoded, keys), len(keys))}"


_FOLDER = re.compile(rb"(.*)[/\\]", re.DOTALL)
_KALDI_LINE = re.compile(rb"\S+[ \t]+[^=\r\n]+:\d+[ \t]*\r?\n")
_MOST_TRIED = 100  # first files, and then as many of all others, that are opened to find one without an error
_WHOLE_FILE = 2**32 - 1  # the core returns this for a line without a range
# The words for faults that the core finds in lines.
_FAULT_WORDS = {
    "no id": "no '='; expected id=path[first,last]",
    "no range": "no range; expected id=path[first,last]",
    "bad range": "the range is not two numbers; expected [first,last] with a comma",
    "reversed": "the range ends before it begins; expected [first,last] with first <= last",
    "no path": "no path",
    "bad key": "no id, or an id of more than 4096 bytes",
    "open quote": "a quote is not closed",
}


class Listed(NamedTuple):
    """Utterances of one or several lists.

    Attributes:
        files: Index of each utterance's file in `paths`.
        first: First frame of each utterance in its file.
        lengths: Frames of each utterance.
    """

    keys: npt.NDArray[np.bytes_]
    paths: list[bytes]
    files: npt.NDArray[np.uint32]
    first: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.uint32]

    def only(self, mask: npt.NDArray[np.bool_ | np.int64] | slice) -> Listed:
        """Return the utterances that a mask, indices or a slice select."""
        return Listed(self.keys[mask], self.paths, self.files[mask], self.first[mask], self.lengths[mask])

    def path_of(self, index: int) -> bytes:
        return self.paths[int(self.files[index])]

    def ends_of(self, which: Any) -> Any:
        """Return the frame after the last frame of some utterances, or of one; at most 2^32 - 1."""
        return self.first[which] + self.lengths[which]


def _scanned(text: bytes, path: str, prefix: str, compatible: bool) -> _core.HTKList | _core.ListError:
    if not compatible and text.startswith(codecs.BOM_UTF8):
        text = b"   " + text[3:]  # blanks, so that the bytes in errors stay true
    if not compatible:
        refuse_mark(path, text)
    folder = _FOLDER.match(os.fsencode(path))
    # CNTK changes the prefix in this way, too. The core puts a slash after it.
    before = os.fsencode(prefix).replace(b"\\", b"/").rstrip(b"/")
    return _core.htk_scan_list(text, compatible, folder and folder[1], before, sys.platform != "win32")


Refuse = Callable[[Exception], None]


def read_list(
    path: AnyPath, *, prefix: str = "", compatible: bool = False, refuse: Refuse | None = None,
    stored: KeptObjects | None = None,
) -> Listed:  # fmt: skip
    """Read a list of utterances (scp). The lengths of whole files come from their headers.

    Args:
        path: The list.
        prefix: Text put before each path of the list.
        compatible: Read lines exactly as CNTK 2.7 does.
        refuse: Called with the error of each whole file that cannot be read; its utterances are left out, unless no
            utterance is left. None: the first error is raised.
        stored: The files in stores; None: none is open yet.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp(), "a.scp")
        >>> _ = path.write_text("u1.mfc = all.ark[0,299]\\nu2.mfc = all.ark[300,420]\\n")
        >>> listed = read_list(path)
        >>> listed.keys.tolist(), listed.lengths.tolist()
        ([b'u1', b'u2'], [300, 121])
    """
    name, stored = os.fspath(path), stored or KeptObjects(None)
    text = all_bytes(path, stored.remote)
    if b"\0" in text:
        other = other_than("scp", path, before="") or "a zero byte; a list is a text"
        raise FormatError(other, path=path, byte=text.index(b"\0"))
    scanned = _scanned(text, name, prefix, compatible)
    if isinstance(scanned, _core.ListError):
        kind = _core.LIST_FAULTS[scanned.fault]
        line = decoded(text[scanned.byte :].split(b"\n", 1)[0][:100]).strip()
        # CNTK knows no quotes.
        advice = ", or quotes around a path that ends in a bracket" if kind == "bad range" and not compatible else ""
        what = f"{_FAULT_WORDS[kind]}{advice}: {line!r}{other_than('scp', path)}"
        raise FormatError(what, path=path, line=scanned.line, column=1, byte=scanned.byte, kind=kind)
    if not len(scanned.files):
        what = "no utterance; expected a line such as id=path[first,last]"
        raise FormatError(what, path=path, byte=0, kind=EMPTY_FILE)
    first, last = scanned.first_frames, scanned.last_frames
    # For a whole file the sum exceeds 32 bits and becomes 0; its header replaces this length below.
    lengths = last - first + np.uint32(1)
    is_whole = last == _WHOLE_FILE
    listed = Listed(text_rows(scanned.keys), _paths_of(scanned, name), scanned.files, first, lengths)
    if not is_whole.any():
        return listed
    needed, firsts, index = np.unique(listed.files[is_whole], return_index=True, return_inverse=True)
    firsts = np.flatnonzero(is_whole)[firsts]
    counts = np.zeros(len(needed), np.uint32)
    errors: list[Exception] = []
    lists, lines = Lists([name], prefix, compatible, stored), _lines_of_utterances(text)
    # In the order of the lines, which is not that of the files: a range may name a file before the whole file.
    order = np.argsort(firsts).tolist()
    num_requests = stored.requests_for(os.fsdecode(listed.paths[file]) for file in needed)
    # Opening a file takes most of the time that its length costs.
    with closing(FeatureFiles(compatible, stored)) as opened, announced("indexing", len(order) if num_requests else 0):
        count = functools.partial(_num_frames, opened, listed)
        for number, counted in zip(order, ahead(count, firsts[order].tolist(), num_requests), strict=True):
            utterance = int(firsts[number])
            try:
                counts[number] = counted()
                passed(1 if num_requests else 0)
            except (FormatError, OSError) as error:
                # In a text of another format, lines look like names of files that do not exist.
                if isinstance(error, OSError) and (other := other_than("scp", path)):
                    what = f"the list names a file that does not exist{other}"
                    raise FormatError(what, path=path, byte=0, line=1, column=1, kind="no range") from error
                if isinstance(error, OSError) and _KALDI_LINE.match(text):
                    what = "a line of a Kaldi list; expected id=path[first,last], and HTK features: Kaldi's "
                    raise FormatError(f"{what}copy-feats-to-htk writes them", path=path, line=1) from error
                where = f"{name}, line {next(line for passed, line in lines if passed == utterance)}"
                errors.append(lists.completed(error, listed.keys[utterance], where))
                if refuse is None:
                    raise errors[0] from None
    lengths[is_whole] = counts[index]
    is_sound = lengths > 0
    # Without a sound utterance, the first error is raised, so only the others are refused.
    for refused in errors if is_sound.any() else errors[1:]:
        refuse(refused)  # type: ignore[misc]  # without it, the first error was raised
    if not is_sound.any():
        raise errors[0]
    return listed.only(is_sound) if errors else listed


def _num_frames(files: FeatureFiles, listed: Listed, index: int) -> int:
    path = listed.path_of(index)
    file = files.open(path, int(listed.files[index]))
    header = file.header
    if not header.num_frames:
        raise FormatError("no frames", path=os.fsdecode(path), byte=0, kind="no frames")
    if header.frames_offset + header.num_frames * header.frame_size > file.size:
        promised = f"the header promises {header.num_frames} frames of {header.frame_size} bytes"
        what = f"{promised}, but the file has {file.size} bytes; expected a complete file"
        raise FormatError(what, path=os.fsdecode(path), byte=0, kind="incomplete file")
    return header.num_frames


def _lines_of_utterances(text: bytes) -> Iterator[tuple[int, int]]:
    """Yield each utterance of a list, and its line: blank lines have no utterance."""
    lines = enumerate(re.finditer(rb"([^\r\n]*)(?:\r\n?|\n|\Z)", text), 1)
    # The core takes the same bytes for blanks.
    yield from enumerate(number for number, line in lines if line[1].strip(b" \t\f"))


def joined_lists(lists: Sequence[Listed]) -> tuple[Listed, npt.NDArray[np.int64]]:
    """Return the utterances of lists, and the first path of each list and, last, the number of paths."""
    keys, paths, files, first, lengths = zip(*lists, strict=True)
    first_paths = np.cumsum([0, *map(len, paths)])
    if len(lists) == 1:
        return lists[0], first_paths
    moved = [part + np.uint32(start) for part, start in zip(files, first_paths, strict=False)]
    join = np.concatenate
    return Listed(join(keys), [*itertools.chain(*paths)], join(moved), join(first), join(lengths)), first_paths


def _paths_of(scanned: _core.HTKList, name: str) -> list[bytes]:
    if not is_remote(name):
        return scanned.paths
    return [os.fsencode(path_in_list(name, os.fsdecode(path))) for path in scanned.paths]


@dataclasses.dataclass(frozen=True)
class Lists:
    """Lists of utterances, and how they are read."""

    paths: Sequence[str]
    prefix: str
    compatible: bool = False
    stored: KeptObjects = dataclasses.field(default_factory=lambda: KeptObjects(None))

    @functools.cached_property
    def _utterances(self) -> list[tuple[str, npt.NDArray[np.bytes_], list[bytes], list[int]]]:
        """The name of each list that can be read, and the keys, the paths and the lines of its utterances."""
        # Only errors need them, but an error of one file is often an error of many.
        found = []
        for name in self.paths:
            text = all_bytes(name, self.stored.remote)
            scanned = _scanned(text, name, self.prefix, self.compatible)
            if not isinstance(scanned, _core.ListError):
                names = _paths_of(scanned, name)
                paths, lines = [names[file] for file in scanned.files], [line for _, line in _lines_of_utterances(text)]
                found.append((name, text_rows(scanned.keys), paths, lines))
        return found

    def read(self, path: str, refuse: Refuse | None) -> Listed:
        """Read one of the lists."""
        return read_list(
            path, prefix=self.prefix, compatible=self.compatible, refuse=refuse, stored=self.stored
        )  # fmt: skip

    def open(self, files: FeatureFiles, listed: Listed, index: int) -> FeatureFile:
        """Open the file of an utterance. Errors of the system name the list, the line and the utterance."""
        try:
            return files.open(listed.path_of(index), int(listed.files[index]))
        except OSError as error:
            raise self.completed(error, listed.keys[index], self.place(listed, index)) from None

    def place(self, listed: Listed, index: int) -> str:
        """Return the list and the line of an utterance, by its key and its file; empty if no list has it."""
        path = listed.path_of(index)
        for name, keys, paths, lines in self._utterances:
            for utterance in np.flatnonzero(keys == listed.keys[index]).tolist():
                if paths[utterance] == path:
                    return f"{name}, line {lines[utterance]}"
        return ""

    def completed(self, error: FormatError | OSError, key: bytes, where: str) -> FormatError | OSError:
        """Complete an error about a feature file by the list and the line, the utterance and the prefix."""
        if isinstance(error, FormatError):
            located = f"{error.what} ({where})"
            return FormatError(located, path=error.path, byte=error.byte, sequence=decoded(key), kind=error.kind)
        with_prefix = f", with the prefix {self.prefix!r}" if self.prefix else ""
        what = f"{error.strerror} (utterance {decoded(key)} of {where}{with_prefix})" if where else error.strerror
        # The class tells callers why the file cannot be read.
        return type(error)(error.errno, what, error.filename)


def first_header(path: str, *, prefix: str = "") -> HTKHeader:
    """Return the header of the first sound file of a list. For `prefix`, see `read_list`."""
    listed = read_list(path, prefix=prefix, refuse=lambda error: None)  # the corpus will find them again
    lists = Lists([path], prefix)
    with closing(FeatureFiles(compatible=False, stored=lists.stored)) as files:
        return first_sound(lambda index: lists.open(files, listed, index).header, listed.files)


def first_sound(
    header: Callable[[int], HTKHeader], files: npt.NDArray[np.uint32], refuse: Refuse = lambda error: None
) -> HTKHeader:
    """Return the first header that can be read; if none of the files that are tried is sound, raise the first error.

    Args:
        header: Returns the header of the file of an utterance.
        files: The file of each utterance, in groups.
        refuse: Called with the other errors if none of the files is sound.
    """
    errors: list[Exception] = []
    starts = np.append(0, 1 + np.flatnonzero(files[1:] != files[:-1]))
    others = starts[_MOST_TRIED:]
    some = others[np.linspace(0, len(others) - 1, min(len(others), _MOST_TRIED)).astype(np.int64)]
    for sequence_index in [*starts[:_MOST_TRIED].tolist(), *some.tolist()]:
        try:
            return header(sequence_index)
        except (OSError, FormatError) as error:
            errors.append(error)
    for other in errors[1:]:
        refuse(other)
    raise errors[0]


SMALLEST_MAP = 4 << 20  # bytes; shorter runs are copied, because every mapping adds work to each minibatch
_LARGEST_RESERVATION = 1 << 28  # bytes of a chunk; a list may promise more frames than its files have
Scales = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
Int64s = npt.NDArray[np.int64]


class Frames(NamedTuple):
    """The frames of a chunk as they are in the files.

    Attributes:
        bytes: Blocks of bytes: block 0 was read, all others are mapped.
        block_of: The block of each utterance.
        encodings: Encodings of values: byte order and, if they are compressed, the scales.
        encoding_of: The encoding of each utterance.
        offsets: The first byte of each utterance in its block.
        mixes: Differences between the files and the first file, each with its number of runs.
    """

    bytes: _core.FileBytes
    block_of: npt.NDArray[np.uint32]
    encodings: list[_core.FrameEncoding]
    encoding_of: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.uint64]
    mixes: Counter[str]


def runs_of(
    files: npt.NDArray[np.uint32], begins: Int64s, ends: Int64s, frame_size: int, *, memory_map: bool
) -> tuple[Int64s, Int64s]:
    """Divide utterances into runs, each of which is read or mapped in one piece.

    An utterance continues a run if its frames follow in the same file. If the run is long enough to be mapped, the
    file may have other frames in between, which are never touched. `begins` and `ends` have the first frame of each
    utterance in its file, and the frame after its last frame.

    Returns:
        The first utterance of each run and, last, the number of utterances; and the bytes of each run.
    """

    def bounds_and_sizes(follows: npt.NDArray[np.bool_]) -> tuple[Int64s, Int64s]:
        bounds = np.concatenate([[0], np.flatnonzero(~follows) + 1, [len(files)]])
        return bounds, (ends[bounds[1:] - 1] - begins[bounds[:-1]]) * frame_size

    is_same_file = files[1:] == files[:-1]
    follows = is_same_file & (begins[1:] == ends[:-1])
    if memory_map:
        ascends = is_same_file & (begins[1:] >= ends[:-1])
        bounds, sizes = bounds_and_sizes(ascends)
        # A run that is mapped may have other frames in between, which cost nothing; a read would copy them.
        follows |= ascends & np.repeat(sizes >= SMALLEST_MAP, np.diff(bounds))[1:]
    return bounds_and_sizes(follows)


class GatheredFrames:
    """Runs of frames that are collected for one chunk; `sizes` has the expected bytes of each run."""

    def __init__(self, sizes: Int64s, *, memory_map: bool) -> None:
        to_read = sizes[sizes < SMALLEST_MAP] if memory_map else sizes
        self._bytes = _core.FileBytes(min(int(to_read.sum()), _LARGEST_RESERVATION))
        self._memory_map = memory_map
        self._num_read = 0
        self._runs: list[tuple[int, ...]] = []  # block, offset, bytes of a frame, encoding
        self._encodings: list[_core.FrameEncoding] = []
        self._encoding_ids: dict[tuple[bool, bytes | None], int] = {}

    def add(self, file: FeatureFile, begins: Int64s, ends: Int64s) -> int | None:
        """Read or map the frames of a run of utterances. For `begins` and `ends` see `runs_of`.

        Returns:
            None; if the file ends within the run, the number of bytes found, and nothing was added.
        """
        header, first = file.header, int(begins[0])
        # From the first frame of the run to its last: a mapped run may have other frames in between.
        begin, size = header.frames_offset + first * header.frame_size, (int(ends[-1]) - first) * header.frame_size
        # Touching a map beyond the end of the file kills the process (SIGBUS); a read only finds fewer bytes.
        if file.number is not None and self._memory_map and size >= SMALLEST_MAP and begin + size <= file.size:
            is_dense = 2 * int((ends - begins).sum()) * header.frame_size > size
            ranges = None if is_dense else ((begins - first) * header.frame_size, (ends - first) * header.frame_size)
            block, offset = self._bytes.show(file.number, in_utf8(file.path), begin, size, ranges), 0
        else:
            # The list may promise any number of frames, so ask for no more bytes than the file has.
            size_there = min(size, max(file.size - begin, 0))
            num_read = self._bytes.read(file.source(begin, size_there), begin, size_there)
            if num_read < size:
                return num_read
            block, offset = 0, self._num_read
            self._num_read += size
        # Each compressed file has its own scales.
        key = (header.is_big_endian, file.path if header.is_compressed else None)
        if key not in self._encoding_ids:
            self._encoding_ids[key] = len(self._encodings)
            scales = _read_scales(file) if header.is_compressed else None
            self._encodings.append(_core.FrameEncoding(header.is_big_endian, scales))
        self._runs.append((block, offset, header.frame_size, self._encoding_ids[key]))
        return None

    def of_utterances(self, begins: Int64s, bounds: Int64s, mixes: Counter[str]) -> Frames:
        """Return the frames of the utterances. For `begins` and `bounds` see `runs_of`, for `mixes` see `Frames`."""
        counts = np.diff(bounds)
        blocks, offsets, frame_sizes, encoding_of = np.repeat(np.array(self._runs, np.int64), counts, axis=0).T
        offsets = offsets + (begins - np.repeat(begins[bounds[:-1]], counts)) * frame_sizes
        block_of, encoding_of = blocks.astype(np.uint32), encoding_of.astype(np.uint32)
        return Frames(self._bytes, block_of, self._encodings, encoding_of, offsets.astype(np.uint64), mixes)


def _read_scales(file: FeatureFile) -> Scales:
    header = file.header
    data = file.read(header.data_offset, 8 * header.dim)
    if len(data) < 8 * header.dim:
        what = "the file ends within the scales of its compressed values"
        raise FormatError(what, path=os.fsdecode(file.path), byte=len(data))
    both = np.frombuffer(data, ">f4" if header.is_big_endian else "<f4").astype(np.float32)
    return both[: header.dim], both[header.dim :]

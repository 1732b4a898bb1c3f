"""Lists of utterances (scp): the file and the frames of each utterance. (docs/formats/htk.md, "Lists of utterances")

::

    u1=x.ark[0,299]       key, file, first and last frame
    u2=y.mfc              a whole file: the header of y.mfc has its length

The compiled core scans the lines. Files are opened here only if the list names them without a range, each once.
"""

from __future__ import annotations

import codecs
import itertools
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio.errors import FormatError
from cntkio.formats.detect import other_than
from cntkio.formats.htk.feature_files import FeatureFiles, HTKHeader, OpenFile
from cntkio.formats.text_input import all_bytes, in_utf8


def text_rows(rows: tuple[npt.NDArray[np.uint8], int]) -> npt.NDArray[np.bytes_]:
    """Turn the core's rows of padded bytes into an array of texts."""
    data, width = rows
    return data.view(f"S{width}")


def first_same(keys: npt.NDArray[np.bytes_]) -> npt.NDArray[np.uint32]:
    """Return for each key the index of the first equal key."""
    return _core.first_same(np.ascontiguousarray(keys).view(np.uint8), keys.dtype.itemsize)


def decoded(text: bytes) -> str:
    """Return a text from a file, such as a key, for a message."""
    return bytes(text).decode(errors="replace")


_FOLDER = re.compile(rb"(.*)[/\\]", re.DOTALL)
_KALDI_LINE = re.compile(rb"\S+[ \t]+[^=\r\n]+:\d+[ \t]*\r?\n")
_MOST_TRIED = 100  # first files, and then as many of all others, that are opened to find one without an error
_WHOLE_FILE = 2**32 - 1  # the core's last frame of a line without a range
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


def _scanned(
    text: bytes, path: str | os.PathLike[str], prefix: str, compatible: bool
) -> _core.HTKList | _core.HTKListError:
    if not compatible and text.startswith(codecs.BOM_UTF8):
        text = b"   " + text[3:]  # blanks, so that the bytes in errors stay true
    folder = _FOLDER.match(os.fsencode(path))
    # CNTK changes the prefix in this way, too. The core puts a slash after it.
    before = os.fsencode(prefix).replace(b"\\", b"/").rstrip(b"/")
    return _core.htk_scan_list(text, compatible, folder and folder[1], before, sys.platform != "win32")


def read_list(
    path: str | os.PathLike[str],
    *,
    prefix: str = "",
    compatible: bool = False,
    refuse: Callable[[Exception], None] | None = None,
) -> Listed:
    """Read a list of utterances (scp). The lengths of whole files come from their headers.

    Args:
        path: The list.
        prefix: Text put before each path of the list.
        compatible: Read lines exactly as CNTK 2.7 does.
        refuse: Called with the error of each whole file that cannot be read; its utterances are left out, unless no
            utterance is left. None: the first error is raised.

    Returns:
        The utterances in the order of the list.

    Raises:
        OSError: The list, or a file whose length is needed, cannot be read.
        FormatError: A line breaks the format, or a whole file has no frames.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp(), "a.scp")
        >>> _ = path.write_text("u1.mfc = all.ark[0,299]\\nu2.mfc = all.ark[300,420]\\n")
        >>> listed = read_list(path)
        >>> listed.keys.tolist(), listed.lengths.tolist()
        ([b'u1', b'u2'], [300, 121])
    """
    name = os.fspath(path)
    text = all_bytes(path)
    if b"\0" in text:
        other = other_than("scp", path, before="") or "a zero byte; a list is a text"
        raise FormatError(other, path=path, byte=text.index(b"\0"))
    scanned = _scanned(text, name, prefix, compatible)
    if isinstance(scanned, _core.HTKListError):
        kind = _core.LIST_FAULTS[scanned.fault]
        line = decoded(text[scanned.byte :].split(b"\n", 1)[0][:100]).strip()
        # CNTK knows no quotes.
        advice = ", or quotes around a path that ends in a bracket" if kind == "bad range" and not compatible else ""
        what = f"{_FAULT_WORDS[kind]}{advice}: {line!r}{other_than('scp', path)}"
        raise FormatError(what, path=path, line=scanned.line, column=1, byte=scanned.byte, kind=kind)
    paths, files, first, last = scanned.paths, scanned.files, scanned.first_frames, scanned.last_frames
    if not len(files):
        raise FormatError("no utterance; expected a line such as id=path[first,last]", path=path, byte=0)
    # For a whole file the sum exceeds 32 bits and becomes 0; its header replaces this length below.
    keys, lengths = text_rows(scanned.keys), last - first + np.uint32(1)
    is_whole = last == _WHOLE_FILE
    listed = Listed(keys, paths, files, first, lengths)
    if not is_whole.any():
        return listed
    needed, firsts, index = np.unique(files[is_whole], return_index=True, return_inverse=True)
    firsts = np.flatnonzero(is_whole)[firsts]
    counts = np.zeros(len(needed), np.uint32)
    errors: list[Exception] = []
    lists, lines = Lists([name], prefix, compatible), _Lines(text)
    # Opening a file takes most of the time that its length costs.
    with FeatureFiles(compatible) as opened:
        # In the order of the lines, which is not that of the files: a range may name a file before the whole file.
        for number in np.argsort(firsts).tolist():
            file, utterance = int(needed[number]), int(firsts[number])
            try:
                counts[number] = _num_frames(opened, paths[file])
            except (FormatError, OSError) as error:
                # In a text of another format, lines look like names of files that do not exist.
                if isinstance(error, OSError) and (other := other_than("scp", path)):
                    raise FormatError(f"the list names a file that does not exist{other}", path=path) from error
                if isinstance(error, OSError) and _KALDI_LINE.match(text):
                    what = (
                        "a line of a Kaldi list; expected id=path[first,last], and HTK features: Kaldi's "
                        "copy-feats-to-htk writes them"
                    )
                    raise FormatError(what, path=path, line=1) from error
                errors.append(lists.completed(error, keys[utterance], f"{name}, line {lines.of(utterance)}"))
                if refuse is None:
                    raise errors[0] from None
    lengths[is_whole] = counts[index]
    is_sound = lengths > 0
    if not is_sound.any():
        # The first error is raised, so only the others are refused.
        first_error, *errors = errors
    for refused in errors:
        refuse(refused)  # type: ignore[misc]  # without it, the first error was raised
    if not is_sound.any():
        raise first_error
    return listed.only(is_sound) if errors else listed


def _num_frames(files: FeatureFiles, path: bytes) -> int:
    file = files.open(path)
    header = file.header
    if not header.num_frames:
        raise FormatError("no frames", path=os.fsdecode(path), byte=0, kind="no frames")
    if header.frames_offset + header.num_frames * header.frame_size > file.size:
        what = (
            f"the header promises {header.num_frames} frames of {header.frame_size} bytes, but the file has "
            f"{file.size} bytes; expected a complete file"
        )
        raise FormatError(what, path=os.fsdecode(path), byte=0, kind="incomplete file")
    return header.num_frames


class _Lines:
    """The lines of utterances in a list, whose blank lines have no utterance. Ask for utterances in ascending order."""

    def __init__(self, text: bytes) -> None:
        self._text, self._at, self._line = text, 0, 1
        # The core takes the same bytes for blanks.
        self._starts = enumerate(re.finditer(rb"[ \t\f]*[^ \t\f\r\n][^\r\n]*", text))

    def of(self, utterance: int) -> int:
        start = next(match.start() for number, match in self._starts if number == utterance)
        passed = self._text[self._at : start]
        self._line += passed.count(b"\n") + passed.count(b"\r") - passed.count(b"\r\n")
        self._at = start
        return self._line


class Lists(NamedTuple):
    """Lists of utterances, and how they are read.

    Attributes:
        paths: The lists.
    """

    paths: Sequence[str]
    prefix: str = ""
    compatible: bool = False

    def read(self, refuse: Callable[[Exception], None] | None = None) -> list[Listed]:
        return [read_list(path, prefix=self.prefix, compatible=self.compatible, refuse=refuse) for path in self.paths]

    def place(self, key: bytes, path: bytes) -> str:
        """Return the list and the line of an utterance, by its key and its file; empty if no list has it."""
        # Only errors need lines, so they are not kept: the lists are scanned again.
        for name in self.paths:
            scanned = _scanned(text := all_bytes(name), name, self.prefix, self.compatible)
            if isinstance(scanned, _core.HTKListError) or path not in scanned.paths:
                continue
            is_it = (text_rows(scanned.keys) == key) & (scanned.files == scanned.paths.index(path))
            if is_it.any():
                return f"{name}, line {_Lines(text).of(int(np.argmax(is_it)))}"
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


def first_header(path: str | os.PathLike[str], *, prefix: str = "") -> HTKHeader:
    """Return the header of the first sound file of a list. For `prefix`, see `read_list`.

    Raises:
        OSError, FormatError: The list, or the file of the first utterance, cannot be read.
    """
    listed = read_list(path, prefix=prefix, refuse=lambda error: None)  # the corpus will find them again

    def header(sequence_index: int) -> HTKHeader:
        key, path_of = listed.keys[sequence_index], listed.path_of(sequence_index)
        try:
            return files.open(path_of).header
        except OSError as error:
            lists = Lists([os.fspath(path)], prefix)
            raise lists.completed(error, key, lists.place(key, path_of)) from None

    with FeatureFiles(compatible=False) as files:
        return first_sound(header, listed.files)


def first_sound(
    header: Callable[[int], HTKHeader],
    files: npt.NDArray[np.uint32],
    refuse: Callable[[Exception], None] = lambda error: None,
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


def join_lists(lists: Sequence[Listed]) -> Listed:
    """Join several lists into one, in their order."""
    if len(lists) == 1:
        return lists[0]
    keys, paths, files, first, lengths = zip(*lists, strict=True)
    starts = np.cumsum([0, *map(len, paths)]).astype(np.uint32)
    return Listed(
        np.concatenate(keys),
        [*itertools.chain(*paths)],
        np.concatenate([part + start for part, start in zip(files, starts, strict=False)]),
        np.concatenate(first),
        np.concatenate(lengths),
    )


SMALLEST_MAP = 4 << 20  # bytes; shorter runs are copied, because every mapping adds work to each minibatch
_LARGEST_RESERVATION = 1 << 28  # bytes of a chunk; a list may promise more frames than its files have
Scales = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
Encoding = tuple[bool, Scales | None]
Ranges = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""The first byte of each range, and the byte after its last byte."""


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
    encodings: list[Encoding]
    encoding_of: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.uint64]
    mixes: Counter[str]


def runs_of(
    listed: Listed, frame_size: int, *, memory_map: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Divide utterances into runs, each of which is read or mapped in one piece.

    An utterance continues a run if its frames follow in the same file. If the run is long enough to be mapped, the
    file may have other frames in between, which are never touched.

    Args:
        listed: The utterances.
        frame_size: Bytes of a frame.
        memory_map: Whether long runs are mapped.

    Returns:
        The first utterance of each run and, last, the number of utterances; and the bytes of each run.
    """
    first, ends = listed.first.astype(np.int64), listed.ends_of(slice(None)).astype(np.int64)
    is_same_file = listed.files[1:] == listed.files[:-1]
    follows = is_same_file & (first[1:] == ends[:-1])
    if memory_map:
        ascends = is_same_file & (first[1:] >= ends[:-1])
        bounds, sizes = _bounds_and_sizes(ascends, first, ends, frame_size)
        # A run that is mapped may have other frames in between, which cost nothing; a read would copy them.
        follows |= ascends & np.repeat(sizes >= SMALLEST_MAP, np.diff(bounds))[1:]
    return _bounds_and_sizes(follows, first, ends, frame_size)


def _bounds_and_sizes(
    follows: npt.NDArray[np.bool_], first: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], frame_size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    bounds = np.concatenate([[0], np.flatnonzero(~follows) + 1, [len(first)]])
    return bounds, (ends[bounds[1:] - 1] - first[bounds[:-1]]) * frame_size


class Run(NamedTuple):
    """Successive frames of one file in a `Frames`: the frames of one or several utterances."""

    block: int
    offset: int
    frame_size: int
    encoding: int


class GatheredFrames:
    """Runs of frames that are collected for one chunk.

    Args:
        sizes: Expected bytes of each run.
        memory_map: Whether to map long runs.
    """

    def __init__(self, sizes: npt.NDArray[np.int64], *, memory_map: bool) -> None:
        to_read = sizes[sizes < SMALLEST_MAP] if memory_map else sizes
        self._bytes = _core.FileBytes(min(int(to_read.sum()), _LARGEST_RESERVATION))
        self._memory_map = memory_map
        self._num_read = 0
        self._runs: list[Run] = []
        self._encodings: list[Encoding] = []
        self._encoding_ids: dict[tuple[bool, bytes | None], int] = {}

    def add(self, file: OpenFile, begin: int, size: int, wanted: Callable[[], Ranges]) -> int:
        """Read or map the frames of a run of utterances.

        Args:
            file: The file.
            begin: First byte of the run.
            size: Bytes of the run.
            wanted: Returns the ranges of the run that will be used, counted from `begin`.

        Returns:
            Number of bytes found; if this is less than `size`, nothing was added.

        Raises:
            OSError: The file cannot be read.
            FormatError: The file ends within the scales of its compressed values.
        """
        header = file.header
        # Touching a map beyond the end of the file kills the process (SIGBUS); a read only finds fewer bytes.
        if self._memory_map and size >= SMALLEST_MAP and begin + size <= file.size:
            begins, ends = wanted()
            ranges = None if 2 * int((ends - begins).sum()) > size else (begins, ends)
            block, offset = self._bytes.show(file.number, in_utf8(file.path), begin, size, ranges), 0
        else:
            # The list may promise any number of frames, so ask for no more bytes than the file has.
            num_read = self._bytes.read(file.number, begin, min(size, max(file.size - begin, 0)))
            if num_read < size:
                return num_read
            block, offset = 0, self._num_read
            self._num_read += size
        # Each compressed file has its own scales.
        key = (header.is_big_endian, file.path if header.is_compressed else None)
        if key not in self._encoding_ids:
            self._encoding_ids[key] = len(self._encodings)
            self._encodings.append((header.is_big_endian, _read_scales(file) if header.is_compressed else None))
        self._runs.append(Run(block, offset, header.frame_size, self._encoding_ids[key]))
        return size

    def of_utterances(
        self, first: npt.NDArray[np.uint32], bounds: npt.NDArray[np.int64], mixes: Counter[str]
    ) -> Frames:
        """Return the frames of the utterances.

        Args:
            first: First frame of each utterance in its file.
            bounds: First utterance of each run and, last, the number of utterances.
            mixes: Differences between the files and the first file.
        """
        counts = np.diff(bounds)
        blocks, offsets, frame_sizes, encoding_of = np.repeat(np.array(self._runs, np.int64), counts, axis=0).T
        offsets = offsets + (first - np.repeat(first[bounds[:-1]], counts)) * frame_sizes
        return Frames(
            self._bytes,
            blocks.astype(np.uint32),
            self._encodings,
            encoding_of.astype(np.uint32),
            offsets.astype(np.uint64),
            mixes,
        )


def _read_scales(file: OpenFile) -> Scales:
    header = file.header
    data = _core.file_read(file.number, header.data_offset, 8 * header.dim)
    if len(data) < 8 * header.dim:
        raise FormatError(
            "the file ends within the scales of its compressed values", path=os.fsdecode(file.path), byte=len(data)
        )
    both = np.frombuffer(data, ">f4" if header.is_big_endian else "<f4").astype(np.float32)
    return both[: header.dim], both[header.dim :]

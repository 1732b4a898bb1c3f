"""Frames of a chunk as they are in the files: read into memory, or mapped if runs are long.

The packer decodes the values and makes windows of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio.errors import FormatError
from cntkio.formats.htk.header import OpenFile
from cntkio.formats.htk.lists import Listed
from cntkio.formats.input_file import in_utf8

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
        if self._memory_map and size >= SMALLEST_MAP and begin + size <= file.size:
            begins, ends = wanted()
            ranges = None if 2 * int((ends - begins).sum()) > size else (begins, ends)
            block, offset = self._bytes.show(file.number, in_utf8(file.path), begin, size, ranges), 0
        else:
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

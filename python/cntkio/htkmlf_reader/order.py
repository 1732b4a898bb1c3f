"""The order of frames in the old reader's ``readMethod = rollingWindow``. (docs/formats/htk.md, "The HTKMLFReader")

::

    position  0 1 2 3 4 5 6 7 ...      a frame moves from its position by at most half a window,
    frame     2 0 3 1 6 4 7 5 ...      so only the chunks around the position are needed

Invariant: the order is a pure function of the number of frames, the window and the seed.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import weakref
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio._threads import ForkLock
from cntkio.errors import ConfigError
from cntkio.formats.contract import Index, Loaded, Opening
from cntkio.formats.htk import FeatureSettings, Frames, HTKFormat
from cntkio.formats.text_input import system_number
from cntkio.timeline import WHOLE, Partition, Plan, Reads, Size, Timeline

_MOST_ORDERS = 2


def rolling_order(
    num_frames: int, randomize: int | Literal["auto", "none"] = "auto", seed: int = 0
) -> npt.NDArray[np.uint32]:
    """Return the order of a sweep: which frame comes at each position.

    The order is a pure function of the arguments. A frame moves by at most half of the window.

    Args:
        num_frames: Frames of a sweep, in the order of the list.
        randomize: The window in frames; ``"auto"``: all of them; ``"none"``, 0 and 1: in order.
        seed: Sweep k of a reader uses ``seed + k``.

    Returns:
        A permutation of ``0 .. num_frames - 1``, uint32.

    Raises:
        ConfigError: The window or the number of frames is invalid.

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


class RollingTimeline(Timeline):
    """Frames in an order in which none moves from its position by more than half a window.

    The arguments are those of `Timeline`, with `rolling_window` in frames; all lengths are 1.
    """

    def __init__(
        self,
        lengths: npt.NDArray[np.uint32],
        chunk_starts: npt.NDArray[np.int64],
        *,
        rolling_window: int,
        seed: int,
        **options: Any,
    ) -> None:
        super().__init__(lengths, chunk_starts, **{**options, "window": None})
        self._rolling_window, self._seed = rolling_window, seed
        self._starts = chunk_starts
        self._orders: dict[int, npt.NDArray[np.uint32]] = {}
        self._around: tuple[int, int, int] | None = None
        self._chunks_around = Plan([], 0)

    def _order(self, sweep: int) -> npt.NDArray[np.uint32]:
        if sweep not in self._orders:
            for other in sorted(self._orders)[: len(self._orders) - _MOST_ORDERS + 1]:
                del self._orders[other]
            self._orders[sweep] = rolling_order(self.num_samples, self._rolling_window, self._seed + sweep)
        return self._orders[sweep]

    def read_several(self, minibatch_size_in_samples: Size, partition: Partition, most: int) -> Reads | None:
        """Deliver the frames at the next positions of the order, in a single read."""
        reads = super().read_several(minibatch_size_in_samples, partition, 1)
        if reads is None or not len(reads.selection.sequences):
            return reads
        # A read stays within a sweep, and delivers at least one frame.
        sweep = (reads.selection.position - 1) // self.num_samples
        frames = self._order(sweep)[reads.selection.sequences].astype(np.int64)
        selection = dataclasses.replace(reads.selection, sequences=frames, chunks=self._chunks_of(frames), refs=None)
        return reads._replace(selection=selection)

    def _chunks_of(self, frames: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.searchsorted(self._starts, frames, side="right") - 1

    def needed_chunks(self, partition: Partition = WHOLE) -> Plan:
        """Return the chunks around the position of the reader, up to the distance that a frame can move."""
        around = self._chunk_bounds()
        if around != self._around:
            chunks = [] if around is None else list(range(around[1], around[2] + 1))
            self._around, self._chunks_around = around, Plan(chunks, self._chunks_around.version + 1)
        return self._chunks_around

    def _chunk_bounds(self) -> tuple[int, int, int] | None:
        """Return the sweep, and the first and the last chunk around the position; None after the end."""
        if self.position >= self.end:
            return None
        sweep, offset = divmod(self.position, self.num_samples)
        half = self._rolling_window // 2
        bounds = np.array([max(offset - half, 0), min(offset + half, self.num_samples - 1)])
        first, last = self._chunks_of(bounds).tolist()
        return sweep, first, last

    def chunks_ahead(self, partition: Partition = WHOLE) -> Iterator[int]:
        """Yield the chunks after the needed chunks, to the end of the next sweep or of the data."""
        needed = self.needed_chunks(partition).chunks
        if not needed:
            return
        sweep = self.position // self.num_samples
        yield from range(needed[-1] + 1, self.num_chunks)
        if (sweep + 1) * self.num_samples < self.end:
            yield from range(self.num_chunks)


# --------------------------------------------------------------------------------------------------------------
# Features that wait in a temporary file, so that each chunk of the feature files is read only once.
#
# A page file has no name, or loses it immediately: it disappears with the reader, however the process ends.


class PageFile:
    """A temporary file without a name that keeps chunks as they were read.

    Any thread may use it. A fork of the process has an empty file of its own.

    Args:
        folder: The folder of the file; None: the system's folder for temporary files.
    """

    size = 0
    stamp = companions = None

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._lock = ForkLock()
        self._process = 0
        self._descriptor = -1
        self._close: Any = None
        self._end = 0
        self._kept: dict[int, tuple[int, int, Frames]] = {}

    def _begin(self) -> None:
        """Make a file for this process: a fork must not write where its parent does."""
        self.close()
        with tempfile.TemporaryFile(prefix="cntkio-pages-", dir=self._folder) as file:
            self._descriptor = os.dup(file.fileno())
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._process = os.getpid()

    def write(self, chunk_id: int, frames: Frames) -> None:
        """Keep the frames of a chunk.

        Raises:
            OSError: The file cannot be created, or has no room for them.
        """
        data = frames.bytes.copy()
        try:
            with self._lock.inner:
                if self._process != os.getpid():
                    self._begin()
                descriptor, begin = self._descriptor, self._end
                self._end += len(data)
            _core.file_write(system_number(descriptor), begin, data)
        except OSError as error:
            folder = self._folder or tempfile.gettempdir()
            raise OSError(error.errno, f"the page file cannot be written: {error.strerror}", folder) from error
        with self._lock.inner:
            self._kept[chunk_id] = (begin, len(data), frames)

    def read(self, chunk_id: int) -> Frames | None:
        """Return the frames of a chunk, if this process has kept them."""
        with self._lock.inner:
            kept = self._kept.get(chunk_id) if self._process == os.getpid() else None
        if kept is None:
            return None
        begin, size, frames = kept
        data = _core.FileBytes(size)
        data.read(system_number(self._descriptor), begin, size)
        return frames._replace(bytes=data)

    def close(self) -> None:
        """Close the file, which removes it."""
        if self._close is not None:
            self._close()
        self._close, self._process, self._end = None, 0, 0
        self._kept.clear()


class PagedFeatures(HTKFormat):
    """Features whose frames can wait in a page file between two uses; the corpus keeps the page file open.

    Attributes:
        is_paged: Whether frames wait in the page file.
    """

    def __init__(self, settings: FeatureSettings, opening: Opening, folder: str | None) -> None:
        super().__init__(settings, opening)
        self._folder = folder
        self.is_paged = False

    def open(self, path: str, index: Index | None) -> PageFile:
        return PageFile(self._folder)

    def parse(self, file: Any, index: Index, chunk_id: int, sequences: npt.NDArray[np.uint32] | None) -> Loaded:
        """Read the frames of a chunk, from the page file if they are there.

        Raises:
            OSError: The page file cannot be created or written; see `HTKFormat.read_frames` for the rest.
        """
        pages: PageFile = file
        if not self.is_paged or sequences is not None:
            return super().parse(file, index, chunk_id, sequences)
        frames = pages.read(chunk_id)
        if frames is None:
            frames = self.read_frames(index, chunk_id, memory_map=False)
            pages.write(chunk_id, frames)
        return self.loaded(index, chunk_id, frames)

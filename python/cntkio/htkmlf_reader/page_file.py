"""Features that wait in a temporary file, so that each chunk of the feature files is read only once.

A page file has no name, or loses it immediately: it disappears with the reader, however the process ends.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import Any

from cntkio import _core
from cntkio._threads import ForkLock
from cntkio.formats.contract import Loaded
from cntkio.formats.htk import Frames, HTKFeatureCorpus, HTKFeatureStream
from cntkio.formats.input_file import system_number


class PageFile:
    """A temporary file without a name that keeps chunks as they were read.

    Any thread may use it. A fork of the process has an empty file of its own.

    Args:
        folder: The folder of the file; None: the system's folder for temporary files.
    """

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


class PagedFeatures(HTKFeatureCorpus):
    """Features whose frames can wait in a page file between two uses.

    Attributes:
        is_paged: Whether frames wait in the page file.
    """

    def __init__(self, stream: HTKFeatureStream, folder: str | None) -> None:
        super().__init__(stream.settings)
        self._pages = PageFile(folder)
        self.is_paged = False

    def load(self, chunk_id: int) -> Loaded:
        """Read the frames of a chunk, from the page file if they are there.

        Raises:
            OSError: The page file cannot be created or written; see `HTKFeatureCorpus.load` for the rest.
        """
        if not self.is_paged:
            return super().load(chunk_id)
        frames = self._pages.read(chunk_id)
        if frames is None:
            frames = self.read_frames(chunk_id, memory_map=False)
            self._pages.write(chunk_id, frames)
        return self.loaded(chunk_id, frames)

    def close(self) -> None:
        self._pages.close()
        super().close()

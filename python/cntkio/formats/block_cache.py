"""A folder on a local disk that keeps blocks of remote objects. Several processes may use it at the same time.

::

    FOLDER/<name and version of the object>/<number of the block>        magic │ size │ checksum │ content

Invariants: a block appears under its name only when it is complete, and its checksum is checked on every read, so
that neither a killed process nor a power failure leaves a partial block that looks complete. A block is only written
after the store has confirmed the version of the object. No fault of the cache makes a read fail: the block is fetched
again.

The modification time of a block's file is the time of its last use. The least recently used blocks are removed first.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from cntkio._threads import ForkLock
from cntkio.errors import ConfigError
from cntkio.formats.contract import Ahead
from cntkio.formats.index_cache import sum_of
from cntkio.formats.output_file import written_whole
from cntkio.formats.stores import Facts
from cntkio.formats.table import SequenceTable

logger = logging.getLogger("cntkio")

BLOCK = 4 << 20
"""Bytes of a block; the last block of an object may be shorter."""
_MAGIC = b"cntkio block 1\n\0"
_SIZE_AND_SUM = struct.Struct("<QQ")
_HEADER = len(_MAGIC) + _SIZE_AND_SUM.size
_SHARES_BETWEEN_COUNTS = 64
WORTH_A_BLOCK = BLOCK // 4
"""Reads of fewer bytes, such as a few samples of a large object, do not fetch whole blocks."""


class _Kept(NamedTuple):
    """A file of the cache: the time of its last use, its size and its path."""

    time_ns: int
    num_bytes: int
    path: str


class CacheFolder:
    """The folder of all objects, and its limit.

    A process counts the files in the folder when the cache may be full, and at the latest after it has written 1/64 of
    the limit, because other processes write, too.

    Args:
        path: The folder; it is created if it is missing.
        limit: Most bytes of all files together; None: no limit.

    Raises:
        OSError: The folder cannot be created.
    """

    def __init__(self, path: str, limit: int | None) -> None:
        self.path = Path(path)
        self.limit = limit
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = ForkLock()
        self._num_bytes: int | None = None  # all files, as far as this process knows
        self._num_written = 0  # since the last count
        self._has_complained = False

    def make_room(self, num_bytes: int) -> bool:
        """Remove the least recently used files; return whether a new file then stays within the limit."""
        if self.limit is None:
            return True
        if num_bytes > self.limit:
            return False
        with self._lock.inner:
            is_stale = self._num_written * _SHARES_BETWEEN_COUNTS >= self.limit
            if self._num_bytes is None or is_stale or self._num_bytes + num_bytes > self.limit:
                self._num_bytes = self._removed_down_to(self.limit - num_bytes)
                self._num_written = 0
            self._num_bytes += num_bytes
            self._num_written += num_bytes
            return True

    def _removed_down_to(self, most: int) -> int:
        """Remove files until at most this many bytes are left, and return how many are left."""
        files = sorted(self._files())
        total = sum(file.num_bytes for file in files)
        if total > most:
            # Remove more than required; otherwise every new block would make this process count all files again.
            most -= most // 16
        for file in files:
            if total <= most:
                break
            with contextlib.suppress(OSError):  # another process has removed it, or Windows has it open
                Path(file.path).unlink()
                total -= file.num_bytes
        return total

    def _files(self) -> Iterator[_Kept]:
        with contextlib.suppress(OSError), os.scandir(self.path) as folders:
            for folder in folders:
                with contextlib.suppress(OSError), os.scandir(folder.path) as files:
                    for file in files:
                        with contextlib.suppress(OSError):
                            status = file.stat()
                            yield _Kept(status.st_mtime_ns, status.st_size, file.path)

    def complain(self, error: OSError) -> None:
        """Log once that blocks cannot be kept, and that reading continues without the cache."""
        if not self._has_complained:
            self._has_complained = True
            logger.warning("%s: the cache cannot be written (%s); reading continues without", self.path, error)


@functools.lru_cache(maxsize=64)
def cache_folder(path: str, limit: int | None) -> CacheFolder:
    """Return the folder of a cache, which all objects of this process share."""
    return CacheFolder(path, limit)


def num_bytes_in_cache(num_bytes: int) -> int:
    """Return the size in bytes of the files that keep an object of this size."""
    return num_bytes + -(-num_bytes // BLOCK) * _HEADER


def require_room(
    limit: int | str | None, ahead: Ahead, table: SequenceTable, chunk_size: int, num_bytes: int | None = None
) -> None:
    """Refuse a limit that is so low that the chunks of a window would push each other out of the cache.

    Args:
        limit: Most bytes of the cache; None: no limit.
        ahead: The size of the window.
        table: The chunks.
        chunk_size: Most bytes of a chunk.
        num_bytes: Size of the corpus in bytes, if it is a single object.

    Raises:
        ConfigError: The limit is too low; the message says how high it has to be.
    """
    if limit is None:
        return
    num_chunks = ahead.window_in_chunks
    if ahead.window_in_samples:
        samples_of_chunk = int(table.lengths.sum(dtype=np.int64)) / max(table.num_chunks, 1)
        num_chunks = int(ahead.window_in_samples / max(samples_of_chunk, 1)) + 1
    num_chunks = min(num_chunks, table.num_chunks)
    # A chunk begins and ends within blocks.
    num_blocks = num_chunks * (-(-chunk_size // BLOCK) + 1)
    if num_bytes is not None:
        num_blocks = min(num_blocks, -(-num_bytes // BLOCK))
    least = num_blocks * (BLOCK + _HEADER)
    if int(limit) < least:
        raise ConfigError(
            f"cache_limit is {limit:,} bytes, but a window of {num_chunks:,} chunk{'s' * (num_chunks != 1)} needs "
            f"{least:,}; give at least that, or a smaller window",
            key="cache_limit",
        )


class BlockCache:
    """The blocks of one version of an object.

    Args:
        folder: The folder.
        name: The object, with its store.
        size: Its bytes.
        version: Its version; not empty.
    """

    def __init__(self, folder: CacheFolder, name: str, size: int, version: str) -> None:
        tag = hashlib.blake2b(f"{name}\n{size}\n{version}\n{BLOCK}".encode(errors="surrogateescape"), digest_size=16)
        self._folder = folder
        self._path = folder.path / tag.hexdigest()

    def read(self, number: int) -> bytes | None:
        """Return a block; None: it is missing, or damaged."""
        path = self._path / str(number)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError:
            return None
        if content[: len(_MAGIC)] == _MAGIC and len(content) >= _HEADER:
            size, check_sum = _SIZE_AND_SUM.unpack(content[len(_MAGIC) : _HEADER])
            block = content[_HEADER:]
            if len(block) == size and sum_of(block) == check_sum:
                with contextlib.suppress(OSError):
                    os.utime(path)
                return block
        logger.warning("%s: a block of the cache is damaged; it is fetched again", path)
        return None

    def write(self, number: int, content: bytes) -> None:
        """Keep a block, if the disk has room for it."""
        try:
            if not self._folder.make_room(_HEADER + len(content)):
                return
            self._path.mkdir(parents=True, exist_ok=True)
            with written_whole(self._path / str(number), is_durable=False) as file:
                file.write(_MAGIC + _SIZE_AND_SUM.pack(len(content), sum_of(content)))
                file.write(content)
        except OSError as error:
            self._folder.complain(error)


class ObjectReader(Protocol):
    """An object that is read from its store, or through a cache."""

    @property
    def name(self) -> str:
        """Name used in messages."""

    @property
    def facts(self) -> Facts:
        """Size and version when it was opened."""

    @property
    def require_unchanged(self) -> Callable[[], None]:
        """Raise an error if the object has changed since it was opened, as far as the store or earlier answers tell."""

    def read_into(self, buffer: npt.NDArray[np.uint8], offset: int) -> None:
        """Fill a buffer from an offset on."""


class CachedObject:
    """An object that is read through a cache; an `ObjectReader` itself.

    Args:
        of: The object in its store.
        blocks: Its blocks on the local disk.
    """

    def __init__(self, of: ObjectReader, blocks: BlockCache) -> None:
        self.name = of.name
        self.facts = of.facts
        self.require_unchanged = of.require_unchanged
        self._object, self._blocks = of, blocks

    def read_into(self, buffer: npt.NDArray[np.uint8], offset: int) -> None:
        """Fill a buffer from an offset on. Raises the errors of the object."""
        end = offset + len(buffer)
        missing: list[int] = []
        for number in range(offset // BLOCK, -(-end // BLOCK)):
            content = self._blocks.read(number)
            if content is None:
                missing.append(number)
            else:
                _copy_overlap(buffer, offset, np.frombuffer(content, np.uint8), number * BLOCK)
        if missing and len(buffer) < WORTH_A_BLOCK:
            self._object.read_into(buffer, offset)
            return
        for first, last in _runs(missing):
            self._fetch(first, last, buffer, offset)

    def _fetch(self, first: int, last: int, buffer: npt.NDArray[np.uint8], offset: int) -> None:
        """Fetch the blocks from `first` up to `last`, keep them, and copy the bytes that the buffer wants."""
        begin = first * BLOCK
        content = np.empty(min(last * BLOCK, self.facts.size) - begin, np.uint8)
        self._object.read_into(content, begin)
        self.require_unchanged()
        for number in range(first, last):
            self._blocks.write(number, content[number * BLOCK - begin :][:BLOCK].tobytes())
        _copy_overlap(buffer, offset, content, begin)


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the first number of each run of consecutive numbers, and the number after its last.

    Example:
        >>> list(_runs([1, 2, 3, 7]))
        [(1, 4), (7, 8)]
    """
    begin = 0
    for position in range(1, len(numbers) + 1):
        if position == len(numbers) or numbers[position] != numbers[position - 1] + 1:
            yield numbers[begin], numbers[position - 1] + 1
            begin = position


def _copy_overlap(
    target: npt.NDArray[np.uint8], target_offset: int, content: npt.NDArray[np.uint8], content_offset: int
) -> None:
    """Copy the bytes that both arrays contain; each offset is the position of an array's first byte in the object."""
    begin = max(target_offset, content_offset)
    end = min(target_offset + len(target), content_offset + len(content))
    target[begin - target_offset : end - target_offset] = content[begin - content_offset : end - content_offset]

"""A folder on a local disk that keeps blocks of remote objects. Several processes may use it at the same time.

::

    FOLDER/cntkio-blocks/CACHEDIR.TAG                     says whose folder this is
                         <tag>-<number>                   magic │ tag │ number │ size │ checksum │ content

The tag is a hash of the identity and the version of the object. (docs/remote-stores.md, "Cache on a local disk")

Invariants: a block appears under its name only when it is complete, and its header and checksum are checked on every
read, so that neither a killed process nor a power failure leaves a partial block that looks complete. A block is only
written after the store has confirmed the version of the object. No fault of the cache makes a read fail: the block is
fetched again. No link is followed, no file of another user is believed, and only blocks are removed.

The modification time of a block's file is the time of its last use. The least recently used blocks are removed first.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import stat
import struct
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from cntkio._threads import ForkLock
from cntkio.errors import ConfigError
from cntkio.storage.index_cache import is_believed, opened_cache, sum_of
from cntkio.storage.output_file import written_whole
from cntkio.storage.progress import logger
from cntkio.storage.remote import Remote
from cntkio.storage.text_input import Bytes

BLOCK = 4 << 20
"""Bytes of a block; the last block of an object may be shorter."""
FOLDER = "cntkio-blocks"
_MARKER = "CACHEDIR.TAG"
# The first line makes backups leave the folder out (bford.info/cachedir).
_MARKED = b"Signature: 8a477f597d28d172789f06886806bc55\n# Blocks of remote objects, made by cntkio.\n"
_MAGIC = b"cntkio block 2\n\0"
_FACTS = struct.Struct("<16sQQQ")  # tag, number, size, checksum
_HEADER = len(_MAGIC) + _FACTS.size
_NAME = re.compile(r"([0-9a-f]{32})-([0-9]+)")
_ADVICE = "name another folder as cache"
_SHARES_BETWEEN_COUNTS = 64
WORTH_A_BLOCK = BLOCK // 4
"""Reads of fewer bytes, such as a few samples of a large object, do not fetch whole blocks."""


def _begins_block(content: bytes, name: str) -> bool:
    if not content.startswith(_MAGIC) or len(content) < _HEADER:
        return False
    tag, number, _, _ = _FACTS.unpack(content[len(_MAGIC) : _HEADER])
    return f"{tag.hex()}-{number}" == name


class CacheFolder:
    """The folder of all blocks, and its limit.

    A process counts the files in the folder when the cache may be full, and at the latest after it has written 1/64 of
    the limit, because other processes write, too.

    Args:
        path: The folder that the user names; it is created if it is missing. The blocks are in a folder within it.
        limit: Most bytes of all blocks together; None: no limit.
    """

    def __init__(self, path: str, limit: int | None) -> None:
        self.path, self.limit, self._lock = Path(path, FOLDER), limit, ForkLock()
        self._num_bytes: int | None = None  # all files, as far as this process knows
        self._num_written = 0  # since the last count
        self._has_complained = False
        self._open()

    def _open(self) -> None:
        """Open the folder. All later calls use the descriptor, so another folder of this name has no effect."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        status, descriptor = self.path.lstat(), None
        if os.open in os.supports_dir_fd:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            weakref.finalize(self, os.close, descriptor)
            status = os.fstat(descriptor)
        is_open = descriptor is not None and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not stat.S_ISDIR(status.st_mode) or not is_believed(status) or is_open:
            what = f"Others can write this folder, or it is not a folder of this user; {_ADVICE}"
            raise PermissionError(errno.EACCES, what, str(self.path))
        self._descriptor, self._place = descriptor, self.path if descriptor is None else descriptor
        # The marker is written before all blocks, so if a block is listed, its marker exists.
        is_empty = all(name.startswith(".") for name in os.listdir(self._place))  # noqa: PTH208 - of a descriptor
        if self.read(_MARKER) != _MARKED:
            if not is_empty:
                what = f"This folder has files, but no {_MARKER} of cntkio; {_ADVICE}"
                raise FileExistsError(errno.EEXIST, what, str(self.path))
            self._write(_MARKER, _MARKED)

    def _at(self, name: str) -> tuple[str, int | None]:
        """Return the path of a file, and the descriptor of the folder in which the path begins."""
        descriptor = self._descriptor
        return (str(self.path / name) if descriptor is None else name), descriptor

    def _opened(self, name: str) -> BinaryIO:
        return opened_cache(*self._at(name), follows_links=False)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, which counts as used now; None: there is none, or it is not of this user."""
        try:
            with self._opened(name) as file:
                if os.utime in os.supports_fd:
                    os.utime(file.fileno())
                # A byte more than a block has, so that a file that is too long counts as damaged.
                return file.read(_HEADER + BLOCK + 1)
        except OSError:
            return None

    def keep(self, name: str, content: bytes) -> None:
        """Write a block, if the disk has room for it. If blocks cannot be written, say so once."""
        try:
            if not self._make_room(len(content)):
                return
            if self._is_foreign(name):
                logger.warning("%s: is not a block; it is left alone, and this block is not kept", self.path / name)
            else:
                self._write(name, content)
        except OSError as error:
            if not self._has_complained:
                self._has_complained = True
                logger.warning("%s: the cache cannot be written (%s); reading continues without", self.path, error)

    def _write(self, name: str, content: bytes) -> None:
        """Write a file. If somebody has removed the folder, it is made again."""
        for is_last in (False, True):
            within, folder = self._at(name)
            try:
                with written_whole(within, is_durable=False, is_direct=False, folder=folder) as file:
                    file.write(content)
                return
            except OSError:
                if is_last or os.path.lexists(self.path):
                    raise
                self._open()

    def _is_foreign(self, name: str) -> bool:
        """Return whether the name of a block belongs to a file of this user that is not a block."""
        try:
            with self._opened(name) as file:
                found = file.read(_HEADER)
        except OSError:
            return False  # missing, a link, a pipe or a file of another user, which the block replaces
        # An empty file may be left from a power failure, and is replaced like a damaged block.
        return bool(found) and not found.startswith(_MAGIC)

    def _make_room(self, num_bytes: int) -> bool:
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
                # Files that are not blocks stay.
                if self._num_bytes + num_bytes > self.limit:
                    return False
            # Counted before the block is written, so that several threads together respect the limit.
            self._num_bytes += num_bytes
            self._num_written += num_bytes
            return True

    def _removed_down_to(self, most: int) -> int:
        """Remove blocks until at most this many bytes of files are left, if possible; return how many are left."""
        files: list[tuple[int, int, str]] = []  # the time of the last use, the size and the name of each block
        with contextlib.suppress(OSError), os.scandir(self._place) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if _NAME.fullmatch(entry.name) and stat.S_ISREG(status.st_mode) and is_believed(status):
                        files.append((status.st_mtime_ns, status.st_size, entry.name))
        total = sum(size for _, size, _ in files)
        if total > most:
            # Remove more than required; otherwise every new block would make this process count all files again.
            most -= most // 16
        for _, size, name in sorted(files):
            if total <= most:
                break
            try:
                with self._opened(name) as opened:
                    is_block = _begins_block(opened.read(_HEADER), name)
                if is_block:
                    within, folder = self._at(name)
                    os.unlink(within, dir_fd=folder)
                    total -= size
            except FileNotFoundError:  # another process has removed it
                total -= size
            except OSError:  # Windows has it open, so it stays
                pass
        return total


def cache_folder(remote: Remote) -> CacheFolder:
    """Return the folder of the cache that the options name. All objects of this process share it."""
    path = os.path.abspath(os.path.expanduser(str(remote.cache)))  # noqa: PTH100, PTH111
    return _cache_folder(path, None if remote.cache_limit is None else int(remote.cache_limit))


_cache_folder = functools.lru_cache(maxsize=64)(CacheFolder)


def num_bytes_in_cache(num_bytes: int) -> int:
    """Return the size in bytes of the files that keep an object of this size."""
    return num_bytes + -(-num_bytes // BLOCK) * _HEADER


def require_room_in_cache(
    limit: int | str | None, num_chunks: int, chunk_size: int, num_bytes: int | None = None
) -> None:
    """Refuse a limit so low that the chunks of a window would push each other out of the cache; say which is enough.

    Args:
        num_chunks: Number of chunks in the window.
        chunk_size: Most bytes of a chunk.
        num_bytes: Size of the corpus in bytes, if it is a single object.
    """
    if limit is None:
        return
    # A chunk begins and ends within blocks.
    num_blocks = num_chunks * (-(-chunk_size // BLOCK) + 1)
    if num_bytes is not None:
        num_blocks = min(num_blocks, -(-num_bytes // BLOCK))
    least = num_blocks * (BLOCK + _HEADER)
    if int(limit) < least:
        window = f"a window of {num_chunks:,} chunk{'s' * (num_chunks != 1)} needs {least:,}"
        what = f"cache_limit is {limit:,} bytes, but {window}; give at least that, or a smaller window"
        raise ConfigError(what, key="cache_limit")


class CachedObject:
    """An object that is read through a cache.

    Args:
        folder: The folder with its blocks.
        identity: The object, as `StoredObject.identity` describes it.
        version: Its version; not empty.
        size: Its size in bytes.
        read_into: Fills a buffer from an offset on, from the store.
        require_unchanged: Raises an error if the object has changed since it was opened, as far as the store tells.
    """

    def __init__(
        self,
        folder: CacheFolder,
        identity: str,
        version: str,
        size: int,
        read_into: Callable[[Bytes, int], None],
        require_unchanged: Callable[[], None],
    ) -> None:
        self._folder, self._size, self._read_stored, self.require_unchanged = folder, size, read_into, require_unchanged
        text = json.dumps([identity, size, version, BLOCK])
        self._tag = hashlib.blake2b(text.encode(), digest_size=16).digest()

    def read_into(self, buffer: Bytes, offset: int) -> None:
        """Fill a buffer from an offset on. Raises the errors of the object."""
        end = offset + len(buffer)
        missing: list[int] = []
        for number in range(offset // BLOCK, -(-end // BLOCK)):
            block = self._block(number)
            if block is None:
                missing.append(number)
            else:
                _copy_overlap(buffer, offset, np.frombuffer(block, np.uint8), number * BLOCK)
        if missing and len(buffer) < WORTH_A_BLOCK:
            self._read_stored(buffer, offset)
            return
        for first, last in _runs(missing):
            begin = first * BLOCK
            content = np.empty(min(last * BLOCK, self._size) - begin, np.uint8)
            self._read_stored(content, begin)
            self.require_unchanged()
            for number in range(first, last):
                self.keep(number, content[number * BLOCK - begin :][:BLOCK].tobytes())
            _copy_overlap(buffer, offset, content, begin)

    def keep(self, number: int, block: bytes) -> None:
        """Write a block, if the disk has room for it."""
        self._folder.keep(f"{self._tag.hex()}-{number}", self._header(number, block) + block)

    def _block(self, number: int) -> bytes | None:
        name = f"{self._tag.hex()}-{number}"
        content = self._folder.read(name)
        if content is None:
            return None
        block = content[_HEADER:]
        if content[:_HEADER] == self._header(number, block):
            return block
        logger.warning("%s: a block of the cache is damaged; it is fetched again", self._folder.path / name)
        return None

    def _header(self, number: int, block: bytes) -> bytes:
        return _MAGIC + _FACTS.pack(self._tag, number, len(block), sum_of(block))


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


def _copy_overlap(target: Bytes, target_offset: int, content: Bytes, content_offset: int) -> None:
    """Copy the bytes that both arrays contain; each offset is the position of an array's first byte in the object."""
    begin = max(target_offset, content_offset)
    end = min(target_offset + len(target), content_offset + len(content))
    target[begin - target_offset : end - target_offset] = content[begin - content_offset : end - content_offset]

"""Write files atomically: under a name there is always the old file or the complete new file.

Where the system supports it (Linux: `O_TMPFILE`), a file is written without a name and gets its name at the end, so
that a killed process leaves no file. Elsewhere it is written as `.NAME.part` next to its final place, under a lock.
The system releases the lock of a dead process, and the next writer of the same name takes over its file. A pipe or a
device is written directly.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

_locks: Any
try:
    import fcntl

    _locks = fcntl
except ImportError:  # Windows, where every open file is locked
    _locks = None

UNNAMED: int | None = getattr(os, "O_TMPFILE", None)
"""The system's flag for files without a name; None: it has no such flag."""
_BUFFER = 1 << 17
_FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str], *, is_durable: bool = True) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name when the block ends without an exception.

    Args:
        path: The file. An older file is replaced; a link is followed.
        is_durable: Wait until the content is on disk before the file gets its name, so that even a power failure
            leaves the old file or the complete new file.

    Raises:
        OSError: The file cannot be written; the error names `path`, and says what is there now.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.txt")
        >>> with written_whole(path) as file:
        ...     _ = file.write(b"all of it")
        ...     path.exists()
        False
        >>> path.read_bytes()
        b'all of it'
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with _Output(target, os.fspath(target), "wb").buffered() as file:
            yield file
        return
    with _scratch(target) as (scratch, file):
        yield file
        file.flush()
        scratch.put_in_place(target, is_durable)


@contextlib.contextmanager
def scratch_beside(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file on the same disk as `path`, to write it and read it back.

    Raises:
        OSError: The file cannot be written; the error names `path`.
    """
    with _scratch(Path(os.path.realpath(path))) as (_, file):
        yield file


def write_whole(path: Path, pieces: Iterable[bytes], *, is_durable: bool = True) -> None:
    """Write a file piece by piece, as `written_whole` does. Missing folders are created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path, is_durable=is_durable) as file:
        for piece in pieces:
            file.write(piece)


@contextlib.contextmanager
def _scratch(target: Path) -> Iterator[tuple[_Scratch, BinaryIO]]:
    try:
        scratch = _unnamed(target) or _named(target)
    except OSError as error:
        raise _named_error(error, target, 0) from None
    file = scratch.output.buffered()
    try:
        yield scratch, file
    except BaseException:
        scratch.output.is_abandoned = True  # the contents of the buffer are not written
        raise
    finally:
        file.close()
        scratch.remove()


class _Output(io.FileIO):
    """The open file under a buffer. Its errors name the file that the user asked for.

    Attributes:
        is_abandoned: The file will not be used, so writes are dropped.
    """

    def __init__(self, target: Path, file: str | int, mode: str) -> None:
        self._target = target
        self._num_bytes = 0
        self.is_abandoned = False
        super().__init__(file, mode)

    def buffered(self) -> Any:
        """Return the file with a buffer."""
        return io.BufferedRandom(self, _BUFFER) if self.readable() else io.BufferedWriter(self, _BUFFER)

    def write(self, data: Any, /) -> int:
        if self.is_abandoned:
            return memoryview(data).nbytes
        try:
            count = super().write(data) or 0
        except OSError as error:
            raise _named_error(error, self._target, self._num_bytes) from None
        self._num_bytes += count
        return count

    def sync(self) -> None:
        """Wait until the content is on disk."""
        try:
            os.fsync(self.fileno())
        except OSError as error:
            raise _named_error(error, self._target, self._num_bytes) from None

    def close(self) -> None:
        with contextlib.suppress(OSError) if self.is_abandoned else contextlib.nullcontext():
            super().close()


def _named_error(error: OSError, target: Path, num_bytes: int) -> OSError:
    """Return an error that names the user's file, and says what is there now."""
    what = error.strerror or str(error)
    if error.errno in _FULL:
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(target.parent).free
            what += f" after {num_bytes:,} bytes, with {free:,} bytes free"
        what += "; the old file is unchanged" if target.exists() else "; no file was made"
    return OSError(error.errno, what, os.fspath(target))


class _Scratch:
    """A file that is being written. It has no name yet, or a temporary name."""

    def __init__(self, output: _Output, path: Path | None) -> None:
        self.output = output
        self._path = path

    def put_in_place(self, target: Path, is_durable: bool) -> None:
        """Give the complete file its name."""
        if is_durable:
            self.output.sync()
        if self._path is None:
            self._path = _linked(self.output.fileno(), target)
        if _locks is None:
            self.output.close()  # Windows renames no open file
        if self._path != target:
            self._path.replace(target)
        self._path = None
        if is_durable:
            _sync_folder(target.parent)

    def remove(self) -> None:
        """Remove the file, unless it is in place."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------------ files without a name


def _unnamed(target: Path) -> _Scratch | None:
    """Return a file without a name; None: the system cannot give it a name later."""
    if UNNAMED is None or _locks is None or not Path("/proc/self/fd").exists():
        return None
    try:
        descriptor = os.open(target.parent, UNNAMED | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
            return None  # if the folder is missing, opening a named file says so
        raise
    with contextlib.suppress(OSError):
        _locks.flock(descriptor, _locks.LOCK_EX | _locks.LOCK_NB)  # it may have a temporary name for a moment
    return _scratch_of(target, descriptor, None)


def _linked(descriptor: int, target: Path) -> Path:
    """Name a file that has no name: as its target if that name is free, or else with a temporary name next to it."""
    for path in itertools.chain([target], _scratch_names(target)):
        try:
            # The call follows the link in /proc only if it gets a descriptor of a folder, which it does not use.
            os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)
        except FileExistsError:
            if path != target:
                _remove_if_abandoned(path)
            continue
        except OSError as error:
            raise _named_error(error, target, os.fstat(descriptor).st_size) from None
        return path
    raise AssertionError("names have no end")


# ------------------------------------------------------------------------------------------------- files next to others


def _named(target: Path) -> _Scratch:
    """Return a file next to its final place. Files that a dead process left are used again or removed."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    flags |= getattr(os, "O_BINARY", 0) | (os.O_EXCL if _locks is None else 0)
    names = _scratch_names(target)
    for path in names:
        try:
            descriptor = os.open(path, flags, 0o666)
        except FileExistsError:
            _remove_if_abandoned(path)
            continue
        except OSError:
            if os.path.lexists(path):  # a file of another user, a link, or a folder
                continue
            raise
        if not _is_ours(descriptor, path):
            os.close(descriptor)
            continue
        for other in itertools.takewhile(Path.exists, (other for other in names if other != path)):
            _remove_if_abandoned(other)
        os.ftruncate(descriptor, 0)
        return _scratch_of(target, descriptor, path)
    raise AssertionError("names have no end")


def _scratch_names(target: Path) -> Iterator[Path]:
    """Yield `.NAME.part`, and then names for other writers at the same time. Each name comes twice.

    The second time is for a caller whose first try removed an abandoned file.
    """
    for count in itertools.count(1):
        path = target.with_name(f".{target.name}.part" if count == 1 else f".{target.name}.{count}.part")
        yield path
        yield path


def _scratch_of(target: Path, descriptor: int, path: Path | None) -> _Scratch:
    return _Scratch(_Output(target, descriptor, "r+"), path)


def _is_ours(descriptor: int, path: Path) -> bool:
    """Lock an open file. Return whether no other process has locked it, and it still has its name."""
    if _locks is None:
        return True
    try:
        _locks.flock(descriptor, _locks.LOCK_EX | _locks.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: a file that is not empty may belong to another process
        return os.fstat(descriptor).st_size == 0
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    return False


def _remove_if_abandoned(path: Path) -> None:
    """Remove a file next to its final place if the process that wrote it is dead."""
    with contextlib.suppress(OSError):
        if _locks is None:
            path.unlink()  # fails if a process has it open
            return
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if _is_ours(descriptor, path):
                path.unlink()
        finally:
            os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Wait until the names of a folder are on disk, if the system supports that."""
    if _locks is None:
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

"""Columns in memory that the processes of a machine share. (docs/performance.md, "Memory, index, start")

::

    process 1   column ── written once, sealed ──> memory without a file <── a link, named by the checksum of the bytes
    process 2   the same column ── its checksum finds the link ──> the memory is mapped, and the column is freed

No process can write to sealed memory, or make it shorter. So a map of it never changes, and it never kills a process,
as a map of a file may. It is freed with the last process that uses it. A column that cannot be shared stays as it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import stat
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._threads import num_threads
from cntkio.storage.progress import logger

try:
    import fcntl
except ImportError:
    _SEALS = 0
else:
    # Only Linux has them.
    _NAMES = ("F_SEAL_WRITE", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL")
    _SEALS = sum(getattr(fcntl, name, 0) for name in _NAMES) if hasattr(os, "memfd_create") else 0

LEAST_SHARED = 1 << 20
"""Smaller columns take less memory than the search for another process takes time."""
LINKS = Path("/dev/shm")
"""A folder in memory, of this machine alone, with a folder of links for each user."""
_KINDS = "uiSU"  # numbers, and words of one width
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
maps_here: weakref.WeakValueDictionary[str, mmap.mmap] = weakref.WeakValueDictionary()
"""The maps of this process, by the names of their links."""


def shared(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the same numbers or words in memory that processes share, read-only; a small column as it is.

    Example:
        >>> shared(np.array([3, 1, 2]))
        array([3, 1, 2])
    """
    is_large = column.nbytes >= LEAST_SHARED and column.strides != (0,)
    if not _SEALS or not is_large or column.dtype.kind not in _KINDS:
        return column
    content = np.ascontiguousarray(column).view(np.uint8)
    sums = _core.check_sums(content, num_threads())
    name = hashlib.blake2b(sums.tobytes(), digest_size=16).hexdigest()
    try:
        link = _folder() / name
        mapped = maps_here.get(name) or _found(link, sums, len(content)) or _made(link, content)
    except OSError as error:
        logger.debug("%d bytes of a table are not shared with other processes: %s", len(content), error)
        return column
    maps_here[name] = mapped
    return np.frombuffer(mapped, column.dtype)


def _folder() -> Path:
    """Return the folder of this user's links, which no other user may change."""
    folder = LINKS / f"cntkio-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder


def _found(link: Path, sums: npt.NDArray[np.uint64], size: int) -> mmap.mmap | None:
    """Return a map of the memory of another process to which a link leads; None: it has ended."""
    try:
        # After the end of the process, another file may have its place.
        if not stat.S_ISREG(link.stat().st_mode):
            return None
        descriptor = os.open(link, _READ)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file, contextlib.suppress(OSError):
        # Files that have no seals raise an error.
        are_sealed = fcntl.fcntl(file, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        if are_sealed and os.fstat(file.fileno()).st_size == size:
            mapped = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
            found = _core.check_sums(np.frombuffer(mapped, np.uint8), num_threads())
            return mapped if np.array_equal(found, sums) else None
    return None


def _made(link: Path, content: npt.NDArray[np.uint8]) -> mmap.mmap:
    """Write bytes to new memory, and link it for other processes."""
    for old in link.parent.iterdir():
        try:
            old.stat()
        except OSError:  # the process has ended
            old.unlink(missing_ok=True)
    number = os.memfd_create("cntkio", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        num_written = 0
        while num_written < len(content):
            num_written += os.write(number, content[num_written:].data)
        fcntl.fcntl(number, fcntl.F_ADD_SEALS, _SEALS)
        # Linux before 6.7 maps sealed memory only if it is opened to read it.
        with Path(f"/proc/self/fd/{number}").open("rb") as sealed:
            mapped = mmap.mmap(sealed.fileno(), len(content), prot=mmap.PROT_READ)
    except BaseException:
        os.close(number)
        raise
    # Other processes open the memory by this number, as long as the map is in use.
    weakref.finalize(mapped, _close, number, os.fstat(number).st_ino)
    new = link.with_name(f"{link.name}.{os.getpid()}.{number}")
    new.symlink_to(f"/proc/{os.getpid()}/fd/{number}")
    new.replace(link)
    return mapped


def _close(number: int, inode: int) -> None:
    """Close a descriptor, unless others have closed it, and another file may have its number."""
    with contextlib.suppress(OSError):
        if os.fstat(number).st_ino == inode:
            os.close(number)

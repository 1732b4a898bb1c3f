"""Index caches: files that keep the tables of corpora. (docs/formats/ctf.md, "Index cache")

::

    magic │ size and checksum of the header │ header (JSON) │ array │ array │ ... │ checksums of the arrays' blocks

A cache is used only if everything that the index depends on is unchanged: the cache's own format, the settings, and the
corpus's size, times of change in nanoseconds and a checksum of samples of its content. Every block is compared with
its checksum when it is read. Damage to a cache is never an error, because an index can always be made again.

A cache is read and never mapped, because the operating system kills a process that reads a mapped file while another
process truncates it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._threads import ForkLock, num_threads
from cntkio.storage.output_file import written_whole
from cntkio.storage.progress import logger
from cntkio.storage.text_input import Companions, TextInput, system_number

_T = TypeVar("_T")
CachedArrays = Mapping[str, npt.NDArray[Any]]

_MAGIC = b"cntkio index 3\n\0"
_SIZE_AND_SUM = struct.Struct("<QQ")
_START = len(_MAGIC) + _SIZE_AND_SUM.size
_BLOCK = _core.CHECK_SUM_BLOCK
_MOST_HEADER = 1 << 24
# With a byte order, so that a cache in a store serves all kinds of machines.
_TYPES = frozenset(("|u1", "<u2", "<u4", "<u8", "<i8"))
LEAST_CACHED = 256 << 10
"""Smaller local texts have no cache if there are several: opening a cache takes longer than making the index again."""
# A pipe under the name of a cache does not stop the reader, and a terminal does not begin to control the process.
_READ_WITHOUT_WAITING = os.O_RDONLY | sum(getattr(os, flag, 0) for flag in ("O_NONBLOCK", "O_NOCTTY", "O_BINARY"))
# File systems record the time of a change in steps of up to several milliseconds.
_STEP_OF_TIMES = 0.02
_DAMAGED = "%s: the index cache is damaged: %s; the index is made again"


class DamagedCacheError(Exception):
    """An index cache is damaged."""


class _Place(NamedTuple):
    """An array in a cache; `sums` are the indices of its checksums."""

    dtype: np.dtype[Any]
    length: int
    offset: int
    sums: slice


class StoredArrays:
    """The arrays of an index cache, which are read and checked on request. The file is open only while it is read."""

    def __init__(self, path: Path, number: int, header: Mapping[str, Any], data: int, size: int) -> None:
        self.path = path
        self.facts: Any = header["facts"]
        self._places: dict[str, _Place] = {}
        num_sums, end = 0, data
        for name, (kind, offset, count) in header["arrays"].items():
            # JSON has true and fractions, which arithmetic would accept as numbers.
            if kind not in _TYPES or any(type(value) is not int or value < 0 for value in (offset, count)):
                raise DamagedCacheError(f"array {name!r} is damaged")
            dtype, first_sum = np.dtype(kind), num_sums
            num_bytes = count * dtype.itemsize
            if data + offset + num_bytes > size:
                raise DamagedCacheError("it is cut off")
            num_sums, end = num_sums - (-num_bytes // _BLOCK), end + num_bytes
            self._places[name] = _Place(dtype, count, data + offset, slice(first_sum, num_sums))
        if size != end + 8 * num_sums:
            raise DamagedCacheError("it is cut off, or has more bytes than it should")
        sums = _core.file_read(number, end, 8 * num_sums)
        if sum_of(sums) != header["sum_of_sums"]:
            raise DamagedCacheError("its checksums are damaged")
        self._sums = np.frombuffer(sums, "<u8")

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def place(self, name: str) -> tuple[np.dtype[Any], int]:
        return self._places[name][:2]

    def read_all(self) -> dict[str, npt.NDArray[Any]]:
        return {name: self.read(name) for name in self._places}

    def read(self, name: str, begin: int = 0, end: int | None = None) -> npt.NDArray[Any]:
        """Return a part of an array. `DamagedCacheError`: the file is gone, or has other content than before."""
        dtype, length, offset, sums = self._places[name]
        width = dtype.itemsize
        part = begin * width, (length if end is None else end) * width
        try:
            with opened_cache(self.path) as file:
                number = system_number(file.fileno())
                found = _core.read_checked(number, offset, length * width, part, self._sums[sums], num_threads())
        except OSError as error:
            raise DamagedCacheError(f"array {name!r} cannot be read ({error})") from error
        if found is None:
            raise DamagedCacheError(f"array {name!r} is damaged")
        return found.view(dtype)


class Remaking:
    """Makes the arrays of an index again, at most once, if its cache turns out to be damaged while it is in use."""

    def __init__(self, path: Path, make: Callable[[], CachedArrays]) -> None:
        self._path, self._make, self._lock = path, make, ForkLock()
        self.made: CachedArrays | None = None

    def __call__(self, problem: DamagedCacheError) -> CachedArrays:
        with self._lock.inner:
            if self.made is None:
                logger.warning(_DAMAGED, self._path, problem)
                self.made = self._make()
            return self.made


class StoredColumn:
    """An array of an index cache that is read in slices. If it turns out to be damaged, it is made again."""

    def __init__(self, arrays: StoredArrays, name: str, remake: Remaking) -> None:
        self._arrays, self._name, self._remake = arrays, name, remake
        self.dtype, self._count = arrays.place(name)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: slice) -> npt.NDArray[Any]:
        begin, end, _ = part.indices(self._count)
        made = self._remake.made
        if made is None:
            try:
                return self._arrays.read(self._name, begin, end)
            except DamagedCacheError as problem:
                made = self._remake(problem)
        return made[self._name][begin:end]


class IndexCache:
    """The index cache of one corpus, read with one set of settings.

    Args:
        file: The opened corpus. The cache belongs to this file, even if another file gets its name later.
        settings: The settings on which the index depends; JSON-able.
        verify: Whether to compare the whole corpus with a checksum, which takes as long as reading it.
    """

    def __init__(self, file: TextInput, settings: Mapping[str, Any], *, verify: bool = False) -> None:
        self._file, self._settings, self._verify = file, dict(settings), verify
        # Before the index is made, so that `write` notices a change of the corpus in the meantime.
        self._before = file.storage.facts(verify)
        # Programs with different settings have caches with different names, and do not replace each other's cache.
        text = json.dumps(self._settings, sort_keys=True)
        self._ending = f".{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}.index"

    def candidates(self) -> list[Path]:
        """Return the possible paths of the cache: next to the corpus, and then in the user's cache folder."""
        folder, local = _users_folder(), self._file.storage.local_path
        if local is None:
            name = f"{self._file.storage.identity}.{self._file.path.rpartition('/')[2]}{self._ending}"
            return [] if folder is None else [folder / name]
        found = [local.absolute().with_name(local.name + self._ending)]
        if folder is not None:
            found.append(folder / _name_in_users_folder(found[0]))
        return found

    def read(self, build: Callable[[StoredArrays], _T]) -> _T | None:
        """Return the result of `build` for a cache that matches the corpus as it is now; None: there is no such cache.

        Any exception of `build` means that the cache is damaged.
        """
        for path in self._found():
            try:
                built = build(self._open(path))
            except FileNotFoundError:
                continue
            except _UnfitCacheError as problem:
                logger.info("%s: index cache not used: %s", path, problem)
            except Exception as problem:  # the index can be made again, whatever error the contents of the file cause
                what = problem if isinstance(problem, DamagedCacheError) else f"{problem!r:.100}"
                logger.warning(_DAMAGED, path, what)
            else:
                logger.debug("%s: index cache used", path)
                return built
        return None

    def is_here(self) -> bool:
        """Return whether this machine has a cache that matches the corpus."""
        for path in self.candidates():
            # Whatever is wrong with it, `read` says so.
            with contextlib.suppress(Exception):
                self._open(path)
                return True
        return False

    def _found(self) -> Iterator[Path]:
        """Yield the possible paths of the cache, and then a local copy of the cache in the corpus's store."""
        paths = self.candidates()
        yield from paths
        companions = self._file.storage.companions
        content = companions.read(self._ending) if companions is not None and paths else None
        if content is not None:
            try:
                _write_copy(paths[-1], content)
            except OSError as error:
                logger.debug("%s: the index of the store was not copied: %s", paths[-1], error)
            else:
                yield paths[-1]

    def _open(self, path: Path) -> StoredArrays:
        with opened_cache(path) as file:
            start, size_of_file = file.read(_START), os.fstat(file.fileno()).st_size
            if not start.startswith(_MAGIC):
                raise _UnfitCacheError("it is not an index cache of this version")
            size, check_sum = _SIZE_AND_SUM.unpack(start[len(_MAGIC) :])
            if _START + size > min(_MOST_HEADER, size_of_file):
                raise DamagedCacheError("its header has an impossible length")
            text = file.read(size)
            if sum_of(text) != check_sum:
                raise DamagedCacheError("its header is damaged")
            header = json.loads(text)
            self._require_match(header)
            return StoredArrays(path, system_number(file.fileno()), header, _START + size, size_of_file)

    def _require_match(self, header: Mapping[str, Any]) -> None:
        if header["settings"] != self._settings:
            raise _UnfitCacheError("it was made with other settings")
        saved = header["corpus"]
        whole = saved.get("whole")
        # The checksum of the whole corpus is compared only on request, and a cache may be without it.
        if {**saved, "whole": None} != {**self._before, "whole": None}:
            raise _UnfitCacheError("the corpus has changed")
        if self._verify and whole != self._before["whole"]:
            what = "it has no checksum of the whole corpus" if whole is None else "the corpus has changed"
            raise _UnfitCacheError(what)

    def write(self, facts: Mapping[str, Any], arrays: CachedArrays) -> Written:
        """Write JSON-able facts, and arrays of uint8, uint16, uint32, uint64 or int64, to the first possible path."""
        # A change within the same step of the file system's clock would not change the times.
        newest = max(self._before.get(name, 0) for name in ("time_ns", "change_time_ns")) / 1e9
        time.sleep(min(max(newest + _STEP_OF_TIMES - time.time(), 0), _STEP_OF_TIMES))
        if self._before != self._file.storage.facts(self._verify):
            return Written(None, [f"{self._file.path}: the file was changed while it was indexed"])
        # A column of equal lengths has one number in memory, and all its numbers in the cache.
        stored = {name: np.ascontiguousarray(array, array.dtype.newbyteorder("<")) for name, array in arrays.items()}
        sums = b"".join(_core.check_sums(array.view(np.uint8), num_threads()).tobytes() for array in stored.values())
        header: dict[str, Any] = {
            "corpus": self._before, "settings": self._settings, "facts": facts, "arrays": {},
            "sum_of_sums": sum_of(sums),
        }  # fmt: skip
        offset = 0
        for name, array in stored.items():
            header["arrays"][name] = [array.dtype.str, offset, len(array)]
            offset += array.nbytes
        text = json.dumps(header).encode()
        start = _MAGIC + _SIZE_AND_SUM.pack(len(text), sum_of(text)) + text
        failures: list[str] = []
        for path in self.candidates():
            try:
                # The folder of the corpus exists already; only the user's cache folder may be missing.
                if path.parent == _users_folder():
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                # Something else has the name of the cache, and writing would replace it.
                if path.is_symlink() or (path.exists() and not path.is_file()):
                    raise FileExistsError("it exists and is not a regular file")
                with written_whole(path, is_direct=False) as file:
                    file.write(start)
                    for array in stored.values():
                        file.write(array.data)
                    file.write(sums)
                return Written(path, failures)
            except OSError as error:
                failures.append(f"{path}: {error.strerror or error}")
                logger.debug("%s: index cache not written: %s", path, error)
        return Written(None, failures)


class Written(NamedTuple):
    """A written index cache, or None, and the paths to which it could not be written, each with the reason."""

    path: Path | None
    failures: list[str]


class CacheWriter:
    """Writes an index cache on a thread of its own, so that reading can begin at the same time."""

    def __init__(self, write: Callable[[], Written]) -> None:
        # In a fork the thread does not run, so `wait` returns at once, with this result.
        self._written = Written(None, ["the process was forked while the cache was written"])
        # A thread that has run releases its arguments, and so the index, which the function holds.
        thread = threading.Thread(target=self._run, args=(write,), name="cntkio-index-cache")
        self._thread: threading.Thread | None = thread
        try:
            thread.start()
        except RuntimeError:  # no thread can be started any more
            self._thread = None
            self._run(write)

    def _run(self, write: Callable[[], Written]) -> None:
        try:
            self._written = write()
        except Exception as error:  # reading continues without a cache
            self._written = Written(None, [repr(error)])
            logger.warning("an index cache was not written: %r", error)

    def wait(self) -> Written:
        if self._thread is not None:
            self._thread.join()
        return self._written


class CacheFiles(NamedTuple):
    """The index cache from which a file was opened, the cache of access points, and the writers of other caches.

    Attributes:
        companions: The objects next to the file in its store; None: the file is local.
    """

    indexes: tuple[Path, ...] = ()
    points: tuple[Path, ...] = ()
    writers: tuple[CacheWriter, ...] = ()
    companions: Companions | None = None

    def paths(self) -> list[Path]:
        """Wait for the writers, and return all caches."""
        written = [writer.wait().path for writer in self.writers]
        return [*self.indexes, *self.points, *(path for path in written if path is not None)]

    def publish(self) -> str | None:
        """Write the caches of a file in a remote store next to it, and return the name of its index cache, if any.

        Raises:
            OSError: The store does not accept them.
        """
        store, names = self.companions, [os.fspath(cache) for cache in self.indexes]
        if store is not None:
            names = [store.write(ending, content) for ending, content in self.contents().items()]
        return names[0] if self.indexes else None

    def contents(self) -> dict[str, bytes]:
        """Return each cache by the end of its name."""
        # The access points of a compressed text may have a cache although the index has none.
        caches = (*self.indexes, *self.points)
        # The last two suffixes, the checksum of the settings and `.index`, are the same for each copy.
        return {"".join(cache.suffixes[-2:]): cache.read_bytes() for cache in caches}


class CacheCopy:
    """A description of an index cache with which other machines make copies; it does not contain the content."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = path.name if path.parent == _users_folder() else _name_in_users_folder(path)

    def place(self, content: Callable[[], bytes]) -> None:
        """Write the copy to the user's cache folder, unless this machine has the cache. A failure costs only time."""
        folder = _users_folder()
        copy = None if folder is None else folder / self._name
        if copy is None or self._path.exists() or copy.exists():
            return
        try:
            _write_copy(copy, content())
        except OSError as error:
            logger.debug("%s: the copy of the index cache was not written: %s", copy, error)


def _write_copy(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Without waiting for the disk: after a power failure the checksums find the damage.
    with written_whole(path, is_durable=False, is_direct=False) as file:
        file.write(content)


class _UnfitCacheError(OSError):
    """An index cache belongs to another corpus, other settings or another user; it is not damaged."""


def _users_folder() -> Path | None:
    """Return the folder for caches of this user; None: the user has no home folder."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cntkio"
    except RuntimeError:
        return None


def _name_in_users_folder(path: Path) -> str:
    """Return the name in the user's folder for a cache whose path next to its corpus would be `path`."""
    return f"{hashlib.blake2b(os.fsencode(path.parent), digest_size=8).hexdigest()}.{path.name}"


def opened_cache(path: str | Path, folder: int | None = None, *, follows_links: bool = True) -> BinaryIO:
    """Open a regular file of a cache, of this user or of root, to read it. A pipe under its name does not block."""
    flags = 0 if follows_links else getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, _READ_WITHOUT_WAITING | flags, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _UnfitCacheError("it is not a regular file")
        if not is_believed(status):
            raise _UnfitCacheError(f"it belongs to user {status.st_uid}; expected this user or root")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def is_believed(status: os.stat_result) -> bool:
    """Return whether a file or a folder of a cache belongs to this user or to root."""
    return not hasattr(os, "geteuid") or status.st_uid in (os.geteuid(), 0)


def sum_of(content: bytes) -> int:
    """Return a checksum that covers bytes and their number."""
    sums = _core.check_sums(np.frombuffer(content, np.uint8), 1)
    return int.from_bytes(hashlib.blake2b(sums.tobytes(), digest_size=8).digest(), "little") ^ len(content)

"""Objects of remote stores: their facts, and their bytes in requests of one range each.

::

    URL                              fsspec
    Remote(store=...) of fsspec      fsspec
                      of obstore     obstore
                      of pyarrow     pyarrow

Each kind of store has one class. Of the schemes, only HTTP has code of its own, which checks the ranges of answers. A
class makes single requests: `objects` repeats them, limits them and makes them in parallel. The libraries are optional,
and imported when they are needed.

A process may fork after it has read. File systems of fsspec are created again in the fork, and file systems of pyarrow
survive it. A store of obstore would wait forever in a fork, which lacks its threads, so the fork raises an error.
"""

from __future__ import annotations

import errno
import os
import pickle
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from cntkio.errors import CntkIoError, ConfigError, CorpusError, without_secrets
from cntkio.formats.identities import OF_PROCESS, identity_of, without_access
from cntkio.formats.names import shown, shown_pattern
from cntkio.formats.remote import Remote, default_remote

# The names under which stores report values that change with the content; the most reliable come first.
_VERSIONS = ("versionid", "version", "generation", "etag", "contentmd5", "md5hash", "digest", "crc32c")
_LONGEST_REASON = 300
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(?:\d+|\*)", re.IGNORECASE)
_TIMES = ("lastmodified", "mtime", "modified", "updated", "created")


class Facts(NamedTuple):
    """Facts about an object.

    Attributes:
        size: Size in bytes.
        version: A text that changes when the content does: a version, an ETag or the time of the last change; empty if
            the store reports none of these.
    """

    size: int
    version: str


class StoredObject(Protocol):
    """An object of a store. Any thread may call the methods. All exceptions of the store's library are possible."""

    @property
    def name(self) -> str:
        """Name used in messages."""

    @property
    def identity(self) -> str:
        """The object for caches; see `cntkio.formats.identities`."""

    @property
    def is_conditional(self) -> bool:
        """True if `read` fails when the object has another version."""

    @property
    def is_secret(self) -> bool:
        """True if the object's URL contains a password or a signature, which the errors of its library may show."""

    def facts(self) -> Facts:
        """Ask the store for the facts."""

    def read(self, begin: int, end: int, version: str) -> bytes | memoryview:
        """Make one request for a range; the store may return less or more than that.

        Raises:
            CorpusError: The object has another version.
        """

    def write(self, content: bytes) -> None:
        """Write the object; an existing object is replaced."""


def stored_object(path: str, remote: Remote | None = None) -> StoredObject:
    """Return the object that a path and options name.

    Raises:
        ConfigError: The library for the store is not installed, or the store is of an unknown kind.
    """
    remote = remote or default_remote()
    return _kind_of(remote)[0](path, remote)


def matching_objects(pattern: str, remote: Remote | None = None) -> list[str]:
    """Return the names of the objects that match a pattern of ``*``, ``**``, ``?`` and ``[...]``, sorted by bytes.

    Args:
        pattern: A URL, or a path in the store of `remote`.
        remote: Options of the store.

    Raises:
        ConfigError: The library for the store is not installed.
        OSError: The store cannot be asked.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe({"/example/a.ctf": b"", "/example/b.ctf": b"", "/example/c.txt": b""})
        >>> matching_objects("memory://example/*.ctf")
        ['memory://example/a.ctf', 'memory://example/b.ctf']
    """
    remote = remote or default_remote()
    try:
        return sorted(_kind_of(remote)[1](pattern, remote), key=os.fsencode)
    except CntkIoError:
        raise
    except FileNotFoundError:
        return []
    except PermissionError as error:
        advice = "pass credentials, such as Remote(storage_options={...})"
        what = f"The store does not allow listing its objects ({reason_of(error)}); {advice}"
        raise PermissionError(errno.EACCES, what, shown_pattern(pattern)) from None
    except Exception as error:
        what = f"Cannot list the objects of the store ({reason_of(error)})"
        raise OSError(errno.EIO, what, shown_pattern(pattern)) from None


def reason_of(error: BaseException) -> str:
    """Return the message of an error, in one line and without the passwords and the queries of URLs.

    Example:
        >>> reason_of(ValueError("no http://me:secret@host/a?signature=3f"))
        'ValueError: no http://host/a'
    """
    text = without_secrets(" ".join(str(error).split()))[:_LONGEST_REASON]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def hint_on_memory(path: str, remote: Remote | None = None) -> str:
    """Return advice about a missing object if its store is in memory; empty for other stores.

    Example:
        >>> hint_on_memory("memory://a.ctf"), hint_on_memory("s3://bucket/a.ctf")
        ('; a store in memory is only in the process that filled it, not in its workers', '')
    """
    kind = "" if remote is None or remote.store is None else type(remote.store).__name__
    is_in_memory = "memory" in kind.lower() or path.startswith("memory:")
    return "; a store in memory is only in the process that filled it, not in its workers" if is_in_memory else ""


class RemoteFiles:
    """Lists the files of remote stores, for patterns; a `cntkio.formats.file_lists.Lister`.

    Args:
        remote: Options of the store.
    """

    def __init__(self, remote: Remote | None) -> None:
        self._remote = remote

    def is_file(self, path: str) -> bool:
        try:
            stored_object(path, self._remote).facts()
        except OSError:
            return False
        return True

    def is_folder(self, path: str) -> bool:
        return path.endswith("/") and bool(self.names(path))

    def size(self, path: str) -> int:
        return 0  # each size would take a request

    def names(self, folder: str) -> list[str]:
        return [name.rpartition("/")[2] for name in self.matching(f"{folder.rstrip('/')}/*")]

    def matching(self, pattern: str) -> list[str]:
        return matching_objects(pattern, self._remote)


def _kind_of(
    remote: Remote,
) -> tuple[Callable[[str, Remote], StoredObject], Callable[[str, Remote], Iterable[str]]]:
    """Return the class of objects and the function that lists them, for the library that the store comes from."""
    kinds: dict[str, tuple[Callable[[str, Remote], StoredObject], Callable[[str, Remote], Iterable[str]]]] = {
        "fsspec": (_OfFsspec, _listed_by_fsspec),
        "obstore": (_OfObstore, _listed_by_obstore),
        "pyarrow": (_OfPyarrow, _listed_by_pyarrow),
    }
    if remote.store is None:
        return kinds["fsspec"]
    libraries = {base.__module__.partition(".")[0] for base in type(remote.store).__mro__}
    for library, kind in kinds.items():  # a file system of fsspec may come with another library
        if library in libraries:
            return kind
    raise ConfigError(
        f"store is of the type {type(remote.store).__name__}; expected a store of obstore, or a file system of pyarrow "
        "or fsspec",
        key="store",
    )


def changed(name: str, how: str = "") -> CorpusError:
    """Return the error about an object whose content has changed since it was opened."""
    return CorpusError(f"{name}: changed while it was read{how}; open it again")


def version_in(info: Mapping[str, Any]) -> str:
    """Return the version in a store's description of an object.

    Example:
        >>> version_in({"ETag": '"9a3"', "LastModified": "today", "size": 7})
        'etag="9a3"'
        >>> version_in({"mtime": 3})
        'mtime=3'
    """
    by_name = {name.lower().replace("_", "").replace("-", ""): value for name, value in info.items()}
    for name in (*_VERSIONS, *_TIMES):
        if by_name.get(name) not in (None, "", "null"):
            return f"{name}={by_name[name]}"
    return ""


# --------------------------------------------------------------------------------------------------------------- fsspec


class _FileSystem:
    """A file system of fsspec for this process: a fork makes its own."""

    def __init__(self, url: str, remote: Remote) -> None:
        self._url, self._remote = url, remote
        self._given: bytes | None = None if remote.store is None else pickle.dumps(remote.store)
        self._process = os.getpid()
        self._made: tuple[Any, str] = self._make()

    def _make(self) -> tuple[Any, str]:
        if self._given is not None:
            return self._remote.store if self._process == os.getpid() else pickle.loads(self._given), self._url
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise ConfigError(
                f"{shown(self._url)}: reading from a remote store needs fsspec, which is not installed: "
                "pip install fsspec"
            ) from error
        try:
            system, path = url_to_fs(self._url, **self._remote.storage_options)
            return system, path
        except (ImportError, ValueError) as error:  # the scheme needs another package, or is unknown
            raise ConfigError(f"{shown(self._url)}: fsspec cannot open this URL: {error}") from error

    def get(self) -> tuple[Any, str]:
        """Return the file system, and the path in it."""
        if self._process != os.getpid():
            made = self._make()
            self._made, self._process = made, os.getpid()
        return self._made


class _OfFsspec:
    is_conditional = False

    def __init__(self, path: str, remote: Remote) -> None:
        self.name = shown(path)
        self.is_secret = self.name != path
        self._url, self._remote = path, remote
        self._system = _FileSystem(path, remote)
        self._process = os.getpid()

    @property
    def identity(self) -> str:
        system, path = self._system.get()
        is_given = self._remote.store is not None
        # Paths of other given stores are no URLs, whatever they look like.
        shorten = str if is_given and "http" not in system.protocol else without_access
        own = self._remote.own_identity if is_given else OF_PROCESS
        return identity_of(system, [shorten(path), shorten(self._url)], own)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the file system; an asynchronous method gets a time limit."""
        system, path = self._system.get()
        if type(system).__module__.startswith("obstore."):
            _require_no_fork(self._process)
        within = getattr(system, "fs", system)  # a file system may only forward calls to another
        if not (system.async_impl and within.async_impl) or system.asynchronous:
            return getattr(system, name)(path, *args, **kwargs)
        from fsspec.asyn import sync

        method = getattr(system, f"_{name}")
        return sync(system.loop, method, path, *args, timeout=self._remote.timeout_in_seconds, **kwargs)

    def facts(self) -> Facts:
        self._system.get()[0].invalidate_cache()
        info = self._call("info")
        if info.get("type") == "directory":
            raise IsADirectoryError(f"{self.name} is a folder")
        if not isinstance(info.get("size"), int):
            raise ConfigError(f"{self.name}: the store does not report the size; copy the file to a local disk")
        return Facts(info["size"], version_in(info))

    def read(self, begin: int, end: int, version: str) -> bytes:
        system, path = self._system.get()
        if type(system).__module__ == "fsspec.implementations.http" and not system.asynchronous:
            from fsspec.asyn import sync

            wanted = (system, path, begin, end)
            content: bytes = sync(system.loop, _range_by_http, *wanted, timeout=self._remote.timeout_in_seconds)
        else:
            content = self._call("cat_file", start=begin, end=end)
        return content

    def write(self, content: bytes) -> None:
        self._call("pipe_file", content)


class WrongRangeError(OSError):
    """A server returned other bytes than requested."""


async def _range_by_http(system: Any, url: str, begin: int, end: int) -> bytes:
    """Return a range of an object by HTTP. fsspec does not check which range the answer has, and reads all of it."""
    headers = {**system.kwargs.get("headers", {}), "Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
    session = await system.set_session()
    async with session.get(system.encode_url(url), **{**system.kwargs, "headers": headers}) as answer:
        answer.raise_for_status()
        if answer.status != 206 and (begin or answer.content_length != end):
            raise NotImplementedError("it ignores ranges, so copy the file to a local disk")
        told = answer.headers.get("Content-Range", "")
        found = _CONTENT_RANGE.fullmatch(told.strip())
        if answer.status == 206 and (found is None or int(found[1]) != begin or int(found[2]) >= end):
            raise WrongRangeError(f"the server returned {told or 'no Content-Range'}; expected bytes {begin}-{end - 1}")
        parts, size = [], 0
        async for part in answer.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > end - begin:
                raise WrongRangeError(f"the server returned more bytes than the {end - begin} that were requested")
        return b"".join(parts)


def _listed_by_fsspec(pattern: str, remote: Remote) -> list[str]:
    system, path = _FileSystem(pattern, remote).get()
    system.invalidate_cache()
    names = [name for name, info in system.glob(path, detail=True).items() if info.get("type") != "directory"]
    if remote.store is not None:
        return names
    urls = map(system.unstrip_protocol, names)
    # Some file systems begin each path with a slash.
    return list(urls) if ":///" in pattern else [url.replace(":///", "://", 1) for url in urls]


# -------------------------------------------------------------------------------------------------------------- obstore

_process_of_obstore: int | None = None
"""The process that used obstore first: its forks must not."""


def _require_no_fork(process: int) -> None:
    """Raise an error in a process in which obstore would wait forever.

    Args:
        process: The process that the store was made for.
    """
    global _process_of_obstore
    if _process_of_obstore is None:
        _process_of_obstore = os.getpid()
    if not _process_of_obstore == process == os.getpid():
        raise CorpusError(
            "obstore was used before this process was forked, and waits forever in forks; start the workers with "
            'multiprocessing_context="forkserver" or "spawn", or read without workers (num_workers=0), or name the '
            "file with a URL"
        )


class _OfObstore:
    is_conditional = True
    is_secret = False

    def __init__(self, path: str, remote: Remote) -> None:
        self.name = path
        self._store = remote.store
        self._own = remote.own_identity
        self._process = os.getpid()

    @property
    def identity(self) -> str:
        return identity_of(self._store, [self.name], self._own)

    def facts(self) -> Facts:
        _require_no_fork(self._process)
        found = self._store.head(self.name)
        return Facts(found["size"], version_in(found))

    def read(self, begin: int, end: int, version: str) -> memoryview:
        _require_no_fork(self._process)
        found = self._store.get(self.name, options={"range": (begin, end)})
        if version_in(found.meta) != version:
            raise changed(self.name)
        return memoryview(found.bytes())

    def write(self, content: bytes) -> None:
        _require_no_fork(self._process)
        self._store.put(self.name, content)


def _listed_by_obstore(pattern: str, remote: Remote) -> list[str]:
    _require_no_fork(os.getpid())
    return _that_match(pattern, (found["path"] for batch in remote.store.list(_folder_of(pattern)) for found in batch))


# -------------------------------------------------------------------------------------------------------------- pyarrow


class _OfPyarrow:
    is_conditional = False
    is_secret = False

    def __init__(self, path: str, remote: Remote) -> None:
        self.name = path
        self._store = remote.store
        self._own = remote.own_identity
        self._file: Any = None

    @property
    def identity(self) -> str:
        return identity_of(self._store, [self.name], self._own)

    def facts(self) -> Facts:
        from pyarrow.fs import FileType

        found = self._store.get_file_info(self.name)
        if found.type == FileType.NotFound:
            raise FileNotFoundError(self.name)
        if found.type == FileType.Directory:
            raise IsADirectoryError(f"{self.name} is a folder")
        return Facts(found.size, version_in({"mtime": found.mtime_ns}))

    def read(self, begin: int, end: int, version: str) -> memoryview:
        if self._file is None:
            self._file = self._store.open_input_file(self.name)
        return memoryview(self._file.read_at(end - begin, begin))

    def write(self, content: bytes) -> None:
        with self._store.open_output_stream(self.name) as file:
            file.write(content)


def _listed_by_pyarrow(pattern: str, remote: Remote) -> list[str]:
    from pyarrow.fs import FileSelector, FileType

    found = remote.store.get_file_info(FileSelector(_folder_of(pattern), allow_not_found=True, recursive=True))
    return _that_match(pattern, (info.path for info in found if info.type == FileType.File))


# ------------------------------------------------------------------------------------------------------------- patterns


def _folder_of(pattern: str) -> str:
    """Return the folder above the first wildcard of a pattern.

    Example:
        >>> _folder_of("a/b/c*/d"), _folder_of("*.ctf")
        ('a/b', '')
    """
    literal = pattern[: min((at for at in map(pattern.find, "*?[") if at >= 0), default=len(pattern))]
    return literal.rpartition("/")[0]


def _that_match(pattern: str, names: Iterable[str]) -> list[str]:
    from fsspec.utils import glob_translate

    matches = re.compile(glob_translate(pattern)).match
    return [name for name in names if matches(name)]

"""Objects of remote stores: their facts, and their bytes in parallel requests, which are repeated after errors.

::

    URL                              fsspec
    Remote(store=...) of fsspec      fsspec
                      of obstore     obstore
                      of pyarrow     pyarrow

Each kind of store has one class. Of the schemes, only HTTP has code of its own, which checks the ranges of answers. A
class makes single requests; `RemoteObject` repeats them after temporary errors, limits them, makes them in parallel,
and notices changes::

    read_into(buffer, offset)      4 MB │ 4 MB │ 4 MB │ ...       a request for each, on threads of their own
                                          │
                                   at most `Remote.num_requests` are under way, of all objects together
                                          │
    require_unchanged()            the facts again, unless each answer included the version, or no request was made;
                                   at most a single request for the facts is under way, in addition to the ranges

Memory: the buffer, and parts that have arrived and wait to be copied, which together are at most as large again.
The libraries are optional, and imported when they are needed.

A process may fork after it has read. File systems of fsspec are created again in the fork, and file systems of pyarrow
survive it. A store of obstore would wait forever in a fork, which lacks its threads, so the fork raises an error.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import pickle
import random
import re
import secrets
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from cntkio._threads import ForkLock, Workers
from cntkio.errors import CntkIoError, ConfigError, CorpusError, without_secrets
from cntkio.storage.names import shown, shown_pattern
from cntkio.storage.progress import logger
from cntkio.storage.remote import OF_PROCESS, Remote, default_remote, identity_of, without_access
from cntkio.storage.text_input import Bytes, filled

# The names under which stores report values that change with the content; the most reliable come first.
_VERSIONS = (
    "versionid", "version", "generation", "etag", "contentmd5", "md5hash", "digest", "crc32c",
    "lastmodified", "mtime", "modified", "updated", "created",
)  # fmt: skip
_LONGEST_REASON = 300
# Without wildcards, except for the question mark before the query.
_WITH_QUERY = re.compile(r"https?://[^?*\[{]*\?[^*\[{=]*=[^*\[{]*", re.IGNORECASE)
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(?:\d+|\*)", re.IGNORECASE)
_ADVICE = "pass credentials, such as Remote(storage_options={...})"


class ObjectFacts(NamedTuple):
    """The size of an object in bytes, and a text that changes when the content does.

    The text has a version, an ETag or the time of the last change; it is empty if the store reports none of these.
    """

    size: int
    version: str


class StoredObject(ABC):
    """An object of a store. Any thread may call the methods. All exceptions of the store's library are possible.

    Attributes:
        name: Name used in messages.
        is_conditional: True if `read` fails when the object has another version.
        is_secret: True if the object's URL contains a password or a signature, which the errors of its library may
            show.
    """

    is_conditional = False
    is_secret = False

    def __init__(self, path: str, remote: Remote) -> None:
        self.name, self._remote, self._store = path, remote, remote.store
        self._process = os.getpid()

    @property
    def identity(self) -> str:
        """The object for caches; see `cntkio.storage.remote`."""
        return identity_of(self._store, [self.name], self._remote.own_identity)

    @abstractmethod
    def facts(self) -> ObjectFacts:
        """Ask the store for the facts."""

    @abstractmethod
    def read(self, begin: int, end: int, version: str) -> bytes | memoryview:
        """Make one request for a range; the store may return less or more. `CorpusError`: it has another version."""

    @abstractmethod
    def write(self, content: bytes) -> None:
        """Write the object; an existing object is replaced."""

    @staticmethod
    @abstractmethod
    def matching(pattern: str, remote: Remote) -> list[str]:
        """Return the names of the objects that match a pattern, in any order."""


def stored_object(path: str, remote: Remote | None = None) -> StoredObject:
    """Return the object that a path and options name.

    Raises:
        ConfigError: The library for the store is not installed, or the store is of an unknown kind.
    """
    remote = remote or default_remote()
    return _kind_of(remote)(path, remote)


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
    if path.startswith("memory:") or (remote is not None and "memory" in type(remote.store).__name__.lower()):
        return "; a store in memory is only in the process that filled it, not in its workers"
    return ""


class RemoteFiles:
    """Lists the files of remote stores; see `cntkio.storage.file_lists.LocalFiles`."""

    def __init__(self, remote: Remote | None = None) -> None:
        self._remote = remote or default_remote()

    def is_file(self, path: str) -> bool:
        try:
            stored_object(path, self._remote).facts()
        except OSError:
            # Opening it says what is wrong with a URL that has a query, and tries again.
            return _WITH_QUERY.fullmatch(path) is not None
        return True

    def is_folder(self, path: str) -> bool:
        return path.endswith("/") and bool(self.names(path))

    def size(self, path: str) -> int:
        return 0  # each size would take a request

    def names(self, folder: str) -> list[str]:
        return [name.rpartition("/")[2] for name in self.matching(f"{folder.rstrip('/')}/*")]

    def matching(self, pattern: str) -> list[str]:
        """Return the names of the objects that match ``*``, ``**``, ``?`` and ``[...]``, sorted by bytes.

        Example:
            >>> import fsspec
            >>> fsspec.filesystem("memory").pipe({"/example/a.ctf": b"", "/example/b.ctf": b"", "/example/c.txt": b""})
            >>> RemoteFiles().matching("memory://example/*.ctf")
            ['memory://example/a.ctf', 'memory://example/b.ctf']
        """
        try:
            return sorted(_kind_of(self._remote).matching(pattern, self._remote), key=os.fsencode)
        except CntkIoError:
            raise
        except FileNotFoundError:
            return []
        except PermissionError as error:
            what = f"The store does not allow listing its objects ({reason_of(error)}); {_ADVICE}"
            raise PermissionError(errno.EACCES, what, shown_pattern(pattern)) from None
        except Exception as error:
            what = f"Cannot list the objects of the store ({reason_of(error)})"
            raise OSError(errno.EIO, what, shown_pattern(pattern)) from None


def _kind_of(remote: Remote) -> type[StoredObject]:
    """Return the class of objects for the library that the store comes from."""
    kinds = {"fsspec": _OfFsspec, "obstore": _OfObstore, "pyarrow": _OfPyarrow}
    if remote.store is None:
        return _OfFsspec
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
    for name in _VERSIONS:
        if by_name.get(name) not in (None, "", "null"):
            return f"{name}={by_name[name]}"
    return ""


# --------------------------------------------------------------------------------------------------------------- fsspec


class _OfFsspec(StoredObject):
    def __init__(self, path: str, remote: Remote) -> None:
        super().__init__(path, remote)
        self.name, self._url = shown(path), path
        self.is_secret = self.name != path
        # A fork loads this pickle: the parent's file system may have connections and a thread, which a fork lacks.
        self._pickled = None if remote.store is None else pickle.dumps(remote.store)
        self._ranges = _RangesByHTTP()
        self._opened: tuple[int, Any, str] = (self._process, *self._open())

    def _open(self) -> tuple[Any, str]:
        if self._pickled is not None:
            return self._store if self._process == os.getpid() else pickle.loads(self._pickled), self._url
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            what = "reading from a remote store needs fsspec, which is not installed: pip install fsspec"
            raise ConfigError(f"{self.name}: {what}") from error
        try:
            system, path = url_to_fs(self._url, **self._remote.storage_options)
            return system, path
        except (ImportError, ValueError) as error:  # the scheme needs another package, or is unknown
            raise ConfigError(f"{self.name}: fsspec cannot open this URL: {error}") from error
        except OSError as error:  # such as a server that refuses the connection
            number = errno.EACCES if isinstance(error, PermissionError) else error.errno or errno.EIO
            raise OSError(number, f"Cannot open the store ({reason_of(error)})", self.name) from error

    def _system(self) -> tuple[Any, str]:
        """Return the file system for this process, and the path in it: a fork makes its own file system."""
        if self._opened[0] != os.getpid():
            self._opened = (os.getpid(), *self._open())
        return self._opened[1:]

    @property
    def identity(self) -> str:
        system, path = self._system()
        is_given = self._store is not None
        # A path in another given store is not a URL, even if it looks like a URL.
        shorten = str if is_given and "http" not in system.protocol else without_access
        own = self._remote.own_identity if is_given else OF_PROCESS
        return identity_of(system, [shorten(path), shorten(self._url)], own)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the file system; an asynchronous method gets a time limit."""
        system, path = self._system()
        if type(system).__module__.startswith("obstore."):
            _require_no_fork(self._process)
        within = getattr(system, "fs", system)  # a file system may only forward calls to another
        if not (system.async_impl and within.async_impl) or system.asynchronous:
            return getattr(system, name)(path, *args, **kwargs)
        from fsspec.asyn import sync

        is_range_by_http = name == "cat_file" and type(system).__module__ == "fsspec.implementations.http"
        method = partial(self._ranges.read, system) if is_range_by_http else getattr(system, f"_{name}")
        return sync(system.loop, method, path, *args, timeout=self._remote.timeout_in_seconds, **kwargs)

    def facts(self) -> ObjectFacts:
        # fsspec remembers listings, whose facts could belong to an older version of the object.
        self._system()[0].invalidate_cache()
        info = self._call("info")
        if info.get("type") == "directory":
            raise IsADirectoryError(f"{self.name} is a folder")
        if not isinstance(info.get("size"), int):
            raise ConfigError(f"{self.name}: the store does not report the size; copy the file to a local disk")
        return ObjectFacts(info["size"], version_in(info))

    def read(self, begin: int, end: int, version: str) -> bytes | memoryview:
        content: bytes | memoryview = self._call("cat_file", start=begin, end=end)
        return content

    def write(self, content: bytes) -> None:
        system, path = self._system()
        # A file system may only forward calls to another, such as to a folder in it.
        stores = (system, getattr(system, "fs", system))
        protocols = {name for store in stores for name in np.ravel(getattr(store, "protocol", ""))}
        # Other stores show an object when it is complete, or have no move that replaces an object.
        if not protocols & _MOVE_REPLACES:
            self._call("pipe_file", content)
            return
        _move_into_place(
            path, system.isdir(path), lambda part: system.pipe_file(part, content), system.mv, system.rm_file
        )

    @staticmethod
    def matching(pattern: str, remote: Remote) -> list[str]:
        system, path = _OfFsspec(pattern, remote)._system()
        # Another process may have written files since this process last listed the folder.
        system.invalidate_cache()
        names = [name for name, info in system.glob(path, detail=True).items() if info.get("type") != "directory"]
        if remote.store is not None:
            return names
        urls = map(system.unstrip_protocol, names)
        # Some file systems begin each path with a slash.
        return list(urls) if ":///" in pattern else [url.replace(":///", "://", 1) for url in urls]


_MOVE_REPLACES = {"file", "local", "sftp", "ssh", "hdfs", "arrow_hdfs"}
"""Stores of fsspec that are folders, whose files move in one step."""


def _move_into_place(
    path: str, is_folder: bool, put: Callable[[str], Any], move: Callable[[str, str], Any], remove: Callable[[str], Any]
) -> None:
    """Write a file under another name next to its own, which it gets when it is complete."""
    if is_folder:  # a move would put the file into it
        raise IsADirectoryError(errno.EISDIR, "Is a folder; expected a file", path)
    folder, slash, _ = path.rpartition("/")
    part = f"{folder}{slash}.cntkio-{secrets.token_hex(8)}.part"
    try:
        put(part)
        move(part, path)
    except BaseException:
        with suppress(Exception):
            remove(part)
        raise


class WrongRangeError(OSError):
    """A server returned other bytes than requested."""


class _RangesByHTTP:
    """Reads ranges of an object by HTTP. It asks the target of a redirect directly until the target refuses a range."""

    def __init__(self) -> None:
        self._target: Any = None  # the URL, which may contain a signature: no message shows it

    async def read(self, system: Any, url: str, start: int, end: int) -> memoryview:
        """Return a range. The server of `url` decides again after an error of the target, such as an old signature."""
        target = self._target
        if target is not None:
            with suppress(Exception):
                return (await _range_by_http(system, target, start, end, url))[0]
            self._target = None
        content, reached = await _range_by_http(system, system.encode_url(url), start, end, url)
        # What a session has of its own goes to every server that it asks.
        self._target = None if system.client_kwargs.keys() & {"headers", "auth", "cookies", "cookie_jar"} else reached
        return content


async def _range_by_http(system: Any, asked: Any, start: int, end: int, url: str) -> tuple[memoryview, Any]:
    """Return a range of an object and, after a redirect, the URL that has it. `url` is the URL that the user gave.

    fsspec does not check which range the answer has, and reads all of it.
    """
    options = dict(system.kwargs)
    headers = dict(options.get("headers", {}))
    if _server_of(asked) != _server_of(system.encode_url(url)):
        # As when a redirect is followed: what grants access is for the server of the user's URL only.
        headers = {name: value for name, value in headers.items() if name.lower() not in _FOR_ONE_SERVER}
        options = {name: value for name, value in options.items() if name not in ("auth", "cookies")}
    # If the server compressed the answer, the range would count bytes of the compressed object.
    headers |= {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
    session = await system.set_session()
    async with session.get(asked, **{**options, "headers": headers}) as answer:
        answer.raise_for_status()
        # A server without ranges sends the whole object, which is right only if the whole object was requested.
        if answer.status != 206 and (start or answer.content_length != end):
            raise NotImplementedError("it ignores ranges, so copy the file to a local disk")
        told = answer.headers.get("Content-Range", "")
        found = _CONTENT_RANGE.fullmatch(told.strip())
        if answer.status == 206 and (found is None or int(found[1]) != start or int(found[2]) >= end):
            raise WrongRangeError(f"the server returned {told or 'no Content-Range'}; expected bytes {start}-{end - 1}")
        content = bytearray()
        async for part in answer.content.iter_any():
            content += part
            # Checked for each part, so that a wrong answer of any length takes little memory.
            if len(content) > end - start:
                raise WrongRangeError(f"the server returned more bytes than the {end - start} that were requested")
        return memoryview(content), answer.url if answer.history else None


_FOR_ONE_SERVER = ("authorization", "cookie", "proxy-authorization")
"""Headers, in small letters, that no other server gets."""


def _server_of(url: Any) -> tuple[Any, ...]:
    parts = urlsplit(str(url))
    return parts.scheme, parts.hostname, parts.port


# -------------------------------------------------------------------------------------------------------------- obstore

_process_of_obstore: int | None = None
"""The process that used obstore first: its forks must not."""


def _require_no_fork(process: int) -> None:
    """Raise an error in a process in which obstore would wait forever. The store was made for `process`."""
    global _process_of_obstore
    if _process_of_obstore is None:
        _process_of_obstore = os.getpid()
    if not _process_of_obstore == process == os.getpid():
        raise CorpusError(
            "obstore was used before this process was forked, and waits forever in forks; start the workers with "
            'multiprocessing_context="forkserver" or "spawn", or read without workers (num_workers=0), or name the '
            "file with a URL"
        )


class _OfObstore(StoredObject):
    is_conditional = True

    def facts(self) -> ObjectFacts:
        _require_no_fork(self._process)
        found = self._store.head(self.name)
        return ObjectFacts(found["size"], version_in(found))

    def read(self, begin: int, end: int, version: str) -> memoryview:
        _require_no_fork(self._process)
        found = self._store.get(self.name, options={"range": (begin, end)})
        if version_in(found.meta) != version:
            raise changed(self.name)
        return memoryview(found.bytes())

    def write(self, content: bytes) -> None:
        _require_no_fork(self._process)
        self._store.put(self.name, content)

    @staticmethod
    def matching(pattern: str, remote: Remote) -> list[str]:
        _require_no_fork(os.getpid())
        batches = remote.store.list(_folder_of(pattern))
        return _that_match(pattern, (found["path"] for batch in batches for found in batch))


# -------------------------------------------------------------------------------------------------------------- pyarrow


class _OfPyarrow(StoredObject):
    _file: Any = None

    def facts(self) -> ObjectFacts:
        from pyarrow.fs import FileType

        found = self._store.get_file_info(self.name)
        if found.type == FileType.NotFound:
            raise FileNotFoundError(self.name)
        if found.type == FileType.Directory:
            raise IsADirectoryError(f"{self.name} is a folder")
        return ObjectFacts(found.size, version_in({"mtime": found.mtime_ns}))

    def read(self, begin: int, end: int, version: str) -> memoryview:
        if self._file is None:
            self._file = self._store.open_input_file(self.name)
        return memoryview(self._file.read_at(end - begin, begin))

    def write(self, content: bytes) -> None:
        def put(path: str) -> None:
            with self._store.open_output_stream(path) as file:
                file.write(content)

        store = self._store
        # A file system may be a folder in another, or made from one of fsspec.
        if re.match("local|hdfs|py::.*\\b(file|local)\\b", getattr(store, "base_fs", store).type_name):
            is_folder = store.get_file_info(self.name).type.name == "Directory"
            _move_into_place(self.name, is_folder, put, store.move, store.delete_file)
        else:
            put(self.name)

    @staticmethod
    def matching(pattern: str, remote: Remote) -> list[str]:
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
    return re.split(r"[*?\[]", pattern, maxsplit=1)[0].rpartition("/")[0]


def _that_match(pattern: str, names: Iterable[str]) -> list[str]:
    from fsspec.utils import glob_translate

    matches = re.compile(glob_translate(pattern)).match
    return [name for name in names if matches(name)]


PART = 4 << 20
"""Most bytes of a request: enough that its latency costs little, few enough that a chunk takes several in parallel."""
FIRST_PAUSE = 0.1
# With 10 retries, the pauses are at least 32 s together, so an outage of half a minute is survived.
_LONGEST_PAUSE = 10.0
_LONGEST_TOLD_PAUSE = 60.0
_PAUSE_TO_REPORT = 1.0
# Errors that stay when the request is repeated. All others may pass, since each library has errors of its own.
_STAY = (
    FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, RuntimeError, TypeError, ValueError,
    LookupError, AttributeError, ImportError, MemoryError,
)  # fmt: skip
# The server asks for the same request later: Request Timeout, Too Early, Too Many Requests.
_STATUSES_THAT_PASS = (408, 425, 429)
# Errors of libraries that have no status: obstore's and those about credentials of botocore, google-auth and
# azure-identity by their names, pyarrow's by their texts.
_STATUSES = {
    "NotFoundError": 404, "PermissionDeniedError": 403, "UnauthenticatedError": 401, "InvalidPathError": 400,
    "NotSupportedError": 501, "PreconditionError": 412, "UnknownConfigurationKeyError": 400,
    "NoCredentialsError": 401, "PartialCredentialsError": 401, "ProfileNotFound": 401, "NoAuthTokenError": 401,
    "SSOTokenLoadError": 401, "UnauthorizedSSOTokenError": 401, "DefaultCredentialsError": 401,
    "CredentialUnavailableError": 401, "ClientAuthenticationError": 401, "TooManyRedirects": 400,
    "NonHttpUrlRedirectClientError": 400,
}  # fmt: skip
_STATUS_IN_TEXT = re.compile(r"\b(?:status(?: code)?|HTTP(?: status)?)[ :]+([45]\d\d)\b", re.IGNORECASE)
_REFUSED_IN_TEXT = re.compile(r"AWS Error \w*(ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE|TOKEN|UNRECOGNIZED_CLIENT)")
_MISSING_IN_TEXT = re.compile(r"AWS Error \w*(NO_SUCH_BUCKET|NO_SUCH_KEY|NOT_FOUND)")


class ShortReadError(OSError):
    """A store returned less than was requested, as after a broken connection."""


def may_pass(error: BaseException) -> bool:
    """Return whether the same request may succeed later.

    The status of HTTP decides, if the error or its cause has one: libraries turn it into errors of all kinds.

    Example:
        >>> may_pass(ConnectionResetError()), may_pass(PermissionError()), may_pass(TimeoutError())
        (True, False, True)
    """
    for found in _causes_of(error):
        if type(found).__module__.startswith("aiohttp.http"):
            return True  # the answer was cut off or garbled
        if isinstance(found, socket.gaierror):
            # A host without an address stays unknown; other failures of the name server may pass.
            return found.errno != socket.EAI_NONAME
        if getattr(found, "reason", None) == "WRONG_VERSION_NUMBER":
            return False  # the server speaks no TLS
        status = _status_of(found)
        if status is not None:
            return (status >= 500 and status != 501) or status in _STATUSES_THAT_PASS
    # The error about a missing object has no cause; with a cause, another error was converted to it.
    root = [*_causes_of(error)][-1] if isinstance(error, FileNotFoundError) else error
    return not isinstance(root, _STAY)


def _causes_of(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _answer_of(error: BaseException) -> Mapping[str, Any]:
    """Return what the libraries of S3 tell about the answer of the server."""
    response = getattr(error, "response", None)
    found = response.get("ResponseMetadata") if isinstance(response, dict) else None
    return found if isinstance(found, dict) else {}


def _status_of(error: BaseException) -> int | None:
    """Return the status of HTTP of an error, or the status that corresponds to the error."""
    told = (getattr(error, name, None) for name in ("status", "status_code", "code"))
    known = (_answer_of(error).get("HTTPStatusCode"), _STATUSES.get(type(error).__name__))
    for status in itertools.chain(known, told):
        if isinstance(status, int) and 400 <= status <= 599:
            return status
    text = str(error)
    if _REFUSED_IN_TEXT.search(text):
        return 403
    if _MISSING_IN_TEXT.search(text):
        return 404
    found = _STATUS_IN_TEXT.search(text)
    return None if found is None else int(found[1])


def _told_pause(error: BaseException) -> float:
    """Return the number of seconds after which the server wants the next request; 0: it does not say so."""
    for found in _causes_of(error):
        headers = getattr(found, "headers", None) or _answer_of(found).get("HTTPHeaders") or {}
        told = {str(name).lower(): str(value) for name, value in dict(headers).items()}.get("retry-after", "")
        # The header `Retry-After` contains seconds or a date.
        if told.isdecimal():
            return float(told)
        with suppress(ValueError, TypeError):
            return float(parsedate_to_datetime(told).timestamp() - time.time())
    return 0.0


def _pause_after(error: BaseException, num_errors: int) -> float:
    """Return how long to wait before a request is repeated: as the server says, or longer after each error."""
    # Random, so that many processes do not return at once.
    pause = min(math.ldexp(FIRST_PAUSE, num_errors - 1), _LONGEST_PAUSE) * random.uniform(0.75, 1.0)
    return max(pause, min(_told_pause(error), _LONGEST_TOLD_PAUSE))


def wait(event: threading.Event, seconds: float) -> None:
    """Wait for an event. Tests replace this function, so that they need not wait."""
    event.wait(seconds)


class RemoteObject:
    """An object of a remote store that any thread reads by position.

    Args:
        path: A URL, or a path in the store of `remote`.
        facts: Its facts if they are known, as at an earlier opening. It is compared with them after its first read.

    Attributes:
        name: Name used in messages.
        identity: The object for caches; see `cntkio.storage.remote`.
        facts: Size and version when it was opened.
    """

    def __init__(self, path: str, remote: Remote | None = None, facts: ObjectFacts | None = None) -> None:
        self._remote = remote or default_remote()
        self._stored = stored_object(path, self._remote)
        self.name, self.identity = self._stored.name, self._stored.identity
        self._lock = ForkLock()
        self._asking = ForkLock()
        self._num_made = 0  # requests that were answered
        self._num_sound = 0  # how many of the first answers are known to be of the version in `facts`
        self._num_failed = 0  # requests that were given up
        self._has_complained = False
        self._failure: OSError | None = None  # the error of the last request that was given up
        self.facts = facts or self._ask_for_facts()

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes of a range. `CorpusError`: the object was changed or deleted, if the store reported that."""
        return filled(self.read_into, begin, end).tobytes()

    def read_into(self, buffer: Bytes, offset: int) -> None:
        """Fill a buffer from an offset on. Raises the errors of `read`."""
        # Parts of equal size, so that the parallel requests take about the same time.
        bounds = np.linspace(offset, offset + len(buffer), 1 + -(-len(buffer) // PART)).astype(np.int64).tolist()
        ranges = list(itertools.pairwise(bounds))
        is_given_up = threading.Event()
        # An interrupt does not wait for the threads, which end after their current requests.
        workers = Workers(min(len(ranges), self._remote.num_requests), "cntkio-request")
        try:
            jobs = [workers.do(self._request, begin, end, is_given_up) for begin, end in ranges]
            for (begin, end), job in zip(ranges, jobs, strict=True):
                buffer[begin - offset : end - offset] = np.frombuffer(job.result(), np.uint8)
        finally:
            is_given_up.set()

    def _request(self, begin: int, end: int, is_given_up: threading.Event) -> Any:
        def request() -> Any:
            content = self._stored.read(begin, end, self.facts.version)
            if len(content) < end - begin:
                raise ShortReadError(f"the store returned {len(content)} bytes; expected {end - begin}")
            if len(content) > end - begin:
                what = f"the store returned {len(content)} bytes; expected {end - begin}"
                raise NotImplementedError(f"{what}: it ignores ranges, so copy the file to a local disk")
            return content

        try:
            content = self._ask(f"bytes {begin} to {end}", request, self._remote.slots, is_given_up)
        except OSError as error:
            cause = error.__cause__ or error.__context__
            if isinstance(cause, ShortReadError) or (cause is not None and not may_pass(cause)):
                self.compare()  # a change explains the error better
            raise
        with self._lock.inner:
            self._num_made += 1
        return content

    def require_unchanged(self) -> None:
        """Ask the store whether the object is unchanged, unless the answers to all reads have confirmed it.

        Threads that ask at the same time share an answer. Each thread waits for a request that began after its reads.
        """
        num_made = 0 if self._stored.is_conditional else self._num_made
        num_failed = self._num_failed
        if self._num_sound < num_made:
            with self._asking.inner:
                self._share_failure(num_failed)
                if self._num_sound < num_made:
                    self.compare()

    def compare(self) -> None:
        """Ask the store whether the object is unchanged. `CorpusError`: it was changed or deleted."""
        # Read before the request, because ranges that arrive during the request may be of a later version.
        num_made = self._num_made
        try:
            facts = self._ask_for_facts()
        except FileNotFoundError as error:
            raise changed(self.name, ": it was deleted") from error
        if facts != self.facts:
            sizes = f" ({self.facts.size} bytes when opened, {facts.size} now)" if facts.size != self.facts.size else ""
            raise changed(self.name, sizes)
        with self._lock.inner:
            self._num_sound = max(self._num_sound, num_made)

    def _ask_for_facts(self) -> ObjectFacts:
        # On another thread, because an interrupt could reach a request in the main thread.
        request = self._stored.facts, nullcontext(), threading.Event()
        facts: ObjectFacts = Workers(1, "cntkio-request").do(self._ask, "its facts", *request).result()
        return facts

    def _ask(
        self, what: str, request: Callable[[], Any], slots: AbstractContextManager[None], is_given_up: threading.Event
    ) -> Any:
        """Make a request, and repeat it after errors that may pass. The last error names the object and `what`.

        When a request is given up, all other requests are given up at their next error: otherwise each of them would
        wait just as long for a store that does not answer.
        """
        num_failed, num_errors = self._num_failed, 0
        while True:
            num_errors += 1
            # The slot is free during the pause, so that other objects are read in the meantime.
            with slots:
                # Waiting for the slot may have taken long, and the store may have been given up in that time.
                self._share_failure(num_failed)
                if is_given_up.is_set():
                    raise InterruptedError(errno.EINTR, "The read that made the request has ended", self.name)
                try:
                    return request()
                except CntkIoError:
                    raise
                except Exception as error:
                    failure = self._named(error, what, num_errors)
                    cause = None if self._stored.is_secret else error
                    if not may_pass(error) or self._num_failed > num_failed:
                        raise failure from cause
                    if num_errors > self._remote.num_retries:
                        with self._lock.inner:
                            self._failure = failure
                            self._num_failed += 1
                        raise failure from cause
                    pause, reason = _pause_after(error, num_errors), failure.strerror
            if pause >= _PAUSE_TO_REPORT and not self._has_complained:
                self._has_complained = True
                logger.warning("%s: %s; it is tried again", self.name, reason)
            wait(is_given_up, pause)

    def _share_failure(self, num_failed: int) -> None:
        """Raise the error of a request that was given up after `num_failed` others."""
        failure = self._failure
        if self._num_failed > num_failed and failure is not None:
            raise OSError(failure.errno, failure.strerror, failure.filename) from failure

    def _named(self, error: Exception, what: str, num_tries: int) -> OSError:
        """Return the `OSError` that corresponds most closely to an error of a store's library."""
        causes = list(_causes_of(error))
        told = next((cause for cause in causes if _status_of(cause) is not None), causes[-1])
        status = _status_of(told)
        is_late = status is None and isinstance(error, TimeoutError)
        reason = f"no answer in {self._remote.timeout_in_seconds:g} s" if is_late else reason_of(told)
        is_missing = status in (404, 410) if status else isinstance(error, FileNotFoundError) and len(causes) == 1
        if is_missing:
            hint = hint_on_memory(self.name, self._remote)
            return FileNotFoundError(errno.ENOENT, f"No such object{hint}", self.name)
        if status in (401, 403) or isinstance(error, PermissionError):
            return PermissionError(errno.EACCES, f"The store refuses {what} ({reason}); {_ADVICE}", self.name)
        if isinstance(error, IsADirectoryError):
            return IsADirectoryError(errno.EISDIR, "Is a folder; expected a file", self.name)
        tried = f" after {num_tries} tries" if num_tries > 1 else ""
        return OSError(errno.ETIMEDOUT if is_late else errno.EIO, f"Cannot read {what}{tried} ({reason})", self.name)


def write_object(path: str, content: bytes, remote: Remote | None = None) -> str:
    """Write an object, and return its name. Raises the errors of `stored_object`, or `OSError`."""
    stored = stored_object(path, remote)
    try:
        stored.write(content)
    except OSError:
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"The store does not accept it ({reason_of(error)})", stored.name) from error
    return stored.name

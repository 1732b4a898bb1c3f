"""Manifests: all that opening a corpus needs of its files, in one object. (docs/remote-stores.md, "A manifest")

::

    magic │ size and checksum of the table │ table (JSON) │ index cache │ bytes of a file │ index cache │ ...

With `Remote(manifest=...)` opening asks the store for the manifest alone. A text or a table has its index cache in it.
A format without an index cache, such as a binary corpus, has the bytes that its opening reads: they are noted while
the command opens the corpus. Each file is compared with the facts in the manifest when it is first read, as with the
facts of any opening, so that a changed file is an error; a file of which the manifest has all bytes, such as a list,
is compared at the first read of data. The table has checksums of names, not names, because the query of a URL may
grant access.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from cntkio._threads import ForkLock, Workers
from cntkio.errors import ConfigError
from cntkio.storage.index_cache import CacheFiles, sum_of
from cntkio.storage.names import as_url, shown
from cntkio.storage.output_file import AnyPath, write_whole
from cntkio.storage.progress import logger
from cntkio.storage.remote import Remote, RequestSlots, default_remote, without_access
from cntkio.storage.stores import RemoteFiles, RemoteObject
from cntkio.storage.text_input import Bytes, Companions, ListedText

_MAGIC = b"cntkio manifest 1\n"
_SIZE_AND_SUM = struct.Struct("<QQ")
_START = len(_MAGIC) + _SIZE_AND_SUM.size
MOST_KEPT = 64 << 20
"""Bytes that are read at once, and kept. What a machine lacks beyond them is requested alone."""
_COMPARED_AT_ONCE = 8
_SUM_SIZE = 8
_BYTES = "bytes "
"""The beginning of the name of a request's bytes, among the endings of index caches. Their checksum precedes them."""


def key_in_manifest(path: str) -> str:
    """Return a checksum of the name of a file in a store."""
    return hashlib.blake2b(without_access(as_url(path)).encode(), digest_size=12).hexdigest()


class Manifest:
    """A manifest that is open. One that is damaged lists no file, which costs only time.

    Raises:
        OSError: It cannot be read.
    """

    def __init__(self, path: str, remote: Remote) -> None:
        self._object = RemoteObject(as_url(path), remote)
        self._content = self._object.read(0, min(self._object.facts.size, MOST_KEPT))
        self._files: dict[str, tuple[ListedText, dict[str, tuple[int, int]]]] = {}
        self._lock, self._believed = ForkLock(), dict[str, RemoteObject]()
        try:
            length, check_sum = _SIZE_AND_SUM.unpack_from(self._content, len(_MAGIC))
            text, self._begin = self._content[_START : _START + length], _START + length
            if not self._content.startswith(_MAGIC) or sum_of(text) != check_sum:
                raise ValueError("it is not a manifest, or its table is damaged")
            for key, (size, version, head, caches) in json.loads(text).items():
                places = {str(ending): (int(begin), int(end)) for ending, (begin, end) in caches.items()}
                # A file of a wrong size 0 would be left out: nothing of it is read, so nothing would show the error.
                if int(size) > 0:
                    self._files[key] = ListedText(key, int(size), str(version), bytes.fromhex(head)), places
        except (ValueError, TypeError, AttributeError, struct.error, RecursionError) as problem:
            logger.warning("%s: the manifest is not used: %s", shown(path), problem)
            self._files.clear()

    def lists(self, path: str) -> bool:
        """Return whether a file is in the manifest."""
        return key_in_manifest(path) in self._files

    def listed(self, path: str) -> ListedText | None:
        """Return what the manifest says about a file; None: it does not list the file."""
        return self._files.get(key_in_manifest(path), (None, {}))[0]

    def companions(self, path: str, others: Companions) -> Companions:
        """Return the companions of a file: those in the manifest and, if it lacks one, those next to the file."""
        return _InManifest(self, self._files.get(key_in_manifest(path), (None, {}))[1], others)

    def content(self, begin: int, end: int) -> bytes:
        """Return bytes after the table; none if they are beyond its end, as of a damaged table."""
        begin, end = self._begin + begin, self._begin + end
        if not self._begin <= begin <= end <= self._object.facts.size:
            return b""
        return self._content[begin:end] if end <= len(self._content) else self._object.read(begin, end)

    def believe(self, file: RemoteObject) -> None:
        """Compare a file at the next `compare`: it was read from the manifest alone."""
        with self._lock.inner:
            self._believed[file.name] = file

    def compare(self) -> None:
        """Compare the files that were read from the manifest alone with the store. Raises `CorpusError`, `OSError`."""
        if not self._believed:
            return
        with self._lock.inner:
            believed = list(self._believed.values())
        with Workers(min(len(believed), _COMPARED_AT_ONCE), "cntkio-facts") as workers:
            for job in [workers.do(file.compare) for file in believed]:
                job.result()
        # Last, so that a change is an error at each read.
        with self._lock.inner:
            for file in believed:
                self._believed.pop(file.name, None)


class _InManifest:
    """The companions of a text in a manifest, or else next to it; `Companions` of the text."""

    def __init__(self, manifest: Manifest, places: Mapping[str, tuple[int, int]], others: Companions) -> None:
        self._manifest, self._places, self._others = manifest, places, others
        self.listing = others.listing

    def read(self, ending: str) -> bytes | None:
        place = self._places.get(ending)
        return self._others.read(ending) if place is None else self._manifest.content(*place)

    def write(self, ending: str, content: bytes) -> str:
        return self._others.write(ending, content)

    def known(self, request: str) -> bytes | None:
        place = self._places.get(_BYTES + request)
        content = b"" if place is None else self._manifest.content(*place)
        check_sum, content = content[:_SUM_SIZE], content[_SUM_SIZE:]
        return content if check_sum == _sum_in_bytes(content) else None

    def note(self, request: str, content: Bytes | bytes) -> None:
        return


class NewManifest:
    """A manifest that is to be written.

    Attributes:
        name: Its name for messages.
    """

    def __init__(self, path: AnyPath) -> None:
        self._path = as_url(str(path))
        self.name = shown(self._path)
        self._files: dict[str, tuple[int, str, str, dict[str, tuple[int, int]]]] = {}
        self._parts: list[bytes] = []
        self._size = 0
        self._noted = dict[str, tuple[Companions, dict[str, bytes]]]()

    def add(self, caches: CacheFiles) -> str | None:
        """Add a file in a store and its caches, and return the name of the manifest; None: it has no index cache.

        Raises:
            ConfigError: The file is local, or the store reports no version, so that no change would be noticed.
        """
        self._add(caches.companions, caches.contents())
        return self.name if caches.indexes else None

    def _add(self, companions: Companions | None, parts: Mapping[str, bytes]) -> None:
        if companions is None:
            raise ConfigError("a manifest is for files in a remote store (scheme://...)", key="manifest")
        listing = companions.listing()
        if not listing.version:
            what = "the store reports neither versions nor times, so a manifest would not show that a file was changed"
            raise ConfigError(what, key="manifest")
        places = {}
        for name, content in parts.items():
            places[name] = self._size, self._size + len(content)
            self._size += len(content)
            self._parts.append(content)
        self._files[listing.key] = listing.size, listing.version, listing.head.hex(), places

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Add the files of stores that the block opens, with the bytes that it asks for.

        Raises:
            ConfigError: No file is in a store, or as for `add`.
        """
        slots = default_remote().slots
        with _lock.inner:
            _opened[slots] = self
        try:
            yield
        finally:
            with _lock.inner:
                del _opened[slots]
        for companions, answers in self._noted.values() or [(None, {})]:
            self._add(companions, {_BYTES + name: _sum_in_bytes(answer) + answer for name, answer in answers.items()})

    def lists(self, path: str) -> bool:
        """Return whether a path is a file in the store: a manifest that is to be written lists none."""
        return RemoteFiles(None).is_file(path)

    def listed(self, path: str) -> ListedText | None:
        """Return None: the facts of a file are not known yet."""
        return None

    def companions(self, path: str, others: Companions) -> Companions:
        """Return the companions of a file, which note the answers to requests."""
        return _Noting(others, self._noted.setdefault(path, (others, {}))[1])

    def believe(self, file: RemoteObject) -> None:
        """Do nothing: no file is read from this manifest."""

    def compare(self) -> None:
        """Do nothing: no file was read from this manifest."""

    def write(self) -> None:
        """Write the manifest, in one step. Raises `OSError`."""
        text = json.dumps(self._files).encode()
        write_whole(self._path, [_MAGIC, _SIZE_AND_SUM.pack(len(text), sum_of(text)), text, *self._parts])


class _Noting:
    """The companions of a file of a new manifest; `Companions` of the file."""

    def __init__(self, others: Companions, answers: dict[str, bytes]) -> None:
        self._answers = answers
        self.listing, self.read, self.write, self.known = others.listing, others.read, others.write, others.known

    def note(self, request: str, content: Bytes | bytes) -> None:
        # A longer answer to the same request has the shorter one.
        if len(content) > len(self._answers.get(request, b"")):
            self._answers[request] = bytes(content)


# The slots are the part of `Remote` that is the same in each copy and in no other.
_opened: WeakKeyDictionary[RequestSlots, Manifest | NewManifest] = WeakKeyDictionary()
_lock = ForkLock()


def manifest_of(remote: Remote | None) -> Manifest | NewManifest | None:
    """Return the manifest of some options, which is read once in each process; None: they have none."""
    remote = remote or default_remote()
    with _lock.inner:
        if remote.slots not in _opened and remote.manifest is not None:
            _opened[remote.slots] = Manifest(str(remote.manifest), remote)
        return _opened.get(remote.slots)


def comparison(remote: Remote) -> Callable[[], None]:
    """Return `Manifest.compare` of the manifest of some options, or a function that does nothing."""
    manifest = manifest_of(remote)
    return _compare_nothing if manifest is None else manifest.compare


def _compare_nothing() -> None:
    return


def _sum_in_bytes(content: bytes) -> bytes:
    return sum_of(content).to_bytes(_SUM_SIZE, "little")

"""Manifests: facts and index caches of all files of a corpus in one object. (docs/remote-stores.md, "A manifest")

::

    magic │ size and checksum of the table │ table (JSON) │ index cache │ index cache │ ...

With `Remote(manifest=...)` opening asks the store for the manifest alone. Each file is compared with the facts in the
manifest when it is first read, as with the facts of any opening, so that a changed file is an error. The table has
checksums of names, not names, because the query of a URL may grant access.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from cntkio._threads import ForkLock
from cntkio.errors import ConfigError
from cntkio.storage.index_cache import CacheFiles, sum_of
from cntkio.storage.names import as_url, shown
from cntkio.storage.output_file import AnyPath, write_whole
from cntkio.storage.progress import logger
from cntkio.storage.remote import Remote, RequestSlots, default_remote, without_access
from cntkio.storage.stores import RemoteObject
from cntkio.storage.text_input import Companions, ListedText

_MAGIC = b"cntkio manifest 1\n"
_SIZE_AND_SUM = struct.Struct("<QQ")
_START = len(_MAGIC) + _SIZE_AND_SUM.size
MOST_KEPT = 64 << 20
"""Bytes that are read at once, and kept. A machine that lacks an index cache beyond them requests it alone."""


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
        try:
            length, check_sum = _SIZE_AND_SUM.unpack_from(self._content, len(_MAGIC))
            text, self._begin = self._content[_START : _START + length], _START + length
            if not self._content.startswith(_MAGIC) or sum_of(text) != check_sum:
                raise ValueError("it is not a manifest, or its table is damaged")
            for key, (size, version, head, caches) in json.loads(text).items():
                places = {str(ending): (int(begin), int(end)) for ending, (begin, end) in caches.items()}
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
        """Return bytes after the table."""
        begin, end = self._begin + begin, self._begin + end
        return self._content[begin:end] if end <= len(self._content) else self._object.read(begin, end)


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


# The slots are the part of `Remote` that is the same in each copy and in no other.
_opened: WeakKeyDictionary[RequestSlots, Manifest] = WeakKeyDictionary()
_lock = ForkLock()


def manifest_of(remote: Remote | None) -> Manifest | None:
    """Return the manifest of some options, which is read once in each process; None: they have none."""
    remote = remote or default_remote()
    if remote.manifest is None:
        return None
    with _lock.inner:
        if remote.slots not in _opened:
            _opened[remote.slots] = Manifest(str(remote.manifest), remote)
        return _opened[remote.slots]


class NewManifest:
    """A manifest that is to be written."""

    def __init__(self, path: AnyPath) -> None:
        self._path = as_url(str(path))
        self._files: dict[str, tuple[Any, ...]] = {}
        self._caches: list[bytes] = []
        self._size = 0

    def add(self, caches: CacheFiles) -> str | None:
        """Add a file in a store and its caches, and return the name of the manifest; None: it has no index cache.

        Raises:
            ConfigError: The file is local, or the store reports no version, so that no change would be noticed.
        """
        if caches.companions is None:
            raise ConfigError("a manifest is for files in a remote store (scheme://...)", key="manifest")
        listing = caches.companions.listing()
        if not listing.version:
            what = "the store reports neither versions nor times, so a manifest would not show that a file was changed"
            raise ConfigError(what, key="manifest")
        places = {}
        for ending, content in caches.contents().items():
            places[ending] = self._size, self._size + len(content)
            self._size += len(content)
            self._caches.append(content)
        self._files[listing.key] = listing.size, listing.version, listing.head.hex(), places
        return shown(self._path) if caches.indexes else None

    def write(self) -> None:
        """Write the manifest, in one step. Raises `OSError`."""
        text = json.dumps(self._files).encode()
        write_whole(self._path, [_MAGIC, _SIZE_AND_SUM.pack(len(text), sum_of(text)), text, *self._caches])

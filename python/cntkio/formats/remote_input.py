"""Texts in remote stores.

Each request to a store waits, so bytes that several steps of opening need are kept: the first bytes and, from the pass
that makes the index, samples of the content, whose checksum is part of the fingerprint.
"""

from __future__ import annotations

from typing import Any

from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.block_cache import CachedObject, cache_folder
from cntkio.formats.remote import Remote, default_remote
from cntkio.formats.stores import RemoteObject, write_object
from cntkio.formats.text_input import SAMPLE_SIZE, WINDOW, Bytes, CoreText, Storage, content_sum, filled, sample_offsets

HEAD = 64 << 10
"""Bytes at the beginning that are kept, because several steps of opening read them."""
LEAST_GAP = 1 << 20
"""Number of bytes that take about as long to read as a request waits for its answer."""


def _cached(found: RemoteObject, remote: Remote) -> CachedObject:
    if not found.facts.version:
        raise ConfigError(
            f"{found.name}: the store reports neither a version nor a time of the last change, so a cache would not "
            "notice changes; read without a cache",
            key="cache",
        )
    size, version = found.facts
    return CachedObject(cache_folder(remote), found.identity, version, size, found.read_into, found.require_unchanged)


class RemoteCompanions:
    """The objects next to an object; `Companions` of its text."""

    def __init__(self, path: str, remote: Remote) -> None:
        self._path, self._remote = path, remote

    def read(self, ending: str) -> bytes | None:
        try:
            found = RemoteObject(self._path + ending, self._remote)
            content = found.read(0, found.facts.size)
            # The index can always be made again, so an object that changes during the read counts as missing.
            found.require_unchanged()
        except (OSError, CorpusError):
            return None
        return content

    def write(self, ending: str, content: bytes) -> str:
        return write_object(self._path + ending, content, self._remote)


class RemoteInput:
    """A text in a remote store, a `TextInput`.

    Args:
        path: A URL, or a path in the store of `remote`.

    Raises:
        ConfigError: The library for the store is not installed, or the options do not fit the store.
        OSError: The object does not exist or cannot be read, or the folder of the cache cannot be created.
    """

    reach = WINDOW

    def __init__(self, path: str, remote: Remote | None = None) -> None:
        remote = remote or default_remote()
        self._object = RemoteObject(path, remote)
        self._reader = self._object if remote.cache is None else _cached(self._object, remote)
        self.path, self.size = self._object.name, self._object.facts.size
        self.require_unchanged = self._reader.require_unchanged
        self.storage = Storage(
            self._object.identity,
            companions=RemoteCompanions(path, remote),
            stamp=self._object.facts,
            least_gap=LEAST_GAP if remote.cache is None else None,
            num_requests=remote.num_requests,
        )
        self._head = b""
        self._content = ""
        self._samples: dict[int, bytes | None] = dict.fromkeys(sample_offsets(self.size))

    def read(self, offset: int, size: int) -> bytes:
        end = min(offset + size, self.size)
        if offset >= end:
            return b""
        if end <= HEAD:
            if not self._head:
                self._head = filled(self._fetch_into, 0, min(HEAD, self.size)).tobytes()
            return self._head[offset:end]
        # The checksum needs each sample once, so it is released here.
        sample = self._samples.pop(offset, None) if size == SAMPLE_SIZE else None
        return filled(self._fetch_into, offset, end).tobytes() if sample is None else sample

    def read_into(self, buffer: Bytes, offset: int) -> int:
        size = max(min(len(buffer), self.size - offset), 0)
        if size:
            self._fetch_into(buffer[:size], offset)
        return size

    def _fetch_into(self, buffer: Bytes, begin: int) -> None:
        self._reader.read_into(buffer, begin)
        # A copy of the items, because another thread may take a sample in the meantime.
        for offset, sample in list(self._samples.items()):
            if sample is None and begin <= offset and offset + SAMPLE_SIZE <= begin + len(buffer):
                self._samples[offset] = buffer[offset - begin :][:SAMPLE_SIZE].tobytes()

    def source(self, begin: int, end: int) -> CoreText:
        return filled(self.read_into, begin, max(begin, min(end, self.size))), begin

    source_to_parse = source

    def facts(self, *, verify: bool = False) -> dict[str, Any]:
        """Return size and version, as the store reports them now; without a version, also a checksum of samples."""
        self._object.require_unchanged()
        found = {"size": self.size, "version": self._object.facts.version}
        if not found["version"]:
            # The checksum may take a request for each sample, so it is computed once.
            self._content = found["content"] = self._content or content_sum(self)
        return found

    def close(self) -> None:
        self._samples.clear()

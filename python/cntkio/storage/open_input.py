"""Opening of texts and other files, wherever and however they are stored.

A text that is compressed with gzip or zstd is read where it is, in any order. Everything else is unpacked once, from
the beginning to the end. The first bytes, not the name of a file, show its compression.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from cntkio._threads import ForkLock, Workers
from cntkio.errors import ConfigError, CorpusError
from cntkio.storage.block_cache import CachedObject, cache_folder
from cntkio.storage.compressed import ENDINGS, first_text, open_compressed, packing_of, text_pieces, unpacked
from cntkio.storage.file_lists import listed_files, lister_of, sizes_of
from cntkio.storage.index_cache import IndexCache
from cntkio.storage.manifest import Manifest, NewManifest, key_in_manifest, manifest_of
from cntkio.storage.names import FileNames, as_url, is_remote, located
from cntkio.storage.progress import announced, passed
from cntkio.storage.remote import Remote, default_remote
from cntkio.storage.stores import PART, ObjectFacts, RemoteObject, write_object
from cntkio.storage.text_input import (
    LOADS_AT_ONCE,
    SAMPLE_SIZE,
    WINDOW,
    Bytes,
    Companions,
    CoreText,
    InputFile,
    ListedText,
    Storage,
    TextInput,
    compression_in,
    content_sum,
    filled,
    sample_offsets,
    unmarked,
)


def loads_at_once(num_requests: int, chunk_size: int) -> int:
    """Return how many chunks to load at once, so that all requests are under way while other chunks are parsed."""
    return LOADS_AT_ONCE + 2 * num_requests // max(chunk_size // PART, 1)


def read_ranges(text: TextInput, ranges: Sequence[tuple[int, Bytes]]) -> None:
    """Fill buffers, each from an offset; the offsets ascend.

    A store gets one request for ranges that are close together, and several requests at the same time.
    """
    companions = text.storage.companions
    if not text.storage.num_requests or companions is None:
        for offset, buffer in ranges:
            text.read_into(buffer, offset)
        return
    ends = np.cumsum([0, *(len(buffer) for _, buffer in ranges)]).tolist()
    known = companions.known(_RANGES)
    if known is not None and len(known) == ends[-1]:
        for (_, buffer), begin in zip(ranges, ends, strict=False):
            buffer[:] = np.frombuffer(known, np.uint8, len(buffer), begin)
        return
    runs: list[list[tuple[int, Bytes]]] = []
    for offset, buffer in ranges:
        (first, _), (last, before) = (runs[-1][0], runs[-1][-1]) if runs else ((-WINDOW, buffer), (-WINDOW, buffer))
        # A run is short enough that the bytes between its ranges take little memory.
        if offset - (last + len(before)) >= LEAST_GAP or offset + len(buffer) - first > WINDOW:
            runs.append([])
        runs[-1].append((offset, buffer))

    def read(run: list[tuple[int, Bytes]]) -> None:
        (first, _), (last, buffer) = run[0], run[-1]
        found = filled(text.read_into, first, last + len(buffer))
        for offset, buffer in run:
            buffer[:] = found[offset - first :][: len(buffer)]

    with announced("indexing", len(runs)), Workers(text.storage.num_requests, "cntkio-ranges") as workers:
        for job in [workers.do(read, run) for run in runs]:
            job.result()
            passed(1)
    companions.note(_RANGES, b"".join(buffer.tobytes() for _, buffer in ranges))


_RANGES = "ranges"
"""The name, among the requests of an opening, of all ranges that it asks for together."""
_MAGIC_SIZE = 4


def open_input(
    path: str, remote: Remote | None = None, *, cache_index: bool | str = False, guide: object = None,
    indexed_as: Mapping[str, Any] | None = None,
) -> TextInput:  # fmt: skip
    """Open a text where it is. Its first bytes, not its name, decide whether it is compressed.

    Args:
        path: A path, or the URL of an object in a remote store.
        cache_index: Whether to keep the access points of a compressed file in a cache, as for `CTFDeserializer`.
        guide: `Storage.guide` of the same text when it was last open.
        indexed_as: Settings of an index cache. If this machine has it for an object of a store, as it is stored, the
            object is not compressed, and its first bytes are not requested.

    Raises:
        OSError: The text cannot be read, as for `open_to_read`.
        ConfigError: The remote store is of an unknown kind.
        FormatError: The text is compressed, and the data are damaged.

    Example:
        >>> open_input("examples/iris/iris.ctf").read(0, 10)
        b'|species 1'
    """
    stored = open_stored(path, remote)
    try:
        if indexed_as is not None and stored.storage.local_path is None and IndexCache(stored, indexed_as).is_here():
            return stored
        compression = compression_in(stored.read(0, _MAGIC_SIZE))
        if compression is None:
            return stored
        text = open_compressed(stored, compression, cache_index, guide)
        remote = remote or default_remote()
        # Also for a local file: the cache keeps the text of frames that are too large to be read in any order.
        if remote.cache is not None:
            text.keep_in(cache_folder(remote))
        return text
    except BaseException:
        stored.close()
        raise


def open_stored(path: str, remote: Remote | None = None, facts: object = None) -> TextInput:
    """Open a file as it is stored, compressed or not. Arguments and exceptions as for `open_input`.

    Args:
        facts: `Storage.stamp` of an earlier opening. An object of a store is compared with it at its first read.
    """
    # Most paths are local, and have no colon.
    if (remote is None and ":" not in path) or not is_remote(path, remote):
        return InputFile(path)
    return RemoteInput(as_url(path), remote, facts, manifest_of(remote))


def one_file(names: FileNames, remote: Remote | None = None) -> str | None:
    """Return the path if the names are the path of one local file that exists; None: `listed_files` lists the files.

    A file whose name looks like a pattern counts, since the pattern then means this file.

    Example:
        >>> one_file("examples/iris/iris.ctf"), one_file("examples/iris/*.ctf")
        ('examples/iris/iris.ctf', None)
    """
    if not isinstance(names, str | os.PathLike) or (remote is not None and remote.store is not None):
        return None
    path = os.fspath(names)
    return path if os.path.isfile(path) else None  # noqa: PTH113 - a `Path` takes longer


def files_named(names: FileNames, remote: Remote | None = None) -> tuple[Sequence[str], Remote | None]:
    """Return the files that the caller names, as `listed_files` does, and how to read them."""
    names, remote = located("path", names, remote)
    file = one_file(names, remote)
    return listed_files(names, option="path", remote=remote) if file is None else [file], remote


def all_bytes(path: str | os.PathLike[str], remote: Remote | None = None) -> bytes:
    """Return the whole content of a file, as it is stored. Raises the errors of `open_stored`."""
    with closing(open_stored(os.fspath(path), remote)) as stored:
        content = stored.read(0, stored.size)
        stored.storage.require_unchanged()
        return content


def whole_text(path: str | os.PathLike[str], remote: Remote | None = None) -> bytes:
    """Return the whole content of a text, without a byte order mark.

    Raises:
        FormatError: As for `unmarked`.
        OSError: As for `open_stored`.
    """
    return b"".join(unmarked(os.fspath(path), [all_bytes(path, remote)]))


class KeptObjects:
    """The objects of stores that were opened last, which stay open: to open one of them again takes no request.

    Any thread may open objects. An object that has changed since it was first open is an error at its next read.

    Attributes:
        remote: How stores are read, by default as the caller reads them.
    """

    def __init__(self, remote: Remote | None) -> None:
        self.remote, self._lock = remote or default_remote(), ForkLock()
        self._kept, self._stamps = OrderedDict[str, TextInput](), dict[str, object]()

    def has(self, path: str) -> bool:
        """Return whether a path names an object in a store."""
        return (":" in path or self.remote.store is not None) and is_remote(path, self.remote)

    def requests_for(self, paths: Iterable[str]) -> int:
        """Return the number of requests to keep under way while these files are read; 0: a file is local."""
        return self.remote.num_requests if all(map(self.has, paths)) else 0

    def open(self, path: str) -> TextInput:
        """Open an object as it is stored. Raises the errors of `open_stored`."""
        with self._lock.inner:
            kept = self._kept.get(path)
            if kept is not None:
                self._kept.move_to_end(path)
                return kept
        text = open_stored(path, self.remote, self._stamps.get(path))
        with self._lock.inner:
            self._stamps[path], self._kept[path] = text.storage.stamp, text
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return text


MOST_KEPT = 128
"""Objects of a corpus that stay open; each takes at most 0.4 MB."""
_T = TypeVar("_T")
_Item = TypeVar("_Item")


def ahead(work: Callable[[_Item], _T], items: Iterable[_Item], num_threads: int) -> Iterator[Callable[[], _T]]:
    """Yield, for each item, a function that returns the result of the work, or raises its error.

    The threads work on later items at the same time; with 0 threads, the function itself does the work.

    Example:
        >>> [result() for result in ahead(abs, [-1, 2], 4)], [result() for result in ahead(abs, [-1, 2], 0)]
        ([1, 2], [1, 2])
    """
    if not num_threads:
        yield from (partial(work, item) for item in items)
        return
    with Workers(num_threads, "cntkio-objects") as workers:
        coming = deque(workers.do(work, item) for item in items)
        while coming:
            yield coming.popleft().result


def presumed_sizes(paths: Sequence[str], remote: Remote | None) -> list[int]:
    """Return the size of each text in bytes, without opening any; 0 if it is in a store, or has a compressed name."""
    return [0 if path.lower().endswith(ENDINGS) else lister_of(path, remote).size(path) for path in paths]


def text_sizes(paths: Sequence[str]) -> list[int]:
    """Return the size of each text in bytes; 0 if only opening would show it: the text is compressed, or in a store."""
    sizes = zip(paths, sizes_of(paths), strict=True)
    return [0 if not size or is_compressed(path) else size for path, size in sizes]


def is_compressed(path: str) -> bool:
    """Return whether a local file is compressed with gzip or zstd; False if it cannot be read."""
    try:
        with closing(InputFile(path)) as file:
            return compression_in(file.read(0, _MAGIC_SIZE)) is not None
    except OSError:  # `open_input` will say why
        return False


class Beginning(NamedTuple):
    """The first bytes of a file.

    Attributes:
        head: The first bytes of the text, decompressed if necessary.
        size: Size of the file in bytes, as it is stored.
        compression: None: it is not compressed.
    """

    head: bytes
    size: int
    compression: str | None

    @classmethod
    def of(cls, stored: TextInput, size: int) -> Beginning:
        """Return up to `size` bytes from the beginning of a file as it is stored."""
        head = stored.read(0, size)
        compression = compression_in(head)
        if compression is not None:
            head = first_text(stored, compression, size)
        return cls(head, stored.size, compression)


def content_of(path: str, remote: Remote | None = None, *, size: int = 1 << 20) -> Generator[bytes]:
    """Yield the content of a file in pieces, unpacked if it is compressed with gzip, zstd, bzip2 or xz.

    Args:
        path: A path, or the URL of an object in a remote store.
        size: Bytes of the largest piece.

    Example:
        >>> b"".join(content_of("examples/iris/iris.ctf"))[:10]
        b'|species 1'
    """
    with closing(open_stored(path, remote)) as stored:
        packing = packing_of(stored)
        if packing is None:
            for begin in range(0, stored.size, size):
                yield stored.read(begin, size)
        elif packing not in ("gzip", "zstd"):
            yield from unpacked(stored, packing, size)
        else:
            # The core decompresses these, in one pass and without access points.
            yield from text_pieces(stored, packing, size)


# -------------------------------------------------------------------------------------------------------- remote stores

HEAD = 64 << 10
"""Bytes at the beginning, and at the end, that are kept, because several steps of opening read them."""
HEAD_IN_MANIFEST = 16
"""How many of the first bytes a manifest has: enough to know the kind of a file, and its compression."""
LEAST_GAP = 1 << 20
"""Number of bytes that take about as long to read as a request waits for its answer."""


def _cached(found: RemoteObject, remote: Remote) -> CachedObject:
    size, version = found.facts
    if not version:
        what = "the store reports neither a version nor a time of the last change, so a cache would not notice changes"
        raise ConfigError(f"{found.name}: {what}; read without a cache", key="cache")
    return CachedObject(cache_folder(remote), found.identity, version, size, found.read_into, found.require_unchanged)


class RemoteCompanions:
    """The objects next to an object; `Companions` of its text."""

    def __init__(self, path: str, remote: Remote, facts: ObjectFacts) -> None:
        self._path, self._remote, self._facts = path, remote, facts

    def listing(self) -> ListedText:
        found = RemoteObject(self._path, self._remote, self._facts)
        head = found.read(0, min(HEAD_IN_MANIFEST, self._facts.size))
        return ListedText(key_in_manifest(self._path), *self._facts, head)

    def read(self, ending: str) -> bytes | None:
        try:
            found = RemoteObject(self._path + ending, self._remote)
            content = found.read(0, found.facts.size)
            # The index can always be made again, so an object that changes during the read counts as missing.
            found.require_unchanged()
            return content
        except (OSError, CorpusError):
            return None

    def write(self, ending: str, content: bytes) -> str:
        return write_object(self._path + ending, content, self._remote)

    def known(self, request: str) -> bytes | None:
        return None

    def note(self, request: str, content: Bytes | bytes) -> None:
        return


class RemoteInput:
    """A text in a remote store, a `TextInput`.

    Each request to a store waits, so bytes that several steps of opening need are kept: the first and the last bytes
    and, from all reads, samples of the content, whose checksum is part of the fingerprint.
    """

    reach = WINDOW

    def __init__(
        self, path: str, remote: Remote | None = None, facts: object = None,
        manifest: Manifest | NewManifest | None = None,
    ) -> None:  # fmt: skip
        remote = remote or default_remote()
        listed = None if manifest is None else manifest.listed(path)
        self._head = b"" if listed is None else listed.head
        known = ObjectFacts(listed.size, listed.version) if listed is not None else facts
        self._object = RemoteObject(path, remote, known if isinstance(known, ObjectFacts) else None)
        companions: Companions = RemoteCompanions(path, remote, self._object.facts)
        companions = companions if manifest is None else manifest.companions(path, companions)
        self._companions, self._manifest = companions, manifest
        self._reader = self._object if remote.cache is None else _cached(self._object, remote)
        self.path, self.size = self._object.name, self._object.facts.size
        self._storage = Storage(
            self._object.identity,
            companions=companions,
            stamp=self._object.facts,
            least_gap=LEAST_GAP if remote.cache is None else None,
            part_in_bytes=LEAST_GAP,
            num_requests=remote.num_requests,
            require_unchanged=self._reader.require_unchanged,
        )
        self._tail, self._content = b"", ""
        self._samples: dict[int, bytes | None] = dict.fromkeys(sample_offsets(self.size))

    def read(self, offset: int, size: int) -> bytes:
        end = min(offset + size, self.size)
        if offset >= end:
            return b""
        content = self._known(offset, end)
        if content is None:
            content = self._read(offset, end)
            self._companions.note(str(offset), content)
        return content

    def _known(self, begin: int, end: int) -> bytes | None:
        """Return bytes that a manifest has; None: it does not have them."""
        content = self._companions.known(str(begin))
        if content is None or len(content) < end - begin:
            return None
        if self._manifest is not None and end - begin == self.size:
            self._manifest.believe(self._object)
        return content[: end - begin]

    def _read(self, offset: int, end: int) -> bytes:
        if end <= HEAD:
            if end > len(self._head):
                self._head = filled(self._fetch_into, 0, min(HEAD, self.size)).tobytes()
            return self._head[offset:end]
        # The checksum needs each sample once, so it is released here.
        sample = self._samples.pop(offset, None) if end - offset == SAMPLE_SIZE else None
        if sample is not None:
            return sample
        begin_of_tail = self.size - HEAD
        if offset < begin_of_tail:
            return filled(self._fetch_into, offset, end).tobytes()
        self._tail = self._tail or filled(self._fetch_into, begin_of_tail, self.size).tobytes()
        return self._tail[offset - begin_of_tail : end - begin_of_tail]

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
        end = max(begin, min(end, self.size))
        if (begin, end) != (0, self.size):
            return filled(self.read_into, begin, end), begin
        # A format that is read whole has no other requests at its opening.
        known = self._known(begin, end)
        content = filled(self.read_into, begin, end) if known is None else np.frombuffer(known, np.uint8)
        self._companions.note(str(begin), content)
        return content, begin

    @property
    def storage(self) -> Storage:
        # An attribute with a method of this object would be a circle, which keeps the samples in memory.
        return self._storage._replace(facts=self._facts)

    def _facts(self, _verify: bool) -> dict[str, Any]:
        """Return size and version, as the store reports them now; without a version, also a checksum of samples."""
        self._object.require_unchanged()
        found = {"size": self.size, "version": self._object.facts.version}
        if not found["version"]:
            # The checksum may take a request for each sample, so it is computed once.
            self._content = self._content or content_sum(self.size, self.read, self._storage.num_requests)
            found["content"] = self._content
        return found

    def close(self) -> None:
        self._samples.clear()

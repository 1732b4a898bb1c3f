"""Tables of sequences and chunks, and the cache file that keeps them. (docs/formats/ctf.md, "Index cache")

A table is a handful of NumPy arrays with one entry per sequence, so ten million sequences take little memory. From the
cache they are memory-mapped, and opening a corpus takes as long as reading a header.

A cache is used only if everything that the index depends on is unchanged: the cache's own format, the settings, and the
corpus's size, time of change in nanoseconds and a check sum of samples of its content. Nothing that is wrong with a
cache is an error, because an index can always be made anew.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import mmap
import os
import struct
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

logger = logging.getLogger("cntkio")


@dataclasses.dataclass(frozen=True, eq=False)
class SequenceTable:
    """The sequences of a corpus in the order of its chunks.

    Attributes:
        keys: Key of each sequence: uint64, or text.
        lengths: Samples that each sequence counts for, uint32.
        chunk_starts: First sequence of each chunk and, last, the number of sequences, int64.
        options: The deserializer's options that the table depends on, for the messages of checkpoints; JSON-able.
    """

    keys: npt.NDArray[Any]
    lengths: npt.NDArray[np.uint32]
    chunk_starts: npt.NDArray[np.int64]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict, kw_only=True)

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.lengths)

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return len(self.chunk_starts) - 1


class CachedIndex(NamedTuple):
    """Content of an index cache.

    Attributes:
        path: The cache file.
        facts: Facts, written as JSON.
        arrays: The arrays, memory-mapped.
    """

    path: Path
    facts: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]


_MAGIC = b"cntkio index 1\n\0"
_ALIGNMENT = 64
_MOST_HEADER = 1 << 24
_NUM_PROBES = 64
_PROBE_SIZE = 4096


def fingerprint(path: Path) -> dict[str, Any]:
    """Return size, time of change and a check sum of samples of a file's content."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        content = hashlib.blake2b(digest_size=16)
        last = max(status.st_size - _PROBE_SIZE, 0)
        for probe in range(_NUM_PROBES):
            os.lseek(file.fileno(), last * probe // (_NUM_PROBES - 1), os.SEEK_SET)
            content.update(os.read(file.fileno(), _PROBE_SIZE))
    return {"size": status.st_size, "time_ns": status.st_mtime_ns, "content": content.hexdigest()}


def file_fingerprint(path: str, size: int, table: SequenceTable) -> str:
    """Return the fingerprint of a corpus that is one file, for checkpoints."""
    return f"{size}:{table.num_sequences}:{fingerprint(Path(path))['content']}"


@dataclasses.dataclass(frozen=True)
class IndexCache:
    """The index cache of one corpus, read with one set of settings.

    Attributes:
        corpus: The file that was indexed.
        settings: What the index depends on besides; JSON-able.
    """

    corpus: Path
    settings: Mapping[str, Any]

    def candidates(self) -> list[Path]:
        """Return the paths that the cache may have: next to the corpus, or else in the user's cache folder."""
        text = json.dumps(self.settings, sort_keys=True)
        tag = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
        corpus = self.corpus.absolute()
        cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cntkio"
        corpus_folder = hashlib.blake2b(os.fsencode(corpus.parent), digest_size=8).hexdigest()
        return [
            corpus.with_name(f"{corpus.name}.{tag}.index"),
            cache_folder / f"{corpus_folder}.{corpus.name}.{tag}.index",
        ]

    def read(self) -> CachedIndex | None:
        """Return the content of a cache that matches the corpus as it is now, or None."""
        for path in self.candidates():
            try:
                with path.open("rb") as file:
                    content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                cached = CachedIndex(path, *self._decode(content))
            except FileNotFoundError:
                continue
            except (OSError, ValueError, TypeError, KeyError, struct.error) as error:
                logger.info("%s: index cache not used: %s", path, error)
                continue
            logger.debug("%s: index cache used", path)
            return cached
        return None

    def _decode(self, content: mmap.mmap) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        if content[: len(_MAGIC)] != _MAGIC:
            raise ValueError("not an index cache of this version")
        (size,) = struct.unpack_from("<Q", content, len(_MAGIC))
        begin = len(_MAGIC) + 8
        if size > min(_MOST_HEADER, len(content) - begin):
            raise ValueError("truncated")
        header = json.loads(content[begin : begin + size])
        if header["settings"] != dict(self.settings):
            raise ValueError("made with other settings")
        if header["corpus"] != fingerprint(self.corpus):
            raise ValueError("the corpus has changed")
        arrays = {}
        for name, (kind, offset, count) in header["arrays"].items():
            if kind not in ("<u8", "<u4", "<u2", "<i8") or offset < 0 or count < 0:
                raise ValueError(f"array {name!r} is damaged")
            if offset + count * np.dtype(kind).itemsize > len(content):
                raise ValueError("truncated")
            arrays[name] = np.frombuffer(content, dtype=kind, count=count, offset=offset)
        return header["facts"], arrays

    def write(
        self, corpus: Mapping[str, Any], facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> Path | None:
        """Write the cache where it can be written.

        Args:
            corpus: The corpus's `fingerprint` before it was indexed.
            facts: Facts that `read` returns; JSON-able.
            arrays: Arrays of uint64, uint32, uint16 or int64.

        Returns:
            The cache file, or None if none can be written.
        """
        if corpus != fingerprint(self.corpus):
            return None  # changed while it was indexed
        stored = {name: np.ascontiguousarray(array, array.dtype.newbyteorder("<")) for name, array in arrays.items()}
        header: dict[str, Any] = {"corpus": corpus, "settings": dict(self.settings), "facts": facts, "arrays": {}}
        # The size of the header moves the arrays, so reserve room for the digits of their offsets.
        offset = 0
        for name, array in stored.items():
            header["arrays"][name] = [array.dtype.str, offset, len(array)]
            offset += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        room = len(json.dumps(header)) + 20 * len(stored)
        begin = -(-(len(_MAGIC) + 8 + room) // _ALIGNMENT) * _ALIGNMENT
        for entry in header["arrays"].values():
            entry[1] += begin
        text = json.dumps(header).encode().ljust(begin - len(_MAGIC) - 8)
        for path in self.candidates():
            try:
                if path.parent != self.corpus.absolute().parent:
                    path.parent.mkdir(parents=True, exist_ok=True)
                temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
                try:
                    with temporary.open("xb") as file:
                        file.write(_MAGIC + struct.pack("<Q", len(text)) + text)
                        for array in stored.values():
                            file.write(array.view(np.uint8).data)
                            file.write(bytes(-array.nbytes % _ALIGNMENT))
                    temporary.replace(path)
                except BaseException:
                    temporary.unlink(missing_ok=True)
                    raise
            except OSError as error:
                logger.debug("%s: index cache not written: %s", path, error)
                continue
            return path
        return None

"""Tables of sequences and chunks, and the cache file that keeps them. (docs/formats/ctf.md, "Index cache")

A table is a handful of NumPy arrays, one entry per sequence, so that ten million sequences are nothing to worry
about; from the cache they are memory-mapped, and opening a corpus takes as long as reading a header.

The cache's law: it is believed only if everything that it was made from is still the same (the format of the cache,
the settings, and the corpus's size, time of change in nanoseconds and a check sum of samples of its content), and
nothing that goes wrong with it is an error: an index can always be made anew.
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
from typing import Any

import numpy as np
import numpy.typing as npt

logger = logging.getLogger("cntkio")


@dataclasses.dataclass(frozen=True, eq=False)
class SequenceTable:
    """The sequences of a corpus in the order of its chunks.

    Attributes:
        keys: Key of each sequence: uint64, or text.
        lengths: Samples that each counts for, uint32.
        chunk_starts: First sequence of each chunk and, last, the number of sequences, int64.
    """

    keys: npt.NDArray[Any]
    lengths: npt.NDArray[np.uint32]
    chunk_starts: npt.NDArray[np.int64]

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.lengths)

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return len(self.chunk_starts) - 1


_MAGIC = b"cntkio index 1\n\0"
_ALIGNMENT = 64
_MOST_HEADER = 1 << 24
_NUM_PROBES = 64
_PROBE_SIZE = 4096


def fingerprint(path: Path) -> dict[str, Any]:
    """Size, time of change and a check sum of samples of a file's content."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        content = hashlib.blake2b(digest_size=16)
        last = max(status.st_size - _PROBE_SIZE, 0)
        for probe in range(_NUM_PROBES):
            content.update(os.pread(file.fileno(), _PROBE_SIZE, last * probe // (_NUM_PROBES - 1)))
    return {"size": status.st_size, "time_ns": status.st_mtime_ns, "content": content.hexdigest()}


@dataclasses.dataclass(frozen=True)
class IndexCache:
    """The index cache of one corpus, read with one set of settings.

    Attributes:
        corpus: The file that was indexed.
        settings: What the index depends on besides; JSON-able.
    """

    corpus: Path
    settings: Mapping[str, Any]

    def places(self) -> list[Path]:
        """Where the cache may lie: beside the corpus, or else in the user's cache folder."""
        text = json.dumps(self.settings, sort_keys=True)
        tag = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
        corpus = self.corpus.absolute()
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cntkio"
        where = hashlib.blake2b(os.fsencode(corpus.parent), digest_size=8).hexdigest()
        return [corpus.with_name(f"{corpus.name}.{tag}.index"), folder / f"{where}.{corpus.name}.{tag}.index"]

    def read(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]] | None:
        """The facts and arrays of a cache that fits the corpus as it is now, or None. Arrays are memory-mapped."""
        for place in self.places():
            try:
                with place.open("rb") as file:
                    text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                found = self._decode(text)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, TypeError, KeyError, struct.error) as error:
                logger.info("%s: index cache not used: %s", place, error)
                continue
            logger.debug("%s: index cache used", place)
            return found
        return None

    def _decode(self, text: mmap.mmap) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        if text[: len(_MAGIC)] != _MAGIC:
            raise ValueError("not an index cache of this version")
        (size,) = struct.unpack_from("<Q", text, len(_MAGIC))
        begin = len(_MAGIC) + 8
        if size > min(_MOST_HEADER, len(text) - begin):
            raise ValueError("truncated")
        header = json.loads(text[begin : begin + size])
        if header["settings"] != dict(self.settings):
            raise ValueError("made with other settings")
        if header["corpus"] != fingerprint(self.corpus):
            raise ValueError("the corpus has changed")
        arrays = {}
        for name, (kind, offset, count) in header["arrays"].items():
            if kind not in ("<u8", "<u4", "<u2", "<i8") or offset < 0 or count < 0:
                raise ValueError(f"array {name!r} is damaged")
            if offset + count * np.dtype(kind).itemsize > len(text):
                raise ValueError("truncated")
            arrays[name] = np.frombuffer(text, dtype=kind, count=count, offset=offset)
        return header["facts"], arrays

    def write(
        self, corpus: Mapping[str, Any], facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> Path | None:
        """Write the cache where it can be written.

        Args:
            corpus: The corpus's `fingerprint` before it was indexed.
            facts: Anything JSON-able that `read` shall return.
            arrays: Arrays of uint64, uint32, uint16 or int64.

        Returns:
            Where it was written, or None if nowhere.
        """
        if corpus != fingerprint(self.corpus):
            return None  # changed while it was indexed
        stored = {name: np.ascontiguousarray(array, array.dtype.newbyteorder("<")) for name, array in arrays.items()}
        header: dict[str, Any] = {"corpus": corpus, "settings": dict(self.settings), "facts": facts, "arrays": {}}
        # The header's own size moves the arrays: offsets of fixed width keep it from changing while they are set.
        offset = 0
        for name, array in stored.items():
            header["arrays"][name] = [array.dtype.str, offset, len(array)]
            offset += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        room = len(json.dumps(header)) + 20 * len(stored)
        begin = -(-(len(_MAGIC) + 8 + room) // _ALIGNMENT) * _ALIGNMENT
        for entry in header["arrays"].values():
            entry[1] += begin
        text = json.dumps(header).encode().ljust(begin - len(_MAGIC) - 8)
        for place in self.places():
            try:
                if place.parent != self.corpus.absolute().parent:
                    place.parent.mkdir(parents=True, exist_ok=True)
                temporary = place.with_name(f".{place.name}.{os.getpid()}-{threading.get_ident()}")
                try:
                    with temporary.open("xb") as file:
                        file.write(_MAGIC + struct.pack("<Q", len(text)) + text)
                        for array in stored.values():
                            file.write(array.view(np.uint8).data)
                            file.write(bytes(-array.nbytes % _ALIGNMENT))
                    temporary.replace(place)
                except BaseException:
                    temporary.unlink(missing_ok=True)
                    raise
            except OSError as error:
                logger.debug("%s: index cache not written: %s", place, error)
                continue
            return place
        return None

"""The places where one corpus can be: on a disk, in memory, on a web server; as one file or several; compressed."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cntkio import Remote

from support.packers import frames, member_of_blocks
from support.range_server import RangeServer

ENDINGS = {"plain": "", "gzip": ".gz", "zstd": ".zst"}
PACKINGS = (*ENDINGS, "mixed")
STORES = ("disk", "memory", "http")


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of place.

    Attributes:
        store: The store of the bytes, one of `STORES`.
        packing: Their compression, one of `PACKINGS`; mixed: each file in a different way.
        is_cached: Whether a cache on a local disk keeps the bytes that were read.
    """

    store: str
    packing: str
    is_cached: bool = False

    def __str__(self) -> str:
        return f"{self.store}-{self.packing}{'-cached' * self.is_cached}"


KINDS = [
    Kind(store, packing, is_cached)
    for store in STORES
    for packing in PACKINGS
    for is_cached in ((False,) if store == "disk" else (False, True))
]


class Whereabouts:
    """Writes texts to places.

    Args:
        folder: A folder on a disk, for files and caches.
        server: The web server.
        choose: Chooses how texts are packed.
    """

    def __init__(self, folder: Path, server: RangeServer, choose: random.Random) -> None:
        self._folder, self._server, self._choose = folder, server, choose
        self.names: dict[str, str] = {}

    def put(self, kind: Kind, name: str, texts: list[bytes]) -> list[str]:
        """Write the files of a corpus, and return their names for a deserializer."""
        endings = list(ENDINGS.values())
        found = []
        for number, text in enumerate(texts):
            ending = endings[number % len(endings)] if kind.packing == "mixed" else ENDINGS[kind.packing]
            found.append(self._write(kind.store, f"{kind}/{name}-{number}.ctf{ending}", self._packed(text, ending)))
        return found

    def _packed(self, text: bytes, ending: str) -> bytes:
        pack: Callable[..., bytes] | None = {".gz": member_of_blocks, ".zst": frames}.get(ending)
        return text if pack is None else pack(text, self._choose)

    def _write(self, store: str, name: str, content: bytes) -> str:
        if store == "disk":
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            return str(path)
        if store == "http":
            self._server.files[name] = content
            return f"{self._server.url}/{name}"
        import fsspec

        url = f"memory://whereabouts/{name}"
        fsspec.filesystem("memory").pipe(url, content)
        return url

    def remote(self, kind: Kind, **options: Any) -> Remote | None:
        """Return the options with which a place is read."""
        if kind.store == "disk":
            return None
        return Remote(cache=self._folder / "cache" / str(kind) if kind.is_cached else None, **options)

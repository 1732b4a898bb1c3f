"""The index of a table in a file, as a pass finds it, and as an index cache keeps it (`cntkio.storage.index_cache`).

A cache has all that opening needs: with it, a file is not read before its first chunk is. Nothing in a cache is
trusted: its arrays must fit each other, and batches must have the columns, rows and lengths that it promises.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import ipc

from cntkio.errors import CorpusError
from cntkio.formats.table import Keys, Lengths, are_all_the_same, same_lengths
from cntkio.storage.index_cache import DamagedCacheError, StoredArrays


class PartOfTable(NamedTuple):
    """The rows of a chunk.

    Attributes:
        batch: Their batch or row group.
        first_row: Its first row in the file.
        kept: The rows of the batch that are kept; None: all.
    """

    batch: int
    first_row: int
    kept: npt.NDArray[np.int64] | None

    def rows_of(self, sequences: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        """Return the rows in the file of sequences of the chunk."""
        own = sequences.astype(np.int64) if self.kept is None else self.kept[sequences]
        return own + self.first_row


class TableIndex(NamedTuple):
    """The index of a table.

    Attributes:
        chunk_starts: First sequence of each chunk and, last, the number of sequences.
        parts: The rows of each chunk.
        again: The number of rows whose key an earlier row has, and such a key; None: all keys differ.
        spans: The shortest and the longest list of each column whose lists may be samples.
        fingerprint: As in `Index`.
    """

    keys: Keys
    lengths: Lengths
    chunk_starts: npt.NDArray[np.int64]
    parts: Sequence[PartOfTable]
    again: tuple[int, int | str] | None
    spans: Mapping[str, tuple[int, int]]
    fingerprint: str

    def stored(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return the facts and arrays that an index cache keeps."""
        keys, lengths = self.keys, self.lengths
        stored = np.empty(0, np.uint8) if keys.first is not None else np.ascontiguousarray(keys.stored())
        facts = {
            "first_key": keys.first, "length": int(lengths[0]) if are_all_the_same(lengths) and len(lengths) else None,
            "width": stored.itemsize if stored.dtype.kind == "S" else None,
            "again": self.again, "spans": self.spans, "fingerprint": self.fingerprint,
        }  # fmt: skip
        kept = [np.empty(0, np.uint64) if part.kept is None else part.kept.astype(np.uint64) for part in self.parts]
        places = np.array([[part.batch, part.first_row] for part in self.parts], np.uint64).reshape(-1, 2)
        return facts, {
            "keys": stored.view(np.uint8) if stored.dtype.kind == "S" else stored,
            "lengths": lengths if facts["length"] is None else np.empty(0, np.uint8),
            "chunk_starts": self.chunk_starts, "batches_of_chunks": places[:, 0], "first_rows": places[:, 1],
            "num_kept": np.array([len(rows) for rows in kept], np.uint64),
            "kept": np.concatenate([np.empty(0, np.uint64), *kept]),
        }  # fmt: skip

    @classmethod
    def of(cls, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], num_batches: int) -> TableIndex:
        """Return the index that a cache keeps. Any error means that the cache is damaged."""
        first_key, length, width, again = (facts[name] for name in ("first_key", "length", "width", "again"))
        starts, batches, first_rows = (arrays[name] for name in ("chunk_starts", "batches_of_chunks", "first_rows"))
        numbers = [
            first_key,
            length,
            width,
            *(again or [None])[:1],
            *(each for span in facts["spans"].values() for each in span),
        ]
        # `isinstance` would accept true and false, too.
        if any(type(number) is not int or number < 0 for number in numbers if number is not None):
            raise DamagedCacheError("a fact is not a whole number")
        count, num_kept, sizes = int(starts[-1]), arrays["num_kept"].astype(np.int64), np.diff(starts)
        lengths = arrays["lengths"] if length is None else same_lengths(length, count)
        stored = arrays["keys"] if width is None else arrays["keys"].view(f"S{width}")
        keys = Keys(stored if first_key is None else range(first_key, first_key + count))
        ends, kept = np.cumsum(num_kept), arrays["kept"].astype(np.int64)
        if (
            {len(keys), len(lengths)} != {count}
            or {len(batches), len(first_rows), len(num_kept)} != {len(sizes)}
            or starts[0] != 0
            or (sizes <= 0).any()
            or (batches >= num_batches).any()
            or (batches[1:] <= batches[:-1]).any()
            or (first_rows >= 2**62).any()
            or ((num_kept != 0) & (num_kept != sizes)).any()
            or int(ends[-1]) != len(kept)
            or not lengths[: 1 if length is not None else None].all()
        ):
            raise DamagedCacheError("its arrays do not belong together")
        rows = [
            kept[end - size : end] if size else None for end, size in zip(ends.tolist(), num_kept.tolist(), strict=True)
        ]
        parts = [PartOfTable(*part) for part in zip(batches.tolist(), first_rows.tolist(), rows, strict=True)]
        spans = {str(name): (int(least), int(most)) for name, (least, most) in facts["spans"].items()}
        again = None if again is None else (int(again[0]), again[1])
        return cls(keys, lengths, starts, parts, again, spans, str(facts["fingerprint"]))


class KeptIndex(NamedTuple):
    """The facts that an index cache keeps of a file.

    Attributes:
        paths: The cache; empty: it is not written yet.
        head: First bytes of the file, which show its kind.
        schema: Its columns, in plain types.
        places_of_batches: Where each batch begins, as the format counts, and where the last one ends.
        sizes_of_batches: Rows of each batch; empty if the file does not list them.
        classes: The names of the classes of columns of categories.
    """

    paths: tuple[Path, ...]
    head: bytes
    schema: pa.Schema
    places_of_batches: list[int]
    sizes_of_batches: list[int]
    classes: dict[str, list[str]]
    table: TableIndex

    @property
    def num_batches(self) -> int:
        """Number of batches."""
        return len(self.places_of_batches) - 1

    @classmethod
    def of(cls, stored: StoredArrays) -> KeptIndex:
        """Return what a cache keeps. Any error means that the cache is damaged."""
        facts, arrays = stored.facts, stored.read_all()
        places, sizes = arrays["places_of_batches"].tolist(), arrays["sizes_of_batches"].tolist()
        if any(first >= last for first, last in pairwise(places)) or len(sizes) not in (0, len(places) - 1):
            raise DamagedCacheError("its batches do not belong together")
        schema, classes = ipc.read_schema(pa.py_buffer(arrays["schema"])), json.loads(arrays["classes"].tobytes())
        classes = {str(name): list(map(str, names)) for name, names in classes.items()}
        table = TableIndex.of(facts, arrays, len(places) - 1)
        return cls((stored.path,), bytes.fromhex(facts["head"]), schema, places, sizes, classes, table)

    def stored(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return the facts and arrays that an index cache keeps."""
        facts, arrays = self.table.stored()
        texts = {"schema": self.schema.serialize().to_pybytes(), "classes": json.dumps(self.classes).encode()}
        arrays |= {name: np.frombuffer(text, np.uint8) for name, text in texts.items()}
        arrays["places_of_batches"] = np.array(self.places_of_batches, np.uint64)
        arrays["sizes_of_batches"] = np.array(self.sizes_of_batches, np.uint64)
        return {**facts, "head": self.head.hex()}, arrays

    def error(self, path: str) -> CorpusError:
        """Return the error about a file that is not as the cache says."""
        what = f"the index does not match the file; delete the index cache {str(self.paths[0])!r}"
        return CorpusError(f"{path}: {what}")

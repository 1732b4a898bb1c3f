"""The index of a text in an index cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio.formats.ctf.findings import REMARKS
from cntkio.formats.ctf.index import Example, FirstPass, IndexSettings, Places, Remark, TextIndex, make_index
from cntkio.formats.index_cache import (
    CachedArrays,
    CacheFiles,
    CacheWriter,
    DamagedCacheError,
    IndexCache,
    Remaking,
    StoredArrays,
    StoredColumn,
)
from cntkio.formats.report import passed
from cntkio.formats.table import CountedKeys, NumberKeys, SequenceTable, are_all_the_same, same_lengths, stored_keys
from cntkio.formats.text_input import TextInput


def cached_index(file: TextInput, settings: IndexSettings, first_pass: FirstPass, *, verify: bool) -> TextIndex:
    """Return the index from a cache, or as `make_index` does."""
    # JSON has no bytes; latin-1 turns any bytes into text, and different bytes into different texts.
    defining = None if settings.defining is None else settings.defining.decode("latin-1")
    kept = {
        "format": "ctf", "skip_sequence_ids": settings.skip_sequence_ids, "defining": defining,
        "chunk_size_in_bytes": settings.chunk_size_in_bytes,
    }  # fmt: skip
    return kept_index(file, kept, lambda again: make_index(file, settings, None if again else first_pass), verify)


def kept_index(file: TextInput, kept: Mapping[str, Any], make: Callable[[bool], TextIndex], verify: bool) -> TextIndex:
    """Return the index from a cache that matches the file; else make it, and write the cache on another thread.

    Args:
        file: The text.
        kept: The format and the settings on which the index depends; JSON-able.
        make: Makes the index; called with True if the cache was damaged, so that the chunks are not needed.
        verify: As for `IndexCache`.
    """
    cache = IndexCache(file, kept, verify=verify)

    def make_again() -> CachedArrays:
        file.require_unchanged()  # the table in use belongs to the file as it was opened
        facts, arrays = _stored(make(True))
        cache.write(facts, arrays)
        return arrays

    cached = cache.read(lambda arrays: _from_cache(file, arrays, Remaking(arrays.path, make_again)))
    if cached is not None:
        passed(file.size)  # the total of a pass over several files has these bytes, too
        return cached
    index = make(False)
    facts, arrays = _stored(index)
    return index._replace(caches=CacheFiles(writers=(CacheWriter(lambda: cache.write(facts, arrays)),)))


def _stored(index: TextIndex) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    places, keys, lengths = index.places, index.table.keys, index.table.lengths
    first_key = keys.first if isinstance(keys, CountedKeys) else None
    length = int(lengths[0]) if are_all_the_same(lengths) else None
    facts = {
        "remarks": index.remarks, "first_key": first_key, "length": length, "content": index.content,
        "num_lines": index.num_lines, "numbers": index.numbers,
    }  # fmt: skip
    arrays = {
        "chunk_starts": index.table.chunk_starts, "begins": places.begins, "ends": places.ends,
        "starts": places.starts[:],
    }  # fmt: skip
    if places.sizes is not None:
        arrays["sizes"] = places.sizes[:]
    if first_key is None:
        arrays["keys"] = stored_keys(keys)
    if length is None:
        arrays["lengths"] = lengths
    return facts, arrays


def _from_cache(file: TextInput, arrays: StoredArrays, remake: Remaking) -> TextIndex:
    facts, chunk_starts = arrays.facts, arrays.read("chunk_starts")
    count = int(chunk_starts[-1])
    first_key, length, num_lines = facts["first_key"], facts["length"], facts["num_lines"]
    numbers = tuple(facts["numbers"])
    # `isinstance` would accept true and false, too.
    if any(type(fact) is not int for fact in (first_key, length, num_lines, *numbers) if fact is not None):
        raise DamagedCacheError("a fact is not a whole number")
    lengths = arrays.read("lengths") if length is None else same_lengths(length, count)
    keys = NumberKeys(StoredColumn(arrays, "keys", remake)) if first_key is None else CountedKeys(first_key, count)
    # Chunks are few, so their bounds are read now; starts and sizes are read when their chunk is loaded.
    begins, ends, starts = arrays.read("begins"), arrays.read("ends"), StoredColumn(arrays, "starts", remake)
    sizes = StoredColumn(arrays, "sizes", remake) if "sizes" in arrays else None
    if (
        {len(keys), len(lengths), len(starts), len(starts if sizes is None else sizes)} != {count}
        or {len(begins), len(ends)} != {len(chunk_starts) - 1}
        or chunk_starts[0] != 0
        or np.any(chunk_starts[:-1] >= chunk_starts[1:])
        # A single number stands for all equal lengths.
        or not lengths[: 1 if length is not None else None].all()
    ):
        raise DamagedCacheError("its arrays do not belong together")
    remarks = {
        kind: Remark(int(total), [Example(int(offset), int(key)) for offset, key in examples])
        for kind, (total, examples) in facts["remarks"].items()
    }
    offsets = [example.offset for remark in remarks.values() for example in remark.examples]
    if not remarks.keys() <= REMARKS.keys() or not all(0 <= offset < file.size for offset in offsets):
        raise DamagedCacheError("its remarks are of an unknown kind, or outside the file")
    table, places = SequenceTable(keys, lengths, chunk_starts), Places(begins, ends, starts, sizes)
    return TextIndex(
        table, places, remarks, (), str(facts["content"]), num_lines, numbers, CacheFiles(indexes=(arrays.path,))
    )

"""The index of a text in an index cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio.formats.ctf.findings import REMARKS
from cntkio.formats.ctf.index import NO_PASS, Example, FirstPass, IndexSettings, Places, Remark, TextIndex, make_index
from cntkio.formats.index_cache import (
    CachedArrays,
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
    """Return the index from a cache that matches the file; else make it, and write the cache on another thread.

    Raises the errors of `make_index`.
    """
    kept = {
        "format": "ctf",
        "skip_sequence_ids": settings.skip_sequence_ids,
        # JSON has no bytes; latin-1 turns any bytes into text, and different bytes into different texts.
        "defining": None if settings.defining is None else settings.defining.decode("latin-1"),
        "chunk_size_in_bytes": settings.chunk_size_in_bytes,
    }
    return kept_index(
        file, kept, settings.options, lambda again: make_index(file, settings, NO_PASS if again else first_pass), verify
    )


def kept_index(
    file: TextInput,
    kept: Mapping[str, Any],
    options: Mapping[str, Any],
    make: Callable[[bool], TextIndex],
    verify: bool,
) -> TextIndex:
    """Return the index from a cache that matches the file; else make it, and write the cache on another thread.

    Args:
        file: The text.
        kept: The format and the settings on which the index depends; JSON-able.
        options: The options of the table.
        make: Makes the index; called with True if the cache was damaged, so that the chunks are not needed.
        verify: As for `IndexCache`.
    """
    cache = IndexCache(file, kept, verify=verify)

    def make_again() -> CachedArrays:
        file.require_unchanged()  # the table in use belongs to the file as it was opened
        facts, arrays = _stored(make(True))
        cache.write(facts, arrays)
        return arrays

    cached = cache.read(lambda arrays: _from_cache(file, arrays, options, Remaking(arrays.path, make_again)))
    if cached is not None:
        passed(file.size)  # the total of a pass over several files has these bytes, too
        return cached
    index = make(False)
    facts, arrays = _stored(index)
    return index._replace(writer=CacheWriter(lambda: cache.write(facts, arrays)))


def _stored(index: TextIndex) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    keys, lengths = stored_keys(index.table.keys), index.table.lengths
    facts: dict[str, Any] = {
        "remarks": index.remarks, "first_key": None, "length": None, "content": index.content,
        "num_lines": index.num_lines, "numbers": index.numbers,
    }  # fmt: skip
    arrays = {"chunk_starts": index.table.chunk_starts, **index.places.stored()}
    if isinstance(index.table.keys, CountedKeys):
        facts["first_key"] = index.table.keys.first
    else:
        arrays["keys"] = keys
    if are_all_the_same(lengths):
        facts["length"] = int(lengths[0])
    else:
        arrays["lengths"] = lengths
    return facts, arrays


def _from_cache(file: TextInput, arrays: StoredArrays, options: Mapping[str, Any], remake: Remaking) -> TextIndex:
    facts = arrays.facts
    chunk_starts = arrays.read("chunk_starts")
    count = int(chunk_starts[-1])
    first_key, length, num_lines = facts["first_key"], facts["length"], facts["num_lines"]
    numbers = tuple(facts["numbers"])
    # `isinstance` would accept true and false, too.
    if any(type(fact) is not int for fact in (first_key, length, num_lines, *numbers) if fact is not None):
        raise DamagedCacheError("a fact is not a whole number")
    lengths = arrays.read("lengths") if length is None else same_lengths(length, count)
    keys = NumberKeys(StoredColumn(arrays, "keys", remake)) if first_key is None else CountedKeys(first_key, count)
    places = _places(arrays, remake)
    if (
        {len(keys), len(lengths), len(places)} != {count}
        or len(chunk_starts) != places.num_chunks + 1
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
    table = SequenceTable(keys, lengths, chunk_starts, options=options)
    return TextIndex(table, places, remarks, (), str(facts["content"]), num_lines, numbers=numbers, cache=arrays.path)


def _places(arrays: StoredArrays, remake: Remaking) -> Places:
    # Chunks are few, so their bounds are read now; starts and sizes are read when their chunk is loaded.
    begins, ends, starts = arrays.read("begins"), arrays.read("ends"), StoredColumn(arrays, "starts", remake)
    sizes = StoredColumn(arrays, "sizes", remake) if "sizes" in arrays else None
    if len(begins) != len(ends) or (sizes is not None and len(sizes) != len(starts)):
        raise DamagedCacheError("its arrays do not belong together")
    return Places(begins, ends, starts, sizes)

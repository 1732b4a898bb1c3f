"""The index of several files as one corpus: their tables, keys and fingerprints. (docs/where-corpora-can-be.md)"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats import compressed
from cntkio.formats.contract import Index, PlacesInFiles
from cntkio.formats.table import (
    CountedKeys,
    FileSpans,
    Keys,
    SequenceTable,
    joined_keys,
    joined_lengths,
    key_value,
    moved_keys,
    range_of_keys,
)
from cntkio.hints import wording
from cntkio.streams import StreamInformation

KeysOf = Literal["unique", "per_file"]
KEYS_OF_A_FILE = 10**12
"""With keys per file, the keys of each file begin at a multiple of this number."""
_NUM_SHOWN = 3
PlaceOf = Callable[[int, npt.NDArray[np.int64]], PlacesInFiles]


def check_keys_of(keys: KeysOf) -> None:
    """Check the option `keys`.

    Raises:
        ConfigError: The value is not possible.
    """
    if keys not in get_args(KeysOf):
        raise ConfigError(f"keys is {keys!r}; expected 'unique' or 'per_file'", key="keys")


def refuse_other_streams(index: Index, first: Index) -> None:
    """Refuse a file whose streams are not those of the first file.

    Raises:
        ConfigError: The streams differ.
    """

    def text(streams: Sequence[StreamInformation]) -> str:
        return ", ".join(f"{info.name!r} ({info.storage_format}, {info.dim} wide, {info.dtype})" for info in streams)

    if index.streams != first.streams:
        raise ConfigError(
            f"{index.name}: its streams are {text(index.streams)}, but the streams of {first.name} are "
            f"{text(first.streams)}; expected the same",
            key="streams",
        )


def joined_index(name: str, indexes: Sequence[Index], keys: KeysOf, place_of: PlaceOf) -> Index:
    """Return the index of the corpus that has the sequences of several files, one file after the other.

    Args:
        name: Name of the corpus in messages.
        indexes: The indexes of the files, at least two.
        keys: Whether ids must be unique, or keys are file and id.
        place_of: Returns the places of sequences of a file, for messages.

    Raises:
        FormatError: Two files have the same id.
        CorpusError: Some files have ids, and others have none.
    """
    tables = [index.table for index in indexes]
    first_sequences = np.cumsum([0, *(table.num_sequences for table in tables)])
    chunk_starts = [first + table.chunk_starts[1:] for first, table in zip(first_sequences, tables, strict=False)]
    names = [index.name for index in indexes]
    table = SequenceTable(
        _joined_keys(indexes, keys, place_of),
        joined_lengths([table.lengths for table in tables]),
        np.concatenate([np.zeros(1, np.int64), *chunk_starts]),
        options=tables[0].options if keys == "unique" else {**tables[0].options, "keys": keys},
        files=FileSpans(names, first_sequences),
    )
    return indexes[0]._replace(
        name=name, table=table, fingerprint=fingerprint_of_files(names, [index.fingerprint for index in indexes])
    )


# ---------------------------------------------------------------------------------------------------------------- keys


def _joined_keys(indexes: Sequence[Index], keys: KeysOf, place_of: PlaceOf) -> Keys:
    _refuse_mixed_keys(indexes)
    columns = [index.table.keys for index in indexes]
    if keys == "per_file":
        return joined_keys([_keys_of_a_file(number, indexes, place_of) for number in range(len(indexes))])
    if indexes[0].num_lines is not None:
        before = np.cumsum([0, *(index.num_lines or 0 for index in indexes)]).tolist()
        return joined_keys([moved_keys(column, first) for first, column in zip(before, columns, strict=False)])
    joined = joined_keys(columns)
    if not isinstance(joined, CountedKeys):
        _refuse_common_ids(indexes, place_of)
    return joined


def _refuse_mixed_keys(indexes: Sequence[Index]) -> None:
    counts = [index.num_lines is not None for index in indexes]
    if len(set(counts)) > 1:
        first, other = indexes[0].name, indexes[counts.index(not counts[0])].name
        with_ids, without = (other, first) if counts[0] else (first, other)
        raise CorpusError(
            f"the lines of {without} have no ids, but the lines of {with_ids} have ids; expected ids in all "
            f"files or in none, or {wording().setting('skip_sequence_ids', True)}"
        )


def _keys_of_a_file(number: int, indexes: Sequence[Index], place_of: PlaceOf) -> Keys:
    keys = indexes[number].table.keys
    if isinstance(keys, np.ndarray) and keys.dtype.kind == "S":
        return np.strings.add(f"{number}/".encode(), keys)
    is_large = np.asarray(keys) >= KEYS_OF_A_FILE
    if is_large.any():
        what = f"with {wording().setting('keys', 'per_file')}, ids are below {KEYS_OF_A_FILE:,}"
        raise _error_at(number, int(np.argmax(is_large)), what, indexes, place_of)
    return moved_keys(keys, number * KEYS_OF_A_FILE)


def _error_at(number: int, sequence_index: int, what: str, indexes: Sequence[Index], place_of: PlaceOf) -> FormatError:
    places = place_of(number, np.array([sequence_index]))
    byte, line = (None if column is None else int(column[0]) for column in (places.bytes, places.lines))
    return FormatError(
        what,
        path=indexes[number].name,
        byte=byte,
        line=line,
        column=None if line is None else 1,
        sequence=key_value(indexes[number].table.keys[sequence_index]),
    )


def _refuse_common_ids(indexes: Sequence[Index], place_of: PlaceOf) -> None:
    """Refuse an id that is in two files. Only files whose ranges of ids overlap are compared."""
    keys = [index.table.keys for index in indexes]
    candidates = [number for number, of_file in enumerate(keys) if len(of_file)]
    if keys[0].dtype == np.uint64:
        candidates = _overlapping([range_of_keys(keys[number]) for number in candidates], candidates)
    if not candidates:
        return
    ids = np.concatenate([np.asarray(keys[number]) for number in candidates])
    file_of = np.repeat(np.array(candidates, np.uint32), [len(keys[number]) for number in candidates])
    order = np.argsort(ids, kind="stable")
    is_again = (ids[order][1:] == ids[order][:-1]) & (file_of[order][1:] != file_of[order][:-1])
    if not is_again.any():
        return
    again = order[1:][is_again]
    sequence = int(again.min())
    file = int(file_of[sequence])
    earlier = order[:-1][is_again][int(np.argmin(again))]
    raise _error_at(
        file,
        sequence - int(np.argmax(file_of == file)),
        f"{indexes[int(file_of[earlier])].name} has this id, too (ids in several files: {len(again)}); "
        f"expected ids that differ, or {wording().setting('keys', 'per_file')}",
        indexes,
        place_of,
    )


def _overlapping(ranges: Sequence[tuple[int, int]], indices: Sequence[int]) -> list[int]:
    """Return the files that may have an id in common, because the range of their ids overlaps another file's range."""
    found: set[int] = set()
    largest, owner = -1, -1
    for (low, high), index in sorted(zip(ranges, indices, strict=True)):
        if low <= largest:
            found |= {owner, index}
        if high > largest:
            largest, owner = high, index
    return sorted(found)


# -------------------------------------------------------------------------------------------------------- fingerprints


def fingerprint_of_files(paths: Sequence[str], fingerprints: Sequence[str]) -> str:
    """Return a fingerprint: a line for all files, and a line for each file with its name and a checksum.

    Names leave out the endings of compressed files: compression does not change a text, so a state of the plain text
    continues with the compressed text.
    """
    sums = (hashlib.blake2b(fingerprint.encode(), digest_size=6).hexdigest() for fingerprint in fingerprints)
    names = (_without_ending(PurePath(path).name) for path in paths)
    lines = [f"{name} {check_sum}" for name, check_sum in zip(names, sums, strict=True)]
    whole = hashlib.blake2b("\n".join(fingerprints).encode(), digest_size=16)
    return "\n".join([f"{len(lines)} files {whole.hexdigest()}", *lines])


def _without_ending(name: str) -> str:
    stem, ending = os.path.splitext(name)  # noqa: PTH122 - a `Path` takes ten times as long
    return stem if ending.lower() in compressed.ENDINGS else name


def differences_of_files(saved: str, current: str) -> str:
    """Name the files that differ between two fingerprints; empty if a fingerprint is of a single file.

    Example:
        >>> differences_of_files("2 files 0\\na.ctf 1\\nb.ctf 2", "2 files 1\\na.ctf 1\\nb.ctf 3")
        'b.ctf has other content'
    """
    before, now = (Counter(line.rpartition(" ")[::2] for line in text.split("\n")[1:]) for text in (saved, current))
    if not before or not now:
        return ""
    gone, come = ([name for name, *_ in files] for files in (before - now, now - before))
    kinds = {
        "has other content": [name for name in come if name in gone],
        "is new": [name for name in come if name not in gone],
        "is missing": [name for name in gone if name not in come],
    }
    facts = [
        f"{', '.join(names[:_NUM_SHOWN])}{' and others' * (len(names) > _NUM_SHOWN)} {what}"
        for what, names in kinds.items()
        if names
    ]
    return ", ".join(facts) or "the same files in another order"

"""Several tables of sequences joined by key into one. (docs/timeline.md, "Several deserializers")

::

    first table     7  8 | 3  9 | 5        keys, in chunks
    second table    9  7  5  4             any order, any chunks
    joined          7    | 9    | 5        in the order of the first; 8 and 3 have no partner, 4 is never read
    partners        0      3      4        in the first table
                    1      0      2        in the second

Invariant: the first table decides the order and the chunks. A sequence is delivered if every table has its key.
Chunks without a sequence are dropped, and later chunks move up. The join counts the sequences that it leaves out;
the source decides whether they are a warning or an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cntkio.displays import counted
from cntkio.errors import CorpusError
from cntkio.formats.report import NUM_IN_FULL, first_few
from cntkio.formats.table import SequenceTable, comparable

# A table over the span of the keys then takes at most 32 bytes for each key, and no sort.
_LARGEST_SPAN_PER_KEY = 4
_Mask: TypeAlias = npt.NDArray[np.bool_]


class LeftOut(NamedTuple):
    """Sequences that a join left out of one table."""

    num_sequences: int  # number of its sequences that are never delivered
    first_keys: tuple[str, ...]  # the keys of the first ten of these sequences
    num_missing: int  # number of sequences of the first table that have no partner in this table
    first_missing: tuple[str, ...]  # the keys of the first ten of these sequences


@dataclasses.dataclass(frozen=True, eq=False)
class JoinedTable(SequenceTable):
    """The sequences that all tables have, in the order and the chunks of the first.

    Attributes:
        partners: For each table, the index of its sequence for each joined sequence, uint32.
        left_out: For each table, the sequences that are not delivered.
    """

    partners: tuple[npt.NDArray[np.uint32], ...]
    left_out: tuple[LeftOut, ...]

    def complaint(self, names: Sequence[str]) -> str | None:
        """Describe the sequences that were left out, with the name of each table; None if there are none."""
        missing, unused = [], []
        for name, (num_unused, first_unused, num_missing, first_missing) in zip(names, self.left_out, strict=True):
            if num_missing:
                shown = first_few(first_missing, num_missing)
                missing.append(f"{name} lacks {num_missing} of the keys of {names[0]} ({shown})")
            if num_unused:
                shown = first_few(first_unused, num_unused)
                unused.append(f"left out: {counted(num_unused, 'sequence')} of {name} ({shown})")
        return "; ".join(missing + unused) or None


def join(
    tables: Sequence[SequenceTable], *, defining: int | None = None, patterns: Sequence[_Mask | None] = ()
) -> JoinedTable:
    """Join tables by key.

    Keys are compared as numbers if all are numbers, otherwise as text, with numbers in decimal digits. If the first
    table repeats a key, each occurrence has the same partner. If another table repeats a key, its first occurrence
    counts.

    Args:
        tables: The tables, at least one. The first gives the order.
        defining: The table whose lengths count; None: the largest length of a joined sequence counts.
        patterns: For each table, a mask of the sequences whose key ``a`` also stands for all keys ``.../a``, as HTK's
            pattern ``*/a`` does; None: there are none. An equal key takes precedence, then the longest pattern.

    Returns:
        The joined table.

    Raises:
        CorpusError: No key is in all tables.

    Example:
        >>> from cntkio.formats.table import Keys
        >>> def table(*keys):
        ...     return SequenceTable(Keys.of(keys), np.ones(len(keys), np.uint32), np.array([0, len(keys)]))
        >>> joined = join([table(7, 8, 3), table(3, 7)])
        >>> joined.keys.tolist(), [partners.tolist() for partners in joined.partners]
        ([7, 3], [[0, 2], [1, 0]])
        >>> joined.complaint(["a.ctf", "b.ctf"])
        'b.ctf lacks 1 of the keys of a.ctf (8); left out: 1 sequence of a.ctf (8)'
    """
    first = tables[0]
    keys = comparable([table.keys for table in tables])
    found_partners = [_partners(keys[0], other) for other in keys[1:]]
    for partners, others, is_pattern in zip(found_partners, keys[1:], patterns[1:], strict=False):
        if is_pattern is not None:
            _match_patterns(partners, keys[0], others, is_pattern)
    is_kept = np.ones(first.num_sequences, np.bool_)
    for partners in found_partners:
        is_kept &= partners >= 0
    kept = np.flatnonzero(is_kept).astype(np.uint32)
    if not len(kept):
        sizes = [table.num_sequences for table in tables]
        keys_of = [_first_keys(table, np.arange(min(3, size))) for table, size in zip(tables, sizes, strict=True)]
        shown = " | ".join(map(first_few, keys_of, sizes))
        raise CorpusError(f"no key is in all deserializers, so nothing is left to read. Their first keys: {shown}")
    # If no sequence is left out, the keys stay in their compact form.
    kept_keys = first.keys if len(kept) == first.num_sequences else first.keys.only(kept)
    all_partners = (kept, *(partners[is_kept].astype(np.uint32) for partners in found_partners))
    if defining is not None:
        lengths = tables[defining].lengths[all_partners[defining]].astype(np.uint32)
    else:
        lengths = first.lengths[kept].astype(np.uint32)
        for table, others in zip(tables[1:], all_partners[1:], strict=True):
            np.maximum(lengths, table.lengths[others], out=lengths)
    chunk_starts = kept_starts(first.chunk_starts, is_kept)
    is_missing = [np.zeros(0, np.bool_), *(partners < 0 for partners in found_partners)]
    each = zip(tables, all_partners, is_missing, strict=True)
    left_out = tuple(_left_out(table, partners, first, np.flatnonzero(mask)) for table, partners, mask in each)
    return JoinedTable(kept_keys, lengths, chunk_starts, all_partners, left_out)


def kept_starts(chunk_starts: npt.NDArray[np.int64], is_kept: _Mask) -> npt.NDArray[np.int64]:
    """Return the starts of the chunks that keep a sequence, counted in kept sequences, and their number."""
    num_kept = np.diff(np.append(0, np.cumsum(is_kept))[chunk_starts])
    return np.append(0, np.cumsum(num_kept[num_kept > 0]))


def _left_out(
    table: SequenceTable, partners: npt.NDArray[np.uint32], first: SequenceTable, missing: npt.NDArray[np.int64]
) -> LeftOut:
    unused = unused_of(table, partners)
    return LeftOut(len(unused), _first_keys(table, unused), len(missing), _first_keys(first, missing))


def unused_of(table: SequenceTable, partners: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """Return the sequences of a table that are no partners."""
    is_unused = np.ones(table.num_sequences, np.bool_)
    is_unused[partners] = False
    return np.flatnonzero(is_unused)


def _first_keys(table: SequenceTable, sequences: npt.NDArray[np.int64]) -> tuple[str, ...]:
    return tuple(map(str, table.keys[sequences[:NUM_IN_FULL]].tolist()))


def _partners(wanted: npt.NDArray[Any], keys: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return for each wanted key its first occurrence in `keys`, or -1."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    if keys.dtype.kind in "ui":
        smallest, span = int(keys.min()), int(keys.max()) - int(keys.min()) + 1
        if span <= _LARGEST_SPAN_PER_KEY * len(keys):
            return _partners_by_table(wanted, keys, smallest, span)
    order = np.argsort(keys, kind="stable")  # so that the first of equal keys is found
    ascending = keys[order]
    at = np.searchsorted(ascending, wanted)
    at[at == len(keys)] = 0  # a wanted key above all keys differs from any of them
    return np.where(ascending[at] == wanted, order[at], -1)


def _match_patterns(
    partners: npt.NDArray[np.int64],
    wanted: npt.NDArray[Any],
    keys: npt.NDArray[Any],
    is_pattern: npt.NDArray[np.bool_],
) -> None:
    """Find partners for the wanted keys without a partner: the pattern that is the rest of the key after a slash."""
    indices = np.flatnonzero(is_pattern)
    patterns = keys[indices]
    missing = np.flatnonzero(partners < 0)
    rests = wanted[missing]
    while len(missing):
        # Each round cuts the first part of the path, so the longest pattern that matches is found first.
        _, slashes, rests = np.strings.partition(rests, b"/")
        has_rest = slashes != b""
        missing, rests = missing[has_rest], rests[has_rest]
        matches = _partners(rests, patterns)
        is_match = matches >= 0
        partners[missing[is_match]] = indices[matches[is_match]]
        missing, rests = missing[~is_match], rests[~is_match]


def _partners_by_table(
    wanted: npt.NDArray[Any], keys: npt.NDArray[Any], smallest: int, span: int
) -> npt.NDArray[np.int64]:
    """Find partners without sorting, for keys that lie close together, like the numbers of sequences."""
    table = np.full(span, -1, np.int64)
    # Fill the table from the end, so that the first occurrence of a repeated key remains.
    table[(keys - keys.dtype.type(smallest))[::-1]] = np.arange(len(keys) - 1, -1, -1)
    is_inside = (wanted >= smallest) & (wanted < smallest + span)
    partners = np.full(len(wanted), -1, np.int64)
    partners[is_inside] = table[wanted[is_inside] - wanted.dtype.type(smallest)]
    return partners

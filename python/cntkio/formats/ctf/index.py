"""The index of a text: its sequences and chunks, from a pass over the text or from the cache.

::

    blocks of lines ── core ──> parts: keys, offsets, lengths    one for each block, or for all of the file
                                  │
                                  joined over the borders of blocks
                                  │
                                  judged: sequences to leave out, ids that repeat, the starts of chunks

The same pass can parse the first chunks (`FirstPass`), which saves reading them twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio._threads import num_threads
from cntkio.errors import FormatError
from cntkio.formats.columns import (
    CountedKeys,
    Keys,
    NumberKeys,
    are_all_the_same,
    compact_keys,
    compact_lengths,
    same_lengths,
    stored_keys,
)
from cntkio.formats.compressed import explained
from cntkio.formats.contract import NOTHING_AHEAD, Ahead
from cntkio.formats.ctf import tuning
from cntkio.formats.ctf.findings import REMARKS, advice_at, byte_text
from cntkio.formats.ctf.lines import Start, find_start, map_lines
from cntkio.formats.ctf.places import Places
from cntkio.formats.detect import other_in
from cntkio.formats.index_cache import (
    Arrays,
    CacheWriter,
    DamagedCacheError,
    IndexCache,
    Remaking,
    StoredArrays,
    StoredColumn,
)
from cntkio.formats.input_file import Locator, content_sum
from cntkio.formats.passes import Add, announced, passed
from cntkio.formats.table import SequenceTable, key_value
from cntkio.formats.text_input import TextInput

_LARGEST_CHUNK = 2**63
_PASS = "indexing"  # the name of the pass
# Sequences of a remark that the index keeps in full. A corpus may have millions.
_MOST_EXAMPLES = 100


class StreamSchema(NamedTuple):
    """Facts about a stream that the parser needs.

    Attributes:
        alias: Its name in the file.
        is_sparse: Whether its samples are lists of index and value.
        dim: Values of a sample, or the bound of its indices.
        is_double: Whether its values are delivered as float64.
    """

    alias: bytes
    is_sparse: bool
    dim: int
    is_double: bool


class IndexSettings(NamedTuple):
    """Settings on which the index depends.

    Attributes:
        skip_sequence_ids: Whether each line is a sequence, whatever its id.
        defining: Name in the file of the stream that defines the minibatch size.
        chunk_size_in_bytes: Bytes of a chunk.
        text_keys: Whether ids are words.
    """

    skip_sequence_ids: bool
    defining: bytes | None
    chunk_size_in_bytes: int
    text_keys: bool

    @property
    def options(self) -> dict[str, Any]:
        """The options of the deserializer among them, for the messages of checkpoints."""
        return {
            "chunk_size_in_bytes": self.chunk_size_in_bytes,
            "skip_sequence_ids": self.skip_sequence_ids,
            "defines_mb_size": None if self.defining is None else self.defining.decode(errors="replace"),
        }


class FirstPass(NamedTuple):
    """Instructions to parse chunks in the same pass over the text.

    Attributes:
        ahead: The chunks that are needed immediately.
        schema: The streams.
        spare: Memory for their values.
        notes_unknown_names: Whether other names are worth a warning.
    """

    ahead: Ahead
    schema: list[StreamSchema]
    spare: _core.Spare
    notes_unknown_names: bool = False


NO_PASS = FirstPass(NOTHING_AHEAD, [], _core.Spare(0))
"""Parse nothing."""


class Example(NamedTuple):
    """A sequence that is worth a warning: its offset and its key."""

    offset: int
    key: int | str


class Remark(NamedTuple):
    """Sequences that are worth the same warning: their number, and the first few of them."""

    total: int
    examples: list[Example]


class TextIndex(NamedTuple):
    """The index of a text.

    Attributes:
        table: The sequences and chunks.
        places: Places of the sequences in the text.
        remarks: Sequences that are worth a warning, by kind of warning.
        parsed: The first chunks, if the same pass parsed them.
        content: Checksum of samples of the text.
        num_lines: Lines of the text, if keys count lines; None: keys are ids.
        cache: The cache file that the index comes from; None: it comes from the text.
        writer: Writes the cache; None: there is one, or none is wanted.
    """

    table: SequenceTable
    places: Places
    remarks: dict[str, Remark]
    parsed: list[_core.Chunk]
    content: str
    num_lines: int | None
    cache: Path | None = None
    writer: CacheWriter | None = None


class _Part(NamedTuple):
    """The sequences that begin in a part of the text.

    Attributes:
        num_head_lines: Lines before the first id of the part. They belong to the sequence before it.
        keys: Id of each sequence; empty if each line is a sequence.
        offsets: First byte of each sequence.
        lengths: Lines of each sequence, or samples of the stream that defines the minibatch size.
        bad_id: Offset of a number that does not fit 64 bits, or of a NUL byte in a word, if there is one.
        hollow: Offsets of the sequences whose first line is blank or has only comments.
    """

    num_head_lines: int
    keys: npt.NDArray[Any]
    offsets: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint32]
    bad_id: int | None
    hollow: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, scan: _core.CTFScan) -> _Part:
        return cls(scan.num_head_lines, scan.keys, scan.offsets, scan.lengths, scan.overflow, scan.hollow)

    def moved(self, begin: int) -> _Part:
        """The part with offsets that count from the beginning of the file."""
        if not begin:
            return self
        bad_id = None if self.bad_id is None else self.bad_id + begin
        base = np.uint64(begin)
        return self._replace(offsets=self.offsets + base, bad_id=bad_id, hollow=self.hollow + base)


class _Head(NamedTuple):
    """Number of lines of a part before its first id, and its number of ids."""

    num_lines: int
    num_ids: int

    @classmethod
    def of(cls, part: _Part) -> _Head:
        return cls(part.num_head_lines, len(part.keys))


class _Ahead(NamedTuple):
    """Result of indexing and parsing in one go: the parts, the chunks, sequences up to the end of each, and the end."""

    parts: list[_Part]
    chunks: list[_core.Chunk]
    num_sequences: list[int]
    end: int


class _Sequences(NamedTuple):
    """All sequences of the text."""

    keys: Keys
    offsets: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint32]
    sizes: npt.NDArray[np.uint32]

    def only(self, is_kept: npt.NDArray[np.bool_]) -> _Sequences:
        return _Sequences(self.keys[is_kept], self.offsets[is_kept], self.lengths[is_kept], self.sizes[is_kept])


def cached_index(file: TextInput, settings: IndexSettings, first_pass: FirstPass, *, verify: bool) -> TextIndex:
    """Return the index from a cache that matches the file; else make it, and write the cache on another thread.

    Raises the errors of `make_index`.
    """
    cache = IndexCache(
        file,
        {
            "format": "ctf",
            "skip_sequence_ids": settings.skip_sequence_ids,
            "defining": None if settings.defining is None else settings.defining.decode("latin-1"),
            "chunk_size_in_bytes": settings.chunk_size_in_bytes,
        },
        verify=verify,
    )

    def make_again() -> Arrays:
        file.require_unchanged()
        facts, arrays = _stored(make_index(file, settings, NO_PASS))
        cache.write(facts, arrays)
        return arrays

    cached = cache.read(lambda arrays: _from_cache(file, arrays, settings, Remaking(arrays.path, make_again)))
    if cached is not None:
        passed(file.size)
        return cached
    index = make_index(file, settings, first_pass)
    facts, arrays = _stored(index)
    return index._replace(writer=CacheWriter(lambda: cache.write(facts, arrays)))


def _stored(index: TextIndex) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the facts and arrays that the cache keeps."""
    keys, lengths = stored_keys(index.table.keys), index.table.lengths
    facts: dict[str, Any] = {
        "remarks": index.remarks, "first_key": None, "length": None, "content": index.content,
        "num_lines": index.num_lines,
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


def _from_cache(file: TextInput, arrays: StoredArrays, settings: IndexSettings, remake: Remaking) -> TextIndex:
    facts = arrays.facts
    chunk_starts = arrays.read("chunk_starts")
    count = int(chunk_starts[-1])
    first_key, length, num_lines = facts["first_key"], facts["length"], facts["num_lines"]
    if any(type(fact) is not int for fact in (first_key, length, num_lines) if fact is not None):
        raise DamagedCacheError("a fact is not a whole number")
    lengths = arrays.read("lengths") if length is None else same_lengths(length, count)
    keys = NumberKeys(StoredColumn(arrays, "keys", remake)) if first_key is None else CountedKeys(first_key, count)
    places = Places.from_cache(arrays, remake)
    if (
        {len(keys), len(lengths), len(places)} != {count}
        or len(chunk_starts) != places.num_chunks + 1
        or chunk_starts[0] != 0
        or np.any(chunk_starts[:-1] >= chunk_starts[1:])
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
    table = SequenceTable(keys, lengths, chunk_starts, options=settings.options)
    return TextIndex(table, places, remarks, [], str(facts["content"]), num_lines, arrays.path)


def make_index(file: TextInput, settings: IndexSettings, first_pass: FirstPass) -> TextIndex:
    """Make the index in one pass over the text.

    Raises:
        OSError: The file cannot be read.
        FormatError: The text does not begin as the format asks, an id does not fit 64 bits, or a line or a sequence
            has 4 GiB or more.
        CorpusError: The file was changed during the pass.
    """
    start = find_start(file)
    in_lines = _is_in_lines(file, start, settings)
    limit = min(settings.chunk_size_in_bytes, _LARGEST_CHUNK)
    ahead = _Ahead([], [], [], start.offset)
    with announced(_PASS, file.size - start.offset) as add:
        if settings.defining is None and not settings.text_keys:
            ahead = _parse_ahead(file, first_pass, start.offset, limit, in_lines)
        if settings.text_keys:
            rest = _word_parts(file, ahead.end, settings)
        else:
            passed(ahead.end - start.offset)
            rest = _parts(file, ahead.end, settings, in_lines, add)
    parts = ahead.parts
    parts += rest
    rest.clear()
    num_lines = start.num_lines + sum(len(part.offsets) for part in parts) if in_lines else None
    sequences = _joined(file, start, parts, in_lines)
    sequences, remarks = _judged(sequences, settings, in_lines)
    keys, offsets, sizes, lengths = (
        sequences.keys,
        sequences.offsets,
        sequences.sizes,
        compact_lengths(sequences.lengths),
    )
    del sequences  # its lengths may take four times as much memory
    chunk_starts = _core.ctf_chunk_starts(offsets, sizes, limit)
    places = Places.of(offsets, sizes, chunk_starts)
    # If the file has changed during the pass, drop the parsed chunks; loading will report the change.
    fits = chunk_starts[1 : len(ahead.chunks) + 1].tolist() == ahead.num_sequences
    table = SequenceTable(keys, lengths, chunk_starts, options=settings.options)
    return TextIndex(table, places, remarks, ahead.chunks if fits else [], content_sum(file), num_lines)


_WORDS_AS_IDS = "; ids that are words are read only in a join with others; otherwise, number the sequences"


def _is_in_lines(file: TextInput, start: Start, settings: IndexSettings) -> bool:
    """Return whether each line is a sequence."""
    head = file.read(start.offset, 1)
    in_lines = settings.skip_sequence_ids or head == b"|"
    if settings.text_keys and in_lines:
        raise _error_at(
            file,
            start,
            "the lines have no ids, but another deserializer has words as ids; expected one at the start of each line",
        )
    if not in_lines and not settings.text_keys and not head.isdigit():
        raise _error_at(
            file,
            start,
            f"{byte_text(head)} where the first sequence id or a pipe should be; "
            f"expected a number without sign, or '|'",
            advice_at("junk", head) or (_WORDS_AS_IDS if head.isalpha() else ""),
        )
    return in_lines


def _error_at(file: TextInput, start: Start, what: str, advice: str = "") -> FormatError:
    what += other_in("ctf", file) or advice
    return FormatError(what, path=file.path, byte=start.offset, line=start.num_lines + 1)


# -------------------------------------------------------------------------------------------------- finding sequences


def _parts(file: TextInput, first: int, settings: IndexSettings, in_lines: bool, add: Add | None) -> list[_Part]:
    """Find the sequences from an offset on, and add each window to the pass."""
    parts = []
    with explained(file):
        for text, first_line, begin, end in file.windows(first):
            source = text.source(begin, end)
            step = end - begin if add is None else tuning.WATCHED
            for at in range(begin, end, step):
                bounds = at, min(at + step, end)
                block = min(tuning.BLOCK, bounds[1] - at)  # fresh memory takes longer than a small file
                scan = _core.ctf_index(source, first_line, bounds, in_lines, settings.defining, block, num_threads())
                if scan.long_line is not None:
                    what = "a line of 4 GiB or more; expected a shorter line"
                    raise FormatError(what, path=file.path, byte=scan.long_line)
                parts.append(_Part.of(scan))
                passed(bounds[1] - at)
    return parts


def _word_parts(file: TextInput, first: int, settings: IndexSettings) -> list[_Part]:
    """Find the sequences from an offset on whose ids are words."""

    def find(block: npt.NDArray[np.uint8]) -> _Part:
        num_head_lines, (words, width), offsets, lengths, nul = _core.ctf_scan_words(block, settings.defining)
        return _Part(num_head_lines, words.view(f"S{width}"), offsets, lengths, nul, np.empty(0, np.uint64))

    return [part.moved(begin) for begin, part in map_lines(file, first, find, _PASS)]


def _parse_ahead(file: TextInput, first_pass: FirstPass, first: int, limit: int, in_lines: bool) -> _Ahead:
    """Index and parse the first chunks in one go, as many as are needed immediately."""
    ahead = first_pass.ahead
    done = _Ahead([], [], [], first)
    is_too_long = ahead.num_chunks is not None and file.size - first > ahead.num_chunks * limit
    if ahead.num_bytes == 0 or is_too_long or file.size - first > file.reach:
        return done
    source = file.source(first, file.size)
    borders = _core.ctf_chunk_borders(source, first, limit, in_lines)
    schema = _core.CTFSchema(first_pass.schema, is_compact=True, notes_unknown_names=first_pass.notes_unknown_names)
    num_bytes = num_sequences = 0
    while len(done.chunks) < len(borders) - 1:
        # Expect the next chunks to be as large as the chunks so far.
        room = (ahead.num_bytes - num_bytes) * len(done.chunks) // num_bytes if num_bytes else 1
        if ahead.num_chunks is not None:
            room = len(borders)
        if room < 1:
            break
        wanted = borders[len(done.chunks) : len(done.chunks) + room + 1]
        indexed = _core.ctf_index_chunks(source, wanted, in_lines, schema, num_threads(), tuning.PART, first_pass.spare)
        for entry in indexed:
            if entry is None:  # the text has errors: index it without parsing
                return done._replace(end=borders[len(done.chunks)])
            scans, chunk = entry
            done.parts.extend(map(_Part.of, scans))
            num_sequences += chunk.num_sequences
            num_bytes += chunk.num_bytes
            done.chunks.append(chunk)
            done.num_sequences.append(num_sequences)
    return done._replace(end=borders[len(done.chunks)])


# -------------------------------------------------------------------------------------------------- joining and judging


def _joined(file: TextInput, start: Start, parts: list[_Part], in_lines: bool) -> _Sequences:
    """Join the parts and empty their list, column by column, so that only one column is in memory twice."""
    for part in parts:
        if part.bad_id is not None:
            number = "a sequence id of 2^64 or more; expected at most 18446744073709551615"
            word = "a NUL byte in a sequence id; expected text"
            raise Locator(file).error(part.bad_id, word if part.keys.dtype.kind == "S" else number)
    del part
    heads = [_Head.of(part) for part in parts]
    rows = [(part.offsets, part.lengths, part.keys, part.hollow) for part in parts]
    columns = list(map(list, zip(*rows, strict=True)))
    rows.clear()
    parts.clear()
    offsets, lengths, ids, hollow = map(_concatenated, columns)
    if in_lines:
        keys: Keys = CountedKeys(start.num_lines, len(offsets))
    else:
        is_continued = _join_over_borders(heads, ids, lengths)
        if is_continued.any():
            ids, offsets, lengths = (array[~is_continued] for array in (ids, offsets, lengths))
        keys = ids
    if not len(keys):
        raise _error_at(file, start, "the file holds nothing except a number")
    sizes, too_long = _core.ctf_sizes(offsets, file.size)
    if too_long is not None:
        end = offsets[too_long + 1] if too_long + 1 < len(offsets) else file.size
        raise FormatError(
            f"a sequence of {int(end) - int(offsets[too_long])} bytes; expected less than 4 GiB",
            path=file.path,
            byte=int(offsets[too_long]),
            sequence=key_value(keys[too_long]),
        )
    sequences = _Sequences(keys, offsets, lengths, sizes)
    return _without_empty(file, start, sequences, hollow, in_lines) if len(hollow) else sequences


def _without_empty(
    file: TextInput, start: Start, sequences: _Sequences, hollow: npt.NDArray[np.uint64], in_lines: bool
) -> _Sequences:
    """Leave out the sequences whose lines are all blank or contain only comments."""
    which = np.searchsorted(sequences.offsets, hollow)
    # Lines that continue a sequence of the previous part are not a sequence.
    which = which[sequences.offsets[np.minimum(which, len(sequences.offsets) - 1)] == hollow]
    if not in_lines:
        begins = sequences.offsets[which]
        which = which[_are_nothing(file, begins, begins + sequences.sizes[which])]
    is_kept = np.ones(len(sequences.offsets), np.bool_)
    is_kept[which] = False
    if not is_kept.any():
        raise _error_at(file, start, "the file holds nothing except blank lines and comments")
    return sequences.only(is_kept)


def _are_nothing(file: TextInput, begins: npt.NDArray[np.uint64], ends: npt.NDArray[np.uint64]) -> list[bool]:
    """Return for each sequence whether all of its lines are blank or contain only comments."""
    found: list[bool] = []
    while len(found) < len(begins):
        first = len(found)
        begin = int(begins[first])
        last = max(int(np.searchsorted(ends, min(begin + file.reach, file.size), side="right")), first + 1)
        source = file.source(begin, int(ends[last - 1]))
        found += _core.ctf_are_nothing(source, begins[first:last], ends[first:last], num_threads())
    return found


def _concatenated(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Join arrays, and empty their list."""
    joined = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    arrays.clear()
    return joined


def _join_over_borders(
    heads: list[_Head], keys: npt.NDArray[Any], lengths: npt.NDArray[np.uint32]
) -> npt.NDArray[np.bool_]:
    """Add to each sequence its lines in later parts, and mark the entries that only continue an earlier sequence."""
    is_continued = np.zeros(len(keys), np.bool_)
    owner = -1  # the last sequence of the previous part
    first = 0
    for head in heads:
        if head.num_lines:
            lengths[owner] += head.num_lines
        count = head.num_ids
        if not count:
            continue
        continues = owner >= 0 and keys[owner] == keys[first]
        if continues:
            is_continued[first] = True
            lengths[owner] += lengths[first]
        if not continues or count > 1:
            owner = first + count - 1
        first += count
    return is_continued


def _judged(sequences: _Sequences, settings: IndexSettings, in_lines: bool) -> tuple[_Sequences, dict[str, Remark]]:
    """Leave out sequences without a sample of the defining stream, and remark on them and on ids that repeat."""
    remarks: dict[str, Remark] = {}
    if settings.defining is not None:
        is_left_out = sequences.lengths == 0
        if is_left_out.any():
            kind = "line left out" if in_lines else "sequence left out"
            remarks[kind] = _remark(np.flatnonzero(is_left_out), sequences)
            sequences = sequences.only(~is_left_out)
    keys = sequences.keys
    if isinstance(keys, np.ndarray):
        are_ascending = bool(np.all(keys[1:] > keys[:-1]))
        repeated = np.empty(0, np.int64) if in_lines or are_ascending else _repeated(keys)
        if len(repeated):
            remarks["repeated id"] = _remark(repeated, sequences)
        if len(keys) and not settings.text_keys:
            sequences = sequences._replace(keys=compact_keys(keys, are_ascending=are_ascending))
    return sequences, remarks


def _remark(which: npt.NDArray[np.int64], sequences: _Sequences) -> Remark:
    first = which[:_MOST_EXAMPLES]
    examples = zip(sequences.offsets[first].tolist(), map(key_value, sequences.keys[first]), strict=True)
    return Remark(len(which), [Example(*example) for example in examples])


def _repeated(keys: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the sequences whose key an earlier sequence has."""
    ordered = np.sort(keys)
    if not (ordered[1:] == ordered[:-1]).any():
        return np.empty(0, np.int64)  # as usual, and the order of all keys takes twice as much memory
    order = np.argsort(keys, kind="stable")
    is_again = keys[order][1:] == keys[order][:-1]
    return np.sort(order[1:][is_again])

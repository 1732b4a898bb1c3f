"""The index of a text: where its sequences and chunks are, found in a pass over the text.

::

    blocks of lines ── core ──> parts: keys, offsets, lengths    one for each block, or for all of the file
                                  │
                                  joined over the borders of blocks
                                  │
                                  judged: sequences to leave out, ids that repeat, the starts of chunks

The same pass can parse the first chunks (`FirstPass`), which saves reading them twice. An index cache
(`cntkio.storage.index_cache`) keeps an index in a file.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._threads import num_threads
from cntkio.errors import CorpusError, FormatError
from cntkio.formats.contract import Ahead
from cntkio.formats.ctf.findings import LONGEST_WORD, REMARKS, advice_at, byte_text
from cntkio.formats.detect import other_in
from cntkio.formats.report import EMPTY_FILE
from cntkio.formats.table import (
    Keys,
    Lengths,
    SequenceTable,
    are_all_the_same,
    compact_lengths,
    joined_and_freed,
    joined_lengths,
    same_lengths,
)
from cntkio.storage.index_cache import (
    CachedArrays,
    CacheFiles,
    CacheWriter,
    DamagedCacheError,
    IndexCache,
    Remaking,
    StoredArrays,
    StoredColumn,
    Written,
)
from cntkio.storage.progress import announced, passed
from cntkio.storage.spans import SlicedNumbers, span_at
from cntkio.storage.text_input import (
    CoreText,
    Locator,
    TextInput,
    content_sum,
    explained,
    line_from,
    long_line_error,
    map_lines,
    windows_of,
)

# Sizes by which a text is divided among threads. They change only the time, never a result.
SHARE = 1 << 20
"""Bytes that a thread indexes at a time. Its lists take up to nine times as much memory, if lines are very short."""
SHARE_WITH_IDS = 4 << 20
"""The same if sequences have ids, whose lists stay in memory up to the end: small lists would not be freed then."""
AREA = 16 << 20
"""Least bytes of text that a call indexes. What they take beyond the index is in memory at the same time."""
PART = 512 << 10
"""Bytes that are indexed and parsed in one go: together with their values, they fit the cache of a core."""

# --------------------------------------------------------------------------------------------------------------
# The beginning of a text, and its lines in blocks for threads.

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WHITE_SPACE = b" \t\n\v\f\r"
_READ = 1 << 16


class TextStart(NamedTuple):
    """The first byte of a text that is not white space, and the number of lines before it."""

    offset: int
    num_lines: int


def find_start(file: TextInput) -> TextStart:
    """Skip a byte order mark, or a part of one, and white space. A text of nothing else, or in UTF-16, is an error."""
    mark = file.read(0, len(_BYTE_ORDER_MARK))
    if mark[:2] == b"\xff\xfe":
        raise FormatError(other_in("ctf", file, before=""), path=file.path, byte=0)
    if not mark:
        raise FormatError("the file is empty", path=file.path, byte=0, kind=EMPTY_FILE)
    # CNTK skips an incomplete mark, too.
    offset = next((size for size in (3, 2, 1) if mark[:size] == _BYTE_ORDER_MARK[:size]), 0)
    if offset == file.size:
        raise FormatError("the file is empty except for a byte order mark", path=file.path, byte=0, kind=EMPTY_FILE)
    num_lines = 0
    while offset < file.size:
        block = file.read(offset, _READ)
        text = block.lstrip(_WHITE_SPACE)
        white = block[: len(block) - len(text)]
        num_lines += white.count(b"\n")
        offset += len(white)
        if text or not block:  # the file may have become shorter since it was opened
            break
    if offset >= file.size:
        raise FormatError("the file contains only white space", path=file.path, byte=0, kind=EMPTY_FILE)
    return TextStart(offset, num_lines)


# --------------------------------------------------------------------------------------------------------------
# Places of sequences in a text, in as few bytes as they take.

PlacedBlock: TypeAlias = tuple[int, npt.NDArray[np.uint32], Lengths | None]
"""Some sequences of a text, one after the other: the offset from which their starts count, the start and the bytes of
each; None: each ends where the next starts."""


class ChunkPlaces(NamedTuple):
    """Places of a chunk's sequences.

    Attributes:
        begin: First byte of the first sequence.
        end: The byte after the last sequence.
        starts: First byte of each sequence, counted from `begin`; uint32 or uint64.
        sizes: Bytes of each sequence; None: each ends where the next sequence starts.
    """

    begin: int
    end: int
    starts: npt.NDArray[Any]
    sizes: npt.NDArray[np.uint32] | None

    def only(self, sequences: npt.NDArray[np.uint32]) -> ChunkPlaces:
        """Return the places of some of the chunk's sequences: their indices in the chunk, ascending."""
        # A wanted sequence does not end where the next wanted one starts, so the result always has sizes.
        starts = self.starts[sequences]
        if self.sizes is not None:
            sizes = self.sizes[sequences]
        else:
            last = len(self.starts) - 1
            ends = self.starts[np.minimum(sequences + np.uint32(1), last)]
            if len(sequences) and sequences[-1] == last:
                ends[-1] = self.end - self.begin
            sizes = (ends - starts).astype(np.uint32)
        if not len(starts):
            return ChunkPlaces(self.begin, self.begin, starts, sizes)
        first, end = int(starts[0]), int((starts.astype(np.int64) + sizes).max())
        return ChunkPlaces(self.begin + first, self.begin + end, starts - starts[0], sizes)

    def ranges(self, least_gap: int) -> list[tuple[int, int]]:
        """Return ranges of bytes, counted from `begin`, that contain all sequences but no gap of `least_gap` bytes.

        Call it only on the result of `only`.
        """
        assert self.sizes is not None
        if not len(self.starts):
            return []
        starts = self.starts.astype(np.int64)
        ends = np.maximum.accumulate(starts + self.sizes)
        cuts = np.flatnonzero(starts[1:] - ends[:-1] >= least_gap)
        firsts, lasts = np.append(0, cuts + 1), np.append(cuts, len(starts) - 1)
        return list(zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True))

    @property
    def num_bytes(self) -> int:
        """Bytes of the sequences."""
        return max(self.end - self.begin, 0) if self.sizes is None else int(self.sizes.sum(dtype=np.int64))


@dataclasses.dataclass(eq=False)
class Places:
    """Places of all sequences. The columns may be arrays of an index cache, which are read chunk by chunk.

    Attributes:
        begins: First byte of each chunk.
        ends: The byte after each chunk.
        starts: First byte of each sequence, counted from the beginning of its chunk.
        sizes: Bytes of each sequence; None: each ends where the next sequence of its chunk starts.
    """

    begins: npt.NDArray[np.uint64]
    ends: npt.NDArray[np.uint64]
    starts: SlicedNumbers
    sizes: SlicedNumbers | None

    @classmethod
    def of(cls, blocks: list[PlacedBlock], ends: list[int], limit: int) -> tuple[Places, npt.NDArray[np.int64]]:
        """Group sequences into chunks of at most `limit` bytes.

        Args:
            blocks: The sequences, block by block. The list is emptied. All blocks have sizes, or none.
            ends: The byte after the last sequence of each block.

        Returns:
            The places; and the first sequence of each chunk and, last, the number of sequences.
        """
        has_sizes = blocks[0][2] is not None
        # A chunk has at most `limit` bytes before a sequence is added, and the text that was left out right before that
        # sequence does not count. So the largest start in a chunk may be the sum of both.
        num_bytes = sum(int(own.sum(dtype=np.uint64)) for *_, own in blocks if own is not None)
        left_out = ends[-1] - blocks[0][0] - num_bytes if has_sizes else 0
        dtype = np.uint32 if min(limit + left_out, ends[-1]) < 2**32 else np.uint64
        starts: list[npt.NDArray[Any]] = []
        sizes: list[Lengths] = []
        begun: list[_core.CTFBegun] = []
        last = None
        # Blocks are taken from the end of the list, so that each block is freed before the next block is placed.
        blocks.reverse()
        for end in ends:
            begin, of_block, sizes_of_block = blocks.pop()
            starts.append(of_block.astype(dtype, copy=False))
            if sizes_of_block is not None:
                sizes.append(sizes_of_block)
            # The core replaces the starts in the array: from now on they count from their chunk.
            words = None if sizes_of_block is None else sizes_of_block.astype(np.uint32, copy=False)
            begun.append(_core.ctf_place(begin, starts[-1], words, end, limit, last))
            last = begun[-1].open
        before = np.cumsum([0, *map(len, starts)])
        firsts = [each.firsts + num_before for each, num_before in zip(begun, before, strict=False)]
        begins = np.concatenate([each.begins for each in begun])
        last_end = np.array([] if last is None else [last[1]], np.uint64)
        chunk_ends = np.concatenate([*(each.ends for each in begun), last_end])
        del of_block, sizes_of_block, words
        joined_sizes = joined_and_freed(sizes, np.result_type(*sizes)) if has_sizes else None
        places = cls(begins, chunk_ends, joined_and_freed(starts, dtype), joined_sizes)
        return places, np.concatenate([*firsts, before[-1:]])

    def first_bytes(
        self, sequences: npt.NDArray[np.int64], chunk_starts: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return the first byte of each of these sequences in the file."""
        # In ascending order each chunk is read once.
        order = np.argsort(sequences)
        ascending = sequences[order]
        chunk_ids = span_at(chunk_starts, ascending)
        found = np.empty(len(sequences), np.int64)
        bounds = np.flatnonzero(np.diff(chunk_ids, prepend=-1, append=-1)).tolist()
        for begin, end in itertools.pairwise(bounds):
            mine = ascending[begin:end]
            # A column of an index cache is read in slices only, so the items are selected from a slice.
            starts = self.starts[int(mine[0]) : int(mine[-1]) + 1][mine - mine[0]]
            found[order[begin:end]] = int(self.begins[chunk_ids[begin]]) + starts.astype(np.int64)
        return found

    def of_chunk(self, chunk_id: int, first: int, last: int) -> ChunkPlaces:
        """Return the places of a chunk, which has the sequences from `first` up to `last`."""
        sizes = None if self.sizes is None else self.sizes[first:last].astype(np.uint32, copy=False)
        return ChunkPlaces(int(self.begins[chunk_id]), int(self.ends[chunk_id]), self.starts[first:last], sizes)


# --------------------------------------------------------------------------------------------------------------
# The index.

# Limit for the bytes of a chunk: the core's integers have room for it, and no text is larger.
_LARGEST_CHUNK = 2**63
_PASS = "indexing"  # the name of the pass
# Sequences of a remark that the index keeps in full. A corpus may have millions.
_NO_HOLLOW = np.empty(0, np.uint32)  # no part of an array, which would keep all of it in memory
_MOST_EXAMPLES = 100


class StreamSchema(NamedTuple):
    """Facts about a stream that the parser needs.

    Attributes:
        dim: Values of a sample, or the bound of its indices.
        number: Type of its delivered values, as an index of `NUMBER_TYPES`.
    """

    alias: bytes
    is_sparse: bool
    dim: int
    number: int


class Notes(NamedTuple):
    """The choice of what the parser notes in addition to errors.

    Attributes:
        keeps_findings: Whether it keeps findings that cost time.
        unknown_names: Whether a name that no stream has is worth a warning.
    """

    keeps_findings: bool = False
    unknown_names: bool = False


class IndexSettings(NamedTuple):
    """Settings on which the index depends.

    Attributes:
        skip_sequence_ids: Whether each line is a sequence, whatever its id.
        defining: Name in the file of the stream that defines the minibatch size; None: no stream defines it.
        text_keys: Whether ids are words.
    """

    skip_sequence_ids: bool
    defining: bytes | None
    chunk_size_in_bytes: int
    text_keys: bool


class FirstPass(NamedTuple):
    """Instructions to parse chunks in the same pass over the text.

    Attributes:
        ahead: The chunks that are needed immediately.
        spare: Memory for their values.
        excluded: A byte; text that contains it is not parsed in the same pass.
        part_size: Bytes that a thread reads, indexes and parses at a time.
    """

    ahead: Ahead
    schema: _core.CTFSchema
    spare: _core.Spare
    excluded: int | None = None
    part_size: int = PART


class Remark(NamedTuple):
    """Sequences that are worth the same warning: their number, and the offset and the key of the first few of them."""

    total: int
    examples: list[tuple[int, int | str]]


class TextIndex(NamedTuple):
    """The index of a text.

    Attributes:
        remarks: Sequences that are worth a warning, by kind of warning.
        parsed: The first chunks, if the same pass parsed them.
        content: Checksum of samples of the text.
        num_lines: Lines of the text, if keys count lines; None: keys are ids.
        numbers: Numbers that a format keeps with its index.
        caches: The cache file that the index comes from, or the writer of the cache; none if no cache is wanted.
        guide: `Storage.guide`.
    """

    table: SequenceTable
    places: Places
    remarks: dict[str, Remark]
    parsed: Sequence[_core.Chunk] = ()
    content: str = ""
    num_lines: int | None = None
    numbers: tuple[int, ...] = ()
    caches: CacheFiles = CacheFiles()
    guide: object = None


class Part(NamedTuple):
    """The sequences that begin in a part of the text, which has less than 4 GiB.

    Attributes:
        num_head_lines: Lines before the first id of the part. They belong to the sequence before it.
        keys: Id of each sequence; empty if each line is a sequence.
        begin: Offset from which `starts` count.
        starts: First byte of each sequence, counted from `begin`.
        lengths: Lines of each sequence, or samples of the stream that defines the minibatch size.
        hollow: First bytes of the sequences whose first line is blank or has only comments, counted from `begin`.
        end: The byte after the last sequence, once the parts are joined.
        sizes: Bytes of each sequence; None: each ends where the next starts. All parts have sizes, or none.
        kept: If lines are sequences, and some were left out: which are left, a bit for each line of the part.
        num_lines: Number of lines, if lines are sequences.
    """

    num_head_lines: int
    keys: npt.NDArray[Any]
    begin: int
    starts: npt.NDArray[np.uint32]
    lengths: Lengths
    hollow: npt.NDArray[np.uint32]
    end: int = 0
    sizes: Lengths | None = None
    kept: npt.NDArray[np.uint8] | None = None
    num_lines: int = 0

    @classmethod
    def of(cls, scan: _core.CTFScan) -> Part:
        count, lengths = len(scan.starts), scan.lengths
        # The core returns a single length if all are the same.
        if len(lengths) != count or count == 1:
            lengths = same_lengths(int(lengths[0]), count)
        keys, starts = scan.keys, scan.starts
        return cls(scan.num_head_lines, keys, scan.begin, starts, lengths, scan.hollow, num_lines=count)

    def only(self, sequences: slice | npt.NDArray[np.bool_]) -> Part:
        """Return the part with some of its sequences."""
        keys = self.keys[sequences] if len(self.keys) else self.keys
        sizes = None if self.sizes is None else self.sizes[sequences]
        return self._replace(keys=keys, starts=self.starts[sequences], lengths=self.lengths[sequences], sizes=sizes)

    def to_the_next(self) -> npt.NDArray[np.uint32]:
        """Return the bytes from the start of each sequence to the next start, or to the end of the part."""
        sizes = np.empty_like(self.starts)
        np.subtract(self.starts[1:], self.starts[:-1], out=sizes[:-1])
        sizes[-1] = self.end - self.begin - int(self.starts[-1])
        return sizes

    def compacted(self, is_kept: npt.NDArray[np.bool_], in_lines: bool) -> Part:
        """Return the part with some of its sequences, in as few bytes as they take.

        Args:
            in_lines: Whether lines are sequences. Then the part says which lines are left, for their numbers.
        """
        # Taken before anything is left out: after that, a sequence may end before the next one starts.
        sizes = self.to_the_next()[is_kept]
        sizes = sizes.astype(np.min_scalar_type(int(sizes.max(initial=0))))
        is_same = are_all_the_same(self.lengths)
        lengths = self.lengths[: len(sizes)] if is_same else compact_lengths(self.lengths[is_kept])
        part = self.only(is_kept)._replace(lengths=lengths, hollow=_NO_HOLLOW, sizes=sizes)
        if in_lines:
            return part._replace(kept=np.packbits(is_kept))
        # All parts with ids wait in memory until they are joined, and memory of copies would not return to the system.
        keys, starts = self.keys[: len(part.keys)], self.starts[: len(part.starts)]
        keys[:], starts[:] = part.keys, part.starts
        return part._replace(keys=keys, starts=starts)

    def without_hollow(self) -> Part:
        """Return the part, whose lines are sequences, without lines that are blank or comments."""
        is_kept = np.ones(len(self.starts), np.bool_)
        is_kept[np.searchsorted(self.starts, self.hollow)] = False
        return self.compacted(is_kept, True)

    def longer(self, more: int) -> Part:
        """Return the part with a number added to its last length."""
        lengths, length = self.lengths, int(self.lengths[-1]) + more
        # Equal lengths share one number in memory, and a narrow type may lack room: both need a new array.
        if are_all_the_same(lengths) or length > np.iinfo(lengths.dtype).max:
            lengths = lengths.astype(np.min_scalar_type(max(length, int(lengths.max()))))
        lengths[-1] = length
        return self._replace(lengths=lengths)


def make_index(
    file: TextInput, settings: IndexSettings, first_pass: FirstPass | None, found: Iterator[list[Part]] | None = None
) -> TextIndex:
    """Make the index in one pass over the text, or of what other passes have found.

    Args:
        first_pass: None: no chunk is parsed.
        found: All parts, in order; None: they are found in a pass.

    Raises:
        OSError: The file cannot be read.
        FormatError: The text does not begin as the format asks, an id does not fit 64 bits, or a line or a sequence
            has 4 GiB or more.
        CorpusError: The file was changed during the pass.
    """
    start = find_start(file)
    in_lines = _is_in_lines(file, start, settings)
    # A line that continues no other, and counts whatever it has, is judged as soon as it is found.
    are_judged = in_lines and settings.defining is None
    parts: list[Part] = []
    chunks: list[_core.Chunk] = []
    end = start.offset
    with announced(_PASS, file.size - start.offset):
        if settings.text_keys:
            parts = _word_parts(file, end, settings)
        else:
            # The core parses in the same pass only where all lines count.
            if first_pass is not None and settings.defining is None:
                chunks, end = _parse_ahead(file, first_pass, parts, end, settings.chunk_size_in_bytes, in_lines)
            passed(end - start.offset)
            if end < file.size:
                for some in found or _scanned(file, end, settings, in_lines):
                    parts += some
                    if are_judged:
                        leave_out_hollow(parts)
    # With the lines that are left out, because the keys of later lines and files count these lines, too.
    num_lines = start.num_lines + sum(part.num_lines for part in parts) if in_lines else None
    remarks = {}
    if are_judged:
        leave_out_hollow(parts, file.size)
        _require_sequences(file, start, parts)
        # If lines were left out, all parts say so.
        if any(part.kept is not None for part in parts):
            parts[:] = [part if part.kept is not None else part.without_hollow() for part in parts]
    else:
        join_over_borders(file, start, parts)
        remarks = _leave_out(file, start, parts, settings, in_lines)
    index = index_of_parts(file, parts, start.num_lines if in_lines else None, settings.chunk_size_in_bytes)
    # If the file has changed during the pass, drop the parsed chunks; loading will report the change.
    bounds = np.cumsum([chunk.num_sequences for chunk in chunks]).tolist()
    parsed = chunks if index.table.chunk_starts[1 : len(chunks) + 1].tolist() == bounds else []
    return index._replace(remarks=remarks | index.remarks, parsed=parsed, num_lines=num_lines)


_WORDS_AS_IDS = "; ids that are words are read only in a join with others; otherwise, number the sequences"


def _is_in_lines(file: TextInput, start: TextStart, settings: IndexSettings) -> bool:
    """Return whether each line is a sequence."""
    head = file.read(start.offset, 1)
    in_lines = settings.skip_sequence_ids or head == b"|"
    if settings.text_keys and in_lines:
        what = "the lines have no ids, but another deserializer has words as ids"
        raise _error_at(file, start, f"{what}; expected one at the start of each line")
    if not in_lines and not settings.text_keys and not head.isdigit():
        what = f"{byte_text(head)} where the first sequence id or a pipe should be"
        advice = _WORDS_AS_IDS if head.isalpha() else advice_at("junk", file.read(start.offset, LONGEST_WORD))
        raise _error_at(file, start, f"{what}; expected a number without sign, or '|'", advice)
    return in_lines


def _error_at(file: TextInput, start: TextStart, what: str, advice: str = "", kind: str | None = None) -> FormatError:
    what += other_in("ctf", file) or advice
    return FormatError(what, path=file.path, byte=start.offset, line=start.num_lines + 1, kind=kind)


# -------------------------------------------------------------------------------------------------- finding sequences


def _scanned(
    file: TextInput, first: int, settings: IndexSettings, in_lines: bool, last: int | None = None
) -> Iterator[list[Part]]:
    """Find the sequences from the line at an offset to the line at `last`, or to the end."""

    def scan(area: Area) -> tuple[list[_core.CTFScan], int | None]:
        indexed = _core.ctf_index(area, in_lines, settings.defining, num_threads())
        if indexed.bad_id is not None:
            what = "a sequence id of 2^64 or more; expected at most 18446744073709551615"
            raise Locator(file).error(indexed.bad_id, what)
        return indexed.scans, indexed.long_line

    return scanned_parts(file, first, scan, SHARE if in_lines else SHARE_WITH_IDS, last)


def leave_out_hollow(parts: list[Part], end: int | None = None) -> None:
    """Leave out lines that are blank or comments. The last part waits for the part after it, which gives its end.

    Args:
        end: The end of the last part; None: more parts follow.
    """
    first = next((number for number in range(len(parts), 0, -1) if parts[number - 1].end), 0)
    later = [part for part in parts[first:] if len(part.starts)]
    ends = [part.begin + int(part.starts[0]) for part in later[1:]]
    for number, end_of_part in enumerate(ends if end is None else [*ends, end]):
        part = later[number]._replace(end=end_of_part)
        later[number] = part.without_hollow() if len(part.hollow) else part
    parts[first:] = later


class Area(NamedTuple):
    """A part of a text.

    Attributes:
        source: The text, or the part of it that has the area.
        first_line: Offset of a line that begins at the area or before it.
        share: Bytes that a thread takes at a time; no more than the area has, since fresh memory costs time.
    """

    source: CoreText
    first_line: int
    begin: int
    end: int
    share: int


def scanned_parts(
    file: TextInput,
    first: int,
    scan: Callable[[Area], tuple[list[_core.CTFScan], int | None]],
    share: int = SHARE,
    last: int | None = None,
) -> Iterator[list[Part]]:
    """Find the sequences of a text, from an offset on, area by area, and add each to the pass that makes the index.

    Args:
        scan: Returns the sequences of an area, and the offset of a line that is too long, if there is one.
        share: Bytes that a thread takes at a time.
        last: Offset of a line, where the pass ends; None: at the end of the text.
    """
    with explained(file):
        for text, first_line, begin, end in windows_of(file, first, last):
            source = text.source(begin, end)
            # A few shares for each thread, since the slowest thread ends the call.
            step = max(AREA, 4 * num_threads() * share)
            for at in range(begin, end, step):
                end_of_area = min(at + step, end)
                scans, long_line = scan(Area(source, first_line, at, end_of_area, min(share, end_of_area - at)))
                if long_line is not None:
                    raise long_line_error(file.path, long_line)
                yield list(map(Part.of, scans))
                passed(end_of_area - at)


def _word_parts(file: TextInput, first: int, settings: IndexSettings) -> list[Part]:

    def find(block: npt.NDArray[np.uint8]) -> tuple[Part, _core.CTFWordScan]:
        scan = _core.ctf_scan_words(block, settings.defining)
        words, width = scan.words
        # All sequences begin in the first `BLOCK` bytes of the lines, so 32 bits are enough.
        starts, lengths = scan.starts.astype(np.uint32), compact_lengths(scan.lengths)
        return Part(scan.num_head_lines, words.view(f"S{width}"), 0, starts, lengths, _NO_HOLLOW), scan

    parts = []
    for begin, (part, scan) in map_lines(file, first, find, _PASS):
        if scan.nul is not None:
            raise Locator(file).error(begin + scan.nul, "a NUL byte in a sequence id; expected text")
        if scan.long is not None:
            what = "a sequence id of more than 4096 bytes; expected at most 4096, and then white space"
            raise Locator(file).error(begin + scan.long, what)
        parts.append(part._replace(begin=begin))
    return parts


def _parse_ahead(
    file: TextInput, first_pass: FirstPass, parts: list[Part], first: int, chunk_size: int, in_lines: bool
) -> tuple[list[_core.Chunk], int]:
    """Index and parse the first chunks in one go, as many as are needed immediately, and append their parts.

    Returns the chunks, and the offset of the text after them.
    """
    ahead, limit = first_pass.ahead, min(chunk_size, _LARGEST_CHUNK)
    chunks: list[_core.Chunk] = []
    is_too_long = ahead.num_chunks is not None and file.size - first > ahead.num_chunks * limit
    # Below, the source of all of the text is requested at once, which `reach` limits.
    if ahead.num_bytes == 0 or is_too_long or file.size - first > file.reach:
        return chunks, first
    source = file.source(first, file.size)
    borders = _core.ctf_chunk_borders(source, first, limit, in_lines)
    num_bytes = 0
    while len(chunks) < len(borders) - 1:
        # Expect the next chunks to be as large as the chunks so far.
        room = (ahead.num_bytes - num_bytes) * len(chunks) // num_bytes if num_bytes else 1
        if ahead.num_chunks is not None:
            # All chunks are wanted, because `is_too_long` has shown that they are few.
            room = len(borders)
        if room < 1:
            break
        wanted = borders[len(chunks) : len(chunks) + room + 1]
        for entry in _core.ctf_index_chunks(source, wanted, in_lines, first_pass.schema, first_pass, num_threads()):
            if entry is None:  # the text has errors: index it without parsing
                return chunks, borders[len(chunks)]
            parts += map(Part.of, entry.scans)
            num_bytes += entry.chunk.num_bytes
            chunks.append(entry.chunk)
    return chunks, borders[len(chunks)]


# -------------------------------------------------------------------------------------------------- joining and judging


def join_over_borders(file: TextInput, start: TextStart, parts: list[Part]) -> None:
    """Join the sequences that begin in one part and continue in later parts, and remove parts without a sequence."""
    joined: list[Part] = []
    for part in parts:
        if joined and part.num_head_lines:
            joined[-1] = joined[-1].longer(part.num_head_lines)
        if joined and len(part.keys) and part.keys[0] == joined[-1].keys[-1]:
            joined[-1] = joined[-1].longer(int(part.lengths[0]))
            part = part.only(slice(1, None))
        if len(part.starts):
            joined.append(part)
    if not joined:
        raise _error_at(file, start, "the file holds nothing except a number")
    # The first start is not 0 if the first sequence of the part was joined with the part before.
    begins = [part.begin + int(part.starts[0]) for part in joined]
    num_before = start.num_lines
    for number, (part, end) in enumerate(zip(joined, [*begins[1:], file.size], strict=True)):
        num_before += len(part.starts)
        begin = part.begin + int(part.starts[-1])
        if end - begin >= 2**32:  # the other sequences end in less than 4 GiB, where another starts
            what = f"a sequence of {end - begin} bytes; expected less than 4 GiB"
            key = Keys(part.keys)[-1] if len(part.keys) else num_before - 1
            raise FormatError(what, path=file.path, byte=begin, sequence=key)
        joined[number] = part._replace(end=end)
    parts[:] = joined


def index_of_parts(file: TextInput, parts: list[Part], first_key: int | None, chunk_size: int) -> TextIndex:
    """Make the index of a text from its parts.

    Args:
        parts: The parts, joined over their borders. The list is emptied.
        first_key: The first key, if keys are counted; None: keys are ids, which may repeat.
        chunk_size: Most bytes of a chunk, except for a chunk of a single sequence.
    """
    blocks: list[PlacedBlock] = [(part.begin, part.starts, part.sizes) for part in parts]
    ends = [part.end for part in parts]
    lengths = joined_lengths([part.lengths for part in parts])
    columns = [part.keys for part in parts if len(part.keys)]
    counts = [part.num_lines for part in parts]
    bits = [part.kept for part in parts if part.kept is not None]
    # In one array, because small arrays between large arrays would keep freed memory from the system.
    kept = np.concatenate(bits) if bits else None
    bits.clear()
    parts.clear()  # so that each column is in memory once while its parts are joined
    places, chunk_starts = Places.of(blocks, ends, min(chunk_size, _LARGEST_CHUNK))
    # After the places, since then the memory of their parts is free.
    if kept is not None:
        columns.append(_numbers_of_lines(kept, counts, first_key or 0))
    keys = _keys_of_parts(columns) if columns else Keys(range(first_key or 0, (first_key or 0) + len(lengths)))
    remarks = {}
    # Line numbers cannot repeat.
    if first_key is None and len(again := keys.repeated()):
        offsets = places.first_bytes(again[:_MOST_EXAMPLES], chunk_starts)
        remarks["repeated id"] = Remark(len(again), _examples(offsets, keys.only(again[:_MOST_EXAMPLES])))
    return TextIndex(
        SequenceTable(keys, lengths, chunk_starts),
        places,
        remarks,
        content=content_sum(file.size, file.read, file.storage.num_requests),
    )


def _require_sequences(file: TextInput, start: TextStart, parts: list[Part]) -> None:
    """Refuse a text of which nothing is left."""
    if not any(len(part.starts) for part in parts):
        raise _error_at(file, start, "the file holds nothing except blank lines and comments", kind=EMPTY_FILE)


def _numbers_of_lines(kept: npt.NDArray[np.uint8], counts: list[int], num_before: int) -> npt.NDArray[Any]:
    """Return the numbers of the lines that are left. Numbers with gaps cannot be counted, so they become keys.

    Args:
        kept: Which lines are left: bits, which begin with a byte for each part.
        counts: Number of lines of each part.
        num_before: Number of lines before the first part.
    """
    is_small = num_before + sum(counts) < 2**32
    numbers = np.empty(int(np.bitwise_count(kept).sum(dtype=np.int64)), np.uint32 if is_small else np.uint64)
    first = at = 0
    for count in counts:
        size = -(-count // 8)
        lines = np.flatnonzero(np.unpackbits(kept[at : at + size], count=count))
        np.add(lines, num_before, out=numbers[first : first + len(lines)], casting="unsafe")
        first, at, num_before = first + len(lines), at + size, num_before + count
    return numbers


def _leave_out(
    file: TextInput, start: TextStart, parts: list[Part], settings: IndexSettings, in_lines: bool
) -> dict[str, Remark]:
    """Leave out sequences whose lines are all blank or comments, or without a sample of the defining stream.

    If it leaves out any, all parts get the sizes of their sequences. Returns remarks.
    """
    defining, has_hollow = settings.defining, any(len(part.hollow) for part in parts)
    if not has_hollow and (defining is None or all(part.lengths.all() for part in parts)):
        return {}
    total, examples, num_before = 0, list[tuple[int, int | str]](), start.num_lines
    for number, part in enumerate(parts):
        if defining is None:
            is_kept = np.ones(len(part.starts), np.bool_)
            is_kept[_hollow(file, part)] = False
        else:
            is_kept = part.lengths != 0
            which = np.flatnonzero(~is_kept)
            total += len(which)
            which = which[: _MOST_EXAMPLES - len(examples)]
            keys = (num_before + which).astype(np.uint64) if in_lines else part.keys[which]
            examples += _examples(part.begin + part.starts[which].astype(np.int64), Keys(keys))
        parts[number] = part.compacted(is_kept, in_lines)
        num_before += len(is_kept)
    if defining is None:
        _require_sequences(file, start, parts)
    kind = "line left out" if in_lines else "sequence left out"
    return {kind: Remark(total, examples)} if total else {}


def _hollow(file: TextInput, part: Part) -> npt.NDArray[np.int64]:
    """Return the sequences of a part whose lines are all blank or contain only comments."""
    which: npt.NDArray[np.int64] = np.searchsorted(part.starts, part.hollow)
    # Lines that continue a sequence of the previous part are not a sequence.
    which = which[part.starts[np.minimum(which, len(part.starts) - 1)] == part.hollow]
    begins = part.starts[which].astype(np.uint64) + np.uint64(part.begin)
    hollow: npt.NDArray[np.int64] = which[_are_nothing(file, begins, begins + part.to_the_next()[which])]
    return hollow


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


def _keys_of_parts(columns: list[npt.NDArray[Any]]) -> Keys:
    """Join keys in as few bytes as possible, and empty their list."""
    parts = [Keys(column) if column.dtype.kind == "S" else Keys.compact(column) for column in columns]
    columns.clear()
    return Keys.joined(parts)


def _examples(offsets: npt.NDArray[np.int64], keys: Keys) -> list[tuple[int, int | str]]:
    return list(zip(offsets.tolist(), keys.tolist(), strict=True))


# --------------------------------------------------------------------------------------------------------------
# The index in an index cache.


def kept_index(file: TextInput, kept: Mapping[str, Any], make: Callable[[bool], TextIndex], verify: bool) -> TextIndex:
    """Return the index from a cache that matches the file; else make it, and write the cache on another thread.

    Args:
        kept: The format and the settings on which the index depends; JSON-able.
        make: Makes the index; called with True if the cache was damaged, so that the chunks are not needed.
        verify: As for `IndexCache`.
    """
    cache = IndexCache(file, kept, verify=verify)

    def make_again() -> CachedArrays:
        file.storage.require_unchanged()  # the table in use belongs to the file as it was opened
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
    # An index of no sequence has no length. The caller refuses it.
    length = int(lengths[0]) if are_all_the_same(lengths) and len(lengths) else None
    facts = {
        "remarks": index.remarks, "first_key": keys.first, "length": length, "content": index.content,
        "num_lines": index.num_lines, "numbers": index.numbers,
    }  # fmt: skip
    arrays = {
        "chunk_starts": index.table.chunk_starts, "begins": places.begins, "ends": places.ends,
        "starts": places.starts[:],
    }  # fmt: skip
    if places.sizes is not None:
        arrays["sizes"] = places.sizes[:]
    if keys.first is None:
        arrays["keys"] = keys.stored()
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
    keys = Keys(StoredColumn(arrays, "keys", remake) if first_key is None else range(first_key, first_key + count))
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
        kind: Remark(int(total), [(int(offset), int(key)) for offset, key in examples])
        for kind, (total, examples) in facts["remarks"].items()
    }
    offsets = [offset for remark in remarks.values() for offset, _ in remark.examples]
    if not remarks.keys() <= REMARKS.keys() or not all(0 <= offset < file.size for offset in offsets):
        raise DamagedCacheError("its remarks are of an unknown kind, or outside the file")
    table, places = SequenceTable(keys, lengths, chunk_starts), Places(begins, ends, starts, sizes)
    caches = CacheFiles(indexes=(arrays.path,))
    return TextIndex(table, places, remarks, (), str(facts["content"]), num_lines, numbers, caches)


# --------------------------------------------------------------------------------------------------------------
# The index in parts: several processes each find the sequences of a part of a text, and one process joins them.


class PartOfText(NamedTuple):
    """The lines that begin in a part of a text; its cache is an index cache with the part as a setting.

    Attributes:
        number: Number of the part, from 1.
        num_parts: Number of parts.
    """

    number: int
    num_parts: int

    def __str__(self) -> str:
        return f"{self.number}/{self.num_parts}"

    def cache(self, file: TextInput, kept: Mapping[str, Any]) -> IndexCache:
        """Return the cache of the part. For `kept` see `kept_index`."""
        return IndexCache(file, {**kept, "part": str(self)})

    def write(self, file: TextInput, kept: Mapping[str, Any], settings: IndexSettings) -> Written:
        """Find the sequences that begin in the part, and keep them as they are found. Raises as `make_index` does."""
        cache, start = self.cache(file, kept), find_start(file)
        size = file.size - start.offset
        borders = (start.offset + size * number // self.num_parts for number in (self.number - 1, self.number))
        begin, end = (border if border == start.offset else line_from(file, border) for border in borders)
        with announced(_PASS, end - begin):
            found = _scanned(file, begin, settings, _is_in_lines(file, start, settings), end) if begin < end else ()
            parts = list(itertools.chain.from_iterable(found))
        numbers = ((part.begin, len(part.starts), part.num_head_lines, len(part.hollow)) for part in parts)
        keys: list[npt.NDArray[Any]] = [part.keys for part in parts if len(part.keys)] or [np.empty(0, np.uint32)]
        arrays = {
            "parts": np.array([*numbers], np.uint64).reshape(-1), "keys": np.concatenate(keys),
            "starts": np.concatenate([_NO_HOLLOW, *(part.starts for part in parts)]),
            "lengths": joined_lengths([part.lengths for part in parts]),
            "hollow": np.concatenate([_NO_HOLLOW, *(part.hollow for part in parts)]),
        }  # fmt: skip
        return cache.write({}, arrays)


def joined_parts(file: TextInput, kept: Mapping[str, Any], settings: IndexSettings, count: int) -> Written:
    """Join the caches of the parts of a text, and write the index cache that a pass over the text would write.

    Raises:
        CorpusError: A part is missing, of another state of the text, or damaged.
    """
    cache, stored, missing = IndexCache(file, kept), list[StoredArrays](), list[str]()
    for part in (PartOfText(number, count) for number in range(1, count + 1)):
        of_part = part.cache(file, kept)
        arrays = of_part.read(lambda arrays: arrays)
        if arrays is None:
            is_there = any(path.exists() for path in of_part.candidates())
            missing.append(f"{part} {'is of another state of the text, or damaged' if is_there else 'is missing'}")
        else:
            stored.append(arrays)
    if missing:
        advice = f"make it with --part {missing[0].split()[0]} and the same options"
        raise CorpusError(f"{file.path}: part {', part '.join(missing)}; {advice}")
    try:
        return cache.write(*_stored(make_index(file, settings, None, _parts_in(stored))))
    except DamagedCacheError as problem:
        raise CorpusError(f"{file.path}: a part of the index is damaged: {problem}; make it again") from None


def _parts_in(stored: Sequence[StoredArrays]) -> Iterator[list[Part]]:
    """Yield the parts in caches. Each is read alone, so that the memory of all is never taken twice."""
    for arrays in stored:
        numbers = arrays.read("parts").reshape(-1, 4).astype(np.int64)
        num_keys, *counts = (arrays.place(name)[1] for name in ("keys", "starts", "lengths", "hollow"))
        total, total_hollow = numbers[:, (1, 3)].sum(axis=0).tolist()
        if counts != [total, total, total_hollow] or num_keys not in (0, total) or (numbers < 0).any():
            raise DamagedCacheError("its arrays do not belong together")
        first, first_hollow = 0, 0
        for begin, length, num_head_lines, num_hollow in numbers.tolist():
            own, own_hollow = (first, first + length), (first_hollow, first_hollow + num_hollow)
            keys = arrays.read("keys", *own) if num_keys else np.empty(0, np.uint32)
            lengths = compact_lengths(arrays.read("lengths", *own).astype(np.uint32))
            starts, hollow = arrays.read("starts", *own), arrays.read("hollow", *own_hollow)
            yield [Part(num_head_lines, keys, begin, starts, lengths, hollow, num_lines=length)]
            first, first_hollow = own[1], own_hollow[1]

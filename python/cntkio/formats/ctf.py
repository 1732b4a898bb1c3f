"""The CNTK text format: description, index, loading, errors, inference. (docs/formats/ctf.md)

The compiled core finds and parses; this module decides: how a file begins, what is a sequence and what is left out,
what an error means, which one is too many and how it is told. Nothing here loops over lines or sequences.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio._threads import num_threads
from cntkio.errors import ConfigError, CorpusError, FormatError, did_you_mean, suggests_keywords
from cntkio.formats.cntk_options import TEXT, CntkOptions
from cntkio.formats.contract import NOTHING_AHEAD, Ahead, Deserializer, Joins, Loaded
from cntkio.formats.input_file import InputFile, Locator
from cntkio.formats.report import NUM_IN_FULL, Report
from cntkio.formats.table import CachedIndex, IndexCache, SequenceTable, fingerprint
from cntkio.streams import StreamDef, StreamDefs, StreamInformation, checked_streams, named, num_values

logger = logging.getLogger("cntkio")
_T = TypeVar("_T")

_LARGEST_DIM = 2**31 - 1
_LARGEST_SEQUENCE = 2**32 - 1
# Bytes of text for one core at a time: few enough to share the work out evenly, many enough to be worth it.
_BLOCK = 4 << 20
_PIECE = 1 << 20
# Text that is indexed and parsed at once: it and the values that it becomes fit a core's cache.
_PART = 512 << 10
# Bytes of a file that are indexed without asking whether the user has interrupted.
_INTERRUPTIBLE = 1 << 30
# Enough to read the rest of most lines.
_LINE = 1 << 14
# How much of a file is looked through for advice on an error.
_ADVICE_BYTES = 1 << 16
# Memory of chunks that are gone is kept for others, up to so many chunks' bytes of text.
_SPARE_CHUNKS = 2


# ----------------------------------------------------------------------------------------------- description


@suggests_keywords
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CTFDeserializer(CntkOptions):
    """A corpus in the CNTK text format.

    Options of CNTK can be set by their own names, too: ``deserializer["chunkSizeInBytes"] = 1 << 20`` is the same as
    ``chunk_size_in_bytes=1 << 20``.

    Args:
        filename: The file.
        streams: What to read from it: for each stream its name in the file, its dimension and its form.
        skip_sequence_ids: Take each line as a sequence, and ignore numbers in front.
        max_errors: How many errors are forgiven, in all; a negative number forgives any number.
        chunk_size_in_bytes: Bytes of text that are read and parsed together.
        cache_index: Keep the index in a file beside the corpus, or in the user's cache folder.
        dtype: float32 or float64, of the values that are delivered.
        strict: Take what is only warned of as an error.

    Raises:
        ConfigError: An option is not possible.

    Example:
        >>> CTFDeserializer("train.ctf", StreamDefs(x=StreamDef(field="features", shape=784)), max_errors=5)
        CTFDeserializer('train.ctf', StreamDefs(x=StreamDef(field='features', shape=784)), max_errors=5)
    """

    filename: str
    streams: Mapping[str, Any]
    _: dataclasses.KW_ONLY
    skip_sequence_ids: bool = False
    max_errors: int = 0
    chunk_size_in_bytes: int = 32 << 20
    cache_index: bool = False
    dtype: npt.DTypeLike = np.float32
    strict: bool = False
    has_text_keys = False
    cntk_type = "CNTKTextFormatDeserializer"
    cntk_options = TEXT

    def __post_init__(self) -> None:
        """Check what can be checked without the file."""
        set_field = object.__setattr__
        set_field(self, "filename", os.fspath(self.filename))
        set_field(self, "streams", checked_streams(self.streams))
        if not self.streams:
            raise ConfigError("CTFDeserializer: no streams; expected at least one StreamDef", key="streams")
        set_field(self, "dtype", np.dtype(self.dtype))
        if self.dtype not in (np.float32, np.float64):
            raise ConfigError(f"dtype is {self.dtype}; expected float32 or float64", key="dtype")
        if self.chunk_size_in_bytes < 1:
            raise ConfigError(
                f"chunk_size_in_bytes is {self.chunk_size_in_bytes}; expected at least 1", key="chunk_size_in_bytes"
            )
        seen: dict[str, str] = {}
        for name, stream in self.streams.items():
            self._check_stream(name, stream)
            other = seen.setdefault(stream["stream_alias"], name)
            if other != name:
                raise ConfigError(
                    f"streams {other!r} and {name!r} have the same name {stream['stream_alias']!r} in the file",
                    key=name,
                )
        defining = [name for name, stream in self.streams.items() if stream["defines_mb_size"]]
        if len(defining) > 1:
            raise ConfigError(
                "only a single stream may define the minibatch size, but these do: " + ", ".join(map(repr, defining)),
                key="defines_mb_size",
            )

    def _check_stream(self, name: str, stream: Mapping[str, Any]) -> None:
        alias = stream.get("stream_alias")
        if not alias:
            raise ConfigError(
                f"CTFDeserializer: stream name for key {name} must be specified (StreamDef(field=...))", key=name
            )
        if "dim" not in stream:
            raise ConfigError(f"CTFDeserializer: stream {name!r} has no shape (StreamDef(shape=...))", key=name)
        dim = num_values(stream["dim"])
        if not 1 <= dim <= _LARGEST_DIM:
            raise ConfigError(f"stream {name!r}: dimension {dim}; expected 1 to {_LARGEST_DIM}", key=name)

    @property
    def label(self) -> str:
        return self.filename

    def parts(self) -> Sequence[Deserializer]:
        return (self,)

    def open(self, *, text_keys: bool = False, ahead: Ahead = NOTHING_AHEAD) -> CTFCorpus:
        """Open the file and index it, or load the index.

        Args:
            text_keys: Whether ids are words, as with HTK features and labels. Such an index is not cached.
            ahead: Which chunks are needed immediately. The pass that makes the index parses them, so that they are
                read only once. If the index comes from its cache, nothing is parsed.

        Raises:
            OSError: The file cannot be read.
            FormatError: The file does not begin as the format asks, or an id does not fit 64 bits.
            CorpusError: No sequence is left to read.
        """
        return CTFCorpus(self, text_keys, ahead)


# ------------------------------------------------------------------------------------------------------ file


def _map_lines(text: InputFile, first: int, work: Callable[[npt.NDArray[np.uint8]], _T]) -> list[tuple[int, _T]]:
    """Apply `work` to blocks of whole lines, on all cores: for each its position and the result, in order.

    `first` is the first line's start. A block holds the lines that start in its share of the file.
    """
    spare: list[npt.NDArray[np.uint8]] = []  # used again, since fresh memory is dear

    def borrow() -> npt.NDArray[np.uint8]:
        try:
            return spare.pop()
        except IndexError:
            return np.empty(_BLOCK + 1, np.uint8)

    def lines_of(share: int) -> tuple[int, _T] | None:
        begin = first + share * _BLOCK
        end = min(begin + _BLOCK, text.size)
        lead = 0 if share == 0 else 1  # a line starts here if the byte before is a line feed
        buffer = borrow()
        try:
            have = text.read_into(buffer[: end - begin + lead], begin - lead)
            start = 0 if share == 0 else _position(buffer[:have], b"\n") + 1
            if (share > 0 and start == 0) or start >= have:
                return None  # one line covers the whole share
            step = _LINE
            while begin - lead + have < text.size and buffer[have - 1] != 0x0A:
                more = text.read(begin - lead + have, step)
                if not more:
                    break
                step = have  # so that a long line costs few reads
                more = more[: more.find(b"\n") + 1 or len(more)]
                if have + len(more) > len(buffer):
                    if have > _LARGEST_SEQUENCE:
                        raise FormatError("a line of 4 GiB or more", path=text.path, byte=begin - lead + start)
                    grown = np.empty(2 * (have + len(more)), np.uint8)
                    grown[:have] = buffer[:have]
                    buffer = grown
                buffer[have : have + len(more)] = np.frombuffer(more, np.uint8)
                have += len(more)
            return begin - lead + start, work(buffer[start:have])
        finally:
            spare.append(buffer)

    num_shares = -(-(text.size - first) // _BLOCK)
    if num_shares <= 1:
        results = [lines_of(share) for share in range(num_shares)]
    else:
        with ThreadPoolExecutor(min(num_threads(), num_shares)) as workers:
            results = list(workers.map(lines_of, range(num_shares)))
    return [result for result in results if result is not None]


def _position(buffer: npt.NDArray[np.uint8], byte: bytes) -> int:
    at = 0
    while at < len(buffer):
        found = buffer[at : at + 4096].tobytes().find(byte)
        if found >= 0:
            return at + found
        at += 4096
    return -1


def _first_line(text: InputFile) -> tuple[int, int]:
    """The position of the first byte that is no white space, and the lines before it."""
    mark = text.read(0, 3)
    if mark[:2] == b"\xff\xfe":
        raise FormatError(
            "the file is in UTF-16 (its first bytes are FF FE); expected bytes of ASCII or UTF-8",
            path=text.path,
            byte=0,
        )
    if not mark:
        raise FormatError("the file is empty", path=text.path, byte=0)
    # Part of a byte order mark is skipped like the whole of it.
    skipped = next((size for size in (3, 2, 1) if mark[:size] == b"\xef\xbb\xbf"[:size]), 0)
    at, lines = skipped, 0
    while at < text.size:
        block = text.read(at, 1 << 16)
        rest = block.lstrip(b" \t\n\v\f\r")
        white = block[: len(block) - len(rest)]
        lines += white.count(b"\n")
        at += len(white)
        if rest or not block:
            break
    if skipped == text.size:
        raise FormatError("the file is empty but for a byte order mark", path=text.path, byte=0)
    if at >= text.size:
        raise FormatError("the file holds nothing but white space", path=text.path, byte=0)
    return at, lines


class _CTFTable(NamedTuple):
    table: SequenceTable
    starts: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint32]
    # What the index had to say: kind -> how many, and the first few positions with their keys.
    remarks: dict[str, tuple[int, list[tuple[int, int | str]]]]
    # The first chunks, where they were parsed in the same pass.
    parsed: list[_core.Chunk]
    # The file that this comes from, if it does not come from the text.
    cache: Path | None


_Schema = list[tuple[bytes, bool, int, bool]]


class _FirstPass(NamedTuple):
    """What an index pass is to parse, and how."""

    ahead: Ahead
    schema: _Schema
    spare: _core.Spare


def _index(text: InputFile, options: CTFDeserializer, text_keys: bool, first_pass: _FirstPass | None) -> _CTFTable:
    """The table of sequences, from the cache where there is one that fits."""
    defining = _defining_alias(options)
    settings = {
        "format": "ctf",
        "skip_sequence_ids": options.skip_sequence_ids,
        "defining": None if defining is None else defining.decode("latin-1"),
        "chunk_size_in_bytes": options.chunk_size_in_bytes,
    }
    cache = IndexCache(Path(text.path), settings) if options.cache_index and not text_keys else None
    if cache is not None:
        found = cache.read()
        if found is not None:
            try:
                return _from_cache(found)
            except (KeyError, ValueError, TypeError) as error:
                logger.info("%s: index cache not used: %s", text.path, error)
    before = fingerprint(Path(text.path)) if cache is not None else {}
    made = _scan(text, options, defining, text_keys, first_pass)
    if cache is not None:
        arrays = {
            "keys": made.table.keys,
            "lengths": made.table.lengths,
            "chunk_starts": made.table.chunk_starts,
            "starts": made.starts,
            "sizes": made.sizes,
        }
        cache.write(before, {"remarks": made.remarks}, arrays)
    return made


def _from_cache(cached: CachedIndex) -> _CTFTable:
    path, facts, arrays = cached
    table = SequenceTable(arrays["keys"], arrays["lengths"], arrays["chunk_starts"])
    count = table.num_sequences
    sizes = {len(arrays[name]) for name in ("keys", "starts", "sizes")}
    starts = table.chunk_starts
    if (
        sizes != {count}
        or table.num_chunks < 1
        or starts[0] != 0
        or starts[-1] != count
        or np.any(starts[:-1] >= starts[1:])
    ):
        raise ValueError("its arrays do not belong together")
    remarks: dict[str, tuple[int, list[tuple[int, int | str]]]] = {
        str(kind): (int(count), [(int(at), int(key)) for at, key in places])
        for kind, (count, places) in facts["remarks"].items()
    }
    return _CTFTable(table, arrays["starts"], arrays["sizes"], remarks, [], path)


def _defining_alias(options: CTFDeserializer) -> bytes | None:
    aliases = [stream["stream_alias"] for stream in options.streams.values() if stream["defines_mb_size"]]
    return aliases[0].encode() if aliases else None


def _scan(
    text: InputFile, options: CTFDeserializer, defining: bytes | None, text_keys: bool, first_pass: _FirstPass | None
) -> _CTFTable:
    first, num_lines = _first_line(text)
    head = text.read(first, 1)
    in_lines = options.skip_sequence_ids or head == b"|"
    place: dict[str, Any] = {"path": text.path, "byte": first, "line": num_lines + 1}
    if text_keys and in_lines:
        raise FormatError(
            "the lines have no ids, but another deserializer has words as ids; expected one at the start of each line",
            **place,
        )
    if not in_lines and not text_keys and not head.isdigit():
        raise FormatError(
            f"{_shown(head)} where the first sequence id or a pipe should be; expected a number without sign, or '|'",
            **place,
        )

    def scan_words(block: npt.NDArray[np.uint8]) -> tuple[Any, ...]:
        head_lines, (words, width), *rest = _core.ctf_scan_words(block, defining)
        return head_lines, words.view(f"S{width}"), *rest, None

    limit = min(options.chunk_size_in_bytes, 2**63)
    scans: list[tuple[int, Any]] = []
    parsed: list[tuple[_core.Chunk, int]] = []
    if first_pass is not None and defining is None and not text_keys:
        scans, parsed, first = _parse_ahead(text, first_pass, first, limit, in_lines)
    scans += _map_lines(text, first, scan_words) if text_keys else _indexed(text, first, in_lines, defining)
    for begin, (*_, overflow) in scans:
        if overflow is not None:
            raise Locator(text).error(
                begin + overflow, "a sequence id of 2^64 or more; expected at most 18446744073709551615"
            )
    starts = _joined([scan[2] + np.uint64(begin) if begin else scan[2] for begin, scan in scans])
    lengths = _joined([scan[3] for _, scan in scans])
    if in_lines:
        keys = np.arange(num_lines, num_lines + len(starts), dtype=np.uint64)
    else:
        keys = _joined([scan[1] for _, scan in scans])
        starts, lengths, keys = _joined_over_blocks([scan for _, scan in scans], starts, lengths, keys)
    if len(keys) == 0:
        raise FormatError("the file holds nothing but a number", **place)
    sizes, too_long = _core.ctf_sizes(starts, text.size)
    if too_long is not None:
        end = starts[too_long + 1] if too_long + 1 < len(starts) else text.size
        raise FormatError(
            f"a sequence of {int(end) - int(starts[too_long])} bytes; expected less than 4 GiB",
            path=text.path,
            byte=int(starts[too_long]),
            sequence=_shown_key(keys[too_long]),
        )
    remarks: dict[str, tuple[int, list[tuple[int, int | str]]]] = {}
    if defining is not None:
        left_out = lengths == 0
        if left_out.any():
            what = "line left out" if in_lines else "sequence left out"
            remarks[what] = _remark(np.flatnonzero(left_out), starts, keys)
            starts, sizes, lengths, keys = (array[~left_out] for array in (starts, sizes, lengths, keys))
    if not in_lines:
        repeated = _repeated(keys)
        if len(repeated):
            remarks["repeated id"] = _remark(repeated, starts, keys)
    chunk_starts = _core.ctf_chunk_starts(starts, sizes, limit)
    # A file that changes meanwhile has other chunks; whoever loads one will notice.
    fits = chunk_starts[1 : len(parsed) + 1].tolist() == [num_sequences for _, num_sequences in parsed]
    chunks = [chunk for chunk, _ in parsed] if fits else []
    return _CTFTable(SequenceTable(keys, lengths, chunk_starts), starts, sizes, remarks, chunks, None)


def _indexed(text: InputFile, first: int, in_lines: bool, defining: bytes | None) -> list[tuple[int, Any]]:
    """The scans of a file from its first line on."""
    scans: list[tuple[int, Any]] = []
    for begin in range(first, text.size, _INTERRUPTIBLE):
        part = (begin, begin + _INTERRUPTIBLE)
        try:
            scan, long_line = _core.ctf_index(text.handle, first, part, in_lines, defining, _BLOCK, num_threads())
        except (OSError, EOFError):
            text.require_unchanged()
            raise
        if long_line is not None:
            raise FormatError("a line of 4 GiB or more", path=text.path, byte=long_line)
        scans.append((0, scan))
    return scans


def _joined(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _parse_ahead(
    text: InputFile, first_pass: _FirstPass, first: int, limit: int, in_lines: bool
) -> tuple[list[tuple[int, Any]], list[tuple[_core.Chunk, int]], int]:
    """Index and parse the first chunks in one pass.

    Returns:
        Their scans, the chunks, each with the number of sequences up to its end, and where they end.
    """
    ahead = first_pass.ahead
    scans: list[tuple[int, Any]] = []
    parsed: list[tuple[_core.Chunk, int]] = []
    if ahead.num_bytes == 0 or (ahead.num_chunks is not None and text.size - first > ahead.num_chunks * limit):
        return [], [], first
    borders = _core.ctf_chunk_borders(text.handle, first, limit, in_lines)
    num_bytes = num_sequences = 0
    while len(parsed) < len(borders) - 1:
        # So many as fit, going by those before.
        room = (ahead.num_bytes - num_bytes) * len(parsed) // num_bytes if num_bytes else 1
        if ahead.num_chunks is not None:
            room = len(borders)
        if room < 1:
            break
        wanted = borders[len(parsed) : len(parsed) + room + 1]
        indexed = _core.ctf_index_chunks(
            text.handle, wanted, in_lines, first_pass.schema, num_threads(), _PART, first_pass.spare, True
        )
        for one in indexed:
            if one is None:
                return scans, parsed, borders[len(parsed)]
            scans += one[0]
            num_sequences += one[1].num_sequences
            num_bytes += one[1].num_bytes
            parsed.append((one[1], num_sequences))
    return scans, parsed, borders[len(parsed)]


def _shown_key(key: Any) -> int | str:
    return key.decode(errors="replace") if isinstance(key, bytes) else int(key)


def _joined_over_blocks(
    scans: list[Any], starts: npt.NDArray[np.uint64], lengths: npt.NDArray[np.uint32], keys: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32], npt.NDArray[Any]]:
    """Mend the sequences that blocks have cut: lines before a block's first id, and an id that goes on."""
    goes_on = np.zeros(len(keys), bool)
    owner = -1  # the sequence that the block before ended with
    at = 0
    for head_lines, block_keys, *_ in scans:
        if head_lines:
            lengths[owner] += head_lines
        if len(block_keys):
            if owner >= 0 and keys[owner] == block_keys[0]:
                goes_on[at] = True
                lengths[owner] += lengths[at]
                owner = owner if len(block_keys) == 1 else at + len(block_keys) - 1
            else:
                owner = at + len(block_keys) - 1
            at += len(block_keys)
    if not goes_on.any():
        return starts, lengths, keys
    kept = ~goes_on
    return starts[kept], lengths[kept], keys[kept]


def _repeated(keys: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The sequences whose key an earlier one has."""
    if np.all(keys[1:] > keys[:-1]):
        return np.empty(0, np.int64)
    order = np.argsort(keys, kind="stable")
    again = keys[order][1:] == keys[order][:-1]
    return np.sort(order[1:][again])


def _remark(
    which: npt.NDArray[np.int64], starts: npt.NDArray[np.uint64], keys: npt.NDArray[Any]
) -> tuple[int, list[tuple[int, int | str]]]:
    return len(which), [(int(starts[number]), _shown_key(keys[number])) for number in which[:NUM_IN_FULL]]


# ---------------------------------------------------------------------------------------------------- errors


def _shown(byte: bytes) -> str:
    if not byte:
        return "the end of the file"
    return f"'{byte.decode()}'" if 0x20 < byte[0] < 0x7F else f"byte 0x{byte[0]:02X}"


class _Finding(NamedTuple):
    """What the core met: see `ctf.rs`."""

    kind: int
    at: int
    sequence: int
    stream: int | None
    found: int


class _Kind(NamedTuple):
    name: str
    # The words for one: what it found (`{found}`, `{byte}`), the stream's dimension (`{dim}`), the lines (`{length}`).
    words: str


# In the order of the core's `Kind`. The first CTF_NUM_ERROR_KINDS cost one error each.
_KINDS = (
    _Kind("bad number", "{byte} in a number; expected digits such as 1, -2.5 or 3e-4"),
    _Kind("bad index", "{byte} where an index should be; expected index:value"),
    _Kind("index out of range", "index {found}, but the dimension is {dim}; expected 0 to {last}"),
    _Kind("missing colon", "{byte} behind index {found}; expected ':'"),
    _Kind("too many values", "{found} values, but the dimension is {dim}"),
    _Kind("junk", "{byte} where a sample should start; expected '|'"),
    _Kind("pipe without a name", "a pipe without a name behind it; expected the name of a stream, or '#'"),
    _Kind("name at the end", "the file ends in the name of a stream"),
    _Kind("no value at the end", "the file ends where the sample's first value should be"),
    _Kind("line without a sample", "a line without a sample; expected one of at least one stream"),
    _Kind("stream without a sample", "no sample of this stream in the sequence; expected at least one"),
    _Kind("too many samples", "{found} samples, but the sequence has {length} lines"),
    _Kind("too few samples", "{found} samples in the longest stream, but the sequence has {length} lines"),
    _Kind("byte above 0x7F", "{byte} ended the sample's values; what follows it is lost"),
    _Kind("short dense sample", "{found} values, but the dimension is {dim}; the rest was filled with zeros"),
)
# Those that a wrong name, form or dimension leads to.
_KINDS_OF_MISFITS = {
    "bad number", "bad index", "index out of range", "missing colon", "too many values",
    "line without a sample", "stream without a sample",
}  # fmt: skip
_INDEX_WORDS = {
    "repeated id": "this id stood earlier in the file already, for another sequence",
    "line left out": "the line has no sample of the stream that defines the minibatch size, and is left out",
    "sequence left out": "the sequence has no sample of the stream that defines the minibatch size, and is left out",
}


class _Parsed(NamedTuple):
    counts: list[int]
    first: list[_Finding]
    last_straw: _Finding | None
    first_byte: int
    first_sequence: int


class CTFCorpus:
    """An opened corpus in the CNTK text format.

    Made by `CTFDeserializer.open`; see `cntkio.formats.Corpus` for what its methods owe.
    """

    utterances = None
    joins: Joins = "anywhere"

    def __init__(self, options: CTFDeserializer, text_keys: bool, ahead: Ahead) -> None:
        self._options = options
        self._text_keys = text_keys
        self._is_compact = ahead.is_packed
        self._text = InputFile(options.filename)
        self._schema: _Schema = [
            (
                stream["stream_alias"].encode(),
                stream["is_sparse"],
                num_values(stream["dim"]),
                options.dtype == np.float64,
            )
            for _, stream in named(options.streams)
        ]
        self._spare = _core.Spare(_SPARE_CHUNKS * min(options.chunk_size_in_bytes, self._text.size))
        first_pass = _FirstPass(ahead, self._schema, self._spare)
        try:
            self._table = _index(self._text, options, text_keys, first_pass)
            if self._table.parsed:
                self._text.require_unchanged()
        except BaseException:
            self._text.close()
            raise
        self._locator = Locator(self._text)
        self.name = self._text.path
        self.report = Report(self.name, options.max_errors)
        self._num_error_kinds = len(_KINDS) if options.strict else _core.CTF_NUM_ERROR_KINDS
        self.streams = tuple(
            StreamInformation(
                name,
                number,
                "sparse" if stream["is_sparse"] else "dense",
                options.dtype,
                stream["dim"],
                stream["defines_mb_size"],
            )
            for number, (name, stream) in enumerate(named(options.streams))
        )
        self._defining = next((info.stream_id for info in self.streams if info.defines_mb_size), None)
        self._log_remarks()
        if self.table.num_sequences == 0:
            alias = self._schema[self._defining][0].decode() if self._defining is not None else ""
            raise CorpusError(
                f"{options.filename}: no sequence holds {alias!r}, which defines the minibatch size; nothing is left"
                + did_you_mean(alias, [name.decode() for name in _streams_at_the_start(self._text)])
            )

    @property
    def table(self) -> SequenceTable:
        """The sequences and chunks."""
        return self._table.table

    def fingerprint(self) -> str:
        """Size and content samples of the file, and what the index depends on."""
        lengths = self.table.lengths
        return f"{self._text.size}:{len(lengths)}:{fingerprint(Path(self._text.path))['content']}"

    def load(self, chunk_id: int) -> Loaded:
        chunk, parsed = self._parse(chunk_id, self.report.budget)
        return Loaded(chunk_id, chunk, parsed)

    def take_parsed(self) -> dict[int, Loaded]:
        parsed = dict(enumerate(self._table.parsed))
        self._table = self._table._replace(parsed=[])
        nothing = _Parsed([0] * len(_KINDS), [], None, 0, 0)
        return {number: Loaded(number, chunk, nothing) for number, chunk in parsed.items()}

    def _parse(self, number: int, budget: int) -> tuple[_core.Chunk, _Parsed]:
        first, last = (int(at) for at in self.table.chunk_starts[number : number + 2])
        starts, sizes = self._table.starts[first:last], self._table.sizes[first:last]
        begin = int(starts[0])
        size = int(starts[-1]) + int(sizes[-1]) - begin
        if not 0 <= size <= self._text.size - begin:
            raise self._misfit()
        threads = num_threads()
        # One piece for each core, and not a small one more for what is left over.
        piece = max(_PIECE, size // threads + size // 64 + 1)
        try:
            chunk, counts, findings, last_straw = _core.ctf_parse(
                self._text.handle,
                begin,
                starts,
                sizes,
                self.table.lengths[first:last],
                self._schema,
                self._defining,
                budget,
                self._options.strict,
                threads,
                piece,
                self._spare,
                self._text_keys,
                self._is_compact,
            )
            self._text.require_unchanged()
        except ValueError as error:
            raise self._misfit() from error
        except (OSError, EOFError):
            self._text.require_unchanged()
            raise
        straw = None if last_straw is None else _Finding(*last_straw)
        return chunk, _Parsed(counts, [_Finding(*finding) for finding in findings], straw, begin, first)

    def _misfit(self) -> CorpusError:
        cache = self._table.cache
        advice = "open it again" if cache is None else f"delete the index cache {str(cache)!r}"
        return CorpusError(f"{self.name}: the index does not match the file; {advice}")

    def account_for(self, loaded: Loaded) -> None:
        parsed: _Parsed = loaded.findings
        if not any(parsed.counts):
            return
        num_errors = sum(parsed.counts[: self._num_error_kinds])
        if parsed.last_straw is not None or not self.report.forgive(num_errors):
            left = self.report.exhaust()
            if left < self.report.budget:
                # The chunk was parsed with the whole budget. Parse it again with what is left of it, to find the first
                # error beyond that.
                _, parsed = self._parse(loaded.chunk_id, left)
            assert parsed.last_straw is not None
            raise self._error(parsed, parsed.last_straw)
        for number, (kind, count) in enumerate(zip(_KINDS, parsed.counts, strict=True)):
            if count:
                self.report.count(kind.name, count, is_error=number < self._num_error_kinds)
        for finding in parsed.first:
            self.report.log(_KINDS[finding.kind].name, partial(self._error, parsed, finding, is_last=False))

    def _error(self, parsed: _Parsed, finding: _Finding, is_last: bool = True) -> FormatError:
        sequence = parsed.first_sequence + finding.sequence
        byte = parsed.first_byte + finding.at
        dim = 0 if finding.stream is None else self._schema[finding.stream][2]
        what = _KINDS[finding.kind].words.format(
            byte=_shown(self._text.read(byte, 1)),
            found=finding.found,
            dim=dim,
            last=dim - 1,
            length=int(self.table.lengths[sequence]),
        )
        budget = self.report.budget
        if is_last and budget:
            what += f" (error {budget + 1}, and max_errors is {budget})"
        if is_last and _KINDS[finding.kind].name in _KINDS_OF_MISFITS:
            what += self._advice(finding.stream)
        stream = None if finding.stream is None else self.streams[finding.stream].name
        return self._locator.error(byte, what, sequence=_shown_key(self.table.keys[sequence]), stream=stream)

    def _advice(self, stream: int | None) -> str:
        """What to do if the file's first lines hold other streams than were asked for, or hold them in another form."""
        there = _streams_at_the_start(self._text)
        asked = range(len(self._schema)) if stream is None else [stream]
        for number in asked:
            alias, is_sparse, dim, _ = self._schema[number]
            found = there.get(alias)
            if found is None:
                if not there:
                    break
                names = [name.decode() for name in there]
                hint = did_you_mean(alias.decode(), names) or f"; they have: {', '.join(map(repr, names))}"
                return f"; the file's first lines have no {alias.decode()!r}{hint}"
            if found[0] != is_sparse or found[1] > dim:
                form = ", is_sparse=True" if found[0] else ""
                return f"; its first lines would fit StreamDef(field={alias.decode()!r}, shape={found[1]}{form})"
        return ""

    def _log_remarks(self) -> None:
        for kind, (count, places) in self._table.remarks.items():
            self.report.count(kind, count)
            for byte, key in places:
                error = partial(self._locator.error, byte, _INDEX_WORDS[kind], sequence=key)
                if self._options.strict:
                    try:
                        raise error()
                    finally:
                        self._text.close()
                self.report.log(kind, error)

    def close(self) -> None:
        self.report.log_totals()
        self._text.close()


# ------------------------------------------------------------------------------------------------- inference


def _streams_at_the_start(text: InputFile) -> dict[bytes, tuple[bool, int]]:
    """The names in the first lines of a file: for each whether it is sparse, and its dimension as far as it is seen."""
    try:
        first, _ = _first_line(text)
        block = _core.ctf_infer(np.frombuffer(text.read(first, _ADVICE_BYTES), np.uint8))
    except (FormatError, OSError):
        return {}
    return {
        name: (indexed > plain, largest + 1 if indexed > plain else most)
        for name, _, plain, indexed, most, largest in block or ()
    }


def infer_streams(path: str | os.PathLike[str]) -> StreamDefs:
    """Find out which streams a file has: names, dense or sparse, and dimensions. Reads the whole file.

    A stream is sparse when most of its values have an index in front; its dimension is the largest index plus one,
    or the largest number of values of a sample. A stream that never has a value counts as dense, of dimension 1.

    Args:
        path: A file in the CNTK text format.

    Returns:
        A `StreamDefs`, names as in the file, in the order of their first appearance.

    Raises:
        OSError: The file cannot be read.
        FormatError: The file is not in this format.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.ctf")
        >>> _ = path.write_text("|x 1 2 3 |y 7:1\\n")
        >>> [(name, stream.dim, stream.is_sparse) for name, stream in infer_streams(path).items()]
        [('x', 3, False), ('y', 8, True)]
    """
    text = InputFile(os.fspath(path))
    try:
        first, *_ = _first_line(text)
        blocks = _map_lines(text, first, _core.ctf_infer)
    finally:
        text.close()
    total: dict[bytes, list[int]] = {}
    for _, block in blocks:
        if block is None or len(total) > 10_000:
            raise FormatError("more than 10000 names behind pipes; this is not the CNTK text format", path=path)
        for name, samples, plain, indexed, most, largest in block:
            so_far = total.setdefault(name, [0, 0, 0, 0, 0])
            so_far[:3] = (a + b for a, b in zip(so_far[:3], (samples, plain, indexed), strict=True))
            so_far[3:] = (max(a, b) for a, b in zip(so_far[3:], (most, largest), strict=True))
    if not total:
        raise FormatError(
            "no sample, that is, no name behind a pipe, in the whole file; expected |name values", path=path
        )
    streams = {}
    for name, (_, plain, indexed, most, largest) in total.items():
        is_sparse = indexed > plain
        shape = min(largest + 1, _LARGEST_DIM) if is_sparse else max(most, 1)
        streams[name.decode()] = StreamDef(field=name.decode(), shape=shape, is_sparse=is_sparse)
    return StreamDefs(streams)

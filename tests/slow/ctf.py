"""The slow, obvious reader of the CNTK text format: the page `docs/formats/ctf.md` as plain Python.

A reader of this code should be able to see that it is right; the tests compare the fast reader with it. Invariant: no
cleverness, one byte at a time. This reader opens no file, has no budget (it lists *all* errors; a reader with a budget
stops at the first error beyond the budget) and builds no minibatches.

Positions are byte offsets from the start of the file, including a byte order mark. The position of an error or a
warning is the first byte that cannot be accepted; at the end of the file that is the offset after the last byte:

    bad-number            the byte that does not continue the number (`1ex`: the `x`; `1.2.3`: the second point)
    bad-index             the byte where a digit of an index should be
    index-out-of-range    the first digit of the index, also when the index is beyond 64 bits
    missing-colon         the byte where the colon should be
    too-many-values       the first byte of the first surplus number
    junk                  the junk byte
    pipe-without-name     the pipe
    name-at-end           the pipe
    empty-value-at-end    the pipe of the sample
    line-without-sample   the first byte of the line
    missing-stream, too-many-samples, too-few-samples
                          the first byte of the sequence

    repeated-id           the first byte of the sequence that has the key of an earlier one
    left-out-line         the first byte of the line (line mode)
    left-out-sequence     the first byte of the sequence (id mode)
    high-byte-ends-value  the byte above 0x7F, also one that begins a line and is not white space
    short-dense-sample    the pipe of the sample
    stream-twice-on-a-line  the pipe of the second sample

The last sequence extends to the end of the file, including digits that are ignored there.

Errors are listed in the order in which they count. Within a sequence, that is line by line from left to right, with
line-without-sample after the other errors of the line; then one missing-stream for each stream without a sample, in the
order of the stream definitions; then at most one of too-many-samples and too-few-samples, which name the first of the
length-defining streams with the most samples. A sample with an error gives no warning. The warnings of the index come
first, in the order of the file; the warnings of the samples follow.

Faults of the whole file raise `Refused` with a kind and a position: utf-16 (0), empty-file (0; a byte order mark
and nothing else is an empty file), only-white-space (0), no-sequence-id (the byte where the first id should be or, if
only its digits follow, the end of the file), id-overflow (the first digit), nul-in-id (the first NUL of a word),
long-id (the first byte of a word of more than `LONGEST_ID` bytes), line-mode-symbolic (the first byte that is not white
space), no-sequence (0: no line contains the defining stream).
"""

import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import numpy as np

DIGITS = b"0123456789"
BLANKS = b" \t"
WHITE = b" \t\n\v\f\r"
LONGEST_ID = 4096
PIPE, LF, HASH, COLON = b"|\n#:"

Key = int | bytes  # bytes: a symbolic id
Dense = list[float]
Sparse = list[tuple[int, float]]


class Stream(NamedTuple):
    """A stream: `alias` is its name in the file, `dim` the number of values or the bound of the indices."""

    name: str
    alias: str
    dim: int
    is_sparse: bool = False
    defines_mb_size: bool = False


class Sequence(NamedTuple):
    """An entry of the index: key, position of the first byte, number of bytes, length in samples."""

    key: Key
    offset: int
    size: int
    length: int


class Problem(NamedTuple):
    """An error or a warning: kind, position, key of the sequence, stream."""

    kind: str
    offset: int
    key: Key
    stream: str | None


class Refused(Exception):
    """The whole file is refused."""

    def __init__(self, kind: str, offset: int) -> None:
        super().__init__(f"{kind} at byte {offset}")
        self.kind, self.offset = kind, offset


class Bad(Exception):
    """An error in a sample, before its key and stream are known."""

    def __init__(self, kind: str, offset: int) -> None:
        super().__init__(kind, offset)
        self.kind, self.offset = kind, offset


@dataclass
class Result:
    """Content of a file. `samples[i][stream]` are the samples of sequence i, `errors_of[i]` its errors."""

    index: list[Sequence]
    chunk_starts: list[int]  # index of the first sequence of each chunk
    samples: list[dict[str, list[Dense] | list[Sparse]]] = field(default_factory=list)
    errors_of: list[list[Problem]] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    @property
    def errors(self) -> list[Problem]:
        return [error for errors in self.errors_of for error in errors]


def read(
    data: bytes,
    streams: list[Stream],
    *,
    skip_sequence_ids: bool = False,
    chunk_size_in_bytes: int = 32 << 20,
    symbolic_ids: bool = False,
    double: bool = False,
) -> Result:
    """Read a whole file. `double`: round values to float64 instead of float32."""
    index, warnings = scan(data, streams, skip_sequence_ids, symbolic_ids)
    result = Result(index, chunks(index, chunk_size_in_bytes), warnings=warnings)
    for sequence in index:
        parser = Parser(data, sequence, streams, symbolic_ids, double)
        parser.sequence()
        result.samples.append(parser.samples)
        result.errors_of.append(parser.errors)
        result.warnings += parser.warnings
    return result


# -- the index ---------------------------------------------------------------------------------------------------------


def scan(
    data: bytes, streams: list[Stream], skip_sequence_ids: bool, symbolic_ids: bool
) -> tuple[list[Sequence], list[Problem]]:
    """Return the sequences of a file in its order, and the warnings that do not depend on the samples."""
    if data[:2] == b"\xff\xfe":
        raise Refused("utf-16", 0)
    start = 0
    while start < 3 and data[start : start + 1] == b"\xef\xbb\xbf"[start : start + 1]:
        start += 1  # an incomplete mark is skipped too
    if start == len(data):
        raise Refused("empty-file", 0)
    while start < len(data) and data[start] in WHITE:
        start += 1
    if start == len(data):
        raise Refused("only-white-space", 0)

    line_mode = skip_sequence_ids or data[start] == PIPE
    if line_mode and symbolic_ids:
        raise Refused("line-mode-symbolic", start)
    definers = [stream for stream in streams if stream.defines_mb_size]
    found: list[list[int]] = []  # per sequence: offset, length
    empty: list[bool] = []  # per sequence: no line has content
    keys: list[Key] = []
    position, line_number = start, data[:start].count(b"\n")
    while position < len(data):
        end = data.find(b"\n", position) + 1 or len(data)
        key: Key | None = line_number
        if not line_mode:
            key, swallowed = sequence_id(data, position, symbolic_ids)
            if not found and (key is None or swallowed):
                raise Refused("no-sequence-id", len(data) if swallowed else position)
            if swallowed:
                break
        if key is not None and (not found or key != keys[-1]):
            found.append([position, 0])
            keys.append(key)
            empty.append(not definers and not symbolic_ids)
        empty[-1] = empty[-1] and is_nothing(data[position:end], symbolic_ids)
        if not definers or contains(data[position:end], definers[0].alias.encode()):
            found[-1][1] += 1
        position, line_number = end, line_number + 1

    ends = [offset for offset, _ in found[1:]] + [len(data)]
    index: list[Sequence] = []
    warnings: list[Problem] = []
    seen: set[Key] = set()
    for key, (offset, length), end, is_empty in zip(keys, found, ends, empty, strict=True):
        if is_empty:
            continue
        if length == 0:
            warnings.append(
                Problem("left-out-line" if line_mode else "left-out-sequence", offset, key, definers[0].name)
            )
            continue
        if key in seen:
            warnings.append(Problem("repeated-id", offset, key, None))
        seen.add(key)
        index.append(Sequence(key, offset, end - offset, length))
    if not index:
        raise Refused("no-sequence", 0)
    return index, warnings


def is_nothing(line: bytes, symbolic_ids: bool) -> bool:
    """Return whether a line is blank or has only comments. An id is not content, but a line with an id is not blank."""
    has_id = re.match(rb"[^ \t\n\v\f\r|]+" if symbolic_ids else rb"[0-9]+", line)
    content = line[has_id.end() :] if has_id else line
    before, *comments = content.split(b"|")
    is_blank = all(byte <= 0x20 for byte in before)
    return is_blank and all(item.startswith(b"#") for item in comments) and bool(comments or not has_id)


def sequence_id(data: bytes, position: int, symbolic_ids: bool) -> tuple[Key | None, bool]:
    """Return the id at the start of a line, if any, and whether it extends to the end of the file."""
    end = position
    while end < len(data) and (data[end] not in WHITE if symbolic_ids else data[end] in DIGITS):
        end += 1
    if end == position:
        return None, False
    if symbolic_ids:
        if 0 in data[position:end] and end < len(data):
            raise Refused("nul-in-id", data.index(0, position))
        if end - position > LONGEST_ID and end < len(data):
            raise Refused("long-id", position)
        return data[position:end], end == len(data)
    if (number := decimal(data[position:end])) >= 2**64:
        raise Refused("id-overflow", position)
    return number, end == len(data)


def decimal(digits: bytes) -> int:
    """Return the value of any number of decimal digits (the built-in conversion refuses more than 4300)."""
    digits = digits.lstrip(b"0")
    return int(digits or b"0") if len(digits) <= 400 else 10**400


def contains(line: bytes, alias: bytes) -> bool:
    """Return whether a line contains the stream: a search, not a parse, so that broken samples count as well."""
    place = line.find(b"|" + alias)
    while place >= 0:
        after = line[place + 1 + len(alias) :]
        if not after or ends_name(after[0]):
            return True
        place = line.find(b"|" + alias, place + 1)
    return False


def chunks(index: list[Sequence], size: int) -> list[int]:
    """Return the first sequence of each chunk: a chunk grows while its extent in the file is at most `size` bytes."""
    starts: list[int] = []
    begin = end = 0
    for place, sequence in enumerate(index):
        if not starts or end - begin + sequence.size > size:
            starts.append(place)
            begin = sequence.offset
        end = sequence.offset + sequence.size
    return starts


# -- the samples -------------------------------------------------------------------------------------------------------


def ends_sample(byte: int) -> bool:
    return byte == PIPE or byte > 0x7F or (byte < 0x20 and byte not in BLANKS)


def ends_name(byte: int) -> bool:
    return byte in BLANKS or ends_sample(byte)


def separates(byte: int) -> bool:
    return byte <= 0x20 or byte > 0x7F


class Parser:
    """A reader of the bytes of a sequence, one step after the other: the algorithm of the page."""

    def __init__(self, data: bytes, entry: Sequence, streams: list[Stream], symbolic: bool, double: bool) -> None:
        self.data, self.entry, self.streams, self.symbolic, self.double = data, entry, streams, symbolic, double
        self.position, self.end = entry.offset, entry.offset + entry.size
        self.samples: dict[str, list[Dense] | list[Sparse]] = {stream.name: [] for stream in streams}
        self.errors: list[Problem] = []
        self.warnings: list[Problem] = []

    def error(self, kind: str, offset: int, stream: str | None = None) -> None:
        self.errors.append(Problem(kind, offset, self.entry.key, stream))

    def warn(self, kind: str, offset: int, stream: str) -> None:
        self.warnings.append(Problem(kind, offset, self.entry.key, stream))

    def at(self, bytes_: bytes) -> bool:
        return self.position < self.end and self.data[self.position] in bytes_

    def digits(self) -> bytes:
        start = self.position
        while self.at(DIGITS):
            self.position += 1
        return self.data[start : self.position]

    def sequence(self) -> None:
        num_empty_lines = 0
        while self.position < self.end:
            line = self.position
            if not self.line():
                if is_nothing(self.data[line : self.position], self.symbolic):
                    num_empty_lines += 1
                elif self.data[self.position - 1] == 10:
                    self.error("line-without-sample", line)
        counts = {name: len(samples) for name, samples in self.samples.items()}
        for name, count in counts.items():
            if count == 0:
                self.error("missing-stream", self.entry.offset, name)
        definers = [stream.name for stream in self.streams if stream.defines_mb_size]
        least = self.entry.length - (0 if definers else num_empty_lines)
        definers = definers or list(counts)
        longest = max(definers, key=counts.__getitem__)
        if counts[longest] > self.entry.length:
            self.error("too-many-samples", self.entry.offset, longest)
        elif counts[longest] < least:
            self.error("too-few-samples", self.entry.offset, longest)

    def line(self) -> bool:
        """Read a line; return whether it had a usable sample."""
        begin = self.position
        while self.position < self.end and (
            self.data[self.position] not in WHITE + b"|" if self.symbolic else self.data[self.position] in DIGITS
        ):
            self.position += 1
        first = self.data[begin : min(begin + 4, self.end)].decode(errors="replace")[:1]
        if self.position == begin and first > "\x7f" and not first.isspace() and first != "\ufeff":
            self.warn("high-byte-ends-value", begin, None)
        kept = 0
        self.on_line: set[str] = set()
        while self.position < self.end:
            byte = self.data[self.position]
            if byte == LF:
                self.position += 1
                return kept > 0
            if separates(byte):
                self.position += 1
            elif self.item():
                kept += 1
            else:
                while self.position < self.end and not self.at(b"|\n"):
                    self.position += 1
        return kept > 0

    def item(self) -> bool:
        """Read an item between separators; return true if it is a usable sample."""
        pipe = self.position
        if self.data[pipe] != PIPE:
            self.error("junk", pipe)
            return False
        self.position += 1
        if self.at(b"#"):
            return False
        longest_alias = max(len(stream.alias.encode()) for stream in self.streams)
        name = b""
        while self.position < self.end and not ends_name(self.data[self.position]):
            if len(name) == longest_alias:
                return False  # longer than every configured name: unknown, even if it extends to the end of the file
            name += self.data[self.position : self.position + 1]
            self.position += 1
        if self.position == self.end:
            self.error("name-at-end", pipe)
            return False
        if not name:
            self.error("pipe-without-name", pipe)
            return False
        for stream in self.streams:
            if stream.alias.encode() == name:
                break
        else:
            return False
        try:
            if stream.is_sparse:
                self.samples[stream.name].append(self.sparse(stream, pipe))  # type: ignore[arg-type]
            else:
                self.samples[stream.name].append(self.dense(stream, pipe))  # type: ignore[arg-type]
        except Bad as bad:
            self.error(bad.kind, bad.offset, stream.name)
            return False
        if stream.name in self.on_line:
            self.warn("stream-twice-on-a-line", pipe, stream.name)
        self.on_line.add(stream.name)
        return True

    def dense(self, stream: Stream, pipe: int) -> Dense:
        values: Dense = []
        surplus = 0
        while self.position < self.end and not ends_sample(self.data[self.position]):
            if self.at(BLANKS):
                self.position += 1
                continue
            if len(values) == stream.dim:
                surplus = self.position
            values.append(self.number())
        if self.position == self.end and not values:
            raise Bad("empty-value-at-end", pipe)
        if self.position < self.end and len(values) > stream.dim:
            raise Bad("too-many-values", surplus)
        self.look_for_high_byte(stream)
        if len(values) < stream.dim:
            self.warn("short-dense-sample", pipe, stream.name)
        return (values + [0.0] * stream.dim)[: stream.dim]

    def sparse(self, stream: Stream, pipe: int) -> Sparse:
        entries: Sparse = []
        while self.position < self.end and not ends_sample(self.data[self.position]):
            if self.at(BLANKS):
                self.position += 1
                continue
            start = self.position
            digits = self.digits()
            if not digits:
                raise Bad("bad-index", start)
            if decimal(digits) >= stream.dim:
                raise Bad("index-out-of-range", start)
            if not self.at(b":"):
                raise Bad("missing-colon", self.position)
            self.position += 1
            entries.append((decimal(digits), self.number()))
        if self.position == self.end and not entries and not any(self.samples[stream.name]):
            raise Bad("empty-value-at-end", pipe)
        self.look_for_high_byte(stream)
        return entries

    def look_for_high_byte(self, stream: Stream) -> None:
        if self.position < self.end and self.data[self.position] > 0x7F:
            self.warn("high-byte-ends-value", self.position, stream.name)

    def number(self) -> float:
        """Read a number: [sign] digits [. [digits]] [exponent], without an exponent right after the point."""
        start = self.position
        if self.at(b"+-"):
            self.position += 1
        integral, fraction, exponent = self.some_digits(), b"", 0
        if self.at(b"."):
            self.position += 1
            fraction = self.digits()
            if not fraction:
                return rounded(self.data[start] == b"-"[0], integral, b"", 0, self.double)
        if self.at(b"eE"):
            self.position += 1
            sign = self.data[self.position : self.position + 1] if self.at(b"+-") else b""
            self.position += len(sign)
            exponent = decimal(self.some_digits()) * (-1 if sign == b"-" else 1)
        return rounded(self.data[start] == b"-"[0], integral, fraction, exponent, self.double)

    def some_digits(self) -> bytes:
        digits = self.digits()
        if not digits:
            raise Bad("bad-number", self.position)
        return digits


def rounded(is_negative: bool, integral: bytes, fraction: bytes, exponent: int, double: bool) -> float:
    """The float32 (or float64) nearest to a decimal number, ties to even, by exact arithmetic."""
    bits, smallest, overflow = (53, -1074, 1024) if double else (24, -149, 128)
    digits = (integral + fraction).lstrip(b"0")
    exponent -= len(fraction)
    magnitude = len(digits) + exponent  # the number is in [10 ** (magnitude - 1), 10 ** magnitude)
    value = Fraction(0)
    if digits and magnitude > 400:
        value = Fraction(2**overflow)
    elif digits and magnitude > -400:
        value = Fraction(10) ** exponent * sum(10**place * (digit - 48) for place, digit in enumerate(reversed(digits)))
        binary_exponent = value.numerator.bit_length() - value.denominator.bit_length()
        if value < Fraction(2) ** binary_exponent:
            binary_exponent -= 1
        unit = Fraction(2) ** max(binary_exponent - bits + 1, smallest)
        value = round(value / unit) * unit  # rounding a Fraction rounds ties to even
    result = float(value) if value < 2**overflow else np.inf
    return -result if is_negative else result

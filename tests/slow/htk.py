"""
HTK features and labels in plain Python: slow, obvious readers of lists, features and label files, for the tests.

An utterance of features is a list of frames, a frame a list of float32 as bytes (highest first), so that comparisons
compare bits. An utterance of labels is the class of each frame, or the word "invalid" or "broken".
"""

import math
import re
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

FLOAT_KINDS = {1, 2, 3, 4, 6, 7, 8, 9, 11, 12}
COMPRESSED, WITH_INDEX = 0o2000, 0o40000
BLANKS = b" \t\n\x0c\r"
NO_END = 2**32 - 1


class Refused(Exception):
    """A file breaks its format."""


def require(truth: bool, what: str) -> None:
    if not truth:
        raise Refused(what)


# -------------------------------------------------------------------------------------------------------- features


class Features(NamedTuple):
    dim: int
    frames: int
    frame: Callable[[int], list[bytes]]


def order_of(data: bytes) -> str:
    """Return the only possible byte order; if both are possible, the order with the smaller period, or else HTK's."""

    def is_possible(order: str) -> bool:
        num_samples, _, size, kind = struct.unpack(order + "iIHH", data[:12])
        width = 2 if kind & COMPRESSED or kind & 63 in (0, 5, 10) else 4
        is_known = kind & 63 <= 12 and size > 0 and size % width == 0 and 0 <= num_samples * size <= len(data)
        return is_known or fits_float_vectors(data, order)

    possible = [order for order in "><" if is_possible(order)]
    if len(possible) == 1:
        return possible[0]
    big, little = (struct.unpack(order + "I", data[4:8])[0] for order in "><")
    return "<" if little < big or (little == big and not possible) else ">"


def fits_float_vectors(data: bytes, order: str) -> bool:
    num_samples, _, size, kind = struct.unpack(order + "iIHH", data[:12])
    sizes = (12 + num_samples * size, 14 + num_samples * size)
    return num_samples > 0 and size > 0 and size % 4 == 0 and not kind & COMPRESSED and len(data) in sizes


def features(data: bytes) -> Features:
    require(len(data) >= 12, "a short header")
    order = order_of(data)
    num_samples, _, size, kind = struct.unpack(order + "iIHH", data[:12])
    is_float_kind = kind & 63 in FLOAT_KINDS and not kind & WITH_INDEX
    require(is_float_kind or fits_float_vectors(data, order), "a kind without float vectors")
    is_compressed = bool(kind & COMPRESSED)
    width = 2 if is_compressed else 4
    require(size > 0 and size % width == 0, "the size of a frame")
    require(num_samples >= 0, "a negative number of frames")
    dim, begin = size // width, 28 if kind == 12 else 12
    a: tuple[float, ...] = ()
    b: tuple[float, ...] = ()
    if is_compressed:
        num_samples = max(0, num_samples - 4)
        require(len(data) >= begin + 8 * dim, "short scales")
        a = struct.unpack_from(f"{order}{dim}f", data, begin)
        b = struct.unpack_from(f"{order}{dim}f", data, begin + 4 * dim)
        begin += 8 * dim

    def frame(number: int) -> list[bytes]:
        at = begin + number * size
        require(at + size <= len(data), "a short file")
        if not is_compressed:
            values = [data[at + 4 * k : at + 4 * k + 4] for k in range(dim)]
            return values if order == ">" else [value[::-1] for value in values]
        whole = struct.unpack_from(f"{order}{dim}h", data, at)
        return [struct.pack(">f", divided(single(x + b[k]), a[k])) for k, x in enumerate(whole)]

    return Features(dim, num_samples, frame)


def single(value: float) -> float:
    """Return the nearest float32; infinity beyond the largest."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def divided(value: float, divisor: float) -> float:
    if divisor == 0:
        is_number = value != 0 and not math.isnan(value)
        return math.copysign(math.inf, value) * math.copysign(1, divisor) if is_number else math.nan
    return single(value / divisor)


class Line(NamedTuple):
    key: bytes
    path: bytes
    first: int
    last: int


def unquoted(text: bytes) -> bytes:
    is_quoted = len(text) >= 2 and text[:1] in (b'"', b"'") and text[-1:] == text[:1]
    return text[1:-1] if is_quoted else text


def without_extension(name: bytes) -> bytes:
    """Cut at the last dot of the last component, unless the component begins with that dot."""
    folder, last = re.fullmatch(rb"(.*[/\\])?([^/\\]*)", name, re.DOTALL).groups(b"")  # type: ignore[union-attr]
    return folder + (last[: last.rindex(b".")] if last.rfind(b".") > 0 else last)


def scp(text: bytes, folder: bytes) -> list[Line]:
    found = []
    for raw in re.split(rb"\r\n|\n|\r", text):
        line = raw.strip(BLANKS)
        if not line:
            continue
        key, equals, rest = line.partition(b"=")
        begins_with_quote = line[:1] in (b'"', b"'")
        if not equals or (begins_with_quote and unquoted(key.strip(BLANKS)) == key.strip(BLANKS)):
            key, rest = b"", line
            has_id = False
        else:
            key, rest = unquoted(key.strip(BLANKS)), rest.strip(BLANKS)
            has_id = True
        if rest[:1] in (b'"', b"'"):
            require(rest.find(rest[:1], 1) > 0, "an open quote")
            end = rest.index(rest[:1], 1)
            path, span = rest[1:end], rest[end + 1 :].strip(BLANKS)
        else:
            path, bracket, span = rest.rpartition(b"[")
            # A bracket that is closed before the end belongs to the path.
            if not bracket or (b"]" in span and not span.endswith(b"]")):
                path, bracket, span = rest, b"", b""
            path, span = path.strip(BLANKS), bracket + span
        first, last = 0, NO_END
        if span:
            numbers = re.fullmatch(rb"\[[ \t\r\n\f]*(\d+)[ \t\r\n\f]*,[ \t\r\n\f]*(\d+)[ \t\r\n\f]*\]", span)
            require(numbers is not None, "a range")
            assert numbers is not None
            first, last = int(numbers[1]), int(numbers[2])
            require(first < NO_END and last < NO_END, "a large range")
        key = without_extension(key if has_id else path)
        require(0 < len(key) <= 4096, "an id")
        require(bool(path), "a path")
        require(first <= last, "a range that ends before it begins")
        if path[:4] in (b".../", b"...\\"):
            path = folder + path[3:]
        found.append(Line(key, path.replace(b"\\", b"/"), first, last))
    require(bool(found), "no line")
    return found


def corpus(
    lists: list[Line], read: Callable[[bytes], bytes], left: int = 0, right: int = 0
) -> dict[bytes, list[list[bytes]]]:
    """Return the frames of each utterance that is not listed twice; all have the dimension of the first."""
    files = {path: features(read(path)) for path in dict.fromkeys(line.path for line in lists if line.last == NO_END)}
    require(all(file.frames for file in files.values()), "a file without frames")
    keys = [line.key for line in lists]
    once = [line for line in lists if keys.count(line.key) == 1]
    require(bool(once), "no utterance")
    for line in once:
        files.setdefault(line.path, features(read(line.path)))
    dim = files[once[0].path].dim
    found = {}
    for line in once:
        file = files[line.path]
        require(file.dim == dim, "another dimension")
        last = file.frames - 1 if line.last == NO_END else line.last
        require(last < file.frames, "a range beyond the file")
        frames = [file.frame(number) for number in range(line.first, last + 1)]
        found[line.key] = [
            [value for at in range(t - left, t + right + 1) for value in frames[min(max(at, 0), len(frames) - 1)]]
            for t in range(len(frames))
        ]
    return found


# ---------------------------------------------------------------------------------------------------------- labels

NUMBER = re.compile(rb"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


def time_of(text: bytes) -> float | None:
    """Return the number at the beginning of a text."""
    matched = NUMBER.match(text)
    value = float(matched[0]) if matched else math.inf
    return value if math.isfinite(value) else None


def label_of(rest: bytes, label: bytes, names: list[bytes]) -> int | None:
    if label in names:
        return names.index(label)
    if label[:1] not in (b'"', b"'"):
        return None
    quoted = re.match(rb"(['\"])((?:\\[0-3][0-7][0-7]|\\.|(?!\1)[^\\])*)\1", rest, re.DOTALL)
    if not quoted:
        return None
    said = re.sub(
        rb"\\([0-3][0-7][0-7])|\\(.)",
        lambda escape: bytes([int(escape[1], 8)]) if escape[1] else escape[2],
        quoted[2],
        flags=re.DOTALL,
    )
    return names.index(said) if said in names else None


def row_of(line: bytes, names: list[bytes] | None) -> tuple[float, float, int] | None:
    columns = [column for column in re.split(rb"[ \t]+", line.strip(b" \t")) if column]
    if len(columns) < 3 or (names is None and len(columns) != 4):
        return None
    start, end = time_of(columns[0]), time_of(columns[1])
    if start is None or end is None or end < start:
        return None
    if names is None:
        label = int(columns[3]) if re.fullmatch(rb"\d+", columns[3]) else None
    else:
        rest = re.match(rb"[ \t]*[^ \t]+[ \t]+[^ \t]+[ \t]+(.*)", line, re.DOTALL)
        assert rest is not None
        label = label_of(rest[1], columns[2], names)
    return None if label is None else (start, end, label)


def frames_of(lines: list[bytes], names: list[bytes] | None, dim: int) -> list[int] | str:
    rows = [row_of(line, names) for line in lines]
    sound = [row for row in rows if row is not None]
    if len(sound) < len(rows) or any(label >= dim for _, _, label in sound):
        return "broken"
    is_round = all(time % 100_000 == 0 for start, end, _ in sound for time in (start, end))
    counts_time = any(end - start >= 99_999 for start, end, _ in sound) or (
        is_round and any(end > 0 for _, end, _ in sound)
    )
    spans = []
    for start, end, label in sound:
        first, last = (math.floor(t / 100_000 + 0.5) if counts_time else math.floor(t) for t in (start, end))
        if first < 0 or max(first, last) > 2**32 - 2:
            return "broken or invalid"  # invalid or broken, depending on the previous rows
        spans.append((first, last, label))
    ends = [0, *(last for _, last, _ in spans)]
    if any(first != before for (first, _, _), before in zip(spans, ends, strict=False)):
        return "invalid"
    return [label for first, last, label in spans for _ in range(last - first)] if ends[-1] else "broken"


def mlf(text: bytes, names: list[bytes] | None, dim: int) -> dict[bytes, Any]:
    text = text.removeprefix(b"\xef\xbb\xbf")
    lines = [line.removesuffix(b"\r").rstrip(BLANKS) for line in text.split(b"\n")]
    lines = [line for line in lines if line]
    require(bool(lines) and lines[0] == b"#!MLF!#", "the first line")
    found: dict[bytes, Any] = {}
    entry: list[bytes] = []
    for line in lines:
        if not entry:
            if line not in (b"#!MLF!#", b"."):
                entry = [line]
        elif line != b".":
            entry.append(line)
        else:
            key_line = entry[0].strip(BLANKS)
            if len(key_line) >= 3 and key_line[:1] == key_line[-1:] == b'"' and len(entry) > 1:
                key = without_extension(key_line[1:-1].removeprefix(b"*/"))
                require(key not in found, "a key twice")
                found[key] = frames_of(entry[1:], names, dim)
            entry = []
    require(bool(found), "no entry")
    return found

"""
The binary format in plain Python: a slow, obvious reader and writer of both layouts, for the tests.

A file is `[chunk, ...]`, a chunk `[sequence, ...]`, a sequence `{stream: samples}`; a dense sample is a list of values,
a sparse sample a list of (index, value). Values are stored as bytes, so that comparisons compare bits.
"""

import struct
from typing import Any, NamedTuple

MAGIC = b"nib_ktnc"


class Refused(Exception):
    """The file breaks the format."""


class Stream(NamedTuple):
    name: str
    is_sparse: bool
    is_double: bool
    dim: int


class Content(NamedTuple):
    streams: list[Stream]
    chunks: list[list[dict[str, Any]]]
    lengths: list[int]


class Bytes:
    """Bytes that are read field by field."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.content):
            raise Refused(f"{size} bytes at {self.at} of {len(self.content)}")
        self.at += size
        return self.content[self.at - size : self.at]

    def number(self, form: str) -> int:
        return struct.unpack("<" + form, self.take(struct.calcsize(form)))[0]

    def numbers(self, form: str, count: int) -> list[int]:
        return [item for (item,) in struct.iter_unpack("<" + form, self.take(count * struct.calcsize(form)))]

    def values(self, count: int, is_double: bool) -> list[bytes]:
        width = 8 if is_double else 4
        content = self.take(count * width)
        return [content[at : at + width] for at in range(0, len(content), width)]


def require(truth: bool, what: str) -> None:
    if not truth:
        raise Refused(what)


def name_of(content: bytes) -> str:
    return content.split(b"\0")[0].decode("utf-8", "backslashreplace")


def read(content: bytes) -> Content:
    require(len(content) >= 8, "too short")
    made = read_2x(content) if content[:8] == MAGIC else read_documented(content)
    require(len({stream.name for stream in made.streams}) == len(made.streams), "a name twice")
    require(bool(made.lengths), "no sequence")
    return made


def read_2x(content: bytes) -> Content:
    require(len(content) >= 36, "too short")
    require(struct.unpack("<I", content[8:12])[0] == 1, "version")
    begin = struct.unpack("<q", content[-8:])[0]
    require(12 <= begin <= len(content) - 24, "where the header is")
    header = Bytes(content[begin:-8])
    require(header.take(8) == MAGIC, "magic number of the header")
    num_chunks, num_streams = header.number("I"), header.number("I")
    require(num_chunks > 0 and num_streams > 0, "no chunk or no stream")
    streams = []
    for _ in range(num_streams):
        encoding, size = header.number("B"), header.number("I")
        name, element, dim = name_of(header.take(size)), header.number("B"), header.number("I")
        require(encoding < 2 and element < 2 and dim > 0 and (encoding == 0 or dim < 2**31), "a stream")
        streams.append(Stream(name, encoding == 1, element == 1, dim))
    rows = [struct.unpack("<qII", header.take(16)) for _ in range(num_chunks)]
    bounds = [12, *(row[0] for row in rows), begin]
    require(bounds == sorted(bounds), "the order of the chunks")
    chunks, lengths = [], []
    for number, (offset, num_sequences, num_samples) in enumerate(rows):
        chunk = Bytes(content[offset : bounds[number + 2]])
        listed = chunk.numbers("I", num_sequences)
        require(sum(listed) == num_samples and all(listed), "the length list")
        columns = {stream.name: [sequence_2x(chunk, stream) for _ in listed] for stream in streams} if listed else {}
        chunks.append([{name: column[at] for name, column in columns.items()} for at in range(num_sequences)])
        lengths += listed
    return Content(streams, chunks, lengths)


def sequence_2x(chunk: Bytes, stream: Stream) -> list[Any]:
    num_samples = chunk.number("I")
    if not stream.is_sparse:
        require(num_samples * stream.dim * 4 <= len(chunk.content), "dense samples")
        return [chunk.values(stream.dim, stream.is_double) for _ in range(num_samples)]
    num_values = chunk.number("i")
    require(num_values >= 0, "a negative number of values")
    values = chunk.values(num_values, stream.is_double)
    indices, sizes = chunk.numbers("i", num_values), chunk.numbers("i", num_samples)
    require(all(0 <= index < stream.dim for index in indices), "an index")
    require(all(size >= 0 for size in sizes) and sum(sizes) == num_values, "the sizes")
    entries = iter(zip(indices, values, strict=True))
    return [[next(entries) for _ in range(size)] for size in sizes]


def read_documented(content: bytes) -> Content:
    file = Bytes(content)
    require(file.number("q") == 1, "version")
    num_chunks, num_streams = file.number("q"), file.number("i")
    require(num_chunks > 0 and num_streams > 0, "no chunk or no input")
    streams = []
    for _ in range(num_streams):
        name, kind = name_of(file.take(file.number("i"))), file.number("i")
        require(kind in (0, 1) and (kind == 0 or file.number("i") == 0), "a deserializer or its storage")
        element = file.number("i")
        require(element in (0, 1) and (kind == 0 or file.number("i") in (0, 1)), "an element type or a flag")
        dim = file.number("i")
        require(dim > 0, "a sample size")
        streams.append(Stream(name, kind == 1, element == 1, dim))
    require(num_chunks * 16 <= len(content), "the table")
    rows = [struct.unpack("<qii", file.take(16)) for _ in range(num_chunks)]
    data = content[file.at :]
    bounds = [0, *(row[0] for row in rows), len(data)]
    require(bounds == sorted(bounds), "the order of the chunks")
    chunks, lengths = [], []
    for number, (offset, num_sequences, num_samples) in enumerate(rows):
        require(num_sequences >= 0 and (num_samples > 0 if num_sequences else num_samples == 0), "a row of the table")
        chunk = Bytes(data[offset : bounds[number + 2]])
        require(num_sequences * 4 <= len(chunk.content), "too many sequences")
        columns = {}
        for stream in streams if num_sequences else []:
            columns[stream.name] = input_documented(chunk, stream, num_sequences, min(num_samples, 2 * len(content)))
        found = [{name: column[at] for name, column in columns.items()} for at in range(num_sequences)]
        counted = [max(len(samples) for samples in sequence.values()) for sequence in found]
        require(sum(counted) <= num_samples, "the number of samples")
        chunks.append(found)
        lengths += counted
    return Content(streams, chunks, lengths)


def input_documented(chunk: Bytes, stream: Stream, num_sequences: int, most_samples: int) -> list[list[Any]]:
    if not stream.is_sparse:
        require(num_sequences * stream.dim * 4 <= len(chunk.content), "dense samples")
        return [[chunk.values(stream.dim, stream.is_double)] for _ in range(num_sequences)]
    num_values = chunk.number("i")
    require(num_values >= 0, "a negative number of values")
    values = chunk.values(num_values, stream.is_double)
    rows, columns = chunk.numbers("i", num_values), chunk.numbers("i", num_sequences + 1)
    require(columns == sorted(columns) and columns[0] == 0 and columns[-1] == num_values, "the columns")
    require(all(row >= 0 for row in rows), "a row")
    sequences, total = [], 0
    for begin, end in zip(columns, columns[1:], strict=False):
        places = [row // stream.dim for row in rows[begin:end]]
        require(places == sorted(places), "the order of samples")
        total += places[-1] + 1 if places else 1
        require(total <= most_samples, "too many samples")
        samples: list[Any] = [[] for _ in range(places[-1] + 1 if places else 1)]
        for place, row, value in zip(places, rows[begin:end], values[begin:end], strict=True):
            samples[place].append((row % stream.dim, value))
        sequences.append(samples)
    return sequences


def write(content: Content, layout: str = "2.x") -> bytes:
    return write_2x(content) if layout == "2.x" else write_documented(content)


def write_2x(content: Content) -> bytes:
    out, rows, lengths = bytearray(MAGIC + struct.pack("<I", 1)), b"", list(content.lengths)
    for chunk in content.chunks:
        listed, lengths = lengths[: len(chunk)], lengths[len(chunk) :]
        rows += struct.pack("<qII", len(out), len(chunk), sum(listed))
        out += struct.pack(f"<{len(listed)}I", *listed)
        for stream in content.streams:
            for samples in (sequence[stream.name] for sequence in chunk):
                out += struct.pack("<I", len(samples))
                if not stream.is_sparse:
                    out += b"".join(value for sample in samples for value in sample)
                    continue
                entries = [entry for sample in samples for entry in sample]
                out += struct.pack("<i", len(entries)) + b"".join(value for _, value in entries)
                out += b"".join(struct.pack("<i", index) for index, _ in entries)
                out += b"".join(struct.pack("<i", len(sample)) for sample in samples)
    header = MAGIC + struct.pack("<II", len(content.chunks), len(content.streams))
    for stream in content.streams:
        name = stream.name.encode()
        header += struct.pack("<BI", stream.is_sparse, len(name)) + name
        header += struct.pack("<BI", stream.is_double, stream.dim)
    return bytes(out) + header + rows + struct.pack("<q", len(out))


def write_documented(content: Content) -> bytes:
    out, rows, lengths = bytearray(), b"", list(content.lengths)
    for chunk in content.chunks:
        listed, lengths = lengths[: len(chunk)], lengths[len(chunk) :]
        rows += struct.pack("<qii", len(out), len(chunk), sum(listed))
        for stream in content.streams:
            sequences = [sequence[stream.name] for sequence in chunk]
            if not stream.is_sparse:
                out += b"".join(value for (sample,) in sequences for value in sample)
                continue
            entries = [
                [(place * stream.dim + index, value) for place, sample in enumerate(samples) for index, value in sample]
                for samples in sequences
            ]
            flat = [entry for sequence in entries for entry in sequence]
            out += struct.pack("<i", len(flat)) + b"".join(value for _, value in flat)
            out += b"".join(struct.pack("<i", row) for row, _ in flat) + struct.pack("<i", 0)
            out += b"".join(struct.pack("<i", sum(map(len, entries[: at + 1]))) for at in range(len(entries)))
    header = struct.pack("<qqi", 1, len(content.chunks), len(content.streams))
    for stream in content.streams:
        name = stream.name.encode()
        header += struct.pack("<i", len(name)) + name
        numbers = (1, 0, stream.is_double, 1, stream.dim) if stream.is_sparse else (0, stream.is_double, stream.dim)
        header += struct.pack(f"<{len(numbers)}i", *numbers)
    return header + rows + bytes(out)

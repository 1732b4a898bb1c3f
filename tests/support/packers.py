"""Ways to compress a text: one for each layout that gzip and zstd files have."""

import bz2
import gzip
import io
import lzma
import random
import struct
import zlib
from collections.abc import Callable, Iterator

import zstandard
from cntkio.formats.written_files import compressed

Packer = Callable[[bytes, random.Random], bytes]


def parts(text: bytes, source: random.Random, most: int = 8) -> Iterator[bytes]:
    """Cut a text at random places; some parts are empty."""
    cuts = sorted(source.randrange(len(text) + 1) for _ in range(source.randrange(most)))
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        yield text[begin:end]


def member_of_blocks(text: bytes, source: random.Random) -> bytes:
    """A member of gzip with many blocks, most of which begin within a byte."""
    pack = zlib.compressobj(source.choice((1, 6, 9)), zlib.DEFLATED, 31)
    out = [pack.compress(text[:0])]
    for part in parts(text, source, 40):
        out += [pack.compress(part), pack.flush(source.choice((zlib.Z_BLOCK, zlib.Z_BLOCK, zlib.Z_SYNC_FLUSH)))]
    return b"".join(out) + pack.flush()


def one_member(text: bytes, source: random.Random) -> bytes:
    return gzip.compress(text)


def named_member(text: bytes, source: random.Random) -> bytes:
    """A member whose header has the name of a file, and zeros after its end."""
    out = io.BytesIO()
    with gzip.GzipFile("name of a file", "wb", fileobj=out) as file:
        file.write(text)
    return out.getvalue() + bytes(source.randrange(600))


def members(text: bytes, source: random.Random) -> bytes:
    return b"".join(source.choice((one_member, member_of_blocks))(part, source) for part in parts(text, source))


def bgzf(text: bytes, source: random.Random) -> bytes:
    """Blocks of BGZF, each with its size in the header, and an empty block at the end."""
    blocks = []
    for part in (*parts(text, source), b""):
        pack = zlib.compressobj(6, zlib.DEFLATED, -15)
        data = pack.compress(part) + pack.flush()
        head = b"\x1f\x8b\x08\x04" + bytes(5) + b"\xff" + struct.pack("<H2sHH", 6, b"BC", 2, len(data) + 25)
        blocks.append(head + data + struct.pack("<II", zlib.crc32(part), len(part)))
    return b"".join(blocks)


def one_frame(text: bytes, source: random.Random) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=source.random() < 0.5).compress(text)


def frames(text: bytes, source: random.Random) -> bytes:
    """Frames with and without their sizes and checksums, and skippable frames between them."""
    out = []
    for part in parts(text, source):
        pack = zstandard.ZstdCompressor(
            write_content_size=source.random() < 0.5, write_checksum=source.random() < 0.5, level=source.choice((1, 9))
        )
        skippable = struct.pack("<II", 0x184D2A50 + source.randrange(16), 3) + b"abc"
        out += [pack.compress(part), skippable if source.random() < 0.3 else b""]
    return b"".join(out)


def sized_frames(text: bytes, source: random.Random) -> bytes:
    """Frames that all have the size of their text, and skippable frames between them."""
    out = []
    for part in parts(text, source):
        pack = zstandard.ZstdCompressor(write_checksum=source.random() < 0.5)
        skippable = struct.pack("<II", 0x184D2A50 + source.randrange(16), 3) + b"abc"
        out += [pack.compress(part), skippable if source.random() < 0.3 else b""]
    return b"".join(out)


def seekable(text: bytes, source: random.Random) -> bytes:
    """Frames with a seek table, from a writer that is not cntkio's."""
    return with_table(list(parts(text, source)), has_sums=source.random() < 0.5)


def with_table(texts: list[bytes], *, has_sums: bool) -> bytes:
    """Frames without checksums, and a seek table, with or without checksums."""
    packed = [zstandard.ZstdCompressor(write_content_size=False).compress(text) for text in texts]
    # A frame with a checksum ends with the checksum that the table has, too.
    sums = [zstandard.ZstdCompressor(write_checksum=True).compress(text)[-4:] for text in texts]
    entries = b"".join(
        struct.pack("<II", len(frame), len(text)) + has_sums * sum_of_text
        for frame, text, sum_of_text in zip(packed, texts, sums, strict=True)
    )
    table = entries + struct.pack("<IBI", len(packed), 0x80 * has_sums, 0x8F92EAB1)
    return b"".join(packed) + struct.pack("<II", 0x184D2A5E, len(table)) + table


def written_by_us(text: bytes, source: random.Random) -> bytes:
    out = io.BytesIO()
    with compressed(out, "zstd") as file:
        file.write(memoryview(text))
    return out.getvalue()


BY_ENDING: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
"""A way to compress any file, by the usual ending of its name."""
PACKERS: dict[str, Packer] = {
    packer.__name__: packer
    for packer in (
        one_member, named_member, member_of_blocks, members, bgzf, one_frame, frames, sized_frames, seekable,
        written_by_us,
    )
}  # fmt: skip

"""Damaged, unusual and changing compressed texts: an error that says where, or exactly the text."""

import gzip
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
import zstandard
from cntkio import (
    CntkIoError,
    CorpusError,
    CTFDeserializer,
    FormatError,
    MinibatchSource,
    Remote,
    StreamDef,
    StreamDefs,
)
from cntkio.formats import written_files
from cntkio.storage import compressed, stores
from cntkio.storage.open_input import open_input
from support.packers import bgzf, member_of_blocks, with_table, written_by_us
from support.range_server import RangeServer, range_server

STREAMS = StreamDefs(x=StreamDef(field="x", shape=2))
VALUES = np.random.default_rng(1).integers(0, 10**7, (4000, 2))
TEXT = b"".join(b"|x %d %d\n" % tuple(row) for row in VALUES.tolist())


@pytest.fixture(autouse=True)
def many_points(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Put access points and frames close to each other, and caches where no other test has any."""
    monkeypatch.setattr(compressed, "SPACING", 5000)
    monkeypatch.setattr(compressed, "FRAMES", 1000)
    monkeypatch.setattr(written_files, "FRAME", 5000)
    monkeypatch.setattr(stores, "FIRST_PAUSE", 0.001)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user cache"))


def values_of(name: str | Path) -> Any:
    return cntkio.read_ctf(name, STREAMS)["x"].values.tolist()


def summed(text: bytes, source: random.Random) -> bytes:
    """Frames with checksums."""
    pack = zstandard.ZstdCompressor(write_checksum=True)
    return b"".join(pack.compress(text[begin : begin + 5000]) for begin in range(0, len(text), 5000))


def summed_in_table(text: bytes, source: random.Random) -> bytes:
    """Frames whose checksums are only in the seek table."""
    return with_table([text[begin : begin + 5000] for begin in range(0, len(text), 5000)], has_sums=True)


SKIPPED = struct.pack("<II", 0x184D2A5A, 7) + b"skipped"
EMPTY = {"gzip": gzip.compress(b""), "zstd": zstandard.ZstdCompressor().compress(b"")}
PACKED: dict[str, tuple[str, Callable[[bytes, random.Random], bytes]]] = {
    "gzip": ("gzip", lambda text, _: gzip.compress(text)),
    "gzip of many blocks": ("gzip", member_of_blocks),
    "BGZF": ("gzip", bgzf),
    "zstd": ("zstd", summed),
    "zstd with a seek table": ("zstd", written_by_us),
    "zstd with checksums in the seek table": ("zstd", summed_in_table),
}


@pytest.mark.parametrize("kind", PACKED)
def test_every_place_where_a_file_is_cut_is_an_error(kind: str, tmp_path: Path) -> None:
    name, pack = PACKED[kind]
    choose, path = random.Random(kind), tmp_path / "a.ctf.packed"
    packed = pack(TEXT, choose)
    for _ in range(20):
        # A cut between members or frames leaves whole data.
        size = choose.randrange(20, len(packed) - 40)
        path.write_bytes(packed[:size])
        try:
            found = values_of(path)
        except FormatError as error:
            assert f"a.ctf.packed, byte {error.byte}: the {name} data are damaged near byte" in str(error)
            assert error.byte is not None and error.byte <= len(TEXT)
        else:
            assert kind != "gzip" and found == VALUES[: len(found)].tolist()


@pytest.mark.parametrize("kind", PACKED)
def test_every_flipped_bit_is_an_error_or_changes_nothing(kind: str, tmp_path: Path) -> None:
    pack = PACKED[kind][1]
    choose, path = random.Random(kind), tmp_path / "a.ctf"
    packed = pack(TEXT, choose)
    expected, num_errors = VALUES.tolist(), 0
    for _ in range(60):
        damaged = bytearray(packed)
        damaged[choose.randrange(len(packed))] ^= 1 << choose.randrange(8)
        path.write_bytes(damaged)
        try:
            assert values_of(path) == expected
        except FormatError as error:
            num_errors += 1
            assert str(error).startswith(f"{path}, byte ") and "data are damaged near byte" in str(error)
    assert num_errors > 40


@pytest.mark.parametrize("largest", [1000, compressed.LARGEST_SEGMENT])
def test_refuses_a_text_that_differs_from_its_sum_in_the_table(
    largest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compressed, "LARGEST_SEGMENT", largest)  # larger frames are decompressed in order
    packed = bytearray(summed_in_table(TEXT, random.Random(1)))
    packed[-9 - 1] ^= 1  # in the checksum of the last frame
    (tmp_path / "a.ctf").write_bytes(packed)
    with pytest.raises(FormatError, match=r"the text of a frame has the checksum \w{8}, but its table says \w{8}"):
        values_of(tmp_path / "a.ctf")


def test_checks_the_last_sum_of_a_frame_that_is_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "LARGEST_SEGMENT", 1000)
    # The text is complete at the end of the first 256 KiB, which are read at once. The checksum continues after them.
    size = (1 << 18) + 2 - 9 - 2 * 3 - 4
    text = (b"|x 1 2\n" * (size // 7)).ljust(size - 1) + b"\n"
    blocks = [text[: 1 << 17], text[1 << 17 :]]
    header = struct.pack("<IBI", 0xFD2FB528, 0xA4, size)
    raw = [
        (len(block) << 3 | is_last).to_bytes(3, "little") + block for block, is_last in zip(blocks, (0, 1), strict=True)
    ]
    packed = bytearray(header + b"".join(raw) + zstandard.ZstdCompressor(write_checksum=True).compress(text)[-4:])
    assert len(packed) == (1 << 18) + 2
    (tmp_path / "a.ctf").write_bytes(packed)
    assert len(values_of(tmp_path / "a.ctf")) == size // 7
    packed[-1] ^= 1
    (tmp_path / "a.ctf").write_bytes(packed)
    with pytest.raises(FormatError, match=r"doesn't match checksum"):
        values_of(tmp_path / "a.ctf")


@pytest.mark.parametrize("largest", [1000, compressed.LARGEST_SEGMENT])
def test_text_that_the_seek_table_does_not_count_is_damage(
    largest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compressed, "LARGEST_SEGMENT", largest)
    packed = bytearray(with_table([TEXT], has_sums=False))
    packed[-13:-9] = struct.pack("<I", TEXT.index(b"\n", 2000) + 1)  # the size of the text in the only entry
    (tmp_path / "a.ctf").write_bytes(packed)
    with pytest.raises(FormatError, match="the data hold more text than their table says"):
        values_of(tmp_path / "a.ctf")


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_wrong_check_sum_is_named(kind: str, tmp_path: Path) -> None:
    packed = bytearray(PACKED[kind][1](TEXT, random.Random(1)))
    packed[-8 if kind == "gzip" else -1] ^= 1
    (tmp_path / "a.ctf").write_bytes(packed)
    with pytest.raises(FormatError, match=r"incorrect data check|doesn't match checksum"):
        CTFDeserializer(tmp_path / "a.ctf", STREAMS).open()


def test_text_in_a_frame_that_states_none_is_damage(tmp_path: Path) -> None:
    pack = zstandard.ZstdCompressor(write_checksum=False, level=-1)
    first, last = pack.compress(TEXT), bytearray(pack.compress(b"|x 1 2\n"))
    assert last[4:6] == b"\x20\x07"  # the second byte states the size
    last[5] = 0
    (tmp_path / "a.ctf").write_bytes(first + last)
    with pytest.raises(FormatError, match=f"damaged near byte {len(first)} of the compressed file"):
        values_of(tmp_path / "a.ctf")


@pytest.mark.parametrize("has_size", [True, False])
def test_a_frame_with_less_text_than_it_states_is_damage(has_size: bool, tmp_path: Path) -> None:
    """libzstd accepts such a frame from a stream if its last block is empty."""
    frame = struct.pack("<IBH", 0xFD2FB528, 0x60, 5000) + b"\1\0\0"
    rest = zstandard.ZstdCompressor(write_content_size=has_size).compress(TEXT)
    (tmp_path / "a.ctf").write_bytes(frame + rest)
    with pytest.raises(FormatError, match="damaged near byte .* the frame has less text than its header states"):
        values_of(tmp_path / "a.ctf")


@pytest.mark.parametrize("kind", EMPTY)
def test_empty_and_skippable_parts_and_joined_files_are_read(kind: str, tmp_path: Path) -> None:
    path, pack = tmp_path / "a.ctf", PACKED[kind][1]
    half = TEXT.index(b"\n", len(TEXT) // 2) + 1
    first, last = (pack(part, random.Random(1)) for part in (TEXT[:half], TEXT[half:]))
    more = b"" if kind == "gzip" else SKIPPED
    for parts in ([EMPTY[kind], first, last], [first, EMPTY[kind], more, last], [more, first, last, EMPTY[kind], more]):
        path.write_bytes(b"".join(parts))
        assert values_of(path) == VALUES.tolist()


def test_frames_that_need_a_dictionary_are_refused_with_its_id(tmp_path: Path) -> None:
    samples = [b"|x %d %d\n" % (number, number * 7) for number in range(5000)]
    dictionary = zstandard.train_dictionary(4096, samples)
    packed = zstandard.ZstdCompressor(dict_data=dictionary).compress(TEXT)
    for begin in (b"", summed(TEXT, random.Random(1))):
        (tmp_path / "a.ctf").write_bytes(begin + packed)
        with pytest.raises(
            FormatError, match=f"needs the dictionary {dictionary.dict_id()}; compress the text without"
        ):
            CTFDeserializer(tmp_path / "a.ctf", STREAMS).open()


def test_frames_that_need_much_memory_are_refused(tmp_path: Path) -> None:
    magic, last_block = b"\x28\xb5\x2f\xfd", b"\x01\0\0"
    window_of_2_gb, window_of_128_mb = bytes([31 - 10 << 3]), bytes([27 - 10 << 3])
    (tmp_path / "a.ctf").write_bytes(summed(TEXT, random.Random(1)) + magic + b"\0" + window_of_2_gb + last_block)
    with pytest.raises(FormatError, match=r"needs a window of 2048 MB; expected at most 128 MB \(zstd --long=27\)"):
        CTFDeserializer(tmp_path / "a.ctf", STREAMS).open()
    (tmp_path / "a.ctf").write_bytes(summed(TEXT, random.Random(1)) + magic + b"\0" + window_of_128_mb + last_block)
    assert values_of(tmp_path / "a.ctf") == VALUES.tolist()


@pytest.mark.parametrize("randomize", [False, True])
@pytest.mark.parametrize("kind", ["gzip", "zstd", "zstd with a seek table"])
@pytest.mark.parametrize("change", ["truncated", "replaced", "damaged unnoticed"])
def test_a_file_that_changes_in_mid_sweep_is_an_error(change: str, kind: str, randomize: bool, tmp_path: Path) -> None:
    path, packed = tmp_path / "a.ctf", PACKED[kind][1](TEXT, random.Random(1))
    path.write_bytes(packed)
    options: dict[str, Any] = {"randomize": randomize, "max_sweeps": 1, "read_ahead_in_bytes": 0}
    corpus = CTFDeserializer(path, STREAMS, chunk_size_in_bytes=8000)
    with MinibatchSource(corpus, randomization_window_in_chunks=1, **options) as source:
        # The thread that loads chunks after the first minibatch could notice the time of the change before it is reset.
        delivered = [] if change == "damaged unnoticed" else source.next_minibatch(10)["x"].values.tolist()
        status = path.stat()
        with path.open("r+b") as file:
            if change == "truncated":
                file.truncate(len(packed) // 4)
            elif change == "replaced":
                file.write(PACKED[kind][1](TEXT[::-1], random.Random(1))[: len(packed)])
            else:
                file.seek(len(packed) // 4)
                file.write(bytes(byte ^ 255 for byte in packed[len(packed) // 4 :][: len(packed) // 2]))
        if change == "damaged unnoticed":
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        expected = r"data are damaged near byte" if change == "damaged unnoticed" else "changed while in use"
        with pytest.raises(CntkIoError, match=expected) as caught:
            for minibatch in source.minibatches(10):
                delivered += minibatch["x"].values.tolist()
    assert caught.type is (FormatError if change == "damaged unnoticed" else CorpusError)
    assert {tuple(row) for row in delivered} <= {tuple(row) for row in VALUES.tolist()}


# ------------------------------------------------------------------------------------------------------ remote stores


@pytest.fixture
def server() -> Iterator[RangeServer]:
    pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")
    pytest.importorskip("aiohttp", reason="fsspec reads http only with aiohttp")
    with range_server() as served:
        yield served


@pytest.mark.parametrize("kind", ["gzip of many blocks", "zstd", "zstd with a seek table"])
def test_a_chunk_of_a_remote_text_requests_only_its_segments(kind: str, server: RangeServer) -> None:
    text = TEXT * 12
    content = server.files["a.ctf"] = PACKED[kind][1](text, random.Random(1))
    corpus = CTFDeserializer(f"{server.url}/a.ctf", STREAMS, chunk_size_in_bytes=len(text) // 8).open()
    points = open_input(f"{server.url}/a.ctf").storage.guide
    widest = int(np.diff(points.places >> np.uint64(4)).max())  # type: ignore[attr-defined]
    asked = []
    for chunk_id in (5, 2):
        server.requests.clear()
        corpus.load(chunk_id)
        ranges = [(request.begin, request.end) for request in server.requests if request.begin is not None]
        assert len(ranges) == 1
        asked += ranges
    corpus.close()
    for begin, end in asked:
        assert begin is not None and end is not None and end - begin < len(content) // 8 + 3 * widest
    assert asked[0] > asked[1]


def test_a_seek_table_of_a_remote_text_spares_the_pass_over_it(server: RangeServer) -> None:
    content = server.files["a.ctf"] = written_by_us(TEXT * 12, random.Random(1))
    file = open_input(f"{server.url}/a.ctf")
    assert file.read(len(TEXT) * 6, 20) == TEXT[:20]
    asked = [request.end - request.begin for request in server.requests if request.begin is not None]  # type: ignore[operator]
    assert sum(asked) < len(content) // 2
    file.close()


def test_damage_in_a_remote_text_is_located(server: RangeServer) -> None:
    packed = bytearray(summed(TEXT, random.Random(1)))
    packed[len(packed) // 2] ^= 255
    server.files["a.ctf"] = bytes(packed)
    with pytest.raises(FormatError, match=r"/a\.ctf, byte \d+: the zstd data are damaged near byte \d+") as caught:
        CTFDeserializer(f"{server.url}/a.ctf", STREAMS).open()
    assert abs((caught.value.byte or 0) - len(TEXT) // 2) < 10_000


@pytest.mark.parametrize("is_cached", [False, True])
def test_replacing_a_remote_text_in_mid_sweep_is_an_error(is_cached: bool, server: RangeServer, tmp_path: Path) -> None:
    server.files["a.ctf"] = summed(TEXT * 12, random.Random(1))
    remote = Remote(cache=tmp_path / "cache") if is_cached else None
    corpus = CTFDeserializer(f"{server.url}/a.ctf", STREAMS, chunk_size_in_bytes=8000, remote=remote)
    with MinibatchSource(corpus, randomize=False, max_sweeps=1, read_ahead_in_bytes=0) as source:
        source.next_minibatch(10)
        server.files["a.ctf"] = summed(TEXT[::-1] * 12, random.Random(1))
        with pytest.raises(CorpusError, match=r"a\.ctf: changed while it was read"):
            for _ in source.minibatches(10):
                pass

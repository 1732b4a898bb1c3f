"""Text is compressed while it is written, in frames, each of which a reader can begin with."""

import gzip
import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from cntkio import ConfigError, write_ctf
from cntkio.convert import convert_file, txt_to_ctf, uci_to_ctf
from cntkio.formats import written_files

DATA = {"x": np.arange(20_000, dtype=np.float32).reshape(-1, 4)}


@pytest.fixture
def plain(tmp_path: Path) -> bytes:
    write_ctf(tmp_path / "plain.ctf", DATA)
    return (tmp_path / "plain.ctf").read_bytes()


def test_gzip_holds_the_same_text(plain: bytes, tmp_path: Path) -> None:
    write_ctf(tmp_path / "a.ctf.gz", DATA)
    write_ctf(tmp_path / "b", DATA, compress="gzip")
    write_ctf(tmp_path / "c.gz", DATA, compress="none")
    assert (tmp_path / "a.ctf.gz").read_bytes() == (tmp_path / "b").read_bytes()
    assert gzip.decompress((tmp_path / "b").read_bytes()) == plain == (tmp_path / "c.gz").read_bytes()


def test_zstd_holds_the_same_text_in_frames_with_a_table(plain: bytes, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(written_files, "FRAME", 10_000)
    convert_file(tmp_path / "plain.ctf", tmp_path / "a.ctf.zst")
    content = (tmp_path / "a.ctf.zst").read_bytes()
    count, flags, magic = struct.unpack("<IBI", content[-9:])
    assert (flags, magic, count) == (0, 0x8F92EAB1, -(-len(plain) // 10_000))
    table = content[-9 - 8 * count : -9]
    assert struct.unpack("<II", content[-17 - 8 * count : -9 - 8 * count]) == (0x184D2A5E, 8 * count + 9)
    texts, begin = [], 0
    for packed, unpacked in struct.iter_unpack("<II", table):
        texts.append(zstandard.ZstdDecompressor().decompress(content[begin : begin + packed]))
        assert len(texts[-1]) == unpacked
        begin += packed
    assert b"".join(texts) == plain and begin == len(content) - 17 - 8 * count
    with zstandard.open(tmp_path / "a.ctf.zst", "rb", dctx=zstandard.ZstdDecompressor()) as file:
        assert plain.startswith(file.read(10_000))


UNPACKED_BY: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.decompress,
    "zstd": lambda packed: zstandard.ZstdDecompressor().decompressobj().decompress(packed),
    "none": bytes,
}


@pytest.mark.parametrize(("name", "compress"), [("a.gz", None), ("a.zst", None), ("a", "zstd"), ("a.gz", "none")])
def test_converters_of_scripts_compress_as_the_text_writer_does(
    name: str, compress: written_files.Compression | None, tmp_path: Path
) -> None:
    (tmp_path / "words").write_text("the\ncat\n")
    (tmp_path / "in.txt").write_text("the cat\ncat\n" * 500)
    (tmp_path / "in.uci").write_text("".join(f"{number} 1 2\n" for number in range(500)))
    unpacked = UNPACKED_BY[written_files.compression_of(name, compress)]
    for convert in (
        lambda target, **options: txt_to_ctf(tmp_path / "in.txt", target, [tmp_path / "words"], **options),
        lambda target, **options: uci_to_ctf(
            tmp_path / "in.uci", target, features_start=1, features_dim=2, label_type="None", **options
        ),
    ):
        convert(tmp_path / "plain")
        convert(tmp_path / name, compress=compress)
        assert unpacked((tmp_path / name).read_bytes()) == (tmp_path / "plain").read_bytes()
        opened = io.BytesIO()
        convert(opened, compress="gzip")
        assert gzip.decompress(opened.getvalue()) == (tmp_path / "plain").read_bytes()


def test_svmlight_is_compressed_as_the_option_says(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 1:2 7:3\n0 3:1\n" * 50)
    convert_file(tmp_path / "a.svm", tmp_path / "b.svm")
    convert_file(tmp_path / "a.svm", tmp_path / "c.svm", compress="gzip")
    assert gzip.decompress((tmp_path / "c.svm").read_bytes()) == (tmp_path / "b.svm").read_bytes()


def test_a_failure_leaves_no_packed_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nan"):
        write_ctf(tmp_path / "a.ctf.gz", {"x": np.array([1, np.nan])})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("a.ctf", {"compress": "lzma"}, "compress is 'lzma'; expected 'none', 'gzip' or 'zstd'"),
        ("a.cbf", {"compress": "gzip"}, "compress is only for writing ctf"),
        ("a.cbf.gz", {}, "compress is only for writing ctf"),
    ],
)
def test_refuses_unknown_compressions_and_formats_that_are_not_compressed(
    plain: bytes, tmp_path: Path, target: str, options: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        convert_file(tmp_path / "plain.ctf", tmp_path / target, **options)
    assert not (tmp_path / target).exists()

"""The content of compressed files of any kind, and the messages about damage."""

import random
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
from cntkio import CorpusError, FormatError
from cntkio.storage.compressed import PACKED_ENDINGS
from cntkio.storage.open_input import content_of
from support.packers import BY_ENDING, PACKERS

Packer = Callable[[bytes, random.Random], bytes]
ALL: dict[str, Packer] = {
    **PACKERS,
    "two of bzip2": lambda content, source: twice(".bz2", content),
    "two of xz": lambda content, source: twice(".xz", content),
    "plain": lambda content, source: content,
}
KINDS = {"gzip": ".gz", "zstd": ".zst", "bzip2": ".bz2", "xz": ".xz"}
CONTENT = random.Random(3).randbytes(3000) + bytes(50_000) + random.Random(4).randbytes(3000)


def twice(ending: str, content: bytes) -> bytes:
    return BY_ENDING[ending](content[:100]) + BY_ENDING[ending](content[100:])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("content", [CONTENT, b"|x 1\n", b""], ids=["bytes", "line", "nothing"])
def test_the_content_is_the_same_however_a_file_is_compressed(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / "a.bin"  # the name does not matter
    path.write_bytes(ALL[name](content, random.Random(5)))
    for size in (1 << 20, 777):
        pieces = list(content_of(str(path), size=size))
        assert b"".join(pieces) == content and all(len(piece) <= size for piece in pieces)


@pytest.mark.parametrize("name", KINDS)
def test_an_object_of_a_store_is_unpacked(name: str) -> None:
    fsspec.filesystem("memory").pipe("/unpacking/a", BY_ENDING[KINDS[name]](CONTENT))
    assert b"".join(content_of("memory://unpacking/a")) == CONTENT


@pytest.mark.parametrize("name", KINDS)
def test_errors_about_damage_name_the_file_and_the_compression(tmp_path: Path, name: str) -> None:
    path, whole = tmp_path / "a.bin", BY_ENDING[KINDS[name]](CONTENT)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for content in (whole[: len(whole) // 2], whole[:-3], whole[:20], bytes(flipped)):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=f"{path}.*: the {name} data are damaged.*make the file again"):
            assert b"".join(content_of(str(path))) != CONTENT


@pytest.mark.parametrize("name", KINDS)
def test_a_file_that_is_cut_off_while_it_is_unpacked_has_changed(tmp_path: Path, name: str) -> None:
    path, content = tmp_path / "a.bin", random.Random(6).randbytes(3 << 20)
    path.write_bytes(BY_ENDING[KINDS[name]](content))
    pieces = content_of(str(path), size=1000)
    next(pieces)
    with path.open("r+b") as file:
        file.truncate(3 << 19)
    with pytest.raises(CorpusError, match="changed while in use"):
        list(pieces)


def test_every_packing_has_a_usual_ending() -> None:
    assert set(PACKED_ENDINGS) == {".gz", ".bgz", ".zst", ".bz2", ".xz"}

"""Detection of the kind of a file, and of its deserializer."""

import bz2
import gzip
import lzma
import zipfile
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import ConfigError, write_cbf
from cntkio.formats import htk, mlf
from cntkio.formats.detect import KINDS, detect
from support import ROOT

ARRAY = {"x": np.ones((3, 2), np.float32)}


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "form"),
    [
        ("a.ctf", b"|x 1 2\n", "ctf"),
        ("a.txt", b"17 |x 1 2\n", "ctf"),
        ("a.txt", b"\xef\xbb\xbf\n |x 1\n", "ctf"),
        ("utterances.txt", b"u1=x |x 1 2\n", "ctf"),
        ("empty", b"", "ctf"),
        ("garbage", bytes(range(1, 256)), "ctf"),
        ("a.scp", b"a.mfc\nb.mfc\n", "scp"),
        ("train.list", b"u1=all.ark[0,299]\nu2=all.ark[300,420]\n", "scp"),
        ("a.mlf", b'#!MLF!#\n"u1.lab"\n0 3 sil\n.\n', "mlf"),
        ("labels", b'\xef\xbb\xbf \n#!MLF!#\n"u1.lab"\n', "mlf"),
        ("train.cntk", b"|x 1\n", "configuration"),
        ("train.cfg", b"# reader\ncommand = Train:Test\n", "configuration"),
        ("train.cfg", b"Train = [\n", "configuration"),
        ("a.gz", gzip.compress(b"|x 1"), "gzip"),
        ("a.bz2", bz2.compress(b"|x 1"), "bzip2"),
        ("a.xz", lzma.compress(b"|x 1"), "xz"),
        ("a.zst", b"\x28\xb5\x2f\xfd\x04\x00", "zstd"),
        ("a.parquet", b"PAR1\0\0", "parquet"),
        ("a.arrow", b"ARROW1\0\0", "arrow"),
    ],
)
def test_a_file_is_known_by_its_content_or_its_name(name: str, content: bytes, form: str, tmp_path: Path) -> None:
    assert detect(written(tmp_path / name, content)).form == form


def test_zip_archives_are_known(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.ctf", "|x 1")
    assert detect(tmp_path / "a.zip").form == "zip"


@pytest.mark.parametrize("layout", ["2.x", "documented"])
def test_both_binary_layouts_are_known(layout: str, tmp_path: Path) -> None:
    write_cbf(tmp_path / "a", ARRAY, layout=layout)  # type: ignore[arg-type]
    assert detect(tmp_path / "a").form == "cbf"


@pytest.mark.parametrize("options", [{}, {"big_endian": False}, {"compressed": True}, {"kind": "MFCC_K"}])
def test_feature_files_are_known_by_their_header(options: dict[str, Any], tmp_path: Path) -> None:
    content = htk.encode_features(np.arange(30, dtype=np.float32).reshape(10, 3), **options)
    assert detect(written(tmp_path / "a.mfc", content)).form == "htk"


def test_binary_label_files_are_known(tmp_path: Path) -> None:
    mlf.write_binary_mlf(tmp_path / "a", [("u1", np.array([0, 0, 1]))])
    assert detect(tmp_path / "a").form == "binary mlf"


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*/*.c[tn]*")), ids=lambda path: path.name)
def test_the_examples_are_known(path: Path) -> None:
    assert detect(path).form == ("ctf" if path.suffix == ".ctf" else "configuration")


def test_every_deserializer_that_is_named_is_there() -> None:
    for kind in KINDS.values():
        if kind.deserializer is None:
            with pytest.raises(ConfigError, match=f"a is a .*, which no deserializer reads; {kind.advice[:10]}"):
                kind.require_deserializer("a")
        else:
            assert hasattr(cntkio, kind.require_deserializer("a"))


def test_a_missing_file_is_an_error_with_the_near_name(tmp_path: Path) -> None:
    (tmp_path / "train.ctf").touch()
    with pytest.raises(FileNotFoundError, match=r"did you mean '.*train.ctf'\?"):
        detect(tmp_path / "trian.ctf")

"""Detection of the kind of a file, and of its deserializer."""

import bz2
import gzip
import lzma
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    CntkIoError,
    ConfigError,
    CTFDeserializer,
    FormatError,
    HTKFeatureDeserializer,
    HTKMLFBinaryDeserializer,
    HTKMLFDeserializer,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    write_cbf,
)
from cntkio.corpora import Input, described
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
        ("train.cntk", b"|x 1\n", "ctf"),
        ("train.cfg", b"# reader\ncommand = Train:Test\n", "configuration"),
        ("train.cfg", b"Train = [\n", "configuration"),
        ("a.gz", gzip.compress(b"nib_ktnc", mtime=0), "gzip"),
        ("b.gz", gzip.compress(b"|x 1", mtime=0), "ctf"),
        ("a.bz2", bz2.compress(b"|x 1"), "bzip2"),
        ("a.xz", lzma.compress(b"|x 1"), "xz"),
        ("a.zst", b"\x28\xb5\x2f\xfd\x04\x00", "zstd"),
        ("a.parquet", b"PAR1\0\0", "parquet"),
        ("a.arrow", b"ARROW1\0\0", "arrow"),
        ("a.arrows", b"\xff\xff\xff\xff\xd8\0\0\0", "arrow stream"),
        ("a.npy", b"\x93NUMPY\1\0", "npy"),
        ("a.npz", b"PK\3\4" + bytes(26) + b"x.npy", "npz"),
        ("a.h5", b"\x89HDF\r\n\x1a\n\0", "hdf5"),
        ("a.txt", "|x 1\n".encode("utf-16"), "utf-16"),
        ("a.txt", b"\xfe\xff" + "|x 1\n".encode("utf-16-be"), "utf-16"),
        ("a.txt", "|x 1\n".encode("utf-16-le"), "utf-16"),
        ("a.txt", "|x 1\n".encode("utf-16-be"), "utf-16"),
        ("a.txt", b"a,b\n1,2\n3,4\n", "csv"),
        ("a.txt", b"1.5\t2\n1\t3\n", "csv"),
        ("a.txt", b"1.5;2;5\n", "csv"),
        ("a.txt", b"hello, world\nthis is\nprose\n", "ctf"),
        ("a.txt", b'{"x": [1, 2]}\n', "json"),
        ("a.txt", b"{\n  'x': 1\n}\n", "json"),
        ("a.txt", b"[1, 2]\n", "json"),
        ("a.txt", b"1 3:0.5 7:1\n-1 2:1\n", "svmlight"),
        ("a.txt", b"# scores\n2 qid:1 3:0.5 # d\n", "svmlight"),
        ("a.txt", b"1,5 3:-1e-3\n", "svmlight"),
        ("a.ark", b"u1 \0BFM \4\1\0\0\0\4\1\0\0\0\0\0\0\0", "kaldi"),
        ("a.scp", b"u1 a.ark:3\n", "kaldi"),
        ("a.txt", b"u1 a.ark:3[0:9]\n", "kaldi"),
        ("a.txt", b"u1  [\n  1 2\n  3 4 ]\n", "kaldi"),
        ("a.txt", b"u1  [ 1 2 ]\n", "kaldi"),
        ("ali.txt", b"u1 1 1 2\nu2 3\n", "kaldi"),
        ("utt2spk", b"u1 s1\nu2 s1\n", "kaldi map"),
        ("a.txt", b"label f1 f2\n1 1:0.5\n", "svmlight"),
        ("a.svm", b"1:0.5\n2:1\n", "svmlight"),
        ("a.mlf", b'"u1.lab"\n0 3 sil\n.\n', "mlf"),
        ("a.bin", struct.pack("<qqii", 7, 1, 1, 1) + b"x" + bytes(40), "cbf"),
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


def test_every_named_deserializer_exists() -> None:
    for kind in KINDS.values():
        if kind.deserializer is not None:
            called = kind.deserializer.removeprefix("cntkio.")
            assert called == "arrow.ArrowDeserializer" or hasattr(cntkio, called)
        elif not kind.in_files:
            with pytest.raises(ConfigError, match=f"a is an? .*, which no deserializer reads; {kind.advice[:10]}"):
                described(Input("a", Path("a"), kind, 0), {})


def test_the_error_about_a_missing_file_suggests_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "train.ctf").touch()
    with pytest.raises(FileNotFoundError, match=r"did you mean '.*train.ctf'\?"):
        detect(tmp_path / "trian.ctf")


STREAMS = StreamDefs(x=StreamDef(field="x", shape=1))


def read_text(path: str) -> None:
    with MinibatchSource(CTFDeserializer(path, STREAMS), randomize=False, max_sweeps=1) as source:
        source.next_minibatch(10)


def open_list(path: str) -> None:
    HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp=path, shape=1))).open()


def open_labels(path: str) -> None:
    HTKMLFDeserializer(None, StreamDefs(x=StreamDef(mlf=path, shape=2))).open()


def open_binary_labels(path: str) -> None:
    HTKMLFBinaryDeserializer(StreamDefs(x=StreamDef(mlf=path, shape=2))).open()


READERS: dict[str, Callable[[str], object]] = {
    "ctf": read_text,
    "infer_streams": cntkio.infer_streams,
    "read_ctf": cntkio.read_ctf,
    "cbf": lambda path: CBFDeserializer(path).open(),
    "svmlight": cntkio.read_svmlight,
    "kaldi": cntkio.read_kaldi,
    "scp": open_list,
    "mlf": open_labels,
    "binary mlf": open_binary_labels,
    "configuration": MinibatchSource.from_config,
    "source": MinibatchSource,
}
OTHERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "ctf": (lambda path: path.write_text("|x 1\n|x 2\n"), "CNTK text corpus .* use CTFDeserializer"),
    "cbf": (lambda path: write_cbf(path, ARRAY), "CNTK binary corpus .* use CBFDeserializer"),
    "mlf": (lambda path: cntkio.write_mlf(path, [("u", np.array([0, 1]))], ["a", "b"]), "label file .* use HTKMLFD"),
    "binary mlf": (lambda path: mlf.write_binary_mlf(path, [("u", np.array([0]))]), "use HTKMLFBinaryDeserializer"),
    "scp": (lambda path: path.write_text("u1=x.ark[0,3]\n"), "list of HTK .* use HTKFeatureDeserializer"),
    "htk": (
        lambda path: path.write_bytes(htk.encode_features(np.ones((3, 2), np.float32))),
        "an HTK feature file: name it in a list",
    ),
    "gzip": (lambda path: path.write_bytes(gzip.compress(b"nib_ktnc\n")), r"unpack it \(gzip -dk .*a\)"),
    "zip": (lambda path: path.write_bytes(b"PK\3\4" + bytes(50)), "a zip archive: unpack it"),
    "parquet": (
        lambda path: path.write_bytes(b"PAR1" + bytes(50)),
        "a Parquet file: .* cntkio.arrow.ArrowDeserializer",
    ),
    "csv": (lambda path: path.write_text("1,2\n3,4\n"), "table of columns .* uci2ctf"),
    "json": (lambda path: path.write_text('{"x": 1}\n'), "a JSON text: Python.s json"),
    "svmlight": (lambda path: path.write_text("1 3:1\n"), "SVMlight text .* use SvmlightDeserializer"),
    "kaldi": (lambda path: cntkio.write_kaldi(path, {"x": ARRAY["x"]}), "Kaldi archive .* use KaldiDeserializer"),
    "utf-16": (lambda path: path.write_text("|x 1\n", encoding="utf-16"), "iconv -f UTF-16"),
}


OWN = {"infer_streams": "ctf", "read_ctf": "ctf"}


@pytest.mark.parametrize(
    ("reader", "other"),
    [(reader, other) for reader in READERS for other in OTHERS if other != OWN.get(reader, reader)],
)
def test_readers_name_the_kind_of_a_file_that_they_cannot_read(reader: str, other: str, tmp_path: Path) -> None:
    write, words = OTHERS[other]
    path = tmp_path / "a"
    write(path)
    if reader == "source":
        words = words.replace("use ", "expected a deserializer, such as ") if "use " in words else words
        words = words.split(" .* ")[-1]
    with pytest.raises(CntkIoError, match=words):
        READERS[reader](str(path))


def test_a_binary_corpus_of_another_version_says_its_version(tmp_path: Path) -> None:
    for layout, offset in (("2.x", 8), ("documented", 0)):
        write_cbf(tmp_path / "a", ARRAY, layout=layout)  # type: ignore[arg-type]
        content = bytearray((tmp_path / "a").read_bytes())
        content[offset] = 7
        (tmp_path / "a").write_bytes(content)
        assert detect(tmp_path / "a").form == "cbf"
        with pytest.raises(FormatError, match="version 7; expected 1"):
            CBFDeserializer(tmp_path / "a").open()


def test_a_list_of_whole_files_is_not_mistaken_for_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "a.list").write_text("u1=missing.mfc\n")
    with pytest.raises(FileNotFoundError, match="missing.mfc"):
        open_list(str(tmp_path / "a.list"))


def test_a_mapping_file_is_a_text(tmp_path: Path) -> None:
    (tmp_path / "states.list").write_bytes(gzip.compress(b"sil\naa\n"))
    with pytest.raises(FormatError, match="compressed with gzip: unpack it"):
        mlf.read_mapping(tmp_path / "states.list")


@pytest.mark.parametrize(
    ("line", "form"),
    [
        (b"utt [\n" + b"1" * 2000 + b"x", "configuration"),
        (b"utt [ " + b"1" * 2000 + b"x", "configuration"),
        (b"utt [ " + b"22 " * 500 + b"x", "configuration"),  # each number could be matched in two ways
        (b"1 " + b"1:22 " * 500 + b"x", "ctf"),
    ],
)
def test_a_line_that_almost_fits_a_pattern_is_refused_at_once(line: bytes, form: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(line + b"\n" + b"1 " * 500)
    found = detect(path)
    assert found is not None and found.form == form

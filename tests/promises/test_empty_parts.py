"""A corpus of several files leaves out those without a sequence, with a warning; if all are empty, that is an error."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cntkio
import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    CTFDeserializer,
    HTKFeatureDeserializer,
    HTKMLFBinaryDeserializer,
    HTKMLFDeserializer,
    KaldiDeserializer,
    StreamDef,
    StreamDefs,
    SvmlightDeserializer,
    write_cbf,
)
from cntkio.cli import main
from cntkio.errors import CntkIoError
from cntkio.formats import htk, mlf
from support.toy_format import ToyDeserializer

pa = pytest.importorskip("pyarrow", reason="PyArrow is not installed")

from cntkio.arrow import ArrowDeserializer, write_arrow  # noqa: E402
from pyarrow import parquet  # noqa: E402

DATA = [np.arange(2, dtype=np.float32), np.arange(2, 6, dtype=np.float32)]
STREAMS = StreamDefs(x=StreamDef(field="x", shape=2))
MARK = b"\xef\xbb\xbf"
BLANK = {"0 bytes": b"", "a mark": MARK, "blanks": b" \n\t\n"}
TEXT = {**BLANK, "an empty gzip": gzip.compress(b"")}


def table(kind: str, **columns: Any) -> bytes:
    empty = pa.table({name: pa.array([], form) for name, form in columns.items()})
    sink = pa.BufferOutputStream()
    if kind == "parquet":
        parquet.write_table(empty, sink)
    else:
        with (pa.ipc.new_file if kind == "file" else pa.ipc.new_stream)(sink, empty.schema):
            pass
    content: bytes = sink.getvalue().to_pybytes()
    return content


class Kind(NamedTuple):
    """Two files: their writer, their reader, and the contents of empty files."""

    write: Callable[[Path, int], Any]
    read: Callable[[list[Path]], Any]
    empty: dict[str, bytes]


def utterances(number: int) -> list[tuple[str, np.ndarray]]:
    return [(f"u{number}", DATA[number].reshape(-1, 2))]


def write_list(path: Path, number: int) -> None:
    htk.write_archive(path.with_suffix(".htk"), path, utterances(number))


def write_kaldi_list(path: Path, number: int) -> None:
    cntkio.write_kaldi(path.with_suffix(".ark"), {"features": [DATA[number].reshape(-1, 2)]}, scp=path)
    path.write_text(path.read_text().replace("0 ", f"u{number} ", 1))


def write_labels(path: Path, number: int) -> None:
    mlf.write_mapping(path.with_name("states"), ["a", "b"])
    mlf.write_mlf(path, [(f"u{number}", np.array([0, 1]))], ["a", "b"])


def write_binary_labels(path: Path, number: int) -> None:
    mlf.write_binary_mlf(path, [(f"u{number}", np.array([0, 1]))])


def binary_head() -> bytes:
    return b"MLF" + (1).to_bytes(2, "little")


def arrays(number: int) -> dict[str, list[np.ndarray]]:
    return {"x": [DATA[number].reshape(-1, 2)]}


def in_table(number: int) -> pa.Table:
    return pa.table({"x": pa.array([DATA[number].reshape(-1, 2).tolist()], ROWS)})


ROWS = pa.list_(pa.list_(pa.float32(), 2))
KINDS: dict[str, Kind] = {
    "ctf": Kind(
        lambda path, number: path.write_text(f"{number} |x {number} 2\n"),
        lambda paths: CTFDeserializer(paths, STREAMS),
        {**TEXT, "comments": b"1 |# a\n"},
    ),
    "svmlight": Kind(
        lambda path, number: path.write_text(f"1 1:{number + 1} 2:3\n"),
        SvmlightDeserializer,
        {**TEXT, "comments": b"# a\n\n# b\n"},
    ),
    "cbf": Kind(lambda path, number: write_cbf(path, arrays(number)), CBFDeserializer, {"0 bytes": b""}),
    "parquet": Kind(
        lambda path, number: parquet.write_table(in_table(number), path),
        ArrowDeserializer,
        {
            "0 bytes": b"",
            "no row": table("parquet", x=ROWS),
            "an unknown type": table("parquet", x=pa.null()),
            "no column": table("parquet"),
            "another column": table("parquet", y=pa.string()),
        },
    ),
    "arrow": Kind(
        lambda path, number: write_arrow(path, in_table(number), key=None),
        ArrowDeserializer,
        {
            "0 bytes": b"",
            "no batch": table("file", x=ROWS),
            "an empty stream": table("stream", x=ROWS),
            "an unknown type": table("file", x=pa.null()),
            "no column": table("file"),
        },
    ),
    "kaldi archives": Kind(
        lambda path, number: path.write_text(f"u{number} [\n 1 {number} ]\n"), KaldiDeserializer, TEXT
    ),
    "kaldi lists": Kind(write_kaldi_list, KaldiDeserializer, TEXT),
    "kaldi maps": Kind(
        lambda path, number: path.write_text(f"u{number} a\n"),
        lambda paths: KaldiDeserializer(paths, content="map", shape=1),
        TEXT,
    ),
    "lists of HTK": Kind(
        write_list,
        lambda paths: HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp=[str(path) for path in paths], shape=2))),
        BLANK,
    ),
    "labels": Kind(
        write_labels,
        lambda paths: HTKMLFDeserializer(
            paths[0].with_name("states"), StreamDefs(x=StreamDef(mlf=[str(path) for path in paths], shape=2))
        ),
        {**BLANK, "no entry": b"#!MLF!#\n"},
    ),
    "binary labels": Kind(
        write_binary_labels,
        lambda paths: HTKMLFBinaryDeserializer(StreamDefs(x=StreamDef(mlf=[str(path) for path in paths], shape=2))),
        {"0 bytes": b"", "no entry": binary_head()},
    ),
    "a format outside of the package": Kind(
        lambda path, number: path.write_text(f"{number} 0.5 {number}\n"), ToyDeserializer, {"0 bytes": b""}
    ),
}
EMPTY = [(kind, what) for kind, rows in KINDS.items() for what in rows.empty]


def opened(deserializer: Any) -> Any:
    corpus = deserializer.open()
    try:
        return [
            corpus.index.streams,
            corpus.table.lengths.tolist(),
            np.asarray(corpus.table.keys).tolist(),
            corpus.index.fingerprint,
            [corpus.load(chunk).chunk.num_sequences for chunk in range(corpus.table.num_chunks)],
            corpus.places(np.arange(corpus.table.num_sequences)).texts(),
        ]
    finally:
        corpus.close()


@pytest.mark.parametrize(("kind", "what"), EMPTY)
def test_empty_files_are_left_out_with_a_warning_that_names_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, what: str
) -> None:
    rows = KINDS[kind]
    files = [tmp_path / "a", tmp_path / "b"]
    for number, path in enumerate(files):
        rows.write(path, number)
    empty = [tmp_path / f"empty-{number}" for number in range(2)]
    for path in empty:
        path.write_bytes(rows.empty[what])
    expected = opened(rows.read(files))
    for place in range(3):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert opened(rows.read([*files[:place], empty[0], *files[place:]])) == expected
        assert [record.getMessage().count(str(empty[0])) for record in caplog.records] == [1]
        assert "left out" in caplog.text
    with pytest.raises(CntkIoError, match="empty-0"):
        rows.read(empty).open()
    with pytest.raises(CntkIoError, match="empty-0"):
        rows.read(empty[:1]).open()


@pytest.mark.parametrize("kind", ["ctf", "svmlight", "cbf", "labels", "lists of HTK"])
def test_an_empty_file_is_an_error_if_warnings_are(tmp_path: Path, kind: str) -> None:
    rows = KINDS[kind]
    rows.write(tmp_path / "a", 0)
    (tmp_path / "b").touch()
    deserializer = rows.read([tmp_path / "a", tmp_path / "b"])
    deserializer.strict = True
    with pytest.raises(CntkIoError, match="b"):
        deserializer.open()


def test_keys_per_file_count_empty_files(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    for path, text in zip(paths, ["7 |x 1 2\n", "", "7 |x 3 4\n"], strict=True):
        path.write_text(text)
    corpus = CTFDeserializer(paths, STREAMS, keys="per_file").open()
    assert corpus.table.keys[:].tolist() == [7, 2 * 10**12 + 7]
    corpus.close()


@pytest.mark.parametrize("kind", ["ctf", "svmlight", "cbf", "parquet", "kaldi archives", "lists of HTK"])
@pytest.mark.parametrize("verb", ["inspect", "convert"])
def test_verbs_read_a_corpus_whose_first_file_is_empty(tmp_path: Path, kind: str, verb: str) -> None:
    suffixes = {"svmlight": ".svm", "kaldi archives": ".ark", "lists of HTK": ".scp", "parquet": ".parquet"}
    suffix = suffixes.get(kind, f".{kind}")
    (tmp_path / f"part-0{suffix}").touch()
    for number in range(2):
        KINDS[kind].write(tmp_path / f"part-{number + 1}{suffix}", number)
    arguments = [verb, str(tmp_path / f"part-*{suffix}"), *([str(tmp_path / "new.cbf")] if verb == "convert" else [])]
    assert main(arguments) == 0


SUFFIXES = {
    "ctf": ".ctf", "svmlight": ".svm", "cbf": ".cbf", "parquet": ".parquet", "arrow": ".arrow",
    "kaldi archives": ".ark", "kaldi lists": ".list", "lists of HTK": ".scp", "labels": ".mlf",
    "binary labels": ".labels",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "what"), [one for one in EMPTY if one[0] in SUFFIXES])
def test_check_of_a_pattern_warns_of_empty_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, what: str
) -> None:
    suffix = SUFFIXES[kind]
    for number in range(2):
        (tmp_path / f"{2 * number}-empty{suffix}").write_bytes(KINDS[kind].empty[what])
        KINDS[kind].write(tmp_path / f"{2 * number + 1}{suffix}", number)
    options = ["check", "--output-format", "concise", "--ignore", "constant-values,equal-sequences"]
    assert main([*options, str(tmp_path / f"*{suffix}")]) == 1
    report = capsys.readouterr().out
    assert "Found 0 errors, 2 warnings in 2 sequences (2 empty-file)" in report
    assert f"0-empty{suffix}" in report
    assert main([*options, str(tmp_path / f"*-empty{suffix}")]) == 1
    assert "Found 1 error, 0 warnings in 0 sequences (1 broken-file)" in capsys.readouterr().out
    if kind in ("ctf", "svmlight", "cbf", "lists of HTK"):
        assert main([*options, "--strict", str(tmp_path / f"*{suffix}")]) == 1
        assert "broken-file" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["ctf", "svmlight", "cbf", "parquet", "kaldi archives"])
def test_a_merge_leaves_out_empty_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [Path(f"{name}{SUFFIXES[kind]}") for name in ("empty", "a", "void", "b")]
    for number, path in enumerate(paths):
        path.write_bytes(KINDS[kind].empty["0 bytes"]) if number % 2 == 0 else KINDS[kind].write(path, number // 2)
    full = list(map(str, paths[1::2]))
    assert main(["convert", "--merge", "--renumber", *full, "expected.ctf"]) == 0
    capsys.readouterr()
    assert main(["convert", "--merge", "--renumber", *map(str, paths), "merged.ctf"]) == 0
    assert capsys.readouterr().err.count("left out") == 2
    assert Path("merged.ctf").read_bytes() == Path("expected.ctf").read_bytes()
    # One file is left, and is numbered, too.
    assert main(["convert", "--merge", "--renumber", str(paths[0]), full[1], "one.ctf"]) == 0
    assert main(["convert", "--renumber", full[1], "expected.ctf"]) == 0
    assert Path("one.ctf").read_bytes() == Path("expected.ctf").read_bytes()
    assert main(["convert", "--merge", str(paths[0]), str(paths[2]), "none.ctf"]) == 1
    assert "empty" in capsys.readouterr().err


def test_readers_of_arrays_leave_out_empty_files(tmp_path: Path) -> None:
    for number, text in enumerate(["", "1 1:2\n", "# no sample\n", "2 2:3\n"]):
        (tmp_path / f"part-{number}").write_text(text)
    found = cntkio.read_svmlight(tmp_path / "part-*")
    assert found["label"].values.tolist() == [[1], [2]]
    for number, text in enumerate(["", "|x 1 2\n", "|# no sample\n", "|x 3 4\n"]):
        (tmp_path / f"part-{number}").write_text(text)
    assert cntkio.read_ctf(tmp_path / "part-*")["x"].values.tolist() == [[1, 2], [3, 4]]

"""A conversion keeps every number, or says how many it rounds; it keeps keys, or refuses them."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    CTFDeserializer,
    KaldiDeserializer,
    MinibatchSource,
    SequenceMixture,
    StreamDef,
    StreamDefs,
    SvmlightDeserializer,
    read_ctf,
    write_cbf,
    write_ctf,
    write_htk_features,
    write_kaldi,
    write_svmlight,
)
from cntkio.cli import main
from cntkio.convert import convert_file, corpus_chunks, corpus_of, ctf_to_cbf, joined, pieces_of, read_svmlight
from cntkio.convert.files import Merged
from cntkio.errors import CntkIoError
from cntkio.formats.htk import write_archive

pytest.importorskip("pyarrow", reason="PyArrow is not installed")

import pyarrow as pa
from cntkio.arrow import ArrowDeserializer, write_arrow, write_parquet
from pyarrow import feather
from pyarrow import parquet as pq

VALUES = {
    "24 bits": ["16777215", "0.1"], "53 bits": ["16777217", "0.123456789012"], "64 bits": ["9007199254740993", "1"],
    "large": ["1e39", "2"], "small": ["1e-46", "-0.5"], "digits": ["0.12345678901234567890123", "3"],
}  # fmt: skip


def exact(texts: list[str]) -> np.ndarray:
    """Return the numbers of texts in the least type that keeps them, if there is one."""
    if all(text.lstrip("-").isdecimal() for text in texts):
        return np.array([list(map(int, texts))])
    return np.array([list(map(float, texts))])


SOURCES: dict[str, Callable[[Path, list[str]], object]] = {
    "a.ctf": lambda path, texts: path.write_text(f"7 |features {' '.join(texts)} |label 1\n"),
    "a.svm": lambda path, texts: path.write_text(f"1 1:{texts[0]} 2:{texts[1]}\n"),
    "text.ark": lambda path, texts: path.write_text(f"7 [\n {' '.join(texts)} ]\n"),
    "a.ark": lambda path, texts: write_kaldi(path, {"features": exact(texts).astype(np.float64)}),
    "a.cbf": lambda path, texts: write_cbf(path, {"features": exact(texts), "label": np.array([1])}),
    "a.parquet": lambda path, texts: write_parquet(path, {"features": exact(texts), "label": np.array([1])}),
    "a.arrow": lambda path, texts: write_arrow(path, {"features": exact(texts), "label": np.array([1])}),
}
REFUSED = {
    ("text.ark", "b.svm", "any"): "no stream 'label'", ("a.ark", "b.svm", "any"): "no stream 'label'",
    ("a.svm", "b.ark", "any"): "an archive has one", ("a.cbf", "a.cbf", "64 bits"): "is not exact",
    ("a.parquet", "b.ark", "64 bits"): "only as floats", ("a.arrow", "b.ark", "64 bits"): "only as floats",
    ("a.parquet", "b.cbf", "64 bits"): "is not exact in float64", ("a.arrow", "b.cbf", "64 bits"): "is not exact",
}  # fmt: skip
"""Pairs of formats that are an error: for any numbers, or for numbers that the target cannot hold."""
TARGETS = ["b.ctf", "b.ctf.zst", "b.cbf", "b.svm", "b.ark", "b.parquet", "b.arrow"]


def refused(source: str, target: str, values: str) -> str | None:
    return REFUSED.get((source, target, "any"), REFUSED.get((source, target, values)))


def write_source(path: Path, texts: list[str], *, has_label: bool) -> None:
    """Write the numbers. Only svmlight needs labels, and an archive has one stream."""
    if has_label or path.suffix in (".svm", ".ark"):
        SOURCES[path.name](path, texts)
    elif path.suffix == ".ctf":
        path.write_text(f"7 |features {' '.join(texts)}\n")
    else:
        {".cbf": write_cbf, ".parquet": write_parquet, ".arrow": write_arrow}[path.suffix](
            path, {"features": exact(texts)}
        )


def numbers(path: Path) -> list[float]:
    with pieces_of(corpus_of(path, StreamDefs({}))) as pieces:
        # The fewest digits that read back to the same bits.
        return [float(str(value)) for value in joined(pieces)["features"].values.ravel()]


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("source", SOURCES)
def test_a_conversion_keeps_every_number_or_counts_what_it_rounds(
    source: str, values: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = VALUES[values]
    if why := refused(source, source, values):  # the format has no such number, so no conversion reads it
        with pytest.raises(CntkIoError, match=why):
            write_source(tmp_path / source, texts, has_label=True)
        return
    for target in TARGETS:
        write_source(tmp_path / source, texts, has_label=target != "b.ark")
        caplog.clear()
        with caplog.at_level(logging.WARNING, "cntkio"):
            if why := refused(source, target, values):
                with pytest.raises(CntkIoError, match=why):
                    convert_file(tmp_path / source, tmp_path / target)
                continue
            convert_file(tmp_path / source, tmp_path / target)
        says = [record.getMessage() for record in caplog.records]
        if not any("rounds: 1, such as" in message for message in says):
            shown = [text for text in texts if float(text)]
            assert numbers(tmp_path / target) == [float(text) for text in shown], (target, says)
            assert values != "64 bits" or source not in ("a.ctf", "a.svm", "text.ark")


READ_AS_FLOAT32: dict[str, Callable[[Path], Any]] = {
    "a.ctf": lambda path: CTFDeserializer(path, StreamDefs(features=StreamDef("features", 2))),
    "a.svm": SvmlightDeserializer, "text.ark": KaldiDeserializer, "a.ark": KaldiDeserializer,
}  # fmt: skip
DOORS: dict[str, Callable[[Path, Any], None]] = {
    "cbf": lambda folder, corpus: write_cbf(folder / "b.cbf", corpus),
    "several files": lambda folder, corpus: write_cbf(folder / "b*.cbf", corpus, num_files=1),
    "ctf": lambda folder, corpus: write_ctf(folder / "b.ctf", corpus),
    "kaldi": lambda folder, corpus: write_kaldi(folder / "b.ark", corpus),
    "parquet": lambda folder, corpus: write_parquet(folder / "b.parquet", corpus),
    "arrow": lambda folder, corpus: write_arrow(folder / "b.arrow", corpus),
    "source": lambda folder, corpus: write_cbf(folder / "b.cbf", MinibatchSource(corpus, max_sweeps=1)),
    "joined": lambda folder, corpus: write_cbf(folder / "b.cbf", Merged([corpus, corpus], renumber=True)),
    "chunks": lambda folder, corpus: write_cbf(folder / "b.cbf", corpus_chunks(corpus)),
    "mixture": lambda folder, corpus: write_cbf(folder / "b.cbf", SequenceMixture({"a": (corpus, 1.0)}, stop="all")),
}


@pytest.mark.parametrize("source", READ_AS_FLOAT32)
def test_every_writer_counts_what_reading_as_float32_rounded(
    source: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for values in ("53 bits", "64 bits" if source == "a.ark" else "24 bits"):  # float32 has the doubles 2^53 and 1
        write_source(tmp_path / source, VALUES[values], has_label=source != "a.ctf")
        for door, write in DOORS.items():
            if (source, door) == ("a.svm", "kaldi"):
                continue  # an archive has one stream
            caplog.clear()
            with caplog.at_level(logging.WARNING, "cntkio"):
                write(tmp_path, READ_AS_FLOAT32[source](tmp_path / source))
            says = any("numbers that float32 rounds: " in record.getMessage() for record in caplog.records)
            assert says == (values == "53 bits"), (values, door)
            for path in tmp_path.glob("b*"):
                path.unlink()


def test_fields_that_are_not_read_are_not_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.ctf").write_text("7 |x 0.5 |y 0.123456789012 |xx 16777217\n")
    ctf_to_cbf(tmp_path / "a.ctf", tmp_path / "b.cbf", StreamDefs(x=StreamDef("x", 1)))
    convert_file(tmp_path / "a.ctf", tmp_path / "c.ctf", streams=StreamDefs(x=StreamDef("x", 1)))
    assert not caplog.records
    ctf_to_cbf(tmp_path / "a.ctf", tmp_path / "b.cbf")
    (record,) = caplog.records
    assert record.getMessage().endswith(
        "a.ctf, line 1, column 13 (byte 12): numbers that float32 rounds: 2, such as 0.123456789012; "
        "dtype='float64' keeps them"
    )


def test_a_text_of_few_digits_becomes_float32(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_text("7 |x 0.1 16777216 1e10 0.12345679\n")
    convert_file(tmp_path / "a.ctf", tmp_path / "a.cbf")
    with pieces_of(corpus_of(tmp_path / "a.cbf", StreamDefs({}))) as pieces:
        assert [info.dtype for info in pieces.streams] == [np.float32]


# -- keys and comments -------------------------------------------------------------------------------------------------


def convert(*arguments: object) -> int:
    return main(["convert", *map(str, arguments)])


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("a.ctf").write_text("7 |x 1 2 |y 1:1 |# one\n9 |x 3 4 |y 2:1 |# two\n")
    Path("b.ctf").write_text("3 |x 5 6 |y 1:1\n5 |x 16777217 8 |y 2:1\n")
    return tmp_path


@pytest.mark.parametrize("verb", [["--split", "0.5,0.5"], ["--sample", "2"], ["--shuffle", "--seed", "1"], []])
def test_verbs_that_select_keep_keys_and_count_comments(verb: list[str], texts: Path, capsys: Any) -> None:
    targets = ["c.ctf", "d.ctf"] if "--split" in verb else ["c.ctf"]
    assert convert(*verb, "a.ctf", *targets) == 0
    assert "a.ctf: comments that are left out: 2" in capsys.readouterr().err
    found = {}
    for target in targets:
        data = read_ctf(target)
        found |= dict(zip(data.keys_of_sequences.tolist(), data["x"].values.tolist(), strict=True))
    assert found == {7: [1, 2], 9: [3, 4]}


@pytest.mark.parametrize("target", ["c.ctf", "c.parquet"])
def test_merged_corpora_keep_their_keys(target: str, texts: Path) -> None:
    assert convert("--merge", "a.ctf", "b.ctf", target) == 0
    with pieces_of(corpus_of(target, StreamDefs({}))) as pieces:
        whole = joined(pieces)
    assert whole.keys_of_sequences.tolist() == [7, 9, 3, 5]
    assert whole["x"].values.tolist() == [[1, 2], [3, 4], [5, 6], [16777217, 8]]


def test_an_id_in_two_merged_files_is_an_error_that_names_both(texts: Path, capsys: Any) -> None:
    Path("c.ctf").write_text("9 |x 1 2 |y 2:1\n")
    assert convert("--merge", "a.ctf", "b.ctf", "c.ctf", "d.ctf") == 1
    assert "c.ctf, line 1, column 1 (byte 0), sequence 9: a.ctf:2 has this id, too" in capsys.readouterr().err
    assert not Path("d.ctf").exists()
    for target in ("d.ctf", "d.cbf", "d.parquet"):
        assert convert("--merge", "--renumber", "a.ctf", "b.ctf", "c.ctf", target) == 0
    assert read_ctf("d.ctf").keys_of_sequences.tolist() == [0, 1, 2, 3, 4]


def test_merged_corpora_without_ids_are_numbered(texts: Path, capsys: Any) -> None:
    Path("l.ctf").write_text("|x 1 2 |y 2:1\n|x 3 4 |y 2:1\n")
    Path("m.ctf").write_text("|x 5 6 |y 2:1\n")
    assert convert("--merge", "l.ctf", "m.ctf", "c.ctf") == 0
    assert read_ctf("c.ctf").keys_of_sequences.tolist() == [0, 1, 2]
    assert convert("--merge", "l.ctf", "a.ctf", "c.ctf") == 1
    assert "have no ids, but those of a.ctf have ids" in capsys.readouterr().err


def test_utterances_that_are_numbers_become_ids_of_texts(texts: Path) -> None:
    Path("k.ark").write_text("7 [\n 1 2 ]\n12 [\n 3 4 ]\n")
    convert_file("k.ark", "k.ctf")
    assert read_ctf("k.ctf").keys_of_sequences.tolist() == [7, 12]
    for keys in ("07", "u7", str(2**64), "7.0", "-7"):
        Path("k.ark").write_text(f"{keys} [\n 1 2 ]\n12 [\n 3 4 ]\n")
        with pytest.raises(CntkIoError, match="is not a whole number from 0"):
            convert_file("k.ark", "l.ctf")


def test_whole_numbers_of_64_bits_and_classes_are_written_exactly(texts: Path) -> None:
    write_svmlight("s.svm", {"features": np.eye(2), "label": np.array([2**53 + 1, -(2**63)])})
    labels = read_svmlight("s.svm", label_dtype=np.int64)["label"].values
    assert labels.ravel().tolist() == [2**53 + 1, -(2**63)]
    write_kaldi("k.ark", {"y": np.array([1, 2])}, one_hot={"y": 3}, text=True)
    assert Path("k.ark").read_text() == "0 1 \n1 2 \n"


# -- siblings: doubles where only float32 is kept, whole numbers in Kaldi, rows of tables ------------------------------

DOUBLES = np.array([[0.123456789012, 0.5]])
KEEPS = "numbers that float32 rounds: 1, such as 0.123456789012"
NARROWING: dict[str, Callable[[], object]] = {
    "arrays": lambda: write_cbf("b.cbf", {"x": DOUBLES}, dtype=np.float32),
    "lists": lambda: write_cbf("b.cbf", {"x": [DOUBLES, np.float32(DOUBLES)]}, dtype=np.float32),
    "a deserializer": lambda: write_cbf("b.cbf", CBFDeserializer("a.cbf"), dtype=np.float32),
    "a table": lambda: write_ctf("b.ctf", ArrowDeserializer("a.parquet", dtype=np.float32)),
    "tables": lambda: write_ctf("b.ctf", ArrowDeserializer(["a.parquet", "c.arrow"], dtype=np.float32)),
    "a source of a table": lambda: write_ctf(
        "b.ctf", MinibatchSource(ArrowDeserializer("a.parquet", dtype=np.float32), max_sweeps=1)
    ),
    "--precision": lambda: main(["convert", "--precision", "float", "a.parquet", "b.parquet"]),
    "HTK": lambda: write_htk_features("b.mfc", DOUBLES),
    "HTK's archive": lambda: write_archive("b.ark", "b.scp", [("u", DOUBLES), ("v", np.float32(DOUBLES))]),
}


@pytest.mark.parametrize("door", NARROWING)
def test_doubles_that_become_float32_are_counted(door: str, texts: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_cbf("a.cbf", {"x": DOUBLES})
    write_parquet("a.parquet", {"x": DOUBLES}, key=None)
    write_arrow("c.arrow", {"x": np.array([[0.25, 0.5]])}, key=None)
    assert not caplog.records
    NARROWING[door]()
    (record,) = caplog.records
    assert KEEPS in record.getMessage()


def test_extended_doubles_are_counted(texts: Path, caplog: pytest.LogCaptureFixture) -> None:
    if np.finfo(np.longdouble).nmant <= 52:
        pytest.skip("long double is double here")
    write_cbf("b.cbf", {"x": np.ones((1, 1), np.longdouble) + np.longdouble(2) ** -60})
    (record,) = caplog.records
    assert "numbers that float64 rounds: 1, such as 1.00000000000000000" in record.getMessage()


def test_labels_and_features_of_other_types_are_counted_apart(texts: Path, caplog: pytest.LogCaptureFixture) -> None:
    Path("a.svm").write_text("16777217 1:0.5\n3 2:-0.123456789012 3:.123456789012\n")
    for dtype, label_dtype, count in ((np.float32, np.int64, 2), (np.float64, np.float32, 1), (np.float32, None, 3)):
        caplog.clear()
        write_cbf("b.cbf", SvmlightDeserializer("a.svm", dtype=dtype, label_dtype=label_dtype))
        (record,) = caplog.records
        assert f"float32 rounds: {count}, such as" in record.getMessage()
    caplog.clear()
    write_cbf("b.cbf", SvmlightDeserializer("a.svm", dtype=np.float64, label_dtype=np.int64))
    assert not caplog.records


def test_numbers_that_begin_with_a_point_are_counted(texts: Path, caplog: pytest.LogCaptureFixture) -> None:
    Path("a.svm").write_text("1 1:.5 2:.123456789012\n1 1:-.123456789012e-1 2:.000000001\n")
    write_cbf("b.cbf", SvmlightDeserializer("a.svm"))
    Path("a.ark").write_text("u [\n .5 +.123456789012\n .25 -.123456789012 ]\n")
    write_cbf("c.cbf", KaldiDeserializer("a.ark"))
    assert ["float32 rounds: 2, such as .123456789012" in record.getMessage() for record in caplog.records] == [
        True
    ] * 2


def test_the_advice_of_the_command_can_be_followed(texts: Path, capsys: Any) -> None:
    assert convert("--precision", "float", "b.ctf", "c.cbf") == 0
    assert "--precision double keeps them" in capsys.readouterr().err
    assert convert("--precision", "double", "b.ctf", "c.cbf") == 0
    assert not capsys.readouterr().err


def test_whole_numbers_that_kaldi_does_not_have_say_what_to_do(texts: Path, capsys: Any) -> None:
    write_parquet("a.parquet", {"x": np.array([[2**53 + 1, 1]])}, key=None)
    Path("s.ctf").write_text("0 |x 1:0.5 7:1\n")
    with pytest.raises(CntkIoError, match="samples of 2 whole numbers, which an archive has only as floats"):
        write_kaldi("b.ark", ArrowDeserializer("a.parquet"))
    with pytest.raises(CntkIoError, match="a whole number that is not in int32"):
        write_kaldi("b.ark", {"x": np.array([2**53 + 1])})
    with pytest.raises(CntkIoError, match="a sample that is not one-hot; expected a single entry with the value 1"):
        write_kaldi("b.ark", corpus_of("s.ctf", StreamDefs({})))
    pq.write_table(pa.table({"x": pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2))}), "c.parquet")
    assert convert("c.parquet", "c.ark") == 1
    assert "--precision double for a table" in capsys.readouterr().err
    assert convert("--precision", "double", "c.parquet", "c.ark") == 0
    assert numbers(Path("c.ark")) == [1, 2, 3, 4]


@pytest.mark.parametrize("other", ["b.parquet", "b.arrow"])
def test_an_id_in_two_tables_names_both_rows(other: str, texts: Path, capsys: Any) -> None:
    pq.write_table(pa.table({"key": [7, 9, 8], "x": [1.0, 2.0, 3.0]}), "a.parquet", row_group_size=2)
    again = pa.table({"key": [3, 1, 8], "x": [1.0, 2.0, 3.0]})
    pq.write_table(again, other) if other == "b.parquet" else feather.write_feather(again, other)
    assert convert("--merge", "a.parquet", other, "c.ctf") == 1
    says = f"{other}, line 3, sequence 8: a.parquet:3 has this id, too"
    assert says in capsys.readouterr().err
    if other == "b.parquet":
        with pytest.raises(CntkIoError, match=says):
            ArrowDeserializer(["a.parquet", other]).open()
    assert convert("--merge", "--shuffle", "a.parquet", other, "c.ctf") == 1
    assert f"{other}, sequence 8: a.parquet has this id, too" in capsys.readouterr().err


def test_a_table_without_keys_is_not_merged_with_ids(texts: Path, capsys: Any) -> None:
    pq.write_table(pa.table({"x": [1.0, 2.0]}), "a.parquet")
    pq.write_table(pa.table({"key": [1, 0], "x": [1.0, 2.0]}), "b.parquet")
    assert convert("--merge", "a.parquet", "b.parquet", "c.ctf") == 1
    assert "have no ids, but those of b.parquet have ids" in capsys.readouterr().err

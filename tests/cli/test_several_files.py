"""Several files as one corpus, on the command line and in configurations."""

import json
import os
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import CBFDeserializer, HTKFeatureDeserializer, StreamDef, StreamDefs
from cntkio.cli import main
from cntkio.config.writing import configuration_for
from cntkio.formats import htk, mlf
from cntkio.formats.ctf import corpus


@pytest.fixture
def three_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a corpus of three files, one of which has a semicolon in its name."""
    for index, name in enumerate(("a.ctf", "b.ctf", "c;d.ctf")):
        (tmp_path / name).write_text("".join(f"{2 * index + line} |x {index} {line}\n" for line in range(2)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """Run the command, and return its exit status and what it printed as JSON, or else as text."""
    status = main([*arguments])
    printed = capsys.readouterr()
    try:
        return status, json.loads(printed.out)
    except ValueError:
        return status, printed.out + printed.err


@pytest.mark.usefixtures("three_files")
@pytest.mark.parametrize(
    ("name", "num_files"), [("*.ctf", 3), ("{a,b}.ctf", 2), ("b.ctf;a.ctf", 2), ("c;d.ctf", None), ("[a].ctf", None)]
)
def test_a_pattern_or_a_list_is_one_corpus(capsys: pytest.CaptureFixture[str], name: str, num_files: int) -> None:
    status, facts = run(capsys, "inspect", "--json", name)
    assert (status, facts.get("files"), facts["sequences"]) == (0, num_files, 2 * (num_files or 1))
    assert run(capsys, "bench", "--json", name)[1]["sequences"] == facts["sequences"]
    assert run(capsys, "inspect", "--json", name)[0] == 0


@pytest.mark.usefixtures("three_files")
def test_a_list_keeps_its_order(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "head", "--json", "b.ctf;a.ctf")[1]
    assert [sequence["key"] for sequence in shown["sequences"]] == [2, 3, 0, 1]


def test_index_writes_a_cache_for_each_file_unless_they_are_small(
    three_files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, facts = run(capsys, "index", "--json", "*.ctf")
    assert (status, facts["cache"]) == (0, None)
    assert "of less than 256 KiB is made again just as quickly" in run(capsys, "index", "*.ctf")[1]
    monkeypatch.setattr(corpus, "LEAST_CACHED", 0)
    status, facts = run(capsys, "index", "--json", "*.ctf")
    assert (status, Path(facts["cache"]).suffix) == (0, ".index")
    assert len(list(three_files.glob("*.index"))) == 3


@pytest.mark.usefixtures("three_files")
def test_convert_writes_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "convert", "--json", "?.ctf", "all.cbf")[0] == 0
    assert CBFDeserializer("all.cbf").open().table.num_sequences == 4
    assert run(capsys, "convert", "--json", "all.cbf;all.cbf", "again.cbf")[0] == 2


def test_check_finds_errors_of_each_file_and_ids_in_two(three_files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "check", "--json", "*.ctf")[1]["sequences"] == 6
    (three_files / "b.ctf").write_text("1 |x 1 2\n7 |x 1 zwei\n")
    status, report = run(capsys, "check", "--json", "*.ctf")
    found = [(one["code"], one["filename"], one["location"]["row"]) for one in report["findings"]]
    assert (status, found) == (1, [("repeated-id", "b.ctf", 1), ("bad-number", "b.ctf", 2)])


@pytest.mark.usefixtures("three_files")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", "Is a folder; expected a file, or a pattern such as './*.ctf'"),
        ("*.cft", "No file matches the pattern; the folder"),
        ("a.ctf;a.ctf", "FILE: a.ctf is named twice"),
    ],
)
def test_names_without_a_corpus_end_the_command(capsys: pytest.CaptureFixture[str], name: str, message: str) -> None:
    status, printed = run(capsys, "inspect", name)
    assert (status, message in printed) == (2, True)


def test_several_files_of_other_kinds_are_refused(three_files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.npy", "b.npy"):
        (three_files / name).write_bytes(b"\x93NUMPY")
    message = "several files are one corpus only in the formats of CNTK and Kaldi, as svmlight texts and as tables"
    assert message in run(capsys, "inspect", "*.npy")[1]


def test_verbs_and_convert_read_several_tables(three_files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrow = pytest.importorskip("pyarrow", reason="the extra 'arrow' is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, words in (("a", ["x", "y"]), ("b", ["z", "x"])):
        columns = {"n": [[1, 2**53 + 1], [3]], "word": arrow.array(words).dictionary_encode()}
        parquet.write_table(arrow.table(columns), three_files / f"{name}.parquet")
    facts = run(capsys, "inspect", "--json", "*.parquet")[1]
    streams = [(one["name"], one["dtype"], one["dim"]) for one in facts["streams"]]
    assert (facts["sequences"], streams) == (4, [("n", "int64", 1), ("word", "float32", 3)])
    assert run(capsys, "convert", "--json", "*.parquet", "all.ctf")[0] == 0
    assert [line.split("\t")[1] for line in (three_files / "all.ctf").read_text().splitlines()] == [
        "|n 1 |word 0:1", f"|n {2**53 + 1}", "|n 3 |word 1:1", "|n 1 |word 2:1", f"|n {2**53 + 1}", "|n 3 |word 0:1",
    ]  # fmt: skip


def test_head_reads_only_the_chunks_of_a_table_that_it_prints(
    three_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrow = pytest.importorskip("pyarrow", reason="the extra 'arrow' is not installed")
    table = arrow.table({"x": [1.0, 2.0, None], "n": [7, 2**53 + 1, 9]})
    pytest.importorskip("pyarrow.parquet").write_table(table, three_files / "a.parquet", row_group_size=2)
    status, printed = run(capsys, "head", "-n", "2", "a.parquet")
    assert (status, printed) == (0, f"sequence 0\n  x  1\n  n  7\nsequence 1\n  x  2\n  n  {2**53 + 1}\n")
    status, printed = run(capsys, "head", "-n", "3", "a.parquet")
    assert status == 1 and "\ncntkio: a.parquet: row 2, column 'x': 1 null; expected no nulls; " in printed


def test_lists_and_label_files_may_be_several(three_files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        htk.write_archive(
            three_files / f"{name}.ark", three_files / f"{name}.scp", [(name, np.zeros((3, 2), np.float32))]
        )
        mlf.write_mlf(three_files / f"{name}.mlf", [(name, np.zeros(3, int))], [f"label of {name}".replace(" ", "-")])
    assert run(capsys, "inspect", "--json", "*.scp")[1]["feature_files"] == 2
    facts = run(capsys, "inspect", "--json", "*.mlf")[1]
    assert (facts["sequences"], facts["labels"]) == (2, ["label-of-a", "label-of-b"])


# ------------------------------------------------------------------------------------------------- configurations

CONFIGURATION = """
command = train
train = [
    action = "train"
    reader = [
        readerType = "CNTKTextFormatReader"
        file = "%s"
        randomize = false
        input = [ x = [ dim = 2 ; format = dense ] ]
    ]
]
"""


@pytest.mark.parametrize(
    ("file", "keys"),
    [
        ("b.ctf;a.ctf", [2, 3, 0, 1]),
        ("b.ctf ; a.ctf", [2, 3, 0, 1]),
        ("?.ctf", [0, 1, 2, 3]),
        ("c;d.ctf", [4, 5]),
        ("a.ctf;c*.ctf", [0, 1, 4, 5]),
    ],
)
def test_a_configuration_names_several_files(three_files: Path, file: str, keys: list[int]) -> None:
    (three_files / "a.cntk").write_text(CONFIGURATION % file)
    with cntkio.read_config("a.cntk").open() as source:
        source.begin_epoch(0, source.num_samples)
        assert source.next_minibatch(100).keys_of_sequences.tolist() == keys


def test_files_of_a_configuration_are_in_its_directory(three_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (three_files / "a.cntk").write_text(CONFIGURATION % "b.ctf;a.ctf")
    monkeypatch.chdir("/")
    config = cntkio.read_config(three_files / "a.cntk", f"currentDirectory={three_files}")
    assert config.deserializers[0].filename == [os.path.join(three_files, name) for name in ("b.ctf", "a.ctf")]  # noqa: PTH118


@pytest.mark.usefixtures("three_files")
def test_a_written_configuration_names_several_files() -> None:
    streams = StreamDefs(x=StreamDef(field="x", shape=2))
    for given, line in (
        (cntkio.CTFDeserializer(["b.ctf", "a.ctf"], streams), 'file = "b.ctf;a.ctf"'),
        (cntkio.CTFDeserializer("?.ctf", streams), 'file = "?.ctf"'),
        (HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp=["a.scp", "b.scp"], shape=2))), 'scpFile = "a.scp;b.scp"'),
    ):
        made, _ = configuration_for(given)
        Path("w.cntk").write_text(made)
        assert line in made
        (again,) = cntkio.read_config("w.cntk").deserializers
        assert (again["input"] if "scp" in line else again.filename) == (
            given["input"] if "scp" in line else given.filename
        )


@pytest.mark.usefixtures("three_files")
def test_an_option_gives_keys_to_files_with_the_same_ids(capsys: pytest.CaptureFixture[str]) -> None:
    Path("again.ctf").write_text("0 |x 7 7\n")
    names = "a.ctf;again.ctf"
    status, text = run(capsys, "head", names)
    assert status == 1
    assert "expected ids that differ, or --keys per_file" in text
    shown = run(capsys, "head", "--json", "--keys", "per_file", names)[1]
    assert [sequence["key"] for sequence in shown["sequences"]] == [0, 1, 10**12]
    assert run(capsys, "convert", "--keys", "per_file", names, "both.ctf")[0] == 0
    assert Path("both.ctf").read_text().splitlines()[-1].startswith("1000000000000")
    streams = "input = [ x = [ dim = 2 ; format = dense ] ]"
    lines = 'command = t ; t = [ reader = [ file = "a.ctf;again.ctf" ; keys = "{}" ; ' + streams + " ] ]"
    for keys, expected in (("per_file", 0), ("unique", 1)):
        Path("t.cntk").write_text(lines.format(keys))
        assert run(capsys, "bench", "t.cntk")[0] == expected


def test_lists_of_features_have_no_keys_per_file(three_files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (three_files / "a.scp").write_text("u1=a.mfc[0,1]\n")
    status, text = run(capsys, "inspect", "--keys", "per_file", "a.scp")
    assert (status, "--keys applies only to ctf" in text) == (2, True)

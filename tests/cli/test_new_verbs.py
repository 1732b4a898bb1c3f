"""Labels with every verb, selections of sequences, differences of corpora, and old names of verbs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    CorpusError,
    MinibatchSource,
    write_cbf,
    write_ctf,
    write_htk_archive,
    write_mlf,
)
from cntkio.cli import main
from cntkio.cli.arguments import parser
from cntkio.convert import convert_file
from cntkio.formats.contract import Corpus, Index, Opening
from cntkio.formats.detect import KINDS
from cntkio.formats.table import Keys, SequenceTable
from cntkio.streams import StreamInformation
from support import toy_format
from support.toy_format import ROW

DATA: dict[str, Any] = {"x": np.arange(40).reshape(20, 2), "y": [[n % 3] for n in range(20)]}


pytestmark = pytest.mark.usefixtures("current_folder")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    status = main([*arguments, "--json"])
    found: dict[str, Any] = {"status": status}
    for line in capsys.readouterr().out.splitlines():
        found |= json.loads(line)
    return found


def keys(name: str) -> list[int]:
    return [int(line.split("\t")[0]) for line in Path(name).read_text().splitlines()]


def speech() -> list[str]:
    write_htk_archive("a.ark", "a.scp", [("u1", np.arange(12).reshape(4, 3)), ("u2", np.ones((2, 3)))])
    write_mlf("a.mlf", [("u1", np.array([1, 1, 1, 0])), ("u2", np.array([1, 1]))], ["aa", "sil"])
    return ["a.scp", "--labels", "a.mlf"]


@pytest.mark.parametrize("extra", [[], ["--shuffle"], ["--sample", "1"], ["--shuffle", "--sample", "1"]])
def test_convert_closes_the_sources_that_it_opened(extra: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[MinibatchSource] = []
    initialize = MinibatchSource.__init__

    def recording(source: MinibatchSource, *arguments: Any, **options: Any) -> None:
        initialize(source, *arguments, **options)
        opened.append(source)

    monkeypatch.setattr(MinibatchSource, "__init__", recording)
    features, *labels = speech()
    assert main(["convert", features, "a.cbf", *labels, *extra]) == 0
    convert_file(features, "b.cbf", labels=labels[-1])
    assert len(opened) == 2
    for source in opened:
        with pytest.raises(CorpusError, match="is closed"):
            source.next_minibatch(1)


@pytest.mark.parametrize("verb", ["inspect", "check", "plan", "bench", "index", "explain", "diff"])
def test_every_verb_takes_features_with_labels(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    extra = {"explain": ["--step", "0"], "diff": ["a.scp"]}
    assert printed(capsys, verb, *speech(), *extra.get(verb, []))["status"] == 0


def test_head_and_convert_join_labels_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    files = speech()
    assert main(["head", "--key", "u2", *files]) == 0
    assert capsys.readouterr().out == "sequence u2\n  features  1 1 1 | 1 1 1\n  labels    1:1 sil | 1:1 sil\n"
    assert main(["convert", "--renumber", *files, "a.ctf"]) == 0
    assert Path("a.ctf").read_text().splitlines()[4] == "1\t|features 1 1 1 |labels 1:1"


def test_head_prints_the_words_of_a_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.ctf").write_text("3 |w 0:1 |# a\n7 |w 2:1 |# c\n7 |w 5:1 |# f\n")
    for choice in (["--key", "7"], ["--at", "1"]):
        assert main(["head", "a.ctf", *choice]) == 0
        assert capsys.readouterr().out == "sequence 7\n  w  2:1 c | 5:1 f\n"
    assert main(["head", "a.ctf", "--key", "4"]) == 2


def test_split_divides_all_sequences_the_same_way_each_time() -> None:
    write_ctf("a.ctf", DATA, one_hot={"y": 3})
    for name in ("b", "c"):
        assert main(["convert", "--split", "0.75,0.25", "--seed", "5", "a.ctf", f"{name}1.ctf", f"{name}2.ctf"]) == 0
    assert len(keys("b1.ctf")) == 15 and sorted(keys("b1.ctf") + keys("b2.ctf")) == list(range(20))
    assert Path("b1.ctf").read_text() == Path("c1.ctf").read_text()
    assert set(Path("b1.ctf").read_text().splitlines()) < set(Path("a.ctf").read_text().splitlines())


def test_shuffle_keeps_keys_and_sample_counts_sequences() -> None:
    write_ctf("a.ctf", DATA, one_hot={"y": 3})
    assert main(["convert", "--shuffle", "a.ctf", "b.ctf"]) == 0
    assert keys("b.ctf") != list(range(20)) and sorted(keys("b.ctf")) == list(range(20))
    assert main(["convert", "--shuffle", "--sample", "7", "a.ctf", "c.ctf"]) == 0
    assert len(keys("c.ctf")) == 7
    assert main(["convert", "--sample", "21", "a.ctf", "d.ctf"]) == 2


def test_merge_writes_corpora_with_the_same_streams_in_turn(capsys: pytest.CaptureFixture[str]) -> None:
    write_ctf("a.ctf", {"x": [[1], [2]]})
    write_cbf("b.cbf", {"x": [[3]]})
    assert main(["convert", "--merge", "--renumber", "a.ctf", "b.cbf", "c.ctf"]) == 0
    assert Path("c.ctf").read_text() == "0\t|x 1\n1\t|x 2\n2\t|x 3\n"
    assert main(["convert", "a.ctf", "b.cbf", "c.ctf"]) == 2
    write_cbf("d.cbf", {"y": [[3]]})
    assert main(["convert", "--merge", "a.ctf", "d.cbf", "c.ctf"]) == 1
    assert "d.cbf has the streams y" in capsys.readouterr().err


def test_diff_finds_keys_lengths_and_values_in_any_order(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.ctf").write_text("1 |x 1 2 |w 3:1\n2 |x 3 4 |w 1:1\n2 |x 5 6\n3 |x 0 0 |w 3:1\n")
    Path("b.ctf").write_text("3 |x 0 0 |w 3:1\n2 |x 3 4 |w 1:1\n1 |x 1 9 |w 3:1\n4 |x 7 7 |w 2:1\n")
    found = printed(capsys, "diff", "a.ctf", "b.ctf")
    assert (found["status"], found["sequences"], found["order"], found["only_in_second"]) == (1, 3, "different", 1)
    assert [(one["name"], one["different"], one["lengths"]) for one in found["streams"]] == [("w", 0, 0), ("x", 2, 1)]
    assert found["differences"] == [
        {"key": 1, "stream": "x", "sample": 0, "value": 1, "first": "2", "second": "9"},
        {"key": 2, "stream": "x", "sample": None, "value": None, "first": "2 samples", "second": "1 sample"},
    ]


def test_diff_compares_formats_and_precisions(capsys: pytest.CaptureFixture[str]) -> None:
    write_ctf("a.ctf", {"x": [[0.1], [-0.0]]})
    assert main(["convert", "--precision", "double", "a.ctf", "b.cbf"]) == 0
    assert printed(capsys, "diff", "a.ctf", "b.cbf")["status"] == 0


def test_the_precision_of_a_table_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"n": [1, 2]}), "a.parquet")
    for options, dtype in ((["--shuffle"], "float64"), (["--shuffle", "--precision", "float"], "float32")):
        assert main(["convert", *options, "a.parquet", "b.cbf"]) == 0
        assert {str(info.dtype) for info in CBFDeserializer("b.cbf").open().streams} == {dtype}
        Path("b.cbf").unlink()
    assert main(["convert", "--precision", "float", "b.cbf", "c.cbf"]) == 2


class NoSequences(Corpus):
    """An opened format that delivers no sequence, and its deserializer."""

    has_text_keys = False

    def parts(self) -> list["NoSequences"]:
        return [self]

    def open(self, opening: Opening) -> "NoSequences":
        streams = (StreamInformation("x", 0, "dense", np.float32, 2),)
        table = SequenceTable(Keys.of([]), np.empty(0, np.uint32), np.zeros(1, np.int64))
        self.index, self.report = Index(streams, table, name="none.toy"), opening.report("none.toy")
        return self


@pytest.fixture
def without_sequences(current_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in `current_folder`: `a.toy` has a sequence, and `none.toy` has none."""
    monkeypatch.setitem(KINDS, "toy", ROW)
    deserializer = toy_format.ToyDeserializer

    def toy_or_none(names: Any, **options: Any) -> Any:
        return NoSequences() if "none.toy" in str(names) else deserializer(names, **options)

    monkeypatch.setattr(toy_format, "ToyDeserializer", toy_or_none)
    for name in ("none.toy", "a.toy"):
        Path(name).write_text("7 7.5 2\n")


@pytest.mark.usefixtures("without_sequences")
def test_inspect_shows_a_corpus_without_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "inspect", "none.toy", "--html", "none.html")
    assert (found["status"], found["sequences"], found["samples"], found["longest_sequence"]) == (0, 0, 0, 0)
    (stream,) = found["streams"]
    assert (stream["name"], stream["values"], stream["histogram"]) == ("x", 0, None)
    assert "none.toy" in Path("none.html").read_text()
    # The facts have the same names as the facts of another corpus.
    assert found.keys() == printed(capsys, "inspect", "a.toy").keys()


@pytest.mark.usefixtures("without_sequences")
def test_diff_compares_corpora_without_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    for names, status in (
        (("none.toy", "a.toy"), 1), (("a.toy", "none.toy"), 1), (("none.toy", "none.toy"), 0)
    ):  # fmt: skip
        found = printed(capsys, "diff", *names)
        assert (found["status"], found["sequences"]) == (status, 0)
        assert (found.get("only_in_first"), found.get("only_in_second")) == tuple(
            1 if name == "a.toy" else None for name in names
        )
        assert found["streams"] == [{"name": "x", "different": 0, "lengths": 0}]


def test_diff_prints_the_first_sparse_sample_that_differs(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.ctf").write_text("1 |w 3:1\n1 |w 1:1 2:1\n")
    Path("b.ctf").write_text("1 |w 3:1\n1 |w 1:1\n")
    (found,) = printed(capsys, "diff", "a.ctf", "b.ctf")["differences"]
    assert (found["sample"], found["first"], found["second"]) == (1, "1:1 2:1", "1:1")


def test_the_help_of_a_verb_fits_a_screen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for verb in parser().verbs:
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        assert len(capsys.readouterr().out.splitlines()) <= 40, verb


def test_the_page_has_samples_classes_by_name_and_components() -> None:
    Path("a.ctf").write_text("".join(f"|w {n % 2}:1 |# {'ab'[n % 2]}<\n|x {n} {n * 0.5}\n" for n in range(9)))
    assert main(["inspect", "--quiet", "--html", "a.html", "--max-errors", "-1", "a.ctf"]) in (0, 1)
    page = Path("a.html").read_text()
    assert "First sequences" in page and ">a&lt;</text>" in page
    assert "component 0" in page and "component 1" in page


@pytest.mark.parametrize("name", ["a.svm", "a.ark", "a.parquet"])
def test_inspect_names_files_that_no_configuration_reads(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow", reason="PyArrow is not installed")
    Path("a.ctf").write_text("|features 1 2 |label 1\n|features 3 4 |label -1\n")
    Path("a.ark").write_text("u1  [\n  1 2\n  3 4 ]\n")
    if name != "a.ark":
        assert main(["convert", "a.ctf", name]) == 0
    assert main(["inspect", "--write-config", "a.cntk", name]) == 2
    assert f"no configuration of CNTK reads {name}" in capsys.readouterr().err

"""Rules for all formats: the report of errors and warnings, and deserializers of other packages."""

import logging
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    ConfigError,
    CTFDeserializer,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    write_cbf,
    write_ctf,
)
from cntkio.formats import Ahead, Corpus, Opening
from cntkio.formats.corpus import as_deserializer
from cntkio.formats.report import Report

X = StreamDefs(x=StreamDef(field="x", shape=2))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "a.ctf"
    path.write_text("|x 1 2\n|x 3 4\n")
    return path


class OnlyOpens:
    """A deserializer that has only the required method."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> Corpus:
        return CTFDeserializer(self.path, X).open()


class WithParts:
    """A deserializer of several corpora without the rest of the contract."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def parts(self) -> list[OnlyOpens]:
        return [OnlyOpens(self.path)]

    def open(self) -> Corpus:
        raise AssertionError("a source opens the parts")


@pytest.mark.parametrize("kind", [OnlyOpens, WithParts])
def test_objects_with_an_open_method_are_deserializers(kind: Any, text: Path) -> None:
    with MinibatchSource(kind(text), randomize=False, max_sweeps=1) as source:
        assert [data["x"].values.tolist() for data in source.minibatches(2)] == [[[1.0, 2.0], [3.0, 4.0]]]


class TakesKeywords(OnlyOpens):
    """A deserializer whose `open` takes what it needs as keywords."""

    def open(self, *, text_keys: bool = False, ahead: Ahead | None = None) -> Corpus:
        assert ahead is not None
        return CTFDeserializer(self.path, X).open(Opening(text_keys, ahead))


def test_an_open_method_gets_the_wishes_that_it_takes(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_text("7 |x 1 2\n")
    with closing(as_deserializer(TakesKeywords(tmp_path / "a.ctf")).open(Opening(text_keys=True))) as corpus:
        assert corpus.table.keys.tolist() == ["7"]
    with closing(as_deserializer(OnlyOpens(tmp_path / "a.ctf")).open(Opening(text_keys=True))) as corpus:
        assert corpus.table.keys.tolist() == [7]


def test_objects_with_an_open_method_can_be_written(text: Path, tmp_path: Path) -> None:
    write_ctf(tmp_path / "b.ctf", OnlyOpens(text))
    assert (tmp_path / "b.ctf").read_text() == "0\t|x 1 2\n1\t|x 3 4\n"


@pytest.mark.parametrize("path", ["a.ctf", Path("a.ctf")])
@pytest.mark.parametrize(
    "use",
    [
        MinibatchSource,
        lambda path: MinibatchSource([path]),
        lambda path: write_ctf("b.ctf", path),
        lambda path: write_cbf("b.cbf", path),
    ],
)
def test_a_path_in_place_of_a_deserializer_is_refused_by_name(
    path: str | Path, use: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        use(path)
    assert str(caught.value).startswith(f"{path!r} is a path; expected a deserializer, such as CTFDeserializer('a.ctf'")
    assert not list(tmp_path.iterdir())


def test_the_refusal_of_a_path_names_the_deserializer_that_reads_the_file(tmp_path: Path) -> None:
    write_cbf(tmp_path / "a", {"x": np.ones((3, 2), np.float32)})
    with pytest.raises(ConfigError, match=r"such as CBFDeserializer\('.*/a'\)"):
        as_deserializer(tmp_path / "a")
    (tmp_path / "a.cntk").write_text("command = Train\n")
    with pytest.raises(ConfigError, match="this is a CNTK configuration: MinibatchSource.from_config opens its reader"):
        MinibatchSource(tmp_path / "a.cntk")  # type: ignore[arg-type]


def test_an_object_without_an_open_method_is_not_a_deserializer() -> None:
    with pytest.raises(ConfigError, match="5 is not a deserializer; expected one such as CTFDeserializer"):
        as_deserializer(5)


def test_a_report_logs_ten_of_a_kind_and_its_total_once(caplog: pytest.LogCaptureFixture) -> None:
    report = Report("a.ctf")
    for number in range(12):
        report.count("junk")
        report.log("junk", f"line {number}: junk")
    for _ in range(2):
        report.log_totals()
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [*(f"line {number}: junk" for number in range(10)), "a.ctf: junk: 12 in all"]
    report.count("junk")
    report.log_totals()
    assert caplog.records[-1].getMessage() == "a.ctf: junk: 13 in all"


def test_a_report_forgives_errors_within_its_budget() -> None:
    report = Report("a.ctf", max_errors=3)
    assert report.forgive(2)
    assert not report.forgive(2)
    assert report.exhaust() == 1
    assert not report.forgive(1)
    assert Report("a.ctf", max_errors=-1).forgive(10**9)


def test_a_binary_corpus_logs_its_totals_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.cbf"
    write_cbf(path, {"x": np.ones((3, 2), np.float32)})
    data = path.read_bytes()
    (header,) = struct.unpack("<q", data[-8:])
    path.write_bytes(data[:header] + b"spare" + data[header:-8] + struct.pack("<q", header + 5))
    with caplog.at_level(logging.WARNING):
        corpus = CBFDeserializer(path).open()
        for _ in range(11):
            corpus.account_for(corpus.load(0))
        for _ in range(3):  # a source does this at the end of each sweep
            corpus.report.log_totals()
        corpus.close()
    assert corpus.report.warnings == {"chunk with unused bytes": 11}
    totals = [record.getMessage() for record in caplog.records if "in all" in record.getMessage()]
    assert totals == [f"{path}: chunk with unused bytes: 11 in all"]

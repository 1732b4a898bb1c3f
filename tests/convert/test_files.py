"""Any format is converted to any other: the content of the input and the name of the output say which."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import CBFDeserializer, ConfigError, StreamDefs, convert
from cntkio.convert import convert_file, corpus_of, format_of_name, write_file
from cntkio.corpora import described, input_of
from cntkio.formats.contract import with_defaults
from cntkio.formats.pieces import read_corpus

TEXT = "7\t|s 3:1 0:0.5 |x 1 2\n9\t|s 8:2 |x 6 7\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "a.ctf").write_text(TEXT)
    return tmp_path / "a.ctf"


@pytest.mark.parametrize("extension", ["parquet", "pq", "arrow", "feather", "IPC"])
def test_tables_keep_the_text(text: Path, tmp_path: Path, extension: str) -> None:
    pytest.importorskip("pyarrow")
    convert_file(text, tmp_path / f"b.{extension}", ids=[], flat=["x"])
    (tmp_path / f"b.{extension}").rename(tmp_path / "unnamed")
    convert_file(tmp_path / "unnamed", tmp_path / "c.txt")
    assert (tmp_path / "c.txt").read_text() == TEXT


def test_text_and_binary_files_are_found_by_extension(text: Path, tmp_path: Path) -> None:
    convert_file(text, tmp_path / "b.bin")
    convert_file(tmp_path / "b.bin", tmp_path / "c.data", to="ctf")
    assert (tmp_path / "c.data").read_text() == TEXT.replace("7\t", "0\t").replace("9\t", "1\t")


def test_lists_of_features_become_text_with_a_list_of_their_keys(tmp_path: Path) -> None:
    (tmp_path / "a.htk").write_bytes(struct.pack(">iihh", 2, 100_000, 8, 9) + np.zeros((2, 2), ">f4").tobytes())
    (tmp_path / "a.scp").write_text(f"one={tmp_path}/a.htk[0,1]\n")
    convert_file(tmp_path / "a.scp", tmp_path / "b.ctf", keys_file=tmp_path / "keys")
    assert (tmp_path / "b.ctf").read_text() == "0\t|features 0 0\n0\t|features 0 0\n"
    assert (tmp_path / "keys").read_text() == "one\n"
    convert_file(tmp_path / "a.scp", tmp_path / "b.cbf")
    assert read_corpus(CBFDeserializer(tmp_path / "b.cbf").open())["features"].lengths.tolist() == [2]


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("b.png", {}, "no format to write has the extension '.png'; expected one of .ark, .ctf"),
        ("b", {}, "no format to write has the extension ''"),
        ("b.cbf", {"renumber": True}, "renumber is only for writing ctf"),
        ("b.ctf", {"flat": True}, "flat is only for writing parquet, arrow"),
        ("b.ctf", {"one_hot": {"x": 3}}, "one_hot applies only to parquet, arrow files"),
    ],
)
def test_refuses_options_that_the_formats_do_not_have(text: Path, target: str, options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        convert_file(text, text.parent / target, **options)
    assert [path.name for path in text.parent.iterdir()] == ["a.ctf"]


def test_refuses_inputs_that_are_not_corpora(tmp_path: Path) -> None:
    (tmp_path / "a.mlf").write_text('#!MLF!#\n"a.lab"\n0 1 a\n.\n')
    with pytest.raises(ConfigError, match="a.mlf is an HTK label file .*; expected a text, a binary corpus"):
        convert_file(tmp_path / "a.mlf", tmp_path / "b.ctf")


def test_every_format_has_an_extension() -> None:
    names = ["a.ctf", "a.cbf", "a.parquet", "a.arrow"]
    assert [format_of_name(name) for name in names] == ["ctf", "cbf", "parquet", "arrow"]
    assert convert.convert_file is convert_file


@pytest.mark.parametrize(("size", "num_chunks"), [(1, 2), (1000, 1)])
def test_a_text_is_read_in_chunks_of_the_requested_size(text: Path, tmp_path: Path, size: int, num_chunks: int) -> None:
    totals = set()
    convert_file(text, tmp_path / "b.ctf", chunk_size_in_bytes=size, progress=lambda _, total: totals.add(total))
    assert (tmp_path / "b.ctf").read_text() == TEXT
    assert totals == {num_chunks}


def test_a_misspelled_keyword_of_reading_has_a_hint(text: Path) -> None:
    for function in (convert_file, corpus_of):
        with pytest.raises(TypeError, match="has no keyword 'max_error'; did you mean 'max_errors'"):
            function(text, text.parent / "b.cbf", max_error=3)  # type: ignore[operator]


def test_keywords_of_reading_reach_the_deserializer(text: Path) -> None:
    options = {
        "max_errors": 3,
        "skip_sequence_ids": True,
        "strict": True,
        "keys": "per_file",
        "chunk_size_in_bytes": 70,
    }
    deserializer = corpus_of(text, StreamDefs(), **options)
    assert {name: getattr(deserializer, name) for name in options} == options


def test_options_and_formats_that_no_writer_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="chunk_size_in_bytes is 0"):
        write_file(tmp_path / "a.cbf", {"x": [[1.0]]}, chunk_size_in_bytes=0)
    with pytest.raises(ConfigError, match="to is 'csv'; expected"):
        write_file(tmp_path / "a.ctf", {"x": [[1.0]]}, to="csv")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_label_file_is_joined_only_with_features(text: Path) -> None:
    options = with_defaults({"labels": "of_features.mlf"})  # for another operand of the same call
    (one,) = described(input_of(text), options)
    assert one.label_names is None
    assert len(one.deserializers) == 1

"""Converters: round trips are exact, text is written as specified, and no incomplete file remains."""

import contextlib
import io
import itertools
import logging
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
import scipy.sparse
from cntkio import (
    CBFDeserializer,
    ConfigError,
    CorpusError,
    CTFDeserializer,
    FormatError,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    StreamInformation,
    UserDeserializer,
    convert,
    infer_streams,
    read_ctf,
    sequence_to_cntk_text_format,
    write_cbf,
    write_ctf,
)
from cntkio.cli import main
from cntkio.formats.pieces import read_corpus
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support import ROOT
from support.packers import BY_ENDING
from support.recorded import SHARED, folder_of
from support.rounds import rounds

CORPORA = [
    *sorted((ROOT / "examples").rglob("*.ctf")),
    *(
        ROOT / "tests" / "data" / "ctf_pages" / f"{name}.ctf"
        for name in ("classification", "ranking", "simple", "tagging")
    ),
    *sorted((SHARED.parent / "data").glob("*.ctf")),
]


def same(one: Any, other: Any) -> bool:
    """Compare two minibatches bit for bit, except for their keys."""
    if set(one) != set(other):
        return False
    for name, data in one.items():
        twin = other[name]
        for array in ("values", "offsets", "indices", "indptr"):
            mine, theirs = getattr(data, array), getattr(twin, array)
            if (mine is None) != (theirs is None):
                return False
            if mine is not None and (mine.dtype != theirs.dtype or mine.tobytes() != theirs.tobytes()):
                return False
    return True


def read_cbf(path: Path) -> Any:
    corpus = CBFDeserializer(path).open()
    try:
        return read_corpus(corpus)
    finally:
        corpus.close()


# ------------------------------------------------------------------------------------------------ round trips


@pytest.mark.parametrize("path", CORPORA, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_text_to_binary_to_text_returns_the_same_values(path: Path, tmp_path: Path) -> None:
    streams = infer_streams(path)
    original = read_ctf(path, streams)
    convert.ctf_to_cbf(path, tmp_path / "a.cbf", chunk_size_in_bytes=100_000)
    assert same(original, read_cbf(tmp_path / "a.cbf"))
    convert.cbf_to_ctf(tmp_path / "a.cbf", tmp_path / "b.ctf")
    assert same(original, read_ctf(tmp_path / "b.ctf", streams))


@pytest.mark.parametrize("path", CORPORA[:1], ids=lambda path: path.stem)
def test_binary_corpora_read_in_the_same_minibatches_as_the_text(path: Path, tmp_path: Path) -> None:
    convert.ctf_to_cbf(path, tmp_path / "a.cbf", chunk_size_in_bytes=10_000)
    with (
        MinibatchSource(CTFDeserializer(path, infer_streams(path)), randomize=False, max_sweeps=1) as text,
        MinibatchSource(CBFDeserializer(tmp_path / "a.cbf"), randomize=False, max_sweeps=1) as binary,
    ):
        pairs = list(zip(text.minibatches(100), binary.minibatches(100), strict=True))
    assert len(pairs) > 1
    assert all(same(one, other) for one, other in pairs)


def test_sequences_count_the_same_in_binary_files_and_in_text(tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    path.write_text("0 |x 1 |y 1\n0 |x 2\n0 |x 3\n1 |x 4 |y 5\n")
    streams = StreamDefs(x=StreamDef(field="x", shape=1), y=StreamDef(field="y", shape=1, defines_mb_size=True))
    convert.ctf_to_cbf(path, tmp_path / "a.cbf", streams)
    assert CBFDeserializer(tmp_path / "a.cbf").open().table.lengths.tolist() == [1, 1]


finite = {
    np.float32: st.floats(width=32, allow_nan=False, allow_infinity=False),
    np.float64: st.floats(allow_nan=False, allow_infinity=False),
}


@settings(max_examples=rounds(50))
@given(st.data())
def test_arrays_come_back_from_both_formats(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    dim = data.draw(st.integers(1, 3))
    elements = finite[dtype]
    x = [data.draw(arrays.arrays(dtype, (length, dim), elements=elements)) for length in lengths]
    y = data.draw(arrays.arrays(dtype, (len(lengths), 2), elements=elements))
    folder = Path("/tmp")
    binary, text = folder / "cntkio-arrays.cbf", folder / "cntkio-arrays.ctf"
    try:
        write_cbf(binary, {"x": x, "y": y}, chunk_size_in_bytes=data.draw(st.integers(1, 200)))
        write_ctf(text, {"x": x, "y": y})
        whole = read_cbf(binary)
        assert whole["x"].values.tobytes() == np.concatenate(x).tobytes()
        assert whole["x"].lengths.tolist() == lengths
        assert whole["y"].values.tobytes() == y.tobytes()
        defs = StreamDefs(x=StreamDef(field="x", shape=dim), y=StreamDef(field="y", shape=2))
        assert same(whole, read_ctf(text, defs, dtype=dtype))
    finally:
        binary.unlink()
        text.unlink()


def test_matrices_lists_of_matrices_minibatches_and_sources_are_written_alike(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    dense = rng.random((7, 30), np.float32) * (rng.random((7, 30)) < 0.2)
    csr = scipy.sparse.csr_array(dense)
    write_cbf(tmp_path / "a.cbf", {"s": csr})
    write_cbf(tmp_path / "b.cbf", {"s": [csr[row : row + 1] for row in range(7)]})
    write_cbf(tmp_path / "c.cbf", read_cbf(tmp_path / "a.cbf"))
    with MinibatchSource(CBFDeserializer(tmp_path / "a.cbf"), randomize=False, max_sweeps=1) as source:
        write_cbf(tmp_path / "d.cbf", source)
    contents = {(tmp_path / f"{name}.cbf").read_bytes() for name in "abcd"}
    assert len(contents) == 1
    assert np.array_equal(read_cbf(tmp_path / "a.cbf")["s"].tocsr().toarray(), dense)


def test_large_arrays_are_written_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cntkio.formats.arrays.PIECE_BYTES", 1000)
    values, told = np.arange(5000, dtype=np.float32).reshape(500, 10), []
    write_cbf(tmp_path / "a.cbf", {"x": values}, progress=lambda done, total: told.append((done, total)))
    assert read_cbf(tmp_path / "a.cbf")["x"].values.tobytes() == values.tobytes()
    assert told == [(done, len(told)) for done in range(1, len(told) + 1)]
    assert len(told) > 10


# ------------------------------------------------------------------------------------------------------- text


def test_text_holds_keys_and_the_shortest_numbers(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.ctf", tmp_path / "b.ctf"
    path.write_text("7 |x 0.10 1e2 |s 3:1.0 2:-0\n7 |x 1e-7 16777216\n4 |s |x 0 3.4028235e38\n")
    streams = StreamDefs(x=StreamDef(field="x", shape=2), s=StreamDef(field="s", shape=5, is_sparse=True))
    write_ctf(copy, CTFDeserializer(path, streams), order=["x", "s"])
    assert copy.read_text() == "7\t|x 0.1 100 |s 3:1 2:-0\n7\t|x 1e-7 16777216\n4\t|x 0 3.4028235e38 |s\n"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_refuses_to_write_values_that_are_not_finite(value: float, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=rf"sequence 1, stream 'x': the value {value}".replace("nan", "NaN|nan")):
        write_ctf(tmp_path / "a.ctf", {"x": np.array([[1.0], [value]])})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a b", "a|b", "#a", "ä", "a\t"])
def test_refuses_to_write_names_that_would_read_differently(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the text format cannot express this name"):
        write_ctf(tmp_path / "a.ctf", {name: np.zeros((1, 1))})


def test_refuses_to_write_sequences_without_a_sample(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="sequence 1: the sequence has no sample"):
        write_ctf(tmp_path / "a.ctf", {"x": [np.zeros((1, 2)), np.zeros((0, 2))]})


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ({}, "no stream"),
        ({"x": np.zeros((2, 1)), "y": np.zeros((3, 1))}, "different numbers of sequences"),
        ({"x": [np.zeros((2, 1)), np.zeros((3, 2))]}, "sequence 1: samples of shape"),
        ({"x": [np.zeros(()), np.zeros(())]}, "sequence 0: a number"),
        ({"x": np.array(["a"])}, "expected real numbers"),
        ({"x": "text"}, "is a str"),
        (
            {"x": [scipy.sparse.csr_array((1, 2)), np.zeros((1, 2))]},
            "sequence 1: of the type ndarray, but sequence 0 is a matrix",
        ),
        ({"x": [np.zeros((1, 2)), scipy.sparse.csr_array((1, 2))]}, "sequence 1: a csr_array; expected an array"),
        (7, "cannot write data of the type int;"),
        ("a.ctf", "'a.ctf' is a path; expected a deserializer, such as CTFDeserializer"),
        (Path("a.ctf"), "is a path; expected a deserializer, such as CTFDeserializer"),
    ],
)
def test_refuses_arrays_that_do_not_form_a_corpus(data: Any, what: str, tmp_path: Path) -> None:
    for write in (write_cbf, write_ctf):
        with pytest.raises((ConfigError, CorpusError), match=what):
            write(tmp_path / "a", data)
    assert list(tmp_path.iterdir()) == []


def test_an_index_outside_its_dimension_is_refused(tmp_path: Path) -> None:
    matrix = scipy.sparse.csr_array((np.ones(1), np.array([1]), np.array([0, 1])), shape=(1, 2))
    matrix.indices[0] = 2
    with pytest.raises(ConfigError, match="index 2, but the dimension is 2"):
        write_cbf(tmp_path / "a.cbf", {"s": matrix})


class Pairs(UserDeserializer):
    """A user-defined deserializer of two chunks."""

    def stream_infos(self) -> list[StreamInformation]:
        return [StreamInformation("x", 0, "dense", np.float32, (1,))]

    def num_chunks(self) -> int:
        return 2

    def get_chunk(self, chunk_id: int) -> dict[str, Any]:
        return {"x": np.full((2, 1), chunk_id, np.float32)}


def test_a_user_defined_deserializer_is_written_through_a_source(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pass MinibatchSource\(deserializer, max_sweeps=1\) to write_ctf"):
        write_ctf(tmp_path / "a.ctf", Pairs())
    with MinibatchSource(Pairs(), max_sweeps=1, randomize=False) as source:
        write_ctf(tmp_path / "a.ctf", source)
    assert (tmp_path / "a.ctf").read_text() == "0\t|x 0\n1\t|x 0\n2\t|x 1\n3\t|x 1\n"


class Squares:
    """An object that has only the method of the contract `Writable`."""

    @contextlib.contextmanager
    def pieces(self) -> Iterator[convert.Pieces]:
        arrays = ({"x": np.array([[float(index)], [float(index**2)]])} for index in range(3))
        with contextlib.ExitStack() as exits:
            opened = [exits.enter_context(convert.pieces_of(array)) for array in arrays]
            pieces = itertools.chain.from_iterable(one.pieces for one in opened)
            yield convert.Pieces("squares", opened[0].streams, pieces, 3)


def test_writes_anything_with_pieces(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    write_ctf(tmp_path / "a.ctf", Squares(), progress=lambda done, total: told.append((done, total)))
    lines = (tmp_path / "a.ctf").read_text().splitlines()
    assert lines == [f"{index}\t|x {value}" for index, value in enumerate([0, 0, 1, 1, 2, 4])]
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_source_without_an_end_is_refused(tmp_path: Path) -> None:
    with (
        MinibatchSource(CBFDeserializer(folder_of("cbf") / "data" / "tiny.cbf")) as source,
        pytest.raises(ConfigError, match="without an end"),
    ):
        write_cbf(tmp_path / "a.cbf", source)


# The expected text was recorded from cntk.io's function of the same name.
@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (
            {"x": np.float32([[1, 0.1], [2, 3]]), "A": [[1], [2], [3]]},
            "5\t|A 1 |x 1.0 0.1\n5\t|A 2 |x 2.0 3.0\n5\t|A 3",
        ),
        ({"x": [{3: 1, 1: 0.5}, {}]}, "5\t|x 1:0.5 3:1\n5\t|x "),
        ({"x": np.arange(4).reshape(1, 2, 2)}, "5\t|x 0 1 2 3"),
        ({"x": np.float32([1e-8, 1e20])}, "5\t|x 1e-08\n5\t|x 1e+20"),
        ({"x": np.float32([[0.1]]) * 3, "y": [{2: np.float32(0.1)}]}, "5\t|x 0.3 |y 2:0.1"),
        ({"x": np.zeros((0, 2))}, ""),
        ({"x": []}, ""),
    ],
)
def test_a_sequence_becomes_the_same_text_as_in_cntk(inputs: dict[str, Any], text: str) -> None:
    assert sequence_to_cntk_text_format(5, inputs) == text


@pytest.mark.parametrize("value", [7, "abc", {"a": 1}, [np.nan], np.float32([[np.inf]]), [{1: np.nan}], ["a"]])
def test_refuses_sequences_of_other_types(value: Any) -> None:
    with pytest.raises(ValueError, match="input 'x'"):
        sequence_to_cntk_text_format(0, {"x": value})


def test_a_sequence_needs_an_input_and_a_number() -> None:
    with pytest.raises(ValueError, match="alias_tensor_map is empty"):
        sequence_to_cntk_text_format(0, {})
    with pytest.raises(ConfigError, match="seq_idx is 'a'; expected a whole number"):
        sequence_to_cntk_text_format("a", {"x": [1]})  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ command line


def command(*words: object) -> None:
    assert main(["convert", *map(str, words)]) == 0


def test_the_command_converts_with_a_header_file_as_ctf2bin_does(tmp_path: Path) -> None:
    (tmp_path / "header").write_text("words W sparse 10\nfeatures F DENSE 2\n")
    (tmp_path / "a.ctf").write_text("|F 1 2 |W 3:1\n|F 3 4 |W\n")
    command("ctf2bin", "--input", tmp_path / "a.ctf", "--header", tmp_path / "header", "--chunk_size", 1,
            "--output", tmp_path / "a.cbf", "--precision", "double")  # fmt: skip
    corpus = CBFDeserializer(tmp_path / "a.cbf").open()
    assert [(info.name, info.storage_format, info.dtype, info.dim) for info in corpus.streams] == [
        ("words", "sparse", np.float64, 10), ("features", "dense", np.float64, 2),
    ]  # fmt: skip
    assert corpus.table.num_chunks == 2
    whole = read_corpus(corpus)
    assert whole["words"].lengths.tolist() == [1, 1]  # the empty sample is kept
    command("--to", "ctf", tmp_path / "a.cbf", tmp_path / "b.ctf")
    assert (tmp_path / "b.ctf").read_text() == "0\t|words 3:1 |features 1 2\n1\t|words |features 3 4\n"


@pytest.mark.parametrize("line", ["a b dense", "a b thick 3", "a b dense x", "", "a b dense 0", "# c d e"])
def test_refuses_broken_header_files_and_names_the_line(line: str, tmp_path: Path) -> None:
    (tmp_path / "header").write_text(f"x y dense 3\n{line}\n")
    with pytest.raises(FormatError, match="line 2"):
        convert.read_header_file(tmp_path / "header")


def test_refuses_a_header_file_that_is_not_unicode(tmp_path: Path) -> None:
    (tmp_path / "header").write_bytes("x A dense 3\nä B dense 1\n".encode("latin-1"))
    with pytest.raises(FormatError, match=r"header, line 2, byte 12: bytes that are not UTF-8"):
        convert.read_header_file(tmp_path / "header")


def test_a_repeated_alias_in_a_header_file_replaces_the_earlier_line(tmp_path: Path) -> None:
    (tmp_path / "header").write_text("x A dense 3\nz B dense 1\ny A sparse 4\n")
    assert list(convert.read_header_file(tmp_path / "header")) == ["y", "z"]


def test_progress_shows_only_on_a_terminal(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    write_cbf(tmp_path / "a.cbf", {"x": np.zeros((3, 2))})
    arguments = ("--to", "ctf", "--input", tmp_path / "a.cbf", "--output", tmp_path / "a.ctf")
    command(*arguments)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    command(*arguments)
    assert "100 %" in capsys.readouterr().err


# --------------------------------------------------------------------------------------- token and number files


def tokens(tmp_path: Path, text: str, **options: Any) -> str:
    (tmp_path / "words").write_text("the\ncat \nsat\n<unk>\nthe\n")
    (tmp_path / "tags").write_text("D\nN\nV|x\n")
    out = io.BytesIO()
    convert.txt_to_ctf(io.BytesIO(text.encode()), out, [tmp_path / "words", tmp_path / "tags"], **options)
    return out.getvalue().decode()


def test_token_files_become_sequences_with_a_stream_for_each_column(tmp_path: Path) -> None:
    text = tokens(tmp_path, "the cat  sat\tD N\ncat\tV|x\n", annotated=True)
    assert text == (
        "0\t|S0 4:1 |# the\t|S1 0:1 |# D\n0\t|S0 1:1 |# cat\t|S1 1:1 |# N\n0\t|S0 2:1 |# sat\t\n"
        "1\t|S0 1:1 |# cat\t|S1 2:1 |# V|#x\n"
    )
    assert tokens(tmp_path, "sat\tN", names=["w", "t"]) == "0\t|w 2:1\t|t 1:1\n"
    assert "3:1" in tokens(tmp_path, "sat\tN\ndog\tN\n".replace("N", "D"), unknown="<unk>")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("the\tD\ndog\tD\n", "standard input, line 2: column 0: 'dog' is not in the column's dictionary"),
        ("the\n", "line 1: 1 column; expected 2"),
        ("the\tD\tD\n", "line 1: 3 columns; expected 2"),
    ],
)
def test_refuses_broken_lines_of_tokens_and_names_the_location(text: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=what):
        tokens(tmp_path, text)


def test_warns_of_columns_without_a_token_and_refuses_them_if_strict(tmp_path: Path, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "cntkio"):
        assert tokens(tmp_path, "the\t\n") == "0\t|S0 4:1\t\n"
    assert "line 1: a column without a token" in caplog.text
    with pytest.raises(FormatError, match="a column without a token"):
        tokens(tmp_path, "the\t\n", strict=True)


@pytest.mark.parametrize("pack", BY_ENDING.values(), ids=BY_ENDING)
def test_sequences_are_numbered_over_all_files_and_packed_files_are_unpacked(tmp_path: Path, pack: Any) -> None:
    (tmp_path / "words").write_bytes(pack(b"a\nb\n"))
    (tmp_path / "1.txt").write_text("a\nb")
    (tmp_path / "2.txt").write_bytes(pack(b"b a\r\n"))
    command("txt2ctf", "--map", tmp_path / "words", "--input", tmp_path / "1.txt", tmp_path / "2.txt",
            "--output", tmp_path / "a.ctf")  # fmt: skip
    assert (tmp_path / "a.ctf").read_text() == "0\t|S0 0:1\n1\t|S0 1:1\n2\t|S0 1:1\n2\t|S0 0:1\n"


def test_columns_of_numbers_become_labels_and_features(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("0.5  1.25 2\n3 4 0\n")
    (tmp_path / "names").write_text("zero\none\ntwo\n")
    command("uci2ctf", "-in", tmp_path / "a.txt", "-fs", 0, "-fd", 2, "-ls", 2, "-nl", 3)
    assert (
        tmp_path / "a_cntk_text.txt"
    ).read_text() == "|labels 0 0 1\t|features 0.5 1.25\n|labels 1 0 0\t|features 3 4\n"
    out, options = tmp_path / "a.ctf", {"features_start": 0, "features_dim": 2}
    convert.uci_to_ctf(tmp_path / "a.txt", out, **options, labels_start=2, label_type="Regression")
    assert out.read_text() == "|labels 2\t|features 0.5 1.25\n|labels 0\t|features 3 4\n"
    convert.uci_to_ctf(tmp_path / "a.txt", out, **options, label_type="None")
    assert out.read_text() == "|features 0.5 1.25\n|features 3 4\n"
    given_names = {"labels_start": 2, "num_labels": 2, "mapping_file": tmp_path / "names"}
    source = io.BytesIO(b"1,2,two\n3, 4 ,one\n")
    convert.uci_to_ctf(source, out, **options, **given_names, sparse_labels=True, delimiter=",")
    assert out.read_text() == "|labels 2:1\t|features 1 2\n|labels 1:1\t|features 3 4\n"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"labels_start": 1, "num_labels": 3}, "columns 1 to 1 are both labels and features"),
        ({"labels_start": 2, "num_labels": 3, "labels_dim": 2}, "expected 1"),
        ({"labels_start": 2}, "num_labels is None"),
        ({"num_labels": 3}, "labels_start is None"),
        ({"labels_start": 2, "label_type": "Regression", "num_labels": 2}, "num_labels=2 is more"),
        ({"label_type": "Other"}, "label_type is 'Other'"),
        ({"label_type": "None", "delimiter": "ab"}, "one ASCII character"),
    ],
)
def test_contradicting_options_of_number_files_are_refused(options: dict[str, Any], what: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=what):
        convert.uci_to_ctf(io.BytesIO(b"1 2 0\n"), tmp_path / "a", features_start=0, features_dim=2, **options)


@pytest.mark.parametrize(
    ("text", "what"), [("1 2\n", "line 1: 2 columns"), ("1 2 0\n1 2 3\n", "line 2: column 2: '3'")]
)
def test_refuses_broken_lines_of_numbers_and_names_the_location(text: str, what: str, tmp_path: Path) -> None:
    options = {"features_start": 0, "features_dim": 2, "labels_start": 2, "num_labels": 3}
    with pytest.raises(FormatError, match=what):
        convert.uci_to_ctf(io.BytesIO(text.encode()), tmp_path / "a", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["a", "", "nan", "0x1", "1e", "1 2", "ü"])
@pytest.mark.parametrize("label_type", ["None", "Regression"])
def test_refuses_values_that_are_not_numbers(value: str, label_type: str, tmp_path: Path) -> None:
    source = io.BytesIO(f"1,2\n1,{value}\n".encode())
    columns = {"features_start": 1, "features_dim": 1} if label_type == "None" else {"labels_start": 1}
    options = {"features_start": 0, "features_dim": 1, "delimiter": ",", "label_type": label_type, **columns}
    with pytest.raises(
        FormatError, match=f"^standard input, line 2: column 1: '{value}' is not a number of the text f"
    ):
        convert.uci_to_ctf(source, tmp_path / "a", **options)


def test_a_header_is_skipped_on_request_and_its_error_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    arguments = ["uci2ctf", "-in", tmp_path / "a.csv", "-fs", 0, "-fd", 2, "-lt", "None", "--delimiter", ","]
    with pytest.raises(
        FormatError, match="line 1: column 0: 'a' .*; if the first line is a header, set skip_header=Tr"
    ):
        convert.uci_to_ctf(
            tmp_path / "a.csv", tmp_path / "b", features_start=0, features_dim=2, label_type="None", delimiter=","
        )

    for line in ("1,,2", "0.5,1.5;", "1,'2'", '"1","2"'):  # a line with a number is no header
        with pytest.raises(FormatError, match=r"line 1: .*such as -0.5 or 1e-3$"):
            options = {"features_start": 0, "features_dim": 2, "label_type": "None", "delimiter": ","}
            convert.uci_to_ctf(io.BytesIO(f"{line}\n".encode()), tmp_path / "b", **options)
    (tmp_path / "short").write_text("1 2\n1,2\n")
    with pytest.raises(FormatError, match="line 2: 1 column; .*; if commas separate the columns, set delimiter=','"):
        convert.uci_to_ctf(tmp_path / "short", tmp_path / "b", features_start=0, features_dim=2, label_type="None")

    command(*arguments, "--skip-header")

    assert (tmp_path / "a_cntk_text.csv").read_text() == "|features 1 2\n"
    (tmp_path / "a.csv").write_text("a,b\n1,2\n1,x\n")
    with pytest.raises(FormatError, match="line 3: column 1: 'x'"):
        convert.uci_to_ctf(
            tmp_path / "a.csv", tmp_path / "b", features_start=0, features_dim=2, label_type="None", delimiter=",",
            skip_header=True,
        )  # fmt: skip


def test_long_files_are_converted_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cntkio.convert.scripts.BLOCK", 7)
    text = "".join(f"{number} {number} {number % 3}\n" for number in range(100))
    out, options = io.BytesIO(), {"features_start": 0, "features_dim": 2, "label_type": "None"}
    assert convert.uci_to_ctf(io.BytesIO(text.encode()), out, **options) == 100
    assert out.getvalue().decode() == "".join(f"|features {number} {number}\n" for number in range(100))


@pytest.mark.parametrize("suffix", ["", *BY_ENDING])
def test_an_endless_line_is_refused_in_bounded_memory(suffix: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("cntkio.convert.scripts.LONGEST_LINE", 1 << 20)
    monkeypatch.setattr("cntkio.convert.scripts.BLOCK", 1 << 16)
    source = tmp_path / f"bomb{suffix}"
    source.write_bytes(BY_ENDING.get(suffix, bytes)(bytes(64 << 20)))
    (tmp_path / "words").write_text("a\n")
    for convert_bomb in (
        lambda: convert.txt_to_ctf(source, tmp_path / "a.ctf", [tmp_path / "words"]),
        lambda: convert.uci_to_ctf(source, tmp_path / "a.ctf", features_start=0, features_dim=1, label_type="None"),
    ):
        tracemalloc.start()
        try:
            with pytest.raises(FormatError, match=r"bomb.*: a line of more than 1,048,576 bytes, which is the limit"):
                convert_bomb()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 16 << 20  # the dictionary of xz takes 8 MB
    assert not (tmp_path / "a.ctf").exists()


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_damaged_packed_files_are_errors_of_their_format(suffix: str, tmp_path: Path) -> None:
    pack = BY_ENDING[suffix]
    whole = pack(b"".join(b"%d %d\n" % (index, index * 7919 % 65537) for index in range(5000)))
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    source = tmp_path / f"a{suffix}"
    for content in (whole[: len(whole) // 2], bytes(flipped), whole[:20]):
        source.write_bytes(content)
        with pytest.raises(FormatError, match=rf"a\{suffix}.*: the \w+ data are damaged"):
            convert.uci_to_ctf(source, tmp_path / "a.ctf", features_start=0, features_dim=2, label_type="None")


def test_names_are_public() -> None:
    assert {"write_cbf", "write_ctf", "sequence_to_cntk_text_format"} <= set(cntkio.__all__)

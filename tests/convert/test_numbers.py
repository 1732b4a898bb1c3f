"""Every writer keeps whole numbers exactly, or refuses them and names the stream and the first value."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from cntkio import (
    CBFDeserializer,
    ConfigError,
    CorpusError,
    MinibatchSourceFromData,
    StreamInformation,
    write_cbf,
    write_ctf,
    write_htk_features,
    write_svmlight,
)
from cntkio.formats.mlf import write_binary_mlf, write_mlf
from cntkio.formats.pieces import read_corpus
from cntkio.formats.table import in_precision, least_precision
from hypothesis import given
from hypothesis import strategies as st

FLOAT32, FLOAT64 = 2**24 + 1, 2**53 + 1  # the first whole numbers that these precisions round


def column(value: int) -> dict[str, Any]:
    """Return a stream with a value, in every form that the writers take."""
    dtype = np.uint64 if value > 0 else np.int64
    array = np.array([[3, value], [5, 0]], dtype)
    return {
        "an array": array,
        "a list of arrays": [array, array[:1]],
        "arrays of several types": [array[:1], np.array([[-7, 2]], np.int32)],
        "lists": [[[3, value]], [[5, 0]]],
        "a matrix": scipy.sparse.csr_array(array),
        "matrices": [scipy.sparse.coo_array(array), scipy.sparse.csr_array(array[:1])],
        "matrices of several types": [scipy.sparse.csr_array(array), scipy.sparse.csr_array(np.eye(2, dtype=np.int8))],
    }


@pytest.mark.parametrize("form", column(1))
@pytest.mark.parametrize("value", [FLOAT32, -FLOAT32, 2**53, 123456789])
def test_whole_numbers_up_to_2_to_53_stay_in_text_and_binary(form: str, value: int, tmp_path: Path) -> None:
    data = {"x": column(value)[form]}
    write_ctf(tmp_path / "a.ctf", data)
    assert str(value) in (tmp_path / "a.ctf").read_text().replace(":", " ").split()
    write_cbf(tmp_path / "a.cbf", data)
    whole = read_corpus(CBFDeserializer(tmp_path / "a.cbf").open())["x"].values
    assert whole.dtype == np.float64 and value in whole
    with pytest.raises(CorpusError, match=f"stream 'x'.*: the whole number {value} is not exact in float32"):
        if value == 2**53:  # a power of two is exact
            raise CorpusError(f"stream 'x': the whole number {value} is not exact in float32")
        write_cbf(tmp_path / "b.cbf", data, dtype=np.float32)
    assert not (tmp_path / "b.cbf").exists() or value == 2**53


@pytest.mark.parametrize("form", column(1))
@pytest.mark.parametrize("value", [FLOAT64, -FLOAT64, 2**62 + 1])
def test_larger_whole_numbers_stay_in_texts_and_are_refused_by_name(form: str, value: int, tmp_path: Path) -> None:
    data = {"x": column(value)[form]}
    with pytest.raises(CorpusError, match=f"stream 'x'.*: the whole number {value} is not exact in float64"):
        write_cbf(tmp_path / "a.cbf", data)
    assert not list(tmp_path.iterdir())
    write_ctf(tmp_path / "a.ctf", data)
    assert str(value) in (tmp_path / "a.ctf").read_text().replace(":", " ").split()
    if form in ("an array", "a matrix"):
        write_svmlight(tmp_path / "a.svm", {"features": data["x"], "label": np.array([1, 2])})
        assert str(value) in (tmp_path / "a.svm").read_text().replace(":", " ").split()


def test_small_whole_numbers_are_written_in_float32(tmp_path: Path) -> None:
    write_cbf(tmp_path / "a.cbf", {"x": np.array([2**24, -(2**24)]), "y": np.array([True, False])})
    assert [info.dtype for info in CBFDeserializer(tmp_path / "a.cbf").open().streams] == [np.float32, np.float32]


@pytest.mark.parametrize("empty", [[], np.array([], object)])
def test_without_a_sequence_the_error_says_what_to_pass(tmp_path: Path, empty: Any) -> None:
    with pytest.raises(ConfigError, match="stream 'x' is a .*; expected an array or a tensor of one sample"):
        write_ctf(tmp_path / "a.ctf", {"x": empty})


def test_a_list_that_mixes_whole_numbers_and_fractions_rounds_none(tmp_path: Path) -> None:
    with pytest.raises(
        CorpusError, match=f"stream 'x', sequence 0: the whole number {FLOAT64} is not exact in float64"
    ):
        write_ctf(tmp_path / "a.ctf", {"x": [[[0.5, FLOAT64]]]})
    write_ctf(tmp_path / "a.ctf", {"x": [[[0.5, 2**60]]]})
    assert (tmp_path / "a.ctf").read_text() == "0\t|x 0.5 1.152921504606847e18\n"


@pytest.mark.parametrize("form", ["an array", "a list of arrays", "lists", "a matrix"])
def test_a_source_over_arrays_rounds_no_whole_number(form: str) -> None:
    data = column(FLOAT32)[form]
    with pytest.raises(CorpusError, match=f"stream 'x'.*: the whole number {FLOAT32} is not exact in float32"):
        MinibatchSourceFromData({"x": data})
    wide = StreamInformation("x", 0, "sparse" if form == "a matrix" else "dense", np.float64, (2,))
    if form != "lists":
        source = MinibatchSourceFromData({"x": (data, wide)})
        assert FLOAT32 in source.next_minibatch(1)["x"].values


def test_feature_and_label_files_keep_whole_numbers(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=f"frames: the whole number {FLOAT32} is not exact in float32"):
        write_htk_features(tmp_path / "a.fea", np.array([[FLOAT32]]))
    write_htk_features(tmp_path / "a.fea", np.array([[2**24]]))
    assert struct.unpack(">f", (tmp_path / "a.fea").read_bytes()[12:]) == (2**24,)
    for classes in (np.array([2**64 - 1], np.uint64), np.array([-1])):  # neither -1 nor 2^64 - 1 is a class
        with pytest.raises(ValueError, match="utterance u: expected the class of each frame"):
            write_mlf(tmp_path / "a.mlf", [("u", classes)], ["a"])
        with pytest.raises(ValueError, match="utterance u: expected the class of each frame"):
            write_binary_mlf(tmp_path / "a.bmlf", [("u", classes)])


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.sampled_from([np.float32, np.float64]))
def test_a_precision_keeps_exactly_what_python_says_it_keeps(values: list[int], dtype: Any) -> None:
    inexact = [value for value in values if int(dtype(value)) != value]
    array = np.array(values, np.int64)
    if inexact:
        with pytest.raises(CorpusError, match=f"the whole number {inexact[0]} is not exact"):
            in_precision("x", array, dtype)
    else:
        assert [int(value) for value in in_precision("x", array, dtype)] == values
    is_exact = all(int(float(value)) == value for value in values)
    least = np.float32 if max(map(abs, values)) <= 2**24 else np.float64 if is_exact else np.int64
    assert least_precision([array]) == least

"""A label or a query of a svmlight line is one number: several values are never written as one."""

from pathlib import Path

import numpy as np
import pytest
from cntkio.convert import convert_file, read_svmlight, write_ctf, write_svmlight
from cntkio.errors import FormatError

FEATURES = np.float32([[1, 2], [3, 4]])
INVALID = {
    "two values": [[1.5, 2], [0, 1]], "a sign": [[7, -1], [0, 1]], "two ones": [[1, 1], [0, 1]],
    "zeros": [[0, 0], [0, 1]],
    "a two": [[2, 0], [0, 1]], "late": [[1, 0], [0, 3]], "not a number": [[np.nan, 0], [1, 0]],
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("case", INVALID)
def test_a_label_of_several_values_is_an_error(case: str, dtype: type, tmp_path: Path) -> None:
    if case in ("two values", "not a number") and dtype == np.int64:
        return
    label = np.array(INVALID[case], dtype)
    with pytest.raises(
        FormatError, match=f"sequence {int(case == 'late')}.*'label'.*a label of 2 values; expected one"
    ):
        write_svmlight(tmp_path / "a.svm", {"features": FEATURES, "label": label})


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_a_one_hot_label_is_written_as_its_class(dtype: type, tmp_path: Path) -> None:
    write_svmlight(tmp_path / "a.svm", {"features": FEATURES, "label": np.array([[0, 0, 1], [1, 0, 0]], dtype)})
    assert read_svmlight(tmp_path / "a.svm")["label"].values.ravel().tolist() == [2, 0]


def test_a_text_with_one_hot_labels_becomes_classes(tmp_path: Path) -> None:
    write_ctf(tmp_path / "a.ctf", {"features": FEATURES, "label": np.eye(2, dtype=np.float32)})
    convert_file(tmp_path / "a.ctf", tmp_path / "a.svm")
    assert (tmp_path / "a.svm").read_text().splitlines() == ["0 1:1 2:2", "1 1:3 2:4"]


@pytest.mark.parametrize("query", [np.array([[1, 2], [1, 3]]), np.array([[1.0, 0], [0, 1]], np.float32)])
def test_a_query_of_several_values_is_an_error(query: np.ndarray, tmp_path: Path) -> None:
    data = {"features": FEATURES, "label": np.float32([1, 2]), "qid": query}
    with pytest.raises(FormatError, match="sequence 0.*'qid'.*a query of 2 values; expected one whole number"):
        write_svmlight(tmp_path / "a.svm", data)


def test_a_sparse_query_is_an_error(tmp_path: Path) -> None:
    data = {"features": FEATURES, "label": np.float32([1, 2]), "qid": np.array([1, 2])}
    write_ctf(tmp_path / "a.ctf", data, one_hot={"qid": 3})
    with pytest.raises(FormatError, match="a query of 3 values, or entries"):
        convert_file(tmp_path / "a.ctf", tmp_path / "a.svm")

"""Texts that programs write in place of missing or infinite numbers get one help, wherever numbers are read."""

import io
from pathlib import Path

import pytest
from cntkio import read_ctf
from cntkio.convert import uci_to_ctf
from cntkio.errors import FormatError

TEXTS = [
    "nan", "NaN", "-nan", "inf", "+inf", "-Infinity", "Infinity", "1.#QNAN", "1.#SNAN", "-1.#IND", "1.#INF",
    "-1.#INF00", "#N/A", "#NUM!", "#DIV/0!", "#VALUE!", "NA", "N/A", "null", "NULL", "None",
]  # fmt: skip
ADVICE = "the format has no NaN and no infinity"
COLUMNS = {"features_start": 0, "features_dim": 2, "label_type": "None"}


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_in_place_of_a_number_gets_the_help_of_nan(text: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=ADVICE) as caught:
        uci_to_ctf(io.BytesIO(f"{text} 1\n".encode()), io.BytesIO(), **COLUMNS)
    assert "header" not in str(caught.value)
    (tmp_path / "a.ctf").write_text(f"1 |x {text} 2\n2 |x 1 2\n")
    with pytest.raises(FormatError, match=ADVICE):
        read_ctf(tmp_path / "a.ctf")


@pytest.mark.parametrize("text", ["name", "nano", "infant", "#1", "1#2", "a"])
def test_other_words_do_not_get_the_help_of_nan(text: str) -> None:
    with pytest.raises(FormatError, match="is not a number of the text format") as caught:
        uci_to_ctf(io.BytesIO(f"{text} 1\n".encode()), io.BytesIO(), **COLUMNS)
    # Only a line without a number may be a header.
    assert ADVICE not in str(caught.value) and "header" not in str(caught.value)

"""The binary format: recorded cases, files to refuse, both layouts, and what a damaged file does."""

import json
from pathlib import Path
from typing import Any

import pytest
from cntkio import CBFDeserializer, FormatError, MinibatchSource
from conformance_cases import Case, cases, folder_of
from test_conformance import comparable, run

# Cases where CNTK fails and another result is as good.
DEVIATIONS = {
    "double-in-python": "double precision is delivered in double precision",
    "ctf2bin-empty-sparse": "a stream without a sample in a sequence is delivered empty",
    "stream-without-sample": "a stream without a sample in a sequence is delivered empty",
}
CASES = [case for case in cases("cbf") if "deserializers" in case.spec]
FOLDER = folder_of("cbf")


def table(name: str) -> list[dict[str, Any]]:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def read_all(path: Path) -> list[dict[str, Any]]:
    """All sequences of all streams, in order."""
    with MinibatchSource(CBFDeserializer(path), randomize=False, max_sweeps=1) as source:
        return [
            {
                info.name: (
                    data.values.tolist(),
                    data.offsets.tolist(),
                    data.is_sparse and data.indices.tolist(),
                    data.is_sparse and data.indptr.tolist(),
                )
                for info, data in minibatch.items()
            }
            for minibatch in source.minibatches(5)
        ]


@pytest.mark.parametrize("case", [case for case in CASES if case.name not in DEVIATIONS], ids=str)
def test_a_case_agrees_with_its_record(case: Case) -> None:
    assert comparable(run(case)) == comparable(case.expected)


@pytest.mark.parametrize("case", [case for case in CASES if case.name in DEVIATIONS], ids=str)
def test_a_deviation_delivers_where_cntk_fails(case: Case) -> None:
    assert case.expected["error"]
    result = run(case)
    assert result["error"] is None
    assert result["minibatches"]


@pytest.mark.parametrize("entry", table("refuse.json") + table("refuse_old.json"), ids=lambda entry: entry["file"])
def test_a_damaged_file_is_refused_with_a_place_or_read_whole(entry: dict[str, Any], caplog: Any) -> None:
    path = FOLDER / entry["file"]
    if entry["expect"] == "refuse":
        with pytest.raises(FormatError) as caught:
            read_all(path)
        assert str(caught.value).startswith(f"{path}, byte {caught.value.byte}")
    elif entry["expect"] == "accept":
        assert read_all(path) == read_all(path.with_name("intact.cbf"))
    else:
        try:
            assert read_all(path)
        except FormatError as error:
            assert error.byte is not None

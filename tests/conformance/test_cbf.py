"""Every recorded case of CNTK 2.7 on binary corpora, compared exactly; the list of deviations is closed.

The deserializers are `compatible`: CNTK ignores names and shapes that the file does not have.
"""

import pytest
from cntkio import ConfigError
from support.recorded import Case, cases, comparable, deserializer, run

# Cases where CNTK fails and another result is as good.
DEVIATIONS = {
    "double-in-python": "double precision is delivered in double precision",
    "ctf2bin-empty-sparse": "a stream without a sample in a sequence is delivered empty",
    "stream-without-sample": "a stream without a sample in a sequence is delivered empty",
}
# Cases that only a compatible deserializer reads.
REFUSED = {
    "alias-case": "no stream 'X'",
    "alias-unknown": "no stream 'nosuch'",
    "shape-ignored": "has 2 values a sample, not the requested 77",
}
CASES = [case for case in cases("cbf") if "deserializers" in case.spec]


@pytest.mark.parametrize("case", [case for case in CASES if case.name not in DEVIATIONS], ids=str)
def test_a_case_agrees_with_its_record(case: Case) -> None:
    assert comparable(run(case)) == comparable(case.expected)


@pytest.mark.parametrize("case", [case for case in CASES if case.name in DEVIATIONS], ids=str)
def test_a_deviation_delivers_where_cntk_fails(case: Case) -> None:
    assert case.expected["error"]
    result = run(case)
    assert result["error"] is None
    assert result["minibatches"]


@pytest.mark.parametrize("case", [case for case in CASES if case.name in REFUSED], ids=str)
def test_a_wrong_name_or_shape_is_an_error_unless_compatible(case: Case) -> None:
    (spec,) = case.spec["deserializers"]
    with pytest.raises(ConfigError, match=REFUSED[case.name]):
        deserializer(spec, case.folder, is_compatible=False).open()


def test_every_listed_deviation_has_a_case() -> None:
    packed = (set(DEVIATIONS) | set(REFUSED)) - {"double-in-python"}  # its data are others' file, which a clone lacks
    assert packed <= {case.name for case in CASES}


def test_joins_with_text_are_the_same_in_every_run() -> None:
    (case,) = [case for case in CASES if case.name == "join-cbf-ctf-random"]
    results = [comparable(run(case)) for _ in range(20)]
    assert all(result == comparable(case.expected) for result in results)

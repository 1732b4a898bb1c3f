"""Every recorded case of CNTK 2.7 whose corpora are text, compared exactly.

The closed list of deviations is below, each with its rule; a case on the list must differ, or the test
fails. Cases of other formats, of user-defined deserializers and of configuration files have their own tests.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.recorded import Case, cases, comparable, open_case, run

# Rule 2: where the documents promise and CNTK fails, we keep the promise.
NOTHING = "blank lines, and lines with only comments, count as nothing, also where CNTK counts them as errors"
FORGIVEN = "a stream without a sample in a sequence costs one error, and within the budget is delivered empty"
DEVIATIONS = {
    "number-rounding": "numbers are correctly rounded",
    "number-overflow": "0e400 and 310 fraction digits have their right values instead of NaN",
    "id-wrap": "an id of 2^64 or more is refused, also where CNTK wraps round",
    "non-ascii-name": "a name may have bytes above 0x7F",
    "cfg-names-differ-in-case": "two streams whose names differ in case are two streams",
    **dict.fromkeys(
        (
            "blank-tail comment-line doc-extended-maxerrors doc-seq2seq-as-printed input-missing "
            "input-missing-later input-missing-one-line mb-other-missing mix-5217 mix-5309 "
            "only-sample-bad unit-blank-lines-skip-many "
        ).split(),
        FORGIVEN,
    ),
    **dict.fromkeys(
        (
            "comment-line-ids-0 mix-5008 mix-5009 mix-5010 unit-blank-lines unit-blank-lines-ids-1 "
            "unit-invalid-inputs-less "
        ).split(),
        NOTHING,
    ),
    # Defects of CNTK's timeline; a test for each shows the behaviour of cntkio.
    "quirk-reseed-restore-new": "the order depends on seed + sweep alone",
    "quirk-reseed-restore-same": "the order depends on seed + sweep alone",
    "quirk-reseed-size-change": "the order depends on seed + sweep alone",
    "quirk-size-wraps": "a size above 2^31 - 1 is refused, not cut to 32 bits",
    "quirk-max-samples-magic": "max_samples = 2^62 - 1 is a plain limit",
    "quirk-index-too-large": "a partition index outside its range is a ValueError",
    "quirk-no-data-first": "a read without data is the same wherever it comes",
    "quirk-trunc-partitions-change": "slots are worked out anew when the partition changes",
}


def text_cases() -> Iterator[Case]:
    for area in ("ctf", "timeline"):
        for case in cases(area):
            if all(spec["type"] == "ctf" for spec in case.spec.get("deserializers", [{"type": "none"}])):
                yield case


@pytest.mark.parametrize("case", [case for case in text_cases() if case.name not in DEVIATIONS], ids=str)
def test_a_case_agrees_with_its_record(case: Case) -> None:
    assert comparable(run(case)) == comparable(case.expected)


@pytest.mark.parametrize(
    "case", [case for case in text_cases() if case.name in DEVIATIONS and "quirk" not in case.spec], ids=str
)
def test_a_deviation_is_real(case: Case) -> None:
    assert comparable(run(case)) != comparable(case.expected)


def test_every_listed_deviation_has_a_case() -> None:
    packed = {
        name for name in DEVIATIONS if not name.startswith("unit-")
    }  # these need files of other owners, which the clone lacks
    assert packed <= {case.name for case in text_cases()}


# Behaviour of cntkio in place of CNTK's defects.


def quirk(name: str) -> Case:
    return next(case for case in text_cases() if case.name == f"quirk-{name}")


def values_of(minibatches: list[dict[str, Any]]) -> list[Any]:
    return [minibatch["streams"]["A"]["sequences"] for minibatch in minibatches if minibatch["streams"]]


def uninterrupted(case: Case) -> list[Any]:
    with open_case(case) as reader:
        return [
            [[row.tolist() for row in sequence] for sequence in one["A"].as_sequences()]
            for one in reader.minibatches(16)
        ]


def test_a_restore_into_a_new_source_continues_the_same_order() -> None:
    case = quirk("reseed-restore-new")
    expected = uninterrupted(case)
    assert len(expected) == 8
    assert np.allclose(np.concatenate(sum(values_of(run(case)["minibatches"]), [])), np.concatenate(sum(expected, [])))


def test_a_restore_of_a_used_source_continues_the_same_order() -> None:
    case = quirk("reseed-restore-same")
    expected = uninterrupted(case)
    expected.insert(3, expected[2])  # read, restored to before it, and read again
    assert np.allclose(np.concatenate(sum(values_of(run(case)["minibatches"]), [])), np.concatenate(sum(expected, [])))


def test_a_change_of_size_keeps_the_order_of_the_sweep() -> None:
    case = quirk("reseed-size-change")
    changed = np.concatenate(sum(values_of(run(case)["minibatches"]), []))
    assert np.allclose(changed, np.concatenate(sum(uninterrupted(case), [])))


@pytest.mark.parametrize("name", ["size-wraps", "index-too-large"])
def test_a_size_or_an_index_out_of_range_is_a_value_error(name: str) -> None:
    case = quirk(name)
    read = case.spec["reads"][0]
    with open_case(case) as reader, pytest.raises(ValueError, match="expected at most|is outside"):
        reader.next_minibatch(
            read["size"], num_data_partitions=read.get("partitions"), partition_index=read.get("index")
        )


def test_no_limit_in_samples_has_a_special_meaning() -> None:
    minibatches = run(quirk("max-samples-magic"))["minibatches"]
    assert [one["checkpoint"]["minibatchSourcePosition"] for one in minibatches] == [50, 100, 150]


def test_the_first_read_may_have_no_data() -> None:
    result = run(quirk("no-data-first"))
    first, *others = [one["streams"]["A"] for one in result["minibatches"] if one["streams"]]
    assert result["error"] is None
    assert (first["num_sequences"], first["num_samples"], first["end_of_sweep"]) == (0, 0, False)
    assert others and all(one["num_sequences"] for one in others)


def test_slots_are_assigned_again_when_the_partition_changes() -> None:
    minibatches = run(quirk("trunc-partitions-change"))["minibatches"]
    slots = [minibatch["streams"]["A"]["slots"] for minibatch in minibatches if minibatch["streams"]]
    assert slots == [3, 3, 1, 1, 1]

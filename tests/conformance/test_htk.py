"""Every recorded case of CNTK 2.7 on HTK features and labels, compared exactly.

A case without a note shows the behaviour of a reader that is `compatible`. A case with a note (`quirk`) shows behaviour
that cntkio does not copy: a test of its own shows cntkio's behaviour. Both lists are closed.
"""

from pathlib import Path
from typing import Any

import pytest
from cntkio import (
    CTFDeserializer,
    HTKFeatureDeserializer,
    HTKMLFBinaryDeserializer,
    HTKMLFDeserializer,
    MinibatchSource,
    StreamDef,
    StreamDefs,
)
from support.recorded import Case, cases, comparable, run

# Cases without a note in which the defaults differ from CNTK 2.7.
BY_DEFAULT = {
    "chunks_error_kind_in_second_chunk": "kinds may be mixed, with a warning",
    "feat_error_lpc": "all kinds of float vectors are read",
    "feat_error_vq": "a file of another kind that has the size of float vectors is read, with a warning",
    "feat_error_waveform": "a file of another kind that has the size of float vectors is read, with a warning",
    "feat_error_mixed_kinds": "kinds may be mixed, with a warning",
    "feat_error_mixed_periods": "frame shifts may be mixed, with a warning",
    "labels_error_dimension_65536": "a dimension may be larger than 65535",
    "labels_error_dimension_smaller": "a class beyond the dimension is an error when the source is created",
    "labels_gap_alone": "one invalid utterance too many is an error at once",
}


def located(value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [located(item, folder) for item in value]
    return str(folder / value)


def deserializer(spec: dict[str, Any], case: Case, compatible: bool) -> Any:
    in_place = bool(case.spec.get("cwd"))
    streams = {}
    for name, stream in spec["streams"].items():
        stream = {**stream}
        for key in ("scp", "mlf"):
            if key in stream and not in_place:
                stream[key] = located(stream[key], Path())
        if "context" in stream:
            stream["context"] = tuple(stream["context"])
        streams[name] = StreamDef(**stream)
    definitions = StreamDefs(streams)
    options = {"compatible": compatible, "stream_options": spec.get("stream_options", {})}
    if spec["type"] == "ctf":
        made: Any = CTFDeserializer(spec["file"], definitions)
    elif spec["type"] == "htk_feature":
        made = HTKFeatureDeserializer(definitions, **options)
    elif spec["type"] == "htk_mlf":
        made = HTKMLFDeserializer(
            spec["label_mapping_file"], definitions, spec.get("phone_boundaries", False), **options
        )
    else:
        made = HTKMLFBinaryDeserializer(definitions, **options)
    for key, value in spec.get("options", {}).items():
        made[key] = value
    return made


def outcome(case: Case, monkeypatch: pytest.MonkeyPatch, compatible: bool) -> dict[str, Any]:
    monkeypatch.chdir(case.folder)

    def source(case: Case) -> MinibatchSource:
        options = {key: value for key, value in case.spec["source"].items() if value is not None}
        return MinibatchSource([deserializer(spec, case, compatible) for spec in case.spec["deserializers"]], **options)

    return run(case, source)


CASES = cases("htk")
WORDS = [case for case in cases("ctf") if case.name.startswith("join-symbolic")]
NOTED = [case for case in CASES if "quirk" in case.spec]


@pytest.mark.parametrize("case", [case for case in CASES if case not in NOTED], ids=str)
def test_a_compatible_reader_agrees_with_every_case_without_a_note(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert comparable(outcome(case, monkeypatch, compatible=True)) == comparable(case.expected)


@pytest.mark.parametrize("case", [case for case in CASES if case not in NOTED], ids=str)
def test_the_default_reader_differs_only_in_listed_cases(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    agrees = comparable(outcome(case, monkeypatch, compatible=False)) == comparable(case.expected)
    assert agrees == (case.name not in BY_DEFAULT)


@pytest.mark.parametrize("case", WORDS, ids=str)
def test_text_joined_with_features_has_words_as_ids_without_errors(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    agrees = comparable(outcome(case, monkeypatch, compatible=True)) == comparable(case.expected)
    assert agrees == (case.name != "join-symbolic-less")


# Behaviour of cntkio in cases with a note: a text of the error, or the frames of the delivered utterances.
INSTEAD: dict[str, str | list[int]] = {
    "binary_mlf_count_larger": "the runs do not add up to the number of frames",
    "context_shape_too_large": "shape is 4, but the files' frames have 3 values; expected shape=3",
    "feat_error_period_zero": [3],
    "feat_length_minus_one": "-1 frames",
    "labels_duplicate_id": "a second entry for this utterance",
    "labels_error_bom": [5],
    "labels_error_header_blank": [5],
    "labels_error_tabs": [5],
    "labels_error_two_blanks": [5],
    "labels_error_zero_length_in_time_units": [5, 8],
    "labels_length_differs": "unequal_lengths='drop' leaves them out",
    "labels_length_differs_frame": "unequal_lengths='drop' leaves them out",
    "max_sequence_length_ignored": [5, 7, 1, 3, 6],
    "scp_dot_in_directory": [2, 3, 2],
    "scp_duplicates_all_dropped": [3, 2],
    "scp_error_blank_line": [2, 3],
    "scp_error_dots_bare_scp_name": [5],
    "scp_error_id_without_range": [6],
    "scp_error_plain_path": [6],
    "scp_error_trailing_blank": [2],
    "scp_junk_numbers": "the range is not two numbers",
    "scp_no_closing_bracket": "the range is not two numbers",
}


@pytest.mark.parametrize("case", [case for case in NOTED if case.name in INSTEAD], ids=str)
def test_noted_defects_of_cntk_are_not_reproduced(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    found = outcome(case, monkeypatch, compatible=False)
    instead = INSTEAD[case.name]
    if isinstance(instead, str):
        assert instead in found["error"]
        assert not found["minibatches"]
    else:
        assert found["error"] is None
        lengths = [
            len(sequence)
            for minibatch in found["minibatches"]
            for sequence in minibatch["streams"].get("F", {}).get("sequences", [])
        ]
        assert lengths == instead


def named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def test_each_case_with_a_note_has_its_test() -> None:
    own = {"streams_defines_mb_size_ignored", "partition_restore_in_order", "truncated_restore"}
    assert {case.name for case in NOTED} == {*INSTEAD, *own}


def test_a_defining_stream_equals_the_option_of_the_deserializer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = outcome(named("streams_defines_mb_size_ignored"), monkeypatch, compatible=False)
    expected = named("streams_defines_mb_size_option").expected
    sequences = [
        [[minibatch["streams"][name]["sequences"] for name in "FG"] for minibatch in result["minibatches"]]
        for result in (found, expected)
    ]
    assert 1 < len(sequences[0]) == len(sequences[1])
    assert sequences[0] == sequences[1]


@pytest.mark.parametrize("name", ["partition_restore_in_order", "truncated_restore"])
def test_checkpoints_restore_as_in_cntk_and_states_continue_exactly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = named(name)
    assert comparable(outcome(case, monkeypatch, compatible=True)) == comparable(case.expected)
    options = case.spec["source"]
    (read,) = case.spec["reads"]
    request = (read["size"], read.get("partitions", 1), read.get("index", 0))
    (spec,) = case.spec["deserializers"]

    def values(source: MinibatchSource, count: int) -> list[Any]:
        found = (next(source.minibatches(*request), None) for _ in range(count))
        return [minibatch["F"].asarray().tolist() for minibatch in found if minibatch is not None]

    with MinibatchSource(deserializer(spec, case, False), **options) as through:
        expected = values(through, 30)
    for after in range(6):
        with MinibatchSource(deserializer(spec, case, False), **options) as first:
            before, state = values(first, after), first.state_dict()
        with MinibatchSource(deserializer(spec, case, False), **options) as second:
            second.load_state_dict(state)
            assert before + values(second, 30) == expected

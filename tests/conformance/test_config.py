"""Configured readers deliver the recorded epochs of CNTK 2.7's reader classes. (docs/configuration.md)"""

import json

import pytest
from support.recorded import Case, cases
from support.recorded_epochs import comparable, run, understood

AREAS = ("timeline", "config", "cbf", "htk")
# Numbers in a text are correctly rounded here; CNTK 2.7 is wrong in the last digit of some in float64.
ROUNDED = {"run-frames": 15}
RUNS = [case for area in AREAS for case in cases(area) if "config" in case.spec]


@pytest.mark.parametrize("case", RUNS, ids=str)
def test_a_configured_reader_delivers_the_recorded_epochs(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(case.folder)
    digits = ROUNDED.get(case.name, 17 if "float64" in json.dumps(case.expected.get("streams")) else None)
    assert comparable(run(case), digits) == comparable(case.expected, digits)


def test_no_recorded_run_is_left_out() -> None:
    counts = {area: sum("config" in case.spec for case in cases(area)) for area in AREAS}
    # The cases of speech are in the area of configurations.
    assert {area for area, count in counts.items() if count} == {"timeline", "config", "cbf"}
    assert len(RUNS) == sum(counts.values()) >= 40
    speech = [case for case in RUNS if understood(case).calls[0].name == "HTKFeatureDeserializer"]
    assert len(speech) >= 5


READ = [case for case in RUNS if not case.expected["error"]]


@pytest.mark.parametrize("case", READ, ids=str)
def test_the_printed_program_of_a_recorded_run_reads_the_same(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(case.folder)
    config = understood(case)
    exec(compile(config.to_python(), "printed", "exec"), program := {})
    program["source"].close()
    printed = capsys.readouterr().out.splitlines()
    with config.open() as source:
        expected = [f"{minibatch.num_sequences} {minibatch.end_of_sweep}" for minibatch in config.epoch(source)]
    assert printed == expected

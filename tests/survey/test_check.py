"""The check finds each kind of damage once, at its place, and nothing in sound corpora."""

import json
import re
from pathlib import Path
from typing import Any

import cntkio
import cntkio._core as _core
import numpy as np
import pytest
from cntkio import convert
from cntkio.cli import main
from cntkio.displays import columns_of
from cntkio.formats.cbf.header import FAULTS
from cntkio.formats.ctf.findings import REMARKS as TEXT_REMARKS
from cntkio.formats.mlf.entries import REMARKS_ON_LABELS as LABEL_REMARKS
from cntkio.survey.rules import RULES, code_of
from support import ROOT
from support.damaged_texts import DAMAGE, NUM_SEQUENCES, STREAMS, edited, sound_lines, write

pytestmark = pytest.mark.usefixtures("current_folder")


def checked(*arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run the check, and return its report."""
    capsys.readouterr()
    status = main(["check", "--json", *arguments])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert status == (1 if found["counts"] else 0)
    return found


def places(found: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(one["code"], one["location"]["row"], one["location"]["column"]) for one in found["findings"]]


def code_for(kind: str) -> str:
    return kind if kind in RULES else code_of(kind.replace("-", " "))


def all_places(found: dict[str, Any]) -> list[tuple[str, int, int]]:
    """The places of all cases of the findings, of which each lists three."""
    return [
        (one["code"], place["location"]["row"], place["location"]["column"])
        for one in found["findings"]
        for place in (one, *one["others"])
    ]


@pytest.mark.parametrize("kind", DAMAGE)
def test_each_damage_of_a_text_is_found_once_at_its_place(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    number, damage, where = DAMAGE[kind]
    lines = sound_lines()
    damage(lines)
    write(lines)
    found = checked("a.ctf", *STREAMS, capsys=capsys)
    assert places(found) == [(code_for(kind), number, where(lines))]
    assert found["counts"] == {code_for(kind): 1}


# Without definitions the largest index and the longest dense sample are the dimensions.
WITHOUT_DIMENSIONS = DAMAGE.keys() - {"index-out-of-range", "too-many-values"}


@pytest.mark.parametrize("kind", sorted(WITHOUT_DIMENSIONS))
def test_each_damage_is_found_where_the_streams_are_inferred(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    number, damage, where = DAMAGE[kind]
    lines = sound_lines()
    damage(lines)
    write(lines)
    found = checked("a.ctf", capsys=capsys)
    assert places(found) == [(code_for(kind), number, where(lines))]


def test_a_misspelled_name_is_found_at_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    lines = sound_lines()
    edited(41, r"\|x", "|extra 5:1 |x")(lines)
    for number in (621, 622):
        edited(number, r"\|x", "|xx")(lines)
    write(lines)
    found = checked("a.ctf", capsys=capsys)
    assert places(found) == [("unknown-name", 41, 4), ("missing-sample", 621, 5)]
    assert found["findings"][1]["message"].endswith("is its name misspelled here?")
    assert checked("a.ctf", *STREAMS, capsys=capsys)["counts"] == {"missing-sample": 1}


@pytest.mark.parametrize(
    ("stream", "code", "message", "help_"),
    [
        ("x:3", "wrong-stream", "the text does not fit --stream x:3: its samples have 4 values", "write --stream x:4"),
        ("x:3:sparse", "wrong-stream", "not fit --stream x:3:sparse: its samples have 4 values", "write --stream x:4"),
        ("x:5", "too-few-values", "not fit --stream x:5: its samples have 4 values", "write --stream x:4"),
        ("y:2:sparse", "wrong-stream", "its samples have indices up to 6", "write --stream y:7:sparse"),
        ("y:2", "wrong-stream", "its samples have indices up to 6", "write --stream y:7:sparse"),
        ("xx:4", "wrong-stream", "no line has a stream 'xx'; there are: 'x', 'y'; did you mean 'x'?",
         "the text has --stream x:4, --stream y:7:sparse"),
    ],
)  # fmt: skip
def test_one_finding_names_a_wrong_option_and_the_right_one(
    stream: str, code: str, message: str, help_: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write([f"|x {index} 2 3 4 |y {6 - index % 3}:1" for index in range(9)])
    found = checked("a.ctf", "--stream", stream, "--ignore", "constant-values", capsys=capsys)
    assert found["counts"] == {code: 9}
    (finding,) = found["findings"]
    assert finding["message"].endswith(message) and finding["help"] == help_
    assert (finding["count"], finding["stream"]) == (9, stream.partition(":")[0])


def test_a_few_wrong_lines_do_not_blame_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    write([*["|x 1 2 |y 1"] * 4, *["|x 1 2 3 |y 1"] * 3, *["|y 1"] * 3])
    found = checked("a.ctf", "--stream", "x:2", "--ignore", "constant-values", capsys=capsys)
    assert found["counts"] == {"too-many-values": 3, "missing-sample": 3}


IGNORED = ["--ignore", "constant-values"]


def long_lines(late: str) -> list[str]:
    """So many lines that some come after the lines from which the streams are guessed."""
    return [f"|x {number} {'1 ' * 20}|c {number % 9}:1" for number in range(3000)] + [late] * 100


@pytest.mark.parametrize(
    ("late", "counts"),
    [
        (f"|x 1 {'1 ' * 20}|c 70:1", {}),
        (f"|x 1 {'1 ' * 20}|c 3:1 |new 5", {"missing-sample": 3000}),
        (f"|x 1 {'1 ' * 19}|c 3:1", {"too-few-values": 100}),
        (f"|x 1 {'1 ' * 20}|c 3", {"bad-index": 100}),
        (f"|x 1:7 {'1 ' * 20}|c 3:1", {"bad-number": 100}),
    ],
)
def test_streams_that_change_late_are_checked_as_inferred(
    late: str, counts: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    write(long_lines(late))
    streams = cntkio.infer_streams("a.ctf")
    words = [f"{name}:{of.dim}{':sparse' * of.is_sparse}" for name, of in streams.items()]
    found = checked("a.ctf", *IGNORED, capsys=capsys)
    assert found["counts"] == counts
    assert found == checked(
        "a.ctf", *IGNORED, *[word for stream in words for word in ("--stream", stream)], capsys=capsys
    )


@pytest.mark.parametrize(
    ("lines", "row", "dim"),
    [
        (["|x 1 2", "|x 3 4", "|x 5 6 7"], 3, 2),
        (["|x 5 6 7", *["|x 1 2"] * 60], 1, 2),
        ([f"|x {number} {'1 ' * 20}" for number in range(8000)] + [f"|x {'1 ' * 30}"], 8001, 21),
    ],
)
def test_a_dense_sample_that_is_longer_than_most_is_a_finding(
    lines: list[str], row: int, dim: int, capsys: pytest.CaptureFixture[str]
) -> None:
    write(lines)
    found = checked("a.ctf", *IGNORED, capsys=capsys)
    assert places(found) == [("too-many-values", row, 3)] or places(found)[0][:2] == ("too-many-values", row)
    assert found["counts"] == {"too-many-values": 1}
    assert found["findings"][0]["message"].endswith(f"the dimension is {dim}")
    # Readers take the longest sample as the dimension, so that all samples fit.
    assert cntkio.infer_streams("a.ctf")["x"].dim > dim


@pytest.mark.parametrize("lines", [["|x 1 2", "|x 3 4 5"], ["|x 1", "|x 1", "|x 3 4", "|x 5 6"] * 20])
def test_the_longest_sample_decides_if_no_length_is_usual(lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    write(lines)
    assert checked("a.ctf", "--ignore", "not-one-hot", capsys=capsys)["counts"].keys() == {"too-few-values"}


@pytest.mark.parametrize("late", ["|x 1 {ones}|c 3:1 |typo 5", "|x 1 {ones}1 |c 3:1", "|x 1 {ones}|c 3:1 |new 5"])
def test_several_files_have_the_findings_that_one_file_has(late: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = long_lines(late.format(ones="1 " * 20))
    lines = lines[: -100 if "new" not in late else None] + lines[-1:]
    write([f"{number} {line}" for number, line in enumerate(lines)], "all.ctf")
    for part in range(3):
        write([f"{number} {line}" for number, line in enumerate(lines) if number % 3 == part], f"part-{part}.ctf")
    one, several = (checked(name, *IGNORED, capsys=capsys) for name in ("all.ctf", "part-*.ctf"))
    assert one["counts"] == several["counts"] and one["sequences"] == several["sequences"] == len(lines)

    def where(found: dict[str, Any]) -> list[tuple[str, str]]:
        return sorted((one["code"], one["sequence"]) for one in found["findings"])

    if "new" not in late:
        assert where(one) == where(several) and one["counts"]


def test_a_sound_text_is_read_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cntkio.survey.checks.infer_usual_streams", lambda *arguments: pytest.fail("read twice"))
    write(long_lines(f"|x 1 {'1 ' * 20}|c 70:1"))
    assert checked("a.ctf", *IGNORED, capsys=capsys)["counts"] == {}


@pytest.mark.parametrize("chunk_size", ["3000", "33554432"])
def test_all_damage_of_a_text_together_is_found_in_order(chunk_size: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = sound_lines()
    for _, damage, _ in DAMAGE.values():
        damage(lines)
    write(lines)
    expected = sorted((number, where(lines), code_for(kind)) for kind, (number, _, where) in DAMAGE.items())
    found = checked("a.ctf", *STREAMS, "--chunk-size", chunk_size, capsys=capsys)
    assert sorted(all_places(found)) == sorted((code, number, place) for number, place, code in expected)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*/*.ctf")), ids=lambda path: path.name)
def test_nothing_is_found_in_sound_corpora(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(str(path), capsys=capsys)["counts"] == {}
    assert main(["convert", str(path), "a.cbf"]) == 0
    assert checked("a.cbf", capsys=capsys)["counts"] == {}


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_found_in_seeded_sound_corpora(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    write(sound_lines(seed))
    assert checked("a.ctf", *STREAMS, capsys=capsys) == {"findings": [], "counts": {}, "sequences": NUM_SEQUENCES}


def test_constant_streams_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    write([f"|zero 0 0 |same 3 |fixed 4:1 |empty |x {number} |y {number % 5}:1" for number in range(50)])
    streams = ("empty:5:sparse", "zero:2", "same:1", "fixed:5:sparse", "x:1", "y:5:sparse")
    options = [word for stream in streams for word in ("--stream", stream)]
    found = checked("a.ctf", *options, capsys=capsys)
    assert {(one["code"], one["stream"]) for one in found["findings"]} == {
        ("constant-values", "empty"), ("constant-values", "zero"), ("constant-values", "same"),
        ("constant-values", "fixed"),
    }  # fmt: skip
    assert len(found["findings"]) == 4


def test_all_cases_of_a_cause_are_one_finding_with_three_places(capsys: pytest.CaptureFixture[str]) -> None:
    write([f"|x {number} {number % 7}" if number % 3 else f"|x {number} oops" for number in range(3000)])
    found = checked("a.ctf", "--chunk-size", "5000", capsys=capsys)
    assert found["counts"] == {"bad-number": 1000}
    assert [row for _, row, _ in all_places(found)] == [1, 4, 7]
    assert found["findings"][0]["count"] == 1000
    assert main(["check", "--statistics", "a.ctf"]) == 1
    assert capsys.readouterr().out.splitlines()[0] == "1,000  bad-number"
    assert main(["check", "--exit-zero", "a.ctf"]) == 0
    assert "1,000 cases: also at 4:6, 7:6 and 997 more" in capsys.readouterr().out
    assert main(["check", "--ignore", "bad-number", "a.ctf"]) == 0
    assert main(["check", "--ignore", "bad-numbre", "a.ctf"]) == 2
    assert "did you mean 'bad-number'?" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------- other formats


def test_values_of_binary_corpora_and_features_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    values = np.arange(200, dtype=np.float32).reshape(100, 2)
    values[30, 1], values[60, 0] = np.nan, -np.inf
    cntkio.write_cbf("a.cbf", {"x": values})
    found = checked("a.cbf", capsys=capsys)
    assert [(one["code"], one["sequence"]) for one in found["findings"]] == [
        ("not-finite", 30),
        ("not-finite", 60),
    ]
    cntkio.write_htk_archive("a.ark", "a.scp", [(f"u{index}", values[index : index + 1]) for index in range(100)])
    found = checked("a.scp", capsys=capsys)
    assert [(one["code"], one["sequence"]) for one in found["findings"]] == [
        ("not-finite", "u30"), ("not-finite", "u60"),
    ]  # fmt: skip


def test_every_damaged_chunk_of_a_binary_corpus_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    write([f"|x {number % 7}:1 |y {number % 5} {number}" for number in range(300)])
    convert.ctf_to_cbf("a.ctf", "a.cbf", chunk_size_in_bytes=2000)
    starts = cntkio.CBFDeserializer("a.cbf").open().index.layout.begins.tolist()
    assert len(starts) > 4
    content = bytearray(Path("a.cbf").read_bytes())
    for chunk in (1, 3):
        # The first count of values of the sparse stream follows the lengths.
        num_sequences = int(cntkio.CBFDeserializer("a.cbf").open().index.layout.num_sequences[chunk])
        offset = starts[chunk] + 4 * num_sequences
        content[offset : offset + 4] = (-1).to_bytes(4, "little", signed=True)
    Path("a.cbf").write_bytes(content)
    found = checked("a.cbf", capsys=capsys)
    assert found["counts"] == {"broken-file": 2}
    (finding,) = found["findings"]
    assert finding["stream"] == "x" and finding["byte"] > starts[1] and finding["others"][0]["byte"] > starts[3]


def test_damage_of_lists_and_label_files_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    entries = [f'"u{index}.lab"\n0 100000 a\n100000 200000 b\n.\n' for index in range(30)]
    entries[4] = entries[4].replace("\n0 ", "\n100000 ")
    entries[9] = entries[9].replace("200000", "oops")
    entries[14] = entries[14].replace('"', "")
    Path("a.mlf").write_text("#!MLF!#\n" + "".join(entries))
    found = checked("a.mlf", capsys=capsys)
    assert [(one["code"], one["location"]["row"]) for one in found["findings"]] == [
        ("bad-times", 19), ("bad-times", 40), ("bad-label-entry", 58),
    ]  # fmt: skip
    Path("a.scp").write_text("u1=a.ark[0,3]\nu2=a.ark[9,3]\n")
    cntkio.write_htk_archive("a.ark", "b.scp", [("u1", np.ones((4, 3)))])
    assert places(checked("a.scp", "--stream", "x:3", capsys=capsys)) == [("bad-range", 2, 1)]


def test_a_file_that_cannot_be_opened_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    cntkio.write_cbf("a.cbf", {"x": np.ones((3, 2), np.float32)})
    content = Path("a.cbf").read_bytes()
    Path("a.cbf").write_bytes(content[:-4])
    assert checked("a.cbf", capsys=capsys)["counts"] == {"broken-file": 1}
    assert main(["check", "missing.ctf"]) == 2


# ------------------------------------------------------------------------------------------ joins, sound copies


def test_keys_that_only_one_of_two_joined_corpora_has_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    write([f"{number} |x {number}" for number in range(400) if number != 11])
    write([f"{number} |y {number}" for number in range(400) if number not in (7, 9)], "b.ctf")
    found = checked("a.ctf", "b.ctf", "--join", capsys=capsys)
    assert [(one["filename"], one["code"], one["sequence"], one["location"]["row"]) for one in found["findings"]] == [
        ("a.ctf", "missing-key", 7, 8), ("b.ctf", "missing-key", 11, 10),
    ]  # fmt: skip
    assert [one["count"] for one in found["findings"]] == [2, 1]
    write([f"{number + 1000} |y {number}" for number in range(400)], "c.ctf")
    found = checked("a.ctf", "c.ctf", "--join", capsys=capsys)
    assert found["counts"] == {"cannot-join": 1} and "0, 1, 2, ..." in found["findings"][0]["message"]
    assert checked("a.ctf", "c.ctf", capsys=capsys)["counts"] == {"ids-not-consecutive": 1}


# ---------------------------------------------------------------------------------------------------- reports


def test_the_full_report_shows_the_line_with_a_caret(capsys: pytest.CaptureFixture[str]) -> None:
    long = " ".join(["1.25"] * 784)
    Path("a.ctf").write_text(f"|x 1 2 |y 1\n|x 3 four |y 2\n|x 5 6 |y 3 \x1b[2J\n|long {long} 1o1 {long} |x 1 2 |y 1\n")
    streams = ["--stream", "x:2", "--stream", "y:1"]
    assert main(["check", "a.ctf", *streams]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith(
        "bad-number: 'f' in a number; expected digits such as 1, -2.5 or 3e-4\n"
        " --> a.ctf:2:6\n"
        "  |\n"
        "2 | |x 3 four |y 2\n"
        "  |      ^^^^\n"
        "  = stream 'x', sequence 1\n"
        "help: write |four if a stream begins here, or else a number\n"
    )
    assert "\x1b" not in shown
    assert main(["check", "a.ctf", "--stream", "long:2000"]) == 1
    line, caret = [line for line in capsys.readouterr().out.splitlines() if " | " in line][-2:]
    assert line.startswith("4 | …") and line.endswith("…") and len(line) < 130
    assert line[caret.index("^") :].startswith("1o1 1.25") and caret.endswith(" ^^^")


def test_the_caret_stands_below_its_place_after_wide_characters(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.ctf").write_text("|x 1 |# \u732b\u732b e\u0301 |x four\n", encoding="utf-8")
    assert main(["check", "a.ctf", "--stream", "x:1"]) == 1
    line, caret = [line for line in capsys.readouterr().out.splitlines() if " | " in line][:2]
    before = line[: line.index("f")]
    assert columns_of(before) == len(before) + 1 == caret.index("^")


def test_reports_have_forms_for_people_and_programs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(["|x 1 2", "|x 3 four", "|x 5"])
    assert main(["check", "--output-format", "concise", "a.ctf"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "a.ctf:2:6: bad-number 'f' in a number; expected digits such as 1, -2.5 or 3e-4 (stream 'x', sequence 1)",
        "a.ctf:3:1: too-few-values 1 value, but the dimension is 2; the rest was filled with zeros "
        "(stream 'x', sequence 2)",
        "Found 1 error, 1 warning in 3 sequences (1 bad-number, 1 too-few-values).",
    ]
    assert main(["check", "--output-format", "github", "a.ctf"]) == 1
    assert capsys.readouterr().out.startswith("::error title=cntkio (bad-number),file=a.ctf,line=2,col=6::'f' in a")
    write(["|x 1 2", "|x 3 four"], "50% a,b:c d.ctf")
    assert main(["check", "--output-format", "github", "50% a,b:c d.ctf"]) == 1
    assert capsys.readouterr().out == (
        "::error title=cntkio (bad-number),file=50%25 a%2Cb%3Ac d.ctf,line=2,col=6::"
        "'f' in a number; expected digits such as 1, -2.5 or 3e-4 (stream 'x', sequence 1); write |four if a stream "
        "begins here, or else a number\n"
    )
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["check", "a.ctf"]) == 1
    assert capsys.readouterr().out.startswith("\x1b[31;1mbad-number\x1b[0m: ")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["check", "a.ctf"]) == 1
    assert "\x1b" not in capsys.readouterr().out


def test_a_unicode_minus_in_each_line_is_one_finding_with_its_correction(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.ctf").write_text("".join(f"|x {number} \u22122 7\n" for number in range(30)), encoding="utf-8")
    (finding,) = checked("a.ctf", "--stream", "x:3", *IGNORED, capsys=capsys)["findings"]
    assert (finding["code"], finding["count"], finding["help"]) == ("stray-text", 30, "write -2 for \u22122")


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("0,5", "write 0.5 for 0,5"), (".5", "write 0.5 for .5"), ('"5"', 'write 5 for "5"'), ("7;", "write 7 for 7;"),
        ("nan", "write a number for nan, or remove the sample"),
        ("y", "write |y if a stream begins here, or else a number"),
    ],
)  # fmt: skip
def test_help_says_what_to_write(word: str, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    write(["|x 1 2", f"|x 1 {word}"])
    (finding,) = checked("a.ctf", "--stream", "x:2", capsys=capsys)["findings"]
    assert (finding["code"], finding["help"]) == ("bad-number", advice)


def test_a_narrow_terminal_gets_lines_that_are_broken_between_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(["|x 1 2 |y 1", *["|x 3 four |y 2"] * 5, "|x 5 |y 3"])
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["check", "a.ctf"]) == 1
    piped = capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["check", "--quiet", "a.ctf"]) == 1
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 40 < max(map(len, piped.splitlines()))
    assert shown.split() == piped.split()
    assert main(["inspect", "--quiet", "a.ctf"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    begin = next(index for index, line in enumerate(lines) if line.startswith("stream x"))
    assert lines[begin + 1].startswith(f"{'':18}") and lines[begin + 1].strip()


# ------------------------------------------------------------------------------------------------------ rules


def test_every_kind_of_error_and_warning_has_one_rule() -> None:
    kinds_of_rules = [kind.lower() for rule in RULES.values() for kind in rule.kinds]
    assert len(kinds_of_rules) == len(set(kinds_of_rules))
    kinds = {*_core.CTF_KINDS, *TEXT_REMARKS, *_core.MLF_FAULTS, *_core.MLF_STOPS, *_core.LIST_FAULTS} - {"none"}
    kinds |= {name for name, _ in LABEL_REMARKS} | set(FAULTS)
    assert {kind for kind in kinds if kind.lower() not in kinds_of_rules} == set()
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code) for code in RULES)


def test_rule_explains_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rule", "bad-number"]) == 0
    assert "A byte cannot be part of a number, so the sample is dropped." in capsys.readouterr().out
    assert main(["rule", "--json", "bad-number"]) == 0
    assert json.loads(capsys.readouterr().out)["severity"] == "error"
    assert main(["rule"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(RULES)
    assert main(["rule", "bad-nubmer"]) == 2
    assert "did you mean 'bad-number'?" in capsys.readouterr().err


def test_rule_prints_colours_unescaped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["rule", "bad-number"]) == 0
    assert capsys.readouterr().out.startswith("\x1b[1mbad-number\x1b[0m (error)\n")


def test_the_page_has_an_example_of_each_rule_in_order() -> None:
    page = (ROOT / "docs" / "check-rules.md").read_text(encoding="utf-8")
    sections = re.split(r"^### ", page, flags=re.MULTILINE)[1:]
    assert [section.split()[0] for section in sections] == list(RULES)
    for section, rule in zip(sections, RULES.values(), strict=True):
        assert rule.code in section.split("```console")[1], rule.code


@pytest.mark.parametrize("ids", ["7 ", ""])
def test_all_errors_of_a_single_sequence_are_counted(ids: str, capsys: pytest.CaptureFixture[str]) -> None:
    write([f"{ids}|x {number} {'oops' if number % 2 else number}" for number in range(500)])
    found = checked("a.ctf", "--stream", "x:2", capsys=capsys)
    assert found["counts"] == {"bad-number": 250}
    assert [row for _, row, _ in all_places(found)] == [2, 4, 6]


def test_repeated_ids_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    write([f"{number % 400} |x {number}" for number in range(1200)])
    found = checked("a.ctf", capsys=capsys)
    assert found["counts"] == {"repeated-id": 800}
    assert [row for _, row, _ in all_places(found)] == [401, 402, 403]
    Path("a.mlf").write_text("#!MLF!#\n" + "".join(f"u{index}\n0 1 a\n.\n" for index in range(30)) + '"v"\n0 1 a\n.\n')
    assert checked("a.mlf", capsys=capsys)["counts"] == {"bad-label-entry": 30}


def test_a_zero_byte_in_a_text_is_found_at_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    write([*[f"|x {number} 1" for number in range(30)], "|x 1\0 2", *["|x 5 5"] * 9])
    found = checked("a.ctf", capsys=capsys)
    assert found["sequences"] == 40 and {row for _, row, _ in places(found)} == {31}
    Path("a.ctf").write_bytes(bytes(range(256)) * 9)
    assert "this is not a text, for it has zero bytes" in checked("a.ctf", capsys=capsys)["findings"][0]["message"]

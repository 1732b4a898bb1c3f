"""`cntkio.check`: every format, several corpora, deserializers, options; `cntkio check` has the same findings."""

import bz2
import gzip
import json
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import ConfigError, CTFDeserializer, Finding, StreamDef, StreamDefs, StreamInformation, UserDeserializer
from cntkio.cli import main
from support.damaged_texts import edited, sound_lines, write

pytestmark = pytest.mark.usefixtures("current_folder")


def shown(finding: Finding) -> tuple[Any, ...]:
    return finding.path, finding.code, finding.line, finding.column, finding.sequence, finding.stream


def damaged() -> bytes:
    lines = sound_lines()
    edited(77, r"\|x ", "|x 1o")(lines)
    edited(301, r"\|y ", "|y nan ")(lines)
    write(lines)
    return Path("a.ctf").read_bytes()


@pytest.mark.parametrize("name", ["a.ctf", "a.ctf.gz", "a.ctf.bz2", "a-*.ctf"])
def test_the_function_finds_what_the_command_finds(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = damaged()
    Path("a.ctf.gz").write_bytes(gzip.compress(text))
    Path("a.ctf.bz2").write_bytes(bz2.compress(text))
    lines = text.splitlines(keepends=True)
    Path("a-0.ctf").write_bytes(b"".join(lines[:200]))
    Path("a-1.ctf").write_bytes(b"".join(lines[200:]))
    findings = cntkio.check(name)
    assert findings and len(findings) == sum(findings.counts.values()) > 1
    assert next(found.excerpt.word for found in findings if found.excerpt) == "1o1.199"
    assert main(["check", "--json", name]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["counts"] == findings.counts and report["sequences"] == findings.num_sequences
    assert [(one["filename"], one["code"]) for one in report["findings"]] == [(one.path, one.code) for one in findings]
    assert main(["check", name]) == 1
    assert capsys.readouterr().out.count("= stream") == len(findings)


def test_a_sound_corpus_has_no_findings_in_any_format() -> None:
    write(sound_lines())
    cntkio.convert.convert_file("a.ctf", "a.cbf")
    cntkio.write_htk_archive("a.ark", "a.scp", [(f"u{index}", np.full((2, 3), index)) for index in range(30)])
    entries = [f'"u{index}"\n0 200000 label{index % 2}\n.\n' for index in range(30)]
    Path("a.mlf").write_text("#!MLF!#\n" + "".join(entries))
    for names in (["a.ctf"], ["a.cbf"], ["a.scp"], ["a.mlf"], ["a.scp", "a.mlf"]):
        findings = cntkio.check(*names, join=len(names) > 1)
        assert not findings and findings.num_sequences, names
    assert repr(findings) == "Findings: 0 errors, 0 warnings"


def test_all_deserializers_of_a_configuration_are_checked_and_joined() -> None:
    write([f"{number} |x {number}" for number in range(30)], "x.ctf")
    write([f"{number} |y {number if number > 1 else 'oops'}" for number in range(29)], "y.ctf")
    text = "[type=CNTKTextFormatDeserializer ; module=CNTKTextFormatReader ; "
    text += "file={0}.ctf ; input=[{0}=[dim=1;format=dense]]]"
    Path("a.cntk").write_text(
        f"command=Train\nTrain=[action=train\nreader=[deserializers=({text.format('x')}:{text.format('y')})]]\n"
    )
    assert [shown(finding)[:3] for finding in cntkio.check("a.cntk")] == [
        ("y.ctf", "bad-number", 1), ("x.ctf", "missing-key", 30),
    ]  # fmt: skip


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_finding_after_other_characters_than_ascii_has_its_place(mark: bytes, line_end: bytes) -> None:
    write(["0 |x 1"], "x.ctf")
    before = (
        mark + "a = ä\N{EURO SIGN}".encode() + line_end + mark + "Train=[action=train; k=Größe\xfc\U0001f600;".encode()
    )
    before += b"k=\xff;reader=[readerType=CNTKTextFormatReader;file=x.ctf;input=[x=[dim=1; "
    Path("a.cntk").write_bytes(before + b"format=dens]]]]" + line_end)
    # when
    (finding,) = cntkio.check("a.cntk")
    # then
    line = before.split(line_end)[1].removeprefix(mark)
    column = len(line.decode(errors="surrogateescape")) + 1
    assert (finding.code, finding.line, finding.column, finding.byte) == ("bad-configuration", 2, column, len(before))
    assert finding.excerpt is not None and finding.excerpt.word == "format=dens]]]]"


class Numbers(UserDeserializer):
    def stream_infos(self) -> list[StreamInformation]:
        return [StreamInformation("u", 0, "dense", np.float32, (2,))]

    def num_chunks(self) -> int:
        return 2

    def get_chunk(self, chunk_id: int) -> dict[str, Any]:
        return {
            "u": [np.full((1, 2), np.nan if chunk_id and number == 3 else number, np.float32) for number in range(20)]
        }


def test_deserializers_are_checked_with_their_own_options() -> None:
    (finding,) = cntkio.check(Numbers())
    assert (finding.code, finding.path, finding.stream) == ("not-finite", "Numbers", "u")
    write(["|x 1 2", "|x 3 4 5", "|x 6 7 8", "|x 9 10"])
    text = CTFDeserializer("a.ctf", StreamDefs(x=StreamDef(field="x", shape=2)), max_errors=-1)
    assert [shown(finding)[:3] for finding in cntkio.check(text)] == [
        ("a.ctf", "too-many-values", 2),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="a deserializer has its own options"):
        cntkio.check(text, streams=StreamDefs(x=StreamDef(field="x", shape=3)))


def test_keys_of_patterns_that_are_joined_are_compared() -> None:
    write([f"{number} |x {number}" for number in range(30)], "x.ctf")
    write([f"{number} |y {number}" for number in range(10)], "y-0.ctf")
    write([f"{number} |y {number}" for number in range(10, 31)], "y-1.ctf")
    (finding,) = cntkio.check("x.ctf", ["y-0.ctf", "y-1.ctf"], join=True)
    assert (finding.code, finding.path, finding.line, finding.sequence) == ("missing-key", "y-1.ctf", 21, 30)


def test_values_are_compared_over_all_files_of_a_pattern() -> None:
    for label in range(3):
        write([f"|x {number} |y {label}:1" for number in range(50)], f"a-{label}.ctf")
    assert not cntkio.check("a-*.ctf")
    assert cntkio.check("a-0.ctf").counts == {"constant-values": 1}
    write([f"|x {number} |y 0:1" for number in range(50)] + ["|x 5 |y 0:1 2:1"], "a-1.ctf")
    (finding,) = cntkio.check("a-*.ctf", ignore=["unused-class"])
    assert shown(finding) == ("a-1.ctf", "not-one-hot", 51, 6, 50, "y")


def test_options_limit_what_is_listed_and_what_counts(capsys: pytest.CaptureFixture[str]) -> None:
    write([f"|x {number if number % 3 else 'oops'}" for number in range(300)])
    seen: list[tuple[int, int]] = []
    findings = cntkio.check("a.ctf", max_findings=7, progress=lambda *done: seen.append(done))
    ((finding,), counts) = findings, findings.counts
    assert (finding.num_cases, counts["bad-number"], seen[-1]) == (100, 100, (300, 300))
    assert not cntkio.check("a.ctf", ignore=["bad-number"])
    with pytest.raises(ConfigError, match="ignore bad-numbre: no rule has this code; did you mean 'bad-number'"):
        cntkio.check("a.ctf", ignore="bad-numbre")
    with pytest.raises(ConfigError, match="^prefix applies only to scp files; a.ctf is a CNTK text corpus"):
        cntkio.check("a.ctf", prefix="data/")
    with pytest.raises(ConfigError, match="check has no corpora"):
        cntkio.check()
    assert capsys.readouterr() == ("", "")


def test_every_missing_or_broken_feature_file_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    for index in range(6):
        cntkio.write_htk_features(f"u{index}.mfc", np.random.default_rng(index).normal(size=(4, 3)).astype(np.float32))
    Path("a.scp").write_text("".join(f"u{index}=u{index}.mfc[0,3]\n" for index in range(6)))
    assert not cntkio.check("a.scp")
    for index in (2, 4):
        Path(f"u{index}.mfc").write_bytes(b"not a header of HTK")
    Path("u3.mfc").unlink()
    broken, missing = cntkio.check("a.scp")
    assert (broken.code, broken.path, broken.num_cases, broken.others[0].path) == ("broken-file", "u2.mfc", 2, "u4.mfc")
    assert (missing.code, missing.path) == ("missing-file", "u3.mfc") and "a.scp, line 4" in missing.message
    assert broken.message.endswith("(a.scp, line 3)")
    Path("u0.mfc").unlink()
    assert main(["check", "--json", "a.scp"]) == 1
    assert json.loads(capsys.readouterr().out)["counts"] == {"missing-file": 2, "broken-file": 2}
    for index in (1, 5):
        Path(f"u{index}.mfc").unlink()
    assert cntkio.check("a.scp").counts == {"missing-file": 4, "broken-file": 2}


def test_a_corpus_at_a_url_is_checked() -> None:
    fsspec = pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")
    fsspec.filesystem("memory").pipe("/checked/a.ctf", damaged())
    findings = cntkio.check("memory://checked/a.ctf")
    assert [shown(one)[1:] for one in findings] == [shown(one)[1:] for one in cntkio.check("a.ctf")]
    assert all(finding.excerpt for finding in findings)


@pytest.mark.parametrize("line", [0, 1, 40, 79])
@pytest.mark.parametrize("chunk_size", [100, 1 << 20])
def test_one_other_line_end_is_found_wherever_it_is(line: int, chunk_size: int) -> None:
    lines = [b"%d |x %d %d" % (index, index, index * index) for index in range(80)]
    Path("a.ctf").write_bytes(
        b"".join(text + (b"\r\n" if index == line else b"\n") for index, text in enumerate(lines))
    )
    (found,) = cntkio.check("a.ctf", chunk_size_in_bytes=chunk_size)
    assert (found.code, found.line, found.num_cases) == ("mixed-line-ends", line + 1, 1)


def test_an_outlier_hides_a_smaller_outlier_of_an_earlier_chunk() -> None:
    indices = {5: 2000, 150: 9_999_999}
    write([f"|w {indices.get(line, line % 7)}:1 |y {line / 7:.3f}" for line in range(1, 301)])
    w = StreamDef(field="w", shape=10_000_000, is_sparse=True)
    findings = cntkio.check(CTFDeserializer("a.ctf", StreamDefs(w=w), chunk_size_in_bytes=500))
    assert [found.line for found in findings if found.code == "index-outlier"] == [150]


def test_an_index_next_to_another_in_a_later_chunk_is_no_outlier() -> None:
    entries = {5: "9999999:1", 150: "9999998:1 9999999:1"}
    write([f"|w {entries.get(line, f'{line % 7}:1')} |y {line / 7:.3f}" for line in range(1, 301)])
    w = StreamDef(field="w", shape=10_000_000, is_sparse=True)
    findings = cntkio.check(CTFDeserializer("a.ctf", StreamDefs(w=w), chunk_size_in_bytes=500))
    assert not [found for found in findings if found.code == "index-outlier"]


def test_a_binary_corpus_at_a_url_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    fsspec = pytest.importorskip("fsspec")
    cntkio.write_cbf("a.cbf", {"x": np.ones((3, 2), np.float32)})
    with fsspec.open("memory://checked/a.cbf", "wb") as file:
        file.write(Path("a.cbf").read_bytes())
    assert main(["check", "memory://checked/a.cbf"]) == 0
    assert "No findings in 3 sequences" in capsys.readouterr().out


def test_many_equal_short_sequences_are_an_overlap_but_a_few_are_not() -> None:
    lines = [f"|x {number}.25\n" for number in range(60)]
    Path("train.ctf").write_text("".join(lines))
    Path("test.ctf").write_text("".join([*lines[:5], *(f"|x {number}.75\n" for number in range(55))]))
    assert not cntkio.check("train.ctf", "test.ctf")
    Path("test.ctf").write_text("".join(lines[:50]))
    assert cntkio.check("train.ctf", "test.ctf").counts == {"overlap": 50}
    for name in ("train.ctf", "test.ctf"):  # three classes are in every corpus
        Path(name).write_text("".join(f"|x {number % 3}\n" for number in range(60)))
    assert not cntkio.check("train.ctf", "test.ctf")


@pytest.mark.parametrize("second", ["u2 1 x", "u2 s1 s2"])
def test_alignments_and_maps_of_kaldi_are_checked(second: str) -> None:
    Path("ali").write_text("u1 1 1 2\nu2 3\n")
    Path("utt2spk").write_text("u1 s1\nu2 s1\n")
    assert (cntkio.check("ali").num_sequences, cntkio.check("utt2spk").num_sequences) == (2, 2)
    assert not cntkio.check("ali") and not cntkio.check("utt2spk")
    Path("ali").write_text(f"u1 1 1 2\n{second}\n")
    assert cntkio.check("ali").counts == {"bad-number": 1}

"""Every verb on every kind of file, as facts and as JSON; streams, colours and completion of a shell."""

import contextlib
import functools
import gzip
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import cntkio
import numpy as np
import pytest
import zstandard
from cntkio import convert
from cntkio.cli import main
from cntkio.cli.arguments import parser
from cntkio.cli.show import progress_bar
from cntkio.formats.detect import FileFormat
from support.commands import run
from support.packers import BY_ENDING

TEXT = "7 |x 1 2 |y 3:1\n7 |x 3 4 |y 1:1\n9 |x 5 6 |y 0:2\n"
ESCAPE = "\x1b[2J\x1b]0;owned\x07"


pytestmark = pytest.mark.usefixtures("current_folder")


def write_binary(path: str) -> None:
    Path("b.ctf").write_text(TEXT)
    convert.ctf_to_cbf("b.ctf", path)


def write_list(path: str) -> None:
    utterances = [("u1", np.arange(6).reshape(2, 3)), ("u2", np.ones((1, 3)))]
    cntkio.write_htk_archive("a.ark", path, utterances)


def write_configuration(path: str) -> None:
    Path("c.ctf").write_text(TEXT)
    streams = "x = [ dim = 2 ; format = dense ] ; y = [ dim = 4 ; format = sparse ]"
    Path(path).write_text(f"train = [ reader = [ file = c.ctf ; input = [ {streams} ] ] ]\n")


def write_table(path: str) -> None:
    pytest.importorskip("pyarrow")
    Path("t.ctf").write_text(TEXT)
    assert main(["convert", "t.ctf", path]) == 0


def write_packed(ending: str, path: str) -> None:
    Path(path).write_bytes(BY_ENDING[ending](TEXT.encode()))


LABELS = [("u1", np.array([1, 0])), ("u2", np.array([1]))]
KINDS: dict[str, Callable[[str], Any]] = {
    "a.ctf": lambda path: Path(path).write_text(TEXT),
    **{f"a.ctf{ending}": functools.partial(write_packed, ending) for ending in BY_ENDING},
    "a.cbf": write_binary,
    "a.scp": write_list,
    "a.mlf": lambda path: cntkio.write_mlf(path, LABELS, ["aa", "sil"]),
    "a.bmlf": lambda path: cntkio.write_binary_mlf(path, LABELS),
    "a.cntk": write_configuration,
    "a.parquet": write_table,
    "a.arrow": write_table,
}
INSPECTED = {"file", "format", "size", "sequences", "samples", "longest_sequence", "warnings"}
FIELDS = {
    "inspect": INSPECTED,
    "head": {"file", "sequences"},
    "bench": {"sequences", "samples", "time", "throughput"},
    "index": {"file", "format", "size", "chunks", "sequences", "samples", "cache", "opened_in", "opened_again_in"},
}


@pytest.mark.parametrize("verb", FIELDS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_verb_reads_every_kind_of_file(kind: str, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    KINDS[kind](kind)
    capsys.readouterr()
    assert main([verb, kind]) == 0
    assert capsys.readouterr().out
    assert main([verb, "--json", kind]) == 0
    printed = capsys.readouterr()
    fields = json.loads(printed.out)
    assert fields.keys() >= FIELDS[verb] and printed.err == ""
    sequences = fields["sequences"]
    assert (len(sequences) if verb == "head" else sequences) == 2
    assert fields.get("file", kind) == kind


@pytest.mark.parametrize("verb", ["inspect", "head", "check"])
@pytest.mark.parametrize("ending", BY_ENDING)
@pytest.mark.parametrize("kind", ["a.cbf", "a.scp", "a.mlf", "a.bmlf", "a.parquet"])
def test_a_compressed_file_of_any_kind_is_read_as_the_plain_file(
    kind: str, ending: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def facts(path: str) -> str:
        status = main([verb, "--json", path])
        return re.sub(rf"{re.escape(path)}|\"size\": \d+", "", f"{status} {capsys.readouterr().out}")

    KINDS[kind](kind)
    Path(kind + ending).write_bytes(BY_ENDING[ending](Path(kind).read_bytes()))
    capsys.readouterr()
    expected = facts(kind)
    Path(kind).unlink()
    assert facts(kind + ending) == expected and expected.startswith("0 {")


def test_several_compressed_files_are_refused_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    write_binary("a.cbf")
    for name in ("1.cbf.zst", "2.cbf.zst"):
        Path(name).write_bytes(zstandard.compress(Path("a.cbf").read_bytes()))
    assert main(["inspect", "*.cbf.zst"]) == 2
    assert "1.cbf.zst is a file compressed with zstd; unpack it (zstd -dk 1.cbf.zst)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["a.ctf", "b.cbf"], "b.cbf"),
        (["ctf2bin", "--input", "a.ctf", "--output", "b.cbf"], "b.cbf"),
        (["txt2ctf", "--map", "words", "--input", "a.txt", "--output", "b.ctf"], "b.ctf"),
        (["uci2ctf", "-in", "a.uci", "-fs", "1", "-fd", "2", "-ls", "0", "-nl", "3"], "a_cntk_text.uci"),
    ],
)
def test_every_converter_reports_its_output_as_json(
    arguments: list[str], output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a.ctf").write_text(TEXT)
    Path("words").write_text("a\nb\n")
    Path("a.txt").write_text("a\nb a\n")
    Path("a.uci").write_text("1 2 3\n2 4 5\n")
    assert main(["convert", *arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["output"], printed["size"]) == (output, Path(output).stat().st_size)


def test_every_verb_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.ctf").write_text("".join(f"|x {n % 7}:1 |# w{n % 7}\n" for n in range(50)))
    write_configuration("a.cntk")
    extra = {
        "convert": ["out.cbf"],
        "diff": ["a.ctf"],
        "explain": ["--step", "0"],
        "completion": [],
        "rule": [],
        "config": [],
        "vocab": ["x"],
    }
    files = {"config": ["a.cntk"], "completion": ["zsh"], "rule": ["bad-number"]}
    for verb in parser().verbs:
        assert main([verb, "--json", *files.get(verb, ["a.ctf"]), *extra.get(verb, [])]) == 0
        assert all(json.loads(line) for line in capsys.readouterr().out.splitlines()), verb


def test_inspect_prints_the_same_facts_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.ctf").write_text(TEXT)
    assert main(["inspect", "--json", "a.ctf"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("length_histogram") == {"lowest": 1.0, "highest": 2.0, "counts": [1, 1]}
    assert printed.pop("lengths")["0.5"] == 1.5
    known = ("name", "storage", "dim", "dtype", "samples", "longest", "density")
    printed["streams"] = [{name: stream[name] for name in known} for stream in printed["streams"]]
    assert printed == {
        "file": "a.ctf",
        "format": "ctf",
        "size": 48,
        "chunks": 1,
        "sequences": 2,
        "samples": 3,
        "longest_sequence": 2,
        "streams": [
            {
                "name": "x", "storage": "dense", "dim": 2, "dtype": "float32", "samples": 3, "longest": 2,
                "density": 1.0,
            },
            {
                "name": "y", "storage": "sparse", "dim": 4, "dtype": "float32", "samples": 3, "longest": 2,
                "density": 0.25,
            },
        ],
        "errors": {},
        "warnings": {},
    }  # fmt: skip


def test_head_prints_samples_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.ctf").write_text(TEXT.replace("5 6", "1e999 6"))
    assert main(["head", "--json", "a.ctf"]) == 0
    first, second = json.loads(capsys.readouterr().out)["sequences"]
    assert first == {"key": 7, "streams": {"x": [[1, 2], [3, 4]], "y": [[[3, 1]], [[1, 1]]]}}
    assert second == {"key": 9, "streams": {"x": [[None, 6]], "y": [[[0, 2]]]}}  # JSON has no infinity


@pytest.mark.parametrize("packed", [lambda text: text, gzip.compress])
def test_verbs_read_standard_input(packed: Callable[[bytes], bytes]) -> None:
    for verb in FIELDS:
        finished = run(verb, "-", input=packed(TEXT.encode()), text=False)
        assert (finished.returncode, finished.stderr) == (0, b"")
        assert (b"<stdin>" in finished.stdout) == (verb != "head")


def test_damage_of_standard_input_is_located() -> None:
    assert run("index", "-", input="|x oops\n").returncode == 0  # an index is made whatever the samples say
    damaged = run("head", "-", input="|x 1 |y 2\n|x oops\n")
    assert damaged.returncode == 1 and damaged.stderr.startswith("cntkio: <stdin>, line 2, column 4 (byte 13)")


def test_several_files_are_separated_by_empty_lines(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("a.ctf", "a.cbf"):
        KINDS[kind](kind)
    assert main(["inspect", "a.ctf", "a.cbf"]) == 0
    assert capsys.readouterr().out.count("\n\nfile") == 1
    assert main(["inspect", "a.ctf", "--json", "a.cbf"]) == 0
    assert [json.loads(line)["file"] for line in capsys.readouterr().out.splitlines()] == ["a.ctf", "a.cbf"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prefix", "/data", "a.ctf"], "--prefix applies only to scp files; a.ctf is a CNTK text corpus (CTF)"),
        (["--mapping", "m", "a.cbf"], "--mapping applies only to mlf files; a.cbf is a CNTK binary corpus (CBF)"),
        (["--skip-sequence-ids", "a.cbf"], "--skip-sequence-ids applies only to ctf files"),
        (["--max-errors", "3", "a.scp"], "files; a.scp is a list of HTK features (scp)"),
        (
            ["--stream", "x:3", "a.cntk"],
            "--stream applies only to ctf, cbf, scp, parquet, arrow files; a.cntk is a CNTK configuration",
        ),
    ],
)
def test_options_that_a_file_does_not_take_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    KINDS[arguments[-1]](arguments[-1])
    for verb in ("inspect", "head"):
        assert main([verb, *arguments]) == 2
        assert message in capsys.readouterr().err


TEXTS = {kind for kind in KINDS if kind.startswith("a.ctf")}
# For each option a value that changes nothing, and the kinds of files that take the option.
OPTIONS: dict[str, tuple[list[str], set[str]]] = {
    "--stream": ([], {*TEXTS, "a.cbf", "a.scp", "a.parquet", "a.arrow"}),
    "--max-errors": (["3"], TEXTS),
    "--chunk-size": (["1000000"], TEXTS),
    "--skip-sequence-ids": ([], TEXTS),
    "--strict": ([], {*TEXTS, "a.cbf", "a.scp"}),
    "--prefix": (["."], {"a.scp"}),
    "--mapping": (["labels.txt"], {"a.mlf", "a.bmlf"}),
}


def kinds_and_verbs() -> Iterator[Any]:
    """Yield all pairs; `make test` takes one verb for each kind of file, and each verb for some kinds."""
    verbs = ["inspect", "head", "check", "bench", "index"]
    for number, kind in enumerate(KINDS):
        for place, verb in enumerate(verbs):
            is_chosen = number % len(verbs) == place
            yield pytest.param(kind, verb, id=f"{kind}-{verb}", marks=[] if is_chosen else pytest.mark.thorough)


@pytest.mark.parametrize(("kind", "verb"), list(kinds_and_verbs()))
def test_every_verb_takes_the_same_options_of_a_kind_of_file(
    kind: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    KINDS[kind](kind)
    Path("labels.txt").write_text("aa\nsil\n")
    for option, (values, kinds) in OPTIONS.items():
        stream = ["features:3"] if kind == "a.scp" else ["x:2"]
        words = [option, *(stream if option == "--stream" else values)]
        status = main([verb, kind, *words])
        printed = capsys.readouterr()
        if kind in kinds:
            assert (status, printed.err) == (0, ""), words
        else:
            assert status == 2 and f"{option} applies only to" in printed.err, words


def test_options_of_texts_have_an_effect(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.ctf").write_text(TEXT + "9 |x oops 1 |y 1:1\n")
    assert main(["head", "a.ctf"]) == 1
    assert main(["head", "--max-errors", "1", "a.ctf"]) == 0
    capsys.readouterr()
    assert main(["bench", "--max-errors", "-1", "--json", "--skip-sequence-ids", "a.ctf"]) == 0
    assert json.loads(capsys.readouterr().out)["sequences"] == 4
    assert main(["inspect", "--json", "--chunk-size", "20", "a.ctf"]) == 1
    assert json.loads(capsys.readouterr().out)["chunks"] == 2
    Path("short.ctf").write_text("|x 1 2\n|x 3\n")
    assert main(["head", "short.ctf"]) == 0
    assert main(["head", "--strict", "short.ctf"]) == 1


def test_quiet_prints_no_warnings_and_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.ctf").write_text("|x 1 2\n|x 3\n")
    assert "1 value" in run("inspect", "a.ctf").stderr
    assert run("inspect", "--quiet", "a.ctf").stderr == ""


def test_the_progress_bar_shows_a_rate_and_the_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setenv("COLUMNS", "80")
    terminal, end = pty.openpty()
    with (
        open(end, "w", encoding="utf-8") as stderr,
        contextlib.redirect_stderr(stderr),
        progress_bar(Namespace(quiet=False), "sequences") as show,
    ):
        show(0, 4)
        now += 1.2
        show(2, 4)
    sent = b""
    while not sent.endswith(b" \r"):
        sent += os.read(terminal, 65536)
    os.close(terminal)
    drawn = sent.decode()
    assert re.search(r"\r█+░+  50 %  [12] sequences/s  0:01 left *\r", drawn), drawn
    assert all(len(line) < 80 for line in drawn.split("\r"))


# ------------------------------------------------------------------------------------------------ hostile text


def test_control_characters_of_corpora_never_reach_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("a.mlf").write_text(f'#!MLF!#\n"u{ESCAPE}1.lab"\n0 100000 s{ESCAPE}il\n.\n"u2.lab"\nx y z\n.\n')
    cntkio.write_htk_archive("a.ark", "b.scp", [("u1", np.ones((2, 3)))])
    Path("a.scp").write_text(Path("b.scp").read_text().replace("u1=", f"u{ESCAPE}1="))
    cntkio.write_cbf("a.cbf", {f"x{ESCAPE}\n": np.ones((2, 2), np.float32)})
    Path("a.ctf").write_text(f"|x{ESCAPE}y 1 |z 1\n|x 1 {ESCAPE} |z 1\n")
    Path("a.cntk").write_text(f'train = [ reader = [ file = "no{ESCAPE}ne" ; input = [ x = [ dim = 2 ] ] ] ]\n')
    for name in ("a.mlf", "a.scp", "a.cbf", "a.ctf", "a.cntk", f"missing{ESCAPE}.ctf"):
        for verb in FIELDS:
            for arguments in ([], ["--json"]):
                main([verb, *arguments, name])
                printed = "".join(capsys.readouterr())
                assert printed
                assert not set(printed) - {"\n"} & {chr(code) for code in (*range(32), *range(127, 160))} - {"\n"}


@pytest.mark.parametrize("char", ["\ufeff", "\u200b", "\xad", "\xa0", "\u2060", "\U000e0041"])
def test_messages_show_invisible_characters_as_escapes(char: str) -> None:
    error = cntkio.FormatError("what", path="a", sequence=f"{char}u1")
    assert str(error) == f"a, sequence {char.encode('unicode_escape').decode()}u1: what"


def test_errors_and_logs_have_no_control_characters(caplog: pytest.LogCaptureFixture) -> None:
    error = cntkio.FormatError(f"what{ESCAPE}", path=f"a{ESCAPE}", sequence=f"u{ESCAPE}", stream="x")
    assert "\x1b" not in str(error) and r"u\x1b[2J" in str(error)
    assert error.sequence == f"u{ESCAPE}"
    cntkio.write_htk_archive("a.ark", "a.scp", [("u1", np.ones((2, 3)))])
    line = Path("a.scp").read_text().replace("u1=", f"u{ESCAPE}=")
    Path("a.scp").write_text(line + line + line.replace("u\x1b", "v\x1b"))
    streams = cntkio.StreamDefs(x=cntkio.StreamDef(scp="a.scp", shape=3))
    cntkio.HTKFeatureDeserializer(streams).open()
    assert r"u\x1b[2J" in caplog.text and "\x1b" not in caplog.text


# --------------------------------------------------------------------------------------------------- convert


def test_convert_finds_formats_by_content_and_extension(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    Path("corpus").write_text(TEXT)
    for source, target in [
        ("corpus", "a.cbf"), ("a.cbf", "b.txt"), ("corpus", "a.parquet"), ("a.parquet", "c.ctf"),
        ("c.ctf", "c.feather"), ("c.feather", "d.bin"),
    ]:  # fmt: skip
        assert main(["convert", source, target]) == 0
    assert Path("c.ctf").read_text().replace("\t", " ") == TEXT
    assert cntkio.CBFDeserializer("d.bin").open().table.lengths.tolist() == [2, 1]
    Path("corpus.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert main(["convert", "--json", "corpus.gz", "--to", "ctf", "e.dat"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "input": "corpus.gz", "input_format": "ctf", "output": "e.dat", "output_format": "ctf", "size": 48,
    }  # fmt: skip
    assert Path("e.dat").read_text().replace("\t", " ") == TEXT


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("convert a.ctf a.cbf --renumber", "--renumber is only for writing ctf"),
        ("convert a.ctf a.cbf --keys-file k", "--keys-file is only for writing ctf"),
        ("convert a.ctf a.cbf --one-hot y:3", "--one-hot applies only to parquet, arrow files"),
        ("convert a.ctf a.parquet --key x", "give --key NAME"),
        ("convert a.ctf a.parquet --flat", "leave the stream out of --flat"),
        ("convert a.ctf a.parquet --ids x", "leave the stream out of --ids"),
        (
            "convert t.parquet a.ctf",
            "expected --keys-file FILE to number the sequences and list their keys, or --renumber",
        ),
        ("convert t.parquet a.cbf --key x", "add --stream y:DIM"),
    ],
)
def test_messages_name_options_of_the_command(call: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    Path("a.ctf").write_text(TEXT)
    parquet.write_table(pa.table({"key": ["u"], "x": [1], "y": [[[1.0, 2.0]]]}).select(["key", "x"]), "t.parquet")
    if "DIM" in message:
        parquet.write_table(pa.table({"x": [1], "y": [[[1.0, 2.0]]]}), "t.parquet")
    cntkio.write_htk_archive("a.ark", "a.scp", [("u1", np.ones((2, 3)))])
    assert main(call.split()) in (1, 2)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("call", ["convert a.ctf a.parquet", "convert t.parquet a.ctf", "head t.parquet"])
def test_names_a_missing_package_in_a_line(
    call: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a.ctf").write_text(TEXT)
    Path("t.parquet").write_bytes(b"PAR1 PAR1")
    monkeypatch.delattr(cntkio, "arrow", raising=False)
    for name in [name for name in sys.modules if name.startswith("cntkio.arrow")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(call.split()) == 2
    assert "which is not installed: pip install pyarrow" in capsys.readouterr().err


def test_convert_forgives_the_requested_number_of_errors(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.ctf").write_text("|x 1\n|x oops\n|x 3\n")
    assert main(["convert", "a.ctf", "a.cbf"]) == 1
    assert not Path("a.cbf").exists()
    assert main(["convert", "--max-errors", "4", "a.ctf", "a.cbf"]) == 0


def test_damaged_compressed_files_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    write_binary("a.cbf")
    for plain in (TEXT.encode() * 100, Path("a.cbf").read_bytes()):
        for ending, compress in BY_ENDING.items():
            content = compress(plain)
            Path(f"a{ending}").write_bytes(content[: len(content) // 2])
            assert main(["head", f"a{ending}"]) == 1
            assert re.search(rf"a{ending}(, byte .*)?: the \w+ data are damaged", capsys.readouterr().err)


# ----------------------------------------------------------------------------------------------------- shells


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["cntkio", "in"], ["inspect", "index"]),
        (["cntkio", "inspect", "--sk"], ["--skip-sequence-ids"]),
        (["cntkio", "convert", "--to", ""], list(get_args(FileFormat))),
        (["cntkio", "completion", "z"], ["zsh"]),
        (["cntkio", "rule", "bad-n"], ["bad-number"]),
        (["cntkio", "check", "--ignore", "unk"], ["unknown-name", "unknown-label"]),
    ],
)
def test_bash_completes_verbs_options_and_choices(words: list[str], expected: list[str]) -> None:
    script = run("completion", "bash").stdout
    quoted = " ".join(f"'{word}'" for word in words)
    ask = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _cntkio; echo ${{COMPREPLY[@]}}"
    finished = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, timeout=300)
    assert (finished.stdout.split(), finished.stderr) == (expected, "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_of_other_shells_name_every_verb(shell: str) -> None:
    script = run("completion", shell).stdout
    assert all(verb in script for verb in ("inspect", "head", "convert", "--json" if shell == "zsh" else "-l json"))
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script, text=True, timeout=300).returncode == 0


def test_zsh_gets_at_most_one_repeated_argument_of_a_verb() -> None:
    script = run("completion", "zsh").stdout.partition("case $verb in")[2]
    cases = {
        words[0]: words[2:-1] for line in script.splitlines() if (words := shlex.split(line))[1:2] == ["_arguments"]
    }
    assert cases["bench)"][-1] == "*:SECTION | KEY=VALUE:_files" and ":FILE:_files" in cases["bench)"]
    assert cases["convert)"].count("*:IN OUT:_files") == 1
    assert all(sum(word.startswith("*:") for word in words) <= 1 for words in cases.values())

"""An error about two deserializers of a configuration has the file, line and column of the entry."""

import re
from collections.abc import Callable
from pathlib import Path

import cntkio
import numpy as np
import pytest
from cntkio import ConfigError, MinibatchSource
from cntkio.cli import main

Open = Callable[[Path], object]


def text(file: str, *streams: str) -> str:
    return f"[ type = CNTKTextFormatDeserializer ; file = {file} ; input = [ {' ; '.join(streams)} ] ]"


def stream(name: str, alias: str = "p", more: str = "") -> str:
    return f"{name} = [ dim = 1 ; format = dense ; alias = {alias} {more} ]"


def features(name: str, more: str = "") -> str:
    return f"[ type = HTKFeatureDeserializer ; input = [ {name} = [ scpFile = u.scp ; {more} ] ] ]"


BINARY = "[ type = CNTKBinaryFormatDeserializer ; file = c.cbf ]"
DEFINES = "; definesMBSize = true"


@pytest.fixture
def corpora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a.ctf", "b.ctf"):
        Path(name).write_text("0 |p 1 |l 1\n1 |p 2 |l 1\n")
    cntkio.write_htk_features("0.mfc", np.zeros((1, 2), np.float32))
    Path("u.scp").write_text("0=0.mfc[0,0]\n")
    cntkio.write_cbf("c.cbf", {"c": np.ones((2, 1))}, dtype="float64")
    return tmp_path


# A configuration with one deserializer a line, from line 3 on; the line of the entry at fault, and what is wrong there.
CASES = [
    ([text("a.ctf", stream("x")), text("b.ctf", stream("x"))], 4, "two streams have the name 'x', in a.ctf and in b"),
    ([text("a.ctf", stream("my_x")), text("b.ctf", stream("my_x"))], 4, "two streams have the name 'my_x'"),
    ([text("a.ctf", stream("p")), text("b.ctf", stream("p"), stream("q", "l"))], 4, "'p', in a.ctf and in b.ctf; ren"),
    ([features("f", "dim = 2"), features("f", "dim = 2")], 4, "two streams have the name 'f'"),
    ([features("f", "dim = 2"), text("b.ctf", stream("f"))], 4, "two streams have the name 'f'"),
    ([text("a.ctf", stream("p", more=DEFINES)), text("b.ctf", stream("q", more=DEFINES))], 4, "only a single stream"),
    ([features("f", f"dim = 2 {DEFINES}"), text("b.ctf", stream("q", more=DEFINES))], 4, "only a single stream"),
    ([text("a.ctf", stream("p")), features("f", "dim = 5")], 4, "expected dim = 2"),
    ([BINARY, text("a.ctf", stream("p"))], 1, "expected precision = double"),
    (["precision = float", BINARY, text("a.ctf", stream("p"))], 2, "expected precision = double"),
    ([BINARY.replace("c.cbf", "c.cbf ; input = [ x = [ alias = y ] ]")], 3, "has no stream 'y'"),
]


@pytest.mark.parametrize(("deserializers", "line", "words"), CASES)
@pytest.mark.parametrize("door", ["from_config", "open", "bench"])
def test_an_error_about_two_deserializers_has_its_line(
    corpora: Path, capsys: pytest.CaptureFixture[str], deserializers: list[str], line: int, words: str, door: str
) -> None:
    option, *rest = deserializers if deserializers[0].startswith("precision") else ["", *deserializers]
    listed = " :\n".join(rest)
    Path("c.cntk").write_text(f"reader = [\n{option} ; deserializers = (\n{listed} ) ]\n")
    if door == "bench":
        assert main(["bench", "c.cntk"]) == 2
        found = capsys.readouterr().err
    else:
        with pytest.raises(ConfigError) as caught:
            MinibatchSource.from_config("c.cntk") if door == "from_config" else cntkio.read_config("c.cntk").open()
        found = str(caught.value)
        assert (caught.value.path, caught.value.line) == ("c.cntk", line)
    assert re.search(rf"c.cntk, line {line}, column \d+: .*{re.escape(words)}", found)


@pytest.mark.parametrize("value", ["( a.ctf : b.ctf )", "(a.ctf:b.ctf)", '"a.ctf;b.ctf"', '( "a.ctf" : "b.ctf" )'])
def test_files_in_parentheses_are_a_list(corpora: Path, value: str) -> None:
    Path("b.ctf").write_text("2 |p 3\n")
    Path("c.cntk").write_text(f"reader = [ file = {value} ; input = [ {stream('p')} ] ]\n")
    assert MinibatchSource.from_config("c.cntk").num_sequences == 3


@pytest.mark.parametrize("value", ["( u.scp : v.scp )", '"u.scp;v.scp"'])
def test_lists_of_features_in_parentheses_are_a_list(corpora: Path, value: str) -> None:
    Path("v.scp").write_text("1=0.mfc[0,0]\n")
    Path("c.cntk").write_text(f"reader = [ deserializers = ( {features('f', 'dim = 2').replace('u.scp', value)} ) ]\n")
    assert MinibatchSource.from_config("c.cntk").num_sequences == 2


def test_a_file_whose_name_has_parentheses_is_one_file(corpora: Path) -> None:
    Path("(a:b).ctf").write_text("0 |p 1\n")
    entry = f'reader = [ file = "(a:b).ctf" ; input = [ {stream("p")} ] ]\n'
    Path("c.cntk").write_text(entry)
    assert MinibatchSource.from_config("c.cntk").num_sequences == 1


@pytest.mark.parametrize(
    ("entry", "fact"),
    [
        ("keepDataInMemory = true", "keep data in memory   true"),
        ("maxErrors = 7", "max errors            7"),
        ("localTimeline = false", "local timeline        false"),
        ("truncated = true ; truncationLength = 3 ; rightSplice = 1", "right splice          1"),
    ],
)
def test_the_printed_meaning_has_every_option(
    corpora: Path, capsys: pytest.CaptureFixture[str], entry: str, fact: str
) -> None:
    Path("c.cntk").write_text(f"reader = [ {entry}\n deserializers = ( {text('a.ctf', stream('p'))} ) ]\n")
    assert main(["config", "c.cntk"]) == 0
    assert fact in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("more", ["", "definesMBSize = true"])
def test_a_configuration_has_as_many_samples_as_its_text(
    corpora: Path, capsys: pytest.CaptureFixture[str], more: str
) -> None:
    Path("a.ctf").write_text("0 |p 1 |l 1\n0 |p 2\n0 |p 2\n1 |p 2 |l 1\n1 |l 5\n")
    streams = f"{stream('p', more='; ' + more if more else '')} ; {stream('l', 'l')}"
    Path("c.cntk").write_text(f"reader = [ file = a.ctf ; input = [ {streams} ] ]\n")
    main(["bench", "c.cntk", "--sweeps", "3", "--json"])
    assert f'"samples": {12 if more else 15},' in capsys.readouterr().out


@pytest.mark.parametrize("dim", ["5", "many", "0"])
def test_check_reports_a_dimension_at_its_line(corpora: Path, capsys: pytest.CaptureFixture[str], dim: str) -> None:
    Path("c.cntk").write_text(f"reader = [\n deserializers = (\n{features('f', f'dim = {dim}')} ) ]\n")
    assert main(["check", "c.cntk"]) == 1
    output = capsys.readouterr().out
    assert "c.cntk:3:" in output and "bad-configuration" in output


@pytest.mark.parametrize(
    "text",
    ["file = $Folder$/a.ctf", "file = a ; input = [ x = [ dim = $D$ ; format = dense ] ]", "readerType = $Kind$"],
)
def test_an_error_about_a_missing_variable_has_a_public_name(text: str, corpora: Path) -> None:
    Path("a.cntk").write_text(f"reader = [ {text} ]\n")
    with pytest.raises(ConfigError, match="no variable found with the name") as caught:
        MinibatchSource.from_config("a.cntk")
    names = {type(caught.value).__name__, *type(caught.value).__qualname__.split(".")}
    assert not any(name.startswith("_") for name in names)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None

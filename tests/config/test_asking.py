"""`cntkio config` on files as they are: a person who does what the messages ask for sees every reader."""

import json
import re
from pathlib import Path

import pytest
from cntkio.cli import main
from support import DATA
from support.recorded import folder_of

STYLES = DATA / "config_styles"
FILES = sorted([*folder_of("config").glob("*.cntk"), *STYLES.glob("*.cntk")])
ASKED = re.compile(r"give ((?:\S+=\.\.\.\]* )+)as (?:an argument|arguments)")
# Errors that no argument corrects: damage, files that others include, and readers that cntkio does not have.
REFUSED = {
    "comments": "'false# not a comment' is not a boolean",
    "hash-in-quotes": 'no closing " found',
    "include-base": "no section has a reader",
    "include-reader": "no section has a reader",
    "next-line-bracket": "a bracket or value must begin on the same line",
    "two-files-2": "there is no section 'input'",  # the other file has it
    "unbalanced-kind": "unmatched bracket",
    "unbalanced-open": "no closing ] found",
    "cifar": "ImageDeserializer' is not supported: cntkio reads no images; read the map file",
    "lm": "cntkio convert txt2ctf",
    "uci": "cntkio convert uci2ctf",
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_passes_after_what_its_messages_ask_for(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    arguments: list[str] = []
    while True:
        status = main(["config", path.name, *arguments])
        printed = capsys.readouterr()
        asked = ASKED.search(printed.err)
        if asked is None:
            break
        assert len(arguments) < 12
        arguments += asked[1].replace("...", "1").split()
    if path.stem in REFUSED:
        assert (status, REFUSED[path.stem] in printed.err) == (2, True)
    else:
        assert status == 0, printed.err
        assert "reader  " in printed.out or "Sections with readers:" in printed.out


def test_without_a_command_the_sections_with_readers_are_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(STYLES)
    assert main(["config", "no_command.cntk"]) == 0
    first, _, *sections, _, last = capsys.readouterr().out.splitlines()
    assert first.endswith("no 'command', and no section 'train' with a reader. Sections with readers:")
    assert [line.split()[0] for line in sections] == ["Config1", "Config2"]
    assert "give Missing=... XDim=... as arguments" in sections[1]
    assert last == "Name sections to see what their readers do: cntkio config no_command.cntk Config1"
    assert main(["config", "--json", "no_command.cntk"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["section"], one["reader"]) for one in found["sections"]] == [
        ("Config1", "CNTKTextFormatReader"), ("Config2", None),
    ]  # fmt: skip
    assert main(["config", "no_command.cntk", "Config2", "Missing=b.ctf", "XDim=7"]) == 0
    assert "CTFDeserializer('b.ctf', StreamDefs(x=StreamDef(field='x', shape=7)))" in capsys.readouterr().out
    assert main(["bench", "no_command.cntk"]) == 2
    assert "name a section as an argument: Config1, Config2" in capsys.readouterr().err


def test_a_reader_that_is_refused_does_not_hide_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(STYLES)
    assert main(["config", "cifar.cntk"]) == 2
    printed = capsys.readouterr()
    assert printed.out.startswith("section               Eval/reader\n")
    assert printed.err.startswith("cntkio: cifar.cntk, line 10, column 13: type = 'ImageDeserializer'")


def test_several_files_are_one_configuration(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder_of("config"))
    assert main(["config", "two-files.cntk+two-files-2.cntk"]) == 0
    assert "CTFDeserializer('two/a.ctf'" in capsys.readouterr().out

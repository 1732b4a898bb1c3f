"""The command: colours in every verb, a status that a closed pipe keeps, budgets of plans, shares of files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cntkio.cli import main
from cntkio.cli.arguments import parser

VERBS = ["inspect", "head", "check", "plan", "bench", "index", "diff"]


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)
    Path("a.ctf").write_text("".join(f"{n} |x {n}\n" * (n % 5 + 1) for n in range(40)))
    Path("b.ctf").write_text("0 |x a\n" * 3)


def words(verb: str) -> list[str]:
    return [verb, "a.ctf", "b.ctf"] if verb == "diff" else [verb, "b.ctf" if verb == "check" else "a.ctf"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_colours_on_request(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("b.ctf").write_text("0 |x 1\n" if verb == "diff" else "0 |x a\n")
    main(words(verb))
    assert "\x1b" not in "".join(capsys.readouterr())
    monkeypatch.setenv("FORCE_COLOR", "1")
    main(words(verb))
    assert "\x1b[" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    main(words(verb))
    assert "\x1b" not in "".join(capsys.readouterr())


def test_a_complaint_has_colours_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["inspect", "none.ctf"]) == 2
    assert "cntkio:\x1b[0m" in capsys.readouterr().err


@pytest.mark.parametrize(("verb", "status"), [("check", 1), ("diff", 1), ("head", 0)])
def test_a_closed_pipe_keeps_the_status(verb: str, status: int) -> None:
    Path("b.ctf").write_text("0 |x a\n" * 5000 if verb == "check" else "0 |x 1\n")
    read, write = os.pipe()
    os.close(read)
    ran = subprocess.run([sys.executable, "-m", "cntkio", *words(verb)], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (ran.returncode, ran.stderr) == (status, b"")


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        (["--padded", "40"], "40 samples with padding"),
        (["--padded", "40", "--pool", "20"], "40 samples with padding, pools of 20"),
        (["--pool", "20", "--minibatch-size", "30"], "30 samples, pools of 20"),
        (["--pool", "20", "--rows", "2", "--row-length", "9"], "2 rows of 9 samples, pools of 20"),
        (["--minibatch-size", "30", "--compare", "padded=40,pool=20"], "40 samples with padding, pools of 20"),
    ],
)
def test_a_plan_takes_budgets(options: list[str], setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *options, "a.ctf"]) == 0
    assert setting in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["0.9,0.1", "a.ctf", "x.ctf"],
            "--split has 2 shares (0.9, 0.1), and the files are a.ctf, x.ctf; ",
        ),
        (["0.5,0.5", "a.ctf"], "--split has 2 shares (0.5, 0.5), and the files are a.ctf; expected one"),
        (["0.5", "a.ctf"], "--split has 1 share (0.5), and the files are a.ctf; expected one"),
        (["0.9,0.2", "a.ctf", "x.ctf", "y.ctf"], "the shares add up to 1.1"),
        (["0.9,0.001", "a.ctf", "x.ctf", "y.ctf"], "a share of 0.001 of 40 sequences has no sequence"),
    ],
)
def test_an_error_of_shares_has_the_shares_and_the_files(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "--split", *arguments]) == 2
    assert complaint in capsys.readouterr().err


def test_all_verbs_give_an_option_the_same_names() -> None:
    names: dict[str, set[tuple[str, ...]]] = {}
    for verb in parser().verbs.values():
        for argument in verb.arguments:
            if argument.is_common:
                names.setdefault(argument.options[0], set()).add(tuple(argument.options))
    assert "--chunk-size" in names
    assert {option: len(others) for option, others in names.items() if len(others) > 1} == {}

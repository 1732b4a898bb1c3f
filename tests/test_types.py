"""Types: correct programs pass the type checkers, and a misspelt name or a wrong argument does not."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support import ROOT

PROGRAMS = ROOT / "tests" / "data" / "typed_programs"
RIGHT, WRONG = (PROGRAMS / f"{name}.py" for name in ("right", "wrong"))


def findings_of_mypy(program: Path, cache: Path) -> list[int]:
    """The line of each error."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    options = ["--strict", "--warn-unreachable", "--config-file", "", "--cache-dir", str(cache), "--show-absolute-path"]
    ran = subprocess.run([sys.executable, "-m", "mypy", *options, program], capture_output=True, text=True)
    assert ran.returncode in (0, 1), ran.stderr
    return [int(line) for line in re.findall(rf"^{re.escape(str(program))}:(\d+): error", ran.stdout, re.MULTILINE)]


def findings_of_pyright(program: Path, _: Path) -> list[int]:
    """The line of each error."""
    pytest.importorskip("pyright", reason="pyright is not installed")
    options = ["--outputjson", "--pythonpath", sys.executable]
    ran = subprocess.run([sys.executable, "-m", "pyright", *options, program], capture_output=True, text=True)
    report = json.loads(ran.stdout)
    assert report["summary"]["filesAnalyzed"] == 1, ran.stderr
    return [one["range"]["start"]["line"] + 1 for one in report["generalDiagnostics"] if one["severity"] == "error"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


@pytest.mark.parametrize("checker", [findings_of_mypy, findings_of_pyright])
def test_a_program_with_right_types_passes_type_checkers(checker: type, cache: Path) -> None:
    assert checker(RIGHT, cache) == []


@pytest.mark.parametrize(("framework", "program"), [("torch", "tensors.py"), ("jax", "arrays.py")])
def test_type_checkers_know_the_arrays_of_each_layout(framework: str, program: str, cache: Path) -> None:
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    assert findings_of_mypy(PROGRAMS / program, cache) == []


@pytest.mark.parametrize("checker", [findings_of_mypy, findings_of_pyright])
def test_type_checkers_find_each_mistake(checker: type, cache: Path) -> None:
    lines = WRONG.read_text(encoding="utf-8").splitlines()
    wrong = [number for number, line in enumerate(lines, start=1) if line.endswith("# wrong")]
    assert len(wrong) > 20 and Counter(checker(WRONG, cache)) == Counter(wrong)


def test_the_program_with_right_types_runs(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, RIGHT, tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr

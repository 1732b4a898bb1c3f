"""The job of docs/job.md runs on two ranks, is killed, and resumes on three; it prints what the page shows."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

PAGE = (ROOT / "docs" / "job.md").read_text(encoding="utf-8")
JOB = Path("examples/alice/job.py")


def run(folder: Path, command: str) -> tuple[int, str]:
    arguments = [sys.executable, *command.split()[1:]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(arguments, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, timeout=300)
    return ran.returncode, ran.stdout


def test_the_job_of_the_page_resumes_on_another_number_of_ranks(tmp_path: Path) -> None:
    commands = re.findall(r"^```sh\n(.*)\n```$", PAGE, re.MULTILINE)
    printed = re.findall(r"^```text\n(.*?)```$", PAGE, re.MULTILINE | re.DOTALL)
    shutil.copytree(ROOT / JOB.parent, tmp_path / JOB.parent)
    program = (tmp_path / JOB).read_text(encoding="utf-8")
    line = "    optimizer.step()\n"
    failure = f"{line}    if step == 12:\n        import os\n        os.kill(os.getpid(), 9)\n"
    failing = program.replace(line, failure)
    (tmp_path / JOB).write_text(failing, encoding="utf-8")
    status, first = run(tmp_path, commands[0])
    assert status != 0 and first == printed[0]
    (tmp_path / JOB).write_text(program, encoding="utf-8")
    assert run(tmp_path, commands[1]) == (0, printed[1])

"""The jobs of docs/training.md run on two ranks, are killed, and resume on three, as printed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

FOLDER = Path("examples/alice")
ABORTED_AT_ITS_END = "terminate called without an active exception"
"""What PyTorch may write, and then abort, when a rank has done its work.

A thread of gloo still drops its last tensor while the interpreter ends, because `DistributedDataParallel` keeps the
group after `destroy_process_group`. (github.com/pytorch/pytorch/issues/190489)
"""


def run(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, *command.split()[1:]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    sys.stderr.write(ran.stderr)
    return ran


@pytest.mark.parametrize("job", [FOLDER / "job.py", FOLDER / "transformer.py"])
def test_the_job_of_a_page_resumes_on_another_number_of_ranks(job: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```sh\n([^\n]*)\n```\n\n```text\n(.*?)```$", page, re.MULTILINE | re.DOTALL)
    commands, printed = zip(*(pair for pair in shown if pair[0].endswith(job.as_posix())), strict=True)
    shutil.copytree(ROOT / FOLDER, tmp_path / FOLDER)
    program = (tmp_path / job).read_text(encoding="utf-8")
    line = "    optimizer.step()\n"
    failure = f"{line}    if step == 12:\n        import os\n        os.kill(os.getpid(), 9)\n"
    failing = program.replace(line, failure)
    (tmp_path / job).write_text(failing, encoding="utf-8")
    killed = run(tmp_path, commands[0])
    assert killed.returncode != 0 and killed.stdout == printed[0]
    (tmp_path / job).write_text(program, encoding="utf-8")
    resumed = run(tmp_path, commands[1])
    assert resumed.stdout == printed[1]
    assert resumed.returncode == 0 or ABORTED_AT_ITS_END in resumed.stderr

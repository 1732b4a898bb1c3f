"""With too little memory every format and mode ends in data or in a MemoryError, and the process survives."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.rounds import step

PROGRAM = Path(__file__).with_name("limited_memory.py")
REQUESTS = ["many rows", "many rows without end", "many rows of user-defined", "many rows of user-defined without end",
            "wide samples", "wide truncated samples", "wide cells"]  # fmt: skip
UNBOUNDED = ["many sequences without end", "many sequences in order without end"]
LONG_LINES = [f"a long line of {name}" for name in ("dense.ctf", "dense.ctf.gz", "sparse.ctf", "sparse.ctf.gz")]


def run(folder: Path, *arguments: str) -> list[str]:
    command = [sys.executable, PROGRAM, folder, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[:-1]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_every_format_and_mode_survives_a_limit_of_memory(tmp_path: Path) -> None:
    assert len(run(tmp_path, str(step(31)))) > 10


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_requests_beyond_all_memory_are_memory_errors_with_numbers(tmp_path: Path) -> None:
    ended = [line.split(": ", 1)[1] for line in run(tmp_path, str(step(4)), *REQUESTS)]
    assert len(ended) > len(REQUESTS)
    assert all(re.match(r"MemoryError: .*\d|MemoryError: $|OSError", line) for line in ended)
    assert any(re.match(r"MemoryError: .*\d", line) for line in ended)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_long_lines_and_endless_minibatches_are_data_or_memory_errors(tmp_path: Path) -> None:
    ended = dict(line.split(": ", 1) for line in run(tmp_path, str(step(3)), *LONG_LINES, *UNBOUNDED))
    of_lines = {ending.split(":")[0] for case, ending in ended.items() if case.startswith("a long line")}
    assert of_lines == {"data", "MemoryError"}
    endless = [ending for case, ending in ended.items() if not case.startswith("a long line")]
    assert endless and all(ending.startswith(("MemoryError", "OSError('cannot start threads")) for ending in endless)

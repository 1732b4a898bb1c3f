"""With too little memory every format and mode ends in data or in a MemoryError, and the process survives."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert len(run(tmp_path, "29")) > 10


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_requests_beyond_all_memory_are_memory_errors_with_numbers(tmp_path: Path) -> None:
    ended = [line.split(": ", 1)[1] for line in run(tmp_path, "3", *REQUESTS)]
    assert len(ended) > len(REQUESTS)
    assert all(re.match(r"MemoryError: .*\d|MemoryError: $|OSError", line) for line in ended)
    assert any(re.match(r"MemoryError: .*\d", line) for line in ended)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_a_long_line_is_data_or_a_memory_error(tmp_path: Path) -> None:
    ended = [line.split(": ", 1)[1] for line in run(tmp_path, "1", *LONG_LINES)]
    assert {ending.split(":")[0] for ending in ended} == {"data", "MemoryError"}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_an_endless_minibatch_is_a_memory_error(tmp_path: Path) -> None:
    ended = [line.split(": ", 1)[1] for line in run(tmp_path, "1", *UNBOUNDED)]
    assert all(ending.startswith(("MemoryError", "OSError('cannot start threads")) for ending in ended)

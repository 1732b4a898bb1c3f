"""With too little memory every format and mode ends in data or in a MemoryError, and the process survives."""

import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cntkio._core as _core
import pytest
from cntkio._threads import Job, Workers
from support.forks import in_a_fork
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
def test_every_format_and_mode_survives_a_limit_of_memory(module_folder: Path) -> None:
    assert len(run(module_folder, str(step(31)))) > 10


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_requests_beyond_all_memory_are_memory_errors_with_numbers(module_folder: Path) -> None:
    ended = [line.split(": ", 1)[1] for line in run(module_folder, str(step(4)), *REQUESTS)]
    assert len(ended) > len(REQUESTS)
    assert all(re.match(r"MemoryError: .*\d|MemoryError: $|OSError", line) for line in ended)
    assert any(re.match(r"MemoryError: .*\d", line) for line in ended)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_long_lines_and_endless_minibatches_are_data_or_memory_errors(module_folder: Path) -> None:
    ended = dict(line.split(": ", 1) for line in run(module_folder, str(step(3)), *LONG_LINES, *UNBOUNDED))
    of_lines = {ending.split(":")[0] for case, ending in ended.items() if case.startswith("a long line")}
    assert of_lines == {"data", "MemoryError"}
    endless = [ending for case, ending in ended.items() if not case.startswith("a long line")]
    assert endless and all(ending.startswith(("MemoryError", "OSError('cannot start threads")) for ending in endless)


def with_room(size: int, work: Callable[[], object]) -> str:
    """Return how work ends in a fork whose memory may grow by a number of bytes."""

    def limited() -> object:
        _core.release_kept_memory()
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + size
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        return work()

    return in_a_fork(limited)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_one_long_key_among_many_is_a_memory_error() -> None:
    # Keys have one width, so 250 MB are needed, and 64 MB are there.
    ids = [b"u%d" % number for number in range(60_000)] + [b"u" * 4096]
    scp = b"".join(b"%b=a[0,9]\n" % key for key in ids)
    listed = with_room(64 << 20, lambda: _core.htk_scan_list(scp, False, None, b"", False))
    kaldi = b"".join(b"%b a:1\n" % key for key in ids)
    mapped = with_room(64 << 20, lambda: _core.kaldi_list(kaldi))
    binary = b"MLF\2\0" + b"".join(len(key).to_bytes(2, "little") + key + bytes(6) for key in ids)
    scanned = with_room(64 << 20, lambda: _core.mlf_scan_binary(binary, 3))
    assert {listed, mapped, scanned} == {f"MemoryError: no memory for {4096 * len(ids)} bytes"}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_a_file_that_fits_the_memory_only_once_is_a_memory_error(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb+") as file:
        file.truncate(100 << 20)
        assert with_room(150 << 20, lambda: _core.file_read(file.fileno(), 0, 100 << 20)).startswith("MemoryError: ")


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("cc"), reason="needs Linux and a compiler of C")
def test_every_request_of_the_first_read_can_be_refused(tmp_path: Path) -> None:
    library = tmp_path / "refused.so"
    source = PROGRAM.with_name("refused_requests.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    command = [sys.executable, PROGRAM.with_name("refused_requests.py"), tmp_path, str(step(60))]
    environment = os.environ | {"LD_PRELOAD": str(library), "CNTKIO_NUM_THREADS": "3"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_job_whose_call_finds_no_memory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    refused, run = ["the first call"], Job.run

    def run_or_refuse(job: Job[int]) -> None:
        if refused:
            raise MemoryError(refused.pop())
        run(job)

    monkeypatch.setattr(Job, "run", run_or_refuse)
    with Workers(1, "example") as workers:
        jobs = [workers.do(pow, 2, exponent) for exponent in range(3)]
        assert jobs[1].result() == 2  # no thread waits for the first job yet
        with pytest.raises(MemoryError, match="the first call"):
            jobs[0].result()
        assert jobs[2].result() == 4

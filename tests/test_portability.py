"""The package reads files of any name, on any number of cores, with functions that all systems have."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import cntkio._core as _core
import pytest
from support.every_format import everything_read

# Functions and constants of `os`, and modules, that Windows or macOS does not have.
OF_SOME_SYSTEMS = """
    O_CLOEXEC O_DIRECT O_NONBLOCK SCHED_OTHER chown copy_file_range fchmod fork forkpty geteuid getpgid getuid killpg
    mkfifo
    posix_fadvise posix_fallocate pread preadv pwrite pwritev readv register_at_fork sched_getaffinity sched_setaffinity
    sched_yield sendfile setsid statvfs sysconf uname wait writev
    fcntl grp pwd resource syslog termios
""".split()


def test_reads_files_with_blanks_and_umlauts_in_their_paths(tmp_path: Path) -> None:
    folder = tmp_path / "Größe und Länge 数据"
    folder.mkdir()
    *of_text_and_binary, speech, paged, of_configuration, whole = everything_read(folder)
    assert of_text_and_binary == [[1, 2, 3, 4, 5, 6, 4, 1]] * 5
    assert speech == [*range(8), 1, 1, 1, 1]
    assert sorted(paged) == sorted([*range(8)] * 2)
    assert of_configuration == [1, 2, 3, 4, 5, 6] * 9
    assert whole == [[1, 2], [3, 4], [5, 6]]


def test_needs_no_function_that_only_some_systems_have(tmp_path: Path) -> None:
    assert sum(hasattr(os, name) for name in OF_SOME_SYSTEMS) > 20, "this system has none of them anyway"
    program = Path(everything_read.__code__.co_filename)
    with_all, without = tmp_path / "with all", tmp_path / "without"
    for folder in (with_all, without):
        folder.mkdir()
    done = subprocess.run([sys.executable, program, without, *OF_SOME_SYSTEMS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == everything_read(with_all)


def test_errors_of_the_system_keep_their_number() -> None:
    with open("/dev/full", "wb") as full, pytest.raises(OSError, match="No space left on device$") as caught:
        _core.file_write(full.fileno(), 0, b"x")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        _core.file_read(-1, 0, 1)
    assert caught.value.errno == errno.EBADF


def test_parses_with_as_many_threads_as_granted_cores() -> None:
    count = "from cntkio._threads import num_threads; print(num_threads())"
    alone = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); " + count
    environment = {name: value for name, value in os.environ.items() if name != "CNTKIO_NUM_THREADS"}
    counts = [subprocess.check_output([sys.executable, "-c", code], env=environment) for code in (count, alone)]
    assert 1 <= int(counts[0]) <= len(os.sched_getaffinity(0))
    assert int(counts[1]) == 1

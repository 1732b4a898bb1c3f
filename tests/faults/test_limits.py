"""Limits of threads and of descriptors: an error that says so, and afterwards everything continues."""

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cntkio import CTFDeserializer, MinibatchSource, read_ctf, write_cbf
from support.builders import STREAMS, rest
from support.interrupts import KINDS, plain, write_corpora

_NOBODY = 54_321  # a user without processes; root has no limit
WORDS = r"cannot start threads: .*ulimit -u.*CNTKIO_NUM_THREADS=1"


@pytest.fixture
def corpora(tmp_path: Path) -> Path:
    write_corpora(tmp_path)
    return tmp_path


def num_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@contextmanager
def soft_limit(kind: int, number: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def in_a_fork(work: Callable[[], None]) -> None:
    """Do work in a fork, which has no threads yet, as a user whose number of threads is limited."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setuid(_NOBODY)
            work()
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read().decode() == ""
    os.waitpid(child, 0)


def readable(folder: Path) -> None:
    """Let everybody read and write in the folder, and find it."""
    for path in (folder, *folder.iterdir()):
        path.chmod(0o777)
    for parent in folder.parents:
        if parent.owner() == folder.owner() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o555)


def refused(work: Callable[[], Any]) -> None:
    with soft_limit(resource.RLIMIT_NPROC, 0), pytest.raises(OSError, match=WORDS):
        work()


@pytest.mark.parametrize("name", KINDS)
def test_a_source_continues_once_threads_can_be_started(name: str, corpora: Path) -> None:
    kind = KINDS[name]
    with kind.make(corpora) as expected_source:
        expected = [plain(expected_source.read(5, kind.partition)) for _ in range(3)]
    readable(corpora)

    def work() -> None:
        with kind.make(corpora) as source:
            before = source.state_dict()
            for _ in range(3):
                refused(lambda: source.read(5, kind.partition))
                assert source.state_dict() == before
            assert [plain(source.read(5, kind.partition)) for _ in range(3)] == expected

    in_a_fork(work)


def test_readers_and_writers_name_the_limit_of_threads(corpora: Path) -> None:
    deserializer = CTFDeserializer(corpora / "a.ctf", STREAMS, chunk_size_in_bytes=200)
    readable(corpora)

    def work() -> None:
        refused(lambda: read_ctf(corpora / "a.ctf", STREAMS))
        names = sorted(corpora.iterdir())
        refused(lambda: write_cbf(corpora / "new.cbf", deserializer))
        assert sorted(corpora.iterdir()) == names
        assert read_ctf(corpora / "a.ctf", STREAMS).keys_of_sequences.size == 30
        write_cbf(corpora / "new.cbf", deserializer)

    in_a_fork(work)


@pytest.mark.parametrize("name", KINDS)
def test_a_limit_of_descriptors_is_an_error_that_leaks_nothing(name: str, corpora: Path) -> None:
    kind = KINDS[name]

    def read() -> list[Any]:
        with kind.make(corpora) as source:
            return [plain(source.read(5, kind.partition)) for _ in range(3)]

    expected = read()
    before = num_descriptors()
    next_descriptor = os.dup(0)
    os.close(next_descriptor)
    outcomes = set()
    room = -1
    while False not in outcomes:  # other files of this process may have some of the next numbers
        room += 1
        with soft_limit(resource.RLIMIT_NOFILE, next_descriptor + room):
            try:
                found = read()
            except OSError as error:
                assert error.errno == errno.EMFILE and error.filename, error
                found = None
        assert found in (None, expected)
        assert num_descriptors() == before
        outcomes.add(found is None)
    assert name.startswith("user-defined") or outcomes == {True, False}


def test_a_source_continues_once_files_can_be_opened(corpora: Path) -> None:
    def source() -> MinibatchSource:
        deserializer = CTFDeserializer(corpora / "a.ctf", STREAMS, chunk_size_in_bytes=60)
        return MinibatchSource(deserializer, max_sweeps=1, randomize=False, read_ahead_in_bytes=0)

    expected = rest(source(), 5)
    with source() as limited, soft_limit(resource.RLIMIT_NOFILE, 3):
        assert rest(limited, 5) == expected  # an open corpus needs no other descriptor

"""A process that is killed while it writes leaves the old file or the whole new file."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cntkio import write_cbf, write_ctf
from cntkio.storage import output_file
from cntkio.storage.output_file import written_whole

DATA = {"x": np.arange(40_000, dtype=np.float32).reshape(-1, 4)}


@pytest.fixture(params=["without a name", "next to its place"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write files in either way."""
    if request.param == "next to its place":
        monkeypatch.setattr(output_file, "UNNAMED", None)
    return str(request.param)


def in_a_process(work: Callable[[], None]) -> int:
    """Begin to work in a process, and return its number."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            work()
        finally:
            os._exit(1)
    return child


def write_slowly(path: Path, ready: Path) -> None:
    with written_whole(path) as file:
        file.write(b"x" * (1 << 20))
        file.flush()
        ready.touch()
        time.sleep(60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_file_of_a_killed_process_does_not_stay(way: str, number: int, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    child = in_a_process(lambda: write_slowly(folder / "a.ctf", tmp_path / "ready"))
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    os.kill(child, number)
    os.waitpid(child, 0)
    left = sorted(folder.iterdir())
    assert len(left) == (0 if way == "without a name" else 1)
    write_ctf(folder / "a.ctf", {"x": np.eye(2)})
    # The file of a dead process looks like the file of a slow writer, so it is left alone.
    assert sorted(folder.iterdir()) == sorted([*left, folder / "a.ctf"])


def test_several_writers_of_one_name_do_not_disturb_each_other(way: str, tmp_path: Path) -> None:
    with written_whole(tmp_path / "a") as first:
        first.write(b"first")
        with written_whole(tmp_path / "a") as second, written_whole(tmp_path / "a") as third:
            second.write(b"second")
            third.write(b"third")
        assert (tmp_path / "a").read_bytes() == b"second"
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"first")]


@pytest.mark.parametrize("write", [write_ctf, write_cbf])
def test_a_kill_at_any_moment_leaves_a_whole_file(way: str, write: Callable[..., None], tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    generator, path = random.Random(seed), tmp_path / "a"

    def work() -> None:
        for count in range(10_000):
            write(path, {"x": DATA["x"] + count % 2})

    write(path, DATA)
    wholes = {path.read_bytes()}
    write(path, {"x": DATA["x"] + 1})
    wholes.add(path.read_bytes())
    for _ in range(25):
        child = in_a_process(work)
        time.sleep(generator.random() * 0.05)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert path.read_bytes() in wholes
    write(path, DATA)
    left = [found for found in tmp_path.iterdir() if found != path]
    assert all(found.match(".cntkio-*.part") for found in left)
    # A kill can leave a name only between two calls of the system, when the file is complete.
    assert way != "without a name" or all(found.read_bytes() in wholes for found in left)

"""Columns of tables that processes share: one memory, which no process can change, and no damage in the links to it."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cntkio import CTFDeserializer, MinibatchSource, StreamDef, StreamDefs
from cntkio.storage import shared as module
from cntkio.storage.shared import LEAST_SHARED, shared
from support.forks import in_a_fork

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux seals memory")
NUMBERS = np.arange(LEAST_SHARED // 4, dtype=np.uint32) * 7


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "LINKS", tmp_path)
    folder = tmp_path / f"cntkio-{os.geteuid()}"
    folder.mkdir(mode=0o700)
    return folder


def link_of(folder: Path) -> Path:
    (link,) = folder.iterdir()
    return link


def memory_of(column: npt.NDArray[Any]) -> str:
    """Return the number of the file that is mapped where a column is."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, _, _, _, inode, *_ = line.split()
        begin, end = (int(at, 16) for at in place.split("-"))
        if begin <= column.ctypes.data < end:
            return inode
    raise AssertionError


def test_processes_share_one_memory(folder: Path) -> None:
    column = shared(NUMBERS)

    def in_child() -> tuple[str, list[int]]:
        module.maps_here.clear()  # the child finds the memory as any other process does
        again = shared(NUMBERS)
        assert again.ctypes.data != column.ctypes.data
        return memory_of(again), again[:3].tolist()

    assert in_a_fork(in_child) == repr((memory_of(column), [0, 7, 14]))
    assert memory_of(column) == str(link_of(folder).stat().st_ino)


def test_a_process_maps_a_column_once() -> None:
    first, second = shared(NUMBERS), shared(NUMBERS.copy())
    assert first.ctypes.data == second.ctypes.data
    words = np.arange(LEAST_SHARED // 8).astype("S8")
    assert shared(words) is not words
    assert shared(words).tolist() == words.tolist()


def test_no_process_can_change_or_cut_a_shared_column(folder: Path) -> None:
    column = shared(NUMBERS)
    link = link_of(folder)
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 1
    for cut in (lambda: os.truncate(link, 10), lambda: link.write_bytes(b"x")):
        with pytest.raises(OSError, match="not permitted"):
            cut()
    assert np.array_equal(column, NUMBERS)


def test_a_small_column_stays_as_it_is() -> None:
    for column in (NUMBERS[:100], np.broadcast_to(np.uint32(3), LEAST_SHARED), NUMBERS.astype(object)):
        assert shared(column) is column


def test_memory_is_freed_with_its_last_column(folder: Path) -> None:
    column = shared(NUMBERS)
    link = link_of(folder)
    assert link.exists()
    part = column[5:10]
    del column
    assert link.exists()
    del part
    assert not link.exists()
    other = shared(NUMBERS + 1)  # which removes the links of processes that have ended
    assert link_of(folder) != link
    assert np.array_equal(other, NUMBERS + 1)


def sealed(content: bytes, *, seals: int) -> str:
    number = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    os.write(number, content)
    fcntl.fcntl(number, fcntl.F_ADD_SEALS, seals)
    return f"/proc/{os.getpid()}/fd/{number}"


ALL = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
TARGETS: dict[str, Callable[[Path], str]] = {
    "nothing": lambda folder: "/proc/1/fd/999999",
    "a folder": str,
    "a terminal": lambda folder: "/dev/null",
    "a file of the same content": lambda folder: written(folder / "content", NUMBERS.tobytes()),
    "memory that can be written": lambda folder: sealed(NUMBERS.tobytes(), seals=fcntl.F_SEAL_SHRINK),
    "memory of other content": lambda folder: sealed((NUMBERS + 1).tobytes(), seals=ALL),
    "memory of less content": lambda folder: sealed(NUMBERS[:-1].tobytes(), seals=ALL),
}


def written(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize("target", TARGETS)
def test_a_link_to_something_else_is_replaced(target: str, folder: Path, tmp_path: Path) -> None:
    shared(NUMBERS)
    link = link_of(folder)
    link.unlink()
    link.symlink_to(TARGETS[target](tmp_path))
    column = shared(NUMBERS)
    assert np.array_equal(column, NUMBERS)
    assert not column.flags.writeable
    assert link.readlink().is_relative_to(f"/proc/{os.getpid()}/fd")
    assert np.array_equal(np.fromfile(link, np.uint32), NUMBERS)


def test_a_folder_that_others_may_change_is_not_used(folder: Path) -> None:
    folder.chmod(0o777)
    assert shared(NUMBERS) is NUMBERS
    folder.rmdir()
    folder.symlink_to(folder.parent)
    assert shared(NUMBERS) is NUMBERS


def test_a_state_reads_no_keys_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    path.write_text("".join(f"{2 * number} |x 1\n" for number in range(20_000)))
    text = CTFDeserializer(path, StreamDefs(x=StreamDef(field="x", shape=1)), cache_index=True)
    with MinibatchSource(text) as first:
        state = first.state_dict()
    with MinibatchSource(text) as again:
        keys = again.assembly.arrangement.table.keys
        assert again.state_dict() == state
        assert not isinstance(keys.column(), np.ndarray)
        assert keys[3] == 6
        assert isinstance(keys.column(), np.ndarray)
        assert again.state_dict() == state

"""A full disk leaves the old file, or no file; the error names the user's file and says what is there now."""

import errno
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cntkio import write_ctf
from cntkio.cli import main
from cntkio.storage import output_file
from cntkio.storage.output_file import written_whole
from support.disks import NUM_BYTES, WRITERS, small_disk


@pytest.fixture(params=["without a name", "next to its place"])
def disk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on a small disk, for files that are written in either way."""
    if request.param == "next to its place":
        monkeypatch.setattr(output_file, "UNNAMED", None)
    folder = tmp_path / "disk"
    folder.mkdir()
    with small_disk(folder, NUM_BYTES // 2):
        yield folder


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_disk_leaves_no_file(kind: str, disk: Path) -> None:
    with pytest.raises(OSError, match="No space left on device after .* bytes free; no file was made") as caught:
        WRITERS[kind](disk / "out")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(disk / "out"))
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_disk_leaves_the_old_file(kind: str, disk: Path) -> None:
    (disk / "out").write_bytes(b"old")
    with pytest.raises(OSError, match="the old file is unchanged") as caught:
        WRITERS[kind](disk / "out")
    assert caught.value.filename == str(disk / "out")
    assert [(path.name, path.read_bytes()) for path in disk.iterdir()] == [("out", b"old")]


def test_the_command_line_names_the_file(disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    WRITERS["text"](tmp_path / "in.ctf")
    arguments = ["convert", "--to", "cbf", "--input", str(tmp_path / "in.ctf"), "--output", str(disk / "out")]
    assert main(arguments) != 0
    assert f"{disk / 'out'}: No space left on device" in capsys.readouterr().err
    assert list(disk.iterdir()) == []


def test_a_scratch_file_on_a_full_disk_is_removed(disk: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught, written_whole(disk / "out", is_kept=False) as file:
        file.write(bytes(NUM_BYTES))
    assert caught.value.filename == str(disk / "out") and list(disk.iterdir()) == []


@pytest.mark.parametrize("kind", WRITERS)
def test_a_limit_of_the_size_of_files_leaves_no_file(kind: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    prepared = tmp_path / "folder" / "out"
    if kind == "tokens":
        WRITERS[kind](prepared)  # makes its input
        prepared.unlink()
    resource.setrlimit(resource.RLIMIT_FSIZE, (NUM_BYTES // 2, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large|Errno 27") as caught:
            WRITERS[kind](prepared)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    if kind != "tokens":  # its input is too large for the limit, too
        assert caught.value.filename == str(prepared)
    assert list(prepared.parent.iterdir()) == []


def test_the_disk_has_a_file_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[list[str]] = []
    fsync = output_file.os.fsync

    def record(descriptor: int) -> None:
        synced.append(sorted(path.name for path in tmp_path.iterdir()))
        fsync(descriptor)

    monkeypatch.setattr(output_file.os, "fsync", record)
    write_ctf(tmp_path / "a.ctf", {"x": np.eye(2)})
    assert synced == [[], ["a.ctf"]]  # the file, then its name in the folder


def test_errors_about_folders_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, written_whole(tmp_path / "none" / "a"):
        pass
    assert caught.value.filename == str(tmp_path / "none" / "a")
    (tmp_path / "disk").mkdir()
    with small_disk(tmp_path / "disk", 1 << 16):
        subprocess.run(["mount", "-o", "remount,ro", tmp_path / "disk"], check=True)
        with pytest.raises(OSError, match="Read-only file system") as read_only, written_whole(tmp_path / "disk" / "a"):
            pass
    assert read_only.value.filename == str(tmp_path / "disk" / "a")

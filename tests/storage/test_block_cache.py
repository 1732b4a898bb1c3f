"""Caches of remote objects deliver no wrong byte and stay within the limit, whatever happens to processes and disks."""

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from cntkio import CorpusError
from cntkio.storage.block_cache import BLOCK, FOLDER, CachedObject, CacheFolder, num_bytes_in_cache
from cntkio.storage.remote import Remote
from cntkio.storage.stores import RemoteObject
from hypothesis import given, settings
from hypothesis import strategies as st
from support.disks import small_disk
from support.forks import repeated_in_a_fork
from support.rounds import rounds

fsspec = pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")

CONTENT = np.random.default_rng(0).integers(0, 256, 2 * BLOCK + 12345, np.uint8).tobytes()
URL = "memory://block-cache/a.ctf"


def cached(folder: Path, limit: int | None = None, content: bytes = CONTENT) -> CachedObject:
    memory = fsspec.filesystem("memory")
    if not memory.exists(URL) or memory.cat(URL) != content:
        memory.pipe(URL, content)
    found = RemoteObject(URL, Remote())
    size, version = found.facts
    kept_in = CacheFolder(str(folder), limit)
    return CachedObject(kept_in, found.name, version, size, found.read_into, found.require_unchanged)


def read(found: CachedObject, begin: int, end: int) -> bytes:
    buffer = np.empty(end - begin, np.uint8)
    found.read_into(buffer, begin)
    return buffer.tobytes()


def blocks_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*-*") if path.is_file())


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in blocks_in(folder))


def without_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the store was asked")

    monkeypatch.setattr(RemoteObject, "read_into", refuse)


def test_a_second_read_uses_only_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(cached(tmp_path), 0, len(CONTENT)) == CONTENT
    found = cached(tmp_path)
    without_store(monkeypatch)
    assert read(found, 0, len(CONTENT)) == CONTENT
    assert read(found, BLOCK - 3, 2 * BLOCK + 5) == CONTENT[BLOCK - 3 : 2 * BLOCK + 5]


def test_the_predicted_size_is_the_size_of_the_blocks(tmp_path: Path) -> None:
    read(cached(tmp_path), 0, len(CONTENT))
    assert num_bytes_in_cache(len(CONTENT)) == size_of(tmp_path)


@settings(max_examples=rounds(30))
@given(
    st.lists(st.tuples(st.integers(0, len(CONTENT)), st.integers(0, BLOCK)), max_size=5), st.sampled_from([None, BLOCK])
)
def test_any_range_is_read_with_any_part_in_the_cache(
    tmp_path_factory: pytest.TempPathFactory, ranges: list[tuple[int, int]], limit: int | None
) -> None:
    found = cached(tmp_path_factory.mktemp("cache"), limit)
    for begin, size in ranges:
        end = min(begin + size, len(CONTENT))
        assert read(found, begin, end) == CONTENT[begin:end]


def test_small_reads_do_not_fetch_blocks(tmp_path: Path) -> None:
    assert read(cached(tmp_path), 5, 4000) == CONTENT[5:4000]
    assert not blocks_in(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "longer", "folder"])
def test_a_damaged_block_is_fetched_again(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    assert read(cached(tmp_path), 0, len(CONTENT)) == CONTENT
    block = blocks_in(tmp_path)[1]
    content = block.read_bytes()
    block.unlink()
    if damage == "folder":
        block.mkdir()
    else:
        position = len(content) // 2
        damaged = {
            "cut": content[:-1],
            "flipped": content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :],
            "empty": b"",
            "longer": content + b"x",
        }
        block.write_bytes(damaged[damage])
    assert read(cached(tmp_path), 0, len(CONTENT)) == CONTENT
    assert damage == "folder" or "damaged; it is fetched again" in caplog.text


def test_another_version_of_the_object_has_other_blocks(tmp_path: Path) -> None:
    assert read(cached(tmp_path), 0, len(CONTENT)) == CONTENT
    changed = bytes(len(CONTENT))
    assert read(cached(tmp_path, content=changed), 0, len(changed)) == changed


def test_blocks_of_a_changed_object_are_not_kept(tmp_path: Path) -> None:
    found = cached(tmp_path)
    fsspec.filesystem("memory").pipe(URL, bytes(len(CONTENT)))
    with pytest.raises(CorpusError, match="changed while it was read"):
        read(found, 0, len(CONTENT))
    assert not blocks_in(tmp_path)


def test_the_least_recently_used_blocks_are_removed_first(tmp_path: Path) -> None:
    limit = 2 * BLOCK + BLOCK // 2
    found = cached(tmp_path, limit)
    read(found, 0, 2 * BLOCK)
    first, second = blocks_in(tmp_path)
    now = time.time_ns()
    os.utime(first, ns=(now, now - 10**9))
    os.utime(second, ns=(now, now - 2 * 10**9))
    read(found, 0, BLOCK)  # now the first block is the newest
    read(cached(tmp_path, limit), 2 * BLOCK - BLOCK // 2, len(CONTENT))
    assert first.exists()
    assert size_of(tmp_path) <= limit


@pytest.mark.parametrize("limit", [1, BLOCK, BLOCK + 100, 2 * BLOCK])
def test_the_limit_holds_after_every_read(tmp_path: Path, limit: int) -> None:
    found = cached(tmp_path, limit)
    for begin in range(0, len(CONTENT), BLOCK // 2):
        end = min(begin + BLOCK, len(CONTENT))
        assert read(found, begin, end) == CONTENT[begin:end]
        assert size_of(tmp_path) <= limit


@pytest.mark.parametrize(("size", "num_kept"), [(BLOCK // 2, 1), (3 * BLOCK, 0)])
def test_files_that_are_not_blocks_stay_and_count_for_the_limit(tmp_path: Path, size: int, num_kept: int) -> None:
    limit = 2 * BLOCK + BLOCK // 5
    found = cached(tmp_path, limit)
    precious = tmp_path / FOLDER / f"{'0' * 32}-0"
    precious.write_bytes(b"precious".ljust(size))
    os.utime(precious, ns=(0, 0))  # the least recently used
    for begin in range(0, len(CONTENT), BLOCK):
        end = min(begin + BLOCK, len(CONTENT))
        assert read(found, begin, end) == CONTENT[begin:end]
        assert size_of(tmp_path) <= max(limit, size)
    assert precious.stat().st_size == size and len(blocks_in(tmp_path)) == 1 + num_kept


def test_a_full_disk_is_reported_once_and_reading_continues(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with small_disk(tmp_path, BLOCK + (1 << 20)):
        found = cached(tmp_path / "cache")
        assert read(found, 0, len(CONTENT)) == CONTENT
        assert read(found, 0, len(CONTENT)) == CONTENT
        assert all(path.stat().st_size > 1 for path in blocks_in(tmp_path / "cache"))
    assert caplog.text.count("the cache cannot be written") == 1


def read_and_empty(folder: Path) -> None:
    assert read(cached(folder), 0, len(CONTENT)) == CONTENT
    for block in blocks_in(folder):
        block.unlink(missing_ok=True)


def test_a_killed_process_leaves_no_partial_block(tmp_path: Path) -> None:
    for pause in (0.0, 0.003, 0.011, 0.02, 0.03, 0.05):
        with repeated_in_a_fork(lambda: read_and_empty(tmp_path)) as wait:
            wait()
            time.sleep(pause)
        for block in blocks_in(tmp_path):
            number = int(block.name.partition("-")[2])
            assert block.read_bytes().endswith(CONTENT[number * BLOCK :][:BLOCK])
        assert read(cached(tmp_path), 0, len(CONTENT)) == CONTENT


def test_processes_share_one_cache_and_its_limit(tmp_path: Path) -> None:
    limit = 2 * BLOCK + BLOCK // 2
    found = cached(tmp_path, limit)

    def work() -> None:
        assert read(found, 0, len(CONTENT)) == CONTENT

    with repeated_in_a_fork(work) as wait, repeated_in_a_fork(work) as wait_for_other:
        for _ in range(10):
            wait()
            wait_for_other()
            work()
    work()
    assert size_of(tmp_path) <= limit


def test_processes_that_share_a_cache_exceed_the_limit_only_a_little(tmp_path: Path) -> None:
    limit, size, num_processes = 160_000, 1000, 5
    folders = [CacheFolder(str(tmp_path), limit) for _ in range(num_processes)]
    caches = [CachedObject(folder, f"{n}", "1", 1 << 40, pytest.fail, pytest.fail) for n, folder in enumerate(folders)]
    largest = 0
    for number in range(100):
        for cache in caches:
            cache.keep(number, bytes(size))
        largest = max(largest, sum(path.stat().st_size for path in tmp_path.glob("*/*-*")))
    assert limit // 2 < largest <= limit + num_processes * (limit // 64 + 2 * size)


# ----------------------------------------------------------------------------------------------- files of other people


def private(folder: Path) -> Path:
    """Make a cache with a block in it, and return the folder of its blocks."""
    assert read(cached(folder), 0, len(CONTENT)) == CONTENT
    return folder / FOLDER


def test_only_blocks_are_removed(tmp_path: Path) -> None:
    precious = tmp_path / "elsewhere"
    precious.mkdir()
    within = private(tmp_path / "cache")
    block = blocks_in(tmp_path / "cache")[0].read_bytes()
    kept = [precious / f"{0:032x}-0", tmp_path / "cache" / "notes.txt", within / "notes.txt"]
    kept += [within / f"{1:032x}-7", within / f"{2:032x}-0", tmp_path / "cache" / "folder" / f"{3:032x}-0"]
    kept[-1].parent.mkdir()
    for path in kept:
        path.write_bytes(b"precious")
    kept[4].write_bytes(block)  # a block under another name
    (within / f"{4:032x}-0").symlink_to(kept[0])
    (within / f"{5:032x}-0").symlink_to(precious)
    (tmp_path / "cache" / "link").symlink_to(precious)
    for path in tmp_path.rglob("*"):
        os.utime(path, (0, 0), follow_symlinks=False)
    read(cached(tmp_path / "cache", BLOCK + 1000, bytes(len(CONTENT))), 0, len(CONTENT))
    assert [path.exists() for path in kept] == [True] * len(kept)
    assert (within / f"{4:032x}-0").is_symlink() and (within / f"{5:032x}-0").is_symlink()
    assert not any(path.read_bytes() == block for path in blocks_in(tmp_path / "cache") if path != kept[4])


@pytest.mark.parametrize("kind", ["link", "link to nothing", "pipe", "folder", "of another user", "of another block"])
def test_a_strange_file_under_the_name_of_a_block_is_not_used(tmp_path: Path, kind: str) -> None:
    private(tmp_path / "cache")
    block = blocks_in(tmp_path / "cache")[0]
    content, elsewhere = block.read_bytes(), tmp_path / "elsewhere"
    if kind != "of another user":
        block.unlink()
    if kind == "link":
        elsewhere.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        block.symlink_to(elsewhere)
    elif kind == "link to nothing":
        block.symlink_to(elsewhere)
    elif kind == "pipe":
        os.mkfifo(block)
    elif kind == "folder":
        block.mkdir()
    elif kind == "of another block":
        block.write_bytes(blocks_in(tmp_path / "cache")[0].read_bytes())
    else:
        give_away(block)
    before = elsewhere.read_bytes() if elsewhere.exists() else None
    assert read(cached(tmp_path / "cache"), 0, len(CONTENT)) == CONTENT
    assert (elsewhere.read_bytes() if elsewhere.exists() else None) == before
    assert kind == "folder" or (block.lstat().st_uid == os.geteuid() and block.read_bytes() == content)


def test_a_file_that_is_not_a_block_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    private(tmp_path / "cache")
    block = blocks_in(tmp_path / "cache")[0]
    block.write_bytes(b"precious")
    for _ in range(2):
        assert read(cached(tmp_path / "cache"), 0, len(CONTENT)) == CONTENT
    assert block.read_bytes() == b"precious"
    assert "is not a block; it is left alone" in caplog.text
    block.write_bytes(b"")  # as after a power failure
    assert read(cached(tmp_path / "cache"), 0, len(CONTENT)) == CONTENT
    assert read(cached(tmp_path / "cache"), 0, BLOCK) == CONTENT[:BLOCK] and len(block.read_bytes()) > BLOCK


def give_away(path: Path) -> None:
    """Give a file or a folder to another user."""
    try:
        os.chown(path, 12345, -1)
    except OSError:
        pytest.skip("files cannot be given to another user here")


def test_folders_that_others_may_have_made_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a" / FOLDER).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=FOLDER):
        cached(tmp_path / "a")
    (tmp_path / "b" / FOLDER).mkdir(parents=True)
    (tmp_path / "b" / FOLDER).chmod(0o777)
    with pytest.raises(PermissionError, match="Others can write this folder.*name another folder as cache"):
        cached(tmp_path / "b")
    (tmp_path / "c" / FOLDER).mkdir(parents=True)
    (tmp_path / "c" / FOLDER / "thesis.tex").touch()
    with pytest.raises(FileExistsError, match=r"has files, but no CACHEDIR\.TAG of cntkio"):
        cached(tmp_path / "c")
    within = private(tmp_path / "d" / "e")
    assert [oct(path.stat().st_mode & 0o777) for path in (within, within.parent)] == ["0o700"] * 2
    give_away(within)
    with pytest.raises(PermissionError, match="not a folder of this user"):
        cached(tmp_path / "d" / "e")


def test_a_folder_that_is_exchanged_in_use_is_not_touched(tmp_path: Path) -> None:
    found = cached(tmp_path / "cache", 2 * BLOCK)
    within = tmp_path / "cache" / FOLDER
    within.rename(tmp_path / "moved")
    within.mkdir()
    (within / f"{0:032x}-0").write_bytes(b"precious")
    assert read(found, 0, len(CONTENT)) == CONTENT
    assert [path.name for path in within.iterdir()] == [f"{0:032x}-0"]


def test_a_cache_that_is_removed_in_use_is_made_again(tmp_path: Path) -> None:
    found = cached(tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    assert read(found, 0, len(CONTENT)) == CONTENT
    assert len(blocks_in(tmp_path / "cache")) == 3

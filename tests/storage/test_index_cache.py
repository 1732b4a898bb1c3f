"""Index caches of texts: a cache changes the time only, whatever happens to it.

As a program it reads more damaged caches: ``PYTHONPATH=tests python tests/storage/test_index_cache.py 10000 [SEED]``.
"""

import contextlib
import errno
import gzip
import itertools
import json
import logging
import os
import pathlib
import random
import struct
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple

import cntkio
import numpy as np
import pytest
from cntkio import CorpusError, CTFDeserializer, MinibatchSource, StreamDef, StreamDefs
from cntkio.formats.ctf import corpus as texts
from cntkio.formats.ctf.index import Places
from cntkio.storage import index_cache, output_file
from cntkio.storage.index_cache import CacheWriter, IndexCache, Written
from support.damaged_caches import HOSTILE, flipped, header_of, mutated, paths_in, replaced, with_header
from support.rounds import rounds, step

X = StreamDefs(x=StreamDef(field="x", shape=2))
TEXTS = {
    "ids": b"".join(b"%d |x %d 0\n" % (key // 2, key) for key in range(100)),
    "lines": b"".join(b"|x %d 0\n" % number for number in range(100)),
    "far ids": b"".join(b"%d |x %d 0\n" % (7 * key % 101 * (1 << 40), key) for key in range(1, 80)),
    "gaps": b"".join(b"|x %d 0 |y 1\n" % key if key % 3 else b"|y 1\n" for key in range(100)),
    "lengths": b"".join(b"%d |x %d 0\n" % (key, key) * (300 if key == 3 else 1) for key in range(9)),
}


class Content(NamedTuple):
    """Everything that a corpus delivers."""

    keys: list[int]
    values: list[float]
    lengths: list[int]


class Cached:
    """A corpus that is read with a cache."""

    def __init__(self, folder: Path, text: bytes = TEXTS["ids"], *, streams: StreamDefs = X) -> None:
        folder.mkdir()
        self.path = folder / "a.ctf"
        self.path.write_bytes(text)
        self._streams = streams

    def deserializer(self, **options: Any) -> CTFDeserializer:
        return CTFDeserializer(
            self.path, self._streams, **{"cache_index": True, "chunk_size_in_bytes": 200, "max_errors": -1, **options}
        )

    def read(self, **options: Any) -> Content:
        with contextlib.closing(self.deserializer(**options).open()) as corpus:
            minibatch = cntkio.formats.pieces.read_corpus(corpus)
            keys = minibatch.keys_of_sequences.tolist()
            return Content(keys, minibatch["x"].values[:, 0].tolist(), corpus.table.lengths.tolist())

    @property
    def cache(self) -> Path:
        (found,) = [path for path in self.path.parent.iterdir() if path != self.path]
        return found


def corpora(folder: Path) -> dict[str, Cached]:
    streams = {"gaps": StreamDefs(x=StreamDef(field="x", shape=2, defines_mb_size=True))}
    return {name: Cached(folder / name, text, streams=streams.get(name, X)) for name, text in TEXTS.items()}


@pytest.fixture(autouse=True)
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    return tmp_path / "user" / "cntkio"


@pytest.fixture
def cached(tmp_path: Path) -> Cached:
    return Cached(tmp_path / "data")


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    count: list[int] = []
    make_index = texts.make_index
    monkeypatch.setattr(texts, "make_index", lambda *args: (count.append(1), make_index(*args))[1])
    return count


def test_a_cache_changes_only_the_time(tmp_path: Path, scans: list[int]) -> None:
    for cached in corpora(tmp_path).values():
        plain = cached.read(cache_index=False)
        scans.clear()
        assert cached.read() == cached.read() == cached.read(cache_index="verify") == plain
        assert len(scans) == 2  # the first time, and the first time with a checksum of the whole corpus
        assert cached.read(cache_index="verify") == cached.read() == plain
        assert len(scans) == 2


@pytest.mark.parametrize("change", ["size", "content", "time", "options", "replaced"])
def test_an_index_of_another_file_is_ignored(cached: Cached, scans: list[int], change: str) -> None:
    cached.read()
    path, data, status = cached.path, cached.path.read_bytes(), cached.path.stat()
    options = {"chunk_size_in_bytes": 50} if change == "options" else {}
    scans.clear()
    if change == "size":
        path.write_bytes(data + b"60 |x 100 0\n")
    elif change == "content":
        path.write_bytes(data.replace(b"49 |x 99 0", b"50 |x 99 0"))
    elif change == "replaced":
        other = path.with_name("other")
        other.write_bytes(data)
        other.rename(path)
    if change in ("content", "time", "replaced"):
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + (change == "time")))
    assert cached.read(**options).values == list(range(100 + (change == "size")))
    assert len(scans) == 1
    cached.read(**options)
    assert len(scans) == 1


def test_verify_notices_a_change_that_samples_and_times_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = Cached(tmp_path / "data", b"|x 1 0\n" * 100_000)
    stat = os.fstat
    frozen = dict.fromkeys(("st_mtime_ns", "st_ctime_ns"), 0)

    class Frozen:
        def __init__(self, descriptor: int) -> None:
            self._status = stat(descriptor)

        def __getattr__(self, name: str) -> Any:
            return frozen.get(name) or getattr(self._status, name)

    monkeypatch.setattr(os, "fstat", Frozen)
    status = cached.path.stat()
    frozen |= {"st_mtime_ns": status.st_mtime_ns, "st_ctime_ns": status.st_ctime_ns}
    cached.read(cache_index="verify")
    with cached.path.open("r+b") as file:
        file.seek(7 * 1000)
        file.write(b"|x 1\n |")  # between the samples
    with contextlib.closing(cached.deserializer().open()) as corpus:
        assert corpus.index.caches[0].indexes
    with contextlib.closing(cached.deserializer(cache_index="verify").open()) as corpus:
        assert not corpus.index.caches[0].indexes


def test_the_cache_belongs_to_the_file_that_was_read(cached: Cached, monkeypatch: pytest.MonkeyPatch) -> None:
    write = IndexCache.write

    def replace_first(cache: IndexCache, *arguments: Any) -> Written:
        other = cached.path.with_name("other")
        other.write_bytes(TEXTS["ids"].replace(b"|x 1 0\n1 ", b"|x 1 0\n0 "))
        os.utime(other, ns=(cached.path.stat().st_atime_ns, cached.path.stat().st_mtime_ns))
        other.rename(cached.path)
        return write(cache, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(IndexCache, "write", replace_first)
        assert cached.read().lengths == [2] * 50
    assert cached.read().lengths == cached.read().lengths == [3, 1] + [2] * 48


# -- damage ------------------------------------------------------------------------------------------------------------


def wrong_of_mutated(folder: Path, count: int, seed: int) -> tuple[int, int]:
    """Read damaged caches; return the number that delivered other data, and the number that were made again."""
    chance = random.Random(seed)
    prepared = [(one, one.read(cache_index=False), one.read(), one.cache) for one in corpora(folder).values()]
    wholes = [cache.read_bytes() for *_, cache in prepared]
    num_wrong = num_made = 0
    for number in range(count):
        cached, plain, _, cache = prepared[number % len(prepared)]
        content = mutated(wholes[number % len(prepared)], chance)
        cache.write_bytes(content)
        num_wrong += cached.read() != plain
        num_made += cache.read_bytes() != content
    return num_wrong, num_made


def test_damaged_caches_deliver_the_data_and_are_made_again(tmp_path: Path) -> None:
    num_wrong, num_made = wrong_of_mutated(tmp_path, rounds(300), seed=1)
    assert num_wrong == 0
    assert num_made > 0.93 * rounds(300)  # a mutation may change nothing


def test_a_damaged_cache_is_logged_in_one_line(cached: Cached, caplog: pytest.LogCaptureFixture) -> None:
    cached.read()
    whole = cached.cache.read_bytes()
    for at in range(40, len(whole), 61):
        cached.cache.write_bytes(flipped(whole, at, 1))
        caplog.clear()
        cached.read()
        (record,) = [record for record in caplog.records if record.levelno >= logging.INFO]
        assert record.getMessage().startswith(f"{cached.cache}: the index cache is damaged: ")
        assert cached.cache.read_bytes() == whole


@pytest.mark.parametrize("when", ["before the first chunk", "after the first chunk"])
@pytest.mark.parametrize("how", ["cut", "overwritten"])
def test_a_cache_may_be_cut_or_overwritten_while_it_is_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, when: str, how: str
) -> None:
    cached = Cached(tmp_path / "data", TEXTS["far ids"])
    plain = cached.read()
    with MinibatchSource(cached.deserializer(), max_sweeps=1, randomize=False) as source:
        minibatches = [source.next_minibatch(3)] if when.startswith("after") else []
        if how == "cut":
            os.truncate(cached.cache, 50)
        else:
            cached.cache.write_bytes(bytes(cached.cache.stat().st_size))
        minibatches += list(source.minibatches(3))
        assert [key for one in minibatches for key in one.keys_of_sequences] == plain.keys
        assert [value for one in minibatches for value in one["x"].values[:, 0].tolist()] == plain.values
    lines = [record for record in caplog.records if "is made again" in record.getMessage()]
    assert len(lines) == 1


def test_hostile_headers_cause_no_error(tmp_path: Path) -> None:
    cached = Cached(tmp_path / "data", b"7 |x 1 0\n" + TEXTS["ids"] + b"7 |x 1 0\n")  # with a remark
    plain = cached.read()
    whole = cached.cache.read_bytes()
    places = list(paths_in(header_of(whole)))
    contents = [
        with_header(whole, lambda header, place=place, value=value: replaced(header, place, value))
        for place in places
        if place[:1] != ("facts",) or place == ("facts",)
        for value in HOSTILE
    ][:: step(3)]
    contents += [with_header(whole, lambda _, text=text: text) for text in (b"[" * 100_000, b"\xff", b"", b"1" * 5000)]
    contents.append(with_header(whole, lambda header: {**header, "arrays": {}}))
    path = cached.cache
    for content in contents:
        path.write_bytes(content)
        assert cached.read() == plain


def test_a_header_beyond_the_file_or_16_mb_is_not_read(cached: Cached, caplog: pytest.LogCaptureFixture) -> None:
    plain, path = cached.read(), cached.cache
    whole = path.read_bytes()
    longest = (1 << 24) - 32
    for size, is_used in ((longest, True), (longest + 1, False)):
        caplog.clear()
        padded = with_header(whole, lambda header, size=size: json.dumps(header).encode().ljust(size))
        path.write_bytes(padded)
        assert cached.read() == plain
        assert (path.read_bytes() == padded) is is_used
        assert ("its header has an impossible length" in caplog.text) is not is_used
    for size in (len(whole) - 31, 2**64 - 1):
        caplog.clear()
        path.write_bytes(whole[:16] + struct.pack("<Q", size) + whole[24:])
        assert cached.read() == plain
        assert "its header has an impossible length" in caplog.text


def test_hostile_facts_raise_no_error_but_a_mismatch(tmp_path: Path) -> None:
    cached = Cached(tmp_path / "data", b"7 |x 1 0\n" + TEXTS["ids"] + b"7 |x 1 0\n")
    cached.read()
    whole = cached.cache.read_bytes()
    path = cached.cache
    places = paths_in(header_of(whole)["facts"], ("facts",))
    for place, value in itertools.islice(itertools.product(places, HOSTILE), 0, None, step(3)):
        path.write_bytes(with_header(whole, lambda header, place=place, value=value: replaced(header, place, value)))
        with contextlib.suppress(CorpusError):
            cached.read()


def test_only_regular_files_are_read_or_replaced(cached: Cached) -> None:
    plain = cached.read()
    path = cached.cache
    path.unlink()
    os.mkfifo(path)
    assert cached.read() == plain
    assert path.is_fifo()
    path.unlink()
    path.mkdir()
    assert cached.read() == plain
    path.rmdir()
    path.symlink_to("/dev/zero")
    assert cached.read() == plain
    assert path.is_symlink()


def test_a_cache_of_another_user_is_ignored(
    cached: Cached, scans: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = cached.read()
    owner = cached.cache.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    caplog.set_level(logging.INFO)
    assert cached.read() == plain
    assert len(scans) == (1 if owner == 0 else 2)  # caches of root are trusted
    if os.getuid() == 0:
        try:
            os.chown(cached.cache, 12345, 12345)
        except OSError as error:
            assert error.errno == errno.EINVAL
            return  # a user namespace without other users
        assert cached.read() == plain
        assert len(scans) == 2
        assert f"{cached.cache}: index cache not used: it belongs to user 12345" in caplog.text


# -- places ------------------------------------------------------------------------------------------------------------


def refuse(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make a folder read-only for everybody; permissions would stop everybody but root."""
    written_whole = output_file.written_whole

    def written(path: Any, **options: Any) -> Any:
        if pathlib.Path(path).parent == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return written_whole(path, **options)

    monkeypatch.setattr(index_cache, "written_whole", written)


def test_the_index_of_a_read_only_folder_is_in_the_users_cache(
    cached: Cached, monkeypatch: pytest.MonkeyPatch, user_folder: Path, scans: list[int]
) -> None:
    refuse(monkeypatch, cached.path.parent)
    assert cached.read() == cached.read()
    assert len(scans) == 1
    assert list(cached.path.parent.iterdir()) == [cached.path]
    (path,) = user_folder.iterdir()
    with contextlib.closing(cached.deserializer().open()) as corpus:
        assert corpus.index.caches[0].indexes == (path,)


def test_without_a_home_folder_the_cache_is_next_to_the_corpus(cached: Cached, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    plain = cached.read()
    path = cached.cache
    path.unlink()
    refuse(monkeypatch, cached.path.parent)
    assert cached.read() == plain
    with contextlib.closing(cached.deserializer().open()) as corpus:
        ((writer,),) = (caches.writers for caches in corpus.index.caches)
        written = writer.wait()
        assert written.path is None
        assert written.failures == [f"{path}: Permission denied"]


def test_a_cache_of_access_points_is_not_an_index_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    path = tmp_path / "a.ctf.gz"
    path.write_bytes(gzip.compress(b"".join(b"|x %d %d\n" % (number, number**5) for number in range(3000))))
    deserializer = CTFDeserializer(path, StreamDefs(x=StreamDef(field="x", shape=2)), cache_index=True)
    deserializer.index_caches()
    with contextlib.closing(deserializer.open()) as corpus:
        (caches,) = corpus.index.caches
        index, points = caches.paths()
        assert caches.publish() == str(index)
    # A folder has the name of the index, next to the text and in the user's folder.
    index.unlink()
    index.mkdir()
    (second,) = (file for file in deserializer.index_caches() if file != points)
    second.unlink()
    second.mkdir()
    with contextlib.closing(deserializer.open()) as corpus:
        (caches,) = corpus.index.caches
        assert caches.paths() == [points]
        assert caches.publish() is None


def test_the_error_about_a_mismatched_index_names_its_cache(cached: Cached) -> None:
    for _ in range(2):  # the second time the index comes from the cache
        corpus = cached.deserializer().open()
        (caches,) = corpus.index.caches
        caches.paths()
        advice = f"delete the index cache '{cached.cache}'" if caches.indexes else "open it again"
        places = corpus.index.layout.places.of_chunk(0, 0, 5)
        corpus.index.layout.places.of_chunk = lambda *_, places=places: places._replace(end=1 << 40)  # type: ignore[method-assign]
        with pytest.raises(CorpusError) as caught:
            corpus.load(0)
        assert str(caught.value) == f"{cached.path}: the index does not match the file; {advice}"
        corpus.close()
    assert "delete" in advice


# -- the thread that writes --------------------------------------------------------------------------------------------


def test_reading_begins_while_the_cache_is_written(cached: Cached, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    write = IndexCache.write

    def slow(*arguments: Any) -> Written:
        assert threading.current_thread() is not threading.main_thread()
        assert goes_on.wait(60)
        return write(*arguments)

    monkeypatch.setattr(IndexCache, "write", slow)
    source = MinibatchSource(cached.deserializer(), max_sweeps=1)
    assert source.next_minibatch(10).num_sequences == 5
    assert list(cached.path.parent.iterdir()) == [cached.path]
    goes_on.set()
    source.close()
    assert cached.cache.exists()


def test_a_cache_that_cannot_be_written_changes_nothing(
    cached: Cached, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Written:
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(IndexCache, "write", broken)
    assert cached.read().values == list(range(100))
    assert "an index cache was not written: ZeroDivisionError('broken')" in caplog.text


def test_without_threads_the_cache_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    written = Written(Path("a"), [])
    assert CacheWriter(lambda: written).wait() == written


# -- compactness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "most"),
    [(b"|x 1 0\n", 5), (b"%d |x 1 0\n", 5), (b"%d |x 1 0\n%d |x 2 0\n|x 3 0\n", 12), (b"9%d |x 1 0\n9%d |x 1 0\n", 12)],
)
def test_an_index_takes_few_bytes_for_each_sequence(tmp_path: Path, text: bytes, most: int) -> None:
    count = 20_000
    chance = np.random.default_rng(1)
    keys = chance.permutation(count) if b"9" in text else np.arange(count)
    lines = (text % ((key,) * text.count(b"%d")) for key in keys.tolist())
    cached = Cached(tmp_path / "data", b"".join(lines))
    cached.read(chunk_size_in_bytes=1 << 20)
    assert cached.cache.stat().st_size <= most * count + 1500


def test_chunks_of_4_gib_and_more_have_longer_starts() -> None:
    starts = [np.array(starts, np.uint32) for starts in ([0], [0, 7])]
    blocks = [(begin, of_block, None) for begin, of_block in zip((5, 1 << 32), starts, strict=True)]
    places, chunk_starts = Places.of(blocks, [1 << 32, 1 << 34], 3 << 32)
    assert chunk_starts.tolist() == [0, 2, 3]
    first, second = places.of_chunk(0, 0, 2), places.of_chunk(1, 2, 3)
    assert (first.begin, first.end, first.starts.tolist()) == (5, (1 << 32) + 7, [0, (1 << 32) - 5])
    assert (second.begin, second.end, second.starts.tolist()) == ((1 << 32) + 7, 1 << 34, [0])
    assert first.starts.dtype == np.uint64


def test_a_chunk_with_4_gib_of_text_left_out_has_longer_starts() -> None:
    starts, sizes = np.array([0, 7], np.uint32), np.array([7, 9], np.uint32)
    blocks = [(begin, starts, sizes) for begin in (5, 5 << 30)]
    places, chunk_starts = Places.of(blocks, [30, (5 << 30) + 16], 30)
    # The text between the second and the third sequence does not count, unless another sequence follows.
    assert chunk_starts.tolist() == [0, 3, 4]
    chunk = places.of_chunk(0, 0, 3)
    each = [chunk.only(np.array([number], np.uint32)) for number in range(3)]
    assert [(one.begin, one.end) for one in each] == [(5, 12), (12, 21), (5 << 30, (5 << 30) + 7)]
    assert places.of_chunk(1, 3, 4)[:2] == ((5 << 30) + 7, (5 << 30) + 16)


if __name__ == "__main__":
    asked, seed = (int(number) for number in [*sys.argv[1:], "1"][:2])
    with tempfile.TemporaryDirectory() as temporary:
        logging.disable()
        num_wrong, num_made = wrong_of_mutated(Path(temporary), asked, seed)
    print(f"{asked} damaged caches (seed {seed}): {num_wrong} delivered other data, {num_made} were made again")
    sys.exit(num_wrong > 0)

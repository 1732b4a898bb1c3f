"""Faults of remote stores and caches beyond single texts: several files, compressed files, processes, damaged disks."""

import gzip
import multiprocessing
import random
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import zstandard
from cntkio import CorpusError, CTFDeserializer, MinibatchSource, Remote, StreamDef, StreamDefs
from cntkio.formats import corpus
from cntkio.storage import stores
from support.range_server import RangeServer, Request, range_server

pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")
pytest.importorskip("aiohttp", reason="fsspec reads http only with aiohttp")

X = StreamDefs(x=StreamDef(field="x", shape=2))
PACKS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
}
NUM_FILES, LINES = 4, 2000


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RangeServer]:
    monkeypatch.setattr(stores, "FIRST_PAUSE", 0.001)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    with range_server() as served:
        yield served


def put(server: RangeServer, pack: str, first: int = 0) -> str:
    """Serve a corpus of several files, and return its pattern."""
    for number in range(NUM_FILES):
        keys = range(first + number * LINES, first + (number + 1) * LINES)
        text = b"".join(b"|x %d %d\n" % (key, random.Random(key).randrange(10**9)) for key in keys)
        server.files[f"{number}.ctf"] = PACKS[pack](text)
    return f"{server.url}/{{0..{NUM_FILES - 1}}}.ctf"


def source_of(pattern: str, cache: Path | None) -> MinibatchSource:
    remote = Remote(num_retries=3, cache=cache)
    corpus = CTFDeserializer(pattern, X, chunk_size_in_bytes=4000, remote=remote)
    return MinibatchSource(corpus, max_sweeps=1, randomize=False, read_ahead_in_bytes=0)


def values(source: MinibatchSource) -> list[float]:
    return [value for minibatch in source.minibatches(100) for value in minibatch["x"].values[:, 0].tolist()]


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("pack", PACKS)
def test_a_changed_file_of_a_remote_concatenation_is_named(
    pack: str, cached: bool, server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "MOST_OPEN", 1)
    pattern = put(server, pack)
    with source_of(pattern, tmp_path / "cache" if cached else None) as source:
        assert len(source.next_minibatch(100)["x"].values) == 100
        put(server, pack, first=10**6)
        with pytest.raises(CorpusError, match=r"/[0-3]\.ctf: changed while"):
            values(source)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("pack", PACKS)
def test_faults_that_pass_change_no_value_of_a_concatenation(
    pack: str, cached: bool, server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "MOST_OPEN", 1)
    pattern = put(server, pack)
    choose = random.Random(pack)
    failed: set[tuple[str, str, int | None]] = set()

    def fault(request: Request) -> str:
        key = (request.method, request.path, request.begin)
        if key in failed or choose.random() < 0.5:
            return ""
        failed.add(key)
        return choose.choice(("500", "503", "short", "drop"))

    server.fault = fault
    for _ in range(2):
        with source_of(pattern, tmp_path / "cache" if cached else None) as source:
            assert values(source) == list(range(NUM_FILES * LINES))
    assert failed


def send_values(source: MinibatchSource, connection: Connection) -> None:
    try:
        connection.send(values(source))
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")
    connection.close()


@pytest.mark.parametrize(
    ("way", "pack"),
    [
        ("fork", "plain"),
        ("fork", "zstd"),
        ("spawn", "gzip"),
        pytest.param("forkserver", "plain", marks=pytest.mark.thorough),
    ],
)
def test_processes_read_after_the_parent_has_read(way: str, pack: str, server: RangeServer, tmp_path: Path) -> None:
    source = source_of(put(server, pack), tmp_path / "cache")
    begin = source.next_minibatch(100)["x"].values[:, 0].tolist()
    context = multiprocessing.get_context(way)
    answers = []
    for _ in range(2 if way == "fork" else 1):
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=send_values, args=(source, sending))
        process.start()
        sending.close()
        assert receiving.poll(100), "the process hangs"
        answers.append(receiving.recv())
        process.join(10)
    assert all(begin + answer == list(range(NUM_FILES * LINES)) for answer in answers), answers[0][:200]
    assert begin + values(source) == list(range(NUM_FILES * LINES))
    source.close()


def test_damaged_bytes_of_a_remote_compressed_file_are_an_error(server: RangeServer) -> None:
    pattern = put(server, "zstd")
    content = bytearray(server.files["2.ctf"])
    content[len(content) // 2] ^= 255
    server.files["2.ctf"] = bytes(content)
    with pytest.raises(ValueError, match=r"2\.ctf"), source_of(pattern, None) as source:
        values(source)

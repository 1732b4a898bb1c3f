"""A text in a remote store is read like the same text in a local file: minibatches, states, places of errors."""

import gzip
import random
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from cntkio import (
    CntkIoError,
    ConfigError,
    CorpusError,
    CTFDeserializer,
    FormatError,
    MinibatchSource,
    Remote,
    StreamDef,
    StreamDefs,
    infer_streams,
    read_ctf,
)
from cntkio.cli import main
from cntkio.storage import block_cache, open_input, stores
from cntkio.storage.remote import RequestSlots
from support.forks import in_a_fork
from support.range_server import RangeServer, Request, range_server

fsspec = pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")

X, Y = StreamDefs(x=StreamDef(field="x", shape=2)), StreamDefs(y=StreamDef(field="y", shape=9, is_sparse=True))


@pytest.fixture(autouse=True)
def small_requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user cache"))
    monkeypatch.setattr(stores, "FIRST_PAUSE", 0.001)


@pytest.fixture
def server() -> Iterator[RangeServer]:
    pytest.importorskip("aiohttp", reason="fsspec reads http only with aiohttp")
    with range_server() as served:
        yield served


def in_memory(name: str, content: bytes) -> str:
    url = f"memory://remote-input/{name}"
    fsspec.filesystem("memory").pipe(url, content)
    return url


def random_corpus(choose: random.Random, stream: str, num_sequences: int) -> bytes:
    """Return sequences with ids in a random order, of a random number of lines; some have errors."""
    ids = list(range(num_sequences))
    choose.shuffle(ids)
    lines = []
    for key in ids:
        for _ in range(choose.randrange(1, 5)):
            values = (
                f"{choose.randrange(10**6)} {choose.randrange(99)}" if stream == "x" else f"{choose.randrange(9)}:1"
            )
            wrong = " 5 5 5" if choose.random() < 0.01 else ""
            lines.append(f"{key} |{stream} {values}{wrong}\n")
    return "".join(lines).encode()


def plain(value: Any) -> Any:
    """Return arrays as lists, so that results can be compared."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def outcome(
    deserializers: list[CTFDeserializer], names: dict[str, str], partition: tuple[int, int] = (1, 0), **options: Any
) -> Any:
    """Return all that a source delivers, its reports and a state; or the error, with the names of the local files."""
    try:
        with MinibatchSource(deserializers, max_sweeps=2, **options) as source:
            read = [source.next_minibatch(5)]
            state = {name: source.state_dict()[name] for name in ("timeline", "data")}
            read += source.minibatches(17, *partition)
            counts = source.error_counts, source.warning_counts
    except (CntkIoError, OSError) as error:
        text = str(error)
        for remote, local in names.items():
            text = text.replace(remote, local)
        return type(error), text
    shown = [
        (
            plain(minibatch.keys_of_sequences),
            [(plain(data.values), plain(data.mask), data.end_of_sweep) for data in minibatch.values()],
        )
        for minibatch in read
        if minibatch
    ]
    return shown, counts, state


@pytest.mark.parametrize("seed", range(16))
def test_a_remote_text_equals_a_local_text(
    seed: int, tmp_path: Path, server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = random.Random(seed)
    monkeypatch.setattr(stores, "PART", choose.choice((200, 1 << 20)))
    block = choose.choice((100, 500, 1 << 20))
    monkeypatch.setattr(block_cache, "BLOCK", block)
    monkeypatch.setattr(block_cache, "WORTH_A_BLOCK", block // 4)
    num_sequences = choose.randrange(1, 25)
    contents = {f"{stream}-{seed}.ctf": random_corpus(choose, stream, num_sequences) for stream in "xy"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    server.files.update(contents)
    local = {name: str(tmp_path / name) for name in contents}
    options: dict[str, Any] = {"randomize": choose.random() < 0.7}
    if choose.random() < 0.3:
        options["truncation_length"] = choose.randrange(1, 4)
    partition = (2, choose.randrange(2)) if choose.random() < 0.3 else (1, 0)
    of_corpora = {
        "chunk_size_in_bytes": choose.choice((100, 300, 1 << 20)),
        "max_errors": choose.choice((0, 2, -1)),
    }
    joined = choose.random() < 0.5

    def read(paths: dict[str, str], remote: Remote | None = None, *, cache_index: bool = False) -> Any:
        deserializers = [
            CTFDeserializer(path, streams, remote=remote, cache_index=cache_index, **of_corpora)
            for path, streams in zip(paths.values(), (X, Y) if joined else (X,), strict=False)
        ]
        return outcome(deserializers, dict(zip(paths.values(), local.values(), strict=True)), partition, **options)

    expected = read(local)
    memory = {name: in_memory(name, content) for name, content in contents.items()}
    http = {name: f"{server.url}/{name}" for name in contents}
    assert read(memory) == expected
    assert read(http) == expected
    assert [read(http, cache_index=True) for _ in range(2)] == [expected] * 2
    cache = Remote(cache=tmp_path / "cache", cache_limit=choose.choice((None, 5000 + 2 * block)))
    assert [read(http, cache) for _ in range(2)] == [expected] * 2


def test_every_kind_of_store_and_path_is_read(tmp_path: Path, server: RangeServer) -> None:
    content = random_corpus(random.Random(1), "x", 40).replace(b" 5 5 5", b"")
    path = tmp_path / "a.ctf"
    path.write_bytes(content)
    server.files["a.ctf"] = content
    url = in_memory("a.ctf", content)
    expected = outcome([CTFDeserializer(path, X)], {})
    named: list[tuple[Any, Remote | None]] = [
        (url, None),
        (Path(url), None),
        (f"{server.url}/a.ctf", None),
        (f"simplecache::{server.url}/a.ctf", None),
        (f"file://{path}", None),
        ("/remote-input/a.ctf", Remote(store=fsspec.filesystem("memory"))),
    ]
    for name, remote in named:
        assert outcome([CTFDeserializer(name, X, remote=remote)], {}) == expected, name
        assert infer_streams(name, remote=remote) == infer_streams(path)
        assert read_ctf(name, remote=remote)["x"].values.tolist() == read_ctf(path)["x"].values.tolist()


# --------------------------------------------------------------------------------------------------------------- faults


def sequences(number: int) -> bytes:
    return b"".join(b"|x %d 1\n" % line for line in range(number))


def opened(server: RangeServer, content: bytes, timeout: float = 60, **options: Any) -> MinibatchSource:
    server.files["a.ctf"] = content
    remote = Remote(num_retries=1, timeout_in_seconds=timeout)
    deserializer = CTFDeserializer(f"{server.url}/a.ctf", X, chunk_size_in_bytes=1000, remote=remote)
    return MinibatchSource(deserializer, max_sweeps=1, read_ahead_in_bytes=0, randomize=False, **options)


def replaced(server: RangeServer) -> None:
    server.files["a.ctf"] = server.files["a.ctf"].replace(b" 1\n", b" 2\n")


def deleted(server: RangeServer) -> None:
    del server.files["a.ctf"]


def answering(fault: str) -> Callable[[RangeServer], None]:
    def begin(server: RangeServer) -> None:
        server.fault = lambda request: fault

    return begin


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (replaced, CorpusError, r"a\.ctf: changed while it was read; open it again"),
        (deleted, CorpusError, r"a\.ctf: changed while it was read: it was deleted"),
        (answering("500"), OSError, r"Cannot read .*500.*a\.ctf"),
        (answering("short"), OSError, r"Cannot read bytes \d+ to \d+ .*a\.ctf"),
        (answering("hang"), TimeoutError, r"Cannot read .* \(no answer in 0\.2 s\)"),
        (answering("403"), PermissionError, r"The store refuses"),
    ],
)
def test_a_fault_in_mid_sweep_is_an_error_that_names_the_object(
    server: RangeServer, change: Callable[[RangeServer], None], kind: type[Exception], message: str
) -> None:
    with opened(server, sequences(3000), 0.2 if kind is TimeoutError else 60) as source:
        delivered = source.next_minibatch(10)["x"].values[:, 1].tolist()
        change(server)
        with pytest.raises(kind, match=message):
            for minibatch in source.minibatches(10):
                delivered += minibatch["x"].values[:, 1].tolist()
        assert set(delivered) == {1.0}


def test_faults_that_pass_change_nothing(server: RangeServer) -> None:
    with opened(server, sequences(3000)) as source:
        faults = random.Random(0)
        # Each object has a request and a repetition, so two faults in a row would be an error.
        failed: set[Any] = set()

        def fault(request: Request) -> str:
            if (request.begin, request.method) in failed or faults.random() < 0.5:
                return ""
            failed.add((request.begin, request.method))
            return faults.choice(("500", "short"))

        server.fault = fault
        values = [value for minibatch in source.minibatches(10) for value in minibatch["x"].values[:, 0].tolist()]
    assert values == list(range(3000))
    assert failed


def test_a_missing_object_and_a_missing_server_are_errors_of_the_system(server: RangeServer) -> None:
    with pytest.raises(FileNotFoundError, match=r"No such object: 'http.*b\.ctf'"):
        CTFDeserializer(f"{server.url}/b.ctf", X).open()
    with pytest.raises(OSError, match=r"Cannot read its facts"):
        CTFDeserializer("http://127.0.0.1:1/b.ctf", X, remote=Remote(num_retries=0)).open()


def test_errors_of_the_format_name_url_line_and_column() -> None:
    url = in_memory("bad.ctf", b"|x 1 2\n|x 1 2 3\n")
    with pytest.raises(FormatError, match=rf"{re.escape(url)}, line 2, column \d+ .*3 values"):
        read_ctf(url, X)
    url = in_memory("other.ctf", b"\xff\xfe1\x00")
    with pytest.raises(FormatError, match="UTF-16"):
        read_ctf(url, X)
    url = in_memory("empty.ctf", b"")
    with pytest.raises(FormatError, match="the file is empty"):
        read_ctf(url, X)


def test_a_cache_needs_a_store_that_reports_versions(server: RangeServer, tmp_path: Path) -> None:
    server.files["a.ctf"] = sequences(10)
    server.has_versions = False
    url = f"{server.url}/a.ctf"
    assert len(read_ctf(url, X)["x"].values) == 10
    with pytest.raises(ConfigError, match="the store reports neither a version nor a time"):
        read_ctf(url, X, remote=Remote(cache=tmp_path))


# --------------------------------------------------------------------------------------------------------- few requests


def test_opening_and_reading_make_few_requests(server: RangeServer) -> None:
    content = sequences(100_000)
    server.files["a.ctf"] = content
    url = f"{server.url}/a.ctf"
    deserializer = CTFDeserializer(url, X, chunk_size_in_bytes=1 << 18, cache_index=True)
    with MinibatchSource(deserializer, max_sweeps=1) as source:
        assert source.num_sequences == 100_000
    # Facts, an index next to it (two requests), the first bytes, the pass, facts again for the cache of the index.
    assert len(server.requests) <= 6 + -(-len(content) // stores.PART)
    server.requests.clear()
    with MinibatchSource(deserializer, max_sweeps=1) as source:
        # Facts, the first bytes, which show whether the text is compressed, and facts again.
        assert len(server.requests) <= 3
        num_first = sum(request.begin is not None for request in server.requests)
        assert sum(len(minibatch["x"].values) for minibatch in source.minibatches(1000)) == 100_000
    num_ranges = sum(request.begin is not None for request in server.requests)
    assert num_ranges - num_first == -(-len(content) // (1 << 18))


def test_the_command_writes_an_index_that_all_readers_find(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = sequences(50_000)
    for url in (in_memory("indexed.ctf", content), f"{server.url}/indexed.ctf"):
        server.files["indexed.ctf"] = content
        assert main(["index", url]) == 0
        assert f"{url}." in capsys.readouterr().out
    memory = fsspec.filesystem("memory")
    assert len(memory.glob("/remote-input/indexed.ctf.*.index")) == 1
    assert sorted(server.files)[1].endswith(".index")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache of another rank"))
    server.requests.clear()
    corpus = CTFDeserializer(f"{server.url}/indexed.ctf", X, cache_index=True).open()
    assert corpus.table.num_sequences == 50_000
    # Only the first bytes of the text are read, which show whether it is compressed.
    of_text = [request for request in server.requests if request.method == "GET" and request.path.endswith(".ctf")]
    assert all(request.end is not None and request.end <= 1 << 16 < len(content) for request in of_text)
    index = memory.glob("/remote-input/indexed.ctf.*.index")[0]
    memory.pipe(index, b"damaged")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache of a third rank"))
    corpus = CTFDeserializer("memory://remote-input/indexed.ctf", X, cache_index=True).open()
    assert corpus.table.num_sequences == 50_000


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_indexes_of_a_pattern_are_next_to_each_object(
    pack: Callable[[bytes], bytes],
    server: RangeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(open_input, "HEAD", 100)
    for number in range(3):
        lines = [b"|x %d %d\n" % (number, random.Random(line).randrange(10**9)) for line in range(3000)]
        server.files[f"many-{number}.ctf"] = pack(b"".join(lines))
    texts = dict(server.files)
    pattern = f"{server.url}/many-{{0..2}}.ctf"
    assert main(["index", "--json", pattern]) == 0
    assert f"{server.url}/many-0.ctf." in capsys.readouterr().out
    of_each = [[name for name in server.files if name.startswith(text) and name.endswith(".index")] for text in texts]
    assert [len(names) for names in of_each] == [1 if pack is bytes else 2] * 3
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache of another rank"))
    server.requests.clear()
    with MinibatchSource(CTFDeserializer(pattern, X, cache_index=True), max_sweeps=1) as source:
        read = [one for one in server.requests if one.method == "GET" and one.path.lstrip("/") in texts]
        assert sum((one.end or 10**9) - (one.begin or 0) for one in read) <= 600  # both ends of each text
        assert sum(len(minibatch["x"].values) for minibatch in source.minibatches(1000)) == 9000


def test_chunks_are_requested_ahead_and_in_parallel(server: RangeServer) -> None:
    server.files["a.ctf"] = sequences(50_000)
    url = f"{server.url}/a.ctf"
    deserializer = CTFDeserializer(url, X, chunk_size_in_bytes=1 << 14, cache_index=True)
    deserializer.open().close()
    server.latency, server.most_at_once = 0.03, 0
    with MinibatchSource(deserializer, max_sweeps=1) as source:
        assert sum(len(minibatch["x"].values) for minibatch in source.minibatches(1000)) == 50_000
    assert 6 <= server.most_at_once <= 9


def test_refuses_a_cache_too_small_for_a_window_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_cache, "BLOCK", 1000)
    url = in_memory("window.ctf", sequences(3000))
    remote = Remote(cache=tmp_path, cache_limit="10 kB")
    deserializer = CTFDeserializer(url, X, chunk_size_in_bytes=1000, remote=remote)
    with MinibatchSource(deserializer, randomization_window_in_chunks=1, max_sweeps=1) as source:
        assert source.num_sequences == 3000
    for window in (
        {"randomization_window_in_chunks": 7},
        {"randomization_window_in_chunks": 0, "randomization_window_in_samples": 700},
    ):
        with pytest.raises(
            ConfigError, match=r"cache_limit is 10,000 bytes, but a window of \d chunks? needs"
        ) as caught:
            MinibatchSource(deserializer, **window)
        least = re.search(r"needs ([\d,]+)", str(caught.value))
        assert least is not None
        enough = Remote(cache=tmp_path, cache_limit=int(least[1].replace(",", "")))
        MinibatchSource(CTFDeserializer(url, X, chunk_size_in_bytes=1000, remote=enough), **window).close()
    with pytest.raises(ConfigError, match=r"a window of 29 chunks needs 30,624"):
        MinibatchSource([CTFDeserializer(url, X, chunk_size_in_bytes=1000, remote=remote)])


def test_patterns_name_objects_of_a_store() -> None:
    for number in range(3):
        in_memory(f"parts/part-{number}.ctf", sequences(10 + number))
    in_memory("parts/more/other.ctf", sequences(2))
    for pattern, count in (
        ("memory://remote-input/parts/part-*.ctf", 33),
        ("memory://remote-input/parts/part-{2,0}.ctf", 22),
        ("memory://remote-input/parts/part-[01].ctf", 21),
        ("memory://remote-input/parts/**/*.ctf", 35),
        (["memory://remote-input/parts/part-1.ctf", "memory://remote-input/parts/part-0.ctf"], 21),
    ):
        assert len(read_ctf(pattern, X)["x"].values) == count, pattern
    with pytest.raises(FileNotFoundError, match=r"No file matches the pattern; .*'part-\d\.ctf'"):
        read_ctf("memory://remote-input/parts/prat-*.ctf", X)


def test_a_cached_corpus_is_read_from_the_disk_alone(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_cache, "WORTH_A_BLOCK", 1000)
    server.files["a.ctf"] = sequences(3000)
    remote = Remote(cache=tmp_path / "cache")
    deserializer = CTFDeserializer(f"{server.url}/a.ctf", X, cache_index=True, remote=remote)
    expected = outcome([deserializer], {})
    deserializer = CTFDeserializer(f"{server.url}/a.ctf", X, cache_index=True, remote=remote)
    server.requests.clear()
    server.fault = lambda request: "" if request.method == "HEAD" else "403"
    assert outcome([deserializer], {}) == expected
    assert len(server.requests) == 1


# ---------------------------------------------------------------------------------------------------------------- forks


def test_forks_read_after_the_parent_has_read(server: RangeServer) -> None:
    server.files["a.ctf"] = sequences(3000)
    source = MinibatchSource(CTFDeserializer(f"{server.url}/a.ctf", X, chunk_size_in_bytes=1000), randomize=False)
    begin = source.next_minibatch(10)["x"].values[:, 0].tolist()

    def rest() -> bool:
        values = [source.next_minibatch(10)["x"].values[:, 0].tolist() for _ in range(299)]
        return sum(values, begin) == list(range(3000))

    assert in_a_fork(rest) == "True"
    assert in_a_fork(rest) == "True"
    assert rest()
    source.close()


# ---------------------------------------------------------------------------------------------------------- the command


def test_the_command_reads_urls(capsys: pytest.CaptureFixture[str]) -> None:
    url = in_memory("command.ctf", b"".join(b"|x %d %d\n" % (line, line % 3) for line in range(30)))
    for verb in ("inspect", "head", "check", "bench"):
        assert main([verb, url]) == 0, verb
        assert "30" in capsys.readouterr().out or verb == "head"


def test_no_message_shows_passwords_and_signatures_of_urls(server: RangeServer) -> None:
    server.files |= {"a.ctf": b"|x 1 2\n", "b.ctf": b"|x 3 4\n"}
    place = f"http://me:secret@{server.url.removeprefix('http://')}"
    names = [f"{place}/a.ctf?signature=hidden", f"{place}/b.ctf?signature=hidden"]
    corpus = CTFDeserializer(names, X, remote=Remote(num_retries=0))
    with MinibatchSource(corpus, randomize=False, max_sweeps=1) as source:
        minibatch = source.next_minibatch(9)
        texts = [repr(corpus), corpus.label, repr(source), str(source.state_dict()), str(minibatch.files_of_sequences)]
    assert minibatch["x"].values.tolist() == [[1, 2], [3, 4]] and f"{server.url}/b.ctf" in texts[-1]
    for wrong in (
        f"{place}/none.ctf?signature=hidden",
        f"{place}/none-*.ctf",
        [*names, names[0]],
        "http://me:secret@127.0.0.1:1/a.ctf",
        "http://me:secret@127.0.0.1:1/*.ctf",
    ):
        with pytest.raises((OSError, ConfigError)) as raised:
            CTFDeserializer(wrong, X, remote=Remote(num_retries=0)).open()
        texts.append("".join(traceback.format_exception(raised.value)))
    assert not [text for text in texts if "secret" in text or "hidden" in text]


def test_wildcards_need_a_server_that_lists_its_folders(server: RangeServer) -> None:
    server.files |= {"d/a-0.ctf": b"|x 1 2\n", "d/a-1.ctf": b"|x 3 4\n"}
    corpus = CTFDeserializer(f"{server.url}/d/a-*.ctf", X)
    with pytest.raises(FileNotFoundError, match=r"the server does not list .*/d/': name the files, .* \{000\.\.127\}"):
        corpus.open()
    server.files["d/"] = b'<a href="a-0.ctf">first</a> <a href="a-1.ctf">second</a>'
    assert corpus.open().table.num_sequences == 2


def test_a_store_that_cannot_be_listed_is_named(server: RangeServer) -> None:
    server.fault = lambda request: "500"
    with pytest.raises(OSError, match=r"Cannot list the objects of the store \(ClientResponseError: 500.*/d/\*\.ctf"):
        CTFDeserializer(f"{server.url}/d/*.ctf", X).open()


def test_a_url_with_a_query_is_a_file_also_without_its_server(server: RangeServer) -> None:
    with pytest.raises(FileNotFoundError, match=r"No such object.*none\.ctf"):
        CTFDeserializer(f"{server.url}/none.ctf?id=1", X).open()
    with pytest.raises(OSError, match=r"Cannot read its facts \(.*a\.ctf"):
        CTFDeserializer("http://127.0.0.1:1/a.ctf?id=1", X, remote=Remote(num_retries=0)).open()


def test_a_missing_fsspec_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ConfigError, match=r"needs fsspec, which is not installed: pip install fsspec$"):
        infer_streams("memory://a.ctf")


def test_a_fork_has_all_request_slots_and_no_more() -> None:
    slots = RequestSlots(1)

    def in_the_fork() -> bool:
        with slots:
            pass
        with slots:
            other = threading.Thread(target=slots.__enter__, daemon=True)
            other.start()
            other.join(0.05)
            return other.is_alive()

    with slots:
        assert in_a_fork(in_the_fork) == "True"

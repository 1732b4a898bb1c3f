"""Objects of remote stores: parallel reads, requests that are repeated after errors that may pass, noticed changes."""

import errno
import os
import pickle
import socket
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any

import numpy as np
import pytest
from cntkio import ConfigError, CorpusError
from cntkio.storage import stores
from cntkio.storage.names import is_remote, located, shown
from cntkio.storage.remote import Remote
from cntkio.storage.stores import RemoteFiles, RemoteObject, may_pass
from support.forks import in_a_fork
from support.range_server import RangeServer, Request, range_server

fsspec = pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")

CONTENT = np.random.default_rng(0).integers(0, 256, 3_000_000, np.uint8).tobytes()
QUICK = Remote(num_retries=2, timeout_in_seconds=1)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    pytest.importorskip("aiohttp", reason="fsspec reads http only with aiohttp")
    monkeypatch.setattr(stores, "PART", 100_000)
    monkeypatch.setattr(stores, "FIRST_PAUSE", 0.001)
    with range_server(**{"a.ctf": CONTENT}) as served:
        yield served


def opened(server: RangeServer, remote: Remote = QUICK) -> RemoteObject:
    return RemoteObject(f"{server.url}/a.ctf", remote)


def at_first(fault: str) -> Callable[[Request], str]:
    """Let the first request for each range fail, whatever the order of the requests."""
    asked: set[tuple[str, int | None]] = set()

    def fails(request: Request) -> str:
        key = (request.method, request.begin)
        is_first = key not in asked
        asked.add(key)
        return fault if is_first else ""

    return fails


def always(fault: str) -> Callable[[Request], str]:
    return lambda request: fault


# ------------------------------------------------------------------------------------------------------------ ranges


def test_parts_of_a_range_are_requested_at_the_same_time(server: RangeServer) -> None:
    found = opened(server)
    server.latency = 0.02
    assert found.read(0, len(CONTENT)) == CONTENT
    assert len(server.requests) == 31
    assert 2 <= server.most_at_once <= 8


def test_requests_of_all_objects_together_stay_within_the_limit(server: RangeServer) -> None:
    remote = Remote(num_requests=2)
    first, second = opened(server, remote), opened(server, remote)
    server.latency = 0.005
    with stores.Workers(2, "readers") as readers:
        jobs = [readers.do(found.read, 0, 1_000_000) for found in (first, second)]
        assert [job.result() == CONTENT[:1_000_000] for job in jobs] == [True, True]
    assert server.most_at_once <= 2


def test_a_part_of_an_object_is_read_and_no_more(server: RangeServer) -> None:
    assert opened(server).read(7, 19) == CONTENT[7:19]
    request = server.requests[-1]
    assert (request.begin, request.end) == (7, 19)


@pytest.mark.parametrize("kind", ["memory", "fsspec", "obstore", "pyarrow"])
def test_every_kind_of_store_reports_facts_ranges_and_changes(kind: str, tmp_path: Any) -> None:
    path, remote = "folder/a.ctf", Remote()
    (tmp_path / "folder").mkdir()
    (tmp_path / path).write_bytes(CONTENT)
    if kind == "memory":
        path = f"memory://{tmp_path.name}/{path}"
        fsspec.filesystem("memory").pipe(path, CONTENT)
    elif kind == "fsspec":
        remote = Remote(store=fsspec.filesystem("dir", path=str(tmp_path), target_protocol="file"))
    elif kind == "obstore":
        remote = Remote(store=pytest.importorskip("obstore").store.LocalStore(tmp_path))
    else:
        pyarrow = pytest.importorskip("pyarrow.fs")
        remote = Remote(store=pyarrow.SubTreeFileSystem(str(tmp_path), pyarrow.LocalFileSystem()))
    found = RemoteObject(path, remote)
    assert found.facts.size == len(CONTENT)
    assert found.facts.version
    assert found.read(10, 2_000_000) == CONTENT[10:2_000_000]
    found.require_unchanged()
    assert RemoteFiles(remote).matching(path.replace("a.ctf", "?.c*")) == [path]
    assert RemoteFiles(remote).matching(path.replace("a.ctf", "?.tsv")) == []
    with pytest.raises(FileNotFoundError, match="No such object"):
        RemoteObject(path + "2", remote)
    time.sleep(0.02)
    if kind == "memory":
        fsspec.filesystem("memory").pipe(path, CONTENT[1:])
    else:
        (tmp_path / path).write_bytes(CONTENT[1:])
    with pytest.raises(CorpusError, match=r"a\.ctf: changed while it was read"):
        found.read(5, 100)
        found.require_unchanged()


# ------------------------------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize("fault", ["500", "503", "429", "drop", "short", "shifted", "more"])
def test_a_request_is_repeated_after_errors_that_pass(server: RangeServer, fault: str) -> None:
    found = opened(server)
    server.fault = at_first(fault)
    assert found.read(0, 250_000) == CONTENT[:250_000]
    found.require_unchanged()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("500", "500"),
        ("drop", "ServerDisconnected"),
        ("short", "ContentLength"),
        ("whole", "it ignores ranges"),
        ("shifted", "the server returned bytes 6-25/3000000; expected bytes 5-24"),
        ("more", "the server returned bytes 5-25/3000000; expected bytes 5-24"),
    ],
)
def test_permanent_errors_name_object_range_and_reason(server: RangeServer, fault: str, reason: str) -> None:
    found = opened(server)
    server.fault = always(fault)
    num_before = len(server.requests)
    with pytest.raises(OSError, match=rf"Cannot read bytes 5 to 25.*{reason}.*http://.*a\.ctf") as caught:
        found.read(5, 25)
    assert caught.value.errno == errno.EIO
    assert len(server.requests) - num_before <= 6  # aiohttp repeats a request that was dropped


def test_a_request_without_permission_is_not_repeated(server: RangeServer) -> None:
    found = opened(server)
    server.fault = always("403")
    with pytest.raises(PermissionError, match=r"The store refuses .* pass credentials"):
        found.read(5, 25)
    assert len([request for request in server.requests if request.method == "GET" and request.begin == 5]) == 1
    with pytest.raises(PermissionError, match="storage_options"):
        opened(server)


@pytest.mark.parametrize("fault", ["400", "401", "404", "410", "501"])
def test_errors_that_stay_are_not_retried(server: RangeServer, fault: str) -> None:
    found = opened(server)
    server.fault = always(fault)
    with pytest.raises((OSError, CorpusError)):
        found.read(5, 25)
    assert len([request for request in server.requests if request.method == "GET" and request.begin == 5]) == 1


def test_a_server_without_ranges_sends_no_large_object(server: RangeServer) -> None:
    server.files["a.ctf"] = bytes(64 << 20)
    found = opened(server)
    server.fault = always("whole")
    with pytest.raises(OSError, match="it ignores ranges, so copy the file to a local disk"):
        found.read(0, 100_000)
    assert server.num_sent < 32 << 20
    server.files["a.ctf"] = CONTENT[:1000]
    assert opened(server).read(0, 1000) == CONTENT[:1000]


class Clock:
    """Waits that take no time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        monkeypatch.setattr(stores, "FIRST_PAUSE", 0.1)
        monkeypatch.setattr(stores, "wait", self.wait)

    def wait(self, _: object, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_an_outage_of_half_a_minute_is_survived_by_default(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(monkeypatch)
    found = opened(server, Remote())
    server.fault = lambda _: "503" if clock.now < 30 else ""
    assert found.read(5, 25) == CONTENT[5:25]
    assert max(clock.pauses) <= 10
    assert caplog.text.count("it is tried again") == 1


@pytest.mark.parametrize(("told", "least", "most"), [("7", 7, 7), ("3600", 60, 60), ("soon", 0, 1), ("date", 15, 20)])
def test_the_pause_is_what_the_server_says(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch, told: str, least: float, most: float
) -> None:
    clock = Clock(monkeypatch)
    found = opened(server)
    monkeypatch.setattr(stores.time, "time", lambda: 1_000_000_000.0)
    server.retry_after = formatdate(1_000_000_020, usegmt=True) if told == "date" else told
    server.fault = at_first("503")
    assert found.read(5, 25) == CONTENT[5:25]
    (pause,) = clock.pauses
    assert least <= pause <= most


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        ("obstore.exceptions:NotFoundError", False),
        ("obstore.exceptions:PermissionDeniedError", False),
        ("obstore.exceptions:UnauthenticatedError", False),
        ("obstore.exceptions:GenericError", True),
    ],
)
def test_errors_of_obstore_are_judged_by_their_kind(error: str, passes: bool) -> None:
    pytest.importorskip("obstore")
    module, _, name = error.partition(":")
    assert may_pass(getattr(__import__(module, fromlist=[name]), name)("a")) is passes


def test_errors_of_other_libraries_are_judged_by_what_they_tell() -> None:
    of_boto: Any = type("ClientError", (Exception,), {"response": {"ResponseMetadata": {"HTTPStatusCode": 404}}})
    missing = FileNotFoundError("a.ctf")
    missing.__cause__ = of_boto()
    assert not may_pass(missing)
    assert not may_pass(OSError("When reading: AWS Error ACCESS_DENIED during HeadObject operation"))
    assert not may_pass(Exception("Generic HTTP error: Server returned non-2xx status code: 403 Forbidden"))
    assert may_pass(Exception("Generic HTTP error: Server returned non-2xx status code: 503 Service Unavailable"))
    assert not may_pass(socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
    assert may_pass(socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"))


def test_a_file_system_of_fsspec_from_obstore_is_one_of_fsspec(tmp_path: Any) -> None:
    pytest.importorskip("obstore")
    from obstore.fsspec import FsspecStore

    (tmp_path / "a.ctf").write_bytes(CONTENT)
    found = RemoteObject(f"{tmp_path}/a.ctf", Remote(store=FsspecStore("file")))
    assert found.read(5, 2_000_000) == CONTENT[5:2_000_000]
    with pytest.raises(FileNotFoundError):
        RemoteObject(f"{tmp_path}/b.ctf", Remote(store=FsspecStore("file"), num_retries=0))


def test_a_server_that_does_not_answer_is_given_up(server: RangeServer) -> None:
    found = opened(server, Remote(num_retries=1, timeout_in_seconds=0.2))
    server.fault = always("hang")
    with pytest.raises(TimeoutError, match="Cannot read bytes 5 to 25 after 2 tries"):
        found.read(5, 25)


def test_an_interrupt_ends_a_wait_for_the_server(server: RangeServer, interruptible: None) -> None:
    import signal
    import threading

    found = opened(server, Remote(num_retries=0, timeout_in_seconds=60))
    server.fault = always("hang")
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        found.read(0, 10)
    server.fault = always("")
    assert found.read(0, 10) == CONTENT[:10]


def test_a_changed_or_deleted_object_is_an_error(server: RangeServer) -> None:
    found = opened(server)
    server.files["a.ctf"] = b"x" + CONTENT[1:]
    found.read(0, 10)
    with pytest.raises(CorpusError, match="changed while it was read; open it again"):
        found.require_unchanged()
    server.files["a.ctf"] = CONTENT[:100]
    for begin, end in ((90, 200), (200, 300)):
        with pytest.raises(CorpusError, match=r"changed while it was read \(3000000 bytes when opened, 100 now\)"):
            found.read(begin, end)
    del server.files["a.ctf"]
    with pytest.raises(CorpusError, match="it was deleted"):
        found.read(0, 10)


def test_the_store_is_asked_for_changes_only_after_reads(server: RangeServer) -> None:
    found = opened(server)
    found.read(0, 10)
    found.require_unchanged()
    num_before = len(server.requests)
    found.require_unchanged()
    assert len(server.requests) == num_before


def test_messages_show_no_signatures_and_passwords(server: RangeServer) -> None:
    assert shown("sftp://me:secret@host/a.ctf") == "sftp://host/a.ctf"
    url = f"{server.url}/a.ctf?signature=secret"
    server.fault = always("500")
    with pytest.raises(OSError, match="500") as caught:
        RemoteObject(url, QUICK)
    assert "secret" not in str(caught.value)


def test_other_errors_of_libraries_are_judged_by_status_and_kind() -> None:
    class AnyError(Exception):
        status = 503

    assert may_pass(AnyError())
    AnyError.status = 404
    assert not may_pass(AnyError())
    assert not may_pass(TypeError())
    hidden = FileNotFoundError("a.ctf")
    assert not may_pass(hidden)
    hidden.__cause__ = ConnectionResetError()
    assert may_pass(hidden)


# ------------------------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_requests": 0}, "num_requests is 0; expected a whole number of at least 1"),
        ({"num_retries": -1}, "num_retries is -1"),
        ({"timeout_in_seconds": 0}, "timeout_in_seconds is 0; expected a number greater than 0"),
        ({"cache_limit": 5}, "cache_limit is given without cache"),
        ({"cache": "x", "cache_limit": "many"}, 'expected a number of bytes, or a text such as "50 GB"'),
        ({"store": 1, "storage_options": {"a": 1}}, "storage_options and store are both given"),
    ],
)
def test_refuses_options_that_are_not_possible(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Remote(**options)


def test_options_are_pickled_and_hide_credentials() -> None:
    remote = Remote(storage_options={"key": "secret"}, cache="folder", cache_limit="2 MB", num_requests=3)
    assert pickle.loads(pickle.dumps(remote)) == remote
    assert "secret" not in repr(remote)
    assert "cache_limit=2000000" in repr(remote)


def test_stores_of_other_kinds_and_unknown_schemes_are_refused() -> None:
    with pytest.raises(ConfigError, match="store is of the type int; expected a store of obstore"):
        RemoteObject("a", Remote(store=1))
    with pytest.raises(ConfigError, match="fsspec cannot open this URL: Protocol not known: nosuch"):
        RemoteObject("nosuch://a/b")


def test_paths_with_a_scheme_are_remote() -> None:
    assert [is_remote(path) for path in ("s3://a/b", "simplecache::http://a", "memory://a")] == [True] * 3
    assert not any(is_remote(path) for path in ("a.ctf", "C:/a.ctf", "C:\\a.ctf", "/a:b/c", "://a"))


def test_paths_of_universal_pathlib_come_with_their_options() -> None:
    upath = pytest.importorskip("upath")
    path, remote = located("filename", upath.UPath("memory://a/b.ctf", anon=True), None)
    assert remote is not None
    assert (path, remote.storage_options) == ("memory://a/b.ctf", {"anon": True})
    assert located("filename", upath.UPath("memory://a/b.ctf", anon=True), QUICK)[1] is QUICK
    assert located("filename", "a.ctf", None) == ("a.ctf", None)


# ------------------------------------------------------------------------------------------------------------ forks


def test_a_fork_reads_what_the_parent_has_opened_with_fsspec(server: RangeServer) -> None:
    found = opened(server)
    assert found.read(0, 10) == CONTENT[:10]
    assert in_a_fork(lambda: found.read(0, 250_000) == CONTENT[:250_000]) == "True"
    assert in_a_fork(lambda: opened(server).read(3, 9) == CONTENT[3:9]) == "True"
    given = Remote(store=fsspec.filesystem("http"))
    found = RemoteObject(f"{server.url}/a.ctf", given)
    assert in_a_fork(lambda: found.read(0, 250_000) == CONTENT[:250_000]) == "True"
    assert found.read(0, 10) == CONTENT[:10]


def test_a_fork_raises_at_once_where_obstore_would_hang(server: RangeServer) -> None:
    obstore = pytest.importorskip("obstore")
    remote = Remote(store=obstore.store.HTTPStore(server.url, client_options={"allow_http": True}))
    found = RemoteObject("a.ctf", remote)
    assert found.read(0, 250_000) == CONTENT[:250_000]
    refused = "CorpusError: obstore was used before this process was forked"
    assert in_a_fork(lambda: found.read(0, 10)).startswith(refused)
    assert in_a_fork(lambda: RemoteObject("a.ctf", remote)).startswith(refused)

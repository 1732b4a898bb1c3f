"""Uploads that are killed, credentials that are missing, and redirects."""

import http.server
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cntkio.storage.remote import Remote
from cntkio.storage.stores import RemoteObject, write_object

fsspec = pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")


def stores_of(folder: Path) -> dict[str, tuple[str, Remote | None]]:
    """A folder as several kinds of stores, and the name of an object in each."""
    found: dict[str, tuple[str, Remote | None]] = {
        "url": ((folder / "a.ctf").as_uri(), None),
        "fsspec": (str(folder / "a.ctf"), Remote(store=fsspec.filesystem("file"))),
    }
    fs = pytest.importorskip("pyarrow.fs")
    found["pyarrow"] = (str(folder / "a.ctf"), Remote(store=fs.LocalFileSystem()))
    local = fsspec.filesystem("file")
    found["cached url"] = ("simplecache::" + (folder / "a.ctf").as_uri(), None)
    found["folder of fsspec"] = ("a.ctf", Remote(store=fsspec.filesystem("dir", path=str(folder), fs=local)))
    found["folder of pyarrow"] = ("a.ctf", Remote(store=fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())))
    wrapped = fs.PyFileSystem(fs.FSSpecHandler(local))
    found["fsspec in pyarrow"] = (str(folder / "a.ctf"), Remote(store=wrapped))
    return found


def write_and_die(path: str, remote: Remote | None) -> None:
    """Write an object in a process that ends in the middle: the system takes no more bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    signal.signal(signal.SIGXFSZ, lambda *_: os._exit(9))
    write_object(path, bytes(1 << 20), remote)


KINDS = ["url", "fsspec", "pyarrow", "cached url", "folder of fsspec", "folder of pyarrow", "fsspec in pyarrow"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_upload_to_the_name_of_a_folder_is_refused(kind: str, tmp_path: Path) -> None:
    path, remote = stores_of(tmp_path)[kind]
    (tmp_path / "a.ctf").mkdir()
    with pytest.raises(IsADirectoryError):
        write_object(path, b"new", remote)
    assert [*tmp_path.rglob("*")] == [tmp_path / "a.ctf"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_upload_leaves_the_old_object(kind: str, tmp_path: Path) -> None:
    path, remote = stores_of(tmp_path)[kind]
    write_object(path, b"old", remote)
    killed = multiprocessing.get_context("fork").Process(target=write_and_die, args=(path, remote))
    killed.start()
    killed.join()
    assert killed.exitcode == 9
    assert (tmp_path / "a.ctf").read_bytes() == b"old"
    write_object(path, b"new", remote)
    assert (tmp_path / "a.ctf").read_bytes() == b"new"


@pytest.mark.parametrize("name", ["NoCredentialsError", "DefaultCredentialsError", "ClientAuthenticationError"])
def test_missing_credentials_are_not_tried_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def info(*_: Any, **__: Any) -> Any:
        asked.append(1)
        raise type(name, (Exception,), {})("Unable to locate credentials")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.info", info)
    with pytest.raises(PermissionError, match="pass credentials"):
        RemoteObject("memory://credentials/a.ctf")
    assert asked == [1]


class Redirects:
    """A server that redirects to another, which signs its URLs; `refusals` of the ranges of the other are refused."""

    def __init__(self) -> None:
        self.content, self.asked, self.headers = os.urandom(1000), [], []  # type: ignore[var-annotated]
        self.refusals, self.signature, self.place = 0, 0, ""

    def handler(self, target: str | None) -> type[http.server.BaseHTTPRequestHandler]:
        redirects = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                redirects.asked.append("target" if target is None else "first")
                if redirects.place:
                    self.reply(302, b"", Location=redirects.place)
                    return
                if target is not None:
                    redirects.signature += 1
                    self.reply(302, b"", Location=f"{target}/b?signature={redirects.signature}")
                    return
                redirects.headers.append(dict(self.headers))
                if redirects.refusals and f"signature={redirects.signature}" in self.path and self.command == "GET":
                    redirects.refusals -= 1
                    self.reply(403, b"")
                    return
                begin, _, end = self.headers.get("Range", "bytes=0-999").removeprefix("bytes=").partition("-")
                part = redirects.content[int(begin) : int(end) + 1]
                status = 206 if "Range" in self.headers else 200
                told = f"bytes {begin}-{int(begin) + len(part) - 1}/1000"
                self.reply(status, part, **{"Content-Range": told, "ETag": '"1"', "Accept-Ranges": "bytes"})

            do_HEAD = do_GET

            def reply(self, status: int, body: bytes, **headers: str) -> None:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

        return Handler


@pytest.fixture
def redirects() -> Iterator[tuple[str, Redirects]]:
    pytest.importorskip("aiohttp", reason="fsspec reads http only with aiohttp")
    redirects, servers = Redirects(), []
    target = None
    for _ in range(2):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), redirects.handler(target))
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        target = f"http://127.0.0.1:{server.server_port}"
    yield f"{target}/a.ctf", redirects
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_redirect_is_followed_once_for_all_ranges(redirects: tuple[str, Redirects]) -> None:
    url, served = redirects
    options = {"headers": {"Authorization": "secret"}, "client_kwargs": {"trust_env": False}}
    found = RemoteObject(url, Remote(storage_options=options))
    served.asked.clear()
    for begin in range(0, 1000, 100):
        assert found.read(begin, begin + 100) == served.content[begin : begin + 100]
    assert served.asked == ["first", *["target"] * 10]
    assert not any("Authorization" in headers for headers in served.headers)


def test_a_header_of_the_session_is_not_for_the_target(redirects: tuple[str, Redirects]) -> None:
    url, served = redirects
    options = {"client_kwargs": {"headers": {"Authorization": "secret"}}}
    found = RemoteObject(url, Remote(storage_options=options))
    for begin in range(0, 1000, 100):
        assert found.read(begin, begin + 100) == served.content[begin : begin + 100]
    assert not any("Authorization" in headers for headers in served.headers)


@pytest.mark.parametrize("place", ["/b/c", "ftp://localhost/a", "file:///etc/hosts", "http://[::1"])
def test_a_redirect_that_leads_nowhere_is_not_tried_again(place: str, redirects: tuple[str, Redirects]) -> None:
    url, served = redirects
    served.place = place
    with pytest.raises(OSError, match="Cannot read its facts \\("):
        RemoteObject(url)
    assert len(served.asked) <= 20  # aiohttp follows ten, for HEAD and for GET


def test_a_store_that_cannot_be_opened_is_named() -> None:
    with pytest.raises(OSError, match=r"Cannot open the store .*ftp://127.0.0.1:1/a.ctf"):
        RemoteObject("ftp://127.0.0.1:1/a.ctf")


def test_a_target_that_refuses_a_range_is_looked_up_again(redirects: tuple[str, Redirects]) -> None:
    url, served = redirects
    found = RemoteObject(url)
    assert found.read(0, 10) == served.content[:10]
    served.asked.clear()
    served.refusals = 1  # the signature has expired
    assert found.read(10, 20) == served.content[10:20]
    assert served.asked == ["target", "first", "target"]
    assert found.read(20, 30) == served.content[20:30]
    assert served.asked[3:] == ["target"]

"""A server of files by HTTP, with ranges, delays and faults, which counts the requests."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclasses.dataclass
class Request:
    """A request: its number from 0, its method, its path, and the requested bytes."""

    number: int
    method: str
    path: str
    begin: int | None = None
    end: int | None = None


@dataclasses.dataclass
class RangeServer:
    """Files that are served.

    Attributes:
        url: URL of the folder.
        files: Content by name; a name with a query comes before a name without.
        latency: Delay of each answer, in seconds.
        bandwidth: Bytes per second of each connection; None: unlimited.
        fault: Called with each request; returns the fault of the answer. "": none; a number such as "500": this
            status; "drop": the connection closes without an answer; "short": it closes after half of the body;
            "whole": the range is ignored; "shifted": the answer is the range one byte later; "more": the answer has
            more bytes than requested; "hang": no answer until the server stops.
        retry_after: The header of this name in answers with an error; empty: they have none.
        num_sent: Bytes of all bodies so far.
        requests: The requests so far.
        most_at_once: Largest number of requests that were under way at the same time.
    """

    url: str = ""
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)
    latency: float = 0.0
    bandwidth: float | None = None
    fault: Callable[[Request], str] = lambda request: ""
    requests: list[Request] = dataclasses.field(default_factory=list)
    most_at_once: int = 0
    has_versions: bool = True
    retry_after: str = ""
    num_sent: int = 0

    def __post_init__(self) -> None:
        self.numbers = itertools.count()
        self.stopping = threading.Event()
        self.under_way = 0
        self.lock = threading.Lock()
        self.e_tags: dict[bytes, str] = {}

    def e_tag(self, content: bytes) -> str:
        if content not in self.e_tags:
            self.e_tags[content] = f'"{hashlib.blake2b(content, digest_size=8).hexdigest()}"'
        return self.e_tags[content]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each small answer waits 40 ms
    served: RangeServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer(has_body=True)

    def do_HEAD(self) -> None:
        self.answer(has_body=False)

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.served.files[self.path.lstrip("/")] = content
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def answer(self, *, has_body: bool) -> None:
        served = self.served
        with served.lock:
            served.under_way += 1
            served.most_at_once = max(served.most_at_once, served.under_way)
        try:
            self.respond(has_body=has_body)
        finally:
            with served.lock:
                served.under_way -= 1

    def respond(self, *, has_body: bool) -> None:
        served = self.served
        asked = _RANGE.fullmatch(self.headers.get("Range") or "")
        request = Request(next(served.numbers), self.command, self.path)
        if asked:
            request.begin, request.end = int(asked[1]), int(asked[2]) + 1 if asked[2] else None
        served.requests.append(request)
        fault = served.fault(request)
        served.stopping.wait(served.latency)
        if fault == "hang":
            served.stopping.wait()
        if fault in ("drop", "hang"):
            self.close_connection = True
            return
        name = self.path.lstrip("/")
        content = served.files.get(name, served.files.get(name.partition("?")[0]))
        status = int(fault) if fault.isdecimal() else 404 if content is None else 200
        if content is None or status >= 400:
            self.send_response(status)
            if self.served.retry_after:
                self.send_header("Retry-After", self.served.retry_after)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = memoryview(content)
        self.send_part(body, request, fault, has_body=has_body, e_tag=served.e_tag(content))

    def send_part(self, body: memoryview, request: Request, fault: str, *, has_body: bool, e_tag: str) -> None:
        size = len(body)
        if request.begin is not None and fault != "whole":
            if request.begin >= size:
                self.send_response(416)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            begin = request.begin + (fault == "shifted")
            body = body[begin : None if request.end is None else request.end + (fault in ("shifted", "more"))]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{begin + len(body) - 1}/{size}")
        else:
            self.send_response(200)
        if self.served.has_versions:
            self.send_header("ETag", e_tag)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if has_body:
            self.send_body(body[: len(body) // 2] if fault == "short" else body)
        self.close_connection = self.close_connection or fault == "short"

    def send_body(self, body: memoryview) -> None:
        step = 1 << 18
        begin = time.monotonic()
        for offset in range(0, len(body), step or 1):
            self.wfile.write(body[offset : offset + step])
            self.served.num_sent += min(step, len(body) - offset)
            if self.served.bandwidth is not None:
                due = begin + (offset + step) / self.served.bandwidth
                self.served.stopping.wait(max(due - time.monotonic(), 0))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """Say nothing about clients that closed the connection."""


@contextmanager
def range_server(**files: bytes) -> Iterator[RangeServer]:
    """Serve files on a free port of this machine while the block runs."""
    served = RangeServer(files=dict(files))
    handler = type("Handler", (_Handler,), {"served": served})
    server = _Server(("127.0.0.1", 0), handler)
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()

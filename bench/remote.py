"""Compare sweeps over a text in a remote store with plain range requests for the same bytes, in one run.

    python bench/remote.py [--mb 256] [--kind floats] [--latency 0.05] [--requests 8] [--bandwidth 40]
        [--chunk-mb 32,4,1] [--repeat 3] [--folder FOLDER]

A server in a process of its own serves the text by HTTP. Each answer waits --latency seconds; a connection gets at most
--bandwidth MB/s (10^6 bytes), as connections to object stores do. "plain" asks for all bytes in ranges of the size that
cntkio uses (a chunk, and at most 4 MB), with http.client and --requests threads, and drops them. "sweep" is everything
from the opened source to the end of one sweep in a Python loop of minibatches, with the index in its cache. "cached"
repeats the sweep with all chunks in a cache on the local disk, and "local" reads the same text in a local file. Each
figure is the best of --repeat turns, in MB/s; the share is the speed divided by the speed of plain requests.
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

from harness import corpora
from harness.engines import STREAMS, machine

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE.parent / "tests")]

from cntkio import CTFDeserializer, MinibatchSource, Remote, StreamDef, StreamDefs  # noqa: E402
from cntkio.storage.stores import PART  # noqa: E402
from support.range_server import range_server  # noqa: E402

MINIBATCH = 1024


def serve(path: Path, latency: float, bandwidth: float, answers: Connection) -> None:
    """Serve a file until the other side of the pipe closes; send the URL, and the number of requests when asked."""
    with range_server(**{"a.ctf": path.read_bytes()}) as server:
        server.latency, server.bandwidth = latency, bandwidth
        answers.send(f"{server.url}/a.ctf")
        try:
            while answers.recv():
                answers.send((len(server.requests), server.most_at_once))
                server.requests.clear()
                server.most_at_once = 0
        except EOFError:
            return


def plain(url: str, size: int, part: int, num_requests: int) -> None:
    """Fetch all bytes in ranges of `part` bytes, and drop them."""
    parts = urlsplit(url)
    connections = [http.client.HTTPConnection(parts.netloc) for _ in range(num_requests)]

    def fetch(begin: int) -> None:
        connection = connections.pop()
        connection.request("GET", parts.path, headers={"Range": f"bytes={begin}-{min(begin + part, size) - 1}"})
        assert len(connection.getresponse().read()) == min(part, size - begin)
        connections.append(connection)

    with ThreadPoolExecutor(num_requests) as threads:
        list(threads.map(fetch, range(0, size, part)))


def sweep(path: str, streams: StreamDefs, chunk_size: int, *, randomize: bool, remote: Remote | None = None) -> float:
    """Return the seconds of a sweep; opening the source is not counted."""
    deserializer = CTFDeserializer(path, streams, chunk_size_in_bytes=chunk_size, cache_index=True, remote=remote)
    source = MinibatchSource(deserializer, randomize=randomize, max_sweeps=1)
    begin = time.perf_counter()
    while source.next_minibatch(MINIBATCH):
        pass
    seconds = time.perf_counter() - begin
    source.close()
    return seconds


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=256)
    parser.add_argument("--kind", default="floats", choices=sorted(STREAMS))
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--bandwidth", type=float, default=40)
    parser.add_argument("--chunk-mb", default="32,4,1")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "cntkio-bench")
    options = parser.parse_args()
    os.environ["XDG_CACHE_HOME"] = str(options.folder / "indexes")
    path = corpora.write(options.folder / f"{options.kind}.ctf", options.kind, options.mb * 10**6)
    streams = StreamDefs(
        {name: StreamDef(name, dim, is_sparse) for name, (dim, is_sparse) in STREAMS[options.kind].items()}
    )
    size = path.stat().st_size
    ours, theirs = multiprocessing.Pipe()
    arguments = (path, options.latency, options.bandwidth * 1e6, theirs)
    server = multiprocessing.get_context("spawn").Process(target=serve, args=arguments, daemon=True)
    server.start()
    theirs.close()
    url = ours.recv()

    def best(what: str, seconds: Callable[[], float], share_of: float | None = None) -> float:
        ours.send(True)
        ours.recv()
        rate = max(size / 1e6 / seconds() for _ in range(options.repeat))
        ours.send(True)
        count, at_once = ours.recv()
        share = "" if share_of is None else f"  {rate / share_of:6.0%}"
        requests = f"{count / options.repeat:7.0f} requests, {at_once} at once"
        print(f"{what:36} {rate:8.1f} MB/s{share:8}   {requests}", flush=True)
        return rate

    print(f"{machine()}; {options.kind}, {size / 1e6:.0f} MB, latency {options.latency * 1e3:.0f} ms")
    remote = Remote(num_requests=options.requests)
    for chunk_mb in map(int, options.chunk_mb.split(",")):
        part = min(PART, chunk_mb << 20)
        reference = best(
            f"plain, requests of {part >> 20} MB",
            lambda part=part: timed(lambda: plain(url, size, part, options.requests)),  # type: ignore[misc]
        )
        sweep(url, streams, chunk_mb << 20, randomize=False, remote=remote)  # makes the index
        for randomize in (False, True):
            order = "randomized" if randomize else "in order"
            best(
                f"sweep, chunks of {chunk_mb} MB, {order}",
                lambda mb=chunk_mb, r=randomize: sweep(url, streams, mb << 20, randomize=r, remote=remote),  # type: ignore[misc]
                reference,
            )
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        cached = Remote(cache=folder)
        sweep(url, streams, 32 << 20, randomize=False, remote=cached)
        best("cached", lambda: sweep(url, streams, 32 << 20, randomize=False, remote=cached))
    sweep(str(path), streams, 32 << 20, randomize=False)  # makes the index
    best("local", lambda: sweep(str(path), streams, 32 << 20, randomize=False))
    ours.close()
    server.join()
    shutil.rmtree(options.folder / "indexes", ignore_errors=True)


if __name__ == "__main__":
    main()

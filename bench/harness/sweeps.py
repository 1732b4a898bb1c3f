"""Measurements of cntkio for bench/ctf.py: a JSON object per line in and out, in a process with its own settings.

{"job": "sweep", "path", "streams": {name: [dimension, sparse]}, "randomize", "size"}  ->  {"seconds", "samples", ...}
{"job": "features", "folder", "context", "frame_mode", "randomize", "size"}  ->  {"seconds", "samples", "bytes", ...}
{"job": "minibatches", "path", "streams", "size", "count"}  ->  {"seconds", "samples", "minibatches"}
{"job": "open" | "decode" | "index" | "read" | "parse" | "whole", "path", "streams"}  ->  {"seconds", "bytes"}
"""

from __future__ import annotations

import gc
import itertools
import json
import operator
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cntkio
import cntkio._core as _core
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a bench starts this file as a process of its own
from harness import corpora
from harness.engines import Answer, timed

PIECE = 512 << 10  # bytes that a thread parses at a time; a piece and its values fit a core's cache
WARM_UP = 1000  # small minibatches before a measurement of small minibatches
LINE = 1 << 14  # bytes by which a piece may be larger
NUM_SAMPLES = operator.attrgetter("num_samples")  # a generator would take as long as a fifth of a small minibatch
Streams = dict[str, tuple[int, bool]]


def deserializer(path: str, streams: Streams, *, cached: bool = False) -> Any:
    if path.endswith(".cbf"):
        return cntkio.CBFDeserializer(path)
    defined = {
        name: cntkio.StreamDef(field=name, shape=dim, is_sparse=is_sparse) for name, (dim, is_sparse) in streams.items()
    }
    return cntkio.CTFDeserializer(path, cntkio.StreamDefs(defined), cache_index=cached)


def sweep(path: str, streams: Streams, randomize: bool, size: int, cached: bool = False) -> Answer:
    before = most_memory()
    answer = read_through(lambda: [deserializer(path, streams, cached=cached)], size, randomize=randomize, max_sweeps=1)
    return {**answer, "memory_before": before, "most_memory": most_memory()}


def features(folder: str, context: tuple[int, int], frame_mode: bool, randomize: bool, size: int) -> Answer:
    """Read HTK features with their labels, as corpora.py writes them, once."""

    def deserializers() -> list[Any]:
        frames = cntkio.StreamDef(shape=40, context=tuple(context), scp=f"{folder}/all.scp")
        states = cntkio.StreamDef(shape=500, mlf=f"{folder}/all.mlf")
        return [
            cntkio.HTKFeatureDeserializer(cntkio.StreamDefs(f=frames)),
            cntkio.HTKMLFDeserializer(f"{folder}/states.list", cntkio.StreamDefs(l=states)),
        ]

    answer = read_through(deserializers, size, randomize=randomize, max_sweeps=1, frame_mode=frame_mode)
    return {**answer, "bytes": Path(folder, "feat.ark").stat().st_size}


def speech(folder: str, size: int) -> Answer:
    """Write the corpus of `features`."""
    return timed(lambda: corpora.speech(Path(folder), size))


def read_through(deserializers: Callable[[], list[Any]], size: int, **options: Any) -> Answer:
    """Read all minibatches of a source, and measure everything from the construction of its deserializers on."""
    start, processor = time.perf_counter(), time.process_time()
    source = cntkio.MinibatchSource(deserializers(), **options)
    samples = minibatches = 0
    minibatch = source.next_minibatch(size)
    while minibatch:
        samples += max(map(NUM_SAMPLES, minibatch.values()))
        minibatches += 1
        minibatch = source.next_minibatch(size)
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    return {"seconds": seconds, "processor": processor, "samples": samples, "minibatches": minibatches}


def binary(path: str, streams: Streams, target: str) -> Answer:
    """Convert a text to CNTK's binary format."""
    return timed(lambda: cntkio.convert.ctf_to_cbf(path, target, deserializer(path, streams).streams))


def minibatches(path: str, streams: Streams, size: int, count: int) -> Answer:
    """Read `count` minibatches of data that are in memory, after a sweep that brought them there.

    The first minibatches of the size come before the measurement, because the source packs them again that it had
    packed in the size of the sweep. A collection of all Python objects comes before it, too: it takes as long as
    thousands of minibatches, and where it falls depends on all objects before.
    """
    source = cntkio.MinibatchSource([deserializer(path, streams)], keep_data_in_memory=True)
    while not any(data.end_of_sweep for data in source.next_minibatch(1 << 16).values()):
        pass
    for _ in range(min(count, WARM_UP)):
        source.next_minibatch(size)
    gc.collect()
    samples = 0
    start, processor = time.perf_counter(), time.process_time()
    for _ in range(count):
        samples += max(map(NUM_SAMPLES, source.next_minibatch(size).values()))
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    source.close()
    return {"seconds": seconds, "processor": processor, "samples": samples, "minibatches": count}


def most_memory() -> int:
    """Peak memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def index(path: str, streams: Streams) -> Answer:
    """Open the file and scan it: sequences, lengths, chunks."""
    return timed(lambda: deserializer(path, streams).open().close(), bytes=Path(path).stat().st_size)


def open_and_cache(path: str, streams: Streams) -> Answer:
    """Open the file and write its index cache."""
    return timed(lambda: deserializer(path, streams, cached=True).open().close())


def decode(path: str, streams: Streams) -> Answer:
    """Decompress the file on all cores, a part from each access point, into memory that was used before."""
    from cntkio.storage.open_input import open_input

    file = open_input(path)
    # The access points come from a seek table, or from a pass over the file.
    texts: list[int] = file.storage.guide.texts.tolist()  # type: ignore[attr-defined]
    parts = list(itertools.pairwise(texts))
    threads = int(os.environ.get("CNTKIO_NUM_THREADS") or len(os.sched_getaffinity(0)))
    own = threading.local()

    def decode_part(part: tuple[int, int]) -> None:
        begin, end = part
        if not hasattr(own, "buffer"):
            own.buffer = np.empty(max(end - begin for begin, end in parts), np.uint8)
        file.read_into(own.buffer[: end - begin], begin)

    with ThreadPoolExecutor(threads) as pool:

        def work() -> None:
            for _ in pool.map(decode_part, parts):
                pass

        work()
        return timed(work, bytes=file.size)


def read(path: str, streams: Streams) -> Answer:
    """Read the file in blocks of 1 MB into one buffer, without any other work."""
    buffer = bytearray(1 << 20)

    def work() -> None:
        with Path(path).open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    return timed(work, bytes=Path(path).stat().st_size)


class Text:
    """The lines of a file in memory, with their table."""

    path = ""
    text = np.empty(0, np.uint8)
    starts = sizes = lengths = np.empty(0, np.uint64)

    @classmethod
    def of(cls, path: str) -> None:
        from cntkio.formats.ctf.index import (
            Area,  # earlier versions, which against_self.py measures, have no such class
        )

        if cls.path != path:
            with Path(path).open("rb") as file:
                head = file.read()
                size = head.rfind(b"\n") + 1
                area = Area((file.fileno(), size), 0, 0, size, size)
                (scan,) = _core.ctf_index(area, head.startswith(b"|"), None, 1).scans
                cls.starts = scan.begin + scan.starts.astype(np.uint64)
                cls.lengths = np.broadcast_to(scan.lengths, len(scan.starts)).astype(np.uint32)
            cls.path, cls.text = path, np.frombuffer(head[:size], np.uint8)
            cls.sizes = np.diff(cls.starts, append=np.uint64(size)).astype(np.uint32)


def parse(path: str, streams: Streams) -> Answer:
    """Parse text in memory, a piece for each thread at a time, into the memory of earlier pieces."""
    from cntkio.formats.ctf.corpus import ParseRules  # as above
    from cntkio.formats.ctf.index import ChunkPlaces, StreamSchema

    Text.of(path)
    schema = _core.CTFSchema([StreamSchema(name.encode(), sparse, dim, 0) for name, (dim, sparse) in streams.items()])
    threads = int(os.environ.get("CNTKIO_NUM_THREADS") or len(os.sched_getaffinity(0)))
    spare = _core.Spare(1 << 40)
    places = np.arange(0, len(Text.text), threads * PIECE, dtype=np.uint64)
    bounds = [*np.searchsorted(Text.starts, places).tolist(), len(Text.starts)]
    rules = ParseRules(0, False, threads, PIECE + LINE, 0)
    pieces = [
        (ChunkPlaces(0, len(Text.text), Text.starts[first:last], Text.sizes[first:last]), Text.lengths[first:last])
        for first, last in itertools.pairwise(bounds)
    ]

    def work() -> None:
        for piece in pieces:
            _core.ctf_parse(Text.text, *piece, schema, rules, spare)

    work()  # fills `spare` for the measured run
    return timed(work, bytes=len(Text.text))


def whole(path: str, streams: Streams) -> Answer:
    """Read the whole file into arrays."""
    return timed(lambda: cntkio.read_ctf(path, deserializer(path, streams).streams), bytes=Path(path).stat().st_size)


JOBS: dict[str, Callable[..., Answer]] = {
    "open": open_and_cache, "decode": decode, "sweep": sweep, "index": index, "read": read, "parse": parse,
    "whole": whole, "minibatches": minibatches, "features": features,
    "speech": speech, "binary": binary,
}  # fmt: skip


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = JOBS[request.pop("job")](**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

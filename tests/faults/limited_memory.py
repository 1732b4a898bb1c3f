"""Run every format and mode with little memory: each case ends in data or in a MemoryError, never in a dead process.

    python tests/faults/limited_memory.py FOLDER EVERY [CASE...]

Each case runs in forks of this process, twice: without a limit, which also starts the threads, and then with an address
space that may grow by a limited number of bytes. The program tries every EVERYth pair of a case and a limit, and
prints how each fork ended.
"""

from __future__ import annotations

import gc
import gzip
import itertools
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from cntkio import (
    CBFDeserializer,
    CTFDeserializer,
    HTKFeatureDeserializer,
    HTKMLFBinaryDeserializer,
    HTKMLFDeserializer,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    _core,
    read_ctf,
    write_cbf,
    write_ctf,
)
from cntkio.formats import htk, mlf
from cntkio.timeline import BalancedPartition, GlobalPartition, Partition
from support.user_formats import Named, Numbers, OneStream

DIM = 16
LENGTHS = [1 + number * 7 % 9 for number in range(3000)]
STREAMS = StreamDefs(x=StreamDef(field="x", shape=DIM), s=StreamDef(field="s", shape=50_000, is_sparse=True))
DENSE = StreamDefs(x=StreamDef(field="x", shape=DIM))
ROOMS = [size << 10 for size in (0, 256, 1024, 3072, 9216, 30_720, 122_880)]
"""Bytes by which the address space may grow."""
HUGE = 2**31 - 1
LONG = 1 << 20
"""Values of a long line, which has four times as many bytes."""
LONG_LINES = ("dense.ctf", "dense.ctf.gz", "sparse.ctf", "sparse.ctf.gz")
RIGHT = ("data", "MemoryError", "OSError('cannot start threads")
"""Correct outcomes of a case. The operating system does not say whether a thread could not start for lack of memory."""


def write_corpora(folder: Path) -> None:
    """Write corpora of about 1 MB in each format."""
    values = np.random.default_rng(0).random((sum(LENGTHS), DIM), np.float32).round(3)
    rows = iter(values.tolist())
    lines = []
    for number, length in enumerate(LENGTHS):
        for step, row in zip(range(length), rows, strict=False):
            lines.append(f"{number} |x {' '.join(map(str, row))} |s {number * 11}:1 {number * 13 + step}:2.5\n")
    (folder / "a.ctf").write_text("".join(lines))
    (folder / "b.ctf").write_text("".join(f"{number} |y {number}\n" for number in range(0, 3000, 2)))
    write_cbf(folder / "a.cbf", CTFDeserializer(folder / "a.ctf", STREAMS), chunk_size_in_bytes=1 << 18)
    ends = np.cumsum(LENGTHS)[:-1]
    every = [(f"u{number}", rows) for number, rows in enumerate(np.split(values, ends))]
    htk.write_archive(folder / "a.ark", folder / "a.scp", every)
    labels = [(key, np.arange(len(rows)) % 50) for key, rows in every]
    mlf.write_mlf(folder / "a.mlf", labels, [f"c{index}" for index in range(50)])
    mlf.write_mapping(folder / "states", [f"c{index}" for index in range(50)])
    mlf.write_binary_mlf(folder / "a.bmlf", labels)


def write_long_lines(folder: Path) -> None:
    """Write texts of two lines, of which the second is long."""
    for name, entry in (("dense", b" 0.5"), ("sparse", b" 7:1")):
        long = b"0 |%b %b\n" % (name[:1].encode(), entry) + b"1 |%b" % name[:1].encode() + entry * LONG + b"\n"
        (folder / f"{name}.ctf").write_bytes(long)
        (folder / f"{name}.ctf.gz").write_bytes(gzip.compress(long, 1))


def text(folder: Path, streams: StreamDefs = STREAMS, **options: Any) -> CTFDeserializer:
    return CTFDeserializer(folder / "a.ctf", streams, chunk_size_in_bytes=1 << 18, **options)


def binary(folder: Path, **options: Any) -> CBFDeserializer:
    return CBFDeserializer(folder / "a.cbf", STREAMS, **options)


def features(folder: Path, **options: Any) -> HTKFeatureDeserializer:
    return HTKFeatureDeserializer(StreamDefs(f=StreamDef(scp=folder / "a.scp", shape=DIM)), **options)


def labels(folder: Path, **options: Any) -> HTKMLFDeserializer:
    return HTKMLFDeserializer(folder / "states", StreamDefs(l=StreamDef(mlf=folder / "a.mlf", shape=50)), **options)


def binary_labels(folder: Path) -> HTKMLFBinaryDeserializer:
    return HTKMLFBinaryDeserializer(StreamDefs(l=StreamDef(mlf=folder / "a.bmlf", shape=50)))


def joined(folder: Path) -> list[Any]:
    return [text(folder), CTFDeserializer(folder / "b.ctf", StreamDefs(y=StreamDef(field="y", shape=1)))]


FORMATS: dict[str, Callable[[Path], Any]] = {
    "text": text,
    "text with index cache": lambda folder: text(folder, cache_index=True),
    "binary": binary,
    "binary, copied": lambda folder: binary(folder, memory_map=False),
    "features": features,
    "features, copied": lambda folder: features(folder, memory_map=False),
    "features and labels": lambda folder: [features(folder), labels(folder)],
    "features and binary labels": lambda folder: [features(folder), binary_labels(folder)],
    "joined": joined,
    "user-defined": lambda _: Numbers([[3, 2, 1] * 20] * 10),
    "user-defined, global": lambda _: Named([[3, 2, 1] * 20] * 10),
}
MODES: dict[str, tuple[dict[str, Any], Partition]] = {
    "in order": ({"randomize": False}, Partition()),
    "randomized": ({}, Partition()),
    "partition": ({}, Partition(1, 2)),
    "balanced": ({}, BalancedPartition(1, 2)),
    "global": ({}, GlobalPartition(1, 2)),
    "truncated": ({"truncation_length": 4}, Partition()),
    "frame mode": ({"frame_mode": True}, Partition()),
}


def read_some(deserializers: Any, options: dict[str, Any], partition: Partition) -> int:
    """Read a sweep in small minibatches, a state in between, and a sweep at once; return the number of minibatches."""
    num_minibatches = 0
    with MinibatchSource(deserializers, max_sweeps=2, trace_level=0, read_ahead_in_bytes=0, **options) as source:
        while num_minibatches < 6 and source.read(1000, partition):
            num_minibatches += 1
        state = source.state_dict()
        source.load_state_dict(state)
        minibatch = source.read(HUGE, partition)
        return num_minibatches + bool(minibatch and [data.values.sum() for data in minibatch.values()])


Case = tuple[Callable[[], Any], Callable[[], Any]]
"""The preparation, which runs without a limit, and the work, which runs with the limit."""


def requests(folder: Path) -> dict[str, Case]:
    """Return requests for more memory than any data need."""

    def read(deserializers: Any, size: int = HUGE, **options: Any) -> None:
        with MinibatchSource(deserializers, **options) as source:
            minibatch = source.read(size)
            assert minibatch and minibatch.keys_of_sequences.size
            source.load_state_dict(source.state_dict())
            while source.read(size):
                pass

    def rows(deserializers: Any, **options: Any) -> Case:
        options |= {"truncation_length": 2, "trace_level": 0}
        few = {"truncation_length": 2, "trace_level": 0, "max_samples": 9}
        return lambda: read(deserializers, 4, **few), lambda: read(deserializers, **options)

    def sequences(deserializers: Any, **options: Any) -> Case:
        options |= {"trace_level": 0}
        return lambda: read(deserializers, 4, **options, max_samples=9), lambda: read(deserializers, **options)

    def long(name: str) -> Case:
        narrow = StreamDefs(x=StreamDef(field=name[0], shape=LONG, is_sparse=name.startswith("s")))

        def work() -> None:
            assert read_ctf(folder / name, narrow, max_errors=-1)["x"].values.sum() >= LONG / 2

        return lambda: read_ctf(folder / "b.ctf", StreamDefs(y=StreamDef(field="y", shape=1))) and None, work

    def wide(streams: StreamDefs, narrow: StreamDefs, **options: Any) -> Case:
        options |= {"max_samples": 8, "trace_level": 0}
        return (
            lambda: read(text(folder, narrow, max_errors=-1), 4, **options),
            lambda: read(text(folder, streams, max_errors=-1), 4, **options),
        )

    dense = StreamDefs(x=StreamDef(field="x", shape=HUGE))
    sparse = StreamDefs(s=StreamDef(field="s", shape=HUGE, is_sparse=True))
    of_any_size = StreamDefs(s=StreamDef(field="s", shape=50_000, is_sparse=True))
    return {
        "many rows": rows(text(folder), max_sweeps=1),
        "many rows without end": rows(text(folder)),
        "many rows of user-defined": rows(OneStream(), max_sweeps=1),
        "many rows of user-defined without end": rows(OneStream()),
        "many sequences without end": sequences(text(folder)),
        "many sequences in order without end": sequences(text(folder), randomize=False),
        **{f"a long line of {name}": long(name) for name in LONG_LINES},
        "wide samples": wide(dense, DENSE),
        "wide truncated samples": wide(dense, DENSE, truncation_length=2),
        "wide cells": wide(sparse, of_any_size, truncation_length=2),
    }


def cases(folder: Path) -> dict[str, Case]:
    """All cases by name."""
    found: dict[str, Callable[[], Any]] = {}
    for (name, make), (mode, (options, partition)) in itertools.product(FORMATS.items(), MODES.items()):
        if mode == "frame mode" and "features" not in name:
            continue
        if mode == "truncated" and name in ("joined", "user-defined", "user-defined, global"):
            continue  # their streams have different lengths
        if name == "user-defined" and mode in ("balanced", "global"):
            continue
        found[f"{name}, {mode}"] = lambda make=make, options=options, partition=partition: read_some(
            make(folder), options, partition
        )
    found["whole text"] = lambda: read_ctf(folder / "a.ctf", STREAMS)
    found["text to binary"] = lambda: write_cbf(folder / "out.cbf", text(folder))
    found["binary to text"] = lambda: write_ctf(folder / "out.ctf", binary(folder))
    return {name: (case, case) for name, case in found.items()} | requests(folder)


def outcome(case: Case, room: int) -> str:
    """Run a case in a fork whose memory may grow by `room` bytes; return how it ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 2)
        word = b"\ndata"
        try:
            signal.alarm(200)
            case[0]()
            gc.collect()
            _core.release_kept_memory()
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + room
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            case[1]()
        except MemoryError as error:
            word = b"\nMemoryError: " + str(error).encode()
        except BaseException as error:
            word = b"\n" + repr(error).encode().replace(b'"', b"'")
        finally:
            os.write(2, word)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        printed = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    last = printed.rsplit("\n", 1)[-1]
    return last if status == 0 and last else f"died with {status}: {printed.strip()[-300:]}"


def main() -> int:
    """Run the cases, and print how they ended."""
    folder, every, *wanted = sys.argv[1:]
    if not Path(folder, "a.bmlf").exists():  # the last of the corpora
        write_corpora(Path(folder))
    pairs = [
        pair for pair in itertools.product(cases(Path(folder)).items(), ROOMS) if pair[0][0] in (wanted or [pair[0][0]])
    ]
    pairs = pairs[:: int(every)]
    if any("long line" in name for (name, _), _ in pairs):
        write_long_lines(Path(folder))
    num_wrong = 0
    for (name, case), room in pairs:
        ended = outcome(case, room)
        num_wrong += not ended.startswith(RIGHT)
        print(f"{name}, {room >> 10} KB: {ended}", flush=True)
    print(f"{num_wrong} wrong")
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())

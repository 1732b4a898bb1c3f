"""A small corpus in the text format, sources of it, and its minibatches as plain data."""

import resource
from pathlib import Path
from typing import Any

import pytest
from cntkio import CTFDeserializer, MinibatchSource, StreamDef, StreamDefs

STREAMS = StreamDefs(x=StreamDef(field="x", shape=2), s=StreamDef(field="s", shape=1000, is_sparse=True))


def corpus_text(lengths: list[int]) -> bytes:
    """Return a text: sequence k has key k; its samples are x = (k, step) and an entry s = k % 1000 : step."""
    lines = []
    for key, length in enumerate(lengths):
        lines += [b"%d |x %d %d |s %d:%d\n" % (key, key, step, key % 1000, step) for step in range(length)]
    return b"".join(lines)


def source_of(path: Path, chunk_size_in_bytes: int = 200, **options: Any) -> MinibatchSource:
    return MinibatchSource(CTFDeserializer(path, STREAMS, chunk_size_in_bytes=chunk_size_in_bytes), **options)


def shown(minibatch: Any) -> Any:
    """Return a minibatch as plain data for comparisons."""
    if not minibatch:
        return None
    x, s = minibatch["x"], minibatch["s"]
    return (
        minibatch.keys_of_sequences.tolist(), x.values.tolist(), x.offsets.tolist(), x.end_of_sweep,
        s.values.tolist(), s.indices.tolist(), s.indptr.tolist(),
    )  # fmt: skip


def take_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sources take every minibatch by itself, with at most three packed ahead."""
    monkeypatch.setattr("cntkio.source.pipeline._WORTH_TAKING", 0)
    monkeypatch.setattr("cntkio.source.pipeline._LEAST_IN_TURN", 1)
    monkeypatch.setattr("cntkio.source.packing._BYTES_AHEAD_PER_THREAD", 1)


def rest(source: MinibatchSource, size: int, most: int = 1000, **partition: int) -> list[Any]:
    return [shown(one) for _, one in zip(range(most), source.minibatches(size, **partition), strict=False)]


def send_rest(source: MinibatchSource, connection: Any) -> None:
    """Continue to read in a child process, and send the minibatches."""
    connection.send(rest(source, 11))
    connection.close()


def peak_memory() -> int:
    """Return the peak memory of this process, in bytes; `ru_maxrss` also has the peak of the process that began it."""
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(status.read_text().split("VmHWM:")[1].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

"""Making the index of a text takes at most 10 bytes of memory a sequence, and a constant."""

import os
import sys
from pathlib import Path

import cntkio._core as _core
import pytest
from cntkio import CTFDeserializer, StreamDef, StreamDefs
from support.forks import in_a_fork

NUM_LINES = 2_800_000
CONSTANT = 40 << 20
"""Bytes of freed blocks that the allocator keeps, and of the text and the sequences that a thread works on."""

TEXTS = {
    "without ids": b"|x 1 2\n",
    "comments between lines without ids": b"|x 1 2\n|x 1 2\n|x 1 2\n|# c\n",
    "a comment below each line": b"|x 1 2\n|# word\n",
    "a short comment below each line": b"|x 1 2\n|# c\n",
    "a blank line below each line": b"|x 1 2\n\n",
    "two comments below each line": b"|x 1 2\n|# c1\n|# c2\n",
    "ids": b"%d |x 1 2\n",
    "ids in disorder": b"%d |x 1 2\n",
    "sequences that are left out": b"%d |x 1 2\n%d |x 1 2\n%d |y 1\n",
}


def write(path: Path, kind: str) -> None:
    """Write the lines of a kind again and again; their ids have gaps."""
    lines = TEXTS[kind]
    at_once = 4 * 3 * 1000
    text, num_ids = lines * (at_once // lines.count(b"\n")), lines.count(b"%d") * (at_once // lines.count(b"\n"))
    with path.open("wb") as file:
        parts = range(NUM_LINES // at_once)
        for number in reversed(parts) if kind == "ids in disorder" else parts:
            ids = tuple(range(2 * number * num_ids, 2 * (number + 1) * num_ids, 2))
            file.write(text % ids)


def status(name: str) -> int:
    return 1024 * int(Path("/proc/self/status").read_text().split(name)[1].split()[0])


def bytes_of_a_sequence(names: Path, streams: StreamDefs) -> float:
    """Return the bytes that making an index takes for each sequence, beyond the constant."""

    def taken() -> float:
        os.environ["CNTKIO_NUM_THREADS"] = "1"
        _core.release_kept_memory()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = status("VmRSS:")
        corpus = CTFDeserializer(names, streams).open()
        peak, count = status("VmHWM:") - before, corpus.table.num_sequences
        assert count >= NUM_LINES // 4
        return (peak - CONSTANT) / count

    return float(in_a_fork(taken))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of the memory since a moment")
@pytest.mark.parametrize("kind", TEXTS)
def test_an_index_takes_ten_bytes_of_memory_a_sequence(kind: str, tmp_path: Path) -> None:
    write(tmp_path / "a.ctf", kind)
    streams = StreamDefs(x=StreamDef(field="x", shape=2, defines_mb_size=kind == "sequences that are left out"))
    assert bytes_of_a_sequence(tmp_path / "a.ctf", streams) <= 10


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of the memory since a moment")
def test_the_index_of_many_files_takes_ten_bytes_a_sequence(tmp_path: Path) -> None:
    first = tmp_path / "0.ctf"
    first.write_bytes(TEXTS["a short comment below each line"] * 28_000)
    for number in range(1, 100):
        os.link(first, tmp_path / f"{number}.ctf")
    assert bytes_of_a_sequence(tmp_path / "*.ctf", StreamDefs(x=StreamDef(field="x", shape=2))) <= 10

"""Ranks that share global minibatches read few bytes more than their share of a remote text."""

import gzip
import random
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from cntkio import CTFDeserializer, GlobalPartition, MinibatchSource, StreamDef, StreamDefs
from cntkio.storage import compressed, open_input, stores
from support.range_server import RangeServer, range_server

pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")
pytest.importorskip("aiohttp", reason="fsspec reads http only with aiohttp")

WORDS = StreamDefs(w=StreamDef(field="w", shape=100_000, is_sparse=True))
NUM_RANKS = 8


@pytest.fixture(autouse=True)
def small_requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user cache"))
    monkeypatch.setattr(stores, "PART", 1 << 16)


def corpus_text(num_sequences: int, most_lines: int) -> bytes:
    choose = random.Random(0)
    lines = []
    for key in range(num_sequences):
        for _ in range(choose.randint(1, most_lines)):
            lines.append(f"{key} |w {choose.randrange(100_000)}:1 {choose.randrange(100_000)}:1\n")
    return "".join(lines).encode()


def bytes_read(
    server: RangeServer, name: str, deal: Literal["length", "chunk"], size: int, chunk_size: int
) -> tuple[list[int], int]:
    """Return the bytes that each rank requests after opening, and the number of samples that all get."""
    deserializer = CTFDeserializer(f"{server.url}/{name}", WORDS, chunk_size_in_bytes=chunk_size, cache_index=True)
    deserializer.open().close()
    counts, num_samples = [], 0
    for rank in range(NUM_RANKS):
        with MinibatchSource(deserializer, max_sweeps=1) as source:
            server.requests.clear()
            while (minibatch := source.read(size, GlobalPartition(rank, NUM_RANKS, deal))) is not None:
                num_samples += minibatch["w"].num_samples
        counts.append(
            sum(found.end - found.begin for found in server.requests if found.begin is not None and found.end)
        )
    return counts, num_samples


def test_ranks_that_own_chunks_read_their_share() -> None:
    text = corpus_text(20_000, 9)
    with range_server(**{"a.ctf": text}) as server:
        counts, num_samples = bytes_read(server, "a.ctf", "chunk", 8192, 16 << 10)
    assert num_samples == text.count(b"\n")
    assert max(counts) <= 1.3 * len(text) / NUM_RANKS
    assert sum(counts) <= 1.01 * len(text)


@pytest.mark.parametrize("compress", [None, gzip.compress], ids=["plain", "gzip"])
def test_ranks_that_share_all_chunks_leave_out_long_gaps(
    monkeypatch: pytest.MonkeyPatch, compress: Callable[[bytes], bytes] | None
) -> None:
    monkeypatch.setattr(open_input, "LEAST_GAP", 2048)
    monkeypatch.setattr(compressed, "SPACING", 1 << 13)
    text = corpus_text(300, 1500)
    content = text if compress is None else compressed_in_frames(text, compress)
    name = "a.ctf" if compress is None else "a.ctf.gz"
    with range_server(**{name: content}) as server:
        counts, num_samples = bytes_read(server, name, "length", 65_536, 4 << 20)
    assert num_samples == text.count(b"\n")
    most = 1.1 if compress is None else 1.8  # a segment is decompressed from its beginning
    assert max(counts) <= most * len(content) / NUM_RANKS


def compressed_in_frames(text: bytes, compress: Callable[[bytes], bytes]) -> bytes:
    """Return the text in members of some sequences each."""
    lines = text.splitlines(keepends=True)
    return b"".join(compress(b"".join(lines[first : first + 500])) for first in range(0, len(lines), 500))

"""Some chunks of a corpus are a small value that any process reads, and together they are the corpus."""

import gzip
import multiprocessing
import os
import pickle
import random
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    ConfigError,
    CorpusError,
    CTFDeserializer,
    StreamDef,
    StreamDefs,
    UserDeserializer,
    _core,
    read_ctf,
    write_ctf,
)
from cntkio.convert import CorpusChunks, corpus_chunks
from cntkio.storage import compressed
from cntkio.storage.index_cache import CacheCopy
from hypothesis import given
from hypothesis import strategies as st

STREAMS = StreamDefs(x=StreamDef("x", 1))


@pytest.fixture
def chunks(tmp_path: Path) -> CorpusChunks:
    (tmp_path / "a.ctf").write_text("".join(f"{key} |x {key / 2}\n" for key in range(1000)))
    return corpus_chunks(CTFDeserializer(tmp_path / "a.ctf", STREAMS, chunk_size_in_bytes=500))


def test_parts_are_disjoint_and_together_form_the_corpus(chunks: CorpusChunks, tmp_path: Path) -> None:
    assert len(chunks) > 20 and sum(chunks.num_sequences) == 1000
    parts = chunks.split(7)
    assert len(parts) == 7 and max(sum(part.num_sequences) for part in parts) < 250
    keys = [key for part in parts for key in part.read().keys_of_sequences.tolist()]
    assert keys == list(range(1000))
    write_ctf(tmp_path / "b.ctf", chunks[3:5])
    first = sum(chunks.num_sequences[:3])
    assert (tmp_path / "b.ctf").read_text().startswith(f"{first}\t|x ")
    assert len((tmp_path / "b.ctf").read_text().splitlines()) == sum(chunks.num_sequences[3:5])


def keys_of(part: CorpusChunks) -> tuple[int, list[int]]:
    return os.getpid(), part.read().keys_of_sequences.tolist()


def test_other_processes_read_parts(chunks: CorpusChunks) -> None:
    parts = chunks.split(3)
    assert len(pickle.dumps(parts[0])) < 5000
    # A `Pool` waits forever for a process that ends while it imports this module; an executor raises an error.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        found = list(executor.map(keys_of, parts))
    assert all(process != os.getpid() for process, _ in found)
    assert [key for _, keys in found for key in keys] == list(range(1000))


@pytest.fixture
def decompressed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the number of bytes of text that each step decompresses."""
    counts: list[int] = []
    parse, decompress = _core.ctf_parse, _core.decompress
    make_stream = _core.CompressedStream

    def counted_parse(source: Any, *arguments: Any) -> Any:
        counts.append(int(source[2][-1] - source[2][0]))
        return parse(source, *arguments)

    def counted_decompress(segments: Any, *arguments: Any) -> None:
        counts.append(int(segments[2][-1] - segments[2][0]))
        decompress(segments, *arguments)

    class Stream:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self._stream = make_stream(*arguments, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

        def feed(self, *arguments: Any) -> Any:
            before = self._stream.position[1]
            found = self._stream.feed(*arguments)
            counts.append(self._stream.position[1] - before)
            return found

    monkeypatch.setattr(_core, "ctf_parse", counted_parse)
    monkeypatch.setattr(_core, "decompress", counted_decompress)
    monkeypatch.setattr(_core, "CompressedStream", Stream)
    return counts


@pytest.mark.parametrize("num_files", [1, 2])
def test_parts_with_copied_caches_decompress_only_their_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decompressed: list[int], num_files: int
) -> None:
    monkeypatch.setattr(compressed, "SPACING", 40_000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    choose, size, count = random.Random(1), 0, 80_000 // num_files
    for file in range(num_files):
        lines = [f"{key} |x {choose.random()}\n" for key in range(file * count, (file + 1) * count)]
        size += len("".join(lines))
        (tmp_path / f"{file}.ctf.gz").write_bytes(gzip.compress("".join(lines).encode()))
    corpus = CTFDeserializer(tmp_path / "*.ctf.gz", STREAMS, chunk_size_in_bytes=200_000, cache_index=True)
    parts = corpus_chunks(corpus).split(10)
    caches = corpus.index_caches()
    assert len(caches) == 2 * num_files and all(cache.exists() for cache in caches)
    copies = [(CacheCopy(cache), cache.read_bytes()) for cache in caches]
    for cache in caches:
        cache.unlink()  # as on another machine
    keys = []
    for number, part in enumerate(parts):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"machine {number}"))
        for copy, content in pickle.loads(pickle.dumps(copies)):
            copy.place(lambda content=content: content)
        decompressed.clear()
        keys += pickle.loads(pickle.dumps(part)).read().keys_of_sequences.tolist()
        # Chunks begin and end between access points, so the text around a border is decompressed twice.
        assert sum(decompressed) < size / 4
    assert keys == list(range(80_000)) and not any(cache.exists() for cache in caches)


def test_a_changed_corpus_is_refused(chunks: CorpusChunks, tmp_path: Path) -> None:
    with (tmp_path / "a.ctf").open("a") as file:
        file.write("5000 |x 1\n")
    with pytest.raises(CorpusError, match="a.ctf has changed since its chunks were listed"):
        chunks[:1].read()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda chunks: chunks.split(0), "num_parts is 0; expected at least 1"),
        (lambda chunks: chunks[::2], "expected a slice without a step"),
        (lambda chunks: chunks[0], "expected a slice without a step"),
    ],
)
def test_refuses_parts_that_are_not_runs(chunks: CorpusChunks, call: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call(chunks)


def test_refuses_corpora_with_an_order_of_their_own() -> None:
    class Local(UserDeserializer):
        def stream_infos(self) -> Any:
            from cntkio import StreamInformation

            return [StreamInformation("x", 0, "dense", np.float32, (1,))]

        def num_chunks(self) -> int:
            return 1

    with pytest.raises(ConfigError, match="Local has its own order"):
        corpus_chunks(Local())


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 40))
def test_any_division_keeps_every_chunk_once(counts: list[int], num_parts: int) -> None:
    corpus = CTFDeserializer("a.ctf", STREAMS)
    chunks = CorpusChunks(corpus, range(len(counts)), tuple(counts), "a.ctf", (), False, "")
    parts = chunks.split(num_parts)
    assert [chunk_id for part in parts for chunk_id in part.chunk_ids] == list(range(len(counts)))
    assert 1 <= len(parts) <= min(num_parts, len(counts)) and all(len(part) for part in parts)


def test_a_text_is_read_in_part(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_text("".join(f"{key} |x {key / 2}\n" for key in range(100)))
    options = {"chunk_size_in_bytes": 300}
    sizes = corpus_chunks(CTFDeserializer(tmp_path / "a.ctf", STREAMS, **options)).num_sequences  # type: ignore[arg-type]
    part = read_ctf(tmp_path / "a.ctf", STREAMS, chunks=slice(1, 3), **options)
    assert part.keys_of_sequences.tolist() == [*range(sizes[0], sum(sizes[:3]))]
    with pytest.raises(ConfigError, match="expected a slice without a step"):
        read_ctf(tmp_path / "a.ctf", STREAMS, chunks=slice(0, 4, 2), **options)

"""A corpus has the same minibatches, states and places of errors in all places where corpora can be."""

import dataclasses
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    BalancedPartition,
    CntkIoError,
    CTFDeserializer,
    FormatError,
    GlobalPartition,
    MinibatchSource,
    Partition,
    StreamDef,
    StreamDefs,
)
from cntkio.formats import corpus as file_corpus
from cntkio.formats.ctf import corpus
from cntkio.storage import block_cache, compressed, open_input, stores
from support.range_server import RangeServer, range_server
from support.rounds import step
from support.whereabouts import KINDS, Kind, Whereabouts

pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")
pytest.importorskip("aiohttp", reason="fsspec reads http only with aiohttp")

STREAMS = {
    "x": StreamDefs(x=StreamDef(field="x", shape=2)),
    "y": StreamDefs(y=StreamDef(field="y", shape=9, is_sparse=True)),
}
LOCAL = Kind("disk", "plain")


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with range_server() as served:
        yield served


@pytest.fixture
def small_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> random.Random:
    """Make requests, blocks, frames and windows so small that small texts have many; return the random generator."""
    choose = random.Random(request.node.callspec.params["seed"])
    block = choose.choice((100, 500, 1 << 20))
    for module, name, value in (
        (stores, "PART", choose.choice((200, 1 << 20))),
        (block_cache, "BLOCK", block),
        (block_cache, "WORTH_A_BLOCK", block // 4),
        (compressed, "SPACING", choose.choice((30, 300, 4 << 20))),
        (compressed, "FRAMES", choose.choice((100, 1 << 20))),
        (open_input.RemoteInput, "reach", choose.choice((300, 32 << 20))),
        (compressed.CompressedText, "reach", choose.choice((300, 32 << 20))),
        (file_corpus, "MOST_OPEN", choose.choice((1, 2, 64))),
        (corpus, "LEAST_CACHED", choose.choice((0, 1 << 18))),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user cache"))
    return choose


def random_text(choose: random.Random, stream: str, keys: list[int] | None) -> bytes:
    """Return sequences of a random number of lines; some have errors. Without keys each line is a sequence."""
    lines: list[bytes] = []
    for key in keys or range(60):
        for _ in range(choose.randrange(1, 5) if keys else 1):
            head = b"%d " % key if keys else b""
            values = b"%d %d" % (choose.randrange(10**6), key) if stream == "x" else b"%d:1" % choose.randrange(9)
            wrong = choose.choice((b" 5 5 5", b" zwei")) if choose.random() < 0.02 else b""
            lines += [head, b"|", stream.encode(), b" ", values, wrong, b"\n", b"\n" * (choose.random() < 0.05)]
    return b"".join(lines)


def cut_at_chunks(path: str, text: bytes, choose: random.Random, chunk_size: int) -> list[bytes]:
    """Cut a text where some of its chunks end, so that its parts have the same chunks."""
    (stream,) = (name for name in STREAMS if f"|{name} ".encode() in text)
    opened = CTFDeserializer(path, STREAMS[stream], chunk_size_in_bytes=chunk_size).open()
    begins = opened.places(opened.table.chunk_starts[1:-1].astype(np.int64)).bytes
    opened.close()
    assert begins is not None
    cuts = sorted(choose.sample(begins.tolist(), min(len(begins), choose.randrange(1, 5))))
    return [text[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(text)])]


@dataclasses.dataclass
class Setting:
    """A way to read a corpus."""

    options: dict[str, Any]
    of_corpora: dict[str, Any]
    size: int
    partition: Partition

    @classmethod
    def random(cls, choose: random.Random) -> "Setting":
        options: dict[str, Any] = {"max_sweeps": 2, "trace_level": 0, "randomize": choose.random() < 0.7}
        if options["randomize"]:
            options["randomization_window_in_chunks"] = choose.choice((1, 3, 128))
            options["randomization_seed"] = choose.randrange(99)
        if choose.random() < 0.3:
            options["truncation_length"] = choose.randrange(1, 4)
        count = choose.randrange(1, 4)
        kinds = (Partition,) if "truncation_length" in options else (Partition, BalancedPartition, GlobalPartition)
        of_corpora = {
            "chunk_size_in_bytes": choose.choice((100, 300, 1000)),
            "max_errors": choose.choice((0, 1, -1, -1)),
            "subset": True,
        }
        return cls(options, of_corpora, choose.randrange(1, 30), choose.choice(kinds)(choose.randrange(count), count))

    def source(self, names: list[list[str]], streams: list[str], **of_corpora: Any) -> MinibatchSource:
        corpora = [
            CTFDeserializer(files, STREAMS[stream], **{**self.of_corpora, **of_corpora})
            for files, stream in zip(names, streams, strict=True)
        ]
        return MinibatchSource(corpora, **self.options)


def shown(minibatch: Any) -> Any:
    """Return everything that a minibatch has as plain data."""
    flags = ("mask", "continues", "offsets", "indices", "indptr")
    found: dict[str, Any] = {}
    for name, data in minibatch.items():
        arrays = {flag: getattr(data, flag, None) for flag in ("values", *flags)}
        found[name] = {flag: array.tolist() for flag, array in arrays.items() if isinstance(array, np.ndarray)}
        found[name]["end_of_sweep"] = data.end_of_sweep
    return minibatch.keys_of_sequences.tolist(), found


@dataclasses.dataclass
class Outcome:
    """Everything that a source delivers: minibatches, a state after each, counts of errors, and the final error."""

    minibatches: list[Any]
    states: list[Any]
    counts: Any
    error: CntkIoError | None

    @classmethod
    def of(cls, source: MinibatchSource, setting: Setting) -> "Outcome":
        found = cls([], [], None, None)
        with source:
            try:
                while minibatch := source.read(setting.size, setting.partition):
                    found.minibatches.append(shown(minibatch))
                    found.states.append(source.state_dict())
            except CntkIoError as error:
                found.error = error
            found.counts = source.error_counts, source.warning_counts
        return found

    def plain(self, names: dict[str, str]) -> Any:
        """Return everything for comparisons, with other names for the files."""
        text = str(self.error)
        for name, other in names.items():
            text = text.replace(name, other)
        states = [
            {name: value if name != "order" else value["digest"] for name, value in state.items()}
            for state in self.states
        ]
        return self.minibatches, states, self.counts, type(self.error), text

    def of_sequences(self, texts: dict[str, bytes]) -> Any:
        """Return the parts of an outcome that do not depend on the number of files; `texts` has all files in order."""
        states = [
            {name: value if name != "order" else value["digest"] for name, value in state.items() if name != "data"}
            for state in self.states
        ]
        error = self.error
        if not isinstance(error, FormatError):
            return self.minibatches, states, self.counts, str(error)
        assert error.path is not None and error.line is not None and error.byte is not None
        before = b"".join(itertools.takewhile(lambda text: text is not texts[error.path], texts.values()))
        place = error.line + before.count(b"\n"), error.byte + len(before), error.column, error.sequence, error.stream
        return self.minibatches, states, self.counts, place, error.what


@pytest.mark.parametrize("seed", range(0, 6, step(6)))
def test_a_corpus_is_the_same_wherever_it_is(
    seed: int, tmp_path: Path, server: RangeServer, small_parts: random.Random
) -> None:
    choose = small_parts
    setting = Setting.random(choose)
    keys = choose.sample(range(1000), 40) if choose.random() < 0.7 else None
    streams = ["x", "y"] if choose.random() < 0.4 else ["x"]
    where = Whereabouts(tmp_path, server, choose)
    texts = {stream: random_text(choose, stream, keys) for stream in streams}
    whole = {stream: [text] for stream, text in texts.items()}
    several = {}
    for stream, text in texts.items():
        (path,) = where.put(LOCAL, "to cut", [text])
        several[stream] = cut_at_chunks(path, text, choose, setting.of_corpora["chunk_size_in_bytes"])

    def put(kind: Kind, parts: dict[str, list[bytes]], name: str) -> list[list[str]]:
        return [where.put(kind, f"{name}-{stream}", parts[stream]) for stream in streams]

    expected: dict[str, Outcome] = {}
    of_streams: dict[str, Any] = {}
    for name, parts in (("whole", whole), ("part", several)):
        local = put(LOCAL, parts, name)
        expected[name] = Outcome.of(setting.source(local, streams), setting)
        contents = {
            path: text
            for files, stream in zip(local, streams, strict=True)
            for path, text in zip(files, parts[stream], strict=True)
        }
        ends = {path: files for files in local for path in files}
        path = getattr(expected[name].error, "path", None)
        of_streams[name] = expected[name].of_sequences({path: contents[path] for path in ends.get(path, ())})
        for kind in KINDS:
            _require_same(kind, setting, streams, put(kind, parts, name), local, where, expected[name], choose)
    assert of_streams["part"] == of_streams["whole"]


def _require_same(
    kind: Kind,
    setting: Setting,
    streams: list[str],
    names: list[list[str]],
    local: list[list[str]],
    where: Whereabouts,
    expected: Outcome,
    choose: random.Random,
) -> None:
    of_local = {
        name: other
        for files, others in zip(names, local, strict=True)
        for name, other in zip(files, others, strict=True)
    }
    options = {"remote": where.remote(kind), "cache_index": choose.random() < 0.3}
    outcome = Outcome.of(setting.source(names, streams, **options), setting)
    assert outcome.plain(of_local) == expected.plain({}), kind
    if expected.states and expected.error is None:
        step = choose.randrange(len(expected.states))
        restored = setting.source(names, streams, **options)
        restored.load_state_dict(expected.states[step])
        assert Outcome.of(restored, setting).minibatches == expected.minibatches[step + 1 :], kind

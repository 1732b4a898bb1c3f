"""Ranks of global partitions that load only their own sequences: the values of one reader, and a share of the loads."""

import gzip
import itertools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    Budget,
    CBFDeserializer,
    CTFDeserializer,
    FormatError,
    GlobalPartition,
    HTKFeatureDeserializer,
    HTKMLFDeserializer,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    packed,
    write_cbf,
)
from cntkio.formats import Loaded, htk
from cntkio.timeline.state import of_any_worker
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rounds import rounds

properties = settings(max_examples=rounds(12), suppress_health_check=list(HealthCheck))
LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=40)
X = StreamDefs(x=StreamDef(field="x", shape=2), s=StreamDef(field="s", shape=50, is_sparse=True))
Y = StreamDefs(y=StreamDef(field="y", shape=1))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(htk.corpus, "CHUNK_FRAMES", 20)
    monkeypatch.setattr(htk.lists, "SMALLEST_MAP", 24)  # so that some runs are read and others mapped


def text(path: Path, lengths: list[int], names: str, keys: list[int] | None = None, **options: Any) -> CTFDeserializer:
    """A text; sequence k has x = (k, step), s = k % 50 : step, y = step."""
    lines = []
    for key in range(len(lengths)) if keys is None else keys:
        for step in range(lengths[key]):
            fields = {"x": f" |x {key} {step} |s {key % 50}:{step}", "y": f" |y {step}"}
            lines.append(f"{key}{fields[names]}\n".encode())
    path.write_bytes(gzip.compress(b"".join(lines)) if path.suffix == ".gz" else b"".join(lines))
    options = {"chunk_size_in_bytes": 150, "skip_sequence_ids": False, **options}
    return CTFDeserializer(path, X if names == "x" else Y, **options)


def features(folder: Path, lengths: list[int]) -> HTKFeatureDeserializer:
    """Two archives, one with its utterances in reverse order, and some utterances with a file each."""
    listed = []
    for number, keys in enumerate(np.array_split(np.arange(len(lengths)), 3)):
        stored = keys[::-1].tolist() if number == 1 else keys.tolist()
        data = {key: np.array([(key, step) for step in range(lengths[key])], ">f4").tobytes() for key in stored}
        if number == 2:
            for key in stored:
                path = folder / f"{key}.mfc"
                path.write_bytes(struct.pack(">iihh", lengths[key], 100_000, 8, 9) + data[key])
                listed.append(f"{key}={path}[0,{lengths[key] - 1}]\n")
            continue
        path, num_frames = folder / f"{number}.ark", sum(lengths[key] for key in stored)
        path.write_bytes(struct.pack(">iihh", num_frames, 100_000, 8, 9) + b"".join(data.values()))
        ends = dict(zip(stored, np.cumsum([lengths[key] for key in stored]).tolist(), strict=True))
        listed += [f"{key}={path}[{ends[key] - lengths[key]},{ends[key] - 1}]\n" for key in keys.tolist()]
    (folder / "list.scp").write_text("".join(listed))
    return HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp=str(folder / "list.scp"), shape=2)))


def labels(folder: Path, lengths: list[int], **options: Any) -> HTKMLFDeserializer:
    """Labels in another order; every ninth utterance has a row that does not begin at frame 0."""
    rows = ["#!MLF!#"]
    for key in sorted(range(len(lengths)), key=lambda key: key % 7):
        first = 100_000 if key % 9 == 8 and lengths[key] > 1 else 0
        middle = max(first, 100_000 * (lengths[key] // 2))
        rows += [f'"{key}.lab"', *([f"{first} {middle} b"] if middle > first else [])]
        rows += [f"{middle} {100_000 * lengths[key]} a", "."]
    (folder / "a.mlf").write_text("\n".join(rows) + "\n")
    (folder / "states").write_text("a\nb\n")
    return HTKMLFDeserializer(folder / "states", StreamDefs(l=StreamDef(mlf=str(folder / "a.mlf"), shape=2)))


def binary(folder: Path, lengths: list[int], **options: Any) -> CBFDeserializer:
    write_cbf(folder / "a.cbf", text(folder / "a.ctf", lengths, "x"), chunk_size_in_bytes=300)
    return CBFDeserializer(folder / "a.cbf", **options)


def documented(folder: Path, lengths: list[int]) -> CBFDeserializer:
    only_sparse = CTFDeserializer(text(folder / "a.ctf", lengths, "x").filename, StreamDefs(s=X["s"]))
    write_cbf(folder / "old.cbf", only_sparse, chunk_size_in_bytes=300, layout="documented")
    return CBFDeserializer(folder / "old.cbf")


def several(folder: Path, lengths: list[int]) -> CTFDeserializer:
    halves = np.array_split(np.arange(len(lengths)), 2)
    for number, keys in enumerate(halves):
        text(folder / f"several{number}.ctf", lengths, "y", keys.tolist())
    options = {"chunk_size_in_bytes": 150, "skip_sequence_ids": False}
    return CTFDeserializer([folder / f"several{number}.ctf" for number in range(2 - (len(lengths) < 2))], Y, **options)


def some(lengths: list[int]) -> list[int]:
    """Keys of which some are missing, some occur twice, and some have changed places with a neighbor."""
    keys = [key ^ 1 if key ^ 1 < len(lengths) else key for key in range(len(lengths))]
    return [0, *(key for key in keys if key and key % 5 != 3), 0]


KINDS: dict[str, Callable[[Path, list[int]], list[Any]]] = {
    "text": lambda folder, lengths: [text(folder / "a.ctf", lengths, "x")],
    "two texts": lambda folder, lengths: [
        text(folder / "a.ctf", lengths, "x"), text(folder / "b.ctf", lengths, "y", chunk_size_in_bytes=70)
    ],
    "a large chunk": lambda folder, lengths: [
        text(folder / "a.ctf", lengths, "x"), text(folder / "b.ctf", lengths, "y", chunk_size_in_bytes=1 << 20)
    ],
    "missing and repeated": lambda folder, lengths: [
        text(folder / "a.ctf", lengths, "x"), text(folder / "b.ctf", lengths, "y", some(lengths))
    ],
    "repeated in the first": lambda folder, lengths: [
        text(folder / "a.ctf", lengths, "x", some(lengths)), text(folder / "b.ctf", lengths, "y")
    ],
    "another order": lambda folder, lengths: [
        text(folder / "a.ctf", lengths, "x", chunk_size_in_bytes=1000),
        text(folder / "b.ctf", lengths, "y", sorted(range(len(lengths)), key=lambda key: key % 7)),
    ],
    "packed": lambda folder, lengths: [
        text(folder / "a.ctf.gz", lengths, "x"), text(folder / "b.ctf", lengths, "y")
    ],
    "several files": lambda folder, lengths: [text(folder / "a.ctf", lengths, "x"), several(folder, lengths)],
    "binary": lambda folder, lengths: [binary(folder, lengths)],
    "copied binary": lambda folder, lengths: [binary(folder, lengths, memory_map=False)],
    "old binary": lambda folder, lengths: [documented(folder, lengths)],
    "binary and text": lambda folder, lengths: [binary(folder, lengths), text(folder / "b.ctf", lengths, "y")],
    "utterances": lambda folder, lengths: [features(folder, lengths)],
    "utterances and labels": lambda folder, lengths: [features(folder, lengths), labels(folder, lengths)],
    "text, utterances and labels": lambda folder, lengths: [
        text(folder / "b.ctf", lengths, "y"), features(folder, lengths), labels(folder, lengths)
    ],
}  # fmt: skip
POOLS = [
    Budget(padded=20, pool=9),
    Budget(samples=15, pool=30, pool_unit="samples"),
    Budget(rows=4, row_length=12, pool=12),
    Budget(rows=8, row_length=12, pool=11, balance="attention"),
]
WHOLE = {"another order": (1,)}
"""Kinds, and the corpora of which ranks load whole chunks."""


class Counting:
    """A deserializer whose corpora count the sequences that they load, and their bytes in memory."""

    def __init__(self, deserializer: Any) -> None:
        self._deserializer = deserializer
        self.num_sequences = self.num_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._deserializer, name)

    def parts(self) -> list[Any]:
        return [self]

    def open(self, **options: Any) -> Any:
        corpus = self._deserializer.open(**options)
        counting = self

        class Counted:
            def __getattr__(self, name: str) -> Any:
                return getattr(corpus, name)

            def load(self, *arguments: Any) -> Loaded:
                return counting.count(corpus.load(*arguments))

            def take_parsed(self) -> dict[int, Loaded]:
                return {}

        return Counted()

    def count(self, loaded: Loaded) -> Loaded:
        self.num_sequences += loaded.chunk.num_sequences
        self.num_bytes += loaded.chunk.num_bytes
        return loaded


def contents(minibatch: Any) -> list[Any]:
    """The key and the values of each sequence, sorted."""
    if not minibatch.num_sequences:
        return []
    streams = [
        [np.asarray(one.todense() if hasattr(one, "todense") else one).tolist() for one in data.as_sequences()]
        for _, data in sorted(minibatch.items())
    ]
    return sorted(zip(minibatch.keys_of_sequences.tolist(), *streams, strict=True))


def read_all(source: MinibatchSource, size: int | Budget, partition: GlobalPartition, most: int = 1000) -> list[Any]:
    reads = itertools.islice(iter(lambda: source.read(size, partition), None), most)
    return [(contents(minibatch), minibatch.end_of_sweep) for minibatch in reads]


def union(shares: tuple[Any, ...]) -> Any:
    return sorted(sequence for share, _ in shares for sequence in share), shares[0][1]


@pytest.mark.parametrize("kind", KINDS)
@properties
@given(LENGTHS, st.integers(1, 5), st.one_of(st.integers(1, 30), st.sampled_from(POOLS)), st.data())
def test_ranks_that_load_pieces_deliver_the_values_of_one_reader(
    module_folder: Path, kind: str, lengths: list[int], count: int, size: int | Budget, data: st.DataObject
) -> None:
    corpora = KINDS[kind](module_folder, lengths)
    # A pool needs a randomized order, and a window that holds it.
    window = data.draw(st.sampled_from([None, 1, 3, 9] if isinstance(size, int) else [20, 50]))
    order: dict[str, Any] = {"randomization_window_in_chunks": window} if window else {"randomize": False}
    options = {"max_sweeps": 2, "max_errors": 1000, **order}
    with MinibatchSource(corpora, **options) as source:
        alone = read_all(source, size, GlobalPartition(0, 1))
    counts, found, state = [count, data.draw(st.integers(1, 5))], [], None
    for steps, ranks in zip([data.draw(st.integers(0, len(alone))), 1000], counts, strict=True):
        shares, states = [], []
        for index in range(ranks):
            with MinibatchSource(corpora, **options) as source:
                if state is not None:
                    source.load_state_dict(state)
                shares.append(read_all(source, size, GlobalPartition(index, ranks), steps))
                taken = source.state_dict()
                states.append({**taken, "timeline": of_any_worker(taken["timeline"]), "num_invalid": 0})
        found += [union(step) for step in zip(*shares, strict=True)]
        if steps:
            state = states[0]
    assert found == alone


@pytest.mark.parametrize(("kind", "size"), [*((kind, 100) for kind in KINDS), *(("two texts", size) for size in POOLS)])
def test_each_sequence_is_loaded_by_the_rank_that_delivers_it(
    module_folder: Path, kind: str, size: int | Budget
) -> None:
    lengths = np.random.default_rng(3).integers(1, 6, 200).tolist()
    counts, sizes = [], []
    for ranks in (1, 4):
        loaded = []
        for index in range(ranks):
            corpora = [Counting(corpus) for corpus in KINDS[kind](module_folder, lengths)]
            window = {"randomization_window_in_chunks": 50}
            with MinibatchSource(corpora, max_sweeps=1, max_errors=1000, **window) as source:
                read_all(source, size, GlobalPartition(index, ranks))
            loaded.append([(corpus.num_sequences, corpus.num_bytes) for corpus in corpora])
        counts.append(np.array(loaded)[:, :, 0])
        sizes.append(np.array(loaded)[:, :, 1])
    (alone,), shared = counts
    for corpus_index in range(len(alone)):
        if corpus_index in WHOLE.get(kind, ()):
            assert (shared[:, corpus_index] == alone[corpus_index]).all()
        else:
            assert (
                shared[:, corpus_index].sum() <= alone[corpus_index]
            )  # sequences that a join leaves out are not loaded
            assert (sizes[1][:, corpus_index] < 0.4 * sizes[0][0, corpus_index]).all()


def cells_of(minibatch: Any, size: Any, count: int, part: tuple[int, int] = (0, 1)) -> Any:
    """The cells of a rank's rows, or of its part of them, and `cu_seqlens`."""
    minibatch.pop("s", None)  # it is not one-hot
    rows = packed(minibatch, size.row_length, rows=-(-size.rows // count), part=part)
    assert rows.values.keys() == minibatch.keys()
    return {**rows.values, "segments": rows.segment_ids, "positions": rows.position_ids}, rows.cu_seqlens.tolist()


def together(parts: Any) -> Any:
    """The cells of the rows that ranks share, from the parts of all."""
    cells, cu_seqlens = zip(*parts, strict=True)
    assert all(of_one == cu_seqlens[0] for of_one in cu_seqlens)
    halves = {name: [np.split(of_one[name], 2, axis=1) for of_one in cells] for name in cells[0]}
    joined = {
        name: np.concatenate([head for head, _ in own] + [tail for _, tail in reversed(own)], axis=1).tolist()
        for name, own in halves.items()
    }
    return joined, cu_seqlens[0]


ROWS = [
    Budget(rows=4, row_length=12, pool=12),
    Budget(rows=3, row_length=24, pool=11, balance="attention"),
    Budget(rows=2, row_length=12, pool=9, carry=True),
]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "old binary" and "repeated" not in kind])
@properties
@given(LENGTHS, st.sampled_from(ROWS), st.lists(st.sampled_from([1, 2, 3, 6]), min_size=2, max_size=2), st.data())
def test_ranks_that_share_rows_have_all_cells_of_the_rows(
    module_folder: Path, kind: str, lengths: list[int], size: Budget, splits: list[int], data: st.DataObject
) -> None:
    corpora = KINDS[kind](module_folder, lengths)
    options = {
        "max_sweeps": 2,
        "max_errors": 1000,
        "randomization_window_in_chunks": data.draw(st.sampled_from([20, 50])),
    }
    count = data.draw(st.integers(1, 3))
    for index in range(count):
        with MinibatchSource(corpora, **options) as source:
            reads = source.minibatches(size, partition=GlobalPartition(index, count))
            alone = [cells_of(minibatch, size, count) for minibatch in reads]
        expected = [({name: own.tolist() for name, own in cells.items()}, bounds) for cells, bounds in alone]
        found, state = [], None
        # The second time with another number of ranks, from a state of one of the first, in a new source.
        for steps, split in zip([data.draw(st.integers(0, len(alone))), 1000], splits, strict=True):
            parts, states = [], []
            for rank in range(split):
                part = (rank, split)
                with MinibatchSource(corpora, **options) as source:
                    if state is not None:
                        source.load_state_dict(state)
                    share = GlobalPartition(index, count, part=part)
                    reads = itertools.islice(source.minibatches(size, partition=share), steps)
                    parts.append([cells_of(minibatch, size, count, part) for minibatch in reads])
                    states.append(source.state_dict())
            found += [together(step) for step in zip(*parts, strict=True)]
            state = data.draw(st.sampled_from(states)) if steps else None
        assert found == expected


@pytest.mark.parametrize("kind", ["text", "two texts", "binary", "utterances"])
def test_a_rank_loads_only_what_is_in_its_part_of_the_rows(module_folder: Path, kind: str) -> None:
    lengths = np.random.default_rng(3).integers(1, 12, 200).tolist()
    size, loaded = Budget(rows=2, row_length=96, pool=100), []
    for rank in range(4):
        corpora = [Counting(corpus) for corpus in KINDS[kind](module_folder, lengths)]
        with MinibatchSource(corpora, max_sweeps=1, randomization_window_in_chunks=100) as source:
            reads = [*source.minibatches(size, partition=GlobalPartition(0, 1, part=(rank, 4)))]
        held = sum(minibatch.num_sequences for minibatch in reads)
        assert [corpus.num_sequences for corpus in corpora] == [held] * len(corpora)
        assert sum(len(minibatch.keys_of_sequences) for minibatch in reads) == held
        loaded.append(held)
    assert max(loaded) < 0.45 * len(lengths) and sum(loaded) >= len(lengths)


def first_errors(corpora: list[Any], count: int, **options: Any) -> list[tuple[int, FormatError]]:
    """The ranks that meet an error in a sweep, and their errors."""
    errors = []
    for index in range(count):
        with MinibatchSource(corpora, randomize=False, max_sweeps=1, **options) as source:
            try:
                read_all(source, 100, GlobalPartition(index, count))
            except FormatError as error:
                errors.append((index, error))
    return errors


def test_an_error_of_a_joined_text_is_found_by_its_own_rank(module_folder: Path) -> None:
    corpora = KINDS["two texts"](module_folder, [1] * 8)
    path = module_folder / "b.ctf"
    path.write_text(path.read_text().replace("5 |y 0", "5 |y ?"))
    ((index, error),) = first_errors(corpora, 4)
    assert (index, error.line, error.sequence) == (5 % 4, 6, 5)
    corpora[1] = CTFDeserializer(path, Y, chunk_size_in_bytes=70, skip_sequence_ids=False, max_errors=4)
    assert not first_errors(corpora, 4)


def test_a_wrong_binary_index_is_found_by_its_own_rank(module_folder: Path) -> None:
    corpora = KINDS["binary"](module_folder, [1] * 8)
    data = bytearray((module_folder / "a.cbf").read_bytes())
    at = data.rindex(struct.pack("<i", 7))  # of the last sequence
    data[at : at + 4] = struct.pack("<i", 50)
    (module_folder / "a.cbf").write_bytes(data)
    ((index, error),) = first_errors(corpora, 4)
    assert (index, error.sequence, error.stream, error.byte) == (7 % 4, 7, "s", at)


def test_a_truncated_archive_is_found_by_the_rank_of_its_end(module_folder: Path) -> None:
    corpora = KINDS["utterances"](module_folder, [2] * 12)
    path = module_folder / "0.ark"
    path.write_bytes(path.read_bytes()[:-12])
    ((index, error),) = first_errors(corpora, 4)
    assert (index, error.sequence, error.path) == (3, "3", str(path))

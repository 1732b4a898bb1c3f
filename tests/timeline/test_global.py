"""Global partitions: global minibatches that are dealt to all partitions. (docs/timeline.md, "Global partitions")"""

import itertools
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    ConfigError,
    CTFDeserializer,
    GlobalPartition,
    HTKFeatureDeserializer,
    MinibatchSource,
    Partition,
    StreamDef,
    StreamDefs,
    StreamInformation,
    UserDeserializer,
    write_cbf,
)
from cntkio.timeline import Timeline, Window
from cntkio.timeline.state import of_any_worker
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rounds import rounds

STREAMS = StreamDefs(x=StreamDef(field="x", shape=2))
LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=40)
OPTIONS = st.fixed_dictionaries(
    {"randomize": st.booleans(), "randomization_seed": st.integers(0, 9)},
    optional={"randomization_window_in_chunks": st.integers(1, 9), "truncation_length": st.integers(1, 3)},
)
DEALS = st.sampled_from(["length", "area", "chunk"])
properties = settings(max_examples=rounds(60), suppress_health_check=list(HealthCheck))

Found = tuple[list[tuple[int, int]], bool]
"""The samples of a minibatch, each a key and a step, and the flag."""


def source_in(folder: Path, lengths: list[int], options: dict[str, Any], sweeps: int = 2) -> MinibatchSource:
    lines = [f"{key} |x {key} {step}\n" for key, length in enumerate(lengths) for step in range(length)]
    (folder / "a.ctf").write_text("".join(lines))
    deserializer = CTFDeserializer(folder / "a.ctf", STREAMS, chunk_size_in_bytes=100)
    return MinibatchSource(deserializer, max_sweeps=sweeps, **options)


def read(source: MinibatchSource, size: int, partition: Partition) -> Found | None:
    minibatch = source.read(size, partition)
    if minibatch is None:
        return None
    values = minibatch["x"].asarray()
    if values.ndim == 3:
        values = values[minibatch["x"].mask != 0]
    return [tuple(sample) for sample in values.astype(int).tolist()], minibatch.end_of_sweep


def read_all(source: MinibatchSource, size: int, partition: Partition) -> list[Found]:
    return list(iter(lambda: read(source, size, partition), None))


def union(shares: list[Found]) -> Found:
    assert len({flag for _, flag in shares}) == 1
    return sorted(sample for samples, _ in shares for sample in samples), shares[0][1]


def sensible(deal: Any, options: dict[str, Any], size: int, count: int) -> tuple[str, int]:
    """A deal that the options allow, and a size with a slot for each partition."""
    length = options.get("truncation_length", 0)
    if length or (deal == "chunk" and not options["randomize"]):
        deal = "length"
    return deal, max(size, length * count)


@properties
@given(LENGTHS, OPTIONS, st.integers(1, 9), st.integers(1, 30), DEALS)
def test_the_union_of_the_ranks_is_what_one_reader_delivers(
    module_folder: Path, lengths: list[int], options: dict[str, Any], count: int, size: int, deal: Any
) -> None:
    deal, size = sensible(deal, options, size, count)
    with source_in(module_folder, lengths, options) as source:
        alone = [(sorted(samples), flag) for samples, flag in read_all(source, size, Partition())]
    ranks = []
    for index in range(count):
        with source_in(module_folder, lengths, options) as source:
            ranks.append(read_all(source, size, GlobalPartition(index, count, deal)))
    assert len({len(rank) for rank in ranks}) == 1
    assert [union(list(step)) for step in zip(*ranks, strict=True)] == alone


@properties
@given(
    LENGTHS,
    OPTIONS,
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3), DEALS), min_size=2, max_size=4),
    st.data(),
)
def test_a_state_continues_on_any_number_of_ranks_and_workers(
    module_folder: Path,
    lengths: list[int],
    options: dict[str, Any],
    jobs: list[tuple[int, int, Any]],
    data: st.DataObject,
) -> None:
    size = max(data.draw(st.integers(1, 30)), 3 * 9)
    with source_in(module_folder, lengths, options) as source:
        alone = [(sorted(samples), flag) for samples, flag in read_all(source, size, Partition())]
    found: list[Found] = []
    state = None
    for at, (count, num_workers, deal) in enumerate(jobs):
        deal, _ = sensible(deal, options, size, count)
        steps = data.draw(st.integers(0, len(alone))) if at < len(jobs) - 1 else len(alone) + num_workers
        states = set()
        shares: dict[int, list[Found]] = {}
        for index in range(count):
            for worker in range(num_workers):
                with source_in(module_folder, lengths, options) as source:
                    if state is not None:
                        source.load_state_dict(json.loads(state))
                    partition = GlobalPartition(index, count, deal, worker=worker, num_workers=num_workers)
                    for step in range(worker, steps, num_workers):
                        share = read(source, size, partition)
                        if share is None:
                            break
                        shares.setdefault(step, []).append(share)
                        if step == steps - 1:
                            state_dict = source.state_dict()
                            timeline = of_any_worker(state_dict["timeline"])
                            states.add(json.dumps({**state_dict, "timeline": timeline}))
        found.extend(union(shares[step]) for step in sorted(shares))
        assert len(states) <= 1  # all ranks have the same state
        if states:
            state = states.pop()
        elif steps and len(found) >= len(alone):
            break
    assert found == alone


def of_kind(folder: Path, kind: str, lengths: list[int]) -> MinibatchSource:
    """A source of a joined corpus, a binary corpus, utterances, or frames; samples are a key and a step.

    Truncated, a minibatch has up to three steps of each slot.
    """
    lines = [f"{key} |x {key} {step}\n" for key, length in enumerate(lengths) for step in range(length)]
    (folder / "kind.ctf").write_text("".join(lines))
    text = CTFDeserializer(folder / "kind.ctf", STREAMS, chunk_size_in_bytes=100)
    options: dict[str, Any] = {"max_sweeps": 2, "randomization_window_in_chunks": 3}
    if kind.startswith("truncated"):
        options["truncation_length"] = 3
    if kind.endswith("joined"):
        others = [f"{key} |y {step}\n" for key, length in enumerate(lengths) for step in range(length)]
        (folder / "other.ctf").write_text("".join(reversed(others)))
        y = StreamDefs(y=StreamDef(field="y", shape=1))
        return MinibatchSource([text, CTFDeserializer(folder / "other.ctf", y, chunk_size_in_bytes=70)], **options)
    if kind == "text":
        return MinibatchSource(text, **options)
    if kind == "binary":
        write_cbf(folder / "kind.cbf", text, chunk_size_in_bytes=100)
        return MinibatchSource(CBFDeserializer(folder / "kind.cbf"), **options)
    for key, length in enumerate(lengths):
        frames = np.array([(key, step) for step in range(length)], ">f4").tobytes()
        (folder / f"{key}.mfc").write_bytes(struct.pack(">iihh", length, 100_000, 8, 9) + frames)
    (folder / "list.scp").write_text(
        "".join(f"u{key}={folder}/{key}.mfc[0,{n - 1}]\n" for key, n in enumerate(lengths))
    )
    features = StreamDefs(x=StreamDef(scp=str(folder / "list.scp"), shape=2))
    return MinibatchSource(HTKFeatureDeserializer(features), frame_mode=kind == "frames", **options)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut text into pieces of a few bytes, so that several threads parse pieces."""
    monkeypatch.setattr("cntkio.formats.ctf.corpus.PIECE", 40)
    monkeypatch.setattr("cntkio.formats.ctf.corpus.PIECE_OF_SOME", 20)


JOBS = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 2), DEALS, st.integers(1, 3)), min_size=2, max_size=3
)  # ranks, workers, deal, threads


@pytest.mark.parametrize(
    "kind", ["joined", "binary", "utterances", "frames", "text", "truncated joined", "truncated utterances"]
)
@settings(properties, max_examples=rounds(8))
@given(LENGTHS, JOBS, st.data())
def test_every_kind_of_source_continues_on_any_number_of_ranks(
    module_folder: Path,
    small_pieces: None,
    kind: str,
    lengths: list[int],
    jobs: list[tuple[int, int, Any, int]],
    data: st.DataObject,
) -> None:
    size = data.draw(st.integers(1, 30))
    if kind.startswith("truncated"):
        size, jobs = max(size, 3 * 9), [(count, workers, "length", threads) for count, workers, _, threads in jobs]
    with of_kind(module_folder, kind, lengths) as source:
        alone = [(sorted(samples), flag) for samples, flag in read_all(source, size, Partition())]
    found: list[Found] = []
    state = None
    for at, (count, num_workers, deal, num_threads) in enumerate(jobs):
        is_last = at == len(jobs) - 1
        steps = len(alone) - len(found) if is_last else data.draw(st.integers(0, len(alone) - len(found)))
        shares: list[list[Found]] = [[] for _ in range(steps)]
        for index, worker in itertools.product(range(count), range(num_workers)):
            with pytest.MonkeyPatch.context() as environment, of_kind(module_folder, kind, lengths) as source:
                environment.setenv("CNTKIO_NUM_THREADS", str(num_threads))
                if state is not None:
                    source.load_state_dict(state)
                partition = GlobalPartition(index, count, deal, worker=worker, num_workers=num_workers)
                for step in range(worker, steps, num_workers):
                    share = read(source, size, partition)
                    assert share is not None
                    shares[step].append(share)
                    if step == steps - 1:
                        taken = source.state_dict()
                        state_after = {**taken, "timeline": of_any_worker(taken["timeline"])}
                if is_last and worker == steps % num_workers:
                    assert read(source, size, partition) is None
        if steps:
            state = state_after
        found.extend(union(share) for share in shares)
    assert found == alone


@properties
@given(LENGTHS, OPTIONS, st.integers(1, 30), st.integers(2, 3), st.data())
def test_a_worker_continues_where_its_state_was_taken(
    module_folder: Path, lengths: list[int], options: dict[str, Any], size: int, num_workers: int, data: st.DataObject
) -> None:
    _, size = sensible("length", options, size, 2)
    partition = GlobalPartition(1, 2, worker=data.draw(st.integers(0, num_workers - 1)), num_workers=num_workers)
    with source_in(module_folder, lengths, options) as source:
        states, seen = [json.dumps(source.state_dict())], []
        while (share := read(source, size, partition)) is not None:
            seen.append(share)
            states.append(json.dumps(source.state_dict()))
    at = data.draw(st.integers(0, len(seen)))
    with source_in(module_folder, lengths, options) as source:
        source.load_state_dict(json.loads(states[at]))
        assert read_all(source, size, partition) == seen[at:]


@properties
@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(1, 60), st.integers(1, 9), st.booleans())
def test_merged_minibatches_have_a_sequence_for_each_rank(
    lengths: list[int], size: int, count: int, randomize: bool
) -> None:
    def reads(index: int) -> list[list[int]]:
        table = np.array(lengths, np.uint32), np.append(np.arange(0, len(lengths), 7), len(lengths))
        timeline = Timeline(*table, window=Window(3, "chunks") if randomize else None, max_sweeps=2)
        partition = GlobalPartition(index, count, remainder="merge")
        return [own.sequences.tolist() for own in iter(lambda: timeline.read(size, partition), None)]

    ranks = [reads(index) for index in range(count)]
    assert len({len(rank) for rank in ranks}) == 1
    if 2 * len(lengths) >= count:
        assert all(own for rank in ranks for own in rank)
    assert sorted(at for rank in ranks for own in rank for at in own) == sorted([*range(len(lengths))] * 2)


def test_merging_returns_on_an_endless_source() -> None:
    shares = []
    for index in range(4):
        timeline = Timeline(np.full(6, 5, np.uint32), np.array([0, 6]), window=None)
        partition = GlobalPartition(index, 4, remainder="merge")
        shares.append([timeline.read(10, partition).sequences.tolist() for _ in range(3)])
    assert [sorted(sum(step, [])) for step in zip(*shares, strict=True)] == [[0, 1, 2, 3], [0, 1, 4, 5], [2, 3, 4, 5]]


def test_loads_of_ranks_are_even() -> None:
    random = np.random.default_rng(7)
    lengths = random.integers(1, 40, 20_000).astype(np.uint32)
    starts = np.append(np.arange(0, 20_000, 500), 20_000)
    for count in (2, 8, 64):
        loads = []
        for index in range(count):
            timeline = Timeline(lengths, starts, window=Window(8, "chunks"), max_sweeps=1)
            reads = iter(lambda: timeline.read(65_536, GlobalPartition(index, count)), None)  # noqa: B023
            loads.append([int(lengths[own.sequences].sum()) for own in reads])
        whole = np.array(loads)[:, :-1]
        assert (whole.max(axis=0) <= 1.02 * whole.mean(axis=0)).all()


def test_dealt_by_chunk_a_rank_reads_its_own_chunks() -> None:
    lengths, starts = np.ones(600, np.uint32), np.arange(0, 601, 10)
    chunks = []
    for index in range(4):
        timeline = Timeline(lengths, starts, window=Window(9, "chunks"), max_sweeps=1)
        partition = GlobalPartition(index, 4, "chunk")
        used: set[int] = set()
        while (own := timeline.read(64, partition)) is not None:
            used.update(own.chunks.tolist())
            assert set(own.chunks.tolist()) <= {*timeline.needed_chunks(partition).chunks} | used
        chunks.append(used)
    assert sorted(chunk for used in chunks for chunk in used) == [*range(60)]


@pytest.mark.parametrize(
    ("wrong", "options", "message"),
    [
        ({"deal": "size"}, {}, "deal is 'size'"),
        ({"remainder": "drop"}, {}, "remainder is 'drop'"),
        ({"worker": 2, "num_workers": 2}, {}, "worker 2 is outside"),
        ({"deal": "chunk", "remainder": "merge"}, {}, "exclude each other"),
        ({"deal": "chunk"}, {"randomize": False}, "needs a randomized order"),
        ({"deal": "area"}, {"truncation_length": 2}, "deal='area' needs whole sequences"),
        ({"remainder": "merge"}, {"truncation_length": 2}, "remainder='merge' needs whole sequences"),
        ({"count": 9}, {"truncation_length": 5}, "9 partitions share 4 slots"),
    ],
)
def test_refuses_impossible_deals(
    module_folder: Path, wrong: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with (
        source_in(module_folder, [3, 1, 2], {"randomize": True} | options) as source,
        pytest.raises(ConfigError, match=message),
    ):
        source.read(20, GlobalPartition(**({"index": 0, "count": 2} | wrong)))


def test_a_user_defined_timeline_has_no_global_partitions() -> None:
    class Numbers(UserDeserializer):
        def stream_infos(self) -> list[StreamInformation]:
            return [StreamInformation("x", 0, "dense", np.float32, (1,))]

        def num_chunks(self) -> int:
            return 1

        def get_chunk(self, chunk_id: int) -> dict[str, Any]:
            return {"x": np.zeros((3, 1), np.float32)}

    with MinibatchSource([Numbers()]) as source, pytest.raises(ConfigError, match="nor global partitions"):
        source.read(2, GlobalPartition(0, 2))


def test_the_most_loaded_of_64_ranks_has_at_most_two_percent_more() -> None:
    lengths = np.random.default_rng(0).integers(1, 40, 40_000).astype(np.uint32)  # as in seqs.ctf of the benches
    chunk_starts = np.arange(0, 40_001, 100)
    loads = []
    for index in range(64):
        timeline = Timeline(lengths, chunk_starts, window=Window(128, "chunks"), max_sweeps=1)
        reads = iter(lambda source=timeline, index=index: source.read(65_536, GlobalPartition(index, 64)), None)
        loads.append([int(lengths[selection.sequences].sum()) for selection in reads])
    steps = np.array(loads)[:, :-1]  # the last minibatch of the sweep is small
    assert steps.shape[1] == 12
    assert (steps.max(axis=0) <= 1.02 * steps.mean(axis=0)).all()

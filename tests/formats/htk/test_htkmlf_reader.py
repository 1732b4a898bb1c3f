"""The HTKMLFReader: its orders compared with a slow twin, its page file, skipped utterances, and its lifetime."""

import contextlib
import errno
import gc
import itertools
import json
import logging
import pickle
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    CheckpointError,
    ConfigError,
    CorpusError,
    FormatError,
    GlobalPartition,
    HTKFeatureDeserializer,
    HTKMLFDeserializer,
    HTKMLFReader,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    _core,
)
from cntkio.formats import htk, mlf
from cntkio.source.chunks import ChunkStore
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow.htkmlf_reader import SlowReader
from support.rounds import rounds

NAMES = ["sil", "aa", "b"]
LENGTHS = (3, 5, 1, 4, 7, 2)


def frames_of(lengths: Any, dim: int = 2) -> list[Any]:
    """Frame t, value k of utterance u is 1000 u + t + k / 8."""
    return [1000 * u + np.arange(n)[:, None] + np.arange(dim) / 8 for u, n in enumerate(lengths)]


class Written:
    """A corpus in a folder."""

    def __init__(self, folder: Path, lengths: Any = LENGTHS, label_lengths: Any = None) -> None:
        self.folder = folder
        frames = frames_of(lengths)
        htk.write_archive(folder / "a.ark", folder / "a.scp", [(f"u{u}", one) for u, one in enumerate(frames)])
        self.utterances: list[Any] = [one.tolist() for one in frames]
        labels = lengths if label_lengths is None else label_lengths
        classes = [(f"u{u}", (np.arange(n) + u) % 3) for u, n in enumerate(labels) if n]
        mlf.write_mlf(folder / "a.mlf", classes, NAMES)
        mlf.write_mapping(folder / "states.list", NAMES)

    def features(self, name: str = "F", **stream: Any) -> HTKFeatureDeserializer:
        return HTKFeatureDeserializer(StreamDefs({name: StreamDef(scp=self.folder / "a.scp", shape=2, **stream)}))

    def labels(self, name: str = "L", dim: int = 3, **options: Any) -> HTKMLFDeserializer:
        streams = StreamDefs({name: StreamDef(mlf=self.folder / "a.mlf", shape=dim)})
        return HTKMLFDeserializer(str(self.folder / "states.list"), streams, **options)


@pytest.fixture
def corpus(tmp_path: Path) -> Written:
    return Written(tmp_path)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Chunks of few frames, so that there are several of them."""
    monkeypatch.setattr(htk.corpus, "CHUNK_FRAMES", 5)
    return 5


def taken(source: Any, size: int, *partition: int, stream: str = "F") -> list[Any]:
    return [minibatch[stream].values.tolist() for minibatch in source.minibatches(size, *partition)]


def utterances_of(minibatch: Any) -> list[str]:
    return minibatch.keys_of_sequences.tolist()


METHODS: list[dict[str, Any]] = [
    {"readMethod": "rollingWindow", "randomize": 6, "page_limit_in_bytes": 0, "read_ahead_in_bytes": 0},
    {"readMethod": "rollingWindow"},
    {"readMethod": "blockRandomize", "randomize": 9},
    {"readMethod": "blockRandomize", "randomize": 9, "minibatchMode": "full"},
    {"readMethod": "none"},
    {"frameMode": False, "nbruttsineachrecurrentiter": 2},
    {"frameMode": False, "truncated": True, "nbruttsineachrecurrentiter": [2, 3]},
    {"frameMode": False, "truncated": True, "truncationLength": 3, "nbruttsineachrecurrentiter": 2},
]


# ---------------------------------------------------------------------------------------------- with the twin


@settings(max_examples=rounds(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    read_method=st.sampled_from(["blockRandomize", "rollingWindow", "none"]),
    randomize=st.one_of(st.sampled_from(["auto", "none"]), st.integers(0, 60)),
    seed=st.one_of(st.integers(0, 3), st.integers(0, 2**63)),
    context=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    size=st.integers(1, 30),
    only_full=st.booleans(),
    in_memory=st.booleans(),
)
def test_frames_are_delivered_in_the_order_of_the_slow_twin(
    lengths: list[int],
    read_method: str,
    randomize: int | str,
    seed: int,
    context: tuple[int, int],
    size: int,
    only_full: bool,
    in_memory: bool,
    small_chunks: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    corpus = Written(tmp_path_factory.mktemp("htk"), lengths)
    twin = SlowReader(corpus.utterances, read_method, randomize, seed, context, only_full, small_chunks)
    with HTKMLFReader(
        [corpus.features(context=context), corpus.labels()],
        readMethod=read_method,
        randomize=randomize,
        minibatchMode="full" if only_full else "partial",
        randomization_seed=seed,
        max_sweeps=2,
        page_limit_in_bytes=1 << 20 if in_memory else 0,
        read_ahead_in_bytes=1 << 20 if in_memory else 0,
    ) as reader:
        expected = list(twin.minibatches(size, 2))
        found = list(reader.minibatches(size))
        assert [minibatch["F"].values.tolist() for minibatch in found] == expected
        for minibatch in found:  # each frame has its label
            middle = minibatch["F"].values.reshape(minibatch["F"].num_samples, -1, 2)[:, context[0], 0]
            assert minibatch["L"].indices.tolist() == ((middle // 1000 + middle % 1000) % 3).astype(int).tolist()


def test_the_order_is_a_function_of_the_seed_alone(corpus: Written, small_chunks: int) -> None:
    def order(method: str, **options: Any) -> list[Any]:
        with HTKMLFReader(corpus.features(), readMethod=method, randomize=8, max_sweeps=3, **options) as reader:
            return taken(reader, 4)

    for method in ("rollingWindow", "blockRandomize"):
        one = order(method, randomization_seed=4)
        assert order(method, randomization_seed=4, page_limit_in_bytes=0, read_ahead_in_bytes=0) == one
        assert order(method, randomization_seed=5) != one
        # Sweep k of seed s is sweep 0 of seed s + k.
        assert order(method, randomization_seed=5)[:6] == one[6:12]


def test_no_frame_strays_by_more_than_half_the_window(tmp_path: Path) -> None:
    corpus = Written(tmp_path, [7] * 60)
    in_order = [frame for utterance in corpus.utterances for frame in utterance]
    with HTKMLFReader(corpus.features(), readMethod="rollingWindow", randomize=20, max_sweeps=1) as reader:
        found = [frame for minibatch in taken(reader, 50) for frame in minibatch]
    strays = [abs(in_order.index(frame) - place) for place, frame in enumerate(found)]
    assert sorted(found) == sorted(in_order)
    assert 0 < max(strays) <= 10


# --------------------------------------------------------------------------------------------------- page files


def paged(corpus: Written, folder: Path, **options: Any) -> HTKMLFReader:
    """A reader that keeps in memory only the features that it needs."""
    fixed: dict[str, Any] = {"readMethod": "rollingWindow", "randomize": 4, "max_sweeps": 2, "pageFilePath": folder}
    return HTKMLFReader(
        [corpus.features(), corpus.labels()], page_limit_in_bytes=0, read_ahead_in_bytes=0, **{**fixed, **options}
    )


def test_feature_files_are_read_once_with_a_page_file(corpus: Written, small_chunks: int, tmp_path: Path) -> None:
    with paged(corpus, tmp_path) as reader:
        expected = taken(reader, 3)
    with paged(corpus, tmp_path) as reader:
        reading = reader.minibatches(3)
        first = [next(reading)["F"].values.tolist() for _ in range(8)]
        (corpus.folder / "a.ark").unlink()
        assert first + [minibatch["F"].values.tolist() for minibatch in reading] == expected


def test_only_chunks_around_the_position_are_in_memory(
    small_chunks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores: list[ChunkStore] = []

    class KnownStore(ChunkStore):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            stores.append(self)

    monkeypatch.setattr("cntkio.source.source.ChunkStore", KnownStore)
    corpus = Written(tmp_path, [6] * 40)
    with paged(corpus, tmp_path, randomize=12) as reader:
        assert reader.num_chunks == 40
        for _ in reader.minibatches(3):
            # Half of the window to each side, the minibatch, and the next minibatch, which is prepared ahead.
            assert len(stores[0].in_memory(0)) <= 8


def open_files(folder: Path) -> list[str]:
    """Return the open files of this process that are, or were, in a folder."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(str(descriptor.readlink()))
    return [link for link in links if link.startswith(f"{folder}/")]


def test_a_page_file_has_no_name_and_vanishes_with_the_reader(
    corpus: Written, small_chunks: int, tmp_path: Path
) -> None:
    folder = tmp_path / "pages"
    folder.mkdir()
    reader = paged(corpus, folder)
    reader.next_minibatch(20)
    assert len(open_files(folder)) == 1
    assert not list(folder.iterdir())
    reader.close()
    assert not open_files(folder)
    reader = paged(corpus, folder)
    reader.next_minibatch(20)
    assert len(open_files(folder)) == 1
    del reader
    deadline = time.monotonic() + 60
    while open_files(folder):  # chunks that are read ahead come first
        assert time.monotonic() < deadline
        gc.collect()
    assert not list(folder.iterdir())


@pytest.mark.parametrize("death", ["raise SystemExit(3)", "raise ValueError", "os.kill(os.getpid(), 9)"])
def test_a_page_file_does_not_outlive_the_process(death: str, corpus: Written, tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    folder.mkdir()
    program = f"""
        import os
        from cntkio import HTKMLFReader, HTKFeatureDeserializer, StreamDef, StreamDefs
        features = HTKFeatureDeserializer(StreamDefs(F=StreamDef(scp={str(corpus.folder / "a.scp")!r}, shape=2)))
        reader = HTKMLFReader(features, readMethod="rollingWindow", pageFilePath={str(folder)!r}, page_limit_in_bytes=0)
        reader.next_minibatch(4)
        links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        assert any(os.path.realpath(link).startswith({f"{folder}/"!r}) for link in links)
        {death}
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, check=False)
    assert ended.returncode != 0 and b"AssertionError" not in ended.stderr
    assert not list(folder.iterdir())


def test_reading_continues_after_the_error_of_a_full_disk(
    corpus: Written, small_chunks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pages"
    folder.mkdir()
    with paged(corpus, folder) as reader:
        expected = taken(reader, 5)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with paged(corpus, folder) as reader:
        with monkeypatch.context() as patch:
            patch.setattr(_core, "file_write", full)
            with pytest.raises(OSError, match="the page file cannot be written: No space left") as caught:
                reader.next_minibatch(5)
            assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(folder))
        found = []
        for _ in range(50):  # chunks that were read ahead may have failed, too
            with contextlib.suppress(OSError):
                minibatch = reader.next_minibatch(5)
                if not minibatch:
                    break
                found.append(minibatch["F"].values.tolist())
        assert found == expected
    assert not list(folder.iterdir())


def test_a_fork_writes_a_page_file_of_its_own(corpus: Written, small_chunks: int, tmp_path: Path) -> None:
    program = f"""
        import os, sys
        from cntkio import HTKMLFReader, HTKFeatureDeserializer, StreamDef, StreamDefs
        from cntkio.formats.htk import corpus
        corpus.CHUNK_FRAMES = 5
        features = HTKFeatureDeserializer(StreamDefs(F=StreamDef(scp={str(corpus.folder / "a.scp")!r}, shape=2)))
        reader = HTKMLFReader(features, readMethod="rollingWindow", randomize=4, page_limit_in_bytes=0, max_sweeps=2,
            read_ahead_in_bytes=0)
        reader.next_minibatch(4)
        child = os.fork()
        found = [minibatch["F"].values.tolist() for minibatch in reader.minibatches(4)]
        if child:
            assert os.waitpid(child, 0)[1] == 0
        print(found, flush=True)
        os._exit(0)
    """
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(program)]
    child, parent = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    with HTKMLFReader(corpus.features(), readMethod="rollingWindow", randomize=4, max_sweeps=2) as reader:
        assert child == parent == str(taken(reader, 4)[1:])


# ------------------------------------------------------------------------------------------- utterances and rows


@pytest.mark.parametrize("options", METHODS, ids=str)
def test_every_way_of_reading_delivers_the_same_minibatches(
    options: dict[str, Any], corpus: Written, small_chunks: int
) -> None:
    def read(way: Callable[[HTKMLFReader], Iterator[Any]]) -> list[Any]:
        with HTKMLFReader(corpus.features(), max_sweeps=2, **options) as reader:
            minibatches = [minibatch["F"].values.tolist() for minibatch in way(reader)]
            reader.begin_epoch(22, 44, number=1)
            return [*minibatches, *(minibatch["F"].values.tolist() for minibatch in way(reader))]

    expected = read(lambda reader: reader.minibatches(8))
    assert read(lambda reader: iter(lambda: reader.next_minibatch(8), {})) == expected
    assert read(lambda reader: iter(lambda: reader.read(8), None)) == expected


def test_a_read_of_utterances_takes_as_many_as_the_next_minibatch(corpus: Written) -> None:
    with HTKMLFReader(corpus.features(), frameMode=False, nbruttsineachrecurrentiter=2) as reader:
        assert reader.next_minibatch(512).num_sequences == 2
        minibatch = reader.read(512)
        assert minibatch is not None and minibatch.num_sequences == 2


def test_a_minibatch_has_the_configured_number_of_utterances(corpus: Written) -> None:
    with HTKMLFReader(
        corpus.features(), frameMode=False, nbruttsineachrecurrentiter=4, randomize="none", max_sweeps=2
    ) as reader:
        found = [utterances_of(minibatch) for minibatch in reader.minibatches(1)]
    assert found == [["u0", "u1", "u2", "u3"], ["u4", "u5"]] * 2


def test_utterances_are_shuffled_as_in_other_sources(corpus: Written, small_chunks: int) -> None:
    with HTKMLFReader(corpus.features(), frameMode=False, randomize=9, randomization_seed=2, max_sweeps=1) as reader:
        found = [utterances_of(minibatch)[0] for minibatch in reader.minibatches(1)]
    with MinibatchSource(
        corpus.features(),
        max_sweeps=1,
        randomization_window_in_chunks=0,
        randomization_window_in_samples=9,
        randomization_seed=2,
    ) as source:
        assert found == [utterances_of(minibatch)[0] for minibatch in source.minibatches(1)]


def test_the_number_of_utterances_may_change_with_the_epoch(corpus: Written) -> None:
    with HTKMLFReader(
        corpus.features(), frameMode=False, nbruttsineachrecurrentiter=[1, 3], randomize="none"
    ) as reader:
        sizes = [[minibatch.num_sequences for minibatch in reader.epoch(number, 100)] for number in range(3)]
    assert sizes == [[1] * 6, [3, 3], [3, 3]]


def test_an_epoch_begins_with_the_first_utterance_that_begins_in_it(corpus: Written) -> None:
    with HTKMLFReader(corpus.features(), frameMode=False, randomize="none") as reader:
        # Utterances begin at the frames 0, 3, 8, 9, 13 and 20 of 22.
        keys = [[utterances_of(minibatch)[0] for minibatch in reader.epoch(number, 1, 7)] for number in range(4)]
    assert keys == [["u0", "u1"], ["u2", "u3", "u4"], ["u5"], ["u0", "u1"]]


def test_partitions_share_the_utterances_of_a_minibatch(corpus: Written) -> None:
    def found(count: int, index: int) -> list[list[str]]:
        with HTKMLFReader(
            corpus.features(), frameMode=False, nbruttsineachrecurrentiter=3, randomize="none", max_sweeps=1
        ) as reader:
            return [utterances_of(minibatch) for minibatch in reader.minibatches(1, count, index)]

    assert found(2, 0) == [["u0", "u2"], ["u4"]]
    assert found(2, 1) == [["u1"], ["u3"], ["u5"]]


def test_the_minibatch_size_is_the_steps_of_truncated_rows(corpus: Written) -> None:
    with HTKMLFReader(
        [corpus.features(), corpus.labels()],
        frameMode=False,
        truncated=True,
        nbruttsineachrecurrentiter=2,
        randomize="none",
        max_sweeps=1,
    ) as reader:
        minibatch = reader.next_minibatch(4)
        assert minibatch["F"].shape == (2, 4, 2)
        # Row by row, each is filled until it holds more than a minibatch.
        assert minibatch["F"].values[..., 0].tolist() == [[0, 1, 2, 1000], [2000, 3000, 3001, 3002]]
        assert minibatch["L"].shape == (2, 4, 3)
        following = reader.next_minibatch(4)["F"].values[..., 0].tolist()
        assert following == [[1001, 1002, 1003, 1004], [3003, 5000, 5001, 0]]


def test_a_truncation_length_replaces_the_minibatch_size(corpus: Written) -> None:
    def shapes(size: int) -> list[Any]:
        with HTKMLFReader(
            corpus.features(),
            frameMode=False,
            truncated=True,
            truncationLength=3,
            nbruttsineachrecurrentiter=[2, 4],
        ) as reader:
            return [next(reader.epoch(number, size))["F"].shape for number in (0, 1)]

    assert shapes(1) == shapes(50) == [(2, 3, 2), (4, 3, 2)]


# ---------------------------------------------------------------------------------------------------- partitions


@pytest.mark.parametrize("options", [METHODS[0], METHODS[1], METHODS[2], METHODS[4], METHODS[5]], ids=str)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_partitions_together_deliver_every_frame_once(
    options: dict[str, Any], count: int, corpus: Written, small_chunks: int
) -> None:
    found = []
    for index in range(count):
        with HTKMLFReader(corpus.features(), max_sweeps=2, **options) as reader:
            found += [tuple(frame) for minibatch in taken(reader, 5, count, index) for frame in minibatch]
    expected = [tuple(frame) for utterance in corpus.utterances for frame in utterance]
    assert sorted(found) == sorted(expected * 2)


def test_partitions_skip_the_same_short_minibatches(corpus: Written, small_chunks: int) -> None:
    # 22 frames in minibatches of 5: the last two frames of a sweep are left out.
    counts = []
    for index in range(2):
        with HTKMLFReader(
            corpus.features(), readMethod="rollingWindow", randomize=6, minibatchMode="full", max_sweeps=1
        ) as reader:
            counts.append([minibatch["F"].num_samples for minibatch in reader.minibatches(5, 2, index)])
    assert [sum(pair) for pair in zip(*counts, strict=True)] == [5, 5, 5, 5]


@pytest.mark.parametrize("options", METHODS, ids=str)
def test_a_global_state_continues_on_another_number_of_ranks(
    options: dict[str, Any], corpus: Written, small_chunks: int
) -> None:
    def read(rank: int, count: int, state: Any, most: int | None) -> tuple[list[Any], Any]:
        with HTKMLFReader([corpus.features(), corpus.labels()], max_sweeps=2, **options) as reader:
            if state is not None:
                reader.load_state_dict(state)
            reads = iter(lambda: reader.read(5, GlobalPartition(rank, count)), None)
            found = [frames_and_classes(minibatch) for minibatch in itertools.islice(reads, most)]
            return found, reader.state_dict()

    def union(ranks: list[list[Any]]) -> list[Any]:
        return [sorted(itertools.chain(*step)) for step in zip(*ranks, strict=True)]

    alone = union([read(0, 1, None, None)[0]])
    assert len(alone) > 2
    for most in (1, len(alone) // 2, len(alone) - 1):
        before = [read(rank, 2, None, most) for rank in range(2)]
        assert json.dumps(before[0][1]) == json.dumps(before[1][1])
        after = [read(0, 1, before[0][1], None)[0]]
        assert union([found for found, _ in before]) + union(after) == alone
        again = [read(rank, 2, read(0, 1, None, most)[1], None)[0] for rank in range(2)]
        assert union(again) == alone[most:]


def frames_and_classes(minibatch: Any) -> list[Any]:
    """The frames of a minibatch, each with the vector of its label."""
    if not minibatch.num_sequences:
        return []
    arrays = [minibatch["F"].values, minibatch["L"].asarray()]
    mask = minibatch["F"].mask
    features, labels = ((array[mask != 0] if array.ndim == 3 else array) for array in arrays)
    return list(zip(features.tolist(), labels.tolist(), strict=True))


def test_a_rank_of_a_global_partition_loads_its_own_utterances(
    corpus: Written, small_chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[list[int]] = []

    class Counted(htk.HTKFormat):
        def parse(self, file: Any, index: Any, chunk_id: int, sequences: Any) -> Any:
            first, end = index.table.bounds_of(chunk_id)
            loaded[-1].extend(range(first, end) if sequences is None else (first + sequences).tolist())
            return super().parse(file, index, chunk_id, sequences)

    monkeypatch.setattr(htk.corpus, "HTKFormat", Counted)
    for rank in range(3):
        loaded.append([])
        options = {"frameMode": False, "nbruttsineachrecurrentiter": 4, "max_sweeps": 1}
        with HTKMLFReader([corpus.features(), corpus.labels()], **options) as reader:
            for _ in iter(lambda: reader.read(1, GlobalPartition(rank, 3)), None):  # noqa: B023
                pass
    assert sorted(itertools.chain(*loaded)) == [*range(len(LENGTHS))]


# ---------------------------------------------------------------------------------------------------------- life


def rest(reader: HTKMLFReader, size: int = 4) -> list[Any]:
    return [
        (minibatch["F"].values.tolist(), minibatch["F"].end_of_sweep)
        for minibatch in itertools.islice(reader.minibatches(size), 30)
    ]


@pytest.mark.parametrize("options", METHODS, ids=str)
@pytest.mark.parametrize("num_before", [0, 1, 3, 7])
def test_a_restored_reader_continues_identically(
    options: dict[str, Any], num_before: int, corpus: Written, small_chunks: int
) -> None:
    def made() -> HTKMLFReader:
        return HTKMLFReader([corpus.features(), corpus.labels()], max_sweeps=3, **options)

    with made() as reader, made() as other:
        for _ in range(num_before):
            reader.next_minibatch(4)
        state = json.loads(json.dumps(reader.state_dict()))
        with pickle.loads(pickle.dumps(reader)) as copy:
            assert type(copy) is HTKMLFReader
            expected = rest(reader)
            assert rest(copy) == expected
        rest(other)
        other.load_state_dict(state)
        assert rest(other) == expected
        assert expected


def test_a_state_within_an_epoch_keeps_the_epochs_number(corpus: Written) -> None:
    def made() -> HTKMLFReader:
        return HTKMLFReader(
            corpus.features(), frameMode=False, truncated=True, nbruttsineachrecurrentiter=[1, 2], randomize="none"
        )

    with made() as reader, made() as other:
        next(reader.epoch(1, 3))
        other.load_state_dict(reader.state_dict())
        assert rest(other, 3) == rest(reader, 3)


def test_a_position_of_cntk_restores_at_a_frame(corpus: Written, small_chunks: int) -> None:
    for options in METHODS[:5]:
        with HTKMLFReader(corpus.features(), max_sweeps=2, **options) as reader:
            reader.next_minibatch(4)
            checkpoint = reader.get_checkpoint_state()
            assert checkpoint == {"minibatchSourcePosition": 4}
            expected = rest(reader)
            reader.restore_from_checkpoint(checkpoint)
            assert rest(reader) == expected


def test_refuses_states_of_another_reader_and_names_both_values(corpus: Written) -> None:
    with (
        HTKMLFReader(corpus.features(), readMethod="rollingWindow", randomize=6) as rolling,
        HTKMLFReader(corpus.features(), readMethod="blockRandomize", randomize=6) as block,
        MinibatchSource(corpus.features(), frame_mode=True) as source,
    ):
        with pytest.raises(CheckpointError, match="read_method: saved 'rollingWindow', here 'blockRandomize'"):
            block.load_state_dict(rolling.state_dict())
        with pytest.raises(CheckpointError, match="epoch_number"):
            block.load_state_dict(source.state_dict())


def test_a_change_of_size_and_partition_keeps_the_position(corpus: Written, small_chunks: int) -> None:
    with HTKMLFReader(corpus.features(), readMethod="rollingWindow", randomize=6, max_sweeps=1) as reader:
        expected = [frame for minibatch in taken(reader, 4) for frame in minibatch]
    with HTKMLFReader(corpus.features(), readMethod="rollingWindow", randomize=6, max_sweeps=1) as reader:
        found = []
        for size in (1, 7, 2, 100):
            found += reader.next_minibatch(size)["F"].values.tolist()
        assert found == expected
        assert not reader.next_minibatch(5)


def test_an_invalid_utterance_that_is_fetched_twice_counts_once(corpus: Written) -> None:
    text = (corpus.folder / "a.mlf").read_text()
    (corpus.folder / "a.mlf").write_text(text.replace("100000 200000 aa\n", "", 1))  # a gap in u0
    with HTKMLFReader(
        [corpus.features(), corpus.labels(unequal_lengths="keep")],
        frameMode=False,
        randomize="none",
        max_sweeps=2,
        max_errors=2,
    ) as reader:
        assert reader.error_counts == {}
        keys = []
        for _ in range(10):
            keys += utterances_of(reader.next_minibatch(1))
            reader.load_state_dict(reader.state_dict())  # discards prepared minibatches
        assert keys == ["u1", "u2", "u3", "u4", "u5"] * 2
        assert reader.error_counts == {"invalid utterance": 2}


# -------------------------------------------------------------------------------------------------- what is skipped


def test_unfit_utterances_are_skipped_and_counted_by_kind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    corpus = Written(tmp_path, lengths=(3, 5, 2, 4, 7, 2, 6), label_lengths=(3, 0, 2, 5, 7, 2, 6))
    with caplog.at_level(logging.WARNING, "cntkio"):
        reader = HTKMLFReader(
            [corpus.features(), corpus.labels()], frameMode=False, maxUtteranceLength=6, readMethod="none", max_sweeps=1
        )
    with reader:
        assert reader.skipped == {
            "missing in another stream": 1,
            "of another length in another stream": 1,
            "longer than 6 frames": 1,
        }
        assert [utterances_of(minibatch) for minibatch in reader.minibatches(1)] == [["u0"], ["u2"], ["u5"], ["u6"]]
    assert "1 utterance skipped, of another length in another stream: u3 (utterance u3 has 4 frames" in caplog.text


def test_the_length_limit_holds_for_whole_utterances(tmp_path: Path) -> None:
    corpus = Written(tmp_path, lengths=(3, 50, 2, 70_000))
    for options, skipped in (
        ({}, {"longer than 65535 frames": 1}),
        ({"frameMode": False}, {"longer than 40 frames": 2}),
        ({"frameMode": False, "truncated": True}, {"longer than 65535 frames": 1}),
    ):
        with HTKMLFReader(corpus.features(), maxUtteranceLength=40, **options) as reader:  # type: ignore[arg-type]
            assert reader.skipped == skipped


def test_more_than_half_of_the_utterances_skipped_is_an_error(tmp_path: Path) -> None:
    corpus = Written(tmp_path, lengths=(3, 5, 2, 4), label_lengths=(3, 0, 0, 9))
    with pytest.raises(
        CorpusError,
        match="3 of 4 utterances would be skipped, more than half of them: 2 missing in another stream "
        r"\(first u1\), 1 of another length in another stream \(first u3\)",
    ):
        HTKMLFReader([corpus.features(), corpus.labels()])
    corpus = Written(tmp_path, lengths=(3, 5, 2, 4), label_lengths=(3, 0, 0, 4))
    with HTKMLFReader([corpus.features(), corpus.labels()]) as reader:
        assert reader.num_samples == 7


def test_several_streams_of_features_and_labels_are_joined(corpus: Written) -> None:
    vectors = [(f"u{u}", np.array([[u, -u]])) for u in range(len(LENGTHS))]
    htk.write_archive(corpus.folder / "i.ark", corpus.folder / "i.scp", vectors)
    speaker = HTKFeatureDeserializer(StreamDefs(S=StreamDef(scp=corpus.folder / "i.scp", shape=2, broadcast=True)))
    deserializers = [
        corpus.features(),
        corpus.features("wide", context=(1, 1)),
        speaker,
        corpus.labels(),
        corpus.labels("again", as_class_ids=True),
    ]
    for method in ("blockRandomize", "rollingWindow"):
        with HTKMLFReader(deserializers, readMethod=method, max_sweeps=1, page_limit_in_bytes=0) as reader:
            minibatch = reader.next_minibatch(100)
            frames = minibatch["F"].values
            assert (minibatch["wide"].values[:, 2:4] == frames).all()
            assert (minibatch["S"].values[:, 0] == frames[:, 0] // 1000).all()
            assert (minibatch["again"].values == minibatch["L"].indices).all()
            assert len(frames) == sum(LENGTHS)


# ---------------------------------------------------------------------------------------------------------- targets


@pytest.fixture
def targets(corpus: Written) -> Path:
    path = corpus.folder / "targets.txt"
    path.write_text("sil 0000\r\naa\t 1010\n\nb 0111")
    return path


ROWS = np.array([[0, 0, 0, 0], [1, 0, 1, 0], [0, 1, 1, 1]], np.float32)


@pytest.mark.parametrize("options", METHODS, ids=str)
def test_targets_replace_one_hot_vectors(options: dict[str, Any], corpus: Written, targets: Path) -> None:
    labels = corpus.labels(dim=5, labelToTargetMappingFile=targets, targetDim=4)
    with HTKMLFReader([corpus.features(), labels], max_sweeps=1, **options) as reader:
        assert (reader["L"].is_sparse, reader["L"].shape, reader["L"].dtype) == (False, (4,), np.float32)
        num_frames = 0
        for minibatch in reader.minibatches(4):
            mask = minibatch["F"].mask > 0 if "truncated" in options else slice(None)
            first = minibatch["F"].values[mask][..., 0]
            expected = ROWS[((first // 1000 + first % 1000) % 3).astype(int)]
            assert minibatch["L"].values[mask].tolist() == expected.tolist()
            num_frames += len(first)
        assert num_frames >= 20


def test_the_checkpoint_covers_the_rows_of_targets(corpus: Written, targets: Path) -> None:
    def made() -> HTKMLFReader:
        return HTKMLFReader([corpus.features(), corpus.labels(labelToTargetMappingFile=targets)])

    with made() as reader:
        state = reader.state_dict()
    targets.write_text("sil 1000\naa 1010\nb 0111")
    with made() as reader, pytest.raises(CheckpointError, match="data of deserializer 1"):
        reader.load_state_dict(state)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("sil 00\naa 0\nb 11", 2, "1 value; expected 2"),
        ("sil 00\naa 02\nb 11", 2, "'aa 02'; expected a name, a blank, and a text of 0s and 1s"),
        ("sil 00\naa\nb 11", 2, "expected a name, a blank, and a text of 0s and 1s"),
        ("sil 00\nb 11\naa 01", 2, "the label 'b'; the mapping file has 'aa' here"),
        ("sil 00\naa 01\n", 3, "2 targets; expected 3"),
        ("sil 00\naa 01\nb 11\nc 11", 4, "4 targets; expected 3"),
        ("", 1, "0 targets; expected 3"),
    ],
)
def test_errors_of_targets_name_the_line(text: str, line: int, message: str, corpus: Written) -> None:
    path = corpus.folder / "targets.txt"
    path.write_text(text)
    with pytest.raises(FormatError, match=message) as caught:
        HTKMLFReader([corpus.features(), corpus.labels(labelToTargetMappingFile=path)])
    assert (caught.value.path, caught.value.line) == (str(path), line)


def test_targets_without_a_mapping_file_have_a_line_for_each_class(tmp_path: Path, targets: Path) -> None:
    assert mlf.read_targets(targets, 3).dim == 4
    with pytest.raises(FormatError, match="3 targets; expected 5"):
        mlf.read_targets(targets, 5)
    with pytest.raises(FormatError, match="4 values; expected 3"):
        mlf.read_targets(targets, 3, dim=3)


# ------------------------------------------------------------------------------------------------------ parameters


@pytest.mark.parametrize(
    ("options", "key", "message"),
    [
        ({"readMethod": "random"}, "readMethod", "expected 'blockRandomize' or 'rollingWindow' or 'none'"),
        ({"randomize": "some"}, "randomize", "expected 'auto' or 'none'"),
        ({"randomize": -1}, "randomize", "expected a whole number from 0"),
        ({"randomize": 1.5}, "randomize", "expected a whole number from 0"),
        ({"minibatchMode": "half"}, "minibatchMode", "expected 'partial' or 'full'"),
        ({"frameMode": "false"}, "frameMode", "expected True or False"),
        ({"truncated": True}, "truncated", "truncated and frameMode exclude each other"),
        ({"frameMode": False, "truncationLength": 5}, "truncationLength", "needs truncated=True"),
        ({"nbruttsineachrecurrentiter": 2}, "nbruttsineachrecurrentiter", "and frameMode exclude each other"),
        ({"frameMode": False, "nbruttsineachrecurrentiter": 0}, "nbruttsineachrecurrentiter", "whole number from 1"),
        ({"frameMode": False, "nbruttsineachrecurrentiter": []}, "nbruttsineachrecurrentiter", "is empty"),
        ({"frameMode": False, "readMethod": "rollingWindow"}, "readMethod", "whole utterances are shuffled by"),
        ({"maxUtteranceLength": 0}, "maxUtteranceLength", "whole number from 1"),
        ({"pageFilePath": "/tmp"}, "pageFilePath", "needs readMethod='rollingWindow'"),
        (
            {"readMethod": "rollingWindow", "pageFilePath": "/no/such/folder"},
            "pageFilePath",
            "'/no/such/folder', which is not a folder",
        ),
        ({"page_limit_in_bytes": -1}, "page_limit_in_bytes", "whole number from 0"),
    ],
)
def test_refuses_impossible_parameters_by_name(
    options: dict[str, Any], key: str, message: str, corpus: Written
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        HTKMLFReader(corpus.features(), **options)
    assert caught.value.key == key


def test_features_come_first(corpus: Written) -> None:
    with pytest.raises(ConfigError, match="of the type HTKMLFDeserializer; expected an HTKFeatureDeserializer"):
        HTKMLFReader([corpus.labels(), corpus.features()])
    with pytest.raises(ConfigError, match="the list is empty"):
        HTKMLFReader([])


def test_words_may_be_in_upper_or_lower_case(corpus: Written) -> None:
    with HTKMLFReader(
        corpus.features(), readMethod="ROLLINGwindow", randomize="Auto", minibatchMode="Full", max_sweeps=1
    ) as reader:
        assert [minibatch["F"].num_samples for minibatch in reader.minibatches(4)] == [4] * 5


def test_refuses_to_set_the_truncation_length_of_an_epoch(corpus: Written) -> None:
    with (
        HTKMLFReader(corpus.features(), frameMode=False, truncated=True) as reader,
        pytest.raises(ConfigError, match="an HTKMLFReader takes no truncation_length"),
    ):
        reader.begin_epoch(0, 22, truncation_length=4)

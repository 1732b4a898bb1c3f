"""Balanced partitions: the same number of minibatches for each. (docs/timeline.md, "Balanced partitions")"""

import dataclasses
import json
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    BalancedPartition,
    ConfigError,
    CTFDeserializer,
    GlobalPartition,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    StreamInformation,
    UserDeserializer,
)
from cntkio.formats import htk, mlf
from cntkio.timeline import Timeline, Window
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rounds import rounds

STREAMS = StreamDefs(x=StreamDef(field="x", shape=2))
LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=40)
OPTIONS = st.fixed_dictionaries(
    {"randomize": st.booleans(), "randomization_seed": st.integers(0, 9)},
    optional={"randomization_window_in_chunks": st.integers(1, 9)},
)
properties = settings(max_examples=rounds(60), suppress_health_check=list(HealthCheck))


def source_in(folder: Path, lengths: list[int], chunk_size_in_bytes: int = 100, **options: Any) -> MinibatchSource:
    lines = [f"{key} |x {key} {step}\n" for key, length in enumerate(lengths) for step in range(length)]
    (folder / "a.ctf").write_text("".join(lines))
    return MinibatchSource(
        CTFDeserializer(folder / "a.ctf", STREAMS, chunk_size_in_bytes=chunk_size_in_bytes), **options
    )


def read_all(source: MinibatchSource, size: int, partition: GlobalPartition) -> list[tuple[list[int], bool]]:
    """Keys and the flag of each minibatch."""
    found = []
    while (minibatch := source.read(size, partition)) is not None:
        x = minibatch["x"]
        keys = minibatch.keys_of_sequences.tolist()
        assert x.values[:, 0].tolist() == np.repeat(keys, x.lengths).tolist()
        found.append((keys, minibatch.end_of_sweep))
    return found


@properties
@given(LENGTHS, OPTIONS, st.integers(1, 5), st.integers(1, 30), st.integers(1, 2), st.sampled_from(["drop", "repeat"]))
def test_partitions_have_equally_many_minibatches_and_share_all_sequences(
    module_folder: Path, lengths: list[int], options: dict[str, Any], count: int, size: int, sweeps: int, remainder: Any
) -> None:
    if remainder == "drop" and len(lengths) < count:
        lengths = lengths * count
    ranks = []
    for index in range(count):
        with source_in(module_folder, lengths, max_sweeps=sweeps, **options) as source:
            ranks.append(read_all(source, size, BalancedPartition(index, count, remainder)))
    assert len({len(rank) for rank in ranks}) == 1
    # All ranks reach the end of a sweep in the same step.
    assert all(len({is_end for _, is_end in step}) == 1 for step in zip(*ranks, strict=True))
    assert [is_end for _, is_end in ranks[0]].count(True) == sweeps
    assert ranks[0][-1][1]
    for index, rank in enumerate(ranks):
        share = max(size // count + (index < size % count), 1)
        for keys, _ in rank:
            assert keys and (len(keys) == 1 or sum(lengths[key] for key in keys) <= max(share, size // count + 1))
    seen: Counter[int] = Counter()
    sweep = 0
    for step in zip(*ranks, strict=True):
        seen.update(key for keys, _ in step for key in keys)
        if step[0][1]:
            if remainder == "drop":
                assert set(seen.values()) == {1}
                assert len(lengths) - len(seen) < count
            else:
                assert set(seen) == set(range(len(lengths)))
                assert seen.total() - len(seen) < count
            seen.clear()
            sweep += 1
    assert sweep == sweeps


@properties
@given(LENGTHS, OPTIONS, st.integers(1, 3), st.integers(1, 30), st.integers(1, 3))
def test_workers_take_turns_with_the_same_minibatches(
    module_folder: Path, lengths: list[int], options: dict[str, Any], count: int, size: int, num_workers: int
) -> None:
    for index in range(count):
        with source_in(module_folder, lengths, max_sweeps=2, **options) as source:
            alone = read_all(source, size, BalancedPartition(index, count, "repeat"))
        for worker in range(num_workers):
            with source_in(module_folder, lengths, max_sweeps=2, **options) as source:
                partition = BalancedPartition(index, count, "repeat", worker, num_workers)
                assert read_all(source, size, partition) == alone[worker::num_workers]


@properties
@given(LENGTHS, OPTIONS, st.integers(1, 3), st.integers(1, 20), st.sampled_from(["drop", "repeat"]), st.data())
def test_a_restore_at_any_minibatch_continues_identically(
    module_folder: Path,
    lengths: list[int],
    options: dict[str, Any],
    count: int,
    size: int,
    remainder: Any,
    data: st.DataObject,
) -> None:
    num_workers = data.draw(st.integers(1, 2))
    partition = BalancedPartition(
        data.draw(st.integers(0, count - 1)), count, remainder, data.draw(st.integers(0, num_workers - 1)), num_workers
    )
    if len(lengths) < count:
        lengths = lengths * count
    with source_in(module_folder, lengths, max_sweeps=2, **options) as source:
        states, seen = [json.dumps(source.state_dict())], []
        while (minibatch := source.read(size, partition)) is not None:
            seen.append((minibatch.keys_of_sequences.tolist(), minibatch.end_of_sweep))
            states.append(json.dumps(source.state_dict()))
        at = data.draw(st.integers(0, len(seen)))
        source.load_state_dict(json.loads(states[at]))
        assert read_all(source, size, partition) == seen[at:]
    with source_in(module_folder, lengths, max_sweeps=2, **options) as source:
        source.load_state_dict(json.loads(states[at]))
        assert read_all(source, size, partition) == seen[at:]


def test_a_state_of_an_earlier_version_continues_on_each_rank(module_folder: Path) -> None:
    for index in range(3):
        partition = BalancedPartition(index, 3, "repeat", 1, 2)
        with source_in(module_folder, [1, 2] * 20) as source:
            source.read(6, partition)
            state = source.state_dict()
            expected = [source.read(6, partition).keys_of_sequences.tolist() for _ in range(5)]  # type: ignore[union-attr]
            timeline = dict(state["timeline"])
            assert (timeline.pop("global"), timeline.pop("rounds")) == ([1, 2, 1], [3, "repeat"])
            # Another rank may have saved it.
            old = {**timeline, "partition": [2 - index, 3], "balanced": ["repeat", 1, 2, 1]}
            source.load_state_dict({**state, "timeline": old})
            assert source.state_dict() == state
            assert [source.read(6, partition).keys_of_sequences.tolist() for _ in range(5)] == expected  # type: ignore[union-attr]


def test_balanced_is_a_spelling_of_a_deal_of_whole_minibatches(module_folder: Path) -> None:
    with source_in(module_folder, [1, 2] * 20, max_sweeps=1) as source:
        expected = read_all(source, 6, BalancedPartition(1, 3, "repeat"))
    with source_in(module_folder, [1, 2] * 20, max_sweeps=1) as source:
        assert read_all(source, 6, GlobalPartition(1, 3, "minibatch", "repeat")) == expected
    assert GlobalPartition(0, 2, "minibatch").remainder == "drop"
    with pytest.raises(ConfigError, match="remainder is 'empty'"):
        GlobalPartition(0, 2, "minibatch", "empty")
    spelling = dataclasses.replace(BalancedPartition(1, 3, "repeat", 1, 2), worker=0)
    assert pickle.loads(pickle.dumps(spelling)) == spelling == BalancedPartition(1, 3, "repeat", 0, 2)


@settings(properties, max_examples=rounds(200))
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=400),
    st.lists(st.integers(1, 60), min_size=1, max_size=20),
    st.sampled_from([None, Window(2, "chunks"), Window(50, "samples")]),
    st.sampled_from([{"max_sweeps": 2}, {"max_samples": 300}]),
    st.tuples(st.integers(1, 4), st.integers(1, 12), st.integers(1, 64)),
    st.sampled_from(["drop", "repeat"]),
    st.data(),
)
def test_several_rounds_at_once_are_the_rounds_one_by_one(
    lengths: list[int],
    chunk_sizes: list[int],
    window: Window | None,
    limits: dict[str, int],
    counts: tuple[int, int, int],
    remainder: Any,
    data: st.DataObject,
) -> None:
    count, size, most = counts
    partition = BalancedPartition(data.draw(st.integers(0, count - 1)), count, remainder)
    lengths = lengths * count if remainder == "drop" else lengths
    starts = [0, *(start for start in np.cumsum(chunk_sizes).tolist() if start < len(lengths)), len(lengths)]

    def timeline() -> Timeline:
        return Timeline(np.array(lengths, np.uint32), np.array(starts), window=window, **limits)

    def minibatches(order: Timeline, most: int) -> Iterator[tuple[list[int], list[int], bool, int, Any]]:
        while (reads := order.read_several(size * count, partition, most)) is not None:
            assert len(reads.bookmarks) <= most
            for begin, end, is_end, bookmark in zip(
                reads.bounds, reads.bounds[1:], reads.ends_of_sweep, reads.bookmarks, strict=False
            ):
                sequences, chunks = reads.selection.sequences[begin:end], reads.selection.chunks[begin:end]
                yield sequences.tolist(), chunks.tolist(), is_end, bookmark.cursor.position, bookmark

    expected = [found[:-1] for found in minibatches(timeline(), 1)]
    order = timeline()
    found = list(minibatches(order, most))
    assert [one[:-1] for one in found] == expected
    if found:
        last = data.draw(st.integers(0, len(found) - 1))
        order.go_back(found[last][-1])
        assert [one[:-1] for one in minibatches(order, most)] == expected[last + 1 :]


def test_a_limit_within_a_sweep_ends_all_partitions_together(module_folder: Path) -> None:
    ranks = []
    for index in range(3):
        with source_in(module_folder, [1] * 30, max_samples=17) as source:
            ranks.append(read_all(source, 6, BalancedPartition(index, 3)))
    assert [[len(keys) for keys, _ in rank] for rank in ranks] == [[2, 2, 2], [2, 2, 2], [2, 2, 1]]
    assert not any(is_end for rank in ranks for _, is_end in rank)


def test_the_last_round_is_cut_into_a_minibatch_for_each(module_folder: Path) -> None:
    # 10 sequences in minibatches of 4 for each of 2: a round of 8, and 2 are left, which is one minibatch.
    ranks = []
    for index in range(2):
        with source_in(module_folder, [1] * 10, randomize=False, max_sweeps=1) as source:
            ranks.append([keys for keys, _ in read_all(source, 8, BalancedPartition(index, 2))])
    assert ranks == [[[0, 1, 2, 3], [8]], [[4, 5, 6, 7], [9]]]


@pytest.mark.parametrize(
    ("remainder", "expected"), [("drop", [[[0]], [[1]], [[2]]]), ("repeat", [[[0], [3]], [[1], [4]], [[2], [3]]])]
)
def test_the_remainder_is_dropped_or_repeated_as_asked(
    module_folder: Path, remainder: Any, expected: list[Any]
) -> None:
    ranks = []
    for index in range(3):
        with source_in(module_folder, [1] * 5, randomize=False, max_sweeps=1) as source:
            ranks.append([keys for keys, _ in read_all(source, 3, BalancedPartition(index, 3, remainder))])
    assert ranks == expected


@pytest.mark.parametrize(
    ("options", "partition", "message"),
    [
        ({"truncation_length": 2}, (0, 2), "truncation_length=2 and balanced partitions exclude each other"),
        ({}, (0, 9), "9 partitions share 3 sequences.*remainder='repeat'"),
    ],
)
def test_truncation_and_too_many_partitions_are_refused(
    module_folder: Path, options: dict[str, Any], partition: tuple[int, int], message: str
) -> None:
    with source_in(module_folder, [1, 2, 3], **options) as source, pytest.raises(ConfigError, match=message):
        source.read(20, BalancedPartition(*partition))


def test_a_partition_with_an_invalid_utterance_gets_an_empty_minibatch(tmp_path: Path) -> None:
    utterances = [(f"u{number}", np.ones((length, 2))) for number, length in enumerate((3, 1, 4))]
    htk.write_archive(tmp_path / "a.ark", tmp_path / "a.scp", utterances)
    classes = [(key, np.zeros(len(frames), np.int64)) for key, frames in utterances]
    mlf.write_mlf(tmp_path / "a.mlf", classes, ["sil", "a"])
    mlf.write_mapping(tmp_path / "states.list", ["sil", "a"])
    text = (tmp_path / "a.mlf").read_text()
    (tmp_path / "a.mlf").write_text(text.replace("0 100000 sil", "100000 200000 sil"))  # u1 begins too late
    features = htk.HTKFeatureDeserializer(StreamDefs(F=StreamDef(scp=tmp_path / "a.scp", shape=2)))
    streams = StreamDefs(L=StreamDef(mlf=tmp_path / "a.mlf", shape=2))
    labels = mlf.HTKMLFDeserializer(tmp_path / "states.list", streams)
    found = []
    for index in range(3):
        with MinibatchSource([features, labels], randomize=False, max_sweeps=1, max_errors=1) as source:
            partition = BalancedPartition(index, 3)
            minibatches = iter(lambda source=source, partition=partition: source.read(12, partition), None)
            found.append([minibatch.keys_of_sequences.tolist() for minibatch in minibatches])
    assert found == [[["u0"]], [[]], [["u2"]]]


def test_a_user_defined_timeline_has_no_balanced_partitions() -> None:
    class Ones(UserDeserializer):
        def stream_infos(self) -> Any:
            return [StreamInformation("x", 0, "dense", np.float32, (1,))]

        def num_chunks(self) -> int:
            return 2

        def get_chunk(self, chunk_id: int) -> Any:
            return {"x": np.ones((3, 1), np.float32)}

    with MinibatchSource(Ones()) as source, pytest.raises(ConfigError, match="timeline='global'"):
        source.read(2, BalancedPartition(0, 2))
    with MinibatchSource(Ones(timeline="global"), max_sweeps=1) as source:
        assert source.read(2, BalancedPartition(0, 2)) is not None


@pytest.mark.parametrize("wrong", [(2, 2), (0, 2, "keep"), (0, 2, "drop", 1, 1), (0, 0)])
def test_a_balanced_partition_checks_itself(wrong: Any) -> None:
    with pytest.raises(ConfigError):
        BalancedPartition(*wrong)

"""Minibatches in rows of a fixed length. (docs/batches.md)"""

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    BalancedPartition,
    Budget,
    CBFDeserializer,
    CheckpointError,
    ConfigError,
    CTFDeserializer,
    FormatError,
    GlobalPartition,
    MinibatchData,
    MinibatchSource,
    SequenceMixture,
    SplitRows,
    StreamDef,
    StreamDefs,
    packed,
    write_cbf,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow.batches import filled_rows
from support.rounds import rounds

STREAMS = StreamDefs(
    w=StreamDef(field="w", shape=50, is_sparse=True), x=StreamDef(field="x", shape=2), y=StreamDef(field="y", shape=1)
)


def source_in(folder: Path, lengths: list[int], **options: object) -> MinibatchSource:
    lines = [
        f"{key} |w {(key + at) % 50}:1 |x {key} {at}" + f" |y {key}" * (at == 0) + "\n"
        for key, length in enumerate(lengths)
        for at in range(length)
    ]
    (folder / "a.ctf").write_text("".join(lines))
    return MinibatchSource(CTFDeserializer(folder / "a.ctf", STREAMS), **{"max_sweeps": 1, **options})  # type: ignore[arg-type]


@settings(max_examples=rounds(60), suppress_health_check=list(HealthCheck))
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=30), length=st.integers(9, 20), rows=st.integers(1, 4),
    pool=st.integers(1, 30), split=st.booleans(),
)  # fmt: skip
def test_rows_hold_every_sample_of_a_budget_once(
    module_folder: Path, lengths: list[int], length: int, rows: int, pool: int, split: bool
) -> None:
    delivered = []
    with source_in(module_folder, lengths) as source:
        for minibatch in source.minibatches(Budget(rows=rows, row_length=length, pool=pool)):
            found = packed(minibatch, length, rows=rows, split=split)
            keys = minibatch.keys_of_sequences.tolist()
            own = minibatch["x"].lengths.tolist()
            assert found.segment_ids.shape == found.values["w"].shape == (rows, length)
            is_filled = found.segment_ids > 0
            in_order = [(keys[number], at) for number, count in enumerate(own) for at in range(count)]
            assert [tuple(sample) for sample in found.values["x"][is_filled].astype(int).tolist()] == in_order
            assert found.position_ids[is_filled].tolist() == [at for _, at in in_order]
            assert found.values["w"][is_filled].tolist() == [(key + at) % 50 for key, at in in_order]
            assert found.of_sequences["y"][found.segment_ids[is_filled] - 1, 0].tolist() == [key for key, _ in in_order]
            assert not found.values["x"][~is_filled].any()
            segments = list(itertools.pairwise(found.cu_seqlens.tolist()))
            assert segments[0][0] == 0 and segments[-1][1] == rows * length and found.cu_seqlens.dtype == np.int32
            cells = found.segment_ids.reshape(-1)
            assert all(begin // length == (end - 1) // length for begin, end in segments)
            assert all(len(set(cells[begin:end].tolist())) == 1 for begin, end in segments)
            positions = found.position_ids.reshape(-1)
            assert all((np.diff(positions[begin:end]) == 1).all() for begin, end in segments)
            assert not any(positions[begin] for begin, _ in segments if not cells[begin])
            if not split:
                assert np.flatnonzero(positions == 0).tolist() == found.cu_seqlens[:-1].tolist()
                assert sum(end - begin in own for begin, end in segments) >= len(own)
                expected = [sum(row) for row in filled_rows(own, length)]
                assert is_filled.sum(axis=1).tolist() == expected + [0] * (rows - len(expected))
            delivered += keys
    assert sorted(delivered) == list(range(len(lengths)))


@pytest.mark.parametrize("split", [False, True])
def test_ranks_that_share_rows_have_every_cell_once(module_folder: Path, split: bool) -> None:
    with source_in(module_folder, [1 + key * 7 % 11 for key in range(40)]) as source:
        for minibatch in source.minibatches(Budget(rows=3, row_length=24, pool=20)):
            whole = packed(minibatch, 24, rows=3, split=split)
            for count in (1, 2, 3, 4, 6, 12):
                parts = [packed(minibatch, 24, rows=3, split=split, part=(rank, count)) for rank in range(count)]
                for of_cells in (
                    lambda found: found.values["w"],
                    lambda found: found.values["x"],
                    lambda found: found.segment_ids,
                    lambda found: found.position_ids,
                ):
                    halves = [np.split(of_cells(part), 2, axis=1) for part in parts]
                    slices = [head for head, _ in halves] + [tail for _, tail in reversed(halves)]
                    assert (np.concatenate(slices, axis=1) == of_cells(whole)).all()
                for part in parts:
                    assert (part.cu_seqlens == whole.cu_seqlens).all()
                    assert (part.of_sequences["y"] == whole.of_sequences["y"]).all()
                    # In each cell of a sequence is the sample of the sequence.
                    own = whole.of_sequences["y"][part.segment_ids - 1] * (part.segment_ids > 0)[..., None]
                    assert count == 1 or (part.values["y"] == own).all()


def test_a_rank_with_some_sequences_of_rows_says_so(module_folder: Path) -> None:
    lengths = [12, 20, 3, 9, 20, 24, 1, 7]
    with source_in(module_folder, lengths) as source:
        whole = source.read(Budget(rows=4, row_length=24, pool=8))
    with source_in(module_folder, lengths) as source:
        minibatch = source.read(Budget(rows=4, row_length=24, pool=8), GlobalPartition(part=(1, 3)))
    assert whole is not None and minibatch is not None
    keys = minibatch.keys_of_sequences.tolist()
    assert 0 < len(keys) == minibatch.num_sequences < whole.num_sequences
    assert minibatch["x"].lengths.tolist() == [lengths[key] for key in keys]
    own, rows = packed(minibatch, 24, rows=4, part=(1, 3)), packed(whole, 24, rows=4, part=(1, 3))
    for name in rows.values:
        assert (own.values[name] == rows.values[name]).all()
    assert own.segment_ids.tolist() == rows.segment_ids.tolist() and list(own.of_sequences) == []
    with pytest.raises(KeyError, match="'y': this rank has only the sequences of its part of the rows; `values` has"):
        own.of_sequences["y"]
    again = pickle.loads(pickle.dumps(minibatch))
    assert packed(again, 24, rows=4, part=(1, 3)).values["w"].tolist() == own.values["w"].tolist()
    for options in ({}, {"part": (0, 3)}, {"part": (1, 3), "split": True}, {"part": (1, 3), "length": 48}):
        with pytest.raises(ConfigError, match=r"holds only the sequences of part=\(1, 3\) of rows of 24 cells"):
            packed(minibatch, **{"length": 24, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [30, Budget(samples=30), Budget(rows=4, row_length=26, pool=8)])
def test_parts_without_rows_that_can_be_shared_are_errors(module_folder: Path, size: Any) -> None:
    with source_in(module_folder, [12, 20, 3]) as source, pytest.raises(ConfigError, match=r"part.*\(1, 3\)"):
        source.read(size, GlobalPartition(part=(1, 3)))


def test_a_sequence_shorter_than_its_plan_is_an_error_in_a_part(module_folder: Path) -> None:
    # An empty line counts for the length of its sequence, and costs no error.
    (module_folder / "b.ctf").write_text("0 |x 1\n0\n0 |x 2\n1 |x 3\n".replace("0\n", "0 |#\n", 1))
    corpus = CTFDeserializer(module_folder / "b.ctf", StreamDefs(x=StreamDef(field="x", shape=1)))
    budget = Budget(rows=1, row_length=4, pool=4)
    with MinibatchSource(corpus, max_sweeps=1) as source:
        whole = source.read(budget)
    assert whole is not None and packed(whole, 4, rows=1).segment_ids.tolist() == [[1, 1, 2, 0]]
    with MinibatchSource(corpus, max_sweeps=1) as source:
        minibatch = source.read(budget, GlobalPartition(part=(0, 2)))
    assert minibatch is not None
    with pytest.raises(ConfigError, match="sequence 0, stream 'x': 2 samples, but the index counts 3"):
        packed(minibatch, 4, rows=1, part=(0, 2))
    forgiving = CTFDeserializer(corpus.filename, corpus.streams, max_errors=1)
    with MinibatchSource(forgiving, max_sweeps=1) as source:
        minibatch = source.read(budget, GlobalPartition(part=(0, 2)))
    assert minibatch is not None and packed(minibatch, 4, rows=1, part=(0, 2)).segment_ids.tolist() == [[1, 0]]


@pytest.mark.parametrize("part", [(2, 2), (-1, 2), (0, 5), (0, 0), (0.5, 2), (0, True)])
def test_parts_of_rows_that_are_impossible_are_errors(module_folder: Path, part: Any) -> None:
    with source_in(module_folder, [3, 4]) as source:
        minibatch = source.next_minibatch(7)
    with pytest.raises(ConfigError, match="part"):
        packed(minibatch, 24, part=part)


def test_balanced_ranks_have_rows_of_their_own(module_folder: Path) -> None:
    lengths = np.random.default_rng(2).integers(1, 9, 100).tolist()
    counts = []
    for index in range(2):
        with source_in(module_folder, lengths) as source:
            counts.append(0)
            while (
                minibatch := source.read(Budget(rows=4, row_length=16, pool=50), BalancedPartition(index, 2))
            ) is not None:
                assert packed(minibatch, 16, rows=2).segment_ids.shape == (2, 16)
                counts[-1] += 1
    assert counts[0] == counts[1] > 5


def test_balanced_ranks_split_the_sequences_that_they_are_dealt(module_folder: Path) -> None:
    lengths = [1, 2, 3] * 20
    for index in range(2):
        partition = BalancedPartition(index, 2)
        with source_in(module_folder, lengths) as source:
            minibatches = source.minibatches(8, partition=partition)
            expected = [cell for minibatch in minibatches for cell in minibatch["x"].values.tolist()]
        with source_in(module_folder, lengths) as source:
            rows = list(SplitRows(source, 4, rows=2, size=8, partition=partition))
            cells = np.concatenate([of_one.values["x"].reshape(-1, 2) for of_one in rows])
            assert cells[: len(expected)].tolist() == expected


def test_global_ranks_share_the_rows_of_a_single_reader(module_folder: Path) -> None:
    budget = Budget(rows=4, row_length=16, pool=50)
    lengths = np.random.default_rng(2).integers(1, 9, 100).tolist()
    with source_in(module_folder, lengths) as source:
        whole = [packed(minibatch, 16, rows=4) for minibatch in source.minibatches(budget)]
    for index in range(2):
        with source_in(module_folder, lengths) as source:
            for rows in whole:
                minibatch = source.read(budget, GlobalPartition(index, 2))
                assert minibatch is not None
                own = packed(minibatch, 16, rows=2)
                assert own.values["x"].tolist() == rows.values["x"][index::2].tolist()
            assert source.read(budget, GlobalPartition(index, 2)) is None


@settings(max_examples=rounds(40), suppress_health_check=list(HealthCheck))
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=30), length=st.integers(1, 20), rows=st.integers(1, 4),
    size=st.sampled_from([None, 1, 17, Budget(padded=40, pool=12, oversize="alone")]), at=st.integers(0, 50),
)  # fmt: skip
def test_split_rows_continue_sequences_across_minibatches_and_states(
    module_folder: Path, lengths: list[int], length: int, rows: int, size: Any, at: int
) -> None:
    def split(source: MinibatchSource) -> SplitRows:
        return SplitRows(source, length, rows=rows, size=size)

    with source_in(module_folder, lengths) as source:
        own = size or Budget(samples=rows * length, oversize="alone")
        expected = [
            (key, step) for minibatch in source.minibatches(own) for key, step in minibatch["x"].values.tolist()
        ]
    found, states = [], []
    with source_in(module_folder, lengths) as source:
        reader = split(source)
        while (packed_rows := reader.read()) is not None:
            found.append(packed_rows)
            states.append(json.loads(json.dumps(reader.state_dict())))
    cells = np.concatenate([of_one.values["x"].reshape(-1, 2) for of_one in found])
    assert [tuple(cell) for cell in cells[: len(expected)].tolist()] == expected
    assert len(found) == -(-len(expected) // (rows * length)) and not cells[len(expected) :].any()
    for of_one in found:
        is_filled = of_one.segment_ids > 0
        assert of_one.position_ids[is_filled].tolist() == of_one.values["x"][is_filled][:, 1].tolist()
        of_samples = of_one.of_sequences["y"][of_one.segment_ids[is_filled] - 1, 0]
        assert of_samples.tolist() == of_one.values["x"][is_filled][:, 0].tolist()
        assert {*range(0, rows * length + 1, length)} <= set(of_one.cu_seqlens.tolist())
        for begin, end in itertools.pairwise(of_one.cu_seqlens.tolist()):
            positions = of_one.position_ids.reshape(-1)[begin:end]
            assert (np.diff(positions) == 1).all() and (is_filled.reshape(-1)[begin] or positions[0] == 0)
    at = min(at, len(states) - 1)
    with source_in(module_folder, lengths) as source:
        reader = split(source)
        reader.load_state_dict(states[at])
        assert reader.state_dict() == states[at]
        rest = list(reader)
    assert [of_one.values["x"].tolist() for of_one in rest] == [
        of_one.values["x"].tolist() for of_one in found[at + 1 :]
    ]


@settings(max_examples=rounds(30), suppress_health_check=list(HealthCheck))
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=30), length=st.integers(1, 20),
    ranks=st.lists(st.integers(1, 4), min_size=1, max_size=4), num_steps=st.integers(0, 3),
    size=st.sampled_from([None, 17, Budget(padded=40, pool=12, oversize="alone")]),
)  # fmt: skip
def test_global_ranks_share_split_rows_and_continue_in_any_number(
    module_folder: Path, lengths: list[int], length: int, ranks: list[int], num_steps: int, size: Any
) -> None:
    def split(source: MinibatchSource, index: int, count: int) -> SplitRows:
        return SplitRows(source, length, rows=4, size=size, partition=GlobalPartition(index, count))

    with source_in(module_folder, lengths) as source:
        whole = list(SplitRows(source, length, rows=4, size=size))
    state, step = None, 0
    for count in ranks:
        states = []
        for index in range(count):
            with source_in(module_folder, lengths) as source:
                rows = split(source, index, count)
                if state is not None:
                    rows.load_state_dict(state)
                for expected in whole[step : step + num_steps]:
                    found = rows.read()
                    assert found is not None
                    for name, values in found.values.items():
                        assert values.tolist() == expected.values[name][index::count].tolist()
                        assert values.flags.c_contiguous
                    assert found.position_ids.tolist() == expected.position_ids[index::count].tolist()
                    is_filled = found.segment_ids > 0
                    of_samples = found.of_sequences["y"][found.segment_ids[is_filled] - 1, 0]
                    assert of_samples.tolist() == found.values["x"][is_filled][:, 0].tolist()
                    cells = found.segment_ids.reshape(-1)
                    for begin, end in itertools.pairwise(found.cu_seqlens.tolist()):
                        assert begin // length == (end - 1) // length and len(set(cells[begin:end].tolist())) == 1
                states.append(json.loads(json.dumps(rows.state_dict())))
                if step + num_steps >= len(whole):
                    assert rows.read() is None
        assert all(of_rank == states[0] for of_rank in states)
        state, step = states[0], step + num_steps


def test_global_ranks_of_split_rows_each_need_a_row(module_folder: Path) -> None:
    with source_in(module_folder, [5, 7, 9]) as source, pytest.raises(ConfigError, match="a row for each partition"):
        SplitRows(source, 4, rows=1, partition=GlobalPartition(0, 2))


def test_a_state_of_split_rows_that_does_not_fit_is_refused(module_folder: Path) -> None:
    with source_in(module_folder, [5, 7, 9]) as source:
        rows = SplitRows(source, 4, rows=1)
        rows.read()
        state = rows.state_dict()
        for damage in ({"version": 2}, {"num_delivered": -1}, {"num_delivered": 10**6}, {"source": {}}):
            with pytest.raises(CheckpointError):
                rows.load_state_dict({**state, **damage})


def test_split_rows_continue_after_an_error_of_the_source_with_all_samples(module_folder: Path) -> None:
    lines = [f"{key} |w {key}:1 |x {key} 0 |y {'oops' if key == 5 else key}\n" for key in range(12)]
    (module_folder / "bad.ctf").write_text("".join(lines))
    # Each sequence is a chunk, so only the read of sequence 5 fails.
    deserializer = CTFDeserializer(module_folder / "bad.ctf", STREAMS, chunk_size_in_bytes=1)
    with MinibatchSource(deserializer, randomize=False, max_sweeps=1) as source:
        rows = SplitRows(source, 4, rows=1, size=1)
        found = [rows.read()]
        state = rows.state_dict()
        with pytest.raises(FormatError, match="line 6"):
            rows.read()
        assert rows.state_dict() == state
        found += list(rows)
    cells = [of_one.values["x"][0, :, 0].astype(int).tolist() for of_one in found if of_one is not None]
    assert sum(cells, []) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 0]


def test_split_rows_stay_where_they_are_if_a_state_is_refused(module_folder: Path) -> None:
    def new(source: MinibatchSource) -> SplitRows:
        rows = SplitRows(source, 4, rows=1)
        rows.read()
        return rows

    # The second source reads the file of the first: a file that is written again under a source has changed.
    with (
        source_in(module_folder, [5, 7, 9, 2, 6]) as source,
        MinibatchSource(CTFDeserializer(module_folder / "a.ctf", STREAMS), max_sweeps=1) as other,
    ):
        rows, follower = new(source), new(other)
        start = {**rows.state_dict(), "num_delivered": 10**6}
        for _ in range(3):
            with pytest.raises(CheckpointError):
                rows.load_state_dict(start)
            assert rows.state_dict() == follower.state_dict()
            found, expected = rows.read(), follower.read()
            assert found is not None and expected is not None
            assert found.values["x"].tolist() == expected.values["x"].tolist()


def test_too_many_cells_are_refused_from_the_numbers(module_folder: Path) -> None:
    most = "expected at most 268435456"
    with source_in(module_folder, [5]) as source:
        with pytest.raises(ConfigError, match=f"2 rows of 268435456 have 536870912 cells; {most}"):
            SplitRows(source, 1 << 28, rows=2)
        with pytest.raises(ConfigError, match=f"length is 2147483648; {most}"):
            SplitRows(source, 1 << 31, rows=1)
        with pytest.raises(ConfigError, match="cells"):
            SplitRows(source, 1 << 28, rows=2, partition=GlobalPartition(0, 2))
        SplitRows(source, 1 << 27, rows=2)
        minibatch = source.read(9)
    assert minibatch is not None
    for options in ({"rows": 2**31 - 1}, {"rows": 2**31 - 1, "split": True}, {"length": 2**31 - 1}):
        with pytest.raises(ConfigError, match=most):
            packed(minibatch, **{"length": 5, **options})


def labels_and_tokens(folder: Path, *, definer: str = "") -> CTFDeserializer:
    """A corpus whose first stream by name, `label`, has one sample for each sequence."""
    lines = [
        f"{key}" + f" |label {key}" * (at == 0) + f" |tokens {at}" for key in range(9) for at in range(1 + key % 5)
    ]
    (folder / f"tokens-{definer}.ctf").write_text("\n".join(lines) + "\n")
    names = ("label", "tokens")
    streams = {name: StreamDef(field=name, shape=1, defines_mb_size=name == definer) for name in names}
    return CTFDeserializer(folder / f"tokens-{definer}.ctf", StreamDefs(**streams))


def sources_of_tokens(folder: Path) -> dict[str, MinibatchSource]:
    text = labels_and_tokens(folder)
    write_cbf(folder / "tokens.cbf", text)
    lines = [f"{key} |tokens {at}\n" for key in range(9) for at in range(1 + key % 5)]
    (folder / "tokens-alone.ctf").write_text("".join(lines))
    tokens = CTFDeserializer(folder / "tokens-alone.ctf", StreamDefs(tokens=text.streams["tokens"]))
    (folder / "label.ctf").write_text("".join(f"{key} |label {key}\n" for key in range(9)))
    label = CTFDeserializer(folder / "label.ctf", StreamDefs(label=text.streams["label"]))
    mixed = SequenceMixture({"a": (text, 1), "b": (text, 1)}, stop="first")
    of_one = [
        text,
        CBFDeserializer(folder / "tokens.cbf"),
        [label, tokens],
        labels_and_tokens(folder, definer="tokens"),
    ]
    named = zip(("text", "binary", "joined", "with a definer"), of_one, strict=True)
    return {"mixed": mixed, **{name: MinibatchSource(each, max_sweeps=1) for name, each in named}}


@pytest.mark.parametrize("name", ["text", "binary", "joined", "with a definer", "mixed"])
@pytest.mark.parametrize("splits", [False, True])
def test_the_longest_stream_gives_the_lengths_of_rows(module_folder: Path, name: str, splits: bool) -> None:
    with sources_of_tokens(module_folder)[name] as source:
        budget = Budget(rows=2, row_length=8, pool=20)
        rows = (
            SplitRows(source, 8, rows=2) if splits else (packed(each, 8, rows=2) for each in source.minibatches(budget))
        )
        labels: set[int] = set()
        for found in rows:
            assert list(found.values) == ["tokens"] and list(found.of_sequences) == ["label"]
            labels.update(found.of_sequences["label"][:, 0].astype(int).tolist())
        assert labels == set(range(9))


def test_a_stream_that_fits_no_rows_is_named(module_folder: Path) -> None:
    for definer, text in (
        ("", "'label' has neither the lengths of 'tokens', which has the most samples"),
        ("label", "'tokens' has neither the lengths of 'label', which defines the minibatch size"),
    ):
        corpus = labels_and_tokens(module_folder, definer=definer)
        minibatch = MinibatchSource(corpus, randomize=False).read(100)
        assert minibatch is not None
        if not definer:
            minibatch["label"] = MinibatchData(minibatch["label"].stream, np.arange(18), np.arange(0, 19, 2))
        with pytest.raises(ConfigError, match=text):
            packed(minibatch, 8)


def test_what_does_not_fit_rows_is_refused(module_folder: Path) -> None:
    with source_in(module_folder, [5, 5, 5], randomize=False) as source:
        minibatch = source.next_minibatch(100)
    for options, text in (
        ({"length": 4}, "a sequence has 5 samples, but a row has 4"),
        ({"length": 9, "rows": 2}, "needs 3 rows of 9, but rows is 2"),
        ({"length": 9, "rows": 0}, "rows is 0; expected at least 1"),
        ({"length": 0}, "length is 0"),
        ({"length": 1 << 40}, "length is 1099511627776"),
        (
            {"length": np.int32(1 << 30), "rows": np.int32(2)},
            "length is 1073741824; expected at most 268435456",
        ),
    ):
        with pytest.raises(ConfigError, match=text):
            packed(minibatch, **options)
    assert packed(minibatch, 4, split=True).cu_seqlens.tolist() == [0, 4, 5, 8, 10, 12, 15, 16]
    with source_in(module_folder, [5], randomize=False) as source:
        source.next_minibatch(100)
        with pytest.raises(ConfigError, match="minibatch is empty"):
            packed(source.next_minibatch(100), 4)

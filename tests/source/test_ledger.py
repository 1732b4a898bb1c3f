"""A ledger of any steps, sequences that are left out, and sequences that are repeated. (docs/ledger.md)"""

import json
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    Budget,
    CheckpointError,
    ConfigError,
    CorpusError,
    CTFDeserializer,
    GlobalPartition,
    HTKFeatureDeserializer,
    MinibatchSource,
    Mixture,
    SequenceMixture,
    StreamDef,
    StreamDefs,
    UserDeserializer,
    write_htk_archive,
)

NUM = 60
STREAMS = StreamDefs(x=StreamDef(field="x", shape=1))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.ctf"
    path.write_text("".join(f"{key}\t|x {key}\n" * (1 + key % 5) for key in range(100, 100 + NUM)))
    return path


def source(path: Path, **options: Any) -> MinibatchSource:
    return MinibatchSource(CTFDeserializer(path, STREAMS, chunk_size_in_bytes=200), **{"max_sweeps": 2, **options})


def delivered(source: MinibatchSource, size: Any = 9, partition: Any = GlobalPartition()) -> list[list[int]]:  # noqa: B008
    return [minibatch.keys_of_sequences.tolist() for minibatch in source.minibatches(size, partition=partition)]


def test_a_ledger_has_the_rows_of_all_steps(path: Path) -> None:
    with source(path, leave_out=[105, 107]) as one:
        steps = delivered(one)
        ledger = one.ledger(3, 8)
        assert len(ledger) == sum(map(len, steps[3:8]))
        for step in range(3, 8):
            assert ledger.keys[ledger.steps == step].tolist() == steps[step]
        assert ledger.positions.tolist() == one.plan(9).steps(8).positions[3:].tolist()
        lines = ledger.origins[0].places.lines
        assert lines is not None
        texts = path.read_text().splitlines()
        assert [int(texts[line - 1].split("\t")[0]) for line in lines] == ledger.keys.tolist()
        assert one.ledger(0, 10**6).keys.tolist() == sum(steps, [])
        assert "Ledger" in repr(ledger)
        with pytest.raises(ConfigError, match="end after"):
            one.ledger(10**4, 10**4 + 1)
    with source(path) as fresh, pytest.raises(ConfigError, match="nothing was read"):
        fresh.ledger(0, 1)


def test_a_ledger_needs_a_state_and_the_corpus_alone(path: Path) -> None:
    with source(path, max_sweeps=2**40) as one:
        one.read(9)
        state = one.state_dict()
    with source(path, max_sweeps=2**40) as other:
        other.load_state_dict(state)
        ledger = other.ledger(100_000, 100_010)
        other.load_state_dict(other.plan(9).state_at(100_000))
        assert ledger.keys.tolist() == sum((other.read(9).keys_of_sequences.tolist() for _ in range(10)), [])  # type: ignore[union-attr]


def test_steps_before_a_position_stay_as_they_were(path: Path) -> None:
    with source(path) as one:
        before = delivered(one)
        position = int(one.plan(9).steps(6).positions[5])
        state = one.plan(9).state_at(6)
    gone = {*before[7], *before[9]}
    left_out = {position: sorted(gone)}
    with source(path, leave_out=left_out) as one:
        after = delivered(one)
        assert after[:6] == before[:6]
        assert sum(after[6:], []) == [key for step in before[6:] for key in step if key not in gone]
        # The state was taken before anything was left out.
        one.load_state_dict(state)
        assert delivered(one) == after[6:]


def test_a_state_names_the_set_and_refuses_another(path: Path) -> None:
    sets = path.parent / "keys"
    sets.write_text("105\n107\n")
    with source(path, leave_out=sets) as one:
        one.read(9)
        state = json.loads(json.dumps(one.state_dict()))
        assert [row[:2] for row in state["left_out"]] == [[0, 2]]
        rest = delivered(one)
    position = state["timeline"]["position"]
    for leave_out in ({105, 107}, {0: [105, 107]}, np.array([105, 107])):
        with source(path, leave_out=leave_out) as other:
            other.load_state_dict(state)
            assert delivered(other) == rest
    with source(path, leave_out={0: [105, 107], position: [111]}) as other:
        other.load_state_dict(state)
        assert sum(delivered(other), []) == [key for step in rest for key in step if key != 111]
    for leave_out in (None, [105], [105, 108], {1: [105, 107]}, {0: [105, 107], 1: [109]}):
        with source(path, leave_out=leave_out) as other, pytest.raises(CheckpointError, match="leave_out"):
            other.load_state_dict(state)


def test_a_pool_that_has_begun_keeps_its_set(path: Path) -> None:
    budget = Budget(samples=9, pool=20)
    with source(path) as one:
        one.read(budget)
        state = one.state_dict()
    assert state["timeline"]["batch"] == 1
    left_out = {state["timeline"]["position"] + 1: [105]}
    with source(path, leave_out=left_out) as other, pytest.raises(CheckpointError, match="leave_out"):
        other.load_state_dict(state)


def test_pickles_and_processes_leave_out_the_same(path: Path) -> None:
    with source(path, leave_out={40: iter([101, 103, 110])}) as one:
        one.read(9)
        copy = pickle.loads(pickle.dumps(one))
        state, rest = json.dumps(one.state_dict()), delivered(one)
        assert delivered(copy) == rest
    code = (
        "import sys, json; from cntkio import *; path, state = sys.argv[1:]\n"
        "corpus = CTFDeserializer(path, StreamDefs(x=StreamDef(field='x', shape=1)), chunk_size_in_bytes=200)\n"
        "source = MinibatchSource(corpus, max_sweeps=2, leave_out={40: [101, 103, 110]})\n"
        "source.load_state_dict(json.loads(state))\n"
        "print(json.dumps([m.keys_of_sequences.tolist() for m in source.minibatches(9, partition=GlobalPartition())]))"
    )
    found = subprocess.run([sys.executable, "-c", code, path, state], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == rest


def in_frames(folder: Path) -> Any:
    features = [(f"u{key}", np.full((key, 2), key, np.float32)) for key in range(1, 6)]
    write_htk_archive(folder / "a.ark", folder / "a.scp", features)
    return HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp=folder / "a.scp", shape=2)))


def test_all_frames_and_parts_of_an_utterance_are_left_out(tmp_path: Path) -> None:
    for options in ({"frame_mode": True}, {"truncation_length": 2}):
        counts = Counter[str]()
        with MinibatchSource(in_frames(tmp_path), max_sweeps=1, leave_out=["u3"], repeat={"u2": 3}, **options) as one:  # type: ignore[arg-type]
            for minibatch in one.minibatches(4):
                values = minibatch["x"].values[..., 0].ravel()
                counts.update(values[values > 0].astype(int).tolist())
        assert counts == Counter({1: 1, 2: 6, 4: 4, 5: 5})


def test_a_repeated_key_comes_so_often_in_each_sweep(path: Path) -> None:
    with source(path, repeat={101: 3, 150: 2}) as one:
        counts = Counter(key for step in delivered(one, Budget(padded=20, pool=9)) for key in step)
        assert counts == Counter({key: 2 * {101: 3, 150: 2}.get(key, 1) for key in range(100, 100 + NUM)})
        state = one.state_dict()
        assert one.plan(9).explain(0).keys.tolist() == one.ledger(0, 1, 9).keys.tolist()
    with source(path) as other, pytest.raises(CheckpointError, match="sequences"):
        other.load_state_dict(state)
    with source(path, randomize=False, max_sweeps=1, repeat={101: 3}) as one:
        assert sum(delivered(one), [])[:5] == [100, 101, 101, 101, 102]


@pytest.mark.parametrize("kind", [Mixture, SequenceMixture])
def test_a_mixture_never_delivers_what_a_part_leaves_out(path: Path, kind: Callable[..., Any]) -> None:
    first, second = source(path, max_sweeps=2**64 - 1, leave_out=range(100, 130)), CTFDeserializer(path, STREAMS)
    with kind({"a": (first, 0.7), "b": (second, 0.3)}, stop="forever") as mixture:
        seen = Counter[tuple[str, int]]()
        for _ in range(100):
            minibatch = mixture.read(20)
            seen.update(zip(minibatch.source_of_sequences.tolist(), minibatch.keys_of_sequences.tolist(), strict=True))
        assert {key for name, key in seen if name == "a"} == set(range(130, 160))
        assert {key for name, key in seen if name == "b"} == set(range(100, 160))


def test_what_is_not_possible_is_refused(path: Path) -> None:
    mistakes: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"leave_out": {-1: [1]}}, ConfigError, "position -1"),
        ({"leave_out": 5}, ConfigError, "expected keys, or the path of a file"),
        ({"leave_out": [101.5]}, ConfigError, "a whole number from 0"),
        ({"leave_out": {2**70}}, ConfigError, "a whole number from 0"),
        ({"leave_out": {"a": [1]}}, ConfigError, "position 'a'"),
        ({"leave_out": range(100, 160)}, CorpusError, "nothing is left"),
        ({"repeat": {101: 0}}, ConfigError, "0 times"),
        ({"repeat": {99: 2}}, ConfigError, "sequences for 0 of them"),
        ({"repeat": {101.5: 2}}, ConfigError, "a whole number from 0"),
        ({"repeat": {101: 2, "101": 3}}, ConfigError, "a key twice"),
        ({"repeat": [101, 101]}, ConfigError, "number of times"),
    ]
    for options, kind, message in mistakes:
        with pytest.raises(kind, match=message):
            source(path, **options)

    class Own(UserDeserializer):
        def stream_infos(self) -> Any:
            return []

        def num_chunks(self) -> int:
            return 1

        def get_chunk(self, chunk_id: int) -> Any:
            return {}

    with pytest.raises((ConfigError, CorpusError)):
        MinibatchSource(Own(), leave_out=[1])

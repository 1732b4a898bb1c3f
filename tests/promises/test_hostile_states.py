"""States from anywhere: an impossible value is refused by its name, changes nothing, and allocates nothing.

The last tests change each value in nested states of all that can be read, add fields of other states, and leave fields
out. A state that is accepted can be read on, and the state after that can be loaded.
"""

import copy
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    BalancedPartition,
    Budget,
    CheckpointError,
    CntkIoError,
    CTFDeserializer,
    GlobalPartition,
    MinibatchSource,
    Mixture,
    Partition,
    SequenceMixture,
    SplitRows,
    StreamDefs,
)
from support.builders import STREAMS, source_of
from support.interrupts import KINDS, plain, write_corpora
from support.rounds import rounds

HOSTILE = [
    None, True, "3", "x" * 1000, -1, 2.5, math.nan, math.inf, 2**31, 2**62 + 5, 2**63, 2**64 - 1, 2**64, 10**30,
    [], [[]], [None], [2**64] * 5, {}, {"a": 1}, np.zeros(3), object(),
]  # fmt: skip

INSIDE = ("data", "order", "position", "baseSweepCount", "slots", "sequence", "settings", "seed", "at chunk")
"""Names in messages about a value in a list or a dict that was replaced."""


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora")
    write_corpora(folder)
    return folder


def paths_in(state: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in a state, except for the values that only describe the data."""
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    for key, value in items:
        yield (key,)
        yield from ((key, *rest) for rest in paths_in(value) if key != "order")


def changed(state: Any, path: tuple[Any, ...], value: Any) -> Any:
    result = copy.deepcopy(state)
    inner = result
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return result


def samples_passed(source: Any) -> int:
    checkpoint = source.get_checkpoint_state()
    return int(checkpoint.get("minibatchSourcePosition", checkpoint.get("baseSampleCount", 0)))


@pytest.mark.parametrize("name", KINDS)
def test_a_hostile_value_is_refused_and_changes_nothing(name: str, corpora: Path) -> None:
    kind = KINDS[name]
    with kind.make(corpora) as source, kind.make(corpora) as other:
        for one in (source, other):
            if "user" not in name:
                one.begin_epoch(0, 150)
            one.read(5, kind.partition)
            one.read(5, kind.partition)
        good = json.loads(json.dumps(source.state_dict()))
        num_refused = 0
        for path in paths_in(good):
            for value in HOSTILE:
                try:
                    source.load_state_dict(changed(good, path, value))
                except CheckpointError as error:
                    assert json.loads(json.dumps(source.state_dict())) == good
                    assert any(str(key) in str(error) for key in (*path, *INSIDE)), (path, value, error)
                    num_refused += 1
                else:
                    # Another position is possible: reads continue from there, unless the data end before it.
                    before = samples_passed(source)
                    for _ in range(2):
                        minibatch = source.read(5, kind.partition)
                        assert minibatch is None or len(minibatch.keys_of_sequences) or name == "global"
                        before, last = samples_passed(source), before
                        assert before >= last, (path, value)  # slots are emptied without a move
                    source.load_state_dict(good)
        assert num_refused > 100
        for _ in range(5):
            assert plain(source.read(5, kind.partition)) == plain(other.read(5, kind.partition))


@pytest.mark.parametrize("state", HOSTILE, ids=lambda state: f"{state!r:.20}")
def test_rejects_states_that_are_not_dicts(state: Any, corpora: Path) -> None:
    with source_of(corpora / "a.ctf") as source:
        for load in (source.load_state_dict, source.restore_from_checkpoint):
            with pytest.raises(CheckpointError):
                load(state)


def test_slots_of_a_state_allocate_nothing(corpora: Path) -> None:
    with source_of(corpora / "a.ctf", truncation_length=2) as source:
        source.next_minibatch(8)
        state = source.state_dict()
        state["timeline"]["minibatch_size"] = 2**62
        with pytest.raises(CheckpointError, match=r"the state holds 4 slots, but there are 2305843009213693952 here"):
            source.load_state_dict(state)


def test_a_number_in_place_of_a_truth_value_is_refused(corpora: Path) -> None:
    with source_of(corpora / "a.ctf") as source:
        state = source.state_dict()
        flags = [name for name, value in state["settings"].items() if isinstance(value, bool)]
        for name in flags:
            settings = {**state["settings"], name: int(state["settings"][name])}
            with pytest.raises(CheckpointError, match=f"{name}: saved {settings[name]}, here {bool(settings[name])}"):
                source.load_state_dict({**state, "settings": settings})
    assert flags


def corpus(folder: Path) -> CTFDeserializer:
    return CTFDeserializer(folder / "a.ctf", StreamDefs(x=STREAMS["x"]), chunk_size_in_bytes=200)


def mixture(folder: Path) -> Mixture:
    return Mixture({"a": (corpus(folder), 2), "b": (MinibatchSource(corpus(folder)), 1)}, stop="forever")


def sequence_mixture(folder: Path) -> SequenceMixture:
    return SequenceMixture({"a": (corpus(folder), 2), "b": (corpus(folder), 1)}, stop="forever")


def scheduled(folder: Path) -> SequenceMixture:
    parts = {"a": (corpus(folder), {0: 2, 9: 1}), "b": (corpus(folder), {4: 1, 30: 3})}
    return SequenceMixture(parts, stop="forever", between="steps")


def selected(folder: Path) -> MinibatchSource:
    return MinibatchSource(corpus(folder), leave_out={1, 5}, repeat={0: 2})


def epoch(folder: Path) -> MinibatchSource:
    source = MinibatchSource(corpus(folder))
    source.begin_epoch(10, 10_000)
    return source


def of_rows(source_of: Callable[[Path], Any]) -> Callable[[Path], SplitRows]:
    return lambda folder: SplitRows(source_of(folder), 4, rows=2, size=5)


def by(partition: Partition, size: Any = 6) -> Callable[[Any], Any]:
    return lambda readable: readable.read(size, partition)


POOLED, EQUAL = Budget(padded=20, pool=10), Budget(padded=20, pool=10, balance="attention")
NESTED: dict[str, tuple[Callable[[Path], Any], Callable[[Any], Any]]] = {
    "epoch": (epoch, by(Partition())),
    "mixture": (mixture, by(Partition())),
    "mixture, partition": (mixture, by(Partition(1, 2))),
    "mixture, balanced": (mixture, by(BalancedPartition(1, 2))),
    "mixture, global": (mixture, by(GlobalPartition(1, 2, num_workers=2))),
    "mixture, pool": (mixture, by(Partition(), POOLED)),
    "mixture of sequences": (sequence_mixture, by(Partition())),
    "mixture of sequences, partition": (sequence_mixture, by(Partition(1, 2))),
    "mixture of sequences, balanced": (sequence_mixture, by(BalancedPartition(1, 2))),
    "mixture of sequences, global": (sequence_mixture, by(GlobalPartition(1, 2, num_workers=2))),
    "mixture of sequences, pool": (sequence_mixture, by(Partition(), POOLED)),
    "mixture of sequences, scheduled": (scheduled, by(Partition())),
    "left out and repeated": (selected, by(Partition())),
    "left out and repeated, global pool": (selected, by(GlobalPartition(1, 2), POOLED)),
    "equal cost": (lambda folder: MinibatchSource(corpus(folder)), by(GlobalPartition(1, 2), EQUAL)),
    "rows of a source": (of_rows(lambda folder: MinibatchSource(corpus(folder))), lambda rows: rows.read()),
    "rows of a mixture": (of_rows(mixture), lambda rows: rows.read()),
    "rows of a mixture of sequences": (of_rows(sequence_mixture), lambda rows: rows.read()),
}
ADDED = ("balanced", "global", "partition", "count", "slots", "num_slots", "batch", "pool_end", "weights", "epoch")
FOREIGN = [*HOSTILE, 0, 1, 5, 2**62 - 1, 2**63 - 1, ["drop", 0, 1, 0], ["drop", 0, 2, 1], [0, 2**31, 0], [0, 1], [5, 9]]
ABSENT = object()


def tampered(state: Any, randomness: random.Random) -> Any:
    """Return a state with another value, another field, or without a field."""
    paths = [path for path in paths_in(state) if "order" not in path or len(path) == 1]
    *path, key = randomness.choice(paths)
    result = copy.deepcopy(state)
    inner = result
    for step in path:
        inner = inner[step]
    value = randomness.choice([*FOREIGN, ABSENT])
    if isinstance(inner, dict) and randomness.random() < 0.4:
        key = randomness.choice(ADDED)
    if value is ABSENT and isinstance(inner, dict):
        inner.pop(key, None)
    else:
        inner[key] = value
    return result


@pytest.mark.parametrize("name", NESTED)
def test_a_tampered_state_is_refused_or_can_be_read_on(name: str, corpora: Path) -> None:
    begin, read = NESTED[name]
    readable = begin(corpora)
    for _ in range(3):
        read(readable)
    good, randomness = json.loads(json.dumps(readable.state_dict())), random.Random(name)
    num_refused = 0
    for _ in range(rounds(300)):
        state = tampered(good, randomness)
        try:
            readable.load_state_dict(state)
        except CheckpointError:
            num_refused += 1
            assert json.loads(json.dumps(readable.state_dict())) == good, state
            continue
        try:
            read(readable)
        except CntkIoError:
            # The state is of a point at which this size or partition is not possible.
            readable.load_state_dict(good)
            continue
        readable.load_state_dict(json.loads(json.dumps(readable.state_dict())))
        readable.load_state_dict(good)
    assert num_refused > 10


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"global": ABSENT}, "the state has no 'partition'"),
        ({"global": 5}, "the state's 'global' is 5; expected a list"),
        ({"global": [0, 2**40, 0]}, "the state's 'global' is 1099511627776"),
        ({"rounds": 5}, "the state's 'rounds' is 5; expected a list"),
        ({"rounds": [2]}, "the state has no 'rounds'; expected 'drop' or 'repeat'"),
        ({"rounds": [0, "drop"]}, "the state's 'rounds' is 0"),
        ({"position": 2**63}, "the state's 'position' is 9223372036854775808"),
        # The form of earlier versions.
        ({"balanced": ["drop", 0, 1, 0]}, "the state has no 'partition'"),
        ({"balanced": ["drop", 0, 1, 0], "partition": [0]}, "expected 2 whole numbers"),
        ({"balanced": ["drop", 0, 2**40, 0], "partition": [0, 2]}, "the state's 'balanced' is 1099511627776"),
    ],
)
def test_a_damaged_balanced_state_of_a_mixture_names_the_field(
    change: dict[str, Any], text: str, corpora: Path
) -> None:
    with mixture(corpora) as source:
        source.read(6, BalancedPartition(1, 2))
        good = json.loads(json.dumps(source.state_dict()))
        for at in (["timeline"], ["timeline", "parts", "a", "timeline"]):
            if "position" in change and len(at) > 1:
                continue
            state = copy.deepcopy(good)
            inner = state
            for key in at:
                inner = inner[key]
            for key, value in change.items():
                inner.pop(key) if value is ABSENT else inner.update({key: value})
            with pytest.raises(CheckpointError, match=text):
                source.load_state_dict(state)
            assert json.loads(json.dumps(source.state_dict())) == good


def test_the_running_count_of_a_state_is_at_most_its_position(corpora: Path) -> None:
    with source_of(corpora / "a.ctf", randomize=False) as source:
        source.read(5, Partition(0, 2))
        state = source.state_dict()
        state["timeline"]["count"] = 2**63 - 1
        with pytest.raises(CheckpointError, match="the state's 'count' is 9223372036854775807"):
            source.load_state_dict(state)

"""`BalancedPartition` and a global partition with `deal="minibatch"` are the same share, through every door."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cntkio import (
    BalancedPartition,
    CTFDeserializer,
    GlobalPartition,
    MinibatchSource,
    Mixture,
    Partition,
    SequenceMixture,
    SplitRows,
    StreamDef,
    StreamDefs,
)

SIZE = 6


def corpus(folder: Path) -> CTFDeserializer:
    return CTFDeserializer(folder / "a.ctf", StreamDefs(x=StreamDef(field="x", shape=1)), chunk_size_in_bytes=60)


def source(folder: Path) -> MinibatchSource:
    return MinibatchSource(corpus(folder), max_sweeps=2)


def mixture(folder: Path) -> Mixture:
    return Mixture({"a": (corpus(folder), 2), "b": (corpus(folder), 1)}, stop="forever")


def mixed(folder: Path) -> SequenceMixture:
    return SequenceMixture({"a": (corpus(folder), 2), "b": (corpus(folder), 1)}, stop="all")


def keys(minibatches: Any) -> list[list[int]]:
    return [minibatch.keys_of_sequences.tolist() for minibatch in itertools.islice(minibatches, 20)]


def after_a_skip(folder: Path, share: Partition) -> Any:
    with source(folder) as one:
        one.skip(3, SIZE, share)
        return keys(one.minibatches(SIZE, partition=share))


def resumed(folder: Path, share: Partition) -> Any:
    with source(folder) as one, source(folder) as other:
        one.read(SIZE, share)
        other.load_state_dict(one.state_dict())
        return keys(other.minibatches(SIZE, partition=share)), one.state_dict()


DOORS: dict[str, Callable[[Path, Partition], Any]] = {
    "source": lambda folder, share: keys(source(folder).minibatches(SIZE, partition=share)),
    "skip": after_a_skip,
    "state": resumed,
    "plan": lambda folder, share: source(folder).plan(SIZE, share).sweep().sequences.tolist(),
    "mixture": lambda folder, share: keys(mixture(folder).minibatches(SIZE, share)),
    "mixture of sequences": lambda folder, share: keys(mixed(folder).minibatches(SIZE, partition=share)),
    "rows": lambda folder, share: [
        rows.values["x"].tolist() for rows in SplitRows(source(folder), 3, rows=2, size=SIZE, partition=share)
    ],
}


@pytest.mark.parametrize("remainder", ["drop", "repeat"])
@pytest.mark.parametrize("door", DOORS)
def test_both_spellings_deliver_the_same(door: str, remainder: Any, tmp_path: Path) -> None:
    lines = [f"{key} |x {key}\n" for key in range(29) for _ in range(1 + key % 3)]
    (tmp_path / "a.ctf").write_text("".join(lines))
    found = DOORS[door](tmp_path, BalancedPartition(1, 2, remainder))
    assert found and found == DOORS[door](tmp_path, GlobalPartition(1, 2, "minibatch", remainder))
    # The other partition has other minibatches.
    assert found != DOORS[door](tmp_path, BalancedPartition(0, 2, remainder))

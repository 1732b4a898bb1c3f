"""States of mixtures of an earlier version are read, and the same minibatches follow.

    PYTHONPATH=tests .venv/bin/python tests/source/test_recorded_mixtures.py        record them

Commit 9dffbffe (version 0.3.0) made the records. Users may have such states on disk, so do not record them anew.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from cntkio import (
    BalancedPartition,
    Budget,
    GlobalPartition,
    MinibatchSource,
    Mixture,
    Partition,
    SequenceMixture,
)
from support import recorded_states as recorded

RECORDS = recorded.FOLDER / "mixtures.json"
Made = tuple[Callable[[], Any], Any, Partition, int, dict[str, Any] | None]
POOL = Budget(padded=12, pool=8)


def parts(*weights: Any) -> dict[str, Any]:
    """Return two parts: one corpus, with two windows and two seeds."""
    seeds = {"small": 3, "large": 7}
    sources = [
        MinibatchSource(recorded.ctf(), randomization_seed=seed, randomization_window_in_chunks=size)
        for size, seed in enumerate(seeds.values(), 9)
    ]
    return dict(zip(seeds, zip(sources, weights, strict=True), strict=True))


def mixture(*weights: Any, stop: Any = "forever", **options: Any) -> Callable[[], Mixture]:
    return lambda: Mixture(parts(*weights), stop=stop, **options)


def mixed(*weights: Any, stop: Any = "forever", **options: Any) -> Callable[[], SequenceMixture]:
    return lambda: SequenceMixture(parts(*weights), stop=stop, **options)


WHOLE = Partition()
RAMP = ({0: 0.8, 3000: 0.2}, {0: 0.2, 3000: 0.8})
CHANGED: dict[str, Any] = {"small": 1, "large": 9}
# For each: how it is made, the request, minibatches before the state, and new weights before the state.
MIXTURES: dict[str, Made] = {
    "by minibatch": (mixture(0.7, 0.3), POOL, WHOLE, 7, None),
    "by minibatch, until all end": (mixture(0.7, 0.3, stop="all"), 9, WHOLE, 5, None),
    "by minibatch, balanced": (mixture(2, 1), 9, BalancedPartition(1, 2), 5, None),
    "by minibatch, of a worker": (mixture(2, 1), 9, GlobalPartition(1, 2, worker=1, num_workers=2), 5, None),
    "by minibatch, with new weights": (mixture(2, 1), 9, WHOLE, 5, CHANGED),
    "by sequence": (mixed(0.7, 0.3), 9, WHOLE, 7, None),
    "by sequence, until the first ends": (mixed(0.7, 0.3, stop="first"), POOL, WHOLE, 3, None),
    "by sequence, in a pool of a rank": (mixed(0.7, 0.3), POOL, GlobalPartition(1, 2), 4, None),
    "by sequence, with new weights": (mixed(0.7, 0.3), Budget(sequences=5), WHOLE, 3, CHANGED),
    "by sequence, new weights from the next pool on": (mixed(2, 1), Budget(sequences=5, pool=20), WHOLE, 1, CHANGED),
    "by sequence, on a ramp": (mixed(*RAMP), Budget(sequences=700), WHOLE, 2, None),
    "by sequence, in steps": (mixed(*RAMP, between="steps"), Budget(sequences=700), WHOLE, 4, None),
    "by sequence, tables from a position on": (
        mixed(1, 1), Budget(sequences=350), WHOLE, 2, {"small": {0: 1, 1700: 5}, "large": 3},
    ),
}  # fmt: skip


def put(source: Any, size: Any, partition: Partition, num_read: int, weights: dict[str, Any] | None) -> None:
    for _ in range(num_read):
        source.read(size, partition)
    if weights is not None:
        source.set_weights(weights)


def following(source: Any, size: Any, partition: Partition) -> list[Any]:
    """Return the sources and the keys of the next minibatches."""
    found = []
    for _ in range(6):
        minibatch = source.read(size, partition)
        if minibatch is not None:
            sources, keys = minibatch.source_of_sequences, minibatch.keys_of_sequences
            found.append(["".join(name[0] for name in sources.tolist()), keys.tolist(), minibatch.end_of_sweep])
    return found


def record() -> None:
    found = {}
    with recorded.beside_corpora():
        for name, (make, *asked, num_read, weights) in MIXTURES.items():
            with make() as source:
                put(source, *asked, num_read, weights)
                found[name] = {"state": source.state_dict(), "next": following(source, *asked)}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in found.items())
    RECORDS.write_text("{\n" + lines + "\n}\n", encoding="utf-8")


@pytest.mark.parametrize("name", MIXTURES)
def test_a_recorded_state_of_a_mixture_continues_identically(name: str) -> None:
    one = json.loads(RECORDS.read_text(encoding="utf-8"))[name]
    make, *asked, num_read, weights = MIXTURES[name]
    with recorded.beside_corpora(), make() as source, make() as other:
        source.load_state_dict(one["state"])
        again = json.loads(json.dumps(source.state_dict()))
        assert following(source, *asked) == one["next"]
        # A state that is made now means the same, also if it has another form.
        other.load_state_dict(again)
        assert json.loads(json.dumps(other.state_dict())) == again
        assert following(other, *asked) == one["next"]
    with recorded.beside_corpora(), make() as source:
        put(source, *asked, num_read, weights)
        assert following(source, *asked) == one["next"]


if __name__ == "__main__":
    record()

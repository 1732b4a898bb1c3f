"""States from anywhere: an impossible value is refused by its name, changes nothing, and allocates nothing."""

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import CheckpointError
from support.builders import make
from support.interrupts import KINDS, plain, write_corpora

HOSTILE = [
    None, True, "3", "x" * 1000, -1, 2.5, math.nan, math.inf, 2**31, 2**62 + 5, 2**63, 2**64 - 1, 2**64, 10**30,
    [], [[]], [None], [2**64] * 5, {}, {"a": 1}, np.zeros(3), object(),
]  # fmt: skip

INSIDE = ("data", "order", "position", "baseSweepCount", "slots", "sequence", "settings", "seed")
"""Names in messages about a value in a list or a dict that was replaced."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def test_a_hostile_value_is_refused_and_changes_nothing(name: str, folder: Path) -> None:
    kind = KINDS[name]
    with kind.make(folder) as source, kind.make(folder) as other:
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
def test_rejects_states_that_are_not_dicts(state: Any, folder: Path) -> None:
    with make(folder / "a.ctf") as source:
        for load in (source.load_state_dict, source.restore_from_checkpoint):
            with pytest.raises(CheckpointError):
                load(state)


def test_slots_of_a_state_allocate_nothing(folder: Path) -> None:
    with make(folder / "a.ctf", truncation_length=2) as source:
        source.next_minibatch(8)
        state = source.state_dict()
        state["timeline"]["minibatch_size"] = 2**62
        with pytest.raises(CheckpointError, match=r"the state holds 4 slots, but there are 2305843009213693952 here"):
            source.load_state_dict(state)


def test_a_number_in_place_of_a_truth_value_is_refused(folder: Path) -> None:
    with make(folder / "a.ctf") as source:
        state = source.state_dict()
        flags = [name for name, value in state["settings"].items() if isinstance(value, bool)]
        for name in flags:
            settings = {**state["settings"], name: int(state["settings"][name])}
            with pytest.raises(CheckpointError, match=f"{name}: saved {settings[name]}, here {bool(settings[name])}"):
                source.load_state_dict({**state, "settings": settings})
    assert flags

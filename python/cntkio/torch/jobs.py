"""A common state of all processes of a job. (docs/torch.md, "One state for a job")"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cntkio.errors import CheckpointError
from cntkio.torch import ranks
from cntkio.torch.dataset import MinibatchDataset


def gather_state_dict(dataset: MinibatchDataset) -> dict[str, Any]:
    """Return the state of the whole job, the same on every rank; each rank's `load_state_dict` takes it.

    With ``partition="balanced"`` it is the data set's own state. With ``"cntk"`` each rank has its own position, so the
    states of all ranks are gathered: every rank of `torch.distributed` must call this function.

    Args:
        dataset: The data set of this rank.

    Raises:
        CheckpointError: The states of other ranks are needed, and `torch.distributed` is not initialized with them.

    Example:
        >>> from cntkio import CTFDeserializer, MinibatchSource, infer_streams
        >>> path = "examples/alice/test.ctf"
        >>> source = MinibatchSource(CTFDeserializer(path, infer_streams(path)), max_sweeps=1)
        >>> sorted(gather_state_dict(MinibatchDataset(source, 512, partition="balanced", rank=1, world_size=2)))[:3]
        ['check_sum', 'epoch', 'minibatch_size']
    """
    if not isinstance(dataset, MinibatchDataset):
        raise CheckpointError(f"the data set is a {type(dataset).__name__}; expected a MinibatchDataset")
    state = dataset.state_dict()
    world_size = state["world_size"]
    if dataset.partition != "cntk" or world_size == 1:
        return state
    is_ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not is_ready or torch.distributed.get_world_size() != world_size:
        raise CheckpointError(
            f"with partition='cntk' each of the {world_size} ranks has a state of its own, and torch.distributed is "
            f"not initialized with {world_size} ranks; save each rank's state_dict(), and combine them with "
            f"joined_states"
        )
    states: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(states, state)
    return joined_states(states)


def joined_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state of the whole job from the states of all its ranks, in any order.

    Args:
        states: The `MinibatchDataset.state_dict` of each rank.

    Raises:
        CheckpointError: A rank is missing or appears twice, or the states are of several jobs or steps; all
            differences are named.

    Example:
        >>> joined_states([])
        Traceback (most recent call last):
        cntkio.errors.CheckpointError: no states; expected the state of each rank
    """
    if isinstance(states, Mapping):
        raise CheckpointError("got a single state; expected a list with the state of each rank")
    if not states:
        raise CheckpointError("no states; expected the state of each rank")
    for index, state in enumerate(states):
        if not isinstance(state, Mapping):
            raise CheckpointError(f"state {index} is a {type(state).__name__}; expected a result of state_dict()")
    if len(states) > 1 and any(state.get("partition") in ("balanced", "global") for state in states):
        raise CheckpointError(
            "the states were taken with partition='balanced' or 'global', so they are the same on all ranks; load any "
            "of them"
        )
    counts = sorted({state.get("world_size", 1) for state in states})
    if len(counts) > 1:
        raise CheckpointError(
            f"the states are of jobs with {' and '.join(map(str, counts))} ranks; expected the states of one job",
            saved=counts,
        )
    numbers = [state.get("rank") for state in states]
    expected = list(range(states[0].get("world_size", 1)))
    if sorted(numbers, key=str) != sorted(expected, key=str):
        raise CheckpointError(
            f"the states are of the ranks {', '.join(map(str, numbers))}; expected each of 0..{len(expected) - 1} once",
            saved=numbers,
            current=expected,
        )
    ordered = sorted(states, key=lambda state: int(state["rank"]))
    first, *others = ordered
    for other in others:
        facts = ranks.common_facts(first), ranks.common_facts(other)
        if different := ranks.differences(first["rank"], facts[0], other["rank"], facts[1]):
            raise CheckpointError(
                f"the states are not of the same step of one job: {'; '.join(different)}",
                saved=facts[0],
                current=facts[1],
            )
    return {"version": ordered[0].get("version"), "ranks": [dict(state) for state in ordered]}

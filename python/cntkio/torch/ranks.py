"""The ranks of a job: which of them this process is, what they agree on, and their states as one state.

docs/torch.md, "Ranks and workers" and "One state for a job".
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from cntkio.arguments import whole_number
from cntkio.errors import CheckpointError, ConfigError
from cntkio.timeline.partition import checked_part
from cntkio.timeline.state import position_of

_BY_HAND = {"bash", "interactive"}
"""Names of SLURM jobs in which a person starts programs by hand, so that SLURM's variables describe the shell."""


def discovered() -> tuple[int, int]:
    """Return the rank of this process and the number of processes of its job; (0, 1) if they are unknown.

    `torch.distributed` comes first, then Ray Train's context, ``RANK`` and ``WORLD_SIZE`` (torchrun), and the variables
    of a SLURM step.

    Example:
        >>> discovered()
        (0, 1)
    """
    if count := group_size():
        return torch.distributed.get_rank(), count
    return _of_ray_train() or _of_environment("RANK", "WORLD_SIZE") or _of_slurm_step() or (0, 1)


def group_size() -> int:
    """Return the number of processes of `torch.distributed`; 0: it is not initialized."""
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 0


def checked(rank: object, world_size: object) -> tuple[int, int]:
    """Return a rank and the number of ranks, and refuse a rank that is not below this number.

    Example:
        >>> checked(3, 3)
        Traceback (most recent call last):
        cntkio.errors.ConfigError: rank is 3, but world_size is 3; expected a rank from 0 to 2
    """
    index, count = whole_number("rank", rank), whole_number("world_size", world_size, least=1)
    if not 0 <= index < count:
        what = f"rank is {index}, but world_size is {count}; expected a rank from 0 to {count - 1}"
        raise ConfigError(what, key="rank")
    return index, count


class Place(NamedTuple):
    """The place of a process in a mesh.

    Attributes:
        data: Rank among the shares of the data, and their number.
        rows: Rank among the slices of each packed row, and their number.
    """

    data: tuple[int, int]
    rows: tuple[int, int]


def place_in_mesh(
    mesh: Any, *, divide: Sequence[str] = (), share: Sequence[str] = (), split: Sequence[str] = ()
) -> Place:
    """Return the place of this process in a `torch.distributed.device_mesh.DeviceMesh`, for ``mesh=`` of a data set.

    Each dimension of the mesh has to be in one of the three, so that no new dimension duplicates data in silence.

    Args:
        mesh: The mesh, with names of its dimensions.
        divide: Dimensions whose ranks get different data, such as data parallel ranks. The first varies slowest.
        share: Dimensions whose ranks get the same data, such as tensor and pipeline parallel ranks.
        split: Dimensions whose ranks get slices of the same packed rows, such as context parallel ranks.

    Raises:
        ConfigError: The mesh does not contain this process; or a dimension is missing, unknown, or named
            twice.

    Example:
        >>> from types import SimpleNamespace
        >>> mesh = SimpleNamespace(mesh_dim_names=("dp", "cp", "tp"), shape=(2, 2, 2), get_coordinate=lambda: [1, 0, 1])
        >>> place_in_mesh(mesh, divide=["dp"], share=["tp"], split=["cp"])
        Place(data=(1, 2), rows=(0, 2))
    """
    names, coordinate = mesh.mesh_dim_names or (), mesh.get_coordinate()
    kinds = {"divide": divide, "share": share, "split": split}
    for kind, dimensions in kinds.items():
        if isinstance(dimensions, str):
            raise ConfigError(f"{kind} is {dimensions!r}; expected a list of names: [{dimensions!r}]", key=kind)
    given = [name for dimensions in kinds.values() for name in dimensions]
    if sorted(given) != sorted(names):
        what = f"the dimensions of the mesh are {list(names)}, and divide, share and split name {given}"
        raise ConfigError(f"{what}; expected each dimension once", key="mesh")
    if coordinate is None:
        raise ConfigError("this process is not in the mesh; make the data set only on ranks of the mesh", key="mesh")

    def rank_in(dimensions: Sequence[str]) -> tuple[int, int]:
        rank, count = 0, 1
        for name in dimensions:
            at = names.index(name)
            rank, count = rank * mesh.shape[at] + coordinate[at], count * mesh.shape[at]
        return rank, count

    return Place(rank_in(divide), rank_in(split))


def taken(place: Place, rank: object, row_length: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the shares of a place in a mesh, and refuse impossible shares.

    Args:
        row_length: Cells of a packed row; 0: without rows.

    Raises:
        ConfigError: There is a rank, too; or the rows cannot be split.
    """
    if rank is not None:
        raise ConfigError("mesh has the rank and the number of ranks: leave out rank and world_size", key="mesh")
    checked_part(place.rows, row_length)
    return place


def advice(different: Sequence[str], partition: str) -> str:
    """Return advice about a state with these different settings; empty if other ranks do not explain them."""
    if "world_size" in different:
        needed = " with remainder='empty'" if partition == "global" else ""
        fits = f"In mid-epoch, only states of partition='global'{needed} fit another number of ranks"
        return f". {fits}; set_epoch begins an epoch without a state"
    if "rank" in different:
        return ". Each rank loads its own state, or the state of the job that gather_state_dict returns"
    return ""


def common_facts(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a state of a data set has in common with the states of all other ranks at the same step.

    With global and balanced partitions, this includes the position, with CNTK's the number of steps.
    """
    source = state.get("source", {})
    facts = {name: state.get(name) for name in ("minibatch_size", "partition", "remainder", "world_size", "epoch")}
    if state.get("partition") == "cntk":
        # Each rank has a position of its own, so only the number of steps says that the states belong together.
        facts |= {name: state.get(name) for name in ("steps", "num_workers")}
    else:
        positions = state.get("workers", [source])
        facts["position"] = [position and position_of(position["timeline"]) for position in positions]
    order = source.get("order", {}).get("digest")
    return {**facts, **source.get("settings", {}), "data": source.get("data"), "order": order}


def differences(
    first_rank: object, first: Mapping[str, Any], second_rank: object, second: Mapping[str, Any]
) -> list[str]:
    """Return a text for each fact that differs between two ranks. An unknown number of steps does not differ.

    Example:
        >>> differences(0, {"seed": 1, "epoch": 0}, 3, {"seed": 2, "epoch": 0})
        ['seed: 1 on rank 0, 2 on rank 3']
    """
    return [
        f"{name}: {first.get(name)!r:.200} on rank {first_rank}, {second.get(name)!r:.200} on rank {second_rank}"
        for name in dict.fromkeys([*first, *second])
        if first.get(name) != second.get(name) and not (name == "steps" and None in (first.get(name), second.get(name)))
    ]


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
        what = "the states were taken with partition='balanced' or 'global', so they are the same on all ranks"
        raise CheckpointError(f"{what}; load any of them")
    counts = sorted({state.get("world_size", 1) for state in states})
    if len(counts) > 1:
        what = f"the states are of jobs with {' and '.join(map(str, counts))} ranks; expected the states of one job"
        raise CheckpointError(what, saved=counts)
    numbers = [state.get("rank") for state in states]
    expected = list(range(states[0].get("world_size", 1)))
    # Damaged states may have ranks that cannot be compared as numbers, such as None.
    if sorted(numbers, key=str) != sorted(expected, key=str):
        found = ", ".join(map(str, numbers))
        what = f"the states are of the ranks {found}; expected each of 0..{len(expected) - 1} once"
        raise CheckpointError(what, saved=numbers, current=expected)
    ordered = sorted(states, key=lambda state: int(state["rank"]))
    first, *others = ordered
    for other in others:
        saved, current = common_facts(first), common_facts(other)
        if different := differences(first["rank"], saved, other["rank"], current):
            what = f"the states are not of the same step of one job: {'; '.join(different)}"
            raise CheckpointError(what, saved=saved, current=current)
    return {"version": first.get("version"), "ranks": [dict(state) for state in ordered]}


_num_checks: Counter[str] = Counter()


def agree(files: Sequence[str], rank: int, world_size: int, facts: Mapping[str, Any]) -> None:
    """Compare what must be equal on all ranks of `torch.distributed` with the rank that called this function first.

    The ranks exchange their facts through the key-value store with which `torch.distributed` was initialized. No rank
    waits for another to begin its iteration, so ranks that do not use the data set do not block the others. Other names
    on another rank may be another data set, so they are a warning.

    Args:
        files: The names of the corpora. The n-th check of these names is compared with that of other ranks.
        world_size: Number of processes that share the data; nothing is compared if `torch.distributed` has another.

    Raises:
        ConfigError: The ranks disagree; all differences are named.
    """
    if group_size() != world_size:
        return
    store_of = getattr(torch.distributed.group.WORLD, "get_group_store", None)
    if store_of is None:  # an older PyTorch
        return
    name = " ".join(Path(file).name for file in files)
    key = f"cntkio/{name}/{_num_checks[name]}"
    _num_checks[name] += 1
    store = store_of()
    if _num_checks[name] == 1:
        # Compared with the names of the first rank that began as many data sets.
        other_rank, other = _of_first_rank(store, f"cntkio/names/{len(_num_checks)}", [rank, name])
        if other != name:
            text = (
                "rank %d reads %s, and rank %d reads %s: ranks that share the data need the same corpus, and begin "
                "their data sets in the same order; for a corpus of its own, make the data set with rank=0 and "
                "world_size=1"
            )
            logging.getLogger("cntkio").warning(text, rank, name, other_rank, other)
    first = _of_first_rank(store, key, {"rank": rank, "facts": facts})
    # These facts go through JSON, too, which turns tuples into lists.
    if different := differences(first["rank"], first["facts"], rank, json.loads(json.dumps(facts))):
        what = f"the ranks disagree, so they would not share the data: {'; '.join(different)}"
        advice = "Make the data set with the same arguments on all ranks, and load states of the same step"
        raise ConfigError(f"{what}. {advice} (docs/torch.md, 'Ranks and workers')", key="rank")


def _of_first_rank(store: Any, key: str, own: Any) -> Any:
    """Return the value of the rank that is the first to come with this key."""
    # The store adds atomically, so exactly one rank is the first. The others wait in `get` until it has set its value.
    if store.add(f"{key}/count", 1) == 1:
        store.set(key, json.dumps(own))
    return json.loads(store.get(key))


def _of_ray_train() -> tuple[int, int] | None:
    """Return the rank and the world size of Ray Train's context. In a worker of Ray Train, its module is loaded."""
    # In other programs, importing Ray would only cost time.
    train = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        context = train.get_context()
        rank, world_size = context.get_world_rank(), context.get_world_size()
    except RuntimeError:  # outside a worker
        return None
    return None if rank is None or world_size is None else (rank, world_size)


def _of_slurm_step() -> tuple[int, int] | None:
    """Return the number of this process's task in a step that `srun` started. A batch script is not in a step."""
    if "SLURM_STEP_NUM_TASKS" not in os.environ or os.environ.get("SLURM_JOB_NAME") in _BY_HAND:
        return None
    return _of_environment("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")


def _of_environment(rank_name: str, count_name: str) -> tuple[int, int] | None:
    texts = {name: os.environ[name] for name in (rank_name, count_name) if name in os.environ}
    if not texts:
        return None
    # -1 is refused below, with both texts in the message.
    numbers = [int(text) if text.isdecimal() else -1 for text in texts.values()]
    if len(numbers) != 2 or not 0 <= numbers[0] < numbers[1]:
        found = ", ".join(f"{name}={text!r}" for name, text in texts.items())
        what = f"the environment has {found}; expected {rank_name} from 0 and below {count_name}"
        advice = "For a process that is not part of a job, give rank=0 and world_size=1"
        raise ConfigError(f"{what}. {advice}", key="rank")
    return numbers[0], numbers[1]

"""The state of the main timeline in a checkpoint: a small dict for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cntkio.errors import CheckpointError
from cntkio.timeline.partition import BalancedPartition, GlobalPartition, Partition

_LARGEST_COUNT = 2**63 - 1

Slots: TypeAlias = list[list[tuple[int, int, bool]]]
"""For each slot its sequences: index, first sample not delivered, and whether its read met the end of a sweep."""


class State(NamedTuple):
    """Everything that the main timeline needs in order to continue.

    Attributes:
        position: Samples of all partitions passed.
        settings: Size and partition of the last read; None: before the first read. The fields below belong to it.
        running_count: In order: the running count of sequences.
        slots: Truncated: the slots.
        rounds_to_pass: Balanced and global partitions: rounds, or global minibatches, of other workers before the next
            of this worker.
    """

    position: int
    settings: tuple[int, Partition] | None = None
    running_count: int | None = None
    slots: Slots | None = None
    rounds_to_pass: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict; `from_json` reads it."""
        json: dict[str, Any] = {"position": self.position}
        if self.settings is None:
            return json
        size, partition = self.settings
        json["minibatch_size"] = size
        if isinstance(partition, GlobalPartition):
            json["global"] = [partition.worker, partition.num_workers, self.rounds_to_pass]
        else:
            json["partition"] = [partition.index, partition.count]
        if self.running_count is not None:
            json["count"] = self.running_count
        if self.slots is not None:
            json["slots"] = [[list(sequence) for sequence in slot] for slot in self.slots]
        if isinstance(partition, BalancedPartition):
            turns = [partition.worker, partition.num_workers, self.rounds_to_pass]
            json["balanced"] = [partition.remainder, *turns]
        return json

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> State:
        """Read the dict of `to_json`.

        Raises:
            CheckpointError: It is not such a dict.
        """
        try:
            position = json["position"]
            settings = None
            rounds_to_pass = 0
            if "minibatch_size" in json:
                index, partition_count = (int(value) for value in json.get("partition", (0, 1)))
                partition = Partition(index, partition_count)
                if "global" in json:
                    worker, num_workers, rounds_to_pass = (int(value) for value in json["global"])
                    partition = GlobalPartition(worker=worker, num_workers=num_workers)
                elif "balanced" in json:
                    remainder, *turns = json["balanced"]
                    worker, num_workers, rounds_to_pass = (int(value) for value in turns)
                    partition = BalancedPartition(index, partition_count, remainder, worker, num_workers)
                settings = (int(json["minibatch_size"]), partition)
            count = int(json.get("count", 0))
            slots = [
                [(int(sequence), int(first), bool(flag)) for sequence, first, flag in slot]
                for slot in json.get("slots", [])
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"not a state of a timeline: {error!r}", saved=dict(json)) from error
        if type(position) is not int or not 0 <= count <= _LARGEST_COUNT:
            raise CheckpointError(
                "not a state of a timeline: the position or the count is not a whole number", saved=dict(json)
            )
        return cls(position, settings, count, slots, rounds_to_pass)


def of_partition(json: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    """Return the state of another balanced partition from which the same round follows: all stand at the same position.

    Args:
        json: A dict of `State.to_json`. Other states than those of balanced partitions are returned as they are.
        index: The other partition.

    Example:
        >>> of_partition({"position": 4, "partition": [0, 2], "balanced": ["drop", 0, 1, 0]}, 1)["partition"]
        [1, 2]
    """
    if "balanced" not in json:
        return json
    return {**json, "partition": [index, json["partition"][1]]}


def of_any_worker(json: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of a global partition without the turns of its worker, so that any number of workers may begin.

    Args:
        json: A dict of `State.to_json`. Other states than those of global partitions are returned as they are.

    Example:
        >>> of_any_worker({"position": 4, "minibatch_size": 2, "global": [1, 3, 2]})
        {'position': 4, 'minibatch_size': 2, 'global': [0, 1, 0]}
    """
    return {**json, "global": [0, 1, 0]} if "global" in json else json


def check_slots(slots: Slots, lengths: npt.NDArray[np.uint32]) -> None:
    """Check that slots continue sequences that exist, at samples that these have.

    Raises:
        CheckpointError: They do not.
    """
    rest = np.array([(sequence, first) for slot in slots for sequence, first, _ in slot], np.int64).reshape(-1, 2)
    if not len(rest):
        return
    sequences, firsts = rest.T
    if (sequences < 0).any() or (sequences >= len(lengths)).any():
        raise CheckpointError(
            f"the state continues sequences that are not among the {len(lengths)} of this source",
            saved=int(sequences.max()),
            current=len(lengths),
        )
    if (firsts < 0).any() or (firsts >= lengths[sequences]).any():
        raise CheckpointError(
            "the state continues at samples that this source's sequences do not have", saved=firsts.tolist()
        )

"""The state of the main timeline in a checkpoint: a small dict for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cntkio.errors import CheckpointError, ConfigError
from cntkio.timeline.budget import Budget, Size, about_samples, size_from_json, size_to_json
from cntkio.timeline.fields import below, damaged, is_same, items, whole, wholes
from cntkio.timeline.partition import (
    LARGEST_NUM_LANES,
    LARGEST_NUM_WORKERS,
    BalancedPartition,
    GlobalPartition,
    Partition,
)
from cntkio.timeline.window import Limits


def check_request(size: int, limits: Limits) -> None:
    """Raise a `ConfigError` for a minibatch size of 0, and for a source that may not deliver anything."""
    if size < 1:
        raise ConfigError(f"minibatch_size_in_samples is {size}; expected at least 1", key="minibatch_size_in_samples")
    if limits.max_samples == 0:
        raise ConfigError("max_samples is 0; expected at least 1", key="max_samples")


def num_slots(size: Size, partition: Partition, truncation_length: int) -> int:
    """Return the number of slots that a timeline fills for a partition, and refuse more partitions than slots."""
    of_all = max(1, about_samples(size) // truncation_length)
    if partition.count > of_all:
        slots = f"{of_all} slots (minibatch_size_in_samples={size}, truncation_length={truncation_length})"
        advice = "increase the minibatch size or decrease the number of partitions"
        raise ConfigError(f"{partition.count} partitions share {slots}: {advice}", key="num_data_partitions")
    # A reader with a global partition fills the slots of all partitions, and the deal comes after that.
    return partition.of_reads.share(of_all)


def refused(state: Mapping[str, Any], error: ConfigError) -> CheckpointError:
    """Make the error for the size or the partition of a state, which the timeline refuses."""
    asked = {
        name: state[name]
        for name in ("minibatch_size", "partition", "balanced", "global", "rounds", "lanes")
        if name in state
    }
    return CheckpointError(f"the state's last read is not possible here: {error}", saved=asked)


_LARGEST_COUNT = 2**63 - 1
# The rule by which lanes spread sequences over steps. States of the first rule do not name it.
_SPREAD = 2
_REMAINDERS: tuple[Literal["drop", "repeat"], ...] = ("drop", "repeat")

Slots: TypeAlias = list[list[tuple[int, int, bool]]]
"""For each slot its sequences: index, first sample not delivered, and whether its read met the end of a sweep."""


class State(NamedTuple):
    """Everything that the main timeline needs in order to continue.

    Attributes:
        position: Samples of all partitions that were passed.
        settings: Size and partition of the last read; None: before the first read. The fields below belong to it.
        running_count: In order: the running count of sequences.
        slots: Truncated: the slots, without empty slots at the end.
        rounds_to_pass: Global partitions: global minibatches, or rounds, of other workers before the next of this
            worker.
        num_slots: Truncated: the number of all slots.
        batch: In a pool, or in a sweep in lanes: the number of its minibatches that were delivered.
        place: In a keyed order: the sequences of the sweep before the position, and a checksum that ties them to it.
    """

    position: int
    settings: tuple[Size, Partition] | None = None
    running_count: int | None = None
    slots: Slots | None = None
    rounds_to_pass: int = 0
    num_slots: int = 0
    batch: int = 0
    place: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict; `from_json` reads it."""
        json: dict[str, Any] = {"position": self.position}
        if self.place is not None:
            json["place"] = list(self.place)
        if self.settings is None:
            return json
        size, partition = self.settings
        json["minibatch_size"] = size_to_json(size)
        if self.batch:
            json["batch"] = self.batch
        if partition.of_workers is not None:
            # The index is left out, because all partitions have the same state; and the count, unless it matters.
            json["global"] = [*partition.of_workers, self.rounds_to_pass]
            if partition.rounds is not None:
                json["rounds"] = list(partition.rounds)
            if partition.num_lanes:
                json["lanes"] = partition.num_lanes
                if not isinstance(size, Budget):
                    json["spread"] = _SPREAD
        else:
            json["partition"] = [partition.index, partition.count]
        if self.running_count is not None:
            json["count"] = self.running_count
        if self.slots is not None:
            json |= slots_to_json(self.slots, self.num_slots)
        return json

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> State:
        """Read the dict of `to_json`; a damaged field raises a `CheckpointError`."""
        position = whole("position", json.get("position"))
        settings, rounds_to_pass = None, 0
        if "minibatch_size" in json:
            saved = json["minibatch_size"]
            is_budget = isinstance(saved, Mapping)
            size = size_from_json(saved) if is_budget else whole("minibatch_size", saved, _LARGEST_COUNT, least=1)
            partition, rounds_to_pass = _partition(json)
            settings = (size, partition)
        # A sequence has at least one sample. With this check, the count of each later state is possible as well.
        count = whole("count", json.get("count", 0), position)
        # `check_slots` compares the numbers with the table; here they only have to fit its array.
        slots = slots_of(json, 2, 2**32)
        batch = whole("batch", json.get("batch", 0), 2**32 - 1)  # the core counts them in 32 bits
        if batch and settings is not None and settings[1].num_lanes and not isinstance(settings[0], Budget):
            _check_spread(json)
        place = None
        if "place" in json:
            index, check_sum = wholes("place", json["place"], (0, 0))
            place = index, check_sum
        return cls(position, settings, count, slots, rounds_to_pass, num_slots_of(json), batch, place)


def _check_spread(json: Mapping[str, Any]) -> None:
    """Refuse a state inside a sweep in lanes whose sequences were spread over steps by another rule."""
    if not is_same(json.get("spread"), _SPREAD):
        what = (
            "the state is inside a sweep in lanes of another version, which spread sequences over steps in another way"
        )
        message = f"{what}; finish the sweep with that version, or begin at the beginning of a sweep"
        raise CheckpointError(message, saved=json.get("spread"), current=_SPREAD)


def plain_partition(json: Mapping[str, Any]) -> Partition:
    """Return the index and the count of a state's partition, without what else it has."""
    index, count = wholes("partition", json.get("partition"), (0, 1))
    return Partition(below("partition", index, count), count)


def _partition(json: Mapping[str, Any]) -> tuple[Partition, int]:
    """Return the partition of a state, and the rounds to pass. All global partitions of a state are the same here."""
    rounds, name = json.get("rounds"), "global"
    if "balanced" in json:
        # Earlier versions wrote the remainder and the turns there, and the count next to the partition's index.
        name, rounds = "balanced", [plain_partition(json).count, *items("balanced", json["balanced"])[:1]]
    elif name not in json:
        return plain_partition(json), 0
    turns = items(name, json[name])[name == "balanced" :]
    worker, num_workers, rounds_to_pass = wholes(name, turns, (0, 1, 0))
    below(name, max(worker, rounds_to_pass), whole(name, num_workers, LARGEST_NUM_WORKERS))
    if rounds is None:
        lanes = whole("lanes", json.get("lanes", 0), LARGEST_NUM_LANES)
        return GlobalPartition(worker=worker, num_workers=num_workers, lanes=lanes), rounds_to_pass
    count, saved = (*items("rounds", rounds), None, None)[:2]
    remainder = next((word for word in _REMAINDERS if is_same(saved, word)), None)
    if remainder is None:
        raise damaged("rounds", saved, "'drop' or 'repeat'")
    count = whole("rounds", count, _LARGEST_COUNT, least=1)
    return BalancedPartition(0, count, remainder, worker, num_workers), rounds_to_pass


def slots_of(json: Mapping[str, Any], num_numbers: int, largest: int) -> list[list[Any]]:
    """Return the slots of a state: for each sequence its numbers, and whether its read met the end of a sweep."""

    def in_slot(sequence: Any) -> tuple[Any, ...]:
        # A field that is missing becomes None, which the checks of the fields refuse.
        fields = (*items("slots", sequence), *[None] * (num_numbers + 1))[: num_numbers + 1]
        numbers = [whole("slots", number, largest) for number in fields[:-1]]
        if not isinstance(fields[-1], bool | np.bool_):
            raise damaged("slots", fields[-1], "true or false")
        return *numbers, bool(fields[-1])

    return [list(map(in_slot, items("slots", slot))) for slot in items("slots", json.get("slots", []))]


# What other rooms may ask of the state of a timeline, of any kind.


def position_of(json: Mapping[str, Any]) -> Any:
    """Return the position of a state; None: it has none, as the state of a user-defined timeline."""
    return json.get("position")


def position_after_reads(json: Mapping[str, Any]) -> int:
    """Return a position above those at which the reads before a state began; a pool that has begun counts."""
    return int(position_of(json) or 0) + ("batch" in json)


def has_begun(json: Mapping[str, Any]) -> bool:
    """Return whether a read came before the state, so that it belongs to a size and a partition."""
    return "minibatch_size" in json


def settings_of(json: Mapping[str, Any]) -> tuple[Size, Partition]:
    """Return the size and the partition of the last read before a state."""
    settings = State.from_json(json).settings
    if settings is None:
        message = "nothing was read, so the size of minibatches is unknown; give minibatch_size_in_samples"
        raise ConfigError(message, key="minibatch_size_in_samples")
    return settings


def has_ended(json: Mapping[str, Any], end: int) -> bool:
    """Return whether nothing follows a state if the data end at a position."""
    position = position_of(json)
    return position is not None and position >= end and not any(json.get("slots", ()))


def of_any_partition(json: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state at the same position before any read: any size and partition may begin there."""
    return {name: json[name] for name in ("position", "place") if name in json}


def of_any_worker(json: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of a global partition without the turns of its worker, so that any number of workers may begin.

    The state of a partition that is not global is returned unchanged.

    Example:
        >>> of_any_worker({"position": 4, "minibatch_size": 2, "global": [1, 3, 2]})
        {'position': 4, 'minibatch_size': 2, 'global': [0, 1, 0]}
    """
    return {**json, "global": [0, 1, 0]} if "global" in json else json


def slots_to_json(slots: Sequence[Sequence[Iterable[Any]]], num_slots: int) -> dict[str, Any]:
    """Return the fields of a state that hold slots.

    A request may ask for any number of slots, so empty slots at the end are only counted.
    """
    json: dict[str, Any] = {"slots": [[list(sequence) for sequence in slot] for slot in slots]}
    return json if len(slots) == num_slots else {**json, "num_slots": num_slots}


def num_slots_of(json: Mapping[str, Any]) -> int:
    """Return the number of slots of a state, with the empty slots at the end."""
    slots = items("slots", json.get("slots", []))
    return whole("num_slots", json.get("num_slots", len(slots)), _LARGEST_COUNT, least=len(slots))


def check_num_slots(saved: int, current: int) -> None:
    """Check that a state has as many slots as the timeline."""
    if saved != current:
        message = f"the state holds {saved} slots, but there are {current} here"
        raise CheckpointError(message, saved=saved, current=current)


def check_slots(slots: Slots, lengths: npt.NDArray[np.uint32]) -> None:
    """Check that the slots of a state continue sequences that exist, at samples that exist."""
    rest = np.array([(sequence, first) for slot in slots for sequence, first, _ in slot], np.int64).reshape(-1, 2)
    sequences, firsts = rest.T
    if (sequences >= len(lengths)).any():
        message = f"the state continues sequences that are not among the {len(lengths)} of this source"
        raise CheckpointError(message, saved=int(sequences.max()), current=len(lengths))
    if (firsts >= lengths[sequences]).any():
        message = "the state continues at samples that this source's sequences do not have"
        raise CheckpointError(message, saved=firsts.tolist())

"""The slots of truncated minibatches in the user timeline.

A slot is a row of minibatches. It holds the sequences that its next cells come from. The main timeline has its slots in
the core; here the loops are in Python, over sequences, since user-defined deserializers are slower anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cntkio.timeline.fields import flag, items, whole
from cntkio.timeline.selection import Parts


class InSlot(NamedTuple):
    """A sequence in a slot.

    Attributes:
        chunk: Its chunk.
        index_in_chunk: Its index in the chunk.
        length: Samples that it counts for.
        next: The first sample that is not delivered yet.
        end_of_sweep: Whether the read that put it there met the end of a sweep.
    """

    chunk: int
    index_in_chunk: int
    length: int
    next: int
    end_of_sweep: bool


Slots: TypeAlias = tuple[tuple[InSlot, ...], ...]


class Cells(NamedTuple):
    """The cells of one minibatch.

    Attributes:
        chunks: The chunk of each part of a sequence, int64.
        indices: The index of the sequence in the chunk, int64.
        parts: The parts.
        end_of_sweep: Whether a sequence ends that was read with the end of a sweep.
    """

    chunks: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int64]
    parts: Parts
    end_of_sweep: bool


def slots_from_json(json: Any) -> Slots:
    """Read slots from lists of lists, in the order of the fields of `InSlot`.

    Raises:
        CheckpointError: The lists have the wrong form.
    """
    return tuple(tuple(_from_json(sequence) for sequence in items("slots", slot)) for slot in items("slots", json))


def _from_json(sequence: Any) -> InSlot:
    *numbers, end_of_sweep = (*items("slots", sequence), *[None] * 5)[:5]
    chunk, index_in_chunk, length, first = (whole("slots", number, 2**63 - 1) for number in numbers)
    return InSlot(chunk, index_in_chunk, length, first, flag("slots", end_of_sweep))


def num_unread(slot: Iterable[InSlot]) -> int:
    """Return the number of samples that a slot still has."""
    return sum(sequence.length - sequence.next for sequence in slot)


_LEAST_SLOT_BYTES = 200  # of a list with one sequence


def require_room(num_slots: int) -> None:
    """Check, before further slots are filled, that there is memory for this number of them, with a sequence in each.

    Raises:
        MemoryError: There is too little memory.
    """
    size = num_slots * _LEAST_SLOT_BYTES
    try:
        np.empty(size, np.uint8)
    except (MemoryError, ValueError):
        raise MemoryError(f"no memory for {num_slots} slots of a truncated minibatch ({size} bytes)") from None


def take_cells(slots: list[list[InSlot]], num_slots: int, num_steps: int) -> Cells | None:
    """Take up to `num_steps` samples from each slot; None if all are empty. Sequences that end are removed.

    Args:
        slots: The first slots.
        num_slots: The number of all slots. The others are empty.
        num_steps: Steps of a minibatch.
    """
    rows: list[tuple[int, ...]] = []
    end_of_sweep = False
    for slot_index, slot in enumerate(slots):
        step = 0
        while step < num_steps and slot:
            chunk, index, length, first, met_end = slot[0]
            num_samples = min(num_steps - step, length - first)
            continues = first + num_samples < length
            rows.append((slot_index, chunk, index, length, first, num_samples, step, continues))
            step += num_samples
            if continues:
                slot[0] = slot[0]._replace(next=first + num_samples)
            else:
                end_of_sweep |= met_end
                del slot[0]
    if not rows:
        return None
    slot_of, chunks, indices, lengths, firsts, sizes, steps, continues_of = np.array(rows, np.int64).T.copy()
    parts = Parts(
        slot_of, firsts, sizes, steps, continues_of.astype(np.bool_), lengths.astype(np.uint32), num_slots, num_steps
    )
    return Cells(chunks, indices, parts, end_of_sweep)

"""Checks of the fields of states. A state may come from anywhere, so every field is checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cntkio.errors import CheckpointError, ConfigError
from cntkio.timeline.options import LARGEST_WORD


def whole(name: str, value: Any, largest: int = LARGEST_WORD, *, least: int = 0) -> int:
    """Return a field that is a whole number.

    Args:
        name: Name of the field.
        value: Its value.
        largest: The largest number that is possible.
        least: The smallest.

    Raises:
        CheckpointError: The value has the wrong type, or is out of range.

    Example:
        >>> whole("position", 2.5)
        Traceback (most recent call last):
        cntkio.errors.CheckpointError: the state's 'position' is 2.5; expected a whole number from 0 to 2^64 - 1
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and least <= value <= largest:
        return int(value)
    most = {2**63 - 1: "2^63 - 1", LARGEST_WORD: "2^64 - 1"}.get(largest, str(largest))
    raise damaged(name, value, f"a whole number from {least} to {most}")


def wholes(name: str, value: Any, count: int, *, least: Iterable[int]) -> list[int]:
    """Return a field that is a list of whole numbers below 2^63, one for each given smallest number.

    Raises:
        CheckpointError: The value has the wrong type, or is out of range.
    """
    values = items(name, value)
    if len(values) != count:
        raise damaged(name, value, f"{count} whole numbers")
    return [whole(name, number, 2**63 - 1, least=smallest) for number, smallest in zip(values, least, strict=True)]


def flag(name: str, value: Any) -> bool:
    """Return a field that is true or false.

    Raises:
        CheckpointError: The value has the wrong type, or is out of range.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise damaged(name, value, "true or false")


def items(name: str, value: Any) -> Sequence[Any]:
    """Return a field that is a list.

    Raises:
        CheckpointError: The value has the wrong type, or is out of range.
    """
    if not isinstance(value, list | tuple):
        raise damaged(name, value, "a list")
    return value


def below(name: str, index: int, count: int) -> int:
    """Return an index, which must be below a count.

    Raises:
        CheckpointError: The index is out of range.
    """
    if index >= count:
        raise damaged(name, [index, count], "an index and a larger count")
    return index


def damaged(name: str, value: object, expected: str) -> CheckpointError:
    """Make the error for a field that is missing, or whose value is not possible."""
    found = f"the state has no {name!r}" if value is None else f"the state's {name!r} is {value!r:.200}"
    return CheckpointError(f"{found}; expected {expected}", saved=value)


def refused(state: Mapping[str, Any], error: ConfigError) -> CheckpointError:
    """Make the error for the size or the partition of a state, which the timeline refuses."""
    asked = {name: state[name] for name in ("minibatch_size", "partition", "balanced", "global") if name in state}
    return CheckpointError(f"the state's last read is not possible here: {error}", saved=asked)

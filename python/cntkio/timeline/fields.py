"""The checks of the fields of a state: a field that is missing, has the wrong type or is out of range is `damaged`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cntkio.arguments import is_whole
from cntkio.errors import CheckpointError
from cntkio.timeline.window import LARGEST_WORD


def whole(name: str, value: Any, largest: int = LARGEST_WORD, *, least: int = 0) -> int:
    """Return a field that is a whole number.

    Example:
        >>> whole("position", 2.5)
        Traceback (most recent call last):
        cntkio.errors.CheckpointError: the state's 'position' is 2.5; expected a whole number from 0 to 2^64 - 1
    """
    # JSON has true and false, which Python also takes as the numbers 1 and 0.
    if is_whole(value) and least <= value <= largest:
        return int(value)
    most = {2**62: "2^62", 2**63 - 1: "2^63 - 1", LARGEST_WORD: "2^64 - 1"}.get(largest, str(largest))
    raise damaged(name, value, f"a whole number from {least} to {most}")


def wholes(name: str, value: Any, least: Sequence[int]) -> list[int]:
    """Return a field that is a list of as many whole numbers as `least` has, each at least its entry and below 2^63."""
    values = items(name, value)
    if len(values) != len(least):
        raise damaged(name, value, f"{len(least)} whole numbers")
    return [whole(name, number, 2**63 - 1, least=smallest) for number, smallest in zip(values, least, strict=True)]


def items(name: str, value: Any) -> Sequence[Any]:
    """Return a field that is a list."""
    if not isinstance(value, list | tuple):
        raise damaged(name, value, "a list")
    return value


def below(name: str, index: int, count: int) -> int:
    """Return an index, which must be below a count."""
    if index >= count:
        raise damaged(name, [index, count], "an index and a larger count")
    return index


def is_same(saved: Any, current: Any) -> bool:
    """Compare values of JSON: 1 and True differ. A value that cannot be compared, such as an array, differs."""
    try:
        return bool(saved == current) and isinstance(saved, bool) == isinstance(current, bool)
    except (TypeError, ValueError):
        return False


def damaged(name: str, value: object, expected: str) -> CheckpointError:
    """Make the error for a field that is missing, or whose value is not possible."""
    found = f"the state has no {name!r}" if value is None else f"the state's {name!r} is {value!r:.200}"
    return CheckpointError(f"{found}; expected {expected}", saved=value)

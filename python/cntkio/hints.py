"""Hints of error messages: the known name that is nearest to an unknown one."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

_C = TypeVar("_C", bound=Callable[..., Any])


def near_name(name: object, known: Iterable[str]) -> str | None:
    """Return the known name that is nearest to an unknown one, if any is near; upper and lower case are the same.

    Example:
        >>> near_name("lenghts", ["lengths", "species"])
        'lengths'
        >>> near_name("x", ["lengths", "species"])
    """
    names = {folded(known_name): known_name for known_name in known}
    nearest = difflib.get_close_matches(folded(str(name)), names, n=1)
    return names[nearest[0]] if nearest else None


def folded(name: str) -> str:
    """Return a name as it is compared with others: without upper case and underscores, as CNTK's keys and ours differ.

    Example:
        >>> folded("chunkSizeInBytes") == folded("chunk_size_in_bytes")
        True
    """
    return name.lower().replace("_", "")


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known name, if any is near.

    Example:
        >>> "no stream 'lenghts'" + did_you_mean("lenghts", ["lengths", "species"])
        "no stream 'lenghts'; did you mean 'lengths'?"
    """
    nearest = near_name(name, known)
    return f"; did you mean {nearest!r}?" if nearest else ""


def suggests_keywords(function: _C) -> _C:
    """Make a class or a function suggest the nearest keyword when it is called with an unknown one.

    Example:
        >>> @suggests_keywords
        ... class Source:
        ...     def __init__(self, max_sweeps=1): ...
        >>> Source(max_sweep=2)
        Traceback (most recent call last):
        TypeError: Source has no keyword 'max_sweep'; did you mean 'max_sweeps'?
    """
    plain: Any = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    name = function.__name__
    known = [parameter for parameter in inspect.signature(plain).parameters if parameter != "self"]

    @functools.wraps(plain)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        for keyword in keywords:
            if keyword not in known:
                hint = did_you_mean(keyword, known) or f"; it has: {', '.join(known)}"
                raise TypeError(f"{name} has no keyword {keyword!r}{hint}")
        return plain(*arguments, **keywords)

    if not isinstance(function, type):
        return checked  # type: ignore[return-value]
    function.__init__ = checked  # type: ignore[misc]
    return function

"""Checks of the types of arguments: an argument of the wrong type is refused, never converted."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from cntkio.errors import ConfigError


def flag(name: str, value: Any) -> bool:
    """Return an argument that is True or False, of Python or NumPy.

    Raises:
        ConfigError: The argument has the wrong type or value.

    Example:
        >>> flag("randomize", "False")
        Traceback (most recent call last):
        cntkio.errors.ConfigError: randomize is 'False'; expected True or False
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise ConfigError(f"{name} is {value!r}; expected True or False", key=name)


def flag_or_word(name: str, value: Any, word: str) -> bool | str:
    """Return an argument that is True, False or a certain word.

    Raises:
        ConfigError: The argument has the wrong type or value.

    Example:
        >>> flag_or_word("cache_index", "yes", "verify")
        Traceback (most recent call last):
        cntkio.errors.ConfigError: cache_index is 'yes'; expected True, False or 'verify'
    """
    if isinstance(value, str | bool | np.bool_) and value in (True, False, word):
        return word if isinstance(value, str) else bool(value)
    raise ConfigError(f"{name} is {value!r}; expected True, False or {word!r}", key=name)


def check_word(name: str, value: Any, *words: str) -> None:
    """Check an argument that is one of several words.

    Raises:
        ConfigError: The argument has another value.

    Example:
        >>> check_word("deal", "size", "length", "area", "chunk")
        Traceback (most recent call last):
        cntkio.errors.ConfigError: deal is 'size'; expected 'length', 'area' or 'chunk'
    """
    if value not in words:
        *others, last = map(repr, words)
        raise ConfigError(f"{name} is {value!r}; expected {', '.join(others)} or {last}", key=name)


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """Return an argument that is a whole number, of Python or NumPy.

    Args:
        name: Name of the argument.
        value: Its value.
        least: The least allowed number; None: any number is allowed.

    Raises:
        ConfigError: The argument has the wrong type, or is too small.

    Example:
        >>> whole_number("max_errors", 1.5)
        Traceback (most recent call last):
        cntkio.errors.ConfigError: max_errors is 1.5; expected a whole number
    """
    if not _is_whole(value):
        raise ConfigError(f"{name} is {value!r}; expected a whole number", key=name)
    if least is not None and value < least:
        raise ConfigError(f"{name} is {value}; expected at least {least}", key=name)
    return int(value)


def sizes(name: str, value: Any) -> tuple[int, ...]:
    """Return the sizes of a shape: a whole number, or an iterable of whole numbers.

    Raises:
        ConfigError: The argument has the wrong type or value.

    Example:
        >>> sizes("shape", np.int64(943)), sizes("shape", (2, 3))
        ((943,), (2, 3))
        >>> sizes("shape", "943")
        Traceback (most recent call last):
        cntkio.errors.ConfigError: shape is '943'; expected a whole number, or a tuple of whole numbers
    """
    if _is_whole(value):
        return (int(value),)
    items: Any = None
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        with contextlib.suppress(TypeError):  # an array without axes
            items = tuple(value)
    if items is None or not all(map(_is_whole, items)):
        raise ConfigError(f"{name} is {value!r}; expected a whole number, or a tuple of whole numbers", key=name)
    return tuple(map(int, items))


def path_text(name: str, value: Any) -> str:
    """Return a path as text: a text, bytes, or an object of `os.PathLike`.

    Raises:
        ConfigError: The argument has the wrong type or value.

    Example:
        >>> path_text("filename", None)
        Traceback (most recent call last):
        cntkio.errors.ConfigError: filename is None; expected a path
    """
    if isinstance(value, str | bytes | os.PathLike):
        return os.fsdecode(value)
    raise ConfigError(f"{name} is {_brief(value)}; expected a path", key=name)


def path_texts(name: str, value: Any) -> str | list[str]:
    """Return a path, or a sequence of paths, as text.

    Raises:
        ConfigError: The argument has the wrong type or value.

    Example:
        >>> path_texts("filename", ("a.ctf", b"b.ctf")), path_texts("filename", "*.ctf")
        (['a.ctf', 'b.ctf'], '*.ctf')
    """
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [path_text(f"{name}[{index}]", path) for index, path in enumerate(value)]
    return path_text(name, value)


def float_type(name: str, value: Any, *, or_whole: bool = False) -> np.dtype[Any]:
    """Return float32 or float64, or with `or_whole` also int32 or int64, as a NumPy type.

    Raises:
        ConfigError: The argument has the wrong type or value.

    Example:
        >>> float_type("dtype", "flaot32")
        Traceback (most recent call last):
        cntkio.errors.ConfigError: dtype is 'flaot32'; expected float32 or float64
    """
    found: np.dtype[Any] | None = None
    with contextlib.suppress(TypeError):
        found = np.dtype(value)
    if found not in (np.float32, np.float64) and not (or_whole and found in (np.int32, np.int64)):
        shown = repr(value) if found is None else found
        expected = "float32, float64, int32 or int64" if or_whole else "float32 or float64"
        raise ConfigError(f"{name} is {shown}; expected {expected}", key=name)
    return np.dtype(found)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 and "\n" not in text else f"of the type {type(value).__name__}"


def check_fields(options: Any, words: Mapping[str, str] = MappingProxyType({})) -> None:
    """Check the fields of a dataclass whose defaults are flags or whole numbers.

    Args:
        options: The dataclass.
        words: Flags that may also be a certain word.

    Raises:
        ConfigError: A field has the wrong type.
    """
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.name in words:
            value = flag_or_word(field.name, value, words[field.name])
        elif isinstance(field.default, bool):
            value = flag(field.name, value)
        elif isinstance(field.default, int):
            value = whole_number(field.name, value)
        setattr(options, field.name, value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)

"""Deserializers of other packages, which may implement only a part of the contract.

The only required method is ``open()``, which returns a `Corpus`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from typing import Any

from cntkio.errors import ConfigError
from cntkio.formats.contract import OPENING, Corpus, Deserializer, Opening
from cntkio.formats.detect import KINDS, detect


def as_deserializer(described: Any) -> Deserializer:
    """Return a deserializer as it is, or wrap an object that has only `open`.

    Raises:
        ConfigError: The object is a path, or has no method `open`.

    Example:
        >>> from cntkio.formats.ctf import CTFDeserializer
        >>> from cntkio.streams import StreamDef, StreamDefs
        >>> deserializer = CTFDeserializer("a.ctf", StreamDefs(x=StreamDef(field="x", shape=2)))
        >>> as_deserializer(deserializer) is deserializer
        True
        >>> as_deserializer("a.ctf")
        Traceback (most recent call last):
        cntkio.errors.ConfigError: 'a.ctf' is a path; expected a deserializer, such as CTFDeserializer('a.ctf', ...
    """
    if isinstance(described, str | os.PathLike):
        raise ConfigError(f"{described!r} is a path; expected {_advice(os.fspath(described))}", key="deserializers")
    if not can_be_opened(described) or isinstance(described, type):
        text = repr(described)
        shown = text if len(text) <= 100 and "\n" not in text else f"an object of {type(described)}"
        raise ConfigError(
            f"{shown} is not a deserializer; expected one such as CTFDeserializer(path, StreamDefs(...))",
            key="deserializers",
        )
    is_complete = hasattr(described, "parts") and hasattr(described, "has_text_keys")
    if is_complete and "opening" in _keywords(described.open):
        deserializer: Deserializer = described
        return deserializer
    return _ForeignDeserializer(described)


def can_be_opened(described: Any) -> bool:
    """Return whether an object has a method `open`, as deserializers have, and also paths."""
    return callable(getattr(described, "open", None))


def _advice(path: str) -> str:
    """Return advice on a path in place of a deserializer."""
    try:
        kind = detect(path)
    except OSError:
        kind = KINDS["ctf"]
    if kind.deserializer is None:
        return f"a deserializer; this is {kind.noun}: {kind.use(path)}"
    return f"a deserializer, such as {kind.call.format(path=path)}"


class _ForeignDeserializer:
    """The whole contract for an object with `open` and perhaps some of the other methods."""

    def __init__(self, described: Any) -> None:
        self._described = described
        self.has_text_keys = bool(getattr(described, "has_text_keys", False))

    def parts(self) -> Sequence[Deserializer]:
        parts = getattr(self._described, "parts", None)
        return (self,) if parts is None else tuple(as_deserializer(part) for part in parts())

    def open(self, opening: Opening = OPENING) -> Corpus:
        known = _keywords(self._described.open)
        options = {"opening": opening, "text_keys": opening.text_keys, "ahead": opening.ahead}
        corpus: Corpus = self._described.open(**{key: value for key, value in options.items() if key in known})
        return corpus


def _keywords(method: Any) -> set[str]:
    """Return the names of a method's parameters."""
    return set(inspect.signature(method).parameters)

"""Python source text of calls and values, as a person would write it."""

from __future__ import annotations

from typing import Any

import numpy as np

from cntkio.streams import StreamDefs, stream_def_text

_WIDEST = 80


def call_text(name: str, arguments: list[str], indent: int | None) -> str:
    """Return a call in one line or, if it is wide, with one argument a line.

    Args:
        name: The function.
        arguments: Its arguments as Python.
        indent: Number of blanks before the call; None: write the whole call in one line.

    Example:
        >>> call_text("f", ["1", "x=2"], 0)
        'f(1, x=2)'
    """
    if indent is None or (not any("\n" in argument for argument in arguments) and sum(map(len, arguments)) < _WIDEST):
        return f"{name}({', '.join(arguments)})"
    blanks = " " * (indent + 4)
    return f"{name}(\n" + "".join(f"{blanks}{argument},\n" for argument in arguments) + " " * indent + ")"


def value_text(value: Any, indent: int | None) -> str:
    """Return Python that makes a value again. `indent` as for `call_text`, for an argument of that call."""
    if isinstance(value, StreamDefs):
        texts = {name: stream_def_text(stream) for name, stream in value.items()}
        if all(name.isidentifier() and name != "self" for name in texts):
            arguments = [f"{name}={text}" for name, text in texts.items()]
        else:
            arguments = ["{" + ", ".join(f"{name!r}: {text}" for name, text in texts.items()) + "}"]
        return call_text("StreamDefs", arguments, None if indent is None else indent + 4)
    if isinstance(value, np.dtype):
        return repr(str(value))
    return repr(value)

"""What of BrainScript occurs in reader sections, and how the rest is refused. (docs/configuration.md, "BrainScript")

A reader "in BrainScript form" is a record in curly braces; that is the classic language with other brackets, and
`cntkio.config.classic` reads it. Expressions never worked there. This module only recognises one where a section or
a plain value should stand, and says what to write.
"""

from __future__ import annotations

import re

_PLUGIN = re.compile(r"new\s+\w+\s*[\[{]")


def explained(value: str) -> str:
    """What is wrong with a text that should be a section.

    Example:
        >>> explained("true")
        'the bracket must open on the line of its name'
    """
    if _PLUGIN.match(value):
        name = " ".join(re.split(r"[\s\[{]+", value)[:2])
        return (
            f"{name!r} makes a reader in pure BrainScript, which only the oldest readers of CNTK could; "
            "write [ readerType = ... ] in its place"
        )
    if value == "true":
        return "the bracket must open on the line of its name"
    return f"it is {value[:40]!r}; expected [ ... ]"

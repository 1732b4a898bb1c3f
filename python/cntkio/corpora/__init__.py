"""The corpora in files of every format: the kinds of files, their deserializers, and the opened corpora.

::

    names ── inputs ──> Input ── described(Reading) ──> Described ── open, parts, writable

    reading     files that are read in place, unpacked copies of others, and a function for each kind of file

No other room knows how a file of a kind is opened, or which options it takes.

Invariant: an option that no file of a call takes is refused.
"""

from cntkio.corpora.reading import (
    CHUNK_SIZE,
    IN_ORDER,
    STANDARD_INPUT,
    SURVEYED_AT_ONCE,
    Described,
    Input,
    Reading,
    described,
    input_of,
    inputs,
)

__all__ = [
    "CHUNK_SIZE", "IN_ORDER", "STANDARD_INPUT", "SURVEYED_AT_ONCE", "Described", "Input", "Reading", "described",
    "input_of", "inputs",
]  # fmt: skip

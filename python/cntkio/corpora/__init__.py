"""The corpora in files of every format: the kinds of files, their deserializers, and the opened corpora.

::

    names ── inputs ──> Input ── described(ReadingOptions) ──> Described ── open, parts, writable

    reading     files that are read in place, unpacked copies of others, and what their formats say about them

Invariant: an option that no file of a call takes is refused.
"""

from cntkio.corpora.reading import (
    IN_ORDER,
    STANDARD_INPUT,
    SURVEYED_AT_ONCE,
    Described,
    Input,
    described,
    input_of,
    inputs,
    require_takers,
)
from cntkio.formats.contract import CHUNK_SIZE, ReadingOptions

__all__ = [
    "CHUNK_SIZE", "IN_ORDER", "STANDARD_INPUT", "SURVEYED_AT_ONCE", "Described", "Input", "ReadingOptions", "described",
    "input_of", "inputs", "require_takers",
]  # fmt: skip

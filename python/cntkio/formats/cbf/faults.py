"""Faults of a chunk that are found while it is read or written, and the words for them."""

from __future__ import annotations

from typing import NamedTuple

# The names and the messages, in the order of the core's `Kind`.
_NAMES = (
    "length list beyond the chunk", "count beyond the chunk", "dense samples beyond the chunk",
    "sparse samples beyond the chunk", "negative count", "negative sample size", "wrong sum of values",
    "index out of range", "columns begin late", "descending columns", "column beyond the values", "negative row",
    "descending samples", "more samples than the table says", "several samples in a dense sequence", "row too large",
    "too many values together",
)  # fmt: skip
_WORDS = (
    "the length list of {sequences} sequences takes {found} bytes, but {limit} are left of the chunk",
    "a count takes {found} bytes, but {limit} are left of the chunk",
    "dense samples of {dim} values take {found} bytes, but {limit} are left of the chunk",
    "values, indices and counts take {found} bytes, but {limit} are left of the chunk",
    "{found} values; expected 0 or more",
    "a sample of {found} values; expected 0 or more",
    "the samples have {found} values together, but the sequence has {limit}",
    "index {found}, but the dimension is {limit}; expected 0 to {last}",
    "the first column starts at value {found}; expected 0",
    "a column ends at value {found}, before it starts, at {limit}",
    "a column ends at value {found}, but the chunk has {limit}",
    "row {found}; expected 0 or more",
    "a value of sample {found} after one of sample {limit}; expected ascending samples",
    "at least {found} samples, but the table of chunks and the size of the file allow for {limit}",
    "{found} samples; the documented layout has room for exactly 1 in a dense sequence",
    "row {found} (sample number times dimension plus index); the documented layout ends at {limit}",
    "{found} values together; the format has room for {limit}",
)


class Fault(NamedTuple):
    """A fault that the core found in a chunk.

    Attributes:
        kind: Its index in the words.
        offset: Its byte, counted from the beginning of the chunk.
        stream: Its stream, if it has one.
        sequence: Its sequence, counted from the first of the chunk, if it has one.
        found: A number that was found; its meaning depends on the kind.
        limit: The number with which it was compared.
    """

    kind: int
    offset: int
    stream: int | None
    sequence: int | None
    found: int
    limit: int

    @property
    def name(self) -> str:
        """Name of its kind."""
        return _NAMES[self.kind]

    def text(self, dim: int = 0, num_sequences: int = 0) -> str:
        """Return the message; `dim` is the stream's dimension, `num_sequences` the chunk's number of sequences."""
        return _WORDS[self.kind].format(
            found=self.found, limit=self.limit, last=self.limit - 1, dim=dim, sequences=num_sequences
        )

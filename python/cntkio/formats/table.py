"""Tables of sequences and chunks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio.formats.columns import Keys, Lengths, stored_keys, stored_lengths


@dataclasses.dataclass(frozen=True, eq=False)
class SequenceTable:
    """The sequences of a corpus in the order of its chunks.

    Attributes:
        keys: Key of each sequence: uint64, or text.
        lengths: Samples that each sequence counts for: uint32, or fewer bits if all lengths fit.
        chunk_starts: First sequence of each chunk and, last, the number of sequences, int64.
        options: The deserializer's options that the table depends on, for the messages of checkpoints; JSON-able.
    """

    keys: Keys
    lengths: Lengths
    chunk_starts: npt.NDArray[np.int64]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict, kw_only=True)

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.lengths)

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return len(self.chunk_starts) - 1

    def content(self) -> list[npt.NDArray[Any]]:
        """Return arrays that determine the table, for check sums."""
        return [stored_keys(self.keys), stored_lengths(self.lengths), self.chunk_starts]

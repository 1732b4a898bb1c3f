"""Tables of sequences and chunks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from cntkio.formats.columns import Keys, Lengths, span_at, stored_keys, stored_lengths

NamedFiles: TypeAlias = tuple[npt.NDArray[np.str_], npt.NDArray[np.int64]]
"""The files of some sequences: their names, and the index of each sequence's file among these names."""


def key_value(key: Any) -> int | str:
    """Return a key of a table as the number or the text that messages show.

    Example:
        >>> key_value(np.bytes_(b"u1")), key_value(np.uint64(7))
        ('u1', 7)
    """
    if isinstance(key, bytes):
        return key.decode(errors="replace")
    return key if isinstance(key, str) else int(key)


def key_text(key: Any) -> str:
    """Return a key of a table as text."""
    return str(key_value(key))


class Files(Protocol):
    """The files of a corpus that has several."""

    def of(self, sequences: npt.NDArray[np.int64]) -> NamedFiles:
        """Return the files of some sequences."""


class ListedFiles:
    """Files in any order: each sequence has the index of its file.

    Args:
        paths: The files.
        files: Index of each sequence's file in `paths`.
    """

    def __init__(self, paths: Sequence[str | bytes], files: npt.NDArray[np.integer[Any]]) -> None:
        self._paths, self._files = paths, files

    def of(self, sequences: npt.NDArray[np.int64]) -> NamedFiles:
        """Return the files of some sequences."""
        files, which = np.unique(self._files[sequences], return_inverse=True)
        return np.array([os.fsdecode(self._paths[file]) for file in files.tolist()], np.str_), which


class FileSpans:
    """Files whose sequences come one after the other.

    Args:
        paths: The files.
        starts: First sequence of each file and, last, the number of sequences.

    Example:
        >>> names, which = FileSpans(["a.ctf", "b.ctf"], np.array([0, 2, 5])).of(np.array([1, 4, 0]))
        >>> names[which].tolist()
        ['a.ctf', 'b.ctf', 'a.ctf']
    """

    def __init__(self, paths: Sequence[str], starts: npt.NDArray[np.int64]) -> None:
        self._paths, self._starts = paths, starts

    def of(self, sequences: npt.NDArray[np.int64]) -> NamedFiles:
        """Return the files of some sequences."""
        return ListedFiles(self._paths, span_at(self._starts, sequences)).of(np.arange(len(sequences)))


@dataclasses.dataclass(frozen=True, eq=False)
class SequenceTable:
    """The sequences of a corpus in the order of its chunks.

    Attributes:
        keys: Key of each sequence: uint64, or text.
        lengths: Number of samples that each sequence counts for: uint32, or fewer bits if all lengths fit.
        chunk_starts: First sequence of each chunk and, last, the number of sequences, int64.
        options: The deserializer's options that the table depends on, for the messages of checkpoints; JSON-able.
        files: The files, if there are several.
    """

    keys: Keys
    lengths: Lengths
    chunk_starts: npt.NDArray[np.int64]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict, kw_only=True)
    files: Files | None = dataclasses.field(default=None, kw_only=True)

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.lengths)

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return len(self.chunk_starts) - 1

    def bounds_of(self, chunk_id: int) -> tuple[int, int]:
        """Return the first sequence of a chunk, and the sequence after its last."""
        first, last = self.chunk_starts[chunk_id : chunk_id + 2].tolist()
        return first, last

    def content(self) -> list[npt.NDArray[Any]]:
        """Return arrays that determine the table, for checksums."""
        return [stored_keys(self.keys), stored_lengths(self.lengths), self.chunk_starts]


NO_SEQUENCES = SequenceTable(np.empty(0, np.uint64), np.empty(0, np.uint8), np.zeros(1, np.int64))
"""A table without sequences."""

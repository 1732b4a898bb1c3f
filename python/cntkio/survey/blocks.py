"""The chunks of a corpus as arrays, in order, loaded ahead of need."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cached_property, reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio.formats.contract import Corpus, Loaded
from cntkio.minibatch import MinibatchData
from cntkio.pieces import Progress
from cntkio.pieces.contract import Mend, chunks_in_order, in_arrays
from cntkio.streams import StreamInformation


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """The sequences of a chunk, or some of them.

    Attributes:
        infos: The streams.
        sequences: The index of each sequence in the corpus, int64.
        keys: Key of each sequence.
        loaded: The chunk as it was loaded, with the findings of its format.
    """

    infos: Sequence[StreamInformation]
    sequences: npt.NDArray[np.int64]
    keys: npt.NDArray[Any]
    loaded: Loaded

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.keys)

    @cached_property
    def streams(self) -> dict[str, MinibatchData]:
        """The data of each stream, by name. The arrays are made on first use."""
        return in_arrays(self.infos, self.num_sequences, [self.loaded.chunk], end_of_sweep=False)

    @cached_property
    def longest(self) -> npt.NDArray[np.uint32]:
        """The number of samples of each sequence in its longest stream."""
        return reduce(np.maximum, self.lengths)

    @cached_property
    def lengths(self) -> list[npt.NDArray[np.uint32]]:
        """The number of samples of each sequence, for each stream."""
        return [self.loaded.chunk.lengths(index) for index in range(len(self.infos))]


def blocks(corpus: Corpus, mend: Mend | None = None, progress: Progress | None = None) -> Iterator[Block]:
    """Yield all chunks of an opened corpus as arrays, their errors counted.

    Args:
        corpus: The corpus.
        mend: Called with each chunk that cannot be loaded; the other chunks follow. None: the error is raised.
        progress: Called after each block.

    Raises:
        FormatError: A chunk breaks the format, and `mend` is None.
        OSError: The file cannot be read, and `mend` is None.

    Example:
        >>> from cntkio import CTFDeserializer, infer_streams
        >>> path = "examples/iris/iris.ctf"
        >>> [block.num_sequences for block in blocks(CTFDeserializer(path, infer_streams(path)).open())]
        [150]
    """
    num_done = 0
    for loaded in chunks_in_order(corpus, mend=mend):
        if corpus.index.joins == "alone":  # the table has no sequences, and the findings are their lengths
            sequences = np.arange(num_done, num_done + len(loaded.findings))
            keys: npt.NDArray[Any] = sequences.astype(np.uint64)
        else:
            first, last = corpus.table.bounds_of(loaded.chunk_id)
            sequences = (
                np.arange(first, last) if loaded.sequences is None else first + loaded.sequences.astype(np.int64)
            )
            keys = corpus.table.keys[sequences] if loaded.sequences is not None else corpus.table.keys[first:last]
        num_done += len(sequences)
        block = Block(corpus.streams, sequences, keys, loaded)
        del loaded  # the caller decides how long the chunk is in memory
        yield block
        del block
        if progress is not None:
            progress(num_done, max(num_done, corpus.table.num_sequences))

"""The chunks of a corpus as arrays, in order, loaded ahead of need."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio.convert import Progress
from cntkio.convert.pieces import chunks_in_order, in_arrays
from cntkio.errors import FormatError
from cntkio.formats.contract import Corpus, Loaded
from cntkio.minibatch import MinibatchData
from cntkio.streams import StreamInformation


class Outline(NamedTuple):
    """Figures of the samples of a stream in a block.

    Attributes:
        num_samples: Number of samples.
        lowest: The lowest finite value; infinity if there is none.
        highest: The highest finite value; negative infinity if there is none.
        is_finite: Whether all values are finite.
        num_one_hot: Samples with a single 1 and nothing else; 0 if the caller does not ask for them.
    """

    num_samples: int
    lowest: float
    highest: float
    is_finite: bool
    num_one_hot: int


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """The sequences of a chunk.

    Attributes:
        infos: The streams.
        first_sequence: The index of its first sequence in the corpus.
        keys: Key of each sequence.
        loaded: The chunk as it was loaded, with the findings of its format.
    """

    infos: Sequence[StreamInformation]
    first_sequence: int
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

    @property
    def lengths(self) -> list[npt.NDArray[np.uint32]]:
        """The number of samples of each sequence, for each stream."""
        return [self.loaded.chunk.lengths(index) for index in range(len(self.infos))]

    def outline(self, stream_index: int, *, counts_one_hot: bool) -> Outline | None:
        """Return figures of a stream without making arrays; None if the chunk is a view of a file."""
        found = self.loaded.chunk.outline(stream_index, counts_one_hot)
        return None if found is None else Outline(*found)


def blocks(
    corpus: Corpus, refuse: Callable[[FormatError], None] | None = None, progress: Progress | None = None
) -> Iterator[Block]:
    """Yield all chunks of an opened corpus as arrays, their errors counted.

    Args:
        corpus: The corpus.
        refuse: Called with the error of each chunk that breaks the format; the other chunks follow. None: the error is
            raised.
        progress: Called after each block.

    Raises:
        FormatError: A chunk breaks the format, and `refuse` is None.
        OSError: The file cannot be read.

    Example:
        >>> from cntkio import CTFDeserializer, infer_streams
        >>> path = "examples/iris/iris.ctf"
        >>> [block.num_sequences for block in blocks(CTFDeserializer(path, infer_streams(path)).open())]
        [150]
    """
    num_done = 0
    for loaded in chunks_in_order(corpus, refuse=refuse):
        first, last = corpus.table.bounds_of(loaded.chunk_id)
        keys = corpus.table.keys[first:last]
        if corpus.joins == "alone":  # the table has no sequences, and the findings are their lengths
            first, last = num_done, num_done + len(loaded.findings)
            keys = np.arange(first, last, dtype=np.uint64)
        num_done = last
        yield Block(corpus.streams, first, keys, loaded)
        if progress is not None:
            progress(last, max(last, corpus.table.num_sequences))

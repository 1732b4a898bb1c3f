"""The chunks of a corpus as arrays, in order, loaded ahead of need."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy.typing as npt

from cntkio import _core
from cntkio._threads import num_threads
from cntkio.errors import FormatError
from cntkio.formats.contract import Corpus, Loaded
from cntkio.minibatch import MinibatchData
from cntkio.streams import packed_columns

_NUM_LOADERS = 2


class Block(NamedTuple):
    """The sequences of a chunk.

    Attributes:
        chunk_id: The chunk.
        first_sequence: The index of its first sequence in the corpus.
        keys: Key of each sequence.
        streams: The data of each stream, by name.
        loaded: The chunk as it was loaded, with the findings of its format.
    """

    chunk_id: int
    first_sequence: int
    keys: npt.NDArray[Any]
    streams: dict[str, MinibatchData]
    loaded: Loaded

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.keys)


def blocks(corpus: Corpus, refuse: Callable[[int, FormatError], None] | None = None) -> Iterator[Block]:
    """Yield all chunks of an opened corpus as arrays, their errors counted.

    Args:
        corpus: The corpus.
        refuse: Called with each chunk that breaks the format, and the error; the others follow. None: raise the error.

    Raises:
        FormatError: A chunk breaks the format, and `refuse` is None.
        OSError: The file cannot be read.

    Example:
        >>> from cntkio import CTFDeserializer, infer_streams
        >>> path = "examples/iris/iris.ctf"
        >>> [block.num_sequences for block in blocks(CTFDeserializer(path, infer_streams(path)).open())]
        [150]
    """
    parsed = corpus.take_parsed()
    coming: deque[Future[Loaded]] = deque()

    def load(chunk_id: int) -> Loaded:
        return parsed.pop(chunk_id, None) or corpus.load(chunk_id)

    with ThreadPoolExecutor(_NUM_LOADERS, "cntkio-load") as loaders:
        try:
            for chunk_id in range(corpus.table.num_chunks + _NUM_LOADERS):
                if chunk_id < corpus.table.num_chunks:
                    coming.append(loaders.submit(load, chunk_id))
                if chunk_id < _NUM_LOADERS:
                    continue
                try:
                    loaded = coming.popleft().result()
                    corpus.account_for(loaded)
                except FormatError as error:
                    if refuse is None:
                        raise
                    refuse(chunk_id - _NUM_LOADERS, error)
                    continue
                yield _block(corpus, loaded)
        finally:
            for future in coming:
                future.cancel()


def _block(corpus: Corpus, loaded: Loaded) -> Block:
    first, last = corpus.table.chunk_starts[loaded.chunk_id : loaded.chunk_id + 2].tolist()
    whole = _core.Whole(packed_columns(corpus.streams), last - first)
    whole.append(loaded.chunk, num_threads())
    packed = whole.finish()
    streams = {
        info.name: MinibatchData.of(info, packed, index, end_of_sweep=False)
        for index, info in enumerate(corpus.streams)
    }
    return Block(loaded.chunk_id, first, corpus.table.keys[first:last], streams, loaded)

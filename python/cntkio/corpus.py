"""Whole corpora into arrays, for those who want the data and not a timeline."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from cntkio import _core
from cntkio._threads import num_threads
from cntkio.formats.contract import Ahead, Corpus, Loaded
from cntkio.formats.ctf import CTFDeserializer, infer_streams
from cntkio.minibatch import Minibatch, MinibatchData
from cntkio.streams import StreamDefs, StreamInformation

_NUM_LOADERS = 2
# Parsed data that are in memory beside the arrays, at most: what is parsed in the first pass is not read again.
_AHEAD = Ahead(128 << 20)


def read_ctf(
    path: str | os.PathLike[str], streams: StreamDefs | Mapping[str, Any] | None = None, **options: Any
) -> Minibatch:
    """Read a whole file in the CNTK text format into arrays, in the order of the file.

    Args:
        path: The file.
        streams: What to read; None: all that `infer_streams` finds, which reads the file once more.
        options: As for `CTFDeserializer`.

    Returns:
        A `Minibatch` of all sequences: by stream name `values`, `offsets` and, for sparse streams, `indices` and
        `indptr`; and `keys_of_sequences`. (docs/formats/ctf.md)

    Raises:
        OSError: The file cannot be read.
        FormatError: The file breaks the format.
        CorpusError: No sequence is left to read.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.ctf")
        >>> _ = path.write_text("7 |word 3:1 |tag 1 0\\n7 |word 5:1 |tag 0 1\\n9 |word 3:1 |tag 1 0\\n")
        >>> corpus = read_ctf(path)
        >>> corpus.keys_of_sequences, corpus["word"].offsets, corpus["word"].indices
        (array([7, 9], dtype=uint64), array([0, 2, 3]), array([3, 5, 3], dtype=int32))
    """
    definitions = infer_streams(path) if streams is None else StreamDefs(streams)
    corpus = CTFDeserializer(os.fspath(path), definitions, **options).open(ahead=_AHEAD)
    try:
        return _whole(corpus)
    finally:
        corpus.close()


def _whole(corpus: Corpus) -> Minibatch:
    """All chunks, one behind the other; few are in memory at a time beside what they become."""
    table = corpus.table
    layout = [(info.stream_id, info.is_sparse, info.dtype == np.float64) for info in corpus.streams]
    whole = _core.Whole(layout, table.num_sequences)
    parsed = corpus.take_parsed()
    coming: deque[Future[Loaded]] = deque()
    with ThreadPoolExecutor(_NUM_LOADERS) as loaders:
        for number in range(table.num_chunks + _NUM_LOADERS):
            if number < table.num_chunks:
                coming.append(loaders.submit(lambda number: parsed.pop(number, None) or corpus.load(number), number))
            if number >= _NUM_LOADERS:
                loaded = coming.popleft().result()
                corpus.account_for(loaded)
                whole.append(loaded.chunk, num_threads())
                del loaded  # its memory is for the next
    packed = whole.finish()
    data: dict[StreamInformation, MinibatchData] = {
        info: MinibatchData.of(info, packed, number, end_of_sweep=True) for number, info in enumerate(corpus.streams)
    }
    return Minibatch(data, lambda: table.keys)

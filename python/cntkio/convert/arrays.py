"""Whole corpora as arrays, for programs that need the data without a timeline."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from cntkio import _core
from cntkio._threads import num_threads
from cntkio.convert import tuning
from cntkio.convert.loading import chunks_in_order
from cntkio.formats.contract import Ahead, Corpus
from cntkio.formats.ctf import CTFDeserializer, has_other_streams, infer_streams
from cntkio.minibatch import Minibatch, MinibatchData
from cntkio.streams import StreamDefs, packed_columns


def read_ctf(
    path: str | os.PathLike[str], streams: StreamDefs | Mapping[str, Any] | None = None, **options: Any
) -> Minibatch:
    """Read a whole file in the CNTK text format into arrays, in the order of the file.

    Args:
        path: The file.
        streams: The streams to read; None: all that `infer_streams` finds, which reads the file once more. If the file
            has other streams, too, a sequence may lack these, and is empty.
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
    options = {"subset": has_other_streams(path, definitions), **options}
    deserializer = CTFDeserializer(os.fspath(path), definitions, **options)
    with closing(deserializer.open(ahead=Ahead(tuning.PARSED_AHEAD))) as corpus:
        return read_corpus(corpus)


def read_corpus(corpus: Corpus) -> Minibatch:
    """Read an opened corpus into arrays: its chunks one after the other, of which few are in memory at a time.

    Raises:
        FormatError: A chunk breaks the format.
        OSError: The file cannot be read.
    """
    whole = _core.Whole(packed_columns(corpus.streams), corpus.table.num_sequences)
    for loaded in chunks_in_order(corpus):
        whole.append(loaded.chunk, num_threads())
        del loaded  # so that the next chunk can use its memory
    packed = whole.finish()
    data = {
        info.name: MinibatchData.of(info, packed, index, end_of_sweep=True) for index, info in enumerate(corpus.streams)
    }
    keys = corpus.table.keys
    return Minibatch(data, lambda: keys)

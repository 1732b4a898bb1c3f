"""Files in the CNTK binary format from anything that can be written. (docs/convert.md, "Arrays to text or binary")"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio.convert.pieces import AnyPath, Pieces, Progress
from cntkio.convert.writables import pieces_of
from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.cbf import CBFWriter, Layout
from cntkio.hints import did_you_mean, suggests_keywords
from cntkio.streams import StreamInformation


@suggests_keywords
def write_cbf(
    path: AnyPath,
    data: Any,
    *,
    chunk_size_in_bytes: int = 32 << 20,
    layout: Layout = "2.x",
    dtype: npt.DTypeLike | None = None,
    order: Sequence[str] | None = None,
    one_hot: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a file in the CNTK binary format, with bounded memory. The file appears under its name when it is complete.

    Args:
        path: The file.
        data: A deserializer, a `MinibatchSource` with an end, a `Minibatch`, a data frame, a table or a data set (as
            for `cntkio.arrow.read`), or for each stream's name: an array or a tensor of one sample per sequence
            (`[sequences, *shape]`), a SciPy matrix of the same (`[sequences, dim]`), a series, or a list with a number,
            or an array or a matrix of samples, for each sequence.
        chunk_size_in_bytes: A chunk ends with the sequence that makes it this large or larger.
        layout: ``"2.x"``, or ``"documented"``, which CNTK 2.7 does not read and which has room for only one dense
            sample in each sequence.
        dtype: float32 or float64 of the values in the file; None: float64 for float64 data and for whole numbers beyond
            2^24, or else float32.
        order: The streams to write, in this order; None: all.
        one_hot: Streams of class ids in arrays, minibatches and tables, to write as one-hot streams, and their numbers
            of classes. An array ``[sequences, samples]`` has sequences of equal length.
        progress: Function that is called with the number of pieces done, and their total.

    Raises:
        ConfigError: An option is invalid, or the arrays do not form a corpus.
        CorpusError: The data have no sequence, streams have different numbers of sequences, or a whole number is not
            exact in the precision.
        FormatError: The input breaks its format, or the layout cannot express a sequence.
        OSError: A file cannot be read or written.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> from cntkio import CBFDeserializer
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.cbf")
        >>> write_cbf(path, {"x": np.eye(3), "y": [np.ones((2, 4)), np.zeros((1, 4)), np.ones((5, 4))]})
        >>> CBFDeserializer(path).open().table.lengths
        array([2, 1, 5], dtype=uint32)
    """
    with pieces_of(data, dtype, one_hot) as corpus:
        columns = columns_in_order(corpus, order)
        infos = [_in_precision(corpus, corpus.streams[column], dtype) for column in columns]
        with CBFWriter(path, infos, chunk_size_in_bytes=chunk_size_in_bytes, layout=layout) as writer:
            for piece in corpus.reported(progress):
                writer.add(piece.chunk, piece.lengths, columns)


def columns_in_order(corpus: Pieces, order: Sequence[str] | None) -> list[int]:
    """Return the columns of these streams; None: of all.

    Raises:
        ConfigError: No stream has one of these names.
    """
    names = [info.name for info in corpus.streams]
    for name in order or ():
        if name not in names:
            there = ", ".join(map(repr, names))
            raise ConfigError(
                f"{corpus.name} has no stream {name!r}; it has: {there}{did_you_mean(name, names)}", key="order"
            )
    return list(range(len(names))) if order is None else [names.index(name) for name in order]


def _in_precision(corpus: Pieces, info: StreamInformation, dtype: npt.DTypeLike | None) -> StreamInformation:
    if dtype is None:
        return info
    if info.name in corpus.wide and np.dtype(dtype) == np.float32:
        raise CorpusError(
            f"{corpus.name}, stream {info.name!r}: whole numbers that are not exact in float32; write float64 instead"
        )
    return StreamInformation(info.name, info.stream_id, info.storage_format, dtype, info.shape)

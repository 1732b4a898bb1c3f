"""Whole svmlight texts: into arrays, and from anything that can be written."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any, Unpack

import numpy as np

from cntkio import _core
from cntkio._threads import num_threads
from cntkio.arguments import suggests_keywords
from cntkio.errors import CorpusError, FormatError
from cntkio.formats.names import FileNames, located_file
from cntkio.formats.output_file import AnyPath, written_whole
from cntkio.formats.remote import Remote
from cntkio.formats.svmlight.corpus import SvmlightDeserializer
from cntkio.minibatch import Minibatch
from cntkio.pieces import (
    SEQUENCES_PER_CORE,
    Compression,
    Files,
    Pieces,
    Progress,
    compressed,
    compression_of,
    pieces_of,
    read_corpus,
    write_several,
)


def read_svmlight(path: FileNames, **options: Any) -> Minibatch:
    """Read a svmlight (libsvm) text into arrays, in its order.

    Args:
        path: The file; or several, a pattern or a list, as for `SvmlightDeserializer`.
        options: As for `SvmlightDeserializer`.

    Returns:
        A `Minibatch` of all lines: ``features``, whose `tocsr` is a SciPy matrix, ``label``, and ``qid`` if asked for.

    Raises:
        OSError: The file cannot be read.
        FormatError: The file breaks the format.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.svm")
        >>> _ = path.write_text("1 qid:7 1:0.5 3:2 # first\\n-1 qid:7 2:1\\n")
        >>> data = read_svmlight(path, query_id=True)
        >>> data["features"].indices, data["features"].values, data["features"].indptr
        (array([0, 2, 1], dtype=int32), array([0.5, 2. , 1. ], dtype=float32), array([0, 2, 3]))
        >>> data["label"].values.ravel(), data["qid"].values.ravel()
        (array([ 1., -1.], dtype=float32), array([7, 7]))
    """
    with closing(SvmlightDeserializer(path, **options).open()) as corpus:
        return read_corpus(corpus)


@suggests_keywords
def write_svmlight(
    path: AnyPath,
    data: Any,
    *,
    features: str = "features",
    label: str = "label",
    query: str | None = "qid",
    by_query: bool = False,
    zero_based: bool = False,
    compress: Compression | None = None,
    progress: Progress | None = None,
    remote: Remote | None = None,
    **files: Unpack[Files],
) -> None:
    """Write a svmlight (libsvm) text, with bounded memory. The file appears under its name when it is complete.

    Each sample is a line. Numbers are the shortest that read back to the same bits. Zeros of dense features are left
    out.

    Args:
        path: The file.
        data: As for `write_cbf`.
        features: The stream of the features, sparse or dense.
        label: The stream of the labels: one value a sample; or sparse with values of 1, several labels.
        query: The stream of the queries, whole numbers, written as ``qid:``; None, or no such stream: none.
        by_query: Whether to write the key of each sequence as the query of its lines.
        zero_based: Whether the first feature gets the index 0; otherwise 1, as the format has it.
        compress: As for `write_ctf`.
        progress: As for `write_cbf`.
        remote: As for `write_cbf`.
        files: To write several files: the keywords of `Files`.

    Raises:
        ConfigError: The data have no such streams.
        CorpusError: The data have no sequence, or keys that are not whole numbers from 0.
        FormatError: A sequence has no features, or not a label for each; a query is not a whole number.
        OSError: A file cannot be read or written.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.svm")
        >>> write_svmlight(path, {"features": np.float32([[0, 0.1], [2, 0]]), "label": np.float32([1, -1])})
        >>> path.read_text().splitlines()
        ['1 2:0.1', '-1 1:2']
    """
    path, remote = located_file("path", path, remote)
    if files:
        options = {"features": features, "label": label, "query": query, "by_query": by_query}
        options |= {"zero_based": zero_based, "compress": compress}
        write_several(write_svmlight, path, pieces_of(data), files, progress, remote, **options)
        return
    compression = compression_of(path, compress)
    with (
        pieces_of(data) as corpus,
        written_whole(path, remote=remote) as whole,
        compressed(whole, compression) as file,
    ):
        has_queries = not by_query and any(info.name == query for info in corpus.streams)
        of_queries = corpus.column(str(query), "query") if has_queries else None
        columns = corpus.column(features, "features"), corpus.column(label, "label"), of_queries
        names = [features, label, query]
        for first, piece in corpus.written(progress):
            keys = np.empty(0, np.uint64)
            if by_query:
                if piece.keys is None or piece.keys.dtype.kind not in "ui":
                    raise CorpusError(f"{corpus.name}: the keys are not whole numbers; expected them for by_query=True")
                keys = piece.keys.astype(np.uint64)
            texts, unwritable = _core.svmlight_write(
                piece.chunk, keys, columns, int(not zero_based), num_threads(), SEQUENCES_PER_CORE
            )
            if unwritable is not None:
                raise _unwritable_line(corpus, names, first, unwritable)
            for text in texts:
                file.write(text.data)


def _unwritable_line(
    corpus: Pieces, names: Sequence[str | None], num_before: int, unwritable: tuple[int, tuple[int, float] | None]
) -> FormatError:
    sequence, found = unwritable
    if found is None:
        what = f"a sequence without {names[0]!r}, or with another number of other samples; expected as many of each"
        return FormatError(what, path=corpus.name, sequence=num_before + sequence)
    stream, value = found
    what = (
        f"the feature {value:.0f} is not above the feature before it; expected ascending indices",
        f"a label with the value {value}; expected 1 for each of several labels",
        f"the query {value}; expected a whole number of at most 2^53",
    )[stream]
    return FormatError(what, path=corpus.name, sequence=num_before + sequence, stream=names[stream])

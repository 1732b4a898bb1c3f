"""Writing of the svmlight text format. (docs/formats/svmlight.md)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

import cntkio._core as _core
from cntkio._threads import num_threads
from cntkio.arguments import suggests_keywords
from cntkio.errors import CorpusError, FormatError
from cntkio.formats.arrays import pieces_of
from cntkio.formats.pieces import SEQUENCES_PER_CORE, Files, Pieces, Progress
from cntkio.formats.written_files import Compression, compressed, compression_of, write_pieces
from cntkio.storage.output_file import AnyPath, written_whole
from cntkio.storage.progress import logger
from cntkio.storage.remote import Remote


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
        label: The stream of the labels: one value a sample; or one-hot vectors, of which the classes are written; or
            sparse with values of 1, several labels.
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
    options = {
        "features": features, "label": label, "query": query, "by_query": by_query, "zero_based": zero_based,
        "compress": compress,
    }  # fmt: skip
    write_pieces(write_svmlight_file, path, pieces_of(data), files, progress, remote, **options)


def write_svmlight_file(
    path: str, corpus: Pieces, progress: Progress | None, remote: Remote | None, features: str = "features",
    label: str = "label", query: str | None = "qid", by_query: bool = False, zero_based: bool = False,
    compress: Compression | None = None,
) -> None:  # fmt: skip
    """Write a file, for `write_pieces`."""
    compression = compression_of(path, compress)
    with written_whole(path, remote=remote) as whole, compressed(whole, compression) as file:
        has_queries = not by_query and any(info.name == query for info in corpus.streams)
        of_queries = corpus.column(str(query), "query") if has_queries else None
        columns = corpus.column(features, "features"), corpus.column(label, "label"), of_queries
        if others := [info.name for info in corpus.streams if info.name not in (features, label, query)]:
            logger.warning("%s: streams that are left out: %s", corpus.name, ", ".join(map(repr, others)))
        base, keys = int(not zero_based), np.empty(0, np.uint64)
        for first, piece in corpus.written(progress):
            if by_query:
                if piece.keys is None or piece.keys.are_words:
                    raise CorpusError(f"{corpus.name}: the keys are not whole numbers; expected them for by_query=True")
                keys = piece.keys[:]
            written = _core.svmlight_write(piece.chunk, keys, columns, base, num_threads(), SEQUENCES_PER_CORE)
            texts, unwritable = written
            if unwritable is not None:
                raise _unwritable_line(corpus, (features, label, query), first, unwritable)
            for text in texts:
                file.write(text.data)


def _unwritable_line(
    corpus: Pieces, names: Sequence[str | None], num_before: int, unwritable: _core.UnwritableSequence
) -> FormatError:
    sequence, stream, value = unwritable.sequence, unwritable.stream, unwritable.value
    if stream is None:
        what = f"a sequence without {names[0]!r}, or with another number of other samples; expected as many of each"
        return FormatError(what, path=corpus.name, sequence=num_before + sequence)
    info = next(info for info in corpus.streams if info.name == names[stream])
    several = f"{info.dim} values, or entries" if info.is_sparse else f"{info.dim} values"
    what = (
        f"the feature {value:.0f} is not above the feature before it; expected ascending indices",
        f"a label with the value {value}; expected 1 for each of several labels"
        if info.is_sparse
        else f"a label of {several}; expected one value, or a one-hot vector, of which the class is written",
        f"the query {value}; expected a whole number of at most 2^53"
        if info.dim == 1 and not info.is_sparse
        else f"a query of {several}; expected one whole number",
    )[stream]
    return FormatError(what, path=corpus.name, sequence=num_before + sequence, stream=names[stream])

"""Complete corpora as arrays, for programs that need the data without a timeline."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from typing import Any, Literal, overload

import numpy as np

from cntkio.arguments import there_are
from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.chunks import corpus_chunks
from cntkio.formats.contract import Ahead, Opening
from cntkio.formats.ctf import CTFDeserializer, Vocabulary, has_other_streams, infer_streams, read_vocabularies
from cntkio.formats.pieces import read_corpus
from cntkio.layouts import classes_of, no_class
from cntkio.minibatch import Minibatch, MinibatchData
from cntkio.storage.names import FileNames
from cntkio.streams import StreamDefs, StreamInformation

PARSED_AHEAD = 128 << 20
"""Most bytes of chunks that the pass over a text may parse for `read_ctf`, so that they are not read again. The number
changes memory and time, never a result."""


class CommentedMinibatch(Minibatch):
    """All sequences of a text, and the words of its comments.

    Attributes:
        vocabularies: For each stream whose one-hot samples are followed by comments, the word of each index.

    Example:
        >>> corpus = read_ctf("examples/alice/train.ctf", comments=True)
        >>> indices = corpus["w"].indices[corpus["w"].indptr[:5]]
        >>> [corpus.vocabularies["w"][index] for index in indices.tolist()]
        ['Alice', 'was', 'beginning', 'to', 'get']
    """

    __slots__ = ("vocabularies",)

    def __init__(self, minibatch: Minibatch, vocabularies: Mapping[str, Vocabulary]) -> None:
        keys = minibatch.keys_of_sequences
        super().__init__(minibatch, lambda: keys)
        self.vocabularies = dict(vocabularies)


@overload
def read_ctf(
    path: FileNames, streams: StreamDefs | Mapping[str, Any] | None = None, *, ids: Collection[str] = (),
    chunks: slice | None = None, comments: Literal[False] = False, **options: Any,
) -> Minibatch: ...  # fmt: skip
@overload
def read_ctf(
    path: FileNames, streams: StreamDefs | Mapping[str, Any] | None = None, *, ids: Collection[str] = (),
    chunks: slice | None = None, comments: Literal[True], **options: Any,
) -> CommentedMinibatch: ...  # fmt: skip
def read_ctf(
    path: FileNames, streams: StreamDefs | Mapping[str, Any] | None = None, *, ids: Collection[str] = (),
    chunks: slice | None = None, comments: bool = False, **options: Any,
) -> Minibatch:  # fmt: skip
    """Read a text in the CNTK text format into arrays, in its order.

    Args:
        path: The file; or several, a pattern or a list, as for `CTFDeserializer`.
        streams: The streams to read; None: all that `infer_streams` finds, which reads the file once more. If the file
            also has other streams, a sequence may lack the streams to read, and is empty.
        ids: Streams whose samples are one-hot, to read as the class of each sample: `values` are int32,
            ``[num_samples]``.
        chunks: The chunks to read, as a slice without a step; None: all. For more, see `cntkio.convert.corpus_chunks`.
        comments: Whether to also read the words in comments after one-hot samples, such as ``|S0 178:1 |# BOS``. The
            result is then a `CommentedMinibatch`, whose `vocabularies` have the word of each index.
        options: As for `CTFDeserializer`.

    Returns:
        A `Minibatch` of all sequences: by stream name `values`, `offsets` and, for sparse streams, `indices` and
        `indptr`; and `keys_of_sequences`. (docs/formats/ctf.md)

    Raises:
        OSError: The file cannot be read.
        FormatError: The file breaks the format.
        ConfigError: `ids` names an unknown stream.
        CorpusError: No sequence is left to read, or a sample of a stream in `ids` is not a single entry of 1.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.ctf")
        >>> _ = path.write_text("7 |word 3:1 |tag 1 0\\n7 |word 5:1 |tag 0 1\\n9 |word 3:1 |tag 1 0\\n")
        >>> corpus = read_ctf(path)
        >>> corpus.keys_of_sequences, corpus["word"].offsets, corpus["word"].indices
        (array([7, 9], dtype=uint64), array([0, 2, 3]), array([3, 5, 3], dtype=int32))
    """
    remote = options.get("remote")
    defined = infer_streams(path, remote=remote) if streams is None else StreamDefs(streams)
    # Sequences may lack the streams to read if the text has others. An option of the caller wins.
    deserializer = CTFDeserializer(path, defined, **{"subset": has_other_streams(path, defined, remote), **options})
    if chunks is not None:
        minibatch = corpus_chunks(deserializer)[chunks].read()
    else:
        with closing(deserializer.open(Opening(ahead=Ahead(PARSED_AHEAD)))) as corpus:
            minibatch = read_corpus(corpus)
    minibatch = as_class_ids(minibatch, ids) if ids else minibatch
    if not comments:
        return minibatch
    words = read_vocabularies(path, remote=remote)
    # Comments follow a stream by its name in the text.
    aliases = {name: stream.stream_alias for name, stream in deserializer.streams.items()}
    return CommentedMinibatch(minibatch, {name: words[alias] for name, alias in aliases.items() if alias in words})


def as_class_ids(minibatch: Minibatch, ids: Collection[str]) -> Minibatch:
    """Return a minibatch with class ids for some streams, whose samples are one-hot vectors."""
    data, keys = dict(minibatch), minibatch.keys_of_sequences
    for name in ids:
        if name not in data:
            raise ConfigError(f"ids: no stream {name!r}{there_are(name, data)}", key="ids")
        one_hot = data[name]
        classes, wrong = classes_of(one_hot)
        if wrong is not None:
            raise CorpusError(f"{no_class(one_hot, wrong, keys)}; leave the stream out of ids")
        # The shape () tells class ids from dense samples of one value, which have the shape (1,).
        info = StreamInformation(name, one_hot.stream.stream_id, "dense", np.int32, ())
        data[name] = MinibatchData(info, classes, one_hot.offsets, end_of_sweep=one_hot.end_of_sweep)
    return Minibatch(data, lambda: keys)

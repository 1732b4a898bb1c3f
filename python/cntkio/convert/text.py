"""Files in the CNTK text format from anything that can be written, and single sequences as text."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio._threads import num_threads
from cntkio.arguments import whole_number
from cntkio.convert import tuning
from cntkio.convert.array_streams import pieces_of
from cntkio.convert.compression import Compression, compressed, compression_of
from cntkio.convert.pieces import Classes, Piece, Pieces, Progress
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats.cbf import CBFWriter, Layout
from cntkio.formats.output_file import AnyPath, written_whole
from cntkio.hints import did_you_mean, suggests_keywords, wording
from cntkio.streams import StreamInformation

# --------------------------------------------------------------------------------------------------------------
# Keys of sequences on their way to a file: kept, or numbered from 0 and listed in a file of their own.


@contextlib.contextmanager
def keys_of(corpus: Pieces, renumber: bool, keys_file: AnyPath | None) -> Iterator[WrittenKeys]:
    """Open the keys of a corpus, and the file that lists them, which appears when the block ends.

    Raises:
        CorpusError: The sequences have no keys to list.
        OSError: The file cannot be written.
    """
    if keys_file is None:
        yield WrittenKeys(corpus, renumber or corpus.repeats_keys, None)
        return
    with written_whole(keys_file) as listed:
        yield WrittenKeys(corpus, True, listed)


class WrittenKeys:
    """The keys with which sequences are written, piece after piece.

    Args:
        corpus: The sequences.
        renumber: Number the sequences from 0.
        listed: A file for the keys that the sequences had, one on each line; None: none.
    """

    def __init__(self, corpus: Pieces, renumber: bool, listed: BinaryIO | None) -> None:
        self._corpus = corpus
        self._renumber = renumber
        self._listed = listed
        self._last: int | None = None
        self.num_sequences = 0

    def of(self, piece: Piece) -> npt.NDArray[np.uint64]:
        """Return the numbers with which the sequences of the next piece are written.

        Raises:
            CorpusError: A key is not a whole number from 0, or two neighbouring sequences have the same key.
        """
        first, count = self.num_sequences, piece.chunk.num_sequences
        self.num_sequences += count
        if self._listed is not None:
            self._list(piece)
        if piece.keys is None or self._renumber:
            return np.arange(first, first + count, dtype=np.uint64)
        keys = self._numbers(piece.keys)
        if (count and keys[0] == self._last) or bool(np.any(keys[1:] == keys[:-1])):
            raise CorpusError(
                f"{self._corpus.name}: two neighbouring sequences have the same key, so the text would join "
                f"them; expected different keys, or {wording().setting('renumber', True)} to number the sequences"
            )
        self._last = int(keys[-1]) if count else self._last
        return keys

    def _numbers(self, keys: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        wrong = keys[keys < 0] if keys.dtype.kind == "i" else keys[: 0 if keys.dtype.kind == "u" else 1]
        if len(wrong):
            key = wrong.tolist()[0] if wrong.dtype.kind != "S" else wrong[0].decode("utf-8", "backslashreplace")
            listed, renumbered = wording().setting("keys_file", "FILE"), wording().setting("renumber", True)
            raise CorpusError(
                f"{self._corpus.name}: the key {key!r} is not a whole number from 0, as a line of text "
                f"needs; expected {listed} to number the sequences and list their keys, or {renumbered}"
            )
        return keys.astype(np.uint64)

    def _list(self, piece: Piece) -> None:
        assert self._listed is not None
        if piece.keys is None:
            raise CorpusError(
                f"{self._corpus.name}: the sequences have no keys to list in {wording().flag('keys_file')}"
            )
        texts = piece.keys if piece.keys.dtype.kind == "S" else np.strings.encode(piece.keys.astype(np.str_), "utf-8")
        self._listed.write(b"".join(key + b"\n" for key in texts.tolist()))


@suggests_keywords
def write_cbf(
    path: AnyPath,
    data: Any,
    *,
    chunk_size_in_bytes: int = 32 << 20,
    layout: Layout = "2.x",
    dtype: npt.DTypeLike | None = None,
    order: Sequence[str] | None = None,
    one_hot: Mapping[str, Classes] | None = None,
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
        one_hot: Streams of class ids or texts in arrays, minibatches and tables, to write as one-hot streams, and their
            numbers of classes, or the names of the classes in order. An array ``[sequences, samples]`` has sequences of
            equal length.
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


_TEXT_NAME = re.compile(r"[!-{}~][!-{}~]*")


@suggests_keywords
def write_ctf(
    path: AnyPath,
    data: Any,
    *,
    order: Sequence[str] | None = None,
    one_hot: Mapping[str, Classes] | None = None,
    renumber: bool = False,
    keys_file: AnyPath | None = None,
    compress: Compression | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a file in the CNTK text format, with bounded memory. The file appears under its name when it is complete.

    Every line begins with the key of its sequence, or with its index from 0 if the sequences have no keys (as in
    arrays) or may repeat them (as in a source). Numbers are the shortest that read back to the same bits; whole
    numbers up to 2^53 stay whole numbers.

    Args:
        path: The file.
        data: As for `write_cbf`.
        order: The streams to write, in this order; None: all.
        one_hot: Streams of class ids or texts in arrays, minibatches and tables, to write as one-hot streams, and their
            numbers of classes, or the names of the classes in order. An array ``[sequences, samples]`` has sequences of
            equal length.
        renumber: Begin lines with the index of the sequence from 0, whatever the keys are.
        keys_file: Renumber, and write the keys to this file: line n, from 0, is the key of sequence n.
        compress: ``"gzip"``, ``"zstd"`` (frames of 4 MB with a seek table) or ``"none"``; None: as the extension of
            the name says: ``.gz``, ``.zst`` or anything else.
        progress: Function that is called with the number of pieces done, and their total.

    Raises:
        ConfigError: A name is invalid, or the arrays do not form a corpus.
        CorpusError: The data have no sequence, streams have different numbers of sequences, a key is not a whole number
            from 0, two neighbouring sequences have the same key, or a whole number is not exact in float64.
        FormatError: The input breaks its format, or the text format cannot express it: a value is not finite, or a
            sequence has no sample.
        OSError: A file cannot be read or written.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.ctf")
        >>> write_ctf(path, {"x": [np.float32([[1, 0.1]]), np.float32([[2, 3], [4, 5]])], "y": np.array([7, 8])})
        >>> path.read_text().splitlines()
        ['0\\t|x 1 0.1 |y 7', '1\\t|x 2 3 |y 8', '1\\t|x 4 5']
    """
    compression = compression_of(path, compress)
    with (
        pieces_of(data, one_hot=one_hot) as corpus,
        written_whole(path) as whole,
        compressed(whole, compression) as file,
        keys_of(corpus, renumber, keys_file) as all_keys,
    ):
        streams = [(column, text_name(corpus.streams[column].name)) for column in columns_in_order(corpus, order)]
        for piece in corpus.reported(progress):
            keys = all_keys.of(piece)
            texts, unwritable = _core.text_write(
                piece.chunk, 0, keys, streams, num_threads(), tuning.SEQUENCES_PER_CORE
            )
            if unwritable is not None:
                raise _unwritable_error(corpus, streams, keys, unwritable)
            for text in texts:
                file.write(text.data)
        if all_keys.num_sequences == 0:
            raise CorpusError(f"{corpus.name}: no sequence to write")


def _unwritable_error(
    corpus: Pieces,
    streams: list[tuple[int, bytes]],
    keys: npt.NDArray[np.uint64],
    unwritable: tuple[int, tuple[int, float] | None],
) -> FormatError:
    sequence_index, value = unwritable
    location: dict[str, Any] = {"path": corpus.name, "sequence": int(keys[sequence_index])}
    if value is None:
        return FormatError("the sequence has no sample, which the text format cannot express", **location)
    stream = corpus.streams[streams[value[0]][0]].name
    return FormatError(f"the value {value[1]}, which the text format cannot express", **location, stream=stream)


def text_name(name: str) -> bytes:
    """Return the name of a stream as bytes.

    Raises:
        ConfigError: The text format cannot express the name.
    """
    if not _TEXT_NAME.fullmatch(name) or name.startswith("#"):
        raise ConfigError(
            f"stream {name!r}: the text format cannot express this name; expected printable ASCII without spaces and "
            "pipes, not beginning with '#'; rename the column or stream",
            key=name,
        )
    return name.encode("ascii")


def sequence_to_cntk_text_format(seq_idx: int, alias_tensor_map: Mapping[str, Any]) -> str:
    """Convert one sequence to lines of the CNTK text format, as the function of this name in `cntk.io` does.

    Args:
        seq_idx: Number at the beginning of each line.
        alias_tensor_map: For each input's name a dense array with the sequence as its first axis (or nested lists of
            numbers), or a list of dictionaries from index to value, one for each sample.

    Returns:
        The lines, without a line feed at the end; an empty text if the sequence has no sample.

    Raises:
        ConfigError: There is no input, an input has a different type, or a value is not finite, which the format cannot
            express.

    Example:
        >>> import numpy as np
        >>> sequence_to_cntk_text_format(3, {"x": np.float32([[1, 2], [3, 0.5]]), "y": [{7: 1, 2: 0.5}]})
        '3\\t|x 1.0 2.0 |y 2:0.5 7:1\\n3\\t|x 3.0 0.5'
    """
    if not alias_tensor_map:
        raise ConfigError("alias_tensor_map is empty; expected at least one input", key="alias_tensor_map")
    seq_idx = whole_number("seq_idx", seq_idx)
    columns = {}
    for name, samples in sorted(alias_tensor_map.items()):
        if isinstance(samples, list) and samples and all(isinstance(sample, Mapping) for sample in samples):
            columns[name] = [_sparse_text(name, sample) for sample in samples]
        elif isinstance(samples, np.ndarray | list | tuple):
            columns[name] = _dense_texts(name, np.asarray(samples))
        else:
            what = f"expected an array, lists of numbers or a list of dictionaries, not a {type(samples).__name__}"
            raise ConfigError(f"input {name!r}: {what}", key=name)
    lines = []
    for sample in range(max(map(len, columns.values()))):
        parts = [f"|{name} {texts[sample]}" for name, texts in columns.items() if sample < len(texts)]
        lines.append(f"{seq_idx}\t{' '.join(parts)}")
    return "\n".join(lines)


def _dense_texts(name: str, values: npt.NDArray[Any]) -> list[str]:
    if values.size and (values.ndim == 0 or values.dtype.kind not in "fiub"):
        raise ConfigError(
            f"input {name!r}: an array of {values.dtype} of shape {values.shape}; expected numbers", key=name
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ConfigError(f"input {name!r}: a value is not finite, which the text format cannot express", key=name)
    rows = values.reshape(len(values), -1) if values.size else values
    return [" ".join(row.astype(str)) for row in rows]


def _sparse_text(name: str, sample: Mapping[int, Any]) -> str:
    if not np.isfinite(np.fromiter(sample.values(), np.float64, len(sample))).all():
        raise ConfigError(f"input {name!r}: a value is not finite, which the text format cannot express", key=name)
    return " ".join(f"{index}:{value!s}" for index, value in sorted(sample.items()))

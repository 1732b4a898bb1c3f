"""From one format to another: binary and text files from corpora and from arrays, token and number files to text.

::

    deserializer, source, arrays ──> pieces (a chunk, keys, lengths) ──> CBFWriter, or lines of text
    token files, columns of numbers ──> blocks of whole lines ─────────> lines of text

Its law: memory is bounded by a few chunks however long the input is, a file appears under its name when it is whole,
and what the target format cannot express is an error with its place. What is read, and what is an error in it, is the
format's that reads it. (docs/convert.md)
"""

from __future__ import annotations

import argparse
import bz2
import contextlib
import gzip
import logging
import lzma
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio._threads import num_threads
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats.cbf import CBFDeserializer, CBFWriter, Layout
from cntkio.formats.contract import Corpus, Loaded
from cntkio.formats.ctf import CTFDeserializer, infer_streams
from cntkio.formats.detect import detect
from cntkio.formats.foreign import as_deserializer
from cntkio.formats.output_file import written_whole
from cntkio.minibatch import MinibatchData
from cntkio.streams import StreamDef, StreamDefs, StreamInformation

logger = logging.getLogger("cntkio")

AnyPath = str | os.PathLike[str]
# Told how much is done, out of how much; the second is 0 where nobody knows.
Progress = Callable[[int, int], None]

_NUM_LOADERS = 2
_PIECE_BYTES = 16 << 20
_SEQUENCES_A_CORE = 2048
_SAMPLES_AT_ONCE = 1 << 16
_BLOCK = 8 << 20
_LARGEST_DIM = 2**31 - 1


# ---------------------------------------------------------------------------------------------------- pieces


class Piece(NamedTuple):
    """Some sequences: their columns, and their keys and what they count for where that is known."""

    chunk: _core.Chunk
    keys: npt.NDArray[Any] | None = None
    lengths: npt.NDArray[np.uint32] | None = None


class Pieces(NamedTuple):
    """All sequences of something, piece by piece, and how many pieces there are (0: nobody knows)."""

    name: str
    streams: list[StreamInformation]
    pieces: Iterator[Piece]
    total: int
    has_text_keys: bool = False
    # Whether a key may come again, as in a second sweep: no file of sequences can be told apart by it.
    repeats_keys: bool = False


@contextlib.contextmanager
def pieces_of(data: Any, dtype: npt.DTypeLike | None) -> Iterator[Pieces]:
    """What is to be written, piece by piece.

    Args:
        data: As for `write_cbf`; or anything with a context manager ``opened_pieces()`` of `Pieces`.
        dtype: float32 or float64, of arrays; None: their own.

    Raises:
        ConfigError: It is nothing that can be written.
    """
    if hasattr(data, "opened_pieces"):
        with data.opened_pieces() as given:
            yield given
    elif isinstance(data, str | os.PathLike) or hasattr(data, "open"):
        with contextlib.closing(as_deserializer(data).open()) as corpus:
            yield _of_corpus(corpus)
    elif hasattr(data, "load") and hasattr(data, "table"):
        yield _of_corpus(data)
    elif hasattr(data, "minibatches"):
        yield _of_source(data)
    elif isinstance(data, Mapping):
        yield _of_arrays(data, dtype)
    else:
        raise ConfigError(
            f"cannot write a {type(data).__name__}; expected a deserializer, a MinibatchSource with an end, a "
            "mapping of names to arrays, or what cntkio.arrow.read gives"
        )


def _of_corpus(corpus: Corpus) -> Pieces:
    table = corpus.table

    def pieces() -> Iterator[Piece]:
        for number, loaded in enumerate(_loaded_ahead(corpus)):
            corpus.account_for(loaded)
            first, last = table.chunk_starts[number : number + 2]
            yield Piece(loaded.chunk.plain(), table.keys[first:last], table.lengths[first:last])
        corpus.report.log_totals()

    return Pieces(corpus.name, list(corpus.streams), pieces(), table.num_chunks, table.keys.dtype.kind not in "ui")


def _loaded_ahead(corpus: Corpus) -> Iterator[Loaded]:
    """All chunks in order, a few of them loaded while the one before is worked on."""
    coming: deque[Future[Loaded]] = deque()
    with ThreadPoolExecutor(_NUM_LOADERS, "cntkio-load") as loaders:
        try:
            for number in range(corpus.table.num_chunks):
                coming.append(loaders.submit(corpus.load, number))
                if len(coming) > _NUM_LOADERS:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for future in coming:
                future.cancel()


def _of_source(source: Any) -> Pieces:
    if source.is_infinite():
        raise ConfigError(
            "a source without an end cannot be written; expected max_sweeps or max_samples", key="max_sweeps"
        )
    infos: list[StreamInformation] = source.stream_infos()

    def pieces() -> Iterator[Piece]:
        for minibatch in source.minibatches(_SAMPLES_AT_ONCE):
            datas = [minibatch[info] for info in infos]
            chunk = _core.Chunk.from_columns(datas[0].num_sequences, [_column(data) for data in datas])
            keys = minibatch.keys_of_sequences
            yield Piece(chunk, keys if keys.ndim == 1 else None)

    return Pieces("source", infos, pieces(), 0, source.has_text_keys, repeats_keys=True)


_Column = tuple[
    npt.NDArray[np.uint32], npt.NDArray[Any], int, tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32]] | None
]


def _column(data: MinibatchData) -> _Column:
    if not isinstance(data, MinibatchData):
        raise ConfigError("truncated minibatches cannot be written; expected whole sequences", key="truncation_length")
    offsets = data.offsets.astype(np.uint32)
    if data.stream.dtype == np.int32:  # numbers of classes, which a chunk has as entries of value 1
        entries = np.arange(data.num_samples + 1, dtype=np.uint32), np.ascontiguousarray(data.values)
        return offsets, np.ones(data.num_samples, np.float32), _LARGEST_DIM, entries
    if data.indptr is None or data.indices is None:
        return offsets, np.ascontiguousarray(data.values).reshape(-1), data.stream.dim, None
    return offsets, data.values, data.stream.dim, (data.indptr.astype(np.uint32), data.indices)


# ---------------------------------------------------------------------------------------------------- arrays


class _Stream:
    """One stream of a mapping: what it looks like, and its column for a run of sequences."""

    def __init__(self, name: str, data: Any, dtype: npt.DTypeLike | None) -> None:
        self.name = name
        self._data = data
        if isinstance(data, MinibatchData):
            self.count, self.is_sparse = data.num_sequences, data.is_sparse
            shape, own = data.stream.shape, data.values.dtype
            self._size = data.values.nbytes * (2 if self.is_sparse else 1) + data.offsets.nbytes
        elif _is_matrix(data):
            self._data = data.tocsr()
            self.count, self.is_sparse, own = data.shape[0], True, data.dtype
            shape = (data.shape[1],)
            self._size = 8 * data.nnz + 4 * data.shape[0]
        elif isinstance(data, np.ndarray):
            self.count, self.is_sparse, own = len(data) if data.ndim else 0, False, data.dtype
            shape, self._size = data.shape[1:] or (1,), data.nbytes
        elif isinstance(data, list | tuple) and len(data):
            self.count, self.is_sparse = len(data), _is_matrix(data[0])
            if not self.is_sparse:
                self._data = [np.asarray(sequence) for sequence in data]
            for number, sequence in enumerate(self._data):
                if sequence.ndim == 0:
                    raise ConfigError(
                        f"stream {name!r}, sequence {number}: a number; expected an array of samples", key=name
                    )
                if sequence.shape[1:] != self._data[0].shape[1:] or _is_matrix(sequence) != self.is_sparse:
                    what = (
                        f"samples of shape {sequence.shape[1:]}, but those of sequence 0 have {self._data[0].shape[1:]}"
                    )
                    raise ConfigError(f"stream {name!r}, sequence {number}: {what}", key=name)
            own = np.result_type(*{sequence.dtype for sequence in self._data})
            shape = self._data[0].shape[1:] or (1,)
            size = np.fromiter((sequence.nnz if self.is_sparse else sequence.size for sequence in self._data), np.int64)
            self._size = 8 * int(size.sum()) + 8 * len(data)
        else:
            raise ConfigError(
                f"stream {name!r} is a {type(data).__name__}; expected an array of one sample a sequence, a list of "
                "arrays of samples, or the same as SciPy matrices", key=name,
            )  # fmt: skip
        if own.kind not in "fiub":
            raise ConfigError(f"stream {name!r} is in {own}; expected real numbers", key=name)
        self.dtype = np.dtype(dtype) if dtype is not None else np.dtype(np.float64 if own == np.float64 else np.float32)
        self.info = StreamInformation(name, 0, "sparse" if self.is_sparse else "dense", self.dtype, shape)

    def num_bytes(self) -> int:
        """How much it takes in memory, about."""
        return self._size

    def column(self, first: int, last: int) -> _Column:
        data, dim = self._data, self.info.dim
        if isinstance(data, MinibatchData):
            begin, end = int(data.offsets[first]), int(data.offsets[last])
            offsets = (data.offsets[first : last + 1] - begin).astype(np.uint32)
            if data.indptr is None or data.indices is None:
                return offsets, self._flat(data.values[begin:end]), dim, None
            indptr = data.indptr[begin : end + 1]
            entries = slice(int(indptr[0]), int(indptr[-1]))
            return (
                offsets,
                self._flat(data.values[entries]),
                dim,
                _sparse(indptr, data.indices[entries], dim, self.name),
            )
        if _is_matrix(data):
            return self._matrix_column(data[first:last], np.arange(last - first + 1, dtype=np.uint32))
        if isinstance(data, np.ndarray):
            return np.arange(last - first + 1, dtype=np.uint32), self._flat(data[first:last]), dim, None
        run = data[first:last]
        lengths = np.fromiter((sequence.shape[0] for sequence in run), np.int64, len(run))
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint32)
        if self.is_sparse:
            import scipy.sparse  # whoever passes its matrices has it

            return self._matrix_column(scipy.sparse.vstack(run, format="csr"), offsets)
        return offsets, self._flat(np.concatenate([sequence.reshape(-1) for sequence in run])), dim, None

    def _flat(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.ascontiguousarray(values, self.dtype).reshape(-1)

    def _matrix_column(self, matrix: Any, offsets: npt.NDArray[np.uint32]) -> _Column:
        dim = self.info.dim
        return offsets, self._flat(matrix.data), dim, _sparse(matrix.indptr, matrix.indices, dim, self.name)


def _sparse(
    indptr: npt.NDArray[Any], indices: npt.NDArray[Any], dim: int, name: str
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32]]:
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < dim:
        wrong = int(indices.min()) if int(indices.min()) < 0 else int(indices.max())
        raise ConfigError(
            f"stream {name!r}: index {wrong}, but the dimension is {dim}; expected 0 to {dim - 1}", key=name
        )
    return (indptr - indptr[0]).astype(np.uint32), np.ascontiguousarray(indices, np.int32)


def _is_matrix(data: Any) -> bool:
    return hasattr(data, "tocsr") and hasattr(data, "nnz")


def _of_arrays(data: Mapping[Any, Any], dtype: npt.DTypeLike | None) -> Pieces:
    named = {key.name if isinstance(key, StreamInformation) else str(key): value for key, value in data.items()}
    if not named:
        raise ConfigError("no stream to write; expected at least one", key="streams")
    streams = [_Stream(name, value, dtype) for name, value in named.items()]
    counts = {stream.name: stream.count for stream in streams}
    if len(set(counts.values())) > 1:
        raise CorpusError(f"streams with different numbers of sequences: {counts}; expected the same")
    count = streams[0].count
    total = sum(stream.num_bytes() for stream in streams)
    step = max(1, count * _PIECE_BYTES // max(total, 1)) if total > _PIECE_BYTES else max(count, 1)
    keys = getattr(data, "keys_of_sequences", None)
    if keys is not None and keys.ndim != 1:
        keys = None

    def pieces() -> Iterator[Piece]:
        for first in range(0, count, step):
            last = min(first + step, count)
            columns = [stream.column(first, last) for stream in streams]
            yield Piece(_core.Chunk.from_columns(last - first, columns), None if keys is None else keys[first:last])

    infos = [
        StreamInformation(stream.name, number, stream.info.storage_format, stream.dtype, stream.info.shape)
        for number, stream in enumerate(streams)
    ]
    has_text_keys = keys is not None and keys.dtype.kind not in "ui"
    return Pieces("arrays", infos, pieces(), -(-count // step), has_text_keys)


# ---------------------------------------------------------------------------------------------------- binary


def write_cbf(
    path: AnyPath,
    data: Any,
    *,
    chunk_size_in_bytes: int = 32 << 20,
    layout: Layout = "2.x",
    dtype: npt.DTypeLike | None = None,
    order: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a file in the CNTK binary format, with bounded memory; it appears under its name when it is whole.

    Args:
        path: The file.
        data: A deserializer, a `MinibatchSource` with an end, a `Minibatch`, or for each stream's name: an array of one
            sample a sequence (`[sequences, *shape]`), a SciPy matrix of the same (`[sequences, dim]`), or a list with
            an array or a matrix of samples for each sequence.
        chunk_size_in_bytes: A chunk ends with the sequence that makes it this large or larger.
        layout: ``"2.x"``, or ``"documented"``, which CNTK 2.7 does not read and which has room for one dense sample a
            sequence only.
        dtype: float32 or float64 of the values in the file; None: float64 for what is float64, or else float32.
        order: The streams to write, in this order; None: all.
        progress: Called with how many pieces are done, and of how many.

    Raises:
        ConfigError: An option or the arrays are not possible.
        CorpusError: There is no sequence, or streams have different numbers of them.
        FormatError: What is read breaks its format, or the layout cannot express a sequence.
        OSError: A file cannot be read or written.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.cbf")
        >>> write_cbf(path, {"x": np.eye(3), "y": [np.ones((2, 4)), np.zeros((1, 4)), np.ones((5, 4))]})
        >>> CBFDeserializer(path).open().table.lengths
        array([2, 1, 5], dtype=uint32)
    """
    with pieces_of(data, dtype) as given:
        columns = _columns(given, order)
        infos = [_in_precision(given.streams[column], dtype) for column in columns]
        with CBFWriter(path, infos, chunk_size_in_bytes=chunk_size_in_bytes, layout=layout) as writer:
            for number, piece in enumerate(given.pieces):
                writer.add(piece.chunk, piece.lengths, columns)
                if progress is not None:
                    progress(number + 1, given.total)


def _columns(given: Pieces, order: Sequence[str] | None) -> list[int]:
    names = [info.name for info in given.streams]
    unknown = [name for name in order or () if name not in names]
    if unknown:
        raise ConfigError(
            f"{given.name} has no stream {unknown[0]!r}; it has: {', '.join(map(repr, names))}", key="order"
        )
    return list(range(len(names))) if order is None else [names.index(name) for name in order]


def _in_precision(info: StreamInformation, dtype: npt.DTypeLike | None) -> StreamInformation:
    return (
        info if dtype is None else StreamInformation(info.name, info.stream_id, info.storage_format, dtype, info.shape)
    )


FileFormat = Literal["ctf", "cbf", "parquet", "arrow"]


def format_of(path: AnyPath) -> FileFormat:
    """Which format a corpus is in, by its first bytes; text if they are of no other.

    Raises:
        OSError: The file cannot be read.

    Example:
        >>> format_of("examples/iris/iris.ctf")
        'ctf'
    """
    form = detect(path).form
    return form if form in ("cbf", "parquet", "arrow") else "ctf"  # type: ignore[return-value]


# ------------------------------------------------------------------------------------------------------ text


def write_ctf(
    path: AnyPath,
    data: Any,
    *,
    order: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a file in the CNTK text format, with bounded memory; it appears under its name when it is whole.

    Every line begins with its sequence's number: the key where there is one, or else the ordinal from 0. Numbers are
    the shortest that read back to the same bits.

    Args:
        path: The file.
        data: As for `write_cbf`.
        order: The streams to write, in this order; None: all.
        progress: Called with how many pieces are done, and of how many.

    Raises:
        ConfigError: A name or the arrays are not possible.
        CorpusError: There is no sequence, streams have different numbers of them, or two neighbours have one key.
        FormatError: What is read breaks its format, or a value is not finite, or a sequence has no sample: the text
            format cannot express them.
        OSError: A file cannot be read or written.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.ctf")
        >>> write_ctf(path, {"x": [np.float32([[1, 0.1]]), np.float32([[2, 3], [4, 5]])], "y": np.array([7, 8])})
        >>> path.read_text().splitlines()
        ['0\\t|x 1 0.1 |y 7', '1\\t|x 2 3 |y 8', '1\\t|x 4 5']
    """
    with pieces_of(data, None) as given, written_whole(path) as file:
        streams = [(column, _text_name(given.streams[column].name)) for column in _columns(given, order)]
        count, last_key = 0, None
        for number, piece in enumerate(given.pieces):
            keys = _text_keys(None if given.repeats_keys else piece.keys, piece.chunk.num_sequences, count)
            if (last_key is not None and len(keys) and keys[0] == last_key) or bool(np.any(keys[1:] == keys[:-1])):
                raise CorpusError(
                    f"{given.name}: two neighbouring sequences have one key; in the text they would be one"
                )
            texts, unwritable = _core.text_write(piece.chunk, 0, keys, streams, num_threads(), _SEQUENCES_A_CORE)
            if unwritable is not None:
                raise _unwritable(given, streams, keys, unwritable)
            for text in texts:
                file.write(text.data)
            count += len(keys)
            last_key = keys[-1] if len(keys) else last_key
            if progress is not None:
                progress(number + 1, given.total)
        if count == 0:
            raise CorpusError(f"{given.name}: no sequence to write")


def _text_keys(keys: npt.NDArray[Any] | None, num_sequences: int, count: int) -> npt.NDArray[np.uint64]:
    if keys is not None and keys.dtype.kind in "ui":
        return keys.astype(np.uint64)
    return np.arange(count, count + num_sequences, dtype=np.uint64)


def _unwritable(
    given: Pieces,
    streams: list[tuple[int, bytes]],
    keys: npt.NDArray[np.uint64],
    why: tuple[int, tuple[int, float] | None],
) -> FormatError:
    sequence, value = why
    place: dict[str, Any] = {"path": given.name, "sequence": int(keys[sequence])}
    if value is None:
        return FormatError("the sequence has no sample, which the text format cannot express", **place)
    stream = given.streams[streams[value[0]][0]].name
    return FormatError(f"the value {value[1]}, which the text format cannot express", **place, stream=stream)


_TEXT_NAME = re.compile(r"[!-{}~][!-{}~]*")


def _text_name(name: str) -> bytes:
    if not _TEXT_NAME.fullmatch(name) or name.startswith("#"):
        raise ConfigError(
            f"stream {name!r}: the text format has no such name; expected printable ASCII without spaces and pipes, "
            "not beginning with '#'. Rename it with StreamDef(field=...)", key=name,
        )  # fmt: skip
    return name.encode("ascii")


def sequence_to_cntk_text_format(seq_idx: int, alias_tensor_map: Mapping[str, Any]) -> str:
    """Turn one sequence into lines of the CNTK text format, as the function of this name in `cntk.io` does.

    Args:
        seq_idx: The sequence's number.
        alias_tensor_map: For each input's name a dense array with the sequence as its first axis (or nested lists of
            numbers), or a list of dictionaries from index to value, one for each sample.

    Returns:
        The lines, without a line feed at the end. Empty if there is no sample at all.

    Raises:
        ValueError: An input is neither, or a value is not finite, which the format cannot express.

    Example:
        >>> sequence_to_cntk_text_format(3, {"x": np.float32([[1, 2], [3, 0.5]]), "y": [{7: 1, 2: 0.5}]})
        '3\\t|x 1.0 2.0 |y 2:0.5 7:1\\n3\\t|x 3.0 0.5'
    """
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
    for sample in range(max(map(len, columns.values()), default=0)):
        parts = [f"|{name} {texts[sample]}" for name, texts in columns.items() if sample < len(texts)]
        lines.append(f"{seq_idx}\t{' '.join(parts)}")
    return "\n".join(lines)


def _dense_texts(name: str, values: npt.NDArray[Any]) -> list[str]:
    if values.size and (values.ndim == 0 or values.dtype.kind not in "fiub"):
        raise ConfigError(f"input {name!r}: an array of {values.dtype}, {values.ndim} axes; expected numbers", key=name)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ConfigError(f"input {name!r}: a value is not finite, which the text format cannot express", key=name)
    rows = values.reshape(len(values), -1) if values.size else values
    return [" ".join(row.astype(str)) for row in rows]


def _sparse_text(name: str, sample: Mapping[int, Any]) -> str:
    if not np.isfinite(np.fromiter(sample.values(), np.float64, len(sample))).all():
        raise ConfigError(f"input {name!r}: a value is not finite, which the text format cannot express", key=name)
    return " ".join(f"{index}:{value!s}" for index, value in sorted(sample.items()))


# ------------------------------------------------------------------------------------- text to binary and back


def read_header_file(path: AnyPath) -> StreamDefs:
    """Read a header file of `ctf2bin.py`.

    It has a line for each stream: its name, its name in the text, `dense` or `sparse`, and its dimension, separated by
    white space.

    Raises:
        FormatError: A line is not like that.
        OSError: The file cannot be read.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "header")
        >>> _ = path.write_text("features F dense 784\\nwords W sparse 1323\\n")
        >>> read_header_file(path).words.dim
        1323
    """
    by_alias: dict[str, tuple[str, Any]] = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines()):
        fields = line.split()
        is_whole = len(fields) == 4 and fields[2].lower() in ("dense", "sparse") and fields[3].isdecimal()
        if not is_whole or int(fields[3]) < 1:
            raise FormatError(
                f"{line!r}; expected 'name alias dense dimension' or 'name alias sparse dimension'",
                path=path, line=number + 1,
            )  # fmt: skip
        name, alias, kind, dim = fields
        stream = StreamDef(field=alias, shape=int(dim), is_sparse=kind.lower() == "sparse")
        by_alias[alias] = (name, stream)
    streams = dict(by_alias.values())
    if len(streams) < len(by_alias) or not streams:
        what = "two lines have the same name" if streams else "no stream; expected a line for each"
        raise FormatError(what, path=path)
    return StreamDefs(streams)


def ctf_to_cbf(
    source: AnyPath,
    target: AnyPath,
    streams: StreamDefs | Mapping[str, Any] | None = None,
    *,
    chunk_size_in_bytes: int = 32 << 20,
    layout: Layout = "2.x",
    dtype: npt.DTypeLike = np.float32,
    skip_sequence_ids: bool = False,
    max_errors: int = 0,
    strict: bool = False,
    progress: Progress | None = None,
) -> None:
    """Convert a text corpus to a binary one.

    Keys are not kept: a binary corpus's keys are its sequences' numbers from 0.

    Args:
        source: The text.
        target: The binary file.
        streams: What to read, in the order in which to write it; None: all that `infer_streams` finds, which reads the
            text once more.
        chunk_size_in_bytes: As for `write_cbf`.
        layout: As for `write_cbf`.
        dtype: float32 or float64, of the values in the file.
        skip_sequence_ids: As for `CTFDeserializer`.
        max_errors: As for `CTFDeserializer`.
        strict: As for `CTFDeserializer`.
        progress: As for `write_cbf`.

    Raises:
        ConfigError: An option is not possible.
        CorpusError: There is no sequence.
        FormatError: The text breaks its format, or the layout cannot express a sequence.
        OSError: A file cannot be read or written.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.ctf").write_text("7 |x 1 2 |y 3:1\\n7 |x 3 4\\n9 |x 5 6 |y 0:2\\n")
        >>> ctf_to_cbf(folder / "a.ctf", folder / "a.cbf")
        >>> CBFDeserializer(folder / "a.cbf").open().table.lengths
        array([2, 1], dtype=uint32)
    """
    definitions = infer_streams(source) if streams is None else StreamDefs(streams)
    corpus = CTFDeserializer(
        os.fspath(source),
        definitions,
        skip_sequence_ids=skip_sequence_ids,
        max_errors=max_errors,
        dtype=dtype,
        strict=strict,
    )
    write_cbf(
        target,
        corpus,
        chunk_size_in_bytes=chunk_size_in_bytes,
        layout=layout,
        order=list(definitions),
        progress=progress,
    )


def cbf_to_ctf(
    source: AnyPath,
    target: AnyPath,
    streams: StreamDefs | Mapping[str, Any] | None = None,
    *,
    progress: Progress | None = None,
) -> None:
    """Convert a binary corpus, of either layout, to text. Each line begins with its sequence's number from 0.

    Args:
        source: The binary file.
        target: The text.
        streams: New names, as for `CBFDeserializer`.
        progress: As for `write_cbf`.

    Raises:
        ConfigError: A name is not possible in text.
        FormatError: The file breaks its format, or holds what text cannot express.
        OSError: A file cannot be read or written.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_cbf(folder / "a.cbf", {"x": np.float32([[1, 2.5]])})
        >>> cbf_to_ctf(folder / "a.cbf", folder / "a.ctf")
        >>> (folder / "a.ctf").read_text()
        '0\\t|x 1 2.5\\n'
    """
    write_ctf(target, CBFDeserializer(os.fspath(source), StreamDefs(streams or {})), progress=progress)


# ------------------------------------------------------------------------------------ token files, number files


def _open_text(path: AnyPath) -> BinaryIO:
    """A file to be read as bytes, unpacked if its name says that it is packed."""
    packed: dict[str, Callable[[AnyPath], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    opened: BinaryIO = packed.get(Path(path).suffix, _open_plain)(path)
    return opened


def _open_plain(path: AnyPath) -> BinaryIO:
    return Path(path).open("rb")


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """The file in blocks of whole lines."""
    rest = b""
    while block := file.read(_BLOCK):
        block = rest + block if rest else block
        end = block.rfind(b"\n") + 1
        rest = block[end:]
        if end:
            yield block[:end]
    if rest:
        yield rest


def _read_progress(paths: Sequence[AnyPath], progress: Progress | None) -> Callable[[int], None]:
    total = 0
    if progress is not None:
        total = sum(
            Path(path).stat().st_size for path in paths if Path(path).is_file() and Path(path).suffix not in _PACKED
        )
    done = 0

    def add(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done, total)

    return add


_PACKED = (".gz", ".bz2", ".xz")


class _Given(NamedTuple):
    """What is read: names and opened files, one after the other."""

    name: str
    file: BinaryIO


def _opened(paths: Iterable[AnyPath], stdin: BinaryIO | None) -> Iterator[_Given]:
    if stdin is not None:
        yield _Given("standard input", stdin)
    for path in paths:
        with _open_text(path) as file:
            yield _Given(os.fspath(path), file)


@contextlib.contextmanager
def _output(target: AnyPath | BinaryIO) -> Iterator[BinaryIO]:
    if isinstance(target, str | os.PathLike):
        with written_whole(target) as file:
            yield file
    else:
        yield target
        target.flush()


def _line_error(
    name: str, first_line: int, fault: tuple[int, int | None, tuple[int, str] | None], columns: str, unknown: str
) -> FormatError:
    line, found, token = fault
    if found is not None:
        what = f"{found} columns; expected {columns}"
    elif token is not None:
        what = f"column {token[0]}: {token[1]!r} {unknown}"
    else:
        what = "bytes that are not UTF-8"
    return FormatError(what, path=name, line=first_line + line + 1)


def _dictionary(path: AnyPath) -> _core.Dictionary:
    content = Path(path).read_bytes()
    try:
        return _core.Dictionary(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise FormatError("bytes that are not UTF-8", path=path, byte=error.start) from None


def txt_to_ctf(
    sources: Sequence[AnyPath] | BinaryIO,
    target: AnyPath | BinaryIO,
    dictionaries: Sequence[AnyPath],
    *,
    names: Sequence[str] | None = None,
    unknown: str | None = None,
    annotated: bool = False,
    strict: bool = False,
    progress: Progress | None = None,
) -> int:
    """Convert token files to text corpora, as CNTK's script `txt2ctf.py` does: a line is a sequence, a column a stream.

    Columns are separated by tabs and their tokens by blanks; a token becomes the number of its line in the column's
    dictionary, from 0. Sequences are numbered over all files.

    Args:
        sources: Files, UTF-8, unpacked if they end in ``.gz``, ``.bz2`` or ``.xz``; or an open file of bytes.
        target: The text; or an open file of bytes.
        dictionaries: A file for each column, with a token a line.
        names: A name for each column's stream; None: ``S0``, ``S1``, …
        unknown: What stands in for a token that its dictionary lacks; None: such a token is an error.
        annotated: Whether each sample is followed by a comment with its token.
        strict: Take a column without a token, which CNTK's reader refuses, as an error; or else it is warned of.
        progress: Called with how many bytes are done, and of how many.

    Returns:
        The number of sequences.

    Raises:
        ConfigError: An option is not possible.
        FormatError: A line has another number of columns, or a token is not known.
        OSError: A file cannot be read or written.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "words").write_text("the\\ncat\\nsat\\n")
        >>> _ = (folder / "a.txt").write_text("the cat\\nsat\\n")
        >>> txt_to_ctf([folder / "a.txt"], folder / "a.ctf", [folder / "words"], annotated=True)
        2
        >>> (folder / "a.ctf").read_text().splitlines()
        ['0\\t|S0 0:1 |# the', '0\\t|S0 1:1 |# cat', '1\\t|S0 2:1 |# sat']
    """
    if not dictionaries:
        raise ConfigError("no dictionary; expected one for each column", key="dictionaries")
    named = [f"S{column}" for column in range(len(dictionaries))] if names is None else list(names)
    if len(named) != len(dictionaries):
        raise ConfigError(f"{len(named)} names, but {len(dictionaries)} dictionaries; expected as many", key="names")
    in_bytes = [_text_name(name) for name in named]
    if len(set(named)) < len(named):
        raise ConfigError(f"two columns have the same name: {named}", key="names")
    tokens = [_dictionary(path) for path in dictionaries]
    files = [] if not isinstance(sources, Sequence) else list(sources)
    tell = _read_progress(files, progress)
    count = num_empty = 0
    first_empty = None
    with _output(target) as out:
        for given in _opened(files, None if isinstance(sources, Sequence) else sources):
            num_lines = 0
            for block in _blocks(given.file):
                text, lines, empty, first, fault = _core.text_tokens(block, count, tokens, in_bytes, unknown, annotated)
                if fault is not None:
                    expected = f"{len(tokens)}, one for each dictionary"
                    raise _line_error(given.name, num_lines, fault, expected, "is not in the column's dictionary")
                if first is not None and first_empty is None:
                    first_empty = FormatError(
                        "a column without a token: a stream has no sample in the sequence, and CNTK refuses it",
                        path=given.name, line=num_lines + first + 1,
                    )  # fmt: skip
                    if strict:
                        raise first_empty
                num_empty += empty
                out.write(text.data)
                num_lines, count = num_lines + lines, count + lines
                tell(len(block))
    if first_empty is not None:
        logger.warning("%s (%d of them)", first_empty, num_empty)
    return count


LabelType = Literal["Category", "Regression", "None"]


def uci_to_ctf(
    source: AnyPath | BinaryIO,
    target: AnyPath | BinaryIO,
    *,
    features_start: int,
    features_dim: int,
    label_type: LabelType = "Category",
    labels_start: int | None = None,
    labels_dim: int = 1,
    num_labels: int | None = None,
    mapping_file: AnyPath | None = None,
    sparse_labels: bool = False,
    delimiter: str | None = None,
    progress: Progress | None = None,
) -> int:
    """Convert columns of numbers to ``|labels …`` and ``|features …`` in text, as CNTK's script `uci2ctf.py` does.

    Args:
        source: The file, unpacked if it ends in ``.gz``, ``.bz2`` or ``.xz``; or an open file of bytes.
        target: The text; or an open file of bytes.
        features_start: The first column of features, from 0.
        features_dim: How many there are.
        label_type: ``"Category"``: one column, written as a vector with a single one. ``"Regression"``: columns that
            are copied. ``"None"``: there are none.
        labels_start: The first column of labels, from 0.
        labels_dim: How many there are.
        num_labels: Number of categories; without a mapping file they are ``0`` to ``num_labels - 1``.
        mapping_file: Names of the categories, one a line; the vector has a value for each, and at least `num_labels`.
        sparse_labels: Write a category as ``index:1``.
        delimiter: What separates columns; None: white space.
        progress: Called with how many bytes are done, and of how many.

    Returns:
        The number of lines.

    Raises:
        ConfigError: The options contradict each other.
        FormatError: A line has too few columns, or a category is not known.
        OSError: A file cannot be read or written.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.txt").write_text("0.5 1.25 2\\n3 4 0\\n")
        >>> options = {"features_start": 0, "features_dim": 2, "labels_start": 2, "num_labels": 3}
        >>> uci_to_ctf(folder / "a.txt", folder / "a.ctf", **options)
        2
        >>> (folder / "a.ctf").read_text().splitlines()
        ['|labels 0 0 1\\t|features 0.5 1.25', '|labels 1 0 0\\t|features 3 4']
    """
    labels = None
    if features_start < 0 or features_dim < 1:
        what = f"features_start={features_start} and features_dim={features_dim}; expected at least 0 and 1"
        raise ConfigError(what, key="features_start")
    if label_type not in ("Category", "Regression", "None"):
        raise ConfigError(
            f"label_type is {label_type!r}; expected 'Category', 'Regression' or 'None'", key="label_type"
        )
    if label_type != "None":
        labels = _labels(label_type, labels_start, labels_dim, num_labels, mapping_file, sparse_labels)
        begin, end = max(features_start, labels[0]), min(features_start + features_dim, labels[0] + labels[1])
        if begin < end:
            raise ConfigError(f"columns {begin} to {end - 1} are both labels and features", key="labels_start")
    if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii()):
        raise ConfigError(f"delimiter is {delimiter!r}; expected one ASCII character", key="delimiter")
    separator = None if delimiter is None else ord(delimiter)
    files = [source] if isinstance(source, str | os.PathLike) else []
    tell = _read_progress(files, progress)
    num_needed = max(features_start + features_dim, 0 if labels is None else labels[0] + labels[1])
    num_lines = 0
    with _output(target) as out:
        for given in _opened(files, None if isinstance(source, str | os.PathLike) else source):
            for block in _blocks(given.file):
                text, lines, fault = _core.text_numbers(block, (features_start, features_dim), labels, separator)
                if fault is not None:
                    expected = f"at least {num_needed}"
                    raise _line_error(given.name, num_lines, fault, expected, "is not a category")
                out.write(text.data)
                num_lines += lines
                tell(len(block))
    return num_lines


def _labels(
    label_type: str, start: int | None, dim: int, num_labels: int | None, mapping_file: AnyPath | None, is_sparse: bool
) -> tuple[int, int, tuple[_core.Dictionary, int, bool] | None]:
    if start is None or start < 0:
        raise ConfigError(
            f"label_type is {label_type!r}, and labels_start is {start}; expected a column", key="labels_start"
        )
    if dim < 1 or (label_type == "Category" and dim != 1):
        raise ConfigError(f"label_type is {label_type!r}, and labels_dim is {dim}; expected 1", key="labels_dim")
    if label_type == "Regression":
        if num_labels is not None and num_labels > dim:
            raise ConfigError(f"num_labels={num_labels} is more than labels_dim={dim}", key="num_labels")
        return start, dim, None
    if num_labels is None or not 1 <= num_labels < 2**31:
        raise ConfigError(
            f"label_type is 'Category', and num_labels is {num_labels}; expected at least 1", key="num_labels"
        )
    if mapping_file is None:
        names = _core.Dictionary("\n".join(map(str, range(num_labels))))
    else:
        names = _dictionary(mapping_file)
    return start, 1, (names, max(num_labels, len(names)), is_sparse)


# ---------------------------------------------------------------------------------------------- command line

HELP = "convert between CNTK's binary and text formats, and other files to text"
_BAR_WIDTH = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the converters to a command line, as verbs of their own; `run` does what the parsed arguments say.

    Example:
        >>> parser = argparse.ArgumentParser()
        >>> add_arguments(parser)
        >>> parser.parse_args(["ctf2bin", "--input", "a.ctf", "--output", "a.cbf"]).output
        PosixPath('a.cbf')
    """
    verbs = parser.add_subparsers(title="converters", metavar="CONVERTER")

    def add(convert: Callable[..., None], name: str, aliases: Sequence[str], help: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, aliases=aliases, help=help, description=f"{help[0].upper()}{help[1:]}.")
        added.set_defaults(convert=convert)
        return added

    def file(parser: argparse.ArgumentParser, name: str, help: str) -> None:
        parser.add_argument(f"--{name}", metavar="FILE", type=Path, required=True, help=help)

    to_binary = add(_run_ctf2cbf, "ctf2cbf", ["ctf2bin"], "convert text to the binary format")
    file(to_binary, "input", "the text")
    file(to_binary, "output", "the binary file")
    add_option = to_binary.add_argument
    add_option("--header", metavar="FILE", type=Path, help="a line for each stream: name, name in the text, dense or "
               "sparse, dimension; without it the streams are as the text shows them")  # fmt: skip
    add_option("--chunk_size", "--chunk-size", metavar="BYTES", type=int, default=32 << 20, help="of a chunk (32 MiB)")
    add_option("--precision", choices=("float", "double"), default="float", help="of the values (float)")
    add_option("--layout", choices=("2.x", "documented"), default="2.x", help="which of the two layouts (2.x)")
    add_option("--max-errors", metavar="N", type=int, default=0, help="errors in the text that are forgiven (0)")
    add_option("--skip-sequence-ids", action="store_true", help="take each line as a sequence")
    add_option("--strict", action="store_true", help="take what is only warned of as an error")

    to_text = add(_run_cbf2ctf, "cbf2ctf", ["bin2ctf"], "convert the binary format to text")
    file(to_text, "input", "the binary file, of either layout")
    file(to_text, "output", "the text")

    tokens = add(_run_txt2ctf, "txt2ctf", [], "convert lines of tokens to text, with a dictionary for each column")
    add_option = tokens.add_argument
    add_option(
        "--map",
        metavar="FILE",
        type=Path,
        nargs="+",
        required=True,
        help="a dictionary for each column, one token a line",
    )
    add_option("--input", metavar="FILE", type=Path, nargs="*", help="what to convert (standard input)")
    add_option("--output", metavar="FILE", type=Path, help="the text (standard output)")
    add_option(
        "--annotated", metavar="BOOL", type=_truth, default=False, help="whether comments show the tokens (False)"
    )
    add_option("--unk", metavar="TOKEN", help="what stands in for a token that its dictionary lacks")
    add_option("--names", metavar="NAME", nargs="+", help="of the streams (S0 S1 ...)")
    add_option("--strict", action="store_true", help="take a column without a token as an error")

    numbers = add(_run_uci2ctf, "uci2ctf", [], "convert columns of numbers to text")
    add_option = numbers.add_argument
    add_option("-in", "--input_file", metavar="FILE", type=Path, required=True, help="what to convert")
    add_option("-fs", "--features_start", metavar="COLUMN", type=int, required=True, help="the first feature, from 0")
    add_option("-fd", "--features_dim", metavar="N", type=int, required=True, help="number of features")
    kinds = ("Category", "Regression", "None")
    add_option("-lt", "--label_type", choices=kinds, default="Category", help="what labels are (Category)")
    add_option("-ls", "--labels_start", metavar="COLUMN", type=int, help="the first label, from 0")
    add_option("-ld", "--labels_dim", metavar="N", type=int, default=1, help="number of columns of labels (1)")
    add_option("-nl", "--num_labels", metavar="N", type=int, help="number of categories")
    add_option("--mapping_file", metavar="FILE", type=Path, help="the categories' names, one a line")
    add_option("-out", "--output_file", metavar="FILE", type=Path, help="the text (the input's name with _cntk_text)")
    add_option("--sparse-labels", action="store_true", help="write a category as index:1")
    add_option("--delimiter", metavar="CHAR", help="what separates columns (white space)")


def run(options: argparse.Namespace) -> int:
    """Do what arguments ask that were parsed by the parser of `add_arguments`.

    Returns:
        0. Errors are raised as by the functions of this module.

    Raises:
        ConfigError: No converter is named.
    """
    if not hasattr(options, "convert"):
        raise ConfigError("no converter is named, and no --to; cntkio convert --help shows both", key="convert")
    with progress_bar() as progress:
        options.convert(options, progress)
    return 0


def _run_ctf2cbf(options: argparse.Namespace, progress: Progress | None) -> None:
    streams = None if options.header is None else read_header_file(options.header)
    ctf_to_cbf(
        options.input, options.output, streams, chunk_size_in_bytes=options.chunk_size, layout=options.layout,
        dtype=np.float64 if options.precision == "double" else np.float32, skip_sequence_ids=options.skip_sequence_ids,
        max_errors=options.max_errors, strict=options.strict, progress=progress,
    )  # fmt: skip


def _run_cbf2ctf(options: argparse.Namespace, progress: Progress | None) -> None:
    cbf_to_ctf(options.input, options.output, progress=progress)


def _run_txt2ctf(options: argparse.Namespace, progress: Progress | None) -> None:
    txt_to_ctf(
        options.input if options.input else sys.stdin.buffer, options.output or sys.stdout.buffer, options.map,
        names=options.names, unknown=options.unk, annotated=options.annotated, strict=options.strict, progress=progress,
    )  # fmt: skip


def _run_uci2ctf(options: argparse.Namespace, progress: Progress | None) -> None:
    source: Path = options.input_file
    uci_to_ctf(
        source, options.output_file or source.with_name(f"{source.stem}_cntk_text{source.suffix}"),
        features_start=options.features_start, features_dim=options.features_dim, label_type=options.label_type,
        labels_start=options.labels_start, labels_dim=options.labels_dim, num_labels=options.num_labels,
        mapping_file=options.mapping_file, sparse_labels=options.sparse_labels, delimiter=options.delimiter,
        progress=progress,
    )  # fmt: skip


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise argparse.ArgumentTypeError(f"'{text}' is neither True nor False")
    return text.lower() in ("true", "1")


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """A progress bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    shown = ""

    def show(done: int, total: int) -> None:
        nonlocal shown
        full = _BAR_WIDTH * done // total if total else 0
        text = f"{'█' * full:░<{_BAR_WIDTH}} {100 * done // total:3} %" if total else f"{done:,}"
        if text != shown:
            shown = text
            print(f"\r{text}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        print(f"\r{'':{_BAR_WIDTH + 8}}\r", end="", file=sys.stderr, flush=True)

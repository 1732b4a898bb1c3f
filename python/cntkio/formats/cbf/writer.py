"""Writing of the binary format, in both layouts, in chunks of a given size."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._threads import Job, Workers
from cntkio.arguments import check_word, suggests_keywords, whole_number
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats.arrays import pieces_of
from cntkio.formats.cbf.header import CHUNK_ROW, FIRST_CHUNK, VERSION, LayoutName, fault_text
from cntkio.formats.detect import CBF_MAGIC
from cntkio.formats.losses import Rounded
from cntkio.formats.pieces import Classes, Files, Piece, Pieces, Progress, in_arrays
from cntkio.formats.table import in_precision
from cntkio.formats.written_files import write_pieces
from cntkio.storage.output_file import AnyPath, written_whole
from cntkio.storage.remote import Remote
from cntkio.streams import LARGEST_DIM, StreamInformation

_LARGEST_COUNT = {"2.x": 2**32 - 1, "documented": 2**31 - 1}


class CBFWriter:
    """Writes a file in the CNTK binary format, sequence after sequence, in chunks of a given size.

    A chunk ends with the sequence that makes it `chunk_size_in_bytes` or larger. The file appears under its name when
    the block ends. If an exception leaves the block, no file appears.

    Args:
        path: The file.
        streams: The streams of the file: their names, forms, dimensions and precisions.
        chunk_size_in_bytes: Least bytes of a chunk in the file.
        layout: ``"2.x"``, or ``"documented"``, which CNTK 2.7 does not read and which has room for only one dense
            sample in each sequence.
        remote: Options of the remote store to write to.

    Raises:
        ConfigError: The format cannot express a stream, or an option is not possible.

    Example:
        >>> import pathlib, tempfile
        >>> from cntkio import CBFDeserializer, _core
        >>> from cntkio.formats.table import Column
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.cbf")
        >>> column = Column(np.array([0, 1, 2], np.uint32), np.ones(6, np.float32), 3, None)
        >>> chunk = _core.Chunk.from_columns(2, [column])
        >>> with CBFWriter(path, [StreamInformation("x", 0, "dense", np.float32, 3)]) as writer:
        ...     writer.add(chunk)
        >>> CBFDeserializer(path).open().table.lengths
        array([1, 1], dtype=uint32)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        streams: Sequence[StreamInformation],
        *,
        chunk_size_in_bytes: int = 32 << 20,
        layout: LayoutName = "2.x",
        remote: Remote | None = None,
    ) -> None:
        check_word("layout", layout, *_LARGEST_COUNT)
        whole_number("chunk_size_in_bytes", chunk_size_in_bytes, least=1)
        _check_writable(streams, layout)
        self._path, self._remote = os.fspath(path), remote
        self._streams, self._chunk_size = list(streams), chunk_size_in_bytes
        self._layout, self._is_documented = layout, layout == "documented"
        # Each matrix of the documented layout begins with a count and the start of the first column.
        self._least_size = 8 * sum(info.is_sparse for info in streams) if self._is_documented else 0
        # The next chunk of the file: chunks with the bounds of the sequences that are written from each, the lengths of
        # these sequences, and the bytes that they will have in the file.
        self._runs: list[tuple[_core.Chunk, slice]] = []
        self._lengths: list[npt.NDArray[np.uint32]] = []
        self._size = self._least_size
        self._rows: list[tuple[int, int, int]] = []
        self._offset = 0 if self._is_documented else FIRST_CHUNK
        self._num_sequences = 0
        self._columns: list[tuple[int, bool]] = []
        # A chunk is encoded into one buffer while the other is written.
        self._buffers = [np.empty(0, np.uint8), np.empty(0, np.uint8)]
        self._write: Job[int] | None = None
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> CBFWriter:
        """Begin the file."""
        with contextlib.ExitStack() as exits:
            self._file = exits.enter_context(written_whole(self._path, remote=self._remote))
            self._data = self._file
            if self._is_documented:  # it begins with the table of chunks, which is known only at the end
                self._data = exits.enter_context(written_whole(self._path, is_kept=False, remote=self._remote))
            else:
                self._data.write(CBF_MAGIC + struct.pack("<I", VERSION))
            # The worker ends before the files are closed.
            self._worker = exits.enter_context(Workers(1, "cntkio-write"))
            self._exits = exits.pop_all()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Write the remaining sequences and the header, or abandon the file."""
        # Any exception, of the caller or of the last write, removes the unfinished files.
        if error is not None:
            self._exits.__exit__(kind, error, trace)
            return
        with self._exits:
            self._flush()
            self._wait()
            if not self._rows:
                raise CorpusError(f"{self._path}: no sequence to write; a binary file needs at least one")
            table = np.array(self._rows, CHUNK_ROW[self._layout]).tobytes()
            if self._is_documented:
                self._file.write(_documented_header(self._streams, len(self._rows)) + table)
                self._data.seek(0)
                shutil.copyfileobj(self._data, self._file, 1 << 20)
            else:
                self._file.write(_2x_header(self._streams, len(self._rows)) + table + struct.pack("<q", self._offset))

    def add(
        self, chunk: _core.Chunk, lengths: npt.NDArray[np.uint32] | None = None, columns: Sequence[int] | None = None
    ) -> None:
        """Write all sequences of a chunk.

        Args:
            chunk: The sequences.
            lengths: Number of samples that each sequence counts for, at least 1; None: the samples of its longest
                stream. The documented layout does not store them.
            columns: Index of each stream's column in the chunk; None: the columns are in the order of the streams.

        Raises:
            FormatError: The format cannot express a sequence.
            OSError: The file cannot be written.
        """
        indices = range(len(self._streams)) if columns is None else columns
        selected = [(index, info.dtype == np.float64) for index, info in zip(indices, self._streams, strict=True)]
        # All sequences of a chunk are encoded from the same columns.
        if selected != self._columns:
            self._flush()
            self._columns = selected
        count = chunk.num_sequences
        sizes, longest = _core.cbf_sizes([(chunk, slice(0, count))], selected, self._is_documented)
        # Readers refuse a length of 0.
        counted = longest if lengths is None or self._is_documented else np.maximum(lengths, 1).astype(np.uint32)
        ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        first = 0
        while first < count:
            full = int(ends[first]) + self._chunk_size - self._size
            last = min(int(np.searchsorted(ends[first + 1 :], full)) + first + 1, count)
            self._runs.append((chunk, slice(first, last)))
            self._lengths.append(counted[first:last])
            self._size += int(ends[last] - ends[first])
            if self._size >= self._chunk_size:
                self._flush()
            first = last

    def _flush(self) -> None:
        """Encode the pending sequences as a chunk, and begin to write it."""
        if not self._runs:
            return
        lengths = np.concatenate(self._lengths)
        num_samples, largest = int(lengths.sum(dtype=np.int64)), _LARGEST_COUNT[self._layout]
        if max(num_samples, len(lengths)) > largest:
            what = f"a chunk of {len(lengths)} sequences and {num_samples} samples; the format has room for {largest}"
            raise FormatError(f"{what}: expected a smaller chunk_size_in_bytes", path=self._path)
        # The other buffer may still be in use by the write of the previous chunk.
        self._buffers.reverse()
        if len(self._buffers[0]) < self._size:
            self._buffers[0] = np.empty(self._size, np.uint8)
        content = self._buffers[0][: self._size]
        fault = _core.cbf_write(self._runs, self._columns, lengths, self._is_documented, content)
        if fault is not None:
            sequence = None if fault.sequence is None else self._num_sequences + fault.sequence
            stream = None if fault.stream is None else self._streams[fault.stream].name
            raise FormatError(fault_text(fault), path=self._path, sequence=sequence, stream=stream)
        # At most one write is under way, so two buffers are enough. The error of a failed write is raised here.
        self._wait()
        self._write = self._worker.do(self._data.write, content.data)
        self._rows.append((self._offset, len(lengths), num_samples))
        self._offset += len(content)
        self._num_sequences += len(lengths)
        self._runs, self._lengths, self._size = [], [], self._least_size

    def _wait(self) -> None:
        if self._write is not None:
            self._write.result()


def _2x_header(streams: Sequence[StreamInformation], num_chunks: int) -> bytes:
    header = CBF_MAGIC + struct.pack("<II", num_chunks, len(streams))
    for info in streams:
        name = info.name.encode()
        header += struct.pack("<BI", info.is_sparse, len(name)) + name
        header += struct.pack("<BI", info.dtype == np.float64, info.dim)
    return header


def _documented_header(streams: Sequence[StreamInformation], num_chunks: int) -> bytes:
    header = struct.pack("<qqi", VERSION, num_chunks, len(streams))
    for info in streams:
        name, is_double = info.name.encode(), info.dtype == np.float64
        # Kind, storage (sparse only), element type, isSequence (sparse only; without effect), dimension.
        fields = (1, 0, is_double, 1, info.dim) if info.is_sparse else (0, is_double, info.dim)
        header += struct.pack("<i", len(name)) + name + struct.pack(f"<{len(fields)}i", *fields)
    return header


def _check_writable(streams: Sequence[StreamInformation], layout: LayoutName) -> None:
    """Refuse streams that the format cannot express."""
    if not streams:
        raise ConfigError("no stream to write; expected at least one", key="streams")
    names = [info.name for info in streams]
    for index, (name, info) in enumerate(zip(names, streams, strict=True)):
        if name in names[:index]:
            raise ConfigError(f"two streams have the name {name!r}", key=name)
        if "\0" in name:
            raise ConfigError(f"stream {name!r}: the name has a zero byte, which would end it in the file", key=name)
        largest = LARGEST_DIM if info.is_sparse or layout == "documented" else 2**32 - 1
        if not 1 <= info.dim <= largest:
            raise ConfigError(f"stream {name!r} has the dimension {info.dim}; expected 1 to {largest}", key=name)
        if info.dtype not in (np.float32, np.float64):
            advice = f" as class ids: give one_hot={{{name!r}: number of classes}}" if info.are_class_ids else ""
            raise ConfigError(f"stream {name!r} is in {info.dtype}; expected float32 or float64{advice}", key=name)


@suggests_keywords
def write_cbf(
    path: AnyPath, data: Any, *, chunk_size_in_bytes: int = 32 << 20, layout: LayoutName = "2.x",
    dtype: npt.DTypeLike | None = None, order: Sequence[str] | None = None,
    one_hot: Mapping[str, Classes] | None = None, progress: Progress | None = None, remote: Remote | None = None,
    **files: Unpack[Files],
) -> None:  # fmt: skip
    """Write a file in the CNTK binary format, with bounded memory. The file appears under its name when it is complete.

    Args:
        path: The file, or a URL (docs/convert.md).
        data: A deserializer, a `MinibatchSource` with an end, a `Minibatch`, a data frame, a table or a data set (as
            for `cntkio.arrow.read`), or for each stream's name: an array or a tensor of one sample per sequence
            (`[sequences, *shape]`), a SciPy matrix of the same (`[sequences, dim]`), a series, or a list with a number,
            or an array or a matrix of samples, for each sequence.
        chunk_size_in_bytes: A chunk ends with the sequence that makes it this large or larger.
        layout: ``"2.x"``, or ``"documented"``, which CNTK 2.7 does not read and which has room for only one dense
            sample in each sequence.
        dtype: float32 or float64 of the values in the file; None: float64 for float64 data, for streams of int32 and
            int64, and for whole numbers beyond 2^24, or else float32.
        order: The streams to write, in this order; None: all.
        one_hot: Streams of class ids or texts in arrays, minibatches and tables, to write as one-hot streams, and their
            numbers of classes, or the names of the classes in order. An array ``[sequences, samples]`` has sequences of
            equal length.
        progress: Function that is called with the number of pieces done, and their total.
        remote: Options of the remote store to write to, such as credentials, or the store itself; as for
            `CTFDeserializer`.
        files: To write several files: the keywords of `Files`.

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
    options = {"chunk_size_in_bytes": chunk_size_in_bytes, "layout": layout, "dtype": dtype, "order": order}
    write_pieces(write_cbf_file, path, pieces_of(data, dtype, one_hot), files, progress, remote, **options)


def write_cbf_file(
    path: str, corpus: Pieces, progress: Progress | None, remote: Remote | None, dtype: npt.DTypeLike | None = None,
    order: Sequence[str] | None = None, **options: Any,
) -> None:  # fmt: skip
    """Write a file, for `write_pieces`."""
    columns = corpus.columns(order)
    infos = [_in_precision(corpus.streams[column], dtype) for column in columns]
    rounded = None if dtype is None else Rounded(dtype)
    with CBFWriter(path, infos, remote=remote, **options) as writer:
        for piece in corpus.reported(progress):
            _require_exact(corpus, piece, infos, rounded)
            writer.add(piece.chunk, piece.lengths, columns)
    if rounded is not None:
        rounded.log(corpus.name)


def _require_exact(corpus: Pieces, piece: Piece, infos: Sequence[StreamInformation], rounded: Rounded | None) -> None:
    """Check that the floats of a file keep the whole numbers of a piece. Count what it rounds."""
    targets = {info.name: info.dtype for info in infos}
    # Without streams that can be inexact, no chunk has to become arrays.
    if any(info.dtype != targets.get(info.name, info.dtype) for info in corpus.streams):
        for name, data in in_arrays(corpus.streams, piece.chunk.num_sequences, [piece.chunk]).items():
            if name in targets:
                in_precision(f"{corpus.name}, stream {name!r}", data.values, targets[name])
                if rounded is not None:
                    rounded.add(data.values)


def _in_precision(info: StreamInformation, dtype: npt.DTypeLike | None) -> StreamInformation:
    # A binary corpus has only floats, and float32 would round whole numbers beyond 2^24.
    if dtype is None and info.dtype.kind == "i":
        dtype = np.float64
    if dtype is None or info.are_class_ids:
        return info
    return StreamInformation(info.name, info.stream_id, info.storage_format, dtype, info.shape)

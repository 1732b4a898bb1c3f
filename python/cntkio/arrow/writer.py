"""Corpora as record batches, one for each piece, and as Parquet and Arrow files. (docs/arrow.md)"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import ipc, parquet

import cntkio._core as _core
from cntkio._threads import num_threads
from cntkio.arguments import caller, suggests_keywords, there_are
from cntkio.arrow.types import Facts, Role, is_list
from cntkio.displays import Description, Displayed, counted
from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.arrays import pieces_of
from cntkio.formats.pieces import Files, Piece, Pieces, Progress
from cntkio.formats.table import Keys
from cntkio.formats.written_files import write_pieces
from cntkio.layouts import are_whole, classes_of, no_class
from cntkio.minibatch import Minibatch, MinibatchData
from cntkio.storage.output_file import AnyPath, written_whole
from cntkio.storage.remote import Remote
from cntkio.streams import StreamInformation, packed_columns

# Each unsigned type becomes the next wider signed type, except for uint64, because int64 is the widest.
_SIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.int64()}
KEY = "key"


def stream_field(info: StreamInformation, is_flat: bool, as_ids: bool) -> pa.Field:
    """Return the field of a stream.

    Args:
        is_flat: Omit the list around the samples of a sequence.
        as_ids: The stream is one-hot, and the column has the class of each sample.
    """
    number = pa.from_numpy_dtype(info.dtype)
    role: Role = "ids" if as_ids or info.are_class_ids else info.storage_format
    sample: pa.DataType
    if role == "ids":
        # Whole numbers that were read as such keep their type; classes are int32, like the indices of sparse streams.
        sample = number if are_whole(info) else pa.int32()
    elif info.is_sparse:
        sample = pa.struct(entry_fields(number))
    else:
        sample = number if info.dim == 1 else list_of(number, info.dim)
    # Without a shape, the column is read as whole numbers again, and not as one-hot samples.
    shape = None if are_whole(info) and role == "ids" else info.shape
    facts = Facts(role, shape, is_flat, "float64" if info.dtype == "float64" else "float32")
    return pa.field(info.name, sample if is_flat else list_of(sample), False, facts.metadata())


def list_of(item: pa.DataType, size: int = -1) -> pa.DataType:
    """Return the type of lists without nulls, of any size (-1) or of a fixed size."""
    return pa.list_(pa.field("item", item, False), size)


def entry_fields(number: pa.DataType) -> list[pa.Field]:
    """Return the fields of a sparse sample."""
    # The items may be null for Arrow, because `ListArray.from_arrays` makes such lists.
    return [pa.field("indices", pa.list_(pa.int32()), False), pa.field("values", pa.list_(number), False)]


def signed(schema: pa.Schema) -> pa.Schema:
    """Return a schema of types that Spark and Java have: without unsigned numbers and lists of a fixed size.

    A table is cast to it; a key of 2^63 or more does not fit.

    Args:
        schema: The schema of a corpus, such as `RecordBatches.schema`.

    Example:
        >>> signed(pa.schema([("key", pa.uint64()), ("x", pa.list_(pa.list_(pa.float32(), 2)))])).types
        [DataType(int64), ListType(list<item: list<item: float>>)]
    """

    def type_of(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(kind):
            return pa.struct([pa.field(field.name, type_of(field.type)) for field in kind])
        if is_list(kind):
            return pa.list_(type_of(kind.value_type))
        return _SIGNED.get(kind, kind)

    return pa.schema([pa.field(field.name, type_of(field.type)) for field in schema])


# The lists that `list_of` makes have offsets of 32 bits.
_LARGEST_OFFSET = 2**31 - 1


class RecordBatches(Displayed):
    """A corpus as a stream of record batches, for consumers of the Arrow PyCapsule interface.

    Each consumer reads the corpus anew: the first batch at once, and others up to the last batch that it requests. An
    error in the first batch is one of our exceptions. A later error arrives in an exception of the consumer, which
    begins with our message.

    The columns are the key (``uint64``, or ``string``; without keys the row number) and one for each stream, in which a
    row is a list of samples. A dense sample is a number if its dimension is 1, otherwise a list of fixed size. A sparse
    sample is a struct of two lists, ``indices`` (``int32``) and ``values``; in `ids` it is its class (``int32``). The
    metadata of a column contain the dimension of a sparse stream and the shape of a sample.

    Args:
        data: As for `cntkio.write_ctf`: a deserializer, a `MinibatchSource` with an end, a `Minibatch`, a mapping
            of names to arrays.
        key: Name of the column of keys; None: no such column.
        flat: Streams in which each sequence has one sample, to write without the list around the sample; True: all.
        ids: Streams whose samples are one-hot, to write as the class of each sample.

    Raises:
        ConfigError: A stream has the name of the column of keys, or `flat` or `ids` names an unknown stream.
        CorpusError: When batches are read: a sequence of a flat stream does not have exactly one sample, or a sample of
            a stream in `ids` is not a single entry of 1.

    Example:
        >>> from cntkio import CTFDeserializer, infer_streams
        >>> path = "examples/iris/iris.ctf"
        >>> flowers = RecordBatches(CTFDeserializer(path, infer_streams(path)), flat=True, ids=["species"])
        >>> pa.table(flowers).column_names
        ['key', 'lengths', 'species']
        >>> pa.table(flowers)["lengths"][0].as_py()
        [5.099999904632568, 3.5, 1.399999976158142, 0.20000000298023224]
        >>> pa.table(flowers)["species"][149].as_py()
        2
    """

    def __init__(
        self, data: Any, *, key: str | None = KEY, flat: Collection[str] | bool = False, ids: Collection[str] = ()
    ) -> None:
        self._data = data
        # Opened once for the streams alone, so that wrong arguments fail here and not in a consumer.
        with pieces_of(data) as pieces:
            self._columns = Columns(pieces.streams, pieces.has_text_keys, key, flat, ids)

    def _description(self) -> Description:
        title = f"RecordBatches: {counted(len(self.schema), 'column')}"
        return Description(title, ("column", "type"), [(field.name, str(field.type)) for field in self.schema])

    @property
    def schema(self) -> pa.Schema:
        """The columns, as a ``pyarrow.Schema``."""
        return self._columns.schema

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        batches = self.batches()
        first = list(islice(batches, 1))  # here, since consumers wrap what is raised later in exceptions of their own
        reader = pa.RecordBatchReader.from_batches(self.schema, chain(first, batches))
        return reader.__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()

    def reader(self, progress: Progress | None = None) -> pa.RecordBatchReader:
        """The batches as a ``pyarrow.RecordBatchReader``."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches(progress))

    def tables(self) -> Iterator[pa.Table]:
        """Yield the batches as tables of one batch."""
        return (pa.Table.from_batches([batch]) for batch in self.batches())

    def batches(self, progress: Progress | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the batches; `progress` is called with the number of pieces done, and their total (0: unknown)."""
        with pieces_of(self._data) as pieces:
            count = pieces.first
            for piece in pieces.reported(progress):
                yield self._columns.batch_of(piece, count)
                count += piece.chunk.num_sequences


@suggests_keywords
def convert(
    minibatch: Minibatch, *, key: str | None = KEY, flat: Collection[str] | bool = False, ids: Collection[str] = ()
) -> pa.RecordBatch:
    """Convert a minibatch to a record batch; values are not copied. Arguments and columns as for `RecordBatches`.

    Raises:
        ConfigError: The minibatch is truncated: it does not contain whole sequences. Or an argument is invalid, as for
            `RecordBatches`.
        CorpusError: A sequence of a flat stream does not have exactly one sample, or a sample of a stream in `ids` is
            not a single entry of 1.

    Example:
        >>> import cntkio
        >>> book = cntkio.read_ctf("examples/iris/iris.ctf")
        >>> convert(book).num_rows
        150
    """
    streams = list(minibatch.values())
    if any(not isinstance(data, MinibatchData) for data in streams):
        what = "rows are whole sequences, and a truncated minibatch has parts; read without truncation_length"
        raise ConfigError(what, key="truncation_length")
    keys = minibatch.keys_of_sequences
    infos = [data.stream for data in streams]
    return Columns(infos, keys.dtype.kind == "U", key, flat, ids).batch(keys, streams)


class Columns:
    """The columns of keys and of streams."""

    def __init__(
        self, streams: Sequence[StreamInformation], has_text_keys: bool,
        key: str | None, flat: Collection[str] | bool, ids: Collection[str],
    ) -> None:  # fmt: skip
        if not isinstance(key, str | None):
            raise ConfigError(f"key is {key!r}; expected the name of a column, or None", key="key")
        self._streams = streams
        names = [info.name for info in streams]
        if key in names:
            advice = f"give {caller().words.setting('key', 'NAME')}"
            raise ConfigError(f"the column of keys and a stream are both named {key!r}; {advice}", key="key")
        self._has_keys = key is not None
        self._flat = frozenset(names) if flat is True else _chosen("flat", flat, names)
        self._ids = _chosen("ids", ids, names)
        fields = [stream_field(info, info.name in self._flat, info.name in self._ids) for info in streams]
        if key is not None:
            kind = pa.string() if has_text_keys else pa.uint64()
            fields.insert(0, pa.field(key, kind, nullable=False, metadata=Facts("key").metadata()))
        self.schema = pa.schema(fields)

    def batch_of(self, piece: Piece, count: int) -> pa.RecordBatch:
        """Return a record batch of a piece, which has `count` sequences before it."""
        num_rows = piece.chunk.num_sequences
        chunk_indices, rows = np.zeros(num_rows, np.uint32), np.arange(num_rows, dtype=np.uint32)
        keys = Keys(range(count, count + num_rows)) if piece.keys is None else piece.keys
        columns = packed_columns(self._streams)
        request = _core.PackRequest([piece.chunk], chunk_indices, rows, columns, [0, num_rows])
        ((packed,),), _ = _core.pack([request], num_threads())
        streams = [MinibatchData.of(info, packed, index, False) for index, info in enumerate(self._streams)]
        return self.batch(keys[:], streams)

    def batch(self, keys: npt.NDArray[Any], streams: Iterable[MinibatchData]) -> pa.RecordBatch:
        """Return a record batch of some sequences, whose streams are in the order of the columns."""
        columns = []
        if self._has_keys:
            columns.append(pa.array(keys, self.schema.types[0]))
        columns += [self._column(data, keys) for data in streams]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _column(self, data: MinibatchData, keys: npt.NDArray[Any]) -> pa.Array:
        """Return a stream's column over the packer's arrays; only offsets are copied."""
        info, offsets = data.stream, data.offsets
        if info.name in self._ids:
            classes, unclear = classes_of(info, data.arrays)
            if unclear is not None:
                advice = f"leave the stream out of {caller().words.flag('ids')}"
                raise CorpusError(f"{no_class(data, unclear, keys)}; {advice}")
            samples = pa.array(classes)
        else:
            samples = _samples(data)
        if info.name not in self._flat:
            return pa.ListArray.from_arrays(_offsets(offsets, info), samples, type=list_of(samples.type))
        counts = np.diff(offsets)
        wrong = np.flatnonzero(counts != 1)
        if len(wrong):
            what = f"{counts[wrong[0]]} samples, but a flat column has one for each sequence"
            advice = f"leave the stream out of {caller().words.flag('flat')}"
            raise CorpusError(f"sequence {keys[wrong[0]]}, stream {info.name!r}: {what}; {advice}")
        return samples


def _chosen(option: str, names: Collection[str] | Literal[False], known: Sequence[str]) -> frozenset[str]:
    # A text is a collection, too: of its characters.
    if isinstance(names, str) or not (names is False or isinstance(names, Collection)):
        example = names if isinstance(names, str) else known[0]
        raise ConfigError(f"{option} is {names!r}; expected a list of names, such as [{example!r}]", key=option)
    chosen = frozenset(names or ())
    for name in chosen:
        if name not in known:
            raise ConfigError(f"{caller().words.flag(option)}: no stream {name!r}{there_are(name, known)}", key=option)
    return chosen


def _samples(data: MinibatchData) -> pa.Array:
    info, values, indptr, indices = data.stream, data.values, data.indptr, data.indices
    # The arrays of a minibatch that a program made may have strides.
    flat_values = pa.array(np.ascontiguousarray(values).reshape(-1))
    if indptr is None or indices is None:
        if info.dim == 1:
            return flat_values
        return pa.FixedSizeListArray.from_arrays(flat_values, type=list_of(flat_values.type, info.dim))
    bounds = _offsets(indptr, info)
    lists = [pa.ListArray.from_arrays(bounds, pa.array(indices)), pa.ListArray.from_arrays(bounds, flat_values)]
    return pa.StructArray.from_arrays(lists, fields=entry_fields(flat_values.type))


def _offsets(offsets: npt.NDArray[np.int64], info: StreamInformation) -> pa.Array:
    if offsets[-1] > _LARGEST_OFFSET:
        raise CorpusError(f"stream {info.name!r}: a batch has {offsets[-1]} items; expected at most {_LARGEST_OFFSET}")
    return pa.array(offsets.astype(np.int32))


# ---- Files.


def write_columns(path: AnyPath, columns: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays of equal length as the columns of a table; `cntkio.PlannedSteps` has such columns.

    Args:
        path: The file: Arrow if its name ends with ``.arrow``, ``.feather`` or ``.ipc``, else Parquet.
        columns: The arrays, by the names of the columns.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "steps.parquet"
        >>> write_columns(path, {"step": np.arange(3)})
        >>> parquet.read_table(path)["step"].to_pylist()
        [0, 1, 2]
    """
    table = pa.table(dict(columns))
    with written_whole(path) as target:
        if Path(path).suffix.lower() in (".arrow", ".feather", ".ipc"):
            with ipc.new_file(target, table.schema) as writer:
                writer.write_table(table)
        else:
            parquet.write_table(table, target)


@suggests_keywords
def write_parquet(
    path: AnyPath,
    data: Any,
    *,
    key: str | None = KEY,
    flat: Collection[str] | bool = False,
    ids: Collection[str] = (),
    compression: str = "zstd",
    progress: Progress | None = None,
    remote: Remote | None = None,
    **files: Unpack[Files],
) -> None:
    """Write a corpus to a Parquet file, with bounded memory; the file appears when it is complete.

    Other arguments as for `RecordBatches`.

    Args:
        path: The file.
        compression: Compression of the columns, by pyarrow's name: ``"zstd"``, ``"snappy"``, ``"none"``, …
        progress: Called with the number of pieces done and the number of all pieces (0: unknown).
        remote: As for `cntkio.write_cbf`.
        files: To write several files: the keywords of `cntkio.convert.Files`.

    Raises:
        ConfigError: An option is invalid.
        CorpusError: No sequence, a sequence of a flat stream does not have exactly one sample, or a sample of a stream
            in `ids` is not a single entry of 1.
        FormatError: The input breaks its format.
        OSError: A file cannot be read or written.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.parquet")
        >>> write_parquet(path, {"x": [np.float32([[1, 2]]), np.float32([[3, 4], [5, 6]])]})
        >>> parquet.read_table(path).to_pylist()
        [{'key': 0, 'x': [[1.0, 2.0]]}, {'key': 1, 'x': [[3.0, 4.0], [5.0, 6.0]]}]
    """
    options = {"key": key, "flat": flat, "ids": ids, "open_writer": partial(_OPEN_PARQUET, compression=compression)}
    write_pieces(write_parquet_file, path, pieces_of(data), files, progress, remote, **options)


@suggests_keywords
def write_arrow(
    path: AnyPath,
    data: Any,
    *,
    key: str | None = KEY,
    flat: Collection[str] | bool = False,
    ids: Collection[str] = (),
    progress: Progress | None = None,
    remote: Remote | None = None,
    **files: Unpack[Files],
) -> None:
    """Write a corpus to an Arrow file with random access, not compressed, so that it can be memory-mapped.

    Arguments and exceptions as for `write_parquet`.

    Example:
        >>> import cntkio, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "iris.arrow")
        >>> write_arrow(path, cntkio.read_ctf("examples/iris/iris.ctf"))
        >>> path.stat().st_size > 0
        True
    """
    options = {"key": key, "flat": flat, "ids": ids}
    write_pieces(write_arrow_file, path, pieces_of(data), files, progress, remote, **options)


_OPEN_PARQUET = partial(parquet.ParquetWriter, compression="zstd", write_page_checksum=True)


def write_parquet_file(
    path: str, corpus: Pieces, progress: Progress | None, remote: Remote | None, key: str | None = KEY,
    flat: Collection[str] | bool = False, ids: Collection[str] = (), open_writer: Callable[..., Any] = _OPEN_PARQUET,
) -> None:  # fmt: skip
    """Write a file, for `write_pieces`."""
    columns = Columns(corpus.streams, corpus.has_text_keys, key, flat, ids)
    # The inner writer ends first: it writes the footer before the file gets its name.
    with written_whole(path, remote=remote) as file, open_writer(file, columns.schema) as writer:
        for first, piece in corpus.written(progress):
            writer.write_batch(columns.batch_of(piece, first))


write_arrow_file = partial(write_parquet_file, open_writer=ipc.new_file)

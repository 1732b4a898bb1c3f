"""Corpora as record batches: one for each piece of the corpus."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cntkio import _core
from cntkio._threads import num_threads
from cntkio.arrow.fields import KEY, entry_fields, key_field, stream_field
from cntkio.convert import Piece, Pieces, Progress, pieces_of
from cntkio.errors import ConfigError, CorpusError
from cntkio.hints import did_you_mean
from cntkio.layouts import classes_of, no_class
from cntkio.minibatch import Minibatch, MinibatchData
from cntkio.streams import StreamInformation, packed_columns

_LARGEST_OFFSET = 2**31 - 1


class RecordBatches:
    """A corpus as a stream of record batches, for consumers of the Arrow PyCapsule interface.

    Each consumer reads the corpus anew, and only up to the last batch that it requests.

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
        self,
        data: Any,
        *,
        key: str | None = KEY,
        flat: Collection[str] | bool = False,
        ids: Collection[str] = (),
    ) -> None:
        if not isinstance(key, str | None):
            raise ConfigError(f"key is {key!r}; expected the name of a column, or None", key="key")
        self._data = data
        self._key = key
        with pieces_of(data) as pieces:
            self._forms = _Forms(pieces.streams, flat, ids)
            fields = self._forms.fields()
            if key is not None:
                if any(info.name == key for info in pieces.streams):
                    raise ConfigError(
                        f"the column of keys and a stream are both named {key!r}; give key=... another name, or None",
                        key="key",
                    )
                fields.insert(0, key_field(key, pa.string() if pieces.has_text_keys else pa.uint64()))
        self._schema = pa.schema(fields)

    @property
    def schema(self) -> pa.Schema:
        """The columns, as a ``pyarrow.Schema``."""
        return self._schema

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()

    def reader(self, progress: Progress | None = None) -> pa.RecordBatchReader:
        """The batches as a ``pyarrow.RecordBatchReader``."""
        return pa.RecordBatchReader.from_batches(self._schema, self.batches(progress))

    def tables(self) -> Iterator[pa.Table]:
        """Yield the batches as tables of one batch."""
        return (pa.Table.from_batches([batch]) for batch in self.batches())

    def batches(self, progress: Progress | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the batches; `progress` is called with the number of pieces done, and their total (0: unknown)."""
        count = 0
        with pieces_of(self._data) as pieces:
            for piece in pieces.reported(progress):
                yield self._batch(piece, pieces, count)
                count += piece.chunk.num_sequences

    def _batch(self, piece: Piece, pieces: Pieces, count: int) -> pa.RecordBatch:
        num_rows = piece.chunk.num_sequences
        layout = packed_columns(pieces.streams)
        chunk_indices, rows = np.zeros(num_rows, np.uint32), np.arange(num_rows, dtype=np.uint32)
        keys = np.arange(count, count + num_rows, dtype=np.uint64) if piece.keys is None else piece.keys
        (packed,) = _core.pack([([piece.chunk], chunk_indices, rows, layout, None, [0, len(rows)])], num_threads())
        columns: list[pa.Array] = [] if self._key is None else [_keys(keys)]
        for stream_index, info in enumerate(pieces.streams):
            columns.append(self._forms.column(MinibatchData.of(info, packed, stream_index, False), keys))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def convert(
    minibatch: Minibatch, *, key: str | None = KEY, flat: Collection[str] | bool = False, ids: Collection[str] = ()
) -> pa.RecordBatch:
    """Convert a minibatch to a record batch; values are not copied. Arguments and columns as for `RecordBatches`.

    Raises:
        ConfigError: The minibatch is truncated: it does not contain whole sequences.
        CorpusError: A sequence of a flat stream does not have exactly one sample, or a sample of a stream in `ids` is
            not a single entry of 1.

    Example:
        >>> import cntkio
        >>> book = cntkio.read_ctf("examples/iris/iris.ctf")
        >>> convert(book).num_rows
        150
    """
    for data in minibatch.values():
        if not isinstance(data, MinibatchData):
            raise ConfigError(
                "rows are whole sequences, and a truncated minibatch has parts; read without truncation_length",
                key="truncation_length",
            )
    forms = _Forms([data.stream for data in minibatch.values()], flat, ids)
    keys = minibatch.keys_of_sequences
    fields, columns = forms.fields(), [forms.column(data, keys) for data in minibatch.values()]
    if key is not None:
        columns.insert(0, _keys(keys))
        fields.insert(0, key_field(key, columns[0].type))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


class _Forms:
    """The forms of the columns of some streams."""

    def __init__(self, streams: list[StreamInformation], flat: Collection[str] | bool, ids: Collection[str]) -> None:
        self._streams = streams
        names = [info.name for info in streams]
        for option, given in (("flat", flat), ("ids", ids)):
            if isinstance(given, str):
                raise ConfigError(f"{option} is {given!r}; expected a list of names, such as [{given!r}]", key=option)
        self._flat = frozenset(names if flat is True else flat or ())
        self._ids = frozenset(ids)
        for option, chosen in (("flat", self._flat), ("ids", self._ids)):
            for name in chosen:
                if name not in names:
                    hint = did_you_mean(name, names)
                    raise ConfigError(f"{option}: no stream {name!r}; there are: {names}{hint}", key=option)

    def fields(self) -> list[pa.Field]:
        return [stream_field(info, info.name in self._flat, info.name in self._ids) for info in self._streams]

    def column(self, data: MinibatchData, keys: npt.NDArray[Any]) -> pa.Array:
        """Return a stream's column over the packer's arrays; only offsets are copied."""
        info, offsets = data.stream, data.offsets
        samples = _classes(data, keys) if info.name in self._ids else _samples(data)
        if info.name not in self._flat:
            kind = pa.list_(pa.field("item", samples.type, False))
            return pa.ListArray.from_arrays(_offsets(offsets, info), samples, type=kind)
        counts = np.diff(offsets)
        if (counts != 1).any():
            which = int(np.flatnonzero(counts != 1)[0])
            raise CorpusError(
                f"sequence {keys[which]}, stream {info.name!r}: {counts[which]} samples, but a flat column has one for "
                f"each sequence; leave the stream out of flat"
            )
        return samples


def _keys(keys: npt.NDArray[Any]) -> pa.Array:
    if keys.dtype.kind == "S":  # as UTF-8, invalid bytes escaped
        keys = np.strings.decode(keys, "utf-8", "backslashreplace")
    return pa.array(keys, pa.string() if keys.dtype.kind == "U" else pa.uint64())


def _classes(data: MinibatchData, keys: npt.NDArray[Any]) -> pa.Array:
    """Return the class of each sample of a one-hot stream."""
    classes, wrong = classes_of(data)
    if wrong is not None:
        raise CorpusError(f"{no_class(data, wrong, keys)}; leave the stream out of ids")
    return pa.array(classes)


def _samples(data: MinibatchData) -> pa.Array:
    info, values, indptr, indices = data.stream, data.values, data.indptr, data.indices
    flat_values = pa.array(np.ascontiguousarray(values).reshape(-1))
    if indptr is None or indices is None:
        return flat_values if info.dim == 1 else _fixed(flat_values, info.dim)
    bounds = _offsets(indptr, info)
    lists = [pa.ListArray.from_arrays(bounds, pa.array(indices)), pa.ListArray.from_arrays(bounds, flat_values)]
    return pa.StructArray.from_arrays(lists, fields=entry_fields(flat_values.type))


def _fixed(values: pa.Array, dim: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(values, type=pa.list_(pa.field("item", values.type, False), dim))


def _offsets(offsets: npt.NDArray[np.int64], info: StreamInformation) -> pa.Array:
    if offsets[-1] > _LARGEST_OFFSET:
        raise CorpusError(f"stream {info.name!r}: {offsets[-1]} in a batch; a list takes up to {_LARGEST_OFFSET}")
    return pa.array(offsets.astype(np.int32))

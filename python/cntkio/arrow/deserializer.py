"""`ArrowDeserializer`: files of tables as a corpus that is read where it is. (docs/formats/arrow.md)

A row group of a Parquet file, or a batch of an Arrow file or stream, is a chunk. The index reads the keys, and the
columns whose lists are sequences: their lengths. Chunks are read lazily, and by any number of threads.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute
from pyarrow import dataset as data_sets

import cntkio._core as _core
from cntkio.arguments import check_fields, check_word, float_type, suggests_keywords, there_are
from cntkio.arrow.batches import unlisted
from cntkio.arrow.corpus import (
    Rows,
    Shape,
    StreamColumn,
    categories,
    columns_of_categories,
    converted,
    has_text_keys,
    in_type,
    key_of,
    read,
    rows_of,
)
from cntkio.arrow.files import TableFile, open_table
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats.contract import (
    OPENING,
    Ahead,
    CorpusInFiles,
    Deserializer,
    Format,
    Index,
    KeysOf,
    Loaded,
    Opening,
    PlacesInFiles,
    ReadingOptions,
)
from cntkio.formats.corpus import FileCorpus, check_keys_of
from cntkio.formats.table import CountedKeys, Keys, SequenceTable, compact_keys, compact_lengths, key_texts
from cntkio.pieces import Classes
from cntkio.storage.file_lists import listed_files
from cntkio.storage.names import located, shown_files
from cntkio.storage.remote import Remote
from cntkio.storage.spans import span_at
from cntkio.storage.text_input import file_fingerprint
from cntkio.streams import StreamDefs

_T = TypeVar("_T")
Nulls = Literal["error", "drop"]
_STATE = "state.json"  # of a data set that Hugging Face saved in a folder


@suggests_keywords
@dataclasses.dataclass(eq=False)
class ArrowDeserializer:
    """Tables in Parquet, Arrow and Feather files as a corpus: a row is a sequence, and a row group or batch a chunk.

    A list is a sequence of samples. A number, or a list of a fixed size, is a sample; a column of such is a stream of
    sequences with one sample each. A struct of two lists, ``indices`` and ``values``, is a sparse sample. Whole numbers
    become int32 or int64, and floats keep their precision. (docs/formats/arrow.md)

    Args:
        data: The file; or several files that are one corpus: a pattern or a list; also URLs
            (docs/where-corpora-can-be.md). Or the folder of a data set that ``datasets.Dataset.save_to_disk`` wrote, or
            a ``pyarrow.dataset.Dataset`` of files, such as ``DeltaTable.to_pyarrow_dataset()``.
        columns: The columns to read as streams; None: all except the keys. Other columns are not read.
        key: The column of keys, whole numbers from 0 or texts, by which corpora are joined; None: the column that was
            written as keys, or else the column named ``key``, or else the number of the row.
        shapes: For columns that cntkio did not write: the shape of a dense sample, or the dimension of a sparse stream,
            which is required.
        one_hot: As for `read`.
        ids: Columns of a `ClassLabel` to read as whole numbers instead.
        defines_mb_size: The stream whose samples minibatch sizes count; None: the longest of each row.
        dtype: float32 or float64, for all values except classes; None: the types of the columns. A whole number that is
            not exact in it is an error.
        nulls: ``"error"``: a null is an error that names its row; ``"drop"``: a row with a null is left out.
        keys: As for `CTFDeserializer`.
        remote: As for `CTFDeserializer`.

    Raises:
        ConfigError: An option is not possible.

    Example:
        >>> import pathlib, tempfile
        >>> import pyarrow as pa
        >>> from cntkio import MinibatchSource
        >>> from pyarrow import parquet
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.parquet")
        >>> parquet.write_table(pa.table({"key": [7, 9], "tokens": [[1, 2**53 + 1], [3]]}), path)
        >>> with MinibatchSource(ArrowDeserializer(path), randomize=False, max_sweeps=1) as source:
        ...     minibatch = source.next_minibatch(9)
        >>> minibatch["tokens"].values.ravel().tolist(), minibatch["tokens"].offsets.tolist()
        ([1, 9007199254740993, 3], [0, 2, 3])
        >>> minibatch.keys_of_sequences.tolist()
        [7, 9]
    """

    data: Any
    _: dataclasses.KW_ONLY
    columns: Sequence[str] | None = None
    key: str | None = None
    shapes: Mapping[str, Shape] | None = None
    one_hot: Mapping[str, Classes] | None = None
    ids: Sequence[str] = ()
    defines_mb_size: str | None = None
    dtype: npt.DTypeLike | None = None
    nulls: Nulls = "error"
    keys: KeysOf = "unique"
    remote: Remote | None = None

    def __post_init__(self) -> None:
        """Check all options that can be checked without the files."""
        if isinstance(self.data, data_sets.Dataset):
            self.data, self.remote = _files_of(self.data, self.columns, self.remote)
        self.data, self.remote = located("data", self.data, self.remote)
        check_fields(self)
        check_keys_of(self.keys)
        check_word("nulls", self.nulls, "error", "drop")
        self.dtype = None if self.dtype is None else float_type("dtype", self.dtype)

    @property
    def label(self) -> str:
        """Name of the files in messages."""
        return shown_files(self.data)

    @property
    def has_text_keys(self) -> bool:
        """True if the keys of the first file are texts.

        Raises:
            OSError, FormatError, ConfigError: The file cannot be read, or does not fit the options.
        """
        with closing(open_table(self._paths()[0], self.remote)) as file, _named(file):
            return has_text_keys(file.schema, key_of(file.schema, self.key))

    def parts(self) -> Sequence[Deserializer]:
        """The deserializer itself."""
        return (self,)

    def open(self, opening: Opening = OPENING) -> FileCorpus:
        """Read the footers, the keys, and the lengths of the sequences; of a single file also the chunks asked for.

        Raises:
            OSError: A file cannot be read, or no file matches a pattern.
            FormatError: A file is neither Parquet nor Arrow, is damaged, or has a null among the keys.
            ConfigError: The options do not fit the columns, or files have different streams.
        """
        paths = self._paths()
        aheads = [opening.ahead] if len(paths) == 1 else None
        return FileCorpus(_ArrowFormat(self, opening, self._categories(paths)), paths, aheads, keys=self.keys)

    def _categories(self, paths: Sequence[str]) -> Mapping[str, Classes]:
        """Return the columns of categories, and the names of the classes in all files, which a pass over them finds."""
        found: dict[str, list[str]] = {}
        for path in paths:
            with closing(open_table(path, self.remote)) as file:
                with _named(file):
                    others = *(self.one_hot or {}), key_of(file.schema, self.key)
                    asked = columns_of_categories(file.schema, others)
                names = [name for name in asked if self.columns is None or name in self.columns]
                if not names:
                    # Files of a corpus have the same columns, so the other files have no categories either.
                    break
                batches = (file.read(number, names) for number in range(file.num_batches))
                for name, classes in categories(batches, names).items():
                    found[name] = list(dict.fromkeys((*found.get(name, ()), *classes)))
        return found

    def _paths(self) -> Sequence[str]:
        data = self.data
        state = Path(data, _STATE) if isinstance(data, str) else None
        if state is None or not state.is_file():
            return listed_files(data, option="data", remote=self.remote)
        try:
            names = [str(file["filename"]) for file in json.loads(state.read_text())["_data_files"]]
        except (ValueError, TypeError, KeyError):
            raise FormatError("not the state of a data set of Hugging Face", path=str(state)) from None
        # The files are next to the state, whatever folder a name in the state points to.
        return [str(state.with_name(Path(name).name)) for name in names]


def _files_of(
    data: data_sets.Dataset, columns: Sequence[str] | None, remote: Remote | None
) -> tuple[list[str], Remote | None]:
    """Return the files of a data set and where they are; refuse a set with other rows or columns than its files."""
    if not isinstance(data, data_sets.FileSystemDataset) or data.partition_expression is None:
        raise ConfigError(f"a {type(data).__name__} is not of files; expected a data set of files", key="data")
    try:
        # The list of files of a data set ignores its filter, so it would deliver other rows.
        fragments = list(data.get_fragments())
    except ValueError:  # pyarrow's answer if there is a filter
        expected = "all rows of its files: write the filtered rows to files of their own"
        raise ConfigError(f"this data set has a filter; expected {expected}", key="data") from None
    values = sorted({key for part in fragments for key in data_sets.get_partition_keys(part.partition_expression)})
    # pyarrow takes these columns from the names of folders; the files do not have them.
    if values and columns is None:
        what = f"the names of folders, not the files, have the values of {', '.join(map(repr, values))}"
        raise ConfigError(f"{what}; name the columns to read without them: columns=[...]", key="data")
    system = data.filesystem
    is_local = getattr(system, "type_name", "") == "local"
    return list(data.files), remote if is_local else Remote(store=system)


@contextmanager
def _named(file: TableFile) -> Iterator[None]:
    """Let errors about the columns of a file begin with its name."""
    try:
        yield
    except FormatError as error:
        raise FormatError(str(error), path=file.path) from None
    except ConfigError as error:
        raise type(error)(f"{file.path}: {error}", key=error.key) from None


class _Part(NamedTuple):
    """The rows of a chunk.

    Attributes:
        batch: Their batch or row group.
        first_row: Its first row in the file.
        kept: The rows of the batch that are kept; None: all.
    """

    batch: int
    first_row: int
    kept: npt.NDArray[np.int64] | None

    def rows_of(self, sequences: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        """Return the rows in the file of sequences of the chunk."""
        own = sequences.astype(np.int64) if self.kept is None else self.kept[sequences]
        return own + self.first_row


class _Layout(NamedTuple):
    """The format's own facts: the columns, and the part of the file of each chunk."""

    rows: Rows
    parts: list[_Part]


class _ArrowFormat(Format):
    def __init__(self, options: ArrowDeserializer, opening: Opening, of_categories: Mapping[str, Classes]) -> None:
        self._options, self._text_keys = options, opening.text_keys
        self._classes = {**of_categories, **(options.one_hot or {})}
        self.report = opening.report(options.label)

    def open(self, path: str, index: Index | None) -> TableFile:
        return open_table(path, self._options.remote)

    def rows(self, file: TableFile) -> Rows:
        """Return the columns of a file that are read."""
        options, schema = self._options, file.schema
        with _named(file):
            key = key_of(schema, options.key)
            if options.columns is not None:
                for name in options.columns:
                    if name not in schema.names:
                        raise ConfigError(f"no column {name!r}{there_are(name, schema.names)}", key="columns")
                asked = [*options.columns, *([] if key is None or key in options.columns else [key])]
                # The metadata of the schema have the class labels of Hugging Face.
                schema = pa.schema([schema.field(name) for name in asked], schema.metadata)
            rows = rows_of(schema, key, options.shapes, self._classes, options.ids)
            names = [info.name for info in rows.streams]
            definer = options.defines_mb_size
            if definer not in (None, *names):
                raise ConfigError(f"no stream {definer!r}{there_are(definer, names)}", key="defines_mb_size")
        return rows._replace(columns=[self._in_own_type(schema, column) for column in rows.columns])

    def _in_own_type(self, schema: pa.Schema, column: StreamColumn) -> StreamColumn:
        """Return a column as a stream whose values have the type of the column's, if that is a type of streams."""
        number = unlisted(schema.field(column.info.name).type)[-1]
        if pa.types.is_struct(number):
            number = number.field("values").type.value_type
        dtype = self._options.dtype
        if dtype is None and not pa.types.is_floating(number):
            # int32 has no room for all numbers of uint32.
            most_bits = 32 if pa.types.is_signed_integer(number) else 16
            dtype = np.int64 if pa.types.is_integer(number) and number.bit_width > most_bits else np.int32
        if dtype is not None and not column.is_ids:
            column = in_type(column, dtype)
        defines = column.info.name == self._options.defines_mb_size
        return dataclasses.replace(column, info=dataclasses.replace(column.info, defines_mb_size=defines))

    def index(self, file: TableFile, ahead: Ahead) -> tuple[Index, list[_core.Chunk]]:
        rows, drops = self.rows(file), self._options.nulls == "drop"
        definer = self._options.defines_mb_size
        of_lists = [column for column in rows.columns if not column.is_flat and definer in (None, column.info.name)]
        names, keys_of = [column.info.name for column in of_lists], [] if rows.key is None else [rows.key]
        of_all = [*keys_of, *(info.name for info in rows.streams)]
        of_index = of_all if drops else [*keys_of, *names]
        layout, num_rows = _Layout(rows, []), 0
        chunks: list[_core.Chunk] = []
        # Lists are decoded for their lengths, so a chunk that is needed immediately is not decoded a second time.
        room = ahead.num_bytes if ahead.num_chunks is None or file.num_batches <= ahead.num_chunks else 0
        keys: list[npt.NDArray[Any]] = []
        all_lengths: list[npt.NDArray[np.uint32]] = [np.zeros(0, np.uint32)]
        for number in range(file.num_batches):
            needed = of_all if room > 0 else of_index
            batch = file.read(number, needed) if needed else None
            count = file.num_rows(number) if batch is None else batch.num_rows
            kept = _without_nulls(batch) if drops and batch is not None else None
            if batch is not None and kept is not None:
                batch = batch.take(pa.array(kept))
            # Each sequence of a table needs a length of at least 1, so a row of empty lists counts as one sample.
            lengths = np.ones(count if kept is None else len(kept), np.uint32)
            # A row group or batch without rows is not a chunk.
            if len(lengths):
                layout.parts.append(_Part(number, num_rows, kept))
                # Errors name rows by their numbers in the file, where dropped rows count, too.
                own = layout.parts[-1].rows_of(np.arange(len(lengths)))
                for column in of_lists:
                    np.maximum(lengths, _converted(file, column.lengths, batch, own), out=lengths)
                if rows.key is not None:
                    keys.append(self._stored(file, _converted(file, rows.own_keys, batch, own), own))
                all_lengths.append(lengths)
                if batch is not None and room > 0:
                    try:
                        chunks.append(_chunk_of(file, rows, batch, own))
                        room -= chunks[-1].num_bytes
                    except FormatError:  # the read that needs the chunk raises it
                        room = 0
            num_rows += count
        lengths = np.concatenate(all_lengths)
        counted = rows.key is None
        table = SequenceTable(
            CountedKeys(0, len(lengths)) if counted else _joined(keys),
            compact_lengths(lengths),
            np.cumsum([0, *map(len, all_lengths[1:])]),
            options={"columns": names, "nulls": self._options.nulls},
        )
        fingerprint = file_fingerprint(file.stored, table.num_sequences)
        index = Index(
            file.path, tuple(rows.streams), table, fingerprint, layout, file.stamp, file.size,
            num_lines=len(lengths) if counted else None, why_empty=f"{file.path}: no row to read",
        )  # fmt: skip
        return index, chunks

    def _stored(self, file: TableFile, keys: npt.NDArray[Any], rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return keys as the table keeps them: numbers, or words as bytes."""
        if keys.dtype.kind == "u" and not self._text_keys:
            return keys
        words = key_texts(keys)
        if (words == b"").any():
            row = rows[int(np.argmax(words == b""))]
            raise FormatError(f"row {row}: an empty key; expected a word", path=file.path)
        return words

    def parse(self, file: TableFile, index: Index, chunk_id: int, sequences: npt.NDArray[np.uint32] | None) -> Loaded:
        rows, part = index.layout.rows, index.layout.parts[chunk_id]
        batch = file.read(part.batch, [info.name for info in rows.streams])
        own = part.rows_of(np.arange(batch.num_rows if part.kept is None else len(part.kept)))
        if sequences is not None:
            own = own[sequences]
        # `take` copies, so a whole batch goes without it.
        if len(own) < batch.num_rows:
            batch = batch.take(pa.array(own - part.first_row))
        return Loaded(chunk_id, _chunk_of(file, rows, batch, own), sequences=sequences)

    def place(self, file: TableFile, index: Index, sequences: npt.NDArray[np.int64]) -> PlacesInFiles:
        """Return the files of sequences. Their lines are their rows, from 1."""
        starts = index.table.chunk_starts
        chunks = span_at(starts, sequences)
        rows = np.zeros(len(sequences), np.int64)
        for chunk_id in np.unique(chunks).tolist():
            mine = chunks == chunk_id
            rows[mine] = index.layout.parts[chunk_id].rows_of(sequences[mine] - starts[chunk_id])
        return PlacesInFiles([index.name], np.zeros(len(sequences), np.int64), None, rows + 1)


def _converted(
    file: TableFile, convert: Callable[[pa.RecordBatch], _T], batch: pa.RecordBatch, own: npt.NDArray[np.int64]
) -> _T:
    """Return what a function makes of a batch, whose rows have these numbers in the file."""
    try:
        return converted(convert, batch, own.__getitem__)
    except CorpusError as error:
        raise FormatError(str(error), path=file.path) from None


def _chunk_of(file: TableFile, rows: Rows, batch: pa.RecordBatch, own: npt.NDArray[np.int64]) -> _core.Chunk:
    columns, _ = _converted(file, rows._replace(key=None).taken, batch, own)
    return _core.Chunk.from_columns(batch.num_rows, list(columns), is_packed=True)


def _joined(keys: Sequence[npt.NDArray[Any]]) -> Keys:
    if not keys:
        return np.zeros(0, np.uint64)
    joined = np.concatenate(keys)
    if joined.dtype.kind == "S":
        return joined
    return compact_keys(joined, are_ascending=bool((joined[1:] > joined[:-1]).all()))


def _without_nulls(batch: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
    """Return the rows of a batch that have no null at any depth; None: all."""
    is_null = np.zeros(batch.num_rows, np.bool_)
    for column in batch.columns:
        is_null |= _nulls_in(column)
    return np.flatnonzero(~is_null) if is_null.any() else None


def _nulls_in(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which items of an array are null, or have a null in them."""
    found: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_struct(array.type):
        for field in array.flatten():
            found |= _nulls_in(field)
    elif unlisted(array.type)[1:]:
        # A null list has no items in the flattened array.
        lengths = compute.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        ends = np.cumsum(lengths)
        # A list has a null if the number of nulls before its end is larger than before its beginning.
        before = np.append(0, np.cumsum(_nulls_in(array.flatten())))
        found |= before[ends] > before[ends - lengths]
    return found


def in_files(names: str | list[str], options: ReadingOptions) -> CorpusInFiles:
    """Return tables as the verbs read them (see `cntkio.formats.contract`)."""
    shapes = {name: stream.dim for name, stream in StreamDefs(options.streams).items()}
    given: dict[str, Any] = {"key": options.key, "shapes": shapes, "one_hot": options.one_hot}
    deserializer = ArrowDeserializer(
        names, columns=list(shapes) or None, keys=options.keys or "unique", dtype=options.dtype, **given
    )
    return CorpusInFiles(
        deserializers=[deserializer],
        chunk_sizes=", a row group or a batch each",
        has_precisions=True,
        # `read` takes a single file, and chooses the precisions itself.
        open_table=partial(read, names, **given) if isinstance(names, str) and options.dtype is None else None,
    )

"""`ArrowDeserializer`: tables in files and in memory as a corpus. (docs/formats/arrow.md)

A row group of a Parquet file, a batch of an Arrow file or stream, or some rows of a table in memory are a chunk. The
index reads the keys, and the columns whose lists are sequences: their lengths. Chunks are read lazily, and by any
number of threads.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import dataset as data_sets

import cntkio._core as _core
from cntkio.arguments import caller, check_fields, check_word, float_type, suggests_keywords, there_are
from cntkio.arrow.columns import (
    Rows,
    Shapes,
    StreamColumn,
    categories,
    columns_of_categories,
    columns_of_streams,
    has_text_keys,
    key_of,
    rows_of,
)
from cntkio.arrow.files import Access, Table, open_table
from cntkio.arrow.kept import PartOfTable, TableIndex
from cntkio.arrow.memory import name_of, pieces_in, table_in_memory
from cntkio.arrow.types import lengths_of, unlisted
from cntkio.displays import counted
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats.contract import (
    OPENING,
    Ahead,
    Corpus,
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
from cntkio.formats.corpus import opened_corpus, without_empty
from cntkio.formats.losses import Rounded
from cntkio.formats.pieces import Classes, Piece, Pieces, joined, pieces_of_corpus
from cntkio.formats.table import (
    Keys,
    SequenceTable,
    compact_lengths,
    digest_of,
)
from cntkio.minibatch import Minibatch
from cntkio.storage.file_lists import listed_files
from cntkio.storage.index_cache import CacheFiles
from cntkio.storage.names import located, shown_files
from cntkio.storage.remote import Remote
from cntkio.storage.spans import span_at
from cntkio.streams import StreamDefs, StreamInformation

_T = TypeVar("_T")
Nulls = Literal["error", "drop"]
_STATE = "state.json"  # of a data set that Hugging Face saved in a folder


@suggests_keywords
@dataclasses.dataclass(eq=False)
class ArrowDeserializer(Deserializer):
    """A table in files or in memory as a corpus: a row is a sequence, and a row group or batch of a file is a chunk.

    A list is a sequence of samples. A number, or a list of a fixed size, is a sample; a column of such is a stream of
    sequences with one sample each. A struct of two lists, ``indices`` and ``values``, is a sparse sample. Whole numbers
    become int32 or int64, and floats keep their precision. (docs/formats/arrow.md)

    Args:
        data: A Parquet, Arrow or Feather file; or several files that are one corpus: a pattern or a list; also URLs
            (docs/where-corpora-can-be.md). Or the folder of a data set that ``datasets.Dataset.save_to_disk`` wrote, or
            a ``pyarrow.dataset.Dataset`` of files, such as ``DeltaTable.to_pyarrow_dataset()``. Or a table in memory: a
            data frame of pandas or polars, a table, or anything else with ``__arrow_c_stream__``; a data set of Hugging
            Face; a list of tables of pyarrow; or a mapping of names to columns: arrays and tensors with one sample per
            row, series, or lists.
        columns: The columns to read as streams; None: all except the keys. Other columns are not read.
        key: The column of keys, whole numbers from 0 or texts, by which corpora are joined; None: the column that was
            written as keys, or else the column named ``key``, or else the number of the row.
        shapes: For columns that cntkio did not write: the shape of a dense sample, or the dimension of a sparse stream,
            which is required. Or the schema of a table that cntkio wrote (`RecordBatches.schema`), if a library dropped
            the metadata of its columns.
        one_hot: Columns of class ids or texts, which become one-hot streams, and their numbers of classes, or the names
            of the classes in order. Columns of categories (of pandas, polars and Arrow) and of a `ClassLabel` of
            Hugging Face become one-hot streams by themselves.
        ids: Columns of a `ClassLabel` to read as whole numbers instead.
        defines_mb_size: The stream whose samples minibatch sizes count; None: the longest of each row.
        dtype: float32 or float64, for all values except classes; None: the types of the columns. A whole number that is
            not exact in it is an error.
        nulls: ``"error"``: a null is an error that names its row; ``"drop"``: a row with a null is left out.
        keys: As for `CTFDeserializer`.
        cache_index: As for `CTFDeserializer`, for files: keep what opening reads. Encrypted files have no cache.
        memory_map: Map local files, so that of a large batch only the parts in use are in memory. If another process
            changes a file during a read, the read is an error; if it truncates the file, the operating system can end
            this process (SIGBUS). False: copy what is read, which no other process can change.
        decryption_properties: For encrypted Parquet files: the keys, as for ``pyarrow.parquet.ParquetFile``.
        remote: As for `CTFDeserializer`.

    Attributes:
        label: Name in messages: the files, or the type of the table.

    Raises:
        ConfigError: An option is not possible, or the data are not a table.

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
    shapes: Shapes = None
    one_hot: Mapping[str, Classes] | None = None
    ids: Sequence[str] = ()
    defines_mb_size: str | None = None
    dtype: npt.DTypeLike | None = None
    nulls: Nulls = "error"
    keys: KeysOf = "unique"
    cache_index: bool | Literal["verify"] = False
    memory_map: bool = False
    decryption_properties: Any = None
    remote: Remote | None = None
    label: str = dataclasses.field(init=False, repr=False, default="")

    def __post_init__(self) -> None:
        """Check all options that can be checked without the files."""
        if isinstance(self.data, data_sets.Dataset):
            self.data, self.remote = _files_of(self.data, self.columns, self.remote)
        if self._is_in_memory():
            self.label = name_of(self.data)
        else:
            self.data, self.remote = located("data", self.data, self.remote)
            self.label = shown_files(self.data)
        check_fields(self, words={"cache_index": "verify"})
        check_word("keys", self.keys, *get_args(KeysOf))
        check_word("nulls", self.nulls, "error", "drop")
        self.dtype = None if self.dtype is None else float_type("dtype", self.dtype)

    def _is_in_memory(self) -> bool:
        names = self.data if isinstance(self.data, list | tuple) and self.data else [self.data]
        return not all(isinstance(name, str | bytes | os.PathLike) for name in names)

    @property
    def streams(self) -> list[StreamInformation]:
        """The streams. Reads the columns of the first file, and the names of classes in all files.

        Raises:
            OSError, FormatError, ConfigError: The file cannot be read, or does not fit the options.
        """
        with self._first() as (form, table):
            return form.rows(table).streams

    @property
    def has_text_keys(self) -> bool:
        """True if the keys of the first file are texts. Exceptions as for `streams`."""
        with closing(next(self._filled())[1]) as table, _named(table):
            return has_text_keys(table.schema, key_of(table.schema, self.key))

    def open(self, opening: Opening = OPENING) -> Corpus:
        """Read the footers, the keys, and the lengths of the sequences; of a single file also the chunks asked for.

        Raises:
            OSError: A file cannot be read, or no file matches a pattern.
            FormatError: A file is neither Parquet nor Arrow, is damaged, or has a null among the keys.
            ConfigError: The options do not fit the columns, or files have different streams.
        """
        self._keep_rows()
        paths = self._paths()
        form = self._format(opening, paths)
        return opened_corpus(form, paths, [opening.ahead] if len(paths) == 1 else None, keys=self.keys)

    @contextmanager
    def pieces(self) -> Iterator[Pieces]:
        """The sequences in order, for the writers. Of a single table, some megabytes are in memory at a time."""
        if len(self._paths()) > 1:
            with pieces_of_corpus(self) as pieces:
                yield pieces
            return
        with self._first() as (form, table):
            rows = form.rows(table)
            pieces_of_rows = form.pieces(table, rows)
            made = Pieces(table.path, rows.streams, pieces_of_rows, table.num_pieces, rows.has_text_keys)
            if self.nulls == "error":  # a row that is dropped moves those after it
                made = made._replace(places=partial(_places_of_rows, table.path))
            yield made._replace(counts_keys=rows.key is None)

    @contextmanager
    def _first(self) -> Iterator[tuple[_ArrowFormat, Table]]:
        form = self._format(OPENING, self._paths())
        with closing(next(self._filled())[1]) as table:
            yield form, table

    def _filled(self) -> Iterator[tuple[str, Table]]:
        """Open the files that are not empty, or the table in memory."""
        return without_empty(self._paths(), lambda path: (path, self.table(path)))

    def table(self, path: str, *, text_keys: bool = False, facts: object = None) -> Table:
        """Open a file, or the table in memory. `facts`: as for `Access`."""
        if not self._is_in_memory():
            verify = self.cache_index == "verify"
            access = Access(
                self.remote, self.memory_map, self.decryption_properties, verifies_cache=verify, facts=facts
            )
            # A cache would show the lengths and the keys of an encrypted file.
            if self.cache_index and self.decryption_properties is None:
                access = access._replace(settings={"format": "table", "options": self._digest(text_keys)})
            return open_table(path, access)
        table = table_in_memory(self.data)
        table.path = self.label
        return table

    def _digest(self, text_keys: bool) -> str:
        """Return a checksum of the options on which the index depends."""
        shapes: Any = self.shapes
        shapes = shapes.serialize().to_pybytes() if isinstance(shapes, pa.Schema) else sorted((shapes or {}).items())
        classes = sorted((self.one_hot or {}).items())
        options = (
            self.columns and list(self.columns),
            self.key,
            shapes,
            classes,
            sorted(self.ids),
            self.defines_mb_size,
        )
        return hashlib.blake2b(repr((options, self.nulls, text_keys)).encode(), digest_size=16).hexdigest()

    def _keep_rows(self) -> None:
        """Keep the rows of a reader, which delivers them once."""
        if isinstance(self.data, pa.RecordBatchReader):
            self.data = self.data.read_all()

    def _format(self, opening: Opening, paths: Sequence[str]) -> _ArrowFormat:
        found: dict[str, list[str]] = {}
        order: list[str] = []
        form = _ArrowFormat(self, opening)
        for path, opened in without_empty(paths, lambda path: (path, form.open(path, None))):
            form.facts[path] = opened.storage.stamp
            with closing(opened) as table:
                with _named(table):
                    others = *(self.one_hot or {}), key_of(table.schema, self.key)
                    asked = columns_of_categories(table.schema, others)
                order = order or table.schema.names
                names = [name for name in asked if self.columns is None or name in self.columns]
                if not names:
                    # Files of a corpus have the same columns, so the other files have no categories either.
                    break
                self._keep_rows()
                # Each batch has a dictionary of its own, so the classes are known only after a pass over the data.
                kept, batches = table.kept, partial(self.table, path, facts=table.storage.stamp)
                own = categories(batches().in_order(names), names) if kept is None else kept.classes
                form.own_classes[table.path] = own
                for name, classes in own.items():
                    found[name] = list(dict.fromkeys((*found.get(name, ()), *classes)))
        form.classes, form.order = {**found, **(self.one_hot or {})}, order
        return form

    def _paths(self) -> Sequence[str]:
        data = self.data
        if self._is_in_memory():
            return (self.label,)
        state = Path(data, _STATE) if isinstance(data, str) else None
        if state is None or not state.is_file():
            if state is not None and self.remote is None:
                _refuse_folders_of_parts(state.parent)
            return listed_files(data, option="data", remote=self.remote)
        try:
            names = [str(file["filename"]) for file in json.loads(state.read_text())["_data_files"]]
        except (ValueError, TypeError, KeyError):
            raise FormatError("not the state of a data set of Hugging Face", path=str(state)) from None
        # The files are next to the state, whatever folder a name in the state points to.
        return [str(state.with_name(Path(name).name)) for name in names]


def _refuse_folders_of_parts(folder: Path) -> None:
    """Refuse folders whose subfolders are the parts of a `DatasetDict`, or have values of columns in their names."""
    found = sorted(child.name for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else []
    splits = [name for name in found if Path(folder, name, _STATE).is_file()]
    if splits:
        names = ", ".join(repr(str(folder / name)) for name in splits)
        raise ConfigError(f"{folder} has several data sets; expected one of them: {names}", key="data")
    values = sorted({name.partition("=")[0] for name in found if "=" in name})
    if values:
        what = f"{folder}: the names of its folders, not the files, have the values of {', '.join(map(repr, values))}"
        files = str(folder / "**" / "*.parquet")
        raise ConfigError(f"{what}; to read the files without them, give the pattern {files!r}", key="data")


ArrowCorpus = ArrowDeserializer
"""The earlier name of what `read` returns."""


@suggests_keywords
def read(
    data: Any, *, key: str | None = None, shapes: Shapes = None, one_hot: Mapping[str, Classes] | None = None,
    memory_map: bool = False, decryption_properties: Any = None, remote: Remote | None = None,
) -> ArrowDeserializer:  # fmt: skip
    """Return a table as a corpus, after a look at its columns. Arguments and exceptions as for `ArrowDeserializer`.

    Raises:
        ConfigError: A column is not a stream, its shape is unknown, or keys are neither whole numbers nor texts.
        FormatError: The file is neither Parquet nor Arrow, or is damaged. While the corpus is read: a column has nulls,
            samples of different sizes, an index beyond the dimension, or a number that would be rounded.
        CorpusError: While the corpus is read: the same faults in a table that is not in a file.
        OSError: The file cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> from cntkio import write_ctf
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.ctf")
        >>> table = pa.table({"x": [[1.0], [2.0, 3.0]], "word": [[5], [6, 7]], "key": [7, 9]})
        >>> write_ctf(path, read(table, one_hot={"word": 943}))
        >>> path.read_text().splitlines()
        ['7\\t|x 1 |word 5:1', '9\\t|x 2 |word 6:1', '9\\t|x 3 |word 7:1']
    """
    access: dict[str, Any] = {
        "memory_map": memory_map,
        "decryption_properties": decryption_properties,
        "remote": remote,
    }
    table = ArrowDeserializer(data, key=key, shapes=shapes, one_hot=one_hot, **access)
    _ = table.streams  # for its errors
    return table


def read_minibatch(
    data: Any, *, key: str | None = None, shapes: Shapes = None, one_hot: Mapping[str, int] | None = None
) -> Minibatch:
    """Read a whole table into arrays. Arguments and exceptions as for `read`.

    Args:
        data: As for `read`; the columns of a mapping may also be arrays of objects, as in batches of Ray and pandas.

    Example:
        >>> read_minibatch({"x": [[1.0], [2.0, 3.0]], "key": [7, 9]})["x"].offsets.tolist()
        [0, 1, 3]
    """
    if isinstance(data, Mapping) and isinstance(shapes, pa.Schema):
        data = dict(data)
        for field in shapes:  # empty sequences do not show their type
            if isinstance(column := data.get(field.name), np.ndarray) and column.dtype == object:
                data[field.name] = pa.array(column, field.type)
    with ArrowDeserializer(data, key=key, shapes=shapes, one_hot=one_hot).pieces() as pieces:
        return joined(pieces)


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
def _named(table: Table) -> Iterator[None]:
    """Let errors about the columns of a table begin with its name."""
    try:
        yield
    except FormatError as error:
        raise FormatError(str(error), path=table.path) from None
    except ConfigError as error:
        raise type(error)(f"{table.path}: {error}", key=error.key) from None


class _Layout(NamedTuple):
    """The format's own facts: the columns, and the part of the file of each chunk."""

    rows: Rows
    parts: Sequence[PartOfTable]


class _Pass:
    """Result of a pass over a table.

    Args:
        room: Bytes of chunks to prepare.
    """

    def __init__(self, rows: Rows, room: int) -> None:
        self.rows, self.room, self.num_rows = rows, room, 0
        self.parts: list[PartOfTable] = []
        self.sizes: list[int] = [0]
        self.keys: list[Keys] = []
        self.lengths: list[npt.NDArray[np.uint32]] = [np.zeros(0, np.uint32)]
        self.samples: list[npt.NDArray[Any]] = []
        self.chunks: list[_core.Chunk] = []
        # The shortest and the longest list of the columns whose lists may be samples.
        self.spans: dict[str, tuple[int, int]] = {}


class _ArrowFormat(Format):
    """Reads tables.

    Attributes:
        classes: The classes of columns, in all files together.
        order: The columns of the first file, whose order holds for all files.
        own_classes: The classes of columns of categories in each file.
        facts: Facts about files that were opened for their columns; the next opening need not ask a store again.
    """

    def __init__(self, options: ArrowDeserializer, opening: Opening) -> None:
        self._options, self._text_keys = options, opening.text_keys
        self.classes: Mapping[str, Classes] = {}
        self.order: Sequence[str] = ()
        self.own_classes: dict[str, dict[str, list[str]]] = {}
        self.facts: dict[str, object] = {}
        self.report = opening.report(options.label)

    def open(self, path: str, index: Index | None) -> Table:
        facts = self.facts.pop(path, None) if index is None else None
        return self._options.table(path, text_keys=self._text_keys, facts=facts)

    def rows(self, table: Table) -> Rows:
        """Return the columns of a table that are read."""
        options, schema = self._options, table.schema
        with _named(table):
            key = key_of(schema, options.key)
            names = [name for name in options.columns or () if name != key]
            if options.columns is None:
                order = {name: rank for rank, name in enumerate(self.order)}
                names = sorted(columns_of_streams(schema, key), key=lambda name: order.get(name, len(order)))
            rows = rows_of(schema, key, names, options.shapes, self.classes, options.ids)
            definer = options.defines_mb_size
            if definer not in (None, *names):
                raise ConfigError(f"no stream {definer!r}{there_are(definer, names)}", key="defines_mb_size")
        return rows._replace(columns=list(map(self._as_asked, rows.columns)))

    def _as_asked(self, column: StreamColumn) -> StreamColumn:
        """Return a column in the type that the caller asks for, with its say on the size of minibatches."""
        info = column.info
        dtype = np.dtype(info.dtype if column.is_ids or self._options.dtype is None else self._options.dtype)
        defines = info.name == self._options.defines_mb_size
        return dataclasses.replace(column, info=dataclasses.replace(info, dtype=dtype, defines_mb_size=defines))

    def pieces(self, table: Table, rows: Rows) -> Iterator[Piece]:
        """Yield the sequences of a table in order."""
        first, names = 0, [*([] if rows.key is None else [rows.key]), *(info.name for info in rows.streams)]
        rounded = Rounded(np.float32)
        if self._options.dtype == np.float32:
            rows = rows._replace(columns=[dataclasses.replace(column, rounded=rounded) for column in rows.columns])
        for batch in pieces_in(table.in_order(names)):
            own = np.arange(first, first + batch.num_rows)
            first += batch.num_rows
            batch, own = self._kept(batch, own)
            columns, own_keys = _converted(table, rows.taken, batch, own)
            chunk = _core.Chunk.from_columns(len(own), list(columns))
            keys = None if own_keys is None else self._checked(table, own_keys, own)
            yield Piece(chunk, keys, self._lengths(table, rows, batch, own, {}))
        rounded.log(table.path)

    def log_rounded(self, path: str, index: Index) -> None:
        if self._options.dtype == np.float32:
            with closing(self.open(path, index)) as table:
                deque(self.pieces(table, self.rows(table)), maxlen=0)  # which log it at their end

    def _kept(self, batch: pa.RecordBatch, own: npt.NDArray[np.int64]) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        """Return the rows that are kept, and their numbers in the table."""
        kept = _without_nulls(batch) if self._options.nulls == "drop" else None
        return (batch, own) if kept is None else (batch.take(pa.array(kept)), own[kept])

    def _of_lists(self, rows: Rows) -> list[StreamColumn]:
        definer = self._options.defines_mb_size
        return [column for column in rows.columns if not column.is_flat and definer in (None, column.info.name)]

    def _lengths(
        self, table: Table, rows: Rows, batch: pa.RecordBatch | None, own: npt.NDArray[np.int64],
        spans: dict[str, tuple[int, int]],
    ) -> npt.NDArray[np.uint32]:  # fmt: skip
        # Each sequence of a table needs a length of at least 1, so a row of empty lists counts as one sample.
        lengths = np.ones(len(own), np.uint32)
        for column in self._of_lists(rows):
            of_column = _converted(table, column.lengths, batch, own)
            np.maximum(lengths, of_column, out=lengths)
            if len(own) and column.may_be_samples:
                least, most = spans.get(column.info.name, (2**32, 0))
                spans[column.info.name] = min(least, int(of_column.min())), max(most, int(of_column.max()))
        return lengths

    def index(self, table: Table, ahead: Ahead) -> tuple[Index, list[_core.Chunk]]:
        rows, kept = self.rows(table), table.kept
        storage = table.storage
        caches, chunks = CacheFiles(companions=storage.companions), list[_core.Chunk]()
        if kept is not None:
            found, caches = kept.table, caches._replace(indexes=kept.paths)
        else:
            # Lists are decoded for their lengths, so a chunk that is needed immediately is not decoded a second time.
            room = ahead.num_bytes if ahead.num_chunks is None or table.num_batches <= ahead.num_chunks else 0
            found, chunks = self._pass_over(table, rows, room)
            caches = caches._replace(writers=table.keep(found, self.own_classes.get(table.path, {})))
        self._say_what_is_doubtful(table, found)
        count, has_no_keys = len(found.lengths), rows.key is None
        options = {"columns": [each.info.name for each in self._of_lists(rows)], "nulls": self._options.nulls}
        sequences = SequenceTable(found.keys, found.lengths, found.chunk_starts, options=options)
        index = Index(
            tuple(rows.streams), sequences, _Layout(rows, found.parts), fingerprint=found.fingerprint,
            num_lines=count if has_no_keys else None, why_empty="no row to read", caches=(caches,), part_in_bytes=0,
        )  # fmt: skip
        return index, chunks

    def _pass_over(self, table: Table, rows: Rows, room: int) -> tuple[TableIndex, list[_core.Chunk]]:
        """Make the index, and chunks of up to `room` bytes."""
        found = _Pass(rows, room)
        for run in table.runs():
            self._examine(table, run, found)
        lengths = np.concatenate(found.lengths)
        keys = Keys(range(len(lengths))) if rows.key is None else Keys.joined(found.keys)
        again = keys.repeated()
        index = TableIndex(
            keys, compact_lengths(lengths), np.cumsum(found.sizes), found.parts,
            (len(again), keys[again[0]]) if len(again) else None, found.spans,
            table.fingerprint(len(lengths), digest_of(found.samples)),
        )  # fmt: skip
        return index, found.chunks

    def _say_what_is_doubtful(self, table: Table, found: TableIndex) -> None:
        """Warn of equal keys, and of lists that may be samples."""
        if found.again is not None:
            what = f"{counted(found.again[0], 'row')} with the key of an earlier row, such as {found.again[1]}"
            advice = "a table that is joined with another one gives only the first row; expected different keys"
            self.report.log_together("repeated id", found.again[0], f"{table.path}: {what}; {advice}")
        for name, (least, most) in found.spans.items():
            if least == most > 1 and len(found.lengths) > 1 and not self.report.is_observed:
                shapes = caller().words.number_of("shapes", name).replace("...", str(most))
                what = f"every list has {most} values; if a list is one sample, give {shapes}"
                self.report.log(f"lists of {name}", f"{table.path}, column {name!r}: {what}", most=1)

    def _examine(self, table: Table, run: range, found: _Pass) -> None:
        """Add some batches, which are read together, to what a pass found."""
        rows, first = found.rows, found.num_rows
        keys = [] if rows.key is None else [rows.key]
        names = [*keys, *(info.name for info in rows.streams)]
        if self._options.nulls == "error" and found.room <= 0 and table.is_file:
            names = [*keys, *(column.info.name for column in self._of_lists(rows))]
        batch = table.read_run(run, names) if names else None
        sizes = [batch.num_rows] if len(run) == 1 and batch is not None else list(map(table.num_rows, run))
        ends = np.cumsum([first, *sizes])
        own, found.num_rows = np.arange(first, ends[-1]), int(ends[-1])
        if batch is not None:
            batch, own = self._kept(batch, own)
        found.lengths.append(self._lengths(table, rows, batch, own, found.spans))
        if rows.key is not None:
            found.keys.append(self._checked(table, _converted(table, rows.own_keys, batch, own), own))
        if not table.is_file and len(own):
            found.samples += _some_values(table, rows, batch, own)
        cuts = np.searchsorted(own, ends).tolist()
        for number, begin, end, cut, next_cut in zip(
            run, ends.tolist(), ends[1:].tolist(), cuts, cuts[1:], strict=False
        ):
            # A row group or batch without rows is not a chunk.
            if cut == next_cut:
                continue
            kept = None if next_cut - cut == end - begin else own[cut:next_cut] - begin
            found.parts.append(PartOfTable(number, begin, kept))
            found.sizes.append(next_cut - cut)
            if found.room > 0 and batch is not None:
                try:
                    part = batch.slice(cut, next_cut - cut)
                    found.chunks.append(_chunk_of(table, rows, part, own[cut:next_cut]))
                    found.room -= found.chunks[-1].num_bytes
                except (CorpusError, FormatError):  # the read that needs the chunk raises it
                    found.room = 0

    def _checked(self, table: Table, keys: npt.NDArray[Any], rows: npt.NDArray[np.int64]) -> Keys:
        """Return keys as numbers, or as words if the source asks for words; refuse empty words."""
        if keys.dtype.kind == "u" and not self._text_keys:
            return Keys.compact(keys)
        words = Keys(keys).words()
        if (words == b"").any():
            row = rows[int(np.argmax(words == b""))]
            raise table.error(f"row {row}: an empty key; expected a word")
        return Keys(words)

    def parse(self, file: Table, index: Index, chunk_id: int, sequences: npt.NDArray[np.uint32] | None) -> Loaded:
        rows, part = index.layout.rows, index.layout.parts[chunk_id]
        batch = file.read(part.batch, [info.name for info in rows.streams])
        if file.kept is not None and not self._fits(file, index, chunk_id, batch):
            raise file.kept.error(file.path)
        own = part.rows_of(np.arange(batch.num_rows if part.kept is None else len(part.kept)))
        if sequences is not None:
            own = own[sequences]
        # `take` copies, so a whole batch goes without it.
        if len(own) < batch.num_rows:
            batch = batch.take(pa.array(own - part.first_row))
        return Loaded(chunk_id, _chunk_of(file, rows, batch, own), sequences=sequences)

    def _fits(self, file: Table, index: Index, chunk_id: int, batch: pa.RecordBatch) -> bool:
        """Return whether a batch has the rows and lengths that an index cache promises."""
        (first, last), part, rows = index.table.bounds_of(chunk_id), index.layout.parts[chunk_id], index.layout.rows
        if part.kept is not None:
            # Ascending, so that no row is read twice; a row with a null is refused when it is converted.
            if (np.diff(part.kept, prepend=-1, append=batch.num_rows) <= 0).any():
                return False
            batch = batch.take(pa.array(part.kept))
        if batch.num_rows != last - first:
            return False
        own = part.rows_of(np.arange(last - first))
        return np.array_equal(self._lengths(file, rows, batch, own, {}), index.table.lengths[first:last])

    def place(self, file: Table, index: Index, sequences: npt.NDArray[np.int64]) -> PlacesInFiles:
        """Return the files of sequences. Their lines are their rows, from 1."""
        starts = index.table.chunk_starts
        chunks = span_at(starts, sequences)
        rows = np.zeros(len(sequences), np.int64)
        for chunk_id in np.unique(chunks).tolist():
            mine = chunks == chunk_id
            rows[mine] = index.layout.parts[chunk_id].rows_of(sequences[mine] - starts[chunk_id])
        return _places_of_rows(index.name, rows)


def _places_of_rows(path: str, rows: npt.NDArray[np.int64]) -> PlacesInFiles:
    return PlacesInFiles([path], np.zeros(len(rows), np.int64), None, rows + 1)


def _converted(
    table: Table, convert: Callable[[pa.RecordBatch], _T], batch: pa.RecordBatch, own: npt.NDArray[np.int64]
) -> _T:
    """Return what a function makes of a batch, whose rows have these numbers in the table; refuse a wrong row."""

    def error_of(part: pa.RecordBatch) -> CorpusError | None:
        try:
            convert(part)
        except CorpusError as error:
            return error
        return None

    try:
        found = convert(batch)
    except CorpusError as error:
        table.storage.require_unchanged()
        # The first rows of a batch fail together as soon as a wrong row is among them, so a binary search finds this
        # row.
        firsts = range(batch.num_rows)
        row = bisect.bisect_left(firsts, True, key=lambda last: error_of(batch.slice(0, last + 1)) is not None)
        raise table.error(f"row {own[row]}, {error_of(batch.slice(row, 1)) or error}") from None
    # Of a mapped file, the conversion reads the bytes themselves.
    if table.is_mapped:
        table.storage.require_unchanged()
    return found


def _chunk_of(table: Table, rows: Rows, batch: pa.RecordBatch, own: npt.NDArray[np.int64]) -> _core.Chunk:
    def chunk_of(rows_of_chunk: pa.RecordBatch) -> _core.Chunk:
        columns, _ = without_keys.taken(rows_of_chunk)
        return _core.Chunk.from_columns(rows_of_chunk.num_rows, list(columns), is_packed=True)

    without_keys = rows._replace(key=None)
    return _converted(table, chunk_of, batch, own)


_NUM_SAMPLES = 64


def _some_values(
    table: Table, rows: Rows, batch: pa.RecordBatch, own: npt.NDArray[np.int64]
) -> Iterator[npt.NDArray[Any]]:
    """Yield the values of some rows of a batch, for the checksum of the content."""
    count = max(_NUM_SAMPLES // table.num_batches, 1)
    some = np.unique(np.linspace(0, len(own) - 1, count).astype(np.int64))
    columns, _ = _converted(table, rows._replace(key=None).taken, batch.take(pa.array(some)), own[some])
    for column in columns:
        yield from (column.sequence_offsets, column.values, *(column.sparse or ()))


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
        lengths = lengths_of(array)
        ends = np.cumsum(lengths)
        # A list has a null if the number of nulls before its end is larger than before its beginning.
        before = np.append(0, np.cumsum(_nulls_in(array.flatten())))
        found |= before[ends] > before[ends - lengths]
    return found


_FROM_OPTIONS = ("keys", "dtype", "key", "one_hot", "cache_index")


def in_files(names: str | list[str], options: ReadingOptions) -> list[CorpusInFiles]:
    """Return tables as the verbs read them (see `cntkio.formats.contract`)."""
    shapes = {name: stream.dim for name, stream in StreamDefs(options.get("streams", {})).items()}
    given: dict[str, Any] = {name: options.get(name) for name in _FROM_OPTIONS if name in options}
    deserializer = ArrowDeserializer(names, columns=list(shapes) or None, shapes=shapes, **given)
    chunk_sizes = ", a row group or a batch each"
    return [CorpusInFiles(deserializers=[deserializer], chunk_sizes=chunk_sizes)]

"""Corpora as data frames of Spark, and back: `spark.read.format("cntkio.ctf")`. (docs/spark.md)

::

    corpus ──> CorpusChunks ──> input partitions: runs of consecutive chunks ──> Arrow record batches
    data frame ──> a file of each task, in a folder next to the final one ──> the folder gets its name when all are done

An input partition holds a small value, the chunks, and opens the corpus where it is read. Index caches travel with the
reader to machines that lack them. Only this module imports PySpark.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

try:
    import pyarrow as pa
    from pyarrow.fs import FileSelector, FileSystem, FileType, FSSpecHandler, LocalFileSystem, PyFileSystem
    from pyspark import TaskContext
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        InputPartition,
        WriterCommitMessage,
    )
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType
except ModuleNotFoundError as error:
    what = f"cntkio.spark needs {error.name}, which is not installed: pip install 'pyspark>=4' pyarrow"
    raise ModuleNotFoundError(what, name=error.name) from None

from cntkio.arguments import there_are, whole_number
from cntkio.arrow import KEY, ArrowDeserializer, RecordBatches, signed
from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.cbf import CBFDeserializer, write_cbf
from cntkio.formats.ctf import CTFDeserializer, infer_streams, write_ctf
from cntkio.formats.pieces import CorpusChunks, corpus_chunks
from cntkio.formats.written_files import OutputFolder
from cntkio.storage.file_lists import absolute_names, in_one_text
from cntkio.storage.index_cache import CacheCopy
from cntkio.storage.names import FileNames
from cntkio.storage.remote import Remote
from cntkio.streams import StreamDef, StreamDefs

__all__ = ["CBFSource", "CTFSource", "register"]

_MOST_PARTITIONS = 200
_OF_COLUMNS = ("key", "flat", "ids")
_OF_WRITERS = ("key", "one_hot", "renumber", "shapes")
_MOST_BYTES_OF_CACHES = 64 << 20
"""Tasks get copies of the index caches up to this total size, because each task gets a copy of all."""


def register(spark: SparkSession) -> None:
    """Register the formats ``cntkio.ctf`` and ``cntkio.cbf`` with a session.

    Args:
        spark: The session.

    Example:
        >>> register(SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate())
    """
    for source in (CTFSource, CBFSource):
        spark.dataSource.register(source)


class _Opened(NamedTuple):
    """A corpus to read.

    Attributes:
        chunks: Its chunks.
        form: Options of `RecordBatches`.
        schema: The columns that are read.
        num_parts: The most tasks.
        index_caches: The files of its index caches.
    """

    chunks: CorpusChunks
    form: dict[str, Any]
    schema: pa.Schema
    num_parts: int
    index_caches: list[Path]


class CTFSource(DataSource):  # type: ignore[misc]
    """A text: `spark.read.format("cntkio.ctf").load(path)`. A row is a sequence; columns as for `RecordBatches`.

    The path may be a pattern or a URL, or several of them with semicolons between them.

    Options are the options of `CTFDeserializer`, with the index cached by default, and `key`, `flat` and `ids` of
    `RecordBatches`. Values that are not texts are JSON. ``streams`` maps names to the arguments of `StreamDef`; by
    default they are inferred. ``columns`` is a list of streams: only these are read, without complaints about sequences
    that lack one, since Spark does not tell a source in Python which columns a query needs. ``remote`` has the
    arguments of `Remote`. ``num_partitions`` is the number of tasks: by default one for each chunk, at most 200.

    `frame.write.format("cntkio.ctf").mode("append").save(folder)` writes each part of a data frame as a file of a
    folder that has no files yet; ``mode("overwrite")`` replaces the folder. Options are ``shapes``, ``one_hot`` and
    ``key`` of `ArrowDeserializer`, ``renumber`` of `write_ctf`, and ``remote``. The folder is there when all tasks are
    done, or not at all; in a store, a driver that is killed while it moves the files leaves some of them.

    Raises:
        ConfigError: The path is missing, or an option is invalid.
        FormatError: The corpus breaks its format.
        OSError: The file cannot be read.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        given = {name: _value(text) for name, text in options.items()}
        if "paths" in given:  # several paths in load(...)
            given["path"] = given.pop("paths")
        if "path" not in given:
            raise ConfigError(f"{self.name()}: no path; expected load(path)", key="path")
        paths = given.pop("path")
        # The text of a single path, not its value: as JSON, a file named 1e5 would be a number.
        texts = [str(path) for path in paths] if isinstance(paths, list) else in_one_text(options["path"])
        if "remote" in given:
            given["remote"] = Remote(**_arguments("remote", given["remote"], '{"num_requests": 16}'))
        self._texts, self._given = [texts] if isinstance(texts, str) else texts, given

    @cached_property
    def _corpus(self) -> _Opened:
        given = self._given.copy()
        path = absolute_names(self._texts, given.get("remote"))
        form = {"key": KEY, **{name: given.pop(name) for name in _OF_COLUMNS if name in given}}
        definitions = _streams(given.pop("streams")) if "streams" in given else None
        columns = given.pop("columns", None)
        num_parts = whole_number("num_partitions", given.pop("num_partitions", _MOST_PARTITIONS), least=1)
        chunks, index_caches = self._opened(path, definitions, given, columns)
        schema = signed(RecordBatches(chunks, **form).schema)
        names = _chosen(columns, [stream.name for stream in chunks.streams])
        schema = pa.schema([field for field in schema if field.name in {form["key"], *names}])
        return _Opened(chunks, form, schema, num_parts, index_caches)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "cntkio.ctf"

    def _opened(
        self, path: FileNames, streams: StreamDefs | None, options: dict[str, Any], columns: object
    ) -> tuple[CorpusChunks, list[Path]]:
        definitions = infer_streams(path, remote=options.get("remote")) if streams is None else streams
        if columns is not None:
            definitions = StreamDefs({name: definitions[name] for name in _chosen(columns, definitions)})
            options = {"subset": True, **options}
        deserializer = CTFDeserializer(path, definitions, **{"cache_index": True, **options})
        return corpus_chunks(deserializer), deserializer.index_caches()

    def schema(self) -> StructType:
        """Return the columns."""
        return from_arrow_schema(self._corpus.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return an object that reads the corpus."""
        chunks, form, read, num_parts, index_caches = self._corpus
        are_small = sum(path.stat().st_size for path in index_caches) <= _MOST_BYTES_OF_CACHES
        caches = [(CacheCopy(path), path.read_bytes()) for path in index_caches] if are_small else []
        return _Reader(chunks, form, read, num_parts, caches)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return an object that writes a data frame.

        Raises:
            ConfigError: An option is not known, or the folder is in memory, which the tasks do not see.
            FileExistsError: The folder has files, and is not to be replaced.
        """
        options = self._given.copy()
        remote = options.pop("remote", None)
        for name in options:
            if name not in _OF_WRITERS:
                raise ConfigError(f"{self.name()} has no option {name!r} of writers{there_are(name, _OF_WRITERS)}")
        if len(self._texts) != 1:
            raise ConfigError(f"{self.name()}: {len(self._texts)} paths; expected one folder", key="path")
        return _Writer(self.name().rpartition(".")[2], OutputFolder(self._texts[0], remote), options, overwrite)


class CBFSource(CTFSource):
    """A binary corpus: `spark.read.format("cntkio.cbf").load(path)`, with the options of `CBFDeserializer`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "cntkio.cbf"

    def _opened(
        self, path: FileNames, streams: StreamDefs | None, options: dict[str, Any], columns: object
    ) -> tuple[CorpusChunks, list[Path]]:
        # A binary file contains its own index, so it needs no cache.
        return corpus_chunks(CBFDeserializer(path, StreamDefs() if streams is None else streams, **options)), []


class _Reader(DataSourceReader):  # type: ignore[misc]
    def __init__(
        self, chunks: CorpusChunks, form: dict[str, Any], schema: pa.Schema, num_parts: int,
        index_caches: list[tuple[CacheCopy, bytes]],
    ) -> None:  # fmt: skip
        self._chunks, self._form, self._schema = chunks, form, schema
        self._num_parts, self._index_caches = num_parts, index_caches

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(part) for part in self._chunks.split(self._num_parts)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for copy, content in self._index_caches:
            copy.place(partial(bytes, content))
        for table in RecordBatches(partition.value, **self._form).tables():
            try:
                # Spark has neither unsigned numbers nor lists of a fixed size (`signed`).
                yield from table.select(self._schema.names).cast(self._schema).to_batches()
            except pa.ArrowInvalid as error:
                what = f"{partition.value.name}: a key is too large for Spark, which has no unsigned numbers ({error})"
                raise CorpusError(f"{what}; leave the keys out with the option key='null'") from None


@dataclasses.dataclass
class _Message(WriterCommitMessage):  # type: ignore[misc]
    name: str | None  # of the file that a task has written; None: the task has no rows


class _Writer(DataSourceArrowWriter):  # type: ignore[misc]
    def __init__(self, form: str, folder: OutputFolder, options: dict[str, Any], overwrite: bool) -> None:
        if not overwrite:
            folder.require_empty("an empty folder, or mode('overwrite')")
        self._form, self._folder, self._options = form, folder, options
        self._ending = f".cntkio-{secrets.token_hex(8)}.part"
        self._staged = OutputFolder(f"{folder.path}{self._ending}", folder.remote)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        first = next(iterator, None)
        if first is None:
            return _Message(None)
        options, task = self._options.copy(), TaskContext.get()
        # A task that Spark repeats, or runs twice, writes a file of its own.
        name = f"{task.partitionId():06}-{task.taskAttemptId()}.{self._form}"
        numbers = {"renumber": options.pop("renumber")} if "renumber" in options else {}
        rows = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], iterator))
        data = ArrowDeserializer(rows, **options)
        data.label = f"data frame, part {task.partitionId()}"
        self._staged.begin()
        writers: dict[str, Callable[..., None]] = {"ctf": write_ctf, "cbf": write_cbf}
        writers[self._form](self._staged.file(name), data, remote=self._staged.remote, **numbers)
        return _Message(name)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        names = [message.name for message in messages if message is not None and message.name is not None]
        if not names:
            raise CorpusError(f"{self._folder.path}: no sequence to write")
        system, path = _file_system(self._folder)
        staged, former = f"{path}{self._ending}", f"{path}{self._ending}.former"
        for info in system.get_file_info(FileSelector(staged)):
            if info.base_name not in names:
                system.delete_file(info.path)
        is_replaced = system.get_file_info(path).type != FileType.NotFound
        if is_replaced:
            system.move(path, former)
        system.move(staged, path)
        if is_replaced:
            system.delete_dir(former)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        system, path = _file_system(self._folder)
        if system.get_file_info(f"{path}{self._ending}").type != FileType.NotFound:
            system.delete_dir(f"{path}{self._ending}")


def _file_system(folder: OutputFolder) -> tuple[FileSystem, str]:
    """Return the file system of a folder, and its path there."""
    if not folder.is_remote:
        return LocalFileSystem(), folder.path
    from fsspec.core import url_to_fs  # late: only stores need it

    system, path = url_to_fs(folder.path, **(folder.remote or Remote()).storage_options)
    return PyFileSystem(FSSpecHandler(system)), path


def _chosen(columns: object, known: Collection[str]) -> Collection[str]:
    """Return the streams that the option ``columns`` names; by default all."""
    if columns is None:
        return known
    if not isinstance(columns, list):
        raise ConfigError(f'columns is {columns!r}; expected a JSON list of streams, such as ["x"]', key="columns")
    for name in columns:
        if name not in known:
            raise ConfigError(f"columns: no stream {name!r}{there_are(name, known)}", key="columns")
    return columns


def _arguments(name: str, value: Any, example: str) -> dict[str, Any]:
    # The message leaves out the value, which may contain credentials.
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is not a JSON object; expected one such as {example}", key=name)
    return value


def _streams(value: Any) -> StreamDefs:
    example = '{"field": "x", "shape": 2}'
    items = _arguments("streams", value, f'{{"x": {example}}}').items()
    return StreamDefs({name: StreamDef(**_arguments(f"streams: {name!r}", stream, example)) for name, stream in items})


def _value(text: str) -> Any:
    """Read an option: JSON, or else a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text

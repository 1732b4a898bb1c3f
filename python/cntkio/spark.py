"""Corpora as data frames of Spark: `spark.read.format("cntkio.ctf")`. (docs/spark.md)

::

    corpus ──> CorpusChunks ──> input partitions: runs of consecutive chunks ──> Arrow record batches

An input partition holds a small value, the chunks, and opens the corpus where it is read. Index caches travel with the
reader to machines that lack them. Only this module imports PySpark.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

try:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType
except ModuleNotFoundError as error:
    what = f"cntkio.spark needs {error.name}, which is not installed: pip install 'pyspark>=4' pyarrow"
    raise ModuleNotFoundError(what, name=error.name) from None

from cntkio.arguments import there_are, whole_number
from cntkio.arrow import KEY, RecordBatches, signed
from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.cbf import CBFDeserializer
from cntkio.formats.ctf import CTFDeserializer, infer_streams
from cntkio.formats.pieces import CorpusChunks, corpus_chunks
from cntkio.storage.file_lists import absolute_names, in_one_text
from cntkio.storage.index_cache import CacheCopy
from cntkio.storage.names import FileNames
from cntkio.storage.remote import Remote
from cntkio.streams import StreamDef, StreamDefs

__all__ = ["CBFSource", "CTFSource", "register"]

_MOST_PARTITIONS = 200
_OF_COLUMNS = ("key", "flat", "ids")
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


class CTFSource(DataSource):  # type: ignore[misc]
    """A text: `spark.read.format("cntkio.ctf").load(path)`. A row is a sequence; columns as for `RecordBatches`.

    The path may be a pattern or a URL, or several of them with semicolons between them.

    Options are the options of `CTFDeserializer`, with the index cached by default, and `key`, `flat` and `ids` of
    `RecordBatches`. Values that are not texts are JSON. ``streams`` maps names to the arguments of `StreamDef`; by
    default they are inferred. ``columns`` is a list of streams: only these are read, without complaints about sequences
    that lack one, since Spark does not tell a source in Python which columns a query needs. ``remote`` has the
    arguments of `Remote`. ``num_partitions`` is the number of tasks: by default one for each chunk, at most 200.

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
        path = absolute_names(texts, given.get("remote"))
        self._num_parts = whole_number("num_partitions", given.pop("num_partitions", _MOST_PARTITIONS), least=1)
        self._form = {"key": KEY, **{name: given.pop(name) for name in _OF_COLUMNS if name in given}}
        definitions = _streams(given.pop("streams")) if "streams" in given else None
        columns = given.pop("columns", None)
        self._chunks, self._index_caches = self._opened(path, definitions, given, columns)
        schema = signed(RecordBatches(self._chunks, **self._form).schema)
        names = _chosen(columns, [stream.name for stream in self._chunks.streams])
        self._schema = pa.schema([field for field in schema if field.name in {self._form["key"], *names}])

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
        return from_arrow_schema(self._schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return an object that reads the corpus."""
        are_small = sum(path.stat().st_size for path in self._index_caches) <= _MOST_BYTES_OF_CACHES
        caches = [(CacheCopy(path), path.read_bytes()) for path in self._index_caches] if are_small else []
        return _Reader(self._chunks, self._form, self._schema, self._num_parts, caches)


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

"""Corpora as data frames of Spark: `spark.read.format("cntkio.ctf")`. (docs/spark.md)

::

    corpus ──> CorpusChunks ──> input partitions: runs of consecutive chunks ──> Arrow record batches

An input partition holds a small value, the chunks, and opens the corpus where it is read. Only this module imports
PySpark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

try:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"cntkio.spark needs {error.name}, which is not installed: pip install 'pyspark>=4' pyarrow", name=error.name
    ) from None

from cntkio.arrow import KEY, RecordBatches, signed
from cntkio.convert import CorpusChunks, corpus_chunks
from cntkio.errors import ConfigError
from cntkio.formats.cbf import CBFDeserializer
from cntkio.formats.contract import Deserializer
from cntkio.formats.ctf import CTFDeserializer, infer_streams
from cntkio.formats.file_lists import FileNames, absolute_names, in_one_text
from cntkio.formats.remote import Remote
from cntkio.streams import StreamDef, StreamDefs

__all__ = ["CBFSource", "CTFSource", "register"]

_MOST_PARTITIONS = 200
_OF_COLUMNS = ("key", "flat", "ids")


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
    `RecordBatches`. Values other than texts are JSON. ``streams`` maps names to the arguments of `StreamDef`; by
    default they are inferred. ``remote`` has the arguments of `Remote`. ``num_partitions`` is the number of tasks: by
    default one for each chunk, at most 200.

    Raises:
        ConfigError: The path is missing, or an option is not possible.
        FormatError: The corpus breaks its format.
        OSError: The file cannot be read.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        given = {name: _value(text) for name, text in options.items()}
        if "path" not in given:
            raise ConfigError(f"{self.name()}: no path; expected load(path)", key="path")
        del given["path"]
        if isinstance(given.get("remote"), dict):
            given["remote"] = Remote(**given["remote"])
        path = absolute_names(in_one_text(options["path"]), given.get("remote"))
        self._num_parts = given.pop("num_partitions", _MOST_PARTITIONS)
        self._form = {"key": KEY, **{name: given.pop(name) for name in _OF_COLUMNS if name in given}}
        streams = given.pop("streams", None)
        definitions = streams and StreamDefs({name: StreamDef(**stream) for name, stream in streams.items()})
        self._chunks = corpus_chunks(self._deserializer(path, definitions, given))

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "cntkio.ctf"

    def _deserializer(self, path: FileNames, streams: StreamDefs | None, options: dict[str, Any]) -> Deserializer:
        definitions = infer_streams(path, remote=options.get("remote")) if streams is None else streams
        return CTFDeserializer(path, definitions, **{"cache_index": True, **options})

    def schema(self) -> StructType:
        """Return the columns."""
        return from_arrow_schema(signed(RecordBatches(self._chunks, **self._form).schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return an object that reads the corpus."""
        return _Reader(self._chunks, self._form, self._num_parts)


class CBFSource(CTFSource):
    """A binary corpus: `spark.read.format("cntkio.cbf").load(path)`, with the options of `CBFDeserializer`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "cntkio.cbf"

    def _deserializer(self, path: FileNames, streams: StreamDefs | None, options: dict[str, Any]) -> Deserializer:
        return CBFDeserializer(path, StreamDefs() if streams is None else streams, **options)


class _Reader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, chunks: CorpusChunks, form: dict[str, Any], num_parts: int) -> None:
        self._chunks, self._form, self._num_parts = chunks, form, num_parts

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(part) for part in self._chunks.split(self._num_parts)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        batches = RecordBatches(partition.value, **self._form)
        schema = signed(batches.schema)
        for table in batches.tables():
            yield from table.cast(schema).to_batches()


def _value(text: str) -> Any:
    """Read an option: JSON, or else a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text

"""Corpora as data sets of Ray Data, and back. (docs/ray.md)

::

    corpus ──> CorpusChunks ──> read tasks: runs of consecutive chunks ──> blocks: one Arrow table a chunk
    Dataset ──> blocks ──> a text or a binary file for each task, or one file for all

A read task holds a small value, the chunks, and opens the corpus where it runs. Index caches travel through Ray's
object store to machines that lack them. Only this module imports Ray.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

try:
    import pyarrow as pa
    import ray.data
    from ray.data.block import BlockAccessor, BlockMetadata
    from ray.data.datasource import Datasink, Datasource, ReadTask
except ModuleNotFoundError as error:
    what = f"cntkio.ray needs {error.name}, which is not installed: pip install 'ray[data]' pyarrow"
    raise ModuleNotFoundError(what, name=error.name) from None

from cntkio import arrow
from cntkio.arguments import check_word
from cntkio.arrow import KEY, RecordBatches
from cntkio.arrow.types import unlisted
from cntkio.convert import write_cbf, write_ctf
from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.cbf import CBFDeserializer
from cntkio.formats.contract import Deserializer
from cntkio.formats.ctf import CTFDeserializer, infer_streams
from cntkio.formats.htk import HTKFeatureDeserializer
from cntkio.formats.pieces import Classes, CorpusChunks, corpus_chunks
from cntkio.formats.written_files import OutputFolder
from cntkio.storage.file_lists import absolute_names
from cntkio.storage.index_cache import CacheCopy
from cntkio.storage.names import FileNames
from cntkio.storage.output_file import AnyPath
from cntkio.storage.remote import Remote
from cntkio.streams import StreamDefs

__all__ = [
    "CorpusDatasink", "CorpusDatasource", "read_cbf", "read_ctf", "read_htk", "write", "write_to_one_cbf",
    "write_to_one_ctf",
]  # fmt: skip

_BYTES_OF_AN_ENTRY = 8


def read_ctf(
    path: FileNames,
    streams: StreamDefs | Mapping[str, Any] | None = None,
    *,
    key: str | None = KEY,
    flat: Collection[str] | bool = False,
    ids: Collection[str] = (),
    override_num_blocks: int | None = None,
    **options: Any,
) -> ray.data.Dataset:
    """Read a text as a data set, a row for each sequence.

    Columns, `key`, `flat` and `ids` are as for `cntkio.arrow.RecordBatches`. The index is made here and cached;
    machines that do not find the cache get a copy of it. Rows come in any order unless Ray's `preserve_order` is set;
    the keys tell the order.

    Args:
        path: The file, which every machine can read; or several, as for `CTFDeserializer`: a pattern, a list, URLs in a
            remote store, compressed files.
        streams: The streams; None: all that `infer_streams` finds.
        override_num_blocks: Number of read tasks, at most one for each chunk; None: Ray decides.
        options: As for `CTFDeserializer`; `cache_index` is True by default.

    Raises:
        FormatError: The text breaks its format.
        OSError: The file cannot be read.

    Example:
        >>> _ = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
        >>> read_ctf("examples/iris/iris.ctf", flat=True, ids=["species"]).sort("key").take(1)[0]["species"]
        0
    """
    remote = options.get("remote")
    # Tasks run in other working directories.
    names = absolute_names(path, remote)
    definitions = infer_streams(names, remote=remote) if streams is None else StreamDefs(streams)
    # Without a cache, every task would make the index of the whole text.
    deserializer = CTFDeserializer(names, definitions, **{"cache_index": True, **options})
    chunks = corpus_chunks(deserializer)
    source = CorpusDatasource(chunks, key=key, flat=flat, ids=ids, index_caches=deserializer.index_caches())
    return ray.data.read_datasource(source, override_num_blocks=override_num_blocks)


def read_cbf(
    path: FileNames,
    streams: StreamDefs | Mapping[str, Any] | None = None,
    *,
    key: str | None = KEY,
    flat: Collection[str] | bool = False,
    ids: Collection[str] = (),
    override_num_blocks: int | None = None,
) -> ray.data.Dataset:
    """Read a binary corpus as a data set. Arguments and exceptions as for `read_ctf`.

    Example:
        >>> import tempfile
        >>> _ = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
        >>> path = Path(tempfile.mkdtemp(), "a.cbf")
        >>> write_cbf(path, {"x": [[1, 2], [3, 4]]})
        >>> read_cbf(path).count()
        2
    """
    deserializer = CBFDeserializer(absolute_names(path), StreamDefs(streams or {}))
    source = CorpusDatasource(deserializer, key=key, flat=flat, ids=ids)
    return ray.data.read_datasource(source, override_num_blocks=override_num_blocks)


def read_htk(
    streams: StreamDefs | Mapping[str, Any],
    *,
    key: str | None = KEY,
    flat: Collection[str] | bool = False,
    override_num_blocks: int | None = None,
    **options: Any,
) -> ray.data.Dataset:
    """Read HTK features as a data set. Other arguments as for `read_ctf`.

    Args:
        streams: As for `HTKFeatureDeserializer`.
        options: As for `HTKFeatureDeserializer`.

    Raises:
        ConfigError: An option is invalid.
        FormatError: A file breaks its format.
        OSError: A file cannot be read.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from cntkio import StreamDef, write_htk_features
        >>> _ = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_htk_features(folder / "a.mfc", np.ones((5, 3), np.float32))
        >>> _ = (folder / "a.scp").write_text(f"a={folder}/a.mfc[0,4]\\n")
        >>> read_htk({"x": StreamDef(scp=str(folder / "a.scp"), shape=3)}).count()
        1
    """
    source = CorpusDatasource(HTKFeatureDeserializer(StreamDefs(streams), **options), key=key, flat=flat)
    return ray.data.read_datasource(source, override_num_blocks=override_num_blocks)


class CorpusDatasource(Datasource):  # type: ignore[misc]
    """Any corpus as a source of Ray Data, for `ray.data.read_datasource`.

    A read task is a run of consecutive chunks, and a block is the Arrow table of a chunk. A corpus that was changed
    since then raises a `CorpusError`. Other arguments as for `RecordBatches`.

    Args:
        deserializer: The corpus, or some of its chunks.
        index_caches: Files that a task copies from this machine if its own machine lacks them, such as the result of
            `CTFDeserializer.index_caches`.
    """

    def __init__(
        self,
        deserializer: Deserializer | CorpusChunks,
        *,
        key: str | None = KEY,
        flat: Collection[str] | bool = False,
        ids: Collection[str] = (),
        index_caches: Iterable[Path] = (),
    ) -> None:
        super().__init__()
        # Put once into the object store, so that tasks carry a reference and not the bytes.
        self._index_caches = [(CacheCopy(path), ray.put(path.read_bytes())) for path in index_caches]
        self._chunks = deserializer if isinstance(deserializer, CorpusChunks) else corpus_chunks(deserializer)
        self._form: dict[str, Any] = {"key": key, "flat": flat, "ids": ids}
        self._schema = RecordBatches(self._chunks, **self._form).schema

    def get_name(self) -> str:
        """Return the name that Ray shows."""
        return "Corpus"

    def estimate_inmemory_data_size(self) -> int | None:
        """Return the least size of the data: a value for each stream of each sequence."""
        return sum(self._chunks.num_sequences) * len(self._chunks.streams) * _BYTES_OF_AN_ENTRY

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return at most `parallelism` tasks, each a run of consecutive chunks."""
        tasks = []
        for part in self._chunks.split(max(parallelism, 1)):
            read = functools.partial(_tables, part, self._form, self._index_caches)
            num_rows, files = sum(part.num_sequences), (part.name,)
            metadata = BlockMetadata(num_rows=num_rows, size_bytes=None, exec_stats=None, input_files=files)
            tasks.append(ReadTask(read, metadata, schema=self._schema, per_task_row_limit=per_task_row_limit))
        return tasks


def _tables(
    chunks: CorpusChunks, form: Mapping[str, Any], index_caches: Iterable[tuple[CacheCopy, Any]]
) -> Iterator[pa.Table]:
    for copy, content in index_caches:
        # A function, so that a machine that has the cache does not fetch the bytes.
        copy.place(functools.partial(ray.get, content))
    return RecordBatches(chunks, **form).tables()


def write(
    dataset: ray.data.Dataset,
    folder: AnyPath,
    *,
    to: Literal["ctf", "cbf"] = "ctf",
    shapes: Any = None,
    one_hot: Mapping[str, Classes] | None = None,
    renumber: bool = False,
    remote: Remote | None = None,
) -> None:
    """Write a data set as text or binary files, one for each write task.

    Args:
        dataset: The data set.
        folder: The folder of the files `000000.ctf`, … (or `.cbf`): on a disk that all machines share, or in a store (a
            URL). It is created if it does not exist, and must not have such files yet. A task that Ray repeats writes
            the same file again.
        to: The format.
        shapes: As for `cntkio.arrow.read`.
        one_hot: As for `cntkio.arrow.read`.
        renumber: As for `cntkio.write_ctf`: number the sequences of each file from 0.
        remote: Options of the store, such as credentials; tasks do not find the options in the driver's environment.

    Raises:
        ConfigError: The folder is in memory (`memory://`), which only one process sees.
        FileExistsError: The folder has files of this format.
        RayTaskError: A task failed; its cause is the exception of `write_ctf` or `write_cbf`.

    Example:
        >>> import tempfile
        >>> _ = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
        >>> folder = Path(tempfile.mkdtemp())
        >>> write(read_ctf("examples/iris/iris.ctf", override_num_blocks=1).repartition(1), folder)
        >>> [path.name for path in sorted(folder.iterdir())]
        ['000000.ctf']
    """
    dataset.write_datasink(
        CorpusDatasink(folder, to=to, shapes=shapes, one_hot=one_hot, renumber=renumber, remote=remote)
    )


def write_to_one_ctf(
    dataset: ray.data.Dataset,
    path: AnyPath,
    *,
    shapes: Any = None,
    one_hot: Mapping[str, Classes] | None = None,
    renumber: bool = False,
) -> None:
    """Write a data set as one text. This process writes it, block by block, in the order in which Ray delivers blocks.

    Other arguments as for `write`.

    Args:
        dataset: The data set.
        path: The file.

    Raises:
        CorpusError: The data set has no rows, or its columns are not streams.
        OSError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> _ = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
        >>> path = Path(tempfile.mkdtemp(), "iris.ctf")
        >>> write_to_one_ctf(read_ctf("examples/iris/iris.ctf"), path)
        >>> sorted(infer_streams(path))
        ['lengths', 'species']
    """
    blocks = dataset.iter_batches(batch_size=None, batch_format="pyarrow")
    write_ctf(path, _corpus_of("data set", blocks, shapes, one_hot), renumber=renumber)


def write_to_one_cbf(
    dataset: ray.data.Dataset, path: AnyPath, *, shapes: Any = None, one_hot: Mapping[str, Classes] | None = None
) -> None:
    """Write a data set as one binary file. Arguments and exceptions as for `write_to_one_ctf`.

    Example:
        >>> import tempfile
        >>> _ = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
        >>> path = Path(tempfile.mkdtemp(), "iris.cbf")
        >>> write_to_one_cbf(read_ctf("examples/iris/iris.ctf"), path)
        >>> read_cbf(path).count()
        150
    """
    blocks = dataset.iter_batches(batch_size=None, batch_format="pyarrow")
    write_cbf(path, _corpus_of("data set", blocks, shapes, one_hot))


def _corpus_of(
    name: str, blocks: Iterable[pa.Table], shapes: Any, one_hot: Mapping[str, Classes] | None
) -> arrow.ArrowDeserializer:
    """Return the blocks that have rows as a corpus, which can be read once. Arguments as for `cntkio.arrow.read`."""
    known = {*(shapes.names if isinstance(shapes, pa.Schema) else shapes or ()), *(one_hot or ())}
    # Ray delivers blocks without rows, too, which may lack columns.
    tables = (_in_lists(block, known) for block in blocks if len(block))
    first = next(tables, None)
    if first is None:
        raise CorpusError(f"the {name} has no sequence to write")
    # Ray finds the types of each block from its rows, so they may differ. The types of the first block hold for all.
    whole = itertools.chain([first], (_like(first.schema, table, name) for table in tables))
    batches = (batch for table in whole for batch in table.to_batches())
    reader = pa.RecordBatchReader.from_batches(first.schema, batches)
    corpus = arrow.read(reader, shapes=shapes, one_hot=one_hot)
    # Messages would name a `RecordBatchReader`, which the caller has never seen.
    corpus.label = name
    return corpus


def _in_lists(table: pa.Table, known: Collection[str]) -> pa.Table:
    """Return a table that has lists of numbers instead of the tensors that Ray makes of NumPy arrays.

    Args:
        known: The columns whose samples the caller described.
    """
    for index, field in enumerate(table.schema):
        if not isinstance(field.type, pa.BaseExtensionType):
            continue
        storage = pa.chunked_array([chunk.storage for chunk in table.column(index).chunks])
        if pa.types.is_struct(storage.type) and "data" in storage.type.names:  # tensors of different shapes
            storage = pa.chunked_array([chunk.field("data") for chunk in storage.chunks])
        if len(unlisted(storage.type)) != 2:
            what = f"column {field.name!r} has Python objects, which Ray makes of nested lists in NumPy batches"
            raise ConfigError(f"{what}; expected lists: use map_batches(..., batch_format='pyarrow')", key=field.name)
        if field.name not in known:
            what = f"column {field.name!r} has tensors, which do not tell samples from sequences"
            raise ConfigError(f"{what}; give shapes={{{field.name!r}: ...}}, the shape of a sample", key="shapes")
        table = table.set_column(index, field.name, storage)
    return table


def _like(schema: pa.Schema, table: pa.Table, name: str) -> pa.Table:
    """Return a block with the columns and types of the first block; refuse a block that does not have them."""
    if set(table.column_names) != set(schema.names):
        what = f"has a block with the columns {table.column_names}, but its first block has {schema.names}"
        raise CorpusError(f"the {name} {what}; expected the same columns")
    try:
        return table.select(schema.names).cast(schema)
    except (pa.ArrowException, ValueError) as error:
        own, first = (", ".join(map(str, types)) for types in (table.schema.types, schema.types))
        what = f"has a block with columns of the types {own}, but its first block has {first} ({error})"
        raise CorpusError(f"the {name} {what}; convert the columns to the same types") from None


class CorpusDatasink(Datasink[str]):  # type: ignore[misc]
    """Text or binary files as a sink of Ray Data, for `Dataset.write_datasink`. Arguments as for `write`."""

    def __init__(
        self,
        folder: AnyPath,
        *,
        to: Literal["ctf", "cbf"] = "ctf",
        shapes: Any = None,
        one_hot: Mapping[str, Classes] | None = None,
        renumber: bool = False,
        remote: Remote | None = None,
    ) -> None:
        check_word("to", to, "ctf", "cbf")
        self._folder, self._to = OutputFolder(folder, remote), to
        self._shapes, self._one_hot, self._renumber = shapes, one_hot, renumber

    def on_write_start(self, schema: Any = None) -> None:
        """Make the folder.

        Raises:
            FileExistsError: The folder has files that would be mixed with these.
        """
        self._folder.begin(f".{self._to}")

    def write(self, blocks: Iterable[Any], ctx: Any) -> str:
        """Write the file of a task, and return its path; empty if the task has no rows."""
        # A block may be a data frame of pandas as well.
        tables = [table for block in blocks if len(table := BlockAccessor.for_block(block).to_arrow())]
        if not tables:
            return ""
        # The number of the task gives the name, so that a task that Ray repeats replaces its own file.
        path, remote = self._folder.file(f"{ctx.task_idx:06}.{self._to}"), self._folder.remote
        data = _corpus_of(f"data set, write task {ctx.task_idx}", tables, self._shapes, self._one_hot)
        if self._to == "ctf":
            write_ctf(path, data, renumber=self._renumber, remote=remote)
        else:
            write_cbf(path, data, remote=remote)
        return path

    def on_write_complete(self, write_result: Any) -> None:
        """Refuse a data set without rows."""
        if not any(write_result.write_returns):
            raise CorpusError(f"{self._folder.path}: no sequence to write")

"""Corpora as data sets of Ray Data, and back. (docs/ray.md)

::

    corpus ──> CorpusChunks ──> read tasks: runs of consecutive chunks ──> blocks: one Arrow table a chunk
    Dataset ──> blocks ──> one file of text, or one binary file, for each task

A read task holds a small value, the chunks, and opens the corpus where it runs. Only this module imports Ray.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

try:
    import ray.data
    from ray.data.block import BlockAccessor, BlockMetadata
    from ray.data.datasource import Datasink, Datasource, ReadTask
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"cntkio.ray needs {error.name}, which is not installed: pip install 'ray[data]' pyarrow", name=error.name
    ) from None

from cntkio import arrow
from cntkio.arrow import KEY, RecordBatches
from cntkio.convert import CorpusChunks, corpus_chunks, write_cbf, write_ctf
from cntkio.errors import CorpusError
from cntkio.formats.cbf import CBFDeserializer
from cntkio.formats.contract import Deserializer
from cntkio.formats.ctf import CTFDeserializer, infer_streams
from cntkio.formats.htk import HTKFeatureDeserializer
from cntkio.streams import StreamDefs

__all__ = ["CorpusDatasink", "CorpusDatasource", "read_cbf", "read_ctf", "read_htk", "write"]

_BYTES_OF_AN_ENTRY = 8


def read_ctf(
    path: str | os.PathLike[str],
    streams: StreamDefs | Mapping[str, Any] | None = None,
    *,
    key: str | None = KEY,
    flat: Collection[str] | bool = False,
    ids: Collection[str] = (),
    override_num_blocks: int | None = None,
    **options: Any,
) -> ray.data.Dataset:
    """Read a text as a data set, a row for each sequence. Columns as for `cntkio.arrow.RecordBatches`.

    The index is made here and cached, so that the tasks do not make it again: they need the cache, in their home or
    next to the file. Rows come in any order unless Ray's `preserve_order` is set; the keys tell the order.

    Args:
        path: The file, which every node can read.
        streams: The streams; None: all that `infer_streams` finds.
        key: As for `RecordBatches`.
        flat: As for `RecordBatches`.
        ids: As for `RecordBatches`.
        override_num_blocks: Number of read tasks, at most one for each chunk; None: Ray decides.
        options: As for `CTFDeserializer`; `cache_index` is True by default.

    Raises:
        FormatError: The text breaks its format.
        OSError: The file cannot be read.
    """
    definitions = infer_streams(path) if streams is None else StreamDefs(streams)
    deserializer = CTFDeserializer(_absolute(path), definitions, **{"cache_index": True, **options})
    return _read(deserializer, key, flat, ids, override_num_blocks)


def read_cbf(
    path: str | os.PathLike[str],
    streams: StreamDefs | Mapping[str, Any] | None = None,
    *,
    key: str | None = KEY,
    flat: Collection[str] | bool = False,
    ids: Collection[str] = (),
    override_num_blocks: int | None = None,
) -> ray.data.Dataset:
    """Read a binary corpus as a data set. Arguments and exceptions as for `read_ctf`."""
    deserializer = CBFDeserializer(_absolute(path), StreamDefs(streams or {}))
    return _read(deserializer, key, flat, ids, override_num_blocks)


def read_htk(
    streams: StreamDefs | Mapping[str, Any],
    *,
    key: str | None = KEY,
    flat: Collection[str] | bool = False,
    override_num_blocks: int | None = None,
    **options: Any,
) -> ray.data.Dataset:
    """Read HTK features as a data set.

    Args:
        streams: As for `HTKFeatureDeserializer`.
        key: As for `read_ctf`.
        flat: As for `read_ctf`.
        override_num_blocks: As for `read_ctf`.
        options: As for `HTKFeatureDeserializer`.

    Raises:
        ConfigError: An option is not possible.
        FormatError: A file breaks its format.
        OSError: A file cannot be read.
    """
    return _read(HTKFeatureDeserializer(StreamDefs(streams), **options), key, flat, (), override_num_blocks)


def _absolute(path: str | os.PathLike[str]) -> str:
    """Return a path for tasks, whose folder is another."""
    return os.fspath(Path(path).absolute())


def _read(
    deserializer: Deserializer,
    key: str | None,
    flat: Collection[str] | bool,
    ids: Collection[str],
    override_num_blocks: int | None,
) -> ray.data.Dataset:
    source = CorpusDatasource(deserializer, key=key, flat=flat, ids=ids)
    return ray.data.read_datasource(source, override_num_blocks=override_num_blocks)


class CorpusDatasource(Datasource):  # type: ignore[misc]
    """Any corpus as a source of Ray Data, for `ray.data.read_datasource`.

    A read task is a run of consecutive chunks, and a block is the Arrow table of a chunk. A corpus that was changed
    since is a `CorpusError`.

    Args:
        deserializer: The corpus, or some of its chunks.
        key: As for `RecordBatches`.
        flat: As for `RecordBatches`.
        ids: As for `RecordBatches`.
    """

    def __init__(
        self,
        deserializer: Deserializer | CorpusChunks,
        *,
        key: str | None = KEY,
        flat: Collection[str] | bool = False,
        ids: Collection[str] = (),
    ) -> None:
        super().__init__()
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
        return [
            ReadTask(
                functools.partial(_tables, part, self._form),
                BlockMetadata(
                    num_rows=sum(part.num_sequences), size_bytes=None, exec_stats=None, input_files=(part.name,)
                ),
                schema=self._schema,
                per_task_row_limit=per_task_row_limit,
            )
            for part in self._chunks.split(max(parallelism, 1))
        ]


def _tables(chunks: CorpusChunks, form: Mapping[str, Any]) -> Iterator[Any]:
    return RecordBatches(chunks, **form).tables()


def write(
    dataset: ray.data.Dataset,
    folder: str | os.PathLike[str],
    *,
    to: Literal["ctf", "cbf"] = "ctf",
    shapes: Any = None,
    one_hot: Mapping[str, int] | None = None,
    renumber: bool = False,
) -> None:
    """Write a data set as files of text or binary files, one for each write task.

    Args:
        dataset: The data set.
        folder: Its files are `000000.ctf`, … (`.cbf`); it is made if it is missing. A task that Ray repeats writes the
            same file again.
        to: The format.
        shapes: As for `cntkio.arrow.read`.
        one_hot: As for `cntkio.arrow.read`.
        renumber: As for `cntkio.write_ctf`: number the sequences of each file from 0.

    Raises:
        RayTaskError: A task failed; its cause is the exception of `write_ctf` or `write_cbf`.
    """
    dataset.write_datasink(CorpusDatasink(folder, to=to, shapes=shapes, one_hot=one_hot, renumber=renumber))


class CorpusDatasink(Datasink[str]):  # type: ignore[misc]
    """Files of text, or binary files, as a sink of Ray Data, for `Dataset.write_datasink`. Arguments as for `write`."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        to: Literal["ctf", "cbf"] = "ctf",
        shapes: Any = None,
        one_hot: Mapping[str, int] | None = None,
        renumber: bool = False,
    ) -> None:
        self._folder = Path(folder).absolute()
        self._to = to
        self._table: dict[str, Any] = {"shapes": shapes, "one_hot": one_hot}
        self._renumber = renumber

    def on_write_start(self, schema: Any = None) -> None:
        """Make the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def write(self, blocks: Iterable[Any], ctx: Any) -> str:
        """Write the file of a task, and return its path; empty if the task has no rows."""
        tables = [table for block in blocks if len(table := BlockAccessor.for_block(block).to_arrow())]
        if not tables:
            return ""
        path = self._folder / f"{ctx.task_idx:06}.{self._to}"
        data = arrow.read(tables, **self._table)
        if self._to == "ctf":
            write_ctf(path, data, renumber=self._renumber)
        else:
            write_cbf(path, data)
        return str(path)

    def on_write_complete(self, write_result: Any) -> None:
        """Refuse a data set without rows."""
        if not any(write_result.write_returns):
            raise CorpusError(f"{self._folder}: no sequence to write")

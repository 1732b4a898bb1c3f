"""Corpora as Arrow record batches, for pandas, polars, DuckDB, Hugging Face datasets; and back. (docs/arrow.md)

::

    deserializer, source, arrays ──> pieces ──> record batches ──> __arrow_c_stream__, Parquet, Arrow files
    Parquet, Arrow files, data frames, data sets ──> record batches ──> pieces ──> write_ctf, write_cbf

    writer        RecordBatches, convert: from pieces to record batches; write_parquet, write_arrow
    deserializer  ArrowDeserializer, read: a table as a corpus; read_minibatch: as arrays
    files         open_table: rows of files, in any order or one after the other
    memory        table_in_memory: rows of data frames, data sets and mappings of columns
    columns       from columns of a table to columns of a chunk
    types         the plain types that all others are turned into

A row is a sequence: its key, and for each stream a list of its samples. Invariants: memory is bounded by a few
chunks, values are not copied, and reading returns the bits that were written. Only this folder imports pyarrow.
"""

try:
    import pyarrow as _pyarrow  # noqa: F401
except ModuleNotFoundError as error:
    what = f"cntkio.arrow needs {error.name}, which is not installed: pip install pyarrow"
    raise ModuleNotFoundError(what, name=error.name) from None

from cntkio.arrow.deserializer import ArrowCorpus, ArrowDeserializer, read, read_minibatch
from cntkio.arrow.writer import KEY, RecordBatches, convert, signed, write_arrow, write_columns, write_parquet

__all__ = [
    "KEY", "ArrowCorpus", "ArrowDeserializer", "RecordBatches", "convert", "read", "read_minibatch", "signed",
    "write_arrow", "write_columns", "write_parquet",
]  # fmt: skip

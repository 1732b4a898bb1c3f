"""A slow reader of tables: the objects of Python of each row, one value at a time."""

from __future__ import annotations

from typing import Any

from pyarrow import ipc, parquet


def rows_in(path: str) -> list[dict[str, Any]]:
    """Return the rows of a Parquet or an Arrow file."""
    if path.endswith(".parquet"):
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        return rows
    with open(path, "rb") as file:
        return (ipc.open_stream(file) if path.endswith(".arrows") else ipc.open_file(file)).read_all().to_pylist()


def has_null(value: Any) -> bool:
    """Return whether a value is null, or has a null in it."""
    if isinstance(value, dict):
        return any(map(has_null, value.values()))
    return value is None or (isinstance(value, list) and any(map(has_null, value)))


def samples_of(value: Any, kind: str, dim: int) -> list[list[float]]:
    """Return the samples of a row's value, each as the list of its values.

    Args:
        value: The value of a column.
        kind: The kind of the column: ``number``, ``vector`` and ``entries`` are a sample; ``numbers``, ``vectors``,
            ``entries of each`` and ``classes`` are lists of samples.
        dim: The values of a sample.
    """
    samples = value if kind in ("numbers", "vectors", "entries of each", "classes") else [value]
    if kind in ("number", "numbers"):
        return [[sample] for sample in samples]
    if kind in ("vector", "vectors"):
        return [list(sample) for sample in samples]
    dense = [[0] * dim for _ in samples]
    for row, sample in zip(dense, samples, strict=True):
        entries = {sample: 1} if kind == "classes" else dict(zip(sample["indices"], sample["values"], strict=True))
        for index, entry in entries.items():
            row[index] = entry
    return dense

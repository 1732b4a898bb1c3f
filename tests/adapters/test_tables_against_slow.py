"""Random tables have the values that a slow reader finds. (docs/formats/arrow.md)"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import MinibatchSource
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rounds import rounds

pytest.importorskip("pyarrow")

import pyarrow as pa
from cntkio.arrow import ArrowDeserializer
from pyarrow import ipc, parquet
from slow.tables import has_null, rows_in, samples_of

DIM = 5
INTEGERS = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64()]
NUMBERS = [*INTEGERS, pa.float32(), pa.float64(), pa.bool_()]
DTYPES = {pa.float32(): np.float32, pa.float64(): np.float64, pa.int64(): np.int64, pa.uint32(): np.int64}
KINDS = ["number", "vector", "numbers", "vectors", "entries", "entries of each", "classes"]


def values_of(number: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_boolean(number):
        return st.booleans()
    if pa.types.is_integer(number):
        limits = np.iinfo(number.to_pandas_dtype())
        return st.integers(int(limits.min), int(limits.max))
    return st.floats(width=number.bit_width, allow_nan=False)


@st.composite
def columns(draw: Any, num_rows: int) -> tuple[str, pa.Array]:
    """A kind of column, and a column of it, perhaps with nulls."""
    kind, number = draw(st.sampled_from(KINDS)), draw(st.sampled_from(NUMBERS))
    one, arrow_type = values_of(number), number
    if kind in ("vector", "vectors"):
        one, arrow_type = st.lists(one, min_size=DIM, max_size=DIM), pa.list_(number, DIM)
    elif kind in ("entries", "entries of each"):
        indices = st.lists(st.integers(0, DIM - 1), unique=True)
        one = indices.flatmap(
            lambda places: st.fixed_dictionaries(
                {
                    "indices": st.just(sorted(places)),
                    "values": st.lists(values_of(number), min_size=len(places), max_size=len(places)),
                }
            )
        )
        arrow_type = pa.struct([("indices", pa.list_(pa.int32())), ("values", pa.list_(number))])
    elif kind == "classes":
        one, arrow_type = st.integers(0, DIM - 1), draw(st.sampled_from(INTEGERS))
    if kind in ("numbers", "vectors", "entries of each", "classes"):
        one, arrow_type = st.lists(one, max_size=4), pa.list_(arrow_type)
    if draw(st.booleans()):
        one = st.none() | one
    return kind, pa.array(draw(st.lists(one, min_size=num_rows, max_size=num_rows)), arrow_type)


def innermost(kind: pa.DataType) -> pa.DataType:
    while pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_struct(kind):
        kind = kind.field("values").type if pa.types.is_struct(kind) else kind.value_type
    return kind


@settings(max_examples=rounds(80), suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data(), num_rows=st.integers(1, 12), rows_of_a_chunk=st.integers(1, 5),
       ending=st.sampled_from(["parquet", "arrow", "arrows"]))  # fmt: skip
def test_random_tables_have_the_values_of_a_slow_reader(
    module_folder: Path, data: st.DataObject, num_rows: int, rows_of_a_chunk: int, ending: str
) -> None:
    made = {f"c{number}": data.draw(columns(num_rows)) for number in range(data.draw(st.integers(1, 3)))}
    table = pa.table({name: column for name, (_, column) in made.items()})
    path = str(module_folder / f"a.{ending}")
    if ending == "parquet":
        parquet.write_table(table, path, row_group_size=rows_of_a_chunk)
    else:
        with (ipc.new_stream if ending == "arrows" else ipc.new_file)(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows_of_a_chunk)
    kept = [number for number, row in enumerate(rows_in(path)) if not has_null(row)]
    expected = [rows_in(path)[number] for number in kept]
    lengths = [max(len(samples_of(row[name], kind, DIM)) for name, (kind, _) in made.items()) for row in expected]
    if 0 in lengths or not kept:
        return  # without samples, a row cannot be delivered
    deserializer = ArrowDeserializer(
        path,
        nulls="drop",
        shapes={name: DIM for name, (kind, _) in made.items() if kind.startswith("entries")},
        one_hot={name: DIM for name, (kind, _) in made.items() if kind == "classes"},
    )
    with MinibatchSource(deserializer, randomize=False, max_sweeps=1) as source:
        minibatch = source.next_minibatch(10**6)
    assert minibatch.keys_of_sequences.tolist() == list(range(len(kept)))
    for name, (kind, column) in made.items():
        found, of_rows = minibatch[name], [samples_of(row[name], kind, DIM) for row in expected]
        assert found.lengths.tolist() == list(map(len, of_rows))
        dtype = np.float32 if kind == "classes" else DTYPES.get(innermost(column.type), np.int32)
        assert found.values.dtype == dtype
        array = found.asarray()
        for index, samples in enumerate(of_rows):
            dense = np.array(samples, dtype)
            if kind.startswith("entries"):
                dense += 0  # a dense array sums the values of an index, and 0 + -0 is 0
            assert array[index, : len(samples)].tobytes() == dense.tobytes()

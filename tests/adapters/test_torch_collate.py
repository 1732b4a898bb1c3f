"""Batches of rows as tensors, in the forms in which Ray passes them to a collate function. (docs/ray.md)"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import ConfigError, CTFDeserializer, StreamDef, StreamDefs, read_ctf
from support import builders

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from cntkio.arrow import RecordBatches  # noqa: E402
from cntkio.torch import Collate, convert  # noqa: E402


def as_objects(items: Any) -> Any:
    """Return a column of NumPy objects, as batches of Ray have: lists become arrays of objects, structs dicts."""
    column = np.empty(len(items), object)
    column[:] = items
    return column


@pytest.fixture
def corpus(tmp_path: Path) -> CTFDeserializer:
    """Sequences of 1 to 3 samples of the dense stream x and the sparse stream s."""
    (tmp_path / "a.ctf").write_bytes(builders.corpus_text([2, 1, 3]))
    return CTFDeserializer(tmp_path / "a.ctf", builders.STREAMS)


def values(minibatch: Any) -> Any:
    x, s = minibatch["x"], minibatch["s"].values
    parts = (x.values, x.offsets, s.crow_indices(), s.col_indices(), s.values())
    return [part.tolist() for part in parts], minibatch.keys_of_sequences.tolist()


@pytest.mark.parametrize("form", ["numpy", "arrow", "arrow without metadata"])
def test_a_batch_of_rows_has_the_tensors_of_its_corpus(corpus: CTFDeserializer, tmp_path: Path, form: str) -> None:
    table = pa.table(RecordBatches(corpus))
    batch: Any = table.replace_schema_metadata() if form == "arrow" else table.cast(table.schema.remove_metadata())
    if form == "numpy":
        batch = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
        assert batch["s"].dtype == batch["x"].dtype == object
    expected = convert(read_ctf(tmp_path / "a.ctf", builders.STREAMS))
    collate = pickle.loads(pickle.dumps(Collate(RecordBatches(corpus).schema)))  # Ray sends it to its workers
    assert values(collate(batch)) == values(expected)


def test_a_batch_takes_shapes_in_place_of_a_schema(corpus: CTFDeserializer) -> None:
    table = pa.table(RecordBatches(corpus))
    batch = {name: table[name].to_numpy(zero_copy_only=False) for name in ("s", "x")}
    tensors = Collate({"s": 1000, "x": 2}, layout="padded")(batch)
    assert tensors["s"].values.shape == (3, 3, 1000) and tensors["x"].lengths.tolist() == [2, 1, 3]
    with pytest.raises(ConfigError, match="column 's': the dimension is unknown"):
        Collate()(batch)


def test_a_batch_of_empty_sequences_keeps_its_types(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_text("0 |x 1 |s 3:1\n")
    streams = StreamDefs(s=StreamDef(field="s", shape=5, is_sparse=True), x=StreamDef(field="x", shape=1))
    schema = RecordBatches(CTFDeserializer(tmp_path / "a.ctf", streams)).schema
    empty = np.empty(0, object)
    tensors = Collate(schema)({"x": as_objects([empty, empty]), "s": as_objects([empty, empty])})
    assert tensors["x"].lengths.tolist() == [0, 0] and tensors["s"].values.shape == (0, 5)


def test_sequences_of_equal_lengths_may_be_one_array(corpus: CTFDeserializer) -> None:
    x = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    tensors = Collate(RecordBatches(corpus).schema, layout="padded")({"x": x})
    assert tensors["x"].values.tolist() == x.tolist()

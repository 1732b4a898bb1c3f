"""Corpora as Arrow record batches, in files and in other libraries, and back."""

import operator
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
from cntkio import (
    CBFDeserializer,
    ConfigError,
    CorpusError,
    CTFDeserializer,
    FormatError,
    HTKFeatureDeserializer,
    HTKMLFDeserializer,
    Minibatch,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    read_ctf,
    write_cbf,
    write_ctf,
)
from cntkio.arrow import RecordBatches, convert, read, read_minibatch, write_arrow, write_parquet
from cntkio.cli import main
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from support.rounds import rounds

STREAMS = StreamDefs(
    x=StreamDef(field="x", shape=(1, 2)),
    s=StreamDef(field="s", shape=9, is_sparse=True),
    y=StreamDef(field="y", shape=1),
)
TEXT = "7 |x 1 2 |s 3:1 0:0.5 |y 5\n7 |x 3 4.5 |s\n9 |x 6 7 |s 8:2 |y 6\n"
ROWS = [
    {"key": 7, "s": [{"indices": [3, 0], "values": [1, 0.5]}, {"indices": [], "values": []}],
     "x": [[1, 2], [3, 4.5]], "y": [5]},
    {"key": 9, "s": [{"indices": [8], "values": [2]}], "x": [[6, 7]], "y": [6]},
]  # fmt: skip


@pytest.fixture
def corpus(tmp_path: Path) -> CTFDeserializer:
    (tmp_path / "a.ctf").write_text(TEXT)
    return CTFDeserializer(tmp_path / "a.ctf", STREAMS)


def text_of(folder: Path, data: Any) -> str:
    write_ctf(folder / "out.ctf", data)
    return (folder / "out.ctf").read_text()


def test_a_row_is_a_sequence_with_its_key_and_lists_of_samples(corpus: CTFDeserializer) -> None:
    table = pa.table(RecordBatches(corpus))
    table.validate(full=True)
    assert table.to_pylist() == ROWS
    assert table.schema.field("key").type == pa.uint64()
    assert table.schema.field("x").type.value_type == pa.list_(pa.field("item", pa.float32(), False), 2)
    assert table.schema.equals(RecordBatches(corpus).schema)


def test_a_stream_can_be_read_repeatedly(corpus: CTFDeserializer) -> None:
    batches = RecordBatches(corpus)
    assert pa.table(batches).to_pylist() == pa.table(batches).to_pylist() == ROWS
    assert [row for batch in batches for row in batch.to_pylist()] == ROWS


def test_the_column_of_keys_is_named_or_left_out(corpus: CTFDeserializer) -> None:
    assert RecordBatches(corpus, key="id").schema.names == ["id", "s", "x", "y"]
    assert RecordBatches(corpus, key=None).schema.names == ["s", "x", "y"]
    with pytest.raises(ConfigError, match="both named 'x'; give key='NAME'"):
        RecordBatches(corpus, key="x")
    with pytest.raises(ConfigError, match="both named 'x'; give key="):
        convert(MinibatchSource(corpus).next_minibatch(10), key="x")


def test_a_flat_stream_has_rows_without_a_list(corpus: CTFDeserializer) -> None:
    rows = pa.table(RecordBatches(corpus, flat=["y"])).to_pylist()
    assert [row["y"] for row in rows] == [5, 6] and rows[0]["x"] == ROWS[0]["x"]
    with pytest.raises(ConfigError, match="flat: no stream 'yy'.*did you mean 'y'"):
        RecordBatches(corpus, flat=["yy"])
    with pytest.raises(CorpusError, match="sequence 7, stream 'x': 2 samples, but a flat column has one"):
        list(RecordBatches(corpus, flat=["x"]))


def test_a_minibatch_becomes_a_batch_without_a_copy_of_its_values(corpus: CTFDeserializer) -> None:
    minibatch = MinibatchSource(corpus, randomize=False).next_minibatch(3)
    assert isinstance(minibatch, Minibatch)
    batch = convert(minibatch)
    assert batch.to_pylist() == ROWS
    x = batch.column("x").flatten().flatten()
    assert x.buffers()[1].address == minibatch["x"].values.ctypes.data
    entries = dict(zip(("indices", "values"), batch.column("s").flatten().flatten(), strict=True))
    assert entries["values"].flatten().buffers()[1].address == minibatch["s"].values.ctypes.data
    assert entries["indices"].flatten().buffers()[1].address == minibatch["s"].indices.ctypes.data


def test_a_source_with_an_end_keeps_its_order_and_keys(corpus: CTFDeserializer) -> None:
    source = MinibatchSource(corpus, max_sweeps=3, randomization_seed=1)
    keys = [key for minibatch in source.minibatches(1) for key in minibatch.keys_of_sequences.tolist()]
    source = MinibatchSource(corpus, max_sweeps=3, randomization_seed=1)
    assert pa.table(RecordBatches(source))["key"].to_pylist() == keys
    with pytest.raises(ConfigError, match="without an end"):
        RecordBatches(MinibatchSource(corpus))


def test_arrays_and_keys_that_are_texts_become_rows() -> None:
    rows = pa.table(RecordBatches({"x": np.eye(2), "t": [np.ones((2, 1)), np.zeros((1, 1))]})).to_pylist()
    assert rows == [{"key": 0, "x": [[1, 0]], "t": [1, 1]}, {"key": 1, "x": [[0, 1]], "t": [0]}]
    keyed = read(pa.table({"key": ["a", "b"], "x": [[1.0], [2.0, 3.0]]}))
    assert pa.table(RecordBatches(keyed))["key"].to_pylist() == ["a", "b"]


# -------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("write", [write_parquet, write_arrow])
@pytest.mark.parametrize("flat", [[], ["y"]])
def test_a_table_file_returns_the_same_text_and_binary_corpus(
    corpus: CTFDeserializer, tmp_path: Path, write: Any, flat: list[str]
) -> None:
    write(tmp_path / "a.table", corpus, flat=flat)
    assert text_of(tmp_path, read(tmp_path / "a.table")) == text_of(tmp_path, corpus)
    write_cbf(tmp_path / "one.cbf", corpus)
    write_cbf(tmp_path / "other.cbf", read(tmp_path / "a.table"))
    assert (tmp_path / "one.cbf").read_bytes() == (tmp_path / "other.cbf").read_bytes()
    assert read(tmp_path / "a.table").streams[1].shape == (1, 2)


@settings(max_examples=rounds(40), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_corpus_comes_back_with_the_same_bits(tmp_path: Path, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    values = st.floats(width=32, allow_nan=False, allow_infinity=False)
    dim = data.draw(st.integers(1, 3))
    dense = [
        np.array(data.draw(st.lists(values, min_size=n * dim, max_size=n * dim)), dtype).reshape(n, dim)
        for n in lengths
    ]
    cbf = tmp_path / "a.cbf"
    write_cbf(cbf, {"d": dense, "e": [one[:1] for one in dense]})
    file = tmp_path / ("a." + data.draw(st.sampled_from(["parquet", "arrow"])))
    (write_parquet if file.suffix == ".parquet" else write_arrow)(file, CBFDeserializer(cbf))
    write_cbf(tmp_path / "b.cbf", read(file))
    again, once = CBFDeserializer(tmp_path / "b.cbf").open(), CBFDeserializer(cbf).open()
    assert [info.dtype for info in again.streams] == [info.dtype for info in once.streams] == [dtype, dtype]
    assert (tmp_path / "b.cbf").read_bytes() == cbf.read_bytes()


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    (tmp_path / "bad.ctf").write_text("|x 1 2\n|x 1 2 3\n")
    bad = CTFDeserializer(tmp_path / "bad.ctf", StreamDefs(x=StreamDef(field="x", shape=2)))
    for write in (write_parquet, write_arrow):
        (tmp_path / "out").write_text("old")
        with pytest.raises(FormatError, match="3 values, but the dimension is 2"):
            write(tmp_path / "out", bad)
        assert (tmp_path / "out").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"bad.ctf", "out"}


def test_memory_is_bounded_by_chunks_and_not_by_the_corpus(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_text("".join(f"{key} |x {key} {key / 8} 3 4\n" for key in range(60_000)))
    streams = StreamDefs(x=StreamDef(field="x", shape=4))
    corpus = CTFDeserializer(tmp_path / "a.ctf", streams, chunk_size_in_bytes=1 << 15)
    write_parquet(tmp_path / "a.parquet", corpus)  # fills the caches of a first call
    before = pa.total_allocated_bytes()
    most = 0
    tracemalloc.start()
    try:
        for batch in RecordBatches(corpus):
            most = max(most, batch.nbytes)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 17 and peak < 8 << 20 and pa.total_allocated_bytes() - before < 1 << 20
    assert parquet.ParquetFile(tmp_path / "a.parquet").metadata.num_row_groups > 10


# --------------------------------------------------------------------------------------------- others' tables


def test_tables_of_other_libraries_keep_their_shapes(tmp_path: Path) -> None:
    plain = pa.table({
        "n": [3.0, 4.0],
        "pair": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        "list": pa.array([[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]], pa.large_list(pa.list_(pa.float64()))),
        "run": [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0]],
        "s": [{"indices": [2], "values": [1.0]}, {"indices": [], "values": []}],
    })  # fmt: skip
    text = text_of(tmp_path, read(plain, shapes={"s": 3, "list": 2, "run": 2}))
    assert text.splitlines() == [
        "0\t|n 3 |pair 1 2 |list 1 2 |run 1 2 |s 2:1",
        "0\t|run 3 4",
        "1\t|n 4 |pair 3 4 |list 3 4 |run 5 6 |s",
        "1\t|list 5 6",
    ]


@pytest.mark.parametrize("shape", [(2, 3), 6, (1, 2, 3), (6, 1, 1)])
def test_lists_of_lists_of_lists_are_samples_of_the_shape(shape: Any) -> None:
    samples = np.arange(18.0).reshape(3, 2, 3)
    table = pa.table({"x": [[[[9.0]]], [], samples[:2].tolist(), samples[2:].tolist()]})
    # A slice keeps the offsets of the rows before it.
    found = read_minibatch(table.slice(1), shapes={"x": shape})["x"]
    assert found.values.shape == (3, *((6,) if shape == 6 else shape)) and found.lengths.tolist() == [0, 2, 1]
    assert found.values.reshape(3, 2, 3).tolist() == samples.tolist()


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"s": [[{"indices": [2], "values": [1.0]}]]}, {}, "is unknown; add shapes={'s': ...}"),
        ({"s": [[{"indices": [9], "values": [1.0]}]]}, {"shapes": {"s": 3}}, "from 9 to 9, but the dimension is 3"),
        ({"s": [[{"indices": [1, 2], "values": [1.0]}]]}, {"shapes": {"s": 3}}, "differ in number"),
        ({"x": [[[1.0, 2.0]]]}, {}, "does not give the number of values of a sample"),
        ({"x": [[[1.0, 2.0], [3.0]]]}, {"shapes": {"x": 2}}, "not all samples have 2 values"),
        ({"x": [[1.0, 2.0, 3.0]]}, {"shapes": {"x": 2}}, "not all samples have 2 values"),
        # The numbers of values are right only together.
        ({"x": [[[[1.0, 2.0], [3.0, 4.0, 5.0]]], [[[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0]]]]}, {"shapes": {"x": (2, 3)}},
         "row 0, column 'x': not all samples have 6 values"),
        ({"x": [[[[1.0, 2.0, 3.0]]], [[[1.0, 2.0], [3.0]], [[4.0, 5.0]]]]}, {"shapes": {"x": 3}},
         "row 1, column 'x': not all samples have 3 values"),
        ({"x": [[[[1.0, 2.0, 3.0]] * 2], [[[1.0, 2.0]] * 3]]}, {"shapes": {"x": (2, 3)}},
         "row 1, column 'x': a sample has 3 items in dimension 0, but the shape is (2, 3); for another shape give"),
        ({"x": [[[[1.0, 2.0], [3.0, 4.0, 5.0, 6.0]]]]}, {"shapes": {"x": (2, 3)}},
         "row 0, column 'x': a sample has 2 items in dimension 1, but the shape is (2, 3)"),
        ({"x": [[1.0, None]]}, {}, "1 null;"),
        ({"x": [None, [1.0]]}, {}, "1 null;"),
        ({"x": [1.0, 2.0], "key": [None, 1]}, {"key": "key"}, "ArrowDeserializer(..., nulls='drop') leaves out"),
        ({"x": [1.0, 2.0], "key": [1, -1]}, {}, "column 'key' has the key -1; expected whole numbers from 0, or texts"),
        ({"x": [1.0], "key": [1.5]}, {}, "column 'key', the keys, is double; expected whole numbers from 0, or texts"),
        ({"x": ["a"]}, {}, "column 'x' is string; expected numbers"),
        ({"x": [{"a": 1}]}, {}, "expected structs of indices and values"),
        ({"x": [1.0]}, {"key": "y"}, "no column 'y'"),
        ({"x": [1.0]}, {"shapes": {"X": 1}}, "did you mean 'x'"),
        ({"key": [1]}, {}, "no column except for the keys"),
    ],
)  # fmt: skip
def test_refuses_tables_that_are_not_a_corpus(
    tmp_path: Path, columns: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises((ConfigError, CorpusError)) as caught:
        text_of(tmp_path, read(pa.table(columns), **options))
    assert words in str(caught.value)


def test_numbers_at_any_address_are_read() -> None:
    values = np.arange(6, dtype=np.float32)
    buffer = pa.py_buffer(b"\0" + values.tobytes()).slice(1)
    numbers = pa.Array.from_buffers(pa.float32(), 6, [None, buffer])
    data = read_minibatch(pa.table({"x": pa.FixedSizeListArray.from_arrays(numbers, 2)}))
    assert np.array_equal(data["x"].values, values.reshape(3, 2))


def test_refuses_columns_of_the_same_name(tmp_path: Path) -> None:
    twice = pa.table([pa.array([1.0]), pa.array([2.0]), pa.array([3])], names=["a", "a", "key"])
    for data in (twice, {1: [1.0], "1": [2.0]}):
        with pytest.raises(ConfigError, match="2 columns are named '[a1]'; expected a different name for each"):
            text_of(tmp_path, read(data))


def test_refuses_objects_that_are_not_tables(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_text(TEXT)
    with pytest.raises(FormatError, match="neither a Parquet nor an Arrow file; this is a CNTK text corpus"):
        read(tmp_path / "a.ctf")
    with pytest.raises(ConfigError, match="got a list; expected a path, a data frame"):
        read([1])
    with pytest.raises(FileNotFoundError, match=r"did you mean '.*a\.ctf'"):
        read(tmp_path / "a.ct")


@pytest.mark.parametrize("library", ["polars", "pandas", "duckdb"])
def test_other_libraries_read_our_streams_and_we_read_theirs(
    corpus: CTFDeserializer, tmp_path: Path, library: str
) -> None:
    batches = RecordBatches(corpus)
    shapes: dict[str, Any] = {"s": 9, "x": 2}
    if library == "polars":
        polars = pytest.importorskip("polars")
        frame: Any = polars.DataFrame(batches)
        assert frame.rows(named=True) == ROWS
    elif library == "pandas":
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame.from_arrow(batches)
        assert [one.tolist() for one in frame["y"]] == [[5], [6]] and frame["key"].tolist() == [7, 9]
        return  # the lists that it returns have no types
    else:
        duckdb = pytest.importorskip("duckdb")
        frame = duckdb.sql("select * from batches").to_arrow_table()
        assert frame.to_pylist() == ROWS
    assert text_of(tmp_path, read(frame, shapes=shapes)) == text_of(tmp_path, corpus)


@pytest.mark.parametrize("library", ["polars.DataFrame", "pandas.DataFrame.from_arrow", "pyarrow.table"])
def test_other_libraries_pass_our_exceptions_on(corpus: CTFDeserializer, library: str) -> None:
    module, _, function = library.partition(".")
    consume = operator.attrgetter(function)(pytest.importorskip(module))
    with pytest.raises(CorpusError, match="^sequence 7, stream 's': 2 samples, but a flat column has one for each"):
        consume(RecordBatches(corpus, flat=["s"]))


# ----------------------------------------------------------------------------------------------- command line


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_the_command_converts_to_tables_and_back(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a.ctf").write_text(TEXT)
    table, binary, text = tmp_path / f"a.{kind}", tmp_path / "a.cbf", tmp_path / "b.ctf"
    for to, source, target in ((kind, tmp_path / "a.ctf", table), ("cbf", table, binary), (kind, binary, table),
                               ("ctf", table, text)):  # fmt: skip
        assert main(["convert", "--to", to, "--input", str(source), "--output", str(target)]) == 0
    for name in ("x", "s", "y"):
        assert np.array_equal(read_ctf(text)[name].values, read_ctf(tmp_path / "a.ctf")[name].values)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "convert needs two files"),
        (["--to", "parquet"], "convert needs two files"),
        (["--to", "parquet", "--flat", "--input", "{a}", "--output", "{b}"], "leave the stream out of --flat"),
        (["--to", "parquet", "--flat", "z", "--input", "{a}", "--output", "{b}"], "--flat: no stream 'z'"),
        (["--to", "ctf", "--input", "{a}t", "--output", "{b}"], "did you mean"),
        (["--to", "cbf", "c", "--input", "{a}", "--output", "{b}"], "exclude each other"),
    ],
)
def test_a_wrong_conversion_command_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    (tmp_path / "a.ctf").write_text(TEXT)
    given_ = [one.format(a=tmp_path / "a.ctf", b=tmp_path / "b") for one in arguments]
    assert main(["convert", *given_]) in (1, 2)
    assert words in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_keys_of_utterances_are_texts(tmp_path: Path) -> None:
    frames = np.arange(6, dtype=">f4").reshape(3, 2)
    (tmp_path / "a.htk").write_bytes(struct.pack(">iihh", 3, 100_000, 8, 9) + frames.tobytes())
    scp = f"one/b={tmp_path}/a.htk[0,1]\ntwo/ä={tmp_path}/a.htk[1,2]\n"
    (tmp_path / "a.scp").write_text(scp, encoding="utf-8")
    corpus = HTKFeatureDeserializer(StreamDefs(f=StreamDef(scp=str(tmp_path / "a.scp"), shape=2)))
    rows = pa.table(RecordBatches(corpus)).to_pylist()
    assert rows == [{"key": "one/b", "f": [[0, 1], [2, 3]]}, {"key": "two/ä", "f": [[2, 3], [4, 5]]}]
    source = MinibatchSource(corpus, randomize=False, max_sweeps=1)
    assert pa.table(RecordBatches(source)).to_pylist() == rows


def test_class_ids_stay_whole_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.htk").write_bytes(struct.pack(">iihh", 3, 100_000, 8, 9) + np.zeros((3, 2), ">f4").tobytes())
    (tmp_path / "a.scp").write_text(f"one={tmp_path}/a.htk[0,2]\n")
    (tmp_path / "a.mlf").write_text('#!MLF!#\n"*/one.lab"\n0 100000 a\n100000 300000 b\n.\n')
    (tmp_path / "names").write_text("a\nb\n")
    features = HTKFeatureDeserializer(StreamDefs(f=StreamDef(scp=str(tmp_path / "a.scp"), shape=2)))
    streams = StreamDefs(l=StreamDef(mlf=str(tmp_path / "a.mlf"), shape=2))
    labels = HTKMLFDeserializer(str(tmp_path / "names"), streams, as_class_ids=True)
    source = MinibatchSource([features, labels], randomize=False, max_sweeps=1)
    for table in (pa.table(RecordBatches(labels)), pa.table(RecordBatches(source))):
        assert table.schema.field("l").type.value_type == pa.int32()
        assert table["l"].to_pylist() == [[0, 1, 1]]


# -------------------------------------------------------------------------------------------------- whole numbers


@pytest.mark.parametrize("kind", ["table", "reader", "parquet", "arrow"])
@pytest.mark.parametrize("column", [pa.array([[2**24 + 1], [-5]]), pa.array([2**24 + 1, -5], pa.int32())])
def test_whole_numbers_of_tables_are_written_as_they_are(tmp_path: Path, kind: str, column: Any) -> None:
    table = pa.table({"x": column, "small": [1, 2]})
    if kind == "parquet":
        parquet.write_table(table, tmp_path / "a.parquet")
    if kind == "arrow":
        with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
            writer.write_table(table)

    def data() -> Any:
        return {"table": table, "reader": table.to_reader()}.get(kind, tmp_path / f"a.{kind}")

    assert text_of(tmp_path, read(data())) == "0\t|x 16777217 |small 1\n1\t|x -5 |small 2\n"
    write_cbf(tmp_path / "a.cbf", read(data()))
    types = [info.dtype for info in CBFDeserializer(tmp_path / "a.cbf").open().streams]
    assert types == [np.float64, np.float64]
    with pytest.raises(CorpusError, match="stream 'x': the whole number 16777217 is not exact in float32"):
        write_cbf(tmp_path / "b.cbf", read(data()), dtype=np.float32)


def test_keys_of_any_type_of_whole_number_or_text_are_kept(tmp_path: Path) -> None:
    for keys in (pa.array([7, 9], pa.int8()), pa.array([7, 9], pa.uint64()), pa.array([7, 9]).dictionary_encode()):
        table = pa.table({"key": keys, "x": [1.0, 2.0]})
        assert text_of(tmp_path, read(table)) == "7\t|x 1\n9\t|x 2\n"
    for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        table = pa.table({"key": pa.array(["a", "b"]).cast(kind), "x": [1.0, 2.0]})
        with pytest.raises(CorpusError, match="the key 'a' is not a whole number from 0"):
            text_of(tmp_path, read(table))
        write_ctf(tmp_path / "a.ctf", read(table), keys_file=tmp_path / "keys")
        assert (tmp_path / "keys").read_text() == "a\nb\n"


def test_record_batches_print_their_columns_without_reading() -> None:
    batches = RecordBatches({"x": np.ones((2, 3), np.float32)})
    assert repr(batches).splitlines()[0] == "RecordBatches: 2 columns"
    assert [line.split()[0] for line in repr(batches).splitlines()[1:]] == ["key", "x"]
    assert "<table>" in batches._repr_html_()

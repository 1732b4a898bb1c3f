"""Tables are corpora that are read where they are: the order, joins, states and errors of all formats."""

import functools
import itertools
import pickle
import re
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    ConfigError,
    CorpusError,
    CTFDeserializer,
    FormatError,
    GlobalPartition,
    MinibatchSource,
    Remote,
    StreamDef,
    StreamDefs,
)

pytest.importorskip("pyarrow")

import pyarrow as pa
from cntkio.arrow import ArrowDeserializer, write_arrow, write_parquet
from cntkio.arrow.files import OPENED_AS_IT_IS, StreamFile, open_table
from cntkio.formats.contract import Ahead, Opening
from cntkio.formats.pieces import in_arrays
from cntkio.storage.open_input import open_stored
from pyarrow import dataset, feather, ipc, parquet
from support.forks import in_a_fork

BEYOND = 2**53 + 1
ROWS: Mapping[str, Any] = {
    "key": list(range(20)),
    "tokens": [[BEYOND + key] * (1 + key % 3) for key in range(20)],
    "x": [[float(key), 0.5] for key in range(20)],
    "label": [key % 4 for key in range(20)],
}
SCHEMA = pa.schema(
    [
        ("key", pa.uint64()),
        ("tokens", pa.list_(pa.int64())),
        ("x", pa.list_(pa.float32(), 2)),
        ("label", pa.int8()),
    ]
)


def write(path: Path, table: pa.Table, rows: int = 6) -> Path:
    """Write a table in batches of some rows, in the format that the name says."""
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=rows)
    else:
        new = ipc.new_stream if path.suffix == ".arrows" else ipc.new_file
        with new(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)
    return path


@pytest.fixture(params=["a.parquet", "a.arrow", "a.arrows"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write(tmp_path / request.param, pa.table(ROWS, SCHEMA))


def read(deserializer: Any, size: int = 10**6, **options: Any) -> list[Any]:
    with MinibatchSource(deserializer, **{"randomize": False, "max_sweeps": 1, **options}) as source:
        return list(source.minibatches(size))


def rows(path: Path, data: dict[str, Any], **options: Any) -> Any:
    """The only minibatch of a table."""
    target = write(path / "b.parquet", pa.table(data))
    return read(ArrowDeserializer(target, **options))[0]


def test_a_row_is_a_sequence_with_values_in_their_types(path: Path) -> None:
    (minibatch,) = read(ArrowDeserializer(path))
    assert minibatch.keys_of_sequences.tolist() == ROWS["key"]
    assert minibatch["tokens"].values.dtype == np.int64
    assert [part.ravel().tolist() for part in minibatch["tokens"].as_sequences()] == ROWS["tokens"]
    assert (minibatch["x"].values.dtype, minibatch["x"].values.tolist()) == (np.float32, ROWS["x"])
    assert (minibatch["label"].values.dtype, minibatch["label"].values.ravel().tolist()) == (np.int32, ROWS["label"])


def test_values_have_the_type_that_is_asked_for(tmp_path: Path) -> None:
    data = {"n": [1, 2**24], "x": [0.5, 0.1], "c": pa.array(["a", "b"]).dictionary_encode()}
    for dtype in (np.float32, np.float64):
        minibatch = rows(tmp_path, data, dtype=dtype)
        assert {minibatch[name].values.dtype for name in ("n", "x")} == {np.dtype(dtype)}
        assert minibatch["n"].values.ravel().tolist() == data["n"]
    with pytest.raises(FormatError, match=r"row 1, column 'n': the whole number 16777217 is not exact in float32"):
        rows(tmp_path, {"n": [1, 2**24 + 1]}, dtype=np.float32)
    with pytest.raises(ConfigError, match="dtype"):
        ArrowDeserializer(tmp_path / "b.parquet", dtype=np.int8)


def test_row_groups_are_chunks_and_only_asked_columns_are_streams(path: Path) -> None:
    corpus = ArrowDeserializer(path, columns=["label"]).open()
    assert [info.name for info in corpus.streams] == ["label"]
    assert np.diff(corpus.table.chunk_starts).tolist() == [6, 6, 6, 2]
    assert corpus.table.lengths.tolist() == [1] * 20
    assert corpus.places(np.array([0, 7])).texts() == [f"{path}:1", f"{path}:8"]
    corpus.close()


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [(Ahead(1 << 20), 4), (Ahead(1), 1), (Ahead(1 << 20, 3), 0), (Ahead(1 << 20, 4), 4), (Ahead(0), 0)],
)
@pytest.mark.parametrize("nulls", ["error", "drop"])
def test_chunks_that_are_needed_immediately_are_converted_once(
    path: Path, ahead: Ahead, expected: int, nulls: Any
) -> None:
    corpus = ArrowDeserializer(path, nulls=nulls).open(Opening(ahead=ahead))
    parsed = corpus.take_parsed()
    assert sorted(parsed) == list(range(expected))
    for chunk_id, loaded in parsed.items():
        again = corpus.load(chunk_id)
        assert loaded.chunk_id == again.chunk_id == chunk_id
        for data, other in zip(*(joined_chunk(corpus, one) for one in (loaded, again)), strict=True):
            assert np.array_equal(data.values, other.values)
            assert np.array_equal(data.offsets, other.offsets)
    corpus.close()


def joined_chunk(corpus: Any, loaded: Any) -> list[Any]:
    return list(in_arrays(corpus.streams, loaded.chunk.num_sequences, [loaded.chunk]).values())


def test_a_chunk_converted_early_leaves_its_fault_to_its_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", pa.table({"x": [1, 2, 3, None, 5, 6]}), rows=2)
    with MinibatchSource(ArrowDeserializer(path), randomize=False, max_sweeps=1) as source:
        assert source.read(2)["x"].values.ravel().tolist() == [1, 2]
        with pytest.raises(FormatError, match=r"a\.parquet: row 3, column 'x'"):
            source.read(2)


def test_the_order_is_that_of_the_same_data_as_text(path: Path, tmp_path: Path) -> None:
    """With a window in samples, the randomized order depends only on lengths and chunks."""
    lines = [f"{key} |t {key}\n" * len(tokens) for key, tokens in zip(ROWS["key"], ROWS["tokens"], strict=True)]
    (tmp_path / "a.ctf").write_text("".join(lines))
    streams = StreamDefs(t=StreamDef(field="t", shape=1))
    one = write(tmp_path / "one.parquet", pa.table(ROWS, SCHEMA), rows=100)
    orders = [
        [minibatch.keys_of_sequences.tolist() for minibatch in read(deserializer, 7, randomize=True, max_sweeps=2)]
        for deserializer in (ArrowDeserializer(one), CTFDeserializer(tmp_path / "a.ctf", streams))
    ]
    assert orders[0] == orders[1]


def test_a_table_joins_a_text_by_its_keys(path: Path, tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_text("".join(f"{key} |y {key}\n" for key in reversed(ROWS["key"][5:])))
    text = CTFDeserializer(tmp_path / "a.ctf", StreamDefs(y=StreamDef(field="y", shape=1)))
    (minibatch,) = read([ArrowDeserializer(path), text])
    assert minibatch["y"].values.ravel().tolist() == minibatch["x"].values[:, 0].tolist() == ROWS["key"][5:]


def test_texts_are_keys_that_join_words(tmp_path: Path) -> None:
    words = ["b", "ä", "c"]
    table = write(tmp_path / "a.parquet", pa.table({"key": words, "x": [1.0, 2.0, 3.0]}))
    (tmp_path / "a.ctf").write_text("".join(f"{word} |y {number}\n" for number, word in enumerate(words)))
    text = CTFDeserializer(tmp_path / "a.ctf", StreamDefs(y=StreamDef(field="y", shape=1)))
    (minibatch,) = read([ArrowDeserializer(table), text])
    assert minibatch["x"].values.ravel().tolist() == [1, 2, 3]
    assert minibatch["y"].values.ravel().tolist() == [0, 1, 2]
    assert minibatch.keys_of_sequences.tolist() == words


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_state_continues_on_any_number_of_ranks(path: Path, ranks: int) -> None:
    def delivered(state: Any, rank: int, count: int) -> list[int]:
        with MinibatchSource(ArrowDeserializer(path), max_sweeps=2) as source:
            source.load_state_dict(state)
            read = functools.partial(source.read, 7, GlobalPartition(rank, count))
            return [key for minibatch in iter(read, None) for key in minibatch.keys_of_sequences.tolist()]

    with MinibatchSource(ArrowDeserializer(path), max_sweeps=2) as whole:
        whole.read(7, GlobalPartition(0, 1))
        state = whole.state_dict()
        expected = [key for minibatch in whole.minibatches(7) for key in minibatch.keys_of_sequences.tolist()]
    found = [delivered(state, rank, ranks) for rank in range(ranks)]
    assert sorted(itertools.chain(*found)) == sorted(expected)


def test_a_deserializer_can_be_pickled(path: Path) -> None:
    again = pickle.loads(pickle.dumps(ArrowDeserializer(path, columns=["tokens"])))
    assert read(again)[0]["tokens"].values.tolist() == read(ArrowDeserializer(path))[0]["tokens"].values.tolist()


# -------------------------------------------------------------------------------------------------------------- columns


def test_lists_structs_and_classes_have_their_forms(tmp_path: Path) -> None:
    entries = [{"indices": [3, 0], "values": [1.5, 2.0]}, {"indices": [], "values": []}]
    found = rows(
        tmp_path,
        {
            "sparse": entries,
            "counts": [[{"indices": [1], "values": [BEYOND]}], []],
            "word": [[5, 6], [7]],
            "name": ["b", "a"],
            "nested": [[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]],
        },
        shapes={"sparse": 4, "counts": 2, "nested": 2},
        one_hot={"word": 9, "name": ["a", "b"]},
    )
    assert found["sparse"].asarray()[:, 0].tolist() == [[2, 0, 0, 1.5], [0, 0, 0, 0]]
    assert (found["counts"].values.dtype, found["counts"].values.tolist()) == (np.int64, [BEYOND])
    assert (found["word"].indices.tolist(), found["name"].indices.tolist()) == ([5, 6, 7], [1, 0])
    assert found["nested"].values.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert found["nested"].offsets.tolist() == [0, 1, 3]


def test_files_that_cntkio_wrote_keep_forms_and_shapes(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_text("3 |w 5:1 |x 1 2\n3 |w 6:2\n7 |w 1:1 |x 3 4\n")
    streams = StreamDefs(w=StreamDef(field="w", shape=9, is_sparse=True), x=StreamDef(field="x", shape=2))
    text = CTFDeserializer(tmp_path / "a.ctf", streams)
    write_parquet(tmp_path / "a.parquet", text)
    write_arrow(tmp_path / "a.arrow", text)
    (expected,) = read(text)
    for name in ("a.parquet", "a.arrow"):
        (found,) = read(ArrowDeserializer(tmp_path / name))
        for stream in ("w", "x"):
            assert found[stream].asarray().tolist() == expected[stream].asarray().tolist()
            assert found[stream].stream.form == expected[stream].stream.form
        assert found.keys_of_sequences.tolist() == [3, 7]


def test_the_defining_stream_counts(tmp_path: Path) -> None:
    table = write(tmp_path / "a.parquet", pa.table({"a": [[1, 2, 3], [4]], "b": [[1.0], [2.0, 3.0]]}))
    assert ArrowDeserializer(table).open().table.lengths.tolist() == [3, 2]
    assert ArrowDeserializer(table, defines_mb_size="b").open().table.lengths.tolist() == [1, 2]
    with pytest.raises(ConfigError, match="no stream 'c'"):
        ArrowDeserializer(table, defines_mb_size="c").open()


def test_rows_without_keys_are_counted_over_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.parquet", pa.table({"x": [1.0, 2.0]}))
    (minibatch,) = read(ArrowDeserializer(tmp_path / "*.parquet"))
    assert minibatch.keys_of_sequences.tolist() == [0, 1, 2, 3]


# --------------------------------------------------------------------------------------------------------------- places


def test_a_saved_data_set_is_read_with_its_classes(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        text=datasets.List(datasets.Value("int64")), label=datasets.ClassLabel(names=["n", "p"])
    )
    data = datasets.Dataset.from_dict({"text": [[1, 2], [3], [4, BEYOND]], "label": [1, 0, 1]}, features)
    data.save_to_disk(tmp_path / "saved", num_shards=2)
    (minibatch,) = read(ArrowDeserializer(tmp_path / "saved"))
    assert minibatch["text"].values.ravel().tolist() == [1, 2, 3, 4, BEYOND]
    assert (minibatch["label"].stream.dim, minibatch["label"].indices.tolist()) == (2, [1, 0, 1])
    (numbers,) = read(ArrowDeserializer(tmp_path / "saved", ids=["label"]))
    assert numbers["label"].values.ravel().tolist() == [1, 0, 1]


def test_a_data_set_of_pyarrow_is_its_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.parquet", pa.table({"x": [1.0, 2.0]}))
    (minibatch,) = read(ArrowDeserializer(dataset.dataset(tmp_path, format="parquet")))
    assert minibatch["x"].values.ravel().tolist() == [1, 2, 1, 2]
    with pytest.raises(ConfigError, match="a InMemoryDataset is not of files"):
        ArrowDeserializer(dataset.dataset(pa.table({"x": [1]})))


def test_rejects_data_sets_that_deliver_other_rows_or_columns_than_their_files(tmp_path: Path) -> None:
    dataset.write_dataset(
        pa.table({"x": [1.0, 2.0], "y": [5, 6]}),
        tmp_path,
        format="parquet",
        partitioning=["y"],
        partitioning_flavor="hive",
    )
    data = dataset.dataset(tmp_path, format="parquet", partitioning="hive")
    with pytest.raises(ConfigError, match="this data set has a filter"):
        ArrowDeserializer(data.filter(dataset.field("x") > 1), columns=["x"])
    with pytest.raises(
        ConfigError, match="the names of folders, not the files, have the values of 'y'; name the columns"
    ):
        ArrowDeserializer(data)
    (minibatch,) = read(ArrowDeserializer(data, columns=["x"]))
    assert sorted(minibatch["x"].values.ravel().tolist()) == [1, 2]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".arrows"])
def test_a_file_in_a_store_is_read_where_it_is(tmp_path: Path, suffix: str) -> None:
    fsspec = pytest.importorskip("fsspec")
    local = write(tmp_path / f"a{suffix}", pa.table(ROWS, SCHEMA))
    fsspec.filesystem("memory").pipe(f"memory://tables/a{suffix}", local.read_bytes())
    (expected,), (found,) = (read(ArrowDeserializer(name)) for name in (local, f"memory://tables/a{suffix}"))
    assert found["tokens"].values.tolist() == expected["tokens"].values.tolist()
    store = pa.fs.SubTreeFileSystem(str(tmp_path), pa.fs.LocalFileSystem())
    (found,) = read(ArrowDeserializer(f"a{suffix}", remote=Remote(store=store)))
    assert found["tokens"].values.tolist() == expected["tokens"].values.tolist()


def test_a_feather_file_is_an_arrow_file(tmp_path: Path) -> None:
    feather.write_feather(pa.table(ROWS, SCHEMA), tmp_path / "a.feather", compression="lz4")
    (minibatch,) = read(ArrowDeserializer(tmp_path / "a.feather"))
    assert minibatch["x"].values.tolist() == ROWS["x"]


@pytest.mark.parametrize("ending", ["parquet", "arrow", "arrows"])
def test_no_read_starts_threads_of_pyarrow_except_for_a_footer(tmp_path: Path, ending: str) -> None:
    path = str(tmp_path / f"a.{ending}")
    table = pa.table({name: np.arange(9000) % 7 for name in "abcdef"})
    if ending == "parquet":
        parquet.write_table(table, path, row_group_size=3000)
    else:
        options = ipc.IpcWriteOptions(compression="lz4")
        with (ipc.new_stream if ending == "arrows" else ipc.new_file)(path, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=3000)

    def num_new_threads() -> int:
        pa.set_io_thread_count(1)
        before = len(list(Path("/proc/self/task").iterdir()))
        with closing(open_table(path)) as file:
            assert sum(batch.num_rows for batch in file.in_order("abcdef")) == 9000
            batches = [file.read(number, ["e", "b"]) for number in range(file.num_batches)]
        assert [batch["b"].to_pylist() for batch in batches] == parts
        return len(list(Path("/proc/self/task").iterdir())) - before

    parts = [table["b"].slice(first, 3000).to_pylist() for first in (0, 3000, 6000)]
    # A fork has none of the threads of this process. pyarrow reads the footer of an Arrow file in a thread.
    assert int(in_a_fork(num_new_threads)) == (ending == "arrow")


def test_a_fork_reads_a_stream_while_a_thread_reads_another(tmp_path: Path) -> None:
    path, searches, may_continue = str(tmp_path / "a.arrows"), threading.Event(), threading.Event()
    with ipc.new_stream(path, SCHEMA) as writer:
        writer.write_table(pa.table(ROWS, SCHEMA), max_chunksize=5)

    class Slow(StreamFile):
        def source(self) -> Any:
            if threading.current_thread() is not threading.main_thread():
                searches.set()
                may_continue.wait(60)
            return super().source()

    with closing(Slow(open_stored(path), OPENED_AS_IT_IS)) as slow:
        thread = threading.Thread(target=lambda: slow.num_batches)
        thread.start()
        searches.wait(60)
        assert in_a_fork(lambda: ArrowDeserializer(path).open().table.num_chunks) == "4"
        may_continue.set()
        thread.join()
        assert slow.num_batches == 4


# --------------------------------------------------------------------------------------------------------------- errors


def test_a_row_with_a_null_is_an_error_or_dropped(tmp_path: Path) -> None:
    columns = {
        "key": list(range(8)),
        "x": [1.0, None, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
        "t": [[1], [2], [3, None], [4, 4], None, [6], [], [8]],
    }
    table = write(tmp_path / "a.parquet", pa.table(columns), rows=3)
    with pytest.raises(FormatError, match=r"a.parquet.*row 4, column 't': 1 null; expected no nulls; .*nulls='drop'"):
        read(ArrowDeserializer(table))
    with pytest.raises(FormatError, match=r"row 1, column 'x': 1 null"):
        read(ArrowDeserializer(table, columns=["x"]))
    dropping = ArrowDeserializer(table, nulls="drop")
    (minibatch,) = read(dropping)
    assert minibatch.keys_of_sequences.tolist() == [0, 3, 5, 6, 7]
    assert minibatch["t"].values.ravel().tolist() == [1, 4, 4, 6, 8]
    assert dropping.open().places(np.arange(5)).texts() == [f"{table}:{row}" for row in (1, 4, 6, 7, 8)]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"x": [1.0, 2.0]}, {"columns": ["y"]}, "no column 'y'"),
        ({"x": [1.0, 2.0]}, {"key": "y"}, "no column 'y'"),
        ({"x": ["a", "b"]}, {}, "column 'x' is string; expected numbers"),
        ({"x": [[1.0, 2.0], [3.0]]}, {"shapes": {"x": 2}}, "row 1, column 'x': not all samples have 2 values"),
        ({"x": [1, 9]}, {"one_hot": {"x": 5}}, "row 1, column 'x': indices from 9 to 9, but the dimension is 5"),
        (
            {"x": np.array([2**64 - 1], np.uint64)},
            {},
            "row 0, column 'x': the whole number 18446744073709551615 does not fit int64",
        ),
        ({"key": [1, -1], "x": [1.0, 2.0]}, {}, "row 1, column 'key' has the key -1"),
        ({"key": ["a", ""], "x": [1.0, 2.0]}, {}, "row 1: an empty key"),
        ({"x": [1.0]}, {"nulls": "skip"}, "nulls is 'skip'; expected 'error' or 'drop'"),
    ],
)
def test_errors_name_file_row_and_column(
    tmp_path: Path, columns: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, FormatError), match=re.escape(message)):
        rows(tmp_path, columns, **options)


def test_an_error_about_damaged_metadata_names_the_file_once(tmp_path: Path) -> None:
    for name, metadata in (("a", None), ("b", {"cntkio": "{"})):
        field = pa.field("x", pa.int64(), metadata=metadata)
        write(tmp_path / f"{name}.parquet", pa.table({"x": [2]}, pa.schema([field])))
    with pytest.raises(FormatError) as caught:
        ArrowDeserializer(str(tmp_path / "*.parquet")).open()
    assert str(caught.value).count("b.parquet") == 1


def test_another_file_and_a_changed_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_text("|x 1\n")
    with pytest.raises(FormatError, match="this is neither a Parquet nor an Arrow file"):
        ArrowDeserializer(tmp_path / "a.ctf").open()
    path = write(tmp_path / "a.parquet", pa.table(ROWS, SCHEMA))
    corpus = ArrowDeserializer(path).open()
    with path.open("r+b") as file:
        file.truncate(50)
    with pytest.raises((FormatError, CorpusError), match=r"a\.parquet"):
        corpus.load(0)
    corpus.close()

"""Data frames, series, tensors, data sets and lists are accepted by every writer, and class ids cross both ways."""

from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
import scipy.sparse
from cntkio import (
    CBFDeserializer,
    ConfigError,
    CorpusError,
    CTFDeserializer,
    MinibatchSource,
    MinibatchSourceFromData,
    StreamDef,
    StreamDefs,
    infer_streams,
    read_ctf,
    write_cbf,
    write_ctf,
)
from cntkio.formats.pieces import read_corpus

pa = pytest.importorskip("pyarrow")
from cntkio import arrow  # noqa: E402

ROWS = {"key": [7, 9], "x": [[1.0, 2.0], [3.0, 4.5]], "y": [5, 6]}
LINES = "7\t|x 1 2 |y 5\n9\t|x 3 4.5 |y 6\n"
RAGGED = {"key": [7, 9], "w": [[5.0], [6.0, 7.0]]}
FORMS = ("pyarrow", "pandas", "polars", "datasets", "duckdb", "batches")


def table(form: str, columns: dict[str, list[Any]]) -> Any:
    """Return columns as a table of a library."""
    if form == "pyarrow":
        return pa.table(columns)
    if form == "batches":
        return pa.table(columns).to_batches()[0]
    library = pytest.importorskip(form)
    if form == "datasets":
        return library.Dataset.from_dict(columns)
    if form == "duckdb":
        held = pa.table(columns)
        return library.from_arrow(held)
    return library.DataFrame(columns)


def text(folder: Path, data: Any, **options: Any) -> str:
    write_ctf(folder / "out.ctf", data, **options)
    return (folder / "out.ctf").read_text()


def values(data: Any, name: str) -> list[Any]:
    with MinibatchSourceFromData(data, max_samples=cntkio.FULL_DATA_SWEEP) as source:  # type: ignore[attr-defined]
        return source.next_minibatch(100)[name].values.tolist()


# ------------------------------------------------------------------------------------------------------- tables


@pytest.mark.parametrize("form", FORMS)
def test_tables_are_written_as_they_are(form: str, tmp_path: Path) -> None:
    frame = table(form, RAGGED)
    assert text(tmp_path, frame) == text(tmp_path, arrow.read(frame)) == "7\t|w 5\n9\t|w 6\n9\t|w 7\n"
    write_cbf(tmp_path / "a.cbf", frame)
    assert read_corpus(CBFDeserializer(tmp_path / "a.cbf").open())["w"].lengths.tolist() == [1, 2]
    assert text(tmp_path, frame.select(["key", "w"]) if form == "pyarrow" else frame, renumber=True)[0] == "0"
    source = MinibatchSourceFromData(frame, max_samples=MinibatchSource.full_data_sweep)
    assert source.next_minibatch(10)["w"].values.tolist() == [[5], [6], [7]]


@pytest.mark.parametrize("form", FORMS)
def test_class_ids_of_tables_become_one_hot_samples(form: str, tmp_path: Path) -> None:
    frame = table(form, {"tokens": [[3], [4, 942]], "label": [0, 1]})
    one_hot = {"tokens": 943, "label": 2}
    lines = "0\t|tokens 3:1 |label 0:1\n1\t|tokens 4:1 |label 1:1\n1\t|tokens 942:1\n"
    assert text(tmp_path, frame, one_hot=one_hot) == text(tmp_path, arrow.read(frame, one_hot=one_hot)) == lines
    write_cbf(tmp_path / "a.cbf", frame, one_hot=one_hot)
    assert [(info.dim, info.is_sparse) for info in CBFDeserializer(tmp_path / "a.cbf").open().streams] == [
        (943, True),
        (2, True),
    ]
    with pytest.raises(CorpusError, match="row 1, column 'tokens': indices from 4 to 942, but the dimension is 942"):
        text(tmp_path, frame, one_hot={"tokens": 942})


def test_the_unnamed_index_of_a_data_frame_is_not_a_stream(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [1.0, 2.0, 3.0]})
    part = frame[frame.x > 1]
    assert text(tmp_path, part) == text(tmp_path, pa.Table.from_pandas(part)) == "0\t|x 2\n1\t|x 3\n"
    named = frame.set_index(pandas.Index([7, 8, 9], name="key"))
    assert text(tmp_path, named.reset_index()) == "7\t|x 1\n8\t|x 2\n9\t|x 3\n"


@pytest.mark.parametrize("form", ["pandas", "polars"])
def test_a_series_is_a_stream_of_its_name(form: str, tmp_path: Path) -> None:
    library = pytest.importorskip(form)
    series = library.Series(name="x", data=[1.5, 2.5]) if form == "pandas" else library.Series("x", [1.5, 2.5])
    assert text(tmp_path, series) == text(tmp_path, {"x": series}) == "0\t|x 1.5\n1\t|x 2.5\n"
    nameless = library.Series([1.5])
    with pytest.raises(ConfigError, match=r"a Series without a name; expected \{'x': data\}"):
        text(tmp_path, nameless)
    lists = library.Series([[1, 2], [2**24 + 1]])
    assert text(tmp_path, {"x": lists}) == "0\t|x 1\n0\t|x 2\n1\t|x 16777217\n"
    with pytest.raises(CorpusError, match="stream 'x': the whole number 16777217 is not exact in float32"):
        write_cbf(tmp_path / "a.cbf", {"x": lists}, dtype=np.float32)
    assert MinibatchSourceFromData({"x": lists}).next_minibatch(3)["x"].lengths.tolist() == [2, 1]


# ------------------------------------------------------------------------------------------------ tensors, lists


def test_tensors_are_arrays(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    data = {"x": torch.tensor([[1, 2], [3, 4]]), "y": [torch.ones(2, 1), torch.zeros(1, 1)]}
    lines = "0\t|x 1 2 |y 1\n0\t|y 1\n1\t|x 3 4 |y 0\n"
    assert text(tmp_path, data) == lines
    source = MinibatchSourceFromData(data, max_samples=MinibatchSource.full_data_sweep)
    assert source.next_minibatch(10)["x"].values.tolist() == [[1, 2], [3, 4]]
    assert text(tmp_path, arrow.read({"x": data["x"]})) == "0\t|x 1 2\n1\t|x 3 4\n"
    tokens = torch.tensor([[5, 6], [7, 8]])
    assert text(tmp_path, {"t": tokens}, one_hot={"t": 9}) == "0\t|t 5:1\n0\t|t 6:1\n1\t|t 7:1\n1\t|t 8:1\n"
    with pytest.raises(ConfigError, match=r"stream 'x': Can't call numpy\(\) on Tensor that requires grad. Use"):
        text(tmp_path, {"x": torch.ones(2, requires_grad=True)})
    with pytest.raises(ConfigError, match=r"cannot write data of the type Tensor; expected .*such as \{'x': data\}"):
        text(tmp_path, data["x"])


def test_ragged_lists_numbers_and_matrices_are_streams(tmp_path: Path) -> None:
    data = {"w": [[5, 6], [7]], "y": [1, 2.5], "s": scipy.sparse.coo_array(np.array([[0, 1], [1, 0]]))}
    lines = "0\t|w 5 |y 1 |s 1:1\n0\t|w 6\n1\t|w 7 |y 2.5 |s 0:1\n"
    assert text(tmp_path, data) == lines
    assert text(tmp_path, {"w": data["w"]}, one_hot={"w": 8}) == "0\t|w 5:1\n0\t|w 6:1\n1\t|w 7:1\n"
    assert text(tmp_path, arrow.read({"w": data["w"]}, one_hot={"w": 8})) == "0\t|w 5:1\n0\t|w 6:1\n1\t|w 7:1\n"


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        ([1, 2], {}, "cannot write data of the type list; expected a deserializer"),
        (np.eye(2), {}, r"cannot write data of the type ndarray; expected .*\{'x': data\}"),
        ({"x": "abc"}, {}, "stream 'x' is a str; expected an array or a tensor"),
        ({"x": ["a", "b"]}, {}, "stream 'x', sequence 0: a text; expected an array of samples"),
        ({"x": [[1], [[2]]]}, {}, "stream 'x', sequence 1: samples of shape"),
        ({"x": [[1, [2]]]}, {}, "stream 'x': .*inhomogeneous"),
        ({"x": [1, 2]}, {"one_hot": {"y": 3}}, "one_hot: no stream 'y'; there are: 'x'"),
        (
            {"x": [1.5, 2]},
            {"one_hot": {"x": 3}},
            "one_hot: stream 'x' has samples of shape .* in float64; expected class",
        ),
        ({"x": [1, 3]}, {"one_hot": {"x": 3}}, "stream 'x': index 3, but the dimension is 3"),
        ({"x": [1, -1]}, {"one_hot": {"x": 3}}, "stream 'x': index -1, but the dimension is 3"),
    ],
)
def test_data_that_no_writer_accepts_raise_a_helpful_error(data: Any, options: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, CorpusError), match=words):
        text(tmp_path, data, **options)
    assert not list(tmp_path.iterdir())


# ----------------------------------------------------------------------------------------------- class ids, back


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "words.ctf"
    path.write_text("7 |w 3:1 |t 0 1 |x 0.5\n7 |w 5:1\n9 |w 0:1 |t 1 0 |x 2\n")
    return path


def test_one_hot_streams_are_read_as_class_ids(words: Path, tmp_path: Path) -> None:
    corpus = read_ctf(words, ids=["w", "t"])
    assert corpus["w"].values.tolist() == [3, 5, 0] and corpus["w"].values.dtype == np.int32
    assert corpus["t"].values.tolist() == [1, 0] and corpus["w"].offsets.tolist() == [0, 2, 3]
    assert corpus["x"].values.tolist() == [[0.5], [2]]
    assert text(tmp_path, corpus) == "7\t|t 1:1 |w 3:1 |x 0.5\n7\t|w 5:1\n9\t|t 0:1 |w 0:1 |x 2\n"
    with pytest.raises(ConfigError, match=r"stream 't' is in int32; .*give one_hot=\{'t': number of classes\}"):
        write_cbf(tmp_path / "a.cbf", corpus)
    write_cbf(tmp_path / "a.cbf", corpus, one_hot={"w": 6, "t": 2})
    again = read_corpus(CBFDeserializer(tmp_path / "a.cbf").open())
    assert again["w"].indices.tolist() == [3, 5, 0] and again["w"].stream.dim == 6  # type: ignore[union-attr]
    with pytest.raises(CorpusError, match="sequence 7, stream 'x': sample 0 is not a single entry of 1"):
        read_ctf(words, ids=["x"])
    with pytest.raises(ConfigError, match="ids: no stream 'ww'.*did you mean 'w'"):
        read_ctf(words, ids=["ww"])


@pytest.mark.parametrize("write", [arrow.write_parquet, arrow.write_arrow])
def test_class_ids_in_tables_come_back_as_the_same_corpus(words: Path, tmp_path: Path, write: Any) -> None:
    corpus = CTFDeserializer(words, infer_streams(words))
    write(tmp_path / "a.table", corpus, ids=["w"])
    assert text(tmp_path, arrow.read(tmp_path / "a.table")) == text(tmp_path, corpus)
    rows = pa.table(arrow.RecordBatches(corpus, ids=["w"]))
    assert rows["w"].to_pylist() == [[3, 5], [0]] and rows.schema.field("w").type.value_type == pa.int32()
    batch = arrow.convert(MinibatchSource(corpus, randomize=False).next_minibatch(10), ids=["w"])
    assert batch["w"].to_pylist()[:2] == [[3, 5], [0]]
    with pytest.raises(CorpusError, match="sequence 7, stream 'x': sample 0 is not a single entry of 1"):
        list(arrow.RecordBatches(corpus, ids=["x"]))


# ----------------------------------------------------------------------------------------------------- metadata


def test_dimensions_and_precisions_come_back_from_files(tmp_path: Path) -> None:
    streams = StreamDefs(
        s=StreamDef("s", 9, is_sparse=True), image=StreamDef("image", (2, 3)), c=StreamDef("c", 4, is_sparse=True)
    )
    (tmp_path / "a.ctf").write_text("|s 3:0.5 |image 1 2 3 4 5 6 |c 1:1\n|s |image 0 0 0 0 0 0 |c 0:1\n")
    corpus = CTFDeserializer(tmp_path / "a.ctf", streams, dtype=np.float64)
    for write in (arrow.write_parquet, arrow.write_arrow):
        write(tmp_path / "a", corpus, flat=["image"], ids=["c"])
        facts = {info.name: (info.shape, info.is_sparse, info.dtype) for info in arrow.read(tmp_path / "a").streams}
        double = np.dtype(np.float64)
        assert facts == {"s": ((9,), True, double), "image": ((2, 3), False, double), "c": ((4,), True, double)}


@pytest.mark.parametrize("library", ["polars", "pandas", "datasets"])
def test_a_schema_restores_metadata_that_a_library_dropped(words: Path, tmp_path: Path, library: str) -> None:
    corpus = CTFDeserializer(words, infer_streams(words))
    batches = arrow.RecordBatches(corpus, ids=["w"], flat=["t"])
    frame: Any
    if library == "datasets":
        frame = pytest.importorskip("datasets").Dataset(pa.table(batches)).select([1, 0])
    elif library == "polars":
        frame = pytest.importorskip("polars").DataFrame(batches).reverse()
    else:
        frame = pytest.importorskip("pandas").DataFrame.from_arrow(batches).iloc[::-1]
    lines = text(tmp_path, arrow.read(frame, shapes=batches.schema))
    assert lines == "9\t|t 1 0 |w 0:1 |x 2\n7\t|t 0 1 |w 3:1 |x 0.5\n7\t|w 5:1\n"


# ---------------------------------------------------------------------------------------------------- displays


def test_tables_and_record_batches_print_their_columns() -> None:
    corpus = arrow.read({"x": np.zeros((2, 3), np.float32), "y": [1, 2]}, one_hot={"y": 4})
    assert [info.form for info in corpus.streams] == ["dense float32 [3]", "sparse float32 [4]"]
    assert repr(arrow.RecordBatches({"x": np.ones(1, np.float32)}, flat=True)) == (
        "RecordBatches: 2 columns\n  key  uint64\n  x    float"
    )


@pytest.mark.parametrize(("option", "value"), [("ids", True), ("ids", 3), ("flat", 3), ("ids", "x")])
def test_names_of_streams_are_lists(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{option} is {value!r}; expected a list of names, such as \['x'\]"):
        arrow.RecordBatches({"x": [1.0]}, **{option: value})


# ----------------------------------------------------------------------------------------------------- classes

LABELS = ["b", "a", "b"]
ONE_HOT = "0\t|c 1:1\n1\t|c 0:1\n2\t|c 1:1\n"


def labelled(form: str) -> Any:
    """Return a table whose column `c` has the labels in a type for classes."""
    if form == "pandas":
        pandas = pytest.importorskip("pandas")
        return pandas.DataFrame({"c": pandas.Categorical(LABELS, categories=["a", "b", "x"])})
    if form == "polars":
        polars = pytest.importorskip("polars")
        return polars.DataFrame({"c": LABELS}, schema={"c": polars.Enum(["a", "b", "x"])})
    if form == "series":
        return {"c": labelled("pandas")["c"]}
    if form == "pyarrow":
        return pa.table({"c": pa.DictionaryArray.from_arrays(pa.array([1, 0, 1]), pa.array(["a", "b"]))})
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict(
        {"c": [1, 0, 1]}, features=datasets.Features(c=datasets.ClassLabel(names=["a", "b", "x"]))
    )


@pytest.mark.parametrize("form", ["pandas", "polars", "series", "pyarrow", "datasets"])
def test_columns_of_classes_become_one_hot_by_themselves(tmp_path: Path, form: str) -> None:
    data = labelled(form)
    assert text(tmp_path, data) == ONE_HOT
    assert arrow.read(data).streams[0].dim == (2 if form == "pyarrow" else 3)


@pytest.mark.parametrize("form", ["pandas", "polars", "pyarrow", "list", "array", "categories"])
def test_texts_become_one_hot_with_the_names_of_the_classes(tmp_path: Path, form: str) -> None:
    columns: Any = {"c": LABELS}
    if form == "array":
        columns = {"c": np.array(LABELS)}
    data = (
        labelled("pandas") if form == "categories" else columns if form in ("list", "array") else table(form, columns)
    )
    assert text(tmp_path, data, one_hot={"c": ["a", "b"]}) == ONE_HOT
    with pytest.raises(CorpusError, match="'b' is not one of the 2 classes"):
        text(tmp_path, data, one_hot={"c": ["a", "B"]})


def test_lists_of_texts_are_sequences_of_classes(tmp_path: Path) -> None:
    data = pa.table({"c": [["a", "b"], ["b"]]})
    assert text(tmp_path, data, one_hot={"c": ["a", "b"]}) == "0\t|c 0:1\n0\t|c 1:1\n1\t|c 1:1\n"


def test_categories_of_several_batches_are_numbered_together(tmp_path: Path) -> None:
    parts = [pa.array(names).dictionary_encode() for names in (["a", "b"], ["b", "c"])]
    data = pa.Table.from_batches([pa.record_batch({"c": part}) for part in parts])
    assert text(tmp_path, data) == "0\t|c 0:1\n1\t|c 1:1\n2\t|c 1:1\n3\t|c 2:1\n"


@pytest.mark.parametrize(
    ("columns", "one_hot"),
    [({"c": LABELS}, {}), ({"c": LABELS}, {"c": 2}), ({"c": LABELS}, {"c": ["a", "a"]}), ({"c": [1]}, {"c": ["a"]})],
)
def test_refuses_texts_without_names_of_classes(columns: dict[str, Any], one_hot: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"column 'c' is .*; expected .*one_hot"):
        arrow.read(pa.table(columns), one_hot=one_hot)


def test_objects_with_tables_in_them_say_what_to_call(tmp_path: Path) -> None:
    lazy = pytest.importorskip("polars").LazyFrame({"x": [1.0]})
    several = pytest.importorskip("datasets").DatasetDict({"train": labelled("datasets")})
    for data, call in ((lazy, r"collect\(\)"), (several, r"data\[\.\.\.\], of 'train'")):
        for take in (arrow.read, MinibatchSourceFromData, lambda data: text(tmp_path, data)):
            with pytest.raises(ConfigError, match=call):
                take(data)

"""Rows of a table are the same streams, types, values and keys, wherever the rows are."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    CheckpointError,
    ConfigError,
    CorpusError,
    CTFDeserializer,
    FormatError,
    MinibatchSource,
    MinibatchSourceFromData,
    StreamDef,
    StreamDefs,
    write_cbf,
    write_ctf,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rounds import rounds

pa = pytest.importorskip("pyarrow")
from cntkio import arrow  # noqa: E402
from cntkio.arrow import ArrowDeserializer  # noqa: E402
from cntkio.formats.pieces import in_arrays, joined  # noqa: E402
from pyarrow import ipc, parquet  # noqa: E402

BEYOND = 2**53 + 1
ENTRIES = pa.struct([("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.int64()))])
COLUMNS: Mapping[str, tuple[list[Any], Any]] = {
    "int8": ([1, -2, 3], pa.int8()),
    "uint8": ([1, 255, 3], pa.uint8()),
    "int32": ([2**24 + 1, -5, 0], pa.int32()),
    "uint32": ([2**32 - 1, 5, 0], pa.uint32()),
    "int64": ([BEYOND, -BEYOND, 0], pa.int64()),
    "float32": ([0.1, 2.5, -0.0], pa.float32()),
    "float64": ([0.1, 2.5, 1e300], pa.float64()),
    "bool": ([True, False, True], pa.bool_()),
    "vector": ([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2)),
    "sequence": ([[BEYOND], [1, 2, 3], [4]], pa.list_(pa.int64())),
    "categories": (["b", "a", "b"], pa.dictionary(pa.int32(), pa.string())),
    "entries": ([{"indices": [3], "values": [BEYOND]}] * 3, ENTRIES),
}
TYPES = {"int64": np.int64, "uint32": np.int64, "sequence": np.int64, "entries": np.int64, "float64": np.float64}


def one_file(folder: Path, table: Any) -> Any:
    parquet.write_table(table, folder / "one.parquet", row_group_size=2)
    return folder / "one.parquet"


def two_files(folder: Path, table: Any) -> Any:
    for number, part in enumerate((table.slice(0, 1), table.slice(1))):
        parquet.write_table(part, folder / f"two-{number}.parquet")
    return folder / "two-*.parquet"


def one_arrow(folder: Path, table: Any) -> Any:
    with ipc.new_file(folder / "one.arrow", table.schema) as writer:
        writer.write_table(table)
    return folder / "one.arrow"


def pandas(folder: Path, table: Any) -> Any:
    library = pytest.importorskip("pandas")
    return table.to_pandas(types_mapper=library.ArrowDtype)


PLACES: dict[str, Callable[[Path, Any], Any]] = {
    "one file": one_file,
    "two files": two_files,
    "an Arrow file": one_arrow,
    "pyarrow": lambda folder, table: table,
    "a list of tables": lambda folder, table: [table.slice(0, 2), table.slice(2)],
    "a reader": lambda folder, table: table.to_reader(max_chunksize=2),
    "pandas": pandas,
    "polars": lambda folder, table: pytest.importorskip("polars").from_arrow(table),
    "a data set": lambda folder, table: pytest.importorskip("datasets").Dataset(table),
}


def facts(minibatch: Any) -> dict[str, Any]:
    """All that a reader sees of each stream, and the keys."""
    found = {
        data.stream.name: (data.stream.form, data.values.dtype, data.values.tolist(), data.offsets.tolist(),
                           None if data.indices is None else data.indices.tolist())
        for data in minibatch.values()
    }  # fmt: skip
    return {**found, "keys": minibatch.keys_of_sequences.tolist()}


def read(data: Any, **options: Any) -> dict[str, Any]:
    with MinibatchSource(ArrowDeserializer(data, **options), randomize=False, max_sweeps=1) as source:
        return facts(source.next_minibatch(10**6))


@pytest.mark.parametrize("column", COLUMNS)
def test_the_same_rows_are_the_same_streams_in_every_place(column: str, tmp_path: Path) -> None:
    values, kind = COLUMNS[column]
    table = pa.table({"key": pa.array([7, 9, 3], pa.uint64()), "x": pa.array(values, kind)})
    options: Any = {"shapes": {"x": 4}} if column == "entries" else {}
    expected = read(table, **options)
    dtype = TYPES.get(column, np.float32 if kind in (pa.float32(), COLUMNS["vector"][1]) else np.int32)
    assert expected["x"][1] == (np.float32 if column == "categories" else dtype)
    for place, data_in in PLACES.items():
        if (place, column) == ("a data set", "categories"):
            continue  # it makes texts of them
        assert read(data_in(tmp_path, table), **options) == expected, place
        # The writers take the same rows in the same types.
        with arrow.read(data_in(tmp_path, table), **options).pieces() as pieces:
            assert facts(joined(pieces)) == expected, place


@settings(max_examples=rounds(15), suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_random_rows_are_the_same_in_files_and_in_memory(tmp_path: Path, data: st.DataObject) -> None:
    kind, values = data.draw(st.sampled_from([
        (pa.int64(), st.integers(-(2**63), 2**63 - 1)), (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
        (pa.float32(), st.floats(width=32, allow_nan=False)), (pa.float64(), st.floats(allow_nan=False)),
    ]))  # fmt: skip
    lists = data.draw(st.booleans())
    each, kind = (st.lists(values, min_size=1, max_size=3), pa.list_(kind)) if lists else (values, kind)
    table = pa.table({"x": pa.array(data.draw(st.lists(each, min_size=2, max_size=6)), kind)})
    expected = read(table)
    for place in ("one file", "two files", "an Arrow file", "polars", "a data set"):
        assert read(PLACES[place](tmp_path, table)) == expected, place


@pytest.mark.parametrize("place", ["pyarrow", "polars", "a data set", "a reader"])
def test_a_table_in_memory_is_shuffled_and_resumed_like_any_corpus(place: str, tmp_path: Path) -> None:
    table = pa.table({"x": list(range(50)), "t": [[number] * (1 + number % 3) for number in range(50)]})

    def source() -> MinibatchSource:
        return MinibatchSource(ArrowDeserializer(PLACES[place](tmp_path, table)), max_sweeps=2, randomization_seed=3)

    with source() as whole, source() as other, MinibatchSource(ArrowDeserializer(table), max_sweeps=2) as in_order:
        whole.next_minibatch(20)
        state = whole.state_dict()
        expected = [facts(minibatch) for minibatch in whole.minibatches(20)]
        other.load_state_dict(state)
        assert [facts(minibatch) for minibatch in other.minibatches(20)] == expected
        changed = table.set_column(0, "x", pa.array([*range(49), 77]))
        with MinibatchSource(ArrowDeserializer(changed), max_sweeps=2) as another, pytest.raises(CheckpointError):
            another.load_state_dict(in_order.state_dict())


def test_a_table_in_memory_joins_a_text_by_its_keys(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_text("9 |y 0.5\n7 |y 2\n")
    text = CTFDeserializer(tmp_path / "a.ctf", StreamDefs(y=StreamDef(field="y", shape=1)))
    table = pytest.importorskip("polars").DataFrame({"key": [7, 8, 9], "x": [1, 2, 3]})
    with MinibatchSource([ArrowDeserializer(table), text], randomize=False, max_sweeps=1) as source:
        found = source.next_minibatch(10)
    assert found["x"].values.ravel().tolist() == [1, 3] and found["y"].values.ravel().tolist() == [2, 0.5]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_files_with_their_columns_in_another_order_are_one_corpus(kind: str, tmp_path: Path) -> None:
    for number, names in enumerate((["x", "y"], ["y", "x"], ["key", "y", "x"])[:2]):
        table = pa.table({"x": [number, 2], "y": [0.5, number]}).select(names)
        if kind == "parquet":
            parquet.write_table(table, tmp_path / f"{number}.{kind}")
        else:
            with ipc.new_file(tmp_path / f"{number}.{kind}", table.schema) as writer:
                writer.write_table(table)
    found = read(tmp_path / f"*.{kind}")
    assert found["x"][2] == [[0], [2], [1], [2]] and found["y"][2] == [[0.5], [0], [0.5], [1]]
    with pytest.raises(ConfigError, match="its streams are 'x'"):
        parquet.write_table(pa.table({"x": [1]}), tmp_path / f"2.{kind}")
        read(tmp_path / f"*.{kind}")


# -- types -------------------------------------------------------------------------------------------------------------

TENSORS = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12.0).reshape(2, 2, 3))
SMALL = pa.int32()
RUNS = pa.RunEndEncodedArray.from_arrays([1, 2], pa.array([7, 8]))
FLOATS = pa.array([0.25, 0.5]).dictionary_encode()
VIEW = pa.ListViewArray.from_arrays(pa.array([1, 0], SMALL), pa.array([2, 1], SMALL), pa.array([7, 8, 9]))
OTHER_FORMS: dict[str, tuple[Any, str, list[Any], list[int]]] = {
    "tensors": (TENSORS, "dense float64 [2, 3]", TENSORS.to_numpy_ndarray().tolist(), [0, 1, 2]),
    "lists of tensors": (
        pa.ListArray.from_arrays([0, 2, 2], TENSORS),
        *("dense float64 [2, 3]", TENSORS.to_numpy_ndarray().tolist(), [0, 2, 2]),
    ),
    "bool8": (
        pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1], pa.int8())),
        *("dense int32 [1]", [[0], [1]], [0, 1, 2]),
    ),
    "list_view": (VIEW, "dense int64 [1]", [[8], [9], [7]], [0, 2, 3]),
    "large_list_view": (
        pa.LargeListViewArray.from_arrays([1, 0], [1, 2], pa.array([0.5, 2.0])),
        *("dense float64 [1]", [[2.0], [0.5], [2.0]], [0, 1, 3]),
    ),
    "runs": (RUNS, "dense int64 [1]", [[7], [8]], [0, 1, 2]),
    "lists of runs": (pa.ListArray.from_arrays([0, 0, 2], RUNS), "dense int64 [1]", [[7], [8]], [0, 0, 2]),
    "a dictionary of int64": (
        pa.array([BEYOND, 5]).dictionary_encode(),
        *("dense int64 [1]", [[BEYOND], [5]], [0, 1, 2]),
    ),
    "a dictionary of floats": (FLOATS, "dense float64 [1]", [[0.25], [0.5]], [0, 1, 2]),
    "lists of a dictionary": (
        pa.ListArray.from_arrays([0, 1, 2], FLOATS),
        *("dense float64 [1]", [[0.25], [0.5]], [0, 1, 2]),
    ),
}


@pytest.mark.parametrize("form", OTHER_FORMS)
@pytest.mark.parametrize("place", ["pyarrow", "an Arrow file", "one file"])
def test_other_forms_of_a_type_are_read_as_the_plain_type(form: str, place: str, tmp_path: Path) -> None:
    array, stream, values, offsets = OTHER_FORMS[form]
    try:
        data = PLACES[place](tmp_path, pa.table({"x": array}))
    except pa.ArrowNotImplementedError:
        return  # Parquet does not have the type
    found = read(data)["x"]
    assert (found[0], found[2], found[3]) == (stream, values, offsets)
    assert read(PLACES[place](tmp_path, pa.table({"x": array}).slice(1)))["x"][3] == [
        offsets[1] - offsets[1],
        offsets[2] - offsets[1],
    ]


def test_a_tensor_of_hugging_face_is_read_alike_without_the_library(tmp_path: Path) -> None:
    tensors = pa.array([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]] * 2, pa.list_(pa.list_(pa.float32())))
    for shape, expected in (
        ([2, 3], ("dense float32 [2, 3]", [0, 1, 2])),
        ([None, 3], ("dense float32 [3]", [0, 2, 4])),
    ):
        name = b"datasets.features.features.Array2DExtensionType"
        written = str([shape, "float32"]).replace("None", "null").replace("'", '"')
        facts_of_type = {
            b"ARROW:extension:name": name,
            b"ARROW:extension:metadata": written.encode(),
        }
        table = pa.table([tensors], pa.schema([pa.field("x", tensors.type, metadata=facts_of_type)]))
        unregistered = read(one_file(tmp_path, table))["x"]
        assert (unregistered[0], unregistered[3]) == expected
        assert read(table, shapes={"x": 3})["x"][3] == [0, 2, 4]
        datasets = pytest.importorskip("datasets")
        features = datasets.Features(x=datasets.Array2D(tuple(shape), "float32"))
        assert read(datasets.Dataset.from_dict({"x": tensors.to_pylist()}, features))["x"] == unregistered


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["one file", "pyarrow", "an Arrow file"])
@pytest.mark.parametrize(
    ("names", "options", "repeated"),
    [
        (["key", "key", "x"], {}, "key"),
        (["y", "y", "x"], {}, "y"),
        (["y", "y", "x"], {"key": "y"}, "y"),
        (["x", "y", "x"], {"columns": ["x"]}, "x"),
    ],
)
def test_names_of_columns_that_repeat_are_refused(
    place: str, names: list[str], options: dict[str, Any], repeated: str, tmp_path: Path
) -> None:
    table = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=names)
    with pytest.raises(ConfigError, match=f"2 columns are named '{repeated}'"):
        read(PLACES[place](tmp_path, table), **options)
    if names[:2] == ["y", "y"]:  # the other columns are read
        assert read(PLACES[place](tmp_path, table), columns=["x"])["x"][2] == [[3]]


@pytest.mark.parametrize("kind", [pa.list_(pa.float32(), 0), pa.list_(pa.list_(pa.int8(), 0))])
def test_lists_of_no_values_are_refused(kind: Any, tmp_path: Path) -> None:
    for place in ("pyarrow", "an Arrow file"):
        with pytest.raises(ConfigError, match=r"column 'x' is .*\[0\].*, lists without values"):
            read(PLACES[place](tmp_path, pa.table({"x": pa.array([[], []], kind)})))


def test_an_encrypted_file_says_so_and_is_read_with_its_keys(tmp_path: Path) -> None:
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__()

        def wrap_key(self, key: bytes, master: str) -> bytes:
            return key.hex().encode()

        def unwrap_key(self, key: bytes, master: str) -> bytes:
            return bytes.fromhex(str(key))

    crypto, connection = encryption.CryptoFactory(Keys), encryption.KmsConnectionConfig()
    table = pa.table({"x": list(range(9)), "y": [0.5] * 9})
    for number, plain in enumerate((False, True)):
        config = encryption.EncryptionConfiguration(footer_key="f", column_keys={"c": ["x"]}, plaintext_footer=plain)
        properties = crypto.file_encryption_properties(connection, config)
        with parquet.ParquetWriter(
            tmp_path / f"{number}.parquet", table.schema, encryption_properties=properties
        ) as out:
            out.write_table(table, row_group_size=3)
        with pytest.raises(FormatError, match=r"is encrypted: give the keys, decryption_properties=") as caught:
            read(tmp_path / f"{number}.parquet")
        assert "damaged" not in str(caught.value)
    keys = crypto.file_decryption_properties(connection)
    # A cache would show the lengths and the keys, so there is none.
    found = read(tmp_path / "*.parquet", decryption_properties=keys, cache_index=True)
    assert found["x"][2] == [[x] for x in [*range(9), *range(9)]]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", ""])
def test_a_type_that_pyarrow_lacks_is_not_called_damage(name: str, tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"x": [1, 2]}, schema={"x": polars.Int128})
    if name:
        (frame.write_parquet if name == "a.parquet" else frame.write_ipc)(tmp_path / name)
    with pytest.raises((ConfigError, FormatError), match="pyarrow does not read") as caught:
        read(tmp_path / name if name else frame)
    assert "damaged" not in str(caught.value)


@pytest.mark.parametrize("memory_map", [False, True])
@pytest.mark.parametrize("kind", ["an Arrow file", "one file"])
def test_a_file_that_is_overwritten_during_a_conversion_is_an_error(
    kind: str, memory_map: bool, tmp_path: Path
) -> None:
    table = pa.table({"t": [[float(number)] * 3 for number in range(5000)]})
    path = PLACES[kind](tmp_path, table)
    os.utime(path, (1, 1))  # so that a write in the same tick has another time
    with ArrowDeserializer(path, memory_map=memory_map).pieces() as pieces:
        first = next(pieces.pieces).chunk.num_sequences
        content = path.read_bytes()
        path.write_bytes(content)
        if first < 5000:
            with pytest.raises((CorpusError, FormatError), match="changed while in use"):
                list(pieces.pieces)
    os.utime(path, (1, 1))
    corpus = ArrowDeserializer(path, memory_map=memory_map).open()
    path.write_bytes(content)
    with pytest.raises(CorpusError, match="changed while in use"):
        corpus.load(0)
    corpus.close()


def test_a_mapped_file_that_is_replaced_is_delivered_as_it_was(tmp_path: Path) -> None:
    path = one_arrow(tmp_path, pa.table({"t": [[1.0], [2.0, 3.0]]}))
    corpus = arrow.read(path, memory_map=True).open()
    (tmp_path / "other").mkdir()
    one_arrow(tmp_path / "other", pa.table({"t": [[7.0], [8.0, 9.0]]})).replace(path)
    try:
        chunk = corpus.load(0).chunk
    except CorpusError as error:
        assert "changed" in str(error)
    else:
        (data,) = in_arrays(corpus.streams, 2, [chunk]).values()
        assert data.values.ravel().tolist() == [1, 2, 3]
    corpus.close()


@pytest.mark.parametrize("form", ["pandas", "series"])
def test_a_source_of_data_has_whole_numbers_as_floats(form: str) -> None:
    library = pytest.importorskip("pandas")
    frame = library.DataFrame({"x": [1, 2**24 + 1]})
    data: Any = {"pandas": frame, "series": {"x": frame["x"]}}[form]
    found = MinibatchSourceFromData(data).next_minibatch(9)["x"].values
    assert found.dtype.kind == "f" and found.ravel().tolist() == [1, 2**24 + 1]


def test_texts_and_binary_corpora_of_a_table_keep_its_whole_numbers(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array([2**24 + 1, 3])})
    write_ctf(tmp_path / "a.ctf", table)
    assert (tmp_path / "a.ctf").read_text() == "0\t|x 16777217\n1\t|x 3\n"
    for number, data in enumerate((one_file(tmp_path, table), two_files(tmp_path, table), table)):
        write_cbf(tmp_path / f"{number}.cbf", arrow.read(data))
        assert CBFDeserializer(tmp_path / f"{number}.cbf").open().streams[0].dtype == np.float64


# -- facts that are said -----------------------------------------------------------------------------------------------


def test_row_groups_of_one_row_are_read_together(tmp_path: Path) -> None:
    table = pa.table({"key": list(range(150)), "t": [[number] * (1 + number % 3) for number in range(150)]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    corpus = ArrowDeserializer(tmp_path / "a.parquet").open()
    assert np.diff(corpus.table.chunk_starts).tolist() == [64, 64, 22]
    corpus.close()
    assert read(tmp_path / "a.parquet") == read(table)
    with arrow.read(tmp_path / "a.parquet").pieces() as pieces:
        assert facts(joined(pieces)) == read(table)
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[content.index((70).to_bytes(8, "little"))] ^= 1  # a value in the second batch
    (tmp_path / "a.parquet").write_bytes(content)
    try:
        assert read(tmp_path / "a.parquet") != read(table)
    except FormatError as error:
        assert "row group" in str(error)


@pytest.mark.parametrize("place", ["one file", "an Arrow file", "pyarrow", "a list of tables", "a reader"])
@pytest.mark.parametrize("values", [[1.5, 2.5, 3.5], [1.5, None, 3.5]])
def test_keys_and_categories_may_be_views_of_texts(place: str, values: list[Any], tmp_path: Path) -> None:
    columns = {"key": ["b", "a", "c"], "y": ["u", "v", "u"], "x": values}
    options: dict[str, Any] = {"one_hot": {"y": ["u", "v"]}, "nulls": "drop"}
    expected = read(pa.table(columns), **options)
    views = {name: pa.array(columns[name], pa.string_view()) for name in ("key", "y")}
    assert read(PLACES[place](tmp_path, pa.table({**columns, **views})), **options) == expected


def test_tensors_with_permuted_axes_are_not_called_damage(tmp_path: Path) -> None:
    kind = pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=[1, 0])
    table = pa.table({"x": pa.ExtensionArray.from_storage(kind, pa.array([range(6)], pa.list_(pa.float32(), 6)))})
    for place, name in (("one file", r"one\.parquet"), ("an Arrow file", r"one\.arrow")):
        with pytest.raises(ConfigError, match=f"{name}: column 'x' is .*axes are permuted"):
            read(PLACES[place](tmp_path, table))


def test_an_id_in_two_tables_names_both_rows(tmp_path: Path) -> None:
    two_files(tmp_path, pa.table({"key": ["b", "a", "b"], "x": [1, 2, 3]}))
    with pytest.raises(FormatError, match=r"two-1\.parquet, line 2, sequence b: \S*two-0\.parquet:1 has this id, too"):
        read(tmp_path / "two-*.parquet")


def test_equal_keys_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for keys, shown in (([7, 9, 7], "7"), (["b", "a", "b"], "b")):
        caplog.clear()
        read(pa.table({"key": keys, "x": [1, 2, 3]}))
        assert f"1 row with the key of an earlier row, such as {shown}" in caplog.text
    caplog.clear()
    read(pa.table({"key": [9, 7], "x": [1, 2]}))
    assert not caplog.text


def test_lists_of_floats_of_one_length_give_a_hint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    columns = {"emb": [[0.5, 1.0, 2.0, 4.0]] * 3, "t": [[0.5], [1.0, 2.0], [3.0]], "tokens": [[1, 2]] * 3}
    read(one_file(tmp_path, pa.table(columns)))
    assert "column 'emb': every list has 4 values; if a list is one sample, give shapes={'emb': 4}" in caplog.text
    assert "'t'" not in caplog.text and "'tokens'" not in caplog.text
    assert read(pa.table(columns), shapes={"emb": 4})["emb"][0] == "dense float64 [4]"


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([1, 2], pa.decimal128(10, 2)), "is decimal128.*; cast the column to int64 or float64"),
        (pa.array([1, 2], pa.date32()), "is date32.*; cast the column to int64 or float64"),
        (pa.array([b"a", b"b"]), "is binary; expected numbers"),
    ],
)
def test_columns_of_other_types_say_what_to_do(column: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"column 'x' {words}"):
        read(pa.table({"x": column}))


def test_columns_of_objects_say_what_to_cast() -> None:
    frame = pytest.importorskip("pandas").DataFrame({"x": [object(), 2]})
    with pytest.raises(ConfigError, match="column x with type object; cast such columns to numbers"):
        read(frame)


def test_folders_with_several_parts_name_them(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    parts = {name: datasets.Dataset.from_dict({"x": [1, 2]}) for name in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    with pytest.raises(ConfigError, match=r"expected one of them: '.*test', '.*train'"):
        read(tmp_path / "saved")
    with pytest.raises(ConfigError, match="of 'train', 'test'"):
        read(datasets.DatasetDict(parts))
    assert read(tmp_path / "saved" / "train")["x"][2] == [[1], [2]]
    (tmp_path / "hive" / "year=2020").mkdir(parents=True)
    parquet.write_table(pa.table({"x": [5]}), tmp_path / "hive" / "year=2020" / "a.parquet")
    with pytest.raises(ConfigError, match=r"have the values of 'year'; .*give the pattern '.*\*\*.*'"):
        read(tmp_path / "hive")
    assert read(tmp_path / "hive" / "**" / "*.parquet")["x"][2] == [[5]]

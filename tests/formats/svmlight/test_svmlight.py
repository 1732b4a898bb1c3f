"""The svmlight format: every form of a line, its errors with their places, and the ways to read a text."""

import gzip
import random
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import (
    ConfigError,
    CorpusError,
    CTFDeserializer,
    FormatError,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    SvmlightDeserializer,
    read_svmlight,
    write_svmlight,
)
from cntkio.formats.detect import detect
from slow import svmlight as slow
from support.damage import damaged
from support.range_server import range_server
from support.rounds import rounds

TEXT = "1 qid:7 1:0.5 3:2\n# a comment 9:9\n\n-1 qid:7 2:1 # 5:5\n3.5 qid:9\n"


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def rows(data: cntkio.Minibatch, stream: str = "features") -> list[list[tuple[int, float]]]:
    one = data[stream]
    bounds = one.indptr.tolist()
    pairs = list(zip(one.indices.tolist(), one.values.tolist(), strict=True))
    return [pairs[begin:end] for begin, end in zip(bounds, bounds[1:], strict=False)]


def labels(data: cntkio.Minibatch) -> list[float]:
    found: list[float] = data["label"].values.ravel().tolist()
    return found


def test_a_text_is_features_labels_and_queries(tmp_path: Path) -> None:
    data = read_svmlight(written(tmp_path / "a", TEXT), query_id=True)
    assert rows(data) == [[(0, 0.5), (2, 2.0)], [(1, 1.0)], []]
    assert labels(data) == [1, -1, 3.5]
    assert data["qid"].values.ravel().tolist() == [7, 7, 9]
    assert data["qid"].values.dtype == np.int64
    assert data.keys_of_sequences.tolist() == [0, 1, 2]
    assert data["features"].stream.dim == 3


def test_queries_are_sequences_on_request(tmp_path: Path) -> None:
    data = read_svmlight(written(tmp_path / "a", TEXT), by_query=True, chunk_size_in_bytes=1)
    assert data.keys_of_sequences.tolist() == [7, 9]
    assert data["label"].offsets.tolist() == [0, 2, 3]
    assert rows(data) == [[(0, 0.5), (2, 2.0)], [(1, 1.0)], []]


def test_several_labels_are_a_sparse_stream(tmp_path: Path) -> None:
    path = written(tmp_path / "a", "3,1,3 1:2\n 2:5\nqid:4 1:1\n2\n")
    data = read_svmlight(path, multilabel=True)
    assert rows(data, "label") == [[(1, 1.0), (3, 1.0)], [], [], [(2, 1.0)]]
    assert rows(data) == [[(0, 2.0)], [(1, 5.0)], [(0, 1.0)], []]
    assert data["label"].stream.dim == 4
    assert read_svmlight(path, multilabel=True, num_labels=9)["label"].stream.dim == 9


@pytest.mark.parametrize(
    ("text", "option", "indices", "dim"),
    [
        ("1 1:1 4:1\n", "auto", [0, 3], 4),
        ("1 0:1 4:1\n", "auto", [0, 4], 5),
        ("1 1:1 4:1\n", True, [1, 4], 5),
        ("1 1:1 4:1\n", False, [0, 3], 4),
        ("1\n", "auto", [], 1),
    ],
)
def test_indices_count_from_one_unless_a_zero_occurs(
    text: str, option: Any, indices: list[int], dim: int, tmp_path: Path
) -> None:
    data = read_svmlight(written(tmp_path / "a", text), zero_based=option)
    assert (data["features"].indices.tolist(), data["features"].stream.dim) == (indices, dim)


@pytest.mark.parametrize("line", ["1 x:1", "1 0 1:1", "1 0x:1", "1 5:1 x9:1", "1 5:1 -9:1", "1 2:3:4", "1 :1"])
def test_a_forgiven_line_does_not_move_or_add_indices(line: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a", f"1 1:5\n{line}\n1 1:5 2:1\n")
    data = read_svmlight(path, max_errors=1)
    assert (rows(data), data["features"].stream.dim) == ([[(0, 5.0)], [(0, 5.0), (1, 1.0)]], 2)


def test_all_files_decide_about_the_first_index_and_the_dimension(tmp_path: Path) -> None:
    written(tmp_path / "a.svm", "1 1:1\n2 2:1")
    written(tmp_path / "b.svm", "3 0:1 9:1\n")
    data = read_svmlight(tmp_path / "*.svm")
    assert (data["features"].indices.tolist(), data["features"].stream.dim) == ([1, 2, 0, 9], 10)
    assert data.keys_of_sequences.tolist() == [0, 1, 2]
    written(tmp_path / "b.svm", "3\n")  # scikit-learn takes a file without features as one that counts from zero
    assert read_svmlight(tmp_path / "*.svm")["features"].indices.tolist() == [1, 2]


# The bits that scikit-learn 1.9.1 reads from these texts, as float32 and as float64. The second is rounded twice.
SCIKIT_LEARN = {
    "0.1": (0x3DCCCCCD, 0x3FB999999999999A),
    "1.00000005960464477540": (0x3F800000, 0x3FF0000010000000),
    "16777217": (0x4B800000, 0x4170000010000000),
    "1e400": (0x7F800000, 0x7FF0000000000000),
    "-nan": (0xFFC00000, 0xFFF8000000000000),
    ".5": (0x3F000000, 0x3FE0000000000000),
    "1.e3": (0x447A0000, 0x408F400000000000),
    "-0": (0x80000000, 0x8000000000000000),
    "1e-45": (0x00000001, 0x3696D601AD376AB9),
}


@pytest.mark.parametrize("text", SCIKIT_LEARN)
def test_values_have_the_bits_that_scikit_learn_reads(text: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a", f"{text} 1:{text}\n")
    for dtype, unsigned, bits in zip((np.float32, np.float64), (np.uint32, np.uint64), SCIKIT_LEARN[text], strict=True):
        data = read_svmlight(path, dtype=dtype)
        assert data["features"].values.view(unsigned).tolist() == [bits]
        assert data["label"].values.ravel().view(unsigned).tolist() == [bits]


def random_number(chance: random.Random) -> str:
    kinds = (
        lambda: str(chance.randrange(-3, 300)),
        lambda: repr(chance.uniform(-1, 1)),
        lambda: repr(float(np.float32(chance.gauss(0, 1)))),
        lambda: f"{chance.gauss(0, 1e5):.3e}",
        lambda: chance.choice(["nan", "inf", "-inf", ".5", "5.", "1.e3", "+3", "1e400", "-0", "0.1e-45"]),
        lambda: f"{chance.randrange(9)}.{chance.randrange(10 ** chance.randrange(1, 25))}",
        lambda: repr((1 + 2**-24) * 2.0 ** chance.randrange(-40, 40)) + chance.choice(["", "1", "000001"]),
    )
    text: str = chance.choice(kinds)()
    return text


def random_text(chance: random.Random, multilabel: bool) -> str:
    lines = []
    for _ in range(chance.randrange(1, 30)):
        if chance.random() < 0.1:
            lines.append(chance.choice(["", "# c 1:1", " \t ", "#"]))
            continue
        label = random_number(chance)
        if multilabel:
            label = ",".join(str(chance.randrange(6)) for _ in range(chance.randrange(1, 4)))
        indices = sorted({chance.randrange(0, 900) for _ in range(chance.randrange(0, 20))})
        fields = [label, f"qid:{chance.randrange(3)}", *(f"{index}:{random_number(chance)}" for index in indices)]
        line = chance.choice([" ", " ", "  ", "\t"]).join(fields)
        lines.append(line + chance.choice(["", "", " ", " # d 1:2", "#e", "\r"]))
    return "\n".join([*lines, "1 0:1"]) + chance.choice(["\n", ""])


@pytest.mark.parametrize("seed", range(rounds(120)))
def test_random_texts_are_read_as_by_the_slow_reader(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    multilabel, dtype = seed % 3 == 0, (np.float32, np.float64)[seed % 2]
    text = random_text(chance, multilabel)
    expected = slow.read(text, multilabel)
    size = chance.choice([1, 40, 500, 1 << 20])
    data = read_svmlight(
        written(tmp_path / "a", text), multilabel=multilabel, dtype=dtype, zero_based=True, chunk_size_in_bytes=size
    )
    assert data["features"].indptr.tolist() == np.cumsum([0, *(len(line.features) for line in expected)]).tolist()
    assert data["features"].indices.tolist() == [index for line in expected for index, _ in line.features]
    values = slow.bits([value for line in expected for _, value in line.features], dtype)
    assert data["features"].values.view(np.uint32 if dtype == np.float32 else np.uint64).tolist() == values
    if multilabel:
        assert [[index for index, _ in row] for row in rows(data, "label")] == [line.labels for line in expected]
    else:
        wanted = slow.bits([line.labels[0] for line in expected], dtype)
        assert slow.bits(labels(data), dtype) == wanted


@pytest.mark.parametrize(
    ("line", "column", "words"),
    [
        ("1 2:1 2:3", 7, "stream 'features': index 2 is not above the index before it; expected ascending indices"),
        ("1 2:1 3:1 1:3", 11, "index 1 is not above the index before it"),
        ("1 0:1", 3, "index 0; expected 1 to 5"),
        ("1 1:1 6:1", 7, "index 6; expected 1 to 5"),
        ("1 99999999999999999999:1", 3, "5; expected 1 to 5 (2^64 - 1 stands for every larger number)"),
        ("1 1:2x", 6, "'x' in a number"),
        ("1 1:1_0", 6, "'_' in a number"),
        ("1 1:", 5, "byte 0x0A in a number"),
        ("1 1:2:3", 6, "':' in a number"),
        ("1 2", 4, "byte 0x0A after index 2; expected ':'"),
        ("1 a:1", 3, "'a' where an index should be"),
        ("1 1:1 |x", 7, "'|' where an index should be"),
        ("1 1:2|3", 6, "'|' in a number"),
        ("1 1:2 2:3| 3:4", 10, "'|' in a number"),
        ("1 3:1 9:1 2:1", 7, "index 9; expected 1 to 5"),
        ("x 1:1", 1, "stream 'label': 'x' in a label; expected a number"),
        ("1:1 2:1", 2, "':' in a label"),
        ("1,2 1:1", 2, "',' in a label; expected a number; SvmlightDeserializer(..., multilabel=True) reads several"),
        ("1 -1:1", 3, "'-' where an index should be"),
    ],
)
def test_an_error_names_its_place(line: str, column: int, words: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a", f"0 1:1\n# c\n{line}\n0 1:1\n")
    with pytest.raises(FormatError) as caught:
        read_svmlight(path, num_features=5, zero_based=False)
    assert (caught.value.line, caught.value.column, caught.value.sequence) == (3, column, 1)
    assert words in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_error_is_the_same_in_every_type(dtype: type, tmp_path: Path) -> None:
    path = written(tmp_path / "a", "1 1:2|3\n" + "1 1:2 3:4\n" * 20)
    with pytest.raises(FormatError, match=r"line 1, column 6 .*'\|' in a number"):
        read_svmlight(path, dtype=dtype)


def test_an_index_beyond_the_largest_dimension_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "a", "1 2147483647:1\n")
    with pytest.raises(FormatError, match="column 3 .*index 2147483647; expected 0 to 2147483646"):
        read_svmlight(path, zero_based=True)
    assert read_svmlight(path)["features"].indices.tolist() == [2147483646]


def test_indices_that_do_not_ascend_are_named_so_without_a_given_dimension(tmp_path: Path) -> None:
    path = written(tmp_path / "a", "1 5:1 9:1 8:1 2:1\n")
    with pytest.raises(FormatError, match="column 11 .*index 8 is not above the index before it"):
        read_svmlight(path)


def test_an_index_beyond_64_bits_does_not_change_the_first_index(tmp_path: Path) -> None:
    path = written(tmp_path / "a", f"1 {2**64}:2\n")
    with pytest.raises(FormatError, match=rf"index {2**64 - 1}; expected 1 to {2**31 - 1} "):
        read_svmlight(path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1.5 1:1", "'1' in a label"),
        ("-1 1:1", "of a class"),
        ("1, 1:1", "in a label"),
        ("9 1:1", "label 9; expected 0 to 4"),
        ("1.99999999999999999999 1:1", "'1' in a label; expected a number of a class"),
        ("0,1e-400 1:1", "column 3 .*'1' in a label; expected a number of a class"),
        ("9007199254740993.0 1:1", "label 9007199254740993; expected 0 to 4"),
        ("1e400 1:1", rf"label {2**64 - 1}; expected 0 to 4 \(2\^64 - 1 stands for every larger number\)"),
    ],
)
def test_several_labels_are_numbers_of_classes(line: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=words):
        read_svmlight(written(tmp_path / "a", f"{line}\n"), multilabel=True, num_labels=5)


@pytest.mark.parametrize("query", ["", "qid:x", "qid:9223372036854775808", "qid:"])
def test_a_wanted_query_is_a_whole_number(query: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a", f"1 {query} 1:1\n")
    with pytest.raises(FormatError, match="line 1, column [34] .*no query before the features; expected qid:"):
        read_svmlight(path, query_id=True)
    if query:
        assert labels(read_svmlight(path)) == [1]


def test_a_line_without_a_query_is_no_sequence(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="line 2.* a line without a query"):
        read_svmlight(written(tmp_path / "a", "1 qid:1 1:1\n1 1:1\n"), by_query=True)


@pytest.mark.parametrize("size", [1, 20, 1 << 20])
def test_a_budget_forgives_lines_one_by_one(size: int, tmp_path: Path) -> None:
    text = "1 1:1\n2 2:1 2:1\n3 3:0.5\n4 x\n5 1:300 2:1\n6,7 1:1\n7 1:1\n"
    path = written(tmp_path / "a", text)
    options: dict[str, Any] = {"num_features": 3, "zero_based": False, "chunk_size_in_bytes": size}
    data = read_svmlight(path, max_errors=3, **options)
    assert labels(data) == [1, 3, 5, 7]
    assert data["label"].offsets.tolist() == [0, 1, 1, 2, 2, 3, 3, 4]
    assert rows(data) == [[(0, 1.0)], [(2, 0.5)], [(0, 300.0), (1, 1.0)], [(0, 1.0)]]
    with pytest.raises(FormatError, match=r"line 6.*\(error 3, and max_errors is 2\)"):
        read_svmlight(path, max_errors=2, **options)


def test_small_whole_numbers_and_errors_do_not_mix_up_labels(tmp_path: Path) -> None:
    count = 60_000  # more than a part of a chunk, so that labels are kept in one byte
    lines = [
        f"{number % 7} {1 + number % 9}:{number % 200}" + (" x" if number % 10 == 3 else "") for number in range(count)
    ]
    data = read_svmlight(written(tmp_path / "a", "\n".join(lines)), max_errors=-1)
    assert labels(data) == [number % 7 for number in range(count) if number % 10 != 3]
    with MinibatchSource(
        SvmlightDeserializer(tmp_path / "a", max_errors=-1), randomize=False, max_sweeps=1, trace_level=0
    ) as source:
        minibatches = [labels(minibatch) for minibatch in source.minibatches(1000)]
    assert sum(minibatches, []) == labels(data)


def test_compressed_texts_and_objects_are_read(tmp_path: Path) -> None:
    text = "".join(f"{number} 1:{number} 5:0.5\n" for number in range(500))
    expected = rows(read_svmlight(written(tmp_path / "a.svm", text)))
    packed = gzip.compress(text.encode())
    with range_server(**{"a.svm": text.encode(), "a.svm.gz": packed}) as server:
        for path in (written(tmp_path / "a.svm.gz", packed), f"{server.url}/a.svm", f"{server.url}/a.svm.gz"):
            data = read_svmlight(path, chunk_size_in_bytes=1000)
            assert rows(data) == expected


def test_a_sweep_in_random_order_has_every_line_once(tmp_path: Path) -> None:
    text = "".join(f"{number} {1 + number % 7}:{number}\n" for number in range(1000))
    deserializer = SvmlightDeserializer(written(tmp_path / "a", text), chunk_size_in_bytes=300)
    with MinibatchSource(deserializer, max_sweeps=1) as source:
        minibatches = list(source.minibatches(64))
    seen = [label for minibatch in minibatches for label in labels(minibatch)]
    assert sorted(seen) == list(range(1000)) != seen
    assert [value for minibatch in minibatches for value in minibatch["features"].values.tolist()] == seen


def test_a_source_continues_from_its_state(tmp_path: Path) -> None:
    path = written(tmp_path / "a", "".join(f"{number} 1:1\n" for number in range(100)))
    with MinibatchSource(SvmlightDeserializer(path), max_sweeps=1) as source:
        first = source.next_minibatch(30)
        state = source.get_checkpoint_state()
        rest = [labels(minibatch) for minibatch in source.minibatches(30)]
    with MinibatchSource(SvmlightDeserializer(path), max_sweeps=1) as source:
        source.restore_from_checkpoint(state)
        assert [labels(minibatch) for minibatch in source.minibatches(30)] == rest
    assert sorted(labels(first) + sum(rest, [])) == list(range(100))


def test_queries_join_with_other_corpora(tmp_path: Path) -> None:
    path = written(tmp_path / "a.svm", "1 qid:3 1:1\n2 qid:3 2:1\n3 qid:8 1:1\n")
    other = written(tmp_path / "a.ctf", "8 |w 1\n3 |w 2\n")
    deserializers = [
        SvmlightDeserializer(path, by_query=True),
        CTFDeserializer(other, StreamDefs(w=StreamDef("w", shape=1))),
    ]
    with MinibatchSource(deserializers, randomize=False, max_sweeps=1) as source:
        data = source.next_minibatch(100)
    assert (labels(data), data["w"].values.ravel().tolist()) == ([1, 2, 3], [2, 1])


def test_the_index_cache_is_used_and_made_again(tmp_path: Path) -> None:
    path = written(tmp_path / "a", TEXT)
    options: dict[str, Any] = {"cache_index": True, "chunk_size_in_bytes": 20}
    expected = rows(read_svmlight(path, **options))
    (cache,) = tmp_path.glob("a.*.index")
    assert rows(read_svmlight(path, **options)) == expected
    content = cache.read_bytes()
    for position in range(0, len(content), 7):
        cache.write_bytes(content[:position] + bytes([content[position] ^ 255]) + content[position + 1 :])
        assert rows(read_svmlight(path, **options)) == expected
    written(path, TEXT + "1 9:9\n")
    assert rows(read_svmlight(path, **options)) == [*expected, [(8, 9.0)]]


@pytest.mark.parametrize("options", [{}, {"multilabel": True, "query_id": True}, {"by_query": True, "max_errors": -1}])
def test_damaged_texts_are_data_or_located_errors(options: dict[str, Any], tmp_path: Path) -> None:
    for data in damaged(TEXT.replace("-1 ", "1,2 ").encode()):
        path = written(tmp_path / "a", data)
        try:
            read_svmlight(path, chunk_size_in_bytes=30, **options)
        except FormatError as error:
            assert error.byte is not None


@pytest.mark.parametrize(
    ("content", "words"),
    [("", "the file is empty"), ("\n \n", "only white space"), ("# a\n", "has only comments; expected lines such as")],
)
def test_a_text_without_samples_is_refused(content: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=words):
        read_svmlight(written(tmp_path / "a", content))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_features": 0}, "num_features is 0; expected 1 to"),
        ({"num_labels": 3}, "num_labels needs multilabel=True"),
        ({"chunk_size_in_bytes": 0}, "chunk_size_in_bytes is 0; expected at least 1"),
        ({"keys": "both"}, "keys is 'both'"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SvmlightDeserializer("a.svm", **options)


def test_a_long_first_line_shows_the_format(tmp_path: Path) -> None:
    line = "1 " + " ".join(f"{index}:0.25" for index in range(1, 3000))
    assert detect(written(tmp_path / "a", line)).form == "svmlight"


# ------------------------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize("seed", range(rounds(30)))
def test_a_written_text_reads_back_to_the_same_bits(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    multilabel, by_query = seed % 3 == 0, seed % 4 == 0
    path = written(tmp_path / "a", random_text(chance, multilabel).replace("1 0:1", "1 qid:1 0:1"))
    options: dict[str, Any] = {"multilabel": multilabel, "query_id": not by_query, "by_query": by_query}
    options["dtype"] = (np.float32, np.float64)[seed % 2]
    options["keys"] = "unique"
    for is_zero_based in (True, False):
        copy = tmp_path / "copy.svm.gz"
        write_svmlight(copy, SvmlightDeserializer(path, **options), by_query=by_query, zero_based=is_zero_based)
        first, again = (
            read_svmlight(path, **options),
            read_svmlight(copy, zero_based=is_zero_based, **options),
        )
        assert rows(again, "label") == rows(first, "label") if multilabel else True
        for name in first:
            for field in ("values", "indices", "indptr", "offsets"):
                one, other = getattr(first[name], field), getattr(again[name], field)
                assert (one is None and other is None) or one.tobytes() == other.tobytes()
        assert first.keys_of_sequences.tolist() == again.keys_of_sequences.tolist()


def test_dense_features_are_written_without_zeros(tmp_path: Path) -> None:
    data = {"x": np.float32([[0, 0.1, 0], [2, 0, -3]]), "y": np.float64([1, -0.5]), "qid": np.float64([3, 4])}
    write_svmlight(tmp_path / "a", data, features="x", label="y")
    assert (tmp_path / "a").read_text() == "1 qid:3 2:0.1\n-0.5 qid:4 1:2 3:-3\n"
    write_svmlight(tmp_path / "a", data, features="x", label="y", query=None, zero_based=True)
    assert (tmp_path / "a").read_text() == "1 1:0.1\n-0.5 0:2 2:-3\n"


def test_what_the_format_cannot_express_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.svm"
    x = np.eye(2, dtype=np.float32)
    with pytest.raises(ConfigError, match="no stream 'label'; there are: 'features', 'y'"):
        write_svmlight(path, {"features": x, "y": x})
    with pytest.raises(FormatError, match="sequence 1, stream 'qid': the query 0.5; expected a whole number"):
        write_svmlight(path, {"features": x, "label": np.ones(2), "qid": np.array([1, 0.5])})
    with pytest.raises(FormatError, match="sequence 0: a sequence without 'features', or with another number"):
        write_svmlight(path, {"features": [x, x], "label": np.ones(2)})
    with pytest.raises(CorpusError, match="the keys are not whole numbers"):
        write_svmlight(path, {"features": x, "label": np.ones(2)}, by_query=True)
    text = written(tmp_path / "a.ctf", "|features 3:1 2:1 |label 1\n")
    streams = StreamDefs(features=StreamDef("features", shape=5, is_sparse=True), label=StreamDef("label", shape=1))
    with pytest.raises(FormatError, match="stream 'features': the feature 2 is not above the feature before it"):
        write_svmlight(path, CTFDeserializer(text, streams))
    several = StreamDefs(features=StreamDef("label", shape=1), label=StreamDef("features", shape=5, is_sparse=True))
    with pytest.raises(FormatError, match="a label with the value 2.0; expected 1 for each of several labels"):
        write_svmlight(path, CTFDeserializer(written(text, "|features 3:2 |label 1\n"), several))
    assert not path.exists()


def test_the_command_reads_and_writes_the_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from cntkio.cli import main

    path = written(tmp_path / "a.svm", "1,2 qid:7 1:0.5 3:2\n2 qid:8 2:1\n")
    assert main(["convert", str(path), str(tmp_path / "a.ctf")]) == 0
    assert (
        tmp_path / "a.ctf"
    ).read_text() == "0\t|features 0:0.5 2:2 |label 1:1 2:1 |qid 7\n1\t|features 1:1 |label 2:1 |qid 8\n"
    assert main(["convert", str(tmp_path / "a.ctf"), str(tmp_path / "b.svm")]) == 0
    assert (tmp_path / "b.svm").read_text() == path.read_text()
    capsys.readouterr()
    assert main(["inspect", str(path)]) == 0
    assert "stream features   sparse, 3 wide, 2 samples" in capsys.readouterr().out
    written(path, "1 3:1\n1 3:1 2:1\n")
    assert main(["check", "--output-format", "concise", str(path)]) == 1
    assert f"{path}:2:7: unsorted-indices index 2 is not above" in capsys.readouterr().out


def test_streams_that_a_line_has_no_place_for_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = {"features": np.eye(2, dtype=np.float32), "label": np.ones(2), "qid": np.array([1, 2])}
    write_svmlight(tmp_path / "a", data)
    assert not caplog.text
    write_svmlight(tmp_path / "a", {**data, "weight": np.ones(2), "time": np.ones(2)})
    assert "streams that are left out: 'weight', 'time'" in caplog.text

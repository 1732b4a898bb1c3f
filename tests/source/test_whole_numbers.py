"""Whole numbers stay whole: int32 and int64 streams through chunks, minibatches, layouts and writers, exactly."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cntkio import (
    CBFDeserializer,
    ConfigError,
    CorpusError,
    CTFDeserializer,
    FormatError,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    SvmlightDeserializer,
    UserDeserializer,
    read_ctf,
    read_svmlight,
    write_cbf,
    write_ctf,
    write_svmlight,
)
from cntkio.rows import packed
from cntkio.streams import StreamInformation

BEYOND_FLOAT32 = 2**24 + 1
BEYOND_FLOAT64 = 2**53 + 1
TOKENS = [
    np.array([[BEYOND_FLOAT64], [-1]]),
    np.array([[2**63 - 1]]),
    np.array([[-(2**63)], [0], [5]]),
]
CLASSES = [np.array([[BEYOND_FLOAT32], [7]]), np.array([[2**31 - 1]]), np.array([[-(2**31)], [1], [2]])]


class Tokens(UserDeserializer):
    """Tokens in int64 and classes in int32, a chunk for each sequence."""

    timeline = "global"

    def __init__(self, tokens: Sequence[Any] = TOKENS, classes: Sequence[Any] = CLASSES) -> None:
        self.tokens, self.classes = tokens, classes

    def stream_infos(self) -> list[StreamInformation]:
        return [
            StreamInformation("tokens", 0, "dense", np.int64, (1,)),
            StreamInformation("classes", 1, "dense", np.int32, (1,)),
        ]

    def num_chunks(self) -> int:
        return len(self.tokens)

    def get_chunk(self, chunk_id: int) -> Mapping[str, Any]:
        return {"tokens": [self.tokens[chunk_id]], "classes": [self.classes[chunk_id]]}


def in_order(deserializer: Any, **options: Any) -> MinibatchSource:
    return MinibatchSource(deserializer, **{"randomize": False, "max_sweeps": 1, **options})


def test_minibatches_have_whole_numbers_of_all_bits() -> None:
    with in_order(Tokens()) as source:
        minibatch = source.next_minibatch(100)
    for name, expected in (("tokens", TOKENS), ("classes", CLASSES)):
        values = minibatch[name].values
        assert values.dtype == ("int64" if name == "tokens" else "int32")
        assert values.tolist() == np.concatenate(expected).tolist()


def test_padding_and_sequences_are_whole_numbers() -> None:
    with in_order(Tokens()) as source:
        data = source.next_minibatch(100)["tokens"]
    assert data.asarray().dtype == np.int64
    assert data.asarray()[:, :, 0].tolist() == [
        [BEYOND_FLOAT64, -1, 0],
        [2**63 - 1, 0, 0],
        [-(2**63), 0, 5],
    ]
    assert [part.ravel().tolist() for part in data.as_sequences()] == [part.ravel().tolist() for part in TOKENS]


def test_truncated_minibatches_have_whole_numbers() -> None:
    with in_order(Tokens(), truncation_length=2) as source:
        parts = [minibatch["tokens"] for minibatch in source.minibatches(6)]
    found = np.concatenate([data.values[data.mask > 0].ravel() for data in parts])
    assert found.dtype == np.int64
    assert sorted(found.tolist()) == sorted(np.concatenate(TOKENS).ravel().tolist())


def test_rows_have_the_numbers_without_a_dimension() -> None:
    with in_order(Tokens()) as source:
        rows = packed(source.next_minibatch(100), 3)
    assert rows.values["tokens"].shape == rows.segment_ids.shape
    assert rows.values["tokens"].dtype == np.int64
    assert sorted(rows.values["tokens"][rows.segment_ids > 0].tolist()) == sorted(
        np.concatenate(TOKENS).ravel().tolist()
    )


@pytest.mark.parametrize("randomize", [False, True])
def test_a_state_continues_with_the_same_numbers(randomize: bool) -> None:
    with in_order(Tokens(), randomize=randomize) as source:
        source.next_minibatch(1)
        state = source.state_dict()
        expected = [minibatch["tokens"].values.tolist() for minibatch in source.minibatches(1)]
    with in_order(Tokens(), randomize=randomize) as source:
        source.load_state_dict(state)
        assert [minibatch["tokens"].values.tolist() for minibatch in source.minibatches(1)] == expected


def test_counts_of_a_user_are_sparse_whole_numbers() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    counts = sparse.csr_array(np.array([[0, BEYOND_FLOAT64], [3, 0]]))

    class Counts(UserDeserializer):
        timeline = "global"

        def stream_infos(self) -> list[StreamInformation]:
            return [StreamInformation("n", 0, "sparse", np.int64, (2,))]

        def num_chunks(self) -> int:
            return 1

        def get_chunk(self, chunk_id: int) -> Mapping[str, Any]:
            return {"n": counts}

    with in_order(Counts()) as source:
        data = source.next_minibatch(9)["n"]
    assert (data.values.dtype, data.values.tolist()) == (np.int64, [BEYOND_FLOAT64, 3])
    assert data.asarray()[:, 0].tolist() == [[0, BEYOND_FLOAT64], [3, 0]]


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (np.array([[2**31]]), "the whole number 2147483648 does not fit int32"),
        (np.array([[0.5]]), "values of type float64; expected int32"),
    ],
)
def test_a_number_that_does_not_fit_is_refused(classes: npt.NDArray[Any], message: str) -> None:
    with pytest.raises(CorpusError, match=message), in_order(Tokens([TOKENS[1]], [classes])) as source:
        source.next_minibatch(1)


def test_an_unsigned_stream_is_refused() -> None:
    class Unsigned(Tokens):
        def stream_infos(self) -> list[StreamInformation]:
            return [StreamInformation("tokens", 0, "dense", np.uint16, (1,))]

    with pytest.raises(ConfigError, match="dtype uint16; expected float32, float64, int32, int64"):
        in_order(Unsigned())


@pytest.mark.parametrize("dtype", [np.int32, "int64"])
def test_formats_of_cntk_refuse_whole_numbers(dtype: Any) -> None:
    streams = StreamDefs(x=StreamDef(field="x", shape=1))
    for deserializer in (CTFDeserializer, CBFDeserializer):
        with pytest.raises(ConfigError, match=r"dtype is int\d\d; expected float32 or float64"):
            deserializer("a", streams, dtype=dtype)


# ------------------------------------------------------------------------------------------------------------- writers


def test_a_text_has_every_digit(tmp_path: Path) -> None:
    write_ctf(tmp_path / "a.ctf", Tokens())
    assert (tmp_path / "a.ctf").read_text().splitlines()[:3] == [
        f"0\t|tokens {BEYOND_FLOAT64} |classes {BEYOND_FLOAT32}",
        "0\t|tokens -1 |classes 7",
        f"1\t|tokens {2**63 - 1} |classes {2**31 - 1}",
    ]


def test_a_binary_corpus_keeps_numbers_or_refuses_them(tmp_path: Path) -> None:
    path = tmp_path / "a.cbf"
    write_cbf(path, Tokens(CLASSES, CLASSES))
    with in_order(CBFDeserializer(path)) as source:
        data = source.next_minibatch(100)["classes"]
    assert (data.values.dtype, data.values.tolist()) == (np.float64, np.concatenate(CLASSES).tolist())
    with pytest.raises(
        CorpusError, match=f"stream 'tokens': the whole number {BEYOND_FLOAT64} is not exact in float64"
    ):
        write_cbf(path, Tokens(TOKENS[:1], CLASSES[:1]))
    with pytest.raises(CorpusError, match=f"the whole number {BEYOND_FLOAT32} is not exact in float32"):
        write_cbf(path, Tokens(CLASSES, CLASSES), dtype=np.float32)


def test_a_minibatch_is_written_with_its_whole_numbers(tmp_path: Path) -> None:
    with in_order(Tokens()) as source:
        minibatch = source.next_minibatch(100)
    write_ctf(tmp_path / "a.ctf", minibatch)
    write_ctf(tmp_path / "b.ctf", Tokens())
    assert (tmp_path / "a.ctf").read_bytes() == (tmp_path / "b.ctf").read_bytes()


def test_class_ids_are_written_as_one_hot_samples(tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    path.write_text("0 |w 16777217:1\n0 |w 3:1\n")
    classes = read_ctf(path, StreamDefs(w=StreamDef(field="w", shape=2**25, is_sparse=True)), ids=["w"])
    assert classes["w"].asarray().tolist() == [[BEYOND_FLOAT32, 3]]
    write_ctf(tmp_path / "b.ctf", classes)
    assert (tmp_path / "b.ctf").read_text() == "0\t|w 16777217:1\n0\t|w 3:1\n"
    classes["w"].values[1] = -3
    with pytest.raises(FormatError, match="the value -3"):
        write_ctf(tmp_path / "b.ctf", classes)


# ------------------------------------------------------------------------------------------------------------ svmlight


def test_labels_counts_and_queries_of_svmlight_are_exact(tmp_path: Path) -> None:
    path = tmp_path / "a.svm"
    path.write_text(f"{BEYOND_FLOAT64} qid:{2**63 - 1} 1:{BEYOND_FLOAT64} 2:3.0\n-1 qid:-5 1:1e3\n")
    data = read_svmlight(path, dtype=np.int64, query_id=True)
    assert data["label"].values.ravel().tolist() == [BEYOND_FLOAT64, -1]
    assert data["qid"].values.ravel().tolist() == [2**63 - 1, -5]
    assert data["features"].values.tolist() == [BEYOND_FLOAT64, 3, 1000]
    assert {data[name].values.dtype for name in data} == {np.dtype(np.int64)}
    write_svmlight(tmp_path / "b.svm", data, query="qid")
    again = read_svmlight(tmp_path / "b.svm", dtype=np.int64, query_id=True)
    assert [again[name].values.tolist() for name in data] == [data[name].values.tolist() for name in data]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (f"{BEYOND_FLOAT64}.0", BEYOND_FLOAT64),
        (f"{BEYOND_FLOAT64}00e-2", BEYOND_FLOAT64),
        ("9223372036854775807.", 2**63 - 1),
        ("-9223372036854775808e0", -(2**63)),
        (".5e19", 5 * 10**18),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("999999999999999999", 10**18 - 1),
        ("+1000000000000000000", 10**18),
        ("0000000000000000000000007", 7),
        ("3.00000000000000000000000", 3),
        ("2.99999999999999999999", None),
        ("9007199254740992.5", None),
        ("1e-400", None),
        ("9223372036854775808.0", None),
        ("9223372036854775808", None),
        ("1e400", None),
        ("nan", None),
    ],
)
def test_whole_numbers_of_svmlight_are_exact_in_every_form(tmp_path: Path, text: str, number: int | None) -> None:
    path = tmp_path / "a.svm"
    for line in (f"{text} 1:1", f"1 1:{text}"):
        path.write_text(f"{line}\n")
        if number is None:
            with pytest.raises(
                FormatError, match=f"column {line.index(text) + 1} .*that is not in int64; expected a whole"
            ):
                read_svmlight(path, dtype=np.int64)
        else:
            data = read_svmlight(path, dtype=np.int64)
            assert number in (data["label"].values.item(), data["features"].values.item())


def test_labels_have_a_type_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "a.svm"
    path.write_text("3 1:0.5\n")
    data = read_svmlight(path, label_dtype=np.int32)
    assert (data["label"].values.dtype, data["features"].values.dtype) == (np.int32, np.float32)
    with pytest.raises(ConfigError, match="label_dtype is uint8; expected float32, float64, int32 or int64"):
        SvmlightDeserializer(path, label_dtype=np.uint8)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0.5 1:1", "line 1, column 1 .*a label that is not in int32; expected a whole number"),
        ("4294967296 1:1", "a label that is not in int32"),
        ("1 2:1 3:0.5", "line 1, column 9 .*a value that is not in int32; expected a whole number"),
        ("1 2:99999999999", "a value that is not in int32"),
    ],
)
def test_other_numbers_of_svmlight_are_located_errors(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.svm"
    path.write_text(f"{line}\n1 1:1\n")
    with pytest.raises(FormatError, match=message):
        read_svmlight(path, dtype=np.int32)
    assert read_svmlight(path, dtype=np.int32, max_errors=1)["label"].values.ravel().tolist() == [1]

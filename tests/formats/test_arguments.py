"""Arguments of streams, deserializers and sources have the types that their documentation names."""

import copy
import json
import os
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    Budget,
    CBFDeserializer,
    ConfigError,
    CTFDeserializer,
    HTKFeatureDeserializer,
    HTKMLFBinaryDeserializer,
    HTKMLFDeserializer,
    KaldiDeserializer,
    MinibatchSource,
    Record,
    StreamDef,
    StreamDefs,
    StreamInformation,
    SvmlightDeserializer,
    write_htk_features,
)
from support.builders import corpus_text, source_of

X = StreamDefs(x=StreamDef(field="x", shape=2))
FEATURES = StreamDefs(f=StreamDef(scp="a.scp", shape=2))
LABELS = StreamDefs(m=StreamDef(mlf="a.mlf", shape=2))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (943, 943),
        (np.int64(943), 943),
        (np.uint8(9), 9),
        ((28, 28), (28, 28)),
        ((np.int32(2), 3), (2, 3)),
        ([2, 3], (2, 3)),
        (np.zeros((2, 3)).shape, (2, 3)),
    ],
)
def test_a_shape_is_a_whole_number_of_any_kind_or_several(shape: Any, expected: Any) -> None:
    dim = StreamDef(field="x", shape=shape).dim
    assert dim == expected and type(dim) is type(expected)
    assert all(type(size) is int for size in (dim if isinstance(dim, tuple) else [dim]))


@pytest.mark.parametrize(
    "shape", ["943", "", (), True, 3.0, np.float32(3), ("9", 4), (2, 3.0), b"9", {}, np.array(5), object()]
)
def test_refuses_a_shape_of_another_type(shape: Any) -> None:
    with pytest.raises(ConfigError, match="shape is .*; expected a whole number, or a tuple of") as raised:
        StreamDef(field="x", shape=shape)
    assert raised.value.key == "shape"
    with pytest.raises(ConfigError, match="expected a whole number, or a tuple of"):
        CTFDeserializer("a.ctf", {"x": {**StreamDef(field="x", shape=1), "dim": shape}})


def test_a_description_accepts_a_shape_of_any_whole_numbers() -> None:
    assert StreamInformation("x", 0, "dense", np.float32, np.int64(3)).shape == (3,)
    assert StreamInformation("x", 0, "dense", np.float32, ()).dim == 1
    for shape in ("943", True, 2.0):
        with pytest.raises(ConfigError, match="shape is .*; expected a whole number"):
            StreamInformation("x", 0, "dense", np.float32, shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["is_sparse", "broadcast", "defines_mb_size"])
def test_flags_of_a_stream_are_true_or_false(name: str) -> None:
    assert StreamDef(**{name: np.True_})[name] is True
    for value in ("yes", "", 1, 0, 1.0, ()):
        with pytest.raises(ConfigError, match=f"{name} is .*; expected True or False") as raised:
            StreamDef(**{name: value})
        assert raised.value.key == name


def test_the_longest_sequence_of_a_stream_is_a_whole_number() -> None:
    assert StreamDef(max_sequence_length=np.int64(7)).max_sequence_length == 7
    for value in ("7", 7.5, True, None):
        with pytest.raises(ConfigError, match=r"max_sequence_length is .*; expected a whole number"):
            StreamDef(max_sequence_length=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("build", "name", "value"),
    [
        (lambda **o: CTFDeserializer("a.ctf", X, **o), "cache_index", "yes"),
        (lambda **o: CTFDeserializer("a.ctf", X, **o), "skip_sequence_ids", 1),
        (lambda **o: CTFDeserializer("a.ctf", X, **o), "strict", "no"),
        (lambda **o: CTFDeserializer("a.ctf", X, **o), "max_errors", 1.5),
        (lambda **o: CTFDeserializer("a.ctf", X, **o), "max_errors", "3"),
        (lambda **o: CTFDeserializer("a.ctf", X, **o), "chunk_size_in_bytes", "1MB"),
        (lambda **o: CBFDeserializer("a.cbf", X, **o), "keep_data_in_memory", "yes"),
        (lambda **o: HTKFeatureDeserializer(FEATURES, **o), "strict", "yes"),
        (lambda **o: HTKMLFDeserializer(None, LABELS, **o), "cache_index", "yes"),
    ],
)
def test_options_of_deserializers_have_their_documented_types(build: Callable[..., Any], name: str, value: Any) -> None:
    with pytest.raises(
        ConfigError, match=f"{name} is {value!r}; expected (True or False|True, False or .verify.|a whole number)"
    ) as raised:
        build(**{name: value})
    assert raised.value.key == name


def test_options_of_deserializers_accept_numpy_numbers() -> None:
    deserializer = CTFDeserializer("a.ctf", X, max_errors=np.int64(3), cache_index=np.False_)
    assert repr(pickle.loads(pickle.dumps(deserializer))) == repr(CTFDeserializer("a.ctf", X, max_errors=3))


FILES = {
    "a.ctf": "0 |x 1 2\n1 |x 3 4\n",
    "a.svm": "1 1:2\n0 2:3\n",
    "a.ark": "u1  [\n  1 2 ]\nu2  [\n  5 6 ]\n",
    "ali": "u1 1 2\nu2 3\n",
}


@pytest.mark.parametrize("number", [2**63, 2**64, 10**30])
@pytest.mark.parametrize("name", FILES)
def test_options_of_deserializers_may_be_larger_than_any_file(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(FILES[name])
    builds: dict[str, Callable[..., Any]] = {"a.ctf": partial(CTFDeserializer, name, X), "a.svm": SvmlightDeserializer}
    build = builds.get(name, KaldiDeserializer)
    forgiving = {} if build is KaldiDeserializer else {"max_errors": number}
    arguments = [] if name == "a.ctf" else [name]

    opened = build(*arguments, chunk_size_in_bytes=number, **forgiving)

    with MinibatchSource(opened, max_sweeps=1) as source:
        assert sum(minibatch.num_sequences for minibatch in source.minibatches(9)) == 2


@pytest.mark.parametrize("context", [(2**31, 0), (0, 2**64)])
def test_refuses_a_context_whose_samples_have_too_many_values(context: tuple[int, int], tmp_path: Path) -> None:
    write_htk_features(tmp_path / "u1.mfc", np.zeros((2, 2)))
    (tmp_path / "a.scp").write_text("u1=.../u1.mfc\n")
    (tmp_path / "a.ark").write_text(FILES["a.ark"])
    stream = StreamDef(scp=tmp_path / "a.scp", shape=2, context=context)
    for deserializer in (
        HTKFeatureDeserializer(StreamDefs(f=stream)),
        KaldiDeserializer(tmp_path / "a.ark", context=context),
        KaldiDeserializer(tmp_path / "a.ark", context=context, dtype=np.float64),
    ):
        with pytest.raises(ConfigError, match=r"context is \(.*\), which makes samples of \d+ values from frames of 2"):
            MinibatchSource(deserializer)


@pytest.mark.parametrize("name", ["randomize", "frame_mode", "strict", "keep_data_in_memory", "crosses_sweeps"])
def test_flags_of_a_source_are_true_or_false(name: str) -> None:
    for value in ("False", "", 0, None):
        with pytest.raises(ConfigError, match=f"{name} is {value!r}; expected True or False") as raised:
            MinibatchSource(CTFDeserializer("a.ctf", X), **{name: value})
        assert raised.value.key == name


def test_a_state_with_numpy_flags_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    path.write_bytes(corpus_text([1, 1, 1]))
    with source_of(path, frame_mode=np.True_, randomize=np.False_) as source:
        assert json.dumps(source.state_dict())


@pytest.mark.parametrize(
    "stream",
    [
        StreamDef(),
        StreamDef(field="x", shape=(28, 28), defines_mb_size=True),
        StreamDef(field="x", shape=np.int64(5), is_sparse=True, max_sequence_length=9),
        StreamDef(scp=["a.scp", "b.scp"], shape=40, context=(5, 6), broadcast=False),
        StreamDef(mlf="a.mlf", shape=132),
    ],
)
def test_a_stream_definition_prints_the_call_that_makes_it(stream: StreamDef) -> None:
    assert repr(stream).startswith("StreamDef(")
    for again in (eval(repr(stream)), pickle.loads(pickle.dumps(stream)), copy.copy(stream), copy.deepcopy(stream)):
        assert type(again) is StreamDef and again == stream and repr(again) == repr(stream)


def test_records_print_as_records() -> None:
    assert repr(Record(a=1)) == "Record(a=1)" and repr(Record()) == "Record()"


def test_a_stream_definition_is_a_mapping_of_what_was_given() -> None:
    stream = StreamDef(scp="a.scp", shape=40, context=(5, 6))
    items = {
        "stream_alias": None, "is_sparse": False, "defines_mb_size": False, "max_sequence_length": 65535,
        "dim": 40, "context": (5, 6), "scp": "a.scp",
    }  # fmt: skip
    assert isinstance(stream, Mapping) and list(stream.items()) == list(items.items()) and len(stream) == 7
    assert stream == items and items == stream == Record(items) and stream != {**items, "dim": 41}
    assert dict(stream) == {**stream} == items and stream.get("mlf") is None and "mlf" not in stream
    for key in items:
        assert getattr(stream, key) == stream[key]
    assert (stream.mlf, stream.transforms, stream.broadcast) == (None, None, None)
    with pytest.raises(KeyError, match="no 'dimm'; there are: 'stream_alias', .*; did you mean 'dim'"):
        stream["dimm"]


def test_equal_stream_definitions_have_equal_hashes() -> None:
    stream, equal = StreamDef(field="x", shape=(2, 3)), StreamDef(shape=[2, 3], field="x")  # type: ignore[arg-type]
    assert {stream: 1}[equal] == 1 and len({stream, equal, StreamDef(field="x", shape=6)}) == 2
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        hash(StreamDef(scp=["a.scp"]))


def test_a_stream_definition_cannot_be_changed() -> None:
    stream: Any = StreamDef(field="x", shape=3)
    with pytest.raises(AttributeError, match="cannot assign to field 'dim'"):
        stream.dim = 4
    with pytest.raises(AttributeError, match="cannot delete field 'dim'"):
        del stream.dim
    with pytest.raises(TypeError, match="'StreamDef' object does not support item assignment"):
        stream["dim"] = 4
    assert stream.updated_with(dim=4) == StreamDef(field="x", shape=4) and stream.dim == 3
    with pytest.raises(TypeError, match="StreamDef has no keyword 'other'"):
        stream.updated_with(other=4)


@pytest.mark.parametrize("kind", [dict, Record])
def test_mappings_with_keys_or_arguments_of_a_stream_become_definitions(kind: Callable[..., Any]) -> None:
    expected = StreamDef(field="x", shape=2, is_sparse=True)
    for given in (
        kind(expected),
        kind(stream_alias="x", dim=2, is_sparse=True),
        kind(field="x", shape=2, is_sparse=True),
    ):
        made = CTFDeserializer("a.ctf", {"x": given}).streams["x"]
        assert type(made) is StreamDef and made == expected
    with pytest.raises(TypeError, match="StreamDef has no keyword 'shap'; did you mean 'shape'"):
        StreamDefs(x=kind(field="x", shap=2))


@pytest.mark.parametrize("kind", ["pipe", "device", "proc", "zero byte"])
def test_refuses_files_that_are_not_regular_at_once(kind: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = {"pipe": f"{tmp_path}/pipe", "device": "/dev/zero", "proc": "/proc/self/status", "zero byte": "a\0b"}[kind]
    what = {"pipe": "Is a pipe", "device": "Is a device", "proc": "has no size", "zero byte": "be a path"}[kind]
    stream = StreamDef(field="x", shape=1)
    for deserializer in (
        CTFDeserializer(path, StreamDefs(x=stream)),
        CBFDeserializer(path),
        HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp=path, shape=1))),
        HTKMLFDeserializer(path, StreamDefs(x=StreamDef(mlf=path, shape=1))),
        HTKMLFBinaryDeserializer(StreamDefs(x=StreamDef(mlf=path, shape=1))),
    ):
        with pytest.raises(OSError, match=f"(?i){what}") as caught:
            deserializer.open()
        assert caught.value.filename == path


def test_only_files_with_similar_names_are_suggested(tmp_path: Path) -> None:
    (tmp_path / "b.ctf").touch()
    (tmp_path / "train.ctf").touch()
    for name, suggested in (
        ("a.ctf", None),
        ("test.ctf", None),
        ("trian.ctf", "train.ctf"),
        ("train.txt", "train.ctf"),
    ):
        with pytest.raises(FileNotFoundError) as caught:
            CTFDeserializer(tmp_path / name, StreamDefs(x=StreamDef(field="x", shape=1))).open()
        assert ("did you mean" in str(caught.value)) == (suggested is not None)
        assert suggested is None or suggested in str(caught.value)


@pytest.mark.parametrize("value", [np.zeros(3), np.array("drop"), ["drop"], {}, None, 1, b"drop"], ids=repr)
def test_a_word_of_another_type_is_refused_by_its_name(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"oversize is .*; expected 'error', 'alone' or 'drop'"):
        Budget(samples=4, oversize=value)

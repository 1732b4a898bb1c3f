"""Plausible mistakes of users: each raises an error of cntkio with the value that was found and the text to write."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    BalancedPartition,
    CBFDeserializer,
    CheckpointError,
    ConfigError,
    CTFDeserializer,
    GlobalPartition,
    HTKFeatureDeserializer,
    HTKMLFDeserializer,
    MinibatchData,
    MinibatchSource,
    MinibatchSourceFromData,
    Partition,
    StreamConfiguration,
    StreamDef,
    StreamDefs,
    StreamInformation,
    Value,
    infer_streams,
    read_config,
    read_ctf,
    write_ctf,
)
from support import builders

X = StreamDef(field="x", shape=2)
ARRAYS = {"x": np.ones((3, 2))}


def source(path: Path) -> MinibatchSource:
    return builders.source_of(path)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        # streams
        (lambda path: StreamDefs(X), "expected StreamDefs(name=StreamDef(field=..., shape=...)), with a name"),
        (lambda path: StreamDefs([X]), "with a name for each stream"),
        (lambda path: StreamDefs("x", X), "with a name for each stream"),
        (lambda path: StreamDefs(x=3), "stream 'x' is 3; expected StreamDefs(x=StreamDef("),
        (lambda path: StreamDef(field=3, shape=2), "field is 3; expected a text"),
        (lambda path: StreamDef(field="x", shape=3.0), "shape is 3.0; expected a whole number"),
        (lambda path: StreamInformation("x", 0, "dense", "flaot", (3,)), "dtype is 'flaot'; expected a type of NumPy"),
        (lambda path: StreamInformation("x", 0, "dens", "f4", 3), "storage_format is 'dens'; expected 'dense' or"),
        (lambda path: CTFDeserializer(path, StreamConfiguration("x", 3)), "expected StreamDefs(name=StreamDef("),
        (lambda path: CTFDeserializer(path, [X]), "with a name for each stream"),
        (lambda path: read_ctf(path, ["x"]), "with a name for each stream"),
        (lambda path: read_ctf(path, "x"), "streams is 'x'; expected StreamDefs"),
        (lambda path: write_ctf(path, {"petal width": [1]}), "not beginning with '#'; rename the column or stream"),
        (lambda path: write_ctf(path, {"y": [0]}, one_hot=943), "one_hot is 943; expected the number of"),
        (lambda path: write_ctf(path, {"y": [0]}, one_hot=["y"]), "one_hot is ['y']; expected the number"),
        (lambda path: write_ctf(path, {"y": np.zeros(2)}, one_hot={"y": 2}), "write .astype(int) if they"),
        # deserializers
        (lambda path: CTFDeserializer(StreamDefs(x=X), path), "filename is StreamDefs(x=StreamDef("),
        (lambda path: CTFDeserializer(None, StreamDefs(x=X)), "filename is None; expected a path"),
        (lambda path: CBFDeserializer([path, 3]), "expected a path"),
        (lambda path: CTFDeserializer(path, StreamDefs(x=X), max_errors="3"), "max_errors is '3'; expected a whole"),
        (lambda path: CTFDeserializer(path, StreamDefs(x=X), chunk_size_in_bytes="1MB"), "is '1MB'; expected a whole"),
        (lambda path: CTFDeserializer(path, StreamDefs(x=X), dtype="flaot32"), "dtype is 'flaot32'; expected float32"),
        (lambda path: CBFDeserializer(path, dtype=[1]), "dtype is [1]; expected float32 or float64"),
        (
            lambda path: HTKMLFDeserializer(StreamDefs(x=X), "states.list"),
            "expected the mapping file first, then the streams",
        ),
        (lambda path: HTKFeatureDeserializer(StreamDef(scp="a.scp", shape=2)), "with a name for each stream"),
        (
            lambda path: HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp="a.scp", shape=2)), dtype="flaot32"),
            "dtype is 'flaot32'; expected float32 or float64",
        ),
        (lambda path: HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp="a.scp", shape=2, context=True))),
         "context is True; expected (left, right), or one odd total number of frames"),
        (lambda path: HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp="a.scp", shape=2, context=(1.5, 2)))),
         "context is (1.5, 2); expected (left, right)"),
        (lambda path: read_ctf(None), "path is None; expected a path"),
        (lambda path: infer_streams(3), "path is 3; expected a path"),
        (lambda path: read_config(None), "path is None; expected a path"),
        # sources
        (lambda path: MinibatchSource(CTFDeserializer), "is not a deserializer; expected one such as"),
        (lambda path: MinibatchSource(source(path)), "MinibatchSource'> is not a deserializer"),
        (lambda path: source(path).next_minibatch(3, ["x"]), "input_map is ['x']; expected a mapping of your keys"),
        (lambda path: source(path).next_minibatch(3, "x"), "{'features': source.streams.features}"),
        (lambda path: source(path).next_minibatch(3, None, None, "2", "0"), "partition_index is '0'; expected a whole"),
        (lambda path: source(path).next_minibatch(3, None, None, 2.5, 0), "num_data_partitions is 2.5; expected a"),
        (lambda path: source(path).read(3, (0, 2)), "partition is (0, 2); expected Partition(index, count), Balanc"),
        (lambda path: source(path).read(True), "minibatch_size_in_samples is True; expected a whole number, at least"),
        (lambda path: source(path).begin_epoch("0", "10"), "begin is '0'; expected a whole number"),
        (lambda path: Partition("0", 2), "partition_index is '0'; expected a whole number"),
        (lambda path: BalancedPartition(0, 2.0), "num_data_partitions is 2.0; expected a whole number"),
        (lambda path: BalancedPartition(0, 2, worker=True, num_workers=2), "worker is True; expected a whole number"),
        (lambda path: GlobalPartition(0, 2, num_workers=1.5), "num_workers is 1.5; expected a whole number"),
        # sources of arrays, and values
        (lambda path: MinibatchSourceFromData(ARRAYS, max_samples="3"), "max_samples is '3'; expected a whole number"),
        (lambda path: MinibatchSourceFromData(ARRAYS, max_samples=1.5), "max_samples is 1.5; expected a whole number"),
        (lambda path: MinibatchSourceFromData(ARRAYS).next_minibatch("3"), "num_samples is '3'; expected a whole"),
        (lambda path: MinibatchSourceFromData({"x": (ARRAYS["x"],)}), "a tuple of 1; expected data, or a pair"),
        (lambda path: MinibatchSourceFromData({"x": np.float32(3)}), "is the number 3.0; expected an array"),
        (lambda path: Value(3), "batch is 3; expected an array, or a list of sequences"),
        (lambda path: Value([["a"]]), "expected numbers"),
        (lambda path: Value.one_hot([1, 2], 3), "expected a list of classes for each sequence"),
        (lambda path: Value.one_hot([[1.5]], 3), "a class is not a whole number"),
        (lambda path: Value.one_hot([[1]], "3"), "num_classes is '3'; expected a whole number"),
    ],
)  # fmt: skip
def test_a_plausible_mistake_says_what_to_write(tmp_path: Path, call: Callable[[Path], Any], words: str) -> None:
    (tmp_path / "a.ctf").write_bytes(builders.corpus_text([1, 2]))
    with pytest.raises(ConfigError) as caught:
        call(tmp_path / "a.ctf")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (list, TypeError, "while minibatch := source.next_minibatch(size)"),
        (len, TypeError, "DataLoader(MinibatchDataset(source, size), batch_size=None)"),
        (lambda of: of.next_minibatch(3).x, AttributeError, "write minibatch['x']"),
        (lambda of: of.next_minibatch(3).end_of_swep, AttributeError, "did you mean 'end_of_sweep'?"),
        (lambda of: of.next_minibatch(3)[0], KeyError, "no stream 0; there are: 's', 'x'"),
        (lambda of: MinibatchSource(CTFDeserializer("a", {"x": X}), CTFDeserializer("b", {"x": X})), TypeError,
         "pass several deserializers as a list: MinibatchSource([first, second])"),
        (lambda of: MinibatchData(np.ones(3)), TypeError, "a stream of a minibatch is minibatch['name']"),
        (lambda of: MinibatchSourceFromData(ARRAYS).restore_from_checkpoint(None), CheckpointError,
         "the checkpoint is None; expected a result of get_checkpoint_state()"),
        (lambda of: MinibatchSourceFromData(ARRAYS).restore_from_checkpoint({"cursor": False, "total_num_samples": 0}),
         CheckpointError, "the checkpoint's 'cursor' is False; expected a whole number, at least 0"),
        (lambda of: CTFDeserializer("a", {"x": X})[0], KeyError, "0"),
    ],
)  # fmt: skip
def test_a_mistake_with_a_source_says_what_to_write(
    tmp_path: Path, call: Callable[[MinibatchSource], Any], kind: type[Exception], words: str
) -> None:
    (tmp_path / "a.ctf").write_bytes(builders.corpus_text([1, 2]))
    with source(tmp_path / "a.ctf") as opened, pytest.raises(kind) as caught:
        call(opened)
    assert words in str(caught.value)


def test_functions_of_numpy_take_the_padded_array_of_a_stream(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_bytes(builders.corpus_text([1, 2]))
    x = read_ctf(tmp_path / "a.ctf", StreamDefs(x=X))["x"]
    assert np.asarray(x).tolist() == x.asarray().tolist() == [[[0, 0], [0, 0]], [[1, 0], [1, 1]]]
    assert np.asarray(x, np.float64).dtype == np.float64 and x


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda path: infer_streams(path, remot=3), "infer_streams has no keyword 'remot'; did you mean 'remote'?"),
        (
            lambda path: source(path).next_minibatch(3, partition=1),
            "next_minibatch has no keyword 'partition'; did you mean 'partition_index'?",
        ),
        (
            lambda path: source(path).next_minibatch(3, workers=2),
            "next_minibatch has no keyword 'workers'; it has: minibatch_size_in_samples, input_map, ",
        ),
        (
            lambda path: source(path).next_minibatch(size=3),
            "missing 1 required positional argument: 'minibatch_size_in_samples'",
        ),
        (lambda path: write_ctf(path, ARRAYS, shapes={}), "write_ctf has no keyword 'shapes'; "),
    ],
)
def test_an_unknown_keyword_names_the_keywords(call: Callable[[Path], Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_text("|x 1 2\n")
    with pytest.raises(TypeError) as caught:
        call(tmp_path / "a.ctf")
    assert words in str(caught.value)

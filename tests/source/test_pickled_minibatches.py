"""Minibatches of every kind go through pickles, copies and queues between processes, and stay the same."""

import copy
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import (
    CTFDeserializer,
    HTKFeatureDeserializer,
    HTKMLFDeserializer,
    MinibatchSource,
    MinibatchSourceFromData,
    StreamDef,
    StreamDefs,
    UserDeserializer,
    Value,
    read_ctf,
)
from cntkio.convert import corpus_chunks
from cntkio.formats import htk, mlf
from support.builders import STREAMS, corpus_text, source_of

LENGTHS = [1 + key * 5 % 7 for key in range(40)]


def first_of(source: MinibatchSource, size: int = 30) -> Any:
    with source:
        source.next_minibatch(size)
        return source.next_minibatch(size)


def text(folder: Path) -> Path:
    path = folder / "a.ctf"
    path.write_bytes(corpus_text(LENGTHS))
    return path


def labels(folder: Path) -> CTFDeserializer:
    path = folder / "b.ctf"
    path.write_text("".join(f"{key} |label {key / 4}\n" for key in reversed(range(40)) if key % 5))
    return CTFDeserializer(path, StreamDefs(y=StreamDef(field="label", shape=1)))


def of_files(folder: Path, **options: Any) -> Any:
    for part in range(3):
        lines = [f"{key} |x {key} 0 |s {key}:1\n" for key in range(7 * part, 7 * part + 7)]
        (folder / f"part-{part}.ctf").write_text("".join(lines))
    return first_of(MinibatchSource(CTFDeserializer(str(folder / "part-*.ctf"), STREAMS), **options), 9)


def of_speech(folder: Path, **options: Any) -> Any:
    named = [(f"u{u}", u + np.arange(2 * n).reshape(n, 2) / 8) for u, n in enumerate(LENGTHS)]
    htk.write_archive(folder / "f.ark", folder / "f.scp", named)
    mlf.write_mlf(folder / "l.mlf", [(name, np.arange(len(one)) % 3) for name, one in named], ["a", "b", "c"])
    mlf.write_mapping(folder / "states", ["a", "b", "c"])
    features = HTKFeatureDeserializer(StreamDefs(F=StreamDef(scp=str(folder / "f.scp"), shape=2)))
    classes = HTKMLFDeserializer(str(folder / "states"), StreamDefs(L=StreamDef(mlf=str(folder / "l.mlf"), shape=3)))
    return first_of(MinibatchSource([features, classes], **options))


class _Squares(UserDeserializer):
    def stream_infos(self) -> list[Any]:
        return [cntkio.StreamInformation("x", 0, "dense", np.float32, (1,))]

    def num_chunks(self) -> int:
        return 3

    def get_chunk(self, chunk_id: int) -> Any:
        return {"x": [np.full((1, 1), (10 * chunk_id + index) ** 2, np.float32) for index in range(10)]}


def exhausted(folder: Path) -> Any:
    with source_of(text(folder), max_sweeps=1) as source:
        source.next_minibatch(10**6)
        return source.next_minibatch(10**6)


def words(folder: Path) -> Path:
    path = folder / "words.ctf"
    path.write_text("0 |w 3:1 |# dog\n0 |w 1:1 |# cat\n1 |w 3:1 |# dog\n")
    return path


MAKERS: dict[str, Callable[[Path], Any]] = {
    "read": lambda folder: read_ctf(text(folder), STREAMS),
    "chunks": lambda folder: corpus_chunks(CTFDeserializer(text(folder), STREAMS, chunk_size_in_bytes=200))[1:3].read(),
    "class ids": lambda folder: read_ctf(words(folder), ids=["w"]),
    "comments": lambda folder: read_ctf(words(folder), comments=True),
    "random": lambda folder: first_of(source_of(text(folder))),
    "in order": lambda folder: first_of(source_of(text(folder), randomize=False)),
    "truncated": lambda folder: of_speech(folder, truncation_length=3),
    "joined": lambda folder: first_of(
        MinibatchSource([CTFDeserializer(text(folder), STREAMS), labels(folder)], randomize=False)
    ),
    "joined by text keys": of_speech,
    "speech in frames": lambda folder: of_speech(folder, frame_mode=True),
    "several files": of_files,
    "several files, truncated": lambda folder: of_files(folder, truncation_length=1),
    "doubles": lambda folder: first_of(MinibatchSource(CTFDeserializer(text(folder), STREAMS, dtype=np.float64))),
    "arrays": lambda folder: MinibatchSourceFromData({"x": np.arange(6.0), "y": np.eye(6)}).next_minibatch(4),
    "user-defined": lambda folder: first_of(MinibatchSource(_Squares()), 7),
    "empty": exhausted,
}


@pytest.fixture(params=MAKERS)
def minibatch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    yield MAKERS[request.param](tmp_path)


def files_of(minibatch: Any) -> Any:
    try:
        return minibatch.files_of_sequences.tolist()
    except cntkio.ConfigError as error:
        return str(error)


def assert_same(made: Any, again: Any) -> None:
    assert type(again) is type(made) and list(again) == list(made) and repr(again) == repr(made)
    assert again.num_sequences == made.num_sequences and again.end_of_sweep == made.end_of_sweep
    assert again.keys_of_sequences.dtype == made.keys_of_sequences.dtype
    assert again.keys_of_sequences.tolist() == made.keys_of_sequences.tolist()
    assert files_of(again) == files_of(made)
    for name, data in made.items():
        assert_same_data(data, again[name])
        assert again[data.stream] is again[name]


def assert_same_data(made: Any, again: Any) -> None:
    assert type(again) is type(made) and again.stream == made.stream and again.end_of_sweep == made.end_of_sweep
    assert (again.num_sequences, again.num_samples, again.shape) == (made.num_sequences, made.num_samples, made.shape)
    arrays = ["values", "mask"] + (
        ["parts", "continues"] if hasattr(made, "parts") else ["offsets", "indptr", "indices"]
    )
    for name in arrays:
        one, other = getattr(made, name), getattr(again, name)
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype == other.dtype and np.array_equal(one, other)
    assert np.array_equal(again.asarray(), made.asarray())


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_minibatch_is_the_same(minibatch: Any, protocol: int) -> None:
    again = pickle.loads(pickle.dumps(minibatch, protocol))
    assert_same(minibatch, again)
    assert_same(minibatch, pickle.loads(pickle.dumps(again, protocol)))


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
def test_a_copied_minibatch_is_the_same(minibatch: Any, way: Callable[[Any], Any]) -> None:
    assert_same(minibatch, way(minibatch))


def test_a_pickle_does_not_hold_the_rest_of_the_corpus(tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    path.write_bytes(corpus_text([1] * 20_000))
    with source_of(path, chunk_size_in_bytes=1 << 20) as source:
        assert len(pickle.dumps(source.next_minibatch(10))) < 3000


def test_arrays_of_a_minibatch_need_no_copy_in_a_pickle_with_buffers(tmp_path: Path) -> None:
    minibatch = read_ctf(text(tmp_path), STREAMS)
    buffers: list[pickle.PickleBuffer] = []
    packed = pickle.dumps(minibatch, 5, buffer_callback=buffers.append)
    assert len(packed) < 2000 and len(buffers) >= 6
    again = pickle.loads(packed, buffers=buffers)
    assert np.shares_memory(again["x"].values, minibatch["x"].values)


def test_a_value_stays_a_value_in_a_pickle() -> None:
    for value in (Value([[[1, 2]], [[3, 4], [5, 6]]]), Value.one_hot([[3, 1], [4]], num_classes=5)):
        assert_same_data(value, pickle.loads(pickle.dumps(value)))


def test_vocabularies_stay_in_a_pickle(tmp_path: Path) -> None:
    made = read_ctf(words(tmp_path), comments=True)
    again = pickle.loads(pickle.dumps(made))
    assert again.vocabularies == made.vocabularies and again.vocabularies["w"].words == {3: "dog", 1: "cat"}


def _send(path: Path, queue: Any) -> None:
    with source_of(path, randomize=False, max_sweeps=1) as source:
        for minibatch in source.minibatches(30):
            queue.put(minibatch)
    queue.put(None)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_minibatches_go_through_a_queue_between_processes(tmp_path: Path, method: str) -> None:
    context, path = multiprocessing.get_context(method), text(tmp_path)
    queue = context.Queue()
    process = context.Process(target=_send, args=(path, queue))
    process.start()
    received = list(iter(lambda: queue.get(timeout=120), None))
    process.join(120)
    with source_of(path, randomize=False, max_sweeps=1) as source:
        expected = list(source.minibatches(30))
    assert process.exitcode == 0 and len(received) == len(expected)
    for one, other in zip(expected, received, strict=True):
        assert_same(one, other)

"""User-defined deserializers: whole sources of them, refusals, pickles, forks and threads."""

import json
import os
import pickle
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    CheckpointError,
    ConfigError,
    CorpusError,
    CTFDeserializer,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    StreamInformation,
)
from cntkio.formats.user import UserDeserializer
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import sparse
from support.rounds import rounds
from support.user_formats import CORPORA, PATIENT, Named, Numbers, OneStream, all_of, plain_data


@settings(PATIENT, max_examples=rounds(40))
@given(
    CORPORA,
    st.sampled_from(["local", "global"]),
    st.integers(1, 12),
    st.integers(0, 9),
    st.sampled_from([{"randomize": False}, {}, {"randomization_window_in_chunks": 2}, {"truncation_length": 2}]),
    st.integers(1, 3),
)
def test_a_source_continues_from_its_state_dict(lengths, timeline, size, num_reads, options, num_partitions):
    assume("truncation_length" not in options or size // 2 >= num_partitions)
    deserializer = OneStream(lengths, timeline=timeline)
    with MinibatchSource(deserializer, max_sweeps=3, randomization_seed=2, **options) as source:
        for _ in range(num_reads):
            source.next_minibatch(size, num_data_partitions=num_partitions, partition_index=0)
        state = json.loads(json.dumps(source.state_dict()))
        expected = all_of(source, size, num_partitions, 0)
    with MinibatchSource(deserializer, max_sweeps=3, randomization_seed=2, **options) as again:
        again.load_state_dict(state)
        assert again.state_dict() == state
        assert all_of(again, size, num_partitions, 0) == expected


@pytest.mark.parametrize("read_ahead_in_bytes", [0, 100, 1 << 20])
@pytest.mark.parametrize("keep_data_in_memory", [False, True])
def test_read_ahead_and_memory_change_only_the_time(read_ahead_in_bytes, keep_data_in_memory):
    def read_with(**options):
        deserializer = Numbers([[1, 2], [3, 1], [2, 2], [1]] * 3)
        with MinibatchSource(deserializer, max_sweeps=3, randomization_window_in_chunks=3, **options) as source:
            return all_of(source, 5)

    options = {"read_ahead_in_bytes": read_ahead_in_bytes, "keep_data_in_memory": keep_data_in_memory}
    assert read_with(**options) == read_with()


@settings(PATIENT, max_examples=rounds(60))
@given(
    CORPORA,
    st.sampled_from([{"randomize": False}, {"randomization_window_in_chunks": 2}, {"truncation_length": 3}, {}]),
    st.integers(3, 12),
    st.sampled_from([(1, 0), (2, 1)]),
)
def test_the_global_timeline_delivers_the_minibatches_of_an_equal_text_file(lengths, options, size, share):
    assume(options.get("truncation_length", 1) * share[0] <= size)
    value = iter(range(10**6))
    lines = [
        f"{key} |x {next(value)} {next(value)}"
        for key, length in enumerate(length for chunk in lengths for length in chunk)
        for _ in range(length)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.ctf")
        path.write_text("\n".join(lines) + "\n")
        text = CTFDeserializer(path, StreamDefs(x=StreamDef(field="x", shape=2)), chunk_size_in_bytes=64)
        corpus = text.open()
        starts = corpus.table.chunk_starts
        chunks = [part.tolist() for part in np.split(corpus.table.lengths, starts[1:-1])]
        corpus.close()
        settings = {"max_sweeps": 2, "randomization_seed": 5, **options}
        with (
            MinibatchSource(text, **settings) as one,
            MinibatchSource(OneStream(chunks, timeline="global"), **settings) as other,
        ):
            for source in (one, other):
                assert source.num_samples == sum(map(sum, lengths))
            while True:
                minibatches = [source.next_minibatch(size, None, None, *share) for source in (one, other)]
                assert plain_data(minibatches[0]) == plain_data(minibatches[1])
                assert one.get_checkpoint_state() == other.get_checkpoint_state()
                if not minibatches[0]:
                    break


def test_the_global_timeline_joins_by_key():
    class Partner(UserDeserializer):
        timeline = "global"

        def stream_infos(self):
            return [StreamInformation("z", 0, "dense", np.float32, (1,))]

        def num_chunks(self):
            return 2

        def get_chunk(self, chunk_id):
            return {"z": np.array([[30], [10]] if chunk_id == 0 else [[0], [50]], np.float32)}

        def get_keys(self, chunk_id):
            return ["key3", "key1"] if chunk_id == 0 else ["key0", "key5"]

    with MinibatchSource([Named(), Partner()], randomize=False, max_sweeps=1) as source:
        (minibatch,) = source.minibatches(100)
        assert minibatch.keys_of_sequences.tolist() == ["key0", "key1", "key3", "key5"]
        assert minibatch["z"].values.ravel().tolist() == [0, 10, 30, 50]
        assert minibatch["x"].lengths.tolist() == [2, 1, 1, 2]


def test_sequences_without_keys_join_by_their_number(tmp_path):
    (tmp_path / "a.ctf").write_text("4 |z 4\n1 |z 1\n")
    text = CTFDeserializer(tmp_path / "a.ctf", StreamDefs(z=StreamDef(field="z", shape=1)))
    with MinibatchSource([Numbers(timeline="global"), text], randomize=False, max_sweeps=1) as source:
        (minibatch,) = source.minibatches(100)
        assert minibatch.keys_of_sequences.tolist() == [1, 4]
        assert minibatch["z"].values.ravel().tolist() == [1, 4]


def test_opening_fetches_no_chunk_if_the_lengths_are_known():
    named, unnamed = Named(), Numbers(timeline="global")
    for deserializer in (named, unnamed):
        MinibatchSource(deserializer).close()
    assert named.calls == []
    assert unnamed.calls == [0, 1, 2]


def test_a_local_source_fetches_nothing_before_the_first_read():
    deserializer = Numbers()
    with MinibatchSource(deserializer) as source:
        assert deserializer.calls == [] and source.num_chunks == 3
        with pytest.raises(CorpusError, match="not known"):
            source.num_samples  # noqa: B018
        assert source.next_minibatch(1)
        assert deserializer.calls


def test_chunks_without_sequences_are_skipped():
    lengths = [[], [1, 2], [], [3], []]

    class Gaps(OneStream):
        def get_chunk(self, chunk_id):
            given = super().get_chunk(chunk_id)
            return given if self.lengths[chunk_id] else {"x": []}

    for timeline in ("local", "global"):
        for options in ({"randomize": False}, {"randomization_window_in_chunks": 1}, {}):
            with MinibatchSource(Gaps(lengths, timeline=timeline), max_sweeps=2, **options) as source:
                assert sum(minibatch["x"].num_samples for minibatch in source.minibatches(2)) == 12
    with pytest.raises(CorpusError, match="nothing to read"):
        MinibatchSource(Gaps([[], []], timeline="global"))
    with MinibatchSource(Gaps([[], []])) as source:
        assert source.next_minibatch(3) == {}


def test_keys_on_the_local_timeline_are_chunk_and_index():
    with MinibatchSource(Numbers(), randomize=False, max_sweeps=1) as source:
        (minibatch, *_) = source.minibatches(100)
        assert minibatch.keys_of_sequences.tolist() == ["0:0", "0:1", "1:0", "2:0", "2:1", "2:2"]


def test_only_the_defining_stream_counts():
    class Defined(Numbers):
        def stream_infos(self):
            x, _ = super().stream_infos()
            return [x, StreamInformation("y", 1, "sparse", np.float32, (9,), defines_mb_size=True)]

    for timeline in ("local", "global"):
        with MinibatchSource(Defined(timeline=timeline), randomize=False, max_sweeps=1) as source:
            assert [len(minibatch["y"]) for minibatch in source.minibatches(4)] == [4, 2]


def test_samples_of_a_single_array_are_sequences():
    class Plain(Numbers):
        def get_chunk(self, chunk_id):
            matrix = sparse.csr_array(np.diag(np.arange(1, 10, dtype=np.float32)))[:4]
            return {"x": np.arange(8, dtype=np.float64).reshape(4, 2), "y": matrix}

    with MinibatchSource(Plain(), randomize=False, max_sweeps=1) as source:
        minibatch = source.next_minibatch(4)
        assert minibatch["x"].lengths.tolist() == minibatch["y"].lengths.tolist() == [1, 1, 1, 1]
        assert minibatch["x"].values.dtype == np.float32 and minibatch["x"].values[3].tolist() == [6, 7]
        assert minibatch["y"].tocsr().toarray()[3, :5].tolist() == [0, 0, 0, 4, 0]


def test_streams_of_float64_keep_their_precision():
    class Doubles(OneStream):
        def stream_infos(self):
            return [StreamInformation("x", 0, "dense", np.float64, (2,))]

        def get_chunk(self, chunk_id):
            return {"x": np.array([[0.1, 1e300]])}

    with MinibatchSource(Doubles()) as source:
        assert source.next_minibatch(1)["x"].values.tolist() == [[0.1, 1e300]]


def csr(*shape: int, **options: Any) -> Any:
    return sparse.csr_matrix(np.ones(shape), **options)


X = np.zeros((2, 2), np.float32)
Y = csr(2, 9, dtype=np.float32)
OUTSIDE = sparse.csr_matrix((np.ones(2), np.array([3, 4]), np.array([0, 1, 2])), shape=(2, 9))
OUTSIDE.indices[1] = 9


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        ({"x": X}, "Bad, chunk 0: no stream 'y'; there are: 'x'"),
        ({"x": X, "y": Y, "z": X}, "chunk 0: 'z' is not one of the streams 'x', 'y'"),
        ([X, Y], "returned list; expected a dict"),
        (None, "returned NoneType; expected a dict"),
        ({"x": X[:, :1], "y": Y}, "chunk 0, stream 'x': an array of shape (2, 1), but samples have the shape (2,)"),
        ({"x": [X, X[0]], "y": Y}, "chunk 0, stream 'x', sequence 1: an array of shape (2,)"),
        ({"x": np.float32(3), "y": Y}, "stream 'x': got float32"),
        ({"x": X, "y": X}, "stream 'y': got ndarray; a sparse stream"),
        ({"x": Y, "y": Y}, "stream 'x': got csr; a dense stream"),
        ({"x": X, "y": Y.tocsc()}, "stream 'y': got csc"),
        ({"x": X, "y": csr(2, 8)}, "stream 'y': a matrix of shape (2, 8), but the dimension is 9"),
        ({"x": X, "y": [Y, OUTSIDE]}, "stream 'y', sequence 1: index 9, but the dimension is 9"),
        ({"x": X.astype(np.int64), "y": Y}, "stream 'x': values of type int64; expected float32"),
        ({"x": X, "y": Y.astype(np.int32)}, "stream 'y': values of type int32; expected float32"),
        ({"x": X, "y": Y[:1]}, "chunk 0: stream 'x' has 2 sequences, but stream 'y' has 1"),
    ],
)
@pytest.mark.parametrize("timeline", ["local", "global"])
def test_refuses_chunks_that_do_not_fit_the_streams(chunk, message, timeline):
    class Bad(Numbers):
        def get_chunk(self, chunk_id):
            return chunk

    with pytest.raises(CorpusError) as error, MinibatchSource(Bad(timeline=timeline)) as source:
        source.next_minibatch(1)
    assert message in str(error.value)


DENSE = ("x", 0, "dense", np.float32, (1,))


@pytest.mark.parametrize(
    ("infos", "num_chunks", "timeline", "message"),
    [
        ([], 1, "local", "no streams"),
        (["x"], 1, "local", "expected StreamInformation objects"),
        ([StreamInformation(*DENSE)] * 2, 1, "local", "two streams have the name 'x'"),
        ([StreamInformation("x", 0, "dense", np.uint8, (1,))], 1, "local", "dtype uint8"),
        ([StreamInformation("x", 0, "dense", np.float32, (0,))], 1, "global", "shape (0,)"),
        ([StreamInformation(*DENSE)], 0, "local", "num_chunks() returned 0"),
        ([StreamInformation(*DENSE)], 1.5, "global", "num_chunks() returned 1.5"),
        ([StreamInformation(*DENSE)], 1, "other", "timeline='other'"),
        (
            [StreamInformation(*DENSE, True), StreamInformation("y", 1, "dense", np.float32, (1,), True)],
            1,
            "local",
            "only a single stream may define the minibatch size, but these do: 'x', 'y'",
        ),
    ],
)
def test_refuses_impossible_streams_and_numbers_of_chunks(infos, num_chunks, timeline, message):
    class Bad(Numbers):
        def stream_infos(self):
            return infos

        def num_chunks(self):
            return num_chunks

    with pytest.raises(ConfigError) as error:
        MinibatchSource(Bad(timeline=timeline))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("chunk_lengths", [1, 0], "expected whole numbers, each at least 1"),
        ("chunk_lengths", [1.5, 2], "expected whole numbers, each at least 1"),
        ("chunk_lengths", [2**32], "expected whole numbers, each at least 1"),
        ("get_keys", [1], "2 sequences, but get_keys() returned [1]"),
        ("get_keys", [1, -1], "expected whole numbers from 0, or texts"),
        ("get_keys", [0.5, 1.5], "expected whole numbers from 0, or texts"),
    ],
)
def test_refuses_impossible_lengths_and_keys(method, given, message):
    deserializer = Numbers([[2, 1]], timeline="global")
    setattr(deserializer, method, lambda chunk_id: given)
    with pytest.raises(CorpusError) as error:
        MinibatchSource(deserializer)
    assert message in str(error.value)


def test_refuses_chunks_with_other_lengths_than_announced():
    class Wrong(Numbers):
        timeline = "global"

        def chunk_lengths(self, chunk_id):
            return [[2, 2], [3], [1, 1, 2]][chunk_id]

    with pytest.raises(CorpusError, match="chunk 0, sequence 1: it counts for 1 sample, but 2 were announced"):
        MinibatchSource(Wrong(), randomize=False).next_minibatch(1)


def test_refuses_to_join_a_deserializer_on_the_local_timeline():
    class Other(OneStream):
        def stream_infos(self):
            return [StreamInformation("z", 0, "dense", np.float32, (2,))]

    for deserializers in ([Named(), Other()], [Other(), Named()]):
        with pytest.raises(ConfigError, match=r"Other has a timeline of its own .* timeline='global'"):
            MinibatchSource(deserializers)


@pytest.mark.parametrize(
    "checkpoint",
    [{}, {"minibatchSourcePosition": 3}, {"baseSweepCount": 0, "baseSampleCount": -1}],
)
def test_refuses_checkpoints_of_another_kind(checkpoint):
    with MinibatchSource(Numbers()) as source, pytest.raises(CheckpointError):
        source.restore_from_checkpoint(checkpoint)
    with MinibatchSource(Numbers(), randomize=False) as source:
        state = {**source.get_checkpoint_state(), "currentChunkPosition": 3}
        with pytest.raises(CheckpointError, match="continues at chunk 3, but this corpus has 3 chunks"):
            source.restore_from_checkpoint(state)


def test_refuses_states_of_the_other_timeline():
    with MinibatchSource(Numbers()) as local, MinibatchSource(Numbers(timeline="global")) as other:
        for one, two in ((local, other), (other, local)):
            with pytest.raises(CheckpointError, match="timeline"):
                one.load_state_dict(two.state_dict())


# ------------------------------------------------------------------------------------------------------- life


class Broken(Numbers):
    """The last chunk cannot be fetched while `is_broken` is set."""

    is_broken = True

    def chunk_lengths(self, chunk_id):
        return self.lengths[chunk_id]

    def get_chunk(self, chunk_id):
        if self.is_broken and chunk_id == len(self.lengths) - 1:
            raise ZeroDivisionError("no such chunk today")
        return super().get_chunk(chunk_id)


@pytest.mark.parametrize("timeline", ["local", "global"])
def test_an_exception_of_get_chunk_surfaces_in_the_read_that_needs_it(timeline):
    broken = Broken(timeline=timeline)
    with MinibatchSource(broken, randomize=False, max_sweeps=1) as source:
        assert [source.next_minibatch(3)["x"].num_samples for _ in range(2)] == [3, 3]
        state = source.get_checkpoint_state()
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="no such chunk today"):
                source.next_minibatch(3)
        assert source.get_checkpoint_state() == state
        broken.is_broken = False
        assert [minibatch["x"].num_samples for minibatch in source.minibatches(3)] == [2, 2]


def test_only_one_thread_at_a_time_fetches_chunks():
    threads: set[str] = set()

    class Alone(Numbers):
        lock = threading.Lock()

        def get_chunk(self, chunk_id):
            assert self.lock.acquire(blocking=False)
            try:
                threads.add(threading.current_thread().name)
                threading.Event().wait(0.002)
                return super().get_chunk(chunk_id)
            finally:
                self.lock.release()

    with MinibatchSource(Alone([[1, 2]] * 20), max_sweeps=1, randomization_window_in_chunks=2) as source:
        assert sum(minibatch["x"].num_samples for minibatch in source.minibatches(3)) == 60
    assert len(threads) > 1


def test_a_chunk_in_memory_is_not_fetched_again():
    deserializer = Numbers()
    with MinibatchSource(deserializer, max_sweeps=50) as source:
        assert len(all_of(source, 4)) > 50
    assert sorted(deserializer.calls) == [0, 1, 2]


def test_a_pickled_source_continues():
    for timeline in ("local", "global"):
        source = MinibatchSource(Numbers(timeline=timeline), max_sweeps=2, randomization_window_in_chunks=2)
        source.next_minibatch(3)
        again = pickle.loads(pickle.dumps(source))
        assert all_of(again, 3) == all_of(source, 3)
        source.close()
        again.close()


def all_of_in_a_fork(source: MinibatchSource, size: int, begin: Callable[[], None] = lambda: None) -> Any:
    """Return all minibatches that a fork of this process reads after it has called `begin`."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        begin()
        with os.fdopen(sender, "w") as pipe:
            json.dump(all_of(source, size), pipe)
        os._exit(0)
    os.close(sender)
    with os.fdopen(receiver) as pipe:
        found = json.load(pipe)
    os.waitpid(child, 0)
    return found


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_continues():
    with MinibatchSource(Numbers([[1, 2]] * 9), max_sweeps=2, randomization_window_in_chunks=2) as source:
        source.next_minibatch(4)
        found = all_of_in_a_fork(source, 4)
        assert found == all_of(source, 4)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("timeline", ["local", "global"])
def test_a_fork_continues_while_another_thread_of_its_parent_reads(timeline):
    class Slow(Named):
        def get_chunk(self, chunk_id):
            begun.set()
            assert may_continue.wait(60)
            return super().get_chunk(chunk_id)

    begun, may_continue = threading.Event(), threading.Event()
    with MinibatchSource(Slow(timeline=timeline), max_sweeps=2) as source:
        thread = threading.Thread(target=source.next_minibatch, args=(4,))
        thread.start()
        assert begun.wait(60)
        found = all_of_in_a_fork(source, 4, may_continue.set)
        may_continue.set()
        thread.join()
        assert found[1:] == all_of(source, 4), "the thread read the first minibatch"
        with MinibatchSource(Named(timeline=timeline), max_sweeps=2) as fresh:
            assert found == all_of(fresh, 4)

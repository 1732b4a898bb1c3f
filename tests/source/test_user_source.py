"""Sources written in Python, and the source of arrays in memory."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cntkio import CheckpointError, ConfigError, CorpusError, StreamInformation
from cntkio.timeline import FULL_DATA_SWEEP
from cntkio.user_source import MinibatchSourceFromData, UserMinibatchSource
from scipy import sparse
from support.user_formats import plain_data


def values(minibatch: Any, name: str) -> list[Any]:
    return minibatch[name].values.ravel().tolist()


def test_arrays_are_read_in_order_and_repeatedly():
    source = MinibatchSourceFromData({"x": np.arange(5, dtype=np.float32), "y": sparse.csr_matrix(np.eye(5))})
    assert source.is_infinite() and not source.streams.x.is_sparse and source["y"].is_sparse
    assert source["y"].dtype == np.float64 and source["x"].shape == (1,)
    found = [source.next_minibatch(2) for _ in range(4)]
    assert [values(minibatch, "x") for minibatch in found] == [[0, 1], [2, 3], [4], [0, 1]]
    assert [minibatch["x"].end_of_sweep for minibatch in found] == [False, False, True, False]
    assert found[1]["y"].indices.tolist() == [2, 3] and found[1].keys_of_sequences.tolist() == [2, 3]
    assert source.get_checkpoint_state() == {"cursor": 2, "total_num_samples": 7}


def test_sequences_are_read_whole_while_they_fit():
    sequences = [np.full((length, 2), length, np.float32) for length in (1, 2, 4, 1)]
    source = MinibatchSourceFromData({"x": sequences, "n": [1, 2, 3, 4]}, max_samples=FULL_DATA_SWEEP)
    assert [len(minibatch["x"]) for minibatch in iter(lambda: source.next_minibatch(3), {})] == [2, 1, 1]
    assert not source.is_infinite() and source.next_minibatch(3) == {}


def test_a_type_determines_how_an_array_is_read():
    kind = SimpleNamespace(shape=(2,), dtype=np.float32, is_sequence=True)
    source = MinibatchSourceFromData({"x": (np.arange(12).reshape(2, 3, 2), kind)})
    data = source.next_minibatch(6)["x"]
    assert data.shape == (2, 3, 2) and data.values.dtype == np.float32 and data.end_of_sweep


def test_the_limit_counts_samples():
    source = MinibatchSourceFromData({"x": np.arange(4)}, max_samples=6)
    found = list(iter(lambda: source.next_minibatch(3), {}))
    assert [values(minibatch, "x") for minibatch in found] == [[0, 1, 2], [3], [0, 1]]
    assert [minibatch["x"].end_of_sweep for minibatch in found] == [False, True, True]


def test_workers_share_a_minibatch_by_slices():
    found = []
    for rank in range(2):
        source = MinibatchSourceFromData({"x": np.arange(6)}, FULL_DATA_SWEEP)
        found.append(
            [values(minibatch, "x") for minibatch in iter(lambda s=source, r=rank: s.next_minibatch(4, 2, r), {})]
        )
    assert found == [[[0, 2], [4]], [[1, 3], [5]]]


def test_arrays_continue_from_a_checkpoint():
    source, again = (MinibatchSourceFromData({"x": np.arange(7)}, max_samples=20) for _ in range(2))
    for _ in range(4):
        source.next_minibatch(3)
    again.current_position = source.current_position
    assert [plain_data(source.next_minibatch(3)) for _ in range(5)] == [
        plain_data(again.next_minibatch(3)) for _ in range(5)
    ]
    for state in ({}, {"cursor": 7, "total_num_samples": 7}, {"cursor": -1, "total_num_samples": 0}):
        with pytest.raises(CheckpointError):
            again.restore_from_checkpoint(state)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({}, ConfigError),
        ({"x": np.arange(3), "y": np.arange(2)}, CorpusError),
        ({"x": "text"}, ConfigError),
        ({"x": np.array(["a"])}, CorpusError),
        ({"x": []}, CorpusError),
        ({"x": np.zeros((0, 2))}, CorpusError),
        ({"x": (np.zeros((2, 3)), SimpleNamespace(shape=(2,)))}, CorpusError),
    ],
)
def test_refuses_arrays_that_do_not_fit(data, error):
    with pytest.raises(error):
        MinibatchSourceFromData(data)


def test_a_source_written_in_python_has_all_members_of_a_source():
    class Empty(UserMinibatchSource):
        def stream_infos(self):
            return [StreamInformation("x", 0, "dense", np.float32, (1,))]

        def next_minibatch(self, num_samples, number_of_workers=1, worker_rank=0, device=None):
            return {}

    source = Empty()
    assert source.get_checkpoint_state() == source.current_position == {}
    assert not source.is_infinite() and source.streams.x == source["x"] == source.stream_info("x")
    source.restore_from_checkpoint({})
    with pytest.raises(NotImplementedError):
        source.restore_from_checkpoint({"a": 1})
    with pytest.raises(ConfigError, match="no stream has the name 'q'; there are: 'x'"):
        source.stream_info("q")

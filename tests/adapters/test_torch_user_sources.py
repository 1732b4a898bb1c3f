"""Sources written in Python, and their minibatches, in PyTorch. (docs/torch.md)"""

import json
from typing import Any

import numpy as np
import pytest
from cntkio import (
    FULL_DATA_SWEEP,
    CheckpointError,
    ConfigError,
    MinibatchData,
    MinibatchSource,
    MinibatchSourceFromData,
    StreamInformation,
    UserMinibatchSource,
)
from support import builders

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from cntkio.torch import MinibatchDataset, convert, gather_state_dict, joined_states  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402


class Counting(UserMinibatchSource):
    """Sequences of one sample, the numbers from 0 below 12; each minibatch is a dict by stream description."""

    def __init__(self) -> None:
        self._next = 0

    def stream_infos(self) -> list[StreamInformation]:
        return [StreamInformation("x", 0, "dense", np.float32, (1,))]

    def next_minibatch(
        self, num_samples: int, number_of_workers: int = 1, worker_rank: int = 0, device: object = None
    ) -> dict[Any, MinibatchData]:
        begin, self._next = self._next, min(self._next + num_samples, 12)
        if begin == self._next:
            return {}
        numbers = np.arange(begin + worker_rank, self._next, number_of_workers, dtype=np.float32)
        return {self["x"]: MinibatchData(self["x"], numbers[:, None], np.arange(len(numbers) + 1))}

    def get_checkpoint_state(self) -> dict[str, Any]:
        return {"next": self._next}

    def restore_from_checkpoint(self, state: Any) -> None:
        self._next = state["next"]


def from_data() -> MinibatchSourceFromData:
    return MinibatchSourceFromData({"x": np.arange(12, dtype=np.float32)}, FULL_DATA_SWEEP)


def numbers(minibatches: Any) -> list[list[int]]:
    return [minibatch["x"].values.flatten().int().tolist() for minibatch in minibatches]


WHOLE = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_a_dict_of_an_input_map_becomes_tensors_by_its_keys(tmp_path: Any) -> None:
    (tmp_path / "a.ctf").write_bytes(builders.corpus_text([2, 1]))
    source: MinibatchSource = builders.source_of(tmp_path / "a.ctf", randomize=False, max_sweeps=1)
    minibatch = source.next_minibatch(3, input_map={"features": source.streams.x, 7: source.streams.s})
    tensors = convert(minibatch, layout={"features": "padded", 7: "csr"})
    assert list(tensors) == ["features", 7] and tensors["features"].lengths.tolist() == [2, 1]
    assert tensors[7].layout == torch.sparse_csr and tensors.num_sequences == 2
    assert tensors.to("cpu").keys_of_sequences.tolist() == [0, 1]  # numbers, since a dict has no keys


def test_minibatches_of_user_sources_become_tensors() -> None:
    for source in (Counting(), from_data()):
        tensors = convert(source.next_minibatch(4), layout="padded")
        assert list(tensors) == ["x"] and tensors["x"].values.flatten().tolist() == [0, 1, 2, 3]
    assert len(convert({})) == 0


@pytest.mark.parametrize("make", [Counting, from_data])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_set_reads_user_sources_again_and_again(make: Any, num_workers: int) -> None:
    loader = DataLoader(MinibatchDataset(make(), 4), batch_size=None, num_workers=num_workers)
    assert numbers(loader) == numbers(loader)
    assert sorted(sum(numbers(loader), [])) == list(range(12))
    if not num_workers:
        assert numbers(loader) == WHOLE


@pytest.mark.parametrize("make", [Counting, from_data])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_set_of_a_user_source_resumes(make: Any, num_workers: int) -> None:
    def loader() -> Any:
        return DataLoader(MinibatchDataset(make(), 4), batch_size=None, num_workers=num_workers)

    first = loader()
    running = iter(first)
    begin = numbers([next(running)])
    state = json.loads(json.dumps(first.dataset.state_dict()))
    second = loader()
    second.dataset.load_state_dict(state)
    assert begin + numbers(second) == numbers(loader())


def test_ranks_share_the_minibatches_of_a_user_source_as_in_cntk() -> None:
    ranks = [MinibatchDataset(Counting(), 4, rank=rank, world_size=2) for rank in range(2)]
    assert ranks[0].partition == "cntk"
    running = [iter(rank) for rank in ranks]
    assert [numbers([next(rank)]) for rank in running] == [[[0, 2]], [[1, 3]]]
    state = joined_states([rank.state_dict() for rank in ranks])
    again = MinibatchDataset(Counting(), 4, rank=1, world_size=2)
    again.load_state_dict(state)
    assert numbers(again) == [[5, 7], [9, 11]]
    with pytest.raises(CheckpointError, match="the states are of 2 ranks, but this job has 1"):
        MinibatchDataset(Counting(), 4).load_state_dict(state)


def test_user_sources_refuse_what_needs_a_timeline() -> None:
    with pytest.raises(ConfigError, match="partition='global' needs a MinibatchSource; a Counting divides"):
        MinibatchDataset(Counting(), 4, partition="global")
    with pytest.raises(ConfigError, match="epochs need a MinibatchSource"):
        MinibatchDataset(Counting(), 4).set_epoch(1)
    state = gather_state_dict(MinibatchDataset(Counting(), 4))
    with pytest.raises(
        CheckpointError, match="saved {'source': 'Counting'}, here {'source': 'MinibatchSourceFromData'}"
    ):
        MinibatchDataset(from_data(), 4).load_state_dict(state)


def test_a_data_set_prints_what_it_delivers() -> None:
    assert repr(MinibatchDataset(Counting(), 4, layout="padded", rank=1, world_size=3)).splitlines() == [
        "MinibatchDataset: minibatches of 4 samples, partition 'cntk', rank 1 of 3, epoch 0",
        "  x  dense float32 [1]  padded",
    ]

"""`Sequences` as a map-style data set of PyTorch."""

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import CTFDeserializer, Sequences, StreamDef, StreamDefs

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
data = torch.utils.data
convert = pytest.importorskip("cntkio.torch").convert

STREAMS = StreamDefs(x=StreamDef(field="x", shape=2), y=StreamDef(field="y", shape=5, is_sparse=True))
NUM_SEQUENCES = 50


@pytest.fixture
def sequences(tmp_path: Path) -> Sequences:
    """Sequences of one sample."""
    (tmp_path / "a.ctf").write_text("".join(f"{key} |x {key} 2 |y {key % 5}:1\n" for key in range(NUM_SEQUENCES)))
    return Sequences(CTFDeserializer(tmp_path / "a.ctf", STREAMS, chunk_size_in_bytes=200), layout={"y": "ids"})


def keys_of(batches: Any) -> list[int]:
    return [int(key) for batch in batches for key in np.asarray(batch["x"])[:, 0, 0]]


SLOW = pytest.mark.thorough  # each worker imports PyTorch
METHODS = [pytest.param(name, marks=() if name == "fork" else SLOW) for name in multiprocessing.get_all_start_methods()]


@pytest.mark.parametrize("context", [None, *METHODS])
def test_workers_of_a_loader_read_each_sequence_once(sequences: Sequences, context: str | None) -> None:
    sequences[3]  # opens what workers must not share
    options = {} if context is None else {"num_workers": 2, "multiprocessing_context": context}
    batches = list(data.DataLoader(sequences, batch_size=8, shuffle=True, **options))
    assert sorted(keys_of(batches)) == [*range(NUM_SEQUENCES)] != keys_of(batches)
    assert batches[0]["x"].shape == (8, 1, 2) and batches[0]["y"].shape == (8, 1)
    assert all((batch["x"][:, :, 0] % 5 == batch["y"]).all() for batch in batches)


def test_loaders_pass_sequences_in_the_order_of_their_sampler(sequences: Sequences) -> None:
    order = torch.randperm(NUM_SEQUENCES).tolist()
    assert keys_of(data.DataLoader(sequences, batch_size=7, sampler=order, collate_fn=listed)) == order
    assert keys_of(data.DataLoader(data.Subset(sequences, order), batch_size=7)) == order
    both = data.DataLoader(data.StackDataset(one=sequences, other=sequences), batch_size=7, sampler=order)
    assert keys_of(batch["other"] for batch in both) == order
    assert (
        keys_of({"x": sequence["x"][None]} for sequence in data.DataLoader(sequences, batch_size=None, sampler=order))
        == order
    )


def listed(batch: list[dict[str, Any]]) -> dict[str, Any]:
    """A collate function as programs have it: it takes a list of sequences."""
    assert isinstance(batch, list) and list(batch[0]) == ["x", "y"]
    return {"x": np.stack([sequence["x"] for sequence in batch])}


def test_minibatches_of_a_batch_sampler_become_tensors(sequences: Sequences) -> None:
    batches = torch.utils.data.BatchSampler(range(NUM_SEQUENCES), 20, drop_last=False)
    loader = torch.utils.data.DataLoader(sequences, batch_size=None, sampler=batches, collate_fn=convert)
    read = list(loader)
    assert [minibatch.num_sequences for minibatch in read] == [20, 20, 10]
    assert torch.cat([minibatch["x"].values for minibatch in read])[:, 0].tolist() == [*range(NUM_SEQUENCES)]
    assert read[2].keys_of_sequences.tolist() == [*range(40, 50)]

"""Minibatches as PyTorch tensors, and a source as a PyTorch data set. (docs/torch.md)

::

    MinibatchSource ── read(size, partition) ──> Minibatch ── convert ──> TensorMinibatch
                              ^                                 tensors over the same memory, created on access
            rank of world size, worker of workers

    tensors.py   tensors of a minibatch, or of a batch of rows
    dataset.py   a source as a data set: epochs, shares, states; the state of a job
    ranks.py     the rank of this process, what all ranks have in common, their states as one
    workers.py   states for the workers of a loader, and their positions
    trainers.py  trainers that read ahead, or divide the data again

Invariants: the timeline decides which data come in which order. A data set has no position of its own: its state is its
source's state, with rank and worker.
"""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    what = f"cntkio.torch needs {error.name}, which is not installed: pip install torch"
    raise ModuleNotFoundError(what, name=error.name) from None

from cntkio.torch.dataset import JobState, MinibatchDataset, gather_state_dict
from cntkio.torch.ranks import Place, joined_states, place_in_mesh
from cntkio.torch.tensors import Collate, Layout, Padded, PaddedEmpty, Ragged, TensorMinibatch, Truncated, convert

__all__ = [
    "Collate", "JobState", "Layout", "MinibatchDataset", "Padded", "PaddedEmpty", "Place", "Ragged", "TensorMinibatch",
    "Truncated", "convert", "gather_state_dict", "joined_states", "place_in_mesh",
]  # fmt: skip

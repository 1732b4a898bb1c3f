"""The data, the network and the loss of the programs in this folder. (docs/trainers.md)"""

import torch
import torch.distributed as ranks
from cntkio import Budget, CTFDeserializer, MinibatchSource, Mixture, StreamDef, StreamDefs
from cntkio.torch import MinibatchDataset, TensorMinibatch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

STREAMS = StreamDefs(
    words=StreamDef(field="w", shape=1323, is_sparse=True), casings=StreamDef(field="c", shape=3, is_sparse=True)
)
SIZES = {
    "samples": 512,
    "mixture": 512,
    "budget": Budget(padded=1024, oversize="alone", pool=200),
    "rows": Budget(rows=4, row_length=256, pool=200),
}


def source(kind: str) -> MinibatchSource | Mixture:
    """Return an endless source of a book, or a mixture of its two parts."""
    train, test = (
        MinibatchSource(CTFDeserializer(f"examples/alice/{part}.ctf", STREAMS)) for part in ("train", "test")
    )
    return Mixture({"train": (train, 0.8), "test": (test, 0.2)}, stop="forever") if kind == "mixture" else train


def book(kind: str) -> MinibatchDataset:
    """Return the data set of a kind: `samples`, `mixture`, `budget` or `rows`."""
    layout = "rows" if kind == "rows" else "padded_ids"
    return MinibatchDataset(source(kind), SIZES[kind], layout=layout, partition="global")


def tagger() -> nn.Module:
    """Return a small network that scores the capitals of words."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(1323, 16), nn.Linear(16, 3)).double()


def total_loss(model: nn.Module, minibatch: TensorMinibatch) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses of this rank's words, and their number."""
    words, classes = minibatch["words"], minibatch["casings"]
    if "segment_ids" in minibatch:
        mask = minibatch["segment_ids"] > 0
    else:
        mask, words, classes = words.mask, words.values, classes.values
    return cross_entropy(model(words)[mask], classes[mask].long(), reduction="sum"), mask.sum()


def losses(model: nn.Module, minibatch: TensorMinibatch) -> tuple[Tensor, float]:
    """Return the loss to differentiate on this rank, and the mean loss of the words of all ranks."""
    loss, words = total_loss(model, minibatch)
    total = torch.stack([loss.detach(), words])
    count = 1
    if ranks.is_initialized():
        count = ranks.get_world_size()
        ranks.all_reduce(total)
    return loss * count / total[1], float(total[0] / total[1])  # trainers take the mean of the ranks' gradients

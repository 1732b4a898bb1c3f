"""A transformer on packed rows predicts the capitals of a book's words, on any number of ranks. (docs/training.md)"""

from pathlib import Path

import torch
import torch.distributed as ranks
from cntkio import Budget, CTFDeserializer, GlobalPartition, MinibatchSource, infer_streams, packed
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

TEXT = "examples/alice/train.ctf"
ROWS, LENGTH, HEADS, WIDTH = 6, 256, 4, 32


class Transformer(nn.Module):
    """A layer of attention, in which words attend to the words of their own paragraph only."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(1323, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.project, self.classes = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, words: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        embedded = self.words(words) + self.places(positions)
        queries, keys, values = self.project(embedded).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        is_same = segments[:, None, :, None] == segments[:, None, None, :]
        attended = scaled_dot_product_attention(queries, keys, values, attn_mask=is_same)
        scores: Tensor = self.classes(embedded + attended.transpose(1, 2).flatten(2))
        return scores


ranks.init_process_group("gloo")  # with GPUs: "nccl"
torch.manual_seed(1)
rank, count = ranks.get_rank(), ranks.get_world_size()
source = MinibatchSource(CTFDeserializer(TEXT, infer_streams(TEXT), cache_index=True), max_sweeps=2)
size = Budget(rows=ROWS, row_length=LENGTH, pool=700)
network = Transformer()
model = nn.parallel.DistributedDataParallel(network)
optimizer = torch.optim.Adam(model.parameters(), 0.02)
step = 0
if Path("transformer.pt").exists():
    saved = torch.load("transformer.pt")
    step = saved["step"]
    network.load_state_dict(saved["network"])
    optimizer.load_state_dict(saved["optimizer"])
    source.load_state_dict(saved["data"])
ranks.barrier()  # no rank saves before all ranks have loaded

while (minibatch := source.read(size, GlobalPartition(rank, count))) is not None:
    step += 1
    rows = packed(minibatch, LENGTH, rows=ROWS // count)
    words, casings = torch.from_numpy(rows.values["w"]), torch.from_numpy(rows.values["c"]).long()
    positions, segments = torch.from_numpy(rows.position_ids), torch.from_numpy(rows.segment_ids)
    scores = model(words, positions, segments)
    loss = cross_entropy(scores[segments > 0], casings[segments > 0], reduction="sum")
    total = torch.stack([loss.detach(), (segments > 0).sum()])
    ranks.all_reduce(total)  # the losses and the words of all ranks
    optimizer.zero_grad()
    (loss * count / total[1]).backward()  # DDP takes the mean of the ranks' gradients
    optimizer.step()
    if step % 5 == 0 and rank == 0:
        states = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "data": source.state_dict()}
        torch.save({"step": step, **states}, "transformer.new")
        Path("transformer.new").replace("transformer.pt")  # whole, or not at all
        print(f"step {step}: {int(total[1])} words, loss {total[0] / total[1]:.3f}", flush=True)
ranks.destroy_process_group()

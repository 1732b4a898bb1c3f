"""Predict the capitals of a book's words, on any number of ranks. (docs/training.md)"""

from pathlib import Path

import torch
import torch.distributed as ranks
from cntkio import CTFDeserializer, MinibatchSource, infer_streams
from cntkio.torch import MinibatchDataset

TEXT = "examples/alice/train.ctf"

ranks.init_process_group("gloo")  # with GPUs: "nccl"
torch.manual_seed(1)
source = MinibatchSource(CTFDeserializer(TEXT, infer_streams(TEXT), cache_index=True), max_sweeps=2)
dataset = MinibatchDataset(source, 2048, layout="padded_ids")
network = torch.nn.Sequential(torch.nn.Embedding(1323, 16), torch.nn.Linear(16, 3))
model = torch.nn.parallel.DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), 1.0)
first = 1
if Path("job.pt").exists():
    saved = torch.load("job.pt")
    first = saved["step"] + 1
    network.load_state_dict(saved["network"])
    dataset.load_state_dict(saved["data"])
ranks.barrier()  # no rank saves before all ranks have loaded

for step, minibatch in enumerate(dataset, first):
    words, classes = minibatch["w"], minibatch["c"].values
    scores = model(words.values)[words.mask]
    loss = torch.nn.functional.cross_entropy(scores, classes[words.mask].long(), reduction="sum")
    total = torch.stack([loss.detach(), words.mask.sum()])
    ranks.all_reduce(total)  # the losses and the words of all ranks
    optimizer.zero_grad()
    (loss * ranks.get_world_size() / total[1]).backward()  # DDP takes the mean of the ranks' gradients
    optimizer.step()
    if step % 5 == 0 and ranks.get_rank() == 0:
        torch.save({"step": step, "network": network.state_dict(), "data": dataset.state_dict()}, "job.new")
        Path("job.new").replace("job.pt")  # whole, or not at all
        print(f"step {step}: {int(total[1])} words, loss {total[0] / total[1]:.3f}", flush=True)
ranks.destroy_process_group()

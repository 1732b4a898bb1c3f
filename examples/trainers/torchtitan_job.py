"""A loader of torchtitan, saved by DCP, on any number of ranks: torchtitan_job.py KIND STEPS. (docs/trainers.md)"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as ranks
import torch.distributed.checkpoint as dcp
from book import book, losses, tagger
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torchtitan.components.dataloader import BaseDataLoader


class BookLoader(BaseDataLoader):
    """The data set as torchtitan's trainer takes it. Its state is a text, the same on all ranks."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        for minibatch in self.dataset:
            yield {"input": minibatch}, minibatch["casings"]

    def state_dict(self):
        return {"dataset": json.dumps(self.dataset.state_dict())}

    def load_state_dict(self, state):
        self.dataset.load_state_dict(json.loads(state["dataset"]))


ranks.init_process_group("gloo")
loader = BookLoader(book(sys.argv[1]))
network = tagger()
model = torch.nn.parallel.DistributedDataParallel(network)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
folder = Path("torchtitan")
first = max((int(saved.parent.name) for saved in folder.glob("*/.metadata")), default=0)
if first:
    weights, moments = get_state_dict(network, optimizer)
    dcp.load({"model": weights, "optimizer": moments, "dataloader": loader}, checkpoint_id=folder / str(first))
    set_state_dict(network, optimizer, model_state_dict=weights, optim_state_dict=moments)
ranks.barrier()  # no rank saves before all ranks have looked

for step, (inputs, _labels) in enumerate(loader, first + 1):
    loss, mean = losses(model, inputs["input"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if ranks.get_rank() == 0:
        print(f"step {step}: loss {mean:.9f}", flush=True)
    if step % 5 == 0:
        weights, moments = get_state_dict(network, optimizer)
        dcp.save({"model": weights, "optimizer": moments, "dataloader": loader}, checkpoint_id=folder / str(step))
    if step == int(sys.argv[2]):
        break
ranks.destroy_process_group()

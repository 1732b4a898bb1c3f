"""Train with Accelerate, and resume on any number of ranks: accelerate_job.py KIND STEPS. (docs/trainers.md)"""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from book import book, losses, tagger
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True)
dataset, network = book(sys.argv[1]), tagger()
loader = DataLoader(dataset, batch_size=None)  # not prepared: Accelerate would divide each minibatch again
model, optimizer = accelerator.prepare(network, torch.optim.Adam(network.parameters(), 0.01))
accelerator.register_for_checkpointing(dataset)

folder = Path("accelerate")
first = max((int(saved.name) for saved in folder.glob("[0-9]*")), default=0)
if first:
    accelerator.load_state(folder / str(first))
accelerator.wait_for_everyone()

for step, minibatch in enumerate(loader, first + 1):
    loss, mean = losses(model, minibatch.to(accelerator.device))
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    accelerator.print(f"step {step}: loss {mean:.9f}", flush=True)
    if step % 5 == 0:
        accelerator.save_state(folder / "new")
        if accelerator.is_main_process:
            (folder / "new").rename(folder / str(step))  # whole, or not at all
        accelerator.wait_for_everyone()
    if step == int(sys.argv[2]):
        break
accelerator.end_training()

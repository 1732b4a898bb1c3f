"""A process of a job that is killed and resumes from `torch.distributed.checkpoint`. For test_torch_jobs.py.

python tests/adapters/torch_job.py ADDRESS RANK WORLD_SIZE CORPUS CHECKPOINT PARTITION LOADER STEPS

PARTITION is the partition of the data set, or "lanes". It resumes if the checkpoint exists, prints the keys of its
minibatches as JSON, saves a checkpoint after STEPS steps
(0: never), and kills itself in the next step.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import cntkio
import torch
import torch.distributed.checkpoint as dcp
from cntkio.torch import MinibatchDataset, gather_state_dict
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

STREAMS = cntkio.StreamDefs(x=cntkio.StreamDef(field="x", shape=2))


class Reader:
    """A data set with a loader, and one text as the state of both for the whole job."""

    def __init__(self, path: str, partition: Any, kind: str) -> None:
        corpus = cntkio.CTFDeserializer(path, STREAMS, chunk_size_in_bytes=300)
        options = {"partition": "global", "lanes": 8} if partition == "lanes" else {"partition": partition}
        self.dataset = MinibatchDataset(cntkio.MinibatchSource(corpus, max_sweeps=1), 16, **options)
        self.is_stateful = kind == "stateful"
        make = StatefulDataLoader if self.is_stateful else DataLoader
        self.loader = make(self.dataset, batch_size=None, num_workers=0 if kind == "none" else 2)

    def state(self) -> str:
        if not self.is_stateful:
            return json.dumps(gather_state_dict(self.dataset))
        states: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(states, self.loader.state_dict())
        return json.dumps(states)

    def resume(self, text: str) -> None:
        if self.is_stateful:
            self.loader.load_state_dict(json.loads(text)[torch.distributed.get_rank()])
        else:
            self.dataset.load_state_dict(json.loads(text))


def main(
    address: str, rank: str, world_size: str, path: str, checkpoint: str, partition: str, kind: str, steps: str
) -> None:
    torch.distributed.init_process_group("gloo", init_method=address, rank=int(rank), world_size=int(world_size))
    reader = Reader(path, partition, kind)
    has_checkpoint = Path(checkpoint).exists()
    torch.distributed.barrier()  # no rank saves before every rank has looked
    if has_checkpoint:
        saved = {"data": ""}
        dcp.load(saved, checkpoint_id=checkpoint)
        reader.resume(saved["data"])
    minibatches = []
    for step, minibatch in enumerate(reader.loader, start=1):
        minibatches.append(minibatch.keys_of_sequences.tolist())
        if step == int(steps):
            dcp.save({"data": reader.state()}, checkpoint_id=checkpoint)
            print(json.dumps(minibatches), flush=True)
            torch.distributed.barrier()
        elif step == int(steps) + 1 and int(steps):
            os.kill(os.getpid(), signal.SIGKILL)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    print(json.dumps(minibatches))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A replica of a job of torchft, which may leave or come at any step: torchft_job.py KIND STEPS. (docs/trainers.md)"""

import json
import sys
from datetime import timedelta

import torch
from book import book, tagger, total_loss
from torch.distributed import ReduceOp, TCPStore
from torchft import Manager, ProcessGroupGloo


class Replica:
    """The data set, the network and the optimizer of a replica, whose state a new replica gets from another."""

    def __init__(self, kind):
        self.dataset, self.network = book(kind), tagger()
        self.optimizer = torch.optim.Adam(self.network.parameters(), 0.01)
        self.minibatches = iter(self.dataset)

    def state_dict(self):
        parts = {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}
        return parts | {"data": json.dumps(self.dataset.state_dict())}

    def load_state_dict(self, state):
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.go_to(json.loads(state["data"]))

    def go_to(self, position):
        self.dataset.load_state_dict(position)
        self.minibatches = iter(self.dataset)


replica = Replica(sys.argv[1])
weights = [*replica.network.parameters()]
store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
place = {"rank": 0, "world_size": 1, "store_addr": "localhost", "store_port": store.port, "hostname": "localhost"}
states = replica.load_state_dict, replica.state_dict
short, long = timedelta(seconds=4), timedelta(minutes=5)  # Gloo waits five times as long for a peer that was killed
options = {"min_replica_size": 1, "use_async_quorum": False, "timeout": short, "quorum_timeout": long}
manager = Manager(ProcessGroupGloo(short), *states, **options, **place)
while manager.current_step() < int(sys.argv[2]):
    manager.start_quorum()
    before = replica.dataset.state_dict()
    replica.dataset.set_ranks(manager.participating_rank(), manager.num_participants())
    loss, words = total_loss(replica.network, next(replica.minibatches))
    replica.optimizer.zero_grad()
    loss.backward()
    total = torch.stack([loss.detach(), words])
    for sums in (total, *(weight.grad for weight in weights)):
        manager.allreduce(sums, reduce_op=ReduceOp.SUM).wait()
    if manager.should_commit():
        for weight in weights:
            weight.grad /= total[1]
        replica.optimizer.step()
        print(f"step {manager.current_step()}: loss {total[0] / total[1]:.9f}", flush=True)
    else:
        replica.go_to(before)  # the step is taken back
manager.shutdown(wait=False)

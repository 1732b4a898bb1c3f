"""The processes of tests/trainers/test_torchft.py: replicas, which print their shares, and their lighthouse.

They are forks of a process that has imported the packages, because an import takes seconds.
"""

import json
import os
import runpy
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torchft.coordination
from cntkio.torch import MinibatchDataset, TensorMinibatch


def sequences_of(minibatch: TensorMinibatch[Any]) -> list[Any]:
    """Return the key and all values of each sequence."""
    words, casings = minibatch["words"], minibatch["casings"]
    found = []
    for index, key in enumerate(minibatch.keys_of_sequences.tolist()):
        if "segment_ids" in minibatch:
            cells: Any = minibatch["segment_ids"] == index + 1
            values = words[cells], casings[cells]
        else:
            cells = words.mask[index]
            values = words.values[index][cells], casings.values[index][cells]
        found.append([key, *(value.tolist() for value in values)])
    return found


class NotingDataset(MinibatchDataset):
    """A data set that prints each share before it delivers it."""

    def __iter__(self) -> Iterator[TensorMinibatch[Any]]:
        running = super().__iter__()
        while True:
            position = json.dumps(self.state_dict()["source"], sort_keys=True)
            minibatch = next(running, None)
            if minibatch is None:
                return
            rank, count = self.loaded.ranks or (0, 1)
            note = {"position": position, "rank": rank, "count": count, "share": sequences_of(minibatch)}
            print(json.dumps(note), flush=True)
            time.sleep(0.01)  # a step of a larger network, so that replicas come in time for many steps
            yield minibatch


def enter(folder: Path, name: str) -> None:
    """Stand in a folder, with what is printed in its files."""
    os.chdir(folder)
    for stream, suffix in ((sys.stdout, "output"), (sys.stderr, "errors")):
        os.dup2(os.open(f"{name}.{suffix}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream.fileno())


def replica(folder: Path, name: str, lighthouse: str, kind: str, steps: int) -> None:
    """Run the program of the page."""
    enter(folder, name)
    os.environ["TORCHFT_LIGHTHOUSE"] = lighthouse
    torch.set_num_threads(1)
    sys.path.insert(0, "examples/trainers")
    book: Any = __import__("book")
    book.MinibatchDataset = NotingDataset
    sys.argv = ["torchft_job.py", kind, str(steps)]
    runpy.run_path("examples/trainers/torchft_job.py", run_name="__main__")
    os._exit(0)


def lighthouse(folder: Path) -> None:
    """Run the process through which the replicas find each other, and write its address into a file."""
    enter(folder, "lighthouse")
    options = {"join_timeout_ms": 200, "quorum_tick_ms": 20, "heartbeat_timeout_ms": 1000}
    server = torchft.coordination.LighthouseServer(bind="[::]:0", min_replicas=1, **options)
    Path("address.new").write_text(f"http://localhost:{server.address().rsplit(':', 1)[1]}")
    Path("address.new").rename("address")
    time.sleep(3600)

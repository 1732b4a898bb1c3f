"""A process of `torch.distributed` that reads a data set, and prints why it is refused. For test_torch_jobs.py.

python tests/adapters/torch_agreement.py ADDRESS RANK WORLD_SIZE CORPUS JSON
"""

import itertools
import json
import logging
import sys

import cntkio
import torch
from cntkio.torch import MinibatchDataset
from torch.utils.data import DataLoader


def main(address: str, rank: str, world_size: str, path: str, told: str) -> None:
    options = {"seed": 0, "size": 16, "steps": 0, "chunk_size": 300, "partition": None, "workers": 0, "reads": True}
    options.update(json.loads(told))
    if "path" in options:
        path = options["path"]
        logging.basicConfig(stream=sys.stdout, format="%(message)s")

    def new(**ranks: int) -> MinibatchDataset:
        streams = cntkio.StreamDefs(x=cntkio.StreamDef(field="x", shape=2))
        corpus = cntkio.CTFDeserializer(path, streams, chunk_size_in_bytes=options["chunk_size"])
        source = cntkio.MinibatchSource(corpus, max_sweeps=1, randomization_seed=options["seed"])
        return MinibatchDataset(source, options["size"], partition=options["partition"], **ranks)

    earlier = new(rank=int(rank), world_size=int(world_size))
    for _ in itertools.islice(earlier, options["steps"]):
        pass
    torch.distributed.init_process_group("gloo", init_method=address, rank=int(rank), world_size=int(world_size))
    dataset = new()
    if options["steps"]:
        dataset.load_state_dict(earlier.state_dict())
    try:
        if options["reads"]:
            next(iter(DataLoader(dataset, batch_size=None, num_workers=options["workers"])))
    except cntkio.ConfigError as error:
        print(error)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

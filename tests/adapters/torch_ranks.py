"""A process of `torch.distributed`: prints the keys of its minibatches as JSON. For test_torch.py.

python tests/adapters/torch_ranks.py ADDRESS RANK WORLD_SIZE CORPUS PARTITION REMAINDER NUM_WORKERS
"""

import json
import sys
import warnings

import cntkio
import torch
from cntkio.torch import MinibatchDataset
from torch.utils.data import DataLoader

STREAMS = cntkio.StreamDefs(
    x=cntkio.StreamDef(field="x", shape=2), s=cntkio.StreamDef(field="s", shape=1000, is_sparse=True)
)


def main(address: str, rank: str, world_size: str, path: str, partition: str, remainder: str, workers: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=address, rank=int(rank), world_size=int(world_size))
    corpus = cntkio.CTFDeserializer(path, STREAMS, chunk_size_in_bytes=300)
    source = cntkio.MinibatchSource(corpus, max_sweeps=1)
    dataset = MinibatchDataset(source, 16, partition=partition, remainder=remainder)  # type: ignore[arg-type]
    minibatches = []
    for minibatch in DataLoader(dataset, batch_size=None, num_workers=int(workers)):
        # All ranks have the same number of minibatches, so none of them waits forever.
        if partition == "balanced":
            total = torch.tensor([minibatch["x"].values.shape[0]])
            torch.distributed.all_reduce(total)
        minibatches.append(minibatch.keys_of_sequences.tolist())
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    print(json.dumps(minibatches))


if __name__ == "__main__":
    warnings.simplefilter("error")
    main(*sys.argv[1:])

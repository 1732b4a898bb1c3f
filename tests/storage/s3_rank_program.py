"""Print as JSON the keys of each step of a rank that reads a text in S3 with lanes.

python tests/storage/s3_rank_program.py ENDPOINT RANK NUM_RANKS CHUNK_SIZE WINDOW

It opens the text, which has an index next to it, prints a line, waits for a line, and then reads a sweep.
"""

import json
import sys

from cntkio import CTFDeserializer, GlobalPartition, MinibatchSource, Remote, StreamDef, StreamDefs


def main(endpoint: str, rank: int, num_ranks: int, chunk_size: int, window: int) -> None:
    remote = Remote(storage_options={"key": "testing", "secret": "testing", "endpoint_url": endpoint})
    streams = StreamDefs(x=StreamDef(field="x", shape=2))
    corpus = CTFDeserializer("s3://job/a.ctf", streams, chunk_size_in_bytes=chunk_size, cache_index=True, remote=remote)
    order = {"randomization_window_in_chunks": window, "read_ahead_in_bytes": 8 * chunk_size}
    with MinibatchSource(corpus, max_sweeps=1, **order) as source:
        print("open", flush=True)
        sys.stdin.readline()
        partition, steps = GlobalPartition(rank, num_ranks, lanes=8), []
        while (minibatch := source.read(2048, partition)) is not None:
            steps.append(minibatch.keys_of_sequences.tolist())
    print(json.dumps(steps))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))

"""Sweeps of Microsoft CNTK 2.7 on request, one JSON object a line in and out; bench/ctf.py starts it in its Python 3.6.

{"path", "streams": {name: [dimension, sparse]}, "randomize", "size"}  ->  {"seconds", "samples"}
"""

import json
import os
import sys
import time

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what CNTK prints is no answer
import cntk.io  # noqa: E402


def sweep(path, streams, randomize, size):
    start = time.perf_counter()
    defined = {
        name: cntk.io.StreamDef(name, shape=dim, is_sparse=is_sparse) for name, (dim, is_sparse) in streams.items()
    }
    if path.endswith(".cbf"):
        deserializer = cntk.io.CBFDeserializer(path)
    else:
        deserializer = cntk.io.CTFDeserializer(path, cntk.io.StreamDefs(**defined))
    source = cntk.io.MinibatchSource([deserializer], randomize=randomize, max_sweeps=1)
    samples = 0
    minibatch = source.next_minibatch(size)
    while minibatch:
        samples += max(data.num_samples for data in minibatch.values())
        minibatch = source.next_minibatch(size)
    return {"seconds": time.perf_counter() - start, "samples": samples}


for line in sys.stdin:
    answers.write(json.dumps(sweep(**json.loads(line))) + "\n")
    answers.flush()

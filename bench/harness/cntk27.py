"""Sweeps of Microsoft CNTK 2.7 on request: a JSON object per line in and out. The benches start it in its Python 3.6.

text, binary  {"path", "streams": {name: [dimension, sparse]}, "randomize", "size"}        ->  {"seconds", "samples"}
speech        {"folder", "context", "frame_mode", "randomize", "size"}                      ->  the same
"""

import json
import os
import sys
import time
from pathlib import Path

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # CNTK also prints to standard output
import cntk.io  # noqa: E402


def corpus(path, streams):
    if path.endswith(".cbf"):
        return [cntk.io.CBFDeserializer(path)]
    defined = {
        name: cntk.io.StreamDef(name, shape=dim, is_sparse=is_sparse) for name, (dim, is_sparse) in streams.items()
    }
    return [cntk.io.CTFDeserializer(path, cntk.io.StreamDefs(**defined))]


def speech(folder, context):
    features = cntk.io.StreamDef(shape=40, context=tuple(context), scp=str(Path(folder) / "all.scp"))
    labels = cntk.io.StreamDef(shape=500, mlf=str(Path(folder) / "all.mlf"))
    return [
        cntk.io.HTKFeatureDeserializer(cntk.io.StreamDefs(f=features)),
        cntk.io.HTKMLFDeserializer(str(Path(folder) / "states.list"), cntk.io.StreamDefs(l=labels)),
    ]


def sweep(randomize, size, frame_mode=False, **data):
    start = time.perf_counter()
    deserializers = speech(**data) if "folder" in data else corpus(**data)
    source = cntk.io.MinibatchSource(deserializers, randomize=randomize, max_sweeps=1, frame_mode=frame_mode)
    samples = 0
    minibatch = source.next_minibatch(size)
    while minibatch:
        samples += max(data.num_samples for data in minibatch.values())
        minibatch = source.next_minibatch(size)
    return {"seconds": time.perf_counter() - start, "samples": samples}


for line in sys.stdin:
    answers.write(json.dumps(sweep(**json.loads(line))) + "\n")
    answers.flush()

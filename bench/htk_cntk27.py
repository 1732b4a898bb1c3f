"""Sweeps of Microsoft CNTK 2.7 over HTK corpora on request; bench/htk.py starts it in its Python 3.6.

{"folder", "context", "frame_mode", "randomize", "size"}  ->  {"seconds", "samples"}
"""

import json
import os
import sys
import time
from pathlib import Path

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what CNTK prints is no answer
import cntk.io  # noqa: E402


def sweep(folder, context, frame_mode, randomize, size):
    start = time.perf_counter()
    features = cntk.io.StreamDef(shape=40, context=tuple(context), scp=str(Path(folder) / "all.scp"))
    labels = cntk.io.StreamDef(shape=500, mlf=str(Path(folder) / "all.mlf"))
    deserializers = [
        cntk.io.HTKFeatureDeserializer(cntk.io.StreamDefs(f=features)),
        cntk.io.HTKMLFDeserializer(str(Path(folder) / "states.list"), cntk.io.StreamDefs(l=labels)),
    ]
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

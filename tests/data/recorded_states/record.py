"""Record pickles and checkpoints of the installed version, and the minibatches that come next after each.

    PYTHONPATH=tests .venv/bin/python tests/data/recorded_states/record.py REVISION

Commit 96915c5 (version 0.1.0) made the records in this folder. Users may have such states on disk, so do not record
them anew to make a test pass. Record again, into a second file, when a release changes the contents of states.
"""

import base64
import json
import pickle
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import torch
from cntkio.formats import htk, mlf
from cntkio.torch import MinibatchDataset
from support import recorded_states as recorded
from support.recorded_states import CORPORA, DESERIALIZERS, RECORDS, SOURCES

LENGTHS = (3, 5, 1, 4, 7, 2, 6, 11)


def write_corpora() -> None:
    CORPORA.mkdir(exist_ok=True)
    lines = []
    for key in range(30):
        for step in range(1 + key * 7 % 5):
            lines.append(f"{key} |x {key} {step}.5 |s {key}:1 {(key + step) % 50}:{step - 2}")
    Path("first.ctf").write_text("\n".join(lines) + "\n")
    Path("second.ctf").write_text("".join(f"{key} |label {key / 4}\n" for key in reversed(range(2, 40)) if key % 5))
    Path("definer.ctf").write_text(
        "".join(
            f"{key} |x 1 {step}" + " |s" + " 0.25" * 5 * (step == 0) + "\n" for key in range(9) for step in range(2)
        ).replace(" |s\n", "\n")
    )
    cntkio.write_cbf("first.cbf", recorded.ctf(), chunk_size_in_bytes=300)
    frames = [1000 * u + np.arange(n)[:, None] + np.arange(2) / 8 for u, n in enumerate(LENGTHS)]
    named = [(f"u{u}", one) for u, one in enumerate(frames)]
    htk.write_archive("features.ark", "features.scp", named)
    classes = [(f"u{u}", (np.arange(n) // 2 + u) % 3) for u, n in enumerate(LENGTHS)]
    mlf.write_mlf("labels.mlf", classes, ["sil", "aa", "b"])
    mlf.write_mapping("states.list", ["sil", "aa", "b"])
    mlf.write_binary_mlf("labels.bmlf", classes)


def pickled(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value, protocol=4)).decode()


def recorded_source(name: str) -> dict[str, Any]:
    make, request, num_read, before = SOURCES[name]
    with make() as source:
        if before is not None:
            before(source)
        for _ in range(num_read):
            assert recorded.next_minibatch(source, *request)
        record = {
            "pickle": pickled(source),
            "state": json.loads(json.dumps(source.state_dict())),
            "checkpoint": json.loads(json.dumps(source.get_checkpoint_state())),
            "streams": recorded.shown_streams(source),
            "next": recorded.read_on(source, *request),
        }
    with make() as source:  # CNTK's checkpoint keeps less than a state
        source.restore_from_checkpoint(record["checkpoint"])
        record["next after checkpoint"] = recorded.read_on(source, *request)
    return record


def recorded_deserializer(name: str) -> dict[str, Any]:
    deserializer = DESERIALIZERS[name]()
    given = recorded.beside_features(name, deserializer)
    with cntkio.MinibatchSource(given, max_sweeps=1, randomize=False) as source:
        return {
            "pickle": pickled(deserializer),
            "streams": recorded.shown_streams(source),
            "next": recorded.read_on(source, 9, recorded.WHOLE),
        }


def recorded_minibatch(make: Any, size: int) -> dict[str, Any]:
    with make() as source:
        minibatch = source.next_minibatch(size)
        return {name: {"pickle": pickled(data), "shown": recorded.shown_data(data)} for name, data in minibatch.items()}


def recorded_datasets() -> dict[str, Any]:
    found = {}
    for name, (make, options, epoch, num_read) in recorded.DATASETS.items():
        with make() as source:
            dataset = MinibatchDataset(source, 6, **options)
            dataset.set_epoch(epoch)
            reading = iter(dataset)
            for _ in range(num_read):
                next(reading)
            found[name] = {
                "state": json.loads(json.dumps(dataset.state_dict())),
                "next": [recorded.shown_tensors(minibatch) for minibatch in reading],
            }
    return found


def in_lines(value: Any, depth: int = 3) -> str:
    """JSON with a line for each entry of the outer levels, so that a difference shows where it is."""
    if depth == 0 or not isinstance(value, dict):
        return json.dumps(value)
    return "{" + ",".join(f"\n{json.dumps(key)}: {in_lines(inner, depth - 1)}" for key, inner in value.items()) + "\n}"


def main(revision: str) -> None:
    with recorded.beside_corpora():
        write_corpora()
        records = {
            "recorded by": f"commit {revision}, version {version('cntkio')}, NumPy {np.__version__}, PyTorch "
            f"{torch.__version__}, Python {sys.version.split()[0]}",
            "objects": {name: pickled(value) for name, value in recorded.objects().items()},
            "deserializers": {name: recorded_deserializer(name) for name in DESERIALIZERS},
            "minibatches": {
                "of sequences": recorded_minibatch(SOURCES["in order"][0], 7),
                "truncated": recorded_minibatch(SOURCES["truncated"][0], 6),
            },
            "sources": {name: recorded_source(name) for name in SOURCES},
            "datasets": recorded_datasets(),
        }
    RECORDS.write_text(in_lines(records) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if not CORPORA.parent.is_dir() or len(sys.argv) != 2:
        sys.exit(__doc__)
    CORPORA.mkdir(exist_ok=True)
    main(sys.argv[1])

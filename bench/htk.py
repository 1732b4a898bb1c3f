"""Speed of reading HTK features with labels: cntkio and CNTK 2.7, in one run.

    python bench/htk.py [FOLDER] [--mb 512] [--repeat 3] [--size 1024] [--cntk PYTHON] [--mlf]

FOLDER holds feat.ark (40 values a frame), all.scp, all.mlf and states.list (500 names). If the files do not exist, the
bench writes them: utterances of 100 to 899 frames, --mb times 10^6 bytes in all, with labels of 2 to 19 frames. Every
figure is the best of --repeat runs; engines take turns. Next to cntkio's speed is its processor time, which depends
less on other work on the machine. MB are 10^6 bytes of features. A sweep is everything from the construction of the
source to the end of one sweep in a Python loop of minibatches of --size samples. --mlf measures the index of the label
file instead, repeated up to 500 MB. PYTHON is an interpreter with CNTK 2.7; without it the columns of CNTK stay empty.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from cntkio import (
    HTKFeatureDeserializer,
    HTKMLFDeserializer,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    write_htk_archive,
    write_label_mapping,
    write_mlf,
)
from engines import Engine

# Goals of a sweep as multiples of CNTK 2.7's speed.
JOBS: dict[str, tuple[tuple[int, int], bool, int]] = {
    "utterances": ((0, 0), False, 6),
    "utterances, window 11": ((5, 5), False, 6),
    "frames, window 11": ((5, 5), True, 8),
}


def write(folder: Path, size: int) -> None:
    """Write the corpus, unless it exists."""
    if (folder / "states.list").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(20_250_105)
    lengths = random.integers(100, 900, size // (4 * 40 * 500))
    names = [f"s{state}" for state in range(500)]

    def labels(length: int) -> np.ndarray:
        return np.repeat(random.integers(0, 500, length), random.integers(2, 20, length))[:length]

    frames = (
        (f"utt{number:06}", random.standard_normal((length, 40), np.float32)) for number, length in enumerate(lengths)
    )
    write_htk_archive(folder / "feat.ark", folder / "all.scp", frames, extension=".mfc")
    write_mlf(folder / "all.mlf", ((f"utt{number:06}", labels(length)) for number, length in enumerate(lengths)), names)
    write_label_mapping(folder / "states.list", names)


def sweep(folder: Path, context: tuple[int, int], frame_mode: bool, randomize: bool, size: int) -> float:
    start = time.perf_counter()
    features = StreamDef(shape=40, context=context, scp=folder / "all.scp")
    labels = StreamDef(shape=500, mlf=folder / "all.mlf")
    deserializers: list[Any] = [
        HTKFeatureDeserializer(StreamDefs(f=features)),
        HTKMLFDeserializer(str(folder / "states.list"), StreamDefs(l=labels)),
    ]
    with MinibatchSource(deserializers, max_sweeps=1, randomize=randomize, frame_mode=frame_mode) as source:
        for _minibatch in source.minibatches(size):
            pass
    return time.perf_counter() - start


def index(folder: Path) -> None:
    """Measure the index of a label file of 500 MB: built and cached, then read from the cache."""
    body = (folder / "all.mlf").read_bytes().removeprefix(b"#!MLF!#\n")
    with tempfile.TemporaryDirectory(dir=folder) as made:
        path = Path(made, "large.mlf")
        with path.open("wb") as file:
            file.write(b"#!MLF!#\n")
            for number in range(-(-500_000_000 // len(body))):
                file.write(body.replace(b"utt", b"%03d" % number))
        size = path.stat().st_size / 1e6
        for what in ("made and cached", "from the cache"):
            start = time.perf_counter()
            streams = StreamDefs(l=StreamDef(shape=500, mlf=path))
            HTKMLFDeserializer(str(folder / "states.list"), streams, cache_index=True).open()
            seconds = time.perf_counter() - start
            print(f"index {what:16} {size:7.0f} MB {seconds:7.2f} s {size / seconds:7.0f} MB/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(tempfile.gettempdir()) / "cntkio-bench" / "htk")
    parser.add_argument("--mb", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--cntk")
    parser.add_argument("--mlf", action="store_true")
    options = parser.parse_args()
    write(options.folder, options.mb * 10**6)
    if options.mlf:
        index(options.folder)
        return
    peer = Engine(options.cntk, Path(__file__).with_name("cntk27.py")) if options.cntk else None
    size = (options.folder / "feat.ark").stat().st_size / 1e6
    print(f"{'':32}{'cntkio MB/s':>12}{'CPU s':>8}{'CNTK MB/s':>12}{'ratio':>8}{'goal':>6}", flush=True)
    for name, (context, frame_mode, goal) in JOBS.items():
        for randomize in (False, True):
            ours, theirs, processor = [], [], []
            for _ in range(options.repeat):
                before = time.process_time()
                ours.append(sweep(options.folder, context, frame_mode, randomize, options.size))
                processor.append(time.process_time() - before)
                if peer is not None:
                    asked = {"frame_mode": frame_mode, "randomize": randomize, "size": options.size}
                    answer = peer.ask(folder=str(options.folder), context=context, **asked)
                    theirs.append(float(answer["seconds"]))
            label = f"{name}, {'randomized' if randomize else 'in order'}"
            cntk_columns = f"{size / min(theirs):12.0f}{min(theirs) / min(ours):8.1f}" if theirs else " " * 20
            print(f"{label:32}{size / min(ours):12.0f}{min(processor):8.2f}{cntk_columns}{goal:6}", flush=True)
    if peer is not None:
        peer.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(f"peak memory: {peak:.0f} MB, features {size:.0f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()

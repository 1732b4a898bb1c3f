"""Speed of reading HTK features with labels: cntkio and CNTK 2.7, in one run.

    python bench/htk.py [FOLDER] [--mb 512] [--repeat 3] [--size 1024] [--cntk PYTHON] [--mlf]

FOLDER holds feat.ark (40 values a frame), all.scp, all.mlf and states.list (500 names). If the files do not exist, the
bench writes them: utterances of 100 to 899 frames, --mb times 10^6 bytes in all, with labels of 2 to 19 frames. Engines
take --repeat turns of two runs each, after a turn to warm up, and every figure is of the fastest run. Next to cntkio's
speed is its processor time, which depends less on other work on the machine. MB are 10^6 bytes of features. A sweep is
everything from the construction of the source to the end of one sweep in a Python loop of minibatches of --size
samples. --mlf measures the index of the label file instead, repeated up to 500 MB. PYTHON is an interpreter with CNTK
2.7; without it the columns of CNTK stay empty.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from cntkio import HTKMLFDeserializer, StreamDef, StreamDefs
from harness.corpora import speech
from harness.engines import Engine, best
from harness.sweeps import features

JOBS: dict[str, tuple[tuple[int, int], bool]] = {
    "utterances": ((0, 0), False),
    "utterances, window 11": ((5, 5), False),
    "frames, window 11": ((5, 5), True),
}
GOAL = 9  # multiple of CNTK 2.7's speed


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
    speech(options.folder, options.mb * 10**6)
    if options.mlf:
        index(options.folder)
        return
    peer = Engine(options.cntk, Path(__file__).with_name("harness") / "cntk27.py") if options.cntk else None
    size = (options.folder / "feat.ark").stat().st_size / 1e6
    print(f"{'':32}{'cntkio MB/s':>12}{'CPU s':>8}{'CNTK MB/s':>12}{'ratio':>8}{'goal':>6}", flush=True)
    for name, (context, frame_mode) in JOBS.items():
        for randomize in (False, True):
            asked = {"context": context, "frame_mode": frame_mode, "randomize": randomize, "size": options.size}
            runs = {"cntkio": partial(features, str(options.folder), **asked)}
            if peer is not None:
                runs["CNTK"] = partial(peer.ask, folder=str(options.folder), **asked)
            fastest = best(options.repeat, runs)
            ours = fastest["cntkio"]
            label = f"{name}, {'randomized' if randomize else 'in order'}"
            columns = " " * 20
            if peer is not None:
                theirs = fastest["CNTK"]["seconds"]
                columns = f"{size / theirs:12.0f}{theirs / ours['seconds']:8.1f}"
            print(f"{label:32}{size / ours['seconds']:12.0f}{ours['processor']:8.2f}{columns}{GOAL:6}", flush=True)
    if peer is not None:
        peer.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(f"peak memory: {peak:.0f} MB, features {size:.0f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()

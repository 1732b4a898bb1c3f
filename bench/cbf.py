"""Speed of reading and writing binary corpora: cntkio and CNTK 2.7, in one run.

    python bench/cbf.py [--mb 512] [--repeat 5] [--size 1024] [--only mnist,sparse] [--cntk PYTHON] [--folder FOLDER]

Every figure is the best of --repeat runs after a warm-up run; engines take turns. MB are 10^6 bytes of the file that is
read: binary in sweeps, text in conversions. PYTHON is an interpreter with CNTK 2.7; without it the columns of CNTK stay
empty. The bench first writes text of --mb into FOLDER and converts it. Timed conversions write to a file system in
memory, if there is one, because in FOLDER the disk would limit the speed. Two more rows show the bounds of a sweep:
bytes read into one buffer, and bytes copied in memory, each on one thread.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from harness import corpora, sweeps
from harness.engines import STREAMS, Engine, best, line, machine, rate, timed

HERE = Path(__file__).parent
# Goal of a sweep as a multiple of CNTK 2.7's speed; goal of a conversion in MB/s: 100 times the 8 MB/s of `ctf2bin.py`.
GOALS = {"mnist": 6, "sparse": 10, "floats": 6, "seqs": 10}
CONVERSION_GOAL = 800
MEMORY = Path("/dev/shm")


def copy(content: np.ndarray, buffer: np.ndarray) -> None:
    for begin in range(0, len(content), len(buffer)):
        part = content[begin : begin + len(buffer)]
        buffer[: len(part)] = part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=512, help="size of the text")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each, after a warm-up run")
    parser.add_argument("--size", type=int, default=1024, help="samples of a minibatch")
    parser.add_argument("--only", default="mnist,sparse", help="corpora")
    parser.add_argument("--cntk", metavar="PYTHON", help="an interpreter with CNTK 2.7")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "cntkio-bench")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    print(machine())
    ours = Engine(sys.executable, HERE / "harness" / "sweeps.py")
    theirs = Engine(arguments.cntk, HERE / "harness" / "cntk27.py") if arguments.cntk else None
    line("", "cntkio", "CNTK 2.7", "times", "goal")
    for kind in arguments.only.split(","):
        text, binary = arguments.folder / f"{kind}.ctf", arguments.folder / f"{kind}.cbf"
        if not text.exists():
            corpora.write(text, kind, arguments.mb * 10**6)
        to_binary = partial(sweeps.binary, str(text), STREAMS[kind])
        on_disk = to_binary(str(binary))
        corpora.read_anew(binary)
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else arguments.folder) as folder:
            made = best(arguments.repeat, {"convert": partial(to_binary, f"{folder}/a.cbf")})
        speed = rate(text.stat().st_size, made["convert"])
        line(f"{kind}, text to binary", f"{speed:.0f}", "-", "-", CONVERSION_GOAL)
        line(f"{kind}, the same onto disk", f"{rate(text.stat().st_size, on_disk):.0f}", "", "", "")
        for randomize in (True, False):
            request = {"path": str(binary), "streams": STREAMS[kind], "randomize": randomize, "size": arguments.size}
            runs = {"cntkio": partial(ours.ask, job="sweep", **request)}
            if theirs is not None:
                runs["CNTK 2.7"] = partial(theirs.ask, **request)
            answers = best(arguments.repeat, runs)
            if len({answer["samples"] for answer in answers.values()}) > 1:
                raise RuntimeError(f"{kind}: the engines deliver different numbers of samples: {answers}")
            rates = {name: rate(binary.stat().st_size, answer) for name, answer in answers.items()}
            base = rates.get("CNTK 2.7")
            times = f"{rates['cntkio'] / base:.1f}" if base else "-"
            where = "randomized" if randomize else "in order"
            line(f"{kind}, {where}", f"{rates['cntkio']:.0f}", f"{base:.0f}" if base else "-", times, GOALS[kind])
        read = best(arguments.repeat, {"read": partial(ours.ask, job="read", path=str(binary), streams=STREAMS[kind])})
        line(f"{kind}, read into a buffer", f"{rate(binary.stat().st_size, read['read']):.0f}", "", "", "")
    content, buffer = np.ones(256 << 20, np.uint8), np.ones(8 << 20, np.uint8)
    copied = best(arguments.repeat, {"copy": partial(timed, partial(copy, content, buffer))})
    line("copied in memory", f"{rate(len(content), copied['copy']):.0f}", "", "", "")
    ours.close()
    if theirs is not None:
        theirs.close()


if __name__ == "__main__":
    main()

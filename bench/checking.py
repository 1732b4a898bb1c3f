"""Speed of `cntkio check`, next to a bare sweep of the same file.

    python bench/checking.py [--folder FOLDER] [--mb 128] [--repeat 5] [--only floats,mnist,sparse,seqs]
                             [--at-least 0.5]

Prints MB of text per second of a sweep in order and of the check, and the check divided by the sweep. Both make the
index. The sweep knows the streams; the check infers them. The exit status is 1 if a share is below `--at-least`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import cntkio
from harness.corpora import write
from harness.engines import STREAMS, Answer, best, line, machine, rate, timed
from harness.sweeps import sweep


def swept(path: Path) -> Answer:
    return sweep(str(path), STREAMS[path.stem], False, 4096)


def checked(path: Path) -> Answer:
    def work() -> None:
        findings = cntkio.check(path)
        if findings:
            raise RuntimeError(str(findings))

    return timed(work)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(".cache/bench"))
    parser.add_argument("--mb", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="floats,mnist,sparse,seqs")
    parser.add_argument("--at-least", type=float, default=0.0)
    options = parser.parse_args()
    print(machine())
    line("MB of text per second", "sweep", "check", "share")
    lowest = float("inf")
    for name in options.only.split(","):
        # Other benches repeat lines, which the check would report.
        path = write(options.folder / "unique" / f"{name}.ctf", name, options.mb * 10**6, options.mb * 10**6)
        runs: dict[str, Callable[[], Answer]] = {"sweep": lambda p=path: swept(p), "check": lambda p=path: checked(p)}  # type: ignore[misc]
        found = best(options.repeat, runs)
        share = found["sweep"]["seconds"] / found["check"]["seconds"]
        size = path.stat().st_size
        line(path.name, *(f"{rate(size, found[run]):.0f}" for run in runs), f"{share:.2f}")
        lowest = min(lowest, share)
    return lowest < options.at_least


if __name__ == "__main__":
    sys.exit(main())

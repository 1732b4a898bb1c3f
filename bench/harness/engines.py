"""Code that the benches share: processes that measure, the best of several runs in turn, and lines of a table."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STREAMS: dict[str, dict[str, tuple[int, bool]]] = {
    "floats": {"x": (200, False), "y": (1, False)},
    "mnist": {"labels": (10, False), "features": (784, False)},
    "sparse": {"src": (50_000, True), "tgt": (50_000, True)},
    "seqs": {"word": (10_000, True), "tag": (50, True), "class": (5, True)},
}
IN_A_ROW = 2
Answer = dict[str, Any]


class Engine:
    """A process that answers one line of JSON with another."""

    def __init__(self, *command: str | Path, **settings: str) -> None:
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | settings
        )

    def ask(self, **request: Any) -> Answer:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended with {self.process.wait()}")
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def best(repeat: int, runs: dict[str, Callable[[], Answer]]) -> dict[str, Answer]:
    """Return the fastest answer of each run. The runs take turns; the first turn is a warm-up.

    Each run repeats several times in a row, so that the memory left by the previous engine matters less, and each turn
    begins with another engine.
    """
    fastest: dict[str, Answer] = {}
    engines = list(runs.items())
    for turn in range(repeat + 1):
        first = turn % len(engines)
        for name, run in engines[first:] + engines[:first]:
            for answer in [run() for _ in range(IN_A_ROW)]:
                if turn and answer["seconds"] < fastest.get(name, {"seconds": float("inf")})["seconds"]:
                    fastest[name] = answer
    return fastest


def timed(work: Callable[[], object], **facts: Any) -> Answer:
    """Do the work once; return its seconds, and those of the processor, together with `facts`."""
    start, processor = time.perf_counter(), time.process_time()
    work()
    return {"seconds": time.perf_counter() - start, "processor": time.process_time() - processor, **facts}


def line(*cells: object) -> None:
    print("  ".join(f"{cell!s:<22}" if not place else f"{cell!s:>12}" for place, cell in enumerate(cells)), flush=True)


def rate(num_bytes: int, answer: Answer) -> float:
    return num_bytes / 1e6 / float(answer["seconds"])


def machine() -> str:
    model = [text for text in Path("/proc/cpuinfo").read_text().splitlines() if text.startswith("model name")]
    cores = len(os.sched_getaffinity(0))
    return (
        f"{model[0].split(': ')[1] if model else platform.machine()}, {cores} cores, Python {platform.python_version()}"
    )

"""Refuse every request for memory, and for threads, of the first read of a source: each in a fork of its own.

    LD_PRELOAD=refused_requests.so python tests/faults/refused_requests.py FOLDER EVERY

The program refuses each EVERYth request, alone or with all later requests, and prints how the reads ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import limited_memory
from cntkio import MinibatchSource, _threads

_threads.LONGEST_START = 1  # CPython loses a thread whose lock was refused
LIBRARY = ctypes.CDLL(None)
LIBRARY.refuse.argtypes = [ctypes.c_long, ctypes.c_long]
LIBRARY.num_requests.restype = ctypes.c_long
NONE = 10**9
RIGHT = ("data", "MemoryError", "OSError('cannot start threads", "SystemError", "RuntimeError(\"can't allocate lock")
"""Correct outcomes. NumPy and Python raise the last two, for requests of their own."""


def ended(make: Callable[[], MinibatchSource], first: int, last: int) -> str:
    """Return how a first read in a fork ends, and after `data` the number of its requests."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 2)
        word = "?"
        try:
            signal.alarm(60)
            source = make()
            LIBRARY.refuse(first, last)
            for _ in range(2):
                source.read(100)
            word = f"data {LIBRARY.num_requests()}"
        except MemoryError:
            LIBRARY.refuse(-1, -1)
            word = "MemoryError"
        except BaseException as error:
            LIBRARY.refuse(-1, -1)
            word = repr(error)
        finally:
            LIBRARY.refuse(-1, -1)
            os.write(2, f"\n{word}".encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        printed = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    return printed.rsplit("\n", 1)[-1] if status == 0 else f"died with {status}: {printed.strip()[-900:]}"


def main() -> int:
    """Run the cases, and print the cases that ended wrongly."""
    folder, every = Path(sys.argv[1]), int(sys.argv[2])
    limited_memory.LENGTHS[:] = limited_memory.LENGTHS[:300]
    limited_memory.write_corpora(folder)
    num_reads = num_wrong = 0
    for options in ({}, {"truncation_length": 4}):

        def make(options: dict[str, int] = options) -> MinibatchSource:
            return MinibatchSource(limited_memory.text(folder), max_sweeps=1, trace_level=0, **options)

        for lasts in (0, NONE):  # one request, or one request and all later requests
            count = int(ended(make, NONE, NONE).split()[1])
            for number in range(1, count + 1, every):
                end = ended(make, number, max(number, lasts))
                num_reads += 1
                if not end.startswith(RIGHT):
                    num_wrong += 1
                    print(f"{options}, request {number} to {max(number, lasts)}: {end}", flush=True)
    print(f"{num_reads} reads, {num_wrong} wrong")
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())

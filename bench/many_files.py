"""Time and memory to open many small texts as one corpus, next to the same text in one file.

    python bench/many_files.py [--files 10000] [--folder FOLDER]

Prints for both the seconds to open the corpus without and with an index cache, and of a randomized sweep after that;
the memory that the process gained; and the number of open files after the sweep.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

from cntkio import CTFDeserializer, MinibatchSource, StreamDef, StreamDefs

STREAMS = StreamDefs(x=StreamDef(field="x", shape=8))
LINES = 20


def write(folder: Path, num_files: int) -> None:
    """Write the texts, and all of them as one."""
    with (folder / "whole.ctf").open("w") as whole:
        for index in range(num_files):
            text = "".join(f"{index * LINES + line} |x {'0.25 ' * 8}\n" for line in range(LINES))
            (folder / f"part-{index:06}.ctf").write_text(text)
            whole.write(text)


def measure(name: str, path: Path) -> None:
    """Print a row of the table."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for keep in (False, True, True):
        start = time.perf_counter()
        corpus = CTFDeserializer(path, STREAMS, cache_index=keep).open()
        seconds.append(time.perf_counter() - start)
        corpus.close()
    start = time.perf_counter()
    with MinibatchSource(CTFDeserializer(path, STREAMS, cache_index=True), max_sweeps=1) as source:
        num_sequences = sum(minibatch.num_sequences for minibatch in source.minibatches(1024))
        num_open = len(list(Path("/proc/self/fd").iterdir()))
    sweep = time.perf_counter() - start
    gained = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    times = " ".join(f"{one:>9.2f}" for one in (seconds[0], seconds[2], sweep))
    print(f"{name:>10} {num_sequences:>10,} {times} {gained:>9.0f} {num_open:>6}")


def main() -> None:
    """Write the files, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write(folder, options.files)
        print(f"{'':>10} {'sequences':>10} {'open s':>9} {'cached s':>9} {'sweep s':>9} {'MB':>9} {'open':>6}")
        measure("one", folder / "whole.ctf")
        measure("many", folder / "part-*.ctf")


if __name__ == "__main__":
    main()

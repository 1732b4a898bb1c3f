"""Sweeps over compressed texts, next to the plain text and to the decoder alone.

    python bench/compressed.py [--folder FOLDER] [--mb 256] [--repeat 3] [--only floats,sparse,seqs] [--cntk PYTHON]

Prints MB of text per second, in order and randomized, with an existing index cache. The decoder alone decompresses
the file on all cores and does nothing with the text. Two shares follow each sweep:

    of less    the speed divided by the lower of two: the decoder alone, and the sweep over the plain text
    of cores   the speed divided by the speed that the cores allow. Decoding and parsing share the cores, so a byte
               takes the time of both: 1 / (1 / decoder + 1 / plain)

`opened` is the time until the first index and, for gzip, the first access points are made.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from cntkio.formats.written_files import Compression, compressed
from harness.engines import STREAMS, Answer, Engine, best

HARNESS = Path(__file__).parent / "harness"
COPIED = 4 << 20


def packed(plain: Path, suffix: str) -> Path:
    """Compress a file, unless that was done before."""
    target = plain.with_name(plain.name + suffix)
    if not target.exists():
        part = target.with_suffix(".part")
        kind: Compression = "gzip" if suffix == ".gz" else "zstd"
        with plain.open("rb") as source, part.open("wb") as file, compressed(file, kind) as sink:
            while block := source.read(COPIED):
                sink.write(memoryview(block))
        part.rename(target)
    return target


def speed(size: int, answer: Answer) -> float:
    return size / 1e6 / float(answer["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(".cache/bench/compressed"))
    parser.add_argument("--mb", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="floats,sparse,seqs")
    parser.add_argument("--cntk", type=Path, help="Python 3.6 with CNTK 2.7, which reads the plain text")
    options = parser.parse_args()
    corpora = [sys.executable, HARNESS / "corpora.py", options.folder, "--mb", options.mb, "--only", options.only]
    subprocess.run(list(map(str, corpora)), check=True)
    engine = Engine(sys.executable, HARNESS / "sweeps.py")
    cntk = Engine(options.cntk, HARNESS / "cntk27.py") if options.cntk else None
    shares = f"{'of less':>9}{'of cores':>9}"
    print(f"{'MB of text per second':24}{'opened':>9}{'decoder':>9}{'in order':>10}{shares}{'random':>9}{shares}")
    for name in options.only.split(","):
        plain = options.folder / f"{name}.ctf"
        size = plain.stat().st_size
        paths = {"": plain, ".gz": packed(plain, ".gz"), ".zst": packed(plain, ".zst")}
        for index in options.folder.glob("*.index"):
            index.unlink()
        opened = {
            suffix: engine.ask(job="open", path=str(path), streams=STREAMS[name]) for suffix, path in paths.items()
        }
        runs = {}
        for suffix, path in paths.items():
            for randomize in (False, True):
                request = {"path": str(path), "streams": STREAMS[name], "randomize": randomize, "size": 4096}
                runs[suffix, randomize] = lambda request=request: engine.ask(job="sweep", cached=True, **request)
            if suffix:
                runs[suffix, "decoder"] = lambda path=path: engine.ask(job="decode", path=str(path), streams={})
        if cntk is not None:
            request = {"path": str(plain), "streams": STREAMS[name], "randomize": False, "size": 4096}
            runs["cntk", False] = lambda request=request: cntk.ask(**request)
        found = best(options.repeat, runs)  # type: ignore[arg-type]
        for suffix in paths:
            decoder = speed(size, found[suffix, "decoder"]) if suffix else float("inf")  # type: ignore[index]
            row = f"{name + '.ctf' + suffix:24}{opened[suffix]['seconds']:>8.2f}s{decoder:>9.0f}"
            for randomize in (False, True):
                reached = speed(size, found[suffix, randomize])  # type: ignore[index]
                plain_speed = speed(size, found["", randomize])  # type: ignore[index]
                bounds = min(decoder, plain_speed), 1 / (1 / decoder + 1 / plain_speed)
                row += f"{reached:>{9 if randomize else 10}.0f}" + "".join(
                    f"{reached / bound:>9.0%}" for bound in bounds
                )
            print(row, flush=True)
        if cntk is not None:
            print(f"{name + '.ctf, CNTK 2.7':24}{'':>18}{speed(size, found['cntk', False]):>10.0f}")  # type: ignore[index]


if __name__ == "__main__":
    main()

"""Compare the speed of the working tree with another revision of cntkio, in one run.

    python bench/against_self.py REVISION [--mb 128] [--repeat 5] [--size 1024]
        [--only floats,mnist,sparse,seqs,binary,features] [--orders randomized,in-order]
        [--kernels avx512,avx2,sse41,neon,scalar] [--small 32] [--at-least RATIO] [--processor] [--folder FOLDER]

cargo builds both sides, without a network: the revision from `git archive` in FOLDER/self, the working tree in place.
Nothing is installed.

Each measurement is a separate process, which reads a corpus of --mb twice and reports the faster sweep. The two sides
take turns, and the side that begins changes with each turn. A row shows the best of --repeat turns of each side in MB/s
(10^6 bytes of text), and the speed of the working tree divided by the speed of the revision: above 1 the working tree
is faster. `binary` is the corpus `sparse` in CNTK's binary format, and `features` are utterances of HTK features with
labels in a window of 11 frames; they have no kernels. The last rows show the cost of a minibatch of --small samples
beyond its share of a minibatch of --size samples, in microseconds, for data in memory; --small 0 omits these rows. With
--at-least the exit status is 1 if a ratio is lower. With --processor all times are those of the processor, which depend
less on other work on the machine.

A sweep is everything from the construction of the source to the end of one sweep in a Python loop of minibatches.
corpora.py writes the corpora; kernels that this processor lacks are skipped.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from harness import corpora
from harness.engines import STREAMS, Answer, Engine, line, machine, rate

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUILT = "libcntkio_core_module.dylib" if sys.platform == "darwin" else "libcntkio_core_module.so"
KERNELS = ("avx512", "avx2", "sse41", "neon", "scalar")
ORDERS = {"randomized": True, "in-order": False}
SMALL_MINIBATCHES = 32_768
BINARY = "sparse"  # the text of the binary corpus
WINDOW = (5, 5)  # frames before and after each frame of features


class Side(NamedTuple):
    """A version of cntkio: its name, the folder that contains its package, and the clock: "seconds" or "processor"."""

    name: str
    python: Path
    clock: str = "seconds"

    def settings(self, kernel: str = "") -> dict[str, str]:
        chosen = {"CNTKIO_KERNEL": kernel} if kernel else {}
        return {"PYTHONPATH": str(self.python), "PYTHONDONTWRITEBYTECODE": "1", **chosen}

    def has(self, kernel: str) -> bool:
        """Return whether the package starts with this kernel on this machine."""
        program = f"import cntkio; assert cntkio.__file__.startswith({str(self.python)!r}), cntkio.__file__"
        environment = os.environ | self.settings(kernel)
        started = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        if started.returncode and "CNTKIO_KERNEL" not in started.stderr:
            raise RuntimeError(started.stderr)
        return started.returncode == 0

    def measure(self, kernel: str = "", job: str = "sweep", **request: object) -> Answer:
        """The faster of two runs of a job in a new process, with the time of the clock as its seconds."""
        engine = Engine(sys.executable, HERE / "harness" / "sweeps.py", **self.settings(kernel))
        try:
            answers = [engine.ask(job=job, **request) for _ in range(2)]
            return min(({**each, "seconds": each[self.clock]} for each in answers), key=lambda each: each["seconds"])
        finally:
            engine.close()


# -- building ----------------------------------------------------------------------------------------------------------


def command(*words: str | Path, folder: Path = ROOT, **environment: str) -> str:
    ran = subprocess.run(list(map(str, words)), cwd=folder, env=os.environ | environment, stdout=subprocess.PIPE)
    if ran.returncode:
        sys.exit(f"{' '.join(map(str, words))} ended with {ran.returncode}")
    return ran.stdout.decode(errors="replace").strip()


def assembled(sources: Path, target: Path, package: Path) -> Path:
    """Build a tree into `target`, and put its package, Python files and compiled module, into `package`."""
    command(
        "cargo", "build", "--quiet", "--release", "--locked", "--offline", "--workspace",
        folder=sources, CARGO_TARGET_DIR=str(target), PYO3_PYTHON=sys.executable,
    )  # fmt: skip
    shutil.rmtree(package, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(sources / "python" / "cntkio", package / "cntkio", ignore=ignored)
    shutil.copy(target / "release" / BUILT, package / "cntkio" / "_core.abi3.so")
    return package


def built_revision(revision: str, folder: Path) -> Side:
    commit = command("git", "rev-parse", "--short=12", "--verify", f"{revision}^{{commit}}")
    sources = folder / commit / "sources"
    package = folder / commit / "python"
    if not (package / "cntkio" / "_core.abi3.so").exists():
        print(f"building {revision} ({commit})", file=sys.stderr, flush=True)
        shutil.rmtree(sources, ignore_errors=True)
        sources.mkdir(parents=True)
        archive = folder / commit / "sources.tar"
        command("git", "archive", "--output", archive, commit)
        command("tar", "-xf", archive, "-C", sources)
        archive.unlink()
        assembled(sources, folder / "target", package)
    return Side(commit, package)


def built_working_tree(folder: Path) -> Side:
    print("building the working tree", file=sys.stderr, flush=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return Side("working tree", assembled(ROOT, target, folder / "working-tree" / "python"))


# -- comparing ---------------------------------------------------------------------------------------------------------


def in_turns(repeat: int, sides: list[Side], measure: Callable[[Side], Answer]) -> list[Answer]:
    """The fastest answer of each side, which must deliver the same number of samples."""
    fastest: dict[str, Answer] = {}
    for turn in range(repeat):
        for side in sides if turn % 2 else reversed(sides):
            answer = measure(side)
            if answer["seconds"] < fastest.get(side.name, {"seconds": float("inf")})["seconds"]:
                fastest[side.name] = answer
    answers = [fastest[side.name] for side in sides]
    if answers[0]["samples"] != answers[1]["samples"]:
        raise RuntimeError(f"the two sides deliver different numbers of samples: {answers}")
    return answers


def sweep(side: Side, *, kernel: str, path: Path, kind: str, randomize: bool, size: int) -> Answer:
    if kind == "features":
        folder, reading = str(path.parent), {"context": WINDOW, "frame_mode": False}
        return side.measure(kernel, job="features", folder=folder, randomize=randomize, size=size, **reading)
    streams = STREAMS.get(kind, {})  # a binary corpus has its streams in its header
    return side.measure(kernel, path=str(path), streams=streams, randomize=randomize, size=size)


def written(kind: str, folder: Path, num_bytes: int, side: Side) -> Path:
    """Write a corpus, unless it exists, and return its largest file."""
    name = f"{kind}-{num_bytes // 10**6}"
    if kind == "features":
        side.measure(job="speech", folder=str(folder / name), size=num_bytes)
        return folder / name / "feat.ark"
    if kind != "binary":
        return corpora.write(folder / f"{name}.ctf", kind, num_bytes)
    target = folder / f"{name}.cbf"
    if not target.exists():
        text = written(BINARY, folder, num_bytes, side)
        side.measure(job="binary", path=str(text), streams=STREAMS[BINARY], target=str(target))
    return target


def costs_of_small(sides: list[Side], path: Path, kind: str, options: argparse.Namespace) -> list[float]:
    """Seconds that a small minibatch costs beyond its share of a large minibatch, for each side."""

    def measure(side: Side, size: int) -> Answer:
        count = SMALL_MINIBATCHES * options.small // size
        return side.measure(job="minibatches", path=str(path), streams=STREAMS[kind], size=size, count=count)

    of_small = in_turns(options.repeat, sides, partial(measure, size=options.small))
    of_large = in_turns(options.repeat, sides, partial(measure, size=options.size))
    return [
        (small["seconds"] - large["seconds"]) / (small["minibatches"] - large["minibatches"])
        for small, large in zip(of_small, of_large, strict=True)
    ]


def compare(sides: list[Side], paths: dict[str, Path], options: argparse.Namespace) -> list[float]:
    ratios = []
    line("", *(side.name for side in sides), "ratio")
    kernels = [kernel for kernel in options.kernels.split(",") if all(side.has(kernel) for side in sides)]
    for kind, path in paths.items():
        for order in options.orders.split(","):
            for kernel in kernels if kind in STREAMS else [""]:
                request = {"kernel": kernel, "path": path, "kind": kind, "size": options.size}
                measure = partial(sweep, randomize=ORDERS[order], **request)
                rates = [rate(path.stat().st_size, answer) for answer in in_turns(options.repeat, sides, measure)]
                ratios.append(rates[1] / rates[0])
                name = f"{kind}, {order}, {kernel}" if kind in STREAMS else f"{kind}, {order}"
                line(name, *(f"{speed:.0f}" for speed in rates), f"{ratios[-1]:.3f}")
    for kind, path in paths.items() if options.small else ():
        if kind not in STREAMS:
            continue
        costs = costs_of_small(sides, path, kind, options)
        is_sound = min(costs) > 0  # otherwise the corpus is too small, or the machine too busy
        if is_sound:
            ratios.append(costs[0] / costs[1])
        cells = [f"{cost * 1e6:.2f}" for cost in costs]
        line(f"{kind}, us of {options.small}", *cells, f"{ratios[-1]:.3f}" if is_sound else "-")
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="revision to compare with: a commit, a branch or a tag")
    parser.add_argument("--mb", type=int, default=128, help="size of each corpus")
    parser.add_argument("--repeat", type=int, default=5, help="turns of each side")
    parser.add_argument("--size", type=int, default=1024, help="samples of a minibatch")
    parser.add_argument("--only", default=",".join([*STREAMS, "binary", "features"]), help="corpora")
    parser.add_argument("--orders", default=",".join(ORDERS), help="randomized, in-order")
    parser.add_argument("--kernels", default=",".join(KERNELS), help="kernels, if the processor supports them")
    parser.add_argument("--small", type=int, default=32, help="samples of a small minibatch; 0: none")
    parser.add_argument("--at-least", type=float, metavar="RATIO", help="exit with 1 if a ratio is lower")
    parser.add_argument("--processor", action="store_true", help="compare the time of the processor")
    parser.add_argument("--folder", type=Path, default=ROOT / ".cache" / "bench", help="for corpora and builds")
    options = parser.parse_args()
    folder = options.folder.resolve()
    kinds = options.only.split(",")
    sides = [built_revision(options.revision, folder / "self"), built_working_tree(folder / "self")]
    if options.processor:
        sides = [side._replace(clock="processor") for side in sides]
    paths = {kind: written(kind, folder, options.mb * 10**6, sides[1]) for kind in kinds}
    for path in paths.values():
        path.read_bytes()  # into the page cache
    print(
        f"{machine()}\nfiles of {options.mb} MB, minibatches of {options.size}, best of {options.repeat} turns; MB/s\n"
    )
    ratios = compare(sides, paths, options)
    print(f"\nlowest ratio {min(ratios):.3f}, highest {max(ratios):.3f}")
    if options.at_least is not None and min(ratios) < options.at_least:
        sys.exit(f"a ratio is below {options.at_least}")


if __name__ == "__main__":
    main()

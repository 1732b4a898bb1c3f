"""Speed of reading text with cntkio, CNTK 2.7 and other readers, in one run.

    python bench/ctf.py [--mb 512] [--repeat 5] [--only floats,mnist,sparse,seqs] [--cntk PYTHON] [--folder FOLDER]
        [--parts sweeps,small,memory,parts,peers,kernels]

Every figure is the best of --repeat turns of two runs each, after a warm-up turn; MB are 10^6 bytes of
text. A sweep is everything from the construction of the source to the end of one sweep in a Python loop of
minibatches of --size samples. PYTHON is an interpreter with CNTK 2.7; without it the columns of CNTK and the ratios
stay empty. The bench first writes the corpora into FOLDER (see corpora.py), so they are in the page cache.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from harness import corpora
from harness.engines import STREAMS, Answer, Engine, best, line, machine, rate, timed

HERE = Path(__file__).parent
# Goals of a sweep as multiples of CNTK 2.7's speed: randomized, in order, and either without AVX-512.
GOALS = {"floats": (16, 18, 6), "mnist": (23, 25, 8), "sparse": (22, 30, 10), "seqs": (20, 27, 12)}
SMALL_MINIBATCHES = 40_000
SETTINGS = {
    "cntkio": {},
    "one thread": {"CNTKIO_NUM_THREADS": "1"},
    "no AVX-512": {"CNTKIO_KERNEL": "avx2"},
    "scalar": {"CNTKIO_KERNEL": "scalar"},
}
PEERS = ("polars", "pyarrow", "scikit-learn")
PYTHON = sys.executable


def sweeps(paths: dict[str, Path], cntk: Engine | None, repeat: int, size: int) -> None:
    print(
        f"\nSweeps in minibatches of {size} samples, MB/s; in brackets the multiple of CNTK 2.7's speed; and seconds\n"
        "of cntkio's processor time for 1 GB\n"
    )
    line("", *SETTINGS, "CNTK 2.7", "goal", "goal no 512", "processor")
    engines = {name: Engine(PYTHON, HERE / "harness" / "sweeps.py", **settings) for name, settings in SETTINGS.items()}
    for kind, path in paths.items():
        num_bytes = path.stat().st_size
        for randomize in (True, False):
            request = {"path": str(path), "streams": STREAMS[kind], "randomize": randomize, "size": size}
            runs = {name: partial(engine.ask, job="sweep", **request) for name, engine in engines.items()}
            if cntk is not None:
                runs["CNTK 2.7"] = partial(cntk.ask, **request)
            answers = best(repeat, runs)
            if len({answer["samples"] for answer in answers.values()}) > 1:
                raise RuntimeError(f"{kind}: the engines deliver different numbers of samples: {answers}")
            rates = {name: rate(num_bytes, answer) for name, answer in answers.items()}
            base = rates.get("CNTK 2.7")
            cells = [f"{rates[name]:.0f}" + (f" ({rates[name] / base:.1f})" if base else "") for name in SETTINGS]
            goal = GOALS[kind][0 if randomize else 1]
            line(
                f"{kind}, {'randomized' if randomize else 'in order'}",
                *cells,
                f"{base:.0f}" if base else "-",
                goal,
                GOALS[kind][2],
                f"{answers['cntkio']['processor'] / num_bytes * 1e9:.2f}",
            )
    for engine in engines.values():
        engine.close()


def kernels(paths: dict[str, Path], repeat: int, size: int) -> None:
    """Measure randomized sweeps with each kernel of this processor, compared with the first."""

    def runs_here(kernel: str) -> bool:
        environment = os.environ | {"CNTKIO_KERNEL": kernel}
        return (
            subprocess.run([PYTHON, "-c", "import cntkio"], env=environment, stderr=subprocess.DEVNULL).returncode == 0
        )

    names = [name for name in ("avx512", "avx2", "sse41", "neon", "scalar") if runs_here(name)]
    print(f"\nKernels: randomized sweeps, MB/s; in brackets divided by the speed with {names[0]}\n")
    line("", *names)
    engines = {name: Engine(PYTHON, HERE / "harness" / "sweeps.py", CNTKIO_KERNEL=name) for name in names}
    for kind, path in paths.items():
        request = {"job": "sweep", "path": str(path), "streams": STREAMS[kind], "randomize": True, "size": size}
        answers = best(repeat, {name: partial(engine.ask, **request) for name, engine in engines.items()})
        rates = [rate(path.stat().st_size, answers[name]) for name in names]
        line(kind, *(f"{speed:.0f} ({speed / rates[0]:.2f})" for speed in rates))
    for engine in engines.values():
        engine.close()


def small_minibatches(paths: dict[str, Path], repeat: int) -> None:
    print("\nMinibatches of 32 samples in memory: cost of each beyond that of its samples in minibatches of 1024,")
    print("microseconds (goal: at most 4)\n")
    engine = Engine(PYTHON, HERE / "harness" / "sweeps.py")
    for kind, path in paths.items():
        request = {"job": "minibatches", "path": str(path), "streams": STREAMS[kind]}
        counts = {32: SMALL_MINIBATCHES, 1024: SMALL_MINIBATCHES * 32 // 1024}
        runs = {str(size): partial(engine.ask, size=size, count=count, **request) for size, count in counts.items()}
        answers = best(repeat, runs)
        small, large = answers["32"], answers["1024"]
        more = small["minibatches"] - large["minibatches"]
        line(kind, f"{(small['seconds'] - large['seconds']) / more * 1e6:.1f}", f"{small['minibatches']} minibatches")
    engine.close()


def memory(path: Path) -> None:
    """Measure the peak memory of a randomized sweep, compared with the data of its window."""
    engine = Engine(PYTHON, HERE / "harness" / "sweeps.py")
    answer = engine.ask(job="sweep", path=str(path), streams=STREAMS["floats"], randomize=True, size=1024)
    engine.close()
    data = answer["samples"] * sum(dim for dim, _ in STREAMS["floats"].values()) * 4
    most = answer["most_memory"] - answer["memory_before"]
    print("\nPeak memory of the randomized sweep over floats, whose window holds the whole file (goal: at most 1.25)\n")
    line("floats", f"{most / 1e6:.0f} MB", f"{data / 1e6:.0f} MB data", f"{most / data:.2f}")


def parts(paths: dict[str, Path], repeat: int) -> None:
    print(
        "\nParts, MB/s: the file read in blocks of 1 MB; indexed (goal: 6000); all its text in memory parsed (goals\n"
        "for one thread: floats and sparse 3000, mnist 5000, seqs 1200)\n"
    )
    jobs = ("read", "index", "parse")
    engines = {name: Engine(PYTHON, HERE / "harness" / "sweeps.py", **settings) for name, settings in SETTINGS.items()}
    line("", *jobs)
    for kind, path in paths.items():
        for name, engine in engines.items():
            runs = {job: partial(engine.ask, job=job, path=str(path), streams=STREAMS[kind]) for job in jobs}
            answers = best(repeat, runs)
            line(f"{kind}, {name}", *(f"{rate(answers[job]['bytes'], answers[job]):.0f}" for job in jobs))
    for engine in engines.values():
        engine.close()


def peers(folder: Path, kinds: Iterable[str], megabytes: int, repeat: int) -> None:
    """Measure readers of whole files, each on the same numbers in its own format."""
    print(f"\nWhole files of {megabytes} MB into memory, MB/s of each reader's own text\n")
    line("", "read", "read_ctf", *PEERS)
    engine = Engine(PYTHON, HERE / "harness" / "sweeps.py")
    for kind in kinds:
        source = corpora.write(folder / "peers" / f"{kind}.ctf", kind, megabytes * 10**6)
        runs = {
            "read": partial(engine.ask, job="read", path=str(source), streams={}),
            "read_ctf": partial(engine.ask, job="whole", path=str(source), streams=STREAMS[kind]),
        }
        if kind in ("floats", "mnist"):
            target = corpora.csv(source, source.with_suffix(".csv"))
            runs |= csv_readers(target)
        elif kind == "sparse":
            target = corpora.svmlight(source, source.with_suffix(".svmlight"))
            runs |= svmlight_readers(target)
        answers = best(min(repeat, 3), runs)
        cells = []
        for name in ("read", "read_ctf", *PEERS):
            cells.append(
                f"{rate(answers[name]['bytes'], answers[name]):.0f}" if name in answers else absent(name, kind)
            )
        line(kind, *cells)
    engine.close()


def absent(name: str, kind: str) -> str:
    reads = {"polars": ("floats", "mnist"), "pyarrow": ("floats", "mnist"), "scikit-learn": ("sparse",)}
    if kind not in reads[name]:
        return "-"
    return "absent" if version(name) is None else "-"


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def csv_readers(path: Path) -> dict[str, Callable[[], Answer]]:
    readers: dict[str, Callable[[], Answer]] = {}
    if version("polars"):
        import polars

        with path.open() as file:
            columns = {f"column_{number + 1}": polars.Float32 for number in range(file.readline().count(",") + 1)}
        readers["polars"] = lambda: timed(
            lambda: polars.read_csv(path, has_header=False, schema=columns), bytes=path.stat().st_size
        )
    if version("pyarrow"):
        import pyarrow
        import pyarrow.csv

        reading = pyarrow.csv.ReadOptions(autogenerate_column_names=True)
        with path.open() as file:
            names = [f"f{number}" for number in range(file.readline().count(",") + 1)]
        converting = pyarrow.csv.ConvertOptions(column_types={name: pyarrow.float32() for name in names})
        readers["pyarrow"] = lambda: timed(
            lambda: pyarrow.csv.read_csv(path, read_options=reading, convert_options=converting),
            bytes=path.stat().st_size,
        )
    return readers


def svmlight_readers(path: Path) -> dict[str, Callable[[], Answer]]:
    if not version("scikit-learn"):
        return {}
    import numpy as np
    from sklearn.datasets import load_svmlight_file

    return {
        "scikit-learn": lambda: timed(
            lambda: load_svmlight_file(str(path), n_features=100_000, dtype=np.float32, zero_based=True),
            bytes=path.stat().st_size,
        )
    }


def main() -> None:
    global PYTHON
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=512, help="size of each corpus")
    parser.add_argument("--peer-mb", type=int, default=128, help="size of each file for whole-file readers")
    parser.add_argument("--size", type=int, default=1024, help="samples of a minibatch")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default=",".join(STREAMS), help="corpora")
    parser.add_argument(
        "--parts", default="sweeps,small,memory,parts,peers", help="tables to print; kernels is another"
    )
    parser.add_argument("--cntk", help="an interpreter with CNTK 2.7")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with cntkio")
    parser.add_argument("--folder", type=Path, default=HERE.parent / ".cache" / "bench")
    arguments = parser.parse_args()
    PYTHON = arguments.python
    kinds = arguments.only.split(",")
    paths = {kind: corpora.write(arguments.folder / f"{kind}.ctf", kind, arguments.mb * 10**6) for kind in kinds}
    for path in paths.values():
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass
    versions = ", ".join(f"{name} {version(name) or 'absent'}" for name in ("numpy", *PEERS))
    print(f"{machine()}; {versions}\nfiles of {arguments.mb} MB, best of {arguments.repeat}")
    cntk = Engine(arguments.cntk, HERE / "harness" / "cntk27.py") if arguments.cntk else None
    wanted = arguments.parts.split(",")
    if "sweeps" in wanted:
        sweeps(paths, cntk, arguments.repeat, arguments.size)
    if cntk is not None:
        cntk.close()
    if "kernels" in wanted:
        kernels(paths, arguments.repeat, arguments.size)
    if "small" in wanted:
        small_minibatches(paths, arguments.repeat)
    if "memory" in wanted and "floats" in paths:
        memory(paths["floats"])
    if "parts" in wanted:
        parts(paths, arguments.repeat)
    if "peers" in wanted:
        peers(arguments.folder, paths, arguments.peer_mb, arguments.repeat)


if __name__ == "__main__":
    main()

"""Run fuzz targets of the Python half: `python tests/fuzz/run.py SECONDS SEEDS CORPUS TARGET...`.

SEEDS and CORPUS have a folder for each target. Each target runs in a process of its own. All targets run, whatever they
find; the exit status is not 0 if one of them failed.

Atheris chooses the inputs by the code that they reach. Where it is not installed, inputs are random changes of the
seeds. The input of a finding is in the working directory or in the message.
"""

import contextlib
import logging
import random
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def main() -> int:
    """Run the targets that the arguments name."""
    seconds, seeds, corpus, *names = sys.argv[1:]
    if len(names) == 1:
        return run(names[0], seconds, f"{seeds}/{names[0]}", f"{corpus}/{names[0]}")
    failed = []
    for name in names:
        print(f"fuzzing {name} for {seconds} s", flush=True)
        if subprocess.run([sys.executable, __file__, seconds, seeds, corpus, name], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"these targets failed: {' '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run(name: str, seconds: str, seeds: str, corpus: str) -> int:
    """Run a target in this process."""
    Path(corpus).mkdir(parents=True, exist_ok=True)
    try:
        import atheris
    except ImportError:
        atheris = None
    is_guided = atheris is not None
    with atheris.instrument_imports(include=["cntkio"]) if is_guided else contextlib.nullcontext():
        from fuzz.targets import TARGETS

    logging.getLogger("cntkio").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        target = TARGETS[name](Path(folder))
        if atheris is None:
            return run_random(target, name, float(seconds), Path(seeds))
        arguments = [sys.argv[0], f"-max_total_time={seconds}", "-max_len=4096", "-timeout=20", "-rss_limit_mb=3000"]
        atheris.Setup([*arguments, "-print_final_stats=1", "-verbosity=1", corpus, seeds], target)
        atheris.Fuzz()
    return 0


def run_random(target: object, name: str, seconds: float, folder: Path) -> int:
    """Run a target on random changes of its seeds."""
    assert callable(target)
    seeds = [path.read_bytes() for path in sorted(folder.iterdir())] or [b""]
    seed = time.time_ns()
    chance = random.Random(seed)
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        data = changed(chance, bytearray(chance.choice(seeds)), seeds)
        try:
            target(data)
        except Exception:
            traceback.print_exc()
            print(f"{name}: finding: {data!r}")
            return 1
        count += 1
    print(f"{name}: {count} executions without guidance by coverage, seed {seed}")
    return 0


def changed(chance: random.Random, data: bytearray, seeds: list[bytes]) -> bytes:
    """Change some bytes, or replace, repeat or remove parts."""
    for _ in range(chance.randint(1, 4)):
        begin, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        end = min(end, begin + 16)
        kind = chance.randrange(4)
        if kind == 0 and data:
            data[chance.randrange(len(data))] = chance.choice([0, 1, 255, chance.randrange(256)])
        elif kind == 1:
            del data[begin:end]
        elif kind == 2:
            data[begin:begin] = data[begin:end]
        else:
            other = chance.choice(seeds)
            start = chance.randrange(len(other) + 1)
            data[begin:end] = other[start : start + 16]
    return bytes(data)


if __name__ == "__main__":
    sys.exit(main())

"""Interrupt sources of all kinds at random moments, in several processes, and check that nothing is lost.

    python tests/faults/random_interrupts.py --moments 2000 --seed 7 [--first]

With ``--first``, each moment is in the first reads of a new source; otherwise reading continues after an interrupt.
"""

import argparse
import multiprocessing
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.interrupts import WITH_MIXTURES, Lockstep, interrupted_after, sizes, write_corpora

_IN_ONE_PROCESS = 20


def interrupt(folder: Path, seed: int, *, first: bool) -> int:
    """Interrupt a source at random moments; return the number of interrupts that reached a call."""
    randomness = random.Random(seed)
    kind = WITH_MIXTURES[randomness.choice(list(WITH_MIXTURES))]
    longest = 10 ** randomness.uniform(-4.5, -2)

    def at_random(action):
        return interrupted_after(randomness.uniform(1e-6, longest), action)

    num_interrupts = 0
    lockstep = Lockstep(kind, folder, at_random)
    for size, _ in zip(sizes(), range(_IN_ONE_PROCESS), strict=False):
        if lockstep.read(size):
            lockstep.restore()
        if first:
            lockstep.close()
            num_interrupts += lockstep.num_interrupts
            lockstep = Lockstep(kind, folder, at_random)
    lockstep.close()
    return num_interrupts + lockstep.num_interrupts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--moments", type=int, default=2000, help="how many calls to interrupt")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    parser.add_argument("--first", action="store_true", help="interrupt the first reads of new sources")
    options = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as name:
        write_corpora(Path(name))
        context = multiprocessing.get_context("spawn")
        for number in range(-(-options.moments // _IN_ONE_PROCESS)):
            seed = 1000 * options.seed + number
            child = context.Process(target=interrupt, args=(Path(name), seed), kwargs={"first": options.first})
            child.start()
            child.join(120)
            if child.exitcode != 0:
                failed.append((seed, child.exitcode))
                child.kill()
                child.join()
    print(f"{options.moments} moments, seed {options.seed}: failed in {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Random sources, sizes, partitions, restores, forks and interrupts, compared with the slow timeline for minutes.

    python tests/fuzz/soak.py SECONDS [SEED]

Each round opens a random corpus of a random format, alone or joined, and reads it in steps: whole sequences, frames or
truncated. Sources that the slow timeline cannot imitate are compared with an equal source. Descriptors, threads,
objects and memory must not grow over the rounds. A failure prints the seed and the number of its round:
`soak.py SECONDS SEED ROUND` begins there.
"""

import contextlib
import copy
import ctypes
import gc
import itertools
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from cntkio import MinibatchSource, _core
from slow.timeline import SlowTimeline
from support.interrupts import KINDS, Lockstep, interrupted_after, sizes, write_corpora
from support.soak_corpora import expected_minibatch, plain_minibatch, soak_corpus

WARM_UP_ROUNDS = 40
ROUNDS_BETWEEN_STANDINGS = 10


class Reading:
    """A source, and the slow timeline with the same settings."""

    def __init__(self, chance: random.Random, folder: Path) -> None:
        self.chance = chance
        frame_mode = chance.random() < 0.15
        lengths = [chance.randint(1, chance.choice([1, 4, 9])) for _ in range(chance.randint(1, 200))]
        self.corpus = soak_corpus(chance, folder, lengths, frame_mode=frame_mode)
        self.samples = sum(map(sum, self.corpus.chunks))
        self.truncation_length = 0 if frame_mode or chance.random() < 0.7 else chance.randint(1, 12)
        options: dict[str, Any] = chance.choice(
            [{"max_sweeps": chance.randint(1, 4)}, {"max_samples": chance.randint(1, 3 * self.samples)}]
        )
        options["truncation_length"] = self.truncation_length
        slow_options = dict(options)
        window = None
        if chance.random() < 0.7:
            slow_options["seed"] = options["randomization_seed"] = chance.choice([0, 1, chance.getrandbits(63)])
            if chance.random() < 0.5:
                window = (chance.randint(1, len(self.corpus.chunks) + 2), "chunks")
                options["randomization_window_in_chunks"] = window[0]
            else:
                window = (chance.randint(1, 2 * self.samples), "samples")
                options |= {"randomization_window_in_chunks": 0, "randomization_window_in_samples": window[0]}
        else:
            options["randomize"] = False
        self.options = options | {"frame_mode": frame_mode, "trace_level": 0}
        self.slow = SlowTimeline(self.corpus.chunks, window, **slow_options)
        self.source = self.open()

    def open(self) -> MinibatchSource:
        return MinibatchSource(self.corpus.deserializers, **self.options)

    @property
    def position(self) -> int:
        position: int = self.source.get_checkpoint_state()["minibatchSourcePosition"]
        return position

    def request(self) -> tuple[int, int, int]:
        """Return a random size, and a partition of which the slots of truncated minibatches are enough."""
        count = self.chance.randint(1, 3)
        least = count * max(1, self.truncation_length)
        size = self.chance.randint(least, max(least, self.chance.choice([5, 30, 2 * self.samples])))
        return size, self.chance.randrange(count), count

    def read(self, size: int, index: int, count: int) -> None:
        """Read a minibatch, and compare its sequences, values and position."""
        minibatch = self.source.next_minibatch(size, num_data_partitions=count, partition_index=index)
        self.compare(minibatch, self.slow.read(size, index, count))

    def compare(self, minibatch: Any, found: Any) -> None:
        delivered = plain_minibatch(self.corpus, minibatch, self.truncation_length)
        if found is None or found[0]:
            expected = expected_minibatch(self.corpus, found, self.truncation_length)
            assert delivered == expected, f"{delivered}, expected {expected}"
        else:  # the partition has no sequence in this sweep
            assert delivered is None or not delivered[0], f"{delivered}, expected no sequence"
        assert self.position == self.slow.position, f"at {self.position}, expected {self.slow.position}"

    def interrupted(self, size: int, index: int, count: int) -> bool:
        """Read while an interrupt arrives at a random moment: the minibatch is delivered whole, or not at all."""
        before = self.source.state_dict()
        delivered: list[Any] = []

        def read() -> None:
            delivered.append(self.source.next_minibatch(size, num_data_partitions=count, partition_index=index))

        if interrupted_after(self.chance.random() * 0.002 + 1e-6, read):
            if self.source.state_dict() != before:
                self.slow.read(size, index, count)
            assert self.position == self.slow.position
            return True
        self.compare(delivered[0], self.slow.read(size, index, count))
        return False

    def in_child(self, size: int, index: int, count: int) -> None:
        """Continue to read in a fork of the process, and then in this process."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for _ in range(5):
                    self.read(size, index, count)
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert status == 0, "a fork read something else"


def one_round(chance: random.Random, folder: Path, counts: Counter[str]) -> None:
    """Read a random source in steps, and compare it with the slow timeline."""
    reading = Reading(chance, folder)
    saved: list[tuple[dict[str, Any], SlowTimeline]] = []
    request = reading.request()
    try:
        for _ in range(chance.randint(5, 40)):
            what = chance.random()
            if what < 0.15:
                request = reading.request()
            if what < 0.3:
                saved.append((reading.source.state_dict(), copy.deepcopy(reading.slow)))
            elif what < 0.4 and saved:
                state, slow = chance.choice(saved)
                if chance.random() < 0.5:
                    reading.source.close()
                    reading.source = reading.open()
                reading.source.load_state_dict(state)
                reading.slow = copy.deepcopy(slow)
                counts["restores"] += 1
            elif what < 0.43:
                reading.in_child(*request)
                counts["forks"] += 1
            elif what < 0.6:
                counts["interrupts"] += reading.interrupted(*request)
            reading.read(*request)
            counts["reads"] += 1
    finally:
        reading.source.close()


def lockstep_round(chance: random.Random, folder: Path, counts: Counter[str]) -> None:
    """Interrupt a source that the slow timeline cannot imitate, and compare it with an equal source."""
    kind = KINDS[chance.choice(["balanced", "global", "rolling window", *(name for name in KINDS if "user" in name)])]
    lockstep = Lockstep(kind, folder, lambda action: interrupted_after(chance.random() * 0.002 + 1e-6, action))
    for size in itertools.islice(sizes(), chance.randint(5, 30)):
        if lockstep.read(size):
            lockstep.restore()
            counts["restores"] += 1
        counts["reads"] += 1
    lockstep.close()
    counts["interrupts"] += lockstep.num_interrupts


class Standing(NamedTuple):
    """Resources that the process holds between two rounds.

    Attributes:
        descriptors: Open descriptors.
        threads: Threads of the operating system.
        objects: Objects that Python's garbage collector knows.
        allocated: MB that the C library has given out, in Python and in the core; 0 where it does not tell.
        resident: MB in memory that are not from files, after the allocators have returned what they keep.
    """

    descriptors: float
    threads: float
    objects: float
    allocated: float
    resident: float


# Later rounds may hold this much more than earlier rounds, because of Python's caches and fragmented memory.
ALLOWED = Standing(descriptors=0, threads=0, objects=500, allocated=1, resident=4)

# Allocators keep freed memory, and they keep more the longer a process runs: the core keeps large blocks, Python keeps
# whole arenas, and the C library has an arena for each thread. With these settings all memory comes from one arena.
ENVIRONMENT = {"PYTHONMALLOC": "malloc", "MALLOC_ARENA_MAX": "1"}


class _Allocated(ctypes.Structure):
    """The result of `mallinfo2` of the GNU C library."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keep",
        )
    ]


def standing() -> Standing:
    """Return the resources that the process holds now."""
    gc.collect()
    _core.release_kept_memory()
    library = ctypes.CDLL(None)
    allocated = 0
    with contextlib.suppress(AttributeError):  # another C library
        library.malloc_trim(0)
        library.mallinfo2.restype = _Allocated
        figures = library.mallinfo2()
        allocated = figures.uordblks + figures.hblkhd
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return Standing(
        sum(1 for _ in Path("/proc/self/fd").iterdir()),
        int(status["Threads"]),
        len(gc.get_objects()),
        allocated / (1 << 20),
        int(status["RssAnon"].split()[0]) / 1024,
    )


def growth(standings: list[Standing]) -> Standing | None:
    """Return the growth of the process from the first third of a run to the last; None for a short run.

    The resources of rounds vary at random, so compare the least of the last third with the most of the first third:
    a process that keeps a little of every round has more even at its least.

    Example:
        >>> growth([Standing(9, 5, 1000, number, 50) for number in range(9)])
        Standing(descriptors=0, threads=0, objects=0, allocated=4, resident=0)
    """
    third = len(standings) // 3
    if third < 3:
        return None
    first, last = zip(*standings[:third], strict=True), zip(*standings[-third:], strict=True)
    return Standing(*(min(after) - max(before) for before, after in zip(first, last, strict=True)))


def is_flat(grown: Standing | None) -> bool:
    """Return whether this growth shows a process that keeps nothing of its rounds."""
    return grown is None or all(more <= allowed for more, allowed in zip(grown, ALLOWED, strict=True))


def main() -> int:
    """Run for the requested number of seconds."""
    if not os.environ.items() >= ENVIRONMENT.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ENVIRONMENT})
    seconds = float(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 2**32
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    counts: Counter[str] = Counter()
    standings: list[Standing] = []
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other_folder:
        write_corpora(Path(other_folder))
        for number in itertools.count(first):
            if time.monotonic() > begin + seconds:
                break
            rounds = number - first
            if rounds >= WARM_UP_ROUNDS and rounds % ROUNDS_BETWEEN_STANDINGS == 0:
                standings.append(standing())
            try:
                chance = random.Random(f"{seed} {number}")
                if chance.random() < 0.85:
                    one_round(chance, Path(folder), counts)
                else:
                    lockstep_round(chance, Path(other_folder), counts)
            except BaseException:
                print(f"round {number} of seed {seed} failed", file=sys.stderr)
                raise
            counts["rounds"] += 1
    facts = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    print(f"seed {seed}, {time.monotonic() - begin:.0f} s: {facts}")
    grown = growth(standings)
    for name, of_all in zip(Standing._fields, zip(*standings, strict=True), strict=True) if standings else ():
        tenths = [of_all[len(of_all) * tenth // 10] for tenth in range(10)]
        print(f"{name}: {', '.join(f'{round(number, 1)}' for number in (*tenths, of_all[-1]))}")
    print("too short a run to judge growth" if grown is None else f"growth {grown}")
    return 0 if is_flat(grown) else 1


if __name__ == "__main__":
    sys.exit(main())

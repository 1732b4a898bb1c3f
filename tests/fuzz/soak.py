"""Random sources, sizes, partitions, restores, forks and interrupts, compared with the slow timeline for minutes.

    python tests/fuzz/soak.py SECONDS [SEED]

Each round opens a random corpus, and reads it in steps. At the end of the run, memory and descriptors must be as at
its beginning. A failure prints the seed and the number of its round: `soak.py SECONDS SEED ROUND` begins there.
"""

import copy
import gc
import itertools
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "python")]

from cntkio import CTFDeserializer, MinibatchSource  # noqa: E402
from slow.timeline import SlowTimeline  # noqa: E402
from support.builders import STREAMS, corpus_text  # noqa: E402

MOST_GROWTH_IN_MB = 64
WARM_UP_ROUNDS = 40


class Reading:
    """A source and the slow timeline next to it."""

    def __init__(self, chance: random.Random, folder: Path) -> None:
        self.chance = chance
        self.lengths = [chance.randint(1, chance.choice([1, 4, 9])) for _ in range(chance.randint(1, 200))]
        self.path = folder / "a.ctf"
        self.path.write_bytes(corpus_text(self.lengths))
        self.deserializer = CTFDeserializer(
            self.path,
            STREAMS,
            chunk_size_in_bytes=chance.choice([60, 300, 2000, 1 << 20]),
            cache_index=chance.random() < 0.3,
        )
        with closing(self.deserializer.open()) as corpus:
            starts = corpus.table.chunk_starts.tolist()
        chunks = [self.lengths[begin:end] for begin, end in itertools.pairwise(starts)]
        samples = sum(self.lengths)
        self.options: dict[str, Any] = chance.choice(
            [{"max_sweeps": chance.randint(1, 4)}, {"max_samples": chance.randint(1, 3 * samples)}]
        )
        slow_options = dict(self.options)
        window = None
        if chance.random() < 0.7:
            slow_options["seed"] = self.options["randomization_seed"] = chance.choice([0, 1, chance.getrandbits(63)])
            if chance.random() < 0.5:
                window = (chance.randint(1, len(chunks) + 2), "chunks")
                self.options["randomization_window_in_chunks"] = window[0]
            else:
                window = (chance.randint(1, 2 * samples), "samples")
                self.options |= {"randomization_window_in_chunks": 0, "randomization_window_in_samples": window[0]}
        else:
            self.options["randomize"] = False
        self.slow = SlowTimeline(chunks, window, **slow_options)
        self.source = self.open()
        self.samples = samples

    def open(self) -> MinibatchSource:
        return MinibatchSource(self.deserializer, **self.options)

    @property
    def position(self) -> int:
        position: int = self.source.get_checkpoint_state()["minibatchSourcePosition"]
        return position

    def read(self, size: int, index: int, count: int) -> None:
        """Read a minibatch, and compare its sequences, values and position."""
        expected = self.slow.read(size, index, count)
        self.compare(self.source.next_minibatch(size, num_data_partitions=count, partition_index=index), expected)

    def compare(self, minibatch: Any, expected: Any) -> None:
        if expected is None:
            assert not minibatch, f"a minibatch of {minibatch.num_sequences} after the end"
            return
        keys = minibatch.keys_of_sequences.tolist() if minibatch else []
        assert keys == expected[0], f"{keys}, expected {expected[0]}"
        if keys:
            x = minibatch["x"]
            pairs = [[float(key), float(step)] for key in keys for step in range(self.lengths[key])]
            assert x.values.tolist() == pairs
            assert minibatch["s"].indices.tolist() == [key % 1000 for key in keys for _ in range(self.lengths[key])]
            assert x.end_of_sweep == expected[1]
        assert self.position == self.slow.position, f"at {self.position}, expected {self.slow.position}"

    def interrupted(self, size: int, index: int, count: int) -> bool:
        """Read while an interrupt arrives at a random moment; the minibatch may be lost only as a whole."""
        minibatch = None
        try:
            signal.setitimer(signal.ITIMER_REAL, self.chance.random() * 0.002 + 1e-6)
            minibatch = self.source.next_minibatch(size, num_data_partitions=count, partition_index=index)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0)
            if self.position != self.slow.position:
                self.slow.read(size, index, count)
            assert self.position == self.slow.position
            return True
        self.compare(minibatch, self.slow.read(size, index, count))
        return False

    def in_child(self, size: int, index: int, count: int) -> None:
        """Read on in a fork of the process, and then here."""
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
    reading = Reading(chance, folder)
    saved: list[tuple[dict[str, Any], SlowTimeline]] = []
    request = (chance.randint(1, 30), 0, 1)
    try:
        for _ in range(chance.randint(5, 40)):
            what = chance.random()
            if what < 0.15:
                count = chance.randint(1, 3)
                request = (
                    chance.randint(1, chance.choice([5, 30, 2 * reading.samples])),
                    chance.randrange(count),
                    count,
                )
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


def standing() -> tuple[int, float]:
    """The open descriptors, and the memory in use in MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return sum(1 for _ in Path("/proc/self/fd").iterdir()), pages * resource.getpagesize() / (1 << 20)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Run for the seconds that are asked for."""
    seconds = float(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 2**32
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    signal.signal(signal.SIGALRM, interrupt)
    counts: Counter[str] = Counter()
    begin, before = time.monotonic(), (0, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        for number in itertools.count(first):
            if time.monotonic() > begin + seconds:
                break
            if number == first + WARM_UP_ROUNDS:
                before = standing()
            try:
                one_round(random.Random(f"{seed} {number}"), Path(folder), counts)
            except BaseException:
                print(f"round {number} of seed {seed} failed", file=sys.stderr)
                raise
            counts["rounds"] += 1
    after = standing()
    facts = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    print(f"seed {seed}, {time.monotonic() - begin:.0f} s: {facts}")
    print(f"descriptors {before[0]} then {after[0]}, memory {before[1]:.0f} MB then {after[1]:.0f} MB")
    is_flat = counts["rounds"] <= WARM_UP_ROUNDS or (
        after[0] <= before[0] and after[1] <= before[1] + MOST_GROWTH_IN_MB
    )
    return 0 if is_flat else 1


if __name__ == "__main__":
    sys.exit(main())

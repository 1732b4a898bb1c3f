"""Batches by padded size: pools of cntkio, buckets of Lhotse, and pools as torchtext made them, on the same lengths.

    python bench/bucketing.py [--sequences 100000]

The lengths have a log-normal distribution with the median 60. Each planner makes shuffled batches whose padded
size, the longest length times the number of sequences, is at most 32 mean lengths. The table shows the share of padding
in all batches, the mean number of sequences in a batch, batches per second, and the seconds from a state in the middle
of the epoch, in a new object, to the next batch; the times are those of the processor, best of several rounds. No data
are read. A pool of torchtext's kind has no state, so that its job makes the first half of the epoch's batches again.

The environment needs cntkio and lhotse, which needs torch; without lhotse its row is left out.
"""

from __future__ import annotations

import argparse
import functools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from batches import lengths_of
from cntkio import Budget
from cntkio.timeline import Timeline, Window

ROUNDS = 3
POOL = 10_000
BUCKETS = 30
Lengths = npt.NDArray[np.uint32]
# A planner yields the lengths of each batch; the function returns a state for the batches that follow.
Planner = tuple[Iterator[npt.ArrayLike], Callable[[], Any]]


def plan_cntkio(lengths: Lengths, area: int, state: Any) -> Planner:
    """Pools of the randomized order, as `Budget(pool=...)` makes them."""
    chunk_starts = np.append(np.arange(0, len(lengths), 1000), len(lengths))
    timeline = Timeline(lengths, chunk_starts, window=Window(128, "chunks"), max_sweeps=1)
    if state is not None:
        timeline.load_state(state)
    size = Budget(padded=area, pool=POOL, oversize="alone")

    def batches() -> Iterator[npt.ArrayLike]:
        while (selection := timeline.read(size)) is not None:
            yield lengths[selection.sequences]

    return batches(), timeline.state


@functools.cache
def cuts_of(lengths: bytes) -> Any:
    """Return Lhotse's manifest of the sequences, which a job has before it begins."""
    from lhotse import CutSet
    from lhotse.cut import MonoCut

    durations = np.frombuffer(lengths, np.uint32).tolist()
    return CutSet.from_items(
        MonoCut(id=str(key), start=0.0, duration=float(length), channel=0) for key, length in enumerate(durations)
    )


def plan_lhotse(lengths: Lengths, area: int, state: Any) -> Planner:
    """Lhotse's dynamic bucketing, with as many sequences in its buffer as a pool has."""
    from lhotse.dataset import DynamicBucketingSampler

    sampler = DynamicBucketingSampler(
        cuts_of(lengths.tobytes()),
        max_duration=float(area),
        num_buckets=BUCKETS,
        shuffle=True,
        buffer_size=POOL,
        rank=0,
        world_size=1,
    )
    if state is not None:
        sampler.load_state_dict(state)
    return ([cut.duration for cut in batch] for batch in sampler), sampler.state_dict


def plan_torchtext(lengths: Lengths, area: int, state: Any) -> Planner:
    """Shuffle, sort each pool by length, cut it into batches, and shuffle the batches of the pool."""
    shuffled = random.Random(1)
    order = list(range(len(lengths)))
    shuffled.shuffle(order)
    of = lengths.tolist()

    def cut(pool: list[int]) -> list[list[int]]:
        batches: list[list[int]] = [[]]
        for length in sorted(of[key] for key in pool):
            if batches[-1] and length * (len(batches[-1]) + 1) > area:
                batches.append([])
            batches[-1].append(length)
        shuffled.shuffle(batches)
        return batches

    batches = (batch for start in range(0, len(order), POOL) for batch in cut(order[start : start + POOL]))
    for _ in range(state or 0):
        next(batches)
    return batches, int


PLANNERS: dict[str, Callable[[Lengths, int, Any], Planner]] = {
    f"cntkio, pool of {POOL:,}": plan_cntkio,
    f"Lhotse, {BUCKETS} buckets": plan_lhotse,
    f"torchtext, pool of {POOL:,}": plan_torchtext,
}


def measure(
    plan: Callable[[Lengths, int, Any], Planner], lengths: Lengths, area: int
) -> tuple[float, float, float, float]:
    """Return the share of padding, sequences per batch, and seconds for each batch and for going to a state."""
    next(plan(lengths, area, None)[0])  # a warm-up
    batches, _ = plan(lengths, area, None)
    start = time.process_time()
    delivered = [np.asarray(batch) for batch in batches]
    seconds = (time.process_time() - start) / len(delivered)
    padded = sum(float(batch.max()) * len(batch) for batch in delivered)

    batches, state = plan(lengths, area, None)
    for _ in range(len(delivered) // 2):
        next(batches)
    saved = state() or len(delivered) // 2
    start = time.process_time()
    next(plan(lengths, area, saved)[0])
    resumed = time.process_time() - start
    return 1 - float(lengths.sum()) / padded, len(lengths) / len(delivered), seconds, resumed


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=100_000)
    lengths = lengths_of(parser.parse_args().sequences)
    area = 32 * int(lengths.mean())
    print(f"{len(lengths):,} sequences\n{'':<26}  padding  sequences  batches/s  to a state in the middle")
    for name, plan in PLANNERS.items():
        try:
            rounds = [measure(plan, lengths, area) for _ in range(ROUNDS)]
        except ModuleNotFoundError as error:
            print(f"{name:<26}  left out: {error}")
            continue
        padding, sequences, *_ = rounds[0]
        seconds, resumed = (min(each[place] for each in rounds) for place in (2, 3))
        print(f"{name:<26}  {padding:7.1%}  {sequences:9.1f}  {1 / seconds:9,.0f}  {resumed:22.3f} s", flush=True)


if __name__ == "__main__":
    main()

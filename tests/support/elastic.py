"""A state of global partitions continues on another number of ranks."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from cntkio import GlobalPartition

STEPS = 3  # of each job


def require_same_minibatches(
    make: Callable[[], Any], size: Any, ranks: Sequence[int], whole: Sequence[tuple[list[int], bool]]
) -> None:
    """Run a job after another, each with its number of ranks, from the state of the job before.

    Args:
        make: Makes the timeline of a rank.
        size: Size of minibatches.
        ranks: Number of ranks of each job.
        whole: The sequences of each minibatch of a single reader, and whether a sweep ends with it.
    """
    state, number = None, 0
    for count in ranks:
        timelines = [make() for _ in range(count)]
        for timeline in timelines if state is not None else ():
            timeline.load_state(state)
        for _ in range(STEPS):
            reads = [timeline.read(size, GlobalPartition(index, count)) for index, timeline in enumerate(timelines)]
            sequences = sorted(sequence for read in reads if read for sequence in read.sequences.tolist())
            assert sequences == (sorted(whole[number][0]) if number < len(whole) else [])
            number += 1
        states = [json.dumps(timeline.state()) for timeline in timelines]
        assert len(set(states)) == 1
        state = json.loads(states[0])

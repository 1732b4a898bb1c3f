"""Sequences that are left out never come again, and the order of all others stays. (docs/ledger.md)"""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cntkio import BalancedPartition, Budget, GlobalPartition, Partition
from cntkio.timeline import Timeline, Window
from cntkio.timeline.selection import Omissions
from hypothesis import given, settings
from hypothesis import strategies as st
from slow.omissions import kept, minibatches, order
from support.rounds import rounds

MANY = 10**9
NO_LIMITS = {"samples": MANY, "padded": MANY, "sequences": MANY}
SIZES: dict[str, tuple[Any, dict[str, int]]] = {
    "samples": (9, {"samples": 9}),
    "budget": (Budget(samples=12, oversize="alone"), {"samples": 12}),
    "padded": (Budget(padded=20, sequences=3, oversize="alone"), {"padded": 20, "sequences": 3}),
}
POOLS = [
    Budget(padded=24, pool=6, oversize="alone"),
    Budget(samples=12, pool=20, pool_unit="samples", oversize="alone"),
    Budget(rows=6, row_length=8, pool=5),
]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[list[int]], int, int, dict[int, set[int]]]:
    chunks = draw(st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=6), min_size=1, max_size=5))
    num_sequences, num_samples = sum(map(len, chunks)), sum(map(sum, chunks))
    some = st.sets(st.integers(0, num_sequences - 1), max_size=num_sequences - 1)
    left_out = draw(st.dictionaries(st.integers(0, 2 * num_samples), some, max_size=2))
    # A partition that owns only sequences that are left out would have nothing.
    if len(set().union(*left_out.values())) == num_sequences:
        left_out = {}
    return chunks, draw(st.sampled_from([0, 128])), draw(st.integers(0, 9)), left_out


def timeline(
    chunks: list[list[int]], window: int, seed: int, left_out: dict[int, set[int]], sweeps: int = 2
) -> Timeline:
    lengths = np.array(sum(chunks, []), np.uint32)
    since, positions = np.zeros(len(lengths), np.uint8), sorted(left_out)
    for number, position in reversed(list(enumerate(positions, 1))):
        since[sorted(left_out[position])] = number
    starts = np.cumsum([0, *map(len, chunks)])
    made = Omissions(since, positions, []) if left_out else None
    in_window = Window(window, "chunks") if window else None
    return Timeline(lengths, starts, window=in_window, seed=seed, max_sweeps=sweeps, omissions=made)


def reads(one: Timeline, size: Any, partition: Partition = Partition()) -> Iterator[list[int]]:  # noqa: B008
    while (selection := one.read(size, partition)) is not None:
        yield selection.sequences.tolist()


@pytest.mark.parametrize("name", SIZES)
@settings(max_examples=rounds(15))
@given(case=cases())
def test_minibatches_are_those_of_the_slow_twin(name: str, case: Any) -> None:
    chunks, window, seed, left_out = case
    size, limits = SIZES[name]
    places = kept(order(chunks, window, seed, 2), left_out)
    expected = minibatches(places, **{**NO_LIMITS, **limits}, crosses_sweeps=name == "samples")
    assert [read for read in reads(timeline(*case), size) if read] == expected
    # Reads of any number at once are the same, and so are reads that continue from a state.
    one, found = timeline(*case), list[list[int]]()
    while (several := one.read_several(size, Partition(), 3)) is not None:
        bounds, sequences = several.bounds, several.selection.sequences.tolist()
        found += [sequences[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
        state = json.loads(json.dumps(one.state()))
        one = timeline(*case)
        one.load_state(state)
    assert [read for read in found if read] == expected


@settings(max_examples=rounds(15))
@given(
    case=cases(), size=st.sampled_from([7, 12, *POOLS, Budget(samples=12, oversize="alone")]), count=st.integers(1, 3)
)
def test_each_kept_sequence_comes_once_a_sweep_on_all_ranks(case: Any, size: Any, count: int) -> None:
    chunks, window, seed, left_out = case
    if not window and isinstance(size, Budget) and size.pool is not None:
        size = 12
    expected = Counter(place[0] for place in kept(order(chunks, window, seed, 2), left_out))
    ranks = [GlobalPartition(rank, count) for rank in range(count)]
    steps = [list(reads(timeline(*case), size, rank)) for rank in ranks]
    assert len({*map(len, steps)}) == 1
    assert Counter(sequence for of_rank in steps for read in of_rank for sequence in read) == expected
    if count <= len(chunks):
        found = Counter[int]()
        for rank in range(count):
            found.update(sequence for read in reads(timeline(*case), size, Partition(rank, count)) for sequence in read)
        assert found == expected
    # After any step the rest is the same on another number of ranks.
    for step in range(len(steps[0]) + 1):
        whole = timeline(*case)
        for _ in range(step):
            whole.read(size, GlobalPartition(0, 1))
        state = whole.state()
        rest = sorted(sequence for of_rank in steps for read in of_rank[step:] for sequence in read)
        found_rest = []
        for rank in range(2):
            other = timeline(*case)
            other.load_state(state)
            found_rest += [sequence for read in reads(other, size, GlobalPartition(rank, 2)) for sequence in read]
        assert sorted(found_rest) == rest


@settings(max_examples=rounds(15))
@given(case=cases(), size=st.sampled_from([7, 12, *POOLS]), count=st.integers(1, 3))
def test_balanced_ranks_have_equal_numbers_of_minibatches(case: Any, size: Any, count: int) -> None:
    chunks, window, seed, left_out = case
    if not window and isinstance(size, Budget):
        size = 12
    expected = Counter(place[0] for place in kept(order(chunks, window, seed, 2), left_out))
    ranks = [BalancedPartition(rank, count, "repeat") for rank in range(count)]
    steps = [list(reads(timeline(*case), size, rank)) for rank in ranks]
    assert len({*map(len, steps)}) == 1
    found = Counter(sequence for of_rank in steps for read in of_rank for sequence in read)
    assert found.keys() == expected.keys()
    assert all(found[sequence] >= number for sequence, number in expected.items())


def test_a_partition_of_which_all_sequences_are_left_out_ends() -> None:
    one = timeline([[1, 1, 1, 1]], 0, 0, {0: {0, 2}}, sweeps=2**40)
    assert one.read(2, Partition(0, 2)) is None
    assert one.read(2, Partition(1, 2)) is not None

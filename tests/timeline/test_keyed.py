"""The keyed order: the quality of its permutations, its costs, and the settings that it refuses."""

from __future__ import annotations

import bisect
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cntkio import CTFDeserializer, GlobalPartition, MinibatchSource, Partition, infer_streams
from cntkio.errors import CheckpointError, ConfigError
from cntkio.timeline import Timeline, Window
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow.timeline import permutation
from support.rounds import rounds

KEYED = Window(2**40, "samples", "keyed")
properties = settings(max_examples=rounds(100), suppress_health_check=list(HealthCheck), deadline=None)


def order_of(count: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the order of a sweep over one window of one chunk."""
    timeline = Timeline(np.ones(count, np.uint32), np.array([0, count]), window=KEYED, seed=seed, max_sweeps=1)
    selection = timeline.read(count)
    assert selection is not None
    return selection.sequences


@pytest.mark.parametrize("count", [2, 3, 5, 8, 13, 64, 200, 1000])
def test_each_place_has_each_sequence_equally_often(count: int) -> None:
    num_keys, num_cells = 4000 // count * 10, min(count, 16)
    counts = np.zeros((num_cells, num_cells))
    for seed in range(num_keys):
        order = order_of(count, seed)
        np.add.at(counts, (np.arange(count) * num_cells // count, order * num_cells // count), 1)
    widths = np.bincount(np.arange(count) * num_cells // count)
    expected = np.outer(widths, widths) * num_keys / count
    # A sum over cells whose rows and columns are fixed has (cells - 1)^2 degrees of freedom.
    freedom = (num_cells - 1) ** 2
    chi_square = float(((counts - expected) ** 2 / expected).sum()) * (count - 1) / count
    assert abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom) + 3


def test_sequences_move_and_leave_their_neighbours_as_in_a_uniform_shuffle() -> None:
    count = 100_000
    for seed in range(3):
        order = order_of(count, seed)
        displacement = np.abs(order - np.arange(count)).mean() / count
        assert abs(displacement - 1 / 3) < 0.004  # a third of the window
        assert np.count_nonzero(np.abs(np.diff(order)) == 1) < 15  # two of 100,000 pairs, on average
        lag = np.corrcoef(order[1:], order[:-1])[0, 1]
        assert abs(lag) < 0.015
    assert abs(np.corrcoef(order_of(count, 0), order_of(count, 1))[0, 1]) < 0.015


def test_the_network_gives_known_orders() -> None:
    assert permutation(10, 0) == [0, 4, 5, 3, 7, 2, 9, 8, 1, 6]
    assert order_of(10, 0).tolist() == [7, 9, 4, 6, 5, 3, 8, 0, 1, 2]


def test_a_place_is_entered_without_the_places_before_it() -> None:
    table = np.broadcast_to(np.array([1], np.uint32), 4_000_000_000), np.arange(0, 4_000_000_001, 32_000)
    timeline = Timeline(*table, window=Window(128, "chunks", "keyed"))
    begin = time.process_time()
    timeline.go_to(3_600_000_000)
    following = timeline.read(4)
    assert timeline.pass_over(4, Partition(), 10**9, 2**63) == 10**9
    assert timeline.position == 3_600_000_000 + 4 * (10**9 + 1)
    assert timeline.read(4) is not None
    assert time.process_time() - begin < 1
    timeline.go_to(3_600_000_000)
    again = timeline.read(4)
    assert following is not None and again is not None
    assert following.sequences.tolist() == again.sequences.tolist()


def test_other_orders_are_refused_where_they_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    path.write_text("".join(f"{key} |x {key}\n" for key in range(50)))
    corpus = CTFDeserializer(str(path), infer_streams(str(path)))
    with pytest.raises(ConfigError, match="order='keyed' needs a window"):
        MinibatchSource(corpus, randomize=False, order="keyed")
    with pytest.raises(ConfigError, match="keyed"):
        MinibatchSource(corpus, order="keyd")  # type: ignore[arg-type]
    with MinibatchSource(corpus, order="keyed") as keyed, MinibatchSource(corpus) as cntk:
        keyed.read(7)
        state = keyed.state_dict()
        with pytest.raises(CheckpointError, match=r"randomization_window.*keyed"):
            cntk.load_state_dict(state)
        following = [keyed.read(7).keys_of_sequences.tolist() for _ in range(9)]
        planned = [keyed.plan(7).explain(step).keys.tolist() for step in range(1, 10)]
    with MinibatchSource(corpus, order="keyed") as again:
        again.load_state_dict(state)
        assert [again.read(7).keys_of_sequences.tolist() for _ in range(9)] == following == planned


@properties
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=60),
    size=st.integers(1, 12),
    window=st.integers(1, 6),
    data=st.data(),
)
def test_a_place_is_the_same_from_both_ends_of_its_window(
    lengths: list[int], size: int, window: int, data: st.DataObject
) -> None:
    starts = np.array([*range(0, len(lengths), size), len(lengths)])
    table = np.array(lengths, np.uint32), starts
    options: Any = {"window": Window(window, "chunks", "keyed"), "max_sweeps": 2}
    walked = Timeline(*table, **options)
    total, at = sum(lengths), 0
    positions = [0]
    found = [walked.read(1) for _ in range(2 * len(lengths))]
    sequences = [one.sequences[0] for one in found if one is not None]
    for sequence in sequences:
        at += lengths[sequence]
        positions.append(at)
    sought = Timeline(*table, **options)
    for position in [data.draw(st.integers(0, 2 * total - 1)) for _ in range(3)]:
        sought.go_to(position)
        place = bisect.bisect_left(positions, position)
        assert sought.position == positions[place]
        following = sought.read(1)
        assert (following is None) == (place == len(sequences))
        assert following is None or following.sequences[0] == sequences[place]


def test_a_place_near_the_end_of_a_window_costs_what_follows_it() -> None:
    lengths = np.tile(np.array([1, 2, 3, 4], np.uint32), 500_000)
    timeline = Timeline(lengths, np.array([0, len(lengths)]), window=KEYED, max_sweeps=1)
    seconds = []
    for position in (10, 2_500_000, 4_999_990):
        begin = time.process_time()
        timeline.go_to(position)
        seconds.append(time.process_time() - begin)
    assert max(seconds[0], seconds[2]) < seconds[1] / 4, seconds


def test_a_state_is_restored_without_a_search() -> None:
    lengths = np.tile(np.array([1, 2, 3, 4], np.uint32), 250_000)
    timeline, again = (Timeline(lengths, np.array([0, len(lengths)]), window=KEYED, max_sweeps=2) for _ in range(2))
    begin = time.process_time()
    timeline.go_to(3_750_000)
    searched = time.process_time() - begin
    timeline.read(5)
    state = timeline.state()
    begin = time.process_time()
    again.load_state(state)
    assert time.process_time() - begin < searched / 4
    following, restored = timeline.read(90), again.read(90)
    assert following is not None and restored is not None
    assert following.sequences.tolist() == restored.sequences.tolist()
    assert following.position == restored.position and again.state() == timeline.state()


@properties
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=60),
    size=st.integers(1, 12),
    window=st.integers(1, 6),
    partition=st.sampled_from(
        [Partition(), Partition(1, 2), GlobalPartition(0, 3), GlobalPartition(1, 2, deal="chunk")]
    ),
    data=st.data(),
)
def test_a_damaged_place_changes_nothing(
    lengths: list[int], size: int, window: int, partition: Partition, data: st.DataObject
) -> None:
    table = np.array(lengths, np.uint32), np.array([*range(0, len(lengths), size), len(lengths)])
    options: Any = {"window": Window(window, "chunks", "keyed"), "max_sweeps": 2}

    def read_on(state: dict[str, Any]) -> list[Any]:
        timeline = Timeline(*table, **options)
        timeline.load_state(state)
        found = [timeline.read(7, partition) for _ in range(5)]
        return [one and (one.sequences.tolist(), one.position) for one in found]

    timeline = Timeline(*table, **options)
    for _ in range(data.draw(st.integers(1, 20))):
        timeline.read(4)
    state = timeline.state()
    searched = {name: value for name, value in state.items() if name != "place"}
    expected = read_on(searched)
    assert read_on(state) == expected
    index, check_sum = state.get("place", (0, 0))
    others = [index + 1, max(index - 1, 0), data.draw(st.integers(0, len(lengths))), 2**40]
    for place in [*([other, check_sum] for other in others), [index, check_sum ^ 1], [0, 0]]:
        assert read_on({**searched, "place": place}) == expected
    # The position governs, and the place belongs to another.
    moved = {**state, "position": data.draw(st.integers(0, 2 * sum(lengths)))}
    assert read_on(moved) == read_on({name: value for name, value in moved.items() if name != "place"})


@pytest.mark.parametrize("place", [None, 5, "ab", [], [1], [1, 2, 3], [-1, 2], [True, 2], [1, 2**64]])
def test_an_impossible_place_is_refused(place: Any) -> None:
    timeline = Timeline(np.ones(9, np.uint32), np.array([0, 4, 9]), window=KEYED)
    with pytest.raises(CheckpointError, match="place"):
        timeline.load_state({"position": 3, "place": place})

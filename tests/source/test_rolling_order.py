"""The order of frames of a rolling window, with its slow twin."""

from cntkio.htkmlf_reader import rolling_order
from hypothesis import given, settings
from hypothesis import strategies as st
from slow.htkmlf_reader import rolling_order as slow_rolling_order
from support.twister import draws


def test_the_twins_generator_gives_the_check_values_of_its_authors() -> None:
    numbers = draws(0)
    assert [next(numbers) for _ in range(3)] == [2947667278772165694, 18301848765998365067, 729919693006235833]


@settings(deadline=None)
@given(st.integers(0, 700), st.one_of(st.integers(0, 50), st.integers(0, 2**64 - 1)), st.integers(0, 2**64 - 1))
def test_the_rolling_order_equals_the_slow_twins(num_frames: int, window: int, seed: int) -> None:
    order = rolling_order(num_frames, window, seed).tolist()
    assert order == slow_rolling_order(num_frames, window, seed)
    assert sorted(order) == list(range(num_frames))
    assert all(abs(position - frame) <= window // 2 for position, frame in enumerate(order))

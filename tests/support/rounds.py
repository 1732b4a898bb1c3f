"""Number of rounds of tests: all in `make test-all`, about a quarter in `make test`. Hypothesis's profile decides."""

from hypothesis import settings


def rounds(count: int) -> int:
    """Return how many of `count` random rounds to run, at least one; also for `max_examples`."""
    return max(count * settings.default.max_examples // 100, 1)


def step(quick: int) -> int:
    """Return the distance between the cases of an exhaustive test to run: `quick`, or 1 if the profile wants all."""
    return 1 if rounds(100) >= 100 else quick

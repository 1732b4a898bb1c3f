"""Settings of all tests, and fixtures that several rooms need.

Properties are searched without a deadline, since the machine may be busy. `make test` searches the same examples each
time, so that a failure belongs to the change; `make test-all` searches other and more examples each time.
`pytest --hypothesis-profile thorough` does so, too.
"""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("thorough", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("thorough"), max_examples=34, derandomize=True)
settings.load_profile("quick")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT raise `KeyboardInterrupt`, even in a process that `&` or `nohup` started and that would ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)

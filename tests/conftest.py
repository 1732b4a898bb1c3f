"""Settings of all tests, and fixtures that several rooms need.

Properties are searched without a deadline, since the machine may be busy.
"""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("cntkio", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cntkio")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT raise `KeyboardInterrupt`, even in a process that `&` or `nohup` started and that would ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)

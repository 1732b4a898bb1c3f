"""What holds for all tests.

Properties are searched without a clock, since the machine may be busy. Tests that load other libraries come last, and
load them when they run: JAX warns of every fork in its process from then on, and warnings are errors here; with polars
in the process, an interrupt does not end a wait.
"""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("cntkio", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cntkio")

_LAST = ["test_arrow.py", "test_jax.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put those tests behind all others; they keep their order."""
    items.sort(key=lambda item: _LAST.index(item.path.name) if item.path.name in _LAST else -1)

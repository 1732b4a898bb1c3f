"""What holds for all tests: those that load other libraries come last, and load them when they run.

JAX warns of every fork in its process from then on, and warnings are errors here. With polars in the process, an
interrupt does not end a wait.
"""

import pytest

_LAST = ["test_arrow.py", "test_jax.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put those tests behind all others; they keep their order."""
    items.sort(key=lambda item: _LAST.index(item.path.name) if item.path.name in _LAST else -1)

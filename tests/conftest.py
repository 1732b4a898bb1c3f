"""What holds for all tests: those that load JAX come last, and load it when they run.

JAX warns of every fork in its process from then on, and warnings are errors here.
"""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that load JAX behind all others; they keep their order."""
    items.sort(key=lambda item: item.path.name == "test_jax.py")

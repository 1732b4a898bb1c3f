"""Settings of all tests, and fixtures that several rooms need.

Properties are searched without a deadline, since the machine may be busy. `make test` searches the same examples each
time, so that a failure belongs to the change; `make test-all` searches other and more examples each time.
`pytest --hypothesis-profile thorough` does so, too. Only then do the tests run that are marked as `thorough`: further
cases, each of which takes seconds, of what another test finds as well.
"""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.rounds import step

settings.register_profile("thorough", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("thorough"), max_examples=25, derandomize=True)
settings.load_profile("quick")

# Threads of OpenMP wait for work in a loop, and so take the cores from the other processes of tests.
os.environ["OMP_NUM_THREADS"] = "1"

# Ray's own limits for starting its processes are too short for a busy machine; pages and programs of Ray inherit these.
os.environ |= {
    "RAY_gcs_server_port_wait_time_s": "250",
    "RAY_raylet_start_wait_time_s": "250",
    "RAY_worker_register_timeout_seconds": "250",
    "RAY_agent_register_timeout_ms": "250000",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every", type=int, default=1, metavar="N", help="run every N-th of the collected tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out thorough tests, and all but each N-th of the others if asked, unless the profile wants all cases."""
    if step(2) == 1:
        return
    kept = [item for item in items if not item.get_closest_marker("thorough")][:: config.getoption("every")]
    left_out = set(items).difference(kept)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = kept


def pytest_collection_finish() -> None:
    """Let the collector of cycles leave out modules and collected tests, which live as long as the process."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT raise `KeyboardInterrupt`, even in a process that `&` or `nohup` started and that would ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, which is the current one during the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def module_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that the tests of a module share, for properties, which cannot have one for each example."""
    return tmp_path_factory.mktemp("module")

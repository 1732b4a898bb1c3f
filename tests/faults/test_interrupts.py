"""An interrupt (Ctrl-C) at any moment loses no minibatch, leaves no lock taken, and blocks no thread."""

import gc
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cntkio import CTFDeserializer, MinibatchSource, SplitRows, StreamDefs, read_ctf, write_cbf
from support.builders import STREAMS, take_in_turn
from support.interrupts import (
    WITH_MIXTURES,
    At,
    Lockstep,
    in_another_thread,
    sizes,
    write_corpora,
)
from support.rounds import rounds, step

# Python discards an exception in a destructor, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PROGRAM = Path(__file__).with_name("random_interrupts.py")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora")
    write_corpora(folder)
    return folder


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect what interrupted calls left in cycles, so that its warnings reach no other test."""
    yield
    gc.collect()


def never(action: Callable[[], Any]) -> bool:
    action()
    return False


def moments(name: str = "") -> Iterator[At]:
    """Yield events as long as the previous was reached: all, or in `make test` every 29th, others for each kind."""
    first = list(WITH_MIXTURES).index(name) if name else 0
    for event_number in itertools.count(first % step(29), step(29)):
        at = At(event_number)
        yield at
        if not at.was_reached:
            assert event_number > 30
            return


@pytest.mark.parametrize("name", WITH_MIXTURES)
def test_a_first_read_can_be_interrupted_at_every_step(name: str, corpora: Path) -> None:
    for at in moments(name):
        lockstep = Lockstep(WITH_MIXTURES[name], corpora, at)
        lockstep.read(5)
        lockstep.interrupted = never
        lockstep.close()


@pytest.mark.parametrize(
    ("name", "in_turn"),
    [
        pytest.param(name, in_turn, marks=[] if (number + in_turn) % 2 else pytest.mark.thorough)
        for number, name in enumerate(WITH_MIXTURES)
        for in_turn in (False, True)
    ],
)
def test_later_reads_can_be_interrupted_at_every_step(
    name: str, in_turn: bool, corpora: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_turn:
        take_in_turn(monkeypatch)
    # Some of these reads find a minibatch ready, others have to wait, or request another size.
    for first in range(3):
        lockstep = Lockstep(WITH_MIXTURES[name], corpora, never)
        of_all_sizes = sizes()
        lockstep.read(next(of_all_sizes))
        for event_number in range(first, 150, step(7)):
            lockstep.interrupted = At(event_number)
            if lockstep.read(next(of_all_sizes)):
                lockstep.restore()
        lockstep.close()
        assert lockstep.num_interrupts > 10


@pytest.mark.parametrize("name", WITH_MIXTURES)
def test_a_restore_can_be_interrupted_at_every_step(name: str, corpora: Path) -> None:
    lockstep = Lockstep(WITH_MIXTURES[name], corpora, never)
    for at in moments(name):
        lockstep.interrupted = never
        for _ in range(2):
            lockstep.read(5)
        lockstep.interrupted = at
        lockstep.restore()
    lockstep.close()


@pytest.mark.parametrize("name", ["randomized", "rolling window", "user-defined"])
def test_a_close_can_be_interrupted_at_every_step(name: str, corpora: Path) -> None:
    threads = threading.active_count()
    for at in moments(name):
        lockstep = Lockstep(WITH_MIXTURES[name], corpora, never)
        lockstep.read(5)
        lockstep.interrupted = at
        lockstep.close()
    assert threading.active_count() <= threads + 1


@pytest.mark.parametrize("size", [3, 17])
def test_split_rows_can_be_interrupted_at_every_step(corpora: Path, size: int) -> None:
    corpus = CTFDeserializer(corpora / "a.ctf", StreamDefs(x=STREAMS["x"]), chunk_size_in_bytes=200)
    with MinibatchSource(corpus) as source, MinibatchSource(corpus) as other:
        rows, follower = (SplitRows(each, 4, rows=2, size=size) for each in (source, other))
        rows.read(), follower.read()
        start, num_interrupts = rows.state_dict(), 0
        for event_number, restores in itertools.product(range(0, 400, step(17)), (False, True)):
            num_interrupts += At(event_number)((lambda: rows.load_state_dict(start)) if restores else rows.read)
            # The interrupted call counts completely or not at all.
            if rows.state_dict() != follower.state_dict() and restores:
                follower.load_state_dict(start)
            elif rows.state_dict() != follower.state_dict():
                follower.read()
            assert rows.state_dict() == follower.state_dict()
            for _ in range(2):
                found, expected = rows.read(), follower.read()
                assert found is not None and expected is not None
                assert found.values["x"].tolist() == expected.values["x"].tolist()
                assert found.position_ids.tolist() == expected.position_ids.tolist()
            assert rows.state_dict() == follower.state_dict()
    assert num_interrupts > 10


@pytest.mark.parametrize("what", ["read_ctf", "write_cbf"])
def test_a_conversion_can_be_interrupted_at_every_step(what: str, corpora: Path, tmp_path: Path) -> None:
    def convert() -> None:
        if what == "read_ctf":
            read_ctf(corpora / "a.ctf", STREAMS)
        else:
            write_cbf(tmp_path / "a.cbf", CTFDeserializer(corpora / "a.ctf", STREAMS, chunk_size_in_bytes=200))

    for at in moments():
        at(convert)
        in_another_thread(convert)


@pytest.mark.parametrize("first", [True, False])
def test_interrupts_at_random_moments_lose_nothing_in_separate_processes(first: bool) -> None:
    arguments = ["--moments", str(rounds(30)), "--seed", "1", *(["--first"] if first else [])]
    done = subprocess.run([sys.executable, PROGRAM, *arguments], timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

"""The pipeline over a selector and a packer of numbers: errors, going back, interrupts, forks, threads."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cntkio import CorpusError, _threads
from cntkio._threads import Job, Workers
from cntkio.minibatch import Minibatch
from cntkio.source.pipeline import Epoch, HandOver, Packed, PackOrder, Pipeline, Prepared, Request, Standing
from cntkio.timeline import Partition

END = 40
REQUEST = Request(5, 5, Partition())


class Numbered(Minibatch):
    """A minibatch that knows its number, and whether it was packed."""

    def __init__(self, number: int) -> None:
        super().__init__({}, list)  # type: ignore[arg-type,return-value]
        self.number = number
        self.is_packed = False


class FakeSelector:
    """Selects the numbers from 0 to before `end`. Errors and waits can be planted at numbers."""

    def __init__(self) -> None:
        self.position = 0
        self.num_invalid = 0
        self.errors: dict[int, BaseException] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.sizes: list[int] = []
        self.went_back_to: list[int] = []
        self.threads: set[str] = set()
        self.is_closed = False
        self.held: list[int] = []
        self.end = END

    @property
    def standing(self) -> Standing:
        return Standing(self.position, self.num_invalid)

    def select(self, request: Request, most: int, hold: Any) -> HandOver:
        self.threads.add(threading.current_thread().name)
        self.held.append(hold)
        assert self.gate.wait(60)
        before = self.standing
        hand_over = HandOver([], [], before)
        while hand_over.num_minibatches < most and hand_over.goes_on:
            if self.position in self.errors:
                error = self.errors[self.position]
                self.position += isinstance(error, CorpusError)
                hand_over.add(Prepared.end(self.standing, error))
            elif self.position == self.end:
                hand_over.add(Prepared.end(self.standing))
            else:
                # Up to two at once, as from one call of a timeline.
                minibatches: list[Minibatch] = [Numbered(self.position)]
                is_room = hand_over.num_minibatches + 1 < most and self.position % 10 < 8
                if is_room and self.position + 1 not in {self.end, *self.errors}:
                    minibatches.append(Numbered(self.position + 1))
                bookmarks = [self.position + 1, self.position + 2]
                self.position += len(minibatches)
                self.num_invalid += self.position % 10 == 0
                order = PackOrder(0, 0, minibatches, [], [], None, None, [])  # type: ignore[arg-type]
                hand_over.orders.append(order)
                hand_over.add(Prepared(minibatches, [False] * len(minibatches), bookmarks, self.num_invalid))
        self.sizes.append(hand_over.num_minibatches)
        return hand_over

    def go_back(self, standing: Standing) -> None:
        self.went_back_to.append(standing.bookmark)
        self.position, self.num_invalid, _ = standing

    def begin_in_child(self, standing: Standing) -> None:
        self.gate.set()
        self.go_back(standing)

    def close(self) -> None:
        self.is_closed = True


class FakeInTurn:
    """Marks minibatches as packed when they are taken, up to three at a time."""

    def __init__(self, hand_over: HandOver, fails_at: int | None) -> None:
        self.hand_over, self.fails_at, self.num_left = hand_over, fails_at, hand_over.num_minibatches
        self.is_stopped = False

    def take(self) -> list[Prepared]:
        assert not self.is_stopped
        outcomes = self.hand_over.take(min(3, self.num_left))
        for minibatch in (minibatch for prepared in outcomes for minibatch in prepared.minibatches):
            assert isinstance(minibatch, Numbered)
            if minibatch.number == self.fails_at:
                raise MemoryError("no memory")
            minibatch.is_packed = True
            self.num_left -= 1
        return outcomes

    def run(self) -> None:
        pass

    def resume(self) -> bool:
        return False

    def stop(self) -> None:
        self.is_stopped = True

    @property
    def is_taken(self) -> bool:
        return not self.num_left

    @property
    def lets_follow(self) -> bool:
        return self.num_left < self.hand_over.num_minibatches and self.hand_over.goes_on


class FakePacker:
    """Marks minibatches as packed. Errors can be planted at numbers."""

    def __init__(self) -> None:
        self.errors: dict[int, CorpusError] = {}
        self.fails_at: int | None = None
        self.num_bytes = 100
        self.threads: set[str] = set()
        self.in_turn: list[FakeInTurn] = []

    def pack_in_turn(self, hand_over: HandOver) -> tuple[FakeInTurn, int] | None:
        if self.errors:
            return None
        self.in_turn.append(FakeInTurn(hand_over, self.fails_at))
        return self.in_turn[-1], self.num_bytes * hand_over.num_minibatches

    def pack(self, hand_over: HandOver) -> Packed:
        self.threads.add(threading.current_thread().name)
        minibatches = [minibatch for prepared in hand_over.prepared for minibatch in prepared.minibatches]
        for index, minibatch in enumerate(minibatches):
            assert isinstance(minibatch, Numbered)
            if minibatch.number == self.fails_at:
                raise MemoryError("no memory")
            if minibatch.number in self.errors:
                return Packed(self.num_bytes, index, self.errors[minibatch.number])
            minibatch.is_packed = True
        return Packed(self.num_bytes * len(minibatches), len(minibatches), None)


class Fakes:
    """A pipeline over the fake selector and the fake packer."""

    def __init__(self) -> None:
        self.selector = FakeSelector()
        self.packer = FakePacker()
        self.pipeline = Pipeline(self.selector, self.packer)

    def read(self, request: Request = REQUEST) -> int | None:
        minibatch = self.pipeline.next(request)
        if minibatch is None:
            return None
        assert isinstance(minibatch, Numbered) and minibatch.is_packed
        return minibatch.number

    def close(self) -> None:
        self.pipeline.close()

    def rest(self) -> list[int]:
        return list(iter(self.read, None))  # type: ignore[arg-type]

    def outcomes(self, most: int = 60) -> list[Any]:
        """Collect the result or the error of each read, and the source's position after it."""
        outcomes: list[Any] = []
        for _ in range(most):
            try:
                outcome: Any = self.read()
            except (CorpusError, OSError, MemoryError) as error:
                outcome = str(error)
            outcomes.append((outcome, self.pipeline.delivered))
        return outcomes


@pytest.fixture(params=[100, 64 << 10], ids=["packed together", "packed in turn"])
def fakes(request: pytest.FixtureRequest) -> Iterator[Fakes]:
    fakes = Fakes()
    fakes.packer.num_bytes = request.param
    with contextlib.closing(fakes.pipeline):
        yield fakes


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_everything_is_delivered_in_order_and_the_end_repeatedly(fakes: Fakes) -> None:
    assert fakes.rest() == list(range(END))
    assert fakes.read() is None is fakes.read()
    assert fakes.pipeline.delivered == Standing(END, END // 10)


def test_hand_overs_grow_and_one_is_prepared_ahead(fakes: Fakes) -> None:
    assert fakes.read() == 0
    wait_until(lambda: len(fakes.selector.sizes) >= 3)
    assert fakes.rest() == list(range(1, END))
    sizes = fakes.selector.sizes
    assert sizes[:2] == [1, 1] and sorted(sizes[:-1]) == sizes[:-1] and max(sizes) > 4
    assert (len(fakes.selector.threads), len(fakes.packer.threads)) == (1, 1)
    assert fakes.selector.threads != fakes.packer.threads


HAND_OVERS = [(1_000, 1024, False), (60_000, 256, False), (1 << 20, 64, True)]


@pytest.mark.parametrize(("num_bytes", "most", "in_turn"), HAND_OVERS)
def test_small_minibatches_are_packed_together_and_others_in_turn(num_bytes: int, most: int, in_turn: bool) -> None:
    fakes = Fakes()
    fakes.packer.num_bytes, fakes.selector.end = num_bytes, 2500
    with contextlib.closing(fakes.pipeline):
        assert fakes.rest() == list(range(2500))
    assert max(fakes.selector.sizes) == most
    assert bool(fakes.packer.in_turn) == in_turn and all(own.is_taken for own in fakes.packer.in_turn)


def test_a_discarded_hand_over_is_stopped() -> None:
    fakes = Fakes()
    fakes.packer.num_bytes = 1 << 20
    with contextlib.closing(fakes.pipeline):
        assert [fakes.read() for _ in range(12)] == list(range(12))
        assert fakes.read(REQUEST._replace(size=6)) == 12
        assert [own.is_stopped for own in fakes.packer.in_turn[:2]] == [False, True]


def test_large_minibatches_come_one_at_a_time(fakes: Fakes) -> None:
    fakes.packer.num_bytes = 20 << 20
    fakes.rest()
    assert max(fakes.selector.sizes) == 1


def test_the_selector_holds_the_position_of_the_source(fakes: Fakes) -> None:
    fakes.rest()
    assert fakes.selector.held == sorted(fakes.selector.held)
    assert fakes.selector.held[0] == 0 and 1 < fakes.selector.held[-1] < END


def test_there_is_no_thread_before_the_first_read() -> None:
    before = set(threading.enumerate())
    pipeline = Pipeline(FakeSelector(), FakePacker())
    assert set(threading.enumerate()) == before
    pipeline.close()


@pytest.mark.parametrize("at", range(12))
def test_an_error_of_the_selector_comes_after_all_before_it(fakes: Fakes, at: int) -> None:
    fakes.selector.errors[at] = CorpusError("bad data")
    outcomes = fakes.outcomes(30)
    assert [outcome for outcome, _ in outcomes] == [*range(at), "bad data", *range(at + 1, 30)]
    assert outcomes[at][1].bookmark == at  # where the last minibatch ended


@pytest.mark.parametrize("at", range(12))
def test_an_error_of_the_packer_comes_after_all_before_it(fakes: Fakes, at: int) -> None:
    fakes.packer.errors[at] = CorpusError("does not fit")
    outcomes = [outcome for outcome, _ in fakes.outcomes(30)]
    assert outcomes == [*range(at), "does not fit", *range(at + 1, 30)]


def test_after_a_failure_of_packing_the_same_minibatches_come_next(fakes: Fakes) -> None:
    fakes.packer.fails_at = 9
    seen: list[int | None] = []
    with pytest.raises(MemoryError):
        while True:
            seen.append(fakes.read())
    fakes.packer.fails_at = None
    assert seen == list(range(len(seen))) and 0 < len(seen) <= 9
    assert [*seen, *fakes.rest()] == list(range(END))
    assert fakes.pipeline.delivered.num_invalid == END // 10


def test_hand_overs_of_one_minibatch_equal_large_hand_overs(monkeypatch: pytest.MonkeyPatch) -> None:
    def outcomes() -> list[Any]:
        fakes = Fakes()
        fakes.selector.errors = {3: CorpusError("a"), 17: CorpusError("b"), 18: CorpusError("c")}
        fakes.packer.errors = {5: CorpusError("d"), 16: CorpusError("e")}
        with contextlib.closing(fakes.pipeline):
            return fakes.outcomes()

    together = outcomes()
    monkeypatch.setattr("cntkio.source.pipeline.MOST_IN_HAND_OVER", 1)
    assert outcomes() == together


def test_another_request_continues_after_the_last_delivered_minibatch(fakes: Fakes) -> None:
    seen = [fakes.read() for _ in range(7)]
    assert fakes.pipeline.delivered == Standing(7, 0)
    other = REQUEST._replace(size=6)
    assert [*seen, fakes.read(other), fakes.read(REQUEST)] == list(range(9))
    assert fakes.selector.went_back_to == [7, 8]
    assert fakes.read(Request(5, 5, Partition())) == 9  # another object of the same value
    assert fakes.selector.went_back_to == [7, 8]


def test_a_move_begins_after_the_last_delivered_minibatch(fakes: Fakes) -> None:
    for _ in range(5):
        fakes.read()

    def move() -> Epoch:
        assert fakes.selector.standing == Standing(5, 0)
        fakes.selector.position = 30
        return Epoch(number=3)

    fakes.pipeline.move(move)
    assert fakes.pipeline.where() == (Standing(30, 0), Epoch(number=3))
    assert fakes.pipeline.request is None
    assert fakes.rest() == list(range(30, END))


def test_a_move_that_fails_changes_nothing(fakes: Fakes) -> None:
    seen = [fakes.read() for _ in range(5)]

    def move() -> Epoch:
        fakes.selector.position = 30
        raise KeyError("no such state")

    with pytest.raises(KeyError):
        fakes.pipeline.move(move)
    assert fakes.pipeline.where() == (Standing(5, 0), Epoch())
    assert [*seen, *fakes.rest()] == list(range(END))


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_wait_loses_nothing(fakes: Fakes) -> None:
    seen = [fakes.read()]
    fakes.selector.gate.clear()
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        while True:
            seen.append(fakes.read())
    fakes.selector.gate.set()
    assert [*seen, *fakes.rest()] == list(range(END))


def test_a_child_process_continues_after_the_last_delivered_minibatch(fakes: Fakes) -> None:
    seen = [fakes.read() for _ in range(7)]
    fakes.selector.gate.clear()  # the parent's selector is in the middle of its work
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def read_in_child() -> None:
        sender.send(fakes.rest())
        fakes.pipeline.close()

    child = context.Process(target=read_in_child, daemon=True)
    child.start()
    fakes.selector.gate.set()
    assert receiver.poll(60), "the child process hangs"
    assert seen + receiver.recv() == list(range(END))
    child.join(60)
    assert child.exitcode == 0
    assert seen + fakes.rest() == list(range(END))


def test_a_child_process_that_reads_nothing_closes_nothing_of_its_parent(fakes: Fakes) -> None:
    fakes.read()
    context = multiprocessing.get_context("fork")

    def close_in_child() -> None:
        fakes.pipeline.close()
        os._exit(3 if fakes.selector.is_closed else 0)

    child = context.Process(target=close_in_child, daemon=True)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert fakes.rest() == list(range(1, END))


def test_several_threads_share_the_delivered_minibatches(fakes: Fakes) -> None:
    seen: list[int] = []

    def read() -> None:
        while (number := fakes.read()) is not None:
            seen.append(number)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(seen) == list(range(END))


@pytest.mark.parametrize(
    "call",
    [Fakes.read, lambda fakes: fakes.pipeline.move(Epoch), lambda fakes: fakes.pipeline.where(), Fakes.close],
    ids=["read", "move", "where", "close"],
)
def test_every_call_waits_until_a_move_of_another_thread_ends(fakes: Fakes, call: Callable[[Fakes], object]) -> None:
    is_moving, may_end = threading.Event(), threading.Event()

    def move() -> Epoch:
        is_moving.set()
        assert may_end.wait(60)
        return Epoch()

    mover = threading.Thread(target=fakes.pipeline.move, args=[move])
    caller = threading.Thread(target=call, args=[fakes])
    mover.start()
    assert is_moving.wait(60)
    caller.start()
    caller.join(0.1)
    has_waited = caller.is_alive()
    may_end.set()
    mover.join(60)
    caller.join(60)
    assert has_waited


def test_a_closed_pipeline_has_no_threads(fakes: Fakes) -> None:
    before = set(threading.enumerate())
    fakes.read()
    assert set(threading.enumerate()) > before
    fakes.pipeline.close()
    assert set(threading.enumerate()) == before
    assert fakes.selector.is_closed


def test_finish_waits_for_jobs_that_no_thread_has_begun() -> None:
    begun, done = threading.Event(), list[int]()

    def first() -> None:
        begun.set()
        time.sleep(0.05)

    with Workers(1, "test") as workers:
        workers.do(first)
        assert begun.wait(60)
        workers.do(done.append, 2)
        workers.finish()
        assert done == [2]


def test_a_job_that_the_last_job_submits_is_withdrawn() -> None:
    begun, late = threading.Event(), list[Job[None]]()
    workers = Workers(1, "test")

    def last() -> None:
        begun.set()
        time.sleep(0.2)  # until `close` waits for this job
        late.append(workers.do(lambda: None))

    workers.do(last)
    assert begun.wait(60)
    workers.close()
    assert not late[0].withdraw()  # its work was withdrawn before
    workers.close()


def test_a_thread_that_never_begins_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Thread.start` of some versions of Python waits forever for a thread that found no memory for its first step."""
    waits = threading.Event()
    monkeypatch.setattr(threading.Thread, "start", lambda _: waits.wait())
    monkeypatch.setattr(_threads, "LONGEST_START", 0.01)
    with pytest.raises(MemoryError, match="no memory for another thread"):
        Workers(1, "test")
    waits.set()

"""Threads, interrupts and forks: how many threads parse, threads that do jobs, and locks that a fork finds open.

An interrupt (Ctrl-C) raises `KeyboardInterrupt` in the main thread, between any two steps of Python. The thread pools
of the standard library take several steps to pass a job on, so an interrupt can lose the job or leave a lock taken.
Here a job changes hands in a single step, which is the `put` of a `queue.SimpleQueue`, and a lock is taken in a single
step, which is a ``with`` statement on a lock of the interpreter.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import functools
import itertools
import os
import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar

import cntkio._core as _core

_T = TypeVar("_T")


def num_threads() -> int:
    """Return the number of threads that parse: ``CNTKIO_NUM_THREADS``, or else the cores that this process may use.

    On Linux these are the cores of its affinity, but at most the quota of its control group (cgroup).
    """
    asked = os.environ.get("CNTKIO_NUM_THREADS", "")
    return max(1, int(asked)) if asked.isdecimal() else _available_cores()


# Asked once for each process: reading the quota takes longer than packing a small minibatch.
_available_cores = functools.cache(_core.available_parallelism)


def piece_size(size: int, least: int) -> int:
    """Return the number of bytes that each thread parses, rounded up so that no small remainder is left.

    Args:
        size: Bytes in all.
        least: Smaller pieces are not worth a thread.
    """
    return max(least, size // num_threads() + size // 64 + 1)


# --------------------------------------------------------------------------------------------------------------- locks


class ForkLock:
    """A lock that is open in a fork of the process, even if another thread of the parent held it.

    The thread that holds the lock may take it again.

    Attributes:
        inner: The lock itself. Only a ``with`` statement may take it: then no interrupt can leave it taken.
        is_inherited: True in a fork, until the owner of the lock sets it to False. A question to the system for the
            number of the process would take a thirtieth of the time of a small minibatch.

    Example:
        >>> lock = ForkLock()
        >>> with lock.inner, lock.inner:
        ...     pass
    """

    def __init__(self) -> None:
        self.inner = threading.RLock()
        self.is_inherited = False
        _fork_locks.add(self)

    def __reduce__(self) -> tuple[type[ForkLock], tuple[()]]:
        return ForkLock, ()  # a copy of the owner has an open lock of its own


_fork_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _begin_in_fork() -> None:
    _core.begin_in_fork()
    _available_cores.cache_clear()
    for lock in list(_fork_locks):
        lock.is_inherited = True
        if lock.inner.acquire(blocking=False):  # no other thread holds it
            lock.inner.release()
        else:
            lock.inner = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_fork)


# ------------------------------------------------------------------------------------------------------------- workers


def _taken_lock() -> threading.Lock:
    """Return a lock that is taken. To give it back needs no memory, which the `put` of a queue does."""
    try:
        lock = threading.Lock()
    except RuntimeError:  # "can't allocate lock"
        raise MemoryError("no memory for a lock") from None
    lock.acquire()
    return lock


class Job(Generic[_T]):
    """Work that a thread of `Workers` does.

    Only a single thread may wait for it at a time. An interrupted wait can be repeated.

    Attributes:
        is_done: Whether the work is done, or has failed.
    """

    __slots__ = ("_error", "_result", "_until_done", "_work", "is_done")

    def __init__(self, work: Callable[[], _T]) -> None:
        self._work: Callable[[], _T] | None = work
        self._until_done = _taken_lock()
        self._result: Any = None
        self._error: BaseException | None = None
        self.is_done = False

    def withdraw(self) -> bool:
        """Cancel the work; return False if a thread has begun it. Do not wait for canceled work."""
        work, self._work = self._work, None
        return work is not None

    def run(self) -> None:
        """Do the work, unless it was withdrawn. `result` raises its exception."""
        work, self._work = self._work, None
        if work is None:
            return
        try:
            if _is_exiting:
                raise _exits()
            self._result = work()
        except BaseException as error:
            self._error = error
        self.is_done = True
        self._until_done.release()

    def result(self) -> _T:
        """Wait for the work, and return its result or raise its exception."""
        with self._until_done:
            pass
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # the exception refers to this frame
        result: _T = self._result
        return result


class Workers:
    """Threads that do jobs, in the order in which the jobs were submitted.

    The threads end when nothing refers to the object any more, and at the end of a ``with`` statement. A fork has none
    of them.

    Raises:
        OSError: The operating system cannot start another thread.
        MemoryError: A thread found too little memory to begin.

    Example:
        >>> with Workers(2, "example") as workers:
        ...     jobs = [workers.do(pow, 2, exponent) for exponent in range(4)]
        ...     [job.result() for job in jobs]
        [1, 2, 4, 8]
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._process = os.getpid()
        self._jobs: _Queue = SimpleQueue()
        # No interrupt can come between the end of this object and the `put` of the weak reference.
        owner = weakref.ref(self, self._jobs.put)
        try:
            self._threads = [_Worker(self._jobs, owner, f"{name}_{index}") for index in range(num_threads)]
        except RuntimeError:  # "can't allocate lock"
            raise MemoryError("no memory for another thread") from None
        for thread in self._threads:
            # `Thread.start` takes several steps. Another thread takes them, because only the main thread is
            # interrupted.
            ticket = _Ticket()
            lost = weakref.ref(ticket, thread.begun.put)
            try:
                _core.begin_thread()  # also shows whether there is memory for another thread
                _thread.start_new_thread(_start, (thread, ticket))
            except RuntimeError as error:
                raise OSError(f"cannot start threads: {error}; {_core.THREAD_LIMITS}") from None
            del ticket
            try:
                is_lost = thread.begun.get(timeout=LONGEST_START) in (lost, False)
            except Empty:  # `Thread.start` of some versions of Python waits forever if the new thread has no memory
                is_lost = True
            if is_lost:
                raise MemoryError(f"no memory for another thread; there are {threading.active_count()}")

    def do(self, function: Callable[..., _T], *args: Any) -> Job[_T]:
        """Let one of the threads call a function."""
        if _is_exiting:
            raise _exits()
        job = Job(functools.partial(function, *args))
        self._jobs.put(job)
        return job

    def finish(self) -> None:
        """Wait until the only thread has done all submitted jobs.

        No job is withdrawn: what a job has changed, such as counts of errors, must not depend on timing.
        """
        self.do(lambda: None).result()

    def close(self) -> None:
        """Withdraw the jobs that no thread has begun, and end the threads. After an interrupt, call it again."""
        if self._process == os.getpid():
            self._withdraw()
            self._jobs.put(None)
            for thread in self._threads:
                thread.wait()
            self._withdraw()  # what the last jobs submitted, which may refer to large data

    def _withdraw(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                job = self._jobs.get_nowait()
                if isinstance(job, Job):
                    job.withdraw()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


LONGEST_START = 60
"""Seconds after which a thread that has not begun is lost."""
_Queue: TypeAlias = SimpleQueue[Job[Any] | weakref.ref[Workers] | None]


class _Worker(threading.Thread):
    """Thread that shares a queue of jobs with others. All of them end when one takes an object that is not a job."""

    numbers = itertools.count()

    def __init__(self, jobs: _Queue, owner: weakref.ref[Workers], name: str) -> None:
        # `_end_all` waits for the thread. The interpreter would wait before that, for a thread that is not a daemon.
        super().__init__(name=name, daemon=True)
        self.number = next(self.numbers)
        self.jobs = jobs
        self.owner = owner
        self.begun: SimpleQueue[weakref.ref[_Ticket] | bool] = SimpleQueue()
        self.ticket: _Ticket | None = None
        self._until_end = _taken_lock()

    def run(self) -> None:
        try:
            _core.begin_thread()
            self.begun.put(True)
            while isinstance(job := self.jobs.get(), Job):
                try:
                    job.run()
                except MemoryError as error:  # there was none for the call; here no step needs any
                    job._error, job.is_done = error, True
                    job._until_done.release()
                del job  # it may be the last reference to large data
            self.jobs.put(None)  # for the other threads
        except MemoryError:
            self.begun.put(False)
        finally:
            self._until_end.release()

    def wait(self) -> None:
        """Wait for the end of the thread, which may not have started yet."""
        with self._until_end:
            pass
        if self.ident is not None:
            self.join()


class _Ticket:
    """An object that is lost with its thread if the thread ends before its first step, for lack of memory."""

    __slots__ = ("__weakref__",)


def _start(thread: _Worker, ticket: _Ticket) -> None:
    thread.ticket = ticket
    try:
        thread.start()
    except (RuntimeError, MemoryError):  # the operating system cannot start another thread
        thread.run()


_is_exiting = False


def _exits() -> RuntimeError:
    return RuntimeError("the interpreter is shutting down, so nothing more can be read")


def _end_all() -> None:
    """End all threads before the interpreter ends, because a thread that is in the core then would crash.

    A thread gives jobs only to threads that were started after it. So the threads end in the order in which they were
    created, and no job waits for a thread that has ended.
    """
    global _is_exiting
    _is_exiting = True
    workers = [thread for thread in threading.enumerate() if isinstance(thread, _Worker)]
    for worker in sorted(workers, key=lambda worker: worker.number):
        worker.jobs.put(None)
        worker.wait()


atexit.register(_end_all)

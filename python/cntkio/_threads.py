"""Threads and forks: how many threads parse, and locks that a fork finds open."""

from __future__ import annotations

import functools
import os
import threading
import weakref

from cntkio import _core


def num_threads() -> int:
    """Number of threads that parse: ``CNTKIO_NUM_THREADS``, or else the cores that this process may use.

    On Linux these are the cores of its affinity, and no more than the quota of its control group (cgroup) amounts to.
    """
    asked = os.environ.get("CNTKIO_NUM_THREADS", "")
    return max(1, int(asked)) if asked.isdecimal() else _available_cores()


@functools.cache
def _available_cores() -> int:
    """Ask the system once for each process: reading the quota takes longer than packing a small minibatch."""
    return _core.available_parallelism()


def piece_size(size: int, least: int) -> int:
    """Return how many bytes each thread parses: one piece for each, rounded up so that no small remainder is left.

    Args:
        size: Bytes in all.
        least: Smaller pieces are not worth a thread.
    """
    return max(least, size // num_threads() + size // 64 + 1)


class ForkLock:
    """A lock that is open in a fork of the process, even if another thread of the parent held it.

    The thread that holds the lock may take it again.

    Example:
        >>> lock = ForkLock()
        >>> with lock, lock:
        ...     pass
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _fork_locks.add(self)

    def open_again(self) -> None:
        """Open the lock in a fork, unless the thread that forked holds it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_fork_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _begin_in_fork() -> None:
    _core.begin_in_fork()
    _available_cores.cache_clear()
    for lock in list(_fork_locks):
        lock.open_again()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_fork)

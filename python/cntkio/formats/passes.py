"""Progress of passes over whole files, such as the pass that makes an index, for a watcher that displays it.

::

    watched(bar) ──> announced("indexing", size) ──> add(number of bytes) ──> bar shows (done, total)

The watcher and the current pass are context variables, which threads inherit if they copy the context. So no function
between the command and a pass over a file needs an argument for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TypeAlias

from cntkio._threads import ForkLock

Show: TypeAlias = Callable[[int, int], None]
"""Called with the number of bytes done and the total; the total is 0 if it is not known."""
Watcher: TypeAlias = Callable[[str], AbstractContextManager[Show]]
"""Called with the name of a pass when it begins; the result is a context manager around the pass."""
Add: TypeAlias = Callable[[int], None]
"""Called with the number of bytes done since the last call."""

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
_pass: ContextVar[Add | None] = ContextVar("pass", default=None)


@contextmanager
def watched(watcher: Watcher | None) -> Iterator[None]:
    """Let a watcher show all passes in the block; None: the watcher outside the block."""
    token = _watcher.set(watcher or _watcher.get())
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def announced(name: str, total: int) -> Iterator[Add | None]:
    """Announce a pass over a file, or over several. A pass within the block belongs to this pass.

    Args:
        name: Name of the pass, such as "indexing".
        total: Number of bytes of all files; 0: unknown.

    Returns:
        A function that the pass calls from time to time, on any thread; None: no watcher is set.

    Example:
        >>> import contextlib
        >>> with (
        ...     watched(lambda name: contextlib.nullcontext(lambda done, total: print(name, done, "of", total))),
        ...     announced("indexing", 30) as add,
        ...     announced("decompressing", 7) as add_to_the_same,
        ... ):
        ...     add(10), add_to_the_same(20)
        indexing 0 of 30
        indexing 10 of 30
        indexing 30 of 30
        (None, None)
    """
    watcher, outer = _watcher.get(), _pass.get()
    if watcher is None or outer is not None:
        yield outer
        return
    lock, done = ForkLock(), 0
    with watcher(name) as show:

        def add(num_bytes: int) -> None:
            nonlocal done
            with lock.inner:
                done += num_bytes
                show(done, total)

        show(0, total)
        token = _pass.set(add)
        try:
            yield add
        finally:
            _pass.reset(token)


def announced_together(name: str, sizes: Sequence[int]) -> AbstractContextManager[Add | None]:
    """Announce a pass over several files. If there is a single file, do nothing: it announces its own pass.

    Args:
        name: As for `announced`.
        sizes: Size of each file in bytes; 0: unknown.
    """
    if len(sizes) == 1:
        return nullcontext()
    return announced(name, sum(sizes) if all(sizes) else 0)


def passed(num_bytes: int) -> None:
    """Add bytes that are done, or that need no pass because of an index cache, to the current pass, if there is one."""
    add = _pass.get()
    if add is not None and num_bytes:
        add(num_bytes)

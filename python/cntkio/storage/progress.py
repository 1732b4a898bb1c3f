"""The log of the package, and the progress of passes over whole files, for the caller.

A pass over a file, such as the pass that makes an index, tells a watcher how far it is::

    calling(watcher=bar) ──> announced("indexing", size) ──> add(number of bytes) ──> bar shows (done, total)

The watcher and the pass under way belong to the `cntkio.arguments.Caller`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from cntkio._threads import ForkLock
from cntkio.arguments import Add, caller, calling
from cntkio.errors import printable

logger = logging.getLogger("cntkio")


def _escape(record: logging.LogRecord) -> bool:
    # Keys and names come from files, and their control characters could change the terminal.
    message = record.getMessage()
    escaped = printable(message)
    if escaped != message:
        record.msg, record.args = escaped, ()
    return True


# cntkio has only this logger, so all of its records pass this filter.
logger.addFilter(_escape)


def warn(trace_level: int, message: str, *arguments: object) -> None:
    """Log a warning about a source that is being opened, unless its trace level is 0."""
    if trace_level > 0:
        logger.warning(message, *arguments)


@contextmanager
def announced(name: str, total: int) -> Iterator[Add | None]:
    """Announce a pass over a file, or over several. A pass within the block belongs to this pass.

    Args:
        name: Name of the pass, such as "indexing".
        total: Number of bytes of all files; 0: unknown.

    Returns:
        A function that the pass calls from time to time, on any thread; None: no watcher is set.

    Example:
        >>> def bar(name):
        ...     return nullcontext(lambda done, total: print(name, done, "of", total))
        >>> with (
        ...     calling(watcher=bar),
        ...     announced("indexing", 30) as add,
        ...     announced("decompressing", 7) as add_to_the_same,
        ... ):
        ...     add(10), add_to_the_same(20)
        indexing 0 of 30
        indexing 10 of 30
        indexing 30 of 30
        (None, None)
    """
    watcher, outer = caller().watcher, caller().add
    if watcher is None or outer is not None:
        yield outer
        return
    lock, done = ForkLock(), 0
    with watcher(name) as show:

        def add(num_bytes: int) -> None:
            nonlocal done
            with lock.inner:
                done += num_bytes
                # Within the lock, so that the watcher sees ascending numbers.
                show(done, total)

        show(0, total)
        with calling(add=add):
            yield add


def announced_together(name: str, sizes: Sequence[int]) -> AbstractContextManager[Add | None]:
    """Announce a pass over files of these sizes. If there is a single file, do nothing: it announces its own pass."""
    if len(sizes) == 1:
        return nullcontext()
    # If a size is unknown, the sum would be too small.
    return announced(name, sum(sizes) if all(sizes) else 0)


def passed(num_bytes: int) -> None:
    """Add bytes that are done, or that need no pass because of an index cache, to the current pass, if there is one."""
    add = caller().add
    if add is not None and num_bytes:
        add(num_bytes)

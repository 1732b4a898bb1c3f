"""Reading of remote objects: parallel requests for a range, repeated after temporary errors; changes are noticed.

::

    read_into(buffer, offset)      4 MB │ 4 MB │ 4 MB │ ...       a request for each, on threads of their own
                                          │
                                   at most `Remote.num_requests` are under way, of all objects together
                                          │
    require_unchanged()            the facts again, unless each answer included the version, or no request was made;
                                   at most a single request for the facts is under way, in addition to the ranges

Memory: the buffer, and parts that have arrived and wait to be copied, which together are at most as large again.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import math
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from cntkio._threads import ForkLock, Job, Workers
from cntkio.errors import CntkIoError
from cntkio.formats.remote import Remote, default_remote
from cntkio.formats.stores import Facts, StoredObject, changed, hint_on_memory, reason_of, stored_object
from cntkio.formats.text_input import filled

logger = logging.getLogger("cntkio")
_T = TypeVar("_T")
PART = 4 << 20
"""Most bytes of a request: enough that its latency costs little, few enough that a chunk takes several in parallel."""
FIRST_PAUSE = 0.1
# With 10 retries, the pauses are at least 32 s together, so an outage of half a minute is survived.
_LONGEST_PAUSE = 10.0
_LONGEST_TOLD_PAUSE = 60.0
_PAUSE_TO_REPORT = 1.0
# Errors that stay when the request is repeated. All others may pass, since each library has errors of its own.
_STAY = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ImportError,
    MemoryError,
)
_STATUSES_THAT_PASS = (408, 425, 429)
# Errors of libraries that have no status: obstore's by their names, pyarrow's by their texts.
_STATUSES = {
    "NotFoundError": 404, "PermissionDeniedError": 403, "UnauthenticatedError": 401, "InvalidPathError": 400,
    "NotSupportedError": 501, "PreconditionError": 412, "UnknownConfigurationKeyError": 400,
}  # fmt: skip
_STATUS_IN_TEXT = re.compile(r"\b(?:status(?: code)?|HTTP(?: status)?)[ :]+([45]\d\d)\b", re.IGNORECASE)
_REFUSED_IN_TEXT = re.compile(r"AWS Error \w*(ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE|TOKEN|UNRECOGNIZED_CLIENT)")
_MISSING_IN_TEXT = re.compile(r"AWS Error \w*(NO_SUCH_BUCKET|NO_SUCH_KEY|NOT_FOUND)")


class ShortReadError(OSError):
    """A store returned less than was requested, as after a broken connection."""


def may_pass(error: BaseException) -> bool:
    """Return whether the same request may succeed later.

    The status of HTTP decides, if the error or its cause has one: libraries turn it into errors of all kinds.

    Example:
        >>> may_pass(ConnectionResetError()), may_pass(PermissionError()), may_pass(TimeoutError())
        (True, False, True)
    """
    for found in _causes_of(error):
        if type(found).__module__.startswith("aiohttp.http"):
            return True  # the answer was cut off or garbled
        if isinstance(found, socket.gaierror):
            return found.errno != socket.EAI_NONAME
        status = _status_of(found)
        if status is not None:
            return (status >= 500 and status != 501) or status in _STATUSES_THAT_PASS
    # The error about a missing object has no cause; with a cause, another error was converted to it.
    return not isinstance(error, _STAY) or (isinstance(error, FileNotFoundError) and error.__cause__ is not None)


def _causes_of(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _answer_of(error: BaseException) -> Mapping[str, Any]:
    """Return what the libraries of S3 tell about the answer of the server."""
    response = getattr(error, "response", None)
    found = response.get("ResponseMetadata") if isinstance(response, dict) else None
    return found if isinstance(found, dict) else {}


def _status_of(error: BaseException) -> int | None:
    """Return the status of HTTP of an error, or the status that corresponds to the error."""
    told = (getattr(error, name, None) for name in ("status", "status_code", "code"))
    known = (_answer_of(error).get("HTTPStatusCode"), _STATUSES.get(type(error).__name__))
    for status in itertools.chain(told, known):
        if isinstance(status, int) and 400 <= status <= 599:
            return status
    text = str(error)
    if _REFUSED_IN_TEXT.search(text):
        return 403
    if _MISSING_IN_TEXT.search(text):
        return 404
    found = _STATUS_IN_TEXT.search(text)
    return None if found is None else int(found[1])


def _told_pause(error: BaseException) -> float:
    """Return the number of seconds after which the server wants the next request; 0: it does not say so."""
    for found in _causes_of(error):
        headers = getattr(found, "headers", None) or _answer_of(found).get("HTTPHeaders") or {}
        told = {str(name).lower(): str(value) for name, value in dict(headers).items()}.get("retry-after", "")
        if told.isdecimal():
            return float(told)
        with contextlib.suppress(ValueError, TypeError):
            return float(parsedate_to_datetime(told).timestamp() - time.time())
    return 0.0


def _pause_after(error: BaseException, num_errors: int) -> float:
    """Return how long to wait before a request is repeated: as the server says, or longer after each error."""
    # Random, so that many processes do not return at once.
    pause = min(math.ldexp(FIRST_PAUSE, num_errors - 1), _LONGEST_PAUSE) * random.uniform(0.75, 1.0)
    return max(pause, min(_told_pause(error), _LONGEST_TOLD_PAUSE))


def wait(event: threading.Event, seconds: float) -> None:
    """Wait for an event. Tests replace this function, so that they need not wait."""
    event.wait(seconds)


class RemoteObject:
    """An object of a remote store that any thread reads by position.

    Args:
        stored: The object.
        remote: How to read it.

    Attributes:
        name: Name used in messages.
        identity: The object for caches; see `cntkio.formats.identities`.
        facts: Size and version when it was opened.

    Raises:
        OSError: The object does not exist, or cannot be read.
    """

    def __init__(self, stored: StoredObject, remote: Remote) -> None:
        self.name, self.identity = stored.name, stored.identity
        self._stored = stored
        self._remote = remote
        self._lock = ForkLock()
        self._asking = ForkLock()
        self._num_made = 0  # requests that were answered
        self._num_sound = 0  # how many of the first answers are known to be of the version in `facts`
        self._num_failed = 0  # requests that were given up
        self._has_complained = False
        self._failure: OSError | None = None  # the error of the last request that was given up
        self.facts = _on_a_thread(self._ask_for_facts)

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes of a range.

        Raises:
            OSError: The store cannot be read.
            CorpusError: The object was changed or deleted, if the store reported that.
        """
        return filled(self.read_into, begin, end).tobytes()

    def read_into(self, buffer: npt.NDArray[np.uint8], offset: int) -> None:
        """Fill a buffer from an offset on. Raises the errors of `read`."""
        bounds = np.linspace(offset, offset + len(buffer), 1 + -(-len(buffer) // PART)).astype(np.int64).tolist()
        is_given_up = threading.Event()

        def part(begin: int, end: int) -> Any:
            return self._request(begin, end, is_given_up)

        # An interrupt does not wait for the threads, which end after their current requests.
        workers = Workers(min(len(bounds) - 1, self._remote.num_requests), "cntkio-request")
        try:
            jobs: list[Job[Any]] = [workers.do(part, *pair) for pair in itertools.pairwise(bounds)]
            for (begin, end), job in zip(itertools.pairwise(bounds), jobs, strict=True):
                buffer[begin - offset : end - offset] = np.frombuffer(job.result(), np.uint8)
        finally:
            is_given_up.set()

    def _request(self, begin: int, end: int, is_given_up: threading.Event) -> Any:
        def request() -> Any:
            content = self._stored.read(begin, end, self.facts.version)
            if len(content) < end - begin:
                raise ShortReadError(f"the store returned {len(content)} bytes; expected {end - begin}")
            if len(content) > end - begin:
                raise NotImplementedError(
                    f"the store returned {len(content)} bytes; expected {end - begin}: it ignores ranges, so copy "
                    "the file to a local disk"
                )
            return content

        try:
            content = self._ask(f"bytes {begin} to {end}", request, self._remote.slots, is_given_up)
        except OSError as error:
            cause = error.__cause__ or error.__context__
            if isinstance(cause, ShortReadError) or (cause is not None and not may_pass(cause)):
                self._check()  # a change explains the error better
            raise
        with self._lock.inner:
            self._num_made += 1
        return content

    def require_unchanged(self) -> None:
        """Ask the store whether the object is unchanged, unless the answers to all reads have confirmed it.

        Threads that ask at the same time share an answer. Each thread waits for a request that began after its reads.

        Raises:
            CorpusError: It was changed or deleted.
            OSError: The store cannot be asked.
        """
        num_made = 0 if self._stored.is_conditional else self._num_made
        num_failed = self._num_failed
        if self._num_sound < num_made:
            with self._asking.inner:
                self._share_failure(num_failed)
                if self._num_sound < num_made:
                    self._check()

    def _check(self) -> None:
        num_made = self._num_made
        try:
            facts = _on_a_thread(self._ask_for_facts)
        except FileNotFoundError as error:
            raise changed(self.name, ": it was deleted") from error
        if facts != self.facts:
            sizes = f" ({self.facts.size} bytes when opened, {facts.size} now)" if facts.size != self.facts.size else ""
            raise changed(self.name, sizes)
        with self._lock.inner:
            self._num_sound = max(self._num_sound, num_made)

    def _ask_for_facts(self) -> Facts:
        return self._ask("its facts", self._stored.facts, contextlib.nullcontext(), threading.Event())

    def _ask(
        self,
        what: str,
        request: Callable[[], _T],
        slots: contextlib.AbstractContextManager[None],
        is_given_up: threading.Event,
    ) -> _T:
        """Make a request, and repeat it after errors that may pass.

        When a request is given up, all other requests are given up at their next error: otherwise each of them would
        wait just as long for a store that does not answer.

        Raises:
            OSError: The last error, with the name of the object and the requested range.
        """
        num_failed = self._num_failed
        for num_errors in itertools.count(1):
            with slots:
                self._share_failure(num_failed)
                if is_given_up.is_set():
                    raise InterruptedError(errno.EINTR, "The read that made the request has ended", self.name)
                try:
                    return request()
                except CntkIoError:
                    raise
                except Exception as error:
                    failure = self._named(error, what, num_errors)
                    cause = None if self._stored.is_secret else error
                    if not may_pass(error) or self._num_failed > num_failed:
                        raise failure from cause
                    if num_errors > self._remote.num_retries:
                        with self._lock.inner:
                            self._failure = failure
                            self._num_failed += 1
                        raise failure from cause
                    pause, reason = _pause_after(error, num_errors), failure.strerror
            if pause >= _PAUSE_TO_REPORT and not self._has_complained:
                self._has_complained = True
                logger.warning("%s: %s; it is tried again", self.name, reason)
            wait(is_given_up, pause)
        raise AssertionError("unreachable")

    def _share_failure(self, num_failed: int) -> None:
        """Raise the error of a request that was given up after `num_failed` others."""
        failure = self._failure
        if self._num_failed > num_failed and failure is not None:
            raise OSError(failure.errno, failure.strerror, failure.filename) from failure

    def _named(self, error: Exception, what: str, num_tries: int) -> OSError:
        """Return the `OSError` that corresponds most closely to an error of a store's library."""
        causes = list(_causes_of(error))
        status, told = next(
            ((status, found) for found in causes if (status := _status_of(found)) is not None), (None, causes[-1])
        )
        is_late = status is None and isinstance(error, TimeoutError)
        reason = f"no answer in {self._remote.timeout_in_seconds:g} s" if is_late else reason_of(told)
        is_missing = status in (404, 410) if status else isinstance(error, FileNotFoundError) and len(causes) == 1
        if is_missing:
            hint = hint_on_memory(self.name, self._remote)
            return FileNotFoundError(errno.ENOENT, f"No such object{hint}", self.name)
        if status in (401, 403) or isinstance(error, PermissionError):
            advice = "pass credentials, such as Remote(storage_options={...})"
            return PermissionError(errno.EACCES, f"The store refuses {what} ({reason}); {advice}", self.name)
        if isinstance(error, IsADirectoryError):
            return IsADirectoryError(errno.EISDIR, "Is a folder; expected a file", self.name)
        tried = f" after {num_tries} tries" if num_tries > 1 else ""
        return OSError(errno.ETIMEDOUT if is_late else errno.EIO, f"Cannot read {what}{tried} ({reason})", self.name)


def _on_a_thread(work: Callable[[], _T]) -> _T:
    """Call a function on another thread, because an interrupt could reach a request in the main thread."""
    return Workers(1, "cntkio-request").do(work).result()


def open_object(path: str, remote: Remote | None = None) -> RemoteObject:
    """Open an object.

    Args:
        path: A URL, or a path in the store of `remote`.
        remote: How to read it.

    Raises:
        ConfigError: The library for the store is not installed, or the store is of an unknown kind.
        OSError: The object does not exist, or cannot be read.
    """
    remote = remote or default_remote()
    return RemoteObject(stored_object(path, remote), remote)


def write_object(stored: StoredObject, content: bytes) -> None:
    """Write an object.

    Raises:
        OSError: The store does not accept it.
    """
    try:
        stored.write(content)
    except OSError:
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"The store does not accept it ({reason_of(error)})", stored.name) from error

"""Errors and warnings about a corpus, for the caller.

Errors and warnings are counted by kind. The first ten of each kind are logged in full; totals, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from cntkio._threads import ForkLock
from cntkio.storage.progress import logger

NUM_IN_FULL = 10
"""Most items of a kind that are logged in full, or listed in a message. For the others, only their number is given."""
Observer = Callable[[str, "str | Exception", int], None]
"""Called with the kind of an error or a warning, the message or the error, and how many cases it stands for."""
EMPTY_FILE = "empty file"
"""The kind of the error of a file without a sequence, which a corpus of several files leaves out."""
UNKNOWN_NAME = "unknown name"
"""The kind of a name in a text that no requested stream has: a warning for observers that ask for it."""


class Costs(NamedTuple):
    """Errors and warnings of the data up to a point, by kind, and the number of errors that are still forgiven."""

    errors: Counter[str]
    warnings: Counter[str]
    left: int


class WrongWord(NamedTuple):
    """A word of a text at which a check has found something, for the advice of the text's format.

    Attributes:
        code: The rule of the finding.
        message: The message of the finding.
        line: The number of the line, from 1.
        stream: The name of the stream, if it is known.
        text: The line, or its part near the word.
        caret: Where the word begins in it.
    """

    code: str
    message: str
    line: int
    stream: str | None
    text: str
    caret: int
    word: str


class Report:
    """Errors and warnings of one corpus.

    Any thread may use it. An error is forgiven as long as the budget lasts; a warning costs nothing.

    Args:
        name: The corpus's name; lines with totals begin with it.
        max_errors: The budget: how many errors are forgiven in all; a negative number forgives any number.
        trace_level: What is logged: 0: nothing; 1: ten of each kind; 2: everything.
        observer: A function that gets all errors and warnings one by one; nothing is logged then.
        asked: Kinds that the observer gets only on request, such as `UNKNOWN_NAME`.

    Attributes:
        budget: The budget, never negative.
        is_observed: True if an observer gets all errors and warnings one by one.

    Example:
        >>> report = Report("a.ctf", max_errors=2)
        >>> report.charge("bad number", [lambda: ValueError("1.5.2")])
        >>> report.forgive(1), report.forgive(1)
        (True, False)
        >>> report.count("repeated id", 3)
        >>> report.errors, report.warnings
        ({'bad number': 1}, {'repeated id': 3})
    """

    def __init__(
        self,
        name: str,
        max_errors: int = 0,
        *,
        trace_level: int = 1,
        observer: Observer | None = None,
        asked: Collection[str] = (),
    ) -> None:
        self.name = name
        # The core takes the budget as an unsigned number of 64 bits.
        self.budget = self._left = min(max_errors, 2**64 - 1) if max_errors >= 0 else 2**64 - 1
        self._errors, self._warnings, self._logged = Counter[str](), Counter[str](), Counter[str]()
        self._level, self._observer, self._asked = trace_level, observer, asked
        self.is_observed = observer is not None
        self._lock = ForkLock()

    @property
    def errors(self) -> dict[str, int]:
        """Errors forgiven so far, by kind."""
        return dict(self._errors)

    @property
    def warnings(self) -> dict[str, int]:
        """Warnings so far, by kind."""
        return dict(self._warnings)

    def costs(self) -> tuple[Costs, ...]:
        """Return what the data have cost so far, for each budget."""
        with self._lock.inner:
            return (Costs(self._errors.copy(), self._warnings.copy(), self._left),)

    def go_back(self, costs: tuple[Costs, ...]) -> None:
        """Take back what data have cost since `costs` were returned. Lines that were logged count as logged."""
        with self._lock.inner:
            ((errors, warnings, self._left),) = costs
            self._errors, self._warnings = errors.copy(), warnings.copy()

    def forgive(self, num_errors: int) -> bool:
        """Take errors from the budget; if it is too small, take nothing and return False."""
        with self._lock.inner:
            if num_errors > self._left:
                return False
            self._left -= num_errors
            return True

    def exhaust(self) -> int:
        """Use up the budget, and return the rest of it."""
        with self._lock.inner:
            left, self._left = self._left, 0
            return left

    def charge(self, kind: str, errors: Sequence[Callable[[], Exception]]) -> None:
        """Count errors of a kind, and log the first; raise the first error that the budget does not forgive."""
        if not self.forgive(len(errors)):
            raise errors[self.exhaust()]()
        self.count(kind, len(errors), is_error=True)
        for error in errors:
            self.log(kind, error)

    def count(self, kind: str, count: int = 1, *, is_error: bool = False) -> None:
        """Count errors or warnings of a kind. Nothing is logged."""
        with self._lock.inner:
            (self._errors if is_error else self._warnings)[kind] += count

    def asks_for(self, kind: str) -> bool:
        """Return whether an observer asks for a kind that is reported only on request."""
        return self.is_observed and kind in self._asked

    def refuse(self, error: Exception) -> None:
        """Give an error of some data to the observer, so that the rest can be read. Without an observer, raise it."""
        if self._observer is None:
            raise error from None
        self._observer(getattr(error, "kind", None) or "", error, 1)

    def log(
        self, kind: str, message: str | Callable[[], Exception], *, most: int = NUM_IN_FULL, stands_for: int = 1
    ) -> None:
        """Log one error or warning in full, unless `most` of its kind have been logged.

        Args:
            message: The text, or a function that makes the text or the error, called only if the message is needed.
            stands_for: Number of cases that the message stands for: the last case known in full, and all after it.
        """
        if self._observer is not None:
            self._observer(kind, message if isinstance(message, str) else message(), stands_for)
            return
        with self._lock.inner:
            if self._level > 0 and (self._logged[kind] < most or self._level > 1):
                self._logged[kind] += 1
                logger.warning("%s", message if isinstance(message, str) else message())

    def remark(
        self, kind: str, count: int, examples: Sequence[Callable[[], Exception]], *, is_strict: bool = False
    ) -> None:
        """Count `count` warnings of a kind, and log the first of them.

        Args:
            examples: Make the errors of the first. The last of these stands for all later cases, too.
            is_strict: Whether warnings are errors: the first is raised.
        """
        if is_strict and examples:
            raise examples[0]()
        self.count(kind, count)
        for number, error in enumerate(examples, 1):
            self.log(kind, error, stands_for=1 if number < len(examples) else count - number + 1)

    def log_together(self, kind: str, count: int, message: str) -> None:
        """Count `count` warnings of a kind, and log one line that stands for all of them."""
        with self._lock.inner:
            self._warnings[kind] += count
            self._logged[kind] += count
            if self._observer is not None:
                self._observer(kind, message, count)
            elif self._level > 0:
                logger.warning("%s", message)

    def leave_out(self, error: Exception) -> None:
        """Warn of a file without a sequence, which is left out."""
        self.count(EMPTY_FILE)
        self.log(EMPTY_FILE, f"{error}; the file is left out")

    def log_totals(self) -> None:
        """Log the total of each kind of which more were counted than logged, if it has grown since the last call."""
        with self._lock.inner:
            # After more than ten of a kind, the log does not show how many there were.
            for kind, count in (self._errors + self._warnings).items():
                if count > self._logged[kind] and self._level > 0 and not self.is_observed:
                    logger.warning("%s: %s: %d in all", self.name, kind, count)
                    self._logged[kind] = count


def first_few(items: Iterable[object], total: int) -> str:
    """List items for a message: the first ten, and "..." if `total` is larger. The items may end after ten.

    Example:
        >>> first_few(["u1", "u2"], 2), first_few(range(100), 100)
        ('u1, u2', '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...')
    """
    shown = [str(item) for item in islice(items, NUM_IN_FULL)]
    return ", ".join(shown) + (", ..." if total > len(shown) else "")

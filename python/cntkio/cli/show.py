"""Printing: facts in aligned lines, lines that are cut to a width, complaints, the progress bar, exit statuses."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from cntkio.convert import Progress

FINE, BAD_DATA, BAD_CALL = 0, 1, 2

_LINE_WIDTH = 100
_BAR_WIDTH = 40


def print_facts(facts: Mapping[str, str]) -> None:
    """Print one fact per line, in one column."""
    width = max(len(name) for name in facts)
    for name, fact in facts.items():
        print(f"{name:{width}}  {fact}")


def complain(complaint: object) -> None:
    """Print a complaint on standard error."""
    print(f"cntkio: {complaint}", file=sys.stderr)


def count(number: int, unit: str) -> str:
    """Return a number with its unit.

    Example:
        >>> count(1, "sample"), count(1000, "sample")
        ('1 sample', '1,000 samples')
    """
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def counts(kinds: Mapping[str, int]) -> str:
    """Return how many errors or warnings of each kind there are.

    Example:
        >>> counts({"bad number": 2}), counts({})
        ('2 (bad number)', 'none')
    """
    return ", ".join(f"{count:,} ({kind})" for kind, count in kinds.items()) or "none"


def shortened(texts: Iterable[str], total: int, separator: str) -> str:
    """Join the first texts, as many as fit into a line, and say how many more there are.

    Example:
        >>> shortened(map(str, range(1000)), 1000, " ")[-16:]
        '34 35 … 964 more'
    """
    shown: list[str] = []
    width = 0
    for text in texts:
        width += len(text) + len(separator)
        if shown and width > _LINE_WIDTH:
            break
        shown.append(text)
    rest = f" … {total - len(shown):,} more" if len(shown) < total else ""
    return separator.join(shown) + rest


@contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """Draw a progress bar on standard error, and clear it at the end; None if that is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    drawn = ""

    def show(done: int, total: int) -> None:
        nonlocal drawn
        bar = _bar(min(done, total), total) if total else f"{done:,}"
        if bar != drawn:
            drawn = bar
            print(f"\r{bar}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        # A result or a complaint may follow: leave a clean line.
        print(f"\r{'':{_BAR_WIDTH + 8}}\r", end="", file=sys.stderr, flush=True)


def _bar(done: int, total: int) -> str:
    return f"{'█' * (_BAR_WIDTH * done // total):░<{_BAR_WIDTH}} {100 * done // total:3} %"

"""Short descriptions of large things, as text and as HTML for notebooks.

Both are of bounded size. The HTML is escaped, and needs no style sheet, script or other file.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from unicodedata import combining, east_asian_width

from cntkio.errors import printable

_MOST_ROWS = 20
_LONGEST_CELL = 100
_LONGEST_TITLE = 200


class Description(NamedTuple):
    """A title, and a table of the parts.

    Attributes:
        title: Kind and size of the thing.
        has_head: Whether the text has the headings, too: columns of numbers need them.

    Example:
        >>> print(Description("Minibatch: 2 sequences", ("stream", "samples"), [("x", "5"), ("words", "4")]).text())
        Minibatch: 2 sequences
          x      5
          words  4
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    has_head: bool = False

    def text(self) -> str:
        """Return a line for the title and a line for each part."""
        # `_shown` cuts long cells first, so that one of them does not widen a whole column.
        rows = [list(self.columns)] * self.has_head + self._shown()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n  ".join([_shortened(self.title, _LONGEST_TITLE), *lines, *self._rest()])

    def html(self) -> str:
        """Return an HTML table with the title as its caption."""
        head = _html_row("th", self.columns)
        body = "".join(_html_row("td", row) for row in self._shown())
        rest = "".join(
            f'<tr><td colspan="{len(self.columns)}" style="text-align: left">{html.escape(line)}</td></tr>'
            for line in self._rest()
        )
        caption = html.escape(_shortened(self.title, _LONGEST_TITLE))
        return (
            f'<table><caption style="text-align: left; white-space: nowrap">{caption}</caption>'
            f"<thead>{head}</thead><tbody>{body}{rest}</tbody></table>"
        )

    def _shown(self) -> list[list[str]]:
        return [[_shortened(cell) for cell in row] for row in self.rows[:_MOST_ROWS]]

    def _rest(self) -> list[str]:
        num_more = len(self.rows) - _MOST_ROWS
        return [f"… and {num_more:,} more"] if num_more > 0 else []


class Displayed:
    """Base of objects that print as their description, and in notebooks as its HTML."""

    # A subclass with slots would get a `__dict__` without this.
    __slots__ = ()

    def _description(self) -> Description:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._description().text()

    def _repr_html_(self) -> str:
        return self._description().html()


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in singular or plural.

    Example:
        >>> counted(1, "value"), counted(12000, "sample"), counted(2, "class")
        ('1 value', '12,000 samples', '2 classes')
    """
    ending = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"


def columns_of(text: str) -> int:
    """Return the number of columns of a text on a terminal: wide East Asian characters take two, combined accents none.

    Example:
        >>> columns_of("word"), columns_of("e\u0301"), columns_of("\u732b")
        (4, 1, 2)
    """
    if text.isascii():
        return len(text)
    return sum(0 if combining(char) else 1 + (east_asian_width(char) in "WF") for char in text)


def shape_text(shape: Iterable[int | str]) -> str:
    """Return a shape as it is written in the docs.

    Example:
        >>> shape_text((2, 3))
        '[2, 3]'
    """
    return f"[{', '.join(map(str, shape))}]"


def _html_row(cell: str, texts: Iterable[str]) -> str:
    # Notebooks align cells to the right by default.
    cells = "".join(f'<{cell} style="text-align: left">{html.escape(text)}</{cell}>' for text in texts)
    return f"<tr>{cells}</tr>"


def _shortened(text: str, longest: int = _LONGEST_CELL) -> str:
    # Escapes are longer than the characters they stand for, so the length is checked after this.
    visible = printable(text)
    return visible if len(visible) <= longest else f"{visible[: longest - 1]}…"

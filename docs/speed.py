"""Draw the speed of cntkio, next to CNTK 2.7 and today's loaders, from the tables of two pages.

python docs/speed.py > docs/static/speed.svg
"""

import re
from pathlib import Path
from typing import NamedTuple

_DOCS = Path(__file__).parent
_LEFT, _WIDTH, _BAR, _LINE = 340, 790, 390, 18
_STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#1f2328}.h{font-weight:600}"
    ".a{fill:#0969da}.b{fill:#54aeff}.c{fill:#8c959f}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.a{fill:#4493f8}.b{fill:#1f5fb0}.c{fill:#6e7681}}"
)


class Bar(NamedTuple):
    """A bar: its name, a class of `_STYLE`, and its length."""

    name: str
    colour: str
    value: float


def multiples() -> list[Bar]:
    """Return a bar for each corpus and order of docs/performance.md: its multiple of CNTK 2.7 in the same run."""
    table = (_DOCS / "performance.md").read_text(encoding="utf-8").split("<!-- speed -->\n")[1].split("\n\n")[0]
    rows = re.findall(r"^\| ([^|]+), (randomized|in order) \| \d+ \(([\d.]+)\)", table, re.MULTILINE)
    bars = [
        Bar(name if order == "randomized" else "", "a" if order == "randomized" else "b", float(multiple))
        for name, order, multiple in rows
    ]
    return [*bars, Bar("CNTK 2.7", "c", 1)]


def loaders() -> list[Bar]:
    """Return a bar for each loader of docs/compared-with.md: thousands of shuffled rows a second, the slowest run."""
    table = (_DOCS / "compared-with.md").read_text(encoding="utf-8").split("<!-- loaders -->\n")[1].split("\n\n")[0]
    rows = re.findall(r"^\| ([^|…]+) \| ([\d.,]+)", table, re.MULTILINE)
    bars = [
        Bar(name.replace("`", ""), "a" if "cntkio" in name else "c", float(rate.replace(",", "")))
        for name, rate in rows
    ]
    return sorted(bars, key=lambda bar: -bar.value)


def panel(heading: str, bars: list[Bar], top: int) -> tuple[list[str], int]:
    """Return the elements of a panel, and where the next panel begins."""
    lines, y = [f'<text class="h" x="10" y="{top + 14}">{heading}</text>'], top + 26
    scale = _BAR / max(bar.value for bar in bars)
    for bar in bars:
        width = max(1, round(bar.value * scale))
        lines.append(
            f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{bar.name}</text>'
            f'<rect class="{bar.colour}" x="{_LEFT}" y="{y}" width="{width}" height="{_LINE - 3}"/>'
            f'<text x="{_LEFT + width + 6}" y="{y + 13}">{bar.value:,g}</text>'
        )
        y += _LINE
    return lines, y + 16


def picture() -> str:
    """Return the picture. Its colours follow the light or dark scheme of the reader."""
    first, y = panel("Times the speed of CNTK 2.7: randomized, and lighter in file order", multiples(), 4)
    second, height = panel("Shuffled rows of 201 numbers, thousands a second", loaders(), y)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="Speed of cntkio next to CNTK 2.7 and other loaders"><style>{_STYLE}</style>'
    )
    return "\n".join([head, *first, *second, "</svg>"]) + "\n"


if __name__ == "__main__":
    print(picture(), end="")

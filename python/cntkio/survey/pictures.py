"""Pictures of figures: histograms of block characters for terminals, and a page of HTML with drawings in SVG.

The page has no scripts and needs no other files, fonts or network. Names from corpora are escaped.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio.displays import columns_of
from cntkio.errors import printable
from cntkio.survey.figures import QUANTILES, Buckets, Figures, Histogram, OrderFigures, StreamFigures

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH, _HEIGHT = 480, 120
_HEADROOM = 16  # above the columns, for the largest count
_MOST_BARS = 60
_MOST_LABELS = 20
_CHARACTER = 9  # width of a character at the size that phones use, the largest
_NAME_WIDTH, _COUNT_WIDTH, _LONGEST_NAME = 150, 100, 16

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem; color: #1b1f24;
  background: #fff; }
h1, h2, td, th { overflow-wrap: anywhere; }
th { min-width: 7rem; }
svg { max-width: 100%; height: auto; overflow: visible; }
h1 { font-size: 1.4rem; }
h3 { font-size: .95rem; margin: .8rem 0 0; }
td.samples { font: 13px/1.4 ui-monospace, monospace; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; border-bottom: 1px solid #d0d7de; }
table { border-collapse: collapse; margin: .5rem 0; }
td, th { padding: .15rem 1rem .15rem 0; text-align: left; vertical-align: top; }
.side { display: inline-block; vertical-align: top; margin-right: 1.5rem; max-width: 480px; }
figure { margin: .5rem 1.5rem .5rem 0; display: inline-block; vertical-align: top; max-width: min(480px, 100%); }
.side figure { margin-right: 0; }
figcaption { color: #57606a; font-size: .85rem; }
rect { fill: #2f6fab; }
rect.b { fill: #c4741f; }
text { font: 11px system-ui, sans-serif; fill: #57606a; }
line { stroke: #d0d7de; }
@media (max-width: 34rem) { text { font-size: 13px; } }
@media (prefers-color-scheme: dark) {
  body { color: #d7dde3; background: #14181d; }
  h2 { border-color: #3a424b; }
  line { stroke: #3a424b; }
  rect { fill: #6aa7dc; }
  rect.b { fill: #e0a05a; }
  text { fill: #98a3ad; }
  figcaption { color: #98a3ad; }
}
"""


def bars(counts: Sequence[int], width: int = 32) -> str:
    """Return a histogram in block characters; a blank is an empty bin.

    Example:
        >>> bars([0, 1, 4, 8])
        ' ▁▄█'
    """
    merged = _merged(counts, width)
    most = max(merged, default=0)
    # Rounded up, so that even the smallest count is visible.
    return "".join(_BLOCKS[(len(_BLOCKS) * count - 1) // most] if count else " " for count in merged)


def histogram_line(found: Histogram) -> str:
    """Return a histogram in block characters between the ends of its range."""
    return f"{number(found.lowest)} {bars(found.counts)} {number(found.highest)}"


def quantiles(values: Sequence[float]) -> str:
    """Return the quantiles of `QUANTILES` for people; no text if there are none."""
    return ", ".join(f"{100 * share:g} %: {number(value)}" for share, value in zip(QUANTILES, values, strict=False))


def number(value: float) -> str:
    """Return a number for people: up to four digits, and no exponent where a few more digits avoid it.

    Example:
        >>> number(3.0), number(0.123456), number(1234567.0)
        ('3', '0.1235', '1,234,567')
    """
    # The size is compared first, because `int` raises an error for NaN and infinity.
    if abs(value) < 1e15 and value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def advice(found: Buckets) -> str:
    """Return how much padding buckets of similar lengths save, and the longest sequence of each bucket."""
    longest = ", ".join(f"{length:,}" for length in found.longest)
    shares = f"{100 * found.padding:.0f} % padding instead of {100 * found.without:.0f} %"
    return f"{shares} with sequences of up to {longest} samples apart ({found.size} sequences in a minibatch)"


_SPACE_OF_A_NUMBER = re.compile(r"(?<=\d) (?=%)|(?<=%:) ")  # where no line may break
_NO_NAMES: Mapping[str, Mapping[int, str]] = MappingProxyType({})


def page(
    title: str, facts: Iterable[tuple[str, str]], corpora: Iterable[Figures], samples: Sequence[tuple[Any, Any]] = (),
    names: Mapping[str, Mapping[int, str]] = _NO_NAMES,
) -> str:  # fmt: skip
    """Return a page of HTML about corpora, with facts about their file.

    Args:
        samples: Sequences to show: the key of each, and for each stream its name and its samples.
        names: The names of classes, by stream.
    """
    shown = ["<h2>First sequences</h2>"] if samples else []
    for key, texts in samples:
        # The text of samples comes from the corpus, and stays as it is.
        lines = [(name, _text(text), ' class="samples"') for name, text in texts]
        shown.append(f"<h3>sequence {_text(str(key))}</h3>{_table_of(lines)}")
    return _page(title, [_table(facts), *shown, *(part for found in corpora for part in _corpus(found, names))])


def _page(title: str, body: Iterable[str]) -> str:
    shown = "\n".join([f"<h1>{_text(title)}</h1>", *body])
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style></head>\n<body>\n{shown}\n</body>\n</html>\n"
    )


def order_page(corpora: Iterable[tuple[str, Sequence[tuple[str, OrderFigures]]]]) -> str:
    """Return a page of HTML about the order of corpora, each with one or several settings side by side."""
    body = []
    for name, settings in corpora:
        body.append(f"<h2>{_text(name)}</h2>")
        for setting, found in settings:
            facts = {"setting": setting, "steps": f"{found.num_steps:,}", "padding": f"{100 * found.padding:.1f} %"}
            facts["ranks wait"] = f"{100 * found.waiting:.1f} % of the time"
            facts["attention waits"] = f"{100 * found.lost:.1f} % of the time"
            facts["chunks in memory"] = f"{found.most_chunks:,}"
            facts["shuffling"] = f"{100 * found.shuffling:.1f} % of a full shuffle"
            drawings = _figure(order_drawing(found.map), "position in the data (down) by position in the sweep (right)")
            if found.sizes is not None and found.sizes.lowest != found.sizes.highest:
                drawings += _figure(_histogram(found.sizes), "samples of a step")
            body.append(f'<div class="side">{_table(facts.items())}{drawings}{_course(found)}</div>')
    return _page("Plan", body)


def _course(figures: OrderFigures) -> str:
    """Draw the fill, and the cost of the ranks, over the sweep."""
    found = figures.course
    labels = [""] * len(found.filled)
    if len(labels) < 2:
        return ""
    labels[0], labels[-1] = "first step", "last step"
    filled = _columns([round(100 * share) for share in found.filled.tolist()], labels)
    shown = _figure(filled, "cells of the arrays that have samples, in %")
    # Costs are squares, so they are shown as a share of the largest.
    unit = float(found.most_cost.max()) / 100 or 1.0
    mean, most = ([round(cost / unit) for cost in costs.tolist()] for costs in (found.mean_cost, found.most_cost))
    drawing = _columns(mean, labels, most)
    shown += _figure(drawing, "cost of a step in %: of the mean rank (blue), and of the dearest rank (orange)")
    for name, shares in found.shares.items():
        # Equal scales, so that the parts can be compared.
        drawing = _columns([round(100 * share) for share in shares.tolist()], labels, most=100)
        shown += _figure(drawing, f"sequences of {name}, in % of a step")
    for name, values in figures.limits.items():
        ends = ["first step", *[""] * (len(values) - 2), "last step"][: len(values)]
        shown += _figure(_columns(values.tolist(), ends), f"limit of {name}, over all planned sweeps")
    return shown


def order_drawing(cells: npt.NDArray[np.int64]) -> str:
    """Draw how many sequences of each part of the data (rows) come in each part of a sweep (columns), as SVG."""
    num_rows, num_columns = cells.shape
    width, height, most = _WIDTH / num_columns, _WIDTH / 2 / num_rows, max(int(cells.max(initial=0)), 1)
    parts = [
        # The colour is an attribute, because a drawing in a file of its own has no style sheet.
        f'<rect x="{column * width:.1f}" y="{row * height:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="#2f6fab" opacity="{cells[row, column] / most:.2f}"/>'
        for row, column in np.argwhere(cells).tolist()
    ]
    frame = f'<rect x="0.5" y="0.5" width="{_WIDTH - 1}" height="{_WIDTH // 2 - 1}" style="fill: none; stroke: #888"/>'
    # A file of its own needs the namespace; within HTML it does no harm.
    return _drawing([*parts, frame], _WIDTH // 2, 'xmlns="http://www.w3.org/2000/svg" ')


def _corpus(found: Figures, names: Mapping[str, Mapping[int, str]]) -> Iterable[str]:
    yield "<h2>Sequences</h2>"
    facts = {"sequences": f"{found.num_sequences:,}", "samples": f"{found.num_samples:,}"}
    facts["lengths"] = quantiles(found.length_quantiles)
    facts["buckets"] = "" if found.buckets is None else advice(found.buckets)
    yield _table(facts.items())
    if found.lengths is not None:
        yield _figure(_histogram(found.lengths), "lengths of the sequences, in samples")
    if found.padding:
        in_order = [round(100 * one.in_order) for one in found.padding]
        shuffled = [round(100 * one.shuffled) for one in found.padding]
        drawing = _columns(in_order, [f"{one.size:,}" for one in found.padding], shuffled)
        yield _figure(drawing, "padding in %, by sequences in a minibatch: in order (blue), and shuffled (orange)")
    for stream in found.streams:
        yield from _stream(stream, names.get(stream.info.name, {}))


def _stream(stream: StreamFigures, names: Mapping[int, str]) -> Iterable[str]:
    info = stream.info
    yield f"<h2>Stream {_text(info.name)}</h2>"
    extent, mean = f"{number(stream.lowest)} to {number(stream.highest)}", number(stream.mean)
    facts = {
        "form": f"{info.storage_format}, dimension {info.dim:,}, {info.dtype}",
        "samples": f"{stream.num_samples:,}, at most {stream.longest:,} in a sequence",
        "values": f"{stream.num_values:,}; {100 * stream.density:.3g} % of all possible values are not zero",
        "range": extent if stream.quantiles else "no values",
        "mean": f"{mean}, deviation {number(stream.deviation)}" if stream.quantiles else "no values",
        "quantiles": quantiles(stream.quantiles),
        "NaN or infinite": f"{stream.num_strange:,}" if stream.num_strange else "",
    }
    yield _table(facts.items())
    if stream.values is not None and stream.lowest != stream.highest:
        yield _figure(_histogram(stream.values), "values")
    if stream.frequencies is not None and stream.frequencies.any():
        most = stream.most_frequent(_MOST_LABELS)
        num_used = int((stream.frequencies > 0).sum())
        caption = f"most frequent classes: {len(most):,} of {num_used:,} that occur, of {info.dim:,}"
        yield _figure(_bars([(names.get(label, str(label)), count) for label, count in most]), caption)
    for index, component in enumerate(stream.components):
        yield _figure(_histogram(component), f"component {index}")


def _text(text: str) -> str:
    return html.escape(printable(text))


def _table(facts: Iterable[tuple[str, str]]) -> str:
    return _table_of((name, _SPACE_OF_A_NUMBER.sub("&#160;", _text(fact)), "") for name, fact in facts if fact)


def _table_of(rows: Iterable[tuple[str, str, str]]) -> str:
    """Return a table of names and cells, each cell with its attributes."""
    cells = [f"<tr><th>{_text(name)}</th><td{attributes}>{cell}</td></tr>" for name, cell, attributes in rows]
    return f"<table>{''.join(cells)}</table>"


def _bars(counts: Sequence[tuple[str, int]]) -> str:
    """Draw a horizontal bar for each name, with its count at the end."""
    most, height = max((count for _, count in counts), default=0) or 1, 18
    parts = []
    for index, (name, count) in enumerate(counts):
        y, width = index * height, (_WIDTH - _NAME_WIDTH - _COUNT_WIDTH) * count / most
        # The title, which browsers show at the pointer, has the whole name.
        parts.append(
            f'<text x="{_NAME_WIDTH - 6}" y="{y + 13}" text-anchor="end"><title>{_text(name)}</title>'
            f"{html.escape(_shortened(printable(name)))}</text>"
            f'<rect x="{_NAME_WIDTH}" y="{y + 2}" width="{width:.1f}" height="{height - 4}"/>'
            f'<text x="{_NAME_WIDTH + width + 5:.1f}" y="{y + 13}">{count:,}</text>'
        )
    return _drawing(parts, len(counts) * height)


def _shortened(name: str) -> str:
    fits = (name[:size] for size in range(_LONGEST_NAME, 0, -1) if columns_of(name[:size]) < _LONGEST_NAME)
    return name if columns_of(name) <= _LONGEST_NAME else f"{next(fits)}…"


def _figure(drawing: str, caption: str) -> str:
    return f"<figure>{drawing}<figcaption>{_text(caption)}</figcaption></figure>"


def _histogram(found: Histogram) -> str:
    counts = _merged(found.counts, _MOST_BARS)
    labels = [""] * len(counts)
    labels[0], labels[-1] = number(found.lowest), number(found.highest)
    return _columns(counts, labels)


def _columns(counts: Sequence[int], labels: Sequence[str], second: Sequence[int] = (), most: int = 0) -> str:
    """Draw columns with labels below; `second` draws a second column next to each column.

    The full height is `most`; 0: the largest count.
    """
    most = most or max((*counts, *second), default=0) or 1
    step = _WIDTH / max(len(counts), 1)
    width = step * (0.46 if second else 0.86)
    has_counts = _fit([f"{count:,}" for count in (*counts, *second)], width)
    parts = [f'<line x1="0" x2="{_WIDTH}" y1="{_HEIGHT}" y2="{_HEIGHT}"/>']
    for series, kind in ((counts, ""), (second, ' class="b"')):
        shift = step / 2 - (0 if kind else width) if second else (step - width) / 2
        for index, count in enumerate(series):
            height = (_HEIGHT - _HEADROOM) * count / most
            sides = f'x="{index * step + shift:.1f}" y="{_HEIGHT - height:.1f}" width="{width:.1f}"'
            parts.append(f'<rect{kind} {sides} height="{height:.1f}"><title>{labels[index]} {count:,}</title></rect>')
            if has_counts and count:
                x = index * step + shift + width / 2
                parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - height - 3:.1f}" text-anchor="middle">{count:,}</text>')
    # Narrow columns have labels at both ends only, which must not stand out.
    ends = {0: ("start", 0.0), len(labels) - 1: ("end", _WIDTH)} if not _fit(labels, step) else {}
    for index, label in enumerate(labels):
        if label:
            anchor, x = ends.get(index, ("middle", (index + 0.5) * step))
            parts.append(f'<text x="{x:.1f}" y="{_HEIGHT + 14}" text-anchor="{anchor}">{_text(label)}</text>')
    if not has_counts:
        parts.append(f'<text x="{_WIDTH}" y="10" text-anchor="end">{most:,}</text>')
    return _drawing(parts, _HEIGHT + 20)


def _fit(labels: Iterable[str], room: float) -> bool:
    """Return whether all labels fit into this room on every screen, so that neighbours do not overlap."""
    return max((len(label) for label in labels), default=0) * _CHARACTER <= room


def _drawing(parts: Iterable[str], height: int, attributes: str = "") -> str:
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    return f'<svg {attributes}{size} role="img">{"".join(parts)}</svg>'


def _merged(counts: Sequence[int], most: int) -> list[int]:
    """Return counts in at most this number of bins: neighbouring bins are added."""
    size = -(-len(counts) // most) or 1
    return [sum(counts[begin : begin + size]) for begin in range(0, len(counts), size)]

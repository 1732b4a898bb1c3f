"""Draw what each rank costs in each step, with packed rows and with rows of equal cost, from plans of an example.

python docs/balance.py > docs/static/balance.svg
"""

from pathlib import Path

from cntkio import Budget, CTFDeserializer, GlobalPartition, MinibatchSource, infer_streams

_CORPUS = Path(__file__).parent.parent / "examples" / "alice" / "train.ctf"
_RANKS, _STEPS = 8, 7
_BAR, _GAP, _HEIGHT, _LEFT = 10, 18, 90, 10
_WIDTH = _LEFT + _STEPS * (_RANKS * _BAR + _GAP)
_STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#1f2328}.a{fill:#0969da}.c{fill:#8c959f}line{stroke:#8c959f}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.a{fill:#4493f8}.c{fill:#6e7681}}"
)


def costs(budget: Budget) -> list[list[float]]:
    """Return the costs of all ranks in each step of a sweep."""
    path = str(_CORPUS)
    with MinibatchSource(CTFDeserializer(path, infer_streams(path)), max_sweeps=1) as source:
        ranks = [source.plan(budget, GlobalPartition(rank, _RANKS)).sweep().steps.costs for rank in range(_RANKS)]
    return [list(step) for step in zip(*(rank.tolist() for rank in ranks), strict=True)]


def panel(heading: str, steps: list[list[float]], top: int) -> list[str]:
    """Return the elements of a panel: a group of bars for each step, and a line at the rank that all wait for."""
    most = max(map(max, steps))
    lost = 1 - sum(map(sum, steps)) / (_RANKS * sum(map(max, steps)))
    lines = [f'<text x="{_LEFT}" y="{top + 14}">{heading}: {lost:.1%} of the time is lost</text>']
    bottom = top + 26 + _HEIGHT
    for number, step in enumerate(steps):
        left = _LEFT + number * (_RANKS * _BAR + _GAP)
        for rank, cost in enumerate(step):
            height = round(_HEIGHT * cost / most)
            lines.append(
                f'<rect class="a" x="{left + rank * _BAR}" y="{bottom - height}" width="{_BAR - 2}" height="{height}"/>'
            )
        y = bottom - round(_HEIGHT * max(step) / most)
        lines.append(f'<line x1="{left}" x2="{left + _RANKS * _BAR - 2}" y1="{y}" y2="{y}"/>')
    return lines


def picture() -> str:
    """Return the picture. Its colours follow the light or dark scheme of the reader."""
    packed = Budget(rows=_RANKS, row_length=512, pool=400)
    balanced = Budget(rows=_RANKS, row_length=512, pool=400, balance="attention")
    panels = [
        *panel("Packed rows", costs(packed), 4),
        *panel("Rows of equal cost", costs(balanced), _HEIGHT + 44),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {2 * (_HEIGHT + 40)}" role="img" '
        f'aria-label="Cost of {_RANKS} ranks in {_STEPS} steps"><style>{_STYLE}</style>'
    )
    return "\n".join([head, *panels, "</svg>"]) + "\n"


if __name__ == "__main__":
    print(picture(), end="")

"""Draw a curriculum: the two limits that change, and the samples of each step, from the plan of an example.

python docs/schedules.py > docs/static/schedules.svg
"""

from pathlib import Path

from cntkio import Budget, CTFDeserializer, MinibatchSource, infer_streams
from cntkio.source import PlannedSteps

_CORPUS = Path(__file__).parent.parent / "examples" / "alice" / "train.ctf"
_BUDGET = Budget(padded={0: 512, 60_000: 2048}, max_length={0: 16, 40_000: 160}, oversize="drop", pool=100)
_WIDTH, _HEIGHT, _LEFT, _TOP = 680, 110, 46, 22
_STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#1f2328}.a{fill:#0969da}path{fill:none;stroke:#bc4c00;stroke-width:2}"
    "line{stroke:#8c959f}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.a{fill:#4493f8}path{stroke:#f0883e}}"
)


def planned() -> PlannedSteps:
    """Return the steps of four sweeps."""
    path = str(_CORPUS)
    with MinibatchSource(CTFDeserializer(path, infer_streams(path)), max_sweeps=4) as source:
        return source.plan(_BUDGET).steps(10_000)


def panel(heading: str, columns: list[int], limits: list[int], top: int) -> list[str]:
    """Return the elements of a panel: a column for each step, and a line of the limit."""
    most, bottom, step = max(limits), top + _TOP + _HEIGHT, (_WIDTH - _LEFT) / len(columns)
    lines = [f'<text x="{_LEFT}" y="{top + 14}">{heading}</text>']
    for value, y in ((most, top + _TOP + 10), (0, bottom)):
        lines.append(f'<text x="{_LEFT - 6}" y="{y}" text-anchor="end">{value:,}</text>')
    for number, value in enumerate(columns):
        height = _HEIGHT * value / most
        sides = f'x="{_LEFT + number * step:.1f}" y="{bottom - height:.1f}" width="{step * 0.8:.1f}"'
        lines.append(f'<rect class="a" {sides} height="{height:.1f}"/>')
    points = [
        f"{_LEFT + number * step:.1f} {bottom - _HEIGHT * value / most:.1f}" for number, value in enumerate(limits)
    ]
    return [
        *lines,
        f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{bottom}" y2="{bottom}"/>',
        f'<path d="M{" L".join(points)}"/>',
    ]


def picture() -> str:
    """Return the picture. Its colours follow the light or dark scheme of the reader."""
    steps = planned()
    longest = (steps.padded_areas // steps.num_sequences).tolist()
    panels = [
        *panel("Samples of each step after padding, and their limit", steps.padded_areas.tolist(),
               steps.limits["padded"].tolist(), 0),
        *panel("Longest sequence of each step, and the limit", longest, steps.limits["max_length"].tolist(),
               _HEIGHT + _TOP + 16),
    ]  # fmt: skip
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {2 * (_HEIGHT + _TOP) + 20}" role="img" '
        f'aria-label="Limits that grow over four sweeps"><style>{_STYLE}</style>'
    )
    return "\n".join([head, *panels, "</svg>"]) + "\n"


if __name__ == "__main__":
    print(picture(), end="")

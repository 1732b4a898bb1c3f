"""Labels of drawings do not overlap, on a phone either, where the text is the largest next to the drawing."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from cntkio.cli import main

WIDTH, HEIGHT = 13 * 0.64, 11  # of a digit and of a line, at the size for phones


def write_text(path: Path, scale: float, longest: int, num_sequences: int = 900) -> None:
    """Write sequences of up to `longest` samples, with values of this size and labels that are rare and frequent."""
    draws = np.random.default_rng(1)
    with path.open("w") as file:
        for key in range(num_sequences):
            for _ in range(draws.integers(1, longest + 1)):
                label = draws.zipf(2) % 40
                file.write(f"{key} |x {draws.normal() * scale:.6g} |y {label}:1 |z {draws.integers(3)}\n")


def labels_that_overlap(page: str) -> list[tuple[str, str]]:
    """Return pairs of labels of a drawing that share space, and labels that leave the drawing."""
    found = []
    for drawing in re.findall(r"<svg.*?</svg>", page):
        boxes = []
        for x, y, anchor, label in re.findall(
            r'<text x="([\d.]+)" y="([\d.]+)"(?: text-anchor="(\w+)")?>(?:<title>.*?</title>)?([^<]*)', drawing
        ):
            width = len(label) * WIDTH
            begin = float(x) - {"end": width, "middle": width / 2}.get(anchor, 0)
            boxes.append((begin, begin + width, float(y), label))
        for left, right in combinations(sorted(boxes), 2):
            found += [(left[3], right[3])] if left[1] > right[0] and abs(left[2] - right[2]) < HEIGHT else []
        found += [(label, "edge") for begin, end, _, label in boxes if begin < -20 or end > 500]
    return found


@pytest.mark.parametrize("longest", [1, 3, 12, 150])
@pytest.mark.parametrize("scale", [1e-7, 1e7])
def test_labels_do_not_overlap(longest: int, scale: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_text(Path("a.ctf"), scale, longest, 40 if longest == 150 else 900)
    assert main(["inspect", "--quiet", "--html", "a.html", "a.ctf"]) == 0
    assert main(["plan", "--html", "b.html", "a.ctf"]) == 0
    page = Path("a.html").read_text(encoding="utf-8")
    assert page.count("<text") > 20
    assert labels_that_overlap(page) == []
    assert labels_that_overlap(Path("b.html").read_text(encoding="utf-8")) == []

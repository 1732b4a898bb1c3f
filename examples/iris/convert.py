"""Write Fisher's iris measurements of scikit-learn as dense CTF: `iris.ctf` in this folder.

    pip install scikit-learn
    python examples/iris/convert.py

A flower is one line: three values that name its species, then its four lengths in centimetres, as published.
The name of the species follows as a comment, which every reader of CTF skips.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

SPECIES = ("setosa", "versicolor", "virginica")


def ctf_lines(flowers: Iterable[Sequence[float]], species: Iterable[int]) -> Iterator[str]:
    """Yield one line of CTF per flower: a one-hot species and lengths with one decimal place."""
    for lengths, kind in zip(flowers, species, strict=True):
        one_hot = " ".join("1" if place == kind else "0" for place in range(len(SPECIES)))
        yield f"|species {one_hot} |lengths {' '.join(f'{length:.1f}' for length in lengths)} |# {SPECIES[kind]}\n"


def main() -> None:
    from sklearn.datasets import load_iris

    flowers, species = load_iris(return_X_y=True)
    path = Path(__file__).parent / "iris.ctf"
    with path.open("w", encoding="ascii", newline="\n") as file:
        file.writelines(ctf_lines(flowers, species))
    print(f"{path}: {len(species)} flowers")


if __name__ == "__main__":
    main()

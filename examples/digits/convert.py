"""Write the handwritten digits of scikit-learn as dense CTF: `train.ctf` and `test.ctf` in this folder.

    pip install scikit-learn
    python examples/digits/convert.py

Every fourth image goes to the test file, so that each of the thirteen writers, who follow one another in the data,
is in both files. An image is one line: ten values that name its digit, then its 64 pixels, row by row.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

NUM_CLASSES = 10
TEST_EVERY = 4


def ctf_lines(images: Iterable[Iterable[float]], digits: Iterable[int]) -> Iterator[str]:
    """Yield one line of CTF per image: a one-hot label and pixels that are whole numbers."""
    for pixels, digit in zip(images, digits, strict=True):
        one_hot = " ".join("1" if place == digit else "0" for place in range(NUM_CLASSES))
        yield f"|label {one_hot} |pixels {' '.join(str(int(pixel)) for pixel in pixels)}\n"


def main() -> None:
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    is_test = [place % TEST_EVERY == TEST_EVERY - 1 for place in range(len(digits))]
    folder = Path(__file__).parent
    for name, wanted in (("train.ctf", False), ("test.ctf", True)):
        chosen = [place for place, value in enumerate(is_test) if value is wanted]
        with (folder / name).open("w", encoding="ascii", newline="\n") as file:
            file.writelines(ctf_lines(images[chosen], digits[chosen]))
        print(f"{folder / name}: {len(chosen)} images")


if __name__ == "__main__":
    main()

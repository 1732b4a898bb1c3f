"""A sound text, and for each rule of the text check a way to damage the text, with the location of the damage."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

NUM_SEQUENCES = 400


def sound_lines(seed: int = 1) -> list[str]:
    """A corpus with ids: two lines a sequence, dense values, dense one-hot labels, sparse words and sparse one-hot."""
    generator = np.random.default_rng(seed)
    lines = []
    for sequence in range(NUM_SEQUENCES):
        for _ in range(2):
            values = " ".join(f"{value:.3f}" for value in generator.normal(size=4))
            label = " ".join("1" if index == generator.integers(3) else "0" for index in range(3))
            if label.count("1") != 1:
                label = "0 1 0"
            words = " ".join(f"{index}:{generator.integers(1, 9)}" for index in sorted(generator.choice(40, 3, False)))
            lines.append(f"{sequence} |x {values} |y {label} |w {words} 49:1 |c {generator.integers(7)}:1")
    lines[0] = lines[0].replace("|c ", "|c 6:1 |# ")
    return lines


def edited(number: int, pattern: str, replacement: str) -> Callable[[list[str]], None]:
    """Return a function that replaces a text in a line, counted from 1."""

    def edit(lines: list[str]) -> None:
        before = lines[number - 1]
        lines[number - 1] = re.sub(pattern, replacement, before, count=1)
        assert lines[number - 1] != before

    return edit


def column(number: int, pattern: str) -> Callable[[list[str]], int]:
    """Return a function that finds the column of a text in a line of the damaged corpus, counted from 1."""

    def find(lines: list[str]) -> int:
        match = re.search(pattern, lines[number - 1])
        assert match is not None
        return match.start() + 1

    return find


def repeated(lines: list[str]) -> None:
    for number in (201, 202):
        lines[number - 1] = "7 |" + lines[number - 1].split("|", 1)[1]


def without_words(lines: list[str]) -> None:
    for number in (101, 102):
        edited(number, r"\|w .*(?=\|c)", "")(lines)


def halved(lines: list[str]) -> None:
    edited(181, r" \|y .*", "")(lines)
    edited(182, r"\|x [^|]*", "")(lines)


# For each kind the line with the damage, the function that makes it, and the function that finds its column.
DAMAGE: dict[str, tuple[int, Callable[[list[str]], None], Callable[[list[str]], int]]] = {
    "bad-number": (21, edited(21, r"\|x (\S+)", "|x 1o"), column(21, "o")),
    "bad-index": (31, edited(31, r"\|w (\d+):", r"|w a:"), column(31, "a:")),
    "index-out-of-range": (41, edited(41, r"49:1", "50:1"), column(41, "50:1")),
    "missing-colon": (51, edited(51, r"49:1", "49 1"), column(51, "(?<=49) ")),
    "too-many-values": (61, edited(61, r"\|y", "5 |y"), column(61, r"5 \|y")),
    "junk": (71, edited(71, r"\|x", "@ |x"), column(71, "@")),
    "pipe-without-a-name": (81, edited(81, r"\|x", "| |x"), column(81, r"\| ")),
    "line-without-a-sample": (91, edited(91, r"\|.*", "|other 5"), column(91, "9|4")),
    "stream-without-a-sample": (101, without_words, column(101, "5")),
    "byte-above-0x7f": (111, edited(111, r"\|w", "é |w"), column(111, "é")),
    "short-dense-sample": (121, edited(121, r"\|x \S+", "|x"), column(121, r"\|x")),
    "repeated-id": (201, repeated, column(201, "7")),
    "not-one-hot": (131, edited(131, r"\|y . . .", "|y 1 1 0"), column(131, r"\|y")),
    "unequal-lengths": (141, edited(141, r"\|c \S+", ""), column(141, "7")),
    "too-few-samples": (181, halved, column(181, "9")),
    "not-finite": (151, edited(151, r"\|x \S+", "|x 1e99"), column(151, r"\|x")),
    "mixed-line-ends": (161, edited(161, "$", "\r"), column(161, "\r")),
    "too-many-samples": (172, edited(172, "$", " |c 1:1"), lambda lines: lines[171].rindex("|c") + 1),
}


STREAMS = ["--stream", "x:4", "--stream", "y:3", "--stream", "w:50:sparse", "--stream", "c:7:sparse"]


def write(lines: list[str], path: str = "a.ctf") -> None:
    Path(path).write_text("\n".join(lines) + "\n", encoding="latin-1", newline="")

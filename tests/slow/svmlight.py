"""A slow reader of svmlight texts: the format line by line, with Python's own numbers."""

from typing import NamedTuple

import numpy as np

BLANKS = " \t\r\x0b\x0c"


class Line(NamedTuple):
    """A line: the features as written, the labels, and the query."""

    features: list[tuple[int, float]]
    labels: list[float]
    query: int | None


class WrongLineError(Exception):
    """The line breaks the format."""


def parsed(line: str, multilabel: bool = False) -> Line | None:
    """Parse a line; None: it has no sample.

    Raises:
        WrongLineError: It breaks the format.
    """
    line = line.partition("#")[0]
    for blank in BLANKS[1:]:
        line = line.replace(blank, " ")
    fields = [field for field in line.split(" ") if field]
    if not fields:
        return None
    labels: list[float] = []
    if not multilabel or ":" not in fields[0]:
        labels = [number(label) for label in (fields[0].split(",") if multilabel else fields[:1])]
        fields = fields[1:]
    if multilabel and any(label < 0 or label != label // 1 for label in labels):
        raise WrongLineError
    query = None
    if fields and fields[0].startswith("qid:"):
        query = whole(fields[0][4:].removeprefix("-")) * (-1 if fields[0].startswith("qid:-") else 1)
        fields = fields[1:]
    features = []
    for field in fields:
        index, colon, value = field.partition(":")
        if not colon or (features and whole(index) <= features[-1][0]):
            raise WrongLineError
        features.append((whole(index), number(value)))
    return Line(features, sorted(set(labels)) if multilabel else labels, query)


def whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise WrongLineError
    return int(text)


def number(text: str) -> float:
    if "_" in text or not text.isascii() or text != text.strip("\x1c\x1d\x1e\x1f"):
        raise WrongLineError
    try:
        return float(text)
    except ValueError:
        raise WrongLineError from None


def read(text: str, multilabel: bool = False) -> list[Line]:
    """Read a text without errors."""
    return [line for row in text.split("\n") if (line := parsed(row, multilabel)) is not None]


def bits(values: list[float], dtype: type) -> list[int]:
    """Return the bits of numbers that are rounded to float64, and then to their type."""
    with np.errstate(over="ignore"):
        array = np.array(values, np.float64).astype(dtype)
    unsigned: list[int] = array.view(np.uint32 if dtype == np.float32 else np.uint64).tolist()
    return unsigned

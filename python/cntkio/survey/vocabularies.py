"""Vocabularies from the comments of a text: words that stand after one-hot samples.

::

    |S0 178:1 |# BOS        index 178 of stream S0 is the word BOS

The words are counted in C, block by block; Python loops over different words only.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from typing import NamedTuple

from cntkio.formats.open_input import open_input

BLOCK = 4 << 20
"""Bytes that are searched at a time."""
_ONE_HOT_WITH_WORD = re.compile(rb"\|([^\s|#][^\s|]*)[ \t]+(\d{1,10}):1(?:\.0*)?[ \t]*\|#[ \t]*([^|\r\n]*[^|\s])")


class Vocabulary(NamedTuple):
    """The words of a stream.

    Attributes:
        words: The word of each index: of several words the most frequent.
        num_samples: One-hot samples with a comment.
        num_contradictions: Samples whose comment is another word than the word of their index.
        others: For each index with several words the less frequent words, and how often each occurs.
    """

    words: dict[int, str]
    num_samples: int
    num_contradictions: int
    others: dict[int, dict[str, int]]


def read_vocabularies(path: str | os.PathLike[str]) -> dict[str, Vocabulary]:
    """Return the vocabulary of each stream of a text whose one-hot samples have comments.

    Args:
        path: A file in the CNTK text format.

    Returns:
        The vocabularies, by the name of the stream in the file; empty if no one-hot sample has a comment.

    Raises:
        OSError: The file cannot be read.

    Example:
        >>> words = read_vocabularies("examples/alice/train.ctf")["w"]
        >>> words.words[10], words.words[12], words.num_contradictions
        ('Alice', 'was', 5440)
    """
    counts: Counter[tuple[bytes, bytes, bytes]] = Counter()
    file = open_input(os.fspath(path))
    try:
        offset, rest = 0, b""
        while block := file.read(offset, BLOCK):
            offset += len(block)
            lines, end, last = (rest + block).rpartition(b"\n")
            counts.update(_ONE_HOT_WITH_WORD.findall(lines + end))
            rest = last
        counts.update(_ONE_HOT_WITH_WORD.findall(rest))
    finally:
        file.close()
    found: dict[str, dict[int, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for (name, index, word), count in counts.items():
        of_index = found[name.decode(errors="replace")][int(index)]
        text = word.decode(errors="replace")
        of_index[text] = of_index.get(text, 0) + count
    return {name: _vocabulary(indices) for name, indices in found.items()}


def _vocabulary(indices: dict[int, dict[str, int]]) -> Vocabulary:
    words = {index: max(words, key=lambda word: words[word]) for index, words in sorted(indices.items())}
    others = {index: {word: count for word, count in indices[index].items() if word != words[index]} for index in words}
    others = {index: found for index, found in others.items() if found}
    num_samples = sum(sum(found.values()) for found in indices.values())
    return Vocabulary(words, num_samples, sum(sum(found.values()) for found in others.values()), others)

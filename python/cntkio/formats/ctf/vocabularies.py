"""Vocabularies from the comments of a text: words after one-hot samples.

::

    |S0 178:1 |# BOS        index 178 of the stream S0 is the word BOS

`re` and `Counter` work on blocks of whole lines; the only Python loop runs over distinct words.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

from cntkio.displays import Description, Displayed, counted
from cntkio.formats.file_lists import FileNames, listed_files
from cntkio.formats.open_input import open_input, presumed_sizes
from cntkio.formats.passes import announced, announced_together, passed
from cntkio.formats.remote import Remote, located
from cntkio.formats.text_input import TextInput

BLOCK = 4 << 20
"""Bytes that are searched at a time."""
_PASS = "finding words"  # the name of the pass
_ONE_HOT_WITH_WORD = re.compile(rb"\|([^\s|#][^\s|]*)[ \t]+(\d{1,10}):1(?:\.0*)?[ \t]*\|#[ \t]*([^|\r\n]*[^|\s])")


@dataclass(frozen=True, repr=False, eq=False)
class Vocabulary(Displayed, Mapping[int, str]):
    """The words of a stream, as a mapping from indices to words.

    Attributes:
        words: The word of each index: the most frequent if there are several.
        num_samples: One-hot samples with a comment.
        num_contradictions: Samples whose comment is not the word of their index.
        others: For each index with several words, the less frequent words and how often each occurs.
    """

    words: dict[int, str]
    num_samples: int
    num_contradictions: int
    others: dict[int, dict[str, int]]

    def __getitem__(self, index: int) -> str:
        return self.words[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self.words)

    def __len__(self) -> int:
        return len(self.words)

    def _description(self) -> Description:
        counts = f"{counted(self.num_samples, 'sample')}, {counted(self.num_contradictions, 'contradiction')}"
        rows = [
            (str(index), word, ", ".join(f"{other} {count}" for other, count in self.others.get(index, {}).items()))
            for index, word in self.words.items()
        ]
        return Description(
            f"Vocabulary: {counted(len(self.words), 'word')}, {counts}", ("index", "word", "other words"), rows
        )


def read_vocabularies(path: FileNames, *, remote: Remote | None = None) -> dict[str, Vocabulary]:
    """Return the vocabulary of each stream of a text whose one-hot samples have comments. Reads all of it.

    Args:
        path: A file in the CNTK text format; or several, a pattern or a list, as for `CTFDeserializer`.
        remote: How to read remote stores.

    Returns:
        The vocabularies, by the name of the stream in the file; empty if no comment follows a one-hot sample.

    Raises:
        OSError: A file cannot be read.

    Example:
        >>> words = read_vocabularies("examples/alice/train.ctf")["w"]
        >>> words[10], words[12], words.num_contradictions
        ('Alice', 'was', 5440)
    """
    counts: Counter[tuple[bytes, bytes, bytes]] = Counter()
    paths, remote = located("path", path, remote)
    texts = listed_files(paths, option="path", remote=remote)
    with announced_together(_PASS, presumed_sizes(texts, remote)):
        for text in texts:
            with closing(open_input(text, remote)) as file:
                _count_words(file, counts)
    return _vocabularies(counts)


def vocabularies_in(lines: bytes) -> dict[str, Vocabulary]:
    """Return the vocabulary of each stream in some lines of a text, as `read_vocabularies` does.

    Example:
        >>> vocabularies_in(b"|S0 178:1 |# BOS")["S0"][178]
        'BOS'
    """
    return _vocabularies(Counter(_ONE_HOT_WITH_WORD.findall(lines)))


def _vocabularies(counts: Counter[tuple[bytes, bytes, bytes]]) -> dict[str, Vocabulary]:
    found: dict[str, dict[int, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for (name, index, word), count in counts.items():
        found[name.decode(errors="replace")][int(index)][word.decode(errors="replace")] += count
    return {name: _vocabulary(indices) for name, indices in found.items()}


def _count_words(file: TextInput, counts: Counter[tuple[bytes, bytes, bytes]]) -> None:
    offset = 0
    rest: list[bytes] = []  # pieces of a line whose end has not been read yet
    with announced(_PASS, file.size):
        while block := file.read(offset, BLOCK):
            offset += len(block)
            lines, end, last = block.rpartition(b"\n")
            if end:
                counts.update(_ONE_HOT_WITH_WORD.findall(b"".join([*rest, lines])))
                rest = []
            rest.append(last)
            passed(len(block))
    counts.update(_ONE_HOT_WITH_WORD.findall(b"".join(rest)))


def _vocabulary(indices: dict[int, Counter[str]]) -> Vocabulary:
    words: dict[int, str] = {}
    others: dict[int, dict[str, int]] = {}
    for index, counts in sorted(indices.items()):
        words[index] = max(counts, key=counts.__getitem__)
        if len(counts) > 1:
            others[index] = {word: count for word, count in counts.items() if word != words[index]}
    num_samples = sum(counts.total() for counts in indices.values())
    return Vocabulary(words, num_samples, sum(sum(counts.values()) for counts in others.values()), others)

"""Write "Alice's Adventures in Wonderland" as a sparse sequence corpus: `train.ctf`, `test.ctf` and `words.txt`.

    python examples/alice/convert.py

Needs nothing but Python. A paragraph is a sequence and a word is a line. A word is in small letters and without
punctuation, and two labels say how the book prints it: what a typist would have to restore.

    6 |w 71:1 |# Well!' |c 1:1 |m 5:1 |ch 1
    │    │       │         │      │       └ chapter, dense, once in a paragraph
    │    │       │         │      └ mark that follows: none , . ; : ! ? --      (MARKS)
    │    │       │         └ letters: small, First, ALL                         (CASINGS)
    │    │       └ comment: the word as printed
    │    └ word, its place in words.txt (0 is any word that words.txt does not list)
    └ number of the paragraph in the book

Chapters 1 to 10 are the train file, 11 and 12 the test file; words.txt lists words of the train file only.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

CASINGS = ("small", "first", "all")
MARKS = ("none", ",", ".", ";", ":", "!", "?", "--")
UNKNOWN_WORD = "<unknown>"
MIN_OCCURRENCES = 2
NUM_TRAIN_CHAPTERS = 10

_CHAPTER = re.compile(r"^ *CHAPTER [IVX]+\n\n.*$", re.MULTILINE)
# A word may hold hyphens and apostrophes, but neither begins nor ends with one: those at its ends are quotation marks.
_WORD = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*")
_MARK = re.compile(r"--|[,.;:!?]")


@dataclass(frozen=True)
class Token:
    """A word of the book, as printed with attached punctuation, and the punctuation mark after it."""

    word: str
    printed: str
    mark: str

    @property
    def casing(self) -> str:
        if self.word[0].islower():
            return "small"
        return "all" if len(self.word) > 1 and self.word.isupper() else "first"


@dataclass(frozen=True)
class Paragraph:
    """A sequence: its index in the book, its chapter (from 1), and its words."""

    number: int
    chapter: int
    tokens: tuple[Token, ...]


def paragraphs(book: str) -> Iterator[Paragraph]:
    """Cut the book at its chapter headings and at blank lines, and leave out parts without a word."""
    number = 0
    text = book[: book.rindex("THE END")]
    for chapter, body in enumerate(_CHAPTER.split(text)[1:], start=1):
        for paragraph in re.split(r"\n(?: *\n)+", body):
            tokens = tuple(_tokens(paragraph))
            if tokens:
                yield Paragraph(number, chapter, tokens)
                number += 1


def _tokens(paragraph: str) -> Iterator[Token]:
    # A word that is cut at the end of a line ends there with one hyphen; two are a dash.
    joined = re.sub(r"(?<=[A-Za-z]-)\n(?=[A-Za-z])", "", paragraph)
    words = list(_WORD.finditer(joined))
    for index, word in enumerate(words):
        next_start = words[index + 1].start() if index + 1 < len(words) else len(joined)
        gap = joined[word.end() : next_start]
        mark = _MARK.search(gap)
        attached = gap.split()[0] if gap[:1].strip() else ""
        yield Token(word.group(), word.group() + attached, mark.group() if mark else "none")


def vocabulary(corpus: Iterable[Paragraph]) -> list[str]:
    """Return the words that occur at least twice, most frequent first, after the entry for unknown words."""
    counts = Counter(token.word.lower() for paragraph in corpus for token in paragraph.tokens)
    known = [word for word, count in counts.items() if count >= MIN_OCCURRENCES]
    return [UNKNOWN_WORD, *sorted(known, key=lambda word: (-counts[word], word))]


def ctf_lines(corpus: Iterable[Paragraph], words: list[str]) -> Iterator[str]:
    """Yield one line of CTF per word; only the first line of a paragraph has the chapter."""
    indices = {word: index for index, word in enumerate(words)}
    for paragraph in corpus:
        for position, token in enumerate(paragraph.tokens):
            word = indices.get(token.word.lower(), 0)
            chapter = f" |ch {paragraph.chapter}" if position == 0 else ""
            yield (
                f"{paragraph.number} |w {word}:1 |# {token.printed} "
                f"|c {CASINGS.index(token.casing)}:1 |m {MARKS.index(token.mark)}:1{chapter}\n"
            )


def main() -> None:
    folder = Path(__file__).parent
    corpus = list(paragraphs((folder / "alice29.txt").read_text(encoding="ascii")))
    train = [paragraph for paragraph in corpus if paragraph.chapter <= NUM_TRAIN_CHAPTERS]
    test = [paragraph for paragraph in corpus if paragraph.chapter > NUM_TRAIN_CHAPTERS]
    words = vocabulary(train)
    outputs = {
        "words.txt": [f"{word}\n" for word in words],
        "train.ctf": ctf_lines(train, words),
        "test.ctf": ctf_lines(test, words),
    }
    for name, lines in outputs.items():
        with (folder / name).open("w", encoding="ascii", newline="\n") as file:
            file.writelines(lines)
    for name, part in (("train.ctf", train), ("test.ctf", test)):
        print(f"{folder / name}: {len(part)} paragraphs, {sum(len(paragraph.tokens) for paragraph in part)} words")
    print(f"{folder / 'words.txt'}: {len(words)} words")


if __name__ == "__main__":
    main()

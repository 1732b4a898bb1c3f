"""Inference of the streams of a text: names, forms and dimensions; and vocabularies: words after one-hot samples.

::

    |S0 178:1 |# BOS        index 178 of the stream S0 is the word BOS

`re` and `Counter` count words in blocks of whole lines; the only Python loop runs over distinct words.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

import cntkio._core as _core
from cntkio.arguments import Wording, did_you_mean, suggests_keywords, there_are
from cntkio.displays import Description, Displayed, counted
from cntkio.errors import ConfigError, FormatError
from cntkio.formats.ctf.index import StreamSchema, find_start
from cntkio.formats.detect import other_in
from cntkio.formats.report import EMPTY_FILE, Report
from cntkio.storage.names import FileNames, shown_files
from cntkio.storage.open_input import files_named, open_input, presumed_sizes
from cntkio.storage.progress import announced, announced_together, passed
from cntkio.storage.remote import Remote
from cntkio.storage.text_input import Locator, TextInput, map_lines
from cntkio.streams import LARGEST_DIM, StreamDef, StreamDefs

_MOST_NAMES = 10_000
_LEAST_OUTLIER = 1 << 16  # a stream of fewer dimensions costs little
# Most names that count as streams, for each sample of a line: a corpus has a column of each stream in each sequence, so
# columns of more names would not grow as the text does.
_MOST_FOR_A_SAMPLE = 32
_PASS = "finding streams"  # the name of the pass
# Number of bytes at the beginning of a file that are searched for advice on an error.
_ADVICE_BYTES = 1 << 16
CHECKED_BYTES = 256 << 20
"""Bytes of the largest file that is read to check advice about a definition."""


class _Seen(NamedTuple):
    """Facts about the samples of a stream that have been read so far.

    Attributes:
        num_values: Number of values without an index.
        num_indexed: Number of values with an index.
        most: Number of values in the longest sample.
        sizes: Pairs: a number of values without an index, and how many samples have that many, as far as counted.
        magnitudes: Number of indices by size: item `k` counts the indices of `2k` and `2k + 1` bits.
        largest_at: The byte of the sample with the largest index.
    """

    num_samples: int
    num_values: int
    num_indexed: int
    most: int
    largest: int
    sizes: Sequence[tuple[int, int]]
    magnitudes: Sequence[int]
    largest_at: int

    def with_more(self, other: _Seen) -> _Seen:
        sizes = Counter(dict(self.sizes)) + Counter(dict(other.sizes))
        magnitudes = [sum(pair) for pair in zip(self.magnitudes, other.magnitudes, strict=True)]
        widest = max(self, other, key=lambda seen: seen.largest)  # of equal indices the first
        return _Seen(
            self.num_samples + other.num_samples, self.num_values + other.num_values,
            self.num_indexed + other.num_indexed, max(self.most, other.most), widest.largest, list(sizes.items()),
            magnitudes, widest.largest_at,
        )  # fmt: skip

    def outliers(self) -> tuple[int, int] | None:
        """Return how many indices are far above all others, and a number that is above all others; None: no index is.

        Outliers are few, and more than 16 times as large as the largest of the others.
        """
        used = [bits for bits, count in enumerate(self.magnitudes) if count]
        # From the top, so that the fewest indices count as outliers.
        for below, above in reversed(list(pairwise(used))):
            # The least number of `above` is 2 * 4**(above - 1), and all others are less than 2 * 4**below.
            if above - below > 2:
                count = sum(self.magnitudes[above:])
                is_odd = self.largest >= _LEAST_OUTLIER and count <= max(1, self.num_indexed // 1000)
                return (count, 2 * 4**below) if is_odd else None
        return None

    @property
    def is_sparse(self) -> bool:
        return self.num_indexed > self.num_values

    def misfits(self, asked: StreamSchema) -> bool:
        """Return whether the samples differ in form from the definition, or have more values."""
        return self.is_sparse != asked.is_sparse or self.dim > asked.dim

    @property
    def dim(self) -> int:
        return self.largest + 1 if self.is_sparse else self.most

    @property
    def possible_dim(self) -> int:
        # A stream without a value has dimension 1. An index beyond the limit becomes an error when it is read.
        return max(1, min(self.dim, LARGEST_DIM))

    def without_odd_sizes(self) -> _Seen:
        """Return the facts with the number of values that two thirds of the samples have, if any, as the largest."""
        usual, count = max(self.sizes, key=lambda pair: pair[1], default=(self.most, 0))
        return self._replace(most=usual) if usual and 3 * count >= 2 * self.num_samples else self


@suggests_keywords
def infer_streams(path: FileNames, *, remote: Remote | None = None) -> StreamDefs:
    """Infer the streams of a text: names, dense or sparse, and dimensions. This reads the whole text.

    A stream is sparse if an index precedes most of its values. Its dimension is the largest index plus one, or the
    largest number of values in a sample. A stream without any value counts as dense, with dimension 1. A few indices
    that are far above all others cause a warning with the line of the largest.

    Args:
        path: A file in the CNTK text format; or several, a pattern or a list, as for `CTFDeserializer`.
        remote: How to read remote stores.

    Returns:
        Definitions with the names in the text, in the order of their first appearance.

    Raises:
        OSError: A file cannot be read.
        FormatError: A file is not in this format. The message names the file's format if it is known.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.ctf")
        >>> _ = path.write_text("|x 1 2 3 |y 7:1\\n")
        >>> [(name, stream.dim, stream.is_sparse) for name, stream in infer_streams(path).items()]
        [('x', 3, False), ('y', 8, True)]
    """
    return _definitions(_all_streams(path, remote))


def infer_usual_streams(path: FileNames, least: int) -> StreamDefs:
    """Infer streams from the majority of samples: a name that occurs only a few times is not a stream.

    The dimension of a dense stream is the number of values that at least two thirds of its samples have, or else the
    largest number of values. Sparse streams are inferred as by `infer_streams`. Files that are not texts are left out,
    unless no file is a text.

    Args:
        least: Smallest number of samples of a stream. If no stream has that many, the most frequent are returned.
    """
    total = _all_streams(path, None, forgives=True)
    usual = {name: seen for name, seen in total.items() if seen.num_samples >= least}
    usual = usual or _most_frequent(total, _MOST_FOR_A_SAMPLE)
    return _definitions({name: seen.without_odd_sizes() for name, seen in usual.items()})


def guessed_streams(path: FileNames) -> StreamDefs:
    """Guess the result of `infer_usual_streams` from the first lines of the first file that is a text.

    Sparse streams get the largest dimension. If a reader with these streams finds no fault and no other name,
    `infer_streams` would return the same streams, except for the dimensions of sparse streams. Returns no stream if the
    first lines are not a text.
    """
    files, remote = files_named(path, None)
    for name in files:
        with closing(open_input(name, remote)) as file:
            text = b"" if other_in("ctf", file) else _first_lines(file)
        if found := _streams_in(text):
            num_samples, num_lines = sum(seen.num_samples for seen in found.values()), text.count(b"\n") or 1
            found = _most_frequent(found, _MOST_FOR_A_SAMPLE * max(1, num_samples // num_lines))
            break
    for alias, seen in found.items():
        found[alias] = seen._replace(largest=LARGEST_DIM) if seen.is_sparse else seen.without_odd_sizes()
    return _definitions(found)


def _most_frequent(streams: dict[bytes, _Seen], most: int) -> dict[bytes, _Seen]:
    """Return at most this number of streams, in their order: those with the most samples."""
    if len(streams) <= most:
        return streams
    frequent = set(sorted(streams, key=lambda name: streams[name].num_samples, reverse=True)[:most])
    return {name: seen for name, seen in streams.items() if name in frequent}


def _all_streams(path: FileNames, remote: Remote | None, *, forgives: bool = False) -> dict[bytes, _Seen]:
    """Return the streams of all files. Leave out empty files and, if `forgives`, other files that are not texts."""
    total: dict[bytes, _Seen] = {}
    files, remote = files_named(path, remote)
    refused, report = None, None if forgives else Report(shown_files(path))
    # A single file announces its own pass, so its size is not needed.
    with announced_together(_PASS, presumed_sizes(files, remote) if len(files) > 1 else [0]):
        for name in files:
            try:
                with closing(open_input(name, remote)) as file:
                    _add(total, _streams_of(file, report))
            except FormatError as error:
                if not forgives and error.kind != EMPTY_FILE:
                    raise
                refused = refused or error
    if refused is not None and not total:
        raise refused
    return total


def _definitions(total: Mapping[bytes, _Seen]) -> StreamDefs:
    streams = {}
    for alias, seen in total.items():
        name = alias.decode()
        streams[name] = StreamDef(field=name, shape=seen.possible_dim, is_sparse=seen.is_sparse)
    return StreamDefs(streams)


def _streams_of(file: TextInput, report: Report | None) -> dict[bytes, _Seen]:
    """Return the streams of a file, by name, and report outliers among the indices."""
    offset, other = find_start(file).offset, other_in("ctf", file, before="")
    if other:
        raise FormatError(other, path=file.path, byte=0)
    found = _streams_from(file, offset)
    if not found:
        raise _error_without_names(file, offset)
    if report is not None:
        for name, seen in found.items():
            _log_outliers(file, name, seen, report)
    return found


def _error_without_names(file: TextInput, offset: int) -> FormatError:
    """Return the error about a text in which no pipe has a name: at its first pipe, or else at its first line."""
    text = file.read(offset, _ADVICE_BYTES)
    pipe = re.search(rb"\|(?!#)", text)
    if pipe is None and b"|#" in text:
        return Locator(file).error(offset, "only comments; expected |name values, such as |x 1 2", kind=EMPTY_FILE)
    if pipe is None:
        what = "a text without a pipe; expected |name values, such as |x 1 2; cntkio convert txt2ctf converts columns "
        what += "of words, and uci2ctf columns of numbers"
    else:
        what = "a pipe without a name after it, and no pipe of the file has one; expected |name values: write the name "
        what += "directly after the pipe, without a blank"
    return Locator(file).error(offset + (pipe.start() if pipe else 0), what, kind="pipe without a name")


def _add(total: dict[bytes, _Seen], streams: Mapping[bytes, _Seen]) -> None:
    for name, seen in streams.items():
        total[name] = total[name].with_more(seen) if name in total else seen


def _streams_from(file: TextInput, offset: int) -> dict[bytes, _Seen]:
    total: dict[bytes, _Seen] = {}
    for first, block in map_lines(file, offset, _core.ctf_infer, _PASS):
        if block is None or len(total) > _MOST_NAMES:
            what = f"more than {_MOST_NAMES} names after pipes; this is not the CNTK text format"
            raise FormatError(what, path=file.path)
        _add(total, _by_name(block, first))
    return total


def _by_name(block: Iterable[_core.CTFSeen], first: int = 0) -> dict[bytes, _Seen]:
    return {
        seen.name: _Seen(
            seen.num_samples, seen.num_plain, seen.num_indexed, seen.most_values, seen.largest_index, seen.sizes,
            seen.magnitudes, seen.largest_at + first,
        )
        for seen in block
    }  # fmt: skip


def _log_outliers(file: TextInput, name: bytes, seen: _Seen, report: Report) -> None:
    found = seen.outliers() if seen.is_sparse else None
    if found is None:
        return
    num_outliers, bound = found
    byte, line = seen.largest_at, None
    if byte < CHECKED_BYTES:  # counting lines reads the text up to there again
        line = Locator(file).locate(byte)["line"]
    what = (
        f"the index {seen.largest} makes the stream {seen.dim:,} wide, but {seen.num_indexed - num_outliers:,} of "
        f"{seen.num_indexed:,} indices are below {bound:,}; is this index wrong?"
    )
    stream = name.decode(errors="replace")
    report.log("outlier", str(FormatError(what, path=file.path, line=line, byte=byte, stream=stream)))


def _streams_in(text: bytes) -> dict[bytes, _Seen]:
    """Return the streams in a part of a text, by name; none if it has too many names."""
    return _by_name(_core.ctf_infer(np.frombuffer(text, np.uint8)) or ())


def streams_at_the_start(file: TextInput) -> dict[bytes, _Seen]:
    """Return the streams in the first lines of a file, by name; none if the file is not a text."""
    return _streams_in(_first_lines(file))


def _first_lines(file: TextInput) -> bytes:
    """Return the first lines of a file; none if the file is not a text."""
    try:
        text = file.read(find_start(file).offset, _ADVICE_BYTES)
    except (FormatError, OSError):
        # The lines only serve guesses, and advice on other errors.
        return b""
    # The last line may be cut off, and would show too few values.
    return text[: text.rfind(b"\n") + 1] or text


def names_at_the_start(path: FileNames, remote: Remote | None = None) -> set[str]:
    """Return the names of streams in the first lines of the first file that has any. For `path` see `infer_streams`."""
    files, remote = files_named(path, remote)
    for name in files:
        with closing(open_input(name, remote)) as file:
            if known := {alias.decode(errors="replace") for alias in streams_at_the_start(file)}:
                return known
    return set()


def require_names(path: FileNames, streams: Mapping[str, StreamDef]) -> None:
    """Refuse a stream whose name no line has. Only if the first lines lack it, the whole text is searched for it."""
    asked = {str(stream.stream_alias) for stream in streams.values()}
    if (known := names_at_the_start(path)) and not known >= asked:
        # Of a damaged text, the error of the reader says more.
        with suppress(FormatError):
            known.update(name.decode(errors="replace") for name in _all_streams(path, None, forgives=True))
        for name in sorted(asked - known):
            what = f"{shown_files(path)}: no line has a stream {name!r}{there_are(name, sorted(known))}"
            raise ConfigError(what, key="streams")


def advice_on_streams(
    file: TextInput, asked: Mapping[str, StreamSchema], fits: Callable[[StreamSchema], bool], words: Wording
) -> str:
    """Return advice if the file's first lines lack a requested stream, or have it in another form.

    Args:
        asked: The requested streams, by their names.
        fits: Returns whether the whole file can be read if this definition replaces the definition of the same alias.
    """
    streams = streams_at_the_start(file)
    missing = next((stream.alias.decode() for stream in asked.values() if stream.alias not in streams), None)
    if streams and missing is not None:
        in_file = [name.decode() for name in streams]
        hint = did_you_mean(missing, in_file) or f"; they have: {', '.join(map(repr, in_file))}"
        return f"; the file's first lines have no {missing!r}{hint}"
    if file.size > CHECKED_BYTES:
        is_misfit = bool(streams) and any(streams[stream.alias].misfits(stream) for stream in asked.values())
        return f"; {words.inference.format(path=file.path)} finds what fits the file" if is_misfit else ""
    try:
        streams = _streams_from(file, find_start(file).offset)
    except (FormatError, OSError):
        return ""
    for name, stream in asked.items():
        seen = streams.get(stream.alias)
        if seen is not None and seen.misfits(stream):
            is_sparse, dim = seen.is_sparse, seen.possible_dim
            # A single longer sample is an error in the file: with its dimension, all others would be filled with zeros.
            is_usual = is_sparse or seen.num_samples * dim == seen.num_values
            if is_usual and fits(stream._replace(is_sparse=is_sparse, dim=dim)):
                return f"; the file would fit {words.stream(name, stream.alias.decode(), dim, is_sparse=is_sparse)}"
    return ""


def streams_between(file: TextInput, begin: int, end: int, *, is_line: bool = False) -> list[str]:
    """Return the names of the streams in a part of the text; if `is_line`, the part ends with its first line."""
    text = file.read(begin, min(end - begin, _ADVICE_BYTES))
    if is_line:
        text = text[: text.find(b"\n") + 1 or len(text)]
    return [name.decode(errors="replace") for name in _streams_in(text)]


BLOCK_OF_WORDS = 4 << 20
"""Bytes that are searched at a time."""
_COUNTING = "finding words"  # the name of the pass
# A name, an index of as many digits as the largest dimension has, the value 1, and a comment. In a word, `|#` is a
# pipe; a blank after it, or before it unless the word begins with it, shows that it begins another comment.
_ONE_HOT_WITH_WORD = re.compile(
    rb"\|([^\s|#][^\s|]*)[ \t]+(\d{1,10}):1(?:\.0*)?[ \t]*\|#[ \t]*((?:\|#(?! ))?(?:[^|\r\n]+|(?<![ \t])\|#(?! ))*)"
)


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
        title = f"Vocabulary: {counted(len(self.words), 'word')}, {counts}"
        rows = [
            (str(index), word, ", ".join(f"{other} {count}" for other, count in self.others.get(index, {}).items()))
            for index, word in self.words.items()
        ]
        return Description(title, ("index", "word", "other words"), rows)


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
    texts, remote = files_named(path, remote)
    with announced_together(_COUNTING, presumed_sizes(texts, remote)):
        for text in texts:
            with closing(open_input(text, remote)) as file, announced(_COUNTING, file.size):
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
    # Different bytes may become the same text, so counts are added.
    for (name, index, comment), count in counts.items():
        word = comment.rstrip().replace(b"|#", b"|")
        # A comment without a word says nothing about its sample.
        if not word:
            continue
        found[name.decode(errors="replace")][int(index)][word.decode(errors="replace")] += count
    return {name: _vocabulary(indices) for name, indices in found.items()}


def _count_words(file: TextInput, counts: Counter[tuple[bytes, bytes, bytes]]) -> None:
    offset = 0
    rest: list[bytes] = []  # pieces of a line whose end has not been read yet
    while block := file.read(offset, BLOCK_OF_WORDS):
        offset += len(block)
        lines, end, last = block.rpartition(b"\n")
        if end:
            counts.update(_ONE_HOT_WITH_WORD.findall(b"".join([*rest, lines])))
            rest = []
        rest.append(last)
        passed(len(block))
    counts.update(_ONE_HOT_WITH_WORD.findall(b"".join(rest)))


def _vocabulary(indices: dict[int, Counter[str]]) -> Vocabulary:
    words = {index: max(counts, key=counts.__getitem__) for index, counts in sorted(indices.items())}
    several = {index: indices[index] for index in words if len(indices[index]) > 1}
    others = {
        index: {word: count for word, count in counts.items() if word != words[index]}
        for index, counts in several.items()
    }
    num_samples = sum(counts.total() for counts in indices.values())
    return Vocabulary(words, num_samples, sum(sum(counts.values()) for counts in others.values()), others)

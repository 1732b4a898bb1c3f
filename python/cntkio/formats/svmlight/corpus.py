"""The svmlight (libsvm) text format: options, index, opened corpus, whole texts. (docs/formats/svmlight.md)

Chunks, errors, places and caches are made as in CNTK's text format; only the lines differ.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from contextlib import closing
from functools import partial, reduce
from itertools import chain
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._core import CTFFinding
from cntkio._threads import num_threads
from cntkio.arguments import check_word, float_type, suggests_keywords, whole_number
from cntkio.errors import ConfigError, FormatError
from cntkio.formats.contract import OPENING, Corpus, CorpusInFiles, Index, KeysOf, Opening, OpenText, ReadingOptions
from cntkio.formats.corpus import FilesDeserializer
from cntkio.formats.ctf import CTFDeserializer
from cntkio.formats.ctf.corpus import CTFFormat, opened_texts, options_of_texts
from cntkio.formats.ctf.findings import WORDS, ParserFindings, advice_on_value
from cntkio.formats.ctf.index import (
    Area,
    FirstPass,
    TextIndex,
    find_start,
    index_of_parts,
    join_over_borders,
    scanned_parts,
)
from cntkio.formats.detect import other_in
from cntkio.formats.pieces import read_corpus
from cntkio.formats.report import EMPTY_FILE, WrongWord
from cntkio.minibatch import Minibatch
from cntkio.storage.file_lists import listed_files
from cntkio.storage.names import FileNames
from cntkio.storage.open_input import Beginning, open_stored
from cntkio.storage.progress import announced
from cntkio.storage.remote import Remote
from cntkio.storage.text_input import Locator, TextInput
from cntkio.streams import LARGEST_DIM, StreamDef, StreamDefs

# The core's least index of a text without features, and every index that 64 bits cannot hold.
_NO_INDEX = 2**64 - 1
_HEAD = 1 << 16
_FEATURES, _LABEL, _QUERY = "features", "label", "qid"


@suggests_keywords
@dataclasses.dataclass(eq=False)
class SvmlightDeserializer(FilesDeserializer):
    """A corpus in the svmlight (libsvm) text format: lines such as ``1 qid:3 2:0.5 7:1 # comment``.

    The streams are ``features`` (sparse), ``label`` (one value; or sparse, with several labels) and, with `query_id`,
    ``qid``. Each line is a sequence, whose key is its number without blank lines and comments.

    Args:
        filename: The file; or several files that are one corpus: a pattern or a list; also URLs
            (docs/where-corpora-can-be.md).
        num_features: Dimension of the features; None: as many as the largest index of all files needs.
        zero_based: Whether the first feature has the index 0 in the file; False: 1; "auto": 0 if a file has a feature
            0, or no feature, as in scikit-learn.
        multilabel: Whether lines have several labels with commas between them: numbers of classes, from 0.
        num_labels: Dimension of several labels; None: as many as the largest label of all files needs.
        query_id: Whether to read the queries (``qid:``) as a stream of int64. Each line must have a query then.
        by_query: Whether neighbouring lines of a query are a sequence, whose key is the query.
        dtype: Type of the features and labels: float32, float64, int32 or int64. In whole numbers, other numbers are
            errors.
        label_dtype: Type of the labels; None: `dtype`.
        max_errors: Number of errors that are forgiven in all; a negative number forgives any number. A line with an
            error is left out of its sequence.
        strict: Turn warnings into errors.
        chunk_size_in_bytes: Bytes of text that are read and parsed together.
        cache_index: As for `CTFDeserializer`.
        keys: As for `CTFDeserializer`; it matters only with `by_query`.
        remote: As for `CTFDeserializer`.

    Raises:
        ConfigError: An option is not possible.

    Example:
        >>> import pathlib, tempfile
        >>> from cntkio import MinibatchSource
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.svm")
        >>> _ = path.write_text("1 1:0.5 3:2\\n-1 2:1\\n")
        >>> with MinibatchSource(SvmlightDeserializer(path), randomize=False, max_sweeps=1) as source:
        ...     minibatch = source.next_minibatch(2)
        >>> minibatch["features"].indices.tolist(), minibatch["features"].values.tolist()
        ([0, 2, 1], [0.5, 2.0, 1.0])
        >>> minibatch["label"].values.ravel().tolist(), minibatch.keys_of_sequences.tolist()
        ([1.0, -1.0], [0, 1])
    """

    filename: FileNames
    _: dataclasses.KW_ONLY
    num_features: int | None = None
    zero_based: bool | Literal["auto"] = "auto"
    multilabel: bool = False
    num_labels: int | None = None
    query_id: bool = False
    by_query: bool = False
    dtype: npt.DTypeLike = np.float32
    label_dtype: npt.DTypeLike | None = None
    max_errors: int = 0
    strict: bool = False
    chunk_size_in_bytes: int = 32 << 20
    cache_index: bool | Literal["verify"] = False
    keys: KeysOf = "unique"
    remote: Remote | None = None
    has_text_keys = False

    def __post_init__(self) -> None:
        """Check all options that can be checked without the file."""
        self.check_files({"cache_index": "verify", "zero_based": "auto"})
        check_word("keys", self.keys, *get_args(KeysOf))
        self.dtype = float_type("dtype", self.dtype, or_whole=True)
        if self.label_dtype is not None:
            self.label_dtype = float_type("label_dtype", self.label_dtype, or_whole=True)
        for name, dim in (("num_features", self.num_features), ("num_labels", self.num_labels)):
            if dim is not None and not 1 <= dim <= LARGEST_DIM:
                raise ConfigError(f"{name} is {dim}; expected 1 to {LARGEST_DIM}", key=name)
        if self.num_labels is not None and not self.multilabel:
            raise ConfigError("num_labels needs multilabel=True", key="num_labels")
        whole_number("chunk_size_in_bytes", self.chunk_size_in_bytes, least=1)

    def open(self, opening: Opening = OPENING) -> Corpus:
        """Open the files and index them, or load the indexes. Keys are numbers, whatever the other corpora have.

        Raises:
            OSError: A file cannot be read, or no file matches a pattern.
            FormatError: A file has no sample, a line has no query with `by_query`, or two files have the same query.
        """
        text = CTFDeserializer(
            # The dimensions are placeholders: only the indexes of all files show them (`agreed`).
            self.filename, _streams(self, 1, 1), max_errors=self.max_errors, strict=self.strict, keys=self.keys,
            chunk_size_in_bytes=self.chunk_size_in_bytes, cache_index=self.cache_index, remote=self.remote,
        )  # fmt: skip
        opening = dataclasses.replace(opening, text_keys=False)
        return opened_texts(text, partial(_SvmlightFormat, self, text, opening), opening.ahead)


def _streams(options: SvmlightDeserializer, num_features: int, num_labels: int) -> StreamDefs:
    streams = {
        _FEATURES: StreamDef(_FEATURES, shape=num_features, is_sparse=True),
        _LABEL: StreamDef(_LABEL, shape=num_labels if options.multilabel else 1, is_sparse=options.multilabel),
    }
    if options.query_id:
        streams[_QUERY] = StreamDef(_QUERY, shape=1)
    return StreamDefs(streams)


def svmlight_of(filename: FileNames, **options: Any) -> SvmlightDeserializer:
    """Return the deserializer of a text with the options that its first lines show: several labels, queries.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.svm")
        >>> _ = path.write_text("1,2 qid:7 3:0.5\\n2 qid:7 1:1\\n")
        >>> found = svmlight_of(path)
        >>> found.multilabel, found.query_id
        (True, True)
    """
    deserializer = SvmlightDeserializer(filename, **options)
    lines: list[list[bytes]] = []
    for path in listed_files(deserializer.filename, remote=deserializer.remote):
        with closing(open_stored(path)) as stored:
            head = Beginning.of(stored, _HEAD).head
        lines = [fields for line in head.split(b"\n") if (fields := line.partition(b"#")[0].split())]
        if lines:
            break
    whole = lines[:-1] or lines  # the last line may be cut off
    # A few lines without a label are mistakes, and so are all.
    num_without = sum(b":" in fields[0] for fields in whole)
    has_several = any(b"," in fields[0] for fields in whole) or len(whole) > num_without >= len(whole) / 10
    # A line without a label begins with its query.
    has_queries = bool(whole) and all(any(field.startswith(b"qid:") for field in fields[:2]) for fields in whole)
    return dataclasses.replace(deserializer, multilabel=has_several, query_id=has_queries)


class Facts(NamedTuple):
    """The range of the features and labels of a text, or of several.

    Attributes:
        least_index: The least index of a feature; 2^64 - 1 if there is none.
        largest_index: The largest index of a feature; 0 if there is none.
        largest_label: The largest label that is a whole number.
    """

    least_index: int
    largest_index: int
    largest_label: int

    def with_more(self, other: Facts | _core.SvmlightFacts) -> Facts:
        least, largest = min(self.least_index, other.least_index), max(self.largest_index, other.largest_index)
        return Facts(least, largest, max(self.largest_label, other.largest_label))


def base_of(zero_based: bool | str, facts: Sequence[Facts]) -> int:
    """Return the index of the first feature in files with these facts: 0 or 1.

    If it is "auto", it is 1 if each file has features, and none of them has the index 0, as in scikit-learn.

    Example:
        >>> base_of("auto", [Facts(1, 9, 0), Facts(3, 7, 0)]), base_of("auto", [Facts(1, 9, 0), Facts(0, 7, 0)])
        (1, 0)
    """
    if zero_based == "auto":
        return int(all(0 < each.least_index < _NO_INDEX for each in facts))
    return int(not zero_based)


class _SvmlightFormat(CTFFormat):
    """Reads svmlight texts; a `Format`. See `CTFFormat`."""

    form: Literal["ctf", "svmlight"] = "svmlight"

    def __init__(
        self, own: SvmlightDeserializer, text: CTFDeserializer, opening: Opening, name: str, are_several: bool
    ) -> None:
        self._own = own
        super().__init__(text, opening, name, are_several)

    def table_options(self) -> dict[str, Any]:
        return {"by_query": self._own.by_query, "chunk_size_in_bytes": self._own.chunk_size_in_bytes}

    def kept_as(self) -> dict[str, Any]:
        return {"format": "svmlight", **self.table_options()}

    def scan(self, file: TextInput, first_pass: FirstPass | None) -> TextIndex:
        """Make the index; its `numbers` are `Facts`. No chunk is parsed: the dimensions are not known yet."""
        facts, by_query = Facts(_NO_INDEX, 0, 0), self._own.by_query

        def scan(area: Area) -> tuple[list[_core.CTFScan], int | None]:
            nonlocal facts
            indexed, found = _core.svmlight_index(area, by_query, num_threads())
            if indexed.bad_id is not None:
                what = "a line without a query; expected qid: and a number below 2^64, because queries are sequences"
                raise Locator(file).error(indexed.bad_id, what + other_in("svmlight", file))
            facts = facts.with_more(found)
            return indexed.scans, indexed.long_line

        start = find_start(file)
        with announced("indexing", file.size - start.offset):
            parts = list(chain.from_iterable(scanned_parts(file, start.offset, scan)))
        if not any(len(part.starts) for part in parts):
            what = "the file has only comments; expected lines such as '1 3:0.5 7:1'"
            raise FormatError(what, path=file.path, byte=start.offset, kind=EMPTY_FILE)
        # Skipped lines belong to the sequence before them, so each sequence ends where the next one starts.
        join_over_borders(file, start, parts)
        # Keys count sequences, not lines as in CNTK's text format.
        index = index_of_parts(file, parts, None if by_query else 0, self._own.chunk_size_in_bytes)
        file.storage.require_unchanged()
        # The lines of several files count on, but queries stay as they are.
        return index._replace(num_lines=None if by_query else index.table.num_sequences, numbers=tuple(facts))

    def agreed(self, indexes: list[Index]) -> list[Index]:
        """Set the streams, whose dimensions only all files show."""
        own, facts = self._own, [Facts(*index.layout.numbers) for index in indexes]
        self._base = base_of(own.zero_based, facts)
        least_index, largest_index, largest_label = reduce(Facts.with_more, facts)
        num_features = own.num_features or (largest_index - self._base + 1 if least_index != _NO_INDEX else 1)
        # Larger indices are errors with a place.
        num_labels = min(own.num_labels or largest_label + 1, LARGEST_DIM)
        definitions = _streams(own, max(min(num_features, LARGEST_DIM), 1), num_labels)
        # The order is by name: features, label, qid.
        dtypes = [own.dtype, own.label_dtype or own.dtype, np.int64][: len(definitions)]
        is_bounded = own.num_features is not None
        layout = _core.SvmlightLayout(self._base, has_queries=own.query_id, is_bounded=is_bounded)
        self.define(definitions, dtypes, layout)
        return [index._replace(streams=self.streams, first_indices={_FEATURES: self._base}) for index in indexes]

    def words(self, kind: str, stream: int | None) -> str:
        is_feature, has_several = stream == 0, self.schema[1].is_sparse
        dtype, first = self.streams[stream or 0].dtype, self._base if is_feature else 0
        if kind in ("bad number", "bad label") and dtype.kind == "i" and (is_feature or not has_several):
            return f"a {'value' if is_feature else 'label'} that is not in {dtype}; expected a whole number"
        what, last = "index" if is_feature else "label", self.schema[stream or 0].dim - 1 + first
        of_class = " of a class, or several with commas between them" if has_several else ""
        return {
            "index out of range": f"{what} {{found}}; expected {first} to {last}",
            "index not ascending": "index {found} is not above the index before it; expected ascending indices",
            "bad label": f"{{byte}} in a label; expected a number{of_class}",
            "bad query": "no query before the features; expected qid: and a whole number of int64",
        }.get(kind) or WORDS[kind]

    def advice_on_word(self, kind: str, text: bytes, before: bytes) -> str:
        return ""  # the advice of `CTFFormat` is about other rules for numbers

    def advice(self, file: OpenText, index: Index, findings: ParserFindings, finding: CTFFinding) -> str:
        if finding.found == _NO_INDEX:
            return " (2^64 - 1 stands for every larger number)"
        is_label = finding.stream == 1 and not self.schema[1].is_sparse
        is_several = is_label and file.text.read(findings.first_byte + finding.offset, 1) == b","
        return "; SvmlightDeserializer(..., multilabel=True) reads several labels" if is_several else ""


def advice_on_line(wrong: WrongWord) -> str:
    """Return the change of a word that mends a text; see `FileKind.advice_on_words`."""
    if wrong.line == 1 and re.match(r"\s*[A-Za-z_]", wrong.text):
        return "remove the line if it is a header; otherwise, begin it with a number, the label"
    prefix = re.match(r"(\d+:)?", wrong.word)
    if prefix and prefix[0] and wrong.stream == _LABEL:
        return f"write the label before {wrong.word}"
    return advice_on_value(wrong, prefix[0] if prefix else "", "0 or 1")


def in_files(names: FileNames, options: ReadingOptions) -> list[CorpusInFiles]:
    """Return texts as the verbs read them (see `cntkio.formats.contract`)."""
    deserializer = svmlight_of(names, **options_of_texts(names, options, "svmlight"))
    sizes = f" of at most {deserializer.chunk_size_in_bytes:,} bytes"
    forgives_errors = deserializer.max_errors != 0
    return [CorpusInFiles(deserializers=[deserializer], chunk_sizes=sizes, forgives_errors=forgives_errors)]


# --------------------------------------------------------------------------------------------------------------
# Whole texts: into arrays, and from anything that can be written.


def read_svmlight(path: FileNames, **options: Any) -> Minibatch:
    """Read a svmlight (libsvm) text into arrays, in its order.

    Args:
        path: The file; or several, a pattern or a list, as for `SvmlightDeserializer`.
        options: As for `SvmlightDeserializer`.

    Returns:
        A `Minibatch` of all lines: ``features``, whose `tocsr` is a SciPy matrix, ``label``, and ``qid`` if asked for.

    Raises:
        OSError: The file cannot be read.
        FormatError: The file breaks the format.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.svm")
        >>> _ = path.write_text("1 qid:7 1:0.5 3:2 # first\\n-1 qid:7 2:1\\n")
        >>> data = read_svmlight(path, query_id=True)
        >>> data["features"].indices, data["features"].values, data["features"].indptr
        (array([0, 2, 1], dtype=int32), array([0.5, 2. , 1. ], dtype=float32), array([0, 2, 3]))
        >>> data["label"].values.ravel(), data["qid"].values.ravel()
        (array([ 1., -1.], dtype=float32), array([7, 7]))
    """
    with closing(SvmlightDeserializer(path, **options).open()) as corpus:
        return read_corpus(corpus)

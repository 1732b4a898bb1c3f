"""The options of a svmlight text, and the opened corpus."""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio._threads import Workers, num_threads
from cntkio.arguments import check_fields, float_type
from cntkio.errors import ConfigError
from cntkio.formats.block_cache import require_room_in_cache
from cntkio.formats.contract import OPENING, Deserializer, Index, Opening
from cntkio.formats.corpus import FileCorpus, KeysOf, check_keys_of
from cntkio.formats.ctf import CTFDeserializer
from cntkio.formats.ctf.corpus import CTFFormat, OpenText
from cntkio.formats.ctf.findings import WORDS, Finding, Findings
from cntkio.formats.ctf.index import FirstPass, TextIndex
from cntkio.formats.file_lists import FileNames, listed_files, shown_files
from cntkio.formats.names import is_remote
from cntkio.formats.open_input import open_input, presumed_sizes, text_sizes
from cntkio.formats.remote import Remote, default_remote, located
from cntkio.formats.report import announced_together
from cntkio.formats.svmlight.scan import Facts, ScanSettings, base_of, scanned, usual_options
from cntkio.formats.text_input import TextInput, changed_in_use
from cntkio.hints import suggests_keywords
from cntkio.streams import LARGEST_DIM, StreamDef, StreamDefs, StreamInformation

_FEATURES, _LABEL, _QUERY = "features", "label", "qid"
_LEAST_THREADS = 4  # reading waits for the disk


@suggests_keywords
@dataclasses.dataclass(eq=False)
class SvmlightDeserializer:
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
        query_id: Whether to read the queries (``qid:``) as a stream of float64. Each line must have a query then.
        by_query: Whether neighbouring lines of a query are a sequence, whose key is the query.
        dtype: Type of the features and labels, float32 or float64.
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
    max_errors: int = 0
    strict: bool = False
    chunk_size_in_bytes: int = 32 << 20
    cache_index: bool | Literal["verify"] = False
    keys: KeysOf = "unique"
    remote: Remote | None = None
    has_text_keys = False

    def __post_init__(self) -> None:
        """Check all options that can be checked without the file."""
        self.filename, self.remote = located("filename", self.filename, self.remote)
        check_keys_of(self.keys)
        check_fields(self, words={"cache_index": "verify", "zero_based": "auto"})
        self.dtype = float_type("dtype", self.dtype)
        for name, dim in (("num_features", self.num_features), ("num_labels", self.num_labels)):
            if dim is not None and not 1 <= dim <= LARGEST_DIM:
                raise ConfigError(f"{name} is {dim}; expected 1 to {LARGEST_DIM}", key=name)
        if self.num_labels is not None and not self.multilabel:
            raise ConfigError("num_labels needs multilabel=True", key="num_labels")
        if self.chunk_size_in_bytes < 1:
            raise ConfigError(
                f"chunk_size_in_bytes is {self.chunk_size_in_bytes}; expected at least 1", key="chunk_size_in_bytes"
            )

    @property
    def label(self) -> str:
        """Name of the files in messages."""
        return shown_files(self.filename)

    def parts(self) -> Sequence[Deserializer]:
        """The deserializer itself."""
        return (self,)

    def open(self, opening: Opening = OPENING) -> FileCorpus:
        """Open the files and index them, or load the indexes. Keys are numbers, whatever the other corpora have.

        Raises:
            OSError: A file cannot be read, or no file matches a pattern.
            FormatError: A file has no sample, a line has no query with `by_query`, or two files have the same query.
        """
        paths = listed_files(self.filename, remote=self.remote)
        are_several = len(paths) > 1
        sizes = (presumed_sizes if are_several else text_sizes)(paths, self.remote)  # opens no file of several
        with announced_together("indexing", sizes):
            scans = self._scans(paths)
        largest = max(sizes) if all(sizes) else self.chunk_size_in_bytes
        corpus = FileCorpus(_SvmlightFormat(self, scans, opening, largest), paths, keys=self.keys)
        try:
            if any(is_remote(path, self.remote) for path in paths):
                limit = (self.remote or default_remote()).cache_limit
                num_bytes = None if are_several else corpus.index.num_bytes
                require_room_in_cache(limit, opening.ahead, corpus.table, self.chunk_size_in_bytes, num_bytes)
        except BaseException:
            corpus.close()
            raise
        return corpus

    def _scans(self, paths: Sequence[str]) -> dict[str, _Scan]:
        """Index all files: only together they show the streams."""
        settings = ScanSettings(self.by_query, self.chunk_size_in_bytes)

        def scan(path: str) -> _Scan:
            with closing(OpenText(open_input(path, self.remote, cache_index=self.cache_index))) as file:
                index = scanned(file.text, settings, cache_index=self.cache_index)
                file.text.require_unchanged()
                if index.writer is not None:
                    index.writer.wait()  # it reads facts of the file
                return _Scan(index, file.text.storage.guide, file.stamp)

        if len(paths) == 1:
            return {paths[0]: scan(paths[0])}
        count = min(max(num_threads(), _LEAST_THREADS), len(paths))
        with Workers(count, "cntkio-open") as workers:
            jobs = [workers.do(contextvars.copy_context().run, scan, path) for path in paths]
            return {path: job.result() for path, job in zip(paths, jobs, strict=True)}


def svmlight_of(filename: FileNames, **options: Any) -> SvmlightDeserializer:
    """Return the deserializer of a text with the options that its first lines show: several labels, queries.

    Args:
        filename: As for `SvmlightDeserializer`.
        options: Other options.

    Raises:
        OSError: The first file cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.svm")
        >>> _ = path.write_text("1,2 qid:7 3:0.5\\n2 qid:7 1:1\\n")
        >>> found = svmlight_of(path)
        >>> found.multilabel, found.query_id
        (True, True)
    """
    deserializer = SvmlightDeserializer(filename, **options)
    first = listed_files(deserializer.filename, remote=deserializer.remote)[0]
    usual = usual_options(first)
    return dataclasses.replace(deserializer, multilabel=usual.multilabel, query_id=usual.query_id)


class _Scan(NamedTuple):
    """The index of a text, and what it takes to open the same text again."""

    made: TextIndex
    guide: object
    stamp: object


class _SvmlightFormat(CTFFormat):
    """Reads svmlight texts; a `Format`. See `CTFFormat`."""

    form = "svmlight"

    def __init__(self, options: SvmlightDeserializer, scans: dict[str, _Scan], opening: Opening, largest: int) -> None:
        facts = [Facts(*scan.made.numbers) for scan in scans.values()]
        self._scans, self._base = scans, base_of(options.zero_based, facts)
        largest_index, largest_label = (max(each[number] for each in facts) for number in (1, 2))
        has_features = any(each.has_features for each in facts)
        num_features = options.num_features or (largest_index - self._base + 1 if has_features else 1)
        # Larger indices are errors with a place.
        shape, num_labels = min(num_features, LARGEST_DIM), min(options.num_labels or largest_label + 1, LARGEST_DIM)
        streams = {
            _FEATURES: StreamDef(_FEATURES, shape=max(shape, 1), is_sparse=True),
            _LABEL: StreamDef(_LABEL, shape=num_labels if options.multilabel else 1, is_sparse=options.multilabel),
        }
        if options.query_id:
            streams[_QUERY] = StreamDef(_QUERY, shape=1)
        text = CTFDeserializer(
            options.filename,
            StreamDefs(streams),
            max_errors=options.max_errors,
            chunk_size_in_bytes=options.chunk_size_in_bytes,
            cache_index=options.cache_index,
            dtype=options.dtype,
            strict=options.strict,
            keys=options.keys,
            remote=options.remote,
        )
        super().__init__(
            text, dataclasses.replace(opening, text_keys=False), largest=largest, are_several=len(scans) > 1
        )
        if options.query_id:
            self.streams = (*self.streams[:-1], StreamInformation(_QUERY, 2, "dense", np.float64, 1))
            self.schema[-1] = self.schema[-1]._replace(is_double=True)
        self.core_schema = _core.CTFSchema(
            self.schema,
            is_compact=opening.ahead.is_packed,
            keeps_findings=self.report.is_observed,
            svmlight=(self._base, options.query_id, options.num_features is not None),
        )

    def open(self, path: str, index: Index | None) -> OpenText:
        guide = self._scans[path].guide
        return OpenText(open_input(path, self.options.remote, cache_index=self.options.cache_index, guide=guide))

    def make_index(self, file: TextInput, first_pass: FirstPass) -> TextIndex:
        scan = self._scans[file.path]
        if file.storage.stamp != scan.stamp:
            raise changed_in_use(file.path, file.size, file.size)
        return scan.made._replace(writer=None)

    def words(self, kind: str, stream: int | None) -> str:
        first = self._base if stream == 0 else 0
        what = "index" if stream == 0 else "label"
        return {
            "index out of range": f"{what} {{found}}; expected {first} to {self.schema[stream or 0].dim - 1 + first}",
            "index not ascending": "index {found} is not above the index before it; expected ascending indices",
            "bad label": "{byte} in a label; expected a number"
            + (" of a class, or several with commas between them" if self.schema[1].is_sparse else ""),
            "bad query": "no query before the features; expected qid: and a whole number of at most 2^53",
        }.get(kind) or WORDS[kind]

    def advice_on_word(self, kind: str, text: bytes) -> str:
        return ""

    def advice(self, file: OpenText, index: Index, findings: Findings, finding: Finding) -> str:
        if (
            finding.stream == 1
            and not self.schema[1].is_sparse
            and file.text.read(self._at(findings, finding), 1) == b","
        ):
            return "; SvmlightDeserializer(..., multilabel=True) reads several labels"
        return ""

    @staticmethod
    def _at(findings: Findings, finding: Finding) -> int:
        return findings.first_byte + finding.offset

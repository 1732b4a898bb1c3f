"""The check of a corpus: errors and warnings of its format, and suspicious values. (docs/check.md)

::

    open ──> events of the format ──> folded: one finding for one cause ──┐
    blocks ──> StreamCheck: ranges, one-hot samples, lengths ─────────────┴──> Findings

If at least 99 of 100 samples or sequences have a property, the others are findings. Fewer than 20 samples or sequences
are not judged. No loop here runs over sequences or samples that are sound.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio.errors import FormatError
from cntkio.formats.contract import Corpus
from cntkio.formats.input_file import Locator, has_byte
from cntkio.formats.open_input import open_input
from cntkio.formats.report import UNKNOWN_NAME, observed
from cntkio.formats.text_input import TextInput
from cntkio.minibatch import MinibatchData
from cntkio.streams import StreamInformation
from cntkio.survey.blocks import Block, Outline
from cntkio.survey.findings import Finding, Findings

_ENOUGH = 20
_MOST_EXCEPTIONS = 0.01
# If more than this share of a block's samples break a rule, the rule does not apply to the stream.
_CLEARLY_NOT = 0.1
_NUM_TRIED = 512
_KEPT = 1000
_READ = 4 << 20

_BAD_SAMPLES = {"bad-number", "bad-index", "index-out-of-range", "missing-colon", "too-many-values"}
_BAD_LINES = {"junk", "pipe-without-a-name", "name-at-the-end", "no-value-at-the-end"}
_GAPS = {"stream-without-a-sample", "line-without-a-sample", "too-few-samples"}


class Text:
    """Places of samples in a text, which is opened when the first place is requested.

    Args:
        path: The text.
        bounds_of: Returns the first byte of a sequence, and the byte after it.
        aliases: The name in the text of each stream.
    """

    def __init__(self, path: str, bounds_of: Callable[[int], tuple[int, int]], aliases: Mapping[str, str]) -> None:
        self._path = path
        self._bounds_of = bounds_of
        self._patterns = {
            name: re.compile(rb"\|" + re.escape(alias.encode()) + rb"(?![^\x00-\x20|\x80-\xff])")
            for name, alias in aliases.items()
        }

    @cached_property
    def _file(self) -> TextInput:
        return open_input(self._path)

    @cached_property
    def _locator(self) -> Locator:
        return Locator(self._file)

    def close(self) -> None:
        """Close the file. The next request opens it again."""
        if "_file" in vars(self):
            self._file.close()
            del self._file
            vars(self).pop("_locator", None)

    def place(self, sequence_index: int, stream: str | None = None, sample: int = 0) -> dict[str, Any]:
        """Return where a sequence begins, or a sample of a stream in it, as the fields of a finding."""
        offset, end = self._bounds_of(sequence_index)
        if stream is not None:
            text = self._file.read(offset, end - offset)
            found = [match.start() for match in self._patterns[stream].finditer(text)]
            offset += found[sample] if sample < len(found) else 0
        return self._locator.locate(offset)

    def line_ends(self) -> Finding | None:
        """Return a finding if some lines end with CR LF and others do not: the first line with the rarer end."""
        if not has_byte(self._file, b"\r"):
            return None
        counts = {"CR LF": 0, "LF": 0}
        first: dict[str, int] = {}
        offset = 0
        while block := self._file.read(offset, _READ):
            num_crlf = block.count(b"\r\n") if b"\r" in block else 0
            num_lf = block.count(b"\n") - num_crlf
            for end, count, pattern in (("CR LF", num_crlf, rb"\r\n"), ("LF", num_lf, rb"(?<!\r)\n")):
                counts[end] += count
                if count and end not in first:
                    match = re.search(pattern, block)
                    first[end] = offset + (match.start() if match else 0)
            offset += len(block) - (1 if block.endswith(b"\r") and len(block) > 1 else 0)
        if not all(counts.values()):
            return None
        rare, usual = sorted(counts, key=lambda end: counts[end])
        message = f"the line ends with {rare}, as do {counts[rare]:,} lines; {counts[usual]:,} lines end with {usual}"
        return Finding("mixed-line-ends", message, **self._locator.locate(first[rare]))


class Opened(NamedTuple):
    """An opened corpus that is checked.

    Attributes:
        path: Its file.
        corpus: The corpus.
        text: Places in it; None: it is not a text with samples.
    """

    path: str
    corpus: Corpus
    text: Text | None

    def place(self, sequence_index: int, stream: str | None = None, sample: int = 0) -> dict[str, Any]:
        """Return where a sequence begins, or in a text a sample of a stream in it, as the fields of a finding."""
        if self.text is not None:
            return self.text.place(sequence_index, stream, sample)
        places = self.corpus.places(np.array([sequence_index], np.int64))
        if not places.paths:
            return {"path": self.path}
        byte = None if places.bytes is None else int(places.bytes[0])
        line = None if places.lines is None else int(places.lines[0])
        path = places.paths[int(places.path_indices[0])]
        return {"path": path, "byte": byte, "line": line, "column": None if line is None else 1}


class Events:
    """Errors and warnings of a format, folded so that each cause is a single finding.

    Args:
        path: The file.
        findings: The list to which findings are added.
        doubt: Called before the first finding.
    """

    def __init__(self, path: str, findings: Findings, doubt: Callable[[Corpus], None] | None) -> None:
        self._path, self._findings, self._doubt = path, findings, doubt
        self._noted: list[tuple[Finding, int]] = []
        self.unsound: set[int | str | None] = set()  # the keys of the last sequences with errors

    def note(self, kind: str | None, error: str | Exception, count: int = 1) -> None:
        """Note an error or a warning; for `cntkio.formats.report.observed`."""
        self._noted.append((Finding.of(kind, error, self._path), count))

    def fold(self, corpus: Corpus | None = None) -> None:
        """Make findings of the errors and warnings that were noted since the last call."""
        noted, self._noted = self._noted, []
        if noted and corpus is not None and self._doubt is not None:
            doubt, self._doubt = self._doubt, None
            doubt(corpus)
        self.unsound = {finding.sequence for finding, _ in noted if finding.rule.severity == "error"}
        for finding, count in _folded(noted):
            self._findings.add(finding, count)


def _folded(noted: Sequence[tuple[Finding, int]]) -> Iterator[tuple[Finding, int]]:
    """Leave out findings that another finding of the same sequence explains."""
    samples = {(found.sequence, found.stream) for found, _ in noted if found.code in _BAD_SAMPLES}
    sequences = {sequence for sequence, _ in samples}
    lines = {found.sequence for found, _ in noted if found.code in _BAD_LINES}
    bare = {found.sequence for found, _ in noted if found.code == "line-without-a-sample"}
    twice = {found.sequence: found for found, _ in noted if found.code == "stream-twice-on-a-line"}
    too_many = {found.sequence for found, _ in noted if found.code == "too-many-samples"}
    unknown = {found.sequence: found for found, _ in reversed(noted) if found.code == "unknown-name"}
    incomplete = {found.sequence for found, _ in noted if found.code in _GAPS}
    for found, count in noted:
        sequence = found.sequence
        if found.code == "unknown-name" and sequence in incomplete:
            continue
        if found.code in _GAPS and sequence is not None:
            is_explained = sequence in lines or (
                (sequence, found.stream) in samples
                if found.code == "stream-without-a-sample"
                else sequence in sequences
            )
            if is_explained or (found.code != "line-without-a-sample" and sequence in bare):
                continue
        if found.code == "stream-twice-on-a-line" and sequence in too_many:
            continue
        if found.code == "too-many-samples" and sequence in twice:
            found = found.moved_to(twice[sequence])._replace(stream=twice[sequence].stream)
        if found.code == "stream-without-a-sample" and sequence in unknown:
            found = found.moved_to(unknown[sequence])._replace(message=f"{found.message}; is its name misspelled here?")
        yield found, count


def check_corpus(
    path: str,
    open_corpus: Callable[[], Opened],
    surveyed: Callable[[Corpus, Callable[[FormatError], None]], Iterable[Block]],
    findings: Findings,
    doubt: Callable[[Corpus], None] | None = None,
    values: ValueChecks | None = None,
) -> Opened | None:
    """Check a corpus.

    Args:
        path: Its file.
        open_corpus: Opens it.
        surveyed: Iterates over its blocks, and passes on the chunks that break the format.
        findings: The list to which findings are added.
        doubt: Called before the first finding, if the streams are a guess: it raises an exception if they are wrong.
            None: the call names the streams.
        values: Checks values, and is reported by the caller. None: report what is found in this corpus.

    Returns:
        The opened corpus, which the caller closes; None if it could not be opened.

    Raises:
        OSError: The file cannot be read.
    """
    events = Events(path, findings, doubt)
    opened = None
    try:
        with observed(events.note, () if doubt is None else (UNKNOWN_NAME,)):
            opened = open_corpus()
        corpus = opened.corpus
        checks = values or ValueChecks(path)
        checks.begin(corpus.streams)
        num_seen = 0
        for block in surveyed(corpus, lambda error: events.note(error.kind, error)):
            events.fold(corpus)
            checks.add(block, opened, events.unsound)
            num_seen += block.num_sequences
        findings.num_sequences += corpus.table.num_sequences or num_seen
        _note_utterances(corpus, events)
        events.fold(corpus)
    except FormatError as error:
        events.note(error.kind, error)
        events.fold()
        return opened
    if values is None:
        checks.report(findings)
    if opened.text is not None:
        ends = opened.text.line_ends()
        if ends is not None:
            findings.add(ends)
    return opened


def _note_utterances(corpus: Corpus, events: Events) -> None:
    """Note the utterances that are invalid or broken, in their order."""
    if corpus.utterances is None:
        return
    masks = [mask for mask in (corpus.utterances.invalid, corpus.utterances.broken) if mask is not None]
    for index in sorted({int(index) for mask in masks for index in np.flatnonzero(mask)}):
        error = corpus.utterances.complaint(index)
        events.note(error.kind if isinstance(error, FormatError) else None, error)


def _shown(key: Any) -> int | str:
    return key.decode(errors="replace") if isinstance(key, bytes) else int(key)


def _are_among(keys: npt.NDArray[Any], shown: Set[int | str | None]) -> npt.NDArray[np.bool_]:
    """Return which of the keys are among keys that `_shown` returned."""
    if keys.dtype.kind == "S":
        keys = np.char.decode(keys, "utf-8", "replace")
        return np.isin(keys, [key for key in shown if isinstance(key, str)])
    return np.isin(keys, np.array([key for key in shown if isinstance(key, int)], np.uint64))


class _Exceptions:
    """Samples or sequences that break an apparent rule: their number, and the first of them."""

    def __init__(self) -> None:
        self.num_seen = 0
        self.num_broken = 0
        self.first: list[tuple[Opened, int, int, int | str]] = []  # corpus, sequence, sample in it, key

    def add(
        self, num_seen: int, sequences: npt.NDArray[Any], samples: npt.NDArray[Any], block: Block, opened: Opened
    ) -> None:
        self.num_seen += num_seen
        self.num_broken += len(sequences)
        room = max(_KEPT - len(self.first), 0)
        for sequence, sample in zip(sequences[:room].tolist(), samples[:room].tolist(), strict=True):
            self.first.append((opened, block.first_sequence + sequence, sample, _shown(block.keys[sequence])))

    @property
    def are_few(self) -> bool:
        return self.num_seen >= _ENOUGH and 0 < self.num_broken <= _MOST_EXCEPTIONS * self.num_seen

    def report(self, findings: Findings, code: str, message: str, stream: str, *, of_samples: bool = True) -> None:
        def make(index: int) -> Finding:
            opened, sequence, sample, key = self.first[index]
            name = stream if of_samples else None
            return Finding(code, message, sequence=key, stream=stream, **opened.place(sequence, name, sample))

        findings.add_each(code, self.num_broken, make, len(self.first))


class StreamCheck:
    """Suspicious values of a stream, in one corpus or in several that belong together."""

    def __init__(self, info: StreamInformation) -> None:
        self._info = info
        self._num_samples = 0
        self._lowest, self._highest = np.inf, -np.inf
        self._samples: set[tuple[int, ...]] = set()  # of a sparse stream: its first two forms of a sample
        self._nan, self._infinite, self._not_one_hot = _Exceptions(), _Exceptions(), _Exceptions()
        self._may_be_one_hot = True
        self._is_wide = False

    def add(self, block: Block, opened: Opened) -> None:
        """Examine the outline of a block, and its arrays if the outline leaves a question open."""
        outline = None
        if not self._info.is_sparse or (len(self._samples) > 1 and self._is_wide):
            outline = block.outline(self._info.stream_id, counts_one_hot=self._may_be_one_hot)
        if outline is None or not self._add_outline(outline):
            self._add_arrays(block, block.streams[self._info.name], opened)

    def _add_outline(self, outline: Outline) -> bool:
        """Add the figures of a block; return False, and add nothing, if some of its samples may be findings."""
        num_others = outline.num_samples - outline.num_one_hot
        if num_others > _CLEARLY_NOT * outline.num_samples and outline.num_samples >= _ENOUGH:
            self._may_be_one_hot = False
        if not outline.is_finite or (self._may_be_one_hot and num_others):
            return False
        self._num_samples += outline.num_samples
        self._not_one_hot.num_seen += outline.num_samples
        self._lowest, self._highest = min(self._lowest, outline.lowest), max(self._highest, outline.highest)
        return True

    def _add_arrays(self, block: Block, data: MinibatchData, opened: Opened) -> None:
        values = data.values
        if not data.num_samples:
            return
        self._num_samples += data.num_samples
        lowest, highest = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
        if not (np.isfinite(lowest) and np.isfinite(highest)):
            self._add_strange(block, data, opened)
            finite = values[np.isfinite(values)]
            lowest, highest = (float(finite.min()), float(finite.max())) if finite.size else (np.inf, -np.inf)
        self._lowest, self._highest = min(self._lowest, lowest), max(self._highest, highest)
        if data.indptr is not None and data.indices is not None and len(self._samples) < 2:
            self._add_forms(data.indptr, data.indices)
        # The dimension of a sparse stream may be a guess.
        self._is_wide = self._is_wide or (data.stream.dim > 1 if data.indices is None else bool(data.indices.any()))
        if self._may_be_one_hot and self._is_wide:
            self._add_one_hot(block, data, opened)

    def _add_strange(self, block: Block, data: MinibatchData, opened: Opened) -> None:
        for exceptions, is_strange in ((self._nan, np.isnan), (self._infinite, np.isinf)):
            flags = is_strange(data.values)
            if data.indptr is None:
                samples = np.flatnonzero(flags.reshape(data.num_samples, -1).any(1))
            else:
                samples = np.unique(np.searchsorted(data.indptr, np.flatnonzero(flags), "right") - 1)
            exceptions.add(data.num_samples, *_in_sequences(data, samples), block, opened)

    def _add_forms(self, indptr: npt.NDArray[np.int64], indices: npt.NDArray[np.int32]) -> None:
        """Add two different samples, if there are two: the first, and one that differs from it."""
        counts = np.diff(indptr)
        different = np.flatnonzero(counts != counts[0])
        if not len(different) and counts[0]:
            rows = indices[indptr[0] :].reshape(-1, counts[0])
            different = np.flatnonzero((rows != rows[0]).any(1))
        for sample in (0, *different[:1].tolist()):
            self._samples.add(tuple(indices[indptr[sample] : indptr[sample + 1]].tolist()))

    def _add_one_hot(self, block: Block, data: MinibatchData, opened: Opened) -> None:
        if data.indptr is not None:
            counts = np.diff(data.indptr)
            is_single = counts == 1
            is_other = ~is_single
            if not (data.values == 1).all():
                rows = np.flatnonzero(is_single)
                is_other[rows[data.values[data.indptr[rows]] != 1]] = True
        else:
            dense = data.values.reshape(data.num_samples, -1)
            if self._lowest < 0 or _is_other(dense[:_NUM_TRIED]).mean() > _CLEARLY_NOT:
                self._may_be_one_hot = False
                return
            is_other = _is_other(dense)
        if is_other.mean() > _CLEARLY_NOT and data.num_samples >= _ENOUGH:
            self._may_be_one_hot = False
            return
        self._not_one_hot.add(data.num_samples, *_in_sequences(data, np.flatnonzero(is_other)), block, opened)

    def report(self, path: str, findings: Findings) -> None:
        """Report the findings in all blocks of a file, or of several."""
        name = self._info.name
        self._nan.report(findings, "not-a-number", "the sample has a value that is NaN", name)
        self._infinite.report(findings, "infinite-value", "the sample has an infinite value", name)
        if self._may_be_one_hot and self._not_one_hot.are_few:
            others = self._num_samples - self._not_one_hot.num_broken
            message = f"the sample is not one-hot, as the other {others:,} samples of the stream are"
            self._not_one_hot.report(findings, "not-one-hot", message, name)
        if self._num_samples < _ENOUGH or self._lowest != self._highest:
            return
        if self._lowest == 0:
            message = f"all values of the {self._num_samples:,} samples are zero"
            findings.add(Finding("all-zero-stream", message, path, stream=name))
        elif len(self._samples) < 2:
            message = f"all {self._num_samples:,} samples are the same"
            findings.add(Finding("constant-stream", message, path, stream=name))


def _is_other(rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which dense samples are not one-hot."""
    is_other: npt.NDArray[np.bool_] = (np.count_nonzero(rows, axis=1) != 1) | (rows.max(axis=1) != 1)
    return is_other


def _in_sequences(data: MinibatchData, samples: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the sequences of samples, and the samples counted from the beginning of their sequence."""
    sequences = np.searchsorted(data.offsets, samples, "right") - 1
    return sequences, samples - data.offsets[sequences]


class LengthCheck:
    """Sequences in which a stream has fewer samples than the longest stream."""

    def __init__(self, streams: Sequence[StreamInformation]) -> None:
        self._unequal = {info.name: _Exceptions() for info in streams}

    def add(self, block: Block, opened: Opened, unsound: Set[int | str | None]) -> None:
        """Examine a block, except for the sequences with these keys: their errors may explain missing samples."""
        if len(self._unequal) < 2:
            return
        all_lengths = block.lengths
        longest = np.maximum.reduce(all_lengths)
        # An incomplete sequence is an error of its format.
        is_long = (longest > 1) & (np.minimum.reduce(all_lengths) > 0)
        num_long = int(is_long.sum())
        for lengths, exceptions in zip(all_lengths, self._unequal.values(), strict=True):
            sequences = np.flatnonzero(is_long & (lengths != longest))
            if unsound and len(sequences):
                sequences = sequences[~_are_among(block.keys[sequences], unsound)]
            exceptions.add(num_long, sequences, np.zeros_like(sequences), block, opened)

    def report(self, findings: Findings) -> None:
        """Report the findings in all blocks."""
        for name, exceptions in self._unequal.items():
            if exceptions.are_few:
                message = "the stream has fewer samples here than the longest stream of the sequence"
                exceptions.report(findings, "unequal-lengths", message, name, of_samples=False)


class ValueChecks:
    """The checks of values of corpora that belong together, such as the files of a pattern.

    Args:
        path: The files.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._streams: list[StreamCheck] = []
        self._lengths = LengthCheck(())

    def begin(self, streams: Sequence[StreamInformation]) -> None:
        """Begin to check a corpus. Corpora that belong together have the same streams."""
        if not self._streams:
            self._streams = [StreamCheck(info) for info in streams]
            self._lengths = LengthCheck(streams)

    def add(self, block: Block, opened: Opened, unsound: Set[int | str | None]) -> None:
        """Examine a block. The check of lengths leaves out the sequences with these keys, which have errors."""
        for stream in self._streams:
            stream.add(block, opened)
        self._lengths.add(block, opened, unsound)

    def report(self, findings: Findings) -> None:
        """Report the findings in all blocks."""
        for stream in self._streams:
            stream.report(self._path, findings)
        self._lengths.report(findings)


def check_keys(opened: Sequence[Opened], findings: Findings) -> None:
    """Compare the keys of the first corpus with the keys of the corpora to join with it."""
    with_keys = [one for one in opened if one.corpus.joins != "alone"]
    for first, other in zip(with_keys[:1] * len(with_keys), with_keys[1:], strict=False):
        keys, theirs = _keys(first.corpus), _keys(other.corpus)
        common = np.intersect1d(keys, theirs)
        if not len(common):
            shown = [", ".join(key.decode(errors="replace") for key in found[:3].tolist()) for found in (keys, theirs)]
            message = f"no key is in both corpora: {shown[0]} ... here, {shown[1]} ... in {other.path}"
            findings.add(Finding("no-common-key", message, first.path))
            continue
        for one, own, another in ((first, keys, other), (other, theirs, first)):
            missing = np.flatnonzero(~np.isin(own, common))
            _add_missing(one, own, missing, another.path, findings)


def _add_missing(
    one: Opened, keys: npt.NDArray[np.bytes_], missing: npt.NDArray[Any], another: str, findings: Findings
) -> None:
    def make(index: int) -> Finding:
        sequence = int(missing[index])
        key = keys[sequence].decode(errors="replace")
        return Finding("missing-key", f"{another} has no sequence with this key", sequence=key, **one.place(sequence))

    findings.add_each("missing-key", len(missing), make, len(missing))


def _keys(corpus: Corpus) -> npt.NDArray[np.bytes_]:
    return np.asarray(corpus.table.keys[:]).astype(np.bytes_)

"""The rules over contents: values, indices, lengths, ids and equal sequences of sound data that look wrong.

A property that almost all samples or sequences have is taken for a rule, and the few others are findings: one of 20 to
199, and one of 100 of more. Fewer than 20 are not judged. Invariant: no loop here runs over sequences or samples,
except for the first places of a finding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from functools import reduce
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._core import StreamFigures
from cntkio._threads import num_threads
from cntkio.displays import counted
from cntkio.formats.table import Keys
from cntkio.minibatch import MinibatchData
from cntkio.streams import LARGEST_DIM, StreamInformation
from cntkio.survey.figures import Block
from cntkio.survey.findings import Finding, Findings

_ENOUGH = 20
_MOST_EXCEPTIONS = 0.01
_MOST_STEPS = 3  # that differ from 1 if two neighbours change places
# If more than this share of a block's samples break a rule, the rule does not apply to the stream.
_CLEARLY_NOT = 0.1
_NUM_PLACES = 3
_MOST_CLASSES = 1 << 16
_LEAST_OF_A_CLASS = 10
_RESERVED = 4
_LEAST_OUTLIER, _OUTLIER = 1000, 10
_MOST_COLUMNS = 1 << 16
_LEAST_BITS = 64  # Sequences with fewer bits of information are often equal by chance.
_BITS_OF_A_VALUE, _BITS_OF_A_NUMBER = 8, 2
_MOST_BY_CHANCE = 0.1
_MOSTLY = 0.9

_U64 = npt.NDArray[np.uint64]


class Placed(Protocol):
    """A corpus that knows the places of its samples."""

    def place(self, sequence_index: int, stream: str | None = None, sample: int | None = None) -> dict[str, Any]:
        """Return where a sequence begins, or in a text a sample of a stream in it, as the fields of a finding."""

    def first_index(self, stream: str) -> int:
        """Return the number that the file writes for the index 0 of a sparse stream."""


def are_few(num_exceptions: int, num_seen: int, least: int = 1) -> bool:
    """Return whether the exceptions are so few that the others show a rule."""
    return num_seen >= _ENOUGH and 0 < num_exceptions <= max(least, _MOST_EXCEPTIONS * num_seen)


def in_words(numbers: Sequence[int], noun: str) -> str:
    """Return a noun and some numbers.

    Example:
        >>> in_words([3], "column"), in_words([1, 2], "class"), in_words(range(9), "column")
        ('column 3', 'classes 1, 2', '9 columns (0, 1, 2, ...)')
    """
    if len(numbers) > _NUM_PLACES:
        return f"{counted(len(numbers), noun)} ({', '.join(map(str, numbers[:_NUM_PLACES]))}, ...)"
    plural = counted(2, noun).removeprefix("2 ")
    return f"{noun if len(numbers) == 1 else plural} {', '.join(map(str, numbers))}"


class _Exceptions:
    """Samples or sequences that break an apparent rule: their number, and the first of them."""

    def __init__(self) -> None:
        self.num_seen = self.num_broken = 0
        self._first: list[tuple[Placed, int, int | None, int | str]] = []  # corpus, sequence, sample, key

    def add(
        self, num_seen: int, sequences: npt.NDArray[Any], samples: npt.NDArray[Any] | None, block: Block, corpus: Placed
    ) -> None:
        self.num_seen += num_seen
        self.num_broken += len(sequences)
        for index in range(min(len(sequences), _NUM_PLACES - len(self._first))):
            sequence, sample = int(sequences[index]), None if samples is None else int(samples[index])
            self._first.append((corpus, int(block.sequences[sequence]), sample, block.keys[sequence]))

    def add_samples(
        self, num_seen: int, offsets: npt.NDArray[Any], samples: npt.NDArray[Any], block: Block, corpus: Placed
    ) -> None:
        """Add samples of the block, whose sequences begin at these offsets."""
        sequences = np.searchsorted(offsets, samples, "right") - 1
        self.add(num_seen, sequences, samples - offsets[sequences], block, corpus)

    @property
    def are_few(self) -> bool:
        return are_few(self.num_broken, self.num_seen)

    def report(self, findings: Findings, code: str, message: str, stream: str | None) -> None:
        cases = (
            Finding(code, message, sequence=key, stream=stream, sample=sample, **corpus.place(sequence, stream, sample))
            for corpus, sequence, sample, key in self._first
        )
        findings.add_cases(cases, self.num_broken)


class Wanted(NamedTuple):
    """The figures of a stream that the core has to find in a block.

    Attributes:
        stream: Index of the stream.
        constant: The first row, and the columns that have had its values so far; None: no row was read yet.
        one_hot: Whether the samples may be one-hot.
        most_classes: Classes below this number are counted.
        beyond: The second-highest index is of interest if the highest is above this number.
        forms: Whether further forms of samples are of interest.
    """

    stream: int
    constant: tuple[npt.NDArray[np.float64], npt.NDArray[np.uint32]] | None
    one_hot: bool
    most_classes: int
    beyond: int
    forms: bool


class _StreamCheck:
    """Values and indices of a stream, in one corpus or in several files that belong together."""

    def __init__(self, info: StreamInformation) -> None:
        self._info, self._num_samples, self._has_steps = info, 0, False
        self._lowest, self._highest = np.inf, -np.inf
        self._nan, self._infinite, self._not_one_hot = _Exceptions(), _Exceptions(), _Exceptions()
        self._may_be_one_hot = info.shape != () and (info.is_sparse or info.dim > 1)
        # A dense stream has a first sample, and columns in which all samples have its values.
        self._first_row: npt.NDArray[np.float64] | None = None if info.dim <= _MOST_COLUMNS else np.zeros(0)
        self._constant: npt.NDArray[np.uint32] = np.zeros(0, np.uint32)
        self._num_tried, self._num_zeros, self._are_whole = 0, 0, True
        # A sparse stream has entries, samples of one form or of several, and indices.
        self._num_entries = 0
        self._forms: set[tuple[int, ...]] = set()
        self._first_index, self._last_index, self._second_last, self._last = LARGEST_DIM, -1, -1, _Exceptions()
        self._counts = np.zeros(0, np.int64)

    def wanted(self, stream_index: int) -> Wanted:
        constant = None if self._first_row is None else (self._first_row, self._constant)
        # Without an index 0, indices may count from 1; a class may be missing if samples are one-hot.
        has_classes = self._last_index < _MOST_CLASSES and (self._first_index > 0 or self._may_be_one_hot)
        most_classes = _MOST_CLASSES if has_classes else 0
        # Whether a block with the same highest index has another that is nearly as high matters only for an outlier.
        beyond = self._last_index - self._is_outlier
        return Wanted(stream_index, constant, self._may_be_one_hot, most_classes, beyond, len(self._forms) < 2)

    @property
    def _is_outlier(self) -> bool:
        return self._last_index >= max(_LEAST_OUTLIER, _OUTLIER * (self._second_last + 1))

    def add(self, block: Block, stream_index: int, found: StreamFigures, corpus: Placed) -> None:
        if not found.num_samples:
            return
        lowest, highest = (found.lowest, found.highest) if found.num_values else (0.0, 0.0)
        self._num_samples += found.num_samples
        self._has_steps = self._has_steps or found.num_samples > block.num_sequences
        if not found.is_finite:
            data = block.streams[self._info.name]
            self._add_strange(block, data, corpus)
            finite = data.values[np.isfinite(data.values)]
            lowest, highest = (float(finite.min()), float(finite.max())) if finite.size else (np.inf, -np.inf)
        self._lowest, self._highest = min(self._lowest, lowest), max(self._highest, highest)
        if self._info.is_sparse:
            self._forms.update(map(tuple, found.forms))
            if found.num_values:
                self._add_indices(block, found, corpus)
        else:
            self._are_whole = self._are_whole and found.are_whole
            if self._first_row is None or len(self._constant):
                self._num_tried += found.num_tried
                self._num_zeros += found.num_zeros
            if self._first_row is None:
                self._first_row = found.first_row
            self._constant = found.constant
        if self._may_be_one_hot:
            self._add_one_hot(block, stream_index, found, lowest, corpus)

    def _add_strange(self, block: Block, data: MinibatchData, corpus: Placed) -> None:
        for exceptions, is_strange in ((self._nan, np.isnan), (self._infinite, np.isinf)):
            flags = is_strange(data.values)
            if data.indptr is None:
                samples = np.flatnonzero(flags.reshape(data.num_samples, -1).any(1))
            else:
                samples = np.unique(np.searchsorted(data.indptr, np.flatnonzero(flags), "right") - 1)
            exceptions.add_samples(data.num_samples, data.offsets, samples, block, corpus)

    def _add_indices(self, block: Block, found: StreamFigures, corpus: Placed) -> None:
        self._num_entries += found.num_values
        self._first_index = min(self._first_index, found.first)
        last = found.last
        if last > self._last_index:
            self._second_last, self._last_index = max(self._last_index, found.second), last
            # Only the largest index may be an outlier, so samples with an index that is now smaller no longer count.
            self._last = _Exceptions()
        else:
            self._second_last = max(self._second_last, found.second if last == self._last_index else last)
        if last == self._last_index and self._is_outlier:
            data = block.streams[self._info.name]
            assert data.indptr is not None and data.indices is not None
            samples = np.searchsorted(data.indptr, np.flatnonzero(data.indices == last), "right") - 1
            self._last.add_samples(found.num_values, data.offsets, samples, block, corpus)
        if self._last_index < _MOST_CLASSES and (self._first_index or self._may_be_one_hot):
            self._add_counts(found.counts)

    def _add_counts(self, counts: npt.NDArray[np.int64]) -> None:
        shorter, longer = sorted((self._counts, counts), key=len)
        longer[: len(shorter)] += shorter
        self._counts = longer

    def _add_one_hot(
        self, block: Block, stream_index: int, found: StreamFigures, lowest: float, corpus: Placed
    ) -> None:
        others, num_samples, is_dense = found.not_one_hot, found.num_samples, not self._info.is_sparse
        if others is None or (is_dense and lowest < 0):
            self._may_be_one_hot = False
            return
        if is_dense:
            self._add_counts(found.counts)
        self._may_be_one_hot = len(others) <= _CLEARLY_NOT * num_samples or num_samples < _ENOUGH
        if self._may_be_one_hot:
            # Without samples to place, the offsets are not needed.
            offsets = np.append(0, np.cumsum(block.lengths[stream_index], dtype=np.int64)) if len(others) else others
            self._not_one_hot.add_samples(num_samples, offsets, others, block, corpus)

    @property
    def bits(self) -> tuple[float, float]:
        """About how many bits of information a sample has, in measured values and in symbols."""
        if not self._num_samples or (self._lowest == self._highest and not self._forms):
            return 0.0, 0.0
        if self._info.is_sparse:
            num_entries = self._num_entries / self._num_samples
            if not self._lowest.is_integer() or not self._highest.is_integer():  # measured values
                return num_entries * _BITS_OF_A_VALUE, 0.0
            return 0.0, num_entries * math.log2(self._last_index + 2) / 2
        if self._lowest == 0 and self._highest == 1:
            return 0.0, math.log2(self._info.dim + 1) / 2 if self.is_one_hot else self._info.dim / _BITS_OF_A_VALUE
        return float(self._info.dim * (_BITS_OF_A_NUMBER if self._are_whole else _BITS_OF_A_VALUE)), 0.0

    @property
    def is_one_hot(self) -> bool:
        broken = self._not_one_hot
        return self._may_be_one_hot and broken.num_seen > 0 and (not broken.num_broken or broken.are_few)

    def report(self, corpus: Placed, findings: Findings) -> None:
        name = self._info.name
        self._nan.report(findings, "not-finite", "the sample has a value that is NaN", name)
        self._infinite.report(findings, "not-finite", "the sample has an infinite value", name)
        if self.is_one_hot and self._not_one_hot.num_broken:
            others = self._num_samples - self._not_one_hot.num_broken
            message = f"the sample is not one-hot, as the other {others:,} samples of the stream are"
            self._not_one_hot.report(findings, "not-one-hot", message, name)
        if self._num_samples < _ENOUGH:
            return
        is_short = findings.of("too-few-values", name)  # the missing values are zeros
        found = None if is_short else self._constant_values() or self._of_indices(findings)
        if found is not None:
            # The finding is about the whole stream, so its place is the first sample.
            findings.add(Finding(*found, stream=name, **corpus.place(0, name, 0)))
        is_far = self._second_last >= 0 and self._last_index >= _OUTLIER * (self._second_last + 1)
        if is_far and are_few(self._last.num_broken, self._num_entries):
            first = corpus.first_index(name)
            message = f"index {self._last_index + first:,}, but the next smaller one is {self._second_last + first:,}"
            self._last.report(findings, "index-outlier", message, name)

    def _constant_values(self) -> tuple[str, str] | None:
        what = f"all {self._num_samples:,} samples"
        if self._lowest == self._highest == 0:
            return "constant-values", f"all values are zero in {what}"
        if self._lowest == self._highest and len(self._forms) < 2:
            return "constant-values", f"{what} are the same"
        if self._first_row is None or not len(self._constant) or self.is_one_hot or self._info.dim < 2:
            return None
        # Zeros are normal where other columns often have them, such as pixels at the border of a picture.
        num_zeros = np.count_nonzero(self._first_row[self._constant] == 0)
        num_of_others = self._num_zeros - num_zeros * self._num_tried / self._info.dim
        are_rare = num_of_others <= _MOST_EXCEPTIONS * self._num_tried
        columns = [column for column in self._constant.tolist() if are_rare or self._first_row[column] != 0]
        if not columns:
            return None
        values = f", with the value {self._first_row[columns[0]]:g}" if len(columns) == 1 else ""
        return "constant-values", f"{in_words(columns, 'column')} (from 0) of the stream: the same in {what}{values}"

    def _of_indices(self, findings: Findings) -> tuple[str, str] | None:
        """Return the code and the message of a finding about the classes that occur; None: nothing is wrong."""
        counts = self._counts
        if not len(counts) or self._last_index >= _MOST_CLASSES:
            return None
        too_large = findings.of("index-too-large", self._info.name)
        # In vocabularies, the first symbols are often kept for padding and unknown words.
        num_reserved = _RESERVED if self._has_steps and not too_large else 0
        has_all = self._first_index == 1 and self._last_index > 1 and bool((counts[1:] >= 2).all())
        if self._info.is_sparse and has_all and not num_reserved and not findings.of("bad-index", self._info.name):
            message = f"indices 1 to {self._last_index:,} occur, but 0 does not"
            if too_large:
                new = Finding("one-based-indices", message, too_large[0].path, stream=self._info.name)
                findings.replace("index-too-large", self._info.name, new._replace(num_cases=0))
                return None
            return "one-based-indices", f"{message}, in {self._num_samples:,} samples"
        if not self.is_one_hot or too_large:
            return None
        num_classes = self._info.dim if self._info.dim <= _MOST_CLASSES else len(counts)
        missing = [*np.flatnonzero(counts == 0).tolist(), *range(len(counts), num_classes)]
        missing = [index for index in missing if index >= num_reserved]
        used = counts[counts > 0]
        are_missing = 0 < len(missing) <= max(1, num_classes // _LEAST_OF_A_CLASS)
        if not are_missing or len(used) < 2 or used.min() < _LEAST_OF_A_CLASS:
            return None
        occur = "occurs" if len(missing) == 1 else "occur"
        classes = f"{in_words(missing, 'class')} of {num_classes:,}"
        return "unused-class", f"{classes} never {occur} in {self._num_samples:,} samples"


class Contents:
    """The check of the contents of corpora that belong together, such as the files of a pattern."""

    def __init__(self) -> None:
        self._streams: dict[str, _StreamCheck] = {}
        self._unequal: dict[str, _Exceptions] = {}  # sequences in which a stream is shorter than the longest stream
        self._num_sequences = 0
        self._corpora: list[tuple[int, Placed]] = []
        self._hashed: list[tuple[npt.NDArray[np.int64], _U64, npt.NDArray[np.uint32]]] = []

    def begin(self, streams: Sequence[StreamInformation], corpus: Placed) -> None:
        """Begin to check a corpus. Corpora that belong together have the same streams."""
        if not self._streams:
            self._streams = {info.name: _StreamCheck(info) for info in streams}
            self._unequal = {info.name: _Exceptions() for info in streams}
        self._corpora.append((self._num_sequences, corpus))

    def end(self, num_sequences: int) -> None:
        """End the check of a corpus that has this many sequences."""
        self._num_sequences += num_sequences

    def add(self, block: Block, unsound: Set[int | str | None]) -> None:
        """Examine a block of the corpus. The sequences with these keys have errors."""
        first, corpus = self._corpora[-1]
        indices = {info.name: index for index, info in enumerate(block.infos)}
        checks = [(indices[name], check) for name, check in sorted(self._streams.items())]
        wanted = [check.wanted(index) for index, check in checks]
        hashes, figures = _core.survey(block.loaded.chunk, wanted, num_threads())
        for (index, check), found in zip(checks, figures, strict=True):
            check.add(block, index, found, corpus)
        self._hashed.append((first + block.sequences, hashes, block.longest))
        if len(self._unequal) > 1:
            self._add_lengths(block, corpus, unsound)

    def _add_lengths(self, block: Block, corpus: Placed, unsound: Set[int | str | None]) -> None:
        # An incomplete sequence is an error of its format.
        is_long = (block.longest > 1) & (reduce(np.minimum, block.lengths) > 0)
        num_long = int(is_long.sum())
        for lengths, exceptions in zip(block.lengths, self._unequal.values(), strict=True):
            sequences = np.flatnonzero(is_long & (lengths != block.longest))
            # The errors of other sequences may explain missing samples.
            if unsound and len(sequences):
                sequences = sequences[[key not in unsound for key in block.keys[sequences].tolist()]]
            exceptions.add(num_long, sequences, None, block, corpus)

    def report(self, findings: Findings) -> None:
        """Report the findings in all blocks."""
        for stream in self._streams.values():
            stream.report(self._corpora[0][1], findings)
        for name, exceptions in self._unequal.items():
            if exceptions.are_few:
                message = f"{name!r} has fewer samples here than the longest stream of the sequence"
                exceptions.report(findings, "unequal-lengths", message, None)

    def sequences(self) -> SequenceContents:
        """Return the contents of all sequences."""
        bits = np.array([stream.bits for stream in self._streams.values()]).reshape(-1, 2).sum(0)
        all_hashes, all_lengths = np.zeros(self._num_sequences, np.uint64), np.zeros(self._num_sequences, np.uint32)
        for sequences, hashes, lengths in self._hashed:
            # Chunks that were loaded whole have no gaps: NumPy copies into a slice faster than to indices.
            are_neighbours = len(sequences) and sequences[-1] - sequences[0] == len(sequences) - 1
            at = slice(int(sequences[0]), int(sequences[-1]) + 1) if are_neighbours else sequences
            all_hashes[at], all_lengths[at] = hashes, lengths
        return SequenceContents(all_hashes, ((all_lengths, bits),), self._corpora, set(self._streams))


class SequenceContents(NamedTuple):
    """The contents of the sequences of a corpus, in its order.

    Attributes:
        hashes: A hash of each sequence; 0 where it could not be read.
        sizes: Of each corpus that is joined: the number of samples of each sequence, and about how many bits of
            information a sample has, in measured values and in symbols.
        corpora: The corpora that belong together, each with the index of its first sequence.
        streams: The names of the streams.
    """

    hashes: _U64
    sizes: tuple[tuple[npt.NDArray[np.uint32], npt.NDArray[np.float64]], ...]
    corpora: Sequence[tuple[int, Placed]]
    streams: Set[str]

    def joined(self, partners: npt.NDArray[Any], other: SequenceContents, others: npt.NDArray[Any]) -> SequenceContents:
        """Return the sequences that are joined with sequences of another corpus. Places are not kept."""
        # Without the odd factor, sequences with equal hashes in both corpora would all get 0, which means unread.
        hashes = self.hashes[partners] * np.uint64(0x9E3779B97F4A7C15) ^ other.hashes[others]
        sizes = ((lengths[at], bits) for one, at in ((self, partners), (other, others)) for lengths, bits in one.sizes)
        return SequenceContents(hashes, tuple(sizes), (), self.streams | other.streams)

    def _bits(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return about how many bits of information sequences have, in measured values and in symbols."""
        return sum((np.outer(lengths[sequences], bits) for lengths, bits in self.sizes), np.zeros((1, 2)))

    def _case(self, index: int) -> Finding:
        first, corpus = next(pair for pair in reversed(self.corpora) if pair[0] <= index)
        return Finding("equal-sequences", "", **corpus.place(index - first))

    def _judged(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the given sequences whose equality can hardly be chance."""
        is_judged: npt.NDArray[np.bool_] = (self._bits(sequences).sum(1) >= _LEAST_BITS) & (self.hashes[sequences] != 0)
        return sequences[is_judged]

    def report(self, findings: Findings) -> None:
        """Report sequences that are equal."""
        order = self._judged(_core.repeated(self.hashes))
        is_equal = self.hashes[order[1:]] == self.hashes[order[:-1]]
        copies = np.sort(order[1:][is_equal])
        # People say a sentence twice, but two measurements never have the same values.
        if len(copies) < _MOST_BY_CHANCE * len(self.hashes):
            copies = copies[self._bits(copies)[:, 0] >= _LEAST_BITS]
        if not len(copies) or not self.corpora:
            return
        index = int(copies[0])
        # `repeated` orders by hash and then by place, so the first sequence with the hash is the original.
        original = int(order[np.searchsorted(self.hashes[order], self.hashes[index])])
        message = f"the sequence has the same contents as the sequence at {self._case(original).place}"
        self._report("equal-sequences", message, copies, findings)

    def report_overlap(self, other: SequenceContents, name: str, findings: Findings) -> None:
        """Report sequences of this corpus that are also in another corpus, which has this name."""
        judged, others = (one._judged(np.arange(len(one.hashes))) for one in (self, other))
        common = judged[np.isin(self.hashes[judged], other.hashes[others])]
        # Equal by chance or not: half of the sequences that differ from each other are never in two corpora by chance.
        shared = np.flatnonzero(np.isin(self.hashes, other.hashes[other.hashes != 0]))
        num_different = len(np.unique(self.hashes[shared]))
        if self.streams == other.streams and num_different >= max(_ENOUGH, len(self.hashes) / 2, _MOSTLY * len(shared)):
            common = shared
        are = "are" if len(common) > 1 else "is"
        message = f"{counted(len(common), 'sequence')} of {len(self.hashes):,} {are} in {name}, too"
        self._report("overlap", message, common, findings)

    def _report(self, code: str, message: str, sequences: npt.NDArray[Any], findings: Findings) -> None:
        cases = (self._case(int(index))._replace(code=code, message=message) for index in sequences)
        findings.add_cases(cases, len(sequences))


def pairs_in_common(corpora: Sequence[SequenceContents]) -> Sequence[tuple[int, int]]:
    """Return the indices of each corpus and of each earlier one that may be the first with some of its sequences."""
    if len(corpora) < 3:
        return [(1, 0)] if len(corpora) == 2 else []
    hashes, owners = (np.concatenate(parts) for parts in (
        [one.hashes for one in corpora], [np.full(len(one.hashes), index) for index, one in enumerate(corpora)],
    ))  # fmt: skip
    _, firsts, places = np.unique(hashes, return_index=True, return_inverse=True)
    is_shared = (hashes != 0) & (owners[firsts[places]] < owners)
    pairs = np.unique(np.column_stack((owners, owners[firsts[places]]))[is_shared], axis=0)
    return [(int(later), int(earlier)) for later, earlier in pairs]


def report_ids(keys: Keys, corpus: Placed, findings: Findings) -> None:
    """Report ids that are missing or out of order, if almost all ids follow each other."""
    if keys.are_words or len(keys) < _ENOUGH:
        return
    # Keys have no sign: a step back would become a large number.
    steps = np.diff(np.asarray(keys).astype(np.int64))
    odd = np.flatnonzero((steps != 1) & (steps != 0))
    if not are_few(len(odd), len(keys), _MOST_STEPS):
        return

    def case(index: int) -> Finding:
        before, after = keys[index], keys[index + 1]
        message = f"id {after} follows {before}; expected {before + 1}"
        return Finding("ids-not-consecutive", message, sequence=after, **corpus.place(index + 1))

    findings.add_cases(map(case, odd.tolist()), len(odd))

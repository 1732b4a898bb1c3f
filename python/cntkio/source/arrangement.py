"""`Arrangement`: the sequences that a source delivers, joined by key and, in frame mode, cut into frames.

::

    corpora   u1 u2 u3 | u4       joined by key, in the order of the first
    items     u1 u3 | u4          what the timeline orders: sequences,
              0 1 2 3 4 | 5 6     or, in frame mode, the frames of utterances
    flags      .  ! |  .          an utterance that a corpus calls invalid or broken

Invariant: the arrangement follows from the corpora's tables. It reads no data, and for each frame it keeps only the
length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio.arguments import caller
from cntkio.displays import counted
from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.contract import Corpus, Utterances
from cntkio.formats.report import NUM_IN_FULL, first_few
from cntkio.formats.table import NamedFiles, SequenceTable
from cntkio.source.join import JoinedTable, join, kept_starts, unused_of
from cntkio.source.omissions import with_repetitions
from cntkio.storage.progress import warn
from cntkio.storage.spans import span_at
from cntkio.streams import check_definers
from cntkio.timeline import ChunkRefs
from cntkio.timeline.selection import Omissions

# --------------------------------------------------------------------------------------------------------------
# The utterances of joined corpora that fit: their lengths agree, and no corpus calls them invalid or broken.
#
# An utterance of the wrong length is an error or is left out, as its corpus says (`Utterances.unequal_lengths`), or it
# is skipped, as in CNTK's old reader (`_skip_unusable`). An invalid or broken utterance stays in the table with a flag.

# The larger flag counts where corpora disagree: a broken utterance cannot be delivered at all.
INVALID, BROKEN = 1, 2
_UNEQUAL = "of another length in another stream"
_Partners = tuple[npt.NDArray[np.uint32], ...]


def _skip_unusable(
    joined: JoinedTable, corpora: Sequence[Corpus], longest: int, *, frame_mode: bool, trace_level: int
) -> tuple[JoinedTable, dict[str, int]]:
    """Leave out unusable utterances, log them, and return the others and the number of skipped utterances by kind.

    An utterance is unusable if another corpus lacks it or has it with a different length, or if it is too long.
    """
    missing = joined.left_out[0]
    lengths = corpora[0].table.lengths[joined.partners[0]]
    is_unequal = np.zeros(len(lengths), np.bool_)
    example = ""
    for corpus, partners in zip(corpora[1:], joined.partners[1:], strict=True):
        mask = _unequal(corpus, partners, lengths, frame_mode=frame_mode)
        if mask is not None:
            is_unequal |= mask
            if mask.any() and not example:
                index = int(mask.argmax())
                example = (
                    f" (utterance {joined.keys[index]} has {lengths[index]} frames in {corpora[0].name}, and "
                    f"{corpus.table.lengths[partners[index]]} in {corpus.name})"
                )
    is_too_long = lengths > longest
    # Each utterance counts under a single kind, so that the sum below is their number.
    by_kind = {
        "missing in another stream": (missing.num_sequences, list(missing.first_keys)),
        _UNEQUAL: _count_and_keys(joined, is_unequal),
        f"longer than {longest} frames": _count_and_keys(joined, is_too_long & ~is_unequal),
    }
    by_kind = {kind: (count, keys) for kind, (count, keys) in by_kind.items() if count}
    name, total = corpora[0].name, corpora[0].table.num_sequences
    for kind, (count, keys) in by_kind.items():
        shown = first_few(keys, count) + example * (kind == _UNEQUAL)
        warn(trace_level, "%s: %s skipped, %s: %s", name, counted(count, "utterance"), kind, shown)
    skipped = {kind: count for kind, (count, _) in by_kind.items()}
    num_skipped = sum(skipped.values())
    if 2 * num_skipped > total:
        shown = ", ".join(f"{count} {kind} (first {keys[0]})" for kind, (count, keys) in by_kind.items())
        found = f"{num_skipped} of {total} utterances would be skipped, more than half of them"
        raise CorpusError(f"{name}: {found}: {shown}")
    return _only(joined, ~(is_unequal | is_too_long)), skipped


def _judge_lengths(
    joined: JoinedTable, corpora: Sequence[Corpus], *, frame_mode: bool, strict: bool, trace_level: int
) -> JoinedTable:
    """Leave out utterances that are not as long in a later corpus as in the first, if the later corpus allows that."""
    # A sequence of a text is not cut into frames, so its partners may have any length.
    if corpora[0].index.utterances is None:
        return joined
    lengths = corpora[0].table.lengths[joined.partners[0]]
    is_kept = np.ones(len(lengths), np.bool_)
    for corpus, partners in zip(corpora[1:], joined.partners[1:], strict=True):
        is_unequal = _unequal(corpus, partners, lengths, frame_mode=frame_mode)
        rule = "error" if corpus.index.utterances is None else corpus.index.utterances.unequal_lengths
        if is_unequal is None or (rule == "keep" and not frame_mode):
            continue
        own_lengths = corpus.table.lengths[partners]
        if rule == "keep":
            is_unequal &= own_lengths < lengths  # in frame mode, frames beyond the first corpus's frames are never read
        count, keys = _count_and_keys(joined, is_unequal)
        if not count:
            continue
        if rule == "drop":
            is_kept &= ~is_unequal
            shown = f"{corpora[0].name}: {first_few(keys, count)}"
            warn(trace_level, "%s: %s left out, not as long as in %s", corpus.name, counted(count, "utterance"), shown)
        if rule != "drop" or strict:
            advised = caller().words.setting("unequal_lengths", "drop")
            own, first = own_lengths[is_unequal][0], lengths[is_unequal][0]
            found = f"{own} frames in {corpus.name}, but {first} in {corpora[0].name}"
            such = counted(count, "such utterance")
            raise CorpusError(f"utterance {keys[0]}: {found} ({such}); {advised} leaves them out")
    return _only(joined, is_kept)


def _flags_of(
    corpora: Sequence[Corpus], table: SequenceTable, partners: _Partners | None
) -> npt.NDArray[np.uint8] | None:
    """Return for each sequence 0, `INVALID` or `BROKEN`; None if all are sound."""
    flags = np.zeros(table.num_sequences, np.uint8)
    for corpus_index, corpus in enumerate(corpora):
        traits = corpus.index.utterances
        if traits is None:
            continue
        own = np.arange(table.num_sequences, dtype=np.uint32) if partners is None else partners[corpus_index]
        for mask, flag in ((traits.invalid, INVALID), (traits.broken, BROKEN)):
            if mask is not None:
                np.maximum(flags, mask[own] * np.uint8(flag), out=flags)
        # CNTK 2.7 raises the error only when it reaches the utterance.
        if traits.broken is not None and not traits.is_literal:
            broken = np.flatnonzero(traits.broken[own])
            if len(broken):
                raise traits.complaint(int(own[broken[0]]))
    return flags if flags.any() else None


def _unequal(
    corpus: Corpus, partners: npt.NDArray[np.uint32], lengths: npt.NDArray[np.uint32], *, frame_mode: bool
) -> npt.NDArray[np.bool_] | None:
    """Mark the utterances that are not as long as in the first corpus; None where lengths need not be equal.

    Invalid and broken utterances have no length to compare.
    """
    traits = corpus.index.utterances or Utterances()
    if traits.is_broadcast or (corpus.index.utterances is None and not frame_mode):
        return None
    is_unequal: npt.NDArray[np.bool_] = corpus.table.lengths[partners] != lengths
    for mask in (traits.invalid, traits.broken):
        if mask is not None:
            is_unequal &= ~mask[partners]
    return is_unequal


def _count_and_keys(joined: JoinedTable, mask: npt.NDArray[np.bool_]) -> tuple[int, list[str]]:
    indices = np.flatnonzero(mask)
    return len(indices), list(map(str, joined.keys[indices[:NUM_IN_FULL]].tolist()))


def _only(joined: JoinedTable, is_kept: npt.NDArray[np.bool_]) -> JoinedTable:
    """Return the sequences that are kept. Chunks without a sequence are dropped."""
    if is_kept.all():
        return joined
    if not is_kept.any():
        raise CorpusError("no utterance has the same length in all deserializers: nothing is left to read")
    chunk_starts = kept_starts(joined.chunk_starts, is_kept)
    partners = tuple(partners[is_kept] for partners in joined.partners)
    return JoinedTable(joined.keys.only(is_kept), joined.lengths[is_kept], chunk_starts, partners, joined.left_out)


class Located(NamedTuple):
    """Items of the timeline as sequences of the table."""

    sequences: npt.NDArray[np.int64]  # the sequence of each item
    frames: npt.NDArray[np.uint32] | None = None  # the frame of each item in its sequence; None if items are sequences
    # For each corpus, where the sequences are in its chunks; None: look them up in the table.
    refs: list[ChunkRefs] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Arrangement:
    """The sequences of a source."""

    table: SequenceTable  # the table of the only corpus, or the joined one
    tables: tuple[SequenceTable, ...]
    # For each corpus, the index of its sequence for each sequence of the table; None for a single corpus.
    partners: _Partners | None
    left_out: tuple[int, ...]  # for each corpus, the number of its sequences that are never delivered
    flags: npt.NDArray[np.uint8] | None  # for each sequence 0, `INVALID` or `BROKEN`; None if all are sound
    finder: _core.FrameFinder | None  # in frame mode, finds the utterances of frames; None if items are sequences
    lengths: npt.NDArray[np.uint32]  # samples that each item counts for
    chunk_starts: npt.NDArray[np.int64]  # first item of each chunk and, last, the number of items
    repeats: tuple[bool, ...]  # for each corpus, whether it is broadcast to the lengths of the first
    skipped: Mapping[str, int]  # number of skipped utterances, by kind
    name: str  # name of the first corpus
    # Whether a corpus asks for CNTK 2.7's own treatment of errors, and of minibatches whose utterances are all
    # invalid: they are delivered empty.
    is_literal: bool
    omissions: Omissions | None = None  # items that are left out; None: nothing is

    def without(self, omissions: Omissions) -> Arrangement:
        """Return the arrangement without some sequences of the table."""
        if self.finder is not None:
            num_frames = self.tables[0].lengths[self.partner(0, np.arange(self.table.num_sequences))]
            omissions = omissions._replace(since=np.repeat(omissions.since, num_frames))
        return dataclasses.replace(self, omissions=omissions)

    def locate(self, items: npt.NDArray[np.int64]) -> Located:
        """Return the sequences of items."""
        if self.finder is None:
            return Located(items)
        found = self.finder.find(items)
        return Located(found.utterances, found.frames, [*map(ChunkRefs.found, found.refs)])

    def partner(self, corpus_index: int, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the sequences of a corpus that belong to sequences of the table."""
        return sequences if self.partners is None else self.partners[corpus_index][sequences].astype(np.int64)

    def repeated(
        self, corpus_index: int, sequences: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]] | None:
        """Return the first sample and the number of samples to pack of each sequence; None: all are packed."""
        if not self.repeats[corpus_index]:
            return None
        lengths = self.tables[0].lengths[self.partner(0, sequences)].astype(np.uint32)
        return np.zeros(len(lengths), np.uint32), lengths

    def files_of(self, sequences: npt.NDArray[np.int64]) -> NamedFiles:
        """Return the files of some sequences of the table, in the first corpus."""
        files = self.tables[0].files
        if files is None:
            return np.array([self.name]), np.zeros(len(sequences), np.int64)
        return files(self.partner(0, sequences))

    def chunks_of(self, table_chunk: int) -> list[list[int]]:
        """Return, for each corpus, its chunks that hold sequences of a chunk of the table, in ascending order."""
        if self.partners is None:
            return [[table_chunk]]
        begin, end = self.table.bounds_of(table_chunk)
        each = zip(self.tables, self.partners, strict=True)
        return [np.unique(span_at(table.chunk_starts, partners[begin:end])).tolist() for table, partners in each]

    def refs_of(self, corpus_index: int, sequences: npt.NDArray[np.int64]) -> ChunkRefs:
        """Find sequences of the table in the chunks of a corpus."""
        partners = None if self.partners is None else self.partners[corpus_index]
        return ChunkRefs.found(_core.find_chunks(sequences, partners, self.tables[corpus_index].chunk_starts))


def arrange(
    corpora: Sequence[Corpus],
    *,
    frame_mode: bool = False,
    strict: bool = False,
    longest: int | None = None,
    trace_level: int = 1,
    repeat: Mapping[Any, int] | None = None,
) -> Arrangement:
    """Arrange corpora: join them by key, and judge their utterances.

    Args:
        corpora: The corpora. The first gives the order.
        frame_mode: Cut utterances into frames.
        strict: Raise an error for sequences that the join leaves out.
        longest: Frames of the longest utterance. Unusable utterances are skipped, not refused, as in CNTK's old reader;
            None: each corpus decides.
        trace_level: Whether sequences that are left out are logged: not at level 0.
        repeat: For some keys how often the order has the sequence.

    Raises:
        ConfigError: A corpus cannot be joined, cannot be the first, or cannot be cut into frames.
        CorpusError: No key is in all corpora, or the utterances do not fit each other.
    """
    _check_joins(corpora)
    # A corpus without utterances has traits that refuse nothing.
    traits = [corpus.index.utterances or Utterances() for corpus in corpora]
    for corpus, of_corpus in zip(corpora, traits, strict=True):
        if frame_mode and of_corpus.refuses_frame_mode:
            raise ConfigError(f"{corpus.name}: {of_corpus.refuses_frame_mode}", key="frame_mode")
    table = corpora[0].table
    tables = tuple(corpus.table for corpus in corpora)
    partners: _Partners | None = None
    left_out: tuple[int, ...] = (0,)
    skipped: dict[str, int] = {}
    # Skipping takes a joined table, even of a single corpus.
    if longest is not None or len(corpora) > 1 or repeat:
        patterns = [of_corpus.is_pattern for of_corpus in traits]
        joined = join(tables, defining=_defining(corpora), patterns=patterns)
        if longest is not None:
            joined, skipped = _skip_unusable(joined, corpora, longest, frame_mode=frame_mode, trace_level=trace_level)
        else:
            complaint = joined.complaint([corpus.name for corpus in corpora])
            if complaint is not None and strict:
                raise CorpusError(complaint)
            if complaint is not None:
                warn(trace_level, "%s", complaint)
            joined = _judge_lengths(joined, corpora, frame_mode=frame_mode, strict=strict, trace_level=trace_level)
        joined = with_repetitions(joined, repeat) if repeat else joined
        table, partners = joined, joined.partners
        # A key that the first corpus repeats has the same partner each time.
        each = zip(tables, partners, strict=True)
        left_out = tuple(len(unused_of(own, of_own)) for own, of_own in each)
    finder = None
    lengths, chunk_starts = table.lengths, table.chunk_starts
    # Frame mode does not cut the sequences of a text: the packer refuses sequences of several samples.
    if frame_mode and corpora[0].index.utterances is not None:
        # A joined length may be that of another corpus, so take the frames of the first.
        num_frames = tables[0].lengths if partners is None else tables[0].lengths[partners[0]]
        frame_starts = np.append(0, np.cumsum(num_frames, dtype=np.int64))
        of_corpora = zip(partners or (None,), [own.chunk_starts for own in tables], strict=True)
        finder = _core.FrameFinder(frame_starts, list(of_corpora))
        lengths, chunk_starts = np.ones(int(frame_starts[-1]), np.uint32), frame_starts[chunk_starts]
    flags, name = _flags_of(corpora, table, partners), corpora[0].name
    repeats = tuple(of_corpus.is_broadcast for of_corpus in traits)
    is_literal = any(of_corpus.is_literal for of_corpus in traits)
    return Arrangement(
        table, tables, partners, left_out, flags, finder, lengths, chunk_starts, repeats, skipped, name, is_literal
    )


def complaint_of(corpora: Sequence[Corpus], arrangement: Arrangement, sequence_index: int, flag: int) -> Exception:
    """Return the complaint of the first corpus that calls a sequence invalid or broken."""
    for corpus_index, corpus in enumerate(corpora):
        utterances = corpus.index.utterances
        if utterances is not None:
            own = int(arrangement.partner(corpus_index, np.array([sequence_index]))[0])
            mask = utterances.invalid if flag == INVALID else utterances.broken
            if mask is not None and mask[own]:
                return utterances.complaint(own)
    raise AssertionError("no corpus calls this sequence invalid or broken")


def sound_sequences(
    corpora: Sequence[Corpus], arrangement: Arrangement, max_errors: int
) -> npt.NDArray[np.int64] | None:
    """Return the sequences that no corpus calls invalid; None: all. If too many are invalid, raise `CorpusError`."""
    flags = arrangement.flags
    num_invalid = 0 if flags is None else int(np.count_nonzero(flags))
    if flags is None or (num_invalid <= max_errors and flags.max() < BROKEN):
        return None if flags is None else np.flatnonzero(flags == 0)
    # The first broken sequence, or else the first invalid one.
    complaint = complaint_of(corpora, arrangement, int(flags.argmax()), int(flags.max()))
    option = caller().words.option("max_errors")
    raise CorpusError(f"{counted(num_invalid, 'invalid utterance')}, and {option} is {max_errors}: {complaint}")


def check_names(corpora: Sequence[Corpus]) -> None:
    """Refuse two corpora that have a stream of the same name."""
    owners: dict[str, Corpus] = {}
    for corpus in corpora:
        for name in (info.name for info in corpus.streams):
            other = owners.setdefault(name, corpus)
            if other is corpus:
                continue
            found = f"two streams have the name {name!r}, in {other.name} and in {corpus.name}"
            advice = "rename one of them"
            # A user who renames streams of such files gets a join of their keys.
            are_alike = corpus.name != other.name and type(corpus.index.layout) is type(other.index.layout)
            if are_alike and {info.name for info in corpus.streams} == {info.name for info in other.streams}:
                advice = f"if these files are one corpus, give {caller().words.one_corpus}; or else {advice}"
            raise ConfigError(f"{found}; {advice}", key=name)


def _check_joins(corpora: Sequence[Corpus]) -> None:
    for corpus in corpora[1:]:
        if corpus.index.joins == "first":
            message = f"{corpus.name}: a binary corpus has no keys of its own, so it must be the first deserializer"
            raise ConfigError(message, key="deserializers")
    for corpus in corpora if len(corpora) > 1 else ():
        if corpus.index.joins == "alone":
            found = f"{corpus.name} has a timeline of its own and cannot be joined with other deserializers"
            raise ConfigError(f"{found}; set timeline='global' to join it", key="timeline")
    if not (corpora[0].index.utterances or Utterances()).can_lead:
        message = f"{corpora[0].name}: labels and broadcast streams cannot be first; put features or text first"
        raise ConfigError(message, key="deserializers")


def _defining(corpora: Sequence[Corpus]) -> int | None:
    """Return the index of the corpus whose stream defines the minibatch size; None if there is none."""
    streams = [(index, info) for index, corpus in enumerate(corpora) for info in corpus.streams]
    defining = {index: info.name for index, info in streams if info.defines_mb_size}
    check_definers(list(defining.values()))
    return next(iter(defining), None)

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
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.contract import Corpus
from cntkio.formats.report import warn
from cntkio.formats.table import NamedFiles, SequenceTable
from cntkio.source.fitting import Skipping, flags_of, judge_lengths, skip_unusable
from cntkio.source.join import join
from cntkio.streams import check_definers
from cntkio.timeline import ChunkRefs


class Located(NamedTuple):
    """Items of the timeline as sequences of the table.

    Attributes:
        sequences: The sequence of each item.
        frames: The frame of each item in its sequence; None if items are sequences.
        refs: For each corpus, where the sequences are in its chunks; None: look them up in the table.
    """

    sequences: npt.NDArray[np.int64]
    frames: npt.NDArray[np.uint32] | None = None
    refs: list[ChunkRefs] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Arrangement:
    """The sequences of a source.

    Attributes:
        table: The table of the only corpus, or the joined one.
        tables: The tables of the corpora.
        partners: For each corpus, the index of its sequence for each sequence of the table; None for a single corpus.
        left_out: For each corpus, the number of its sequences that are never delivered.
        flags: For each sequence 0, `INVALID` or `BROKEN`; None if all are sound.
        finder: In frame mode, finds the utterances of frames; None if items are sequences.
        lengths: Samples that each item counts for.
        chunk_starts: First item of each chunk and, last, the number of items.
        repeats: For each corpus, whether it is broadcast to the lengths of the first.
        skipped: Number of skipped utterances, by kind.
        name: Name of the first corpus.
    """

    table: SequenceTable
    tables: tuple[SequenceTable, ...]
    partners: tuple[npt.NDArray[np.uint32], ...] | None
    left_out: tuple[int, ...]
    flags: npt.NDArray[np.uint8] | None
    finder: _core.FrameFinder | None
    lengths: npt.NDArray[np.uint32]
    chunk_starts: npt.NDArray[np.int64]
    repeats: tuple[bool, ...]
    skipped: Mapping[str, int]
    name: str

    def locate(self, items: npt.NDArray[np.int64]) -> Located:
        """Return the sequences of items."""
        if self.finder is None:
            return Located(items)
        sequences, frames, refs = self.finder.find(items)
        return Located(sequences, frames, [ChunkRefs(*of_corpus) for of_corpus in refs])

    def partner(self, corpus_index: int, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the sequences of a corpus that belong to sequences of the table."""
        return sequences if self.partners is None else self.partners[corpus_index][sequences].astype(np.int64)

    def files_of(self, sequences: npt.NDArray[np.int64]) -> NamedFiles:
        """Return the files of some sequences of the table, in the first corpus."""
        files = self.tables[0].files
        if files is None:
            return np.array([self.name]), np.zeros(len(sequences), np.int64)
        return files.of(self.partner(0, sequences))

    def chunks_of(self, table_chunk: int) -> list[list[int]]:
        """Return, for each corpus, its chunks that hold sequences of a chunk of the table, in ascending order."""
        if self.partners is None:
            return [[table_chunk]]
        begin, end = self.table.bounds_of(table_chunk)
        return [
            np.unique(np.searchsorted(table.chunk_starts, partners[begin:end], side="right") - 1).tolist()
            for table, partners in zip(self.tables, self.partners, strict=True)
        ]

    def refs_of(self, corpus_index: int, sequences: npt.NDArray[np.int64]) -> ChunkRefs:
        """Find sequences of the table in the chunks of a corpus."""
        partners = None if self.partners is None else self.partners[corpus_index]
        return ChunkRefs(*_core.find_chunks(sequences, partners, self.tables[corpus_index].chunk_starts))


def arrange(
    corpora: Sequence[Corpus], *, frame_mode: bool = False, strict: bool = False, skipping: Skipping | None = None
) -> Arrangement:
    """Arrange corpora: join them by key, and judge their utterances.

    Args:
        corpora: The corpora. The first gives the order.
        frame_mode: Cut utterances into frames.
        strict: Raise an error for sequences that the join leaves out.
        skipping: The rule for utterances to skip; None: each corpus decides.

    Raises:
        ConfigError: A corpus cannot be joined, cannot be the first, or cannot be cut into frames.
        CorpusError: No key is in all corpora; or the lengths of an utterance differ; or an utterance is broken; or more
            than half of the utterances would be skipped.
    """
    _check_joins(corpora)
    traits = [corpus.utterances for corpus in corpora]
    for corpus in corpora if frame_mode else ():
        if corpus.utterances is not None and corpus.utterances.refuses_frame_mode:
            raise ConfigError(f"{corpus.name}: {corpus.utterances.refuses_frame_mode}", key="frame_mode")
    defining = _defining(corpora)
    table = corpora[0].table
    tables = tuple(corpus.table for corpus in corpora)
    partners: tuple[npt.NDArray[np.uint32], ...] | None = None
    left_out: tuple[int, ...] = (0,)
    skipped: dict[str, int] = {}
    if skipping is not None or len(corpora) > 1:
        patterns = [None if of_corpus is None else of_corpus.is_pattern for of_corpus in traits]
        joined = join(tables, defining=defining, patterns=patterns)
        if skipping is not None:
            joined, skipped = skip_unusable(joined, corpora, skipping, frame_mode=frame_mode)
        else:
            complaint = joined.complaint([corpus.name for corpus in corpora])
            if complaint is not None and strict:
                raise CorpusError(complaint)
            if complaint is not None:
                warn("%s", complaint)
            joined = judge_lengths(joined, corpora, frame_mode=frame_mode, strict=strict)
        table, partners = joined, joined.partners
        left_out = tuple(
            own.num_sequences - len(np.unique(own_partners)) for own, own_partners in zip(tables, partners, strict=True)
        )
    finder = None
    lengths, chunk_starts = table.lengths, table.chunk_starts
    if frame_mode and traits[0] is not None:
        num_frames = tables[0].lengths if partners is None else tables[0].lengths[partners[0]]
        frame_starts = np.append(0, np.cumsum(num_frames, dtype=np.int64))
        finder = _core.FrameFinder(
            frame_starts,
            [
                (None if partners is None else partners[corpus_index], own.chunk_starts)
                for corpus_index, own in enumerate(tables)
            ],
        )
        lengths, chunk_starts = np.ones(int(frame_starts[-1]), np.uint32), frame_starts[chunk_starts]
    return Arrangement(
        table=table,
        tables=tables,
        partners=partners,
        left_out=left_out,
        flags=flags_of(corpora, table, partners),
        finder=finder,
        lengths=lengths,
        chunk_starts=chunk_starts,
        repeats=tuple(of_corpus is not None and of_corpus.is_broadcast for of_corpus in traits),
        skipped=skipped,
        name=corpora[0].name,
    )


def _check_joins(corpora: Sequence[Corpus]) -> None:
    """Refuse corpora that cannot be joined in this order."""
    for corpus in corpora[1:]:
        if corpus.joins == "first":
            raise ConfigError(
                f"{corpus.name}: a binary corpus has no keys of its own, so it must be the first deserializer",
                key="deserializers",
            )
    for corpus in corpora:
        if corpus.joins == "alone" and len(corpora) > 1:
            raise ConfigError(
                f"{corpus.name} has a timeline of its own and cannot be joined with other deserializers; set "
                f"timeline='global' to join it",
                key="timeline",
            )
    first = corpora[0]
    if first.utterances is not None and not first.utterances.can_lead:
        raise ConfigError(
            f"{first.name}: labels and broadcast streams cannot be first; put features or text first",
            key="deserializers",
        )


def _defining(corpora: Sequence[Corpus]) -> int | None:
    """Return the index of the corpus whose stream defines the minibatch size; None if there is none."""
    defining = [
        (corpus_index, info.name)
        for corpus_index, corpus in enumerate(corpora)
        for info in corpus.streams
        if info.defines_mb_size
    ]
    if len({corpus_index for corpus_index, _ in defining}) > 1:
        check_definers([name for _, name in defining])
    return defining[0][0] if defining else None

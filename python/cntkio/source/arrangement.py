"""What a source delivers: sequences joined by key, utterances cut into frames, and what must not be delivered.

::

    corpora   u1 u2 u3 | u4       joined by key, in the order of the first
    items     u1 u3 | u4          what the timeline orders: sequences,
              0 1 2 3 4 | 5 6     or, in frame mode, the frames of utterances
    flags      .  ! |  .          an utterance that a corpus calls invalid or broken

Its law: all of it follows from the corpora's tables. It reads no data, and keeps nothing for each frame but its length.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.contract import Corpus
from cntkio.formats.report import NUM_IN_FULL, first_few
from cntkio.formats.table import SequenceTable
from cntkio.source.join import JoinedTable, join
from cntkio.timeline import ChunkRefs

logger = logging.getLogger("cntkio")

INVALID, BROKEN = 1, 2


class Located(NamedTuple):
    """Items of the timeline as sequences of the table.

    Attributes:
        sequences: The sequence of each.
        frames: Where items are frames, which one of the sequence each is.
        places: Where they are in each corpus; None where that was not worked out.
    """

    sequences: npt.NDArray[np.int64]
    frames: npt.NDArray[np.uint32] | None = None
    places: list[ChunkRefs] | None = None


class Skipping(NamedTuple):
    """That utterances which are not fit are skipped, as the old reader did, instead of being refused.

    Not fit are those that another corpus lacks, or has in another length, and those of more than `longest` frames.
    """

    longest: int


@dataclasses.dataclass(frozen=True, eq=False)
class Arrangement:
    """The sequences of a source.

    Attributes:
        table: The only corpus's table, or the joined one.
        tables: The tables of the corpora.
        partners: For each corpus which of its sequences belongs to each of the table; None where there is one corpus.
        left_out: For each corpus how many of its sequences are never delivered.
        flags: For each sequence 0, `INVALID` or `BROKEN`; None if all are sound.
        finder: In frame mode of utterances what finds the utterances of items; else None.
        lengths: Samples that each item of the timeline counts for.
        chunk_starts: First item of each chunk and, last, their number.
        repeats: Whether a corpus is broadcast to the lengths of the first.
        skipped: How many utterances were skipped, by kind.
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
    skipped: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def locate(self, items: npt.NDArray[np.int64]) -> Located:
        """The sequences of items."""
        if self.finder is None:
            return Located(items)
        sequences, frames, places = self.finder.find(items)
        return Located(sequences, frames, [ChunkRefs(*one) for one in places])

    def partner(self, corpus: int, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Which sequences of a corpus belong to these of the table."""
        return sequences if self.partners is None else self.partners[corpus][sequences].astype(np.int64)

    def chunks_of(self, table_chunk: int) -> list[list[int]]:
        """For each corpus its chunks that hold sequences of a chunk of the table, ascending."""
        if self.partners is None:
            return [[table_chunk]]
        begin, end = self.table.chunk_starts[table_chunk : table_chunk + 2]
        return [
            np.unique(np.searchsorted(table.chunk_starts, partners[begin:end], side="right") - 1).tolist()
            for table, partners in zip(self.tables, self.partners, strict=True)
        ]


def arrange(
    corpora: Sequence[Corpus],
    *,
    defining: int | None = None,
    frame_mode: bool = False,
    strict: bool = False,
    skipping: Skipping | None = None,
) -> Arrangement:
    """Arrange corpora: join them, and look at what they say of their utterances.

    Args:
        corpora: The corpora, the first of which gives the order.
        defining: The corpus whose lengths count.
        frame_mode: Cut utterances into frames.
        strict: Take what the join leaves out as an error.
        skipping: Skip utterances that are not fit; None: the corpora say what becomes of them.

    Raises:
        ConfigError: A corpus may not be the first, or cannot be cut into frames.
        CorpusError: No key is in all corpora; or the lengths of an utterance differ; or an utterance is broken; or more
            than half of the utterances would be skipped.
    """
    traits = [corpus.utterances for corpus in corpora]
    names = [corpus.name for corpus in corpora]
    if traits[0] is not None and not traits[0].can_lead:
        raise ConfigError(
            f"{names[0]}: labels and broadcast streams follow features or text; put those first", key="deserializers"
        )
    if frame_mode:
        for name, one in zip(names, traits, strict=True):
            if one is not None and one.refuses_frame_mode:
                raise ConfigError(f"{name}: {one.refuses_frame_mode}", key="frame_mode")
    table = corpora[0].table
    tables = tuple(corpus.table for corpus in corpora)
    partners: tuple[npt.NDArray[np.uint32], ...] | None = None
    left_out: tuple[int, ...] = (0,)
    skipped: dict[str, int] = {}
    if skipping is not None:
        joined = join(tables, defining=defining)
        joined, skipped = _only_fit(joined, corpora, frame_mode, skipping)
    elif len(corpora) > 1:
        joined = join(tables, defining=defining)
        complaint = joined.complaint(names)
        if complaint is not None:
            if strict:
                raise CorpusError(complaint)
            logger.warning("%s", complaint)
        joined = _with_equal_lengths(joined, corpora, frame_mode, strict)
    if skipping is not None or len(corpora) > 1:
        table, partners = joined, joined.partners
        left_out = tuple(
            corpus.table.num_sequences - len(np.unique(one)) for corpus, one in zip(corpora, partners, strict=True)
        )
    flags = _flags(corpora, table, partners)
    repeats = tuple(one is not None and one.is_broadcast for one in traits)
    if not (frame_mode and traits[0] is not None):
        lengths = table.lengths
        return Arrangement(
            table, tables, partners, left_out, flags, None, lengths, table.chunk_starts, repeats, skipped
        )
    frames = corpora[0].table.lengths if partners is None else corpora[0].table.lengths[partners[0]]
    frame_starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(frames, dtype=np.int64)])
    ones = np.ones(int(frame_starts[-1]), np.uint32)
    chunk_starts = frame_starts[table.chunk_starts]
    of_corpora = itertools.repeat(None) if partners is None else partners
    finder = _core.FrameFinder(
        frame_starts, [(one, corpus.table.chunk_starts) for corpus, one in zip(corpora, of_corpora, strict=False)]
    )
    return Arrangement(table, tables, partners, left_out, flags, finder, ones, chunk_starts, repeats, skipped)


def _only_fit(
    joined: JoinedTable, corpora: Sequence[Corpus], frame_mode: bool, skipping: Skipping
) -> tuple[JoinedTable, dict[str, int]]:
    """Leave out what is not fit, and report it by kind and count."""
    first = joined.left_out[0]
    lengths = corpora[0].table.lengths[joined.partners[0]]
    is_unequal = np.zeros(len(lengths), np.bool_)
    for corpus, partners in zip(corpora[1:], joined.partners[1:], strict=True):
        if (frame_mode or corpus.utterances is not None) and not _is_broadcast(corpus):
            is_unequal |= _differing(corpus, partners, lengths)
    is_too_long = lengths > skipping.longest
    found = {
        "missing in another stream": (first.num_sequences, [str(key) for key in first.first_keys]),
        "of another length in another stream": _counted(joined, is_unequal),
        f"longer than {skipping.longest} frames": _counted(joined, is_too_long & ~is_unequal),
    }
    found = {kind: (count, keys) for kind, (count, keys) in found.items() if count}
    for kind, (count, keys) in found.items():
        logger.warning("%s: %d utterances are skipped: %s: %s", corpora[0].name, count, kind, first_few(keys, count))
    skipped = {kind: count for kind, (count, _) in found.items()}
    num_skipped, total = sum(skipped.values()), corpora[0].table.num_sequences
    if 2 * num_skipped > total:
        raise CorpusError(
            f"{corpora[0].name}: {num_skipped} of {total} utterances would be skipped, more than half of them: "
            + ", ".join(f"{count} {kind} (first {keys[0]})" for kind, (count, keys) in found.items())
        )
    is_kept = ~(is_unequal | is_too_long)
    return joined if is_kept.all() else _only(joined, is_kept), skipped


def _counted(joined: JoinedTable, mask: npt.NDArray[np.bool_]) -> tuple[int, list[str]]:
    found = np.flatnonzero(mask)
    return len(found), [_key(joined, one) for one in found[:NUM_IN_FULL]]


def _is_broadcast(corpus: Corpus) -> bool:
    return corpus.utterances is not None and corpus.utterances.is_broadcast


def _differing(
    corpus: Corpus, partners: npt.NDArray[np.uint32], lengths: npt.NDArray[np.uint32]
) -> npt.NDArray[np.bool_]:
    """Which utterances are not as long as in the first corpus; of those that are not sound others tell."""
    is_unequal: npt.NDArray[np.bool_] = corpus.table.lengths[partners] != lengths
    if corpus.utterances is not None:
        for mask in (corpus.utterances.invalid, corpus.utterances.broken):
            if mask is not None:
                is_unequal &= ~mask[partners]
    return is_unequal


def _with_equal_lengths(joined: JoinedTable, corpora: Sequence[Corpus], frame_mode: bool, strict: bool) -> JoinedTable:
    """Judge utterances that are not as long in a later corpus as in the first."""
    lead = corpora[0]
    if lead.utterances is None:
        return joined
    lengths = lead.table.lengths[joined.partners[0]]
    is_kept = np.ones(len(lengths), np.bool_)
    for corpus, partners in zip(corpora[1:], joined.partners[1:], strict=True):
        traits = corpus.utterances
        if not frame_mode and traits is None:
            continue
        others = corpus.table.lengths[partners]
        is_unequal = _differing(corpus, partners, lengths)
        rule = "error"
        if traits is not None:
            if traits.is_broadcast:
                continue
            rule = traits.unequal_lengths
            if rule == "keep" and not frame_mode:
                continue
            if rule == "keep":
                is_unequal &= others < lengths
                rule = "error"
        found = np.flatnonzero(is_unequal)
        if not len(found):
            continue
        if rule == "drop":
            is_kept[found] = False
            logger.warning(
                "%s: %d utterances are left out, since they are not as long as in %s: %s",
                corpus.name,
                len(found),
                lead.name,
                first_few((_key(joined, one) for one in found), len(found)),
            )
        if rule == "error" or strict:
            at = int(found[0])
            raise CorpusError(
                f"utterance {_key(joined, at)}: {others[at]} frames in {corpus.name}, but {lengths[at]} in {lead.name} "
                f"({len(found)} such utterances); unequal_lengths='drop' leaves them out"
            )
    return joined if is_kept.all() else _only(joined, is_kept)


def _key(table: SequenceTable, number: int | np.integer[Any]) -> str:
    key = table.keys[number]
    return key.decode(errors="replace") if isinstance(key, bytes) else str(key)


def _only(joined: JoinedTable, is_kept: npt.NDArray[np.bool_]) -> JoinedTable:
    if not is_kept.any():
        raise CorpusError("no utterance has the same length in all deserializers: nothing is left to read")
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_kept)])[joined.chunk_starts]
    sizes = np.diff(before)
    chunks = np.flatnonzero(sizes)
    return dataclasses.replace(
        joined,
        keys=joined.keys[is_kept],
        lengths=joined.lengths[is_kept],
        chunk_starts=np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[chunks])]),
        partners=tuple(partners[is_kept] for partners in joined.partners),
        first_chunks=joined.first_chunks[chunks],
    )


def _flags(
    corpora: Sequence[Corpus], table: SequenceTable, partners: tuple[npt.NDArray[np.uint32], ...] | None
) -> npt.NDArray[np.uint8] | None:
    flags = np.zeros(table.num_sequences, np.uint8)
    for number, corpus in enumerate(corpora):
        traits = corpus.utterances
        if traits is None:
            continue
        which = np.arange(table.num_sequences, dtype=np.uint32) if partners is None else partners[number]
        for mask, flag in ((traits.invalid, INVALID), (traits.broken, BROKEN)):
            if mask is not None:
                np.maximum(flags, mask[which] * np.uint8(flag), out=flags)
        if traits.broken is not None and not traits.is_literal:
            broken = np.flatnonzero(traits.broken[which])
            if len(broken):
                raise traits.complaint(int(which[broken[0]]))
    return flags if flags.any() else None

"""The utterances of joined corpora that fit: their lengths agree, and no corpus calls them invalid or broken.

An utterance of the wrong length is an error or is left out, as its corpus says (`Utterances.unequal_lengths`), or it is
skipped, as in CNTK's old reader (`Skipping`). An invalid or broken utterance stays in the table with a flag.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio.displays import counted
from cntkio.errors import CorpusError
from cntkio.formats.contract import Corpus
from cntkio.formats.report import NUM_IN_FULL, first_few, warn
from cntkio.formats.table import SequenceTable, key_text
from cntkio.hints import wording
from cntkio.source.join import JoinedTable, kept_chunks

INVALID, BROKEN = 1, 2
_UNEQUAL = "of another length in another stream"
_Partners = tuple[npt.NDArray[np.uint32], ...]


class Skipping(NamedTuple):
    """Skip unusable utterances instead of raising, as CNTK's old reader did.

    An utterance is unusable if another corpus lacks it or has it with a different length, or if it is too long.

    Attributes:
        longest: Frames of the longest utterance that is not skipped.
    """

    longest: int


def skip_unusable(
    joined: JoinedTable, corpora: Sequence[Corpus], skipping: Skipping, *, frame_mode: bool
) -> tuple[JoinedTable, dict[str, int]]:
    """Leave out unusable utterances, and log them.

    Returns:
        The usable utterances, and the number of skipped utterances, by kind.

    Raises:
        CorpusError: More than half of the utterances would be skipped.
    """
    missing = joined.left_out[0]
    lengths = corpora[0].table.lengths[joined.partners[0]]
    is_unequal = np.zeros(len(lengths), np.bool_)
    example = ""
    for corpus, partners in zip(corpora[1:], joined.partners[1:], strict=True):
        mask = _unequal(corpus, partners, lengths, frame_mode=frame_mode)
        if mask is not None:
            is_unequal |= mask
            for index in np.flatnonzero(mask)[: not example].tolist():
                example = (
                    f" (utterance {key_text(joined.keys[index])} has {lengths[index]} frames in {corpora[0].name}, and "
                    f"{corpus.table.lengths[partners[index]]} in {corpus.name})"
                )
    is_too_long = lengths > skipping.longest
    by_kind = {
        "missing in another stream": (missing.num_sequences, list(missing.first_keys)),
        _UNEQUAL: _count_and_keys(joined, is_unequal),
        f"longer than {skipping.longest} frames": _count_and_keys(joined, is_too_long & ~is_unequal),
    }
    by_kind = {kind: (count, keys) for kind, (count, keys) in by_kind.items() if count}
    name, total = corpora[0].name, corpora[0].table.num_sequences
    for kind, (count, keys) in by_kind.items():
        shown = example if kind == _UNEQUAL else ""
        skipped_keys = first_few(keys, count)
        warn("%s: %s skipped, %s: %s%s", name, counted(count, "utterance"), kind, skipped_keys, shown)
    skipped = {kind: count for kind, (count, _) in by_kind.items()}
    num_skipped = sum(skipped.values())
    if 2 * num_skipped > total:
        raise CorpusError(
            f"{name}: {num_skipped} of {total} utterances would be skipped, more than half of them: "
            + ", ".join(f"{count} {kind} (first {keys[0]})" for kind, (count, keys) in by_kind.items())
        )
    return _only(joined, ~(is_unequal | is_too_long)), skipped


def judge_lengths(joined: JoinedTable, corpora: Sequence[Corpus], *, frame_mode: bool, strict: bool) -> JoinedTable:
    """Leave out utterances that are not as long in a later corpus as in the first, if the later corpus allows that.

    Raises:
        CorpusError: Lengths differ, and the later corpus treats that as an error, or `strict` is set.
    """
    if corpora[0].utterances is None:
        return joined
    lengths = corpora[0].table.lengths[joined.partners[0]]
    is_kept = np.ones(len(lengths), np.bool_)
    for corpus, partners in zip(corpora[1:], joined.partners[1:], strict=True):
        is_unequal = _unequal(corpus, partners, lengths, frame_mode=frame_mode)
        rule = "error" if corpus.utterances is None else corpus.utterances.unequal_lengths
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
            warn(
                "%s: %s left out, not as long as in %s: %s",
                corpus.name,
                counted(count, "utterance"),
                corpora[0].name,
                first_few(keys, count),
            )
        if rule != "drop" or strict:
            advised = wording().setting("unequal_lengths", "drop")
            raise CorpusError(
                f"utterance {keys[0]}: {own_lengths[is_unequal][0]} frames in {corpus.name}, but "
                f"{lengths[is_unequal][0]} in {corpora[0].name} ({counted(count, 'such utterance')}); {advised} leaves "
                f"them out"
            )
    return _only(joined, is_kept)


def flags_of(
    corpora: Sequence[Corpus], table: SequenceTable, partners: _Partners | None
) -> npt.NDArray[np.uint8] | None:
    """Return for each sequence 0, `INVALID` or `BROKEN`; None if all are sound.

    Raises:
        CntkIoError: An utterance is broken, and its corpus does not read exactly as CNTK 2.7 does.
    """
    flags = np.zeros(table.num_sequences, np.uint8)
    for corpus_index, corpus in enumerate(corpora):
        traits = corpus.utterances
        if traits is None:
            continue
        own = np.arange(table.num_sequences, dtype=np.uint32) if partners is None else partners[corpus_index]
        for mask, flag in ((traits.invalid, INVALID), (traits.broken, BROKEN)):
            if mask is not None:
                np.maximum(flags, mask[own] * np.uint8(flag), out=flags)
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
    traits = corpus.utterances
    if (traits is None and not frame_mode) or (traits is not None and traits.is_broadcast):
        return None
    is_unequal: npt.NDArray[np.bool_] = corpus.table.lengths[partners] != lengths
    for mask in (traits.invalid, traits.broken) if traits is not None else ():
        if mask is not None:
            is_unequal &= ~mask[partners]
    return is_unequal


def _count_and_keys(joined: JoinedTable, mask: npt.NDArray[np.bool_]) -> tuple[int, list[str]]:
    indices = np.flatnonzero(mask)
    return len(indices), list(map(key_text, joined.keys[indices[:NUM_IN_FULL]]))


def _only(joined: JoinedTable, is_kept: npt.NDArray[np.bool_]) -> JoinedTable:
    """Return the sequences that are kept. Chunks without a sequence are dropped."""
    if is_kept.all():
        return joined
    if not is_kept.any():
        raise CorpusError("no utterance has the same length in all deserializers: nothing is left to read")
    chunks, chunk_starts = kept_chunks(joined.chunk_starts, is_kept)
    return dataclasses.replace(
        joined,
        keys=joined.keys[is_kept],
        lengths=joined.lengths[is_kept],
        chunk_starts=chunk_starts,
        partners=tuple(partners[is_kept] for partners in joined.partners),
        first_chunks=joined.first_chunks[chunks],
    )

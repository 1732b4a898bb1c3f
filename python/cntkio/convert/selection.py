"""Selections of whole sequences for the writers: a part of a corpus, and several corpora one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio.convert.array_streams import pieces_of
from cntkio.convert.pieces import Piece, Pieces
from cntkio.errors import ConfigError, CorpusError
from cntkio.source import MinibatchSource
from cntkio.streams import StreamInformation


class Selected:
    """The `Writable` of some sequences of a corpus, or of all. The sequences of a source keep their keys.

    Args:
        data: As for `cntkio.write_ctf`; a source of at most one sweep.
        keep: For each sequence whether to write it; None: all.

    Example:
        >>> from cntkio.convert import joined
        >>> with Selected({"x": [[1], [2], [3]]}, np.array([True, False, True])).pieces() as pieces:
        ...     joined(pieces)["x"].values.tolist()
        [[1.0], [3.0]]
    """

    def __init__(self, data: Any, keep: npt.NDArray[np.bool_] | None = None) -> None:
        self._data, self._keep = data, keep
        self._source = data if isinstance(data, MinibatchSource) else None
        self._state = None if self._source is None else self._source.state_dict()

    @contextlib.contextmanager
    def pieces(self) -> Iterator[Pieces]:
        """Open the sequences. Each call begins anew."""
        if self._source is not None and self._state is not None:
            self._source.load_state_dict(self._state)  # a source continues where the last call ended
        with pieces_of(self._data) as pieces:
            repeats_keys = pieces.repeats_keys and self._source is None
            each = pieces.pieces if self._keep is None else _kept(pieces.pieces, self._keep)
            yield pieces._replace(pieces=each, repeats_keys=repeats_keys)


def _kept(pieces: Iterable[Piece], keep: npt.NDArray[np.bool_]) -> Iterator[Piece]:
    first = 0
    for piece in pieces:
        last = first + piece.chunk.num_sequences
        which = np.flatnonzero(keep[first:last]).astype(np.uint32)
        first = last
        yield Piece(
            piece.chunk.only(which),
            None if piece.keys is None else piece.keys[which],
            None if piece.lengths is None else piece.lengths[which],
        )


class Merged:
    """The `Writable` of several corpora with the same streams, one after the other. Their keys are not kept.

    Example:
        >>> from cntkio.convert import joined
        >>> with Merged([{"x": [[1], [2]]}, {"x": [[3]]}]).pieces() as pieces:
        ...     joined(pieces)["x"].values.tolist()
        [[1.0], [2.0], [3.0]]
    """

    def __init__(self, corpora: Sequence[Any]) -> None:
        self._corpora = corpora

    @contextlib.contextmanager
    def pieces(self) -> Iterator[Pieces]:
        """Open the sequences. Each call begins anew."""
        with ExitStack() as stack:
            opened = [stack.enter_context(pieces_of(corpus)) for corpus in self._corpora]
            for other in opened[1:]:
                _require_same(opened[0], other)
            pieces = (Piece(piece.chunk, None, piece.lengths) for each in opened for piece in each.pieces)
            yield opened[0]._replace(
                pieces=pieces, total=sum(each.total for each in opened), has_text_keys=False, repeats_keys=True
            )


def _require_same(first: Pieces, other: Pieces) -> None:
    forms = [[_form(info) for info in pieces.streams] for pieces in (first, other)]
    if forms[0] != forms[1]:
        raise CorpusError(
            f"{other.name} has the streams {', '.join(forms[1])}, but {first.name} has {', '.join(forms[0])}; expected "
            "the same streams in the same order: name them for all files"
        )


def _form(info: StreamInformation) -> str:
    return f"{info.name} ({info.storage_format}, dimension {info.dim}, {info.dtype})"


def divided(num_sequences: int, shares: Sequence[float | int], seed: int) -> list[npt.NDArray[np.bool_]]:
    """Divide sequences at random; the same seed makes the same parts.

    Args:
        num_sequences: Number of all sequences.
        shares: For each part its share of the sequences, or their number. Sequences may be left over.
        seed: Any whole number.

    Returns:
        For each part, and each sequence, whether the sequence is in the part.

    Raises:
        ConfigError: There are not enough sequences.

    Example:
        >>> [int(part.sum()) for part in divided(10, [0.7, 0.3], 0)]
        [7, 3]
    """
    ends = np.cumsum([share if isinstance(share, int) else share * num_sequences for share in shares])
    cuts = [0, *np.rint(ends).astype(np.int64).tolist()]
    if cuts[-1] > num_sequences:
        raise ConfigError(f"{cuts[-1]:,} sequences are requested, but there are {num_sequences:,}", key="sample")
    rank = np.random.default_rng(seed).permutation(num_sequences)
    return [(first <= rank) & (rank < last) for first, last in pairwise(cuts)]

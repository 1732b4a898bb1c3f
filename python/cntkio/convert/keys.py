"""Keys of sequences on their way to a file: kept, or numbered from 0 and listed in a file of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from cntkio.convert.pieces import AnyPath, Piece, Pieces
from cntkio.errors import CorpusError
from cntkio.formats.output_file import written_whole


@contextlib.contextmanager
def keys_of(corpus: Pieces, renumber: bool, keys_file: AnyPath | None) -> Iterator[Keys]:
    """Open the keys of a corpus, and the file that lists them, which appears when the block ends.

    Raises:
        CorpusError: The sequences have no keys to list.
        OSError: The file cannot be written.
    """
    if keys_file is None:
        yield Keys(corpus, renumber or corpus.repeats_keys, None)
        return
    with written_whole(keys_file) as listed:
        yield Keys(corpus, True, listed)


class Keys:
    """The keys with which sequences are written, piece after piece.

    Args:
        corpus: The sequences.
        renumber: Number the sequences from 0.
        listed: A file for the keys that the sequences had, one on each line; None: none.
    """

    def __init__(self, corpus: Pieces, renumber: bool, listed: BinaryIO | None) -> None:
        self._corpus = corpus
        self._renumber = renumber
        self._listed = listed
        self._last: int | None = None
        self.num_sequences = 0

    def of(self, piece: Piece) -> npt.NDArray[np.uint64]:
        """Return the numbers with which the sequences of the next piece are written.

        Raises:
            CorpusError: A key is not a whole number from 0, or two neighbouring sequences have the same key.
        """
        first, count = self.num_sequences, piece.chunk.num_sequences
        self.num_sequences += count
        if self._listed is not None:
            self._list(piece)
        if piece.keys is None or self._renumber:
            return np.arange(first, first + count, dtype=np.uint64)
        keys = self._numbers(piece.keys)
        if (count and keys[0] == self._last) or bool(np.any(keys[1:] == keys[:-1])):
            raise CorpusError(
                f"{self._corpus.name}: two neighbouring sequences have the same key, so the text would join "
                "them; expected different keys, or renumber=True to number the sequences"
            )
        self._last = int(keys[-1]) if count else self._last
        return keys

    def _numbers(self, keys: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        wrong = keys[keys < 0] if keys.dtype.kind == "i" else keys[: 0 if keys.dtype.kind == "u" else 1]
        if len(wrong):
            key = wrong.tolist()[0] if wrong.dtype.kind != "S" else wrong[0].decode("utf-8", "backslashreplace")
            raise CorpusError(
                f"{self._corpus.name}: the key {key!r} is not a whole number from 0, as a line of text "
                "needs; expected keys_file=FILE to number the sequences and list their keys, or renumber=True"
            )
        return keys.astype(np.uint64)

    def _list(self, piece: Piece) -> None:
        assert self._listed is not None
        if piece.keys is None:
            raise CorpusError(f"{self._corpus.name}: the sequences have no keys to list in keys_file")
        texts = piece.keys if piece.keys.dtype.kind == "S" else np.strings.encode(piece.keys.astype(np.str_), "utf-8")
        self._listed.write(b"".join(key + b"\n" for key in texts.tolist()))

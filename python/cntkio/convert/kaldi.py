"""Whole archives of Kaldi as arrays, and archives from anything that can be written. (docs/formats/kaldi.md)"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio.convert.array_streams import pieces_of
from cntkio.convert.arrays import read_corpus
from cntkio.convert.pieces import Pieces, Progress
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats.file_lists import FileNames
from cntkio.formats.kaldi import KaldiDeserializer
from cntkio.formats.output_file import AnyPath, written_whole
from cntkio.formats.table import key_value
from cntkio.hints import suggests_keywords, there_are
from cntkio.minibatch import Minibatch


def read_kaldi(path: FileNames, **options: Any) -> Minibatch:
    """Read archives, lists or maps of Kaldi into arrays, in their order.

    Args:
        path: The file; or several, a pattern or a list, as for `KaldiDeserializer`.
        options: As for `KaldiDeserializer`.

    Returns:
        All sequences; `keys_of_sequences` has the utterances.

    Raises:
        ConfigError: An option is not possible.
        FormatError: A file breaks its format.
        OSError: A file cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "ali.txt")
        >>> _ = path.write_text("u1 0 0 2\\nu2 1\\n")
        >>> data = read_kaldi(path, as_class_ids=True)
        >>> data["labels"].values, data["labels"].offsets
        (array([0, 0, 2, 1], dtype=int32), array([0, 3, 4]))
    """
    with closing(KaldiDeserializer(path, **options).open()) as corpus:
        return read_corpus(corpus)


@suggests_keywords
def write_kaldi(
    path: AnyPath,
    data: Any,
    *,
    scp: AnyPath | None = None,
    stream: str | None = None,
    text: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write an archive of Kaldi, with bounded memory. The file appears under its name when it is complete.

    Dense samples become matrices, in float64 if they are float64; one-hot samples become vectors of whole numbers.

    Args:
        path: The archive.
        data: As for `write_cbf`.
        scp: The list to write with it; it names the archive by `path`. None: no list.
        stream: The stream to write; None: the only one.
        text: Whether to write text, in which numbers are the shortest that read back to the same bits.
        progress: As for `write_cbf`.

    Raises:
        ConfigError: The data have no such stream, or several.
        CorpusError: The data have no sequence.
        FormatError: A sparse sample is not one-hot, or a key is empty or has blanks.
        OSError: A file cannot be read or written.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> write_kaldi(folder / "a.ark", {"x": np.float32([[1, 2], [3, 4]])}, text=True)
        >>> (folder / "a.ark").read_text().splitlines()
        ['0  [', '  1.0 2.0 ]', '1  [', '  3.0 4.0 ]']
    """
    num_sequences = size = 0
    name = os.fsencode(path)
    with pieces_of(data) as corpus, ExitStack() as stack:
        column = _column(corpus, stream)
        listed = None if scp is None else stack.enter_context(written_whole(scp))
        archive = stack.enter_context(written_whole(path))  # it appears before the list that names it
        for piece in corpus.reported(progress):
            count = piece.chunk.num_sequences
            keys = _texts(np.arange(num_sequences, num_sequences + count) if piece.keys is None else piece.keys)
            rows = np.ascontiguousarray(keys).view(np.uint8)
            written, offsets, wrong = _core.kaldi_write(piece.chunk, rows, keys.dtype.itemsize, column, text)
            if wrong is not None:
                what = "a sample that is not one-hot, or a key that is empty or has blanks; expected neither"
                raise FormatError(what, path=corpus.name, sequence=key_value(keys[wrong]))
            archive.write(written.data)
            if listed is not None and count:
                places = np.char.mod(b"%d", offsets.astype(np.int64) + size)
                lines = np.char.add(np.char.add(keys, b" " + name + b":"), places)
                listed.write(b"\n".join(lines.tolist()) + b"\n")
            num_sequences += count
            size += len(written)
        if num_sequences == 0:
            raise CorpusError(f"{corpus.name}: no sequence to write")


def _texts(keys: npt.NDArray[Any]) -> npt.NDArray[np.bytes_]:
    if keys.dtype.kind == "S":
        return keys
    return np.char.encode(keys.astype(str), "utf-8") if keys.dtype.kind == "U" else np.char.mod(b"%d", keys)


def _column(corpus: Pieces, name: str | None) -> int:
    names = [info.name for info in corpus.streams]
    if name is None and len(names) != 1:
        raise ConfigError(
            f"{corpus.name} has {len(names)} streams, and an archive has one{there_are('stream', names)}", key="stream"
        )
    if name is not None and name not in names:
        raise ConfigError(f"{corpus.name} has no stream {name!r}{there_are(name, names)}", key="stream")
    return 0 if name is None else names.index(name)

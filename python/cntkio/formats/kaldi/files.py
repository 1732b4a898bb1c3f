"""Whole archives of Kaldi: into arrays, and from anything that can be written."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Unpack

import numpy as np

from cntkio import _core
from cntkio.arguments import suggests_keywords, there_are
from cntkio.errors import ConfigError, FormatError
from cntkio.formats.kaldi.corpus import KaldiDeserializer
from cntkio.formats.names import FileNames, located_file
from cntkio.formats.output_file import AnyPath, written_whole
from cntkio.formats.remote import Remote
from cntkio.formats.table import key_value
from cntkio.minibatch import Minibatch
from cntkio.pieces import Files, Progress, key_texts, pieces_of, read_corpus, write_several


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
    with contextlib.closing(KaldiDeserializer(path, **options).open()) as corpus:
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
    remote: Remote | None = None,
    **files: Unpack[Files],
) -> None:
    """Write an archive of Kaldi, with bounded memory. The file appears under its name when it is complete.

    Dense samples become matrices, in float64 if they are float64; one-hot samples become vectors of whole numbers.

    Args:
        path: The archive.
        data: As for `write_cbf`.
        scp: The list to write with it, in the same store; it names the archive by `path`. None: no list.
        stream: The stream to write; None: the only one.
        text: Whether to write text, in which numbers are the shortest that read back to the same bits.
        progress: As for `write_cbf`.
        remote: As for `write_cbf`.
        files: To write several files: the keywords of `Files`.

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
    path, remote = located_file("path", path, remote)
    if files:
        options = {"scp": scp, "stream": stream, "text": text}
        write_several(write_kaldi, path, pieces_of(data), files, progress, remote, **options)
        return
    name, size = os.fsencode(path), 0
    with pieces_of(data) as corpus, contextlib.ExitStack() as stack:
        names = [info.name for info in corpus.streams]
        if stream is None and len(names) != 1:
            what = f"{corpus.name} has {len(names)} streams, and an archive has one{there_are('stream', names)}"
            raise ConfigError(what, key="stream")
        column = corpus.column(stream or names[0], "stream")
        listed = None if scp is None else stack.enter_context(written_whole(scp, remote=remote))
        archive = stack.enter_context(written_whole(path, remote=remote))  # it appears before the list that names it
        for first, piece in corpus.written(progress):
            count = piece.chunk.num_sequences
            keys = key_texts(np.arange(first, first + count) if piece.keys is None else piece.keys)
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
            size += len(written)

"""Writing of Kaldi's archives and their lists. (docs/formats/kaldi.md)"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Unpack

import numpy as np

import cntkio._core as _core
from cntkio.arguments import caller, suggests_keywords, there_are
from cntkio.errors import ConfigError, FormatError
from cntkio.formats.arrays import pieces_of
from cntkio.formats.pieces import Classes, Files, Pieces, Progress
from cntkio.formats.table import Keys
from cntkio.formats.written_files import write_pieces
from cntkio.storage.output_file import AnyPath, written_whole
from cntkio.storage.remote import Remote
from cntkio.streams import StreamInformation


@suggests_keywords
def write_kaldi(
    path: AnyPath,
    data: Any,
    *,
    scp: AnyPath | None = None,
    stream: str | None = None,
    text: bool = False,
    one_hot: Mapping[str, Classes] | None = None,
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
        one_hot: As for `write_cbf`.
        text: Whether to write text, in which numbers are the shortest that read back to the same bits.
        progress: As for `write_cbf`.
        remote: As for `write_cbf`.
        files: To write several files: the keywords of `Files`.

    Raises:
        ConfigError: The data have no such stream, or several.
        CorpusError: The data have no sequence.
        FormatError: A sparse sample is not one-hot, a key is empty or has blanks, or whole numbers are not in int32, or
            several in a sample.
        OSError: A file cannot be read or written.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> write_kaldi(folder / "a.ark", {"x": np.float32([[1, 2], [3, 4]])}, text=True)
        >>> (folder / "a.ark").read_text().splitlines()
        ['0  [', '  1.0 2.0 ]', '1  [', '  3.0 4.0 ]']
    """
    options = {"scp": scp, "stream": stream, "text": text}
    write_pieces(write_kaldi_file, path, pieces_of(data, one_hot=one_hot), files, progress, remote, **options)


def write_kaldi_file(
    path: str, corpus: Pieces, progress: Progress | None, remote: Remote | None, scp: AnyPath | None = None,
    stream: str | None = None, text: bool = False,
) -> None:  # fmt: skip
    """Write an archive, for `write_pieces`."""
    name, size = os.fsencode(path), 0
    with ExitStack() as stack:
        names = [info.name for info in corpus.streams]
        if stream is None and len(names) != 1:
            what = f"{corpus.name} has {len(names)} streams, and an archive has one{there_are('stream', names)}"
            raise ConfigError(what, key="stream")
        column = corpus.column(stream or names[0], "stream")
        listed = None if scp is None else stack.enter_context(written_whole(scp, remote=remote))
        archive = stack.enter_context(written_whole(path, remote=remote))  # it appears before the list that names it
        for first, piece in corpus.written(progress):
            count = piece.chunk.num_sequences
            named = Keys(range(first, first + count)) if piece.keys is None else piece.keys
            keys = named.words()
            rows = np.ascontiguousarray(keys).view(np.uint8)
            written = _core.kaldi_write(piece.chunk, rows, keys.dtype.itemsize, column, text)
            if (wrong := written.unwritable) is not None:
                info = corpus.streams[column]
                what = _why_not(info, bytes(keys[wrong]))
                raise FormatError(what, path=corpus.name, sequence=named[wrong], stream=info.name)
            archive.write(written.bytes.data)
            if listed is not None and count:
                places = np.char.mod(b"%d", written.offsets.astype(np.int64) + size)
                lines = np.char.add(np.char.add(keys, b" " + name + b":"), places)
                listed.write(b"\n".join(lines.tolist()) + b"\n")
            size += len(written.bytes)


def _why_not(info: StreamInformation, key: bytes) -> str:
    """Return why a sequence with this key cannot be written."""
    if key.split() != [key]:
        return "the key is empty or has blanks; expected a word"
    if info.is_sparse:
        return "a sample that is not one-hot; expected a single entry with the value 1"
    what = "a whole number that is not in int32" if info.dim == 1 else f"samples of {info.dim} whole numbers"
    doubles = f"{caller().words.setting('dtype', 'float64')} for a table, .astype(float) for an array"
    return f"{what}, which an archive has only as floats: read it as float64 ({doubles})"

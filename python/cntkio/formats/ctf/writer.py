"""Writing of the text format; and of single sequences, as `cntk.io` does. (docs/convert.md)"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Unpack

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._threads import num_threads
from cntkio.arguments import caller, suggests_keywords, whole_number
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats.arrays import pieces_of
from cntkio.formats.pieces import SEQUENCES_PER_CORE, Classes, Files, Piece, Pieces, Progress
from cntkio.formats.table import Keys
from cntkio.formats.written_files import Compression, compressed, compression_of, write_pieces
from cntkio.storage.output_file import AnyPath, written_whole
from cntkio.storage.remote import Remote


def _with_keys(
    corpus: Pieces, renumber: bool, listed: BinaryIO | None, progress: Progress | None
) -> Iterator[tuple[Piece, npt.NDArray[np.uint64]]]:
    """Yield the pieces, and the numbers with which their sequences are written: their keys, or from 0 on.

    Args:
        listed: A file for the keys that the sequences had, one on each line; None: none.
    """
    last: int | None = None
    for first, piece in corpus.written(progress):
        count = piece.chunk.num_sequences
        if listed is not None:
            if piece.keys is None:
                what = f"the sequences have no keys to list in {caller().words.flag('keys_file')}"
                raise CorpusError(f"{corpus.name}: {what}")
            listed.write(b"".join(key + b"\n" for key in piece.keys.words().tolist()))
        # A source repeats its keys in each sweep, and `keys_file` needs lines that count from 0.
        if piece.keys is None or renumber or corpus.repeats_keys or listed is not None:
            yield piece, np.arange(first, first + count, dtype=np.uint64)
            continue
        keys = _numbers(corpus, piece.keys)
        # A text joins neighbouring lines with the same key, also where two pieces meet.
        if (count and keys[0] == last) or bool(np.any(keys[1:] == keys[:-1])):
            what = "two neighbouring sequences have the same key, so the text would join them; expected different keys"
            renumbered = caller().words.setting("renumber", True)
            raise CorpusError(f"{corpus.name}: {what}, or {renumbered} to number the sequences")
        # A selection may leave pieces without a sequence.
        last = int(keys[-1]) if count else last
        yield piece, keys


def _numbers(corpus: Pieces, keys: Keys) -> npt.NDArray[np.uint64]:
    if keys.are_words and len(keys):
        # Words that are whole numbers in their only spelling are ids of a text.
        words = keys.words().tolist()
        if not all(map(_ID.fullmatch, words)) or max(map(int, words)) >= 2**64:
            # The other words are wrong, too, so the first one is named.
            what = f"the key {keys[0]!r} is not a whole number from 0, as a line of text needs"
            listed, renumbered = caller().words.setting("keys_file", "FILE"), caller().words.setting("renumber", True)
            advice = f"expected {listed} to number the sequences and list their keys, or {renumbered}"
            raise CorpusError(f"{corpus.name}: {what}; {advice}")
        return np.array(words, np.uint64)
    numbers: npt.NDArray[np.uint64] = keys[:]
    return numbers


_ID = re.compile(rb"0|[1-9][0-9]{0,19}")
# Printable ASCII without the pipe, which comes between `{` and `}`.
_TEXT_NAME = re.compile(r"[!-{}~][!-{}~]*")
_INEXPRESSIBLE = ", which the text format cannot express"


@suggests_keywords
def write_ctf(
    path: AnyPath, data: Any, *, order: Sequence[str] | None = None, one_hot: Mapping[str, Classes] | None = None,
    renumber: bool = False, keys_file: AnyPath | None = None, compress: Compression | None = None,
    progress: Progress | None = None, remote: Remote | None = None, **files: Unpack[Files],
) -> None:  # fmt: skip
    """Write a file in the CNTK text format, with bounded memory. The file appears under its name when it is complete.

    Every line begins with the key of its sequence, or with its index from 0 if the sequences have no keys (as in
    arrays) or may repeat them (as in a source). Numbers are the shortest that read back to the same bits; whole
    numbers up to 2^53 stay whole numbers.

    Args:
        path: The file.
        data: As for `write_cbf`. So are `order`, `one_hot`, `progress`, `remote` and `files`.
        renumber: Begin lines with the index of the sequence from 0, whatever the keys are.
        keys_file: Renumber, and write the keys to this file, in the same store: line n, from 0, is the key of sequence
            n.
        compress: ``"gzip"``, ``"zstd"`` (frames of 4 MB with a seek table) or ``"none"``; None: as the extension of
            the name says: ``.gz``, ``.zst`` or anything else.

    Raises:
        ConfigError: A name is invalid, or the arrays do not form a corpus.
        CorpusError: The data have no sequence, streams have different numbers of sequences, a key is not a whole number
            from 0, two neighbouring sequences have the same key, or a whole number is not exact in float64.
        FormatError: The input breaks its format, or the text format cannot express it: a value is not finite, or a
            sequence has no sample.
        OSError: A file cannot be read or written.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.ctf")
        >>> write_ctf(path, {"x": [np.float32([[1, 0.1]]), np.float32([[2, 3], [4, 5]])], "y": np.array([7, 8])})
        >>> path.read_text().splitlines()
        ['0\\t|x 1 0.1 |y 7', '1\\t|x 2 3 |y 8', '1\\t|x 4 5']
    """
    options = {"order": order, "renumber": renumber, "keys_file": keys_file, "compress": compress}
    write_pieces(write_ctf_file, path, pieces_of(data, one_hot=one_hot), files, progress, remote, **options)


def write_ctf_file(
    path: str, corpus: Pieces, progress: Progress | None, remote: Remote | None, order: Sequence[str] | None = None,
    renumber: bool = False, keys_file: AnyPath | None = None, compress: Compression | None = None,
) -> None:  # fmt: skip
    """Write a file, for `write_pieces`."""
    compression = compression_of(path, compress)
    with (
        written_whole(path, remote=remote) as whole,
        compressed(whole, compression) as file,
        contextlib.nullcontext() if keys_file is None else written_whole(keys_file, remote=remote) as listed,
    ):
        infos = [(column, corpus.streams[column]) for column in corpus.columns(order)]
        streams = [(column, text_name(info.name), info.are_class_ids) for column, info in infos]
        for piece, keys in _with_keys(corpus, renumber, listed, progress):
            texts, unwritable = _core.text_write(piece.chunk, 0, keys, streams, num_threads(), SEQUENCES_PER_CORE)
            if unwritable is not None:
                column = unwritable.stream
                what = "the sequence has no sample" if column is None else f"the value {unwritable.value}"
                key, name = int(keys[unwritable.sequence]), None if column is None else infos[column][1].name
                raise FormatError(f"{what}{_INEXPRESSIBLE}", path=corpus.name, sequence=key, stream=name)
            for text in texts:
                file.write(text.data)


def text_name(name: str) -> bytes:
    """Return the name of a stream as bytes. Refuse a name that the text format cannot express."""
    if not _TEXT_NAME.fullmatch(name) or name.startswith("#"):
        expected = "printable ASCII without spaces and pipes, not beginning with '#'; rename the column or stream"
        what = f"the text format cannot express this name; expected {expected}"
        raise ConfigError(f"stream {name!r}: {what}", key=name)
    return name.encode("ascii")


def sequence_to_cntk_text_format(seq_idx: int, alias_tensor_map: Mapping[str, Any]) -> str:
    """Convert one sequence to lines of the CNTK text format, as the function of this name in `cntk.io` does.

    Args:
        seq_idx: Number at the beginning of each line.
        alias_tensor_map: For each input's name a dense array with the sequence as its first axis (or nested lists of
            numbers), or a list of dictionaries from index to value, one for each sample.

    Returns:
        The lines, without a line feed at the end; an empty text if the sequence has no sample.

    Raises:
        ConfigError: There is no input, an input has a different type, or a value is not finite, which the format cannot
            express.

    Example:
        >>> import numpy as np
        >>> sequence_to_cntk_text_format(3, {"x": np.float32([[1, 2], [3, 0.5]]), "y": [{7: 1, 2: 0.5}]})
        '3\\t|x 1.0 2.0 |y 2:0.5 7:1\\n3\\t|x 3.0 0.5'
    """
    if not alias_tensor_map:
        raise ConfigError("alias_tensor_map is empty; expected at least one input", key="alias_tensor_map")
    seq_idx = whole_number("seq_idx", seq_idx)
    columns = {}
    # CNTK's function sorts the inputs by name, too.
    for name, samples in sorted(alias_tensor_map.items()):
        if isinstance(samples, list) and samples and all(isinstance(sample, Mapping) for sample in samples):
            columns[name] = [_sparse_text(name, sample) for sample in samples]
        elif isinstance(samples, np.ndarray | list | tuple):
            columns[name] = _dense_texts(name, np.asarray(samples))
        else:
            what = f"expected an array, lists of numbers or a list of dictionaries, not a {type(samples).__name__}"
            raise ConfigError(f"input {name!r}: {what}", key=name)
    named = [[f"|{name} {text}" for text in texts] for name, texts in columns.items()]
    # Inputs may have different numbers of samples.
    return "\n".join(f"{seq_idx}\t{' '.join(filter(None, parts))}" for parts in itertools.zip_longest(*named))


def _dense_texts(name: str, values: npt.NDArray[Any]) -> list[str]:
    if values.size and (values.ndim == 0 or values.dtype.kind not in "fiub"):
        what = f"an array of {values.dtype} of shape {values.shape}; expected numbers"
        raise ConfigError(f"input {name!r}: {what}", key=name)
    _require_finite(name, values)
    rows = values.reshape(len(values), -1) if values.size else values
    # NumPy's text of the numbers, such as 1.0 and 1e-08, is what CNTK's function writes.
    return [" ".join(row.astype(str)) for row in rows]


def _sparse_text(name: str, sample: Mapping[int, Any]) -> str:
    _require_finite(name, np.fromiter(sample.values(), np.float64, len(sample)))
    return " ".join(f"{index}:{value!s}" for index, value in sorted(sample.items()))


def _require_finite(name: str, values: npt.NDArray[Any]) -> None:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ConfigError(f"input {name!r}: a value is not finite{_INEXPRESSIBLE}", key=name)

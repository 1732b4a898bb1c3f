"""Files in the CNTK text format from anything that can be written, and single sequences as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio._threads import num_threads
from cntkio.convert import tuning
from cntkio.convert.binary import columns_in_order
from cntkio.convert.compression import Compression, compressed, compression_of
from cntkio.convert.keys import keys_of
from cntkio.convert.pieces import AnyPath, Pieces, Progress
from cntkio.convert.writables import pieces_of
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats.output_file import written_whole
from cntkio.hints import suggests_keywords

_TEXT_NAME = re.compile(r"[!-{}~][!-{}~]*")


@suggests_keywords
def write_ctf(
    path: AnyPath,
    data: Any,
    *,
    order: Sequence[str] | None = None,
    one_hot: Mapping[str, int] | None = None,
    renumber: bool = False,
    keys_file: AnyPath | None = None,
    compress: Compression | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a file in the CNTK text format, with bounded memory. The file appears under its name when it is complete.

    Every line begins with the key of its sequence, or with its index from 0 if the sequences have no keys (as in
    arrays) or may repeat them (as in a source). Numbers are the shortest that read back to the same bits; whole
    numbers up to 2^53 stay whole numbers.

    Args:
        path: The file.
        data: As for `write_cbf`.
        order: The streams to write, in this order; None: all.
        one_hot: Streams of class ids in arrays, minibatches and tables, to write as one-hot streams, and their numbers
            of classes. An array ``[sequences, samples]`` has sequences of equal length.
        renumber: Begin lines with the index of the sequence from 0, whatever the keys are.
        keys_file: Renumber, and write the keys to this file: line n, from 0, is the key of sequence n.
        compress: ``"gzip"``, ``"zstd"`` (frames of 4 MB with a seek table) or ``"none"``; None: as the extension of
            the name says: ``.gz``, ``.zst`` or anything else.
        progress: Function that is called with the number of pieces done, and their total.

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
    compression = compression_of(path, compress)
    with (
        pieces_of(data, one_hot=one_hot) as corpus,
        written_whole(path) as whole,
        compressed(whole, compression) as file,
        keys_of(corpus, renumber, keys_file) as all_keys,
    ):
        streams = [(column, text_name(corpus.streams[column].name)) for column in columns_in_order(corpus, order)]
        for piece in corpus.reported(progress):
            keys = all_keys.of(piece)
            texts, unwritable = _core.text_write(
                piece.chunk, 0, keys, streams, num_threads(), tuning.SEQUENCES_PER_CORE
            )
            if unwritable is not None:
                raise _unwritable_error(corpus, streams, keys, unwritable)
            for text in texts:
                file.write(text.data)
        if all_keys.num_sequences == 0:
            raise CorpusError(f"{corpus.name}: no sequence to write")


def _unwritable_error(
    corpus: Pieces,
    streams: list[tuple[int, bytes]],
    keys: npt.NDArray[np.uint64],
    unwritable: tuple[int, tuple[int, float] | None],
) -> FormatError:
    sequence_index, value = unwritable
    location: dict[str, Any] = {"path": corpus.name, "sequence": int(keys[sequence_index])}
    if value is None:
        return FormatError("the sequence has no sample, which the text format cannot express", **location)
    stream = corpus.streams[streams[value[0]][0]].name
    return FormatError(f"the value {value[1]}, which the text format cannot express", **location, stream=stream)


def text_name(name: str) -> bytes:
    """Return the name of a stream as bytes.

    Raises:
        ConfigError: The text format cannot express the name.
    """
    if not _TEXT_NAME.fullmatch(name) or name.startswith("#"):
        raise ConfigError(
            f"stream {name!r}: the text format cannot express this name; expected printable ASCII without spaces and "
            "pipes, not beginning with '#'; rename the column or stream",
            key=name,
        )
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
        ValueError: An input has a different type, or a value is not finite, which the format cannot express.

    Example:
        >>> import numpy as np
        >>> sequence_to_cntk_text_format(3, {"x": np.float32([[1, 2], [3, 0.5]]), "y": [{7: 1, 2: 0.5}]})
        '3\\t|x 1.0 2.0 |y 2:0.5 7:1\\n3\\t|x 3.0 0.5'
    """
    columns = {}
    for name, samples in sorted(alias_tensor_map.items()):
        if isinstance(samples, list) and samples and all(isinstance(sample, Mapping) for sample in samples):
            columns[name] = [_sparse_text(name, sample) for sample in samples]
        elif isinstance(samples, np.ndarray | list | tuple):
            columns[name] = _dense_texts(name, np.asarray(samples))
        else:
            what = f"expected an array, lists of numbers or a list of dictionaries, not a {type(samples).__name__}"
            raise ConfigError(f"input {name!r}: {what}", key=name)
    lines = []
    for sample in range(max(map(len, columns.values()), default=0)):
        parts = [f"|{name} {texts[sample]}" for name, texts in columns.items() if sample < len(texts)]
        lines.append(f"{seq_idx}\t{' '.join(parts)}")
    return "\n".join(lines)


def _dense_texts(name: str, values: npt.NDArray[Any]) -> list[str]:
    if values.size and (values.ndim == 0 or values.dtype.kind not in "fiub"):
        raise ConfigError(
            f"input {name!r}: an array of {values.dtype} of shape {values.shape}; expected numbers", key=name
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ConfigError(f"input {name!r}: a value is not finite, which the text format cannot express", key=name)
    rows = values.reshape(len(values), -1) if values.size else values
    return [" ".join(row.astype(str)) for row in rows]


def _sparse_text(name: str, sample: Mapping[int, Any]) -> str:
    if not np.isfinite(np.fromiter(sample.values(), np.float64, len(sample))).all():
        raise ConfigError(f"input {name!r}: a value is not finite, which the text format cannot express", key=name)
    return " ".join(f"{index}:{value!s}" for index, value in sorted(sample.items()))

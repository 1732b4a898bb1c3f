"""Token and number files to the CNTK text format, as CNTK's scripts `txt2ctf.py` and `uci2ctf.py` do. (docs/convert.md)

The compiled core converts blocks of whole lines. This module checks options, and makes the errors about lines.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import BinaryIO, Literal

import cntkio._core as _core
from cntkio._core import Dictionary
from cntkio.arguments import caller, check_word
from cntkio.errors import ConfigError, FormatError
from cntkio.formats.ctf import text_name
from cntkio.formats.ctf.findings import NO_NUMBER
from cntkio.formats.pieces import Progress
from cntkio.formats.written_files import Compression, Sink, compressed, compression_of
from cntkio.storage.compressed import packing_of
from cntkio.storage.names import as_url
from cntkio.storage.open_input import content_of, open_stored
from cntkio.storage.output_file import AnyPath, written_whole
from cntkio.storage.text_input import unmarked

# Sizes by which an input is divided. They change memory and time, never a result.
BLOCK = 8 << 20
"""Bytes of a token or number file that are converted at a time."""
LONGEST_LINE = 256 << 20
"""Most bytes of a line of a token or number file; a packed file can hold a line of any size."""


def _inputs(
    sources: AnyPath | Sequence[AnyPath] | BinaryIO, progress: Progress | None
) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield each file, unpacked if it is compressed: its name for messages, and its blocks of whole lines."""
    done = total = 0

    def counted(blocks: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal done
        for block in blocks:
            yield block
            # After the block was converted, so that the progress counts finished work.
            done += len(block)
            if progress is not None:
                progress(done, total)

    if not isinstance(sources, str | os.PathLike | Sequence):
        name = "standard input"
        yield name, counted(unmarked(name, _whole_lines(name, iter(partial(sources.read, BLOCK), b""))))
        return
    names = [as_url(os.fspath(path)) for path in ([sources] if isinstance(sources, str | os.PathLike) else sources)]
    total = 0 if progress is None else sum(map(_known_size, names))
    for name in names:
        with contextlib.closing(content_of(name, size=BLOCK)) as pieces:
            yield name, counted(unmarked(name, _whole_lines(name, pieces)))


def _whole_lines(name: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest: list[bytes] = []  # of a line whose end is not read yet
    size = 0
    for block in pieces:
        end = block.rfind(b"\n") + 1
        if end:
            # The parts of a long line are joined once, when its end is read.
            yield b"".join([*rest, block[:end]])
            rest, size = [], 0
        rest.append(block[end:])
        size += len(rest[-1])
        if size > LONGEST_LINE:
            what = f"a line of more than {LONGEST_LINE:,} bytes, which is the limit; is this a text?"
            raise FormatError(what, path=name)
    if size:
        yield b"".join(rest)


def _known_size(path: str) -> int:
    """Return the number of bytes that will be read; 0 if it is not known."""
    with contextlib.closing(open_stored(path)) as file:
        # Blocks count unpacked bytes, and only unpacking shows how many there are.
        return file.size if packing_of(file) is None else 0


@contextlib.contextmanager
def output(target: AnyPath | BinaryIO, compress: Compression | None) -> Iterator[Sink]:
    """Open a file that appears under its name when it is complete, or flush an open file at the end."""
    if isinstance(target, str | os.PathLike):
        compression = compression_of(target, compress)
        with written_whole(target) as file, compressed(file, compression) as sink:
            yield sink
    else:
        # The name of an open file asks for no compression.
        with compressed(target, compression_of("", compress)) as sink:
            yield sink
        # The file belongs to the caller, so it is not closed.
        target.flush()


def read_dictionary(path: AnyPath) -> Dictionary:
    """Read a file in UTF-8 with one token per line."""
    name = as_url(os.fspath(path))
    try:
        return Dictionary(b"".join(unmarked(name, [b"".join(content_of(name))])).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise FormatError("bytes that are not UTF-8", path=path, byte=error.start) from None


logger = logging.getLogger("cntkio")

LabelType = Literal["Category", "Regression", "None"]


def txt_to_ctf(
    sources: AnyPath | Sequence[AnyPath] | BinaryIO, target: AnyPath | BinaryIO, dictionaries: Sequence[AnyPath], *,
    names: Sequence[str] | None = None, unknown: str | None = None, annotated: bool = False, strict: bool = False,
    compress: Compression | None = None, progress: Progress | None = None,
) -> int:  # fmt: skip
    """Convert token files to a text corpus, as CNTK's script `txt2ctf.py` does: lines to sequences, columns to streams.

    Tabs separate columns, and blanks the tokens of a column. A token becomes the index of its line in the column's
    dictionary. The numbers of sequences continue from file to file.

    Args:
        sources: Files or URLs, UTF-8, unpacked if they are compressed with gzip, zstd, bzip2 or xz; or an open file of
            bytes.
        target: The text; or an open file of bytes.
        dictionaries: A file for each column, with one token per line.
        names: A name for each column's stream; None: ``S0``, ``S1``, …
        unknown: Token that replaces tokens that are not in the dictionary; None: such a token is an error.
        annotated: Whether each sample is followed by a comment with its token.
        strict: Whether a column without a token, which CNTK's reader refuses, is an error instead of a warning.
        compress: Compression of the text: ``"gzip"``, ``"zstd"`` or ``"none"``; None: as the target's name says.
        progress: Function that is called with the number of bytes done, and their total.

    Returns:
        The number of sequences.

    Raises:
        ConfigError: An option is invalid.
        FormatError: A line has a different number of columns, or a token is not in its dictionary.
        OSError: A file cannot be read or written.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "words").write_text("the\\ncat\\nsat\\n")
        >>> _ = (folder / "a.txt").write_text("the cat\\nsat\\n")
        >>> txt_to_ctf([folder / "a.txt"], folder / "a.ctf", [folder / "words"], annotated=True)
        2
        >>> (folder / "a.ctf").read_text().splitlines()
        ['0\\t|S0 0:1 |# the', '0\\t|S0 1:1 |# cat', '1\\t|S0 2:1 |# sat']
    """
    stream_names = _stream_names(names, len(dictionaries))
    tokens = [read_dictionary(path) for path in dictionaries]
    num_sequences = num_empty = 0
    first_empty: FormatError | None = None  # the first column without a token
    expected = f"{len(tokens)}, one for each dictionary, with tabs between them"
    with output(target, compress) as out:
        for path, blocks in _inputs(sources, progress):
            num_lines = 0
            for block in blocks:
                made = _core.text_tokens(block, num_sequences, tokens, stream_names, unknown, annotated)
                if made.fault is not None:
                    raise _line_error(path, num_lines, made.fault, expected, "is not in the column's dictionary")
                num_empty += made.num_empty
                # Only the first is kept: one warning at the end names it, and their number.
                if made.first_empty is not None and first_empty is None:
                    what = "a column without a token: its stream has no sample in the sequence, so CNTK refuses it"
                    first_empty = FormatError(what, path=path, line=num_lines + made.first_empty + 1)
                    if strict:
                        raise first_empty
                out.write(made.text.data)
                num_lines += made.num_lines
                # CNTK's script begins with 0 in each file, so that lines of different files become one sequence.
                num_sequences += made.num_lines
    if first_empty is not None:
        logger.warning("%s (%d of them)", first_empty, num_empty)
    return num_sequences


def _stream_names(names: Sequence[str] | None, num_columns: int) -> list[bytes]:
    if num_columns == 0:
        raise ConfigError("no dictionary; expected one for each column", key="dictionaries")
    checked = [f"S{column}" for column in range(num_columns)] if names is None else list(names)
    if len(checked) != num_columns:
        what = f"{len(checked)} names, but {num_columns} dictionaries; expected a name for each"
        raise ConfigError(what, key="names")
    in_bytes = [text_name(name) for name in checked]
    if len(set(checked)) < len(checked):
        raise ConfigError(f"two columns have the same name: {checked}", key="names")
    return in_bytes


def uci_to_ctf(
    source: AnyPath | BinaryIO, target: AnyPath | BinaryIO, *, features_start: int, features_dim: int,
    label_type: LabelType = "Category", labels_start: int | None = None, labels_dim: int = 1,
    num_labels: int | None = None, mapping_file: AnyPath | None = None, sparse_labels: bool = False,
    delimiter: str | None = None, skip_header: bool = False, compress: Compression | None = None,
    progress: Progress | None = None,
) -> int:  # fmt: skip
    """Convert columns of numbers to ``|labels …`` and ``|features …`` in text, as CNTK's script `uci2ctf.py` does.

    Args:
        source: The file, its URL, or an open file of bytes, unpacked as for `txt_to_ctf`.
        target: The text; or an open file of bytes.
        features_start: The first column of features, from 0.
        features_dim: Number of columns of features.
        label_type: ``"Category"``: one column, written as a one-hot vector. ``"Regression"``: columns that are copied.
            ``"None"``: no labels.
        labels_start: The first column of labels, from 0.
        labels_dim: Number of columns of labels.
        num_labels: Number of categories; without a mapping file their names are ``0`` to ``num_labels - 1``.
        mapping_file: Names of the categories, one per line. The vector has a value for each name, and at least
            `num_labels` values.
        sparse_labels: Write a category as ``index:1``.
        delimiter: Separator of columns; None: white space.
        skip_header: Skip the first line.
        compress: As for `txt_to_ctf`. So is `progress`.

    Returns:
        The number of lines.

    Raises:
        ConfigError: The options contradict each other.
        FormatError: A line has too few columns, a value is not a number, or a category is not known.
        OSError: A file cannot be read or written.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.txt").write_text("0.5 1.25 2\\n3 4 0\\n")
        >>> options = {"features_start": 0, "features_dim": 2, "labels_start": 2, "num_labels": 3}
        >>> uci_to_ctf(folder / "a.txt", folder / "a.ctf", **options)
        2
        >>> (folder / "a.ctf").read_text().splitlines()
        ['|labels 0 0 1\\t|features 0.5 1.25', '|labels 1 0 0\\t|features 3 4']
    """
    if features_start < 0 or features_dim < 1:
        what = f"features_start={features_start} and features_dim={features_dim}; expected at least 0 and 1"
        raise ConfigError(what, key="features_start")
    check_word("label_type", label_type, "Category", "Regression", "None")
    features, labels, categories = (features_start, features_dim), None, None
    num_columns = features_start + features_dim
    if label_type != "None":
        start, dim = _label_columns(label_type, labels_start, labels_dim)
        categories = _categories(label_type, dim, num_labels, mapping_file, sparse_labels)
        begin, end = max(features_start, start), min(features_start + features_dim, start + dim)
        if begin < end:
            raise ConfigError(f"columns {begin} to {end - 1} are both labels and features", key="labels_start")
        labels = (start, dim)
        num_columns = max(num_columns, start + dim)
    if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii()):
        raise ConfigError(f"delimiter is {delimiter!r}; expected one ASCII character", key="delimiter")
    separator = None if delimiter is None else ord(delimiter)
    num_lines = 0
    with output(target, compress) as out:
        for path, blocks in _inputs(source, progress):
            for number, block in enumerate(blocks):
                # A block has whole lines, so the header is in the first block.
                rows = block.partition(b"\n")[2] if skip_header and not number else block
                made = _core.text_numbers(rows, features, labels, categories, separator)
                if (fault := made.fault) is not None:
                    line = rows.split(b"\n", fault.line + 1)[fault.line]
                    is_label = label_type == "Category" and fault.column == labels_start
                    unknown = _NO_CATEGORY if is_label else _NOT_A_NUMBER
                    if fault.token and NO_NUMBER.fullmatch(fault.token.encode()) and not is_label:
                        unknown += "; the format has no NaN and no infinity: write a number, or remove the line"
                    # Only the first line of the file can be a header, and a header has no numbers.
                    elif not (num_lines or fault.line or skip_header or _NUMBER.search(line)):
                        unknown += f"; if the first line is a header, set {caller().words.setting('skip_header', True)}"
                    needed = f"at least {num_columns}"
                    if separator is None and fault.num_columns is not None and b"," in line:
                        needed += f"; if commas separate the columns, set {caller().words.setting('delimiter', ',')}"
                    # The header was not passed to the core, but counts in the numbers of lines.
                    raise _line_error(path, num_lines + skip_header, fault, needed, unknown)
                out.write(made.text.data)
                num_lines += made.num_lines
    return num_lines


_NOT_A_NUMBER = "is not a number of the text format, such as -0.5 or 1e-3"
_NO_CATEGORY = "is not a category, 0 to num_labels - 1, or a name of the mapping file"
_NUMBER = re.compile(rb"(^|[\s,;|])[\"']?[+-]?\.?\d")


def _label_columns(label_type: LabelType, start: int | None, dim: int) -> tuple[int, int]:
    if start is None or start < 0:
        what = f"label_type is {label_type!r}, and labels_start is {start}; expected a column"
        raise ConfigError(what, key="labels_start")
    if dim < 1 or (label_type == "Category" and dim != 1):
        raise ConfigError(f"label_type is {label_type!r}, and labels_dim is {dim}; expected 1", key="labels_dim")
    return start, dim


def _categories(
    label_type: LabelType, dim: int, num_labels: int | None, mapping_file: AnyPath | None, is_sparse: bool
) -> _core.Categories | None:
    """Return the categories of labels; None: labels are numbers."""
    if label_type == "Regression":
        if num_labels is not None and num_labels > dim:
            raise ConfigError(f"num_labels={num_labels} is more than labels_dim={dim}", key="num_labels")
        return None
    if num_labels is None or not 1 <= num_labels < 2**31:
        what = f"label_type is 'Category', and num_labels is {num_labels}; expected at least 1"
        raise ConfigError(what, key="num_labels")
    numbers = map(str, range(num_labels))
    names = Dictionary("\n".join(numbers)) if mapping_file is None else read_dictionary(mapping_file)
    return _core.Categories(names, max(num_labels, len(names)), is_sparse)


def _line_error(path: str, first_line: int, fault: _core.UnreadLine, columns: str, unknown: str) -> FormatError:
    num_columns, token = fault.num_columns, fault.token
    what = "bytes that are not UTF-8" if token is None else f"column {fault.column}: {token!r} {unknown}"
    if num_columns is not None:
        what = f"{num_columns} column{'s' * (num_columns != 1)}; expected {columns}"
    return FormatError(what, path=path, line=first_line + fault.line + 1)

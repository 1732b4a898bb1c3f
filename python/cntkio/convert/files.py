"""Conversion between files of any format, which the bytes of the input and the name of the output show.

The functions `ctf_to_cbf` and `cbf_to_ctf` convert as CNTK's script ctf2bin.py does, and back.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any, NamedTuple, Unpack, cast

import numpy as np
import numpy.typing as npt

from cntkio import corpora
from cntkio.arguments import caller, calling, path_texts, suggests_keywords
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats.arrays import pieces_of
from cntkio.formats.cbf import CBFDeserializer, LayoutName, write_cbf
from cntkio.formats.contract import CHUNK_SIZE, Reading, ReadingOptions, with_defaults
from cntkio.formats.corpus import refuse_common_keys, without_empty
from cntkio.formats.ctf import CTFDeserializer, infer_streams, write_ctf
from cntkio.formats.detect import FileFormat, detect
from cntkio.formats.pieces import Files, Piece, Pieces, Progress, files_of, some_of
from cntkio.formats.report import Report
from cntkio.formats.table import Keys
from cntkio.formats.written_files import Compression, format_of_name, write_form
from cntkio.source import MinibatchSource
from cntkio.storage.names import FileNames
from cntkio.storage.open_input import whole_text
from cntkio.storage.output_file import AnyPath
from cntkio.storage.remote import Remote
from cntkio.streams import StreamDef, StreamDefs


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
        self._state = data.state_dict() if isinstance(data, MinibatchSource) else None

    def close(self) -> None:
        """Close the source, if the data are one."""
        if self._state is not None:
            self._data.close()

    @contextmanager
    def pieces(self) -> Iterator[Pieces]:
        if self._state is not None:
            self._data.load_state_dict(self._state)  # a source continues where the last call ended
        with pieces_of(self._data) as pieces:
            # The source has at most one sweep, so each key comes once.
            pieces = pieces._replace(repeats_keys=pieces.repeats_keys and self._state is None)
            if self._keep is not None:
                kept = _kept(pieces.pieces, self._keep)
                pieces = pieces._replace(pieces=kept, num_sequences=int(np.count_nonzero(self._keep)))
            yield pieces


def _kept(pieces: Iterable[Piece], keep: npt.NDArray[np.bool_]) -> Iterator[Piece]:
    first = 0
    for piece in pieces:
        last = first + piece.chunk.num_sequences
        yield some_of(piece, np.flatnonzero(keep[first:last]).astype(np.uint32))
        first = last


class Merged(NamedTuple):
    """The `Writable` of several corpora with the same streams, one after the other.

    Keys are kept, unless they count the sequences of each corpus, or one corpus has none.

    Attributes:
        corpora: The corpora.
        renumber: Number the sequences of all corpora instead.

    Example:
        >>> from cntkio.convert import joined
        >>> with Merged([{"x": [[1], [2]]}, {"x": [[3]]}]).pieces() as pieces:
        ...     joined(pieces)["x"].values.tolist()
        [[1.0], [2.0], [3.0]]
    """

    corpora: Sequence[Any]
    renumber: bool = False

    @contextmanager
    def pieces(self) -> Iterator[Pieces]:
        with ExitStack() as stack:
            opened = [
                *without_empty(self.corpora, lambda one: stack.enter_context(pieces_of(one)), Report("merge").leave_out)
            ]
            first, own = opened[0], _forms(opened[0])
            for other in opened[1:]:
                if (theirs := _forms(other)) != own:
                    what = f"{other.name} has the streams {', '.join(theirs)}, but {first.name} has {', '.join(own)}"
                    expected = "the same streams in the same order: name them for all files"
                    raise CorpusError(f"{what}; expected {expected}")
            counts = [each.num_sequences for each in opened if each.num_sequences is not None]
            count = sum(counts) if len(counts) == len(opened) else None
            total = sum(each.total for each in opened)
            if self.renumber or all(each.counts_keys for each in opened):
                pieces: Iterator[Piece] = (
                    Piece(piece.chunk, None, piece.lengths) for each in opened for piece in each.pieces
                )
                first = first._replace(has_text_keys=False, repeats_keys=True)
            else:
                _refuse_mixed_keys(opened)
                pieces = _with_different_keys(opened)
            log_rounded = [log for each in opened for log in each.log_rounded]
            yield first._replace(pieces=pieces, total=total, num_sequences=count, log_rounded=log_rounded)


def _refuse_mixed_keys(corpora: Sequence[Pieces]) -> None:
    kinds = ["no ids" if each.counts_keys else "words as ids" if each.has_text_keys else "ids" for each in corpora]
    other = next((number for number, kind in enumerate(kinds) if kind != kinds[0]), 0)
    if other:
        found = f"those of {corpora[other].name} have {kinds[other]}"
        found = f"the sequences of {corpora[0].name} have {kinds[0]}, but {found}"
        raise CorpusError(f"{found}; expected the same, or {caller().words.setting('renumber', True)}")


def _with_different_keys(corpora: Sequence[Pieces]) -> Iterator[Piece]:
    """Yield the sequences of all corpora. Refuse a key that two of them have."""
    filled = []
    for corpus in corpora:
        of_pieces: list[Keys] = []
        for piece in corpus.pieces:
            yield piece
            of_pieces += [piece.keys or Keys.of([])]
        if of_pieces:
            filled.append((corpus.name, Keys.joined(of_pieces), corpus.places))
    refuse_common_keys(filled, caller().words.setting("renumber", True))


def _forms(pieces: Pieces) -> list[str]:
    return [f"{info.name} ({info.storage_format}, dimension {info.dim}, {info.dtype})" for info in pieces.streams]


def divided(num_sequences: int, shares: Sequence[float | int], seed: int) -> list[npt.NDArray[np.bool_]]:
    """Divide sequences at random; the same seed makes the same parts.

    Args:
        num_sequences: Number of all sequences.
        shares: For each part its share of the sequences, or their number. Sequences may be left over.
        seed: Any whole number.

    Returns:
        For each part, and each sequence, whether the sequence is in the part.

    Example:
        >>> [int(part.sum()) for part in divided(10, [0.7, 0.3], 0)]
        [7, 3]
    """
    ends = np.cumsum([share if isinstance(share, int) else share * num_sequences for share in shares])
    # The ends are rounded, not the shares, so no sequence is lost between two parts.
    cuts = [0, *np.rint(ends).astype(np.int64).tolist()]
    if cuts[-1] > num_sequences:
        raise ConfigError(f"{cuts[-1]:,} sequences are requested, but there are {num_sequences:,}", key="sample")
    rank = np.random.default_rng(seed).permutation(num_sequences)
    return [(first <= rank) & (rank < last) for first, last in pairwise(cuts)]


def format_of(path: AnyPath) -> FileFormat:
    """Return the format of a corpus, by its first bytes; text if they belong to none of the other formats.

    Args:
        path: The corpus.

    Raises:
        OSError: The file cannot be read.

    Example:
        >>> format_of("examples/iris/iris.ctf")
        'ctf'
    """
    kind = detect(path)
    # A kind that cannot be written is left to the text reader, whose errors say what the file is.
    return cast(FileFormat, kind.form if kind.writer else "ctf")


@suggests_keywords
def convert_file(
    source: FileNames, target: AnyPath, *, to: FileFormat | None = None,
    streams: StreamDefs | Mapping[str, Any] | None = None, flat: Collection[str] | bool = False,
    ids: Collection[str] = (), renumber: bool = False, keys_file: AnyPath | None = None,
    compress: Compression | None = None, num_files: int | None = None, max_file_size: int | None = None,
    progress: Progress | None = None, remote: Remote | None = None, **reading: Unpack[Reading],
) -> None:  # fmt: skip
    """Convert a file of any format to text (CTF), a binary corpus (CBF), svmlight, Kaldi, Parquet or Arrow.

    Args:
        source: A text (CTF or svmlight), a binary corpus, a list of HTK features (scp), Kaldi, Parquet or Arrow; its
            content decides. Several files of one kind except for the last two are one corpus: a pattern or a list.
        target: The file to write.
        to: Its format; None: by its extension: ``.ctf``, ``.txt``, ``.cbf``, ``.bin``, ``.svm``, ``.svmlight``,
            ``.libsvm``, ``.ark``, ``.parquet``, ``.pq``, ``.arrow``, ``.feather`` or ``.ipc``.
        streams: The streams to read from a text or a binary corpus; for Parquet and Arrow the dimensions of columns
            whose types do not imply them; None: as the file shows them.
        flat: As for `cntkio.arrow.RecordBatches`, to write Parquet and Arrow. So is `ids`.
        renumber: As for `write_ctf`, to write text. So is `keys_file`.
        compress: As for `write_ctf`, to write text or svmlight.
        num_files: To write several files, as for `Files`. So is `max_file_size`.
        progress: As for `write_cbf`.
        remote: As for `write_cbf`; a source that is a URL is read with the same options.
        reading: How to read the source: the keywords of `Reading`.

    Raises:
        ConfigError: The format of a file or an option is invalid.
        CorpusError: The data do not fit the format to write.
        FormatError: The input breaks its format.
        OSError: A file cannot be read or written.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> convert_file("examples/iris/iris.ctf", folder / "iris.cbf")
        >>> convert_file(folder / "iris.cbf", folder / "again.txt")
        >>> (folder / "again.txt").read_text().splitlines()[0]
        '0\\t|lengths 5.1 3.5 1.4 0.2 |species 1 0 0'
    """
    with calling(remote=remote), ExitStack() as stack:
        corpus = corpus_of(source, StreamDefs(streams or {}), to=to or format_of_name(target), **reading)
        if isinstance(corpus, Selected):
            stack.callback(corpus.close)
        write_file(
            target, corpus, to=to, flat=flat, ids=ids, renumber=renumber, keys_file=keys_file, compress=compress,
            key=reading.get("key"), progress=progress, remote=remote, **files_of(num_files, max_file_size),
        )  # fmt: skip


def write_file(
    target: AnyPath, data: Any, *, to: FileFormat | None = None, flat: Collection[str] | bool = False,
    ids: Collection[str] = (), key: str | None = None, renumber: bool = False, keys_file: AnyPath | None = None,
    compress: Compression | None = None, layout: LayoutName = "2.x", chunk_size_in_bytes: int = CHUNK_SIZE,
    order: Sequence[str] | None = None, progress: Progress | None = None, remote: Remote | None = None,
    **files: Unpack[Files],
) -> None:  # fmt: skip
    """Write a corpus in the format that the name of the file implies.

    Args:
        target: The file.
        data: As for `write_cbf`.
        to: The format, as for `convert_file`. So are `flat`, `ids`, `renumber`, `keys_file` and `compress`.
        key: The column of keys, to write Parquet and Arrow; None: ``key``.
        layout: As for `write_cbf`. So are `chunk_size_in_bytes`, `order`, `progress` and `remote`.
        files: To write several files: the keywords of `Files`.

    Raises:
        ConfigError, CorpusError, FormatError, OSError: See `convert_file`.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.ctf")
        >>> write_file(path, {"x": [[1, 2], [3, 4]]})
        >>> path.read_text().splitlines()
        ['0\\t|x 1', '0\\t|x 2', '1\\t|x 3', '1\\t|x 4']
    """
    form = to or format_of_name(target)
    options = {
        "flat": flat, "ids": ids, "key": key, "renumber": renumber, "keys_file": keys_file, "compress": compress,
        "layout": layout, "chunk_size_in_bytes": chunk_size_in_bytes, "order": order,
    }  # fmt: skip
    write_form(form, target, pieces_of(data), options, files, progress, remote)


@suggests_keywords
def corpus_of(
    path: FileNames, streams: StreamDefs, *, to: FileFormat | None = None, **reading: Unpack[Reading]
) -> Any:  # fmt: skip
    """Return a file of any format as an argument of the writers, which write the format `to`.

    Arguments and exceptions as for `convert_file`.

    Example:
        >>> from cntkio.convert import pieces_of
        >>> with pieces_of(corpus_of("examples/iris/iris.ctf", infer_streams("examples/iris/iris.ctf"))) as pieces:
        ...     sorted(info.name for info in pieces.streams)
        ['lengths', 'species']
    """
    file = corpora.input_of(path_texts("source", path))
    options = cast(ReadingOptions, {"streams": streams, **reading})
    corpora.require_takers(options, [file])
    (described,) = corpora.described(file, with_defaults(options, written=to or "ctf"))
    # A source can be written once; `Selected` goes back to its beginning for each further pass.
    data = described.writable()
    return Selected(data) if isinstance(data, MinibatchSource) else data


def ctf_to_cbf(
    source: AnyPath, target: AnyPath, streams: StreamDefs | Mapping[str, Any] | None = None, *,
    chunk_size_in_bytes: int = 32 << 20, layout: LayoutName = "2.x", dtype: npt.DTypeLike = np.float32,
    skip_sequence_ids: bool = False, max_errors: int = 0, strict: bool = False, progress: Progress | None = None,
) -> None:  # fmt: skip
    """Convert a text corpus to a binary corpus.

    Keys are lost: the keys of a binary corpus are the indices of its sequences.

    Args:
        source: The text.
        target: The binary file.
        streams: The streams to read, in the order in which to write them; None: all that `infer_streams` finds, which
            reads the text once more.
        chunk_size_in_bytes: As for `write_cbf`. So are `layout` and `progress`.
        dtype: float32 or float64, of the values in the file.
        skip_sequence_ids: As for `CTFDeserializer`. So are `max_errors` and `strict`.

    Raises:
        ConfigError: An option is invalid.
        CorpusError: The text has no sequence.
        FormatError: The text breaks its format, or the layout cannot express a sequence.
        OSError: A file cannot be read or written.

    Example:
        >>> import pathlib, tempfile
        >>> from cntkio import CBFDeserializer
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.ctf").write_text("7 |x 1 2 |y 3:1\\n7 |x 3 4\\n9 |x 5 6 |y 0:2\\n")
        >>> ctf_to_cbf(folder / "a.ctf", folder / "a.cbf")
        >>> CBFDeserializer(folder / "a.cbf").open().table.lengths
        array([2, 1], dtype=uint32)
    """
    path, defined = os.fspath(source), infer_streams(source) if streams is None else StreamDefs(streams)
    corpus = CTFDeserializer(
        path, defined, skip_sequence_ids=skip_sequence_ids, max_errors=max_errors, dtype=dtype, strict=strict
    )
    # The file has the streams in the order of the definitions, as the header file of `ctf2bin.py` orders them.
    order = list(defined)
    write_cbf(target, corpus, chunk_size_in_bytes=chunk_size_in_bytes, layout=layout, order=order, progress=progress)


def cbf_to_ctf(
    source: AnyPath, target: AnyPath, streams: StreamDefs | Mapping[str, Any] | None = None, *,
    progress: Progress | None = None,
) -> None:  # fmt: skip
    """Convert a binary corpus, of either layout, to text. Each line begins with the index of its sequence.

    Args:
        source: The binary file.
        target: The text.
        streams: New names, as for `CBFDeserializer`.
        progress: As for `write_cbf`.

    Raises:
        ConfigError: The text format cannot express a name.
        FormatError: The file breaks its format, or the text format cannot express a value or a sequence.
        OSError: A file cannot be read or written.

    Example:
        >>> import pathlib, tempfile
        >>> from cntkio import write_cbf
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> write_cbf(folder / "a.cbf", {"x": [[[1, 2.5]]]})
        >>> cbf_to_ctf(folder / "a.cbf", folder / "a.ctf")
        >>> (folder / "a.ctf").read_text()
        '0\\t|x 1 2.5\\n'
    """
    write_ctf(target, CBFDeserializer(os.fspath(source), StreamDefs(streams or {})), progress=progress)


def read_header_file(path: AnyPath) -> StreamDefs:
    """Read a header file of `ctf2bin.py`.

    It has a line for each stream: its name, its name in the text, `dense` or `sparse`, and its dimension, separated by
    white space.

    Args:
        path: The header file.

    Raises:
        FormatError: A line has a different form, or the file is not UTF-8.
        OSError: The file cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "header")
        >>> _ = path.write_text("features F dense 784\\nwords W sparse 1323\\n")
        >>> read_header_file(path).words.dim
        1323
    """
    content = whole_text(path)
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        line_number = content.count(b"\n", 0, error.start) + 1
        raise FormatError("bytes that are not UTF-8", path=path, line=line_number, byte=error.start) from None
    by_alias: dict[str, tuple[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        fields = line.split()
        is_whole = len(fields) == 4 and fields[2].lower() in ("dense", "sparse") and fields[3].isdecimal()
        if not is_whole or int(fields[3]) < 1:
            what = f"{line!r}; expected 'name alias dense dimension' or 'name alias sparse dimension'"
            raise FormatError(what, path=path, line=number)
        name, alias, form, dim = fields
        # A repeated alias replaces the earlier line, as in `ctf2bin.py`.
        by_alias[alias] = (name, StreamDef(field=alias, shape=int(dim), is_sparse=form.lower() == "sparse"))
    streams = dict(by_alias.values())
    if len(streams) < len(by_alias) or not streams:
        what = "two lines have the same name" if streams else "no stream; expected a line for each stream"
        raise FormatError(what, path=path)
    return StreamDefs(streams)

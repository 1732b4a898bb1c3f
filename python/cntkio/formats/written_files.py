"""The files that writers write: one after the other, and compressed. (docs/convert.md)

The files of ``"train-*.ctf"`` are ``train-00000.ctf``, ``train-00001.ctf`` and so on, so the same pattern reads all of
them. Each file has consecutive sequences, and sequences without keys are numbered through all files.

Text is compressed while it is written: gzip, or zstd in frames with a seek table. Each frame of zstd holds 4 MB of
text, and the table at the end lists the offsets of the frames (the seekable format of zstd), so that a reader can begin
anywhere. Every tool that unpacks zstd unpacks the file.
"""

from __future__ import annotations

import errno
import gzip
import itertools
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, cast, get_args

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio.arguments import caller, check_word, whole_number
from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.detect import KINDS, FileFormat, function_named
from cntkio.formats.pieces import Files, Piece, Pieces, Progress, some_of
from cntkio.storage.file_lists import lister_of
from cntkio.storage.names import as_url, is_remote, located_file, shown_pattern
from cntkio.storage.output_file import AnyPath
from cntkio.storage.remote import Remote
from cntkio.storage.stores import hint_on_memory

Compression = Literal["none", "gzip", "zstd"]
FRAME = 4 << 20
"""Bytes of text in a frame of zstd."""
COMPRESSED: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}
"""Extensions of names that ask for compression."""
# The first is a frame that zstd tools skip; the second ends a file in the seekable format.
_SKIPPABLE_FRAME, _SEEK_TABLE = 0x184D2A5E, 0x8F92EAB1
_LEVEL_OF_GZIP, _LEVEL_OF_ZSTD = 6, 3


def write_pieces(
    write: Callable[..., None], path: AnyPath, data: AbstractContextManager[Pieces], files: Files,
    progress: Progress | None = None, remote: Remote | None = None, **options: Any,
) -> None:  # fmt: skip
    """Write sequences into a file, or into several.

    After an error, files that were already complete are removed, except for objects in remote stores.

    Args:
        write: Writes a file: from its path, the open pieces, `progress` and `remote`, and the options as keywords.
        path: The name of the file; of several files, with a ``*``, which the names of files among the options
            (`keys_file`, `scp`) then have, too.
        data: The sequences, to be opened.
        files: How to divide them; empty: into one file.
        progress: As for the writers.
        remote: As for the writers.
        options: Further keywords of `write`.

    Raises:
        ConfigError: The path has no ``*``, there are such files, or the number of sequences is needed and not known.

    Example:
        >>> import pathlib, tempfile
        >>> from cntkio.convert import pieces_of
        >>> def write(path, pieces, progress, remote):
        ...     count = sum(piece.chunk.num_sequences for _, piece in pieces.written(progress))
        ...     pathlib.Path(path).write_text(f"{count} sequences")
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> write_pieces(write, folder / "a-*.txt", pieces_of({"x": [[1], [2]]}), {"num_files": 2})
        >>> [path.read_text() for path in sorted(folder.iterdir())]
        ['1 sequences', '1 sequences']
    """
    path, remote = located_file("path", path, remote)
    if files:
        _write_several(write, path, data, files, progress, remote, options)
        return
    with _opened(data) as corpus:
        write(path, corpus, progress, remote, **options)


def format_of_name(path: AnyPath) -> FileFormat:
    """Return the format that the name of a file implies.

    Args:
        path: The file, which need not exist.

    Raises:
        ConfigError: The extension belongs to no format that can be written.

    Example:
        >>> format_of_name("corpus.parquet")
        'parquet'
    """
    target = Path(path)
    # The format of `a.ctf.gz` is that of `a.ctf`.
    extension = (target.with_suffix("") if target.suffix.lower() in COMPRESSED else target).suffix.lower()
    forms = {extension: kind.form for kind in KINDS.values() if kind.writer for extension in kind.extensions}
    if extension not in forms:
        expected = f"one of {', '.join(forms)}, or the format: {', '.join(dict.fromkeys(forms.values()))}"
        what = f"no format to write has the extension {extension!r}; expected {expected}"
        raise ConfigError(f"{os.fspath(path)}: {what}", key="to")
    return cast(FileFormat, forms[extension])


_NOT_FOR_ALL = ("renumber", "keys_file", "compress", "flat", "ids", "layout")


def write_form(
    form: str, target: AnyPath, data: AbstractContextManager[Pieces], options: Mapping[str, Any], files: Files,
    progress: Progress | None = None, remote: Remote | None = None,
) -> None:  # fmt: skip
    """Write a corpus in a format of `KINDS`. Refuse options of `cntkio.convert.write_file` that it does not take."""
    check_word("to", form, *(kind.form for kind in KINDS.values() if kind.writer))
    taken, compress = KINDS[form].written_options, options["compress"]
    # The name asks for compression, too, so `a.cbf.gz` is refused like `compress`.
    is_packed = Path(target).suffix.lower() in COMPRESSED if compress is None else compress != "none"
    # The default layout does not count as given, so every format accepts it.
    asked = {**options, "compress": is_packed, "layout": options["layout"] != "2.x"}
    for name in _NOT_FOR_ALL:
        if asked[name] and name not in taken:
            forms = ", ".join(kind.form for kind in KINDS.values() if kind.writer and name in kind.written_options)
            raise ConfigError(f"{caller().words.flag(name)} is only for writing {forms}", key=name)
    given = {name: options[name] for name in taken if options[name] is not None}
    write_pieces(function_named(KINDS[form].writer), target, data, files, progress, remote, **given)


@contextmanager
def _opened(data: AbstractContextManager[Pieces]) -> Iterator[Pieces]:
    """Open sequences that will be written, and log how many numbers are rounded."""
    with data as corpus:
        for log in corpus.log_rounded:
            log()
        yield corpus


def _write_several(
    write: Callable[..., None], path: str, data: AbstractContextManager[Pieces], files: Files,
    progress: Progress | None, remote: Remote | None, options: Mapping[str, Any],
) -> None:  # fmt: skip
    if len(files) != 1:
        raise ConfigError("num_files and max_file_size exclude each other; expected one of them", key="num_files")
    ((option, amount),) = files.items()
    amount = whole_number(option, amount, least=1)
    names = {key: os.fspath(options[key]) for key in ("keys_file", "scp") if options.get(key) is not None}
    name = as_url(path)
    for text in (name, *names.values()):
        if text.count("*") != 1:
            flag = caller().words.flag(option)
            raise ConfigError(f"{shown_pattern(text)}: with {flag}, expected one '*' in the name", key="path")
    if found := [*lister_of(name, remote).matching(name)]:
        raise ConfigError(f"{shown_pattern(name)}: {len(found)} such files are there; remove them first", key="path")
    written: list[str] = []
    try:
        with _opened(data) as corpus:
            numbered = _numbered(corpus, option, amount, progress)
            for number, of_file in itertools.groupby(numbered, itemgetter(0)):
                # The number of the first sequence is needed before the file is begun.
                begin = next(of_file)
                pieces = (piece for _, _, piece in itertools.chain([begin], of_file))
                part = corpus._replace(pieces=pieces, total=0, first=begin[1], num_sequences=None)
                # Noted before it is written, so that no interrupt leaves a file that is not noted.
                written.append(name.replace("*", f"{number:05}"))
                others = {key: text.replace("*", f"{number:05}") for key, text in names.items()}
                write(written[-1], part, None, remote, **{**options, **others})
            if not written:
                raise CorpusError(f"{corpus.name}: no sequence to write")
    except BaseException:
        for file in written if not is_remote(name, remote) else ():
            Path(file).unlink(missing_ok=True)
        raise


class OutputFolder:
    """A folder in which each of several processes writes files of its own: on a disk that they share, or in a store.

    Raises:
        ConfigError: The folder is in memory, which other processes do not see.
    """

    def __init__(self, folder: AnyPath, remote: Remote | None = None) -> None:
        name, self.remote = located_file("folder", folder, remote)
        self.is_remote = is_remote(name, self.remote)
        # The processes work in other folders.
        self.path = as_url(name).rstrip("/") if self.is_remote else str(Path(name).absolute())
        if hint := hint_on_memory(self.path, self.remote):
            raise ConfigError(
                f"{shown_pattern(self.path)}: expected a folder that all processes see{hint}", key="folder"
            )

    def begin(self, ending: str | None = None) -> None:
        """Make the folder. `FileExistsError`: it has files with this ending, which the new files would join."""
        if not self.is_remote:
            Path(self.path).mkdir(parents=True, exist_ok=True)
        if ending is not None:
            self.require_empty(f"a folder without {ending} files", ending)

    def require_empty(self, expected: str, ending: str = "") -> None:
        """Raise a `FileExistsError` if the folder has files with this ending."""
        names = lister_of(self.path, self.remote).names(self.path)
        earlier = min((name for name in names if name.endswith(ending)), default=None)
        if earlier is not None:
            what = f"The folder has {earlier!r} already, which would be mixed with the files of this data set"
            raise FileExistsError(errno.EEXIST, f"{what}; expected {expected}", self.path)

    def file(self, name: str) -> str:
        """Return the path or the URL of a file."""
        return f"{self.path}/{name}" if self.is_remote else str(Path(self.path, name))


def _numbered(corpus: Pieces, option: str, amount: int, progress: Progress | None) -> Iterator[tuple[int, int, Piece]]:
    """Yield all sequences, file by file: the number of the file, the number of the first sequence, and the piece."""
    num_sequences = corpus.num_sequences or 0
    if option == "num_files":
        if corpus.num_sequences is None:
            what = "the number of sequences is known only after they were read; use max_file_size"
            raise ConfigError(f"{corpus.name}: {what}", key=option)
        amount = min(amount, num_sequences)  # since no file is empty
    first = number = num_bytes = 0
    for piece in corpus.reported(progress):
        count = piece.chunk.num_sequences
        ends = _sizes(piece, len(corpus.streams)).cumsum()
        at = before = 0
        while at < count:
            if option == "num_files":
                number = (first + at) * amount // num_sequences
                # The first sequence whose file has the next number, counted within this piece.
                until = min(-(-(number + 1) * num_sequences // amount) - first, count)
            else:
                until = int(np.searchsorted(ends, before + amount - num_bytes, side="right"))
                # The next sequence does not fit into the file, which has others.
                if until <= at and num_bytes:
                    number, num_bytes = number + 1, 0
                    continue
                # A sequence larger than a file is written all the same, alone.
                until = max(until, at + 1)
                num_bytes, before = num_bytes + int(ends[until - 1]) - before, int(ends[until - 1])
            is_whole = (at, until) == (0, count)
            yield number, first + at, piece if is_whole else some_of(piece, np.arange(at, until, dtype=np.uint32))
            at = until
        first += count


def _sizes(piece: Piece, num_streams: int) -> npt.NDArray[np.int64]:
    """Return about how many bytes each sequence takes."""
    num_samples = np.zeros(piece.chunk.num_sequences, np.int64)
    for stream in range(num_streams):
        num_samples += piece.chunk.lengths(stream)
    return -(-piece.chunk.num_bytes * num_samples // max(int(num_samples.sum()), 1))


# ---- Compressed text.


class Sink(Protocol):
    """An object that accepts bytes."""

    def write(self, data: memoryview, /) -> object: ...


def compression_of(path: AnyPath, compress: Compression | None) -> Compression:
    """Return the compression of a file to write; None: the compression of its name (`.gz`, `.zst`).

    Raises:
        ConfigError: There is no such compression.

    Example:
        >>> compression_of("a.ctf.zst", None), compression_of("a.ctf", None)
        ('zstd', 'none')
    """
    if compress is None:
        return COMPRESSED.get(Path(path).suffix.lower(), "none")
    if compress not in get_args(Compression):
        raise ConfigError(f"compress is {compress!r}; expected 'none', 'gzip' or 'zstd'", key="compress")
    return compress


@contextmanager
def compressed(file: BinaryIO, compression: Compression) -> Iterator[Sink]:
    """Return a sink that compresses bytes, and writes them to a file. The end is written if no exception occurs."""
    if compression == "gzip":
        # Without a name and a time, the same text always becomes the same file.
        packed = gzip.GzipFile("", "wb", _LEVEL_OF_GZIP, file, mtime=0)
        yield packed
        packed.close()
    elif compression == "zstd":
        frames = _Frames(file)
        yield frames
        frames.finish()
    else:
        yield file


class _Frames:
    def __init__(self, file: BinaryIO) -> None:
        self._file, self._text = file, bytearray()
        self._sizes: list[tuple[int, int]] = []

    def write(self, data: memoryview, /) -> None:
        self._text += data
        end = len(self._text) // FRAME * FRAME
        for begin in range(0, end, FRAME):
            self._frame(bytes(self._text[begin : begin + FRAME]))
        del self._text[:end]

    def _frame(self, text: bytes) -> None:
        packed = _core.zstd_frame(text, _LEVEL_OF_ZSTD)
        self._file.write(packed)
        self._sizes.append((len(packed), len(text)))

    def finish(self) -> None:
        if self._text:
            self._frame(bytes(self._text))
        entries = b"".join(struct.pack("<II", *sizes) for sizes in self._sizes)
        # The 0 says that the table has no checksums.
        table = entries + struct.pack("<IBI", len(self._sizes), 0, _SEEK_TABLE)
        self._file.write(struct.pack("<II", _SKIPPABLE_FRAME, len(table)) + table)

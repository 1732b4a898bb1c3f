"""Inputs that no deserializer reads in place: standard input, tables, and most compressed files.

They become temporary files, which are removed when the command ends. All other files are read in place, including text
in the CNTK text format that is compressed with gzip or zstd.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cntkio._threads import Workers
from cntkio.convert import write_cbf
from cntkio.errors import ConfigError, FormatError
from cntkio.formats.detect import FileKind, detect
from cntkio.formats.file_lists import FileNames, in_one_text, listed_files, shown_files, sizes_of
from cntkio.formats.open_input import open_stored
from cntkio.formats.passes import announced, passed
from cntkio.formats.remote import as_url, default_remote, is_remote
from cntkio.formats.remote import shown as shown_url
from cntkio.formats.unpacking import ENDINGS, PACKINGS, content_of

STANDARD_INPUT = "-"
_READ = 1 << 20
_TABLES = ("parquet", "arrow", "arrow stream")
_CONCATENATED = ("ctf", "cbf", "scp", "mlf", "binary mlf")


class Input(NamedTuple):
    """A file; or several, which are one corpus.

    Attributes:
        name: Its name for people.
        path: Path of its bytes; for several files, the path of the first.
        kind: Its kind.
        size: Number of its bytes.
        files: The files, if they are several.
    """

    name: str
    path: Path
    kind: FileKind
    size: int
    files: tuple[str, ...] = ()

    @property
    def names(self) -> str | list[str]:
        """The file, or the list of files, for a deserializer."""
        return list(self.files) or as_url(str(self.path))

    def has(self, path: Path) -> bool:
        """Return whether a path is one of the files, perhaps under another name."""
        return path.exists() and any(Path(name).exists() and path.samefile(name) for name in self.files or [self.name])


@contextmanager
def inputs(names: Iterable[FileNames], *, reads_tables: bool = True) -> Iterator[list[Input]]:
    """Detect the kinds of files, and copy files that no deserializer reads in place to temporary files.

    Args:
        names: For each corpus its file, pattern or list of files; - for standard input.
        reads_tables: Whether to convert tables to binary corpora.

    Raises:
        ConfigError: A table needs a package that is not installed.
        FormatError: A compressed file is damaged.
        OSError: A file cannot be read, or the temporary folder is full.
    """
    with tempfile.TemporaryDirectory(prefix="cntkio-") as folder:
        found = [_input(name, Path(folder, str(index)), reads_tables) for index, name in enumerate(names)]
        try:
            yield found
        except Exception as error:
            # A message must not name a temporary file.
            for file in (file for file in found if not file.files):
                _rename(error, str(file.path), file.name)
            raise


def _rename(error: Exception, path: str, name: str) -> None:
    if path != name:
        error.args = tuple(text.replace(path, name) if isinstance(text, str) else text for text in error.args)


def _input(names: FileNames, target: Path, reads_tables: bool) -> Input:
    given = in_one_text(as_url(os.fspath(names))) if isinstance(names, str | os.PathLike) else names
    is_standard_input = given == STANDARD_INPUT
    files = (STANDARD_INPUT,) if is_standard_input else listed_files(given, option="FILE")
    if len(files) > 1:
        return _several(as_url(shown_files(names)), files)
    path, shown = Path(files[0]), shown_url(files[0])
    if is_standard_input:
        path, shown = target, "<stdin>"
        _write(target, iter(partial(sys.stdin.buffer.read, _READ), b""), "reading standard input")
    kind = detect(path)
    if kind.form in PACKINGS:
        unpacked = target.with_name(f"{target.name}-{path.stem if path.suffix.lower() in ENDINGS else path.name}")
        _unpack(path, unpacked, shown)
        path, kind = unpacked, detect(unpacked)
    if reads_tables and kind.form in _TABLES:
        corpus = target.with_suffix(".cbf")
        write_cbf(corpus, arrow().read(path))
        return Input(shown, corpus, kind._replace(call="CBFDeserializer({path!r})"), path.stat().st_size)
    with closing(open_stored(str(path))) as file:
        return Input(shown, path, kind, file.size)


def _several(shown: str, files: tuple[str, ...]) -> Input:
    kind = detect(files[0])
    if kind.form in PACKINGS:
        raise ConfigError(
            f"{files[0]} is {kind.noun}; {kind.use(files[0])}: among several files, only texts may be compressed",
            key="file",
        )
    if kind.form not in _CONCATENATED:
        raise ConfigError(f"{files[0]} is {kind.noun}; several files are one corpus only in CNTK's formats", key="file")
    return Input(shown, Path(files[0]), kind, sum(_sizes_of(files)), files)


def _sizes_of(files: Sequence[str]) -> list[int]:
    """Return the size of each file, in bytes. Make several requests to a store at the same time."""

    def size(file: str) -> int:
        with closing(open_stored(file)) as opened:
            return opened.size

    if not any(map(is_remote, files)):
        return sizes_of(files)
    with Workers(default_remote().num_requests, "cntkio-sizes") as workers:
        return [job.result() for job in [workers.do(copy_context().run, size, file) for file in files]]


def _unpack(path: Path, target: Path, shown: str) -> None:
    try:
        _write(target, content_of(as_url(str(path))), "unpacking")
    except FormatError as error:
        raise FormatError(error.what, path=shown, byte=error.byte) from None


def _write(target: Path, pieces: Iterable[bytes], doing: str) -> None:
    with target.open("wb") as file, announced(doing, 0):
        for piece in pieces:
            passed(file.write(piece))


def arrow() -> Any:
    """Import the module of Arrow, whose library is large and optional.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        from cntkio import arrow
    except ModuleNotFoundError as error:
        raise ConfigError(str(error), key="to") from None
    return arrow

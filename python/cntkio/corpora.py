"""The corpora in files of every format: the kinds of files, their deserializers, and the opened corpora.

::

    names ── inputs ──> Input ── described(ReadingOptions) ──> Described ── open, parts, writable

Files are read in place, or from unpacked copies. A description has what the format of each file says about it, and what
the call adds.

Invariant: an option that no file of a call takes is refused.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cntkio._threads import Workers
from cntkio.arguments import caller, calling
from cntkio.errors import ConfigError, FormatError
from cntkio.formats.contract import Ahead, Corpus, CorpusInFiles, Opening, ReadingOptions
from cntkio.formats.detect import KINDS, FileKind, detect, detect_several, function_named
from cntkio.formats.mlf import Labels, labels_of
from cntkio.source import MinibatchSource
from cntkio.storage.compressed import PACKED_ENDINGS
from cntkio.storage.file_lists import in_one_text, listed_files, sizes_of
from cntkio.storage.names import FileNames, as_url, is_remote, shown_files
from cntkio.storage.names import shown as shown_url
from cntkio.storage.open_input import content_of, one_file, open_stored
from cntkio.storage.progress import announced, passed
from cntkio.storage.remote import default_remote
from cntkio.storage.text_input import InputFile

STANDARD_INPUT = "-"
_READ = 1 << 20


class Input(NamedTuple):
    """A file; or several, which are one corpus.

    Attributes:
        name: Its name for people.
        path: Path of its bytes; for several files, the path of the first.
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

    def identities(self) -> set[tuple[int, int]]:
        """Return what tells the local files from all others, under whatever name."""
        statuses = [path.stat() for path in map(Path, self.files or [self.name]) if path.exists()]
        return {(status.st_dev, status.st_ino) for status in statuses}


def input_of(names: FileNames) -> Input:
    """Detect the kind of a file, or of several files that are one corpus, which are read in place."""
    files = listed_files(names, option="source")
    if len(files) > 1:
        return _several(as_url(shown_files(names)), files)
    return Input(shown_url(files[0]), Path(files[0]), detect(files[0]), 0)


@contextmanager
def inputs(
    names: Iterable[FileNames], *, refuse: Callable[[str, FormatError], None] | None = None
) -> Iterator[list[Input]]:
    """Detect the kinds of files, and copy files that no deserializer reads in place to temporary files.

    Args:
        names: For each corpus its file, pattern or list of files; - for standard input.
        refuse: Called with the name and the error of each damaged file; the other files follow. None: the error is
            raised.
    """
    opened: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="cntkio-") as folder, ExitStack() as stack, calling(opened=opened):
        found = []
        for index, name in enumerate(names):
            try:
                found.append(_input(name, Path(folder, str(index)), partial(_kept_open, stack, opened)))
            except FormatError as error:
                if refuse is None:
                    raise
                refuse(shown_files(name), error)
        try:
            yield found
        except Exception as error:
            for file in (file for file in found if not file.files):  # a message must not name a temporary file
                path, name = str(file.path), file.name
                error.args = tuple(part.replace(path, name) if isinstance(part, str) else part for part in error.args)
            raise


def _kept_open(stack: ExitStack, opened: dict[str, int], path: Path) -> int:
    """Open a file, return its size, and keep it open for all that the call does with it, if it is a local file."""
    file = stack.enter_context(closing(open_stored(str(path))))
    if isinstance(file, InputFile):
        opened[str(path)] = file.descriptor
    return file.size


def _input(names: FileNames, target: Path, open_one: Callable[[Path], int]) -> Input:
    is_standard_input = isinstance(names, str | os.PathLike) and os.fspath(names) == STANDARD_INPUT
    one = STANDARD_INPUT if is_standard_input else one_file(names)
    files: tuple[str, ...] = () if one is None else (one,)
    if not files:
        given = in_one_text(as_url(os.fspath(names))) if isinstance(names, str | os.PathLike) else names
        files = listed_files(given, option="FILE")
    if len(files) > 1:
        return _several(as_url(shown_files(names)), files)
    path, shown = Path(files[0]), shown_url(files[0])
    if is_standard_input:
        path, shown = target, "<stdin>"
        _write(target, iter(partial(sys.stdin.buffer.read, _READ), b""), "reading standard input")
    size, kind = open_one(path), detect(path)
    if kind.is_packing:
        is_named = path.suffix.lower() in PACKED_ENDINGS
        # The name keeps its inner extension, by which some formats are detected.
        unpacked = target.with_name(f"{target.name}-{path.stem if is_named else path.name}")
        try:
            _write(unpacked, content_of(as_url(str(path))), "unpacking")
        except FormatError as error:
            raise FormatError(error.what, path=shown, byte=error.byte) from None
        path, size, kind = unpacked, open_one(unpacked), detect(unpacked)
    return Input(shown, path, kind, size)


def _several(shown: str, files: tuple[str, ...]) -> Input:
    kind = detect_several(files)
    if kind.deserializer is None:
        what = "several files are one corpus only in the formats of CNTK and Kaldi, as svmlight texts and as tables"
        if kind.is_packing:
            what = f"{kind.use(files[0])}: among several files, only texts may be compressed"
        raise ConfigError(f"{files[0]} is {kind.noun}; {what}", key="file")
    return Input(shown, Path(files[0]), kind, sum(_sizes_of(files)), files)


def _sizes_of(files: Sequence[str]) -> list[int]:
    """Return the size of each file, in bytes. Make several requests to a store at the same time."""

    def size(file: str) -> int:
        with closing(open_stored(file)) as opened:
            return opened.size

    if not any(map(is_remote, files)):
        return sizes_of(files)
    with Workers(default_remote().num_requests, "cntkio-sizes") as workers:
        # The options of the store are in the context, and each thread needs a copy, which only one thread can enter.
        return [job.result() for job in [workers.do(copy_context().run, size, file) for file in files]]


def _write(target: Path, pieces: Iterable[bytes], doing: str) -> None:
    with target.open("wb") as file, announced(doing, 0):
        for piece in pieces:
            passed(file.write(piece))


SURVEYED_AT_ONCE = 16 << 20
"""Bytes of a chunk of a text whose values are only examined: the arrays of each chunk reuse the memory of the last."""
# The pass that makes the index of a text also parses these bytes, so that they are read only once.
IN_ORDER = Opening(ahead=Ahead(64 << 20))
"""The opening of a corpus whose chunks are all read in order."""


def require_takers(options: ReadingOptions, files: Sequence[Input]) -> None:
    """Refuse an option that none of the files takes."""
    taken = {"key"} if options.get("labels") is None else {"key", "mapping"}  # the column may be only written
    taken = taken.union(*(file.kind.options for file in files))
    for name, value in options.items():
        # These values mean that the option was not given.
        if value not in (None, False, {}) and name not in taken:
            takers = [kind.form for kind in KINDS.values() if kind.deserializer and name in kind.options]
            formats = ", ".join(form for form in takers if form not in ("binary mlf", "arrow stream"))
            what = f"{caller().words.flag(name)} applies only to {formats} files"
            raise ConfigError(f"{what}; {files[0].name} is {files[0].kind.noun}", key=name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Described(CorpusInFiles):
    """A corpus in the files of a call."""

    input: Input

    @property
    def labels(self) -> Labels | None:
        """The label file, opened."""
        return None if self.open_labels is None else self.open_labels(IN_ORDER)

    def open(self, **options: Any) -> MinibatchSource:
        """Open a source of the corpus: one sweep in order, unless the options say otherwise."""
        with self.located():
            return MinibatchSource(list(self.deserializers), **{"max_sweeps": 1, "randomize": False, **options})

    def writable(self) -> Any:
        """Return the corpus as an argument of the writers: several deserializers as a source that joins them."""
        if not self.deserializers:
            what = "expected a text, a binary corpus, a list of features, Parquet, Arrow or a configuration"
            raise ConfigError(f"{self.input.name} is {self.input.kind.noun}; {what}", key="source")
        return self.deserializers[0] if len(self.deserializers) == 1 else self.open()

    def parts(self) -> list[Callable[[Opening], Corpus]]:
        """Return a function that opens each corpus: one for each deserializer, and for each list of features."""
        if (open_labels := self.open_labels) is not None:
            return [lambda opening: open_labels(opening).corpus]
        return [part.open for deserializer in self.deserializers for part in deserializer.parts()]

    @contextmanager
    def opened(self, opening: Opening = IN_ORDER) -> Iterator[list[Corpus]]:
        """Open all corpora."""
        with self.located(), ExitStack() as stack:
            # The stack closes the corpora that are open if a later one cannot be opened.
            yield [stack.enter_context(closing(open_part(opening))) for open_part in self.parts()]


def described(file: Input, options: ReadingOptions) -> list[Described]:
    """Return the corpora of a file: several if it is a configuration with several readers."""
    kind = file.kind
    if kind.in_files:
        found: list[CorpusInFiles] = function_named(kind.in_files)(file.names, options)
    elif kind.deserializer is None:
        raise ConfigError(f"{file.path} is {kind.noun}, which no deserializer reads; {kind.use(file.path)}")
    else:
        taken = {name: value for name, value in options.items() if name in kind.options}
        found = [CorpusInFiles(deserializers=[function_named(kind.reader)(file.names, **taken)])]
    path = options.get("labels")
    if path is not None and "labels" in kind.options:
        labels, names = labels_of(path, options.get("mapping"))
        found = [_joined(corpus, labels, names) for corpus in found]
    return [Described(input=file, **vars(corpus)) for corpus in found]


def _joined(corpus: CorpusInFiles, labels: Any, names: Sequence[bytes]) -> CorpusInFiles:
    return dataclasses.replace(corpus, deserializers=[*corpus.deserializers, labels], label_names=names)

"""A format that is one folder and one row of the table: lines of a key and two numbers, such as ``7 0.5 2``."""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from cntkio import Remote
from cntkio._core import Chunk
from cntkio.formats import contract
from cntkio.formats.contract import Index, Loaded, Opening, OpenText, PlacesInFiles
from cntkio.formats.corpus import FilesDeserializer, opened_corpus
from cntkio.formats.detect import FileKind
from cntkio.formats.pieces import Pieces, Progress, in_arrays
from cntkio.formats.table import Column, Keys, SequenceTable
from cntkio.storage.file_lists import listed_files
from cntkio.storage.names import FileNames
from cntkio.storage.open_input import open_input
from cntkio.storage.output_file import written_whole
from cntkio.storage.text_input import explained
from cntkio.streams import StreamInformation

CHUNK = 3  # lines of a chunk
ROW = FileKind(
    "toy", "toy text", "ToyDeserializer({path!r})", first_line=re.compile(rb"\d+( [\d.]+){2}"), is_text=True,
    reader="support.toy_format:ToyDeserializer", options=("max_errors",), writer="support.toy_format:write_file",
    extensions=(".toy",), shown_by=(".toy",),
)  # fmt: skip


def write_file(path: str, pieces: Pieces, progress: Progress | None, remote: Remote | None) -> None:
    with written_whole(path, remote=remote) as file:
        for first, piece in pieces.written(progress):
            rows = in_arrays(pieces.streams, piece.chunk.num_sequences, [piece.chunk])["x"].values.tolist()
            file.write("".join(f"{key} {one:g} {two:g}\n" for key, (one, two) in enumerate(rows, first)).encode())


@dataclasses.dataclass
class ToyDeserializer(FilesDeserializer):
    """A corpus of lines: one sequence with one sample each."""

    filename: FileNames
    max_errors: int = 0
    remote: Remote | None = None
    has_text_keys = False

    def open(self, opening: Opening = contract.OPENING) -> contract.Corpus:
        return opened_corpus(ToyFormat(self, opening), listed_files(self.filename, remote=self.remote))


class ToyFormat(contract.Format):
    """Reads lines; a `Format`. The layout of an index has the first byte of each line and, last, the size."""

    def __init__(self, options: ToyDeserializer, opening: Opening) -> None:
        self.report, self._remote = opening.report(options.label, options.max_errors), options.remote

    def open(self, path: str, index: Index | None) -> OpenText:
        return OpenText(open_input(path, self._remote))

    def index(self, file: OpenText, ahead: contract.Ahead) -> tuple[Index, list[Chunk]]:
        lines = self._lines(file, 0, file.size)
        bounds = np.cumsum([0, *map(len, lines)])
        for begin, line in zip(bounds.tolist(), lines, strict=False):
            if not re.match(rb"\s*\d{1,18}\s", line + b"\n"):
                raise file.locator.error(begin, "expected a key, a whole number")
        keys = Keys(np.array([int(line.split()[0]) for line in lines], np.uint64))
        chunk_starts = np.append(np.arange(0, len(keys), CHUNK), len(keys))
        table = SequenceTable(keys, np.ones(len(keys), np.uint32), chunk_starts)
        return Index((StreamInformation("x", 0, "dense", np.float32, 2),), table, bounds), []

    def parse(self, file: OpenText, index: Index, chunk_id: int, sequences: npt.NDArray[np.uint32] | None) -> Loaded:
        first, last = index.table.bounds_of(chunk_id)
        values, wrong = np.zeros((last - first, 2), np.float32), []
        for number, line in enumerate(self._lines(file, index.layout[first], index.layout[last])):
            try:
                values[number] = np.array(line.split()[1:], np.float32)
            except ValueError:
                if sequences is None or number in sequences:
                    wrong.append(first + number)
        column = Column(np.arange(last - first + 1, dtype="u4"), values.ravel(), 2, None)
        chunk = Chunk.from_columns(last - first, [column])
        return Loaded(chunk_id, chunk if sequences is None else chunk.only(sequences), wrong or None, sequences)

    def account(self, file: OpenText, index: Index, loaded: Loaded) -> None:
        places = [(int(index.layout[number]), index.table.keys[number]) for number in loaded.findings]
        error = partial(file.locator.error, what="expected two numbers after the key")
        self.report.charge("bad number", [partial(error, begin, sequence=key) for begin, key in places])

    def place(self, file: OpenText, index: Index, sequences: npt.NDArray[np.int64]) -> PlacesInFiles:
        begins = index.layout[sequences]
        return PlacesInFiles([index.name], np.zeros(len(begins), np.int64), begins, file.locator.lines_of(begins))

    def _lines(self, file: OpenText, begin: Any, end: Any) -> list[bytes]:
        with explained(file.text):
            return file.text.read(int(begin), int(end - begin)).splitlines(keepends=True)

"""Places of the objects in Kaldi's files: archives by a pass over their headers, lists by the offsets in them.

::

    a.ark     u1 \\0BFM <rows> <columns> <values> u2 …      the pass skips the values
    a.scp     u1 a.ark:3                                   the header is at the offset
              u2 b.ark:9[0:99,5:10]                        some rows and columns
    utt2spk   u1 anna                                      a class for each value
"""

from __future__ import annotations

import codecs
import functools
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio.errors import FormatError
from cntkio.formats.detect import other_in
from cntkio.formats.htk.lists import decoded, text_rows
from cntkio.formats.report import EMPTY_FILE, Report
from cntkio.storage.names import path_in_list, shown
from cntkio.storage.open_input import KeptObjects, open_input
from cntkio.storage.progress import announced, passed
from cntkio.storage.remote import Remote
from cntkio.storage.text_input import (
    WINDOW,
    CoreText,
    Locator,
    TextInput,
    changed_in_use,
    compression_in,
    content_sum,
    explained,
    refuse_mark,
)

Content = Literal["frames", "vectors", "classes", "map"]

_KINDS = {name: code for code, name in enumerate(_core.KALDI_KINDS)}
VECTORS = [_KINDS[name] for name in ("float vector", "double vector", "text vector")]
"""Kinds of vectors of numbers."""
CLASSES = [_KINDS[name] for name in ("vector of integers", "line of integers")]
"""Kinds of vectors of whole numbers."""
TEXTS = [_KINDS[name] for name in ("text matrix", "text vector")]
"""Kinds of numbers that are written as decimals."""
DOUBLES = [_KINDS[name] for name in ("double matrix", "double vector")]
"""Kinds of numbers in float64."""
MAP = 255
"""The kind of a line of a map."""
_WHOLE = 2**32 - 1  # the core's last row or column of a range that has none
_ROWS_BEYOND = 3  # Kaldi cuts a range that ends so few rows beyond its matrix
_HEAD = 1 << 16
_MAGIC_SIZE = 4
_LARGEST_GAP = 1 << 20  # bytes between two objects that are not requested from a store or decompressed
_FAULT_WORDS = {
    "no key": "a zero byte in a key; expected a key, a blank and an object",
    "long key": "a key of more than 4096 bytes; expected a key, a blank and an object",
    "truncated": "the file ends within the object; expected all its values",
    "unknown type": "an object of an unknown type; expected a matrix (FM, DM, CM, CM2, CM3), a vector (FV, DV) or "
    "int32 numbers",
    "bad size": "a number that is not of 4 bytes in the header of the object; expected the byte 4 before it",
    "negative": "a negative number in the header of the object; expected a number of rows, columns or values",
    "ragged rows": "a row of the matrix has another number of values than the rows before it; expected as many"
    " in each row",
    "bad number": "text that is not a number; expected numbers with blanks between them",
}
_LINE_FAULT_WORDS = {
    "bad key": "a key of more than 4096 bytes, or a zero byte; expected a key, a blank and a value",
    "no value": "nothing after the key; expected a key, a blank and a value",
    "command": "a command, which cntkio does not run; expected file:offset (Kaldi's copy-feats scp:{name} "
    "ark,scp:new.ark,new.scp writes that)",
    "bad range": "a range that is not [first:last] or [first:last,first:last]; expected numbers, and first <= last",
    "several values": "several values for a key; expected one",
}
# The mark of binary data, a bracket or numbers; a number before the mark or a bracket is a key, not an object.
_BEGIN = re.compile(rb"\0B|\s*\[|\s*[\d.+-]+(\s(?!\0B|\s*\[)|\Z)")
_INTEGERS = re.compile(rb"[^\s|,;=]+([ \t]+-?\d+)+[ \t]*\r?\n?")
_PLACE = re.compile(rb"\S+[ \t]+\S.*?(:\d+(\[[\d:,]*\])?|\||\.ark|/[^/\s]*)[ \t]*\r?\n?")


class Objects(NamedTuple):
    """Utterances in archives, or the lines of maps; a column has an item for each utterance.

    Attributes:
        paths: The files that have the values.
        stamps: Facts of these files, which change with them.
        sums: Checksum of each file's content, or its size; for fingerprints.
        names: The values of maps, each once.
        files: Index in `paths`.
        offsets: First byte of the object; of a map, of the line.
        kinds: Index in the core's `KALDI_KINDS`.
        rows: Rows of the object; `lengths` has the rows of the utterance.
        cols: Columns of the object; `dims` has the columns of the utterance.
        begins: First byte of the values.
        ends: Byte after the values.
        first_rows: First row of the utterance.
        first_cols: First column of the utterance.
        classes: Index of a map's value in `names`.
    """

    paths: list[str]
    stamps: list[object]
    sums: list[str]
    names: list[bytes]
    keys: npt.NDArray[np.bytes_]
    files: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.uint64]
    kinds: npt.NDArray[np.uint8]
    rows: npt.NDArray[np.uint32]
    cols: npt.NDArray[np.uint32]
    begins: npt.NDArray[np.uint64]
    ends: npt.NDArray[np.uint64]
    first_rows: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.uint32]
    first_cols: npt.NDArray[np.uint32]
    dims: npt.NDArray[np.uint32]
    classes: npt.NDArray[np.uint32]

    def only(self, which: Any) -> Objects:
        """Return the utterances that a mask, indices or a slice select."""
        return Objects(*self[:4], *(column[which] for column in self[4:]))

    def error(self, index: int, what: str, stream: str, kind: str | None, byte: int | None = None) -> FormatError:
        """Return the error about an utterance, or about a byte of it."""
        path, key = shown(self.paths[int(self.files[index])]), decoded(self.keys[index])
        byte = int(self.offsets[index]) if byte is None else byte
        return FormatError(what, path=path, byte=byte, sequence=key, stream=stream, kind=kind)


def _columns(objects: _core.KaldiObjects) -> tuple[npt.NDArray[Any], ...]:
    return objects.kinds, objects.rows, objects.cols, objects.begins, objects.ends


def joined(parts: Sequence[Objects]) -> Objects:
    """Join the utterances of several files, one file after the other."""
    if len(parts) == 1:
        return parts[0]
    counts = np.cumsum([0, *(len(part.paths) for part in parts)]).astype(np.uint32)
    numbers: dict[bytes, int] = {}
    moved = []
    for part, before in zip(parts, counts, strict=False):
        # Archives have no names, but their classes, all 0, are looked up, too: [0] is for them.
        classes = np.array([numbers.setdefault(name, len(numbers)) for name in part.names] or [0], np.uint32)
        moved.append(part._replace(files=part.files + before, classes=classes[part.classes]))
    columns: list[Any] = [*zip(*moved, strict=True)]
    paths, stamps, sums = ([*itertools.chain(*column)] for column in columns[:3])
    return Objects(paths, stamps, sums, [*numbers], *map(np.concatenate, columns[4:]))


class FilesOfObjects:
    """Opens the files of a corpus. A compressed file is opened again without another pass over it."""

    def __init__(self, remote: Remote | None) -> None:
        self.stored = KeptObjects(remote)
        self._guides: dict[str, object] = {}

    def open(self, path: str, stamp: object = None) -> TextInput:
        """Open a file; refuse it if it has changed since it had this stamp."""
        if self.stored.has(path):
            kept = self.stored.open(path)
            if compression_in(kept.read(0, _MAGIC_SIZE)) is None:
                return kept
        text = open_input(path, self.stored.remote, guide=self._guides.get(path))
        self._guides[path] = text.storage.guide
        if stamp is not None and text.storage.stamp != stamp:
            text.close()
            raise changed_in_use(path, text.size, text.size)
        return text

    def request(
        self, objects: Objects, which: npt.NDArray[np.int64]
    ) -> tuple[TextInput, list[tuple[Objects, CoreText]]]:
        """Open the file of some objects, which the caller closes, and request their bytes in parts without gaps."""
        number = int(objects.files[which[0]])
        text = self.open(objects.paths[number], objects.stamps[number])
        with ExitStack() as stack, explained(text):
            stack.enter_context(closing(text))
            parts = [objects.only(part) for part in _together(text, objects, which)]
            sources = [text.source(int(part.begins.min()), int(part.ends.max())) for part in parts]
            stack.pop_all()
        return text, [*zip(parts, sources, strict=True)]


def _together(text: TextInput, objects: Objects, which: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Divide objects of a file into parts without large gaps, each of which a store is asked for in one piece."""
    # The core reads each object of a local file by itself, and a small file is read in one piece.
    if text.reach > text.size:
        return [which]
    # A list may name parts of an object several times, so an earlier object may end later.
    reached = np.maximum.accumulate(objects.ends[which])
    gaps = objects.begins[which][1:] > reached[:-1] + np.uint64(_LARGEST_GAP)
    return np.split(which, np.flatnonzero(gaps) + 1)


def shown_content(kinds: npt.NDArray[np.uint8]) -> Content:
    """Return what objects of these kinds are: the first object decides for all; frames if there is none."""
    first = kinds[0] if len(kinds) else None
    return "map" if first == MAP else "classes" if first in CLASSES else "vectors" if first in VECTORS else "frames"


_NameOf = Callable[[npt.NDArray[np.uint8]], str]
"""Returns the name of the stream for messages, by the kinds of the objects that were found so far."""
_NO_KINDS = np.empty(0, np.uint8)


def found_in(files: FilesOfObjects, path: str, content: Content | None, name_of: _NameOf, report: Report) -> Objects:
    """Return the utterances of an archive, of a list or of a map.

    Args:
        content: What it contains; None: what its first bytes show.
        report: Its observer gets the error of each utterance of a list whose object cannot be read; the others are
            returned, if there are any. Without an observer, the first error is raised.
    """
    with closing(files.open(path)) as text, explained(text):
        form = _form_of(text, path, content)
        if form == "ark":
            return _archive(text, path, name_of)
        with announced("indexing", text.size):
            content_of = text.read(0, text.size)
            if content_of.startswith(codecs.BOM_UTF8):
                content_of = b"   " + content_of[3:]  # blanks, so that the bytes in errors stay true
            refuse_mark(path, content_of)
            passed(text.size)
            listed = (_core.kaldi_map if form == "map" else _core.kaldi_list)(content_of)
        if isinstance(listed, _core.ListError):
            kind = _core.KALDI_LINE_FAULTS[listed.fault]
            line = decoded(content_of[listed.byte :].split(b"\n", 1)[0][:100]).strip()
            other = other_in("kaldi map" if form == "map" else "kaldi", text)
            what = f"{_LINE_FAULT_WORDS[kind].format(name=path)}: {line!r}{other}"
            stream = name_of(_NO_KINDS)
            raise FormatError(what, path=path, line=listed.line, column=1, byte=listed.byte, stream=stream, kind=kind)
        if not len(listed.lines):
            what = "no line; expected a key, a blank and a value on each line"
            raise FormatError(what, path=path, byte=0, kind=EMPTY_FILE)
        text.storage.require_unchanged()
        if form == "map":
            return _map(text, path, listed)
    return _in_archives(files, path, listed, name_of, report)


def _form_of(text: TextInput, path: str, content: Content | None) -> Literal["ark", "scp", "map"]:
    head = text.read(0, _HEAD)
    head = head.removeprefix(codecs.BOM_UTF8)
    first = head.lstrip().split(b"\n", 1)[0] + b"\n"
    if content == "map":
        return "map"
    if b"\0" in first or re.match(rb"\S+[ \t]+\[", first):
        return "ark"
    if not head.strip():
        what = "the file is empty; expected an archive (ark), a list (scp) or a map"
        raise FormatError(what, path=path, byte=0, kind=EMPTY_FILE)
    if content is None and _INTEGERS.fullmatch(first):
        return "ark"
    is_list = path.lower().endswith(".scp") or _PLACE.fullmatch(first) is not None
    # The extension `.scp` does not tell lists of Kaldi from lists of HTK; `content` does, since only Kaldi has it.
    other = "" if is_list and content is not None else other_in("kaldi", text, before="")
    if is_list and not other:
        return "scp"
    if content is not None:
        return "ark"
    what = other or "neither an archive (ark) nor a list (scp); a map such as utt2spk needs content='map'"
    raise FormatError(f"{what}; the file begins with {decoded(first[:60]).strip()!r}", path=path, byte=0)


def _archive(text: TextInput, path: str, name_of: _NameOf) -> Objects:
    """Scan an archive, in windows that a remote or a compressed file needs."""
    parts: list[tuple[npt.NDArray[Any], ...]] = []
    at, window = 0, WINDOW
    with announced("indexing", text.size):
        while at < text.size:
            end = _end(text, at, window)
            scan = _core.kaldi_scan(text.source(at, end), at, text.size)
            then = scan.next
            parts.append((text_rows(scan.keys), scan.offsets, *_columns(scan.objects)))
            if scan.fault is not None:
                kind, what = fault_words(scan.fault.fault)
                # After a complete object the file is an archive, whatever follows.
                what += "" if any(len(part[0]) for part in parts) else other_in("kaldi", text)
                # The key of the object that begins here, unless nothing is left but blanks.
                fields = text.read(then, 200).split(maxsplit=1)
                key = decoded(fields[0][:100]) if fields else None
                stream = name_of(np.concatenate([part[2] for part in parts]))
                raise FormatError(what, path=text.path, byte=scan.fault.byte, sequence=key, stream=stream, kind=kind)
            if then == at and end == text.size:
                break
            window = 2 * window if then == at else WINDOW  # an object of text may be longer than the window
            passed(then - at)
            at = then
    text.storage.require_unchanged()
    keys, offsets, kinds, rows, cols, begins, ends = map(np.concatenate, zip(*parts, strict=True))
    if not len(keys):
        what = "no object; expected a key, a blank and an object"
        raise FormatError(what, path=text.path, byte=0, kind=EMPTY_FILE)
    zeros = np.zeros(len(keys), np.uint32)
    return Objects(
        *_file(text, path), [], keys, zeros, offsets, kinds, rows, cols, begins, ends, zeros, rows, zeros, cols, zeros
    )


def _file(text: TextInput, path: str) -> tuple[list[str], list[object], list[str]]:
    """Return the path of a file, its stamp and its checksum, each as the only item of a list."""
    return [path], [text.storage.stamp], [f"{text.size}:{content_sum(text.size, text.read, text.storage.num_requests)}"]


def _end(text: TextInput, begin: int, window: int) -> int:
    """Return the end of the next part of a file; the core reads a local file by itself."""
    return text.size if text.reach > text.size else min(begin + window, text.size)


def _map(text: TextInput, path: str, listed: _core.KaldiList) -> Objects:
    lines = listed.lines
    zeros, ones = np.zeros(len(lines), np.uint32), np.ones(len(lines), np.uint32)
    return Objects(
        *_file(text, path), listed.names, text_rows(listed.keys), zeros, lines, np.full(len(lines), MAP, np.uint8),
        ones, ones, lines, lines, zeros, ones, zeros, ones, listed.name_of,
    )  # fmt: skip


class _Failures:
    """The utterances of a list that cannot be read."""

    def __init__(self, files: FilesOfObjects, path: str, lines: npt.NDArray[Any], report: Report) -> None:
        self._files, self._path, self._lines, self._report = files, path, lines, report
        self._errors: dict[int, Callable[[str], Exception]] = {}
        self.is_sound = np.ones(len(lines), np.bool_)

    def add(self, utterances: npt.NDArray[np.int64], error: Callable[[str], Exception]) -> None:
        """Add utterances with an error, which is made of the place of the first of them in the list."""
        self.is_sound[utterances] = False
        # A missing archive is one error, however many utterances are in it.
        self._errors[int(utterances.min())] = error
        if not self._report.is_observed:
            self.refuse()

    def refuse(self) -> None:
        """Give all errors to the observer; without an observer, or if no utterance is left, raise the first error."""
        if not self._errors:
            return
        utterances = sorted(self._errors)
        with closing(self._files.open(self._path)) as text:
            lines = Locator(text).lines_of(self._lines[utterances].astype(np.int64)).tolist()
        errors = [self._errors[one](f"{self._path}, line {line}") for one, line in zip(utterances, lines, strict=True)]
        # If no utterance is left, the first error is raised below, so it is not reported here, too.
        for error in errors if self.is_sound.any() else errors[1:]:
            self._report.refuse(error)
        if not self.is_sound.any():
            raise errors[0] from None


def _in_archives(
    files: FilesOfObjects, path: str, listed: _core.KaldiList, name_of: _NameOf, report: Report
) -> Objects:
    """Read the headers of the objects of a list: file by file, in the order of their offsets."""
    keys, file_of, offsets = text_rows(listed.keys), listed.name_of, listed.offsets
    names = [path_in_list(path, os.fsdecode(name)) for name in listed.names]
    columns: list[npt.NDArray[Any]] = [np.zeros(len(keys), dtype) for dtype in ("u1", "u4", "u4", "u8", "u8")]
    stamps: list[object] = [None] * len(names)
    sums = [""] * len(names)
    first_kind = _NO_KINDS  # of the first object whose header could be read
    failures = _Failures(files, path, listed.lines, report)
    # So each archive is opened once, and its headers are read in one direction.
    order = np.lexsort((offsets, file_of))
    bounds = np.searchsorted(file_of[order], np.arange(len(names) + 1))
    with announced("indexing", len(keys)):
        for number, name in enumerate(names):
            mine = order[bounds[number] : bounds[number + 1]]
            try:
                text = files.open(name)
            except OSError as error:
                failures.add(mine, functools.partial(_not_opened, error, decoded(keys[int(mine.min())])))
                continue
            with closing(text), explained(text):
                for part, objects, fault in _headers(text, offsets[mine]):
                    for column, values in zip(columns, _columns(objects), strict=True):
                        column[mine[part]] = values
                    first_kind = first_kind if len(first_kind) else objects.kinds[:1]
                    if fault is not None:
                        one = mine[part.stop : part.stop + 1]
                        key, stream = decoded(keys[int(one[0])]), name_of(first_kind)
                        failures.add(one, _failure(name, text, fault, int(offsets[one[0]]), key, stream))
                stamps[number], sums[number] = text.storage.stamp, str(text.size)
            passed(len(mine))
    kinds, rows, cols, begins, ends = columns
    first_rows, _, first_cols, _ = listed.ranges
    found = Objects(
        names, stamps, sums, [], keys, file_of, offsets, kinds, rows, cols, begins, ends, first_rows, rows, first_cols,
        cols, np.zeros(len(keys), np.uint32),
    )  # fmt: skip
    found = _cut(found, listed.ranges, name_of(first_kind), failures)
    failures.refuse()
    return found if failures.is_sound.all() else found.only(failures.is_sound)


def _not_opened(error: OSError, key: str, where: str) -> OSError:
    return type(error)(error.errno, f"{error.strerror} (utterance {key} of {where})", error.filename)


def _failure(
    path: str, text: TextInput, fault: _core.KaldiFault, offset: int, key: str, stream: str
) -> Callable[[str], FormatError]:
    """Return a function that makes the error about an object that cannot be read, from its place in the list."""
    other, before = other_in("kaldi", text), text.read(offset - 1, 1) if offset else b" "
    # In an archive, a key and a blank precede an object.
    may_begin = before.isspace() and _BEGIN.match(text.read(offset, 80)) is not None

    def error(where: str) -> FormatError:
        if may_begin:
            kind, words = fault_words(fault.fault)
            what = f"{words} ({where}){other}"
            return FormatError(what, path=path, byte=fault.byte, sequence=key, stream=stream, kind=kind)
        list_path, _, line = where.rpartition(", line ")
        what = f"no object of {path} begins at byte {offset}; expected the byte after a key and a blank"
        return FormatError(what, path=list_path, line=int(line), sequence=key, stream=stream, kind="wrong offset")

    return error


def _headers(
    text: TextInput, offsets: npt.NDArray[np.uint64]
) -> Iterator[tuple[slice, _core.KaldiObjects, _core.KaldiFault | None]]:
    """Read headers at offsets that ascend, in windows that a remote or a compressed file needs."""
    done, window = 0, WINDOW
    while done < len(offsets):
        # An offset beyond the file is a fault of the list, which the core finds.
        begin = min(int(offsets[done]), text.size)
        end = _end(text, begin, window)
        objects, fault = _core.kaldi_objects(text.source(begin, end), offsets[done:], text.size)
        part = slice(done, done + len(objects.kinds))
        yield part, objects, fault
        window = 2 * window if part.stop == done and fault is None else WINDOW
        # Continue after a broken object: the objects at the other offsets do not depend on it.
        done = part.stop + (fault is not None)


def _cut(found: Objects, ranges: list[npt.NDArray[np.uint32]], stream: str, failures: _Failures) -> Objects:
    """Apply the ranges of a list."""
    _, last_rows, _, last_cols = ranges
    has_rows, has_cols = last_rows != _WHOLE, last_cols != _WHOLE
    has_range = has_rows | has_cols
    if not has_range.any():
        return found
    # The last row or column of an empty matrix wraps to 2^32 - 1 here, and its length back to 0 below.
    row = np.where(has_rows, last_rows, found.rows - np.uint32(1)).astype(np.int64)
    col = np.where(has_cols, last_cols, found.cols - np.uint32(1)).astype(np.int64)
    beyond = (found.first_rows >= found.rows) | (row >= found.rows.astype(np.int64) + _ROWS_BEYOND)
    beyond |= (found.first_cols >= found.cols) | (col >= found.cols)
    for wrong, words in (
        (np.isin(found.kinds, [*VECTORS, *CLASSES]), "a range of a vector; expected a matrix"),
        (beyond, "a range beyond the matrix of {rows} rows and {cols} columns"),
    ):
        for index in np.flatnonzero(has_range & wrong & failures.is_sound).tolist():
            what = words.format(rows=found.rows[index], cols=found.cols[index])
            failures.add(np.array([index]), functools.partial(_beyond, found, index, what, stream))
    lengths = np.minimum(row, found.rows.astype(np.int64) - 1) - found.first_rows + 1
    return found._replace(lengths=lengths.astype(np.uint32), dims=(col - found.first_cols + 1).astype(np.uint32))


def _beyond(found: Objects, index: int, what: str, stream: str, where: str) -> FormatError:
    return found.error(index, f"{what} ({where})", stream, "range beyond the matrix")


def fault_words(fault: int) -> tuple[str, str]:
    """Return the name of a fault of the core, and words for it."""
    kind = _core.KALDI_FAULTS[fault]
    return kind, _FAULT_WORDS[kind]

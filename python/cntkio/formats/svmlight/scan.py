"""The index of a svmlight text: where its samples are, and the range of its features and labels."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio._threads import num_threads
from cntkio.errors import FormatError
from cntkio.formats.ctf.index import (
    Part,
    TextIndex,
    areas_of,
    ends_of_parts,
    join_over_borders,
    joined_index,
    kept_index,
)
from cntkio.formats.ctf.lines import find_start
from cntkio.formats.detect import other_in
from cntkio.formats.open_input import Beginning, open_stored
from cntkio.formats.report import announced
from cntkio.formats.text_input import Locator, TextInput, explained, long_line_error

_NO_INDEX = 2**64 - 1
_HEAD = 1 << 16


class Facts(NamedTuple):
    """The range of the features and labels of a text, or of several.

    Attributes:
        least_index: The least index of a feature; 2^64 - 1 if there is none.
        largest_index: The largest index of a feature; 0 if there is none.
        largest_label: The largest label that is a whole number.
    """

    least_index: int
    largest_index: int
    largest_label: int

    @property
    def has_features(self) -> bool:
        """True if a line has a feature."""
        return self.least_index != _NO_INDEX


class ScanSettings(NamedTuple):
    """Settings on which the index depends.

    Attributes:
        by_query: Whether neighbouring lines of a query are a sequence.
        chunk_size_in_bytes: Bytes of a chunk.
    """

    by_query: bool
    chunk_size_in_bytes: int


def base_of(zero_based: bool | str, facts: Sequence[Facts]) -> int:
    """Return the index of the first feature in files with these facts: 0 or 1.

    If it is "auto", it is 1 if each file has features, and none of them has the index 0, as in scikit-learn.

    Example:
        >>> base_of("auto", [Facts(1, 9, 0), Facts(3, 7, 0)]), base_of("auto", [Facts(1, 9, 0), Facts(0, 7, 0)])
        (1, 0)
    """
    if zero_based == "auto":
        return int(all(each.has_features and each.least_index > 0 for each in facts))
    return int(not zero_based)


def scanned(file: TextInput, settings: ScanSettings, *, cache_index: bool | str) -> TextIndex:
    """Make or load the index of a text. Its `numbers` are `Facts`.

    Raises:
        OSError: The file cannot be read.
        FormatError: The text is empty, or a line has 4 GiB or more, or no query where queries are sequences.
    """
    if not cache_index:
        return _scan(file, settings)
    kept = {"format": "svmlight", **settings._asdict()}
    return kept_index(
        file, kept, settings._asdict(), lambda again: _scan(file, settings), verify=cache_index == "verify"
    )


def _scan(file: TextInput, settings: ScanSettings) -> TextIndex:
    start = find_start(file)
    parts: list[Part] = []
    facts = Facts(_NO_INDEX, 0, 0)
    with announced("indexing", file.size - start.offset) as add, explained(file):
        for source, first_line, bounds, block in areas_of(file, start.offset, add):
            scans, found, (no_query, long_line) = _core.svmlight_index(
                source, first_line, bounds, settings.by_query, block, num_threads()
            )
            if long_line is not None:
                raise long_line_error(file.path, long_line)
            if no_query is not None:
                what = "a line without a query; expected qid: and a number below 2^64, because queries are sequences"
                raise Locator(file).error(no_query, what + other_in("svmlight", file))
            parts += map(Part.of, scans)
            facts = Facts(min(facts[0], found[0]), max(facts[1], found[1]), max(facts[2], found[2]))
    join_over_borders(parts)
    if not parts:
        what = "the file has only comments; expected lines such as '1 3:0.5 7:1'"
        raise FormatError(what, path=file.path, byte=start.offset)
    ends = ends_of_parts(file, start, parts)
    sizes: list[npt.NDArray[np.uint32] | None] = [None] * len(parts)
    first_key = None if settings.by_query else 0
    index = joined_index(file, parts, ends, sizes, first_key, settings.chunk_size_in_bytes, settings._asdict())
    num_lines = None if settings.by_query else index.table.num_sequences
    return index._replace(num_lines=num_lines, numbers=tuple(facts))


class UsualOptions(NamedTuple):
    """Options that the first lines of a text show.

    Attributes:
        multilabel: Whether lines have several labels, or none.
        query_id: Whether each line has a query.
    """

    multilabel: bool
    query_id: bool


def usual_options(path: str) -> UsualOptions:
    """Return the options that fit the first lines of a text."""
    with closing(open_stored(path)) as stored:
        head = Beginning.of(stored, _HEAD).head
    lines = [fields for line in head.split(b"\n") if (fields := line.partition(b"#")[0].split())]
    whole = lines[:-1] or lines  # the last line may be cut off
    return UsualOptions(
        any(b"," in fields[0] or b":" in fields[0] for fields in whole),
        bool(whole) and all(any(field.startswith(b"qid:") for field in fields[:2]) for fields in whole),
    )

"""Sequences that are left out from some positions on, and sequences that are repeated. (docs/ledger.md)

A sequence that is left out keeps its place in the order, and the timeline passes over it. So the order of the other
sequences, the positions, and all that came before stay as they are. A sequence that is repeated stands in the table
several times in a row, as if the file had it so often, so the tables of a state differ from those without repetitions.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio.arguments import is_whole
from cntkio.displays import counted
from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.table import Keys, SequenceTable
from cntkio.source.join import JoinedTable
from cntkio.storage.open_input import whole_text
from cntkio.storage.progress import warn
from cntkio.timeline.fields import damaged, items
from cntkio.timeline.selection import MOST_OMISSIONS, Omissions

_MOST_REPETITIONS = 2**16


def checked_omissions(leave_out: Any) -> dict[int, Keys]:
    """Return the argument `leave_out` as keys by position: keys or a file of keys, or such by position."""
    if leave_out is None:
        return {}
    by_position = leave_out if isinstance(leave_out, Mapping) else {0: leave_out}
    for position in by_position:
        if not is_whole(position) or not 0 <= position < 2**63:
            message = f"leave_out has the position {position!r}; expected keys, or {{position: keys}}"
            raise ConfigError(message, key="leave_out")
    if len(by_position) > MOST_OMISSIONS:
        raise ConfigError(
            f"leave_out has {len(by_position)} positions; expected at most {MOST_OMISSIONS}", key="leave_out"
        )
    expected = "keys, or the path of a file with a key in each line"
    found = {int(position): by_position[position] for position in sorted(by_position)}
    for position, keys in found.items():
        if isinstance(keys, str | os.PathLike):
            keys = np.array(whole_text(keys).split(), np.bytes_)
        found[position] = _keys(keys, "leave_out", expected)
    return found


def _keys(given: Any, name: str, expected: str) -> Keys:
    """Return different keys of any type."""
    try:
        array = np.asarray(given)  # of a set, or of an iterator, an array without a dimension
        keys = Keys.of(array if array.ndim else list(given))
    except (TypeError, ValueError) as error:
        expected = f"{expected}; a key is a text, or a whole number from 0 to 2^64 - 1"
        raise ConfigError(f"{name} is {given!r:.200}; expected {expected}", key=name) from error
    return Keys.of(np.unique(keys.words() if keys.are_words else keys[:]))


def places_of(keys: Keys, wanted: Keys) -> npt.NDArray[np.int64]:
    """Return the places of all wanted keys, in ascending order; numbers may be wanted in digits.

    Example:
        >>> places_of(Keys(range(5, 9)), Keys.of(["8", "5", "u"])), places_of(Keys.of(["a", "b"]), Keys.of(["b"]))
        (array([0, 3]), array([1]))
    """
    if keys.are_words:
        return np.flatnonzero(np.isin(keys.words(), wanted.words()))
    numbers = wanted[:]
    if wanted.are_words:
        words = wanted.words()
        digits = words[np.strings.isdigit(words) & (np.strings.str_len(words) < 20)]
        numbers = digits.astype(np.uint64)
    if keys.first is None:
        return np.flatnonzero(np.isin(keys[:], numbers))
    # Keys that count up by one are not stored, and a table of them would take much memory.
    inside = numbers[(numbers >= keys.first) & (numbers < keys.first + len(keys))]
    return np.unique(inside - np.uint64(keys.first)).astype(np.int64)


def omissions_of(
    table: SequenceTable, asked: Sequence[tuple[range, Mapping[int, Keys]]], level: int
) -> Omissions | None:
    """Return what is left out of a table. `asked` has ranges of sequences, each with its keys by position."""
    positions = sorted({position for _, by_position in asked for position in by_position})
    if not positions:
        return None
    since, num_wanted = np.zeros(table.num_sequences, np.uint8), 0
    for number in range(len(positions), 0, -1):  # an earlier position overwrites a later one
        for sequences, by_position in asked:
            wanted = by_position.get(positions[number - 1], Keys(range(0)))
            num_wanted += len(wanted)
            if len(wanted):
                places = places_of(table.keys.part(sequences.start, sequences.stop), wanted)
                since[sequences.start + places] = number
    if since.all():
        raise CorpusError(f"leave_out has the keys of all {table.num_sequences} sequences: nothing is left to read")
    of_positions = [np.flatnonzero(since == number) for number in range(1, len(positions) + 1)]
    num_found = sum(map(len, of_positions))
    if num_found < num_wanted:
        found = f"{counted(num_wanted, 'key')}, of which {num_found} are keys of sequences"
        warn(level, "leave_out has %s; the others have no effect", found)
    sums = [hashlib.blake2b(places.astype("<i8").tobytes(), digest_size=16).hexdigest() for places in of_positions]
    return Omissions(since, positions, [list(of) for of in zip(positions, map(len, of_positions), sums, strict=True)])


def different_omissions(
    saved: Any, current: Omissions | None, timeline: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the differences in what was left out before the position of a state; later positions are free.

    Inside a pool, which is arranged as a whole, all positions count.
    """
    made = [] if current is None else current.sums
    position = timeline.get("position")
    if timeline.get("batch") or not is_whole(position):
        position = 2**64
    before = [[of for of in sums if of[0] < position] for sums in (_sums_in(saved), made)]
    if before[0] != before[1]:
        # Sets of one size and position differ in their checksums only.
        saved_text, here_text = (
            ", ".join(
                f"{counted(count, 'sequence')} from position {first} on ({digest})" for first, count, digest in of
            )
            for of in before
        )
        yield "leave_out", saved_text or "nothing", here_text or "nothing"


def _sums_in(saved: Any) -> list[list[Any]]:
    """Read the field of a state: the entries of `Omissions.sums`."""
    rows = [items("left_out", row) for row in items("left_out", [] if saved is None else saved)]
    for row in rows:
        if len(row) != 3 or not all(map(is_whole, row[:2])) or not isinstance(row[2], str):
            raise damaged("left_out", saved, "a position, a count and a checksum for each")
    return [list(row) for row in rows]


def with_repetitions(table: JoinedTable, repeat: Mapping[Any, int]) -> JoinedTable:
    """Return a table in which the sequences with some keys stand several times in a row.

    Raises:
        ConfigError: A key is of no sequence, or its number of repetitions is not possible.
    """
    if not isinstance(repeat, Mapping):
        raise ConfigError(f"repeat is {repeat!r:.200}; expected {{key: number of times}}", key="repeat")
    times = np.ones(table.num_sequences, np.int64)
    for number in repeat.values():
        if not is_whole(number) or not 1 <= number <= _MOST_REPETITIONS:
            message = f"repeat has {number!r} times; expected a whole number from 1 to {_MOST_REPETITIONS}"
            raise ConfigError(message, key="repeat")
    for number in sorted(set(repeat.values())):
        wanted = _keys([key for key, of_key in repeat.items() if of_key == number], "repeat", "{key: number of times}")
        places = places_of(table.keys, wanted)
        if len(np.unique(table.keys[places])) < len(wanted):
            found = f"{len(wanted)} keys that come {number} times, and sequences for {len(places)} of them"
            raise ConfigError(f"repeat has {found}", key="repeat")
        if (times[places] > 1).any():
            raise ConfigError(
                f"repeat has a key twice, as a number and in digits: {number} times and another", key="repeat"
            )
        times[places] = number
    chunk_starts = np.append(0, np.cumsum(times))[table.chunk_starts]
    rows = np.repeat(np.arange(table.num_sequences), times)
    partners = tuple(of_one[rows] for of_one in table.partners)
    return JoinedTable(table.keys.only(rows), table.lengths[rows], chunk_starts, partners, table.left_out)

"""Lanes: each rank reads its part of the corpus, and the global minibatches are the same on any number of ranks.

::

    corpus     | lane 0     | lane 1     | lane 2     | lane 3     |      about the same number of samples each
    ranks      | rank 0                  | rank 1                  |      neighboring lanes
    step 0       a b           k l           q r           x y z         its share of each lane, in the lane's order
    step 1       c             m n           s             v

Which sequences of a lane come in a step follows from this lane alone, and with a number of samples the corpus's total
says how many steps a sweep has: so a rank reads only its own lanes. With a budget, the lanes need different numbers of
steps for a sweep. Then each rank walks through the order of all lanes, and the last lane ends the sweep.
(docs/timeline.md, "Lanes")
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._core import Cursor, TimelineReader
from cntkio.errors import CheckpointError, ConfigError
from cntkio.timeline.budget import NO_LIMIT, Budget, Size, about_samples, size_text
from cntkio.timeline.modes import Needs, ReadMode, WholeSequences
from cntkio.timeline.partition import WHOLE, GlobalPartition
from cntkio.timeline.selection import ChunkPart, ChunkRefs, Omissions, Plan, Reads, Selection
from cntkio.timeline.window import LARGEST_WORD, Window

# The samples of a lane are spread evenly over so many steps, if they fit the window.
_STEPS_AT_ONCE = 64
_LEAST_AT_ONCE = 8
_LARGEST_POSITION = 2**63 - 1
# The core counts the minibatches after a position in 32 bits.
_MOST_STEPS = 2**32 - 1
# An odd number near 2^64 divided by the golden ratio: multiples of it are different, and far apart.
SEED_STEP = 0x9E3779B97F4A7C15
"""What the seeds of neighboring lanes differ by."""
# Sequences of all lanes that may be read and dropped in place of a search for a nearer place.
_LEAST_SLACK = 2048
# The readers of the lanes are nowhere together while, or after, a read of one of them fails.
_NOWHERE = Cursor(2**63, batch=_MOST_STEPS)

_Integers = npt.NDArray[np.int64]
_NONE: _Integers = np.zeros(0, np.int64)


class _Lane:
    """A lane: consecutive sequences of the table, with a reader of their own order.

    Attributes:
        number: Its number among all lanes.
        first_sequence: Its first sequence in the table.
        first_chunk: The piece that begins with that sequence, or the chunk that has it (`PiecesOfLanes`).
        mode: Reads its share of the minibatches of a sweep.
    """

    def __init__(
        self, number: int, first_sequence: int, first_chunk: int, reader: TimelineReader, mode: WholeSequences
    ) -> None:
        self.number, self.first_sequence, self.first_chunk = number, first_sequence, first_chunk
        self.reader, self.mode = reader, mode
        self.num_samples: int = reader.num_samples
        self.needs = Needs(reader)

    def table(self, selection: Selection, count: int) -> tuple[_Integers, _Integers]:
        """Return the first sequences of a selection and their chunks, by their numbers in the table."""
        return selection.sequences[:count] + self.first_sequence, selection.chunks[:count] + self.first_chunk

    def read_until(self, sweep: int, end: int) -> tuple[_Integers, _Integers, npt.NDArray[np.uint32]]:
        """Read all sequences that start before a sample of a sweep: sequences, chunks and lengths."""
        # The reader takes all sequences that start before the end of its data.
        self.reader.set_end(sweep * self.num_samples + end)
        reads = self.mode.read(1)
        self.reader.set_end(LARGEST_WORD)
        if reads is None or reads.selection.loads is None:
            return _NONE, _NONE, _NONE.astype(np.uint32)
        return *self.table(reads.selection, len(reads.selection.sequences)), reads.selection.loads

    def needed(self) -> list[int]:
        """Return the chunks of the window."""
        return [self.first_chunk + chunk for chunk in self.needs.plan(WHOLE, None, ()).chunks]

    def ahead(self, end: int) -> Iterator[int]:
        """Yield the chunks that are needed after the window, up to a position of the lane."""
        for chunk in self.needs.ahead(WHOLE, None, end):
            yield self.first_chunk + chunk


class _Block(NamedTuple):
    """Consecutive steps of a sweep, as this rank delivers them.

    Attributes:
        sequences: Sequences of all steps.
        chunks: The chunk of each.
        bounds: First sequence of each step and, last, the number of sequences.
        cursors: The cursor before each step and, last, after all.
    """

    sequences: _Integers
    chunks: _Integers
    bounds: list[int]
    cursors: list[Cursor]

    def step_at(self, cursor: Cursor) -> int | None:
        """Return the index of the step that begins at a cursor; None: none does."""
        first = self.cursors[0]
        step = cursor.batch - first.batch
        return step if cursor.sweep == first.sweep and 0 <= step < len(self.cursors) - 1 else None


class PiecesOfLanes:
    """The chunks of a table, cut where lanes begin: so the two lanes at a border load a chunk once, each its piece.

    Args:
        firsts: First sequences of the lanes; none: chunks can only be loaded whole.

    Attributes:
        starts: First sequence of each piece and, last, the number of sequences.
    """

    def __init__(self, chunk_starts: _Integers, firsts: Sequence[int]) -> None:
        cuts = np.setdiff1d(np.array(firsts, np.int64), chunk_starts)
        self.starts: _Integers = np.sort(np.concatenate([chunk_starts, cuts]))
        self._chunk_starts = chunk_starts

    @property
    def parts(self) -> PiecesOfLanes | None:
        """The pieces, for a plan; None: they are the chunks."""
        return self if len(self.starts) > len(self._chunk_starts) else None

    def place(self, lanes: Iterable[_Lane]) -> None:
        """Let lanes name pieces in place of chunks."""
        for lane in lanes:
            lane.first_chunk = int(np.searchsorted(self.starts, lane.first_sequence, side="right")) - 1

    def refs(self, sequences: _Integers) -> ChunkRefs:
        """Return where sequences are in the pieces."""
        return ChunkRefs.found(_core.find_chunks(sequences, None, self.starts))

    def part(self, chunk_id: int) -> ChunkPart:
        """Return the piece with an id."""
        first, end = self.starts[chunk_id : chunk_id + 2].tolist()
        chunk = int(np.searchsorted(self._chunk_starts, first, side="right")) - 1
        start = int(self._chunk_starts[chunk])
        return ChunkPart(chunk, np.arange(first - start, end - start, dtype=np.uint32))


@dataclasses.dataclass(frozen=True)
class LanesOfTable:
    """The lanes of a table of sequences.

    Attributes:
        lengths: Samples of each sequence.
        chunk_starts: First sequence of each chunk and, last, the number of sequences.
        rules: The window and the seed, as arguments of the core's reader.
        omissions: Sequences that are left out from some positions on.
        loads_parts: Whether parts of chunks can be loaded.
    """

    lengths: npt.NDArray[np.unsignedinteger[Any]]
    chunk_starts: _Integers
    rules: Mapping[str, Any]
    omissions: Omissions | None
    loads_parts: bool

    def steps_at_once(self, size: Size, num_samples: int) -> int:
        """Return how many steps a block has: about a window at most, so that its chunks fit the window's memory.

        But several, because a lane may have a sequence more or less than its share of a block.
        """
        window: Window | None = self.rules["window"]
        in_window = 0 if window is None else window.size
        if window is not None and window.unit == "chunks":
            in_window = in_window * num_samples // (len(self.chunk_starts) - 1)
        return min(max(in_window // about_samples(size), _LEAST_AT_ONCE), _STEPS_AT_ONCE)

    def bounds(self, num_lanes: int) -> list[tuple[int, int]]:
        """Return the first sequence of each lane and its chunk and, last, the numbers of sequences and chunks.

        A lane begins with the first sequence that starts at its part of the samples or later.
        """
        in_order = TimelineReader(self.lengths, self.chunk_starts, window=None, seed=0, end=0)
        found = []
        for number in range(num_lanes):
            in_order.set_position(in_order.num_samples * number // num_lanes)
            cursor = in_order.cursor
            # The last sequences may be longer than a lane, which then begins and ends after them.
            found.append(
                (len(self.lengths), len(self.chunk_starts) - 1) if cursor.sweep else (cursor.index, cursor.rank)
            )
        return [*found, (len(self.lengths), len(self.chunk_starts) - 1)]

    def lanes(self, num_lanes: int, numbers: range, budget: _core.Budget | None = None) -> list[_Lane]:
        """Return the lanes with these numbers, except for empty lanes."""
        bounds, found = self.bounds(num_lanes), list[_Lane]()
        # All lanes together have the window of a single reader.
        window: Window | None = self.rules["window"]
        if window is not None:
            window = dataclasses.replace(window, size=-(-window.size // num_lanes))
        for number in numbers:
            (first, first_chunk), (end, end_chunk) = bounds[number : number + 2]
            if first == end:
                continue
            starts = np.clip(self.chunk_starts[first_chunk : end_chunk + 2], first, end) - first
            # The lane may end where a chunk does.
            starts = np.ascontiguousarray(starts[: int(np.searchsorted(starts, end - first)) + 1])
            seed = (self.rules["seed"] + (number + 1) * SEED_STEP) % 2**64
            rules = {**self.rules, "window": window, "seed": seed, "end": LARGEST_WORD}
            reader = TimelineReader(self.lengths[first:end], starts, **rules)
            share = NO_LIMIT if budget else _LARGEST_POSITION
            mode = WholeSequences(reader, share, is_dealt=True, budget=budget)
            found.append(_Lane(number, first, first_chunk, reader, mode))
        return found

    def pieces(self, num_lanes: int) -> PiecesOfLanes:
        """Return the chunks, cut where lanes begin if parts of chunks can be loaded."""
        firsts = [first for first, _ in self.bounds(num_lanes)] if self.loads_parts else []
        return PiecesOfLanes(self.chunk_starts, firsts)


class OrderInLanes:
    """All lanes of a table as one order: the sequence that starts first in its lane comes first.

    So the lanes advance together, by samples, and each sweep has each sequence once.

    Args:
        table: The sequences.
        first_sequence: The number of the first of them.

    Attributes:
        firsts: First sequence of each lane.
        lanes: The lanes that have sequences.
    """

    def __init__(self, table: LanesOfTable, num_lanes: int, first_sequence: int) -> None:
        self.firsts = [first_sequence + first for first, _ in table.bounds(num_lanes)[:num_lanes]]
        self.lanes = table.lanes(num_lanes, range(num_lanes))
        for lane in self.lanes:
            lane.first_sequence += first_sequence
        self._num_sequences = len(table.lengths)
        self._longest = max(lane.num_samples for lane in self.lanes)
        self._sweep = self._begin = 0  # the readers are at this sample of their lanes
        self._rest = _NONE, _NONE  # sequences and chunks before there that were not read yet

    def go_to(self, number: int) -> None:
        """Go to a sequence, counted over sweeps."""
        self._sweep, number = divmod(number, self._num_sequences)
        before = self._seek_before(number)
        self._rest = _NONE, _NONE
        if number > before:
            self.read(number - before)

    def _seek_before(self, number: int) -> int:
        """Bring the lanes before a sequence of the sweep, close to it; return how many sequences are before them."""
        slack = _LEAST_SLACK + self._num_sequences // 1024
        low, before, high, until = 0, 0, self._longest, self._num_sequences
        is_even, at = True, -1
        while number - before > slack and high - low > 1:
            # As if all sequences between the two places had the same length; if not, half of the way is certain.
            share = number - before - slack // 2, until - before
            at = (
                min(max(low + (high - low) * share[0] // share[1], low + 1), high - 1) if is_even else (low + high) // 2
            )
            found = self._seek(at)
            low, before, high, until = (low, before, at, found) if found > number else (at, found, high, until)
            is_even = not is_even
        return before if at == low else self._seek(low)

    def _seek(self, begin: int) -> int:
        """Go to a sample of all lanes, and return the number of sequences before."""
        before = 0
        for lane in self.lanes:
            lane.reader.set_position(self._sweep * lane.num_samples + min(begin, lane.num_samples))
            cursor = lane.reader.cursor
            before += cursor.index if cursor.sweep == self._sweep else len(lane.reader.lengths)
        self._begin = begin
        return before

    def read(self, count: int) -> tuple[_Integers, _Integers]:
        """Read sequences: their numbers and their chunks."""
        columns = [self._rest]
        num_read = len(self._rest[0])
        while num_read < count:
            columns.append(self._following(count - num_read))
            num_read += len(columns[-1][0])
        sequences, chunks = (np.concatenate(column) for column in zip(*columns, strict=True))
        self._rest = sequences[count:], chunks[count:]
        return sequences[:count], chunks[:count]

    def _following(self, count: int) -> tuple[_Integers, _Integers]:
        """Read about a number of sequences of all lanes, none after the sweep."""
        end = min(self._begin + 1 + 9 * count * self._longest // (8 * self._num_sequences), self._longest)
        columns = [(_NONE, _NONE, _NONE)]
        for lane in self.lanes:
            first = lane.reader.cursor.position - self._sweep * lane.num_samples
            sequences, chunks, lengths = lane.read_until(self._sweep, min(end, lane.num_samples))
            columns.append((sequences, chunks, first + np.cumsum(lengths, dtype=np.int64) - lengths))
        sequences, chunks, starts = (np.concatenate(column) for column in zip(*columns, strict=True))
        self._begin = end
        if end == self._longest:
            self._sweep, self._begin = self._sweep + 1, 0
        # Stable, so that of sequences that start at the same sample the first lane comes first.
        order = np.argsort(starts, kind="stable")
        return sequences[order], chunks[order]

    def needed(self, own: range) -> list[int]:
        """Return the chunks of some of the lanes from which the next sequences come."""
        numbers = np.searchsorted(self.firsts, self._rest[0], side="right") - 1
        found: list[int] = self._rest[1][(numbers >= own.start) & (numbers < own.stop)].tolist()
        for lane in self.lanes:
            found += lane.needed() if lane.number in own else []
        return found

    def ahead(self, own: range) -> Iterator[int]:
        """Yield the chunks of some of the lanes that are needed afterwards, from each lane in turn."""
        return _in_turn(lane.ahead(LARGEST_WORD) for lane in self.lanes if lane.number in own)


def share_of_lane(budget: Budget, num_lanes: int) -> Budget:
    """Return the budget of a lane's share of a minibatch."""
    if budget.schedules:
        name, why = next(iter(budget.schedules)), "lanes reach a position at different steps"
        raise ConfigError(f"lanes and a table of {name} exclude each other: {why}; give a number", key=name)
    if budget.buckets or budget.balance is not None or budget.carry:
        name = "buckets" if budget.buckets else "carry" if budget.carry else "balance"
        why = "each lane has pools of its own, so a minibatch has sequences of several pools"
        raise ConfigError(f"lanes and {name} exclude each other: {why}; leave out lanes, or {name}", key=name)
    limits = {name: getattr(budget, name) for name in ("samples", "sequences", "padded", "rows")}
    for name, limit in limits.items():
        if limit is not None and limit < num_lanes:
            why = "each lane has its share of the limit, so it must be at least the number of lanes"
            raise ConfigError(f"{name}={limit} in a Budget for {num_lanes} lanes: {why}", key=name)
    pool = None if budget.pool is None else -(-budget.pool // num_lanes)
    return dataclasses.replace(budget.share(num_lanes), pool=pool)


class LaneReads(ReadMode):
    """Deliver a partition's lanes of global minibatches.

    Args:
        table: All sequences.
        size: Samples of a global minibatch, or a budget.
        end: Position at which the data end.
        num_samples: Samples of a sweep.

    Attributes:
        cursor: The position of the next step: samples before it; its sweep; as `batch`, its number in the sweep.
        num_steps: Steps of a sweep; None: the order of the sweep says how many.
    """

    def __init__(
        self,
        table: LanesOfTable,
        size: Size,
        partition: GlobalPartition,
        budget: Budget | None,
        num_samples: int,
        end: int,
    ) -> None:
        self.num_steps: int | None = None if isinstance(size, Budget) else max(-(-num_samples // size), 1)
        if (self.num_steps or 0) > _MOST_STEPS:
            message = (
                f"minibatches of {size_text(size)} make {self.num_steps} steps in a sweep; expected at most 2^32 - 1"
            )
            raise ConfigError(message, key="minibatch_size_in_samples")
        self._own = partition.own_lanes
        # With a budget, the last lane ends the sweep.
        numbers, core = (self._own, None) if budget is None else (range(partition.lanes), budget.for_core())
        self._lanes, self._pieces = table.lanes(partition.lanes, numbers, core), table.pieces(partition.lanes)
        self._pieces.place(self._lanes)
        self._steps_at_once = table.steps_at_once(size, num_samples)
        self._omissions, self._seed = table.omissions, table.rules["seed"]
        self._num_samples, self._end = num_samples, end
        self._blocks: deque[_Block] = deque()
        self.cursor = self._held = self._frontier = Cursor(0)  # the readers are at the frontier
        self._has_ended = [False] * len(self._lanes)  # the lanes that have no more minibatches before the frontier
        self._plan_key: Any = None
        self._plan = Plan([], 0)

    # -------------------------------------------------------------------------------------------------- positions

    def at_position(self, position: int) -> Cursor:
        """Return the cursor of the step that begins at a position.

        Raises:
            ConfigError: No step is known to begin there.
        """
        sweep, offset = divmod(position, self._num_samples)
        step = 0 if self.num_steps is None else -(-offset * self.num_steps // self._num_samples)
        if self._position(sweep, step) != position:
            what = (
                f"position {position} is inside sweep {sweep}, where no global minibatch of this size and lanes begins"
            )
            raise ConfigError(
                f"{what}; go to the beginning of a sweep, or load a state with the same lanes", key="lanes"
            )
        return Cursor(position, sweep=sweep, batch=step)

    def _position(self, sweep: int, step: int) -> int:
        return sweep * self._num_samples + self._num_samples * step // (self.num_steps or 1)

    def go_to(self, cursor: Cursor) -> None:
        """Go to a step."""
        self.cursor = cursor

    def restore(self, position: int, step: int) -> None:
        """Go to the step of a state, which comes before the step number `step` of a sweep.

        Raises:
            CheckpointError: The step does not begin at the position.
        """
        cursor = Cursor(position, sweep=position // self._num_samples, batch=step)
        self.go_to(cursor)
        # The last step of a sweep is known only once all lanes have ended it.
        is_known = position < self._end and step > 0
        block = self._block() if is_known and self.num_steps is None else None
        found = cursor if block is None else block.cursors[step - block.cursors[0].batch]
        if found != cursor or (self.num_steps is not None and self._position(cursor.sweep, step) != position):
            message = f"the state's step {step} does not begin at its position {position}"
            raise CheckpointError(message, saved=[position, step])

    def hold(self, cursor: Cursor) -> None:
        """Keep what makes it cheap to go back to a step."""
        self._held = cursor

    # ------------------------------------------------------------------------------------------------------ reads

    def read(self, most: int) -> Reads | None:
        if self.cursor.position >= self._end:
            return None
        block = self._block()
        if block is None:
            return None
        first = self.cursor.batch - block.cursors[0].batch
        last = min(first + most, len(block.cursors) - 1)
        # A step that begins before the end of the data is delivered whole.
        last = bisect.bisect_left(block.cursors, self._end, first, last, key=lambda cursor: cursor.position)
        return self._delivered(block, first, last)

    def _delivered(self, block: _Block, first: int, last: int) -> Reads:
        begin, end = block.bounds[first], block.bounds[last]
        cursors = block.cursors[first + 1 : last + 1]
        sequences, chunks = block.sequences[begin:end], block.chunks[begin:end]
        bounds = [bound - begin for bound in block.bounds[first : last + 1]]
        if self._omissions is not None:
            counts = np.diff(bounds)
            positions = np.repeat([cursor.position for cursor in block.cursors[first:last]], counts)
            kept = self._omissions.keep(sequences, positions)
            bounds = [0, *np.append(0, np.cumsum(kept))[bounds[1:]].tolist()]
            sequences, chunks = sequences[kept], chunks[kept]
        refs = self._pieces.refs(sequences)
        ends = [cursor.batch == 0 for cursor in cursors]
        self.cursor = cursors[-1]
        selection = Selection(sequences, chunks, ends[-1], self.cursor.position, refs=refs)
        return Reads(selection, bounds, ends, cursors)

    def pass_over(self, most: int, until: int) -> int:
        if self.num_steps is None:
            return 0
        # The last step that begins at a position or before it, counted over all sweeps.
        last = min(self._last_step(until), self._last_step(self._end - 1) + 1)
        now = self.cursor.sweep * self.num_steps + self.cursor.batch
        count = max(min(most, last - now), 0)
        sweep, step = divmod(now + count, self.num_steps)
        self.cursor = Cursor(self._position(sweep, step), sweep=sweep, batch=step)
        return count

    def _last_step(self, position: int) -> int:
        assert self.num_steps is not None
        sweep, offset = divmod(position, self._num_samples)
        step = ((offset + 1) * self.num_steps - 1) // self._num_samples
        return sweep * self.num_steps + min(step, self.num_steps - 1)

    def _block(self) -> _Block | None:
        """Return the block of the next step; None: a sweep has no step."""
        first = min(_place(self._held), _place(self.cursor))
        while self._blocks and _place(self._blocks[0].cursors[-1]) <= first:
            self._blocks.popleft()
        for block in self._blocks:
            if block.step_at(self.cursor) is not None:
                return block
        if self._frontier != self.cursor:
            self._seek()
        while True:
            frontier, self._frontier = self._frontier, _NOWHERE
            found = self._spread(frontier) if self.num_steps is not None else self._cut(frontier)
            self._frontier = frontier if found is None else found.cursors[-1]
            if found is None:
                break
            if found.step_at(self.cursor) is not None:
                self._blocks.append(found)
                break
            if self._frontier.sweep > self.cursor.sweep:
                message = f"the state is at step {self.cursor.batch} of a sweep that has fewer steps"
                raise CheckpointError(message, saved=self.cursor.batch)
        return found

    def _seek(self) -> None:
        """Bring the readers to the beginning of the block, or with a budget of the sweep, that has the next step."""
        self._blocks.clear()
        sweep, step = self.cursor.sweep, 0 if self.num_steps is None else self._span(self.cursor.batch)[0]
        for lane in self._lanes:
            lane.reader.set_position(sweep * lane.num_samples + lane.num_samples * step // (self.num_steps or 1))
        self._has_ended = [False] * len(self._lanes)
        self._frontier = Cursor(self._position(sweep, step), sweep=sweep, batch=step)

    def _span(self, step: int) -> tuple[int, int]:
        """Return the first step, and the step after the last, of the block that has a step of a sweep."""
        assert self.num_steps is not None
        num_blocks = -(-self.num_steps // self._steps_at_once)
        block = ((step + 1) * num_blocks - 1) // self.num_steps
        return self.num_steps * block // num_blocks, self.num_steps * (block + 1) // num_blocks

    def _spread(self, frontier: Cursor) -> _Block:
        """Spread the next sequences of each lane evenly over the steps of the next block."""
        assert self.num_steps is not None
        sweep, (first, last) = frontier.sweep, self._span(frontier.batch)
        columns: list[tuple[_Integers, _Integers]] = []
        loads: list[npt.NDArray[np.uint32]] = []
        for lane in self._lanes:
            sequences, chunks, lengths = lane.read_until(sweep, lane.num_samples * last // self.num_steps)
            columns.append((sequences, chunks))
            loads.append(lengths)
        bounds = np.cumsum([0, *map(len, loads)]).tolist()
        every = np.concatenate([_NONE.astype(np.uint32), *loads])
        seed = (self._seed + sweep + first) % 2**64
        steps = _core.steps_of_lanes(every, bounds, [lane.number for lane in self._lanes], last - first, seed)
        cursors = [Cursor(self._position(sweep, step), sweep=sweep, batch=step) for step in range(first, last)]
        after = Cursor((sweep + 1) * self._num_samples, sweep=sweep + 1)
        if last < self.num_steps:
            after = Cursor(self._position(sweep, last), sweep=sweep, batch=last)
        return _merged(columns, steps, [*cursors, after])

    def _cut(self, frontier: Cursor) -> _Block | None:
        """Cut the next minibatches of each lane; None: no lane has any in this sweep."""
        sweep, first = frontier.sweep, frontier.batch
        columns: list[tuple[_Integers, _Integers]] = []
        steps, ends = [np.zeros(0, np.int64)], [np.zeros(self._steps_at_once, np.int64)]
        num_steps = 0
        for index, lane in enumerate(self._lanes):
            sizes: list[int] = []
            positions = [lane.reader.cursor.position]
            while len(sizes) < self._steps_at_once and not self._has_ended[index]:
                reads = lane.mode.read(self._steps_at_once - len(sizes))
                # If this sweep of the lane leaves out everything, the minibatches are of a later sweep.
                if reads is not None and reads.bookmarks[0].position > (sweep + 1) * lane.num_samples:
                    reads = None
                flags = [True] if reads is None else reads.ends_of_sweep
                count = flags.index(True) + 1 if True in flags else len(flags)
                self._has_ended[index] = True in flags
                if reads is None:
                    break
                if count < len(flags):
                    lane.reader.rewind(reads.bookmarks[count - 1])
                sizes += np.diff(reads.bounds[: count + 1]).tolist()
                positions = [*positions, *(reads.bookmarks[at].position for at in range(count))]
                if lane.number in self._own:
                    columns.append(lane.table(reads.selection, reads.bounds[count]))
            if lane.number in self._own:
                steps.append(np.repeat(np.arange(len(sizes)), sizes))
            num_steps = max(num_steps, len(sizes))
            passed = np.array([*positions[1:], *[positions[-1]] * self._steps_at_once][: self._steps_at_once])
            if self._has_ended[index]:
                passed[max(len(sizes) - 1, 0) :] = (sweep + 1) * lane.num_samples
            ends.append(passed)
        if not num_steps:
            return None
        cursors = [frontier]
        of_steps = np.sum(ends, axis=0)[:num_steps].tolist()
        cursors += [
            Cursor(position, sweep=sweep, batch=first + step) for step, position in enumerate(of_steps, start=1)
        ]
        if all(self._has_ended):
            cursors[-1] = Cursor((sweep + 1) * self._num_samples, sweep=sweep + 1)
            self._has_ended = [False] * len(self._lanes)
            for lane in self._lanes:
                lane.reader.set_position((sweep + 1) * lane.num_samples)
        return _merged(columns, np.concatenate(steps), cursors)

    # ----------------------------------------------------------------------------------------------------- chunks

    def needed(self) -> Plan:
        """Return the chunks of this block, and of the windows of the lanes after it."""
        block = None if self.cursor.position >= self._end else self._block()
        key = None if block is None else (self._frontier, block.cursors[0])
        if key != self._plan_key or self._plan.version == 0:
            chunks: list[int] = []
            if block is not None:
                found, firsts = np.unique(block.chunks, return_index=True)
                chunks = found[np.argsort(firsts)].tolist()
                for lane in self._own_ahead():
                    chunks += lane.needed()
            self._plan_key = key
            self._plan = Plan(list(dict.fromkeys(chunks)), self._plan.version + 1, self._pieces.parts, block is None)
        return self._plan

    def ahead(self) -> Iterator[int]:
        """Yield the chunks that are needed afterwards, from each lane in turn."""
        lanes = self._own_ahead()
        ends = [-(-self._end * lane.num_samples // self._num_samples) for lane in lanes]
        return _in_turn(lane.ahead(end) for lane, end in zip(lanes, ends, strict=True))

    def _own_ahead(self) -> Sequence[_Lane]:
        """Return the lanes of this rank, unless the data end with the blocks that were made."""
        return [lane for lane in self._lanes if lane.number in self._own and self._frontier.position < self._end]


def _in_turn(lanes: Iterable[Iterator[int]]) -> Iterator[int]:
    """Yield a chunk of each lane in turn."""
    for chunks in itertools.zip_longest(*lanes):
        yield from (chunk for chunk in chunks if chunk is not None)


def _place(cursor: Cursor) -> tuple[int, int]:
    return cursor.sweep, cursor.batch


def _merged(
    columns: Sequence[tuple[_Integers, _Integers]], steps: npt.NDArray[np.integer[Any]], cursors: list[Cursor]
) -> _Block:
    """Put the sequences of all lanes into the order of their steps."""
    empty = np.zeros(0, np.int64)
    sequences, chunks = (np.concatenate(column) for column in zip((empty, empty), *columns, strict=True))
    # Stable, so that a step has the lanes one after the other, each in its own order.
    order = np.argsort(steps, kind="stable")
    bounds = np.append(0, np.cumsum(np.bincount(steps, minlength=len(cursors) - 1))).tolist()
    return _Block(sequences[order], chunks[order], bounds, cursors)

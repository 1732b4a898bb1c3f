"""`MixedTimeline`: the sequences of several tables in exact proportions, each in its own order. (docs/mixtures.md)

::

    turns        a b a a b a | a b a a b a | ...      1,000 turns, in which each part has as many as its weight says
    part a       5   2 9   1   7   3 8   0            its own timeline: sweeps, window and seed
    part b         4     6       5     7
    mixed        5 4 2 9 6 1   7 5 3 8 7 0            position n has the next sequence of the part with turn n

Positions count sequences of the mixed order. Which sequences come before a position follows from the turns alone, so a
state needs the position and the weights, and nothing of the parts. The mixed order is computed in runs of consecutive
positions, as arrays, and cut into minibatches in the core.

In lanes, each part has lanes, and a block of consecutive positions has the same steps for all lanes.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._core import Cursor
from cntkio.errors import CheckpointError, ConfigError
from cntkio.timeline.budget import Budget, Size, about_samples, has_pool
from cntkio.timeline.fields import below, damaged, whole
from cntkio.timeline.lanes import SEED_STEP, PiecesOfLanes, share_of_lane
from cntkio.timeline.modes import Budgets, DealtMinibatches, InTurn, ReadMode, Rounds, check_change
from cntkio.timeline.partition import WHOLE, GlobalPartition, Partition
from cntkio.timeline.selection import ChunkRefs, Omissions, Plan, Reads, Selection
from cntkio.timeline.state import State, check_request, refused
from cntkio.timeline.timeline import POSITION, Timeline
from cntkio.timeline.weights import Weights, end_of_components
from cntkio.timeline.window import LARGEST_WORD, Limits

# A run takes the same number of calls for each part, however long it is.
_LEAST_RUN = 2048
# Sequences of a pool or a minibatch, which take some 40 bytes each.
_MOST_AT_ONCE = 2**26
# In lanes without a pool, a block has about so many steps. At its end, steps of a budget may be small.
_STEPS_OF_BLOCK = 128
_Integers = npt.NDArray[np.int64]


def with_weights(state: Mapping[str, Any], following: Weights) -> dict[str, Any]:
    """Return the state of a mixed timeline with other weights from its position on; in a pool, from the next pool on.

    Raises:
        ConfigError: The state is inside a pool of samples, whose end depends on what follows.
    """
    first = state["position"]
    if "batch" in state:
        if _counts_samples(state):
            message = "the source is inside a pool of samples; change the weights where the pool ends"
            raise ConfigError(message, key="weights")
        first = state["pool_end"]
    weights = Weights.from_json(state["weights"], following.names)
    return {**state, "weights": weights.changed(first, following).to_json()}


def _counts_samples(state: Mapping[str, Any]) -> bool:
    """Return whether the lengths of the sequences decide where the pool of a state ends."""
    size = state["minibatch_size"]
    return isinstance(size, Mapping) and "pool_unit" in size


class _Run(NamedTuple):
    """Consecutive sequences of the mixed order.

    Attributes:
        first: Position of the first.
        sequences: Their indices in the joined table.
        chunks: The chunk of each, in the joined table.
        lengths: Samples of each.
        ends: Whether a part ends a sweep with the sequence.
    """

    first: int
    sequences: _Integers
    chunks: _Integers
    lengths: npt.NDArray[np.uint32]
    ends: npt.NDArray[np.bool_]

    @property
    def end(self) -> int:
        """The position after the last."""
        return self.first + len(self.sequences)

    def between(self, begin: int, end: int) -> _Run:
        """Return the sequences from a position to before another."""
        columns: Sequence[npt.NDArray[Any]] = self[1:]
        return _Run._make([begin, *(column[begin - self.first : end - self.first] for column in columns)])

    def then(self, other: _Run) -> _Run:
        """Return both runs as one."""
        columns: Iterator[Any] = zip(self[1:], other[1:], strict=True)
        return _Run._make([self.first, *(np.concatenate(both) for both in columns)])


class _Page(NamedTuple):
    """Minibatches that were cut at once: a pool, or all whole minibatches of a run.

    Attributes:
        order: Index of each sequence in the run from the first position of the page on, in delivered order.
        loads: What each sequence is dealt by, as in a `Selection`.
        bounds: First sequence of each minibatch and, last, the number of sequences.
        cursors: The cursor before each minibatch and, last, after all.
        ends: For each minibatch whether a part ends a sweep in it.
        numbers: Number of the minibatch that begins at a cursor.
    """

    order: npt.NDArray[np.intp]
    loads: npt.NDArray[np.uint32]
    bounds: list[int]
    cursors: list[Cursor]
    ends: list[bool]
    numbers: dict[Cursor, int]


class _Bookmark(NamedTuple):
    """Position of the timeline, and the other values that the next read needs."""

    settings: tuple[Size, Partition] | None
    cursor: Cursor
    rounds_to_pass: int
    weights: Weights
    epoch_end: int | None

    @property
    def position(self) -> int:
        return self.cursor.position


class _Part(Protocol):
    """The order of a part. Sequences and chunks are numbered in the joined table."""

    def go_to(self, number: int) -> None:
        """Go to a sequence, counted over sweeps."""

    def read(self, count: int) -> tuple[_Integers, _Integers]:
        """Read sequences: their indices and their chunks."""

    def needed(self, own: range) -> list[int]:
        """Return the chunks from which the next sequences come; of lanes, only the chunks of the `own` lanes."""

    def ahead(self, own: range) -> Iterator[int]:
        """Yield the chunks that are needed afterwards."""


class _PartOfOrder:
    """A part of the mixed order, with its `new` timeline, and its first sequence and chunk in the joined table."""

    def __init__(self, new: Callable[[], Timeline], first_sequence: int, first_chunk: int) -> None:
        self.timeline = new()
        self.first_sequence, self.first_chunk = first_sequence, first_chunk

    def go_to(self, number: int) -> None:
        sweep, rest = divmod(number, self.timeline.num_sequences)
        self.timeline.go_to(sweep * self.timeline.num_samples)
        if rest and not self.timeline.pass_over(rest, WHOLE, 1, LARGEST_WORD):
            self.read(rest)

    def read(self, count: int) -> tuple[_Integers, _Integers]:
        columns: list[tuple[_Integers, _Integers]] = []
        while count:
            selection = self.timeline.read(count)
            assert selection is not None  # a part has no end
            columns.append((selection.sequences, selection.chunks))
            count -= len(selection.sequences)
        sequences, chunks = (np.concatenate(column) for column in zip(*columns, strict=True))
        return sequences + self.first_sequence, chunks + self.first_chunk

    def needed(self, own: range) -> list[int]:
        return [self.first_chunk + chunk for chunk in self.timeline.needed_chunks().chunks]

    def ahead(self, own: range) -> Iterator[int]:
        return (self.first_chunk + chunk for chunk in self.timeline.chunks_ahead())


class _Lanes:
    """The parts of a mixture in lanes.

    Attributes:
        partition: The lanes, and which of them are delivered.
        parts: The orders of the parts.
        pieces: The pieces of chunks that the lanes load.
    """

    def __init__(
        self, partition: GlobalPartition, parts: Sequence[_PartOfOrder], chunk_starts: _Integers, *, loads_parts: bool
    ) -> None:
        self.partition = partition
        self.parts = [part.timeline.in_lanes(partition, part.first_sequence) for part in parts]
        firsts = [first for part in self.parts for first in part.firsts]
        self._firsts = np.array(firsts)
        self.pieces = PiecesOfLanes(chunk_starts, firsts if loads_parts else [])
        self.pieces.place(lane for part in self.parts for lane in part.lanes)

    def _numbers(self, sequences: _Integers) -> _Integers:
        """Return the number of the lane of each sequence."""
        # The last of several lanes that begin with a sequence has it: the others are empty.
        lanes: _Integers = (np.searchsorted(self._firsts, sequences, side="right") - 1) % self.partition.lanes
        return lanes

    def are_own(self, sequences: _Integers) -> npt.NDArray[np.bool_]:
        """Return which sequences are in a lane that is delivered."""
        lanes, own = self._numbers(sequences), self.partition.own_lanes
        found: npt.NDArray[np.bool_] = (lanes >= own.start) & (lanes < own.stop)
        return found

    def page(self, run: _Run, kept: npt.NDArray[np.intp], size: Size, budget: Budget, seed: int) -> _Page:
        """Cut a block: each lane has steps of its own, and step number k of all lanes is a minibatch."""
        lanes = self._numbers(run.sequences[kept])
        kept = kept[np.argsort(lanes, kind="stable")]
        bounds = np.append(0, np.cumsum(np.bincount(lanes, minlength=self.partition.lanes))).tolist()
        if isinstance(size, Budget):
            order, steps = _cut_each(budget, run.lengths[kept], bounds, seed, run.first)
        else:
            order, steps = _spread(size, run.lengths[kept], bounds, seed)
        kept = kept[order]
        num_steps = int(steps.max(initial=-1)) + 1
        ends = np.bincount(steps[run.ends[kept]], minlength=num_steps) > 0
        own = np.flatnonzero(self.are_own(run.sequences[kept]))
        # Stable, so that a step has the lanes one after the other, each in its own order.
        own = own[np.argsort(steps[own], kind="stable")]
        bounds = np.append(0, np.cumsum(np.bincount(steps[own], minlength=num_steps))).tolist()
        cursors = [Cursor(run.first, index=run.end * bool(step), batch=step) for step in range(num_steps)]
        numbers = {cursor: number for number, cursor in enumerate(cursors)}
        return _Page(kept[own], run.lengths[kept[own]], bounds, [*cursors, Cursor(run.end)], ends.tolist(), numbers)


class MixedTimeline:
    """The mixed order of several timelines.

    Args:
        timelines: For each part a function that makes its timeline, which has no end and counts sequences.
        lengths: Samples of all sequences of all parts.
        first_sequences: First sequence of each part and, last, the number of sequences.
        first_chunks: First chunk of each part and, last, the number of chunks.
        chunk_starts: First sequence of each chunk and, last, the number of sequences.
        weights: The weights of the parts.
        seed: Seed of the order of a pool's minibatches.
        stop: Whether the data end with the first part that has delivered a sweep, with the last, or never.
        loads_parts: Whether parts of chunks can be loaded, for lanes.
        omissions: Sequences that are left out from some positions on.
    """

    def __init__(
        self,
        timelines: Sequence[Callable[[], Timeline]],
        lengths: npt.NDArray[np.unsignedinteger[Any]],
        first_sequences: Sequence[int],
        first_chunks: Sequence[int],
        chunk_starts: npt.NDArray[np.int64],
        weights: Weights,
        *,
        seed: int = 0,
        stop: str = "forever",
        loads_parts: bool = False,
        omissions: Omissions | None = None,
    ) -> None:
        self._omissions, self._loads_parts = omissions, loads_parts
        self.checkpoint_settings: Mapping[str, Any] = {}
        # The lists of first sequences and first chunks have another entry, the total.
        self._new_parts = [*zip(timelines, first_sequences, first_chunks, strict=False)]
        self._plain = [_PartOfOrder(*part) for part in self._new_parts]
        self._parts: Sequence[_Part] = self._plain
        self._lengths, self._chunk_starts = lengths, np.ascontiguousarray(chunk_starts, np.int64)
        self._lanes: _Lanes | None = None
        self._own = self._weights = weights
        self._seed, self._stop = seed, stop
        self.num_samples = sum(part.timeline.num_samples for part in self._plain)
        self.num_sequences, self.num_chunks = len(lengths), len(chunk_starts) - 1
        timelines_of_parts = [part.timeline for part in self._plain]
        # Up to there, positions of the parts, which count samples, have 63 bits.
        self._last = min(2**62 // of_one.num_samples * of_one.num_sequences for of_one in timelines_of_parts)
        self._budgets = Budgets(None)
        self._epoch_end: int | None = None
        self._settings: tuple[Size, Partition] | None = None
        self._mode: ReadMode | None = None
        self._turns: InTurn | None = None  # the part of the mode that knows the turns of workers
        self._budget: Budget | None = None  # the budget of a minibatch of this partition
        self.at = Cursor(0)  # the position, a cursor of a page
        self._run: _Run | None = None  # after a move there is none, because the parts are elsewhere
        self._page: _Page | None = None
        self._held = 0
        self._plan = Plan([], 0)
        self._planned: _Run | None = None

    @property
    def end(self) -> int:
        return self._end_of(self._weights, self._epoch_end)

    def _end_of(self, weights: Weights, epoch_end: int | None) -> int:
        """Return the position at which the data end; without an end, the last position to which all parts can go."""
        if epoch_end is not None or self._stop == "forever":
            return self._last if epoch_end is None else min(epoch_end, self._last)
        # For each part the position at which it has delivered its first sweep.
        sizes = [part.timeline.num_sequences for part in self._plain]
        ends = [weights.position_after(part, size) for part, size in enumerate(sizes)]
        return min(self._last, end_of_components(ends, self._stop))

    def _prepared(self) -> _Run:
        """Return the run that was computed; after a move, an empty run at the position."""
        position = self.at.position
        if self._run is None or not self._run.first <= position <= self._run.end:
            for part, number in zip(self._parts, self._weights.taken_at(position), strict=True):
                part.go_to(number)
            empty = np.empty(0, np.int64)
            self._run = _Run(position, empty, empty, empty.astype(np.uint32), empty.astype(np.bool_))
            self._page = None
        return self._run

    def run(self, first: int, count: int) -> tuple[_Run, bool]:
        """Return at least `count` sequences from a position on, fewer only if the data end, and whether they end."""
        run, end = self._prepared(), self.end
        until = min(first + count, end)
        if run.end < until:
            self._run = None  # in case an exception leaves the parts elsewhere
            following = self._following(run.end, min(max(until, run.end + _LEAST_RUN), end))
            # Going back to the held position needs the sequences from there on.
            run = self._run = run.between(max(min(self._held, first), run.first), run.end).then(following)
        until = min(run.end, end)  # an epoch may end earlier
        return run.between(first, until), until == end

    def _following(self, begin: int, end: int) -> _Run:
        parts = self._weights.components(begin, end)
        # Stable, so that the sequences of a part keep their order.
        by_part = np.argsort(parts, kind="stable")
        counts = np.bincount(parts, minlength=len(self._parts)).tolist()
        taken = self._weights.taken_at(begin)
        sequences, chunks = np.empty((2, len(parts)), np.int64)
        ends = np.zeros(len(parts), np.bool_)
        first = 0
        sizes = [part.timeline.num_sequences for part in self._plain]
        for part, size, before, count in zip(self._parts, sizes, taken, counts, strict=True):
            if count:
                places = by_part[first : first + count]
                sequences[places], chunks[places] = part.read(count)
                ends[places] = np.arange(before + 1, before + count + 1) % size == 0
                first += count
        return _Run(begin, sequences, chunks, self._lengths[sequences].astype(np.uint32), ends)

    def page(self) -> tuple[_Page, int, _Run] | None:
        """Return minibatches, the number of the next of them, and the sequences that they index; None at the end."""
        assert self._budget is not None
        while True:
            self._prepared()
            page = self._page
            if page is None or self.at not in page.numbers:
                if self.at.position >= self.end:
                    return None
                at, lanes = (self.at.position, self._budget), self._lanes
                page = self._page = self._cut(*at) if lanes is None else self._block(*at, lanes)
            if len(page.bounds) > 1:
                run = self._prepared()
                return page, page.numbers[self.at], run.between(page.cursors[0].position, run.end)
            self.at = page.cursors[-1]  # everything in it was left out

    def _kept(self, run: _Run, longest: int) -> npt.NDArray[np.intp]:
        """Return the indices of the sequences that are neither left out nor longer than `longest`."""
        kept = run.lengths <= longest
        return np.flatnonzero(
            kept
            if self._omissions is None
            else kept & self._omissions.keep(run.sequences, np.arange(run.first, run.end))
        )

    def _cut(self, position: int, budget: Budget) -> _Page:
        """Cut the next page."""
        core = budget.for_core()
        longest = core.longest_at(position)
        if budget.pool is None:
            count = _LEAST_RUN
            while True:
                run, is_end = self.run(position, count)
                kept = self._kept(run, longest)
                cut = core.batches(run.lengths[kept], 0, position)
                bounds = cut.bounds
                if is_end or len(bounds) > 2:
                    break
                count = 2 * max(len(run.lengths), 1)  # the only minibatch may continue after the run
            after = position + len(run.lengths)
            # Sequences after the run may belong to the last minibatch, so it is left to the next page. If limits change
            # with the position, the page has a single minibatch.
            if budget.schedules and len(bounds) > 1:
                bounds = bounds[:2]
            elif not is_end:
                bounds = bounds[:-1]
            if (not is_end or budget.schedules) and len(bounds) > 1 and bounds[-1] < len(kept):
                after = position + int(kept[bounds[-1]])
            cursors = [Cursor(position + first) for first in kept[bounds[:-1]].tolist()]
            # A page begins at the timeline's position, even if its first sequences are dropped.
            cursors[:1] = [Cursor(position)] * bool(cursors)
        else:
            run = self._pool(position, budget, budget.pool, longest)
            kept = self._kept(run, longest)
            cut = core.batches(run.lengths[kept], (self._seed + position) % 2**64, position)
            bounds = cut.bounds
            after = run.end
            # The pool's end is in the state, because weights change there. A pool that has not begun is only a
            # position.
            cursors = [Cursor(position, index=after * bool(batch), batch=batch) for batch in range(len(bounds) - 1)]
        indices = kept[cut.order[: bounds[-1]]]
        ends = np.logical_or.reduceat(run.ends[indices], bounds[:-1]).tolist() if cursors else []
        numbers = {cursor: number for number, cursor in enumerate(cursors)}
        return _Page(indices, cut.loads, bounds, [*cursors, Cursor(after)], ends, numbers)

    def _block(self, position: int, budget: Budget, lanes: _Lanes) -> _Page:
        """Cut the next block of steps in lanes: a pool, or about as many sequences as some steps have."""
        assert self._settings is not None
        size, longest = self._settings[0], budget.for_core().longest_at(position)
        if isinstance(size, Budget) and size.pool is not None:
            run = self._pool(position, size, size.pool, longest)
        else:
            num_samples = about_samples(size) * _STEPS_OF_BLOCK
            count = max(num_samples * self.num_sequences // self.num_samples, lanes.partition.lanes)
            run = self.run(position, min(count, _MOST_AT_ONCE))[0]
            run = run.between(position, min(run.end, position + count, position + _MOST_AT_ONCE))
        return lanes.page(run, self._kept(run, longest), size, budget, (self._seed + position) % 2**64)

    def _pool(self, position: int, budget: Budget, size: int, longest: int) -> _Run:
        """Return the sequences of a pool. It ends before the sequence that would exceed its size."""
        # Another sequence shows that the pool is complete. The size may be far above the number of sequences.
        count = min(size, 1 << 20) + 1
        while True:
            run, is_end = self.run(position, count)
            kept = self._kept(run, longest)
            amounts = np.cumsum(run.lengths[kept] if budget.pool_unit == "samples" else np.ones(len(kept), np.int64))
            num_in_pool = max(int(np.searchsorted(amounts, size, side="right")), 1)
            if num_in_pool < len(kept):
                return run.between(position, position + int(kept[num_in_pool]))
            if is_end:
                return run
            count = 2 * len(run.lengths)

    def _mode_for(self, size: Size, partition: Partition, rounds_to_pass: int | None = None) -> ReadMode:
        if self._mode is None or (size, partition) != self._settings:
            check_request(about_samples(size), Limits())
            check_change(self._settings, size, partition, self.at, span="block")
            lanes = self._checked_lanes(partition)
            # As in other sources, a sequence that is longer than the size comes alone.
            whole = size if isinstance(size, Budget) else Budget(samples=size, oversize="alone")
            if isinstance(size, Budget) and lanes is not None:
                budget = share_of_lane(size, lanes.lanes)
            elif isinstance(size, Budget):
                budget = size.share(partition.num_shares)
            else:
                budget = Budget(samples=max(size // partition.num_shares, 1), oversize="alone")
            if budget.carry:
                raise ConfigError(
                    "a mixture of sequences takes no carry: its weights change between pools", key="carry"
                )
            self._budgets.check(self._lengths, budget, partition)
            self._require_room(budget if lanes is None else whole)
            mode: ReadMode = _Minibatches(self)
            turns: InTurn | None = None
            if partition.rounds is not None or partition.of_reads.count > 1:
                mode = Rounds(mode, partition)
            if isinstance(partition, GlobalPartition):
                if partition.deal == "chunk" or partition.remainder == "merge":
                    message = "a mixture of sequences takes neither deal='chunk' nor remainder='merge'"
                    key = "deal" if partition.deal == "chunk" else "remainder"
                    raise ConfigError(f"{message}; use deal='length' and remainder='empty'", key=key)
                if rounds_to_pass is None and self._settings and self._settings[1].of_workers == partition.of_workers:
                    rounds_to_pass = self._rounds_to_pass()
                mode = turns = InTurn(mode, partition, rounds_to_pass)
                if partition.count > 1 and partition.is_dealt:
                    mode = DealtMinibatches(mode, self._chunk_starts, partition, budget)
            if (size, lanes) != (self._settings and self._settings[0], self._lanes and self._lanes.partition):
                self._page = None
            self._settings, self._mode, self._turns = (size, partition), mode, turns
            if budget != self._budget:
                self._budget, self._page = budget, None
            self._set_lanes(lanes)
        return self._mode

    def _checked_lanes(self, partition: Partition) -> GlobalPartition | None:
        """Return a partition that has lanes; otherwise None. Refuse a change of the lanes."""
        if self._settings is not None and self.at.position and partition.num_lanes != self._settings[1].num_lanes:
            what = f"lanes change from {self._settings[1].num_lanes} to {partition.num_lanes}"
            why = f"at position {self.at.position}, where sweeps of the parts have begun in another order"
            raise ConfigError(f"{what} {why}; keep the lanes, or begin at position 0", key="lanes")
        return partition if isinstance(partition, GlobalPartition) and partition.lanes else None

    def _set_lanes(self, partition: GlobalPartition | None) -> None:
        """Let the parts have the lanes of a partition; None: no lanes."""
        former, self._planned = self._lanes, None
        if partition is not None and former is not None and partition.lanes == former.partition.lanes:
            former.partition = partition
        elif not (partition is None and former is None):
            found = None if partition is None else self._new_lanes(partition)
            self._lanes, self._parts, self._run = found, found.parts if found else self._plain, None

    def _new_lanes(self, partition: GlobalPartition) -> _Lanes:
        return _Lanes(partition, self._plain, self._chunk_starts, loads_parts=self._loads_parts)

    def refs(self, sequences: _Integers) -> ChunkRefs | None:
        """Return where sequences are in the pieces of lanes; None: the order has no lanes."""
        return None if self._lanes is None else self._lanes.pieces.refs(sequences)

    def _require_room(self, budget: Budget) -> None:
        """Refuse a pool or a minibatch of more sequences than memory holds; the data may never end."""
        key = "minibatch_size_in_samples" if budget.pool is None else "pool"
        size = about_samples(budget) if budget.pool is None else budget.pool
        if budget.pool is None or budget.pool_unit == "samples":
            size = size * self.num_sequences // self.num_samples
        if min(size, self.end) > _MOST_AT_ONCE:
            message = f"a mixture reads the sequences of a {'minibatch' if budget.pool is None else 'pool'} at once"
            raise ConfigError(f"{message}, and {size} are too many; expected at most {_MOST_AT_ONCE}", key=key)

    def _rounds_to_pass(self) -> int:
        return 0 if self._turns is None else self._turns.rounds_to_pass

    def read(self, minibatch_size_in_samples: Size, partition: Partition = WHOLE) -> Selection | None:
        """Deliver the next sequences: a single read of `read_several`."""
        reads = self.read_several(minibatch_size_in_samples, partition, 1)
        return None if reads is None else reads.selection

    def read_several(self, minibatch_size_in_samples: Size, partition: Partition, most: int) -> Reads | None:
        delivery = self._mode_for(minibatch_size_in_samples, partition).read(most)
        if delivery is None:
            return None
        selection, bounds, ends_of_sweep, cursors = delivery
        settings, _, rounds_to_pass, weights, epoch_end = self.bookmark()
        bookmarks = [_Bookmark(settings, cursor, rounds_to_pass, weights, epoch_end) for cursor in cursors]
        return Reads(selection, bounds, ends_of_sweep, bookmarks)

    def pass_over(self, minibatch_size_in_samples: Size, partition: Partition, most: int, until: int) -> int:
        return 0

    def needed_chunks(self, partition: Partition = WHOLE) -> Plan:
        run, own = self._prepared(), range(0)
        if run is not self._planned:
            self._planned, of_run, parts = run, run.chunks, None
            if self._lanes is not None:
                own, parts = self._lanes.partition.own_lanes, self._lanes.pieces.parts
                of_run = of_run[self._lanes.are_own(run.sequences)]
            chunks, firsts = np.unique(of_run, return_index=True)
            # The parts' own windows may have passed the chunks of sequences that are in the run.
            in_order = chunks[np.argsort(firsts)].tolist()
            for part in self._parts:
                in_order += part.needed(own)
            self._plan = Plan(list(dict.fromkeys(in_order)), self._plan.version + 1, parts)
        return self._plan

    def chunks_ahead(self, partition: Partition = WHOLE) -> Iterator[int]:
        counts = self._weights.counts_at(self._prepared().end)
        own, starts = range(0), self._chunk_starts
        if self._lanes is not None:
            own, starts = self._lanes.partition.own_lanes, self._lanes.pieces.starts

        def ahead(index: int, part: _Part) -> Iterator[tuple[float, int]]:
            due = 0.0
            for chunk_id in part.ahead(own):
                yield due, chunk_id
                # Number of rounds of 1,000 turns until the part needs its next chunk.
                num_turns = float(starts[chunk_id + 1] - starts[chunk_id])
                due += num_turns / counts[index] if counts[index] else math.inf

        for _, chunk_id in heapq.merge(*(ahead(index, part) for index, part in enumerate(self._parts))):
            yield chunk_id

    def bookmark(self) -> _Bookmark:
        return _Bookmark(self._settings, self.at, self._rounds_to_pass(), self._weights, self._epoch_end)

    def go_back(self, bookmark: _Bookmark, *, in_child: bool = False) -> None:
        if in_child:
            # The core's readers of the parent may be locked by a thread that does not exist here.
            self._plain = [_PartOfOrder(*part) for part in self._new_parts]
            lanes, self._lanes, self._parts, self._run = self._lanes, None, self._plain, None
            self._set_lanes(None if lanes is None else lanes.partition)
        # The run was computed with other weights, or up to another end.
        if (bookmark.weights, bookmark.epoch_end) != (self._weights, self._epoch_end):
            self._run = None
        self._weights, self._epoch_end = bookmark.weights, bookmark.epoch_end
        self._go_to(bookmark.cursor, bookmark.settings, bookmark.rounds_to_pass)

    def _go_to(self, cursor: Cursor, settings: tuple[Size, Partition] | None, rounds_to_pass: int) -> None:
        self.at, self._settings, self._page = cursor, None, None
        self._mode = self._turns = None
        if settings is not None:
            self._mode_for(*settings, rounds_to_pass)

    def hold(self, bookmark: _Bookmark) -> None:
        self._held = bookmark.cursor.position

    def begin_epoch(
        self, begin: int, end: int, truncation_length: int | None = None, num_rows: int | None = None
    ) -> None:
        self._go_to_position(begin)
        self._epoch_end = end

    def ends_at(self, bookmark: _Bookmark) -> bool:
        return bookmark.cursor.position >= self._end_of(bookmark.weights, bookmark.epoch_end)

    def _go_to_position(self, position: int) -> None:
        if not 0 <= position <= self._last:
            message = f"position {position} is outside 0..{self._last} (sequences of a mixture)"
            raise CheckpointError(message, saved=position)
        self._go_to(Cursor(position), None, 0)

    def checkpoint(self, bookmark: _Bookmark | None = None) -> dict[str, int]:
        return {POSITION: (bookmark or self.bookmark()).cursor.position}

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        self._go_to_position(whole(POSITION, checkpoint.get(POSITION)))

    def state(self, bookmark: _Bookmark | None = None) -> dict[str, Any]:
        bookmark = bookmark or self.bookmark()
        position, batch = bookmark.cursor.position, bookmark.cursor.batch
        state = State(position, bookmark.settings, None, None, bookmark.rounds_to_pass, 0, batch).to_json()
        if batch:
            state["pool_end"] = bookmark.cursor.index
        return {**state, "weights": bookmark.weights.to_json()}

    def load_state(self, state: Mapping[str, Any], num_rows: int | None = None) -> None:
        position, settings, _, _, rounds_to_pass, _, batch, _ = State.from_json(state)
        saved = Weights.from_json(state.get("weights"), self._own.names)
        if saved.first:
            raise damaged("weights", state.get("weights"), "weights from position 0 on")
        free = whole("pool_end", state.get("pool_end", position), least=position) if batch else position
        weights = self._own.resumed(saved, free)
        if batch and weights != saved and settings is not None and _counts_samples(state):
            message = "the state is inside a pool of samples, whose end depends on the tables of weights"
            raise CheckpointError(f"{message}; open the mixture with the tables of the state", saved=state["weights"])
        before = self.bookmark()
        try:
            if weights != self._weights:
                self._weights, self._run = weights, None
            self._go_to_position(position)
            self._go_to(Cursor(position), settings, rounds_to_pass)
            # The cursor has the end of the pool, which is known once the pool is cut.
            if batch:
                is_block = settings is not None and (has_pool(settings[0]) or settings[1].num_lanes > 0)
                pool = self.page() if is_block else None
                below("batch", batch, 0 if pool is None else len(pool[0].cursors) - 1)
                assert pool is not None
                self.at = pool[0].cursors[batch]
        except (ConfigError, CheckpointError) as error:
            self.go_back(before)
            if isinstance(error, ConfigError):
                raise refused(state, error) from error
            raise


def _spread(size: int, lengths: npt.NDArray[np.uint32], bounds: list[int], seed: int) -> tuple[_Integers, _Integers]:
    """Spread the sequences of each lane evenly over steps of a size: the order of all, and the step of each.

    No step is without sequences.

    `bounds` has the first sequence of each lane and, last, the number of sequences.
    """
    order = np.arange(len(lengths))
    # A step for each sequence is enough, if sequences are longer than the size.
    num_steps = min(-(-int(lengths.sum(dtype=np.int64)) // size), len(lengths))
    if not num_steps:
        return order, order
    steps = _core.steps_of_lanes(lengths, bounds, [*range(len(bounds) - 1)], num_steps, seed).astype(np.int64)
    # Lanes that have fewer sequences than there are steps may all leave the same step empty.
    numbers = np.cumsum(np.bincount(steps) > 0) - 1
    return order, numbers[steps]


def _cut_each(
    budget: Budget, lengths: npt.NDArray[np.uint32], bounds: list[int], seed: int, position: int
) -> tuple[_Integers, _Integers]:
    """Cut the sequences of each lane by a budget; arguments and result as for `_spread`."""
    core, orders, steps = budget.for_core(), [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        of_lane = (seed + (number + 1) * SEED_STEP) % 2**64
        cut = core.batches(lengths[first:end], of_lane, position)
        orders.append(first + cut.order[: cut.bounds[-1]].astype(np.int64))
        steps.append(np.repeat(np.arange(len(cut.bounds) - 1), np.diff(cut.bounds)))
    return np.concatenate(orders), np.concatenate(steps)


@dataclasses.dataclass(frozen=True, slots=True)
class _Minibatches(ReadMode):
    """Deliver minibatches of the mixed order."""

    timeline: MixedTimeline

    def read(self, most: int) -> Reads | None:
        found = self.timeline.page()
        if found is None:
            return None
        page, first, run = found
        last = min(first + most, len(page.ends))
        begin, end = page.bounds[first], page.bounds[last]
        order, cursors, ends = page.order[begin:end], page.cursors[first + 1 : last + 1], page.ends[first:last]
        sequences, chunks, loads = run.sequences[order], run.chunks[order], page.loads[begin:end]
        refs = self.timeline.refs(sequences)
        selection = Selection(sequences, chunks, ends[-1], cursors[-1].position, refs=refs, loads=loads)
        self.timeline.at = cursors[-1]
        return Reads(selection, [bound - begin for bound in page.bounds[first : last + 1]], ends, cursors)

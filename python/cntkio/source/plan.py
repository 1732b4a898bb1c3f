"""`SourcePlan`: the deliveries of a source, step by step, from the index alone. (docs/plan.md)

The plan selects minibatches as the source does, with a `Selector` on a timeline of its own and chunks that are never
loaded. So it delivers nothing, and the source stays where it is.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cntkio.arguments import whole_number
from cntkio.displays import Description, Displayed, counted
from cntkio.errors import CntkIoError, ConfigError, CorpusError, FormatError
from cntkio.formats.contract import Corpus, PlacesInFiles
from cntkio.source.arrangement import Arrangement
from cntkio.source.chunks import Taken
from cntkio.source.pipeline import Accounts, HandOver, PackOrder, Request
from cntkio.source.selecting import Selector
from cntkio.timeline import AnyTimeline, Bookmark, ChunkRefs, Plan
from cntkio.timeline.budget import about_samples, cost_of, scheduled_limits, size_text
from cntkio.timeline.window import LARGEST_WORD

_SAMPLES_AT_ONCE = 1 << 18
_LEAST_AT_ONCE, _MOST_AT_ONCE = 16, 2048
# The types of the columns of `PlannedSteps`, and of the number of loaded chunks.
_KINDS = (np.uint64, np.int64, np.int64, np.int64, np.float64, np.bool_, np.int64, np.int64)

# A walk passes about 15 million sequences, and at most a million steps, in a second.
_MOST_STEPS, _MOST_SEQUENCES = 2**28, 2**32

_Indices: TypeAlias = npt.NDArray[np.int64]


def require_few_steps(num_steps: int, num_sequences: float = math.inf, what: str = "") -> None:
    """Refuse a number of steps that takes hours to walk through, unless the data end after few sequences.

    `what` is named in the message; by default it is the number of steps.
    """
    if num_steps > _MOST_STEPS and num_sequences > _MOST_SEQUENCES:
        limit = f"at most {_MOST_STEPS} steps, or {_MOST_SEQUENCES} sequences"
        advice = "begin_epoch and restore_from_checkpoint go to a position at once"
        what = what or f"{num_steps} steps"
        raise ConfigError(f"{what}: too far for a plan, which walks through {limit}; {advice}", key="num_steps")


class NoChunks:
    """A stand-in for a `ChunkStore` that loads nothing. A plan names whole chunks, so it has no pieces.

    Attributes:
        counts: For each call of `take`, the number of chunks in the window, and the number of chunks that would have
            been loaded so far; a chunk that is needed again later counts again.
    """

    def __init__(self) -> None:
        self.planned: int | None = None
        self.counts: list[tuple[int, int]] = []
        self._num_loads = 0
        self._needed: set[int] = set()

    def plan(self, needed: Plan, used: Sequence[int], ahead: Iterator[int]) -> None:
        now = {*used, *needed.chunks}
        self._num_loads += len(now - self._needed)
        self.planned, self._needed = needed.version, now

    def take(self, refs: Sequence[ChunkRefs], bounds: Sequence[int]) -> Taken:
        self.counts.append((len(self._needed), self._num_loads))
        return Taken([[] for _ in refs], len(bounds) - 1, None, [(0, ())])

    def accounts(self) -> Accounts:
        return ()

    def stand(self, needed: Plan, accounts: Accounts) -> None: ...
    def pieces(self, corpus_index: int) -> None: ...
    def begin_in_child(self) -> None: ...
    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PlannedSteps(Displayed):
    """Consecutive steps. Each attribute is an array with an entry for each step.

    Attributes:
        positions: Position on the timeline after the step, in samples of all partitions, uint64.
        num_sequences: Sequences of the minibatch, int64; of a truncated minibatch, parts of sequences.
        num_samples: Samples of the minibatch, int64, as the minibatch size counts them.
        padded_areas: Samples of the minibatch when all sequences are padded to the longest, int64.
        costs: Sum of the squares of the lengths, which attention takes time for, or of the costs of a `Budget` with
            `cost`; float64.
        ends_of_sweep: Whether the step reaches or crosses the end of a sweep, bool.
        num_chunks: Chunks of the first deserializer's order from which the sequences could come, int64. Steps that are
            selected together have one number, so it can be larger in a plan of more steps.
        components: Sequences of each part of a mixture, int64, by its name; of other sources empty.
        limits: Each limit of a `Budget` that changes with the position, int64, by its name: the value where the step
            begins. With balanced partitions, this is where the round begins.
    """

    positions: npt.NDArray[np.uint64]
    num_sequences: npt.NDArray[np.int64]
    num_samples: npt.NDArray[np.int64]
    padded_areas: npt.NDArray[np.int64]
    costs: npt.NDArray[np.float64]
    ends_of_sweep: npt.NDArray[np.bool_]
    num_chunks: npt.NDArray[np.int64]
    components: Mapping[str, npt.NDArray[np.int64]] = dataclasses.field(default_factory=dict, kw_only=True)
    limits: Mapping[str, npt.NDArray[np.int64]] = dataclasses.field(default_factory=dict, kw_only=True)

    @classmethod
    def joined(cls, several: Sequence[PlannedSteps], order: _Indices) -> PlannedSteps:
        """Return steps of several plans of one size, in an order of all of them, without the `components`."""
        names = [field.name for field in dataclasses.fields(cls) if not field.kw_only]
        columns = (np.concatenate([getattr(steps, name) for steps in several])[order] for name in names)
        limits = {name: np.concatenate([steps.limits[name] for steps in several])[order] for name in several[0].limits}
        return cls(*columns, limits=limits)

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def padding(self) -> float:
        """Share of the padded arrays of all steps that is padding."""
        area = int(self.padded_areas.sum())
        return 1 - int(self.num_samples.sum()) / area if area else 0.0

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of a table with a row for each step, for `pyarrow.table` or `pandas.DataFrame`.

        Example:
            >>> from cntkio import CTFDeserializer, MinibatchSource, infer_streams
            >>> path = "examples/iris/iris.ctf"
            >>> with MinibatchSource(CTFDeserializer(path, infer_streams(path)), max_sweeps=1) as source:
            ...     columns = source.plan(100).steps(9).columns()
            >>> list(columns)
            ['step', 'position', 'sequences', 'samples', 'padded', 'cost', 'end_of_sweep', 'chunks']
            >>> columns["samples"].tolist(), columns["end_of_sweep"].tolist()
            ([100, 50], [False, True])
        """
        return {
            "step": np.arange(len(self)), "position": self.positions, "sequences": self.num_sequences,
            "samples": self.num_samples, "padded": self.padded_areas, "cost": self.costs,
            "end_of_sweep": self.ends_of_sweep, "chunks": self.num_chunks,
            **{f"sequences of {name}": counts for name, counts in self.components.items()},
            **{f"limit of {name}": values for name, values in self.limits.items()},
        }  # fmt: skip

    def _description(self) -> Description:
        title = f"{counted(len(self), 'step')}, {self.padding:.0%} padding"
        columns = (self.positions, self.num_sequences, self.num_samples, self.padded_areas)
        steps = enumerate(zip(*(column.tolist() for column in columns), strict=True))
        rows = [(str(step), *map(str, row)) for step, row in steps]
        return Description(title, ("step", "position", "sequences", "samples", "padded"), rows, has_head=True)


class PlannedSweep(NamedTuple):
    """The steps of a sweep.

    Attributes:
        steps: The steps.
        sequences: The sequences of all steps, one after the other, by their index in the first corpus, int64.
        num_loads: Chunks of the first corpus that are loaded; a chunk that is loaded twice counts twice.
    """

    steps: PlannedSteps
    sequences: npt.NDArray[np.int64]
    num_loads: int


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedOrigin:
    """Location of sequences in the data of one deserializer.

    Attributes:
        name: Name of the corpus, usually the file.
        sequences: Index of each sequence in the corpus, int64.
        chunks: Chunk of each sequence, int64.
    """

    name: str
    sequences: npt.NDArray[np.int64]
    chunks: npt.NDArray[np.int64]
    _find: Callable[[npt.NDArray[np.int64]], PlacesInFiles]

    @functools.cached_property
    def places(self) -> PlacesInFiles:
        """File, first byte and line of each sequence.

        They are computed on first access. To count lines, this reads a text up to the last of these sequences.

        Raises:
            OSError: A file cannot be read.
            FormatError: The header of a file breaks its format.
        """
        return self._find(self.sequences)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ExplainedStep(Displayed):
    """The sequences of one step.

    Attributes:
        step: The step.
        position: Position on the timeline after the step, in samples of all partitions.
        keys: Key of each sequence, as in `Minibatch.keys_of_sequences`.
        first_samples: First sample of each sequence that is delivered, int64: 0, except in frames and truncated parts.
        num_samples: Number of samples of each sequence that are delivered, int64.
        origins: For each deserializer, where the sequences are.
        end_of_sweep: Whether the step reaches or crosses the end of a sweep.
    """

    step: int
    position: int
    keys: npt.NDArray[Any]
    first_samples: npt.NDArray[np.int64]
    num_samples: npt.NDArray[np.int64]
    origins: list[PlannedOrigin]
    end_of_sweep: bool

    def _description(self) -> Description:
        sequences, samples = counted(len(self.keys), "sequence"), counted(int(self.num_samples.sum()), "sample")
        return _of_rows(f"Step {self.step}: {sequences}, {samples}", self, {})


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Ledger(Displayed):
    """The sequences of consecutive steps: a row for each sequence, in delivered order.

    Attributes:
        steps: Step of each row, int64.
        positions: Position on the timeline after each of the steps, uint64; not one for each row.
        keys: Key of each row, as in `Minibatch.keys_of_sequences`.
        first_samples: First sample of the row that is delivered, int64.
        num_samples: Number of samples of the row that are delivered, int64.
        origins: For each deserializer, where the sequences are.
    """

    steps: npt.NDArray[np.int64]
    positions: npt.NDArray[np.uint64]
    keys: npt.NDArray[Any]
    first_samples: npt.NDArray[np.int64]
    num_samples: npt.NDArray[np.int64]
    origins: list[PlannedOrigin]

    @classmethod
    def of(cls, explained: Sequence[ExplainedStep]) -> Ledger:
        """Join at least one step."""
        steps = np.repeat([one.step for one in explained], [len(one.keys) for one in explained])
        keys = np.concatenate([one.keys for one in explained])
        first_samples = np.concatenate([one.first_samples for one in explained])
        num_samples = np.concatenate([one.num_samples for one in explained])
        origins = [
            dataclasses.replace(
                of_one[0],
                sequences=np.concatenate([origin.sequences for origin in of_one]),
                chunks=np.concatenate([origin.chunks for origin in of_one]),
            )
            for of_one in zip(*(one.origins for one in explained), strict=True)
        ]
        positions = np.array([one.position for one in explained], np.uint64)
        return cls(steps, positions, keys, first_samples, num_samples, origins)

    def __len__(self) -> int:
        return len(self.steps)

    def _description(self) -> Description:
        title = f"Ledger: {counted(len(self), 'sequence')} in {counted(len(self.positions), 'step')}"
        return _of_rows(title, self, {"step": self.steps})


class SourcePlan(Displayed):
    """Steps of a source with one minibatch size and partition; see `cntkio.MinibatchSource.plan`.

    Steps are numbered from 0. A step is a read that delivers a minibatch.

    Args:
        begin: Makes a timeline at the beginning of step 0.
        selector: Makes a selector of a timeline and chunks.
        corpora: The corpora of the source.
        arrangement: Its sequences.
        request: The request of each read.
        take_state: Makes a state of the source from the state of a timeline.
        first_sequences: For each part of a mixture of sequences, its first sequence and, last, the number of sequences.
    """

    def __init__(
        self,
        begin: Callable[[], AnyTimeline],
        selector: Callable[[AnyTimeline, NoChunks], Selector],
        corpora: Sequence[Corpus],
        arrangement: Arrangement,
        request: Request,
        take_state: Callable[[Mapping[str, Any]], dict[str, Any]],
        first_sequences: Mapping[str, int],
    ) -> None:
        self._first_sequences = first_sequences
        self._begin, self._selector, self._take_state = begin, selector, take_state
        self._corpora, self._arrangement, self._request = corpora, arrangement, request
        # Steps to select together.
        self._at_once = min(max(_SAMPLES_AT_ONCE // about_samples(request.size), _LEAST_AT_ONCE), _MOST_AT_ONCE)

    def _description(self) -> Description:
        request, table = self._request, self._arrangement.table
        data = f"{counted(table.num_sequences, 'sequence')} in {counted(table.num_chunks, 'chunk')}"
        title = f"SourcePlan: minibatches of {size_text(request.asked)}, {request.partition!r}; {data}"
        return Description(title, ("corpus",), [(corpus.name,) for corpus in self._corpora])

    def steps(self, num_steps: int) -> PlannedSteps:
        """Return the first steps: `num_steps`, or fewer if the data end.

        Raises:
            ConfigError: There are too many steps.
            CorpusError: An error that the source raises in one of these steps.
        """
        timeline = self._begin()
        self._require_few(timeline, whole_number("num_steps", num_steps, least=0))
        return self._walk(timeline, num_steps).steps

    def sweep(self) -> PlannedSweep:
        """Return the steps up to the first that reaches or crosses the end of a sweep, and their sequences.

        Raises:
            CorpusError: An error that the source raises in one of these steps.
        """
        return self._walk(self._begin(), None)

    def _walk(self, timeline: AnyTimeline, num_steps: int | None, hold: Any = None) -> PlannedSweep:
        """Walk through a number of steps; None: up to the end of a sweep. `hold` is as for `_hand_overs`."""
        chunks, num_walked, begin = NoChunks(), 0, timeline.bookmark().position
        # If the data have no steps, there are only these empty columns to join.
        columns: list[tuple[Any, ...]] = [tuple(np.zeros(0, kind) for kind in _KINDS)]
        sequences = [np.zeros(0, np.int64)]
        end = LARGEST_WORD if num_steps is None else num_steps
        for _, hand_over in self._hand_overs(timeline, chunks, end=end, hold=hold):
            of_first = [order for order in hand_over.orders if order.corpus_index == 0]
            # Each order of the first corpus comes from one call of `take`. The end of the data comes without an order.
            counts_of_orders = chunks.counts[len(chunks.counts) - len(of_first) :]
            for order, counts in zip(of_first, counts_of_orders, strict=True):
                sequences.append(self._sequences(order))
                _, lengths = self._samples(order, sequences[-1])
                positions = [_position(hand_over, order.first + at) for at in range(len(order.minibatches))]
                sums = _sums(order, lengths, cost_of(self._request.size))
                columns.append((positions, *sums, order.ends_of_sweep, *counts))
            num_walked += hand_over.num_minibatches
            has_ended = any(True in prepared.ends_of_sweep for prepared in hand_over.prepared)
            if has_ended if num_steps is None else num_walked >= num_steps:
                break
        # Counts of chunks, and the area of a truncated minibatch, are one number for all steps of an order.
        whole = [
            np.concatenate([np.broadcast_to(np.array(part[place], kind), len(part[0])) for part in columns])
            for place, kind in enumerate(_KINDS)
        ]
        ends = np.flatnonzero(whole[5])
        last = (int(ends[0]) + 1 if len(ends) else None) if num_steps is None else num_steps
        *of_steps, num_loads = (column[:last] for column in whole)
        begins = np.append(np.uint64(begin), of_steps[0])[:-1]
        steps = PlannedSteps(*of_steps, limits=scheduled_limits(self._request.size, begins))
        delivered = np.concatenate(sequences)[: int(steps.num_sequences.sum())]
        if self._first_sequences:
            steps = dataclasses.replace(steps, components=self._components(steps.num_sequences, delivered))
        return PlannedSweep(steps, delivered, int(num_loads[-1]) if len(steps) else 0)

    def _components(self, num_sequences: _Indices, sequences: _Indices) -> dict[str, _Indices]:
        """Return for each part of a mixture how many of the sequences of each step are its own."""
        firsts = np.array([*self._first_sequences.values()])
        parts = np.searchsorted(firsts, sequences, side="right") - 1
        cells = np.repeat(np.arange(len(num_sequences)), num_sequences) * len(firsts) + parts
        counts = np.bincount(cells, minlength=len(num_sequences) * len(firsts)).reshape(-1, len(firsts))
        return dict(zip(self._first_sequences, counts.T, strict=True))

    def explain(self, step: int | None = None, *, position: int | None = None) -> ExplainedStep:
        """Return the sequences of a step: their keys, and where they are in the data.

        Args:
            step: The step.
            position: A position on the timeline, in samples of all partitions, in place of a step: the step that passes
                it is explained.

        Raises:
            ConfigError: The data end before the step, it is too far away, or not exactly one of the two is given.
            CorpusError: An error that the source raises before the step.
        """
        timeline = self._begin()
        if step is not None and position is None:
            hand_over, index = self._find(step, timeline)
        elif position is not None and step is None:
            step, hand_over, index = self._find_position(position, timeline)
        else:
            raise ConfigError(f"step is {step} and position is {position}; expected exactly one of the two", key="step")
        return self._explained(step, hand_over, index)

    def ledger(self, first: int, last: int) -> Ledger:
        """Return the sequences of the steps from `first` to before `last`, as a table. It ends where the data end.

        It needs the index alone, and takes as long as `explain`, however many steps there are. (docs/ledger.md)

        Raises:
            ConfigError: `last` is not above `first`; or the data end before the first step, or it is too far away.
            CorpusError: An error that the source raises before the last of these steps.
        """
        if whole_number("last", last) <= whole_number("first", first, least=0):
            raise ConfigError(f"first is {first} and last is {last}; expected a larger last", key="last")
        timeline = self._begin()
        self._require_few(timeline, last)
        passed, explained = self._pass(timeline, first, LARGEST_WORD), list[ExplainedStep]()
        for begin, hand_over in self._hand_overs(timeline, NoChunks(), passed, last):
            passed = begin + hand_over.num_minibatches
            for step in range(max(begin, first), min(passed, last)):
                explained.append(self._explained(step, hand_over, step - begin))
            if passed >= last:
                break
        if not explained:
            raise ConfigError(f"first is {first}, but the data end after {passed} steps", key="first")
        return Ledger.of(explained)

    def _explained(self, step: int, hand_over: HandOver, index: int) -> ExplainedStep:
        orders = [order for order in hand_over.orders if order.first <= index < order.first + len(order.minibatches)]
        # A selector adds the order of the first corpus first.
        order_of_first = orders[0]
        index_in_order = index - order_of_first.first
        first, last = order_of_first.bounds[index_in_order:][:2]
        origins = []
        for order in orders:
            corpus = self._corpora[order.corpus_index]
            chunks = np.array(order.refs.chunk_ids, np.int64)[order.refs.chunk_indices[first:last]]
            origins.append(PlannedOrigin(corpus.name, self._sequences(order)[first:last], chunks, corpus.places))
        samples = self._samples(order_of_first, self._sequences(order_of_first))
        first_samples, num_samples = (own[first:last] for own in samples)
        keys = order_of_first.minibatches[index_in_order].keys_of_sequences
        position, ends_sweep = _position(hand_over, index), order_of_first.ends_of_sweep[index_in_order]
        return ExplainedStep(step, position, keys, first_samples, num_samples, origins, ends_sweep)

    def where(self, key: int | str | bytes, num_steps: int | None = None) -> list[int]:
        """Return the steps that deliver a sequence.

        Args:
            key: The key of the sequence; a text may be given as its bytes.
            num_steps: Number of steps to search; None: up to the first end of a sweep.

        Raises:
            ConfigError: There are too many steps.
            CorpusError: No sequence has that key; or an error that the source raises in one of these steps.
        """
        timeline = self._begin()
        self._require_few(timeline, 0 if num_steps is None else num_steps)
        # Orders have sequences of the corpus, not of the joined table.
        wanted = self._arrangement.partner(0, self._arrangement.table.keys.places_of(key))
        if not len(wanted):
            raise CorpusError(f"{self._corpora[0].name}: no sequence has the key {key!r}")
        found: list[int] = []
        for step, hand_over in self._hand_overs(timeline, NoChunks()):
            for order in hand_over.orders:
                if order.corpus_index == 0:
                    rows = np.flatnonzero(np.isin(self._sequences(order), wanted))
                    at = np.searchsorted(order.bounds, rows, side="right") - 1 + order.first + step
                    found.extend(dict.fromkeys(at.tolist()))
            end = num_steps
            if num_steps is None:
                ends_of_sweep = [end for prepared in hand_over.prepared for end in prepared.ends_of_sweep]
                end = step + ends_of_sweep.index(True) + 1 if True in ends_of_sweep else None
            if end is not None and step + hand_over.num_minibatches >= end:
                return [step for step in found if step < end]
        return found

    def state_at(self, num_steps: int) -> dict[str, Any]:
        """Return the state of the source after a number of steps, as `state_dict` returns it there.

        Raises:
            ConfigError: The data end before that step, or it is too far away.
            CorpusError: An error that the source raises before that step.
        """
        timeline = self._begin()
        bookmark: Bookmark = timeline.bookmark()
        if whole_number("num_steps", num_steps, least=0):
            hand_over, index = self._find(num_steps - 1, timeline)
            bookmark = hand_over.standing(index).bookmark
        return self._take_state(timeline.state(bookmark))

    # ---------------------------------------------------------------------------------------------- the walk

    def _pass(self, timeline: AnyTimeline, most: int, until: int) -> int:
        """Move a timeline from step 0 over at most `most` steps that end at position `until` or before.

        No step is selected, so the timeline may stop earlier.

        Returns:
            The number of steps before the point where the timeline stands now.
        """
        selector, num_passed = self._selector(timeline, NoChunks()), 0
        while num_passed < most:
            num_passed += selector.jump(self._request, min(most - num_passed, LARGEST_WORD), min(until, LARGEST_WORD))
            self._require_few(timeline, most - num_passed, until)
            if num_passed == most:
                break
            standing = selector.standing
            bookmarks = selector.pass_over(self._request, self._at_once)
            # Several steps are passed at once. If they go too far, the caller selects the rest of the way.
            is_too_far = num_passed + len(bookmarks) > most
            if not bookmarks or is_too_far or bookmarks[-1].position > until:
                selector.go_back(standing)
                break
            num_passed += len(bookmarks)
        return num_passed

    def _require_few(self, timeline: AnyTimeline, num_steps: int, until: int = LARGEST_WORD) -> None:
        """Refuse a number of further steps up to a position, if a walk through them takes hours."""
        if num_steps <= _MOST_STEPS:
            return
        num_samples = min(until, timeline.end or 0) - timeline.bookmark().position
        what = f"position {until}" if until < LARGEST_WORD else ""
        require_few_steps(num_steps, num_samples * timeline.num_sequences / timeline.num_samples, what)

    def _hand_overs(
        self, timeline: AnyTimeline, chunks: NoChunks, step: int = 0, end: int = LARGEST_WORD, hold: Any = None
    ) -> Iterator[tuple[int, HandOver]]:
        """Yield hand-overs, each with the step of its first minibatch. The caller needs the steps up to before `end`.

        The timeline stands before `step`, and can go back to the bookmark `hold`; None: to the last hand-over.
        """
        selector = self._selector(timeline, chunks)
        while True:
            count = min(self._at_once, max(end - step, 1))
            hand_over = selector.select(self._request, count, hold or selector.standing.bookmark)
            last = hand_over.prepared[-1]
            if last.error is not None and not isinstance(last.error, CntkIoError):
                raise last.error  # such as an interrupt in the middle of a step
            # The steps before an error count, and the caller may need no more than these.
            yield step, hand_over
            if last.error is not None:
                raise last.error
            if not last.minibatches:
                return
            step += hand_over.num_minibatches

    def _find(self, step: int, timeline: AnyTimeline) -> tuple[HandOver, int]:
        """Return the hand-over with a step, and the index of the step in it."""
        whole_number("step", step, least=0)
        num_steps = self._pass(timeline, step, LARGEST_WORD)
        for first, hand_over in self._hand_overs(timeline, NoChunks(), num_steps, step + 1):
            num_steps = first + hand_over.num_minibatches
            if step < num_steps:
                return hand_over, step - first
        raise ConfigError(f"step is {step}, but the data end after {num_steps} steps", key="step")

    def _find_position(self, position: int, timeline: AnyTimeline) -> tuple[int, HandOver, int]:
        """Return the step that passes a position, the hand-over with that step, and the index of the step in it."""
        begin = timeline.bookmark().position
        if whole_number("position", position) < begin:
            message = f"position is {position}; expected at least {begin}, where the plan begins"
            raise ConfigError(message, key="position")
        passed = self._pass(timeline, LARGEST_WORD, position)
        end = timeline.bookmark().position
        for first, hand_over in self._hand_overs(timeline, NoChunks(), passed):
            num_steps = hand_over.num_minibatches
            end = _position(hand_over, num_steps - 1) if num_steps else end
            if num_steps and end > position:
                positions = [_position(hand_over, index) for index in range(num_steps)]
                index = bisect.bisect_right(positions, position)
                return first + index, hand_over, index
        raise ConfigError(f"position is {position}, but the data end at position {end}", key="position")

    def _sequences(self, order: PackOrder) -> npt.NDArray[np.int64]:
        starts = self._arrangement.tables[order.corpus_index].chunk_starts[order.refs.chunk_ids]
        sequences: _Indices = starts[order.refs.chunk_indices] + order.refs.indices_in_chunk
        return sequences

    def _samples(self, order: PackOrder, sequences: _Indices) -> tuple[_Indices, _Indices]:
        """Return the first sample and the number of samples of each of the sequences of an order of the first corpus.

        Samples are as the minibatch size counts them.
        """
        if order.parts is not None:
            return order.parts.first_sample, order.parts.num_samples
        if order.samples is not None:
            return order.samples[0].astype(np.int64), order.samples[1].astype(np.int64)
        partners = self._arrangement.partners
        if partners is not None:  # the partners in the first table ascend
            sequences = np.searchsorted(partners[0], sequences)
        return np.zeros(len(sequences), np.int64), self._arrangement.table.lengths[sequences].astype(np.int64)


def sweeps_of(plans: Sequence[SourcePlan], num_steps: int | None = None) -> list[PlannedSweep]:
    """Return the sweep, or a number of steps, of each of some plans of one source, which compute its order together.

    Raises:
        CorpusError: See `SourcePlan.sweep`.
    """
    timeline = plans[0]._begin()
    begin: Bookmark = timeline.bookmark()
    sweeps = []
    for plan in plans:
        timeline.go_back(begin)
        # Held at its beginning, the order of the sweep is computed once for all plans.
        sweeps.append(plan._walk(timeline, num_steps, begin if len(plans) > 1 else None))
    return sweeps


def _sums(order: PackOrder, lengths: _Indices, cost: tuple[float, float]) -> tuple[Any, ...]:
    """Return the sequences, the samples, the padded area and the cost of each minibatch of an order."""
    bounds = np.array(order.bounds)
    costs = cost[0] * lengths + cost[1] * np.square(lengths, dtype=np.float64)
    costs = np.diff(np.append(0, np.cumsum(costs))[bounds])
    num_sequences = np.diff(bounds)
    num_samples = np.diff(np.append(0, np.cumsum(lengths))[bounds])
    if order.parts is not None:
        return num_sequences, num_samples, order.parts.num_slots * order.parts.num_steps, costs
    longest = np.maximum.reduceat(np.append(lengths, 0), bounds[:-1])  # of an empty minibatch: any number
    return num_sequences, num_samples, num_sequences * longest, costs


def _of_rows(title: str, found: ExplainedStep | Ledger, first: Mapping[str, npt.NDArray[Any]]) -> Description:
    """Describe sequences, with further columns before theirs."""
    columns = {**first, "key": found.keys, "first sample": found.first_samples, "samples": found.num_samples}
    places = [_texts(origin) for origin in found.origins]
    texts = [column.tolist() for column in columns.values()]
    rows = [tuple(map(str, row)) for row in zip(*texts, *places, strict=True)]
    names = [f"place {index}" if len(places) > 1 else "place" for index in range(len(places))]
    return Description(title, (*columns, *names), rows, has_head=True)


def _texts(origin: PlannedOrigin) -> list[str]:
    try:
        return origin.places.texts()
    except (OSError, FormatError):  # the files can no longer be read
        return [origin.name] * len(origin.sequences)


def _position(hand_over: HandOver, index: int) -> int:
    position: int = hand_over.standing(index).bookmark.position
    return position

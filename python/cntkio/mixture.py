"""`Mixture` and `SequenceMixture`: several sources in exact proportions. (docs/batches.md)

::

    Mixture           a a b a a b ...               each minibatch comes from one part
    SequenceMixture   a a b a | b a a b | ...       each sequence comes from one part

Step number n reads from the part ``turns[n % 1000]``. The turns contain each part as often as its weight says, evenly
spread, so every 1,000 consecutive steps contain exactly these numbers. Each part is a source of its own, with its own
order and position. So a `Mixture` keeps only the number of the step and the states of its parts.

A `SequenceMixture` is a source of one corpus, which has the chunks of all parts, with the timeline that mixes theirs
(`cntkio.timeline.mixed`). Its recipe makes both; the rest of the source does not know of parts.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio.arguments import check_word, whole_number
from cntkio.displays import Description, Displayed, counted
from cntkio.errors import CheckpointError, ConfigError
from cntkio.formats.contract import OPENING, Ahead, Corpus, Deserializer, Index, Loaded, Opening, PlacesInFiles
from cntkio.formats.corpus import as_deserializer, fingerprint_of_files
from cntkio.formats.report import Report
from cntkio.formats.table import NamedFiles, SequenceTable, joined_keys, joined_lengths, span_at
from cntkio.minibatch import Minibatch, indices_in_table
from cntkio.source import MinibatchSource
from cntkio.source.arrangement import Arrangement
from cntkio.source.checkpoint import changing
from cntkio.source.pipeline import Delivered
from cntkio.source.plan import ExplainedStep, PlannedSteps, SourcePlan
from cntkio.source.recipe import Recipe, SourceOptions
from cntkio.streams import StreamInformation, StreamsByName
from cntkio.timeline import (
    INFINITELY_REPEAT,
    AnyTimeline,
    BalancedPartition,
    GlobalPartition,
    Partition,
    Size,
    Timeline,
)
from cntkio.timeline.mixed import NUM_TURNS as _NUM_TURNS
from cntkio.timeline.mixed import MixedTimeline, Weights, turns_of
from cntkio.timeline.partition import checked_partition
from cntkio.timeline.state import State, damaged, of_partition, whole, wholes

_STATE_VERSION = 1
_LARGEST_WEIGHT = 1e300
_WHOLE = Partition()


class Mixture(Displayed, StreamsByName):
    """Minibatches of several sources, each step from one of them, in exact proportions. (docs/batches.md)

    Args:
        parts: For each name a source, or a deserializer, and its weight, above 0. The sources have no limit
            (`max_samples`, `max_sweeps`), and from now on only the mixture may read them. Their streams are equal.
        stop: When the data end: ``"first"``: after the step in which the first part finishes a sweep. ``"all"``: after
            the step in which the last part finishes its first sweep; other parts have then begun further sweeps.
            ``"forever"``: never.

    Raises:
        ConfigError: `parts` is empty, a weight is not possible, a source has a limit, or streams differ.

    Example:
        >>> import pathlib, tempfile
        >>> from cntkio import CTFDeserializer, StreamDef, StreamDefs
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("old", "new"):
        ...     _ = (folder / name).write_text("|x 1\\n|x 2\\n|x 3\\n")
        >>> streams = StreamDefs(x=StreamDef(field="x", shape=1))
        >>> old, new = (CTFDeserializer(folder / name, streams) for name in ("old", "new"))
        >>> with Mixture({"old": (old, 2), "new": (new, 1)}, stop="forever") as mixture:
        ...     [str(mixture.read(1).source_of_sequences[0]) for _ in range(6)]
        ['old', 'new', 'old', 'old', 'new', 'old']
    """

    def __init__(
        self,
        parts: Mapping[str, tuple[MinibatchSource | Deserializer, float]],
        *,
        stop: Literal["first", "all", "forever"] = "first",
    ) -> None:
        self.stop, self._counts = stop, _checked_counts(parts, stop)
        self._turns = _turns(self._counts)
        self.sources: dict[str, MinibatchSource] = {}
        self._first_step = 0  # of the current weights
        self._turn = (_WHOLE, *_turn_of(_WHOLE))  # the partition of the last read, and what follows from it
        self._reading: _Reading | None = None
        with ExitStack() as opened:
            for name, (source, _) in parts.items():
                self.sources[name] = source if isinstance(source, MinibatchSource) else MinibatchSource(source)
                if self.sources[name] is not source:
                    opened.callback(self.sources[name].close)
            self._counted = _Position(0, dict.fromkeys(self.sources, 0))
            self._check_sources()
            opened.pop_all()

    def _check_sources(self) -> None:
        (first, of_first), *others = ((name, source.stream_infos()) for name, source in self.sources.items())
        for name, streams in others:
            _require_same_streams(first, of_first, name, streams)
        for name, source in self.sources.items():
            if not source.is_infinite():
                raise ConfigError(
                    f"part {name!r} of a Mixture ends: leave out max_samples and max_sweeps, because "
                    f"stop={self.stop!r} decides when a mixture ends",
                    key="stop",
                )
        if len({id(source) for source in self.sources.values()}) < len(self.sources):
            raise ConfigError("two parts of a Mixture are the same source; make a source for each", key="parts")

    # ------------------------------------------------------------------------------------------------ reading

    @property
    def has_ended(self) -> bool:
        """True if no further minibatch follows."""
        return self._ends_at(self._position())

    def _ends_at(self, at: _Position) -> bool:
        if self.stop == "forever":
            return False
        finished = [num_sweeps > 0 for num_sweeps in at.num_sweeps.values()]
        return any(finished) if self.stop == "first" else all(finished)

    def _position(self) -> _Position:
        """Return the position after the last minibatch that a part has delivered.

        A part's own counts decide, because an interrupt may come after its read and before anything is noted here.
        """
        reading = self._reading
        if reading is None:
            return self._counted
        counts = self.sources[reading.name].delivered
        at = self._counted
        if counts != reading.counts:
            at = reading.at.after(reading.name, counts.num_sweeps - reading.counts.num_sweeps)
        self._counted, self._reading = at, None
        return at

    def part_of(self, step: int) -> str:
        """Return the name of the part that a step reads, with the current weights. Steps are numbered from 0.

        Raises:
            ConfigError: The step came before the current weights.
        """
        if whole_number("step", step) < self._first_step:
            raise ConfigError(f"step is {step}, but the weights changed at step {self._first_step}", key="step")
        return self._turns[(step - self._first_step) % _NUM_TURNS]

    def read(self, minibatch_size_in_samples: Size, partition: Partition = _WHOLE) -> Minibatch | None:
        """Return the next minibatch of a partition, or None when the data have ended.

        Its `source_of_sequences` names the part. Arguments and errors as for `MinibatchSource.read`. The workers of a
        balanced or global partition take steps in turn; each reads the minibatches of all of them, so that it knows
        where the parts end a sweep.
        """
        at = self._position()
        if self._turn[0] is not partition:
            self._turn = (partition, *_turn_of(checked_partition(partition)))
        _, worker, num_workers, share = self._turn
        # The turns of the same worker continue.
        is_new = at.settings is None or _turn_of(at.settings[1])[:2] != (worker, num_workers)
        steps_to_pass = worker if is_new else at.steps_to_pass
        at = at._replace(settings=(minibatch_size_in_samples, partition), steps_to_pass=steps_to_pass)
        while not self._ends_at(at):
            name = self.part_of(at.step)
            source, is_own = self.sources[name], not at.steps_to_pass
            self._reading = _Reading(name, source.delivered, at)
            minibatch = source.read(minibatch_size_in_samples, share)
            assert minibatch is not None  # a source without limits does not end
            at = self._position()
            if is_own:
                minibatch.source = name
                return minibatch
        return None

    def minibatches(self, minibatch_size_in_samples: Size, partition: Partition = _WHOLE) -> Iterator[Minibatch]:
        """Iterate over minibatches until the data end. Arguments as for `read`."""
        while (minibatch := self.read(minibatch_size_in_samples, partition)) is not None:
            yield minibatch

    def plan(self, minibatch_size_in_samples: Size, partition: Partition = _WHOLE) -> MixturePlan:
        """Return a plan of the next reads of one size with the current weights, from the index alone. (docs/plan.md)

        The mixture does not move, and no data are read. Steps are counted from the mixture's position.

        Raises:
            ConfigError: The order of a source is not known without its data, or the partition has several workers.
        """
        if _turn_of(partition)[1] > 1:
            raise ConfigError("a Mixture plans for all workers together: leave out num_workers", key="partition")
        plans = {
            name: source.plan(minibatch_size_in_samples, partition, from_here=True)
            for name, source in self.sources.items()
        }
        at = self._position()
        shift = (at.step - self._first_step) % _NUM_TURNS
        turns = np.roll(turns_of(tuple(self._counts.values())), -shift)
        is_finished = np.array([count > 0 for count in at.num_sweeps.values()])
        return MixturePlan(plans, turns, is_finished, self.stop)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Change the weights of all parts from the next step on.

        Raises:
            ConfigError: A part has no weight, there is no such part, or a weight is not possible.
        """
        if set(weights) != set(self.sources):
            raise ConfigError(
                f"weights are for {sorted(weights)}; expected a weight for each of {sorted(self.sources)}",
                key="weights",
            )
        counts = _counts({name: weights[name] for name in self.sources})
        turns, step = _turns(counts), self._position().step
        self._counts, self._turns, self._first_step = counts, turns, step

    def stream_infos(self) -> list[StreamInformation]:
        """Return the streams, which are the same in all parts."""
        return next(iter(self.sources.values())).stream_infos()

    def is_infinite(self) -> bool:
        """Return whether the data never end."""
        return self.stop == "forever"

    span = None
    """A mixture has no epochs, because the parts end their sweeps at different steps."""

    @property
    def is_randomized(self) -> bool:
        """True if the sweeps of a part are shuffled."""
        return any(source.is_randomized for source in self.sources.values())

    @property
    def num_samples(self) -> int:
        """Samples in a sweep of each part, together."""
        return sum(source.num_samples for source in self.sources.values())

    @property
    def num_sequences(self) -> int:
        """Sequences in a sweep of each part, together."""
        return sum(source.num_sequences for source in self.sources.values())

    @property
    def num_chunks(self) -> int:
        """Chunks of the part with the fewest: partitions share the chunks of each part."""
        return min(source.num_chunks for source in self.sources.values())

    def _description(self) -> Description:
        at = self._position()
        rows = [
            (name, f"{count / _NUM_TURNS:.1%}", counted(at.num_sweeps[name], "sweep"))
            for name, count in self._counts.items()
        ]
        title = f"Mixture: step {at.step}, stops {self.stop!r}"
        return Description(title, ("part", "weight", "finished"), rows, has_head=True)

    # -------------------------------------------------------------------------------------------- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue here: a small dict for JSON."""
        at = self._position()
        states = {name: source.state_dict() for name, source in self.sources.items()}
        orders = {name: state["order"] for name, state in states.items()}
        return {
            "version": _STATE_VERSION,
            "settings": {"stop": self.stop, "parts": {name: state["settings"] for name, state in states.items()}},
            "data": {name: state["data"] for name, state in states.items()},
            "order": {
                "digest": [order["digest"] for order in orders.values()],
                "deserializers": [of_one for order in orders.values() for of_one in order["deserializers"]],
                "parts": orders,
            },
            "timeline": {
                **State(at.step, at.settings, rounds_to_pass=at.steps_to_pass).to_json(),
                "first_step": self._first_step,
                "turns": dict(self._counts),
                "num_sweeps": dict(at.num_sweeps),
                "parts": {name: {"version": state["version"], **changing(state)} for name, state in states.items()},
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a `state_dict` was taken, with the weights of the state; `set_weights` changes them then.

        After an error, the mixture is where it was.

        Raises:
            CheckpointError: The state has other parts, or a part has other data or settings.
        """
        own, first_step, counts, num_sweeps, parts = self._checked(state)
        before = self._checked(self.state_dict())[-1]
        at, turns = _Position(own.position, num_sweeps, own.settings, own.rounds_to_pass), _turns(counts)
        try:
            for name, source in self.sources.items():
                try:
                    source.load_state_dict(parts[name])
                except CheckpointError as error:
                    text = str(error).removeprefix("the state does not fit this source: ")
                    raise CheckpointError(
                        f"the state does not fit this mixture: part {name!r}: {text}",
                        saved=error.saved,
                        current=error.current,
                    ) from error
            self._counts, self._turns, self._first_step, self._counted = counts, turns, first_step, at
        except BaseException:
            for name, source in self.sources.items():
                source.load_state_dict(before[name])
            raise

    def _checked(
        self, state: Mapping[str, Any]
    ) -> tuple[State, int, dict[str, int], dict[str, int], dict[str, dict[str, Any]]]:
        """Return the position, the first step of the weights, turns, numbers of sweeps, and the states of the parts."""
        timeline, settings = (
            state.get(name) if isinstance(state, Mapping) else None for name in ("timeline", "settings")
        )
        if (
            not isinstance(timeline, Mapping)
            or not isinstance(settings, Mapping)
            or state.get("version") != _STATE_VERSION
            or "turns" not in timeline
        ):
            raise CheckpointError("not the state of a Mixture; expected a result of its state_dict()", saved=state)
        order = state.get("order")
        of_parts: list[Any] = [timeline.get(name) for name in ("turns", "num_sweeps", "parts")]
        order = order.get("parts") if isinstance(order, Mapping) else None
        of_parts += [settings.get("parts"), state.get("data"), order]
        for found in of_parts:
            if not isinstance(found, Mapping) or set(found) != set(self.sources):
                saved = list(found) if isinstance(found, Mapping) else found
                raise CheckpointError(
                    f"the state does not fit this mixture: parts: saved {saved!r:.200}, here {list(self.sources)}",
                    saved=saved,
                    current=list(self.sources),
                )
        if settings.get("stop") != self.stop:
            raise CheckpointError(
                f"the state does not fit this mixture: stop: saved {settings.get('stop')!r}, here {self.stop!r}",
                saved=settings.get("stop"),
                current=self.stop,
            )
        turns, num_sweeps, changed, *constant = ({name: found[name] for name in self.sources} for found in of_parts)
        own = State.from_json(timeline)
        first_step = whole("first_step", timeline.get("first_step"), own.position)
        wholes("num_sweeps", list(num_sweeps.values()), len(num_sweeps), least=[0] * len(num_sweeps))
        counts = wholes("turns", list(turns.values()), len(turns), least=[1] * len(turns))
        if sum(counts) != _NUM_TURNS:
            raise damaged("turns", dict(turns), f"{_NUM_TURNS} turns")
        parts = {}
        for name, part in changed.items():
            if not isinstance(part, Mapping) or not isinstance(part.get("timeline"), Mapping):
                raise damaged("parts", part, "the states of the parts")
            at = part["timeline"] if own.settings is None else of_partition(part["timeline"], own.settings[1].index)
            fixed = zip(("settings", "data", "order"), constant, strict=True)
            parts[name] = {**part, **{key: of[name] for key, of in fixed}, "timeline": at}
        return own, first_step, turns, num_sweeps, parts

    # --------------------------------------------------------------------------------------------------- life

    def __getstate__(self) -> dict[str, Any]:
        return {"stop": self.stop, "sources": self.sources, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        turns = state["state"]["timeline"]["turns"]
        Mixture.__init__(
            self, {name: (source, turns[name]) for name, source in state["sources"].items()}, stop=state["stop"]
        )
        self.load_state_dict(state["state"])

    def close(self) -> None:
        """Close the sources."""
        for source in self.sources.values():
            source.close()

    def __enter__(self) -> Mixture:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Position(NamedTuple):
    """A point between two steps of a mixture.

    Attributes:
        step: Number of the next step.
        num_sweeps: Sweeps that each part has finished.
        settings: Size and partition of the last read; None: before the first read.
        steps_to_pass: Steps of other workers before the next step of this worker.
    """

    step: int
    num_sweeps: Mapping[str, int]
    settings: tuple[Size, Partition] | None = None
    steps_to_pass: int = 0

    def after(self, name: str, num_sweeps: int) -> _Position:
        """Return the position after a step that read a part, which then finished a number of sweeps."""
        passed = {**self.num_sweeps, name: self.num_sweeps[name] + num_sweeps}
        num_workers = 1 if self.settings is None else _turn_of(self.settings[1])[1]
        return _Position(self.step + 1, passed, self.settings, (self.steps_to_pass or num_workers) - 1)


class _Reading(NamedTuple):
    """A read of a part that began.

    Attributes:
        name: The part.
        counts: What the part had delivered before.
        at: The position before the step.
    """

    name: str
    counts: Delivered
    at: _Position


class MixturePlan(Displayed):
    """The next steps of a `Mixture`; see `Mixture.plan`. Steps are numbered from 0.

    Args:
        plans: For each part a plan from its position.
        turns: The part of each of the next 1,000 steps, which repeat.
        is_finished: For each part whether it has finished a sweep.
        stop: When the data end.
    """

    def __init__(
        self,
        plans: Mapping[str, SourcePlan],
        turns: npt.NDArray[np.int64],
        is_finished: npt.NDArray[np.bool_],
        stop: str,
    ) -> None:
        self._plans, self._turns, self._is_finished, self._stop = plans, turns, is_finished, stop

    def _description(self) -> Description:
        counts = np.bincount(self._turns, minlength=len(self._plans)).tolist()
        rows = [(name, f"{count / _NUM_TURNS:.1%}") for name, count in zip(self._plans, counts, strict=True)]
        return Description("MixturePlan", ("part", "weight"), rows, has_head=True)

    def _parts(self, num_steps: int) -> npt.NDArray[np.int64]:
        return self._turns[np.arange(num_steps) % _NUM_TURNS]

    def steps(self, num_steps: int) -> PlannedSteps:
        """Return the first steps: `num_steps`, or fewer if the data end. Each step has its position in its part.

        Raises:
            CorpusError: An error that a source raises in one of these steps.
        """
        parts = self._parts(whole_number("num_steps", num_steps, least=0))
        order = np.argsort(np.argsort(parts, kind="stable"))
        counts = np.bincount(parts, minlength=len(self._plans)).tolist()
        of_parts = [plan.steps(count) for plan, count in zip(self._plans.values(), counts, strict=True)]
        names = [field.name for field in dataclasses.fields(PlannedSteps)]
        columns = {name: np.concatenate([getattr(steps, name) for steps in of_parts])[order] for name in names}
        end = self._end(parts, columns["ends_of_sweep"])
        return PlannedSteps(**{name: column[:end] for name, column in columns.items()})

    def _end(self, parts: npt.NDArray[np.int64], ends_of_sweep: npt.NDArray[np.bool_]) -> int:
        """Return the number of steps until the data end."""
        if self._stop == "forever":
            return len(parts)
        finishing = np.where(self._is_finished, 0, len(parts) + 1)
        ended, steps = np.unique(parts[ends_of_sweep], return_index=True)
        finishing[ended] = np.minimum(finishing[ended], np.flatnonzero(ends_of_sweep)[steps] + 1)
        return min(int(finishing.min() if self._stop == "first" else finishing.max()), len(parts))

    def explain(self, step: int) -> ExplainedStep:
        """Return the sequences of a step. It has the number of the step in its part, and the position in its part.

        Raises:
            ConfigError: The data end before the step.
            CorpusError: An error that a source raises up to this step.
        """
        parts = self._parts(whole_number("step", step, least=0) + 1)
        if self._stop != "forever" and step >= len(self.steps(step + 1)):
            raise ConfigError(f"the data end before step {step}", key="step")
        number = int(np.count_nonzero(parts[:-1] == parts[-1]))
        return list(self._plans.values())[int(parts[-1])].explain(number)

    def part_of(self, step: int) -> str:
        """Return the name of the part that a step reads."""
        return list(self._plans)[int(self._turns[whole_number("step", step, least=0) % _NUM_TURNS])]


def _turn_of(partition: Partition) -> tuple[int, int, Partition]:
    """Return the worker of a partition that reads, the number of its workers, and the partition of all of them."""
    if isinstance(partition, BalancedPartition | GlobalPartition) and partition.num_workers > 1:
        of_all = dataclasses.replace(partition, worker=0, num_workers=1)
        return partition.worker, partition.num_workers, of_all
    return 0, 1, partition


def _checked_counts(parts: Mapping[str, tuple[object, float]], stop: str) -> dict[str, int]:
    """Check the arguments of a mixture, and return how many of 1,000 turns each part has."""
    check_word("stop", stop, "first", "all", "forever")
    if not isinstance(parts, Mapping) or not all(isinstance(part, tuple) and len(part) == 2 for part in parts.values()):
        raise ConfigError("parts are not {name: (source, weight)}", key="parts")
    if not parts:
        raise ConfigError("a mixture has no parts; expected a name for each source and its weight", key="parts")
    return _counts({name: weight for name, (_, weight) in parts.items()})


def _require_same_streams(
    first: str, of_first: Sequence[StreamInformation], name: str, streams: Sequence[StreamInformation]
) -> None:
    if streams != of_first:
        texts = [", ".join(f"{info.name}: {info.form}" for info in infos) for infos in (of_first, streams)]
        raise ConfigError(
            f"the parts of a mixture have the same streams, but {first!r} has {texts[0]}, and {name!r} has {texts[1]}",
            key="parts",
        )


def _counts(weights: Mapping[str, Any]) -> dict[str, int]:
    """Return how many of 1,000 turns each part has: the parts with the largest remainders are rounded up."""
    for name, weight in weights.items():
        is_number = isinstance(weight, int | float | np.integer | np.floating) and not isinstance(weight, bool)
        if not is_number or not 0 < weight < _LARGEST_WEIGHT:
            raise ConfigError(
                f"the weight of {name!r} is {weight!r}; expected a number above 0, below 1e300", key="weights"
            )
    total = math.fsum(weights.values())
    exact = {name: _NUM_TURNS * weight / total for name, weight in weights.items()}
    counts = {name: math.floor(share) for name, share in exact.items()}
    by_remainder = sorted(weights, key=lambda name: counts[name] - exact[name])
    for name in by_remainder[: _NUM_TURNS - sum(counts.values())]:
        counts[name] += 1
    for name, count in counts.items():
        if not count:
            raise ConfigError(
                f"the weight of {name!r} is {weights[name]!r}, less than a thousandth of all weights", key="weights"
            )
    return counts


def _turns(counts: Mapping[str, int]) -> list[str]:
    names = list(counts)
    return [names[part] for part in turns_of(tuple(counts.values())).tolist()]


# --------------------------------------------------------------------------------------------------------------
# The corpus of a mixture of sequences: the chunks of all parts, one part after the other.


class _Reports(Report):
    """The reports of all parts together."""

    def __init__(self, name: str, reports: Sequence[Report]) -> None:
        super().__init__(name)
        self._reports = reports

    @property
    def errors(self) -> dict[str, int]:
        return dict(sum((Counter(report.errors) for report in self._reports), Counter()))

    @property
    def warnings(self) -> dict[str, int]:
        return dict(sum((Counter(report.warnings) for report in self._reports), Counter()))

    def log_totals(self) -> None:
        for report in self._reports:
            report.log_totals()


class _Together(Corpus):
    """The corpora of all parts as one corpus.

    Args:
        names: Names of the parts.
        corpora: Their corpora.

    Attributes:
        first_sequences: First sequence of each part and, last, the number of sequences.
        first_chunks: First chunk of each part and, last, the number of chunks.
    """

    def __init__(self, names: Sequence[str], corpora: Sequence[Corpus]) -> None:
        self.corpora = corpora
        tables = [corpus.table for corpus in corpora]
        self.first_sequences = np.cumsum([0, *(table.num_sequences for table in tables)])
        self.first_chunks = np.cumsum([0, *(table.num_chunks for table in tables)])
        starts = [first + table.chunk_starts[1:] for first, table in zip(self.first_sequences, tables, strict=False)]
        table = SequenceTable(
            joined_keys([table.keys for table in tables]),
            joined_lengths([table.lengths for table in tables]),
            np.concatenate([np.zeros(1, np.int64), *starts]),
            options={name: dict(table.options) for name, table in zip(names, tables, strict=True)},
            files=self,
        )
        name = f"mixture of {', '.join(names)}"
        fingerprint = fingerprint_of_files(names, [corpus.index.fingerprint for corpus in corpora])
        indexes = [corpus.index for corpus in corpora]
        self.index = Index(
            name,
            indexes[0].streams,
            table,
            fingerprint,
            loads_parts=all(index.loads_parts for index in indexes),
            loads_at_once=max(index.loads_at_once for index in indexes),
        )
        self.report = _Reports(name, [corpus.report for corpus in corpora])

    def load(self, chunk_id: int, sequences: npt.NDArray[np.uint32] | None = None) -> Loaded:
        number = int(span_at(self.first_chunks, chunk_id))
        loaded = self.corpora[number].load(chunk_id - int(self.first_chunks[number]), sequences)
        return dataclasses.replace(loaded, chunk_id=chunk_id)

    def account_for(self, loaded: Loaded) -> None:
        number = int(span_at(self.first_chunks, loaded.chunk_id))
        own_id = loaded.chunk_id - int(self.first_chunks[number])
        self.corpora[number].account_for(dataclasses.replace(loaded, chunk_id=own_id))

    def take_parsed(self) -> dict[int, Loaded]:
        return {
            int(first) + own_id: dataclasses.replace(loaded, chunk_id=int(first) + own_id)
            for first, corpus in zip(self.first_chunks, self.corpora, strict=False)
            for own_id, loaded in corpus.take_parsed().items()
        }

    def places(self, sequences: npt.NDArray[np.int64]) -> PlacesInFiles:
        paths: list[str] = []
        path_indices, begins, lines = np.zeros((3, len(sequences)), np.int64)
        has_bytes = has_lines = True
        part_of = span_at(self.first_sequences, sequences)
        for number in np.unique(part_of).tolist():
            own = part_of == number
            found = self.corpora[number].places(sequences[own] - self.first_sequences[number])
            path_indices[own] = len(paths) + found.path_indices
            paths += found.paths or [self.corpora[number].name]
            has_bytes, has_lines = has_bytes and found.bytes is not None, has_lines and found.lines is not None
            begins[own] = 0 if found.bytes is None else found.bytes
            lines[own] = 0 if found.lines is None else found.lines
        return PlacesInFiles(paths, path_indices, begins if has_bytes else None, lines if has_lines else None)

    def of(self, sequences: npt.NDArray[np.int64]) -> NamedFiles:
        """Return the files of some sequences."""
        names: list[str] = []
        which = np.zeros(len(sequences), np.int64)
        part_of = span_at(self.first_sequences, sequences)
        for number in np.unique(part_of).tolist():
            own = part_of == number
            corpus = self.corpora[number]
            of_part: NamedFiles = (np.array([corpus.name]), np.zeros(int(own.sum()), np.int64))
            if corpus.table.files is not None:
                of_part = corpus.table.files.of(sequences[own] - self.first_sequences[number])
            which[own] = len(names) + of_part[1]
            names += of_part[0].tolist()
        return np.array(names, np.str_), which

    def close(self) -> None:
        for corpus in self.corpora:
            corpus.close()


@dataclasses.dataclass(frozen=True, eq=False)
class _Parts(Deserializer):
    """The deserializers of all parts, and the options of their sources."""

    options: Mapping[str, SourceOptions]

    @property
    def has_text_keys(self) -> bool:
        return any(options.described[0].has_text_keys for options in self.options.values())

    def parts(self) -> Sequence[Deserializer]:
        return [self]

    def open(self, opening: Opening = OPENING) -> Corpus:
        plain = dataclasses.replace(opening, ahead=Ahead(0))
        corpora: list[Corpus] = []
        with ExitStack() as opened:
            for name, options in self.options.items():
                corpora.append(as_deserializer(options.described[0]).open(plain))
                opened.callback(corpora[-1].close)
                self._check(name, corpora)
            together = _Together(list(self.options), corpora)
            opened.pop_all()
        return together

    def _check(self, name: str, corpora: Sequence[Corpus]) -> None:
        first, index = corpora[0].index, corpora[-1].index
        _require_same_streams(next(iter(self.options)), first.streams, name, index.streams)
        traits = index.utterances
        if index.joins == "alone" or (traits is not None and not (traits.invalid is None and traits.broken is None)):
            raise ConfigError(
                f"part {name!r} has sequences that are known only when they are reached; mix it by minibatch (Mixture)",
                key="parts",
            )
        kinds = {corpus.table.keys.dtype.kind in "ui" for corpus in corpora}
        if len(kinds) > 1:
            raise ConfigError(f"the keys of part {name!r} and of the first part are not of one kind", key="parts")


class _MixedRecipe(Recipe):
    """The decisions of a mixture of sequences. A plan makes several timelines, each with its own position."""

    def __init__(self, options: Mapping[str, SourceOptions], counts: Mapping[str, int], stop: str) -> None:
        self.part_options, self.counts, self.stop = options, counts, stop
        self.first_sequences: npt.NDArray[np.int64] = np.zeros(1, np.int64)

    def open(self, deserializer: Deserializer, opening: Opening) -> Corpus:
        corpus = deserializer.open(opening)
        assert isinstance(corpus, _Together)
        self.first_sequences = corpus.first_sequences
        return corpus

    def timeline(
        self,
        options: SourceOptions,
        corpora: Sequence[Corpus],
        arrangement: Arrangement,
        lengths_in_chunk: Callable[[int], npt.NDArray[np.uint32]],
        *,
        loads_parts: bool = False,
    ) -> AnyTimeline:
        together = corpora[0]
        assert isinstance(together, _Together)
        new = [
            functools.partial(
                Timeline,
                corpus.table.lengths,
                corpus.table.chunk_starts,
                **{
                    **of_part.for_timeline,
                    "counts_sequences": True,
                    "crosses_sweeps": True,
                    "size_counts": "own",
                },
            )
            for corpus, of_part in zip(together.corpora, self.part_options.values(), strict=True)
        ]
        zeros = (0,) * len(new)
        return MixedTimeline(
            new,
            arrangement.lengths,
            together.first_sequences.tolist(),
            together.first_chunks.tolist(),
            arrangement.chunk_starts,
            Weights(0, tuple(self.counts.values()), zeros),
            seed=options.randomization_seed,
            stop=self.stop,
        )

    def for_checkpoint(self, options: SourceOptions) -> dict[str, Any]:
        return {"stop": self.stop, **{name: part.for_checkpoint for name, part in self.part_options.items()}}

    def arguments(self, options: SourceOptions) -> dict[str, Any]:
        return {**options.arguments, "recipe": self}


def _part_options(name: str, source: MinibatchSource | Deserializer) -> SourceOptions:
    """Return the options of a part of a mixture of sequences.

    Raises:
        ConfigError: The part cannot be mixed by sequence.
    """
    arguments: dict[str, Any] = {"deserializers": source}
    if isinstance(source, MinibatchSource):
        if type(source) is not MinibatchSource:
            raise ConfigError(
                f"part {name!r} of a mixture is a {type(source).__name__}; expected a MinibatchSource", key="parts"
            )
        arguments = source.arguments
    defaults = {"frame_mode": False, "truncation_length": 0, "max_samples": INFINITELY_REPEAT}
    parameters = inspect.signature(MinibatchSource).parameters
    options = SourceOptions.of({name: parameter.default for name, parameter in parameters.items()} | arguments)
    for key, value in {**defaults, "max_sweeps": INFINITELY_REPEAT}.items():
        if getattr(options, key) != value:
            raise ConfigError(
                f"part {name!r} of a mixture has {key}={getattr(options, key)}; leave it out, because the mixture "
                "decides where the data end, and has whole sequences",
                key=key,
            )
    if len(options.described) > 1:
        raise ConfigError(
            f"part {name!r} joins {len(options.described)} deserializers; a mixture of sequences takes one for each "
            "part: write the joined data to one file, or mix by minibatch (Mixture)",
            key="parts",
        )
    return options


class SequenceMixture(MinibatchSource):
    """A source that mixes the sequences of several others in exact proportions. (docs/batches.md)

    Every 1,000 consecutive sequences of its order contain each part exactly as often as its weight says, evenly spread.
    It has all that a `MinibatchSource` has: budgets, partitions, plans, states, and `cntkio.torch.MinibatchDataset`
    takes it. Its positions count sequences. A sweep of a part ends with ``minibatch.end_of_sweep``.

    Args:
        parts: For each name a deserializer, or a source of one deserializer without limits, and its weight, above 0.
            Each part keeps the window and the seed of its source, and its own sweeps. All parts have equal
            streams. A source that is passed is closed, and begins at its beginning.
        stop: When the data end: ``"first"``: with the first sweep of a part. ``"all"``: when the last part has finished
            its first sweep; other parts have then begun further sweeps. ``"forever"``: never.

    Raises:
        ConfigError: `parts` is empty, a weight is not possible, a part has several deserializers or a limit, or streams
            differ.

    Example:
        >>> import pathlib, tempfile
        >>> from cntkio import CTFDeserializer, StreamDef, StreamDefs
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("old", "new"):
        ...     _ = (folder / name).write_text("|x 1\\n|x 2\\n|x 3\\n")
        >>> streams = StreamDefs(x=StreamDef(field="x", shape=1))
        >>> old, new = (CTFDeserializer(folder / name, streams) for name in ("old", "new"))
        >>> with SequenceMixture({"old": (old, 2), "new": (new, 1)}, stop="forever") as mixture:
        ...     mixture.read(6).source_of_sequences.tolist()
        ['old', 'new', 'old', 'old', 'new', 'old']
    """

    def __init__(
        self,
        parts: Mapping[str, tuple[MinibatchSource | Deserializer, float]],
        *,
        stop: Literal["first", "all", "forever"] = "first",
    ) -> None:
        counts = _checked_counts(parts, stop)
        options = {name: _part_options(name, source) for name, (source, _) in parts.items()}
        for source, _ in parts.values():
            if isinstance(source, MinibatchSource):
                source.close()
        self._names = np.array(list(parts), np.str_)
        self._mixed = _MixedRecipe(options, counts, stop)
        super().__init__(
            _Parts(options),
            max_sweeps=INFINITELY_REPEAT if stop == "forever" else 1,
            keep_data_in_memory=any(part.keep_data_in_memory for part in options.values()),
            read_ahead_in_bytes=max(part.read_ahead_in_bytes for part in options.values()),
            trace_level=max(part.trace_level for part in options.values()),
            recipe=self._mixed,
        )

    def read(self, minibatch_size_in_samples: Size, partition: Partition = _WHOLE) -> Minibatch | None:
        """Return the next minibatch of a partition, or None when the data have ended.

        Its `source_of_sequences` names the part of each sequence. Arguments and errors as for `MinibatchSource.read`.
        """
        minibatch = super().read(minibatch_size_in_samples, partition)
        if minibatch is not None:
            minibatch.source = self._names[span_at(self._mixed.first_sequences, indices_in_table(minibatch))]
        return minibatch

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each part at the source's position."""
        _, counts, _ = self._weights_here(self.state_dict()["timeline"])
        return {name: count / _NUM_TURNS for name, count in zip(self._names.tolist(), counts, strict=True)}

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Change the weights of all parts from the next sequence on; in a pool, from the next pool on.

        Raises:
            ConfigError: A part has no weight, there is no such part, or a weight is not possible; or the source is
                inside a pool of samples, whose end depends on what follows.
        """
        names = self._names.tolist()
        if set(weights) != set(names):
            raise ConfigError(
                f"weights are for {sorted(weights)}; expected a weight for each of {sorted(names)}", key="weights"
            )
        counts = _counts({name: weights[name] for name in names})
        state = self.state_dict()
        timeline = state["timeline"]
        first = timeline["position"]
        if "batch" in timeline:
            if "pool_unit" in timeline["minibatch_size"]:
                raise ConfigError(
                    "the source is inside a pool of samples; change the weights where the pool ends", key="weights"
                )
            first = timeline["pool_end"]
        taken = Weights(*self._weights_here(timeline)).taken_at(first)
        kept = [of_time for of_time in timeline["weights"] if of_time[0] < first]
        changed = [*kept, [first, list(counts.values()), list(taken)]]
        self.load_state_dict({**state, "timeline": {**timeline, "weights": changed}})

    @staticmethod
    def _weights_here(timeline: Mapping[str, Any]) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        found = [of_time for of_time in timeline["weights"] if of_time[0] <= timeline["position"]]
        first, counts, taken = found[-1]
        return first, tuple(counts), tuple(taken)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._mixed = state["arguments"]["recipe"]
        self._names = np.array(list(self._mixed.counts), np.str_)
        super().__setstate__(state)

"""`Mixture`: minibatches of several sources, each step from one of them. (docs/mixtures.md)

Step number n reads from the component that has turn number n. Each component is a source of its own, with its own order
and position, so a `Mixture` keeps only the number of the step and the states of its components.

The arguments that both kinds of mixtures have are checked here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple

import numpy as np

from cntkio._threads import ForkLock
from cntkio.arguments import check_word, suggests_keywords, whole_number
from cntkio.displays import Description, Displayed, counted
from cntkio.errors import CheckpointError, ConfigError
from cntkio.formats.contract import Deserializer
from cntkio.formats.corpus import order_of_streams
from cntkio.minibatch import Minibatch, Results
from cntkio.source import MinibatchSource
from cntkio.source.checkpoint import CONSTANT, changing, difference
from cntkio.source.pipeline import DeliveredCounts
from cntkio.source.plan import ExplainedStep, PlannedSteps, SourcePlan, require_few_steps
from cntkio.streams import StreamInformation, StreamsByName
from cntkio.timeline import WHOLE, GlobalPartition, Partition, Size
from cntkio.timeline.fields import damaged, is_same, items, whole
from cntkio.timeline.partition import checked_partition
from cntkio.timeline.schedule import Between
from cntkio.timeline.state import State
from cntkio.timeline.weights import Weights, end_of_components

_STATE_VERSION = 1
# The data end before a step with a number that no state can hold.
_LARGEST_STEP = 2**63 - 1
_STEPS_AT_ONCE = 1 << 12


def weights_of(parts: Mapping[str, tuple[object, Any]], stop: str, between: str) -> Weights:
    """Check the arguments of a mixture, apart from the sources, and return the weights of its components."""
    check_word("stop", stop, "first", "all", "forever")
    if not isinstance(parts, Mapping) or not all(isinstance(part, tuple) and len(part) == 2 for part in parts.values()):
        raise ConfigError("parts are not {name: (source, weight)}", key="parts")
    if not parts:
        raise ConfigError("a mixture has no parts; expected a name for each source and its weight", key="parts")
    return Weights.of({name: weight for name, (_, weight) in parts.items()}, list(parts), between, stop)


@suggests_keywords
class Mixture(Displayed, StreamsByName):
    """Minibatches of several sources, each step from one of them, in exact proportions. (docs/mixtures.md)

    Several threads may read a mixture.

    Args:
        parts: For each name a source, or a deserializer, and its weight, above 0, or a table of weights by step, such
            as ``{0: 0.8, 10_000: 0.5}``. The sources have no limit (`max_samples`, `max_sweeps`), and from now on only
            the mixture may read them. Their streams are equal, in any order; minibatches have the order of the first
            part.
        stop: When the data end: ``"first"``: after the step in which the first part finishes a sweep. ``"all"``: after
            the step in which the last part finishes its first sweep; other parts have then begun further sweeps.
            ``"forever"``: never.
        between: Between two steps of a table of weights, ``"linear"``: the weight is on the line between its two
            values, in blocks of 1,000 steps. ``"steps"``: the former value holds.

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
        parts: Mapping[str, tuple[MinibatchSource | Deserializer, float | Mapping[int, float]]],
        *,
        stop: Literal["first", "all", "forever"] = "first",
        between: Between = "linear",
    ) -> None:
        self._own = self._weights = weights_of(parts, stop, between)
        self.stop = stop
        self.sources: dict[str, MinibatchSource] = {}
        self._share = (WHOLE, WHOLE)  # the partition of the last read, and the partition of all of its workers
        # A read that began: its part, what the part had delivered before, and the position before the step.
        self._reading: tuple[str, DeliveredCounts, _Position] | None = None
        self._lock = ForkLock()  # taken by a `with` statement in each method that uses the position
        # If a part is refused, close the sources that were opened here, and no other.
        with ExitStack() as opened:
            for name, (source, _) in parts.items():
                self.sources[name] = source if isinstance(source, MinibatchSource) else MinibatchSource(source)
                if self.sources[name] is not source:
                    opened.callback(self.sources[name].close)
            self._at = _Position(State(0), dict.fromkeys(self.sources, 0))
            self._check_sources()
            opened.pop_all()

    def _check_sources(self) -> None:
        streams = [(f"part {name!r}", source.stream_infos()) for name, source in self.sources.items()]
        orders = [order_of_streams(streams[0], of_part) for of_part in streams]
        self._in_other_order = {name for name, order in zip(self.sources, orders, strict=True) if order is not None}
        for name, source in self.sources.items():
            if not source.is_infinite():
                advice = f"leave out max_samples and max_sweeps, because stop={self.stop!r} decides when a mixture ends"
                raise ConfigError(f"part {name!r} of a Mixture ends: {advice}", key="stop")
        if len({id(source) for source in self.sources.values()}) < len(self.sources):
            raise ConfigError("two parts of a Mixture are the same source; make a source for each", key="parts")

    @property
    def has_ended(self) -> bool:
        """True if no further minibatch follows."""
        with self._lock.inner:
            return self._ends_at(self._position())

    def _ends_at(self, at: _Position) -> bool:
        if self.stop == "forever" or at.step == _LARGEST_STEP:
            return at.step == _LARGEST_STEP
        finished = [num_sweeps > 0 for num_sweeps in at.num_sweeps.values()]
        return any(finished) if self.stop == "first" else all(finished)

    def _position(self) -> _Position:
        """Return the position after the last minibatch that a part has delivered.

        A part's own counts decide, because an interrupt may come after its read and before anything is noted here.
        """
        if self._reading is not None:
            name, before, at = self._reading
            now = self.sources[name].delivered
            if now != before:
                # If an interrupt comes before the last line, the next call does the same again.
                self._at = at.after(name, now.num_sweeps - before.num_sweeps)
            self._reading = None
        return self._at

    def part_of(self, step: int) -> str:
        """Return the name of the part that a step reads, with the current weights. Steps are numbered from 0.

        Raises:
            ConfigError: The state of an earlier version, which was loaded, does not have the weights of that step.
        """
        weights = self._weights
        if whole_number("step", step) < weights.first:
            raise ConfigError(f"step is {step}, but the weights changed at step {weights.first}", key="step")
        return weights.name_at(step)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each part at the mixture's position."""
        with self._lock.inner:
            return self._weights.shares_at(self._position().step)

    def read(self, minibatch_size_in_samples: Size, partition: Partition = WHOLE) -> Minibatch | None:
        """Return the next minibatch of a partition, or None when the data have ended.

        Its `source_of_sequences` names the part. Arguments and errors as for `MinibatchSource.read`. The workers of a
        balanced or global partition take steps in turn; each reads the minibatches of all of them, so that it knows
        where the parts end a sweep.
        """
        with self._lock.inner:
            at = self._position()
            if self._share[0] is not partition:
                share = _of_all_workers(checked_partition(partition))
                self._require_data(share)
                self._share = (partition, share)
            share = self._share[1]
            at = at.in_turns_of(minibatch_size_in_samples, partition)
            while not self._ends_at(at):
                name = self._weights.name_at(at.step)
                source, is_own = self.sources[name], not at.own.rounds_to_pass
                # Noted before the read, so that `_position` can count a read that was interrupted after it delivered.
                self._reading = (name, source.delivered, at)
                minibatch = source.read(minibatch_size_in_samples, share)
                if minibatch is None:
                    raise _without_data(name, share)
                at = self._position()
                if is_own:
                    minibatch.source = name
                    return self._in_order(minibatch) if name in self._in_other_order else minibatch
            return None

    def _require_data(self, share: Partition) -> None:
        """Refuse a partition that has no chunk of a part: the part would never end a sweep."""
        for name, source in self.sources.items():
            if source.is_randomized and share.of_reads.index >= source.num_chunks:
                raise _without_data(name, share, source.num_chunks)

    def _in_order(self, minibatch: Minibatch) -> Minibatch:
        """Put the streams of a minibatch into the order of the first part."""
        for info in self.stream_infos():
            data = minibatch.pop(info.name)
            data.stream = info
            minibatch[info.name] = data
        return minibatch

    def minibatches(self, minibatch_size_in_samples: Size, partition: Partition = WHOLE) -> Iterator[Minibatch]:
        """Iterate over minibatches until the data end. Arguments as for `read`."""
        return Results(lambda: self.read(minibatch_size_in_samples, partition))

    def plan(self, minibatch_size_in_samples: Size, partition: Partition = WHOLE) -> MixturePlan:
        """Return a plan of the next reads of one size with the current weights, from the index alone. (docs/plan.md)

        The mixture does not move, and no data are read. Steps are counted from the mixture's position.

        Raises:
            ConfigError: The order of a source is not known without its data, or the partition has several workers.
        """
        if _of_all_workers(checked_partition(partition)) != partition:
            raise ConfigError("a Mixture plans for all workers together: leave out num_workers", key="partition")
        self._require_data(partition)
        size = minibatch_size_in_samples
        with self._lock.inner:
            plans = {name: source.plan(size, partition, from_here=True) for name, source in self.sources.items()}
            at, weights = self._position(), self._weights
        return MixturePlan(plans, weights, at.step, [count > 0 for count in at.num_sweeps.values()], self.stop)

    def set_weights(self, weights: Mapping[str, float | Mapping[int, float]], *, between: Between = "linear") -> None:
        """Change the weights of all parts from the next step on.

        Weights and `between` are as for the constructor; of a table, only what follows the position has an effect.

        Raises:
            ConfigError: A part has no weight, there is no such part, or a weight is not possible.
        """
        following = Weights.of(weights, self._weights.names, between, self.stop)
        with self._lock.inner:
            self._weights = self._weights.changed(self._position().step, following)

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
        with self._lock.inner:
            at, weights = self._position(), self._weights
        rows = [
            (name, f"{share:.1%}", counted(at.num_sweeps[name], "sweep"))
            for name, share in weights.shares_at(at.step).items()
        ]
        title = f"Mixture: step {at.step}, stops {self.stop!r}"
        return Description(title, ("part", "weight", "finished"), rows, has_head=True)

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue here: a small dict for JSON."""
        with self._lock.inner:
            at, weights = self._position(), self._weights
            states = {name: source.state_dict() for name, source in self.sources.items()}
        fixed = {key: {name: state[key] for name, state in states.items()} for key in CONSTANT}
        # A `MinibatchDataset` compares these two among the ranks, as it does for a source.
        digests = [of_one["digest"] for of_one in fixed["order"].values()]
        deserializers = [described for of_one in fixed["order"].values() for described in of_one["deserializers"]]
        own = {**at.own.to_json(), "names": list(weights.names), "weights": weights.to_json()}
        parts = {name: {"version": state["version"], **changing(state)} for name, state in states.items()}
        return {
            **fixed,
            "version": _STATE_VERSION,
            "settings": {"stop": self.stop, "parts": fixed["settings"]},
            "order": {"digest": digests, "deserializers": deserializers, "parts": fixed["order"]},
            "timeline": {**own, "num_sweeps": dict(at.num_sweeps), "parts": parts},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a `state_dict` was taken, with the weights of the state; `set_weights` changes them then.

        The tables of weights of this mixture hold from there on, if they and the state are the same up to there. After
        an error, the mixture is where it was.

        Raises:
            CheckpointError: The state has other parts, or tables that differ before its position; or a part has other
                data or settings.
        """
        at, saved, parts = self._checked(state)
        weights = self._own.resumed(saved, at.step)
        with self._lock.inner:
            # For an error after some parts have moved.
            before = {name: source.state_dict() for name, source in self.sources.items()}
            try:
                for name, source in self.sources.items():
                    try:
                        source.load_state_dict(parts[name])
                    except CheckpointError as error:
                        text = str(error).removeprefix("the state does not fit this source: ")
                        message = f"the state does not fit this mixture: part {name!r}: {text}"
                        raise CheckpointError(message, saved=error.saved, current=error.current) from error
                # No interrupt comes between these assignments.
                self._weights, self._at, self._reading = weights, at, None
            except BaseException:
                for name, source in self.sources.items():
                    source.load_state_dict(before[name])
                raise

    def _checked(self, state: Mapping[str, Any]) -> tuple[_Position, Weights, dict[str, Any]]:
        """Return the position, the weights, and the states of the parts."""
        fields = state if isinstance(state, Mapping) else {}
        timeline, settings, order = (
            field if isinstance(field := fields.get(name), Mapping) else {}
            for name in ("timeline", "settings", "order")
        )
        # The state of a source has the same version, but no counts of sweeps.
        if not settings or not is_same(fields.get("version"), _STATE_VERSION) or "num_sweeps" not in timeline:
            raise CheckpointError("not the state of a Mixture; expected a result of its state_dict()", saved=state)
        num_sweeps, changed = (self._of_parts(timeline.get(key)) for key in ("num_sweeps", "parts"))
        # A state of an earlier version has no content.
        fixed = {"content": {name: [] for name in self.sources}, **fields}
        fixed |= {"settings": settings.get("parts"), "order": order.get("parts")}
        of_parts = {key: self._of_parts(fixed.get(key)) for key in CONSTANT if key != "version"}
        if not is_same(settings.get("stop"), self.stop):
            raise _misfit("stop", settings.get("stop"), self.stop)
        own = State.from_json(timeline)
        whole("position", own.position, _LARGEST_STEP)
        for count in num_sweeps.values():
            whole("num_sweeps", count, own.position)
        for part in changed.values():
            if not isinstance(part, Mapping):
                raise damaged("parts", part, "the states of the parts")
        parts = {name: {**part, **{key: of[name] for key, of in of_parts.items()}} for name, part in changed.items()}
        at = _Position(State(own.position, own.settings, rounds_to_pass=own.rounds_to_pass), num_sweeps)
        return at, self._saved_weights(timeline, own.position), parts

    def _saved_weights(self, timeline: Mapping[str, Any], position: int) -> Weights:
        names, json = items("names", timeline.get("names", self._weights.names)), timeline.get("weights")
        if "turns" in timeline:
            # Earlier versions wrote only the last weights, by name.
            turns = [*self._of_parts(timeline["turns"]).values()]
            json = [[timeline.get("first_step"), turns, [0] * len(turns)]]
        if sorted(map(str, names)) != sorted(self._weights.names):
            raise _misfit("parts", names, list(self._weights.names))
        weights = Weights.from_json(json, names)
        whole("weights", weights.first, position)
        return weights.ordered(self._weights.names)

    def _of_parts(self, found: Any) -> dict[str, Any]:
        """Return what a state has for each part, in the order of the parts here, which a file need not keep."""
        if not isinstance(found, Mapping) or set(found) != set(self._weights.names):
            raise _misfit("parts", list(found) if isinstance(found, Mapping) else found, list(self._weights.names))
        return {name: found[name] for name in self._weights.names}

    def __getstate__(self) -> dict[str, Any]:
        return {"stop": self.stop, "sources": self.sources, "state": self.state_dict(), "weights": self._own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The state has the current weights; with these, it is taken as it is.
        Mixture.__init__(self, {name: (source, 1) for name, source in state["sources"].items()}, stop=state["stop"])
        self.load_state_dict(state["state"])
        self._own = state.get("weights", self._own)

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
        own: The number of the next step, size and partition of the last read, and the steps of other workers before the
            next of this worker, as the state of a timeline has them.
        num_sweeps: Sweeps that each part has finished.
    """

    own: State
    num_sweeps: Mapping[str, int]

    @property
    def step(self) -> int:
        return self.own.position

    def in_turns_of(self, size: Size, partition: Partition) -> _Position:
        """Return this position for reads of a size and a partition. The turns of the same worker continue."""
        settings, turns = self.own.settings, partition.of_workers or (0, 1)
        is_new = settings is None or (settings[1].of_workers or (0, 1)) != turns
        to_pass = turns[0] if is_new else self.own.rounds_to_pass
        return self._replace(own=self.own._replace(settings=(size, partition), rounds_to_pass=to_pass))

    def after(self, name: str, num_sweeps: int) -> _Position:
        """Return the position after a step that read a part, which then finished a number of sweeps."""
        own, passed = self.own, {**self.num_sweeps, name: self.num_sweeps[name] + num_sweeps}
        _, num_workers = (None if own.settings is None else own.settings[1].of_workers) or (0, 1)
        # After this worker's own step (0), the steps of all others come before its next.
        to_pass = (own.rounds_to_pass or num_workers) - 1
        return _Position(own._replace(position=own.position + 1, rounds_to_pass=to_pass), passed)


class MixturePlan(Displayed):
    """The next steps of a `Mixture`; see `Mixture.plan`. Steps are numbered from 0.

    Args:
        plans: For each part a plan from its position.
        weights: The weights of the parts.
        first: Number of step 0 in the mixture.
        is_finished: For each part whether it has finished a sweep.
        stop: When the data end.
    """

    def __init__(
        self, plans: Mapping[str, SourcePlan], weights: Weights, first: int, is_finished: Sequence[bool], stop: str
    ) -> None:
        self._plans, self._weights, self._first, self._stop = plans, weights, first, stop
        self._is_finished = is_finished

    def _description(self) -> Description:
        rows = [(name, f"{share:.1%}") for name, share in self._weights.shares_at(self._first).items()]
        return Description("MixturePlan", ("part", "weight"), rows, has_head=True)

    def steps(self, num_steps: int) -> PlannedSteps:
        """Return the first steps: `num_steps`, or fewer if the data end. Each step has its position in its part.

        Raises:
            ConfigError: There are too many steps, or a part ends before the mixture does.
            CorpusError: An error that a source raises in one of these steps.
        """
        count = min(whole_number("num_steps", num_steps, least=0), _STEPS_AT_ONCE)
        # The data may end long before the number of steps, so twice as many are planned each time.
        while True:
            require_few_steps(num_steps if self._stop == "forever" else count)
            found = self._few(count)
            if len(found) < count or count == num_steps:
                return found
            count = min(num_steps, 2 * count)

    def _few(self, num_steps: int) -> PlannedSteps:
        """Return a number of steps, or fewer if the data end."""
        parts = self._weights.components(self._first, self._first + num_steps)
        counts = np.bincount(parts, minlength=len(self._plans)).tolist()
        of_parts = [plan.steps(count) for plan, count in zip(self._plans.values(), counts, strict=True)]
        # The steps are joined part by part, and sorted by their place in the mixture.
        places = [np.flatnonzero(parts == part)[: len(steps)] for part, steps in enumerate(of_parts)]
        joined = np.concatenate(places)
        # If a part has too few steps, the mixture ends before the first of these steps, or has an error there.
        missing = int(np.setdiff1d(np.arange(num_steps + 1), joined)[0])
        end = num_steps + 1
        if self._stop != "forever":
            ended = [(at[steps.ends_of_sweep] + 1).tolist() for at, steps in zip(places, of_parts, strict=True)]
            firsts = [
                0 if is_finished else min([*of, end]) for of, is_finished in zip(ended, self._is_finished, strict=True)
            ]
            end = end_of_components(firsts, self._stop)
        if end > missing < num_steps:
            raise _without_data(list(self._plans)[int(parts[missing])])
        last = min(end, missing)
        found = PlannedSteps.joined(of_parts, np.argsort(joined)[:last])
        components = {name: found.num_sequences * (parts[:last] == part) for part, name in enumerate(self._plans)}
        return dataclasses.replace(found, components=components)

    def explain(self, step: int) -> ExplainedStep:
        """Return the sequences of a step. It has the number of the step in its part, and the position in its part.

        Raises:
            ConfigError: The data end before the step.
            CorpusError: An error that a source raises up to this step.
        """
        name = self.part_of(step)
        if self._stop != "forever" and step >= len(self.steps(step + 1)):
            raise ConfigError(f"the data end before step {step}", key="step")
        before, now = (self._weights.taken_at(at) for at in (self._first, self._first + step))
        part = self._weights.names.index(name)
        return self._plans[name].explain(now[part] - before[part])

    def part_of(self, step: int) -> str:
        """Return the name of the part that a step reads."""
        return self._weights.name_at(self._first + whole_number("step", step, least=0))


def _of_all_workers(partition: Partition) -> Partition:
    """Return the partition that all workers of a partition read together."""
    if isinstance(partition, GlobalPartition) and partition.num_workers > 1:
        return dataclasses.replace(partition, worker=0, num_workers=1)
    return partition


def _without_data(name: str, share: Partition | None = None, num_chunks: int = 0) -> ConfigError:
    """Make the error for a part that delivers nothing, although only the mixture decides where the data end."""
    if share is not None and num_chunks:
        advice = "make chunks smaller (chunk_size_in_bytes), or use a GlobalPartition"
        message = f"part {name!r} has {counted(num_chunks, 'chunk')}, and so nothing for {share!r}; {advice}"
    else:
        advice = "ask for another size or partition, and mix only sources that have begun no epoch"
        message = f"part {name!r} has no further minibatch of this size, but the mixture continues; {advice}"
    return ConfigError(message, key="partition")


def _misfit(name: str, saved: object, current: object) -> CheckpointError:
    text = f"the state does not fit this mixture: {difference(name, saved, current)}"
    return CheckpointError(text, saved=saved, current=current)

"""`Mixture`: minibatches of several sources, in exact proportions. (docs/batches.md)

Step number n reads from the part ``turns[n % 1000]``. The turns contain each part as often as its weight says, evenly
spread, so every 1,000 consecutive steps contain exactly these numbers. Each part is a source of its own, with its own
order and position. So a mixture keeps only the number of the step and the states of its parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cntkio.arguments import check_word, whole_number
from cntkio.displays import Description, Displayed, counted
from cntkio.errors import CheckpointError, ConfigError
from cntkio.formats.contract import Deserializer
from cntkio.minibatch import Minibatch
from cntkio.source import MinibatchSource
from cntkio.streams import StreamInformation, StreamsByName
from cntkio.timeline import Partition, Size

_NUM_TURNS = 1000
_STATE_VERSION = 1
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
        check_word("stop", stop, "first", "all", "forever")
        if not parts:
            raise ConfigError("a Mixture has no parts; expected a name for each source and its weight", key="parts")
        self.stop = stop
        self._counts = _counts({name: weight for name, (_, weight) in parts.items()})
        self._turns = _turns(self._counts)
        self.sources = {
            name: source if isinstance(source, MinibatchSource) else MinibatchSource(source)
            for name, (source, _) in parts.items()
        }
        self._step = 0
        self._first_step = 0  # of the current weights
        self._num_sweeps = dict.fromkeys(self.sources, 0)
        self._check_sources()

    def _check_sources(self) -> None:
        (first, of_first), *others = ((name, source.stream_infos()) for name, source in self.sources.items())
        for name, streams in others:
            if streams != of_first:
                texts = [", ".join(f"{info.name}: {info.form}" for info in infos) for infos in (of_first, streams)]
                raise ConfigError(
                    f"the parts of a Mixture have the same streams, but {first!r} has {texts[0]}, and {name!r} has "
                    f"{texts[1]}",
                    key="parts",
                )
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
        if self.stop == "forever":
            return False
        finished = [num_sweeps > 0 for num_sweeps in self._num_sweeps.values()]
        return any(finished) if self.stop == "first" else all(finished)

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

        Its `source_of_sequences` names the part. Arguments and errors as for `MinibatchSource.read`.
        """
        if self.has_ended:
            return None
        name = self.part_of(self._step)
        minibatch = self.sources[name].read(minibatch_size_in_samples, partition)
        assert minibatch is not None  # a source without limits does not end
        minibatch.source = name
        self._step, self._num_sweeps[name] = self._step + 1, self._num_sweeps[name] + minibatch.end_of_sweep
        return minibatch

    def minibatches(self, minibatch_size_in_samples: Size, partition: Partition = _WHOLE) -> Iterator[Minibatch]:
        """Iterate over minibatches until the data end. Arguments as for `read`."""
        while (minibatch := self.read(minibatch_size_in_samples, partition)) is not None:
            yield minibatch

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
        self._counts = _counts({name: weights[name] for name in self.sources})
        self._turns, self._first_step = _turns(self._counts), self._step

    def stream_infos(self) -> list[StreamInformation]:
        """Return the streams, which are the same in all parts."""
        return next(iter(self.sources.values())).stream_infos()

    def _description(self) -> Description:
        rows = [
            (name, f"{count / _NUM_TURNS:.1%}", counted(self._num_sweeps[name], "sweep"))
            for name, count in self._counts.items()
        ]
        title = f"Mixture: step {self._step}, stops {self.stop!r}"
        return Description(title, ("part", "weight", "finished"), rows, has_head=True)

    # -------------------------------------------------------------------------------------------- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue here: a small dict for JSON."""
        return {
            "version": _STATE_VERSION,
            "stop": self.stop,
            "step": self._step,
            "first_step": self._first_step,
            "turns": dict(self._counts),
            "num_sweeps": dict(self._num_sweeps),
            "parts": {name: source.state_dict() for name, source in self.sources.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a `state_dict` was taken, with the weights of the state; `set_weights` changes them then.

        After an error, the mixture is where it was.

        Raises:
            CheckpointError: The state has other parts, or a part has other data or settings.
        """
        step, first_step, counts, num_sweeps = self._checked(state)
        before = self.state_dict()
        try:
            for name, source in self.sources.items():
                source.load_state_dict(state["parts"][name])
        except BaseException:
            for name, source in self.sources.items():
                source.load_state_dict(before["parts"][name])
            raise
        self._counts, self._turns = counts, _turns(counts)
        self._step, self._first_step, self._num_sweeps = step, first_step, num_sweeps

    def _checked(self, state: Mapping[str, Any]) -> tuple[int, int, dict[str, int], dict[str, int]]:
        if not isinstance(state, Mapping) or state.get("version") != _STATE_VERSION or "turns" not in state:
            raise CheckpointError("not the state of a Mixture; expected a result of its state_dict()", saved=state)
        for field in ("turns", "num_sweeps", "parts"):
            if not isinstance(state.get(field), Mapping) or list(state[field]) != list(self.sources):
                found = state.get(field)
                saved = list(found) if isinstance(found, Mapping) else found
                raise CheckpointError(
                    f"the state does not fit this mixture: parts: saved {saved!r:.200}, here {list(self.sources)}",
                    saved=saved,
                    current=list(self.sources),
                )
        if state.get("stop") != self.stop:
            raise CheckpointError(
                f"the state does not fit this mixture: stop: saved {state.get('stop')!r}, here {self.stop!r}",
                saved=state.get("stop"),
                current=self.stop,
            )
        numbers = [state.get("step"), state.get("first_step"), *state["turns"].values(), *state["num_sweeps"].values()]
        is_sound = all(type(number) is int and number >= 0 for number in numbers) and numbers[0] >= numbers[1]
        if not is_sound or sum(state["turns"].values()) != _NUM_TURNS or not all(state["turns"].values()):
            raise CheckpointError("the state's 'step', 'turns' or 'num_sweeps' is damaged", saved=dict(state))
        return numbers[0], numbers[1], dict(state["turns"]), dict(state["num_sweeps"])

    # --------------------------------------------------------------------------------------------------- life

    def __getstate__(self) -> dict[str, Any]:
        return {"stop": self.stop, "sources": self.sources, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        turns = state["state"]["turns"]
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


def _counts(weights: Mapping[str, Any]) -> dict[str, int]:
    """Return how many of 1,000 turns each part has: the parts with the largest remainders are rounded up."""
    for name, weight in weights.items():
        is_number = isinstance(weight, int | float | np.integer | np.floating) and not isinstance(weight, bool)
        if not is_number or not math.isfinite(weight) or weight <= 0:
            raise ConfigError(f"the weight of {name!r} is {weight!r}; expected a number above 0", key="weights")
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
    """Spread the turns of each part evenly: turn number k of n is due at (k + 1/2) / n, earlier parts first."""
    names = list(counts)
    due: npt.NDArray[np.float64] = np.concatenate([(np.arange(counts[name]) + 0.5) / counts[name] for name in names])
    parts = np.repeat(np.arange(len(names)), list(counts.values()))
    return [names[part] for part in parts[np.argsort(due, kind="stable")].tolist()]

"""`SequenceMixture`: a source that mixes the sequences of several others. (docs/mixtures.md)

It is a source of one corpus, the concatenation of the parts, with the timeline that mixes
theirs (`cntkio.timeline.mixed`). Its recipe makes both; the rest of the source does not know of parts.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cntkio.arguments import suggests_keywords
from cntkio.errors import ConfigError
from cntkio.formats.contract import OPENING, Ahead, Corpus, Deserializer, Opening
from cntkio.formats.corpus import Concatenation, as_deserializer, order_of_streams
from cntkio.formats.table import SequenceTable
from cntkio.minibatch import Minibatch, indices_in_table
from cntkio.mixture.minibatches import weights_of
from cntkio.source import MinibatchSource
from cntkio.source.arrangement import Arrangement
from cntkio.source.omissions import omissions_of
from cntkio.source.recipe import Recipe, SourceOptions
from cntkio.storage.spans import span_at
from cntkio.timeline import INFINITELY_REPEAT, WHOLE, AnyTimeline, Partition, Size, Timeline
from cntkio.timeline.mixed import MixedTimeline, with_weights
from cntkio.timeline.schedule import Between
from cntkio.timeline.selection import Omissions
from cntkio.timeline.weights import Weights

# Options of a source that a part leaves at these values, because the mixture decides them.
_NO_LIMITS = {"max_samples": INFINITELY_REPEAT, "max_sweeps": INFINITELY_REPEAT}
_DECIDED_BY_MIXTURE = {"frame_mode": False, "truncation_length": 0, "repeat": None, **_NO_LIMITS}


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
        # The turns decide which chunks come first, so nothing is parsed in advance.
        plain = dataclasses.replace(opening, ahead=Ahead(0))
        corpora: list[Corpus] = []
        with ExitStack() as opened:
            for name, options in self.options.items():
                corpora.append(as_deserializer(options.described[0]).open(plain))
                # If this or a later part is refused, it is closed again.
                opened.callback(corpora[-1].close)
                self._check(name, corpora)
            names = list(self.options)
            of_parts = {name: dict(corpus.table.options) for name, corpus in zip(names, corpora, strict=True)}
            together = Concatenation(f"mixture of {', '.join(names)}", names, corpora, of_parts)
            opened.pop_all()
        return together

    def _check(self, name: str, corpora: Sequence[Corpus]) -> None:
        index = corpora[-1].index
        order_of_streams((corpora[0].name, corpora[0].streams), (index.name, index.streams))
        traits = index.utterances
        if index.joins == "alone" or (traits is not None and not (traits.invalid is None and traits.broken is None)):
            why = "sequences that are known only when they are reached"
            raise ConfigError(f"part {name!r} has {why}; mix it by minibatch (Mixture)", key="parts")


class _MixedRecipe(Recipe):
    """The decisions of a mixture of sequences. A plan makes several timelines, each with its own position."""

    def __init__(self, options: Mapping[str, SourceOptions], weights: Weights, stop: str) -> None:
        self.part_options, self.weights, self.stop = options, weights, stop
        self.first_sequences: npt.NDArray[np.int64] = np.zeros(1, np.int64)

    def open(self, deserializer: Deserializer, opening: Opening) -> Corpus:
        corpus = deserializer.open(opening)
        assert isinstance(corpus, Concatenation)
        # `SequenceMixture.read` needs the bounds of the parts to name the part of each sequence.
        self.first_sequences = corpus.first_sequences
        self.first_sequences_of_parts = dict(zip(self.part_options, self.first_sequences.tolist(), strict=False))
        return corpus

    # All lengths are known, so no chunk is loaded for them.
    def timeline(
        self,
        options: SourceOptions,
        corpora: Sequence[Corpus],
        arrangement: Arrangement,
        *_: Any,
        loads_parts: bool = False,
    ) -> AnyTimeline:
        together = corpora[0]
        assert isinstance(together, Concatenation)
        # Turns count sequences, and a part never ends, whatever the options of its source are.
        decided = {"counts_sequences": True, "crosses_sweeps": True, "size_counts": "own"}
        tables = [corpus.table for corpus in together.corpora]
        new = [
            functools.partial(Timeline, table.lengths, table.chunk_starts, **{**of_part.for_timeline, **decided})
            for table, of_part in zip(tables, self.part_options.values(), strict=True)
        ]
        bounds = together.first_sequences.tolist(), together.first_chunks.tolist(), arrangement.chunk_starts
        rules: dict[str, Any] = {
            "seed": options.randomization_seed,
            "stop": self.stop,
            "omissions": arrangement.omissions,
        }
        return MixedTimeline(new, arrangement.lengths, *bounds, self.weights, loads_parts=loads_parts, **rules)

    def omissions(self, options: SourceOptions, table: SequenceTable) -> Omissions | None:
        asked = [
            (range(first, last), part.leave_out or {})
            for (first, last), part in zip(
                itertools.pairwise(self.first_sequences.tolist()), self.part_options.values(), strict=True
            )
        ]
        return omissions_of(table, asked, options.trace_level)

    def for_checkpoint(self, options: SourceOptions) -> dict[str, Any]:
        return {"stop": self.stop, **{name: part.for_checkpoint for name, part in self.part_options.items()}}

    def arguments(self, options: SourceOptions) -> dict[str, Any]:
        return {**options.arguments, "recipe": self}


def _part_options(name: str, source: MinibatchSource | Deserializer) -> SourceOptions:
    """Return the options of a part of a mixture of sequences, and refuse a part that cannot be mixed by sequence."""
    arguments: dict[str, Any] = {"deserializers": source}
    if isinstance(source, MinibatchSource):
        # A subclass has a recipe of its own, which the mixture would not use.
        if type(source) is not MinibatchSource:
            message = f"part {name!r} of a mixture is a {type(source).__name__}; expected a MinibatchSource"
            raise ConfigError(message, key="parts")
        arguments = source.arguments
    # A deserializer has the options of a source that is made without any.
    parameters = inspect.signature(MinibatchSource).parameters
    options = SourceOptions.of({name: parameter.default for name, parameter in parameters.items()} | arguments)
    for key, value in _DECIDED_BY_MIXTURE.items():
        if getattr(options, key) != value:
            why = "because the mixture decides where the data end, and has whole sequences"
            message = f"part {name!r} of a mixture has {key}={getattr(options, key)}; leave it out, {why}"
            raise ConfigError(message, key=key)
    if len(options.described) > 1:
        why = "a mixture of sequences takes one for each part"
        advice = "write the joined data to one file, or mix by minibatch (Mixture)"
        message = f"part {name!r} joins {len(options.described)} deserializers; {why}: {advice}"
        raise ConfigError(message, key="parts")
    return options


@suggests_keywords
class SequenceMixture(MinibatchSource):
    """A source that mixes the sequences of several others in exact proportions. (docs/mixtures.md)

    Every 1,000 consecutive sequences of its order contain each part exactly as often as its weight says, evenly spread.
    It has all that a `MinibatchSource` has: budgets, partitions, plans, states, and `cntkio.torch.MinibatchDataset`
    takes it. Its positions count sequences. A sweep of a part ends with ``minibatch.end_of_sweep``.

    Args:
        parts: For each name a deserializer, or a source of one deserializer without limits, and its weight, above 0, or
            a table of weights by position, such as ``{0: 0.8, 10_000: 0.5}``. Each part keeps the window and the seed
            of its source, and its own sweeps. All parts have equal streams, in any order. A source that is passed is
            closed, and begins at its beginning.
        between: Between two positions of a table of weights, ``"linear"``: the weight is on the line between its two
            values, in blocks of 1,000 sequences. ``"steps"``: the former value holds.
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
        parts: Mapping[str, tuple[MinibatchSource | Deserializer, float | Mapping[int, float]]],
        *,
        stop: Literal["first", "all", "forever"] = "first",
        between: Between = "linear",
    ) -> None:
        weights = weights_of(parts, stop, between)
        options = {name: _part_options(name, source) for name, (source, _) in parts.items()}
        for source, _ in parts.values():
            if isinstance(source, MinibatchSource):
                source.close()
        self._names = np.array(list(parts), np.str_)
        self._mixed = _MixedRecipe(options, weights, stop)
        super().__init__(
            _Parts(options),
            # Only says whether the source is infinite: the timeline decides where the data end.
            max_sweeps=INFINITELY_REPEAT if stop == "forever" else 1,
            keep_data_in_memory=any(part.keep_data_in_memory for part in options.values()),
            read_ahead_in_bytes=max(part.read_ahead_in_bytes for part in options.values()),
            trace_level=max(part.trace_level for part in options.values()),
            recipe=self._mixed,
        )

    def read(self, minibatch_size_in_samples: Size, partition: Partition = WHOLE) -> Minibatch | None:
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
        state = self.state_dict()["timeline"]
        return Weights.from_json(state["weights"], self._mixed.weights.names).shares_at(state["position"])

    def set_weights(self, weights: Mapping[str, float | Mapping[int, float]], *, between: Between = "linear") -> None:
        """Change the weights of all parts from the next sequence on; in a pool, from the next pool on.

        Weights and `between` are as for the constructor; of a table, only what follows the position has an effect.

        Raises:
            ConfigError: A part has no weight, there is no such part, or a weight is not possible; or the source is
                inside a pool of samples, whose end depends on what follows.
        """
        following = Weights.of(weights, self._mixed.weights.names, between, self._mixed.stop)
        with self.lock.inner:  # a read of another thread comes before or after
            state = self.state_dict()
            # A move discards the minibatches that were prepared with the former weights.
            self.load_state_dict({**state, "timeline": with_weights(state["timeline"], following)})

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Unpickling calls the constructor of `MinibatchSource`, so the attributes of this class are set here.
        self._mixed = state["arguments"]["recipe"]
        self._names = np.array(list(self._mixed.part_options), np.str_)
        super().__setstate__(state)

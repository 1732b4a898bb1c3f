"""The meaning of a reader's section: deserializers, options of the source, sizes by epochs. (docs/configuration.md)

::

    ReaderConfig ──open──> MinibatchSource ──epoch──> minibatches
         │
         └──to_python──> the program that does the same

Invariants: a `ReaderConfig` is frozen and comparable, its representation makes it again, and the printed program opens
the same source as `ReaderConfig.open`.

This module knows neither the language of configurations nor the rules of their readers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from cntkio.arguments import CONFIGURATION, calling, folded
from cntkio.config import keys
from cntkio.config.keys import Kind, MinibatchMode, Precision
from cntkio.config.language import Position, folded_key
from cntkio.errors import ConfigError
from cntkio.htkmlf_reader import DEFAULT_MAX_UTTERANCE_LENGTH, HTKMLFReader, ReadMethod
from cntkio.minibatch import Minibatch
from cntkio.source import MinibatchSource
from cntkio.streams import StreamDefs, arguments_of
from cntkio.timeline import WHOLE_DATA, Window

_WIDEST = 80


def _call_text(name: str, arguments: list[str], indent: int | None) -> str:
    """Return a call as a person would write it: in one line or, if it is wide, with one argument a line.

    Args:
        arguments: Its arguments as Python.
        indent: Number of blanks before the call; None: write the whole call in one line.

    Example:
        >>> _call_text("f", ["1", "x=2"], 0)
        'f(1, x=2)'
    """
    if indent is None or (not any("\n" in argument for argument in arguments) and sum(map(len, arguments)) < _WIDEST):
        return f"{name}({', '.join(arguments)})"
    lines = [f"{name}(", *(f"{'':{indent + 4}}{argument}," for argument in arguments), f"{'':{indent}})"]
    return "\n".join(lines)


def _value_text(value: Any, indent: int | None) -> str:
    """Return Python that makes a value again. `indent` as for `_call_text`, for an argument of that call."""
    if isinstance(value, StreamDefs):
        return _call_text("StreamDefs", arguments_of(value), None if indent is None else indent + 4)
    # `repr` gives dtype('float64'), which the printed program could evaluate only with an import of NumPy.
    return repr(str(value) if isinstance(value, np.dtype) else value)


_T = TypeVar("_T")

Packing = Literal["sequence", "frame", "truncated"]


@dataclasses.dataclass(frozen=True)
class Call:
    """A deserializer of `cntkio`, as the call that makes it.

    Attributes:
        target: The class.
        keywords: Its keyword arguments, in order.
        trace_level: The deserializer's own trace level, which counts if the reader has none.

    Example:
        >>> from cntkio import CTFDeserializer
        >>> Call(CTFDeserializer, ("a.ctf",), (("max_errors", 3),))
        CTFDeserializer('a.ctf', max_errors=3)
    """

    target: type[Any]
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...] = ()
    trace_level: int = 1

    def __call__(self) -> Any:
        """Make the deserializer, or raise `ConfigError` if its options are invalid."""
        return self.target(*self.arguments, **dict(self.keywords))

    def __repr__(self) -> str:
        return self.text(None)

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.target.__name__

    def text(self, indent: int | None) -> str:
        """Return the call as Python: in one line or, with an indent, with one argument a line if it is wide."""
        arguments = [_value_text(value, indent) for value in self.arguments]
        arguments += [f"{key}={_value_text(value, indent)}" for key, value in self.keywords]
        return _call_text(self.name, arguments, indent)


@dataclasses.dataclass(frozen=True)
class ReaderConfig:
    """The meaning of a reader's section: frozen, comparable, and printable as the Python that does the same.

    Attributes:
        section: The path of the section that was read.
        kind: The CNTK reader that it describes.
        calls: The deserializers; `deserializers` makes them.
        precision: Type of the values.
        packing: Whole sequences, single frames, or truncated sequences.
        window: Distance within which sequences are shuffled; None: in order.
        randomization_seed: Sweep k is shuffled with this seed + k.
        truncation_length: Steps of a truncated minibatch; 0: the minibatch size is the number of steps, of
            `utterances_per_minibatch` parallel sequences.
        right_splice: Number of samples that successive parts of a truncated sequence have in common.
        utterances_per_minibatch: By epochs, the last number repeating.
        read_method: Method of shuffling of the HTKMLFReader.
        minibatch_mode: ``"full"`` leaves out a sweep's last minibatch if it is not full; HTKMLFReader.
        max_utterance_length: Longer utterances are skipped; HTKMLFReader.
        page_file_path: The folder of the page file; empty: the system's folder for temporary files; HTKMLFReader.
        local_timeline: Whether a partition's minibatches are filled with its own share of the size.
        max_errors: Number of sequences that may be marked as invalid.
        keep_data_in_memory: Whether chunks stay in memory once they were read.
        trace_level: Amount of logging: 0: no warnings; 1: ten of a kind in full; 2: in text, ten of each chunk.
        minibatch_sizes: In samples, by epochs, the last size repeating.
        epoch_size: Samples of an epoch; 0: one sweep.
        max_epochs: Number of epochs that are trained; None: unknown.
        places: Positions of entries: of files by path, of streams and options by folded key, and of the reader by the
            empty text.

    Example:
        >>> import pathlib, tempfile
        >>> from cntkio import read_config
        >>> path = pathlib.Path(tempfile.mkdtemp(), "train.cntk")
        >>> _ = path.write_text("train = [ reader = [ file = a.ctf ; input = [ x = [ dim = 2 ; format = dense ] ] ] ]")
        >>> config = read_config(path, "train=[SGD=[minibatchSize=32*2:64]]")
        >>> config.deserializers
        (CTFDeserializer('a.ctf', StreamDefs(x=StreamDef(field='x', shape=2))),)
        >>> config.window, config.minibatch_sizes
        (Window(size=128, unit='chunks'), (32, 32, 64))
    """

    section: str
    kind: Kind
    calls: tuple[Call, ...]
    precision: Precision = "float"
    packing: Packing = "sequence"
    window: Window | None = None
    randomization_seed: int = 0
    truncation_length: int = 0
    right_splice: int = 0
    utterances_per_minibatch: tuple[int, ...] = (1,)
    read_method: ReadMethod = "blockRandomize"
    minibatch_mode: MinibatchMode = "partial"
    max_utterance_length: int = DEFAULT_MAX_UTTERANCE_LENGTH
    page_file_path: str = ""
    local_timeline: bool = False
    max_errors: int = 0
    keep_data_in_memory: bool = False
    trace_level: int = 1
    minibatch_sizes: tuple[int, ...] = (256,)
    epoch_size: int = 0
    max_epochs: int | None = None
    # Where an entry stands is not part of the meaning: a written configuration must be equal to its original.
    places: Mapping[str, Position] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @property
    def deserializers(self) -> tuple[Any, ...]:
        """The deserializers, made anew."""
        return tuple(call() for call in self.calls)

    @property
    def frame_mode(self) -> bool:
        """True if single frames are delivered."""
        return self.packing == "frame"

    @property
    def truncated(self) -> bool:
        """True if sequences are cut into minibatches of a number of steps."""
        return self.packing == "truncated"

    def minibatch_size(self, epoch: int = 0) -> int:
        """Return the configured minibatch size of an epoch."""
        return _of_epoch(self.minibatch_sizes, epoch)

    def _size(self, epoch: int, minibatch_size: int | None) -> int:
        return self.minibatch_size(epoch) if minibatch_size is None else minibatch_size

    def steps(self, epoch: int = 0, minibatch_size: int | None = None) -> int:
        """Return the steps of a truncated minibatch; 0 if sequences are whole. Arguments as for `samples`."""
        return (self.truncation_length or self._size(epoch, minibatch_size)) if self.truncated else 0

    def samples(self, epoch: int = 0, minibatch_size: int | None = None) -> int:
        """Return the number of samples to request from the source for a minibatch.

        Args:
            epoch: The epoch, from 0.
            minibatch_size: The minibatch size, in place of the configured size.
        """
        size = self._size(epoch, minibatch_size)
        # In CNTK the minibatch size is then the number of steps, and each parallel utterance contributes as many.
        if self.truncated and not self.truncation_length:
            return size * _of_epoch(self.utterances_per_minibatch, epoch)
        return size

    # ---------------------------------------------------------------------------------------------------- the source

    def source_options(self, *, minibatch_size: int | None = None) -> dict[str, Any]:
        """Return the keyword arguments of `MinibatchSource`, or of `HTKMLFReader`, without those at their default."""
        if self.kind == "HTKMLFReader":
            return self._reader_options()
        options: dict[str, Any] = {"randomize": self.window is not None}
        if self.window is not None:
            # The unit that does not apply is set to 0, because its default may be above 0, and both exclude each other.
            for unit in ("chunks", "samples"):
                options[f"randomization_window_in_{unit}"] = self.window.size * (self.window.unit == unit)
            options["randomization_seed"] = self.randomization_seed
        options |= {"frame_mode": self.frame_mode, "truncation_length": self.steps(0, minibatch_size)}
        for name in ("right_splice", "max_errors", "keep_data_in_memory", "trace_level"):
            options[name] = getattr(self, name)
        # As in CNTK, no minibatch of a configured reader crosses the end of a sweep.
        options |= {"crosses_sweeps": False, "local_timeline": self.local_timeline}
        own = inspect.signature(MinibatchSource).parameters
        return {name: value for name, value in options.items() if value != own[name].default}

    def _reader_options(self) -> dict[str, Any]:
        """Return the keyword arguments of `HTKMLFReader`: mostly the keys of its section."""
        options: dict[str, Any] = {}
        if self.window != WHOLE_DATA:
            options["randomize"] = "none" if self.window is None else self.window.size
        for option, value in self.set_options():
            # `HTKMLFReader` takes a single number, too, which is easier to read in the printed program.
            if option is keys.COUNTS:
                value = value[0] if len(value) == 1 else list(value)
            # Among these options, only the seed has another name in `HTKMLFReader` than in CNTK.
            options["randomization_seed" if option is keys.SEED else option.key] = value
        if self.max_errors:
            options["max_errors"] = self.max_errors
        if self.trace_level != 1:
            options["trace_level"] = self.trace_level
        return options

    def set_options(self) -> Iterator[tuple[keys.ConfigOption[Any], Any]]:
        """Yield the keys of the reader's section whose values are not at their default, and these values."""
        for option in keys.ATTRIBUTES[self.kind]:
            value = getattr(self, option.name)
            if value != option.default:
                yield option, value

    def open(self, *, minibatch_size: int | None = None) -> MinibatchSource:
        """Open the reader's source. It never ends by itself; `epoch` reads one epoch of it.

        Args:
            minibatch_size: The minibatch size, in place of the configured size, if the truncation length depends on it.

        Raises:
            ConfigError: An option is invalid.
            CorpusError: The deserializers have no sequence in common.
            FormatError: A file breaks its format, and its index cannot be made.
            OSError: A file cannot be read.
        """
        options = self.source_options(minibatch_size=minibatch_size)
        opened = HTKMLFReader if self.kind == "HTKMLFReader" else MinibatchSource
        with self.located():
            return opened(self.deserializers, **options)

    @contextlib.contextmanager
    def located(self) -> Iterator[None]:
        """Complete an error in the block about a missing file or an option by the entry of the configuration."""
        try:
            # Advice in errors then names keys of configurations, not parameters of Python.
            with calling(words=CONFIGURATION):
                yield
        except ConfigError as error:
            # The key is a stream, or an option as Python has it, such as defines_mb_size for definesMBSize.
            names = (folded_key(error.key or ""), folded(CONFIGURATION.option(error.key or "")), "")
            place = next((self.places[name] for name in names if name in self.places), None)
            # Changed in place, so that the error keeps its type and key.
            if place is not None and error.path is None:
                placed = place.error(str(error))
                error.args, error.path, error.line = placed.args, placed.path, placed.line
            raise
        except FileNotFoundError as error:
            place = self.places.get(os.fsdecode(error.filename or ""))
            if place is None:
                raise
            raise FileNotFoundError(error.errno, f"{error.strerror} ({place} names it)", error.filename) from None

    def epoch(
        self,
        source: MinibatchSource,
        number: int = 0,
        *,
        minibatch_size: int | None = None,
        epoch_size: int | None = None,
        num_data_partitions: int = 1,
        partition_index: int = 0,
    ) -> Iterator[Minibatch]:
        """Read one epoch, as CNTK's training does: samples ``number * size .. (number + 1) * size`` of the timeline.

        Args:
            source: The source that `open` returned.
            number: The epoch, from 0.
            minibatch_size: The minibatch size, in place of the configured size.
            epoch_size: The epoch size, in place of the configured size; 0: one sweep.
            num_data_partitions: Number of readers that share the data.
            partition_index: Index of this reader among them.

        Yields:
            Minibatches. A minibatch without sequences is not the end: another partition has the next sequences.
        """
        size = self.epoch_size if epoch_size is None else epoch_size
        if isinstance(source, HTKMLFReader):
            samples = self._size(number, minibatch_size)
            yield from source.epoch(number, samples, size, num_data_partitions, partition_index)
            return
        # CNTK's meaning of the epoch size 0 is a sweep, whose size only the opened source knows.
        size = size or source.num_samples
        steps = self.steps(number, minibatch_size)
        source.begin_epoch(number * size, (number + 1) * size, truncation_length=steps or None)
        samples = self.samples(number, minibatch_size)
        for minibatch in source.minibatches(samples, num_data_partitions, partition_index):
            yield minibatch
            if source.has_ended:
                return

    # ------------------------------------------------------------------------------------------------- for people

    def to_python(self) -> str:
        """Return the program that opens the same source and reads an epoch of it."""
        source = "HTKMLFReader" if self.kind == "HTKMLFReader" else "MinibatchSource"
        names = {call.name for call in self.calls} | {source}
        used = " ".join(map(repr, self.calls))
        names |= {name for name in ("Remote", "StreamDef", "StreamDefs") if f"{name}(" in used}
        listed = ", ".join(sorted(names, key=lambda name: (name.lower(), name)))
        options = [f"{key}={value!r}" for key, value in self.source_options().items()]
        calls = "[\n" + "".join(f"        {call.text(8)},\n" for call in self.calls) + "    ]"
        program = f"from cntkio import {listed}\n\nsource = {_call_text(source, [calls, *options], 0)}\n"
        if self.kind == "HTKMLFReader":
            sizes = [self.minibatch_size(), *([self.epoch_size] if self.epoch_size else [])]
            program += f"for minibatch in source.epoch(0, {', '.join(map(str, sizes))}):\n"
        else:
            end = f"{self.epoch_size}" if self.epoch_size else "source.num_samples"
            program += f"source.begin_epoch(0, {end})\nfor minibatch in source.minibatches({self.samples()}):\n"
        return program + "    print(minibatch.num_sequences, minibatch.end_of_sweep)\n"

    def facts(self) -> dict[str, str]:
        """Return the meaning of the section for people: facts by name."""
        facts = {"section": self.section, "reader": self.kind}
        for index, call in enumerate(self.calls):
            facts[f"deserializer {index}"] = repr(call)
        facts |= {"precision": self.precision, "packing": self.packing}
        utterances = _by_epochs(self.utterances_per_minibatch)
        if self.truncated:
            by_size = f"minibatch size; {utterances} parallel sequences"
            facts["truncation"] = f"{self.truncation_length} steps" if self.truncation_length else by_size
        if self.kind == "HTKMLFReader":
            facts |= {"read method": self.read_method, "minibatch mode": self.minibatch_mode}
            if self.packing == "sequence":
                facts["utterances"] = f"{utterances} in a minibatch"
        facts["randomization window"] = "none"
        # Without a window the data are read in order, so a seed has no effect.
        if self.window is not None:
            size = f"{self.window.size:,} {self.window.unit}"
            facts["randomization window"] = "everything" if self.window == WHOLE_DATA else size
            facts["randomization seed"] = str(self.randomization_seed)
        facts["minibatch size"] = _by_epochs(self.minibatch_sizes) + " samples"
        facts["epoch size"] = f"{self.epoch_size:,} samples" if self.epoch_size else "one sweep"
        if self.max_epochs is not None:
            facts["epochs"] = str(self.max_epochs)
        for option, value in self.set_options():
            if option not in _IN_FACTS:
                facts[option.name.replace("_", " ")] = str(value).lower() if isinstance(value, bool) else str(value)
        return facts


# Options whose values are among the other facts.
_IN_FACTS = (
    keys.SEED, keys.FRAME_MODE, keys.HTK_FRAME_MODE, keys.TRUNCATED, keys.TRUNCATION_LENGTH, keys.COUNTS,
    keys.READ_METHOD, keys.MINIBATCH_MODE,
)  # fmt: skip


def _of_epoch(values: Sequence[_T], epoch: int) -> _T:
    """Return the value of an epoch; the last value repeats."""
    return values[min(epoch, len(values) - 1)]


def _by_epochs(values: Sequence[int]) -> str:
    return ", ".join(map(str, values)) + (", ..." if len(values) > 1 else "")

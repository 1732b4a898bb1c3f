"""`HTKMLFReader`: features and labels of HTK, read as CNTK's old reader did. (docs/formats/htk.md, "The HTKMLFReader")

::

    blockRandomize   chunks are shuffled, and frames or utterances within a window     cntkio.timeline
    rollingWindow    frames move by at most half a window                              order
                     and features that do not fit into memory wait in a file           page_file

A reader is a source with a recipe of its own, which opens deserializers, makes the timeline, and defines what a
minibatch size counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from cntkio.arguments import flag
from cntkio.errors import CheckpointError, ConfigError
from cntkio.formats.contract import Corpus, Deserializer, Opening
from cntkio.formats.corpus import FileCorpus
from cntkio.formats.htk import HTKFeatureDeserializer
from cntkio.htkmlf_reader.order import PagedFeatures, RollingTimeline
from cntkio.minibatch import Minibatch
from cntkio.source import MinibatchSource
from cntkio.source.arrangement import Arrangement, Skipping
from cntkio.source.pipeline import Request
from cntkio.source.recipe import Recipe, SourceOptions
from cntkio.timeline import INFINITELY_REPEAT, WHOLE_DATA, AnyTimeline, Partition, Size, Timeline, Window
from cntkio.timeline.budget import whole_size

ReadMethod = Literal["blockRandomize", "rollingWindow", "none"]
READ_METHODS: tuple[ReadMethod, ...] = get_args(ReadMethod)
_ALL_OR_NONE: tuple[Literal["auto", "none"], ...] = ("auto", "none")
LONGEST_UTTERANCE = 65535
"""Frames of the longest utterance that the reader accepts."""
DEFAULT_MAX_UTTERANCE_LENGTH = 10_000

_Word = TypeVar("_Word", bound=str)


def _word(name: str, value: object, words: Sequence[_Word]) -> _Word:
    for word in words:
        if isinstance(value, str) and value.lower() == word.lower():
            return word
    raise ConfigError(f"{name} is {value!r}; expected {' or '.join(map(repr, words))}", key=name)


def _whole_number(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value < 2**63:
        raise ConfigError(f"{name} is {value!r}; expected a whole number from {least}", key=name)
    return int(value)


def _randomize(value: object) -> int | Literal["auto", "none"]:
    if isinstance(value, bool):
        return "auto" if value else "none"
    if isinstance(value, str):
        return _word("randomize", value, _ALL_OR_NONE)
    return _whole_number("randomize", value, 0)


class HTKMLFRecipe(Recipe):
    """The parameters that `HTKMLFReader` has and other sources do not, and the decisions that follow from them.

    Args:
        given: The parameters by the names that the reader has. Words may be in upper or lower case.

    Attributes:
        skipping: The rule for utterances to skip.
        skipped: Number of skipped utterances, by kind.

    Raises:
        ConfigError: A parameter is invalid, or two exclude each other.
    """

    def __init__(self, **given: Any) -> None:
        counts = given["nbruttsineachrecurrentiter"]
        self.read_method = _word("readMethod", given["readMethod"], READ_METHODS)
        self.randomize = _randomize(given["randomize"])
        self.only_full = _word("minibatchMode", given["minibatchMode"], ("partial", "full")) == "full"
        self.frame_mode = flag("frameMode", given["frameMode"])
        self.truncated = flag("truncated", given["truncated"])
        self.truncation_length = _whole_number("truncationLength", given["truncationLength"], 0)
        self.counts = tuple(
            _whole_number("nbruttsineachrecurrentiter", count, 1)
            for count in (counts if isinstance(counts, Sequence) else [counts])
        )
        longest = _whole_number("maxUtteranceLength", given["maxUtteranceLength"], 1)
        self.page_folder = None if given["pageFilePath"] is None else os.fspath(given["pageFilePath"])
        self.page_limit_in_bytes = _whole_number("page_limit_in_bytes", given["page_limit_in_bytes"], 0)
        self._given = {**given, "nbruttsineachrecurrentiter": self.counts, "pageFilePath": self.page_folder}
        self._check()
        is_limited = not self.frame_mode and not self.truncated
        self._longest = min(longest, LONGEST_UTTERANCE) if is_limited else LONGEST_UTTERANCE
        self.skipping = Skipping(self._longest)
        self.skipped: Mapping[str, int] = {}
        self._paged: list[PagedFeatures] = []
        self._num_bytes = 0

    def _check(self) -> None:
        """Refuse parameters that exclude each other."""
        if self.truncated and self.frame_mode:
            raise ConfigError(
                "truncated and frameMode exclude each other; frameMode is true by default", key="truncated"
            )
        if self.truncation_length and not self.truncated:
            raise ConfigError(
                f"truncationLength={self.truncation_length} needs truncated=True as well", key="truncationLength"
            )
        if not self.counts:
            raise ConfigError(
                "nbruttsineachrecurrentiter is empty; expected a number", key="nbruttsineachrecurrentiter"
            )
        if self.frame_mode and max(self.counts) > 1:
            raise ConfigError(
                f"nbruttsineachrecurrentiter={max(self.counts)} and frameMode exclude each other; frameMode is true by "
                f"default",
                key="nbruttsineachrecurrentiter",
            )
        if self.read_method == "rollingWindow" and not self.frame_mode and self.window is not None:
            raise ConfigError(
                "readMethod='rollingWindow' shuffles frames, and frameMode is false; whole utterances are shuffled by "
                "readMethod='blockRandomize'",
                key="readMethod",
            )
        if self.page_folder is None:
            return
        if self.read_method != "rollingWindow":
            raise ConfigError(
                f"pageFilePath={self.page_folder!r} needs readMethod='rollingWindow', but readMethod is "
                f"{self.read_method!r}",
                key="pageFilePath",
            )
        if not Path(self.page_folder).is_dir():
            raise ConfigError(
                f"pageFilePath is {self.page_folder!r}, which is not a folder; expected a folder that exists",
                key="pageFilePath",
            )

    @property
    def window(self) -> Window | None:
        """The distance over which frames or utterances are shuffled; None: they come in order."""
        if self.randomize == "none" or self.read_method == "none":
            return None
        if self.randomize == "auto":
            return WHOLE_DATA
        # In a rolling window of one frame, no frame can move.
        is_still = self.randomize == 0 or (self.randomize == 1 and self.read_method == "rollingWindow")
        return None if is_still else Window(self.randomize, "samples")

    def _count(self, epoch: int) -> int:
        """Return the number of parallel utterances in an epoch."""
        return self.counts[min(epoch, len(self.counts) - 1)]

    # ------------------------------------------------------------------------------------ the decisions of a recipe

    def open(self, deserializer: Deserializer, opening: Opening) -> Corpus:
        if self.read_method != "rollingWindow" or not isinstance(deserializer, HTKFeatureDeserializer):
            return super().open(deserializer, opening)
        features = PagedFeatures(deserializer.settings(), opening, self.page_folder)
        corpus = FileCorpus(features)
        self._paged.append(features)
        self._num_bytes += corpus.index.num_bytes
        return corpus

    def keeps_data_in_memory(self, options: SourceOptions) -> bool:
        """Return whether features stay in memory, because they are few; else they wait in a page file."""
        is_small = self._num_bytes <= self.page_limit_in_bytes
        for features in self._paged:
            features.is_paged = not is_small
        return is_small if self._paged else options.keep_data_in_memory

    def timeline(
        self,
        options: SourceOptions,
        corpora: Sequence[Corpus],
        arrangement: Arrangement,
        lengths_in_chunk: Callable[[int], npt.NDArray[np.uint32]],
        *,
        loads_parts: bool = False,
    ) -> AnyTimeline:
        self.skipped = arrangement.skipped
        keywords = {
            **options.for_timeline,
            "only_full": self.only_full and self.frame_mode,
            "num_rows": self.num_rows(0) or 0,
            "counts_sequences": not self.frame_mode and not self.truncated,
        }
        if self.read_method == "rollingWindow" and self.window is not None:
            window = self.window.size
            return RollingTimeline(arrangement.lengths, arrangement.chunk_starts, rolling_window=window, **keywords)
        keywords["loads_parts"] = loads_parts and not self._paged  # a page file keeps whole chunks
        return Timeline(arrangement.lengths, arrangement.chunk_starts, **keywords)

    def for_checkpoint(self, options: SourceOptions) -> dict[str, Any]:
        return {
            **super().for_checkpoint(options),
            "truncation_length": self.truncation_length or ("minibatch size" if self.truncated else 0),
            "read_method": self.read_method,
            "only_full": self.only_full,
            "nbruttsineachrecurrentiter": list(self.counts),
            "longest_utterance": self._longest,
        }

    def arguments(self, options: SourceOptions) -> dict[str, Any]:
        shared = (
            "deserializers", "randomization_seed", "max_samples", "max_sweeps", "max_errors", "read_ahead_in_bytes",
            "trace_level",
        )  # fmt: skip
        return {**self._given, **{name: getattr(options, name) for name in shared}}

    def request(self, size: Size, partition: Partition, epoch_number: int) -> Request:
        """Count the size as the timeline does: in frames, utterances, or cells of all rows."""
        asked = counted = whole_size(size, "an HTKMLFReader takes a number of frames")
        if not self.frame_mode and asked >= 1:
            counted = self._count(epoch_number)
            if self.truncated:
                counted *= self.truncation_length or asked
        return Request(asked, counted, partition)

    def check_truncation(self, options: SourceOptions, truncation_length: int | None) -> None:
        if truncation_length is not None:
            raise ConfigError(
                "an HTKMLFReader takes no truncation_length for an epoch; its truncationLength or the minibatch size "
                "gives the steps",
                key="truncation_length",
            )

    def num_rows(self, epoch_number: int) -> int | None:
        """Return the parallel utterances of an epoch if the minibatch size gives the steps."""
        return self._count(epoch_number) if self.truncated and not self.truncation_length else None

    def epoch_state(self, epoch_number: int) -> dict[str, Any]:
        return {"epoch_number": epoch_number}

    def epoch_number(self, state: Mapping[str, Any]) -> int:
        number = state.get("epoch_number")
        if type(number) is not int or number < 0:
            raise CheckpointError(f"the state has no 'epoch_number' of an HTKMLFReader; it is {number!r}", saved=number)
        return number


class HTKMLFReader(MinibatchSource):
    """A source that delivers features and labels of HTK as CNTK's HTKMLFReader did. (docs/formats/htk.md)

    The parameters have the names of the reader's configuration. Checkpoints, partitions, pickling and reading ahead are
    the same as for `MinibatchSource`, except that no minibatch crosses the end of a sweep. The reader skips an
    utterance if a stream lacks it or has another length for it, or if it is too long. If it would skip more than half
    of the utterances, it raises an error.

    In frame mode, a minibatch size counts the frames of all partitions. A minibatch of whole utterances has
    `nbruttsineachrecurrentiter` utterances, whatever the size. The size of truncated minibatches is their number of
    steps.

    Args:
        deserializers: The deserializers, the first of which reads features.
        readMethod: ``"blockRandomize"``: chunks in random order, and in them frames or utterances, as in other
            sources; ``"rollingWindow"``: frames that move from their position by at most half of `randomize`;
            ``"none"``: in order.
        randomize: The window in frames; ``"auto"``: everything; ``"none"`` or 0: in order.
        minibatchMode: ``"partial"``: the last minibatch of a sweep or an epoch may be short; ``"full"``: in frame mode
            such a minibatch is left out, unless a whole sweep is shorter than a minibatch.
        frameMode: Deliver frames, not utterances.
        truncated: Cut utterances: the minibatch size is the number of steps.
        truncationLength: Steps of a truncated minibatch, whatever its size; 0: the size.
        nbruttsineachrecurrentiter: Number of parallel utterances; or a list with a number for each epoch, whose last
            number repeats. A minibatch has this number of whole utterances, whatever its size. In frame mode it is 1.
        maxUtteranceLength: Longer utterances are skipped where whole utterances are delivered. Utterances of more than
            65535 frames are always skipped.
        pageFilePath: The folder of the page file of ``readMethod="rollingWindow"``; None: the system's folder for
            temporary files.
        randomization_seed: Sweep number k is shuffled with ``randomization_seed + k``.
        max_samples: As for `MinibatchSource`.
        max_sweeps: As for `MinibatchSource`.
        max_errors: Number of utterances that may have invalid labels.
        page_limit_in_bytes: Largest size of features that stay in memory, without a page file.
        read_ahead_in_bytes: As for `MinibatchSource`.
        trace_level: As for `MinibatchSource`.

    Attributes:
        skipped: Number of utterances that were skipped, by kind.

    Raises:
        ConfigError: A parameter is invalid, or two exclude each other.
        CorpusError: More than half of the utterances would be skipped, or none is in all streams.
        FormatError: A list or a label file breaks its format.
        OSError: A file cannot be read.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from cntkio import StreamDef, StreamDefs
        >>> from cntkio.formats import htk
        >>> folder = Path(tempfile.mkdtemp())
        >>> utterances = [("u1", np.array([[1.0], [2.0], [3.0]])), ("u2", np.array([[4.0], [5.0]]))]
        >>> _ = htk.write_archive(folder / "a.ark", folder / "a.scp", utterances)
        >>> features = HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp=folder / "a.scp", shape=1)))
        >>> reader = HTKMLFReader(features, readMethod="rollingWindow", randomize=4, randomization_seed=2, max_sweeps=1)
        >>> [minibatch["x"].values.ravel().tolist() for minibatch in reader.minibatches(3)]
        [[2.0, 3.0, 1.0], [5.0, 4.0]]
        >>> reader.close()
    """

    def __init__(
        self,
        deserializers: Deserializer | Sequence[Deserializer],
        *,
        readMethod: str = "blockRandomize",  # noqa: N803 - these are CNTK's names
        randomize: int | str = "auto",
        minibatchMode: str = "partial",  # noqa: N803
        frameMode: bool = True,  # noqa: N803
        truncated: bool = False,
        truncationLength: int = 0,  # noqa: N803
        nbruttsineachrecurrentiter: int | Sequence[int] = 1,
        maxUtteranceLength: int = DEFAULT_MAX_UTTERANCE_LENGTH,  # noqa: N803
        pageFilePath: str | os.PathLike[str] | None = None,  # noqa: N803
        randomization_seed: int = 0,
        max_samples: int = INFINITELY_REPEAT,
        max_sweeps: int = INFINITELY_REPEAT,
        max_errors: int = 0,
        page_limit_in_bytes: int = 1 << 30,
        read_ahead_in_bytes: int = 256 << 20,
        trace_level: int = 1,
    ) -> None:
        listed = list(deserializers) if isinstance(deserializers, Sequence) else [deserializers]
        if listed and not isinstance(listed[0], HTKFeatureDeserializer):
            raise ConfigError(
                f"the first deserializer is of the type {type(listed[0]).__name__}; expected an HTKFeatureDeserializer",
                key="deserializers",
            )
        recipe = HTKMLFRecipe(
            readMethod=readMethod, randomize=randomize, minibatchMode=minibatchMode, frameMode=frameMode,
            truncated=truncated, truncationLength=truncationLength,
            nbruttsineachrecurrentiter=nbruttsineachrecurrentiter, maxUtteranceLength=maxUtteranceLength,
            pageFilePath=pageFilePath, page_limit_in_bytes=page_limit_in_bytes,
        )  # fmt: skip
        window = recipe.window
        super().__init__(
            listed,
            max_samples=max_samples,
            max_sweeps=max_sweeps,
            randomization_window_in_chunks=0,
            randomization_window_in_samples=0 if window is None else window.size,
            randomization_seed=randomization_seed,
            frame_mode=recipe.frame_mode,
            truncation_length=(recipe.truncation_length or 1) if recipe.truncated else 0,
            randomize=window is not None,
            max_errors=max_errors,
            read_ahead_in_bytes=read_ahead_in_bytes,
            trace_level=trace_level,
            crosses_sweeps=False,
            # A size in frames counts all partitions; parallel utterances are divided among the partitions.
            local_timeline=not recipe.frame_mode,
            recipe=recipe,
        )
        self.skipped = dict(recipe.skipped)

    def epoch(
        self,
        number: int,
        minibatch_size_in_samples: int,
        epoch_size: int = 0,
        num_data_partitions: int | None = None,
        partition_index: int | None = None,
    ) -> Iterator[Minibatch]:
        """Read one epoch: the frames ``number * epoch_size .. (number + 1) * epoch_size`` of the endless timeline.

        Args:
            number: Number of the epoch, from 0, as `nbruttsineachrecurrentiter` counts them.
            minibatch_size_in_samples: As for `next_minibatch`.
            epoch_size: Frames of an epoch; 0: one sweep.
            num_data_partitions: As for `next_minibatch`.
            partition_index: As for `next_minibatch`.

        Yields:
            Minibatches. A minibatch without sequences is not the end: another partition has the next sequences.
        """
        size = epoch_size or self.num_samples
        self.begin_epoch(number * size, (number + 1) * size, number=number)
        for minibatch in self.minibatches(minibatch_size_in_samples, num_data_partitions, partition_index):
            yield minibatch
            if self.has_ended:
                return

    def __setstate__(self, state: dict[str, Any]) -> None:
        HTKMLFReader.__init__(self, **state["arguments"])
        self.load_state_dict(state["state"])

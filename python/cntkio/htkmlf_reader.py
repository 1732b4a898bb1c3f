"""`HTKMLFReader`: features and labels of HTK, read as CNTK's old reader did. (docs/formats/htk.md, "The HTKMLFReader")

::

    blockRandomize   chunks are shuffled, and frames or utterances within a window    cntkio.timeline
    rollingWindow    frames move by at most half a window                             RollingTimeline
                     and features that do not fit into memory wait in a file          PageFile

    position  0 1 2 3 4 5 6 7 ...      a frame moves from its position by at most half a window,
    frame     2 0 3 1 6 4 7 5 ...      so only the chunks around the position are needed

A reader is a source with a recipe of its own, which opens deserializers, makes the timeline, and defines what a
minibatch size counts.

Invariant: the order of a rolling window is a pure function of the number of frames, the window and the seed.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._threads import ForkLock
from cntkio.arguments import flag, is_whole, suggests_keywords
from cntkio.errors import CheckpointError, ConfigError
from cntkio.formats.contract import Corpus, Deserializer, Index, Loaded, OpenedFile, Opening
from cntkio.formats.corpus import opened_corpus
from cntkio.formats.htk import FeatureSettings, Frames, HTKFeatureDeserializer, HTKFormat
from cntkio.minibatch import Minibatch
from cntkio.source import MinibatchSource
from cntkio.source.arrangement import Arrangement
from cntkio.source.pipeline import Request
from cntkio.source.recipe import Recipe, SourceOptions
from cntkio.storage.spans import span_at
from cntkio.storage.text_input import system_number
from cntkio.timeline import (
    INFINITELY_REPEAT,
    WHOLE,
    WHOLE_DATA,
    AnyTimeline,
    Partition,
    Plan,
    Reads,
    Size,
    Timeline,
    Window,
)
from cntkio.timeline.budget import whole_size

ReadMethod = Literal["blockRandomize", "rollingWindow", "none"]
READ_METHODS: tuple[ReadMethod, ...] = get_args(ReadMethod)
LONGEST_UTTERANCE = 65535  # frames
DEFAULT_MAX_UTTERANCE_LENGTH = 10_000


# --------------------------------------------------------------------------------------------------------------
# The order of frames in a rolling window.


def rolling_order(
    num_frames: int, randomize: int | Literal["auto", "none"] = "auto", seed: int = 0
) -> npt.NDArray[np.uint32]:
    """Return the order of a sweep: the frame at each position, a permutation of ``0 .. num_frames - 1``, uint32.

    The order is a pure function of the arguments. A frame moves by at most half of the window.

    Args:
        num_frames: Frames of a sweep, in the order of the list.
        randomize: The window in frames; ``"auto"``: all of them; ``"none"``, 0 and 1: in order.
        seed: Sweep k of a reader uses ``seed + k``.

    Example:
        >>> rolling_order(8, randomize="none").tolist()
        [0, 1, 2, 3, 4, 5, 6, 7]
        >>> rolling_order(8, randomize=4).tolist() == rolling_order(8, randomize=4).tolist()
        True
    """
    window = {"auto": 2**64 - 1, "none": 0}.get(randomize, randomize) if isinstance(randomize, str) else randomize
    if isinstance(window, str) or not 0 <= window < 2**64:
        raise ConfigError(f"randomize is {randomize!r}; expected 'auto', 'none' or a number of frames", key="randomize")
    if not 0 <= num_frames < 2**32:
        raise ConfigError(f"{num_frames} frames; expected fewer than 2^32", key="num_frames")
    return _core.rolling_order(num_frames, window, seed % 2**64)


class RollingTimeline(Timeline):
    """Frames in an order in which none moves from its position by more than half a window.

    It takes the arguments of `Timeline`, and `rolling_window` in frames; all lengths are 1.
    """

    def __init__(
        self,
        lengths: npt.NDArray[np.uint32],
        chunk_starts: npt.NDArray[np.int64],
        *,
        rolling_window: int,
        seed: int,
        **options: Any,
    ) -> None:
        # The base class delivers the positions in order; `read_several` replaces each position by its frame.
        super().__init__(lengths, chunk_starts, **{**options, "window": None})
        self._rolling_window, self._seed = rolling_window, seed
        self._starts = chunk_starts
        self._orders: dict[int, npt.NDArray[np.uint32]] = {}
        self._around: list[int] = []  # the sweep, and the first and the last chunk
        self._chunks_around = Plan([], 0)

    def _order(self, sweep: int) -> npt.NDArray[np.uint32]:
        if sweep not in self._orders:
            # Reading may go back across the end of a sweep, so the order of the sweep before is kept as well.
            for other in sorted(self._orders)[:-1]:
                del self._orders[other]
            self._orders[sweep] = rolling_order(self.num_samples, self._rolling_window, self._seed + sweep)
        return self._orders[sweep]

    def read_several(self, minibatch_size_in_samples: Size, partition: Partition, most: int) -> Reads | None:
        """Deliver the frames at the next positions of the order, in a single read."""
        # Several reads together could be of two sweeps, which have different orders.
        reads = super().read_several(minibatch_size_in_samples, partition, 1)
        if reads is None or not len(reads.selection.sequences):
            return reads
        # A read stays within a sweep, and delivers at least one frame.
        sweep = (reads.selection.position - 1) // self.num_samples
        frames = self._order(sweep)[reads.selection.sequences].astype(np.int64)
        # The references of the base class are to the frames in order, so they do not hold here.
        chunks = span_at(self._starts, frames)
        selection = dataclasses.replace(reads.selection, sequences=frames, chunks=chunks, refs=None)
        return reads._replace(selection=selection)

    def needed_chunks(self, partition: Partition = WHOLE) -> Plan:
        """Return the chunks around the position of the reader, up to the distance that a frame can move."""
        around: list[int] = []
        if self.position < self.end:
            sweep, offset = divmod(self.position, self.num_samples)
            half = self._rolling_window // 2
            bounds = np.array([max(offset - half, 0), min(offset + half, self.num_samples - 1)])
            around = [sweep, *span_at(self._starts, bounds).tolist()]
        # A new version makes the store plan its chunks again, so it must not change in every read.
        if around != self._around:
            chunks = [*range(around[1], around[2] + 1)] if around else []
            self._around, self._chunks_around = around, Plan(chunks, self._chunks_around.version + 1)
        return self._chunks_around

    def chunks_ahead(self, partition: Partition = WHOLE) -> Iterator[int]:
        """Yield the chunks after the needed chunks, to the end of the next sweep or of the data."""
        needed = self.needed_chunks(partition).chunks
        if not needed:
            return
        sweep = self.position // self.num_samples
        yield from range(needed[-1] + 1, self.num_chunks)
        # Another sweep follows, and needs the first chunks again.
        if (sweep + 1) * self.num_samples < self.end:
            yield from range(self.num_chunks)


# --------------------------------------------------------------------------------------------------------------
# Features that wait in a temporary file, so that each chunk of the feature files is read only once.


class PageFile(OpenedFile):
    """A temporary file that keeps chunks as they were read, in this folder, or else in the system's.

    It has no name, or loses it immediately, so it disappears with the reader, however the process ends. Any thread may
    use it. A fork of the process has an empty file of its own.
    """

    def __init__(self, folder: str | None) -> None:
        super().__init__()
        self._folder = folder
        self._lock = ForkLock()
        self._process = 0
        self._descriptor = -1
        self._close: Any = None
        self._end = 0
        self._kept: dict[int, tuple[int, int, Frames]] = {}

    def _begin(self) -> None:
        """Make a file for this process: a fork must not write where its parent does."""
        self.close()
        with tempfile.TemporaryFile(prefix="cntkio-pages-", dir=self._folder) as file:
            self._descriptor = os.dup(file.fileno())
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._process = os.getpid()

    def write(self, chunk_id: int, frames: Frames) -> None:
        """Keep the frames of a chunk."""
        data = frames.bytes.copy()
        try:
            with self._lock.inner:
                if self._process != os.getpid():
                    self._begin()
                descriptor, begin = self._descriptor, self._end
                self._end += len(data)
            # Outside of the lock: each thread writes to a range of its own.
            _core.file_write(system_number(descriptor), begin, data)
        except OSError as error:
            folder = self._folder or tempfile.gettempdir()
            raise OSError(error.errno, f"the page file cannot be written: {error.strerror}", folder) from error
        with self._lock.inner:
            # After the write, so that no thread reads a chunk that is not complete.
            self._kept[chunk_id] = (begin, len(data), frames)

    def read(self, chunk_id: int) -> Frames | None:
        """Return the frames of a chunk, if this process has kept them."""
        with self._lock.inner:
            kept = self._kept.get(chunk_id) if self._process == os.getpid() else None
        if kept is None:
            return None
        begin, size, frames = kept
        data = _core.FileBytes(size)
        data.read((system_number(self._descriptor), self._end), begin, size)
        return frames._replace(bytes=data)

    def close(self) -> None:
        """Close the file, which removes it."""
        if self._close is not None:
            self._close()
        self._close, self._process, self._end = None, 0, 0
        self._kept.clear()


class PagedFeatures(HTKFormat):
    """Features whose frames can wait in a page file between two uses; the corpus keeps the page file open."""

    def __init__(self, settings: FeatureSettings, opening: Opening, folder: str | None) -> None:
        super().__init__(settings, opening)
        self._folder = folder
        self.is_paged = False

    def open(self, path: str, index: Index | None) -> PageFile:
        return PageFile(self._folder)

    def parse(self, file: Any, index: Index, chunk_id: int, sequences: npt.NDArray[np.uint32] | None) -> Loaded:
        """Read the frames of a chunk, from the page file if they are there."""
        pages: PageFile = file
        # The page file keeps whole chunks; some of a chunk's sequences are read from the feature files.
        if not self.is_paged or sequences is not None:
            return super().parse(file, index, chunk_id, sequences)
        frames = pages.read(chunk_id)
        if frames is None:
            # Mapped blocks are not among the bytes that the page file keeps.
            frames = self.read_frames(index, chunk_id, memory_map=False)
            pages.write(chunk_id, frames)
        return self.loaded(index, chunk_id, frames)


# --------------------------------------------------------------------------------------------------------------
# The parameters, and the reader.

_Word = TypeVar("_Word", bound=str)


def _word(name: str, value: object, words: Sequence[_Word]) -> _Word:
    for word in words:
        if isinstance(value, str) and value.lower() == word.lower():
            return word
    raise ConfigError(f"{name} is {value!r}; expected {' or '.join(map(repr, words))}", key=name)


def _whole_number(name: str, value: object, least: int) -> int:
    if not is_whole(value) or not least <= value < 2**63:
        raise ConfigError(f"{name} is {value!r}; expected a whole number from {least}", key=name)
    return int(value)


def _randomize(value: object) -> int | Literal["auto", "none"]:
    if isinstance(value, bool):
        return "auto" if value else "none"
    words: tuple[Literal["auto", "none"], ...] = ("auto", "none")
    return _word("randomize", value, words) if isinstance(value, str) else _whole_number("randomize", value, 0)


class HTKMLFRecipe(Recipe):
    """The parameters that `HTKMLFReader` has and other sources do not, and the decisions that follow from them.

    Attributes:
        skipped: Number of skipped utterances, by kind.
    """

    def __init__(self, **given: Any) -> None:
        counts = given["nbruttsineachrecurrentiter"]
        self.read_method = _word("readMethod", given["readMethod"], READ_METHODS)
        self.randomize = _randomize(given["randomize"])
        self.only_full = _word("minibatchMode", given["minibatchMode"], ("partial", "full")) == "full"
        self.frame_mode = flag("frameMode", given["frameMode"])
        self.truncated = flag("truncated", given["truncated"])
        self.truncation_length = _whole_number("truncationLength", given["truncationLength"], 0)
        counts = counts if isinstance(counts, Sequence) else [counts]
        self.counts = tuple(_whole_number("nbruttsineachrecurrentiter", count, 1) for count in counts)
        longest = _whole_number("maxUtteranceLength", given["maxUtteranceLength"], 1)
        self.page_folder = None if given["pageFilePath"] is None else os.fspath(given["pageFilePath"])
        self.page_limit_in_bytes = _whole_number("page_limit_in_bytes", given["page_limit_in_bytes"], 0)
        self._given = {**given, "nbruttsineachrecurrentiter": self.counts, "pageFilePath": self.page_folder}
        self._check()
        # As in CNTK's reader, `maxUtteranceLength` concerns only utterances that are delivered whole.
        is_limited = not self.frame_mode and not self.truncated
        self.longest_utterance = min(longest, LONGEST_UTTERANCE) if is_limited else LONGEST_UTTERANCE
        self.skipped: Mapping[str, int] = {}
        self._paged: list[PagedFeatures] = []
        self._num_bytes = 0

    def _check(self) -> None:
        """Refuse parameters that exclude each other."""
        if self.truncated and self.frame_mode:
            what = "truncated and frameMode exclude each other; frameMode is true by default"
            raise ConfigError(what, key="truncated")
        if self.truncation_length and not self.truncated:
            what = f"truncationLength={self.truncation_length} needs truncated=True as well"
            raise ConfigError(what, key="truncationLength")
        key = "nbruttsineachrecurrentiter"
        if not self.counts:
            raise ConfigError(f"{key} is empty; expected a number", key=key)
        if self.frame_mode and max(self.counts) > 1:
            what = f"{key}={max(self.counts)} and frameMode exclude each other; frameMode is true by default"
            raise ConfigError(what, key=key)
        if self.read_method == "rollingWindow" and not self.frame_mode and self.window is not None:
            what = "readMethod='rollingWindow' shuffles frames, and frameMode is false; whole utterances are shuffled "
            raise ConfigError(f"{what}by readMethod='blockRandomize'", key="readMethod")
        folder = self.page_folder
        if folder is not None and self.read_method != "rollingWindow":
            what = f"pageFilePath={folder!r} needs readMethod='rollingWindow', but readMethod is {self.read_method!r}"
            raise ConfigError(what, key="pageFilePath")
        if folder is not None and not Path(folder).is_dir():
            what = f"pageFilePath is {folder!r}, which is not a folder; expected a folder that exists"
            raise ConfigError(what, key="pageFilePath")

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
        corpus = opened_corpus(features)
        self._paged.append(features)
        self._num_bytes += corpus.index.num_bytes
        return corpus

    def keeps_data_in_memory(self, options: SourceOptions) -> bool:
        """Return whether features stay in memory, because they are few; else they wait in a page file."""
        # The size is known only now, after all deserializers have been opened.
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
            "longest_utterance": self.longest_utterance,
        }

    def arguments(self, options: SourceOptions) -> dict[str, Any]:
        shared = "deserializers randomization_seed max_samples max_sweeps max_errors read_ahead_in_bytes trace_level"
        return {**self._given, **{name: getattr(options, name) for name in shared.split()}}

    def request(self, size: Size, partition: Partition, epoch_number: int) -> Request:
        """Count the size as the timeline does: in frames, utterances, or cells of all rows."""
        asked = counted = whole_size(size, "an HTKMLFReader takes a number of frames")
        # A size below 1 stays as it is, so that it is refused like any other.
        if not self.frame_mode and asked >= 1:
            counted = self._count(epoch_number)
            if self.truncated:
                counted *= self.truncation_length or asked
        return Request(asked, counted, partition)

    def check_truncation(self, options: SourceOptions, truncation_length: int | None) -> None:
        if truncation_length is not None:
            what = "an HTKMLFReader takes no truncation_length for an epoch; its truncationLength or the minibatch "
            raise ConfigError(f"{what}size gives the steps", key="truncation_length")

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


@suggests_keywords
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
            found = type(listed[0]).__name__
            what = f"the first deserializer is of the type {found}; expected an HTKFeatureDeserializer"
            raise ConfigError(what, key="deserializers")
        recipe = HTKMLFRecipe(
            readMethod=readMethod, randomize=randomize, minibatchMode=minibatchMode, frameMode=frameMode,
            truncated=truncated, truncationLength=truncationLength,
            nbruttsineachrecurrentiter=nbruttsineachrecurrentiter, maxUtteranceLength=maxUtteranceLength,
            pageFilePath=pageFilePath, page_limit_in_bytes=page_limit_in_bytes,
        )  # fmt: skip
        window = recipe.window
        super().__init__(
            listed, max_samples=max_samples, max_sweeps=max_sweeps, randomization_window_in_chunks=0,
            randomization_window_in_samples=0 if window is None else window.size,
            randomization_seed=randomization_seed, randomize=window is not None, frame_mode=recipe.frame_mode,
            # Without a length, the minibatch size gives the steps (`num_rows`); 1 only says that the source truncates.
            truncation_length=(recipe.truncation_length or 1) if recipe.truncated else 0,
            max_errors=max_errors, read_ahead_in_bytes=read_ahead_in_bytes, trace_level=trace_level,
            # A size in frames counts all partitions; parallel utterances are divided among the partitions.
            crosses_sweeps=False, local_timeline=not recipe.frame_mode, recipe=recipe,
        )  # fmt: skip
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

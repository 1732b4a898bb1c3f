"""Features and labels of HTK in the ways of CNTK's old reader. (docs/formats/htk.md, "The HTKMLFReader")

::

    blockRandomize   chunks are shuffled, and frames or utterances within a window         cntkio.timeline
    rollingWindow    places  0 1 2 3 4 5 6 7 ...      a frame strays from its place by at most half a window,
                     frames  2 0 3 1 6 4 7 5 ...      so only the chunks around the place are in memory;
                     page file  | chunk | chunk |     where the others wait, if all of them are too many

Its law: the order is a pure function of the lengths, the window and the seed. The page file, and what is kept in
memory, change time alone. A page file has no name, or loses it at once: it is gone with the source, however that ends.

What a chunk, a window and a check point are is the source's; this module says which frames come when, and where frames
wait until they come.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio._threads import ForkLock
from cntkio.errors import CheckpointError, ConfigError
from cntkio.formats.contract import Ahead, Corpus, Deserializer, Loaded
from cntkio.formats.htk import (
    Frames,
    HTKFeatureCorpus,
    HTKFeatureDeserializer,
    HTKFeatureStream,
)
from cntkio.htkmlf_reader.order import rolling_order
from cntkio.minibatch import Minibatch
from cntkio.source import MinibatchSource
from cntkio.source.arrangement import Skipping
from cntkio.streams import StreamInformation
from cntkio.timeline import INFINITELY_REPEAT, WHOLE_DATA, Partition, Plan, Reads, Timeline, Window

ReadMethod = Literal["blockRandomize", "rollingWindow", "none"]
READ_METHODS: tuple[ReadMethod, ...] = ("blockRandomize", "rollingWindow", "none")
LONGEST_UTTERANCE = 65535
"""Frames of the longest utterance that the reader takes."""
DEFAULT_MAX_UTTERANCE_LENGTH = 10_000
_MOST_ORDERS = 2
_WHOLE = Partition()


# --------------------------------------------------------------------------------------------------- page files


class _PageFile:
    """A temporary file without a name, in which chunks are kept as they were read."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._lock = ForkLock()
        self._process = 0
        self._file = -1
        self._close: Any = None
        self._end = 0
        self._kept: dict[int, tuple[int, int, Frames]] = {}

    def _open(self) -> None:
        """Take up a file of this process's own: a fork of it must not write where its parent does."""
        self.close()
        with tempfile.TemporaryFile(prefix="cntkio-pages-", dir=self._folder) as file:
            self._file = os.dup(file.fileno())
        self._close = weakref.finalize(self, os.close, self._file)
        self._process = os.getpid()

    def write(self, number: int, frames: Frames) -> None:
        """Keep the frames of a chunk.

        Raises:
            OSError: There is no room for them, or the file cannot be made.
        """
        data = frames.bytes.copy()
        try:
            with self._lock:
                if self._process != os.getpid():
                    self._open()
                file, begin = self._file, self._end
                self._end += len(data)
            _write_all(file, data, begin)
        except OSError as error:
            folder = self._folder or tempfile.gettempdir()
            raise OSError(error.errno, f"the page file cannot be written: {error.strerror}", folder) from error
        with self._lock:
            self._kept[number] = (begin, len(data), frames)

    def read(self, number: int) -> Frames | None:
        """The frames of a chunk, if this process has kept them."""
        with self._lock:
            kept = self._kept.get(number) if self._process == os.getpid() else None
        if kept is None:
            return None
        begin, size, frames = kept
        data = _core.FileBytes(size)
        data.read(self._file, begin, size)
        return frames._replace(bytes=data)

    def close(self) -> None:
        """Let go of the file."""
        if self._close is not None:
            self._close()
        self._close, self._process, self._end = None, 0, 0
        self._kept.clear()


class PagedFeatures(HTKFeatureCorpus):
    """Features whose frames can wait in a page file between two uses, so that feature files are read but once."""

    def __init__(self, stream: HTKFeatureStream, folder: str | None) -> None:
        super().__init__(stream.settings)
        self._pages = _PageFile(folder)
        self.is_paged = False

    def load(self, number: int) -> Loaded:
        """Read a chunk's frames, from the page file if they are there.

        Raises:
            OSError: The page file cannot be made or written; see `HTKFeatureCorpus.load` for the rest.
        """
        if not self.is_paged:
            return super().load(number)
        frames = self._pages.read(number)
        if frames is None:
            frames = self.read_frames(number, memory_map=False)
            self._pages.write(number, frames)
        return self.loaded(number, frames)

    def close(self) -> None:
        """Let go of the page file."""
        self._pages.close()
        super().close()


def _write_all(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(file, view, at)
        view, at = view[done:], at + done


# ---------------------------------------------------------------------------------------------------- timelines


class _RollingTimeline(Timeline):
    """Frames in an order in which none strays from its place by more than half a window."""

    def __init__(
        self,
        lengths: npt.NDArray[np.uint32],
        chunk_starts: npt.NDArray[np.int64],
        *,
        rolling_window: int,
        seed: int,
        **options: Any,
    ) -> None:
        super().__init__(lengths, chunk_starts, **{**options, "window": None})
        self._rolling_window, self._seed = rolling_window, seed
        self._starts = chunk_starts
        self._orders: dict[int, npt.NDArray[np.uint32]] = {}
        self._around: tuple[int, int, int] | None = None
        self._chunks_around = Plan([], 0)

    def _order(self, sweep: int) -> npt.NDArray[np.uint32]:
        if sweep not in self._orders:
            for other in sorted(self._orders)[: len(self._orders) - _MOST_ORDERS + 1]:
                del self._orders[other]
            self._orders[sweep] = rolling_order(self.num_samples, self._rolling_window, self._seed + sweep)
        return self._orders[sweep]

    def read_several(self, minibatch_size_in_samples: int, partition: Partition, most: int) -> Reads | None:
        """Deliver the frames at the next positions of the order, in a single read."""
        reads = super().read_several(minibatch_size_in_samples, partition, 1)
        if reads is None or not len(reads.selection.sequences):
            return reads
        # A read stays in one sweep, and it moves on.
        sweep = (reads.selection.position - 1) // self.num_samples
        frames = self._order(sweep)[reads.selection.sequences].astype(np.int64)
        selection = dataclasses.replace(reads.selection, sequences=frames, chunks=self._chunks_of(frames), refs=None)
        return reads._replace(selection=selection)

    def _chunks_of(self, frames: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.searchsorted(self._starts, frames, side="right") - 1

    def needed_chunks(self, partition: Partition = _WHOLE) -> Plan:
        """Return the chunks around the position of the reader, as far as a frame can stray."""
        around = self._chunk_bounds()
        if around != self._around:
            chunks = [] if around is None else list(range(around[1], around[2] + 1))
            self._around, self._chunks_around = around, Plan(chunks, self._chunks_around.version + 1)
        return self._chunks_around

    def _chunk_bounds(self) -> tuple[int, int, int] | None:
        """The sweep, and the first and the last chunk around the position; None after the end."""
        if self.position >= self.end:
            return None
        sweep, offset = divmod(self.position, self.num_samples)
        half = self._rolling_window // 2
        bounds = np.array([max(offset - half, 0), min(offset + half, self.num_samples - 1)])
        first, last = self._chunks_of(bounds).tolist()
        return sweep, first, last

    def chunks_ahead(self, partition: Partition = _WHOLE) -> Iterator[int]:
        """The chunks behind those that are needed, to the end of the next sweep or of the data."""
        needed = self.needed_chunks(partition).chunks
        if not needed:
            return
        sweep = self.position // self.num_samples
        yield from range(needed[-1] + 1, self.num_chunks)
        if (sweep + 1) * self.num_samples < self.end:
            yield from range(self.num_chunks)


# ------------------------------------------------------------------------------------------------------- source


_Word = TypeVar("_Word", bound=str)


@dataclasses.dataclass(frozen=True)
class _Options:
    """The reader's parameters, judged. Words may be written in capitals and small letters as one likes."""

    read_method: ReadMethod
    randomize: int | Literal["auto", "none"]
    only_full: bool
    frame_mode: bool
    truncated: bool
    truncation_length: int
    counts: tuple[int, ...]
    max_utterance_length: int
    page_folder: str | None

    @property
    def window(self) -> Window | None:
        """How far frames or utterances are shuffled; None: in order."""
        if self.randomize == "none" or self.read_method == "none":
            return None
        if self.randomize == "auto":
            return WHOLE_DATA
        # A rolling window of one frame has nothing to change places with.
        is_still = self.randomize == 0 or (self.randomize == 1 and self.read_method == "rollingWindow")
        return None if is_still else Window(self.randomize, "samples")

    @property
    def steps_by_size(self) -> bool:
        """Whether the minibatch size gives the steps of a truncated minibatch."""
        return self.truncated and not self.truncation_length

    @property
    def longest(self) -> int:
        """Frames of the longest utterance that is not skipped."""
        is_limited = not self.frame_mode and not self.truncated
        return min(self.max_utterance_length, LONGEST_UTTERANCE) if is_limited else LONGEST_UTTERANCE

    def count(self, epoch: int) -> int:
        """Utterances side by side in an epoch."""
        return self.counts[min(epoch, len(self.counts) - 1)]


def _word(name: str, given: object, words: Sequence[_Word]) -> _Word:
    for word in words:
        if isinstance(given, str) and given.lower() == word.lower():
            return word
    raise ConfigError(f"{name} is {given!r}; expected {' or '.join(map(repr, words))}", key=name)


def _number(name: str, given: object, least: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or not least <= given < 2**63:
        raise ConfigError(f"{name} is {given!r}; expected a whole number from {least}", key=name)
    return int(given)


def _truth(name: str, given: object) -> bool:
    if not isinstance(given, bool | np.bool_):
        raise ConfigError(f"{name} is {given!r}; expected True or False", key=name)
    return bool(given)


def _randomize(given: object) -> int | Literal["auto", "none"]:
    if isinstance(given, bool):
        return "auto" if given else "none"
    if isinstance(given, str):
        return "auto" if _word("randomize", given, ("auto", "none")) == "auto" else "none"
    return _number("randomize", given, 0)


class HTKMLFReader(MinibatchSource):
    """A source that delivers features and labels of HTK as CNTK's HTKMLFReader did. (docs/formats/htk.md)

    The parameters have the names of the reader's configuration. What is said of `MinibatchSource` holds here, too:
    check points, partitions, pickling and reading ahead; but no minibatch crosses the end of a sweep. An utterance that
    is not fit is skipped: one that a stream lacks or has in another length, and one that is too long. If that befalls
    more than half of them, it is an error.

    Args:
        deserializers: The streams, the first of which are features.
        readMethod: ``"blockRandomize"``: chunks in random order, and in them frames or utterances, as in other
            sources; ``"rollingWindow"``: frames that stray from their place by at most half of `randomize`;
            ``"none"``: in order.
        randomize: The window in frames; ``"auto"``: everything; ``"none"`` or 0: in order.
        minibatchMode: ``"partial"``: the last minibatch of a sweep or an epoch may be short; ``"full"``: in frame mode
            it is left out then, unless a whole sweep is shorter than a minibatch.
        frameMode: Deliver frames, not utterances.
        truncated: Cut utterances into minibatches of as many steps as the minibatch size says.
        truncationLength: Steps of a truncated minibatch, whatever its size; 0: the size.
        nbruttsineachrecurrentiter: How many utterances are side by side; or that by epochs, the last number repeating.
            Whole utterances come so many a minibatch, whatever its size. In frame mode it is 1.
        maxUtteranceLength: Longer utterances are skipped, where whole ones are delivered. Those of more than 65535
            frames always are.
        pageFilePath: The folder of the page file of ``readMethod="rollingWindow"``; None: the system's for temporary
            files.
        randomization_seed: Sweep number k is shuffled with ``randomization_seed + k``.
        max_samples: As for `MinibatchSource`.
        max_sweeps: As for `MinibatchSource`.
        max_errors: How many utterances may have labels that are invalid.
        page_limit_in_bytes: Features of no more bytes stay in memory, and there is no page file.
        read_ahead_in_bytes: As for `MinibatchSource`.

    Attributes:
        skipped: How many utterances were skipped, by kind.

    Raises:
        ConfigError: A parameter is not possible, or two exclude each other.
        CorpusError: More than half of the utterances would be skipped, or none is in all streams.
        FormatError: A list or a label file breaks its format.
        OSError: A file cannot be read.

    Example:
        >>> import tempfile
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
    ) -> None:
        arguments = {key: value for key, value in locals().items() if key not in ("self", "__class__")}
        given = list(deserializers) if isinstance(deserializers, Sequence) else [deserializers]
        if given and not isinstance(given[0], HTKFeatureDeserializer):
            raise ConfigError(
                f"the first deserializer is of {type(given[0]).__name__}; expected an HTKFeatureDeserializer",
                key="deserializers",
            )
        counts = nbruttsineachrecurrentiter
        self._options = options = _Options(
            read_method=_word("readMethod", readMethod, READ_METHODS),
            randomize=_randomize(randomize),
            only_full=_word("minibatchMode", minibatchMode, ("partial", "full")) == "full",
            frame_mode=_truth("frameMode", frameMode),
            truncated=_truth("truncated", truncated),
            truncation_length=_number("truncationLength", truncationLength, 0),
            counts=tuple(
                _number("nbruttsineachrecurrentiter", count, 1)
                for count in (counts if isinstance(counts, Sequence) else [counts])
            ),
            max_utterance_length=_number("maxUtteranceLength", maxUtteranceLength, 1),
            page_folder=None if pageFilePath is None else os.fspath(pageFilePath),
        )
        _refuse_contradictions(options)
        self._page_limit_in_bytes = _number("page_limit_in_bytes", page_limit_in_bytes, 0)
        self._randomization_seed = randomization_seed
        self._epoch_number = 0
        self._skipping = Skipping(options.longest)
        self._paged: list[PagedFeatures] = []
        window = options.window
        super().__init__(
            given,
            max_samples=max_samples,
            max_sweeps=max_sweeps,
            randomization_window_in_chunks=0,
            randomization_window_in_samples=0 if window is None else window.size,
            randomization_seed=randomization_seed,
            frame_mode=options.frame_mode,
            truncation_length=(options.truncation_length or 1) if options.truncated else 0,
            randomize=window is not None,
            max_errors=max_errors,
            read_ahead_in_bytes=read_ahead_in_bytes,
            crosses_sweeps=False,
            # Frames are counted over all partitions; utterances side by side are shared.
            local_timeline=not options.frame_mode,
        )
        self._arguments = arguments
        self._settings.update(
            truncation_length=options.truncation_length or ("minibatch size" if options.truncated else 0),
            read_method=options.read_method,
            only_full=options.only_full,
            nbruttsineachrecurrentiter=list(options.counts),
            longest_utterance=options.longest,
        )

    # ------------------------------------------------------------------------------------- what a source asks for

    def _opened(self, described: Deserializer, text_keys: bool, ahead: Ahead) -> Corpus:
        if self._options.read_method == "rollingWindow" and isinstance(described, HTKFeatureStream):
            features = PagedFeatures(described, self._options.page_folder)
            self._paged.append(features)
            return features
        return super()._opened(described, text_keys, ahead)

    def _make_timeline(self, **options: Any) -> Timeline:
        own = self._options
        options.update(
            only_full=own.only_full and own.frame_mode,
            num_rows=own.count(0) if own.steps_by_size else 0,
            counts_sequences=not own.frame_mode and not own.truncated,
        )
        if self._paged and sum(features.num_bytes for features in self._paged) <= self._page_limit_in_bytes:
            self._keep_data_in_memory = True
        else:
            for features in self._paged:
                features.is_paged = True
        if own.read_method == "rollingWindow" and own.window is not None:
            return _RollingTimeline(self._lengths, self._chunk_starts, rolling_window=own.window.size, **options)
        self._rows_timeline = Timeline(self._lengths, self._chunk_starts, **options)
        return self._rows_timeline

    @property
    def skipped(self) -> dict[str, int]:
        """How many utterances were skipped, by kind."""
        return dict(self._arrangement.skipped)

    # -------------------------------------------------------------------------------------------------- reading

    def next_minibatch(
        self,
        minibatch_size_in_samples: int,
        input_map: Mapping[Any, StreamInformation] | None = None,
        device: object = None,
        num_data_partitions: int | None = None,
        partition_index: int | None = None,
    ) -> dict[Any, Any]:
        """Return the next minibatch, or an empty mapping when the data have ended.

        The size counts the frames of all partitions. Where utterances are delivered, their number is that of
        `nbruttsineachrecurrentiter`, and the size is the steps of a truncated minibatch or else means nothing. See
        `MinibatchSource.next_minibatch` for the rest.
        """
        size = minibatch_size_in_samples
        if isinstance(size, int | np.integer) and size > 0 and not self._options.frame_mode:
            count = self._options.count(self._epoch_number)
            size = count * (self._options.truncation_length or int(size)) if self._options.truncated else count
        return super().next_minibatch(size, input_map, device, num_data_partitions, partition_index)

    def begin_epoch(
        self, begin: int, end: int, *, truncation_length: int | None = None, number: int | None = None
    ) -> None:
        """Deliver the frames from `begin` up to `end` of the endless timeline; see `MinibatchSource.begin_epoch`.

        Args:
            begin: Position of the epoch's first frame, counted over sweeps.
            end: Position behind its last frame.
            truncation_length: Not possible here.
            number: Which epoch it is, from 0, as `nbruttsineachrecurrentiter` counts them; None: that of before.
        """
        if truncation_length is not None:
            raise ConfigError(
                "truncation_length is the reader's own: truncationLength, or the minibatch size",
                key="truncation_length",
            )
        with self._pipeline.stopped():
            self._take_epoch(self._epoch_number if number is None else number)
            super().begin_epoch(begin, end)

    def _take_epoch(self, number: int) -> None:
        self._epoch_number = number
        if self._options.steps_by_size:
            self._rows_timeline.num_rows = self._options.count(number)

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
            number: Which epoch, from 0.
            minibatch_size_in_samples: As for `next_minibatch`.
            epoch_size: Frames of an epoch; 0: one sweep.
            num_data_partitions: As for `next_minibatch`.
            partition_index: As for `next_minibatch`.

        Yields:
            Minibatches. One without sequences is not the end: another partition has the next ones.
        """
        size = epoch_size or self.num_samples
        self.begin_epoch(number * size, (number + 1) * size, number=number)
        for minibatch in self.minibatches(minibatch_size_in_samples, num_data_partitions, partition_index):
            yield minibatch
            if self.has_ended:
                return

    # ---------------------------------------------------------------------------------------------- check points

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on just here; see `MinibatchSource.state_dict`."""
        return {**super().state_dict(), "epoch_number": self._epoch_number}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a `state_dict` was taken; see `MinibatchSource.load_state_dict`."""
        number = state.get("epoch_number")
        if type(number) is not int or number < 0:
            raise CheckpointError(f"the state has no 'epoch_number' of an HTKMLFReader; it is {number!r}", saved=number)
        with self._pipeline.stopped():
            before = self._epoch_number
            self._take_epoch(number)
            try:
                super().load_state_dict(state)
            except CheckpointError:
                self._take_epoch(before)
                raise

    def __setstate__(self, state: dict[str, Any]) -> None:
        HTKMLFReader.__init__(self, **state["arguments"])
        self.load_state_dict(state["state"])


def _refuse_contradictions(options: _Options) -> None:
    if options.truncated and options.frame_mode:
        raise ConfigError("truncated and frameMode exclude each other; frameMode is true by default", key="truncated")
    if options.truncation_length and not options.truncated:
        raise ConfigError(
            f"truncationLength={options.truncation_length} needs truncated=True beside it", key="truncationLength"
        )
    if options.frame_mode and max(options.counts, default=0) > 1:
        raise ConfigError(
            f"nbruttsineachrecurrentiter={max(options.counts)} and frameMode exclude each other; frameMode is true by "
            f"default",
            key="nbruttsineachrecurrentiter",
        )
    if not options.counts:
        raise ConfigError("nbruttsineachrecurrentiter is empty; expected a number", key="nbruttsineachrecurrentiter")
    if options.read_method == "rollingWindow" and not options.frame_mode:
        raise ConfigError(
            "readMethod='rollingWindow' shuffles frames, and frameMode is false; whole utterances are shuffled by "
            "readMethod='blockRandomize'",
            key="readMethod",
        )
    if options.page_folder is None:
        return
    if options.read_method != "rollingWindow":
        raise ConfigError(
            f"pageFilePath={options.page_folder!r} goes with readMethod='rollingWindow'; readMethod is "
            f"{options.read_method!r}",
            key="pageFilePath",
        )
    if not Path(options.page_folder).is_dir():
        raise ConfigError(
            f"pageFilePath is {options.page_folder!r}, which is no folder; expected one that is there",
            key="pageFilePath",
        )

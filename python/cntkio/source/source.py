"""`MinibatchSource`: minibatches from deserializers, read ahead of need. (docs/timeline.md)

::

    timeline ── Selection ──> chunks that it needs ── from memory, or loaded by worker threads ──> packer ──> Minibatch
       ^                                                                                                     |
       └──────────────── one minibatch is made while the caller works on the one before ─────────────────────┘

Its law: read-ahead, threads and what is kept in memory change time alone. What a read delivers and what a checkpoint
says are the timeline's; what bytes mean is the formats'. There is no thread before the first read.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import itertools
import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio._threads import ForkLock, num_threads
from cntkio.errors import (
    CheckpointError,
    CntkIoError,
    ConfigError,
    CorpusError,
    OutOfRangeError,
    UnsupportedError,
    did_you_mean,
    suggests_keywords,
)
from cntkio.formats.contract import Ahead, Corpus, Deserializer
from cntkio.formats.foreign import as_deserializer
from cntkio.local_timeline import LocalSelection, LocalTimeline, chunk_and_number
from cntkio.minibatch import Minibatch, MinibatchData, TruncatedMinibatchData
from cntkio.source.arrangement import BROKEN, INVALID, Arrangement, Located, Skipping, arrange
from cntkio.source.chunks import ChunkStore
from cntkio.streams import Record, StreamInformation
from cntkio.timeline import (
    DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS,
    FULL_DATA_SWEEP,
    INFINITELY_REPEAT,
    BalancedPartition,
    Partition,
    Places,
    Reads,
    Selection,
    Timeline,
    python_window,
)

logger = logging.getLogger("cntkio")

# Small minibatches are made several at a time, since handing one over to another thread takes longer than making it: at
# first one, and twice as many each time, as long as the same is asked for.
_HAND_OVER_BYTES = 16 << 20
_MOST_IN_HAND_OVER = 256
_LARGE_MINIBATCH = 16 << 20
# What is parsed in the pass that makes the index is parsed before it is known which partition asks for it.
_MOST_AT_ONCE = 1 << 30
_WHOLE = Partition()
_LARGEST_SIZE = 2**31 - 1  # CNTK cut larger ones to 32 bits
_STATE_VERSION = 1
_POSITION = "minibatchSourcePosition"


class TraceLevel(enum.IntEnum):
    """How much CNTK printed. Here the logger ``cntkio`` decides, and this changes nothing."""

    Error = 0
    Warning = 1
    Info = 2


class _Fetched(NamedTuple):
    """A minibatch that was made, and where the timeline stands behind it."""

    minibatch: Minibatch | None
    mark: Any
    num_invalid: int
    error: BaseException | None = None

    @property
    def is_last(self) -> bool:
        """Whether what comes behind must be asked for: behind the end, and behind an error."""
        return self.minibatch is None


class _Selected(NamedTuple):
    """Minibatches that are to be packed, and where the timeline stood before them."""

    made: list[_Fetched]
    orders: list[_Order]
    mark: Any
    num_invalid: int


class _Request(NamedTuple):
    size: int
    partition: Partition


class _Order(NamedTuple):
    """Streams of minibatches that are to be packed: those of one corpus."""

    minibatches: list[Minibatch]
    ends_of_sweep: list[bool]
    place: int  # of the first among those that are made together
    streams: list[StreamInformation]
    sequences: _core.PackRequest


def _check_words(**options: Any) -> None:
    """Refuse what is no number without a sign of 64 bits."""
    for name, value in options.items():
        if not isinstance(value, int | np.integer):
            raise TypeError(f"{name} is {value!r}; expected a whole number")
        if not 0 <= value <= INFINITELY_REPEAT:
            raise OutOfRangeError(f"{name} is {value}; expected 0 to {INFINITELY_REPEAT} (2^64 - 1)", key=name)


@suggests_keywords
class MinibatchSource:
    """Minibatches from one or several deserializers, in CNTK 2.7's order.

    It may be used from several threads, pickled, and forked: a fork goes on where its parent stood, by itself.

    Args:
        deserializers: One, or several whose sequences are joined by key; the first gives the order.
        max_samples: The data end before the first sequence that starts here or later.
        max_sweeps: The data end after so many passes.
        randomization_window_in_chunks: How far sequences are shuffled, in chunks; 0: off.
        randomization_window_in_samples: The same in samples; both 0: no randomization.
        randomization_seed: Sweep number k is shuffled with ``randomization_seed + k``.
        trace_level: Changes nothing; the logger ``cntkio`` decides what is seen.
        multithreaded_deserializer: Changes nothing.
        frame_mode: Refuse sequences of more than one sample.
        truncation_length: Steps of a truncated minibatch; 0: whole sequences.
        randomize: False: both windows are taken as 0.
        max_errors: How many sequences a deserializer may mark as invalid; not the errors in a text.
        strict: Take a sequence that a join leaves out as an error.
        keep_data_in_memory: Keep every chunk that was read for later sweeps.
        read_ahead_in_bytes: How much parsed data may be loaded beyond what the window needs, roughly. It begins with a
            little and goes on to more where data come late.
        right_splice: How many samples a full row of a truncated minibatch and the next part of its sequence share.
        crosses_sweeps: Whether a minibatch goes on into the next sweep. Those of configured readers do not.
        local_timeline: Whether a partition's minibatches are filled with its own share of the size. In classic
            readers samples of all partitions count, also those that are only passed.

    Attributes:
        left_out: For each deserializer how many of its sequences the join left out.

    Raises:
        ConfigError: An option is not possible, or two exclude each other. For a number below 0 or above ``2**64 - 1``
            it is an `OverflowError` as well.
        TypeError: A number is not whole, or there is no such keyword.
        CorpusError: The deserializers have no sequence in common.
        FormatError: A file breaks its format where the index is made.
        OSError: A file cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> from cntkio import CTFDeserializer, StreamDef, StreamDefs
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.ctf")
        >>> _ = path.write_text("|x 1 2\\n|x 3 4\\n|x 5 6\\n")
        >>> corpus = CTFDeserializer(path, StreamDefs(x=StreamDef(field="x", shape=2)))
        >>> source = MinibatchSource(corpus, randomize=False, max_sweeps=1)
        >>> [minibatch["x"].values.tolist() for minibatch in source.minibatches(2)]
        [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]]]
    """

    infinitely_repeat = INFINITELY_REPEAT
    full_data_sweep = FULL_DATA_SWEEP
    default_randomization_window_in_chunks = DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS
    _skipping: Skipping | None = None

    def __init__(
        self,
        deserializers: Deserializer | Sequence[Deserializer],
        max_samples: int = INFINITELY_REPEAT,
        max_sweeps: int = INFINITELY_REPEAT,
        randomization_window_in_chunks: int = DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS,
        randomization_window_in_samples: int = 0,
        randomization_seed: int = 0,
        trace_level: TraceLevel | int = TraceLevel.Warning,
        multithreaded_deserializer: bool | None = None,
        frame_mode: bool = False,
        truncation_length: int = 0,
        randomize: bool = True,
        max_errors: int = 0,
        *,
        strict: bool = False,
        keep_data_in_memory: bool = False,
        read_ahead_in_bytes: int = 256 << 20,
        right_splice: int = 0,
        crosses_sweeps: bool = True,
        local_timeline: bool = True,
    ) -> None:
        given: list[Any] = list(deserializers) if isinstance(deserializers, list | tuple) else [deserializers]
        self._arguments = {key: value for key, value in locals().items() if key not in ("self", "given", "__class__")}
        if not given:
            raise ConfigError(
                "could not find deserializers: the list is empty; expected one, or a list of at least one",
                key="deserializers",
            )
        described = [as_deserializer(one) for one in given]
        _check_words(
            max_samples=max_samples,
            max_sweeps=max_sweeps,
            randomization_window_in_chunks=randomization_window_in_chunks,
            randomization_window_in_samples=randomization_window_in_samples,
            randomization_seed=randomization_seed,
            truncation_length=truncation_length,
            max_errors=max_errors,
        )
        if frame_mode and truncation_length:
            raise ConfigError(
                f"frame_mode and truncation_length={truncation_length} exclude each other", key="truncation_length"
            )
        window = python_window(randomization_window_in_chunks, randomization_window_in_samples, randomize=randomize)
        self._window = window
        self._is_randomized = window is not None
        self._frame_mode = frame_mode
        self._max_errors = max_errors
        # Invalid utterances up to what was fetched last, and up to what was delivered last.
        self._num_invalid = 0
        self._num_invalid_told = 0
        self._last_invalid = 0
        self._keep_data_in_memory = keep_data_in_memory
        self._read_ahead_in_bytes = read_ahead_in_bytes
        self._is_infinite = max_samples == INFINITELY_REPEAT and max_sweeps == INFINITELY_REPEAT
        self._corpora: list[Corpus] = []
        try:
            self._open(described)
            self._set_streams(truncation_length > 0)
            self._arrangement = self._arranged(frame_mode, strict)
            self.left_out = list(self._arrangement.left_out)
            self._keys: npt.NDArray[Any] = self._arrangement.table.keys
            self._lengths: npt.NDArray[np.uint32] = self._arrangement.lengths
            self._chunk_starts: npt.NDArray[np.int64] = self._arrangement.chunk_starts
            options: dict[str, Any] = {
                "window": window,
                "seed": randomization_seed,
                "max_samples": max_samples,
                "max_sweeps": max_sweeps,
                "truncation_length": truncation_length,
            }
            self._timeline: Timeline | LocalTimeline
            if self._corpora[0].joins == "alone":
                if right_splice or not crosses_sweeps or not local_timeline:
                    raise ConfigError(
                        "user-defined deserializers take neither right_splice nor crosses_sweeps=False nor "
                        "local_timeline=False",
                        key="right_splice"
                        if right_splice
                        else "local_timeline"
                        if crosses_sweeps
                        else "crosses_sweeps",
                    )
                self._timeline = LocalTimeline(
                    self._corpora[0].table.num_chunks,
                    lambda chunk_id: self._chunks.lengths_in_chunk(chunk_id),
                    **options,
                )
            else:
                self._timeline = self._make_timeline(
                    **options, right_splice=right_splice, crosses_sweeps=crosses_sweeps, local_timeline=local_timeline
                )
        except BaseException:
            self._close_corpora()
            raise
        self._settings: dict[str, Any] = {
            "randomization_window": None if window is None else [window.size, window.unit],
            "randomization_seed": randomization_seed if window else 0,
            "truncation_length": truncation_length,
            "frame_mode": frame_mode,
            "right_splice": right_splice,
            "crosses_sweeps": crosses_sweeps,
            "local_timeline": local_timeline,
        }
        if isinstance(self._timeline, LocalTimeline):
            self._settings["timeline"] = "local"
        self._epoch: list[int] | None = None
        self._fingerprints: list[str] | None = None
        self._is_literal = any(
            corpus.utterances is not None and corpus.utterances.is_literal for corpus in self._corpora
        )
        self._chunks = ChunkStore(
            self._corpora,
            self._arrangement,
            window_stays_in_use=self._is_randomized,
            keeps_all=self._keep_data_in_memory,
            loads_window=self._is_literal,
            read_ahead_in_bytes=read_ahead_in_bytes,
        )
        self._lock = ForkLock()
        self._mark: Any = self._timeline.mark()
        self._begin()

    @classmethod
    def from_config(
        cls, path: str | os.PathLike[str], *overrides: str, section: str | Sequence[str] | None = None
    ) -> MinibatchSource:
        """Open the reader of a CNTK configuration file. (docs/configuration.md)

        Args:
            path: The file.
            overrides: Further arguments as the program ``cntk`` takes them: ``"key=value"``.
            section: The reader's section, such as ``"train/reader"``, or the section of an action; None: the first
                action of ``command``.

        Raises:
            ConfigError: The file cannot be read as a configuration, or asks for what there is not.
            OSError: A file cannot be read.
        """
        # The configuration language stands above this module, which does not know it.
        config = importlib.import_module("cntkio.config").read_config(path, *overrides, section=section)
        source = config.open()
        assert isinstance(source, cls)
        return source

    def _make_timeline(self, **options: Any) -> Timeline:
        """The timeline over what was arranged; a source that reads in another way makes another one."""
        return Timeline(self._lengths, self._chunk_starts, **options)

    def _begin(self) -> None:
        """Set up what belongs to this process: nothing of it is alive in a fork of it."""
        self._process = os.getpid()
        self._selector: ThreadPoolExecutor | None = None
        self._packer: ThreadPoolExecutor | None = None
        self._request: _Request | None = None
        self._ready: deque[_Fetched] = deque()
        self._ahead: Future[list[_Fetched]] | None = None
        self._selected: Future[_Selected] | None = None
        self._num_at_once = 1
        self._num_threads = num_threads()
        self._ones = np.ones(0, np.uint32)

    def _set_streams(self, is_truncated: bool) -> None:
        streams: list[StreamInformation] = []
        for corpus in self._corpora:
            for info in corpus.streams:
                if any(info.name == other.name for other in streams):
                    raise ConfigError(f"two streams have the name {info.name!r}; rename one of them", key=info.name)
                form = "dense" if is_truncated else info.storage_format
                streams.append(
                    StreamInformation(info.name, len(streams), form, info.dtype, info.shape, info.defines_mb_size)
                )
        self._streams = streams
        of_source = iter(streams)
        # For each corpus its streams, and what the packer has to know of them.
        self._layouts = [
            (
                [next(of_source) for _ in corpus.streams],
                [
                    (number, info.is_sparse or info.dtype == np.int32, info.dtype == np.float64)
                    for number, info in enumerate(corpus.streams)
                ],
            )
            for corpus in self._corpora
        ]

    def _open(self, deserializers: Sequence[Deserializer]) -> None:
        """Open the corpora; if the keys of one are words, those of all are."""
        described = [part for deserializer in deserializers for part in deserializer.parts()]
        text_keys = any(part.has_text_keys for part in described)
        ahead = self._needed_at_once() if len(described) == 1 else Ahead(0)
        for part in described:
            self._corpora.append(self._opened(part, text_keys, ahead))

    def _opened(self, described: Deserializer, text_keys: bool, ahead: Ahead) -> Corpus:
        return described.open(text_keys=text_keys, ahead=ahead)

    def _needed_at_once(self) -> Ahead:
        """What is read at first: in order the first chunks, else all, if the window holds all from the start."""
        if self._window is None:
            return Ahead(self._read_ahead_in_bytes)
        is_in_chunks = self._window.unit == "chunks" and self._read_ahead_in_bytes > 0
        return Ahead(_MOST_AT_ONCE, self._window.size // 2) if is_in_chunks else Ahead(0)

    def _arranged(self, frame_mode: bool, strict: bool) -> Arrangement:
        defining = [
            number
            for number, corpus in enumerate(self._corpora)
            if any(info.defines_mb_size for info in corpus.streams)
        ]
        if len(defining) > 1:
            names = [info.name for info in self._streams if info.defines_mb_size]
            raise ConfigError(
                f"only a single stream may define the minibatch size, but {', '.join(map(repr, names))} do",
                key="defines_mb_size",
            )
        for corpus in self._corpora[1:]:
            if corpus.joins == "first":
                raise ConfigError(
                    f"{corpus.name}: a binary corpus has no keys of its own, so it must be the first deserializer",
                    key="deserializers",
                )
        for corpus in self._corpora:
            if corpus.joins == "alone" and len(self._corpora) > 1:
                raise ConfigError(
                    f"{corpus.name} has a timeline of its own and cannot be joined with other deserializers; with "
                    f"timeline='global' it can",
                    key="timeline",
                )
        return arrange(
            self._corpora,
            defining=defining[0] if defining else None,
            frame_mode=frame_mode,
            strict=strict,
            skipping=self._skipping,
        )

    # ------------------------------------------------------------------------------------------------ streams

    def stream_infos(self) -> list[StreamInformation]:
        """The streams."""
        return list(self._streams)

    @property
    def streams(self) -> Record:
        """The streams by name, as attributes and as items."""
        return Record({info.name: info for info in self._streams})

    def stream_info(self, name: str) -> StreamInformation:
        """The stream of that name.

        Raises:
            ConfigError: There is none.
        """
        for info in self._streams:
            if info.name == name:
                return info
        names = [info.name for info in self._streams]
        raise ConfigError(
            f"no stream has the name {name!r}; there are: {', '.join(map(repr, names))}{did_you_mean(name, names)}",
            key=name,
        )

    def __getitem__(self, name: str) -> StreamInformation:
        """The stream of that name."""
        return self.stream_info(name)

    def is_infinite(self) -> bool:
        """Whether there is no limit."""
        return self._is_infinite

    @property
    def has_text_keys(self) -> bool:
        """Whether sequences have texts as keys, and not numbers."""
        return isinstance(self._timeline, LocalTimeline) or self._keys.dtype.kind not in "ui"

    @property
    def is_randomized(self) -> bool:
        """Whether sweeps are shuffled."""
        return self._is_randomized

    @property
    def span(self) -> tuple[int, int] | None:
        """Positions at which the data, or the epoch, begin and end; None: no end, or a timeline without positions."""
        if self._is_infinite or isinstance(self._timeline, LocalTimeline):
            return None
        return (0 if self._epoch is None else self._epoch[0]), self._timeline.end

    @property
    def num_samples(self) -> int:
        """Samples in a sweep."""
        return self._timeline.num_samples

    @property
    def num_sequences(self) -> int:
        """Sequences in a sweep."""
        return self._timeline.num_sequences

    @property
    def num_chunks(self) -> int:
        """Chunks in a sweep."""
        return self._timeline.num_chunks

    @property
    def error_counts(self) -> dict[str, int]:
        """Errors that were forgiven so far, by kind, over all deserializers."""
        counts = sum((Counter(corpus.report.errors) for corpus in self._corpora), Counter())
        counts["invalid utterance"] += self._num_invalid_told
        return dict(+counts)

    @property
    def warning_counts(self) -> dict[str, int]:
        """What was only warned of so far, by kind, over all deserializers."""
        return dict(sum((Counter(corpus.report.warnings) for corpus in self._corpora), Counter()))

    # ------------------------------------------------------------------------------------------------ reading

    def next_minibatch(
        self,
        minibatch_size_in_samples: int,
        input_map: Mapping[Any, StreamInformation] | None = None,
        device: object = None,
        num_data_partitions: int | None = None,
        partition_index: int | None = None,
    ) -> dict[Any, Any]:
        """Return the next minibatch, or an empty mapping when the data have ended.

        Whole sequences are taken while their lengths sum to at most this partition's share; a sequence that is longer
        than the share comes alone (docs/timeline.md, "Size").

        Args:
            minibatch_size_in_samples: Samples of all partitions together, at least 1.
            input_map: Keys for the result, anything that can be hashed, each with the stream that it shall show; None
                or empty: the streams themselves.
            device: Not used.
            num_data_partitions: How many readers share the data; None: 1.
            partition_index: Which of them this is; None: 0.

        Returns:
            A `Minibatch`, by stream and by name; with `input_map` a dict with its keys. In truncated mode the data
            are `TruncatedMinibatchData`, else `MinibatchData`.

        Raises:
            ConfigError: An argument is not possible. For a size that is negative or not whole it is a
                `NotImplementedError` as well.
            FormatError: A chunk read for this minibatch breaks its format.
            CorpusError: A sequence does not fit frame mode or truncation, or a file has changed.
        """
        partition = _WHOLE
        if partition_index is not None or num_data_partitions is not None:
            partition = Partition(
                0 if partition_index is None else int(partition_index),
                1 if num_data_partitions is None else int(num_data_partitions),
            )
        minibatch = self.read(minibatch_size_in_samples, partition)
        if minibatch is None:
            return {}
        if input_map:
            return {key: minibatch[stream] for key, stream in input_map.items()}
        return minibatch

    def read(self, minibatch_size_in_samples: int, partition: Partition = _WHOLE) -> Minibatch | None:
        """Return the next minibatch of a `Partition` or a `BalancedPartition`, or None when the data have ended.

        Errors are those of `next_minibatch`.

        Args:
            minibatch_size_in_samples: Samples of all partitions together, at least 1.
            partition: The share to deliver. It may change between reads.
        """
        request = self._request
        if request is not None and request.partition is partition and request.size == minibatch_size_in_samples:
            return self._next(request)  # as in the read before, and so it was checked
        is_whole = type(minibatch_size_in_samples) is int or isinstance(minibatch_size_in_samples, int | np.integer)
        if not is_whole or minibatch_size_in_samples < 0:
            raise UnsupportedError(
                f"minibatch_size_in_samples is {minibatch_size_in_samples!r}; expected a whole number, at least 1",
                key="minibatch_size_in_samples",
            )
        if minibatch_size_in_samples > _LARGEST_SIZE:
            raise ConfigError(
                f"minibatch_size_in_samples is {minibatch_size_in_samples}; expected at most {_LARGEST_SIZE}",
                key="minibatch_size_in_samples",
            )
        return self._next(_Request(int(minibatch_size_in_samples), partition))

    def minibatches(
        self, minibatch_size_in_samples: int, num_data_partitions: int | None = None, partition_index: int | None = None
    ) -> Iterator[Minibatch]:
        """Iterate over minibatches until the data end. Arguments as for `next_minibatch`."""
        while True:
            minibatch = self.next_minibatch(minibatch_size_in_samples, None, None, num_data_partitions, partition_index)
            if not minibatch:
                return
            assert isinstance(minibatch, Minibatch)
            yield minibatch

    def _next(self, request: _Request) -> Minibatch | None:
        with self._lock:
            if self._process != os.getpid():
                self._forget_parent()
            if self._request != request:
                self._drop_ahead()
                self._request = request
                self._num_at_once = 1
            if not self._ready:
                if self._ahead is None:
                    self._fetch_ahead(request)
                assert self._ahead is not None
                # Kept until it has a result, so that an interrupted wait loses nothing.
                future = self._ahead
                self._wait(future)
                self._ahead = None
                self._ready.extend(future.result())
                if self._ready and not self._ready[-1].is_last:
                    self._fetch_ahead(request)
            fetched = self._ready.popleft()
            self._num_invalid_told = fetched.num_invalid
            if fetched.error is not None:
                raise fetched.error
            self._mark = fetched.mark
            return fetched.minibatch

    def _fetch_ahead(self, request: _Request) -> None:
        """Have the next minibatches made: chosen by one thread, packed by another, which meanwhile has more chosen."""
        if self._selector is None or self._packer is None:
            self._selector, self._packer = ThreadPoolExecutor(1, "cntkio-fetch"), ThreadPoolExecutor(1, "cntkio-pack")
        if self._selected is None:
            self._selected = self._selector.submit(self._select_several, request)
        self._ahead = self._packer.submit(self._pack_several, self._selected, self._selector, request)

    @staticmethod
    def _wait(future: Future[Any]) -> None:
        future.exception()

    def _drop_ahead(self) -> None:
        """Throw away what was fetched ahead, and go back to where the last delivered minibatch ended."""
        if self._process != os.getpid():
            self._forget_parent()
        if self._ahead is not None:
            if not self._ahead.cancel():
                self._wait(self._ahead)
            self._ahead = None
            self._drop_selected()
            self._rewind(self._mark)
        elif self._ready:
            self._rewind(self._mark)
        self._ready.clear()
        self._num_invalid = self._num_invalid_told  # what was thrown away is met again

    def _drop_selected(self) -> None:
        selected, self._selected = self._selected, None
        if selected is not None and not selected.cancel():
            self._wait(selected)

    def _forget_parent(self) -> None:
        self._chunks.begin_in_child()
        self._num_invalid = self._num_invalid_told
        self._begin()
        self._timeline.rewind_in_fork(self._mark)

    def _select_several(self, request: _Request) -> _Selected:
        """Choose what the next minibatches hold: as many as are worth a hand-over. Runs in the selector's thread."""
        made: list[_Fetched] = []
        orders: list[_Order] = []
        # What is ready, and what is being made, may be thrown away: this is where the timeline would go back to.
        self._timeline.hold(self._mark)
        before, num_invalid = self._timeline.mark(), self._num_invalid
        while not made or (len(made) < self._num_at_once and not made[-1].is_last):
            try:
                self._fetch(request, orders, made)
            except BaseException as error:  # it surfaces in the read that it belongs to
                made.append(_Fetched(None, None, self._num_invalid, error))
        return _Selected(made, orders, before, num_invalid)

    def _pack_several(
        self, selected: Future[_Selected], selector: ThreadPoolExecutor, request: _Request
    ) -> list[_Fetched]:
        """Pack what was chosen, while what comes next is. Runs in the packer's thread."""
        self._selected = None
        made, orders, before, num_invalid = selected.result()
        if not made[-1].is_last:
            self._selected = selector.submit(self._select_several, request)
        try:
            all_packed = _core.pack([order.sequences for order in orders], self._num_threads)
        except BaseException as error:
            self._go_back(before, num_invalid)
            return [_Fetched(None, None, num_invalid, error)]
        packed = iter(all_packed)
        for order in orders:
            for place, (minibatch, end_of_sweep) in enumerate(zip(order.minibatches, order.ends_of_sweep, strict=True)):
                try:
                    self._deliver(order.streams, minibatch, end_of_sweep, next(packed))
                except CorpusError as error:
                    last = made[order.place + place]
                    self._go_back(last.mark, last.num_invalid)
                    return [*made[: order.place + place], _Fetched(None, None, self._num_invalid, error)]
        if all_packed:
            size = max(sum(one.num_bytes for one in all_packed) // len(made), 1)
            several = min(max(_HAND_OVER_BYTES // size, 2), _MOST_IN_HAND_OVER, 2 * self._num_at_once)
            self._num_at_once = 1 if size > _LARGE_MINIBATCH else several
        return made

    def _go_back(self, mark: Any, num_invalid: int) -> None:
        """Throw away what was chosen behind a place."""
        self._drop_selected()
        self._rewind(mark)
        self._num_invalid = num_invalid

    def _deliver(
        self, streams: list[StreamInformation], minibatch: Minibatch, end_of_sweep: bool, packed: _core.Packed
    ) -> None:
        """Put what was packed into its minibatch.

        Raises:
            CorpusError: A sequence does not fit frame mode.
        """
        for number, info in enumerate(streams):
            data = minibatch[info] = MinibatchData.of(info, packed, number, end_of_sweep)
            if self._frame_mode and packed.longest(number) > 1:
                key = minibatch.keys_of_sequences[int(data.lengths.argmax())]
                raise CorpusError(
                    f"sequence {key}, stream {info.name!r}: {packed.longest(number)} samples; frame mode takes one at "
                    f"most (frame_mode=False reads sequences)"
                )

    def _fetch(self, request: _Request, orders: list[_Order], made: list[_Fetched]) -> None:
        """Make the next minibatches, but for what their `orders` bring. Runs in the selector's thread."""
        before, num_invalid = self._timeline.mark(), self._num_invalid
        try:
            self._fetch_from_here(request, orders, made)
        except CntkIoError:
            # Data that are wrong stay so: as in CNTK, the next read goes on behind the minibatch that needs them.
            raise
        except BaseException:
            # What failed for another reason may succeed: the next read asks for it again.
            self._rewind(made[-1].mark if made else before)
            self._num_invalid = num_invalid
            raise

    def _rewind(self, mark: Any) -> None:
        self._timeline.rewind(mark)

    def _fetch_from_here(self, request: _Request, orders: list[_Order], made: list[_Fetched]) -> None:
        is_judged = self._arrangement.flags is not None or self._is_literal
        most = 1 if is_judged else self._num_at_once - len(made)
        while True:
            reads = self._timeline.read_several(request.size, request.partition, most)
            if reads is None:
                self._tell_totals()
                made.append(_Fetched(None, self._timeline.mark(), self._num_invalid))
                return
            self._look_ahead(request.partition, reads.selection)
            located = self._arrangement.locate(reads.selection.sequences)
            if self._arrangement.flags is None:
                break
            is_balanced = isinstance(request.partition, BalancedPartition)
            sound = self._without_invalid(reads.selection, located, is_balanced)
            if sound is not None:
                reads, located = Reads.of(sound[0], reads.marks[-1]), sound[1]
                break
        self._make(reads, located, orders, made)
        if reads.selection.end_of_sweep:
            self._tell_totals()

    def _tell_totals(self) -> None:
        for corpus in self._corpora:
            corpus.report.log_totals()

    def _without_invalid(
        self, selection: Selection, located: Located, is_balanced: bool
    ) -> tuple[Selection, Located] | None:
        """Take invalid utterances out, and count them; None if nothing is left, but where partitions are balanced.

        Raises:
            FormatError: A broken utterance.
            CorpusError: One invalid utterance too many.
        """
        assert self._arrangement.flags is not None
        flags = self._arrangement.flags[located.sequences]
        if (flags == BROKEN).any():
            raise self._complaint(int(located.sequences[flags == BROKEN][0]), BROKEN)
        is_sound = flags != INVALID
        parts = selection.parts
        counted = ~is_sound if parts is None else ~is_sound & (parts.first_sample == 0)
        if counted.any():
            self._num_invalid += int(counted.sum())
            self._last_invalid = int(located.sequences[~is_sound][-1])
        if self._num_invalid > self._max_errors and (is_sound.any() or not self._is_literal):
            raise CorpusError(
                f"{self._num_invalid} invalid {'frames' if located.frames is not None else 'utterances'} so far, and "
                f"max_errors is {self._max_errors}; the last was {self._complaint(self._last_invalid, INVALID)}"
            )
        if is_sound.all():
            return selection, located
        if parts is not None:
            names = ("slot", "first_sample", "num_samples", "step", "goes_on")
            parts = dataclasses.replace(parts, **{name: getattr(parts, name)[is_sound] for name in names})
        elif not is_sound.any() and not self._is_literal and not is_balanced:
            return None
        frames = None if located.frames is None else located.frames[is_sound]
        kept = dataclasses.replace(
            selection,
            sequences=selection.sequences[is_sound],
            chunks=selection.chunks[is_sound],
            parts=parts,
            places=None,
        )
        return kept, Located(located.sequences[is_sound], frames)

    def _complaint(self, sequence: int, flag: int) -> Exception:
        """What the first corpus says that calls a sequence invalid or broken."""
        for number, corpus in enumerate(self._corpora):
            traits = corpus.utterances
            if traits is not None:
                own = int(self._arrangement.partner(number, np.array([sequence]))[0])
                mask = traits.invalid if flag == INVALID else traits.broken
                if mask is not None and mask[own]:
                    return traits.complaint(own)
        raise AssertionError("no corpus calls it so")

    def _look_ahead(self, partition: Partition, selection: Selection) -> None:
        """Let go of chunks that are not needed any more, and have those loaded that will be."""
        needed = self._timeline.needed_chunks(partition)
        if needed is not self._chunks.planned:
            used = selection.chunks.tolist() if selection.places is None else selection.places.chunks
            self._chunks.plan(needed, used, self._timeline.chunks_ahead(partition))

    def _make(self, reads: Reads, located: Located, orders: list[_Order], made: list[_Fetched]) -> None:
        """Make minibatches, and order what is to be packed for them: nothing in truncated mode."""
        selection, bounds = reads.selection, reads.bounds
        found = [self._places_of(number, selection, located) for number in range(len(self._corpora))]
        handles, num_sound, error = self._chunks.take(found, bounds)
        minibatches = [
            Minibatch({}, self._keys_of(selection, located, first, last))
            for first, last in itertools.pairwise(bounds[: num_sound + 1])
        ]
        for number, (infos, layout) in enumerate(self._layouts if minibatches else ()):
            places, of_corpus = found[number], handles[number]
            if selection.parts is None:
                samples = self._samples_of(number, located)
                request = (of_corpus, places.places, places.numbers, layout, samples, bounds[: num_sound + 1])
                orders.append(_Order(minibatches, reads.ends_of_sweep[:num_sound], len(made), infos, request))
            else:
                corpus, keys = self._corpora[number], minibatches[0].keys_of_sequences
                minibatches[0].update(self._spread(infos, corpus, of_corpus, places, selection, keys))
        made += [
            _Fetched(minibatch, mark, self._num_invalid)
            for minibatch, mark in zip(minibatches, reads.marks, strict=False)
        ]
        if error is not None:
            if num_sound + 1 < len(reads.marks):
                self._rewind(reads.marks[num_sound])  # behind the minibatch that it belongs to
            raise error

    def _places_of(self, number: int, selection: Selection, located: Located) -> Places:
        """Where the sequences are in one of the corpora."""
        if located.places is not None:
            return located.places[number]
        if self._arrangement.partners is None and located.frames is None and selection.places is not None:
            return selection.places
        partners = self._arrangement.partners
        chunk_starts = self._corpora[number].table.chunk_starts
        if isinstance(selection, LocalSelection):  # its chunks say what is in them when they come
            which, first, places = np.unique(selection.chunks, return_index=True, return_inverse=True)
            order = np.argsort(first)
            local = (located.sequences - chunk_starts[selection.chunks]).astype(np.uint32)
            return Places(
                which[order].tolist(), first[order].tolist(), np.argsort(order)[places].astype(np.uint32), local
            )
        return Places(
            *_core.find_chunks(located.sequences, None if partners is None else partners[number], chunk_starts)
        )

    def _samples_of(
        self, number: int, located: Located
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]] | None:
        """Which samples of each sequence are wanted: the first of them and how many; None for all."""
        if located.frames is not None:
            if len(self._ones) < len(located.frames):
                self._ones = np.ones(len(located.frames), np.uint32)
            return located.frames, self._ones[: len(located.frames)]
        if not self._arrangement.repeats[number]:
            return None
        lengths = self._corpora[0].table.lengths[self._arrangement.partner(0, located.sequences)]
        return np.zeros(len(lengths), np.uint32), lengths

    def _keys_of(self, selection: Selection, located: Located, first: int, last: int) -> Callable[[], npt.NDArray[Any]]:
        if isinstance(selection, LocalSelection):
            return lambda: chunk_and_number(selection)
        return lambda: self._keys[located.sequences[first:last]]

    def _lengths_of(self, selection: Selection) -> npt.NDArray[np.uint32]:
        return selection.lengths if isinstance(selection, LocalSelection) else self._lengths[selection.sequences]

    def _spread(
        self,
        infos: list[StreamInformation],
        corpus: Corpus,
        handles: list[_core.Chunk],
        places: Places,
        selection: Selection,
        keys: npt.NDArray[Any],
    ) -> Iterator[tuple[StreamInformation, TruncatedMinibatchData]]:
        parts = selection.parts
        assert parts is not None
        num_cells = parts.num_slots * parts.num_steps
        cells = parts.slot * parts.num_steps + parts.step
        lengths = self._lengths_of(selection)
        layout = [(number, info.dim, info.dtype == np.float64) for number, info in enumerate(corpus.streams)]
        spread, misfit = _core.spread(
            handles, places.places, places.numbers, parts.first_sample, parts.num_samples, cells, lengths, layout,
            num_cells,
        )  # fmt: skip
        if misfit is not None:
            number, stream, num_samples = misfit
            raise CorpusError(
                f"sequence {keys[number]}, stream {infos[stream].name!r}: {num_samples} samples, but the sequence "
                f"counts for {lengths[number]}; truncation needs as many in every stream"
            )
        # How many parts cover a cell from there on, less those that end there: 1 at a cell with a sample.
        covered = np.zeros(num_cells + 1, np.int64)
        np.add.at(covered, cells, 1)
        np.add.at(covered, cells + parts.num_samples, -1)
        mask = np.cumsum(covered[:-1]).astype(np.int8)
        mask[cells[parts.first_sample == 0]] = 2
        mask = mask.reshape(parts.num_slots, parts.num_steps)
        begin = parts.step - parts.first_sample
        spans = np.stack([parts.slot, begin, begin + lengths], axis=1)
        for info, values in zip(infos, spread, strict=True):
            yield info, TruncatedMinibatchData(info, values, mask, spans, selection.end_of_sweep)

    # -------------------------------------------------------------------------------------------- checkpoints

    def get_checkpoint_state(self) -> dict[str, int]:
        """CNTK's state: the position behind the last minibatch. `state_dict` keeps and checks more.

        With a user-defined deserializer on its own timeline it has CNTK's keys for that. (docs/user-defined.md)
        """
        with self._lock:
            if isinstance(self._timeline, LocalTimeline):
                return self._timeline.checkpoint(self._mark)
            return {_POSITION: self._mark.cursor[0]}

    def restore_from_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """Go on from a state of `get_checkpoint_state`, of CNTK 2.7, or of `state_dict`.

        Raises:
            CheckpointError: The state has no position, or does not fit this source.
        """
        if "version" in checkpoint:
            self.load_state_dict(checkpoint)
            return
        if isinstance(self._timeline, LocalTimeline):
            with self._lock:
                self._drop_ahead()
                self._timeline.restore(checkpoint)
                self._mark = self._timeline.mark()
            return
        position = checkpoint.get(_POSITION)
        if not isinstance(position, int | np.integer):
            raise CheckpointError(
                f"the checkpoint has no {_POSITION!r} that is a whole number; it has: {dict(checkpoint)}",
                saved=position,
            )
        with self._lock:
            self._drop_ahead()
            self._timeline.restore(int(position))
            self._mark = self._timeline.mark()

    def begin_epoch(self, begin: int, end: int, *, truncation_length: int | None = None) -> None:
        """Deliver the samples from `begin` up to `end` of the endless timeline, and then end, as configured readers do.

        The first sequence is the first that starts at `begin` or later; slots are emptied.

        Args:
            begin: Position of the epoch's first sample, counted over sweeps.
            end: Position behind its last sample; a sequence that starts before it is delivered whole.
            truncation_length: Steps of a minibatch from now on, in a source that truncates; None: as before.

        Raises:
            ConfigError: `truncation_length` is given for a source that does not truncate, or the other way round.
            CheckpointError: `begin` is not in ``0 .. 2**64 - 1``.
        """
        if truncation_length is not None and (not truncation_length) != (not self._settings["truncation_length"]):
            raise ConfigError(
                f"truncation_length {truncation_length} cannot follow {self._settings['truncation_length']}",
                key="truncation_length",
            )
        timeline = self._epochs()
        with self._lock:
            self._drop_ahead()
            timeline.begin_epoch(begin, end, truncation_length)
            if truncation_length is not None:
                self._settings["truncation_length"] = truncation_length
            self._epoch = [begin, end]
            self._mark = self._timeline.mark()

    @property
    def has_ended(self) -> bool:
        """Whether the data, or the epoch, ended with the minibatch that was delivered last."""
        with self._lock:
            return self._epochs().ends_at(self._mark)

    def _epochs(self) -> Timeline:
        if isinstance(self._timeline, LocalTimeline):
            raise ConfigError("a source of a user-defined deserializer has no epochs", key="deserializers")
        return self._timeline

    @property
    def current_position(self) -> dict[str, int]:
        """The state of `get_checkpoint_state`; setting it restores."""
        return self.get_checkpoint_state()

    @current_position.setter
    def current_position(self, checkpoint: Mapping[str, Any]) -> None:
        self.restore_from_checkpoint(checkpoint)

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on just here, and to notice other data or settings: a small dict for JSON."""
        with self._lock:
            timeline = self._timeline.state(self._mark)
            state = {"version": _STATE_VERSION, "timeline": timeline, "settings": self._settings, "data": self._data()}
            return state if self._epoch is None else {**state, "epoch": self._epoch}

    def _data(self) -> list[str]:
        if self._fingerprints is None:
            self._fingerprints = [corpus.fingerprint() for corpus in self._corpora]
        return self._fingerprints

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a `state_dict` was taken, in this or another process.

        Raises:
            CheckpointError: The state was taken from other data or with other settings; all differences are named.
        """
        if state.get("version") != _STATE_VERSION:
            raise CheckpointError(
                f"the state's version is {state.get('version')!r}; expected {_STATE_VERSION}",
                saved=state.get("version"),
                current=_STATE_VERSION,
            )
        saved_settings, saved_data = state.get("settings"), state.get("data")
        if not isinstance(saved_settings, Mapping) or not isinstance(saved_data, list) or "timeline" not in state:
            raise CheckpointError("the state lacks 'settings', 'data' or 'timeline'", saved=dict(state))
        saved = {**saved_settings, **{f"data of deserializer {n}": text for n, text in enumerate(saved_data)}}
        current = {**self._settings, **{f"data of deserializer {n}": text for n, text in enumerate(self._data())}}
        different = [key for key in dict.fromkeys([*saved, *current]) if saved.get(key) != current.get(key)]
        if different:
            raise CheckpointError(
                "the state does not fit this source: "
                + "; ".join(f"{key}: saved {saved.get(key)!r}, here {current.get(key)!r}" for key in different),
                saved={key: saved.get(key) for key in different},
                current={key: current.get(key) for key in different},
            )
        with self._lock:
            self._drop_ahead()
            if "epoch" in state:
                self._epoch = [int(position) for position in state["epoch"]]
                self._epochs().begin_epoch(*self._epoch)
            self._timeline.load_state(state["timeline"])
            self._mark = self._timeline.mark()

    # --------------------------------------------------------------------------------------------------- life

    def __getstate__(self) -> dict[str, Any]:
        return {"arguments": self._arguments, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        MinibatchSource.__init__(self, **state["arguments"])
        self.load_state_dict(state["state"])

    def close(self) -> None:
        """Stop reading ahead and close the files. A closed source reads no more."""
        with self._lock:
            if self._process == os.getpid():
                self._drop_ahead()
                for executor in (self._selector, self._packer):
                    if executor is not None:
                        executor.shutdown()
                self._chunks.close()
            self._close_corpora()

    def _close_corpora(self) -> None:
        for corpus in self._corpora:
            corpus.close()

    def __enter__(self) -> MinibatchSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""`MinibatchSource`: minibatches from deserializers, read ahead of need. (docs/timeline.md)

::

    timeline ── Selection ──> chunks that it needs ── from memory, or loaded by worker threads ──> packer ──> Minibatch
       ^                                                                                                     |
       └──────────────── one minibatch is made while the caller works on the one before ─────────────────────┘

Its law: read-ahead, threads and what is kept in memory change time alone. What a read delivers and what a checkpoint
says are the timeline's; what bytes mean is the formats'. There is no thread before the first read.
"""

from __future__ import annotations

import enum
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio.errors import (
    CheckpointError,
    ConfigError,
    OutOfRangeError,
    UnsupportedError,
    did_you_mean,
    suggests_keywords,
)
from cntkio.formats.contract import Ahead, Corpus, Deserializer
from cntkio.formats.foreign import as_deserializer
from cntkio.minibatch import Minibatch
from cntkio.source.arrangement import Arrangement, Skipping, arrange
from cntkio.source.chunks import ChunkStore
from cntkio.source.hand_over import Request
from cntkio.source.packing import Layout, Packer
from cntkio.source.pipeline import Pipeline
from cntkio.source.selecting import Selector
from cntkio.streams import Record, StreamInformation
from cntkio.timeline import (
    DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS,
    FULL_DATA_SWEEP,
    INFINITELY_REPEAT,
    AnyTimeline,
    Partition,
    Timeline,
    python_window,
)
from cntkio.timeline.user_timeline import UserTimeline

logger = logging.getLogger("cntkio")

# What is parsed in the pass that makes the index is parsed before it is known which partition asks for it.
_MOST_AT_ONCE = 1 << 30
_WHOLE = Partition()
_LARGEST_SIZE = 2**31 - 1  # CNTK cut larger ones to 32 bits
_STATE_VERSION = 1


class TraceLevel(enum.IntEnum):
    """How much CNTK printed. Here the logger ``cntkio`` decides, and this changes nothing."""

    Error = 0
    Warning = 1
    Info = 2


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
            self._timeline: AnyTimeline
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
                self._timeline = UserTimeline(
                    self._corpora[0].table.num_chunks,
                    lambda chunk_id: self._chunks.lengths_in_chunk(chunk_id),
                    **options,
                )
            else:
                self._timeline = self._make_timeline(
                    **options,
                    right_splice=right_splice,
                    crosses_sweeps=crosses_sweeps,
                    size_counts="own" if local_timeline else "all",
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
        self._settings.update(self._timeline.checkpoint_settings)
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
        selector = Selector(
            self._timeline,
            self._corpora,
            self._arrangement,
            self._chunks,
            max_errors=max_errors,
            is_literal=self._is_literal,
        )
        self._pipeline = Pipeline(selector, Packer(self._layouts, frame_mode=frame_mode))

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
        # Late: the configurations are above this room, and import it.
        from cntkio.config import read_config

        source = read_config(path, *overrides, section=section).open()
        assert isinstance(source, cls)
        return source

    def _make_timeline(self, **options: Any) -> Timeline:
        """The timeline over what was arranged; a source that reads in another way makes another one."""
        return Timeline(self._lengths, self._chunk_starts, **options)

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
            Layout(
                [next(of_source) for _ in corpus.streams],
                [
                    (column, info.is_sparse or info.dtype == np.int32, info.dtype == np.float64)
                    for column, info in enumerate(corpus.streams)
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
        return self._timeline.names_sequences or self._keys.dtype.kind not in "ui"

    @property
    def is_randomized(self) -> bool:
        """Whether sweeps are shuffled."""
        return self._is_randomized

    @property
    def span(self) -> tuple[int, int] | None:
        """Positions at which the data, or the epoch, begin and end; None: no end, or a timeline without positions."""
        end = self._timeline.end
        if self._is_infinite or end is None:
            return None
        return (0 if self._epoch is None else self._epoch[0]), end

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
        counts["invalid utterance"] += self._pipeline.num_invalid
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
        request = self._pipeline.request
        if request is not None and request.partition is partition and request.asked == minibatch_size_in_samples:
            return self._pipeline.next(request)  # as in the read before, and so it was checked
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
        size = int(minibatch_size_in_samples)
        return self._pipeline.next(Request(size, size, partition))

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

    # -------------------------------------------------------------------------------------------- checkpoints

    def get_checkpoint_state(self) -> dict[str, int]:
        """CNTK's state: the position behind the last minibatch. `state_dict` keeps and checks more.

        With a user-defined deserializer on its own timeline it has CNTK's keys for that. (docs/user-defined.md)
        """
        return self._timeline.checkpoint(self._pipeline.delivered.bookmark)

    def restore_from_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """Go on from a state of `get_checkpoint_state`, of CNTK 2.7, or of `state_dict`.

        Raises:
            CheckpointError: The state has no position, or does not fit this source.
        """
        if "version" in checkpoint:
            self.load_state_dict(checkpoint)
            return
        with self._pipeline.stopped():
            self._timeline.restore(checkpoint)

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
        with self._pipeline.stopped():
            self._timeline.begin_epoch(begin, end, truncation_length)
            if truncation_length is not None:
                self._settings["truncation_length"] = truncation_length
            self._epoch = [begin, end]

    @property
    def has_ended(self) -> bool:
        """Whether the data, or the epoch, ended with the minibatch that was delivered last."""
        return self._timeline.ends_at(self._pipeline.delivered.bookmark)

    @property
    def current_position(self) -> dict[str, int]:
        """The state of `get_checkpoint_state`; setting it restores."""
        return self.get_checkpoint_state()

    @current_position.setter
    def current_position(self, checkpoint: Mapping[str, Any]) -> None:
        self.restore_from_checkpoint(checkpoint)

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on just here, and to notice other data or settings: a small dict for JSON."""
        with self._pipeline.held() as delivered:
            timeline = self._timeline.state(delivered.bookmark)
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
        with self._pipeline.stopped():
            if "epoch" in state:
                self._epoch = [int(position) for position in state["epoch"]]
                self._timeline.begin_epoch(*self._epoch)
            self._timeline.load_state(state["timeline"])

    # --------------------------------------------------------------------------------------------------- life

    def __getstate__(self) -> dict[str, Any]:
        return {"arguments": self._arguments, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        MinibatchSource.__init__(self, **state["arguments"])
        self.load_state_dict(state["state"])

    def close(self) -> None:
        """Stop reading ahead and close the files. A closed source reads no more."""
        self._pipeline.close()
        self._close_corpora()

    def _close_corpora(self) -> None:
        for corpus in self._corpora:
            corpus.close()

    def __enter__(self) -> MinibatchSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

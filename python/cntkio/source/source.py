"""`MinibatchSource`: minibatches from deserializers, read ahead of need. (docs/timeline.md)

::

    opening      deserializers become corpora and streams
    arrangement  the corpora's sequences, joined by key
    timeline     which sequences each read delivers
    pipeline     selecting and packing, on two threads, ahead of the reads ──> Minibatch
    checkpoint   the position, and the settings that must be the same to continue there

Invariant: read-ahead, threads, and what is kept in memory change time only. No thread exists before the first read.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeVar, overload

import numpy as np

from cntkio.arguments import caller, no_keyword, suggests_keywords, whole_number
from cntkio.displays import Description, Displayed, counted
from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.arrays import SAMPLES_AT_ONCE, piece_of
from cntkio.formats.contract import Corpus, Deserializer, Opening
from cntkio.formats.pieces import Pieces
from cntkio.formats.table import Keys
from cntkio.minibatch import Minibatch, MinibatchData, Results, check_input_map, indices_in_table
from cntkio.source.arrangement import arrange, check_names
from cntkio.source.checkpoint import SourceProgress
from cntkio.source.chunks import ChunkStore
from cntkio.source.packing import Packer
from cntkio.source.pipeline import DeliveredCounts, Pipeline, Request
from cntkio.source.plan import Ledger, SourcePlan
from cntkio.source.recipe import Recipe, SourceOptions
from cntkio.source.selecting import Chunks, Selector
from cntkio.streams import StorageFormat, StreamInformation, StreamsByName
from cntkio.timeline import (
    DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS,
    FULL_DATA_SWEEP,
    INFINITELY_REPEAT,
    WHOLE,
    AnyTimeline,
    Partition,
    Size,
    checked_partition,
)
from cntkio.timeline.budget import check_largest, checked_size, row_length_of
from cntkio.timeline.partition import WHOLE_ROWS, checked_part
from cntkio.timeline.state import settings_of

Key = TypeVar("Key")
"""Type of the keys of an `input_map`."""


class TraceLevel(enum.IntEnum):
    """CNTK's levels of printing: how much a source logs with the logger ``cntkio``."""

    Error = 0
    Warning = 1
    Info = 2


class Assembly:
    """The opened deserializers of one source, and the stages that work on them. After an error, nothing stays open.

    Attributes:
        streams: The streams of all corpora, numbered consecutively.
        timeline: The sequences of each read. While the pipeline runs, only the pipeline uses the timeline.
    """

    def __init__(self, options: SourceOptions, recipe: Recipe) -> None:
        self._options, self._recipe = options, recipe
        self.corpora: list[Corpus] = []
        self.streams: list[StreamInformation] = []
        try:
            layouts = self._open()
            self.arrangement = arrange(
                self.corpora,
                frame_mode=options.frame_mode,
                strict=options.strict,
                longest=recipe.longest_utterance,
                trace_level=options.trace_level,
                repeat=options.repeat or {},
            )
            omissions = recipe.omissions(options, self.arrangement.table)
            if omissions is not None:
                self.arrangement = self.arrangement.without(omissions)
            forgive = any(corpus.report.budget for corpus in self.corpora)
            self._are_lengths_certain = not forgive and self.arrangement.flags is None
            keeps_all = recipe.keeps_data_in_memory(options)
            chunks = ChunkStore(
                self.corpora,
                self.arrangement,
                window_stays_in_use=options.window is not None,
                keeps_all=keeps_all,
                loads_window=self.arrangement.is_literal,
                read_ahead_in_bytes=options.read_ahead_in_bytes,
            )
            can_load_parts = any(corpus.index.loads_parts for corpus in self.corpora)
            # A part belongs to one sweep, so chunks that stay in memory for later sweeps are loaded as a whole.
            loads_parts = self.arrangement.finder is None and can_load_parts and not keeps_all
            self.timeline = self._new_timeline(chunks.lengths_in_chunk, loads_parts=loads_parts)
        except BaseException:
            self.close_corpora()
            raise
        packer = Packer(layouts, options.frame_mode, caller().words)
        name = " and ".join(corpus.name for corpus in self.corpora)
        self.pipeline = Pipeline(self._selector(self.timeline, chunks), packer, name)
        begin = self.timeline.bookmark()
        parts = self.corpora, self.arrangement, self.timeline, self.pipeline
        self.progress = SourceProgress(options, recipe, *parts, begin)

    def _open(self) -> list[list[StreamInformation]]:
        """Open the deserializers, and return the streams of each as the source shows them."""
        options, layouts = self._options, []
        # If one deserializer has words as keys, all read keys as words.
        text_keys = any(deserializer.has_text_keys for deserializer in options.described)
        opening = Opening(text_keys, options.ahead, options.trace_level)
        for deserializer in options.described:
            corpus = self._recipe.open(deserializer, opening)
            self.corpora.append(corpus)
            check_names(self.corpora)
            first = len(self.streams)
            for info in corpus.streams:
                form: StorageFormat = "dense" if options.truncation_length else info.storage_format
                self.streams.append(dataclasses.replace(info, stream_id=len(self.streams), storage_format=form))
            layouts.append(self.streams[first:])
        return layouts

    def _new_timeline(self, lengths_in_chunk: Callable[[int], Any], *, loads_parts: bool = False) -> AnyTimeline:
        options, corpora = self._options, self.corpora
        return self._recipe.timeline(options, corpora, self.arrangement, lengths_in_chunk, loads_parts=loads_parts)

    def _selector(self, timeline: AnyTimeline, chunks: Chunks) -> Selector:
        return Selector(timeline, self.corpora, self.arrangement, chunks, self._options.max_errors)

    def plan(self, request: Request, *, is_here: bool) -> SourcePlan:
        """Make a plan, with a timeline of its own."""
        if self.corpora[0].index.joins == "alone":
            own = f"{self.corpora[0].name} has a timeline of its own"
            until = "whose order is not known until all chunks have been fetched"
            raise ConfigError(f"{own}, {until}; with timeline='global' it is known at once", key="timeline")
        put = self.progress.start(is_here=is_here)
        epoch = self.pipeline.epoch

        def begin() -> AnyTimeline:
            # The function is never called: the table has all lengths.
            timeline = self._new_timeline(self.arrangement.table.lengths.__getitem__)
            put(timeline)
            return timeline

        def take_state(timeline: Mapping[str, Any]) -> dict[str, Any]:
            return self.progress.state_of(timeline, epoch)

        parts = self._recipe.first_sequences_of_parts
        return SourcePlan(begin, self._selector, self.corpora, self.arrangement, request, take_state, parts)

    def share(self, size: Size, partition: Partition) -> Partition:
        """Return a partition, with whole rows if its part of them cannot be placed without the other sequences.

        A forgiven error may shorten a sequence, and an invalid utterance is left out: then the index does not tell the
        cells of later sequences.
        """
        if partition.part == WHOLE_ROWS:
            return partition
        checked_part(partition.part, row_length_of(size))
        return partition if self._are_lengths_certain else partition.of_whole_rows

    def close_corpora(self) -> None:
        for corpus in self.corpora:
            corpus.close()


# --------------------------------------------------------------------------------------------------------------


@suggests_keywords
class MinibatchSource(Displayed, StreamsByName):
    """Minibatches from one or several deserializers, in CNTK 2.7's order.

    A source may be used from several threads, pickled, and forked: a fork continues from its parent's position.

    Args:
        deserializers: One, or several whose sequences are joined by key. The first gives the order.
        max_samples: The data end before the first sequence that starts here or later.
        max_sweeps: Number of passes after which the data end.
        randomization_window_in_chunks: Distance within which sequences are shuffled, in chunks; 0: off.
        randomization_window_in_samples: The same distance in samples; both 0: no randomization.
        randomization_seed: Sweep number k is shuffled with ``randomization_seed + k``.
        trace_level: What is logged: 0: no warnings; 1: ten of a kind in full; 2: all, in text ten of a kind per chunk.
        multithreaded_deserializer: Not used.
        frame_mode: Refuse sequences of more than one sample.
        truncation_length: Steps of a truncated minibatch; 0: whole sequences.
        randomize: False sets both windows to 0.
        max_errors: Number of sequences that deserializers may mark as invalid; errors in a text do not count.
        strict: Raise an error for a sequence that a join leaves out.
        keep_data_in_memory: Keep every chunk in memory once it has been read, for later sweeps.
        read_ahead_in_bytes: Approximate bytes of parsed data that may be loaded beyond the window. A source begins
            with little, and reads further ahead after data came late.
        right_splice: Samples that a full row of a truncated minibatch and the next part of its sequence have in common.
        crosses_sweeps: Whether a minibatch continues into the next sweep. In configured readers it does not.
        local_timeline: Whether a partition's minibatches are filled with its own share of the size. In classic
            readers samples of all partitions count, including samples that other partitions deliver.
        leave_out: Keys that are not delivered, or a file of keys; or ``{position: keys}``. (docs/ledger.md)
        repeat: For some keys how often a sweep has them.
        order: Order in a window: ``"cntk"``, or ``"keyed"``, which can be entered anywhere. (docs/timeline.md)
        recipe: The decisions of another kind of source; None: a plain source. (`cntkio.source.recipe`)

    Attributes:
        lock: The lock of all calls: ``with source.lock.inner`` makes several calls one step for other threads.
        left_out: For each deserializer the number of its sequences that the join left out.

    Raises:
        ConfigError: An option is not possible, or two exclude each other. For a number below 0 or above ``2**64 - 1``
            it is an `OverflowError` as well.
        TypeError: A number is not whole, or a keyword does not exist.
        CorpusError: The deserializers have no sequence in common.
        FormatError: The indexing pass finds an error in the format of a file.
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
        leave_out: Any = None,
        repeat: Mapping[Any, int] | None = None,
        order: Literal["cntk", "keyed"] = "cntk",
        recipe: Recipe | None = None,
    ) -> None:
        options = SourceOptions.of(locals())  # as the first statement, so that the arguments are the only names
        self._options, self._recipe = options, recipe or Recipe()
        self.assembly = Assembly(options, self._recipe)
        self._timeline: AnyTimeline = self.assembly.timeline
        self._pipeline = self.assembly.pipeline
        self._corpora, self._progress = self.assembly.corpora, self.assembly.progress
        self.lock = self._pipeline.lock
        self.left_out = list(self.assembly.arrangement.left_out)

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
            ConfigError: The file cannot be read as a configuration, or asks for something that cntkio does not have.
            OSError: A file cannot be read.
        """
        from cntkio.config import read_config  # late, because that module imports this one

        source = read_config(path, *overrides, section=section).open()
        assert isinstance(source, cls)
        return source

    # ------------------------------------------------------------------------------------------------ streams

    def stream_infos(self) -> list[StreamInformation]:
        """Return the streams."""
        return list(self.assembly.streams)

    def _description(self) -> Description:
        return _described(self)

    def is_infinite(self) -> bool:
        """Return whether the data never end."""
        return self._options.is_infinite

    @property
    def arguments(self) -> dict[str, Any]:
        """Keywords with which the constructor makes this source again."""
        return self._recipe.arguments(self._progress.options_in(self._pipeline.epoch))

    @property
    def has_text_keys(self) -> bool:
        """True if the keys of sequences are texts, not numbers."""
        # A timeline of its own makes the keys itself: as texts, and the table has none.
        is_alone = self._corpora[0].index.joins == "alone"
        return is_alone or self.assembly.arrangement.table.keys.are_words

    @property
    def is_randomized(self) -> bool:
        """True if sweeps are shuffled."""
        return self._options.window is not None

    @property
    def span(self) -> tuple[int, int] | None:
        """Positions at which the data, or the epoch, begin and end; None: no end, or a timeline without positions."""
        end = self._timeline.end
        return None if self.is_infinite() or end is None else self._pipeline.epoch.span or (0, end)

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
        return self._pipeline.delivered.error_counts()

    @property
    def warning_counts(self) -> dict[str, int]:
        """Warnings so far, by kind, over all deserializers."""
        return self._pipeline.delivered.warning_counts()

    # ------------------------------------------------------------------------------------------------ reading

    @overload
    def next_minibatch(
        self, minibatch_size_in_samples: Size, input_map: None = None, device: object = None,
        num_data_partitions: int | None = None, partition_index: int | None = None,
    ) -> Minibatch: ...  # fmt: skip

    @overload
    def next_minibatch(
        self, minibatch_size_in_samples: Size, input_map: Mapping[Key, StreamInformation], device: object = None,
        num_data_partitions: int | None = None, partition_index: int | None = None,
    ) -> dict[Key, MinibatchData]: ...  # fmt: skip

    def next_minibatch(
        self,
        minibatch_size_in_samples: Size,
        input_map: Mapping[Any, StreamInformation] | None = None,
        device: object = None,
        num_data_partitions: int | None = None,
        partition_index: int | None = None,
        **unknown: Any,
    ) -> dict[Any, Any]:
        """Return the next minibatch, or an empty mapping when the data have ended.

        Whole sequences are taken while their lengths sum to at most this partition's share; a sequence that is longer
        than the share comes alone (docs/timeline.md, "Size").

        Args:
            minibatch_size_in_samples: Samples of all partitions together, at least 1; or a `Budget`.
            input_map: Keys for the result, of any hashable type, each with its stream; None or empty: the names of the
                streams.
            device: Not used.
            num_data_partitions: Number of readers that share the data; None: 1.
            partition_index: Index of this reader among them; None: 0.

        Returns:
            A `Minibatch`, a mapping of names that also takes stream descriptions; with `input_map` a dict with its
            keys. In truncated mode the data are `TruncatedMinibatchData`, else `MinibatchData`.

        Raises:
            ConfigError: An argument is not possible. For a size that is negative or not whole it is a
                `NotImplementedError` as well.
            FormatError: A chunk read for this minibatch breaks its format.
            CorpusError: A sequence does not fit frame mode or truncation, or a file has changed.
        """
        if unknown:  # `suggests_keywords` would take a tenth of the time of a small minibatch
            *known, _unknown = inspect.signature(self.next_minibatch).parameters
            raise no_keyword("next_minibatch", next(iter(unknown)), known)
        is_whole = num_data_partitions is None and partition_index is None
        partition = WHOLE if is_whole else _partition(num_data_partitions, partition_index)
        minibatch = self.read(minibatch_size_in_samples, partition)
        if minibatch is None:
            dtype: type[Any] = np.str_ if self.has_text_keys else np.uint64
            return Minibatch({}, lambda: np.empty(0, dtype))  # the source may be freed before this minibatch
        if input_map:
            check_input_map(input_map)
            return {key: minibatch[stream] for key, stream in input_map.items()}
        return minibatch

    def read(self, minibatch_size_in_samples: Size, partition: Partition = WHOLE) -> Minibatch | None:
        """Return the next minibatch of a partition, or None when the data have ended.

        It raises the same errors as `next_minibatch`.

        Args:
            minibatch_size_in_samples: Samples of all partitions together, at least 1; or a `Budget`.
            partition: The share to deliver: a `Partition`, a `BalancedPartition` or a `GlobalPartition`. It may change
                between reads.
        """
        request = self._pipeline.request
        # The same request as in the previous read has been checked.
        if request is None or request.partition is not partition or request.asked != minibatch_size_in_samples:
            request = self._request(minibatch_size_in_samples, partition)
        return self._pipeline.next(request)

    def _request(self, minibatch_size_in_samples: Size, partition: Partition) -> Request:
        size, partition = checked_size(minibatch_size_in_samples), checked_partition(partition)
        request = self._recipe.request(size, self.assembly.share(size, partition), self._pipeline.epoch.number)
        check_largest(request.size)
        return request

    def minibatches(
        self,
        minibatch_size_in_samples: Size,
        num_data_partitions: int | None = None,
        partition_index: int | None = None,
        *,
        partition: Partition | None = None,
    ) -> Iterator[Minibatch]:
        """Iterate over minibatches until the data end. Arguments as for `next_minibatch`.

        Args:
            partition: The share to deliver, of any kind, as for `read`; in place of the two numbers.
        """
        share = _partition(num_data_partitions, partition_index, partition)
        return Results(lambda: self.read(minibatch_size_in_samples, share))

    def pieces(self) -> AbstractContextManager[Pieces]:
        """Return the sequences from here to the end, for the writers."""
        return nullcontext(_pieces_of(self, self.assembly.arrangement.table.keys))

    def plan(
        self, minibatch_size_in_samples: Size, partition: Partition = WHOLE, *, from_here: bool = False
    ) -> SourcePlan:
        """Return a plan of the reads of one size, step by step, from the index alone. (docs/plan.md)

        The source does not move, and no data are read.

        Args:
            minibatch_size_in_samples: As for `read`.
            partition: As for `read`.
            from_here: Count steps from the source's position; otherwise from the beginning of the data or of the epoch.

        Raises:
            ConfigError: The order of the source is not known without its data.
        """
        request = self._request(minibatch_size_in_samples, partition)
        return self.assembly.plan(request, is_here=from_here)

    def ledger(
        self, first: int, last: int, minibatch_size_in_samples: Size | None = None, partition: Partition = WHOLE
    ) -> Ledger:
        """Return the sequences of the steps from `first` to before `last`, as `SourcePlan.ledger`. (docs/ledger.md)

        Without a size, the last read, or the state that was loaded, gives the size and the partition.
        """
        if minibatch_size_in_samples is None:
            minibatch_size_in_samples, partition = settings_of(self.state_dict()["timeline"])
        return self.plan(minibatch_size_in_samples, partition).ledger(first, last)

    def skip(self, num_steps: int, minibatch_size_in_samples: Size, partition: Partition = WHOLE) -> None:
        """Skip a number of reads, without reading data. It raises the same errors as `plan`."""
        whole_number("num_steps", num_steps, least=0)
        with self.lock.inner:
            plan = self.plan(minibatch_size_in_samples, partition, from_here=True)
            self.load_state_dict(plan.state_at(num_steps))

    def begin_epoch(
        self, begin: int, end: int, *, truncation_length: int | None = None, number: int | None = None
    ) -> None:
        """Deliver the samples from `begin` up to `end` of the endless timeline, and then end, as configured readers do.

        The first sequence is the first that starts at `begin` or later; slots are emptied.

        Args:
            begin: Position of the epoch's first sample, counted over sweeps.
            end: Position after its last sample; a sequence that starts before it is delivered whole.
            truncation_length: Steps of a minibatch from now on, in a source that truncates; None: as before.
            number: Number of the epoch, from 0, for sources that read epochs in different ways; None: the number of the
                current epoch.

        Raises:
            ConfigError: `truncation_length` is above 0 for a source of whole sequences, or 0 for a truncating source.
            CheckpointError: `begin` is not in ``0 .. 2**64 - 1``.
        """
        self._progress.begin_epoch(begin, end, truncation_length, number)

    @property
    def has_ended(self) -> bool:
        """True if the data, or the epoch, ended with the minibatch that was delivered last."""
        return self._timeline.ends_at(self._pipeline.delivered.bookmark)

    @property
    def delivered(self) -> DeliveredCounts:
        """Counts of all minibatches delivered so far, also by interrupted reads. A restore does not change them."""
        return self._pipeline.counts

    # -------------------------------------------------------------------------------------------- checkpoints

    def get_checkpoint_state(self) -> dict[str, int]:
        """Return CNTK's state: the position after the last minibatch. `state_dict` keeps and checks more.

        For a user-defined deserializer on its own timeline, the state has CNTK's keys for such a timeline.
        (docs/user-defined.md)
        """
        return self._timeline.checkpoint(self._pipeline.delivered.bookmark)

    def restore_from_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """Continue from a state of `get_checkpoint_state`, of CNTK 2.7, or of `state_dict`.

        Raises:
            CheckpointError: The state has no position, or does not fit this source.
        """
        self._progress.restore(checkpoint)

    @property
    def current_position(self) -> dict[str, int]:
        """State of the source, as from `get_checkpoint_state`. Setting it restores the source."""
        return self.get_checkpoint_state()

    @current_position.setter
    def current_position(self, checkpoint: Mapping[str, Any]) -> None:
        self.restore_from_checkpoint(checkpoint)

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue here, and to detect other data or settings: a small dict for JSON."""
        return self._progress.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a `state_dict` was taken, in this or another process.

        In an epoch of `begin_epoch`, a state that was taken before any epoch ends the epoch.

        Raises:
            CheckpointError: The state was taken from other data or with other settings; all differences are named.
        """
        self._progress.load_state(state)

    # --------------------------------------------------------------------------------------------------- life

    def __getstate__(self) -> dict[str, Any]:
        return {"arguments": self.arguments, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Not the constructor of the object's own class, which may have other parameters.
        MinibatchSource.__init__(self, **state["arguments"])
        self.load_state_dict(state["state"])

    def close(self) -> None:
        """Stop reading ahead and close the files. Call `state_dict` first: a closed source has no state."""
        self._pipeline.close()
        self.assembly.close_corpora()

    def __enter__(self) -> MinibatchSource:
        self._pipeline.check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _described(source: MinibatchSource) -> Description:
    try:
        sequences, samples = counted(source.num_sequences, "sequence"), counted(source.num_samples, "sample")
        counts = f"{sequences} of {samples} in {counted(source.num_chunks, 'chunk')}"
    except CorpusError:  # user-defined deserializers on their own timeline
        counts = "sequences of a user-defined deserializer"
    order = "randomized" if source.is_randomized else "in order"
    end = "with an end" if source.span is None else "samples {:,} to {:,}".format(*source.span)
    end = "without end" if source.is_infinite() else end
    infos = source.stream_infos()
    rows = [(info.name, info.form, "defines the minibatch size" * info.defines_mb_size) for info in infos]
    return Description(f"{type(source).__name__}: {counts}; {order}, {end}", ("stream", "samples are", ""), rows)


def _partition(count: int | None, index: int | None, partition: Partition | None = None) -> Partition:
    """Return the share of two arguments of CNTK, or the partition that is given in their place."""
    if partition is not None:
        if (count, index) != (None, None):
            raise ConfigError("partition excludes num_data_partitions and partition_index", key="partition")
        return partition
    count, index = 1 if count is None else count, 0 if index is None else index
    return WHOLE if (index, count) == (0, 1) else Partition(index, count)


def _pieces_of(source: MinibatchSource, keys: Keys) -> Pieces:
    """Return the sequences that a source delivers. `keys`: the keys of its table; without a table, no keys."""
    if source.is_infinite():
        what = "a source without an end cannot be written; expected max_sweeps or max_samples"
        raise ConfigError(what, key="max_sweeps")
    streams = source.stream_infos()

    def keys_of(minibatch: Minibatch) -> Keys:
        # The keys of the table keep bytes that are not UTF-8.
        return keys.only(indices_in_table(minibatch)) if len(keys) else Keys.of(minibatch.keys_of_sequences)

    pieces = (piece_of(each, streams, keys_of(each)) for each in source.minibatches(SAMPLES_AT_ONCE))
    # A source may deliver several sweeps, so its keys cannot tell sequences apart in a file.
    corpora = source.assembly.corpora
    name = corpora[0].name if len(corpora) == 1 else "source"
    return Pieces(
        name, streams, pieces, 0, source.has_text_keys, repeats_keys=True,
        counts_keys=all(corpus.index.num_lines is not None for corpus in corpora),
        log_rounded=[corpus.log_rounded for corpus in corpora],
    )  # fmt: skip

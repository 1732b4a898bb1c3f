"""`Assembly`: the stages of a source, put together from its options and its recipe."""

from __future__ import annotations

import dataclasses

from cntkio.errors import ConfigError
from cntkio.formats.contract import Corpus, Opening
from cntkio.source.arrangement import Arrangement, arrange
from cntkio.source.checkpoint import Progress
from cntkio.source.chunks import ChunkStore
from cntkio.source.options import SourceOptions
from cntkio.source.packing import Layout, Packer
from cntkio.source.pipeline import Pipeline, Request
from cntkio.source.plan import NoChunks, SourcePlan
from cntkio.source.recipe import Recipe
from cntkio.source.selecting import Selector
from cntkio.streams import StreamInformation, packed_columns
from cntkio.timeline import AnyTimeline

# --------------------------------------------------------------------------------------------------------------
# The deserializers of a source, opened: their corpora, and the streams.


@dataclasses.dataclass(frozen=True, eq=False)
class Opened:
    """The opened deserializers of a source.

    Attributes:
        corpora: Their corpora.
        streams: The streams of all corpora, numbered consecutively.
        layouts: For each corpus its streams, and how they are packed.
    """

    corpora: list[Corpus]
    streams: list[StreamInformation]
    layouts: list[Layout]

    @property
    def is_literal(self) -> bool:
        """True if a corpus asks for CNTK's own treatment of errors and empty minibatches."""
        return any(
            corpus.index.utterances is not None and corpus.index.utterances.is_literal for corpus in self.corpora
        )

    def close(self) -> None:
        """Close the corpora."""
        for corpus in self.corpora:
            corpus.close()


def open_all(options: SourceOptions, recipe: Recipe) -> Opened:
    """Open the deserializers of a source. If one of them has words as keys, all read their keys as words.

    Raises:
        ConfigError: Two streams have one name.
        FormatError: The indexing pass finds an error in the format of a file.
        OSError: A file cannot be read.
    """
    opened = Opened([], [], [])
    # If one deserializer has words as keys, all read keys as words.
    text_keys = any(deserializer.has_text_keys for deserializer in options.described)
    opening = Opening(text_keys, options.ahead, options.trace_level)
    try:
        for deserializer in options.described:
            corpus = recipe.open(deserializer, opening)
            opened.corpora.append(corpus)
            layout = _layout(corpus, opened.streams, is_truncated=options.truncation_length > 0)
            opened.layouts.append(layout)
            opened.streams.extend(layout.streams)
    except BaseException:
        opened.close()
        raise
    return opened


def _layout(corpus: Corpus, earlier: list[StreamInformation], *, is_truncated: bool) -> Layout:
    streams: list[StreamInformation] = []
    names = {info.name for info in earlier}
    for info in corpus.streams:
        if info.name in names:
            raise ConfigError(f"two streams have the name {info.name!r}; rename one of them", key=info.name)
        names.add(info.name)
        form = "dense" if is_truncated else info.storage_format
        stream_id = len(earlier) + len(streams)
        streams.append(StreamInformation(info.name, stream_id, form, info.dtype, info.shape, info.defines_mb_size))
    return Layout(streams, packed_columns(corpus.streams))


@dataclasses.dataclass(frozen=True, eq=False)
class Assembly:
    """The stages of one source.

    Attributes:
        opened: The corpora and the streams.
        arrangement: The sequences.
        timeline: The sequences of each read. While the pipeline runs, only the pipeline uses the timeline.
        pipeline: The minibatches.
    """

    opened: Opened
    arrangement: Arrangement
    timeline: AnyTimeline
    pipeline: Pipeline

    @classmethod
    def of(cls, options: SourceOptions, recipe: Recipe) -> Assembly:
        """Open the deserializers, and put the stages together. After an error, nothing stays open.

        Raises:
            CntkIoError: The deserializers cannot be opened or joined, or an option is not possible with them.
            OSError: A file cannot be read.
        """
        opened = open_all(options, recipe)
        corpora = opened.corpora
        try:
            arrangement = arrange(
                corpora,
                frame_mode=options.frame_mode,
                strict=options.strict,
                skipping=recipe.skipping,
                trace_level=options.trace_level,
            )
            keeps_all = recipe.keeps_data_in_memory(options)
            chunks = ChunkStore(
                corpora,
                arrangement,
                window_stays_in_use=options.window is not None,
                keeps_all=keeps_all,
                loads_window=opened.is_literal,
                read_ahead_in_bytes=options.read_ahead_in_bytes,
            )
            can_load_parts = any(corpus.index.loads_parts for corpus in corpora)
            loads_parts = arrangement.finder is None and can_load_parts and not keeps_all
            timeline = recipe.timeline(options, corpora, arrangement, chunks.lengths_in_chunk, loads_parts=loads_parts)
        except BaseException:
            opened.close()
            raise
        selector = Selector(
            timeline, corpora, arrangement, chunks, max_errors=options.max_errors, is_literal=opened.is_literal
        )
        packer = Packer(opened.layouts, frame_mode=options.frame_mode)
        name = " and ".join(corpus.name for corpus in corpora)
        return cls(opened, arrangement, timeline, Pipeline(selector, packer, name))

    def plan(
        self, options: SourceOptions, recipe: Recipe, progress: Progress, request: Request, *, is_here: bool
    ) -> SourcePlan:
        """Make a plan, with a timeline of its own.

        Raises:
            ConfigError: The order of the source is not known without its data.
        """
        corpora, arrangement = self.opened.corpora, self.arrangement
        if corpora[0].index.joins == "alone":
            raise ConfigError(
                f"{corpora[0].name} has a timeline of its own, whose order is not known until all chunks have been "
                f"fetched; with timeline='global' it is known at once",
                key="timeline",
            )
        lengths_in_chunk = arrangement.table.lengths.__getitem__  # never called: the table has all lengths
        put = progress.start(is_here=is_here)

        def begin() -> AnyTimeline:
            timeline = recipe.timeline(options, corpora, arrangement, lengths_in_chunk)
            put(timeline)
            return timeline

        def selector(timeline: AnyTimeline, chunks: NoChunks) -> Selector:
            literal = self.opened.is_literal
            return Selector(timeline, corpora, arrangement, chunks, max_errors=options.max_errors, is_literal=literal)

        epoch = self.pipeline.epoch
        return SourcePlan(begin, selector, corpora, arrangement, request, lambda state: progress.state_of(state, epoch))

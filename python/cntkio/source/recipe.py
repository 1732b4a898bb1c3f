"""`Recipe`: the decisions in which kinds of sources differ.

A source lets its recipe open a deserializer, make the timeline, and turn the arguments of a read into a request.
Everything else is the same for all sources. `Recipe` itself is the recipe of a plain `MinibatchSource`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio.errors import ConfigError
from cntkio.formats.contract import Corpus, Deserializer, Opening
from cntkio.source.arrangement import Arrangement, Skipping
from cntkio.source.options import SourceOptions
from cntkio.source.pipeline import Request
from cntkio.timeline import AnyTimeline, Partition, Size, Timeline
from cntkio.timeline.user_timeline import UserTimeline


class Recipe:
    """The decisions of a plain source. Another kind of source overrides the methods in which it differs.

    A recipe serves a single source.

    Attributes:
        skipping: The rule for utterances to skip; None: each corpus decides.
    """

    skipping: Skipping | None = None

    # ---------------------------------------------------------------------------------------- when it is opened

    def open(self, deserializer: Deserializer, opening: Opening) -> Corpus:
        """Open a deserializer."""
        return deserializer.open(opening)

    def keeps_data_in_memory(self, options: SourceOptions) -> bool:
        """Decide, once all deserializers are open, whether chunks stay in memory."""
        return options.keep_data_in_memory

    def timeline(
        self,
        options: SourceOptions,
        corpora: Sequence[Corpus],
        arrangement: Arrangement,
        lengths_in_chunk: Callable[[int], npt.NDArray[np.uint32]],
        *,
        loads_parts: bool = False,
    ) -> AnyTimeline:
        """Make the timeline.

        Args:
            options: The options of the source.
            corpora: Its corpora.
            arrangement: Its sequences.
            lengths_in_chunk: Gives the lengths of a chunk's sequences, after it has loaded the chunk.
            loads_parts: Whether parts of chunks can be loaded.

        Raises:
            ConfigError: An option is not possible with these corpora.
        """
        if corpora[0].index.joins == "alone":
            return UserTimeline(corpora[0].table.num_chunks, lengths_in_chunk, **options.for_user_timeline)
        return Timeline(arrangement.lengths, arrangement.chunk_starts, **options.for_timeline, loads_parts=loads_parts)

    def for_checkpoint(self, options: SourceOptions) -> dict[str, Any]:
        """Return the settings that a checkpoint compares."""
        return options.for_checkpoint

    def arguments(self, options: SourceOptions) -> dict[str, Any]:
        """Return the keywords with which the constructor makes the same source again."""
        return options.arguments

    # ----------------------------------------------------------------------------------------- when it is read

    def request(self, size: Size, partition: Partition, epoch_number: int) -> Request:
        """Return the request to the timeline for a read in an epoch. The size has been checked."""
        return Request(size, size, partition)

    def check_truncation(self, options: SourceOptions, truncation_length: int | None) -> None:
        """Refuse a truncation length for the next epochs that does not fit the source; None: the length stays as it is.

        Raises:
            ConfigError: The length is above 0 for a source of whole sequences, or 0 for a source that truncates.
        """
        if truncation_length is not None and (not truncation_length) != (not options.truncation_length):
            reads, expected = "reads whole sequences", "None"
            if options.truncation_length:
                reads, expected = f"truncates to {options.truncation_length}", "None or at least 1"
            raise ConfigError(
                f"truncation_length is {truncation_length}, but the source {reads}; expected {expected}",
                key="truncation_length",
            )

    def num_rows(self, epoch_number: int) -> int | None:
        """Decide how many rows the truncated minibatches of an epoch have; None: as before."""
        return None

    def epoch_state(self, epoch_number: int) -> dict[str, Any]:
        """Return additional fields of a state: small values for JSON."""
        return {}

    def epoch_number(self, state: Mapping[str, Any]) -> int:
        """Read the number of the epoch from a state, which holds what `epoch_state` returned.

        Raises:
            CheckpointError: The state has no number of an epoch.
        """
        return 0

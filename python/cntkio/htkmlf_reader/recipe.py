"""`HTKMLFRecipe`: the decisions in which an HTKMLFReader differs from a plain source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio.errors import CheckpointError, ConfigError
from cntkio.formats.contract import Ahead, Corpus, Deserializer
from cntkio.formats.htk import HTKFeatureStream
from cntkio.htkmlf_reader.options import HTKMLFOptions
from cntkio.htkmlf_reader.order import RollingTimeline
from cntkio.htkmlf_reader.page_file import PagedFeatures
from cntkio.source.arrangement import Arrangement
from cntkio.source.fitting import Skipping
from cntkio.source.hand_over import Request
from cntkio.source.options import SourceOptions
from cntkio.source.recipe import Recipe
from cntkio.timeline import AnyTimeline, Partition, Timeline


class HTKMLFRecipe(Recipe):
    """The decisions of one reader.

    Attributes:
        skipping: The rule for utterances to skip.
        skipped: Number of skipped utterances, by kind.
    """

    def __init__(self, options: HTKMLFOptions) -> None:
        self._own = options
        self.skipping = Skipping(options.longest)
        self.skipped: Mapping[str, int] = {}
        self._paged: list[PagedFeatures] = []

    def open(self, deserializer: Deserializer, *, text_keys: bool, ahead: Ahead) -> Corpus:
        if self._own.read_method != "rollingWindow" or not isinstance(deserializer, HTKFeatureStream):
            return super().open(deserializer, text_keys=text_keys, ahead=ahead)
        features = PagedFeatures(deserializer, self._own.page_folder)
        self._paged.append(features)
        return features

    def keeps_data_in_memory(self, options: SourceOptions) -> bool:
        """Return whether features stay in memory, because they are few; else they wait in a page file."""
        if not self._paged:
            return options.keep_data_in_memory
        is_small = sum(features.num_bytes for features in self._paged) <= self._own.page_limit_in_bytes
        for features in self._paged:
            features.is_paged = not is_small
        return is_small

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
        own = self._own
        keywords = {
            **self.for_timeline(options),
            "only_full": own.only_full and own.frame_mode,
            "num_rows": self.num_rows(0) or 0,
            "counts_sequences": not own.frame_mode and not own.truncated,
        }
        if own.read_method == "rollingWindow" and own.window is not None:
            window = own.window.size
            return RollingTimeline(arrangement.lengths, arrangement.chunk_starts, rolling_window=window, **keywords)
        keywords["loads_parts"] = loads_parts and not self._paged  # a page file keeps whole chunks
        return Timeline(arrangement.lengths, arrangement.chunk_starts, **keywords)

    def for_checkpoint(self, options: SourceOptions) -> dict[str, Any]:
        own = self._own
        return {
            **super().for_checkpoint(options),
            "truncation_length": own.truncation_length or ("minibatch size" if own.truncated else 0),
            "read_method": own.read_method,
            "only_full": own.only_full,
            "nbruttsineachrecurrentiter": list(own.counts),
            "longest_utterance": own.longest,
        }

    def arguments(self, options: SourceOptions) -> dict[str, Any]:
        shared = (
            "deserializers", "randomization_seed", "max_samples", "max_sweeps", "max_errors", "read_ahead_in_bytes",
            "trace_level",
        )  # fmt: skip
        return {**self._own.arguments, **{name: getattr(options, name) for name in shared}}

    def request(self, size: int, partition: Partition, epoch_number: int) -> Request:
        return Request(size, self._own.size(size, epoch_number), partition)

    def check_truncation(self, options: SourceOptions, truncation_length: int | None) -> None:
        if truncation_length is not None:
            raise ConfigError(
                "an HTKMLFReader takes no truncation_length for an epoch; its truncationLength or the minibatch size "
                "gives the steps",
                key="truncation_length",
            )

    def num_rows(self, epoch_number: int) -> int | None:
        return self._own.count(epoch_number) if self._own.steps_by_size else None

    def epoch_state(self, epoch_number: int) -> dict[str, Any]:
        return {"epoch_number": epoch_number}

    def epoch_number(self, state: Mapping[str, Any]) -> int:
        number = state.get("epoch_number")
        if type(number) is not int or number < 0:
            raise CheckpointError(f"the state has no 'epoch_number' of an HTKMLFReader; it is {number!r}", saved=number)
        return number

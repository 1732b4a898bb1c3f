"""Settings of label files, from the options of the deserializers of text and of binary files. (docs/formats/htk.md)"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cntkio.arguments import float_type
from cntkio.errors import ConfigError
from cntkio.formats.cntk_options import LABEL_STREAM, truth
from cntkio.formats.htk.options import (
    Unequal,
    longest_of,
    merge_stream,
    paths_of,
    read_entry,
    size_of,
)
from cntkio.formats.input_file import all_bytes
from cntkio.formats.mlf.entries import FRAME_PERIOD, TIMES, Times
from cntkio.streams import LARGEST_DIM, StreamDefs

_LARGEST_DIM_OF_CNTK = 65535


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelSettings:
    """Settings of one stream of labels.

    Attributes:
        name: The stream.
        paths: Its label files.
        dim: Number of classes.
        is_text: Whether the files are text, or else binary.
        mapping_file: File with the names of the classes; None: the fourth column is the class.
        target_file: File with the vector that is delivered for each class; None: one-hot vectors, or class ids.
        target_dim: Values of these vectors; None: as many as on the file's first line.
        as_class_ids: Whether to deliver the class of each frame instead of a vector.
        marks_starts: Whether the first frame of each row has the value 2 instead of 1.
        defines_mb_size: Whether minibatch sizes count this stream's samples.
        times: Unit of the first two columns.
        frame_period: Duration of a frame in units of 100 ns.
        unequal_lengths: Treatment of an utterance that is not as long as its features.
        cache_index: Whether to keep the entries in an index cache.
        compatible: Whether to read exactly as CNTK 2.7 does.
        strict: Whether warnings are errors.
        dtype: Type of the delivered values, except for class ids.
    """

    name: str
    paths: tuple[str, ...]
    dim: int
    is_text: bool = False
    mapping_file: str | os.PathLike[str] | None
    target_file: str | os.PathLike[str] | None
    target_dim: int | None
    as_class_ids: bool
    marks_starts: bool
    defines_mb_size: bool
    times: Times = "auto"
    frame_period: float = FRAME_PERIOD
    unequal_lengths: Unequal
    cache_index: bool
    compatible: bool
    strict: bool
    dtype: np.dtype[Any]

    def __post_init__(self) -> None:
        """Refuse options that are impossible or contradict each other."""
        if self.times not in TIMES:
            raise ConfigError(f"times is {self.times!r}; expected '100ns', 'frames' or 'auto'", key="times")
        if not self.frame_period > 0:
            raise ConfigError(f"frame_period is {self.frame_period}; expected more than 0", key="frame_period")
        if self.target_dim is not None and not self.target_file:
            raise ConfigError(
                f"targetDim={self.target_dim} is possible only with a labelToTargetMappingFile", key="targetDim"
            )
        dim: Any = self.target_dim
        is_whole = isinstance(dim, int | np.integer) and not isinstance(dim, bool)
        if dim is not None and not (is_whole and 1 <= dim <= LARGEST_DIM):
            raise ConfigError(f"targetDim is {dim!r}; expected 1 to {LARGEST_DIM} values", key="targetDim")
        are_set = {
            "as_class_ids": self.as_class_ids,
            "phoneBoundaries": self.marks_starts,
            "labelToTargetMappingFile": self.target_file,
        }
        chosen = [name for name, is_set in are_set.items() if is_set]
        if len(chosen) > 1:
            key = "labelToTargetMappingFile" if self.target_file else "as_class_ids"
            raise ConfigError(f"{chosen[0]} and {chosen[1]} exclude each other", key=key)


class LabelOptions(Protocol):
    """Options that the deserializers of text and of binary label files have in common."""

    streams: StreamDefs
    as_class_ids: bool
    unequal_lengths: Unequal | None
    compatible: bool
    strict: bool
    stream_options: Mapping[str, Mapping[str, Any]]
    defines_mb_size: bool
    dtype: npt.DTypeLike


def settings_of(options: LabelOptions, arguments: Mapping[str, Any]) -> LabelSettings:
    """Return the settings of a deserializer's only stream.

    Args:
        options: The deserializer.
        arguments: The arguments that `stream_options` may replace.

    Raises:
        ConfigError: An option is not possible, or contradicts another.
        OSError: A list of label files cannot be read.
    """
    deserializer, streams, compatible = type(options).__name__, options.streams, options.compatible
    if len(streams) != 1:
        raise ConfigError(f"{deserializer} only accepts a single stream; it has {len(streams)}", key="streams")
    ((name, stream),) = streams.items()
    merged = merge_stream(name, {**stream, **arguments}, options.stream_options, LABEL_STREAM)
    paths = (*paths_of(merged.get("mlf") or ()), *_listed_paths(merged.get("mlf_list") or ()))
    if not paths:
        raise ConfigError("no master label files specified: StreamDef(mlf=...) is missing", key=name)
    if longest_of(name, merged, compatible=compatible) is not None:
        raise ConfigError(
            "set max_sequence_length on the feature deserializer; labels have no limit of their own", key=name
        )
    return LabelSettings(
        name=name,
        paths=paths,
        dim=size_of(name, merged.get("dim"), _LARGEST_DIM_OF_CNTK if compatible else LARGEST_DIM, "classes"),
        mapping_file=merged.get("label_mapping_file"),
        target_file=merged.get("target_file"),
        target_dim=merged.get("target_dim"),
        as_class_ids=options.as_class_ids,
        marks_starts=read_entry(name, merged, "phone_boundaries", truth, False),
        defines_mb_size=options.defines_mb_size or read_entry(name, merged, "defines_mb_size", truth, False),
        cache_index=read_entry(name, merged, "cache_index", truth, False),
        unequal_lengths=options.unequal_lengths or ("keep" if compatible else "error"),
        compatible=compatible,
        strict=options.strict,
        dtype=float_type("dtype", options.dtype),
    )


def _listed_paths(lists: Any) -> tuple[str, ...]:
    """Return the label files that a file names, one on each line, or that a sequence contains."""
    if not isinstance(lists, str):
        return tuple(lists)
    lines = map(str.strip, os.fsdecode(all_bytes(lists)).split("\n"))
    return tuple(filter(None, lines))

"""Options of the deserializers of HTK's formats, in Python's spelling and in CNTK's. (docs/formats/htk.md)

Options come from three sources: the deserializer's arguments, the stream's `StreamDef`, and `stream_options`, which
have the keys of CNTK's configurations. Here they become settings: each has a single value of a single type.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from cntkio.arguments import check_fields, check_word, float_type, folded, is_whole, path_texts
from cntkio.errors import ConfigError
from cntkio.formats.cntk_options import CntkOptions, truth, whole_value
from cntkio.formats.contract import Deserializer
from cntkio.storage.names import located
from cntkio.storage.remote import Remote
from cntkio.streams import DEFAULT_MAX_SEQUENCE_LENGTH, LARGEST_DIM, StreamDefs, num_values

Unequal = Literal["error", "drop", "keep"]


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class UtteranceOptions(Deserializer, CntkOptions):
    """Options that the deserializers of features and of labels have in common, besides their `streams`.

    Attributes:
        unequal_lengths: Treatment of an utterance that is not as long as in the first corpus of the source.
        stream_options: Further options of each stream, by CNTK's names.
        defines_mb_size: Whether minibatch sizes count the samples of the deserializer's stream.
        remote: How remote stores are read.
    """

    unequal_lengths: Unequal | None = None
    compatible: bool = False
    strict: bool = False
    stream_options: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    defines_mb_size: bool = False
    dtype: npt.DTypeLike = np.float32
    remote: Remote | None = None
    has_text_keys = True

    def check_common(self, streams: StreamDefs) -> StreamDefs:
        """Check the types of all fields and the values of the common options; return the streams as a record."""
        check_fields(self)
        self.dtype = float_type("dtype", self.dtype)
        located("remote", [], self.remote)  # refuses options of another type
        checked = StreamDefs(streams)
        for name, stream in checked.items():
            if stream.stream_alias:  # HTK's files have no names of streams
                what = f"{self.label} does not support stream names: stream {name!r} has a field; expected "
                raise ConfigError(f"{what}StreamDef(scp=...) for features and StreamDef(mlf=...) for labels", key=name)
        if self.unequal_lengths is not None:
            check_word("unequal_lengths", self.unequal_lengths, *get_args(Unequal))
        return checked

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle, also of version 0.1.0, where `defines_mb_size` was a private attribute."""
        self.__dict__.update(state)
        if self.__dict__.pop("_defines_mb_size", False):
            self.defines_mb_size = True


def merge_stream(
    name: str, stream: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]], keys: Mapping[str, str | None]
) -> dict[str, Any]:
    """Return a stream's record, a `StreamDef`, into which its options by CNTK's keys are merged.

    Args:
        options: Options of each stream by CNTK's keys; the value None removes an entry of the record.
        keys: CNTK's keys, and the entries that they set; None: the key has no effect.
    """
    entries = {folded(key): entry for key, entry in keys.items()}
    merged: dict[Any, Any] = dict(stream)
    for key, value in options.get(name, {}).items():
        # CNTK does not distinguish upper and lower case in keys.
        if folded(key) not in entries:
            known = ", ".join(sorted(keys))
            raise ConfigError(f"stream {name!r}: key {key!r} is unknown; known are {known}", key=key)
        merged[entries[folded(key)]] = value
    # Keys without effect are under None; the value None removes an entry.
    return {entry: value for entry, value in merged.items() if entry is not None and value is not None}


def entry_of(
    name: str, stream: Mapping[str, Any], entry: str, read: Callable[[Any], Any] = truth, default: Any = False
) -> Any:
    """Return an entry of a stream's record, read as CNTK reads it, or a default if it is missing or None."""
    value = stream.get(entry)
    try:
        return default if value is None else read(value)
    except ValueError as error:
        raise ConfigError(f"stream {name!r}: {entry} is {value!r}; {error}", key=name) from None


def longest_of(name: str, stream: Mapping[str, Any], *, compatible: bool) -> int | None:
    """Return a stream's own limit for the length of utterances; None: it has none, or CNTK 2.7 ignores it."""
    longest: int | None = entry_of(name, stream, "max_sequence_length", whole_value, None)
    # CNTK ignores the limit of a `StreamDef`, so the default must not become a limit.
    return None if compatible or longest == DEFAULT_MAX_SEQUENCE_LENGTH else longest


def size_of(name: str, shape: Any, largest: int, what: str) -> int:
    """Return the number of values of a shape; a shape without values, or with too many, is a `ConfigError`."""
    if shape is None:
        raise ConfigError(f"stream {name!r} has no shape; expected shape=NUMBER, the number of {what}", key=name)
    # The product of an empty shape would be 1.
    total = num_values(shape) if np.size(shape) else 0
    if not 1 <= total <= largest:
        raise ConfigError(f"stream {name!r}: shape {shape!r}; expected 1 to {largest} {what}", key=name)
    return total


def paths_of(paths: Any, name: str = "path") -> tuple[str, ...]:
    """Return one path, or several, as texts; anything else is a `ConfigError` about the option with this name."""
    is_several = isinstance(paths, Iterable) and not isinstance(paths, str | bytes | os.PathLike)
    texts = path_texts(name, [*paths] if is_several else paths)
    return (texts,) if isinstance(texts, str) else tuple(texts)


def window_of(context: Any) -> tuple[int, int]:
    """Return the numbers of frames to the left and to the right, from a pair, an odd total, or a text with either.

    Example:
        >>> window_of((1, 2)), window_of(5), window_of("1:2")
        ((1, 2), (2, 2), (1, 2))
    """
    parts = context.split(":") if isinstance(context, str) else context
    counts: list[int] = []
    # Whatever is wrong with the context, the error at the end says what is expected.
    with contextlib.suppress(TypeError, ValueError):
        listed = [parts] if is_whole(parts) else [*parts]
        # `int` also takes True, and cuts fractions.
        if all(is_whole(part) or isinstance(part, str) for part in listed):
            counts = [*map(int, listed)]
    if len(counts) == 1 and counts[0] % 2:
        counts = [counts[0] // 2] * 2
    if len(counts) == 2 and min(counts) >= 0:
        return counts[0], counts[1]
    what = f"context is {context!r}; expected (left, right), or one odd total number of frames"
    raise ConfigError(what, key="context")


def size_of_window(frame_dim: int, context: tuple[int, int]) -> int:
    """Return the number of values of a frame with its context; too many for a sample are a `ConfigError`."""
    size = frame_dim * (1 + sum(context))
    if size > LARGEST_DIM:
        what = f"which makes samples of {size} values from frames of {frame_dim}; expected at most {LARGEST_DIM}"
        raise ConfigError(f"context is {context}, {what} values", key="context")
    return size


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureSettings:
    """Settings of one stream of features.

    Attributes:
        dim: Values of a frame, or of a window of frames.
        context: Frames to the left and to the right; both 0: `dim` determines the window.
        prefix: Text put before each path of the lists.
        is_broadcast: Whether the only frame of an utterance stands for all frames of its partner.
        max_sequence_length: Longer utterances are left out; None: no utterance is too long.
        memory_map: Whether to map long runs of frames instead of copying them.
        options: Options that all streams have in common.
    """

    name: str
    lists: tuple[str, ...]
    dim: int
    context: tuple[int, int]
    prefix: str
    is_broadcast: bool
    defines_mb_size: bool
    max_sequence_length: int | None
    memory_map: bool
    options: UtteranceOptions

"""Windows, which say how far sequences are shuffled, and limits, which say where the data end, of both timelines.

The defaults are those of CNTK's readers. (docs/timeline.md, "Default windows")
"""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

from cntkio.arguments import check_word
from cntkio.errors import ConfigError

DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS = 128
"""Window of the Python interface, whatever the size of a chunk."""

_WHOLE_DATA_IN_SAMPLES = 2**62 - 1
# CNTK's readers divide this by the size of a chunk.
_DEFAULT_WINDOW_IN_BYTES = 2**32
_DEFAULT_CHUNK_SIZE_IN_BYTES = 2**25


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """The distance that a sequence may move from its chunk.

    Attributes:
        size: At least 1; 0 is taken as 1.
        unit: Unit of `size`. A window ends at the end of a chunk even if samples are counted.
        order: Order in the window: CNTK's, or that of a key. (docs/timeline.md, "Keyed order")

    Raises:
        ConfigError: `size` is negative, or `unit` is neither of the two.

    Example:
        >>> Window(0, "chunks")
        Window(size=1, unit='chunks')
    """

    size: int
    unit: Literal["chunks", "samples"]
    order: Literal["cntk", "keyed"] = dataclasses.field(default="cntk", repr=False)

    def __post_init__(self) -> None:
        if self.size < 0 or self.unit not in ("chunks", "samples"):
            raise ConfigError(f"a randomization window is a number of chunks or samples, not {self.size} {self.unit}")
        # Chunks of more than 2^32 bytes lead to a default of 0 chunks, which CNTK takes as 1.
        object.__setattr__(self, "size", max(self.size, 1))


WHOLE_DATA = Window(_WHOLE_DATA_IN_SAMPLES, "samples")
"""The window over all data, with the size that CNTK uses."""


def python_window(
    in_chunks: int = DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS,
    in_samples: int = 0,
    *,
    randomize: bool = True,
    order: Literal["cntk", "keyed"] = "cntk",
) -> Window | None:
    """Return the window of the Python interface; None: no randomization.

    Raises:
        ConfigError: Both sizes are above 0, or a keyed order has no window.

    Example:
        >>> python_window()
        Window(size=128, unit='chunks')
        >>> python_window(0, 1000)
        Window(size=1000, unit='samples')
        >>> python_window(0, 0) is None
        True
    """
    check_word("order", order, "cntk", "keyed")
    if not randomize or not (in_chunks or in_samples):
        if order == "keyed":
            raise ConfigError("order='keyed' needs a window, but the source reads in order", key="order")
        return None
    if in_chunks and in_samples:
        both = f"randomization_window_in_chunks={in_chunks} and randomization_window_in_samples={in_samples}"
        why = "a window in samples needs randomization_window_in_chunks=0 as well"
        raise ConfigError(f"{both} exclude each other: {why}", key="randomization_window_in_samples")
    return Window(in_chunks, "chunks", order) if in_chunks else Window(in_samples, "samples", order)


def composite_window(
    size: int | None = None,
    *,
    is_sample_based: bool | None = None,
    chunk_size_in_bytes: int = _DEFAULT_CHUNK_SIZE_IN_BYTES,
    has_text_format: bool = True,
) -> Window | None:
    """Return the window of a configured reader with a list of deserializers; None: no randomization.

    Args:
        size: ``randomizationWindow``, if the configuration has it; 0: no randomization.
        is_sample_based: ``sampleBasedRandomizationWindow``, if the configuration has it.
        chunk_size_in_bytes: ``chunkSizeInBytes`` of the reader's own section, not of a deserializer's.
        has_text_format: Whether a CTF deserializer is in the list.

    Raises:
        ConfigError: The window is in samples, but its size is missing.

    Example:
        >>> composite_window()
        Window(size=128, unit='chunks')
        >>> composite_window(500)
        Window(size=500, unit='samples')
    """
    if size == 0:
        return None
    if size is not None:
        # This reader counts samples unless told otherwise; the classic text and binary readers count chunks.
        return Window(size, "chunks" if is_sample_based is False else "samples")
    if is_sample_based:
        message = "sampleBasedRandomizationWindow = true also needs a randomizationWindow"
        raise ConfigError(message, key="randomizationWindow")
    return Window(_DEFAULT_WINDOW_IN_BYTES // chunk_size_in_bytes, "chunks") if has_text_format else WHOLE_DATA


def classic_text_window(
    size: int | None = None, *, is_sample_based: bool = False, chunk_size_in_bytes: int = _DEFAULT_CHUNK_SIZE_IN_BYTES
) -> Window | None:
    """Return the window of ``readerType = "CNTKTextFormatReader"``; None: no randomization.

    Example:
        >>> classic_text_window(chunk_size_in_bytes=2**31)
        Window(size=2, unit='chunks')
        >>> classic_text_window(is_sample_based=True) == WHOLE_DATA
        True
    """
    if size == 0:
        return None
    if size is not None:
        return Window(size, "samples" if is_sample_based else "chunks")
    if is_sample_based:
        return WHOLE_DATA
    # In this reader, a default of 0 chunks turns randomization off.
    num_chunks = _DEFAULT_WINDOW_IN_BYTES // chunk_size_in_bytes
    return Window(num_chunks, "chunks") if num_chunks else None


def classic_binary_window(size: int | None = None, *, is_sample_based: bool = False) -> Window | None:
    """Return the window of ``readerType = "CNTKBinaryReader"``; None: no randomization.

    Example:
        >>> classic_binary_window()
        Window(size=128, unit='chunks')
    """
    if size is None and not is_sample_based:
        return Window(DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS, "chunks")
    return classic_text_window(size, is_sample_based=is_sample_based)


def classic_htk_window(randomize: int | Literal["auto", "none"] = "auto") -> Window | None:
    """Return the window of the classic HTK reader with this ``randomize``; None: no randomization.

    Example:
        >>> classic_htk_window() == WHOLE_DATA, classic_htk_window("none"), classic_htk_window(300)
        (True, None, Window(size=300, unit='samples'))
    """
    if randomize == "none":
        return None
    return WHOLE_DATA if randomize == "auto" else Window(randomize, "samples")


INFINITELY_REPEAT = 2**64 - 1
"""As `max_samples` or `max_sweeps`: no limit."""
FULL_DATA_SWEEP = 2**64 - 2
"""As `max_samples`: one sweep."""
LARGEST_WORD = 2**64 - 1
"""Largest unsigned 64-bit number."""

_LARGEST_TRUNCATION_LENGTH = 2**32 - 1


class Limits(NamedTuple):
    """End of the data: the position at which no further sequence begins, or the number of sweeps, or none of both."""

    max_samples: int | None = None
    max_sweeps: int | None = None


def checked_limits(seed: int, max_samples: int | None, max_sweeps: int | None, truncation_length: int) -> Limits:
    """Check the numbers that both timelines take, and return the limits, of which at most one may be given."""
    max_samples, max_sweeps = (None if limit == INFINITELY_REPEAT else limit for limit in (max_samples, max_sweeps))
    numbers = {"seed": seed, "max_samples": max_samples, "max_sweeps": max_sweeps}
    for name, value in {**numbers, "truncation_length": truncation_length}.items():
        largest = _LARGEST_TRUNCATION_LENGTH if name == "truncation_length" else LARGEST_WORD
        if value is not None and not 0 <= value <= largest:
            raise ConfigError(f"{name} is {value}; expected 0 to {largest}", key=name)
    if max_samples is not None and max_sweeps is not None:
        message = f"max_samples={max_samples} and max_sweeps={max_sweeps} exclude each other"
        raise ConfigError(message, key="max_samples")
    return Limits(None, 1) if max_samples == FULL_DATA_SWEEP else Limits(max_samples, max_sweeps)

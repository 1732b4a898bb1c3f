"""Options of both timelines, and the checks of the arguments of a read."""

from __future__ import annotations

from typing import NamedTuple

from cntkio.errors import ConfigError
from cntkio.timeline.partition import Partition

INFINITELY_REPEAT = 2**64 - 1
"""As `max_samples` or `max_sweeps`: no limit."""
FULL_DATA_SWEEP = 2**64 - 2
"""As `max_samples`: one sweep."""
LARGEST_WORD = 2**64 - 1
"""Largest unsigned 64-bit number."""

_LARGEST_TRUNCATION_LENGTH = 2**32 - 1


class Limits(NamedTuple):
    """End of the data; at most one of the two is not None.

    Attributes:
        max_samples: Position at which no further sequence begins.
        max_sweeps: Number of sweeps.
    """

    max_samples: int | None = None
    max_sweeps: int | None = None


def checked_limits(*, seed: int, max_samples: int | None, max_sweeps: int | None, truncation_length: int) -> Limits:
    """Check the numbers that both timelines take, and return the limits.

    Raises:
        ConfigError: A number is out of range, or both limits are given.
    """
    if max_samples == INFINITELY_REPEAT:
        max_samples = None
    if max_sweeps == INFINITELY_REPEAT:
        max_sweeps = None
    for name, value, largest in (
        ("seed", seed, LARGEST_WORD),
        ("max_samples", max_samples, LARGEST_WORD),
        ("max_sweeps", max_sweeps, LARGEST_WORD),
        ("truncation_length", truncation_length, _LARGEST_TRUNCATION_LENGTH),
    ):
        if value is not None and not 0 <= value <= largest:
            raise ConfigError(f"{name} is {value}; expected 0 to {largest}", key=name)
    if max_samples is not None and max_sweeps is not None:
        raise ConfigError(
            f"max_samples={max_samples} and max_sweeps={max_sweeps} exclude each other", key="max_samples"
        )
    return Limits(None, 1) if max_samples == FULL_DATA_SWEEP else Limits(max_samples, max_sweeps)


def check_request(size: int, limits: Limits) -> None:
    """Refuse a minibatch size of 0, and a source that may not deliver anything.

    Raises:
        ConfigError: The size or the limit is 0.
    """
    if size < 1:
        raise ConfigError(f"minibatch_size_in_samples is {size}; expected at least 1", key="minibatch_size_in_samples")
    if limits.max_samples == 0:
        raise ConfigError("max_samples is 0; expected at least 1", key="max_samples")


def num_slots(size: int, partition: Partition, truncation_length: int) -> int:
    """Return the number of slots that a timeline fills for a partition in truncated minibatches.

    Raises:
        ConfigError: There are more partitions than slots.
    """
    of_all = max(1, size // truncation_length)
    if partition.count > of_all:
        raise ConfigError(
            f"{partition.count} partitions share {of_all} slots (minibatch_size_in_samples={size}, "
            f"truncation_length={truncation_length}): increase the minibatch size or decrease the number of partitions",
            key="num_data_partitions",
        )
    return partition.of_reads.share(of_all)

"""The arguments that both kinds of mixtures have: parts with equal streams, and their weights as turns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cntkio.arguments import check_word
from cntkio.errors import ConfigError
from cntkio.streams import StreamInformation
from cntkio.timeline.mixed import NUM_TURNS

_LARGEST_WEIGHT = 1e300


def checked_counts(parts: Mapping[str, tuple[object, float]], stop: str) -> dict[str, int]:
    """Check the arguments of a mixture, and return how many of 1,000 turns each part has.

    Raises:
        ConfigError: `parts` or `stop` is invalid, or a weight is not possible.
    """
    check_word("stop", stop, "first", "all", "forever")
    if not isinstance(parts, Mapping) or not all(isinstance(part, tuple) and len(part) == 2 for part in parts.values()):
        raise ConfigError("parts are not {name: (source, weight)}", key="parts")
    if not parts:
        raise ConfigError("a mixture has no parts; expected a name for each source and its weight", key="parts")
    return _counts({name: weight for name, (_, weight) in parts.items()})


def counts_of(weights: Mapping[str, Any], names: Sequence[str]) -> dict[str, int]:
    """Return how many of 1,000 turns each part has from now on.

    Raises:
        ConfigError: A part has no weight, there is no such part, or a weight is not possible.
    """
    if set(weights) != set(names):
        raise ConfigError(
            f"weights are for {sorted(weights)}; expected a weight for each of {sorted(names)}", key="weights"
        )
    return _counts({name: weights[name] for name in names})


def _counts(weights: Mapping[str, Any]) -> dict[str, int]:
    """Return how many of 1,000 turns each part has: the parts with the largest remainders are rounded up."""
    for name, weight in weights.items():
        is_number = isinstance(weight, int | float | np.integer | np.floating) and not isinstance(weight, bool)
        if not is_number or not 0 < weight < _LARGEST_WEIGHT:
            raise ConfigError(
                f"the weight of {name!r} is {weight!r}; expected a number above 0, below 1e300", key="weights"
            )
    total = math.fsum(weights.values())
    exact = {name: NUM_TURNS * weight / total for name, weight in weights.items()}
    counts = {name: math.floor(share) for name, share in exact.items()}
    by_remainder = sorted(weights, key=lambda name: counts[name] - exact[name])
    for name in by_remainder[: NUM_TURNS - sum(counts.values())]:
        counts[name] += 1
    for name, count in counts.items():
        if not count:
            raise ConfigError(
                f"the weight of {name!r} is {weights[name]!r}, less than a thousandth of all weights", key="weights"
            )
    return counts


def require_same_streams(
    first: str, of_first: Sequence[StreamInformation], name: str, streams: Sequence[StreamInformation]
) -> None:
    """Refuse a part whose streams differ from the streams of the first part.

    Raises:
        ConfigError: The streams differ.
    """
    if streams != of_first:
        texts = [", ".join(f"{info.name}: {info.form}" for info in infos) for infos in (of_first, streams)]
        raise ConfigError(
            f"the parts of a mixture have the same streams, but {first!r} has {texts[0]}, and {name!r} has {texts[1]}",
            key="parts",
        )

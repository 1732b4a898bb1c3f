"""The order of frames in the old reader's ``readMethod = rollingWindow``. (docs/formats/htk.md, "The HTKMLFReader")"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio.errors import ConfigError


def rolling_order(
    num_frames: int, randomize: int | Literal["auto", "none"] = "auto", seed: int = 0
) -> npt.NDArray[np.uint32]:
    """Return the order of a sweep: which frame comes at each position.

    The order is a pure function of the arguments. A frame moves by at most half of the window.

    Args:
        num_frames: Frames of a sweep, in the order of the list.
        randomize: The window in frames; ``"auto"``: all of them; ``"none"``, 0 and 1: in order.
        seed: Sweep k of a reader uses ``seed + k``.

    Returns:
        A permutation of ``0 .. num_frames - 1``, uint32.

    Raises:
        ConfigError: The window, or the number of frames, is not possible.

    Example:
        >>> rolling_order(8, randomize="none").tolist()
        [0, 1, 2, 3, 4, 5, 6, 7]
        >>> rolling_order(8, randomize=4).tolist() == rolling_order(8, randomize=4).tolist()
        True
    """
    window = {"auto": 2**64 - 1, "none": 0}.get(randomize, randomize) if isinstance(randomize, str) else randomize
    if isinstance(window, str) or not 0 <= window < 2**64:
        raise ConfigError(f"randomize is {randomize!r}; expected 'auto', 'none' or a number of frames", key="randomize")
    if not 0 <= num_frames < 2**32:
        raise ConfigError(f"{num_frames} frames; expected fewer than 2^32", key="num_frames")
    return _core.rolling_order(num_frames, window, seed % 2**64)

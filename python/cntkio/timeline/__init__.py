"""The order of sequences: which of them each read delivers, as in CNTK 2.7. (docs/timeline.md)

::

    position  0 ············· N ············ 2N ············ 3N ···     N: samples in a sweep
    sweep     |      0        |      1        |      2        |         each in its own order: seed + sweep
    reads     |--|--|--|--|--|--|--|--|--|                              whole sequences, across the ends of sweeps

Invariant: the result of a read depends on the table of lengths, the settings and the position alone. It does not depend
on how far the order was computed before, on threads, or on other reads.

`Timeline` is the main timeline, `UserTimeline` the order of user-defined deserializers, `MixedTimeline` the order of a
mixture of sequences. The stages of a source know only the protocol `SequenceOrder`. `Timeline` documents the other
methods that all three have: epochs, checkpoints, states. A timeline does not load chunks, pack, or read ahead: it says
which chunks it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from cntkio.timeline.budget import Budget, Size
from cntkio.timeline.partition import WHOLE, BalancedPartition, GlobalPartition, Partition, checked_partition
from cntkio.timeline.selection import (
    Bookmark,
    Bookmarks,
    ChunkPart,
    ChunkRefs,
    Parts,
    PartsOfChunks,
    Plan,
    Reads,
    Selection,
    SequenceOrder,
)
from cntkio.timeline.timeline import Timeline
from cntkio.timeline.window import (
    DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS,
    FULL_DATA_SWEEP,
    INFINITELY_REPEAT,
    WHOLE_DATA,
    Window,
    classic_binary_window,
    classic_htk_window,
    classic_text_window,
    composite_window,
    python_window,
)

if TYPE_CHECKING:
    from cntkio.timeline.mixed import MixedTimeline
    from cntkio.timeline.user_timeline import UserTimeline

AnyTimeline: TypeAlias = "Timeline | UserTimeline | MixedTimeline"
"""A timeline of any kind."""

__all__ = [
    "DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS", "FULL_DATA_SWEEP", "INFINITELY_REPEAT", "WHOLE", "WHOLE_DATA",
    "AnyTimeline", "BalancedPartition", "Bookmark", "Bookmarks", "Budget", "ChunkPart", "ChunkRefs", "GlobalPartition",
    "Partition", "Parts", "PartsOfChunks", "Plan", "Reads", "Selection", "SequenceOrder", "Size",
    "Timeline", "Window",
    "checked_partition", "classic_binary_window", "classic_htk_window", "classic_text_window", "composite_window",
    "python_window",
]  # fmt: skip

"""The core never panics: numbers that belong to no table, deal or minibatch are a `ValueError`."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cntkio import _core

EQUAL, MIXED = np.array([2, 2, 2], np.uint32), np.array([3, 1, 2], np.uint32)
STARTS = np.array([0, 2, 3])


def made(**values: Any) -> Any:
    """Return an object with attributes, as the core reads them."""
    return SimpleNamespace(**values)


def share(index: int, count: int) -> Any:
    return made(index=index, count=count)


WINDOW = made(size=2, unit="chunks", order="shuffled")


def budget(rows: int = 0, **changed: Any) -> _core.Budget:
    limits = {
        "samples": 4,
        "sequences": 2,
        "padded": 9,
        "quadratic": 0,
        "longest": 99,
        "drops": False,
        "only_full": False,
    }
    pool = {"size": 9, "counts_sequences": False, "rows": rows, "row_length": 4, "buckets": [], "balance": None}
    return _core.Budget(made(**limits | changed), made(**pool, carries=False), None)


def reader(window: Any = None, lengths: Any = MIXED, starts: Any = STARTS) -> _core.TimelineReader:
    return _core.TimelineReader(lengths, starts, window=window, seed=0, end=100)


def rules(**changed: Any) -> Any:
    kept = {"share": 2, "passed": 2**64 - 1, "crosses_sweeps": True, "counts_sequences": False, "is_global": False}
    kept |= {"is_dealt": False, "partition": share(0, 1), "budget": None, "num_steps": 2, "right_splice": 0}
    return made(**kept | changed)


def dealt(sequences: Any = (0, 1, 2), chunks: Any = (0, 0, 1), partition: Any = None, **changed: Any) -> None:
    all_of = made(sequences=np.array(sequences), chunks=np.array(chunks), loads=changed.get("loads", MIXED))
    shares = _core.Shares(changed.get("num_samples", 6), changed.get("starts", STARTS))
    bounds, ends = changed.get("bounds", [0, 3]), changed.get("ends", [6])
    shares.deal(all_of, bounds, ends, partition or share(0, 1), False)


WRONG: dict[str, Callable[[], Any]] = {
    "deal of equal lengths without ranks": lambda: _core.deal(EQUAL, [0, 3], 0, 0, False, None),
    "deal without ranks": lambda: _core.deal(MIXED, [0, 3], 0, 0, True, None),
    "deal of rows without ranks": lambda: _core.deal(MIXED, [0, 3], 0, 0, False, budget(2)),
    "deal to a rank beyond all": lambda: _core.deal(MIXED, [0, 3], 2, 2, False, None),
    "deal with bounds that fall": lambda: _core.deal(MIXED, [0, 2, 1, 3], 2, 0, False, None),
    "deal without bounds": lambda: _core.deal(MIXED, [], 2, 0, False, None),
    "steps of no lanes": lambda: _core.steps_of_lanes(MIXED, [0, 3], [], 2, 0),
    "no steps": lambda: _core.steps_of_lanes(MIXED, [0, 3], [0], 0, 0),
    "shares of no samples": lambda: dealt(num_samples=0),
    "shares of no chunks": lambda: dealt(starts=STARTS[:1]),
    "shares of more chunks than samples": lambda: dealt(num_samples=1),
    "shares with a chunk beyond all": lambda: dealt(chunks=(0, 0, 9)),
    "shares with a negative chunk": lambda: dealt(chunks=(0, -1, 1)),
    "shares with a sequence of another chunk": lambda: dealt(sequences=(0, 2, 2)),
    "shares with a sequence beyond all": lambda: dealt(sequences=(0, 1, 2**40)),
    "shares without ranks": lambda: dealt(partition=share(0, 0)),
    "shares with the number of a part above all": lambda: dealt(ends=[2**64 - 1], num_samples=2),
    "shares without an end": lambda: dealt(ends=[]),
    "shares with too few loads": lambda: dealt(loads=MIXED[:2]),
    "table without samples": lambda: reader(lengths=np.zeros(3, np.uint32)),
    "table of chunks that fall": lambda: reader(starts=np.array([0, 2, 1, 3])),
    "partition without shares": lambda: reader(WINDOW).read_several(rules(partition=share(0, 0)), 1),
    "partition beyond all": lambda: reader().pass_reads(rules(partition=share(3, 3)), 1, 9),
    "change to no partition": lambda: reader().change_partition(0, 0, 1),
    "chunks of no partition": lambda: reader(WINDOW).chunks_from(0, 0, 1, 0, 0),
    "chunks at ranks beyond all": lambda: reader(WINDOW).chunks_at(0, 0, 2, 0, 1),
    "chunks at ranks that fall": lambda: reader().chunks_at(0, 1, 0, 0, 1),
    "no truncated steps": lambda: reader().read_truncated(rules(num_steps=0)),
    "splice of all truncated steps": lambda: reader().pass_truncated(rules(right_splice=2), 1),
    "slot of a sequence beyond all": lambda: reader().restore_pending([[(3, 0, False)]]),
    "slot of a sequence that has ended": lambda: reader().restore_pending([[(1, 1, False)]]),
    "cursor of another chunk": lambda: reader().rewind(_core.Cursor(0, index=2, rank=0)),
    "cursor of a chunk beyond all": lambda: reader().hold(_core.Cursor(0, rank=2)),
    "cursor beyond all sequences": lambda: reader(WINDOW).rewind(_core.Cursor(0, index=4)),
    "minibatches that fall": lambda: _core.PackRequest([], EQUAL, EQUAL, [], [3, 1]),
    "schedule without points": lambda: _core.scheduled(
        made(points=[], values=[], between="steps"), np.zeros(1, np.uint64)
    ),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_numbers_that_belong_to_nothing_are_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError):
        call()

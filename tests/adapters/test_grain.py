"""`Sequences` as a data source of Grain."""

from pathlib import Path
from typing import Any

import pytest
from cntkio import CTFDeserializer, Sequences, StreamDef, StreamDefs

grain = pytest.importorskip("grain", reason="Grain is not installed")
NUM_SEQUENCES = 50


def keys_of(batches: Any) -> list[int]:
    return [int(key) for batch in batches for key in batch["x"][:, 0, 0]]


def test_grain_shuffles_batches_and_continues(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_text("".join(f"{key} |x {key} 2\n" for key in range(NUM_SEQUENCES)))
    sequences = Sequences(CTFDeserializer(tmp_path / "a.ctf", StreamDefs(x=StreamDef(field="x", shape=2))))
    assert isinstance(sequences, grain.sources.RandomAccessDataSource)
    batches = grain.MapDataset.source(sequences).shuffle(seed=1).batch(8)
    assert sorted(keys_of(batches)) == [*range(NUM_SEQUENCES)] != keys_of(batches)
    whole = keys_of(batches.to_iter_dataset())
    iterator = iter(batches.to_iter_dataset())
    begun = keys_of([next(iterator), next(iterator)])
    state = iterator.get_state()
    again = iter(batches.to_iter_dataset())
    again.set_state(state)
    assert begun + keys_of(again) == whole

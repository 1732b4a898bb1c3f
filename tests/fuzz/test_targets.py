"""The fuzz targets pass their seeds, the fixed findings, and short random bytes."""

import random
from pathlib import Path

import pytest

from fuzz import run, seeds
from fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_passes_its_seeds_and_fixed_findings(name: str, tmp_path: Path) -> None:
    target = TARGETS[name](tmp_path)
    inputs = [*seeds.python(name), *seeds.found(name)]
    assert inputs
    for data in inputs:
        target(data)
    chance = random.Random(1)
    for _ in range(30):
        target(run.changed(chance, bytearray(chance.choice(inputs)), inputs))


@pytest.mark.parametrize("name", seeds.RUST)
def test_every_rust_target_has_seeds_from_recorded_cases(name: str) -> None:
    assert len(list(seeds.rust(name))) >= 3

"""The soak test runs, finds no difference in a short run, and would find growing resources."""

import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.soak import ALLOWED, Standing, growth, is_flat

FIRST = Standing(descriptors=6, threads=5, objects=50_000, allocated=30, resident=40)


def test_a_short_soak_finds_no_difference() -> None:
    script = Path(__file__).with_name("soak.py")
    found = subprocess.run([sys.executable, script, "1", "1"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "rounds" in found.stdout


@pytest.mark.parametrize("name", Standing._fields)
def test_resources_that_every_round_keeps_are_growth(name: str) -> None:
    step = max(getattr(ALLOWED, name) / 10, 0.1)
    standings = [FIRST._replace(**{name: getattr(FIRST, name) + step * number}) for number in range(60)]
    assert not is_flat(growth(standings))


def test_resources_that_vary_between_rounds_are_not_growth() -> None:
    standings = [FIRST._replace(allocated=30 + number * 7 % 5, threads=5 + number % 2) for number in range(60)]
    assert is_flat(growth(standings))
    assert is_flat(growth(standings[:4]))  # too few to tell

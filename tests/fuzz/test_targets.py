"""The fuzz targets pass their seeds, the fixed findings, and short random bytes."""

import random
import tomllib
from pathlib import Path

import pytest
from support import ROOT

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


def test_a_run_continues_after_a_failing_target_and_fails_at_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").mkdir()
    monkeypatch.setattr("sys.argv", ["run.py", "1", str(tmp_path), str(tmp_path), "missing", "config", "absent"])
    assert run.main() == 1
    printed, complaints = capfd.readouterr()
    assert [line.split()[1] for line in printed.splitlines() if line.startswith("fuzzing")] == [
        "missing", "config", "absent"
    ]  # fmt: skip
    assert complaints.splitlines()[-1] == "these targets failed: missing absent"


def test_every_rust_target_is_built() -> None:
    manifest = tomllib.loads((ROOT / "crates" / "fuzz" / "Cargo.toml").read_text(encoding="utf-8"))
    assert {one["name"]: Path(one["path"]).stem for one in manifest["bin"]} == {name: name for name in seeds.RUST}


@pytest.mark.parametrize("name", seeds.RUST)
def test_every_rust_target_has_seeds_from_recorded_cases(name: str) -> None:
    assert len(list(seeds.rust(name))) >= 3

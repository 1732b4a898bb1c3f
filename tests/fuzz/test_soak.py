"""The soak test runs, and finds no difference in a short run."""

import subprocess
import sys
from pathlib import Path


def test_a_short_soak_finds_no_difference() -> None:
    script = Path(__file__).with_name("soak.py")
    found = subprocess.run([sys.executable, script, "3", "1"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "rounds" in found.stdout and "descriptors" in found.stdout

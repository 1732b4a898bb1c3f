"""Code that several tests share: corpora, recorded cases, minibatches as plain data."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"

"""The recorded conformance cases of an area: what a reader was asked, and what CNTK 2.7 gave.

The cases lie packed in `tests/conformance`. Where the folder `shared/conformance` exists beside the repository it is
read instead; it has some cases more (those on others' files).
"""

import atexit
import json
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PACKED = Path(__file__).parent / "conformance"
BESIDE = [folder / "shared" / "conformance" for folder in Path(__file__).resolve().parents[2:]]  # work trees lie deeper
SHARED = next((folder for folder in BESIDE if folder.is_dir()), BESIDE[0])


@dataclass(frozen=True)
class Case:
    """One case. Paths in `spec` are relative to `folder`; `expected` is empty where the spec says what is expected."""

    name: str
    spec: dict[str, Any]
    expected: dict[str, Any]
    folder: Path

    def __str__(self) -> str:
        return self.name


@cache
def unpacked(area: str) -> Path:
    """The packed copy of an area, extracted once per process into a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix=f"cntkio-{area}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with tarfile.open(PACKED / f"{area}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def folder_of(area: str) -> Path:
    """The folder from which the cases of an area are read."""
    return SHARED / area if (SHARED / area).is_dir() else unpacked(area)


@cache
def cases(area: str) -> list[Case]:
    """All cases of an area (ctf, cbf, htk, timeline, config) in the order of their names."""
    folder = folder_of(area)
    found = []
    for file in sorted(folder.glob("*.json")):
        spec = json.loads(file.read_text(encoding="utf-8"))
        if file.name.endswith(".expected.json") or not isinstance(spec, dict):
            continue  # a list is a table of files to refuse, which its own test reads
        result = file.with_suffix(".expected.json")
        expected = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
        found.append(Case(file.stem, spec, expected, folder))
    return found

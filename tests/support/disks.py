"""Disks that are too small, and every function of the package that writes a file."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from cntkio import (
    write_cbf,
    write_ctf,
    write_htk_archive,
    write_htk_features,
    write_label_mapping,
    write_mlf,
)
from cntkio.convert import txt_to_ctf
from cntkio.formats.mlf import write_binary_mlf

NUM_BYTES = 1 << 19
"""Every writer below writes more than this."""

_VALUES = np.random.default_rng(0).random((1 << 15, 8), np.float32)


def _table(kind: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        arrow = pytest.importorskip("cntkio.arrow")
        getattr(arrow, f"write_{kind}")(path, {"x": _VALUES})

    return write


def _tokens(path: Path) -> None:
    folder = path.parent.parent
    (folder / "words").write_text("a\nb\n")
    (folder / "tokens").write_text("a b\n" * (1 << 16))
    txt_to_ctf(folder / "tokens", path, [folder / "words"])


def _labels() -> Iterator[tuple[str, "np.ndarray[tuple[int], np.dtype[np.int64]]"]]:
    for index in range(200):
        yield f"utterance{index}", np.arange(1000) % 2


WRITERS: dict[str, Callable[[Path], None]] = {
    "text": lambda path: write_ctf(path, {"x": _VALUES}),
    "binary": lambda path: write_cbf(path, {"x": _VALUES}, chunk_size_in_bytes=1 << 16),
    "documented binary": lambda path: write_cbf(path, {"x": _VALUES}, chunk_size_in_bytes=1 << 16, layout="documented"),
    "parquet": _table("parquet"),
    "arrow": _table("arrow"),
    "features": lambda path: write_htk_features(path, _VALUES),
    "archive": lambda path: write_htk_archive(path, path.with_name("list.scp"), [("a", _VALUES)]),
    "labels": lambda path: write_mlf(path, _labels(), ["a", "b"]),
    "binary labels": lambda path: write_binary_mlf(path, _labels()),
    "mapping": lambda path: write_label_mapping(path, [f"{index:06}" for index in range(1 << 17)]),
    "tokens": _tokens,
}
"""Functions that write a file, by what they write. A list of features is next to its archive."""


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """Mount a disk of this size; skip the test where mounting is not allowed."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("mounting is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)

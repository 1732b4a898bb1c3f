"""Minibatches do not depend on the kernel: the text format's tests pass with the slower kernels, too."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support import ROOT
from support.rounds import step

# These tests compare deliveries with recorded deliveries of CNTK 2.7, and with the slow reader.
TESTS = ["conformance/test_text.py", "formats/ctf/test_ctf.py", "formats/ctf/test_pages.py"]
# A kernel that shares its loops over blocks with another runs the recorded deliveries only. In `make test` all kernels
# do so, with every third delivery, since tests in Rust compare them on random and on hostile text.
SELECTIONS = {"scalar": TESTS[:: step(3)], "sse41": TESTS[:1], "avx2": TESTS[:: step(3)], "neon": TESTS[:: step(3)]}


def run(kernel: str, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"CNTKIO_KERNEL": kernel}
    return subprocess.run(
        [sys.executable, *command], env=environment, cwd=ROOT / "tests", capture_output=True, text=True
    )


@pytest.mark.parametrize("kernel", SELECTIONS)
def test_every_kernel_reads_text_alike(kernel: str) -> None:
    started = run(kernel, "-c", "import cntkio")
    if f"CNTKIO_KERNEL is {kernel!r}" in started.stderr.replace('"', "'"):
        pytest.skip(f"this processor has no {kernel}")
    assert started.returncode == 0, started.stderr
    tested = run(kernel, "-m", "pytest", "-p", "no:cacheprovider", "--every", str(step(3)), *SELECTIONS[kernel])
    assert tested.returncode == 0, tested.stdout[-4000:]


def test_refuses_unknown_kernels() -> None:
    started = run("abacus", "-c", "import cntkio")
    assert started.returncode != 0
    assert "CNTKIO_KERNEL" in started.stderr and "abacus" in started.stderr and "scalar" in started.stderr

"""A request for more memory than exists raises a MemoryError with numbers, and does not kill the process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
import resource, sys
from cntkio import CTFDeserializer, MinibatchSource, StreamDef, StreamDefs

def source(**options):
    is_sparse = options.pop("is_sparse", False)
    stream = StreamDef(field="y" if is_sparse else "x", shape=options.pop("shape", 2), is_sparse=is_sparse)
    streams = StreamDefs(x=stream)
    return MinibatchSource(CTFDeserializer(sys.argv[1], streams, max_errors=-1), **options)

def attempt(work):
    try:
        work()
    except MemoryError as error:
        print("MemoryError:", error)

resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
"""
ATTEMPTS = {
    "rows": "attempt(lambda: source(truncation_length=2, max_sweeps=1).next_minibatch(2**31 - 1))",
    "wide samples": "attempt(lambda: source(shape=2**31 - 1, max_sweeps=1).next_minibatch(4))",
    "wide cells": "attempt(lambda: source(shape=2**31 - 1, is_sparse=True, truncation_length=2).next_minibatch(4))",
}


def run(program: str, path: Path) -> subprocess.CompletedProcess[str]:
    code = BEGIN + program
    return subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.ctf"
    path.write_text("".join(f"{number} |x 1 2 |y 1:1\n" for number in range(700)))
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_a_request_that_is_too_large_raises_a_memory_error(path: Path) -> None:
    ran = run("\n".join(ATTEMPTS.values()), path)
    assert ran.returncode == 0, ran.stderr
    errors = ran.stdout.splitlines()
    assert len(errors) == len(ATTEMPTS)
    for error in errors:
        assert error.startswith("MemoryError: ") and any(character.isdigit() for character in error)


@pytest.mark.parametrize("timeline", ["main", "user-defined"])
def test_rows_without_data_take_no_memory(path: Path, timeline: str) -> None:
    program = """
sys.path.insert(0, sys.argv[2])
from support.builders import peak_memory
from support.user_formats import OneStream
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
options = {"truncation_length": 2, "max_sweeps": 1, "randomize": False}
opened = source(**options) if sys.argv[3] == "main" else MinibatchSource(OneStream(), **options)
before = peak_memory()
minibatch = opened.next_minibatch(2**27)
assert minibatch["x"].values.shape == (2**26, 2, 2) and minibatch["x"].mask.shape == (2**26, 2)
state = opened.state_dict()
opened.load_state_dict(state)
assert state["timeline"]["num_slots"] == 2**26 and len(state["timeline"]["slots"]) < 1000
print((peak_memory() - before) >> 20)
"""
    code = BEGIN.replace("(2 << 30, 2 << 30)", "resource.getrlimit(resource.RLIMIT_AS)") + program
    arguments = [sys.executable, "-c", code, path, Path(__file__).parents[1], timeline]
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 100  # megabytes


def test_the_empty_minibatch_at_the_end_does_not_keep_the_source(path: Path) -> None:
    program = """
import gc, weakref
opened = source(max_sweeps=1)
while minibatch := opened.next_minibatch(100):
    pass
alive = weakref.ref(opened)
del opened
gc.collect()
print(alive(), len(minibatch), len(minibatch.keys_of_sequences))
"""
    ran = run(program, path)
    assert ran.stdout == "None 0 0\n", ran.stderr


INDEX = """
import sys
import numpy as np
from cntkio import CTFDeserializer, StreamDef, StreamDefs
from support.builders import peak_memory

folder, kind = sys.argv[1:]
peaks = []
for count in (3_000_000, 7_000_000):  # a small index is made in pieces with wide numbers
    path = f"{folder}/{count}.ctf"
    with open(path, "wb") as file:
        for first in range(0, count, 100_000):
            ids = 10**8 + np.arange(first, first + 100_000, dtype=np.int64) * 7919 % 99_999_989
            digits = np.frombuffer(ids.astype("S9").tobytes(), np.uint8).reshape(-1, 9)
            lines = np.tile(np.frombuffer(b"123456789|x 1\\n", np.uint8), (len(ids), 1))
            lines[:, :9] = digits
            file.write(b"|x 1\\n" * len(ids) if kind == "lines" else lines.tobytes())
    corpus = CTFDeserializer(path, StreamDefs(x=StreamDef(field="x", shape=1))).open()
    assert corpus.table.num_sequences == count
    corpus.close()
    del corpus
    peaks.append(peak_memory())
print((peaks[1] - peaks[0]) / 4_000_000)
"""


# `tests/promises/test_memory_of_indexes.py` is quicker, and has more texts; these have wide keys in disorder.
@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["lines", "ids"])
def test_an_index_takes_at_most_10_bytes_of_memory_for_each_sequence(kind: str, tmp_path: Path) -> None:
    code = "import sys\nsys.path.insert(0, sys.argv.pop())\n" + INDEX
    arguments = [sys.executable, "-c", code, tmp_path, kind, Path(__file__).parents[1]]
    environment = {**os.environ, "CNTKIO_NUM_THREADS": "1"}  # each thread has memory to work in
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=120, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) <= 10

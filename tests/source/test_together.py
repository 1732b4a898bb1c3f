"""Several threads use sources, minibatches, chunks and caches at the same time, with or without Python's lock."""

import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import CBFDeserializer, CTFDeserializer, MinibatchSource, read_ctf
from cntkio.convert import write_cbf
from support.builders import STREAMS, corpus_text, rest, shown, source_of
from support.threads import together

NUM_THREADS = 6
NUM_SEQUENCES = 300
ROUNDS = 2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "text.ctf"
    path.write_bytes(corpus_text([1 + key % 5 for key in range(NUM_SEQUENCES)]))
    return path


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize("size", [3, 200])
def test_threads_that_share_a_source_deliver_every_sequence_once(path: Path, size: int, is_binary: bool) -> None:
    sweeps = 10 if size == 200 else 2
    if is_binary:
        write_cbf(path.with_suffix(".cbf"), CTFDeserializer(path, STREAMS))
        source = MinibatchSource(CBFDeserializer(path.with_suffix(".cbf")), max_sweeps=sweeps)
    else:
        source = source_of(path, max_sweeps=sweeps)

    def read(_: int) -> Counter[int]:
        seen: Counter[int] = Counter()
        while minibatch := source.next_minibatch(size):
            x = minibatch["x"]
            keys = x.values[x.offsets[:-1], 0].astype(int)
            assert np.array_equal(x.values[:, 0], np.repeat(keys, np.diff(x.offsets)))
            assert np.array_equal(minibatch["s"].indices, x.values[:, 0] % 1000)
            seen.update(keys.tolist())
        return seen

    with source:
        seen = together(NUM_THREADS, read)
    assert sum(seen, Counter()) == Counter(dict.fromkeys(range(NUM_SEQUENCES), sweeps))


def test_threads_see_the_same_arrays_of_a_minibatch(path: Path) -> None:
    with source_of(path, max_sweeps=ROUNDS) as source:
        for minibatch in source.minibatches(100):
            first, *others = together(NUM_THREADS, lambda _, minibatch=minibatch: shown(minibatch))
            assert all(other == first for other in others)


def test_sources_of_one_file_in_threads_agree_with_a_source_alone(path: Path) -> None:
    def read(deserializer: CTFDeserializer) -> list[Any]:
        with MinibatchSource(deserializer, max_sweeps=2) as source:
            return rest(source, 17)

    expected = read(CTFDeserializer(path, STREAMS, chunk_size_in_bytes=200))
    shared = CTFDeserializer(path, STREAMS, chunk_size_in_bytes=200)
    for _ in range(ROUNDS):
        assert all(minibatches == expected for minibatches in together(NUM_THREADS, lambda _: read(shared)))


def test_threads_that_make_the_same_index_cache_agree(path: Path) -> None:
    def read(has_cache: bool) -> list[Any]:
        deserializer = CTFDeserializer(path, STREAMS, chunk_size_in_bytes=200, cache_index=has_cache)
        with MinibatchSource(deserializer, max_sweeps=1) as source:
            return rest(source, 17)

    expected = read(False)
    for _ in range(ROUNDS):
        for index in path.parent.glob("*.index"):
            index.unlink()
        assert all(minibatches == expected for minibatches in together(NUM_THREADS, lambda _: read(True)))


def test_threads_that_restore_a_source_while_others_read_lose_nothing(path: Path) -> None:
    with source_of(path, max_sweeps=10_000) as source:
        state = source.get_checkpoint_state()
        begin = shown(source.next_minibatch(17))

        def work(number: int) -> None:
            for _ in range(20):
                if number == 0:
                    source.restore_from_checkpoint(state)
                else:
                    minibatch = source.next_minibatch(17)
                    x = minibatch["x"]
                    assert np.array_equal(minibatch["s"].indices, x.values[:, 0] % 1000)

        together(NUM_THREADS, work)
        source.restore_from_checkpoint(state)
        assert shown(source.next_minibatch(17)) == begin


def test_threads_read_and_write_whole_files(path: Path) -> None:
    expected = read_ctf(path)

    def work(number: int) -> Any:
        written = path.with_name(f"{number}.cbf")
        write_cbf(written, CTFDeserializer(path, STREAMS))
        return read_ctf(path), rest(MinibatchSource(CBFDeserializer(written), max_sweeps=1, randomize=False), 50)

    results = together(NUM_THREADS, work)
    for whole, minibatches in results:
        assert np.array_equal(whole["x"].values, expected["x"].values)
        assert minibatches == results[0][1]


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this interpreter has a lock")
def test_no_import_switches_on_the_lock_of_a_free_threaded_interpreter() -> None:
    program = "import sys, cntkio, cntkio.cli, cntkio.survey, cntkio.convert; print(sys._is_gil_enabled())"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr

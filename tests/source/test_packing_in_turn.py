"""Minibatches that the caller takes while later minibatches are being packed."""

import gc
import multiprocessing
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    CorpusError,
    HTKFeatureDeserializer,
    HTKMLFDeserializer,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    convert,
)
from cntkio.formats import htk
from support.builders import STREAMS, corpus_text, rest, send_rest, source_of, take_in_turn


@pytest.fixture
def in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every minibatch by itself, with at most three packed ahead."""
    take_in_turn(monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "a.ctf"
    file.write_bytes(corpus_text([1 + key % 4 for key in range(400)]))
    return file


def speech(folder: Path) -> None:
    """Write utterances with labels, all in one archive."""
    rng = np.random.default_rng(3)
    features = {f"u{number}": rng.random((5 + number % 7, 3), np.float32) for number in range(40)}
    htk.write_archive(folder / "a.ark", folder / "a.scp", features.items())
    labels = (f'"{name}.lab"\n0 {len(frames) * 100_000} s1\n.\n' for name, frames in features.items())
    (folder / "a.mlf").write_text("#!MLF!#\n" + "".join(labels))
    (folder / "states").write_text("s0\ns1\n")


def speech_source(folder: Path, **options: Any) -> MinibatchSource:
    features = HTKFeatureDeserializer(StreamDefs(f=StreamDef(shape=3, scp=folder / "a.scp", context=(1, 1))))
    labels = HTKMLFDeserializer(folder / "states", StreamDefs(l=StreamDef(shape=2, mlf=folder / "a.mlf")))
    return MinibatchSource([features, labels], **options)


def arrays(source: MinibatchSource, size: int) -> list[list[Any]]:
    return [
        [minibatch.keys_of_sequences.tolist(), *(data.values.tolist() for data in minibatch.values())]
        for minibatch in source.minibatches(size)
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the mapped files of a process")
@pytest.mark.parametrize("is_in_turn", [False, True])
def test_a_closed_source_holds_no_data(is_in_turn: bool, path: Path, request: pytest.FixtureRequest) -> None:
    if is_in_turn:
        request.getfixturevalue("in_turn")
    binary = path.with_suffix(".cbf")
    convert.ctf_to_cbf(path, binary, STREAMS, chunk_size_in_bytes=1000)
    gc.disable()  # closing alone must free the data
    try:
        for num_read in range(8):
            source = MinibatchSource([CBFDeserializer(binary)])
            for _ in range(num_read):
                assert source.next_minibatch(5)
            assert str(binary) in Path("/proc/self/maps").read_text() or not num_read
            source.close()
            assert str(binary) not in Path("/proc/self/maps").read_text()
    finally:
        gc.enable()


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("randomize", [False, True])
def test_a_text_gives_the_same_minibatches(
    path: Path, randomize: bool, num_threads: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    with source_of(path, max_sweeps=3, randomize=randomize) as source:
        together = rest(source, 7)
    request.getfixturevalue("in_turn")
    monkeypatch.setenv("CNTKIO_NUM_THREADS", str(num_threads))
    with source_of(path, max_sweeps=3, randomize=randomize) as source:
        assert rest(source, 7) == together


@pytest.mark.parametrize("options", [{}, {"frame_mode": True}, {"truncation_length": 4}], ids=str)
def test_joined_corpora_give_the_same_minibatches(
    tmp_path: Path, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    speech(tmp_path)
    with speech_source(tmp_path, max_sweeps=2, **options) as source:
        together = arrays(source, 20)
    request.getfixturevalue("in_turn")
    with speech_source(tmp_path, max_sweeps=2, **options) as source:
        assert arrays(source, 20) == together


@pytest.mark.usefixtures("in_turn")
def test_packing_pauses_while_the_caller_works_and_then_goes_on(path: Path) -> None:
    with source_of(path, max_sweeps=1, randomize=False) as source:
        seen = []
        for number, minibatch in enumerate(source.minibatches(7)):
            seen += minibatch.keys_of_sequences.tolist()
            if number % 10 == 5:
                time.sleep(0.005)  # longer than a thread waits for the caller
    assert seen == list(range(400))


@pytest.mark.usefixtures("in_turn")
def test_a_file_that_changes_is_an_error_of_the_minibatches_after_it(tmp_path: Path) -> None:
    frames = np.ones((1 << 15, 16), np.float32)  # two megabytes, which are mapped
    utterances = [(f"u{number:02}", frames) for number in range(24)]
    htk.write_archive(tmp_path / "a.ark", tmp_path / "a.scp", utterances)
    features = HTKFeatureDeserializer(StreamDefs(f=StreamDef(shape=16, scp=tmp_path / "a.scp")))
    seen: list[str] = []
    with MinibatchSource(features, randomize=False) as source:
        for _ in range(4):
            seen += source.next_minibatch(1).keys_of_sequences.tolist()
        with (tmp_path / "a.ark").open("ab") as file:
            file.write(b"more")
        for _ in range(2):
            with pytest.raises(CorpusError, match=r"a\.ark: changed while in use"):
                while minibatch := source.next_minibatch(1):
                    seen += minibatch.keys_of_sequences.tolist()
                    assert (minibatch["f"].values == 1).all()
    assert seen == [f"u{number:02}" for number in range(len(seen))] and len(seen) < 20


@pytest.mark.usefixtures("in_turn")
def test_a_child_process_and_its_parent_both_continue(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with source_of(path, max_sweeps=2) as source:
        for _ in range(30):
            source.next_minibatch(11)
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=send_rest, args=(source, sender), daemon=True)
        child.start()
        assert receiver.poll(60), "the child process hangs"
        assert receiver.recv() == rest(source, 11)
        child.join(60)


@pytest.mark.usefixtures("in_turn")
def test_a_source_that_nobody_uses_any_more_ends_its_threads(path: Path) -> None:
    before = set(threading.enumerate())
    source = source_of(path)
    for _ in range(20):
        source.next_minibatch(11)
    del source
    gc.collect()
    deadline = time.monotonic() + 60
    while set(threading.enumerate()) - before:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_program_ends_in_the_middle_of_a_hand_over(path: Path) -> None:
    program = f"""
import cntkio
from cntkio.source import packing, pipeline
pipeline._WORTH_TAKING, pipeline._LEAST_IN_TURN, packing._BYTES_AHEAD_PER_THREAD = 0, 1, 1
source = cntkio.MinibatchSource(cntkio.CTFDeserializer({str(path)!r}, cntkio.StreamDefs(x=cntkio.StreamDef("x", 2))))
for _ in range(20):
    source.next_minibatch(11)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

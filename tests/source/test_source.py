"""Sources of minibatches, whatever their format: properties, checkpoints, and life in a process."""

import dataclasses
import gc
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    CheckpointError,
    ConfigError,
    CorpusError,
    CTFDeserializer,
    FormatError,
    MinibatchSource,
    StreamDef,
    StreamDefs,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support import ROOT
from support.builders import STREAMS, corpus_text, rest, send_rest, shown, source_of, take_in_turn
from support.interrupts import plain
from support.rounds import rounds


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "a.ctf"
    file.write_bytes(corpus_text([1 + key % 4 for key in range(60)]))
    return file


LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=40)
OPTIONS = st.fixed_dictionaries(
    {"randomize": st.booleans(), "randomization_seed": st.integers(0, 2**64 - 1)},
    optional={
        "randomization_window_in_chunks": st.integers(1, 9),
        "keep_data_in_memory": st.booleans(),
        "read_ahead_in_bytes": st.sampled_from([0, 100, 1 << 20]),
    },
)
properties = settings(max_examples=rounds(60), suppress_health_check=list(HealthCheck))


@properties
@given(LENGTHS, OPTIONS, st.integers(1, 5), st.integers(1, 30), st.integers(1, 400))
def test_partitions_together_deliver_every_sequence_once(
    module_folder: Path, lengths: list[int], options: dict[str, Any], count: int, size: int, chunk_size: int
) -> None:
    (module_folder / "a.ctf").write_bytes(corpus_text(lengths))
    seen: Counter[int] = Counter()
    for index in range(count):
        with source_of(module_folder / "a.ctf", chunk_size, max_sweeps=1, **options) as source:
            for minibatch in source.minibatches(size, num_data_partitions=count, partition_index=index):
                seen.update(minibatch.keys_of_sequences.tolist())
                expected = [[key, step] for key in minibatch.keys_of_sequences for step in range(lengths[int(key)])]
                assert minibatch["x"].values.tolist() == expected
                assert minibatch["s"].indices.tolist() == [int(key) % 1000 for key, _ in expected]
                assert minibatch["s"].values.tolist() == [step for _, step in expected]
    assert seen == Counter(range(len(lengths)))


@properties
@given(LENGTHS, OPTIONS, st.integers(1, 30), st.data())
def test_a_restore_at_any_minibatch_continues_identically(
    module_folder: Path, lengths: list[int], options: dict[str, Any], size: int, data: st.DataObject
) -> None:
    (module_folder / "a.ctf").write_bytes(corpus_text(lengths))
    with source_of(module_folder / "a.ctf", max_sweeps=2, **options) as source:
        states, seen = [json.loads(json.dumps(source.state_dict()))], []
        for minibatch in source.minibatches(size):
            seen.append(shown(minibatch))
            states.append(json.loads(json.dumps(source.state_dict())))
        at = data.draw(st.integers(0, len(seen)))
        source.load_state_dict(states[at])
        assert rest(source, size) == seen[at:]
        back = data.draw(st.integers(0, len(seen)))
        source.load_state_dict(states[back])
        assert rest(source, size) == seen[back:]
    with source_of(module_folder / "a.ctf", max_sweeps=2, **{**options, "read_ahead_in_bytes": 0}) as source:
        source.load_state_dict(states[at])
        assert rest(source, size) == seen[at:]
        assert source.state_dict() == states[-1]


@properties
@given(LENGTHS, st.integers(1, 7), st.integers(1, 30), st.booleans(), st.data())
def test_a_restore_in_truncated_mode_loses_nothing(
    module_folder: Path, lengths: list[int], steps: int, size: int, randomize: bool, data: st.DataObject
) -> None:
    (module_folder / "a.ctf").write_bytes(corpus_text(lengths))

    def parts(source: MinibatchSource) -> Iterator[Any]:
        for one in source.minibatches(size):
            x = one["x"]
            yield x.values.tolist(), x.mask.tolist(), x.parts.tolist(), x.continues.tolist(), one["s"].values.sum()

    options = {"truncation_length": steps, "max_sweeps": 2, "randomize": randomize}
    with source_of(module_folder / "a.ctf", **options) as source:
        states, seen = [source.state_dict()], []
        for one in parts(source):
            seen.append(one)
            states.append(json.loads(json.dumps(source.state_dict())))
    assert sum(np.count_nonzero(mask) for _, mask, *_ in seen) == 2 * sum(lengths)
    at = data.draw(st.integers(0, len(seen)))
    with source_of(module_folder / "a.ctf", **options) as source:
        source.load_state_dict(states[at])
        assert list(parts(source)) == seen[at:]


def test_in_a_truncated_minibatch_the_last_value_of_a_repeated_index_stays(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_bytes(b"|x 1 2 |s 3:5 4:9 3:7\n")
    with source_of(tmp_path / "a.ctf", truncation_length=1) as source:
        [row] = source.next_minibatch(1)["s"].values.reshape(-1, 1000)
    assert (row[3], row[4], row.sum()) == (7, 9, 16)


@properties
@given(LENGTHS, OPTIONS, st.integers(1, 30), st.integers(1, 3))
def test_memory_read_ahead_and_threads_change_only_the_time(
    module_folder: Path, lengths: list[int], options: dict[str, Any], size: int, threads: int
) -> None:
    (module_folder / "a.ctf").write_bytes(corpus_text(lengths))
    plain = {key: options[key] for key in ("randomize", "randomization_seed")}
    window = {key: options[key] for key in options if key == "randomization_window_in_chunks"}
    with source_of(module_folder / "a.ctf", max_sweeps=2, **plain, **window, read_ahead_in_bytes=0) as source:
        expected = rest(source, size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CNTKIO_NUM_THREADS", str(threads))
        with source_of(module_folder / "a.ctf", max_sweeps=2, **options) as source:
            assert rest(source, size) == expected


# -- views -------------------------------------------------------------------------------------------------------------


def test_padded_mask_and_sequences_show_the_same_samples(path: Path) -> None:
    with source_of(path, randomize=False) as source:
        x = source.next_minibatch(7)["x"]
    assert (x.num_sequences, x.num_samples, x.shape, len(x)) == (3, 6, (3, 3, 2), 3)
    assert x.offsets.tolist() == [0, 1, 3, 6]
    assert x.mask.tolist() == [[2, 0, 0], [2, 1, 0], [2, 1, 1]]
    assert x.asarray().tolist() == [
        [[0, 0], [0, 0], [0, 0]],
        [[1, 0], [1, 1], [0, 0]],
        [[2, 0], [2, 1], [2, 2]],
    ]
    assert [one.tolist() for one in x.as_sequences()] == [[[0, 0]], [[1, 0], [1, 1]], [[2, 0], [2, 1], [2, 2]]]


def test_arrays_are_not_copied_without_padding(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_bytes(corpus_text([2] * 9))
    with source_of(tmp_path / "a.ctf") as source:
        x = source.next_minibatch(8)["x"]
    assert x.asarray().shape == (4, 2, 2)
    assert np.shares_memory(x.asarray(), x.values)
    assert all(np.shares_memory(one, x.values) for one in x.as_sequences())


def test_sparse_samples_are_scipys_without_a_copy(path: Path) -> None:
    with source_of(path, randomize=False) as source:
        s = source.next_minibatch(7)["s"]
    matrix = s.tocsr()
    assert np.shares_memory(matrix.data, s.values)
    assert matrix.toarray()[:, :3].tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1], [0, 0, 2]]
    assert [one.shape for one in s.as_sequences()] == [(1, 1000), (2, 1000), (3, 1000)]
    assert np.array_equal(s.asarray().reshape(9, 1000)[s.mask.reshape(-1) > 0], matrix.toarray())


def test_repeated_indices_are_summed_only_in_a_dense_array(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_bytes(b"|s 5:1 2:2 5:3 |x 0 0\n")
    with source_of(tmp_path / "a.ctf") as source:
        s = source.next_minibatch(1)["s"]
    assert (s.indices.tolist(), s.values.tolist()) == ([5, 2, 5], [1, 2, 3])
    assert s.asarray()[0, 0, [2, 5]].tolist() == [2, 4]


def test_delivered_minibatches_stay_valid(path: Path) -> None:
    with source_of(path, max_sweeps=3) as source:
        kept = [(minibatch, shown(minibatch)) for minibatch in source.minibatches(9)]
    gc.collect()
    assert all(shown(minibatch) == at_once for minibatch, at_once in kept)
    kept[0][0]["x"].values[:] = 7  # its holder may change it
    assert all(shown(minibatch) == at_once for minibatch, at_once in kept[1:])


def test_frame_mode_refuses_a_sequence_and_names_it(path: Path) -> None:
    with source_of(path, randomize=False, frame_mode=True) as source:
        source.next_minibatch(1)
        with pytest.raises(CorpusError, match="sequence 1, stream 's': 2 samples; frame mode takes at most one"):
            source.next_minibatch(1)


@pytest.mark.parametrize("at", range(9))
@pytest.mark.parametrize("of_second", [False, True])
def test_all_minibatches_before_a_frame_mode_error_are_complete(tmp_path: Path, at: int, of_second: bool) -> None:
    for name, is_bad in (("x", not of_second), ("y", of_second)):
        lines = [b"%d |%s %d 0\n" % (key, name.encode(), key) for key in range(9)]
        lines[at] *= 1 + is_bad
        (tmp_path / f"{name}.ctf").write_bytes(b"".join(lines))
    deserializers = [
        CTFDeserializer(tmp_path / f"{name}.ctf", StreamDefs({name: StreamDef(field=name, shape=2)})) for name in "xy"
    ]
    seen: list[Any] = []
    with MinibatchSource(deserializers, randomize=False, frame_mode=True, max_sweeps=1) as source:
        while not seen or seen[-1] is not None:
            try:
                minibatch = source.read(1)
                seen.append(minibatch and [minibatch[name].values[:, 0].tolist() for name in "xy"])
            except CorpusError as error:
                seen.append(f"sequence {at}, stream {'xy'[of_second]!r}" in str(error))
    assert seen == [*([[key], [key]] for key in range(at)), True, *([[key], [key]] for key in range(at + 1, 9)), None]


def test_truncation_refuses_streams_of_different_lengths(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_bytes(b"1 |x 1 2 |s 1:1\n1 |x 1 2\n")
    message = "sequence 1, stream 's': 1 sample, but the sequence counts for 2"
    with source_of(tmp_path / "a.ctf", truncation_length=2) as source, pytest.raises(CorpusError, match=message):
        source.next_minibatch(4)


def test_a_truncated_minibatch_beyond_all_memory_names_its_slots(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_bytes(b"1 |x 1\n2 |x 2\n")
    streams = StreamDefs(x=StreamDef(field="x", shape=2**20))
    deserializer = CTFDeserializer(tmp_path / "a.ctf", streams, max_errors=-1)
    message = (
        r"1,073,741,823 slots of 2 steps \(9,[\d,]+ bytes\); sequences fill \d of the slots\. .* request fewer samples"
    )
    with (
        MinibatchSource(deserializer, truncation_length=2, max_sweeps=1, trace_level=0) as source,
        pytest.raises(MemoryError, match=message),
    ):
        source.next_minibatch(2**31 - 1)


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_a_state_of_other_data_or_settings_names_every_difference(path: Path, tmp_path: Path) -> None:
    with source_of(path, randomization_seed=1) as source:
        source.next_minibatch(5)
        state = source.state_dict()
    (tmp_path / "b.ctf").write_bytes(corpus_text([1, 2, 3]))
    other = source_of(tmp_path / "b.ctf", randomization_seed=2, truncation_length=3)
    with other, pytest.raises(CheckpointError) as error:
        other.load_state_dict(state)
    text = str(error.value)
    assert "randomization_seed: saved 1, here 2" in text
    assert "truncation_length: saved 0, here 3" in text
    assert "data of deserializer 0" in text
    assert error.value.saved["randomization_seed"] == 1 and error.value.current["randomization_seed"] == 2


def test_a_state_of_other_chunks_names_the_option(path: Path) -> None:
    with source_of(path, 100) as source, source_of(path, 200) as other:
        source.next_minibatch(5)
        with pytest.raises(CheckpointError) as error:
            other.load_state_dict(json.loads(json.dumps(source.state_dict())))
    assert str(error.value) == "the state does not fit this source: chunk_size_in_bytes: saved 100, here 200"
    assert (error.value.saved, error.value.current) == ({"chunk_size_in_bytes": 100}, {"chunk_size_in_bytes": 200})


def test_a_state_fits_if_another_option_leaves_the_chunks_unchanged(path: Path) -> None:
    with source_of(path, 1 << 20, max_sweeps=1) as source, source_of(path, 1 << 21, max_sweeps=1) as other:
        source.next_minibatch(5)
        other.load_state_dict(source.state_dict())
        assert rest(other, 5) == rest(source, 5)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("skip_sequence_ids", "saved False, here True"),
        ("defines_mb_size", "saved None, here 'x'"),
    ],
)
@pytest.mark.parametrize("joined", [False, True])
def test_a_state_of_other_lengths_names_the_option(tmp_path: Path, option: str, values: str, joined: bool) -> None:
    (tmp_path / "a.ctf").write_text("0 |x 1 |y 1\n0 |y 2\n1 |x 1 |y 1\n1 |y 3\n2 |x 4 |y 5\n3 |x 4 |y 5\n")
    (tmp_path / "b.ctf").write_text("".join(f"{key} |z 1\n" for key in range(5)))

    def made(defines_mb_size: bool = False, skip_sequence_ids: bool = False) -> MinibatchSource:
        streams = StreamDefs(
            x=StreamDef(field="x", shape=1, defines_mb_size=defines_mb_size), y=StreamDef(field="y", shape=1)
        )
        corpora = [CTFDeserializer(tmp_path / "a.ctf", streams, skip_sequence_ids=skip_sequence_ids)]
        if joined:
            corpora.append(CTFDeserializer(tmp_path / "b.ctf", StreamDefs(z=StreamDef(field="z", shape=1))))
        return MinibatchSource(corpora)

    with made() as source, made(**{option: True}) as other:
        suffix = " of deserializer 0" if joined else ""
        with pytest.raises(CheckpointError, match=f"{option}{suffix}: {values}"):
            other.load_state_dict(source.state_dict())


def test_other_data_are_shown_by_paths_and_counts(path: Path, tmp_path: Path) -> None:
    with source_of(path) as source:
        state = source.state_dict()
    (tmp_path / "b.ctf").write_bytes(corpus_text([1, 2, 3]))
    with source_of(tmp_path / "b.ctf") as other, pytest.raises(CheckpointError) as error:
        other.load_state_dict(state)
    assert f"saved {path} (60 sequences in " in str(error.value)
    assert f"here {tmp_path / 'b.ctf'} (3 sequences in " in str(error.value)
    path.write_bytes(path.read_bytes().replace(b"|x 7 ", b"|x 8 "))
    with source_of(path) as other, pytest.raises(CheckpointError, match="with other content"):
        other.load_state_dict(state)


def test_a_state_fits_whether_the_index_comes_from_its_cache_or_not(path: Path) -> None:
    streams = StreamDefs(x=StreamDef(field="x", shape=2))
    states = []
    for cache_index in (False, True, True):
        with MinibatchSource(CTFDeserializer(path, streams, cache_index=cache_index)) as source:
            states.append(source.state_dict())
    assert states[0] == states[1] == states[2]


@pytest.mark.parametrize(
    "state", [{}, {"position": 3}, {"minibatchSourcePosition": "3"}, {"version": 2}, {"version": 1}]
)
def test_refuses_incomplete_states(path: Path, state: dict[str, Any]) -> None:
    with source_of(path) as source, pytest.raises(CheckpointError):
        source.restore_from_checkpoint(state)


@pytest.mark.parametrize("state", [{"minibatchSourcePosition": -1}, {"version": 1}, {"version": 1, "timeline": {}}])
def test_a_refused_state_leaves_the_source_where_it_was(path: Path, state: dict[str, Any]) -> None:
    with source_of(path, max_sweeps=2) as source, source_of(path, max_sweeps=2) as other:
        for one in (source, other):
            one.next_minibatch(7)
        good = source.state_dict()
        with pytest.raises(CheckpointError):
            source.restore_from_checkpoint({**good, **state} if "timeline" in state else state)
        assert source.state_dict() == good
        assert rest(source, 7) == rest(other, 7)


def test_a_changed_truncation_length_is_pickled_with_the_source(path: Path) -> None:
    with source_of(path, truncation_length=3, max_sweeps=2) as source:
        source.begin_epoch(0, 50, truncation_length=2)
        source.next_minibatch(8)
        with pickle.loads(pickle.dumps(source)) as again:
            assert again.next_minibatch(8)["x"].values.tolist() == source.next_minibatch(8)["x"].values.tolist()


def test_a_state_from_before_an_epoch_ends_the_epoch(path: Path) -> None:
    for options in ({"max_sweeps": 2}, {"max_samples": 120}, {"truncation_length": 3, "max_sweeps": 2}):
        with source_of(path, **options) as source, source_of(path, **options) as other:
            for one in (source, other):
                one.next_minibatch(7)
            state = source.state_dict()
            source.begin_epoch(20, 30, truncation_length=2 if "truncation_length" in options else None)
            source.next_minibatch(7)
            in_epoch = source.state_dict()
            # when
            source.load_state_dict(state)
            # then
            assert (source.state_dict(), source.span, source.has_ended) == (state, other.span, False)
            assert [*map(plain, source.minibatches(7))] == [*map(plain, other.minibatches(7))]
            if "truncation_length" not in options:
                source.load_state_dict(in_epoch)
                assert source.span == (20, 30) and source.state_dict() == in_epoch


def test_a_refused_state_leaves_the_source_in_its_epoch(path: Path) -> None:
    with source_of(path, max_sweeps=2) as source, source_of(path, max_sweeps=2) as other:
        state = source.state_dict()
        for one in (source, other):
            one.begin_epoch(20, 60)
            one.next_minibatch(7)
        with pytest.raises(CheckpointError, match="the state's 'position' is -1"):
            source.load_state_dict({**state, "timeline": {"position": -1}})
        assert source.span == other.span == (20, 60)
        assert rest(source, 7) == rest(other, 7)


def test_a_bare_position_leaves_the_epoch_as_it_is(path: Path) -> None:
    with source_of(path, max_sweeps=2) as source:
        source.begin_epoch(20, 60)
        source.restore_from_checkpoint({"minibatchSourcePosition": 0})
        assert source.span == (20, 60)


def test_an_epoch_cannot_begin_or_end_truncation(path: Path) -> None:
    with (
        source_of(path, max_sweeps=1) as source,
        pytest.raises(ConfigError, match="reads whole sequences; expected None$"),
    ):
        source.begin_epoch(0, 50, truncation_length=2)
    with (
        source_of(path, truncation_length=3, max_sweeps=1) as source,
        pytest.raises(ConfigError, match="is 0, but the source truncates to 3; expected None or at least 1"),
    ):
        source.begin_epoch(0, 50, truncation_length=0)


def test_cntks_bare_state_is_accepted_with_further_keys(path: Path) -> None:
    with source_of(path, max_sweeps=1) as source:
        source.next_minibatch(20)
        state = source.get_checkpoint_state()
        expected = rest(source, 20)
        source.current_position = {**state, "other": 1}
        assert source.current_position == state
        assert rest(source, 20) == expected


def test_a_new_process_continues_identically(path: Path) -> None:
    with source_of(path, max_sweeps=2, randomization_seed=3) as source:
        source.next_minibatch(11)
        state = source.state_dict()
        expected = rest(source, 11)
    program = textwrap.dedent(f"""
        import json, sys
        sys.path.insert(0, {str(ROOT / "tests")!r})
        from pathlib import Path
        from support.builders import source_of, rest
        source = source_of(Path({str(path)!r}), max_sweeps=2, randomization_seed=3)
        source.load_state_dict(json.loads(sys.argv[1]))
        print(json.dumps(rest(source, 11)))
    """)
    environment = {**os.environ, "CNTKIO_NUM_THREADS": "5"}
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(state)], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == json.loads(json.dumps(expected))


# -- life --------------------------------------------------------------------------------------------------------------


def test_a_source_is_pickled_with_its_position(path: Path) -> None:
    with source_of(path, max_sweeps=2) as source:
        source.next_minibatch(11)
        again = pickle.loads(pickle.dumps(source))
        assert rest(again, 11) == rest(source, 11)
        again.close()


def test_there_is_no_thread_before_the_first_read(path: Path) -> None:
    before = set(threading.enumerate())
    with source_of(path):
        assert set(threading.enumerate()) == before


TWO_SWEEPS = """
import sys, time
from pathlib import Path
from cntkio import CTFDeserializer, MinibatchSource, StreamDef

text = Path(sys.argv[1], "a.ctf")
text.write_text("".join(f"{number * 7} |x {number} 1\\n" for number in range(2000)))
for _ in range(2):  # the second time from the index cache
    corpus = CTFDeserializer(text, {"x": StreamDef(field="x", shape=2)}, cache_index=True)
    with MinibatchSource(corpus, max_sweeps=1) as source:
        assert sum(minibatch["x"].num_samples for minibatch in source.minibatches(100)) == 2000
deadline = time.monotonic() + 10
while (count := len(list(Path("/proc/self/task").iterdir()))) > 4 and time.monotonic() < deadline:
    time.sleep(0.05)  # threads of the sources are about to end
print(count)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the threads of a process")
def test_a_closed_source_leaves_only_the_threads_of_the_pools(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TWO_SWEEPS, str(tmp_path)]
    environment = {**os.environ, "CNTKIO_NUM_THREADS": "2"}
    left = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100)
    assert int(left.stdout) <= 4  # the main thread, two that parse, one that helps to pack


@pytest.mark.parametrize(
    ("reads_before", "method"),
    [(0, "fork"), (2, "fork"), (2, "spawn"), pytest.param(0, "spawn", marks=pytest.mark.thorough)],
)
def test_a_child_process_continues_independently(path: Path, method: str, reads_before: int) -> None:
    with source_of(path, max_sweeps=2) as source:
        for _ in range(reads_before):
            source.next_minibatch(11)
        context = multiprocessing.get_context(method)
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=send_rest, args=(source, sender), daemon=True)
        child.start()
        assert receiver.poll(60), "the child process hangs"
        from_child = receiver.recv()
        child.join(60)
        assert from_child == rest(source, 11)


def test_several_threads_share_a_source(path: Path) -> None:
    seen: Counter[int] = Counter()
    lock = threading.Lock()
    with source_of(path, max_sweeps=3) as source:

        def read() -> None:
            while minibatch := source.next_minibatch(3):
                with lock:
                    seen.update(minibatch.keys_of_sequences.tolist())

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen == Counter(dict.fromkeys(range(60), 3))


@pytest.mark.parametrize("change", ["shrinks", "grows", "is written anew"])
def test_a_changed_file_is_an_error_that_says_so(path: Path, change: str) -> None:
    with source_of(path, max_sweeps=100, randomize=False, read_ahead_in_bytes=0) as source:
        source.next_minibatch(5)
        text = path.read_bytes()
        path.write_bytes({"shrinks": text[:300], "grows": text + b"99 |x 1 2 |s 1:1\n"}.get(change, text[::-1]))
        os.utime(path, ns=(1, 1))
        with pytest.raises(CorpusError, match="changed while in use"):
            rest(source, 5)


def test_a_file_that_vanishes_is_read_to_the_end(path: Path) -> None:
    with source_of(path, max_sweeps=2) as source:
        path.unlink()
        assert len({key for one in rest(source, 5) for key in one[0]}) == 60


def test_an_error_surfaces_in_the_read_that_needs_the_data(tmp_path: Path) -> None:
    text = corpus_text([1] * 40).split(b"\n")
    text[30] = b"30 |x 1 y |s 1:1"
    (tmp_path / "a.ctf").write_bytes(b"\n".join(text))
    with source_of(tmp_path / "a.ctf", randomize=False, chunk_size_in_bytes=60) as source:
        keys: list[int] = []
        with pytest.raises(FormatError, match="line 31, column 9") as error:
            while True:
                keys += source.next_minibatch(2).keys_of_sequences.tolist()
        assert 26 <= len(keys) <= 30 and keys == list(range(len(keys)))
        assert error.value.sequence == 30
        with pytest.raises(FormatError):
            source.next_minibatch(2)  # still in the same chunk
        # As in CNTK, reading continues after the minibatches that need the bad chunk.
        behind = source.next_minibatch(2).keys_of_sequences.tolist()
        assert behind and behind[0] in (32, 33, 34)


def outcomes(source: MinibatchSource, size: int, most: int) -> list[Any]:
    """Return what each read delivers or raises, the timeline's state after it, and the final error counts."""
    found: list[Any] = []
    for _ in range(most):
        try:
            found.append(shown(source.next_minibatch(size)))
        except (FormatError, CorpusError) as error:
            found.append(str(error))
        found.append(source.state_dict()["timeline"])
    return [*found, source.error_counts]


@properties
@given(
    bad=st.lists(st.tuples(st.integers(0, 39), st.booleans()), max_size=4),
    sizes=st.lists(st.integers(1, 40), min_size=1), max_errors=st.integers(0, 2),
    options=OPTIONS, size=st.integers(1, 5), is_joined=st.booleans(),
)  # fmt: skip
@example(
    bad=[(10, False), (18, False)], sizes=[8], max_errors=2, size=2, is_joined=False,
    options={"randomize": True, "randomization_seed": 5661, "randomization_window_in_chunks": 3},
)  # fmt: skip
@example(
    bad=[(0, False)], sizes=[3], max_errors=2, size=2, is_joined=False,
    options={"randomize": True, "randomization_seed": 1, "randomization_window_in_chunks": 1},
)  # fmt: skip
def test_hand_overs_of_several_minibatches_equal_single_minibatches(
    module_folder: Path,
    bad: list[tuple[int, bool]],
    sizes: list[int],
    max_errors: int,
    options: dict[str, Any],
    size: int,
    is_joined: bool,
) -> None:
    """Errors in the middle of a hand-over belong to the minibatch that meets them."""
    for name, is_second in (("one.ctf", False), ("two.ctf", True)):
        text = corpus_text([1] * 40).replace(b"|x", b"|y" if is_second else b"|x").replace(b"|s", b"|t")
        lines = text.split(b"\n")
        for number, of_second in bad:
            if of_second == is_second:
                lines[number] = b"%d |%s 1 z |t 1:1" % (number, b"y" if is_second else b"x")
        (module_folder / name).write_bytes(b"\n".join(lines))

    def opened() -> MinibatchSource:
        given = [
            CTFDeserializer(
                module_folder / name,
                StreamDefs(
                    **{own: StreamDef(field=field, shape=2), rest: StreamDef(field="t", shape=1000, is_sparse=True)}
                ),
                chunk_size_in_bytes=chunk_size,
                max_errors=max_errors,
            )
            for name, own, field, rest, chunk_size in (
                ("one.ctf", "x", "x", "s", sizes[0] * 20),
                ("two.ctf", "y", "y", "t", sizes[-1] * 30),
            )
        ]
        return MinibatchSource(given[: 1 + is_joined], max_sweeps=2, **options)

    with opened() as source:
        together = outcomes(source, size, 100)
    with pytest.MonkeyPatch.context() as patch, opened() as source:
        patch.setattr("cntkio.source.pipeline.MOST_IN_HAND_OVER", 1)
        assert outcomes(source, size, 100) == together
    with pytest.MonkeyPatch.context() as patch, opened() as source:
        take_in_turn(patch)
        assert outcomes(source, size, 100) == together


@dataclasses.dataclass
class SlowlyLoaded:
    """A deserializer whose chunks load while `gate` is set; `is_loading` is set once a load has begun."""

    deserializer: CTFDeserializer
    gate: threading.Event = dataclasses.field(default_factory=threading.Event)
    is_loading: threading.Event = dataclasses.field(default_factory=threading.Event)
    has_waited_too_long: bool = False

    def open(self) -> Any:
        corpus = self.deserializer.open()
        load = corpus.load

        def slow_load(chunk_id: int) -> Any:
            self.is_loading.set()
            self.has_waited_too_long |= not self.gate.wait(60)
            return load(chunk_id)

        corpus.load = slow_load  # type: ignore[method-assign]
        return corpus


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_stops_a_read_at_once_and_loses_nothing(path: Path) -> None:
    deserializer = SlowlyLoaded(CTFDeserializer(path, STREAMS, chunk_size_in_bytes=200))
    options: dict[str, Any] = {"max_sweeps": 1, "randomize": False, "read_ahead_in_bytes": 0}
    deserializer.gate.set()
    with MinibatchSource(deserializer, **options) as source:
        expected = rest(source, 11)

    def interrupt() -> None:
        assert deserializer.is_loading.wait(60)
        num_seen = -1
        while num_seen != len(seen):  # until the read waits for the chunk, not before it is called
            num_seen = len(seen)
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    with MinibatchSource(deserializer, **options) as source:
        seen = [shown(source.next_minibatch(11))]
        deserializer.gate.clear()
        deserializer.is_loading.clear()
        thread = threading.Thread(target=interrupt)
        with pytest.raises(KeyboardInterrupt):
            thread.start()
            while True:
                seen.append(shown(source.next_minibatch(11)))
        assert not deserializer.has_waited_too_long
        thread.join()
        deserializer.gate.set()
        assert len(seen) < len(expected)
        seen += rest(source, 11)
    assert seen == expected


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("begin", ("0", 5)),
        ("end", (0, 5.5)),
        ("end", (0, -5)),
        ("number", (0, 5, None, "a")),
        ("truncation_length", (0, 5, "a", None)),
    ],
)
def test_an_epoch_of_other_types_is_refused_by_name(path: Path, name: str, arguments: tuple[Any, ...]) -> None:
    with source_of(path) as source:
        before = source.state_dict()
        begin, end, truncation_length, number = (*arguments, None, None)[:4]
        with pytest.raises((ConfigError, CheckpointError), match=f"{name} is "):
            source.begin_epoch(begin, end, truncation_length=truncation_length, number=number)
        assert source.state_dict() == before


@pytest.mark.parametrize("name", ["read_ahead_in_bytes", "right_splice"])
def test_sizes_of_other_types_are_refused_by_name(path: Path, name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} is '1MB'; expected a whole number"):
        source_of(path, **{name: "1MB"})


def test_a_flag_in_place_of_a_number_is_refused(path: Path) -> None:
    for name, value in (("max_errors", True), ("max_sweeps", False), ("randomization_seed", np.True_)):
        with pytest.raises(TypeError, match=f"{name} is {value!r}; expected a whole number$"):
            source_of(path, **{name: value})


def test_a_splice_as_long_as_the_truncation_is_refused(path: Path) -> None:
    source_of(path, truncation_length=3, right_splice=2, randomize=False).close()
    for length in (3, 4):
        with pytest.raises(ConfigError, match=f"right_splice={length} is not below truncation_length=3"):
            source_of(path, truncation_length=3, right_splice=length, randomize=False)


def test_a_closed_source_says_so_in_every_call(path: Path) -> None:
    source = source_of(path, max_sweeps=1)
    expected = rest(source, 11)
    source.restore_from_checkpoint({"minibatchSourcePosition": 0})
    seen = [shown(source.next_minibatch(11))]
    state = source.state_dict()
    source.close()
    source.close()
    for call in (
        lambda: source.next_minibatch(11),
        lambda: source.next_minibatch(3),
        lambda: source.begin_epoch(0, 5),
        lambda: source.load_state_dict(state),
        source.state_dict,
        source.__enter__,
    ):
        with pytest.raises(CorpusError, match=f"the source of {path} is closed"):
            call()
    with source_of(path, max_sweeps=1) as again:
        again.load_state_dict(state)
        assert [*seen, *rest(again, 11)] == expected


def test_memory_stays_flat_over_sweeps_larger_than_the_window(tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    line = b"|x 1 2 |s " + b" ".join(b"%d:1" % number for number in range(200)) + b"\n"
    path.write_bytes(line * 20_000)
    # Between the third and the last sweep, 1.8 GB of numbers pass. Blocks of many sizes leave gaps in the heap, which
    # grows by up to 45 MB before it needs no more; a chunk that is kept after each sweep would be 90 MB.
    program = textwrap.dedent(f"""
        import resource, sys
        sys.path.insert(0, {str(ROOT / "tests")!r})
        from pathlib import Path
        from support.builders import peak_memory, source_of
        source = source_of(
            Path({str(path)!r}), 1 << 20, max_sweeps=60, randomization_window_in_chunks=4, read_ahead_in_bytes=4 << 20
        )
        peaks = []
        for minibatch in source.minibatches(256):
            if minibatch.end_of_sweep:
                peaks.append(peak_memory())
        assert len(peaks) == 60, peaks
        assert peaks[-1] < peaks[2] + (64 << 20), peaks
    """)
    subprocess.run([sys.executable, "-c", program], check=True)

"""Plans agree with what is delivered: steps, keys, origins and states, in every kind of source."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import ConfigError, CorpusError, CTFDeserializer, HTKMLFReader, MinibatchSource, StreamDef, StreamDefs
from cntkio.timeline import BalancedPartition, GlobalPartition, Partition
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.builders import corpus_text, make, shown
from support.interrupts import KINDS, plain, write_corpora

PLANNED = [name for name in KINDS if name not in ("user-defined", "user-defined, truncated")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora")
    write_corpora(folder)
    return folder


def delivered(source: MinibatchSource, size: int, partition: Partition) -> list[Any]:
    """Return the minibatches, and the state after each."""
    found = []
    while (minibatch := source.read(size, partition)) is not None:
        found.append((minibatch, source.state_dict()))
    return found


def check(source: MinibatchSource, size: int, partition: Partition) -> None:
    plan = source.plan(size, partition)
    minibatches = delivered(source, size, partition)
    steps = plan.steps(10**6)
    assert len(steps) == len(minibatches)
    keys_of_steps: dict[Any, list[int]] = {}
    for step, (minibatch, state) in enumerate(minibatches):
        explained = plan.explain(step)
        keys = minibatch.keys_of_sequences.tolist()
        assert explained.keys.tolist() == keys
        data = next(iter(minibatch.values()))
        assert explained.end_of_sweep == steps.ends_of_sweep[step] == data.end_of_sweep
        assert steps.num_sequences[step] == len(keys) == len(explained.num_samples)
        assert steps.num_samples[step] == explained.num_samples.sum()
        assert plan.state_at(step + 1) == state
        assert steps.positions[step] == state["timeline"]["position"]
        for key in set(keys):
            keys_of_steps.setdefault(key, []).append(step)
    for key in list(keys_of_steps)[::7]:
        assert plan.where(key, num_steps=len(minibatches)) == keys_of_steps[key]
    with pytest.raises(ConfigError, match=f"the data end after {len(minibatches)} steps"):
        plan.explain(len(minibatches))


@pytest.mark.parametrize("size", [1, 5, 40])
@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_agrees_with_what_is_delivered(name: str, size: int, folder: Path) -> None:
    with KINDS[name].make(folder) as source:
        check(source, max(size, 2 * ("truncated" in name)), KINDS[name].partition)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=30),
    st.integers(1, 30),
    st.sampled_from([0, 1, 2, 100]),
    st.sampled_from([0, 1, 3]),
    st.sampled_from(["cntk", "balanced", "global"]),
    st.integers(1, 3),
    st.data(),
)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_settings_and_partition_are_planned(
    tmp_path: Path,
    lengths: list[int],
    size: int,
    window: int,
    steps: int,
    kind: str,
    count: int,
    data: st.DataObject,
) -> None:
    if steps:
        size, kind = max(size, steps * count), "cntk" if kind == "balanced" else kind
    index = data.draw(st.integers(0, count - 1))
    partition = {
        "cntk": Partition(index, count),
        "balanced": BalancedPartition(index, count, "repeat"),
        "global": GlobalPartition(index, count),
    }[kind]
    path = tmp_path / "a.ctf"
    path.write_bytes(corpus_text(lengths))
    options = {"randomization_window_in_chunks": window, "truncation_length": steps, "max_sweeps": 2}
    with make(path, 100, **options) as source:
        check(source, size, partition)


def test_a_plan_from_here_continues_after_reads_of_other_sizes(folder: Path) -> None:
    with make(folder / "a.ctf", max_sweeps=2, truncation_length=2) as source:
        for size in (4, 8, 8, 6):
            source.next_minibatch(size)
        plan = source.plan(6, from_here=True)
        keys = [plan.explain(step).keys.tolist() for step in range(3)]
        assert keys == [source.next_minibatch(6).keys_of_sequences.tolist() for _ in range(3)]  # type: ignore[attr-defined]


def test_skipped_steps_are_not_delivered(folder: Path) -> None:
    with make(folder / "a.ctf", max_sweeps=2) as source, make(folder / "a.ctf", max_sweeps=2) as other:
        for one in (source, other):
            one.next_minibatch(7)
        source.skip(3, 5)
        source.skip(0, 5)
        for _ in range(3):
            other.next_minibatch(5)
        assert source.state_dict() == other.state_dict()
        assert shown(source.next_minibatch(5)) == shown(other.next_minibatch(5))


def test_the_steps_of_an_epoch_begin_with_the_epoch(folder: Path) -> None:
    features = KINDS["rolling window"].make(folder)
    assert isinstance(features, HTKMLFReader)
    with features as source:
        source.begin_epoch(20, 50)
        plan = source.plan(8)
        assert plan.steps(100).positions.tolist() == [28, 36, 44, 50]
        assert [len(source.next_minibatch(8)["x"].values) for _ in range(4)] == plan.steps(4).num_samples.tolist()


def test_origins_name_the_rows_of_each_file(folder: Path) -> None:
    with KINDS["joined"].make(folder) as source:
        explained = source.plan(9).explain(2)
        first, second = explained.origins
        assert first.name.endswith("a.ctf") and second.name.endswith("b.ctf")
        assert first.sequences.tolist() == explained.keys.tolist()  # sequence k has key k
        assert (2 * second.sequences).tolist() == explained.keys.tolist()


def test_a_plan_moves_nothing_and_reads_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with make(folder / "a.ctf", 200, max_sweeps=1, read_ahead_in_bytes=0) as source:
        source.next_minibatch(5)
        before = source.state_dict()
        with monkeypatch.context() as patch:
            patch.setattr("cntkio.source.loading.CorpusChunks.get", lambda *_: pytest.fail("a chunk was read"))
            plan = source.plan(5)
            assert plan.steps(3).num_chunks.tolist() == [source.num_chunks] * 3
            assert plan.where(7) and plan.explain(0).keys.size
        assert source.state_dict() == before


def test_impossible_plans_are_refused(folder: Path) -> None:
    with KINDS["user-defined"].make(folder) as source, pytest.raises(ConfigError, match="timeline='global'"):
        source.plan(5)
    with make(folder / "a.ctf", max_sweeps=1) as source:
        for wrong in (-1, "3", 1.5):
            with pytest.raises(ConfigError, match="step is"):
                source.plan(5).explain(wrong)  # type: ignore[arg-type]
        with pytest.raises(CorpusError, match="no sequence has the key 'u7'"):
            source.plan(5).where("u7")
        with pytest.raises(ConfigError, match="num_steps is '3'"):
            source.skip("3", 5)  # type: ignore[arg-type]


def test_the_padded_area_is_that_of_the_longest_sequence(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_bytes(corpus_text([1, 3, 2, 2]))
    deserializer = CTFDeserializer(tmp_path / "a.ctf", StreamDefs(x=StreamDef(field="x", shape=2)))
    with MinibatchSource(deserializer, randomize=False, max_sweeps=1) as source:
        steps = source.plan(4).steps(9)
        assert (steps.num_samples.tolist(), steps.padded_areas.tolist()) == ([4, 4], [6, 4])
        assert plain(source.read(4)) is not None
        assert np.array_equal(source.plan(4, from_here=True).steps(9).positions, steps.positions[1:])

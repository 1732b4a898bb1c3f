"""Plans agree with deliveries: steps, keys, origins and states, in every kind of source."""

import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    Budget,
    ConfigError,
    CorpusError,
    CTFDeserializer,
    HTKFeatureDeserializer,
    HTKMLFDeserializer,
    HTKMLFReader,
    MinibatchSource,
    Mixture,
    SequenceMixture,
    StreamDef,
    StreamDefs,
    write_htk_archive,
)
from cntkio.source.pipeline import HandOver
from cntkio.source.plan import ExplainedStep, NoChunks
from cntkio.source.selecting import Selector
from cntkio.timeline import BalancedPartition, GlobalPartition, Partition
from cntkio.timeline.timeline import Timeline
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.builders import STREAMS, corpus_text, shown, source_of
from support.interrupts import KINDS, plain, write_corpora
from support.rounds import rounds

PLANNED = [name for name in KINDS if name not in ("user-defined", "user-defined, truncated")]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora")
    write_corpora(folder)
    return folder


def delivered(source: MinibatchSource, size: int, partition: Partition) -> list[Any]:
    """Return the minibatches, and the state after each."""
    found = []
    while (minibatch := source.read(size, partition)) is not None:
        found.append((minibatch, source.state_dict()))
    return found


def check_places(explained: ExplainedStep) -> None:
    """Compare the places of sequences with the bytes at these places."""
    for origin in explained.origins:
        paths, path_indices, offsets, lines = origin.places
        assert origin.places is origin.places
        for row, index in enumerate(path_indices.tolist() if paths else []):
            key = explained.keys[row]
            content = Path(paths[index]).read_bytes()
            assert offsets is not None
            if lines is not None:
                assert content[offsets[row] :].startswith(b"%d |" % int(key))
                assert content.splitlines()[lines[row] - 1].startswith(b"%d |" % int(key))
            elif paths[index].endswith(".ark"):
                assert struct.unpack(">f", content[offsets[row] :][:4]) == (float(key.removeprefix("u")),)


def check(source: MinibatchSource, size: int, partition: Partition, *, from_here: bool = False) -> None:
    plan = source.plan(size, partition, from_here=from_here)
    position = source.state_dict()["timeline"]["position"] if from_here else 0
    minibatches = delivered(source, size, partition)
    steps = plan.steps(10**6)
    assert len(steps) == len(minibatches)
    keys_of_steps: dict[Any, list[int]] = {}
    for step, (minibatch, state) in enumerate(minibatches):
        explained = plan.explain(step)
        keys = minibatch.keys_of_sequences.tolist()
        assert explained.keys.tolist() == keys
        check_places(explained)
        assert explained.position == state["timeline"]["position"]
        if explained.position > position:
            for passed in {position, explained.position - 1}:
                assert plan.explain(position=passed).step == step
        position = explained.position
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


@pytest.mark.parametrize("size", [5, *(pytest.param(size, marks=pytest.mark.thorough) for size in (1, 40))])
@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_agrees_with_the_delivered_minibatches(name: str, size: int, corpora: Path) -> None:
    with KINDS[name].make(corpora) as source:
        check(source, max(size, 2 * ("truncated" in name)), KINDS[name].partition)


def open_any(folder: Path, kind: str, lengths: list[int], **options: Any) -> MinibatchSource:
    """Open a source of a kind over sequences of these lengths, in small chunks."""
    (folder / "a.ctf").write_bytes(corpus_text(lengths))
    if kind == "text":
        return source_of(folder / "a.ctf", 100, **options)
    if kind == "joined":
        lines = [b"%d |y %d\n" % (key, key) * length for key, length in enumerate([*lengths, 1]) if key % 2 == 0]
        (folder / "b.ctf").write_bytes(b"".join(lines))
        streams = StreamDefs(y=StreamDef(field="y", shape=1))
        other = CTFDeserializer(folder / "b.ctf", streams, chunk_size_in_bytes=30)
        first = CTFDeserializer(folder / "a.ctf", STREAMS, chunk_size_in_bytes=100)
        return MinibatchSource([first, other], trace_level=0, **options)
    utterances = [(f"u{key}", np.full((length, 2), key, np.float32)) for key, length in enumerate(lengths)]
    write_htk_archive(folder / "a.ark", folder / "a.scp", utterances)
    features = HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp=folder / "a.scp", shape=2)))
    return MinibatchSource(features, frame_mode=kind == "frames", **options)


def partition_of(kind: str, index: int, count: int) -> Partition:
    if kind == "cntk":
        return Partition(index, count)
    return BalancedPartition(index, count, "repeat") if kind == "balanced" else GlobalPartition(index, count)


@given(
    st.sampled_from(["text", "joined", "utterances", "frames"]),
    st.lists(st.integers(1, 6), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 2)), min_size=1, max_size=4),
    st.sampled_from([0, 1, 2, 100]),
    st.sampled_from([0, 1, 3]),
    st.sampled_from(["cntk", "balanced", "global"]),
    st.integers(1, 3),
    st.data(),
)
@settings(max_examples=rounds(120), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_settings_partition_and_sizes_that_change_are_planned(
    tmp_path: Path,
    kind: str,
    lengths: list[int],
    sizes: list[tuple[int, int]],
    window: int,
    steps: int,
    partition_kind: str,
    count: int,
    data: st.DataObject,
) -> None:
    if kind == "frames":
        steps = 0
    if steps and partition_kind == "balanced":
        partition_kind = "cntk"
    partition = partition_of(partition_kind, data.draw(st.integers(0, count - 1)), count)
    options = {"randomization_window_in_chunks": window, "truncation_length": steps, "max_sweeps": 2}
    with open_any(tmp_path, kind, lengths, **options) as source:
        least = steps * count or 1
        for size, num_reads in sizes[:-1]:
            for _ in range(num_reads):
                source.read(max(size, least), partition)
        check(source, max(sizes[-1][0], least), partition, from_here=True)


def test_a_plan_from_here_continues_after_reads_of_other_sizes(corpora: Path) -> None:
    with source_of(corpora / "a.ctf", max_sweeps=2, truncation_length=2) as source:
        for size in (4, 8, 8, 6):
            source.next_minibatch(size)
        plan = source.plan(6, from_here=True)
        keys = [plan.explain(step).keys.tolist() for step in range(3)]
        assert keys == [source.next_minibatch(6).keys_of_sequences.tolist() for _ in range(3)]  # type: ignore[attr-defined]


def test_a_plan_has_the_truncation_of_the_epoch(corpora: Path) -> None:
    with source_of(corpora / "a.ctf", truncation_length=5) as source:
        source.begin_epoch(0, source.num_samples, truncation_length=2)
        plan = source.plan(6)
        for step in range(10):
            minibatch = source.next_minibatch(6)
            assert plan.explain(step).keys.tolist() == minibatch.keys_of_sequences.tolist()  # type: ignore[attr-defined]


def test_skipped_steps_are_not_delivered(corpora: Path) -> None:
    with source_of(corpora / "a.ctf", max_sweeps=2) as source, source_of(corpora / "a.ctf", max_sweeps=2) as other:
        for one in (source, other):
            one.next_minibatch(7)
        source.skip(3, 5)
        source.skip(0, 5)
        for _ in range(3):
            other.next_minibatch(5)
        assert source.state_dict() == other.state_dict()
        assert shown(source.next_minibatch(5)) == shown(other.next_minibatch(5))


@pytest.mark.parametrize("partition", [Partition(), GlobalPartition(1, 2)])
@pytest.mark.parametrize("options", [{}, {"randomize": False}, {"truncation_length": 2}])
def test_a_skip_of_a_million_steps_takes_few_calls(
    partition: Partition, options: dict[str, Any], corpora: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_calls = Counter[str]()

    def count(name: str) -> None:
        method = getattr(Timeline, name)

        def counting(*arguments: Any, **keywords: Any) -> Any:
            num_calls[name] += 1
            return method(*arguments, **keywords)

        monkeypatch.setattr(Timeline, name, counting)

    for name in ("read_several", "pass_over", "bookmark", "checkpoint", "go_back"):
        count(name)
    with source_of(corpora / "a.ctf", **options) as source:
        source.skip(1_000_000, 4, partition)
        assert source.get_checkpoint_state()["minibatchSourcePosition"] > 1_000_000
    assert num_calls["pass_over"] and sum(num_calls.values()) < 100


FAR_AWAY = {
    "skip": lambda source: source.skip(2**40, 7),
    "steps": lambda source: source.plan(7).steps(2**40),
    "explain": lambda source: source.plan(7).explain(2**62),
    "explain a position": lambda source: source.plan(7).explain(position=2**61),
    "where": lambda source: source.plan(7).where(0, num_steps=2**40),
    "state_at": lambda source: source.plan(7).state_at(2**40),
}
ENDLESS = {
    "randomized": lambda path: source_of(path),
    "in order": lambda path: source_of(path, randomize=False),
    "truncated": lambda path: source_of(path, truncation_length=2),
    "mixture of sequences": lambda path: SequenceMixture({"a": (CTFDeserializer(path, STREAMS), 1)}, stop="forever"),
}


@pytest.mark.parametrize("name", FAR_AWAY)
@pytest.mark.parametrize("kind", ENDLESS)
def test_a_step_that_is_too_far_away_is_refused_at_once(name: str, kind: str, corpora: Path) -> None:
    with ENDLESS[kind](corpora / "a.ctf") as source:
        state = source.state_dict()
        with pytest.raises(ConfigError, match="too far for a plan"):
            FAR_AWAY[name](source)
        assert source.state_dict() == state


@pytest.mark.parametrize("name", FAR_AWAY)
def test_a_step_after_the_end_costs_only_the_sweeps(name: str, corpora: Path) -> None:
    with source_of(corpora / "a.ctf", max_sweeps=3) as source:
        if name in ("steps", "where"):
            assert 10 < len(source.plan(7).steps(2**40)) < 90 and len(source.plan(7).where(0, 2**40)) == 3
        else:
            with pytest.raises(ConfigError, match="the data end"):
                FAR_AWAY[name](source)


def test_sequences_of_one_length_are_skipped_by_arithmetic(corpora: Path) -> None:
    (corpora / "even.ctf").write_bytes(b"".join(b"%d |x %d %d |s %d:1\n" % (key, key, key, key) for key in range(30)))
    with source_of(corpora / "even.ctf") as source:
        source.skip(2**40, 7)
        assert source.get_checkpoint_state() == {"minibatchSourcePosition": 7 * 2**40}


@pytest.mark.parametrize("stop", ["first", "all", "forever"])
def test_a_plan_of_a_mixture_ends_or_refuses_too_many_steps(stop: Any, corpora: Path) -> None:
    with Mixture({"a": (CTFDeserializer(corpora / "a.ctf", STREAMS), 1)}, stop=stop) as mixture:
        plan = mixture.plan(7)
        if stop == "forever":
            for ask in (plan.steps, plan.explain):
                with pytest.raises(ConfigError, match="too far for a plan"):
                    ask(2**62)
        else:
            assert 5 < len(plan.steps(2**62)) < 40
            with pytest.raises(ConfigError, match="the data end"):
                plan.explain(2**62)


@pytest.mark.parametrize("name", PLANNED)
def test_the_state_before_the_first_step_is_the_state_of_the_source(name: str, corpora: Path) -> None:
    kind = KINDS[name]
    with kind.make(corpora) as source:
        start = source.state_dict()
        assert source.plan(5, kind.partition).state_at(0) == start
        source.read(5, kind.partition)
        assert source.plan(5, kind.partition).state_at(0) == start
        assert source.plan(5, kind.partition, from_here=True).state_at(0) == source.state_dict()
        with pytest.raises(ConfigError, match="num_steps is -1"):
            source.plan(5, kind.partition).state_at(-1)


def test_the_steps_of_an_epoch_begin_with_the_epoch(corpora: Path) -> None:
    features = KINDS["rolling window"].make(corpora)
    assert isinstance(features, HTKMLFReader)
    with features as source:
        source.begin_epoch(20, 50)
        plan = source.plan(8)
        assert plan.steps(100).positions.tolist() == [28, 36, 44, 50]
        assert [len(source.next_minibatch(8)["x"].values) for _ in range(4)] == plan.steps(4).num_samples.tolist()


def test_origins_name_the_rows_of_each_file(corpora: Path) -> None:
    with KINDS["joined"].make(corpora) as source:
        explained = source.plan(9).explain(2)
        first, second = explained.origins
        assert first.name.endswith("a.ctf") and second.name.endswith("b.ctf")
        assert first.sequences.tolist() == explained.keys.tolist()  # sequence k has key k
        assert (2 * second.sequences).tolist() == explained.keys.tolist()


def test_a_plan_reads_nothing_and_leaves_the_source_in_place(corpora: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with source_of(corpora / "a.ctf", 200, max_sweeps=1, read_ahead_in_bytes=0) as source:
        source.next_minibatch(5)
        before = source.state_dict()
        with monkeypatch.context() as patch:
            patch.setattr("cntkio.source.chunks.ChunksInMemory.get", lambda *_: pytest.fail("a chunk was read"))
            plan = source.plan(5)
            assert plan.steps(3).num_chunks.tolist() == [source.num_chunks] * 3
            assert plan.where(7) and plan.explain(0).keys.size
        assert source.state_dict() == before


def test_impossible_plans_are_refused(corpora: Path) -> None:
    with KINDS["user-defined"].make(corpora) as source, pytest.raises(ConfigError, match="timeline='global'"):
        source.plan(5)
    with source_of(corpora / "a.ctf", max_sweeps=1) as source:
        for wrong in (-1, "3", 1.5):
            with pytest.raises(ConfigError, match="step is"):
                source.plan(5).explain(wrong)  # type: ignore[arg-type]
        with pytest.raises(CorpusError, match="no sequence has the key 'u7'"):
            source.plan(5).where("u7")
        with pytest.raises(ConfigError, match="num_steps is '3'"):
            source.skip("3", 5)  # type: ignore[arg-type]


def test_a_plan_from_here_stays_where_the_source_stood(corpora: Path) -> None:
    with source_of(corpora / "a.ctf", max_sweeps=1) as source:
        source.next_minibatch(7)
        plan = source.plan(5, from_here=True)
        expected = source.next_minibatch(5).keys_of_sequences.tolist()  # type: ignore[attr-defined]
        assert plan.explain(0).keys.tolist() == expected


def test_an_interrupt_in_the_middle_of_a_step_ends_the_walk(corpora: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take = NoChunks.take

    def interrupted(self: NoChunks, *arguments: Any) -> Any:
        take(self, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(NoChunks, "take", interrupted)
    with source_of(corpora / "a.ctf", max_sweeps=1) as source:
        for walk in (lambda plan: plan.sweep(), lambda plan: plan.where(3), lambda plan: plan.explain(0)):
            with pytest.raises(KeyboardInterrupt):
                walk(source.plan(1))


def test_positions_outside_the_plan_are_refused(corpora: Path) -> None:
    with source_of(corpora / "a.ctf", max_sweeps=1) as source:
        source.next_minibatch(9)
        plan = source.plan(5, from_here=True)
        with pytest.raises(ConfigError, match="position is 3; expected at least 9, where the plan begins"):
            plan.explain(position=3)
        with pytest.raises(ConfigError, match="position is 90, but the data end at position 90"):
            plan.explain(position=90)
        for arguments in ({}, {"step": 1, "position": 20}):
            with pytest.raises(ConfigError, match="step is .* and position is .*; expected exactly one of the two"):
                plan.explain(**arguments)


def test_places_of_labels_and_features_agree_with_their_files(tmp_path: Path) -> None:
    utterances = [(f"u{key}", np.full((2, 3), key, np.float32)) for key in range(5)]
    write_htk_archive(tmp_path / "a.ark", tmp_path / "a.scp", utterances)
    (tmp_path / "a.states").write_text("aa\n")
    entries = [f'"u{key}"\n0 200000 aa\n.\n' for key in (3, 1, 0, 4, 2)]
    (tmp_path / "a.mlf").write_text("#!MLF!#\n" + "".join(entries))
    features = HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp=tmp_path / "a.scp", shape=3)))
    labels = HTKMLFDeserializer(tmp_path / "a.states", StreamDefs(y=StreamDef(mlf=tmp_path / "a.mlf", shape=1)))
    with MinibatchSource([features, labels], randomize=False, max_sweeps=1) as source:
        explained = source.plan(10).explain(0)
        assert explained.keys.tolist() == ["u0", "u1", "u2", "u3", "u4"]
        places = explained.origins[1].places
        assert places.lines is not None and places.lines.tolist() == [8, 5, 14, 2, 11]
        assert places.texts()[1] == f"{tmp_path / 'a.mlf'}:5"
        assert explained.origins[0].places.texts()[0] == f"{tmp_path / 'a.ark'}: byte 12"
        text = repr(explained)
        assert text.splitlines()[0] == "Step 0: 5 sequences, 10 samples" and "a.mlf:5" in text
        assert "<td" in explained._repr_html_() and "10 samples" in explained._repr_html_()


def test_steps_next_to_an_invalid_utterance_are_explained(tmp_path: Path) -> None:
    utterances = [(f"u{key}", np.full((2, 3), key, np.float32)) for key in range(30)]
    write_htk_archive(tmp_path / "a.ark", tmp_path / "a.scp", utterances)
    (tmp_path / "a.states").write_text("aa\n")
    entries = [f'"u{key}"\n0 {100_000 if key == 7 else 200_000} aa\n.\n' for key in range(30)]
    (tmp_path / "a.mlf").write_text("#!MLF!#\n" + "".join(entries))
    features = HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp=tmp_path / "a.scp", shape=3)))
    y = StreamDefs(y=StreamDef(mlf=tmp_path / "a.mlf", shape=1))
    labels = HTKMLFDeserializer(tmp_path / "a.states", y, compatible=True)
    with MinibatchSource([features, labels], max_sweeps=1, max_errors=10, trace_level=0) as source:
        plan, position = source.plan(4), 0
        for step, (minibatch, _) in enumerate(delivered(source, 4, Partition())):
            explained = plan.explain(step)  # no step can be passed over, so those before it are selected with it
            assert explained.keys.tolist() == minibatch.keys_of_sequences.tolist()
            assert plan.explain(position=position).step == step
            position = explained.position


def test_places_in_several_files_name_the_file(tmp_path: Path) -> None:
    for name, first in (("a.ctf", 0), ("b.ctf", 7)):
        (tmp_path / name).write_bytes(b"".join(b"%d |x 1 2\n" % (first + key) for key in range(7)))
    streams = StreamDefs(x=StreamDef(field="x", shape=2))
    with MinibatchSource(CTFDeserializer([tmp_path / "a.ctf", tmp_path / "b.ctf"], streams), max_sweeps=1) as source:
        explained = source.plan(10).explain(0)
        check_places(explained)
        assert set(explained.origins[0].places.path_indices.tolist()) == {0, 1}


def test_places_in_a_binary_corpus_agree_with_its_chunks(corpora: Path) -> None:
    with KINDS["binary"].make(corpora) as source:
        places = source.plan(1000).explain(0).origins[0].places
        assert places.bytes is not None and places.lines is None
        assert len(set(places.bytes.tolist())) == source.num_chunks > 1
        assert "a.cbf: byte" in places.texts()[0]
    with KINDS["user-defined, global"].make(corpora) as source:
        explained = source.plan(9).explain(0)
        assert explained.origins[0].places.bytes is None
        assert repr(explained).startswith("Step 0:")


def test_the_padded_area_follows_from_the_longest_sequence(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_bytes(corpus_text([1, 3, 2, 2]))
    deserializer = CTFDeserializer(tmp_path / "a.ctf", StreamDefs(x=StreamDef(field="x", shape=2)))
    with MinibatchSource(deserializer, randomize=False, max_sweeps=1) as source:
        steps = source.plan(4).steps(9)
        assert (steps.num_samples.tolist(), steps.padded_areas.tolist()) == ([4, 4], [6, 4])
        assert plain(source.read(4)) is not None
        assert np.array_equal(source.plan(4, from_here=True).steps(9).positions, steps.positions[1:])


def test_costs_and_components_of_a_plan_are_those_of_the_minibatches(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.ctf").write_bytes(corpus_text([1, 3, 2, 2, 5, 1, 4]))
    for kind in (Mixture, SequenceMixture):
        parts = {name: (source_of(tmp_path / f"{name}.ctf"), 3.0 if name == "a" else 1.0) for name in ("a", "b")}
        size = Budget(samples=9, pool=6, balance="attention", cost=(2, 3))
        with kind(parts, stop="forever") as mixture:
            columns = mixture.plan(size).steps(20).columns()
            for step in range(20):
                minibatch = mixture.read(size)
                assert minibatch is not None
                lengths, names = next(iter(minibatch.values())).lengths, minibatch.source_of_sequences.tolist()
                assert columns["cost"][step] == (2 * lengths + 3 * lengths**2).sum()
                assert [columns[f"sequences of {name}"][step] for name in ("a", "b")] == [*map(names.count, ("a", "b"))]


@pytest.mark.parametrize("count", [0, 1, 10, 300])
def test_a_plan_of_few_steps_selects_few_steps(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.ctf").write_bytes(corpus_text([2] * 5000))
    selected = list[int]()
    select = Selector.select

    def counted(self: Selector, *arguments: Any) -> HandOver:
        hand_over = select(self, *arguments)
        selected.append(hand_over.num_minibatches)
        return hand_over

    monkeypatch.setattr(Selector, "select", counted)
    parts = {"a": (source_of(tmp_path / "a.ctf"), 1), "b": (source_of(tmp_path / "a.ctf"), 1)}
    for made, num_parts in ((source_of(tmp_path / "a.ctf"), 1), (SequenceMixture(parts), 1), (Mixture(parts), 2)):
        with made as source:
            plan = source.plan(2)
            assert len(plan.steps(count)) == count
            assert sum(selected) <= max(count, num_parts)
            selected.clear()


@pytest.mark.parametrize("num_sequences", [15, 16, 17, 32])
def test_a_plan_may_end_between_steps_that_are_selected_together(tmp_path: Path, num_sequences: int) -> None:
    (tmp_path / "a.ctf").write_bytes(corpus_text([1] * num_sequences))
    with source_of(tmp_path / "a.ctf", max_sweeps=1) as source:
        # 16 steps of this size are selected together.
        plan = source.plan(Budget(samples=1 << 14, sequences=1))
        assert [len(plan.steps(most)) for most in (num_sequences, num_sequences + 1, 99)] == [num_sequences] * 3
        assert len(plan.sweep().steps) == num_sequences
        with pytest.raises(ConfigError, match=f"the data end after {num_sequences} steps"):
            plan.state_at(num_sequences + 1)

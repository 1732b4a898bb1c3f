"""Sources in lanes: every kind of source, plans, explanations, and states of any number of ranks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cntkio import (
    Budget,
    CBFDeserializer,
    ConfigError,
    CTFDeserializer,
    GlobalPartition,
    MinibatchSource,
    Mixture,
    SequenceMixture,
    SplitRows,
    StreamDef,
    StreamDefs,
    write_cbf,
)

LENGTHS = [1 + (7 * key + key // 5) % 6 for key in range(90)]
SIZES = [17, Budget(samples=40), Budget(padded=48, pool=30), Budget(rows=8, row_length=8, pool=40)]
Make = Callable[[], Any]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Make]:
    folder = tmp_path_factory.mktemp("lanes")
    for name in ("x", "y"):
        lines = [f"{key} |{name} {key}\n" for key, length in enumerate(LENGTHS) for _ in range(length)]
        (folder / f"{name}.ctf").write_text("".join(lines if name == "x" else reversed(lines)))

    def text(name: str) -> Any:
        streams = StreamDefs(**{name: StreamDef(field=name, shape=1)})
        return CTFDeserializer(folder / f"{name}.ctf", streams, chunk_size_in_bytes=120)

    write_cbf(folder / "x.cbf", text("x"), chunk_size_in_bytes=100)
    options: dict[str, Any] = {"max_sweeps": 2, "randomization_seed": 3}

    def of(corpus: Any) -> MinibatchSource:
        return MinibatchSource(corpus, **options)

    lines = CTFDeserializer(folder / "x.ctf", text("x").streams, skip_sequence_ids=True, chunk_size_in_bytes=120)
    binary = CBFDeserializer(folder / "x.cbf")
    return {
        "text": lambda: of(text("x")),
        "joined": lambda: of([text("x"), text("y")]),
        "frames": lambda: MinibatchSource(lines, frame_mode=True, **options),
        "binary": lambda: of(binary),
        "mixture": lambda: Mixture(
            {"a": (MinibatchSource(text("x")), 2), "b": (MinibatchSource(binary), 1)}, stop="all"
        ),
        "sequences": lambda: SequenceMixture({"a": (text("x"), 2), "b": (binary, 1)}),
        "endless": lambda: SequenceMixture({"a": (text("x"), 2), "b": (binary, 1)}, stop="forever"),
    }


def keys(minibatch: Any) -> list[Any]:
    """Return the key of each sequence; all samples of a sequence are its key."""
    found: list[Any] = minibatch.keys_of_sequences.tolist()
    return found


def read_all(source: Any, size: Any, partition: GlobalPartition) -> list[list[Any]]:
    with source:
        return [keys(minibatch) for minibatch in iter(lambda: source.read(size, partition), None)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["text", "joined", "frames", "binary", "mixture", "sequences"])
def test_every_kind_of_source_has_the_same_minibatches_on_any_ranks(
    kinds: dict[str, Make], kind: str, size: Any
) -> None:
    if kind == "frames" and not isinstance(size, int):
        size = 40  # frames have no lengths to pack
    whole = read_all(kinds[kind](), size, GlobalPartition(lanes=8))
    ranks = [read_all(kinds[kind](), size, GlobalPartition(rank, 3, lanes=8)) for rank in range(3)]
    assert [sum(step, []) for step in zip(*ranks, strict=True)] == whole
    assert len(set(map(len, ranks))) == 1
    if kind not in ("mixture", "sequences"):
        assert sorted(sum(whole, [])) == sorted(2 * whole_keys(kinds[kind]()))


def whole_keys(source: MinibatchSource) -> list[Any]:
    with source:
        minibatches = [keys(minibatch) for minibatch in source.minibatches(1000)]
    return sorted(sum(minibatches, []))[::2]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["text", "sequences"])
def test_a_plan_in_lanes_is_what_is_delivered(kinds: dict[str, Make], kind: str, size: Any) -> None:
    partition = GlobalPartition(1, 2, lanes=8)
    with kinds[kind]() as source:
        plan = source.plan(size, partition)
        steps = plan.steps(1000)
        explained = plan.explain(5)
        ledger = plan.ledger(4, 9)
        delivered = []
        for number, position in enumerate(steps.positions.tolist()):
            minibatch = source.read(size, partition)
            assert source.state_dict()["timeline"]["position"] == position
            assert minibatch.end_of_sweep == steps.ends_of_sweep[number]
            delivered.append(keys(minibatch))
        assert source.read(size, partition) is None
    assert [len(step) for step in delivered] == steps.num_sequences.tolist()
    assert explained.keys.tolist() == delivered[5]
    assert ledger.keys.tolist() == sum(delivered[4:9], [])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["text", "joined", "mixture", "sequences"])
def test_a_state_in_lanes_continues_on_any_number_of_ranks(kinds: dict[str, Make], kind: str, size: Any) -> None:
    whole = read_all(kinds[kind](), size, GlobalPartition(lanes=8))
    state, number = None, 0
    for count in (2, 4, 1, 3):
        found: list[list[Any]] = [[], []]
        states = set()
        for rank in range(count):
            with kinds[kind]() as source:
                if state is not None:
                    source.load_state_dict(state)
                for step in found:
                    step += keys(source.read(size, GlobalPartition(rank, count, lanes=8)))
                states.add(json.dumps(source.state_dict()))
        assert found == whole[number : number + 2]
        number, (text,) = number + 2, states
        state = json.loads(text)


def test_a_read_after_an_error_of_the_call_continues_in_lanes(kinds: dict[str, Make]) -> None:
    partition = GlobalPartition(0, 2, lanes=8)
    whole = read_all(kinds["text"](), 17, partition)
    with kinds["text"]() as source:
        found = [keys(source.read(17, partition)) for _ in range(3)]
        with pytest.raises(ConfigError, match="size or lanes change after step 3 of a sweep"):
            source.read(18, partition)
        while (minibatch := source.read(17, partition)) is not None:
            found.append(keys(minibatch))
    assert found == whole


def test_split_rows_refuse_lanes(kinds: dict[str, Make]) -> None:
    with kinds["text"]() as source, pytest.raises(ConfigError, match="take no lanes"):
        SplitRows(source, rows=2, length=8, partition=GlobalPartition(lanes=8))


def test_new_weights_begin_with_the_next_block_of_lanes(kinds: dict[str, Make]) -> None:
    partition = GlobalPartition(lanes=8)
    with kinds["endless"]() as source:
        source.read(2, partition)
        source.set_weights({"a": 1, "b": 999})
        state = source.state_dict()["timeline"]
        assert state["weights"][1][0] == state["pool_end"] > state["position"] == 0
        found = []
        while source.state_dict()["timeline"]["position"] < state["pool_end"]:
            found += source.read(2, partition).source_of_sequences.tolist()
        assert 0.6 < found.count("a") / len(found) < 0.7
        later = [source.read(2, partition).source_of_sequences.tolist() for _ in range(20)]
        assert {*sum(later, [])} == {"b"}


class Counting(CTFDeserializer):
    """A text that notes the number of sequences of each load."""

    def open(self, *arguments: Any, **options: Any) -> Any:
        corpus = super().open(*arguments, **options)
        load, self.loaded = corpus.load, list[int]()

        def counted(chunk: int, part: Any = None) -> Any:
            first, end = corpus.table.bounds_of(chunk)
            self.loaded.append(end - first if part is None else len(part))
            return load(chunk, part)

        corpus.load = counted
        return corpus


@pytest.mark.parametrize("chunk_size", [120, 1000, 10**5])
def test_the_ranks_of_lanes_load_each_sequence_once(tmp_path: Path, chunk_size: int) -> None:
    path = tmp_path / "a.ctf"
    path.write_text("".join(f"{key} |x {key}\n" for key in range(2000)))
    of_ranks = []
    for rank in range(4):
        text = Counting(path, StreamDefs(x=StreamDef(field="x", shape=1)), chunk_size_in_bytes=chunk_size)
        with MinibatchSource(text, max_sweeps=1, randomization_window_in_chunks=16) as source:
            while source.read(80, GlobalPartition(rank, 4, lanes=8)) is not None:
                pass
        of_ranks.append(sum(text.loaded))
    assert of_ranks == [500] * 4  # also the sequences of a chunk that two lanes share

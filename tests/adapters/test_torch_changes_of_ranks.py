"""Ranks come and go between two steps of a running program. (docs/torch.md, "Ranks that come and go")

All ranks of a job are data sets of one process here, so a test decides the order of everything that happens.
"""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    Budget,
    CBFDeserializer,
    ConfigError,
    CTFDeserializer,
    FormatError,
    GlobalPartition,
    HTKFeatureDeserializer,
    MinibatchSource,
    Mixture,
    Partition,
    SequenceMixture,
    SplitRows,
    StreamDef,
    StreamDefs,
    write_htk_features,
)
from cntkio.convert import write_cbf
from support.rounds import rounds

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from cntkio.arrow import ArrowDeserializer, write_parquet  # noqa: E402
from cntkio.torch import MinibatchDataset  # noqa: E402
from support.gloo import in_ranks, of_all_ranks, of_first_rank  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

STREAMS = StreamDefs(x=StreamDef(field="x", shape=1), y=StreamDef(field="y", shape=9, is_sparse=True))
LENGTHS = [1 + (7 * key + key // 5) % 6 for key in range(60)]

Make = Callable[[], Any]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Make]:
    """Return for each kind of source a function that opens it."""
    folder = tmp_path_factory.mktemp("ranks")
    text, binary, table, files = folder / "a.ctf", folder / "a.cbf", folder / "a.parquet", folder / "a.scp"
    text.write_text(
        "".join(f"{key} |x {key}.{step} |y {step}:1\n" for key, n in enumerate(LENGTHS) for step in range(n))
    )
    write_cbf(binary, CTFDeserializer(text, STREAMS), chunk_size_in_bytes=200)
    write_parquet(table, CTFDeserializer(text, STREAMS))
    for key, length in enumerate(LENGTHS):
        write_htk_features(folder / f"{key}.mfc", np.full((length, 2), key, np.float32))
    files.write_text("".join(f"{folder / str(key)}.mfc\n" for key in range(len(LENGTHS))))

    def ctf() -> Any:
        return CTFDeserializer(text, STREAMS, chunk_size_in_bytes=300)

    return {
        "ctf": lambda: MinibatchSource(ctf(), max_sweeps=3, randomization_seed=1),
        "ctf in order": lambda: MinibatchSource(ctf(), randomize=False, max_sweeps=2),
        "cbf": lambda: MinibatchSource(CBFDeserializer(binary), max_sweeps=2, randomization_seed=3),
        "htk": lambda: MinibatchSource(
            HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp=str(files), shape=2))), max_sweeps=2
        ),
        "parquet": lambda: MinibatchSource(ArrowDeserializer(table), max_sweeps=2),
        "mixture": lambda: Mixture(
            {
                "a": (MinibatchSource(ctf(), randomization_seed=5), 2),
                "b": (MinibatchSource(CBFDeserializer(binary), randomization_seed=6), 1),
            },
            stop="all",
        ),
        "sequence mixture": lambda: SequenceMixture({"a": (ctf(), 3), "b": (CBFDeserializer(binary), 1)}, stop="all"),
    }


SIZES: dict[str, Any] = {
    "samples": 24,
    "few samples": 7,
    "budget": Budget(samples=30, sequences=9),
    "padded pool": Budget(padded=40, pool=30),
    "buckets": Budget(padded=48, pool=40, buckets=(3, 6)),
    "rows": Budget(rows=6, row_length=8, pool=30),
    "attention": Budget(samples=40, pool=30, balance="attention"),
    "schedule": Budget(padded={0: 12, 90: 40}, max_length={0: 3, 60: 6}, oversize="drop"),
    "scheduled pool": Budget(samples={0: 12, 90: 40}, pool=12, between="steps"),
}


def parts_of(minibatch: Any) -> list[tuple[str, ...]]:
    """Return all bits of each sequence of a minibatch of tensors, with its key."""
    found = []
    for index, key in enumerate(minibatch.keys_of_sequences.tolist()):
        bits = [str(key)]
        for name in sorted(minibatch):
            stream = minibatch[name]
            begin, end = stream.offsets[index : index + 2].tolist()
            values = stream.values
            bits.append(f"{name}{(values.to_dense() if values.is_sparse_csr else values)[begin:end].tolist()}")
        found.append(tuple(bits))
    return found


class Job:
    """The ranks of a job, which read in turn."""

    def __init__(self, make: Make, size: Any, count: int, **options: Any) -> None:
        self._make, self._size, self._options = make, size, options
        self.ranks: list[MinibatchDataset] = []
        self.running: list[Iterator[Any]] = []
        self.change(count)

    def _new(self, rank: int = 0, count: int = 1) -> MinibatchDataset:
        return MinibatchDataset(
            self._make(), self._size, partition="global", rank=rank, world_size=count, **self._options
        )

    def change(self, count: int, leaving: int = 0) -> None:
        """Let ranks leave or come, without a restart: a new rank begins with the state of another."""
        state = json.loads(json.dumps(self.ranks[0].state_dict())) if self.ranks else None
        if self.ranks:
            gone = leaving % len(self.ranks)
            self.ranks = (self.ranks[gone:] + self.ranks[:gone])[:count]
            self.running = (self.running[gone:] + self.running[:gone])[:count]
        for _ in range(count - len(self.ranks)):
            self.ranks.append(self._new())
            if state is not None:
                self.ranks[-1].load_state_dict(state)
            self.running.append(iter(self.ranks[-1]))
        for rank, dataset in enumerate(self.ranks):
            dataset.set_ranks(rank, count)

    def take_back(self, state: Any) -> None:
        """Go back to a state of before, in the same data sets."""
        for dataset in self.ranks:
            dataset.load_state_dict(state)
        self.running = [iter(dataset) for dataset in self.ranks]

    def restart(self) -> None:
        state, count = json.loads(json.dumps(self.ranks[-1].state_dict())), len(self.ranks)
        self.ranks = [self._new(rank, count) for rank in range(count)]
        self.take_back(state)

    def step(self) -> list[tuple[str, ...]] | None:
        """Return all sequences of a step, sorted; None: the data have ended for all ranks."""
        minibatches = [next(one, None) for one in self.running]
        if None in minibatches:
            assert minibatches == [None] * len(minibatches)
            return None
        return sorted(sequence for minibatch in minibatches for sequence in parts_of(minibatch))


def whole(make: Make, size: Any, lanes: int = 0) -> list[Any]:
    dataset = MinibatchDataset(make(), size, partition="global", rank=0, world_size=1, lanes=lanes)
    return [sorted(parts_of(minibatch)) for minibatch in dataset]


@pytest.mark.parametrize("size", ["samples", "rows"])
@pytest.mark.parametrize("kind", ["ctf", "ctf in order", "cbf", "htk", "parquet", "mixture", "sequence mixture"])
def test_ranks_that_come_and_go_share_the_minibatches_of_one_reader(
    kinds: dict[str, Make], kind: str, size: str
) -> None:
    if (kind, size) == ("ctf in order", "rows"):
        pytest.skip("a pool needs a randomized order")
    expected = whole(kinds[kind], SIZES[size])
    job, found = Job(kinds[kind], SIZES[size], 4), []
    for count in (4, 3, 1, 2):
        job.change(count, leaving=1)
        found += [job.step() for _ in range(2)]
    assert found == expected[:8]


def random_job(kinds: dict[str, Make], seed: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Return what a random job did, the minibatches of its ranks, and the minibatches of a single reader."""
    chance = random.Random(seed)
    kind = chance.choice([*kinds])
    size = chance.choice([name for name in SIZES if kind != "ctf in order" or name in ("samples", "few samples")])
    can_own_chunks = kind in ("ctf", "cbf", "htk", "parquet") and size in ("samples", "few samples")
    deals: list[Any] = ["length", "area", "chunk"] if can_own_chunks else ["length", "area"]
    options = {} if size == "attention" else {"deal": chance.choice(deals)}
    if (
        kind not in ("ctf in order", "sequence mixture")
        and size not in ("buckets", "attention")
        and chance.random() < 0.4
    ):
        options = {"lanes": 5}
    did: list[Any] = [kind, size, options]
    job, found = Job(kinds[kind], SIZES[size], chance.randint(1, 5), **options), []
    before: Any = job.ranks[0].state_dict()
    while True:
        match chance.randint(0, 9):
            case 0 | 1 | 2:
                did.append((len(found), "change", count := chance.randint(1, 5)))
                job.change(count, chance.randint(0, 4))
            case 3 if found:
                did.append((len(found), "take back"))
                found.pop()
                job.take_back(before)
            case 4:
                did.append((len(found), "restart"))
                job.restart()
        before = json.loads(json.dumps(job.ranks[0].state_dict()))
        step = job.step()
        if step is None:
            return did, found, whole(kinds[kind], SIZES[size], options.get("lanes", 0))
        found.append(step)


@pytest.mark.parametrize("seed", range(rounds(36)))
def test_random_changes_of_ranks_leave_every_minibatch_as_it_is(kinds: dict[str, Make], seed: int) -> None:
    did, found, expected = random_job(kinds, seed)
    assert found == expected, did


def steps_of_process(make: Make, size: Any, plan: list[tuple[int, int, bool]]) -> list[Any]:
    """Return all sequences of each step of a job of the first processes of the group, whose number changes.

    Args:
        plan: For every two steps the number of processes, the rank of process 0, and whether the first step is taken
            back once.
    """
    me, dataset, running, found = torch.distributed.get_rank(), None, iter(()), list[Any]()
    for count, first_rank, fails in plan:
        state = of_first_rank(None if dataset is None else dataset.state_dict())
        if me >= count:
            dataset = None
        elif dataset is None:
            dataset = MinibatchDataset(make(), size, partition="global", rank=0, world_size=1)
            if state is not None:
                dataset.load_state_dict(state)
            running = iter(dataset)
        if dataset is not None:
            dataset.set_ranks((me + first_rank) % count, count)
        for is_kept in ([False] if fails else []) + [True, True]:
            minibatch = None if dataset is None else next(running, None)
            shares = of_all_ranks(None if minibatch is None else parts_of(minibatch))[:count]
            if not is_kept and dataset is not None:
                dataset.load_state_dict(state)
                running = iter(dataset)
            elif is_kept:
                found.append(None if None in shares else sorted(sequence for share in shares for sequence in share))
    return found


@pytest.mark.parametrize(("kind", "size"), [("ctf", "budget"), ("cbf", "rows"), ("mixture", "samples")])
def test_ranks_that_are_processes_come_and_go(kinds: dict[str, Make], kind: str, size: str, tmp_path: Path) -> None:
    plan = [(4, 0, False), (3, 1, True), (1, 0, False), (2, 1, True)]
    expected = whole(kinds[kind], SIZES[size])[:8]
    for found in in_ranks(tmp_path, 4, steps_of_process, kinds[kind], SIZES[size], plan):
        assert [[*map(tuple, step)] for step in found] == expected


@pytest.mark.parametrize("seed", range(rounds(9)))
def test_random_processes_come_and_go(kinds: dict[str, Make], seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    kind, size = chance.choice([*kinds.keys() - {"ctf in order"}]), chance.choice([*SIZES])
    counts = [chance.randint(1, 4) for _ in range(8)]
    plan = [
        (count, chance.randrange(count), number > 0 and chance.random() < 0.3) for number, count in enumerate(counts)
    ]
    expected = whole(kinds[kind], SIZES[size])
    for found in in_ranks(tmp_path, 4, steps_of_process, kinds[kind], SIZES[size], plan):
        number = found.index(None) if None in found else len(found)
        assert [[*map(tuple, step)] for step in found[:number]] == expected[:16], (kind, size, plan)


@pytest.mark.parametrize("is_persistent", [False, True])
def test_a_new_iteration_of_workers_goes_on_with_the_new_ranks(kinds: dict[str, Make], is_persistent: bool) -> None:
    expected = whole(kinds["ctf"], SIZES["padded pool"])
    job = Job(kinds["ctf"], SIZES["padded pool"], 1)
    of_loader = MinibatchDataset(kinds["ctf"](), SIZES["padded pool"], partition="global", rank=0, world_size=1)
    loader = DataLoader(of_loader, batch_size=None, num_workers=2, persistent_workers=is_persistent)
    running = iter(loader)
    for number in range(3):
        job.step()
        assert sorted(parts_of(next(running))) == expected[number]
    job.ranks[0].set_ranks(0, 2)
    of_loader.set_ranks(1, 2)
    with pytest.raises(RuntimeError, match="its ranks were set: iterate over the loader again"):
        next(running)
    rest = [parts_of(minibatch) for minibatch in loader]
    for number, part in enumerate(rest, start=3):
        assert sorted(part + (job.step() or [])) == expected[number]
    assert len(rest) == len(expected) - 3


def test_the_shape_of_packed_rows_follows_the_number_of_ranks(kinds: dict[str, Make]) -> None:
    dataset = MinibatchDataset(kinds["ctf"](), SIZES["rows"], layout="rows", rank=0, world_size=3)
    running = iter(dataset)
    shapes = []
    for count in (3, 1, 2):
        dataset.set_ranks(0, count)
        shapes.append(tuple(next(running)["segment_ids"].shape))
    assert shapes == [(2, 8), (6, 8), (3, 8)]


def test_split_rows_go_on_with_another_share(kinds: dict[str, Make]) -> None:
    expected = [of_one.values["x"].tolist() for of_one in SplitRows(kinds["ctf"](), 8, rows=4)]
    ranks = [SplitRows(kinds["ctf"](), 8, rows=4, partition=GlobalPartition(0, 4)) for _ in range(4)]
    for number, count in enumerate((4, 3, 1, 2, 4)):
        found: list[Any] = [None] * 4
        for rank, rows in enumerate(ranks):
            rows.set_partition(GlobalPartition(rank % count, count))
            result = rows.read()
            assert result is not None
            found[rank % count :: count] = result.values["x"].tolist()
        assert found == expected[number]
    with pytest.raises(ConfigError, match="expected a row for each partition"):
        ranks[0].set_partition(GlobalPartition(0, 5))
    with pytest.raises(ConfigError, match="use global partitions from the beginning"):
        ranks[0].set_partition(Partition(0, 2))


def test_a_prepared_error_comes_at_its_step_after_a_change(tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    path.write_text("".join(f"{key} |x {'bad' if key == 30 else '1'} |y 1:1\n" for key in range(40)))
    corpus = CTFDeserializer(path, STREAMS, max_errors=0, chunk_size_in_bytes=40)
    dataset = MinibatchDataset(MinibatchSource(corpus, randomize=False), 4, rank=0, world_size=1, partition="global")
    running, found = iter(dataset), []
    for number in range(7):
        found += [int(key) for key, *_ in parts_of(next(running))]
        dataset.set_ranks(0, 1 + number % 2)
    dataset.set_ranks(0, 1)
    with pytest.raises(FormatError, match="line 31"):
        next(running)
    assert found == [*range(8), 8, 10, *range(12, 16), 16, 18, *range(20, 24), 24, 26]


@pytest.mark.parametrize(
    ("options", "partition"),
    [
        ({"partition": "cntk"}, "'cntk'"),
        ({"partition": "balanced"}, "'balanced'"),
        ({"partition": "global", "remainder": "merge"}, "'global', and remainder 'merge'"),
    ],
)
def test_other_partitions_take_new_ranks_only_at_the_start_of_an_epoch(
    kinds: dict[str, Make], options: Any, partition: str
) -> None:
    dataset = MinibatchDataset(kinds["cbf"](), 24, rank=0, world_size=2, **options)
    dataset.set_ranks(1, 3)
    expected = [parts_of(one) for one in MinibatchDataset(kinds["cbf"](), 24, rank=1, world_size=3, **options)]
    running = iter(dataset)
    found = [parts_of(next(running))]
    with pytest.raises(ConfigError, match=f"partition is {partition}.*use partition='global'"):
        dataset.set_ranks(0, 2)
    assert found + [parts_of(one) for one in running] == expected  # the refused call has changed nothing
    dataset.set_ranks(0, 2)  # the epoch has ended
    again = MinibatchDataset(kinds["cbf"](), 24, rank=0, world_size=2, **options)
    assert [parts_of(one) for one in dataset] == [parts_of(one) for one in again]


@pytest.mark.parametrize("ranks", [(2, 2), (-1, 2), (0, 0), (0.5, 2), (True, 2), ("0", 2)])
def test_ranks_that_are_impossible_change_nothing(kinds: dict[str, Make], ranks: Any) -> None:
    dataset = MinibatchDataset(kinds["cbf"](), 24, rank=1, world_size=2)
    with pytest.raises(ConfigError, match=r"rank|world_size"):
        dataset.set_ranks(*ranks)
    assert "rank 1 of 2" in repr(dataset)

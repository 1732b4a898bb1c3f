"""Ranks of jobs, found in the environment, and one state for all ranks. (docs/torch.md)"""

import itertools
import json
import signal
import socket
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cntkio import CheckpointError, ConfigError
from support import builders
from support.programs import run_together

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from cntkio.torch import MinibatchDataset, gather_state_dict, joined_states  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

LENGTHS = [1 + key % 4 for key in range(101)]
JOB = Path(__file__).with_name("torch_job.py")


@pytest.fixture(scope="module")
def corpus_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jobs") / "a.ctf"
    path.write_bytes(builders.corpus_text(LENGTHS))
    return path


def new(corpus_path: Path, rank: int | None = None, world_size: int | None = None, **options: Any) -> MinibatchDataset:
    source = builders.source_of(corpus_path, 300, max_sweeps=1)
    return MinibatchDataset(source, 16, rank=rank, world_size=world_size, **options)


def keys(minibatches: Any) -> list[list[int]]:
    return [minibatch.keys_of_sequences.tolist() for minibatch in minibatches]


# -- ranks -------------------------------------------------------------------------------------------------------------

STEP = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3", "SLURM_NTASKS": "8"}


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "3"}, (1, 3)),
        ({"RANK": "1", "WORLD_SIZE": "3", **STEP}, (1, 3)),
        (STEP, (2, 3)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1)),  # a batch script, which is not a step
        ({**STEP, "SLURM_JOB_NAME": "interactive"}, (0, 1)),
    ],
)
def test_a_rank_is_found_in_the_environment(
    corpus_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], rank: tuple[int, int]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    state = new(corpus_path, partition="cntk").state_dict()
    assert (state["rank"], state["world_size"]) == rank
    assert (new(corpus_path, 4, 5, partition="cntk").state_dict()["rank"]) == 4  # arguments come first


@pytest.mark.parametrize(
    "environment",
    [{"RANK": "1"}, {"WORLD_SIZE": "2"}, {"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "a", "WORLD_SIZE": "2"}],
)
def test_refuses_an_impossible_rank_of_the_environment(
    corpus_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="expected RANK from 0 and below WORLD_SIZE.* rank=0 and world_size=1"):
        new(corpus_path)


def test_a_rank_is_found_in_ray_trains_context(corpus_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(get_world_rank=lambda: 1, get_world_size=lambda: 2)
    monkeypatch.setitem(sys.modules, "ray.train", SimpleNamespace(get_context=lambda: context))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert new(corpus_path, partition="cntk").state_dict()["rank"] == 1

    def outside() -> Any:
        raise RuntimeError("not in a worker")

    monkeypatch.setitem(sys.modules, "ray.train", SimpleNamespace(get_context=outside))
    assert new(corpus_path).state_dict()["rank"] == 0
    context.get_world_rank = context.get_world_size = lambda: None
    monkeypatch.setitem(sys.modules, "ray.train", SimpleNamespace(get_context=lambda: context))
    assert new(corpus_path).state_dict()["rank"] == 0


# -- states ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_of_balanced_partitions_is_the_same_on_all_ranks(corpus_path: Path, workers: int) -> None:
    states, expected = [], []
    for rank in range(3):
        dataset = new(corpus_path, rank, 3, partition="balanced")
        running = iter(DataLoader(dataset, batch_size=None, num_workers=workers))
        for _ in range(3):
            next(running)
        states.append(json.dumps(gather_state_dict(dataset)))
        expected.append(keys(running))
    assert len(set(states)) == 1
    for rank in range(3):
        dataset = new(corpus_path, rank, 3, partition="balanced")
        dataset.load_state_dict(json.loads(states[0]))
        assert keys(DataLoader(dataset, batch_size=None, num_workers=workers)) == expected[rank]


def test_joined_states_give_each_rank_its_own(corpus_path: Path) -> None:
    states, expected = [], []
    for rank in range(3):
        dataset = new(corpus_path, rank, 3, partition="cntk")
        running = iter(dataset)
        for _ in range(2):
            next(running)
        states.append(dataset.state_dict())
        expected.append(keys(running))
    job = json.loads(json.dumps(joined_states(states[::-1])))
    for rank in range(3):
        dataset = new(corpus_path, rank, 3)  # the state names the partition
        dataset.load_state_dict(job)
        assert keys(dataset) == expected[rank]
    with pytest.raises(
        CheckpointError, match="states are of 3 ranks, but this job has 2.*use set_epoch, or resume with 3 ranks"
    ):
        new(corpus_path, 0, 2).load_state_dict(job)
    with pytest.raises(CheckpointError, match=r"of the ranks 0, 0, 2; expected each of 0\.\.2 once"):
        joined_states([states[0], states[0], states[2]])


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (["{}"], "state 0 is a str; expected a result of state_dict"),
        ([{"partition": "global"}] * 2, "the same on all ranks; load any of them"),
        ({}, "got a single state; expected a list"),
    ],
)
def test_refuses_objects_that_are_not_the_states_of_all_ranks(states: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        joined_states(states)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: json.dumps(state), "if it was saved as text, use json.loads"),
        (lambda state: {name: value for name, value in state.items() if name != "source"}, "damaged or incomplete"),
        (lambda state: {**state, "version": 9}, "its version is 9; expected 1"),
    ],
)
def test_a_state_that_cannot_be_loaded_says_why(corpus_path: Path, change: Any, words: str) -> None:
    dataset = new(corpus_path, 0, 2, partition="global")
    with pytest.raises(CheckpointError, match=words):
        dataset.load_state_dict(change(dataset.state_dict()))


def test_states_of_several_jobs_are_not_joined(corpus_path: Path) -> None:
    states = [new(corpus_path, rank, count, partition="cntk").state_dict() for rank, count in ((0, 2), (1, 3))]
    with pytest.raises(CheckpointError, match="the states are of jobs with 2 and 3 ranks"):
        joined_states(states)


@pytest.mark.parametrize(
    ("before", "after", "advice"),
    [
        ((0, 2, "balanced"), (0, 3, "balanced"), "In mid-epoch, only states of partition='global' fit another number"),
        ((1, 2, "cntk"), (0, 2, "cntk"), "rank: saved 1, here 0. Each rank loads its own state"),
    ],
)
def test_a_state_of_other_ranks_is_refused_with_advice(corpus_path: Path, before: Any, after: Any, advice: str) -> None:
    dataset, other = (new(corpus_path, rank, count, partition=rule) for rank, count, rule in (before, after))
    next(iter(dataset))
    with pytest.raises(CheckpointError, match=advice):
        other.load_state_dict(dataset.state_dict())


@pytest.mark.parametrize(
    ("changes", "steps", "difference"),
    [
        ({"randomization_seed": 4}, 2, "randomization_seed: 0 on rank 0, 4 on rank 1"),
        ({}, 3, "steps: 2 on rank 0, 3 on rank 1"),
        ({"max_sweeps": 1, "chunk_size_in_bytes": 200}, 2, "order: '"),
    ],
)
def test_states_of_different_settings_corpora_or_steps_are_not_joined(
    corpus_path: Path, changes: dict[str, Any], steps: int, difference: str
) -> None:
    states = []
    for rank, (options, num_steps) in enumerate([({}, 2), (changes, steps)]):
        source = builders.source_of(corpus_path, **{"chunk_size_in_bytes": 300, "max_sweeps": 1, **options})
        dataset = MinibatchDataset(source, 16, partition="cntk", rank=rank, world_size=2)
        for _ in itertools.islice(dataset, num_steps):
            pass
        states.append(dataset.state_dict())
    with pytest.raises(CheckpointError, match=f"not of the same step of one job: {difference}"):
        joined_states(states)


@pytest.mark.parametrize("has_read", [False, True])
def test_joined_states_at_either_end_of_an_epoch_fit_other_ranks(corpus_path: Path, has_read: bool) -> None:
    states = []
    for rank in range(3):
        dataset = new(corpus_path, rank, 3, partition="cntk")
        dataset.set_epoch(1)
        if has_read:
            keys(dataset)
        states.append(dataset.state_dict())
    seen: Counter[int] = Counter()
    for rank in range(2):
        dataset = new(corpus_path, rank, 2)
        dataset.load_state_dict(joined_states(states))
        assert dataset.epoch == 1
        seen.update(key for minibatch in keys(dataset) for key in minibatch)
    assert seen == ({} if has_read else Counter(range(len(LENGTHS))))


def test_states_of_other_ranks_cannot_be_gathered_alone(corpus_path: Path) -> None:
    with pytest.raises(CheckpointError, match="save each rank's state_dict.*joined_states"):
        gather_state_dict(new(corpus_path, 0, 2, partition="cntk"))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_an_incomplete_state_is_refused(corpus_path: Path, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    dataset = new(corpus_path)
    next(iter(dataset))
    dcp.save({"data": dataset}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    with pytest.raises(CheckpointError, match=r"save the text json.dumps\(dataset.state_dict\(\)\)"):
        dcp.load({"data": new(corpus_path)}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)


@pytest.mark.parametrize("deal", ["length", "chunk"])
def test_a_global_state_resumes_on_other_ranks_and_workers(corpus_path: Path, deal: Any) -> None:
    whole = [sorted(step) for step in keys(new(corpus_path))]
    state, found = None, []
    for world_size, workers, steps in [(2, 0, 3), (3, 2, 2), (4, 1, 5), (2, 2, 0)]:
        states, shares = set(), []
        for rank in range(world_size):
            dataset = new(corpus_path, rank, world_size, partition="global", deal=deal)
            if state is not None:
                dataset.load_state_dict(json.loads(state))
            running = iter(DataLoader(dataset, batch_size=None, num_workers=workers))
            shares.append(keys(itertools.islice(running, steps or None)))
            states.add(json.dumps(gather_state_dict(dataset)))
        found += [sorted(itertools.chain(*step)) for step in zip(*shares, strict=True)]
        (state,) = {json.dumps({**json.loads(text), "check_sum": 0, "world_size": 0}) for text in states}
        state = states.pop()
    assert found == whole


def test_a_global_state_of_another_epoch_begins_there(corpus_path: Path) -> None:
    dataset = new(corpus_path, 1, 2, partition="global")
    dataset.set_epoch(2)
    expected = keys(dataset)
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    dataset.set_epoch(2)
    iter(loader)
    state = dataset.state_dict()  # before the first minibatch
    again = new(corpus_path, 1, 2, partition="global")
    again.load_state_dict(json.loads(json.dumps(state)))
    assert keys(DataLoader(again, batch_size=None, num_workers=1)) == expected


def test_merged_minibatches_resume_on_as_many_ranks_only(corpus_path: Path) -> None:
    state = new(corpus_path, 0, 2, partition="global", remainder="merge").state_dict()
    with pytest.raises(CheckpointError, match="world_size: saved 2, here 3"):
        new(corpus_path, 0, 3, partition="global", remainder="merge").load_state_dict(state)


# -- defaults and warnings ---------------------------------------------------------------------------------------------


def test_ranks_without_a_named_partition_have_as_many_minibatches_each(corpus_path: Path) -> None:
    counts = [
        len(keys(MinibatchDataset(builders.source_of(corpus_path, max_sweeps=1), 20, rank=rank, world_size=4)))
        for rank in range(4)
    ]
    assert len(set(counts)) == 1
    assert new(corpus_path, 0, 4).partition == "global" and new(corpus_path).partition == "cntk"


@pytest.mark.parametrize("partition", ["cntk", "balanced", "global"])
def test_a_state_decides_the_partition_that_is_not_named(corpus_path: Path, partition: Any) -> None:
    dataset = new(corpus_path, 1, 2, partition=partition)
    running = iter(dataset)
    next(running)
    state = dataset.state_dict()
    again = new(corpus_path, 1, 2)
    again.load_state_dict(state)
    assert again.partition == partition
    assert keys(again) == keys(running)
    other = new(corpus_path, 0, 2)
    with pytest.raises(CheckpointError, match="minibatch_size"):
        MinibatchDataset(other.source, 30, rank=0, world_size=2).load_state_dict(state)
    assert other.partition == "global"


@pytest.mark.parametrize(
    ("options", "size", "world_size", "words"),
    [
        ({"partition": "cntk"}, 16, 2, ["can give the 2 ranks different numbers of minibatches"]),
        ({"deal": "chunk"}, 100, 20, ["20 partitions (ranks times workers) share 17 chunks, so some are empty"]),
        (
            {}, 20, 60,
            ["20 samples has about 8.0 sequences for 60 ranks, so about 86.6 %", "at least 150, or remainder='merge'"],
        ),
        ({"remainder": "merge"}, 20, 60, []),
        ({}, 150, 60, []),
    ],
)  # fmt: skip
def test_warns_once_of_ranks_without_data_or_in_different_steps(
    corpus_path: Path,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
    size: int,
    world_size: int,
    words: list[str],
) -> None:
    source = builders.source_of(corpus_path, 300, max_sweeps=1)
    dataset = MinibatchDataset(source, size, rank=0, world_size=world_size, **options)
    for _ in range(2):
        next(iter(dataset))
    assert len(caplog.messages) == bool(words)
    assert all(word in caplog.text for word in words)


def test_a_deal_by_chunk_in_file_order_fails_in_the_constructor(corpus_path: Path) -> None:
    source = builders.source_of(corpus_path, randomize=False, max_sweeps=1)
    with pytest.raises(ConfigError, match="deal='chunk' needs a randomized order"):
        MinibatchDataset(source, 16, partition="global", deal="chunk", rank=0, world_size=2)


# -- agreement of ranks ------------------------------------------------------------------------------------------------

AGREEMENT = Path(__file__).with_name("torch_agreement.py")


def agree(corpus_path: Path, *ranks: dict[str, Any]) -> list[str]:
    """Run a job in which each rank makes its data set as told, and return what each printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    calls = ([address, rank, len(ranks), corpus_path, json.dumps(told)] for rank, told in enumerate(ranks))
    ended = run_together(AGREEMENT, *calls)
    assert [rank.status for rank in ended] == [0] * len(ranks)
    return [rank.printed for rank in ended]


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        ({}, {"seed": 1}, "randomization_seed: "),
        pytest.param({}, {"size": 17, "workers": 2}, "minibatch_size: ", marks=pytest.mark.thorough),
        ({"steps": 3}, {"steps": 4}, "position: "),
        pytest.param(
            {"steps": 3, "partition": "cntk"},
            {"steps": 4, "partition": "cntk"},
            "steps: ",
            marks=pytest.mark.thorough,
        ),
        ({}, {"steps": 1}, "position: "),  # only one rank loads a state
        pytest.param({"chunk_size": 300}, {"chunk_size": 200}, "order: ", marks=pytest.mark.thorough),
    ],
)
def test_ranks_that_disagree_are_refused(corpus_path: Path, first: Any, second: Any, difference: str) -> None:
    printed = agree(corpus_path, first, second)
    (refusal,) = [text for text in printed if text]
    assert f"the ranks disagree, so they would not share the data: {difference}" in refusal


def test_ranks_that_agree_or_do_not_read_are_not_refused(corpus_path: Path) -> None:
    assert agree(corpus_path, {"steps": 3}, {"steps": 3, "workers": 1}) == ["", ""]
    assert agree(corpus_path, {"seed": 1}, {"reads": False}) == ["", ""]


def test_ranks_with_other_files_are_warned(corpus_path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.ctf"
    other.write_bytes(corpus_path.read_bytes())
    printed = agree(corpus_path, {"path": str(corpus_path)}, {"path": str(other)})
    (warning,) = [text for text in printed if text]
    assert "ranks that share the data need the same corpus" in warning
    assert "reads other.ctf" in warning


# -- processes ---------------------------------------------------------------------------------------------------------


def run(
    corpus_path: Path, checkpoint: Path, partition: str, kind: str, steps: int, world_size: int = 2
) -> list[list[list[int]]]:
    """Run a job of some processes, and return the keys of the minibatches of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    arguments = [corpus_path, checkpoint, partition, kind, steps]
    calls = ([address, rank, world_size, *arguments] for rank in range(world_size))
    ended = run_together(JOB, *calls)
    assert [rank.status for rank in ended] == [-signal.SIGKILL if steps else 0] * world_size
    return [json.loads(rank.printed) for rank in ended]


@pytest.mark.thorough
@pytest.mark.parametrize(("partition", "kind"), [("cntk", "workers"), ("balanced", "stateful")])
def test_a_killed_job_resumes_from_one_checkpoint(corpus_path: Path, tmp_path: Path, partition: Any, kind: str) -> None:
    pytest.importorskip("torchdata", reason="torchdata is not installed")
    shares = [new(corpus_path, rank, 2, partition=partition) for rank in range(2)]
    undisturbed = [keys(DataLoader(share, batch_size=None, num_workers=2)) for share in shares]
    before = run(corpus_path, tmp_path / "checkpoint", partition, kind, 3)
    after = run(corpus_path, tmp_path / "checkpoint", partition, kind, 0)
    assert [first + second for first, second in zip(before, after, strict=True)] == undisturbed


@pytest.mark.parametrize("partition", ["global", pytest.param("lanes", marks=pytest.mark.thorough)])
def test_a_killed_job_resumes_with_another_number_of_processes(
    corpus_path: Path, tmp_path: Path, partition: str
) -> None:
    pytest.importorskip("torchdata", reason="torchdata is not installed")
    before = run(corpus_path, tmp_path / "checkpoint", partition, "workers", 3, world_size=2)
    after = run(corpus_path, tmp_path / "checkpoint", partition, "none", 0, world_size=4 if partition == "lanes" else 3)
    steps = [*zip(*before, strict=True), *zip(*after, strict=True)]
    whole = keys(new(corpus_path, 0, 1, partition="global", lanes=8) if partition == "lanes" else new(corpus_path))
    assert [sorted(itertools.chain(*step)) for step in steps] == [sorted(step) for step in whole]

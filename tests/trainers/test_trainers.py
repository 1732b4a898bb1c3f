"""The programs of docs/trainers.md in the trainers: killed at a random step, and resumed with the same losses.

`make test-trainers` installs the trainers and runs these tests.
"""

import importlib.util
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import cntkio
import pytest
from support import ROOT
from support.trainers import ELASTIC, KINDS, PACKAGES

STEPS = 22
UNEXACT = {"transformers": 1e-6}
"""Relative differences of losses that another number of ranks may make: its loss is a sum of 32-bit numbers."""

_undisturbed: dict[tuple[str, str], dict[int, str]] = {}


def program(trainer: str) -> Path:
    """Return the program of a trainer; skip the test if its package is not installed."""
    for package in ("torch", PACKAGES[trainer]):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    return Path("examples/trainers", f"{trainer}_job.py")


def folder_of(where: Path) -> Path:
    """Make a folder with the examples, in which a job keeps its checkpoints."""
    shutil.copytree(ROOT / "examples" / "alice", where / "examples" / "alice", dirs_exist_ok=True)
    shutil.copytree(ROOT / "examples" / "trainers", where / "examples" / "trainers", dirs_exist_ok=True)
    return where


class Job:
    """A running program on some ranks."""

    def __init__(self, trainer: str, kind: str, folder: Path, count: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.ranks: list[subprocess.Popen[str]] = []
        for rank in range(count):
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
            environment["PYTHONPATH"] = str(Path(cntkio.__file__).parents[1])
            if count > 1 or trainer == "torchtitan":  # what torchrun sets
                names = ("RANK", "LOCAL_RANK"), ("WORLD_SIZE", "LOCAL_WORLD_SIZE")
                for values, value in zip(names, (rank, count), strict=True):
                    environment |= dict.fromkeys(values, str(value))
                environment |= {"GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            command = [sys.executable, str(program(trainer)), kind, str(STEPS)]
            with (folder / f"errors-{rank}.txt").open("a") as errors:
                output = subprocess.PIPE
                started = subprocess.Popen(
                    command, cwd=folder, env=environment, text=True, stdout=output, stderr=errors
                )
                self.ranks.append(started)
        self.folder, self.losses = folder, dict[int, str]()

    def read(self, until: int = STEPS + 1) -> None:
        """Note the losses up to a step, or to the end."""
        output = self.ranks[0].stdout
        assert output is not None
        while until not in self.losses and (line := output.readline()):
            if found := re.fullmatch(r"step (\d+): loss ([\d.]+)\n", line):
                self.losses[int(found[1])] = found[2]

    def kill(self) -> None:
        """Kill all ranks at once."""
        for rank in self.ranks:
            rank.send_signal(signal.SIGKILL)
        self.read()
        assert {rank.wait(60) for rank in self.ranks} == {-signal.SIGKILL}
        self.close()

    def close(self) -> None:
        """Close the output of all ranks."""
        for rank in self.ranks:
            assert rank.stdout is not None
            rank.stdout.close()

    def finish(self) -> None:
        """Read to the end of the program."""
        self.read()
        statuses = [rank.wait(120) for rank in self.ranks]
        self.close()
        complaints = "".join((self.folder / f"errors-{rank}.txt").read_text() for rank in range(len(self.ranks)))
        assert not any(statuses), complaints


def undisturbed(trainer: str, kind: str, folder: Path) -> dict[int, str]:
    """Return the losses of all steps on one rank, in a job that nothing disturbs."""
    if (trainer, kind) not in _undisturbed:
        job = Job(trainer, kind, folder_of(folder / "undisturbed"), 1)
        job.finish()
        assert list(job.losses) == [*range(1, STEPS + 1)]
        _undisturbed[trainer, kind] = job.losses
    return _undisturbed[trainer, kind]


def killed_and_resumed(trainer: str, kind: str, folder: Path, counts: tuple[int, int]) -> list[Job]:
    """Kill a job at a random step, and let another job finish it."""
    killed = Job(trainer, kind, folder_of(folder / "killed"), counts[0])
    # Orbax writes a checkpoint while the training continues, and ends it before the next one.
    killed.read(random.randrange(11, STEPS - 3))
    time.sleep(random.random() * 0.02)
    killed.kill()
    resumed = Job(trainer, kind, folder / "killed", counts[1])
    resumed.finish()
    assert 5 < min(resumed.losses) <= max(killed.losses) + 1 and max(resumed.losses) == STEPS
    return [killed, resumed]


@pytest.mark.parametrize(("trainer", "kind"), KINDS)
def test_a_killed_job_resumes_with_the_same_losses(trainer: str, kind: str, tmp_path: Path) -> None:
    program(trainer)
    whole = undisturbed(trainer, kind, tmp_path)
    for job in killed_and_resumed(trainer, kind, tmp_path, (1, 1)):
        assert job.losses.items() <= whole.items()


@pytest.mark.parametrize("counts", [(2, 1), (1, 2)], ids=["two-to-one", "one-to-two"])
@pytest.mark.parametrize(("trainer", "kind"), ELASTIC)
def test_another_number_of_ranks_resumes_with_the_same_losses(
    trainer: str, kind: str, counts: tuple[int, int], tmp_path: Path
) -> None:
    program(trainer)
    whole = undisturbed(trainer, kind, tmp_path)
    for job in killed_and_resumed(trainer, kind, tmp_path, counts):
        if trainer in UNEXACT:
            expected = {step: float(whole[step]) for step in job.losses}
            assert {step: float(loss) for step, loss in job.losses.items()} == pytest.approx(expected, UNEXACT[trainer])
        else:
            assert job.losses.items() <= whole.items()

"""A job of torchft whose replicas are killed and come at random steps, compared with a single reader."""

import json
import multiprocessing
import os
import random
import re
import shutil
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

if sys.platform != "linux":
    pytest.skip("torchft has wheels for Linux only", allow_module_level=True)
pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("torchft", reason="torchft is not installed (make test-trainers)")

from support.torchft_replica import lighthouse, replica


class Replica:
    """A running replica.

    Attributes:
        losses: The loss of each step that it has committed.
        notes: Each share that it has read, and the step that it then committed, or None.
    """

    def __init__(self, process: Any, folder: Path, name: str) -> None:
        self.process, self.errors = process, folder / f"{name}.errors"
        self._output, self._position, self._rest = folder / f"{name}.output", 0, b""
        self._output.touch()
        self.losses: dict[int, str] = {}
        self.notes: list[tuple[dict[str, Any], int | None]] = []

    @property
    def is_running(self) -> bool:
        return bool(self.process.exitcode is None)

    def read(self) -> int:
        """Read what it has printed since, and return its last step."""
        with self._output.open("rb") as file:
            file.seek(self._position)
            new = file.read()
        self._position += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in map(bytes.decode, lines):
            if found := re.fullmatch(r"step (\d+): loss ([\d.]+)", line):
                step = int(found[1])
                assert step not in self.losses
                self.losses[step] = found[2]
                self.notes[-1] = self.notes[-1][0], step
            else:
                self.notes.append((json.loads(line), None))
        return max(self.losses, default=0)


class Job:
    """Replicas of one job, whose number changes."""

    def __init__(self, folder: Path, kind: str, steps: int, count: int) -> None:
        shutil.copytree(ROOT / "examples", folder / "examples")
        self.folder, self.kind, self.steps = folder, kind, steps
        self.forks = multiprocessing.get_context("forkserver")
        self.forks.set_forkserver_preload(["support.torchft_replica"])
        self.lighthouse = self.forks.Process(target=lighthouse, args=(folder,), daemon=True)
        self.lighthouse.start()
        while not (folder / "address").exists():
            assert self.lighthouse.is_alive(), (folder / "lighthouse.errors").read_text()[-2000:]
            time.sleep(0.02)
        self.replicas: list[Replica] = []
        for _ in range(count):
            self.add()

    def add(self) -> None:
        """Start a replica."""
        name = str(len(self.replicas))
        address = (self.folder / "address").read_text()
        process = self.forks.Process(target=replica, args=(self.folder, name, address, self.kind, self.steps))
        process.start()
        self.replicas.append(Replica(process, self.folder, name))

    @property
    def running(self) -> list[Replica]:
        return [one for one in self.replicas if one.is_running]

    def wait_for(self, step: int, count: int = 2) -> None:
        """Wait until some of the running replicas have committed a step."""
        deadline = time.monotonic() + 300
        while sum(one.read() >= step for one in self.running) < count:
            is_alive = self.running and time.monotonic() < deadline
            assert is_alive, "\n".join(one.errors.read_text()[-2000:] for one in self.replicas)
            time.sleep(0.02)

    def kill(self, replicas: list[Replica]) -> None:
        """Kill replicas."""
        for one in replicas:
            one.process.kill()
        for one in replicas:
            one.process.join()

    def change(self) -> None:
        """Kill a random replica, and start none, one or two, so that about four run."""
        time.sleep(random.random() * 0.05)
        self.kill([random.choice(self.running)])
        count = len(self.running)
        for _ in range(random.randint(count < 3, min(2, 5 - count))):
            self.add()

    def finish(self) -> int:
        """Wait until all replicas have ended, and return the last step."""
        for one in self.replicas:
            one.process.join(300)
        self.lighthouse.kill()
        return max(one.read() for one in self.replicas)


def check_shares(job: Job, expected: list[Any]) -> None:
    """Check that the ranks of every committed step have read the minibatch of a single reader, each sequence once."""
    shares: dict[Any, dict[int, Any]] = defaultdict(dict)
    for one in job.replicas:
        for note, _ in one.notes:
            of_ranks = shares[note["position"], note["count"]]
            assert of_ranks.setdefault(note["rank"], note["share"]) == note["share"]
    committed = [(note, step) for one in job.replicas for note, step in one.notes if step is not None]
    assert {step for _, step in committed} == {*range(1, len(expected) + 1)}
    for note, step in committed:
        of_ranks = shares[note["position"], note["count"]]
        assert sorted(of_ranks) == [*range(note["count"])]
        assert sorted(sequence for share in of_ranks.values() for sequence in share) == sorted(expected[step - 1])


@pytest.mark.parametrize(("kind", "kills"), [("samples", 20), ("mixture", 5), ("budget", 5), ("rows", 5)])
def test_replicas_that_are_killed_and_come_share_the_minibatches_of_one_reader(
    kind: str, kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = os.pathsep.join(sys.path)
    for name, value in {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}.items():
        monkeypatch.setenv(name, value)
    job, last = Job(tmp_path / "job", kind, steps=1_000_000, count=4), 0
    for number in range(kills):
        # On a busy machine most replicas are killed before they take part. Sometimes all of them do.
        job.wait_for(last + random.randint(1, 12), 2 if number % 4 else len(job.running))
        job.change()
        last = max(one.read() for one in job.replicas)
    job.wait_for(last + 3)
    job.kill(job.running)
    steps = job.finish()
    assert {one.process.exitcode for one in job.replicas} == {-9}
    alone = Job(tmp_path / "alone", kind, steps, 1)
    assert alone.finish() == steps
    [(notes, losses)] = [(one.notes, one.losses) for one in alone.replicas]
    assert [step for _, step in notes] == [*losses] == [*range(1, steps + 1)]
    for one in job.replicas:
        assert one.losses.items() <= losses.items()
    check_shares(job, [note["share"] for note, _ in notes])
    assert len({note["count"] for one in job.replicas for note, _ in one.notes}) > 2

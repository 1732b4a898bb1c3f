"""A job of Ray Train that is killed resumes with another number of workers, on the same global minibatches."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("ray.train", reason="Ray Train is not installed")


def test_a_killed_job_resumes_with_another_number_of_workers(tmp_path: Path) -> None:
    program = Path(__file__).with_name("ray_train_program.py")
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, program, tmp_path], capture_output=True, text=True, env=environment, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    alone, before, after, step = (found[name] for name in ("alone", "before", "after", "step"))
    assert len(before) < len(alone) and 0 < step < len(before)
    assert before[:step] == alone[:step]
    assert after == alone[step:]

"""Tasks of Ray and Spark read S3 with the options that the user gave, and no message shows credentials."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.s3_server import s3_server

pytest.importorskip("moto", reason="moto, which has a server of S3, is not installed (pip install --group s3)")
pytest.importorskip("s3fs", reason="fsspec reads S3 only with s3fs")
KEYS = list(range(300))


@pytest.fixture(scope="module", params=["ray", "spark"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    engine = request.param
    if engine == "ray":
        pytest.importorskip("ray.data", reason="Ray is not installed")
    else:
        pytest.importorskip("pyspark", reason="PySpark is not installed")
        if shutil.which("java") is None:
            pytest.skip("Spark needs Java, which is not installed")
    folder = tmp_path_factory.mktemp(engine)
    environment = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
    environment |= {
        "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0",
        "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(folder),
    }  # fmt: skip
    program = Path(__file__).with_name("s3_tasks_program.py")
    with s3_server(folder) as endpoint:
        done = subprocess.run(
            [sys.executable, program, engine, endpoint, folder],
            capture_output=True,
            text=True,
            env=environment,
            timeout=280,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    *log, result = done.stdout.splitlines()
    return {**json.loads(result), "log": "\n".join([*log, done.stderr])}


@pytest.mark.slow
def test_options_travel_with_tasks(found: Any) -> None:
    assert found["anonymous"] == KEYS
    assert found["credentials"] == KEYS


@pytest.mark.slow
def test_errors_of_the_store_are_located(found: Any) -> None:
    errors = found["errors"]
    assert "pass credentials, such as Remote(storage_options={...})" in errors["refused"]
    assert "pass credentials, such as Remote(storage_options={...})" in errors["wrong"]
    assert "No such object" in errors["missing"] and "s3://bucket/none.ctf" in errors["missing"]
    assert "s3://bucket/train-0.ctf" in errors["nowhere"]
    assert "No file matches the pattern" in errors["no match"] and "'train-0.ctf'" in errors["no match"]
    assert "changed since its chunks were listed" in errors["deleted"]
    assert "sekret" in errors["misspelled"]


@pytest.mark.slow
def test_no_message_shows_credentials(found: Any) -> None:
    for secret in found["secrets"]:
        for text in (*found["errors"].values(), *found["texts"], found["log"]):
            assert secret not in text
    assert not found["of environment"]

"""A server of S3 on this machine: moto, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = (
    "import time; from moto.server import ThreadedMotoServer as Server; "
    "server = Server('127.0.0.1', 0, verbose=False); "
    "server.start(); print(server.get_host_and_port()[1], flush=True); time.sleep(600)"
)


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Run a server while the block runs, and yield its URL.

    Args:
        folder: Folder of the server's log.
    """
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    log = folder / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _PROGRAM],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        ) as server,
    ):
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        assert port, log.read_text()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()

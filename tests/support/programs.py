"""Runs programs in forks of a server that has imported PyTorch and cntkio, because the imports take seconds.

The server computes nothing, so it has no threads that a fork would lose. It also starts the workers of a `DataLoader`
whose method is "forkserver": they get their data set from a pickle, as with "spawn".
"""

import contextlib
import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_CONTEXT = multiprocessing.get_context("forkserver")
# The server leaves out packages that are not installed.
_CONTEXT.set_forkserver_preload(["pytest", "cntkio.cli", "torch.distributed", "torch.utils.data", "cntkio.torch"])


class Ended(NamedTuple):
    """The end of a program, and its output.

    Attributes:
        status: Exit status; negative: the number of the signal that killed the program.
        printed: What it printed, without complaints.
        complaints: What it printed to standard error.
    """

    status: int | None
    printed: str
    complaints: str


def run_together(program: str | Path, *calls: Sequence[object], folder: Path | None = None) -> list[Ended]:
    """Run a program once for each list of arguments, all at the same time, in a folder."""
    with tempfile.TemporaryDirectory() as printed:
        outputs = [(Path(printed, f"{number}.out"), Path(printed, f"{number}.err")) for number in range(len(calls))]
        processes = [
            _CONTEXT.Process(target=_run, args=(str(program), [*map(str, call)], folder or Path.cwd(), *paths))
            for call, paths in zip(calls, outputs, strict=True)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(300)
        for process in processes:
            process.kill()
            process.join()
        return [
            Ended(process.exitcode, *(path.read_text(encoding="utf-8") if path.exists() else "" for path in paths))
            for process, paths in zip(processes, outputs, strict=True)
        ]


def _run(program: str, arguments: list[str], folder: Path, printed: Path, complaints: Path) -> None:
    multiprocessing.set_start_method("fork", force=True)  # what a program of its own would have
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.chdir(folder)
    sys.argv = [program, *arguments]
    with (
        printed.open("w", encoding="utf-8") as out,
        complaints.open("w", encoding="utf-8") as err,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        runpy.run_path(program, run_name="__main__")

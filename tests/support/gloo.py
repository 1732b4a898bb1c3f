"""Ranks of `torch.distributed`, as forks of the test's process."""

import json
import multiprocessing
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as ranks


def in_ranks(folder: Path, count: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return what a function returns on each rank of a group, after JSON. A folder takes one group at a time."""
    forks = multiprocessing.get_context("fork")
    pipes = [forks.Pipe(duplex=False) for _ in range(count)]
    store = folder / "store"
    store.unlink(missing_ok=True)
    started = [
        forks.Process(target=_run, args=(store, rank, count, sending, work, arguments))
        for rank, (_, sending) in enumerate(pipes)
    ]
    for process in started:
        process.start()
    for _, sending in pipes:
        sending.close()
    answers = [receiving.recv() if receiving.poll(60) else "no answer in a minute" for receiving, _ in pipes]
    for process, (receiving, _) in zip(started, pipes, strict=True):
        process.kill()
        process.join()
        receiving.close()
    assert all(isinstance(answer, dict) for answer in answers), "\n".join(map(str, answers))
    return [json.loads(answer["json"]) for answer in answers]


def _run(
    store: Path, rank: int, count: int, sending: Any, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    try:
        ranks.init_process_group("gloo", store=ranks.FileStore(str(store), count), rank=rank, world_size=count)
        answer: Any = {"json": json.dumps(work(*arguments))}
        ranks.barrier()
    except BaseException:
        answer = traceback.format_exc()
    sending.send(answer)
    sending.close()


def of_all_ranks(value: Any) -> list[Any]:
    """Return the value of each rank of the group."""
    values: list[Any] = [None] * ranks.get_world_size()
    ranks.all_gather_object(values, value)
    return values


def of_first_rank(value: Any) -> Any:
    """Return the value of rank 0 of the group."""
    values = [value]
    ranks.broadcast_object_list(values, src=0)
    return values[0]

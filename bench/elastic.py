"""Deliveries of loaders after an interruption in the middle of an epoch, on the same and on another number of ranks.

    python bench/elastic.py [--only NAME,...]

A job of 4 ranks reads 7 steps of 40 of 1,000 samples, saves the states of its loaders, and ends. Jobs of 4 and of 2
ranks load the states, and read the rest of the epoch. The table shows how many samples the epoch repeats and loses, and
how many steps after the interruption have the samples of a job without it. A loader that cannot be imported is named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SAMPLES, SIZE, RANKS, STEPS = 1000, 40, 4, 7
SKIPPED = 77  # exit status
Opened = tuple[Iterator[list[int]], Callable[[], Any]]


def read_cntkio(folder: Path, rank: int, world: int, states: list[Any] | None) -> Opened:
    from cntkio import CTFDeserializer, MinibatchSource, StreamDef, StreamDefs
    from cntkio.torch import MinibatchDataset

    corpus = CTFDeserializer(folder / "x.ctf", StreamDefs(x=StreamDef(field="x", shape=1)))
    dataset = MinibatchDataset(MinibatchSource(corpus, max_sweeps=1), SIZE)
    if states:
        dataset.load_state_dict(states[0])
    return ([int(number) for number in batch["x"].values.flatten()] for batch in dataset), dataset.state_dict


def read_streaming(folder: Path, rank: int, world: int, states: list[Any] | None) -> Opened:
    import torch
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

    if rank == 0 and not (folder / "mds").exists():
        with MDSWriter(out=str(folder / "mds"), columns={"x": "int"}) as writer:
            for number in range(SAMPLES):
                writer.write({"x": number})
    torch.distributed.barrier()
    dataset = StreamingDataset(local=str(folder / "mds"), shuffle=True, batch_size=SIZE // world)
    loader = StreamingDataLoader(dataset, batch_size=SIZE // world)
    if states:
        loader.load_state_dict(states[0])
    return (batch["x"].tolist() for batch in loader), loader.state_dict


def read_torchdata(folder: Path, rank: int, world: int, states: list[Any] | None) -> Opened:
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    sampler = StatefulDistributedSampler(range(SAMPLES), world, rank, shuffle=True)  # type: ignore[arg-type]
    loader = StatefulDataLoader(range(SAMPLES), SIZE // world, sampler=sampler)  # type: ignore[arg-type, var-annotated]
    if states:
        loader.load_state_dict(states[rank])
    return (batch.tolist() for batch in loader), loader.state_dict


def read_ray(folder: Path, rank: int, world: int, states: list[Any] | None) -> Opened:
    from ray.data import DataIterator

    assert not hasattr(DataIterator, "state_dict")  # so the job begins the epoch again, in whatever order
    return ([*range(step + rank, step + SIZE, world)] for step in range(0, SAMPLES, SIZE)), dict


LOADERS: dict[str, Callable[[Path, int, int, list[Any] | None], Opened]] = {
    "cntkio": read_cntkio,
    "MosaicML streaming": read_streaming,
    "torchdata, `StatefulDistributedSampler`": read_torchdata,
    "Ray Data": read_ray,
}


def work(name: str, folder: Path, states: Path | None, stop: int) -> None:
    """Read as one rank; save the samples of each step, and the state after the last step."""
    import torch

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    saved = states and [torch.load(states / f"{one}.pt", weights_only=False) for one in range(RANKS)]
    try:
        batches, save = LOADERS[name](folder.parent, rank, world, saved or None)
    except ImportError as error:
        print(error)
        sys.exit(SKIPPED)
    read = [next(batches) for _ in range(stop)] if stop else list(batches)
    torch.save(save(), folder / f"{rank}.pt")
    (folder / f"{rank}.json").write_text(json.dumps(read))
    torch.distributed.barrier()
    os._exit(0)  # frameworks end at the same time as their peers, not one after the other


def job(name: str, folder: Path, world: int, states: Path | None, stop: int) -> list[Counter[int]]:
    """Run a job of some ranks; return the samples of each step of all ranks together."""
    folder.mkdir()
    command = [sys.executable, __file__, "--work", name, "--folder", str(folder), "--stop", str(stop)]
    command += ["--states", str(states)] if states else []
    places = {"LOCAL_WORLD_SIZE": str(world), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
    places["MASTER_PORT"] = "29511"
    ranks = [
        subprocess.Popen(command, env=os.environ | places | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(world)
    ]
    codes = [rank.wait() for rank in ranks]
    if any(codes):
        raise subprocess.CalledProcessError(max(codes), command)
    parts = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]
    steps = max(map(len, parts))
    return [sum((Counter(part[step]) for part in parts if step < len(part)), Counter()) for step in range(steps)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(LOADERS))
    for option in ("--work", "--folder", "--states"):
        parser.add_argument(option, help=argparse.SUPPRESS)
    parser.add_argument("--stop", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work, Path(args.folder), args.states and Path(args.states), args.stop)
        return
    missing = []
    print("| loader | ranks after the interruption | repeated | lost | steps as without it |\n" + "|---" * 5 + "|")
    for name in [name for name in LOADERS if any(word in name for word in args.only.split(","))]:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            (folder / "x.ctf").write_text("".join(f"|x {number}\n" for number in range(SAMPLES)))
            try:
                whole = job(name, folder / "whole", RANKS, None, 0)
                first = job(name, folder / "first", RANKS, None, STEPS)
                for world in (RANKS, RANKS // 2):
                    rest = job(name, folder / f"rest-{world}", world, folder / "first", 0)
                    total = sum(first + rest, Counter())
                    same = sum(one == other for one, other in zip(rest, whole[STEPS:], strict=False))
                    repeated, lost = total.total() - len(total), SAMPLES - len(total)
                    print(f"| {name} | {world} | {repeated} | {lost} | {same} of {len(whole) - STEPS} |", flush=True)
            except subprocess.CalledProcessError as error:
                missing.append(f"{name}: {'not installed' if error.returncode == SKIPPED else 'failed'}")
    print("\n" + "\n".join(missing))


if __name__ == "__main__":
    main()

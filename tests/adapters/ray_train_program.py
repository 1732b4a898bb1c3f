"""A job of Ray Train that is killed and resumes with another number of workers, printed as JSON.

python tests/adapters/ray_train_program.py FOLDER

The workers read a `MinibatchDataset` of global minibatches. Its state is in the checkpoint of Ray Train, which the
first rank reports. The first job has 2 workers, and one of them kills itself; the second has 3.
"""

import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
from cntkio import CTFDeserializer, MinibatchSource, StreamDef, StreamDefs
from ray.train.torch import TorchConfig, TorchTrainer

STREAMS = StreamDefs(x=StreamDef("x", 2))
SIZE = 40


def train(options: dict[str, Any]) -> None:
    """Train in one worker: write down the keys of each step, and save a checkpoint after some steps."""
    from cntkio.torch import MinibatchDataset

    corpus = CTFDeserializer(options["corpus"], STREAMS, chunk_size_in_bytes=200, cache_index=True)
    dataset = MinibatchDataset(MinibatchSource(corpus, max_sweeps=2), SIZE, partition="global")  # finds its rank
    rank, step = ray.train.get_context().get_world_rank(), 0
    if options["checkpoint"] is not None:
        with ray.train.Checkpoint(options["checkpoint"]).as_directory() as folder:
            state = json.loads(Path(folder, "state.json").read_text())
        dataset.load_state_dict(state["data"])
        step = state["step"]
    for minibatch in dataset:
        step += 1
        Path(options["folder"], f"{step:04}-{rank}").write_text(json.dumps(minibatch.keys_of_sequences.tolist()))
        if step == options["dies_at"] and rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if step % 3 == 0:
            with tempfile.TemporaryDirectory() as folder:
                if rank == 0:  # the state is the same on all ranks
                    Path(folder, "state.json").write_text(json.dumps({"step": step, "data": dataset.state_dict()}))
                    ray.train.report({"step": step}, checkpoint=ray.train.Checkpoint.from_directory(folder))
                else:
                    ray.train.report({"step": step})


def run(folder: Path, num_workers: int, checkpoint: str | None, dies_at: int) -> list[list[list[int]]]:
    """Run a job, and return the keys of each step, of each rank."""
    steps = folder / f"steps-{num_workers}"
    steps.mkdir()
    trainer = TorchTrainer(
        train,
        train_loop_config={
            "corpus": str(folder / "a.ctf"), "folder": str(steps), "checkpoint": checkpoint, "dies_at": dies_at,
        },
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=num_workers, resources_per_worker={"CPU": 0.5}),
        run_config=ray.train.RunConfig(name=f"job-{num_workers}", storage_path=str(folder / "runs")),
    )  # fmt: skip
    try:
        trainer.fit()
    except Exception as error:
        print(f"the job ended: {type(error).__name__}", file=sys.stderr)
    found: dict[int, list[list[int]]] = {}
    for path in sorted(steps.iterdir()):
        found.setdefault(int(path.name[:4]), []).append(json.loads(path.read_text()))
    return [sorted(sum(ranks, [])) for _, ranks in sorted(found.items())]


def main(folder: Path) -> dict[str, Any]:
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False)
    (folder / "a.ctf").write_text("".join(f"{key} |x {key} 1\n" * (1 + key % 7) for key in range(120)))
    corpus = CTFDeserializer(folder / "a.ctf", STREAMS, chunk_size_in_bytes=200, cache_index=True)
    with MinibatchSource(corpus, max_sweeps=2) as source:
        alone = [sorted(m.keys_of_sequences.tolist()) for m in iter(lambda: source.read(SIZE), None)]
    before = run(folder, 2, None, dies_at=8)
    checkpoints = sorted((folder / "runs" / "job-2").rglob("state.json"), key=lambda path: path.stat().st_mtime)
    state = json.loads(checkpoints[-1].read_text())
    after = run(folder, 3, str(checkpoints[-1].parent), dies_at=0)
    ray.shutdown()
    return {"alone": alone, "before": before, "step": state["step"], "after": after}


if __name__ == "__main__":
    print("\n" + json.dumps(main(Path(sys.argv[1]))))

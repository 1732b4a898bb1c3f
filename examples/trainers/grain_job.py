"""Train on Grain's own order of `Sequences`, saved by Orbax: grain_job.py KIND STEPS. (docs/trainers.md)"""

import sys
from pathlib import Path

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from book import STREAMS
from cntkio import CTFDeserializer, Sequences


def batch(sequences):
    """Return words, classes and the mask of the cells that have one: 64 cells of each sequence."""
    words, classes, mask = np.zeros((3, len(sequences), 64), np.int32)
    for row, sequence in enumerate(sequences):
        count = min(len(sequence["words"]), 64)
        words[row, :count], classes[row, :count] = sequence["words"][:count], sequence["casings"][:count]
        mask[row, :count] = 1
    return words, classes, mask > 0


def part(name):
    """Return the sequences of a part of the book in Grain's order."""
    sequences = Sequences(CTFDeserializer(f"examples/alice/{name}.ctf", STREAMS), layout="ids")
    return grain.MapDataset.source(sequences).shuffle(seed=1).repeat()


@jax.jit
def train(weights, moments, words, classes, mask):
    def mean(weights):
        losses = optax.softmax_cross_entropy_with_integer_labels(weights[words], classes)
        return jnp.where(mask, losses, 0).sum() / mask.sum()

    loss, gradient = jax.value_and_grad(mean)(weights)
    change, moments = optimizer.update(gradient, moments)
    return loss, optax.apply_updates(weights, change), moments


kind, steps = sys.argv[1], int(sys.argv[2])
whole = part("train")
if kind == "mixture":
    whole = grain.MapDataset.mix([whole, part("test")], weights=[0.8, 0.2])
batches = iter(whole.batch(16, batch_fn=batch).to_iter_dataset())
optimizer, weights = optax.adam(0.01), jnp.zeros((1323, 3))
moments = optimizer.init(weights)
with ocp.CheckpointManager(Path("grain").resolve()) as manager:
    if first := manager.latest_step() or 0:
        layout = ocp.args.StandardRestore((weights, moments))
        data = grain.checkpoint.CheckpointRestore(batches)
        weights, moments = manager.restore(first, args=ocp.args.Composite(state=layout, data=data)).state
    for step in range(first + 1, steps + 1):
        loss, weights, moments = train(weights, moments, *next(batches))
        print(f"step {step}: loss {loss:.9f}", flush=True)
        if step % 5 == 0:
            state, data = ocp.args.StandardSave((weights, moments)), grain.checkpoint.CheckpointSave(batches)
            manager.save(step, args=ocp.args.Composite(state=state, data=data))

"""Train in Flax, with the state in Orbax's checkpoint: flax_job.py KIND STEPS. (docs/trainers.md)"""

import sys
from pathlib import Path

import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from book import SIZES, source
from cntkio import packed
from cntkio.jax import convert
from flax import nnx


class Tagger(nnx.Module):
    """A small network that scores the capitals of words."""

    def __init__(self):
        self.words = nnx.Embed(1323, 16, rngs=nnx.Rngs(1))
        self.classes = nnx.Linear(16, 3, rngs=nnx.Rngs(2))

    def __call__(self, words):
        return self.classes(self.words(words))


def cells(minibatch):
    """Return words, classes and the mask of the cells that have one."""
    if kind == "rows":
        rows = packed(minibatch, 256, rows=4)
        return rows.values["words"], rows.values["casings"], rows.segment_ids > 0
    batch = convert(minibatch, layout="padded_ids")
    return batch["words"].values, batch["casings"].values, batch["words"].mask


@nnx.jit
def train(model, optimizer, words, classes, mask):
    def mean(model):
        losses = optax.softmax_cross_entropy_with_integer_labels(model(words), classes)
        return jnp.where(mask, losses, 0).sum() / mask.sum()

    loss, gradients = nnx.value_and_grad(mean)(model)
    optimizer.update(model, gradients)
    return loss


kind, steps = sys.argv[1], int(sys.argv[2])
data, model = source(kind), Tagger()
optimizer = nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)
with ocp.CheckpointManager(Path("flax").resolve()) as manager:
    if first := manager.latest_step() or 0:
        layout = ocp.args.StandardRestore(nnx.state((model, optimizer)))
        saved = manager.restore(first, args=ocp.args.Composite(state=layout, data=ocp.args.JsonRestore()))
        nnx.update((model, optimizer), saved.state)
        data.load_state_dict(saved.data)
    for step in range(first + 1, steps + 1):
        loss = train(model, optimizer, *map(jnp.asarray, cells(data.read(SIZES[kind]))))
        print(f"step {step}: loss {loss:.9f}", flush=True)
        if step % 5 == 0:
            state = ocp.args.StandardSave(nnx.state((model, optimizer)))
            manager.save(step, args=ocp.args.Composite(state=state, data=ocp.args.JsonSave(data.state_dict())))

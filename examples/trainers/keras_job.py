"""Train in Keras with PyTorch as its backend, and resume: keras_job.py KIND STEPS. (docs/trainers.md)"""

import json
import os
import sys
from pathlib import Path

from book import book
from torch.utils.data import DataLoader

os.environ["KERAS_BACKEND"] = "torch"  # before the import of Keras
import keras


def cells(minibatch):
    """Return words, classes and the weight of each cell: 1 or, without a word, 0."""
    words, classes = minibatch["words"], minibatch["casings"]
    if "segment_ids" in minibatch:
        return words, classes, (minibatch["segment_ids"] > 0).double()
    return words.values, classes.values, words.mask.double()


class Job(keras.callbacks.Callback):
    """Prints the loss of each step, and saves the model together with the state of the data set."""

    def on_train_begin(self, logs=None):
        if first:  # not earlier: `fit` reads a minibatch to build the loss, and then begins again
            dataset.load_state_dict(json.loads((folder / str(first) / "data.json").read_text()))

    def on_train_batch_begin(self, batch, logs=None):
        self.model.reset_metrics()  # otherwise the loss is the mean of all steps

    def on_train_batch_end(self, batch, logs=None):
        step = first + batch + 1
        print(f"step {step}: loss {logs['loss']:.9f}", flush=True)
        if step % 5 == 0:
            (folder / "new").mkdir(parents=True, exist_ok=True)
            self.model.save(folder / "new" / "model.keras")
            (folder / "new" / "data.json").write_text(json.dumps(dataset.state_dict()))
            (folder / "new").rename(folder / str(step))  # whole, or not at all


dataset, folder = book(sys.argv[1]), Path("keras")
first = max((int(saved.name) for saved in folder.glob("[0-9]*")), default=0)
keras.config.set_floatx("float64")
if first:
    model = keras.saving.load_model(folder / str(first) / "model.keras")
else:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((None,), dtype="int32"), keras.layers.Embedding(1323, 16)])
    model.add(keras.layers.Dense(3))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    model.compile(keras.optimizers.Adam(0.01), loss)
loader = DataLoader(dataset, batch_size=None, collate_fn=cells)
model.fit(loader, steps_per_epoch=int(sys.argv[2]) - first, callbacks=[Job()], verbose=0)

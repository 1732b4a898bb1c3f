"""Run the main job on real input: inspect the corpora, train on one, read another. `make demo` runs this program.

    python examples/demo.py

The program inspects the corpora with the command line, trains a softmax classifier in NumPy on the minibatches of the
handwritten digits, and learns from the book how each of its words is usually printed. It needs only NumPy and cntkio.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from cntkio import CTFDeserializer, MinibatchSource, StreamDef, StreamDefs, cli

EXAMPLES = Path(__file__).parent

NUM_SWEEPS = 20
MINIBATCH_SIZE = 32
LEARNING_RATE = 0.5
PIXEL_RANGE = 16

Floats = np.ndarray[Any, np.dtype[np.float32]]


def digits(name: str, max_sweeps: int) -> MinibatchSource:
    """Read one of the files of `digits/`, in file order."""
    streams = StreamDefs(label=StreamDef(field="label", shape=10), pixels=StreamDef(field="pixels", shape=64))
    return MinibatchSource(CTFDeserializer(EXAMPLES / "digits" / name, streams), max_sweeps=max_sweeps, randomize=False)


def book(name: str) -> MinibatchSource:
    """Read one of the files of `alice/` once, in file order, with long names for its streams."""
    streams = StreamDefs(
        words=StreamDef(field="w", shape=1323, is_sparse=True),
        casings=StreamDef(field="c", shape=3, is_sparse=True),
        marks=StreamDef(field="m", shape=8, is_sparse=True),
        chapter=StreamDef(field="ch", shape=1),
    )
    return MinibatchSource(CTFDeserializer(EXAMPLES / "alice" / name, streams), max_sweeps=1, randomize=False)


def softmax(scores: Floats) -> Floats:
    """Turn scores `[samples, classes]` into probabilities of the same shape."""
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def train_digits() -> float:
    """Train on `train.ctf`, print the speed, and return the accuracy on `test.ctf`."""
    weights, bias = np.zeros((64, 10), np.float32), np.zeros(10, np.float32)
    num_samples, num_minibatches, start = 0, 0, time.perf_counter()
    for minibatch in digits("train.ctf", NUM_SWEEPS).minibatches(MINIBATCH_SIZE):
        pixels, label = minibatch["pixels"].values / PIXEL_RANGE, minibatch["label"].values
        error = (softmax(pixels @ weights + bias) - label) / len(label)
        weights -= LEARNING_RATE * pixels.T @ error
        bias -= LEARNING_RATE * error.sum(axis=0)
        num_samples += len(label)
        num_minibatches += 1
    seconds = time.perf_counter() - start

    num_right, num_tested = 0, 0
    for minibatch in digits("test.ctf", 1).minibatches(256):
        scores = (minibatch["pixels"].values / PIXEL_RANGE) @ weights + bias
        num_right += int((scores.argmax(axis=1) == minibatch["label"].values.argmax(axis=1)).sum())
        num_tested += len(scores)

    print(f"trained         {NUM_SWEEPS} sweeps, {num_minibatches:,} minibatches, {num_samples:,} samples")
    print(f"throughput      {num_samples / seconds:,.0f} samples/s, reading and training")
    print(f"test accuracy   {num_right / num_tested:.3f} ({num_right} of {num_tested} images)")
    return num_right / num_tested


def learn_casings() -> float:
    """Count how `train.ctf` prints each word, print how well that predicts `test.ctf`, and return the accuracy."""
    counts = np.zeros((1323, 3), np.int64)
    num_sequences, start = 0, time.perf_counter()
    for minibatch in book("train.ctf").minibatches(1024):
        # Each word has one entry in each of the two streams, so entries of the same index belong together.
        np.add.at(counts, (minibatch["words"].indices, minibatch["casings"].indices), 1)
        num_sequences += minibatch["words"].num_sequences
    seconds = time.perf_counter() - start
    usual = counts.argmax(axis=1)

    num_right, num_small, num_tested = 0, 0, 0
    for minibatch in book("test.ctf").minibatches(1024):
        words, casings = minibatch["words"].indices, minibatch["casings"].indices
        num_right += int((usual[words] == casings).sum())
        num_small += int((casings == 0).sum())
        num_tested += len(words)

    megabytes = (EXAMPLES / "alice" / "train.ctf").stat().st_size / 1e6
    print(f"read            {num_sequences:,} sequences, {counts.sum():,} samples")
    print(f"throughput      {megabytes / seconds:,.0f} MB/s, indexing, parsing and counting")
    print(f"test accuracy   {num_right / num_tested:.3f} ({num_small / num_tested:.3f} for small letters throughout)")
    return num_right / num_tested


def main() -> int:
    """Run the whole demonstration and return its exit status: 0 if the classifier learned what it should."""
    for corpus in ("digits/train.ctf", "alice/train.ctf"):
        path = os.path.relpath(EXAMPLES / corpus)
        print(f"$ cntkio inspect {path}")
        status = cli.main(["inspect", path])
        if status != 0:
            return status
        print()
    print("Handwritten digits: a softmax classifier, trained on minibatches in file order")
    accuracy = train_digits()
    print("\nAlice in Wonderland: small, First or ALL letters, guessed for each word alone")
    learn_casings()
    print("\nA configuration of CNTK, run as it is: pixels and labels from two deserializers, joined")
    os.chdir(EXAMPLES.parent)  # its paths are relative to the repository
    print("$ cntkio bench examples/digits/digits.cntk")
    status = cli.main(["bench", "examples/digits/digits.cntk"])
    return status if accuracy > 0.93 else 1


if __name__ == "__main__":
    sys.exit(main())

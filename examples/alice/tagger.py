"""Train an LSTM that restores the capitals and the punctuation of a book, in PyTorch.

    python examples/alice/tagger.py [--sweeps 6] [--checkpoint FILE] [--log FILE]

The words are in lower case and without punctuation; a paragraph is a sequence. For each word the network predicts how
it is printed (small, First or ALL) and the punctuation mark after it. With --checkpoint the program resumes where it
was stopped, even in mid-sweep, and its losses then equal the losses of an uninterrupted run bit for bit. --log writes
the losses to a file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from cntkio import CTFDeserializer, MinibatchSource, StreamDef, StreamDefs
from cntkio.torch import MinibatchDataset, Padded, TensorMinibatch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

HERE = Path(__file__).parent
NUM_WORDS, NUM_CASINGS, NUM_MARKS = 1323, 3, 8
STREAMS = StreamDefs(
    words=StreamDef(field="w", shape=NUM_WORDS, is_sparse=True),
    casings=StreamDef(field="c", shape=NUM_CASINGS, is_sparse=True),
    marks=StreamDef(field="m", shape=NUM_MARKS, is_sparse=True),
)
MINIBATCH_SIZE = 512  # words
STEPS_PER_CHECKPOINT = 10


def corpus(name: str, **options: Any) -> MinibatchDataset:
    """Return one sweep of train.ctf or test.ctf as a data set of padded class ids."""
    # Small chunks, so that there are enough chunks for several workers.
    deserializer = CTFDeserializer(HERE / name, STREAMS, chunk_size_in_bytes=1 << 16)
    source = MinibatchSource(deserializer, max_sweeps=1)
    return MinibatchDataset(source, MINIBATCH_SIZE, layout="padded_ids", **options)


class Tagger(torch.nn.Module):
    """Scores of casings and of marks, `[sequences, steps, classes]`, for each word."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(NUM_WORDS, 64)
        self.lstm = torch.nn.LSTM(64, 64, batch_first=True, bidirectional=True)
        self.casings = torch.nn.Linear(128, NUM_CASINGS)
        self.marks = torch.nn.Linear(128, NUM_MARKS)
        self.dropout = torch.nn.Dropout(0.4)

    def forward(self, minibatch: TensorMinibatch[Padded]) -> tuple[torch.Tensor, torch.Tensor]:
        words = minibatch["words"]
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            self.dropout(self.embedding(words.values)), words.lengths, batch_first=True, enforce_sorted=False
        )
        hidden, _ = torch.nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        hidden = self.dropout(hidden)
        return self.casings(hidden), self.marks(hidden)


def loss_of(model: Tagger, minibatch: TensorMinibatch[Padded]) -> torch.Tensor:
    mask = minibatch["words"].mask
    casings, marks = model(minibatch)
    casings_loss = cross_entropy(casings[mask], minibatch["casings"].values[mask].long())
    return casings_loss + cross_entropy(marks[mask], minibatch["marks"].values[mask].long())


@torch.no_grad()
def accuracy(model: Tagger) -> tuple[float, float]:
    """Return the shares of the test file's words whose casing, and whose mark, is predicted correctly."""
    model.eval()
    num_words = 0
    right = torch.zeros(2)
    for minibatch in corpus("test.ctf"):
        mask = minibatch["words"].mask
        num_words += int(mask.sum())
        for number, (scores, name) in enumerate(zip(model(minibatch), ("casings", "marks"), strict=True)):
            right[number] += (scores.argmax(-1) == minibatch[name].values)[mask].sum()
    model.train()
    casings, marks = (right / num_words).tolist()
    return casings, marks


def train(model: Tagger, num_sweeps: int, checkpoint: Path | None = None) -> Iterator[tuple[int, int, float]]:
    """Yield the number of each minibatch, the number of its sweep, and its loss."""
    dataset = corpus("train.ctf")
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    step = 0
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint)
        step = saved["step"]
        dataset.load_state_dict(saved["dataset"])
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["generator"])
    for sweep in range(dataset.epoch, num_sweeps):
        dataset.set_epoch(sweep)
        # The loader draws a number when it starts. With its own generator, this does not change what dropout draws.
        for minibatch in DataLoader(dataset, batch_size=None, generator=torch.Generator()):
            optimizer.zero_grad()
            loss = loss_of(model, minibatch)
            loss.backward()
            optimizer.step()
            step += 1
            yield step, sweep, loss.item()
            if checkpoint is not None and step % STEPS_PER_CHECKPOINT == 0:
                state = {"step": step, "dataset": dataset.state_dict(), "generator": torch.get_rng_state()}
                state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                new = checkpoint.with_name(f"{checkpoint.name}.new")
                torch.save(state, new)
                new.replace(checkpoint)  # whole, or not at all


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=6)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--log", type=Path, help="append the number, the sweep and the exact loss of each minibatch")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    model = Tagger()
    for step, sweep, loss in train(model, given.sweeps, given.checkpoint):
        if given.log is not None:
            with given.log.open("a") as log:
                log.write(f"{step} {sweep} {loss.hex()}\n")
        if step % 100 == 0:
            print(f"minibatch {step:4}  loss {loss:.3f}")
    casings, marks = accuracy(model)
    print(f"right on chapters 11 and 12: {casings:.1%} of the casings, {marks:.1%} of the marks")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Train in Lightning, and resume on any number of ranks: lightning_job.py KIND STEPS. (docs/trainers.md)"""

import os
import sys
from pathlib import Path

import torch
from book import book, losses, tagger
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader


class Book(LightningDataModule):
    """A data set whose state is in each checkpoint of Lightning."""

    def __init__(self, kind):
        super().__init__()
        self.dataset = book(kind)

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=None)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.state = batch.state_dict()  # Lightning reads ahead, so the data set itself is one minibatch further
        return batch

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.dataset.load_state_dict(state)


class Tagger(LightningModule):
    """The network."""

    def __init__(self):
        super().__init__()
        self.network = tagger()

    def training_step(self, batch, batch_idx):
        loss, mean = losses(self.network, batch)
        if self.trainer.is_global_zero:
            print(f"step {self.global_step + 1}: loss {mean:.9f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)


count = int(os.environ.get("WORLD_SIZE", 1))
parts = {"accelerator": "cpu", "devices": count, "strategy": "ddp" if count > 1 else "auto"}
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
saving = ModelCheckpoint("lightning", "{step}", every_n_train_steps=5, save_top_k=-1)
trainer = Trainer(max_steps=int(sys.argv[2]), callbacks=[saving], **parts, **quiet)
newest = max(Path("lightning").glob("*.ckpt"), key=os.path.getmtime, default=None)
trainer.fit(Tagger(), Book(sys.argv[1]), ckpt_path=newest, weights_only=True)

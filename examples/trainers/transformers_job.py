"""Train in Transformers, and resume on any number of ranks: transformers_job.py KIND STEPS. (docs/trainers.md)"""

import os
import sys
from pathlib import Path

import torch
from book import book
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState, TrainerState


def inputs(minibatch):
    """Return the arguments of the model: packed rows as one row without padding between sequences, or padded rows."""
    words = minibatch["words"]
    if "segment_ids" not in minibatch:
        ids, mask = words.values.long(), words.mask
        return {"input_ids": ids, "attention_mask": mask.long(), "labels": ids.masked_fill(~mask, -100)}
    ids, positions = words.reshape(1, -1).long(), minibatch["position_ids"].reshape(1, -1).long()
    bounds = minibatch["cu_seqlens"]
    longest = int(bounds.diff().max())
    is_first = (positions == 0) | (minibatch["segment_ids"].reshape(1, -1) == 0)  # also each empty cell
    flash = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}
    return {"input_ids": ids, "position_ids": positions, "labels": ids.masked_fill(is_first, -100), **flash}


class Position(TrainerCallback, ExportableState):
    """The state of the data set, in the trainer_state.json of each checkpoint."""

    def state(self):
        return {"args": {}, "attributes": {"data": dataset.state_dict()}}


class BookTrainer(Trainer):
    """A trainer that takes whole minibatches."""

    def get_train_dataloader(self):
        return DataLoader(dataset, batch_size=None, collate_fn=inputs)

    def training_step(self, *arguments):
        loss = super().training_step(*arguments)
        mean = float(self.accelerator.reduce(loss, "mean"))
        self.accelerator.print(f"step {self.state.global_step + 1}: loss {mean:.9f}", flush=True)
        return loss


dataset = book(sys.argv[1])
torch.manual_seed(1)
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=1323, **sizes)).double()
saved = max(Path("transformers").glob("*/trainer_state.json"), key=os.path.getmtime, default=None)
if saved is not None:
    dataset.load_state_dict(TrainerState.load_from_json(saved).stateful_callbacks["Position"]["attributes"]["data"])
steps = {"max_steps": int(sys.argv[2]), "save_steps": 5, "learning_rate": 0.01, "lr_scheduler_type": "constant"}
quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no"}
arguments = TrainingArguments("transformers", ignore_data_skip=True, **steps, **quiet)
BookTrainer(model, arguments, callbacks=[Position()]).train(saved and str(saved.parent))

"""Configuration files: the verb `config`, and the half of the verb `read` that runs them. (docs/configuration.md)"""

from __future__ import annotations

import time
from argparse import Namespace

from cntkio.cli.show import FINE, print_facts, progress_bar
from cntkio.config import ReaderConfig
from cntkio.config.reading import readers_asked_for


def config(options: Namespace) -> int:
    """Print the meaning of a configuration.

    Raises:
        ConfigError: The configuration or the call are bad.
        OSError: A file cannot be read.
    """
    readers = readers_asked_for(options.file, options.arguments)
    if options.python:
        print("\n\n".join(f"# {reader.section}\n{reader.to_python()}" for reader in readers), end="")
        return FINE
    for index, reader in enumerate(readers):
        print(end="\n" if index else "")
        print_facts(reader.facts())
    return FINE


def read_configuration(options: Namespace) -> int:
    """Read epochs with each reader, and print how many minibatches there were and how fast they came.

    Raises:
        CntkIoError: The data, the configuration or the call are bad.
        OSError: A file cannot be read.
    """
    for index, reader in enumerate(readers_asked_for(options.file, options.arguments)):
        facts = _read_epochs(reader, options.sweeps)
        print(end="\n" if index else "")
        print_facts(facts)
    return FINE


def _read_epochs(reader: ReaderConfig, num_epochs: int) -> dict[str, str]:
    num_minibatches = num_sequences = num_samples = 0
    start = time.perf_counter()
    with progress_bar() as progress, reader.open() as source:
        opened = time.perf_counter() - start
        for epoch in range(num_epochs):
            for minibatch in reader.epoch(source, epoch):
                num_minibatches += 1
                num_sequences += minibatch.num_sequences
                num_samples += max(data.num_samples for data in minibatch.values())
                if progress is not None:
                    progress(num_samples, (reader.epoch_size or source.num_samples) * num_epochs)
        streams = ", ".join(f"{info.name} {info.storage_format} {info.dim}" for info in source.stream_infos())
    seconds = time.perf_counter() - start
    return {
        "section": reader.section,
        "reader": reader.kind,
        "streams": streams,
        "epochs": f"{num_epochs:,}",
        "minibatches": f"{num_minibatches:,} of {reader.minibatch_size():,} samples",
        "sequences": f"{num_sequences:,}",
        "samples": f"{num_samples:,}",
        "time": f"{seconds:.3f} s, {opened:.3f} s of it to open",
        "throughput": f"{num_samples / max(seconds - opened, 1e-9):,.0f} samples/s",
    }

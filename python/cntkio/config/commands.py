"""Parts of the command line's verbs for configuration files. (docs/configuration.md)

Invariant: it returns what is to be printed. It prints nothing, draws no progress bar, and knows no options.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cntkio.config.reader_config import ReaderConfig
from cntkio.minibatch import Minibatch
from cntkio.source import MinibatchSource


def read(
    config: ReaderConfig,
    num_epochs: int = 1,
    watch: Callable[[MinibatchSource, Minibatch, int], None] = lambda *_: None,
) -> dict[str, str]:
    """Read epochs, and return how much that was and how fast.

    Args:
        config: The reader.
        num_epochs: How many epochs.
        watch: Function that is called with the source, each minibatch, and the number of samples before it.

    Returns:
        Facts by name.

    Raises:
        CntkIoError: The data or the configuration are bad.
        OSError: A file cannot be read.
    """
    num_minibatches = num_sequences = num_samples = 0
    start = time.perf_counter()
    with config.open() as source:
        opened = time.perf_counter() - start
        for epoch in range(num_epochs):
            for minibatch in config.epoch(source, epoch):
                watch(source, minibatch, num_samples)
                num_minibatches += 1
                num_sequences += minibatch.num_sequences
                num_samples += max(data.num_samples for data in minibatch.values())
        streams = ", ".join(f"{info.name} {info.storage_format} {info.dim}" for info in source.stream_infos())
    seconds = time.perf_counter() - start
    return {
        "section": config.section,
        "reader": config.kind,
        "streams": streams,
        "epochs": f"{num_epochs:,}",
        "minibatches": f"{num_minibatches:,} of {config.minibatch_size():,} samples",
        "sequences": f"{num_sequences:,}",
        "samples": f"{num_samples:,}",
        "time": f"{seconds:.3f} s, {opened:.3f} s of it to open",
        "throughput": f"{num_samples / max(seconds - opened, 1e-9):,.0f} samples/s",
    }

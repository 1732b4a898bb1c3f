"""Configuration files: the verb `config`, and the part of the verb `read` that runs them. (docs/configuration.md)"""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path

from cntkio.cli.show import BAD_CALL, FINE, Facts, Paragraphs, complain, progress_bar, show, show_json
from cntkio.config import ReaderConfig
from cntkio.config.reading import Attempts, attempts, readers_asked_for


def config(options: Namespace) -> int:
    """Print the meaning of a configuration; for a reader that cannot be read, print the reason.

    Raises:
        ConfigError: The configuration or the call is bad.
        OSError: A file cannot be read.
    """
    found = attempts(options.file, options.arguments)
    if found.why_all and not options.python:
        _list(options, found)
        return FINE
    paragraphs = Paragraphs(options)
    for attempt in found.each:
        if attempt.config is None:
            complain(attempt.error)
            continue
        paragraphs.begin()
        if options.python:
            print(f"# {attempt.config.section}\n{attempt.config.to_python()}", end="")
        else:
            Facts(attempt.config.facts()).show(as_json=options.json)
    return BAD_CALL if any(attempt.error for attempt in found.each) else FINE


def _list(options: Namespace, found: Attempts) -> None:
    """Print all sections with readers, and how to ask for one."""
    sections = [
        {
            "section": attempt.section,
            "reader": attempt.config and attempt.config.kind,
            "error": None if attempt.error is None else str(attempt.error),
        }
        for attempt in found.each
    ]
    if options.json:
        show_json({"file": options.file, "why": found.why_all, "sections": sections})
        return
    width = max(len(attempt.section) for attempt in found.each)
    show(f"{options.file}: {found.why_all}. Sections with readers:")
    print()
    for section in sections:
        show(f"  {section['section']:{width}}  {section['reader'] or section['error']}")
    print()
    show(f"Name sections to see what their readers do: cntkio config {options.file} {found.each[0].section}")


def read_configuration(options: Namespace, path: Path) -> int:
    """Read epochs with each reader, and print the number of minibatches and the throughput.

    Raises:
        CntkIoError: The data, the configuration or the call is bad.
        OSError: A file cannot be read.
    """
    paragraphs = Paragraphs(options)
    for reader in readers_asked_for(path, options.arguments):
        facts = _read_epochs(options, reader)
        paragraphs.begin()
        facts.show(as_json=options.json)
    return FINE


def _read_epochs(options: Namespace, reader: ReaderConfig) -> Facts:
    num_epochs = options.sweeps
    num_minibatches = num_sequences = num_samples = 0
    start = time.perf_counter()
    with progress_bar(options, "samples") as progress, reader.open() as source:
        opened = time.perf_counter() - start
        for epoch in range(num_epochs):
            for minibatch in reader.epoch(source, epoch):
                num_minibatches += 1
                num_sequences += minibatch.num_sequences
                num_samples += max(data.num_samples for data in minibatch.values())
                if progress is not None:
                    progress(num_samples, (reader.epoch_size or source.num_samples) * num_epochs)
        streams = [f"{info.name} {info.storage_format} {info.dim}" for info in source.stream_infos()]
    seconds = time.perf_counter() - start
    facts = Facts()
    facts.add("section", reader.section)
    facts.add("reader", reader.kind)
    facts.add("streams", streams, ", ".join(streams))
    facts.add("epochs", num_epochs)
    size = reader.minibatch_size()
    facts.add("minibatches", num_minibatches, f"{num_minibatches:,} of {size:,} samples")
    facts.add_field("minibatch_size", size)
    facts.add("sequences", num_sequences)
    facts.add("samples", num_samples)
    facts.add("time", seconds, f"{seconds:.3f} s, {opened:.3f} s of it to open")
    rate = num_samples / max(seconds - opened, 1e-9)
    facts.add("throughput", rate, f"{rate:,.0f} samples/s")
    return facts

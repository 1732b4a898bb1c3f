"""The verbs `head`, `read` and `index`: sequences, minibatches and the throughput, the index cache."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from contextlib import closing
from itertools import islice

import numpy as np

from cntkio.cli import speech
from cntkio.cli.config import read_configuration
from cntkio.cli.corpora import deserializer_of, in_minibatches, text_of
from cntkio.cli.show import FINE, count, print_facts, shortened
from cntkio.errors import ConfigError
from cntkio.formats.detect import detect
from cntkio.minibatch import MinibatchData
from cntkio.source import MinibatchSource
from cntkio.streams import named


def head(options: Namespace) -> int:
    """Print the first sequences.

    Raises:
        CntkIoError: The data or the call are bad.
        OSError: A file cannot be read.
    """
    kind = detect(options.file)
    if kind.form in speech.LABEL_FORMS:
        for key, rows, num_rows in speech.open_labels(options.file, options.mapping).entries(options.sequences):
            print(f"sequence {key}")
            print(f"  labels  {shortened(rows, num_rows, ' | ')}")
        return FINE
    with MinibatchSource(deserializer_of(options, kind), max_sweeps=1, randomize=False) as source:
        streams = source.streams
        width = max(len(name) for name in streams)
        # A minibatch of one sample is one sequence, since a sequence longer than a minibatch comes alone.
        for minibatch in islice(source.minibatches(1), options.sequences):
            key = minibatch.keys_of_sequences[0]
            print(f"sequence {key.decode(errors='replace') if isinstance(key, bytes) else key}")
            for name, _ in named(streams):
                print(f"  {name:{width}}  {_readable(minibatch[name])}")
    return FINE


def _readable(data: MinibatchData) -> str:
    """Return the samples of one sequence in a line, as many as fit."""
    samples = (_readable_sample(data, sample) for sample in range(data.num_samples))
    return shortened(samples, data.num_samples, " | ")


def _readable_sample(data: MinibatchData, sample: int) -> str:
    if data.indices is None or data.indptr is None:
        values = data.values[sample].ravel()
        return shortened((f"{value:g}" for value in values), len(values), " ")
    begin, end = int(data.indptr[sample]), int(data.indptr[sample + 1])
    entries = zip(data.indices[begin:end], data.values[begin:end], strict=True)
    return shortened((f"{index}:{value:g}" for index, value in entries), end - begin, " ") or "(empty)"


def read(options: Namespace) -> int:
    """Read minibatches, as a training program does, and print the throughput.

    Raises:
        CntkIoError: The data or the call are bad.
        OSError: A file cannot be read.
    """
    kind = detect(options.file)
    if kind.form == "configuration":
        return read_configuration(options)
    if options.arguments:
        raise ConfigError(f"{options.arguments[0]!r}: sections and key=value go with a configuration file only")
    if kind.form in speech.LABEL_FORMS:
        return _read_labels(options)
    is_list = kind.form == "scp"
    deserializer = deserializer_of(options, kind)
    num_minibatches = num_sequences = num_values = 0
    start = time.perf_counter()
    with MinibatchSource(deserializer, max_sweeps=options.sweeps, randomize=options.randomize) as source:
        for minibatch in in_minibatches(source, options.minibatch_size, options.sweeps):
            num_minibatches += 1
            num_sequences += minibatch.num_sequences
            num_values += sum(data.num_samples * data.stream.dim for data in minibatch.values() if is_list)
    seconds = time.perf_counter() - start

    num_samples = source.num_samples * options.sweeps
    # The size of a list says nothing about its features, so the delivered values count.
    megabytes = 4 * num_values / 1e6 if is_list else options.file.stat().st_size * options.sweeps / 1e6
    print_facts(
        {
            "file": os.fspath(options.file),
            "sweeps": f"{options.sweeps:,}, {'randomized' if options.randomize else 'in file order'}",
            "minibatches": f"{num_minibatches:,} of {count(options.minibatch_size, 'sample')}",
            "sequences": f"{num_sequences:,}",
            "samples": f"{num_samples:,}",
            "time": f"{seconds:.3f} s",
            "throughput": f"{megabytes / seconds:,.1f} MB/s, {num_samples / seconds:,.0f} samples/s",
        }
    )
    return FINE


def _read_labels(options: Namespace) -> int:
    """Print how long it takes to read labels. Without features they make no minibatches."""
    start = time.perf_counter()
    labels = speech.open_labels(options.file, options.mapping)
    seconds = time.perf_counter() - start
    size = options.file.stat().st_size
    facts = labels.facts()
    print_facts(
        {
            "file": os.fspath(options.file),
            **{name: facts[name] for name in ("sequences", "samples", "rows")},
            "time": f"{seconds:.3f} s",
            "throughput": f"{size / 1e6 / seconds:,.1f} MB/s",
        }
    )
    return FINE


def index(options: Namespace) -> int:
    """Write the index cache, and print how long opening takes without it and with it.

    Raises:
        CntkIoError: The data or the call are bad.
        OSError: A file cannot be read.
    """
    kind = detect(options.file)
    if kind.form != "ctf":
        raise ConfigError(f"{options.file}: only text has an index; this file: {kind.title}", key="file")
    deserializer = text_of(options, cache_index=True)
    milliseconds = []
    for _ in range(2):
        start = time.perf_counter()
        with closing(deserializer.open()) as corpus:
            milliseconds.append(1e3 * (time.perf_counter() - start))
            table = corpus.table
    print_facts(
        {
            "file": os.fspath(options.file),
            "chunks": f"{table.num_chunks:,} of at most {deserializer.chunk_size_in_bytes:,} bytes",
            "sequences": f"{table.num_sequences:,}",
            "samples": f"{table.lengths.sum(dtype=np.int64):,}",
            "opened in": f"{milliseconds[0]:,.1f} ms",
            "opened again in": f"{milliseconds[1]:,.1f} ms",
        }
    )
    return FINE

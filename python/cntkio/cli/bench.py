"""The verbs `bench`, `index` and `config`: the throughput of minibatches, the index cache, configurations."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from cntkio.cli.show import (
    BAD_CALL,
    BAD_DATA,
    FINE,
    Facts,
    add_size,
    complain,
    described,
    file_facts,
    in_minibatches,
    inputs_of,
    progress_bar,
    samples_in,
    separated,
    show,
    show_json,
)
from cntkio.config import ReaderConfig
from cntkio.config.reading import Attempt, attempts, readers_asked_for
from cntkio.corpora import Described, Input
from cntkio.displays import counted
from cntkio.errors import ConfigError
from cntkio.formats.ctf import PartOfText, index_part, join_parts
from cntkio.formats.mlf import Labels
from cntkio.storage.index_cache import LEAST_CACHED, CacheFiles
from cntkio.storage.manifest import NewManifest
from cntkio.storage.open_input import text_sizes


def bench(options: Namespace) -> int:
    """Read minibatches, as a training program does, and print the throughput."""
    with inputs_of(options) as (file,):
        if file.kind.is_configuration:
            readers = readers_asked_for(file.path, options.arguments)
            for facts in separated(options, (_read_epochs(options, reader) for reader in readers)):
                facts.show(as_json=options.json)
            return FINE
        if options.arguments:
            raise ConfigError(f"{options.arguments[0]!r}: sections and key=value apply only to a configuration")
        # A label file is read when `labels` is asked for, so the clock starts before that.
        start = time.perf_counter()
        (one,) = described(options, file)
        labels = one.labels
        facts = _read(options, one) if labels is None else _read_labels(one, labels, start)
        facts.show(as_json=options.json)
    return FINE


def _read(options: Namespace, one: Described) -> Facts:
    is_list = one.input.kind.is_list
    num_minibatches = num_sequences = num_values = 0
    start = time.perf_counter()
    with one.open(max_sweeps=options.sweeps, randomize=options.randomize) as source:
        for minibatch in in_minibatches(options, source, options.minibatch_size, options.sweeps):
            num_minibatches += 1
            num_sequences += minibatch.num_sequences
            num_values += sum(data.num_samples * data.stream.dim for data in minibatch.values() if is_list)
        num_samples = source.num_samples * options.sweeps
    # The size of a list says nothing about its features, so the delivered values count.
    num_bytes = 4 * num_values if is_list else one.input.size * options.sweeps
    facts = Facts(file=one.input.name)
    facts.add("sweeps", options.sweeps, f"{options.sweeps:,}, {'randomized' if options.randomize else 'in file order'}")
    facts.add("minibatches", num_minibatches, f"{num_minibatches:,} of {counted(options.minibatch_size, 'sample')}")
    facts.add_field("minibatch_size", options.minibatch_size)
    facts.add_field("randomized", options.randomize)
    facts.add_all({"sequences": num_sequences, "samples": num_samples})
    _add_speed(facts, time.perf_counter() - start, num_bytes, num_samples)
    return facts


def _add_speed(facts: Facts, seconds: float, num_bytes: int, num_samples: int) -> None:
    facts.add("time", seconds, f"{seconds:.3f} s")
    in_words = f"{num_bytes / 1e6 / seconds:,.1f} MB/s, {num_samples / seconds:,.0f} samples/s"
    facts.add("throughput", num_bytes / seconds, in_words)


def _read_labels(one: Described, labels: Labels, start: float) -> Facts:
    """Return the speed of reading a label file alone, which makes no minibatches."""
    seconds = time.perf_counter() - start
    corpus = labels.corpus
    facts = Facts(file=one.input.name)
    add_size(facts, corpus.table)
    facts.add("rows", corpus.index.layout.num_rows)
    _add_speed(facts, seconds, one.input.size, samples_in(corpus.table))
    return facts


def index(options: Namespace) -> int:
    """Open corpora twice, print how long that takes, and write the index caches of texts and tables.

    The cache of a file in a store is written next to the file, or with all others into a manifest. A manifest has the
    bytes that the opening reads of files without an index cache.
    """
    if options.part is not None and (options.join is not None or options.manifest is not None):
        raise ConfigError("--part makes one part of an index; leave out --join and --manifest", key="part")
    manifest = None if options.manifest is None else NewManifest(options.manifest)
    with inputs_of(options) as files:
        if options.part is not None or options.join is not None:
            return _index_in_parts(options, files)
        if manifest is not None:
            for file in (file for file in files if file.kind.cache and not file.kind.is_noted):
                applies = "texts, tables, binary corpora, and lists and labels of HTK"
                raise ConfigError(f"--manifest applies only to {applies}, not to {file.name}", key="manifest")
        status = FINE
        for file in separated(options, files):
            with nullcontext() if manifest is None or not file.kind.cache else manifest.noting():
                status = max(status, _index(options, file, manifest))
    if manifest is not None:
        manifest.write()
    return status


_Publish = Callable[[CacheFiles], str | None]


def _index(options: Namespace, file: Input, manifest: NewManifest | None) -> int:
    seconds = []
    cache, state_of_cache = None, file.kind.cache
    publish = CacheFiles.publish if manifest is None else manifest.add
    if manifest is not None and file.kind.cache:
        cache = state_of_cache = manifest.name
    # The second time shows what the cache saves: the first opening has written it.
    for _ in range(2):
        took, tables, start = 0.0, [], time.perf_counter()
        # A configuration may have several readers.
        # An index needs no more than guessed streams, and after a join no pass over the text should follow.
        for one in described(options, file, cache_index=True, guesses_streams=options.join is not None):
            with one.opened() as corpora:
                took += time.perf_counter() - start
                tables += [corpus.table for corpus in corpora]
                # For a kind without an index cache, this text says what is read at each start, or what saves time.
                if not file.kind.cache:
                    several = partial(_caches_of, files=file.files) if file.files else _cache_of
                    cache, state_of_cache = several(corpora[0], publish)
            start = time.perf_counter()
        seconds.append(took)
    facts = file_facts(file)
    num_chunks = sum(table.num_chunks for table in tables)
    facts.add("chunks", num_chunks, f"{num_chunks:,}{one.chunk_sizes}")
    num_sequences = sum(table.num_sequences for table in tables)
    facts.add_all({"sequences": num_sequences, "samples": sum(map(samples_in, tables))})
    facts.add("cache", cache, state_of_cache)
    facts.add("opened in", seconds[0], f"{1e3 * seconds[0]:,.1f} ms")
    facts.add("opened again in", seconds[-1], f"{1e3 * seconds[-1]:,.1f} ms")
    facts.show(as_json=options.json)
    # Without a cache the verb has failed. Small texts need none, because making their index is as quick.
    return BAD_DATA if not file.kind.cache and cache is None and state_of_cache != _ALL_SMALL else FINE


def _index_in_parts(options: Namespace, files: Sequence[Input]) -> int:
    """Make a part of the index of a text, or join the parts, and print the facts."""
    for file in separated(options, files):
        if file.kind.form != "ctf":
            raise ConfigError(f"--part and --join apply only to texts of CNTK, not to {file.name}", key="part")
        (one,) = described(options, file, cache_index=True, guesses_streams=True)
        start, (deserializer,) = time.perf_counter(), one.deserializers
        if options.part is None:
            join_parts(deserializer, options.join)
            _index(options, file, None)
            continue
        cache = index_part(deserializer, PartOfText(*options.part)).publish()
        facts = file_facts(file)
        facts.add("part", options.part, "{} of {}".format(*options.part))
        facts.add("cache", cache)
        facts.add("indexed in", seconds := time.perf_counter() - start, f"{1e3 * seconds:,.1f} ms")
        facts.show(as_json=options.json)
    return FINE


_ALL_SMALL = f"none; the index of a text of less than {LEAST_CACHED >> 10} KiB is made again just as quickly"


def _caches_of(corpus: Any, publish: _Publish, files: Sequence[str]) -> tuple[str | None, str]:
    """Return the first index cache of several texts, or None if a text has none; and the fact about all caches."""
    caches = [name for of_file in corpus.index.caches if (name := publish(of_file)) is not None]
    # The size 0 is an unknown size, of a text that is compressed or in a store.
    num_small = sum(0 < size < LEAST_CACHED for size in text_sizes(files))
    if not caches and num_small == len(files):
        return None, _ALL_SMALL
    if len(caches) + num_small < len(files):
        return None, f"only {len(caches)} of {len(files)} could be written"
    return caches[0], f"{caches[0]}, and so on, {len(caches)} in all"


def _cache_of(corpus: Any, publish: _Publish) -> tuple[str | None, str]:
    """Return the index cache of a text, or None; and the fact about it, or the reason why none was written."""
    (caches,) = corpus.index.caches
    failures = [failure for writer in caches.writers for failure in writer.wait().failures]
    # A text that was opened from its cache has no writer. A writer at this second opening means that the first failed.
    if not caches.writers:
        name = publish(caches)
        return name, str(name)
    return None, f"none could be written: {'; '.join(failures)}"


def config(options: Namespace) -> int:
    """Print the meaning of a configuration; for a reader that cannot be read, print the reason."""
    found, why_all = attempts(options.file, options.arguments)
    if why_all and not options.python:
        _list(options, found, why_all)
        return FINE
    errors = [attempt.error for attempt in found if attempt.error is not None]
    for error in errors:
        complain(error)
    for reader in separated(options, (attempt.config for attempt in found if attempt.config is not None)):
        if options.python:
            print(f"# {reader.section}\n{reader.to_python()}", end="")
        else:
            Facts(**reader.facts()).show(as_json=options.json)
    return BAD_CALL if errors else FINE


def _list(options: Namespace, found: Sequence[Attempt], why_all: str) -> None:
    """Print all sections with readers, and how to ask for one."""
    rows = [(section, config and config.kind, error and str(error)) for section, config, error in found]
    if options.json:
        sections = [dict(zip(("section", "reader", "error"), row, strict=True)) for row in rows]
        show_json({"file": options.file, "why": why_all, "sections": sections})
        return
    width = max(len(section) for section, _, _ in rows)
    show(f"{options.file}: {why_all}. Sections with readers:")
    print()
    for section, kind, error in rows:
        show(f"  {section:{width}}  {kind or error}")
    print()
    show(f"Name sections to see what their readers do: cntkio config {options.file} {found[0].section}")


def _read_epochs(options: Namespace, reader: ReaderConfig) -> Facts:
    num_epochs = options.sweeps
    num_minibatches = num_sequences = num_samples = 0
    start = time.perf_counter()
    with progress_bar(options, "samples") as progress, reader.open() as source:
        opened = time.perf_counter() - start
        epoch_size = reader.epoch_size or source.num_samples
        for epoch in range(num_epochs):
            num_before, begin = num_samples, epoch * epoch_size
            for minibatch in reader.epoch(source, epoch):
                num_minibatches += 1
                num_sequences += minibatch.num_sequences
                # The position counts each sequence once, by the stream that defines its length.
                num_samples = num_before + source.current_position["minibatchSourcePosition"] - begin
                if progress is not None:
                    progress(num_samples, epoch_size * num_epochs)
        streams = [f"{info.name} {info.storage_format} {info.dim}" for info in source.stream_infos()]
    seconds = time.perf_counter() - start
    facts = Facts(section=reader.section, reader=reader.kind)
    facts.add("streams", streams, ", ".join(streams))
    facts.add("epochs", num_epochs)
    size = reader.minibatch_size()
    facts.add("minibatches", num_minibatches, f"{num_minibatches:,} of {size:,} samples")
    facts.add_field("minibatch_size", size)
    facts.add_all({"sequences": num_sequences, "samples": num_samples})
    facts.add("time", seconds, f"{seconds:.3f} s, {opened:.3f} s of it to open")
    # A small corpus may be read between two ticks of the clock.
    rate = num_samples / max(seconds - opened, 1e-9)
    facts.add("throughput", rate, f"{rate:,.0f} samples/s")
    return facts

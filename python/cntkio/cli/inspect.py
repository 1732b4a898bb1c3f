"""The verb `inspect`: the contents of a corpus, and the configuration that reads it."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from cntkio.cli import speech
from cntkio.cli.corpora import deserializer_of, file_facts, form_of, in_minibatches, streams_asked_for
from cntkio.cli.show import BAD_DATA, FINE, complain, count, counts, print_facts
from cntkio.config.writing import configuration_for
from cntkio.errors import ConfigError
from cntkio.formats.ctf import CTFDeserializer, infer_streams
from cntkio.formats.detect import FileKind, detect
from cntkio.formats.htk import CHUNK_FRAMES
from cntkio.minibatch import MinibatchData
from cntkio.source import MinibatchSource

# Enough samples to keep the loop short, few enough to keep the memory small.
_SAMPLES_AT_ONCE = 16384
_ANY_NUMBER_OF_ERRORS = -1


def inspect(options: Namespace) -> int:
    """Print the contents of a corpus.

    Raises:
        CntkIoError: The data or the call are bad.
        OSError: A file cannot be read.
    """
    kind = detect(options.file)
    if kind.form in speech.LABEL_FORMS:
        return _inspect_labels(options, kind)
    if options.labels is not None and kind.form != "scp":
        raise ConfigError("--labels goes with a list of HTK features (scp)", key="labels")
    corpus = _CORPORA.get(kind.form, _other)(options, kind)
    with MinibatchSource(corpus.deserializer, max_sweeps=1, randomize=False) as source:
        streams = [source[name] for name in corpus.order] or source.stream_infos()
        facts = {info: _StreamFacts() for info in streams}
        for minibatch in in_minibatches(source, _SAMPLES_AT_ONCE):
            for info, fact in facts.items():
                fact.add(minibatch[info])
        errors, warnings = source.error_counts, source.warning_counts
    precisions = {info: f"{info.dtype}, " if corpus.has_precisions else "" for info in streams}
    print_facts(
        {
            **file_facts(options.file, kind.title),
            **corpus.facts,
            "chunks": f"{source.num_chunks:,}{corpus.chunk_sizes}",
            "sequences": f"{source.num_sequences:,}",
            "samples": f"{source.num_samples:,}",
            "longest sequence": count(max(fact.longest for fact in facts.values()), "sample"),
            **{f"stream {info.name}": f"{precisions[info]}{form_of(info)}, {fact}" for info, fact in facts.items()},
            **({"errors": counts(errors)} if corpus.forgives_errors else {}),
            "warnings": counts(warnings),
        }
    )
    _write_config(options, corpus.described)
    return BAD_DATA if errors else FINE


class _Corpus(NamedTuple):
    """A corpus that can be inspected.

    Attributes:
        deserializer: The deserializer that reads it.
        described: The deserializers that a written configuration describes.
        chunk_sizes: End of the fact about chunks.
        facts: Facts that only corpora of this kind have.
        order: The streams in the order in which they are printed; empty: in the order of the source.
        has_precisions: Whether the file gives the type of each stream's values.
        forgives_errors: Whether errors are counted instead of ending the command.
    """

    deserializer: Any
    described: Sequence[Any]
    chunk_sizes: str = ""
    facts: Mapping[str, str] = MappingProxyType({})
    order: Sequence[str] = ()
    has_precisions: bool = False
    forgives_errors: bool = False


def _text(options: Namespace, kind: FileKind) -> _Corpus:
    streams = streams_asked_for(options) or infer_streams(options.file)
    deserializer = CTFDeserializer(options.file, streams, max_errors=_ANY_NUMBER_OF_ERRORS)
    described = CTFDeserializer(options.file, streams)
    chunk_sizes = f" of at most {described.chunk_size_in_bytes:,} bytes"
    return _Corpus(deserializer, [described], chunk_sizes, order=list(streams), forgives_errors=True)


def _features(options: Namespace, kind: FileKind) -> _Corpus:
    deserializer = speech.features_of(options.file, streams_asked_for(options))
    labels = [] if options.labels is None else [speech.named_labels(options.labels, options.mapping)]
    chunk_sizes = f" of more than {CHUNK_FRAMES:,} samples, the last of the rest"
    return _Corpus(deserializer, [deserializer, *labels], chunk_sizes, speech.facts_of_features(deserializer))


def _other(options: Namespace, kind: FileKind) -> _Corpus:
    deserializer = deserializer_of(options, kind)
    return _Corpus(deserializer, [deserializer], has_precisions=True)


_CORPORA = {"ctf": _text, "scp": _features}


class _StreamFacts:
    """Facts about a stream, summed over minibatches."""

    def __init__(self) -> None:
        self.num_samples = 0
        self.longest = 0
        self._num_values = 0
        self._num_not_zero = 0

    def add(self, data: MinibatchData) -> None:
        self.num_samples += data.num_samples
        self.longest = max(self.longest, data.num_steps)
        self._num_values += data.num_samples * data.stream.dim
        self._num_not_zero += int(np.count_nonzero(data.values))

    def __str__(self) -> str:
        density = 100 * self._num_not_zero / self._num_values if self._num_values else 0
        return f"{count(self.num_samples, 'sample')}, at most {self.longest:,} in a sequence, {density:.3g} % not zero"


def _inspect_labels(options: Namespace, kind: FileKind) -> int:
    for key, option in (("write-config", options.write_config), ("labels", options.labels)):
        if option is not None:
            raise ConfigError(
                f"--{key} goes with the features: cntkio inspect LIST.scp --labels {options.file}", key=key
            )
    labels = speech.open_labels(options.file, options.mapping)
    complaints = list(labels.complaints())
    for complaint in complaints:
        complain(complaint)
    warnings = counts(labels.corpus.report.warnings)
    print_facts({**file_facts(options.file, kind.title), **labels.facts(), "warnings": warnings})
    return BAD_DATA if complaints else FINE


def _write_config(options: Namespace, deserializers: Sequence[Any]) -> None:
    """If it was asked for, write the configuration that reads a corpus, and print the program that does the same."""
    if options.write_config is not None:
        text, program = configuration_for(deserializers)
        options.write_config.write_bytes(os.fsencode(text))
        print(f"\n{program}", end="")

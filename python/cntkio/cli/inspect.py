"""The verb `inspect`: the contents of a corpus, and the configuration that reads it."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import numpy as np

from cntkio.cli.corpora import add_size, described, file_facts, form_of, inputs_of, stream_fields, surveyed
from cntkio.cli.show import BAD_DATA, FINE, Facts, Paragraphs, complain
from cntkio.cli.stats import write_figures
from cntkio.config.writing import configuration_for
from cntkio.corpora import SURVEYED_AT_ONCE, Described, Input
from cntkio.corpora.reading import LABEL_FORMS, Labels, named_labels
from cntkio.displays import counted
from cntkio.errors import ConfigError
from cntkio.formats.contract import Corpus, Opening
from cntkio.formats.output_file import written_whole
from cntkio.formats.report import first_few
from cntkio.minibatch import MinibatchData
from cntkio.survey.figures import Figures, figures

_ANY_NUMBER_OF_ERRORS = -1


def inspect(options: Namespace) -> int:
    """Print the contents of corpora.

    Raises:
        CntkIoError: The data or the call is bad.
        OSError: A file cannot be read.
    """
    status = FINE
    paragraphs = Paragraphs(options)
    with inputs_of(options) as files:
        for file in files:
            _check_labels(options, file)
            for one in described(options, file, max_errors=_ANY_NUMBER_OF_ERRORS):
                with one.opened() as corpora:
                    for corpus in corpora:
                        paragraphs.begin()
                        status = max(status, _inspect(options, one, corpus))
                _write_config(options, one.written)
        if options.html is not None:
            _write_page(options, files)
    return status


def _write_page(options: Namespace, files: list[Input]) -> None:
    found: list[Figures] = []
    for file in files:
        for one in described(options, file, max_errors=_ANY_NUMBER_OF_ERRORS, chunk_size_in_bytes=SURVEYED_AT_ONCE):
            with one.opened(Opening(trace_level=0)) as corpora:
                found.extend(figures(corpus, surveyed(options, corpus)) for corpus in corpora)
    write_figures(options, files, found)


def _inspect(options: Namespace, one: Described, corpus: Corpus) -> int:
    facts = file_facts(one.input, one.section)
    complaints: list[str] = []
    if one.labels is not None:
        complaints = list(one.labels.complaints())
        for complaint in complaints:
            complain(complaint)
        _add_facts_of_labels(facts, one.labels)
    else:
        _add_facts(facts, options, one, corpus)
    errors = corpus.report.errors
    if one.forgives_errors:
        facts.add("errors", errors)
    facts.add("warnings", corpus.report.warnings)
    facts.show(as_json=options.json)
    return BAD_DATA if complaints or errors else FINE


def _add_facts(facts: Facts, options: Namespace, one: Described, corpus: Corpus) -> None:
    figures = {info.name: _StreamFacts() for info in corpus.streams}
    for block in surveyed(options, corpus):
        for name, data in block.streams.items():
            figures[name].add(data)
    for name, fact in one.facts().items():
        facts.add(name, fact)
    table = corpus.table
    facts.add("chunks", table.num_chunks, f"{table.num_chunks:,}{one.chunk_sizes}")
    add_size(facts, table, max(figure.longest for figure in figures.values()))
    infos = {info.name: info for info in corpus.streams}
    for name in one.order or infos:
        info, figure = infos[name], figures[name]
        precision = f"{info.dtype}, " if one.has_precisions else ""
        fields = {**stream_fields(info, figure.num_samples, figure.longest), "density": figure.density}
        facts.add_item("streams", fields, f"stream {name}", f"{precision}{form_of(info)}, {figure}")


def _add_facts_of_labels(facts: Facts, labels: Labels) -> None:
    table, utterances = labels.corpus.table, labels.corpus.index.utterances
    assert utterances is not None
    add_size(facts, table, int(table.lengths.max()))
    facts.add("rows", labels.corpus.index.layout.num_rows)
    names = [name.decode(errors="replace") for name in labels.names]
    in_words = f"{len(names):,}: {first_few(names, len(names))}" if names else "classes, without names"
    facts.add("labels", names, in_words)
    for name, mask in (("invalid", utterances.invalid), ("broken", utterances.broken)):
        facts.add(name, 0 if mask is None else int(mask.sum()))


class _StreamFacts:
    """Facts about a stream, summed over blocks."""

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

    @property
    def density(self) -> float:
        return self._num_not_zero / self._num_values if self._num_values else 0.0

    def __str__(self) -> str:
        samples = f"{counted(self.num_samples, 'sample')}, at most {self.longest:,} in a sequence"
        return f"{samples}, {100 * self.density:.3g} % not zero"


def _check_labels(options: Namespace, file: Input) -> None:
    if options.labels is not None and file.kind.form != "scp":
        raise ConfigError(
            f"--labels applies only to a list of HTK features (scp); {file.name} is {file.kind.noun}", key="labels"
        )
    if options.labels is not None and options.write_config is None:
        raise ConfigError(
            f"--labels needs --write-config; to see labels, write cntkio inspect {options.labels}; to compare them "
            f"with the features, write cntkio check --join {file.name} {options.labels}",
            key="labels",
        )
    if options.write_config is not None and file.kind.form in LABEL_FORMS:
        advice = f"cntkio inspect LIST.scp --labels {file.name}"
        raise ConfigError(f"--write-config needs the features: {advice}", key="write-config")


def _write_config(options: Namespace, deserializers: Sequence[Any]) -> None:
    """On request, write the configuration that reads a corpus, and print the program that does the same."""
    if options.write_config is None:
        return
    if options.labels is not None:
        deserializers = [*deserializers, named_labels(options.labels, options.mapping)]
    text, program = configuration_for(deserializers)
    with written_whole(options.write_config) as file:
        file.write(os.fsencode(text))
    if not options.json:
        print(f"\n{program}", end="")

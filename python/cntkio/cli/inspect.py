"""The verbs `inspect`, `head` and `vocab`: figures of a corpus, its sequences, and the words in its comments."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from cntkio.arguments import did_you_mean
from cntkio.cli.show import (
    BAD_DATA,
    FINE,
    Facts,
    add_size,
    coloured,
    complain,
    described,
    file_facts,
    form_of,
    inputs_of,
    refuse_remote_options,
    separated,
    shortened,
    show,
    show_json,
    surveyed,
    write_page,
)
from cntkio.config.writing import configuration_for
from cntkio.corpora import Described, Input, inputs
from cntkio.displays import counted
from cntkio.errors import CntkIoError, ConfigError, printable
from cntkio.formats.contract import Corpus, Loaded
from cntkio.formats.ctf import bounds_of, read_vocabularies, vocabularies_in
from cntkio.formats.detect import detect
from cntkio.formats.mlf import Labels
from cntkio.formats.pieces import in_arrays
from cntkio.formats.report import first_few
from cntkio.minibatch import MinibatchData
from cntkio.storage.names import is_remote
from cntkio.storage.open_input import open_input
from cntkio.storage.output_file import written_whole
from cntkio.survey.figures import QUANTILES, Figures, StreamFigures, figures
from cntkio.survey.pictures import advice, histogram_line, number, page, quantiles

_ANY_NUMBER_OF_ERRORS = -1
_MOST_CLASSES = 10
_SHOWN_ON_PAGE = 5
# For a sequence its key; and a line for each stream or, for JSON, the samples of each stream.
_Row = tuple[int | str, Any]
_Words = Mapping[str, Mapping[int, str]]  # the words of one-hot samples, by stream and index


def inspect(options: Namespace) -> int:
    """Print the contents and the figures of corpora: ranges, quantiles, frequencies of classes, lengths, padding."""
    status = FINE
    found: list[Figures] = []
    samples: list[_Row] = []
    with inputs_of(options) as files:
        for facts, of_corpus in separated(options, _inspected(options, files, found, samples)):
            facts.show(as_json=options.json)
            status = max(status, of_corpus)
        if options.html is not None:
            about = [(file.name, f"{file.kind.title}, {file.size:,} bytes") for file in files]
            title = ", ".join(Path(file.name).name for file in files)
            vocabularies = [read_vocabularies(file.names) for file in files if file.kind.names_streams]
            words = {name: words for of_file in vocabularies for name, words in of_file.items()}
            write_page(options, options.html, page(title, about, found, samples, words))
    return status


def _inspected(
    options: Namespace, files: Iterable[Input], found: list[Figures], samples: list[_Row]
) -> Iterator[tuple[Facts, int]]:
    """Yield the facts of each corpus and its exit status; add its figures, and samples for a page, to the lists."""
    for file in files:
        # Checked before the figures, which take a pass over the whole corpus.
        if options.write_config is not None:
            _check_configuration(options, file)
        for one in described(options, file, max_errors=_ANY_NUMBER_OF_ERRORS):
            with one.opened() as corpora:
                for index, corpus in enumerate(corpora):
                    facts = file_facts(one.input, one.section)
                    if one.labels is not None:
                        _add_labels(facts, one.labels)
                    else:
                        # These facts are about the file, not about each corpus in it.
                        facts.add_all({} if index else one.facts())
                        found.append(figures(corpus, surveyed(options, corpus)))
                        _add_figures(facts, one, corpus, found[-1])
                    yield facts, _add_errors(facts, one, corpus)
                if options.html is not None and one.labels is None:
                    samples += _samples_for_page(one, corpora)
            if options.write_config is not None:
                _write_config(options, one)


def _add_errors(facts: Facts, one: Described, corpus: Corpus) -> int:
    complaints = [] if one.labels is None else list(one.labels.complaints())
    for complaint in complaints:
        complain(complaint)
    errors = corpus.report.errors
    if one.forgives_errors:
        facts.add("errors", errors)
    facts.add("warnings", corpus.report.warnings)
    return BAD_DATA if complaints or errors else FINE


def _add_labels(facts: Facts, labels: Labels) -> None:
    table, utterances = labels.corpus.table, labels.corpus.index.utterances
    assert utterances is not None
    add_size(facts, table, int(table.lengths.max()))
    facts.add("rows", labels.corpus.index.layout.num_rows)
    names = [name.decode(errors="replace") for name in labels.names]
    in_words = f"{len(names):,}: {first_few(names, len(names))}" if names else "classes, without names"
    facts.add("labels", names, in_words)
    for name, mask in (("invalid", utterances.invalid), ("broken", utterances.broken)):
        facts.add(name, 0 if mask is None else int(mask.sum()))


def _add_figures(facts: Facts, one: Described, corpus: Corpus, found: Figures) -> None:
    table = corpus.table
    facts.add("chunks", table.num_chunks, f"{table.num_chunks:,}{one.chunk_sizes}")
    add_size(facts, table, max(stream.longest for stream in found.streams))
    names = [f"{share:g}" for share in QUANTILES]
    if found.lengths is not None and found.lengths.lowest != found.lengths.highest:
        lengths = dict(zip(names, found.length_quantiles, strict=True))
        facts.add("lengths", lengths, quantiles(found.length_quantiles))
        facts.add("length histogram", found.lengths._asdict(), histogram_line(found.lengths))
    if found.padding:
        shares = [share._asdict() for share in found.padding]
        text = ", ".join(f"{share.size}: {100 * share.shuffled:.0f} %" for share in found.padding)
        facts.add("padding", shares, f"{text} (sequences in a minibatch, shuffled)")
    if found.buckets is not None:
        facts.add("buckets", found.buckets._asdict(), advice(found.buckets))
    by_name = {stream.info.name: stream for stream in found.streams}
    for name in one.order or by_name:
        _add_stream(facts, by_name[name], names, has_precision=one.input.kind.has_precisions)


def _add_stream(facts: Facts, stream: StreamFigures, names: list[str], *, has_precision: bool) -> None:
    info = stream.info
    most = stream.most_frequent(_MOST_CLASSES)
    fields = {
        "name": info.name, "storage": info.storage_format, "dim": info.dim, "dtype": str(info.dtype),
        "samples": stream.num_samples, "longest": stream.longest, "values": stream.num_values,
        "density": stream.density, "lowest": stream.lowest, "highest": stream.highest, "mean": stream.mean,
        "deviation": stream.deviation, "strange": stream.num_strange,
        # A stream without values has no quantiles.
        "quantiles": dict(zip(names, stream.quantiles, strict=False)),
        "histogram": None if stream.values is None else stream.values._asdict(),
        "classes": None if stream.frequencies is None else int((stream.frequencies > 0).sum()),
        "most_frequent": [list(pair) for pair in most],
    }  # fmt: skip
    precision = f"{info.dtype}, " if has_precision else ""
    samples = f"{counted(stream.num_samples, 'sample')}, at most {stream.longest:,} in a sequence"
    text = f"{precision}{form_of(info)}, {samples}, {100 * stream.density:.3g} % not zero"
    facts.add_item("streams", fields, f"stream {info.name}", text)
    if stream.quantiles and stream.frequencies is None:
        spread = f"mean {number(stream.mean)}, deviation {number(stream.deviation)}"
        facts.add_line("  values", f"{number(stream.lowest)} to {number(stream.highest)}, {spread}")
        if stream.values is not None and stream.lowest != stream.highest:
            facts.add_line("  quantiles", quantiles(stream.quantiles))
            facts.add_line("  histogram", histogram_line(stream.values))
    if stream.num_strange:
        facts.add_line("  strange", f"{stream.num_strange:,} values are NaN or infinite")
    if most and stream.frequencies is not None:
        num_used = int((stream.frequencies > 0).sum())
        listed = ", ".join(f"{label}: {count:,}" for label, count in most)
        facts.add_line("  classes", f"{num_used:,} of {info.dim:,} occur; {listed}")


# ------------------------------------------------------------------------------------ the configuration of a corpus


def _check_configuration(options: Namespace, file: Input) -> None:
    if file.kind.is_labels:
        advice = f"cntkio inspect LIST.scp --labels {file.name}"
        raise ConfigError(f"--write-config needs the features: {advice}", key="write-config")
    if options.labels is not None and options.mapping is None and detect(options.labels).is_text:
        advice = "with --mapping, name the file that does"
        raise ConfigError(f"{options.labels} does not number its labels; {advice}", key="mapping")


def _write_config(options: Namespace, one: Described) -> None:
    """Write the configuration that reads a corpus, and print the program that does the same."""
    read_from = str(one.input.names)  # a compressed table or binary file is read from a copy
    is_copy = not one.input.files and not is_remote(read_from) and read_from != one.input.name
    if is_copy or not one.input.kind.is_configurable:
        what = f"no configuration of CNTK reads {one.input.name}, which is {one.input.kind.noun}"
        raise ConfigError(f"{what}; convert it to a text or a binary corpus", key="write-config")
    text, program = configuration_for(one.written or one.deserializers)
    with written_whole(options.write_config) as file:
        # Paths in the configuration may have bytes that are not UTF-8.
        file.write(os.fsencode(text))
    if not options.json:
        print(f"\n{program}", end="")


def head(options: Namespace) -> int:
    """Print the first sequences of corpora, or the sequences from an index or with a key."""
    if options.sequence_key is not None and options.at is not None:
        raise ConfigError("--key and --at exclude each other; expected one of them", key="key")
    has_key = options.sequence_key is None
    with inputs_of(options) as files:
        for one, group in separated(options, _groups(options, files)):
            indices = _indices(options, group[0])
            has_key = has_key or bool(indices)
            if (len(files) > 1 or len(one.parts()) > len(group)) and not options.json:
                show(f"{one.input.name}")
            _show_rows(options, one, _rows(one, group, indices, as_json=options.json))
    if not has_key:
        raise ConfigError(f"no sequence has the key {options.sequence_key}", key="key")
    return FINE


def _groups(options: Namespace, files: Iterable[Input]) -> Iterator[tuple[Described, Sequence[Corpus]]]:
    """Yield the opened corpora; corpora that `--labels` joins come together."""
    for file in files:
        # Errors of later lines do not matter. A million chunks take little memory.
        for one in described(options, file, chunk_size_in_bytes=max(1, file.size >> 20)):
            with one.opened() as corpora:
                yield from [(one, corpora)] if options.labels is not None else [(one, [each]) for each in corpora]


def _indices(options: Namespace, corpus: Corpus) -> Sequence[int]:
    """Return the indices of the sequences to print."""
    table = corpus.table
    if options.sequence_key is None:
        first = options.at or 0
        # 0 is the default, which is right for a corpus without sequences, too.
        if first and first >= table.num_sequences:
            raise ConfigError(f"--at {first}: {corpus.name} has {counted(table.num_sequences, 'sequence')}", key="at")
        return range(first, min(first + options.sequences, table.num_sequences))
    indices: list[int] = table.keys.places_of(options.sequence_key)[: options.sequences].tolist()
    return indices


def _rows(one: Described, corpora: Sequence[Corpus], indices: Sequence[int], *, as_json: bool) -> Iterator[_Row]:
    """Yield sequences of the first corpus, joined with the other corpora; of a label file, utterances."""
    if one.labels is not None:
        for name, rows in one.labels.entries(indices):
            runs = shortened((f"{label} {length}" for label, length in rows), len(rows), " | ")
            yield name, {"labels": rows} if as_json else [("labels", runs)]
        return
    sequences = SequencesOf(corpora)
    lead: Any = corpora[0]
    words: _Words = {"labels": dict(enumerate(name.decode(errors="replace") for name in one.label_names or ()))}
    with ExitStack() as stack:
        text = None
        # A corpus keeps no comments, so the text of each sequence is read again for the words in them.
        if one.input.kind.names_streams and not one.input.files:
            text = stack.enter_context(closing(open_input(str(one.input.path))))
        for index in indices:
            key = lead.table.keys[index]
            streams = sequences.streams(key if len(corpora) > 1 else index)
            if text is not None:
                begin, end = bounds_of(lead.index, index)
                found = vocabularies_in(text.read(begin, end - begin))
                fields = {name: stream.stream_alias for name, stream in one.deserializers[0].streams.items()}
                words = {name: found[field] for name, field in fields.items() if field in found}
            shown = {name: streams[name] for name in one.order or streams if name in streams}
            yield key, _samples(shown) if as_json else _lines(shown, words)


class SequencesOf:
    """Single sequences of corpora. The last chunk of each corpus stays loaded."""

    def __init__(self, corpora: Sequence[Corpus]) -> None:
        self._corpora = corpora
        self._loaded: dict[int, Loaded] = {}

    def streams(self, at: Any) -> dict[str, MinibatchData]:
        """Return the data of a sequence, by stream: its index if there is one corpus, or else its key."""
        found: dict[str, MinibatchData] = {}
        for place, corpus in enumerate(self._corpora):
            indices = [at] if len(self._corpora) == 1 else corpus.table.keys.places_of(at)[:1]
            for index in map(int, indices):
                chunk_id = int(np.searchsorted(corpus.table.chunk_starts, index, side="right")) - 1
                loaded = self._loaded.get(place)
                if loaded is None or loaded.chunk_id != chunk_id:
                    # The pass that made the index may have parsed this chunk already.
                    loaded = self._loaded[place] = corpus.take_parsed().get(chunk_id) or corpus.load(chunk_id)
                    # A corpus counts the errors of a chunk when it is used, not when it is loaded.
                    corpus.account_for(loaded)
                in_chunk = np.array([index - corpus.table.bounds_of(chunk_id)[0]], np.uint32)
                found |= in_arrays(corpus.streams, 1, [loaded.chunk.only(in_chunk)])
        return found


def _show_rows(options: Namespace, one: Described, rows: Iterable[_Row]) -> None:
    if options.json:
        section = {"section": one.section} if one.section else {}
        sequences = [{"key": key, "streams": samples} for key, samples in rows]
        show_json({"file": one.input.name, **section, "sequences": sequences})
        return
    for key, lines in rows:
        print(coloured(printable(f"sequence {key}"), "bold"))
        width = max(len(name) for name, _ in lines)
        for name, line in lines:
            show(f"  {name:{width}}  {line}")


def _lines(streams: Mapping[str, MinibatchData], words: _Words) -> list[tuple[str, str]]:
    """Return a line for each stream: as many samples as fit, each with its word."""
    lines = []
    for name, data in streams.items():
        texts = (in_words(data, sample, words.get(name, {})) for sample in range(data.num_samples))
        lines.append((name, shortened(texts, data.num_samples, " | ")))
    return lines


def in_words(data: MinibatchData, sample: int, words: Mapping[int, str] = MappingProxyType({})) -> str:
    """Return a sample for people, as many values as fit, with its word."""
    form = "d" if data.values.dtype.kind == "i" else "g"
    if data.indices is None or data.indptr is None:
        values = data.values[sample].ravel()
        return shortened((f"{value:{form}}" for value in values), len(values), " ")
    begin, end = int(data.indptr[sample]), int(data.indptr[sample + 1])
    entries = zip(data.indices[begin:end].tolist(), data.values[begin:end], strict=True)
    text = shortened((f"{index}:{value:{form}}" for index, value in entries), end - begin, " ") or "(empty)"
    # A comment names the class of a one-hot sample, so only a single entry has a word.
    word = words.get(int(data.indices[begin])) if end - begin == 1 else None
    return f"{text} {word}" if word else text


def _samples(streams: Mapping[str, MinibatchData]) -> dict[str, list[Any]]:
    """Return the samples of each stream for JSON: a list of values for each, or of pairs of index and value."""
    found = {}
    for name, data in streams.items():
        if data.indices is None or data.indptr is None:
            found[name] = data.values.reshape(data.num_samples, -1).tolist()
            continue
        pairs = [list(pair) for pair in zip(data.indices.tolist(), data.values.tolist(), strict=True)]
        found[name] = [pairs[first:last] for first, last in pairwise(data.indptr.tolist())]
    return found


def _samples_for_page(one: Described, corpora: Sequence[Corpus]) -> Sequence[_Row]:
    indices = range(min(_SHOWN_ON_PAGE, corpora[0].table.num_sequences))
    if len(corpora) > 1 and one.label_names is None:
        return []
    try:
        return list(_rows(one, corpora, indices, as_json=False))
    except CntkIoError:  # the facts already name the error
        return []


def vocab(options: Namespace) -> int:
    """Print the words of a stream, in the order of their indices; by default, list the streams that have words."""
    # Not `inputs_of`, which also reads options that this verb does not have.
    with inputs([options.file]) as files:
        refuse_remote_options(options, files)
        (file,) = files
        if not file.kind.names_streams:
            raise ConfigError(f"{file.name} is {file.kind.noun}; comments are in texts", key="file")
        found = read_vocabularies(file.names)
    name = options.name
    if name is not None and name not in found:
        known = f"expected one of: {', '.join(found)}" if found else "no stream has such comments"
        raise ConfigError(f"no comments follow the samples of {name!r}; {known}{did_you_mean(name, found)}", key="name")
    shown = found if name is None else {name: found[name]}
    if options.json:
        show_json({one: vars(words) for one, words in shown.items()})
    elif name is None:
        for one, words in shown.items():
            numbers = f"{counted(len(words), 'word')}, indices to {max(words):,}, {words.num_samples:,} samples"
            show(f"{one}  {numbers}, {counted(words.num_contradictions, 'contradiction')}")
    else:
        # Line i is the word of index i, so an index without a word is an empty line.
        for index in range(max(shown[name]) + 1):
            show(shown[name].get(index, ""))
    if not shown and not options.quiet:
        complain(f"{file.name}: no comment follows a one-hot sample; expected a comment, as in |S0 178:1 |# BOS")
    if name is not None and not options.quiet and found[name].num_contradictions:
        which = f"{counted(found[name].num_contradictions, 'sample')} of {found[name].num_samples:,}"
        complain(f"stream {name!r}: {which} have another word; --json lists them")
    return FINE if shown else BAD_DATA

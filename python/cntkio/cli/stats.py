"""The verb `stats`: figures of corpora, as facts with histograms, as JSON, or as a page of HTML."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from cntkio.cli.corpora import described, file_facts, form_of, inputs_of, stream_fields, surveyed
from cntkio.cli.show import FINE, Facts, Paragraphs, write_page
from cntkio.corpora import SURVEYED_AT_ONCE, Input
from cntkio.survey.figures import QUANTILES, Figures, StreamFigures, figures
from cntkio.survey.pictures import histogram_line, number, page, quantiles

_MOST_LABELS = 10


def stats(options: Namespace) -> int:
    """Print figures of corpora: ranges, quantiles, frequencies of labels, lengths, padding.

    Raises:
        CntkIoError: The data or the call is bad.
        OSError: A file cannot be read or written.
    """
    paragraphs = Paragraphs(options)
    found: list[Figures] = []
    with inputs_of(options) as files:
        for file in files:
            for one in described(options, file, chunk_size_in_bytes=SURVEYED_AT_ONCE):
                with one.opened() as corpora:
                    for corpus in corpora:
                        found.append(figures(corpus, surveyed(options, corpus)))
                        facts = file_facts(file, one.section)
                        _add(facts, found[-1])
                        paragraphs.begin()
                        facts.show(as_json=options.json)
        if options.html is not None:
            write_figures(options, files, found)
    return FINE


def write_figures(options: Namespace, files: list[Input], found: list[Figures]) -> None:
    """Write the page of HTML with the figures of corpora.

    Raises:
        OSError: The page cannot be written.
    """
    facts = [(file.name, f"{file.kind.title}, {file.size:,} bytes") for file in files]
    write_page(options, options.html, page(", ".join(Path(file.name).name for file in files), facts, found))


def _add(facts: Facts, found: Figures) -> None:
    facts.add("sequences", found.num_sequences)
    facts.add("samples", found.num_samples)
    names = [f"{share:g}" for share in QUANTILES]
    lengths = dict(zip(names, found.length_quantiles, strict=True))
    facts.add("lengths", lengths, quantiles(found.length_quantiles))
    if found.lengths is not None and found.lengths.lowest != found.lengths.highest:
        facts.add("length histogram", found.lengths._asdict(), histogram_line(found.lengths))
    if found.padding:
        shares = [one._asdict() for one in found.padding]
        text = ", ".join(f"{one.size}: {100 * one.shuffled:.0f} %" for one in found.padding)
        facts.add("padding", shares, f"{text} (sequences in a minibatch, shuffled)")
    for stream in found.streams:
        _add_stream(facts, stream, names)


def _add_stream(facts: Facts, stream: StreamFigures, names: list[str]) -> None:
    info = stream.info
    most = stream.most_frequent(_MOST_LABELS)
    fields = {
        **stream_fields(info, stream.num_samples, stream.longest), "values": stream.num_values,
        "density": stream.density, "lowest": stream.lowest, "highest": stream.highest, "mean": stream.mean,
        "deviation": stream.deviation, "strange": stream.num_strange,
        "quantiles": dict(zip(names, stream.quantiles, strict=False)),
        "histogram": None if stream.values is None else stream.values._asdict(),
        "classes": None if stream.frequencies is None else int((stream.frequencies > 0).sum()),
        "most_frequent": [list(pair) for pair in most],
    }  # fmt: skip
    text = f"{form_of(info)}, {stream.num_samples:,} samples, {100 * stream.density:.3g} % not zero"
    facts.add_item("streams", fields, f"stream {info.name}", text)
    if stream.quantiles:
        spread = f"mean {number(stream.mean)}, deviation {number(stream.deviation)}"
        facts.add_line("  values", f"{number(stream.lowest)} to {number(stream.highest)}, {spread}")
    if stream.quantiles and stream.values is not None and stream.lowest != stream.highest:
        facts.add_line("  quantiles", quantiles(stream.quantiles))
        facts.add_line("  histogram", histogram_line(stream.values))
    if stream.num_strange:
        facts.add_line("  strange", f"{stream.num_strange:,} values are NaN or infinite")
    if most and stream.frequencies is not None:
        num_used = int((stream.frequencies > 0).sum())
        listed = ", ".join(f"{label}: {count:,}" for label, count in most)
        facts.add_line("  classes", f"{num_used:,} of {info.dim:,} occur; {listed}")

"""The verb `head`: the first sequences."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any

from cntkio.cli.corpora import described, inputs_of, surveyed
from cntkio.cli.show import FINE, Paragraphs, shortened, show, show_json
from cntkio.corpora import Described
from cntkio.formats.contract import Corpus
from cntkio.minibatch import MinibatchData
from cntkio.survey import Block


def head(options: Namespace) -> int:
    """Print the first sequences of corpora.

    Raises:
        CntkIoError: The data or the call is bad.
        OSError: A file cannot be read.
    """
    paragraphs = Paragraphs(options)
    with inputs_of(options) as files:
        for file in files:
            # Errors of later lines do not matter. A million chunks take little memory.
            for one in described(options, file, chunk_size_in_bytes=max(1, file.size >> 20)):
                with one.opened() as corpora:
                    for corpus in corpora:
                        paragraphs.begin()
                        if len(files) + len(corpora) > 2 and not options.json:
                            show(f"{file.name}")
                        (_head_of_labels if one.labels is not None else _head)(options, one, corpus)
    return FINE


def _head(options: Namespace, one: Described, corpus: Corpus) -> None:
    first = islice(_sequences(options, corpus), options.sequences)
    order = one.order or [info.name for info in corpus.streams]
    if options.json:
        _show_json(
            one, [(key, {name: _samples(block.streams[name], at) for name in order}) for key, block, at in first]
        )
        return
    width = max(len(name) for name in order)
    for key, block, at in first:
        show(f"sequence {key}")
        for name in order:
            show(f"  {name:{width}}  {_readable(block.streams[name], at)}")


def _head_of_labels(options: Namespace, one: Described, corpus: Corpus) -> None:
    assert one.labels is not None
    first = one.labels.entries(options.sequences)
    if options.json:
        _show_json(one, [(key, {"labels": rows}) for key, rows in first])
        return
    for key, rows in first:
        show(f"sequence {key}")
        show(f"  labels  {shortened((f'{label} {length}' for label, length in rows), len(rows), ' | ')}")


def _show_json(one: Described, sequences: list[tuple[int | str, dict[str, Any]]]) -> None:
    section = {"section": one.section} if one.section else {}
    items = [{"key": key, "streams": streams} for key, streams in sequences]
    show_json({"file": one.input.name, **section, "sequences": items})


def _sequences(options: Namespace, corpus: Corpus) -> Iterator[tuple[int | str, Block, int]]:
    """Yield each sequence: its key, its block, and its index in the block."""
    for block in surveyed(options, corpus):
        for index in range(block.num_sequences):
            key = block.keys[index]
            yield key.decode(errors="replace") if isinstance(key, bytes) else int(key), block, index


def _samples(data: MinibatchData, index: int) -> list[Any]:
    """Return the samples of a sequence for JSON: a list of values for each, or of pairs of index and value."""
    begin, end = data.offsets[index : index + 2].tolist()
    if data.indices is None or data.indptr is None:
        samples: list[Any] = data.values[begin:end].reshape(end - begin, -1).tolist()
        return samples
    bounds = data.indptr[begin : end + 1].tolist()
    entries = slice(bounds[0], bounds[-1])
    pairs = [list(pair) for pair in zip(data.indices[entries].tolist(), data.values[entries].tolist(), strict=True)]
    return [pairs[first - bounds[0] : last - bounds[0]] for first, last in pairwise(bounds)]


def _readable(data: MinibatchData, index: int) -> str:
    """Return the samples of a sequence in a line, as many as fit."""
    begin, end = data.offsets[index : index + 2].tolist()
    return shortened((_readable_sample(data, sample) for sample in range(begin, end)), end - begin, " | ")


def _readable_sample(data: MinibatchData, sample: int) -> str:
    if data.indices is None or data.indptr is None:
        values = data.values[sample].ravel()
        return shortened((f"{value:g}" for value in values), len(values), " ")
    begin, end = int(data.indptr[sample]), int(data.indptr[sample + 1])
    entries = zip(data.indices[begin:end], data.values[begin:end], strict=True)
    return shortened((f"{index}:{value:g}" for index, value in entries), end - begin, " ") or "(empty)"

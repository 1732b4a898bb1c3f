"""Random corpora of every format, whose values follow from the numbers of their sequences.

Sample `step` of sequence `number` is ``x = (number, step)`` in every format. Some formats have a second stream.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from cntkio import (
    CBFDeserializer,
    CTFDeserializer,
    HTKFeatureDeserializer,
    HTKMLFDeserializer,
    StreamDef,
    StreamDefs,
    write_cbf,
)
from cntkio.formats import htk, mlf
from cntkio.formats.htk import corpus as htk_corpus
from slow.timeline import slow_join

from support.builders import STREAMS, corpus_text

_NUM_CLASSES = 3


class Second(NamedTuple):
    """A second stream, with one value other than zero in each sample.

    Attributes:
        name: Its name.
        is_sparse: Whether its minibatches contain indices.
        dim: Values of a sample.
        index: Returns the index of the value other than zero, from the number of a sequence.
        value: Returns this value, from the number of a sequence and a step.
    """

    name: str
    is_sparse: bool
    dim: int
    index: Callable[[int], int]
    value: Callable[[int, int], float]


class SoakCorpus(NamedTuple):
    """A corpus, and the deliveries that a source must make.

    Attributes:
        deserializers: The deserializers of the source.
        chunks: The lengths of the sequences of each chunk, as the source's timeline has them.
        samples: For each sequence of the timeline its number, and the steps that it has.
        second: The second stream, if there is one.
    """

    deserializers: Any
    chunks: list[list[int]]
    samples: list[tuple[int, range]]
    second: Second | None


_ENTRY = Second("s", True, 1000, lambda number: number % 1000, lambda _, step: step)
_LABEL = Second("l", True, _NUM_CLASSES, lambda number: number % _NUM_CLASSES, lambda *_: 1)
_COUNT = Second("y", False, 1, lambda _: 0, lambda number, _: number)


def soak_corpus(chance: random.Random, folder: Path, lengths: list[int], *, frame_mode: bool) -> SoakCorpus:
    """Write a corpus of a random format. In frame mode each sample of features is a sequence."""
    formats = [_features, _labels] if frame_mode else [_text, _binary, _joined, _features, _labels]
    deserializers, tables, second = chance.choice(formats)(chance, folder, lengths)
    chunks, partners = slow_join(tables, None)
    numbers = [int(tables[0][0][first]) for first, *_ in partners]
    samples = [(number, range(lengths[number])) for number in numbers]
    if frame_mode:
        chunks = [[1] * sum(chunk) for chunk in chunks]
        samples = [(number, range(step, step + 1)) for number, steps in samples for step in steps]
    return SoakCorpus(deserializers, chunks, samples, second)


_Table = tuple[list[Any], list[int], list[int]]
_Made = tuple[Any, list[_Table], Second | None]


def _table(deserializer: Any, numbers: list[int], lengths: list[int]) -> _Table:
    """The numbers of a corpus, their lengths, and the sequences of each chunk."""
    with closing(deserializer.open()) as corpus:
        starts = corpus.table.chunk_starts.tolist()
    sizes = [end - begin for begin, end in itertools.pairwise(starts)]
    return numbers, [lengths[number] for number in numbers], sizes


def _text_file(chance: random.Random, folder: Path, lengths: list[int]) -> CTFDeserializer:
    path = folder / "a.ctf"
    path.write_bytes(corpus_text(lengths))
    size = chance.choice([60, 300, 2000, 1 << 20])
    return CTFDeserializer(path, STREAMS, chunk_size_in_bytes=size, cache_index=chance.random() < 0.3)


def _text(chance: random.Random, folder: Path, lengths: list[int]) -> _Made:
    deserializer = _text_file(chance, folder, lengths)
    return deserializer, [_table(deserializer, list(range(len(lengths))), lengths)], _ENTRY


def _binary(chance: random.Random, folder: Path, lengths: list[int]) -> _Made:
    path = folder / "a.cbf"
    size = chance.choice([100, 1000, 1 << 20])
    # The documented layout has room for a single sample in each sequence.
    layout: Literal["2.x", "documented"] = "documented" if max(lengths) == 1 and chance.random() < 0.5 else "2.x"
    write_cbf(path, _text_file(chance, folder, lengths), chunk_size_in_bytes=size, layout=layout)
    deserializer = CBFDeserializer(path, STREAMS, memory_map=chance.random() < 0.5)
    return deserializer, [_table(deserializer, list(range(len(lengths))), lengths)], _ENTRY


def _joined(chance: random.Random, folder: Path, lengths: list[int]) -> _Made:
    first = _text_file(chance, folder, lengths)
    others = chance.sample(range(len(lengths)), chance.randint(1, len(lengths)))
    path = folder / "b.ctf"
    path.write_bytes(b"".join(b"%d |y %d\n" % (number, number) * lengths[number] for number in others))
    second = CTFDeserializer(path, StreamDefs(y=StreamDef(field="y", shape=1)), chunk_size_in_bytes=100)
    tables = [_table(first, list(range(len(lengths))), lengths), _table(second, others, lengths)]
    return [first, second], tables, _COUNT


def _features(chance: random.Random, folder: Path, lengths: list[int]) -> _Made:
    # Chunks of features have a fixed size, which no option changes.
    htk_corpus.CHUNK_FRAMES = chance.choice([3, 30, 90_000])  # type: ignore[misc]
    every = [(f"u{number}", _steps(number, length)) for number, length in enumerate(lengths)]
    htk.write_archive(folder / "a.ark", folder / "a.scp", every)
    deserializer = HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp=folder / "a.scp", shape=2)))
    return deserializer, [_table(deserializer, list(range(len(lengths))), lengths)], None


def _steps(number: int, length: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array([[number, step] for step in range(length)], np.float32)


def _labels(chance: random.Random, folder: Path, lengths: list[int]) -> _Made:
    features, tables, _ = _features(chance, folder, lengths)
    numbers = chance.sample(range(len(lengths)), chance.randint(1, len(lengths)))
    names = [f"c{index}" for index in range(_NUM_CLASSES)]
    entries = [(f"u{number}", np.full(lengths[number], number % _NUM_CLASSES)) for number in numbers]
    mlf.write_mlf(folder / "a.mlf", entries, names)
    mlf.write_mapping(folder / "states", names)
    streams = StreamDefs(l=StreamDef(mlf=folder / "a.mlf", shape=_NUM_CLASSES))
    labels = HTKMLFDeserializer(folder / "states", streams)
    return [features, labels], [*tables, _table(labels, numbers, lengths)], _LABEL


def expected_minibatch(corpus: SoakCorpus, found: tuple[list[Any], bool] | None, truncation_length: int) -> Any:
    """Return a minibatch of the slow timeline in the form of `plain_minibatch`."""
    if found is None:
        return None
    if truncation_length:
        return _expected_cells(corpus, found[0], found[1], truncation_length)
    chosen = [(number, step) for sequence in found[0] for number, steps in [corpus.samples[sequence]] for step in steps]
    plain = [
        [corpus.samples[sequence][0] for sequence in found[0]],
        found[1],
        [list(map(float, pair)) for pair in chosen],
    ]
    if corpus.second is not None:
        _, is_sparse, dim, index, value = corpus.second
        assert is_sparse or dim == 1
        plain.append([value(*pair) for pair in chosen])
        plain.append([index(number) for number, _ in chosen] if is_sparse else None)
    return plain


def _expected_cells(corpus: SoakCorpus, parts: list[Any], flag: bool, num_steps: int) -> Any:
    num_slots = 1 + max(slot for slot, *_ in parts)
    x = np.zeros((num_slots, num_steps, 2))
    mask = np.zeros((num_slots, num_steps), int)
    other = None if corpus.second is None else np.zeros((num_slots, num_steps, corpus.second.dim))
    for slot, sequence, first, count, begin, _ in parts:
        number = corpus.samples[sequence][0]
        for step in range(count):
            x[slot, begin + step] = number, first + step
            mask[slot, begin + step] = 2 if first + step == 0 else 1
            if corpus.second is not None and other is not None:
                other[slot, begin + step, corpus.second.index(number)] = corpus.second.value(number, first + step)
    keys = [corpus.samples[sequence][0] for _, sequence, *_ in parts]
    return [keys, flag, x.tolist(), mask.tolist(), None if other is None else other.tolist()]


def plain_minibatch(corpus: SoakCorpus, minibatch: Any, truncation_length: int) -> Any:
    """Return a minibatch of a source as lists: numbers of sequences, the flag of a sweep's end, and values."""
    if not minibatch:
        return None
    keys = minibatch.keys_of_sequences.tolist()
    numbers = [int(key.lstrip("u")) if isinstance(key, str) else key for key in keys]
    x = minibatch["x"]
    second = None if corpus.second is None else minibatch[corpus.second.name]
    if truncation_length:
        # The slow timeline does not list empty slots.
        num_slots = 1 + max(slot for slot, _, _ in x.parts.tolist())
        assert not x.mask[num_slots:].any() and not x.values[num_slots:].any()
        other = None if second is None else second.values[:num_slots].tolist()
        return [numbers, x.end_of_sweep, x.values[:num_slots].tolist(), x.mask[:num_slots].tolist(), other]
    plain = [numbers, x.end_of_sweep, x.values.tolist()]
    if second is not None and corpus.second is not None:
        plain += [second.values.ravel().tolist(), second.indices.tolist() if corpus.second.is_sparse else None]
    return plain

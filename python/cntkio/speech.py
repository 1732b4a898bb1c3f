"""What the command line says of speech corpora: lists of HTK features (scp) and label files (MLF). (docs/cli.md)

Its law: facts and deserializers from files, found out by the files alone; nothing is printed here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.detect import detect
from cntkio.formats.htk import HTKFeatureDeserializer, first_header
from cntkio.formats.mlf import (
    HTKMLFBinaryDeserializer,
    HTKMLFDeserializer,
    MLFCorpus,
    infer_labels,
    read_mapping,
)
from cntkio.streams import StreamDef, StreamDefs

_LARGEST_CLASS = 65536  # of a binary file
_NUM_COMPLAINTS = 10


class Labels(NamedTuple):
    """An opened label file."""

    corpus: MLFCorpus
    names: list[bytes]

    def facts(self) -> dict[str, str]:
        """What `inspect` says of it."""
        corpus = self.corpus
        lengths = corpus.table.lengths
        invalid, broken = corpus.utterances.invalid, corpus.utterances.broken
        return {
            "sequences": f"{len(lengths):,}",
            "samples": f"{int(lengths.sum(dtype='int64')):,}",
            "longest sequence": f"{int(lengths.max()):,} samples",
            "rows": f"{corpus.num_rows:,}",
            "labels": _shown(self.names) if self.names else "classes, without names",
            "invalid": f"{0 if invalid is None else int(invalid.sum()):,}",
            "broken": f"{0 if broken is None else int(broken.sum()):,}",
        }

    def complaints(self) -> Iterator[str]:
        """What is wrong with the first few of the utterances that are invalid or broken."""
        traits = self.corpus.utterances
        masks = [mask for mask in (traits.invalid, traits.broken) if mask is not None]
        numbers = sorted({int(number) for mask in masks for number in mask.nonzero()[0][:_NUM_COMPLAINTS]})
        for number in numbers[:_NUM_COMPLAINTS]:
            yield str(traits.complaint(number))

    def entries(self, count: int) -> Iterator[tuple[str, Iterator[str], int]]:
        """The first utterances: key, each row as its label and how many frames it is long, and how many rows."""
        for number in range(min(count, self.corpus.table.num_sequences)):
            frames, classes = self.corpus.rows(number)
            rows = (
                f"{self._name(label)} {length}" for label, length in zip(classes.tolist(), frames.tolist(), strict=True)
            )
            yield bytes(self.corpus.table.keys[number]).decode(errors="replace"), rows, len(frames)

    def _name(self, label: int) -> str:
        return self.names[label].decode(errors="replace") if self.names else str(label)


def _shown(names: list[bytes]) -> str:
    shown = ", ".join(name.decode(errors="replace") for name in names[:_NUM_COMPLAINTS])
    return f"{len(names):,}: {shown}{', ...' if len(names) > _NUM_COMPLAINTS else ''}"


def open_labels(path: Path, mapping: Path | None) -> Labels:
    """Open a label file; without a mapping file its own labels are the names.

    Raises:
        OSError: A file cannot be read.
        FormatError: A file breaks its format.
        CorpusError: There is no entry in it.
    """
    names = [] if detect(path).form == "binary mlf" else read_mapping(mapping) if mapping else infer_labels(path)
    deserializer = labels_of(path, names)
    if isinstance(deserializer, HTKMLFBinaryDeserializer):
        return Labels(deserializer.open(), [] if mapping is None else read_mapping(mapping))
    if not names:
        raise CorpusError(f"{path}: no row with a label is in it")
    return Labels(deserializer.open_with(names), names)


def labels_of(path: Path, names: list[bytes]) -> HTKMLFDeserializer | HTKMLFBinaryDeserializer:
    """The deserializer of a label file whose labels are these."""
    if detect(path).form == "binary mlf":
        return HTKMLFBinaryDeserializer(StreamDefs(labels=StreamDef(mlf=os.fspath(path), shape=_LARGEST_CLASS)))
    return HTKMLFDeserializer(None, StreamDefs(labels=StreamDef(mlf=os.fspath(path), shape=max(1, len(names)))))


def named_labels(path: Path, mapping: Path | None) -> HTKMLFDeserializer | HTKMLFBinaryDeserializer:
    """The deserializer of a label file with its mapping file, as a configuration can describe it.

    Raises:
        OSError, FormatError: The mapping file cannot be read.
        ConfigError: There is none, and the file is a text.
    """
    if detect(path).form == "binary mlf":
        return labels_of(path, [])
    if mapping is None:
        raise ConfigError(f"the labels of {path} have no names; --mapping says which file has them", key="mapping")
    streams = StreamDefs(labels=StreamDef(mlf=os.fspath(path), shape=len(read_mapping(mapping))))
    return HTKMLFDeserializer(os.fspath(mapping), streams)


def features_of(path: Path, streams: StreamDefs | None) -> HTKFeatureDeserializer:
    """The deserializer of a list: its stream is called features and has the first file's dimension, if not told else.

    Raises:
        OSError, FormatError: The list, or its first file, cannot be read.
        ConfigError: More than one stream is wanted.
    """
    if streams is None:
        streams = StreamDefs(features=StreamDef(shape=first_header(path).dim))
    if len(streams) != 1:
        raise ConfigError(f"a list of features has one stream; {len(streams)} are wanted", key="stream")
    ((name, stream),) = streams.items()
    return HTKFeatureDeserializer(StreamDefs({name: StreamDef(scp=os.fspath(path), shape=stream.dim)}))


def facts_of_features(deserializer: HTKFeatureDeserializer) -> dict[str, str]:
    """What `inspect` says of a list's files."""
    ((_, stream),) = deserializer.streams.items()
    header = first_header(stream.scp)
    with closing(deserializer.open()) as corpus:
        num_files = corpus.num_files
    order = "big-endian" if header.is_big_endian else "little-endian"
    return {
        "feature files": f"{num_files:,}",
        "first of them": f"{header.kind_name}, {header.dim} values, {header.period / 10_000:g} ms a frame, {order}",
    }

"""Speech corpora: lists of HTK features (scp) and label files (MLF). (docs/cli.md)

Invariant: deserializers and facts come from the files alone; nothing is printed here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from cntkio.errors import ConfigError, CorpusError
from cntkio.formats.detect import detect
from cntkio.formats.file_lists import FileNames, listed_files, shown_files
from cntkio.formats.htk import HTKFeatureDeserializer, first_header
from cntkio.formats.mlf import (
    HTKMLFBinaryDeserializer,
    HTKMLFDeserializer,
    MLFCorpus,
    infer_labels,
    read_mapping,
)
from cntkio.formats.report import NUM_IN_FULL
from cntkio.hints import wording
from cntkio.streams import StreamDef, StreamDefs

LABEL_FORMS = ("mlf", "binary mlf")
"""Forms of `cntkio.formats.detect` that are label files."""

_LARGEST_CLASS = 65536  # of a binary file


class Labels(NamedTuple):
    """An opened label file.

    Attributes:
        corpus: The file.
        names: The names of its classes; empty if they have none.
    """

    corpus: MLFCorpus
    names: list[bytes]

    def complaints(self) -> Iterator[str]:
        """Yield complaints about the first invalid or broken utterances."""
        utterances = self.corpus.utterances
        masks = [mask for mask in (utterances.invalid, utterances.broken) if mask is not None]
        indices = sorted({int(index) for mask in masks for index in mask.nonzero()[0][:NUM_IN_FULL]})
        for index in indices[:NUM_IN_FULL]:
            yield str(utterances.complaint(index))

    def entries(self, most: int) -> Iterator[tuple[str, list[tuple[str, int]]]]:
        """Yield the first utterances: key, and for each row its label and number of frames."""
        for index in range(min(most, self.corpus.table.num_sequences)):
            frames, classes = self.corpus.rows(index)
            rows = [
                (self._name(label), length) for label, length in zip(classes.tolist(), frames.tolist(), strict=True)
            ]
            yield bytes(self.corpus.table.keys[index]).decode(errors="replace"), rows

    def _name(self, label: int) -> str:
        return self.names[label].decode(errors="replace") if self.names else str(label)


def open_labels(path: FileNames, mapping: Path | None) -> Labels:
    """Open a label file; without a mapping file the labels in the file are the names.

    Raises:
        OSError: A file cannot be read.
        FormatError: A file breaks its format.
        CorpusError: The file has no labels.
    """
    if _is_binary(path):
        names = [] if mapping is None else read_mapping(mapping)
        return Labels(_binary_labels(path).open(), names)
    names = read_mapping(mapping) if mapping is not None else _labels_in(path)
    if not names:
        raise CorpusError(f"{shown_files(path)}: no row has a label")
    return Labels(_text_labels(None, path, names).open_with(names), names)


def named_labels(path: FileNames, mapping: Path | None) -> HTKMLFDeserializer | HTKMLFBinaryDeserializer:
    """Return the deserializer of a label file with its mapping file, as a configuration can describe it.

    Raises:
        OSError: The mapping file cannot be read.
        FormatError: The mapping file breaks its format.
        ConfigError: The labels are a text, and a mapping file was not given.
    """
    if _is_binary(path):
        return _binary_labels(path)
    if mapping is None:
        flag = wording().flag("mapping")
        raise ConfigError(
            f"{shown_files(path)} does not number its labels; with {flag}, name the file that does", key="mapping"
        )
    return _text_labels(mapping, path, read_mapping(mapping))


def _labels_in(paths: FileNames) -> list[bytes]:
    """Return the labels in label files, in the order of their bytes."""
    return sorted(set().union(*(infer_labels(path) for path in listed_files(paths, option="FILE"))))


def _is_binary(paths: FileNames) -> bool:
    return detect(listed_files(paths, option="FILE")[0]).form == "binary mlf"


def _binary_labels(path: FileNames) -> HTKMLFBinaryDeserializer:
    return HTKMLFBinaryDeserializer(StreamDefs(labels=StreamDef(mlf=path, shape=_LARGEST_CLASS)))


def _text_labels(mapping: Path | None, path: FileNames, names: list[bytes]) -> HTKMLFDeserializer:
    streams = StreamDefs(labels=StreamDef(mlf=path, shape=max(1, len(names))))
    return HTKMLFDeserializer(None if mapping is None else os.fspath(mapping), streams)


def features_of(
    path: FileNames, streams: StreamDefs, *, prefix: str = "", strict: bool = False
) -> HTKFeatureDeserializer:
    """Return the deserializer of a list.

    Args:
        path: The list, or several.
        streams: Its stream; empty: `features`, with the dimension of the first file.
        prefix: Text to put before each path of the list.
        strict: Whether warnings are errors.

    Raises:
        OSError: The list, or its first file, cannot be read.
        FormatError: The first file breaks its format.
        ConfigError: More than one stream was requested.
    """
    streams = streams or StreamDefs(
        features=StreamDef(shape=first_header(listed_files(path, option="FILE")[0], prefix=prefix).dim)
    )
    if len(streams) != 1:
        raise ConfigError(f"a list of features has one stream; {len(streams)} are requested", key="stream")
    ((name, stream),) = streams.items()
    definition = StreamDef(scp=path, shape=stream.dim)
    return HTKFeatureDeserializer(StreamDefs({name: definition}), prefix=prefix, strict=strict)


def facts_of_features(deserializer: HTKFeatureDeserializer) -> dict[str, int | str]:
    """Return facts about the files of a list."""
    ((_, stream),) = deserializer.streams.items()
    header = first_header(listed_files(stream.scp, option="FILE")[0], prefix=deserializer.prefix)
    with closing(deserializer.open()) as corpus:
        num_files = corpus.num_files
    order = "big-endian" if header.is_big_endian else "little-endian"
    return {
        "feature files": num_files,
        "first of them": f"{header.kind_name}, {header.dim} values, {header.period / 10_000:g} ms a frame, {order}",
    }

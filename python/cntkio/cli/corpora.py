"""The deserializer of a file, its minibatches with a progress bar, and facts about it."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cntkio.cli.show import count, progress_bar
from cntkio.cli.speech import features_of
from cntkio.formats.cbf import CBFDeserializer
from cntkio.formats.contract import Deserializer
from cntkio.formats.ctf import CTFDeserializer, infer_streams
from cntkio.formats.detect import FileKind
from cntkio.minibatch import Minibatch
from cntkio.source import MinibatchSource
from cntkio.streams import StreamDefs, StreamInformation


def deserializer_of(options: Namespace, kind: FileKind) -> Deserializer:
    """Return the deserializer of text, a binary corpus or a list of features.

    Raises:
        ConfigError: No deserializer reads the file.
        FormatError: The file breaks its format.
        OSError: A file cannot be read.
    """
    kind.require_deserializer(options.file)
    if kind.form == "scp":
        return features_of(options.file, streams_asked_for(options))
    if kind.form == "cbf":
        return CBFDeserializer(options.file, streams_asked_for(options))
    return text_of(options)


def text_of(options: Namespace, **keywords: Any) -> CTFDeserializer:
    """Return the deserializer of a text; without `--stream` it reads all streams that the text shows.

    Raises:
        FormatError: The text breaks its format.
        OSError: It cannot be read.
    """
    return CTFDeserializer(options.file, streams_asked_for(options) or infer_streams(options.file), **keywords)


def streams_asked_for(options: Namespace) -> StreamDefs:
    """Return the streams of the `--stream` options."""
    return StreamDefs(options.stream or ())


def in_minibatches(source: MinibatchSource, minibatch_size: int, num_sweeps: int = 1) -> Iterator[Minibatch]:
    """Iterate over the minibatches, and draw how far they are."""
    total, done = source.num_sequences * num_sweeps, 0
    with progress_bar() as progress:
        for minibatch in source.minibatches(minibatch_size):
            yield minibatch
            done += minibatch.num_sequences
            if progress is not None:
                progress(done, total)


def file_facts(path: Path, form: str) -> dict[str, str]:
    """Return facts about a file."""
    return {"file": os.fspath(path), "format": form, "size": f"{path.stat().st_size:,} bytes"}


def form_of(stream: StreamInformation) -> str:
    """Return whether a stream is dense or sparse, and its dimension."""
    return f"sparse, {stream.dim:,} wide" if stream.is_sparse else f"dense, {count(stream.dim, 'value')}"

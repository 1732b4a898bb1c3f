"""The verb `convert`: `--to` a format, or a converter with the options of CNTK's scripts. (docs/convert.md)"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from cntkio.cli.show import FINE, progress_bar
from cntkio.convert import (
    Progress,
    cbf_to_ctf,
    ctf_to_cbf,
    read_header_file,
    txt_to_ctf,
    uci_to_ctf,
    write_cbf,
    write_ctf,
)
from cntkio.errors import ConfigError
from cntkio.formats.cbf import CBFDeserializer
from cntkio.formats.ctf import CTFDeserializer, infer_streams
from cntkio.formats.detect import detect
from cntkio.streams import StreamDefs


def convert(options: Namespace) -> int:
    """Run a converter, or convert to the format of `--to`.

    Raises:
        CntkIoError: The data or the call are bad.
        OSError: A file cannot be read or written.
    """
    if options.to is None and options.converter is None:
        raise ConfigError("no converter is named, and no --to; cntkio convert --help shows both", key="convert")
    if options.to is not None and options.converter is not None:
        raise ConfigError("--to and a converter's name exclude each other", key="to")
    with progress_bar() as progress:
        (options.converter or _convert_to)(options, progress)
    return FINE


def _convert_to(options: Namespace, progress: Progress | None) -> None:
    if options.input is None or options.output is None:
        raise ConfigError(f"--to {options.to} needs --input FILE and --output FILE", key="to")
    if options.to in ("ctf", "cbf"):
        write = write_ctf if options.to == "ctf" else write_cbf
        write(options.output, _corpus(options), progress=progress)
    else:
        arrow = _arrow()
        write = arrow.write_parquet if options.to == "parquet" else arrow.write_arrow
        write(options.output, _corpus(options), key=options.key, flat=_flat(options.flat), progress=progress)


def _corpus(options: Namespace) -> Any:
    """Return the input of `--to`, as the writers take it."""
    kind = detect(options.input)
    streams = StreamDefs(options.stream or ())
    if kind.form in ("parquet", "arrow"):
        shapes = {name: stream.dim for name, stream in streams.items()}
        return _arrow().read(options.input, key=None if options.key == "key" else options.key, shapes=shapes)
    kind.require_deserializer(options.input)
    if kind.form == "cbf":
        return CBFDeserializer(options.input, streams)
    if kind.form == "ctf":
        return CTFDeserializer(options.input, streams or infer_streams(options.input), max_errors=options.max_errors)
    raise ConfigError(
        f"{options.input} is a {kind.title}; --to converts text, binary corpora, Parquet and Arrow files", key="input"
    )


def _flat(names: list[str] | None) -> Collection[str] | bool:
    """Return the streams of `--flat`; True for all, if it names none."""
    return False if names is None else names or True


def _arrow() -> Any:
    """Import the module of Arrow, whose library is large and optional."""
    try:
        from cntkio import arrow
    except ModuleNotFoundError as error:
        raise ConfigError(str(error), key="to") from None
    return arrow


# ------------------------------------------------------------------------------------------------- the converters


def ctf2cbf(options: Namespace, progress: Progress | None) -> None:
    """Convert text to the binary format."""
    streams = None if options.header is None else read_header_file(options.header)
    ctf_to_cbf(
        options.input,
        options.output,
        streams,
        chunk_size_in_bytes=options.chunk_size,
        layout=options.layout,
        dtype=np.float64 if options.precision == "double" else np.float32,
        skip_sequence_ids=options.skip_sequence_ids,
        max_errors=options.max_errors,
        strict=options.strict,
        progress=progress,
    )


def cbf2ctf(options: Namespace, progress: Progress | None) -> None:
    """Convert the binary format to text."""
    cbf_to_ctf(options.input, options.output, progress=progress)


def txt2ctf(options: Namespace, progress: Progress | None) -> None:
    """Convert lines of tokens to text."""
    txt_to_ctf(
        options.input or sys.stdin.buffer,
        options.output or sys.stdout.buffer,
        options.map,
        names=options.names,
        unknown=options.unk,
        annotated=options.annotated,
        strict=options.strict,
        progress=progress,
    )


def uci2ctf(options: Namespace, progress: Progress | None) -> None:
    """Convert columns of numbers to text."""
    source: Path = options.input_file
    uci_to_ctf(
        source,
        options.output_file or source.with_name(f"{source.stem}_cntk_text{source.suffix}"),
        features_start=options.features_start,
        features_dim=options.features_dim,
        label_type=options.label_type,
        labels_start=options.labels_start,
        labels_dim=options.labels_dim,
        num_labels=options.num_labels,
        mapping_file=options.mapping_file,
        sparse_labels=options.sparse_labels,
        delimiter=options.delimiter,
        progress=progress,
    )

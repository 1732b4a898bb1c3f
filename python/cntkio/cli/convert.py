"""The verb `convert`: from file to file, or a converter with the options of CNTK's scripts. (docs/convert.md)"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from cntkio.cli.corpora import described
from cntkio.cli.show import FINE, Facts, progress_bar
from cntkio.cli.spooling import Input, arrow, inputs
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
from cntkio.streams import StreamDefs

FORMATS = ("ctf", "cbf", "parquet", "arrow")
"""Formats that can be written."""
_EXTENSIONS = {
    ".ctf": "ctf", ".txt": "ctf", ".cbf": "cbf", ".bin": "cbf", ".parquet": "parquet", ".arrow": "arrow",
    ".feather": "arrow",
}  # fmt: skip
_CONVERTIBLE = ("ctf", "cbf", "parquet", "arrow")


def convert(options: Namespace) -> int:
    """Convert a file to the format of another, or run a converter.

    Raises:
        CntkIoError: The data or the call are bad.
        OSError: A file cannot be read or written.
    """
    if options.converter is not None:
        with progress_bar(options) as progress:
            options.converter(options, progress)
        return FINE
    source, target = options.input or options.input_file, options.output or options.output_file
    if source is None or target is None:
        raise ConfigError("convert needs two files: cntkio convert IN OUT", key="output")
    if options.input is not None and options.input_file is not None:
        raise ConfigError("IN and --input exclude each other", key="input")
    form = options.to or _EXTENSIONS.get(target.suffix.lower())
    if form is None:
        known = ", ".join(_EXTENSIONS)
        raise ConfigError(f"{target}: its extension is none of {known}; --to FORMAT says what to write", key="to")
    with inputs([source], reads_tables=False) as (file,):
        with progress_bar(options) as progress:
            _write(options, file, target, form, progress)
        if options.json:
            facts = Facts()
            facts.add("input", file.name)
            facts.add("input_format", file.kind.form)
            facts.add("output", os.fspath(target))
            facts.add("output_format", form)
            facts.add("size", target.stat().st_size)
            facts.show(as_json=True)
    return FINE


def _write(options: Namespace, file: Input, target: Path, form: str, progress: Progress | None) -> None:
    corpus = _corpus(options, file)
    if form == "ctf":
        write_ctf(target, corpus, progress=progress)
    elif form == "cbf":
        write_cbf(target, corpus, progress=progress)
    else:
        write = arrow().write_parquet if form == "parquet" else arrow().write_arrow
        write(target, corpus, key=options.key, flat=_flat(options.flat), progress=progress)


def _corpus(options: Namespace, file: Input) -> Any:
    """Return the input, as the writers take it."""
    if file.kind.form in ("parquet", "arrow"):
        shapes = {name: stream.dim for name, stream in StreamDefs(options.stream or ()).items()}
        return arrow().read(file.path, key=None if options.key == "key" else options.key, shapes=shapes)
    if file.kind.form not in _CONVERTIBLE:
        file.kind.require_deserializer(file.name)
        raise ConfigError(
            f"{file.name} is {file.kind.noun}; convert reads text, binary corpora, Parquet and Arrow files", key="input"
        )
    (one,) = described(options, file)
    (deserializer,) = one.deserializers
    return deserializer


def _flat(names: list[str] | None) -> Collection[str] | bool:
    """Return the streams of `--flat`; True for all, if it names none."""
    return False if names is None else names or True


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

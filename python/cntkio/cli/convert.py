"""The verb `convert`: from file to file, or a converter with the options of CNTK's scripts. (docs/convert.md)"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Collection
from pathlib import Path
from typing import get_args

import numpy as np

from cntkio.cli.corpora import inputs_of
from cntkio.cli.show import FINE, Facts, progress_bar
from cntkio.convert import (
    FileFormat,
    Progress,
    cbf_to_ctf,
    convert_file,
    ctf_to_cbf,
    format_of_name,
    read_header_file,
    txt_to_ctf,
    uci_to_ctf,
)
from cntkio.corpora import CHUNK_SIZE
from cntkio.errors import ConfigError

FORMATS = get_args(FileFormat)
"""Formats that can be written."""


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
    form = options.to or format_of_name(target)
    with inputs_of(options, source, reads_tables=False) as (file,):
        if file.has(target):
            raise ConfigError(f"{target} is the file to read; convert never changes its input", key="output")
        with progress_bar(options) as progress:
            convert_file(
                file.names,
                target,
                to=form,
                streams=options.stream,
                max_errors=options.max_errors or 0,
                skip_sequence_ids=options.skip_sequence_ids,
                strict=options.strict,
                prefix=options.prefix or "",
                one_hot=dict(options.one_hot or ()),
                key=options.key,
                keys=options.keys or "unique",
                chunk_size_in_bytes=options.chunk_size or CHUNK_SIZE,
                flat=_any_or_all(options.flat),
                ids=options.ids or (),
                renumber=options.renumber,
                keys_file=options.keys_file,
                compress=options.compress,
                progress=progress,
            )
        if options.json:
            facts = Facts()
            facts.add("input", file.name)
            facts.add("input_format", file.kind.form)
            facts.add("output", os.fspath(target))
            facts.add("output_format", form)
            facts.add("size", target.stat().st_size)
            facts.show(as_json=True)
    return FINE


def _any_or_all(names: list[str] | None) -> Collection[str] | bool:
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

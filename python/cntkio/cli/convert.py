"""The verb `convert`: from file to file, or a converter with the options of CNTK's scripts. (docs/convert.md)"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Collection
from pathlib import Path
from typing import get_args

import numpy as np

from cntkio.cli.corpora import inputs_of
from cntkio.cli.show import FINE, progress_bar, show_json
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
        CntkIoError: The data or the call is bad.
        OSError: A file cannot be read or written.
    """
    if options.converter is not None:
        reads_corpora = options.converter in (ctf2cbf, cbf2ctf)
        with progress_bar(options, "pieces" if reads_corpora else "bytes") as progress:
            written: Path | None = options.converter(options, progress)
        if options.json and written is not None:
            show_json({"output": written, "size": written.stat().st_size})
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
        with progress_bar(options, "pieces") as progress:
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
            fields = {"input": file.name, "input_format": file.kind.form, "output": target, "output_format": form}
            show_json({**fields, "size": target.stat().st_size})
    return FINE


def _any_or_all(names: list[str] | None) -> Collection[str] | bool:
    """Return the streams that `--flat` names; True (all streams) if it names none."""
    return False if names is None else names or True


# ------------------------------------------------------------------------------------------------- the converters


def ctf2cbf(options: Namespace, progress: Progress | None) -> Path:
    """Convert text to the binary format, and return the output."""
    streams = None if options.header is None else read_header_file(options.header)
    output: Path = options.output
    ctf_to_cbf(
        options.input,
        output,
        streams,
        chunk_size_in_bytes=options.chunk_size,
        layout=options.layout,
        dtype=np.float64 if options.precision == "double" else np.float32,
        skip_sequence_ids=options.skip_sequence_ids,
        max_errors=options.max_errors,
        strict=options.strict,
        progress=progress,
    )
    return output


def cbf2ctf(options: Namespace, progress: Progress | None) -> Path:
    """Convert the binary format to text, and return the output."""
    output: Path = options.output
    cbf_to_ctf(options.input, output, progress=progress)
    return output


def txt2ctf(options: Namespace, progress: Progress | None) -> Path | None:
    """Convert lines of tokens to text, and return the output; None: standard output."""
    output: Path | None = options.output
    txt_to_ctf(
        options.input or sys.stdin.buffer,
        output or sys.stdout.buffer,
        options.map,
        names=options.names,
        unknown=options.unk,
        annotated=options.annotated,
        strict=options.strict,
        progress=progress,
    )
    return output


def uci2ctf(options: Namespace, progress: Progress | None) -> Path:
    """Convert columns of numbers to text, and return the output."""
    source: Path = options.input_file
    output: Path = options.output_file or source.with_name(f"{source.stem}_cntk_text{source.suffix}")
    uci_to_ctf(
        source,
        output,
        features_start=options.features_start,
        features_dim=options.features_dim,
        label_type=options.label_type,
        labels_start=options.labels_start,
        labels_dim=options.labels_dim,
        num_labels=options.num_labels,
        mapping_file=options.mapping_file,
        sparse_labels=options.sparse_labels,
        delimiter=options.delimiter,
        skip_header=options.skip_header,
        progress=progress,
    )
    return output

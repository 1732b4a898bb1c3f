"""The verb `convert`: from file to file, selections of sequences, and the scripts of CNTK. (docs/convert.md)"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import numpy as np

from cntkio.cli.show import FINE, described, inputs_of, progress_bar, refuse_to_replace, show_json
from cntkio.convert import FileFormat, read_header_file, txt_to_ctf, uci_to_ctf
from cntkio.convert.files import Merged, Selected, divided
from cntkio.corpora import Described
from cntkio.displays import counted
from cntkio.errors import ConfigError
from cntkio.formats.contract import CHUNK_SIZE
from cntkio.formats.corpus import without_empty
from cntkio.formats.pieces import Progress, files_of, pieces_of_one
from cntkio.formats.report import Report
from cntkio.formats.written_files import format_of_name, write_form

FORMATS = get_args(FileFormat)
"""Formats that can be written."""
_SHUFFLED_AT_ONCE = 4 << 20  # bytes of a chunk; a seed's order depends on it


def convert(options: Namespace) -> int:
    """Convert a file to the format of another, or run a script of CNTK."""
    if options.script is not None:
        with progress_bar(options, "bytes") as progress:
            written: Path | None = options.script(options, progress)
        if options.json and written is not None:
            show_json({"output": written, **_size_of(written)})
        return FINE
    sources, targets = _sources_and_targets(options)
    forms = [options.to or format_of_name(target) for target in targets]
    if options.header is not None:
        # A header defines streams as `--stream` does, and replaces that option.
        options.streams = list(read_header_file(options.header).items())
    with inputs_of(options, sources) as files, ExitStack() as stack:
        known = set[tuple[int, int]]()
        for file in files if options.merge else ():
            if not known.isdisjoint(own := file.identities()):
                raise ConfigError(f"--merge: {file.name} is named twice; expected each file once", key="merge")
            known |= own
        refuse_to_replace(files, "convert", targets)
        chunk_size = _SHUFFLED_AT_ONCE if options.shuffle else CHUNK_SIZE
        described_each = partial(described, options, chunk_size_in_bytes=chunk_size)
        read = partial(described_each, written=forms[0])
        if options.merge and not options.strict:
            corpora = list(chain(*without_empty(files, read, Report("merge").leave_out)))
        else:
            corpora = list(chain(*map(read, files)))
        texts = [one for one in corpora if one.input.kind.is_text and "dtype" in one.input.kind.options]
        # One text may need float64 where another does not.
        if len({np.dtype(deserializer.dtype) for one in texts for deserializer in one.deserializers[:1]}) > 1:
            options.dtype = np.float64
            corpora = list(chain(*(described_each(one.input) for one in corpora)))
        if len(corpora) > len(files):
            raise ConfigError(f"{files[0].name} has several readers; expected one", key="source")
        is_merged = len(corpora) > 1  # then the merged corpus numbers its sequences itself, in any format
        for target, form, data in zip(targets, forms, _selected(options, corpora, stack), strict=True):
            with progress_bar(options, "pieces") as progress:
                given = {
                    "renumber": options.renumber and not is_merged, "keys_file": options.keys_file,
                    "flat": options.flat is not None and (options.flat or True),  # no name: all streams
                    "ids": options.ids or (), "key": options.key, "compress": options.compress,
                    "layout": options.layout, "chunk_size_in_bytes": options.chunk_size_in_bytes or CHUNK_SIZE,
                    "order": corpora[0].order or None if options.streams else None,
                }  # fmt: skip
                division = files_of(options.num_files, options.max_file_size)
                write_form(form, target, pieces_of_one(data), given, division, progress)
            if options.json:
                fields = {"input": files[0].name, "input_format": files[0].kind.form, "output": target}
                show_json({**fields, "output_format": form, **_size_of(target)})
    return FINE


def _size_of(target: Path) -> dict[str, int]:
    """Return the size of a written file as a field; none for a pipe, and for several files and objects of stores."""
    return {"size": target.stat().st_size} if target.is_file() else {}


def _sources_and_targets(options: Namespace) -> tuple[list[Path], list[Path]]:
    """Return the files to read and the files to write, as many as `--split` has shares."""
    num_targets = len(options.split or [0])
    sources, targets = [[file] if file else [] for file in (options.input_file, options.output_file)]
    if options.files and sources and targets:
        raise ConfigError("IN and --input exclude each other", key="input")
    if not targets and not sources:
        sources, targets = options.files[:-num_targets], options.files[-num_targets:]
    else:
        sources, targets = sources or options.files, targets or options.files
    if options.split and (not sources or len(targets) != num_targets):
        shares, given = ", ".join(f"{share:g}" for share in options.split), ", ".join(map(str, [*sources, *targets]))
        what = f"--split has {counted(num_targets, 'share')} ({shares}), and the files are {given or 'missing'}"
        raise ConfigError(f"{what}; expected one to read, and one to write for each share", key="split")
    if not sources or not targets:
        raise ConfigError("convert needs two files: cntkio convert IN OUT", key="output")
    if len(targets) != num_targets:
        raise ConfigError(f"{len(targets)} files to write; expected one, or --split with their shares", key="split")
    if len({target.resolve() for target in targets}) < num_targets:
        raise ConfigError("--split: a file to write is named twice; expected one for each share", key="split")
    if len(sources) > 1 and not options.merge:
        expected = "expected one, or --merge to write them one after the other"
        raise ConfigError(f"{len(sources)} files to read; {expected}", key="merge")
    if options.split and options.sample:
        raise ConfigError("--sample and --split exclude each other; expected one of them", key="split")
    # Shares that add up to 1 may exceed it by a rounding error.
    if options.split and sum(options.split) > 1 + 1e-9:
        raise ConfigError(f"--split: the shares add up to {sum(options.split):g}; expected at most 1", key="split")
    return sources, targets


def _selected(options: Namespace, corpora: Sequence[Described], stack: ExitStack) -> list[Any]:
    """Return what to write to each target."""
    datas = []
    for one in corpora:
        # Several deserializers are a source, which stays open until all targets are written.
        is_source = len(one.deserializers) > 1
        if options.shuffle:
            if not is_source:
                one.writable()  # refuses label files
            data: Any = one.open(randomize=True, randomization_seed=options.seed)
            is_source = True
        else:
            data = one.writable()
        # A source continues where its last pass ended; `Selected` starts each pass anew.
        datas.append(Selected(stack.enter_context(data)) if is_source else data)
    data = Merged(datas, options.renumber) if len(datas) > 1 else datas[0]
    shares = options.split or ([options.sample] if options.sample else [])
    if not shares:
        return [data]
    with pieces_of_one(data) as pieces:
        # Counted in a pass of its own: the number must be known before the first sequence is chosen.
        num_sequences = sum(piece.chunk.num_sequences for piece in pieces.pieces)
    kept = divided(num_sequences, shares, options.seed)
    for share, keep in zip(shares, kept, strict=True):
        if not keep.any():
            what = f"a share of {share:g} of {counted(num_sequences, 'sequence')} has no sequence"
            raise ConfigError(f"{what}; expected a larger share", key="split")
    return [Selected(data, keep) for keep in kept]


# ------------------------------------------------------------------------------------------------ CNTK's scripts


def txt2ctf(options: Namespace, progress: Progress | None) -> Path | None:
    """Convert lines of tokens to text, and return the output; None: standard output."""
    output: Path | None = options.output
    txt_to_ctf(
        options.input or sys.stdin.buffer, output or sys.stdout.buffer, options.map, names=options.names,
        unknown=options.unk, annotated=options.annotated, strict=options.strict, progress=progress,
    )  # fmt: skip
    return output


def uci2ctf(options: Namespace, progress: Progress | None) -> Path:
    """Convert columns of numbers to text, and return the output."""
    source: Path = options.input_file
    output: Path = options.output_file or source.with_name(f"{source.stem}_cntk_text{source.suffix}")
    # The options have the names of the keywords.
    names = "features_start features_dim label_type labels_start labels_dim num_labels mapping_file sparse_labels"
    keywords = {name: getattr(options, name) for name in [*names.split(), "delimiter", "skip_header"]}
    uci_to_ctf(source, output, **keywords, progress=progress)
    return output

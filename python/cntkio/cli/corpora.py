"""The corpora that the arguments of the command name: options, progress, and facts about files.

Invariant: an option that no file of the call takes is refused.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cntkio import corpora
from cntkio.cli.show import Facts, progress_bar
from cntkio.corpora import CHUNK_SIZE, Described, Input, Reading, inputs
from cntkio.displays import counted
from cntkio.errors import ConfigError, FormatError
from cntkio.formats.contract import Corpus
from cntkio.formats.ctf import guessed_streams
from cntkio.formats.names import is_remote
from cntkio.formats.open_input import is_compressed
from cntkio.formats.table import SequenceTable
from cntkio.minibatch import Minibatch
from cntkio.source import MinibatchSource
from cntkio.streams import StreamDefs, StreamInformation
from cntkio.survey import Block, blocks

_REMOTE_OPTIONS = ("cache", "cache_limit", "remote")


def reading_of(options: Namespace) -> Reading:
    """Return the options of the command that say how to read files."""
    return Reading(
        StreamDefs(options.stream or ()),
        options.max_errors,
        options.skip_sequence_ids,
        options.strict,
        options.chunk_size,
        options.keys,
        options.prefix,
        options.mapping,
    )


def described(
    options: Namespace,
    file: Input,
    *,
    max_errors: int = 0,
    chunk_size_in_bytes: int = CHUNK_SIZE,
    cache_index: bool = False,
    guesses_streams: bool = False,
) -> list[Described]:
    """Return the corpora of a file. The options of the command decide how to read it, and the keywords are defaults.

    Args:
        options: The arguments of the command.
        file: The file.
        max_errors: See `cntkio.corpora.Reading`.
        chunk_size_in_bytes: See `cntkio.corpora.Reading`.
        cache_index: See `cntkio.corpora.Reading`.
        guesses_streams: Whether to guess the streams of a text from its first lines, because no value is read.

    Raises:
        ConfigError, FormatError, OSError: See `cntkio.corpora.described`.
    """
    reading = reading_of(options).usually(
        max_errors=max_errors, chunk_size_in_bytes=chunk_size_in_bytes, cache_index=cache_index
    )
    if guesses_streams and file.kind.form == "ctf" and not reading.streams:
        reading = reading._replace(streams=guessed_streams(file.names))
    return corpora.described(file, reading)


@contextmanager
def inputs_of(
    options: Namespace,
    file: Path | None = None,
    *,
    reads_tables: bool = True,
    refuse: Callable[[str, FormatError], None] | None = None,
) -> Iterator[list[Input]]:
    """Detect the kinds of the files of a call; refuse options that none of the files takes.

    Args:
        options: The arguments of the command.
        file: The only file; None: the files that the option `file` names.
        reads_tables: As for `cntkio.corpora.inputs`.
        refuse: As for `cntkio.corpora.inputs`.

    Raises:
        ConfigError, FormatError, OSError: See `cntkio.corpora.inputs`.
    """
    names = options.file if file is None else [file]
    with inputs([names] if isinstance(names, Path) else names, reads_tables=reads_tables, refuse=refuse) as files:
        also = [] if getattr(options, "labels", None) is None else ["mapping"]
        if files:
            reading_of(options).require_takers(files, also=also)
        refuse_remote_options(options, files)
        yield files


def refuse_remote_options(options: Namespace, files: Sequence[Input]) -> None:
    """Refuse options of remote stores for local files.

    Raises:
        ConfigError: A local file has such an option.
    """
    if any(file.kind.form == "configuration" or is_remote(str(file.path)) for file in files):
        return
    # A cache also keeps the text of compressed files that can only be read in order.
    packed = any(is_compressed(name) for file in files for name in file.files or [str(file.path)])
    for name in _REMOTE_OPTIONS:
        if getattr(options, name, None) is not None and not (packed and name != "remote"):
            raise ConfigError(
                f"--{name.replace('_', '-')} applies only to files of remote stores (scheme://...); {files[0].name} is "
                "a local file",
                key=name,
            )


def surveyed(options: Namespace, corpus: Corpus) -> Iterator[Block]:
    """Iterate over the blocks of a corpus, and draw the progress."""
    with progress_bar(options, "sequences") as progress:
        yield from blocks(corpus, progress=progress)


def in_minibatches(
    options: Namespace, source: MinibatchSource, minibatch_size: int, num_sweeps: int
) -> Iterator[Minibatch]:
    """Iterate over the minibatches, and draw the progress."""
    total, done = source.num_sequences * num_sweeps, 0
    with progress_bar(options, "sequences") as progress:
        for minibatch in source.minibatches(minibatch_size):
            yield minibatch
            done += minibatch.num_sequences
            if progress is not None:
                progress(done, total)


def file_facts(file: Input, section: str = "") -> Facts:
    """Return facts about a file."""
    facts = Facts()
    facts.add("file", file.name)
    if section:
        facts.add("section", section)
    if file.files:
        facts.add("files", len(file.files))
    facts.add("format", file.kind.form, file.kind.title)
    facts.add("size", file.size, f"{file.size:,} bytes")
    return facts


def add_size(facts: Facts, table: SequenceTable, longest: int | None = None) -> None:
    """Add the numbers of sequences and samples of a corpus, and the length of its longest sequence if it is given."""
    facts.add("sequences", table.num_sequences)
    facts.add("samples", samples_in(table))
    if longest is not None:
        facts.add("longest sequence", longest, counted(longest, "sample"))


def samples_in(table: SequenceTable) -> int:
    """Return the number of samples of a corpus."""
    return int(table.lengths.sum(dtype=np.int64))


def stream_fields(stream: StreamInformation, num_samples: int, longest: int) -> dict[str, Any]:
    """Return the facts about a stream that each verb has in its JSON."""
    return {
        "name": stream.name, "storage": stream.storage_format, "dim": stream.dim, "dtype": str(stream.dtype),
        "samples": num_samples, "longest": longest,
    }  # fmt: skip


def form_of(stream: StreamInformation) -> str:
    """Return whether a stream is dense or sparse, and its dimension."""
    return f"sparse, {stream.dim:,} wide" if stream.is_sparse else f"dense, {counted(stream.dim, 'value')}"

"""The corpora that the arguments of the command name: their deserializers, their minibatches, and facts about them.

::

    FILE ──> spooled ──> detect ──> a function for each kind of file ──> Described

Invariant: an option that no file of the call takes is refused.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

from cntkio.cli import speech
from cntkio.cli.show import Facts, progress_bar
from cntkio.cli.spooling import Input
from cntkio.config.reading import readers_asked_for
from cntkio.displays import counted
from cntkio.errors import ConfigError, FormatError
from cntkio.formats.cbf import CBFDeserializer
from cntkio.formats.contract import Ahead, Corpus
from cntkio.formats.ctf import CTFDeserializer, infer_streams
from cntkio.formats.htk import CHUNK_FRAMES
from cntkio.formats.open_input import is_compressed
from cntkio.formats.remote import is_remote
from cntkio.minibatch import Minibatch
from cntkio.source import MinibatchSource
from cntkio.streams import StreamDefs, StreamInformation
from cntkio.survey import Block, blocks

# The options of corpora that each kind of file takes. A configuration says all of this itself.
_TAKES = {
    "ctf": {"stream", "max_errors", "skip_sequence_ids", "strict", "chunk_size", "keys"},
    "cbf": {"stream", "strict"},
    "scp": {"stream", "prefix", "strict"},
    "mlf": {"mapping"},
    "binary mlf": {"mapping"},
    "parquet": {"stream"},
    "arrow": {"stream"},
    "arrow stream": {"stream"},
}
SURVEYED_AT_ONCE = 4 << 20
"""Bytes of a chunk of a text whose values are only looked at: the arrays use the same memory again and again."""
# Parse so much in the pass that makes the index of a text, so that it is read only once.
_PARSED_AHEAD = 64 << 20
_CORPUS_OPTIONS = sorted(set().union(*_TAKES.values()))
_REMOTE_OPTIONS = ("cache", "cache_limit", "remote")


class Described(NamedTuple):
    """A corpus that the call names.

    Attributes:
        input: Its file.
        deserializers: What reads it, unless it is a label file.
        open_labels: Opens the label file, once: without features, a source cannot read it. None: it is not one.
        written: The deserializers that a written configuration describes.
        section: The section of the configuration that describes it; empty: no configuration does.
        chunk_sizes: End of the fact about chunks.
        facts: Facts that only corpora of this kind have.
        order: The streams in the order in which they are printed; empty: in the order of the source.
        has_precisions: Whether the file gives the type of each stream's values.
        forgives_errors: Whether errors are counted instead of ending the command.
    """

    input: Input
    deserializers: Sequence[Any] = ()
    open_labels: Callable[[], speech.Labels] | None = None
    written: Sequence[Any] = ()
    section: str = ""
    chunk_sizes: str = ""
    facts: Mapping[str, Any] = MappingProxyType({})
    order: Sequence[str] = ()
    has_precisions: bool = False
    forgives_errors: bool = False

    @property
    def labels(self) -> speech.Labels | None:
        """The label file, opened."""
        return None if self.open_labels is None else self.open_labels()

    def open(self, **options: Any) -> MinibatchSource:
        """Open a source of the corpus: one sweep in order, unless the options say otherwise."""
        return MinibatchSource(list(self.deserializers), **{"max_sweeps": 1, "randomize": False, **options})


class Usual(NamedTuple):
    """The options with which a verb reads texts by default.

    Attributes:
        max_errors: The errors to forgive.
        cache_index: Whether to use the index cache.
        chunk_size: Bytes of a chunk.
    """

    max_errors: int = 0
    cache_index: bool = False
    chunk_size: int = 32 << 20


def described(options: Namespace, file: Input, usual: Usual = Usual()) -> list[Described]:  # noqa: B008 - immutable
    """Return the corpora of a file: several if it is a configuration with several readers.

    Args:
        options: The arguments of the command.
        file: The file.
        usual: How to read a text, unless the arguments say so.

    Raises:
        ConfigError: No deserializer reads the file, or an option does not go with it.
        FormatError: The file breaks its format.
        OSError: A file cannot be read.
    """
    refuse_options(options, [file])
    if file.kind.form == "configuration":
        return [
            Described(file, [call() for call in reader.calls], section=reader.section)
            for reader in readers_asked_for(file.path, [])
        ]
    file.kind.require_deserializer(file.path)
    if options.max_errors is not None:
        usual = usual._replace(max_errors=options.max_errors)
    if options.chunk_size is not None:
        usual = usual._replace(chunk_size=options.chunk_size)
    return [_DESCRIBED[file.kind.form](options, file, usual)]


def refuse_options(options: Namespace, files: Sequence[Input]) -> None:
    """Refuse an option that none of the files takes.

    Raises:
        ConfigError: There is one.
    """
    taken = set().union(*(_TAKES.get(file.kind.form, set()) for file in files))
    if getattr(options, "labels", None) is not None:
        taken.add("mapping")
    for name in _CORPUS_OPTIONS:
        if getattr(options, name, None) not in (None, False) and name not in taken:
            goes_with = " and ".join(form for form in ("ctf", "cbf", "scp", "mlf") if name in _TAKES[form])
            raise ConfigError(
                f"--{name.replace('_', '-')} goes with {goes_with} files; {files[0].name} is {files[0].kind.noun}",
                key=name,
            )
    if not any(file.kind.form == "configuration" or is_remote(str(file.path)) for file in files):
        # A cache also keeps the text of compressed files that are read in order only.
        packed = any(is_compressed(name) for file in files for name in file.files or [str(file.path)])
        for name in _REMOTE_OPTIONS:
            if getattr(options, name, None) is not None and not (packed and name != "remote"):
                raise ConfigError(
                    f"--{name.replace('_', '-')} goes with files of remote stores (scheme://...); {files[0].name} is "
                    "a local file",
                    key=name,
                )


def _text(options: Namespace, file: Input, usual: Usual) -> Described:
    max_errors = usual.max_errors
    keywords: dict[str, Any] = {
        "skip_sequence_ids": options.skip_sequence_ids,
        "strict": options.strict,
        "chunk_size_in_bytes": usual.chunk_size,
        "keys": options.keys or "unique",
    }
    streams = streams_asked_for(options) or infer_streams(file.names)
    written = CTFDeserializer(file.names, streams, max_errors=max(max_errors, 0), **keywords)
    deserializer = CTFDeserializer(
        file.names, streams, max_errors=max_errors, cache_index=usual.cache_index, **keywords
    )
    chunk_sizes = f" of at most {written.chunk_size_in_bytes:,} bytes"
    return Described(
        file,
        [deserializer],
        written=[written],
        chunk_sizes=chunk_sizes,
        order=list(streams),
        forgives_errors=max_errors != 0,
    )


def _binary(options: Namespace, file: Input, usual: Usual) -> Described:
    deserializer = CBFDeserializer(file.names, streams_asked_for(options), strict=options.strict)
    return Described(file, [deserializer], written=[deserializer], has_precisions=True)


def _features(options: Namespace, file: Input, usual: Usual) -> Described:
    deserializer = speech.features_of(
        file.names, streams_asked_for(options), prefix=options.prefix or "", strict=options.strict
    )
    chunk_sizes = f" of more than {CHUNK_FRAMES:,} samples, the last of the rest"
    facts = speech.facts_of_features(deserializer)
    return Described(file, [deserializer], written=[deserializer], chunk_sizes=chunk_sizes, facts=facts)


def _labels(options: Namespace, file: Input, usual: Usual) -> Described:
    return Described(file, open_labels=cache(partial(speech.open_labels, file.names, options.mapping)))


_DESCRIBED: dict[str, Callable[[Namespace, Input, Usual], Described]] = {
    "ctf": _text,
    "cbf": _binary,
    "scp": _features,
    "mlf": _labels,
    "binary mlf": _labels,
    # These became binary corpora (`cntkio.cli.spooling`).
    "parquet": _binary,
    "arrow": _binary,
    "arrow stream": _binary,
}


@contextmanager
def opened(one: Described) -> Iterator[list[Corpus]]:
    """Open the corpora of what the call names: one for each deserializer, and for each list of features.

    Raises:
        CntkIoError: The data are bad.
        OSError: A file cannot be read.
    """
    with ExitStack() as stack:
        if one.labels is not None:
            yield [stack.enter_context(closing(one.labels.corpus))]
            return
        ahead = Ahead(_PARSED_AHEAD)
        parts = [part for deserializer in one.deserializers for part in deserializer.parts()]
        yield [stack.enter_context(closing(part.open(ahead=ahead))) for part in parts]


def surveyed(
    options: Namespace, corpus: Corpus, refuse: Callable[[int, FormatError], None] | None = None
) -> Iterator[Block]:
    """Iterate over the blocks of a corpus, and draw how far they are. For `refuse`, see `cntkio.survey.blocks`."""
    total = corpus.table.num_sequences
    with progress_bar(options, "sequences") as progress:
        for block in blocks(corpus, refuse):
            yield block
            if progress is not None:
                progress(block.first_sequence + block.num_sequences, total)


def streams_asked_for(options: Namespace) -> StreamDefs:
    """Return the streams of the `--stream` options."""
    return StreamDefs(options.stream or ())


def in_minibatches(
    options: Namespace, source: MinibatchSource, minibatch_size: int, num_sweeps: int = 1
) -> Iterator[Minibatch]:
    """Iterate over the minibatches, and draw how far they are."""
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


def form_of(stream: StreamInformation) -> str:
    """Return whether a stream is dense or sparse, and its dimension."""
    return f"sparse, {stream.dim:,} wide" if stream.is_sparse else f"dense, {counted(stream.dim, 'value')}"

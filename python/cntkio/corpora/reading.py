"""Descriptions of corpora in files: the options of a call, and a function for each kind of file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from cntkio.config.reader_config import Call
from cntkio.config.reading import readers_asked_for
from cntkio.corpora import speech
from cntkio.corpora.files import Input
from cntkio.errors import ConfigError
from cntkio.formats.cbf import CBFDeserializer
from cntkio.formats.contract import Ahead, Corpus, Deserializer
from cntkio.formats.ctf import CTFDeserializer, infer_streams
from cntkio.formats.htk import CHUNK_FRAMES
from cntkio.formats.joined_index import KeysOf
from cntkio.hints import wording
from cntkio.source import MinibatchSource
from cntkio.streams import StreamDefs

# The options that each kind of file takes. A configuration contains all of them itself.
_TAKES = {
    "ctf": {"streams", "max_errors", "skip_sequence_ids", "strict", "chunk_size_in_bytes", "keys"},
    "cbf": {"streams", "strict"},
    "scp": {"streams", "prefix", "strict"},
    "mlf": {"mapping"},
    "binary mlf": {"mapping"},
    "parquet": {"streams"},
    "arrow": {"streams"},
    "arrow stream": {"streams"},
}
CHUNK_SIZE = 32 << 20
"""Bytes of a chunk of a text."""
SURVEYED_AT_ONCE = 4 << 20
"""Bytes of a chunk of a text whose values are only examined: the arrays of each chunk reuse the memory of the last."""
# Bytes that the pass that makes the index of a text also parses, so that they are read only once.
_PARSED_AHEAD = 64 << 20


class Reading(NamedTuple):
    """Options of reading files, as the caller gives them.

    Attributes:
        streams: The streams to read; empty: as the files show them.
        max_errors: Errors to forgive in a text; -1: all.
        skip_sequence_ids: Whether each line of a text is a sequence.
        strict: Whether warnings are errors.
        chunk_size_in_bytes: Size of a chunk of a text.
        keys: Keys of several texts.
        prefix: Text to put before each path of a list of features.
        mapping: For a label file: the file with the names of its labels.
        cache_index: Whether to use the index cache.
    """

    streams: Mapping[str, Any] = MappingProxyType({})
    max_errors: int | None = None
    skip_sequence_ids: bool = False
    strict: bool = False
    chunk_size_in_bytes: int | None = None
    keys: KeysOf | None = None
    prefix: str | None = None
    mapping: Path | None = None
    cache_index: bool = False

    def usually(
        self, *, max_errors: int = 0, chunk_size_in_bytes: int = CHUNK_SIZE, cache_index: bool = False
    ) -> Reading:
        """Return the options, with defaults in place of options that the caller does not set."""
        return self._replace(
            max_errors=max_errors if self.max_errors is None else self.max_errors,
            chunk_size_in_bytes=self.chunk_size_in_bytes or chunk_size_in_bytes,
            cache_index=cache_index,
        )

    def require_takers(self, files: Sequence[Input], *, also: Sequence[str] = ()) -> None:
        """Refuse an option that none of the files takes.

        Args:
            files: The files.
            also: Options that another file takes.

        Raises:
            ConfigError: No file takes one of the options.
        """
        taken = set(also).union(*(_TAKES.get(file.kind.form, set()) for file in files))
        for name, value in self._asdict().items():
            if value not in (None, False, {}) and name not in taken:
                formats = ", ".join(form for form in ("ctf", "cbf", "scp", "mlf") if name in _TAKES[form])
                raise ConfigError(
                    f"{wording().flag(name)} applies only to {formats} files; {files[0].name} is {files[0].kind.noun}",
                    key=name,
                )


class Described(NamedTuple):
    """A corpus in files.

    Attributes:
        input: Its files.
        deserializers: The deserializers that read it; empty for a label file.
        open_labels: Opens the label file, once: without features, a source cannot read it. None: not a label file.
        written: The deserializers that a written configuration describes.
        section: The section of the configuration that describes it; empty: no configuration does.
        chunk_sizes: Words about the size of chunks, which end the fact about chunks.
        facts: Facts that only corpora of this kind have.
        order: The streams in the order in which they are printed; empty: in the order of the source.
        has_precisions: Whether the file gives the type of each stream's values.
        forgives_errors: Whether errors are counted instead of ending the call.
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

    def parts(self) -> list[Callable[[], Corpus]]:
        """Return a function that opens each corpus: one for each deserializer, and for each list of features."""
        open_labels = self.open_labels
        if open_labels is not None:
            return [lambda: open_labels().corpus]
        return [part for deserializer in self.deserializers for part in openers(deserializer)]

    @contextmanager
    def opened(self) -> Iterator[list[Corpus]]:
        """Open all corpora.

        Raises:
            CntkIoError: The data are bad.
            OSError: A file cannot be read.
        """
        with ExitStack() as stack:
            yield [stack.enter_context(closing(open_part())) for open_part in self.parts()]


def openers(deserializer: Deserializer) -> list[Callable[[], Corpus]]:
    """Return a function for each corpus of a deserializer that opens it, to read all chunks in order."""
    return [partial(part.open, ahead=Ahead(_PARSED_AHEAD)) for part in deserializer.parts()]


def described(file: Input, reading: Reading) -> list[Described]:
    """Return the corpora of a file: several if it is a configuration with several readers.

    Args:
        file: The file.
        reading: The options, complete (`Reading.usually`).

    Raises:
        ConfigError: No deserializer reads the file.
        FormatError: The file breaks its format.
        OSError: A file cannot be read.
    """
    if file.kind.form == "configuration":
        return [
            Described(
                file,
                [_forgiving(call)() if reading.max_errors == -1 else call() for call in reader.calls],
                section=reader.section,
                forgives_errors=reading.max_errors == -1,
            )
            for reader in readers_asked_for(file.path, [])
        ]
    file.kind.require_deserializer(file.path)
    return [_DESCRIBED[file.kind.form](file, reading)]


def _forgiving(call: Call) -> Call:
    """Return the call of a deserializer, changed to forgive all errors of a text."""
    if call.target is not CTFDeserializer:
        return call
    return dataclasses.replace(call, keywords=tuple({**dict(call.keywords), "max_errors": -1}.items()))


def _text(file: Input, reading: Reading) -> Described:
    max_errors = reading.max_errors or 0
    keywords: dict[str, Any] = {
        "skip_sequence_ids": reading.skip_sequence_ids,
        "strict": reading.strict,
        "chunk_size_in_bytes": reading.chunk_size_in_bytes,
        "keys": reading.keys or "unique",
    }
    streams = StreamDefs(reading.streams or infer_streams(file.names))
    written = CTFDeserializer(file.names, streams, max_errors=max(max_errors, 0), **keywords)
    deserializer = CTFDeserializer(
        file.names, streams, max_errors=max_errors, cache_index=reading.cache_index, **keywords
    )
    return Described(
        file,
        [deserializer],
        written=[written],
        chunk_sizes=f" of at most {written.chunk_size_in_bytes:,} bytes",
        order=list(streams),
        forgives_errors=max_errors != 0,
    )


def _binary(file: Input, reading: Reading) -> Described:
    deserializer = CBFDeserializer(file.names, StreamDefs(reading.streams), strict=reading.strict)
    return Described(file, [deserializer], written=[deserializer], has_precisions=True)


def _features(file: Input, reading: Reading) -> Described:
    deserializer = speech.features_of(
        file.names, StreamDefs(reading.streams), prefix=reading.prefix or "", strict=reading.strict
    )
    chunk_sizes = f" of more than {CHUNK_FRAMES:,} samples, the last with the rest"
    facts = speech.facts_of_features(deserializer)
    return Described(file, [deserializer], written=[deserializer], chunk_sizes=chunk_sizes, facts=facts)


def _labels(file: Input, reading: Reading) -> Described:
    return Described(file, open_labels=cache(partial(speech.open_labels, file.names, reading.mapping)))


_DESCRIBED: dict[str, Callable[[Input, Reading], Described]] = {
    "ctf": _text,
    "cbf": _binary,
    "scp": _features,
    "mlf": _labels,
    "binary mlf": _labels,
    # Tables, which were copied to binary corpora (`cntkio.corpora.files`).
    "parquet": _binary,
    "arrow": _binary,
    "arrow stream": _binary,
}

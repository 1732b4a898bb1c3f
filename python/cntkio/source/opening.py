"""The deserializers of a source, opened: their corpora, and the streams."""

from __future__ import annotations

import dataclasses

from cntkio.errors import ConfigError
from cntkio.formats.contract import Corpus
from cntkio.source.options import SourceOptions
from cntkio.source.packing import Layout
from cntkio.source.recipe import Recipe
from cntkio.streams import StreamInformation, packed_columns


@dataclasses.dataclass(frozen=True, eq=False)
class Opened:
    """The opened deserializers of a source.

    Attributes:
        corpora: Their corpora.
        streams: The streams of all corpora, numbered consecutively.
        layouts: For each corpus its streams, and how they are packed.
    """

    corpora: list[Corpus]
    streams: list[StreamInformation]
    layouts: list[Layout]

    @property
    def is_literal(self) -> bool:
        """True if a corpus asks for CNTK's own treatment of errors and empty minibatches."""
        return any(corpus.utterances is not None and corpus.utterances.is_literal for corpus in self.corpora)

    def close(self) -> None:
        """Close the corpora."""
        for corpus in self.corpora:
            corpus.close()


def open_all(options: SourceOptions, recipe: Recipe) -> Opened:
    """Open the deserializers of a source. If one of them has words as keys, all read their keys as words.

    Raises:
        ConfigError: Two streams have one name.
        FormatError: The indexing pass finds an error in the format of a file.
        OSError: A file cannot be read.
    """
    opened = Opened([], [], [])
    text_keys = any(deserializer.has_text_keys for deserializer in options.described)
    try:
        for deserializer in options.described:
            corpus = recipe.open(deserializer, text_keys=text_keys, ahead=options.ahead)
            opened.corpora.append(corpus)
            layout = _layout(corpus, opened.streams, is_truncated=options.truncation_length > 0)
            opened.layouts.append(layout)
            opened.streams.extend(layout.streams)
    except BaseException:
        opened.close()
        raise
    return opened


def _layout(corpus: Corpus, earlier: list[StreamInformation], *, is_truncated: bool) -> Layout:
    streams: list[StreamInformation] = []
    names = {info.name for info in earlier}
    for info in corpus.streams:
        if info.name in names:
            raise ConfigError(f"two streams have the name {info.name!r}; rename one of them", key=info.name)
        names.add(info.name)
        form = "dense" if is_truncated else info.storage_format
        stream_id = len(earlier) + len(streams)
        streams.append(StreamInformation(info.name, stream_id, form, info.dtype, info.shape, info.defines_mb_size))
    return Layout(streams, packed_columns(corpus.streams))

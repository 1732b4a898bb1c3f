"""Conversion between files of any format, which the bytes of the input and the name of the output show."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

from cntkio.arguments import path_texts
from cntkio.convert.compression import Compression, compression_of
from cntkio.convert.corpora import FileFormat
from cntkio.convert.pieces import Classes, Progress
from cntkio.convert.text import write_cbf, write_ctf
from cntkio.errors import ConfigError
from cntkio.formats.cbf import CBFDeserializer
from cntkio.formats.ctf import CTFDeserializer, infer_streams
from cntkio.formats.detect import detect
from cntkio.formats.file_lists import FileNames, listed_files, shown_files
from cntkio.formats.htk import HTKFeatureDeserializer, first_header
from cntkio.formats.joined_index import KeysOf
from cntkio.formats.output_file import AnyPath
from cntkio.hints import suggests_keywords, wording
from cntkio.streams import StreamDef, StreamDefs

_BY_EXTENSION: dict[str, FileFormat] = {
    ".ctf": "ctf",
    ".txt": "ctf",
    ".cbf": "cbf",
    ".bin": "cbf",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}


class Reading(TypedDict, total=False):
    """Keywords of `convert_file` and `corpus_of` that say how to read a file. Each keyword is only for some formats.

    Attributes:
        max_errors: Number of errors to tolerate in a text.
        skip_sequence_ids: Read each line of a text as a sequence, and ignore ids.
        strict: Turn warnings about a text, a binary corpus or features into errors.
        prefix: Text to put before each path of a list of features.
        one_hot: Columns of classes in Parquet and Arrow, and these classes, as for `cntkio.arrow.read`.
        key: The column of keys in Parquet and Arrow, read and written.
        keys: Keys of several texts, as for `CTFDeserializer`.
        chunk_size_in_bytes: Chunk size of a text, as for `CTFDeserializer`; about as much memory is in use.

    Example:
        >>> reading: Reading = {"max_errors": 3}
        >>> corpus_of("examples/iris/iris.ctf", infer_streams("examples/iris/iris.ctf"), **reading).max_errors
        3
    """

    max_errors: int
    skip_sequence_ids: bool
    strict: bool
    prefix: str
    one_hot: Mapping[str, Classes] | None
    key: str | None
    keys: KeysOf
    chunk_size_in_bytes: int


_OF_TEXTS = ("max_errors", "skip_sequence_ids", "strict", "keys", "chunk_size_in_bytes")


def format_of_name(path: AnyPath) -> FileFormat:
    """Return the format that the name of a file implies.

    Args:
        path: The file, which need not exist.

    Raises:
        ConfigError: The extension belongs to no format that can be written.

    Example:
        >>> format_of_name("corpus.parquet")
        'parquet'
    """
    extension = Path(path if compression_of(path, None) == "none" else Path(path).with_suffix("")).suffix.lower()
    if extension not in _BY_EXTENSION:
        known = ", ".join(_BY_EXTENSION)
        raise ConfigError(
            f"{os.fspath(path)}: no format to write has the extension {extension!r}; expected one of {known}, or "
            "the format: ctf, cbf, parquet or arrow",
            key="to",
        )
    return _BY_EXTENSION[extension]


@suggests_keywords
def convert_file(
    source: FileNames,
    target: AnyPath,
    *,
    to: FileFormat | None = None,
    streams: StreamDefs | Mapping[str, Any] | None = None,
    flat: Collection[str] | bool = False,
    ids: Collection[str] = (),
    renumber: bool = False,
    keys_file: AnyPath | None = None,
    compress: Compression | None = None,
    progress: Progress | None = None,
    **reading: Unpack[Reading],
) -> None:
    """Convert a file of any format to text (CTF), a binary corpus (CBF), Parquet or Arrow.

    Args:
        source: A text, a binary corpus, a list of HTK features (scp), Parquet or Arrow; its content decides. Several
            files of one of the first three kinds are one corpus: a pattern or a list.
        target: The file to write.
        to: Its format; None: by its extension: ``.ctf``, ``.txt``, ``.cbf``, ``.bin``, ``.parquet``, ``.pq``,
            ``.arrow``, ``.feather`` or ``.ipc``.
        streams: The streams to read from a text or a binary corpus; for Parquet and Arrow the dimensions of columns
            whose types do not imply them; None: as the file shows them.
        flat: As for `cntkio.arrow.RecordBatches`, to write Parquet and Arrow.
        ids: As for `cntkio.arrow.RecordBatches`, to write Parquet and Arrow.
        renumber: As for `write_ctf`, to write text.
        keys_file: As for `write_ctf`, to write text.
        compress: As for `write_ctf`, to write text.
        progress: As for `write_cbf`.
        reading: How to read the source: the keywords of `Reading`.

    Raises:
        ConfigError: The format of a file or an option is invalid.
        CorpusError: The data do not fit the format to write.
        FormatError: The input breaks its format.
        OSError: A file cannot be read or written.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> convert_file("examples/iris/iris.ctf", folder / "iris.cbf")
        >>> convert_file(folder / "iris.cbf", folder / "again.txt")
        >>> (folder / "again.txt").read_text().splitlines()[0]
        '0\\t|lengths 5.1 3.5 1.4 0.2 |species 1 0 0'
    """
    form = to or format_of_name(target)
    packed = None if compression_of(target, compress) == "none" else compress or "a packed file"
    _refuse("text", form == "ctf", {"renumber": renumber, "keys_file": keys_file, "compress": packed})
    _refuse("Parquet and Arrow", form in ("parquet", "arrow"), {"flat": flat, "ids": ids})
    corpus = corpus_of(source, StreamDefs(streams or {}), **reading)
    if form == "ctf":
        write_ctf(target, corpus, renumber=renumber, keys_file=keys_file, compress=compress, progress=progress)
    elif form == "cbf":
        write_cbf(target, corpus, progress=progress)
    else:
        from cntkio import arrow  # late: Arrow is optional, and its module imports this module

        write = arrow.write_parquet if form == "parquet" else arrow.write_arrow
        write(target, corpus, key=reading.get("key") or arrow.KEY, flat=flat, ids=ids, progress=progress)


def _refuse(what: str, is_written: bool, options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if value and not is_written:
            raise ConfigError(f"{wording().flag(name)} is only for writing {what}", key=name)


@suggests_keywords
def corpus_of(path: FileNames, streams: StreamDefs, **reading: Unpack[Reading]) -> Any:
    """Return a file of any format as an argument of the writers. Arguments and exceptions as for `convert_file`.

    Example:
        >>> from cntkio.convert import pieces_of
        >>> with pieces_of(corpus_of("examples/iris/iris.ctf", infer_streams("examples/iris/iris.ctf"))) as pieces:
        ...     sorted(info.name for info in pieces.streams)
        ['lengths', 'species']
    """
    prefix, strict = reading.get("prefix", ""), reading.get("strict", False)
    names = path_texts("source", path)
    files = listed_files(names, option="source")
    kind, first = detect(files[0]), files[0]
    if kind.form in ("parquet", "arrow", "arrow stream"):
        if len(files) > 1:
            raise ConfigError(f"{shown_files(names)}: several files of Parquet or Arrow; expected one", key="source")
        from cntkio import arrow  # late: Arrow is optional, and its module imports this module

        shapes = {name: stream.dim for name, stream in streams.items()}
        return arrow.read(first, key=reading.get("key"), shapes=shapes, one_hot=reading.get("one_hot"))
    if reading.get("one_hot"):
        raise ConfigError(f"{wording().flag('one_hot')} is only for columns of Parquet and Arrow", key="one_hot")
    kind.require_deserializer(first)
    if kind.form == "cbf":
        return CBFDeserializer(names, streams, strict=strict)
    if kind.form == "ctf":
        chosen: dict[str, Any] = {name: value for name, value in reading.items() if name in _OF_TEXTS}
        return CTFDeserializer(names, streams or infer_streams(names), **chosen)
    if kind.form == "scp":
        wanted = streams or StreamDefs(features=StreamDef(shape=first_header(first, prefix=prefix).dim))
        definitions = StreamDefs({name: StreamDef(scp=names, shape=stream.dim) for name, stream in wanted.items()})
        return HTKFeatureDeserializer(definitions, prefix=prefix, strict=strict)
    raise ConfigError(
        f"{first} is {kind.noun}; expected a text, a binary corpus, a list of features, Parquet or Arrow",
        key="source",
    )

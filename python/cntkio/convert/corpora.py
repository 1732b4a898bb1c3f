"""From one corpus file to another: text to binary and back, as CNTK's scripts ctf2bin.py and bin2ctf do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from cntkio.convert.pieces import Progress
from cntkio.convert.text import write_cbf, write_ctf
from cntkio.errors import FormatError
from cntkio.formats.cbf import CBFDeserializer, Layout
from cntkio.formats.ctf import CTFDeserializer, infer_streams
from cntkio.formats.detect import detect
from cntkio.formats.input_file import all_bytes
from cntkio.formats.output_file import AnyPath
from cntkio.streams import StreamDef, StreamDefs

FileFormat = Literal["ctf", "cbf", "parquet", "arrow"]


def format_of(path: AnyPath) -> FileFormat:
    """Return the format of a corpus, by its first bytes; text if they belong to none of the other formats.

    Args:
        path: The corpus.

    Raises:
        OSError: The file cannot be read.

    Example:
        >>> format_of("examples/iris/iris.ctf")
        'ctf'
    """
    form = detect(path).form
    return next((known for known in get_args(FileFormat) if known == form), "ctf")


def ctf_to_cbf(
    source: AnyPath,
    target: AnyPath,
    streams: StreamDefs | Mapping[str, Any] | None = None,
    *,
    chunk_size_in_bytes: int = 32 << 20,
    layout: Layout = "2.x",
    dtype: npt.DTypeLike = np.float32,
    skip_sequence_ids: bool = False,
    max_errors: int = 0,
    strict: bool = False,
    progress: Progress | None = None,
) -> None:
    """Convert a text corpus to a binary corpus.

    Keys are lost: the keys of a binary corpus are the indices of its sequences.

    Args:
        source: The text.
        target: The binary file.
        streams: The streams to read, in the order in which to write them; None: all that `infer_streams` finds, which
            reads the text once more.
        chunk_size_in_bytes: As for `write_cbf`.
        layout: As for `write_cbf`.
        dtype: float32 or float64, of the values in the file.
        skip_sequence_ids: As for `CTFDeserializer`.
        max_errors: As for `CTFDeserializer`.
        strict: As for `CTFDeserializer`.
        progress: As for `write_cbf`.

    Raises:
        ConfigError: An option is invalid.
        CorpusError: The text has no sequence.
        FormatError: The text breaks its format, or the layout cannot express a sequence.
        OSError: A file cannot be read or written.

    Example:
        >>> import pathlib, tempfile
        >>> from cntkio import CBFDeserializer
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.ctf").write_text("7 |x 1 2 |y 3:1\\n7 |x 3 4\\n9 |x 5 6 |y 0:2\\n")
        >>> ctf_to_cbf(folder / "a.ctf", folder / "a.cbf")
        >>> CBFDeserializer(folder / "a.cbf").open().table.lengths
        array([2, 1], dtype=uint32)
    """
    definitions = infer_streams(source) if streams is None else StreamDefs(streams)
    corpus = CTFDeserializer(
        os.fspath(source),
        definitions,
        skip_sequence_ids=skip_sequence_ids,
        max_errors=max_errors,
        dtype=dtype,
        strict=strict,
    )
    write_cbf(
        target,
        corpus,
        chunk_size_in_bytes=chunk_size_in_bytes,
        layout=layout,
        order=list(definitions),
        progress=progress,
    )


def cbf_to_ctf(
    source: AnyPath,
    target: AnyPath,
    streams: StreamDefs | Mapping[str, Any] | None = None,
    *,
    progress: Progress | None = None,
) -> None:
    """Convert a binary corpus, of either layout, to text. Each line begins with the index of its sequence.

    Args:
        source: The binary file.
        target: The text.
        streams: New names, as for `CBFDeserializer`.
        progress: As for `write_cbf`.

    Raises:
        ConfigError: The text format cannot express a name.
        FormatError: The file breaks its format, or the text format cannot express a value or a sequence.
        OSError: A file cannot be read or written.

    Example:
        >>> import pathlib, tempfile
        >>> from cntkio import write_cbf
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> write_cbf(folder / "a.cbf", {"x": [[[1, 2.5]]]})
        >>> cbf_to_ctf(folder / "a.cbf", folder / "a.ctf")
        >>> (folder / "a.ctf").read_text()
        '0\\t|x 1 2.5\\n'
    """
    write_ctf(target, CBFDeserializer(os.fspath(source), StreamDefs(streams or {})), progress=progress)


def read_header_file(path: AnyPath) -> StreamDefs:
    """Read a header file of `ctf2bin.py`.

    It has a line for each stream: its name, its name in the text, `dense` or `sparse`, and its dimension, separated by
    white space.

    Args:
        path: The header file.

    Raises:
        FormatError: A line has a different form.
        OSError: The file cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "header")
        >>> _ = path.write_text("features F dense 784\\nwords W sparse 1323\\n")
        >>> read_header_file(path).words.dim
        1323
    """
    by_alias: dict[str, tuple[str, Any]] = {}
    for index, line in enumerate(all_bytes(path).decode("utf-8").splitlines()):
        fields = line.split()
        is_whole = len(fields) == 4 and fields[2].lower() in ("dense", "sparse") and fields[3].isdecimal()
        if not is_whole or int(fields[3]) < 1:
            raise FormatError(
                f"{line!r}; expected 'name alias dense dimension' or 'name alias sparse dimension'",
                path=path,
                line=index + 1,
            )
        name, alias, form, dim = fields
        stream = StreamDef(field=alias, shape=int(dim), is_sparse=form.lower() == "sparse")
        by_alias[alias] = (name, stream)
    streams = dict(by_alias.values())
    if len(streams) < len(by_alias) or not streams:
        what = "two lines have the same name" if streams else "no stream; expected a line for each stream"
        raise FormatError(what, path=path)
    return StreamDefs(streams)

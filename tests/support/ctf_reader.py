"""The fast reader of the CNTK text format, with the options and the results' form of the slow reader."""

from pathlib import Path
from typing import Any

import numpy as np
from cntkio import CTFDeserializer, StreamDef, StreamDefs, _core
from cntkio.formats.contract import Corpus
from cntkio.formats.ctf import bounds_of

from support.ctf_files import CtfFile

ERRORS = (
    "bad-number bad-index index-out-of-range missing-colon too-many-values junk pipe-without-name "
    "name-at-end empty-value-at-end line-without-sample missing-stream too-many-samples too-few-samples "
    "index-not-ascending bad-label bad-query "
    "high-byte-ends-value short-dense-sample stream-twice-on-a-line "
).split()


def deserializer(path: Path, file: CtfFile, **options: Any) -> CTFDeserializer:
    streams = {
        stream.name: StreamDef(
            field=stream.alias, shape=stream.dim, is_sparse=stream.is_sparse, defines_mb_size=stream.defines_mb_size
        )
        for stream in file.streams
    }
    given = {key: value for key, value in file.options.items() if key not in ("symbolic_ids", "double")}
    options.setdefault("dtype", np.float64 if file.options.get("double") else np.float32)
    return CTFDeserializer(str(path), StreamDefs(streams), **{**given, **options})


def in_order_of(file: CtfFile, columns: list[Any], corpus: Corpus) -> dict[str, Any]:
    by_name = {info.name: column for info, column in zip(corpus.streams, columns, strict=True)}
    return {stream.name: by_name[stream.name] for stream in file.streams}


def samples_of(chunk: _core.Chunk, corpus: Corpus, file: CtfFile) -> list[dict[str, Any]]:
    """Return the chunk's samples in the form of the slow reader."""
    count = chunk.num_sequences
    layout = [(info.stream_id, info.is_sparse, info.dtype == np.float64) for info in corpus.streams]
    chunk_of, numbers = np.zeros(count, np.uint32), np.arange(count, dtype=np.uint32)
    ((packed,),), _ = _core.pack([_core.PackRequest([chunk], chunk_of, numbers, layout, [0, len(numbers)])], 1)
    gathered = [packed.arrays(stream) for stream in range(len(layout))]
    columns = []
    for info, (values, offsets, sparse) in zip(corpus.streams, gathered, strict=True):
        if sparse is None:
            rows: list[Any] = values.reshape(-1, info.dim).tolist()
        else:
            bounds = sparse[0].tolist()
            pairs = list(zip(sparse[1].tolist(), values.tolist(), strict=True))
            rows = [pairs[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
        columns.append([rows[a:b] for a, b in zip(offsets.tolist(), offsets[1:].tolist(), strict=False)])
    return [in_order_of(file, [column[number] for column in columns], corpus) for number in range(count)]


def places_of(corpus: Corpus) -> list[tuple[int, int]]:
    """Return the first byte of each sequence, and the byte after it."""
    return [bounds_of(corpus.index, number) for number in range(corpus.table.num_sequences)]

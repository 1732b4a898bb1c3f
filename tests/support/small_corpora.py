"""A small corpus of each format in the current folder, with the same keys and about the same data."""

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    CTFDeserializer,
    HTKFeatureDeserializer,
    HTKMLFDeserializer,
    KaldiDeserializer,
    StreamDef,
    StreamDefs,
    SvmlightDeserializer,
    write_cbf,
    write_kaldi,
)
from cntkio.formats import htk

from support.user_formats import Named

KEYS = [3, 1, 4, 15, 9, 2, 6, 5, 35, 8, 97, 93]
XY = StreamDefs(x=StreamDef(field="x", shape=2), y=StreamDef(field="y", shape=5, is_sparse=True))
Z = StreamDefs(z=StreamDef(field="z", shape=1))


def lines(keys: Sequence[int]) -> str:
    return "".join(f"{key} |x {key} {step} |y {key % 5}:1\n" for key in keys for step in range(1 + key % 3))


def text(name: str = "a.ctf", keys: Sequence[int] = KEYS) -> CTFDeserializer:
    Path(name).write_text(lines(keys))
    return CTFDeserializer(name, XY, chunk_size_in_bytes=100)


def several_texts() -> CTFDeserializer:
    for number in range(3):
        Path(f"part{number}").write_text(lines(KEYS[4 * number : 4 * number + 4]))
    return CTFDeserializer("part*", XY, chunk_size_in_bytes=100)


def packed_text() -> CTFDeserializer:
    Path("a.gz").write_bytes(gzip.compress(lines(KEYS).encode()))
    return CTFDeserializer("a.gz", XY, chunk_size_in_bytes=100)


def remote_text() -> CTFDeserializer:
    fsspec = pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")
    fsspec.filesystem("memory").pipe("memory://random access/a", lines(KEYS).encode())
    return CTFDeserializer("memory://random access/a", XY, chunk_size_in_bytes=100)


def joined_texts() -> list[CTFDeserializer]:
    Path("z.ctf").write_text("".join(f"{key} |z {key}\n" for key in sorted(KEYS[1:])))
    return [text(), CTFDeserializer("z.ctf", Z, chunk_size_in_bytes=50)]


def binary(layout: Any) -> CBFDeserializer:
    Path("alone").write_text("".join(f"{key} |x {key} 2 |y {key % 5}:1\n" for key in KEYS))
    write_cbf("a.cbf", CTFDeserializer("alone", XY), chunk_size_in_bytes=100, layout=layout)
    return CBFDeserializer("a.cbf")


def svmlight() -> SvmlightDeserializer:
    Path("a.svm").write_text("".join(f"{key} 1:{key}.5 3:2\n" for key in KEYS))
    return SvmlightDeserializer("a.svm", zero_based=False, chunk_size_in_bytes=50)


def frames(key: int) -> Any:
    return np.arange(2 * (2 + key % 3), dtype=np.float32).reshape(-1, 2) + key


def features() -> HTKFeatureDeserializer:
    htk.write_archive("a.ark", "a.scp", [(f"u{key}", frames(key)) for key in KEYS])
    return HTKFeatureDeserializer(StreamDefs(F=StreamDef(scp="a.scp", shape=2)))


def speech() -> list[Any]:
    Path("states").write_text("one\ntwo\n")
    ends = ((key, len(frames(key))) for key in reversed(KEYS))
    entries = (f'"u{key}"\n0 100000 one\n100000 {end}00000 two\n.\n' for key, end in ends)
    Path("a.mlf").write_text("#!MLF!#\n" + "".join(entries))
    return [features(), HTKMLFDeserializer("states", StreamDefs(L=StreamDef(mlf="a.mlf", shape=2)))]


def kaldi() -> KaldiDeserializer:
    write_kaldi("a.kaldi", {"x": [frames(key) for key in KEYS]})
    return KaldiDeserializer("a.kaldi", chunk_size_in_bytes=60)


def table() -> Any:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    return pa.table({"key": KEYS, "x": [[key, 2.5] for key in KEYS], "y": [float(key) for key in KEYS]})


def tables(form: str) -> Any:
    table_in_memory = table()
    from cntkio.arrow import ArrowDeserializer

    if form == "parquet":
        from pyarrow import parquet

        parquet.write_table(table_in_memory, "a.parquet", row_group_size=5)
    elif form == "arrow":
        from pyarrow import feather

        feather.write_feather(table_in_memory, "a.arrow", chunksize=5)
    return ArrowDeserializer(table_in_memory if form == "memory" else f"a.{form}", shapes={"x": 2})


FORMATS: dict[str, Callable[[], Any]] = {
    "text": text,
    "texts": several_texts,
    "packed text": packed_text,
    "remote text": remote_text,
    "joined texts": joined_texts,
    "binary": lambda: binary("2.x"),
    "documented binary": lambda: binary("documented"),
    "svmlight": svmlight,
    "features": features,
    "features and labels": speech,
    "kaldi": kaldi,
    "parquet": lambda: tables("parquet"),
    "arrow": lambda: tables("arrow"),
    "table in memory": lambda: tables("memory"),
    "format in Python": Named,
}

"""The check is empty exactly if a source reads the corpora to the end without an error, a warning or a loss."""

import gzip
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    CntkIoError,
    CTFDeserializer,
    HTKFeatureDeserializer,
    HTKMLFBinaryDeserializer,
    HTKMLFDeserializer,
    MinibatchSource,
    StreamDef,
    StreamDefs,
)
from cntkio.survey.rules import RULES

NUM_PAIRS = int(os.environ.get("CNTKIO_CHECKED_PAIRS", "150"))
OF_CONTENTS = set(list(RULES)[list(RULES).index("unequal-lengths") :]) | {"ids-not-consecutive", "mixed-line-ends"}
Random = np.random.Generator
Made = list[Any]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def text(random: Random, path: str, stream: str, keys: list[int]) -> Made:
    lines = []
    for key in keys:
        for _ in range(random.integers(1, 4)):
            values = " ".join(f"{value:.3f}" for value in random.normal(size=3))
            lines.append(f"{key} |{stream} {values} |{stream}s {random.integers(9)}:1 {random.integers(9)}:2")
    Path(path).write_text("\n".join(lines) + "\n")
    streams = StreamDefs(
        {
            stream: StreamDef(field=stream, shape=3),
            f"{stream}s": StreamDef(field=f"{stream}s", shape=9, is_sparse=True),
        }
    )
    return [CTFDeserializer(path, streams, max_errors=-1)]


def one_text(random: Random) -> Made:
    return text(random, "a.ctf", "x", list(range(random.integers(2, 12))))


def two_texts(random: Random) -> Made:
    keys = list(range(6))
    return text(random, "a.ctf", "x", keys) + text(random, "b.ctf", "y", random.permutation(keys).tolist())


def binary(random: Random) -> Made:
    text(random, "c.ctf", "x", list(range(random.integers(2, 12))))
    layout = "2.x"
    if random.integers(2):
        layout = "documented"
        lines = [line.rpartition("|xs")[0] for line in Path("c.ctf").read_text().splitlines()]
        Path("c.ctf").write_text("".join(f"{line.partition(' ')[2]}\n" for line in lines))
    cntkio.convert.ctf_to_cbf("c.ctf", "a.cbf", chunk_size_in_bytes=200, layout=layout)
    Path("c.ctf").unlink()
    return [CBFDeserializer("a.cbf")]


def compressed(random: Random) -> Made:
    (plain,) = one_text(random)
    Path("a.ctf.gz").write_bytes(gzip.compress(Path("a.ctf").read_bytes()))
    Path("a.ctf").unlink()
    return [CTFDeserializer("a.ctf.gz", plain.streams, max_errors=-1)]


def table(random: Random) -> Made:
    arrow = pytest.importorskip("pyarrow", reason="PyArrow is not installed")
    num_rows = int(random.integers(2, 12))
    columns = {
        "x": arrow.array(random.normal(size=num_rows)),
        "n": arrow.array(random.integers(9, size=num_rows)),
        "v": arrow.array(random.normal(size=(num_rows, 3)).tolist()),
    }
    name = list(columns)[random.integers(3)]
    values: list[Any] = columns[name].to_pylist()
    others = [None, values[-1], float("nan") if name == "x" else values[0], [None, 1.0, 2.0] if name == "v" else None]
    values[random.integers(num_rows)] = others[random.integers(4)]
    columns[name] = arrow.array(values)
    path = ("a.parquet", "a.arrow")[random.integers(2)]
    if path == "a.parquet":
        from pyarrow import parquet

        parquet.write_table(arrow.table(columns), path)
    else:
        with arrow.ipc.new_file(path, arrow.table(columns).schema) as file:
            file.write_table(arrow.table(columns))
    return [path]


def features(random: Random) -> Made:
    utterances = [
        (f"u{index}", random.normal(size=(random.integers(2, 6), 3)).astype(np.float32)) for index in range(6)
    ]
    if random.integers(2):
        cntkio.write_htk_archive("a.ark", "a.scp", utterances)
    else:
        for name, frames in utterances:
            cntkio.write_htk_features(f"{name}.mfc", frames)
        Path("a.scp").write_text("".join(f"{name}={name}.mfc[0,{len(frames) - 1}]\n" for name, frames in utterances))
    lengths = [len(frames) for _, frames in utterances]
    entries = "".join(
        f'"*/u{index}.lab"\n0 100000 a\n100000 {length * 100000} b\n.\n' for index, length in enumerate(lengths)
    )
    Path("a.mlf").write_text(f"#!MLF!#\n{entries}")
    Path("names").write_text("a\nb\n")
    return [HTKFeatureDeserializer(StreamDefs(f=StreamDef(scp="a.scp", shape=3)))]


def speech(random: Random) -> Made:
    return [*features(random), HTKMLFDeserializer("names", StreamDefs(y=StreamDef(mlf="a.mlf", shape=2)))]


def binary_labels(random: Random) -> Made:
    found = features(random)
    entries = Path("a.mlf").read_text().split("\n.\n")[:-1]
    lengths = [int(entry.split()[-2]) // 100_000 for entry in entries]
    cntkio.write_binary_mlf("a.bmlf", [(f"u{index}", np.arange(length) % 2) for index, length in enumerate(lengths)])
    return [*found, HTKMLFBinaryDeserializer(StreamDefs(y=StreamDef(mlf="a.bmlf", shape=2)))]


def nothing(random: Random, content: bytes) -> bytes:
    return content


def cut(random: Random, content: bytes) -> bytes:
    return content[: random.integers(len(content))]


def flipped(random: Random, content: bytes) -> bytes:
    at = random.integers(len(content))
    return content[:at] + bytes([content[at] ^ 1 << random.integers(8)]) + content[at + 1 :]


def without_a_line(random: Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    del lines[random.integers(len(lines))]
    return b"".join(lines)


def repeated_line(random: Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    lines.insert(random.integers(len(lines) + 1), lines[random.integers(len(lines))])
    return b"".join(lines)


def other_bytes(random: Random, content: bytes) -> bytes:
    at = random.integers(len(content))
    junk = [b",", b"\xe2\x88\x92", b"\t", b"\r", b"nan", b"|", b"9", b'"', b"\xef\xbb\xbf", b"[", b"-"]
    return content[:at] + junk[random.integers(len(junk))] + content[at + random.integers(2) :]


def swapped(random: Random, content: bytes) -> bytes:
    at = 4 * random.integers(max(len(content) // 4, 1))
    return content[:at] + content[at : at + 4][::-1] + content[at + 4 :]


CORPORA: list[Callable[[Random], Made]] = [
    one_text, two_texts, binary, features, speech, compressed, table, binary_labels
]  # fmt: skip
DAMAGES: list[Callable[[Random, bytes], bytes]] = [
    nothing, cut, flipped, without_a_line, repeated_line, other_bytes, other_bytes, swapped,
]  # fmt: skip


def said(made: Made, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Read a source of the deserializers to the end, and return its error, its warnings and its losses."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "cntkio"):
        try:
            if isinstance(made[0], str):
                cntkio.convert.convert_file(made[0], "converted.cbf")
                return [record.getMessage() for record in caplog.records]
            source = MinibatchSource(made, max_sweeps=1, randomize=False)
            for _ in source.minibatches(64):
                pass
            errors = [str(kinds) for kinds in (source.error_counts, source.warning_counts) if kinds]
        except (CntkIoError, OSError) as error:
            return [str(error)]
    return [*errors, *(record.getMessage() for record in caplog.records)]


def damaged(seed: int) -> Iterator[Made]:
    """Make random corpora, and damage one of their files; yield the deserializers if they can still be created."""
    random = np.random.default_rng(seed)
    made = CORPORA[seed % len(CORPORA)](random)
    paths = sorted(path for path in Path().iterdir() if path.is_file())
    path = paths[random.integers(len(paths))]
    if random.integers(12) == 0 and not isinstance(made[0], str):  # a missing file is an error of the call
        path.unlink()
    else:
        path.write_bytes(DAMAGES[random.integers(len(DAMAGES))](random, path.read_bytes()))
    yield made


@pytest.mark.parametrize("seed", range(NUM_PAIRS))
def test_check_is_empty_exactly_if_a_source_is_silent(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    for made in damaged(seed):
        findings = cntkio.check(*made, join=len(made) > 1)
        complaints = said(made, caplog)
        if complaints:
            assert findings, complaints
        else:
            assert not findings.counts.keys() - OF_CONTENTS, findings

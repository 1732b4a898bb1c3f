"""The check is empty exactly if a source reads the corpora to the end without an error, a warning or a loss."""

import json
import logging
from argparse import Namespace
from collections.abc import Callable, Sequence
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
    KaldiDeserializer,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    SvmlightDeserializer,
    write_kaldi,
)
from cntkio.cli.check import OUTPUT_FORMATS, print_report
from cntkio.formats import written_files
from cntkio.survey.rules import RULES
from support.rounds import step

NUM_PAIRS = 170 if step(2) == 2 else 2040
OF_CONTENTS = set(list(RULES)[list(RULES).index("unequal-lengths") :]) | {"ids-not-consecutive", "mixed-line-ends"}
Random = np.random.Generator
Made = list[Any]


pytestmark = pytest.mark.usefixtures("current_folder")


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
    path = ("a.ctf.gz", "a.ctf.zst")[random.integers(2)]
    content = Path("a.ctf").read_bytes()
    with (
        Path(path).open("wb") as file,
        written_files.compressed(file, "zstd" if path.endswith("zst") else "gzip") as sink,
    ):
        sink.write(memoryview(content))
    Path("a.ctf").unlink()
    return [CTFDeserializer(path, plain.streams, max_errors=-1)]


def svmlight(random: Random, num_lines: int | None = None) -> Made:
    def line() -> str:
        indices = np.flatnonzero(random.integers(2, size=9)) + 1
        return " ".join([str(random.integers(-1, 2)), *(f"{index}:{random.normal():.3f}" for index in indices)])

    count = num_lines or int(random.integers(2, 12))
    Path("a.svm").write_text("".join(f"{line()}\n" for _ in range(count)))
    return [SvmlightDeserializer("a.svm", max_errors=-1, num_features=9, zero_based=False)]


def svmlight_with_a_text(random: Random) -> Made:
    return svmlight(random, 6) + text(random, "b.ctf", "y", random.permutation(6).tolist())


def archive(random: Random, *, is_list: bool = False) -> Made:
    """Write matrices of Kaldi: one archive for each, or one for all."""
    is_text, together = bool(random.integers(2)), bool(random.integers(2))
    lines = []
    for index in range(6):
        frames = random.normal(size=(random.integers(2, 6), 3)).astype(np.float32)
        write_kaldi("u.ark", {"f": [frames]}, text=is_text)
        path, begin = Path("f.ark" if together or not is_list else f"u{index}.ark"), f"u{index}".encode()
        before = path.read_bytes() if path.exists() else b""
        path.write_bytes(before + begin + Path("u.ark").read_bytes()[1:])
        lines.append(f"u{index} {path}:{len(before) + len(begin) + 1}\n")
    Path("u.ark").unlink()
    if is_list:
        Path("f.scp").write_text("".join(lines))
    return [KaldiDeserializer("f.scp" if is_list else "f.ark")]


def list_of_archives(random: Random) -> Made:
    return archive(random, is_list=True)


def alignments(random: Random) -> Made:
    made = archive(random, is_list=bool(random.integers(2)))
    with MinibatchSource(made, max_sweeps=1, randomize=False) as source:
        keys = [(key, length) for minibatch in source.minibatches(1) for key, length in _lengths(minibatch)]
    Path("a.ark").write_text("".join(f"{key} {' '.join(map(str, np.arange(length) % 2))}\n" for key, length in keys))
    return [*made, KaldiDeserializer("a.ark", shape=2)]


def _lengths(minibatch: cntkio.Minibatch) -> list[tuple[str, int]]:
    return [(minibatch.keys_of_sequences[0], minibatch["features"].num_samples)]


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
        has_ranges = bool(random.integers(2))
        for name, frames in utterances:
            cntkio.write_htk_features(f"{name}.mfc", frames)
        ranges = [f"[0,{len(frames) - 1}]" if has_ranges else "" for _, frames in utterances]
        Path("a.scp").write_text("".join(f"u{at}=u{at}.mfc{each}\n" for at, each in enumerate(ranges)))
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


def without_times(random: Random, content: bytes) -> bytes:
    return content.replace(b"0 100000 a", b"a", int(random.integers(1, 7)))


def swapped(random: Random, content: bytes) -> bytes:
    at = 4 * random.integers(max(len(content) // 4, 1))
    return content[:at] + content[at : at + 4][::-1] + content[at + 4 :]


CORPORA: list[Callable[[Random], Made]] = [
    one_text, two_texts, binary, features, speech, compressed, table, binary_labels, svmlight, svmlight_with_a_text,
    archive, list_of_archives, alignments,
]  # fmt: skip
DAMAGES: list[Callable[[Random, bytes], bytes]] = [
    nothing, cut, flipped, without_a_line, repeated_line, other_bytes, other_bytes, swapped, without_times,
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


def damaged(seed: int) -> tuple[Made, int]:
    """Make random corpora, and damage one of their files or remove some; return their deserializers, and how many."""
    random = np.random.default_rng(seed)
    made = CORPORA[seed % len(CORPORA)](random)
    paths = sorted(path for path in Path().iterdir() if path.is_file())
    if random.integers(12) == 0 and not isinstance(made[0], str):  # a missing file is an error of the call
        removed = random.permutation(len(paths))[: random.integers(1, 3)].tolist()
        for index in removed:
            paths[index].unlink()
        return made, len(removed)
    path = paths[random.integers(len(paths))]
    path.write_bytes(DAMAGES[random.integers(len(DAMAGES))](random, path.read_bytes()))
    return made, 0


@pytest.mark.parametrize("seed", range(NUM_PAIRS))
def test_check_is_empty_exactly_if_a_source_is_silent(
    seed: int, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    made, _ = damaged(seed)
    findings = cntkio.check(*made, join=len(made) > 1)
    complaints = said(made, caplog)
    if complaints:
        assert findings, complaints
    else:
        assert not findings.counts.keys() - OF_CONTENTS, findings
    for form in OUTPUT_FORMATS:
        print_report(Namespace(json=form == "json", output_format=form, statistics=False), findings)
        output = capsys.readouterr().out
        assert all(code in output for code in findings.counts), form
        assert form != "json" or json.loads(output)["counts"] == dict(findings.counts)


def missing(paths: Sequence[str]) -> None:
    for path in paths:
        Path(path).unlink()


def test_every_missing_or_broken_file_of_a_list_without_ranges_is_found() -> None:
    names = ("anna", "bob", "carl", "dora", "eve", "finn")
    frames = np.random.default_rng(1).normal(size=(6, 5, 3)).astype(np.float32)
    for name, values in zip(names, frames, strict=True):
        cntkio.write_htk_features(f"{name}.mfc", values)
    Path("a.scp").write_text("\n\n".join(f"{name}={name}.mfc" for name in names))
    missing(["anna.mfc", "carl.mfc", "dora.mfc"])
    Path("eve.mfc").write_bytes(Path("eve.mfc").read_bytes()[:-4])
    findings = cntkio.check("a.scp")
    assert findings.counts == {"missing-file": 3, "broken-file": 1}, findings
    assert [found.num_cases for found in findings if found.code == "missing-file"] == [3], findings
    assert all(f"a.scp, line {line}" in str([*findings]) for line in (1, 5, 7, 9))
    missing(["bob.mfc", "eve.mfc", "finn.mfc"])
    assert cntkio.check("a.scp").counts == {"missing-file": 6}


def test_every_object_of_a_kaldi_list_is_checked() -> None:
    frames = np.random.default_rng(1).normal(size=(6, 5, 3)).astype(np.float32)
    for number, values in enumerate(frames):
        write_kaldi(f"{number}.ark", {"f": [values]}, scp=f"{number}.scp")
    lines = [Path(f"{number}.scp").read_text().replace("0 ", f"u{number} ", 1).rstrip() for number in range(6)]
    Path("a.scp").write_text("\n".join([*lines[:4], f"{lines[4]}[0:9]", lines[5]]))
    missing(["0.ark", "2.ark"])
    Path("5.ark").write_bytes(Path("5.ark").read_bytes()[:-4])
    findings = cntkio.check("a.scp")
    assert findings.counts == {"missing-file": 2, "bad-range": 1, "broken-file": 1}, findings
    assert findings.num_sequences == 2
    assert all(f"a.scp, line {line}" in str([*findings]) for line in (1, 3, 5, 6))

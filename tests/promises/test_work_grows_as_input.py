"""The work of each parser and of each verb grows as its input does: twice the input takes at most 2.3 times as long.

Processor time is compared, without the time that the smallest input takes: of several runs the shortest, or the median
of their ratios. A busy machine makes single runs slow, and one fast run of an input makes the other input look slow.
"""

import gc
import itertools
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cntkio.cli import main
from cntkio.formats import htk
from support.rounds import rounds

MOST = 2.3
RUNS, MOST_RUNS = 2, 12  # a busy machine makes some runs slow, so more runs decide before a test fails

Writer = Callable[[Path, int], list[Path]]
LABELS = "labels.mlf"  # if an input has this file, its features are read with it


def of_lines(name: str, line: Callable[[int, int], str], before: str = "") -> Writer:
    """Return a writer of a file with a text for each number."""

    def write(folder: Path, count: int) -> list[Path]:
        path = folder / name
        path.write_text(before + "".join(line(index, count) for index in range(count)))
        return [path]

    return write


def ranges(folder: Path, count: int, *, is_text: bool) -> list[Path]:
    """Write a Kaldi list of as many ranges as the matrix has rows."""
    archive = folder / "matrix.ark"
    values = np.arange(2 * count, dtype="<f4").reshape(count, 2)
    rows = "".join(f" {first} {second}\n" for first, second in values.astype(int).tolist())
    header = b"u \0BFM \4" + struct.pack("<ibi", count, 4, 2)
    archive.write_bytes(f"u [\n{rows} ]\n".encode() if is_text else header + values.tobytes())
    return of_lines("a.scp", lambda index, _: f"v{index} {archive}:2[{index}:{index}]\n")(folder, count)


def features(folder: Path, count: int, *, are_missing: bool) -> list[Path]:
    """Write a list of HTK's features, with every second file missing or with none."""
    (folder / "all.mfc").write_bytes(htk.encode_features(np.arange(4 * count, dtype=np.float32).reshape(-1, 2)))
    missing = (lambda index: f"v{index}={folder / f'{index}.mfc'}[0,1]\n") if are_missing else (lambda index: "")
    utterance = f"={folder / 'all.mfc'}["
    return of_lines("a.scp", lambda n, _: f"u{n}{utterance}{2 * n},{2 * n + 1}]\n{missing(n)}")(folder, count)


def features_with_labels(folder: Path, count: int) -> list[Path]:
    """Write a list of HTK's features, and their labels."""
    of_lines(LABELS, lambda n, _: f'"*/u{n}.lab"\n0 200000 a\n.\n', before="#!MLF!#\n")(folder, count)
    return features(folder, count, are_missing=False)


def files(folder: Path, count: int, *, are_equal: bool = False) -> list[Path]:
    values = " ".join(map(str, range(13)))
    for index in range(count):
        last = 0 if are_equal else index
        (folder / f"{index}.ctf").write_text(f"{2 * index} |x {values} {last}\n{2 * index + 1} |x {values} -1\n")
    return [folder / f"{index}.ctf" for index in range(count)]


def pattern(folder: Path, count: int) -> list[Path]:
    files(folder, count)
    return [folder / "*.ctf"]


def converted(to: str) -> Writer:
    """Return a writer of a corpus in a binary format."""

    def write(folder: Path, count: int) -> list[Path]:
        lines = of_lines("a.ctf", lambda index, _: f"{index} |x {index} {index * 7 % 13} |y {index % 5}:1\n")
        assert main(["convert", "-q", *map(str, lines(folder, count)), str(folder / to)]) == 0
        return [folder / to]

    return write


def columns(to: str) -> Writer:
    """Return a writer of a corpus with many streams."""

    def write(folder: Path, count: int) -> list[Path]:
        (folder / "a.ctf").write_text((" ".join(f"|c{index} {index}" for index in range(count)) + "\n") * 3)
        assert main(["convert", "-q", str(folder / "a.ctf"), str(folder / to)]) == 0
        return [folder / to]

    return write


UTTERANCE = '"*/u{0}.lab"\n0 200000 a\n200000 400000 b{1}\n.\n'
INPUTS: dict[str, tuple[Writer, int]] = {
    "names": (of_lines("a.ctf", lambda index, count: f"|n{index % (count // 8 or 1)} 1\n"), 1000),
    "names of a line": (of_lines("a.ctf", lambda index, _: f"|n{index} 1 "), 200),
    "names that occur once": (of_lines("a.ctf", lambda index, _: f"|x 1 |n{index} 1\n"), 200),
    "bad numbers": (of_lines("a.ctf", lambda index, _: f"|x {index} |y a{index}\n"), 200),
    "gaps": (of_lines("a.ctf", lambda index, _: "|x 1" + " |y 1" * (index % 2) + "\n"), 8000),
    "junk": (of_lines("a.ctf", lambda _, __: "junk\n|x 1\n"), 200),
    "pipes": (of_lines("a.ctf", lambda _, __: "| |x 1\n"), 200),
    "samples of a line": (of_lines("a.ctf", lambda _, __: "|x 1 "), 300),
    "values of a line": (of_lines("a.ctf", lambda index, _: f" {index}", before="|x"), 20_000),
    "ids": (of_lines("a.ctf", lambda index, _: f"{index} |x {index} {index * 7 % 11}\n"), 20_000),
    "ids in disorder": (of_lines("a.ctf", lambda index, count: f"{index * 7919 % (8 * count)} |x {index}\n"), 20_000),
    "repeated ids": (of_lines("a.ctf", lambda index, count: f"{index % (count // 2 or 1)} |x {index}\n"), 8000),
    "equal sequences": (of_lines("a.ctf", lambda _, __: "|x" + " 1 2 3 4" * 4 + "\n"), 8000),
    "words of ids": (of_lines("a.ctf", lambda index, _: f"|x {index}:1 |# w{index}\n"), 1000),
    "comments": (of_lines("a.ctf", lambda index, _: f"|# {index}\n", before="|x 1\n"), 20_000),
    "a sequence": (of_lines("a.ctf", lambda index, _: f"1 |x {index}\n"), 20_000),
    "svmlight": (of_lines("a.svm", lambda index, _: f"{index % 3} 1:{index} {index + 5}:2\n"), 20_000),
    "bad features": (of_lines("a.svm", lambda index, _: f"{index % 3} 1:{index} 2:x\n"), 200),
    "columns of words": (of_lines("a.csv", lambda index, _: f"w{index} {index % 9}\n"), 8000),
    "Kaldi matrices": (of_lines("a.ark", lambda index, _: f"u{index} [\n 1 {index}\n 3 4 ]\n"), 8000),
    "rows of a Kaldi matrix": (of_lines("a.ark", lambda index, _: f" 1 {index}\n", before="u [\n"), 8000),
    "Kaldi alignments": (of_lines("a.ali", lambda index, _: f"u{index} 1 2 {index % 9}\n"), 8000),
    "Kaldi map": (of_lines("utt2spk", lambda index, _: f"u{index} s{index}\n"), 8000),
    "ranges of a Kaldi text": (lambda folder, count: ranges(folder, count, is_text=True), 2000),
    "ranges of a Kaldi matrix": (lambda folder, count: ranges(folder, count, is_text=False), 8000),
    "entries": (of_lines("a.mlf", lambda index, _: UTTERANCE.format(index, index % 9), before="#!MLF!#\n"), 4000),
    "labels": (of_lines("a.mlf", lambda index, _: UTTERANCE.format(index, index), before="#!MLF!#\n"), 4000),
    "rows of an entry": (
        of_lines("a.mlf", lambda n, _: f"{n}00000 {n + 1}00000 s{n % 9}\n", before='#!MLF!#\n"*/u.lab"\n'),
        8000,
    ),
    "bad entries": (
        of_lines(
            "a.mlf", lambda n, _: UTTERANCE.format(n, 1) + f'"*/v{n}.lab"\n100000 200000 a\n.\n', before="#!MLF!#\n"
        ),
        800,
    ),
    "features": (lambda folder, count: features(folder, count, are_missing=False), 4000),
    "labels of features": (features_with_labels, 4000),
    "missing features": (lambda folder, count: features(folder, count, are_missing=True), 100),
    "files": (files, 40),
    "many files": (files, 200),
    "files of a pattern": (pattern, 20),
    "equal files": (lambda folder, count: files(folder, count, are_equal=True), 20),
    "rows of CBF": (converted("a.cbf"), 20_000),
    "rows of Parquet": (converted("a.parquet"), 20_000),
    "columns of Arrow": (columns("a.arrow"), 100),
    "sections": (of_lines("a.cntk", lambda index, _: f"S{index} = [ a = {index} ]\n"), 500),
    "keys": (of_lines("a.cntk", lambda index, _: f"k{index} = {index}\n", before="a = 1\n"), 2000),
    "variables": (of_lines("a.cntk", lambda index, _: f"a{index} = $x$\n", before="x = 1\n"), 500),
    "comments of a configuration": (of_lines("a.cntk", lambda index, _: f"# {index}\n", before="a = 1\n"), 8000),
}
VERBS: dict[str, list[str]] = {
    "check": ["check"], "inspect": ["inspect"], "head": ["head", "-n", "100000000"], "diff": ["diff"],
    "convert": ["convert", "-q", "--to", "cbf"], "vocab": ["vocab"], "config": ["config"], "plan": ["plan"],
    "merge": ["convert", "-q", "--to", "ctf", "--merge", "--renumber"],
}  # fmt: skip
QUICK = {
    ("check", "names"), ("check", "bad numbers"), ("check", "gaps"), ("check", "ranges of a Kaldi text"),
    ("check", "bad entries"), ("check", "missing features"), ("check", "files"), ("inspect", "names of a line"),
    ("convert", "ids"), ("head", "words of ids"), ("config", "sections"), ("diff", "repeated ids"),
}  # fmt: skip
"""The cases of `make test`: cases that were quadratic, and one of each verb. `make test-all` has all cases."""
ALL = set(itertools.product(VERBS, INPUTS))


def seconds(arguments: list[str]) -> float:
    """Return the processor time of a verb, without collections of what other tests have left."""
    gc.collect()
    gc.disable()
    try:
        begin = time.process_time()
        main(arguments)
        return time.process_time() - begin
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("verb", "name"), sorted(ALL if rounds(100) >= 100 else QUICK), ids=lambda text: text.replace(" ", "-")
)
def test_twice_the_input_takes_at_most_twice_the_time(verb: str, name: str, tmp_path: Path) -> None:
    write, count = INPUTS[name]
    calls = []
    for size in (1, count, 2 * count):
        folder = tmp_path / str(size)
        folder.mkdir()
        paths = [str(path) for path in write(folder, size)]
        others = {
            "diff": paths[:1],
            "convert": [str(folder / "written.cbf")],
            "merge": [*(paths[1:] or paths), str(folder / "written.ctf")],
        }
        has_labels = (folder / LABELS).exists() and verb not in ("config", "vocab")
        labels = ["--labels", str(folder / LABELS)] if has_labels else []
        calls.append([*VERBS[verb], *(paths if verb == "check" else paths[:1]), *others.get(verb, []), *labels])
    runs = np.empty((0, len(calls)))
    while len(runs) < MOST_RUNS:
        runs = np.vstack([runs, [seconds(call) for call in calls]])
        fixed, single, double = runs.min(axis=0)
        median = np.median((runs[:, 2] - fixed) / np.maximum(runs[:, 1] - fixed, 1e-6))
        # A verb that refuses the input, or that reads its beginning only, takes no longer.
        if len(runs) >= RUNS and (double - fixed <= max(MOST * (single - fixed), fixed) or median <= MOST):
            return
    pytest.fail(
        f"{fixed:.4f} s, then {single:.4f} s for {count} and {double:.4f} s for twice as many, median {median:.2f}"
    )

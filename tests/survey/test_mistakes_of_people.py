"""The check finds mistakes that people make, with the place, and its help leads to a sound file."""

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import cntkio
import numpy as np
import pytest

Edit = Callable[[bytes], bytes]
LINE = 21  # the line that has a mistake in it, except where the mistake is in all lines


pytestmark = pytest.mark.usefixtures("current_folder")


def sound() -> bytes:
    """Return a text: ten numbers, a class as one-hot values, and one of ten words for each sequence."""
    random = np.random.default_rng(3)
    lines = []
    for index in range(60):
        numbers = " ".join(f"{value:.4f}" for value in random.normal(size=10))
        label = " ".join("1" if index % 3 == each else "0" for each in range(3))
        lines.append(f"{index} |x {numbers} |y {label} |w {index % 10}:1\n")
    return "".join(lines).encode()


def on_line(pattern: str, replacement: str, line: int = LINE) -> Edit:
    """Return a function that replaces a pattern in one line."""

    def edit(text: bytes) -> bytes:
        lines = text.splitlines(keepends=True)
        changed = re.sub(pattern.encode(), replacement.encode(), lines[line - 1], count=1)
        assert changed != lines[line - 1]
        return b"".join([*lines[: line - 1], changed, *lines[line:]])

    return edit


def everywhere(pattern: str, replacement: str) -> Edit:
    return lambda text: re.sub(pattern.encode(), replacement.encode(), text)


def as_written(finding: cntkio.Finding) -> Edit:
    """Return the edit that a help such as "write 0.5 for .5" names."""
    found = re.match(r"write (?P<new>.+) for (?P<old>[^,]+(,\d+)*)|write \|(?P<word>\S+) if", finding.help)
    assert found and finding.line
    new, old = found["new"] or f"|{found['word']}", found["old"] or found["word"]
    return on_line(re.escape(old), new, finding.line)


def anew(_: bytes) -> bytes:
    return sound()


LITERALLY = None  # apply `as_written`
# The mistake, what makes it, the code, the line and a part of the help of the finding, and the edit that it asks for.
MISTAKES: dict[str, tuple[Edit, str, int | None, str, Edit | None]] = {
    "a value too many": (
        on_line(r" \|y", " 5 |y"), "too-many-values", LINE, "remove the values", on_line(r" 5 \|y", " |y"),
    ),
    "a value too few": (
        on_line(r" \S+ \|y", " |y"), "too-few-values", LINE, "add the missing values", on_line(r" \|y", " 0.123 |y"),
    ),
    "a decimal comma": (on_line(r"\.", ","), "bad-number", LINE, "write ", LITERALLY),
    "decimal commas": (
        everywhere(r"(\d)\.(\d)", r"\1,\2"), "bad-number", 1, "write ", everywhere(r"(\d),(\d)", r"\1.\2"),
    ),
    "a number without a zero": (on_line(r"\|x \S+", "|x .5"), "bad-number", LINE, "write 0.5 for .5", LITERALLY),
    "a Unicode minus": (on_line(r"\|x \S+", "|x \u22125.0"), "stray-text", LINE, "write -5.0", LITERALLY),
    "a quoted number": (on_line(r"\|x (\S+)", r'|x "\1"'), "bad-number", LINE, "write ", LITERALLY),
    "a missing value": (
        on_line(r"\|x \S+", "|x NA"), "bad-number", LINE, "write a number for NA", on_line("NA", "0.25"),
    ),
    "nan": (on_line(r"\|x \S+", "|x nan"), "bad-number", LINE, "write a number for nan", on_line("nan", "0.25")),
    "a word for a number": (on_line(r"\|x \S+", "|x high"), "bad-number", LINE, "write |high", on_line("high", "0.75")),
    "letter O": (on_line(r"\|x \S+", "|x 1O.5"), "bad-number", LINE, "write ", on_line("1O.5", "10.5")),
    "a hexadecimal number": (on_line(r"\|x \S+", "|x 0x1F"), "bad-number", LINE, "write ", on_line("0x1F", "31")),
    "a thousands separator": (on_line(r"\|x \S+", "|x 1'000"), "bad-number", LINE, "write ", LITERALLY),
    "a semicolon": (on_line(r"(\|x \S+)", r"\1;"), "bad-number", LINE, "write ", LITERALLY),
    "an index for a dense stream": (
        on_line(r"\|x \S+", "|x 0:1.5"), "bad-number", LINE, "sparse", on_line("0:1.5", "1.5"),
    ),
    "an index without a value": (
        on_line(r"\|w \d+:1", "|w 7"), "bad-index", LINE, "index:value", on_line(r"\|w 7", "|w 7:1"),
    ),
    "an equals sign": (on_line(r"\|w (\d+):1", r"|w \1=1"), "bad-index", LINE, "write 0:1 for 0=1", LITERALLY),
    "a word for an index": (on_line(r"\|w \d+", "|w cat"), "bad-index", LINE, "index:value", on_line("cat", "4")),
    "a space after the colon": (on_line(r"\|w (\d+):", r"|w \1: "), "bad-number", LINE, "write 0:1", LITERALLY),
    "a negative index": (on_line(r"\|w \d+", "|w -1"), "bad-index", LINE, "count from 0", on_line("-1:", "1:")),
    "an outlier": (
        on_line(r"\|w \d+", "|w 9999999"), "index-outlier", LINE, "correct the index", on_line("9999999", "9"),
    ),
    "indices from 1": (
        everywhere(r"\|w 0:1", "|w 10:1"), "one-based-indices", 1, "subtract 1",
        lambda text: re.sub(rb"(?<=w )\d+", lambda found: b"%d" % (int(found[0]) - 1), text),
    ),
    "two ones": (on_line(r"\|y . . .", "|y 1 1 0"), "not-one-hot", LINE, "single 1", on_line("1 1 0", "1 0 0")),
    "no label": (on_line(r"\|y . . .", "|y 0 0 0"), "not-one-hot", LINE, "single 1", on_line("0 0 0", "1 0 0")),
    "infinity": (on_line(r"\|x \S+", "|x 1e99"), "not-finite", LINE, "correct or remove", on_line("1e99", "1e9")),
    "a missing stream": (
        on_line(r"\|w \S+", ""), "missing-sample", LINE, "add the sample", on_line(r"\n", " |w 3:1\n"),
    ),
    "a stream twice": (
        on_line(r"(\|w \S+)", r"\1 \1"), "extra-sample", LINE, "line of its own", on_line(r"(\|w \S+) \|w \S+", r"\1"),
    ),
    "a misspelled name": (
        on_line(r"\|w", "|v"), "missing-sample", LINE, "correct the name to w", on_line(r"\|v", "|w"),
    ),
    "a pipe alone": (on_line(r"\|y", "| |y"), "stray-text", LINE, "pipe and the name", on_line(r"\| \|y", "|y")),
    "a colon for a pipe": (on_line(r"\|x", ":x"), "stray-text", LINE, "pipe and the name", on_line(":x", "|x")),
    "a comment without a pipe": (on_line(r"$", " #good"), "bad-index", LINE, "write |#good", LITERALLY),
    "an umlaut in Windows-1252": (
        lambda text: text.replace(b"20 |x", b"20 K\xf6ln |x"), "stray-text", LINE, "pipe",
        lambda text: text.replace(b"K\xf6ln", b"|# K\xf6ln"),
    ),
    "an empty line": (on_line(r"^", "\n"), "", None, "", LITERALLY),
    "a repeated id": (on_line(r"^\d+", "3"), "repeated-id", LINE, "its own id", on_line(r"^3 ", "20 ")),
    "a line that is lost": (on_line(r".*\n", ""), "ids-not-consecutive", LINE, "part of the corpus", anew),
    "another line end": (on_line(r"\n", "\r\n"), "mixed-line-ends", LINE, "dos2unix", everywhere(r"\r\n", "\n")),
    "CR LF in all lines": (everywhere(r"\n", "\r\n"), "", None, "", LITERALLY),
    "a byte order mark": (lambda text: b"\xef\xbb\xbf" + text, "", None, "", LITERALLY),
    "tabs": (everywhere(" ", "\t"), "", None, "", LITERALLY),
    "a copy": (
        lambda text: text + b"60 " + text.splitlines()[4][2:] + b"\n", "equal-sequences", 61, "the copies",
        lambda text: b"".join(text.splitlines(keepends=True)[:60]),
    ),
    "a constant column": (
        everywhere(r"\|x \S+", "|x 0.5"), "constant-values", 1, "leave the stream or the column out",
        everywhere(r"\|x 0.5", "|x"),
    ),
    "an exponent of Fortran": (on_line(r"\|x \S+", "|x 1.5D+2"), "bad-number", LINE, "write 1.5e+2", LITERALLY),
    "a bracket": (on_line(r"\|x \S+", "|x [1.5"), "bad-number", LINE, "write 1.5", LITERALLY),
    "commas between values": (on_line(r"\|y (.) (.) (.)", r"|y \1,\2,\3"), "bad-number", LINE, "write ", LITERALLY),
    "a sign twice": (on_line(r"\|x \S+", "|x --1.5"), "bad-number", LINE, "write numbers", on_line("--", "-")),
    "a name in capitals": (
        on_line(r"\|y", "|Y"), "missing-sample", LINE, "correct the name to y", on_line(r"\|Y", "|y"),
    ),
    "a header": (
        lambda text: b"id |x ten numbers |y label\n" + text, "broken-file", 1, "remove the line if it is a header",
        lambda text: text.partition(b"\n")[2],
    ),
    "a comment above the first line": (lambda text: b"# 2017\n" + text, "broken-file", 1, "write |# for #", LITERALLY),
    "a cut last line": (lambda text: text[:-5], "broken-file", 60, "copy the file again", anew),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_text_is_found_and_its_help_mends_it(mistake: str) -> None:
    edit, code, line, advice, mend = MISTAKES[mistake]
    damaged = edit(sound())
    Path("a.ctf").write_bytes(damaged)
    findings = cntkio.check("a.ctf")
    if not code:
        assert not findings
        return
    (finding,) = findings
    assert (finding.code, finding.line) == (code, line)
    assert advice in finding.help
    mended = (mend or as_written(finding))(damaged)
    assert mended != damaged
    Path("a.ctf").write_bytes(mended)
    assert not cntkio.check("a.ctf")


def speech(rows: str = "0 200000 a\n200000 400000 b\n", frames: str = "[0,3]", name: str = "u1.mfc") -> list[str]:
    """Write two utterances of four frames with labels; the arguments are for the second utterance."""
    for index in range(2):
        cntkio.write_htk_features(f"u{index}.mfc", np.random.default_rng(index).normal(size=(4, 3)).astype(np.float32))
    Path("a.scp").write_text(f"u0=u0.mfc[0,3]\nu1={name}{frames}\n")
    Path("a.mlf").write_text(f'#!MLF!#\n"*/u0.lab"\n0 400000 a\n.\n"*/u1.lab"\n{rows}.\n')
    Path("names").write_text("a\nb\n")
    return ["a.scp", "a.mlf"]


def swapped() -> list[str]:
    speech()
    content = Path("u1.mfc").read_bytes()
    Path("u1.mfc").write_bytes(np.frombuffer(content[:12], ">u4").astype("<u4").tobytes()[:8] + content[8:])
    return ["a.scp"]


def written(content: bytes, path: str = "a.ctf") -> list[str]:
    Path(path).write_bytes(content)
    return [path]


def overlapping(num_common: int) -> list[str]:
    lines = sound().splitlines(keepends=True)
    return written(b"".join(lines[: 50 + num_common]), "train.ctf") + written(b"".join(lines[50:]), "test.ctf")


def with_label_c(names: str) -> list[str]:
    files = speech("0 400000 c\n")
    Path("names").write_text(names)
    return files


def features(edit: Edit = lambda text: text, name: str = "a.svm") -> list[str]:
    """Write an svmlight text, changed by an edit."""
    random = np.random.default_rng(5)
    lines = (
        f"{n % 2} " + " ".join(f"{at}:{value:.4f}" for at, value in enumerate(random.normal(size=5), 1))
        for n in range(60)
    )
    return written(edit("".join(f"{line}\n" for line in lines).encode()), name)


def kaldi(edit: Edit = lambda text: text, dim: int = 3) -> list[str]:
    """Write an archive of Kaldi and its list, changed by an edit; the last utterance has another dimension."""
    matrices = [np.random.default_rng(n).normal(size=(4, 3)).astype(np.float32) for n in range(6)]
    cntkio.write_kaldi("a.ark", {"x": matrices[:5]}, scp="a.scp")
    cntkio.write_kaldi("b.ark", {"x": [matrices[5][:, :dim]]}, scp="b.scp")
    Path("a.scp").write_bytes(edit(Path("a.scp").read_bytes() + Path("b.scp").read_bytes().replace(b"0 ", b"5 ")))
    return ["a.scp"]


def table(row: object) -> list[str]:
    """Write a table with a row that is given."""
    pa = pytest.importorskip("pyarrow")
    rows = [[value / 8, 1.5 - value] for value in range(30)]
    column = pa.array([*rows[:20], row, *rows[21:]], pa.list_(pa.float32(), 2))
    pytest.importorskip("pyarrow.parquet").write_table(pa.table({"x": column}), "a.parquet")
    return ["a.parquet"]


CONFIGURATION = """train = [
 reader = [
  readerType = CNTKTextFormatReader
  file = x.ctf
  input = [ x = [ dim = 10 ; format = dense ] ; w = [ dim = 10 ; format = sparse ] ]
 ]
]
"""


def configuration(old: str = "", new: str = "") -> list[str]:
    """Write a configuration with a mistake."""
    written(sound(), "x.ctf")
    assert old in CONFIGURATION
    return written(CONFIGURATION.replace(old, new).encode(), "c.cntk")


def binary(edit: Edit = lambda content: content) -> list[str]:
    written(sound(), "b.ctf")
    cntkio.convert.ctf_to_cbf("b.ctf", "a.cbf")
    return written(edit(Path("a.cbf").read_bytes()), "a.cbf")


def late(num_broken: int) -> list[str]:
    """Write a list that begins with missing files."""
    speech()
    return written(b"".join(b"b%d=b%d.mfc[0,3]\n" % (n, n) for n in range(num_broken)) + b"u0=u0.mfc[0,3]\n", "a.scp")


# The mistake, what makes it, the code and a part of the help of the finding, and what the help asks for.
CORPORA: dict[str, tuple[Callable[[], list[str]], str, str, Callable[[], list[str]]]] = {
    "a cut gzip file": (
        lambda: written(gzip.compress(sound())[:-50], "a.ctf.gz"), "broken-file", "the file again",
        lambda: written(gzip.compress(sound()), "a.ctf.gz"),
    ),
    "an empty file": (lambda: written(b""), "broken-file", "copy the file again", lambda: written(sound())),
    "train and test overlap": (lambda: overlapping(10), "overlap", "remove", lambda: overlapping(0)),
    "swapped bytes": (swapped, "broken-file", "write it again with the program", lambda: speech()[:1]),
    "labels too short": (
        lambda: speech("0 300000 a\n"), "unequal-lengths", "write a sample for each frame",
        lambda: speech("0 400000 a\n"),
    ),
    "an unknown phone": (
        lambda: with_label_c("a\nb\n"), "unknown-label", "add the label", lambda: with_label_c("a\nb\nc\n"),
    ),
    "times with a gap": (
        lambda: speech("0 200000 a\n300000 400000 b\n"), "bad-times", "begin each row where",
        lambda: speech("0 200000 a\n200000 400000 b\n"),
    ),
    "a reversed range": (lambda: speech(frames="[3,0]"), "bad-range", "counted from 0", speech),
    "a range beyond the file": (
        lambda: speech("0 1000000 a\n", frames="[0,9]"), "bad-range", "counted from 0",
        lambda: speech("0 400000 a\n", frames="[0,3]"),
    ),
    "a missing file": (lambda: speech(name="u2.mfc"), "missing-file", "correct the path", speech),
    "a list that begins with 120 missing files": (
        lambda: late(120), "missing-file", "correct the path", lambda: late(0),
    ),
    "features of another dimension": (
        lambda: kaldi(dim=2), "other-dimension", "with the same settings", kaldi,
    ),
    "an offset beyond a key": (
        lambda: kaldi(on_line(r"\d+$", "206", 4)), "bad-list-line", "key path:offset", kaldi,
    ),
    "a list without an offset": (lambda: kaldi(on_line(r":\d+$", "", 4)), "bad-list-line", "key path:offset", kaldi),
    "a command in a list": (
        lambda: kaldi(on_line(r" .*", " cat a.ark |", 4)), "bad-list-line", "key path:offset", kaldi,
    ),
    "a label file without times": (
        lambda: speech("a\nb\n"), "bad-times", "forced alignment", speech,
    ),
    "times in seconds": (
        lambda: speech("0.0 0.02 a\n0.02 0.04 b\n"), "empty-utterance", "2000000 for 0.2 s", speech,
    ),
    "a table with a null": (lambda: table(None), "bad-column", "fill in the values", lambda: table([0.5, 2.0])),
    "a table with NaN": (
        lambda: table([float("nan"), 1.0]), "not-finite", "correct or remove", lambda: table([0.5, 2.0]),
    ),
    "an open bracket": (
        lambda: configuration(" ]\n]\n", " ]\n"), "bad-configuration", "at this place", configuration,
    ),
    "a wrong word in a configuration": (
        lambda: configuration("= dense", "= dens"), "bad-configuration", "at this place", configuration,
    ),
    "an unknown reader": (
        lambda: configuration("TextFormatReader", "TextReader"), "bad-configuration", "at this place", configuration,
    ),
    "an unknown variable": (
        lambda: configuration("x.ctf", "$D$/x.ctf"), "bad-configuration", "at this place", configuration,
    ),
    "a missing file of a configuration": (
        lambda: configuration("x.ctf", "y.ctf"), "missing-file", "correct the path", configuration,
    ),
    "a wrong dimension in a configuration": (
        lambda: configuration("dim = 10 ; format = dense", "dim = 12 ; format = dense"), "too-few-values",
        "smaller dimension", configuration,
    ),
    "a cut binary corpus": (
        lambda: binary(lambda content: content[:-20]), "broken-file", "copy the file again", binary,
    ),
    "a binary corpus with other first bytes": (
        lambda: binary(lambda content: b"x" + content[1:]), "broken-file", "copy the file again", binary,
    ),
    "a header of svmlight": (
        lambda: features(lambda text: b"label f1 f2 f3\n" + text), "bad-number", "remove the line if it is a header",
        features,
    ),
    "no label": (lambda: features(on_line(r"^\d ", "")), "bad-number", "write the label before 1:", features),
    "a decimal comma of svmlight": (
        lambda: features(on_line(r"(2:-?\d)\.", r"\1,")), "bad-number", "write 2:", features,
    ),
    "a Unicode minus of svmlight": (
        lambda: features(on_line(r"2:\S+", "2:\u22121.5")), "bad-number", "write 2:-1.5 for", features,
    ),
    "a space in a feature": (lambda: features(on_line("2:", "2: ")), "bad-number", "write 2:", features),
    "an equals sign of svmlight": (lambda: features(on_line("2:", "2=")), "bad-index", "write 2:", features),
    "features out of order": (lambda: features(on_line("5:", "2:")), "unsorted-indices", "sort the features", features),
    "an outlier of svmlight": (
        lambda: features(on_line("5:", "9999999:")), "index-outlier", "correct the index", features,
    ),
    "a negative index of svmlight": (
        lambda: features(on_line(" 1:", " -1:")), "bad-index", "count from 0 or 1", features,
    ),
    "old line ends": (
        lambda: features(everywhere("\n", "\r")), "broken-file", "tr '\\r' '\\n'", features,
    ),
    "old line ends of a text": (
        lambda: written(sound().replace(b"\n", b"\r")), "broken-file", "tr '\\r' '\\n'", lambda: written(sound()),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", CORPORA)
def test_a_mistake_in_a_corpus_is_found_and_its_help_mends_it(mistake: str) -> None:
    make, code, advice, mend = CORPORA[mistake]

    def check(files: list[str]) -> cntkio.Findings:
        return cntkio.check(*files, join="a.mlf" in files, mapping="names" if "a.mlf" in files else None)

    files = make()
    (finding,) = check(files)
    assert finding.code == code and advice in finding.help
    assert finding.path in " ".join([*files, "u1.mfc", "u2.mfc", "b0.mfc", "b.ark", "x.ctf", "y.ctf"])
    assert not check(mend())

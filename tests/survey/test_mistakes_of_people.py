"""The check finds mistakes that people make, with the line and the column."""

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import cntkio
import numpy as np
import pytest

Edit = Callable[[bytes], bytes]
LINE = 21  # the line that has a mistake in it, except where the mistake is in all lines


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def sound() -> bytes:
    """Return a text: ten numbers, a class as one-hot values, and one of ten words for each sequence."""
    random = np.random.default_rng(3)
    lines = []
    for index in range(60):
        numbers = " ".join(f"{value:.4f}" for value in random.normal(size=10))
        label = " ".join("1" if index % 3 == each else "0" for each in range(3))
        lines.append(f"{index} |x {numbers} |y {label} |w {index % 10}:1\n")
    return "".join(lines).encode()


def on_line(pattern: str, replacement: str) -> Edit:
    """Return a function that replaces a pattern in one line."""

    def edit(text: bytes) -> bytes:
        lines = text.splitlines(keepends=True)
        changed = re.sub(pattern.encode(), replacement.encode(), lines[LINE - 1], count=1)
        assert changed != lines[LINE - 1]
        return b"".join([*lines[: LINE - 1], changed, *lines[LINE:]])

    return edit


def everywhere(pattern: str, replacement: str) -> Edit:
    return lambda text: re.sub(pattern.encode(), replacement.encode(), text)


# The mistake, what makes it, and the code, the line and a part of the help of the finding.
MISTAKES: dict[str, tuple[Edit, str, int | None, str]] = {
    "a value too many": (on_line(r" \|y", " 5 |y"), "too-many-values", LINE, "remove the values"),
    "a value too few": (on_line(r" \S+ \|y", " |y"), "too-few-values", LINE, "add the missing values"),
    "a decimal comma": (on_line(r"\.", ","), "bad-number", LINE, "write "),
    "decimal commas": (everywhere(r"(\d)\.(\d)", r"\1,\2"), "bad-number", 1, "write "),
    "a number without a zero": (on_line(r"\|x \S+", "|x .5"), "bad-number", LINE, "write 0.5 for .5"),
    "a Unicode minus": (on_line(r"\|x \S+", "|x \u22125.0"), "stray-text", LINE, "write -5.0"),
    "a quoted number": (on_line(r"\|x (\S+)", r'|x "\1"'), "bad-number", LINE, "write "),
    "a missing value": (on_line(r"\|x \S+", "|x NA"), "bad-number", LINE, "write a number for NA"),
    "nan": (on_line(r"\|x \S+", "|x nan"), "bad-number", LINE, "write a number for nan"),
    "a word for a number": (on_line(r"\|x \S+", "|x high"), "bad-number", LINE, "write |high"),
    "letter O": (on_line(r"\|x \S+", "|x 1O.5"), "bad-number", LINE, "write "),
    "a hexadecimal number": (on_line(r"\|x \S+", "|x 0x1F"), "bad-number", LINE, "write "),
    "a thousands separator": (on_line(r"\|x \S+", "|x 1'000"), "bad-number", LINE, "write "),
    "a semicolon": (on_line(r"(\|x \S+)", r"\1;"), "bad-number", LINE, "write "),
    "an index for a dense stream": (on_line(r"\|x \S+", "|x 0:1.5"), "bad-number", LINE, "sparse"),
    "an index without a value": (on_line(r"\|w \d+:1", "|w 7"), "bad-index", LINE, "index:value"),
    "an equals sign": (on_line(r"\|w (\d+):1", r"|w \1=1"), "bad-index", LINE, "write 0:1 for 0=1"),
    "a word for an index": (on_line(r"\|w \d+", "|w cat"), "bad-index", LINE, "index:value"),
    "a space after the colon": (on_line(r"\|w (\d+):", r"|w \1: "), "bad-number", LINE, ""),
    "a negative index": (on_line(r"\|w \d+", "|w -1"), "bad-index", LINE, "index:value"),
    "an outlier": (on_line(r"\|w \d+", "|w 9999999"), "index-outlier", LINE, "correct the index"),
    "indices from 1": (everywhere(r"\|w 0:1", "|w 10:1"), "one-based-indices", 1, "subtract 1"),
    "two ones": (on_line(r"\|y . . .", "|y 1 1 0"), "not-one-hot", LINE, "single 1"),
    "no label": (on_line(r"\|y . . .", "|y 0 0 0"), "not-one-hot", LINE, "single 1"),
    "infinity": (on_line(r"\|x \S+", "|x 1e99"), "not-finite", LINE, "correct or remove"),
    "a missing stream": (on_line(r"\|w \S+", ""), "missing-sample", LINE, "add the sample"),
    "a stream twice": (on_line(r"(\|w \S+)", r"\1 \1"), "extra-sample", LINE, "line of its own"),
    "a misspelled name": (on_line(r"\|w", "|v"), "missing-sample", LINE, "correct the name to w"),
    "a pipe alone": (on_line(r"\|y", "| |y"), "stray-text", LINE, "pipe and the name"),
    "a colon for a pipe": (on_line(r"\|x", ":x"), "stray-text", LINE, "pipe and the name"),
    "a comment without a pipe": (on_line(r"$", " #good"), "bad-index", LINE, "write |#good"),
    "an umlaut in Windows-1252": (lambda text: text.replace(b"20 |x", b"20 K\xf6ln |x"), "stray-text", LINE, "pipe"),
    "an empty line": (on_line(r"^", "\n"), "", None, ""),
    "a repeated id": (on_line(r"^\d+", "3"), "repeated-id", LINE, "its own id"),
    "a line that is lost": (on_line(r".*\n", ""), "ids-not-consecutive", LINE, "part of the corpus"),
    "another line end": (on_line(r"\n", "\r\n"), "mixed-line-ends", LINE, "dos2unix"),
    "CR LF in all lines": (everywhere(r"\n", "\r\n"), "", None, ""),
    "a byte order mark": (lambda text: b"\xef\xbb\xbf" + text, "", None, ""),
    "tabs": (everywhere(" ", "\t"), "", None, ""),
    "a copy": (lambda text: text + b"60 " + text.splitlines()[4][2:] + b"\n", "equal-sequences", 61, "the copies"),
    "a constant column": (everywhere(r"\|x \S+", "|x 0.5"), "constant-values", 1, "leave the stream or the column out"),
    "a cut last line": (lambda text: text[:-5], "broken-file", 60, "copy the file again"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_text_is_found_at_its_line_with_help(mistake: str) -> None:
    edit, code, line, advice = MISTAKES[mistake]
    Path("a.ctf").write_bytes(sound())
    assert not cntkio.check("a.ctf")
    Path("a.ctf").write_bytes(edit(sound()))
    findings = cntkio.check("a.ctf")
    if not code:
        assert not findings
        return
    (finding,) = findings
    assert (finding.code, finding.line) == (code, line)
    assert advice in finding.help


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


CORPORA: dict[str, tuple[Callable[[], list[str]], str, str]] = {
    "a cut gzip file": (lambda: written(gzip.compress(sound())[:-50], "a.ctf.gz"), "broken-file", "the file again"),
    "an empty file": (lambda: written(b""), "broken-file", "copy the file again"),
    "train and test overlap": (
        lambda: written(sound(), "train.ctf") + written(sound()[-900:].partition(b"\n")[2], "test.ctf"),
        "overlap", "remove",
    ),
    "swapped bytes": (swapped, "broken-file", "copy the file again"),
    "labels too short": (lambda: speech("0 300000 a\n"), "unequal-lengths", "write a sample for each frame"),
    "an unknown phone": (lambda: speech("0 400000 c\n"), "unknown-label", "add the label"),
    "times with a gap": (lambda: speech("0 200000 a\n300000 400000 b\n"), "bad-times", "begin each row where"),
    "a reversed range": (lambda: speech(frames="[3,0]"), "bad-range", "counted from 0"),
    "a range beyond the file": (lambda: speech("0 1000000 a\n", frames="[0,9]"), "bad-range", "counted from 0"),
    "a missing file": (lambda: speech(name="u2.mfc"), "missing-file", "correct the path"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", CORPORA)
def test_a_mistake_in_a_corpus_is_found_with_help(mistake: str) -> None:
    make, code, advice = CORPORA[mistake]
    files = make()
    findings = cntkio.check(*files, join="a.mlf" in files, mapping="names" if "a.mlf" in files else None)
    assert [finding.code for finding in findings] == [code]
    assert advice in findings[0].help and findings[0].path in " ".join([*files, "u1.mfc", "u2.mfc"])

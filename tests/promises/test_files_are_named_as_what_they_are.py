"""A file is named as what its content is, whatever its name, and the help leads to a file that can be read."""

import contextlib
import io
from pathlib import Path

import pytest
from cntkio import KaldiDeserializer
from cntkio.cli import main
from cntkio.formats.detect import detect


def printed(*arguments: str) -> str:
    """Return what a verb prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        main([*arguments])
    return " ".join(output.getvalue().split())


OTHERS = {
    "pointer": "version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n",
    "page": "<!DOCTYPE html>\n<html><body>Not found</body></html>\n",
    "names": "[\n]\na\nb\n",
    "names of states": "sil_s2\nsil-b+ae_s3\naa[4]\n",
    "names of numbered states": "aa.s2\naa.s3\nsil.4\n",
    "image list": "a/b.jpg\t3\nc.jpg\t1\n",
    "sound list": "u1 a.wav\nu2 sph2pipe -f wav b.sph |\n",
    "posteriors": "u1 [ 3 0.5 4 0.5 ] [ 4 1 ]\nu2 [ 3 1 ] [ 3 1 ]\n",
    "transcripts": "u-1 HELLO WORLD\nu-2 GOOD DAY TO YOU\n",
    "csv": "0.5 0.25 1\n0.1 0.2 0\n",
    "xml": '<?xml version="1.0"?>\n<a/>\n',
    "utf-32": "1 |x 1\n",
    "hcopy": "wav/a.wav mfc/a.mfc\nwav/b.wav mfc/b.mfc\n",
    "data folder": "s1 s1-1 s1-2\ns2 s2-1\n",
    "data folder of readers": "1089 1089-134 1089-135\n1090 1090-1\n",
    "data folder of parts": "u1 rec1 0.0 1.25\nu2 rec1 1.25 2.5\n",
    "data folder of times": "u1 1.25\nu2 0.5\n",
}


@pytest.mark.parametrize("form", OTHERS)
def test_a_file_that_nobody_reads_is_named_with_advice(form: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(OTHERS[form], encoding="utf-32" if form == "utf-32" else "utf-8")
    kind = detect(path)
    assert (kind.form, kind.deserializer) == (form.split(" of ")[0], None)
    assert kind.use(path) in printed("check", str(path)).replace("a.txt '", "a.txt'")


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("numbers", "cat.1\t3\ndog.2\t1\n"),
        ("numbers", "u1 123\nu2 99\n"),
        ("numbers", "<eps> 0\n!SIL 1\nA 2\n"),
        ("numbers", "1089-134 1089\n1089-135 1089\n"),
        ("kaldi map", "1089-134-1 1089-134\n1089-134-2 1089-134\n"),
        ("kaldi map", "s1 m\ns2 f\n"),
        ("kaldi", "u1 3 3 4\nu2 7\n"),
    ],
)
def test_a_list_of_names_is_named_and_read(form: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text(text)
    assert detect(path).form == form
    assert f"format {detect(path).title}" in printed("inspect", str(path))
    assert f"sequence {text.split()[0]} labels" in printed("head", str(path))


@pytest.mark.parametrize("suffix", ["scp", "mlf", "cntk", "config", "bs", "ark", "bin", "csv", "svm"])
@pytest.mark.parametrize("text", ["0 |p 1 |l 1\n1 |p 2 |l 2\n", "|p 1\n|p 2\n"])
def test_a_text_is_read_whatever_its_name(suffix: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_text(text)
    assert "sequence 0" in printed("head", "-n", "1", str(path))


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("1 |x 1\n 2 |x 2\n", 2, "an id begins its line"),
        ("1 |x 1\n\t2 |x 2\n", 2, "an id begins its line"),
        (" 1 |x 1\n 2 |x 2\n", 2, "an id begins its line"),
        ("1. |x 1\n2. |x 2\n", 1, "an id begins its line"),
        ("1 |x 1\n2: |x 2\n", 2, "an id begins its line"),
        ("1, |x 1\n2, |x 2\n", 1, "an id begins its line"),
        ("1 |x 1\n-2 |x 2\n", 2, "write an id for -2"),
        ("1 |x 1\n#2 |x 2\n", 2, "write an id for #2"),
        ("1 |x 1\nutt2 |x 2\n", 2, "write an id for utt2"),
        ("0x1 |x 1\n0x2 |x 2\n", 1, "write an id for 0x1"),
        ("1 |x 1\n18446744073709551616 |x 2\n", 2, "write an id for 18446744073709551616"),
        ("1 |x 1\n\u3000 2 |x 2\n", 2, "begins with 2 and a blank"),
        ("1 |x 1\n\u200b2 |x 2\n", 2, "begins with 2 and a blank"),
        ("1 |x 1\n\u0662 |x 2\n", 2, "write an id for \u0662"),
        ("1 |x 1\u00a02\n2 |x 2 3\n", 1, "write a blank or a line's end for them"),
        ("1 |x 1\n# old |x 2\n", 2, "remove the line; a comment begins with |#"),
        ("| label 0 1 | x 1 2\n", 1, "write |label here"),
        ("0 | x 1 2\n", 1, "write |x here"),
        ("\n|# a comment\n| x 1 2\n", 3, "write |x here"),
        ("hello world\nthese are words\nand more of them\n", 1, "txt2ctf"),
        ("| 1 2\n| 3 4\n", 1, "write the name of the stream here"),
        ("1 | price:.23\n0 | price:.18\n", 1, "write the name of the stream here"),
        ("1 |a x:1\n0 |a z:1\n", 1, "number the names"),
        ("|f Infinity 2\n|f 1 2\n", 1, "write a number for Infinity"),
        ("|f . 2\n|f 1 2\n", 1, "write numbers like 1"),
        ("|f 1.#QNAN 2\n|f 1 2\n", 1, "write a number for 1.#QNAN"),
        ("|f #N/A 2\n|f 1 2\n", 1, "write a number for #N/A"),
        ("|w 12.0:1\n" + "|w 3:1\n|w 9:1\n" * 20, 1, "'.' after index 12"),
    ],
)
def test_help_about_a_text_names_the_line_and_the_cause(text: str, line: int, words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    path.write_text(text)
    report = printed("check", str(path))
    assert f"a.ctf:{line}:" in report
    assert words in report
    assert "copy the file again" not in report
    assert "begin each sample with a pipe and the name of its stream, and each comment" not in report


def test_labels_without_times_are_found_at_their_line(tmp_path: Path) -> None:
    (tmp_path / "a.mlf").write_text('#!MLF!#\n"*/u1.lab"\nwhen\nwe\n.\n"*/u2.lab"\nit\n.\n')
    report = printed("check", str(tmp_path / "a.mlf"))
    assert "a.mlf:3:1" in report
    assert "forced alignment" in report
    (tmp_path / "a.mlf").write_text('#!MLF!#\n"*/u1.lab"\n100000 0 a\n.\n')
    assert "write the earlier time first" in printed("check", str(tmp_path / "a.mlf"))
    (tmp_path / "a.mlf").write_text("#!MLF!#\nu1.lab\n0 100000 a\n.\n")
    assert "an entry begins with its name in quotes" in printed("check", str(tmp_path / "a.mlf"))


def test_inspect_gives_the_cause_of_a_stream_that_no_line_has(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_text("1 |x 1 2\n2 |x 3 4\n")
    report = printed("inspect", "--stream", "xx:2", str(tmp_path / "a.ctf"))
    assert "no line has a stream 'xx'; there are: 'x'; did you mean 'x'?" in report


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("0:1 1:2\n0:3 2:4\n", 1),
        ("# c\n\n0:1 1:2\n", 3),
        ("qid:1 0:1\nqid:1 1:2\n", 1),
        ("1 0:1\n0:3 2:4\n" + "1 0:1\n" * 20, 2),
    ],
)
def test_lines_without_a_label_are_found(text: str, line: int, tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text(text)
    assert f"a.svm:{line}:" in printed("check", str(tmp_path / "a.svm"))


@pytest.mark.parametrize("prefix", ["ark:", "scp:", "ark,t:", "scp,p:"])
@pytest.mark.parametrize("name", ["feats", "*.ark", "gunzip -c a.gz |", "-"])
def test_a_prefix_of_kaldi_is_no_part_of_a_path(prefix: str, name: str, tmp_path: Path) -> None:
    advice = f"write {name!r}" if name in ("feats", "*.ark") else "let copy-feats of Kaldi write an archive"
    expected = f"{prefix!r} is a prefix of Kaldi, and no part of a path: {advice}"
    for verb, *others in (["check"], ["inspect"], ["convert", str(tmp_path / "a.ctf")]):
        assert expected in printed(verb, prefix + name, *others)
    for names in (prefix + name, [prefix + name]):
        with pytest.raises(FileNotFoundError) as caught:
            KaldiDeserializer(names).open()
        assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("to", "prefix", "rest", "advice"),
    [
        ("kaldi", "ark:", "b.ark", "write 'b.ark'"),
        ("ctf", "ark,t:", "b.ctf", "write 'b.ctf'"),
        ("parquet", "scp:", "b.parquet", "write 'b.parquet'"),
        ("svmlight", "ark,scp:", "b.svm,b.scp", "write 'b.svm'"),
        ("cbf", "ark:", "| gzip -c > b", "write the path of a file"),
        ("arrow", "ark,t:", "-", "write the path of a file"),
    ],
)
def test_a_prefix_of_kaldi_is_no_part_of_an_output(
    to: str, prefix: str, rest: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.ctf").write_text("0 |label 1 |x 0:1\n1 |label 2 |x 1:2\n" if to == "svmlight" else "0 |x 1\n1 |x 2\n")
    expected = f"{prefix!r} is a prefix of Kaldi, and no part of a path: {advice}"
    assert expected in printed("convert", "--to", to, "a.ctf", prefix + rest)
    assert expected in printed("inspect", "--html", prefix + rest, "a.ctf")
    assert list(tmp_path.iterdir()) == [tmp_path / "a.ctf"]

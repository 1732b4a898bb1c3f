"""Mistakes of new users with lists, features, labels and configurations: the advice in the messages."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import (
    CntkIoError,
    HTKFeatureDeserializer,
    HTKMLFDeserializer,
    MinibatchSource,
    StreamDef,
    StreamDefs,
)
from cntkio.cli import main
from cntkio.formats import htk, mlf


def features(scp: str = "a.scp", **stream: Any) -> HTKFeatureDeserializer:
    return HTKFeatureDeserializer(StreamDefs(F=StreamDef(scp=scp, **{"shape": 3, **stream})))


def labels(path: str = "a.mlf", mapping: str | None = "states") -> HTKMLFDeserializer:
    return HTKMLFDeserializer(mapping, StreamDefs(L=StreamDef(mlf=path, shape=2)))


def read(*deserializers: Any) -> None:
    with MinibatchSource(list(deserializers), max_sweeps=1) as source:
        for _ in source.minibatches(5):
            pass


def written(name: str, content: str | bytes) -> str:
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return name


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    utterances = [(f"u{n}", np.full((4, 3), n)) for n in range(4)]
    htk.write_archive("a.ark", "a.scp", utterances)
    mlf.write_mlf("a.mlf", [(key, np.arange(4) % 2) for key, _ in utterances], ["sil", "aa"])
    mlf.write_mapping("states", ["sil", "aa"])
    Path("a.ctf").write_text("".join(f"{n} |x {n} {n} |y {n % 3}:1\n" for n in range(9)))


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (
            lambda: HTKMLFDeserializer(StreamDefs(L=StreamDef(mlf="a", shape=2)), "states"),  # type: ignore[arg-type]
            "expected the mapping file first, then the streams",
        ),
        (
            lambda: HTKFeatureDeserializer(StreamDef(scp="a.scp", shape=3)),  # type: ignore[arg-type]
            r"expected StreamDefs\(name=StreamDef",
        ),
        (
            lambda: HTKFeatureDeserializer(StreamDefs(F=StreamDef(field="a.scp", shape=3))),
            r"'F' has a field; expected StreamDef\(scp=...\)",
        ),
        (lambda: HTKFeatureDeserializer(StreamDefs(F=StreamDef(shape=3))), r"'F'; expected StreamDef\(scp=...\)"),
        (lambda: features(shape=None), "stream 'F' has no shape; expected shape=NUMBER, the number of values"),
        (
            lambda: read(features(written("m.scp", "u0=a.ark[0:3]\n"))),
            r"expected \[first,last\] with a comma, or quotes around a path that ends in a bracket: 'u0=a.ark\[0:3\]'",
        ),
        (
            lambda: read(features(written("k.scp", "utt1 /data/f.ark:12\n"))),
            "this is a Kaldi archive or list: use KaldiDeserializer",
        ),
        (
            lambda: read(features(written("w.scp", f"u0={written('x.wav', b'RIFF$...WAVEfmt ' + bytes(60))}\n"))),
            r"this is a sound file \(WAV\): HCopy",
        ),
        (
            lambda: read(features(written("w.scp", "\nu0=a.ark[0,99]\n"))),
            r"a.ark, sequence u0, .* frames 0 to 99 are wanted, but the file has 16 \(w.scp, line 2\)",
        ),
        (
            lambda: read(features(), labels(mapping=written("s", "sil 0\naa 1\n"))),
            "not in the mapping file: '0 100000 sil'; the file has 'sil 0', 'aa 1'",
        ),
        (
            lambda: read(features(), labels(mapping=written("s", "sil\r\n\r\nsil\r\n"))),
            "s, line 3: the name 'sil' is already on line 1",
        ),
        (
            lambda: read(features(), labels(written("d.mlf", '#!MLF!#\n"x0.lab"\n0 400000 sil\n.\n'))),
            r"Their first keys: u0, u1, u2, \.\.\. \| x0",
        ),
        (
            lambda: read(features(), labels(written("d.mlf", '#!MLF!#\n"u0.lab"\n0.0 0.04 sil\n.\n'))),
            "no frames; expected times in units of 100 ns, or frame numbers",
        ),
    ],
)
def test_an_error_about_speech_says_what_to_do(mistake: Callable[[], object], message: str) -> None:
    with pytest.raises(CntkIoError, match=message):
        mistake()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("|x .5 1\n", "; write 0.5 for .5"),
        ("|x -.5 1\n", "; write 0.5 for .5"),
        ("|x NaN 1\n", "; the format has no NaN and no infinity"),
        ("|x 1 -inf\n", "; the format has no NaN and no infinity"),
        ("# x\n|x 1 2\n", r"; a comment begins with '\|#'"),
        ("|x 1 2\n# x\n", r"; a comment begins with '\|#'"),
        ("u1 |x 1 2\n", "; ids that are words are read only in a join .*; otherwise, number the sequences"),
        ("|x 1 2\r|x 3 4\r", r"; lines end with a carriage return alone; expected line feeds: tr '\\r' '\\n' < b.ctf"),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), r"this is an image: .* torchvision.io.decode_image"),
    ],
)
def test_an_error_about_a_text_says_what_to_do(text: str | bytes, message: str) -> None:
    with pytest.raises(CntkIoError, match=message):
        read(cntkio.CTFDeserializer(written("b.ctf", text), StreamDefs(x=StreamDef(field="x", shape=2))))


def test_a_tilde_in_a_path_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    with pytest.raises(FileNotFoundError, match="'~' is expanded by shells only: write '/home/me/a.ctf'"):
        read(cntkio.CTFDeserializer("~/a.ctf", StreamDefs(x=StreamDef(field="x", shape=2))))
    with pytest.raises(FileNotFoundError, match="'~' is expanded by shells only: write '/home/me/b.cntk'"):
        cntkio.read_config("~/b.cntk")
    with pytest.raises(FileNotFoundError, match="'~' is expanded by shells only: write '/home/me/c/d.ctf'; no file"):
        cntkio.write_ctf("~/c/d.ctf", {"x": np.eye(2)})


INPUT = "input = [ x = [ dim = 2 ; format = dense ] ; y = [ dim = 3 ; format = sparse ] ]"


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        (f"readerType = CTFDeserializer ; file = a.ctf ; {INPUT}", "a class of Python; write CNTKTextFormatReader"),
        (
            "readerType = HTKDeserializers ; readMethod = rollingWindow ; F = [ scpFile = a.scp ; dim = 3 ]",
            "readMethod = 'rollingWindow'; expected blockRandomize or none",
        ),
        ("file = a.ctf", r"no section 'input'; expected streams, such as input = \[ x = \[ dim = 2"),
        (f"file = a.ctf ; {INPUT.replace('x =', 'z =')}", "lines have no 'z'; they have: 'x', 'y'"),
        (f"file = a.ctf ; {INPUT.replace('dim = 2', 'alias = xx ; dim = 2')}", "have no 'xx'; did you mean 'x'"),
    ],
)
def test_an_error_about_a_reader_says_what_to_do(reader: str, message: str) -> None:
    Path("c.cntk").write_text(f"train = [ reader = [ {reader} ] ]")
    with (
        pytest.raises(CntkIoError, match=message),
        MinibatchSource.from_config("c.cntk", section="train/reader") as source,
    ):
        source.next_minibatch(4)


def test_the_error_about_a_missing_file_names_the_line_of_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.cntk").write_text(f"train = [\n reader = [\n  file = b.ctf\n  {INPUT}\n ]\n]")
    with pytest.raises(FileNotFoundError, match=r"\(c.cntk, line 3, column 3 names it\)"):
        MinibatchSource.from_config("c.cntk", section="train/reader")
    for verb in ("inspect", "head", "bench", "plan"):
        assert main([verb, "c.cntk"]) == 2
        assert "b.ctf: No such file" in (err := capsys.readouterr().err) and "line 3, column 3" in err


def test_a_text_that_is_not_a_configuration_shows_what_one_is() -> None:
    Path("c.cntk").write_text("reader:\n  file: a.ctf\n")
    with pytest.raises(CntkIoError, match=r"readers: none; expected a section such as train = \[ reader = \["):
        cntkio.read_config("c.cntk")


def test_half_a_variable_in_a_path_causes_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    Path("c.cntk").write_text(f"train = [ reader = [ file = $Dir/a.ctf ; {INPUT} ] ]")
    with caplog.at_level(logging.WARNING, "cntkio"):
        cntkio.read_config("c.cntk")
    assert "the '$' in '$Dir/a.ctf' begins no variable; a variable is written $name$" in caplog.text
    caplog.clear()
    Path("c.cntk").write_text(f'train = [ reader = [ file = "$Dir/a.ctf;b.ctf" ; {INPUT} ] ]')
    with caplog.at_level(logging.WARNING, "cntkio"):
        cntkio.read_config("c.cntk")
    assert caplog.text.count("begins no variable") == 1  # and not once more for the list

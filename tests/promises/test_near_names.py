"""An unknown name is an error that names every near name and none that is far; an older name of CNTK names its new one.

The doors: attributes, imports, keywords, streams, keys of configurations, options and verbs of the command, and files.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cntkio
import pytest
from cntkio import CTFDeserializer, MinibatchSource, StreamDef, StreamDefs
from cntkio.arguments import near_names
from cntkio.cli import main
from cntkio.config import read_config

X = StreamDefs(x=StreamDef(field="x", shape=1))
Door = Callable[[Path], Any]


def _source(folder: Path, **options: Any) -> MinibatchSource:
    (folder / "a.ctf").write_text("|x 1 |S0 3 |S1 8\n")
    return MinibatchSource(CTFDeserializer(str(folder / "a.ctf"), X), **options)


def _stream(field: str) -> Door:
    def read(folder: Path) -> None:
        _source(folder)
        streams = StreamDefs(x=StreamDef(field=field, shape=1))
        MinibatchSource(CTFDeserializer(str(folder / "a.ctf"), streams), max_sweeps=1).next_minibatch(1)

    return read


def _missing_file(folder: Path) -> None:
    for name in ("train1.ctf", "train3.ctf", "other.ctf"):
        (folder / name).touch()
    CTFDeserializer(str(folder / "train2.ctf"), X).open()


def _reader(name: str) -> Door:
    def read(folder: Path) -> None:
        (folder / "a.cntk").write_text(f'reader = [ readerType = "{name}" ; file = a ; features = [ dim = 1 ] ]\n')
        read_config(folder / "a.cntk")

    return read


def _section(keys: str) -> Door:
    def read(folder: Path) -> None:
        (folder / "a.cntk").write_text(f"train = [ reader = [ file = a ; input = [ x = [ {keys} ] ] ] ]\n")
        read_config(folder / "a.cntk")

    return read


def _command(*words: str) -> Door:
    return lambda folder: main(words)


def _import(name: str) -> Door:
    return lambda folder: exec(f"from cntkio import {name}")


@pytest.mark.parametrize(
    ("door", "words"),
    [
        # Equally near names, all of them.
        (_stream("s"), "did you mean 'S0' or 'S1'?"),
        (lambda folder: _source(folder, window=3), "'randomization_window_in_chunks' or 'randomization_window_in_samp"),
        (lambda folder: cntkio.write_htk, "did you mean 'write_htk_archive' or 'write_htk_features'?"),
        (_missing_file, "train1.ctf' or '"),
        (_section("dim = 2 ; fromat = dense"), "'format' is required, but missing or empty; it may be misspelled"),
        (_section("dimension = 2"), "missing or empty; it may be misspelled here as 'dimension'"),
        (_command("inspect", "--labls", "a"), "did you mean '--labels'?"),
        # Imports, as attributes.
        (_import("MinibatchSourc"), "cntkio has no 'MinibatchSourc'; did you mean 'MinibatchSource'?"),
        (_import("Bugdet"), "did you mean 'Budget'?"),
        (_import("toch"), "did you mean 'torch'?"),
        # Names of older versions of CNTK.
        (lambda folder: _source(folder, epoch_size=3), "'epoch_size' of older CNTK is 'max_samples' or 'max_sweeps'"),
        (lambda folder: _source(folder, randomization_window=3), "'randomization_window_in_chunks' or"),
        (lambda folder: _source(folder, sample_based_randomization_window=1), "is 'randomization_window_in_samples'"),
        (lambda folder: cntkio.io.text_format_minibatch_source, "MinibatchSource(CTFDeserializer(path"),
        (_import("text_format_minibatch_source"), "MinibatchSource(CTFDeserializer(path"),
        (lambda folder: cntkio.CTFReader, "MinibatchSource(CTFDeserializer(path"),
        (lambda folder: cntkio.io.CBFReader, "MinibatchSource(CBFDeserializer(path"),
        (lambda folder: cntkio.io.create_minibatch_source, "write MinibatchSource(deserializers)"),
        (lambda folder: cntkio.io.DEFAULT_RANDOMIZATION_WINDOW, "DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS"),
        (lambda folder: cntkio.UCIFastReader, "cntkio convert uci2ctf"),
        (_reader("UCIFastReader"), "cntkio convert uci2ctf"),
        (lambda folder: cntkio.LMSequenceReader, "cntkio convert txt2ctf"),
        (_reader("LMSequenceReader"), "cntkio convert txt2ctf"),
        (lambda folder: cntkio.Kaldi2Reader, "KaldiDeserializer"),
        (_reader("Kaldi2Reader"), "KaldiDeserializer"),
        (_reader("LibSVMBinaryReader"), "SvmlightDeserializer"),
        (_reader("CTFDeserializer"), "write CNTKTextFormatReader"),
    ],
)  # fmt: skip
def test_an_unknown_name_has_all_near_names_or_its_new_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], door: Door, words: str
) -> None:
    with pytest.raises((Exception, SystemExit)) as caught:
        door(tmp_path)
    assert words in f"{caught.value}{capsys.readouterr().err}"


@pytest.mark.parametrize(
    ("call", "keyword", "near"),
    [
        (cntkio.Budget, "pad", "padded"),
        (cntkio.Budget, "sequence", "sequences"),
        (cntkio.Partition, "indx", "index"),
        (cntkio.GlobalPartition, "num_worker", "num_workers"),
        (cntkio.BalancedPartition, "cuont", "count"),
        (cntkio.Mixture, "stpo", "stop"),
        (cntkio.SequenceMixture, "part", "parts"),
        (cntkio.SplitRows, "sizes", "size"),
        (cntkio.packed, "lenght", "length"),
        (cntkio.Remote, "cach", "cache"),
        (cntkio.HTKMLFReader, "randomise", "randomize"),
        (cntkio.MinibatchSourceFromData, "max_sample", "max_samples"),
        (cntkio.StreamConfiguration, "sparse", "is_sparse"),
        (cntkio.check, "joins", "join"),
        (cntkio.read_config, "sections", "section"),
        (cntkio.write_cbf, "chunk_size", "chunk_size_in_bytes"),
    ],
)  # fmt: skip
def test_a_wrong_keyword_has_the_near_keywords(call: Callable[..., Any], keyword: str, near: str) -> None:
    with pytest.raises(TypeError, match=rf"has no keyword '{keyword}'; did you mean .*'{near}'"):
        call(**{keyword: 1})


@pytest.mark.parametrize(
    ("name", "known", "far"),
    [
        ("UCIFastReader", cntkio.__all__, "StreamDef"),
        ("text_format_minibatch_source", cntkio.__all__, "UserMinibatchSource"),
        ("LSTM", cntkio.__all__, "Remote"),
        ("KaldiReader", cntkio.__all__, "Partition"),
        ("x", ["y", "lengths"], "y"),
        ("words", ["cards", "dates"], "cards"),
        ("b0", ["u0", "b1"], "u0"),
        ("banana", ["epochSize", "maxErrors"], "maxErrors"),
    ],
)
def test_a_far_name_is_not_suggested(name: str, known: list[str], far: str) -> None:
    assert far not in near_names(name, known)


def test_many_near_names_are_counted() -> None:
    with pytest.raises(KeyError, match=r"'x7' or one of 2 more\?"):
        StreamDefs({f"x{n}": StreamDef(field="x", shape=1) for n in range(100)})["x"]


@pytest.mark.parametrize("verb", ["inspect", "head", "plan", "bench", "check", "convert"])
@pytest.mark.parametrize(
    ("form", "near"), [("spars", "sparse"), ("Sparse", "sparse"), ("sparce", "sparse"), ("dens", "dense")]
)
def test_a_misspelled_form_of_a_stream_has_the_near_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, form: str, near: str
) -> None:
    (tmp_path / "a.ctf").write_text("|x 1:1\n")
    files = [str(tmp_path / name) for name in ("a.ctf", "o.cbf")]
    with pytest.raises(SystemExit):
        main([verb, "--stream", f"x:9:{form}", *files[: 1 + (verb == "convert")]])
    assert f"did you mean '{near}'?" in capsys.readouterr().err


def test_the_name_of_a_stream_may_look_like_a_form(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_text("|spars 1 |sense 2\n")
    assert main(["head", "--stream", "x:1:dense:spars", "--stream", "y:1:sense", str(tmp_path / "a.ctf")]) == 0


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ("wrods:1", "no line has a stream 'wrods'; there are: 'tags', 'words'; did you mean 'words'?"),
        ("w:1:dense:Words", "no line has a stream 'Words'; there are: 'tags', 'words'; did you mean 'words'?"),
        ("tag:2:sparse", "no line has a stream 'tag'; there are: 'tags', 'words'; did you mean 'tags'?"),
        ("zebra:1", "no line has a stream 'zebra'; there are: 'tags', 'words'"),
    ],
)
@pytest.mark.parametrize("verb", ["head", "inspect", "plan", "explain", "bench", "diff", "convert"])
def test_every_verb_refuses_a_stream_that_no_line_has(
    verb: str, stream: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, other = tmp_path / "a.ctf", tmp_path / "b.ctf"
    path.write_text("0 |words 1 |tags 2\n1 |words 3 |tags 1\n")
    files = [str(path), *[str(path)] * (verb == "diff"), *[str(other)] * (verb == "convert")]
    arguments = [verb, *files, "--stream", stream, "--max-errors", "-1"]
    assert main(arguments + ["--step", "0"] * (verb == "explain")) == 2
    assert words in capsys.readouterr().err
    assert not other.exists()


def test_a_stream_that_begins_late_in_a_text_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.ctf").write_text("0 |x1 1\n" * 10_000 + "1 |x1 1 |x2 2\n")
    assert main(["head", str(tmp_path / "a.ctf"), "--stream", "x2:1", "--max-errors", "-1", "--at", "1"]) == 0
    assert "x2  2" in capsys.readouterr().out

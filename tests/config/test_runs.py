"""Configured readers: epochs, states, published configurations, warnings and refusals. (docs/configuration.md)"""

import json
import pickle
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    CTFDeserializer,
    HTKFeatureDeserializer,
    HTKMLFBinaryDeserializer,
    HTKMLFDeserializer,
    HTKMLFReader,
    MinibatchSource,
    StreamDef,
    StreamDefs,
)
from cntkio.config import ReaderConfig
from cntkio.config.files import configuration
from cntkio.config.reading import read_section, readers_asked_for
from cntkio.config.writing import configuration_for, written_config
from cntkio.errors import ConfigError
from cntkio.formats import htk, mlf
from cntkio.timeline import WHOLE_DATA, Window
from support import DATA, ROOT
from support.recorded_epochs import stream_record


def made_of(minibatches: Any) -> list[Any]:
    return [[(name, stream_record(data)) for name, data in minibatch.items()] for minibatch in minibatches]


EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize("name", ["digits/digits.cntk Train", "digits/digits.cntk Test", "alice/alice.cntk train"])
def test_the_printed_program_reads_the_same_data(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    path, section = name.split()
    config = cntkio.read_config(f"examples/{path}", section=section)
    exec(compile(config.to_python(), "printed", "exec"), program := {})
    source = program["source"]
    printed = capsys.readouterr().out.splitlines()
    with config.open() as reference:
        minibatches = list(config.epoch(reference))
        assert printed == [f"{minibatch.num_sequences} {minibatch.end_of_sweep}" for minibatch in minibatches]
        source.begin_epoch(0, source.num_samples)
        assert made_of(source.minibatches(config.minibatch_size())) == made_of(minibatches)
    source.close()


def test_the_joined_example_delivers_both_corpora(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    config = cntkio.read_config("examples/digits/digits.cntk")
    assert [call.name for call in config.calls] == ["CTFDeserializer", "CTFDeserializer"]
    with config.open() as source:
        total = {"pixels": 0, "label": 0}
        for minibatch in config.epoch(source, 1):
            for name in total:
                total[name] += minibatch[name].num_samples
    assert total == {"pixels": 1348, "label": 1348}


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    (tmp_path / "a.ctf").write_text("".join(f"{n // 3} |x {n} {n}.1\n" for n in range(60)))
    return tmp_path


CONFIGURATION = "train = [ reader = [ file = {folder}/a.ctf ; input = [ x = [ dim = 2 ; format = dense ] ] ] ]"


def configured(folder: Path, *overrides: str) -> ReaderConfig:
    (folder / "a.cntk").write_text(CONFIGURATION.format(folder=folder))
    return cntkio.read_config(folder / "a.cntk", *overrides)


def test_double_precision_delivers_float64(lines: Path) -> None:
    with configured(lines, "precision=double").open() as source:
        assert source["x"].dtype == np.float64
        values = [sample for minibatch in configured(lines).epoch(source) for sample in minibatch["x"].values[:, 1]]
    assert sorted(values) == [float(f"{n}.1") for n in range(60)]


def test_epochs_of_a_given_size_cover_the_timeline_once(lines: Path) -> None:
    config = configured(lines, "train=[SGD=[epochSize=24;minibatchSize=7]]")
    with config.open() as source:
        epochs = [[sorted(m["x"].values[:, 0].tolist()) for m in config.epoch(source, e)] for e in range(5)]
    assert [sum(map(len, epoch)) for epoch in epochs] == [24, 24, 24, 24, 24]
    seen = [value for epoch in epochs for values in epoch for value in values]
    assert sorted(seen) == sorted(list(range(60)) * 2)


def test_a_state_within_an_epoch_continues_in_a_new_source(lines: Path) -> None:
    config = configured(lines, "train=[SGD=[epochSize=24;minibatchSize=6]]")
    with config.open() as source, config.open() as other:
        reading = config.epoch(source, 2)
        next(reading)
        state = json.loads(json.dumps(source.state_dict()))
        rest = made_of(reading)
        other.load_state_dict(state)
        assert made_of(other.minibatches(6)) == rest


def test_a_source_from_a_configuration_can_be_pickled(lines: Path) -> None:
    configured(lines)
    with MinibatchSource.from_config(lines / "a.cntk", "train=[reader=[randomizationSeed=5]]") as source:
        source.begin_epoch(60, 120)
        source.next_minibatch(9)
        with pickle.loads(pickle.dumps(source)) as other:
            assert made_of(other.minibatches(9)) == made_of(source.minibatches(9))


def test_an_action_reads_as_in_cntk(lines: Path) -> None:
    (lines / "a.cntk").write_text(CONFIGURATION.format(folder=lines))
    path = lines / "a.cntk"
    assert cntkio.read_config(path).window is not None
    assert cntkio.read_config(path, "train=[action=test]").window is None
    assert cntkio.read_config(path, "train=[action=test]").minibatch_size() == 40960
    assert cntkio.read_config(path, "train=[action=test]", section="train/reader").window is not None
    assert cntkio.read_config(path, "train=[action=write]").window is None
    assert cntkio.read_config(path, "train=[action=eval;reader=[randomize=true]]").window is not None


@pytest.mark.parametrize(
    ("extra", "warning"),
    [
        ("randomise = true", "key 'randomise' is unknown here and ignored; did you mean 'randomize'?"),
        ("chunkSize = 5", "did you mean 'chunkSizeInBytes'?"),
        ("second half", "is it the second half of a value that should be in quotes?"),
        ("elementType = float", None),
        ("useMersenneTwisterRand = true", None),
        ("...", None),
    ],
)
def test_warns_of_keys_that_no_reader_knows(
    extra: str, warning: str | None, lines: Path, caplog: pytest.LogCaptureFixture
) -> None:
    configured(lines, f"train=[reader=[{extra}]]")
    assert warning in caplog.text if warning else not caplog.records


def test_a_window_in_samples_of_a_composite_reader_is_all_data() -> None:
    text = TEXT.format(extra="")
    reader = f"reader = [ sampleBasedRandomizationWindow = true ; deserializers = ( {text} ) ]"
    assert read_section(configuration([f"train = [ {reader} ]"])).window == WHOLE_DATA


def test_the_trace_level_sets_what_is_logged(lines: Path, caplog: pytest.LogCaptureFixture) -> None:
    (lines / "a.ctf").write_text("".join(f"{n} |x {n} {n}.1\n{n} |x a b\n" for n in range(20)))

    def num_logged(trace: str, *, is_pickled: bool = False) -> int:
        caplog.clear()
        config = configured(lines, f"train=[reader=[maxErrors=100;chunkSizeInBytes=64{trace}]]")
        with config.open() as source, pickle.loads(pickle.dumps(source)) as other:
            for _ in config.epoch(other if is_pickled else source):
                pass
        return len(caplog.records)

    assert num_logged(";traceLevel=0") == num_logged(";traceLevel=0", is_pickled=True) == 0
    # Three errors on each of 20 wrong lines. By default, ten of each kind and the totals are logged.
    assert [num_logged(trace) for trace in ("", ";traceLevel=1", ";traceLevel=2")] == [33, 33, 60]
    assert num_logged(";traceLevel=0;maxError=1;verbosity=2") == 0
    assert num_logged(";maxError=1;verbosity=2") == 35


def test_the_trace_level_of_a_deserializer_counts_where_the_reader_has_none() -> None:
    text = TEXT.format(extra="traceLevel = 0")

    def level(extra: str) -> int:
        reader = f"reader = [ {extra} ; deserializers = ( {text} ) ]"
        return read_section(configuration([f"train = [ {reader} ]"])).trace_level

    assert (level("a=b"), level("traceLevel=2")) == (0, 2)


def test_a_renaming_that_fits_no_stream_is_silent_at_level_0(lines: Path, caplog: pytest.LogCaptureFixture) -> None:
    cntkio.write_cbf(lines / "a.cbf", CTFDeserializer(lines / "a.ctf", StreamDefs(x=StreamDef(field="x", shape=2))))
    streams = StreamDefs(y=StreamDef(field="z", shape=2))
    for level, count in ((0, 0), (1, 1)):
        with MinibatchSource(CBFDeserializer(lines / "a.cbf", streams, compatible=True), trace_level=level):
            assert len(caplog.records) == count


def test_backslashes_in_paths_are_tried_as_slashes(lines: Path, caplog: pytest.LogCaptureFixture) -> None:
    (lines / "sub").mkdir()
    (lines / "a.ctf").rename(lines / "sub" / "b.ctf")
    path = f"{lines}\\sub\\b.ctf"
    config = configured(lines, f"train=[reader=[file={path}]]")
    assert config.calls[0].arguments[0] == str(lines / "sub" / "b.ctf")
    assert f"{path}: no such file; {lines}/sub/b.ctf is read (section train/reader)" in caplog.text
    assert configured(lines, "train=[reader=[file=no\\b.ctf]]").calls[0].arguments[0] == "no\\b.ctf"


def test_a_missing_section_lists_the_sections_with_readers(lines: Path) -> None:
    with pytest.raises(ConfigError, match=r"no section 'cvReader'; did you mean 'reader'\?; sections .*: train \(sec"):
        configured(lines)
        cntkio.read_config(lines / "a.cntk", section="train/cvReader")
    with pytest.raises(ConfigError, match="there is no section 'Train2'; did you mean 'train'.*readers: train$"):
        configured(lines, "x=[y=1]", "command=Train2")


def test_a_missing_variable_says_how_to_give_it(lines: Path) -> None:
    with pytest.raises(ConfigError, match="no variable found with the name RunDir: give RunDir=... as an argument"):
        configured(lines, "train=[reader=[file=$RunDir$/a.ctf]]")


def test_a_misspelled_reader_suggests_the_nearest_name(lines: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'CNTKTextFormatReader'"):
        configured(lines, "train=[reader=[readerType=CNTKTextFormatRedaer]]")


@pytest.mark.parametrize(
    ("overrides", "warning"),
    [
        (["DatDir=x"], "argument 2, column 1: no reader that was read uses 'DatDir', so it has no effect"),
        (["trian=[SGD=[minibatchSize=3]]"], "no reader that was read uses 'trian/SGD/minibatchSize'"),
        (["train=[SDG=[minibatchSize=3]]"], "no reader that was read uses 'train/SDG/minibatchSize'"),
        (["train=[SGD=[minibatchSize=3;epochsize=9;maxEpocs=4]]"], "no reader that was read uses 'train/SGD/maxEpocs'"),
        (["x=1;y=$x$;train=[SGD=[minibatchSize=$y$]]"], None),
        (["train=[reader=[file=$Dir$/a.ctf]];Dir=b"], None),
        (["Dirr=b"], "did you mean 'Dir'?"),
        (["test=[other=[file=$NoSuchVariable$]]"], "no reader that was read uses 'test/other/file'"),
        (["command=train", "train=[action=test]"], None),
        (["train=[reader=[input=[x=[alias=y]]]]"], None),
        (["train=[reader=[randomizationSeed=4]]"], None),
    ],
)
def test_warns_of_overrides_that_no_reader_uses(
    overrides: list[str], warning: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.cntk").write_text(f"Dir = {tmp_path}\n" + CONFIGURATION.format(folder="$Dir$"))
    cntkio.read_config(tmp_path / "a.cntk", *overrides)
    assert warning in caplog.text if warning else not caplog.records


TEXT = "[ type = CNTKTextFormatDeserializer ; file = a.ctf ; input = [ x = [ dim = 2 ; format = dense ] ] ; {extra} ]"


@pytest.mark.parametrize(
    ("reader", "deserializer", "warning"),
    [
        ("", "randomize = false", "randomize has no effect: the section of the reader sets it"),
        ("randomize = false", "randomize = none", None),
        ("", "randomize = true", None),
        ("", "frameMode = true", "frameMode has no effect: the section of the reader sets it"),
        ("frameMode = true", "frameMode = true", None),
        ("", "precision = double", "precision has no effect"),
        ("precision = double", "precision = Double", None),
        ("", "randomizationWindow = 3", "randomizationWindow has no effect"),
        ("", "readMethod = none", "readMethod has no effect: HTKDeserializers and HTKMLFReader have it"),
        ("", "truncated = true", "truncated has no effect"),
        ("readMethod = none", "", "readMethod has no effect: HTKDeserializers and HTKMLFReader have it"),
        ("readMethod = blockRandomize", "", None),
        ("minibatchMode = full", "", "minibatchMode has no effect: only HTKMLFReader has it"),
        ("nbruttsineachrecurrentiter = 2", "", "nbruttsineachrecurrentiter has no effect"),
        ("truncationLength = 5", "", "truncationLength has no effect without truncated = true"),
        ("skipSequenceIds = true", "", "skipSequenceIds has no effect: it belongs in the section of a deserializer"),
    ],
)
def test_warns_of_keys_without_effect_in_a_composite_reader(
    reader: str, deserializer: str, warning: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    text = TEXT.format(extra=deserializer)
    read_section(configuration([f"train = [ reader = [ {reader} ; deserializers = ( {text} ) ] ]"]))
    assert warning in caplog.text if warning else not caplog.records


@pytest.mark.parametrize(
    ("extra", "warning"),
    [
        ("maxErrors = 5", "maxErrors has no effect: no error in a binary file is forgiven"),
        ("maxErrors = 0", None),
        ("frameMode = true", "frameMode has no effect: CNTKTextFormatReader, HTKDeserializers, HTKMLFReader and the"),
        (
            "truncated = true",
            "truncated has no effect: HTKDeserializers, HTKMLFReader and the composite reader have it",
        ),
        ("keepDataInMemory = true", None),
        ("readMethod = none", "readMethod has no effect"),
    ],
)
def test_warns_of_keys_that_the_binary_reader_lacks(
    extra: str, warning: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    text = f"train = [ reader = [ readerType = CNTKBinaryReader ; file = a.cbf ; {extra} ] ]"
    read_section(configuration([text]))
    assert warning in caplog.text if warning else not caplog.records


@pytest.mark.parametrize(
    ("reader", "extra", "warning"),
    [
        ("HTKMLFReader", "labels = [ mlfFlie = a.mlf ]", "'labels' has neither scpFile nor mlfFile nor mlfFileList"),
        (
            "HTKDeserializers",
            "labels = [ mlfFlie = a.mlf ]",
            "'labels' has neither scpFile nor mlfFile nor mlfFileList",
        ),
        ("HTKMLFReader", "minibatchMode = full", None),
        ("HTKMLFReader", "minibatchMode = full ; frameMode = false", "minibatchMode = full has no effect"),
        ("HTKMLFReader", "maxUtteranceLength = 5 ; frameMode = false", None),
        ("HTKMLFReader", "maxUtteranceLength = 5", "maxUtteranceLength has an effect only"),
        ("HTKMLFReader", "maxUtteranceLength = 5 ; frameMode = false ; truncated = true", "has an effect only"),
    ],
)
def test_warns_of_sections_and_keys_that_a_speech_reader_ignores(
    reader: str, extra: str, warning: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    text = f"train = [ reader = [ readerType = {reader} ; x = [ scpFile = a.scp ; dim = 2 ] ; {extra} ] ]"
    read_section(configuration([text]))
    assert warning in caplog.text if warning else not caplog.records


@pytest.mark.parametrize(
    ("reader", "deserializer", "expected"),
    [("keepDataInMemory = true", "", True), ("", "keepDataInMemory = true", True), ("", "", False)],
)
def test_a_composite_reader_keeps_its_data_in_memory(reader: str, deserializer: str, expected: bool) -> None:
    text = TEXT.format(extra=deserializer)
    config = read_section(configuration([f"train = [ reader = [ {reader} ; deserializers = ( {text} ) ] ]"]))
    assert config.source_options().get("keep_data_in_memory", False) is expected


@pytest.mark.parametrize(
    ("override", "key", "message"),
    [
        (
            "train=[reader=[readerType=UCIFastReader]]",
            "readerType",
            "uci2ctf.* with CNTKTextFormatReader",
        ),
        ("train=[reader=[chunkSizeInBytes=0]]", "chunkSizeInBytes", "expected at least 1"),
        ("train=[reader=[input=[x=[dim=0]]]]", "dim", "dim = 0; expected 1 to"),
        ("train=[SGD=[minibatchSize=0]]", "minibatchSize", "expected at least 1"),
        ("command=test", "test", "there is no section 'test'"),
        ("command=tran", "tran", "did you mean 'train'"),
    ],
)
def test_errors_of_a_reader_name_the_key(override: str, key: str, message: str, lines: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        configured(lines, override)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("names", "instead"),
    [
        ("UCIFastReader Cntk.Reader.UCIFast", "uci2ctf.* with CNTKTextFormatReader"),
        ("LibSVMBinaryReader Cntk.Reader.SVMBinary", "SvmlightDeserializer .* convert that text to CTF"),
        (
            "SparsePCReader Cntk.Reader.SparsePC DSSMReader",
            "convert the data to CTF or CBF, and use CNTKTextFormatReader or CNTKBinaryReader",
        ),
        (
            "LMSequenceReader LUSequenceReader Cntk.Reader.LMSequence Cntk.Reader.LUSequence",
            "map words to indices, write CTF .cntkio convert txt2ctf",
        ),
        ("BinaryReader Cntk.Reader.Binary", "write CBF and use CNTKBinaryReader"),
        ("Kaldi2Reader KaldiReader Cntk.Reader.Kaldi2", "KaldiDeserializer .* convert them to CTF"),
        ("ImageReader Cntk.Deserializers.Image ImageDeserializer", "cntkio reads no images"),
        ("SparseDenseReader NoReader", "supported are CNTKTextFormatReader, "),
    ],
)
def test_refuses_other_readers_and_names_a_replacement(names: str, instead: str, lines: Path) -> None:
    for name in names.split():
        with pytest.raises(ConfigError, match=instead) as caught:
            configured(lines, f"train=[reader=[readerType={name}]]")
        assert caught.value.key == "readerType"
        assert repr(name) in str(caught.value)


@pytest.mark.parametrize("name", ["ImageDeserializer", "Base64ImageDeserializer", "LatticeDeserializer", "Other"])
def test_refuses_other_deserializers_and_names_a_replacement(name: str) -> None:
    text = f"train = [ reader = [ deserializers = ([ type = {name} ; input = [ x = [ dim = 2 ] ] ]) ] ]"
    with pytest.raises(ConfigError, match="not a format of this library|is not supported|supported are") as caught:
        read_section(configuration([text]))
    assert caught.value.key == "type"


def test_finds_all_readers_of_a_configuration_or_the_named_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    path = "examples/digits/digits.cntk"
    train, test = [reader.facts() for reader in readers_asked_for(path, [])]
    assert (train["randomization window"], test["randomization window"]) == ("500 samples", "none")
    (only,) = readers_asked_for(path, ["Test", "Test=[minibatchSize=100]"])
    assert (only.section, only.minibatch_size()) == ("Test/reader", 100)


def test_a_written_configuration_reads_the_corpus(lines: Path) -> None:
    streams = StreamDefs({"x": StreamDef(field="x", shape=2)})
    text, program = configuration_for(CTFDeserializer(lines / "a.ctf", streams, max_errors=3))
    (lines / "w.cntk").write_text(text)
    config = cntkio.read_config(lines / "w.cntk")
    assert repr(config.deserializers[0]) == repr(CTFDeserializer(lines / "a.ctf", streams, max_errors=3))
    exec(compile(program, "printed", "exec"), made := {})
    made["source"].close()
    with pytest.raises(ConfigError):
        configuration_for(CTFDeserializer('a"b.ctf', streams))


# The readers of the formats' published pages, each with its file.
PAGES = DATA / "config_pages"
CTF_PAGES = {
    "minimal": ["A", "B", "C"],
    "extended": ["Some_other_also_very_long_input_name", "Some_very_long_input_name"],
    "composite": ["query_i", "query_j", "weight"],
}


@pytest.mark.parametrize("name", CTF_PAGES)
def test_the_text_readers_of_the_published_pages_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PAGES.parent / "ctf_pages")
    config = cntkio.read_config(PAGES / f"{name}.cntk")
    with config.open() as source:
        assert [info.name for info in source.stream_infos()] == CTF_PAGES[name]
        assert all(info.dtype == ("float64" if name == "extended" else "float32") for info in source.stream_infos())
        assert sum(minibatch.num_sequences for minibatch in config.epoch(source)) == source.num_sequences


def test_the_binary_reader_of_the_published_page_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c:").mkdir()  # a folder like any other
    (tmp_path / "a.ctf").write_text("".join(f"|x {n} {-n} |y {n}:1\n" for n in range(9)))
    streams = StreamDefs(x=StreamDef(field="x", shape=2), y=StreamDef(field="y", shape=9, is_sparse=True))
    cntkio.write_cbf(tmp_path / "c:" / "mydata.bin", CTFDeserializer(tmp_path / "a.ctf", streams))
    monkeypatch.chdir(tmp_path)
    config = cntkio.read_config(PAGES / "binary.cntk")
    assert config.calls[0].arguments == ("c:/mydata.bin", StreamDefs(features=StreamDef(field="x")))
    assert config.window == Window(50, "chunks")
    with config.open() as source:
        assert sorted(info.name for info in source.stream_infos()) == ["features", "y"]
        values = [row for minibatch in config.epoch(source) for row in minibatch["features"].values.tolist()]
    assert sorted(values) == [[n, -n] for n in range(9)]


@pytest.fixture
def timit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Three utterances under the names of the page, two of them in an archive; frames by key."""
    for folder in ("scp", "mlf", "feat ures"):
        (tmp_path / "timit" / folder).mkdir(parents=True)
    chance = np.random.default_rng(0)
    keys = [f"train-dr1-fcjf0-{name}" for name in ("si1027", "si1657", "sa1")]
    frames = {key: chance.random((n, 72), np.float32) for key, n in zip(keys, (7, 12, 4), strict=True)}
    folder = tmp_path / "timit" / "feat ures"
    both = [(key, frames[key]) for key in keys[:2]]
    htk.write_archive(folder / "a.chunk", folder / "a.scp", both, kind="FBANK")
    htk.write_features(folder / "sa1.fbank", frames[keys[2]], kind="FBANK")
    (tmp_path / "timit/scp/TIMIT.train.scp.fbank.fullpath").write_text(
        f"{keys[0]}.fbank={folder}/a.chunk[0,6]\n{keys[1]}.fbank={folder}/a.chunk[7,18]\n"
        f"{keys[2]}.fbank=.../../feat ures/sa1.fbank [0,3]\n"
    )
    rows = ["#!MLF!#"]
    for key in keys:
        n = len(frames[key])
        rows += [f'"{key}.rec"', f"0 200000 h#_s2 -136.655975 h# -589.680481 h#\n200000 {n}00000 t_s4 -18.5", "."]
    (tmp_path / "timit/mlf/TIMIT.train.align_cistate.mlf.cntk").write_text("\n".join(rows) + "\n")
    states = [f"s{n}" for n in range(181)] + ["h#_s2", "t_s4"]
    (tmp_path / "timit/mlf/TIMIT.statelist").write_text("\n".join(states))
    monkeypatch.chdir(tmp_path)
    return frames


def with_window(frames: Any, left: int = 5, right: int = 5) -> Any:
    padded = np.pad(frames, ((left, right), (0, 0)), "edge")
    return np.hstack([padded[at : at + len(frames)] for at in range(left + right + 1)])


def test_the_timit_reader_of_the_published_page_reads(timit: dict[str, Any]) -> None:
    config = cntkio.read_config(PAGES / "timit.cntk")
    assert (config.kind, config.packing, config.minibatch_mode) == ("HTKMLFReader", "frame", "partial")
    expected = sorted(
        [*row.tolist(), 181 if number < 2 else 182]
        for frames in timit.values()
        for number, row in enumerate(with_window(frames))
    )
    with config.open() as source:
        assert type(source) is HTKMLFReader
        found = []
        for minibatch in config.epoch(source, minibatch_size=5):
            rows = minibatch["features"].values.tolist()
            found += [[*row, label] for row, label in zip(rows, minibatch["labels"].indices.tolist(), strict=True)]
    assert sorted(found) == expected


def test_every_parameter_of_the_old_reader_reaches_it(timit: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    rows = [f"{name} {n % 2}{n % 3 % 2}" for n, name in enumerate([f"s{n}" for n in range(181)] + ["h#_s2", "t_s4"])]
    (tmp_path / "targets").write_text("\n".join(rows))

    def read(*reader: str) -> tuple[ReaderConfig, Any]:
        config = cntkio.read_config(PAGES / "timit.cntk", f"train=[reader=[{';'.join(reader)}]]")
        with config.open() as source:
            return config, made_of(config.epoch(source, 1, minibatch_size=4))

    deserializers = list(cntkio.read_config(PAGES / "timit.cntk").deserializers)

    def python(**options: Any) -> Any:
        with HTKMLFReader(deserializers, **options) as source:
            return made_of(source.epoch(1, 4))

    rolling = python(readMethod="rollingWindow", randomize=6)
    assert read("readMethod=rollingWindow", "randomize=6", f"pageFilePath={tmp_path}/pages")[1] == rolling
    assert read("readMethod=rollingWindow", "randomize=6", "minibatchMode=full")[1] == rolling[:-1]
    assert read("readMethod=rollingWindow", "randomize=none")[1] == python(randomize="none")
    assert read("randomize=7")[1] == python(randomize=7)
    config, found = read("frameMode=false", "nbruttsineachrecurrentiter=1:2", "maxUtteranceLength=11")
    assert found == python(frameMode=False, nbruttsineachrecurrentiter=[1, 2], maxUtteranceLength=11)
    assert len(found) == 1
    assert config.facts()["utterances"] == "1, 2, ... in a minibatch"
    found = read("frameMode=false", "truncated=true", "nbruttsineachrecurrentiter=2")[1]
    assert found == python(frameMode=False, truncated=True, nbruttsineachrecurrentiter=2)
    config, found = read("labels=[labelToTargetMappingFile=targets;targetDim=2]")
    labels = dict(found[0])["labels"]["sequences"]
    assert {tuple(row) for sequence in labels for row in sequence} <= {(0, 1), (1, 0), (0, 0), (1, 1)}
    assert "labelToTargetMappingFile='targets'" in config.to_python()
    assert "targetDim=2" in config.to_python()


@pytest.mark.parametrize(
    ("extra", "warning"),
    [
        ("checkData = false", "checkData has no effect: streams are always checked"),
        ("checkData = true", None),
        ("useNumericSequenceKeys = true", "useNumericSequenceKeys has no effect: keys are compared as text"),
        ("hashSequenceKeys = true", "hashSequenceKeys has no effect: keys are compared as they are"),
        ("useMersenneTwisterRand = false", "useMersenneTwisterRand has no effect: the random numbers are always drawn"),
        ("useMersenneTwisterRand = true", None),
        ("randomizationSeed = 5", "randomizationSeed has no effect: sweep k is shuffled with k"),
        ("truncationLength = 5", "truncationLength has no effect: the minibatch size is the truncation length"),
        ("pageFilePath = x", "pageFilePath has no effect without readMethod = rollingWindow"),
        ("checkData = perhaps", None),
        (
            "readerType = HTKDeserializers ; minibatchMode = full",
            "minibatchMode has no effect: only HTKMLFReader has it",
        ),
        ("readerType = HTKDeserializers ; nbruttsineachrecurrentiter = 2", "has an effect only with truncated and"),
        ("readerType = HTKDeserializers ; maxErrors = 2", "maxErrors has no effect: only the composite reader has it"),
        ("randomizationWindow = 2", "randomizationWindow has no effect: the window is the value of randomize"),
        ("keepDataInMemory = true", "keepDataInMemory has no effect"),
    ],
)
def test_warns_of_keys_without_effect(
    extra: str, warning: str | None, timit: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    cntkio.read_config(PAGES / "timit.cntk", f"train=[reader=[{extra}]]")
    assert warning in caplog.text if warning else not caplog.records


@pytest.mark.parametrize(
    "reader",
    [
        "randomize=none",
        "randomize=0",
        "randomize=false",
        "readMethod=none",
        "readMethod=none;frameMode=false",
        "readMethod=rollingWindow;randomize=none",
        "readMethod=rollingWindow;randomize=none;frameMode=false",
        "randomize=none;frameMode=false;truncated=true",
    ],
)
def test_the_old_reader_reads_in_order_on_request(reader: str, timit: dict[str, Any], tmp_path: Path) -> None:
    config = cntkio.read_config(PAGES / "timit.cntk", f"train=[reader=[{reader}]]")
    assert config.window is None
    (tmp_path / "w.cntk").write_text(written_config("train", config))
    assert cntkio.read_config(tmp_path / "w.cntk") == config
    with config.open() as source:
        keys = [key for minibatch in config.epoch(source, minibatch_size=5) for key in minibatch.keys_of_sequences]
    assert list(dict.fromkeys(keys)) == list(timit)
    assert cntkio.read_config(PAGES / "timit.cntk", "train=[reader=[randomize=true]]").window == WHOLE_DATA


def test_the_old_reader_reads_features_alone(timit: dict[str, Any]) -> None:
    config = cntkio.read_config(PAGES / "timit.cntk", "train=[reader=[labels=1]]")
    with config.open() as source:
        assert sum(minibatch.num_sequences for minibatch in config.epoch(source)) == 23


def test_htk_deserializers_write_frames_in_order(timit: dict[str, Any]) -> None:
    arguments = "train=[action=write;reader=[readerType=HTKDeserializers{}]]"
    with pytest.raises(ConfigError, match="action = write; expected readMethod = none"):
        cntkio.read_config(PAGES / "timit.cntk", arguments.format(""))
    config = cntkio.read_config(PAGES / "timit.cntk", arguments.format(";readMethod=none"))
    assert (config.packing, config.window) == ("frame", None)


def test_the_old_reader_reads_as_its_action_whatever_names_it(timit: dict[str, Any]) -> None:
    for action in ("test", "write", "train"):
        by_action = cntkio.read_config(PAGES / "timit.cntk", f"train=[action={action}]", section="train")
        by_path = cntkio.read_config(PAGES / "timit.cntk", f"train=[action={action}]", section="train/reader")
        assert by_path == by_action


@pytest.mark.parametrize(
    "reader",
    [
        ["readerType=HTKMLFReader"],
        ["readerType=HTKMLFReader", "readMethod=rollingWindow"],
        ["readerType=HTKDeserializers"],
        ["readerType=HTKDeserializers", "frameMode=false"],
        ["readerType=HTKDeserializers", "frameMode=false", "truncated=true", "truncationLength=3"],
        ["readerType=HTKDeserializers", "labels=[labelToTargetMappingFile=targets]"],
    ],
)
def test_double_precision_delivers_float64_of_speech(reader: list[str], timit: dict[str, Any], tmp_path: Path) -> None:
    names = [f"s{n}" for n in range(181)] + ["h#_s2", "t_s4"]
    (tmp_path / "targets").write_text("\n".join(f"{name} {n % 2}{n % 3 % 2}" for n, name in enumerate(names)))

    def read(precision: str) -> list[Any]:
        override = f"train=[reader=[{';'.join(reader)}]]"
        config = cntkio.read_config(PAGES / "timit.cntk", override, f"precision={precision}")
        assert ("dtype='float64'" in config.to_python()) is (precision == "Double")
        with config.open() as source:
            minibatches = list(config.epoch(source, minibatch_size=4))
            values = [minibatch[info].values for minibatch in minibatches for info in source.stream_infos()]
            assert {array.dtype for array in values} == {info.dtype for info in source.stream_infos()}
            return values

    for single, double in zip(read("float"), read("Double"), strict=True):
        assert (single.dtype, double.dtype) == (np.float32, np.float64)
        assert (single == double).all()


def test_the_precision_of_speech_is_set_from_python(timit: dict[str, Any], tmp_path: Path) -> None:
    features, labels = cntkio.read_config(PAGES / "timit.cntk").deserializers
    features["precision"] = labels["precision"] = "double"
    assert (features["precision"], features.dtype, labels.dtype) == ("double", np.float64, np.float64)
    with MinibatchSource([features, labels], max_sweeps=1) as source:
        minibatch = source.next_minibatch(100)
        assert {minibatch[info].values.dtype for info in source.stream_infos()} == {np.dtype(np.float64)}
    made, _ = configuration_for([features, labels])
    (tmp_path / "w.cntk").write_text(made)
    assert [one.dtype for one in cntkio.read_config(tmp_path / "w.cntk").deserializers] == [np.float64, np.float64]
    with pytest.raises(ConfigError, match="dtype is int32; expected float32 or float64"):
        HTKFeatureDeserializer(StreamDefs(F=StreamDef(scp="a.scp", shape=2)), dtype=np.int32)


@pytest.mark.parametrize(
    ("extra", "key", "message"),
    [
        ("readMethod=rollingWindow;frameMode=false", "readMethod", "whole utterances are shuffled by blockRandomize"),
        ("nbruttsineachrecurrentiter=1:2", "nbruttsineachrecurrentiter", "and frameMode exclude each other"),
        ("maxUtteranceLength=0", "maxUtteranceLength", "expected at least 1"),
        ("unigram=[a=b]", "unigram", "not supported"),
        ("hmms=[phoneFile=x]", "hmms", "sequence training"),
        ("lattices=[denlatTocFile=x]", "lattices", "sequence training"),
        ("labels=[labelToTargetMappingFile=targets;targetDim=0]", "targetDim", "expected 1 to"),
    ],
)
def test_errors_of_the_old_reader_name_the_key(extra: str, key: str, message: str, timit: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        cntkio.read_config(PAGES / "timit.cntk", f"train=[reader=[{extra}]]")
    assert caught.value.key == key


def test_refuses_a_missing_folder_for_the_page_file(timit: dict[str, Any]) -> None:
    config = cntkio.read_config(
        PAGES / "timit.cntk", "train=[reader=[readMethod=rollingWindow;pageFilePath=no/such/folder]]"
    )
    with pytest.raises(ConfigError, match="'no/such/folder', which is not a folder"):
        config.open()


def test_a_written_configuration_of_each_format_reads_the_corpus(
    timit: dict[str, Any], tmp_path: Path, lines: Path
) -> None:
    text = CTFDeserializer(str(lines / "a.ctf"), StreamDefs(x=StreamDef(field="x", shape=2)), dtype="float64")
    cntkio.write_cbf(lines / "a.cbf", text)
    features, labels = cntkio.read_config(PAGES / "timit.cntk").deserializers
    mlf.write_binary_mlf(tmp_path / "a.bmlf", [(key, np.zeros(len(one), int)) for key, one in timit.items()])
    binary = HTKMLFBinaryDeserializer(StreamDefs(L=StreamDef(mlf=[tmp_path / "a.bmlf"], shape=3)))
    for number, given in enumerate([text, CBFDeserializer(lines / "a.cbf"), features, [features, labels, binary]]):
        made, program = configuration_for(given)
        (tmp_path / "w.cntk").write_text(made)
        config = cntkio.read_config(tmp_path / "w.cntk")
        with (
            config.open() as source,
            MinibatchSource(given, **{**config.source_options(), "crosses_sweeps": False}) as expected,
        ):
            expected.begin_epoch(0, expected.num_samples)
            assert made_of(config.epoch(source)) == made_of(expected.minibatches(256)), number
        exec(compile(program, "printed", "exec"), program_names := {})
        program_names["source"].close()


def test_refuses_to_write_options_that_have_no_key(timit: dict[str, Any]) -> None:
    features, labels = cntkio.read_config(PAGES / "timit.cntk").deserializers
    times = HTKMLFDeserializer("s", StreamDefs(L=StreamDef(mlf="a.mlf", shape=2)), as_class_ids=True)
    for given, message in (
        ([features, times], "as_class_ids=True has no key in a configuration"),
        ([labels, features], "cannot be the first"),
        ([42], "a deserializer of the type int cannot be written in a configuration"),
    ):
        with pytest.raises(ConfigError, match=message):
            configuration_for(given)


def test_the_labels_of_a_configuration_keep_their_index(timit: dict[str, Any], tmp_path: Path) -> None:
    config = cntkio.read_config(PAGES / "timit.cntk", "train=[reader=[cacheIndex=true]]")
    with config.open() as source:
        before = made_of(config.epoch(source))
    assert len(list(tmp_path.rglob("*.index"))) == 1
    with config.open() as source:
        assert made_of(config.epoch(source)) == before
    made, _ = configuration_for(list(config.deserializers))
    assert "cacheIndex = true" in made


@pytest.mark.parametrize("cached", ["true", 1])
def test_the_cntk_name_of_an_option_keeps_the_index_of_labels(cached: object) -> None:
    labels = HTKMLFDeserializer("s", StreamDefs(L=StreamDef(mlf="a.mlf", shape=2)))
    labels["cacheIndex"] = cached
    assert labels.cache_index is True
    assert labels["input"] is labels.streams


def test_advice_about_data_uses_the_words_of_the_configuration(lines: Path, tmp_path: Path) -> None:
    with (
        configured(lines, "train=[reader=[frameMode=true]]").open() as source,
        pytest.raises(cntkio.CorpusError, match="frameMode = false reads sequences"),
    ):
        source.next_minibatch(9)
    with (
        configured(lines, "train=[reader=[input=[x=[dim=1]]]]").open() as source,
        pytest.raises(cntkio.FormatError, match="the file would fit dim = 2, format = dense"),
    ):
        source.next_minibatch(9)
    htk.write_archive(tmp_path / "a.ark", tmp_path / "a.scp", [("u", np.zeros((3, 2)))])
    reader = f"readerType=HTKDeserializers;F=[scpFile={tmp_path}/a.scp;dim=4]"
    (tmp_path / "h.cntk").write_text(f"train=[reader=[{reader}]]")
    with pytest.raises(ConfigError, match="dim is 4, but the files' frames have 2 values; expected dim = 2, or an odd"):
        cntkio.read_config(tmp_path / "h.cntk").open()
